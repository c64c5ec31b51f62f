/* index.c - entries of x by index tensors on its leading axes.  x [N0 .. Nk-1, rest], k indices
 * [I ..] -> [I .., rest].
 *
 *   x [9, 33], index [4, 2] -> [4, 2, 33]: y[i, j, :] = x[index[i, j], :]
 *
 * The indices are broadcast among themselves; a negative number counts from the end; where an
 * entry does not exist the result is zero.  Other axes than the leading ones: transpose x first,
 * which costs nothing.  Cost: one copy.
 */
#include "op/index.h"

/* Inputs, by index: x, then the index tensors. */
enum { X, FIRST };

/* The indices' common shape, then the axes of x that no index takes. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    uint32_t k = op->n_in - FIRST;
    TRY(shape_expect_dtype(cx, g, op, X, SHAPE_PLAIN));
    TRY(index_shape(cx, g, op, FIRST, out));
    CHECK(cx, out->rank + x->rank - k <= IR_MAX_RANK, MPK_ESHAPE,
          "index: the result has rank %u, at most %d is possible", out->rank + x->rank - k,
          IR_MAX_RANK);
    out->dtype = x->dtype;
    for (uint32_t i = k; i < x->rank; i++)
        out->dims[out->rank++] = x->dims[i];
    return MPK_OK;
}

/* The rank of the broadcast indices, from that of the result. */
static uint32_t index_rank(uint32_t out_rank, uint32_t x_rank, uint32_t n_in)
{
    return out_rank + (n_in - FIRST) - x_rank;
}

/* Of x: all of the leading axes, since indices are data; of an index: its part of the box. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, X), *t = shape_input(g, op, input);
    uint32_t rank = index_rank(g->tensors.at[op->out[0]].rank, x->rank, op->n_in),
             k = op->n_in - FIRST;
    if (input != X) {
        shape_broadcast_box(t, rank, box, read);
        return;
    }
    *read = ir_box_whole(x);
    for (uint32_t i = k; i < x->rank; i++) {
        read->lo[i] = box->lo[i - k + rank];
        read->hi[i] = box->hi[i - k + rank];
    }
}

/* Runs along the last axis if it is one of x's, else entry by entry. It is one while fewer axes are
 * indexed than x has: x[i] of a matrix copies rows, x[i, j] single entries. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[X], *y = &call->out[0];
    uint32_t k = call->n_in - FIRST, rank = index_rank(y->rank, x->rank, call->n_in);
    uint32_t axes = x->rank > k ? y->rank - 1 : y->rank;
    bool by_runs = axes < y->rank;
    int64_t n = by_runs ? walk_run(box, y->rank) : 1;
    int64_t step = by_runs ? walk_step(y) : 1;
    int64_t at[IR_MAX_RANK], from[IR_MAX_RANK];
    size_t size = ir_dtype_table[y->dtype].block_bytes;
    memcpy(at, box->lo, sizeof at);
    do {
        int64_t to = walk_offset(y, at);
        memcpy(from + k, at + rank, (x->rank - k) * sizeof *from);
        if (index_load(call, FIRST, rank, at, from))
            walk_copy(y, to, step, x, walk_offset(x, from),
                      x->rank > k ? x->stride[x->rank - 1] : 1, n);
        else
            for (int64_t i = 0; i < n; i++)
                memset((char *)y->data + (size_t)(to + i * step) * size, 0, size);
    } while (walk_next(box, axes, at));
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    index_fill(g, op, input, FIRST, seed, data);
}

static const op_operand in[] = {{"x", 0}, {"index", OP_VARIADIC}}, out[] = {{"y", 0}};
/* One index of two axes; two that broadcast; a scalar one; two on live rows. */
static const op_case cases[] = {
    {"input %x : f32[9, 33]\ninput %i : i64[4, 2] live=tokens\n%y = index(%x, %i)\n"},
    {"input %x : bf16[4, 3, 5]\ninput %i : i64[2, 1]\ninput %k : i32[3]\n%y = index(%x, %i, %k)\n"},
    {"input %x : bool[4, 3]\ninput %i : i32[5]\ninput %k : i32[]\n%y = index(%x, %i, %k)\n"},
    {"input %x : i64[7, 2] live=tokens\ninput %i : i64[]\n%t = copy(%x)\n%y = index(%t, %i, %i)\n"},
};

const op_def op_index = {
    .name = "index",
    .summary = "entries by index tensors on the leading axes; zeros for what does not exist",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .flags = OP_LOOKS_UP,
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
