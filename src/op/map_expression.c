/* map_expression.c - the operator map: any element-wise expression over up to twenty broadcast inputs.
 *
 * For instance "x0 * sigmoid(x0) + 1.5".  The grammar:
 *
 *   compare := sum [(< | <= | > | >= | == | !=) sum]        1 or 0
 *   sum     := product {(+ | -) product}
 *   product := unary {(* | /) unary}
 *   unary   := - unary | number | x0 .. x19 | function ( compare {, compare} ) | ( compare )
 *
 * The text is compiled to postfix code by recursive descent, which runs over short runs of elements in fp32.  The
 * result has the dtype of x0 if that is a float, else f32.
 */
#include <math.h>

#include "op/shape.h"
#include "op/walk.h"

enum { MAP_CODE = 256, MAP_STACK = 32, MAP_NESTING = 64, MAP_RUN = 64 };

static float map_less(float a, float b)
{
    return a < b;
}
static float map_less_equal(float a, float b)
{
    return a <= b;
}
static float map_greater(float a, float b)
{
    return a > b;
}
static float map_greater_equal(float a, float b)
{
    return a >= b;
}
static float map_equal(float a, float b)
{
    return a == b;
}
static float map_unequal(float a, float b)
{
    return a != b;
}
static float map_add(float a, float b)
{
    return a + b;
}
static float map_subtract(float a, float b)
{
    return a - b;
}
static float map_multiply(float a, float b)
{
    return a * b;
}
static float map_divide(float a, float b)
{
    return a / b;
}
static float map_negate(float a)
{
    return -a;
}
static float map_rsqrt(float a)
{
    return 1.0f / sqrtf(a);
}
static float map_sigmoid(float a)
{
    return 1.0f / (1.0f + expf(-a));
}
/* NaN wins, as in PyTorch. */
static float map_min(float a, float b)
{
    return a < b || a != a ? a : b;
}
static float map_max(float a, float b)
{
    return a > b || a != a ? a : b;
}

/* Functions by name; where(c, a, b) has a row of its own kind.  Operators have names that no text can spell. */
typedef struct map_function {
    const char *name;
    uint32_t arity;
    float (*one)(float);
    float (*two)(float, float);
} map_function;

enum { NEGATE, ADD, SUBTRACT, MULTIPLY, DIVIDE, COMPARE }; /* the first rows; six comparisons from COMPARE on */

static const map_function functions[] = {
    {"-x", 1, map_negate, NULL},
    {"+", 2, NULL, map_add},
    {"-", 2, NULL, map_subtract},
    {"*", 2, NULL, map_multiply},
    {"/", 2, NULL, map_divide},
    {"<=", 2, NULL, map_less_equal},
    {">=", 2, NULL, map_greater_equal},
    {"==", 2, NULL, map_equal},
    {"!=", 2, NULL, map_unequal},
    {"<", 2, NULL, map_less},
    {">", 2, NULL, map_greater},
    {"min", 2, NULL, map_min},
    {"max", 2, NULL, map_max},
    {"pow", 2, NULL, powf},
    {"abs", 1, fabsf, NULL},
    {"exp", 1, expf, NULL},
    {"log", 1, logf, NULL},
    {"sqrt", 1, sqrtf, NULL},
    {"rsqrt", 1, map_rsqrt, NULL},
    {"sin", 1, sinf, NULL},
    {"cos", 1, cosf, NULL},
    {"tanh", 1, tanhf, NULL},
    {"sigmoid", 1, map_sigmoid, NULL},
    {"erf", 1, erff, NULL},
    {"floor", 1, floorf, NULL},
    {"where", 3, NULL, NULL},
};

typedef struct map_step {
    enum { MAP_INPUT, MAP_NUMBER, MAP_CALL } kind;
    uint32_t number; /* of the input or the function */
    float value;
} map_step;

typedef struct map_program {
    map_step steps[MAP_CODE];
    uint32_t n;
} map_program;

typedef struct map_parser {
    mpk_context *cx;
    str source;
    size_t at;
    uint32_t n_in, depth, nesting;
    map_program *program;
} map_parser;

static mpk_status fail_at(const map_parser *p, const char *what)
{
    FAIL(p->cx, MPK_EFORMAT, "map: %s at character %zu of \"%.*s\"", what, p->at + 1, STR_ARG(p->source));
}

/* The next character after spaces, 0 at the end. */
static char peek(map_parser *p)
{
    while (p->at < p->source.n && p->source.at[p->at] == ' ')
        p->at++;
    return p->at < p->source.n ? p->source.at[p->at] : 0;
}

static bool take(map_parser *p, char c)
{
    if (peek(p) != c)
        return false;
    p->at++;
    return true;
}

