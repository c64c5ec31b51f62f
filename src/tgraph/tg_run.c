/* tg_run.c - run a task graph sequentially, in a random legal order: the oracle of the passes.
 *
 * Input: a graph at level TG_RAW or above, and memory for its tensors.  Output: the tensors'
 * contents.  Events are activated by the counts that the runtime uses; the seed chooses among
 * the ready tasks.  If the events order every conflicting pair, the results equal those of
 * ir_eval, bit for bit, for every seed; an event that a pass lost shows as a difference under
 * some seed.  Called by tests of passes only.  Cost: that of the reference code.
 */
#include "base/rng.h"
#include "ir/op.h"
#include "tgraph/tgraph.h"

/* The run under way; the counts start at those of the lists and fall to zero. */
typedef struct runner {
    mpk_context *cx;
    arena *scratch;
    const tg_graph *g;
    const ir_values *values;
    tg_links links;
    uint32_t *missing; /* [n_events] in-tasks that have not triggered */
    uint32_t *waits;   /* [n_tasks] events that are not activated */
    /* [n_tasks] those that may run now, in no order; each task enters once */
    tg_task_id *ready;
    uint32_t n_ready;
} runner;

/* Run the reference code on the live part of the task's box, as a worker would: entries of axis 0
 * beyond the step's tokens or rows do not exist.  Scratch is sized for the whole box, since the
 * record's bound is for boxes the compiler cut. */
static mpk_status run_task(runner *r, const tg_task *task)
{
    if (task->op == IR_NONE)
        return MPK_OK;
    const ir_op *op = &r->g->ir->ops.at[task->op];
    const ir_tensor *out = &r->g->ir->tensors.at[op->out[0]];
    op_call call;
    ir_box box = task->box;
    op_bind(r->g->ir, op, r->values->data, r->values->live, &call);
    if (out->rank) {
        int64_t live = op_live_entries(&call, &call.out[0]);
        box.hi[0] = box.hi[0] < live ? box.hi[0] : live;
    }
    if (ir_box_is_empty(&box, out->rank))
        return MPK_OK;
    arena_mark mark = arena_get_mark(r->scratch);
    size_t bytes = op->def->scratch_bytes ? op->def->scratch_bytes(r->g->ir, op, &task->box) : 0;
    void *room = arena_alloc(r->scratch, bytes < 64 ? 64 : bytes, 1);
    CHECK(r->cx, room, MPK_ENOMEM, "out of memory for %zu bytes of scratch of %s", bytes,
          op->def->name);
    op->def->ref(&call, &box, room);
    arena_reset(r->scratch, mark);
    return MPK_OK;
}

/* All triggers of an event have arrived: its out-tasks that wait for no other event are ready. */
static void activate(runner *r, tg_event_id e)
{
    const tg_event *event = &r->g->events[e];
    for (uint32_t i = 0; i < event->n_out; i++)
        if (--r->waits[tg_out_task(r->g, event, i)] == 0)
            r->ready[r->n_ready++] = tg_out_task(r->g, event, i);
}

/* Draw a ready task, run it, count it at its events, until none is ready.  Moving the last entry
 * into the gap keeps a draw constant in time; the order of `ready` means nothing. */
static mpk_status run_all(runner *r, uint64_t seed)
{
    const tg_graph *g = r->g;
    uint32_t done = 0;
    activate(r, TG_START);
    for (; r->n_ready; done++) {
        uint32_t chosen = (uint32_t)(rng_u64(seed, done) % r->n_ready);
        tg_task_id t = r->ready[chosen];
        r->ready[chosen] = r->ready[--r->n_ready];
        TRY(run_task(r, &g->tasks[t]));
        for (uint32_t i = r->links.first_triggers[t]; i < r->links.first_triggers[t + 1]; i++)
            if (--r->missing[r->links.triggers[i]] == 0)
                activate(r, r->links.triggers[i]);
    }
    CHECK(r->cx, done == g->n_tasks, MPK_EVERIFY,
          "%u of %u tasks ran, then none was ready: the end event is not activated", done,
          g->n_tasks);
    return MPK_OK;
}

mpk_status tg_run(mpk_context *cx, arena *scratch, const tg_graph *g, const ir_values *values,
                  uint64_t seed)
{
    runner r = {.cx = cx, .scratch = scratch, .g = g, .values = values};
    CHECK(cx, g->level >= TG_RAW, MPK_EARG, "a task graph without events cannot run");
    TRY(tg_fill_links(cx, scratch, g, &r.links));
    NEW(cx, scratch, r.missing, g->n_events);
    NEW(cx, scratch, r.waits, g->n_tasks);
    NEW(cx, scratch, r.ready, g->n_tasks);
    for (tg_event_id e = 0; e < g->n_events; e++)
        r.missing[e] = g->events[e].n_in;
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        r.waits[t] = r.links.first_depends[t + 1] - r.links.first_depends[t];
    return run_all(&r, seed);
}
