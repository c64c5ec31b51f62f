/* log_softmax.c - x - max - log(sum of exp(x - max)) along an axis.  x real [..] -> the same.
 *
 *   [0, 0] -> [-0.693, -0.693]
 *
 * Idea: the largest entry is subtracted first, so that no exponential overflows (softmax.h).
 * The axis itself is never cut.  Cost: three passes, an exponential an entry.
 */
#include "op/softmax.h"

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    softmax_box(call, box, scratch, true);
}

static const op_case cases[] = SOFTMAX_CASES("log_softmax");

const op_def op_log_softmax = {
    .name = "log_softmax",
    .summary = "x - max - log(sum) along an axis",
    SOFTMAX_RECORD,
    .ref = ref,
    OP_CASES(cases),
};
