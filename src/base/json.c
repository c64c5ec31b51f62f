/* json.c - a recursive-descent JSON reader.
 *
 * While their number is not known the items of a list are gathered on one stack, on top of those of
 * the containers around it, and then copied to an array of just that size.  Linear time, but for
 * the names of an object, which are sorted to find two that are equal.
 */
#include "base/json.h"

#include <math.h>
#include <stdlib.h>

#include "base/map.h"

enum { MAX_DEPTH = 256, MAX_NUMBER_BYTES = 128 };

/* One document being read; dies with json_parse, and `scratch` with it. */
typedef struct reader {
    mpk_context *cx;
    arena *a;
    VEC(json_value) items; /* a stack, in `scratch`: see above */
    arena scratch;
    str source;
    size_t at;
    bool any_number; /* beyond the range of a double, too */
} reader;

static mpk_status read_value(reader *r, unsigned depth, json_value *out);

/* Fail with what was expected at the present place, as line and column. */
static mpk_status fail_at(reader *r, const char *expected)
{
    unsigned line = 1, column = 1;
    /* counted only when it is needed: a correct document costs nothing for it */
    for (size_t i = 0; i < r->at && i < r->source.n; i++, column++)
        if (r->source.at[i] == '\n')
            line++, column = 0;
    FAIL(r->cx, MPK_EFORMAT, "not valid JSON: line %u, column %u: expected %s", line, column,
         expected);
}

/* The byte at the present place, -1 at the end. */
static int peek(const reader *r)
{
    return r->at < r->source.n ? (unsigned char)r->source.at[r->at] : -1;
}

static void skip_space(reader *r)
{
    int c;
    while ((c = peek(r)) == ' ' || c == '\t' || c == '\n' || c == '\r')
        r->at++;
}

/* Skip spaces and this character, or fail. */
static mpk_status take(reader *r, int c, const char *expected)
{
    skip_space(r);
    if (peek(r) != c)
        return fail_at(r, expected);
    r->at++;
    return MPK_OK;
}

/* ---- strings ---- */

/* Bytes of the well-formed UTF-8 character at p (n bytes left), 0 if it is none. The rows bound the
 * second byte too, which excludes longer forms than needed (e0 80 ..), halves of surrogate pairs
 * (ed a0 ..) and what is above U+10FFFF (f4 90 ..). */
static size_t utf8_character(const unsigned char *p, size_t n)
{
    static const struct {
        unsigned char low, high, second_low, second_high, size;
    } rows[] = {
        {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (p[0] < rows[i].low || p[0] > rows[i].high)
            continue;
        size_t size = rows[i].size;
        if (size > n || (size > 1 && (p[1] < rows[i].second_low || p[1] > rows[i].second_high)))
            return 0;
        for (size_t k = 2; k < size; k++)
            if ((p[k] & 0xc0) != 0x80)
                return 0;
        return size;
    }
    return 0;
}

static mpk_status read_hex4(reader *r, unsigned *out)
{
    unsigned value = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        const int digit = str_hex_digit((char)peek(r));
        if (digit < 0)
            return fail_at(r, "four hexadecimal digits");
        value = value * 16 + (unsigned)digit;
    }
    *out = value;
    return MPK_OK;
}

/* The character after \u, of one escape or of a pair of surrogates, as UTF-8 at to; *to moves after
 * it. \u00e9 is one escape; \ud83d\ude00 are two, for U+1F600. */
static mpk_status read_unicode_escape(reader *r, char **to)
{
    unsigned c = 0, second = 0;
    TRY(read_hex4(r, &c));
    /* a second half without a first */
    if (c >= 0xdc00 && c < 0xe000)
        return fail_at(r, "a character, not half of one");
    if (c >= 0xd800 && c < 0xdc00) {
        if (r->source.n - r->at < 2 || r->source.at[r->at] != '\\' ||
            r->source.at[r->at + 1] != 'u')
            return fail_at(r, "the second half of a character");
        r->at += 2;
        TRY(read_hex4(r, &second));
        if (second < 0xdc00 || second >= 0xe000)
            return fail_at(r, "the second half of a character");
        /* ten bits of each half, above the characters that one escape can name */
        c = 0x10000 + ((c - 0xd800) << 10) + (second - 0xdc00);
    }
    *to += str_put_char(*to, c);
    return MPK_OK;
}

