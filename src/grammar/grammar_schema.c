/* grammar_schema.c - JSON schemas: keywords, references, and the choice among types.
 *
 * Every keyword is in one table: it is taken, or it says nothing about the form, or it is refused
 * by name.  A schema that is referred to is a rule, so that schemas may refer to themselves.
 *
 * From a schema to a tree (object_node): $ref alone -> the rule of its target; $ref beside others,
 * allOf -> one merged schema; anyOf, oneOf -> alternatives, each merged with what stands beside;
 * enum, const -> literals that the rest allows; else one alternative for each type.
 *
 * Called by grammar.c and grammar_tag.c through schema_parse_node; all recursion passes through
 * schema_node, which bounds its depth. */
#include <stdio.h>

#include "grammar/grammar_schema.h"

enum { MOST_WORK = 10000000 }; /* steps of schema_charge: about a second */

/* ---- messages ---- */

/* The place in the schema as a JSON pointer, for messages; valid until the next call. */
const char *schema_where(schema_reader *r, const place *at)
{
    const place *path[GRAMMAR_MOST_NESTING];
    size_t n = 0, used = 1;
    for (; at && n < GRAMMAR_MOST_NESTING; at = at->up)
        path[n++] = at;
    r->where[0] = '#';
    r->where[1] = '\0';
    while (n-- > 0 && used < sizeof r->where) {
        int more =
            snprintf(r->where + used, sizeof r->where - used, "/%.*s", STR_ARG(path[n]->name));
        used += more > 0 ? (size_t)more : 0;
    }
    return r->where;
}

mpk_status schema_refuse(schema_reader *r, const place *at, const char *what)
{
    FAIL(r->k->cx, MPK_EUNSUPPORTED, "%s at %s of the JSON schema is not supported", what,
         schema_where(r, at));
}

/* Merging schemas may multiply them; this bounds it, whatever the schema is. */
mpk_status schema_charge(schema_reader *r, const place *at, uint64_t steps)
{
    r->k->work += steps;
    CHECK(r->k->cx, r->k->work <= MOST_WORK, MPK_ELIMIT,
          "the JSON schema is too large at %s: putting its parts together takes more than %d steps",
          schema_where(r, at), MOST_WORK);
    return MPK_OK;
}

/* A count of the schema, such as minLength.  2.0 is the number 2 in JSON. */
mpk_status schema_count(schema_reader *r, const place *at, const json_value *schema,
                        const char *key, uint32_t *out)
{
    const json_value *v = json_get(schema, key);
    if (!v)
        return MPK_OK;
    CHECK(r->k->cx,
          v->kind == JSON_KIND_NUMBER && v->number >= 0 && v->number <= GRAMMAR_MOST_REPEATS &&
              v->number == (double)(uint32_t)v->number,
          MPK_EFORMAT, "%s at %s is not a whole number from 0 to %d", key, schema_where(r, at),
          GRAMMAR_MOST_REPEATS);
    *out = (uint32_t)v->number;
    return MPK_OK;
}

/* ---- keywords ---- */

/* Keywords that are supported, or that do not restrict the form. */
static const char *const known[] = {
    "$ref",
    "$defs",
    "definitions",
    "allOf",
    "anyOf",
    "oneOf",
    "enum",
    "const",
    "type",
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "$schema",
    "$id",
    "id",
    "$comment",
    "$anchor",
    "$vocabulary",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "discriminator",
    "strict",
};

/* Names that begin with x- are free for private use, and do not restrict the form. */
static bool is_known(str key)
{
    if (key.n > 2 && memcmp(key.at, "x-", 2) == 0)
        return true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (str_is(key, known[i]))
            return true;
    return false;
}

/* An unknown keyword may restrict what is valid, so it cannot be passed over. */
mpk_status schema_check_keywords(schema_reader *r, const place *at, const json_value *schema)
{
    for (size_t i = 0; i < schema->n; i++)
        CHECK(r->k->cx, is_known(schema->items[i].key), MPK_EUNSUPPORTED,
              "the keyword \"%.*s\" at %s of the JSON schema is not supported",
              STR_ARG(schema->items[i].key), schema_where(r, at));
    return MPK_OK;
}

/* ---- types ---- */

