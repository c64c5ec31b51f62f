/* add_parts.c - the sum of what the peers have computed of one tensor.  x0, x1, ... of one float
 * dtype and shape, in the order of the peers -> their sum.  What all peers have, such as a
 * residual, may come after the parts.
 *
 * Each peer reads the parts where they lie, in the memory of the other peers.  They are added in
 * fp32 from x0 on and rounded once, so that all peers, which add the same parts, get the same
 * bits, in every run and for every cut.  It is the all-reduce of pass shard, as an operator
 * whose order events guarantee like any other.  Cost: one operation an element and part.
 */
#include "op/shape.h"
#include "op/walk.h"

/* Parts must agree in everything but the peer that holds them. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *first = shape_input(g, op, 0);
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_FLOAT));
    for (uint32_t i = 1; i < op->n_in; i++) {
        TRY(shape_expect(cx, g, op, i, 1u << first->dtype, first->rank, first->dims));
        TRY(shape_expect_live(cx, g, op, i, first->live));
    }
    shape_like(first, out);
    return MPK_OK;
}

/* Bodies take eight elements of a row at once: where rows are whole eights, so are the cuts of
 * tasks. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *y = &g->tensors.at[op->out[0]];
    shape_axes_all(g, op, axes);
    if (y->rank && y->dims[y->rank - 1] % 8 == 0)
        axes[y->rank - 1].grain = 8;
}

/* Scratch: the sum of a row, and the next part of it. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    uint32_t rank = g->tensors.at[op->out[0]].rank;
    return 2 * sizeof(float) * (rank ? (size_t)(box->hi[rank - 1] - box->lo[rank - 1]) : 1);
}

/* Row by row of the box: load x0, add the others, store. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *y = &call->out[0];
    uint32_t last = y->rank ? y->rank - 1 : 0;
    int64_t at[IR_MAX_RANK], n = y->rank ? box->hi[last] - box->lo[last] : 1;
    float *sum = scratch, *part = sum + n;
    memcpy(at, box->lo, sizeof at);
    do {
        walk_load_row(&call->in[0], walk_offset(&call->in[0], at), 0, n, sum);
        for (uint32_t k = 1; k < call->n_in; k++) {
            walk_load_row(&call->in[k], walk_offset(&call->in[k], at), 0, n, part);
            for (int64_t i = 0; i < n; i++)
                sum[i] += part[i];
        }
        walk_store_row(y, walk_offset(y, at), 0, n, sum);
    } while (walk_next(box, last, at));
}

static const op_operand in[] = {{"x", OP_VARIADIC}}, out[] = {{"y", 0}};
/* Of two peers; of three in 16 bits with odd rows; of one, which is a copy. */
static const op_case cases[] = {
    {"input %a : f32[7, 320] live=tokens\ninput %b : f32[7, 320] live=tokens\n%y = add_parts(%a, "
     "%b)\n"},
    {"input %a : bf16[3, 17]\ninput %b : bf16[3, 17]\ninput %c : bf16[3, 17]\n%y = add_parts(%a, "
     "%b, %c)\n"},
    {"input %a : f16[2, 3, 5]\n%y = add_parts(%a)\n"},
    {"input %a : f32[]\ninput %b : f32[]\n%y = add_parts(%a, %b)\n"},
    /* many pieces for each thread of a GPU's task */
    {"input %a : bf16[20, 2048] live=tokens\ninput %b : bf16[20, 2048] live=tokens\n"
     "input %c : bf16[20, 2048] live=tokens\n%y = add_parts(%a, %b, %c)\n"},
    {"input %a : bf16[17, 1032]\ninput %b : bf16[17, 1032]\ninput %c : bf16[17, 1032]\n"
     "input %d : bf16[17, 1032]\n%y = add_parts(%a, %b, %c, %d)\n"},
};

const op_def op_add_parts = {
    .name = "add_parts",
    .summary = "the sum of what peers have computed of one tensor, in their order",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .flags = OP_GATHERS,
    .infer = infer,
    .axes = axes,
    .reads = shape_reads_broadcast,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
