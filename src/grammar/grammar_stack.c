/* grammar_stack.c - sets of stacks and situations, each with one number.
 *
 * A set of stacks is stored as the list of its tops, each with the set that may lie below it;
 * equal lists have one number, so that two texts after which the same may follow are in the same
 * situation.  Numbers of sets rise from the bottom up.  Everything here only grows; store_forget
 * begins anew.
 *
 * Why one number for a situation pays: in the middle of a JSON string every further letter leads
 * to the same situation, so its masks are found once and then looked up. */
#include <stdlib.h>

#include "grammar/grammar_parts.h"

/* ---- tables of pairs ---- */

/* Of pairs of small numbers, packed in one word. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

/* A value of 0 marks a free slot, so values are stored plus one. */
bool pair_get(const pair_table *t, uint64_t key, uint32_t *value)
{
    for (uint64_t i = mix(key); t->capacity; i++) {
        const pair_slot *s = &t->slots[i & (t->capacity - 1)];
        if (!s->value)
            return false;
        if (s->key == key) {
            *value = s->value - 1;
            return true;
        }
    }
    return false;
}

/* The table has room and lacks the key: pair_put sees to both. Values are stored plus 1, so that 0
 * is an empty slot. */
static void put_slot(pair_table *t, uint64_t key, uint32_t value)
{
    uint64_t i = mix(key);
    while (t->slots[i & (t->capacity - 1)].value)
        i++;
    t->slots[i & (t->capacity - 1)] = (pair_slot){key, value + 1};
}

/* At most three quarters full; old slots stay in the arena. */
mpk_status pair_put(mpk_context *cx, arena *a, pair_table *t, uint64_t key, uint32_t value)
{
    if (4 * t->n >= 3 * t->capacity) {
        pair_table old = *t;
        t->capacity = old.capacity ? 2 * old.capacity : 64;
        NEW(cx, a, t->slots, t->capacity);
        for (size_t i = 0; i < old.capacity; i++)
            if (old.slots[i].value)
                put_slot(t, old.slots[i].key, old.slots[i].value - 1);
    }
    put_slot(t, key, value);
    t->n++;
    return MPK_OK;
}

/* ---- one number for equal contents ---- */

/* The number of a content.  kind ('S' a set of stacks, 'I' items of a situation), flag and
 * content form the key; *known if it has a number already.  The key is made in the arena and
 * given back if it was known.  The store's size is checked here, since everything new passes
 * through here. */
static mpk_status look_up(mpk_context *cx, store *s, char kind, bool flag, const void *content,
                          size_t bytes, str *key, bool *known, uint32_t *out)
{
    uint64_t number;
    char *copy;
    CHECK(cx, s->arena.reserved_bytes < GRAMMAR_MOST_STORE, MPK_ELIMIT,
          "the grammar is too ambiguous: following it takes more than %zu MiB",
          GRAMMAR_MOST_STORE >> 20);
    arena_mark mark = arena_get_mark(&s->arena);
    NEW(cx, &s->arena, copy, bytes + 2);
    copy[0] = kind;
    copy[1] = (char)flag;
    if (bytes)
        memcpy(copy + 2, content, bytes);
    *key = (str){copy, bytes + 2};
    *known = map_get(&s->by_content, *key, &number);
    if (*known) {
        arena_reset(&s->arena, mark);
        *out = (uint32_t)number;
    }
    return MPK_OK;
}

/* By state, then by count: equal sets get equal lists, and drop_covered finds counts side by
 * side. */
static int compare_entries(const void *a, const void *b)
{
    const stack_entry *x = a, *y = b;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return x->count < y->count ? -1 : x->count > y->count;
}

/* Of two counts that have reached the minimum, the lower one allows all that the higher one
 * does. */
static uint32_t drop_covered(const automaton *a, stack_entry *e, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        const grammar_state *s = &a->states.at[e[i].state];
        const stack_entry *last = kept ? &e[kept - 1] : NULL;
        if (last && s->kind == STATE_COUNT && last->count >= s->min && last->state == e[i].state &&
            last->below == e[i].below)
            continue;
        e[kept++] = e[i];
    }
    return kept;
}

