/* take_along.c - for each entry of index, the entry of x that it names along an axis.
 *
 * x [..], index i32 or i64 [..] of the same rank, no longer than x except along the axis -> the
 * shape of index: y[.., i, ..] = x[.., index[.., i, ..], ..].  A negative number counts from the
 * end; a number that names no entry gives zero.
 *
 *   axis 1:  x = 1 2 3 | 4 5 6,  index = 2 0 | 1 -1  ->  3 1 | 5 6
 *
 * Cost: one copy.
 */
#include "op/index.h"
#include "op/line.h"
#include "op/move.h"

/* Inputs, by index. */
enum { X, INDEX };

/* Along the axis index may be longer than x. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *index = shape_input(g, op, INDEX);
    TRY(line_infer(cx, g, op, SHAPE_PLAIN));
    TRY(shape_expect_dtype(cx, g, op, INDEX, SHAPE_INDEX));
    CHECK(cx, index->rank == x->rank, MPK_ESHAPE, "take_along: index has rank %u, x %u",
          index->rank, x->rank);
    for (uint32_t i = 0; i < x->rank; i++)
        CHECK(cx, i == line_axis(op) || index->dims[i] <= x->dims[i], MPK_ESHAPE,
              "take_along: axis %u of index has %lld entries, x only %lld", i,
              (long long)index->dims[i], (long long)x->dims[i]);
    TRY(shape_expect_live(cx, g, op, INDEX, x->live));
    shape_like(index, out);
    out->dtype = x->dtype;
    return MPK_OK;
}

/* Of x the whole lines that the box's entries lie on (line_reads). */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    if (input == INDEX)
        *read = *box;
    else
        line_reads(g, op, input, box, read);
}

/* Entries of index that are loaded together. */
enum { RUN = 64 };

/* n <= RUN entries along the last axis, from at[] on.  Offsets into x are computed first, -1 for
 * none; move_pick then copies by them. */
static void take_run(const op_call *call, uint32_t axis, const int64_t *at, int64_t n)
{
    const op_view *x = &call->in[X], *index = &call->in[INDEX], *y = &call->out[0];
    uint32_t last = y->rank - 1;
    int64_t from[RUN], start = walk_offset(x, at) - at[axis] * x->stride[axis];
    int64_t step = axis == last ? 0 : x->stride[last];
    walk_load_ints(index, walk_offset(index, at), index->stride[last], n, from);
    for (int64_t i = 0; i < n; i++) {
        int64_t entry = index_resolve(from[i], x->dims[axis]);
        from[i] = entry < 0 ? -1 : start + i * step + entry * x->stride[axis];
    }
    move_pick(y, walk_offset(y, at), y->stride[last], x, from, n);
}

/* Rows are cut into runs, because index is loaded into an array of fixed size. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    uint32_t last = call->out[0].rank - 1;
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do {
        for (at[last] = box->lo[last]; at[last] < box->hi[last]; at[last] += RUN)
            take_run(call, line_axis(call->op), at,
                     box->hi[last] - at[last] < RUN ? box->hi[last] - at[last] : RUN);
        at[last] = box->lo[last];
    } while (walk_next(box, last, at));
}

/* Test indices mostly exist. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    if (input == INDEX)
        fill_indices(shape_input(g, op, INDEX), shape_input(g, op, X)->dims[line_axis(op)], seed,
                     data);
}

static const op_operand in[] = {{"x", 0}, {"index", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("axis", INT)};
static const op_case cases[] = {
    {"input %x : f32[7, 33] live=tokens\ninput %i : i64[7, 5] live=tokens\n%y = take_along(%x, %i) "
     "{axis = 1}\n"},
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
