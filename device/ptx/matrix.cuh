/* matrix.cuh - PTX for products of many tokens: copies that a thread asks for, matrices in shared memory, warpgroups.
 *
 * A matrix in shared memory lies in blocks of 8 rows x 32 columns of 16 bits in the 64-byte swizzle, as packed weights
 * do (gen/device_body.h).  A warpgroup (128 threads) multiplies two such matrices straight from there.
 */
#ifndef PTX_MATRIX_CUH
#define PTX_MATRIX_CUH

#include "ptx/ptx.cuh"

/* ---- copies from global to shared memory, through L2 only; of this thread ---- */

/* 16 bytes, or zeros if not `there` (the address must be valid all the same). */
MPK_FN void ptx_copy_async(void *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ptx_shared(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
/* Close a group of copies. */
MPK_FN void ptx_copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until at most N of the groups closed last are under way. */
template <int N> MPK_FN void ptx_copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* n threads meet at barrier `id`; 1 is mpk_sync's. */
MPK_FN void ptx_meet(int id, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}

/* ---- matrices of 8 x 8 from shared memory: lane l gives the address of row l % 8 of matrix l / 8 ---- */

MPK_FN void ptx_load_matrices(rt_u32 *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(ptx_shared(row))
                 : "memory");
}

#if MPK_BULK
/* What this thread has written to shared memory is seen by products of warpgroups after this and a meeting. */
MPK_FN void ptx_fence_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

#if MPK_WGMMA

/* ---- products of a warpgroup ---- */

/* What tells a warpgroup where a matrix begins: its first block (512-byte aligned, or that and 32 bytes more: columns
 * 16 on) and the bytes from a group of 8 rows to the next. */
MPK_FN rt_u64 ptx_matrix(const void *first, rt_u32 group_bytes)
{
    const rt_u64 swizzle_64 = 2;
    return (rt_u64)(ptx_shared(first) >> 4 & 0x3fff) | (rt_u64)1 << 16 | (rt_u64)(group_bytes >> 4) << 32 |
           swizzle_64 << 62;
}
/* Before the first product, and after the sums have been touched otherwise. */
MPK_FN void ptx_group_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
MPK_FN void ptx_group_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> MPK_FN void ptx_group_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Lane (g = lane / 4, c = lane % 4) of warp w of the warpgroup holds of c: row 16 w + g, columns 8 n + 2c and + 1
 * (c[4 n], c[4 n + 1]), and row 16 w + g + 8 (c[4 n + 2], c[4 n + 3]). */
/* c[64 x 64] = a[64 x 16] b[16 x 64], added to c; the 64 columns of b are rows in memory. */
MPK_FN void ptx_group_multiply_64(float *c, rt_u64 a, rt_u64 b)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;\n}"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]),
          "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]),
          "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]),
          "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
        : "l"(a), "l"(b));
}
/* c[64 x 128] = a[64 x 16] b[16 x 128], added to c; the 128 columns of b are rows in memory. */
MPK_FN void ptx_group_multiply_128(float *c, rt_u64 a, rt_u64 b)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0;\n}"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]),
          "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]),
          "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]),
          "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), "+f"(c[32]),
          "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]),
          "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]),
          "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]), "+f"(c[56]),
          "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
        : "l"(a), "l"(b));
}
/* c[64 x 192] = a[64 x 16] b[16 x 192], added to c; the 192 columns of b are rows in memory. */
MPK_FN void ptx_group_multiply_192(float *c, rt_u64 a, rt_u64 b)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, %96, %97, p, 1, 1, 0, 0;\n}"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]),
          "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]),
          "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]),
          "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), "+f"(c[32]),
          "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]),
          "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]),
          "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]), "+f"(c[56]),
          "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63]), "+f"(c[64]),
          "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]), "+f"(c[70]), "+f"(c[71]), "+f"(c[72]),
          "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]), "+f"(c[77]), "+f"(c[78]), "+f"(c[79]), "+f"(c[80]),
          "+f"(c[81]), "+f"(c[82]), "+f"(c[83]), "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]), "+f"(c[88]),
          "+f"(c[89]), "+f"(c[90]), "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95])
        : "l"(a), "l"(b));
}

#endif

#endif
