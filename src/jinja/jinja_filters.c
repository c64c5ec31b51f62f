/* jinja_filters.c - filters of one value: text, numbers, JSON; and the list of all filters' names.
 *
 * A filter gets its subject, which is what stands before the |, and the arguments in its
 * parentheses.  Each binds them first (jinja_bind), so that a wrong argument is an error whatever
 * the subject; then it makes a text of the subject if it is a filter of text, as Jinja2's do.
 *
 * `kind > J_NONE` in what follows means: an argument was given, and it is neither undefined nor
 * none. */
#include "jinja/jinja_parts.h"

#include <math.h>

/* ---- text ---- */

/* The subject as text; one that is marked safe stays so. */
static mpk_status subject_str(jrun *r, jval subject, jval *out)
{
    *out = subject;
    if (subject.kind == J_STR)
        return MPK_OK;
    *out = jinja_str(STR(""));
    return jinja_to_str(r, subject, &out->text);
}

/* `set` without an address strips white space; an empty string given as chars strips nothing, so it
 * gets an address. */
static mpk_status filter_trim(jrun *r, jval v, const jargs *args, jval *out)
{
    jval chars;
    str set = {0};
    TRY(jinja_bind(r, "trim", args, "chars", 0, &chars));
    TRY(subject_str(r, v, out));
    if (chars.kind == J_UNDEFINED)
        return jinja_fail_undefined(r, chars);
    if (chars.kind > J_NONE) {
        TRY(jinja_need_str(r, chars, "trim", &set));
        set = set.n ? set : STR("");
    }
    TRY(jinja_work(r, out->text.n * (uint64_t)(set.n + 1)));
    out->text = jinja_strip(out->text, set, true, true);
    return MPK_OK;
}

/* upper, lower and capitalize differ in `to` alone.  A text that is marked safe stays so. */
static mpk_status case_filter(jrun *r, jval v, const jargs *args, jcase to, jval *out)
{
    TRY(jinja_bind(r, "this filter", args, "", 0, NULL));
    TRY(subject_str(r, v, out));
    return jinja_set_case(r, out->text, to, &out->text);
}

static mpk_status filter_upper(jrun *r, jval v, const jargs *args, jval *out)
{
    return case_filter(r, v, args, J_UPPER, out);
}

static mpk_status filter_lower(jrun *r, jval v, const jargs *args, jval *out)
{
    return case_filter(r, v, args, J_LOWER, out);
}

static mpk_status filter_capitalize(jrun *r, jval v, const jargs *args, jval *out)
{
    return case_filter(r, v, args, J_CAPITAL, out);
}

/* The characters that part words for the filter title. */
static bool begins_word(uint32_t c)
{
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || jinja_is_space(c);
}

/* Not Python's title: words begin after spaces, hyphens and brackets. "it's a-b" becomes "It's
 * A-B", where Python's title gives "It'S A-B". */
static mpk_status filter_title(jrun *r, jval v, const jargs *args, jval *out)
{
    jval s, joined = jinja_str(STR(""));
    size_t size, first;
    TRY(jinja_bind(r, "title", args, "", 0, NULL));
    TRY(subject_str(r, v, &s));
    for (size_t at = 0, end; at < s.text.n; at = end) {
        const bool word = !begins_word(jinja_char(s.text.at + at, &first));
        for (end = at; end < s.text.n && begins_word(jinja_char(s.text.at + end, &size)) != word;
             end += size)
            ;
        str part = {s.text.at + at, end - at}, head = {part.at, first},
            tail = {part.at + first, part.n - first};
        TRY(jinja_set_case(r, head, J_UPPER, &head));
        TRY(jinja_binary(r, '+', joined, jinja_str(head), &joined));
        TRY(jinja_set_case(r, tail, J_LOWER, &tail));
        TRY(jinja_binary(r, '+', joined, jinja_str(tail), &joined));
    }
    *out = joined;
    return MPK_OK;
}

