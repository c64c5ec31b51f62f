/* map_print.c - the steps of an expression of the operator map as C, a constant each (map_print.h).
 *
 *   "t0 = x0 * x1; max(t0, 0.0)" in fp32, where the caller says how an input is read:
 *       const float v0 = (input 0);
 *       const float v1 = (input 1);
 *       const float v2 = map_multiply_f(v0, v1, v0);
 *       const float v3 = 0.0f;
 *       const float v4 = map_max_f(v2, v3, v2);
 *
 * Functions are those of device/task/map.cuh.  Called by body_map.c and, for what a product does
 * with its sums, by block_print.c. */
#include "gen/map_print.h"

#include <stdio.h>

#include "gen/body_print.h"

static const char *const type_names[MAP_TYPES] = {"rt_i64", "rt_i64", "float", "double"};
static const char type_letters[MAP_TYPES] = {'b', 'i', 'f', 'd'};

/* Operators have names that no identifier can have. */
static const char *function_name(const map_function *f)
{
    static const char *const names[][2] = {
        {"-x", "negate"},  {"+", "add"},         {"-", "subtract"},       {"*", "multiply"},
        {"/", "divide"},   {"<=", "less_equal"}, {">=", "greater_equal"}, {"==", "equal"},
        {"!=", "unequal"}, {"<", "less"},        {">", "greater"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(f->name, names[i][0]) == 0)
            return names[i][1];
    return f->name;
}

/* INT64_MIN is not a literal of C. */
static void print_number(const map_step *s, text *out)
{
    if (s->type == MAP_F)
        gen_print_float((float)s->real, out);
    else if (s->type == MAP_D)
        gen_print_double(s->real, out);
    else if (s->whole == INT64_MIN)
        text_print(out, "(-9223372036854775807ll - 1)");
    else
        text_print(out, "%lldll", (long long)s->whole);
}

/* Is step i a call of this function? */
static bool is_call(const map_program *p, uint32_t i, uint32_t function)
{
    return p->steps[i].kind == MAP_CALL && p->steps[i].number == (int64_t)function;
}

/* Print a weight, exp(distance).  Of a c - b with a number c there is a function of its own, which
 * takes one multiplication less. */
static void print_weight(const gen_map *m, uint32_t distance, text *out)
{
    const map_program *p = m->program;
    const map_step *d = &p->steps[distance], *scaled = &p->steps[d->arg[0]];
    if (is_call(p, distance, MAP_SUBTRACT) && is_call(p, d->arg[0], MAP_MULTIPLY) &&
        p->steps[scaled->arg[1]].kind == MAP_NUMBER)
        text_print(out, "block_weight_of(%s%u, %s%u, %s%u)", m->prefix, scaled->arg[0], m->prefix,
                   scaled->arg[1], m->prefix, d->arg[1]);
    else
        text_print(out, "block_weight(%s%u)", m->prefix, distance);
}

/* Does step `by` use step i? */
static bool uses(const map_program *p, uint32_t by, uint32_t i)
{
    const map_step *s = &p->steps[by];
    uint32_t arity = s->kind == MAP_CONVERT || s->kind == MAP_ROUND;
    if (s->kind == MAP_CALL)
        arity = map_functions[s->number].arity;
    for (uint32_t k = 0; k < arity; k++)
        if (s->arg[k] == i)
            return true;
    return false;
}

static bool is_exp(const map_program *p, uint32_t i)
{
    const map_step *s = &p->steps[i];
    return s->kind == MAP_CALL && s->type == MAP_F &&
           strcmp(map_functions[s->number].name, "exp") == 0;
}

/* Is step i a number of at least 1 and an exponential? */
static bool is_denominator(const map_program *p, uint32_t i)
{
    if (!is_call(p, i, MAP_ADD))
        return false;
    for (int k = 0; k < 2; k++) {
        const map_step *number = &p->steps[p->steps[i].arg[k]];
        if (number->kind == MAP_NUMBER && number->real >= 1 && is_exp(p, p->steps[i].arg[1 - k]))
            return true;
    }
    return false;
}

/* near[i]: an error of 2^-17 of step i does not grow before it is rounded to 16 bits: products and
 * quotients keep it, a denominator makes that of its exponential smaller, and differences are not
 * among the steps between. */
static void find_near(const gen_map *m, bool *near)
{
    const map_program *p = m->program;
    for (uint32_t i = p->n; i-- > 0;) {
        near[i] = i != p->result || m->result == GEN_MAP_SHORT;
        for (uint32_t by = i + 1; by < p->n; by++) {
            const map_step *s = &p->steps[by];
            const bool rounds =
                s->kind == MAP_ROUND && (s->number == IR_F16 || s->number == IR_BF16);
            const bool keeps = is_call(p, by, MAP_MULTIPLY) || is_call(p, by, MAP_DIVIDE) ||
                               is_call(p, by, MAP_NEGATE) ||
                               (is_denominator(p, by) && is_exp(p, i));
            if (uses(p, by, i))
                near[i] = near[i] && (rounds || (keeps && near[by]));
        }
    }
}

/* A call that the hardware has an instruction for, if it is near enough.  false: it has none. */
static bool print_near(const gen_map *m, uint32_t i, text *out)
{
    const map_program *p = m->program;
    const map_step *s = &p->steps[i];
    const bool divides = is_call(p, i, MAP_DIVIDE) && is_denominator(p, s->arg[1]);
    const char *name = map_functions[s->number].name;
    if (s->type != MAP_F || !(divides || is_exp(p, i) || strcmp(name, "sigmoid") == 0))
        return false;
    text_print(out, "map_near_%s(%s%u", divides ? "divide" : name, m->prefix, s->arg[0]);
    if (divides)
        text_print(out, ", %s%u", m->prefix, s->arg[1]);
    text_print(out, ")");
    return true;
}

/* The letter at the name's end is the type of its last argument. */
static void print_call(const gen_map *m, bool near, uint32_t i, text *out)
{
    const map_step *s = &m->program->steps[i];
    const map_function *f = &map_functions[s->number];
    const map_program *p = m->program;
    const char *v = m->prefix;
    if (f->rule == MAP_CHOICE) {
        text_print(out, "%s%u ? %s%u : %s%u", v, s->arg[0], v, s->arg[1], v, s->arg[2]);
        return;
    }
    /* each takes three: one of fewer arguments gets its first again and ignores it */
    const uint32_t second = s->arg[f->arity > 1 ? 1 : 0];
    const uint32_t third = s->arg[f->arity > 2 ? 2 : 0];
    const map_type type = p->steps[s->arg[f->arity - 1]].type;
    if (m->result == GEN_MAP_WEIGHTS && type == MAP_F && strcmp(f->name, "exp") == 0) {
        print_weight(m, s->arg[0], out);
        return;
    }
    if (near && print_near(m, i, out))
        return;
    text_print(out, "map_%s_%c(%s%u, %s%u, %s%u)", function_name(f), type_letters[type], v,
               s->arg[0], v, second, v, third);
}

/* Real numbers become whole ones by truncation, and booleans by comparison with 0. */
static void print_convert(map_type from, const map_step *s, const char *v, text *out)
{
    if (s->type == MAP_B)
        text_print(out, "%s%u != 0", v, s->arg[0]);
    else if (s->type == MAP_I)
        text_print(out, from == MAP_B ? "%s%u" : "mpk_truncate((double)%s%u)", v, s->arg[0]);
    else
        text_print(out, "(%s)%s%u", type_names[s->type], v, s->arg[0]);
}

/* To a dtype and back: what storing and loading would do to the value. */
static void print_round(map_type from, const map_step *s, const char *v, text *out)
{
    bool real = from == MAP_F || from == MAP_D;
    if (s->number == IR_F16 || s->number == IR_BF16)
        text_print(out, "mpk_round(%s, %s%u)", gen_dtype_name((ir_dtype)s->number), v, s->arg[0]);
    else
        text_print(out, "map_keep_%s({-1, %s}, %s%u)", real ? "real" : "whole",
                   gen_dtype_name((ir_dtype)s->number), v, s->arg[0]);
}

/* "const float v3 = ...;" */
static void print_step(const gen_map *m, bool near, uint32_t i, text *out)
{
    const map_step *s = &m->program->steps[i];
    map_type from = m->program->steps[s->arg[0]].type;
    text_print(out, "%*sconst %s %s%u = ", m->indent, "", type_names[s->type], m->prefix, i);
    if (s->kind == MAP_INPUT)
        m->print_input(m->of, s, out);
    else if (s->kind == MAP_NUMBER)
        print_number(s, out);
    else if (s->kind == MAP_CALL)
        print_call(m, near, i, out);
    else if (s->kind == MAP_CONVERT)
        print_convert(from, s, m->prefix, out);
    else
        print_round(from, s, m->prefix, out);
    text_print(out, ";\n");
}

void gen_print_map(const gen_map *m, text *out)
{
    bool near[MAP_STEPS];
    find_near(m, near);
    for (uint32_t i = 0; i < m->program->n; i++)
        print_step(m, near[i], i, out);
}

const char *gen_access_suffix(map_type type)
{
    if (type == MAP_F)
        return "";
    return type == MAP_D ? "_double" : "_int";
}

/* ---- by eights ---- */

bool gen_is_whole_of_eights(const ir_tensor *t, int64_t last)
{
    bool whole = gen_is_short_float(t) && t->rank && t->dims[t->rank - 1] == last &&
                 last % GEN_EIGHT == 0 && t->offset % GEN_EIGHT == 0 && t->stride[t->rank - 1] == 1;
    for (uint32_t i = 0; whole && i + 1 < t->rank; i++)
        whole = t->dims[i] == 1 || t->stride[i] % GEN_EIGHT == 0;
    return whole;
}

bool gen_has_eights(const ir_tensor *t, int64_t last)
{
    const bool spread = gen_is_short_float(t) && (!t->rank || t->dims[t->rank - 1] == 1);
    return spread || gen_is_whole_of_eights(t, last);
}

uint32_t gen_steps_of_eight(const gen_eights *e, const map_program *p)
{
    bool differs[MAP_STEPS] = {false}; /* among the eight */
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const map_step *s = &p->steps[i];
        const bool is_leaf = s->kind == MAP_INPUT || s->kind == MAP_NUMBER;
        const uint32_t arity = s->kind == MAP_CALL ? map_functions[s->number].arity : !is_leaf;
        if (s->kind == MAP_INPUT)
            differs[i] = gen_is_whole_of_eights(gen_input(e->c, s->number), e->last);
        for (uint32_t k = 0; k < arity; k++)
            differs[i] = differs[i] || differs[s->arg[k]];
        n += differs[i];
    }
    return n;
}

