/* body_route_warp.c - the experts of tokens, a warp for each; logits may be carried: by softmax
 * alone (device/task/route_warp.cuh), and by sigmoids, biases and groups (route_shares.cuh).
 *
 * A warp has its token's logits in registers: the first argument of the template is how many words
 * of them a lane has, so that 128 experts in bf16 are 2 words a lane.  The body waits for its input
 * itself, in the kernel's own code. */
#include "gen/body_print.h"

enum { LOGITS, BIAS, IDS = 0, WEIGHTS };
enum { EXPERTS, NORMALIZE, ROUND, SIGMOID, GROUPS, KEPT, BEST, FACTOR };
enum { MOST_EXPERTS = 512, LANES = 32 };

/* Else fp32, or what `accepts` refuses. */
static bool is_bf16(const gen_call *c)
{
    return gen_input(c, LOGITS)->dtype == IR_BF16;
}

/* Softmax over all experts, without biases: what route_warp computes. */
static bool is_plain(const gen_call *c)
{
    const ir_attribute *a = c->op->attributes;
    return !gen_input(c, BIAS) && !a[SIGMOID].i && a[GROUPS].i == 1 && a[BEST].i == 1 &&
           a[FACTOR].f == 1;
}

/* A row of bf16 is read by words of two, hence even rows that begin at even places.  Offsets are of
 * 32 bits: a token's ids take at most twice the bytes of its logits. */
static bool takes_rows(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, LOGITS);
    return x->dims[1] <= MOST_EXPERTS && ir_bytes(x) <= INT32_MAX / 2 &&
           gen_is_dense(x, is_bf16(c) ? IR_BF16 : IR_F32) &&
           !(is_bf16(c) && (x->dims[1] % 2 || x->offset % 2)) &&
           gen_is_dense(gen_output(c, IDS), IR_I32) && gen_is_dense(gen_output(c, WEIGHTS), IR_F32);
}

/* Of a row of logits, for each lane. */
static long long words_of(const gen_call *c)
{
    const int64_t experts = gen_input(c, LOGITS)->dims[1];
    return ((is_bf16(c) ? experts / 2 : experts) + LANES - 1) / LANES;
}

static bool accepts(const gen_call *c)
{
    return is_plain(c) && takes_rows(c);
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    const ir_attribute *a = c->op->attributes;
    text_print(out,
               "MPK_FN void body_%u(const mpk_task &t)\n{\n    route_warp<%lld, %s>(t, %lld, %lld, "
               "%s, %s);\n}\n",
               n, words_of(c), str_bool(is_bf16(c)), (long long)gen_input(c, LOGITS)->dims[1],
               (long long)a[EXPERTS].i, str_bool(a[NORMALIZE].i), str_bool(a[ROUND].i));
    return MPK_OK;
}

/* Biases are loaded before the wait, hence constants; a lane has the rate of a group. */
static bool accepts_shares(const gen_call *c)
{
    const ir_tensor *bias = gen_input(c, BIAS);
    return takes_rows(c) && c->op->attributes[GROUPS].i <= LANES &&
           (!bias || (bias->kind == IR_CONST && gen_is_vector(bias, IR_BF16)));
}

/* What stands in the struct route_rules. */
static mpk_status print_shares(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    const ir_attribute *a = c->op->attributes;
    const ir_tensor *bias = gen_input(c, BIAS);
    int bias_bits = 0;
    if (bias)
        bias_bits = bias->dtype == IR_F32 ? 32 : 16;
    text_print(
        out,
        "MPK_FN void body_%u(const mpk_task &t)\n{\n    static constexpr route_rules rules = "
        "{%lld, %lld, %s, %s, %s, %d, %lld, %lld, %lld, ",
        n, (long long)gen_input(c, LOGITS)->dims[1], (long long)a[EXPERTS].i,
        str_bool(a[NORMALIZE].i), str_bool(a[ROUND].i), str_bool(a[SIGMOID].i), bias_bits,
        (long long)a[GROUPS].i, (long long)a[KEPT].i, (long long)a[BEST].i);
    gen_print_float((float)a[FACTOR].f, out);
    text_print(out, "};\n    route_shares<%lld, %s>(t, rules);\n}\n", words_of(c),
               str_bool(is_bf16(c)));
    return MPK_OK;
}

const gen_body gen_body_route_warp = {.op = "route",
                                      .name = "route_warp",
                                      .needs = GEN_RING,
                                      .rank = 10,
                                      .waits = true,
                                      .carries = 1 << LOGITS,
                                      .accepts = accepts,
                                      .print = print};
const gen_body gen_body_route_shares = {.op = "route",
                                        .name = "route_shares",
                                        .needs = GEN_RING,
                                        .rank = 9,
                                        .waits = true,
                                        .carries = 1 << LOGITS,
                                        .accepts = accepts_shares,
                                        .print = print_shares};
