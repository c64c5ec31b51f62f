/* ptx.cuh - inline PTX that every kernel may need: memory, barriers, bulk copies, a warp's
 * products. matrix.cuh has the rest.  All inline PTX of the device code stands in this folder.
 *
 * Each function is one instruction of PTX ISA 8.0, with its order and scope in the name; no name
 * says `relaxed`, which is what those without a word are.  Bodies and roles call them by any
 * number of threads unless a comment says otherwise.  What sm_80 lacks stands under MPK_BULK,
 * with what a ring needs in its place beside it.
 *
 * MPK_RING    sm_80 on: barriers in shared memory at which copies arrive
 * MPK_BULK    sm_90 on: bulk copies, transaction counts, elect.sync
 * MPK_WGMMA   sm_90a: products of a warpgroup (matrix.cuh)
 */
#ifndef PTX_PTX_CUH
#define PTX_PTX_CUH

#include "ptx/half.cuh"
#include "ptx/thread.cuh"

/* Four 32-bit words as they are loaded and stored. */
struct __align__(16) mpk_words
{
    rt_u32 x, y, z, w;
};

/* The 32-bit address in the shared window, as instructions on shared memory take it. */
MPK_FN rt_u32 ptx_shared(const void *p)
{
    return (rt_u32)__cvta_generic_to_shared(p);
}

/* v, in a register: the compiler does not know how it came about, and so cannot work it out again
 * where it is read. */
MPK_FN rt_u32 ptx_keep(rt_u32 v)
{
    rt_u32 kept;
    asm volatile("mov.b32 %0, %1;" : "=r"(kept) : "r"(v));
    return kept;
}

/* Eight values, all of them before what follows: else ptxas makes one after the other all the way,
 * and the thread waits for each step of each.  Only a meeting of the lanes holds it back; those
 * that are here meet, whichever they are. */
MPK_FN void ptx_keep_eight(float *v)
{
    asm volatile("{.reg .b32 lanes; activemask.b32 lanes; bar.warp.sync lanes;}"
                 : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3]), "+f"(v[4]), "+f"(v[5]),
                   "+f"(v[6]), "+f"(v[7]));
}

/* ---- global memory, relaxed at device scope: seen by every SM, cached in L2 only ---- */

/* p is a multiple of 16.  Each word is whole, but four of them are not one access: some may be
 * new and others old, so a reader of carried data looks at each. */
MPK_FN mpk_words ptx_load_words(const void *p)
{
    mpk_words v;
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
/* p is a multiple of 8; as ptx_load_words. */
MPK_FN uint2 ptx_load_two_words(const void *p)
{
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p)
                 : "memory");
    return v;
}
/* Four words if `wanted`; else v stays as it is.  A predicate, not a branch, so that the loads
 * of a loop stay together and are in flight at the same time. */
MPK_FN void ptx_load_words_if(const void *p, bool wanted, mpk_words *v)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.relaxed.gpu.global.v4.b32 {%0, "
                 "%1, %2, %3}, [%4];\n}"
                 : "+r"(v->x), "+r"(v->y), "+r"(v->z), "+r"(v->w)
                 : "l"(p), "r"((rt_u32)wanted)
                 : "memory");
}
/* Never answered from L1, so a poll sees what another SM has stored.  Orders nothing else: who
 * reads more than this word needs an acquire. */
