/* jinja_sequence.c - filters of sequences: join, sort, map, select and their kin.
 *
 * Filters that look at all items (sort, join, sum) consume their subject; map, select and their
 * kin give an iterator that has not begun (jinja_iterate.c).  Sorting decorates: the key of each
 * item is computed once, then pairs of key and item are merged,
 *
 *   [{"n": "b"}, {"n": "A"}] | sort(attribute="n"):   keys ["b"], ["a"]   ->   A before b
 */
#include "jinja/jinja_parts.h"

/* ---- taking apart ---- */

static mpk_status filter_list(jrun *r, jval v, const jargs *args, jval *out)
{
    TRY(jinja_bind(r, "list", args, "", 0, NULL));
    return jinja_collect(r, v, out);
}

/* Takes one item and no more: what lies after it may be an error, or infinite. */
static mpk_status filter_first(jrun *r, jval v, const jargs *args, jval *out)
{
    jiterator *it;
    TRY(jinja_bind(r, "first", args, "", 0, NULL));
    TRY(jinja_iterate(r, v, &it));
    TRY(jinja_next(r, it, out));
    if (out->kind == J_ABSENT)
        *out = jinja_undefined(STR("first"));
    return MPK_OK;
}

/* Kinds in the order of jkind: strings, lists, tuples, dicts, views and ranges. */
static bool is_reversible(jval v)
{
    return v.kind == J_UNDEFINED || (v.kind >= J_STR && v.kind <= J_RANGE);
}

/* Iterators have no end to read from, as in Python. */
static mpk_status filter_last(jrun *r, jval v, const jargs *args, jval *out)
{
    jval list;
    TRY(jinja_bind(r, "last", args, "", 0, NULL));
    if (!is_reversible(v))
        return jinja_fail(r, "last: %s cannot be read from its end", jinja_type_name(v));
    if (v.kind != J_LIST && v.kind != J_TUPLE)
        TRY(jinja_collect(r, v, &list));
    else
        list = v;
    *out = list.list->n ? list.list->at[list.list->n - 1] : jinja_undefined(STR("last"));
    return MPK_OK;
}

/* A string gives a string; a sequence gives an iterator, as Python's reversed does; an iterator
 * gives a list. */
static mpk_status filter_reverse(jrun *r, jval v, const jargs *args, jval *out)
{
    jval list;
    TRY(jinja_bind(r, "reverse", args, "", 0, NULL));
    if (v.kind == J_STR)
        return jinja_get_slice(r, v, (jval){0}, (jval){0}, jinja_int(-1), out);
    TRY(jinja_collect(r, v, &list));
    for (size_t i = 0, n = list.list->n; i < n / 2; i++) {
        jval first = list.list->at[i];
        list.list->at[i] = list.list->at[n - 1 - i];
        list.list->at[n - 1 - i] = first;
    }
    *out = list;
    return is_reversible(v) ? jinja_iterate_list(r, list.list, out) : MPK_OK;
}

/* Of what is undefined there are none: the filter exists for that. */
static mpk_status filter_items(jrun *r, jval v, const jargs *args, jval *out)
{
    jval list;
    TRY(jinja_bind(r, "items", args, "", 0, NULL));
    if (v.kind != J_UNDEFINED && v.kind != J_DICT)
        return jinja_fail(r, "items: %s is not a dict", jinja_type_name(v));
    if (v.kind == J_DICT)
        TRY(jinja_find_method(v, STR("items"))->call(r, v, &(jargs){0}, &v));
    TRY(jinja_collect(r, v, &list));
    return jinja_iterate_list(r, list.list, out);
}

/* One pass, appending to the same text. jinja_binary extends a text in place if it is the last one
 * made, so this is linear. */
static mpk_status filter_join(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[2], item;
    str d = {0}, s;
    jiterator *it;
    TRY(jinja_bind(r, "join", args, "d attribute", 0, a));
    TRY(jinja_to_str(r, a[0], &d));
    TRY(jinja_iterate(r, v, &it));
    *out = jinja_str(STR(""));
    for (bool first = true;; first = false) {
        TRY(jinja_next(r, it, &item));
        if (item.kind == J_ABSENT)
            return MPK_OK;
        if (a[1].kind > J_NONE)
            TRY(jinja_attribute_path(r, item, a[1], (jval){0}, &item));
        TRY(jinja_to_str(r, item, &s));
        if (!first)
            TRY(jinja_binary(r, '+', *out, jinja_str(d), out));
        TRY(jinja_binary(r, '+', *out, jinja_str(s), out));
    }
}