/* Unescape up to the closing quote into `to`, which has room for the source text (no escape is
 * shorter than its meaning). */
static mpk_status unescape(reader *r, size_t end, char *to, size_t *n)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char *begin = to;
    while (r->at < end) {
        char c = r->source.at[r->at++];
        if (c != '\\') {
            *to++ = c;
            continue;
        }
        c = r->source.at[r->at++];
        const char *letter = c ? strchr(letters, c) : NULL;
        if (letter)
            *to++ = meanings[letter - letters];
        else if (c == 'u')
            TRY(read_unicode_escape(r, &to));
        else
            return r->at--, fail_at(r, "an escape (\\\" \\\\ \\/ \\b \\f \\n \\r \\t or \\u)");
    }
    *n = (size_t)(to - begin);
    return MPK_OK;
}

/* Find the closing quote; count escapes; check UTF-8. The reader stays at the first character, so
 * that unescape can begin there. */
static mpk_status scan_string(reader *r, size_t *end, bool *escapes)
{
    *escapes = false;
    size_t start = r->at;
    for (;;) {
        int c = peek(r);
        if (c < 0x20)
            return fail_at(r, c < 0 ? "the end of the string" : "no control character in a string");
        if (c == '"')
            break;
        size_t size =
            utf8_character((const unsigned char *)r->source.at + r->at, r->source.n - r->at);
        if (!size)
            return fail_at(r, "UTF-8");
        if (c == '\\') {
            *escapes = true;
            /* the backslash and what it escapes, which may be a quote; unescape checks whether
             * that is an escape */
            size = 2;
        }
        r->at = r->source.n - r->at < size ? r->source.n : r->at + size;
    }
    *end = r->at;
    r->at = start;
    return MPK_OK;
}

/* A text without escapes is a part of the source; only one with escapes is copied. */
static mpk_status read_string(reader *r, str *out)
{
    size_t end = 0;
    bool escapes = false;
    TRY(take(r, '"', "a string"));
    TRY(scan_string(r, &end, &escapes));
    *out = (str){r->source.at + r->at, end - r->at};
    if (escapes) {
        char *to;
        NEW(r->cx, r->a, to, out->n + 1);
        TRY(unescape(r, end, to, &out->n));
        out->at = to;
    }
    r->at = end + 1;
    return MPK_OK;
}

/* ---- numbers and words ---- */

/* How many there were. */
static size_t skip_digits(reader *r)
{
    size_t start = r->at;
    while (peek(r) >= '0' && peek(r) <= '9')
        r->at++;
    return r->at - start;
}

/* False: it is beyond 64 bits.  Negative ones are built downwards, so that the least integer
 * fits. */
static bool convert_integer(str spelling, int64_t *out)
{
    bool negative = spelling.at[0] == '-';
    int64_t value = 0;
    for (size_t i = negative; i < spelling.n; i++) {
        int digit = spelling.at[i] - '0';
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, negative ? -digit : digit, &value))
            return false;
    }
    *out = value;
    return true;
}

/* By the grammar of RFC 8259: no leading zeros, no lone point, no plus sign.  The spelling is kept,
 * because whole numbers beyond 64 bits are numbers too. */
