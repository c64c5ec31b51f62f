/* normalize.c - one dependent and one triggering event for each task (paper §4.1,
 * normalisation).
 *
 * Input: TG_FUSED with launch labels.  Output: TG_NORMAL; empty tasks come after all others.
 *
 * Both rewrites of the paper: a task that triggers e1 ... ek triggers a new event e' instead,
 * and k empty tasks that depend on e' trigger e1 ... ek; a task that depends on e1 ... ek
 * depends on e', and k empty tasks trigger e'.  One improvement: if one of e1 ... ek belongs to
 * this task alone (no other task triggers it, or none depends on it), it serves as e', and k - 1
 * empty tasks suffice; this gives D1 and D2 of the paper's workflow figure.  No event serves as
 * e' in both rewrites, because its waiters would then wait for more than before.
 *
 *   task 6 triggers events 4 and 5:          after, with empty task 14:
 *     event 4 <- 6 7 -> 8-11                   event 4 <- 14-15 -> 8-11  (15 is that of task 7)
 *     event 5 <- 6 -> 12                       event 5 <- 6 -> 12 14
 *
 * An empty task has the label of the tasks that depend on the same event as it.  At run time a
 * task's descriptor has room for exactly one event to wait for and one to trigger, which is what
 * this form is for.  Called by compile.c after label_launch.  Cost: linear.
 */
#include "pass/pass.h"

/* The pass under way. */
typedef struct normalizer {
    pass_state *s;
    tg_graph *g;
    tg_links links;
    VEC(tg_task) empties; /* the empty tasks added so far */
    bool *fans_out;       /* [n_events before] serves as e' of the task that triggers it */
    uint32_t n_events;    /* the graph's, and after them the new ones */
} normalizer;

/* Add an empty task: it has no operator and no box, and a worker that gets it only triggers its
 * event. */
static mpk_status push_empty(normalizer *n, tg_event_id depends, tg_event_id triggers,
                             tg_launch launch)
{
    PUSH(n->s->cx, n->s->scratch, &n->empties,
         (tg_task){.op = IR_NONE,
                   .launch = launch,
                   .worker = TG_NONE,
                   .depends = depends,
                   .triggers = triggers});
    return MPK_OK;
}

/* Rewrite a task with several events to trigger; sets `triggers`.  The event that serves as e'
 * must be triggered by this task alone: then its waiters wait for no more than before, and the
 * empty tasks are added to them.  They take the label of those waiters, because an event
 * launches one kind of task.  The end event never serves: it launches nothing. */
static mpk_status fan_out(normalizer *n, tg_task_id t)
{
    tg_task *task = &n->g->tasks[t];
    const tg_event_id *events = n->links.triggers + n->links.first_triggers[t];
    uint32_t k = n->links.first_triggers[t + 1] - n->links.first_triggers[t];
    tg_launch launch = task->launch;
    CHECK(n->s->cx, k, MPK_EVERIFY, "task %u triggers no event", t);
    task->triggers = k == 1 ? events[0] : TG_NONE;
    for (uint32_t i = 0; i < k && task->triggers == TG_NONE; i++)
        if (events[i] != TG_END && n->g->events[events[i]].n_in == 1 &&
            n->g->events[events[i]].n_out) {
            task->triggers = events[i];
            n->fans_out[events[i]] = true;
            launch = n->g->tasks[tg_out_task(n->g, &n->g->events[events[i]], 0)].launch;
        }
    if (task->triggers == TG_NONE)
        task->triggers = n->n_events++;
    for (uint32_t i = 0; k > 1 && i < k; i++)
        if (events[i] != task->triggers)
            TRY(push_empty(n, task->triggers, events[i], launch));
    return MPK_OK;
}

/* Rewrite a task with several events to wait for; sets `depends`.  It runs after all fan_out, on
 * the same old lists.  The event that serves as e' must launch this task alone and not have
 * become an e' there, since the empty tasks that fan_out attached to it would wait for what this
 * task waits for. */
static mpk_status fan_in(normalizer *n, tg_task_id t)
{
    tg_task *task = &n->g->tasks[t];
    const tg_event_id *events = n->links.depends + n->links.first_depends[t];
    uint32_t k = n->links.first_depends[t + 1] - n->links.first_depends[t];
    CHECK(n->s->cx, k, MPK_EVERIFY, "task %u depends on no event", t);
    task->depends = k == 1 ? events[0] : TG_NONE;
    for (uint32_t i = 0; i < k && task->depends == TG_NONE; i++)
        if (events[i] != TG_START && n->g->events[events[i]].n_out == 1 && !n->fans_out[events[i]])
            task->depends = events[i];
    if (task->depends == TG_NONE)
        task->depends = n->n_events++;
    for (uint32_t i = 0; k > 1 && i < k; i++)
        if (events[i] != task->depends)
            TRY(push_empty(n, events[i], task->depends, task->launch));
    return MPK_OK;
}

/* Make new arrays in the graph's arena, with the empty tasks after all others.  The events'
 * lists follow from the two fields of every task. */
static mpk_status append_empties(normalizer *n)
{
    tg_graph *g = n->g;
    tg_task *tasks;
    NEW(n->s->cx, g->arena, tasks, g->n_tasks + n->empties.n);
    memcpy(tasks, g->tasks, g->n_tasks * sizeof *tasks);
    if (n->empties.n)
        memcpy(tasks + g->n_tasks, n->empties.at, n->empties.n * sizeof *tasks);
    NEW(n->s->cx, g->arena, g->events, n->n_events);
    g->tasks = tasks;
    g->n_tasks += (uint32_t)n->empties.n;
    g->n_events = n->n_events;
    return tg_fill_events(n->s->cx, g);
}

/* All tasks that trigger several events come before any that depends on several: fan_in must know
 * which events serve as e' already (fans_out).
 */
mpk_status pass_normalize(pass_state *s, tg_graph *g)
{
    normalizer n = {.s = s, .g = g, .n_events = g->n_events};
    CHECK(s->cx, g->level == TG_FUSED, MPK_EARG,
          "normalize works on a fused task graph, this one is %s", tg_level_names[g->level]);
    TRY(tg_fill_links(s->cx, s->scratch, g, &n.links));
    NEW(s->cx, s->scratch, n.fans_out, g->n_events);
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        TRY(fan_out(&n, t));
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        TRY(fan_in(&n, t));
    TRY(append_empties(&n));
    g->level = TG_NORMAL;
    return MPK_OK;
}
