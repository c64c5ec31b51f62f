/* decompose.c - operators into tasks over disjoint tiles of their output (paper §4.1, operator
 * decomposition).
 *
 * Input: a tensor program.  Output: TG_TASKS: tasks, operator by operator, tiles in row-major
 * order of the grid of cuts.
 *
 * Idea: a grid cuts every axis of output 0 into a number of parts.  Among all grids that the
 * record's axes allow, take the one whose slowest worker loads the fewest bytes.  The cost of a
 * task is the number of bytes it reads.  Tasks with fixed times run in rounds of one task per
 * worker; tasks whose times depend on data are balanced at run time.  Each additional task costs
 * a launch and a trigger of an event, so small operators stay whole.
 *
 *   linear [16, 4096] x weight [4096, 4096] bf16, 128 workers:
 *     1 part      one task reads 32 MB
 *     128 parts   of 32 columns: each reads 256 KB of weight and all of x, one round
 *     129 parts   two rounds, the second for one task: the slowest worker loads twice as much
 *
 * Operators that look alike, such as those of different layers, are measured once.  The pass
 * relies on the record: `axes` (where it may be cut), `reads` (through op_bytes_read), `writes`.
 * Called by compile.c, first of the passes that make tasks.  Cost: the number of grids of the
 * distinct operators.
 */
#include "ir/op.h"
#include "pass/pass.h"

/* The cost of launching a task and of triggering its event, in bytes that a worker could read in
 * that time.  The triggers of an event are atomic additions to one word, which are served one
 * after the other, so they add up over all tasks of an operator, whereas launches of different
 * workers overlap. */
enum { LAUNCH_BYTES = 2048, TRIGGER_BYTES = 64 };
/* Operators with uneven tasks get more tasks than there are workers, so that a scheduler can
 * balance them.  Not where tiles are whole (pass_options.whole_tiles): there the body of a task
 * balances the entries of its tile by itself. */
enum { UNEVEN_TASKS_PER_WORKER = 8 };
/* Where contexts are cut (op_axis.context): their parts are of about equal length, and each task
 * that has none of a short context costs a launch. */
enum { CONTEXT_TASKS_PER_WORKER = 4 };

/* With whole tiles: the tokens of a step mostly share a context, and every task reads all of it.
 * This share of the bytes of uneven operators does not depend on the number of rows of a task. */
#define CONTEXT_SHARE (1.0 / 64)

/* With whole tiles: the weight of the mean tile beside the largest one, see tile_cost. */
#define MEAN_SHARE 0.25

/* How an axis is cut: into `parts` parts, cut i at element units * i / parts * unit, where
 * `units` is the number of units of `unit` elements along the axis.  16 columns in units of 4 in
 * 3 parts: cuts at 4 and 8, so 0:4, 4:8, 8:16. */
typedef struct axis_cut {
    uint32_t parts;
    int64_t unit;
} axis_cut;

/* The cuts of all axes of an output; its tiles are their product. */
typedef struct tile_grid {
    axis_cut at[IR_MAX_RANK];
} tile_grid;

/* The search for one operator's grid.  `grid` is the one under construction, `best` the cheapest
 * that was complete, with cost best_cost in bytes; neither counts before `found`. */
typedef struct chooser {
    pass_state *s;
    const ir_graph *ir;
    const ir_op *op;
    const ir_tensor *out;
    op_axis axes[IR_MAX_RANK];
    /* [rank] the number of parts that the user asked for; 0: free */
    uint32_t forced[IR_MAX_RANK];
    uint32_t workers; /* workers that may run it: those of its peer */
    uint64_t most;    /* the most tasks that a grid may have */
    bool even;        /* axes marked op_axis.even are cut into equal parts only */
    tile_grid grid, best;
    double best_cost;
    bool found;
} chooser;

/* Units along an extent; the last may be cut short. */
static int64_t count_units(int64_t extent, int64_t unit)
{
    return (extent + unit - 1) / unit;
}