/* ---- keys to order by ---- */

/* Without regard to case means: compared as lower case. */
static mpk_status fold(jrun *r, jval *key, bool case_sensitive)
{
    if (case_sensitive || key->kind != J_STR)
        return MPK_OK;
    key->markup = false;
    return jinja_set_case(r, key->text, J_LOWER, &key->text);
}

/* What to order an item by: a list of its attributes "a,b", or of itself. sort(attribute="a,b")
 * sorts by a, and by b where a is equal: lists compare item by item. */
static mpk_status list_key(jrun *r, jval item, jval attribute, bool case_sensitive, jval *out)
{
    jval key;
    TRY(jinja_make_list(r, J_LIST, 1, out));
    if (attribute.kind != J_STR) {
        TRY(jinja_attribute_path(r, item, attribute, (jval){0}, &key));
        TRY(fold(r, &key, case_sensitive));
        return jinja_push(r, out->list, key);
    }
    TRY(jinja_work(r, attribute.text.n));
    for (size_t at = 0, end; at <= attribute.text.n; at = end + 1) {
        for (end = at; end < attribute.text.n && attribute.text.at[end] != ','; end++)
            ;
        jval part = jinja_str((str){attribute.text.at + at, end - at});
        TRY(jinja_attribute_path(r, item, part, (jval){0}, &key));
        TRY(fold(r, &key, case_sensitive));
        TRY(jinja_push(r, out->list, key));
    }
    return MPK_OK;
}

/* An item with what it is ordered by. */
typedef struct keyed {
    jval key, item;
} keyed;

/* A stable merge sort. */
static mpk_status sort_keyed(jrun *r, keyed *at, keyed *spare, size_t n, bool reverse)
{
    if (n < 2)
        return MPK_OK;
    size_t half = n / 2, i = 0, k = half;
    TRY(sort_keyed(r, at, spare, half, reverse));
    TRY(sort_keyed(r, at + half, spare, n - half, reverse));
    for (size_t to = 0; to < n; to++) {
        bool second = i == half;
        if (i < half && k < n)
            TRY(reverse ? jinja_less(r, at[i].key, at[k].key, &second)
                        : jinja_less(r, at[k].key, at[i].key, &second));
        spare[to] = at[second ? k++ : i++];
    }
    memcpy(at, spare, n * sizeof *at);
    return MPK_OK;
}

typedef mpk_status (*make_key)(jrun *r, jval item, const void *how, jval *out);

/* The items of a list in the order of their keys. */
static mpk_status sorted(jrun *r, const jlist *l, make_key key, const void *how, bool reverse,
                         keyed **out)
{
    keyed *at, *spare;
    TRY(jinja_charge(r, l->n * 2 * sizeof *at));
    NEW(r->cx, r->a, at, l->n);
    NEW(r->cx, r->a, spare, l->n);
    for (size_t i = 0; i < l->n; i++) {
        at[i].item = l->at[i];
        TRY(key(r, l->at[i], how, &at[i].key));
    }
    TRY(sort_keyed(r, at, spare, l->n, reverse));
    *out = at;
    return MPK_OK;
}

/* How to make keys: the arguments of sort, unique, min, max and groupby that are the same. */
typedef struct order {
    jval attribute, otherwise;
    bool case_sensitive;
    int part; /* of dictsort: 0 key, 1 value */
} order;

/* A list even for one attribute, as Jinja2 makes it; lists compare item by item. */
static mpk_status sort_key(jrun *r, jval item, const void *how, jval *out)
{
    const order *o = how;
    return list_key(r, item, o->attribute, o->case_sensitive, out);
}

/* One attribute, or the item itself. */
static mpk_status plain_key(jrun *r, jval item, const void *how, jval *out)
{
    const order *o = how;
    TRY(jinja_attribute_path(r, item, o->attribute, o->otherwise, out));
    return fold(r, out, o->case_sensitive);
}

/* Of dictsort's pairs the key or the value. */
static mpk_status part_key(jrun *r, jval item, const void *how, jval *out)
{
    const order *o = how;
    *out = item.list->at[o->part];
    return fold(r, out, o->case_sensitive);
}

/* A new list with the items in order. */
static mpk_status give_sorted(jrun *r, const jlist *l, make_key key, const order *o, bool reverse,
                              jval *out)
{
    keyed *at = NULL;
    TRY(sorted(r, l, key, o, reverse, &at));
    TRY(jinja_make_list(r, J_LIST, l->n, out));
    for (size_t i = 0; i < l->n; i++)
        TRY(jinja_push(r, out->list, at[i].item));
    return MPK_OK;
}

