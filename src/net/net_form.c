/* net_form.c - response_format, regex, guided_json and the like, as the form of an answer.
 *
 * Every server has its own names for forms; all are reduced to one form and one source, as in
 * mpk_request_options:
 *
 *   "response_format":{"type":"json_schema","json_schema":{"schema":S}}  MPK_FORM_JSON_SCHEMA, S
 *   "guided_regex":"[0-9]+"                                              MPK_FORM_REGEX, [0-9]+
 *   "structured_outputs":{"choice":["a","b"]}                            MPK_FORM_CHOICE, ["a","b"]
 *
 * Two forms in one body are refused.  Called by net_request.c.
 */
#include "net/net_form.h"

/* What all functions here need: where to put the form and the name of the member that brought it,
 * and where to say what is wrong. */
typedef struct reader {
    mpk_context *cx;
    arena *a;
    mpk_request_options *to;
    const char **name;
    net_refusal *why;
} reader;

static mpk_status refuse(const reader *r, const char *name, const char *what)
{
    return net_refuse(r->cx, r->why, 400, name, NULL, "'%s' %s", name, what);
}

/* Set the form, copying its source to the arena.  A second form is refused by its own name. */
static mpk_status set(const reader *r, const char *name, mpk_form form, str source)
{
    if (r->to->form)
        return refuse(
            r, name,
            "is one form too many: give one of response_format, a schema, a regex or choices");
    if (source.n && memchr(source.at, 0, source.n))
        return refuse(r, name, "must not hold a NUL character");
    r->to->form_source = arena_copy(r->a, source.at, source.n);
    CHECK(r->cx, r->to->form_source, MPK_ENOMEM, "out of memory for the form of an answer");
    r->to->form = form;
    return MPK_OK;
}

/* Set a form whose source is a JSON value, written as text. */
static mpk_status set_json(const reader *r, const char *name, mpk_form form, const json_value *v)
{
    text t = {0};
    json_write(&t, v, 0);
    mpk_status status =
        t.failed ? status_fail(r->cx, MPK_ENOMEM, "out of memory for the form of an answer")
                 : set(r, name, form, (str){t.at, t.n});
    text_free(&t);
    return status;
}

/* A schema: an object, true or false, or a text that holds one. */
static mpk_status read_schema(const reader *r, const char *name, const json_value *v)
{
    if (v->kind == JSON_KIND_STRING)
        return set(r, name, MPK_FORM_JSON_SCHEMA, v->text);
    if (v->kind != JSON_KIND_OBJECT && v->kind != JSON_KIND_BOOL)
        return refuse(r, name,
                      "must be a JSON schema: an object, a boolean, or a string that holds one");
    return set_json(r, name, MPK_FORM_JSON_SCHEMA, v);
}

static mpk_status read_regex(const reader *r, const char *name, const json_value *v)
{
    return v->kind == JSON_KIND_STRING ? set(r, name, MPK_FORM_REGEX, v->text)
                                       : refuse(r, name, "must be a string");
}

static mpk_status read_grammar(const reader *r, const char *name, const json_value *v)
{
    return v->kind == JSON_KIND_STRING ? set(r, name, MPK_FORM_GRAMMAR, v->text)
                                       : refuse(r, name, "must be a string");
}

/* A structural tag: an object, or as SGLang has it, a text that holds one. */
static mpk_status read_tag(const reader *r, const char *name, const json_value *v)
{
    if (v->kind == JSON_KIND_STRING)
        return set(r, name, MPK_FORM_STRUCTURAL_TAG, v->text);
    return v->kind == JSON_KIND_OBJECT
               ? set_json(r, name, MPK_FORM_STRUCTURAL_TAG, v)
               : refuse(r, name, "is neither an object nor a text that holds one");
}

static mpk_status read_choices(const reader *r, const char *name, const json_value *v)
{
    return v->kind == JSON_KIND_LIST ? set_json(r, name, MPK_FORM_CHOICE, v)
                                     : refuse(r, name, "is not a list of texts");
}

