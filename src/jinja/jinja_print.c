/* jinja_print.c - values as text: Python's str and repr, and json.dumps.
 *
 * The three forms of one value:
 *
 *   value               str                  repr                   tojson
 *   a                   a                    'a'                    "a"
 *   1.0                 1.0                  1.0                    1.0
 *   none                None                 None                   null
 *   [1, "a"]            [1, 'a']             [1, 'a']               [1, "a"]
 *   undefined           nothing              Undefined              an error
 *
 * Text is built with malloc (text) and becomes a value by jinja_take_text.  `text` remembers that
 * memory ran out, so that only the end of each value asks (check_text). */
#include "jinja/jinja_parts.h"

#include <math.h>
#include <stdlib.h>

/* ---- numbers ---- */

enum { FLOAT_WORK = 1024 }; /* see jinja_work */

/* The fewest digits that read back as x, as digits d1d2... and the exponent of 0.d1d2... 0.1 is "1"
 * with the exponent 0; 17 digits always suffice for a double. By trying, with a conversion that
 * rounds correctly: slow, and charged for (FLOAT_WORK), but the digits are Python's. */
static int shortest_digits(double x, char digits[32], int *n, bool *failed)
{
    text t = {0};
    int exponent = 0;
    *n = 0;
    for (int precision = 0; precision < 17; precision++) {
        double back = 0;
        t.n = 0;
        text_print(&t, "%.*e", precision, x);
        if (t.failed || (str_read_double((str){t.at, t.n}, &back) && back == x))
            break;
    }
    const char *e = t.failed ? NULL : memchr(t.at, 'e', t.n);
    for (const char *c = t.at; e && c < e && *n < 20; c++)
        if (*c >= '0' && *c <= '9')
            digits[(*n)++] = *c;
    if (e)
        exponent = (int)strtol(e + 1, NULL, 10) + 1;
    *failed |= t.failed;
    text_free(&t);
    return exponent;
}

/* Python's repr of a float: the shortest digits that read back as the same number, with an exponent
 * from 1e16 on and below 1e-4.  `point` is where the decimal point stands, counted from the first
 * digit. */
void jinja_float_repr(text *out, double x)
{
    char digits[32];
    int n;
    if (isnan(x)) {
        text_print(out, "nan");
        return;
    }
    if (isinf(x)) {
        text_print(out, x > 0 ? "inf" : "-inf");
        return;
    }
    text_print(out, "%s", signbit(x) ? "-" : "");
    int point = shortest_digits(fabs(x), digits, &n, &out->failed);
    if (out->failed)
        return;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (point > 16 || point < -3) {
        const char *dot = n > 1 ? "." : "";
        text_print(out, "%c%s%.*se%+03d", digits[0], dot, n - 1, digits + 1, point - 1);
        return;
    }
    text_print(out, "%s", point <= 0 ? "0." : "");
    for (int i = point; i < 0; i++)
        text_add(out, "0", 1);
    for (int i = 0; i < n || i < point; i++) {
        if (i == point && i)
            text_add(out, ".", 1);
        text_add(out, i < n ? digits + i : "0", 1);
    }
    if (point >= n && point > 0)
        text_add(out, ".0", 2);
}

/* ---- repr ---- */

/* Python's choice of quotes, and escapes for what cannot be printed. 'it' -> 'it', it's -> "it's",
 * both kinds -> 'it\'s "it"'. A text grows fourfold at most (\x00), which is charged first. */
static mpk_status repr_str(jrun *r, str s, text *out)
{
    static const char letters[] = "\\trn", meanings[] = "\\\t\r\n";
    TRY(jinja_charge(r, s.n * 4));
    const bool has_single = s.n && memchr(s.at, '\'', s.n),
               has_double = s.n && memchr(s.at, '"', s.n);
    const char quote = has_single && !has_double ? '"' : '\'';
    text_add(out, &quote, 1);
    for (size_t i = 0, size; i < s.n; i += size) {
        uint32_t c = jinja_char(s.at + i, &size);
        const char *meaning = c && c < 0x80 ? strchr(meanings, (int)c) : NULL;
        if (meaning)
            text_print(out, "\\%c", letters[meaning - meanings]);
        else if (c == (unsigned char)quote)
            text_print(out, "\\%c", quote);
        else if (jinja_is_printable(c))
            text_add(out, s.at + i, size);
        else
            text_print(out, jinja_escape_of(c), c);
    }
    text_add(out, &quote, 1);
    return MPK_OK;
}

