/* rt_lend.h - KV pages that a request was promised and does not use are lent to others (where
 * requests do not grow, rt_serving.grows).
 *
 * Input: slots with their promises, and a request that wants pages.  Output: other promises.  The
 * step task alone calls this (rt_admit.h); everything is plain memory.
 *
 * The claim of a request is what it may ever hold: the pages up to its limit.  A request that is
 * promised its whole claim runs to its end whatever others do.  While there are pages enough, every
 * request has such a promise.  If a request comes for which too few are left, promises that are not
 * used yet are taken back, the largest first.  A request with less than its claim is short: it
 * borrows a page, or a few, each time that it writes into a new one, and if it may not, it pauses.
 * A request that pauses is PARKED, keeps its pages, and goes on from where it was, so no bit of an
 * answer depends on any of this.  While one pauses, a request is admitted only with its whole
 * claim, and only if a page is left over for each that is short.
 *
 * Law (rt_may_hold).  For each short request, three things fit into the KV cache together: its
 * claim; what younger short requests hold or were promised; and what requests hold or were promised
 * whose tokens the host samples, since it is not known when they end.
 *
 *   - No deadlock.  If a request runs that is not short and draws its tokens itself, it advances
 *     and ends.  If there is none, the oldest short request gets every page up to its claim, by the
 *     law; it advances and ends.
 *   - No starvation.  Pages that come back are offered to those that pause before a request is
 *     admitted.  The oldest short request lacks nothing but a free page: each end of a request that
 *     is not short gives it one, so it ends, and the next one is the oldest.  While one pauses no
 *     short request is added, so its turn comes.
 *   - The law holds.  A request is admitted, or borrows, only if older short ones stay safe and, if
 *     it is new and short, it is safe itself.  A request that ends takes nothing.  A promise is
 *     taken back only if older ones stay safe; the request itself is, since its claim and all that
 *     the others hold and were promised have been in the cache at the same time until then.
 *
 * Cost: nothing where all have their claims.  Otherwise a look at each slot for each page, or few
 * pages, that a short request borrows.
 */
#ifndef RT_LEND_H
#define RT_LEND_H

#include "rt/rt_kv.h"

RT_FN rt_u32 rt_pages_for(const rt_serving *s, rt_u32 positions)
{
    return s->n_pages ? (positions + s->page_tokens - 1) / s->page_tokens : 0;
}

/* Admissions since this slot's own: older requests have larger ages. */
RT_FN rt_u32 rt_slot_age(const rt_machine *m, rt_u32 index)
{
    return m->serving->n_admitted - m->slots[index].admitted;
}

/* Does request a come before b?  The more urgent one does, of equals the older one. */
RT_FN int rt_slot_is_before(const rt_machine *m, rt_u32 a, rt_u32 b)
{
    const rt_i32 first = m->running[a].priority, second = m->running[b].priority;
    return first < second || (first == second && rt_slot_age(m, a) > rt_slot_age(m, b));
}

/* Pages that a request may come to want beyond its promise; more than 0: it is short. */
RT_FN rt_u32 rt_slot_lacks(const rt_machine *m, rt_u32 index)
{
    return rt_pages_for(m->serving, m->slots[index].limit) - m->slots[index].reserved;
}

/* Change a request's promise to n pages; those that it holds are among them. */
RT_FN void rt_slot_promise(rt_machine *m, rt_u32 index, rt_u32 n)
{
    rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    const int lends = !s->grows;
    s->n_short -= lends && rt_slot_lacks(m, index);
    s->n_promised += n - slot->reserved;
    slot->reserved = n;
    s->n_short += lends && rt_slot_lacks(m, index);
}

/* A promise of pages that the law is asked about, before it is given. */
typedef struct rt_loan {
    rt_u32 index; /* whose it is; RT_NONE: of a request that is about to be admitted */
    rt_u32 n;     /* pages that it would be promised, including those that it holds */
    rt_u32 lacks; /* its claim less n: the pages that it may still ask for; above 0: it is short */
    rt_u32 of_host; /* the host samples its tokens */
} rt_loan;

/* Does the law allow this promise?  Either of two conditions suffices.  The first adds the promises
 * of all short and host-sampled requests, older ones too, and counts a shared page once for each
 * holder: more than the law asks for.  The second compares with the pages that would be neither
 * held nor promised; it counts a shared page once. */
RT_LARGE_FN int rt_may_hold(const rt_machine *m, rt_loan l)
{
    const rt_serving *s = m->serving;
    const int is_new = l.index == RT_NONE;
    const rt_u32 left = rt_pages_left(s) + (is_new ? 0 : m->slots[l.index].reserved);
    const rt_u32 age = is_new ? 0 : rt_slot_age(m, l.index);
    rt_u32 most = is_new ? l.lacks : 0; /* that a request lacks which has to stay safe */
    rt_u64 standing = l.lacks || l.of_host ? l.n : 0;
    if (left < l.n || !(s->n_short || most))
        return left >= l.n;
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        if (i == l.index || m->slots[i].state == RT_SLOT_FREE)
            continue;
        const rt_u32 lacks = rt_slot_lacks(m, i);
        if (lacks || m->running[i].flags & RT_HOST_SAMPLES)
            standing += m->slots[i].reserved;
        if (lacks > most && rt_slot_age(m, i) > age)
            most = lacks;
    }
    return standing + most <= s->n_pages || most <= left - l.n;
}

