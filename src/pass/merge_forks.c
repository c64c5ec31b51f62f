/* merge_forks.c - merge overlapping events where keeping them apart costs more than it gains.
 *
 * Input: TG_FUSED.  Output: TG_FUSED.  Where the tiles of a producer and of its consumer do not
 * line up, events share some of their in-tasks.  Each such task is a fork, for which
 * normalisation (§4.1) would add one empty task per event.  The paper reports no forks in its
 * graphs (§6.6); here they come from tiles such as those of q, k and v: a head needs tiles of
 * each, and a tile may hold parts of two heads.
 *
 *   event 2 <- 0 1 -> 4
 *   event 3 <- 1 2 -> 5                 task 1 is a fork
 *   -> event 2 <- 0 1 2 -> 4 5          no fork, but tasks 4 and 5 wait for one task more
 *
 * Rule: events that share an in-task and wait for the same set of operators become one, with all
 * their in- and out-tasks, if the producers run in one round (there are no more of them than
 * workers, so they end at about the same time), or if the empty tasks would outnumber the
 * consumers.  All consumers belong to later operators than all producers, so no cycle can arise.
 * Consumers that also wait for other operators are left alone, so that parallel branches stay
 * parallel.
 *
 * Called by compile.c before normalize; leaving it out adds empty tasks and changes nothing
 * else.  Cost: linear.
 */
#include "pass/pass.h"

/* Events and what is known of the classes (unions) that they form.  Arrays "of a root" have
 * their values at the root of a class. */
typedef struct merger {
    pass_state *s;
    tg_graph *g;
    tg_links links;
    uint32_t *parent;       /* [n_events] union-find forest: parent[e] <= e */
    uint64_t *op_set;       /* [n_events] a hash of the set of operators of the in-tasks */
    uint32_t *forks;        /* [n_events] of a root: the triggers beyond one per task */
    uint32_t *n_in, *n_out; /* [n_events] of a root: its tasks, shared ones counted once */
    /* [n_events] of a root: the largest operator of its in-tasks, the smallest of its out-tasks.
     * If the first is below the second, all producers come before all consumers in program order */
    ir_op_id *last_in, *first_out;
} merger;

/* The root of an event's class.  Paths are not compressed: classes have a handful of events, and
 * `unite` hangs the larger number below the smaller, so paths are short. */
static uint32_t find_root(const merger *m, uint32_t e)
{
    while (m->parent[e] != e)
        e = m->parent[e];
    return e;
}

/* A hash of the set of operators of an event's in-tasks.  Task lists are sorted, so equal sets
 * come in the same order; adjacent repetitions are skipped.  Sets are compared by this hash
 * alone: two that collide would be merged, which makes tasks wait for more than they need and
 * nothing worse (see pays). */
static uint64_t hash_ops(const tg_graph *g, const tg_event *e)
{
    uint64_t hash = 0;
    ir_op_id last = IR_NONE;
    for (uint32_t i = 0; i < e->n_in; i++) {
        ir_op_id op = g->tasks[g->in_tasks[e->first_in + i]].op;
        if (op != last)
            hash = hash_bytes(&op, sizeof op, hash + 1);
        last = op;
    }
    return hash;
}

/* The smaller number becomes the root: measure relies on meeting a root before the rest of its
 * class. */
static void unite(merger *m, uint32_t a, uint32_t b)
{
    a = find_root(m, a);
    b = find_root(m, b);
    if (a < b)
        m->parent[b] = a;
    else
        m->parent[a] = b;
}

/* Unite the events that a task triggers and that wait for the same operators.  The end event
 * stays alone. */
static void unite_triggers(merger *m, tg_task_id t)
{
    uint32_t first = m->links.first_triggers[t], end = m->links.first_triggers[t + 1];
    for (uint32_t i = first; i < end; i++)
        for (uint32_t k = first; k < i; k++) {
            tg_event_id a = m->links.triggers[k], b = m->links.triggers[i];
            if (a != TG_END && b != TG_END && m->op_set[a] == m->op_set[b]) {
                unite(m, a, b);
                break;
            }
        }
}

