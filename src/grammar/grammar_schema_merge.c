/* grammar_schema_merge.c - allOf, $ref with neighbours, and options with what stands beside them:
 * one schema that says what several say.
 *
 * Two values of a keyword are joined where there is a single value that means both; otherwise the
 * schema is refused by the name of that keyword.
 *
 * {"minimum": 2, "type": "number"} with {"minimum": 5, "type": "integer"} is {"minimum": 5,
 * "type": "integer"}.  Merging makes new objects whose members are shared with the old ones;
 * nothing of the document is changed.  Its work is counted (schema_charge), for a schema of n
 * references can ask for 2^n merges. */
#include "grammar/grammar_schema.h"

enum {
    MOST_OPTIONS = 256,
    NAMES_A_STEP = 16, /* names compared for one step of schema_charge */
    MERGE_STEPS = 16,  /* of two schemas, however small */
    COPY_STEPS = 8,    /* of a member or name that is copied: steps bound the memory, too */
};

typedef VEC(json_value) members;

/* The value of a member, null included; NULL: there is no such member. */
static const json_value *find_member(const json_value *object, str key)
{
    for (size_t i = 0; i < object->n; i++)
        if (str_equal(object->items[i].key, key))
            return &object->items[i];
    return NULL;
}

/* How much it takes to compare a value with one of its size: members are looked up one by one. */
static uint64_t steps_to_compare(const json_value *v)
{
    uint64_t steps = 1;
    if (v->kind == JSON_KIND_OBJECT)
        steps += v->n * (uint64_t)v->n / NAMES_A_STEP;
    for (size_t i = 0; i < v->n; i++)
        steps += steps_to_compare(&v->items[i]);
    return steps;
}

mpk_status schema_equals(schema_reader *r, const place *at, const json_value *a,
                         const json_value *b, bool *yes)
{
    const bool alike = a->kind == b->kind && a->n == b->n;
    TRY(schema_charge(r, at, alike ? steps_to_compare(a) : 1));
    *yes = alike && json_equals(a, b);
    return MPK_OK;
}

/* No members yet, and room for n of them. */
static mpk_status make_members(schema_reader *r, const place *at, size_t n, members *out)
{
    *out = (members){.capacity = n};
    TRY(schema_charge(r, at, COPY_STEPS * (uint64_t)n));
    NEW(r->k->cx, r->k->a, out->at, n);
    return MPK_OK;
}

/* An object of these members. */
static mpk_status make_object(schema_reader *r, const members *m, const json_value **out)
{
    json_value *made;
    NEW(r->k->cx, r->k->a, made, 1);
    *made = (json_value){.kind = JSON_KIND_OBJECT, .items = m->at, .n = m->n};
    *out = made;
    return MPK_OK;
}

/* A copy without these keywords; the members themselves are shared. */
mpk_status schema_without(schema_reader *r, const json_value *schema, const char *const *names,
                          const json_value **out)
{
    members kept = {0};
    for (size_t i = 0; i < schema->n; i++) {
        bool drop = false;
        for (const char *const *n = names; *n; n++)
            drop |= str_is(schema->items[i].key, *n);
        if (!drop)
            PUSH(r->k->cx, r->k->a, &kept, schema->items[i]);
    }
    return make_object(r, &kept, out);
}

/* ---- $ref ---- */

/* One step of a JSON pointer, unescaped: ~1 is /, ~0 is ~, %41 is A. A % that is followed by no two
 * hex digits stands for itself. */
static mpk_status unescape(schema_reader *r, str part, str *out)
{
    char *to;
    size_t n = 0;
    NEW(r->k->cx, r->k->a, to, part.n + 1);
    for (size_t i = 0; i < part.n; i++) {
        char c = part.at[i];
        if (c == '~' && i + 1 < part.n && (part.at[i + 1] == '0' || part.at[i + 1] == '1')) {
            c = part.at[++i] == '0' ? '~' : '/';
        } else if (c == '%' && i + 2 < part.n && str_hex_digit(part.at[i + 1]) >= 0 &&
                   str_hex_digit(part.at[i + 2]) >= 0) {
            c = (char)(str_hex_digit(part.at[i + 1]) * 16 + str_hex_digit(part.at[i + 2]));
            i += 2;
        }
        to[n++] = c;
    }
    *out = (str){to, n};
    return MPK_OK;
}

