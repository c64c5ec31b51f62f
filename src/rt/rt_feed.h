/* rt_feed.h - the tokens of one request become entries of the step that is being built.
 *
 * Input: a slot and where its next tokens lie: in the slot itself, in its row of `history`, or in
 * the arena of prompts, which a GPU reads over the bus.  Output: entries of the step inputs tokens,
 * positions, slots and history, from serving.built_tokens on.  Relies on rt_draft.h; rt_step.h
 * calls it when it builds a step, all lanes, while no task runs.  Neighbouring tokens belong to
 * neighbouring lanes, so that a GPU fetches a prompt in pieces of 128 bytes. */
#ifndef RT_FEED_H
#define RT_FEED_H

#include "rt/rt_draft.h"

/* The next tokens that a slot feeds. */
RT_FN const rt_i32 *rt_slot_source(const rt_machine *m, rt_u32 index)
{
    const rt_slot *slot = &m->slots[index];
    if (slot->source == RT_NOWHERE && !(m->serving->draft_tokens && m->drafters[index].tried))
        return &slot->token;
    if (slot->source == RT_NOWHERE)
        return rt_slot_text(m, index) + slot->position;
    return (slot->source == RT_AGAIN ? rt_slot_text(m, index) : m->token_arena + slot->source) +
           slot->n_fed;
}

/* An input of the step from entry `at` on; NULL: the program has no such tensor. */
RT_FN rt_i32 *rt_column(const rt_machine *m, rt_u64 tensor, rt_u32 at)
{
    return tensor == RT_NOWHERE ? (rt_i32 *)0 : (rt_i32 *)(m->step_area + tensor) + at;
}

/* Where a slot's next tokens go; found once, since a store might change what it is found by. */
typedef struct rt_feed {
    rt_i32 *tokens, *positions, *slots, *text;
    rt_i32 position, slot;
} rt_feed;

/* Entries go on after those that the step has so far (built_tokens).  The text of a request is
 * kept where the program needs it again, or where the request has rules.
 */
RT_FN rt_feed rt_slot_feed_of(const rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    const rt_u32 at = s->built_tokens, position = m->slots[index].position;
    const int keeps = s->keeps_text || m->running[index].n_rules;
    rt_feed f = {rt_column(m, s->tokens, at),
                 rt_column(m, s->positions, at),
                 rt_column(m, s->slots, at),
                 keeps ? rt_column(m, s->history, index * s->history_tokens + position) : 0,
                 (rt_i32)position,
                 (rt_i32)index};
    return f;
}

/* One lane: token i of the feed. */
RT_FN void rt_feed_token(const rt_feed *f, rt_u32 i, rt_i32 token)
{
    if (f->tokens)
        f->tokens[i] = token;
    if (f->positions)
        f->positions[i] = f->position + (rt_i32)i;
    if (f->slots)
        f->slots[i] = f->slot;
    if (f->text)
        f->text[i] = token;
}

/* All lanes: make the next n tokens of a slot entries of the step that is being built.  A GPU reads
 * those of a prompt from the host's memory.  Each lane has RT_FEED_TOKENS of them in flight, so one
 * round trip over the bus brings RT_FEED_TOKENS * RT_LANES tokens. */
enum { RT_FEED_TOKENS = 16 };
RT_FN void rt_feed_tokens(const rt_machine *m, rt_u32 index, const rt_i32 *from, rt_u32 n)
{
    const rt_feed f = rt_slot_feed_of(m, index);
    rt_u32 i = rt_lane();
    if (n <= RT_LANES) { /* a request that decodes */
        if (i < n)
            rt_feed_token(&f, i, from[i]);
        return;
    }
    for (; i < n; i += RT_FEED_TOKENS * RT_LANES) {
        rt_i32 token[RT_FEED_TOKENS];
        RT_UNROLL
        for (rt_u32 k = 0; k < RT_FEED_TOKENS; k++)
            token[k] = i + k * RT_LANES < n ? from[i + k * RT_LANES] : 0;
        RT_UNROLL
        for (rt_u32 k = 0; k < RT_FEED_TOKENS; k++)
            if (i + k * RT_LANES < n)
                rt_feed_token(&f, i + k * RT_LANES, token[k]);
    }
}

#endif