/* Items with commas between `open` and `close`. */
static mpk_status repr_items(jrun *r, const jlist *l, const char *open, const char *close,
                             text *out)
{
    text_print(out, "%s", open);
    for (size_t i = 0; i < l->n; i++) {
        text_print(out, "%s", i ? ", " : "");
        TRY(jinja_repr(r, l->at[i], out));
    }
    text_print(out, "%s", close);
    return MPK_OK;
}

/* In the order in which the keys were added, as Python's dicts are. */
static mpk_status repr_dict(jrun *r, const jdict *d, text *out)
{
    text_add(out, "{", 1);
    for (size_t i = 0; i < d->n; i++) {
        text_print(out, "%s", i ? ", " : "");
        TRY(jinja_repr(r, d->at[i].key, out));
        text_add(out, ": ", 2);
        TRY(jinja_repr(r, d->at[i].value, out));
    }
    text_add(out, "}", 1);
    return MPK_OK;
}

/* dict_keys(['a', 'b']): the items that the view shows now. */
static mpk_status repr_view(jrun *r, jval v, text *out)
{
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    jval list;
    TRY(jinja_collect(r, v, &list));
    return repr_items(r, list.list, names[v.view->part], "])", out);
}

/* A step of 1 is not shown. */
static void repr_range(const jrange *g, text *out)
{
    text_print(out, "range(%lld, %lld", (long long)g->start, (long long)g->stop);
    if (g->step != 1)
        text_print(out, ", %lld", (long long)g->step);
    text_add(out, ")", 1);
}

/* Values that a template rarely prints.  A loop shows its length, which may take the rest of its
 * items. What Python would print with an address in memory is refused: it would differ in each
 * run. */
static mpk_status repr_object(jrun *r, jval v, text *out)
{
    jval length;
    switch (v.kind) {
    case J_NAMESPACE:
        text_print(out, "<Namespace ");
        TRY(repr_dict(r, v.dict, out));
        text_add(out, ">", 1);
        return MPK_OK;
    case J_MACRO:
        text_print(out, "<Macro ");
        TRY(v.macro->name.at ? repr_str(r, v.macro->name, out) : MPK_OK);
        text_print(out, v.macro->name.at ? ">" : "anonymous>");
        return MPK_OK;
    case J_LOOP:
        TRY(jinja_loop_attribute(r, v.loop, STR("length"), &length));
        text_print(out, "<LoopContext %lld/%lld>", (long long)v.loop->index0 + 1,
                   (long long)length.integer);
        return MPK_OK;
    default:
        return jinja_refuse(r, "printing %s is not supported", jinja_type_name(v));
    }
}

/* J_BIG: an integer beyond 64 bits, as its digits. */
static mpk_status repr_scalar(jrun *r, jval v, text *out)
{
    switch (v.kind) {
    case J_UNDEFINED:
        text_print(out, "Undefined");
        return MPK_OK;
    case J_NONE:
        text_print(out, "None");
        return MPK_OK;
    case J_BOOL:
        text_print(out, v.boolean ? "True" : "False");
        return MPK_OK;
    case J_INT:
        text_print(out, "%lld", (long long)v.integer);
        return MPK_OK;
    case J_BIG:
        text_add(out, v.text.at, v.text.n);
        return MPK_OK;
    case J_FLOAT: /* its shortest digits are found by trying */
        TRY(jinja_work(r, FLOAT_WORK));
        jinja_float_repr(out, v.number);
        return MPK_OK;
    default:
        if (v.markup)
            text_print(out, "Markup(");
        TRY(repr_str(r, v.text, out));
        text_print(out, v.markup ? ")" : "");
        return MPK_OK;
    }
}

/* Did the text get all that was added, and is it not too long? */
static mpk_status check_text(jrun *r, const text *t)
{
    CHECK(r->cx, !t->failed, MPK_ENOMEM, "out of memory for the text of a chat template");
    CHECK(r->cx, t->n <= JINJA_MAX_OUTPUT, MPK_ELIMIT,
          "chat template, line %u: a text has more than %d bytes", r->line, JINJA_MAX_OUTPUT);
    return MPK_OK;
}

/* Work, size and depth are checked for each value, since a nested one may be shared and print far
 * longer than it is. A tuple of one has a comma: (1,). */