/* One step of a JSON pointer: a name in an object, a number in a list. */
static const json_value *step_into(const json_value *at, str name)
{
    size_t index = 0;
    if (!at || at->kind == JSON_KIND_OBJECT)
        return at ? find_member(at, name) : NULL;
    for (size_t i = 0; i < name.n; i++) {
        if (name.at[i] < '0' || name.at[i] > '9' || index >= GRAMMAR_MOST_BYTES)
            return NULL;
        index = index * 10 + (size_t)(name.at[i] - '0');
    }
    return at->kind == JSON_KIND_LIST && name.n && index < at->n ? &at->items[index] : NULL;
}

/* Follow a JSON pointer within this schema; nothing is fetched from elsewhere.
 * #/$defs/item/properties/a: each step is a member's name or an index; "#" alone is the whole
 * schema. */
mpk_status schema_find(schema_reader *r, const place *at, const json_value *ref,
                       const json_value **out)
{
    const json_value *found = r->root;
    CHECK(r->k->cx, ref->kind == JSON_KIND_STRING, MPK_EFORMAT, "$ref at %s is not a text",
          schema_where(r, at));
    str path = ref->text;
    CHECK(r->k->cx, path.n && path.at[0] == '#' && (path.n == 1 || path.at[1] == '/'),
          MPK_EUNSUPPORTED,
          "$ref \"%.*s\" at %s is not supported: it must lead into the same schema, as "
          "#/$defs/NAME does",
          STR_ARG(path), schema_where(r, at));
    for (size_t i = 2, end; i <= path.n && path.n > 1; i = end + 1) {
        str name = {0};
        for (end = i; end < path.n && path.at[end] != '/'; end++)
            ;
        TRY(unescape(r, (str){path.at + i, end - i}, &name));
        TRY(schema_charge(r, at, 1 + (found ? found->n / NAMES_A_STEP : 0)));
        found = step_into(found, name);
    }
    CHECK(r->k->cx, found, MPK_EFORMAT, "$ref \"%.*s\" at %s leads nowhere", STR_ARG(path),
          schema_where(r, at));
    *out = found;
    return MPK_OK;
}

/* The same schema without $ref and allOf.  The nesting counts merges too, so a cycle of references
 * ends with an error. Only as deep as this level: members' own references are resolved when they
 * are compiled, so recursive schemas stay finite. */
mpk_status schema_flatten(schema_reader *r, const place *at, const json_value *schema,
                          const json_value **out)
{
    static const char *const names[] = {"$ref", "allOf", NULL};
    const json_value *ref, *all, *target, *made;
    if (schema->kind != JSON_KIND_OBJECT ||
        (!json_get(schema, "$ref") && !json_get(schema, "allOf"))) {
        *out = schema;
        return MPK_OK;
    }
    CHECK(r->k->cx, r->nesting < GRAMMAR_MOST_NESTING, MPK_EUNSUPPORTED,
          "$ref and allOf at %s of the JSON schema refer to themselves", schema_where(r, at));
    r->nesting++;
    ref = json_get(schema, "$ref");
    all = json_get(schema, "allOf");
    TRY(schema_without(r, schema, names, &made));
    if (ref) {
        TRY(schema_find(r, at, ref, &target));
        TRY(schema_merge(r, at, made, target, &made));
    }
    CHECK(r->k->cx, !all || all->kind == JSON_KIND_LIST, MPK_EFORMAT, "allOf at %s is not a list",
          schema_where(r, at));
    for (size_t i = 0; all && i < all->n; i++)
        TRY(schema_merge(r, at, made, &all->items[i], &made));
    r->nesting--;
    *out = made;
    return MPK_OK;
}

