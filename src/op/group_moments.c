/* group_moments.c - mean and spread of the channels of each group, in parts of the places.  x [N,
 * .., C] -> f32 [N, parts, groups, 2].
 *
 * Part p has places p n to p n + n - 1, n the places divided by the parts and rounded up.  Of each
 * part and group the first number is the mean of its entries, the second the sum of the squares of
 * their distances from that mean; both are 0 where a part has no places.  Sums are in double, in
 * row-major order.  group_scale normalises x by them: so tasks share groups that are too few for
 * all workers, and none has to wait for more than its own part.  Cost: two passes.
 */
#include "op/moments.h"
#include "op/shape.h"
#include "op/walk.h"

/* Inputs and attributes, by index. */
enum { X };
enum { GROUPS, PARTS };
enum { ENTRY, PART }; /* axes of the result that are cut */

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    const int64_t groups = op->attributes[GROUPS].i, parts = op->attributes[PARTS].i;
    TRY(shape_expect_dtype(cx, g, op, X, SHAPE_FLOAT));
    CHECK(cx, x->rank >= 2, MPK_ESHAPE,
          "group_moments: input x (%%%.*s) has rank %u, expected 2 or more", STR_ARG(x->name),
          x->rank);
    TRY(moments_check_groups(cx, op->def->name, groups, x->dims[x->rank - 1]));
    CHECK(cx, parts > 0, MPK_ESHAPE, "group_moments: %lld parts", (long long)parts);
    shape_like(x, out);
    out->dtype = IR_F32;
    out->rank = 4;
    out->dims[1] = parts;
    out->dims[2] = groups;
    out->dims[3] = 2;
    return MPK_OK;
}

/* A task has all groups of its parts, whose places it reads once. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g;
    (void)op;
    axes[ENTRY].grain = axes[PART].grain = 1;
}

/* The places of the box's parts are neighbours in their order: along each axis from the first on
 * those from the first to the last one, and all of the axes after the first that has several. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, input);
    const moments_parts p = moments_parts_of(x->dims, x->rank, op->attributes[PARTS].i);
    int64_t lo = box->lo[PART] * p.each, hi = box->hi[PART] * p.each, each = p.places;
    *read = ir_box_whole(x);
    read->lo[0] = box->lo[ENTRY];
    read->hi[0] = box->hi[ENTRY];
    hi = hi < p.places ? hi : p.places;
    for (uint32_t i = 1; i + 1 < x->rank && lo < hi; i++) {
        each /= x->dims[i];
        read->lo[i] = lo / each;
        read->hi[i] = (hi - 1) / each + 1;
        if (read->hi[i] - read->lo[i] > 1)
            return;
        hi -= read->lo[i] * each;
        lo -= read->lo[i] * each;
    }
}

/* The sum of (x - mean)^power over a group's entries of a part, power 1 or 2. */
static double sum_part(const op_view *x, const int64_t *at, const moments_parts *p, int64_t part,
                       int64_t channels, double mean, int power)
{
    double sum = 0;
    for (int64_t i = part * p->each; i < moments_end(p, part); i++) {
        int64_t place[IR_MAX_RANK];
        memcpy(place, at, sizeof place);
        moments_place(x->dims, x->rank, i, place);
        const int64_t from = walk_offset(x, place);
        for (int64_t c = 0; c < channels; c++) {
            const double away = walk_load_double(x, from + c * x->stride[x->rank - 1]) - mean;
            sum += power == 2 ? away * away : away;
        }
    }
    return sum;
}

/* Both numbers of a group of a part. */
static void fill(const op_call *call, int64_t entry, int64_t part, int64_t group)
{
    const op_view *x = &call->in[X], *y = &call->out[0];
    const moments_parts p = moments_parts_of(x->dims, x->rank, y->dims[PART]);
    const int64_t channels = x->dims[x->rank - 1] / y->dims[2],
                  n = (moments_end(&p, part) - part * p.each) * channels;
    int64_t at[IR_MAX_RANK] = {entry}, to[IR_MAX_RANK] = {entry, part, group, 0};
    at[x->rank - 1] = group * channels;
    const double mean = n > 0 ? sum_part(x, at, &p, part, channels, 0, 1) / (double)n : 0;
    const double spread = n > 0 ? sum_part(x, at, &p, part, channels, mean, 2) : 0;
    walk_store_double(y, walk_offset(y, to), mean);
    walk_store_double(y, walk_offset(y, to) + y->stride[3], spread);
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    for (int64_t entry = box->lo[ENTRY]; entry < box->hi[ENTRY]; entry++)
        for (int64_t part = box->lo[PART]; part < box->hi[PART]; part++)
            for (int64_t group = box->lo[2]; group < box->hi[2]; group++)
                fill(call, entry, part, group);
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("groups", INT), SHAPE_NEEDED("parts", INT)};
/* Pieces of eight channels across groups, and a last part with fewer places; more parts than places
 * fill; channels that are no pieces, and an axis of places that is none; a matrix. */
static const op_case cases[] = {
    {"input %x : bf16[2, 9, 7, 40]\n%y = group_moments(%x) {groups = 4, parts = 5}\n"},
    {"input %x : f16[1, 6, 48] \n%y = group_moments(%x) {groups = 3, parts = 4}\n"},
    {"input %x : f32[3, 5, 3, 6] live=tokens\n%y = group_moments(%x) {groups = 2, parts = 4}\n"},
    {"input %x : bf16[2, 16]\n%y = group_moments(%x) {groups = 2, parts = 2}\n"},
    {"input %x : bf16[1, 64, 33, 64]\n%y = group_moments(%x) {groups = 32, parts = 3}\n"},
};

const op_def op_group_moments = {
    .name = "group_moments",
    .summary = "means and spreads of groups of channels, in parts of the places",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
};
