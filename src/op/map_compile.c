/* map_compile.c - from the text of an expression to typed steps (see map_program.h).
 *
 *   program := { t0 .. t31 = compare ; } compare
 *   compare := sum [(< | <= | > | >= | == | !=) sum]
 *   sum     := product {(+ | -) product}
 *   product := unary {(* | /) unary}
 *   unary   := - unary | number | x0 .. x19 | t0 .. t31 | function ( compare {, compare} ) | (
 *           compare )
 *
 * Recursive descent.  A number has no type until it meets a value: then it takes the value's, if
 * that can hold it.  Equal steps are merged, so a text that repeats itself costs nothing.  Last,
 * steps get slots: a slot is free again after the last step that reads it.
 *
 * "t0 = exp(x0); t0 / (1 + t0)" with x0 of f16 becomes
 *
 *   step 0  INPUT 0          F   slot 0
 *   step 1  CALL exp 0       F   slot 1    slot 0 is free after it
 *   step 2  NUMBER 1         F   slot 0
 *   step 3  CALL + 2 1       F   slot 2    slot 0 is free again
 *   step 4  CALL / 1 3       F   slot 0, the result
 *
 * Called by the operator's infer and reference code, by the bodies of the CPU
 * (element_kernels.h), by fuse_map and by the generator of GPU code.  Cost: quadratic in the
 * steps, of which there are at most MAP_STEPS.
 */
#include <math.h>

#include "op/map_program.h"
#include "op/walk.h"

/* The most temporaries of a text, and the deepest nesting, which bounds the recursion. */
enum { MAP_TEMPS = 32, MAP_NESTING = 64 };

/* A value while the text is read: a step of the program, or a number that has no type yet. */
typedef struct map_value {
    bool is_number, is_whole;
    uint32_t step;
    double real;
    int64_t whole;
} map_value;

/* The place in the text and what has been named so far.  The program is filled in as the text is
 * read, with no tree in between. */
typedef struct map_parser {
    mpk_context *cx;
    str source;
    size_t at;
    uint32_t n_in, nesting;
    const ir_dtype *dtypes;
    bool is_set[MAP_TEMPS];
    map_value temps[MAP_TEMPS];
    map_program *program;
} map_parser;

/* MPK_EFORMAT at the current character, counted from 1. */
static mpk_status fail_at(const map_parser *p, const char *what)
{
    FAIL(p->cx, MPK_EFORMAT, "map: %s at character %zu of \"%.*s\"", what, p->at + 1,
         STR_ARG(p->source));
}

/* ---- steps ---- */

/* Are two steps equal?  Numbers are compared by their bits: 0 and -0 are two steps, and a NaN
 * equals itself. */
static bool same_step(const map_step *a, const map_step *b)
{
    return a->kind == b->kind && a->type == b->type && a->number == b->number &&
           a->arg[0] == b->arg[0] && a->arg[1] == b->arg[1] && a->arg[2] == b->arg[2] &&
           memcmp(&a->real, &b->real, sizeof a->real) == 0 && a->whole == b->whole;
}

/* Add a step, or find an equal one that exists; *out is its value. */
static mpk_status emit(map_parser *p, map_step step, map_value *out)
{
    map_program *to = p->program;
    uint32_t i = 0;
    while (i < to->n && !same_step(&to->steps[i], &step))
        i++;
    if (i == MAP_STEPS)
        return fail_at(p, "the expression is too long");
    if (i == to->n)
        to->steps[to->n++] = step;
    *out = (map_value){.step = i};
    return MPK_OK;
}

/* Make a value of this type, by a conversion if necessary; a number is exact in whatever type it
 * gets. */
static mpk_status convert(map_parser *p, map_value value, map_type type, map_value *out)
{
    map_step step = {.kind = MAP_NUMBER, .type = type};
    if (!value.is_number) {
        *out = value;
        if (p->program->steps[value.step].type == type)
            return MPK_OK;
        step.kind = MAP_CONVERT;
        step.arg[0] = (uint16_t)value.step;
        return emit(p, step, out);
    }
    if (type == MAP_I)
        step.whole = value.is_whole ? value.whole : walk_truncate(value.real);
    else if (type == MAP_B)
        step.whole = value.real != 0;
    else
        step.real = type == MAP_F ? (double)(float)value.real : value.real;
    return emit(p, step, out);
}

