/* body_experts.c - generic bodies of mixtures of experts, route and expert_linear
 * (device/task/experts.cuh).
 *
 * They take any plain dtypes and strides.  An instance of expert_linear for 4 tokens, gated:
 *
 *   static constexpr expert_use use = {in_x, in_ids, in_w0, in_w1, in_scale, ..., ACTIVATE_SILU};
 *   expert_linear_run<4, 4>(t, use); */
#include "gen/body_print.h"

enum { EXPERTS, NORMALIZE, ROUND, SIGMOID, GROUPS, KEPT, BEST, FACTOR };
enum { X, IDS, W0, W1, SCALE, RESIDUAL, NORM };
enum { GLU, EPS, ACTIVATIONS, LIMIT };

/* As enum in experts.cuh: experts of pairs and their order, two results of a group, tile, kept
 * pairs, factors. */
static uint32_t scratch_bytes(const gen_call *c)
{
    return 256 * 4 + 256 * 2 + 2 * 4 * 8 * 8 * 4 + 8 * 256 * 4 + 256 * 8 * 4 +
           (gen_input(c, NORM) ? 256 * 4 : 0);
}

/* A token goes to an expert once, so no more pairs share an expert than the graph has tokens. */
static int pairs_at_once(const gen_call *c)
{
    return gen_rows_at_once(gen_output(c, 0)->dims[0]);
}

/* Where pairs are summed a team takes one row of the weight, so that the kept pairs fit the
 * scratch; else four. */
static mpk_status print_expert_linear(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    text_print(out, "    static constexpr expert_use use = {in_x, in_ids, in_w0, in_w1, in_scale, "
                    "in_residual, in_norm, "
                    "in_b0, in_b1, out_y, ");
    gen_print_double(c->op->attributes[EPS].f, out);
    text_print(out, ", ");
    gen_print_float((float)c->op->attributes[LIMIT].f, out);
    text_print(out, ", ACTIVATE_%s};\n    expert_linear_run<%d, %d>(t, use);\n}\n",
               gen_glu_name(c->op->attributes[GLU].s), pairs_at_once(c),
               gen_input(c, SCALE) ? 1 : 4);
    return MPK_OK;
}

/* How experts are chosen is known when the instance is compiled. */
static mpk_status print_route(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const ir_attribute *a = c->op->attributes;
    (void)cx;
    gen_print_head(c, n, out);
    text_print(
        out,
        "    static constexpr route_use use = {in_logits, in_bias, out_ids, out_weights, %s, "
        "%s, %s, %lld, %lld, %lld, ",
        str_bool(a[NORMALIZE].i), str_bool(a[ROUND].i), str_bool(a[SIGMOID].i),
        (long long)a[GROUPS].i, (long long)a[KEPT].i, (long long)a[BEST].i);
    gen_print_float((float)a[FACTOR].f, out);
    text_print(out, "};\n    route_run(t, use);\n}\n");
    return MPK_OK;
}

const gen_body gen_body_route = GEN_BODY("route", "experts", print_route, gen_scratch_reduce);
const gen_body gen_body_expert_linear =
    GEN_BODY("expert_linear", "experts", print_expert_linear, scratch_bytes);
