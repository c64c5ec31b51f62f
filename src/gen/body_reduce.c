/* body_reduce.c - the generic body of reduce (device/task/reduce.cuh).  Of a tensor it is one call:
 *
 *   reduce_run(t, in_x0, out_y, REDUCE_SUM, 4, false, 16);
 *
 * With an expression, of what is reduced or of the result, an instance has a lambda for each and
 * one that loads the operands of the second while lines are read:
 *
 *   constexpr mpk_view x = {-1, MPK_F32, RT_ALL, 2, {1536, 16}, {16, 1}};
 *   const auto of = [&](const rt_i64 *at) { ... return v2; };
 *   const auto eight_of = [&](const rt_i64 *at, float *v) { ... };
 *   const auto more = [&](const rt_i64 *at, float *m) { m[0] = ...; };
 *   const auto then = [&](double result, const float *m) { ... return (double)v3; };
 *   reduce_by(t, x, out_y, REDUCE_SUM, 2, false, 16, aligned, reduce_of<true, 1>(of, ...));
 *
 * `eight_of` is there where rows of the last axis consist of eights (map_print.h).
 *
 * The other record, of rank 5, is for x of 16 bits whose neighbours lie along an axis that stays,
 * without an expression (device/task/reduce_across.cuh):
 *
 *   constexpr across_how how = {REDUCE_MEAN, 12, true, 1, 49};     axes 2 and 3 of channels last
 *   if (!reduce_across<16>(t, in_x0, out_y, how))
 *       reduce_run(t, in_x0, out_y, REDUCE_MEAN, 12, true, 49);     x is not aligned */
#include "gen/body_print.h"

#include "gen/map_print.h"
#include "shape/reduce_across_shape.h"

/* Attributes, by index. */
enum { AXES, KEEP, KIND, DTYPE, EXPR, INPUTS, THEN };

/* A call, and what it reduces as if it were a tensor. */
typedef struct reduction {
    const gen_call *c;
    const char *kind;
    uint32_t set, n_inputs; /* axes, a bit each; operands of expr */
    int64_t n_reduced;
    ir_tensor x;
} reduction;

static bool has(const gen_call *c, uint32_t attribute)
{
    return c->op->attributes[attribute].s.n;
}

/* The shape to which the operands of expr are broadcast, dense. */
static void describe_x(reduction *r)
{
    ir_tensor *x = &r->x;
    int64_t stride = 1;
    *x = (ir_tensor){.dtype = IR_F32};
    for (uint32_t i = 0; i < r->n_inputs; i++)
        if (gen_input(r->c, i)->rank > x->rank)
            x->rank = gen_input(r->c, i)->rank;
    for (uint32_t k = 0; k < x->rank; k++)
        x->dims[k] = 1;
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        const ir_tensor *t = gen_input(r->c, i);
        for (uint32_t k = 0; k < t->rank; k++)
            if (t->dims[k] != 1)
                x->dims[k + x->rank - t->rank] = t->dims[k];
    }
    for (uint32_t k = x->rank; k-- > 0; stride *= x->dims[k])
        x->stride[k] = stride;
}

/* Axes travel as a set of bits; n_reduced is how many entries of x make one of the result. */
static mpk_status describe(mpk_context *cx, const gen_call *c, reduction *r)
{
    static const char *const kinds[][2] = {
        {"sum", "SUM"},   {"mean", "MEAN"},           {"max", "MAX"}, {"min", "MIN"},
        {"prod", "PROD"}, {"logsumexp", "LOGSUMEXP"}, {"any", "ANY"}, {"all", "ALL"}};
    const ir_attribute *axes = &c->op->attributes[AXES], *kind = &c->op->attributes[KIND];
    uint32_t k = 0;
    while (k < sizeof kinds / sizeof *kinds && !str_is(kind->s, kinds[k][0]))
        k++;
    CHECK(cx, k < sizeof kinds / sizeof *kinds, MPK_EUNSUPPORTED,
          "reduce: no code for kind \"%.*s\"", STR_ARG(kind->s));
    *r = (reduction){.c = c, .kind = kinds[k][1], .n_inputs = 1, .n_reduced = 1};
    if (has(c, EXPR)) {
        r->n_inputs = (uint32_t)c->op->attributes[INPUTS].i;
        describe_x(r);
    } else {
        r->x = *gen_input(c, 0);
    }
    for (uint32_t i = 0; i < axes->ints.n; i++) {
        r->set |= 1u << axes->ints.at[i];
        r->n_reduced *= r->x.dims[axes->ints.at[i]];
    }
    return MPK_OK;
}

/* What every call ends with. */
static void print_arguments(const reduction *r, text *out)
{
    text_print(out, ", out_y, REDUCE_%s, %u, %s, %lld", r->kind, r->set,
               r->c->op->attributes[KEEP].i ? "true" : "false", (long long)r->n_reduced);
}

