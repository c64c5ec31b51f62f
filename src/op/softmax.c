/* softmax.c - exp(x - max) / sum along an axis.  x real [..] -> the same.
 *
 * Idea: the largest entry is subtracted first, so that no exponential overflows; the sum runs in
 * double from the first entry on (softmax.h).  The axis itself is never cut.
 *
 *   0, 1, 1 -> 0.155, 0.422, 0.422
 *
 * Cost: three passes, an exponential an entry.
 */
#include "op/softmax.h"

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    softmax_box(call, box, scratch, false);
}

static const op_case cases[] = SOFTMAX_CASES("softmax");

const op_def op_softmax = {
    .name = "softmax",
    .summary = "exp(x - max) / sum along an axis",
    SOFTMAX_RECORD,
    .ref = ref,
    OP_CASES(cases),
};
