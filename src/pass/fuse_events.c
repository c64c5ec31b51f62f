/* fuse_events.c - successor-set and predecessor-set fusion, to a fixed point (paper §4.1, event
 * fusion).
 *
 * Input: TG_RAW or TG_FUSED, with any events.  Output: TG_FUSED: no two events have equal
 * out-tasks (their in-tasks are united), none have equal in-tasks (their out-tasks are united).
 *
 *   successor sets    event 2 <- 0 -> 4         predecessor sets  event 2 <- 0 1 -> 4
 *                     event 3 <- 1 -> 4                           event 3 <- 0 1 -> 5
 *                ->   event 2 <- 0 1 -> 4                    ->   event 2 <- 0 1 -> 4 5
 *
 * Why the order stays the same: events that launch the same tasks make these wait for the union
 * of their in-tasks anyway, and events that are triggered by the same tasks are activated at the
 * same moment.  So neither fusion makes a task wait for more than before.
 *
 * Idea: one round finds the events with equal sets on one side, with a hash table of the sorted
 * sets (an index for sets of one task), and unites their sets on the other side.  Rounds
 * alternate between the sides until neither finds any.  Cost: linear in the edges for each
 * round; every round but the last removes an event, and models need two or three.
 *
 * Called by compile.c, and by merge_forks, coarsen_events and postpone at their end, because
 * what they do to lists can make two of them equal.
 */
#include <stdlib.h>

#include "pass/pass.h"

/* One side of all events: set e is items[first[e]] ... items[first[e + 1] - 1], sorted and
 * without duplicates. */
typedef struct side {
    uint32_t *first;
    tg_task_id *items;
} side;

/* The working copy: both sides of n events.  The graph itself is written only at the end. */
typedef struct fuser {
    pass_state *s;
    uint32_t n_tasks, n;
    side in, out;
} fuser;

/* The number of tasks on this side; 0 only for the in-tasks of the start and the out-tasks of the
 * end. */
static uint32_t set_size(const side *s, uint32_t e)
{
    return s->first[e + 1] - s->first[e];
}

static bool sets_equal(const side *s, uint32_t a, uint32_t b)
{
    return set_size(s, a) == set_size(s, b) &&
           memcmp(s->items + s->first[a], s->items + s->first[b],
                  set_size(s, a) * sizeof *s->items) == 0;
}

/* group[e] becomes the number of e's group, the events with equal sets on this side; groups are
 * numbered from 0 by their first event.  Sets of one task, the common case in a raw graph, are
 * found by an index; others by an open-addressed hash table of group numbers plus 1 with at most
 * half of its cells used, compared in full, so a collision cannot unite different sets. */
static mpk_status find_groups(const fuser *f, const side *s, uint32_t *group, uint32_t *n_groups)
{
    uint32_t *of_single, *table, *leader, mask = 15;
    while (mask / 2 < f->n)
        mask = mask * 2 + 1;
    NEW(f->s->cx, f->s->scratch, of_single, f->n_tasks);
    NEW(f->s->cx, f->s->scratch, leader, f->n);
    table = NULL;
    *n_groups = 0;
    for (uint32_t e = 0; e < f->n; e++) {
        uint32_t *slot;
        if (set_size(s, e) == 1) {
            slot = &of_single[s->items[s->first[e]]];
        } else {
            if (!table)
                NEW(f->s->cx, f->s->scratch, table, (size_t)mask + 1);
            uint64_t at =
                hash_bytes(s->items + s->first[e], set_size(s, e) * sizeof *s->items, 0) & mask;
            while (table[at] && !sets_equal(s, leader[table[at] - 1], e))
                at = (at + 1) & mask;
            slot = &table[at];
        }
        if (!*slot) {
            leader[*n_groups] = e;
            *slot = ++*n_groups;
        }
        group[e] = *slot - 1;
    }
    return MPK_OK;
}

static int compare_ids(const void *a, const void *b)
{
    tg_task_id x = *(const tg_task_id *)a, y = *(const tg_task_id *)b;
    return x < y ? -1 : x > y;
}

/* Sort a merged set and drop duplicates.  Returns its size. */
static uint32_t tidy(tg_task_id *items, uint32_t n)
{
    bool sorted = true;
    for (uint32_t i = 1; i < n && sorted; i++)
        sorted = items[i - 1] < items[i];
    if (sorted)
        return n;
    qsort(items, n, sizeof *items, compare_ids);
    uint32_t kept = 1;
    for (uint32_t i = 1; i < n; i++)
        if (items[i] != items[kept - 1])
            items[kept++] = items[i];
    return kept;
}

/* Merge the sets of each group: to their union (unite), or to the set of its first event, which
 * all of them share.  A union is written with repetitions first, since its size is then a sum,
 * and tidied in place; the sets move down to close the gaps.  *s gets new arrays; the old ones
 * stay in the scratch arena. */
