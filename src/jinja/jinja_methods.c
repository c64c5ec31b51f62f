/* jinja_methods.c - methods of list, tuple, dict, numbers, cyclers; the tables of all types, and
 * arguments of calls.
 *
 * A table for each type names all that Python has, for what a type has decides what is defined;
 * what is not computed here is refused when it is called.
 */
#include "jinja/jinja_parts.h"

/* ---- arguments ---- */

/* The parameter number i of "a b c", "" if there are fewer; *n_places: of those before "/". */
static str parameter(const char *names, size_t i)
{
    for (;;) {
        size_t n = strcspn(names, " ");
        if (i == 0 || !names[n])
            return i == 0 ? (str){names, n} : (str){0};
        names += n + 1;
        i--;
    }
}

/* Arguments into parameters.  `names` lists the parameters, separated by spaces; a leading / says
 * that all go by place only.  The first `needed` must be given, the others are J_ABSENT if not.
 * to[] has room for all. */
mpk_status jinja_bind(jrun *r, const char *what, const jargs *args, const char *names,
                      size_t needed, jval *to)
{
    const bool by_place = names[0] == '/';
    size_t n = 0;
    names += by_place;
    while (*names && parameter(names, n).n)
        to[n++] = (jval){0};
    if (args->n > n)
        return jinja_fail(r, "%s takes at most %zu arguments, not %zu", what, n, args->n);
    for (size_t i = 0; i < args->n; i++)
        to[i] = args->at[i];
    for (size_t k = 0; k < args->n_keywords; k++) {
        size_t i = 0;
        while (i < n && !str_equal(parameter(names, i), args->keywords[k].name))
            i++;
        if (i == n || by_place)
            return jinja_fail(r, "%s takes no argument %.*s", what,
                              JINJA_SHOWN(args->keywords[k].name));
        if (to[i].kind != J_ABSENT)
            return jinja_fail(r, "%s: the argument %.*s is given twice", what,
                              JINJA_SHOWN(args->keywords[k].name));
        to[i] = args->keywords[k].value;
    }
    for (size_t i = 0; i < needed; i++)
        if (to[i].kind == J_ABSENT)
            return jinja_fail(r, "%s needs the argument %.*s", what,
                              JINJA_SHOWN(parameter(names, i)));
    return MPK_OK;
}

/* what: the function or method, for the message. */
mpk_status jinja_need_str(jrun *r, jval v, const char *what, str *out)
{
    if (v.kind != J_STR)
        return jinja_fail(r, "%s: %s is not a string", what, jinja_type_name(v));
    *out = v.text;
    return MPK_OK;
}

/* Booleans count as integers, as in Python. */
mpk_status jinja_need_int(jrun *r, jval v, const char *what, int64_t *out)
{
    if (v.kind == J_BIG)
        return jinja_refuse_big(r);
    if (!jinja_is_integral(v))
        return jinja_fail(r, "%s: %s is not an integer", what, jinja_type_name(v));
    *out = jinja_integral(v);
    return MPK_OK;
}

/* ---- lists ---- */

/* Where the value stands first, -1 if nowhere, and how often it comes. */
static mpk_status list_find(jrun *r, jval self, jval what, int64_t from, int64_t *at,
                            int64_t *count)
{
    *at = -1;
    *count = 0;
    for (size_t i = (size_t)from; i < self.list->n; i++) {
        bool equal;
        TRY(jinja_equal(r, self.list->at[i], what, &equal));
        *count += equal;
        if (equal && *at < 0)
            *at = (int64_t)i;
    }
    return MPK_OK;
}

/* Python raises ValueError if the value is not there, so it is an error here. */
static mpk_status list_index(jrun *r, jval self, const jargs *args, jval *out)
{
    jval what;
    int64_t count = 0;
    if (args->n > 1)
        return jinja_refuse(r, "index of a part of a list is not supported");
    TRY(jinja_bind(r, "index", args, "/value", 1, &what));
    *out = jinja_int(0);
    TRY(list_find(r, self, what, 0, &out->integer, &count));
    return out->integer < 0 ? jinja_fail(r, "index: the value is not in the list") : MPK_OK;
}

/* How many items are equal to the value. */
static mpk_status list_count(jrun *r, jval self, const jargs *args, jval *out)
{
    jval what;
    int64_t at = 0;
    TRY(jinja_bind(r, "count", args, "/value", 1, &what));
    *out = jinja_int(0);
    return list_find(r, self, what, 0, &at, &out->integer);
}

/* Lists and dicts never change: a copy is the same. */
static mpk_status same(jrun *r, jval self, const jargs *args, jval *out)
{
    TRY(jinja_bind(r, "copy", args, "", 0, NULL));
    *out = self;
    return MPK_OK;
}

/* ---- dicts ---- */

/* The entry of a key, or the default, none if it is left out. */
static mpk_status dict_get(jrun *r, jval self, const jargs *args, jval *out)
{
    jval a[2];
    const jval *found;
    TRY(jinja_bind(r, "get", args, "/key default", 1, a));
    TRY(jinja_check_hashable(r, a[0]));
    TRY(jinja_dict_find(r, self.dict, a[0], &found));
    *out = a[1].kind == J_ABSENT ? jinja_none() : a[1];
    if (found)
        *out = *found;
    return MPK_OK;
}

