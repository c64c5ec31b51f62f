/* body_rope.c - generic bodies of the rotary embedding (device/task/rope.cuh): frequencies are
 * worked out here, with the code that the reference uses, and travel in the instance as a table.
 *
 *   static __device__ const float frequency_4[32] = {
 *       1.0f, 0.749894202f, ...};
 *   static __device__ __noinline__ void body_4(const mpk_task &t) { ... frequency_4, 1.0f); }
 *
 * gen_print_frequencies and gen_print_amplitude are used by body_attention.c, too. */
#include "op/rope.h"

#include "gen/body_rope.h"

/* A table and not a formula: the frequencies are those of the reference to the last bit, whatever
 * the scaling rule, and the device needs no pow. */
void gen_print_frequencies(const gen_call *c, uint32_t n, text *out)
{
    const ir_attribute *a = c->op->attributes;
    int64_t half = rope_pairs(a);
    text_print(out, "static __device__ const float frequency_%u[%lld] = {", n, (long long)half);
    for (int64_t i = 0; i < half; i++) {
        text_print(out, i ? "," : "");
        text_print(out, i % 8 ? " " : "\n    ");
        gen_print_float(rope_frequency(a, i), out);
    }
    text_print(out, "};\n");
}

/* What sine and cosine are multiplied by: 1, but for a scaling rule that says otherwise (YaRN). */
void gen_print_amplitude(const gen_call *c, text *out)
{
    gen_print_float(rope_amplitude(c->op->attributes), out);
}

/* Graphs of any number of tokens share the instance: the task's box says which rows there are. */
static mpk_status print_rope_table(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_frequencies(c, n, out);
    gen_print_head_of_rows(c, n, out);
    gen_print_call(c, "rope_table_run", out);
    text_print(out, ", frequency_%u, ", n);
    gen_print_amplitude(c, out);
    text_print(out, ");\n}\n");
    return MPK_OK;
}

GEN_PRINTER(rope, "rope_run", "")
GEN_PRINTER(rotate, "rotate_run", "")

const gen_body gen_body_rope_table = GEN_BODY("rope_table", "rope", print_rope_table, NULL);
const gen_body gen_body_rope = GEN_BODY("rope", "rope", print_rope, NULL);
const gen_body gen_body_rotate = GEN_BODY("rotate", "rope", print_rotate, NULL);
