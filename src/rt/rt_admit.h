/* rt_admit.h - requests in slots: admission, pages, putting back, retirement.
 *
 * Input: the host's ring of requests.  Output: slots that have something to feed (rt_step.h feeds
 * them), and entries of the token ring.  The step task alone calls this, so everything but the
 * rings is plain memory.
 *
 * Promises.  A request is admitted only when it can be promised KV pages, and a promise is always
 * kept: n_promised <= n_free + n_kept (rt_serving).  Where requests grow (rt_serving.grows), the
 * first promise covers the prompt and one more token.  Later rt_step_grow promises one page more
 * each time a request needs one and one is left.  Elsewhere the promise covers everything the
 * request may ever hold, but what it does not use is lent to others when they need it (rt_lend.h).
 *
 * Putting back.  If a request that grows needs a page and none is left, the least urgent request,
 * of equals the youngest, is put back: it gives up its pages, keeps its slot and its text, and
 * later feeds the text again.  Less urgent requests are also put back if a new request lacks pages.
 * `grows` is set only where feeding a text again gives the same bits.  Requests that were put back
 * resume by urgency and age, before any request that has not begun and is no more urgent.  So the
 * oldest of the most urgent requests always advances.  Among equally urgent requests each becomes
 * the oldest in time, so only more urgent ones can keep a request waiting for ever.  Where requests
 * lend, one that needs a page and may have none pauses instead, and keeps its pages.  A request
 * whose tokens the host samples is promised everything and never put back.
 *
 * Sharing.  A request takes pages that already hold the beginning of its text instead of computing
 * them (rt_slot_match), up to the last token, which must be fed to get logits.  If the page it
 * needs is being written by the step under construction, the request waits for the next step.  Bits
 * must not depend on which request computed a page: where steps are filled apart
 * (rt_step_fill_apart), only whole pieces are shared, which form the same steps in every request.
 */
#ifndef RT_ADMIT_H
#define RT_ADMIT_H

#include "rt/rt_draft.h"
#include "rt/rt_event.h"
#include "rt/rt_lend.h"

/* ---- telling the host ---- */

/* Entries that may be written to the token ring, by what the host has read so far. */
RT_FN rt_u32 rt_tokens_space(rt_machine *m)
{
    rt_serving *s = m->serving;
    s->told_end = rt_load_acquire_system(&m->token_ring->read) + m->token_mask + 1;
    return s->told_end - s->told;
}

/* Fill entry `at` of the token ring, which the caller has found free (rt_tokens_space). The host
 * sees it when rt_show publishes it.
 */
RT_FN void rt_tell_at(rt_machine *m, rt_u32 at, rt_u64 id, rt_i32 token, rt_u32 index, rt_u32 count,
                      rt_u32 reason)
{
    rt_token *t = &m->tokens[at & m->token_mask];
    t->id = id;
    t->token = token;
    t->index = index;
    t->count = count;
    t->reason = (rt_u16)reason;
    t->drafted = t->accepted = 0;
    t->age_ns = 0;
}

/* Append an entry for the host.  The caller has checked rt_tokens_space; rt_show publishes all
 * entries at once. */
RT_FN void rt_tell(rt_machine *m, rt_u64 id, rt_i32 token, rt_u32 index, rt_u32 count,
                   rt_u32 reason)
{
    rt_tell_at(m, m->serving->told++, id, token, index, count, reason);
}

RT_FN void rt_show(rt_machine *m)
{
    /* partner: rt_ring_ready in the host */
    rt_store_release_system(&m->token_ring->written, m->serving->told);
}

/* Add to a statistics count, which the step task alone writes. */
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
    if (want > most || (r->flags & RT_HOST_SAMPLES ? s->logits == RT_NOWHERE || !r->logits
                                                   : s->next == RT_NOWHERE))
        return 0;
    return (rt_u32)want;
}

/* Entry i of a slot's row of the page table. */
RT_FN rt_i32 *rt_page_entry(const rt_machine *m, rt_u32 slot, rt_u32 i)
{
    return (rt_i32 *)(m->step_area + m->serving->pages) +
           (rt_u64)slot * m->serving->pages_per_slot + i;
}

