/* grammar_node.c - trees of a grammar, and sets of characters.
 *
 * The front ends call this; grammar_compile.c reads the trees.  Characters are code points; within
 * a JSON string those that JSON escapes are spelled so.
 *
 * Nodes lie in the maker's arena and are never freed one by one.  Numbers of nodes are bounded by
 * node_new; characters of sets, which are not nodes, by the source. */
#include <stdlib.h>

#include "grammar/grammar_parts.h"

/* ---- sets of characters ---- */

/* Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
mpk_status chars_read(maker *k, str bytes, size_t *at, uint32_t *out)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t first = (uint8_t)bytes.at[*at];
    uint32_t n = 1 + (first >= 0x80) + (first >= 0xe0) + (first >= 0xf0);
    uint32_t c = n == 1 ? first : first & (0x7f >> n);
    bool good = first < 0x80 || (first >= 0xc2 && first < 0xf5 && bytes.n - *at >= n);
    for (uint32_t i = 1; i < n && good; i++) {
        uint8_t b = (uint8_t)bytes.at[*at + i];
        good = (b & 0xc0) == 0x80;
        c = c << 6 | (b & 0x3f);
    }
    good = good && c >= least[n] && c <= GRAMMAR_LAST_CHAR && (c < 0xd800 || c > 0xdfff);
    CHECK(k->cx, good, MPK_EFORMAT, "byte %zu of the grammar is not UTF-8", *at);
    *at += n;
    *out = c;
    return MPK_OK;
}

/* Ranges may overlap and come in any order; chars_settle sorts and joins them. */
mpk_status chars_add(maker *k, char_set *set, uint32_t low, uint32_t high)
{
    PUSH(k->cx, k->a, set, (char_range){low, high});
    return MPK_OK;
}

/* Add all ranges of another set, which need not be settled. */
mpk_status chars_add_set(maker *k, char_set *set, const char_set *other)
{
    for (size_t i = 0; i < other->n; i++)
        TRY(chars_add(k, set, other->at[i].low, other->at[i].high));
    return MPK_OK;
}

static int compare_ranges(const void *a, const void *b)
{
    uint32_t x = ((const char_range *)a)->low, y = ((const char_range *)b)->low;
    return x < y ? -1 : x > y;
}

/* Sort the ranges and join those that meet or overlap, as the other functions on sets expect. */
void chars_settle(char_set *set)
{
    size_t n = 0;
    if (set->n)
        qsort(set->at, set->n, sizeof *set->at, compare_ranges);
    for (size_t i = 0; i < set->n; i++) {
        char_range r = set->at[i];
        if (n && r.low <= set->at[n - 1].high + 1) {
            if (r.high > set->at[n - 1].high)
                set->at[n - 1].high = r.high;
        } else {
            set->at[n++] = r;
        }
    }
    set->n = n;
}

/* Both sets are settled: their ranges rise and do not touch. */
mpk_status chars_meet(maker *k, const char_set *a, const char_set *b, char_set *out)
{
    *out = (char_set){0};
    for (size_t i = 0, j = 0; i < a->n && j < b->n;) {
        uint32_t low = a->at[i].low > b->at[j].low ? a->at[i].low : b->at[j].low;
        bool first_ends = a->at[i].high < b->at[j].high;
        uint32_t high = first_ends ? a->at[i].high : b->at[j].high;
        if (low <= high)
            TRY(chars_add(k, out, low, high));
        i += first_ends;
        j += !first_ends;
    }
    return MPK_OK;
}

/* All characters that are not in the set; surrogates never are. */
mpk_status chars_invert(maker *k, const char_set *set, char_set *out)
{
    char_range every[] = {{0, 0xd7ff}, {0xe000, GRAMMAR_LAST_CHAR}};
    const char_set all = {.at = every, .n = 2};
    char_set gaps = {0};
    uint32_t from = 0;
    for (size_t i = 0; i < set->n; i++) {
        if (set->at[i].low > from)
            TRY(chars_add(k, &gaps, from, set->at[i].low - 1));
        from = set->at[i].high + 1;
    }
    if (from <= GRAMMAR_LAST_CHAR)
        TRY(chars_add(k, &gaps, from, GRAMMAR_LAST_CHAR));
    return chars_meet(k, &gaps, &all, out);
}

/* ---- nodes ---- */

/* The only place where the size of a grammar is limited. */
mpk_status node_new(maker *k, node_kind kind, node **out)
{
    CHECK(k->cx, k->n_nodes < GRAMMAR_MOST_NODES, MPK_ELIMIT,
          "the grammar is too large: more than %d parts", GRAMMAR_MOST_NODES);
    k->n_nodes++;
    NEW(k->cx, k->a, *out, 1);
    (*out)->kind = kind;
    return MPK_OK;
}

/* The only place where the height is limited: nesting is counted by each front end, but what a
 * level of it adds to the tree differs (500 prefixItems are 1500 nodes below each other). */
