/* transfer.c - a copy in the memory of another peer (paper §6.5: communication is tasks).  x
 * [..] of any dtype on one peer -> the same on peer `to`.
 *
 * The one operator whose result lies elsewhere than where it runs: the sender's workers store
 * it, and its readers on the other peer wait for the transfer's tasks as for any others.  All
 * communication between peers is built from it: all_reduce is transfers and add_parts,
 * all_gather transfers and concat.  Cost: one copy.
 */
#include "op/shape.h"
#include "op/walk.h"

/* The peer is checked against the most there can be; the verifier checks that the program has
 * it. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    int64_t to = op->attributes[0].i;
    CHECK(cx, to >= 0 && to < IR_MAX_PEERS, MPK_EARG,
          "transfer: to is %lld, expected a peer, 0 to %d", (long long)to, IR_MAX_PEERS - 1);
    shape_like(shape_input(g, op, 0), out);
    return MPK_OK;
}

/* Runs along the last axis, any strides on either side. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *y = &call->out[0];
    uint32_t last = y->rank ? y->rank - 1 : 0;
    int64_t at[IR_MAX_RANK], n = y->rank ? box->hi[last] - box->lo[last] : 1;
    memcpy(at, box->lo, sizeof at);
    do
        walk_copy(y, walk_offset(y, at), y->stride[last], x, walk_offset(x, at), x->stride[last],
                  n);
    while (walk_next(box, last, at));
}

/* Any cut, but rows of a block dtype at blocks only. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *x = shape_input(g, op, 0);
    shape_axes_all(g, op, axes);
    if (x->rank)
        axes[x->rank - 1].grain = ir_dtype_table[x->dtype].block_elements;
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("to", INT)};
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\n%y = transfer(%x) {to = 0}\n"},
    {"input %x : bf16[3, 5, 7]\n%y = transfer(%x) {to = 0}\n"},
    {"const %x : q6_k[3, 512]\n%y = transfer(%x) {to = 0}\n"},
};

const op_def op_transfer = {
    .name = "transfer",
    .summary = "a copy in the memory of another peer",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_TRANSFERS,
    .infer = infer,
    .axes = axes,
    .reads = shape_reads_broadcast,
    .ref = ref,
    OP_CASES(cases),
};
