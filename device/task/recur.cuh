/* recur.cuh - what instances of the operator recur are made of, beside the functions of map.
 *
 * An instance prints its own loop: a thread has an entry of a step and walks all steps of it, the
 * value before in a register.  What it reads does not depend on that value, so it is read ahead:
 * while some steps are computed, the operands of the next ones are on their way.  Where there are
 * many entries, a thread has eight neighbours (eights.cuh). */
#ifndef TASK_RECUR_CUH
#define TASK_RECUR_CUH

#include "task/map.cuh"

/* The box with the first step alone: an entry of it is a line of all steps. */
MPK_FN mpk_box recur_lines(const mpk_task &t, int rank)
{
    mpk_box box = mpk_box_of(t, rank);
    box.lo[0] = 0;
    box.hi[0] = 1;
    return box;
}

/* The place of the first entry of eight number i of a walk. */
MPK_FN void recur_eight_at(const eight_walk &w, const mpk_view &y, int i, rt_i64 *at)
{
    if (w.in_order)
        eight_at<true>(w, y, (rt_u32)i, EIGHT, at);
    else
        eight_at<false>(w, y, (rt_u32)i, EIGHT, at);
}

MPK_FN int recur_least(int a, int b)
{
    return a < b ? a : b;
}

#endif