void gen_print_eights(const gen_eights *e, int indent, text *out)
{
    static const char *const ways[][2] = {{"float", "mpk_get"}, {"eight", "eight_load"}};
    const char *at = e->in_slots ? "place.at" : "at";
    for (uint32_t i = 0; i < e->n_inputs; i++) {
        const bool whole = gen_is_whole_of_eights(gen_input(e->c, i), e->last);
        text_print(out, "%*s", indent, "");
        if (e->in_slots)
            text_print(out, "slot%u[r] = ", i);
        else
            text_print(out, "const %s of%u =\n%*s", ways[whole][0], i, indent + 4, "");
        if (e->in_slots && whole)
            text_print(out, "eight_take(in_x%u, data%u, out_y, place);\n", i, i);
        else
            text_print(out, "%s(in_x%u, mpk_data(t, in_x%u), mpk_spread(in_x%u, %u, %s));\n",
                       ways[whole][1], i, i, i, e->rank, at);
    }
}

void gen_print_floats_of_eight(uint32_t i, bool whole, int indent, const char *value, text *out)
{
    if (whole)
        text_print(out, "%*sfloat x%u[EIGHT];\n%*seight_floats(in_x%u.dtype, %s, x%u);\n", indent,
                   "", i, indent, "", i, value, i);
    else
        text_print(out, "%*sconst float x%u = %s;\n", indent, "", i, value);
}

void gen_print_floats_of_eights(const gen_eights *e, int indent, text *out)
{
    char value[32];
    for (uint32_t i = 0; i < e->n_inputs; i++) {
        snprintf(value, sizeof value, e->in_slots ? "slot%u[r]" : "of%u", i);
        gen_print_floats_of_eight(i, gen_is_whole_of_eights(gen_input(e->c, i), e->last), indent,
                                  value, out);
    }
}

void gen_print_entry_of_eight(const void *of, const map_step *s, text *out)
{
    const gen_eights *e = of;
    const bool whole = gen_is_whole_of_eights(gen_input(e->c, s->number), e->last);
    text_print(out, "x%u%s", s->number, whole ? "[k]" : "");
}