/* The lowest type that a value fits; a number without a point fits integers. */
static map_type type_of(const map_parser *p, const map_value *v)
{
    if (v->is_number)
        return v->is_whole ? MAP_I : MAP_F;
    return p->program->steps[v->step].type;
}

/* The type to which the arguments of a function are converted; MAP_TYPES: it does not take them. */
static map_type common_type(const map_parser *p, map_rule rule, uint32_t n, const map_value *v)
{
    map_type type = MAP_F;
    if (rule == MAP_BITS || rule == MAP_LOGIC || rule == MAP_CHOICE)
        type = MAP_B;
    else if (rule == MAP_NUMERIC || rule == MAP_TEST || rule == MAP_WHOLE)
        type = MAP_I;
    if (rule == MAP_LOGIC)
        return MAP_B;
    for (uint32_t i = rule == MAP_CHOICE; i < n; i++)
        type = type_of(p, &v[i]) > type ? type_of(p, &v[i]) : type;
    return (rule == MAP_BITS || rule == MAP_WHOLE) && type > MAP_I ? MAP_TYPES : type;
}

/* Negate a number in place, so that -2 is a number and no step; false if the value is a step. */
static bool negate_number(map_value *v)
{
    if (!v->is_number)
        return false;
    v->real = -v->real;
    v->whole = (int64_t)(0 - (uint64_t)v->whole);
    return true;
}

/* Convert the arguments to the function's common type, then emit one step.  Unused arguments repeat
 * the first, so that code which reads three arguments always finds some. The condition of a
 * MAP_CHOICE does not take part in the common type: it becomes a bool. */
static mpk_status emit_call(map_parser *p, uint32_t function, map_value *v, map_value *out)
{
    const map_function *f = &map_functions[function];
    if (function == MAP_NEGATE && negate_number(v)) {
        *out = *v;
        return MPK_OK;
    }
    map_type type = common_type(p, f->rule, f->arity, v);
    if (type == MAP_TYPES)
        return fail_at(p, "a function of integers has a float as argument");
    bool is_test = f->rule == MAP_TEST || f->rule == MAP_FLOAT_TEST;
    map_step step = {.kind = MAP_CALL, .type = is_test ? MAP_B : type, .number = function};
    for (uint32_t i = 0; i < f->arity; i++) {
        TRY(convert(p, v[i], f->rule == MAP_CHOICE && i == 0 ? MAP_B : type, &v[i]));
        step.arg[i] = (uint16_t)v[i].step;
    }
    for (uint32_t i = f->arity; i < MAP_ARGUMENTS; i++)
        step.arg[i] = step.arg[0];
    return emit(p, step, out);
}

/* v as it would be after a trip through a tensor of this dtype. That is how a chain of operators,
 * each of which stores its result, can be one expression and still give the same bits: bf16(x0 +
 * x1) * x2. */
static mpk_status emit_round(map_parser *p, ir_dtype dtype, map_value v, map_value *out)
{
    bool is_small = dtype == IR_I32 || dtype == IR_I16 || dtype == IR_I8 || dtype == IR_U8;
    map_type type = MAP_F;
    if (dtype == IR_BOOL)
        type = MAP_B;
    else if (dtype == IR_F64)
        type = MAP_D;
    else if (dtype == IR_I64 || is_small)
        type = MAP_I;
    if (!is_small || type_of(p, &v) <= MAP_I)
        TRY(convert(p, v, type, &v));
    else if (v.is_number)
        TRY(convert(p, v, MAP_D, &v));
    *out = v;
    const map_step *made = v.is_number ? NULL : &p->program->steps[v.step];
    const bool is_round = made && made->kind == MAP_ROUND && made->number == dtype;
    if (is_round || (!is_small && dtype != IR_F16 && dtype != IR_BF16))
        return MPK_OK;
    return emit(
        p, (map_step){.kind = MAP_ROUND, .type = type, .number = dtype, .arg = {(uint16_t)v.step}},
        out);
}

