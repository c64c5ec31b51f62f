/* grammar_parts.h - what a grammar is made of; for the files of this room alone.
 *
 * A front end (regular expression, schema ...) builds a tree of nodes for each rule;
 * grammar_compile.c makes states of them; grammar_run.c and grammar_stack.c run these;
 * grammar_mask.c asks them about tokens.
 *
 * The data, for the expression  a(b|c)*d:
 *
 *   tree        SEQ( CHARS a, REPEAT 0.. ( ALT( CHARS b, CHARS c ) ), CHARS d )
 *   states      0 END   1 NEVER   2 BYTE d -> 0   3 SPLIT 6 2   4 BYTE c -> 3   5 BYTE b -> 3
 *               6 SPLIT 5 4   7 BYTE a -> 3 (start)
 *   situations  1 { state 7 }   --a-->   2 { states 2, 4, 5 }   --b-->  2   --d-->   3 {}, may end
 *
 * Where a rule calls another, an item of a situation has a stack: the states to go on with when
 * rules end. */
#ifndef GRAMMAR_PARTS_H
#define GRAMMAR_PARTS_H

#include "base/json.h"
#include "base/map.h"
#include "grammar/grammar.h"

enum {
    GRAMMAR_MOST_BYTES = 1 << 20,   /* of a source */
    GRAMMAR_MOST_NODES = 200000,    /* of all trees */
    GRAMMAR_MOST_NESTING = 200,     /* of groups, of schemas */
    GRAMMAR_MOST_HEIGHT = 4096,     /* of a tree; the compiler's recursion is as deep */
    GRAMMAR_MOST_REPEATS = 1 << 30, /* a count */
    GRAMMAR_MOST_ITEMS = 16384,     /* situations that a text may be in at once */
    GRAMMAR_MOST_DEPTH = 4096,      /* of a recursion over stacks */
    GRAMMAR_FOREVER = 0x7fffffff,   /* as a greatest count: none */
    GRAMMAR_LAST_CHAR = 0x10ffff,
};
/* Limits for one mask: steps of the automaton, bytes; and when the store is emptied. */
#define GRAMMAR_MOST_WORK (60u << 20)
#define GRAMMAR_MOST_STORE ((size_t)256 << 20)
#define GRAMMAR_FULL_STORE ((size_t)64 << 20)

/* ---- trees ---- */

/* Trees are read-only once made.  A node may be the child of several: emitting it twice makes
 * its states twice. */
typedef enum node_kind {
    NODE_EMPTY,  /* the empty text */
    NODE_NEVER,  /* no text */
    NODE_CHARS,  /* one character of a set */
    NODE_BYTES,  /* a literal */
    NODE_SEQ,    /* its children one after the other */
    NODE_ALT,    /* one of its children */
    NODE_REPEAT, /* its child min to max times */
    NODE_RULE,   /* what a rule says */
} node_kind;

typedef struct char_range {
    uint32_t low, high; /* both are in it */
} char_range;
/* Settled: the ranges rise, with at least one character between two of them. */
typedef VEC(char_range) char_set;

typedef struct node node;
struct node {
    node_kind kind;
    uint32_t height;   /* 1 + that of the highest child */
    uint32_t min, max; /* REPEAT */
    uint32_t rule;     /* RULE */
    str bytes;         /* BYTES */
    char_set chars;    /* CHARS */
    VEC(const node *) children;
};

typedef struct rule {
    str name; /* for messages */
    const node *body;
    bool is_nullable; /* the compiler's */
} rule;

/* A grammar under construction.  Front ends add to it by the functions below; all of it lies in
 * `a`, which is freed when the automaton is made. */
typedef struct maker {
    mpk_context *cx;
    arena *a;
    VEC(rule) rules; /* the first is the whole */
    uint32_t n_nodes;
    /* of merging and comparing schemas, which makes no nodes: schema_charge */
    uint64_t work;
    bool in_string; /* characters are within a JSON string: chars_node escapes them */
} maker;

/* The code point at bytes.at[*at]; *at moves past it.  MPK_EFORMAT: invalid UTF-8. */
mpk_status chars_read(maker *k, str bytes, size_t *at, uint32_t *out);
/* Sets are built range by range in any order, possibly overlapping, and settled once. */
mpk_status chars_add(maker *k, char_set *set, uint32_t low, uint32_t high);
mpk_status chars_add_set(maker *k, char_set *set, const char_set *other);
/* Sort and join. */
void chars_settle(char_set *set);
/* Every character that is not in the set, which is settled; surrogates are not characters. */
mpk_status chars_invert(maker *k, const char_set *set, char_set *out);
/* What is in both. */
mpk_status chars_meet(maker *k, const char_set *a, const char_set *b, char_set *out);

