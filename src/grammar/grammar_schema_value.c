/* grammar_schema_value.c - JSON values of any form, and literals; each form is a rule that is made
 * once.
 *
 * Rules of the reader (any_value, any_string ...) are numbers; 0 means not made yet, which is not
 * a clash because rule 0 is the whole. */
#include <stdlib.h>

#include "grammar/grammar_schema.h"

/* A character of a string; a surrogate only together with its other half. */
#define CHAR                                                            \
    "[^\"\\\\\\x00-\\x1f]|\\\\(?:[\"\\\\/"                              \
    "bfnrt]|u(?:[0-9A-Ca-cEFef][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2}|" \
    "[Dd][89ABab][0-9A-Fa-f]{2}\\\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}))"
enum { MOST_NAME_CHARS = 200 };
#define MOST_EXACT 9007199254740992.0 /* 2^53 */

mpk_status schema_text(schema_reader *r, const char *bytes, const node **out)
{
    return node_bytes(r->k, str_from(bytes), out);
}

/* parts end with NULL. */
mpk_status schema_join(schema_reader *r, const node *const *parts, const node **out)
{
    node *seq;
    TRY(node_new(r->k, NODE_SEQ, &seq));
    for (; *parts; parts++)
        TRY(node_add(r->k, seq, *parts));
    *out = seq;
    return MPK_OK;
}

/* The rule of a regular expression, made once. */
static mpk_status pattern_rule(schema_reader *r, uint32_t *number, const char *name,
                               const char *source, const node **out)
{
    if (!*number) {
        const node *body;
        bool in_string = r->k->in_string;
        r->k->in_string = false;
        TRY(rule_new(r->k, str_from(name), number));
        TRY(regex_parse_node(r->k, str_from(source), true, &body));
        r->k->rules.at[*number].body = body;
        r->k->in_string = in_string;
    }
    return node_rule(r->k, *number, out);
}

/* What may stand between tokens of JSON: nothing, a blank, or a line break with at most 100
 * blanks and tabs, so that white space always ends. */
mpk_status schema_blank(schema_reader *r, const node **out)
{
    return pattern_rule(r, &r->blank, "white space", "(?: |\\n[ \\t]{0,100})?", out);
}
mpk_status schema_any_string(schema_reader *r, const node **out)
{
    return pattern_rule(r, &r->any_string, "a string", "\"(?:" CHAR ")*\"", out);
}
mpk_status schema_any_char(schema_reader *r, const node **out)
{
    return pattern_rule(r, &r->any_char, "a character", CHAR, out);
}
mpk_status schema_any_number(schema_reader *r, const node **out)
{
    return pattern_rule(r, &r->any_number, "a number",
                        "-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?", out);
}
mpk_status schema_integer(schema_reader *r, const node **out)
{
    return pattern_rule(r, &r->integer, "an integer", "-?(?:0|[1-9][0-9]*)", out);
}

/* open (item (, item)*)? close, with blanks. */
static mpk_status any_list(schema_reader *r, const char *open, const char *close, const node *item,
                           const node **out)
{
    const node *blank, *comma, *first, *last, *more;
    TRY(schema_blank(r, &blank));
    TRY(schema_text(r, open, &first));
    TRY(schema_text(r, close, &last));
    TRY(schema_text(r, ",", &comma));
    TRY(schema_join(r, (const node *[]){comma, blank, item, NULL}, &more));
    TRY(node_repeat(r->k, more, 0, GRAMMAR_FOREVER, &more));
    TRY(node_pair(r->k, NODE_SEQ, item, more, &more));
    TRY(node_repeat(r->k, more, 0, 1, &more));
    return schema_join(r, (const node *[]){first, blank, more, blank, last, NULL}, out);
}