/* 0: JSON has no such type. */
static uint32_t type_named(str name)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } types[] = {{"null", TYPE_NULL},     {"boolean", TYPE_BOOLEAN}, {"integer", TYPE_INTEGER},
                 {"number", TYPE_NUMBER}, {"string", TYPE_STRING},   {"array", TYPE_ARRAY},
                 {"object", TYPE_OBJECT}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (str_is(name, types[i].name))
            return types[i].bits;
    return 0;
}

/* The type of a number: whether it is whole, however it is spelled.  From 2^53 on every double
 * is whole, and one beyond 2^63 must not be converted. */
static uint32_t type_of(const json_value *v)
{
    static const uint32_t bits[] = {
        [JSON_KIND_NULL] = TYPE_NULL,     [JSON_KIND_BOOL] = TYPE_BOOLEAN,
        [JSON_KIND_STRING] = TYPE_STRING, [JSON_KIND_LIST] = TYPE_ARRAY,
        [JSON_KIND_OBJECT] = TYPE_OBJECT, [JSON_KIND_NUMBER] = TYPE_FRACTION};
    const bool large = v->number >= 0x1p53 || v->number <= -0x1p53;
    const bool whole = v->kind == JSON_KIND_NUMBER &&
                       (v->is_integer || large || v->number == (double)(int64_t)v->number);
    return whole ? TYPE_INTEGER : bits[v->kind];
}

/* A schema without `type` allows every type. */
static mpk_status named_types(schema_reader *r, const place *at, const json_value *type,
                              uint32_t *out)
{
    const json_value *list = type && type->kind == JSON_KIND_LIST ? type->items : type;
    size_t n = type && type->kind == JSON_KIND_LIST ? type->n : 1;
    *out = type ? 0 : TYPE_ANY;
    for (size_t i = 0; type && i < n; i++) {
        uint32_t bits = list[i].kind == JSON_KIND_STRING ? type_named(list[i].text) : 0;
        CHECK(r->k->cx, bits, MPK_EFORMAT,
              "type at %s of the JSON schema is not one of JSON's types", schema_where(r, at));
        *out |= bits;
    }
    return MPK_OK;
}

/* Also where it is null. */
static const json_value *member_of(const json_value *object, const char *key)
{
    for (size_t i = 0; i < object->n; i++)
        if (str_is(object->items[i].key, key))
            return &object->items[i];
    return NULL;
}

/* The JSON types that a schema leaves open, as bits: of `type`, `enum` and `const` together. */
mpk_status schema_types(schema_reader *r, const place *at, const json_value *schema, uint32_t *out)
{
    if (schema->kind != JSON_KIND_OBJECT) {
        *out = schema->boolean ? TYPE_ANY : 0;
        return MPK_OK;
    }
    const json_value *list = json_get(schema, "enum"), *one = member_of(schema, "const");
    uint32_t bits = 0;
    TRY(named_types(r, at, json_get(schema, "type"), out));
    for (size_t i = 0; list && i < list->n; i++)
        bits |= type_of(&list->items[i]);
    if (list)
        *out &= bits;
    if (one)
        *out &= type_of(one);
    return MPK_OK;
}

/* ---- enum and const ---- */

/* A schema as a grammar of its own, which is asked whether literals fit it.  It is made once for
 * all values of an enum: schemas with an enum may be nested, and making it for each value would
 * cost the product of all their lengths. */
typedef struct judge {
    grammar g;
    bool takes_none; /* no value fits */
} judge;

/* The nodes and the work of the inner grammar count for the outer one too. */
static mpk_status judge_open(schema_reader *r, const place *at, const json_value *schema, judge *j)
{
    mpk_context *cx = r->k->cx;
    arena scratch = {0};
    maker k = {.cx = cx, .a = &scratch, .n_nodes = r->k->n_nodes, .work = r->k->work};
    schema_reader inner = {.k = &k, .root = r->root, .nesting = r->nesting};
    uint32_t first;
    const node *body;
    mpk_status status = rule_new(&k, STR("the whole"), &first);
    if (status == MPK_OK)
        status = schema_node(&inner, at, schema, &body);
    if (status == MPK_OK) {
        k.rules.at[first].body = body;
        status = automaton_make(cx, &j->g.arena, &k, &j->g.automaton);
        j->takes_none = status == MPK_EFORMAT; /* the only MPK_EFORMAT that occurs here */
    }
    if (j->takes_none) {
        status_clear(cx);
        status = MPK_OK;
    } else if (status == MPK_OK)
        status = store_open(cx, &j->g);
    r->k->n_nodes = k.n_nodes;
    r->k->work = k.work;
    arena_free(&scratch);
    return status;
}

