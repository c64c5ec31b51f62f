/* gather.c - entries of axis 0 by index.  x [N, ..], index i32[M] -> [M, ..]; zeros where the
 * index is outside 0 .. N - 1 or names an entry that is not alive.
 *
 *   hidden states of a step [T, D], index [4, 7] -> [2, D]: those of tokens 4 and 7
 *
 * How rows of logits are chosen: hidden states of the tokens whose logits are wanted are
 * gathered before the last projection.  Cost: one copy.
 */
#include "op/fill.h"
#include "op/walk.h"

enum { X, INDEX };

/* Rows of blocks stay whole, so x may be quantised unless its only axis is the axis of blocks. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *index = shape_input(g, op, INDEX);
    CHECK(cx, x->rank > 0, MPK_ESHAPE, "gather: input x (%%%.*s) is a scalar", STR_ARG(x->name));
    CHECK(cx, x->rank > 1 || ir_dtype_table[x->dtype].block_elements == 1, MPK_ESHAPE,
          "gather: input x (%%%.*s) has one axis of blocks, which cannot be taken apart",
          STR_ARG(x->name));
    TRY(shape_expect(cx, g, op, INDEX, SHAPE_I32, 1, (int64_t[]){SHAPE_FREE}));
    shape_like(x, out);
    out->live = index->live;
    out->dims[0] = index->dims[0];
    return MPK_OK;
}

/* Rows of blocks are cut at blocks. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *x = shape_input(g, op, X);
    shape_axes_all(g, op, axes);
    axes[x->rank - 1].grain = ir_dtype_table[x->dtype].block_elements;
}

/* Which entries are read is known only at run time: all of them. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    if (input == INDEX) {
        *read = (ir_box){.lo = {box->lo[0]}, .hi = {box->hi[0]}};
        return;
    }
    *read = *box;
    read->lo[0] = 0;
    read->hi[0] = shape_input(g, op, X)->dims[0];
}

/* Copy one run along the last axis to entry `at` of the result, from entry `id` of x (-1:
 * zeros). */
static void copy_run(const op_view *out, const op_view *x, const int64_t *at, int64_t id, int64_t n)
{
    uint32_t last = out->rank - 1;
    int64_t from[IR_MAX_RANK], to = walk_offset(out, at);
    memcpy(from, at, sizeof from);
    from[0] = id;
    if (id >= 0)
        walk_copy(out, to, out->stride[last], x, walk_offset(x, from), x->stride[last], n);
    else
        memset((char *)out->data + ir_row_bytes(out->dtype, to), 0,
               (size_t)ir_row_bytes(out->dtype, n));
}

/* An index is valid only up to the entries that are alive, since those after them hold what an
 * earlier step left. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[X], *index = &call->in[INDEX], *out = &call->out[0];
    uint32_t runs = out->rank > 1 ? out->rank - 1 : 1; /* of a vector every entry is a run */
    int64_t n = out->rank > 1 ? box->hi[runs] - box->lo[runs] : 1, alive = op_live_entries(call, x);
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do {
        int64_t id = walk_load_int(index, at[0] * index->stride[0]);
        copy_run(out, x, at, id >= 0 && id < alive ? id : -1, n);
    } while (walk_next(box, runs, at));
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    if (input == INDEX)
        fill_indices(shape_input(g, op, INDEX), shape_input(g, op, X)->dims[0], seed, data);
}

static const op_operand in[] = {{"x", 0}, {"index", 0}}, out[] = {{"y", 0}};
/* Rows for live indices; more than two axes; a vector; blocks. */
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\ninput %i : i32[3] live=rows\n%y = gather(%x, %i)\n"},
    {"input %x : bf16[4, 3, 17]\ninput %i : i32[9]\n%y = gather(%x, %i)\n"},
    {"input %x : f32[1003] \ninput %i : i32[7] live=tokens\n%y = gather(%x, %i)\n"},
    {"const %x : q4_k[5, 512]\ninput %i : i32[4] live=tokens\n%y = gather(%x, %i)\n"},
};

const op_def op_gather = {
    .name = "gather",
    .summary = "entries of axis 0 by index; zeros for an index that does not exist",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .flags = OP_LOOKS_UP,
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
