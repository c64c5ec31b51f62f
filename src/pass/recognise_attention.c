/* recognise_attention.c - rules that find attention, rotation and grouped heads among small
 * operators.
 *
 * Input and output: the working copy of recognise.c, which calls them after its first round:
 *
 *   softmax softmax(c q k^T + mask) v of batches of matrices -> sdpa(q, k, v, mask); relaxed only
 *   rotate  x * cos + concat(-x2, x1) * sin, x1, x2 the halves of rows of x -> rotate(x, cos, sin)
 *   partly  concat(rotate(first entries of x), the others) -> rotate(x, cos, sin)
 *   heads   sdpa(q, k, v) of heads repeated by expand -> sdpa of the heads themselves
 *
 * All but the first keep the bits.  These are the forms in which torchvision and Transformers
 * write attention, rotary embedding and grouped-query attention; without `heads` each KV head
 * would be read once for every query head.  Cost: linear in the program, but for the search for
 * writes (rewrite_are_current), which is linear for each match.
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
static bool is_half_turn(const rewrite *w, ir_tensor_id t, ir_tensor_id *x)
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
 * IR_NONE it must be half turn of x (see is_half_turn), and *x becomes x.  True: *table is set. */
static bool is_product(const rewrite *w, ir_tensor_id t, ir_tensor_id *x, ir_tensor_id *table)
{
    const ir_op *mul = rewrite_producer(w, t, "mul");
    for (uint32_t side = 0; mul && side < 2; side++) {
        ir_tensor_id a = rewrite_input(w, mul, side), rotated;
        *table = rewrite_input(w, mul, !side);
        if (*x == IR_NONE ? !is_half_turn(w, a, &rotated) : a != *x)
            continue;
        rotated = *x == IR_NONE ? rotated : *x;
        if (!same_dims(tensor_of(w, t), tensor_of(w, rotated)) ||
            !is_table(w, *table, tensor_of(w, rotated)))
            continue;
        *x = rotated;
        return true;
    }
    return false;
}

