/* jinja_attribute.c - a.b, a[b] and a[b:c:d], as Jinja2's sandbox has them.
 *
 * a.b asks the object first: a method of the type hides a member of the same name (x.items is the
 * method, also where a dict has a key "items"); then it asks for the item.  a["b"] asks the other
 * way round.  What would change a list or a dict, and what is not there, is undefined.  A slice
 * asks the value alone, and it is an error if that has none.
 *
 * Where  x.items  looks, x being a dict with a key "items":
 *
 *   own_attribute   the method table of dict: found, so the method
 *   own_item        not asked any more;  x["items"] asks it first, and gets the member
 *
 * Both give J_ABSENT for "nothing here", which becomes an undefined value that knows its name for
 * messages. */
#include "jinja/jinja_parts.h"

/* What Jinja2 lets a template ask a macro: its name, the names of its parameters, and which of
 * caller, **kwargs and *varargs its body catches. {{ m.arguments }} of {% macro m(a, b=1) %} is
 * ('a', 'b'). */
static mpk_status macro_attribute(jrun *r, const jmacro *m, str name, jval *out)
{
    static const struct {
        const char *name;
        unsigned mark;
    } marks[] = {{"caller", J_CATCH_CALLER},
                 {"catch_kwargs", J_CATCH_KWARGS},
                 {"catch_varargs", J_CATCH_VARARGS}};
    for (int i = 0; i < 3; i++)
        if (str_is(name, marks[i].name)) {
            *out = jinja_bool(m->node->catches & marks[i].mark);
            return MPK_OK;
        }
    *out = jinja_undefined(name);
    if (str_is(name, "name"))
        *out = m->name.at ? jinja_str(m->name) : jinja_none();
    if (!str_is(name, "arguments"))
        return MPK_OK;
    TRY(jinja_make_list(r, J_TUPLE, 0, out));
    for (size_t i = 0; i < m->node->items.n; i++)
        TRY(jinja_push(r, out->list, jinja_str(m->node->items.at[i]->name)));
    return MPK_OK;
}

/* The attribute of this name that the object itself has; J_ABSENT: none. In the order of Python's
 * getattr: data of the object, then its methods, which become values that can be called. A method
 * that changes its object (list.append) is undefined, as in Jinja2's sandbox. */
static mpk_status own_attribute(jrun *r, jval v, str name, jval *out)
{
    const jval *found;
    *out = (jval){0};
    if (v.kind == J_NAMESPACE) {
        TRY(jinja_dict_find(r, v.dict, jinja_str(name), &found));
        *out = found ? *found : (jval){0};
        return MPK_OK;
    }
    if (v.kind == J_CYCLER && str_is(name, "current")) {
        *out = v.cycler->items.at[v.cycler->at];
        return MPK_OK;
    }
    if (v.kind == J_TUPLE && v.list->is_group &&
        (str_is(name, "grouper") || str_is(name, "list"))) {
        *out = v.list->at[str_is(name, "list")];
        return MPK_OK;
    }
    if (v.kind == J_MACRO)
        return macro_attribute(r, v.macro, name, out);
    const jmethod *m = jinja_find_method(v, name);
    if (!m)
        return v.kind == J_LOOP ? jinja_loop_attribute(r, v.loop, name, out) : MPK_OK;
    if (m->mutates) {
        *out = jinja_undefined(name);
        return MPK_OK;
    }
    if (m->is_data)
        return jinja_refuse(r, "the attribute %s of %s is not supported", m->name,
                            jinja_type_name(v));
    jbound *b;
    TRY(jinja_charge(r, sizeof *b));
    NEW(r->cx, r->a, b, 1);
    *b = (jbound){v, m};
    *out = (jval){.kind = J_METHOD, .method = b};
    return MPK_OK;
}

/* Item number i of n, counted from the end if negative; n if there is none.  i + n cannot
 * overflow: n is the length of something in memory. */
static size_t item_index(int64_t i, size_t n)
{
    if (i < 0)
        i += (int64_t)n;
    return i < 0 || (uint64_t)i >= n ? n : (size_t)i;
}

