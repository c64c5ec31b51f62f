/* sharing.c - how many tasks of a product share a tile (see sharing.h).
 *
 * Input: the tasks of a graph and the code of its operators.  A task of all columns reads all of x
 * for few rows of w.  `parts` tasks that take a tile of all their rows together, each a part of the
 * columns, read as much of w and less of x, and write and read sums instead: they do where that is
 * less.
 *
 * They wait for each other, so all of them stand in lists of different workers, and no other
 * operator's task has a number between theirs (src/cuda/parts.c says why that ends).  Cost: a pass
 * over the tasks for each operator.
 */
#include "gen/sharing.h"

#include <string.h>

#include "rt/rt_lane.h"
#include "shape/linear_tile_shape.h"

enum {
    ROWS = 8,                  /* of a group */
    BOX_ROWS = 64,             /* of w, at least and at a time */
    MEETING_BYTES = 128 << 10, /* what a worker reads from L2 while it waits for others */
};
/* L2 delivers this many times what memory does. */
#define L2_OF_MEMORY 2.5
/* A byte of a tile's sums costs as much as so many that a step of a product reads.  In calls, whose
 * bodies share the instruction cache, by measurement: tiles of 64 x 128 x 3,072 are better alone,
 * those of 32 x 128 x 3,072 by four. */
#define SUMS_OF_STEPS 2.0
#define SUMS_OF_CALLS 5.0

/* An operator's tasks, which all have as many columns of y. */
typedef struct grid {
    uint32_t n_tasks, n_columns; /* columns of a task */
    uint32_t n_across;           /* tasks with the same tokens */
    uint32_t n_tokens;           /* of the largest */
    uint32_t first, last;        /* their numbers in the graph */
} grid;

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

/* false: its tasks are not alike, there are two on one worker, or others stand between them.  wide:
 * all tasks are as those of many tokens. */
static bool find_grid(const gen_graph *g, uint32_t op, bool wide, bool joint, uint32_t n_workers,
                      bool *seen, grid *d)
{
    const rt_task *tasks = g->tasks;
    const uint32_t fewest = wide ? 1 : joint ? TILE_FEWEST_SHARING : RT_SHORT_TOKENS + 1;
    memset(seen, 0, n_workers * sizeof *seen);
    *d = (grid){0};
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        if (tasks[t].op != op)
            continue;
        d->first = d->n_tasks ? d->first : t;
        d->last = t;
        if (!joins(&tasks[t], fewest, d, seen))
            return false;
    }
    return d->n_across && d->n_tasks % d->n_across == 0 && d->last - d->first + 1 == d->n_tasks;
}

/* Tasks that need not be alike, nor meet.  false: they do not follow each other, or do not all have
 * whole groups of columns. */
static bool find_columns(const gen_graph *g, uint32_t op, grid *d)
{
    bool whole = true;
    *d = (grid){0};
    for (uint32_t i = 0; i < g->n_tasks; i++) {
        const rt_task *t = &g->tasks[i];
        if (t->op != op)
            continue;
        const uint32_t columns = t->hi[1] - t->lo[1];
        d->first = d->n_tasks ? d->first : i;
        d->last = i;
        d->n_tasks++;
        d->n_across += t->lo[0] == 0;
        d->n_columns = columns > d->n_columns ? columns : d->n_columns;
        whole &= (t->lo[1] | t->hi[1]) % ROWS == 0;
    }
    return whole && d->n_across && d->last - d->first + 1 == d->n_tasks;
}

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* What a worker reads and writes if tiles have this many parts, in bytes from L2; groups: of a
 * task, 8 rows of w each; call: of a program that serves no requests. */
static double cost_of(const gen_pack *p, const grid *d, bool call, uint32_t groups, uint32_t parts)
{
    const uint64_t rows = (uint64_t)groups * parts * ROWS,
                   column_bytes = (uint64_t)p->padded_columns * 2;
    const double memory =
        (double)(groups * ROWS * column_bytes) * d->n_across / d->n_tasks * L2_OF_MEMORY;
    const double cache = (double)(column_bytes / parts * (d->n_tokens + round_up(rows, BOX_ROWS)));
    const double a_sum = call ? SUMS_OF_CALLS : SUMS_OF_STEPS,
                 sums = a_sum * RT_PART_TOKENS * sizeof(float) * (double)rows + MEETING_BYTES;
    return (memory > cache ? memory : cache) + (parts > 1 ? sums : 0);
}

