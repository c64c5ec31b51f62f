/* matrix.cuh - PTX for products of many tokens: copies that a thread issues, matrices in
 * shared memory, warpgroups.
 *
 * Called by task/linear_tile.cuh and its parts, expert_tile.cuh, attention_tile.cuh,
 * attention_group.cuh and block.cuh.  A matrix in shared memory lies in one of three swizzles,
 * by the length of its rows.  A swizzle permutes the 16-byte units of a row by the row's number,
 * so that a column of units, which eight lanes or the tensor core read at once, lies in eight
 * different banks:
 *
 *   row of    unit u of row r stands at    rows before it repeats
 *    32 B     u ^ (r / 4 % 2)               8     values of a KV page (tile/kv.cuh)
 *    64 B     u ^ (r / 2 % 4)               8     packed weights, keys, x of few columns
 *   128 B     u ^ (r % 8)                   8     boxes, x of 64 columns
 *
 * A warpgroup (four warps, 128 threads, the first a multiple of 4) multiplies two such matrices
 * straight from there.
 */
#ifndef PTX_MATRIX_CUH
#define PTX_MATRIX_CUH

#include "ptx/ptx.cuh"

/* ---- copies from global to shared memory, through L2 only; of this thread ---- */

/* 16 bytes, or zeros if not `there` (the address must be valid all the same: nothing is read
 * from it).  Both addresses are multiples of 16. */
MPK_FN void ptx_copy_async(void *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ptx_shared(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}
/* The first n_bytes of 16, and zeros after them; 0: the address must be valid all the same. */
MPK_FN void ptx_copy_async_part(void *to, const void *from, int n_bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ptx_shared(to)), "l"(from),
                 "r"(n_bytes)
                 : "memory");
}
/* As ptx_copy_async, to an address in the shared window.  If not `there`, the address that is read
 * need not be valid. */
MPK_FN void ptx_copy_async_at(rt_u32 to, const void *from, bool there)
{
    asm volatile("{ .reg .pred away; setp.eq.u32 away, %2, 0;\n"
                 "  cp.async.cg.shared.global [%0], [%1], 16, away; }" ::"r"(to),
                 "l"(from), "r"((rt_u32)there)
                 : "memory");
}
/* Close a group of copies. */
MPK_FN void ptx_copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until at most N of the groups that this thread closed last are in flight.  Other threads'
 * copies are not waited for: a meeting must follow before their bytes are read. */
template <int N> MPK_FN void ptx_copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* n threads, a multiple of 32, meet at barrier `id`; each then sees what the others wrote
 * before. Barrier 0 is the block's at the start, 1 that of mpk_sync; warpgroups of bodies use 2
 * and 3. */
MPK_FN void ptx_meet(int id, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}

/* The same for threads that need not wait: of those that meet they have arrived. */
MPK_FN void ptx_arrive(int id, int n)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}

/* ---- matrices of 8 x 8 from shared memory: lane l gives the address of row l % 8 of matrix l / 8
 * ---- */

/* r[i] is matrix i: this lane gets of row lane / 4 the two entries from column 2 (lane % 4) on. All
 * 32 lanes must call, with rows aligned to 16 bytes. */
MPK_FN void ptx_load_matrices(rt_u32 *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(ptx_shared(row))
                 : "memory");
}

/* The same, each matrix transposed: a lane gets entries of a column. */
MPK_FN void ptx_load_matrices_transposed(rt_u32 *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(ptx_shared(row))
                 : "memory");
}

/* Both, from a row's address in the shared window. */
MPK_FN void ptx_load_matrices_at(rt_u32 *r, rt_u32 row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}
MPK_FN void ptx_load_matrices_transposed_at(rt_u32 *r, rt_u32 row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

#if MPK_WGMMA
/* The same the other way: this lane's words of matrix i, r[i], go to the rows. */
MPK_FN void ptx_store_matrices(void *row, const rt_u32 *r)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(ptx_shared(row)),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}
#endif

#if MPK_BULK
/* What this thread has written to shared memory, by stores or by its own cp.async, is seen by
 * products of warpgroups after this and a meeting: they read shared memory by another proxy. */
MPK_FN void ptx_fence_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#else
MPK_FN void ptx_fence_shared(void) {} /* products are those of warps */
#endif

#if MPK_WGMMA

/* ---- products of a warpgroup ---- */

/* The descriptor that tells a warpgroup where a matrix begins, in rows of 32 columns in the
 * 64-byte swizzle.  first: its first block (512-byte aligned, or that and 32 bytes more: columns
 * 16 on); group_bytes: from a group of 8 rows to the next.
 *
 *   bits  0-13   first / 16, an address of shared memory
 *        16-29   leading stride / 16, which these layouts do not use: 1
 *        32-45   stride from 8 rows to the next 8 / 16
 *        62-63   1: 128-byte, 2: 64-byte, 3: 32-byte swizzle
 */