static mpk_status merge_side(const fuser *f, side *s, const uint32_t *group, uint32_t n_groups,
                             bool unite)
{
    side merged;
    uint32_t *next;
    NEW(f->s->cx, f->s->scratch, merged.first, (size_t)n_groups + 1);
    NEW(f->s->cx, f->s->scratch, merged.items, s->first[f->n]);
    NEW(f->s->cx, f->s->scratch, next, n_groups);
    for (uint32_t e = 0; e < f->n; e++)
        if (unite || !merged.first[group[e] + 1])
            merged.first[group[e] + 1] += set_size(s, e);
    for (uint32_t i = 0; i < n_groups; i++) {
        next[i] = merged.first[i];
        merged.first[i + 1] += merged.first[i];
    }
    for (uint32_t e = 0; e < f->n; e++) {
        uint32_t *at = &next[group[e]], n = set_size(s, e);
        if (*at + n > merged.first[group[e] + 1])
            continue; /* the shared set has been written already */
        memcpy(merged.items + *at, s->items + s->first[e], n * sizeof *s->items);
        *at += n;
    }
    uint32_t end = 0;
    for (uint32_t i = 0; i < n_groups; i++) {
        uint32_t from = merged.first[i], n = tidy(merged.items + from, merged.first[i + 1] - from);
        memmove(merged.items + end, merged.items + from, n * sizeof *merged.items);
        merged.first[i] = end;
        end += n;
    }
    merged.first[n_groups] = end;
    *s = merged;
    return MPK_OK;
}

/* Unite the events that have equal sets on one side: the out-tasks (equal_out) or the in-tasks.
 * *changed: there were any. */
static mpk_status fuse_round(fuser *f, bool equal_out, bool *changed)
{
    uint32_t *group, n_groups = 0;
    NEW(f->s->cx, f->s->scratch, group, f->n);
    TRY(find_groups(f, equal_out ? &f->out : &f->in, group, &n_groups));
    *changed = n_groups < f->n;
    if (!*changed)
        return MPK_OK;
    TRY(merge_side(f, &f->in, group, n_groups, equal_out));
    TRY(merge_side(f, &f->out, group, n_groups, !equal_out));
    f->n = n_groups;
    return MPK_OK;
}

/* Read the graph's lists into arrays of the fuser's own, in the order of events: set e ends
 * where set e + 1 begins.  In the graph itself that holds only until a pass such as postpone has
 * moved some lists. */
static mpk_status read_sides(fuser *f, const tg_graph *g)
{
    NEW(f->s->cx, f->s->scratch, f->in.first, (size_t)g->n_events + 1);
    NEW(f->s->cx, f->s->scratch, f->out.first, (size_t)g->n_events + 1);
    for (uint32_t e = 0; e < g->n_events; e++) {
        f->in.first[e + 1] = f->in.first[e] + g->events[e].n_in;
        f->out.first[e + 1] = f->out.first[e] + g->events[e].n_out;
    }
    NEW(f->s->cx, f->s->scratch, f->in.items, f->in.first[g->n_events]);
    NEW(f->s->cx, f->s->scratch, f->out.items, f->out.first[g->n_events]);
    for (uint32_t e = 0; e < g->n_events; e++) {
        const tg_event *event = &g->events[e];
        memcpy(f->in.items + f->in.first[e], g->in_tasks + event->first_in,
               event->n_in * sizeof *g->in_tasks);
        for (uint32_t i = 0; i < event->n_out; i++)
            f->out.items[f->out.first[e] + i] = tg_out_task(g, event, i);
    }
    return MPK_OK;
}

/* The graph gets copies: what the fuser has lies in scratch memory. */
static mpk_status write_sides(const fuser *f, tg_graph *g)
{
    const uint32_t n_in = f->in.first[f->n], n_out = f->out.first[f->n];
    NEW(f->s->cx, g->arena, g->events, f->n);
    NEW(f->s->cx, g->arena, g->in_tasks, n_in);
    NEW(f->s->cx, g->arena, g->out_tasks, n_out);
    for (uint32_t e = 0; e < f->n; e++)
        g->events[e] =
            (tg_event){f->in.first[e], set_size(&f->in, e), f->out.first[e], set_size(&f->out, e)};
    memcpy(g->in_tasks, f->in.items, n_in * sizeof *g->in_tasks);
    memcpy(g->out_tasks, f->out.items, n_out * sizeof *g->out_tasks);
    g->n_events = f->n;
    g->n_in_tasks = n_in;
    g->n_out_tasks = n_out;
    return MPK_OK;
}

/* Only the start event has no in-tasks and only the end event has no out-tasks, and groups are
 * numbered by their first event, so both keep their numbers. */
mpk_status pass_fuse_events(pass_state *s, tg_graph *g)
{
    CHECK(s->cx, g->level == TG_RAW || g->level == TG_FUSED, MPK_EARG,
          "fuse_events works on a raw or fused task graph, this one is %s",
          tg_level_names[g->level]);
    fuser f = {.s = s, .n_tasks = g->n_tasks, .n = g->n_events};
    bool by_out = true, by_in = true;
    TRY(read_sides(&f, g));
    while (by_out || by_in) {
        TRY(fuse_round(&f, true, &by_out));
        TRY(fuse_round(&f, false, &by_in));
    }
    TRY(write_sides(&f, g));
    g->level = TG_FUSED;
    return MPK_OK;
}
