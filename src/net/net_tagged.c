/* net_tagged.c - calls of tools whose arguments stand in tags of their own.
 *
 * Reading: tags -> {"a":1,"b":"text"}.  Writing: a schema -> a format for structural tags that
 * has a part for each parameter, in the order of `properties`.
 *
 * Called by net_parts.c and net_calls.c.  Cost: linear in the text.
 */
#include <stdio.h>

#include "net/net_tagged.h"

#define FUNCTION "<function="
#define END_FUNCTION "</function>"
#define PARAMETER "<parameter="
#define END_PARAMETER "</parameter>"

/* ---- what a schema allows ---- */

/* KIND_TEXT: a string; its value is not written as JSON. */
enum { KIND_TEXT = 1, KIND_NULL = 2, KIND_OTHER = 4, KIND_ANY = 7 };
/* Schemas come from strangers, and options may be the schema that they belong to: so the levels are
 * bounded, and the options that are looked at. */
enum {
    MOST_DEPTH = 16,
    MOST_OPTIONS = 1000,          /* for a value that is read */
    MOST_OPTIONS_OF_ALL = 100000, /* for a form that is written */
    MOST_BYTES = 1 << 20,         /* of a form: a longer one is refused, so no more is written */
    MOST_COMPARED = 10000000,     /* parameters with the names of those that must be there */
};

static const char *const unions[] = {"anyOf", "oneOf", "allOf"};
enum { UNIONS = sizeof unions / sizeof *unions };

/* The schema to which "#/a/b" points; NULL: none. */
static const json_value *follow(const json_value *root, str path)
{
    const json_value *at = root;
    if (!path.n || *path.at != '#')
        return NULL;
    for (size_t i = 1; i < path.n && at;) {
        size_t end = ++i;
        while (end < path.n && path.at[end] != '/')
            end++;
        at = json_find(at, (str){path.at + i, end - i});
        i = end;
    }
    return at;
}

/* The schema itself, or that to which its $ref points. */
static const json_value *target(const json_value *root, const json_value *schema)
{
    const json_value *ref;
    for (unsigned i = 0; i < MOST_DEPTH; i++) {
        ref = json_get(schema, "$ref");
        if (!json_is(ref, JSON_KIND_STRING))
            return schema;
        schema = follow(root, ref->text);
    }
    return NULL;
}

static unsigned kind_of_type(const json_value *type)
{
    if (!json_is(type, JSON_KIND_STRING))
        return 0;
    if (str_is(type->text, "string"))
        return KIND_TEXT;
    return str_is(type->text, "null") ? KIND_NULL : KIND_OTHER;
}

static unsigned kind_of_value(const json_value *v)
{
    if (v->kind == JSON_KIND_STRING)
        return KIND_TEXT;
    return v->kind == JSON_KIND_NULL ? KIND_NULL : KIND_OTHER;
}

static unsigned kinds_of(const json_value *root, const json_value *schema, unsigned depth,
                         unsigned *left);

/* Of the options of anyOf and the like, all together; *left more are looked at. */
static unsigned kinds_of_options(const json_value *root, const json_value *schema, unsigned depth,
                                 unsigned *left)
{
    unsigned kinds = 0;
    for (size_t u = 0; u < UNIONS; u++) {
        const json_value *options = json_get(schema, unions[u]);
        for (size_t i = 0; json_is(options, JSON_KIND_LIST) && i < options->n; i++) {
            if (!*left || kinds == KIND_ANY)
                return kinds;
            --*left;
            kinds |= kinds_of(root, &options->items[i], depth + 1, left);
        }
    }
    return kinds;
}

/* Bits KIND_*; 0: the schema does not say. */
static unsigned kinds_of(const json_value *root, const json_value *schema, unsigned depth,
                         unsigned *left)
{
    schema = target(root, schema);
    const json_value *type = json_get(schema, "type"), *listed = json_get(schema, "enum");
    const json_value *only = json_get(schema, "const");
    unsigned kinds = kind_of_type(type);
    for (size_t i = 0; json_is(type, JSON_KIND_LIST) && i < type->n; i++)
        kinds |= kind_of_type(&type->items[i]);
    for (size_t i = 0; !kinds && json_is(listed, JSON_KIND_LIST) && i < listed->n; i++)
        kinds |= kind_of_value(&listed->items[i]);
    if (!kinds && only)
        kinds = kind_of_value(only);
    return kinds || depth >= MOST_DEPTH ? kinds : kinds_of_options(root, schema, depth, left);
}