/* Is the work of the operator shared out at run time (OP_SHARES), in graphs of more than
 * share_tokens tokens?  Then its cuts only say how many workers take part, and may be of any
 * size. */
static bool is_shared(const chooser *c)
{
    const pass_options *o = c->s->options;
    return c->op->def->flags & OP_SHARES && o->share_tokens && c->out->dims[0] > o->share_tokens;
}

/* Cut axis number `axis` into `parts` parts, at multiples of `fastest` if there are enough of
 * them, else of `grain`; with whole_tiles, and unless the user gave a degree, only between
 * tiles.  Returns false if the axis has fewer units than parts; *out is written either way. */
static bool make_cut(const chooser *c, uint32_t axis, uint32_t parts, axis_cut *out)
{
    const op_axis *a = &c->axes[axis];
    int64_t extent = c->out->dims[axis];
    bool whole = c->s->options->whole_tiles && a->tile > 0 && !c->forced[axis] &&
                 (axis == 0 || !is_shared(c));
    int64_t fastest = a->fastest > 0 ? a->fastest : a->grain;
    *out = (axis_cut){parts, whole ? a->tile : fastest};
    if (parts == 1)
        return true;
    if (a->grain <= 0 || count_units(extent, whole ? a->tile : a->grain) < parts)
        return false;
    if (count_units(extent, out->unit) < parts)
        out->unit = a->grain;
    return true;
}

/* The elements *lo <= i < *hi of part i of an axis.  Parts differ by at most one unit, and all
 * bounds but the last are multiples of the unit, so bodies may rely on alignment. */
static void tile_range(const axis_cut *cut, int64_t extent, uint32_t i, int64_t *lo, int64_t *hi)
{
    if (cut->parts == 1) {
        *lo = 0;
        *hi = extent;
        return;
    }
    int64_t units = count_units(extent, cut->unit);
    *lo = units * i / cut->parts * cut->unit;
    *hi = units * (i + 1) / cut->parts * cut->unit;
    *hi = *hi < extent ? *hi : extent;
}

/* The tile with the most elements, of equal ones the last where later ones take longer.  Parts
 * differ by at most one unit and the last part has the most units, but its end may be cut short by
 * the extent; so one of the last two parts is the longest along each axis. */
static ir_box largest_tile(const chooser *c)
{
    ir_box box = {0};
    for (uint32_t i = 0; i < c->out->rank; i++) {
        const axis_cut *cut = &c->grid.at[i];
        int64_t size = 0;
        for (uint32_t k = cut->parts > 2 ? cut->parts - 2 : 0; k < cut->parts; k++) {
            int64_t lo, hi;
            tile_range(cut, c->out->dims[i], k, &lo, &hi);
            if (hi - lo > size || (c->axes[i].rises && hi - lo == size)) {
                size = hi - lo;
                box.lo[i] = lo;
                box.hi[i] = hi;
            }
        }
    }
    return box;
}

/* The fraction of the output that a box covers. */
static double share_of(const chooser *c, const ir_box *box)
{
    return (double)ir_box_elements(box, c->out->rank) / (double)ir_elements(c->out);
}

/* The bytes that a task reads if it works on its whole box at once, and with whole tiles its
 * other work, in the bytes that could be read in that time (op_def.effort).  Of state that the
 * record cannot name exactly (OP_READS_EARLIER: the KV cache) it counts the task's share,
 * because work on such state is balanced. */
static double bytes_at_once(const chooser *c, const ir_box *box)
{
    double bytes = (double)op_bytes_read(c->ir, c->op, box);
    if (c->s->options->whole_tiles && c->op->def->effort)
        bytes += (double)c->op->def->effort(c->ir, c->op, box);
    for (uint32_t i = 0; c->op->def->flags & OP_READS_EARLIER && i < c->op->n_in; i++)
        if (c->op->in[i] != IR_NONE && c->ir->tensors.at[c->op->in[i]].kind == IR_STATE)
            bytes += (double)ir_bytes(&c->ir->tensors.at[c->op->in[i]]) * share_of(c, box);
    return bytes;
}

