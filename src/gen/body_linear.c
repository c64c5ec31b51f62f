/* body_linear.c - generic bodies of products with weights, linear, sum_linear and logits
 * (device/task/linear.cuh), and of attention_fold (device/task/fold.cuh).
 *
 * They take any plain dtypes and strides on any architecture, and are what faster products are
 * compared with.  A linear with two weights, in outline:
 *
 *   static constexpr linear_source source = {in_x, in_norm, {-1}, {-1}, 9.9999999999999995e-07,
 *                                            false};
 *   static constexpr linear_end end0 = {in_b0, {-1}, in_residual, out_y, ...};
 *   linear_weight<4>(t, source, in_w0, in_w1, end0, 0);
 *   static constexpr linear_end end1 = ...;
 *   linear_weight<4>(t, source, in_w1, in_w1, end1, 4096); */
#include "gen/body_print.h"

enum { X, W0, W1, W2, B0, B1, B2, NORM, RESIDUAL, TERMS = RESIDUAL };
enum { EPS, GLU, ACT = 3, FACTOR, CENTRED, LOGITS_FACTOR = 1, LOGITS_CAP };

/* Tokens that a pass over the weights serves: no more than the graph has, since each costs
 * registers whether it is alive or not. */
static int tokens_at_once(const gen_call *c)
{
    return gen_rows_at_once(gen_output(c, 0)->dims[0]);
}

/* As enum in linear.cuh: factors, two results of a group, tile. */
static uint32_t scratch_bytes(const gen_call *c)
{
    (void)c;
    return GEN_REDUCE_BYTES + 64 + 2 * 8 * 4 * 8 * 4 + 8 * 256 * 4;
}

/* Without a gate each weight is a call of its own, for its range of the result's columns; with one
 * both weights are read in one pass. */
static mpk_status print_linear(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    str glu = c->op->attributes[GLU].s;
    int64_t column = 0;
    gen_print_head(c, n, out);
    text_print(out,
               "    static constexpr linear_source source = {in_x, in_norm, in_norm_bias, {-1}, ");
    gen_print_double(c->op->attributes[EPS].f, out);
    text_print(out, ", %s};\n", str_bool(c->op->attributes[CENTRED].i));
    for (uint32_t i = 0; i < 3 && gen_input(c, W0 + i) && (i == 0 || !glu.n); i++) {
        text_print(out,
                   "    static constexpr linear_end end%u = {in_b%u, %s, in_residual, out_y, "
                   "ACTIVATE_%s, ACTIVATE_%s, ",
                   i, i, glu.n ? "in_b1" : "{-1}", gen_glu_name(glu),
                   gen_glu_name(c->op->attributes[ACT].s));
        gen_print_float((float)c->op->attributes[FACTOR].f, out);
        text_print(out, ", 0};\n    linear_weight<%d>(t, source, in_w%u, in_w1, end%u, %lld);\n",
                   tokens_at_once(c), i, i, (long long)column);
        column += gen_input(c, W0 + i)->dims[0];
    }
    text_print(out, "}\n");
    return MPK_OK;
}

/* A product like linear's, of the rows that in_rows names, and then the largest of each box of
 * columns (peaks), which argmax and sample read in place of all logits. */
static mpk_status print_logits(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    text_print(out, "    static constexpr linear_source source = {in_x, in_norm, {-1}, in_rows, ");
    gen_print_double(c->op->attributes[EPS].f, out);
    text_print(out, ", false};\n    static constexpr linear_end end = {{-1}, {-1}, {-1}, "
                    "out_logits, ACTIVATE_NONE, "
                    "ACTIVATE_NONE, ");
    gen_print_float((float)c->op->attributes[LOGITS_FACTOR].f, out);
    text_print(out, ", ");
    gen_print_float((float)c->op->attributes[LOGITS_CAP].f, out);
    text_print(out,
               "};\n"
               "    linear_weight<%d>(t, source, in_w, in_w, end, 0);\n    mpk_sync();\n"
               "    logits_peaks(t, out_logits, out_peaks);\n}\n",
               tokens_at_once(c));
    return MPK_OK;
}

GEN_PRINTER(attention_fold, "attention_fold_run", "")

/* As print_linear, of a sum: its terms after x, and what the box has of it. */
static mpk_status print_sum_linear(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    str glu = c->op->attributes[GLU].s;
    int64_t column = 0;
    gen_print_head(c, n, out);
    text_print(out, "    static constexpr linear_source source = {in_x, in_norm, {-1}, {-1}, ");
    gen_print_double(c->op->attributes[EPS].f, out);
    text_print(out, ", false, {");
    for (uint32_t i = TERMS; i < c->op->n_in; i++)
        text_print(out, "%sin_terms%u", i > TERMS ? ", " : "", i - TERMS);
    text_print(out, "}, %u};\n", c->op->n_in - TERMS);
    for (uint32_t i = 0; i < 3 && gen_input(c, W0 + i) && (i == 0 || !glu.n); i++) {
        text_print(out,
                   "    static constexpr linear_end end%u = {in_b%u, %s, {-1}, out_y, ACTIVATE_%s, "
                   "ACTIVATE_NONE, 1, 0};\n"
                   "    linear_weight<%d>(t, source, in_w%u, in_w1, end%u, %lld);\n",
                   i, i, glu.n ? "in_b1" : "{-1}", gen_glu_name(glu), tokens_at_once(c), i, i,
                   (long long)column);
        column += gen_input(c, W0 + i)->dims[0];
    }
    text_print(out, "    linear_put_sum(t, source, out_sum, %lld);\n}\n",
               (long long)gen_output(c, 0)->dims[1]);
    return MPK_OK;
}

const gen_body gen_body_sum_linear =
    GEN_BODY("sum_linear", "linear", print_sum_linear, scratch_bytes);
const gen_body gen_body_linear = GEN_BODY("linear", "linear", print_linear, scratch_bytes);
const gen_body gen_body_logits = GEN_BODY("logits", "linear", print_logits, scratch_bytes);
const gen_body gen_body_attention_fold =
    GEN_BODY("attention_fold", "fold", print_attention_fold, NULL);
