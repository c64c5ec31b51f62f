/* fuse_linear.c - rules that make larger linears (see fuse_ops.c).
 *
 *   glu        act(linear(x, g)) * linear(x, u)             -> linear(x, g, u) {glu = act}
 *   act        act(linear(x, w)), relaxed                   -> linear(x, w) {act = act}
 *              likewise for group_scale
 *   siblings   linear(x, a), linear(x, b), linear(x, c)     -> slices of linear(x, a, b, c)
 *   residual   linear(x, w) + r                             -> linear(x, w, residual = r)
 *   scaled     r + linear(x, w) * f, relaxed                -> the same {factor = f}
 *   norm       linear(rms_norm(x, n), w)                    -> linear(x, w, norm = n)
 *              likewise for expert_linear; the norm is folded into all of its readers or into none
 *              layer_norm(x, n, m), in calls on a GPU       -> the same {centred}, norm_bias = m
 *   post norm  rms_norm(x, n) + r                           -> rms_norm(x, n, residual = r)
 *   gated norm silu_mul(z, rms_norm(x, n))                  -> rms_norm(x, n, gate = z)
 *
 * A computed weight may not exist yet at the place of the fused linear, so rules that move a
 * linear accept constant weights only.  A rule does not apply if an operand is written in place
 * between an operator and the one that absorbs it.
 *
 * Input and output: the working copy of a program.  The rules run in the order above, because
 * each makes what the next one looks for: a gate and up product are joined before siblings could
 * take the gate alone, and a norm is folded last, when it is known which linears read it.
 * Called by fuse_ops.c.  Cost: linear in the program for each match.
 */
#include "pass/fuse.h"
#include "shape/linear_stream_shape.h"
#include "shape/linear_tile_shape.h"

/* Rows from which on a call's product has a body for many (gen/body_linear_tile.c). */
enum { FEWEST_ROWS = STREAM_MOST_TOKENS + 1 };
/* Most rows whose sums for a layer_norm each task of a product may make anew. */
enum { MOST_ROWS_ANEW = 4096 };

/* An operator taken apart, for a rule to change and fuse_add_linear to put together again. Inputs
 * are as the rewrite has them now, after replacements.
 */
void fuse_read_linear(const rewrite *w, const ir_op *op, linear_parts *out)
{
    for (uint32_t i = 0; i < LINEAR_INPUTS; i++)
        out->in[i] = rewrite_input(w, op, i);
    out->eps = rewrite_attribute(op, "eps")->f;
    out->glu = rewrite_attribute(op, "glu")->s;
    out->act = rewrite_attribute(op, "act")->s;
    out->activations = rewrite_attribute(op, "activations")->s;
    out->factor = rewrite_attribute(op, "factor")->f;
    out->centred = rewrite_attribute(op, "centred")->i;
    out->n_weights = 0;
    for (uint32_t i = 0; i < LINEAR_WEIGHTS; i++)
        out->n_weights += out->in[W0 + i] != IR_NONE;
}

void fuse_copy_name(str name, char *to)
{
    const size_t n = name.n < NAME_BYTES ? name.n : 0;
    memcpy(to, name.at ? name.at : "", n);
    to[n] = 0;
}

mpk_status fuse_add_linear(rewrite *w, uint32_t key, const linear_parts *parts, ir_tensor_id *out)
{
    char glu[NAME_BYTES], act[NAME_BYTES];
    fuse_copy_name(parts->glu, glu);
    fuse_copy_name(parts->act, act);
    return rewrite_add(
        w, key, "linear", LINEAR_INPUTS, parts->in,
        (ir_set[]){{.name = "eps", .f = parts->eps},
                   {.name = "glu", .s = glu},
                   {.name = "act", .s = act},
                   {.name = "activations", .s = str_is(parts->activations, "i8") ? "i8" : "f32"},
                   {.name = "factor", .f = parts->factor},
                   {.name = "centred", .i = parts->centred},
                   {0}},
        out);
}

/* A linear that does nothing besides the product: constant weights and biases, no activation, no
 * residual.  Only such a linear can become one of several weights of another. */