static mpk_status read_number(reader *r, json_value *out)
{
    size_t start = r->at;
    bool whole = true;
    if (peek(r) == '-')
        r->at++;
    /* no digit follows a leading zero, as in 01 */
    bool zero = peek(r) == '0';
    size_t digits = skip_digits(r);
    if (!digits || (zero && digits > 1))
        return fail_at(r, "a value");
    if (peek(r) == '.') {
        r->at++;
        whole = false;
        if (!skip_digits(r))
            return fail_at(r, "a digit");
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        r->at++;
        whole = false;
        if (peek(r) == '+' || peek(r) == '-')
            r->at++;
        if (!skip_digits(r))
            return fail_at(r, "a digit");
    }
    str spelling = {r->source.at + start, r->at - start};
    if (spelling.n > MAX_NUMBER_BYTES)
        return fail_at(r, "a shorter number");
    out->kind = JSON_KIND_NUMBER;
    out->text = spelling;
    out->is_integer = whole && convert_integer(spelling, &out->integer);
    out->number = (double)out->integer; /* as strtod rounds, and vocabularies are full of them */
    bool good = out->is_integer || (str_read_double(spelling, &out->number) &&
                                    (r->any_number || isfinite(out->number)));
    return good ? MPK_OK : fail_at(r, "a smaller number");
}

/* What is none of the three words must be a number. */
static mpk_status read_word(reader *r, json_value *out)
{
    static const struct {
        str word;
        json_kind kind;
        bool boolean;
    } words[] = {{{"null", 4}, JSON_KIND_NULL, false},
                 {{"true", 4}, JSON_KIND_BOOL, true},
                 {{"false", 5}, JSON_KIND_BOOL, false}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        str word = words[i].word;
        if (r->source.n - r->at >= word.n && memcmp(r->source.at + r->at, word.at, word.n) == 0) {
            out->kind = words[i].kind;
            out->boolean = words[i].boolean;
            r->at += word.n;
            return MPK_OK;
        }
    }
    return read_number(r, out);
}

/* ---- lists and objects ---- */

/* A member's name where it is sorted; the hash comes first, for most names differ in it. */
typedef struct name {
    uint64_t hash;
    str key;
} name;

static int compare_names(const void *a, const void *b)
{
    const name *x = a, *y = b;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    if (x->key.n != y->key.n)
        return x->key.n < y->key.n ? -1 : 1;
    return x->key.n ? memcmp(x->key.at, y->key.at, x->key.n) : 0;
}

/* An object with two members of one name is refused: parsers disagree about which one counts.
 * Sorting costs n log n whatever the names are, while names that are made to collide would make a
 * hash table quadratic, and the document may come from a stranger. */
static mpk_status check_names(reader *r, const json_value *items, size_t n)
{
    const arena_mark mark = arena_get_mark(&r->scratch);
    name *names;
    NEW(r->cx, &r->scratch, names, n);
    for (size_t i = 0; i < n; i++)
        names[i] = (name){hash_bytes(items[i].key.at, items[i].key.n, 0), items[i].key};
    qsort(names, n, sizeof *names, compare_names);
    for (size_t i = 1; i < n; i++)
        CHECK(r->cx, compare_names(&names[i - 1], &names[i]), MPK_EFORMAT,
              "not valid JSON: an object has two members \"%.*s\"", STR_SHOWN(names[i].key, 96));
    arena_reset(&r->scratch, mark);
    return MPK_OK;
}

/* The items up to the closing bracket; the opening one has been taken. */
static mpk_status read_items(reader *r, unsigned depth, json_value *out)
{
    bool object = out->kind == JSON_KIND_OBJECT;
    int close = object ? '}' : ']';
    /* items of all open brackets lie in one stack, those of this one from here on */
    const size_t first = r->items.n;
    skip_space(r);
    while (peek(r) != close) {
        json_value item = {0};
        if (r->items.n > first)
            TRY(take(r, ',', object ? "a comma or }" : "a comma or ]"));
        if (object) {
            skip_space(r);
            TRY(read_string(r, &item.key));
            TRY(take(r, ':', "a colon"));
        }
        TRY(read_value(r, depth + 1, &item));
        PUSH(r->cx, &r->scratch, &r->items, item);
        skip_space(r);
    }
    r->at++;
    const size_t n = r->items.n - first;
    json_value *copy;
    /* complete, so its items move to the result, without the room that the stack keeps for
     * growing */
    NEW(r->cx, r->a, copy, n);
    if (n)
        memcpy(copy, r->items.at + first, n * sizeof *copy);
    r->items.n = first;
    out->items = copy;
    out->n = n;
    return object ? check_names(r, copy, n) : MPK_OK;
}

