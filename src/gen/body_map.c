/* body_map.c - the generic body of map: the expression's steps, one variable each, in a loop over
 * the box (device/task/map.cuh).  What an instance has after its head:
 *
 *   for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
 *       rt_i64 at[RT_MAX_RANK];
 *       mpk_place(box, 2, i, at);
 *       ... the steps, v0 and up ...
 *       mpk_put(out_y, mpk_data(t, out_y), mpk_offset(out_y, at), v4);
 *   }
 *
 * Where all operands are floats of 16 or 32 bits whose last axis is y's or has one entry, a loop
 * over eights (device/task/eights.cuh) stands before it; a box that they do not fill takes the loop
 * above. */
#include "gen/body_print.h"

#include <stdio.h>

#include "gen/map_print.h"

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
               gen_access_suffix(s->type), name, name, name, o->rank);
}

/* Is the result of 16 bits? */
static bool is_short(const gen_call *c)
{
    const ir_dtype dtype = gen_output(c, 0)->dtype;
    return dtype == IR_F16 || dtype == IR_BF16;
}
static gen_map_result result_of(const gen_call *c)
{
    return is_short(c) ? GEN_MAP_SHORT : GEN_MAP_EXACT;
}

/* The result's step may have another type than y, into which mpk_put converts. */
void gen_print_map_loop(const gen_call *c, const map_program *p, const char *const *names,
                        text *out)
{
    const operands o = {gen_output(c, 0)->rank, names};
    text_print(out,
               "    mpk_box box = mpk_box_of(t, %u);\n    rt_u64 n = mpk_count(box, %u);\n"
               "    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {\n"
               "        rt_i64 at[RT_MAX_RANK];\n        mpk_place(box, %u, i, at);\n",
               o.rank, o.rank, o.rank);
    gen_print_map(&(gen_map){p, "v", 8, &o, print_input, result_of(c)}, out);
    text_print(out,
               "        mpk_put%s(out_y, mpk_data(t, out_y), mpk_offset(out_y, at), v%u);\n    }\n",
               gen_access_suffix(p->steps[p->result].type), p->result);
}

static gen_eights eights_of(const gen_call *c)
{
    const ir_tensor *y = gen_output(c, 0);
    return (gen_eights){c, y->rank ? y->dims[y->rank - 1] : 0, c->op->n_in, y->rank, true};
}

/* y has to consist of eights; operands may be broadcast along any axis. */
static bool accepts_eights(const gen_call *c, const map_program *p)
{
    const gen_eights e = eights_of(c);
    bool accepts = e.last && gen_is_whole_of_eights(gen_output(c, 0), e.last) &&
                   p->steps[p->result].type == MAP_F;
    for (uint32_t i = 0; i < c->op->n_in; i++)
        accepts = accepts && gen_has_eights(gen_input(c, i), e.last);
    return accepts && gen_steps_of_eight(&e, p) <= GEN_STEPS_OF_EIGHT;
}

/* How many eights a thread loads together: few where the code of one is long, since each has its
 * own, or where operands are many, which lie in registers, those at hand and the next. */
static int slots_of(const gen_eights *e, const map_program *p)
{
    enum { MOST = 4, STEPS = 48, OPERANDS = 8 };
    int slots = MOST;
    while (slots > 1 &&
           (slots * (int)gen_steps_of_eight(e, p) > STEPS || slots * (int)e->n_inputs > OPERANDS))
        slots /= 2;
    return slots;
}

/* What the result is before it is rounded, if the last step rounds it as storing it does. */
static uint32_t unrounded(const gen_call *c, const map_program *p)
{
    const map_step *s = &p->steps[p->result];
    const ir_dtype dtype = gen_output(c, 0)->dtype;
    const bool rounds = s->kind == MAP_ROUND && s->number == (uint32_t)dtype && is_short(c);
    return rounds ? s->arg[0] : p->result;
}

/* The walk, where operands begin in it, and the slots of what is under way. */
static void print_slots(const gen_call *c, const gen_eights *e, int slots, text *out)
{
    text_print(out, "        const eight_walk walk = eight_walk_of(out_y, eights);\n");
    for (uint32_t i = 0; i < e->n_inputs; i++)
        if (gen_is_whole_of_eights(gen_input(c, i), e->last))
            text_print(out,
                       "        const char *const data%u =\n"
                       "            eight_begin(walk, in_x%u, mpk_data(t, in_x%u), out_y);\n"
                       "        eight slot%u[%d];\n",
                       i, i, i, i, slots);
        else
            text_print(out, "        float slot%u[%d];\n", i, slots);
}

/* The loop over eights, which ends the body where it can run. */
static void print_eights(const gen_call *c, const map_program *p, text *out)
{
    const gen_eights e = eights_of(c);
    const int slots = slots_of(&e, p);
    text_print(out, "    mpk_box eights = mpk_box_of(t, %u);\n    rt_u64 start = ", e.rank);
    for (uint32_t i = 0; i < e.n_inputs; i++)
        if (gen_is_whole_of_eights(gen_input(c, i), e.last))
            text_print(out, "(rt_u64)mpk_data(t, in_x%u) | ", i);
    text_print(out, "(rt_u64)mpk_data(t, out_y);\n    if (eight_counts(eights, %u, start)) {\n",
               e.rank - 1);
    print_slots(c, &e, slots, out);
    text_print(out, "        const auto ask = [&](int r, const auto &place) {\n"
                    "            (void)place;\n");
    gen_print_eights(&e, 12, out);
    text_print(out, "        };\n        const auto make = [&](int r) {\n"
                    "            float y[EIGHT];\n");
    gen_print_floats_of_eights(&e, 12, out);
    text_print(out, "#pragma unroll\n            for (int k = 0; k < EIGHT; k++) {\n");
    gen_print_map(&(gen_map){p, "v", 16, &e, gen_print_entry_of_eight, result_of(c)}, out);
    text_print(out,
               "                y[k] = v%u;\n            }\n"
               "            return eight_of(out_y.dtype, y);\n        };\n"
               "        eight_each<%d>(walk, out_y, mpk_data(t, out_y), ask, make);\n"
               "        return;\n    }\n",
               unrounded(c, p), slots);
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
    gen_print_head_of_elements(c, n, out);
    map_program p;
    TRY(map_compile(cx, c->op->attributes[0].s, c->op->n_in, dtypes, &p));
    if (accepts_eights(c, &p))
        print_eights(c, &p, out);
    gen_print_map_loop(c, &p, names, out);
    text_print(out, "}\n");
    return MPK_OK;
}

const gen_body gen_body_map = GEN_BODY("map", "map", print, NULL);
