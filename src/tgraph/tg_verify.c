/* tg_verify.c - prove what a task graph's level promises (see tgraph.h).
 *
 * Input: a graph at any level, whatever made it.  Output: MPK_OK, or a sentence that names task
 * and event.  Called by compile.c after the passes (options->verify, always on in tests), by
 * `mpk opt` before and after each pass.
 *
 * The checks run from cheap to expensive, and each relies on those before it: the lists are well
 * formed; the tasks of an operator are disjoint and cover its output; the level's own promises
 * hold; there is no cycle; and any two tasks that touch the same bytes, at least one of them
 * writing, are ordered by a chain of events.  The last check compares each pair with exact
 * reachability (tg_reach.c); the pairs follow from the boxes alone (tg_access.c).  Cost: linear
 * in lists and pairs.
 *
 * Why a TG_LINEAR graph cannot deadlock: every task waits only for tasks with smaller numbers,
 * and a worker takes its AOT tasks by rising number.  So the unfinished task with the smallest
 * number can always run: everything it waits for has ended, and no other task precedes it in its
 * worker's queue.  JIT tasks have a queue of their own, in which no AOT task precedes them.
 */
#include "ir/op.h"
#include "tgraph/tgraph.h"

/* The proof under way. */
typedef struct verifier {
    mpk_context *cx;
    /* scratch; released as a whole at the end, so the checks allocate freely */
    arena *a;
    const tg_graph *g;
    /* Filled by `prove` once the lists that they are made from have been checked. */
    tg_links links;
    tg_reach reach;
    /* room for the two names a message may contain */
    char name[TG_NAME_BYTES], other[TG_NAME_BYTES];
} verifier;

/* ---- lists ---- */

/* An event's tasks exist and rise.  `first` and `n` may come from a hand-written file, so the
 * bounds are compared without adding, which could overflow. */
static mpk_status check_list(verifier *v, tg_event_id e, const char *side, const tg_task_id *list,
                             uint32_t first, uint32_t n, uint32_t length)
{
    CHECK(v->cx, first <= length && n <= length - first, MPK_EVERIFY,
          "event %u: its %s-tasks lie outside the list", e, side);
    for (uint32_t i = 0; i < n; i++) {
        tg_task_id t = list[first + i];
        CHECK(v->cx, t < v->g->n_tasks, MPK_EVERIFY,
              "event %u: %s-task %u does not exist, there are %u tasks", e, side, t, v->g->n_tasks);
        CHECK(v->cx, i == 0 || list[first + i - 1] < t, MPK_EVERIFY,
              "event %u: %s-task %s is out of order or named twice", e, side,
              tg_name_task(v->g, t, v->name));
    }
    return MPK_OK;
}

/* Only the start has no in-tasks and only the end has no out-tasks; an event without in-tasks
 * would never be activated, and one without out-tasks would be counted for nothing. */
static mpk_status check_event(verifier *v, tg_event_id e)
{
    const tg_graph *g = v->g;
    const tg_event *event = &g->events[e];
    TRY(check_list(v, e, "in", g->in_tasks, event->first_in, event->n_in, g->n_in_tasks));
    if (g->out_tasks)
        TRY(check_list(v, e, "out", g->out_tasks, event->first_out, event->n_out, g->n_out_tasks));
    else
        CHECK(v->cx,
              !event->n_out ||
                  (event->first_out < g->n_tasks && event->n_out <= g->n_tasks - event->first_out),
              MPK_EVERIFY, "event %u: its out-tasks end at number %llu, there are %u tasks", e,
              (unsigned long long)event->first_out + event->n_out, g->n_tasks);
    if (e == TG_START || g->level == TG_TASKS)
        CHECK(v->cx, event->n_in == 0, MPK_EVERIFY, "event %u, the start, is triggered by task %s",
              e, tg_name_task(g, g->in_tasks[event->first_in], v->name));
    else if (event->n_out)
        CHECK(v->cx, event->n_in, MPK_EVERIFY,
              "event %u is triggered by no task: task %s would wait for ever", e,
              tg_name_task(g, tg_out_task(g, event, 0), v->name));
    else
        CHECK(v->cx, event->n_in, MPK_EVERIFY,
              "event %u is triggered by no task: the end would wait for ever", e);
    if (e == TG_END || g->level == TG_TASKS)
        CHECK(v->cx, event->n_out == 0, MPK_EVERIFY, "event %u, the end, launches task %s", e,
              tg_name_task(g, tg_out_task(g, event, 0), v->name));
    else
        CHECK(v->cx, event->n_out, MPK_EVERIFY, "event %u launches no task", e);
    return MPK_OK;
}