/* ---- text ---- */

/* The next character after spaces, 0 at the end. */
static char peek(map_parser *p)
{
    while (p->at < p->source.n && p->source.at[p->at] == ' ')
        p->at++;
    return p->at < p->source.n ? p->source.at[p->at] : 0;
}

/* Skip spaces; then consume this character if it follows. */
static bool take(map_parser *p, char c)
{
    if (peek(p) != c)
        return false;
    p->at++;
    return true;
}

static mpk_status parse_compare(map_parser *p, map_value *out);

/* Does the character after s belong to the number that s begins?  A sign does after an
 * exponent's letter. */
static bool in_number(str s)
{
    char c = s.at[s.n];
    bool after_e = s.n && (s.at[s.n - 1] | 0x20) == 'e';
    return (c >= '0' && c <= '9') || c == '.' || (s.n && (c | 0x20) == 'e') ||
           (after_e && (c == '+' || c == '-'));
}

/* Read a whole number: digits alone, up to 2^63 (which only a minus makes an int64_t). */
static bool read_whole(str digits, int64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < digits.n; i++) {
        char c = digits.at[i];
        if (c < '0' || c > '9' || value > (UINT64_MAX - 9) / 10)
            return false;
        value = value * 10 + (uint64_t)(c - '0');
    }
    *out = (int64_t)value;
    return value <= (uint64_t)INT64_MAX + 1;
}

/* Read a number.  Both readings are kept, as a whole number and as a float: the value that it
 * meets decides. */
static mpk_status parse_number(map_parser *p, map_value *out)
{
    str digits = {p->source.at + p->at, 0};
    while (p->at + digits.n < p->source.n && in_number(digits))
        digits.n++;
    *out = (map_value){.is_number = true};
    if (!str_read_double(digits, &out->real))
        return fail_at(p, "expected a number, an input or a function");
    out->is_whole = read_whole(digits, &out->whole);
    p->at += digits.n;
    return MPK_OK;
}

/* Is the word a letter and one or two digits, such as "x12"? */
static bool is_numbered(str word, char letter, uint32_t *number)
{
    if (word.n < 2 || word.n > 3 || word.at[0] != letter)
        return false;
    *number = 0;
    for (size_t i = 1; i < word.n; i++) {
        if (word.at[i] < '0' || word.at[i] > '9')
            return false;
        *number = *number * 10 + (uint32_t)(word.at[i] - '0');
    }
    return true;
}

/* The word at the current place; it is not consumed, because only the caller knows whether it is
 * one of its own. */
static str peek_word(map_parser *p)
{
    peek(p);
    str word = {p->source.at + p->at, 0};
    for (; p->at + word.n < p->source.n; word.n++) {
        char c = word.at[word.n];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'))
            break;
    }
    return word;
}

/* An operand.  Dtypes of storage become the four types of computation; narrower ones are rounded
 * only where they are stored. */
static mpk_status parse_input(map_parser *p, str word, uint32_t number, map_value *out)
{
    static const map_type types[IR_DTYPES] = {
        [IR_F32] = MAP_F, [IR_F16] = MAP_F, [IR_BF16] = MAP_F, [IR_F64] = MAP_D, [IR_I64] = MAP_I,
        [IR_I32] = MAP_I, [IR_I16] = MAP_I, [IR_I8] = MAP_I,   [IR_U8] = MAP_I,  [IR_BOOL] = MAP_B};
    if (number >= p->n_in)
        return fail_at(p, "there is no such input of the operator (inputs are x0, x1, ...)");
    p->at += word.n;
    return emit(
        p, (map_step){.kind = MAP_INPUT, .type = types[p->dtypes[number]], .number = number}, out);
}

/* The value of a temporary; a temporary is a name for a step and makes none of its own. */
static mpk_status parse_temp(map_parser *p, str word, uint32_t number, map_value *out)
{
    if (number >= MAP_TEMPS || !p->is_set[number])
        return fail_at(p, "this temporary has no value");
    p->at += word.n;
    *out = p->temps[number];
    return MPK_OK;
}

