/* jinja_value.c - values: making them, and what Python says of their truth, equality, order and
 * length.
 *
 * Looking through nested values counts as work and is bounded in depth, like everything that a
 * template can make long.
 */
#include "jinja/jinja_parts.h"

#include <math.h>

/* ---- making ---- */

/* Lists and tuples are the same record; the capacity is charged before it is allocated. */
mpk_status jinja_make_list(jrun *r, jkind kind, size_t capacity, jval *out)
{
    jlist *l;
    TRY(jinja_charge(r, capacity * sizeof(jval)));
    NEW(r->cx, r->a, l, 1);
    if (capacity)
        NEW(r->cx, r->a, l->at, capacity);
    l->capacity = capacity;
    *out = (jval){.kind = kind, .list = l};
    return MPK_OK;
}

/* Append to a list that no other value refers to yet.  Doubling is charged when it happens, one
 * unit otherwise. */
mpk_status jinja_push(jrun *r, jlist *l, jval v)
{
    TRY(jinja_charge(r, l->n == l->capacity ? l->n * sizeof v : 1));
    PUSH(r->cx, r->a, l, v);
    return MPK_OK;
}

mpk_status jinja_pair(jrun *r, jval a, jval b, jval *out)
{
    TRY(jinja_make_list(r, J_TUPLE, 2, out));
    TRY(jinja_push(r, out->list, a));
    return jinja_push(r, out->list, b);
}

/* Empty. */
mpk_status jinja_make_dict(jrun *r, jval *out)
{
    jdict *d;
    TRY(jinja_charge(r, sizeof *d));
    NEW(r->cx, r->a, d, 1);
    *out = (jval){.kind = J_DICT, .dict = d};
    return MPK_OK;
}

/* A tuple may hold itself many times over, as in t = (t, t), and be nested as deep as a template
 * has steps: each visit is work, and each level counts in depth. */
mpk_status jinja_find_unhashable(jrun *r, jval v, jval *out)
{
    const bool bad = v.kind == J_LIST || v.kind == J_DICT || v.kind == J_VIEW;
    *out = bad ? v : (jval){0};
    if (v.kind != J_TUPLE)
        return MPK_OK;
    TRY(jinja_deeper(r));
    for (size_t i = 0; i < v.list->n && out->kind == J_ABSENT; i++) {
        TRY(jinja_work(r, 1));
        TRY(jinja_find_unhashable(r, v.list->at[i], out));
    }
    r->depth--;
    return MPK_OK;
}

/* As in Python: lists and dicts cannot be keys, nor tuples that hold one. */
mpk_status jinja_check_hashable(jrun *r, jval v)
{
    jval bad;
    TRY(jinja_find_unhashable(r, v, &bad));
    if (bad.kind != J_ABSENT)
        return jinja_fail(r, "%s cannot be a key", jinja_type_name(bad));
    return MPK_OK;
}

enum { INDEXED_FROM = 16 };

/* The place of a key, d->n if there is none.  Keys that are equal as Python has it are one key: 1,
 * 1.0 and true.  Texts are only equal to texts, so for them alone there is an index. Comparing long
 * texts is work, too, and is charged by their length. */
static mpk_status find_entry(jrun *r, const jdict *d, jval key, size_t *out)
{
    uint64_t at;
    if (key.kind == J_STR)
        TRY(jinja_work(r, key.text.n * (uint64_t)(d->is_indexed ? 2 : d->n + 1)));
    if (key.kind == J_STR && d->is_indexed) {
        *out = map_get(&d->texts, key.text, &at) ? (size_t)at : d->n;
        return jinja_charge(r, 1);
    }
    TRY(jinja_charge(r, d->n));
    for (*out = 0; *out < d->n; ++*out) {
        jval found = d->at[*out].key;
        bool equal = key.kind == J_STR && found.kind == J_STR && str_equal(key.text, found.text);
        if (key.kind != J_STR && found.kind != J_STR)
            TRY(jinja_equal(r, key, found, &equal));
        if (equal)
            return MPK_OK;
    }
    return MPK_OK;
}

