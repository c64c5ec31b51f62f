/* element_kernels.h - fast bodies of element-wise operators: map, add, mul, gelu and silu, and of
 * recur, whose steps are maps.
 *
 * A box becomes rows: axes that all operands step through evenly are joined to one.  A row is
 * computed in runs of ELEMENT_RUN elements, with a loop over the run for each step of the
 * expression, so that intermediate values stay in the first cache.  Rows of f32 with stride 1
 * are read and written in place.
 *
 * Values are floats, or truth values of four bytes.  Each loop rounds as the reference code
 * does, except for the functions of vec_math.h and vec_functions.h.  An element's bits depend on
 * that element alone.
 *
 * For an expression a * b + 1 over a row of 1200 elements, the steps and where their values lie:
 *
 *   run 0 (512)   step 0 input a   -> in place, or widened to lane 0
 *                 step 1 input b   -> in place, or lane 1
 *                 step 2 a * b     -> lane 2
 *                 step 3 number 1  -> lane 3, filled once for the row
 *                 step 4 sum       -> the result itself if it is f32 with stride 1, else lane 4
 *   run 1 (512), run 2 (176) ..
 *
 * Relies on op/map_compile.c for the steps of an expression.  Used by the isa_*_general.c files.
 */
#ifndef CPU_ELEMENT_KERNELS_H
#define CPU_ELEMENT_KERNELS_H

#include "cpu/vec_functions.h"
#include "op/map_program.h"
#include "op/walk.h"

/* Elements of a run; the result and the inputs of an operator. */
enum { ELEMENT_RUN = 512, ELEMENT_OPERANDS = IR_MAX_INPUTS + 1 };

/* The values of one step along a run.  Aligned so that each vector lies in one cache line and a
 * load finds the store before it.  512 floats for each of a dozen steps just fill a first cache
 * of 32 KB. */
typedef union element_lane {
    _Alignas(64) float f[ELEMENT_RUN];
    int32_t b[ELEMENT_RUN];
} element_lane;

/* ---- rows of a box ---- */

/* The axes of a box, with those joined that can be, so that a contiguous tensor is one long row
 * whatever its rank.  Operand 0 is the result, operand k + 1 is input k.  A broadcast operand
 * has stride 0 along the axes that it repeats. */
typedef struct element_walk {
    uint32_t rank, n_operands; /* rank >= 1 */
    /* in elements, of the box's first element; per joined axis */
    int64_t offset[ELEMENT_OPERANDS], stride[ELEMENT_OPERANDS][IR_MAX_RANK];
    ir_box box; /* of the joined axes; starts at 0 */
} element_walk;

/* Does a further inner axis, of n entries, continue the last one in the memory of every operand? */
static bool element_axes_join(const element_walk *w, const int64_t *stride, int64_t n)
{
    for (uint32_t k = 0; k < w->n_operands; k++)
        if (w->stride[k][w->rank - 1] != stride[k] * n)
            return false;
    return true;
}

/* Append an axis, or join it to the last one; called from the outermost axis to the innermost. */
static void element_add_axis(element_walk *w, const int64_t *stride, int64_t n)
{
    bool joins = w->rank && element_axes_join(w, stride, n);
    uint32_t axis = joins ? w->rank - 1 : w->rank++;
    w->box.hi[axis] = joins ? w->box.hi[axis] * n : n;
    for (uint32_t k = 0; k < w->n_operands; k++)
        w->stride[k][axis] = stride[k];
}

/* Describe a box: the offsets of its first element, and its axes.  Axes of one entry are
 * dropped; a box that has no others (a scalar) gets one of length 1, so that rank >= 1 holds. */
static void element_begin(const op_call *call, const ir_box *box, element_walk *w)
{
    const op_view *y = &call->out[0];
    int64_t stride[ELEMENT_OPERANDS];
    memset(w, 0, sizeof *w);
    w->n_operands = call->n_in + 1;
    for (uint32_t i = 0; i < y->rank; i++) {
        for (uint32_t k = 0; k < w->n_operands; k++) {
            stride[k] = walk_stride(k ? &call->in[k - 1] : y, y->rank, i);
            w->offset[k] += box->lo[i] * stride[k];
        }
        if (box->hi[i] - box->lo[i] != 1)
            element_add_axis(w, stride, box->hi[i] - box->lo[i]);
    }
    memset(stride, 0, sizeof stride);
    if (!w->rank)
        element_add_axis(w, stride, 1);
}

