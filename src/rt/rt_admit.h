/* rt_admit.h - requests in slots: told of, admitted, given pages, put back, retired (the step task's first half).
 *
 * Input: the host's ring of requests; output: slots with something to feed (rt_step.h feeds them), the token ring.
 *
 * Pages.  Who runs was promised pages: of a machine whose requests grow (rt_serving.grows), those for its prompt, and
 * another one each time that it needs one and a page is left; of the others, those for all that it may ever hold.  If
 * a request needs a page and none is left, the youngest is put back: it gives its pages back, keeps its slot and its
 * text, and later feeds its text again, which gives the same bits where grows is set.  Those put back go on in order of
 * age, and before any request that has not begun.  So the oldest one always goes on, and every one becomes the oldest.
 * A request whose sampler is the host's is promised everything, and is not put back.
 *
 * Shared pages.  A request takes pages that hold the beginning of its text instead of computing them (rt_slot_match),
 * as long as there are tokens behind them to feed.  One that would find a page that is written in this very step waits
 * for the next.  Bits must not depend on who computed a page: where steps are filled apart (rt_step.h), only whole
 * pieces are shared, which are the same steps for everyone.
 */
#ifndef RT_ADMIT_H
#define RT_ADMIT_H

#include "rt/rt_event.h"
#include "rt/rt_kv.h"

/* ---- telling the host ---- */

/* Entries that may be written, as far as the host has read. */
RT_FN rt_u32 rt_tokens_space(rt_machine *m)
{
    rt_serving *s = m->serving;
    s->told_end = rt_load_acquire_system(&m->token_ring->read) + m->token_mask + 1;
    return s->told_end - s->told;
}

RT_FN void rt_tell_at(rt_machine *m, rt_u32 at, rt_u64 id, rt_i32 token, rt_u32 index, rt_u32 count, rt_u32 reason)
{
    rt_token *t = &m->tokens[at & m->token_mask];
    t->id = id;
    t->token = token;
    t->index = index;
    t->count = count;
    t->reason = reason;
}

/* The caller has seen space for it; rt_show makes it visible. */
RT_FN void rt_tell(rt_machine *m, rt_u64 id, rt_i32 token, rt_u32 index, rt_u32 count, rt_u32 reason)
{
    rt_tell_at(m, m->serving->told++, id, token, index, count, reason);
}

RT_FN void rt_show(rt_machine *m)
{
    rt_store_release_system(&m->token_ring->written, m->serving->told); /* partner: rt_ring_ready in the host */
}

/* Add to a count for statistics. */
RT_FN void rt_count(rt_wide *count, rt_u64 n)
{
    rt_store_wide_relaxed_device(count, rt_load_wide_acquire_device(count) + n);
}

/* ---- requests ---- */

/* Positions that a request may take in all, or 0 if it can never run here. */
RT_FN rt_u32 rt_request_limit(const rt_serving *s, const rt_request *r)
{
    rt_u64 most = 0x7fffffff, want = (rt_u64)r->n_prompt + r->max_tokens;
    if (s->n_pages) {
        rt_u32 pages = s->n_pages < s->pages_per_slot ? s->n_pages : s->pages_per_slot;
        most = (rt_u64)pages * s->page_tokens < most ? (rt_u64)pages * s->page_tokens : most;
    }
    if (r->n_prompt == 0 || r->n_prompt > most || r->n_eos > RT_MAX_EOS)
        return 0;
    if (r->max_tokens == 0)
        want = most;
    if (want > most || (r->flags & RT_HOST_SAMPLES ? s->logits == RT_NOWHERE || !r->logits : s->next == RT_NOWHERE))
        return 0;
    return (rt_u32)want;
}

RT_FN rt_u32 rt_pages_for(const rt_serving *s, rt_u32 positions)
{
    return s->n_pages ? (positions + s->page_tokens - 1) / s->page_tokens : 0;
}