/* Only keys that are texts are indexed; others are few and searched one by one. */
static mpk_status index_entry(jrun *r, jdict *d, size_t i)
{
    return d->at[i].key.kind == J_STR ? map_put(r->cx, r->a, &d->texts, d->at[i].key.text, i)
                                      : MPK_OK;
}

/* Small dicts are searched from the start; from INDEXED_FROM entries on there is an index of
 * hashes.  Entries keep the order in which they were added. The index is made once, when the dict
 * reaches that size, and kept up from then on; entries are never removed. */
mpk_status jinja_dict_put(jrun *r, jdict *d, jval key, jval value)
{
    size_t at;
    TRY(find_entry(r, d, key, &at));
    if (at < d->n) {
        d->at[at].value = value;
        return MPK_OK;
    }
    TRY(jinja_charge(r, d->n == d->capacity ? d->n * sizeof(jentry) : 1));
    PUSH(r->cx, r->a, d, (jentry){key, value});
    if (d->is_indexed)
        return index_entry(r, d, d->n - 1);
    if (d->n == INDEXED_FROM) {
        for (size_t i = 0; i < d->n; i++)
            TRY(index_entry(r, d, i));
        d->is_indexed = true;
    }
    return MPK_OK;
}

/* *out points into the dict and holds until the next jinja_dict_put. */
mpk_status jinja_dict_find(jrun *r, const jdict *d, jval key, const jval **out)
{
    size_t at;
    TRY(find_entry(r, d, key, &at));
    *out = at < d->n ? &d->at[at].value : NULL;
    return MPK_OK;
}

/* ---- from JSON ---- */

/* Of a JSON number that is no int64: digits alone, or a fraction or an exponent too? */
static bool spells_integer(str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.at[i] == '.' || s.at[i] == 'e' || s.at[i] == 'E')
            return false;
    return true;
}

/* A key that comes twice has its last value.  Depth is bounded by the JSON parser. */
static mpk_status json_items(jrun *r, const json_value *j, jval *out)
{
    jval item;
    const bool object = j->kind == JSON_KIND_OBJECT;
    TRY(object ? jinja_make_dict(r, out) : jinja_make_list(r, J_LIST, j->n, out));
    for (size_t i = 0; i < j->n; i++) {
        TRY(jinja_from_json(r, &j->items[i], &item));
        TRY(object ? jinja_dict_put(r, out->dict, jinja_str(j->items[i].key), item)
                   : jinja_push(r, out->list, item));
    }
    return MPK_OK;
}

/* Integers beyond 64 bits keep their digits: they can be printed, not computed with. 1.0 stays a
 * float and 1 an integer: they print differently. */
mpk_status jinja_from_json(jrun *r, const json_value *j, jval *out)
{
    switch (j->kind) {
    case JSON_KIND_NULL:
        *out = jinja_none();
        return MPK_OK;
    case JSON_KIND_BOOL:
        *out = jinja_bool(j->boolean);
        return MPK_OK;
    case JSON_KIND_NUMBER:
        if (j->is_integer)
            *out = jinja_int(j->integer);
        else if (spells_integer(j->text))
            *out = (jval){.kind = J_BIG, .text = j->text};
        else
            *out = jinja_float(j->number);
        return MPK_OK;
    case JSON_KIND_STRING:
        *out = jinja_str(j->text);
        return MPK_OK;
    default:
        return json_items(r, j, out);
    }
}

/* ---- what they are ---- */

/* In the order of jkind; with an article, for use in a sentence. */
const char *jinja_type_name(jval v)
{
    static const char *const names[] = {
        "nothing", "an undefined value", "None",       "a boolean",   "an integer",
        "a float", "an integer",         "a string",   "a list",      "a tuple",
        "a dict",  "a view of a dict",   "a range",    "an iterator", "a namespace",
        "a macro", "a method",           "a function", "a loop",      "a cycler",
        "a joiner"};
    return names[v.kind];
}

