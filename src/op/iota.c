/* iota.c - start, start + step, start + 2 step ...  -> [n] of a plain dtype.
 *
 * Entries are computed in double and rounded once, so integers are exact below 2^53.  Cost: one
 * store an entry.
 */
#include "op/made.h"

enum { COUNT, START, STEP, DTYPE };

/* n entries of one axis. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    (void)g;
    TRY(made_dtype(cx, op, DTYPE, out));
    out->rank = 1;
    out->dims[0] = op->attributes[COUNT].i;
    return MPK_OK;
}

/* Each entry is start + i step and no running sum, so that any cut gives the same numbers. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *y = &call->out[0];
    for (int64_t i = box->lo[0]; i < box->hi[0]; i++)
        walk_store_double(y, i * y->stride[0],
                          call->attributes[START].f + (double)i * call->attributes[STEP].f);
}

static const op_attribute attributes[] = {SHAPE_NEEDED("n", INT), SHAPE_REAL("start", 0),
                                          SHAPE_REAL("step", 1), SHAPE_WORD("dtype", "i64")};
static const op_case cases[] = {
    {"%y = iota() {n = 9}\n"},
    {"%y = iota() {n = 7, start = 2.5, step = -0.25, dtype = \"f16\"}\n"},
};

const op_def op_iota = {
    .name = "iota",
    .summary = "numbers with equal steps",
    MADE_RECORD,
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .ref = ref,
    OP_CASES(cases),
};
