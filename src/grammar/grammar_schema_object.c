/* grammar_schema_object.c - objects of a schema.
 *
 * Members come in the order of `properties`, then those that `required` alone names, then others.
 * There is a rule for each member and number of members before it, as far as that number matters:
 * whether it is the first, or all of it if the schema counts members.
 *
 * Of members a (required), b and others, without counts; a rule is named by the next member and
 * whether one stands before it:
 *
 *   a/0   ->  a  b/1
 *   b/1   ->  , b  others/1   |   others/1
 *   others/1  ->  ( , other )* */
#include "grammar/grammar_schema.h"

enum { MOST_STEPS = 100000 };

typedef struct member {
    str name;
    const node *pair; /* "name": value; NULL: no value fits, so the member cannot come */
    bool required;
} member;

/* One object of a schema while its rules are made.  The rule of member i after `before` members
 * is rules[i * (counted + 1) + before]; `before` is limited to `counted`, since larger numbers
 * make no difference. */
typedef struct object_rules {
    VEC(member) members;
    const node *other;          /* a member with another name; NULL: not allowed */
    const node *comma;          /* and a blank */
    uint32_t min, max, counted; /* counted: numbers of members above this are one */
    uint32_t *rules;            /* [members + 1][counted + 1]*/
} object_rules;

/* ---- what the schema says ---- */

/* Is it the schema that nothing fits?  NULL, no schema, fits everything. */
static bool is_false(const json_value *v)
{
    return v && v->kind == JSON_KIND_BOOL && !v->boolean;
}

/* A blank after the colon, as models write it; the reader's options define what a blank may be. */
static mpk_status make_pair(schema_reader *r, const node *name, const node *value, const node **out)
{
    const node *colon, *blank;
    TRY(schema_text(r, ":", &colon));
    TRY(schema_blank(r, &blank));
    return schema_join(r, (const node *[]){name, colon, blank, value, NULL}, out);
}

/* Name and value as a rule of its own: a member may occur at several places of the automaton.
 * With the schema false the member may not come, and m.pair stays NULL. */
static mpk_status add_member(schema_reader *r, const place *at, str name, const json_value *value,
                             object_rules *o)
{
    const place under = {at, STR("properties")}, here = {&under, name};
    const json_value key = {.kind = JSON_KIND_STRING, .text = name};
    const node *spelled, *what, *body;
    uint32_t number;
    member m = {.name = name};
    if (!is_false(value)) {
        TRY(schema_literal(r, &key, &spelled));
        TRY(value ? schema_node(r, &here, value, &what) : schema_any(r, &what));
        TRY(make_pair(r, spelled, what, &body));
        TRY(rule_new(r->k, name, &number));
        r->k->rules.at[number].body = body;
        TRY(node_rule(r->k, number, &m.pair));
    }
    PUSH(r->k->cx, r->k->a, &o->members, m);
    return MPK_OK;
}

/* The member with this name, or NULL; valid until the next member is added. */
static member *find_member(object_rules *o, const map *names, str name)
{
    uint64_t index;
    return map_get(names, name, &index) ? &o->members.at[index] : NULL;
}

/* Members that are required but not described follow additionalProperties. */
static mpk_status read_required(schema_reader *r, const place *at, const json_value *list,
                                const json_value *others, map *names, object_rules *o)
{
    CHECK(r->k->cx, !list || list->kind == JSON_KIND_LIST, MPK_EFORMAT,
          "required at %s is not a list", schema_where(r, at));
    for (size_t i = 0; list && i < list->n; i++) {
        CHECK(r->k->cx, list->items[i].kind == JSON_KIND_STRING, MPK_EFORMAT,
              "required at %s holds something that is not a text", schema_where(r, at));
        str name = list->items[i].text;
        if (!find_member(o, names, name)) {
            TRY(map_put(r->k->cx, r->k->a, names, name, o->members.n));
            TRY(add_member(r, at, name, others, o));
        }
        find_member(o, names, name)->required = true;
    }
    return MPK_OK;
}