/* Python's truth: empty and zero are false.  NaN is true. Objects without a length (macros, loops)
 * are true. */
bool jinja_true(jval v)
{
    switch (v.kind) {
    case J_ABSENT:
    case J_UNDEFINED:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.boolean;
    case J_INT:
        return v.integer != 0;
    case J_FLOAT:
        return v.number != 0;
    case J_STR:
        return v.text.n > 0;
    case J_LIST:
    case J_TUPLE:
        return v.list->n > 0;
    case J_DICT:
        return v.dict->n > 0;
    case J_VIEW:
        return v.view->dict->n > 0;
    case J_RANGE:
        return v.range->n > 0;
    default:
        return true;
    }
}

/* Characters of a string, not bytes, counted each time and therefore charged. What has no length is
 * an error; undefined has 0, as in Jinja2. */
mpk_status jinja_length(jrun *r, jval v, int64_t *out)
{
    switch (v.kind) {
    case J_UNDEFINED:
        *out = 0;
        return MPK_OK;
    case J_STR:
        *out = (int64_t)jinja_chars(v.text);
        return jinja_charge(r, v.text.n);
    case J_LIST:
    case J_TUPLE:
        *out = (int64_t)v.list->n;
        return MPK_OK;
    case J_DICT:
        *out = (int64_t)v.dict->n;
        return MPK_OK;
    case J_VIEW:
        *out = (int64_t)v.view->dict->n;
        return MPK_OK;
    case J_RANGE:
        *out = v.range->n;
        return MPK_OK;
    case J_LOOP: {
        jval length;
        TRY(jinja_loop_attribute(r, v.loop, STR("length"), &length));
        *out = length.integer;
        return MPK_OK;
    }
    default:
        return jinja_fail(r, "%s has no length", jinja_type_name(v));
    }
}

/* ---- equality and order ---- */

static bool is_number(jval v)
{
    return v.kind == J_BOOL || v.kind == J_INT || v.kind == J_FLOAT;
}

/* a - b as -1, 0, 1 of numbers, exact between integers and floats; 2: one is no number (nan). As
 * doubles 2^53 and 2^53 + 1 would be equal: so the whole part of the float is compared as an
 * integer, then its fraction. */
static int compare_numbers(jval a, jval b)
{
    if (jinja_is_integral(a) && jinja_is_integral(b)) {
        int64_t i = jinja_integral(a), k = jinja_integral(b);
        return (i > k) - (i < k);
    }
    if (a.kind == J_FLOAT && b.kind == J_FLOAT)
        return isnan(a.number) || isnan(b.number) ? 2
                                                  : (a.number > b.number) - (a.number < b.number);
    if (a.kind == J_FLOAT) {
        int back = compare_numbers(b, a);
        return back == 2 ? 2 : -back;
    }
    int64_t i = jinja_integral(a);
    if (isnan(b.number))
        return 2;
    if (b.number >= 0x1p63)
        return -1;
    if (b.number < -0x1p63)
        return 1;
    int64_t whole = (int64_t)b.number;
    double rest = b.number - (double)whole;
    return i != whole ? (i > whole) - (i < whole) : (rest < 0) - (rest > 0);
}

/* Lists and tuples, never one with the other (jinja_equal has compared kinds). */
static mpk_status equal_lists(jrun *r, const jlist *a, const jlist *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++)
        TRY(jinja_equal(r, a->at[i], b->at[i], out));
    return MPK_OK;
}

/* Without regard to order. */
static mpk_status equal_dicts(jrun *r, const jdict *a, const jdict *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        const jval *other;
        TRY(jinja_dict_find(r, b, a->at[i].key, &other));
        *out = other != NULL;
        if (other)
            TRY(jinja_equal(r, a->at[i].value, *other, out));
    }
    return MPK_OK;
}

