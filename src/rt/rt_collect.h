/* rt_collect.h - what a step has produced: logits, tokens and log probabilities to the host,
 * requests retired (the first part of the step task).
 *
 * Input: the results of the last step in the step area (logits, next, logprobs), and what each slot
 * had in it.  Output: entries of the token ring, slots that have their next token.  Relies on
 * rt_admit.h; rt_step.h calls it, once for each step, while no task runs.
 *
 * Law: a request gets its tokens in order, each once, and the entry that ends it last.  Of a step
 * with drafts (rt_draft.h) only the rows count that a request would have had without them.
 */
#ifndef RT_COLLECT_H
#define RT_COLLECT_H

#include "rt/rt_admit.h"

/* Copy the rows of logits that the last step made for one request to the host's buffer.  The buffer
 * holds the rows of one feed; slot->count says how many of them are there. */
RT_FN void rt_slot_deliver(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    const float *from =
        (const float *)(m->step_area + s->logits) + (rt_u64)slot->step_row * s->n_vocab;
    float *to = (float *)m->running[index].logits + (rt_u64)slot->count * s->n_vocab;
    rt_u64 n = (rt_u64)slot->step_rows * s->n_vocab;
    for (rt_u64 i = 0; i < n; i++)
        to[i] = from[i];
    slot->count += slot->step_rows;
}

/* n pairs; four pairs are loaded before the first of them is stored. */
RT_FN void rt_copy_shares(float *to, const float *from, rt_u32 n)
{
    enum { AT_ONCE = 8 };
    for (rt_u32 first = 0; first < 2 * n; first += AT_ONCE) {
        float pair[AT_ONCE];
        for (rt_u32 i = 0; i < AT_ONCE; i++)
            pair[i] = first + i < 2 * n ? from[first + i] : 0;
        for (rt_u32 i = 0; i < AT_ONCE && first + i < 2 * n; i++)
            to[first + i] = pair[i];
    }
}

/* Copy the log probabilities that the last step made for one request to the host.  A row at
 * position p describes the token at p + 1.  The host's buffer begins at token 1 of the prompt
 * (RT_ALL_SHARES) or at the first generated one. */
RT_FN void rt_slot_deliver_shares(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    const rt_slot *slot = &m->slots[index];
    const rt_request *r = &m->running[index];
    rt_u32 first = r->flags & RT_ALL_SHARES ? 0 : r->n_prompt;
    for (rt_u32 row = 0; row < slot->step_rows; row++) {
        rt_u64 at = slot->position - slot->step_rows + row + 1 - first;
        const float *from = (const float *)(m->step_area + s->shares) +
                            (rt_u64)(slot->step_row + row) * RT_LOGPROBS * 2;
        rt_copy_shares((float *)r->logprobs + at * 2 * r->n_logprobs, from, r->n_logprobs);
    }
}

/* Does the token end the request's answer? */
RT_FN int rt_is_eos(const rt_request *r, rt_u32 n_eos, rt_i32 token)
{
    int found = 0; /* no early exit: the loads are independent of each other */
    RT_UNROLL_4
    for (rt_u32 i = 0; i < n_eos; i++)
        found |= r->eos[i] == token;
    return found;
}

/* Why a request ends with this token, RT_GOING if it does not. */
RT_FN rt_u32 rt_slot_reason(const rt_slot *slot, const rt_request *r, rt_i32 token)
{
    if (rt_is_eos(r, slot->n_eos, token))
        return RT_EOS;
    if (r->max_tokens && slot->generated + 1 >= r->max_tokens)
        return RT_LENGTH;
    return slot->position >= slot->limit ? RT_CONTEXT : RT_GOING;
}