/* ---- reading ---- */

/* Split s at the first mark: the text before it, and *s after it.  False: there is no mark. */
static bool cut(str *s, str mark, str *before)
{
    const char *at = s->n >= mark.n ? memmem(s->at, s->n, mark.at, mark.n) : NULL;
    if (!at)
        return false;
    *before = (str){s->at, (size_t)(at - s->at)};
    *s = (str){at + mark.n, s->n - before->n - mark.n};
    return true;
}

static str skip_space(str s)
{
    while (s.n && memchr(" \t\r\n", *s.at, 4))
        s = (str){s.at + 1, s.n - 1};
    return s;
}

static str trim(str s)
{
    s = skip_space(s);
    while (s.n && memchr(" \t\r\n", s.at[s.n - 1], 4))
        s.n--;
    return s;
}

bool net_tagged_begins(str block)
{
    return str_begins(skip_space(block), STR(FUNCTION));
}

/* The text of a value, up to its end or, if the model forgot that, to the next parameter. */
static str take_value(str *rest)
{
    str after = *rest, value = *rest;
    const bool closed = cut(&after, STR(END_PARAMETER), &value);
    str next = value, before;
    if (cut(&next, STR("\n" PARAMETER), &before) && !closed) {
        *rest = (str){rest->at + before.n, rest->n - before.n};
        value = before;
    } else {
        *rest = closed ? after : (str){rest->at + rest->n, 0};
    }
    if (value.n && *value.at == '\n')
        value = (str){value.at + 1, value.n - 1};
    if (value.n && value.at[value.n - 1] == '\n')
        value.n--;
    return value;
}

/* Is the text one of the strings that the schema lists? */
static bool is_listed(const json_value *schema, str value)
{
    const json_value *listed = json_get(schema, "enum");
    for (size_t i = 0; json_is(listed, JSON_KIND_LIST) && i < listed->n; i++)
        if (listed->items[i].kind == JSON_KIND_STRING && str_equal(listed->items[i].text, value))
            return true;
    return false;
}

/* Add a value that is no string: as JSON, or as Python spells its constants; what is neither is a
 * string all the same.  MPK_ENOMEM. */
static mpk_status add_value(mpk_context *cx, arena *a, str value, text *to)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    const json_value *v = NULL;
    const str bare = trim(value);
    char *copy = arena_copy(a, bare.n ? bare.at : "", bare.n);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory for a call of a tool");
    mpk_status status = json_parse_any_number(cx, a, (str){copy, bare.n}, &v);
    if (status == MPK_ENOMEM)
        return status;
    if (status == MPK_OK) {
        json_write(to, v, 0);
        return MPK_OK;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (str_is(bare, words[i][0])) {
            text_print(to, "%s", words[i][1]);
            return MPK_OK;
        }
    json_write_str(to, value);
    return MPK_OK;
}

static mpk_status add_argument(mpk_context *cx, arena *a, const json_value *parameters, str name,
                               str value, text *to)
{
    const json_value *schema = json_find(json_get(parameters, "properties"), name);
    unsigned left = MOST_OPTIONS;
    const unsigned kinds = kinds_of(parameters, schema, 0, &left);
    text_print(to, to->n > 1 ? "," : "");
    json_write_str(to, name);
    text_print(to, ":");
    schema = target(parameters, schema);
    const bool listed = is_listed(schema, value);
    if (!listed && (kinds & KIND_NULL) && str_is(value, "null"))
        text_print(to, "null");
    else if (listed || ((kinds & KIND_TEXT) && !json_get(schema, "enum")))
        json_write_str(to, value);
    else
        return add_value(cx, a, value, to);
    return MPK_OK;
}

/* The schema of the tool's parameters; NULL: it is not known. */
static const json_value *find_parameters(const json_value *tools, str name)
{
    for (size_t i = 0; i < tools->n; i++) {
        const json_value *f = json_get(&tools->items[i], "function"), *known = json_get(f, "name");
        if (json_is(known, JSON_KIND_STRING) && str_equal(known->text, name))
            return json_get(f, "parameters");
    }
    return NULL;
}

