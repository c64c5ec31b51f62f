/* rt_ahead.h - drafts of a draft model: a small model, compiled into the same program, that guesses
 * the next tokens step by step before the model looks at them all in one step (docs/runtime.md).
 *
 * Input: slots that decode, with the number of drafts that they may have (rt_step_draft).  Output:
 * drafts in the slots' rows of `history`, after the last token, as look-up leaves them
 * (rt_draft.h).  Called by the step task alone, before it fills a step (rt_step_look).
 *
 * The draft model's graphs come after the model's.  They read the same step inputs and write the
 * same `next`, and their KV cache has the same pages under the same page table: a page holds the
 * keys and values that both models have of its tokens.  So whatever happens to a page, sharing,
 * keeping, eviction, putting back, happens to both.
 *
 *     rt_ahead_begin    pages for the drafts; what the draft model knows of each text
 *     rt_ahead_step     one draft step: of each slot what the draft model has not seen, its last
 *                       token or last draft at the end; the row there draws the next draft
 *     rt_ahead_collect  a draft step has ended: write its drafts down
 *
 * A row of a draft step draws with the random number and under the rules of the position that it
 * guesses, so that equal distributions give equal tokens (with rt_ahead.apart: with another random
 * number, so that they are as often equal as two draws are).
 *
 * Invariant: nothing that the draft model computes reaches an answer.  It writes to its own state,
 * to step inputs that the next step writes again, to results that have been collected, and to
 * places of `history` after the last token.  What it guesses from, a cache that is not up to date
 * or not even written, changes which drafts are tried and nothing else.
 *
 * Catching up: the draft model gets a text when its slot first wants drafts, and later what it
 * missed: the last draft if all stood, what look-up guessed, tokens of a rest.  That takes at most
 * RT_MIXED_TOKENS a step; who has not caught up drafts nothing in that step.
 */
#ifndef RT_AHEAD_H
#define RT_AHEAD_H

#include "rt/rt_build.h"

/* Between the seed of a request and that of its drafts, where they are drawn apart. */
#define RT_APART 0x9e3779b97f4a7c15ull

/* The most drafts that the draft model may guess for a slot that feeds slot->token at this
 * position. */
RT_FN rt_u32 rt_ahead_most(const rt_machine *m, rt_u32 index, rt_u32 position, rt_u32 generated)
{
    return rt_draft_most(m, index, 1, position, generated);
}

/* Does the slot want more drafts of the draft model? */
RT_FN int rt_ahead_wants(const rt_machine *m, rt_u32 index)
{
    const rt_drafter *d = &m->drafters[index];
    return d->from == RT_NONE && rt_ahead_slot_of(m, index)->made < d->tried;
}

RT_FN rt_u32 *rt_ahead_page(const rt_machine *m, rt_u32 index, rt_u32 n)
{
    return &rt_ahead_pages(m)[*rt_page_entry(m, index, n)];
}

/* Mark the pages that the draft model knows whole.  No draft is in them. */
RT_FN void rt_ahead_mark(rt_machine *m, rt_u32 index)
{
    rt_ahead_slot *a = rt_ahead_slot_of(m, index);
    for (; (a->marked + 1) * m->serving->page_tokens <= a->known; a->marked++)
        *rt_ahead_page(m, index, a->marked) = 1;
}

/* Pass over the page of the next token if another slot shares it and the draft model has seen it
 * for that one, or is about to in this step.  1: passed. */
RT_FN int rt_ahead_skip(rt_machine *m, rt_u32 index)
{
    rt_ahead_slot *a = rt_ahead_slot_of(m, index);
    const rt_u32 P = m->serving->page_tokens, page = a->known / P, end = (page + 1) * P;
    if (end > m->slots[index].position || !*rt_ahead_page(m, index, page))
        return 0;
    a->known = end;
    return 1;
}

/* Prepare the slots that want drafts; 0: none does. */
RT_LARGE_FN int rt_ahead_begin(rt_machine *m)
{
    int wanted = 0;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        rt_ahead_slot_of(m, i)->made = 0;
        if (!rt_ahead_wants(m, i))
            continue;
        rt_slot_text(m, i)[slot->position] = slot->token;
        rt_slot_extend(m, i, 1 + m->drafters[i].tried);
        rt_ahead_mark(m, i);
        wanted = 1;
    }
    rt_ahead_of(m)->running = (rt_u32)wanted;
    return wanted;
}

