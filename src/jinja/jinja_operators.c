/* jinja_operators.c - + - * / // % ** of Python's values, comparisons and `in`.
 *
 * Integers that leave 64 bits are refused: Python's would go on, and a wrong number must not be
 * printed.
 *
 * Which rule an operator takes, from the top down (jinja_binary): two integers, true and false
 * among them; two numbers; two texts (+); two lists or two tuples (+); a format (text %); a text
 * or list repeated (*, from either side).  Everything else is an error that names both types, or
 * where an integer beyond 64 bits is involved, a refusal. */
#include "jinja/jinja_parts.h"

#include <math.h>

/* Integers, booleans and floats; not J_BIG. */
static bool is_number(jval v)
{
    return jinja_is_integral(v) || v.kind == J_FLOAT;
}

static double as_double(jval v)
{
    return v.kind == J_FLOAT ? v.number : (double)jinja_integral(v);
}

/* The name of an operator of two characters is packed in `op`. */
static mpk_status bad_operands(jrun *r, int op, jval a, jval b)
{
    char name[3] = {(char)(op & 0xff), (char)(op >> 8), 0};
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED)
        return jinja_fail_undefined(r, a.kind == J_UNDEFINED ? a : b);
    if (a.kind == J_BIG || b.kind == J_BIG)
        return jinja_refuse_big(r);
    return jinja_fail(r, "%s %s %s is not possible", jinja_type_name(a), name, jinja_type_name(b));
}

/* ---- numbers ---- */

/* Python rounds towards minus infinity.  Of both: not INT64_MIN and -1. */
static int64_t floor_divide(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

/* The rest that has the sign of b; a - floor_divide(a, b) * b would overflow near INT64_MIN. */
static int64_t floor_modulo(int64_t a, int64_t b)
{
    int64_t m = a % b;
    return m && (m < 0) != (b < 0) ? m + b : m;
}

/* By squaring.  A negative exponent gives a float; the base is squared only while a bit is left, so
 * that the last square cannot overflow in vain. */
static mpk_status power(jrun *r, int64_t base, int64_t exponent, jval *out)
{
    int64_t result = 1;
    if (exponent < 0) {
        if (!base)
            return jinja_fail(r, "division by zero");
        *out = jinja_float(pow((double)base, (double)exponent));
        return MPK_OK;
    }
    for (; exponent; exponent >>= 1) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            return jinja_refuse_big(r);
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
            return jinja_refuse_big(r);
    }
    *out = jinja_int(result);
    return MPK_OK;
}

/* / always gives a float; it is refused where the operands are not exact as floats, for Python
 * divides integers exactly and rounds once.  // and % round towards minus infinity. -7 // 2 is -4
 * and -7 % 2 is 1, where C has -3 and -1. What leaves 64 bits is refused: Python would go on with
 * larger numbers. */
static mpk_status integers(jrun *r, int op, int64_t a, int64_t b, jval *out)
{
    int64_t x = 0;
    bool over = false;
    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &x);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &x);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &x);
        break;
    case J_POW:
        return power(r, a, b, out);
    default:
        if (!b)
            return jinja_fail(r, "division by zero");
        over = a == INT64_MIN && b == -1;
        if (op == '/') {
            const int64_t exact = INT64_C(1) << 53;
            if (a > exact || a < -exact || b > exact || b < -exact)
                return jinja_refuse(r, "dividing integers beyond 53 bits is not supported");
            *out = jinja_float((double)a / (double)b);
            return MPK_OK;
        }
        if (!over)
            x = op == '%' ? floor_modulo(a, b) : floor_divide(a, b);
    }
    *out = jinja_int(x);
    return over ? jinja_refuse_big(r) : MPK_OK;
}

/* The sign of a zero is that of the divisor, as in Python. */
static double float_modulo(double a, double b)
{
    double m = fmod(a, b);
    if (m == 0)
        return copysign(0, b);
    return (b < 0) != (m < 0) ? m + b : m;
}

/* CPython's float_floor_div, step by step: the quotient of the exact remainder, put right where it
 * rounded, with the sign of zero kept. */
static double float_floor(double a, double b)
{
    double m = fmod(a, b), q = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0))
        q -= 1;
    if (q == 0)
        return copysign(0, a / b);
    double f = floor(q);
    return q - f > 0.5 ? f + 1 : f;
}

