/* body_recur.c - the body of recur (device/task/recur.cuh).  What an instance has after its head,
 * of 64 steps of one operand, 8 of them read ahead:
 *
 *   const char *const data0 = mpk_data(t, in_x0);
 *   char *const data = mpk_data(t, out_y);
 *   mpk_box box = recur_lines(t, 3);
 *   rt_u64 n = mpk_count(box, 3);
 *   for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
 *       rt_i64 at[RT_MAX_RANK];
 *       mpk_place(box, 3, i, at);
 *       const rt_i64 to = mpk_offset(out_y, at), from0 = mpk_spread(in_x0, 3, at);
 *       const auto load0 = [&](int step) { return mpk_get(in_x0, data0, from0 + step * 1536ll); };
 *       float now0[8];
 *       float before = 0.0f;
 *       ... now0 of steps 0 to 7 ...
 *       for (int first = 0; first < 64; first += 8) {
 *           const int after = recur_least(first + 8, 56);
 *           float next0[8];
 *           ... next0 of steps after and up ...
 *           for (int k = 0; k < 8; k++) {
 *               ... the steps of the expression, v0 and up ...
 *               before = mpk_round(MPK_F32, v2);
 *               mpk_put(out_y, data, to + (first + k) * 1536ll, before);
 *           }
 *           ... now0 = next0 ...
 *       }
 *   }
 *
 * After the last steps those before are read once more, which costs less than a question at each
 * read.  Where the steps are no multiple of those read ahead, `after` is first + 8, each read is of
 * step 63 at most, and the computation asks.  Addresses are constants: a store might change what
 * they are read from.
 *
 * Operands that are the same in all steps are read once.
 *
 * Where there are many entries, and operands are floats of 16 or 32 bits whose last axis is y's or
 * has one entry, a loop over eights (device/task/eights.cuh) stands before this one.  A step's slot
 * gets its next operands when the step is done; a box without whole eights takes the loop above. */
#include <stdio.h>

#include "gen/body_print.h"

#include "gen/map_print.h"

/* Attributes, by index. */
enum { EXPRESSION, DTYPE, START };

/* A call and its program. */
typedef struct recurrence {
    const gen_call *c;
    map_program program;
    uint32_t n; /* operands of the expression without the value before, xn */
    uint32_t rank;
    int64_t n_steps, ahead;
    bool given, first;             /* the attribute `start` */
    map_type types[IR_MAX_INPUTS]; /* as what each is read; MAP_TYPES: it is not */
} recurrence;

/* From one step to the next, in elements; 0: the operand is the same in all. */
static int64_t stride_of(const recurrence *r, uint32_t i)
{
    const ir_tensor *t = gen_input(r->c, i);
    return t->rank == r->rank && t->dims[0] != 1 ? t->stride[0] : 0;
}

/* Is operand i read from step to step? */
static bool has_steps(const recurrence *r, uint32_t i)
{
    return r->types[i] != MAP_TYPES && stride_of(r, i);
}

/* Steps that are read ahead: fewer of long expressions, which the loop has as often. */
static int64_t steps_ahead(const recurrence *r)
{
    enum { SHORT = 32, LONG = 64, MOST = 8 };
    int64_t ahead = 1;
    if (r->program.n <= LONG)
        ahead = r->program.n <= SHORT ? MOST : MOST / 2;
    return ahead < r->n_steps ? ahead : r->n_steps;
}

static mpk_status describe(mpk_context *cx, const gen_call *c, recurrence *r)
{
    const ir_tensor *y = gen_output(c, 0);
    const str start = c->op->attributes[START].s;
    ir_dtype dtypes[IR_MAX_INPUTS];
    *r = (recurrence){.c = c, .rank = y->rank, .n_steps = y->dims[0]};
    r->given = str_is(start, "given");
    r->first = str_is(start, "first");
    r->n = c->op->n_in - r->given;
    for (uint32_t i = 0; i < r->n; i++)
        dtypes[i] = gen_input(c, i)->dtype;
    dtypes[r->n] = y->dtype;
    TRY(map_compile(cx, c->op->attributes[EXPRESSION].s, r->n + 1, dtypes, &r->program));
    for (uint32_t i = 0; i < IR_MAX_INPUTS; i++)
        r->types[i] = MAP_TYPES;
    for (uint32_t i = 0; i < r->program.n; i++)
        if (r->program.steps[i].kind == MAP_INPUT)
            r->types[r->program.steps[i].number] = r->program.steps[i].type;
    if (r->first)
        r->types[0] = MAP_F;
    r->ahead = steps_ahead(r);
    return MPK_OK;
}

