/* assign.c - AOT tasks to workers, round-robin (paper §5.2).
 *
 * Input: TG_LINEAR.  Output: `worker` of every AOT task.
 *
 * The tiles of an operator are dealt round-robin, in row-major order.  An operator with about one
 * task for each worker starts at worker 0, so tile i of one operator and tile i of the next run on
 * the same worker, whose caches still hold the data.  A smaller operator continues after the worker
 * where the previous one stopped, so that operators that run in parallel do not share the first
 * workers.  An empty task goes to the worker of the task before or after it.  Each of several peers
 * has an equal range of the workers, which runs its operators.  Cost: linear.
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

/* The workers of a peer, and which of them is next. */
typedef struct worker_group {
    uint32_t first, n, next;
} worker_group;

/* Assign the AOT tasks of one operator.  label_launch gives all tasks of an operator the same
 * label, but a hand-written graph may mix them. */
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
    uint32_t first = n > w->n / 2 ? 0 : w->next;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = (first + i) % w->n;
        bool back = rises && i / w->n % 2;
        g->tasks[tiles[i].task].worker = w->first + (back ? w->n - 1 - at : at);
    }
    w->next = (first + n) % w->n;
    return MPK_OK;
}

/* The worker of the single task before or after an empty task. */
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

/* Operators first, in the order of the program, so that each peer's turn goes on where its last
 * operator stopped; then empty tasks, next to the task that they serve, or by turns where they
 * serve none.  JIT tasks keep TG_NONE: a scheduler chooses when they start. */
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