/* Stable, also in reverse: equal items keep their order. */
static mpk_status filter_sort(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[3], list;
    TRY(jinja_bind(r, "sort", args, "reverse case_sensitive attribute", 0, a));
    TRY(jinja_collect(r, v, &list));
    order o = {.attribute = a[2], .case_sensitive = jinja_true(a[1])};
    return give_sorted(r, list.list, sort_key, &o, jinja_true(a[0]), out);
}

/* A list of pairs, by key or by value, without regard to case unless asked. */
static mpk_status filter_dictsort(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[3], list;
    str by = STR("key");
    TRY(jinja_bind(r, "dictsort", args, "case_sensitive by reverse", 0, a));
    if (a[1].kind != J_ABSENT)
        TRY(jinja_need_str(r, a[1], "dictsort", &by));
    if (!str_is(by, "key") && !str_is(by, "value"))
        return jinja_fail(r, "dictsort: by is \"key\" or \"value\"");
    if (v.kind != J_DICT)
        return jinja_fail(r, "dictsort: %s is not a dict", jinja_type_name(v));
    TRY(jinja_find_method(v, STR("items"))->call(r, v, &(jargs){0}, &v));
    TRY(jinja_collect(r, v, &list));
    order o = {.case_sensitive = jinja_true(a[0]), .part = str_is(by, "value")};
    return give_sorted(r, list.list, part_key, &o, jinja_true(a[2]), out);
}

/* The first of equal ones stays.  A dict is the set of keys seen. ["a", "A", "b"] | unique is "a",
 * "b": case does not count unless it is asked to. */
static mpk_status filter_unique(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[2], item, key, seen, list;
    jiterator *it;
    TRY(jinja_bind(r, "unique", args, "case_sensitive attribute", 0, a));
    TRY(jinja_iterate(r, v, &it));
    TRY(jinja_make_dict(r, &seen));
    TRY(jinja_make_list(r, J_LIST, 0, &list));
    const order o = {.attribute = a[1], .case_sensitive = jinja_true(a[0])};
    for (;;) {
        const jval *found;
        TRY(jinja_next(r, it, &item));
        if (item.kind == J_ABSENT)
            return jinja_iterate_list(r, list.list, out);
        TRY(plain_key(r, item, &o, &key));
        TRY(jinja_check_hashable(r, key));
        TRY(jinja_dict_find(r, seen.dict, key, &found));
        if (found)
            continue;
        TRY(jinja_dict_put(r, seen.dict, key, jinja_none()));
        TRY(jinja_push(r, list.list, item));
    }
}

/* Of equal ones the first wins, for min and for max. Of no items it is undefined, as in Jinja2. */
static mpk_status extreme(jrun *r, const char *what, jval v, const jargs *args, bool largest,
                          jval *out)
{
    jval a[2], item, key, best = {0};
    jiterator *it;
    TRY(jinja_bind(r, what, args, "case_sensitive attribute", 0, a));
    TRY(jinja_iterate(r, v, &it));
    const order o = {.attribute = a[1], .case_sensitive = jinja_true(a[0])};
    *out = jinja_undefined(str_from(what));
    for (;;) {
        bool better = best.kind == J_ABSENT;
        TRY(jinja_next(r, it, &item));
        if (item.kind == J_ABSENT)
            return MPK_OK;
        TRY(plain_key(r, item, &o, &key));
        if (!better)
            TRY(largest ? jinja_less(r, best, key, &better) : jinja_less(r, key, best, &better));
        if (better) {
            best = key;
            *out = item;
        }
    }
}

static mpk_status filter_min(jrun *r, jval v, const jargs *args, jval *out)
{
    return extreme(r, "min", v, args, false, out);
}

static mpk_status filter_max(jrun *r, jval v, const jargs *args, jval *out)
{
    return extreme(r, "max", v, args, true, out);
}

/* + of Python, so lists can be summed with a list as start. */
static mpk_status filter_sum(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[2], item;
    jiterator *it;
    TRY(jinja_bind(r, "sum", args, "attribute start", 0, a));
    TRY(jinja_iterate(r, v, &it));
    *out = a[1].kind == J_ABSENT ? jinja_int(0) : a[1];
    if (out->kind == J_STR)
        return jinja_fail(r, "sum: strings are joined, not summed");
    for (;;) {
        TRY(jinja_next(r, it, &item));
        if (item.kind == J_ABSENT)
            return MPK_OK;
        TRY(jinja_attribute_path(r, item, a[0], (jval){0}, &item));
        TRY(jinja_binary(r, '+', *out, item, out));
    }
}

