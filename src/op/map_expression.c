/* map_expression.c - the operator map: any element-wise expression over up to twenty broadcast
 * inputs.
 *
 * x0 .. x19 of any plain dtype -> the broadcast shape, in the dtype that is named; if none is, in
 * that of x0 if it is a float, else f32.  For instance "x0 * sigmoid(x0) + 1.5", or with names for
 * values "t0 = exp(x0); t0 / (1 + t0)".
 *
 *   operators   - x, x * y, x / y, x + y, x - y, x < y, x <= y, x > y, x >= y, x == y, x != y
 *   numbers     2, 2.5, 1e-3, inf, nan, true, false
 *   rounding    f32(x) f16(x) bf16(x) f64(x) i64(x) i32(x) i16(x) i8(x) u8(x) bool(x)
 *   floats      exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos
 *               atan sinh cosh tanh asinh acosh atanh sigmoid erf erfc erfcx erfinv ndtri log_ndtr
 *               lgamma digamma j0 j1 y0 y1 i0 i0e i1 i1e k0 k0e k1 k1e atan2(x, y) hypot copysign
 *               nextafter ldexp logaddexp logaddexp2 xlogy zeta(x, q) igamma(a, x) igammac
 *               chebyshev_t(x, n) chebyshev_u chebyshev_v chebyshev_w hermite_h hermite_he laguerre
 *               legendre lerp(x, y, w)
 *   any number  abs sign square floor ceil trunc round min(x, y) max fmin fmax pow fmod remainder
 *               floordiv truncdiv
 *   integers    gcd(x, y) lcm shl shr; and of truths too: and(x, y) or xor not(x)
 *   truths      isnan isinf isfinite signbit land(x, y) lor lxor lnot(x) where(c, x, y)
 *
 * A value is a truth, a 64-bit integer, an fp32 or an fp64: of two that meet, both become the
 * higher; a number fits what it meets.  Idea: each step of the compiled text runs over 64 elements,
 * so that the loops are vectors. Cost: a load, or an operation, a step and element.
 */
#include "op/fill.h"
#include "op/map_program.h"
#include "op/runs.h"
#include "op/walk.h"

/* Attributes, by index. */
enum { EXPRESSION, DTYPE };

/* The dtypes of all inputs, from which the types of computation follow. */
static void list_dtypes(const ir_graph *g, const ir_op *op, ir_dtype dtypes[IR_MAX_INPUTS])
{
    for (uint32_t i = 0; i < op->n_in; i++)
        dtypes[i] = shape_input(g, op, i)->dtype;
}

/* Compiling is also the check: a program that compiles can run. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    map_program program;
    ir_dtype dtypes[IR_MAX_INPUTS];
    str name = op->attributes[DTYPE].s;
    for (uint32_t i = 0; i < op->n_in; i++)
        TRY(shape_expect_dtype(cx, g, op, i, SHAPE_PLAIN));
    list_dtypes(g, op, dtypes);
    TRY(map_compile(cx, op->attributes[EXPRESSION].s, op->n_in, dtypes, &program));
    out->dtype = SHAPE_REAL_NUMBER >> dtypes[0] & 1 ? dtypes[0] : IR_F32;
    CHECK(cx, !name.n || (ir_dtype_from_name(name, &out->dtype) && SHAPE_PLAIN >> out->dtype & 1),
          MPK_EUNSUPPORTED, "map: dtype \"%.*s\" is not a plain dtype", STR_ARG(name));
    return shape_broadcast(cx, g, op, out);
}

/* Load n elements of an input, from entry `at` of the result on, as the step's type; broadcast
 * axes repeat one. */
static void load_run(const op_view *x, map_type type, uint32_t rank, const int64_t *at, int64_t n,
                     map_lane *to)
{
    int64_t from = walk_broadcast(x, rank, at), stride = rank ? walk_stride(x, rank, rank - 1) : 0;
    if (type == MAP_F && stride == 1)
        op_load_row(x, from, 0, n, to->f);
    else if (type == MAP_F)
        for (int64_t i = 0; i < n; i++)
            to->f[i] = i && stride == 0 ? to->f[0] : op_load(x, from + i * stride);
    else if (type == MAP_D)
        for (int64_t i = 0; i < n; i++)
            to->d[i] = ((const double *)x->data)[from + i * stride];
    else
        for (int64_t i = 0; i < n; i++)
            to->i[i] = walk_load_int(x, from + i * stride);
}