static bool is_plain(const rewrite *w, const linear_parts *p)
{
    for (uint32_t i = W0; i < NORM; i++)
        if (!is_const(w, p->in[i]))
            return false;
    return !p->glu.n && !p->act.n && p->factor == 1 && p->in[RESIDUAL] == IR_NONE;
}

/* Do two linears read the same x, with the same norm and rows? */
static bool same_x(const linear_parts *a, const linear_parts *b)
{
    return a->in[X] == b->in[X] && a->in[NORM] == b->in[NORM] &&
           a->in[NORM_BIAS] == b->in[NORM_BIAS] && a->centred == b->centred &&
           (a->in[NORM] == IR_NONE || a->eps == b->eps) &&
           str_equal(a->activations, b->activations);
}

/* Do the operands of an operator have the same values at place `key` as at the operator's own
 * place?  Asked before an operator is merged into a later one, which reads its operands at that
 * later place. */
static bool may_stand_at(const rewrite *w, const ir_op *op, uint32_t key)
{
    uint32_t own = w->keys.at[op - w->g->ops.at];
    for (uint32_t i = 0; i < op->n_in; i++)
        if (!is_const(w, rewrite_input(w, op, i)) &&
            rewrite_is_written(w, rewrite_input(w, op, i), own, key))
            return false;
    return true;
}

/* ---- rule glu ---- */

/* If the factor t of a product is act(linear(...)), return that linear and set *act; else NULL.
 * The activation must have no other reader, since it is not computed any more. */
static const ir_op *find_gate(const rewrite *w, ir_tensor_id t, const char **act)
{
    const ir_op *gelu = rewrite_producer(w, t, "gelu"), *silu = rewrite_producer(w, t, "silu");
    const ir_op *found = gelu ? gelu : silu;
    if (!found || !is_private(w, found, 1))
        return NULL;
    if (silu)
        *act = "silu";
    else
        *act = rewrite_attribute(gelu, "tanh")->i ? "gelu_tanh" : "gelu";
    return rewrite_producer(w, rewrite_input(w, found, 0), "linear");
}

/* Rule glu: silu_mul(g, u), act(g) * u and u * act(g) are the same pattern.  Both linears must
 * be private, since neither result is written any more (so they are two), and stand where their
 * operands can be read late. */