MPK_FN rt_u32 ptx_load_word(const void *p)
{
    rt_u32 v;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
/* Whole: a reader sees the old word or this one. Orders nothing else. */
MPK_FN void ptx_store_word(void *p, rt_u32 v)
{
    asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* p is a multiple of 8.  A reader may see one of the two and not yet the other. */
MPK_FN void ptx_store_two_words(void *p, rt_u32 a, rt_u32 b)
{
    asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(a), "r"(b)
                 : "memory");
}
/* Two sums of products, to global or shared memory.  As floats: were they taken as words, the
 * compiler would move each to another register inside the loop that makes them. */
MPK_FN void ptx_store_sums(void *p, float a, float b)
{
    asm volatile("st.relaxed.gpu.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(a), "f"(b) : "memory");
}
/* Four sums from either, if `wanted`; as ptx_load_words_if. */
MPK_FN void ptx_load_sums_if(const void *p, bool wanted, mpk_words *v)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.relaxed.gpu.v4.b32 {%0, %1, %2, "
                 "%3}, [%4];\n}"
                 : "+r"(v->x), "+r"(v->y), "+r"(v->z), "+r"(v->w)
                 : "l"(p), "r"((rt_u32)wanted)
                 : "memory");
}
/* p is a multiple of 16; four words that may be seen one by one. */
MPK_FN void ptx_store_words(void *p, const mpk_words &v)
{
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
/* The same at system scope: words that other GPUs store or load. Over NVLink that is a round trip
 * to the other GPU's L2. */
MPK_FN mpk_words ptx_load_words_system(const void *p)
{
    mpk_words v;
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
MPK_FN void ptx_store_word_system(void *p, rt_u32 v)
{
    asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
MPK_FN void ptx_store_words_system(void *p, const mpk_words &v)
{
    asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
/* Adds without a result (red, not atom), so the thread does not wait for an answer.  The release
 * covers all that the thread has written or has seen, by barriers too: so one thread publishes
 * what eight warps wrote. */
MPK_FN void ptx_add_release(rt_word *w, rt_u32 v)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(&w->value), "r"(v) : "memory");
}

/* ---- shared memory ---- */

/* Two floats by one store; `to` is 8-byte aligned. */
MPK_FN void ptx_store_shared_pair(float *to, float a, float b)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(ptx_shared(to)), "f"(a), "f"(b)
                 : "memory");
}
/* p is a multiple of 16.  The hardware serves eight lanes at a time, 128 bytes: no bank conflict
 * if these eight cover all 32 banks. */
MPK_FN mpk_words ptx_load_shared_words(const void *p)
{
    mpk_words v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(ptx_shared(p))
                 : "memory");
    return v;
}
/* Flags between warps of one block: a word that one warp stores and others poll.
 *
 *   writer: data, then ptx_store_flag       (release, block)
 *   reader: ptx_load_flag until it is set,  (no order)
 *           then ptx_acquire_flag once, then data
 *
 * The poll itself orders nothing, since an acquire empties the SM's L1 cache each time, which
 * bodies live on.  Where a flag is all that is read (`abort`) there is no acquire. */
MPK_FN rt_u32 ptx_load_flag(const rt_u32 *p)
{
    rt_u32 v;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(v) : "r"(ptx_shared(p)) : "memory");
    return v;
}
MPK_FN rt_u32 ptx_acquire_flag(const rt_u32 *p)
{
    rt_u32 v;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(ptx_shared(p)) : "memory");
    return v;
}
MPK_FN void ptx_store_flag(rt_u32 *p, rt_u32 v)
{
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(ptx_shared(p)), "r"(v) : "memory");
}

/* ---- barriers in shared memory ---- */

/* A phase of a barrier ends when this many arrivals have come, and the bytes that
 * ptx_barrier_expect has announced; then the next phase begins, of the other parity.  The first
 * has parity 0; a wait for parity 1 is answered at once, as if a phase before it had completed. */
MPK_FN void ptx_barrier_init(rt_u64 *b, rt_u32 arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ptx_shared(b)), "r"(arrivals)
                 : "memory");
}
/* Release at block scope: a thread that waits for the phase sees what this thread wrote before. */
MPK_FN void ptx_barrier_arrive(rt_u64 *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(ptx_shared(b)) : "memory");
}

#if MPK_RING
/* The policy for bytes that are read once in a step, weights: L2 evicts them first, and keeps what
 * is read again. */
MPK_FN rt_u64 ptx_policy_once(void)
{
    rt_u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
#endif

#if MPK_BULK
/* An arrival that announces n_bytes of bulk copies: the phase lasts until they have come, even
 * if they come before this announcement. */
MPK_FN void ptx_barrier_expect(rt_u64 *b, rt_u32 n_bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ptx_shared(b)),
                 "r"(n_bytes)
                 : "memory");
}
/* 1: the phase of this parity has completed, with acquire at block scope.  0: not yet; the
 * hardware may have held the thread for a short while before it says so, so a loop around it is
 * no busy loop. */
MPK_FN rt_u32 ptx_barrier_try(rt_u64 *b, rt_u32 parity)
{
    rt_u32 done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], "
                 "%2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(ptx_shared(b)), "r"(parity)
                 : "memory");
    return done;
}
/* The same without a wait. */
MPK_FN rt_u32 ptx_barrier_look(rt_u64 *b, rt_u32 parity)
{
    rt_u32 done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], "
                 "%2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(ptx_shared(b)), "r"(parity)
                 : "memory");
    return done;
}
/* All 32 lanes meet here, and one of them gets true.  Unlike for `lane == 0` the compiler knows
 * that it is one thread, and makes no loop over the lanes around a bulk copy. */
