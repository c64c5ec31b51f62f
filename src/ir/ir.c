/* ir.c - dtypes, boxes, and the storage of a tensor (see ir.h).
 *
 * Called by nearly every room.  Boxes are compared axis by axis over the first `rank` axes; what
 * stands in the others is never read, so a box needs no clearing beyond its rank.
 */
#include "ir/ir.h"

#include "ir/op.h"

const ir_dtype_info ir_dtype_table[IR_DTYPES] = {
#define IR_DTYPE_ROW(name, elements, bytes, text) {text, elements, bytes},
    IR_DTYPE_MAP(IR_DTYPE_ROW)
#undef IR_DTYPE_ROW
};

/* Counted by operators: a peer that runs nothing takes part in nothing. */
uint32_t ir_count_peers(const ir_graph *g)
{
    uint32_t n = 1;
    for (size_t i = 0; i < g->ops.n; i++)
        n = g->ops.at[i].peer >= n ? g->ops.at[i].peer + 1 : n;
    return n;
}

bool ir_dtype_from_name(str name, ir_dtype *dtype)
{
    for (int i = 0; i < IR_DTYPES; i++)
        if (str_is(name, ir_dtype_table[i].name)) {
            *dtype = (ir_dtype)i;
            return true;
        }
    return false;
}

int64_t ir_elements(const ir_tensor *t)
{
    int64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++)
        n *= t->dims[i];
    return n;
}

int64_t ir_row_bytes(ir_dtype dtype, int64_t elements)
{
    const ir_dtype_info *info = &ir_dtype_table[dtype];
    return elements / info->block_elements * info->block_bytes;
}

/* Blocks begin with an f16, or are read byte by byte, and have an even number of bytes but for
 * mxfp4; so 2 is enough for every block dtype. */
uint32_t ir_dtype_align(ir_dtype dtype)
{
    const ir_dtype_info *info = &ir_dtype_table[dtype];
    return info->block_elements > 1 ? 2 : info->block_bytes;
}

int64_t ir_bytes(const ir_tensor *t)
{
    return ir_row_bytes(t->dtype, ir_elements(t));
}

/* What every tensor must be, whatever made it.  The limit on elements leaves room for bytes of an
 * element and for strides, so later products of dimensions need no check for overflow. */
mpk_status ir_check_tensor(mpk_context *cx, const ir_tensor *t)
{
    CHECK(cx, t->name.n > 0, MPK_EARG, "a tensor has no name");
    CHECK(cx, (unsigned)t->dtype < IR_DTYPES, MPK_EARG,
          "tensor %%%.*s: there is no dtype number %d", STR_ARG(t->name), (int)t->dtype);
    CHECK(cx, t->rank <= IR_MAX_RANK, MPK_ESHAPE,
          "tensor %%%.*s has rank %u, at most %d is possible", STR_ARG(t->name), t->rank,
          IR_MAX_RANK);
    CHECK(cx, (unsigned)t->live < IR_LIVES && (t->live == IR_ALL || t->rank > 0), MPK_ESHAPE,
          "tensor %%%.*s: a scalar has no axis that could be partly alive", STR_ARG(t->name));
    const ir_dtype_info *info = &ir_dtype_table[t->dtype];
    int64_t limit = INT64_MAX / 256, n = 1; /* so that bytes fit too */
    for (uint32_t i = 0; i < t->rank; i++) {
        CHECK(cx, t->dims[i] >= 1, MPK_ESHAPE,
              "tensor %%%.*s: dimension %u is %lld, at least 1 is needed", STR_ARG(t->name), i,
              (long long)t->dims[i]);
        CHECK(cx, t->dims[i] <= limit / n, MPK_ESHAPE, "tensor %%%.*s is too large",
              STR_ARG(t->name));
        n *= t->dims[i];
    }
    int64_t last = t->rank ? t->dims[t->rank - 1] : 1;
    CHECK(cx, last % info->block_elements == 0, MPK_ESHAPE,
          "tensor %%%.*s: the last dimension is %lld, a multiple of %u is needed for %s",
          STR_ARG(t->name), (long long)last, info->block_elements, info->name);
    return MPK_OK;
}

ir_box ir_box_whole(const ir_tensor *t)
{
    ir_box b = {0};
    for (uint32_t i = 0; i < t->rank; i++)
        b.hi[i] = t->dims[i];
    return b;
}

bool ir_box_is_empty(const ir_box *b, uint32_t rank)
{
    for (uint32_t i = 0; i < rank; i++)
        if (b->lo[i] >= b->hi[i])
            return true;
    return false;
}

/* Empty boxes overlap nothing. */
bool ir_box_overlaps(const ir_box *a, const ir_box *b, uint32_t rank)
{
    if (ir_box_is_empty(a, rank) || ir_box_is_empty(b, rank))
        return false;
    for (uint32_t i = 0; i < rank; i++)
        if (a->lo[i] >= b->hi[i] || b->lo[i] >= a->hi[i])
            return false;
    return true;
}