/* The filter makes a text of everything; the method of str wants strings. */
static mpk_status filter_replace(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[3];
    str s = {0}, from = {0}, to = {0};
    int64_t most = -1;
    TRY(jinja_bind(r, "replace", args, "old new count", 2, a));
    TRY(jinja_to_str(r, v, &s));
    TRY(jinja_to_str(r, a[0], &from));
    TRY(jinja_to_str(r, a[1], &to));
    if (a[2].kind > J_NONE)
        TRY(jinja_need_int(r, a[2], "replace", &most));
    *out = jinja_str(STR(""));
    return jinja_str_replace(r, s, from, to, most, &out->text);
}

static mpk_status filter_string(jrun *r, jval v, const jargs *args, jval *out)
{
    TRY(jinja_bind(r, "string", args, "", 0, NULL));
    return subject_str(r, v, out);
}

/* Marks the text; what is added to it with + is escaped from then on. */
static mpk_status filter_safe(jrun *r, jval v, const jargs *args, jval *out)
{
    TRY(jinja_bind(r, "safe", args, "", 0, NULL));
    TRY(subject_str(r, v, out));
    out->markup = true;
    return MPK_OK;
}

/* The entities that MarkupSafe writes, with numbers for both quotes. */
mpk_status jinja_escape(jrun *r, str s, str *out)
{
    static const char letters[] = "&<>'\"";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    text t = {0};
    jval made;
    TRY(jinja_charge(r, s.n * 2));
    for (size_t i = 0; i < s.n; i++) {
        const char *found = s.at[i] ? strchr(letters, s.at[i]) : NULL;
        if (found)
            text_print(&t, "%s", names[found - letters]);
        else
            text_add(&t, s.at + i, 1);
    }
    TRY(jinja_take_text(r, MPK_OK, &t, &made));
    *out = made.text;
    return MPK_OK;
}

/* A text that is marked safe is not escaped again. */
static mpk_status filter_escape(jrun *r, jval v, const jargs *args, jval *out)
{
    TRY(jinja_bind(r, "escape", args, "", 0, NULL));
    TRY(subject_str(r, v, out));
    if (!out->markup)
        TRY(jinja_escape(r, out->text, &out->text));
    out->markup = true;
    return MPK_OK;
}

/* Lines but the first (or all) get spaces or a text before them; empty ones only if blank says so.
 * "a\nb" | indent(2) is "a\n  b". Jinja2 adds a newline before it splits, so a text that ends in
 * one keeps it. */
static mpk_status filter_indent(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[3], lines, all, joined = jinja_str(STR(""));
    int64_t width = 4;
    TRY(jinja_bind(r, "indent", args, "width first blank", 0, a));
    if (v.kind != J_STR || v.markup)
        return v.markup ? jinja_refuse(r, "indent of a text that is marked safe is not supported")
                        : jinja_fail(r, "indent: %s is not a string", jinja_type_name(v));
    jval indent = a[0];
    if (indent.kind != J_STR) {
        if (indent.kind != J_ABSENT)
            TRY(jinja_need_int(r, indent, "indent", &width));
        TRY(jinja_binary(r, '*', jinja_str(STR(" ")), jinja_int(width), &indent));
    }
    TRY(jinja_binary(r, '+', v, jinja_str(STR("\n")), &all));
    TRY(jinja_splitlines(r, all.text, false, &lines));
    for (size_t i = 0; i < lines.list->n; i++) {
        jval line = lines.list->at[i];
        if (i)
            TRY(jinja_binary(r, '+', joined, jinja_str(STR("\n")), &joined));
        if (i ? line.text.n || jinja_true(a[2]) : jinja_true(a[1]))
            TRY(jinja_binary(r, '+', joined, indent, &joined));
        TRY(jinja_binary(r, '+', joined, line, &joined));
    }
    *out = joined;
    return MPK_OK;
}

