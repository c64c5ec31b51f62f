/* conv_flat.c - convolution of images whose channels lie last, to a matrix with a row for each
 * place.
 *
 * x [N, H, W, C], w [F, K] -> [N H' W', F] in x's dtype.  kernel: two numbers, and K = kernel[0]
 * kernel[1] C: a row of w holds the kernel's entries in row-major order, the channels of each side
 * by side; its axes may also be given apart, as [F, kernel, C].  stride, padding, dilation: two
 * numbers each, or none for 1, 0 and 1.  scale, bias, shift: [F] or absent; residual: as the
 * result, or absent.
 *
 *   y[r, f] = (sum over k of window[r, k] w[f, k]) scale[f] + bias[f] + shift[f] + residual[r, f]
 *
 * relu: 1, and what is less than 0 becomes 0.
 *
 * Idea: rows in the order of places, and channels last, make the windows rows of a matrix that is
 * never stored, so that the operator is cut and multiplied as linear.  Pass flatten makes it of
 * conv, for GPUs that copy windows by tensor maps.  Cost: 2 K flops an entry of the result.
 */
#include "op/dot.h"
#include "op/images.h"
#include "op/shape.h"
#include "op/walk.h"

/* Inputs and attributes, by index. */
enum { X, W, SCALE, BIAS, SHIFT, RESIDUAL };
enum { KERNEL, STRIDE, PADDING, DILATION, RELU };
/* ROWS: for which the reference code loads a row of w once.  As in linear: rows of a task, columns
 * of one, and how many tasks are so few that they have half of these. */
enum { ROWS = 8, LOT = 128, TASK_COLUMNS = 64, FEW_TASKS = 64 };
/* MOST: entries of an axis of x, MOST_STEPS: of the numbers, so that products of them do not
 * overflow. */
enum { AXES = 2, MOST = 1 << 20, MOST_STEPS = 1 << 12 };

/* The number of attribute `list` for axis i of places. */
static int64_t number(const ir_attribute *attributes, uint32_t list, uint32_t i)
{
    const ir_attribute *a = &attributes[list];
    return i < a->ints.n ? a->ints.at[i] : list != PADDING;
}

/* Places along axis i of the result.  Numbers are bounded before they are multiplied. */
static mpk_status infer_places(mpk_context *cx, const ir_op *op, const ir_tensor *x, uint32_t i,
                               int64_t *out)
{
    const int64_t n = x->dims[1 + i], kernel = number(op->attributes, KERNEL, i),
                  stride = number(op->attributes, STRIDE, i),
                  padding = number(op->attributes, PADDING, i),
                  dilation = number(op->attributes, DILATION, i);
    for (uint32_t list = KERNEL; list <= DILATION; list++)
        CHECK(cx, op->attributes[list].ints.n == 0 || op->attributes[list].ints.n == AXES,
              MPK_ESHAPE, "conv_flat: %s has %u numbers for %d axes",
              op->def->attributes[list].name, op->attributes[list].ints.n, AXES);
    CHECK(cx,
          n < MOST && kernel >= 1 && kernel < MOST_STEPS && stride >= 1 && stride < MOST_STEPS &&
              padding >= 0 && padding < MOST_STEPS && dilation >= 1 && dilation < MOST_STEPS,
          MPK_ESHAPE,
          "conv_flat: kernel %lld, stride %lld, padding %lld or dilation %lld of axis %u is not "
          "possible",
          (long long)kernel, (long long)stride, (long long)padding, (long long)dilation, i);
    *out = images_places(n, kernel, stride, padding, dilation);
    CHECK(cx, *out, MPK_ESHAPE,
          "conv_flat: nothing is left of axis %u, which has %lld entries for a kernel of %lld", i,
          (long long)n, (long long)kernel);
    return MPK_OK;
}

/* Entries of a window. */
static int64_t width_of(const ir_attribute *attributes, int64_t channels)
{
    return number(attributes, KERNEL, 0) * number(attributes, KERNEL, 1) * channels;
}

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *w = shape_input(g, op, W);
    int64_t places[AXES];
    TRY(shape_expect(cx, g, op, X, SHAPE_FLOAT, 4,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, SHAPE_FREE, SHAPE_FREE}));
    TRY(shape_expect_whole(cx, g, op, X));
    TRY(shape_expect_dtype(cx, g, op, W, SHAPE_FLOAT));
    TRY(shape_expect_whole(cx, g, op, W));
    for (uint32_t i = 0; i < AXES; i++)
        TRY(infer_places(cx, op, x, i, &places[i]));
    const int64_t width = width_of(op->attributes, x->dims[3]);
    CHECK(cx, w->rank >= 2 && w->rank <= 4 && ir_elements(w) / w->dims[0] == width, MPK_ESHAPE,
          "conv_flat: w has rank %u and %lld entries a filter, expected %lld", w->rank,
          (long long)(ir_elements(w) / w->dims[0]), (long long)width);
    shape_like(x, out);
    out->rank = 2;
    out->dims[0] = x->dims[0] * places[0] * places[1];
    out->dims[1] = w->dims[0];
    for (uint32_t i = SCALE; i <= SHIFT; i++)
        TRY(shape_expect(cx, g, op, i, SHAPE_FLOAT, 1, &w->dims[0]));
    TRY(shape_expect_whole(cx, g, op, RESIDUAL));
    return shape_expect(cx, g, op, RESIDUAL, SHAPE_FLOAT, 2, out->dims);
}

