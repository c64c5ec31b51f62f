/* extreme.c - the largest or smallest entry of each line along an axis, and where it is.
 *
 * x [.., n, ..] -> value in x's dtype and index i64, without the axis (keep: with one entry
 * there).  NaN wins, as in PyTorch; of equal entries the first.
 *
 *   [3, 7, 7], kind max -> 7 and 1
 *
 * Cost: one pass over x.
 */
#include "op/fill.h"
#include "op/line.h"

/* Attributes, by index. */
enum { AXIS, KEEP, KIND };

/* If axis 0 is reduced, it must not be partly alive, which line_infer checks. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    str kind = op->attributes[KIND].s;
    TRY(line_infer(cx, g, op, SHAPE_PLAIN));
    CHECK(cx, str_is(kind, "max") || str_is(kind, "min"), MPK_EUNSUPPORTED,
          "extreme: kind \"%.*s\" is neither max nor min", STR_ARG(kind));
    out->dtype = x->dtype;
    out->live = x->live;
    for (uint32_t i = 0; i < x->rank; i++)
        if (i != line_axis(op))
            out->dims[out->rank++] = x->dims[i];
        else if (op->attributes[KEEP].i)
            out->dims[out->rank++] = 1;
    if (line_axis(op) == 0)
        out->live = IR_ALL;
    out[1] = out[0];
    out[1].dtype = IR_I64;
    return MPK_OK;
}

/* From an entry, or a box's corner, of the result to that of x: the axis is put back with 0. */
static void insert_axis(const ir_op *op, uint32_t rank, const int64_t *from, int64_t *to)
{
    uint32_t o = 0;
    for (uint32_t i = 0; i < rank; i++) {
        to[i] = i == line_axis(op) ? 0 : from[o];
        o += i != line_axis(op) || op->attributes[KEEP].i;
    }
}

/* The whole line, whatever part of the result is asked for. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, input);
    insert_axis(op, x->rank, box->lo, read->lo);
    insert_axis(op, x->rank, box->hi, read->hi);
    read->hi[line_axis(op)] = x->dims[line_axis(op)];
}

/* The index of the best entry of a line, the first of equal ones. */
static int64_t find(const op_view *x, int64_t offset, int64_t stride, int64_t n, bool largest)
{
    bool exact = walk_is_exact(x->dtype);
    int64_t best = 0;
    line_key most = line_load(x, offset);
    for (int64_t i = 1; i < n && !line_is_nan(exact, most); i++) {
        line_key key = line_load(x, offset + i * stride);
        if (line_is_nan(exact, key) ||
            (largest ? line_less(exact, most, key) : line_less(exact, key, most))) {
            most = key;
            best = i;
        }
    }
    return best;
}

/* Line by line; the value is copied and not computed, so it has x's bits. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *value = &call->out[0], *index = &call->out[1];
    bool largest = str_is(call->attributes[KIND].s, "max");
    int64_t at[IR_MAX_RANK], from[IR_MAX_RANK], stride = x->stride[line_axis(call->op)];
    memcpy(at, box->lo, sizeof at);
    do {
        insert_axis(call->op, x->rank, at, from);
        int64_t offset = walk_offset(x, from);
        int64_t best = find(x, offset, stride, x->dims[line_axis(call->op)], largest);
        walk_copy(value, walk_offset(value, at), 1, x, offset + best * stride, 1, 1);
        ((int64_t *)index->data)[walk_offset(index, at)] = best;
    } while (walk_next(box, value->rank, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"value", 0}, {"index", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("axis", INT), SHAPE_INT("keep", 0),
                                          SHAPE_WORD("kind", "max")};
/* The last and the first axis, both kinds, every kind of comparison (floats, integers, bool,
 * f64). */
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\n%v, %i = extreme(%x) {axis = 1}\n"},
    {"input %x : bf16[5, 3, 4]\n%v, %i = extreme(%x) {axis = 0, keep = 1, kind = \"min\"}\n"},
    {"input %x : i64[9]\n%v, %i = extreme(%x) {axis = 0}\n"},
    {"input %x : bool[4, 3]\n%v, %i = extreme(%x) {axis = 1, kind = \"min\"}\n"},
    {"input %x : f64[4, 3]\n%v, %i = extreme(%x) {axis = 0}\n"},
};

const op_def op_extreme = {
    .name = "extreme",
    .summary = "largest or smallest entry along an axis, and its index",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill_wide_integers,
};