/* ---- groups ---- */

/* A new empty list at the end of `to`; *now is where its items go. */
static mpk_status push_list(jrun *r, jlist *to, jlist **now)
{
    jval list;
    TRY(jinja_make_list(r, J_LIST, 0, &list));
    *now = list.list;
    return jinja_push(r, to, list);
}

/* Nothing to fill with: the list stays short. */
static mpk_status fill(jrun *r, jlist *l, size_t n, jval with)
{
    /* what is undefined fills, too */
    while (with.kind != J_ABSENT && with.kind != J_NONE && l->n < n)
        TRY(jinja_push(r, l, with));
    return MPK_OK;
}

/* Rows of n; the last is filled up if something to fill with is given. [1,2,3] | batch(2, 0) is
 * [1,2], [3,0]. */
static mpk_status filter_batch(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[2], item, all;
    jiterator *it;
    jlist *now = NULL;
    int64_t n = 0;
    TRY(jinja_bind(r, "batch", args, "linecount fill_with", 1, a));
    TRY(jinja_need_int(r, a[0], "batch", &n));
    if (n < 1)
        return jinja_refuse(r, "batch into fewer than one item is not supported");
    TRY(jinja_iterate(r, v, &it));
    TRY(jinja_make_list(r, J_LIST, 0, &all));
    for (;;) {
        TRY(jinja_next(r, it, &item));
        if (item.kind == J_ABSENT)
            break;
        if (!now || now->n == (size_t)n)
            TRY(push_list(r, all.list, &now));
        TRY(jinja_push(r, now, item));
    }
    if (now)
        TRY(fill(r, now, (size_t)n, a[1]));
    return jinja_iterate_list(r, all.list, out);
}

/* n columns whose lengths differ by one at most, the longer ones first; the shorter are filled up.
 * [1,2,3,4,5] | slice(3) is [1,2], [3,4], [5]. */
static mpk_status filter_slice(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[2], items, all;
    int64_t n = 0;
    TRY(jinja_bind(r, "slice", args, "slices fill_with", 1, a));
    TRY(jinja_need_int(r, a[0], "slice", &n));
    TRY(jinja_collect(r, v, &items));
    if (n < 1)
        return jinja_refuse(r, "slice into fewer than one part is not supported");
    TRY(jinja_make_list(r, J_LIST, 0, &all));
    const size_t each = items.list->n / (size_t)n, extra = items.list->n % (size_t)n;
    for (size_t i = 0, at = 0; i < (size_t)n; i++) {
        jlist *now;
        TRY(push_list(r, all.list, &now));
        for (size_t end = at + each + (i < extra); at < end; at++)
            TRY(jinja_push(r, now, items.list->at[at]));
        if (i >= extra)
            TRY(fill(r, now, now->n + 1, a[1]));
    }
    return jinja_iterate_list(r, all.list, out);
}

/* Items with equal keys, in the order of the keys; each group under the attribute of its first
 * item. Each group is a tuple that knows two names: .grouper and .list. Sorting is stable, so items
 * of a group keep their order. */
static mpk_status filter_groupby(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[3], list;
    keyed *at = NULL;
    jlist *now = NULL;
    TRY(jinja_bind(r, "groupby", args, "attribute default case_sensitive", 1, a));
    TRY(jinja_collect(r, v, &list));
    const order o = {.attribute = a[0],
                     .otherwise = a[1].kind == J_NONE ? (jval){0} : a[1],
                     .case_sensitive = jinja_true(a[2])};
    TRY(sorted(r, list.list, plain_key, &o, false, &at));
    TRY(jinja_make_list(r, J_LIST, 0, out));
    for (size_t i = 0; i < list.list->n; i++) {
        bool same = false;
        if (i)
            TRY(jinja_equal(r, at[i - 1].key, at[i].key, &same));
        if (!same) {
            jval group, label, members;
            TRY(jinja_attribute_path(r, at[i].item, o.attribute, o.otherwise, &label));
            TRY(jinja_make_list(r, J_LIST, 0, &members));
            TRY(jinja_pair(r, label, members, &group));
            group.list->is_group = true;
            now = members.list;
            TRY(jinja_push(r, out->list, group));
        }
        TRY(jinja_push(r, now, at[i].item));
    }
    return MPK_OK;
}