/* The rule gets its number before its body is made, because the body refers to it. */
mpk_status schema_any_object(schema_reader *r, const node **out)
{
    if (!r->any_object) {
        const node *name, *value, *colon, *blank, *member, *body;
        TRY(rule_new(r->k, STR("an object"), &r->any_object));
        TRY(schema_any_string(r, &name));
        TRY(schema_any(r, &value));
        TRY(schema_text(r, ":", &colon));
        TRY(schema_blank(r, &blank));
        TRY(schema_join(r, (const node *[]){name, colon, blank, value, NULL}, &member));
        TRY(any_list(r, "{", "}", member, &body));
        r->k->rules.at[r->any_object].body = body;
    }
    return node_rule(r->k, r->any_object, out);
}

/* Rule 0 is the whole grammar, so 0 means that the rule is not made yet. The number is set before
 * the body is: values contain arrays. */
mpk_status schema_any_array(schema_reader *r, const node **out)
{
    if (!r->any_array) {
        const node *value, *body;
        TRY(rule_new(r->k, STR("an array"), &r->any_array));
        TRY(schema_any(r, &value));
        TRY(any_list(r, "[", "]", value, &body));
        r->k->rules.at[r->any_array].body = body;
    }
    return node_rule(r->k, r->any_array, out);
}

/* A value contains values, so its rule refers to itself: the body is set before it is complete. */
mpk_status schema_any(schema_reader *r, const node **out)
{
    static const char *const words[] = {"true", "false", "null"};
    static mpk_status (*const forms[])(schema_reader *, const node **) = {
        schema_any_object, schema_any_array, schema_any_string, schema_any_number};
    if (!r->any_value) {
        node *alt;
        const node *child = NULL;
        TRY(rule_new(r->k, STR("any value"), &r->any_value));
        TRY(node_new(r->k, NODE_ALT, &alt));
        r->k->rules.at[r->any_value].body = alt;
        for (uint32_t i = 0; i < 4; i++) {
            TRY(forms[i](r, &child));
            TRY(node_add(r->k, alt, child));
        }
        for (uint32_t i = 0; i < 3; i++) {
            TRY(schema_text(r, words[i], &child));
            TRY(node_add(r->k, alt, child));
        }
    }
    return node_rule(r->k, r->any_value, out);
}

mpk_status json_object_node(maker *k, const node **out)
{
    schema_reader r = {.k = k};
    return schema_any_object(&r, out);
}

/* ---- literals ---- */

/* A whole number is written as an integer; beyond MOST_EXACT its spelling is kept. */
void schema_spell(text *t, const json_value *value)
{
    bool whole = value->kind == JSON_KIND_NUMBER && !value->is_integer &&
                 value->number >= -MOST_EXACT && value->number <= MOST_EXACT &&
                 value->number == (double)(int64_t)value->number;
    if (whole) /* 2.0 is the integer 2 */
        text_print(t, "%lld", (long long)value->number);
    else
        json_write(t, value, 0);
}

/* The spelling is that of schema_spell, without white space: a literal has one spelling. */
static mpk_status scalar(schema_reader *r, const json_value *value, const node **out)
{
    text spelled = {0};
    schema_spell(&spelled, value);
    char *copy = spelled.failed ? NULL : arena_copy(r->k->a, spelled.at, spelled.n);
    size_t n = spelled.n;
    text_free(&spelled);
    CHECK(r->k->cx, copy, MPK_ENOMEM, "out of memory for a literal");
    return node_bytes(r->k, (str){copy, n}, out);
}

/* A value in its spelling, with free white space where JSON allows it. [1,2] and [ 1, 2 ] both fit
 * {"const": [1, 2]}; the order of members is that of the schema. */