/* Entry i of a slot's row of the page table. */
RT_FN rt_i32 *rt_page_entry(const rt_machine *m, rt_u32 slot, rt_u32 i)
{
    return (rt_i32 *)(m->step_area + m->serving->pages) + (rt_u64)slot * m->serving->pages_per_slot + i;
}

/* A slot's row of `history`: its tokens from position 0. */
RT_FN rt_i32 *rt_slot_text(const rt_machine *m, rt_u32 slot)
{
    return (rt_i32 *)(m->step_area + m->serving->history) + (rt_u64)slot * m->serving->history_tokens;
}

/* Name the text of a slot up to its n pages: beyond the prompt's full pages by its row of `history`, and there never
 * backwards. */
RT_LARGE_FN const rt_name *rt_chain_to(rt_machine *m, rt_u32 index, rt_u32 n)
{
    const rt_serving *s = m->serving;
    const rt_request *r = &m->running[index];
    rt_chain *c = &m->chains[index];
    rt_u32 given = n < r->n_names ? n : r->n_names - 1;
    if (c->n <= given || n == given) {
        c->name = rt_name_given(m, r, given);
        c->n = given;
    }
    for (; c->n < n; c->n++)
        rt_name_tokens(s, &c->name, rt_slot_text(m, index) + (rt_u64)c->n * s->page_tokens, s->page_tokens);
    return &c->name;
}

/* May pages that this request writes be found by others? */
RT_FN int rt_slot_shares(const rt_machine *m, rt_u32 index)
{
    return m->serving->unit && m->running[index].n_names;
}

/* Is a text fed from its beginning? */
RT_FN int rt_slot_begins(const rt_slot *slot)
{
    return slot->source != RT_NOWHERE && slot->n_fed == slot->position;
}

/* The next n tokens of a text, which are about to be fed: name the pages that they complete.  The last token of a text
 * whose draw may be late (RT_SLOT_LATE) is written again then, so its page stays the request's own. */
RT_FN void rt_slot_name(rt_machine *m, rt_u32 index, rt_u32 n)
{
    const rt_serving *s = m->serving;
    const rt_slot *slot = &m->slots[index];
    if (!rt_slot_shares(m, index) || !rt_slot_begins(slot) || (s->few_tokens && n != s->max_tokens))
        return;
    rt_u32 again = m->running[index].mask && slot->n_fed + n == slot->n_source;
    for (rt_u32 i = slot->position / s->page_tokens; i < (slot->position + n - again) / s->page_tokens; i++)
        rt_page_name(m, (rt_u32)*rt_page_entry(m, index, i), rt_chain_to(m, index, i + 1), (rt_u32)s->n_steps + 1);
}

/* Name the pages that hold tokens of the answer; all of them have been written. */
RT_LARGE_FN void rt_slot_name_answer(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    rt_u32 i = m->chains[index].n;
    if (!rt_slot_shares(m, index) || s->few_tokens)
        return;
    i = i < m->running[index].n_names ? m->running[index].n_names - 1 : i - 1; /* the last name may be of no page yet */
    for (; i < m->slots[index].position / s->page_tokens; i++)
        rt_page_name(m, (rt_u32)*rt_page_entry(m, index, i), rt_chain_to(m, index, i + 1), (rt_u32)s->n_steps);
}

/* From the last to the first, so that what is kept is taken back in that order, too. */
RT_LARGE_FN void rt_slot_give_pages(rt_machine *m, rt_u32 index)
{
    rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    if (slot->held)
        rt_slot_name_answer(m, index);
    s->n_promised -= slot->reserved - slot->held;
    while (slot->held) {
        slot->held--;
        rt_page_let_go(m, (rt_u32)*rt_page_entry(m, index, slot->held));
    }
    slot->reserved = 0;
    rt_pages_say(m);
}

/* Give everything back. */
RT_FN void rt_slot_free(rt_machine *m, rt_u32 index)
{
    rt_slot *slot = &m->slots[index];
    rt_slot_give_pages(m, index);
    if (slot->state == RT_SLOT_PARKED)
        m->serving->n_parked--;
    else
        m->serving->n_active--;
    slot->state = RT_SLOT_FREE;
}