static void judge_close(judge *j)
{
    store_close(&j->g.store);
    arena_free(&j->g.arena);
}

/* Does the literal fit?  Situations of earlier literals are forgotten when they become many. For
 * "enum" beside other keywords: each listed value is tried against the automaton of these. */
static mpk_status fits(mpk_context *cx, judge *j, const json_value *value, bool *yes)
{
    grammar_matcher m = {.grammar = &j->g};
    text spelled = {0};
    bool read = false, may_end = false;
    *yes = false;
    if (j->takes_none)
        return MPK_OK;
    j->g.store.work = 0;
    if (j->g.store.arena.reserved_bytes > GRAMMAR_FULL_STORE)
        TRY(store_forget(cx, &j->g));
    TRY(situation_start(cx, &j->g, &m.situation));
    schema_spell(&spelled, value);
    mpk_status status = spelled.failed ? status_fail(cx, MPK_ENOMEM, "out of memory for a literal")
                                       : grammar_matcher_read(cx, &m, (str){spelled.at, spelled.n},
                                                              &read, &may_end);
    *yes = status == MPK_OK && read && may_end;
    text_free(&spelled);
    return status;
}

/* Is there a keyword beside the listed values that could exclude one of them? */
static bool says_more(const json_value *schema)
{
    static const char *const silent[] = {"enum",        "const",    "type",      "title",
                                         "description", "default",  "examples",  "example",
                                         "$schema",     "$id",      "$comment",  "deprecated",
                                         "$defs",       "readOnly", "writeOnly", "definitions"};
    for (size_t i = 0; i < schema->n; i++) {
        bool found = false;
        for (size_t k = 0; k < sizeof silent / sizeof *silent && !found; k++)
            found = str_is(schema->items[i].key, silent[k]);
        if (!found)
            return true;
    }
    return false;
}

/* A listed value counts only if the rest of the schema (NULL: there is none) allows it. */
static mpk_status add_value(schema_reader *r, judge *rest, const json_value *value, uint32_t types,
                            node *alt)
{
    bool yes = (type_of(value) & types) != 0;
    const node *child = NULL;
    if (yes && rest)
        TRY(fits(r->k->cx, rest, value, &yes));
    if (!yes)
        return MPK_OK;
    TRY(schema_literal(r, value, &child));
    return node_add(r->k, alt, child);
}

/* Many scalars become a tree of texts. */
static mpk_status compact(schema_reader *r, node *alt, const node **out)
{
    str *texts;
    for (size_t i = 0; i < alt->children.n; i++)
        if (alt->children.at[i]->kind != NODE_BYTES) {
            *out = alt;
            return MPK_OK;
        }
    NEW(r->k->cx, r->k->a, texts, alt->children.n);
    for (size_t i = 0; i < alt->children.n; i++)
        texts[i] = alt->children.at[i]->bytes;
    return node_texts(r->k, texts, alt->children.n, out);
}

/* enum and const together mean the values that both list. */
static mpk_status list_values(schema_reader *r, const place *at, const json_value *schema,
                              judge *rest, const node **out)
{
    const json_value *list = json_get(schema, "enum"), *one = member_of(schema, "const");
    uint32_t types;
    node *alt;
    CHECK(r->k->cx, !list || list->kind == JSON_KIND_LIST, MPK_EFORMAT, "enum at %s is not a list",
          schema_where(r, at));
    TRY(named_types(r, at, json_get(schema, "type"), &types));
    TRY(node_new(r->k, NODE_ALT, &alt));
    for (size_t i = 0; list && i < list->n; i++) {
        bool wanted = true;
        if (one)
            TRY(schema_equals(r, at, one, &list->items[i], &wanted));
        if (wanted)
            TRY(add_value(r, rest, &list->items[i], types, alt));
    }
    if (!list)
        TRY(add_value(r, rest, one, types, alt));
    return compact(r, alt, out);
}

