/* fuse_logits.c - the end of a step as two operators (see fuse_ops.c).
 *
 *   logits  sample(cast(linear(rms_norm(gather(x, rows), n), w)), ...)
 *           -> sample(logits(x, w, norm = n, rows = rows), ..., its peaks)
 *   parts   sample(concat(cast(linear(...)), ...), ...)
 *           -> sample(concat(logits(...), ...), ..., join_peaks(...)), each product on its peer
 *
 * `logits` gathers the wanted rows of x [T, D], normalises them and multiplies them by the
 * vocabulary w [V, D]; besides the logits [R, V] it writes their peaks, the largest logit of each
 * block of PEAKS_COLUMNS columns.  A greedy sample reads the peaks and one block instead of the
 * whole row.
 *
 * cast, gather and norm may be absent; the norm may stand in the linear already.  Maps x0 * F and
 * tanh(x0 / C) * C of the product, in this order, become factor and cap of `logits`.  Where
 * products copy boxes of x (options->even_over), a gather of more rows than that stays an operator
 * of its own: the product would otherwise gather them once for each pass over its weights.  Called
 * by fuse_ops.c with options->logits, last of its rules.
 */
#include "op/peaks.h"
#include "pass/fuse.h"
#include "shape/linear_stream_shape.h"

/* Operands and results of sample, operands of logits, by index. */
enum { SAMPLE_INPUTS = 9, SAMPLE_PEAKS = 8, SAMPLE_OUTPUTS = 3 };
enum { LOGITS_X, LOGITS_W, LOGITS_NORM, LOGITS_ROWS, LOGITS_INPUTS };

/* What makes the logits, followed back from the sampler. */
typedef struct tail {
    ir_tensor_id in[LOGITS_INPUTS]; /* operands of logits; IR_NONE: absent */
    double eps;                     /* of the norm */
    double factor, cap;             /* of the logits; cap 0: none */
    uint32_t key;                   /* the place at which the logits are made */
} tail;

/* The number C of a map "tanh(x0 / C) * C"; 0: another operator, or none. */
static double cap_of_map(const ir_op *op)
{
    static const char before[] = "tanh(x0 / ", between[] = ") * ";
    enum { BEFORE = sizeof before - 1, BETWEEN = sizeof between - 1 };
    const str expr =
        op && strcmp(op->def->name, "map") == 0 ? rewrite_attribute(op, "expr")->s : (str){0};
    const size_t n = expr.n > BEFORE + BETWEEN ? (expr.n - BEFORE - BETWEEN) / 2 : 0;
    double cap;
    if (!n || expr.n != BEFORE + BETWEEN + 2 * n || memcmp(expr.at, before, BEFORE) != 0 ||
        memcmp(expr.at + BEFORE + n, between, BETWEEN) != 0 ||
        memcmp(expr.at + BEFORE, expr.at + BEFORE + n + BETWEEN, n) != 0 ||
        !str_read_double((str){expr.at + BEFORE, n}, &cap))
        return 0;
    return cap > 0 && cap < 1e30 ? cap : 0;
}

/* The map that makes t, an f32 from an f32 that nothing else reads; NULL: another operator does. */
static const ir_op *find_map(const rewrite *w, ir_tensor_id t)
{
    const ir_op *bend = rewrite_producer(w, t, "map");
    const ir_tensor_id x = bend ? rewrite_input(w, bend, 0) : IR_NONE;
    const bool fits = bend && bend->n_in == 1 && tensor_of(w, t)->dtype == IR_F32 &&
                      tensor_of(w, x)->dtype == IR_F32 && w->uses.at[x] == 1 &&
                      !(x < w->n_source && w->is_output[x]);
    return fits ? bend : NULL;
}

/* Follow logits back over a cap, and over a factor before it; 1 and 0 where there is none. */
static ir_tensor_id unbend(const rewrite *w, ir_tensor_id logits, double *factor, double *cap)
{
    const ir_op *bend = find_map(w, logits);
    *cap = cap_of_map(bend);
    if (*cap > 0)
        logits = rewrite_input(w, bend, 0);
    bend = find_map(w, logits);
    *factor = fuse_number_of_map(bend, "x0 * ");
    if (*factor > 0)
        logits = rewrite_input(w, bend, 0);
    else
        *factor = 1;
    return logits;
}