/* The name of the text of a slot's first n pages.  Names of the prompt's full pages came with the
 * request.  Beyond them the name is continued over the slot's row of `history`, one page at a time
 * and never backwards.  A known name is not read from the token arena again: once a request whose
 * tokens the host samples has been fed, its part of the arena may hold something else. */
RT_LARGE_FN const rt_name *rt_chain_to(rt_machine *m, rt_u32 index, rt_u32 n)
{
    const rt_serving *s = m->serving;
    const rt_request *r = &m->running[index];
    rt_chain *c = &m->chains[index];
    rt_u32 given = n < r->n_names ? n : r->n_names - 1;
    if (!c->known || c->n < given || c->n > n) {
        c->name = rt_name_given(m, r, given);
        c->n = given;
        c->known = 1;
    }
    for (; c->n < n; c->n++)
        rt_name_tokens(s, &c->name, rt_slot_text(m, index) + (rt_u64)c->n * s->page_tokens,
                       s->page_tokens);
    return &c->name;
}

/* Does this request take part in sharing: are its pages named, and does it look up pages of
 * others? */
RT_FN int rt_slot_shares(const rt_machine *m, rt_u32 index)
{
    return m->serving->unit && m->running[index].n_names;
}

/* Does the slot feed a text from its beginning, so that token i has position i?  Then the pages
 * that the text fills can be named. */
RT_FN int rt_slot_begins(const rt_slot *slot)
{
    return slot->source != RT_NOWHERE && slot->n_fed == slot->position;
}

/* All lanes: name page i of the prompt, which the step will fill; a lane with i >= end names none.
 * The lane with the last page of the step stores its name in the slot's chain, from which later
 * names are continued. */
RT_FN void rt_slot_name_given(rt_machine *m, rt_u32 index, rt_u32 i, rt_u32 end)
{
    rt_u32 page = RT_NONE;
    rt_name name = {{0, 0}};
    if (i < end) {
        page = (rt_u32)*rt_page_entry(m, index, i);
        name = rt_name_given(m, &m->running[index], i + 1);
    }
    if (i + 1 == end) {
        rt_chain *c = &m->chains[index];
        c->name = name;
        c->n = end;
        c->known = 1;
    }
    rt_pages_name(m, page, &name, (rt_u32)m->serving->n_steps + 1);
}

/* All lanes: the next n tokens of a text are about to be fed: name the pages that they complete.
 * Names that came with the request are independent, so each lane reads one.  The names after them
 * follow from each other, so one lane computes them.  A request with a mask may have to write its
 * last token again (RT_SLOT_LATE), so the page of that token stays unnamed. */
RT_LARGE_FN void rt_slot_name(rt_machine *m, rt_u32 index, rt_u32 n)
{
    const rt_serving *s = m->serving;
    const rt_slot *slot = &m->slots[index];
    if (!rt_slot_shares(m, index) || !rt_slot_begins(slot) || (s->few_tokens && n != s->max_tokens))
        return;
    const rt_request *r = &m->running[index];
    const rt_u32 again = r->mask && slot->n_fed + n == slot->n_source,
                 end = (slot->position + n - again) / s->page_tokens,
                 given = r->n_names - 1 < end ? r->n_names - 1 : end;
    const rt_u32 first = slot->position / s->page_tokens;
    for (rt_u32 i = first; i < given; i += RT_LANES)
        rt_slot_name_given(m, index, i + rt_lane(), given);
    for (rt_u32 i = first > given ? first : given; rt_lane() == 0 && i < end; i++)
        rt_page_name(m, (rt_u32)*rt_page_entry(m, index, i), rt_chain_to(m, index, i + 1),
                     (rt_u32)s->n_steps + 1);
}

/* Name the full pages of the answer, so that the next turn of a conversation finds them.  All of
 * them are written. */