/* Fill n elements with a number. */
static void set_run(const map_step *step, int64_t n, map_lane *to)
{
    for (int64_t i = 0; i < n; i++)
        if (step->type == MAP_F)
            to->f[i] = (float)step->real;
        else if (step->type == MAP_D)
            to->d[i] = step->real;
        else
            to->i[i] = step->whole;
}

/* An element of any type as double: exact but for integers beyond 2^53. */
static double lane_double(const map_lane *lane, map_type type, int64_t i)
{
    if (type == MAP_D)
        return lane->d[i];
    return type == MAP_F ? (double)lane->f[i] : (double)lane->i[i];
}

/* Convert n elements of type `from` to type `to`, as map_step says. */
static void convert_run(const map_lane *x, map_type from, map_type to, int64_t n, map_lane *y)
{
    for (int64_t i = 0; i < n; i++)
        if (to == MAP_D)
            y->d[i] = lane_double(x, from, i);
        else if (to == MAP_F)
            y->f[i] = from == MAP_D ? (float)x->d[i] : (float)x->i[i];
        else if (to == MAP_B)
            y->i[i] = from == MAP_I ? x->i[i] != 0 : lane_double(x, from, i) != 0;
        else
            y->i[i] = from == MAP_B ? x->i[i] : walk_truncate(lane_double(x, from, i));
}

/* Round n elements of type `from` as a trip through a tensor of this dtype would. */
static void round_run(const map_lane *x, map_type from, ir_dtype dtype, int64_t n, map_lane *y)
{
    int64_t kept[1];
    op_view v = {.data = kept, .dtype = dtype};
    for (int64_t i = 0; i < n; i++) {
        if (dtype == IR_F16 || dtype == IR_BF16) {
            y->f[i] = walk_round(dtype, x->f[i]);
            continue;
        }
        if (from == MAP_I)
            walk_store_int(&v, 0, x->i[i]);
        else
            walk_store_double(&v, 0, lane_double(x, from, i));
        y->i[i] = walk_load_int(&v, 0);
    }
}

/* Step by step for the whole run rather than element by element: what a step is gets decided once
 * for MAP_RUN elements, and each loop is one that compilers vectorise. */
void map_evaluate(const map_program *program, const op_view *in, uint32_t rank, const int64_t *at,
                  int64_t n, map_lane *lanes)
{
    for (uint32_t s = 0; s < program->n; s++) {
        const map_step *step = &program->steps[s], *first = &program->steps[step->arg[0]];
        map_lane *to = &lanes[step->slot], *a = &lanes[first->slot];
        if (step->kind == MAP_INPUT) {
            load_run(&in[step->number], step->type, rank, at, n, to);
        } else if (step->kind == MAP_NUMBER) {
            set_run(step, n, to);
        } else if (step->kind == MAP_CONVERT) {
            convert_run(a, first->type, step->type, n, to);
        } else if (step->kind == MAP_ROUND) {
            round_run(a, first->type, (ir_dtype)step->number, n, to);
        } else {
            const map_function *f = &map_functions[step->number];
            const map_step *last = &program->steps[step->arg[f->arity - 1]];
            f->loop[last->type](to, a, &lanes[program->steps[step->arg[1]].slot],
                                &lanes[program->steps[step->arg[2]].slot], n);
        }
    }
}

