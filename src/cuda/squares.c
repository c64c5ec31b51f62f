/* squares.c - norms of products whose squares are summed where x is made
 * (device/task/row_squares.cuh): whose, and where the sums lie.
 *
 * Input: the image, the code of its operators and which of them share tiles (parts.c).  Output: for
 * each operator where its tasks leave the sums of squares of their rows, with those of the entries
 * beside them if some norm is a layer_norm, and for each product with a norm whose sums it takes.
 *
 *   x = linear(...)  ->  y = linear(x, norm ...), y = expert_linear(x, ..., norm)
 *
 * A product that takes no boxes sums the squares itself, whatever its entry says; but one that is
 * to leave sums must leave them, so its operands are looked at as its body does.  Where x is
 * carried (polled as data) no event orders the sums, so they are not taken.  Each operator has
 * rows of its own, so that within a step nothing is overwritten; graphs, of which one runs at a
 * time, share the memory.  Called by parts.c and tables.c.  Cost: a pass over the operators.
 */
#include "cuda/cuda_machine.h"
#include "gen/sharing.h"
#include "shape/linear_tile_shape.h"

static const ir_graph *program_of(const cuda_machine *m, uint32_t graph)
{
    return m->machine.image.ir[graph];
}

static cuda_parts *parts_of(const cuda_machine *m, uint32_t graph)
{
    const rt_graph *all = (const rt_graph *)image_table(m->machine.image.block, RT_GRAPHS);
    return m->parts + all[graph].first_op;
}

/* Has it a body, and operands few enough to leave the entry's last places free for the addresses of
 * squares (RT_SQUARES_OF_X and the two after it)? */
static bool has_room(const cuda_machine *m, uint32_t graph, ir_op_id op)
{
    const ir_op *o = &program_of(m, graph)->ops.at[op];
    return m->source.uses[graph][op].instance != RT_NONE &&
           gen_operand_of_output(o, o->n_out) <= RT_SQUARES_OF_X;
}

/* How many sums a task leaves of a token: one if it shares its tile, else one for each pass over
 * its rows of w, 8 columns of y a group, as tile_pass_at cuts them.  0: its tasks are not alike, or
 * have their tiles alone and at most 64 tokens, so that each warpgroup has half of a pass's rows
 * and would leave a sum of its own. */
static uint32_t sums_of_task(const cuda_parts *p, const ir_tensor *y)
{
    if (p->n != 1)
        return p->n != 0;
    if (y->dims[0] <= RT_SHORT_TOKENS)
        return 0;
    const int groups = (int)(p->n_columns / 8), per_pass = tile_groups_of_pass(1, groups, 1, 0);
    const uint32_t n = (uint32_t)((groups + per_pass - 1) / per_pass);
    /* as many of each task */
    return n == 1 || p->n_columns * p->n_across == y->dims[1] ? n : 0;
}

/* Floats of a sum: of squares alone, or also of entries, for a layer_norm. */
static uint32_t floats_of_sum(const cuda_machine *m)
{
    return m->source.centred ? 2 : 1;
}

/* Can the operator's tasks sum the squares of what they store? */
static bool can_sum(const cuda_machine *m, uint32_t graph, ir_op_id op)
{
    const cuda_parts *p = &parts_of(m, graph)[op];
    const ir_graph *g = program_of(m, graph);
    const gen_body *body = m->source.uses[graph][op].body;
    if (!has_room(m, graph, op) || !body->parts || body->images || !p->n ||
        !gen_stores_whole_groups(g, op, p->n_columns))
        return false;
    const ir_tensor *y = &g->tensors.at[g->ops.at[op].out[0]];
    const uint32_t n = p->n_across * sums_of_task(p, y) * floats_of_sum(m);
    return y->dims[0] <= tile_most_summed(y->live == IR_ALL) && n && n <= RT_MOST_SQUARES &&
           (n % 4 == 0 || m->machine.image.n_graphs == 1);
}

/* Floats of a row that are read, four at a time.  Of a single graph those after the last sum are
 * what they were at first, 0; graphs that share the memory leave other sums there. */