/* "json_object": true asks for any object. */
static mpk_status read_object(const reader *r, const char *name, const json_value *v)
{
    if (v->kind != JSON_KIND_BOOL)
        return refuse(r, name, "must be true or false");
    return v->boolean ? set(r, name, MPK_FORM_JSON_OBJECT, STR("")) : MPK_OK;
}

/* A member of a body that asks for a form.  null, false, and empty texts and lists do not. */
typedef struct form_name {
    const char *name;
    mpk_status (*read)(const reader *r, const char *name, const json_value *v);
} form_name;

/* Each name that is present sets the form; `set` refuses a second one. Empty texts and lists count
 * as absent, since some clients send every field. Of an object in the body its own name stays. */
static mpk_status read_names(const reader *r, const json_value *body, const form_name *names,
                             size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const json_value *v = json_get(body, names[i].name);
        bool empty =
            v && (v->kind == JSON_KIND_STRING || v->kind == JSON_KIND_LIST) && !v->n && !v->text.n;
        const bool formed = r->to->form;
        if (v && !empty)
            TRY(names[i].read(r, names[i].name, v));
        if (r->to->form && !formed)
            *r->name = names[i].name;
    }
    return MPK_OK;
}

/* vLLM's object, one of whose members is the form. */
static mpk_status read_outputs(const reader *r, const char *name, const json_value *v)
{
    static const form_name members[] = {{"json", read_schema},     {"regex", read_regex},
                                        {"choice", read_choices},  {"json_object", read_object},
                                        {"grammar", read_grammar}, {"structural_tag", read_tag}};
    if (v->kind != JSON_KIND_OBJECT)
        return refuse(r, name, "must be an object");
    return read_names(r, v, members, sizeof members / sizeof *members);
}

/* OpenAI's object; llama-server puts the schema beside the type. {"type": "json_schema",
 * "json_schema": {"schema": S}} and {"type": "json_object", "schema": S} mean the same. */
static mpk_status read_format(const reader *r, const char *name, const json_value *v)
{
    const json_value *type = json_get(v, "type"), *schema = json_get(v, "schema"),
                     *inner = json_get(v, "json_schema");
    str is = json_is(type, JSON_KIND_STRING) ? type->text : (str){0};
    if (str_is(is, "text"))
        return MPK_OK;
    if (str_is(is, "structural_tag"))
        return read_tag(r, name, v);
    if (inner)
        schema = json_get(inner, "schema");
    if (schema && (str_is(is, "json_schema") || str_is(is, "json_object")))
        return read_schema(r, name, schema);
    if (str_is(is, "json_object"))
        return set(r, name, MPK_FORM_JSON_OBJECT, STR(""));
    return str_is(is, "json_schema")
               ? refuse(r, name,
                        "has the type \"json_schema\" but no schema in 'json_schema': {\"schema\": "
                        "...}")
               : refuse(r, name,
                        "has a type that is none of \"text\", \"json_object\", \"json_schema\" and "
                        "\"structural_tag\"");
}

/* All spellings of a form that the supported servers have: OpenAI's, vLLM's (guided_* are older),
 * SGLang's (regex, ebnf), llama-server's (json_schema, grammar). */
mpk_status net_form_read(mpk_context *cx, arena *a, const json_value *body, mpk_request_options *to,
                         const char **name, net_refusal *why)
{
    static const form_name names[] = {
        {"response_format", read_format}, {"structured_outputs", read_outputs},
        {"guided_json", read_schema},     {"json_schema", read_schema},
        {"guided_regex", read_regex},     {"regex", read_regex},
        {"guided_choice", read_choices},  {"guided_grammar", read_grammar},
        {"ebnf", read_grammar},           {"grammar", read_grammar},
        {"structural_tag", read_tag},
    };
    const reader r = {cx, a, to, name, why};
    TRY(read_names(&r, body, names, sizeof names / sizeof *names));
    if (to->form && to->ignore_eos)
        return refuse(&r, "ignore_eos",
                      "is not possible with a form of the answer, which ends where the form does");
    return MPK_OK;
}