/* As linear's by boxes: lots of rows stay together, columns are cut between halves of boxes, or
 * between quarters where there are few tasks, and never within eight that are stored together. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *y = &g->tensors.at[op->out[0]];
    const int64_t tasks = (y->dims[0] + LOT - 1) / LOT * (y->dims[1] / TASK_COLUMNS);
    axes[0] = (op_axis){.grain = 1, .tile = LOT, .together = LOT};
    axes[1] = (op_axis){.grain = y->dims[1] % 8 ? 1 : 8,
                        .fastest = 8,
                        .tile = tasks < FEW_TASKS ? TASK_COLUMNS / 2 : TASK_COLUMNS,
                        .even = true};
}

/* A task brings the whole window of each of its rows. */
static int64_t effort(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    const ir_tensor *x = shape_input(g, op, X);
    return (box->hi[0] - box->lo[0]) * width_of(op->attributes, x->dims[3]) *
           (int64_t)ir_dtype_table[x->dtype].block_bytes;
}

/* Where an image's place of the result begins to read along axis i. */
static int64_t source(const ir_attribute *attributes, uint32_t i, int64_t place)
{
    return place * number(attributes, STRIDE, i) - number(attributes, PADDING, i);
}

/* Places of the result along the last axis and the one before it. */
static void count_places(const ir_attribute *attributes, const int64_t *dims, int64_t *places)
{
    for (uint32_t i = 0; i < AXES; i++)
        places[i] =
            images_places(dims[1 + i], number(attributes, KERNEL, i), number(attributes, STRIDE, i),
                          number(attributes, PADDING, i), number(attributes, DILATION, i));
}

/* Of x the images of the box's rows, and of a single image the lines between the first row's window
 * and the last one's. */
static void reads_of_x(const ir_op *op, const ir_tensor *x, const ir_box *box, ir_box *read)
{
    int64_t places[AXES];
    count_places(op->attributes, x->dims, places);
    const int64_t image = places[0] * places[1], first = box->lo[0], last = box->hi[0] - 1;
    read->lo[0] = first / image;
    read->hi[0] = last / image + 1;
    if (read->hi[0] > read->lo[0] + 1)
        return;
    const int64_t span =
        number(op->attributes, DILATION, 0) * (number(op->attributes, KERNEL, 0) - 1);
    const int64_t lo = source(op->attributes, 0, first % image / places[1]),
                  hi = source(op->attributes, 0, last % image / places[1]) + span + 1;
    read->lo[1] = lo < 0 ? 0 : lo;
    read->hi[1] = hi < x->dims[1] ? hi : x->dims[1];
    if (read->lo[1] >= read->hi[1]) /* in the padding alone */
        *read = (ir_box){0};
}

static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == X) {
        reads_of_x(op, shape_input(g, op, X), box, read);
    } else if (input == RESIDUAL) {
        *read = *box;
    } else {
        read->lo[0] = box->lo[1];
        read->hi[0] = box->hi[1];
    }
}

/* Scratch: windows of up to eight rows, and a row of w, as f32. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    const int64_t rows = box->hi[0] - box->lo[0];
    return (size_t)((rows < ROWS ? rows : ROWS) + 1) *
           (size_t)width_of(op->attributes, shape_input(g, op, X)->dims[3]) * sizeof(float);
}

/* The window of a row: zeros where it lies outside of the image. */
static void load_window(const op_call *call, const int64_t *places, int64_t row, float *to)
{
    const ir_attribute *a = call->attributes;
    const op_view *x = &call->in[X];
    const int64_t channels = x->dims[3];
    int64_t at[4] = {row / (places[0] * places[1]), 0, 0, 0};
    for (int64_t i = 0; i < number(a, KERNEL, 0); i++)
        for (int64_t k = 0; k < number(a, KERNEL, 1); k++, to += channels) {
            at[1] = source(a, 0, row / places[1] % places[0]) + i * number(a, DILATION, 0);
            at[2] = source(a, 1, row % places[1]) + k * number(a, DILATION, 1);
            const bool inside =
                at[1] >= 0 && at[1] < x->dims[1] && at[2] >= 0 && at[2] < x->dims[2];
            for (int64_t c = 0; c < channels; c++) {
                at[3] = c;
                to[c] = inside ? op_load(x, walk_offset(x, at)) : 0;
            }
        }
}

/* Filter f, its axes one after the other. */
static void load_filter(const op_view *w, int64_t f, float *to)
{
    ir_box box = {.lo = {f}, .hi = {f + 1}};
    int64_t at[IR_MAX_RANK] = {f};
    for (uint32_t i = 1; i < w->rank; i++)
        box.hi[i] = w->dims[i];
    do
        *to++ = op_load(w, walk_offset(w, at));
    while (walk_next(&box, w->rank, at));
}

