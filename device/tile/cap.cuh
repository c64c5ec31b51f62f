/* cap.cuh - scores of attention under a cap, without a call. */
#ifndef TILE_CAP_CUH
#define TILE_CAP_CUH

#include "ptx/ptx.cuh"
#include "tile/task.cuh"

/* cap tanh(score / cap) as cap - 2 cap / (1 + e^(2 score / cap)); rate: 2 log2(e) / cap.  Large
 * scores become cap, or -cap: 2^x is then infinite, or 0.  The difference cancels near 0, so the
 * error is some 2^-23 of the cap whatever the score. */
MPK_FN float mpk_capped(float score, float cap, float rate)
{
    return cap - __fdividef(2 * cap, 1 + ptx_exp2(score * rate));
}

#endif
