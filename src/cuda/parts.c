/* parts.c - products whose tiles several tasks sum together (device/task/linear_parts.cuh): which,
 * and by how many tasks.
 *
 * Input: the image and the code of its operators.  Output: for each operator how many tasks have a
 * part of a tile's columns, and a place where those of each tile meet.
 *
 * A task of all columns reads all of x for few rows of w.  `parts` tasks that take a tile of all
 * their rows together, each a part of the columns, read as much of w and less of x, and write and
 * read sums instead: they do where that is less.
 *
 * They wait for each other.  That ends: all of them stand in lists, of different workers; lists
 * rise in the numbers of tasks (image_open proves it), and so do dependencies; and no other
 * operator's task has a number between those of such an operator.  So of all that wait, the tasks
 * of the first operator wait for none but each other, and come.  Operators of other numbers share
 * no tiles.  Called by memory.c and tables.c.  Cost: a pass over the tasks for each operator.
 */
#include "cuda/cuda_machine.h"
#include "shape/linear_tile_shape.h"

enum {
    ROWS = 8,                  /* of a group */
    BOX_ROWS = 64,             /* of w, at least and at a time */
    MEETING_BYTES = 128 << 10, /* what a worker reads from L2 while it waits for others */
};
/* L2 delivers this many times what memory does. */
#define L2_OF_MEMORY 2.5

/* An operator's tasks, which all have as many columns of y. */
typedef struct grid {
    uint32_t n_tasks, n_columns; /* columns of a task */
    uint32_t n_across;           /* tasks with the same tokens */
    uint32_t n_tokens;           /* of the largest */
    uint32_t first, last;        /* their numbers in the graph */
} grid;

static const rt_graph *graph_of(const cuda_machine *m, uint32_t graph)
{
    return (const rt_graph *)image_table(m->machine.image.block, RT_GRAPHS) + graph;
}

static const rt_task *tasks_of(const cuda_machine *m, uint32_t graph)
{
    return (const rt_task *)image_table(m->machine.image.block, RT_TASKS) +
           graph_of(m, graph)->first_task;
}

/* Is the task like those that it is to meet?  seen: [workers] that have one; fewest: tokens of a
 * task that may copy boxes. */
static bool joins(const rt_task *t, uint32_t fewest, grid *d, bool *seen)
{
    const uint32_t tokens = t->hi[0] - t->lo[0], columns = t->hi[1] - t->lo[1];
    if (t->worker == RT_NONE || seen[t->worker] || tokens < fewest || tokens > RT_PART_TOKENS ||
        t->lo[0] % RT_PART_TOKENS || !columns)
        return false;
    seen[t->worker] = true;
    d->n_columns = d->n_tasks ? d->n_columns : columns;
    d->n_tokens = tokens > d->n_tokens ? tokens : d->n_tokens;
    d->n_tasks++;
    d->n_across += t->lo[0] == 0;
    return columns == d->n_columns && t->lo[1] % columns == 0;
}

/* false: its tasks are not alike, there are two on one worker, or others stand between them.  Of
 * images all tasks are as those of many tokens. */
static bool find_grid(const cuda_machine *m, uint32_t graph, uint32_t op, bool *seen, grid *d)
{
    const rt_task *tasks = tasks_of(m, graph);
    const bool images = m->source.uses[graph][op].body->images,
               joint = m->source.joint[m->source.regime_of[graph]];
    const uint32_t fewest = images ? 1 : joint ? TILE_FEWEST_SHARING : RT_SHORT_TOKENS + 1;
    memset(seen, 0, m->machine.image.block->n_workers * sizeof *seen);
    *d = (grid){0};
    for (uint32_t t = 0; t < graph_of(m, graph)->n_tasks; t++) {
        if (tasks[t].op != op)
            continue;
        d->first = d->n_tasks ? d->first : t;
        d->last = t;
        if (!joins(&tasks[t], fewest, d, seen))
            return false;
    }
    return d->n_across && d->n_tasks % d->n_across == 0 && d->last - d->first + 1 == d->n_tasks;
}

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* What a worker reads and writes if tiles have this many parts, in bytes from L2; groups: of a
 * task, 8 rows of w each. */
static double cost_of(const gen_pack *p, const grid *d, uint32_t groups, uint32_t parts)
{
    const uint64_t rows = (uint64_t)groups * parts * ROWS,
                   column_bytes = (uint64_t)p->padded_columns * 2;
    const double memory =
        (double)(groups * ROWS * column_bytes) * d->n_across / d->n_tasks * L2_OF_MEMORY;
    const double cache = (double)(column_bytes / parts * (d->n_tokens + round_up(rows, BOX_ROWS)));
    const double sums =
        parts > 1 ? 2.0 * RT_PART_TOKENS * sizeof(float) * (double)rows + MEETING_BYTES : 0;
    return (memory > cache ? memory : cache) + sums;
}

/* How many tasks are to share a tile, a power of two; 1: they are better alone.  Of at most 64
 * tokens the rows of the tile decide (tile_parts_of_short), not the bytes. */
static uint32_t choose(const gen_pack *p, bool images, const grid *d)
{
    const uint32_t per_group = p->order == GEN_PAIRED ? ROWS / 2 : ROWS,
                   groups = d->n_columns / per_group;
    uint32_t best = 1;
    double least = cost_of(p, d, groups, 1);
    if (d->n_columns % per_group)
        return 1;
    if (d->n_tokens <= RT_SHORT_TOKENS && !images) {
        const uint32_t n = (uint32_t)tile_parts_of_short(d->n_tokens, (int)groups, p->columns);
        return d->n_across % n ? 1 : n;
    }
    for (uint32_t n = 2; n <= RT_MOST_PARTS && n * groups * ROWS <= RT_PART_ROWS; n *= 2)
        if (d->n_across % n == 0 && p->columns >= (int64_t)n * TILE_BOX_COLUMNS &&
            cost_of(p, d, groups, n) < least) {
            best = n;
            least = cost_of(p, d, groups, n);
        }
    return best;
}

/* How many tasks share a tile, for each operator of a graph; tiles are numbered through all
 * graphs. */
static void plan_graph(cuda_machine *m, uint32_t graph, bool *seen)
{
    const uint32_t n_ops = graph_of(m, graph)->n_ops;
    cuda_parts *parts = m->parts + graph_of(m, graph)->first_op;
    for (uint32_t op = 0; op < n_ops; op++) {
        const gen_use *use = &m->source.uses[graph][op];
        grid d;
        if (use->instance == RT_NONE || !use->body->parts || !find_grid(m, graph, op, seen, &d))
            continue;
        /* shared tiles are summed by code for boxes alone (TILE_ALL_SHARE) */
        const bool may_share =
            use->body->images || gen_comes_by_boxes(m->machine.image.ir[graph], op);
        parts[op] = (cuda_parts){.n = may_share ? choose(&use->pack, use->body->images, &d) : 1,
                                 .n_across = d.n_across,
                                 .first_meeting = m->n_meetings};
        if (parts[op].n > 1)
            m->n_meetings += d.n_tasks / parts[op].n;
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
