/* rt_laws.h - the laws of KV pages and promises (rt.h, rt_lend.h) and of the order in which
 * requests give way (rt_admit.h), checked on the state of a step task between its steps.  For
 * rt_step_test.c and rt_fair_test.c. */
#ifndef TESTS_RT_LAWS_H
#define TESTS_RT_LAWS_H

#include <string.h>

#include "check.h"

#include "rt/rt_step.h"

/* Free pages have no name, each is on the stack once. */
static inline void count_free(const rt_machine *m, rt_u32 *seen)
{
    for (rt_u32 i = 0; i < m->serving->n_free; i++) {
        assert_int_equal(m->kv_pages[m->free_pages[i]].state, 0);
        assert_int_equal(seen[m->free_pages[i]]++, 0);
    }
}

/* A slot's pages before what it feeds were written by earlier steps. */
static inline void count_held(const rt_machine *m, rt_u32 slot, rt_u32 *seen)
{
    const rt_u32 fed = m->slots[slot].position / m->serving->page_tokens;
    for (rt_u32 k = 0; k < m->slots[slot].held; k++) {
        const rt_u32 page = (rt_u32)*rt_page_entry(m, slot, k);
        const rt_kv_page *p = &m->kv_pages[page];
        assert_false(p->state & RT_PAGE_KEPT);
        assert_false(p->state & RT_PAGE_NAMED && k < fed &&
                     p->built == (rt_u32)m->serving->n_steps);
        seen[page]++;
    }
}

/* Every page is free, kept or held, and as often as it says; promises can be kept. */
static inline void check_pages(const rt_machine *m)
{
    const rt_serving *s = m->serving;
    rt_u32 *seen = calloc(s->n_pages, sizeof *seen), promised = 0, kept = 0;
    assert_non_null(seen);
    count_free(m, seen);
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        if (slot->state == RT_SLOT_FREE)
            continue;
        promised += slot->reserved - slot->held;
        assert_true(slot->state != RT_SLOT_PARKED || !s->grows || !slot->reserved);
        assert_true(slot->held <= slot->reserved);
        count_held(m, i, seen);
    }
    for (rt_u32 i = 0; i < s->n_pages; i++) {
        const rt_kv_page *p = &m->kv_pages[i];
        kept += (p->state & RT_PAGE_KEPT) != 0;
        assert_int_equal(seen[i], p->state & RT_PAGE_KEPT ? 0 : 1 + p->sharers);
        assert_true(!(p->state & RT_PAGE_NAMED) || rt_page_find(m, &p->name) == i);
    }
    assert_int_equal(kept, s->n_kept);
    assert_int_equal(promised, s->n_promised);
    assert_true(promised <= s->n_free + s->n_kept);
    free(seen);
}

/* Pages of the host's requests and of younger short ones, with their promises, beside a short one:
 * each page counts once, and not if the short one holds it too. */
static inline rt_u32 count_standing(const rt_machine *m, rt_u32 beside)
{
    const rt_serving *s = m->serving;
    bool *seen = calloc(s->n_pages, sizeof *seen);
    rt_u32 n = 0;
    assert_non_null(seen);
    for (rt_u32 k = 0; k < m->slots[beside].held; k++)
        seen[*rt_page_entry(m, beside, k)] = true;
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        const bool younger = rt_slot_age(m, i) < rt_slot_age(m, beside);
        if (slot->state == RT_SLOT_FREE ||
            !((younger && rt_slot_lacks(m, i)) || m->running[i].flags & RT_HOST_SAMPLES))
            continue;
        n += slot->reserved - slot->held;
        for (rt_u32 k = 0; k < slot->held; k++) {
            n += !seen[*rt_page_entry(m, i, k)];
            seen[*rt_page_entry(m, i, k)] = true;
        }
    }
    free(seen);
    return n;
}

/* Where requests grow, each that runs and might be put back comes before all that were. */
static inline void check_order(const rt_machine *m)
{
    const rt_u32 parked = m->serving->grows && m->serving->n_parked ? rt_find_parked(m) : RT_NONE;
    for (rt_u32 i = 0; parked != RT_NONE && i < m->serving->n_slots; i++)
        assert_true(!rt_slot_may_go(m, i) || rt_slot_is_before(m, i, parked));
}

/* The law of rt_lend.h.  rests: the step task found nothing to do; then no request pauses. */
static inline void check_loans(const rt_machine *m, bool rests)
{
    const rt_serving *s = m->serving;
    rt_u32 n_short = 0;
    for (rt_u32 i = 0; !s->grows && i < s->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        if (slot->state == RT_SLOT_FREE)
            continue;
        assert_false(rests && (slot->state == RT_SLOT_FEEDING || slot->state == RT_SLOT_PARKED));
        if (!rt_slot_lacks(m, i))
            continue;
        n_short++;
        assert_true(rt_pages_for(s, slot->limit) + count_standing(m, i) <= s->n_pages);
    }
    assert_int_equal(n_short, s->n_short);
}

/* Would the step task, if it looked now, resume the request that pauses first, or give a place to
 * the one that waits first?  Its books are copied, since promises may change when it is asked. */
static inline bool could_go_on(const rt_machine *m)
{
    rt_machine copy = *m;
    rt_serving serving = *m->serving;
    rt_ring ring = *m->request_ring;
    rt_slot *slots = malloc(serving.n_slots * sizeof *slots);
    assert_non_null(slots);
    memcpy(slots, m->slots, serving.n_slots * sizeof *slots);
    copy.serving = &serving;
    copy.request_ring = &ring;
    copy.slots = slots;
    bool could = false;
    if (serving.n_parked)
        could = serving.grows ? rt_slot_unpark(&copy, rt_find_parked(&copy))
                              : rt_slot_borrow(&copy, rt_find_parked(&copy));
    const rt_request *r = rt_next_request(&copy);
    if (!could && r && rt_find_free(&copy) != RT_NONE && rt_may_begin(&copy, r)) {
        const rt_u32 limit = rt_request_fits(&copy, r) ? rt_request_limit(&serving, r) : 0,
                     n = rt_pages_at_first(&serving, r, r->n_prompt, limit);
        if (!limit)
            could = rt_tokens_space(&copy) != 0; /* it is refused */
        else if (serving.grows)
            could = rt_pages_left(&serving) + rt_pages_below(&copy, r->priority) >=
                    n + rt_pages_wanted(&copy);
        else
            could = rt_room_for(&copy, r, limit) != RT_NONE;
    }
    free(slots);
    return could;
}

/* Where the step task does not look at the requests that pause or wait, none of them could go on.
 * It does not look while `blocked` is set, if requests lend each other pages; nor on the steady
 * path, which it leaves only for a request that is not blocked.  rests: as for check_loans. */
static inline void check_blocked(const rt_machine *m, bool rests)
{
    const rt_serving *s = m->serving;
    const bool goes_on = s->steady && (s->blocked || s->n_parked);
    assert_false((rests || goes_on || (s->blocked && !s->grows)) && could_go_on(m));
}

#endif
