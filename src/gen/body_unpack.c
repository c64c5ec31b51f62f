/* body_unpack.c - weights in GGUF blocks as a matrix of bf16 (device/task/unpack.cuh).  They are
 * packed as for products of few tokens (body_linear_stream.c), so the graphs of a program share
 * them.
 *
 * An instance, of blocks with a scale and a minimum for 32 columns in 4 bits:
 *
 *   constexpr unpack_use use = {4096, 32, 4, 0.0f};
 *   unpack_run<RT_BLOCKS_4K>(t, use);
 */
#include "gen/body_product.h"

enum { UNPACK_W0, UNPACK_WEIGHTS = 3 };

static const char *const forms[RT_BLOCKS_FORMS] = {
    [RT_BLOCKS_4] = "4", [RT_BLOCKS_4K] = "4K", [RT_BLOCKS_8] = "8", [RT_BLOCKS_8K] = "8K"};

static uint32_t form_of_use(const gen_call *c, int *zero)
{
    const uint32_t form = gen_form_of_weights(c, UNPACK_W0, UNPACK_WEIGHTS, zero);
    return forms[form] ? form : (uint32_t)RT_BLOCKS_NONE;
}

/* Constants whose rows follow each other, as they are packed. */
static bool accepts(const gen_call *c)
{
    int zero;
    bool fits = form_of_use(c, &zero) != RT_BLOCKS_NONE && c->halves == IR_BF16 &&
                gen_is_dense(gen_output(c, 0), IR_BF16);
    for (uint32_t i = 0; fits && i < UNPACK_WEIGHTS; i++) {
        const ir_tensor *w = gen_input(c, UNPACK_W0 + i);
        fits = !w || (w->kind == IR_CONST && w->stride[1] == 1 && w->stride[0] == w->dims[1]);
    }
    return fits;
}

/* The copy of linear_stream. */
static void pack(const gen_call *c, gen_pack *out)
{
    const bool paired = c->op->attributes[0].i;
    int zero;
    *out = (gen_pack){.dtype = c->halves,
                      .scale = IR_NONE,
                      .shift = IR_NONE,
                      .order = paired ? GEN_PAIRED : GEN_ROWS,
                      .form = form_of_use(c, &zero),
                      .rows = gen_output(c, 0)->dims[0],
                      .columns = gen_output(c, 0)->dims[1]};
    for (uint32_t i = 0; i < UNPACK_WEIGHTS && gen_input(c, UNPACK_W0 + i); i++)
        out->w[out->n_weights++] = c->op->in[UNPACK_W0 + i];
    gen_pad_pack(out, paired ? 16 : 8, RT_SLAB_COLUMNS);
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_pack p;
    int zero;
    const char *form = forms[form_of_use(c, &zero)];
    pack(c, &p);
    text_print(out,
               "static __device__ __noinline__ void body_%u(const mpk_task &t)\n{\n"
               "    static constexpr unpack_use use = {%lld, %lld, %u, ",
               n, (long long)p.columns, (long long)(p.padded_columns / RT_PIECE_COLUMNS),
               gen_operand_of_output(c->op, 0));
    gen_print_float((float)zero, out);
    text_print(out, "};\n    unpack_run<RT_BLOCKS_%s>(t, use);\n}\n", form);
    return MPK_OK;
}

const gen_body gen_body_unpack = {.op = "unpack",
                                  .name = "unpack",
                                  .needs = GEN_RING,
                                  .rank = 10,
                                  .accepts = accepts,
                                  .print = print,
                                  .pack = pack};
