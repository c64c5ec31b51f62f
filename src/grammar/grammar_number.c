/* grammar_number.c - decimal numbers within bounds, as trees.
 *
 * Input: bounds and a divisor of a schema; output: the spellings without exponent of all numbers
 * that keep to them.  A number is a sign, digits and a fraction; a bound is followed digit by
 * digit as long as the number is equal to it ("tight").  Cost: O(digits of the bounds).
 *
 * Between 17 and 245, integers:
 *
 *   two digits     1 [7-9]  |  [2-9] [0-9]
 *   three digits   1 [0-9] [0-9]  |  2 ( [0-3] [0-9]  |  4 [0-5] )
 *
 * "1" is tight to the lower bound: what follows must be 7 or more; "2" of two digits is free.
 * `low` and `high` of the functions below are the bounds that the digits so far are tight to. */
#include <stdio.h>

#include "grammar/grammar_schema.h"

enum { MOST_DIVISOR = 1000, MOST_MULTIPLES = 10000 };

/* One side of a range: a magnitude, split at the point; at == NULL: there is no bound. */
typedef struct side {
    /* digits; whole without leading, fraction without trailing zeros */
    const char *whole, *fraction;
    bool excluded;
} side;

/* The two bounds of one sign as magnitudes, so `low` is the one nearer to zero. */
typedef struct digits_reader {
    maker *k;
    side low, high; /* high.whole NULL: none */
    bool integer;
} digits_reader;

/* ---- small trees ---- */

/* One digit of a range. */
static mpk_status digit(maker *k, char low, char high, const node **out)
{
    return node_range(k, (uint32_t)low, (uint32_t)high, out);
}

/* min to max arbitrary digits. */
static mpk_status digits(maker *k, uint32_t min, uint32_t max, const node **out)
{
    TRY(digit(k, '0', '9', out));
    return node_repeat(k, *out, min, max, out);
}

/* An alternative: a, then b. */
static mpk_status add_pair(maker *k, node *alt, const node *a, const node *b)
{
    const node *pair;
    TRY(node_pair(k, NODE_SEQ, a, b, &pair));
    return node_add(k, alt, pair);
}

/* ---- fractions ---- */

/* May a number end here, after i digits of the fraction? */
static bool may_stop(const digits_reader *r, size_t i, bool low, bool high)
{
    bool at_low = i >= strlen(r->low.fraction), at_high = high && i >= strlen(r->high.fraction);
    return (!low || (at_low && !r->low.excluded)) && (!at_high || !r->high.excluded);
}

static mpk_status fraction_from(digits_reader *r, size_t i, bool low, bool high, const node **out);

/* One digit, and what may follow it. */
static mpk_status fraction_digit(digits_reader *r, size_t i, char d, bool low, bool high, node *alt)
{
    const node *first, *rest;
    node *tail;
    TRY(digit(r->k, d, d, &first));
    TRY(node_new(r->k, NODE_ALT, &tail));
    if (may_stop(r, i + 1, low, high)) {
        TRY(node_bytes(r->k, (str){0}, &rest));
        TRY(node_add(r->k, tail, rest));
    }
    TRY(fraction_from(r, i + 1, low, high, &rest));
    TRY(node_add(r->k, tail, rest));
    return add_pair(r->k, alt, first, tail);
}

/* A fraction continues with zeros only. */
static char digit_at(const char *fraction, size_t i)
{
    return i < strlen(fraction) ? fraction[i] : '0';
}

/* After the digits of both bounds: zeros change nothing, any other digit is above the bound. With
 * the upper bound 0.25 the text 0.2500 fits, and 0.2501 does not. */
static mpk_status fraction_zeros(digits_reader *r, size_t i, bool low, bool high, const node **out)
{
    const node *zeros, *other, *any;
    node *alt;
    TRY(node_new(r->k, NODE_ALT, &alt));
    TRY(digit(r->k, '0', '0', &zeros));
    if (may_stop(r, i, low, high)) {
        TRY(node_repeat(r->k, zeros, 1, GRAMMAR_FOREVER, &any));
        TRY(node_add(r->k, alt, any));
    }
    if (!high) {
        TRY(node_repeat(r->k, zeros, 0, GRAMMAR_FOREVER, &zeros));
        TRY(digit(r->k, '1', '9', &other));
        TRY(digits(r->k, 0, GRAMMAR_FOREVER, &any));
        TRY(node_pair(r->k, NODE_SEQ, other, any, &other));
        TRY(add_pair(r->k, alt, zeros, other));
    }
    *out = alt;
    return MPK_OK;
}

/* At least one more digit after i of them; low, high: the digits so far are equal to that bound's.
 * Between 0.25 and 0.4: the next digit is 2 (then 5 or more must follow), 3 (anything may) or 4
 * (only zeros may). Digits strictly between the bounds' free everything after them. */
