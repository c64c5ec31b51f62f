/* prefix.cuh - prefix sums over the lanes of a warp and the threads of a worker.
 *
 * Relies on ptx/thread.cuh; the bodies of attention call the first, those of experts the second,
 * all lanes or all threads together.
 */
#ifndef TILE_PREFIX_CUH
#define TILE_PREFIX_CUH

#include "tile/task.cuh"

/* The sum over the lanes up to this one, itself counted, in five steps of twice the distance.
 * All 32 lanes call it; lane: the caller's, 0 to 31. */
template <class T> MPK_FN T mpk_prefix_lanes(T mine, int lane)
{
    T sum = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const T other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d)
            sum += other;
    }
    return sum;
}

/* The sum over the threads before this one; *all: over all of them.  All body threads call it:
 * there is a barrier inside.  s_sums u32[MPK_WARPS] gets each warp's sum: the caller sees to it,
 * by a barrier of its own, that no thread still reads what it held, from an earlier call too. */
MPK_FN rt_u32 mpk_prefix_threads(rt_u32 mine, rt_u32 *s_sums, rt_u32 *all)
{
    const int thread = mpk_thread(), lane = thread % 32;
    const rt_u32 sum = mpk_prefix_lanes(mine, lane);
    rt_u32 before = 0;
    if (lane == 31)
        s_sums[thread / 32] = sum;
    mpk_sync();
    *all = 0;
#pragma unroll
    for (int w = 0; w < MPK_WARPS; w++) {
        before += w < thread / 32 ? s_sums[w] : 0;
        *all += s_sums[w];
    }
    return before + sum - mine;
}

#endif
