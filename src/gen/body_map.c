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
    gen_print_map(&(gen_map){p, "v", 8, &o, print_input, false}, out);
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
static int rounds_of(const gen_eights *e, const map_program *p)
{
    enum { MOST = 4, STEPS = 28, OPERANDS = 8 };
    int rounds = MOST;
    while (rounds > 1 &&
           (rounds * (int)gen_steps_of_eight(e, p) > STEPS || rounds * (int)e->n_inputs > OPERANDS))
        rounds /= 2;
    return rounds;
}

/* The head of a loop over rounds, of which the last ones may not be there. */
static void print_rounds(int rounds, text *out)
{
    text_print(out,
               "#pragma unroll\n            for (int r = 0; r < %d; r++) {\n"
               "                if (i + (rt_u64)r * MPK_THREADS >= walk.n)\n"
               "                    continue;\n",
               rounds);
}

/* What loads the eights of a thread from number i on, and what they are kept in. */
static void print_ask(const gen_call *c, const gen_eights *e, int rounds, text *out)
{
    text_print(out, "        struct {\n            rt_i64 to[%d];\n", rounds);
    for (uint32_t i = 0; i < e->n_inputs; i++)
        text_print(out, "            %s of%u[%d];\n",
                   gen_is_whole_of_eights(gen_input(c, i), e->last) ? "eight" : "float", i, rounds);
    text_print(out, "        } next = {};\n        const auto ask = [&](rt_u64 i) {\n");
    print_rounds(rounds, out);
    text_print(out,
               "                rt_i64 at[RT_MAX_RANK];\n"
               "                next.to[r] =\n"
               "                    eight_find(walk, out_y, i + (rt_u64)r * MPK_THREADS, at);\n");
    gen_print_eights(e, 16, out);
    text_print(out, "            }\n        };\n");
}

/* The loop over eights, which ends the body where it can run.  The next ones are in flight while
 * those at hand are computed and stored. */
static void print_eights(const gen_call *c, const map_program *p, text *out)
{
    const gen_eights e = eights_of(c);
    const uint32_t rank = e.rank;
    const int rounds = rounds_of(&e, p);
    text_print(out, "    mpk_box eights = mpk_box_of(t, %u);\n    rt_u64 start = ", rank);
    for (uint32_t i = 0; i < e.n_inputs; i++)
        if (gen_is_whole_of_eights(gen_input(c, i), e.last))
            text_print(out, "(rt_u64)mpk_data(t, in_x%u) | ", i);
    text_print(out,
               "(rt_u64)mpk_data(t, out_y);\n    if (eight_counts(eights, %u, start)) {\n"
               "        const eight_walk walk = eight_walk_of(out_y, eights);\n",
               rank - 1);
    print_ask(c, &e, rounds, out);
    text_print(
        out,
        "        ask((rt_u64)mpk_thread());\n"
        "        for (rt_u64 i = (rt_u64)mpk_thread(); i < walk.n; i += %d * MPK_THREADS) {\n"
        "            const auto now = next;\n            ask(i + %d * MPK_THREADS);\n",
        rounds, rounds);
    print_rounds(rounds, out);
    text_print(out, "                eight y = {};\n#pragma unroll\n"
                    "                for (int k = 0; k < EIGHT; k++) {\n");
    gen_print_map(&(gen_map){p, "v", 20, &e, gen_print_entry_of_eight, false}, out);
    text_print(out,
               "                    eight_put(out_y.dtype, y, k, v%u);\n                }\n"
               "                eight_store(out_y, mpk_data(t, out_y), now.to[r], y);\n"
               "            }\n        }\n        return;\n    }\n",
               p->result);
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
    map_program p;
    TRY(map_compile(cx, c->op->attributes[0].s, c->op->n_in, dtypes, &p));
    if (accepts_eights(c, &p))
        print_eights(c, &p, out);
    gen_print_map_loop(c, &p, names, out);
    text_print(out, "}\n");
    return MPK_OK;
}

const gen_body gen_body_map = GEN_BODY("map", "map", print, NULL);