RT_LARGE_FN void rt_slot_name_answer(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    rt_u32 i = m->chains[index].n;
    if (!m->slots[index].held || !rt_slot_shares(m, index) || s->few_tokens)
        return;
    /* the last name may be of no page yet */
    i = i < m->running[index].n_names ? m->running[index].n_names - 1 : i - 1;
    for (; i < m->slots[index].position / s->page_tokens; i++)
        rt_page_name(m, (rt_u32)*rt_page_entry(m, index, i), rt_chain_to(m, index, i + 1),
                     (rt_u32)s->n_steps);
}

/* Let go of a slot's pages, which have their names, and of its promise.  The last page goes first:
 * kept pages are evicted in that order, so the beginning of a text outlives its end, and what can
 * be found is always a whole prefix. */
RT_LARGE_FN void rt_slot_give_pages(rt_machine *m, rt_u32 index)
{
    rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    s->n_promised -= slot->reserved - slot->held;
    s->n_short -= !s->grows && rt_slot_lacks(m, index);
    s->blocked = 0;
    while (slot->held) {
        slot->held--;
        rt_page_let_go(m, (rt_u32)*rt_page_entry(m, index, slot->held));
    }
    slot->reserved = 0;
    rt_pages_say(m);
}

/* The request has ended: its slot and its pages are free. */
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

/* The request ends with this token.  The answer's pages are named before the host is told, since
 * the host may then overwrite the request's part of the token arena. */
RT_FN void rt_slot_tell_end(rt_machine *m, rt_u32 index, rt_i32 token, rt_u32 reason)
{
    const rt_slot *slot = &m->slots[index];
    rt_slot_name_answer(m, index);
    rt_tell(m, m->running[index].id, token, slot->generated, slot->count, reason);
}

RT_LARGE_FN void rt_slot_finish(rt_machine *m, rt_u32 index, rt_i32 token, rt_u32 reason)
{
    rt_slot_tell_end(m, index, token, reason);
    rt_slot_free(m, index);
}

/* ---- shared pages ---- */

enum { RT_MISSING, RT_LATER, RT_TAKEN };

/* Look for the n_pages pages of the next unit and put them into the slot's row of the page table,
 * not held yet. */
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

/* Hold the pages that were found.  Their n tokens count as fed.  Rules, drafts, and a second feed
 * after being put back need the tokens themselves, so these are copied to `history`. */
RT_FN void rt_slot_skip(rt_machine *m, rt_u32 index, rt_u32 n_pages, rt_u32 n)
{
    rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    const rt_request *r = &m->running[index];
    for (rt_u32 i = 0; i < n_pages; i++)
        rt_page_share(m, (rt_u32)*rt_page_entry(m, index, slot->held + i));
    if (slot->source != RT_AGAIN && (s->grows || r->drafts || r->n_rules))
        for (rt_u32 i = slot->position; i < slot->position + n; i++)
            rt_slot_text(m, index)[i] = m->token_arena[slot->source + i];
    if (slot->source != RT_AGAIN && !(r->flags & RT_HOST_SAMPLES))
        slot->count += n;
    if (slot->source != RT_AGAIN)
        rt_count(&m->control->stats.found, n);
    slot->held += n_pages;
    s->n_promised -= n_pages;
    s->blocked = 0;
    slot->position += n;
    slot->n_fed += n;
}

/* One lane: take pages that already hold the text that a request feeds, unit by unit
 * (rt_serving.unit). 0: the step under construction computes the next unit, so the request waits
 * for it instead of feeding. */
RT_LARGE_FN int rt_slot_match(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    const rt_slot *slot = &m->slots[index];
    rt_u32 found = RT_TAKEN;
    if (!rt_slot_shares(m, index) || !rt_slot_begins(slot))
        return 1;
    while (found == RT_TAKEN && slot->position % s->unit == 0 &&
           slot->position + s->unit < slot->n_source) {
        found = rt_slot_look_up(m, index, s->unit / s->page_tokens);
        if (found == RT_TAKEN)
            rt_slot_skip(m, index, s->unit / s->page_tokens, s->unit);
    }
    rt_pages_say(m);
    return found != RT_LATER;
}

/* ---- growing and putting back ---- */

/* The state of a request that has tokens to feed.  Where tokens leave state behind none can be fed
 * again, so one with masks waits for that of its next draw before it feeds (RT_SLOT_LATE). */