/* The linear that makes the logits, or NULL if it cannot be replaced.  A cast to f32 in between
 * does not count as a rounding: the product is computed in f32, and `logits` writes it so. */
static const ir_op *find_product(const rewrite *w, ir_tensor_id logits)
{
    const ir_op *cast = rewrite_producer(w, logits, "cast");
    const ir_op *linear = rewrite_producer(w, cast ? rewrite_input(w, cast, 0) : logits, "linear");
    bool fits = linear && tensor_of(w, logits)->dtype == IR_F32 && may_skip_rounding(w, linear) &&
                (!cast || is_private(w, linear, 1));
    return fits ? linear : NULL;
}

/* May `logits` gather rows of x itself?  Not where products copy boxes of x; teams of warps do not
 * (device/task/linear_team.cuh). */
static bool may_gather(const rewrite *w, const ir_tensor *rows)
{
    uint32_t most = w->s->options->even_over;
    if (most && most < TEAM_MOST_TOKENS && rows->dims[1] <= TEAM_MOST_SIDE)
        most = TEAM_MOST_TOKENS;
    return !most || rows->dims[0] <= most;
}

/* Follow logits back: what bends them, the product, then a norm and a gather of rows before it,
 * each only if nothing else reads it.  What is not there stays IR_NONE.  False: there is no such
 * product, or an operand is overwritten before it. */
static bool match_tail(const rewrite *w, ir_tensor_id logits, tail *out)
{
    double factor, cap;
    const ir_op *linear = find_product(w, unbend(w, logits, &factor, &cap));
    linear_parts p;
    if (!linear)
        return false;
    fuse_read_linear(w, linear, &p);
    if (p.n_weights != 1 || p.in[B0] != IR_NONE || p.in[RESIDUAL] != IR_NONE || p.glu.n ||
        p.act.n || p.factor != 1 || p.centred || str_is(p.activations, "i8"))
        return false;
    *out = (tail){{p.in[X], p.in[W0], p.in[NORM], IR_NONE},
                  p.eps,
                  factor,
                  cap,
                  w->keys.at[tensor_of(w, logits)->producer]};
    const ir_op *norm = find_plain_norm(w, out->in[LOGITS_X]);
    if (p.in[NORM] == IR_NONE && norm && is_private(w, norm, 1) && may_skip_rounding(w, norm) &&
        rewrite_input(w, norm, 1) != IR_NONE &&
        !keeps_apart(w, tensor_of(w, norm->out[0]), p.in[W0])) {
        out->in[LOGITS_X] = rewrite_input(w, norm, 0);
        out->in[LOGITS_NORM] = rewrite_input(w, norm, 1);
        out->eps = rewrite_attribute(norm, "eps")->f;
    }
    const ir_op *gather = rewrite_producer(w, out->in[LOGITS_X], "gather");
    if (gather && is_private(w, gather, 1) && may_gather(w, tensor_of(w, gather->out[0])) &&
        !keeps_apart(w, tensor_of(w, gather->out[0]), p.in[W0]) &&
        tensor_of(w, rewrite_input(w, gather, 0))->rank == 2) {
        out->in[LOGITS_X] = rewrite_input(w, gather, 0);
        out->in[LOGITS_ROWS] = rewrite_input(w, gather, 1);
    }
    return rewrite_are_current(w, out->in, LOGITS_INPUTS, out->key);
}

/* Add the operator; made[0]: the logits [R, V], made[1]: their peaks. */
static mpk_status add_logits(rewrite *w, const tail *t, ir_tensor_id *made)
{
    return rewrite_add(w, t->key, "logits", LOGITS_INPUTS, t->in,
                       (ir_set[]){{.name = "eps", .f = t->eps},
                                  {.name = "factor", .f = t->factor},
                                  {.name = "cap", .f = t->cap},
                                  {0}},
                       made);
}

/* Can every part of the concatenated row be made by `logits`?  Each but the last must be whole
 * blocks of columns wide, since a peak that spans two parts would be of neither. */
