/* jinja_is.c - tests: what may stand after `is`.
 *
 * A test gets the value before `is` and its arguments, and gives a truth; `is not` is made by the
 * parser.  select and its kin call tests by name through the same table.  The kinds of jkind are
 * ordered so that families of types are ranges (J_STR ... J_DICT). */
#include "jinja/jinja_parts.h"

static mpk_status no_arguments(jrun *r, const jargs *args)
{
    return jinja_bind(r, "this test", args, "", 0, NULL);
}

/* Tests that look at the kind of a value alone. */
#define KIND_TEST(name, condition)                                        \
    static mpk_status name(jrun *r, jval v, const jargs *args, bool *out) \
    {                                                                     \
        *out = (condition);                                               \
        return no_arguments(r, args);                                     \
    }
/* An undefined value counts as a sequence, as iterable and as callable: Jinja2's Undefined has
 * these methods, which raise when they are called. */
KIND_TEST(is_defined, v.kind != J_UNDEFINED)
KIND_TEST(is_undefined, v.kind == J_UNDEFINED)
KIND_TEST(is_none, v.kind == J_NONE)
KIND_TEST(is_string, v.kind == J_STR)
KIND_TEST(is_number, jinja_is_integral(v) || v.kind == J_FLOAT || v.kind == J_BIG)
KIND_TEST(is_integer, v.kind == J_INT || v.kind == J_BIG)
KIND_TEST(is_float, v.kind == J_FLOAT)
KIND_TEST(is_boolean, v.kind == J_BOOL)
KIND_TEST(is_true, v.kind == J_BOOL && v.boolean)
KIND_TEST(is_false, v.kind == J_BOOL && !v.boolean)
KIND_TEST(is_mapping, v.kind == J_DICT)
KIND_TEST(is_iterable, jinja_can_iterate(v))
KIND_TEST(is_sequence,
          v.kind == J_UNDEFINED || (v.kind >= J_STR && v.kind <= J_DICT) || v.kind == J_RANGE)
KIND_TEST(is_callable,
          v.kind == J_UNDEFINED || (v.kind >= J_MACRO && v.kind <= J_LOOP) || v.kind == J_JOINER)
KIND_TEST(is_escaped, v.kind == J_STR && v.markup)

/* The tests that are operators: `x is gt 3` is x > 3. */
static mpk_status compare_test(jrun *r, jval v, const jargs *args, int op, bool *out)
{
    jval other;
    TRY(jinja_bind(r, "this test", args, "/other", 1, &other));
    return jinja_compare(r, op, v, other, out);
}

#define COMPARE_TEST(name, op)                                            \
    static mpk_status name(jrun *r, jval v, const jargs *args, bool *out) \
    {                                                                     \
        return compare_test(r, v, args, op, out);                         \
    }
COMPARE_TEST(is_eq, J_EQ)
COMPARE_TEST(is_ne, J_NE)
COMPARE_TEST(is_lt, '<')
COMPARE_TEST(is_le, J_LE)
COMPARE_TEST(is_gt, '>')
COMPARE_TEST(is_ge, J_GE)

/* `x is in y`, the same as `x in y`. */
static mpk_status is_in(jrun *r, jval v, const jargs *args, bool *out)
{
    jval seq;
    TRY(jinja_bind(r, "in", args, "seq", 1, &seq));
    return jinja_contains(r, seq, v, out);
}

/* v % divisor == rest */
static mpk_status has_rest(jrun *r, jval v, jval divisor, int64_t rest, bool *out)
{
    jval found;
    if (v.kind == J_STR)
        return jinja_fail(r, "a string has no rest when divided");
    TRY(jinja_binary(r, '%', v, divisor, &found));
    return jinja_equal(r, found, jinja_int(rest), out);
}

static mpk_status is_odd(jrun *r, jval v, const jargs *args, bool *out)
{
    TRY(no_arguments(r, args));
    return has_rest(r, v, jinja_int(2), 1, out);
}

static mpk_status is_even(jrun *r, jval v, const jargs *args, bool *out)
{
    TRY(no_arguments(r, args));
    return has_rest(r, v, jinja_int(2), 0, out);
}

