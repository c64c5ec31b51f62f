/* source_of_image.c - the CUDA source of an image (see source.h).
 *
 * Output: the image's graphs as gen_source_make takes them.  Its records need two facts about each
 * operator, which follow from the operator's tasks: the box of the largest one, and whether they
 * are launched just in time.  For example:
 *
 *   tasks   op 3: [0, 4) x [0, 96)    op 3: [0, 4) x [96, 224)    op 5, without a worker
 *   boxes   [3] = [0, 4) x [96, 224)
 *   jit     [5] = true
 *
 * Called by src/cuda (kernel_code.c).  Cost: two passes over the tasks. */
#include "gen/source.h"

ir_box gen_box_of_task(const rt_task *t, uint32_t rank)
{
    ir_box box = {0};
    for (uint32_t i = 0; i < rank; i++) {
        box.lo[i] = t->lo[i];
        box.hi[i] = t->hi[i];
    }
    return box;
}

/* Which operators of a graph have JIT tasks: [ops], in the arena; *out NULL: none has.  A task that
 * belongs to no worker is launched just in time. */
static mpk_status find_jit_ops(mpk_context *cx, arena *a, const program_image *image,
                               uint32_t graph, const bool **out)
{
    const rt_graph *g = (const rt_graph *)image_table(image->block, RT_GRAPHS) + graph;
    const rt_task *tasks = (const rt_task *)image_table(image->block, RT_TASKS) + g->first_task;
    bool *jit;
    *out = NULL;
    if (!g->n_jit)
        return MPK_OK;
    NEW(cx, a, jit, image->ir[graph]->ops.n);
    for (uint32_t t = 0; t < g->n_tasks; t++)
        if (tasks[t].worker == RT_NONE && tasks[t].op != RT_NONE)
            jit[tasks[t].op] = true;
    *out = jit;
    return MPK_OK;
}

/* The box of each operator's largest task, [ops]; empty for one without tasks.  Bodies whose choice
 * depends on the size of a task (block programs) ask for it. */
static mpk_status find_boxes(mpk_context *cx, arena *a, const program_image *image, uint32_t graph,
                             const ir_box **out)
{
    const rt_graph *g = (const rt_graph *)image_table(image->block, RT_GRAPHS) + graph;
    const rt_task *tasks = (const rt_task *)image_table(image->block, RT_TASKS) + g->first_task;
    const ir_graph *ir = image->ir[graph];
    ir_box *boxes;
    NEW(cx, a, boxes, ir->ops.n);
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        if (tasks[t].op == RT_NONE)
            continue;
        const uint32_t rank = ir->tensors.at[ir->ops.at[tasks[t].op].out[0]].rank;
        const ir_box box = gen_box_of_task(&tasks[t], rank);
        ir_box *most = &boxes[tasks[t].op];
        if (ir_box_elements(&box, rank) > ir_box_elements(most, rank))
            *most = box;
    }
    *out = boxes;
    return MPK_OK;
}

/* Workers of the image are those of all peers; a source is for the workers of one. */
mpk_status gen_source_of_image(mpk_context *cx, arena *a, const program_image *image,
                               const gen_arch *arch, gen_whole whole, gen_source *out)
{
    gen_graph *graphs;
    const rt_graph *rows = image_table(image->block, RT_GRAPHS);
    NEW(cx, a, graphs, image->n_graphs);
    for (uint32_t i = 0; i < image->n_graphs; i++) {
        graphs[i] = (gen_graph){.ir = image->ir[i],
                                .n_tokens = rows[i].n_tokens,
                                .drafts = rows[i].drafts != 0,
                                .n_tasks = rows[i].n_tasks,
                                .tasks = (const rt_task *)image_table(image->block, RT_TASKS) +
                                         rows[i].first_task};
        TRY(find_jit_ops(cx, a, image, i, &graphs[i].jit));
        TRY(find_boxes(cx, a, image, i, &graphs[i].boxes));
    }
    return gen_source_make(cx, a, image->n_graphs, graphs,
                           image->block->n_workers / image->block->n_peers, arch, whole, out);
}