mpk_status jinja_repr(jrun *r, jval v, text *out)
{
    TRY(jinja_charge(r, 8));
    TRY(check_text(r, out));
    TRY(jinja_deeper(r));
    switch (v.kind) {
    case J_LIST:
        TRY(repr_items(r, v.list, "[", "]", out));
        break;
    case J_TUPLE:
        TRY(repr_items(r, v.list, "(", v.list->n == 1 ? ",)" : ")", out));
        break;
    case J_DICT:
        TRY(repr_dict(r, v.dict, out));
        break;
    case J_VIEW:
        TRY(repr_view(r, v, out));
        break;
    case J_RANGE:
        repr_range(v.range, out);
        break;
    default:
        TRY(v.kind <= J_STR ? repr_scalar(r, v, out) : repr_object(r, v, out));
    }
    r->depth--;
    return MPK_OK;
}

/* str(x): undefined is empty, and a string is itself. */
mpk_status jinja_to_text(jrun *r, jval v, text *out)
{
    if (v.kind == J_UNDEFINED || v.kind == J_ABSENT)
        return MPK_OK;
    if (v.kind != J_STR) {
        TRY(jinja_repr(r, v, out));
    } else {
        TRY(jinja_charge(r, v.text.n));
        text_add(out, v.text.at, v.text.n);
    }
    return check_text(r, out);
}

/* End a text that was built with malloc: it is copied to the run's memory and freed, also after a
 * failure (status), which is passed on. */
mpk_status jinja_take_text(jrun *r, mpk_status status, text *t, jval *out)
{
    str s = {0};
    if (status == MPK_OK)
        status = check_text(r, t);
    if (status == MPK_OK)
        status = jinja_copy(r, (str){t->at, t->n}, &s);
    text_free(t);
    *out = jinja_str(s);
    return status;
}

/* A string as it is, without a copy. */
mpk_status jinja_to_str(jrun *r, jval v, str *out)
{
    text t = {0};
    jval s;
    if (v.kind == J_STR) {
        *out = v.text;
        return MPK_OK;
    }
    TRY(jinja_take_text(r, jinja_to_text(r, v, &t), &t, &s));
    *out = s.text;
    return MPK_OK;
}

/* ---- JSON ---- */

/* Plain ASCII is added by runs.  With `ascii` everything else is escaped, beyond 16 bits as a pair
 * of surrogates. */
static mpk_status json_str(jrun *r, str s, bool ascii, text *out)
{
    static const char letters[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
    TRY(jinja_charge(r, s.n * 2));
    text_add(out, "\"", 1);
    for (size_t i = 0, size, run; i < s.n; i += size) {
        uint32_t c = jinja_char(s.at + i, &size);
        const char *meaning = c && c < 0x80 ? strchr(meanings, (int)c) : NULL;
        for (run = i + size; !meaning && c >= 0x20 && c < 0x7f && run < s.n; run++, size++) {
            char next = s.at[run]; /* several at once */
            if (next < 0x20 || next >= 0x7f || next == '"' || next == '\\')
                break;
        }
        if (meaning)
            text_print(out, "\\%c", letters[meaning - meanings]);
        else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000))
            text_print(out, "\\u%04x", c);
        else if (ascii && c >= 0x10000)
            text_print(out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                       0xdc00 + ((c - 0x10000) & 0x3ff));
        else
            text_add(out, s.at + i, size);
    }
    text_add(out, "\"", 1);
    return MPK_OK;
}

/* A line end and the indent; nothing where no indent is asked for.  The product is bounded before
 * it is charged. */
static mpk_status json_indent(jrun *r, const jjson *style, size_t level, text *out)
{
    if (style->indent < 0 && !style->indent_text.at)
        return MPK_OK;
    size_t n = style->indent_text.at ? style->indent_text.n : (size_t)style->indent;
    if (n && level > JINJA_MAX_OUTPUT / n)
        return jinja_fail(r, "tojson: this indent is too deep");
    TRY(jinja_charge(r, n * level));
    text_add(out, "\n", 1);
    for (size_t i = 0; i < level; i++)
        if (style->indent_text.at)
            text_add(out, style->indent_text.at, n);
        else
            for (size_t k = 0; k < n; k++)
                text_add(out, " ", 1);
    return MPK_OK;
}

/* NaN and Infinity are no JSON, but what json.dumps writes. */
static void json_float(text *out, double x)
{
    if (isnan(x))
        text_print(out, "NaN");
    else if (isinf(x))
        text_print(out, x > 0 ? "Infinity" : "-Infinity");
    else
        jinja_float_repr(out, x);
}