/* inf or nan, as numbers. */
static bool parse_constant(map_parser *p, str word, map_value *out)
{
    if (str_is(word, "inf"))
        *out = (map_value){.is_number = true, .real = (double)INFINITY};
    else if (str_is(word, "nan"))
        *out = (map_value){.is_number = true, .real = (double)NAN};
    else
        return false;
    p->at += word.n;
    return true;
}

/* n expressions in parentheses, with commas between them. */
static mpk_status parse_arguments(map_parser *p, uint32_t n, map_value *v)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i == 0 && !take(p, '('))
            return fail_at(p, "expected (");
        if (i > 0 && !take(p, ','))
            return fail_at(p, "expected , and another argument");
        TRY(parse_compare(p, &v[i]));
    }
    return take(p, ')') ? MPK_OK : fail_at(p, "expected )");
}

/* Inputs, temporaries, constants, dtypes (as rounding functions), then functions; the order
 * decides between names that begin alike. */
static mpk_status parse_word(map_parser *p, map_value *out)
{
    str word = peek_word(p);
    uint32_t number, f = 0;
    map_value v[MAP_ARGUMENTS];
    ir_dtype dtype;
    if (is_numbered(word, 'x', &number))
        return parse_input(p, word, number, out);
    if (is_numbered(word, 't', &number))
        return parse_temp(p, word, number, out);
    if (parse_constant(p, word, out))
        return MPK_OK;
    if (str_is(word, "true") || str_is(word, "false")) {
        p->at += word.n;
        return emit(p, (map_step){.kind = MAP_NUMBER, .type = MAP_B, .whole = word.at[0] == 't'},
                    out);
    }
    if (ir_dtype_from_name(word, &dtype) && ir_dtype_table[dtype].block_elements == 1) {
        p->at += word.n;
        TRY(parse_arguments(p, 1, v));
        return emit_round(p, dtype, v[0], out);
    }
    while (map_functions[f].name && !str_is(word, map_functions[f].name))
        f++;
    if (!map_functions[f].name)
        return fail_at(p, "there is no such function");
    p->at += word.n;
    TRY(parse_arguments(p, map_functions[f].arity, v));
    return emit_call(p, f, v, out);
}

/* The only rule through which others nest, so the one that counts the depth. Errors leave the count
 * as it is, since they end the parse. */
static mpk_status parse_unary(map_parser *p, map_value *out)
{
    char c = peek(p);
    if (++p->nesting > MAP_NESTING)
        return fail_at(p, "the expression is nested too deeply");
    if (take(p, '-')) {
        map_value v[MAP_ARGUMENTS];
        TRY(parse_unary(p, v));
        TRY(emit_call(p, MAP_NEGATE, v, out));
    } else if (take(p, '(')) {
        TRY(parse_compare(p, out));
        if (!take(p, ')'))
            return fail_at(p, "expected )");
    } else if (c >= 'a' && c <= 'z') {
        TRY(parse_word(p, out));
    } else {
        TRY(parse_number(p, out));
    }
    p->nesting--;
    return MPK_OK;
}

/* Products and quotients, grouped from the left: a / b * c is (a / b) * c. */
static mpk_status parse_product(map_parser *p, map_value *out)
{
    map_value v[MAP_ARGUMENTS];
    TRY(parse_unary(p, out));
    for (;;) {
        uint32_t f = peek(p) == '*' ? MAP_MULTIPLY : MAP_DIVIDE;
        if (!take(p, '*') && !take(p, '/'))
            return MPK_OK;
        v[0] = *out;
        TRY(parse_unary(p, &v[1]));
        TRY(emit_call(p, f, v, out));
    }
}

/* Sums and differences, likewise. */
static mpk_status parse_sum(map_parser *p, map_value *out)
{
    map_value v[MAP_ARGUMENTS];
    TRY(parse_product(p, out));
    for (;;) {
        uint32_t f = peek(p) == '+' ? MAP_ADD : MAP_SUBTRACT;
        if (!take(p, '+') && !take(p, '-'))
            return MPK_OK;
        v[0] = *out;
        TRY(parse_product(p, &v[1]));
        TRY(emit_call(p, f, v, out));
    }
}