/* Sort the entries and drop those that others cover, so that equal sets are equal bytes. */
mpk_status stack_intern(mpk_context *cx, grammar *g, stack_entry *entries, uint32_t n,
                        bool may_be_empty, uint32_t *out)
{
    store *s = &g->store;
    str key;
    bool known;
    if (n > 1)
        qsort(entries, n, sizeof *entries, compare_entries);
    n = drop_covered(&g->automaton, entries, n);
    TRY(look_up(cx, s, 'S', may_be_empty, entries, n * sizeof *entries, &key, &known, out));
    if (known)
        return MPK_OK;
    *out = (uint32_t)s->stacks.n;
    TRY(map_put(cx, &s->arena, &s->by_content, key, *out));
    PUSH(cx, &s->arena, &s->stacks, (stack_set){(uint32_t)s->entries.n, n, may_be_empty});
    for (uint32_t i = 0; i < n; i++)
        PUSH(cx, &s->arena, &s->entries, entries[i]);
    return MPK_OK;
}

/* Push one entry on all stacks of a set. */
mpk_status stack_push(mpk_context *cx, grammar *g, uint32_t top, uint32_t count, uint32_t below,
                      uint32_t *out)
{
    stack_entry e = {top, count, below};
    return stack_intern(cx, g, &e, 1, false, out);
}

/* ---- unions ---- */

static mpk_status unite(mpk_context *cx, grammar *g, uint32_t a, uint32_t b, uint32_t depth,
                        uint32_t *out);

/* Entry i of a set; NULL past its last. */
static const stack_entry *entry_of(const store *s, stack_set set, uint32_t i)
{
    return i < set.n ? &s->entries.at[set.first + i] : NULL;
}

/* Compare entries of two sets that are merged; a missing entry comes after every other.  At most
 * one is missing. */
static int order_of(const stack_entry *e, const stack_entry *f)
{
    if (!e)
        return 1;
    return f ? compare_entries(e, f) : -1;
}

/* Merge the entries of two sets into `to`; the store's entries may move meanwhile. */
static mpk_status merge(mpk_context *cx, grammar *g, stack_set x, stack_set y, uint32_t depth,
                        stack_entry *to, uint32_t *n)
{
    const store *s = &g->store;
    uint32_t i = 0, j = 0;
    *n = 0;
    while (i < x.n || j < y.n) {
        const stack_entry *e = entry_of(s, x, i), *f = entry_of(s, y, j);
        const int order = order_of(e, f);
        stack_entry one = order <= 0 ? *e : *f;
        if (order == 0)
            TRY(unite(cx, g, e->below, f->below, depth + 1, &one.below));
        to[(*n)++] = one;
        i += order <= 0;
        j += order >= 0;
    }
    return MPK_OK;
}

/* The union of two sets of stacks. Each pair is united once and remembered, so shared parts cost
 * one step however often they meet. */
static mpk_status unite(mpk_context *cx, grammar *g, uint32_t a, uint32_t b, uint32_t depth,
                        uint32_t *out)
{
    store *s = &g->store;
    stack_set x = s->stacks.at[a], y = s->stacks.at[b];
    uint64_t key = a < b ? (uint64_t)a << 32 | b : (uint64_t)b << 32 | a;
    stack_entry *made;
    uint32_t n;
    if (a == b || pair_get(&s->unions, key, out)) {
        *out = a == b ? a : *out;
        return MPK_OK;
    }
    CHECK(cx, depth < GRAMMAR_MOST_DEPTH, MPK_ELIMIT,
          "the grammar is too ambiguous: more than %d levels differ", GRAMMAR_MOST_DEPTH);
    s->work += x.n + y.n;
    NEW(cx, &s->arena, made, x.n + y.n);
    TRY(merge(cx, g, x, y, depth, made, &n));
    TRY(stack_intern(cx, g, made, n, x.may_be_empty || y.may_be_empty, out));
    return pair_put(cx, &s->arena, &s->unions, key, *out);
}

mpk_status stack_unite(mpk_context *cx, grammar *g, uint32_t a, uint32_t b, uint32_t *out)
{
    return unite(cx, g, a, b, 0, out);
}