static const char *type_name(const recurrence *r, uint32_t i)
{
    static const char *const names[MAP_TYPES] = {"rt_i64", "rt_i64", "float", "double"};
    return names[r->types[i]];
}

/* The addresses of what is read and written. */
static void print_addresses(const recurrence *r, text *out)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (r->types[i] != MAP_TYPES)
            text_print(out, "    const char *const data%u = mpk_data(t, in_x%u);\n", i, i);
    text_print(out, "    char *const data = mpk_data(t, out_y);\n");
}

/* What each operand is read by: a lambda for one that has steps, else a constant. */
static void print_operands(const recurrence *r, text *out)
{
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->types[i] == MAP_TYPES)
            continue;
        const char *suffix = gen_access_suffix(r->types[i]), *type = type_name(r, i);
        text_print(out, "        const rt_i64 from%u = mpk_spread(in_x%u, %u, at);\n", i, i,
                   r->rank);
        if (has_steps(r, i))
            text_print(out,
                       "        const auto load%u = [&](int step) {\n"
                       "            return mpk_get%s(in_x%u, data%u, from%u + step * %lldll);\n"
                       "        };\n        %s now%u[%d];\n",
                       i, suffix, i, i, i, (long long)stride_of(r, i), type, i, (int)r->ahead);
        else
            text_print(out, "        const %s x%u = mpk_get%s(in_x%u, data%u, from%u);\n", type, i,
                       suffix, i, i, i);
    }
}

/* Are the steps a multiple of those that are read ahead? */
static bool is_even(const recurrence *r)
{
    return r->n_steps % r->ahead == 0;
}

/* Load `now` or `next` of all operands with steps, from step `first` on. */
static void print_loads(const recurrence *r, int indent, const char *to, const char *first,
                        text *out)
{
    text_print(out, "#pragma unroll\n%*sfor (int k = 0; k < %d; k++) {\n", indent, "",
               (int)r->ahead);
    if (is_even(r))
        text_print(out, "%*sconst int step = %s + k;\n", indent + 4, "", first);
    else
        text_print(out, "%*sconst int step = recur_least(%s + k, %lld);\n", indent + 4, "", first,
                   (long long)r->n_steps - 1);
    for (uint32_t i = 0; i < r->n; i++)
        if (has_steps(r, i))
            text_print(out, "%*s%s%u[k] = load%u(step);\n", indent + 4, "", to, i, i);
    text_print(out, "%*s}\n", indent, "");
}

/* An operand of the expression: the value before, or as it has been read. */
static void print_input(const void *of, const map_step *s, text *out)
{
    const recurrence *r = of;
    if (s->number == r->n)
        text_print(out, "before");
    else
        text_print(out, has_steps(r, s->number) ? "now%u[k]" : "x%u", s->number);
}

/* The value before step 0. */
static void print_start(const recurrence *r, text *out)
{
    const unsigned last = r->c->op->n_in - 1;
    if (r->given)
        text_print(out,
                   "        float before = mpk_get(in_x%u, mpk_data(t, in_x%u), mpk_spread(in_x%u, "
                   "%u, at));\n",
                   last, last, last, r->rank);
    else
        text_print(out, "        float before = 0.0f;\n");
}

/* The steps whose operands have been read.  Where the first value is that of x0, step 0 has no
 * value before. */
static void print_steps(const recurrence *r, text *out)
{
    const ir_tensor *y = gen_output(r->c, 0);
    text_print(out, "#pragma unroll\n            for (int k = 0; k < %d; k++)", (int)r->ahead);
    if (!is_even(r))
        text_print(out, "\n                if (first + k < %lld)", (long long)r->n_steps);
    text_print(out, " {\n");
    gen_print_map(&(gen_map){&r->program, "v", 20, r, print_input, GEN_MAP_EXACT}, out);
    text_print(out, "                    before = mpk_round(%s, ", gen_dtype_name(y->dtype));
    if (r->first)
        text_print(out, "first + k == 0 ? %s : ", has_steps(r, 0) ? "now0[k]" : "x0");
    text_print(
        out,
        "v%u);\n                    mpk_put(out_y, data, to + (first + k) * %lldll, before);\n"
        "                }\n",
        r->program.result, (long long)y->stride[0]);
}