/* The filter is the operator %, with its arguments as tuple or dict. {{ "%s of %d" | format("a", 3)
 * }} */
static mpk_status filter_format(jrun *r, jval v, const jargs *args, jval *out)
{
    jval given, s;
    TRY(subject_str(r, v, &s));
    if (s.markup)
        return jinja_refuse(r, "format of a text that is marked safe is not supported");
    if (args->n && args->n_keywords)
        return jinja_fail(r, "format takes values or names, not both");
    if (args->n_keywords) {
        TRY(jinja_make_dict(r, &given));
        for (size_t i = 0; i < args->n_keywords; i++)
            TRY(jinja_dict_put(r, given.dict, jinja_str(args->keywords[i].name),
                               args->keywords[i].value));
    } else {
        TRY(jinja_make_list(r, J_TUPLE, args->n, &given));
        for (size_t i = 0; i < args->n; i++)
            TRY(jinja_push(r, given.list, args->at[i]));
    }
    return jinja_percent(r, s.text, given, out);
}

/* The same as the method, with a width that may be left out. */
static mpk_status filter_center(jrun *r, jval v, const jargs *args, jval *out)
{
    jval width, s;
    TRY(jinja_bind(r, "center", args, "width", 0, &width));
    TRY(subject_str(r, v, &s));
    if (width.kind == J_ABSENT)
        width = jinja_int(80);
    return jinja_find_method(s, STR("center"))->call(r, s, &(jargs){.at = &width, .n = 1}, out);
}

/* ---- numbers ---- */

/* Characters of a number as a text; longer ones are refused, since Python reads them. */
enum { NUMBER_BYTES = 127 };

static bool is_one_of(char c, const char *set)
{
    return c && strchr(set, c);
}

/* What Python's int() or float() may be given as a text: without spaces around it and single
 * underscores in it, if it consists of characters of `allowed`; into `to`.  out->n 0: it does not.
 * Refused is what Python may read and this does not: a longer text, and digits of other scripts. */
static mpk_status clean_number(jrun *r, str s, const char *allowed, char to[NUMBER_BYTES], str *out)
{
    static const char digits[] = "0123456789";
    size_t n = 0, size;
    TRY(jinja_work(r, s.n));
    s = jinja_strip(s, (str){0}, true, true);
    *out = (str){to, 0};
    for (size_t i = 0; i < s.n; i++) {
        if (s.at[i] == '_') {
            if (!i || i + 1 == s.n || !is_one_of(s.at[i - 1], digits) ||
                !is_one_of(s.at[i + 1], digits))
                return MPK_OK;
            continue;
        }
        if (!is_one_of(s.at[i], allowed)) {
            jinja_char(s.at + i, &size);
            if (size > 1 && jinja_is_class((str){s.at + i, size}, J_DECIMAL))
                return jinja_refuse(r, "digits beyond ASCII are not supported in a number");
            return MPK_OK;
        }
        if (n == NUMBER_BYTES)
            return jinja_refuse(r, "a number of more than %d characters is not supported",
                                NUMBER_BYTES);
        to[n++] = s.at[i];
    }
    out->n = n;
    return MPK_OK;
}

/* *found: the text is a float. */
static mpk_status read_float_text(jrun *r, str s, double *out, bool *found)
{
    char digits[NUMBER_BYTES];
    str clean = {0};
    TRY(clean_number(r, s, "0123456789.eE+-infatyINFATY", digits, &clean));
    *found = clean.n && str_read_double(clean, out);
    return MPK_OK;
}

/* *found: the text is an integer in this base. Python's int(): white space around, underscores
 * between digits, a sign, a prefix of the same base. Beyond 63 bits it is refused: Python's
 * integers have no bound. */
