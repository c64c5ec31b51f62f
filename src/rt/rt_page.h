/* rt_page.h - scratch pages of one worker (paper §5.3), handed out in a circle.
 *
 * Two counters that never reset.  `acquired` belongs to the side that begins tasks, `released` to
 * the side that ends them (on a CPU the same thread).  The pages of a task are neighbours; where
 * the circle ends too early for that, its last pages are skipped and counted with the task.
 *
 * Invariant: tasks release in the order in which they acquired, so the pages in use are those from
 * `released` to `acquired`, and the two counters are the whole state.  A task acquires its pages
 * once, before it begins.
 */
#ifndef RT_PAGE_H
#define RT_PAGE_H

#include "rt/rt.h"

/* What one task holds. */
typedef struct rt_hold {
    rt_u32 first; /* page number */
    rt_u32 taken; /* pages to release, skipped ones included */
} rt_hold;

/* Acquire n <= p->n neighbouring pages.  0: not enough are free now, and nothing changed. */
RT_FN int rt_pages_acquire(rt_pages *p, rt_u32 n, rt_hold *hold)
{
    rt_u32 acquired = rt_load_relaxed_device(&p->acquired);
    /* partner: rt_pages_release; those bytes may be reused */
    rt_u32 held = acquired - rt_load_acquire_device(&p->released);
    /* no page is in use, or the circle is at its end: start again, so that n <= p->n fits */
    if (held == 0 || p->at == p->n)
        p->at = 0;
    rt_u32 skip = p->at + n > p->n ? p->n - p->at : 0;
    if (p->n - held < n + skip)
        return 0;
    hold->first = skip ? 0 : p->at;
    hold->taken = n + skip;
    p->at = hold->first + n;
    rt_store_relaxed_device(&p->acquired, acquired + n + skip);
    return 1;
}

/* Release what rt_pages_acquire gave: the oldest pages in use. */
RT_FN void rt_pages_release(rt_pages *p, const rt_hold *hold)
{
    rt_store_release_device(&p->released, rt_load_relaxed_device(&p->released) + hold->taken);
}

#endif