MPK_FN bool ptx_elect(void)
{
    rt_u32 chosen;
    asm volatile("{\n.reg .pred p;\n.reg .b32 lane;\nelect.sync lane|p, 0xffffffff;\nselp.u32 %0, "
                 "1, 0, p;\n}"
                 : "=r"(chosen)
                 :
                 : "memory");
    return chosen;
}
/* One thread: n_bytes from global to shared memory, by the copy engine; n_bytes and both
 * addresses multiples of 16 (to: ptx_shared).  On arrival the bytes are taken from the barrier's
 * transaction count.  They are read once: L2 may drop them first (ptx_policy_once). */
MPK_FN void ptx_copy_bulk_once(rt_u32 to, const void *from, rt_u32 n_bytes, rt_u64 *b,
                               rt_u64 policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(n_bytes), "r"(ptx_shared(b)), "l"(policy)
                 : "memory");
}
/* The same without the hint: KV pages, and what several workers read. */
MPK_FN void ptx_copy_bulk(void *to, const void *from, rt_u32 n_bytes, rt_u64 *b)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(ptx_shared(to)),
        "l"(from), "r"(n_bytes), "r"(ptx_shared(b))
        : "memory");
}
/* One thread: bring n_bytes, a multiple of 16, from global memory to L2 alone.  Nothing tells
 * when they are there, and nothing has to. */
MPK_FN void ptx_fetch_bulk(const void *from, rt_u32 n_bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(n_bytes) : "memory");
}
/* One thread: the box of a matrix that begins at (row, column), counted in the elements of its
 * tensor map, to shared memory.  Size and swizzle of a box are the map's (rt_map in global
 * memory, which the host makes).  What lies outside the matrix becomes zero and is counted all
 * the same, so a barrier expects whole boxes.  to: ptx_shared. */
MPK_FN void ptx_copy_box(rt_u32 to, const void *map, int column, int row, rt_u64 *b)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, "
                 "%3}], [%4];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(ptx_shared(b))
                 : "memory");
}
/* One thread: a box of windows of images, by a map that knows them (src/cuda/boxes.c): the channels
 * from `channel` on of as many windows as the map says, the first of which begins at (n, down,
 * right) of x, each at the entry that lies `along` places and `below` lines from its beginning.
 * Windows follow each other over the ends of lines and images; what lies outside becomes zero and
 * is counted all the same.  to: ptx_shared. */
MPK_FN void ptx_copy_image(rt_u32 to, const void *map, int channel, int right, int down, int n,
                           int along, int below, rt_u64 *b)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(to),
        "l"(map), "r"(channel), "r"(right), "r"(down), "r"(n), "r"(ptx_shared(b)),
        "h"((rt_u16)along), "h"((rt_u16)below)
        : "memory");
}
/* Bring a map near, so that the first copy by it does not wait for it. */
MPK_FN void ptx_fetch_map(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* Copies of this block by a map, after its next barrier, are by what has been written there since
 * they were by the same map before. */
MPK_FN void ptx_acquire_map(const void *map)
{
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}
/* Ordinary writes of others that this thread has acquired are seen by its bulk copies from global
 * memory after this: these are another proxy, which acquires and releases alone do not order.
 * Without `.global` ptxas puts a fence of all memory in front of it (MEMBAR.ALL.GPU), which takes
 * some 500 cycles. */
MPK_FN void ptx_fence_bulk(void)
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
/* After ptx_barrier_init, before the first copy that completes on the barrier. */
MPK_FN void ptx_fence_barrier_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
#elif MPK_RING
/* 1: the phase of this parity has completed.  It never holds the thread: sm_80 has no try_wait. */
MPK_FN rt_u32 ptx_barrier_try(rt_u64 *b, rt_u32 parity)
{
    rt_u32 done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], "
                 "%2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(ptx_shared(b)), "r"(parity)
                 : "memory");
    return done;
}
/* 16 bytes from global to shared memory (to: ptx_shared), requested by this thread, through L2
 * only. It ends in the background: see ptx_barrier_await_copies. */
MPK_FN void ptx_copy_piece(rt_u32 to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/* The same for bytes that are read once: L2 may drop them first. */
MPK_FN void ptx_copy_piece_once(rt_u32 to, const void *from, rt_u64 policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "l"(policy)
                 : "memory");
}
/* The barrier's current phase counts one arrival more, which comes when all copies that this
 * thread has requested so far have ended. */