static mpk_status read_int_text(jrun *r, str s, int64_t base, int64_t *out, bool *found)
{
    char digits[NUMBER_BYTES];
    str clean = {0};
    uint64_t x = 0;
    *found = false;
    if (base != 10 && s.n && memchr(s.at, '_', s.n))
        return jinja_refuse(r, "underscores in a number of base %lld are not supported",
                            (long long)base);
    TRY(clean_number(r, s, "0123456789+-abcdefABCDEFxXoO", digits, &clean));
    const bool negative = clean.n && clean.at[0] == '-',
               sign = negative || (clean.n && clean.at[0] == '+');
    clean = (str){clean.at + sign, clean.n - (clean.n ? sign : 0)};
    if (clean.n > 2 && clean.at[0] == '0' &&
        ((base == 16 && (clean.at[1] | 0x20) == 'x') ||
         (base == 8 && (clean.at[1] | 0x20) == 'o') || (base == 2 && (clean.at[1] | 0x20) == 'b')))
        clean = (str){clean.at + 2, clean.n - 2};
    for (size_t i = 0; i < clean.n; i++) {
        const int64_t d = str_hex_digit(clean.at[i]);
        if (d < 0 || d >= base)
            return MPK_OK;
        if (x > (uint64_t)(INT64_MAX - d) / (uint64_t)base)
            return jinja_refuse_big(r);
        x = x * (uint64_t)base + (uint64_t)d;
    }
    *found = clean.n > 0;
    *out = negative ? -(int64_t)x : (int64_t)x;
    return MPK_OK;
}

/* Python's int(x) of a float: towards zero.  What is not a number gives `otherwise`. */
static mpk_status truncate_float(jrun *r, double x, jval otherwise, jval *out)
{
    *out = otherwise;
    if (isnan(x) || isinf(x))
        return MPK_OK;
    if (!(fabs(x) < 0x1p63))
        return jinja_refuse_big(r);
    *out = jinja_int((int64_t)x);
    return MPK_OK;
}

/* Jinja2 tries int(x, base), then int(float(x)), then gives the default; only an infinite float is
 * an error, for its exception is one that the filter does not catch. */
static mpk_status filter_int(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[2];
    int64_t base = 10, x = 0;
    double number = 0;
    bool found = false;
    TRY(jinja_bind(r, "int", args, "default base", 0, a));
    jval otherwise = a[0].kind == J_ABSENT ? jinja_int(0) : a[0];
    if (a[1].kind != J_ABSENT)
        TRY(jinja_need_int(r, a[1], "int", &base));
    if (base != 2 && base != 8 && base != 10 && base != 16)
        return jinja_refuse(r, "int with the base %lld is not supported", (long long)base);
    *out = v;
    if (v.kind == J_UNDEFINED)
        return jinja_fail_undefined(r, v);
    if (v.kind == J_INT || v.kind == J_BIG)
        return MPK_OK;
    *out = v.kind == J_BOOL ? jinja_int(v.boolean) : otherwise;
    if (v.kind == J_FLOAT && isinf(v.number))
        return jinja_fail(r, "int: infinity is not an integer");
    if (v.kind == J_FLOAT)
        return truncate_float(r, v.number, otherwise, out);
    if (v.kind != J_STR)
        return MPK_OK;
    TRY(read_int_text(r, v.text, base, &x, &found));
    if (found) {
        *out = jinja_int(x);
        return MPK_OK;
    }
    TRY(read_float_text(r, v.text, &number, &found));
    return found ? truncate_float(r, number, otherwise, out) : MPK_OK;
}

/* What is not a number gives the default, 0.0. Booleans are numbers, as in Python: true | float is
 * 1.0. */
static mpk_status filter_float(jrun *r, jval v, const jargs *args, jval *out)
{
    jval otherwise;
    double x = 0;
    bool found = false;
    TRY(jinja_bind(r, "float", args, "default", 0, &otherwise));
    *out = otherwise.kind == J_ABSENT ? jinja_float(0) : otherwise;
    if (v.kind == J_UNDEFINED)
        return jinja_fail_undefined(r, v);
    if (v.kind == J_BIG)
        return jinja_refuse_big(r);
    if (jinja_is_integral(v))
        *out = jinja_float((double)jinja_integral(v));
    else if (v.kind == J_FLOAT)
        *out = v;
    else if (v.kind == J_STR)
        TRY(read_float_text(r, v.text, &x, &found));
    if (found)
        *out = jinja_float(x);
    return MPK_OK;
}