/* Rule rotate: the side with the half turn of x is looked for first, since it says what x is. */
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
    ir_tensor_id old = w->g->ops.at[id].out[0], rotated, rest, x, same, out;
    if (!is_pair(w, old, &rotated, &rest))
        return MPK_OK;
    const ir_op *rotate = rewrite_producer(w, rotated, "rotate");
    const ir_tensor *y = tensor_of(w, old);
    int64_t n = tensor_of(w, rotated)->dims[y->rank - 1];
    if (!rotate || !is_slice(w, rewrite_input(w, rotate, 0), 0, n, &x) ||
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

/* ---- rule softmax ----
 *
 *   %s = batch_matmul(%q, %kt)   %t = add(%s, %mask)   %p = softmax(%t) {axis = 3}
 *   %y = batch_matmul(%p, %v)
 *   ->  %k = transpose(%kt)   %y = sdpa(%q, %k, %v, %mask) {scale = 1.0}
 *
 * q may be multiplied by a number before the product, or the product after it; casts between
 * floats and reshapes of batch axes may stand anywhere.  Scores and weights are not rounded any
 * more, so the target must ask for it.  A row that the mask hides whole gives zeros, not NaN. */

/* Entries of a head that block programs of attention take. */
enum { WIDEST_HEAD = 128 };

/* What an sdpa is made of.  mask IR_NONE: there is none; scores: what the mask is added to. */
typedef struct softmax_parts {
    ir_tensor_id q, k_transposed, v, mask, scores;
    double scale;
    int64_t batch, heads;
} softmax_parts;

/* Do both tensors hold the same matrices, one after the other, in floats? */
static bool same_matrices(const ir_tensor *a, const ir_tensor *b)
{
    return a->rank >= 2 && b->rank >= 2 && a->live == IR_ALL && b->live == IR_ALL &&
           is_small_float(a->dtype) && is_small_float(b->dtype) &&
           a->dims[a->rank - 2] == b->dims[b->rank - 2] &&
           a->dims[a->rank - 1] == b->dims[b->rank - 1];
}

/* Follow reshapes that leave the last two axes as they are, and casts between floats. */
static ir_tensor_id before_moves(const rewrite *w, ir_tensor_id t)
{
    for (;;) {
        const ir_op *op = rewrite_producer(w, t, "reshape");
        op = op ? op : rewrite_producer(w, t, "cast");
        const ir_tensor_id in = op ? rewrite_input(w, op, 0) : IR_NONE;
        if (in == IR_NONE || !same_matrices(tensor_of(w, in), tensor_of(w, t)))
            return t;
        t = in;
    }
}

/* Follow a product by a number, which *scale takes along. */
static ir_tensor_id before_scale(const rewrite *w, ir_tensor_id t, double *scale)
{
    double number;
    t = before_moves(w, t);
    const ir_op *times = rewrite_producer(w, t, "map");
    const str e = times && times->n_in == 1 ? rewrite_attribute(times, "expr")->s : (str){0};
    if (e.n <= 5 || memcmp(e.at, "x0 * ", 5) != 0 ||
        !str_read_double((str){e.at + 5, e.n - 5}, &number) ||
        !same_matrices(tensor_of(w, rewrite_input(w, times, 0)), tensor_of(w, t)))
        return t;
    *scale *= number;
    return before_moves(w, rewrite_input(w, times, 0));
}

/* The product of queries and keys that makes the scores t; NULL if another operator does. */
static const ir_op *find_scores(const rewrite *w, ir_tensor_id t, softmax_parts *p)
{
    p->scale = 1;
    const ir_op *product = rewrite_producer(w, before_scale(w, t, &p->scale), "batch_matmul");
    if (!product || rewrite_attribute(product, "transpose_b")->i)
        return NULL;
    p->q = before_scale(w, rewrite_input(w, product, 0), &p->scale);
    p->k_transposed = rewrite_input(w, product, 1);
    return product;
}

/* The addition that makes t: add, or the map that the PyTorch backend makes of it where dtypes
 * differ; NULL if another operator does. */
static const ir_op *find_sum(const rewrite *w, ir_tensor_id t)
{
    const ir_op *mixed = rewrite_producer(w, t, "map");
    if (mixed && mixed->n_in == 2 && str_is(rewrite_attribute(mixed, "expr")->s, "x0 + x1"))
        return mixed;
    return rewrite_producer(w, t, "add");
}

/* The same of scores t to which a mask may have been added, from either side. */
static const ir_op *find_masked(const rewrite *w, ir_tensor_id t, softmax_parts *p)
{
    p->mask = IR_NONE;
    p->scores = t = before_moves(w, t);
    const ir_op *add = find_sum(w, t), *found = NULL;
    if (!add)
        return find_scores(w, t, p);
    for (uint32_t side = 0; side < 2 && !found; side++) {
        const ir_tensor_id scores = rewrite_input(w, add, side);
        p->mask = rewrite_input(w, add, !side);
        if (same_matrices(tensor_of(w, scores), tensor_of(w, t)) &&
            ir_elements(tensor_of(w, scores)) == ir_elements(tensor_of(w, t)))
            found = find_scores(w, scores, p);
    }
    return found;
}

/* How many matrices t holds. */
static int64_t count_matrices(const ir_tensor *t)
{
    int64_t n = 1;
    for (uint32_t i = 0; i + 2 < t->rank; i++)
        n *= t->dims[i];
    return n;
}

/* The axes of heads are those that queries have before they become one axis of matrices; else
 * those of the scores; else there is one batch entry. */
static void find_heads(const rewrite *w, ir_tensor_id weights, softmax_parts *p)
{
    const ir_tensor_id candidates[] = {p->q, before_moves(w, weights)};
    p->batch = 1;
    p->heads = count_matrices(tensor_of(w, p->q));
    for (uint32_t i = 0; i < 2; i++) {
        const ir_tensor *t = tensor_of(w, candidates[i]);
        if (t->rank != 4)
            continue;
        p->batch = t->dims[0];
        p->heads = t->dims[1];
        return;
    }
}

/* Are these operands what block programs take? */
static bool are_heads(const rewrite *w, const softmax_parts *p, const ir_op *op)
{
    const ir_tensor *q = tensor_of(w, p->q), *k = tensor_of(w, p->k_transposed),
                    *v = tensor_of(w, p->v), *y = tensor_of(w, op->out[0]);
    const int64_t n = p->batch * p->heads;
    return (y->dtype == IR_BF16 || y->dtype == IR_F16) && q->dtype == y->dtype &&
           k->dtype == y->dtype && v->dtype == y->dtype && y->live == IR_ALL &&
           count_matrices(q) == n && count_matrices(k) == n && count_matrices(v) == n &&
           count_matrices(y) == n && q->dims[q->rank - 1] <= WIDEST_HEAD &&
           v->dims[v->rank - 1] <= WIDEST_HEAD;
}

/* Axes of t from the first one that is not 1 on, but at least `least` of them. */
static uint32_t rank_without_ones(const ir_tensor *t, uint32_t least)
{
    uint32_t first = 0;
    while (t->rank - first > least && t->dims[first] == 1)
        first++;
    return t->rank - first;
}

/* Has the mask a number for each score? */
static bool is_full(const rewrite *w, const softmax_parts *p)
{
    return ir_elements(tensor_of(w, p->mask)) == ir_elements(tensor_of(w, p->scores));
}

/* Is there no mask, or one that has all axes of the scores, or one that is added to scores with
 * axes of batch entries and heads, ones before them apart, so that it is broadcast to them as to
 * the scores of an sdpa? */
static bool is_mask(const rewrite *w, const softmax_parts *p)
{
    const ir_tensor *s = tensor_of(w, p->scores);
    const uint32_t rank = rank_without_ones(s, 2);
    const int64_t *end = s->dims + s->rank;
    if (p->mask == IR_NONE)
        return true;
    if (!is_small_float(tensor_of(w, p->mask)->dtype))
        return false;
    const int64_t heads = rank < 3 ? 1 : end[-3];
    const int64_t batch = rank < 4 ? 1 : end[-4];
    return is_full(w, p) || (rank <= 4 && heads == p->heads && batch == p->batch);
}

/* t as [batch, heads, rows, columns], from before its reshapes if it was that. */
static mpk_status as_heads(rewrite *w, uint32_t key, const softmax_parts *p, ir_tensor_id *t)
{
    const ir_tensor_id before = before_moves(w, *t);
    const ir_tensor *a = tensor_of(w, before), *b = tensor_of(w, *t);
    if (a->rank == 4 && a->dims[0] == p->batch && a->dims[1] == p->heads && a->dtype == b->dtype) {
        *t = before;
        return MPK_OK;
    }
    const int64_t dims[] = {p->batch, p->heads, b->dims[b->rank - 2], b->dims[b->rank - 1]};
    return rewrite_reshape(w, key, *t, 4, dims, t);
}

/* The mask as scores of an sdpa have their axes, or without the leading ones that they lack. */
static mpk_status as_mask(rewrite *w, uint32_t key, const softmax_parts *p, ir_tensor_id *mask)
{
    const ir_tensor m = *mask == IR_NONE ? (ir_tensor){0} : *tensor_of(w, *mask);
    if (m.rank > 2 && is_full(w, p))
        return as_heads(w, key, p, mask);
    if (m.rank <= 4)
        return MPK_OK;
    return rewrite_reshape(w, key, *mask, 4, m.dims + m.rank - 4, mask);
}

/* Add the sdpa at place `key`, and the view of its result as y has it. */
static mpk_status add_attention(rewrite *w, uint32_t key, const softmax_parts *p,
                                const ir_tensor *y, ir_tensor_id *out)
{
    ir_tensor_id in[] = {p->q, p->k_transposed, p->v, p->mask};
    for (uint32_t i = 0; i < 3; i++)
        TRY(as_heads(w, key, p, &in[i]));
    TRY(as_mask(w, key, p, &in[3]));
    TRY(rewrite_add(w, key, "transpose", 1, &in[1],
                    (ir_set[]){{.name = "perm", .ints = (int64_t[]){0, 1, 3, 2}, .n_ints = 4}, {0}},
                    &in[1]));
    TRY(rewrite_add(w, key, "sdpa", p->mask == IR_NONE ? 3 : 4, in,
                    (ir_set[]){{.name = "scale", .f = p->scale}, {0}}, out));
    return rewrite_reshape(w, key + 1, *out, y->rank, y->dims, out);
}

/* Rule softmax: `id` is the product of weights and values. */
static mpk_status apply_softmax(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    softmax_parts p;
    if (strcmp(op->def->name, "batch_matmul") != 0 || !w->s->options->relaxed ||
        rewrite_attribute(op, "transpose_b")->i)
        return MPK_OK;
    const ir_tensor_id weights = rewrite_input(w, op, 0);
    const ir_op *softmax = rewrite_producer(w, before_moves(w, weights), "softmax");
    if (!softmax || !is_private(w, softmax, 1) ||
        rewrite_attribute(softmax, "axis")->i != (int64_t)tensor_of(w, softmax->out[0])->rank - 1 ||
        !find_masked(w, rewrite_input(w, softmax, 0), &p) || p.scale == 0)
        return MPK_OK;
    p.v = rewrite_input(w, op, 1);
    find_heads(w, weights, &p);
    const ir_tensor_id in[] = {p.q, p.k_transposed, p.v, p.mask};
    if (!are_heads(w, &p, op) || !is_mask(w, &p) || !rewrite_are_current(w, in, 4, w->keys.at[id]))
        return MPK_OK;
    const ir_tensor y = *tensor_of(w, op->out[0]);
    const ir_tensor_id old = op->out[0];
    ir_tensor_id out;
    TRY(add_attention(w, w->keys.at[id], &p, &y, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* Operators that rules add stand after the first n and are not looked at again. */
mpk_status recognise_attention(rewrite *w)
{
    uint32_t n = (uint32_t)w->g->ops.n;
    for (ir_op_id o = 0; o < n; o++) {
        TRY(apply_rotate(w, o));
        TRY(apply_partly(w, o));
        TRY(apply_heads(w, o));
        TRY(apply_softmax(w, o));
    }
    return MPK_OK;
}