/* All steps of an entry, some at a time. */
static void print_walk(const recurrence *r, text *out)
{
    const int ahead = (int)r->ahead;
    text_print(out, "        for (int first = 0; first < %lld; first += %d) {\n",
               (long long)r->n_steps, ahead);
    if (is_even(r))
        text_print(out, "            const int after = recur_least(first + %d, %lld);\n", ahead,
                   (long long)(r->n_steps - r->ahead));
    else
        text_print(out, "            const int after = first + %d;\n", ahead);
    for (uint32_t i = 0; i < r->n; i++)
        if (has_steps(r, i))
            text_print(out, "            %s next%u[%d];\n", type_name(r, i), i, ahead);
    print_loads(r, 12, "next", "after", out);
    print_steps(r, out);
    text_print(out, "#pragma unroll\n            for (int k = 0; k < %d; k++) {\n", ahead);
    for (uint32_t i = 0; i < r->n; i++)
        if (has_steps(r, i))
            text_print(out, "                now%u[k] = next%u[k];\n", i, i);
    text_print(out, "            }\n        }\n");
}

/* ---- by eights ---- */

/* Are there so many entries that eight of them in a thread leave enough threads busy? */
static bool has_many_lines(const recurrence *r)
{
    enum { MANY = 1 << 17 };
    return ir_elements(gen_output(r->c, 0)) / r->n_steps >= MANY;
}

/* Do rows of y and of what is read consist of eights, or have one entry? */
static bool accepts_eights(const recurrence *r)
{
    const ir_tensor *y = gen_output(r->c, 0);
    const int64_t last = y->dims[y->rank - 1];
    bool fits = r->rank > 1 && has_many_lines(r) && r->program.n <= GEN_STEPS_OF_EIGHT &&
                gen_is_whole_of_eights(y, last);
    for (uint32_t i = 0; i < r->c->op->n_in; i++)
        fits = fits &&
               (gen_has_eights(gen_input(r->c, i), last) || (i < r->n && r->types[i] == MAP_TYPES));
    return fits;
}

static bool is_whole(const recurrence *r, uint32_t i)
{
    const ir_tensor *y = gen_output(r->c, 0);
    return gen_is_whole_of_eights(gen_input(r->c, i), y->dims[y->rank - 1]);
}

/* Steps whose operands are under way: few of long expressions, and of many words of registers. */
static int eights_ahead(const recurrence *r)
{
    enum { MOST = 8, STEPS = 48, WORDS = 64 };
    int ahead = MOST, words = 1;
    for (uint32_t i = 0; i < r->n; i++)
        if (has_steps(r, i))
            words +=
                is_whole(r, i) ? (int)ir_row_bytes(gen_input(r->c, i)->dtype, GEN_EIGHT) / 4 : 1;
    while (ahead > 1 && (ahead * (int)r->program.n > STEPS || ahead * words > WORDS))
        ahead /= 2;
    return ahead < r->n_steps ? ahead : (int)r->n_steps;
}

/* An operand of the expression, at entry e. */
static void print_entry(const void *of, const map_step *s, text *out)
{
    const recurrence *r = of;
    if (s->number == r->n)
        text_print(out, "before[e]");
    else
        text_print(out, is_whole(r, s->number) ? "x%u[e]" : "x%u", s->number);
}

/* What is loaded of operand i for an eight of y: by a lambda for one that has steps, else now. */
static void print_eight_operand(const recurrence *r, uint32_t i, int ahead, text *out)
{
    static const char *const ways[][3] = {{"mpk_get", "mpk_get", "float"},
                                          {"eight_load", "eight_load_once", "eight"}};
    const char *const *way = ways[is_whole(r, i)];
    char value[96];
    text_print(out, "            const rt_i64 from%u = mpk_spread(in_x%u, %u, at);\n", i, i,
               r->rank);
    if (!has_steps(r, i)) {
        snprintf(value, sizeof value, "%s(in_x%u, data%u, from%u)", way[0], i, i, i);
        gen_print_floats_of_eight(i, is_whole(r, i), 12, value, out);
        return;
    }
    text_print(out,
               "            const auto load%u = [&](int step) {\n"
               "                return %s(in_x%u, data%u, from%u + step * %lldll);\n"
               "            };\n            %s slot%u[%d];\n",
               i, way[1], i, i, i, (long long)stride_of(r, i), way[2], i, ahead);
}

/* Load the slots of step `step`. */
static void print_slots(const recurrence *r, int indent, const char *step, text *out)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (has_steps(r, i))
            text_print(out, "%*sslot%u[k] = load%u(%s);\n", indent, "", i, i, step);
}

/* The values before step 0. */
static void print_eight_start(const recurrence *r, text *out)
{
    const unsigned last = r->c->op->n_in - 1;
    text_print(out, "            float before[EIGHT] = {};\n");
    if (r->given && is_whole(r, last))
        text_print(out,
                   "            eight_floats(in_x%u.dtype, eight_load(in_x%u, mpk_data(t, in_x%u), "
                   "mpk_spread(in_x%u, %u, at)), before);\n",
                   last, last, last, last, r->rank);
    else if (r->given)
        text_print(out,
                   "#pragma unroll\n            for (int e = 0; e < EIGHT; e++)\n"
                   "                before[e] = mpk_get(in_x%u, mpk_data(t, in_x%u), "
                   "mpk_spread(in_x%u, %u, at));\n",
                   last, last, last, r->rank);
}