/* How many tasks are to share a tile, a power of two; 1: they are better alone.  Of at most 64
 * tokens the rows of the tile decide (tile_parts_of_short), not the bytes. */
static uint32_t choose(const gen_pack *p, bool images, const grid *d, bool call)
{
    const uint32_t per_group = p->order == GEN_PAIRED ? ROWS / 2 : ROWS,
                   groups = d->n_columns / per_group;
    uint32_t best = 1;
    double least = cost_of(p, d, call, groups, 1);
    /* the kernel of a call is one function for all products: sums of 256 rows leave it too few
     * registers */
    const uint32_t most_rows = call ? TILE_BOX_GROUPS * ROWS : RT_PART_ROWS;
    if (d->n_columns % per_group)
        return 1;
    if (d->n_tokens <= RT_SHORT_TOKENS && !images) {
        const uint32_t n = (uint32_t)tile_parts_of_short(d->n_tokens, (int)groups, p->columns);
        return d->n_across % n ? 1 : n;
    }
    for (uint32_t n = 2; n <= RT_MOST_PARTS && n * groups * ROWS <= most_rows; n *= 2)
        if (d->n_across % n == 0 && p->columns >= (int64_t)n * TILE_BOX_COLUMNS &&
            cost_of(p, d, call, groups, n) < least) {
            best = n;
            least = cost_of(p, d, call, groups, n);
        }
    return best;
}

gen_sharing gen_find_sharing(const gen_graph *g, ir_op_id op, const gen_use *use, bool joint,
                             uint32_t n_workers, bool *seen)
{
    grid d;
    if (use->instance == RT_NONE || !use->body->parts)
        return (gen_sharing){0};
    if (!find_grid(g, op, use->body->images || use->wide, joint, n_workers, seen, &d))
        return (gen_sharing){.n = use->wide && find_columns(g, op, &d),
                             .n_across = d.n_across,
                             .n_columns = d.n_columns,
                             .first = d.first,
                             .n_tasks = d.n_tasks};
    /* shared tiles are summed by code for boxes alone (TILE_ALL_SHARE) */
    const bool may_share = use->body->images || gen_comes_by_boxes(g->ir, op);
    const bool images = use->body->images, call = gen_is_of_call(g->ir, op);
    return (gen_sharing){.n = may_share ? choose(&use->pack, images, &d, call) : 1,
                         .n_across = d.n_across,
                         .n_columns = d.n_columns,
                         .first = d.first,
                         .n_tasks = d.n_tasks};
}

bool gen_takes_squares(const ir_graph *g, ir_op_id op, const gen_use *use)
{
    const gen_body *body = use->body;
    const ir_op *o = &g->ops.at[op];
    if (!body || body->images)
        return false;
    if (body->norm)
        return body->norm < o->n_in && o->in[body->norm] != IR_NONE;
    return body->parts && gen_has_norm(g, op);
}

mpk_status gen_drop_parts(mpk_context *cx, arena *a, const gen_graph *g, const gen_use *uses,
                          uint32_t n_workers, uint64_t *forms)
{
    bool *seen, shares = false, squares = false;
    NEW(cx, a, seen, n_workers);
    for (ir_op_id op = 0; op < g->ir->ops.n; op++) {
        const gen_use *u = &uses[op];
        shares |= gen_find_sharing(g, op, u, false, n_workers, seen).n > 1;
        squares |= gen_takes_squares(g->ir, op, u);
    }
    if (!shares)
        *forms &= ~(UINT64_C(1) << TILE_FORM_PARTS);
    if (!squares)
        *forms &= ~(UINT64_C(1) << TILE_FORM_SQUARES);
    return MPK_OK;
}