static mpk_status apply_glu(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id], *gate = NULL, *up = NULL;
    const char *act = "silu";
    bool product = strcmp(op->def->name, "mul") == 0;
    if (strcmp(op->def->name, "silu_mul") == 0)
        gate = rewrite_producer(w, rewrite_input(w, op, 0), "linear");
    else if (product)
        gate = find_gate(w, rewrite_input(w, op, 0), &act);
    if (gate)
        up = rewrite_producer(w, rewrite_input(w, op, 1), "linear");
    else if (product && (gate = find_gate(w, rewrite_input(w, op, 1), &act)))
        up = rewrite_producer(w, rewrite_input(w, op, 0), "linear");
    if (!up || !is_private(w, gate, 1) || !is_private(w, up, 1) || !may_skip_rounding(w, op) ||
        !may_stand_at(w, gate, w->keys.at[id])) /* nor may up, if it reads the same x */
        return MPK_OK;
    linear_parts a, b;
    ir_tensor_id out;
    fuse_read_linear(w, gate, &a);
    fuse_read_linear(w, up, &b);
    if (!is_plain(w, &a) || !is_plain(w, &b) || !same_x(&a, &b) || a.n_weights != 1 ||
        b.n_weights != 1 || !same_dims(tensor_of(w, gate->out[0]), tensor_of(w, up->out[0])))
        return MPK_OK;
    ir_tensor_id old = op->out[0];
    a.in[W0 + 1] = b.in[W0];
    a.in[B0 + 1] = b.in[B0];
    a.glu = str_from(act);
    TRY(fuse_add_linear(w, w->keys.at[id], &a, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* ---- rule act ---- */

/* The name, as linear's attribute `act` has it, of an activation of one operand; NULL: it is
 * none of them. */
static const char *activation_of(const rewrite *w, const ir_op *op)
{
    if (strcmp(op->def->name, "silu") == 0)
        return "silu";
    if (strcmp(op->def->name, "gelu") == 0)
        return rewrite_attribute(op, "tanh")->i ? "gelu_tanh" : "gelu";
    if (strcmp(op->def->name, "map") != 0 || op->n_in != 1 ||
        tensor_of(w, rewrite_input(w, op, 0))->dtype != tensor_of(w, op->out[0])->dtype)
        return NULL;
    static const char *const maps[][2] = {{"max(x0, 0)", "relu"}, {FUSE_QUICK_GELU, "quick_gelu"}};
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++)
        if (str_is(rewrite_attribute(op, "expr")->s, maps[i][0]))
            return maps[i][1];
    return NULL;
}

/* Do the bodies of a GPU apply it at their end?  Those for many rows of a call apply all, others
 * the activations that are also gates. */
static bool ends_with(const ir_tensor *y, const char *act)
{
    return (y->live == IR_ALL && y->dims[0] >= FEWEST_ROWS) ||
           (strcmp(act, "relu") != 0 && strcmp(act, "quick_gelu") != 0);
}

/* Rule act.  Not for a result that nothing reads, because another rule has replaced it. */
static mpk_status apply_act(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    const char *act = w->s->options->relaxed ? activation_of(w, op) : NULL;
    const ir_op *linear = act ? rewrite_producer(w, rewrite_input(w, op, 0), "linear") : NULL;
    const ir_tensor *y = tensor_of(w, op->out[0]);
    linear_parts p;
    ir_tensor_id out, old = op->out[0];
    if (!linear || !w->uses.at[old] || !is_private(w, linear, 1) || !ends_with(y, act) ||
        !may_stand_at(w, linear, w->keys.at[id]))
        return MPK_OK;
    fuse_read_linear(w, linear, &p);
    if (p.glu.n || p.act.n || p.in[RESIDUAL] != IR_NONE)
        return MPK_OK;
    p.act = str_from(act);
    TRY(fuse_add_linear(w, w->keys.at[id], &p, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* The same of group_scale, whose bodies apply them all. */
static mpk_status apply_scale_act(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    const char *act = w->s->options->relaxed ? activation_of(w, op) : NULL;
    const ir_op *scale = act ? rewrite_producer(w, rewrite_input(w, op, 0), "group_scale") : NULL;
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    ir_tensor_id in[4], out, old = op->out[0];
    if (!scale || !w->uses.at[old] || !is_private(w, scale, 1) ||
        rewrite_attribute(scale, "act")->s.n || !may_stand_at(w, scale, w->keys.at[id]))
        return MPK_OK;
    for (uint32_t i = 0; i < 4; i++)
        in[i] = rewrite_input(w, scale, i);
    TRY(rewrite_copy_attributes(w, scale, sets));
    for (ir_set *s = sets; s->name; s++)
        if (strcmp(s->name, "act") == 0)
            s->s = act;
    TRY(rewrite_add(w, w->keys.at[id], "group_scale", 4, in, sets, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* ---- rule siblings ---- */

/* Substitute columns first ... first + columns of `old` - 1 of the wide linear, as a view, for
 * `old`. */
static mpk_status replace_by_slice(rewrite *w, uint32_t key, ir_tensor_id wide, int64_t first,
                                   ir_tensor_id old)
{
    const ir_tensor *t = tensor_of(w, old);
    int64_t starts[2] = {0, first}, stops[2] = {t->dims[0], first + t->dims[1]};
    ir_tensor_id out;
    TRY(rewrite_add(w, key, "slice", 1, &wide,
                    (ir_set[]){{.name = "starts", .ints = starts, .n_ints = 2},
                               {.name = "stops", .ints = stops, .n_ints = 2},
                               {0}},
                    &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* List the linears from `id` on that can become one linear with it, at most LINEAR_WEIGHTS
 * weights together, and gather their parts in *wide.  Only the next WINDOW operators are
 * searched: siblings stand close together, and a search to the end would make the pass
 * quadratic.  Returns how many are listed, `id` first; 0: it cannot be one of several. */
static uint32_t find_siblings(const rewrite *w, ir_op_id id, uint32_t n_ops, ir_op_id *list,
                              linear_parts *wide)
{
    enum { WINDOW = 32 };
    const ir_op *first = &w->g->ops.at[id];
    uint32_t n = 0;
    for (ir_op_id o = id; o < n_ops && o < id + WINDOW; o++) {
        const ir_op *op = &w->g->ops.at[o];
        linear_parts p;
        bool fits = strcmp(op->def->name, "linear") == 0 && w->uses.at[op->out[0]] &&
                    !w->is_output[op->out[0]];
        if (fits) {
            fuse_read_linear(w, op, &p);
            fits = is_plain(w, &p) &&
                   (!n || (same_x(wide, &p) && op->peer == first->peer &&
                           wide->n_weights + p.n_weights <= LINEAR_WEIGHTS &&
                           tensor_of(w, op->out[0])->dtype == tensor_of(w, first->out[0])->dtype));
        }
        if (!fits && o == id)
            return 0;
        if (!fits)
            continue;
        for (uint32_t i = 0; n && i < p.n_weights; i++) {
            wide->in[W0 + wide->n_weights + i] = p.in[W0 + i];
            wide->in[B0 + wide->n_weights + i] = p.in[B0 + i];
        }
        if (n)
            wide->n_weights += p.n_weights;
        else
            *wide = p;
        list[n++] = o;
    }
    return n;
}

/* Rule siblings: the wide linear stands at the place of the first one, the slices right after
 * it, before any reader. */
static mpk_status apply_siblings(rewrite *w, ir_op_id id, uint32_t n_ops)
{
    ir_op_id list[LINEAR_WEIGHTS];
    linear_parts wide;
    ir_tensor_id out;
    uint32_t n = strcmp(w->g->ops.at[id].def->name, "linear") == 0
                     ? find_siblings(w, id, n_ops, list, &wide)
                     : 0;
    if (n < 2)
        return MPK_OK;
    TRY(fuse_add_linear(w, w->keys.at[id], &wide, &out));
    int64_t first = 0;
    for (uint32_t i = 0; i < n; i++) {
        ir_tensor_id old = w->g->ops.at[list[i]].out[0];
        int64_t columns = tensor_of(w, old)->dims[1];
        TRY(replace_by_slice(w, w->keys.at[id] + 1, out, first, old));
        first += columns;
    }
    return MPK_OK;
}

/* ---- rule residual ---- */

/* Rule residual: linear(x) + r as one operator, whichever side of the sum the product is on.
 * The linear must have no other reader, because its own result is not written any more, and its
 * operands must still have their values at the sum. */
static mpk_status apply_residual(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "add") != 0 || !may_skip_rounding(w, op))
        return MPK_OK;
    for (uint32_t side = 0; side < 2; side++) {
        ir_tensor_id r = rewrite_input(w, op, !side), old = op->out[0], out;
        const ir_op *linear = rewrite_producer(w, rewrite_input(w, op, side), "linear");
        linear_parts p;
        if (!linear || !is_private(w, linear, 1) || !may_stand_at(w, linear, w->keys.at[id]))
            continue;
        fuse_read_linear(w, linear, &p);
        if (p.in[RESIDUAL] != IR_NONE || p.act.n ||
            !same_dims(tensor_of(w, r), tensor_of(w, old)) ||
            !same_dims(tensor_of(w, linear->out[0]), tensor_of(w, old)))
            continue;
        p.in[RESIDUAL] = r;
        TRY(fuse_add_linear(w, w->keys.at[id], &p, &out));
        rewrite_replace(w, old, out);
        return MPK_OK;
    }
    return MPK_OK;
}

double fuse_number_of_map(const ir_op *op, const char *before)
{
    const size_t n = strlen(before);
    const str expr =
        op && strcmp(op->def->name, "map") == 0 ? rewrite_attribute(op, "expr")->s : (str){0};
    double number;
    if (expr.n <= n || memcmp(expr.at, before, n) != 0 ||
        !str_read_double((str){expr.at + n, expr.n - n}, &number))
        return 0;
    return number > 0 && number < 1e30 ? number : 0;
}

/* Rule scaled.  Not with a bias or a norm: the factor would be of the bias too, and bodies apply it
 * in place of a norm's.  Only relaxed, because no fast body of a CPU takes factors. */
static mpk_status apply_scaled(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    /* as models scale what a layer adds */
    const double factor = w->s->options->relaxed ? fuse_number_of_map(op, "x0 + x1 * ") : 0;
    const ir_op *linear =
        factor != 0 ? rewrite_producer(w, rewrite_input(w, op, 1), "linear") : NULL;
    const ir_tensor_id r = rewrite_input(w, op, 0), old = op->out[0];
    linear_parts p;
    ir_tensor_id out;
    if (!linear || !is_private(w, linear, 1) || !may_stand_at(w, linear, w->keys.at[id]))
        return MPK_OK;
    fuse_read_linear(w, linear, &p);
    if (!is_plain(w, &p) || p.in[B0] != IR_NONE || p.in[B0 + 1] != IR_NONE ||
        p.in[B0 + 2] != IR_NONE || p.in[NORM] != IR_NONE ||
        !same_dims(tensor_of(w, r), tensor_of(w, old)) ||
        !same_dims(tensor_of(w, linear->out[0]), tensor_of(w, old)))
        return MPK_OK;
    p.in[RESIDUAL] = r;
    p.factor = factor;
    TRY(fuse_add_linear(w, w->keys.at[id], &p, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* ---- rule norm ---- */

/* The longest row (all elements of x) that every task of a linear may normalise again by itself.
 * Computing the default takes about as long as waiting for an event, which is what folding
 * saves. */
static int64_t most_norm_elements(const rewrite *w)
{
    enum { MOST_NORM_ELEMENTS = 16384 };
    return w->s->options->norm_elements ? w->s->options->norm_elements : MOST_NORM_ELEMENTS;
}

enum { EXPERT_W0 = 2, EXPERT_NORM = 6 }; /* operands of expert_linear */

/* The index of the operand `norm` of an operator that can normalise its x, if it is absent; 0 if
 * the operator has no such operand, or it is taken, or the result is not read any more. */
static uint32_t free_norm(const rewrite *w, const ir_op *op)
{
    uint32_t at = strcmp(op->def->name, "linear") == 0 ? NORM : 0;
    if (strcmp(op->def->name, "expert_linear") == 0 &&
        tensor_of(w, rewrite_input(w, op, X))->rank == 2)
        at = EXPERT_NORM;
    return at && w->uses.at[op->out[0]] && rewrite_input(w, op, at) == IR_NONE ? at : 0;
}

/* Would folding a norm of x leave a fast body?  Bodies of a GPU that fold a norm take bf16
 * alone; other dtypes would get the slowest one.  A model's steps (live tokens) fold it in any
 * dtype, so that their bits do not depend on the target. */
static bool has_fast_fold(const rewrite *w, const ir_tensor *x)
{
    return !w->s->options->relaxed || x->live != IR_ALL || x->dtype == IR_BF16;
}

/* The layer_norm that makes x of a linear, if one body for many rows computes both
 * (gen/body_linear_tile.c): no other takes rows that are centred.  Of many rows only if the product
 * that makes x can leave their sums: else each task of this one sums x again, which takes as long
 * as the layer_norm: of 12,000 rows of 512 that takes 28 us, and the product was 25 us slower. */
static const ir_op *find_centred_norm(const rewrite *w, const ir_op *op)
{
    const ir_op *norm = rewrite_producer(w, rewrite_input(w, op, X), "layer_norm");
    if (!norm || strcmp(op->def->name, "linear") != 0 || !w->s->options->relaxed ||
        !is_const(w, rewrite_input(w, norm, NORM_WEIGHT + 1)) ||
        rewrite_attribute(op, "factor")->f != 1)
        return NULL;
    const ir_tensor *x = tensor_of(w, rewrite_input(w, norm, X));
    const ir_tensor_id made = rewrite_before_views(w, rewrite_input(w, norm, X));
    bool fits = x->live == IR_ALL && x->dtype == IR_BF16 && x->rank == 2 &&
                x->dims[0] >= FEWEST_ROWS && x->dims[0] <= tile_most_summed(1) &&
                (x->dims[0] <= MOST_ROWS_ANEW || rewrite_producer(w, made, "linear")) &&
                x->dims[1] % 8 == 0 && lies_dense(x);
    for (uint32_t i = 0; i < LINEAR_WEIGHTS && fits; i++) {
        const ir_tensor_id weight = rewrite_input(w, op, W0 + i);
        fits =
            weight == IR_NONE || (is_const(w, weight) && tensor_of(w, weight)->dtype == IR_BF16 &&
                                  lies_dense(tensor_of(w, weight)));
    }
    return fits ? norm : NULL;
}

/* The norm that makes x of operator `id`, if it may be folded into it; NULL otherwise. */
static const ir_op *find_norm(const rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id], *norm = NULL;
    if (free_norm(w, op)) {
        norm = find_plain_norm(w, rewrite_input(w, op, X));
        norm = norm ? norm : find_centred_norm(w, op);
    }
    if (!norm || !may_skip_rounding(w, norm) || rewrite_input(w, norm, 1) == IR_NONE ||
        !is_const(w, rewrite_input(w, norm, 1)) || !has_fast_fold(w, tensor_of(w, norm->out[0])) ||
        ir_elements(tensor_of(w, norm->out[0])) > most_norm_elements(w) ||
        (strcmp(op->def->name, "linear") == 0 &&
         keeps_apart(w, tensor_of(w, norm->out[0]), rewrite_input(w, op, W0))) ||
        (strcmp(op->def->name, "expert_linear") == 0 &&
         keeps_apart_of_experts(w, tensor_of(w, norm->out[0]), rewrite_input(w, op, EXPERT_W0))) ||
        !may_stand_at(w, norm, w->keys.at[id]))
        return NULL;
    return norm;
}

/* Substitute product(x, norm = weight) for product(norm(x, weight)): the same inputs but for x and
 * the norm's weight and bias, the same attributes but for eps and what kind of norm it is. */
static mpk_status fold_norm(rewrite *w, ir_op_id id, const ir_op *norm)
{
    const ir_op *op = &w->g->ops.at[id];
    ir_tensor_id in[IR_MAX_INPUTS], out, old = op->out[0];
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    for (uint32_t i = 0; i < op->def->n_in; i++)
        in[i] = rewrite_input(w, op, i);
    in[X] = rewrite_input(w, norm, 0);
    in[free_norm(w, op)] = rewrite_input(w, norm, NORM_WEIGHT);
    const bool centred = strcmp(norm->def->name, "layer_norm") == 0;
    if (centred)
        in[NORM_BIAS] = rewrite_input(w, norm, NORM_WEIGHT + 1);
    TRY(rewrite_copy_attributes(w, op, sets));
    for (uint32_t i = 0; sets[i].name; i++) {
        if (strcmp(sets[i].name, "eps") == 0)
            sets[i].f = rewrite_attribute(norm, "eps")->f;
        if (strcmp(sets[i].name, "centred") == 0)
            sets[i].i = centred;
    }
    TRY(rewrite_add(w, w->keys.at[id], op->def->name, op->def->n_in, in, sets, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* Rule norm.  Fold a norm into all of its readers or into none: otherwise it would still have to
 * be computed for the rest. n_fit counts the readers that fit; while it equals the number of all
 * readers left, each of them is rewritten. */
static mpk_status fold_norms(rewrite *w)
{
    /* [tensors] readers into which this norm can be folded */
    uint32_t n = (uint32_t)w->g->ops.n, *n_fit;
    const ir_op *norm;
    NEW(w->s->cx, w->s->scratch, n_fit, w->g->tensors.n);
    for (ir_op_id o = 0; o < n; o++)
        if ((norm = find_norm(w, o)))
            n_fit[norm->out[0]]++;
    for (ir_op_id o = 0; o < n; o++) {
        norm = find_norm(w, o);
        if (!norm || !is_private(w, norm, n_fit[norm->out[0]]))
            continue;
        n_fit[norm->out[0]]--;
        TRY(fold_norm(w, o, norm));
    }
    return MPK_OK;
}

/* ---- rule post norm ---- */

/* Rule post norm: rms_norm(x) + r as one operator, whichever side of the sum the norm is on, as
 * Gemma 2, GLM-4 and OLMo 2 end attention and MLP. */
static mpk_status apply_post_norm(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    /* a product may have taken the sum */
    if (strcmp(op->def->name, "add") != 0 || w->stands_for.at[op->out[0]] != op->out[0])
        return MPK_OK;
    for (uint32_t side = 0; side < 2; side++) {
        ir_tensor_id r = rewrite_input(w, op, !side), old = op->out[0], out;
        const ir_op *norm = find_plain_norm(w, rewrite_input(w, op, side));
        if (!norm || !is_private(w, norm, 1) || !may_skip_rounding(w, norm) ||
            !may_stand_at(w, norm, w->keys.at[id]) ||
            !same_dims(tensor_of(w, r), tensor_of(w, old)) ||
            !same_dims(tensor_of(w, norm->out[0]), tensor_of(w, old)))
            continue;
        const ir_tensor_id in[NORM_INPUTS] = {rewrite_input(w, norm, X),
                                              rewrite_input(w, norm, NORM_WEIGHT), r, IR_NONE};
        ir_set sets[IR_MAX_ATTRIBUTES + 1];
        TRY(rewrite_copy_attributes(w, norm, sets));
        TRY(rewrite_add(w, w->keys.at[id], "rms_norm", NORM_INPUTS, in, sets, &out));
        rewrite_replace(w, old, out);
        return MPK_OK;
    }
    return MPK_OK;
}

/* ---- rule gated norm ---- */

/* Rule gated norm: silu(z) * rms_norm(x) as one operator.  So linear attention ends, where a norm
 * is of each head [T, H, V] and z of all [T, H V]: a reshape of the norm's result may stand between
 * both, and z is reshaped instead. */
static mpk_status apply_gated_norm(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "silu_mul") != 0 || w->stands_for.at[op->out[0]] != op->out[0])
        return MPK_OK;
    const uint32_t key = w->keys.at[id];
    const ir_tensor_id old = op->out[0], z = rewrite_input(w, op, 0), up = rewrite_input(w, op, 1);
    const ir_op *flat = rewrite_producer(w, up, "reshape");
    const ir_op *norm = find_plain_norm(w, flat ? rewrite_input(w, flat, 0) : up);
    if (!norm || !is_private(w, norm, 1) || (flat && !is_private(w, flat, 1)) ||
        !may_skip_rounding(w, norm) || !may_stand_at(w, norm, key) ||
        !same_dims(tensor_of(w, up), tensor_of(w, old)) ||
        !same_dims(tensor_of(w, z), tensor_of(w, old)))
        return MPK_OK;
    const ir_tensor heads = *tensor_of(w, norm->out[0]), whole = *tensor_of(w, old);
    ir_tensor_id out, in[NORM_INPUTS] = {rewrite_input(w, norm, X),
                                         rewrite_input(w, norm, NORM_WEIGHT), IR_NONE, z};
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    TRY(rewrite_copy_attributes(w, norm, sets));
    if (flat) /* adding moves the operators: neither op nor norm is looked at again */
        TRY(rewrite_reshape(w, key, z, heads.rank, heads.dims, &in[NORM_GATE]));
    TRY(rewrite_add(w, key, "rms_norm", NORM_INPUTS, in, sets, &out));
    if (flat)
        TRY(rewrite_reshape(w, key, out, whole.rank, whole.dims, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* ---- all of them ---- */

/* Apply the rules in their order.  All but the last walk over the operators that the copy had at
 * the beginning (the first n) and find what other rules have added through operands, which
 * rewrite_input resolves; norms are folded into added linears too. */
mpk_status fuse_linears(rewrite *w)
{
    pass_fusion level = w->s->options->fusion;
    uint32_t n = (uint32_t)w->g->ops.n;
    for (ir_op_id o = 0; o < n && level == PASS_FUSE_FULL; o++)
        TRY(apply_glu(w, o));
    for (ir_op_id o = 0; o < n && level == PASS_FUSE_FULL; o++)
        TRY(apply_act(w, o));
    for (ir_op_id o = 0; o < n && level == PASS_FUSE_FULL; o++)
        TRY(apply_scale_act(w, o));
    for (ir_op_id o = 0; o < n; o++)
        TRY(apply_siblings(w, o, n));
    for (ir_op_id o = 0; o < n; o++)
        TRY(apply_residual(w, o));
    if (level != PASS_FUSE_FULL)
        return MPK_OK;
    for (ir_op_id o = 0; o < n; o++)
        TRY(apply_scaled(w, o));
    TRY(fold_norms(w));
    for (ir_op_id o = 0; o < n; o++)
        TRY(apply_post_norm(w, o));
    for (ir_op_id o = 0; o < n; o++)
        TRY(apply_gated_norm(w, o));
    return MPK_OK;
}
