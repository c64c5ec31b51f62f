/* grammar_run.c - from one situation to the next, a byte at a time.
 *
 * A byte moves the items that read it; from there, calls are pushed and ends are popped until all
 * items wait for a byte again (the closure).  What has been computed once is kept in the
 * situation's table.  Cost of a new step: linear in the states and stacks that it touches; every
 * step is counted, so that a mask has a limit.
 *
 * The closure of {states 3} in the example of grammar_parts.h: 3 is a SPLIT, so 6 and 2 are
 * reached; 2 reads a byte and is found; 6 is a SPLIT and reaches 5 and 4, which are found.  `todo`
 * has all that was reached, in order; it is a queue whose head is the loop's index in close_items.
 *
 * Called by grammar_mask.c, and to test literals by grammar_schema.c. */
#include "grammar/grammar_parts.h"

/* ---- what the closure has seen ---- */

/* A situation's items differ in small numbers: products spread them over the table. */
static uint64_t hash_item(const closure_item *i)
{
    uint64_t x = ((uint64_t)i->state << 32 | i->stack) + (uint64_t)i->count * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 28;
}

/* The closure's items are found through a table of places, at most half full.  It grows
 * fourfold; the smaller one stays in the arena. */
static mpk_status grow_places(mpk_context *cx, store *s)
{
    if (2 * (s->todo.n + 1) < s->n_places)
        return MPK_OK;
    size_t n = s->n_places ? 4 * s->n_places : 256;
    uint32_t *places;
    NEW(cx, &s->arena, places, n);
    s->places = places;
    s->n_places = n;
    for (size_t i = 0; i < s->todo.n; i++) {
        uint64_t at = hash_item(&s->todo.at[i]);
        while (s->places[at & (s->n_places - 1)])
            at++;
        s->todo.at[i].place = (uint32_t)(at & (s->n_places - 1));
        s->places[s->todo.at[i].place] = (uint32_t)i + 1;
    }
    return MPK_OK;
}

/* Add a state with a stack, unless the closure has it already.  `work` counts these steps. The
 * table is open-addressed, with indices from 1 on; it is emptied after each closure by way of the
 * places that items keep. */
static mpk_status reach(mpk_context *cx, store *s, uint32_t to, uint32_t count, uint32_t stack)
{
    closure_item new_item = {to, count, stack, 0};
    s->work++;
    TRY(grow_places(cx, s));
    uint64_t at = hash_item(&new_item);
    for (;; at++) {
        uint32_t place = (uint32_t)(at & (s->n_places - 1)), index = s->places[place];
        if (!index) {
            new_item.place = place;
            break;
        }
        const closure_item *i = &s->todo.at[index - 1];
        if (i->state == to && i->stack == stack && i->count == count)
            return MPK_OK;
    }
    PUSH(cx, &s->arena, &s->todo, new_item);
    s->places[new_item.place] = (uint32_t)s->todo.n;
    return MPK_OK;
}

/* ---- the closure ---- */

/* Call a rule: its successor is pushed, unless that is an end. */
static mpk_status call(mpk_context *cx, grammar *g, uint32_t body, uint32_t next, uint32_t count,
                       uint32_t stack)
{
    if (g->automaton.states.at[next].kind != STATE_END)
        TRY(stack_push(cx, g, next, count, stack, &stack));
    return reach(cx, &g->store, body, 0, stack);
}

/* Does the closure have this COUNT with this stack and a count that allows as much?  With a body
 * that may be empty the closure would otherwise not end. */
static bool is_covered(store *s, size_t before, const closure_item *at)
{
    s->work += before;
    for (size_t i = 0; i < before; i++) {
        const closure_item *other = &s->todo.at[i];
        if (other->state == at->state && other->stack == at->stack && other->count < at->count)
            return true;
    }
    return false;
}

/* The body of a counted repetition has ended once more: leave, repeat, or both.  Beyond min
 * without an upper limit the count stays, so that the number of situations is finite. */
static mpk_status count_on(mpk_context *cx, grammar *g, size_t index)
{
    closure_item at = g->store.todo.at[index];
    const grammar_state *s = &g->automaton.states.at[at.state];
    uint32_t now = at.count + 1;
    if (s->is_nullable && is_covered(&g->store, index, &at))
        return MPK_OK;
    if (at.count >= s->min)
        TRY(reach(cx, &g->store, s->b, 0, at.stack));
    if (at.count >= s->max)
        return MPK_OK;
    if (now == s->max)
        return call(cx, g, s->a, s->b, 0, at.stack);
    if (s->max == GRAMMAR_FOREVER && now > s->min)
        now = s->min;
    return call(cx, g, s->a, at.state, now, at.stack);
}

