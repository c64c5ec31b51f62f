/* depend.c - an event for each pair of a producing and a consuming task (paper §4.1, dependency
 * analysis).
 *
 * Input: TG_TASKS.  Output: TG_RAW, and the number of pairs.  A pair is made if and only if what
 * the first task writes overlaps what the second reads, or, for tensors written in place, also
 * if the second overwrites what the first reads or writes.  The start event releases the tasks
 * without producers; tasks without consumers trigger the end event.
 *
 *   tasks 0 and 1 write %a [0:4] and [4:8], task 2 reads a[0:4], task 3 reads a[2:8]
 *     event 0 -> 0 1          start
 *     event 1 <- 2 3          end
 *     event 2 <- 0 -> 2
 *     event 3 <- 0 -> 3
 *     event 4 <- 1 -> 3
 *
 * The pass relies on tg_visit_conflicts for the overlaps.  Called by compile.c after decompose.
 * Cost: that of tg_visit_conflicts; only the number of pairs can be quadratic.
 */
#include <stdlib.h>

#include "pass/pass.h"

/* The pairs found so far, as a list of producers for each consumer. */
typedef struct collector {
    mpk_context *cx;
    arena *a;
    VEC(tg_task_id) producers; /* the producers of each task that has any, list after list */
    /* [n_tasks] the list of each task: where it begins in producers, and its length */
    uint32_t *first, *n;
    /* [n_tasks] some task waits for it, so it need not trigger the end */
    bool *consumed;
} collector;

static int compare_ids(const void *a, const void *b)
{
    tg_task_id x = *(const tg_task_id *)a, y = *(const tg_task_id *)b;
    return x < y ? -1 : x > y;
}

/* The callback of tg_visit_conflicts: it comes once for each task that must wait, with the tasks
 * before[n] that it must wait for.  They are sorted because later passes compare lists of tasks
 * as they stand.  MPK_ELIMIT: more pairs than events can be numbered. */
static mpk_status collect(void *user, tg_task_id after, tg_task_id *before, uint32_t n)
{
    collector *c = user;
    bool sorted = true;
    for (uint32_t i = 1; i < n && sorted; i++)
        sorted = before[i - 1] < before[i];
    if (!sorted)
        qsort(before, n, sizeof *before, compare_ids);
    CHECK(c->cx, c->producers.n < UINT32_MAX / 2 - n, MPK_ELIMIT,
          "too many dependencies between tasks");
    c->first[after] = (uint32_t)c->producers.n;
    c->n[after] = n;
    for (uint32_t i = 0; i < n; i++) {
        PUSH(c->cx, c->a, &c->producers, before[i]);
        c->consumed[before[i]] = true;
    }
    return MPK_OK;
}

/* Make events 2, 3 ... in the order of consumers, one for each pair.  Entry i of both lists
 * belongs to event i + 2; the lists of start and end come after all pairs. */
static mpk_status make_events(pass_state *s, tg_graph *g, const collector *c)
{
    uint32_t pairs = (uint32_t)c->producers.n, n = 0, at = pairs;
    NEW(s->cx, g->arena, g->events, (size_t)pairs + 2);
    NEW(s->cx, g->arena, g->in_tasks, (size_t)pairs + g->n_tasks);
    NEW(s->cx, g->arena, g->out_tasks, (size_t)pairs + g->n_tasks);
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        for (uint32_t i = 0; i < c->n[t]; i++, n++) {
            g->in_tasks[n] = c->producers.at[c->first[t] + i];
            g->out_tasks[n] = t;
            g->events[n + 2] = (tg_event){n, 1, n, 1};
        }
    g->events[TG_START].first_out = g->events[TG_END].first_in = at;
    for (tg_task_id t = 0; t < g->n_tasks; t++) {
        if (!c->n[t])
            g->out_tasks[at + g->events[TG_START].n_out++] = t;
        if (!c->consumed[t])
            g->in_tasks[at + g->events[TG_END].n_in++] = t;
    }
    g->n_events = pairs + 2;
    g->n_in_tasks = at + g->events[TG_END].n_in;
    g->n_out_tasks = at + g->events[TG_START].n_out;
    return MPK_OK;
}

/* *pairs: the number of pairs, for the compiler-stage table (§6.6). */
mpk_status pass_depend(pass_state *s, tg_graph *g, uint64_t *pairs)
{
    collector c = {.cx = s->cx, .a = s->scratch};
    NEW(s->cx, s->scratch, c.first, g->n_tasks);
    NEW(s->cx, s->scratch, c.n, g->n_tasks);
    NEW(s->cx, s->scratch, c.consumed, g->n_tasks);
    TRY(tg_visit_conflicts(s->cx, s->scratch, g, collect, &c));
    TRY(make_events(s, g, &c));
    *pairs = c.producers.n;
    g->level = TG_RAW;
    return MPK_OK;
}