/* The value of a key; J_ABSENT where there is none, or where the key is none that a dict can
 * have. */
static mpk_status dict_item(jrun *r, const jdict *d, jval key, jval *out)
{
    const jval *found = NULL;
    jval bad;
    TRY(jinja_find_unhashable(r, key, &bad));
    if (bad.kind == J_ABSENT)
        TRY(jinja_dict_find(r, d, key, &found));
    *out = found ? *found : (jval){0};
    return MPK_OK;
}

/* The item that v has under the key; J_ABSENT: none. Of "h\u00e9" item 1 is the character, of two
 * bytes: strings are indexed by characters, from the end if negative. A slice of a string borrows
 * its bytes. */
static mpk_status own_item(jrun *r, jval v, jval key, jval *out)
{
    size_t i, n, size;
    *out = (jval){0};
    if (v.kind == J_DICT)
        return dict_item(r, v.dict, key, out);
    if (!jinja_is_integral(key))
        return MPK_OK;
    if (v.kind == J_LIST || v.kind == J_TUPLE) {
        i = item_index(jinja_integral(key), v.list->n);
        *out = i < v.list->n ? v.list->at[i] : (jval){0};
    } else if (v.kind == J_RANGE) {
        i = item_index(jinja_integral(key), (size_t)v.range->n);
        *out = i < (size_t)v.range->n ? jinja_int(v.range->start + v.range->step * (int64_t)i)
                                      : (jval){0};
    } else if (v.kind == J_STR) {
        TRY(jinja_charge(r, v.text.n));
        n = jinja_chars(v.text);
        i = item_index(jinja_integral(key), n);
        if (i == n)
            return MPK_OK;
        size_t at = jinja_offset(v.text, i);
        jinja_char(v.text.at + at, &size);
        *out = jinja_str((str){v.text.at + at, size});
        out->markup = v.markup;
    }
    return MPK_OK;
}

/* An undefined value carries the name by which it was looked for. */
mpk_status jinja_fail_undefined(jrun *r, jval v)
{
    if (!v.text.n)
        return jinja_fail(r, "an undefined value is used");
    return jinja_fail(r, "'%.*s' is undefined", JINJA_SHOWN(v.text));
}

/* a.b: the object's own attribute first, then the item "b". */
mpk_status jinja_get_attribute(jrun *r, jval v, str name, jval *out)
{
    if (v.kind == J_UNDEFINED)
        return jinja_fail_undefined(r, v);
    TRY(own_attribute(r, v, name, out));
    if (out->kind == J_ABSENT)
        TRY(own_item(r, v, jinja_str(name), out));
    if (out->kind == J_ABSENT)
        *out = jinja_undefined(name);
    return MPK_OK;
}

/* a[b]: the item first; an attribute only if the key is a string. */
mpk_status jinja_get_item(jrun *r, jval v, jval key, jval *out)
{
    if (v.kind == J_UNDEFINED)
        return jinja_fail_undefined(r, v);
    TRY(own_item(r, v, key, out));
    if (out->kind == J_ABSENT && key.kind == J_STR)
        TRY(own_attribute(r, v, key.text, out));
    if (out->kind == J_ABSENT)
        *out = jinja_undefined(key.kind == J_STR ? key.text : (str){0});
    return MPK_OK;
}

/* ---- slices ---- */

/* The items that start:stop:step selects from `length` items: n of them, beginning at `first`,
 * `step` apart. */
typedef struct cut {
    int64_t first, step, n;
} cut;

/* A bound of a slice; `otherwise` if the bound is none or left out.  true and false count as
 * integers, as everywhere in Python. */
static mpk_status slice_index(jrun *r, jval v, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (v.kind == J_NONE || v.kind == J_ABSENT)
        return MPK_OK;
    if (v.kind == J_BIG)
        return jinja_refuse_big(r);
    if (!jinja_is_integral(v))
        return jinja_fail(r, "%s cannot be an index of a slice", jinja_type_name(v));
    *out = jinja_integral(v);
    return MPK_OK;
}