/* ---- counts that do not matter ---- */

/* A count that behaves the same for this many more repetitions. */
static uint32_t clamp_count(const grammar_state *s, uint32_t count, uint32_t bytes)
{
    if (s->kind != STATE_COUNT)
        return count;
    if ((uint64_t)count + bytes < s->min)
        return 0;
    return count >= s->min && (uint64_t)count + bytes < s->max ? s->min : count;
}

/* Counts are made equal where they cannot matter within `bytes` bytes, level by level.  Below
 * the limit of depth a stack stays as it is: clamping only saves work, and may be left out. */
static mpk_status clamp(mpk_context *cx, grammar *g, uint32_t stack, uint32_t length,
                        uint32_t bytes, uint32_t depth, uint32_t *out)
{
    store *s = &g->store;
    stack_set set = s->stacks.at[stack];
    stack_entry *made;
    *out = stack;
    if (!set.n || pair_get(&s->clamped[length], stack, out) || depth == GRAMMAR_MOST_DEPTH)
        return MPK_OK;
    NEW(cx, &s->arena, made, set.n);
    for (uint32_t i = 0; i < set.n; i++) {
        made[i] = s->entries.at[set.first + i];
        made[i].count = clamp_count(&g->automaton.states.at[made[i].state], made[i].count, bytes);
        TRY(clamp(cx, g, made[i].below, length, bytes, depth + 1, &made[i].below));
    }
    uint32_t n = 0, one;
    TRY(stack_intern(cx, g, made, set.n ? 1 : 0, set.may_be_empty, out));
    /* counts may have become equal: then their stacks are united */
    for (n = 1; n < set.n; n++) {
        TRY(stack_intern(cx, g, &made[n], 1, false, &one));
        TRY(stack_unite(cx, g, *out, one, out));
    }
    return pair_put(cx, &s->arena, &s->clamped[length], stack, *out);
}

mpk_status stack_clamp(mpk_context *cx, grammar *g, uint32_t stack, uint32_t length, uint32_t bytes,
                       uint32_t *out)
{
    return clamp(cx, g, stack, length, bytes, 0, out);
}

/* ---- situations ---- */

/* For qsort: a total order, so equal situations are sorted equally. */
static int compare_items(const void *a, const void *b)
{
    const situation_item *x = a, *y = b;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return x->stack < y->stack ? -1 : x->stack > y->stack;
}

/* Items are sorted by state, and those with the same state become one item with the union of
 * their stacks; then equal situations are equal bytes, and `by_content` finds them. */
mpk_status situation_intern(mpk_context *cx, grammar *g, situation_item *items, uint32_t n,
                            bool may_end, uint32_t *out)
{
    store *s = &g->store;
    uint32_t kept = 0;
    str key;
    bool known;
    if (n > 1)
        qsort(items, n, sizeof *items, compare_items);
    for (uint32_t i = 0; i < n; i++)
        if (kept && items[kept - 1].state == items[i].state)
            TRY(stack_unite(cx, g, items[kept - 1].stack, items[i].stack, &items[kept - 1].stack));
        else
            items[kept++] = items[i];
    CHECK(cx, kept <= GRAMMAR_MOST_ITEMS, MPK_ELIMIT,
          "the grammar is too ambiguous: a text is at %u places at once", kept);
    TRY(look_up(cx, s, 'I', may_end, items, kept * sizeof *items, &key, &known, out));
    if (known)
        return MPK_OK;
    *out = (uint32_t)s->situations.n;
    TRY(map_put(cx, &s->arena, &s->by_content, key, *out));
    PUSH(cx, &s->arena, &s->situations,
         (situation){.first = (uint32_t)s->items.n, .n = kept, .may_end = may_end});
    for (uint32_t i = 0; i < kept; i++)
        PUSH(cx, &s->arena, &s->items, items[i]);
    return MPK_OK;
}

/* The same situation with clamped stacks: it has the same mask for tokens of up to `bytes`
 * bytes. */