RT_LARGE_FN void rt_slot_finish(rt_machine *m, rt_u32 index, rt_i32 token, rt_u32 reason)
{
    rt_slot *slot = &m->slots[index];
    rt_slot_free(m, index);
    rt_tell(m, m->running[index].id, token, slot->generated, slot->count, reason);
}

/* ---- shared pages ---- */

enum { RT_MISSING, RT_LATER, RT_TAKEN };

/* The pages of the next unit, put into the row of the page table. */
RT_FN rt_u32 rt_slot_look_up(rt_machine *m, rt_u32 index, rt_u32 n_pages)
{
    const rt_serving *s = m->serving;
    const rt_slot *slot = &m->slots[index];
    for (rt_u32 i = 0; i < n_pages; i++) {
        rt_u32 page = rt_page_find(m, rt_chain_to(m, index, slot->held + i + 1));
        if (page == RT_NONE)
            return RT_MISSING;
        if (m->kv_pages[page].built == (rt_u32)s->n_steps + 1)
            return RT_LATER;
        *rt_page_entry(m, index, slot->held + i) = (rt_i32)page;
    }
    return RT_TAKEN;
}

/* Hold the pages that were found: n tokens need not be fed. */
RT_FN void rt_slot_skip(rt_machine *m, rt_u32 index, rt_u32 n_pages, rt_u32 n)
{
    rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    const rt_request *r = &m->running[index];
    for (rt_u32 i = 0; i < n_pages; i++)
        rt_page_share(m, (rt_u32)*rt_page_entry(m, index, slot->held + i));
    if (slot->source != RT_AGAIN && (s->grows || r->n_rules))
        for (rt_u32 i = slot->position; i < slot->position + n; i++)
            rt_slot_text(m, index)[i] = m->token_arena[slot->source + i];
    if (slot->source != RT_AGAIN && !(r->flags & RT_HOST_SAMPLES))
        slot->count += n;
    if (slot->source != RT_AGAIN)
        rt_count(&m->control->found, n);
    slot->held += n_pages;
    s->n_promised -= n_pages;
    slot->position += n;
    slot->n_fed += n;
}

/* Take what others have computed of the text that a request feeds.  0: more will be there after this step, so it should
 * not feed in it. */
RT_LARGE_FN int rt_slot_match(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    const rt_slot *slot = &m->slots[index];
    rt_u32 found = RT_TAKEN;
    if (!rt_slot_shares(m, index) || !rt_slot_begins(slot))
        return 1;
    while (found == RT_TAKEN && slot->position % s->unit == 0 && slot->position + s->unit < slot->n_source) {
        found = rt_slot_look_up(m, index, s->unit / s->page_tokens);
        if (found == RT_TAKEN)
            rt_slot_skip(m, index, s->unit / s->page_tokens, s->unit);
    }
    rt_pages_say(m);
    return found != RT_LATER;
}

/* ---- growing and putting back ---- */

/* Pages that are promised to a request that is about to feed n tokens. */
RT_FN rt_u32 rt_pages_at_first(const rt_serving *s, const rt_request *r, rt_u32 n, rt_u32 limit)
{
    return rt_pages_for(s, s->grows && !(r->flags & RT_HOST_SAMPLES) && n < limit ? n + 1 : limit);
}

/* Give up the pages of a request that samples here; it goes on later (rt_step_resume). */
RT_LARGE_FN void rt_slot_put_back(rt_machine *m, rt_u32 index)
{
    rt_slot *slot = &m->slots[index];
    if (slot->source == RT_NOWHERE) {
        rt_slot_text(m, index)[slot->position] = slot->token;
        slot->source = RT_AGAIN;
        slot->n_source = slot->position + 1;
    }
    rt_slot_give_pages(m, index);
    if (slot->source != RT_AGAIN)
        slot->count = 0;
    slot->position = slot->n_fed = slot->step_tokens = 0;
    m->chains[index].n = 0;
    slot->state = RT_SLOT_PARKED;
    m->serving->n_active--;
    m->serving->n_parked++;
    rt_store_relaxed_device(&m->control->put_back, rt_load_relaxed_device(&m->control->put_back) + 1);
}