static mpk_status is_divisibleby(jrun *r, jval v, const jargs *args, bool *out)
{
    jval divisor;
    TRY(jinja_bind(r, "divisibleby", args, "num", 1, &divisor));
    return has_rest(r, v, divisor, 0, out);
}

/* Identity (`is sameas`).  Which equal numbers and strings are the same object in Python cannot be
 * told from their values. CPython keeps one object for each integer from -5 to 256, so identity of
 * those is equality; of others it depends on how they came about. */
static mpk_status is_sameas(jrun *r, jval v, const jargs *args, bool *out)
{
    jval other;
    TRY(jinja_bind(r, "sameas", args, "other", 1, &other));
    *out = false;
    if (v.kind != other.kind)
        return MPK_OK;
    switch (v.kind) {
    case J_NONE:
        *out = true;
        return MPK_OK;
    case J_BOOL:
        *out = v.boolean == other.boolean;
        return MPK_OK;
    case J_UNDEFINED:
    case J_FLOAT:
    case J_BIG:
    case J_STR:
        return jinja_refuse(r, "sameas of %s is not supported", jinja_type_name(v));
    case J_INT:
        *out = v.integer == other.integer;
        if (*out && (v.integer < -5 || v.integer > 256))
            return jinja_refuse(r, "sameas of a large integer is not supported");
        return MPK_OK;
    default:
        *out = v.list == other.list;
        return MPK_OK;
    }
}

/* upper and lower ask the text of the value, whatever its type. */
static mpk_status class_test(jrun *r, jval v, const jargs *args, jclass class, bool *out)
{
    str s = {0};
    TRY(no_arguments(r, args));
    TRY(jinja_to_str(r, v, &s));
    TRY(jinja_charge(r, s.n));
    *out = jinja_is_class(s, class);
    return MPK_OK;
}

static mpk_status is_lower(jrun *r, jval v, const jargs *args, bool *out)
{
    return class_test(r, v, args, J_IS_LOWER, out);
}

static mpk_status is_upper(jrun *r, jval v, const jargs *args, bool *out)
{
    return class_test(r, v, args, J_IS_UPPER, out);
}

/* Filters that are known by name count even if they are refused: Jinja2 has them. */
static mpk_status is_filter(jrun *r, jval v, const jargs *args, bool *out)
{
    TRY(no_arguments(r, args));
    *out = v.kind == J_STR && jinja_find_filter(v.text);
    return MPK_OK;
}

static mpk_status is_test(jrun *r, jval v, const jargs *args, bool *out)
{
    TRY(no_arguments(r, args));
    *out = v.kind == J_STR && jinja_find_test(v.text);
    return MPK_OK;
}

static const jtest tests[] = {{"defined", is_defined},
                              {"undefined", is_undefined},
                              {"none", is_none},
                              {"string", is_string},
                              {"number", is_number},
                              {"integer", is_integer},
                              {"float", is_float},
                              {"boolean", is_boolean},
                              {"true", is_true},
                              {"false", is_false},
                              {"mapping", is_mapping},
                              {"iterable", is_iterable},
                              {"sequence", is_sequence},
                              {"callable", is_callable},
                              {"escaped", is_escaped},
                              {"eq", is_eq},
                              {"equalto", is_eq},
                              {"==", is_eq},
                              {"ne", is_ne},
                              {"!=", is_ne},
                              {"lt", is_lt},
                              {"lessthan", is_lt},
                              {"<", is_lt},
                              {"le", is_le},
                              {"<=", is_le},
                              {"gt", is_gt},
                              {"greaterthan", is_gt},
                              {">", is_gt},
                              {"ge", is_ge},
                              {">=", is_ge},
                              {"in", is_in},
                              {"odd", is_odd},
                              {"even", is_even},
                              {"divisibleby", is_divisibleby},
                              {"sameas", is_sameas},
                              {"lower", is_lower},
                              {"upper", is_upper},
                              {"filter", is_filter},
                              {"test", is_test}};

/* NULL: Jinja2 has such a test, or none: the caller refuses the name. */
const jtest *jinja_find_test(str name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (str_is(name, tests[i].name))
            return &tests[i];
    return NULL;
}