/* keys(), values() and items() are views: they show what the dict holds when they are read. */
static mpk_status dict_view(jrun *r, jval self, const jargs *args, jpart part, jval *out)
{
    jview *v;
    TRY(jinja_bind(r, "this method", args, "", 0, NULL));
    TRY(jinja_charge(r, sizeof *v));
    NEW(r->cx, r->a, v, 1);
    *v = (jview){self.dict, part};
    *out = (jval){.kind = J_VIEW, .view = v};
    return MPK_OK;
}

static mpk_status dict_keys(jrun *r, jval self, const jargs *args, jval *out)
{
    return dict_view(r, self, args, J_KEYS, out);
}

static mpk_status dict_values(jrun *r, jval self, const jargs *args, jval *out)
{
    return dict_view(r, self, args, J_VALUES, out);
}

static mpk_status dict_items(jrun *r, jval self, const jargs *args, jval *out)
{
    return dict_view(r, self, args, J_ITEMS, out);
}

/* ---- cyclers ---- */

/* The present item, and on to the next; `at` is where the next call begins. */
static mpk_status cycler_next(jrun *r, jval self, const jargs *args, jval *out)
{
    TRY(jinja_bind(r, "next", args, "", 0, NULL));
    *out = self.cycler->items.at[self.cycler->at];
    self.cycler->at = (self.cycler->at + 1) % self.cycler->items.n;
    return MPK_OK;
}

/* `next` begins with the first item again. */
static mpk_status cycler_reset(jrun *r, jval self, const jargs *args, jval *out)
{
    TRY(jinja_bind(r, "reset", args, "", 0, NULL));
    self.cycler->at = 0;
    *out = jinja_none();
    return MPK_OK;
}

/* ---- the tables ---- */

/* {name, function, mutates, is_data}.  What mutates is undefined for a template, as the immutable
 * sandbox hides it. */
static const jmethod of_list[] = {
    {"append", NULL, 1, 0},      {"clear", NULL, 1, 0},  {"copy", same, 0, 0},
    {"count", list_count, 0, 0}, {"extend", NULL, 1, 0}, {"index", list_index, 0, 0},
    {"insert", NULL, 1, 0},      {"pop", NULL, 1, 0},    {"remove", NULL, 1, 0},
    {"reverse", NULL, 1, 0},     {"sort", NULL, 1, 0},   {0}};
static const jmethod of_tuple[] = {{"count", list_count, 0, 0}, {"index", list_index, 0, 0}, {0}};
static const jmethod of_dict[] = {
    {"clear", NULL, 1, 0},   {"copy", same, 0, 0},          {"fromkeys", NULL, 0, 0},
    {"get", dict_get, 0, 0}, {"items", dict_items, 0, 0},   {"keys", dict_keys, 0, 0},
    {"pop", NULL, 1, 0},     {"popitem", NULL, 1, 0},       {"setdefault", NULL, 1, 0},
    {"update", NULL, 1, 0},  {"values", dict_values, 0, 0}, {0}};
static const jmethod of_view[] = {{"mapping", NULL, 0, 1}, {"isdisjoint", NULL, 0, 0}, {0}};
static const jmethod of_range[] = {{"count", NULL, 0, 0}, {"index", NULL, 0, 0},
                                   {"start", NULL, 0, 1}, {"stop", NULL, 0, 1},
                                   {"step", NULL, 0, 1},  {0}};
static const jmethod of_integer[] = {{"real", NULL, 0, 1},
                                     {"imag", NULL, 0, 1},
                                     {"numerator", NULL, 0, 1},
                                     {"denominator", NULL, 0, 1},
                                     {"conjugate", NULL, 0, 0},
                                     {"bit_length", NULL, 0, 0},
                                     {"bit_count", NULL, 0, 0},
                                     {"to_bytes", NULL, 0, 0},
                                     {"from_bytes", NULL, 0, 0},
                                     {"as_integer_ratio", NULL, 0, 0},
                                     {0}};
static const jmethod of_float[] = {{"real", NULL, 0, 1},
                                   {"imag", NULL, 0, 1},
                                   {"conjugate", NULL, 0, 0},
                                   {"is_integer", NULL, 0, 0},
                                   {"hex", NULL, 0, 0},
                                   {"fromhex", NULL, 0, 0},
                                   {"as_integer_ratio", NULL, 0, 0},
                                   {0}};
static const jmethod of_cycler[] = {{"next", cycler_next, 0, 0},
                                    {"reset", cycler_reset, 0, 0},
                                    {"items", NULL, 0, 1},
                                    {"pos", NULL, 0, 1},
                                    {0}};

/* NULL: a value of this kind has no such method.  Kinds that are missing in the table have none at
 * all. The method's record may stand for one that is known and not supported (call NULL): then it
 * is refused by name. */
const jmethod *jinja_find_method(jval v, str name)
{
    static const jmethod *const tables[] = {[J_BOOL] = of_integer,
                                            [J_INT] = of_integer,
                                            [J_BIG] = of_integer,
                                            [J_FLOAT] = of_float,
                                            [J_STR] = jinja_str_methods,
                                            [J_LIST] = of_list,
                                            [J_TUPLE] = of_tuple,
                                            [J_DICT] = of_dict,
                                            [J_VIEW] = of_view,
                                            [J_RANGE] = of_range,
                                            [J_LOOP] = jinja_loop_methods,
                                            [J_CYCLER] = of_cycler,
                                            [J_JOINER] = NULL};
    for (const jmethod *m = tables[v.kind]; m && m->name; m++)
        if (str_is(name, m->name))
            return m;
    return NULL;
}
