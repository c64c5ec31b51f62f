/* rt_page.h - scratch pages of one worker (paper §5.3): acquired, then released, never acquired again after a release.
 *
 * Two counters that never reset: `acquired` belongs to the side that begins tasks, `released` to the side that ends
 * them (on a GPU the loader warp and the consumer warps; on a CPU the same thread).  Pages of a task are neighbours:
 * where the circle ends too early, the rest of it is skipped and counted with the task.  Tasks release in the order in
 * which they acquired, so the two counters say all.
 */
#ifndef RT_PAGE_H
#define RT_PAGE_H

#include "rt/rt.h"

/* What one task holds. */
typedef struct rt_hold {
    rt_u32 first; /* page number */
    rt_u32 taken; /* pages to release, skipped ones included */
} rt_hold;

/* n <= p->n neighbouring pages.  0: not enough are free now. */
RT_FN int rt_pages_acquire(rt_pages *p, rt_u32 n, rt_hold *hold)
{
    rt_u32 acquired = rt_load_relaxed_device(&p->acquired);
    rt_u32 held =
        acquired - rt_load_acquire_device(&p->released); /* partner: rt_pages_release; their bytes are ours again */
    if (held == 0 || p->at == p->n)
        p->at = 0; /* nobody holds a page: begin anew, so that n <= p->n always fits */
    rt_u32 skip = p->at + n > p->n ? p->n - p->at : 0;
    if (p->n - held < n + skip)
        return 0;
    hold->first = skip ? 0 : p->at;
    hold->taken = n + skip;
    p->at = hold->first + n;
    rt_store_relaxed_device(&p->acquired, acquired + n + skip);
    return 1;
}

RT_FN void rt_pages_release(rt_pages *p, const rt_hold *hold)
{
    rt_store_release_device(&p->released, rt_load_relaxed_device(&p->released) + hold->taken);
}

#endif