/* The bytes that a task reads.  With whole_tiles a task of several tiles along axis 0 works on
 * one after the other, or on `together` entries at once, and reads shared operands, above all
 * weights, again for each of them. */
static double bytes_of(const chooser *c, const ir_box *box)
{
    const op_axis *first = &c->axes[0];
    int64_t tile = first->together ? first->together : first->tile;
    tile = c->s->options->whole_tiles && c->out->rank ? tile : 0;
    if (tile <= 1 || box->hi[0] - box->lo[0] <= tile)
        return bytes_at_once(c, box);
    ir_box one = *box;
    one.hi[0] = one.lo[0] + tile;
    return bytes_at_once(c, &one) * (double)count_units(box->hi[0] - box->lo[0], tile);
}

/* The cost of the slowest worker's tile in bytes.  Workers share one memory, so all of them end
 * sooner if some load less: with whole tiles a part of the cost, MEAN_SHARE, is that of the mean
 * tile.  The mean tile has 1/n of the output; its cost is interpolated, by size, between the
 * first tile, which is one of the smallest, and the largest. */
static double tile_cost(const chooser *c, const ir_box *largest, uint64_t n)
{
    double bytes = bytes_of(c, largest), large = share_of(c, largest), least;
    ir_box first = {0};
    if (!c->s->options->whole_tiles)
        return bytes;
    for (uint32_t i = 0; i < c->out->rank; i++)
        tile_range(&c->grid.at[i], c->out->dims[i], 0, &first.lo[i], &first.hi[i]);
    least = share_of(c, &first);
    if (least >= large)
        return bytes;
    return bytes -
           MEAN_SHARE * (bytes - bytes_of(c, &first)) * (large - 1 / (double)n) / (large - least);
}

/* True where tasks of one operator take longer the later their tile lies; assign pairs an early
 * and a late one. */
bool pass_tiles_rise(const pass_options *o, const ir_graph *g, const ir_op *op)
{
    op_axis axes[IR_MAX_RANK] = {0};
    if (!o->whole_tiles || !op->def->axes)
        return false;
    op->def->axes(g, op, axes);
    return axes[0].rises;
}

/* May some tasks of the operator take much longer than others?  Not if their work is cut evenly
 * at run time (OP_EVEN). */
static bool is_uneven(const ir_op *op)
{
    return (op->def->flags & (OP_DATA_DEPENDENT | OP_EVEN)) == OP_DATA_DEPENDENT;
}

/* Entries of axis 0 that take as long as those of the box: bodies work on lots of `together`
 * entries, and a lot that is begun takes as long as a full one. */
static int64_t entries_of(const chooser *c, const ir_box *box)
{
    int64_t together = c->axes[0].together, n = box->hi[0] - box->lo[0];
    return together && c->s->options->whole_tiles ? count_units(n, together) * together : n;
}

/* The share of an operator's work that a task does along the axis that cuts contexts (1 if there is
 * none), and in *worst if one context in four is too short to be cut: so heads are cut first. */
static double context_share(const chooser *c, const ir_box *box, double *worst)
{
    double share = 1;
    for (uint32_t i = 0; i < c->out->rank; i++)
        if (c->axes[i].context)
            share = (double)(box->hi[i] - box->lo[i]) / (double)c->out->dims[i];
    *worst = (1 + 3 * share) / 4;
    return share;
}

/* The bytes that the slowest worker loads under the current grid of n tasks, costs of launches
 * and triggers included. */