MPK_FN rt_u64 ptx_matrix(const void *first, rt_u32 group_bytes)
{
    const rt_u64 swizzle_64 = 2;
    return (rt_u64)(ptx_shared(first) >> 4 & 0x3fff) | (rt_u64)1 << 16 |
           (rt_u64)(group_bytes >> 4) << 32 | swizzle_64 << 62;
}
/* The same for a matrix in rows of 64 columns in the 128-byte swizzle: 8 rows take 1024 bytes, and
 * the first byte is aligned to 1024. Columns 16 k and up begin 32 k bytes further; the hardware
 * applies the swizzle to the address, so it holds there too. */
MPK_FN rt_u64 ptx_matrix_of_rows(const void *first)
{
    const rt_u64 swizzle_128 = 1;
    return (rt_u64)(ptx_shared(first) >> 4 & 0x3fff) | (rt_u64)1 << 16 | (rt_u64)(1024 >> 4) << 32 |
           swizzle_128 << 62;
}
/* The same for a matrix in rows of 16 columns in the 32-byte swizzle, groups of 8 rows (256
 * bytes) in order; its first byte 256-byte aligned. */
MPK_FN rt_u64 ptx_matrix_of_values(const void *first)
{
    const rt_u64 swizzle_32 = 3;
    return (rt_u64)(ptx_shared(first) >> 4 & 0x3fff) | (rt_u64)1 << 16 | (rt_u64)(256 >> 4) << 32 |
           swizzle_32 << 62;
}
/* A descriptor of its words. */
MPK_FN rt_u64 ptx_words(rt_u32 low, rt_u32 high)
{
    rt_u64 both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
    return both;
}
/* All threads of the warpgroup, before the first product and after the sums have been touched
 * otherwise: the tensor core then sees the registers as they are. */
MPK_FN void ptx_group_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/* All threads of the warpgroup: close a group of the products issued so far.  They run in the
 * background; neither the registers of the sums nor those of an operand may be touched, nor
 * shared memory that they read be overwritten, before a wait. */
MPK_FN void ptx_group_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until at most N of the groups closed last are in flight. */
template <int N> MPK_FN void ptx_group_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Tells the compiler that x changes here, so no read of x moves ahead of the wait before it. */
MPK_FN void ptx_hold(float &x)
{
    asm volatile("" : "+f"(x)::"memory");
}
/* ptx_group_multiply_TYPE_N: c[64 x N] = a[64 x 16] b[16 x N], added to c; all threads of the
 * warpgroup.  a and b are in shared memory (descriptors); the N columns of b are rows in memory.
 * Lane l of warp w of the warpgroup holds of c, with g = l / 4 and c = l % 4, for each n < N /
 * 8:
 *
 *                  columns 8n + 2c, 8n + 2c + 1
 *   row 16w + g         c[4n]     c[4n + 1]
 *   row 16w + g + 8     c[4n + 2] c[4n + 3]
 *
 * The predicate p is always true: the product is added to c, which the caller has cleared.  In
 * the macros below, names: those of the sums, then those of a and b. */
#define PTX_NAMES_0                                                          \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PTX_NAMES_32                                                                     \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PTX_NAMES_32_HALF \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define PTX_NAMES_64                                                                     \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define PTX_NAMES_96                                                                           \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
    "%111, %112, "                                                                             \
    "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define PTX_SUMS_8(c, i)                                                                        \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
        "+f"(c[i + 6]), "+f"(c[i + 7])
#define PTX_SUMS_32(c, i) \
    PTX_SUMS_8(c, i), PTX_SUMS_8(c, i + 8), PTX_SUMS_8(c, i + 16), PTX_SUMS_8(c, i + 24)
/* The immediates after p: 1, 1 leave the signs of a and b, 0, 0 say that rows of both lie along
 * what is summed over.
 */
#define PTX_GROUP_MULTIPLY_OF(type, columns, names, name_of_a, name_of_b, ...)               \
    MPK_FN void ptx_group_multiply_##type##_##columns(float *c, rt_u64 a, rt_u64 b)          \
    {                                                                                        \
        asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type \
                     " {" names "}, " name_of_a ", " name_of_b ", p, 1, 1, 0, 0;\n}"         \
                     : __VA_ARGS__                                                           \
                     : "l"(a), "l"(b));                                                      \
    }
#define PTX_GROUP_MULTIPLY(...)              \
    PTX_GROUP_MULTIPLY_OF(bf16, __VA_ARGS__) \
    PTX_GROUP_MULTIPLY_OF(f16, __VA_ARGS__)
PTX_GROUP_MULTIPLY(64, PTX_NAMES_0, "%32", "%33", PTX_SUMS_32(c, 0))
PTX_GROUP_MULTIPLY(96, PTX_NAMES_0 PTX_NAMES_32_HALF, "%48", "%49", PTX_SUMS_32(c, 0),
                   PTX_SUMS_8(c, 32), PTX_SUMS_8(c, 40))
