/* watch.c - are the tensors of another library as they were (see watch.h)?
 *
 * Input: what the caller noted of each tensor; output: the number of the first that differs.  It
 * runs before each launch of a compiled PyTorch program, on the launching thread, allocates nothing
 * and takes no lock.
 *
 * Cost: the functions of the other library, three calls a tensor; their misses of the cache
 * overlap.
 */
#include "engine/watch.h"

#include <stdbool.h>

enum { AHEAD = 12, LINE = 64 };

/* Records, and what they point to, are often in no cache.  What they point to is prefetched this
 * many tensors ahead, the records twice as many. */
static void fetch_record(const mpk_watch *w, uint32_t i)
{
    for (uint32_t k = 0; i < w->n && k < sizeof w->read / sizeof *w->read; k++)
        __builtin_prefetch((const void *)((uintptr_t)w->records[i] + w->read[k]));
}

/* The record itself has come by now: read the pointers in it and prefetch what they point to, two
 * lines of what `where` reads. */
static void follow_record(const mpk_watch *w, uint32_t i)
{
    if (i >= w->n)
        return;
    const char *record = w->records[i];
    uintptr_t bytes = *(const uintptr_t *)(record + w->follow[0]);
    __builtin_prefetch((const void *)bytes);
    __builtin_prefetch((const void *)(bytes + LINE));
    if (i < w->n_counted)
        __builtin_prefetch(*(void *const *)(record + w->follow[1]));
}

/* The item first: the other functions may only be called if the object is still the same one. */
static bool is_as_it_was(const mpk_watch *w, uint32_t i, void *list)
{
    void *address = NULL;
    return w->item(list, w->place[i]) == w->items[i] && w->where(&w->records[i], &address) == 0 &&
           address == w->addresses[i] &&
           (i >= w->n_counted || w->version(&w->records[i]) == w->versions[i]);
}

uint32_t mpk_first_other(const mpk_watch *w, void *list)
{
    uint32_t i = 0;
    for (; i < 2 * AHEAD; i++)
        fetch_record(w, i);
    for (i = 0; i < AHEAD; i++)
        follow_record(w, i);
    for (i = 0; i < w->n; i++) {
        fetch_record(w, i + 2 * AHEAD);
        follow_record(w, i + AHEAD);
        if (!is_as_it_was(w, i, list))
            break;
    }
    return i;
}
