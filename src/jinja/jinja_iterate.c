/* jinja_iterate.c - iterators: over what a value holds, and the lazy ones of map and select.
 *
 * An iterator that a filter gives is a value that runs once, as a generator does; nothing of it is
 * computed before it is asked for, so that `first` of it meets no error that lies after the first.
 *
 * {{ users|selectattr("admin")|map(attribute="name")|join(", ") }} makes a chain,
 *
 *   join  --next-->  each: attribute "name"  --next-->  each: selects by "admin"  --next-->  users
 *
 * and each item travels through it before the next is taken.  Called by for, by filters that take
 * a sequence, by `in`, and by targets that take a value apart. */
#include "jinja/jinja_parts.h"

typedef enum source {
    OVER_NOTHING,
    OVER_LIST,
    OVER_TEXT,
    OVER_DICT,
    OVER_RANGE,
    OVER_LOOP,
    OVER_EACH
} source;

/* `at` and one of the members below it say where the iterator stands; which member is valid,
 * `source` says. */
struct jiterator {
    source source;
    size_t at; /* index, or byte of a text */
    union {
        const jlist *list;
        str text;
        jview dict;
        jrange range;
        jloop *loop;
        struct {
            jval over; /* begun on first use */
            jiterator *from;
            jeach each;
        };
    };
};

/* J_LOOP counts as iterable, since Jinja2's LoopContext is; iterating it is refused. */
bool jinja_can_iterate(jval v)
{
    return v.kind == J_UNDEFINED || (v.kind >= J_STR && v.kind <= J_ITERATOR) || v.kind == J_LOOP;
}

/* An iterator over any iterable value.  For an iterator it returns the iterator itself, so that two
 * loops over it share its position, as in Python. An iterator does not copy what it goes over: a
 * list that grows in the loop gives its new items, too, as in Python. OVER_NOTHING: undefined,
 * which has no items. */
mpk_status jinja_iterate(jrun *r, jval v, jiterator **out)
{
    if (v.kind == J_ITERATOR) {
        *out = v.iterator;
        return MPK_OK;
    }
    if (!jinja_can_iterate(v))
        return jinja_fail(r, "%s cannot be iterated", jinja_type_name(v));
    jiterator *it;
    TRY(jinja_charge(r, sizeof *it));
    NEW(r->cx, r->a, it, 1);
    *out = it;
    switch (v.kind) {
    case J_LIST:
    case J_TUPLE:
        it->source = OVER_LIST;
        it->list = v.list;
        break;
    case J_STR:
        it->source = OVER_TEXT;
        it->text = v.text;
        break;
    case J_DICT:
    case J_VIEW:
        it->source = OVER_DICT;
        it->dict = v.kind == J_DICT ? (jview){v.dict, J_KEYS} : *v.view;
        break;
    case J_RANGE:
        it->source = OVER_RANGE;
        it->range = *v.range;
        break;
    case J_LOOP:
        return jinja_refuse(r, "iterating a loop by hand is not supported");
    default:
        it->source = OVER_NOTHING;
    }
    return MPK_OK;
}

/* The list must not grow any more. */
mpk_status jinja_iterate_list(jrun *r, const jlist *l, jval *out)
{
    jval list = {.kind = J_LIST, .list = (jlist *)l};
    *out = (jval){.kind = J_ITERATOR};
    return jinja_iterate(r, list, &out->iterator);
}

/* Nothing of `over` is touched yet, so even what cannot be iterated fails only when the first item
 * is asked for. */
mpk_status jinja_iterate_each(jrun *r, jval over, const jeach *each, jval *out)
{
    jiterator *it;
    TRY(jinja_charge(r, sizeof *it));
    NEW(r->cx, r->a, it, 1);
    it->source = OVER_EACH;
    it->over = over;
    it->each = *each;
    *out = (jval){.kind = J_ITERATOR, .iterator = it};
    return MPK_OK;
}

/* ---- each item through an attribute, a filter or a test ---- */

/* The attribute argument of filters: "a.b.0" is item a, of that item b, of that item 0; an integer
 * is one item.  `otherwise` stands in for what is undefined at any step. messages |
 * map(attribute="tool_calls.0.name"). */