/* The offset in an operand's memory of place at[] of the box. */
static int64_t element_offset(const element_walk *w, uint32_t operand, const int64_t *at)
{
    int64_t offset = w->offset[operand];
    for (uint32_t i = 0; i < w->rank; i++)
        offset += at[i] * w->stride[operand][i];
    return offset;
}

/* The same value n times. */
static void element_fill(float *to, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = value;
}

/* n elements as floats: in place if they are f32 with stride 1, else converted to `to`.  Returns
 * where they are. */
static const float *element_floats(const op_view *x, int64_t offset, int64_t stride, int64_t n,
                                   float *to)
{
    if (x->dtype == IR_F32 && stride == 1)
        return (const float *)x->data + offset;
    if (stride == 0)
        element_fill(to, n, op_load(x, offset));
    else if (x->dtype == IR_F32)
        for (int64_t i = 0; i < n; i++)
            to[i] = ((const float *)x->data)[offset + i * stride];
    else if (stride == 1)
        for (int64_t i = 0; i < n; i += 16)
            v_store_n(to + i, n - i,
                      row_load((const uint16_t *)x->data + offset, x->dtype, i, n - i));
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = op_load(x, offset + i * stride);
    return to;
}

/* Store n floats to the result, rounded to its dtype; nothing to do if they were computed in
 * place. */
static void element_store(const op_view *y, int64_t offset, int64_t stride, int64_t n,
                          const float *from)
{
    float *at = (float *)y->data + offset;
    if (y->dtype == IR_F32 && at == from)
        return;
    if (y->dtype == IR_F32 && stride == 1) {
        memcpy(at, from, (size_t)n * sizeof *at);
        return;
    }
    for (int64_t i = 0; i < n && y->dtype == IR_F32; i++)
        at[i * stride] = from[i];
    for (int64_t i = 0; i < n && y->dtype != IR_F32 && stride == 1; i += 16)
        row_store((uint16_t *)y->data + offset, y->dtype, i, n - i, v_load_n(from + i, n - i));
    for (int64_t i = 0; i < n && y->dtype == IR_F16 && stride != 1; i++)
        ((uint16_t *)y->data)[offset + i * stride] = num_to_f16(from[i]);
    for (int64_t i = 0; i < n && y->dtype == IR_BF16 && stride != 1; i++)
        ((uint16_t *)y->data)[offset + i * stride] = num_to_bf16(from[i]);
}

/* Where a run of floats may be computed: in the result itself, or in `otherwise`.  An input may
 * overlap the result only as a whole (an operator in place), element by element, so a loop that
 * reads x[i] before it writes y[i] is safe. */
static float *element_target(const op_view *y, int64_t offset, int64_t stride, float *otherwise)
{
    return y->dtype == IR_F32 && stride == 1 ? (float *)y->data + offset : otherwise;
}

/* ---- loops ---- */

/* Compute y[i] from a[i], b[i] and c[i] for n elements.  Each loop fixes the types after the
 * pointers; an argument that it does not use may be any valid address. */
typedef void element_loop(void *y, const void *a, const void *b, const void *c, int64_t n);

/* A loop in plain C, which the compiler vectorizes; `expression` of a, b and c. */
#define ELEMENT_LOOP(name, result, type, other, expression)                                        \
    static void element_##name(void *y, const void *x0, const void *x1, const void *x2, int64_t n) \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            type a = ((const type *)x0)[i];                                                        \
            other b = ((const other *)x1)[i], c = ((const other *)x2)[i];                          \
            (void)a, (void)b, (void)c;                                                             \
            ((result *)y)[i] = expression;                                                         \
        }                                                                                          \
    }

/* A loop over a function of vec_math.h, which takes sixteen elements at a time. */
#define ELEMENT_VECTORS(name, function)                                                            \
    static void element_##name(void *y, const void *x0, const void *x1, const void *x2, int64_t n) \
    {                                                                                              \
        (void)x1, (void)x2;                                                                        \
        int64_t i = 0;                                                                             \
        for (; i + 16 <= n; i += 16)                                                               \
            v_store((float *)y + i, function(v_load((const float *)x0 + i)));                      \
        if (i < n)                                                                                 \
            v_store_n((float *)y + i, n - i, function(v_load_n((const float *)x0 + i, n - i)));    \
    }