/* Of the drafts that the draft model guessed n - 1 stood: its cache knows nothing of the others. */
RT_FN void rt_ahead_verify(rt_machine *m, rt_u32 index, rt_u32 tried, rt_u32 n)
{
    rt_ahead_slot *a = rt_ahead_slot_of(m, index);
    const rt_u32 end = m->slots[index].position + n;
    a->known = a->known < end ? a->known : end;
    rt_count(&m->control->stats.ahead_drafted, tried);
    rt_count(&m->control->stats.ahead_accepted, n - 1);
}

/* A step with drafts has ended: keep the rows that count.  These are the first, and each whose
 * token is the one that the row before it drew, up to a token that ends the text; the others are as
 * if they had never been.  Of the rows that count only the last can end the request, since
 * rt_draft_most drafts nothing after a limit. */
RT_LARGE_FN void rt_slot_verify(rt_machine *m, rt_u32 index)
{
    rt_slot *slot = &m->slots[index];
    const rt_i32 *next = (const rt_i32 *)(m->step_area + m->serving->next) + slot->step_row;
    const rt_i32 *drafts = rt_slot_text(m, index) + slot->position + 1;
    rt_u32 n = 1, tried = m->drafters[index].tried;
    while (n <= tried && next[n - 1] == drafts[n - 1] &&
           !rt_is_eos(&m->running[index], slot->n_eos, next[n - 1]))
        n++;
    slot->step_tokens = slot->step_rows = n;
    if (next[0] != RT_LATE_TOKEN) /* else nothing is known of the drafts */
        rt_draft_judge(m, index, n - 1);
    rt_count(&m->control->stats.drafted, tried);
    rt_count(&m->control->stats.accepted, n - 1);
    if (rt_has_draft_model(m) && m->drafters[index].from == RT_NONE)
        rt_ahead_verify(m, index, tried, n);
}

/* The mask of the request had not arrived when its token was to be drawn.  The last token is fed
 * again once the mask is there (rt_slots_find_masks): that of a prompt, or, of a request that
 * decodes, the token drawn before the last row, which may be a draft that stood.  Its keys and
 * values are written again with the same bits. */
RT_FN void rt_slot_repeat(rt_slot *slot, const rt_i32 *next)
{
    slot->position--;
    slot->n_fed--;
    if (slot->source == RT_NOWHERE) {
        slot->n_fed = 0;
        slot->token = slot->step_rows > 1 ? next[slot->step_rows - 2] : slot->token;
    }
    slot->state = RT_SLOT_LATE;
}

/* The first word of a request's mask: 1 + the number of the draw that it is for. */
RT_FN const rt_word *rt_mask_number(const rt_machine *m, const rt_request *r)
{
    const rt_serving *s = m->serving;
    return (const rt_word *)(m->step_area + s->rules) +
           (rt_u64)(s->n_slots + r->mask - 1) * s->rule_words;
}

/* Let those slots feed again whose mask has arrived since. */
RT_FN void rt_slots_find_masks(rt_machine *m)
{
    for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
        rt_slot *slot = &m->slots[i];
        if (slot->state == RT_SLOT_LATE &&
            rt_load_acquire_system(rt_mask_number(m, &m->running[i])) ==
                slot->generated + 1) { /* host_put_mask */
            slot->state = RT_SLOT_FEEDING;
            rt_draft_not_here(m, i);
        }
    }
}

/* Everything that was to be fed has been, so the last row holds the request's next token: deliver
 * it, after the drafts that were drawn, and either retire the request or feed the token in the next
 * step.  If the host samples, tell it that the logits are there. */