/* Every box contains an empty one. */
bool ir_box_contains(const ir_box *outer, const ir_box *inner, uint32_t rank)
{
    if (ir_box_is_empty(inner, rank))
        return true;
    for (uint32_t i = 0; i < rank; i++)
        if (inner->lo[i] < outer->lo[i] || inner->hi[i] > outer->hi[i])
            return false;
    return true;
}

/* An empty box has 0, also where a lower bound exceeds the upper one. */
int64_t ir_box_elements(const ir_box *b, uint32_t rank)
{
    int64_t n = 1;
    for (uint32_t i = 0; i < rank; i++)
        n *= b->hi[i] > b->lo[i] ? b->hi[i] - b->lo[i] : 0;
    return n;
}

/* An empty box lies nowhere, so the other one is the answer. */
ir_box ir_box_around(const ir_box *a, const ir_box *b, uint32_t rank)
{
    if (ir_box_is_empty(a, rank))
        return *b;
    if (ir_box_is_empty(b, rank))
        return *a;
    ir_box r = *a;
    for (uint32_t i = 0; i < rank; i++) {
        r.lo[i] = a->lo[i] < b->lo[i] ? a->lo[i] : b->lo[i];
        r.hi[i] = a->hi[i] > b->hi[i] ? a->hi[i] : b->hi[i];
    }
    return r;
}

/* True if the tensor is a view of the first input of its operator. */
static bool is_view(const ir_graph *g, const ir_tensor *t)
{
    return t->shares != IR_NONE && t->producer != IR_NONE &&
           g->ops.at[t->producer].def->flags & OP_VIEW;
}

/* Views translate the box to their input by the record's `reads`; a result written in place has
 * its input's box.  The walk ends at the tensor that owns the storage.
 *
 *   %x : f32[4, 64]   %y = slice(%x) : f32[2, 64], rows 1 and 2   %z = reshape(%y) : f32[128]
 *   box [0:64] of %z  ->  [0:1, 0:64] of %y  ->  [1:2, 0:64] of %x
 *
 * Where a view cannot map a box exactly, `reads` gives a larger one, never a smaller one. */
void ir_root(const ir_graph *g, ir_tensor_id tensor, const ir_box *box, ir_tensor_id *root,
             ir_box *root_box)
{
    ir_box b = *box;
    const ir_tensor *t = &g->tensors.at[tensor];
    while (t->shares != IR_NONE) {
        if (is_view(g, t)) {
            const ir_op *op = &g->ops.at[t->producer];
            ir_box of_input = {0};
            if (!ir_box_is_empty(&b, t->rank))
                op->def->reads(g, op, 0, &b, &of_input);
            b = of_input;
        }
        tensor = t->shares;
        t = &g->tensors.at[tensor];
    }
    *root = tensor;
    *root_box = b;
}

void ir_dense_strides(uint32_t rank, const int64_t *dims, int64_t *stride)
{
    int64_t step = 1;
    for (uint32_t i = rank; i-- > 0; step *= dims[i])
        stride[i] = step;
}

/* Would a view split a block?  Rows in block formats are copied and unpacked whole, so a view
 * may reorder or drop rows but not cut inside a block. */
static bool splits_blocks(const ir_tensor *t)
{
    int64_t block = ir_dtype_table[t->dtype].block_elements;
    if (block == 1)
        return false;
    if (t->rank == 0 || t->stride[t->rank - 1] != 1 || t->dims[t->rank - 1] % block ||
        t->offset % block)
        return true;
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        if (t->stride[i] % block)
            return true;
    return false;
}

/* A view that strides cannot express gets storage of its own and becomes a copy: its record then
 * runs, and its readers see a dense tensor. */
mpk_status ir_place_output(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    out->offset = 0;
    ir_dense_strides(out->rank, out->dims, out->stride);
    if (op->def->flags & OP_VIEW) {
        const ir_tensor *in = &g->tensors.at[op->in[0]];
        out->shares = op->in[0];
        if (op->def->view(g, op, in->stride, out->stride, &out->offset)) {
            out->offset += in->offset;
        } else {
            out->shares = IR_NONE;
            out->offset = 0;
            ir_dense_strides(out->rank, out->dims, out->stride);
        }
    } else if (out->shares != IR_NONE) {
        const ir_tensor *in = &g->tensors.at[out->shares];
        memcpy(out->stride, in->stride, sizeof out->stride);
        out->offset = in->offset;
    }
    CHECK(cx, !splits_blocks(out), MPK_EUNSUPPORTED, "a view may not split the blocks of %s",
          ir_dtype_table[out->dtype].name);
    return MPK_OK;
}

void ir_strides(const ir_graph *g, ir_tensor_id tensor, int64_t stride[IR_MAX_RANK],
                int64_t *offset)
{
    const ir_tensor *t = &g->tensors.at[tensor];
    memcpy(stride, t->stride, sizeof t->stride);
    *offset = t->offset;
}