/* -INT64_MIN is refused by jinja_sign. */
static mpk_status filter_abs(jrun *r, jval v, const jargs *args, jval *out)
{
    TRY(jinja_bind(r, "abs", args, "", 0, NULL));
    if (v.kind == J_BIG)
        return jinja_refuse_big(r);
    if (v.kind == J_FLOAT)
        *out = jinja_float(fabs(v.number));
    else if (jinja_is_integral(v))
        return jinja_sign(r, jinja_integral(v) < 0 ? '-' : '+', v, out);
    else
        return jinja_fail(r, "abs: %s is not a number", jinja_type_name(v));
    return MPK_OK;
}

/* The exact value of x to this many places, ties to even: what printf does. */
static mpk_status round_common(jrun *r, jval v, int64_t places, jval *out)
{
    text t = {0};
    double x = v.number;
    if (places < 0 || places > 300)
        return jinja_refuse(r, "round to %lld places is not supported", (long long)places);
    *out = v;
    if (jinja_is_integral(v))
        return jinja_sign(r, '+', v, out);
    if (isnan(x) || isinf(x) || fabs(x) >= 0x1p53)
        return MPK_OK;
    text_print(&t, "%.*f", (int)places, x);
    const bool read = !t.failed && str_read_double((str){t.at, t.n}, &x);
    text_free(&t);
    CHECK(r->cx, read, MPK_ENOMEM, "out of memory rounding a number");
    *out = jinja_float(x);
    return MPK_OK;
}

/* `common` is Python's round, half to even on the decimal value.  The other two multiply, and are
 * refused where the product would not be exact. */
static mpk_status filter_round(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[2];
    int64_t places = 0;
    str method = STR("common");
    TRY(jinja_bind(r, "round", args, "precision method", 0, a));
    if (a[0].kind != J_ABSENT)
        TRY(jinja_need_int(r, a[0], "round", &places));
    if (a[1].kind != J_ABSENT)
        TRY(jinja_need_str(r, a[1], "round", &method));
    const bool up = str_is(method, "ceil"), down = str_is(method, "floor");
    if (!up && !down && !str_is(method, "common"))
        return jinja_fail(r, "round: the method is common, ceil or floor");
    if (v.kind == J_BIG)
        return jinja_refuse_big(r);
    if (!jinja_is_integral(v) && v.kind != J_FLOAT)
        return jinja_fail(r, "round: %s is not a number", jinja_type_name(v));
    if (!up && !down)
        return round_common(r, v, places, out);
    double x = v.kind == J_FLOAT ? v.number : (double)jinja_integral(v),
           scale = pow(10, (double)places);
    if (places < 0 || places > 15 || !(fabs(x) * scale < 0x1p53))
        return jinja_refuse(r, "this rounding is not supported");
    x = up ? ceil(x * scale) : floor(x * scale);
    *out = jinja_float((x == 0 ? 0 : x) /
                       scale); /* Python's ceil and floor give integers: there is no -0 */
    return MPK_OK;
}

/* ---- the rest ---- */

static mpk_status filter_length(jrun *r, jval v, const jargs *args, jval *out)
{
    TRY(jinja_bind(r, "length", args, "", 0, NULL));
    *out = jinja_int(0);
    return jinja_length(r, v, &out->integer);
}

/* With `boolean` the default replaces everything that is false, not only what is undefined. */
static mpk_status filter_default(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[2];
    TRY(jinja_bind(r, "default", args, "default_value boolean", 0, a));
    *out = v;
    if (v.kind == J_UNDEFINED || (jinja_true(a[1]) && !jinja_true(v)))
        *out = a[0].kind == J_ABSENT ? jinja_str(STR("")) : a[0];
    return MPK_OK;
}

