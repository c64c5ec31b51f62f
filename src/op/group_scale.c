/* group_scale.c - group_norm by moments that group_moments has found.  x [N, .., C], moments f32
 * [N, parts, groups, 2]; weight, bias [C] or absent -> x's shape and dtype.
 *
 * act((x - mean) / sqrt(variance + eps) * weight + bias), act one of the activations of linear, or
 * none.  The mean of a group is that of its parts', each counted by its entries; its variance has
 * the parts' spreads and the squares of the distances of their means from it.  In double, rounded
 * once.  Any cut along places has the same bits.  Cost: one pass, and the moments of an entry for
 * each task.
 */
#include <math.h>

#include "op/activate.h"
#include "op/moments.h"
#include "op/shape.h"
#include "op/walk.h"

/* Inputs and attributes, by index. */
enum { X, MOMENTS, WEIGHT, BIAS };
enum { EPS, ACT };

/* Parts and groups are those of the moments. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *m = shape_input(g, op, MOMENTS);
    const str act = op->attributes[ACT].s;
    TRY(shape_expect_dtype(cx, g, op, X, SHAPE_FLOAT));
    CHECK(cx, x->rank >= 2, MPK_ESHAPE,
          "group_scale: input x (%%%.*s) has rank %u, expected 2 or more", STR_ARG(x->name),
          x->rank);
    TRY(shape_expect(cx, g, op, MOMENTS, 1 << IR_F32, 4,
                     (int64_t[]){x->dims[0], SHAPE_FREE, SHAPE_FREE, 2}));
    TRY(shape_expect_live(cx, g, op, MOMENTS, x->live));
    const int64_t *channels = &x->dims[x->rank - 1];
    CHECK(cx, m->dims[1] > 0, MPK_ESHAPE, "group_scale: moments of no parts");
    TRY(moments_check_groups(cx, op->def->name, m->dims[2], *channels));
    TRY(shape_expect(cx, g, op, WEIGHT, SHAPE_FLOAT, 1, channels));
    TRY(shape_expect(cx, g, op, BIAS, SHAPE_FLOAT, 1, channels));
    CHECK(cx,
          !act.n || str_is(act, "silu") || str_is(act, "gelu") || str_is(act, "gelu_tanh") ||
              str_is(act, "quick_gelu") || str_is(act, "relu"),
          MPK_EARG, "group_scale: act is \"%.*s\"", STR_ARG(act));
    shape_like(x, out);
    return MPK_OK;
}

/* What the box reads of the moments are those of its entries; weight and bias have one axis, the
 * channels. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const uint32_t last = shape_input(g, op, X)->rank - 1;
    *read = *box;
    if (input == X)
        return;
    if (input == MOMENTS) {
        *read = ir_box_whole(shape_input(g, op, MOMENTS));
        read->lo[0] = box->lo[0];
        read->hi[0] = box->hi[0];
        return;
    }
    read->lo[0] = box->lo[last];
    read->hi[0] = box->hi[last];
}

/* Mean and variance of a group of an entry, from those of its parts. */
static void join(const op_call *call, int64_t entry, int64_t group, double *mean, double *variance)
{
    const op_view *x = &call->in[X], *m = &call->in[MOMENTS];
    const moments_parts p = moments_parts_of(x->dims, x->rank, m->dims[1]);
    const int64_t channels = x->dims[x->rank - 1] / m->dims[2];
    const double n = (double)(p.places * channels);
    for (int power = 1; power <= 2; power++) {
        double sum = 0;
        for (int64_t part = 0; part < m->dims[1]; part++) {
            const int64_t at[IR_MAX_RANK] = {entry, part, group, 0}, from = walk_offset(m, at);
            const double of = (double)((moments_end(&p, part) - part * p.each) * channels),
                         middle = walk_load_double(m, from), away = middle - *mean;
            if (power == 1)
                sum += of * middle;
            else
                sum += walk_load_double(m, from + m->stride[3]) + of * away * away;
        }
        *(power == 1 ? mean : variance) = sum / n;
    }
}