RT_FN rt_u32 rt_slot_feeds(const rt_machine *m, rt_u32 index)
{
    return m->serving->carries && m->running[index].mask ? RT_SLOT_LATE : RT_SLOT_FEEDING;
}

/* Pages that a request needs when it is about to feed n tokens: those of n + 1 positions, or of all
 * its positions if the host samples. */
RT_FN rt_u32 rt_pages_at_first(const rt_serving *s, const rt_request *r, rt_u32 n, rt_u32 limit)
{
    return rt_pages_for(s, !(r->flags & RT_HOST_SAMPLES) && n < limit ? n + 1 : limit);
}

/* Park a request: it resumes later (rt_step_resume). */
RT_FN void rt_slot_park(rt_machine *m, rt_u32 index)
{
    m->slots[index].state = RT_SLOT_PARKED;
    m->serving->n_active--;
    m->serving->n_parked++;
    rt_store_relaxed_device(&m->control->stats.put_back,
                            rt_load_relaxed_device(&m->control->stats.put_back) + 1);
}

/* Put a request back: it gives up its pages and resumes later (rt_step_resume).  If it was
 * decoding, its whole text, which lies in `history`, becomes what it feeds. */
RT_LARGE_FN void rt_slot_put_back(rt_machine *m, rt_u32 index)
{
    rt_slot *slot = &m->slots[index];
    if (slot->source == RT_NOWHERE) {
        rt_slot_text(m, index)[slot->position] = slot->token;
        slot->source = RT_AGAIN;
        slot->n_source = slot->position + 1;
    }
    rt_slot_name_answer(m, index);
    rt_slot_give_pages(m, index);
    rt_draft_forget(m, index);
    if (slot->source != RT_AGAIN)
        slot->count = 0;
    slot->position = slot->n_fed = slot->step_tokens = 0;
    m->chains[index].n = m->chains[index].known = 0;
    rt_slot_park(m, index);
}

/* May this slot's request be put back? */
RT_FN int rt_slot_may_go(const rt_machine *m, rt_u32 index)
{
    return m->slots[index].state == RT_SLOT_FEEDING && !(m->running[index].flags & RT_HOST_SAMPLES);
}

/* The slot of the request that is put back first: the least urgent one, of equals the youngest;
 * RT_NONE: none may be. */
RT_FN rt_u32 rt_find_last(const rt_machine *m)
{
    rt_u32 best = RT_NONE;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++)
        if (rt_slot_may_go(m, i) && (best == RT_NONE || rt_slot_is_before(m, best, i)))
            best = i;
    return best;
}

/* The slot of the PARKED request that resumes first: the most urgent one, of equals the oldest;
 * where requests lend, the oldest, on which the law of loans relies.  RT_NONE: none is PARKED. */
RT_FN rt_u32 rt_find_parked(const rt_machine *m)
{
    rt_u32 best = RT_NONE;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++)
        if (m->slots[i].state == RT_SLOT_PARKED &&
            (best == RT_NONE || (m->serving->grows ? rt_slot_is_before(m, i, best)
                                                   : rt_slot_age(m, i) > rt_slot_age(m, best))))
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

/* Does it decode into a page that it was not promised? */
RT_FN int rt_slot_wants(const rt_machine *m, rt_u32 index)
{
    return rt_slot_crosses(m, index) && m->slots[index].held >= m->slots[index].reserved;
}

/* Where requests grow: promise a page to each that wants one.  While none is left, put back the
 * last request (rt_find_last), which may be the one that asks. */
RT_LARGE_FN void rt_step_grow(rt_machine *m)
{
    rt_serving *s = m->serving;
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        rt_slot *slot = &m->slots[i];
        if (!rt_slot_wants(m, i))
            continue;
        while (slot->state == RT_SLOT_FEEDING && !rt_pages_left(s))
            rt_slot_put_back(m, rt_find_last(m)); /* never RT_NONE: this slot itself qualifies */
        if (slot->state == RT_SLOT_FEEDING) {
            slot->reserved++;
            s->n_promised++;
        }
    }
}

