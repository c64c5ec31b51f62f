/* rt_draft.h - drafts: tokens that a request may get next, guessed from its own text and tried in
 * one step (docs/runtime.md, "Drafts").
 *
 * Input: a slot's row of `history`.  Output: drafts, written into that row after the text that is
 * known; rt_step.h feeds them after the last token, and takes back those that were not drawn.
 * Called by the step task alone.
 *
 * The index of a slot holds every position q >= N of the text whose token is known, under a hash of
 * the N tokens before it: `first` has the last q of a bucket, `before[q]` the one before q.  So a
 * look-up finds where the last N tokens stood before, and the token that followed: the drafts are
 * copied from there on.  Of a few such places, the latest first, that with the longest equal text
 * before it is taken.  What the index says is compared with the text, so a hash that two texts
 * share does no harm.  A draft after the end of the text copies a draft: text that repeats itself
 * goes on repeating itself.
 *
 * Cost: a token enters the index once; a look-up compares at most RT_GRAM_TRIES places.  No scan of
 * the text.  The tokens of a prompt enter together; where the step task has a warp of its own, it
 * does that while the step runs.
 *
 * How much is drafted depends on what a wrong draft costs (rt_serving.drafts_freely), and on how
 * the last drafts went.  The text and the draft model (rt_ahead.h) are judged apart: one may know a
 * text that the other does not.
 */
#ifndef RT_DRAFT_H
#define RT_DRAFT_H

#include "rt/rt.h"

enum {
    RT_GRAM_TRIES = 8,    /* places that a look-up compares */
    RT_GRAM_LONGEST = 32, /* tokens that it compares at each */
    RT_DRAFT_FIRST = 4,   /* tokens that a request drafts at first */
    /* steps in a row without an accepted draft after which a request rests; where drafts cost
     * little it rests only if hardly any stand */
    RT_DRAFT_MISSES = 3,
    RT_DRAFT_FREE_MISSES = 16,
    /* the same of a draft model where trying costs little and guessing does not */
    RT_DRAFT_MODEL_MISSES = 5,
    RT_DRAFT_MODEL_FIRST = 2,  /* it guesses at first */
    RT_DRAFT_MODEL_DOUBTS = 2, /* after so many it guesses one, then two, four ... */
    /* tokens that it then gets without drafts; twice as many each time that it goes on missing, of
     * a draft model four times */
    RT_DRAFT_REST = 32,
    RT_DRAFT_LONG_REST = 512
};

/* A slot's row of `history`: its tokens from position 0. */
RT_FN rt_i32 *rt_slot_text(const rt_machine *m, rt_u32 slot)
{
    return (rt_i32 *)(m->step_area + m->serving->history) +
           (rt_u64)slot * m->serving->history_tokens;
}

/* ---- a draft model's state (rt_ahead.h) ---- */

RT_FN int rt_has_draft_model(const rt_machine *m)
{
    return RT_DRAFT_MODEL && m->has_draft_model;
}
RT_FN rt_ahead *rt_ahead_of(const rt_machine *m)
{
    return (rt_ahead *)(m->drafters + m->serving->n_slots);
}
RT_FN rt_ahead_slot *rt_ahead_slot_of(const rt_machine *m, rt_u32 slot)
{
    return (rt_ahead_slot *)(rt_ahead_of(m) + 1) + slot;
}
/* [n_pages] 1: the page is full, and the draft model's cache has the keys and values of its
 * tokens. */
RT_FN rt_u32 *rt_ahead_pages(const rt_machine *m)
{
    return (rt_u32 *)rt_ahead_slot_of(m, m->serving->n_slots);
}
/* Bytes from `drafters` to the end of all that. */
RT_FN rt_u64 rt_drafters_bytes(const rt_serving *s, int has_draft_model)
{
    rt_u64 n = s->n_slots * (rt_u64)sizeof(rt_drafter);
    return has_draft_model ? n + sizeof(rt_ahead) + s->n_slots * (rt_u64)sizeof(rt_ahead_slot) +
                                 s->n_pages * (rt_u64)sizeof(rt_u32)
                           : n;
}

/* ---- the index ---- */

/* Are texts looked up?  If not, all drafts are the draft model's. */
RT_FN int rt_looks_up(const rt_serving *s)
{
    return !RT_DRAFT_MODEL || s->gram_tokens;
}

/* Words of the index of a slot: its buckets, then `before` of each position. */
RT_FN rt_u64 rt_gram_words(const rt_serving *s)
{
    return (rt_u64)s->gram_mask + 1 + s->history_tokens;
}
RT_FN rt_u32 *rt_gram_first(const rt_machine *m, rt_u32 slot)
{
    return m->grams + slot * rt_gram_words(m->serving);
}
RT_FN rt_u32 *rt_gram_before(const rt_machine *m, rt_u32 slot)
{
    return rt_gram_first(m, slot) + m->serving->gram_mask + 1;
}

