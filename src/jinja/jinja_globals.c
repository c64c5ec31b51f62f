/* jinja_globals.c - functions that every template can call.
 *
 * lipsum is known by name and refused.  namespace and cycler make the only values that change;
 * they are shared by all names that they are bound to. */
#include "jinja/jinja_parts.h"

#include <locale.h>
#include <time.h>

/* Distances are computed unsigned, because stop - start may exceed 63 bits.  A range holds three
 * numbers whatever its length; the limit is Jinja2's sandbox's. range(5) has a stop alone, which is
 * why the first argument moves to the second. range(0, 10, 4) is 0, 4, 8: (10 - 0 - 1) / 4 + 1 = 3
 * numbers. */
static mpk_status call_range(jrun *r, const jargs *args, jval *out)
{
    jval a[3];
    int64_t n[3] = {0, 0, 1};
    jrange *g;
    TRY(jinja_bind(r, "range", args, "/start stop step", 1, a));
    for (int i = 0; i < 3 && a[i].kind != J_ABSENT; i++)
        TRY(jinja_need_int(r, a[i], "range", &n[i]));
    if (a[1].kind == J_ABSENT) {
        n[1] = n[0];
        n[0] = 0;
    }
    if (!n[2])
        return jinja_fail(r, "range: the step is 0");
    if (n[2] == INT64_MIN)
        return jinja_refuse(r, "range: this step is not supported");
    const bool up = n[2] > 0;
    uint64_t distance = up ? (uint64_t)n[1] - (uint64_t)n[0] : (uint64_t)n[0] - (uint64_t)n[1];
    uint64_t stride = up ? (uint64_t)n[2] : (uint64_t)-n[2];
    const bool is_empty = up ? n[1] <= n[0] : n[0] <= n[1];
    uint64_t count = is_empty ? 0 : (distance - 1) / stride + 1;
    if (count > JINJA_MAX_RANGE)
        return jinja_fail(r, "range: more than %d numbers", JINJA_MAX_RANGE);
    TRY(jinja_charge(r, sizeof *g));
    NEW(r->cx, r->a, g, 1);
    *g = (jrange){.start = n[0], .stop = n[1], .step = n[2], .n = (int64_t)count};
    *out = (jval){.kind = J_RANGE, .range = g};
    return MPK_OK;
}

/* Entries of a dict, or of pairs. dict([("a", 1), ("b", 2)]); a pair may be any iterable of two, a
 * string of two characters, too. */
static mpk_status put_all(jrun *r, jdict *d, jval from)
{
    jiterator *it;
    jval item, pair;
    if (from.kind == J_DICT) {
        for (size_t i = 0; i < from.dict->n; i++)
            TRY(jinja_dict_put(r, d, from.dict->at[i].key, from.dict->at[i].value));
        return MPK_OK;
    }
    TRY(jinja_iterate(r, from, &it));
    for (;;) {
        TRY(jinja_next(r, it, &item));
        if (item.kind == J_ABSENT)
            return MPK_OK;
        TRY(jinja_collect(r, item, &pair));
        if (pair.list->n != 2)
            return jinja_fail(r, "dict: an entry has %zu parts, not 2", pair.list->n);
        TRY(jinja_check_hashable(r, pair.list->at[0]));
        TRY(jinja_dict_put(r, d, pair.list->at[0], pair.list->at[1]));
    }
}

/* Entries of the dict or pairs first, then those by name, which replace equal keys. */
static mpk_status call_dict(jrun *r, const jargs *args, jval *out)
{
    if (args->n > 1)
        return jinja_fail(r, "dict takes at most one dict or list of pairs, besides named values");
    TRY(jinja_make_dict(r, out));
    if (args->n)
        TRY(put_all(r, out->dict, args->at[0]));
    for (size_t i = 0; i < args->n_keywords; i++)
        TRY(jinja_dict_put(r, out->dict, jinja_str(args->keywords[i].name),
                           args->keywords[i].value));
    return MPK_OK;
}

/* The one value that a template can change from an inner scope. */
static mpk_status call_namespace(jrun *r, const jargs *args, jval *out)
{
    TRY(call_dict(r, args, out));
    for (size_t i = 0; i < out->dict->n; i++) {
        jval key = out->dict->at[i].key;
        if (key.kind == J_STR && key.text.n && key.text.at[0] == '_')
            return jinja_fail(r, "names in namespaces cannot begin with an underscore");
    }
    out->kind = J_NAMESPACE;
    return MPK_OK;
}

