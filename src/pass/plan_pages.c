/* plan_pages.c - how many scratch pages a task holds while it runs (paper §5.3).
 *
 * Input: a compiled graph.  Output: for each operator, the most pages that any of its tasks
 * needs for the reference code; a target counts the scratch of its own bodies when it chooses
 * them.  Called by compile.c for each graph.  Cost: linear in the tasks.
 */
#include "ir/op.h"
#include "pass/pass.h"

/* The scratch of the reference code for one task, in bytes; 0 if it needs none. */
static size_t scratch_bytes(const ir_graph *ir, const tg_task *task)
{
    const ir_op *op = &ir->ops.at[task->op];
    return op->def->scratch_bytes ? op->def->scratch_bytes(ir, op, &task->box) : 0;
}

/* Pages of an operator: those of its task that needs most. A task that needs more than a worker
 * has is refused here; at run time it would wait for ever.
 */
mpk_status pass_plan_pages(pass_state *s, const tg_program *p, tg_compiled *c)
{
    NEW(s->cx, s->result, c->pages, c->ir->ops.n);
    for (tg_task_id t = 0; t < c->tg->n_tasks; t++) {
        const tg_task *task = &c->tg->tasks[t];
        if (task->op == IR_NONE)
            continue;
        size_t bytes = scratch_bytes(c->ir, task),
               most = (size_t)p->page_bytes * p->pages_per_worker;
        CHECK(s->cx, bytes <= most, MPK_ELIMIT,
              "a task of %.*s needs %zu bytes of scratch, a worker has %u pages of %u bytes",
              STR_ARG(c->ir->ops.at[task->op].name), bytes, p->pages_per_worker, p->page_bytes);
        uint32_t pages = bytes ? (uint32_t)((bytes + p->page_bytes - 1) / p->page_bytes) : 0;
        c->pages[task->op] = pages > c->pages[task->op] ? pages : c->pages[task->op];
    }
    return MPK_OK;
}
