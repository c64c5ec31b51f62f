/* unfold.c - windows of images as rows, side by side.
 *
 * x [N, C, H, W] -> y [N, lines, places, entries].  kernel: two numbers, at most `entries` with the
 * channels; size: lines and places; stride, padding: two numbers each, or none for 1 and 0.
 *
 *   y[n, l, p, (i kernel[1] + k) C + c] = x[n, c, l stride[0] - padding[0] + i,
 *                                                 p stride[1] - padding[1] + k]
 *
 * Zeros where that lies outside of x, and in the entries after the window.  Unlike in conv, size
 * says how many windows there are, so the last ones may lie in the padding alone.
 *
 * Idea: the first convolution of a network has few channels, which no copy of 16 bytes takes.  With
 * `stride` lines of its kernel as one row of 64 entries it is a convolution of 64 channels whose
 * kernel has one column.  Cost: one copy.
 */
#include "op/shape.h"
#include "op/walk.h"

/* Attributes, by index. */
enum { KERNEL, SIZE, ENTRIES, STRIDE, PADDING };
enum { AXES = 2 };
/* Bounds of all numbers, so that products of them do not overflow. */
enum { MOST = 1 << 24, MOST_STEPS = 1 << 12 };

/* The number of attribute `list` for axis i of places. */
static int64_t number(const ir_attribute *attributes, uint32_t list, uint32_t i)
{
    const ir_attribute *a = &attributes[list];
    return i < a->ints.n ? a->ints.at[i] : list != PADDING;
}

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    static const uint32_t lists[] = {KERNEL, SIZE, STRIDE, PADDING};
    const ir_tensor *x = shape_input(g, op, 0);
    const ir_attribute *a = op->attributes;
    TRY(shape_expect(cx, g, op, 0, SHAPE_PLAIN, 4,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, SHAPE_FREE, SHAPE_FREE}));
    TRY(shape_expect_whole(cx, g, op, 0));
    for (uint32_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const uint32_t list = lists[k], n = a[list].ints.n;
        CHECK(cx, n == AXES || (!n && list >= STRIDE), MPK_ESHAPE,
              "unfold: %s has %u numbers for %d axes", op->def->attributes[list].name, n, AXES);
        for (uint32_t i = 0; i < AXES; i++)
            CHECK(cx,
                  number(a, list, i) >= (list != PADDING) &&
                      number(a, list, i) < (list == SIZE ? MOST : MOST_STEPS),
                  MPK_ESHAPE, "unfold: %s is %lld along axis %u, which is not possible",
                  op->def->attributes[list].name, (long long)number(a, list, i), i);
    }
    const int64_t window = number(a, KERNEL, 0) * number(a, KERNEL, 1);
    CHECK(cx,
          a[ENTRIES].i >= 1 && a[ENTRIES].i < MOST && x->dims[1] < MOST && x->dims[2] < MOST &&
              x->dims[3] < MOST && window * x->dims[1] <= a[ENTRIES].i,
          MPK_ESHAPE, "unfold: a row has %lld entries for a window of %lld with %lld channels",
          (long long)a[ENTRIES].i, (long long)window, (long long)x->dims[1]);
    shape_like(x, out);
    out->dims[1] = number(a, SIZE, 0);
    out->dims[2] = number(a, SIZE, 1);
    out->dims[3] = a[ENTRIES].i;
    return MPK_OK;
}

/* A task has whole lines. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g, (void)op;
    axes[0] = axes[1] = (op_axis){.grain = 1};
}

/* Counts all entries, since those outside of x are written too; 8 bytes stand for one. */
static int64_t effort(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    enum { ENTRY_BYTES = 8 };
    return ir_box_elements(box, g->tensors.at[op->out[0]].rank) * ENTRY_BYTES;
}

/* Where window number `at` of an axis of places begins in x; it may lie outside. */
static int64_t source(const ir_attribute *attributes, uint32_t i, int64_t at)
{
    return at * number(attributes, STRIDE, i) - number(attributes, PADDING, i);
}

