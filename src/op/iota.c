/* iota.c - start, start + step, start + 2 step ...  -> [n] of a plain dtype.
 *
 * Entries are computed in double and rounded once, so integers are exact below 2^53.  Cost: one store an entry.
 */
#include "op/shape.h"
#include "op/walk.h"

enum { COUNT, START, STEP, DTYPE };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    (void)g;
    str name = op->attributes[DTYPE].s;
    CHECK(cx, ir_dtype_from_name(name, &out->dtype) && SHAPE_PLAIN >> out->dtype & 1, MPK_EUNSUPPORTED,
          "iota: dtype \"%.*s\" is not a plain dtype", STR_ARG(name));
    out->rank = 1;
    out->dims[0] = op->attributes[COUNT].i;
    return MPK_OK;
}

/* There is no input. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box, ir_box *read)
{
    (void)g, (void)op, (void)input, (void)box;
    *read = (ir_box){0};
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *y = &call->out[0];
    for (int64_t i = box->lo[0]; i < box->hi[0]; i++)
        walk_store_double(y, i * y->stride[0], call->attributes[START].f + (double)i * call->attributes[STEP].f);
}

static const op_operand out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("n", INT), SHAPE_REAL("start", 0), SHAPE_REAL("step", 1),
                                          SHAPE_WORD("dtype", "i64")};
static const op_case cases[] = {
    {"%y = iota() {n = 9}\n"},
    {"%y = iota() {n = 7, start = 2.5, step = -0.25, dtype = \"f16\"}\n"},
};

const op_def op_iota = {
    .name = "iota",
    .summary = "numbers with equal steps",
    .out = out,
    .n_out = SHAPE_COUNT(out),
    .attributes = attributes,
    .n_attributes = SHAPE_COUNT(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .ref = ref,
    .cases = cases,
    .n_cases = SHAPE_COUNT(cases),
};
