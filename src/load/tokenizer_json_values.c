/* tokenizer_json_values.c - single values of tokenizer.json, checked as they are taken.
 *
 * Input: objects of the parsed document; output: their values, or an error that names the key and
 * the type of the object around it.  Called by tokenizer_json.c and tokenizer_json_steps.c.
 */
#include "load/tokenizer_json.h"

enum { MAX_DEPTH = 8, MAX_COUNT = 1 << 20 };

/* "(none)" is the type of no part, so callers that compare refuse it by this name. */
str doc_type(const json_value *object)
{
    const json_value *type = json_get(object, "type");
    return json_is(type, JSON_KIND_STRING) ? type->text : STR("(none)");
}

bool doc_is_text(const json_value *v)
{
    return json_is(v, JSON_KIND_STRING);
}

/* Floats are refused, even if they are whole. */
bool doc_is_below(const json_value *v, int64_t limit)
{
    return v && v->is_integer && v->integer >= 0 && v->integer < limit;
}

/* An unknown option is refused even if its value would mean nothing: the next version may give
 * it a meaning. */
mpk_status doc_check_keys(doc_reader *r, const char *what, const json_value *object,
                          const char *const *known)
{
    for (size_t k = 0; k < object->n; k++) {
        str key = object->items[k].key, type = doc_type(object);
        bool found = str_is(key, "type");
        for (size_t i = 0; known[i] && !found; i++)
            found = str_is(key, known[i]);
        CHECK(r->cx, found, MPK_EUNSUPPORTED,
              "tokenizer.json: option \"%.*s\" of %s %.*s is not supported", SHOWN(key), what,
              SHOWN(type));
    }
    return MPK_OK;
}
/* Null counts as absent: json_get gives NULL for it. */
mpk_status doc_get_bool(doc_reader *r, const json_value *object, const char *key, bool otherwise,
                        bool *out)
{
    const json_value *v = json_get(object, key);
    *out = otherwise;
    CHECK(r->cx, !v || v->kind == JSON_KIND_BOOL, MPK_EFORMAT,
          "tokenizer.json: \"%s\" of %.*s is not true or false", key, SHOWN(doc_type(object)));
    if (v)
        *out = v->boolean;
    return MPK_OK;
}

/* The copy is in the tokenizer's arena. */
mpk_status doc_copy_text(doc_reader *r, const json_value *v, str *out)
{
    const char *copy = arena_copy(&r->t->arena, v->text.at, v->text.n);
    CHECK(r->cx, copy, MPK_ENOMEM, "out of memory for a tokenizer");
    *out = (str){copy, v->text.n};
    return MPK_OK;
}

/* The copy is in the tokenizer's arena, since the document is freed. */
mpk_status doc_get_text(doc_reader *r, const json_value *object, const char *key, bool needed,
                        str *out)
{
    const json_value *v = json_get(object, key);
    *out = (str){0};
    if (!needed && !v)
        return MPK_OK;
    CHECK(r->cx, doc_is_text(v), MPK_EFORMAT, "tokenizer.json: \"%s\" of %.*s is not a text", key,
          SHOWN(doc_type(object)));
    return doc_copy_text(r, v, out);
}

/* A count must be given: the format has no default. */
mpk_status doc_get_count(doc_reader *r, const json_value *object, const char *key, uint32_t *out)
{
    const json_value *v = json_get(object, key);
    CHECK(r->cx, doc_is_below(v, MAX_COUNT), MPK_EFORMAT,
          "tokenizer.json: \"%s\" of %.*s is not a count", key, SHOWN(doc_type(object)));
    *out = (uint32_t)v->integer;
    return MPK_OK;
}

/* A pattern is a literal text or a regular expression; an empty literal would match everywhere. */
mpk_status doc_get_pattern(doc_reader *r, const json_value *object, step *s)
{
    const json_value *v = json_get(object, "pattern");
    const json_value *literal = json_get(v, "String"), *pattern = json_get(v, "Regex");
    if (doc_is_text(pattern)) {
        s->match = MATCH_REGEX;
        return regex_compile(r->cx, &r->t->arena, pattern->text, &s->regex);
    }
    CHECK(r->cx, doc_is_text(literal) && literal->text.n, MPK_EFORMAT,
          "tokenizer.json: %.*s has no pattern {\"String\"} or {\"Regex\"} that is not empty",
          SHOWN(doc_type(object)));
    s->match = MATCH_LITERAL;
    return doc_copy_text(r, literal, &s->literal);
}

/* *out is the index in `names`, or `otherwise` if the key is absent; an unknown name is an
 * error. */
mpk_status doc_get_choice(doc_reader *r, const json_value *object, const char *key,
                          const char *const *names, int otherwise, int *out)
{
    const json_value *v = json_get(object, key);
    *out = otherwise;
    if (!v)
        return MPK_OK;
    str name = doc_is_text(v) ? v->text : STR("not a text");
    for (int i = 0; names[i]; i++)
        if (doc_is_text(v) && str_is(name, names[i])) {
            *out = i;
            return MPK_OK;
        }
    FAIL(r->cx, MPK_EUNSUPPORTED, "tokenizer.json: \"%s\" of %.*s is \"%.*s\", which is not known",
         key, SHOWN(doc_type(object)), SHOWN(name));
}

/* `one` may call this again for a Sequence within; the depth is bounded. */
mpk_status doc_read_sequence(doc_reader *r, const json_value *object, const char *key, doc_read one)
{
    const json_value *list = json_get(object, key);
    CHECK(r->cx, json_is(list, JSON_KIND_LIST), MPK_EFORMAT,
          "tokenizer.json: a Sequence without a list \"%s\"", key);
    CHECK(r->cx, ++r->depth <= MAX_DEPTH, MPK_ELIMIT,
          "tokenizer.json: sequences are nested more than %d deep", MAX_DEPTH);
    for (size_t i = 0; i < list->n; i++)
        TRY(one(r, &list->items[i]));
    r->depth--;
    return MPK_OK;
}

/* The error for a part whose type is not known here. */
mpk_status doc_refuse(doc_reader *r, const char *what, const json_value *object)
{
    CHECK(r->cx, json_is(object, JSON_KIND_OBJECT), MPK_EFORMAT,
          "tokenizer.json: a %s is not an object", what);
    FAIL(r->cx, MPK_EUNSUPPORTED, "tokenizer.json: %s \"%.*s\" is not supported", what,
         SHOWN(doc_type(object)));
}