/* From the first window to the last one, as far as x has that. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, input);
    *read = ir_box_whole(x);
    read->lo[0] = box->lo[0];
    read->hi[0] = box->hi[0];
    for (uint32_t i = 0; i < AXES; i++) {
        const int64_t lo = source(op->attributes, i, box->lo[1 + i]),
                      hi = source(op->attributes, i, box->hi[1 + i] - 1) +
                           number(op->attributes, KERNEL, i),
                      n = x->dims[2 + i];
        read->lo[2 + i] = op_clamp(lo, 0, n);
        read->hi[2 + i] = op_clamp(hi, 0, n);
    }
    if (ir_box_is_empty(read, x->rank)) /* in the padding alone */
        *read = (ir_box){0};
}

/* A row: the window's entries, then zeros. */
static void fill_row(const op_call *call, const int64_t *place)
{
    const ir_attribute *a = call->attributes;
    const op_view *x = &call->in[0], *y = &call->out[0];
    const int64_t channels = x->dims[1], columns = number(a, KERNEL, 1);
    const int64_t window = number(a, KERNEL, 0) * columns * channels;
    int64_t to[4] = {place[0], place[1], place[2], 0};
    for (int64_t e = 0; e < a[ENTRIES].i; e++) {
        const int64_t k = e / channels;
        const int64_t from[4] = {place[0], e % channels, source(a, 0, place[1]) + k / columns,
                                 source(a, 1, place[2]) + k % columns};
        to[3] = e;
        if (e < window && from[2] >= 0 && from[2] < x->dims[2] && from[3] >= 0 &&
            from[3] < x->dims[3])
            walk_copy(y, walk_offset(y, to), 1, x, walk_offset(x, from), 1, 1);
        else
            walk_store_double(y, walk_offset(y, to), 0);
    }
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    int64_t at[IR_MAX_RANK];
    (void)scratch;
    memcpy(at, box->lo, sizeof at);
    do
        fill_row(call, at);
    while (walk_next(box, 3, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("kernel", INTS), SHAPE_NEEDED("size", INTS),
                                          SHAPE_NEEDED("entries", INT), SHAPE_LIST("stride"),
                                          SHAPE_LIST("padding")};

#define CASE(x, rest)                                    \
    {                                                    \
        "input %x : " x "\n%y = unfold(%x) {" rest "}\n" \
    }
/* Two lines of a kernel of 7 x 7 and of smaller ones, images of even and odd sizes, with channels
 * first and last; windows beyond the image; rows that no body takes by words. */
static const op_case cases[] = {
    CASE("bf16[2, 3, 14, 16]", "kernel = [2, 7], size = [10, 8], entries = 64, stride = [2, 2], "
                               "padding = [3, 3]"),
    CASE("f16[1, 4, 9, 13]", "kernel = [2, 5], size = [7, 7], entries = 64, stride = [2, 2], "
                             "padding = [2, 2]"),
    {"input %x : bf16[2, 8, 24, 3]\n%t = transpose(%x) {perm = [0, 3, 1, 2]}\n%y = unfold(%t) "
     "{kernel = [2, 6], size = [6, 11], entries = 64, stride = [2, 2], padding = [3, 2]}\n"},
    CASE("bf16[3, 1, 31, 40]", "kernel = [3, 3], size = [10, 12], entries = 16, stride = [3, 4], "
                               "padding = [0, 9]"),
    CASE("f32[2, 2, 5, 4]", "kernel = [2, 2], size = [6, 3], entries = 9"),
    CASE("i64[1, 3, 4, 4]", "kernel = [1, 1], size = [2, 2], entries = 3, stride = [2, 2]"),
};

const op_def op_unfold = {
    .name = "unfold",
    .summary = "windows of images as rows, side by side",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .effort = effort,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
};