/* Numbers of admissions since the last one that may still count: older slots have more. */
RT_FN rt_u32 rt_slot_age(const rt_machine *m, rt_u32 index)
{
    return m->serving->n_admitted - m->slots[index].admitted;
}

/* The youngest request that can be put back; RT_NONE: there is none. */
RT_FN rt_u32 rt_find_youngest(const rt_machine *m)
{
    rt_u32 best = RT_NONE;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++)
        if (m->slots[i].state == RT_SLOT_FEEDING && !(m->running[i].flags & RT_HOST_SAMPLES) &&
            (best == RT_NONE || rt_slot_age(m, i) < rt_slot_age(m, best)))
            best = i;
    return best;
}

RT_FN rt_u32 rt_find_oldest_parked(const rt_machine *m)
{
    rt_u32 best = RT_NONE;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++)
        if (m->slots[i].state == RT_SLOT_PARKED && (best == RT_NONE || rt_slot_age(m, i) > rt_slot_age(m, best)))
            best = i;
    return best;
}

/* Does the next token of a request that decodes lie in a page that it does not hold yet? */
RT_FN int rt_slot_crosses(const rt_machine *m, rt_u32 index)
{
    const rt_slot *slot = &m->slots[index];
    return slot->state == RT_SLOT_FEEDING && slot->source == RT_NOWHERE && m->serving->n_pages &&
           slot->position + 1 > slot->held * m->serving->page_tokens;
}

/* Promise a page to each request that decodes and needs one that it was not promised. */
RT_LARGE_FN void rt_step_grow(rt_machine *m)
{
    rt_serving *s = m->serving;
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        rt_slot *slot = &m->slots[i];
        if (!rt_slot_crosses(m, i) || slot->held < slot->reserved)
            continue;
        while (slot->state == RT_SLOT_FEEDING && !rt_pages_left(s))
            rt_slot_put_back(m, rt_find_youngest(m)); /* there is one: this slot's */
        if (slot->state == RT_SLOT_FEEDING) {
            slot->reserved++;
            s->n_promised++;
        }
    }
}

/* The usual step takes pages from the stack alone (rt_lane_goes_on): put some there if it would fail for that. */
RT_LARGE_FN void rt_step_stock(rt_machine *m)
{
    rt_serving *s = m->serving;
    rt_u32 crossing = 0;
    for (rt_u32 i = 0; i < s->n_slots; i++)
        crossing |= (rt_u32)rt_slot_crosses(m, i);
    if (crossing && s->n_free < s->n_active)
        while (s->n_kept && s->n_free < 2 * s->n_active)
            rt_page_evict(m);
}

/* Pages that those who run will soon want beyond their promises: one for each. */
RT_FN rt_u32 rt_pages_wanted(const rt_machine *m)
{
    rt_u32 n = 0;
    for (rt_u32 i = 0; m->serving->grows && i < m->serving->n_slots; i++)
        n += m->slots[i].state == RT_SLOT_FEEDING && m->slots[i].reserved < rt_pages_for(m->serving, m->slots[i].limit);
    return n;
}

/* Let those go on that were put back, in order of age, as far as there are pages. */
RT_LARGE_FN void rt_step_resume(rt_machine *m)
{
    rt_serving *s = m->serving;
    while (s->n_parked) {
        rt_u32 index = rt_find_oldest_parked(m);
        rt_slot *slot = &m->slots[index];
        rt_u32 n = rt_pages_at_first(s, &m->running[index], slot->n_source, slot->limit);
        if (rt_pages_left(s) < n + rt_pages_wanted(m))
            return;
        slot->reserved = n;
        s->n_promised += n;
        slot->state = RT_SLOT_FEEDING;
        s->n_parked--;
        s->n_active++;
    }
}