RT_FN void rt_slot_next(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    const rt_request *r = &m->running[index];
    if (r->flags & RT_HOST_SAMPLES) {
        slot->state = RT_SLOT_WAITING;
        rt_tell(m, r->id, -1, slot->generated, slot->count, RT_GOING);
        return;
    }
    const rt_i32 *next = (const rt_i32 *)(m->step_area + s->next) + slot->step_row;
    for (rt_u32 i = 1; slot->source == RT_NOWHERE && i < slot->step_rows; i++)
        rt_tell(m, r->id, next[i - 1], slot->generated++, slot->count, RT_GOING);
    rt_i32 token = next[slot->step_rows - 1];
    if (r->mask && token == RT_LATE_TOKEN) {
        rt_slot_repeat(slot, next);
        return;
    }
    rt_u32 reason = rt_slot_reason(slot, r, token);
    if (reason != RT_GOING) {
        rt_slot_tell_end(m, index, token, reason);
        slot->state = RT_SLOT_ENDED;
        return;
    }
    rt_tell(m, r->id, token, slot->generated, slot->count, RT_GOING);
    slot->generated++;
    slot->token = token;
    slot->source = RT_NOWHERE;
    slot->n_source = 1;
    slot->n_fed = 0;
    slot->state = rt_slot_feeds(m, index);
}

/* The entry told last says how the slot's drafts went. */
RT_FN void rt_tell_drafts(const rt_machine *m, rt_u32 tried, rt_u32 accepted)
{
    rt_token *t = &m->tokens[(m->serving->told - 1) & m->token_mask];
    t->drafted = (unsigned char)tried;
    t->accepted = (unsigned char)accepted;
}

/* The entry told last has the first token of the request. */
RT_FN void rt_tell_age(const rt_machine *m, rt_u32 index)
{
    rt_token *t = &m->tokens[(m->serving->told - 1) & m->token_mask];
    t->age_ns = rt_clock_ns() - m->slots[index].admitted_ns;
}

/* Account for the last step of a slot. Drafts come first: the verdict shortens the step to the
 * tokens that stood, and all that follows counts those. */
RT_LARGE_FN void rt_slot_collect(rt_machine *m, rt_u32 index)
{
    rt_slot *slot = &m->slots[index];
    rt_u32 tried = m->serving->draft_tokens ? m->drafters[index].tried : 0;
    rt_u32 told = m->serving->told, is_first = !slot->generated;
    if (tried)
        rt_slot_verify(m, index);
    slot->position += slot->step_tokens;
    slot->n_fed += slot->step_tokens;
    slot->step_tokens = 0;
    if (m->running[index].flags & RT_HOST_SAMPLES)
        rt_slot_deliver(m, index);
    if (m->running[index].n_logprobs)
        rt_slot_deliver_shares(m, index);
    if (slot->n_fed >= slot->n_source)
        rt_slot_next(m, index);
    if (tried && told != m->serving->told)
        rt_tell_drafts(m, tried, slot->step_rows - 1);
    if (is_first && told != m->serving->told)
        rt_tell_age(m, index);
}

/* Entries that a step may tell: each slot one at most, and its drafts; and those of the next step
 * that have masks. */
RT_FN rt_u32 rt_told_most(const rt_serving *s)
{
    return s->n_slots + (s->n_guesses ? 2 : 1) * s->draft_tokens;
}

/* Free the slots whose requests have ended.  What they were told comes first: letting go of the
 * pages of a long text takes longer than its last token should wait. */
RT_LARGE_FN void rt_slots_free_ended(rt_machine *m)
{
    rt_u32 shown = 0;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
        if (m->slots[i].state != RT_SLOT_ENDED)
            continue;
        if (!shown++)
            rt_show(m);
        rt_slot_free(m, i);
    }
}

/* Account for the last step.  0: the token ring may be too full; nothing was changed, and the
 * caller tries again later.  Space is checked once, up front, so that a step is accounted for whole
 * or not at all. */
RT_LARGE_FN int rt_step_collect(rt_machine *m)
{
    rt_serving *s = m->serving;
    if (rt_tokens_space(m) < rt_told_most(s))
        return 0;
    s->running = s->steady = 0;
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        if (m->slots[i].state == RT_SLOT_FEEDING && m->slots[i].step_tokens)
            rt_slot_collect(m, i);
    }
    rt_slots_free_ended(m);
    return 1;
}

#endif