/* The name of a member that is not listed. */
static mpk_status other_name(schema_reader *r, const place *at, const json_value *schema,
                             const object_rules *o, const node **out)
{
    const json_value *names_fit = json_get(schema, "propertyNames");
    const place here = {at, STR("propertyNames")};
    str *names;
    NEW(r->k->cx, r->k->a, names, o->members.n);
    for (size_t i = 0; i < o->members.n; i++)
        names[i] = o->members.at[i].name;
    if (!names_fit)
        return schema_other_string(r, at, names, o->members.n, out);
    const json_value type[] = {
        {.kind = JSON_KIND_STRING, .key = STR("type"), .text = STR("string")}};
    const json_value string = {.kind = JSON_KIND_OBJECT, .items = type, .n = 1}, *both;
    if (o->members.n)
        return schema_refuse(r, at, "propertyNames beside properties or required");
    TRY(schema_merge(r, &here, names_fit, &string, &both));
    return schema_node(r, &here, both, out);
}

/* Members beyond `properties`: their names must differ from the listed ones, or match the one
 * pattern that is allowed. The pair of name and value is a rule, as it may be repeated and stands
 * in several places. */
static mpk_status read_others(schema_reader *r, const place *at, const json_value *schema,
                              object_rules *o)
{
    const json_value *value = json_get(schema, "additionalProperties"),
                     *by_pattern = json_get(schema, "patternProperties");
    const place here = {at, STR("additionalProperties")};
    const node *name, *what;
    if (by_pattern && by_pattern->n) {
        if (by_pattern->n > 1 || o->members.n || !is_false(value) ||
            json_get(schema, "propertyNames"))
            return schema_refuse(
                r, at,
                "patternProperties unless it is one pattern, with \"additionalProperties\": "
                "false and without properties,");
        const json_value both[] = {
            {.kind = JSON_KIND_STRING, .key = STR("pattern"), .text = by_pattern->items[0].key}};
        TRY(schema_string(r, at, &(json_value){.kind = JSON_KIND_OBJECT, .items = both, .n = 1},
                          &name));
        value = &by_pattern->items[0];
    } else if (!is_false(value)) {
        TRY(other_name(r, at, schema, o, &name));
    }
    if (is_false(value))
        return MPK_OK;
    TRY(value ? schema_node(r, &here, value, &what) : schema_any(r, &what));
    TRY(make_pair(r, name, what, &what));
    uint32_t number;
    TRY(rule_new(r->k, STR("another member"), &number));
    r->k->rules.at[number].body = what;
    return node_rule(r->k, number, &o->other);
}

/* ---- members one after the other ---- */

static mpk_status members_from(schema_reader *r, object_rules *o, size_t i, uint32_t before,
                               const node **out);

/* Members of other names, after `before` members. */
static mpk_status others_from(schema_reader *r, const object_rules *o, uint32_t before,
                              const node **out)
{
    uint32_t min = o->min > before ? o->min - before : 0;
    uint32_t max = o->max == GRAMMAR_FOREVER ? o->max : o->max - before;
    const node *more;
    if (!o->other)
        return min ? node_never(r->k, out) : node_bytes(r->k, (str){0}, out);
    TRY(node_pair(r->k, NODE_SEQ, o->comma, o->other, &more));
    if (before || !max)
        return node_repeat(r->k, more, min, max, out);
    uint32_t others = max == GRAMMAR_FOREVER ? max : max - 1;
    TRY(node_repeat(r->k, more, min ? min - 1 : 0, others, &more));
    TRY(node_pair(r->k, NODE_SEQ, o->other, more, &more));
    return min ? (*out = more, MPK_OK) : node_repeat(r->k, more, 0, 1, out);
}

/* Member i and what follows it; or what follows without it. before: how many members stand before
 * it, as far as that matters; o->counted is the most that is told apart. For a comma 0 and 1
 * suffice, for minProperties all numbers. */
static mpk_status member_body(schema_reader *r, object_rules *o, size_t i, uint32_t before,
                              const node **out)
{
    const member *m = &o->members.at[i];
    const node *rest, *taken;
    node *alt;
    TRY(node_new(r->k, NODE_ALT, &alt));
    if (m->pair && before < o->max) {
        TRY(members_from(r, o, i + 1, before < o->counted ? before + 1 : before, &rest));
        TRY(node_pair(r->k, NODE_SEQ, m->pair, rest, &taken));
        if (before)
            TRY(node_pair(r->k, NODE_SEQ, o->comma, taken, &taken));
        TRY(node_add(r->k, alt, taken));
    }
    if (!m->required) {
        TRY(members_from(r, o, i + 1, before, &rest));
        TRY(node_add(r->k, alt, rest));
    }
    *out = alt;
    return MPK_OK;
}