/* enum or const. If the schema says nothing else the values are taken as they stand. */
static mpk_status listed(schema_reader *r, const place *at, const json_value *schema,
                         const node **out)
{
    const json_value *others;
    judge rest = {0};
    if (!says_more(schema))
        return list_values(r, at, schema, NULL, out);
    TRY(schema_without(r, schema, (const char *const[]){"enum", "const", NULL}, &others));
    mpk_status status = judge_open(r, at, others, &rest);
    if (status == MPK_OK)
        status = list_values(r, at, schema, &rest, out);
    judge_close(&rest);
    return status;
}

/* ---- by type ---- */

/* The five keywords must be numbers. multipleOf is a form of its own (number_multiple); bounds
 * alone another. */
static mpk_status number_node(schema_reader *r, const place *at, const json_value *schema,
                              bool integer, const node **out)
{
    static const char *const keys[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                       "multipleOf"};
    const json_value *v[5];
    bool any = false;
    for (size_t i = 0; i < 5; i++) {
        v[i] = json_get(schema, keys[i]);
        CHECK(r->k->cx, !v[i] || v[i]->kind == JSON_KIND_NUMBER, MPK_EFORMAT,
              "%s at %s is not a number", keys[i], schema_where(r, at));
        any |= v[i] != NULL;
    }
    const number_rules n = {v[0], v[1], v[2], v[3], v[4]};
    if (n.multiple)
        return number_multiple(r, at, &n, integer, out);
    if (any)
        return number_between(r, at, &n, integer, out);
    return integer ? schema_integer(r, out) : schema_any_number(r, out);
}

/* type: one bit of TYPE_*. "number" is TYPE_INTEGER and TYPE_FRACTION together, which by_type has
 * taken apart or joined. */
static mpk_status one_type(schema_reader *r, const place *at, const json_value *schema,
                           uint32_t type, const node **out)
{
    switch (type) {
    case TYPE_NULL:
        return schema_text(r, "null", out);
    case TYPE_BOOLEAN:
        return node_texts(r->k, (str[]){STR("true"), STR("false")}, 2, out);
    case TYPE_INTEGER:
        return number_node(r, at, schema, true, out);
    case TYPE_FRACTION:
        return number_node(r, at, schema, false, out);
    case TYPE_STRING:
        return schema_string(r, at, schema, out);
    case TYPE_ARRAY:
        return schema_array(r, at, schema, out);
    default:
        return schema_object(r, at, schema, out);
    }
}

/* One alternative for each type that is left. */
static mpk_status by_type(schema_reader *r, const place *at, const json_value *schema,
                          const node **out)
{
    uint32_t types;
    const node *child = NULL;
    node *alt;
    TRY(named_types(r, at, json_get(schema, "type"), &types));
    TRY(node_new(r->k, NODE_ALT, &alt));
    if (types & TYPE_FRACTION)
        types &= ~(uint32_t)TYPE_INTEGER; /* an integer is a number */
    for (uint32_t bit = 1; bit < TYPE_ANY; bit *= 2)
        if (types & bit) {
            TRY(one_type(r, at, schema, bit, &child));
            TRY(node_add(r->k, alt, child));
        }
    *out = alt;
    return MPK_OK;
}

/* ---- references and combinations ---- */

/* The rule gets its number before its body is made, so that a schema that refers to itself finds
 * it. */
mpk_status schema_as_rule(schema_reader *r, const place *at, const json_value *schema,
                          const node **out)
{
    const node *body;
    for (size_t i = 0; i < r->targets.n; i++)
        if (r->targets.at[i].schema == schema)
            return node_rule(r->k, r->targets.at[i].rule, out);
    const char *name = arena_copy(r->k->a, schema_where(r, at), strlen(schema_where(r, at)));
    uint32_t number;
    CHECK(r->k->cx, name, MPK_ENOMEM, "out of memory for a rule");
    TRY(rule_new(r->k, str_from(name), &number));
    PUSH(r->k->cx, r->k->a, &r->targets, (struct schema_target){schema, number});
    TRY(schema_node(r, at, schema, &body));
    r->k->rules.at[number].body = body;
    return node_rule(r->k, number, out);
}

/* oneOf: at most one of two options may fit. */
static mpk_status check_apart(schema_reader *r, const place *at, const json_value *options)
{
    for (size_t i = 0; i < options->n; i++)
        for (size_t k = i + 1; k < options->n; k++) {
            bool apart;
            TRY(schema_charge(r, at, 1));
            TRY(schema_exclude(r, at, &options->items[i], &options->items[k], &apart));
            CHECK(r->k->cx, apart, MPK_EUNSUPPORTED,
                  "oneOf at %s of the JSON schema is not supported: a value could fit options %zu "
                  "and %zu both; write "
                  "anyOf, or give them a required property with different constants",
                  schema_where(r, at), i, k);
        }
    return MPK_OK;
}