static bool match_parts(const rewrite *w, const ir_op *concat, tail *tails)
{
    bool fits = rewrite_attribute(concat, "axis")->i == 1;
    for (uint32_t i = 0; i < concat->n_in && fits; i++) {
        const ir_tensor_id part = rewrite_input(w, concat, i);
        fits = tensor_of(w, part)->producer != IR_NONE && match_tail(w, part, &tails[i]) &&
               (i + 1 == concat->n_in || tensor_of(w, part)->dims[1] % PEAKS_COLUMNS == 0);
    }
    return fits;
}

/* Rule parts: several peers have made a part of each row, by a product of their own.  Each
 * product becomes `logits` on the same peer.  *peaks: those of the whole rows; IR_NONE: the rule
 * did not apply. */
static mpk_status apply_parts(rewrite *w, ir_op_id id, ir_tensor_id *peaks)
{
    const ir_op concat = w->g->ops.at[id];
    ir_tensor_id made[IR_MAX_OUTPUTS], all[IR_MAX_INPUTS];
    tail tails[IR_MAX_INPUTS];
    *peaks = IR_NONE;
    if (!match_parts(w, &concat, tails))
        return MPK_OK;
    for (uint32_t i = 0; i < concat.n_in; i++) {
        TRY(add_logits(w, &tails[i], made));
        rewrite_replace(w, rewrite_input(w, &concat, i), made[0]);
        all[i] = made[1];
    }
    return rewrite_add(w, w->keys.at[id], "join_peaks", concat.n_in, all, NULL, peaks);
}

/* Rule logits: whole rows by one product.  *logits and *peaks are the results of the new
 * operator; *peaks is IR_NONE if the rule did not apply, and *logits then unchanged. */
static mpk_status apply_whole(rewrite *w, ir_tensor_id *logits, ir_tensor_id *peaks)
{
    ir_tensor_id made[IR_MAX_OUTPUTS];
    tail t;
    *peaks = IR_NONE;
    if (!match_tail(w, *logits, &t))
        return MPK_OK;
    TRY(add_logits(w, &t, made));
    *logits = made[0];
    *peaks = made[1];
    return MPK_OK;
}

/* Apply one of the two rules to a sample that has no peaks yet, and add the sample again with
 * its new operands.  Other readers of the logits, if there are any, read the new ones. */
static mpk_status apply_logits(rewrite *w, ir_op_id id)
{
    ir_tensor_id chosen[IR_MAX_OUTPUTS], in[SAMPLE_INPUTS], old[SAMPLE_OUTPUTS];
    const ir_op *sample = &w->g->ops.at[id];
    if (strcmp(sample->def->name, "sample") != 0 ||
        rewrite_input(w, sample, SAMPLE_PEAKS) != IR_NONE)
        return MPK_OK;
    for (uint32_t i = 0; i < SAMPLE_INPUTS; i++)
        in[i] = rewrite_input(w, sample, i);
    memcpy(old, sample->out, sizeof old);
    const ir_tensor_id old_logits = in[0];
    if (rewrite_producer(w, old_logits, "concat"))
        TRY(apply_parts(w, tensor_of(w, old_logits)->producer, &in[SAMPLE_PEAKS]));
    else
        TRY(apply_whole(w, &in[0], &in[SAMPLE_PEAKS]));
    if (in[SAMPLE_PEAKS] == IR_NONE)
        return MPK_OK;
    TRY(rewrite_add(w, w->keys.at[id], "sample", SAMPLE_INPUTS, in, NULL, chosen));
    for (uint32_t i = 0; i < SAMPLE_OUTPUTS; i++)
        rewrite_replace(w, old[i], chosen[i]);
    if (in[0] != old_logits)
        rewrite_replace(w, old_logits, in[0]);
    return MPK_OK;
}

mpk_status fuse_logits(rewrite *w)
{
    uint32_t n = (uint32_t)w->g->ops.n;
    for (ir_op_id o = 0; o < n && w->s->options->logits && w->s->options->fusion == PASS_FUSE_FULL;
         o++)
        TRY(apply_logits(w, o));
    return MPK_OK;
}