/* ---- two values of one keyword ---- */

static mpk_status make_list(schema_reader *r, str key, const members *m, json_value *out)
{
    (void)r;
    *out = (json_value){.kind = JSON_KIND_LIST, .key = key, .items = m->at, .n = m->n};
    return MPK_OK;
}

/* Each option of one with each option of the other. */
static mpk_status cross(schema_reader *r, const place *at, const json_value *a, const json_value *b,
                        json_value *out)
{
    members made = {0};
    const json_value *both;
    CHECK(r->k->cx,
          a->kind == JSON_KIND_LIST && b->kind == JSON_KIND_LIST && a->n * b->n <= MOST_OPTIONS,
          MPK_ELIMIT, "the options at %s of the JSON schema multiply to more than %d",
          schema_where(r, at), MOST_OPTIONS);
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++) {
            TRY(schema_merge(r, at, &a->items[i], &b->items[k], &both));
            PUSH(r->k->cx, r->k->a, &made, *both);
        }
    return make_list(r, a->key, &made, out);
}

/* Add the names of a list that are not among `names` yet. */
static mpk_status add_names(schema_reader *r, const place *at, const json_value *list, map *names,
                            members *to)
{
    for (size_t i = 0; i < list->n; i++) {
        const json_value *v = &list->items[i];
        CHECK(r->k->cx, v->kind == JSON_KIND_STRING, MPK_EFORMAT,
              "required at %s holds something that is not a text", schema_where(r, at));
        if (map_get(names, v->text, NULL))
            continue;
        TRY(map_put(r->k->cx, r->k->a, names, v->text, 1));
        PUSH(r->k->cx, r->k->a, to, *v);
    }
    return MPK_OK;
}

/* Each name once: a list that is merged again and again must not grow each time. */
static mpk_status both_required(schema_reader *r, const place *at, const json_value *a,
                                const json_value *b, json_value *out)
{
    members made;
    map names = {0};
    TRY(make_members(r, at, a->n + b->n, &made));
    TRY(add_names(r, at, a, &names, &made));
    TRY(add_names(r, at, b, &names, &made));
    return make_list(r, a->key, &made, out);
}

/* The values that are in both lists. */
static mpk_status both_enums(schema_reader *r, const place *at, const json_value *a,
                             const json_value *b, json_value *out)
{
    members made = {0};
    for (size_t i = 0; i < a->n; i++) {
        bool both = false;
        for (size_t k = 0; k < b->n && !both; k++)
            TRY(schema_equals(r, at, &a->items[i], &b->items[k], &both));
        if (both)
            PUSH(r->k->cx, r->k->a, &made, a->items[i]);
    }
    return make_list(r, a->key, &made, out);
}

/* The types that both allow; "number" comes before "integer", so that a number is not taken for an
 * integer. {"type": "number"} and {"type": ["integer", "string"]} allow integers. */
static mpk_status both_types(schema_reader *r, const place *at, const json_value *a,
                             const json_value *b, json_value *out)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } names[] = {{"number", TYPE_NUMBER}, {"integer", TYPE_INTEGER}, {"string", TYPE_STRING},
                 {"object", TYPE_OBJECT}, {"array", TYPE_ARRAY},     {"boolean", TYPE_BOOLEAN},
                 {"null", TYPE_NULL}};
    members made = {0};
    uint32_t x, y;
    const json_value of_a = {.kind = JSON_KIND_OBJECT, .items = a, .n = 1},
                     of_b = {.kind = JSON_KIND_OBJECT, .items = b, .n = 1};
    TRY(schema_types(r, at, &of_a, &x));
    TRY(schema_types(r, at, &of_b, &y));
    x &= y;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((x & names[i].bits) == names[i].bits) {
            PUSH(r->k->cx, r->k->a, &made,
                 (json_value){.kind = JSON_KIND_STRING, .text = str_from(names[i].name)});
            x &= ~names[i].bits;
        }
    return make_list(r, a->key, &made, out);
}