/* Return to each place from which the rule may have been called.  An empty stack below means
 * that the whole text may end here. */
static mpk_status pop(mpk_context *cx, grammar *g, uint32_t stack)
{
    store *s = &g->store;
    stack_set set = s->stacks.at[stack];
    s->may_end |= set.may_be_empty;
    for (uint32_t i = 0; i < set.n; i++) {
        stack_entry e = s->entries.at[set.first + i];
        TRY(reach(cx, s, e.state, e.count, e.below));
    }
    return MPK_OK;
}

/* Where an item leads without reading a byte. Items that read a byte are the result (s->found); all
 * others are only ways there. */
static mpk_status follow(mpk_context *cx, grammar *g, size_t index)
{
    store *s = &g->store;
    closure_item at = s->todo.at[index];
    const grammar_state *from = &g->automaton.states.at[at.state];
    switch (from->kind) {
    case STATE_BYTE:
        PUSH(cx, &s->arena, &s->found, (situation_item){at.state, at.stack});
        return MPK_OK;
    case STATE_SPLIT:
        TRY(reach(cx, s, from->a, 0, at.stack));
        return reach(cx, s, from->b, 0, at.stack);
    case STATE_CALL:
        return call(cx, g, from->a, from->b, 0, at.stack);
    case STATE_COUNT:
        return count_on(cx, g, index);
    case STATE_END:
        return pop(cx, g, at.stack);
    default:
        return MPK_OK;
    }
}

/* Clears the places of the last closure one by one: zeroing a table that has grown for the
 * largest closure would be slow for the small ones. */
static void begin_closure(store *s)
{
    for (size_t i = 0; i < s->todo.n; i++)
        s->places[s->todo.at[i].place] = 0;
    s->todo.n = s->found.n = 0;
    s->may_end = false;
}

/* follow() may append to `todo` during this loop; the limit on work bounds it. */
static mpk_status close_items(mpk_context *cx, grammar *g, uint32_t *out)
{
    store *s = &g->store;
    for (size_t i = 0; i < s->todo.n; i++) {
        CHECK(cx, s->work < GRAMMAR_MOST_WORK, MPK_ELIMIT,
              "the grammar is too ambiguous: the tokens that may come next take more than %u steps "
              "to find",
              GRAMMAR_MOST_WORK);
        TRY(follow(cx, g, i));
    }
    return situation_intern(cx, g, s->found.at, (uint32_t)s->found.n, s->may_end, out);
}

/* ---- steps ---- */

/* The automaton's start with the empty stack (set 0). */
mpk_status situation_start(mpk_context *cx, grammar *g, uint32_t *out)
{
    begin_closure(&g->store);
    TRY(reach(cx, &g->store, g->automaton.start, 0, 0));
    return close_items(cx, g, out);
}

/* The situation is copied, because new ones may move the vector that holds it. */
static mpk_status make_step(mpk_context *cx, grammar *g, uint32_t from, uint8_t byte, uint32_t *out)
{
    store *s = &g->store;
    situation at = s->situations.at[from];
    begin_closure(s);
    for (uint32_t i = 0; i < at.n; i++) {
        situation_item item = s->items.at[at.first + i];
        const grammar_state *reads = &g->automaton.states.at[item.state];
        if (g->automaton.sets.at[reads->a].bits[byte / 64] >> byte % 64 & 1)
            TRY(reach(cx, s, reads->b, 0, item.stack));
    }
    s->work += at.n;
    return close_items(cx, g, out);
}

/* The situation after a byte.  Bytes are in classes that no state distinguishes; a situation
 * remembers where each class leads (0: not known yet, so numbers are stored plus one).  *out 0:
 * the byte cannot come. */
mpk_status situation_step(mpk_context *cx, grammar *g, uint32_t from, uint8_t byte, uint32_t *out)
{
    store *s = &g->store;
    uint8_t class = g->automaton.class_of[byte];
    if (!s->situations.at[from].next) {
        uint32_t *next;
        NEW(cx, &s->arena, next, g->automaton.n_classes);
        s->situations.at[from].next = next;
    }
    uint32_t known = s->situations.at[from].next[class];
    if (!known) {
        TRY(make_step(cx, g, from, g->automaton.byte_of[class], &known));
        s->situations.at[from].next[class] = ++known;
    }
    *out = known - 1;
    return MPK_OK;
}