/* anyOf and oneOf: keywords beside the options are merged into each.  An automaton cannot count the
 * options that fit, so oneOf is supported only if no value fits two of them. {"type": "object",
 * "anyOf": [A, B]} becomes the choice of A and B, each merged with {"type": "object"}. */
static mpk_status options_node(schema_reader *r, const place *at, const json_value *schema,
                               const char *key, const node **out)
{
    const place here = {at, str_from(key)};
    const json_value *options = json_get(schema, key), *rest, *both;
    const node *child = NULL;
    node *alt;
    CHECK(r->k->cx, options->kind == JSON_KIND_LIST && options->n, MPK_EFORMAT,
          "%s at %s is not a list of schemas", key, schema_where(r, at));
    if (str_is(str_from(key), "oneOf"))
        TRY(check_apart(r, at, options));
    TRY(schema_without(r, schema, (const char *const[]){key, NULL}, &rest));
    TRY(node_new(r->k, NODE_ALT, &alt));
    for (size_t i = 0; i < options->n; i++) {
        both = &options->items[i];
        if (says_more(rest) || json_get(rest, "type") || json_get(rest, "enum") ||
            member_of(rest, "const"))
            TRY(schema_merge(r, &here, rest, both, &both));
        TRY(schema_node(r, &here, both, &child));
        TRY(node_add(r->k, alt, child));
    }
    *out = alt;
    return MPK_OK;
}

/* A $ref with nothing beside it becomes a rule, so it may lead back to a schema that is being
 * made. */
static bool is_alone(const json_value *schema)
{
    const json_value *type = json_get(schema, "type");
    for (size_t i = 0; i < schema->n; i++)
        if (str_is(schema->items[i].key, "$ref"))
            return !type && !json_get(schema, "allOf") && schema->n == 1;
    return false;
}

/* In the order of what decides most: references, then options, then listed values, then types.
 * After a $ref or an allOf is merged, what is left may be true or false, and begins anew. */
static mpk_status object_node(schema_reader *r, const place *at, const json_value *schema,
                              const node **out)
{
    TRY(schema_check_keywords(r, at, schema));
    if (is_alone(schema)) {
        const json_value *target;
        TRY(schema_find(r, at, json_get(schema, "$ref"), &target));
        return schema_as_rule(r, at, target, out);
    }
    if (json_get(schema, "$ref") || json_get(schema, "allOf"))
        TRY(schema_flatten(r, at, schema, &schema));
    if (schema->kind != JSON_KIND_OBJECT)
        return schema_node(r, at, schema, out);
    if (json_get(schema, "anyOf"))
        return options_node(r, at, schema, "anyOf", out);
    if (json_get(schema, "oneOf"))
        return options_node(r, at, schema, "oneOf", out);
    if (json_get(schema, "enum") || member_of(schema, "const"))
        return listed(r, at, schema, out);
    return by_type(r, at, schema, out);
}

/* true allows every value, false none. */
mpk_status schema_node(schema_reader *r, const place *at, const json_value *schema,
                       const node **out)
{
    CHECK(r->k->cx, schema->kind == JSON_KIND_OBJECT || schema->kind == JSON_KIND_BOOL, MPK_EFORMAT,
          "%s of the JSON schema is neither an object nor true or false", schema_where(r, at));
    if (schema->kind == JSON_KIND_BOOL && schema->boolean)
        return schema_any(r, out);
    if (schema->kind == JSON_KIND_BOOL)
        return node_texts(r->k, NULL, 0, out);
    CHECK(r->k->cx, r->nesting < GRAMMAR_MOST_NESTING, MPK_ELIMIT,
          "the JSON schema is nested more than %d levels deep at %s", GRAMMAR_MOST_NESTING,
          schema_where(r, at));
    r->nesting++;
    TRY(object_node(r, at, schema, out));
    r->nesting--;
    return MPK_OK;
}

mpk_status schema_parse_node(maker *k, const json_value *schema, const node **out)
{
    schema_reader r = {.k = k, .root = schema};
    return schema_as_rule(&r, NULL, schema, out);
}