/* Properties of either; one that the other side does not list must also fit the other side's
 * additionalProperties. The order of a's properties, then b's: it is the order in which an answer
 * writes them. */
static mpk_status both_properties(schema_reader *r, const place *at, const json_value *a,
                                  const json_value *b, const json_value *others_a,
                                  const json_value *others_b, json_value *out)
{
    members made;
    size_t n = a ? a->n : 0;
    n += b ? b->n : 0;
    TRY(schema_charge(r, at, a && b ? a->n * (uint64_t)b->n / NAMES_A_STEP : 0));
    TRY(make_members(r, at, n, &made));
    for (size_t i = 0; a && i < a->n; i++) {
        const json_value *other = b ? find_member(b, a->items[i].key) : NULL, *both = &a->items[i];
        if (other || others_b)
            TRY(schema_merge(r, at, both, other ? other : others_b, &both));
        json_value one = *both;
        one.key = a->items[i].key;
        PUSH(r->k->cx, r->k->a, &made, one);
    }
    for (size_t i = 0; b && i < b->n; i++) {
        const json_value *both = &b->items[i];
        if (a && find_member(a, both->key))
            continue;
        if (others_a)
            TRY(schema_merge(r, at, both, others_a, &both));
        json_value one = *both;
        one.key = b->items[i].key;
        PUSH(r->k->cx, r->k->a, &made, one);
    }
    *out = (json_value){
        .kind = JSON_KIND_OBJECT, .key = STR("properties"), .items = made.at, .n = made.n};
    return MPK_OK;
}

/* A list of names, NULL at its end. */
static bool is_one_of(str key, const char *const *names)
{
    for (; *names; names++)
        if (str_is(key, *names))
            return true;
    return false;
}

/* One value of a keyword with the meaning of two: the stricter bound, the names in either list, the
 * values in both lists.  (Two different const are left to merge_objects.) Annotations (`silent`)
 * restrict nothing: the first one stays. Two patterns would need an intersection and are refused,
 * unless they are equal. */
static mpk_status both_values(schema_reader *r, const place *at, const json_value *a,
                              const json_value *b, json_value *out)
{
    static const char *const greater[] = {"minimum",  "exclusiveMinimum", "minLength",
                                          "minItems", "minProperties",    NULL},
                             *const lesser[] = {"maximum",  "exclusiveMaximum", "maxLength",
                                                "maxItems", "maxProperties",    NULL},
                             *const schemas[] = {"additionalProperties", "items", "propertyNames",
                                                 NULL},
                             *const silent[] = {"title",         "description", "default",
                                                "examples",      "$defs",       "definitions",
                                                "$schema",       "$id",         "id",
                                                "$comment",      "example",     "deprecated",
                                                "readOnly",      "writeOnly",   "$anchor",
                                                "discriminator", NULL};
    const json_value *both;
    str key = a->key;
    bool same = is_one_of(key, silent);
    *out = *a;
    if (!same)
        TRY(schema_equals(r, at, a, b, &same));
    if (same)
        return MPK_OK;
    if (is_one_of(key, greater) || is_one_of(key, lesser)) {
        /* the stricter: the larger of lower bounds, the smaller of upper ones */
        *out = (a->number < b->number) == is_one_of(key, lesser) ? *a : *b;
        return MPK_OK;
    }
    if (str_is(key, "required") && a->kind == JSON_KIND_LIST && b->kind == JSON_KIND_LIST)
        return both_required(r, at, a, b, out);
    if (str_is(key, "type"))
        return both_types(r, at, a, b, out);
    if (str_is(key, "enum") && a->kind == JSON_KIND_LIST && b->kind == JSON_KIND_LIST)
        return both_enums(r, at, a, b, out);
    if (str_is(key, "anyOf"))
        return cross(r, at, a, b, out);
    if (str_is(key, "uniqueItems")) {
        *out = a->boolean ? *a : *b;
        return MPK_OK;
    }
    CHECK(r->k->cx, is_one_of(key, schemas), MPK_EUNSUPPORTED,
          "two different values of \"%.*s\" that hold together at %s of the JSON schema are not "
          "supported",
          STR_ARG(key), schema_where(r, at));
    /* schemas of the same part of a value: it must fit both */
    TRY(schema_merge(r, at, a, b, &both));
    *out = *both;
    out->key = key;
    return MPK_OK;
}