mpk_status jinja_attribute_path(jrun *r, jval item, jval attribute, jval otherwise, jval *out)
{
    *out = item;
    if (attribute.kind == J_ABSENT || attribute.kind == J_NONE)
        return MPK_OK;
    TRY(jinja_work(r, attribute.kind == J_STR ? attribute.text.n : 0));
    if (attribute.kind != J_STR) {
        TRY(jinja_get_item(r, item, attribute, out));
        if (out->kind == J_UNDEFINED && otherwise.kind != J_ABSENT)
            *out = otherwise;
        return MPK_OK;
    }
    for (size_t at = 0, end; at <= attribute.text.n; at = end + 1) {
        for (end = at; end < attribute.text.n && attribute.text.at[end] != '.'; end++)
            ;
        str part = {attribute.text.at + at, end - at};
        jval key = jinja_str(part);
        if (jinja_is_class(part, J_DIGIT)) {
            double index = -1;
            if (part.n > 15 || !str_read_double(part, &index))
                return jinja_refuse(r, "\"%.*s\" as an index is not supported", JINJA_SHOWN(part));
            key = jinja_int((int64_t)index);
        }
        TRY(jinja_get_item(r, *out, key, out));
        if (out->kind == J_UNDEFINED && otherwise.kind != J_ABSENT)
            *out = otherwise;
    }
    return MPK_OK;
}

/* *keep: the item belongs to the output. */
static mpk_status apply(jrun *r, const jeach *e, jval item, jval *out, bool *keep)
{
    jval found;
    bool holds;
    *keep = true;
    TRY(jinja_attribute_path(r, item, e->attribute, e->otherwise, &found));
    if (!e->selects) {
        *out = found;
        return e->filter ? e->filter->call(r, found, &e->args, out) : MPK_OK;
    }
    holds = jinja_true(found);
    if (e->test)
        TRY(e->test->call(r, found, &e->args, &holds));
    *keep = holds != e->negates;
    *out = item;
    return MPK_OK;
}

/* The next item that is kept.  Iterators can nest, so each call counts as a level of depth. */
static mpk_status next_each(jrun *r, jiterator *it, jval *out)
{
    bool keep = false;
    if (!it->from)
        TRY(jinja_iterate(r, it->over, &it->from));
    TRY(jinja_deeper(r));
    while (!keep) {
        jval item;
        TRY(jinja_next(r, it->from, &item));
        *out = item;
        if (item.kind == J_ABSENT)
            break;
        TRY(apply(r, &it->each, item, out, &keep));
    }
    r->depth--;
    return MPK_OK;
}

/* ---- one step ---- */

/* The next key, value or pair of a dict.  Dicts may grow while they are iterated only if they are
 * namespaces, which cannot be iterated. */
static mpk_status next_entry(jrun *r, jiterator *it, jval *out)
{
    const jdict *d = it->dict.dict;
    if (it->at >= d->n)
        return MPK_OK;
    const jentry *e = &d->at[it->at++];
    *out = it->dict.part == J_KEYS ? e->key : e->value;
    return it->dict.part == J_ITEMS ? jinja_pair(r, e->key, e->value, out) : MPK_OK;
}

/* The next item; J_ABSENT at the end. Each item is charged, so that a loop over a huge range ends
 * at the limit of work and not in minutes. */
mpk_status jinja_next(jrun *r, jiterator *it, jval *out)
{
    size_t size;
    *out = (jval){0};
    TRY(jinja_charge(r, 32));
    switch (it->source) {
    case OVER_LIST:
        if (it->at < it->list->n)
            *out = it->list->at[it->at++];
        return MPK_OK;
    case OVER_TEXT:
        if (it->at < it->text.n) {
            jinja_char(it->text.at + it->at, &size);
            *out = jinja_str((str){it->text.at + it->at, size});
            it->at += size;
        }
        return MPK_OK;
    case OVER_DICT:
        return next_entry(r, it, out);
    case OVER_RANGE:
        if ((int64_t)it->at < it->range.n)
            *out = jinja_int(it->range.start + it->range.step * (int64_t)it->at++);
        return MPK_OK;
    case OVER_EACH:
        return next_each(r, it, out);
    default:
        return MPK_OK;
    }
}

/* All items that are left, as a list. */
mpk_status jinja_collect(jrun *r, jval v, jval *list)
{
    jiterator *it;
    jval item;
    TRY(jinja_iterate(r, v, &it));
    TRY(jinja_make_list(r, J_LIST, 0, list));
    for (;;) {
        TRY(jinja_next(r, it, &item));
        if (item.kind == J_ABSENT)
            return MPK_OK;
        TRY(jinja_push(r, list->list, item));
    }
}