/* The same for functions of two arguments. */
#define ELEMENT_PAIRS(name, function)                                                              \
    static void element_##name(void *y, const void *x0, const void *x1, const void *x2, int64_t n) \
    {                                                                                              \
        const float *a = x0, *b = x1;                                                              \
        int64_t i = 0;                                                                             \
        (void)x2;                                                                                  \
        for (; i + 16 <= n; i += 16)                                                               \
            v_store((float *)y + i, function(v_load(a + i), v_load(b + i)));                       \
        if (i < n)                                                                                 \
            v_store_n((float *)y + i, n - i,                                                       \
                      function(v_load_n(a + i, n - i), v_load_n(b + i, n - i)));                   \
    }

V_INLINE vf v_sigmoid(vf x)
{
    return v_div(v_set(1), v_add(v_set(1), v_exp(v_sub(v_zero(), x))));
}

ELEMENT_LOOP(negate, float, float, float, -a)
ELEMENT_LOOP(add, float, float, float, a + b)
ELEMENT_LOOP(subtract, float, float, float, a - b)
ELEMENT_LOOP(multiply, float, float, float, a *b)
ELEMENT_LOOP(divide, float, float, float, a / b)
/* min and max: NaN wins, as in the reference; a != a is the test for it. */
ELEMENT_LOOP(min, float, float, float, a < b || a != a ? a : b)
ELEMENT_LOOP(max, float, float, float, a > b || a != a ? a : b)
ELEMENT_LOOP(abs, float, float, float, fabsf(a))
ELEMENT_LOOP(square, float, float, float, a *a)
ELEMENT_LOOP(cube, float, float, float, a *a *a)
ELEMENT_LOOP(sqrt, float, float, float, sqrtf(a))
ELEMENT_LOOP(rsqrt, float, float, float, 1.0f / sqrtf(a))
ELEMENT_LOOP(reciprocal, float, float, float, 1.0f / a)
ELEMENT_LOOP(sign, float, float, float, (float)((a > 0) - (a < 0)))
ELEMENT_LOOP(copysign, float, float, float, copysignf(a, b))
ELEMENT_LOOP(fmin, float, float, float, a < b || b != b ? a : b)
ELEMENT_LOOP(fmax, float, float, float, a > b || b != b ? a : b)
ELEMENT_LOOP(lerp, float, float, float, fabsf(c) < 0.5f ? a + c * (b - a) : b - (b - a) * (1 - c))
/* The sum of two squares of floats rounds once in double, and overflows in float alone. */
ELEMENT_LOOP(hypot, float, float, float,
             fabsf(a) == INFINITY || fabsf(b) == INFINITY
                 ? INFINITY
                 : (float)sqrt((double)a * (double)a + (double)b * (double)b))
