/* scan_extreme.c - the largest or smallest entry so far along an axis, and where it is.
 *
 * x [.., n, ..] -> value in x's dtype and index i64, both of x's shape.  Of equal entries the
 * last; NaN stays once it has come.
 *
 *   max of 2, 5, 5, 3: values 2, 5, 5, 5; indices 0, 1, 2, 2
 *
 * Values are copied bit by bit.  Cost: one pass over x.
 */
#include "op/fill.h"
#include "op/line.h"

/* Attributes, by index. */
enum { AXIS, KIND };

/* Both results have x's shape; the second names entries of the axis. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    str kind = op->attributes[KIND].s;
    TRY(line_infer(cx, g, op, SHAPE_PLAIN));
    CHECK(cx, str_is(kind, "max") || str_is(kind, "min"), MPK_EUNSUPPORTED,
          "scan_extreme: kind \"%.*s\" is neither max nor min", STR_ARG(kind));
    shape_like(shape_input(g, op, 0), &out[0]);
    shape_like(shape_input(g, op, 0), &out[1]);
    out[1].dtype = IR_I64;
    return MPK_OK;
}

/* One line.  An entry that is not worse (equal or better) replaces the one so far, so of equal
 * entries the last stays. */
static void scan_line(const op_call *call, const int64_t *at, bool largest)
{
    const op_view *x = &call->in[0], *value = &call->out[0], *index = &call->out[1];
    uint32_t axis = line_axis(call->op);
    bool exact = walk_is_exact(x->dtype);
    int64_t from = walk_offset(x, at), to = walk_offset(value, at),
            to_index = walk_offset(index, at), best = 0;
    line_key most = line_load(x, from);
    for (int64_t i = 0; i < x->dims[axis]; i++) {
        line_key key = line_load(x, from + i * x->stride[axis]);
        bool worse = largest ? line_less(exact, key, most) : line_less(exact, most, key);
        if (line_is_nan(exact, key) || (!line_is_nan(exact, most) && !worse)) {
            most = key;
            best = i;
        }
        walk_copy(value, to + i * value->stride[axis], 1, x, from + best * x->stride[axis], 1, 1);
        ((int64_t *)index->data)[to_index + i * index->stride[axis]] = best;
    }
}

/* The axis is not cut, so a box always has all of it: only the other axes say which lines to do. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    ir_box lines = *box;
    lines.hi[line_axis(call->op)] = 1;
    int64_t at[IR_MAX_RANK];
    memcpy(at, lines.lo, sizeof at);
    do
        scan_line(call, at, str_is(call->attributes[KIND].s, "max"));
    while (walk_next(&lines, call->out[0].rank, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"value", 0}, {"index", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("axis", INT), SHAPE_WORD("kind", "max")};
static const op_case cases[] = {
    {"input %x : f32[7, 32] live=tokens\n%v, %i = scan_extreme(%x) {axis = 1}\n"},
    {"input %x : f16[5, 3, 4]\n%v, %i = scan_extreme(%x) {axis = 0, kind = \"min\"}\n"},
    {"input %x : i64[9]\n%v, %i = scan_extreme(%x) {axis = 0}\n"},
    {"input %x : bool[4, 3]\n%v, %i = scan_extreme(%x) {axis = 1, kind = \"min\"}\n"},
};

const op_def op_scan_extreme = {
    .name = "scan_extreme",
    .summary = "largest or smallest entry so far along an axis, and its index",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = line_axes,
    .reads = line_reads,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill_wide_integers,
};