/* Where requests lend: a request that wants a page borrows one, or pauses with the pages that it
 * has.  A request that is promised the last page of its claim is not short any more.  The law then
 * reserves nothing for it, so requests that pause or wait may have room: the next step tries them
 * again. */
RT_LARGE_FN void rt_step_borrow(rt_machine *m)
{
    rt_serving *s = m->serving;
    int eased = 0;
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        if (!rt_slot_wants(m, i))
            continue;
        if (rt_slot_borrow(m, i)) {
            eased |= !rt_slot_lacks(m, i);
        } else {
            rt_slot_park(m, i);
            s->blocked = 1;
        }
    }
    if (eased)
        s->blocked = 0;
}

/* The steady path takes pages from the stack only (rt_lane_goes_on).  Evict kept pages to the stack
 * early, so that an empty stack does not force the general path. */
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

/* Promise to a request that was put back what it feeds.  0: too few pages are left. */
RT_FN int rt_slot_unpark(rt_machine *m, rt_u32 index)
{
    rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    rt_u32 n = rt_pages_at_first(s, &m->running[index], slot->n_source, slot->limit);
    if (rt_pages_left(s) < n + rt_pages_wanted(m))
        return 0;
    slot->reserved = n;
    s->n_promised += n;
    return 1;
}

/* Resume requests that are PARKED, in their order, as far as pages can be promised. */
RT_LARGE_FN void rt_step_resume(rt_machine *m)
{
    rt_serving *s = m->serving;
    while (s->n_parked) {
        rt_u32 index = rt_find_parked(m);
        if (!(s->grows ? rt_slot_unpark(m, index) : rt_slot_borrow(m, index)))
            return;
        m->slots[index].state = rt_slot_feeds(m, index);
        s->n_parked--;
        s->n_active++;
    }
}

/* ---- admission ---- */

/* A slot without a request, the lowest; RT_NONE: all run one. */
RT_FN rt_u32 rt_find_free(const rt_machine *m)
{
    for (rt_u32 i = 0; i < m->serving->n_slots; i++)
        if (m->slots[i].state == RT_SLOT_FREE)
            return i;
    return RT_NONE;
}

/* Copy a request's rules, which follow its prompt in the token arena, to its slot's row of
 * `rules`. */
RT_FN void rt_slot_take_rules(const rt_machine *m, rt_u32 index)
{
    const rt_request *r = &m->running[index];
    rt_i32 *to =
        (rt_i32 *)(m->step_area + m->serving->rules) + (rt_u64)index * m->serving->rule_words;
    for (rt_u32 i = 0; i < r->n_rules; i++)
        to[i] = m->token_arena[r->prompt + r->n_prompt + i];
}

/* reserved: pages that it was promised (rt_room_for). */
RT_LARGE_FN void rt_slot_begin(rt_machine *m, rt_u32 index, const rt_request *r, rt_u32 limit,
                               rt_u32 reserved)
{
    rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    m->running[index] = *r;
    slot->n_eos = (rt_u16)r->n_eos;
    slot->asks = (rt_u16)((r->n_rules ? RT_SLOT_RULES : 0) | (r->n_logprobs ? RT_SLOT_SHARES : 0));
    slot->state = rt_slot_feeds(m, index);
    slot->admitted = s->n_admitted++;
    slot->admitted_ns = rt_clock_ns();
    slot->position = slot->held = slot->n_fed = slot->generated = slot->count = 0;
    slot->step_tokens = slot->step_rows = slot->step_row = 0;
    slot->limit = limit;
    slot->reserved = reserved;
    slot->source = r->prompt;
    slot->n_source = r->n_prompt;
    s->n_promised += reserved;
    s->n_short += !s->grows && rt_slot_lacks(m, index);
    s->n_active++;
    m->chains[index].n = m->chains[index].known = 0;
    if (rt_slot_shares(m, index)) {
        rt_chain_to(m, index, 0);
        rt_count(&m->control->stats.asked, r->n_prompt);
    }
    if (r->n_rules)
        rt_slot_take_rules(m, index);
    if (s->draft_tokens)
        rt_draft_begin(m, index);
}