/* ---- tasks ---- */

/* Boxes lie inside the output: check_cover relies on that when it adds sizes up. */
static mpk_status check_task(verifier *v, tg_task_id t)
{
    const tg_graph *g = v->g;
    const tg_task *task = &g->tasks[t];
    if (task->op == IR_NONE) {
        CHECK(v->cx, g->level >= TG_NORMAL, MPK_EVERIFY, "task %u is empty in a %s task graph", t,
              tg_level_names[g->level]);
        return MPK_OK;
    }
    CHECK(v->cx, task->op < g->ir->ops.n, MPK_EVERIFY,
          "task %u is of operator number %u, there are %zu", t, task->op, g->ir->ops.n);
    const ir_op *op = &g->ir->ops.at[task->op];
    const ir_tensor *out = &g->ir->tensors.at[op->out[0]];
    ir_box whole = ir_box_whole(out);
    CHECK(v->cx, tg_op_has_tasks(g->ir, op), MPK_EVERIFY, "task %s is of a view, which has no work",
          tg_name_task(g, t, v->name));
    CHECK(v->cx,
          !ir_box_is_empty(&task->box, out->rank) && ir_box_contains(&whole, &task->box, out->rank),
          MPK_EVERIFY, "the box of task %s is empty or reaches outside %%%.*s",
          tg_name_task(g, t, v->name), STR_ARG(out->name));
    return MPK_OK;
}

/* Tiles lie inside the output and do not overlap (tg_visit_conflicts checks that), so they cover it
 * if and only if their sizes add up to its size. */
static mpk_status check_cover(verifier *v)
{
    const tg_graph *g = v->g;
    int64_t *covered;
    NEW(v->cx, v->a, covered, g->ir->ops.n);
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        if (g->tasks[t].op != IR_NONE) {
            const ir_op *op = &g->ir->ops.at[g->tasks[t].op];
            covered[g->tasks[t].op] +=
                ir_box_elements(&g->tasks[t].box, g->ir->tensors.at[op->out[0]].rank);
        }
    for (ir_op_id o = 0; o < g->ir->ops.n; o++) {
        const ir_op *op = &g->ir->ops.at[o];
        int64_t size = ir_elements(&g->ir->tensors.at[op->out[0]]);
        CHECK(v->cx, !tg_op_has_tasks(g->ir, op) || covered[o] == size, MPK_EVERIFY,
              "the tasks of %.*s compute %lld elements of an output of %lld", STR_ARG(op->name),
              (long long)covered[o], (long long)size);
    }
    return MPK_OK;
}

/* Every task depends on an event and triggers one; otherwise it would never start, or the step
 * could end before it does. */
static mpk_status check_links(verifier *v)
{
    for (tg_task_id t = 0; t < v->g->n_tasks; t++) {
        uint32_t depends = v->links.first_depends[t + 1] - v->links.first_depends[t];
        uint32_t triggers = v->links.first_triggers[t + 1] - v->links.first_triggers[t];
        CHECK(v->cx, depends, MPK_EVERIFY,
              "task %s depends on no event, not even the start (event 0)",
              tg_name_task(v->g, t, v->name));
        CHECK(v->cx, triggers, MPK_EVERIFY, "task %s triggers no event, not even the end (event 1)",
              tg_name_task(v->g, t, v->name));
    }
    return MPK_OK;
}

/* ---- the levels' own promises ---- */

/* One in-task and one out-task for each event but the start and the end, which have lists. */
static mpk_status check_raw(verifier *v)
{
    for (tg_event_id e = 2; e < v->g->n_events; e++)
        CHECK(v->cx, v->g->events[e].n_in == 1 && v->g->events[e].n_out == 1, MPK_EVERIFY,
              "event %u of a raw task graph has %u in-tasks and %u out-tasks, 1 and 1 are right", e,
              v->g->events[e].n_in, v->g->events[e].n_out);
    return MPK_OK;
}

/* Lists are sorted at every level (check_list), so equal sets are equal bytes. */
static bool lists_equal(const tg_task_id *list, uint32_t a, uint32_t b, uint32_t n)
{
    return memcmp(list + a, list + b, n * sizeof *list) == 0;
}