/* pow, where it and Python agree: no complex results, and overflow is an error. */
static mpk_status float_power(jrun *r, double a, double b, jval *out)
{
    if (a == 0 && b < 0)
        return jinja_fail(r, "division by zero");
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
        return jinja_refuse(r, "complex numbers are not supported");
    double x = pow(a, b);
    if (isinf(x) && isfinite(a) && isfinite(b))
        return jinja_fail(r, "the result is too large");
    *out = jinja_float(x);
    return MPK_OK;
}

/* Division by zero is an error in Python, not infinity. */
static mpk_status floats(jrun *r, int op, double a, double b, jval *out)
{
    if (op == J_POW)
        return float_power(r, a, b, out);
    if (b == 0 && op != '+' && op != '-' && op != '*')
        return jinja_fail(r, "division by zero");
    switch (op) {
    case '+':
        *out = jinja_float(a + b);
        return MPK_OK;
    case '-':
        *out = jinja_float(a - b);
        return MPK_OK;
    case '*':
        *out = jinja_float(a * b);
        return MPK_OK;
    case '/':
        *out = jinja_float(a / b);
        return MPK_OK;
    case '%':
        *out = jinja_float(float_modulo(a, b));
        return MPK_OK;
    default:
        *out = jinja_float(float_floor(a, b));
        return MPK_OK;
    }
}

/* ---- texts and lists ---- */

/* If one side is marked safe, the other is escaped first.  A left side that lies at the end of the
 * text arena is extended in place (jinja_text_room), so that building a text piece by piece is
 * linear. */
static mpk_status join_texts(jrun *r, jval a, jval b, jval *out)
{
    char *p = NULL;
    const bool markup = a.markup || b.markup;
    if (markup && !a.markup)
        TRY(jinja_escape(r, a.text, &a.text));
    if (markup && !b.markup)
        TRY(jinja_escape(r, b.text, &b.text));
    TRY(jinja_charge(r, b.text.n));
    TRY(jinja_text_room(r, a.text, b.text.n, &p));
    if (b.text.n)
        memcpy(p + a.text.n, b.text.at, b.text.n);
    *out = jinja_str((str){p, a.text.n + b.text.n});
    out->markup = markup;
    return MPK_OK;
}

/* A new list: lists never change. */
static mpk_status join_lists(jrun *r, jval a, jval b, jval *out)
{
    TRY(jinja_make_list(r, a.kind, a.list->n + b.list->n, out));
    for (size_t i = 0; i < a.list->n; i++)
        TRY(jinja_push(r, out->list, a.list->at[i]));
    for (size_t i = 0; i < b.list->n; i++)
        TRY(jinja_push(r, out->list, b.list->at[i]));
    return MPK_OK;
}

/* The size is checked by division before it is computed. */
static mpk_status repeat_text(jrun *r, jval s, int64_t times, jval *out)
{
    char *p = NULL;
    times = times < 0 ? 0 : times;
    if (s.text.n && times > JINJA_MAX_OUTPUT / (int64_t)s.text.n)
        FAIL(r->cx, MPK_ELIMIT, "chat template, line %u: a text has more than %d bytes", r->line,
             JINJA_MAX_OUTPUT);
    size_t n = s.text.n * (size_t)times;
    if (!s.text.n)
        times = 0;
    TRY(jinja_charge(r, n));
    TRY(jinja_text_room(r, (str){0}, n, &p));
    for (int64_t i = 0; i < times; i++)
        memcpy(p + (size_t)i * s.text.n, s.text.at, s.text.n);
    s.text = (str){p, n};
    *out = s;
    return MPK_OK;
}

/* Each item is charged as it is pushed, so no product of sizes is needed. */
static mpk_status repeat_list(jrun *r, jval l, int64_t times, jval *out)
{
    TRY(jinja_make_list(r, l.kind, 0, out));
    for (int64_t i = 0; i < times && l.list->n; i++)
        for (size_t k = 0; k < l.list->n; k++)
            TRY(jinja_push(r, out->list, l.list->at[k]));
    return MPK_OK;
}

static bool is_sequence(jval v)
{
    return v.kind == J_LIST || v.kind == J_TUPLE;
}

/* Numbers, then texts and lists, then formatting, then repetition with either side as the count: an
 * operator means the first that fits. 3 * "ab" and "ab" * 3 are the same; a list and a tuple are
 * not added to each other. */
