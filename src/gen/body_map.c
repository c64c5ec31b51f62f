/* body_map.c - the generic body of map: the expression's steps, one variable each, in a loop over
 * the box (device/task/map.cuh).  What an instance has after its head:
 *
 *   for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
 *       rt_i64 at[RT_MAX_RANK];
 *       mpk_place(box, 2, i, at);
 *       ... the steps, v0 and up ...
 *       mpk_put(out_y, mpk_data(t, out_y), mpk_offset(out_y, at), v4);
 *   } */
#include "gen/body_print.h"

#include <stdio.h>

#include "gen/map_print.h"

/* How the names of mpk_get* and mpk_put* end for a value of this type. */
static const char *access_suffix(map_type type)
{
    if (type == MAP_F)
        return "";
    return type == MAP_D ? "_double" : "_int";
}

/* An expression's operands, by the names of their constants. */
typedef struct operands {
    uint32_t rank;
    const char *const *names;
} operands;

/* An operand is read by broadcasting rules (mpk_spread) and converted to the type of its step:
 * float, double or 64-bit integer. */
static void print_input(const void *of, const map_step *s, text *out)
{
    const operands *o = of;
    const char *name = o->names[s->number];
    text_print(out, "mpk_get%s(%s, mpk_data(t, %s), mpk_spread(%s, %u, at))",
               access_suffix(s->type), name, name, name, o->rank);
}

/* The result's step may have another type than y, into which mpk_put converts. */
mpk_status gen_print_map_loop(mpk_context *cx, const gen_call *c, str expression, uint32_t n_in,
                              const ir_dtype *dtypes, const char *const *names, text *out)
{
    map_program p;
    const operands o = {gen_output(c, 0)->rank, names};
    TRY(map_compile(cx, expression, n_in, dtypes, &p));
    text_print(out,
               "    mpk_box box = mpk_box_of(t, %u);\n    rt_u64 n = mpk_count(box, %u);\n"
               "    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {\n"
               "        rt_i64 at[RT_MAX_RANK];\n        mpk_place(box, %u, i, at);\n",
               o.rank, o.rank, o.rank);
    gen_print_map(&(gen_map){&p, "v", 8, &o, print_input, false}, out);
    text_print(out,
               "        mpk_put%s(out_y, mpk_data(t, out_y), mpk_offset(out_y, at), v%u);\n    }\n",
               access_suffix(p.steps[p.result].type), p.result);
    return MPK_OK;
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    ir_dtype dtypes[IR_MAX_INPUTS];
    char words[IR_MAX_INPUTS][16];
    const char *names[IR_MAX_INPUTS];
    for (uint32_t i = 0; i < c->op->n_in; i++) {
        dtypes[i] = gen_input(c, i)->dtype;
        snprintf(words[i], sizeof words[i], "in_x%u", i);
        names[i] = words[i];
    }
    gen_print_head(c, n, out);
    TRY(gen_print_map_loop(cx, c, c->op->attributes[0].s, c->op->n_in, dtypes, names, out));
    text_print(out, "}\n");
    return MPK_OK;
}

const gen_body gen_body_map = GEN_BODY("map", "map", print, NULL);