static mpk_status fraction_from(digits_reader *r, size_t i, bool low, bool high, const node **out)
{
    const node *between, *any;
    node *alt;
    if (!low && !high)
        return digits(r->k, 1, GRAMMAR_FOREVER, out);
    if ((!low || i >= strlen(r->low.fraction)) && (!high || i >= strlen(r->high.fraction)))
        return fraction_zeros(r, i, low, high, out);
    char least = low ? digit_at(r->low.fraction, i) : '0';
    char most = high ? digit_at(r->high.fraction, i) : '9';
    TRY(node_new(r->k, NODE_ALT, &alt));
    if (low && least <= most)
        TRY(fraction_digit(r, i, least, true, high && least == most, alt));
    if (high && (!low || least < most))
        TRY(fraction_digit(r, i, most, false, true, alt));
    char from = (char)(least + low), to = (char)(most - high);
    if (from <= to) {
        TRY(digit(r->k, from, to, &between));
        TRY(digits(r->k, 0, GRAMMAR_FOREVER, &any));
        TRY(add_pair(r->k, alt, between, any));
    }
    *out = alt;
    return MPK_OK;
}

/* What may follow the digits before the point; nothing for an integer. */
static mpk_status fraction(digits_reader *r, bool low, bool high, const node **out)
{
    const node *point, *empty, *rest;
    node *alt;
    TRY(node_new(r->k, NODE_ALT, &alt));
    TRY(node_bytes(r->k, (str){0}, &empty));
    if (may_stop(r, 0, low, high))
        TRY(node_add(r->k, alt, empty));
    if (!r->integer) {
        TRY(node_bytes(r->k, STR("."), &point));
        TRY(fraction_from(r, 0, low, high, &rest));
        TRY(add_pair(r->k, alt, point, rest));
    }
    *out = alt;
    return MPK_OK;
}

/* ---- digits before the point ---- */

/* Numbers with as many digits as the given bounds, from digit i on, with their fractions. */
static mpk_status whole_from(digits_reader *r, size_t i, size_t n, const char *low,
                             const char *high, const node **out)
{
    const node *first, *rest, *last;
    node *alt;
    if (i == n)
        return fraction(r, low && low == r->low.whole, high && high == r->high.whole, out);
    char least = i || n == 1 ? '0' : '1'; /* a number does not begin with 0, unless it is 0 */
    char most = high ? high[i] : '9';
    if (low)
        least = low[i];
    if (low && n > 1 && i == 0 && least < '1')
        least = '1';
    TRY(node_new(r->k, NODE_ALT, &alt));
    for (char d = least; d <= most; d++) {
        bool at_low = low && d == least, at_high = high && d == most;
        char to = d;
        while (!at_low && !at_high && to + 1 <= most && !(high && to + 1 == most))
            to++;
        TRY(digit(r->k, d, to, &first));
        if (at_low || at_high) {
            const char *low_rest = at_low ? low : NULL;
            const char *high_rest = at_high ? high : NULL;
            TRY(whole_from(r, i + 1, n, low_rest, high_rest, &rest));
        } else {
            TRY(digits(r->k, (uint32_t)(n - i - 1), (uint32_t)(n - i - 1), &rest));
            TRY(fraction(r, false, false, &last));
            TRY(node_pair(r->k, NODE_SEQ, rest, last, &rest));
        }
        TRY(add_pair(r->k, alt, first, rest));
        d = to;
    }
    *out = alt;
    return MPK_OK;
}

/* Numbers with a length between those of the bounds: any digits. */
static mpk_status whole_free(digits_reader *r, uint32_t min, uint32_t max, const node **out)
{
    const node *first, *rest, *last;
    TRY(digit(r->k, '1', '9', &first));
    TRY(digits(r->k, min - 1, max == GRAMMAR_FOREVER ? max : max - 1, &rest));
    TRY(fraction(r, false, false, &last));
    TRY(node_pair(r->k, NODE_SEQ, rest, last, &rest));
    return node_pair(r->k, NODE_SEQ, first, rest, out);
}

/* Numbers between two magnitudes, by their number of digits: as many as the lower bound, more
 * than that and fewer than the upper, as many as the upper.  Only the first and the last case
 * follow a bound digit by digit. */
static mpk_status magnitude(digits_reader *r, const node **out)
{
    size_t n = strlen(r->low.whole), m = r->high.whole ? strlen(r->high.whole) : 0;
    const node *child = NULL;
    node *alt;
    TRY(node_new(r->k, NODE_ALT, &alt));
    TRY(whole_from(r, 0, n, r->low.whole, n == m ? r->high.whole : NULL, &child));
    TRY(node_add(r->k, alt, child));
    if (!m || m > n + 1) {
        TRY(whole_free(r, (uint32_t)n + 1, m ? (uint32_t)m - 1 : GRAMMAR_FOREVER, &child));
        TRY(node_add(r->k, alt, child));
    }
    if (m > n) {
        TRY(whole_from(r, 0, m, NULL, r->high.whole, &child));
        TRY(node_add(r->k, alt, child));
    }
    *out = alt;
    return MPK_OK;
}