static double grid_cost(const chooser *c, uint64_t n)
{
    double workers = c->workers;
    ir_box box = largest_tile(c);
    if (!is_uneven(c->op)) {
        double rounds = (double)((n + (uint64_t)workers - 1) / (uint64_t)workers);
        return rounds * (tile_cost(c, &box, n) + LAUNCH_BYTES) + TRIGGER_BYTES * (double)n;
    }
    /* Such a task finds its operands by following data, so `reads` can only name all of them: take
     * the share of the rows. */
    ir_box rows = box;
    double share = 1;
    if (c->out->rank) {
        rows.lo[0] = 0;
        rows.hi[0] = c->out->dims[0];
        share = (double)entries_of(c, &box) / (double)c->out->dims[0];
    }
    if (c->s->options->whole_tiles)
        share += CONTEXT_SHARE;
    double worst, part = context_share(c, &box, &worst),
                  bytes = (double)op_bytes_read(c->ir, c->op, &rows) * share;
    /* A task that takes twice the mean, or a long one and a short one. */
    if (c->axes[0].together && pass_tiles_rise(c->s->options, c->ir, c->op))
        return 2 * (bytes * part + LAUNCH_BYTES) + TRIGGER_BYTES * (double)n;
    /* List scheduling ends at most one task later than a perfect split. */
    return (bytes * part + LAUNCH_BYTES) * (double)n / workers + bytes * worst + LAUNCH_BYTES +
           TRIGGER_BYTES * (double)n;
}

/* Does some axis allow equal parts for at least four fifths of the workers?  Tasks of equal
 * parts may share what they read (op_axis.even), which is worth up to a fifth of the workers
 * idle.  Only in graphs of even_over < T <= even_up_to rows. */
static bool can_be_even(const chooser *c)
{
    const pass_options *o = c->s->options;
    const int64_t rows = c->out->rank ? c->out->dims[0] : 0;
    if (!o->whole_tiles || rows <= o->even_over || rows > o->even_up_to)
        return false;
    for (uint32_t i = 0; i < c->out->rank; i++) {
        const op_axis *a = &c->axes[i];
        const int64_t units = a->fastest > 0 ? c->out->dims[i] / a->fastest : 0;
        for (int64_t parts = c->workers; a->even && !c->forced[i] && parts * 5 >= c->workers * 4;
             parts--)
            if (units % parts == 0 && c->out->dims[i] % a->fastest == 0)
                return true;
    }
    return false;
}

/* Does the current grid cut all axes that ask for it into equal parts? */
static bool is_even(const chooser *c)
{
    bool even = true;
    for (uint32_t i = 0; i < c->out->rank; i++) {
        const axis_cut *cut = &c->grid.at[i];
        even &= !c->axes[i].even || count_units(c->out->dims[i], cut->unit) % cut->parts == 0;
    }
    return even;
}

/* Judge the complete grid of n tasks.  Only a strictly cheaper one replaces the best: of equals
 * the first stays, which is the one with the fewest parts of the first axes. */
static void try_grid(chooser *c, uint64_t n)
{
    if (c->even && !is_even(c))
        return;
    double cost = grid_cost(c, n);
    if (!c->found || cost < c->best_cost) {
        c->found = true;
        c->best_cost = cost;
        c->best = c->grid;
    }
}

/* Try all grids over the axes from `axis` on; the cuts of the axes before it are fixed and make
 * n tiles.  make_cut fails for every larger number of parts once it has failed, so the loop ends
 * there. */
static void try_axes(chooser *c, uint32_t axis, uint64_t n)
{
    if (axis == c->out->rank) {
        try_grid(c, n);
        return;
    }
    uint32_t least = c->forced[axis] ? c->forced[axis] : 1;
    uint64_t most = c->forced[axis] ? c->forced[axis] : c->most / n;
    for (uint32_t parts = least; parts <= most && make_cut(c, axis, parts, &c->grid.at[axis]);
         parts++)
        try_axes(c, axis + 1, n * parts);
}

/* ---- the user's degrees ---- */

/* A degree names a kind of operator or one operator by name; one operator may be matched by
 * both, and the later degree holds. */
static bool degree_matches(const pass_degree *d, const ir_op *op)
{
    return str_is(d->match, op->def->name) || str_equal(d->match, op->name);
}