static uint32_t floats_of_row(const cuda_machine *m, const cuda_parts *p)
{
    return (p->n_across * p->sums * floats_of_sum(m) + 3) / 4 * 4;
}

/* A row of sums for each token, for whole tiles of tokens. */
static uint64_t rows_bytes(const ir_tensor *y)
{
    const uint64_t tiles = ((uint64_t)y->dims[0] + RT_PART_TOKENS - 1) / RT_PART_TOKENS;
    return tiles * RT_PART_TOKENS * RT_SQUARES_ROW;
}

/* Only in programs of one GPU.  A producer that several products take sums from leaves them once.
 * summed_by is an operator's number plus 1, so that 0 is none. */
void cuda_plan_squares(cuda_machine *m, uint32_t graph)
{
    const ir_graph *g = program_of(m, graph);
    cuda_parts *parts = parts_of(m, graph);
    uint64_t n_bytes = 0;
    for (ir_op_id op = 0; op < g->ops.n && m->n_peers == 1; op++) {
        if (!has_room(m, graph, op) || !gen_takes_squares(g, op, &m->source.uses[graph][op]))
            continue;
        const ir_tensor *x = &g->tensors.at[g->ops.at[op].in[0]];
        if (x->producer == IR_NONE || !can_sum(m, graph, x->producer))
            continue;
        cuda_parts *from = &parts[x->producer];
        parts[op].summed_by = x->producer + 1;
        if (!from->sums) {
            from->sums = sums_of_task(from, x);
            from->sums_at = n_bytes;
            n_bytes += rows_bytes(x);
        }
    }
    m->squares_bytes = n_bytes > m->squares_bytes ? n_bytes : m->squares_bytes;
}

/* Without maps, or where words of the result or of the residual are not aligned, a body has its
 * tile alone and leaves no sums.  Of the caller's tensors of a call, which are aligned
 * (target_def.call_align), the pattern has offsets alone. */
static bool leaves_sums(const cuda_machine *m, uint32_t graph, const rt_entry *pattern, ir_op_id op)
{
    const ir_op *o = &program_of(m, graph)->ops.at[op];
    rt_u64 all = pattern->at[gen_operand_of_output(o, 0)];
    for (uint32_t i = 0; i < o->n_in; i++)
        all |= pattern->at[gen_operand_of_input(o, i)];
    return pattern->maps && all % 16 == 0;
}

/* How many tasks of the operator have the columns before this one's. */
static uint32_t number_across(const cuda_machine *m, uint32_t graph, const rt_task *t)
{
    const cuda_parts *p = &parts_of(m, graph)[t->op];
    const rt_graph *all = (const rt_graph *)image_table(m->machine.image.block, RT_GRAPHS);
    const rt_task *tasks = (const rt_task *)image_table(m->machine.image.block, RT_TASKS) +
                           all[graph].first_task + p->first;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_tasks; i++)
        n += tasks[i].lo[0] == 0 && tasks[i].lo[1] < t->lo[1];
    return n;
}

/* Of one task's entry, when its operands and event are filled in.  A task leaves its sums at its
 * own place in each row, by the number of its box along the columns; a product reads those of all.
 */
void cuda_fill_squares(const cuda_machine *m, uint32_t graph, const rt_task *t,
                       const rt_entry *patterns, rt_entry *e)
{
    if (t->op == RT_NONE)
        return;
    const cuda_parts *all = parts_of(m, graph), *p = &all[t->op];
    const cuda_address first = m->parts_block + (uint64_t)cuda_workers(m) * RT_PART_BYTES;
    if (p->sums && leaves_sums(m, graph, &patterns[t->op], t->op))
        e->at[RT_SQUARES_OF_Y] =
            first + p->sums_at +
            number_across(m, graph, t) * p->sums * floats_of_sum(m) * sizeof(float);
    const ir_op_id by = p->summed_by - 1;
    if (!p->summed_by || e->carried & 1 || !leaves_sums(m, graph, &patterns[by], by))
        return;
    e->at[RT_SQUARES_OF_X] = first + all[by].sums_at;
    e->at[RT_SQUARES_N] = floats_of_row(m, &all[by]);
}
