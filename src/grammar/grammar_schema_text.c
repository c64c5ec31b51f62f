/* grammar_schema_text.c - strings of a schema: length, pattern, format.
 *
 * Lengths count characters, as JSON schemas do: an escape such as \n or \u00e9 is one.  Formats
 * and patterns are read by grammar_regex.c with in_string set, so that characters which JSON
 * escapes appear so. */
#include "grammar/grammar_schema.h"

#define DATE                                                                                       \
    "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][" \
    "0-9]|3[01])|(?:0["                                                                            \
    "469]|11)-(?:0[1-9]|[12][0-9]|30)|"                                                            \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                      \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[" \
    "0-5][0-9])"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
#define HOST LABEL "(?:\\." LABEL "){0,2}"
#define GROUP "[0-9A-Fa-f]{1,4}"
#define HOURS "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
#define DURATION                                                                           \
    "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:" HOURS \
    ")?|" HOURS ")"

/* What each format allows: strings of the format, in the spellings that all validators take. */
static const struct format {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", DURATION},
    {"uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
    {"ipv4", BYTE "(?:\\." BYTE "){3}"},
    {"ipv6", "(?:" GROUP ":){7}" GROUP "|::|(?:" GROUP ":){1,7}:|:(?::" GROUP "){1,7}|(?:" GROUP
             ":){6}:" GROUP},
    {"hostname", HOST},
    {"email", "[0-9A-Za-z_+-]+(?:\\.[0-9A-Za-z_+-]+){0,4}@" HOST},
    {"uri",
     "[A-Za-z][0-9A-Za-z+.-]*://" HOST "(?::[1-9][0-9]{0,3})?(?:/[0-9A-Za-z._~!$&'()*+,;=:@-]*)*"},
};

/* NULL: no format, or one that is only an annotation here. */
static const char *find_format(const json_value *name)
{
    for (size_t i = 0; json_is(name, JSON_KIND_STRING) && i < sizeof formats / sizeof *formats; i++)
        if (str_is(name->text, formats[i].name))
            return formats[i].pattern;
    return NULL;
}

static mpk_status add_quotes(schema_reader *r, const node *inside, const node **out)
{
    const node *quote;
    TRY(schema_text(r, "\"", &quote));
    return schema_join(r, (const node *[]){quote, inside, quote, NULL}, out);
}

/* in_string makes every character of the pattern appear as JSON spells it. */
static mpk_status matching(schema_reader *r, const place *at, str pattern, bool whole,
                           const node **out)
{
    const node *inside;
    r->k->in_string = true;
    mpk_status status = regex_parse_node(r->k, pattern, whole, &inside);
    r->k->in_string = false;
    if (status != MPK_OK)
        return status_note(r->k->cx, status, "reading the pattern at %s", schema_where(r, at));
    return add_quotes(r, inside, out);
}

/* Two of pattern, format and length would need an intersection of automata, and are refused.  A
 * length with min above max allows nothing. A length counts characters as JSON shows them: an
 * escape is one. */
mpk_status schema_string(schema_reader *r, const place *at, const json_value *schema,
                         const node **out)
{
    const json_value *pattern = json_get(schema, "pattern");
    const char *format = find_format(json_get(schema, "format"));
    uint32_t min = 0, max = GRAMMAR_FOREVER;
    const node *one;
    TRY(schema_count(r, at, schema, "minLength", &min));
    TRY(schema_count(r, at, schema, "maxLength", &max));
    bool counted = min || max != GRAMMAR_FOREVER;
    CHECK(r->k->cx, !pattern || pattern->kind == JSON_KIND_STRING, MPK_EFORMAT,
          "pattern at %s is not a text", schema_where(r, at));
    if ((pattern != NULL) + (format != NULL) + counted > 1)
        return schema_refuse(r, at, "more than one of pattern, format and a length");
    if (pattern)
        return matching(r, at, pattern->text, false, out);
    if (format)
        return matching(r, at, str_from(format), true, out);
    if (!counted)
        return schema_any_string(r, out);
    TRY(schema_any_char(r, &one));
    if (min > max) {
        node *never;
        TRY(node_new(r->k, NODE_NEVER, &never));
        *out = never;
        return MPK_OK;
    }
    TRY(node_repeat(r->k, one, min, max, &one));
    return add_quotes(r, one, out);
}
