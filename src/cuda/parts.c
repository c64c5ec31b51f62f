/* parts.c - products whose tiles several tasks sum together (device/task/linear_parts.cuh): where
 * the tasks of each tile meet.
 *
 * Input: the image and the code of its operators; gen/sharing.h tells by how many tasks.  Output:
 * for each operator how many tasks have a part of a tile's columns, and a place where those of each
 * tile meet.
 *
 * They wait for each other.  That ends: all of them stand in lists, of different workers; lists
 * rise in the numbers of tasks (image_open proves it), and so do dependencies; and no other
 * operator's task has a number between those of such an operator.  So of all that wait, the tasks
 * of the first operator wait for none but each other, and come.  Operators of other numbers share
 * no tiles.  Called by memory.c and tables.c.  Cost: a pass over the tasks for each operator.
 */
#include "cuda/cuda_machine.h"
#include "gen/sharing.h"

static const rt_graph *graph_of(const cuda_machine *m, uint32_t graph)
{
    return (const rt_graph *)image_table(m->machine.image.block, RT_GRAPHS) + graph;
}

/* How many tasks share a tile, for each operator of a graph; tiles are numbered through all
 * graphs. */
static void plan_graph(cuda_machine *m, uint32_t graph, bool *seen)
{
    const rt_graph *row = graph_of(m, graph);
    const gen_graph g = {.ir = m->machine.image.ir[graph],
                         .n_tasks = row->n_tasks,
                         .tasks = (const rt_task *)image_table(m->machine.image.block, RT_TASKS) +
                                  row->first_task};
    const bool joint = m->source.joint[m->source.regime_of[graph]];
    for (uint32_t op = 0; op < row->n_ops; op++) {
        const gen_sharing s = gen_find_sharing(&g, op, &m->source.uses[graph][op], joint,
                                               m->machine.image.block->n_workers, seen);
        m->parts[row->first_op + op] = (cuda_parts){.n = s.n,
                                                    .n_across = s.n_across,
                                                    .n_columns = s.n_columns,
                                                    .first = s.first,
                                                    .n_tasks = s.n_tasks,
                                                    .first_meeting = m->n_meetings};
        if (s.n > 1)
            m->n_meetings += s.n_tasks / s.n;
    }
}

/* Only graphs of a kernel with tensor maps have such products. */
mpk_status cuda_plan_parts(mpk_context *cx, cuda_machine *m)
{
    bool *seen;
    NEW(cx, &m->arena, m->parts, image_count(m->machine.image.block, RT_OPS) + 1);
    NEW(cx, &m->arena, seen, m->machine.image.block->n_workers);
    m->n_meetings = 0;
    m->squares_bytes = 0;
    for (uint32_t g = 0; g < m->machine.image.n_graphs; g++)
        if (m->source.maps[m->source.regime_of[g]]) {
            plan_graph(m, g, seen);
            cuda_plan_squares(m, g);
        }
    return MPK_OK;
}

/* Fill in which part of which tile the task has, and its worker, as its GPU counts them, at the
 * meeting of that tile in the block of tables.  Without maps (e->maps) the task copies no boxes,
 * and has its tile alone. */
void cuda_fill_parts(const cuda_machine *m, const rt_task *t, char *block, rt_entry *e)
{
    if (e->op == RT_NONE || m->parts[e->op].n < 2 || !e->maps)
        return;
    const cuda_parts *p = &m->parts[e->op];
    const uint32_t across = t->lo[1] / (t->hi[1] - t->lo[1]),
                   tile = (t->lo[0] / RT_PART_TOKENS * p->n_across + across) / p->n;
    const uint64_t at = m->layout.meetings + (p->first_meeting + tile) * sizeof(rt_meeting);
    rt_meeting *meeting = (rt_meeting *)(void *)(block + at);
    e->parts = p->n;
    e->part = across % p->n;
    e->meeting = m->table_block + at;
    meeting->workers[e->part] = t->worker - m->peer * cuda_workers(m);
}