/* ---- one by one ---- */

/* Arguments live as long as the iterator: those of a call lie in the arena. */
static jargs skip_args(const jargs *args, size_t n)
{
    return (jargs){args->at + n, args->n - n, args->keywords, args->n_keywords};
}

/* map(attribute=..., default=...): no filter. */
static mpk_status map_attribute(jrun *r, const jargs *args, jeach *each)
{
    jval a[2];
    TRY(jinja_bind(r, "map", args, "attribute default", 1, a));
    each->attribute = a[0];
    each->otherwise = a[1].kind == J_NONE ? (jval){0} : a[1];
    return MPK_OK;
}

/* Was this argument given by name? */
static bool has_keyword(const jargs *args, const char *name)
{
    for (size_t i = 0; i < args->n_keywords; i++)
        if (str_is(args->keywords[i].name, name))
            return true;
    return false;
}

/* A filter with arguments, or an attribute.  Nothing is computed before it is asked for
 * (jinja_iterate.c). names | map("upper"), or users | map(attribute="name"). */
static mpk_status filter_map(jrun *r, jval v, const jargs *args, jval *out)
{
    jeach each = {0};
    str name = {0};
    if (!jinja_true(v))
        return jinja_iterate_each(r, jinja_undefined(STR("map")), &each, out);
    if (!args->n && has_keyword(args, "attribute")) {
        TRY(map_attribute(r, args, &each));
        return jinja_iterate_each(r, v, &each, out);
    }
    if (!args->n)
        return jinja_fail(r, "map needs the name of a filter or an attribute");
    TRY(jinja_need_str(r, args->at[0], "map", &name));
    each.filter = jinja_find_filter(name);
    if (!each.filter || !each.filter->call)
        return jinja_refuse(r, "the filter %.*s is not supported", JINJA_SHOWN(name));
    each.args = skip_args(args, 1);
    return jinja_iterate_each(r, v, &each, out);
}

/* With a test, or else by truth; selectattr asks it of an attribute. messages | selectattr("role",
 * "equalto", "user"): argument 0 is the attribute, 1 the test, the rest the test's arguments. */
static mpk_status select_items(jrun *r, jval v, const jargs *args, bool attribute, bool negates,
                               jval *out)
{
    jeach each = {.selects = true, .negates = negates};
    str name = {0};
    if (!jinja_true(v))
        return jinja_iterate_each(r, jinja_undefined(STR("select")), &each, out);
    if (attribute && !args->n)
        return jinja_fail(r, "selectattr and rejectattr need the name of an attribute");
    if (attribute)
        each.attribute = args->at[0];
    if (args->n > attribute) {
        TRY(jinja_need_str(r, args->at[attribute], "select", &name));
        each.test = jinja_find_test(name);
        if (!each.test)
            return jinja_refuse(r, "the test %.*s is not supported", JINJA_SHOWN(name));
        each.args = skip_args(args, 1 + attribute);
    }
    return jinja_iterate_each(r, v, &each, out);
}

static mpk_status filter_select(jrun *r, jval v, const jargs *args, jval *out)
{
    return select_items(r, v, args, false, false, out);
}

static mpk_status filter_reject(jrun *r, jval v, const jargs *args, jval *out)
{
    return select_items(r, v, args, false, true, out);
}

static mpk_status filter_selectattr(jrun *r, jval v, const jargs *args, jval *out)
{
    return select_items(r, v, args, true, false, out);
}

static mpk_status filter_rejectattr(jrun *r, jval v, const jargs *args, jval *out)
{
    return select_items(r, v, args, true, true, out);
}

const jfilter jinja_sequence_filters[] = {{"list", filter_list},
                                          {"first", filter_first},
                                          {"last", filter_last},
                                          {"reverse", filter_reverse},
                                          {"items", filter_items},
                                          {"join", filter_join},
                                          {"sort", filter_sort},
                                          {"dictsort", filter_dictsort},
                                          {"unique", filter_unique},
                                          {"min", filter_min},
                                          {"max", filter_max},
                                          {"sum", filter_sum},
                                          {"batch", filter_batch},
                                          {"slice", filter_slice},
                                          {"groupby", filter_groupby},
                                          {"map", filter_map},
                                          {"select", filter_select},
                                          {"reject", filter_reject},
                                          {"selectattr", filter_selectattr},
                                          {"rejectattr", filter_rejectattr},
                                          {0}};
