/* body_elementwise.c - generic bodies of operators that compute each element on its own (device/task/elementwise.cuh).
 */
#include "gen/body_print.h"

/* elementwise_run(t, function, a, b or nothing, y). */
static void print_function(const gen_call *c, uint32_t n, const char *function, text *out)
{
    gen_print_head(c, n, out);
    const op_def *def = c->op->def;
    text_print(out, "    constexpr mpk_view nothing = {-1};\n    (void)nothing;\n");
    text_print(out, "    elementwise_run(t, ELEMENTWISE_%s, in_%s, %s%s, out_%s);\n}\n", function, def->in[0].name,
               c->op->n_in > 1 ? "in_" : "nothing", c->op->n_in > 1 ? def->in[1].name : "", def->out[0].name);
}

static mpk_status print_add(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_function(c, n, "ADD", out);
    return MPK_OK;
}

static mpk_status print_mul(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_function(c, n, "MUL", out);
    return MPK_OK;
}

static mpk_status print_silu(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_function(c, n, "SILU", out);
    return MPK_OK;
}

static mpk_status print_gelu(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_function(c, n, c->op->attributes[0].i ? "GELU_TANH" : "GELU", out);
    return MPK_OK;
}

static mpk_status print_silu_mul(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_function(c, n, "SILU_MUL", out);
    return MPK_OK;
}

static mpk_status print_cast(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_simple(c, n, "cast_run", "", out);
    return MPK_OK;
}

const gen_body gen_body_add = {.op = "add", .name = "elementwise", .accepts = gen_accepts_plain, .print = print_add};
const gen_body gen_body_mul = {.op = "mul", .name = "elementwise", .accepts = gen_accepts_plain, .print = print_mul};
const gen_body gen_body_silu = {.op = "silu", .name = "elementwise", .accepts = gen_accepts_plain, .print = print_silu};
const gen_body gen_body_gelu = {.op = "gelu", .name = "elementwise", .accepts = gen_accepts_plain, .print = print_gelu};
const gen_body gen_body_silu_mul = {
    .op = "silu_mul", .name = "elementwise", .accepts = gen_accepts_plain, .print = print_silu_mul};
const gen_body gen_body_cast = {.op = "cast", .name = "elementwise", .accepts = gen_accepts_plain, .print = print_cast};