/* ---- bounds ---- */

/* Whole parts compare by length first, then as texts: they have no leading zeros. */
static bool is_less(const side *x, const side *y, bool *same)
{
    size_t n = strlen(x->whole), m = strlen(y->whole);
    int longer = (n > m) - (n < m);
    int order = longer ? longer : strcmp(x->whole, y->whole);
    if (!order)
        order = strcmp(x->fraction, y->fraction);
    *same = order == 0;
    return order < 0;
}

/* A bound as digits.  Bounds are compared as texts, never as floats: 0.1 must mean 0.1. "-1.50"
 * gives the whole part "1", the fraction "5" and *negative. -0 counts as 0. */
static mpk_status split(schema_reader *r, const place *at, const json_value *v, bool excluded,
                        side *out, bool *negative)
{
    str s = v->text;
    *negative = s.n && s.at[0] == '-';
    str bare = {s.at + *negative, s.n - *negative};
    size_t point = 0;
    while (point < bare.n && bare.at[point] != '.')
        point++;
    for (size_t i = 0; i < bare.n; i++)
        if (bare.at[i] == 'e' || bare.at[i] == 'E' || bare.n > 40)
            return schema_refuse(r, at, "a bound with an exponent or of more than 40 digits");
    size_t end = bare.n;
    while (end > point && (bare.at[end - 1] == '0' || bare.at[end - 1] == '.'))
        end--;
    const char *whole = arena_copy(r->k->a, bare.at, point),
               *fraction =
                   end > point + 1 ? arena_copy(r->k->a, bare.at + point + 1, end - point - 1) : "";
    CHECK(r->k->cx, whole && fraction, MPK_ENOMEM, "out of memory for a bound");
    *out = (side){whole, fraction, excluded};
    if (!strcmp(whole, "0") && !*fraction)
        *negative = false;
    return MPK_OK;
}

/* The stricter one of an inclusive and an exclusive bound. */
static const json_value *sharper(const json_value *in, const json_value *ex, bool is_low,
                                 bool *excluded)
{
    *excluded = ex && (!in || (is_low ? ex->number >= in->number : ex->number <= in->number));
    return *excluded ? ex : in;
}

/* Numbers of one sign between two magnitudes. */
static mpk_status add_signed(maker *k, bool integer, const char *sign, side low, side high,
                             node *alt)
{
    digits_reader r = {.k = k, .low = low, .high = high, .integer = integer};
    const node *head, *rest;
    bool same = false;
    if (high.whole && !is_less(&low, &high, &same) && (!same || low.excluded || high.excluded))
        return MPK_OK;
    TRY(node_bytes(k, str_from(sign), &head));
    TRY(magnitude(&r, &rest));
    return add_pair(k, alt, head, rest);
}

/* Each sign apart: for negative numbers the bounds change places. -3 to 5 is "-" and 0 (excluded)
 * to 3, or 0 to 5. */
mpk_status number_between(schema_reader *r, const place *at, const number_rules *n, bool integer,
                          const node **out)
{
    static const side zero = {"0", "", false}, above_zero = {"0", "", true},
                      none = {NULL, "", false};
    side low = none, high = none;
    bool low_ex, high_ex, low_negative = true, high_negative = false;
    const json_value *from = sharper(n->minimum, n->above, true, &low_ex),
                     *to = sharper(n->maximum, n->below, false, &high_ex);
    node *alt;
    if (from)
        TRY(split(r, at, from, low_ex, &low, &low_negative));
    if (to)
        TRY(split(r, at, to, high_ex, &high, &high_negative));
    TRY(node_new(r->k, NODE_ALT, &alt));
    if (!high_negative)
        TRY(add_signed(r->k, integer, "", low_negative ? zero : low, high, alt));
    if (low_negative)
        TRY(add_signed(r->k, integer, "-", high_negative ? high : above_zero, low, alt));
    *out = alt;
    return MPK_OK;
}

/* ---- multiples ---- */

/* The multiples within bounds, one by one. Doubles hold the bounds exactly below 9e15, which is
 * checked first. */