/* One bound of a slice: counted from the end if negative, then moved into [low, high]. */
static int64_t clamp(int64_t i, int64_t length, int64_t low, int64_t high)
{
    if (i < 0)
        i = i < -length ? low : i + length;
    if (i < low)
        return low;
    return i > high ? high : i;
}

/* Resolve a slice as Python's slice.indices does: negative bounds count from the end, bounds beyond
 * the value are moved to it, and a negative step exchanges the ends.  The step is kept above
 * INT64_MIN so that it can be negated.  A stop that is left out is set after the clamp, because -1
 * would mean the last element to it. */
static mpk_status find_cut(jrun *r, int64_t length, jval start, jval stop, jval step, cut *out)
{
    int64_t from = 0, to = 0;
    TRY(slice_index(r, step, 1, &out->step));
    if (!out->step)
        return jinja_fail(r, "the step of a slice is 0");
    if (out->step < -INT64_MAX)
        out->step = -INT64_MAX;
    const bool back = out->step < 0;
    const int64_t low = back ? -1 : 0;
    const int64_t high = back ? length - 1 : length;
    TRY(slice_index(r, start, back ? INT64_MAX : 0, &from));
    from = clamp(from, length, low, high);
    TRY(slice_index(r, stop, 0, &to));
    to = clamp(to, length, low, high);
    if (stop.kind == J_NONE || stop.kind == J_ABSENT)
        to = back ? -1 : length;
    const int64_t sign = back ? -1 : 1, distance = sign * (to - from), stride = sign * out->step;
    out->first = from;
    out->n = distance <= 0 ? 0 : (distance - 1) / stride + 1;
    return MPK_OK;
}

/* Slices count characters, not bytes.  With step 1 the result is a part of the same text and
 * nothing is copied.  In text that is not ASCII, each character costs a search from the start; that
 * is charged as work. */
static mpk_status cut_text(jrun *r, jval v, const cut *c, jval *out)
{
    char *p = NULL;
    size_t n = 0;
    *out = v;
    TRY(jinja_charge(r, v.text.n * 2));
    if (c->step == 1) {
        size_t from = jinja_offset(v.text, (size_t)c->first);
        str rest = {v.text.at + from, v.text.n - from};
        out->text = (str){rest.at, jinja_offset(rest, (size_t)c->n)};
        return MPK_OK;
    }
    const bool ascii = jinja_chars(v.text) == v.text.n;
    TRY(jinja_text_room(r, (str){0}, v.text.n, &p));
    for (int64_t i = 0; i < c->n; i++) {
        size_t index = (size_t)(c->first + i * c->step), size = 1;
        size_t at = ascii ? index : jinja_offset(v.text, index);
        if (!ascii) {
            jinja_char(v.text.at + at, &size);
            TRY(jinja_charge(r, at));
        }
        memcpy(p + n, v.text.at + at, size);
        n += size;
    }
    out->text = (str){p, n};
    return MPK_OK;
}

/* Strings give strings, lists lists, tuples tuples.  An omitted bound is J_ABSENT. "abcd"[::-1] is
 * "dcba": find_cut turns the three bounds into a first index, a step and a count, once for all
 * kinds. */
mpk_status jinja_get_slice(jrun *r, jval v, jval start, jval stop, jval step, jval *out)
{
    cut c = {0};
    int64_t length = 0;
    if (v.kind == J_UNDEFINED)
        return jinja_fail_undefined(r, v);
    if (v.kind == J_RANGE)
        return jinja_refuse(r, "slices of ranges are not supported; make it a list");
    if (v.kind != J_STR && v.kind != J_LIST && v.kind != J_TUPLE)
        return jinja_fail(r, "%s has no slices", jinja_type_name(v));
    TRY(jinja_length(r, v, &length));
    TRY(find_cut(r, length, start, stop, step, &c));
    if (v.kind == J_STR)
        return cut_text(r, v, &c, out);
    TRY(jinja_make_list(r, v.kind, (size_t)c.n, out));
    for (int64_t i = 0; i < c.n; i++)
        TRY(jinja_push(r, out->list, v.list->at[c.first + i * c.step]));
    return MPK_OK;
}
