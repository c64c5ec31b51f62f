/* rt_build.h - what a step is made of: tokens and rows of logits among the step inputs, pages under
 * them, the word that publishes it.
 *
 * Input: a slot, and what it feeds.  Output: entries of the step inputs (model.h), counted by
 * built_tokens and built_rows.  Called by the step task alone: rt_step.h builds steps of the model,
 * rt_ahead.h those of the draft model, on the same inputs.
 */
#ifndef RT_BUILD_H
#define RT_BUILD_H

#include "rt/rt_collect.h"

/* ---- publishing ---- */

/* One lane: begin the next run of a graph.  The release store of the step word publishes the step
 * inputs and the live counts; its partner is the acquire load in rt_worker_enter.  Everything the
 * step task wrote happens before any task of the step. */
RT_FN void rt_step_publish(rt_machine *m, rt_worker *w, rt_u32 graph, rt_u32 n_tokens,
                           rt_u32 n_rows)
{
    const rt_graph *g = &m->graphs[graph];
    rt_control *c = m->control;
    rt_u64 step = rt_step_word(graph, ++m->epochs[graph], n_tokens, n_rows);
    m->serving->step = step;
    c->live[RT_TOKENS] = rt_word_tokens(step);
    c->live[RT_ROWS] = rt_word_rows(step);
    rt_store_wide_relaxed_device(&c->stats.n_steps, ++m->serving->n_steps);
    w->owner = 0;
    rt_store_relaxed_device(&c->idle, 0);
    rt_point(m, w->index);
    rt_store_wide_release_device(&c->step, step);
    if (m->events[g->first_event + RT_START].jit)
        rt_event_submit(m, w, g->first_event + RT_START);
    rt_wake_all(m);
}

/* ---- inputs ---- */

/* Extend the slot's row of the page table over the next n tokens.  The pages were promised when
 * the request was admitted, so enough are free or can be evicted. */
RT_FN void rt_slot_extend(rt_machine *m, rt_u32 index, rt_u32 n)
{
    rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    rt_u32 needed = rt_pages_for(s, slot->position + n);
    while (slot->held < needed) {
        *rt_page_entry(m, index, slot->held++) = (rt_i32)rt_page_take(m);
        s->n_promised--;
    }
    rt_pages_say(m);
}

RT_FN void rt_put(const rt_machine *m, rt_u64 tensor, rt_u32 i, rt_i32 value)
{
    if (tensor != RT_NOWHERE)
        ((rt_i32 *)(m->step_area + tensor))[i] = value;
}

/* 1 + the row of `rules` that holds the mask of the token after n drafts.
 *
 * Law: the numbers of the draws that a row's masks are for only grow, as long as one request has
 * it.  Row n of the drafts' is for the draw n after that of the step's first row, and between two
 * steps with drafts of a request lies a token that came.  So a mask that was made for drafts which
 * did not stand has a number that no later step looks for. */
RT_FN rt_u32 rt_mask_of(const rt_serving *s, rt_u32 mask, rt_u32 n)
{
    return s->n_slots + (n ? s->n_masks + (mask - 1) * s->n_guesses + n : mask);
}

/* What one row asks of `sample` besides the filters.  after: how many of the fed tokens follow the
 * row's own.  Only rows that draw obey rules: the last of what is fed, and every row of a request
 * that decodes, with the tokens up to its own as its history.  The other rows report log
 * probabilities of tokens that are known. */
RT_FN void rt_put_asks(rt_machine *m, rt_u32 index, rt_u32 row, rt_u32 after)
{
    rt_serving *s = m->serving;
    const rt_slot *slot = &m->slots[index];
    const rt_request *r = &m->running[index];
    rt_i32 *asks = (rt_i32 *)(m->step_area + m->serving->asks) + RT_ASKS * (rt_u64)row;
    rt_u32 known = slot->position + slot->step_tokens - after,
           fed = slot->n_fed + slot->step_tokens - after;
    int draws = fed == slot->n_source || slot->source == RT_NOWHERE;
    const rt_u32 n_before = slot->source == RT_NOWHERE ? slot->step_tokens - 1 - after : 0;
    asks[RT_ASK_RULES] = r->n_rules && draws ? (rt_i32)index + 1 : 0;
    asks[RT_ASK_FROM] = (rt_i32)(index * m->serving->history_tokens);
    asks[RT_ASK_HISTORY] = (rt_i32)known;
    asks[RT_ASK_LOGPROBS] = (rt_i32)r->n_logprobs;
    asks[RT_ASK_TOKEN] = draws ? -1 : m->token_arena[slot->source + fed];
    asks[RT_ASK_MASK] = r->mask && draws ? (rt_i32)rt_mask_of(s, r->mask, n_before) : 0;
    asks[RT_ASK_CHOICE] = (rt_i32)s->built_choices;
    s->built_choices += asks[RT_ASK_RULES] != 0;
}

/* One row of logits for token `token` of the step; `drawn` tokens of it are drawn before. */
RT_FN void rt_put_row(const rt_machine *m, rt_u32 index, rt_u32 row, rt_u32 token, rt_u32 drawn)
{
    const rt_serving *s = m->serving;
    const rt_request *r = &m->running[index];
    rt_put(m, s->rows, row, (rt_i32)token);
    rt_put(m, s->draws, row, (rt_i32)(m->slots[index].generated + drawn));
    if (s->seeds != RT_NOWHERE)
        ((rt_i64 *)(m->step_area + s->seeds))[row] = (rt_i64)r->seed;
    if (s->sampling != RT_NOWHERE) {
        float *p = (float *)(m->step_area + s->sampling) + 4 * (rt_u64)row;
        p[0] = r->temperature;
        p[1] = r->top_k;
        p[2] = r->top_p;
        p[3] = r->min_p;
    }
}

#endif