/* New nodes; MPK_ENOMEM, MPK_ELIMIT. */
mpk_status node_new(maker *k, node_kind kind, node **out);
/* The child has all of its own children by now. */
mpk_status node_add(maker *k, node *parent, const node *child);
mpk_status node_bytes(maker *k, str bytes, const node **out);
/* A part that no text matches, as an array whose minItems is above its maxItems: automaton_make
 * drops the branches that contain it. */
mpk_status node_never(maker *k, const node **out);
mpk_status node_pair(maker *k, node_kind kind, const node *a, const node *b, const node **out);
mpk_status node_repeat(maker *k, const node *child, uint32_t min, uint32_t max, const node **out);
mpk_status node_rule(maker *k, uint32_t number, const node **out);
/* One character of a settled set, in JSON's spelling if in_string. */
mpk_status node_chars(maker *k, const char_set *set, const node **out);
mpk_status node_range(maker *k, uint32_t low, uint32_t high, const node **out);
/* One of these texts, as a tree of their common beginnings; escaped within a JSON string. */
mpk_status node_texts(maker *k, str *texts, size_t n, const node **out);
/* For qsort of str: by bytes, which is the order of code points; a text comes before those that
 * begin with it. */
int texts_compare(const void *a, const void *b);
/* A rule whose body is set later. */
mpk_status rule_new(maker *k, str name, uint32_t *out);

/* ---- front ends: the body of rule 0 ---- */

/* whole: the whole text matches; otherwise some part of it, which is the meaning of `pattern` in
 * a schema. */
mpk_status regex_parse_node(maker *k, str source, bool whole, const node **out);
mpk_status ebnf_parse_node(maker *k, str source, const node **out);
mpk_status schema_parse_node(maker *k, const json_value *schema, const node **out);
mpk_status json_object_node(maker *k, const node **out);
mpk_status tag_parse_node(maker *k, const json_value *source, const node **out);

/* ---- the automaton ---- */

typedef enum state_kind {
    STATE_END,   /* of a rule: go on where it was called */
    STATE_BYTE,  /* reads a byte of set a, goes to b */
    STATE_SPLIT, /* goes to a or b */
    STATE_CALL,  /* of the rule that begins at a; then b */
    STATE_COUNT, /* calls a min to max times; then b */
    STATE_NEVER,
} state_kind;

typedef struct grammar_state {
    state_kind kind;
    uint32_t a, b;
    uint32_t min, max; /* COUNT; a nullable body has min 0 */
    bool is_nullable;  /* COUNT: the body is */
} grammar_state;

/* Bit b % 64 of bits[b / 64]: byte b is in the set. */
typedef struct byte_set {
    uint64_t bits[4];
} byte_set;

typedef VEC(grammar_state) state_list;
typedef VEC(byte_set) set_list;

/* class_of: two bytes in the same sets lead to the same places, so a situation's table has one
 * entry for both. */
typedef struct automaton {
    state_list states;
    set_list sets;
    uint32_t start;
    uint32_t n_classes; /* of bytes that no set tells apart */
    uint8_t class_of[256];
    uint8_t byte_of[256]; /* one byte of each class */
} automaton;

mpk_status automaton_make(mpk_context *cx, arena *a, maker *k, automaton *out);

/* ---- stacks and situations ---- */

/* An entry of a stack: where to go on, how often the body was called if that is a COUNT, and the
 * set below. */
typedef struct stack_entry {
    uint32_t state, count, below;
} stack_entry;

/* An example, entries written state/below: three stacks 5 7, 5 9 and 4 7, tops first, are
 *
 *   set 1 = { 7/0 }   set 2 = { 7/0, 9/0 }   set 3 = { 4/1, 5/2 }
 *
 * A set of stacks: its entries are all possible tops, no two with the same state and count, in
 * rising order.  The number of a set is above those of all sets below it, so loops over numbers
 * meet what lies below first.  Set 0 is the empty stack alone. */
typedef struct stack_set {
    uint32_t first, n; /* entries */
    bool may_be_empty;
} stack_set;

typedef struct situation_item {
    uint32_t state; /* a STATE_BYTE */
    uint32_t stack; /* a set */
} situation_item;