ELEMENT_LOOP(less_equal, int32_t, float, float, a <= b)
ELEMENT_LOOP(greater_equal, int32_t, float, float, a >= b)
ELEMENT_LOOP(equal, int32_t, float, float, a == b)
ELEMENT_LOOP(unequal, int32_t, float, float, a != b)
ELEMENT_LOOP(less, int32_t, float, float, a < b)
ELEMENT_LOOP(greater, int32_t, float, float, a > b)
ELEMENT_LOOP(isnan, int32_t, float, float, a != a)
ELEMENT_LOOP(isinf, int32_t, float, float, fabsf(a) == INFINITY)
ELEMENT_LOOP(isfinite, int32_t, float, float, fabsf(a) < INFINITY)
ELEMENT_LOOP(and, int32_t, int32_t, int32_t, a &b)
ELEMENT_LOOP(or, int32_t, int32_t, int32_t, a | b)
ELEMENT_LOOP(xor, int32_t, int32_t, int32_t, a ^ b)
ELEMENT_LOOP(not, int32_t, int32_t, int32_t, a ^ 1)
ELEMENT_LOOP(choose, float, int32_t, float, a ? b : c)
ELEMENT_LOOP(choose_truth, int32_t, int32_t, int32_t, a ? b : c)
ELEMENT_LOOP(to_float, float, int32_t, int32_t, (float)a)
ELEMENT_LOOP(to_truth, int32_t, float, float, a != 0)
ELEMENT_LOOP(round_f16, float, float, float, num_from_f16(num_to_f16(a)))
ELEMENT_LOOP(round_bf16, float, float, float, num_from_bf16(num_to_bf16(a)))
ELEMENT_VECTORS(exp, v_exp_wide)
ELEMENT_VECTORS(tanh, v_tanh)
ELEMENT_VECTORS(erf, v_erf)
ELEMENT_VECTORS(erfc, v_erfc)
ELEMENT_VECTORS(sigmoid, v_sigmoid)
ELEMENT_VECTORS(floor, v_floor)
ELEMENT_VECTORS(ceil, v_ceil)
ELEMENT_VECTORS(trunc, v_trunc)
ELEMENT_VECTORS(round, v_round)
ELEMENT_PAIRS(truncdiv, v_truncdiv)
ELEMENT_PAIRS(fmod, v_fmod)
ELEMENT_PAIRS(remainder, v_remainder)
ELEMENT_PAIRS(floordiv, v_floordiv)
ELEMENT_VECTORS(exp2, v_exp2)
ELEMENT_VECTORS(expm1, v_expm1)
ELEMENT_VECTORS(log, v_log)
ELEMENT_VECTORS(log2, v_log2)
ELEMENT_VECTORS(log10, v_log10)
ELEMENT_VECTORS(log1p, v_log1p)
ELEMENT_VECTORS(sin, v_sin)
ELEMENT_VECTORS(cos, v_cos)
ELEMENT_VECTORS(tan, v_tan)
ELEMENT_VECTORS(asin, v_asin)
ELEMENT_VECTORS(acos, v_acos)
ELEMENT_VECTORS(atan, v_atan)
ELEMENT_VECTORS(sinh, v_sinh)
ELEMENT_VECTORS(cosh, v_cosh)
ELEMENT_VECTORS(atanh, v_atanh)
ELEMENT_PAIRS(pow, v_pow)
ELEMENT_PAIRS(atan2, v_atan2)
ELEMENT_PAIRS(ldexp, v_ldexp)
ELEMENT_PAIRS(logaddexp, v_logaddexp)
ELEMENT_PAIRS(logaddexp2, v_logaddexp2)
ELEMENT_PAIRS(xlogy, v_xlogy)
ELEMENT_VECTORS(gelu, v_gelu)
ELEMENT_VECTORS(gelu_tanh, v_gelu_tanh)
ELEMENT_VECTORS(silu, v_silu)

/* Functions of a map that have a loop here, by the type of their last argument (the first of
 * `where` is always a truth value).  NULL: no loop here for this type. */
typedef struct element_function {
    const char *name;
    element_loop *of_floats, *of_truths;
} element_function;

/* Names are those of op/map_functions.c.  A function of floats that is missing (lgamma,
 * asinh ..) is computed by its reference loop: slower, with the same bits. */
