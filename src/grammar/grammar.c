/* grammar.c - from a form to its automaton, front end by front end. */
#include <stdlib.h>

#include "grammar/grammar_parts.h"

const char *grammar_kind_name(grammar_kind kind)
{
    static const char *const names[] = {"json_schema", "json_object", "regex",
                                        "choice",      "ebnf",        "structural_tag"};
    return (unsigned)kind < GRAMMAR_KINDS ? names[kind] : "unknown";
}

/* Errors of JSON and of the schema are told apart by the note. */
static mpk_status parse_schema(maker *k, str source, const node **out)
{
    const json_value *schema;
    NOTE(k->cx, json_parse(k->cx, k->a, source, &schema), "reading the JSON schema");
    return schema_parse_node(k, schema, out);
}

static mpk_status parse_tag(maker *k, str source, const node **out)
{
    const json_value *tag;
    NOTE(k->cx, json_parse(k->cx, k->a, source, &tag), "reading the structural tag");
    return tag_parse_node(k, tag, out);
}

/* A JSON list of texts, each of which is a whole answer. */
static mpk_status parse_choices(maker *k, str source, const node **out)
{
    const json_value *list;
    str *texts;
    NOTE(k->cx, json_parse(k->cx, k->a, source, &list), "reading the list of choices");
    CHECK(k->cx, list->kind == JSON_KIND_LIST && list->n, MPK_EFORMAT,
          "choices are a JSON list of at least one text");
    NEW(k->cx, k->a, texts, list->n);
    for (size_t i = 0; i < list->n; i++) {
        CHECK(k->cx, list->items[i].kind == JSON_KIND_STRING, MPK_EFORMAT,
              "choice %zu is not a text", i);
        texts[i] = list->items[i].text;
    }
    return node_texts(k, texts, list->n, out);
}

/* Each kind of form has a front end of its own; all of them build the same sort of tree. */
static mpk_status parse(maker *k, grammar_kind kind, str source, const node **out)
{
    switch (kind) {
    case GRAMMAR_JSON_SCHEMA:
        return parse_schema(k, source, out);
    case GRAMMAR_JSON_OBJECT:
        return json_object_node(k, out);
    case GRAMMAR_REGEX:
        return regex_parse_node(k, source, true, out);
    case GRAMMAR_EBNF:
        return ebnf_parse_node(k, source, out);
    case GRAMMAR_TAG:
        return parse_tag(k, source, out);
    default:
        return parse_choices(k, source, out);
    }
}

/* Rule 0 is the whole; front ends add the others.  The trees lie in `scratch`, which is freed
 * when the automaton is made. */
static mpk_status make(mpk_context *cx, grammar *g, arena *scratch, grammar_kind kind, str source)
{
    maker k = {.cx = cx, .a = scratch};
    uint32_t first;
    const node *body;
    CHECK(cx, source.n <= GRAMMAR_MOST_BYTES, MPK_ELIMIT,
          "a grammar of %zu bytes: at most %d are taken", source.n, GRAMMAR_MOST_BYTES);
    TRY(rule_new(&k, STR("the whole"), &first));
    TRY(parse(&k, kind, source, &body));
    k.rules.at[first].body = body;
    TRY(automaton_make(cx, &g->arena, &k, &g->automaton));
    return store_open(cx, g);
}

/* `source` is borrowed for the call.  Requests may share a grammar, but not a matcher. */
mpk_status grammar_make(mpk_context *cx, grammar_kind kind, str source, grammar **out)
{
    grammar *g = calloc(1, sizeof *g);
    arena scratch = {0};
    CHECK(cx, g, MPK_ENOMEM, "out of memory for a grammar");
    mpk_status status = make(cx, g, &scratch, kind, source);
    arena_free(&scratch);
    if (status == MPK_OK)
        *out = g;
    else
        grammar_free(g);
    return status;
}

/* No matcher may be in use any more: they refer to situations of the store. */
void grammar_free(grammar *g)
{
    if (!g)
        return;
    store_close(&g->store);
    arena_free(&g->arena);
    free(g);
}
