/* reshape.c - the same elements in row-major order under another shape; a view where strides can
 * express it, else a copy.
 *
 * x [..] -> shape; one entry of it may be -1, which is computed from the others.
 *
 * Idea: the axes of both shapes fall into groups with equal products, and a group of either side
 * covers the same elements.  So strides and boxes are mapped group by group:
 *
 *   [T, H, K] -> [T, H K]:      groups T | T and H, K | H K
 *   [2, 3, 4] -> [6, 2, 2]:     groups 2, 3 | 6 and 4 | 2, 2
 *
 * The first is a view if H and K lie in memory like one axis (stride of H = K times stride of
 * K); a transposed x is not.  Cost: nothing as a view, else one copy.  Used by pass and the
 * planner through view() and split().
 */
#include "op/runs.h"
#include "op/shape.h"
#include "op/walk.h"

/* A group: axes i0 .. i1 - 1 of the input and o0 .. o1 - 1 of the result have the same product.
 * Axes of one entry join the group that is being built; one side of a group is empty if the
 * other's axes all have one entry. */
typedef struct group {
    uint32_t i0, i1, o0, o1;
} group;

/* Cut both shapes into groups, from the outermost axis on; returns how many.  infer has checked
 * that the products are equal. */
static uint32_t find_groups(const ir_tensor *in, const ir_tensor *out,
                            group groups[2 * IR_MAX_RANK])
{
    uint32_t n = 0, i = 0, o = 0;
    while (i < in->rank || o < out->rank) {
        group *k = &groups[n++];
        *k = (group){i, i, o, o};
        int64_t a = i < in->rank ? in->dims[i++] : 1;
        int64_t b = o < out->rank ? out->dims[o++] : 1;
        while (a != b) {
            if (a < b)
                a *= in->dims[i++];
            else
                b *= out->dims[o++];
        }
        k->i1 = i;
        k->o1 = o;
    }
    return n;
}

/* The product is compared by division before it grows, so that no shape overflows.  The entry -1
 * gets the elements that are left. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const int64_t *shape = op->attributes[0].ints.at;
    uint32_t rank = op->attributes[0].ints.n, open = rank;
    CHECK(cx, rank <= IR_MAX_RANK, MPK_ESHAPE,
          "reshape: shape has %u axes, at most %d are possible", rank, IR_MAX_RANK);
    int64_t total = ir_elements(x), product = 1;
    shape_like(x, out);
    out->rank = rank;
    for (uint32_t i = 0; i < rank; i++) {
        out->dims[i] = shape[i];
        if (shape[i] == -1 && open == rank) {
            open = i;
            continue;
        }
        CHECK(cx, shape[i] > 0 && shape[i] <= total / product, MPK_ESHAPE,
              "reshape: %%%.*s has %lld elements, axis %u of the shape is %lld", STR_ARG(x->name),
              (long long)total, i, (long long)shape[i]);
        product *= shape[i];
    }
    const char *of = ""; /* with an open axis, any multiple of the product fits */
    int64_t whole = product;
    if (open < rank) {
        of = "a multiple of ";
        out->dims[open] = total / product;
        whole *= out->dims[open];
    }
    CHECK(cx, whole == total, MPK_ESHAPE,
          "reshape: %%%.*s has %lld elements, the shape asks for %s%lld", STR_ARG(x->name),
          (long long)total, of, (long long)product);
    CHECK(cx, x->live == IR_ALL || (rank && out->dims[0] == x->dims[0]), MPK_ESHAPE,
          "reshape: axis 0 of %%%.*s is partly alive and must stay as it is", STR_ARG(x->name));
    return MPK_OK;
}

/* Map a box through one group: the range of the axes a0 .. a1 - 1 of `to` around what the box of
 * axes b0 .. b1 - 1 of `from` covers.  An example: entries 2 .. 3 of [6] are elements 2 and 3 of
 * [2, 3], in rows 0 and 1: the result is rows 0 .. 1, columns whole. */
static void map_box(const ir_tensor *from, uint32_t b0, uint32_t b1, const ir_box *box,
                    const ir_tensor *to, uint32_t a0, uint32_t a1, ir_box *read)
{
    /* numbers of the first and last element within the group */
    int64_t first = 0, last = 0, step = 1;
    for (uint32_t i = b1; i-- > b0; step *= from->dims[i]) {
        first += box->lo[i] * step;
        last += (box->hi[i] - 1) * step;
    }
    /* As long as all outer axes have a range of one entry, this axis runs from the first
     * element's place to the last one's; after that it is whole. */
    bool same = true;
    step = 1;
    for (uint32_t i = a0; i < a1; i++)
        step *= to->dims[i];
    for (uint32_t i = a0; i < a1; i++) {
        step /= to->dims[i];
        read->lo[i] = same ? first / step % to->dims[i] : 0;
        read->hi[i] = same ? last / step % to->dims[i] + 1 : to->dims[i];
        same = same && read->hi[i] == read->lo[i] + 1;
    }
}