static const element_function element_functions[] = {
    {"-x", element_negate, NULL},
    {"+", element_add, NULL},
    {"-", element_subtract, NULL},
    {"*", element_multiply, NULL},
    {"/", element_divide, NULL},
    {"min", element_min, NULL},
    {"max", element_max, NULL},
    {"abs", element_abs, NULL},
    {"square", element_square, NULL},
    {"sqrt", element_sqrt, NULL},
    {"rsqrt", element_rsqrt, NULL},
    {"reciprocal", element_reciprocal, NULL},
    {"exp", element_exp, NULL},
    {"tanh", element_tanh, NULL},
    {"erf", element_erf, NULL},
    {"erfc", element_erfc, NULL},
    {"sigmoid", element_sigmoid, NULL},
    {"exp2", element_exp2, NULL},
    {"expm1", element_expm1, NULL},
    {"log", element_log, NULL},
    {"log2", element_log2, NULL},
    {"log10", element_log10, NULL},
    {"log1p", element_log1p, NULL},
    {"sin", element_sin, NULL},
    {"cos", element_cos, NULL},
    {"tan", element_tan, NULL},
    {"asin", element_asin, NULL},
    {"acos", element_acos, NULL},
    {"atan", element_atan, NULL},
    {"sinh", element_sinh, NULL},
    {"cosh", element_cosh, NULL},
    {"atanh", element_atanh, NULL},
    {"pow", element_pow, NULL},
    {"atan2", element_atan2, NULL},
    {"ldexp", element_ldexp, NULL},
    {"logaddexp", element_logaddexp, NULL},
    {"logaddexp2", element_logaddexp2, NULL},
    {"xlogy", element_xlogy, NULL},
    {"floor", element_floor, NULL},
    {"ceil", element_ceil, NULL},
    {"trunc", element_trunc, NULL},
    {"round", element_round, NULL},
    {"truncdiv", element_truncdiv, NULL},
    {"fmod", element_fmod, NULL},
    {"remainder", element_remainder, NULL},
    {"floordiv", element_floordiv, NULL},
    {"sign", element_sign, NULL},
    {"copysign", element_copysign, NULL},
    {"fmin", element_fmin, NULL},
    {"fmax", element_fmax, NULL},
    {"lerp", element_lerp, NULL},
    {"hypot", element_hypot, NULL},
    {"<=", element_less_equal, NULL},
    {">=", element_greater_equal, NULL},
    {"==", element_equal, NULL},
    {"!=", element_unequal, NULL},
    {"<", element_less, NULL},
    {">", element_greater, NULL},
    {"isnan", element_isnan, NULL},
    {"isinf", element_isinf, NULL},
    {"isfinite", element_isfinite, NULL},
    {"land", NULL, element_and},
    {"lor", NULL, element_or},
    {"lxor", NULL, element_xor},
    {"lnot", NULL, element_not},
    {"and", NULL, element_and},
    {"or", NULL, element_or},
    {"xor", NULL, element_xor},
    {"not", NULL, element_not},
    {"where", element_choose, element_choose_truth},
    {NULL, NULL, NULL},
};

/* ---- map ---- */

/* Attributes of map and recur, by index. */
enum { MAP_EXPRESSION, RECUR_START = 2 };

/* A compiled expression with the loop of each step; at the start of a task's scratch. */
typedef struct element_program {
    _Alignas(64) map_program map; /* lanes follow it */
    /* NULL: an input, a number, or a function of floats that only map's table has */
    element_loop *loop[MAP_STEPS];
    /* the value is the same along a row, so it is computed in the row's first run only */
    bool is_even[MAP_STEPS];
} element_program;

/* Run the reference loop of a function of floats, MAP_RUN elements at a time. */
static void element_call_reference(const map_function *f, float *y, const float *const *x,
                                   int64_t n)
{
    map_lane in[MAP_ARGUMENTS], out;
    for (int64_t i = 0; i < n; i += MAP_RUN) {
        int64_t part = n - i < MAP_RUN ? n - i : MAP_RUN;
        for (uint32_t k = 0; k < MAP_ARGUMENTS; k++)
            memcpy(in[k].f, x[k] + i, (size_t)part * sizeof(float));
        f->loop[MAP_F](&out, &in[0], &in[1], &in[2], part);
        memcpy(y + i, out.f, (size_t)part * sizeof(float));
    }
}

/* The loop of a power: a product where the exponent is a number for which that is enough. */
static element_loop *element_power(const element_program *p, const map_step *step)
{
    const map_step *by = &p->map.steps[step->arg[1]];
    if (by->kind != MAP_NUMBER || by->type != MAP_F)
        return element_pow;
    if (by->real == 3)
        return element_cube;
    return by->real == 2 ? element_square : element_pow;
}

/* Find the loop of a call; *loop NULL: the reference loop of floats is used.  False: there is
 * neither, as for a function of integers. */
static bool element_find_call(const element_program *p, const map_step *step, element_loop **loop)
{
    const map_function *f = &map_functions[step->number];
    const element_function *e = element_functions;
    map_type type = p->map.steps[step->arg[f->arity - 1]].type;
    while (e->name && strcmp(e->name, f->name) != 0)
        e++;
    *loop = type == MAP_F ? e->of_floats : type == MAP_B ? e->of_truths : NULL;
    if (type == MAP_F && strcmp(f->name, "pow") == 0)
        *loop = element_power(p, step);
    return *loop || (type == MAP_F && step->type == MAP_F && f->rule != MAP_CHOICE);
}