/* Store n elements; rounding to the stored dtype happens here, once. */
static void store_run(const op_view *y, const map_lane *from, map_type type, const int64_t *at,
                      int64_t n)
{
    int64_t to = walk_offset(y, at), stride = y->rank ? y->stride[y->rank - 1] : 1;
    if (type == MAP_F) {
        walk_store_row(y, to, 0, n, from->f);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        if (type == MAP_D)
            walk_store_double(y, to + i * stride, from->d[i]);
        else
            walk_store_int(y, to + i * stride, from->i[i]);
}

/* Scratch: the compiled program and its lanes. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)g, (void)op, (void)box;
    return sizeof(map_program) + MAP_SLOTS * sizeof(map_lane);
}

/* Runs along the last axis; the program is compiled again for each task, which is cheap beside a
 * task. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *y = &call->out[0];
    map_program *program = scratch;
    map_lane *lanes = (void *)(program + 1);
    ir_dtype dtypes[IR_MAX_INPUTS];
    for (uint32_t i = 0; i < call->n_in; i++)
        dtypes[i] = call->in[i].dtype;
    if (map_compile(NULL, call->attributes[EXPRESSION].s, call->n_in, dtypes, program) != MPK_OK)
        return; /* infer has refused it */
    const map_step *result = &program->steps[program->result];
    uint32_t last = y->rank ? y->rank - 1 : 0;
    int64_t at[IR_MAX_RANK], end = y->rank ? box->hi[last] : 1;
    memcpy(at, box->lo, sizeof at);
    do {
        for (at[last] = box->lo[last]; at[last] < end; at[last] += MAP_RUN) {
            int64_t n = end - at[last] < MAP_RUN ? end - at[last] : MAP_RUN;
            map_evaluate(program, call->in, y->rank, at, n, lanes);
            store_run(y, &lanes[result->slot], result->type, at, n);
        }
        at[last] = box->lo[last];
    } while (walk_next(box, last, at));
}

static const op_operand in[] = {{"x", OP_VARIADIC}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("expr", STR), SHAPE_WORD("dtype", "")};
/* Broadcasting with mixed dtypes; precedence; functions of each kind; temporaries; integers,
 * doubles, truths; rows of whole eights, alike and broadcast; a scalar. */
static const op_case cases[] = {
    {"input %a : f32[7, 320] live=tokens\n%y = map(%a) {expr = \"x0 * sigmoid(x0) + 1.5\"}\n"},
    {"input %a : bf16[3, 1, 17]\ninput %b : f32[5, 1]\ninput %c : i32[17]\n"
     "%y = map(%a, %b, %c) {expr = \"where(x0 < x1, min(x0, -x2), max(abs(x1), 0.5e0) / 2)\"}\n"},
    {"input %a : f32[100]\n%y = map(%a) {expr = \"exp(-x0*x0) - (log(abs(x0)) >= 0) + "
     "sqrt(abs(x0)) * rsqrt(x0 * x0 + "
     "1)\"}\n"},
    {"input %a : f16[3, 70]\n%y = map(%a) {expr = \"sin(x0) + cos(x0) * tanh(x0) - erf(x0) + "
     "pow(abs(x0), 2) - "
     "floor(x0)\"}\n"},
    {"input %a : i32[3, 70]\ninput %b : i32[70]\n%y = map(%a, %b) {expr = \"t0 = floordiv(x0, x1); "
     "t1 = i32(t0 * x1); "
     "xor(shl(t1, 3), remainder(x0, x1)) + pow(x1, 2)\", dtype = \"i32\"}\n"},
    {"input %a : f64[7, 3] live=tokens\ninput %b : i64[3]\n%y = map(%a, %b) {expr = "
     "\"where(isnan(x0), x1, "
     "lgamma(x0 / 3))\"}\n"},
    {"input %a : bf16[130]\ninput %b : u8[130]\n%y = map(%a, %b) {expr = \"land(bf16(x0 + 1) > "
     "f16(x0), x1)\", "
     "dtype = \"bool\"}\n"},
    {"input %a : bf16[5, 104]\ninput %b : bf16[5, 104]\n%y = map(%a, %b) {expr = \"x0 * x1 - "
     "1\"}\n"},
    {"input %a : f32[3, 1, 40]\ninput %b : bf16[3, 5, 40]\ninput %c : f32[40]\n%y = map(%a, %b, "
     "%c) "
     "{expr = \"x0 * x1 + x2\"}\n"},
    {"input %a : bool[]\n%y = map(%a) {expr = \"(x0 == 1) != (x0 <= 0)\"}\n"},
};

const op_def op_map = {
    .name = "map",
    .summary = "an element-wise expression over broadcast inputs",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_ELEMENTWISE,
    .infer = infer,
    .axes = runs_axes,
    .reads = shape_reads_broadcast,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill_wide_integers,
};
