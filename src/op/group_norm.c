/* group_norm.c - channels in groups, each normalised over its channels and all places.  x [N, C,
 * ..], or with `last` [N, .., C]; weight, bias [C] or absent -> x's shape and dtype.
 *
 * (x - mean) / sqrt(variance + eps) * weight + bias.  Mean and variance are sums in double in
 * row-major order, the variance around the mean.  A group of a batch entry is never cut, so the
 * order of the sums does not depend on tasks.  Cost: three passes.
 */
#include <math.h>

#include "op/shape.h"
#include "op/walk.h"

/* Inputs and attributes, by index. */
enum { X, WEIGHT, BIAS };
enum { GROUPS, EPS, LAST };

/* The axis of the channels. */
static uint32_t channel_axis(uint32_t rank, const ir_attribute *a)
{
    return a[LAST].i ? rank - 1 : 1;
}

/* Weight and bias have an entry for each channel, not for each group. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    int64_t groups = op->attributes[GROUPS].i;
    TRY(shape_expect_dtype(cx, g, op, X, SHAPE_REAL_NUMBER));
    CHECK(cx, x->rank >= 2, MPK_ESHAPE,
          "group_norm: input x (%%%.*s) has rank %u, expected 2 or more", STR_ARG(x->name),
          x->rank);
    const int64_t *channels = &x->dims[channel_axis(x->rank, op->attributes)];
    CHECK(cx, groups > 0 && *channels % groups == 0, MPK_ESHAPE,
          "group_norm: %lld groups for %lld channels", (long long)groups, (long long)*channels);
    TRY(shape_expect(cx, g, op, WEIGHT, SHAPE_REAL_NUMBER, 1, channels));
    TRY(shape_expect(cx, g, op, BIAS, SHAPE_REAL_NUMBER, 1, channels));
    shape_like(x, out);
    return MPK_OK;
}

/* Cuts fall between groups. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *x = shape_input(g, op, X);
    const uint32_t channels = channel_axis(x->rank, op->attributes);
    axes[0].grain = 1;
    axes[channels].grain = x->dims[channels] / op->attributes[GROUPS].i;
}

/* Weight and bias have one axis, the channels. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const uint32_t channels = channel_axis(shape_input(g, op, X)->rank, op->attributes);
    *read = *box;
    if (input == X)
        return;
    read->lo[0] = box->lo[channels];
    read->hi[0] = box->hi[channels];
}

/* The sum of (x - mean)^power over a group, power 1 or 2, in row-major order. */
static double sum_group(const op_view *x, const ir_box *group, double mean, int power)
{
    double sum = 0;
    int64_t at[IR_MAX_RANK];
    memcpy(at, group->lo, sizeof at);
    do {
        double away = walk_load_double(x, walk_offset(x, at)) - mean;
        sum += power == 2 ? away * away : away;
    } while (walk_next(group, x->rank, at));
    return sum;
}

/* Normalise one group: sum_group(.., 0, 1) adds its entries, (.., mean, 2) the squares of their
 * distances from the mean. */
static void normalise(const op_call *call, const ir_box *group)
{
    const op_view *x = &call->in[X], *y = &call->out[0], *weight = &call->in[WEIGHT],
                  *bias = &call->in[BIAS];
    const uint32_t channels = channel_axis(x->rank, call->attributes);
    double n = (double)ir_box_elements(group, x->rank), mean = sum_group(x, group, 0, 1) / n;
    double factor = 1 / sqrt(sum_group(x, group, mean, 2) / n + call->attributes[EPS].f);
    int64_t at[IR_MAX_RANK];
    memcpy(at, group->lo, sizeof at);
    do {
        double value = (walk_load_double(x, walk_offset(x, at)) - mean) * factor;
        if (weight->data)
            value *= walk_load_double(weight, at[channels] * weight->stride[0]);
        if (bias->data)
            value += walk_load_double(bias, at[channels] * bias->stride[0]);
        walk_store_double(y, walk_offset(y, at), value);
    } while (walk_next(group, x->rank, at));
}

/* A box has whole groups (axes), so each is normalised by one task. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const uint32_t axis = channel_axis(call->in[X].rank, call->attributes);
    int64_t channels = call->in[X].dims[axis] / call->attributes[GROUPS].i;
    ir_box group = *box;
    for (int64_t n = box->lo[0]; n < box->hi[0]; n++)
        for (int64_t c = box->lo[axis]; c < box->hi[axis]; c += channels) {
            group.lo[0] = n;
            group.hi[0] = n + 1;
            group.lo[axis] = c;
            group.hi[axis] = c + channels;
            normalise(call, &group);
        }
}

static const op_operand in[] = {{"x", 0}, {"weight", OP_OPTIONAL}, {"bias", OP_OPTIONAL}},
                        out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("groups", INT), SHAPE_REAL("eps", 1e-5),
                                          SHAPE_INT("last", 0)};
/* Three groups with weight and bias; one group (a layer norm over all places); no places at all;
 * channels last, and more entries of a group than threads have loads in flight. */
static const op_case cases[] = {
    {"input %x : f32[7, 6, 5] live=tokens\nconst %w : f32[6]\nconst %b : bf16[6]\n%y = "
     "group_norm(%x, %w, %b) {groups "
     "= 3}\n"},
    {"input %x : bf16[2, 4, 3, 5]\n%y = group_norm(%x, _, _) {groups = 1, eps = 0.001}\n"},
    {"input %x : f64[2, 4]\nconst %b : f64[4]\n%y = group_norm(%x, _, %b) {groups = 2}\n"},
    {"input %x : bf16[2, 23, 31, 12]\nconst %w : bf16[12]\nconst %b : f32[12]\n%y = "
     "group_norm(%x, %w, %b) {groups = 3, last = 1}\n"},
};

const op_def op_group_norm = {
    .name = "group_norm",
    .summary = "(x - mean) / sqrt(variance + eps) * weight + bias over groups of channels",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
};