static uint32_t max_id(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
static uint32_t min_id(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Sum up each class of events at its root.  n_in and forks: of the events of a class that one
 * task triggers, the first is a trigger that stays, each further one would cost an empty task. */
static void measure(merger *m)
{
    const tg_graph *g = m->g;
    for (tg_event_id e = 0; e < g->n_events; e++) {
        uint32_t root = find_root(m, e);
        m->first_out[root] = e == root ? IR_NONE : m->first_out[root];
        for (uint32_t i = 0; i < g->events[e].n_in; i++)
            m->last_in[root] =
                max_id(m->last_in[root], g->tasks[g->in_tasks[g->events[e].first_in + i]].op);
        for (uint32_t i = 0; i < g->events[e].n_out; i++)
            m->first_out[root] =
                min_id(m->first_out[root], g->tasks[tg_out_task(g, &g->events[e], i)].op);
        m->n_out[root] += g->events[e].n_out;
    }
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        for (uint32_t first = m->links.first_triggers[t], i = first;
             i < m->links.first_triggers[t + 1]; i++) {
            uint32_t root = find_root(m, m->links.triggers[i]);
            bool again = false;
            for (uint32_t k = first; k < i && !again; k++)
                again = find_root(m, m->links.triggers[k]) == root;
            if (again)
                m->forks[root]++;
            else
                m->n_in[root]++;
        }
}

/* Is a union worth its wait?  Its consumers wait for all producers afterwards, so either these
 * run at the same time anyway, or the empty tasks would cost more than the wait.  last_in <
 * first_out is what makes the union safe: every producer belongs to an earlier operator than
 * every consumer. */
static bool pays(const merger *m, uint32_t root)
{
    return m->forks[root] && m->last_in[root] < m->first_out[root] &&
           (m->n_in[root] <= m->s->options->n_workers || m->forks[root] > m->n_out[root]);
}

/* Give every event of a union that pays all out-tasks of the union.  They share one list.
 * pass_fuse_events then merges these events, whose out-tasks are equal, and unites their
 * in-tasks. */
static mpk_status widen(merger *m)
{
    tg_graph *g = m->g;
    tg_task_id *out_tasks;
    uint32_t n = 0, *next, *first, *size;
    NEW(m->s->cx, g->arena, out_tasks, g->n_out_tasks);
    NEW(m->s->cx, m->s->scratch, next, g->n_events);
    NEW(m->s->cx, m->s->scratch, first, g->n_events);
    NEW(m->s->cx, m->s->scratch, size, g->n_events);
    for (tg_event_id e = 0; e < g->n_events; e++) {
        uint32_t root = find_root(m, e);
        size[pays(m, root) ? root : e] += g->events[e].n_out;
    }
    for (tg_event_id e = 0; e < g->n_events; e++) {
        first[e] = next[e] = n;
        n += size[e];
    }
    for (tg_event_id e = 0; e < g->n_events; e++) {
        uint32_t root = find_root(m, e), to = pays(m, root) ? root : e;
        for (uint32_t i = 0; i < g->events[e].n_out; i++)
            out_tasks[next[to]++] = tg_out_task(g, &g->events[e], i);
    }
    for (tg_event_id e = 0; e < g->n_events; e++) {
        uint32_t root = find_root(m, e), to = pays(m, root) ? root : e;
        g->events[e].first_out = first[to];
        g->events[e].n_out = size[to];
    }
    g->out_tasks = out_tasks;
    return MPK_OK;
}

/* Every event starts as a class of its own. */
static mpk_status start(merger *m)
{
    mpk_context *cx = m->s->cx;
    arena *a = m->s->scratch;
    uint32_t n = m->g->n_events;
    TRY(tg_fill_links(cx, a, m->g, &m->links));
    NEW(cx, a, m->parent, n);
    NEW(cx, a, m->op_set, n);
    NEW(cx, a, m->forks, n);
    NEW(cx, a, m->n_in, n);
    NEW(cx, a, m->n_out, n);
    NEW(cx, a, m->last_in, n);
    NEW(cx, a, m->first_out, n);
    for (tg_event_id e = 0; e < n; e++) {
        m->parent[e] = e;
        m->op_set[e] = hash_ops(m->g, &m->g->events[e]);
    }
    return MPK_OK;
}

/* Merged events may have become equal to others, so the fusion runs again and restores what
 * TG_FUSED promises. */
mpk_status pass_merge_forks(pass_state *s, tg_graph *g)
{
    merger m = {.s = s, .g = g};
    CHECK(s->cx, g->level == TG_FUSED, MPK_EARG,
          "merge_forks works on a fused task graph, this one is %s", tg_level_names[g->level]);
    TRY(start(&m));
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        unite_triggers(&m, t);
    measure(&m);
    TRY(widen(&m));
    return pass_fuse_events(s, g);
}