/* No two events have equal in-tasks (or out-tasks), found through a hash table of lists.  The
 * table has at least twice as many cells as there are events, so a probe ends.  Empty lists do
 * not count: the start and the end each have one. */
static mpk_status check_distinct(verifier *v, bool in)
{
    const tg_graph *g = v->g;
    const tg_task_id *list = in ? g->in_tasks : g->out_tasks;
    uint32_t mask = 15, *table;
    while (mask / 2 < g->n_events)
        mask = mask * 2 + 1;
    NEW(v->cx, v->a, table, (size_t)mask + 1);
    for (tg_event_id e = 0; e < g->n_events; e++) {
        uint32_t first = in ? g->events[e].first_in : g->events[e].first_out;
        uint32_t n = in ? g->events[e].n_in : g->events[e].n_out;
        uint64_t at = hash_bytes(list + first, n * sizeof *list, 0) & mask;
        for (; n && table[at]; at = (at + 1) & mask) {
            const tg_event *other = &g->events[table[at] - 1];
            uint32_t other_first = in ? other->first_in : other->first_out;
            uint32_t other_n = in ? other->n_in : other->n_out;
            bool same = other_n == n && lists_equal(list, other_first, first, n);
            CHECK(v->cx, !same, MPK_EVERIFY,
                  "events %u and %u have equal %s-tasks, task %s the first of them: fuse them",
                  table[at] - 1, e, in ? "in" : "out", tg_name_task(g, list[first], v->name));
        }
        if (n)
            table[at] = e + 1;
    }
    return MPK_OK;
}

/* The lists of the events and the two fields of each task agree, and each task has one event on
 * each side. */
static mpk_status check_normal(verifier *v)
{
    const tg_graph *g = v->g;
    for (tg_task_id t = 0; t < g->n_tasks; t++) {
        uint32_t depends = v->links.first_depends[t], triggers = v->links.first_triggers[t];
        CHECK(v->cx, v->links.first_depends[t + 1] - depends == 1, MPK_EVERIFY,
              "task %s depends on %u events, event %u the first; one is right",
              tg_name_task(g, t, v->name), v->links.first_depends[t + 1] - depends,
              v->links.depends[depends]);
        CHECK(v->cx, v->links.first_triggers[t + 1] - triggers == 1, MPK_EVERIFY,
              "task %s triggers %u events, event %u the first; one is right",
              tg_name_task(g, t, v->name), v->links.first_triggers[t + 1] - triggers,
              v->links.triggers[triggers]);
        CHECK(v->cx, g->tasks[t].depends == v->links.depends[depends], MPK_EVERIFY,
              "task %s says it depends on event %u, but event %u launches it",
              tg_name_task(g, t, v->name), g->tasks[t].depends, v->links.depends[depends]);
        CHECK(v->cx, g->tasks[t].triggers == v->links.triggers[triggers], MPK_EVERIFY,
              "task %s says it triggers event %u, but event %u counts it",
              tg_name_task(g, t, v->name), g->tasks[t].triggers, v->links.triggers[triggers]);
    }
    return MPK_OK;
}

/* The tasks of one event are launched one way: a scheduler deals a range of tasks, and the lists of
 * workers hold no part of it. */
static mpk_status check_unmixed(verifier *v)
{
    const tg_graph *g = v->g;
    for (tg_event_id e = 0; e < g->n_events; e++)
        for (uint32_t i = 1; i < g->events[e].n_out; i++) {
            tg_task_id a = tg_out_task(g, &g->events[e], 0), b = tg_out_task(g, &g->events[e], i);
            CHECK(v->cx, g->tasks[a].launch == g->tasks[b].launch, MPK_EVERIFY,
                  "event %u launches task %s and task %s, one JIT and one AOT", e,
                  tg_name_task(g, a, v->name), tg_name_task(g, b, v->other));
        }
    return MPK_OK;
}

/* Numbers rise along every event (with check_normal: a topological order).  Workers are those that
 * exist, JIT tasks have none, and either all AOT tasks are assigned or none is. */