mpk_status situation_clamp(mpk_context *cx, grammar *g, uint32_t from, uint32_t length,
                           uint32_t bytes, uint32_t *out)
{
    store *s = &g->store;
    situation old = s->situations.at[from];
    situation_item *made;
    NEW(cx, &s->arena, made, old.n);
    for (uint32_t i = 0; i < old.n; i++) {
        made[i] = s->items.at[old.first + i];
        TRY(stack_clamp(cx, g, made[i].stack, length, bytes, &made[i].stack));
    }
    return situation_intern(cx, g, made, old.n, old.may_end, out);
}

/* ---- the store ---- */

/* Number 0 of sets and situations: the empty stack, and the situation that nothing fits. */
mpk_status store_open(mpk_context *cx, grammar *g)
{
    uint32_t empty, nothing;
    TRY(stack_intern(cx, g, NULL, 0, true, &empty));
    return situation_intern(cx, g, NULL, 0, false, &nothing);
}

void store_close(store *s)
{
    arena_free(&s->arena);
    *s = (store){0};
}

/* Copy the sets of another store, from the bottom up: numbers[i] is the new number of set i. */
static mpk_status copy_stacks(mpk_context *cx, grammar *g, const store *old, const bool *wanted,
                              uint32_t *numbers)
{
    for (uint32_t i = 1; i < old->stacks.n; i++) {
        stack_set set = old->stacks.at[i];
        stack_entry *made;
        if (!wanted[i])
            continue;
        NEW(cx, &g->store.arena, made, set.n);
        for (uint32_t j = 0; j < set.n; j++) {
            made[j] = old->entries.at[set.first + j];
            made[j].below = numbers[made[j].below];
        }
        TRY(stack_intern(cx, g, made, set.n, set.may_be_empty, &numbers[i]));
    }
    return MPK_OK;
}

/* Mark the sets on which the matchers' situations rest, from the top down. */
static void mark_wanted(const grammar *g, const store *old, bool *wanted)
{
    for (const grammar_matcher *m = g->matchers; m; m = m->next) {
        const situation *at = &old->situations.at[m->situation];
        for (uint32_t i = 0; i < at->n; i++)
            wanted[old->items.at[at->first + i].stack] = true;
    }
    for (size_t i = old->stacks.n; i-- > 1;)
        for (uint32_t j = 0; wanted[i] && j < old->stacks.at[i].n; j++)
            wanted[old->entries.at[old->stacks.at[i].first + j].below] = true;
}

/* numbers[]: the stack of the new store for each that was copied. */
static mpk_status copy_situation(mpk_context *cx, grammar *g, const store *old,
                                 const uint32_t *numbers, grammar_matcher *m)
{
    const situation *at = &old->situations.at[m->situation];
    situation_item *made;
    NEW(cx, &g->store.arena, made, at->n);
    for (uint32_t i = 0; i < at->n; i++) {
        const situation_item *item = &old->items.at[at->first + i];
        made[i] = (situation_item){item->state, numbers[item->stack]};
    }
    return situation_intern(cx, g, made, at->n, at->may_end, &m->moved);
}

/* Only what the matchers' situations need is kept. */
static mpk_status remember(mpk_context *cx, grammar *g, store *old)
{
    bool *wanted;
    uint32_t *numbers;
    NEW(cx, &old->arena, wanted, old->stacks.n);
    NEW(cx, &old->arena, numbers, old->stacks.n);
    TRY(store_open(cx, g));
    mark_wanted(g, old, wanted);
    TRY(copy_stacks(cx, g, old, wanted, numbers));
    for (grammar_matcher *m = g->matchers; m; m = m->next)
        TRY(copy_situation(cx, g, old, numbers, m));
    return MPK_OK;
}

/* If memory runs out, or a limit is reached, the old store is kept, and no matcher has moved
 * yet. */
mpk_status store_forget(mpk_context *cx, grammar *g)
{
    store old = g->store;
    g->store = (store){0};
    mpk_status status = remember(cx, g, &old);
    if (status != MPK_OK) {
        store_close(&g->store);
        g->store = old;
        return status;
    }
    for (grammar_matcher *m = g->matchers; m; m = m->next) {
        m->situation = m->moved;
        memset(m->shown, 0, sizeof m->shown); /* other masks may come to lie there */
    }
    store_close(&old);
    return MPK_OK;
}