/* ---- two schemas ---- */

/* Keywords that patternProperties would have to be weighed against. */
static bool says_of_members(const json_value *schema)
{
    return json_get(schema, "properties") || json_get(schema, "required") ||
           json_get(schema, "additionalProperties");
}

/* Keywords of one side whose scope depends on a keyword that the other side lacks. */
static mpk_status check_sides(schema_reader *r, const place *at, const json_value *a,
                              const json_value *b)
{
    bool patterns_a = json_get(a, "patternProperties"),
         patterns_b = json_get(b, "patternProperties");
    bool prefix_a = json_get(a, "prefixItems"), prefix_b = json_get(b, "prefixItems");
    if ((patterns_a && says_of_members(b)) || (patterns_b && says_of_members(a)))
        return schema_refuse(
            r, at, "patternProperties that hold together with another schema's properties");
    if (prefix_a != prefix_b && (json_get(a, "items") || json_get(b, "items")))
        return schema_refuse(r, at, "prefixItems that hold together with another schema's items");
    return MPK_OK;
}

/* Both sides have a const, and they differ. */
static mpk_status constants_differ(schema_reader *r, const place *at, const json_value *a,
                                   const json_value *b, bool *yes)
{
    const json_value *x = find_member(a, STR("const")), *y = find_member(b, STR("const"));
    bool same = true;
    if (x && y)
        TRY(schema_equals(r, at, x, y, &same));
    *yes = !same;
    return MPK_OK;
}

/* Merge two objects: keywords of one side are kept, those of both are joined; properties need the
 * other side's additionalProperties.  If no value fits both, the result is the schema false.
 * Properties are done last, since they depend on additionalProperties of both sides as they
 * were. */
static mpk_status merge_objects(schema_reader *r, const place *at, const json_value *a,
                                const json_value *b, const json_value **out)
{
    static const json_value nothing = {.kind = JSON_KIND_BOOL};
    const json_value *properties_a = json_get(a, "properties"),
                     *properties_b = json_get(b, "properties");
    members made;
    json_value one;
    bool differ;
    TRY(constants_differ(r, at, a, b, &differ));
    if (differ) {
        *out = &nothing;
        return MPK_OK;
    }
    TRY(check_sides(r, at, a, b));
    TRY(make_members(r, at, a->n + b->n, &made));
    for (size_t i = 0; i < a->n; i++) {
        const json_value *other = find_member(b, a->items[i].key);
        if (str_is(a->items[i].key, "properties"))
            continue;
        one = a->items[i];
        if (other)
            TRY(both_values(r, at, &a->items[i], other, &one));
        PUSH(r->k->cx, r->k->a, &made, one);
    }
    for (size_t i = 0; i < b->n; i++)
        if (!find_member(a, b->items[i].key) && !str_is(b->items[i].key, "properties"))
            PUSH(r->k->cx, r->k->a, &made, b->items[i]);
    if (properties_a || properties_b) {
        TRY(both_properties(r, at, properties_a, properties_b, json_get(a, "additionalProperties"),
                            json_get(b, "additionalProperties"), &one));
        PUSH(r->k->cx, r->k->a, &made, one);
    }
    return make_object(r, &made, out);
}

/* true restricts nothing, false allows nothing.  Both sides are flattened first, so the result has
 * no allOf or $ref. The sides are not changed: results are new objects in the arena that share
 * members with them. */
