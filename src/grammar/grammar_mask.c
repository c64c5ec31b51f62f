/* grammar_mask.c - matchers: which tokens may come next, and what a token leads to.
 *
 * The mask of a situation is found by walking the trees of tokens (grammar_vocab.c) with the
 * automaton and is kept; a tree is asked with counts made equal where they do not matter within
 * its longest token, so that the masks inside of a long text with a limit are found once.
 *
 * A mask is cheap where few bytes may come, as at JSON's punctuation: the walk leaves the tree's
 * branches at their first byte.  Inside a free string nearly every token fits, and the whole tree
 * is walked once. */
#include <stdlib.h>

#include "grammar/grammar_vocab.h"

/* Matchers of one grammar share its situations and masks, so the grammar lists them: situations
 * in which no matcher is may be forgotten. */
mpk_status grammar_matcher_open(mpk_context *cx, grammar *g, const grammar_vocab *v,
                                grammar_matcher **out)
{
    grammar_matcher *m = calloc(1, sizeof *m);
    CHECK(cx, m, MPK_ENOMEM, "out of memory for a matcher");
    m->grammar = g;
    m->vocab = v;
    g->store.work = 0;
    mpk_status status = situation_start(cx, g, &m->situation);
    if (status != MPK_OK) {
        free(m);
        return status;
    }
    m->next = g->matchers;
    g->matchers = m;
    *out = m;
    return MPK_OK;
}

/* The grammar keeps a list of its matchers, because store_forget has to move them. */
void grammar_matcher_close(grammar_matcher *m)
{
    if (!m)
        return;
    grammar_matcher **link = &m->grammar->matchers;
    while (*link != m)
        link = &(*link)->next;
    *link = m->next;
    free(m);
}

/* What was shown last stays m's own. */
void grammar_matcher_go(grammar_matcher *m, const grammar_matcher *to)
{
    m->situation = to->situation;
}

/* ---- masks ---- */

/* Depth first; path[d] is the situation after d bytes.  A byte that cannot come skips its whole
 * subtree, which is what makes a mask cheap. */
static mpk_status walk_tree(mpk_context *cx, grammar *g, const token_tree *t, uint32_t from,
                            uint32_t *words)
{
    uint32_t *path;
    NEW(cx, &g->store.arena, path, t->longest + 1);
    path[0] = from;
    mpk_status status = MPK_OK;
    for (uint32_t i = 0; i < t->nodes.n && status == MPK_OK;) {
        const token_node *n = &t->nodes.at[i];
        status = situation_step(cx, g, path[n->depth], n->byte, &path[n->depth + 1]);
        bool fits = status == MPK_OK && path[n->depth + 1];
        for (uint32_t k = 0; fits && k < n->n; k++)
            words[t->ids[n->first + k] / 32] |= 1u << t->ids[n->first + k] % 32;
        i = fits ? i + 1 : n->skip;
    }
    return status;
}

static uint32_t count_bits(const uint32_t *words, uint32_t n)
{
    uint32_t bits = 0;
    for (uint32_t k = 0; k < n; k++)
        bits += (uint32_t)__builtin_popcount(words[k]);
    return bits;
}

/* The mask of one class of tokens, from the store or computed now. */
static mpk_status find_part(mpk_context *cx, grammar_matcher *m, uint32_t length, mask_part *part)
{
    store *s = &m->grammar->store;
    const token_tree *t = &m->vocab->trees[length];
    uint32_t from, index, n_words = grammar_mask_words(m->vocab);
    TRY(situation_clamp(cx, m->grammar, m->situation, length, t->longest, &from));
    if (!pair_get(&s->masks[length], from, &index)) {
        mask_part made;
        NEW(cx, &s->arena, made.words, n_words);
        TRY(walk_tree(cx, m->grammar, t, from, made.words));
        made.n = count_bits(made.words, n_words);
        index = (uint32_t)s->mask_parts.n;
        PUSH(cx, &s->arena, &s->mask_parts, made);
        TRY(pair_put(cx, &s->arena, &s->masks[length], from, index));
    }
    *part = s->mask_parts.at[index];
    return MPK_OK;
}