/* Find the loop of any step.  False: the step works on values other than floats and truth
 * values. */
static bool element_find_loop(const element_program *p, const map_step *step, element_loop **loop)
{
    map_type from = p->map.steps[step->arg[0]].type;
    *loop = NULL;
    if (step->type != MAP_F && step->type != MAP_B)
        return false;
    if (step->kind == MAP_CALL)
        return element_find_call(p, step, loop);
    if (step->kind == MAP_CONVERT)
        *loop = from == MAP_B ? element_to_float : element_to_truth;
    else if (step->kind == MAP_ROUND)
        *loop = step->number == IR_F16 ? element_round_f16 : element_round_bf16;
    return step->kind != MAP_CONVERT || from == MAP_B || from == MAP_F;
}

/* Parse the expression and find a loop for each step.  False: this body cannot compute it.  Done
 * again for each task, so that tasks share no memory. */
static bool element_compile(const op_call *call, element_program *p)
{
    ir_dtype dtypes[IR_MAX_INPUTS];
    for (uint32_t i = 0; i < call->n_in; i++)
        dtypes[i] = call->in[i].dtype;
    if (map_compile(NULL, call->attributes[MAP_EXPRESSION].s, call->n_in, dtypes, &p->map) !=
        MPK_OK)
        return false;
    bool ok = true;
    for (uint32_t s = 0; s < p->map.n && ok; s++)
        ok = element_find_loop(p, &p->map.steps[s], &p->loop[s]);
    return ok;
}

/* Accepts expressions over floats and truth values whose result is stored in its own type. */
static bool map_accepts(const op_call *call)
{
    element_program p;
    if (!element_compile(call, &p))
        return false;
    bool truth = p.map.steps[p.map.result].type == MAP_B;
    return truth ? call->out[0].dtype == IR_BOOL : row_is_float(call->out[0].dtype);
}

/* One run while it is computed.  value[s]: where the value of step s lies, which may be an
 * input's own memory. */
typedef struct element_run {
    const op_call *call;
    const element_walk *walk;
    const element_program *program;
    element_lane *lanes; /* [MAP_SLOTS], by a step's slot */
    const void *value[MAP_STEPS];
    int64_t offset[ELEMENT_OPERANDS], n; /* offset: of the first element of the run */
} element_run;

/* The value of an input along the run.  Floats are widened; truth values of one byte become
 * words of 0 or 1. */
static const void *element_input(const element_run *r, const map_step *step, element_lane *to)
{
    const op_view *x = &r->call->in[step->number];
    int64_t stride = r->walk->stride[step->number + 1][r->walk->rank - 1],
            offset = r->offset[step->number + 1];
    const uint8_t *truths = (const uint8_t *)x->data + offset;
    if (step->type == MAP_F)
        return element_floats(x, offset, stride, r->n, to->f);
    for (int64_t i = 0; i < r->n; i++)
        to->b[i] = truths[i * stride] != 0;
    return to;
}

/* A constant, along the whole run. */
static const void *element_number(const map_step *step, int64_t n, element_lane *to)
{
    if (step->type == MAP_F)
        element_fill(to->f, n, (float)step->real);
    for (int64_t i = 0; i < n && step->type == MAP_B; i++)
        to->b[i] = (int32_t)step->whole;
    return to;
}

/* Compute step s of the run; the last step writes to the result itself if it can. */
static void element_step(element_run *r, uint32_t s)
{
    const map_step *step = &r->program->map.steps[s];
    const op_view *y = &r->call->out[0];
    const void *x[MAP_ARGUMENTS];
    element_lane *lane = &r->lanes[step->slot];
    float *to = lane->f;
    if (s == r->program->map.result && step->type == MAP_F)
        to = element_target(y, r->offset[0], r->walk->stride[0][r->walk->rank - 1], to);
    r->value[s] = to;
    for (uint32_t k = 0; k < MAP_ARGUMENTS && step->kind > MAP_NUMBER; k++)
        x[k] = r->value[step->arg[k]];
    if (step->kind == MAP_INPUT)
        r->value[s] = element_input(r, step, lane);
    else if (step->kind == MAP_NUMBER)
        r->value[s] = element_number(step, r->n, lane);
    else if (r->program->loop[s])
        r->program->loop[s](to, x[0], x[1], x[2], r->n);
    else
        element_call_reference(&map_functions[step->number], to, (const float *const *)x, r->n);
}