/* One channel of the box, all its places of an entry. */
static void scale(const op_call *call, const ir_box *channel, double mean, double factor)
{
    const op_view *x = &call->in[X], *y = &call->out[0], *weight = &call->in[WEIGHT],
                  *bias = &call->in[BIAS];
    const str act = call->attributes[ACT].s;
    const int64_t c = channel->lo[x->rank - 1];
    const double by = weight->data ? walk_load_double(weight, c * weight->stride[0]) : 1;
    const double more = bias->data ? walk_load_double(bias, c * bias->stride[0]) : 0;
    int64_t at[IR_MAX_RANK];
    memcpy(at, channel->lo, sizeof at);
    do {
        const double value = (walk_load_double(x, walk_offset(x, at)) - mean) * factor * by + more;
        walk_store_double(y, walk_offset(y, at),
                          act.n ? (double)activate_named(act, (float)value) : value);
    } while (walk_next(channel, x->rank, at));
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[X];
    const uint32_t last = x->rank - 1;
    const int64_t channels = x->dims[last] / call->in[MOMENTS].dims[2];
    if (!ir_box_elements(box, x->rank))
        return;
    for (int64_t entry = box->lo[0]; entry < box->hi[0]; entry++)
        for (int64_t c = box->lo[last]; c < box->hi[last]; c++) {
            ir_box channel = *box;
            double mean = 0, variance = 0;
            join(call, entry, c / channels, &mean, &variance);
            channel.lo[0] = entry;
            channel.hi[0] = entry + 1;
            channel.lo[last] = c;
            channel.hi[last] = c + 1;
            scale(call, &channel, mean, 1 / sqrt(variance + call->attributes[EPS].f));
        }
}

static const op_operand in[] = {{"x", 0},
                                {"moments", 0},
                                {"weight", OP_OPTIONAL},
                                {"bias", OP_OPTIONAL}},
                        out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("eps", 1e-5), SHAPE_WORD("act", "")};
/* Pieces of eight channels across groups, and a last part with fewer places; more parts than places
 * fill, without weight; channels that are no pieces; a matrix. */
static const op_case cases[] = {
    {"input %x : bf16[2, 9, 7, 40]\ninput %m : f32[2, 5, 4, 2]\nconst %w : bf16[40]\nconst %b : "
     "f32[40]\n%y = group_scale(%x, %m, %w, %b) {act = \"silu\", eps = 0.25}\n"},
    {"input %x : f16[1, 6, 48]\ninput %m : f32[1, 4, 3, 2]\n%y = group_scale(%x, %m, _, _) {eps = "
     "0.5}\n"},
    {"input %x : f32[3, 5, 3, 6] live=tokens\ninput %m : f32[3, 4, 2, 2] live=tokens\nconst %b : "
     "bf16[6]\n%y = group_scale(%x, %m, _, %b) {act = \"relu\"}\n"},
    {"input %x : bf16[2, 16]\ninput %m : f32[2, 2, 2, 2]\nconst %w : f16[16]\n%y = "
     "group_scale(%x, %m, %w, _) {act = \"gelu\"}\n"},
    {"input %x : bf16[1, 33, 17, 64]\ninput %m : f32[1, 3, 32, 2]\nconst %w : bf16[64]\nconst %b "
     ": bf16[64]\n%y = group_scale(%x, %m, %w, %b)\n"},
};

/* Spreads are not negative. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    float *moments = data;
    (void)seed;
    for (int64_t i = 1; input == MOMENTS && i < ir_elements(shape_input(g, op, input)); i += 2)
        moments[i] = fabsf(moments[i]) * 64;
}

const op_def op_group_scale = {
    .name = "group_scale",
    .summary = "group_norm by moments that were found before, and an activation",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_rows,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