/* The bucket of the N tokens before `end`. */
RT_FN rt_u32 rt_gram_bucket(const rt_serving *s, const rt_i32 *end)
{
    rt_u32 h = 0;
    for (const rt_i32 *at = end - s->gram_tokens; at < end; at++) {
        h = (h + (rt_u32)*at + 1) * 0x9e3779b1u;
        h ^= h >> 15;
    }
    return h & s->gram_mask;
}

/* The slot's pages are others from now on. */
RT_FN void rt_draft_forget(rt_machine *m, rt_u32 slot)
{
    if (rt_has_draft_model(m))
        rt_ahead_slot_of(m, slot)->known = rt_ahead_slot_of(m, slot)->marked = 0;
}

/* A request begins in the slot; its index is emptied when the first token enters. */
RT_FN void rt_draft_begin(rt_machine *m, rt_u32 slot)
{
    rt_drafter *d = &m->drafters[slot];
    d->n_indexed = 0;
    d->again = m->running[slot].drafts ? 0 : RT_NONE;
    d->most = RT_DRAFT_FIRST;
    d->misses = d->tried = 0;
    d->rest = RT_DRAFT_REST;
    if (rt_has_draft_model(m)) {
        rt_ahead_slot_of(m, slot)->pays = *d;
        if (m->serving->drafts_freely)
            rt_ahead_slot_of(m, slot)->pays.most = RT_DRAFT_MODEL_FIRST;
    }
    rt_draft_forget(m, slot);
}

/* The first `known` tokens of the text are there: those that are new enter the index. */
RT_LARGE_FN void rt_draft_index(rt_machine *m, rt_u32 slot, rt_u32 known)
{
    const rt_i32 *tokens = rt_slot_text(m, slot);
    rt_u32 *first = rt_gram_first(m, slot), *before = rt_gram_before(m, slot);
    rt_drafter *d = &m->drafters[slot];
    rt_u32 n = d->n_indexed;
    for (rt_u32 i = 0; !n && i <= m->serving->gram_mask; i++)
        first[i] = RT_NONE;
    n = n ? n : m->serving->gram_tokens;
    for (; n < known; n++) {
        rt_u32 bucket = rt_gram_bucket(m->serving, tokens + n);
        before[n] = first[bucket];
        first[bucket] = n;
    }
    d->n_indexed = n;
}

/* How many tokens before a and b are equal; a has that many before it. */
RT_FN rt_u32 rt_draft_equal(const rt_i32 *a, const rt_i32 *b, rt_u32 before)
{
    rt_u32 n = 0, most = before < RT_GRAM_LONGEST ? before : RT_GRAM_LONGEST;
    while (n < most && a[-1 - (rt_i32)n] == b[-1 - (rt_i32)n])
        n++;
    return n;
}

/* Where the text goes on after what its last tokens were before, and how many of them; RT_NONE:
 * they are new. */
RT_FN rt_u32 rt_draft_find(const rt_machine *m, rt_u32 slot, rt_u32 known, rt_u32 *equal)
{
    const rt_serving *s = m->serving;
    const rt_i32 *tokens = rt_slot_text(m, slot);
    rt_u32 best = RT_NONE;
    *equal = s->gram_tokens - 1;
    if (known < s->gram_tokens)
        return RT_NONE;
    rt_u32 at = rt_gram_first(m, slot)[rt_gram_bucket(s, tokens + known)];
    for (rt_u32 i = 0; i < RT_GRAM_TRIES && at != RT_NONE; i++) {
        rt_u32 n = rt_draft_equal(tokens + at, tokens + known, at);
        if (n > *equal) {
            *equal = n;
            best = at;
        }
        at = rt_gram_before(m, slot)[at];
    }
    return best;
}

/* ---- drafting ---- */

/* When a slot drafts, and how much: from its text, or (model) by the draft model. */
RT_FN rt_drafter *rt_draft_source(const rt_machine *m, rt_u32 index, int model)
{
    return model ? &rt_ahead_slot_of(m, index)->pays : &m->drafters[index];
}

/* Tokens that a slot may draft when it feeds slot->token at this position, from its text or (model)
 * by the draft model: as many as have paid so far, and none after an end that is known, or in a
 * page that it was not promised.  generated: the tokens that it has by then. */
