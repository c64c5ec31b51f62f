/* body_conv_tile.c - convolutions of images as products of many rows on warpgroups: conv_flat by
 * the code of linear (device/task/linear_tile.cuh), whose boxes of x are windows of an image here
 * (device/task/box_image.cuh).
 *
 * A row is a place, and its columns are the entries of its window: for each entry of the kernel the
 * channels there.  So 64 columns are 64 channels of one entry, and a box brings them of 64 places
 * by a tensor map that knows the image (src/cuda/boxes.c); all else is as in products of many
 * tokens.  There is no code that copies windows another way, so the body is taken only where the
 * host makes maps (gen_call.maps), and in a call where x stays where it is (pass flatten). */
#include "gen/body_print.h"
#include "gen/image_of.h"
#include "op/images.h"
#include "rt/rt_lane.h"
#include "shape/linear_tile_shape.h"

enum { X, W, SCALE, BIAS, SHIFT, RESIDUAL };
enum { KERNEL, STRIDE, PADDING, DILATION, RELU };

extern const gen_body gen_body_linear_tile;

static int number(const ir_op *op, uint32_t list, uint32_t i)
{
    const ir_attribute *a = &op->attributes[list];
    return i < a->ints.n ? (int)a->ints.at[i] : list != PADDING;
}

gen_image gen_image_of(const ir_graph *g, const ir_op *op)
{
    const ir_tensor *x = &g->tensors.at[op->in[X]];
    gen_image m = {.n = (int)x->dims[0], .channels = (int)x->dims[3]};
    for (uint32_t i = 0; i < 2; i++) {
        m.in[i] = (int)x->dims[1 + i];
        m.kernel[i] = number(op, KERNEL, i);
        m.stride[i] = number(op, STRIDE, i);
        m.padding[i] = number(op, PADDING, i);
        m.dilation[i] = number(op, DILATION, i);
        m.out[i] =
            (int)images_places(m.in[i], m.kernel[i], m.stride[i], m.padding[i], m.dilation[i]);
    }
    return m;
}

static bool fits_map(const gen_image *m)
{
    bool fits = true;
    for (int i = 0; i < 2; i++)
        fits = fits && images_fit_map(m->kernel[i], m->stride[i], m->padding[i], m->dilation[i]);
    return fits;
}

/* Boxes are of 64 channels, and columns of y are stored eight at a time. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *y = gen_output(c, 0);
    const gen_image m = gen_image_of(c->ir, c->op);
    bool vectors = true;
    for (uint32_t i = SCALE; i <= SHIFT; i++)
        vectors = vectors && gen_is_vector(gen_input(c, i), c->halves) &&
                  (!gen_input(c, i) || gen_is_dense(gen_input(c, i), gen_input(c, i)->dtype));
    return c->maps && fits_map(&m) && x->live == IR_ALL && y->live == IR_ALL &&
           gen_is_dense(x, c->halves) && m.channels % 64 == 0 && y->dims[1] % 8 == 0 &&
           y->dims[0] < INT32_MAX / 2 && gen_is_streamed(gen_input(c, W), c->halves) && vectors &&
           gen_is_dense(y, c->halves) && gen_is_dense(gen_input(c, RESIDUAL), c->halves);
}

static void pack(const gen_call *c, gen_pack *out)
{
    const gen_image m = gen_image_of(c->ir, c->op);
    *out = (gen_pack){.n_weights = 1,
                      .dtype = c->halves,
                      .w = {c->op->in[W]},
                      .scale = IR_NONE,
                      .shift = IR_NONE,
                      .order = GEN_ROWS,
                      .rows = gen_output(c, 0)->dims[1],
                      .columns = (int64_t)m.kernel[0] * m.kernel[1] * m.channels};
    gen_pad_pack(out, 8, STREAM_UNIT_COLUMNS);
}

/* The initializer of a vector: its operand, and 1 if it is f32; -1: it is absent. */
static void print_vector(const gen_call *c, uint32_t input, text *out)
{
    const ir_tensor *t = gen_input(c, input);
    text_print(out, "{%d, %d}, ", t ? (int)input : -1, t && t->dtype == IR_F32);
}

/* The initializer of a tile_shape: a product without norm, gate and activation, then its image. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const gen_image m = gen_image_of(c->ir, c->op);
    gen_pack p;
    (void)cx, (void)n;
    pack(c, &p);
    text_print(out, "{%lld, %lld, %lld, 1, 0, 1, ACTIVATE_NONE, ACTIVATE_NONE, %d, %u, %d, ",
               (long long)p.columns, (long long)(p.padded_columns / 32), (long long)p.rows, X,
               gen_operand_of_output(c->op, 0), gen_input(c, RESIDUAL) ? RESIDUAL : -1);
    text_print(out, "{-1, -1, -1}, {%lld, 0, 0}, {0, 0, 0}, -1, 0, -1, 0, 0,\n     {%d, %d, %lld, ",
               (long long)p.rows, m.channels, m.kernel[1] * m.dilation[1],
               (long long)gen_output(c, 0)->dims[0]);
    text_print(out, "{%d, %d}, {%d, %d}, {%d, %d}, {%d, %d}, ", m.out[0], m.out[1], m.stride[0],
               m.stride[1], m.padding[0], m.padding[1], m.dilation[0], m.dilation[1]);
    for (uint32_t i = SCALE; i <= SHIFT; i++)
        print_vector(c, i, out);
    text_print(out, "%d}}", c->op->attributes[RELU].i != 0);
    return MPK_OK;
}

/* That of linear, which has one call in a kernel. */
static const gen_routine *routine(const gen_call *c)
{
    return gen_body_linear_tile.routine(c);
}

static uint32_t scratch_bytes(const gen_call *c)
{
    return TILE_SCRATCH_OF(c->needs & GEN_ROOM) + TILE_BIASES_OF(1); /* and factors */
}

/* The loops of all passes of a task, whatever its rows (tile_plan.cuh); one of at most 128 rows may
 * share its tile (gen/sharing.h). */
static uint64_t forms(const gen_call *c, const ir_box *box, gen_maps maps)
{
    const int groups = (int)((box->hi[1] + 7) / 8 - box->lo[1] / 8),
              per_pass = tile_groups_of_pass(1, groups, 1, 0);
    uint64_t bits = 0;
    (void)c, (void)maps;
    for (int at = 0; at < groups; at += per_pass) {
        const int n = groups - at < per_pass ? groups - at : per_pass;
        bits |= UINT64_C(1) << (tile_loop_of(1, 1, 1, 0, n, 0) * TILE_ENDS + TILE_END_PLAIN);
    }
    if (box->hi[0] - box->lo[0] <= RT_PART_TOKENS)
        bits |= UINT64_C(1) << TILE_FORM_PARTS;
    return bits;
}

const gen_body gen_body_conv_tile = {.op = "conv_flat",
                                     .name = "linear_tile",
                                     .needs = GEN_RING | GEN_WGMMA,
                                     .rank = 10,
                                     .many = GEN_MANY_PRODUCTS,
                                     .waits = true,
                                     .loads = true,
                                     .maps = true,
                                     .by_maps = true,
                                     .images = true,
                                     .parts = true,
                                     .accepts = accepts,
                                     .print = print,
                                     .routine = routine,
                                     .pack = pack,
                                     .scratch_bytes = scratch_bytes,
                                     .forms = forms};
