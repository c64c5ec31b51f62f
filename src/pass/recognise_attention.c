/* recognise_attention.c - rules that find rotation and grouped heads among small operators.
 *
 * Input and output: the working copy of recognise.c, which calls them after its first round:
 *
 *   rotate  x * cos + concat(-x2, x1) * sin, x1, x2 the halves of rows of x -> rotate(x, cos, sin)
 *   partly  concat(rotate(first entries of x), the others) -> rotate(x, cos, sin)
 *   heads   sdpa(q, k, v) of heads repeated by expand -> sdpa of the heads themselves
 *
 * All of them keep the bits.  These are the forms in which Transformers writes rotary embedding
 * and grouped-query attention; without `heads` each KV head would be read once for every query
 * head.  Cost: linear in the program, but for the search for writes (rewrite_are_current), which
 * is linear for each match.
 */
#include "pass/fuse.h"

/* Is t the entries first .. end - 1 of the last axis of *x? */
static bool is_slice(const rewrite *w, ir_tensor_id t, int64_t first, int64_t end, ir_tensor_id *x)
{
    const ir_op *slice = rewrite_producer(w, t, "slice");
    if (!slice)
        return false;
    *x = rewrite_input(w, slice, 0);
    const ir_tensor *from = tensor_of(w, *x), *to = tensor_of(w, t);
    const ir_attribute *starts = rewrite_attribute(slice, "starts"),
                       *steps = rewrite_attribute(slice, "steps");
    for (uint32_t i = 0; i < steps->ints.n; i++)
        if (steps->ints.at[i] != 1)
            return false;
    for (uint32_t i = 0; i + 1 < from->rank; i++)
        if (to->dims[i] != from->dims[i])
            return false;
    uint32_t last = from->rank - 1;
    return from->rank > 0 && starts->ints.at[last] == first && first + to->dims[last] == end;
}

/* Is t concat(a, b) along the last axis? */
static bool is_pair(const rewrite *w, ir_tensor_id t, ir_tensor_id *a, ir_tensor_id *b)
{
    const ir_op *concat = rewrite_producer(w, t, "concat");
    if (!concat || concat->n_in != 2 ||
        rewrite_attribute(concat, "axis")->i != (int64_t)tensor_of(w, t)->rank - 1)
        return false;
    *a = rewrite_input(w, concat, 0);
    *b = rewrite_input(w, concat, 1);
    return true;
}

/* Is t = concat(-x2, x1), where x1 and x2 are the two halves of each row of *x? */
static bool is_turned(const rewrite *w, ir_tensor_id t, ir_tensor_id *x)
{
    const ir_tensor *y = tensor_of(w, t);
    ir_tensor_id low, high, other;
    if (!y->rank || !is_pair(w, t, &high, &low))
        return false;
    int64_t n = y->dims[y->rank - 1];
    const ir_op *minus = rewrite_producer(w, high, "map");
    return minus && minus->n_in == 1 && str_is(rewrite_attribute(minus, "expr")->s, "-x0") &&
           is_slice(w, low, 0, n / 2, x) &&
           is_slice(w, rewrite_input(w, minus, 0), n / 2, n, &other) && *x == other &&
           tensor_of(w, *x)->dims[y->rank - 1] == n && n % 2 == 0;
}

/* May t be the table of a rotation of x: its last axis as long as x's, the others broadcast? */
static bool is_table(const rewrite *w, ir_tensor_id t, const ir_tensor *x)
{
    const ir_tensor *table = tensor_of(w, t);
    return table->rank > 0 && table->rank <= x->rank &&
           table->dims[table->rank - 1] == x->dims[x->rank - 1] && table->live == IR_ALL;
}

/* Is t the product of a tensor and a table?  The tensor must be *x if that is given; if *x is
 * IR_NONE it must be turned x (see is_turned), and *x becomes x.  True: *table is set. */
static bool is_product(const rewrite *w, ir_tensor_id t, ir_tensor_id *x, ir_tensor_id *table)
{
    const ir_op *mul = rewrite_producer(w, t, "mul");
    for (uint32_t side = 0; mul && side < 2; side++) {
        ir_tensor_id a = rewrite_input(w, mul, side), turned;
        *table = rewrite_input(w, mul, !side);
        if (*x == IR_NONE ? !is_turned(w, a, &turned) : a != *x)
            continue;
        turned = *x == IR_NONE ? turned : *x;
        if (!same_dims(tensor_of(w, t), tensor_of(w, turned)) ||
            !is_table(w, *table, tensor_of(w, turned)))
            continue;
        *x = turned;
        return true;
    }
    return false;
}

