/* inverse.cuh - division without a call: what the compiler calls for numbers of unusual size would
 * make wgmma wait in a whole function (units.cuh). */
#ifndef TILE_INVERSE_CUH
#define TILE_INVERSE_CUH

#include "tile/task.cuh"

/* 1 / x to the nearest, for x from 2^-125 to 2^125: an approximation by the hardware, and one
 * step of Newton's with its error in a single rounding (fmaf). */
MPK_FN float mpk_inverse(float x)
{
    const float near = __fdividef(1.0f, x);
    return fmaf(near, fmaf(-x, near, 1.0f), near);
}

#endif