/* The depth is bounded because the reader calls itself, and a file must not exhaust the stack. */
static mpk_status read_value(reader *r, unsigned depth, json_value *out)
{
    if (depth > MAX_DEPTH)
        return fail_at(r, "fewer levels of brackets");
    skip_space(r);
    int c = peek(r);
    if (c == '"') {
        out->kind = JSON_KIND_STRING;
        return read_string(r, &out->text);
    }
    if (c != '{' && c != '[')
        return read_word(r, out);
    r->at++;
    out->kind = c == '{' ? JSON_KIND_OBJECT : JSON_KIND_LIST;
    return read_items(r, depth, out);
}

static mpk_status read_document(reader *r, json_value *out)
{
    TRY(read_value(r, 0, out));
    skip_space(r);
    return r->at == r->source.n ? MPK_OK : fail_at(r, "the end of the document");
}

/* Texts without escapes point into `source`, which must therefore live as long as the result. */
static mpk_status parse(reader *r, const json_value **out)
{
    json_value *root;
    NEW(r->cx, r->a, root, 1);
    mpk_status status = read_document(r, root);
    arena_free(&r->scratch);
    TRY(status);
    *out = root;
    return MPK_OK;
}

mpk_status json_parse(mpk_context *cx, arena *a, str source, const json_value **out)
{
    reader r = {.cx = cx, .a = a, .source = source};
    return parse(&r, out);
}

mpk_status json_parse_any_number(mpk_context *cx, arena *a, str source, const json_value **out)
{
    reader r = {.cx = cx, .a = a, .source = source, .any_number = true};
    return parse(&r, out);
}

/* ---- access ---- */

bool json_is(const json_value *value, json_kind kind)
{
    return value && value->kind == kind;
}

/* Linear in the members; callers ask objects of a few. */
const json_value *json_get(const json_value *object, const char *key)
{
    return json_find(object, str_from(key));
}

/* null counts as absent: none of our callers tells them apart. */
const json_value *json_find(const json_value *object, str key)
{
    if (json_is(object, JSON_KIND_OBJECT))
        for (size_t i = 0; i < object->n; i++)
            if (str_equal(object->items[i].key, key))
                return object->items[i].kind == JSON_KIND_NULL ? NULL : &object->items[i];
    return NULL;
}

/* Unlike json_find it finds a null. */
static const json_value *find_member(const json_value *object, str key)
{
    for (size_t i = 0; i < object->n; i++)
        if (str_equal(object->items[i].key, key))
            return &object->items[i];
    return NULL;
}

/* The order of an object's members does not matter, that of a list's items does. */
bool json_equals(const json_value *a, const json_value *b)
{
    if (a->kind != b->kind || a->boolean != b->boolean || a->number != b->number ||
        a->integer != b->integer || a->n != b->n ||
        (a->kind == JSON_KIND_STRING && !str_equal(a->text, b->text)))
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const json_value *other =
            a->kind == JSON_KIND_OBJECT ? find_member(b, a->items[i].key) : &b->items[i];
        if (!other || !json_equals(&a->items[i], other))
            return false;
    }
    return true;
}

/* An absent key leaves *out as it is, so the caller sets the default before. */
mpk_status json_read_u32(mpk_context *cx, const json_value *object, const char *key, uint32_t *out)
{
    const json_value *value = json_get(object, key);
    if (!value)
        return MPK_OK;
    double number = value->number; /* some writers say 4096.0 */
    CHECK(cx,
          value->kind == JSON_KIND_NUMBER && number >= 0 && number <= UINT32_MAX &&
              number == (uint32_t)number,
          MPK_EFORMAT, "\"%s\" is not a whole number from 0 to %u", key, UINT32_MAX);
    *out = (uint32_t)number;
    return MPK_OK;
}