/* A cycler, or a joiner, whose one item is its separator. */
static mpk_status make_cycler(jrun *r, jkind kind, const jval *items, size_t n, jval *out)
{
    jcycler *c;
    TRY(jinja_charge(r, sizeof *c));
    NEW(r->cx, r->a, c, 1);
    for (size_t i = 0; i < n; i++)
        TRY(jinja_push(r, &c->items, items[i]));
    *out = (jval){.kind = kind, .cycler = c};
    return MPK_OK;
}

static mpk_status call_cycler(jrun *r, const jargs *args, jval *out)
{
    if (!args->n || args->n_keywords)
        return jinja_fail(r, "cycler takes the values to cycle through");
    return make_cycler(r, J_CYCLER, args->at, args->n, out);
}

/* Calling the joiner gives "" the first time and then the separator. */
static mpk_status call_joiner(jrun *r, const jargs *args, jval *out)
{
    jval sep;
    TRY(jinja_bind(r, "joiner", args, "sep", 0, &sep));
    if (sep.kind == J_ABSENT)
        sep = jinja_str(STR(", "));
    return make_cycler(r, J_JOINER, &sep, 1, out);
}

/* raise_exception: the template declares that it cannot render this conversation; the message is
 * written by its author for the user. */
static mpk_status call_raise(jrun *r, const jargs *args, jval *out)
{
    jval message;
    str words = {0};
    (void)out;
    TRY(jinja_bind(r, "raise_exception", args, "message", 1, &message));
    TRY(jinja_to_str(r, message, &words));
    FAIL(r->cx, MPK_EFORMAT, "the chat template refuses this conversation: %.*s (line %u)",
         (int)(words.n < 1024 ? words.n : 1024), words.at, r->line);
}

/* The local time, as C writes it: Python's strftime is C's.  A time without zone, so %z and %Z are
 * empty. The format is copied with %z and %Z left out and %f as zeros, since struct tm has neither
 * zone nor fractions. In the C locale: names of months must not depend on the machine. */
static mpk_status call_strftime(jrun *r, const jargs *args, jval *out)
{
    enum { MOST = 4096 };
    jval a;
    str format = {0};
    text t = {0};
    char to[MOST];
    time_t now = (time_t)r->now;
    struct tm local;
    TRY(jinja_bind(r, "strftime_now", args, "format", 1, &a));
    TRY(jinja_need_str(r, a, "strftime_now", &format));
    TRY(jinja_work(r, format.n));
    *out = jinja_str(STR(""));
    if (!format.n)
        return MPK_OK;
    if (!localtime_r(&now, &local))
        return jinja_fail(r, "strftime_now: the time is out of range");
    for (size_t i = 0; i < format.n; i++) {
        const bool mark = format.at[i] == '%' && i + 1 < format.n;
        if (mark && (format.at[i + 1] == 'z' || format.at[i + 1] == 'Z'))
            i++;
        else if (mark && format.at[i + 1] == 'f') {
            text_add(&t, "000000", 6);
            i++;
        } else
            text_add(&t, format.at + i, mark ? 2 : 1), i += mark;
    }
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    size_t n = c && !t.failed && t.n ? strftime_l(to, sizeof to, t.at, &local, c) : 0;
    const bool empty = !t.n, failed = t.failed || !c;
    if (c)
        freelocale(c);
    text_free(&t);
    CHECK(r->cx, !failed, MPK_ENOMEM, "out of memory writing a date");
    if (!n && !empty)
        return jinja_refuse(r, "strftime_now: the format is too long, or gives nothing");
    return jinja_copy(r, (str){to, n}, &out->text);
}

const jglobal jinja_globals[] = {
    {"range", call_range},           {"dict", call_dict},     {"namespace", call_namespace},
    {"cycler", call_cycler},         {"joiner", call_joiner}, {"raise_exception", call_raise},
    {"strftime_now", call_strftime}, {"lipsum", NULL},        {0}};

/* The global of this name; NULL: there is none, and the name is undefined. */
const jglobal *jinja_find_global(str name)
{
    for (const jglobal *g = jinja_globals; g->name; g++)
        if (str_is(name, g->name))
            return g;
    return NULL;
}