/* Exact for groups that the box holds whole, or cuts along their outermost axis; other boxes are
 * rounded outwards. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, input), *y = &g->tensors.at[op->out[0]];
    group groups[2 * IR_MAX_RANK];
    uint32_t n = find_groups(x, y, groups);
    *read = ir_box_whole(x);
    for (uint32_t k = 0; k < n; k++)
        map_box(y, groups[k].o0, groups[k].o1, box, x, groups[k].i0, groups[k].i1, read);
}

/* Way number `way` to split the operator over workers: the way-th pair of axes that begin after
 * the same product of outer axes, so that their entries are cut at the same elements.  A partly
 * alive axis 0 stays whole. */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    const ir_tensor *x = shape_input(g, op, 0), *y = &g->tensors.at[op->out[0]];
    int64_t before_x = 1, before_y = 1;
    for (uint32_t i = 0, o = 0; i < x->rank && o < y->rank;) {
        bool same = before_x == before_y, wide = x->dims[i] > 1 && y->dims[o] > 1;
        if (same && wide && !(x->live != IR_ALL && i == 0) && way-- == 0) {
            out->in[0] = (int)i;
            out->out[0] = (int)o;
            out->sized = 0;
            return true;
        }
        if (before_x * x->dims[i] <= before_y * y->dims[o])
            before_x *= x->dims[i++];
        else
            before_y *= y->dims[o++];
    }
    return false;
}

/* The strides of one group of the result, if the input's axes of that group lie in memory like
 * one axis; false if not, or if one of them is broadcast (stride 0). */
static bool view_group(const ir_tensor *in, const int64_t *in_stride, const ir_tensor *out,
                       int64_t *stride, group k)
{
    int64_t step = 0; /* of the innermost element; 0: all axes so far have one entry */
    int64_t expected = 0;
    for (uint32_t i = k.i1; i-- > k.i0;) {
        if (in->dims[i] == 1)
            continue;
        if (step == 0)
            step = expected = in_stride[i];
        if (in_stride[i] != expected || step == 0)
            return false;
        expected *= in->dims[i];
    }
    step = step ? step : 1;
    for (uint32_t o = k.o1; o-- > k.o0; step *= out->dims[o])
        stride[o] = step;
    return true;
}

/* The result's shape.  view() may be asked before the result is in the graph, so it is computed
 * from the attribute, which infer has accepted. */
static ir_tensor result_of(const ir_tensor *x, const ir_op *op)
{
    ir_tensor y = *x;
    int64_t product = 1;
    y.rank = op->attributes[0].ints.n;
    for (uint32_t i = 0; i < y.rank; i++) {
        y.dims[i] = op->attributes[0].ints.at[i];
        product *= y.dims[i] == -1 ? 1 : y.dims[i];
    }
    for (uint32_t i = 0; i < y.rank; i++)
        if (y.dims[i] == -1)
            y.dims[i] = ir_elements(x) / product;
    return y;
}

/* The view exists if every group has strides; one group without makes the whole a copy. */
static bool view(const ir_graph *g, const ir_op *op, const int64_t *in_stride, int64_t *stride,
                 int64_t *offset)
{
    const ir_tensor *x = shape_input(g, op, 0);
    ir_tensor y = result_of(x, op);
    group groups[2 * IR_MAX_RANK];
    uint32_t n = find_groups(x, &y, groups);
    *offset = 0;
    for (uint32_t k = 0; k < n; k++)
        if (!view_group(x, in_stride, &y, stride, groups[k]))
            return false;
    return true;
}

/* The coordinates of element `number` of x in row-major order. */
static void find_place(const op_view *x, int64_t number, int64_t *place)
{
    for (uint32_t i = x->rank; i-- > 0; number /= x->dims[i])
        place[i] = number % x->dims[i];
}

/* Only for what is not a view: runs along the last axis of the result, in pieces that lie in one
 * row of x. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *y = &call->out[0];
    uint32_t last = y->rank ? y->rank - 1 : 0;
    int64_t at[IR_MAX_RANK], from[IR_MAX_RANK] = {0}, end = y->rank ? box->hi[last] : 1;
    int64_t row = x->rank ? x->dims[x->rank - 1] : 1, step = walk_step(x);
    memcpy(at, box->lo, sizeof at);
    do {
        int64_t number = 0, to = walk_offset(y, at), i = box->lo[last], n;
        for (uint32_t k = 0; k < y->rank; k++)
            number = number * y->dims[k] + at[k];
        for (; i < end; i += n, number += n, to += n * y->stride[last]) {
            find_place(x, number, from);
            n = x->rank ? row - from[x->rank - 1] : 1;
            n = n < end - i ? n : end - i;
            walk_copy(y, to, y->rank ? y->stride[last] : 1, x, walk_offset(x, from), step, n);
        }
    } while (walk_next(box, last, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("shape", INTS)};
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\n%y = reshape(%x) {shape = [7, 5, -1]}\n"},
    {"input %x : i32[4, 6]\n%t = transpose(%x) {perm = [1, 0]}\n%y = reshape(%t) {shape = [3, "
     "8]}\n"},
    {"input %x : f32[1, 6, 1, 4]\n%y = reshape(%x) {shape = [2, 1, 12]}\n"},
    {"input %x : bf16[1]\n%y = reshape(%x) {shape = []}\n"},
};

const op_def op_reshape = {
    .name = "reshape",
    .summary = "the same elements under another shape; a view where strides can say it",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_VIEW,
    .infer = infer,
    .axes = runs_axes,
    .reads = reads,
    .split = split,
    .view = view,
    .ref = ref,
    OP_CASES(cases),
};
