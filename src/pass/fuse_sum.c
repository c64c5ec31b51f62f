/* fuse_sum.c - the rules for sums over peers (see fuse_ops.c).
 *
 *   sum        add_parts(a, b, ...) + r                      -> add_parts(a, b, ..., r)
 *   terms      linear(add_parts(a, b, ...), w, norm = n)     -> sum_linear(a, w, b, ..., norm = n)
 *                                                               and the sum, for its other readers
 *
 * add_parts adds the terms that several peers have made (pass shard).  A residual added in the
 * same place saves one operator and one event between two products.  In steps of few tokens the
 * first product that reads the sum adds the terms itself (options->sum_terms), which saves the
 * trip from the tasks that add to those that multiply.  Called by fuse_ops.c.
 */
#include "pass/fuse.h"
#include "shape/linear_stream_shape.h"

/* On GPUs an operator has 15 operands at most (RT_PACKED). */
enum { MOST_PARTS = 14 };
/* A product of fewer columns than this part of those of x is narrow. */
enum { NARROW = 8 };

/* Rule sum, whichever side of the addition the sum is on.  The terms must not be overwritten
 * before the addition. */
static mpk_status apply_sum(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "add") != 0)
        return MPK_OK;
    for (uint32_t side = 0; side < 2; side++) {
        const ir_op *sum = rewrite_producer(w, rewrite_input(w, op, side), "add_parts");
        ir_tensor_id in[MOST_PARTS], r = rewrite_input(w, op, !side), old = op->out[0], out;
        if (!sum || !is_private(w, sum, 1) || !may_skip_rounding(w, sum) ||
            sum->n_in >= MOST_PARTS || !same_dims(tensor_of(w, r), tensor_of(w, sum->out[0])))
            continue;
        for (uint32_t i = 0; i < sum->n_in; i++)
            in[i] = rewrite_input(w, sum, i);
        if (!rewrite_are_current(w, in, sum->n_in, w->keys.at[id]))
            continue;
        in[sum->n_in] = r;
        TRY(rewrite_add(w, w->keys.at[id], "add_parts", sum->n_in + 1, in, NULL, &out));
        rewrite_replace(w, old, out);
        return MPK_OK;
    }
    return MPK_OK;
}

/* May a linear read these terms of its x instead of the sum?  It must do nothing that sum_linear
 * does not, and be one whose body adds few terms of few values (gen/body_linear_stream.c).  Few
 * tasks would make the whole sum of a narrow one, a router, whose readers then wait for it. */
static bool takes_terms(const rewrite *w, const linear_parts *p, const ir_op *sum, int64_t columns)
{
    const ir_tensor *x = tensor_of(w, sum->out[0]);
    bool fits = sum->n_in > 1 && sum->n_in <= STREAM_MOST_TERMS && x->rank == 2 &&
                (x->dtype == IR_BF16 || x->dtype == IR_F16) && x->dims[1] % 8 == 0 &&
                columns > x->dims[1] / NARROW && stream_adds_terms(x->dims[0], x->dims[1]);
    for (uint32_t i = 0; i < p->n_weights && fits; i++) {
        const ir_tensor *weight = tensor_of(w, p->in[W0 + i]);
        fits = weight->kind == IR_CONST && weight->dtype == x->dtype;
    }
    return fits && !p->act.n && p->factor == 1 && !p->centred && p->in[RESIDUAL] == IR_NONE &&
           !str_is(p->activations, "i8");
}

/* Is the operator the first that reads tensor t? */
static bool reads_first(const rewrite *w, ir_op_id id, ir_tensor_id t)
{
    for (ir_op_id o = 0; o < w->g->ops.n; o++)
        for (uint32_t i = 0; i < w->g->ops.at[o].n_in && w->keys.at[o] < w->keys.at[id]; i++)
            if (rewrite_input(w, &w->g->ops.at[o], i) == t)
                return false;
    return true;
}

/* Rule terms.  All other readers of the sum come after the product, which makes it too. */
static mpk_status apply_terms(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id],
                *sum = strcmp(op->def->name, "linear") == 0
                           ? rewrite_producer(w, rewrite_input(w, op, X), "add_parts")
                           : NULL;
    linear_parts p;
    ir_tensor_id in[STREAM_FIRST_TERM + STREAM_MOST_TERMS], old[] = {op->out[0], IR_NONE},
                                                            out[IR_MAX_OUTPUTS];
    ir_set sets[] = {{.name = "eps"}, {.name = "glu"}, {0}};
    char glu[NAME_BYTES];
    if (!sum)
        return MPK_OK;
    fuse_read_linear(w, op, &p);
    if (!takes_terms(w, &p, sum, tensor_of(w, old[0])->dims[1]) || sum->peer != op->peer ||
        !reads_first(w, id, sum->out[0]))
        return MPK_OK;
    const uint32_t n = STREAM_FIRST_TERM + sum->n_in - 1;
    for (uint32_t i = 0; i < n; i++)
        in[i] = i < STREAM_FIRST_TERM ? p.in[i] : rewrite_input(w, sum, i - STREAM_FIRST_TERM + 1);
    in[X] = rewrite_input(w, sum, 0);
    if (!rewrite_are_current(w, in, n, w->keys.at[id]))
        return MPK_OK;
    old[1] = sum->out[0];
    fuse_copy_name(p.glu, glu);
    sets[0].f = p.eps;
    sets[1].s = glu;
    TRY(rewrite_add(w, w->keys.at[id], "sum_linear", n, in, sets, out));
    rewrite_replace(w, old[0], out[0]);
    rewrite_replace(w, old[1], out[1]);
    return MPK_OK;
}

/* Terms last, when residuals are among them. */
mpk_status fuse_sums(rewrite *w)
{
    if (w->s->options->fusion != PASS_FUSE_FULL)
        return MPK_OK;
    for (ir_op_id o = 0, n = (ir_op_id)w->g->ops.n; o < n; o++)
        TRY(apply_sum(w, o));
    for (ir_op_id o = 0, n = (ir_op_id)w->g->ops.n; o < n && w->s->options->sum_terms; o++)
        TRY(apply_terms(w, o));
    return MPK_OK;
}