static mpk_status list_multiples(schema_reader *r, const place *at, double low, double high,
                                 int64_t by, const node **out)
{
    str *texts;
    size_t n = 0;
    CHECK(r->k->cx, high - low < (double)MOST_MULTIPLES * (double)by && low > -9e15 && high < 9e15,
          MPK_EUNSUPPORTED,
          "multipleOf at %s with bounds that are more than %d multiples apart is not supported",
          schema_where(r, at), MOST_MULTIPLES);
    NEW(r->k->cx, r->k->a, texts, MOST_MULTIPLES + 2);
    int64_t first = (int64_t)low / by - 1;
    for (int64_t i = first; (double)(i * by) <= high; i++) {
        char spelled[32];
        if ((double)(i * by) < low)
            continue;
        int bytes = snprintf(spelled, sizeof spelled, "%lld", (long long)(i * by));
        texts[n].at = arena_copy(r->k->a, spelled, (size_t)bytes);
        CHECK(r->k->cx, texts[n].at, MPK_ENOMEM, "out of memory for the multiples");
        texts[n++].n = (size_t)bytes;
    }
    return node_texts(r->k, texts, n, out);
}

/* All multiples: a rule for each remainder of a division digit by digit. Reading the digit c in the
 * state of remainder i leads to (10 i + c) mod `by`; the text may end in remainder 0. For
 * multipleOf 3: "12" goes 1, 0 and may end. Numbers begin without zeros, except 0 itself. */
static mpk_status all_multiples(schema_reader *r, uint32_t by, const node **out)
{
    maker *k = r->k;
    uint32_t first = (uint32_t)k->rules.n, number;
    const node *d, *rest;
    node *alt;
    for (uint32_t i = 0; i < by; i++)
        TRY(rule_new(k, STR("multipleOf"), &number));
    for (uint32_t i = 0; i < by; i++) {
        TRY(node_new(k, NODE_ALT, &alt));
        for (uint32_t c = 0; c < 10; c++) {
            TRY(digit(k, (char)('0' + c), (char)('0' + c), &d));
            TRY(node_rule(k, first + (10 * i + c) % by, &rest));
            TRY(add_pair(k, alt, d, rest));
        }
        if (!i) {
            TRY(node_bytes(k, (str){0}, &rest));
            TRY(node_add(k, alt, rest));
        }
        /* the bodies are set after all rules exist, since remainders refer to each other in
         * circles */
        k->rules.at[first + i].body = alt;
    }
    TRY(node_new(k, NODE_ALT, &alt));
    /* 0 itself: no other number begins with it */
    TRY(node_bytes(k, STR("0"), &d));
    TRY(node_add(k, alt, d));
    for (uint32_t c = 1; c < 10; c++) {
        TRY(digit(k, (char)('0' + c), (char)('0' + c), &d));
        TRY(node_rule(k, first + c % by, &rest));
        TRY(add_pair(k, alt, d, rest));
    }
    const node *minus, *sign;
    TRY(node_bytes(k, STR("-"), &minus));
    TRY(node_repeat(k, minus, 0, 1, &sign));
    return node_pair(k, NODE_SEQ, sign, alt, out);
}

/* For 0.01 and the like, the number of digits after the point; 0 for other numbers. */
static uint32_t decimals_of(str s)
{
    if (s.n < 3 || memcmp(s.at, "0.", 2) != 0 || s.at[s.n - 1] != '1')
        return 0;
    for (size_t i = 2; i + 1 < s.n; i++)
        if (s.at[i] != '0')
            return 0;
    return (uint32_t)s.n - 2;
}

/* What is possible without arithmetic in the automaton: 0.1, 0.01 .. limit the decimals;
 * multiples within two bounds are listed; multiples without bounds are a division, with a rule
 * for each remainder. */
mpk_status number_multiple(schema_reader *r, const place *at, const number_rules *n, bool integer,
                           const node **out)
{
    bool bounded = n->minimum || n->maximum || n->above || n->below, excluded;
    uint32_t decimals = decimals_of(n->multiple->text);
    if (decimals && integer)
        return bounded ? number_between(r, at, n, true, out) : schema_integer(r, out);
    if (decimals && !bounded) {
        char source[80];
        snprintf(source, sizeof source, "-?(?:0|[1-9][0-9]*)(?:\\.[0-9]{1,%u})?", decimals);
        return regex_parse_node(r->k, str_from(source), true, out);
    }
    int64_t by = n->multiple->is_integer ? n->multiple->integer : 0;
    if (by < 1)
        return schema_refuse(
            r, at,
            "multipleOf that is neither a whole number nor 0.1, 0.01 ..., or is with bounds");
    if (bounded) {
        const json_value *low = sharper(n->minimum, n->above, true, &excluded);
        const json_value *high = sharper(n->maximum, n->below, false, &excluded);
        if (!low || !high || n->above || n->below)
            return schema_refuse(r, at, "multipleOf with one bound, or with an exclusive one,");
        return list_multiples(r, at, low->number, high->number, by, out);
    }
    if (by > MOST_DIVISOR)
        return schema_refuse(r, at, "multipleOf above 1000");
    return all_multiples(r, (uint32_t)by, out);
}
