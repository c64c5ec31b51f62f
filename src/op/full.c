/* full.c - one number everywhere.  -> shape, of a plain dtype.
 *
 * The number is rounded to the dtype as cast does.  It has no input, so its tasks wait for
 * nothing.  Cost: one store an entry.
 */
#include "op/made.h"

/* Attributes, by index. */
enum { SHAPE, VALUE, DTYPE };

/* Negative dims and sizes that overflow are not checked here: ir_check_tensor does it for every
 * result. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    (void)g;
    TRY(made_dtype(cx, op, DTYPE, out));
    out->rank = op->attributes[SHAPE].ints.n;
    CHECK(cx, out->rank <= IR_MAX_RANK, MPK_ESHAPE,
          "full: shape has %u axes, at most %d are possible", out->rank, IR_MAX_RANK);
    for (uint32_t i = 0; i < out->rank; i++)
        out->dims[i] = op->attributes[SHAPE].ints.at[i];
    return MPK_OK;
}

/* The number is converted at each store, as cast would convert it. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *y = &call->out[0];
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do
        walk_store_double(y, walk_offset(y, at), call->attributes[VALUE].f);
    while (walk_next(box, y->rank, at));
}

static const op_attribute attributes[] = {SHAPE_NEEDED("shape", INTS), SHAPE_NEEDED("value", FLOAT),
                                          SHAPE_WORD("dtype", "f32")};
static const op_case cases[] = {
    {"%y = full() {shape = [3, 5], value = 0.1}\n"},
    {"%y = full() {shape = [], value = -3.0, dtype = \"i32\"}\n"},
    {"%y = full() {shape = [4], value = 1.0, dtype = \"bool\"}\n"},
};

const op_def op_full = {
    .name = "full",
    .summary = "one number everywhere",
    MADE_RECORD,
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .ref = ref,
    OP_CASES(cases),
};