/* The program of an expression, whose x0 is the result where it is `then`. */
static mpk_status compile(mpk_context *cx, const reduction *r, uint32_t which, map_program *p)
{
    ir_dtype dtypes[1 + IR_MAX_INPUTS] = {gen_output(r->c, 0)->dtype};
    const bool then = which == THEN;
    const uint32_t end = then ? r->c->op->n_in : r->n_inputs;
    uint32_t n = then;
    for (uint32_t i = then ? r->n_inputs : 0; i < end; i++)
        dtypes[n++] = gen_input(r->c, i)->dtype;
    return map_compile(cx, r->c->op->attributes[which].s, n, dtypes, p);
}

/* An operand of expr, at its place of x. */
static void print_entry(const void *of, const map_step *s, text *out)
{
    const reduction *r = of;
    const unsigned i = (unsigned)s->number;
    text_print(out, "mpk_get%s(in_x%u, mpk_data(t, in_x%u), mpk_spread(in_x%u, %u, at))",
               gen_access_suffix(s->type), i, i, i, r->x.rank);
}

/* The result that `then` follows, or one of its operands, which `more` has loaded. */
static void print_more(const void *of, const map_step *s, text *out)
{
    const reduction *r = of;
    if (s->number)
        text_print(out, "m[%u]", (unsigned)s->number - 1);
    else
        text_print(out, "mpk_round(%s, (float)result)", gen_dtype_name(gen_output(r->c, 0)->dtype));
}

/* Can lines be read by eights?  Those of the last axis, if it is reduced. */
static bool has_eights(const reduction *r, const map_program *p)
{
    const uint32_t last = r->x.rank - 1;
    bool has = r->x.rank && r->set >> last & 1 && r->x.dims[last] % GEN_EIGHT == 0;
    for (uint32_t i = 0; has && i < r->n_inputs; i++)
        has = gen_has_eights(gen_input(r->c, i), r->x.dims[last]);
    const gen_eights e = {r->c, has ? r->x.dims[last] : 0, r->n_inputs, r->x.rank, false};
    return has && gen_steps_of_eight(&e, p) <= GEN_STEPS_OF_EIGHT;
}

/* The lambdas `of` and `eight_of`; *eights: the second reads. */
static mpk_status print_of(mpk_context *cx, const reduction *r, bool *eights, text *out)
{
    map_program p;
    *eights = false;
    if (!has(r->c, EXPR)) {
        text_print(out, "    const auto of = [&](const rt_i64 *at) {\n        return "
                        "mpk_get_double(in_x0, mpk_data(t, in_x0), mpk_offset(in_x0, at));\n"
                        "    };\n    const auto eight_of = [](const rt_i64 *, float *) {};\n");
        return MPK_OK;
    }
    TRY(compile(cx, r, EXPR, &p));
    text_print(out, "    const auto of = [&](const rt_i64 *at) {\n");
    gen_print_map(&(gen_map){&p, "v", 8, r, print_entry, GEN_MAP_EXACT}, out);
    text_print(out, "        return v%u;\n    };\n", p.result);
    *eights = has_eights(r, &p);
    if (!*eights) {
        text_print(out, "    const auto eight_of = [](const rt_i64 *, float *) {};\n");
        return MPK_OK;
    }
    text_print(out, "    const auto eight_of = [&](const rt_i64 *at, float *v) {\n");
    const gen_eights e = {r->c, r->x.dims[r->x.rank - 1], r->n_inputs, r->x.rank, false};
    gen_print_eights(&e, 8, out);
    gen_print_floats_of_eights(&e, 8, out);
    text_print(out, "#pragma unroll\n        for (int k = 0; k < EIGHT; k++) {\n");
    gen_print_map(&(gen_map){&p, "v", 12, &e, gen_print_entry_of_eight, GEN_MAP_EXACT}, out);
    text_print(out, "            v[k] = v%u;\n        }\n    };\n", p.result);
    return MPK_OK;
}

/* The lambdas `more` and `then`. */
static mpk_status print_then(mpk_context *cx, const reduction *r, text *out)
{
    map_program p;
    if (!has(r->c, THEN)) {
        text_print(out, "    const auto more = [](const rt_i64 *, float *) {};\n"
                        "    const auto then = [](double result, const float *) { return result; "
                        "};\n");
        return MPK_OK;
    }
    TRY(compile(cx, r, THEN, &p));
    text_print(out, "    const auto more = [&](const rt_i64 *at, float *m) {\n"
                    "        (void)at, (void)m;\n");
    for (uint32_t i = r->n_inputs; i < r->c->op->n_in; i++)
        text_print(out,
                   "        m[%u] = mpk_get(in_x%u, mpk_data(t, in_x%u), mpk_spread(in_x%u, %u, "
                   "at));\n",
                   i - r->n_inputs, i, i, i, gen_output(r->c, 0)->rank);
    text_print(out, "    };\n    const auto then = [&](double result, const float *m) {\n"
                    "        (void)m;\n");
    gen_print_map(&(gen_map){&p, "v", 8, r, print_more, GEN_MAP_EXACT}, out);
    text_print(out, "        return (double)v%u;\n    };\n", p.result);
    return MPK_OK;
}