static mpk_status check_linear(verifier *v)
{
    const tg_graph *g = v->g;
    uint32_t assigned = 0, aot = 0;
    for (tg_event_id e = 0; e < g->n_events; e++) {
        const tg_event *event = &g->events[e];
        tg_task_id last = event->n_in ? g->in_tasks[event->first_in + event->n_in - 1] : 0;
        CHECK(v->cx, !event->n_in || !event->n_out || last < event->first_out, MPK_EVERIFY,
              "task %s waits at event %u for task %s, whose number is not smaller: a worker with "
              "both would not end",
              tg_name_task(g, event->first_out, v->name), e, tg_name_task(g, last, v->other));
    }
    for (tg_task_id t = 0; t < g->n_tasks; t++) {
        const tg_task *task = &g->tasks[t];
        CHECK(v->cx,
              task->worker == TG_NONE || (task->launch == TG_AOT && task->worker < g->n_workers),
              MPK_EVERIFY, "task %s (event %u) is assigned to worker %u of %u%s",
              tg_name_task(g, t, v->name), task->depends, task->worker, g->n_workers,
              task->launch == TG_JIT ? ", but it is JIT" : "");
        assigned += task->launch == TG_AOT && task->worker != TG_NONE;
        aot += task->launch == TG_AOT;
    }
    for (tg_task_id t = 0; assigned && assigned < aot && t < g->n_tasks; t++)
        CHECK(v->cx, g->tasks[t].launch == TG_JIT || g->tasks[t].worker != TG_NONE, MPK_EVERIFY,
              "task %s (event %u) is AOT and has no worker, though others have",
              tg_name_task(g, t, v->name), g->tasks[t].depends);
    return MPK_OK;
}

/* ---- order ---- */

/* The callback of tg_visit_conflicts: two tasks that conflict must be ordered by events.  At
 * TG_TASKS there are no events yet, and the visit is made for its own check of tasks of one
 * operator. */
static mpk_status check_order(void *user, tg_task_id after, tg_task_id *before, uint32_t n)
{
    verifier *v = user;
    if (v->g->level == TG_TASKS)
        return MPK_OK;
    for (uint32_t i = 0; i < n; i++)
        CHECK(v->cx, tg_comes_before(&v->reach, before[i], after), MPK_EVERIFY,
              "task %s and task %s touch the same bytes, but no events put the second after the "
              "first: it waits for "
              "event %u",
              tg_name_task(v->g, before[i], v->name), tg_name_task(v->g, after, v->other),
              v->links.depends[v->links.first_depends[after]]);
    return MPK_OK;
}

/* The promises that are of one level alone. */
static mpk_status check_level(verifier *v)
{
    tg_level level = v->g->level;
    if (level == TG_RAW)
        TRY(check_raw(v));
    if (level == TG_FUSED) {
        TRY(check_distinct(v, true));
        TRY(check_distinct(v, false));
    }
    if (level >= TG_NORMAL) {
        TRY(check_normal(v));
        TRY(check_unmixed(v));
    }
    if (level == TG_LINEAR)
        TRY(check_linear(v));
    return MPK_OK;
}

/* Run all checks, from cheap to expensive; each may rely on what was proved above it. */
static mpk_status prove(verifier *v)
{
    const tg_graph *g = v->g;
    CHECK(v->cx,
          (unsigned)g->level < TG_LEVELS && (g->out_tasks != NULL) == (g->level != TG_LINEAR),
          MPK_EVERIFY, "the task graph has no level, or out-tasks that do not fit it");
    CHECK(v->cx, g->n_events >= 2, MPK_EVERIFY, "the task graph lacks its start or end event");
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        TRY(check_task(v, t));
    for (tg_event_id e = 0; e < g->n_events; e++)
        TRY(check_event(v, e));
    TRY(check_cover(v));
    if (g->level != TG_TASKS) {
        TRY(tg_fill_links(v->cx, v->a, g, &v->links));
        TRY(check_links(v));
        TRY(check_level(v));
        TRY(tg_fill_reach(v->cx, v->a, g, &v->links, &v->reach));
    }
    return tg_visit_conflicts(v->cx, v->a, g, check_order, v);
}

/* Scratch memory is given back, since a compile verifies several times. */
mpk_status tg_verify(mpk_context *cx, arena *scratch, const tg_graph *g)
{
    verifier v = {.cx = cx, .a = scratch, .g = g};
    arena_mark mark = arena_get_mark(scratch);
    mpk_status status = prove(&v);
    arena_reset(scratch, mark);
    return status;
}
