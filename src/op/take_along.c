/* take_along.c - for each entry of index, the entry of x that it names along an axis.
 *
 * x [..], index i32 or i64 [..] of the same rank, no longer than x but along the axis -> the shape of index:
 * y[.., i, ..] = x[.., index[.., i, ..], ..].  A negative number counts from the end; where nothing exists the result
 * is zero.  Cost: one copy.
 */
#include "op/index.h"
#include "op/line.h"

enum { X, INDEX };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *index = shape_input(g, op, INDEX);
    TRY(line_infer(cx, g, op, SHAPE_PLAIN));
    TRY(shape_expect_dtype(cx, g, op, INDEX, SHAPE_INDEX));
    CHECK(cx, index->rank == x->rank, MPK_ESHAPE, "take_along: index has rank %u, x %u", index->rank, x->rank);
    for (uint32_t i = 0; i < x->rank; i++)
        CHECK(cx, i == line_axis(op) || index->dims[i] <= x->dims[i], MPK_ESHAPE,
              "take_along: axis %u of index has %lld entries, x only %lld", i, (long long)index->dims[i],
              (long long)x->dims[i]);
    TRY(shape_expect_live(cx, g, op, INDEX, x->live));
    shape_like(index, out);
    out->dtype = x->dtype;
    return MPK_OK;
}

static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box, ir_box *read)
{
    if (input == INDEX)
        *read = *box;
    else
        line_reads(g, op, input, box, read);
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[X], *index = &call->in[INDEX], *y = &call->out[0];
    uint32_t axis = line_axis(call->op);
    size_t size = ir_dtype_table[y->dtype].block_bytes;
    int64_t at[IR_MAX_RANK], from[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do {
        memcpy(from, at, sizeof from);
        from[axis] = index_resolve(walk_load_int(index, walk_offset(index, at)), x->dims[axis]);
        if (from[axis] >= 0)
            walk_copy(y, walk_offset(y, at), 1, x, walk_offset(x, from), 1, 1);
        else
            memset((char *)y->data + (size_t)walk_offset(y, at) * size, 0, size);
    } while (walk_next(box, y->rank, at));
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    if (input == INDEX)
        fill_indices(shape_input(g, op, INDEX), shape_input(g, op, X)->dims[line_axis(op)], seed, data);
}

static const op_operand in[] = {{"x", 0}, {"index", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("axis", INT)};
static const op_case cases[] = {
    {"input %x : f32[7, 33] live=tokens\ninput %i : i64[7, 5] live=tokens\n%y = take_along(%x, %i) {axis = 1}\n"},
    {"input %x : bf16[4, 3, 5]\ninput %i : i32[9, 2, 4]\n%y = take_along(%x, %i) {axis = 0}\n"},
};

const op_def op_take_along = {
    .name = "take_along",
    .summary = "the entries along an axis that an index tensor names, place by place",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