/* A degree that the user asked for must be possible for this operator; it is never rounded. */
static mpk_status check_degree(const chooser *c, const pass_degree *d)
{
    mpk_context *cx = c->s->cx;
    CHECK(cx, d->axis < c->out->rank, MPK_EARG,
          "degree of %.*s: the output of %.*s has no axis %u, it has %u", STR_ARG(d->match),
          STR_ARG(c->op->name), d->axis, c->out->rank);
    const op_axis *axis = &c->axes[d->axis];
    int64_t most = axis->grain > 0 ? count_units(c->out->dims[d->axis], axis->grain) : 1;
    CHECK(cx, d->degree >= 1 && d->degree <= most, MPK_EARG,
          "degree of %.*s: axis %u of %.*s can be cut in 1 to %lld parts, not %u",
          STR_ARG(d->match), d->axis, STR_ARG(c->op->name), (long long)most, d->degree);
    return MPK_OK;
}

/* Note in `forced` the degrees that match this operator.  MPK_EARG from check_degree. */
static mpk_status apply_degrees(chooser *c)
{
    const pass_options *o = c->s->options;
    for (uint32_t i = 0; i < o->n_degrees; i++) {
        if (!degree_matches(&o->degrees[i], c->op))
            continue;
        TRY(check_degree(c, &o->degrees[i]));
        c->forced[o->degrees[i].axis] = o->degrees[i].degree;
    }
    return MPK_OK;
}

/* A degree that names no operator is a mistake of spelling, and would otherwise pass unnoticed. */
static mpk_status check_degrees_match(pass_state *s, const ir_graph *ir)
{
    for (uint32_t i = 0; i < s->options->n_degrees; i++) {
        bool found = false;
        for (size_t o = 0; o < ir->ops.n && !found; o++)
            found = degree_matches(&s->options->degrees[i], &ir->ops.at[o]);
        CHECK(s->cx, found, MPK_EARG, "degree of %.*s: the tensor program has no such operator",
              STR_ARG(s->options->degrees[i].match));
    }
    return MPK_OK;
}

/* ---- choosing ---- */

/* Fill at_root[n] with the boxes that tile after tile writes of output number `operand`
 * (is_output) or reads of input number `operand`, mapped to the tensor that owns the storage.
 * Returns that tensor. */
static ir_tensor_id fill_root_boxes(const chooser *c, const ir_box *tiles, size_t n,
                                    uint32_t operand, bool is_output, ir_box *at_root)
{
    const ir_op *op = c->op;
    ir_tensor_id root = IR_NONE;
    for (size_t i = 0; i < n; i++) {
        ir_box box = is_output ? tiles[i] : (ir_box){0};
        if (!is_output)
            op->def->reads(c->ir, op, operand, &tiles[i], &box);
        else if (operand && op->def->writes)
            op->def->writes(c->ir, op, operand, &tiles[i], &box);
        ir_root(c->ir, is_output ? op->out[operand] : op->in[operand], &box, &root, &at_root[i]);
    }
    return root;
}

/* Does any tile read a box that another tile writes?  Quadratic in the tiles, but asked for
 * in-place results only. */
static bool boxes_meet(const ir_box *written, const ir_box *read, size_t n, uint32_t rank)
{
    for (size_t r = 0; r < n; r++)
        for (size_t w = 0; w < n && !ir_box_is_empty(&read[r], rank); w++)
            if (w != r && ir_box_overlaps(&written[w], &read[r], rank))
                return true;
    return false;
}

/* An operator that writes in place also reads the storage that it writes: *apart is false if
 * some tile would read what another tile writes, as with a shift of rows inside one tensor. */