/* An entry of a vector of filters, or `otherwise` where it is absent. */
static float of_filter(const op_view *v, int64_t f, float otherwise)
{
    return v->data ? op_load(v, f * v->stride[0]) : otherwise;
}

/* Column f of the result for the n rows from `row` on, whose windows are there. */
static void compute_column(const op_call *call, int64_t row, int64_t n, int64_t f,
                           const float *windows, const float *filter, int64_t width)
{
    const op_view *y = &call->out[0], *residual = &call->in[RESIDUAL];
    const float scale = of_filter(&call->in[SCALE], f, 1),
                bias = of_filter(&call->in[BIAS], f, 0) + of_filter(&call->in[SHIFT], f, 0);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at[2] = {row + i, f};
        float v = dot_rows(windows + i * width, filter, width) * scale + bias;
        if (residual->data)
            v += op_load(residual, walk_offset(residual, at));
        op_store(y, walk_offset(y, at), call->attributes[RELU].i && v < 0 ? 0 : v);
    }
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const int64_t width = width_of(call->attributes, call->in[X].dims[3]);
    float *filter = scratch, *windows = filter + width;
    int64_t places[AXES];
    count_places(call->attributes, call->in[X].dims, places);
    for (int64_t row = box->lo[0]; row < box->hi[0]; row += ROWS) {
        const int64_t n = box->hi[0] - row < ROWS ? box->hi[0] - row : ROWS;
        for (int64_t i = 0; i < n; i++)
            load_window(call, places, row + i, windows + i * width);
        for (int64_t f = box->lo[1]; f < box->hi[1]; f++) {
            load_filter(&call->in[W], f, filter);
            compute_column(call, row, n, f, windows, filter, width);
        }
    }
}

static const op_operand in[] = {{"x", 0},
                                {"w", 0},
                                {"scale", OP_OPTIONAL},
                                {"bias", OP_OPTIONAL},
                                {"shift", OP_OPTIONAL},
                                {"residual", OP_OPTIONAL}},
                        out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_LIST("kernel"), SHAPE_LIST("stride"),
                                          SHAPE_LIST("padding"), SHAPE_LIST("dilation"),
                                          SHAPE_INT("relu", 0)};

#define CASE(x, w, rest)                                                          \
    {                                                                             \
        "input %x : " x "\nconst %w : " w "\n%y = conv_flat(%x, %w) {" rest "}\n" \
    }
/* Images of every size beside that of a box of 64 places, strides, padding and dilation; a kernel
 * that is not square; filters that are no multiple of 64; all that surrounds the product; few rows;
 * channels and filters that no box takes. */
static const op_case cases[] = {
    CASE("bf16[3, 14, 14, 64]", "bf16[72, 576]", "kernel = [3, 3], padding = [1, 1]"),
    {"input %x : bf16[1, 28, 28, 64]\nconst %w : bf16[64, 576]\nconst %b : bf16[64]\n"
     "%y = conv_flat(%x, %w, _, %b) {kernel = [3, 3], padding = [1, 1], stride = [2, 2]}\n"},
    {"input %x : bf16[3, 7, 7, 128]\nconst %w : bf16[64, 3, 3, 128]\nconst %s : f32[64]\nconst %b "
     ": f32[64]\ninput %r : bf16[147, 64]\n%y = conv_flat(%x, %w, %s, %b, _, %r) {kernel = [3, 3], "
     "padding = [1, 1], relu = 1}\n"},
    CASE("bf16[3, 28, 28, 128]", "bf16[136, 128]", "stride = [2, 2]"),
    {"input %x : bf16[1, 30, 17, 64]\nconst %w : bf16[40, 576]\nconst %b : bf16[40]\ninput %s : "
     "bf16[40]\n%y = conv_flat(%x, %w, _, %b, %s) {kernel = [3, 3], padding = [2, 2], dilation = "
     "[2, 2]}\n"},
    {"input %x : bf16[1, 7, 7, 320]\nconst %w : bf16[320, 320, 1, 1]\ninput %r : bf16[49, 320]\n"
     "%y = conv_flat(%x, %w, _, _, _, %r)\n"},
    CASE("bf16[2, 9, 12, 64]", "bf16[24, 640]",
         "kernel = [2, 5], stride = [1, 3], padding = [0, 2], relu = 1"),
    {"input %x : f16[3, 14, 14, 64]\nconst %w : f16[72, 576]\nconst %s : f16[72]\nconst %b : "
     "f32[72]\n%y = conv_flat(%x, %w, %s, _, %b) {kernel = [3, 3], padding = [1, 1], relu = 1}\n"},
    CASE("f32[2, 5, 6, 3]", "f32[7, 12]", "kernel = [2, 2], padding = [1, 0], dilation = [2, 1]"),
    CASE("bf16[1, 5, 6, 24]", "bf16[10, 24]", "padding = [1, 1]"),
};

const op_def op_conv_flat = {
    .name = "conv_flat",
    .summary = "convolution of images with channels last, a row of the result for each place",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .effort = effort,
    .reads = reads,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