/* Put the parts together; most masks have one that is not empty.  How many bits are set. */
static uint32_t join_parts(const mask_part *parts, uint32_t n_words, uint32_t *words)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < GRAMMAR_LENGTHS; i++) {
        if (!n && parts[i].n)
            memcpy(words, parts[i].words, n_words * sizeof *words);
        for (uint32_t k = 0; n && parts[i].n && k < n_words; k++)
            words[k] |= parts[i].words[k];
        n += parts[i].n;
    }
    if (!n)
        memset(words, 0, n_words * sizeof *words);
    return n;
}

/* Is the mask that is made of these parts the last one again?  Parts that are kept do not move. */
static void note_shown(grammar_matcher *m, const mask_part *parts, bool may_end)
{
    m->is_same = m->shown_end == may_end;
    m->shown_end = may_end;
    for (uint32_t i = 0; i < GRAMMAR_LENGTHS; i++) {
        m->is_same &= m->shown[i] == parts[i].words;
        m->shown[i] = parts[i].words;
    }
}

/* Called before a mask or a token: the limit of work applies to each of them, and the store is
 * emptied if it has become large. */
static mpk_status make_room(mpk_context *cx, grammar *g)
{
    g->store.work = 0;
    return g->store.arena.reserved_bytes < GRAMMAR_FULL_STORE ? MPK_OK : store_forget(cx, g);
}

/* A bit for each token that may come next, with the tokens that end an answer if it may end here;
 * *n is how many. Three parts, for short, longer and all other tokens, are found apart, since for
 * short tokens many situations count as one (clamped, grammar_parts.h). After a text that masks
 * allowed *n is never 0: dead ends were removed. */
mpk_status grammar_matcher_mask(mpk_context *cx, grammar_matcher *m, uint32_t *words, uint32_t *n)
{
    const grammar_vocab *v = m->vocab;
    mask_part parts[GRAMMAR_LENGTHS];
    TRY(make_room(cx, m->grammar));
    for (uint32_t i = 0; i < GRAMMAR_LENGTHS; i++)
        TRY(find_part(cx, m, i, &parts[i]));
    *n = join_parts(parts, grammar_mask_words(v), words);
    bool may_end = m->grammar->store.situations.at[m->situation].may_end;
    for (uint32_t i = 0; i < v->n_ends && may_end; i++) {
        uint32_t *word = &words[v->ends[i] / 32], bit = 1u << v->ends[i] % 32;
        *n += !(*word & bit);
        *word |= bit;
    }
    note_shown(m, parts, may_end);
    return MPK_OK;
}

bool grammar_matcher_is_same(const grammar_matcher *m)
{
    return m->is_same;
}

/* ---- what comes ---- */

/* Bytes that do not fit leave the matcher where it was; situations that were computed on the way
 * are kept. */
mpk_status grammar_matcher_read(mpk_context *cx, grammar_matcher *m, str bytes, bool *fits,
                                bool *may_end)
{
    uint32_t at = m->situation;
    m->grammar->store.work = 0;
    for (size_t i = 0; i < bytes.n && at; i++)
        TRY(situation_step(cx, m->grammar, at, (uint8_t)bytes.at[i], &at));
    *fits = at != 0;
    if (at)
        m->situation = at;
    *may_end = at && m->grammar->store.situations.at[at].may_end;
    return MPK_OK;
}

/* *over: the answer is complete and nothing may follow, so the request can end without an end
 * token. */
mpk_status grammar_matcher_take(mpk_context *cx, grammar_matcher *m, int32_t token, bool *over)
{
    const grammar_vocab *v = m->vocab;
    bool fits = false, may_end = false;
    TRY(make_room(cx, m->grammar));
    if (token >= 0 && (uint32_t)token < v->n_tokens && v->tokens[token].n)
        TRY(grammar_matcher_read(cx, m, v->tokens[token], &fits, &may_end));
    CHECK(
        cx, fits, MPK_EARG,
        "token %d does not follow the grammar: the request's other rules leave no token that does",
        token);
    const situation *now = &m->grammar->store.situations.at[m->situation];
    *over = now->may_end && !now->n;
    return MPK_OK;
}
