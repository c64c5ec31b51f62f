/* body_map.c - the generic body of map: the expression's steps, one variable each, in a loop over the box
 * (device/task/map.cuh). */
#include "gen/body_print.h"

#include "op/map_program.h"

static const char *const type_names[MAP_TYPES] = {"rt_i64", "rt_i64", "float", "double"};
static const char type_letters[MAP_TYPES] = {'b', 'i', 'f', 'd'};

/* Operators have names that no identifier can have. */
static const char *function_name(const map_function *f)
{
    static const char *const names[][2] = {{"-x", "negate"},        {"+", "add"},    {"-", "subtract"},
                                           {"*", "multiply"},       {"/", "divide"}, {"<=", "less_equal"},
                                           {">=", "greater_equal"}, {"==", "equal"}, {"!=", "unequal"},
                                           {"<", "less"},           {">", "greater"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(f->name, names[i][0]) == 0)
            return names[i][1];
    return f->name;
}

static void print_input(const gen_call *c, const map_step *s, text *out)
{
    uint32_t rank = gen_output(c, 0)->rank, i = s->number;
    text_print(out, "%s(in_x%u, mpk_data(t, in_x%u), mpk_spread(in_x%u, %u, at))",
               s->type == MAP_F   ? "mpk_get"
               : s->type == MAP_D ? "mpk_get_double"
                                  : "mpk_get_int",
               i, i, i, rank);
}

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

static void print_call(const map_program *p, const map_step *s, text *out)
{
    const map_function *f = &map_functions[s->number];
    if (f->rule == MAP_CHOICE) {
        text_print(out, "v%u ? v%u : v%u", s->arg[0], s->arg[1], s->arg[2]);
        return;
    }
    map_type type = p->steps[s->arg[f->arity - 1]].type;
    text_print(out, "map_%s_%c(v%u, v%u, v%u)", function_name(f), type_letters[type], s->arg[0],
               s->arg[f->arity > 1 ? 1 : 0], s->arg[f->arity > 2 ? 2 : 0]);
}

static void print_convert(map_type from, const map_step *s, text *out)
{
    if (s->type == MAP_B)
        text_print(out, "v%u != 0", s->arg[0]);
    else if (s->type == MAP_I)
        text_print(out, from == MAP_B ? "v%u" : "mpk_truncate((double)v%u)", s->arg[0]);
    else
        text_print(out, "(%s)v%u", type_names[s->type], s->arg[0]);
}

static void print_round(map_type from, const map_step *s, text *out)
{
    bool real = from == MAP_F || from == MAP_D;
    if (s->number == IR_F16 || s->number == IR_BF16)
        text_print(out, "mpk_round(%s, v%u)", gen_dtype_name((ir_dtype)s->number), s->arg[0]);
    else
        text_print(out, "map_keep_%s({-1, %s}, v%u)", real ? "real" : "whole", gen_dtype_name((ir_dtype)s->number),
                   s->arg[0]);
}

/* "const float v3 = ...;" */
static void print_step(const gen_call *c, const map_program *p, uint32_t i, text *out)
{
    const map_step *s = &p->steps[i];
    map_type from = p->steps[s->arg[0]].type;
    text_print(out, "        const %s v%u = ", type_names[s->type], i);
    if (s->kind == MAP_INPUT)
        print_input(c, s, out);
    else if (s->kind == MAP_NUMBER)
        print_number(s, out);
    else if (s->kind == MAP_CALL)
        print_call(p, s, out);
    else if (s->kind == MAP_CONVERT)
        print_convert(from, s, out);
    else
        print_round(from, s, out);
    text_print(out, ";\n");
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    map_program p;
    ir_dtype dtypes[IR_MAX_INPUTS];
    uint32_t rank = gen_output(c, 0)->rank;
    for (uint32_t i = 0; i < c->op->n_in; i++)
        dtypes[i] = gen_input(c, i)->dtype;
    str expression = c->op->attributes[0].s;
    TRY(map_compile(cx, expression, c->op->n_in, dtypes, &p));
    gen_print_head(c, n, out);
    text_print(out,
               "    mpk_box box = mpk_box_of(t, %u);\n    rt_u64 n = mpk_count(box, %u);\n"
               "    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {\n"
               "        rt_i64 at[RT_MAX_RANK];\n        mpk_place(box, %u, i, at);\n",
               rank, rank, rank);
    for (uint32_t i = 0; i < p.n; i++)
        print_step(c, &p, i, out);
    map_type type = p.steps[p.result].type;
    text_print(out, "        %s(out_y, mpk_data(t, out_y), mpk_offset(out_y, at), v%u);\n    }\n}\n",
               type == MAP_F   ? "mpk_put"
               : type == MAP_D ? "mpk_put_double"
                               : "mpk_put_int",
               p.result);
    return MPK_OK;
}

const gen_body gen_body_map = GEN_BODY("map", "map", print, NULL);