/* The promise of n pages in all to a running request, for rt_may_hold to judge. */
RT_FN rt_loan rt_slot_loan(const rt_machine *m, rt_u32 index, rt_u32 n)
{
    const rt_u32 claim = rt_pages_for(m->serving, m->slots[index].limit);
    const rt_loan l = {index, n, claim - n, 0};
    return l;
}

/* Pages that a request needs next: those of the text that it feeds and of one more token. */
RT_FN rt_u32 rt_slot_least(const rt_machine *m, rt_u32 index)
{
    const rt_slot *slot = &m->slots[index];
    const rt_u32 left = slot->source == RT_NOWHERE ? 0 : slot->n_source - slot->n_fed;
    const rt_u32 end = slot->position + left + 1;
    const rt_u32 n = rt_pages_for(m->serving, end < slot->limit ? end : slot->limit);
    return n > slot->held ? n : slot->held;
}

/* Pages of a promise that can be taken back: it does not need them next. */
RT_FN rt_u32 rt_slot_unused(const rt_machine *m, rt_u32 index)
{
    const rt_slot *slot = &m->slots[index];
    if (slot->state == RT_SLOT_FREE || m->running[index].flags & RT_HOST_SAMPLES)
        return 0;
    const rt_u32 least = rt_slot_least(m, index);
    return slot->reserved > least ? slot->reserved - least : 0;
}

/* Take back the largest part of a promise that is not used, of those that the law allows.  Where a
 * request is short already, that is always safe.  0: there is none, and there is none later until a
 * request ends, comes, or is short no more: what requests use of their promises only makes the law
 * harder to meet. */
RT_LARGE_FN int rt_take_back(rt_machine *m)
{
    rt_u32 refused = RT_NONE, refused_at = 0; /* looked at largest first, of equals by slot */
    for (;;) {
        rt_u32 best = RT_NONE, most = 0;
        for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
            const rt_u32 n = rt_slot_unused(m, i);
            if (n > most && (n < refused || (n == refused && i > refused_at))) {
                most = n;
                best = i;
            }
        }
        if (best == RT_NONE)
            return 0;
        const rt_u32 rest = m->slots[best].reserved - most;
        if (rt_slot_lacks(m, best) || rt_may_hold(m, rt_slot_loan(m, best, rest))) {
            rt_slot_promise(m, best, rest);
            return 1;
        }
        refused = most;
        refused_at = best;
    }
}

/* A short request wants to write into a page that it was not promised: promise it a share of what
 * is left, or a single page if another waits.  If the law allows neither, promises that are not
 * used are taken back until it does.  0: it may have none now. */
RT_LARGE_FN int rt_slot_borrow(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    const rt_u32 reserved = m->slots[index].reserved, lacks = rt_slot_lacks(m, index);
    rt_u32 share = 1 + (s->blocked ? 0 : rt_pages_left(s) / (2 * (s->n_active + s->n_parked)));
    if (share > lacks)
        share = lacks;
    if (!rt_may_hold(m, rt_slot_loan(m, index, reserved + share))) {
        share = 1;
        while (!rt_may_hold(m, rt_slot_loan(m, index, reserved + 1)))
            if (!rt_take_back(m))
                return 0;
    }
    rt_slot_promise(m, index, reserved + share);
    return 1;
}

/* Can the promises that are not used make room for n pages? */
RT_FN int rt_can_take_back(const rt_machine *m, rt_u32 n)
{
    rt_u32 there = rt_pages_left(m->serving);
    for (rt_u32 i = 0; i < m->serving->n_slots && there < n; i++)
        there += rt_slot_unused(m, i);
    return there >= n;
}

/* Pages held in reserve for the running requests, and those that pause: one for each that may still
 * want more.  Admission leaves these alone, so that a new request does not make another one wait at
 * once. */
RT_FN rt_u32 rt_pages_wanted(const rt_machine *m)
{
    const rt_serving *s = m->serving;
    rt_u32 n = 0;
    for (rt_u32 i = 0; (s->grows || s->n_short) && i < s->n_slots; i++) {
        const rt_u32 state = m->slots[i].state;
        n += state != RT_SLOT_FREE && !(s->grows && state == RT_SLOT_PARKED) &&
             rt_slot_lacks(m, i) != 0;
    }
    return n;
}

/* May a request come that is promised n pages of its claim? */
RT_FN int rt_may_come(const rt_machine *m, rt_u32 n, rt_u32 claim, rt_u32 of_host)
{
    const rt_loan l = {RT_NONE, n, claim - n, of_host};
    return rt_pages_left(m->serving) >= n + rt_pages_wanted(m) && rt_may_hold(m, l);
}

/* Pages to promise to a request that comes: its claim if that can be, or the `first` ones, which it
 * feeds, if no request pauses.  RT_NONE: it has to wait. */
RT_LARGE_FN rt_u32 rt_lend(rt_machine *m, rt_u32 first, rt_u32 claim, rt_u32 of_host)
{
    if (rt_may_come(m, claim, claim, of_host))
        return claim;
    if (m->serving->n_parked || !rt_can_take_back(m, first + rt_pages_wanted(m)))
        return RT_NONE;
    while (rt_take_back(m))
        if (rt_may_come(m, claim, claim, of_host))
            return claim;
    return rt_may_come(m, first, claim, of_host) ? first : RT_NONE;
}

#endif
