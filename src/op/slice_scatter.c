/* slice_scatter.c - a tensor with a box of it, or every n-th entry, replaced.
 *
 * x [..], src with the shape that slice {starts, stops, steps} gives of x -> y like x, with src
 * there.  in_place: y is x's storage.
 *
 *   x = 0 1 2 3 4 5, starts 1, stops 6, steps 2, src = a b c  ->  0 a 2 b 4 c
 *
 * Cost: one copy of x and one of src; in place, that of src only.
 */
#include "op/update.h"

/* Inputs and attributes, by index. */
enum { X, SRC };
enum { STARTS, STOPS, STEPS, IN_PLACE };

/* As in slice.c. */
static int64_t step_of(const ir_op *op, uint32_t axis, int64_t n)
{
    int64_t step = axis < op->attributes[STEPS].ints.n ? op->attributes[STEPS].ints.at[axis] : 1;
    return step < n ? step : n;
}

/* src must have exactly the shape that slice would give. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    const ir_attribute *a = op->attributes;
    int64_t dims[IR_MAX_RANK];
    TRY(shape_expect_dtype(cx, g, op, X, SHAPE_PLAIN));
    TRY(shape_expect_whole(cx, g, op, X));
    TRY(shape_expect_whole(cx, g, op, SRC));
    CHECK(cx,
          a[STARTS].ints.n == x->rank && a[STOPS].ints.n == x->rank &&
              (a[STEPS].ints.n == 0 || a[STEPS].ints.n == x->rank),
          MPK_ESHAPE, "slice_scatter: %u starts, %u stops and %u steps for rank %u",
          a[STARTS].ints.n, a[STOPS].ints.n, a[STEPS].ints.n, x->rank);
    for (uint32_t i = 0; i < x->rank; i++) {
        int64_t start = a[STARTS].ints.at[i], stop = a[STOPS].ints.at[i],
                step = step_of(op, i, x->dims[i]);
        CHECK(cx, 0 <= start && start < stop && stop <= x->dims[i] && step > 0, MPK_ESHAPE,
              "slice_scatter: %lld to %lld by %lld along axis %u, which has %lld entries",
              (long long)start, (long long)stop, (long long)step, i, (long long)x->dims[i]);
        /* entries start, start + step, ... below stop */
        dims[i] = (stop - start - 1) / step + 1;
    }
    TRY(shape_expect(cx, g, op, SRC, 1u << x->dtype, x->rank, dims));
    update_infer(g, op, a[IN_PLACE].i, out);
    return MPK_OK;
}

/* The entries of src whose places lie in the box of y; false if there are none.  Bounds are
 * divided by the step, rounded up. */
static bool source_box(const ir_op *op, uint32_t rank, const int64_t *x_dims, const int64_t *dims,
                       const ir_box *box, ir_box *part)
{
    *part = (ir_box){0};
    for (uint32_t i = 0; i < rank; i++) {
        int64_t start = op->attributes[STARTS].ints.at[i], step = step_of(op, i, x_dims[i]);
        part->lo[i] = box->lo[i] > start ? (box->lo[i] - start + step - 1) / step : 0;
        part->hi[i] = box->hi[i] > start ? (box->hi[i] - start + step - 1) / step : 0;
        part->hi[i] = part->hi[i] < dims[i] ? part->hi[i] : dims[i];
    }
    return !ir_box_is_empty(part, rank);
}

/* Of src the entries whose places lie in the box, which may be none; of x what update.h says. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *t = shape_input(g, op, input);
    if (input == X)
        update_reads(op->attributes[IN_PLACE].i, false, box, read);
    else if (!source_box(op, t->rank, shape_input(g, op, X)->dims, t->dims, box, read))
        *read = (ir_box){0};
}

/* update_begin has put x into y; only the entries that src replaces are written again. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *src = &call->in[SRC], *y = &call->out[0];
    uint32_t last = y->rank ? y->rank - 1 : 0;
    int64_t at[IR_MAX_RANK], to[IR_MAX_RANK];
    ir_box part;
    update_begin(call, box, call->attributes[IN_PLACE].i);
    if (!source_box(call->op, y->rank, y->dims, src->dims, box, &part))
        return;
    memcpy(at, part.lo, sizeof at);
    int64_t step = y->rank ? y->stride[last] * step_of(call->op, last, y->dims[last]) : 1;
    do {
        for (uint32_t i = 0; i < y->rank; i++)
            to[i] = call->attributes[STARTS].ints.at[i] + at[i] * step_of(call->op, i, y->dims[i]);
        walk_copy(y, walk_offset(y, to), step, src, walk_offset(src, at), walk_step(src),
                  walk_run(&part, y->rank));
    } while (walk_next(&part, last, at));
}

static const op_operand in[] = {{"x", 0}, {"src", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("starts", INTS), SHAPE_NEEDED("stops", INTS),
                                          SHAPE_LIST("steps"), SHAPE_INT("in_place", 0)};
static const op_case cases[] = {
    {"input %x : f32[9, 33]\ninput %s : f32[4, 7]\n%y = slice_scatter(%x, %s) {starts = [2, 5], "
     "stops = [9, 12], steps "
     "= [2, 1]}\n"},
    {"state %x : bf16[4, 9]\ninput %s : bf16[2, 3]\n%y = slice_scatter(%x, %s) {starts = [1, 0], "
     "stops = [3, 9], steps "
     "= [1, 3], in_place = 1}\n"},
    {"input %x : bool[6]\ninput %s : bool[6]\n%y = slice_scatter(%x, %s) {starts = [0], stops = "
     "[6]}\n"},
};

const op_def op_slice_scatter = {
    .name = "slice_scatter",
    .summary = "a tensor with a box of it replaced",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
};
