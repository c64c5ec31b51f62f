/* body.c - the choice of a fast body for an operator.
 *
 * Input: an operator bound to memory, and the instruction sets of the processor.  Output: the
 * body of cpu_body_table with the highest rank that accepts the operator.  Called by cpu.c once
 * for each operator when a machine starts, and by tests.
 */
#include "cpu/body.h"

/* Of bodies with equal rank the first in the table wins; the build lists them by name, so the
 * choice does not depend on the order of linking. */
const cpu_body *cpu_body_choose(const op_call *call, uint32_t features)
{
    const cpu_body *best = 0;
    for (const cpu_body *const *b = cpu_body_table; *b; b++)
        if (str_is(str_from((*b)->op), call->op->def->name) &&
            ((*b)->needs & features) == (*b)->needs && (!best || (*b)->rank > best->rank) &&
            (*b)->accepts(call))
            best = *b;
    return best;
}