/* The row of the draft after those that are made.  Its log probabilities are never asked for. */
RT_FN void rt_ahead_put_row(rt_machine *m, rt_u32 index, rt_u32 row)
{
    const rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    const rt_u32 made = rt_ahead_slot_of(m, index)->made;
    rt_put_row(m, index, row, s->built_tokens - 1, made);
    if (rt_ahead_of(m)->apart && s->seeds != RT_NOWHERE)
        ((rt_u64 *)(m->step_area + s->seeds))[row] ^= RT_APART;
    if (s->asks == RT_NOWHERE)
        return;
    slot->step_tokens = 1 + made; /* of a step that fed the drafts up to here */
    rt_put_asks(m, index, row, 0);
    slot->step_tokens = 0;
    /* masks are the host's, and come too late: a draft that its mask forbids does not stand */
    rt_i32 *asks = (rt_i32 *)(m->step_area + s->asks) + RT_ASKS * (rt_u64)row;
    asks[RT_ASK_LOGPROBS] = asks[RT_ASK_MASK] = 0;
}

/* Add to a draft step what the draft model has not seen of the slot's text and drafts, as far as
 * there is room, and a row if that is all.  An id that the draft model does not know is fed as
 * another. */
RT_LARGE_FN void rt_ahead_put(rt_machine *m, rt_u32 index, rt_u32 most)
{
    rt_serving *s = m->serving;
    rt_ahead_slot *a = rt_ahead_slot_of(m, index);
    const rt_i32 *tokens = rt_slot_text(m, index);
    const rt_u32 end = m->slots[index].position + 1 + a->made, n_vocab = rt_ahead_of(m)->n_vocab;
    while (a->known < end && s->built_tokens < most) {
        if (rt_ahead_skip(m, index))
            continue;
        rt_i32 token = tokens[a->known];
        rt_put(m, s->tokens, s->built_tokens, (rt_u32)token < n_vocab ? token : 0);
        rt_put(m, s->positions, s->built_tokens, (rt_i32)a->known++);
        rt_put(m, s->slots, s->built_tokens++, (rt_i32)index);
    }
    if (!a->made)
        rt_ahead_mark(m, index);
    a->row = a->known == end && s->built_rows < s->max_rows ? s->built_rows++ : RT_NONE;
    if (a->row != RT_NONE)
        rt_ahead_put_row(m, index, a->row);
}

/* The smallest of the draft model's graphs that holds the step; the last holds every one. */
RT_FN rt_u32 rt_ahead_graph(const rt_machine *m)
{
    const rt_serving *s = m->serving;
    rt_u32 g = rt_ahead_of(m)->first_graph;
    while (g + 1 < m->n_graphs &&
           (m->graphs[g].n_tokens < s->built_tokens || m->graphs[g].n_rows < s->built_rows))
        g++;
    return g;
}

/* Publish the next draft step.  0: no request wants more drafts. */
RT_LARGE_FN int rt_ahead_step(rt_machine *m, rt_worker *w)
{
    rt_serving *s = m->serving;
    const rt_u32 most = s->max_tokens < RT_MIXED_TOKENS ? s->max_tokens : RT_MIXED_TOKENS;
    s->built_tokens = s->built_rows = s->built_choices = 0;
    for (rt_u32 i = 0; i < s->n_slots; i++)
        if (rt_ahead_wants(m, i))
            rt_ahead_put(m, i, most);
    rt_ahead_of(m)->running = s->built_tokens != 0;
    if (!s->built_tokens)
        return 0;
    rt_count(&m->control->stats.ahead_steps, 1);
    rt_step_publish(m, w, rt_ahead_graph(m), s->built_tokens, s->built_rows);
    return 1;
}

/* Write down the draft that a slot's row drew.  There are no more if there was no row, if the text
 * would end here, or if it is not a token of the model. */
RT_FN void rt_ahead_take(rt_machine *m, rt_u32 index)
{
    rt_ahead_slot *a = rt_ahead_slot_of(m, index);
    const rt_slot *slot = &m->slots[index];
    const rt_i32 *next = (const rt_i32 *)(m->step_area + m->serving->next);
    rt_i32 token = a->row == RT_NONE ? -1 : next[a->row];
    if ((rt_u32)token < m->serving->n_vocab && !rt_is_eos(&m->running[index], slot->n_eos, token))
        rt_slot_text(m, index)[slot->position + 1 + a->made++] = token;
    else
        m->drafters[index].tried = a->made;
}

RT_LARGE_FN void rt_ahead_collect(rt_machine *m)
{
    for (rt_u32 i = 0; i < m->serving->n_slots; i++)
        if (rt_ahead_wants(m, i))
            rt_ahead_take(m, i);
}

#endif