/* A sum, or one comparison, which gives a truth; comparisons do not chain.  Names of two
 * characters stand before those of one in the table, so <= is not read as < followed by =. */
static mpk_status parse_compare(map_parser *p, map_value *out)
{
    map_value v[MAP_ARGUMENTS];
    TRY(parse_sum(p, out));
    peek(p);
    for (uint32_t f = MAP_COMPARE; f < MAP_COMPARE + MAP_COMPARISONS; f++) {
        size_t n = strlen(map_functions[f].name);
        if (p->source.n - p->at >= n &&
            memcmp(p->source.at + p->at, map_functions[f].name, n) == 0) {
            p->at += n;
            v[0] = *out;
            TRY(parse_sum(p, &v[1]));
            return emit_call(p, f, v, out);
        }
    }
    return MPK_OK;
}

/* Consume "t3 =", but not "t3 ==", which compares. */
static bool take_assignment(map_parser *p, uint32_t *number)
{
    size_t start = p->at;
    str word = peek_word(p);
    p->at += word.n;
    if (is_numbered(word, 't', number) && take(p, '=') && peek(p) != '=')
        return true;
    p->at = start;
    return false;
}

/* Assignments, then the result.  Temporaries are set once, before they are used; so steps only
 * read earlier steps. */
static mpk_status parse_program(map_parser *p, map_value *out)
{
    uint32_t number;
    while (take_assignment(p, &number)) {
        if (number >= MAP_TEMPS || p->is_set[number])
            return fail_at(p, "this temporary cannot be set, or has a value already");
        TRY(parse_compare(p, &p->temps[number]));
        p->is_set[number] = true;
        if (!take(p, ';'))
            return fail_at(p, "expected ;");
    }
    TRY(parse_compare(p, out));
    return peek(p) ? fail_at(p, "expected the end") : MPK_OK;
}

/* ---- slots ---- */

/* How many entries of `arg` a step really reads; the others repeat the first. */
static uint32_t count_arguments(const map_step *s)
{
    return s->kind == MAP_CALL ? map_functions[s->number].arity
                               : s->kind == MAP_CONVERT || s->kind == MAP_ROUND;
}

/* Give each step the lowest free slot.  The slots of its arguments are freed after that, so a step
 * never writes where it reads. The result is read after the last step, hence its last use of
 * MAP_STEPS. */
static mpk_status assign_slots(map_parser *p)
{
    map_program *to = p->program;
    uint16_t last_use[MAP_STEPS] = {0};
    uint64_t used = 0;
    for (uint32_t i = 0; i < to->n; i++) {
        last_use[i] = (uint16_t)i;
        for (uint32_t k = 0; k < count_arguments(&to->steps[i]); k++)
            last_use[to->steps[i].arg[k]] = (uint16_t)i;
    }
    last_use[to->result] = MAP_STEPS;
    to->n_slots = 0;
    for (uint32_t i = 0; i < to->n; i++) {
        uint16_t slot = 0;
        while (used >> slot & 1)
            slot++;
        if (slot >= MAP_SLOTS)
            return fail_at(p, "the expression is too long");
        to->steps[i].slot = slot;
        to->n_slots = slot + 1u > to->n_slots ? slot + 1u : to->n_slots;
        used |= UINT64_C(1) << slot;
        for (uint32_t k = 0; k < count_arguments(&to->steps[i]); k++)
            if (last_use[to->steps[i].arg[k]] == i)
                used &= ~(UINT64_C(1) << to->steps[to->steps[i].arg[k]].slot);
        if (last_use[i] == i)
            used &= ~(UINT64_C(1) << slot);
    }
    return MPK_OK;
}

/* The result is converted last: it may be a bare number, which has no step until then. */
mpk_status map_compile(mpk_context *cx, str source, uint32_t n_in, const ir_dtype *dtypes,
                       map_program *program)
{
    map_parser p = {.cx = cx, .source = source, .n_in = n_in, .dtypes = dtypes, .program = program};
    map_value result;
    program->n = 0;
    TRY(parse_program(&p, &result));
    TRY(convert(&p, result, type_of(&p, &result), &result));
    program->result = result.step;
    return assign_slots(&p);
}