/* This and the following leave *out as it was if the key is absent. */
mpk_status json_read_double(mpk_context *cx, const json_value *object, const char *key, double *out)
{
    const json_value *value = json_get(object, key);
    CHECK(cx, !value || value->kind == JSON_KIND_NUMBER, MPK_EFORMAT, "\"%s\" is not a number",
          key);
    if (value)
        *out = value->number;
    return MPK_OK;
}

mpk_status json_read_bool(mpk_context *cx, const json_value *object, const char *key, bool *out)
{
    const json_value *value = json_get(object, key);
    CHECK(cx, !value || value->kind == JSON_KIND_BOOL, MPK_EFORMAT,
          "\"%s\" is neither true nor false", key);
    if (value)
        *out = value->boolean;
    return MPK_OK;
}

/* *out points into the document. */
mpk_status json_read_str(mpk_context *cx, const json_value *object, const char *key, str *out)
{
    const json_value *value = json_get(object, key);
    CHECK(cx, !value || value->kind == JSON_KIND_STRING, MPK_EFORMAT, "\"%s\" is not a string",
          key);
    if (value)
        *out = value->text;
    return MPK_OK;
}

/* ---- writing ---- */

/* The line ends of Unicode, U+0085, U+2028 and U+2029, or 0.  JSON allows them in a string, but
 * readers that take a stream line by line (Python's str.splitlines, httpx's iter_lines) break
 * there. */
static unsigned line_end(const char *at, size_t size)
{
    if (size == 2 && !memcmp(at, "\xc2\x85", 2))
        return 0x85;
    if (size == 3 && !memcmp(at, "\xe2\x80", 2) && (at[2] == '\xa8' || at[2] == '\xa9'))
        return at[2] == '\xa8' ? 0x2028 : 0x2029;
    return 0;
}

/* Control characters, DEL and the line ends that Unicode adds are escaped; a byte that is no UTF-8
 * becomes U+FFFD, so that the result is valid JSON whatever the text was. */
void json_write_str(text *t, str s)
{
    static const char letters[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
    text_add(t, "\"", 1);
    for (size_t i = 0; i < s.n;) {
        unsigned char c = (unsigned char)s.at[i];
        const char *meaning = c ? strchr(meanings, c) : NULL;
        size_t size = utf8_character((const unsigned char *)s.at + i, s.n - i);
        if (meaning)
            text_print(t, "\\%c", letters[meaning - meanings]);
        else if (c < 0x20 || c == 0x7f)
            text_print(t, "\\u%04x", c);
        else if (line_end(s.at + i, size))
            text_print(t, "\\u%04x", line_end(s.at + i, size));
        else if (size)
            text_add(t, s.at + i, size);
        else
            text_add(t, "\xef\xbf\xbd", 3);
        i += size ? size : 1;
    }
    text_add(t, "\"", 1);
}

/* Numbers as they were spelled, so that what is read and written again is the same. */
static void write_value(text *t, const json_value *v, unsigned indent, unsigned depth)
{
    static const char *const words[] = {"false", "true", "null"};
    bool object = v->kind == JSON_KIND_OBJECT;
    if (v->kind == JSON_KIND_STRING)
        json_write_str(t, v->text);
    else if (v->kind == JSON_KIND_NUMBER)
        text_add(t, v->text.at, v->text.n);
    else if (v->kind != JSON_KIND_LIST && !object)
        text_print(t, "%s", words[v->kind == JSON_KIND_NULL ? 2 : v->boolean]);
    else {
        text_add(t, object ? "{" : "[", 1);
        for (size_t i = 0; i < v->n; i++) {
            text_print(t, "%s", i ? "," : "");
            if (indent)
                text_print(t, "\n%*s", (int)(indent * (depth + 1)), "");
            if (object) {
                json_write_str(t, v->items[i].key);
                text_print(t, indent ? ": " : ":");
            }
            write_value(t, &v->items[i], indent, depth + 1);
        }
        if (indent && v->n)
            text_print(t, "\n%*s", (int)(indent * depth), "");
        text_add(t, object ? "}" : "]", 1);
    }
}

void json_write(text *t, const json_value *value, unsigned indent)
{
    write_value(t, value, indent, 0);
}
