/* body_linear_tile.c - products of many tokens with streamed weights on warpgroups: linear and logits
 * (device/task/linear_tile.cuh).  Weights are packed as for few tokens, so the graphs of a program share them. */
#include "gen/body_print.h"
#include "rt/rt_lane.h"

enum { X, W0, B0 = 4, NORM = 7, RESIDUAL, LSE, LINEAR_EPS = 0, LINEAR_GLU };
enum { L_X, L_W, L_NORM, L_ROWS, LOGITS_EPS = 0 };
enum {
    FEWEST_TOKENS = 17,
    SCRATCH_BYTES = 2 * 3 * 2 * 64 * 64 + 2 * 64 * 4, /* TILE_SCRATCH */
};

extern const gen_body gen_body_linear_stream;

static bool is_logits(const gen_call *c)
{
    return strcmp(c->op->def->name, "logits") == 0;
}

static bool is_dense(const ir_tensor *t, ir_dtype dtype)
{
    return !t || (t->dtype == dtype && t->stride[t->rank - 1] == 1 &&
                  (t->rank < 2 || t->dims[0] == 1 || t->stride[0] == t->dims[1]));
}

static bool is_vector(const ir_tensor *t)
{
    return !t || ((t->dtype == IR_BF16 || t->dtype == IR_F32) && t->stride[0] == 1);
}

static bool is_weight(const ir_tensor *t)
{
    return !t || (t->kind == IR_CONST && is_dense(t, IR_BF16));
}

static bool accepts(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *y = gen_output(c, 0);
    if ((y->dims[0] < FEWEST_TOKENS && x->dims[0] < FEWEST_TOKENS) || x->rank != 2 || !is_dense(x, IR_BF16) ||
        x->dims[1] % 8 || c->op->n_in + c->op->n_out > RT_PACKED)
        return false;
    if (is_logits(c))
        return is_weight(gen_input(c, L_W)) && is_vector(gen_input(c, L_NORM)) && is_dense(y, IR_F32);
    for (uint32_t i = 0; i < 3; i++)
        if (!is_weight(gen_input(c, W0 + i)) || !is_vector(gen_input(c, B0 + i)))
            return false;
    bool glu = c->op->attributes[LINEAR_GLU].s.n != 0;
    return is_vector(gen_input(c, NORM)) && is_dense(gen_input(c, RESIDUAL), IR_BF16) && is_dense(y, IR_BF16) &&
           !(glu && gen_input(c, RESIDUAL)) && !gen_input(c, LSE);
}

static void pack(const gen_call *c, gen_pack *out)
{
    gen_body_linear_stream.pack(c, out);
}

static void print_linear_shape(const gen_call *c, text *out)
{
    str glu = c->op->attributes[LINEAR_GLU].s;
    const char *activation = str_is(glu, "silu") ? "SILU" : str_is(glu, "gelu") ? "GELU" : glu.n ? "GELU_TANH" : "NONE";
    text_print(out, "%d, ", gen_input(c, NORM) != NULL);
    gen_print_float((float)c->op->attributes[LINEAR_EPS].f, out);
    text_print(out, ", ACTIVATE_%s, %d, %u, %d, {", activation, X, gen_operand_of_output(c->op, 0),
               gen_input(c, RESIDUAL) ? RESIDUAL : -1);
    for (uint32_t i = 0; i < 3; i++)
        text_print(out, "%s%d", i ? ", " : "", gen_input(c, B0 + i) ? (int)(B0 + i) : -1);
    text_print(out, "}, {");
    for (uint32_t i = 0; i < 3; i++)
        text_print(out, "%s%lld", i ? ", " : "", gen_input(c, W0 + i) ? (long long)gen_input(c, W0 + i)->dims[0] : 0ll);
    text_print(out, "}, {");
    for (uint32_t i = 0; i < 3; i++)
        text_print(out, "%s%d", i ? ", " : "", gen_input(c, B0 + i) && gen_input(c, B0 + i)->dtype == IR_F32);
    text_print(out, "}, -1, 0, -1");
}

static void print_logits_shape(const gen_call *c, text *out)
{
    text_print(out, "%d, ", gen_input(c, L_NORM) != NULL);
    gen_print_float((float)c->op->attributes[LOGITS_EPS].f, out);
    text_print(out, ", ACTIVATE_NONE, %d, %u, -1, {-1, -1, -1}, {0, 0, 0}, {0, 0, 0}, %d, %lld, %u", L_X,
               gen_operand_of_output(c->op, 0), gen_input(c, L_ROWS) ? L_ROWS : -1,
               (long long)gen_input(c, L_X)->dims[0], gen_operand_of_output(c->op, 1));
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx, (void)n;
    gen_pack p;
    pack(c, &p);
    text_print(out, "{%lld, %lld, %lld, ", (long long)p.columns, (long long)(p.padded_columns / 32),
               (long long)gen_output(c, 0)->dims[1]);
    if (is_logits(c))
        print_logits_shape(c, out);
    else
        print_linear_shape(c, out);
    text_print(out, "}");
    return MPK_OK;
}

static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine all = {"tile_shape", "linear_tile", "linear_tile_load"};
    (void)c;
    return &all;
}

static uint32_t scratch_bytes(const gen_call *c)
{
    (void)c;
    return SCRATCH_BYTES;
}

const gen_body gen_body_linear_tile = {.op = "linear",
                                       .name = "linear_tile",
                                       .needs = GEN_BULK,
                                       .rank = 10,
                                       .loads = true,
                                       .accepts = accepts,
                                       .print = print,
                                       .routine = routine,
                                       .pack = pack,
                                       .scratch_bytes = scratch_bytes};
const gen_body gen_body_logits_tile = {.op = "logits",
                                       .name = "linear_tile",
                                       .needs = GEN_BULK,
                                       .rank = 10,
                                       .loads = true,
                                       .accepts = accepts,
                                       .print = print,
                                       .routine = routine,
                                       .pack = pack,
                                       .scratch_bytes = scratch_bytes};