/* All steps of an eight. */
static void print_eight_walk(const recurrence *r, int ahead, text *out)
{
    const ir_tensor *y = gen_output(r->c, 0);
    const long long n_steps = (long long)r->n_steps;
    char next[64], slot[32];
    snprintf(next, sizeof next, "recur_least(first + k + %d, %lld)", ahead, n_steps - 1);
    text_print(out,
               "            for (int first = 0; first < %lld; first += %d) {\n"
               "#pragma unroll\n                for (int k = 0; k < %d; k++) {\n",
               n_steps, ahead, ahead);
    if (n_steps % ahead)
        text_print(out,
                   "                    if (first + k >= %lld)\n"
                   "                        continue;\n",
                   n_steps);
    for (uint32_t i = 0; i < r->n; i++)
        if (has_steps(r, i)) {
            snprintf(slot, sizeof slot, "slot%u[k]", i);
            gen_print_floats_of_eight(i, is_whole(r, i), 20, slot, out);
        }
    text_print(out, "#pragma unroll\n                    for (int e = 0; e < EIGHT; e++) {\n");
    gen_print_map(&(gen_map){&r->program, "v", 24, r, print_entry, GEN_MAP_EXACT}, out);
    text_print(out, "                        before[e] = mpk_round(%s, ", gen_dtype_name(y->dtype));
    if (r->first)
        text_print(out, "first + k == 0 ? x0%s : ", is_whole(r, 0) ? "[e]" : "");
    text_print(out,
               "v%u);\n                    }\n"
               "                    eight_store(out_y, data, to + (first + k) * %lldll,\n"
               "                                eight_of(out_y.dtype, before));\n",
               r->program.result, (long long)y->stride[0]);
    print_slots(r, 20, next, out);
    text_print(out, "                }\n            }\n");
}

/* The loop over eights, which ends the body where it can run. */
static void print_eights(const recurrence *r, text *out)
{
    const int ahead = eights_ahead(r);
    text_print(out,
               "    mpk_box eights = recur_lines(t, %u);\n    const rt_u64 start = (rt_u64)data",
               r->rank);
    for (uint32_t i = 0; i < r->c->op->n_in; i++)
        if ((i >= r->n || r->types[i] != MAP_TYPES) && is_whole(r, i))
            text_print(out, " | (rt_u64)mpk_data(t, in_x%u)", i);
    text_print(out,
               ";\n    if (eight_counts(eights, %u, start)) {\n"
               "        const eight_walk walk = eight_walk_of(out_y, eights);\n"
               "        for (int i = mpk_thread(); i < walk.n; i += MPK_THREADS) {\n"
               "            rt_i64 at[RT_MAX_RANK];\n"
               "            recur_eight_at(walk, out_y, i, at);\n"
               "            const rt_i64 to = mpk_offset(out_y, at);\n",
               r->rank - 1);
    for (uint32_t i = 0; i < r->n; i++)
        if (r->types[i] != MAP_TYPES)
            print_eight_operand(r, i, ahead, out);
    print_eight_start(r, out);
    text_print(out, "#pragma unroll\n            for (int k = 0; k < %d; k++) {\n", ahead);
    print_slots(r, 16, "k", out);
    text_print(out, "            }\n");
    print_eight_walk(r, ahead, out);
    text_print(out, "        }\n        return;\n    }\n");
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    recurrence r;
    TRY(describe(cx, c, &r));
    gen_print_head(c, n, out);
    print_addresses(&r, out);
    if (accepts_eights(&r))
        print_eights(&r, out);
    text_print(out, "    mpk_box box = recur_lines(t, %u);\n    rt_u64 n = mpk_count(box, %u);\n",
               r.rank, r.rank);
    text_print(out,
               "    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {\n"
               "        rt_i64 at[RT_MAX_RANK];\n        mpk_place(box, %u, i, at);\n"
               "        const rt_i64 to = mpk_offset(out_y, at);\n",
               r.rank);
    print_operands(&r, out);
    print_start(&r, out);
    print_loads(&r, 8, "now", "0", out);
    print_walk(&r, out);
    text_print(out, "    }\n}\n");
    return MPK_OK;
}

const gen_body gen_body_recur = GEN_BODY("recur", "recur", print, NULL);