/* Append a step and keep count of the stack, which run_program will not check. */
static mpk_status emit(map_parser *p, map_step step)
{
    p->depth = step.kind == MAP_CALL ? p->depth + 1 - functions[step.number].arity : p->depth + 1;
    if (p->program->n == MAP_CODE || p->depth > MAP_STACK)
        return fail_at(p, "the expression is too long");
    p->program->steps[p->program->n++] = step;
    return MPK_OK;
}

static mpk_status emit_call(map_parser *p, uint32_t function)
{
    return emit(p, (map_step){.kind = MAP_CALL, .number = function});
}

static mpk_status parse_compare(map_parser *p);

/* Does the character after s belong to the number that s begins?  A sign does after an exponent's letter. */
static bool in_number(str s)
{
    char c = s.at[s.n];
    bool after_e = s.n && (s.at[s.n - 1] | 0x20) == 'e';
    return (c >= '0' && c <= '9') || c == '.' || (s.n && (c | 0x20) == 'e') || (after_e && (c == '+' || c == '-'));
}

static mpk_status parse_number(map_parser *p)
{
    str digits = {p->source.at + p->at, 0};
    double value;
    while (p->at + digits.n < p->source.n && in_number(digits))
        digits.n++;
    if (!str_read_double(digits, &value))
        return fail_at(p, "expected a number, an input or a function");
    p->at += digits.n;
    return emit(p, (map_step){.kind = MAP_NUMBER, .value = (float)value});
}

/* x0 .. x19, or a function with its arguments */
static mpk_status parse_word(map_parser *p)
{
    str word = {p->source.at + p->at, 0};
    for (; p->at + word.n < p->source.n; word.n++) {
        char c = word.at[word.n];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')))
            break;
    }
    if (word.n >= 2 && word.n <= 3 && word.at[0] == 'x' && word.at[1] <= '9' && word.at[word.n - 1] <= '9') {
        uint32_t input = (uint32_t)(word.at[1] - '0');
        input = word.n == 3 ? input * 10 + (uint32_t)(word.at[2] - '0') : input;
        if (input >= p->n_in)
            return fail_at(p, "there is no such input");
        p->at += word.n;
        return emit(p, (map_step){.kind = MAP_INPUT, .number = input});
    }
    uint32_t f = 0;
    while (f < SHAPE_COUNT(functions) && !str_is(word, functions[f].name))
        f++;
    if (f == SHAPE_COUNT(functions))
        return fail_at(p, "there is no such function");
    p->at += word.n;
    for (uint32_t i = 0; i < functions[f].arity; i++) {
        if (!take(p, i ? ',' : '('))
            return fail_at(p, i ? "expected , and another argument" : "expected (");
        TRY(parse_compare(p));
    }
    return take(p, ')') ? emit_call(p, f) : fail_at(p, "expected )");
}

/* The only function that nests, so the one that counts how deep. */
static mpk_status parse_unary(map_parser *p)
{
    char c = peek(p);
    if (++p->nesting > MAP_NESTING)
        return fail_at(p, "the expression is nested too deeply");
    if (take(p, '-')) {
        TRY(parse_unary(p));
        TRY(emit_call(p, NEGATE));
    } else if (take(p, '(')) {
        TRY(parse_compare(p));
        if (!take(p, ')'))
            return fail_at(p, "expected )");
    } else if (c >= 'a' && c <= 'z') {
        TRY(parse_word(p));
    } else {
        TRY(parse_number(p));
    }
    p->nesting--;
    return MPK_OK;
}

static mpk_status parse_product(map_parser *p)
{
    TRY(parse_unary(p));
    for (;;) {
        uint32_t f = peek(p) == '*' ? MULTIPLY : DIVIDE;
        if (!take(p, '*') && !take(p, '/'))
            return MPK_OK;
        TRY(parse_unary(p));
        TRY(emit_call(p, f));
    }
}

static mpk_status parse_sum(map_parser *p)
{
    TRY(parse_product(p));
    for (;;) {
        uint32_t f = peek(p) == '+' ? ADD : SUBTRACT;
        if (!take(p, '+') && !take(p, '-'))
            return MPK_OK;
        TRY(parse_product(p));
        TRY(emit_call(p, f));
    }
}

static mpk_status parse_compare(map_parser *p)
{
    TRY(parse_sum(p));
    peek(p);
    for (uint32_t f = COMPARE; f < COMPARE + 6; f++) {
        size_t n = strlen(functions[f].name);
        if (p->source.n - p->at >= n && memcmp(p->source.at + p->at, functions[f].name, n) == 0) {
            p->at += n;
            TRY(parse_sum(p));
            return emit_call(p, f);
        }
    }
    return MPK_OK;
}

