/* body_elementwise.c - generic bodies of operators that compute each element on its own
 * (device/task/elementwise.cuh).
 *
 * Operands may have any strides and plain dtypes: the loop goes over the places of the box and
 * reads each operand by its view.  Fused chains of these are map (body_map.c). */
#include "gen/body_print.h"

/* elementwise_run(t, function, a, b or nothing, y): one loop of device code for all functions, with
 * the function as a constant. */
static void print_function(const gen_call *c, uint32_t n, const char *function, text *out)
{
    gen_print_head_of_elements(c, n, out);
    const op_def *def = c->op->def;
    text_print(out, "    constexpr mpk_view nothing = {-1};\n    (void)nothing;\n");
    text_print(out, "    elementwise_run(t, ELEMENTWISE_%s, in_%s, ", function, def->in[0].name);
    if (c->op->n_in > 1)
        text_print(out, "in_%s", def->in[1].name);
    else
        text_print(out, "nothing");
    text_print(out, ", out_%s);\n}\n", def->out[0].name);
}

#define PRINTER(name, function)                                                               \
    static mpk_status print_##name(mpk_context *cx, const gen_call *c, uint32_t n, text *out) \
    {                                                                                         \
        (void)cx;                                                                             \
        print_function(c, n, function, out);                                                  \
        return MPK_OK;                                                                        \
    }
/* The names continue ELEMENTWISE_ of elementwise.cuh. */
PRINTER(add, "ADD")
PRINTER(mul, "MUL")
PRINTER(silu, "SILU")
PRINTER(gelu, c->op->attributes[0].i ? "GELU_TANH" : "GELU")
PRINTER(silu_mul, "SILU_MUL")
GEN_PRINTER(cast, "cast_run", "")

/* The sum of the parts, one after the other, in the loop over the box's elements. */
static mpk_status print_add_parts(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    text_print(
        out, "    ADD_PARTS_EACH(t, out_y) {\n        float sum = add_parts_get(t, in_x0, at);\n");
    for (uint32_t i = 1; i < c->op->n_in; i++)
        text_print(out, "        sum += add_parts_get(t, in_x%u, at);\n", i);
    text_print(
        out, "        mpk_put(out_y, mpk_data(t, out_y), mpk_offset(out_y, at), sum);\n    }\n}\n");
    return MPK_OK;
}

const gen_body gen_body_add_parts = GEN_BODY("add_parts", "elementwise", print_add_parts, NULL);
const gen_body gen_body_add = GEN_BODY("add", "elementwise", print_add, NULL);
const gen_body gen_body_mul = GEN_BODY("mul", "elementwise", print_mul, NULL);
const gen_body gen_body_silu = GEN_BODY("silu", "elementwise", print_silu, NULL);
const gen_body gen_body_gelu = GEN_BODY("gelu", "elementwise", print_gelu, NULL);
const gen_body gen_body_silu_mul = GEN_BODY("silu_mul", "elementwise", print_silu_mul, NULL);
const gen_body gen_body_cast = GEN_BODY("cast", "elementwise", print_cast, NULL);