/* The rules of member i exist already when those of i - 1 are made. */
static mpk_status members_from(schema_reader *r, object_rules *o, size_t i, uint32_t before,
                               const node **out)
{
    return node_rule(r->k, o->rules[i * (o->counted + 1) + before], out);
}

/* From the last member to the first, since each rule continues with those of the next member. */
static mpk_status make_rules(schema_reader *r, object_rules *o)
{
    size_t n = o->members.n;
    const node *body;
    for (size_t i = n + 1; i-- > 0;)
        for (uint32_t before = 0; before <= o->counted; before++) {
            uint32_t *number = &o->rules[i * (o->counted + 1) + before];
            TRY(rule_new(r->k, i < n ? o->members.at[i].name : STR("other members"), number));
            if (before > o->max)
                TRY(node_never(r->k, &body));
            else
                TRY(i < n ? member_body(r, o, i, before, &body) : others_from(r, o, before, &body));
            r->k->rules.at[*number].body = body;
        }
    return MPK_OK;
}

/* Members in the order of the schema, in which a model will write them. */
static mpk_status read_properties(schema_reader *r, const place *at, const json_value *schema,
                                  object_rules *o)
{
    const json_value *list = json_get(schema, "properties");
    map names = {0};
    CHECK(r->k->cx, !list || list->kind == JSON_KIND_OBJECT, MPK_EFORMAT,
          "properties at %s is not an object", schema_where(r, at));
    for (size_t i = 0; list && i < list->n; i++) {
        TRY(map_put(r->k->cx, r->k->a, &names, list->items[i].key, o->members.n));
        TRY(add_member(r, at, list->items[i].key, &list->items[i], o));
    }
    TRY(read_required(r, at, json_get(schema, "required"), json_get(schema, "additionalProperties"),
                      &names, o));
    return read_others(r, at, schema, o);
}

/* Any object; all such objects share one rule. */
static bool is_free(const json_value *schema)
{
    static const char *const keys[] = {"properties",        "required",      "additionalProperties",
                                       "patternProperties", "propertyNames", "minProperties",
                                       "maxProperties"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_get(schema, keys[i]))
            return false;
    return true;
}

/* Optional members may be left out but not moved: the order is the schema's, which keeps the number
 * of states linear. With free order n members would have n! orders. */
mpk_status schema_object(schema_reader *r, const place *at, const json_value *schema,
                         const node **out)
{
    object_rules o = {.max = GRAMMAR_FOREVER};
    const node *open, *close, *blank, *body;
    if (is_free(schema))
        return schema_any_object(r, out);
    TRY(schema_count(r, at, schema, "minProperties", &o.min));
    TRY(schema_count(r, at, schema, "maxProperties", &o.max));
    TRY(schema_blank(r, &blank));
    TRY(schema_text(r, ",", &o.comma));
    TRY(node_pair(r->k, NODE_SEQ, o.comma, blank, &o.comma));
    TRY(read_properties(r, at, schema, &o));
    o.counted = o.min || o.max != GRAMMAR_FOREVER ? (uint32_t)o.members.n : 1;
    CHECK(r->k->cx, (o.members.n + 1) * (o.counted + 1) <= MOST_STEPS, MPK_ELIMIT,
          "%zu properties with a count at %s are too many", o.members.n, schema_where(r, at));
    if (o.min > o.max)
        return node_never(r->k, out);
    NEW(r->k->cx, r->k->a, o.rules, (o.members.n + 1) * (o.counted + 1));
    TRY(make_rules(r, &o));
    TRY(members_from(r, &o, 0, 0, &body));
    TRY(schema_text(r, "{", &open));
    TRY(schema_text(r, "}", &close));
    return schema_join(r, (const node *[]){open, blank, body, blank, close, NULL}, out);
}