mpk_status jinja_binary(jrun *r, int op, jval a, jval b, jval *out)
{
    if (jinja_is_integral(a) && jinja_is_integral(b))
        return integers(r, op, jinja_integral(a), jinja_integral(b), out);
    if (is_number(a) && is_number(b))
        return floats(r, op, as_double(a), as_double(b), out);
    if (op == '+' && a.kind == J_STR && b.kind == J_STR)
        return join_texts(r, a, b, out);
    if (op == '+' && is_sequence(a) && a.kind == b.kind)
        return join_lists(r, a, b, out);
    if (op == '%' && a.kind == J_STR) {
        if (a.markup)
            return jinja_refuse(r, "%% of a text that is marked safe is not supported");
        return b.kind == J_UNDEFINED ? jinja_fail_undefined(r, b)
                                     : jinja_percent(r, a.text, b, out);
    }
    if (op == '*' && jinja_is_integral(a)) {
        jval swapped = a;
        a = b;
        b = swapped;
    }
    if (op == '*' && jinja_is_integral(b) && a.kind == J_STR)
        return repeat_text(r, a, jinja_integral(b), out);
    if (op == '*' && jinja_is_integral(b) && is_sequence(a))
        return repeat_list(r, a, jinja_integral(b), out);
    return bad_operands(r, op, a, b);
}

/* +true is 1: a sign makes an integer of a boolean. */
mpk_status jinja_sign(jrun *r, int op, jval a, jval *out)
{
    if (a.kind == J_UNDEFINED)
        return jinja_fail_undefined(r, a);
    if (a.kind == J_BIG)
        return jinja_refuse_big(r);
    if (!is_number(a))
        return jinja_fail(r, "%s has no sign", jinja_type_name(a));
    if (a.kind == J_FLOAT)
        *out = jinja_float(op == '-' ? -a.number : a.number);
    else if (op == '-' && jinja_integral(a) == INT64_MIN)
        return jinja_refuse_big(r);
    else
        *out = jinja_int(op == '-' ? -jinja_integral(a) : jinja_integral(a));
    return MPK_OK;
}

/* ---- comparison ---- */

/* By equality, from the first; stops where it is found, so an iterator goes on after it. */
static mpk_status contains_item(jrun *r, jval container, jval item, bool *out)
{
    jiterator *it;
    jval found;
    TRY(jinja_iterate(r, container, &it));
    for (*out = false; !*out;) {
        TRY(jinja_next(r, it, &found));
        if (found.kind == J_ABSENT)
            return MPK_OK;
        TRY(jinja_equal(r, found, item, out));
    }
    return MPK_OK;
}

/* Dicts and their keys are searched by hash; asking for a list, which has none, is an error. "b" in
 * "abc" looks for a part, "b" in ["abc"] for an item. */
mpk_status jinja_contains(jrun *r, jval container, jval item, bool *out)
{
    const jval *found;
    switch (container.kind) {
    case J_STR:
        if (item.kind == J_UNDEFINED)
            return jinja_fail(r, "an undefined value cannot be looked for in a string");
        if (item.kind != J_STR)
            return jinja_fail(r, "%s cannot be looked for in a string", jinja_type_name(item));
        TRY(jinja_charge(r, container.text.n));
        *out = jinja_find(container.text, item.text) != SIZE_MAX;
        return MPK_OK;
    case J_DICT:
        TRY(jinja_check_hashable(r, item));
        TRY(jinja_dict_find(r, container.dict, item, &found));
        *out = found != NULL;
        return MPK_OK;
    case J_VIEW:
        if (container.view->part == J_KEYS)
            TRY(jinja_check_hashable(r, item));
        return contains_item(r, container, item, out);
    default:
        return contains_item(r, container, item, out);
    }
}

/* <= is < or ==, which differs from "not >" for NaN. */
mpk_status jinja_compare(jrun *r, int op, jval a, jval b, bool *out)
{
    bool equal = false;
    switch (op) {
    case J_EQ:
    case J_NE:
        TRY(jinja_equal(r, a, b, &equal));
        *out = equal == (op == J_EQ);
        return MPK_OK;
    case J_IN:
    case J_NOT_IN:
        TRY(jinja_contains(r, b, a, out));
        *out = *out == (op == J_IN);
        return MPK_OK;
    case '<':
    case '>':
        return op == '<' ? jinja_less(r, a, b, out) : jinja_less(r, b, a, out);
    default:
        TRY(op == J_LE ? jinja_less(r, a, b, out) : jinja_less(r, b, a, out));
        if (!*out)
            TRY(jinja_equal(r, a, b, out));
        return MPK_OK;
    }
}