mpk_status node_add(maker *k, node *parent, const node *child)
{
    if (parent->height <= child->height)
        parent->height = child->height + 1;
    CHECK(k->cx, parent->height <= GRAMMAR_MOST_HEIGHT, MPK_ELIMIT,
          "the grammar is nested too deeply: more than %d parts within each other",
          GRAMMAR_MOST_HEIGHT);
    PUSH(k->cx, k->a, &parent->children, child);
    return MPK_OK;
}

mpk_status node_never(maker *k, const node **out)
{
    node *n;
    TRY(node_new(k, NODE_NEVER, &n));
    *out = n;
    return MPK_OK;
}

/* bytes are borrowed: they must live as long as the maker's arena. The empty text is a node of its
 * own kind. */
mpk_status node_bytes(maker *k, str bytes, const node **out)
{
    node *n;
    TRY(node_new(k, bytes.n ? NODE_BYTES : NODE_EMPTY, &n));
    n->bytes = bytes;
    *out = n;
    return MPK_OK;
}

/* The children one after the other. */
mpk_status node_pair(maker *k, node_kind kind, const node *a, const node *b, const node **out)
{
    node *n;
    TRY(node_new(k, kind, &n));
    TRY(node_add(k, n, a));
    TRY(node_add(k, n, b));
    *out = n;
    return MPK_OK;
}

/* With max 0 it is the empty text, whatever the child is. */
mpk_status node_repeat(maker *k, const node *child, uint32_t min, uint32_t max, const node **out)
{
    node *n;
    TRY(node_new(k, max ? NODE_REPEAT : NODE_EMPTY, &n));
    n->min = min;
    n->max = max;
    if (max)
        TRY(node_add(k, n, child));
    *out = n;
    return MPK_OK;
}

/* The rule need not have a body yet: rules may call each other in a circle. */
mpk_status node_rule(maker *k, uint32_t number, const node **out)
{
    node *n;
    TRY(node_new(k, NODE_RULE, &n));
    n->rule = number;
    *out = n;
    return MPK_OK;
}

mpk_status rule_new(maker *k, str name, uint32_t *out)
{
    *out = (uint32_t)k->rules.n;
    PUSH(k->cx, k->a, &k->rules, (rule){.name = name});
    return MPK_OK;
}

/* ---- characters ---- */

/* The set as it is; an empty one matches nothing. */
static mpk_status plain_chars(maker *k, const char_set *set, const node **out)
{
    node *n;
    TRY(node_new(k, set->n ? NODE_CHARS : NODE_NEVER, &n));
    n->chars = *set;
    *out = n;
    return MPK_OK;
}

/* JSON's spelling of a character that cannot stand for itself: \n, \", \u0001. */
static mpk_status escaped_char(maker *k, uint32_t c, const node **out)
{
    static const char letters[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f',
                                   ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\'};
    char *bytes;
    NEW(k->cx, k->a, bytes, 6);
    bytes[0] = '\\';
    if (letters[c]) {
        bytes[1] = letters[c];
        return node_bytes(k, (str){bytes, 2}, out);
    }
    static const char digits[] = "0123456789abcdef";
    memcpy(bytes + 1, (char[]){'u', '0', '0', digits[c >> 4], digits[c & 15]}, 5);
    return node_bytes(k, (str){bytes, 6}, out);
}

/* The set need not be settled. */
static bool is_in(const char_set *set, uint32_t c)
{
    for (size_t i = 0; i < set->n; i++)
        if (c >= set->at[i].low && c <= set->at[i].high)
            return true;
    return false;
}

/* Inside a JSON string a character that JSON escapes is an alternative of its own, since it is
 * several bytes; all others are one set.  A range such as \u0000-\uffff includes the surrogates,
 * which are not characters and have no UTF-8: they are removed here, for all front ends. */
mpk_status node_chars(maker *k, const char_set *set, const node **out)
{
    char_range every[] = {{0, 0xd7ff}, {0xe000, GRAMMAR_LAST_CHAR}};
    char_range bare[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0xd7ff}, {0xe000, GRAMMAR_LAST_CHAR}};
    const char_set characters = {.at = every, .n = 2}, plain = {.at = bare, .n = 4};
    char_set kept;
    const node *child = NULL;
    node *alt;
    if (!k->in_string) {
        TRY(chars_meet(k, set, &characters, &kept));
        return plain_chars(k, &kept, out);
    }
    TRY(node_new(k, NODE_ALT, &alt));
    TRY(chars_meet(k, set, &plain, &kept));
    if (kept.n) {
        TRY(plain_chars(k, &kept, &child));
        TRY(node_add(k, alt, child));
    }
    for (uint32_t c = 0; c <= '\\'; c++)
        if ((c < 0x20 || c == '"' || c == '\\') && is_in(set, c)) {
            TRY(escaped_char(k, c, &child));
            TRY(node_add(k, alt, child));
        }
    *out = alt;
    return MPK_OK;
}

/* One character of [low, high]. */
mpk_status node_range(maker *k, uint32_t low, uint32_t high, const node **out)
{
    char_set set = {0};
    TRY(chars_add(k, &set, low, high));
    return node_chars(k, &set, out);
}
