/* assign.c - give every AOT task a worker, round-robin (paper §5.2).
 *
 * Input: TG_LINEAR.  Output: `worker` of every AOT task; JIT tasks keep TG_NONE.
 *
 * The tiles of an operator are dealt round-robin, in row-major order of their lower corners.  An
 * operator with about one task for each worker starts at worker 0, so that tile i of one
 * operator and tile i of the next run on the same worker, whose caches still hold the data.  A
 * smaller operator continues after the worker where the previous one stopped, so that operators
 * that run in parallel do not share the first workers.  An empty task goes to the worker of the
 * task before or after it.  Each of several peers has an equal range of the workers, which runs
 * the operators of that peer.
 *
 *   4 workers, operators A (4 tasks), B (1), C (1), D (4):
 *     worker 0: A0 B0    D0
 *     worker 1: A1    C0 D1
 *     worker 2: A2       D2
 *     worker 3: A3       D3
 *
 * The pass relies on linearize: a worker runs its AOT tasks by rising number, and the numbers
 * are a topological order, so no assignment can deadlock and any of them is correct; this one is
 * for speed alone.  Called by compile.c, last of the passes on a graph.  Cost: linear, and a
 * sort of an operator's tasks where they are not in order already.
 */
#include <stdlib.h>

#include "pass/pass.h"

/* A task and its sort key: the lower corner of its tile. */
typedef struct tile {
    int64_t lo[IR_MAX_RANK];
    tg_task_id task;
} tile;

/* Row-major order of the lower corners; the task's number decides between equal ones, which a
 * hand-written graph may have, so the order is total. */
static int compare_tiles(const void *a, const void *b)
{
    const tile *x = a, *y = b;
    for (int i = 0; i < IR_MAX_RANK; i++)
        if (x->lo[i] != y->lo[i])
            return x->lo[i] < y->lo[i] ? -1 : 1;
    return x->task < y->task ? -1 : x->task > y->task;
}

/* The workers of one peer: first ... first + n - 1.  `next`, 0 <= next < n, is the offset at
 * which the next small operator starts. */
typedef struct worker_group {
    uint32_t first, n, next;
} worker_group;

/* Assign the AOT tasks of one operator, tasks[n_tasks] by rising number.  label_launch gives all
 * tasks of an operator the same label, but a hand-written graph may mix them, so JIT tasks are
 * skipped here. */
static mpk_status assign_op(pass_state *s, tg_graph *g, const tg_task_id *tasks, uint32_t n_tasks,
                            worker_group *w)
{
    tile *tiles;
    bool rises = pass_tiles_rise(s->options, g->ir, &g->ir->ops.at[g->tasks[tasks[0]].op]);
    bool sorted = true;
    uint32_t n = 0;
    NEW(s->cx, s->scratch, tiles, n_tasks);
    for (uint32_t i = 0; i < n_tasks; i++) {
        const tg_task *task = &g->tasks[tasks[i]];
        if (task->launch != TG_AOT)
            continue;
        tiles[n].task = tasks[i];
        memcpy(tiles[n].lo, task->box.lo, sizeof tiles[n].lo);
        sorted = sorted && (n == 0 || compare_tiles(&tiles[n - 1], &tiles[n]) < 0);
        n++;
    }
    if (!sorted)
        qsort(tiles, n, sizeof *tiles, compare_tiles);
    /* More tasks than half the workers: start at the first worker, for the sake of its caches;
     * fewer: take turns. */
    uint32_t first = n > w->n / 2 ? 0 : w->next;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = (first + i) % w->n;
        /* Where later tiles take longer (op_axis.rises), every second round runs backwards.  8
         * tiles on 4 workers pair up as 0 and 7, 1 and 6, 2 and 5, 3 and 4: each worker has
         * about the same amount of work. */
        bool back = rises && i / w->n % 2;
        g->tasks[tiles[i].task].worker = w->first + (back ? w->n - 1 - at : at);
    }
    w->next = (first + n) % w->n;
    return MPK_OK;
}

/* The worker of the only task before or, if that is JIT or there are several, the only task
 * after an empty task; TG_NONE if neither is one AOT task.  On that worker the empty task costs
 * no message between workers: whatever it waits for, or triggers, is in the same worker's list. */
static uint32_t served_worker(const tg_graph *g, const tg_task *empty)
{
    const tg_event *before = &g->events[empty->depends], *after = &g->events[empty->triggers];
    uint32_t worker = TG_NONE;
    if (before->n_in == 1)
        worker = g->tasks[g->in_tasks[before->first_in]].worker;
    if (worker == TG_NONE && after->n_out == 1)
        worker = g->tasks[after->first_out].worker;
    return worker;
}

/* Operators are taken in the order of the program, so that the turn of each peer's small
 * operators continues where its last one stopped.  Empty tasks come after them, once the tasks
 * that they connect have workers; those that connect several go to the workers of peer 0 in
 * turn.  MPK_EARG: the graph is not linear, or its peers cannot share the workers. */
mpk_status pass_assign(pass_state *s, tg_graph *g)
{
    tg_op_tasks by_op;
    worker_group groups[IR_MAX_PEERS];
    uint32_t n_peers = s->options->n_peers > 1 ? s->options->n_peers : 1,
             each = g->n_workers / n_peers;
    CHECK(s->cx, g->level == TG_LINEAR, MPK_EARG,
          "assign works on a linear task graph, this one is %s", tg_level_names[g->level]);
    CHECK(s->cx, each && ir_count_peers(g->ir) <= n_peers, MPK_EARG,
          "%u workers for %u peers of a program of %u", g->n_workers, n_peers,
          ir_count_peers(g->ir));
    for (uint32_t p = 0; p < n_peers; p++)
        groups[p] = (worker_group){.first = p * each, .n = each};
    TRY(tg_fill_op_tasks(s->cx, s->scratch, g, &by_op));
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        g->tasks[t].worker = TG_NONE;
    for (ir_op_id op = 0; op < g->ir->ops.n; op++) {
        uint32_t n = by_op.first[op + 1] - by_op.first[op];
        if (n)
            TRY(assign_op(s, g, by_op.tasks + by_op.first[op], n, &groups[g->ir->ops.at[op].peer]));
    }
    for (tg_task_id t = 0; t < g->n_tasks; t++) {
        tg_task *task = &g->tasks[t];
        if (task->op != IR_NONE || task->launch != TG_AOT)
            continue;
        task->worker = served_worker(g, task);
        if (task->worker == TG_NONE) {
            task->worker = groups[0].first + groups[0].next;
            groups[0].next = (groups[0].next + 1) % groups[0].n;
        }
    }
    return MPK_OK;
}