PTX_GROUP_MULTIPLY(128, PTX_NAMES_0 PTX_NAMES_32, "%64", "%65", PTX_SUMS_32(c, 0),
                   PTX_SUMS_32(c, 32))
PTX_GROUP_MULTIPLY(192, PTX_NAMES_0 PTX_NAMES_32 PTX_NAMES_64, "%96", "%97", PTX_SUMS_32(c, 0),
                   PTX_SUMS_32(c, 32), PTX_SUMS_32(c, 64))
PTX_GROUP_MULTIPLY(256, PTX_NAMES_0 PTX_NAMES_32 PTX_NAMES_64 PTX_NAMES_96, "%128", "%129",
                   PTX_SUMS_32(c, 0), PTX_SUMS_32(c, 32), PTX_SUMS_32(c, 64), PTX_SUMS_32(c, 96))
/* The same with a in registers, the operand of a warp's own product: of row lane / 4, columns 2c,
 * 2c + 1 (a[0]) and 2c + 8, 2c + 9 (a[2]), c = lane % 4; of row lane / 4 + 8 a[1] and a[3]. */
#define PTX_GROUP_MULTIPLY_OWN(columns, names, name_of_a, name_of_b, ...)                     \
    MPK_FN void ptx_group_multiply_own_##columns(float *c, const rt_u32 *a, rt_u64 b)         \
    {                                                                                         \
        asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                               \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" names \
                     "}, {" name_of_a "}, " name_of_b ", p, 1, 1, 0;\n}"                      \
                     : __VA_ARGS__                                                            \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                   \
    }
/* The same of either type where rows of b in memory are entries of the sum, up to 64 columns each,
 * in the 128-byte swizzle: the last immediate.  more: the product is added to c, else c is it. */
#define PTX_GROUP_MULTIPLY_KEPT_OF(type, columns, names, name_of_a, name_of_b, name_of_more, ...) \
    MPK_FN void ptx_group_multiply_kept_##type##_##columns(float *c, const rt_u32 *a, rt_u64 b,   \
                                                           bool more)                             \
    {                                                                                             \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " name_of_more ", 0;\n"                    \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type      \
                     " {" names "}, {" name_of_a "}, " name_of_b ", p, 1, 1, 1;\n}"               \
                     : __VA_ARGS__                                                                \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)more));       \
    }
#define PTX_GROUP_MULTIPLY_KEPT(...)              \
    PTX_GROUP_MULTIPLY_KEPT_OF(bf16, __VA_ARGS__) \
    PTX_GROUP_MULTIPLY_KEPT_OF(f16, __VA_ARGS__)
#define PTX_NAMES_TO_15 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define PTX_NAMES_TO_19 PTX_NAMES_TO_15 ", %16, %17, %18, %19"
#define PTX_NAMES_TO_23 PTX_NAMES_TO_19 ", %20, %21, %22, %23"
#define PTX_NAMES_TO_27 PTX_NAMES_TO_23 ", %24, %25, %26, %27"
#define PTX_SUMS_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define PTX_SUMS_16(c, i) PTX_SUMS_8(c, i), PTX_SUMS_8(c, i + 8)
PTX_GROUP_MULTIPLY_OWN(64, PTX_NAMES_0, "%32, %33, %34, %35", "%36", PTX_SUMS_32(c, 0))
PTX_GROUP_MULTIPLY_OWN(128, PTX_NAMES_0 PTX_NAMES_32, "%64, %65, %66, %67", "%68",
                       PTX_SUMS_32(c, 0), PTX_SUMS_32(c, 32))
PTX_GROUP_MULTIPLY_KEPT(32, PTX_NAMES_TO_15, "%16, %17, %18, %19", "%20", "%21", PTX_SUMS_16(c, 0))
PTX_GROUP_MULTIPLY_KEPT(40, PTX_NAMES_TO_19, "%20, %21, %22, %23", "%24", "%25", PTX_SUMS_16(c, 0),
                        PTX_SUMS_4(c, 16))
PTX_GROUP_MULTIPLY_KEPT(48, PTX_NAMES_TO_23, "%24, %25, %26, %27", "%28", "%29", PTX_SUMS_16(c, 0),
                        PTX_SUMS_8(c, 16))
PTX_GROUP_MULTIPLY_KEPT(56, PTX_NAMES_TO_27, "%28, %29, %30, %31", "%32", "%33", PTX_SUMS_16(c, 0),
                        PTX_SUMS_8(c, 16), PTX_SUMS_4(c, 24))
PTX_GROUP_MULTIPLY_KEPT(64, PTX_NAMES_0, "%32, %33, %34, %35", "%36", "%37", PTX_SUMS_32(c, 0))

#endif

#endif