/* Rule rotate: the side with the turned x is looked for first, since it says what x is. */
static mpk_status apply_rotate(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "add") != 0 || tensor_of(w, op->out[0])->live != IR_ALL)
        return MPK_OK;
    for (uint32_t side = 0; side < 2; side++) {
        ir_tensor_id in[3] = {IR_NONE}, old = op->out[0], out;
        if (!is_product(w, rewrite_input(w, op, side), &in[0], &in[2]) ||
            !is_product(w, rewrite_input(w, op, !side), &in[0], &in[1]) ||
            !same_dims(tensor_of(w, in[0]), tensor_of(w, old)) ||
            !is_small_float(tensor_of(w, old)->dtype) ||
            tensor_of(w, in[1])->rank != tensor_of(w, in[2])->rank ||
            !rewrite_are_current(w, in, 3, w->keys.at[id]))
            continue;
        TRY(rewrite_add(w, w->keys.at[id], "rotate", 3, in, NULL, &out));
        rewrite_replace(w, old, out);
        return MPK_OK;
    }
    return MPK_OK;
}

/* Rule partly: models that rotate only the first n entries of a head.  rotate leaves entries
 * beyond its table's as they are. */
static mpk_status apply_partly(rewrite *w, ir_op_id id)
{
    ir_tensor_id old = w->g->ops.at[id].out[0], turned, rest, x, same, out;
    if (!is_pair(w, old, &turned, &rest))
        return MPK_OK;
    const ir_op *rotate = rewrite_producer(w, turned, "rotate");
    const ir_tensor *y = tensor_of(w, old);
    int64_t n = tensor_of(w, turned)->dims[y->rank - 1];
    if (!rotate ||
        tensor_of(w, rewrite_input(w, rotate, 1))
                ->dims[tensor_of(w, rewrite_input(w, rotate, 1))->rank - 1] != n ||
        !is_slice(w, rewrite_input(w, rotate, 0), 0, n, &x) ||
        !is_slice(w, rest, n, y->dims[y->rank - 1], &same) || x != same ||
        !same_dims(tensor_of(w, x), y))
        return MPK_OK;
    ir_tensor_id in[3] = {x, rewrite_input(w, rotate, 1), rewrite_input(w, rotate, 2)};
    if (!rewrite_are_current(w, in, 3, w->keys.at[id]))
        return MPK_OK;
    TRY(rewrite_add(w, w->keys.at[id], "rotate", 3, in, NULL, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* ---- rule heads ---- */

/* The tensor [B, G, 1, L, K] whose heads t [B, G n, L, K] repeats n times each, by expand to [B,
 * G, n, L, K] and reshape; IR_NONE if t is made in another way. */
static ir_tensor_id find_repeated(const rewrite *w, ir_tensor_id t)
{
    const ir_op *reshape = rewrite_producer(w, t, "reshape");
    const ir_op *expand =
        reshape ? rewrite_producer(w, rewrite_input(w, reshape, 0), "expand") : NULL;
    if (!expand)
        return IR_NONE;
    ir_tensor_id in = rewrite_input(w, expand, 0);
    const ir_tensor *a = tensor_of(w, in), *b = tensor_of(w, expand->out[0]), *y = tensor_of(w, t);
    bool fits = a->rank == 5 && b->rank == 5 && y->rank == 4 && a->dims[2] == 1 &&
                y->dims[0] == b->dims[0] && y->dims[1] == b->dims[1] * b->dims[2] &&
                y->dims[2] == b->dims[3] && y->dims[3] == b->dims[4];
    for (uint32_t i = 0; i < 5; i++)
        fits = fits && (i == 2 || a->dims[i] == b->dims[i]);
    return fits ? in : IR_NONE;
}

/* Rule heads, for both k and v or not at all.  sdpa maps query head h to KV head h / (H / G) by
 * itself. */
static mpk_status apply_heads(rewrite *w, ir_op_id id)
{
    const ir_op op = w->g->ops.at[id];
    ir_tensor_id in[IR_MAX_INPUTS], out;
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    if (strcmp(op.def->name, "sdpa") != 0)
        return MPK_OK;
    for (uint32_t i = 0; i < op.n_in; i++)
        in[i] = rewrite_input(w, &op, i);
    for (uint32_t i = 1; i < 3; i++)
        if ((in[i] = find_repeated(w, in[i])) == IR_NONE)
            return MPK_OK;
    if (tensor_of(w, in[1])->dims[1] != tensor_of(w, in[2])->dims[1] ||
        !rewrite_are_current(w, in, op.n_in, w->keys.at[id]))
        return MPK_OK;
    for (uint32_t i = 1; i < 3; i++) {
        const ir_tensor *x = tensor_of(w, in[i]);
        int64_t dims[4] = {x->dims[0], x->dims[1], x->dims[3], x->dims[4]};
        TRY(rewrite_reshape(w, w->keys.at[id], in[i], 4, dims, &in[i]));
    }
    TRY(rewrite_copy_attributes(w, &op, sets));
    TRY(rewrite_add(w, w->keys.at[id], "sdpa", op.n_in, in, sets, &out));
    rewrite_replace(w, op.out[0], out);
    return MPK_OK;
}

mpk_status recognise_attention(rewrite *w)
{
    uint32_t n = (uint32_t)w->g->ops.n;
    for (ir_op_id o = 0; o < n; o++) {
        TRY(apply_rotate(w, o));
        TRY(apply_partly(w, o));
        TRY(apply_heads(w, o));
    }
    return MPK_OK;
}