/* The constant x and the call, after the lambdas. */
static void print_by(const reduction *r, bool eights, text *out)
{
    if (has(r->c, EXPR)) {
        text_print(out, "    constexpr mpk_view x = {-1, MPK_F32, RT_ALL, %u, {", r->x.rank);
        for (uint32_t k = 0; k < r->x.rank; k++)
            text_print(out, "%s%lld", k ? ", " : "", (long long)r->x.dims[k]);
        text_print(out, "}, {");
        for (uint32_t k = 0; k < r->x.rank; k++)
            text_print(out, "%s%lld", k ? ", " : "", (long long)r->x.stride[k]);
        text_print(out, "}};\n");
    }
    text_print(out, "    const rt_u64 start = 0");
    for (uint32_t i = 0; eights && i < r->n_inputs; i++)
        if (gen_is_whole_of_eights(gen_input(r->c, i), r->x.dims[r->x.rank - 1]))
            text_print(out, " | (rt_u64)mpk_data(t, in_x%u)", i);
    text_print(out, ";\n    reduce_by(t, %s", has(r->c, EXPR) ? "x" : "in_x0");
    print_arguments(r, out);
    text_print(out,
               ", !(start & 15),\n              reduce_of<%s, %u>(of, eight_of, more, then));\n}\n",
               eights ? "true" : "false", r->c->op->n_in - r->n_inputs);
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    reduction r;
    bool eights;
    TRY(describe(cx, c, &r));
    gen_print_head(c, n, out);
    if (!has(c, EXPR) && !has(c, THEN)) {
        text_print(out, "    reduce_run(t, in_x0");
        print_arguments(&r, out);
        text_print(out, ");\n}\n");
        return MPK_OK;
    }
    TRY(print_of(cx, &r, &eights, out));
    TRY(print_then(cx, &r, out));
    print_by(&r, eights, out);
    return MPK_OK;
}

/* ---- neighbours along an axis that stays ---- */

/* The axis of x whose entries are neighbours, in whole pieces of 16 bytes; -1: there is none. */
static int across_axis(const ir_tensor *x)
{
    int axis = -1;
    bool pieces = x->offset % ACROSS_PIECE == 0;
    for (uint32_t i = 0; i < x->rank; i++)
        if (axis < 0 && x->stride[i] == 1 && x->dims[i] > 1)
            axis = (int)i;
        else
            pieces = pieces && (x->dims[i] == 1 || x->stride[i] % ACROSS_PIECE == 0);
    return axis >= 0 && pieces && x->dims[axis] % ACROSS_PIECE == 0 ? axis : -1;
}

static bool accepts_across(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, 0), *y = gen_output(c, 0);
    const str kind = c->op->attributes[KIND].s;
    const int axis = across_axis(x);
    reduction r;
    return gen_accepts_plain(c) && !has(c, EXPR) && !has(c, THEN) && x->live == IR_ALL &&
           (x->dtype == IR_BF16 || x->dtype == IR_F16) && gen_is_short_float(y) && axis >= 0 &&
           !str_is(kind, "logsumexp") && describe(NULL, c, &r) == MPK_OK && !(r.set >> axis & 1) &&
           r.n_reduced > 1 && r.n_reduced < INT32_MAX;
}

static mpk_status print_across(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    reduction r;
    const int axis = across_axis(gen_input(c, 0));
    const bool keep = c->op->attributes[KEEP].i;
    int to = axis;
    TRY(describe(cx, c, &r));
    for (int i = 0; i < axis && !keep; i++)
        to -= r.set >> i & 1;
    gen_print_head(c, n, out);
    text_print(out, "    constexpr across_how how = {REDUCE_%s, %u, %s, %d, %lld};\n", r.kind,
               r.set, str_bool(keep), to, (long long)r.n_reduced);
    text_print(out,
               "    if (!reduce_across<%d>(t, in_x0, out_y, how))\n        reduce_run(t, in_x0",
               across_shares(r.n_reduced, ir_elements(gen_output(c, 0)) / ACROSS_PIECE));
    print_arguments(&r, out);
    text_print(out, ");\n}\n");
    return MPK_OK;
}

static uint32_t scratch_of_across(const gen_call *c)
{
    (void)c;
    return ACROSS_BYTES;
}

const gen_body gen_body_reduce_across = {.op = "reduce",
                                         .name = "reduce_across",
                                         .rank = 5,
                                         .accepts = accepts_across,
                                         .print = print_across,
                                         .scratch_bytes = scratch_of_across};
const gen_body gen_body_reduce = GEN_BODY("reduce", "reduce", print, gen_scratch_reduce);