static mpk_status check_tiles_apart(const chooser *c, const ir_box *tiles, size_t n, bool *apart)
{
    const ir_op *op = c->op;
    ir_box *written, *read;
    *apart = true;
    for (uint32_t out = 0; out < op->n_out; out++) {
        if (c->ir->tensors.at[op->out[out]].shares == IR_NONE)
            continue;
        NEW(c->s->cx, c->s->scratch, written, n);
        NEW(c->s->cx, c->s->scratch, read, n);
        ir_tensor_id root = fill_root_boxes(c, tiles, n, out, true, written);
        for (uint32_t in = 0; in < op->n_in && *apart; in++)
            if (op->in[in] != IR_NONE && fill_root_boxes(c, tiles, n, in, false, read) == root)
                *apart = !boxes_meet(written, read, n, c->ir->tensors.at[root].rank);
    }
    return MPK_OK;
}

/* Search all cuts that the record allows, within the most tasks that the options allow; the
 * result is c->best.  Tasks of uneven length get several per worker, so that a scheduler can
 * even them out; where lengths rise there are two, a short and a long one.  MPK_EARG: no grid
 * satisfies the user's degrees. */
static mpk_status choose_grid(chooser *c)
{
    const pass_options *o = c->s->options;
    bool uneven = is_uneven(c->op);
    uint32_t per_worker = uneven && !o->whole_tiles ? UNEVEN_TASKS_PER_WORKER : 1;
    if (pass_tiles_rise(o, c->ir, c->op))
        per_worker = 2;
    if (o->tasks_per_worker)
        per_worker = o->tasks_per_worker;
    if (c->op->def->axes)
        c->op->def->axes(c->ir, c->op, c->axes);
    for (uint32_t i = 0; i < c->out->rank; i++)
        if (c->axes[i].context && !o->whole_tiles && !o->tasks_per_worker)
            per_worker = CONTEXT_TASKS_PER_WORKER;
    c->most = (uint64_t)c->workers * per_worker;
    TRY(apply_degrees(c));
    c->even = can_be_even(c);
    try_axes(c, 0, 1);
    CHECK(c->s->cx, c->found, MPK_EARG, "%.*s: no cut fits the degrees that were asked for",
          STR_ARG(c->op->name));
    return MPK_OK;
}

/* Print everything that the choice depends on, as bytes; operators with equal keys get equal
 * grids.  A degree may name a single operator, whose name then is part of the key.  Addresses in
 * the key are fine: it does not outlive the pass. */
static void print_key(const chooser *c, text *key)
{
    const ir_op *op = c->op;
    text_add(key, (const char *)&op->def, sizeof op->def);
    for (uint32_t i = 0; i < op->n_in; i++) {
        bool there = op->in[i] != IR_NONE;
        const ir_tensor *t = there ? &c->ir->tensors.at[op->in[i]] : NULL;
        text_add(key, (const char *)&there, sizeof there);
        if (there) {
            text_add(key, (const char *)&t->dtype, sizeof t->dtype);
            text_add(key, (const char *)t->dims, t->rank * sizeof *t->dims);
        }
    }
    text_add(key, (const char *)c->out->dims, c->out->rank * sizeof *c->out->dims);
    for (uint32_t i = 0; i < op->def->n_attributes; i++) {
        const ir_attribute *a = &op->attributes[i];
        text_add(key, (const char *)&a->i, sizeof a->i);
        text_add(key, (const char *)&a->f, sizeof a->f);
        text_add(key, a->s.at, a->s.n);
        text_add(key, (const char *)a->ints.at, a->ints.n * sizeof *a->ints.at);
    }
    for (uint32_t i = 0; i < c->s->options->n_degrees; i++)
        if (degree_matches(&c->s->options->degrees[i], op))
            text_add(key, op->name.at, op->name.n);
}

/* The walk over all operators: the chooser for the current one, the grids that were chosen so
 * far, and the tasks made. */
typedef struct decomposer {
    chooser c;
    map seen; /* print_key -> index into grids */
    VEC(tile_grid) grids;
    VEC(tg_task) tasks;
} decomposer;

/* The grid of the current operator (d->c): that of an earlier operator with the same key, or a
 * new choice. */