/* Store the run, unless the last step has. */
static void element_finish(const element_run *r)
{
    const op_view *y = &r->call->out[0];
    uint32_t result = r->program->map.result;
    int64_t stride = r->walk->stride[0][r->walk->rank - 1];
    const int32_t *truths = r->value[result];
    if (r->program->map.steps[result].type == MAP_F)
        element_store(y, r->offset[0], stride, r->n, r->value[result]);
    else
        for (int64_t i = 0; i < r->n; i++)
            ((uint8_t *)y->data)[r->offset[0] + i * stride] = (uint8_t)truths[i];
}

/* Find the steps whose value is the same along a row: constants, broadcast inputs, and calls of
 * such values alone.  Possible only if every step has a slot of its own, so that a later step
 * does not overwrite the value. */
static void element_find_even(element_program *p, const element_walk *walk)
{
    for (uint32_t s = 0; s < p->map.n; s++) {
        map_step *step = &p->map.steps[s];
        bool even = p->map.n <= MAP_SLOTS && s != p->map.result;
        if (step->kind == MAP_INPUT)
            even = even && walk->stride[step->number + 1][walk->rank - 1] == 0;
        for (uint32_t k = 0; k < MAP_ARGUMENTS && step->kind > MAP_NUMBER; k++)
            even = even && (p->is_even[step->arg[k]] || (k > 0 && step->kind != MAP_CALL));
        p->is_even[s] = even;
        if (p->map.n <= MAP_SLOTS)
            step->slot = (uint16_t)s;
    }
}

/* Scratch: the program, and a lane for each slot. */
static size_t map_scratch_bytes(const op_call *call, const ir_box *box)
{
    (void)call, (void)box;
    return sizeof(element_program) + MAP_SLOTS * sizeof(element_lane);
}

/* The body of map.  at[] counts over the outer axes; along the last one the box is computed in
 * runs.  Values that are the same along a row are computed in its first run, with the length of
 * that run, since later runs are never longer. */
static void map_run(const op_call *call, const ir_box *box, void *scratch)
{
    element_program *program = scratch;
    element_walk walk;
    element_run r = {
        .call = call, .walk = &walk, .program = program, .lanes = (void *)(program + 1)};
    int64_t at[IR_MAX_RANK] = {0};
    if (!element_compile(call, program))
        return; /* cannot happen: map_accepts refused it */
    element_begin(call, box, &walk);
    element_find_even(program, &walk);
    uint32_t last = walk.rank - 1;
    do {
        for (uint32_t k = 0; k < walk.n_operands; k++)
            r.offset[k] = element_offset(&walk, k, at);
        for (at[last] = 0; at[last] < walk.box.hi[last]; at[last] += ELEMENT_RUN) {
            r.n = walk.box.hi[last] - at[last] < ELEMENT_RUN ? walk.box.hi[last] - at[last]
                                                             : ELEMENT_RUN;
            for (uint32_t s = 0; s < program->map.n; s++)
                if (!program->is_even[s] || at[last] == 0)
                    element_step(&r, s);
            element_finish(&r);
            for (uint32_t k = 0; k < walk.n_operands; k++)
                r.offset[k] += r.n * walk.stride[k][last];
        }
        at[last] = 0;
    } while (walk_next(&walk.box, last, at));
}

/* ---- recur ---- */

/* What there is before step 0: "zero", "given" or "first". */
static bool recur_starts(const op_call *call, const char *how)
{
    return str_is(call->attributes[RECUR_START].s, how);
}

/* One step as a map, whose last operand is the value before: of step 0 what is given or zero, then
 * the result itself, one step earlier. */