/* Undefined is an error, not null, as for json.dumps. */
static mpk_status json_scalar(jrun *r, jval v, const jjson *style, text *out)
{
    switch (v.kind) {
    case J_NONE:
        text_print(out, "null");
        return MPK_OK;
    case J_BOOL:
        text_print(out, v.boolean ? "true" : "false");
        return MPK_OK;
    case J_INT:
    case J_BIG:
        return jinja_repr(r, v, out);
    case J_FLOAT:
        TRY(jinja_work(r, FLOAT_WORK));
        json_float(out, v.number);
        return MPK_OK;
    case J_STR:
        return json_str(r, v.text, style->ascii, out);
    default:
        return jinja_fail(r, "tojson: %s has no form in JSON", jinja_type_name(v));
    }
}

/* A key that is not text becomes one, as json.dumps has it. */
static mpk_status json_key(jrun *r, jval key, const jjson *style, text *out)
{
    if (key.kind == J_TUPLE || key.kind > J_STR || key.kind == J_UNDEFINED)
        return jinja_fail(r, "tojson: %s cannot be a key in JSON", jinja_type_name(key));
    text_print(out, key.kind == J_STR ? "" : "\"");
    TRY(json_scalar(r, key, style, out));
    text_print(out, key.kind == J_STR ? "" : "\"");
    return MPK_OK;
}

/* Indices of entries in the order of their keys: a merge sort. */
static mpk_status sort_entries(jrun *r, const jdict *d, size_t *order, size_t *spare, size_t n)
{
    if (n < 2)
        return MPK_OK;
    size_t half = n / 2, i = 0, k = half;
    TRY(sort_entries(r, d, order, spare, half));
    TRY(sort_entries(r, d, order + half, spare, n - half));
    for (size_t at = 0; at < n; at++) {
        bool second = i == half;
        if (i < half && k < n)
            TRY(jinja_less(r, d->at[order[k]].key, d->at[order[i]].key, &second));
        spare[at] = order[second ? k++ : i++];
    }
    memcpy(order, spare, n * sizeof *order);
    return MPK_OK;
}

/* The indexes of a dict's entries, in the order to print them. */
static mpk_status entry_order(jrun *r, const jdict *d, bool sorted, size_t **out)
{
    size_t *order, *spare;
    TRY(jinja_charge(r, d->n * 16));
    NEW(r->cx, r->a, order, d->n);
    NEW(r->cx, r->a, spare, d->n);
    for (size_t i = 0; i < d->n; i++)
        order[i] = i;
    *out = order;
    return sorted ? sort_entries(r, d, order, spare, d->n) : MPK_OK;
}

static mpk_status dump(jrun *r, jval v, const jjson *style, size_t level, text *out);

/* An empty dict is {} on one line also with an indent. */
static mpk_status dump_dict(jrun *r, const jdict *d, const jjson *style, size_t level, text *out)
{
    size_t *order = NULL;
    TRY(entry_order(r, d, style->sort_keys, &order));
    text_add(out, "{", 1);
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            text_add(out, style->comma.at, style->comma.n);
        TRY(json_indent(r, style, level + 1, out));
        TRY(json_key(r, d->at[order[i]].key, style, out));
        text_add(out, style->colon.at, style->colon.n);
        TRY(dump(r, d->at[order[i]].value, style, level + 1, out));
    }
    if (d->n)
        TRY(json_indent(r, style, level, out));
    text_add(out, "}", 1);
    return MPK_OK;
}

/* Lists and tuples; an empty one is [] also with an indent. */
static mpk_status dump_list(jrun *r, const jlist *l, const jjson *style, size_t level, text *out)
{
    text_add(out, "[", 1);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            text_add(out, style->comma.at, style->comma.n);
        TRY(json_indent(r, style, level + 1, out));
        TRY(dump(r, l->at[i], style, level + 1, out));
    }
    if (l->n)
        TRY(json_indent(r, style, level, out));
    text_add(out, "]", 1);
    return MPK_OK;
}

/* One value at this level of nesting; work, size and depth are checked as in jinja_repr. */
static mpk_status dump(jrun *r, jval v, const jjson *style, size_t level, text *out)
{
    TRY(jinja_charge(r, 8 + style->comma.n + style->colon.n));
    TRY(check_text(r, out));
    TRY(jinja_deeper(r));
    if (v.kind == J_LIST || v.kind == J_TUPLE)
        TRY(dump_list(r, v.list, style, level, out));
    else if (v.kind == J_DICT)
        TRY(dump_dict(r, v.dict, style, level, out));
    else
        TRY(json_scalar(r, v, style, out));
    r->depth--;
    return MPK_OK;
}

mpk_status jinja_dump_json(jrun *r, jval v, const jjson *style, text *out)
{
    return dump(r, v, style, 0, out);
}
