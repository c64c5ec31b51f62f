/* drop_implied.c - drop the pairs that other pairs imply.
 *
 * Input: TG_RAW.  Output: a raw graph with the same order of tasks and fewer events.  If a task
 * waits for A and for B, and B itself waits for A, directly or through others, then the wait for
 * A is redundant:
 *
 *   event 2 <- A -> B       kept
 *   event 3 <- B -> C       kept
 *   event 4 <- A -> C       dropped, A ends before B begins
 *
 * Residual connections are the common case: they skip operators that are barriers.  The paper's
 * graphs have no such forks (§6.6); without this pass every residual would be a fork, and
 * normalisation would add two empty tasks for each of its tiles.  Redundancy is decided by exact
 * reachability (tg_reach.c).  Called by compile.c after depend; skipping it changes the size of
 * a graph and not its meaning.  Cost: linear in the pairs.
 */
#include "pass/pass.h"

/* What drop_for needs, allocated once for all tasks. */
typedef struct dropper {
    tg_graph *g;
    const tg_links *links;
    const tg_reach *reach;
    tg_task_id *list; /* producers of the task at hand; kept ones first after tg_keep_last */
    /* [n_tasks / 64 + 1] a bit for each task: it is a kept producer; all zero between tasks */
    uint64_t *kept;
    bool *gone; /* [n_events] dropped */
} dropper;

/* Drop the redundant events of task t: those whose single in-task comes before another producer
 * of t. */
static void drop_for(dropper *d, tg_task_id t)
{
    uint32_t first = d->links->first_depends[t], n = d->links->first_depends[t + 1] - first;
    if (n < 2)
        return;
    for (uint32_t i = 0; i < n; i++)
        d->list[i] = d->g->in_tasks[d->g->events[d->links->depends[first + i]].first_in];
    uint32_t kept = tg_keep_last(d->reach, d->list, n);
    for (uint32_t i = 0; i < kept; i++)
        d->kept[d->list[i] / 64] |= UINT64_C(1) << d->list[i] % 64;
    for (uint32_t i = 0; i < n && kept < n; i++) {
        tg_event_id e = d->links->depends[first + i];
        tg_task_id producer = d->g->in_tasks[d->g->events[e].first_in];
        d->gone[e] = !(d->kept[producer / 64] >> producer % 64 & 1);
    }
    for (uint32_t i = 0; i < kept; i++)
        d->kept[d->list[i] / 64] = 0;
}

/* The pass reads in_tasks[first_in] and out_tasks[first_out] as the pair, so it needs lists of one
 * entry; a graph that was written by hand may claim to be raw and have others. */
static mpk_status check_pairs(pass_state *s, const tg_graph *g)
{
    CHECK(s->cx, g->level == TG_RAW, MPK_EARG,
          "drop_implied works on a raw task graph, this one is %s", tg_level_names[g->level]);
    for (uint32_t e = 2; e < g->n_events; e++)
        CHECK(s->cx, g->events[e].n_in == 1 && g->events[e].n_out == 1, MPK_EVERIFY,
              "event %u of a raw task graph has %u in-tasks and %u out-tasks, 1 and 1 are right", e,
              g->events[e].n_in, g->events[e].n_out);
    return MPK_OK;
}

/* Reachability is that of the graph with all pairs in it, and it stays right while pairs are
 * dropped: a pair is dropped only if a chain of two or more pairs implies it, and of such chains
 * a longest one has no pair that is itself implied, so all of its pairs are kept.  In-tasks of
 * dropped events stay in the graph's lists, where nothing refers to them. */
mpk_status pass_drop_implied(pass_state *s, tg_graph *g)
{
    tg_links links;
    tg_reach reach;
    dropper d = {.g = g, .links = &links, .reach = &reach};
    TRY(check_pairs(s, g));
    TRY(tg_fill_links(s->cx, s->scratch, g, &links));
    TRY(tg_fill_reach(s->cx, s->scratch, g, &links, &reach));
    NEW(s->cx, s->scratch, d.list, g->n_tasks);
    NEW(s->cx, s->scratch, d.kept, (size_t)g->n_tasks / 64 + 1);
    NEW(s->cx, s->scratch, d.gone, g->n_events);
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        drop_for(&d, t);
    uint32_t n = 2;
    for (uint32_t e = 2; e < g->n_events; e++)
        if (!d.gone[e])
            g->events[n++] = g->events[e];
    g->n_events = n;
    return MPK_OK;
}