/* The whole text, or an error with the character at which it stopped making sense. */
static mpk_status compile(mpk_context *cx, str source, uint32_t n_in, map_program *program)
{
    map_parser p = {.cx = cx, .source = source, .n_in = n_in, .program = program};
    program->n = 0;
    TRY(parse_compare(&p));
    return peek(&p) ? fail_at(&p, "expected the end") : MPK_OK;
}

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    map_program program;
    for (uint32_t i = 0; i < op->n_in; i++)
        TRY(shape_expect_dtype(cx, g, op, i, SHAPE_PLAIN));
    TRY(compile(cx, op->attributes[0].s, op->n_in, &program));
    ir_dtype first = shape_input(g, op, 0)->dtype;
    out->dtype = SHAPE_FLOAT >> first & 1 ? first : IR_F32;
    return shape_broadcast(cx, g, op, out);
}

/* Replace the arguments of a function on top of the stack by its value, n elements at a time. */
static void call_function(const map_function *f, float (*top)[MAP_RUN], int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (f->one)
            top[0][i] = f->one(top[0][i]);
        else if (f->two)
            top[0][i] = f->two(top[0][i], top[1][i]);
        else
            top[0][i] = top[0][i] != 0 ? top[1][i] : top[2][i];
    }
}

/* Evaluate n elements along the last axis from entry `at` of the result on; they end up in stack[0]. */
static void run_program(const map_program *program, const op_call *call, const int64_t *at, int64_t n,
                        float (*stack)[MAP_RUN])
{
    uint32_t depth = 0, rank = call->out[0].rank;
    for (uint32_t s = 0; s < program->n; s++) {
        const map_step *step = &program->steps[s];
        if (step->kind == MAP_CALL) {
            depth -= functions[step->number].arity;
            call_function(&functions[step->number], stack + depth, n);
        } else if (step->kind == MAP_NUMBER) {
            for (int64_t i = 0; i < n; i++)
                stack[depth][i] = step->value;
        } else {
            const op_view *x = &call->in[step->number];
            int64_t from = walk_broadcast(x, rank, at), stride = rank ? walk_stride(x, rank, rank - 1) : 0;
            for (int64_t i = 0; i < n; i++)
                stack[depth][i] = op_load(x, from + i * stride);
        }
        depth++;
    }
}

/* The program and its stack. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)g, (void)op, (void)box;
    return sizeof(map_program) + MAP_STACK * MAP_RUN * sizeof(float);
}

/* Runs of 64 elements along the last axis; the program is compiled again for each task, which is cheap. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *y = &call->out[0];
    map_program *program = scratch;
    float(*stack)[MAP_RUN] = (void *)(program + 1);
    if (compile(NULL, call->attributes[0].s, call->n_in, program) != MPK_OK)
        return; /* infer has refused it */
    uint32_t last = y->rank ? y->rank - 1 : 0;
    int64_t at[IR_MAX_RANK], end = y->rank ? box->hi[last] : 1;
    memcpy(at, box->lo, sizeof at);
    do {
        for (at[last] = box->lo[last]; at[last] < end; at[last] += MAP_RUN) {
            int64_t n = end - at[last] < MAP_RUN ? end - at[last] : MAP_RUN;
            run_program(program, call, at, n, stack);
            walk_store_row(y, walk_offset(y, at), 0, n, stack[0]);
        }
        at[last] = box->lo[last];
    } while (walk_next(box, last, at));
}

static const op_operand in[] = {{"x", OP_VARIADIC}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("expr", STR)};
static const op_case cases[] = {
    {"input %a : f32[7, 320] live=tokens\n%y = map(%a) {expr = \"x0 * sigmoid(x0) + 1.5\"}\n"},
    {"input %a : bf16[3, 1, 17]\ninput %b : f32[5, 1]\ninput %c : i32[17]\n"
     "%y = map(%a, %b, %c) {expr = \"where(x0 < x1, min(x0, -x2), max(abs(x1), 0.5e0) / 2)\"}\n"},
    {"input %a : f32[100]\n%y = map(%a) {expr = \"exp(-x0*x0) - (log(abs(x0)) >= 0) + sqrt(abs(x0)) * rsqrt(x0 * x0 + "
     "1)\"}\n"},
    {"input %a : f16[3, 70]\n%y = map(%a) {expr = \"sin(x0) + cos(x0) * tanh(x0) - erf(x0) + pow(abs(x0), 2) - "
     "floor(x0)\"}\n"},
    {"input %a : bool[]\n%y = map(%a) {expr = \"(x0 == 1) != (x0 <= 0)\"}\n"},
};

const op_def op_map = {
    .name = "map",
    .summary = "an element-wise expression over broadcast inputs",
    .in = in,
    .out = out,
    .n_in = SHAPE_COUNT(in),
    .n_out = SHAPE_COUNT(out),
    .attributes = attributes,
    .n_attributes = SHAPE_COUNT(attributes),
    .flags = OP_ELEMENTWISE,
    .infer = infer,
    .axes = shape_axes_all,
    .reads = shape_reads_broadcast,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    .cases = cases,
    .n_cases = SHAPE_COUNT(cases),
};
