/* ranks.h - the processes of one host that run a program together, one for each peer
 * (docs/gpus.md, "One process for each peer"): how they meet, agree, share memory, and notice that
 * one has ended.
 *
 * Rank 0 listens at a path; each other rank keeps a socket to it, and no rank one to another.  So
 * everything is gathered and told by rank 0.  Every wait is bounded, and ends at once with the name
 * of a rank whose process ends.
 *
 * Called by src/engine (meet, free) and by targets (the rest).  One thread at a time calls, but for
 * ranks_closed.
 */
#ifndef HOST_RANKS_H
#define HOST_RANKS_H

#include "base/str.h"
#include "mpk/status.h"

struct mpk_context;
typedef struct host_ranks host_ranks;

typedef struct ranks_place {
    const char *path; /* of the socket; rank 0 makes it, and removes it when all have come */
    uint32_t rank, n; /* n: at least 2, at most RANKS_MOST */
    uint64_t wait_ns; /* for the others to come */
} ranks_place;

enum { RANKS_MOST = 16, RANKS_TERMS_BYTES = 4096 };

/* Wait until all ranks are there.  terms: lines "name=value", which must be the same in all; the
 * first that differs is named by every rank.  *told: rank 0's number, which the others get.
 * MPK_EARG: a path or a rank that cannot be, terms that differ; MPK_EUNSUPPORTED: another host;
 * MPK_EDEVICE: a rank has not come, or has ended. */
mpk_status ranks_meet(struct mpk_context *cx, const ranks_place *p, str terms, uint64_t *told,
                      host_ranks **out);
/* Closes what is open: the others then see that this process has ended.  NULL is allowed. */
void ranks_free(host_ranks *r);

uint32_t ranks_rank(const host_ranks *r);
uint32_t ranks_count(const host_ranks *r);

/* Between meeting and watching, by all ranks in the same order. */

/* all[n_ranks][n]: what each rank has given.  At most RANKS_TERMS_BYTES of each. */
mpk_status ranks_exchange(struct mpk_context *cx, host_ranks *r, const void *mine, size_t n,
                          void *all);
/* Zeroed memory of n bytes that all ranks have mapped, at addresses of their own; the caller unmaps
 * it.  It has no name, so nothing is left of it when the last process ends. */
mpk_status ranks_map(struct mpk_context *cx, host_ranks *r, size_t n, void **out);

/* all[n_ranks]: of each other rank a descriptor of the file that it has given as `mine`, the
 * caller's to close; all[rank] is -1.  After a failure there are none. */
mpk_status ranks_pass(struct mpk_context *cx, host_ranks *r, int mine, int *all);

/* What the thread of a watch calls. */
typedef struct ranks_watcher {
    void (*ended)(void *user, uint32_t rank); /* once for each other rank whose process has ended */
    void (*tick)(void *user);                 /* every RANKS_TICK_MS; NULL: never */
    void *user;
} ranks_watcher;
enum { RANKS_TICK_MS = 200 };

/* From now on a thread watches the other ranks.  On ranks other than 0 it also notices that rank 0
 * has closed, which is no failure. */
mpk_status ranks_watch(struct mpk_context *cx, host_ranks *r, ranks_watcher watcher);
/* Rank 0 has closed in good order.  Any thread. */
bool ranks_closed(const host_ranks *r);
/* End the watch; rank 0 tells the others that it closes, for the others this is their end.  Without
 * a watch nothing happens. */
void ranks_unwatch(host_ranks *r);

#endif
