/* batch_matmul.c - matrix products over broadcast batch axes.  a [.., M, N], b [.., N, Q] -> [.., M, Q]; transpose_b: b
 * [.., Q, N].
 *
 * Sums run from 0 to N - 1 in double and are rounded once.
 *
 * For graphs from elsewhere; projections by weights are linear. Reference code takes one element of the result at a
 * time. Cost: 2 N flops an element.
 */
#include "op/shape.h"
#include "op/walk.h"

enum { A, B };

/* The axes of b that hold N and Q. */
static uint32_t inner_axis(const ir_op *op, uint32_t rank)
{
    return op->attributes[0].i ? rank - 1 : rank - 2;
}
static uint32_t outer_axis(const ir_op *op, uint32_t rank)
{
    return op->attributes[0].i ? rank - 2 : rank - 1;
}

/* Only an axis that is axis 0 of the result as well may be partly alive: never one that is summed over. */
static mpk_status infer_live(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    for (uint32_t i = 0; i < 2; i++) {
        const ir_tensor *t = shape_input(g, op, i);
        if (t->live == IR_ALL)
            continue;
        CHECK(cx, t->rank == out->rank && t->dims[0] == out->dims[0] && (i == A || t->rank > 2), MPK_ESHAPE,
              "batch_matmul: axis 0 of %%%.*s is partly alive and is not axis 0 of the result", STR_ARG(t->name));
        CHECK(cx, out->live == IR_ALL || out->live == t->live, MPK_ESHAPE,
              "batch_matmul: axis 0 of a and of b do not count the same");
        out->live = t->live;
    }
    return MPK_OK;
}

/* Batch axes broadcast from the right, as numpy's matmul does. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *a = shape_input(g, op, A), *b = shape_input(g, op, B);
    TRY(shape_expect_dtype(cx, g, op, A, SHAPE_FLOAT));
    TRY(shape_expect_dtype(cx, g, op, B, SHAPE_FLOAT));
    CHECK(cx, a->rank >= 2 && b->rank >= 2, MPK_ESHAPE, "batch_matmul: a has rank %u and b rank %u, expected 2 or more",
          a->rank, b->rank);
    CHECK(cx, a->dims[a->rank - 1] == b->dims[inner_axis(op, b->rank)], MPK_ESHAPE,
          "batch_matmul: rows of a have %lld entries, columns of b %lld", (long long)a->dims[a->rank - 1],
          (long long)b->dims[inner_axis(op, b->rank)]);
    out->dtype = a->dtype;
    out->rank = a->rank > b->rank ? a->rank : b->rank;
    for (uint32_t i = 0; i + 2 < out->rank; i++) {
        int64_t m = i + a->rank >= out->rank ? a->dims[i + a->rank - out->rank] : 1;
        int64_t n = i + b->rank >= out->rank ? b->dims[i + b->rank - out->rank] : 1;
        CHECK(cx, m == n || m == 1 || n == 1, MPK_ESHAPE, "batch_matmul: batch axis %u is %lld in a and %lld in b", i,
              (long long)m, (long long)n);
        out->dims[i] = m > n ? m : n;
    }
    out->dims[out->rank - 2] = a->dims[a->rank - 2];
    out->dims[out->rank - 1] = b->dims[outer_axis(op, b->rank)];
    return infer_live(cx, g, op, out);
}

/* Whole rows of a, whole columns of b, of the batches of the box. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box, ir_box *read)
{
    const ir_tensor *t = shape_input(g, op, input);
    uint32_t rank = g->tensors.at[op->out[0]].rank;
    shape_broadcast_box(t, rank, box, read);
    uint32_t inner = input == A ? t->rank - 1 : inner_axis(op, t->rank);
    uint32_t outer = input == A ? t->rank - 2 : outer_axis(op, t->rank), of = input == A ? rank - 2 : rank - 1;
    read->lo[inner] = 0;
    read->hi[inner] = t->dims[inner];
    read->lo[outer] = box->lo[of];
    read->hi[outer] = box->hi[of];
}

/* Offset of the matrix of v that belongs to a batch of the result. */
static int64_t matrix_offset(const op_view *v, uint32_t rank, const int64_t *at)
{
    int64_t offset = 0;
    for (uint32_t i = 0; i + 2 < rank; i++)
        offset += at[i] * walk_stride(v, rank, i);
    return offset;
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *a = &call->in[A], *b = &call->in[B], *y = &call->out[0];
    int64_t step_a = a->stride[a->rank - 1], step_b = b->stride[inner_axis(call->op, b->rank)],
            n = a->dims[a->rank - 1];
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do {
        int64_t i = matrix_offset(a, y->rank, at) + at[y->rank - 2] * a->stride[a->rank - 2];
        int64_t k = matrix_offset(b, y->rank, at) + at[y->rank - 1] * b->stride[outer_axis(call->op, b->rank)];
        double sum = 0;
        for (int64_t e = 0; e < n; e++)
            sum += (double)op_load(a, i + e * step_a) * (double)op_load(b, k + e * step_b);
        op_store(y, walk_offset(y, at), (float)sum);
    } while (walk_next(box, y->rank, at));
}

static const op_operand in[] = {{"a", 0}, {"b", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_INT("transpose_b", 0)};
static const op_case cases[] = {
    {"input %a : f32[7, 48] live=tokens\nconst %b : f32[48, 17]\n%y = batch_matmul(%a, %b)\n"},
    {"input %a : f32[3, 1, 5, 16]\ninput %b : bf16[4, 7, 16]\n%y = batch_matmul(%a, %b) {transpose_b = 1}\n"},
    {"input %a : bf16[7, 2, 8] live=tokens\ninput %b : bf16[7, 8, 3] live=tokens\n%y = batch_matmul(%a, %b)\n"},
    {"input %a : f32[2, 3]\ninput %b : f32[5, 3, 4]\n%y = batch_matmul(%a, %b)\n"},
};

const op_def op_batch_matmul = {
    .name = "batch_matmul",
    .summary = "matrix products over broadcast batch axes",
    .in = in,
    .out = out,
    .n_in = SHAPE_COUNT(in),
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