mpk_status schema_merge(schema_reader *r, const place *at, const json_value *a, const json_value *b,
                        const json_value **out)
{
    CHECK(r->k->cx, r->nesting < GRAMMAR_MOST_NESTING, MPK_ELIMIT,
          "the JSON schema is nested more than %d levels deep at %s", GRAMMAR_MOST_NESTING,
          schema_where(r, at));
    TRY(schema_charge(r, at, MERGE_STEPS));
    r->nesting++;
    TRY(schema_flatten(r, at, a, &a));
    TRY(schema_flatten(r, at, b, &b));
    r->nesting--;
    if (a->kind == JSON_KIND_BOOL || b->kind == JSON_KIND_BOOL) {
        const json_value *plain = a->kind == JSON_KIND_BOOL ? a : b;
        const json_value *other = plain == a ? b : a;
        *out = plain->boolean ? other : plain;
        return MPK_OK;
    }
    CHECK(r->k->cx, a->kind == JSON_KIND_OBJECT && b->kind == JSON_KIND_OBJECT, MPK_EFORMAT,
          "a part of %s of the JSON schema is neither an object nor true or false",
          schema_where(r, at));
    TRY(schema_check_keywords(r, at, a));
    TRY(schema_check_keywords(r, at, b));
    TRY(schema_charge(r, at, a->n * (uint64_t)b->n / NAMES_A_STEP));
    r->nesting++;
    mpk_status status = merge_objects(r, at, a, b, out);
    r->nesting--;
    return status;
}

/* ---- options that exclude each other ---- */

/* *yes: the two schemas list values, none of them in both. */
static mpk_status lists_differ(schema_reader *r, const place *at, const json_value *a,
                               const json_value *b, bool *yes)
{
    const json_value *of_a = json_get(a, "enum"), *of_b = json_get(b, "enum"),
                     *one_a = json_get(a, "const"), *one_b = json_get(b, "const");
    const json_value *x = of_a ? of_a->items : one_a;
    const json_value *y = of_b ? of_b->items : one_b;
    size_t n = of_a ? of_a->n : 1;
    size_t m = of_b ? of_b->n : 1;
    bool same = false;
    for (size_t i = 0; x && y && i < n && !same; i++)
        for (size_t k = 0; k < m && !same; k++)
            TRY(schema_equals(r, at, &x[i], &y[k], &same));
    *yes = x && y && !same;
    return MPK_OK;
}

/* Is the name in the schema's `required`? */
static bool requires(const json_value *schema, str name)
{
    const json_value *list = json_get(schema, "required");
    for (size_t i = 0; list && i < list->n; i++)
        if (str_equal(list->items[i].text, name))
            return true;
    return false;
}

/* Can no value fit both?  False may also mean that it was not found out.  Compared: types, listed
 * values, and members that both require and whose listed values differ. For oneOf: {"type":
 * "object", "required": ["kind"], "properties": {"kind": {"const": "a"}}} excludes the same with
 * "b". */
mpk_status schema_exclude(schema_reader *r, const place *at, const json_value *a,
                          const json_value *b, bool *yes)
{
    uint32_t x, y;
    TRY(schema_flatten(r, at, a, &a));
    TRY(schema_flatten(r, at, b, &b));
    TRY(schema_types(r, at, a, &x));
    TRY(schema_types(r, at, b, &y));
    *yes = !(x & y);
    if (!*yes && a->kind == JSON_KIND_OBJECT && b->kind == JSON_KIND_OBJECT)
        TRY(lists_differ(r, at, a, b, yes));
    if (*yes || (x & y) != TYPE_OBJECT)
        return MPK_OK;
    const json_value *list = json_get(a, "properties"), *other = json_get(b, "properties");
    for (size_t i = 0; list && other && i < list->n && !*yes; i++) {
        TRY(schema_charge(r, at, other->n / NAMES_A_STEP));
        const json_value *p = &list->items[i], *q = find_member(other, p->key);
        if (q && requires(a, p->key) && requires(b, p->key))
            TRY(lists_differ(r, at, p, q, yes));
    }
    return MPK_OK;
}