RT_FN rt_u32 rt_draft_most(const rt_machine *m, rt_u32 index, int model, rt_u32 position,
                           rt_u32 generated)
{
    const rt_serving *s = m->serving;
    const rt_slot *slot = &m->slots[index];
    const rt_request *r = &m->running[index];
    const rt_drafter *d = rt_draft_source(m, index, model);
    if (position < d->again)
        return 0;
    rt_u32 end = slot->limit, n = r->drafts;
    if ((model || !s->drafts_freely) && n > d->most)
        n = d->most;
    if (r->mask && n > s->n_guesses)
        n = s->n_guesses;
    if (s->n_pages && end > slot->reserved * s->page_tokens)
        end = slot->reserved * s->page_tokens;
    if (n > end - position - 1)
        n = end - position - 1;
    if (r->max_tokens && n > r->max_tokens - generated - 1)
        n = r->max_tokens - generated - 1;
    return n;
}

/* No drafts after the slot's next token: the draw that it is fed for was asked for before, and its
 * drafts' masks may be there from then (rt_mask_of). */
RT_FN void rt_draft_not_here(rt_machine *m, rt_u32 index)
{
    const rt_u32 after = m->slots[index].position + 1;
    for (int model = 0; m->serving->draft_tokens && model <= rt_has_draft_model(m); model++) {
        rt_drafter *d = rt_draft_source(m, index, model);
        d->again = d->again > after ? d->again : after;
    }
}

/* Where the text of a slot that feeds slot->token at this position goes on, RT_NONE: not known;
 * *n, the drafts that it may have, becomes fewer.  Unless drafts are free, few are made as long as
 * few tokens are equal: one of N, one more for each further one, so that a place that was found by
 * chance costs little. */
RT_LARGE_FN rt_u32 rt_draft_look(rt_machine *m, rt_u32 index, rt_u32 position, rt_u32 *n)
{
    const rt_serving *s = m->serving;
    rt_u32 equal;
    rt_slot_text(m, index)[position] = m->slots[index].token;
    rt_draft_index(m, index, position + 1);
    rt_u32 from = rt_draft_find(m, index, position + 1, &equal);
    if (from != RT_NONE && !s->drafts_freely && *n > equal - s->gram_tokens + 1)
        *n = equal - s->gram_tokens + 1;
    return from;
}

/* Write n drafts after the text of a slot that decodes: what stands from `from` on. */
RT_FN void rt_draft_copy(rt_machine *m, rt_u32 index, rt_u32 from, rt_u32 n)
{
    rt_i32 *tokens = rt_slot_text(m, index), *to = tokens + m->slots[index].position + 1;
    for (rt_u32 i = 0; i < n; i++)
        to[i] = tokens[from + i];
}

/* Steps in a row without a draft that stood after which a slot rests. */
RT_FN rt_u32 rt_draft_patience(const rt_serving *s, int model)
{
    if (!s->drafts_freely)
        return RT_DRAFT_MISSES;
    return model ? RT_DRAFT_MODEL_MISSES : RT_DRAFT_FREE_MISSES;
}

/* How many may pay next time when some drafts were drawn: twice as many if all were, else one more
 * than were.  Where trying is free, a draft model guesses half as many if less than half were
 * drawn, but not fewer than RT_DRAFT_FIRST. */
RT_FN rt_u32 rt_draft_paid(const rt_serving *s, rt_u32 most, rt_u32 tried, rt_u32 accepted)
{
    if (accepted == tried)
        return most < RT_MAX_DRAFTS ? 2 * most : most;
    if (!s->drafts_freely)
        return accepted + 1;
    return 2 * accepted < tried && tried / 2 >= RT_DRAFT_FIRST ? tried / 2 : most;
}

/* accepted of the tried drafts were drawn; after a few steps without any the slot rests. */
RT_FN void rt_draft_judge(rt_machine *m, rt_u32 index, rt_u32 accepted)
{
    const rt_drafter *tried = &m->drafters[index];
    const int model = rt_has_draft_model(m) && tried->from == RT_NONE;
    rt_drafter *d = rt_draft_source(m, index, model);
    if (accepted) {
        d->misses = 0;
        d->rest = RT_DRAFT_REST;
        d->most = rt_draft_paid(m->serving, d->most, tried->tried, accepted);
        return;
    }
    d->misses++;
    if (!m->serving->drafts_freely || d->misses >= RT_DRAFT_MODEL_DOUBTS)
        d->most = 1;
    if (d->misses < rt_draft_patience(m->serving, model))
        return;
    d->again = m->slots[index].position + d->rest;
    /* a draft model has to read what came meanwhile before it guesses again */
    d->rest = d->rest < RT_DRAFT_LONG_REST ? (model ? 4 : 2) * d->rest : d->rest;
}

#endif