mpk_status net_tagged_read(mpk_context *cx, arena *a, const json_value *tools, str *block,
                           str *name, text *arguments, bool *found)
{
    str before, body, parameter;
    *found = false;
    if (!cut(block, STR(FUNCTION), &before) || !cut(block, STR(">"), name))
        return MPK_OK;
    *name = trim(*name);
    if (!cut(block, STR(END_FUNCTION), &body)) {
        body = *block;
        *block = (str){body.at + body.n, 0};
    }
    *found = name->n > 0;
    const json_value *parameters = find_parameters(tools, *name);
    text_print(arguments, "{");
    while (cut(&body, STR(PARAMETER), &before) && cut(&body, STR(">"), &parameter))
        TRY(add_argument(cx, a, parameters, trim(parameter), take_value(&body), arguments));
    text_print(arguments, "}");
    return MPK_OK;
}

/* ---- writing ---- */

/* What is written for a parameter: its root schema, whether values stand on lines of their own, and
 * how many more options may be looked at. */
typedef struct writer {
    const json_value *root;
    bool lines;
    unsigned *left;
    text *to;
} writer;

static void write_words(const writer *w, const char *words)
{
    json_write_str(w->to, str_from(words));
}

/* A tag of the content between these two calls; free: its content ends with the mark alone. */
static void open_tag(const writer *w)
{
    text_print(w->to, "{\"type\":\"tag\",\"begin\":\"\",\"content\":");
}

static void close_tag(const writer *w, bool free)
{
    text_print(w->to, ",\"end\":");
    write_words(w, w->lines && !free ? "\n" END_PARAMETER : END_PARAMETER);
    text_print(w->to, "}");
}

/* A value as JSON; what it may refer to comes along. */
static void write_json(const writer *w, const json_value *schema)
{
    static const char *const defs[] = {"$defs", "definitions"};
    const bool is_object = json_is(schema, JSON_KIND_OBJECT);
    bool any = false;
    open_tag(w);
    text_print(w->to, "{\"type\":\"json_schema\",\"json_schema\":{");
    for (size_t i = 0; is_object && i < schema->n; i++) {
        text_print(w->to, any ? "," : "");
        json_write_str(w->to, schema->items[i].key);
        text_print(w->to, ":");
        json_write(w->to, &schema->items[i], 0);
        any = true;
    }
    for (unsigned i = 0; i < 2; i++)
        if (json_get(w->root, defs[i]) && !json_get(schema, defs[i])) {
            text_print(w->to, "%s\"%s\":", any ? "," : "", defs[i]);
            json_write(w->to, json_get(w->root, defs[i]), 0);
            any = true;
        }
    text_print(w->to, "}}");
    close_tag(w, false);
}

static void write_choice(const writer *w, const json_value *values, size_t n)
{
    open_tag(w);
    text_print(w->to, "{\"type\":\"choice\",\"choices\":[");
    for (size_t i = 0; i < n; i++) {
        text spelled = {0};
        text_print(w->to, i ? "," : "");
        if (values[i].kind == JSON_KIND_STRING)
            text_add(&spelled, values[i].text.at, values[i].text.n);
        else
            json_write(&spelled, &values[i], 0);
        json_write_str(w->to, text_str(&spelled));
        w->to->failed |= spelled.failed;
        text_free(&spelled);
    }
    text_print(w->to, "]}");
    close_tag(w, false);
}

/* A string that matches.  A pattern without anchors may match a part of it. */
static void write_pattern(const writer *w, str pattern)
{
    const bool anchored =
        pattern.n && (memchr(pattern.at, '^', pattern.n) || memchr(pattern.at, '$', pattern.n));
    text whole = {0};
    text_print(&whole, anchored ? "" : "[^<]*(?:");
    text_add(&whole, pattern.at, pattern.n);
    text_print(&whole, anchored ? "" : ")[^<]*");
    open_tag(w);
    text_print(w->to, "{\"type\":\"regex\",\"pattern\":");
    json_write_str(w->to, text_str(&whole));
    text_print(w->to, "}");
    close_tag(w, false);
    w->to->failed |= whole.failed;
    text_free(&whole);
}

/* A string as it stands, with the pattern or the lengths of its schema. */
static void write_text(const writer *w, const json_value *schema)
{
    const json_value *pattern = json_get(schema, "pattern");
    const json_value *min = json_get(schema, "minLength"), *max = json_get(schema, "maxLength");
    char counted[64], most[24] = "";
    if (json_is(pattern, JSON_KIND_STRING)) {
        write_pattern(w, pattern->text);
    } else if (min || max) {
        if (json_is(max, JSON_KIND_NUMBER))
            snprintf(most, sizeof most, "%lld", (long long)max->integer);
        snprintf(counted, sizeof counted, "^[^<]{%lld,%s}$",
                 json_is(min, JSON_KIND_NUMBER) ? (long long)min->integer : 0, most);
        write_pattern(w, str_from(counted));
    } else {
        open_tag(w);
        text_print(w->to, "{\"type\":\"any_text\"}");
        close_tag(w, true);
    }
}