/* ---- admission ---- */

RT_FN rt_u32 rt_find_free(const rt_machine *m)
{
    for (rt_u32 i = 0; i < m->serving->n_slots; i++)
        if (m->slots[i].state == RT_SLOT_FREE)
            return i;
    return RT_NONE;
}

/* Copy a request's rules from behind its prompt to its slot. */
RT_FN void rt_slot_take_rules(const rt_machine *m, rt_u32 index)
{
    const rt_request *r = &m->running[index];
    rt_i32 *to = (rt_i32 *)(m->step_area + m->serving->rules) + (rt_u64)index * m->serving->rule_words;
    for (rt_u32 i = 0; i < r->n_rules; i++)
        to[i] = m->token_arena[r->prompt + r->n_prompt + i];
}

RT_LARGE_FN void rt_slot_begin(rt_machine *m, rt_u32 index, const rt_request *r, rt_u32 limit)
{
    rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    m->running[index] = *r;
    slot->n_eos = r->n_eos;
    slot->state = RT_SLOT_FEEDING;
    slot->admitted = s->n_admitted++;
    slot->position = slot->held = slot->n_fed = slot->generated = slot->count = 0;
    slot->step_tokens = slot->step_rows = slot->step_row = 0;
    slot->limit = limit;
    slot->reserved = rt_pages_at_first(s, r, r->n_prompt, limit);
    slot->source = r->prompt;
    slot->n_source = r->n_prompt;
    s->n_promised += slot->reserved;
    s->n_active++;
    m->chains[index].n = 0;
    if (rt_slot_shares(m, index))
        rt_count(&m->control->asked, r->n_prompt);
    if (r->n_rules)
        rt_slot_take_rules(m, index);
}

/* Does all that the request says lie in the arena, and is there a place for its rules? */
RT_FN int rt_request_fits(const rt_machine *m, const rt_request *r)
{
    const rt_serving *s = m->serving;
    rt_u64 n = (rt_u64)r->n_prompt + r->n_rules + (rt_u64)r->n_names * RT_NAME_WORDS;
    if (n > m->n_arena || r->prompt > m->n_arena - n)
        return 0;
    if (!r->n_rules && !r->n_logprobs && !r->mask)
        return 1;
    return s->asks != RT_NOWHERE && r->n_rules <= s->rule_words && r->mask <= s->n_masks && (!r->mask || r->n_rules) &&
           r->n_logprobs <= RT_LOGPROBS && (!r->n_logprobs || r->logprobs);
}

/* Is there no room for a request whose positions end at `limit`? */
RT_FN rt_u32 rt_has_no_room(const rt_machine *m, const rt_request *r, rt_u32 limit)
{
    const rt_serving *s = m->serving;
    rt_u32 n = rt_pages_at_first(s, r, r->n_prompt, limit);
    return rt_find_free(m) == RT_NONE || rt_pages_left(s) < n + rt_pages_wanted(m);
}

/* Admit in order of arrival until a slot or a page is missing; nobody passes those that were put back. */
RT_LARGE_FN void rt_step_admit(rt_machine *m)
{
    rt_serving *s = m->serving;
    rt_step_resume(m);
    s->blocked = s->n_parked != 0;
    while (!s->blocked && rt_ring_ready(m->request_ring)) {
        const rt_request *r = &m->requests[rt_load_relaxed_device(&m->request_ring->read) & m->request_mask];
        rt_u32 limit = rt_request_limit(s, r);
        if (!rt_request_fits(m, r))
            limit = 0;
        if (!r->dropped && !limit) {
            if (!rt_tokens_space(m))
                return;
            rt_tell(m, r->id, -1, 0, 0, RT_REFUSED);
        } else if (!r->dropped) {
            s->blocked = rt_has_no_room(m, r, limit);
            if (s->blocked)
                return;
            rt_slot_begin(m, rt_find_free(m), r, limit);
        }
        rt_ring_took(m->request_ring, 1);
    }
}

#endif