MPK_FN void ptx_barrier_await_copies(rt_u64 *b)
{
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(ptx_shared(b)) : "memory");
}
/* Copies of a thread are ordered like its loads, and barriers are seen after a block's. */
MPK_FN void ptx_fence_bulk(void) {}
MPK_FN void ptx_acquire_map(const void *) {}
MPK_FN void ptx_fence_barrier_init(void) {}
#endif

/* ---- kernels one after the other: programmatic dependent launch; where there is none, they never
 * overlap ---- */

#if MPK_BULK
/* This block lets blocks of the next kernel start where there is room, once all blocks of this one
 * have said so. */
MPK_FN void ptx_grid_let_next(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/* Until the kernel before has ended and what it wrote is seen; at once where this one was launched
 * after its end. */
MPK_FN void ptx_grid_wait(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
#else
MPK_FN void ptx_grid_let_next(void) {}
MPK_FN void ptx_grid_wait(void) {}
#endif

/* ---- arithmetic ---- */

/* log2(x) by the hardware; log2(0) is -inf. */
MPK_FN float ptx_log2(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Two bf16 in a word: a b + c, rounded once; the smaller of each two. */
MPK_FN rt_u32 ptx_fma_bf16(rt_u32 a, rt_u32 b, rt_u32 c)
{
    rt_u32 v;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
    return v;
}
MPK_FN rt_u32 ptx_smaller_bf16(rt_u32 a, rt_u32 b)
{
    rt_u32 v;
    asm("min.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}
/* The larger of two numbers, in each half of a word: NaN if one is NaN, and 0 above -0. */
MPK_FN rt_u32 ptx_larger_bf16(rt_u32 a, rt_u32 b)
{
    rt_u32 v;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}
MPK_FN rt_u32 ptx_larger_f16(rt_u32 a, rt_u32 b)
{
    rt_u32 v;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}
MPK_FN float ptx_larger(float a, float b)
{
    float v;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
}
/* a & mask | more, by one instruction, if one of them is in a register: the compiler makes two, of
 * which each has a constant. */
MPK_FN rt_u32 ptx_choose(rt_u32 a, rt_u32 mask, rt_u32 more)
{
    rt_u32 v;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(a), "r"(mask), "r"(more));
    return v;
}
/* All lanes: c[16 x 8] += a[16 x 16] b[16 x 8], bf16 with f32 sums.  A word holds two neighbours
 * along the axis that is summed, the lower in its low half.  What lane l holds, with g = l / 4
 * and c = l % 4:
 *
 *   a          columns 2c, 2c+1   2c+8, 2c+9      b          column g
 *   row g          a0             a2              rows 2c, 2c+1     b0
 *   row g + 8      a1             a3              rows 2c+8, 2c+9   b1
 *
 *   c          columns 2c, 2c+1
 *   row g          c[0] c[1]
 *   row g + 8      c[2] c[3]
 *
 * In products tokens are the rows of a, and rows of w the columns of b. */
MPK_FN void ptx_multiply_bf16(float *c, rt_u32 a0, rt_u32 a1, rt_u32 a2, rt_u32 a3, rt_u32 b0,
                              rt_u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The same for f16. */
MPK_FN void ptx_multiply_f16(float *c, rt_u32 a0, rt_u32 a1, rt_u32 a2, rt_u32 a3, rt_u32 b0,
                             rt_u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/* v, in a register of its own.  A permutation of bytes whose order comes from memory: the
 * compiler cannot see that it changes nothing, so it cannot compute v again from what it came
 * from. */
static __constant__ rt_u32 ptx_order = 0x3210;
MPK_FN rt_u32 ptx_own(rt_u32 v)
{
    rt_u32 own;
    /* no volatile: the result may be kept and moved, but not replaced */
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(own) : "r"(v), "r"(ptx_order));
    return own;
}

/* v, as a value of which the compiler knows nothing; volatile, so what follows from it is worked
 * out here and not ahead of a loop, where it would hold a register or a predicate. */
MPK_FN rt_u32 ptx_again(rt_u32 v)
{
    rt_u32 again;
    asm volatile("mov.b32 %0, %1;" : "=r"(again) : "r"(v));
    return again;
}

/* Cycles of this SM, modulo 2^32. */
MPK_FN rt_u32 ptx_cycles(void)
{
    rt_u32 t;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
    return t;
}

#endif