/* Do the request's prompt, rules and names lie inside the token arena, and does the program have
 * what its rules, log probabilities and mask need?  Requests come from outside the machine, so
 * nothing about them is assumed. */
RT_FN int rt_request_fits(const rt_machine *m, const rt_request *r)
{
    const rt_serving *s = m->serving;
    rt_u64 n = (rt_u64)r->n_prompt + r->n_rules + (rt_u64)r->n_names * RT_NAME_WORDS;
    if (n > m->n_arena || r->prompt > m->n_arena - n)
        return 0;
    if (!r->n_rules && !r->n_logprobs && !r->mask)
        return 1;
    return s->asks != RT_NOWHERE && r->n_rules <= s->rule_words && r->mask <= s->n_masks &&
           (!r->mask || r->n_rules) && r->n_logprobs <= RT_LOGPROBS &&
           (!r->n_logprobs || r->logprobs);
}

/* Pages that a new request gains if those less urgent than `priority` are put back: the pages they
 * hold or were promised, and the one that rt_pages_wanted keeps in reserve for each.  Pages that
 * several of them share are not counted.  This number plus the pages left stays the same while such
 * a request grows.  So a new request that found no room finds none until pages come back, and
 * meanwhile the steady path, which admits no request, may run (rt_serving.blocked). */
RT_FN rt_u32 rt_pages_below(const rt_machine *m, rt_i32 priority)
{
    rt_u32 n = 0;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        if (!rt_slot_may_go(m, i) || m->running[i].priority <= priority)
            continue;
        n += slot->reserved - slot->held + (rt_slot_lacks(m, i) != 0);
        for (rt_u32 k = 0; k < slot->held; k++)
            n += !m->kv_pages[*rt_page_entry(m, i, k)].sharers;
    }
    return n;
}

/* Where requests grow: leave n pages over for a new request.  If too few are, less urgent ones are
 * put back, the last first, but only if that suffices.  0: there is no room. */
RT_LARGE_FN int rt_make_room(rt_machine *m, const rt_request *r, rt_u32 n)
{
    rt_serving *s = m->serving;
    if (rt_pages_left(s) + rt_pages_below(m, r->priority) < n + rt_pages_wanted(m))
        return 0;
    while (rt_pages_left(s) < n + rt_pages_wanted(m))
        rt_slot_put_back(m, rt_find_last(m));
    return 1;
}

/* Pages to promise to a request whose positions end at `limit`; RT_NONE: too few are left. */
RT_FN rt_u32 rt_room_for(rt_machine *m, const rt_request *r, rt_u32 limit)
{
    const rt_serving *s = m->serving;
    const rt_u32 n = rt_pages_at_first(s, r, r->n_prompt, limit);
    if (!s->grows)
        return rt_lend(m, n, rt_pages_for(s, limit), r->flags & RT_HOST_SAMPLES);
    return rt_make_room(m, r, n) ? n : RT_NONE;
}

/* Take entries that are done from the front of the ring.  An entry that is done before earlier ones
 * keeps its place until these are done. */
RT_FN void rt_requests_pass(rt_machine *m)
{
    while (rt_ring_ready(m->request_ring)) {
        const rt_request *r =
            &m->requests[rt_load_relaxed_device(&m->request_ring->read) & m->request_mask];
        if (!r->dropped)
            return;
        m->serving->n_ranked -= r->priority != 0;
        rt_ring_took(m->request_ring, 1);
    }
}

/* Entry `at`, which is not dropped, comes before all that were compared before it. */
RT_FN void rt_request_is_first(rt_serving *s, rt_u32 at, rt_i32 priority)
{
    s->has_first = 1;
    s->first = at;
    s->first_priority = priority;
}

/* Examine the entries that have arrived.  Each is examined once, so a ring without priorities is
 * never searched. */
RT_FN void rt_requests_look(rt_machine *m)
{
    rt_serving *s = m->serving;
    rt_u32 end = rt_load_relaxed_device(&m->request_ring->read) + rt_ring_ready(m->request_ring);
    for (; s->n_looked != end; s->n_looked++) {
        const rt_request *r = &m->requests[s->n_looked & m->request_mask];
        s->n_ranked += r->priority != 0;
        if (s->has_first && !r->dropped && r->priority < s->first_priority)
            rt_request_is_first(s, s->n_looked, r->priority);
    }
}