static op_call recur_step(const op_call *call, int64_t step)
{
    static const float zero[1] = {0};
    op_call of = *call;
    const op_view *y = &call->out[0];
    op_view *before = &of.in[call->n_in - recur_starts(call, "given")];
    of.n_in = (uint32_t)(before - of.in) + 1;
    if (step == 0) {
        if (!recur_starts(call, "given"))
            *before = (op_view){.data = (void *)zero, .dtype = IR_F32};
        return of;
    }
    *before = *y;
    before->rank--;
    memmove(before->dims, y->dims + 1, before->rank * sizeof *y->dims);
    memmove(before->stride, y->stride + 1, before->rank * sizeof *y->stride);
    before->data = (char *)y->data + ir_row_bytes(y->dtype, (step - 1) * y->stride[0]);
    return of;
}

/* As map's, of the second step: the value before has y's dtype. */
static bool recur_accepts(const op_call *call)
{
    const op_call step = recur_step(call, 1);
    return row_is_float(call->out[0].dtype) && map_accepts(&step);
}

static size_t recur_scratch_bytes(const op_call *call, const ir_box *box)
{
    return map_scratch_bytes(call, box);
}

/* The values of step 0 are those of operand 0. */
static void recur_first(const op_call *call, const ir_box *step)
{
    const op_view *x = &call->in[0], *y = &call->out[0];
    int64_t at[IR_MAX_RANK];
    memcpy(at, step->lo, sizeof at);
    do
        op_store(y, walk_offset(y, at), op_load(x, walk_broadcast(x, y->rank, at)));
    while (walk_next(step, y->rank, at));
}

/* Step by step, each a map of the box: long rows, where the reference goes along lines. */
static void recur_run(const op_call *call, const ir_box *box, void *scratch)
{
    ir_box step = *box;
    for (int64_t i = 0; i < call->out[0].dims[0]; i++) {
        const op_call of = recur_step(call, i);
        step.lo[0] = i;
        step.hi[0] = i + 1;
        if (i == 0 && recur_starts(call, "first"))
            recur_first(call, &step);
        else
            map_run(&of, &step, scratch);
    }
}

/* ---- operators of one function ---- */

/* add, mul, gelu and silu take floats of any strides. */
static bool element_accepts(const op_call *call)
{
    for (uint32_t i = 0; i < call->n_in; i++)
        if (!row_is_float(call->in[i].dtype))
            return false;
    return row_is_float(call->out[0].dtype);
}

static size_t element_scratch_bytes(const op_call *call, const ir_box *box)
{
    (void)call, (void)box;
    return 3 * sizeof(element_lane);
}

/* One loop over the box: two lanes for inputs that must be converted, a third for the result. */
static void element_apply(const op_call *call, const ir_box *box, element_lane *lanes,
                          element_loop *loop)
{
    const op_view *y = &call->out[0];
    element_walk walk;
    int64_t at[IR_MAX_RANK] = {0};
    element_begin(call, box, &walk);
    uint32_t last = walk.rank - 1;
    do {
        for (at[last] = 0; at[last] < walk.box.hi[last]; at[last] += ELEMENT_RUN) {
            int64_t n = walk.box.hi[last] - at[last] < ELEMENT_RUN ? walk.box.hi[last] - at[last]
                                                                   : ELEMENT_RUN;
            int64_t to = element_offset(&walk, 0, at), step = walk.stride[0][last];
            const float *x[2] = {0};
            for (uint32_t k = 0; k < call->n_in; k++)
                x[k] = element_floats(&call->in[k], element_offset(&walk, k + 1, at),
                                      walk.stride[k + 1][last], n, lanes[k].f);
            float *result = element_target(y, to, step, lanes[2].f);
            loop(result, x[0], x[call->n_in - 1], x[0], n);
            element_store(y, to, step, n, result);
        }
        at[last] = 0;
    } while (walk_next(&walk.box, last, at));
}

static void add_run(const op_call *call, const ir_box *box, void *scratch)
{
    element_apply(call, box, scratch, element_add);
}
static void mul_run(const op_call *call, const ir_box *box, void *scratch)
{
    element_apply(call, box, scratch, element_multiply);
}
static void gelu_run(const op_call *call, const ir_box *box, void *scratch)
{
    element_apply(call, box, scratch, call->attributes[0].i ? element_gelu_tanh : element_gelu);
}
static void silu_run(const op_call *call, const ir_box *box, void *scratch)
{
    element_apply(call, box, scratch, element_silu);
}

#endif