/* The state after some text: items in order of their states.  Situation 0: nothing fits. */
typedef struct situation {
    uint32_t first, n;
    bool may_end;
    uint32_t *next; /* [n_classes] situation + 1, 0: not known yet; NULL: none is */
} situation;

/* An item of the closure: a state with a stack; `place` is where the table of seen items has it. */
typedef struct closure_item {
    uint32_t state, count, stack, place;
} closure_item;

/* A slot of a table from two numbers to a third. */
typedef struct pair_slot {
    uint64_t key;
    uint32_t value; /* + 1; 0: the slot is empty */
} pair_slot;
/* Open addressing; entries are never removed.  The table lies in an arena, which keeps its
 * smaller predecessors when it grows. */
typedef struct pair_table {
    pair_slot *slots;
    size_t n, capacity; /* a power of two */
} pair_table;

/* Classes of tokens by their lengths. */
enum { GRAMMAR_LENGTHS = 3 };

/* The tokens of one class that may come. */
typedef struct mask_part {
    uint32_t *words; /* of a whole mask, in the arena */
    uint32_t n;      /* bits that are set */
} mask_part;

/* All that was computed about a grammar; it can be forgotten and computed again. */
typedef struct store {
    arena arena;
    VEC(stack_entry) entries;
    VEC(stack_set) stacks;
    VEC(situation_item) items;
    VEC(situation) situations;
    map by_content; /* of stacks and situations: bytes -> number */
    /* two sets of stacks -> the set that has the stacks of both */
    pair_table unions;
    pair_table clamped[GRAMMAR_LENGTHS]; /* a set -> that with counts as far as they matter */
    pair_table masks[GRAMMAR_LENGTHS];   /* a situation -> number of a part */
    VEC(mask_part) mask_parts;
    uint64_t work; /* steps so far, for the limit of a mask */

    /* the closure at hand */
    VEC(closure_item) todo;
    VEC(situation_item) found;
    uint32_t *places; /* [n_places], a power of two: index in todo + 1 */
    size_t n_places;
    bool may_end;
} store;

/* The automaton does not change; the store grows with what is asked, until grammar_mask.c
 * empties it. */
struct grammar {
    arena arena;
    automaton automaton;
    store store;
    grammar_matcher *matchers; /* a list */
};

/* True and *value if the key is there. */
bool pair_get(const pair_table *t, uint64_t key, uint32_t *value);
mpk_status pair_put(mpk_context *cx, arena *a, pair_table *t, uint64_t key, uint32_t value);

mpk_status store_open(mpk_context *cx, grammar *g);
void store_close(store *s);
/* Start again with only the situations of the matchers. */
mpk_status store_forget(mpk_context *cx, grammar *g);

/* The number of the set with these n entries, which are sorted here. */
mpk_status stack_intern(mpk_context *cx, grammar *g, stack_entry *entries, uint32_t n,
                        bool may_be_empty, uint32_t *out);
mpk_status stack_push(mpk_context *cx, grammar *g, uint32_t top, uint32_t count, uint32_t below,
                      uint32_t *out);
/* The union of two sets of stacks. */
mpk_status stack_unite(mpk_context *cx, grammar *g, uint32_t a, uint32_t b, uint32_t *out);
/* A set that allows the same texts of up to this many bytes (by class of length): large counts are
 * made equal. */
mpk_status stack_clamp(mpk_context *cx, grammar *g, uint32_t stack, uint32_t length, uint32_t bytes,
                       uint32_t *out);
mpk_status situation_intern(mpk_context *cx, grammar *g, situation_item *items, uint32_t n,
                            bool may_end, uint32_t *out);

/* The situation of the empty text. */
mpk_status situation_start(mpk_context *cx, grammar *g, uint32_t *out);
/* The one after another byte. */
mpk_status situation_step(mpk_context *cx, grammar *g, uint32_t from, uint8_t byte, uint32_t *out);
mpk_status situation_clamp(mpk_context *cx, grammar *g, uint32_t from, uint32_t length,
                           uint32_t bytes, uint32_t *out);

struct grammar_matcher {
    grammar *grammar;
    const grammar_vocab *vocab; /* NULL: of bytes */
    uint32_t situation;
    uint32_t moved; /* store_forget's: what it becomes */
    /* what the last mask was made of, NULL: not known; may an end token come; was the mask before
     * it made of the same */
    const uint32_t *shown[GRAMMAR_LENGTHS];
    bool shown_end, is_same;
    grammar_matcher *next; /* of the grammar's */
};

#endif