static mpk_status find_grid(decomposer *d, tile_grid *out)
{
    pass_state *s = d->c.s;
    text key = {0};
    uint64_t index;
    print_key(&d->c, &key);
    char *copy = key.failed ? NULL : arena_copy(s->scratch, key.at, key.n);
    str borrowed = {copy, key.n};
    text_free(&key);
    CHECK(s->cx, copy, MPK_ENOMEM, "out of memory for the key of an operator");
    if (map_get(&d->seen, borrowed, &index)) {
        *out = d->grids.at[index];
        return MPK_OK;
    }
    TRY(choose_grid(&d->c));
    TRY(map_put(s->cx, s->scratch, &d->seen, borrowed, d->grids.n));
    PUSH(s->cx, s->scratch, &d->grids, d->c.best);
    *out = d->c.best;
    return MPK_OK;
}

/* Append a task for each tile of the grid, or one task for all if a tile would read what another
 * one writes in place, because nothing orders the tasks of one operator.  MPK_ELIMIT: the
 * numbers of tasks do not suffice. */
static mpk_status push_tiles(decomposer *d, ir_op_id op, const tile_grid *grid)
{
    const ir_tensor *out = d->c.out;
    size_t n = 1, first = d->tasks.n;
    bool apart;
    for (uint32_t i = 0; i < out->rank; i++)
        n *= grid->at[i].parts;
    ir_box *tiles;
    NEW(d->c.s->cx, d->c.s->scratch, tiles, n);
    for (size_t k = 0; k < n; k++) {
        size_t rest = k;
        for (uint32_t i = out->rank; i-- > 0; rest /= grid->at[i].parts)
            tile_range(&grid->at[i], out->dims[i], (uint32_t)(rest % grid->at[i].parts),
                       &tiles[k].lo[i], &tiles[k].hi[i]);
    }
    TRY(check_tiles_apart(&d->c, tiles, n, &apart));
    if (n > 1 && !apart) {
        n = 1;
        tiles[0] = ir_box_whole(out);
    }
    for (size_t k = 0; k < n; k++)
        PUSH(d->c.s->cx, d->c.s->scratch, &d->tasks,
             (tg_task){.op = op,
                       .box = tiles[k],
                       .worker = TG_NONE,
                       .depends = TG_NONE,
                       .triggers = TG_NONE});
    CHECK(d->c.s->cx, d->tasks.n < TG_NONE && d->tasks.n > first, MPK_ELIMIT, "too many tasks");
    return MPK_OK;
}

/* Views have no tasks: their readers depend on the writers of the storage.  An operator's tasks
 * are neighbours in the list, which tg_fill_op_tasks and assign rely on.  The graph is allocated
 * in the scratch arena.  MPK_EARG: a degree that matches no operator or is impossible;
 * MPK_EUNSUPPORTED: nothing to do. */
mpk_status pass_decompose(pass_state *s, const ir_graph *ir, tg_graph **out)
{
    decomposer d = {0};
    tg_graph *g;
    TRY(check_degrees_match(s, ir));
    uint32_t workers = s->options->n_workers / (s->options->n_peers > 1 ? s->options->n_peers : 1);
    TRY(tg_create(s->cx, s->scratch, ir, s->options->n_workers, &g));
    for (ir_op_id o = 0; o < ir->ops.n; o++) {
        const ir_op *op = &ir->ops.at[o];
        tile_grid grid;
        if (!tg_op_has_tasks(ir, op))
            continue;
        d.c = (chooser){
            .s = s, .ir = ir, .op = op, .out = &ir->tensors.at[op->out[0]], .workers = workers};
        TRY(find_grid(&d, &grid));
        TRY(push_tiles(&d, o, &grid));
    }
    CHECK(s->cx, d.tasks.n, MPK_EUNSUPPORTED, "the tensor program has no operator that does work");
    g->tasks = d.tasks.at;
    g->n_tasks = (uint32_t)d.tasks.n;
    *out = g;
    return MPK_OK;
}