/* As sequences: the step of a range with one item does not count. */
static bool equal_ranges(const jrange *a, const jrange *b)
{
    return a->n == b->n &&
           (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

/* Views compare like sets in Python: refused, unless both are of one dict, or of values, which
 * equal nothing but themselves. */
static mpk_status equal_same_kind(jrun *r, jval a, jval b, bool *out)
{
    *out = false;
    switch (a.kind) {
    case J_UNDEFINED:
    case J_NONE:
        *out = true;
        return MPK_OK;
    case J_STR:
    case J_BIG:
        *out = str_equal(a.text, b.text);
        return jinja_charge(r, a.text.n);
    case J_LIST:
    case J_TUPLE:
        return equal_lists(r, a.list, b.list, out);
    case J_DICT:
        return equal_dicts(r, a.dict, b.dict, out);
    case J_RANGE:
        *out = equal_ranges(a.range, b.range);
        return MPK_OK;
    case J_METHOD: {
        bool same = a.method->method == b.method->method;
        return same ? jinja_equal(r, a.method->self, b.method->self, out) : MPK_OK;
    }
    case J_VIEW:
        if (a.view->dict != b.view->dict && (a.view->part != J_VALUES || b.view->part != J_VALUES))
            return jinja_refuse(r, "comparing views of dicts is not supported; make them lists");
        *out = a.view == b.view || (a.view->part == b.view->part && a.view->part != J_VALUES);
        return MPK_OK;
    default: /* identity */
        *out = a.list == b.list;
        return MPK_OK;
    }
}

/* Numbers compare by value over all kinds, true being 1.  Values of different kinds are unequal,
 * never an error. */
mpk_status jinja_equal(jrun *r, jval a, jval b, bool *out)
{
    TRY(jinja_charge(r, 1));
    if (is_number(a) && is_number(b)) {
        *out = compare_numbers(a, b) == 0;
        return MPK_OK;
    }
    *out = false;
    if ((a.kind == J_BIG && b.kind == J_FLOAT) || (a.kind == J_FLOAT && b.kind == J_BIG))
        return jinja_refuse(r, "comparing integers beyond 64 bits is not supported");
    if (a.kind != b.kind)
        return MPK_OK;
    TRY(jinja_deeper(r));
    TRY(equal_same_kind(r, a, b, out));
    r->depth--;
    return MPK_OK;
}

/* The first items that differ decide, or the lengths. */
static mpk_status less_lists(jrun *r, const jlist *a, const jlist *b, bool *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool equal;
        TRY(jinja_equal(r, a->at[i], b->at[i], &equal));
        if (!equal)
            return jinja_less(r, a->at[i], b->at[i], out);
    }
    *out = a->n < b->n;
    return MPK_OK;
}

/* Only numbers, strings, and two lists or two tuples have an order. */
mpk_status jinja_less(jrun *r, jval a, jval b, bool *out)
{
    TRY(jinja_charge(r, 1));
    if (is_number(a) && is_number(b)) {
        *out = compare_numbers(a, b) == -1;
        return MPK_OK;
    }
    if (a.kind == J_BIG || b.kind == J_BIG)
        return jinja_refuse(r, "comparing integers beyond 64 bits is not supported");
    if (a.kind == J_STR && b.kind == J_STR) {
        /* UTF-8 has the order of code points */
        size_t n = a.text.n < b.text.n ? a.text.n : b.text.n;
        int order = n ? memcmp(a.text.at, b.text.at, n) : 0;
        *out = order < 0 || (order == 0 && a.text.n < b.text.n);
        return jinja_charge(r, n);
    }
    if (a.kind == J_VIEW && b.kind == J_VIEW)
        return jinja_refuse(r, "comparing views of dicts is not supported; make them lists");
    if ((a.kind != J_LIST && a.kind != J_TUPLE) || a.kind != b.kind)
        return jinja_fail(r, "%s and %s cannot be ordered", jinja_type_name(a), jinja_type_name(b));
    TRY(jinja_deeper(r));
    TRY(less_lists(r, a.list, b.list, out));
    r->depth--;
    return MPK_OK;
}