/* The value of a parameter and the mark that ends it. */
static void write_value(const writer *w, const json_value *schema, unsigned depth)
{
    const json_value *at = target(w->root, schema);
    const json_value *listed = json_get(at, "enum"), *only = json_get(at, "const");
    const unsigned kinds = kinds_of(w->root, at, 0, w->left);
    const json_value *options = json_get(at, "anyOf");
    if (!options)
        options = json_get(at, "oneOf");
    if (w->to->n > MOST_BYTES)
        return;
    if (!(kinds & KIND_TEXT)) {
        write_json(w, schema);
    } else if (json_is(listed, JSON_KIND_LIST) && listed->n) {
        write_choice(w, listed->items, listed->n);
    } else if (only) {
        write_choice(w, only, 1);
    } else if (json_is(options, JSON_KIND_LIST) && options->n && depth < MOST_DEPTH) {
        text_print(w->to, "{\"type\":\"or\",\"elements\":[");
        for (size_t i = 0; i < options->n; i++) {
            text_print(w->to, i ? "," : "");
            write_value(w, &options->items[i], depth + 1);
        }
        text_print(w->to, "]}");
    } else {
        write_text(w, at);
    }
}

/* One parameter, or nothing if it may be left out. */
static void write_parameter(const writer *w, str name, const json_value *schema, bool required)
{
    text begin = {0};
    text_print(&begin, PARAMETER);
    text_add(&begin, name.at, name.n);
    text_print(&begin, w->lines ? ">\n" : ">");
    text_print(w->to, required ? "," : ",{\"type\":\"or\",\"elements\":[");
    text_print(w->to, "{\"type\":\"sequence\",\"elements\":[{\"type\":\"const_string\",\"value\":");
    json_write_str(w->to, text_str(&begin));
    text_print(w->to, "},");
    write_value(w, schema, 0);
    text_print(w->to, ",{\"type\":\"const_string\",\"value\":\"\\n\"}]}");
    text_print(w->to, required ? "" : ",{\"type\":\"const_string\",\"value\":\"\"}]}");
    w->to->failed |= begin.failed;
    text_free(&begin);
}

static bool is_required(const json_value *required, str name)
{
    for (size_t i = 0; json_is(required, JSON_KIND_LIST) && i < required->n; i++)
        if (required->items[i].kind == JSON_KIND_STRING && str_equal(required->items[i].text, name))
            return true;
    return false;
}

/* By the keywords with which parameters depend on each other, or are described elsewhere. */
bool net_tagged_can_hold(const json_value *parameters)
{
    static const char *const others[] = {"$ref",
                                         "anyOf",
                                         "oneOf",
                                         "allOf",
                                         "not",
                                         "if",
                                         "dependentRequired",
                                         "dependentSchemas",
                                         "dependencies",
                                         "patternProperties",
                                         "propertyNames",
                                         "minProperties",
                                         "maxProperties",
                                         "enum",
                                         "const"};
    const json_value *list = json_get(parameters, "properties"),
                     *required = json_get(parameters, "required");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (json_get(parameters, others[i]))
            return false;
    return !list || !required || list->n * (uint64_t)required->n <= MOST_COMPARED;
}

void net_tagged_write(const json_value *parameters, bool lines, text *to)
{
    unsigned left = MOST_OPTIONS_OF_ALL;
    const writer w = {parameters, lines, &left, to};
    const json_value *list = json_get(parameters, "properties");
    const json_value *required = json_get(parameters, "required");
    text_print(to,
               "{\"type\":\"sequence\",\"elements\":[{\"type\":\"const_string\",\"value\":\"\"}");
    for (size_t i = 0; json_is(list, JSON_KIND_OBJECT) && i < list->n; i++)
        write_parameter(&w, list->items[i].key, &list->items[i],
                        is_required(required, list->items[i].key));
    for (size_t i = 0; json_is(required, JSON_KIND_LIST) && i < required->n; i++)
        if (required->items[i].kind == JSON_KIND_STRING &&
            !json_find(list, required->items[i].text))
            write_parameter(&w, required->items[i].text, NULL, true);
    text_print(to, "]}");
}
