/* grammar_schema_list.c - arrays of a schema: prefixItems, items, and how many.
 *
 * [A, B] as prefixItems, items C, minItems 1, maxItems 4:
 *
 *   A ( , B ( , C ){0,2} )?      each part knows how many items stand before it */
#include "grammar/grammar_schema.h"

enum { MOST_PREFIX = 500 };

typedef struct list_rules {
    const json_value *prefix; /* NULL: none */
    const node *item;         /* of the items after the prefix */
    bool item_is_never;
    uint32_t n_prefix, min, max;
    const node *comma; /* and a blank */
} list_rules;

/* The items after the prefix, if `before` items precede them. */
static mpk_status tail(schema_reader *r, const list_rules *l, uint32_t before, const node **out)
{
    uint32_t min = l->min > before ? l->min - before : 0;
    uint32_t max = l->max == GRAMMAR_FOREVER ? l->max : l->max - before;
    const node *more;
    if (before > l->max || (l->item_is_never && min))
        return node_never(r->k, out);
    if (l->item_is_never || !max)
        return node_bytes(r->k, (str){0}, out);
    TRY(node_pair(r->k, NODE_SEQ, l->comma, l->item, &more));
    if (before)
        return node_repeat(r->k, more, min, max, out);
    uint32_t others = max == GRAMMAR_FOREVER ? max : max - 1;
    TRY(node_repeat(r->k, more, min ? min - 1 : 0, others, &more));
    TRY(node_pair(r->k, NODE_SEQ, l->item, more, &more));
    return min ? (*out = more, MPK_OK) : node_repeat(r->k, more, 0, 1, out);
}

/* Item i of the prefix and `rest`, which follows it; or nothing, if the list may end before it. */
static mpk_status add_prefix(schema_reader *r, const place *at, const list_rules *l, uint32_t i,
                             const node *rest, const node **out)
{
    const place here = {at, STR("prefixItems")};
    const node *item, *empty;
    node *alt;
    TRY(schema_node(r, &here, &l->prefix->items[i], &item));
    TRY(node_pair(r->k, NODE_SEQ, item, rest, &item));
    if (i)
        TRY(node_pair(r->k, NODE_SEQ, l->comma, item, &item));
    TRY(node_new(r->k, NODE_ALT, &alt));
    TRY(node_add(r->k, alt, item));
    if (i >= l->min) {
        TRY(node_bytes(r->k, (str){0}, &empty));
        TRY(node_add(r->k, alt, empty));
    }
    *out = alt;
    return MPK_OK;
}

/* All items, from the last of the prefix to the first; items beyond maxItems are ignored. */
static mpk_status prefixed(schema_reader *r, const place *at, const list_rules *l, const node **out)
{
    const uint32_t n = l->n_prefix < l->max ? l->n_prefix : l->max;
    if (n < l->n_prefix)
        TRY(node_bytes(r->k, (str){0}, out));
    else
        TRY(tail(r, l, n, out));
    for (uint32_t i = n; i-- > 0;)
        TRY(add_prefix(r, at, l, i, *out, out));
    return MPK_OK;
}

/* prefixItems and items, or as drafts before 2020 name them, items (a list) and additionalItems. */
static mpk_status read_items(schema_reader *r, const place *at, const json_value *schema,
                             list_rules *l)
{
    const json_value *items = json_get(schema, "items");
    bool old = json_is(items, JSON_KIND_LIST);
    const place here = {at, old ? STR("additionalItems") : STR("items")};
    l->prefix = old ? items : json_get(schema, "prefixItems");
    if (old)
        items = json_get(schema, "additionalItems");
    CHECK(r->k->cx, !l->prefix || l->prefix->kind == JSON_KIND_LIST, MPK_EFORMAT,
          "prefixItems at %s is not a list", schema_where(r, at));
    l->n_prefix = l->prefix ? (uint32_t)l->prefix->n : 0;
    CHECK(r->k->cx, l->n_prefix <= MOST_PREFIX, MPK_ELIMIT,
          "%u prefixItems at %s: at most %d are taken", l->n_prefix, schema_where(r, at),
          MOST_PREFIX);
    l->item_is_never = items && items->kind == JSON_KIND_BOOL && !items->boolean;
    return items ? schema_as_rule(r, &here, items, &l->item) : schema_any(r, &l->item);
}

/* uniqueItems needs an automaton of unreasonable size and is refused, unless there is at most one
 * item. An array that is not restricted at all shares one rule with all of its kind. */
mpk_status schema_array(schema_reader *r, const place *at, const json_value *schema,
                        const node **out)
{
    list_rules l = {.max = GRAMMAR_FOREVER};
    const node *open, *close, *blank, *body;
    const json_value *unique = json_get(schema, "uniqueItems");
    TRY(schema_count(r, at, schema, "minItems", &l.min));
    TRY(schema_count(r, at, schema, "maxItems", &l.max));
    if (unique && unique->boolean && l.max > 1)
        return schema_refuse(r, at, "uniqueItems");
    if (!json_get(schema, "items") && !json_get(schema, "prefixItems") && !l.min &&
        l.max == GRAMMAR_FOREVER)
        return schema_any_array(r, out);
    TRY(read_items(r, at, schema, &l));
    TRY(schema_blank(r, &blank));
    TRY(schema_text(r, ",", &l.comma));
    TRY(node_pair(r->k, NODE_SEQ, l.comma, blank, &l.comma));
    if (l.min > l.max)
        return node_never(r->k, out);
    TRY(prefixed(r, at, &l, &body));
    TRY(schema_text(r, "[", &open));
    TRY(schema_text(r, "]", &close));
    return schema_join(r, (const node *[]){open, blank, body, blank, close, NULL}, out);
}
