/* units.cuh - where the text is cut in two when it is compiled as two units side by side (MPK_UNIT, the generated
 * constants; src/cuda/tools.c).
 *
 *   1  the kernel, with the bodies that wait: those of few tokens.  One function, and slow to compile.
 *   2  mpk_run_body: all other bodies, called when what they read is there.
 *
 * A function of unit 2 does not know its caller and gets registers of its own, as many as a thread of the kernel has.
 * wgmma waits after every product in a function that calls another, so a body that has it is a function by itself
 * (MPK_BODY_FN) and calls none.  What both units see is defined in unit 1 (MPK_ELSEWHERE).
 */
#ifndef UNITS_CUH
#define UNITS_CUH

#include "tile/ring.cuh"

#if MPK_UNIT

extern "C" __device__ void mpk_run_body(rt_u32 body, const mpk_task &t);

#if MPK_UNIT == 1

/* The ring of the worker stays in registers: the body gets a copy of it. */
MPK_FN void mpk_dispatch_body(rt_u32 body, const mpk_task &t)
{
    mpk_ring ring = *t.ring;
    mpk_task apart = t;
    apart.ring = &ring;
    mpk_run_body(body, apart);
    *t.ring = ring;
}

#else

extern "C" __device__ __noinline__ void mpk_run_body(rt_u32 body, const mpk_task &t)
{
    mpk_dispatch_body(body, t);
}

#endif

#endif

#endif