/* Search the ring, from entry `at` on, for the request that comes first.  Eight entries are loaded
 * together, since on a GPU each load takes the better part of a microsecond. */
RT_LARGE_FN void rt_requests_search(rt_machine *m, rt_u32 at)
{
    enum { TOGETHER = 8 };
    rt_serving *s = m->serving;
    while (at != s->n_looked) {
        rt_i32 priority[TOGETHER];
        rt_u32 dropped[TOGETHER];
        const rt_u32 n = s->n_looked - at < TOGETHER ? s->n_looked - at : TOGETHER;
        for (rt_u32 i = 0; i < TOGETHER; i++) {
            const rt_request *r = &m->requests[(at + (i < n ? i : 0)) & m->request_mask];
            priority[i] = r->priority;
            dropped[i] = r->dropped;
        }
        for (rt_u32 i = 0; i < TOGETHER; i++)
            if (i < n && !dropped[i] && (!s->has_first || priority[i] < s->first_priority))
                rt_request_is_first(s, at + i, priority[i]);
        at += n;
    }
}

/* Of the requests that wait, the one to admit next: that with the least priority, and of equals the
 * oldest; NULL: none waits.  The result is remembered until the entry is dropped. */
RT_FN rt_request *rt_next_request(rt_machine *m)
{
    rt_serving *s = m->serving;
    rt_requests_pass(m);
    const rt_u32 first = rt_load_relaxed_device(&m->request_ring->read);
    if (!s->has_first && s->n_ranked)
        rt_requests_search(m, first);
    else if (!s->has_first && first != s->n_looked) /* rt_requests_pass has left one that waits */
        rt_request_is_first(s, first, 0);
    return s->has_first ? &m->requests[s->first & m->request_mask] : (rt_request *)0;
}

/* An entry is done.  at: its number since the start. */
RT_FN void rt_request_drop(rt_machine *m, rt_u32 at)
{
    rt_serving *s = m->serving;
    m->requests[at & m->request_mask].dropped = 1;
    s->has_first = s->has_first && s->first != at;
}

/* Where requests lend, what was blocked stays so until pages come back or a request comes. */
RT_FN int rt_is_still_blocked(const rt_machine *m)
{
    const rt_serving *s = m->serving;
    return !s->grows && s->blocked &&
           s->n_looked ==
               rt_load_relaxed_device(&m->request_ring->read) + rt_ring_ready(m->request_ring);
}

/* May this request begin before those that were put back?  Where requests grow, only if it is more
 * urgent than all of them. */
RT_FN int rt_may_begin(const rt_machine *m, const rt_request *r)
{
    const rt_serving *s = m->serving;
    return !s->grows || !s->n_parked || r->priority < m->running[rt_find_parked(m)].priority;
}

/* Admit requests by priority and arrival until a slot or a page is missing.  A request that can
 * never run here is refused at once. */
RT_LARGE_FN void rt_step_admit(rt_machine *m)
{
    rt_serving *s = m->serving;
    rt_request *r;
    if (rt_is_still_blocked(m))
        return;
    rt_step_resume(m);
    s->blocked = s->n_parked != 0;
    rt_requests_look(m);
    while ((r = rt_next_request(m)) && rt_may_begin(m, r)) {
        rt_u32 limit = rt_request_fits(m, r) ? rt_request_limit(s, r) : 0;
        if (!limit) {
            if (!rt_tokens_space(m)) {
                s->blocked = 0; /* it is looked at again in the next step */
                return;
            }
            rt_tell(m, r->id, -1, 0, 0, RT_REFUSED);
        } else {
            rt_u32 index = rt_find_free(m),
                   n = index == RT_NONE ? RT_NONE : rt_room_for(m, r, limit);
            if (n == RT_NONE) {
                s->blocked = 1;
                return;
            }
            rt_slot_begin(m, index, r, limit, n);
        }
        rt_request_drop(m, s->first);
    }
}

#endif