mpk_status schema_literal(schema_reader *r, const json_value *value, const node **out)
{
    bool object = value->kind == JSON_KIND_OBJECT;
    const node *blank, *child;
    node *seq;
    if (value->kind != JSON_KIND_LIST && !object)
        return scalar(r, value, out);
    TRY(schema_blank(r, &blank));
    TRY(node_new(r->k, NODE_SEQ, &seq));
    TRY(schema_text(r, object ? "{" : "[", &child));
    TRY(node_add(r->k, seq, child));
    TRY(node_add(r->k, seq, blank));
    for (size_t i = 0; i < value->n; i++) {
        const json_value name = {.kind = JSON_KIND_STRING, .text = value->items[i].key};
        const node *head, *colon, *member;
        TRY(schema_text(r, i ? "," : "", &head));
        TRY(schema_literal(r, &value->items[i], &child));
        TRY(scalar(r, &name, &member));
        TRY(schema_text(r, ":", &colon));
        TRY(node_add(r->k, seq, head));
        if (i)
            TRY(node_add(r->k, seq, blank));
        if (object)
            TRY(schema_join(r, (const node *[]){member, colon, blank, child, NULL}, &child));
        TRY(node_add(r->k, seq, child));
    }
    TRY(schema_text(r, object ? "}" : "]", &child));
    TRY(node_add(r->k, seq, blank));
    TRY(node_add(r->k, seq, child));
    *out = seq;
    return MPK_OK;
}

/* ---- strings that are not in a list ---- */

typedef struct others {
    schema_reader *r;
    const node *rest; /* any characters, and the closing quote */
} others;

/* Of sorted names that are equal up to byte `at`: the continuations that make none of them. Names
 * "ab" and "ac": at 0 anything but "a" leads to free text, at 1 anything but "b" and "c" or the
 * end, at 2 anything but the end. So no listed name can be made. */
static mpk_status other_from(others *o, const str *names, size_t n, size_t at, uint32_t depth,
                             const node **out)
{
    maker *k = o->r->k;
    char_set used = {0}, free_chars;
    const node *child = NULL, *c = NULL;
    node *alt;
    CHECK(
        k->cx, depth < MOST_NAME_CHARS, MPK_EUNSUPPORTED,
        "a property name of more than %d characters beside additional properties is not supported",
        MOST_NAME_CHARS);
    TRY(node_new(k, NODE_ALT, &alt));
    bool ends = n && names[0].n == at;
    if (!ends) {
        TRY(schema_text(o->r, "\"", &child));
        TRY(node_add(k, alt, child));
    }
    for (size_t i = 0, end; i < n; i = end) {
        size_t next = at;
        uint32_t one, other;
        end = i + 1;
        if (names[i].n == at)
            continue;
        TRY(chars_read(k, names[i], &next, &one));
        for (size_t from = at; end < n; end++, from = at) {
            TRY(chars_read(k, names[end], &from, &other));
            if (other != one)
                break;
        }
        TRY(chars_add(k, &used, one, one));
        TRY(other_from(o, names + i, end - i, next, depth + 1, &child));
        TRY(node_range(k, one, one, &c));
        TRY(node_pair(k, NODE_SEQ, c, child, &child));
        TRY(node_add(k, alt, child));
    }
    chars_settle(&used);
    TRY(chars_invert(k, &used, &free_chars));
    TRY(node_chars(k, &free_chars, &c));
    TRY(node_pair(k, NODE_SEQ, c, o->rest, &child));
    TRY(node_add(k, alt, child));
    *out = alt;
    return MPK_OK;
}

/* Any string except those given: their common beginnings are followed letter by letter, and at
 * each point any other continuation is free. */
mpk_status schema_other_string(schema_reader *r, const place *at, str *texts, size_t n,
                               const node **out)
{
    others o = {.r = r};
    const node *quote, *body;
    uint32_t rest = 0;
    (void)at;
    if (!n)
        return schema_any_string(r, out);
    qsort(texts, n, sizeof *texts, texts_compare);
    TRY(pattern_rule(r, &rest, "the rest of a string", "(?:" CHAR ")*\"", &o.rest));
    TRY(schema_text(r, "\"", &quote));
    r->k->in_string = true;
    mpk_status status = other_from(&o, texts, n, 0, 0, &body);
    r->k->in_string = false;
    TRY(status);
    return node_pair(r->k, NODE_SEQ, quote, body, out);
}