/* (item, key) as json.dumps takes them. */
static mpk_status json_separators(jrun *r, jval v, jjson *style)
{
    if (v.kind <= J_NONE)
        return v.kind == J_UNDEFINED ? jinja_fail_undefined(r, v) : MPK_OK;
    if ((v.kind != J_LIST && v.kind != J_TUPLE) || v.list->n != 2)
        return jinja_fail(r,
                          "tojson: separators must be two strings: between items, and after a key");
    TRY(jinja_need_str(r, v.list->at[0], "tojson", &style->comma));
    return jinja_need_str(r, v.list->at[1], "tojson", &style->colon);
}

/* The variant of Transformers: no escaping of HTML, unlike Jinja2's own tojson, and the keywords of
 * json.dumps.  With an indent the default comma has no space after it, as in Python. {"a": [1, 2]}
 * without an indent, as json.dumps writes it: ", " between items and ": " after keys. A negative
 * indent means newlines alone, like 0. */
static mpk_status filter_tojson(jrun *r, jval v, const jargs *args, jval *out)
{
    jval a[4];
    text t = {0};
    jjson style = {.indent = -1, .comma = STR(", "), .colon = STR(": ")};
    TRY(jinja_bind(r, "tojson", args, "ensure_ascii indent separators sort_keys", 0, a));
    style.ascii = jinja_true(a[0]);
    style.sort_keys = jinja_true(a[3]);
    if (a[1].kind > J_NONE) {
        style.comma = STR(",");
        if (a[1].kind == J_STR)
            style.indent_text = a[1].text.n ? a[1].text : STR("");
        else
            TRY(jinja_need_int(r, a[1], "tojson", &style.indent));
        if (a[1].kind != J_STR && style.indent < 0)
            style.indent = 0;
    }
    TRY(json_separators(r, a[2], &style));
    return jinja_take_text(r, jinja_dump_json(r, v, &style, &t), &t, out);
}

/* NULL: Jinja2 has the filter and this does not; it is refused by its name when it is reached. */
const jfilter jinja_text_filters[] = {{"trim", filter_trim},
                                      {"upper", filter_upper},
                                      {"lower", filter_lower},
                                      {"capitalize", filter_capitalize},
                                      {"title", filter_title},
                                      {"replace", filter_replace},
                                      {"string", filter_string},
                                      {"safe", filter_safe},
                                      {"escape", filter_escape},
                                      {"e", filter_escape},
                                      {"indent", filter_indent},
                                      {"format", filter_format},
                                      {"center", filter_center},
                                      {"int", filter_int},
                                      {"float", filter_float},
                                      {"abs", filter_abs},
                                      {"round", filter_round},
                                      {"length", filter_length},
                                      {"count", filter_length},
                                      {"default", filter_default},
                                      {"d", filter_default},
                                      {"tojson", filter_tojson},
                                      {"attr", NULL},
                                      {"filesizeformat", NULL},
                                      {"forceescape", NULL},
                                      {"pprint", NULL},
                                      {"random", NULL},
                                      {"striptags", NULL},
                                      {"truncate", NULL},
                                      {"urlencode", NULL},
                                      {"urlize", NULL},
                                      {"wordcount", NULL},
                                      {"wordwrap", NULL},
                                      {"xmlattr", NULL},
                                      {0}};

/* NULL: there is none.  Some sixty names, compared by length first; a template's are looked up
 * once. */
const jfilter *jinja_find_filter(str name)
{
    const jfilter *const tables[] = {jinja_text_filters, jinja_sequence_filters};
    for (int i = 0; i < 2; i++)
        for (const jfilter *f = tables[i]; f->name; f++)
            if (str_is(name, f->name))
                return f;
    return NULL;
}
