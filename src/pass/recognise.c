/* recognise.c - replace groups of small operators by the one operator they compute.
 *
 * Input and output: a tensor program, made elsewhere, as PyTorch's graphs are; model files use
 * the large operators in the first place.  Each rule is a pattern, its conditions and its
 * replacement:
 *
 *   norm    x * rsqrt(mean(x^2 over the last axis) + eps) -> rms_norm(x); x in a shorter dtype
 *           may be cast to f32 where it is squared alone
 *   weight  rms_norm(x) * w -> rms_norm(x, w), whatever w's dtype; casts to and from f32 around it
 *           go too
 *   cast    rms_norm(x in f32, w), rounded to x's dtype -> rms_norm(x, w), which has the same bits
 *   gelu    0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) -> gelu(x) {tanh}
 *   quick   x * sigmoid(1.702 x) -> map(x) of one expression, which linear takes in by its name
 *   log     m + log(sum(exp(x - m))), m the largest of x along the axes that are summed, or 0 where
 *           that is infinite -> reduce(x), kind logsumexp
 *   flat    rows(reshape(a), ...), a [T, D], the result [.., D] -> reshape(rows(a, ...)), so that
 *           fuse_ops finds linears next to what is done to their results; rows: element-wise
 *           operators and norms; a layer_norm also of an x that is no such reshape
 *   back    reshapes of a, the last one with a's shape -> a, unless a is overwritten
 *   same    0 + x of integers -> x, unless x is overwritten before the last reader
 *   result  copy of the whole of a, dense, to an output -> a is the output
 *   column  batch_matmul of short rows by one column, for a GPU -> reduce(map(a, b)), a sum of
 *           products, which fuse_map makes one operator with what makes a
 *   window  sum of concat(a, b) * c over their last axis, of few entries, for a GPU -> map of
 *           single entries of a, b and c: it does not wait for the copy, as of a window that moves
 *
 * and those of recognise_attention.c.  rms_norm and logsumexp add in a different order, and
 * these, gelu and quick round less often; all other rules keep the bits.
 *
 *   %s = map(%x) {expr = "pow(x0, 2)"}   %m = reduce(%s) {kind = "mean", axes = [1], keep = 1}
 *   %e = map(%m) {expr = "x0 + 1e-06"}   %r = map(%e) {expr = "rsqrt(x0)"}
 *   %n = mul(%x, %r)                     %y = mul(%n, %w)
 *   ->  %y = rms_norm(%x, %w) {eps = 1e-06}          rules norm and weight
 *
 * Called by compile.c before fuse_ops, which looks for the operators found here.  Cost: linear
 * in the program.
 */
#include "pass/fuse.h"

#include <math.h>
#include <stdio.h>

/* The expression of the map of one operand that makes t, and that operand (*x); empty if another
 * operator makes t. */
static str expression_of(const rewrite *w, ir_tensor_id t, ir_tensor_id *x)
{
    const ir_op *producer = rewrite_producer(w, t, "map");
    if (!producer || producer->n_in != 1)
        return (str){0};
    *x = rewrite_input(w, producer, 0);
    return rewrite_attribute(producer, "expr")->s;
}

/* Is t the square of *x, element by element?  PyTorch writes it in several ways. */
static bool is_square(const rewrite *w, ir_tensor_id t, ir_tensor_id *x)
{
    str e = expression_of(w, t, x);
    const ir_op *mul = rewrite_producer(w, t, "mul");
    if (mul) {
        *x = rewrite_input(w, mul, 0);
        return *x == rewrite_input(w, mul, 1);
    }
    return str_is(e, "pow(x0, 2)") || str_is(e, "pow(x0, 2.0)") || str_is(e, "square(x0)") ||
           str_is(e, "x0 * x0");
}

/* Is t = rsqrt(mean(square of *x over the last axis) + *eps), one for each row, in x's dtype? */
static bool is_scale(const rewrite *w, ir_tensor_id t, ir_tensor_id *x, double *eps)
{
    static const char sum[] = "x0 + ";
    ir_tensor_id added, mean;
    if (!str_is(expression_of(w, t, &added), "rsqrt(x0)"))
        return false;
    str e = expression_of(w, added, &mean);
    if (e.n <= strlen(sum) || memcmp(e.at, sum, strlen(sum)) != 0 ||
        !str_read_double((str){e.at + strlen(sum), e.n - strlen(sum)}, eps))
        return false;
    const ir_op *reduce = rewrite_producer(w, mean, "reduce");
    if (!reduce || !str_is(rewrite_attribute(reduce, "kind")->s, "mean") ||
        !rewrite_attribute(reduce, "keep")->i)
        return false;
    ir_tensor_id squares = rewrite_input(w, reduce, 0);
    const ir_attribute *axes = rewrite_attribute(reduce, "axes");
    return axes->ints.n == 1 && axes->ints.at[0] == (int64_t)tensor_of(w, squares)->rank - 1 &&
           is_square(w, squares, x) && tensor_of(w, *x)->dtype == tensor_of(w, t)->dtype;
}

/* Add an rms_norm (weight IR_NONE: without one) in the place of operator `id`, and substitute
 * its result. */
static mpk_status add_norm(rewrite *w, ir_op_id id, ir_tensor_id x, ir_tensor_id weight, double eps)
{
    ir_tensor_id old = w->g->ops.at[id].out[0], out, in[] = {x, weight};
    TRY(rewrite_add(w, w->keys.at[id], "rms_norm", weight == IR_NONE ? 1 : 2, in,
                    (ir_set[]){{.name = "eps", .f = eps}, {0}}, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* The operand of the cast that makes t, if it has this dtype; else t itself. */
static ir_tensor_id before_cast(const rewrite *w, ir_tensor_id t, ir_dtype dtype)
{
    const ir_op *cast = rewrite_producer(w, t, "cast");
    ir_tensor_id in = cast ? rewrite_input(w, cast, 0) : t;
    return tensor_of(w, in)->dtype == dtype ? in : t;
}

/* A product of two operands: mul, or, where their dtypes differ, the map that the PyTorch
 * backend makes of it. */
static bool is_product(const ir_op *op)
{
    return strcmp(op->def->name, "mul") == 0 ||
           (strcmp(op->def->name, "map") == 0 && op->n_in == 2 &&
            str_is(rewrite_attribute(op, "expr")->s, "x0 * x1"));
}

/* Rule norm.  The squares may be of x cast to f32; then the norm is of that cast, and rules
 * weight and cast remove it. */
static mpk_status apply_row_norm(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    const ir_tensor *y = tensor_of(w, op->out[0]);
    if (!is_product(op) || !is_small_float(y->dtype))
        return MPK_OK;
    for (uint32_t side = 0; side < 2; side++) {
        ir_tensor_id x = rewrite_input(w, op, side), squared = IR_NONE;
        double eps;
        if (is_scale(w, rewrite_input(w, op, !side), &squared, &eps) && eps >= 0 &&
            before_cast(w, squared, tensor_of(w, x)->dtype) == x &&
            same_dims(tensor_of(w, squared), y))
            return add_norm(w, id, squared, IR_NONE, eps);
    }
    return MPK_OK;
}

/* Rule weight: a product of a norm without a weight and a vector of weights, in either order,
 * becomes a norm with that weight. */
static mpk_status apply_weight(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    const ir_tensor *y = tensor_of(w, op->out[0]);
    if (!is_product(op) || !is_small_float(y->dtype) || !may_skip_rounding(w, op))
        return MPK_OK;
    for (uint32_t side = 0; side < 2; side++) {
        ir_tensor_id weight = rewrite_input(w, op, side);
        const ir_op *norm = find_plain_norm(w, before_cast(w, rewrite_input(w, op, !side), IR_F32));
        if (!norm || tensor_of(w, weight)->rank != 1 ||
            tensor_of(w, weight)->dims[0] != y->dims[y->rank - 1] ||
            rewrite_input(w, norm, 1) != IR_NONE || !is_private(w, norm, 1))
            continue;
        ir_tensor_id x = before_cast(w, rewrite_input(w, norm, 0), y->dtype);
        if (same_dims(tensor_of(w, x), y) && rewrite_are_current(w, &x, 1, w->keys.at[id]))
            return add_norm(w, id, x, weight, rewrite_attribute(norm, "eps")->f);
    }
    return MPK_OK;
}

/* Rule cast: a norm of an f32 copy of x, rounded back to x's dtype.  rms_norm computes in f32
 * anyway. */
static mpk_status apply_cast(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    const ir_tensor *y = tensor_of(w, op->out[0]);
    if (strcmp(op->def->name, "cast") != 0 || !is_small_float(y->dtype) || y->dtype == IR_F32)
        return MPK_OK;
    const ir_op *norm = find_plain_norm(w, rewrite_input(w, op, 0));
    if (!norm)
        return MPK_OK;
    ir_tensor_id in[] = {before_cast(w, rewrite_input(w, norm, 0), y->dtype),
                         rewrite_input(w, norm, 1)};
    if (!same_dims(tensor_of(w, in[0]), y) || !rewrite_are_current(w, in, 2, w->keys.at[id]))
        return MPK_OK;
    return add_norm(w, id, in[0], in[1], rewrite_attribute(norm, "eps")->f);
}

/* ---- rule gelu ---- */

/* Is t = *x * number or *x + number (`sign` says which), up to the digits that PyTorch prints? */
static bool is_number(const rewrite *w, ir_tensor_id t, const char *sign, double number,
                      ir_tensor_id *x)
{
    const str e = expression_of(w, t, x);
    double found;
    return e.n > 5 && memcmp(e.at, "x0 ", 3) == 0 && e.at[3] == *sign && e.at[4] == ' ' &&
           str_read_double((str){e.at + 5, e.n - 5}, &found) &&
           fabs(found - number) <= 1e-6 * number;
}

/* Is t = tanh(sqrt(2 / pi) (x + 0.044715 x^3)) + 1 of this x? */
static bool is_tanh_part(const rewrite *w, ir_tensor_id t, ir_tensor_id x)
{
    ir_tensor_id curve, scaled, sum, cube, of = IR_NONE;
    if (!is_number(w, t, "+", 1, &curve) || !str_is(expression_of(w, curve, &scaled), "tanh(x0)") ||
        !is_number(w, scaled, "*", 0.7978845608028654, &sum))
        return false;
    const ir_op *add = rewrite_producer(w, sum, "add");
    for (uint32_t side = 0; add && side < 2; side++)
        if (rewrite_input(w, add, side) == x &&
            is_number(w, rewrite_input(w, add, !side), "*", 0.044715, &cube)) {
            const str e = expression_of(w, cube, &of);
            return of == x && (str_is(e, "pow(x0, 3.0)") || str_is(e, "pow(x0, 3)"));
        }
    return false;
}

/* Rule gelu.  `id` is the product of 0.5 x and the tanh part; both must lead to the same x. */
static mpk_status apply_gelu(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "mul") != 0 || !may_skip_rounding(w, op) ||
        !is_small_float(tensor_of(w, op->out[0])->dtype))
        return MPK_OK;
    for (uint32_t side = 0; side < 2; side++) {
        ir_tensor_id x, out, old = op->out[0];
        if (!is_number(w, rewrite_input(w, op, side), "*", 0.5, &x) ||
            !is_tanh_part(w, rewrite_input(w, op, !side), x) ||
            !rewrite_are_current(w, &x, 1, w->keys.at[id]) ||
            !same_dims(tensor_of(w, x), tensor_of(w, old)))
            continue;
        TRY(rewrite_add(w, w->keys.at[id], "gelu", 1, &x, (ir_set[]){{.name = "tanh", .i = 1}, {0}},
                        &out));
        rewrite_replace(w, old, out);
        return MPK_OK;
    }
    return MPK_OK;
}

/* Rule quick, whichever operand of the product is the sigmoid. */
static mpk_status apply_quick_gelu(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "mul") != 0 || !may_skip_rounding(w, op) ||
        !is_small_float(tensor_of(w, op->out[0])->dtype))
        return MPK_OK;
    for (uint32_t side = 0; side < 2; side++) {
        ir_tensor_id x = rewrite_input(w, op, side), scaled, of, out, old = op->out[0];
        if (!str_is(expression_of(w, rewrite_input(w, op, !side), &scaled), "sigmoid(x0)") ||
            !is_number(w, scaled, "*", 1.702, &of) || of != x ||
            !rewrite_are_current(w, &x, 1, w->keys.at[id]))
            continue;
        TRY(rewrite_add(w, w->keys.at[id], "map", 1, &x,
                        (ir_set[]){{.name = "expr", .s = FUSE_QUICK_GELU}, {0}}, &out));
        rewrite_replace(w, old, out);
        return MPK_OK;
    }
    return MPK_OK;
}

/* ---- rule log ---- */

/* Is t a map of two operands whose text is `expr`? */
static bool is_of_two(const rewrite *w, ir_tensor_id t, const char *expr, ir_tensor_id *x0,
                      ir_tensor_id *x1)
{
    const ir_op *op = rewrite_producer(w, t, "map");
    if (!op || op->n_in != 2 || !str_is(rewrite_attribute(op, "expr")->s, expr))
        return false;
    *x0 = rewrite_input(w, op, 0);
    *x1 = rewrite_input(w, op, 1);
    return true;
}

/* Is t = *largest with 0 where that is infinite?  PyTorch subtracts such a number, so that exp
 * never sees inf - inf. */
static bool is_finite_part(const rewrite *w, ir_tensor_id t, ir_tensor_id *largest)
{
    ir_tensor_id infinite, magnitude, of;
    return is_of_two(w, t, "where(x0, 0.0, x1)", &infinite, largest) &&
           str_is(expression_of(w, infinite, &magnitude), "x0 == inf") &&
           str_is(expression_of(w, magnitude, &of), "abs(x0)") && of == *largest;
}

static bool same_axes(const ir_op *a, const ir_op *b)
{
    const ir_attribute *one = rewrite_attribute(a, "axes"), *two = rewrite_attribute(b, "axes");
    return one->ints.n == two->ints.n &&
           memcmp(one->ints.at, two->ints.at, one->ints.n * sizeof(int64_t)) == 0;
}

/* Is `base` the finite part of the maximum of x over the axes that `sum` adds, with these axes
 * kept?  x must not have been written between the maximum and `end`, where the new operator will
 * read it. */
static bool is_base_of(const rewrite *w, ir_tensor_id base, ir_tensor_id x, const ir_op *sum,
                       ir_op_id end)
{
    ir_tensor_id largest;
    if (!is_finite_part(w, base, &largest))
        return false;
    const ir_op *max = rewrite_producer(w, largest, "reduce");
    return max && str_is(rewrite_attribute(max, "kind")->s, "max") &&
           rewrite_attribute(max, "keep")->i && rewrite_input(w, max, 0) == x &&
           same_axes(max, sum) && tensor_of(w, base)->dtype == tensor_of(w, x)->dtype &&
           !rewrite_is_written(w, x, w->keys.at[max - w->g->ops.at], w->keys.at[end]);
}

/* The reduce of kind sum in t = log(sum(exp(*x - *base))); NULL if t is not that. */
static const ir_op *find_sum(const rewrite *w, ir_tensor_id t, ir_tensor_id *x, ir_tensor_id *base)
{
    ir_tensor_id sums, differences;
    if (!str_is(expression_of(w, t, &sums), "log(x0)"))
        return NULL;
    const ir_op *sum = rewrite_producer(w, sums, "reduce");
    if (!sum || !str_is(rewrite_attribute(sum, "kind")->s, "sum") ||
        !same_dims(tensor_of(w, sums), tensor_of(w, t)))
        return NULL;
    ir_tensor_id powers = rewrite_input(w, sum, 0);
    bool found = str_is(expression_of(w, powers, &differences), "exp(x0)") &&
                 is_of_two(w, differences, "x0 - x1", x, base) &&
                 same_dims(tensor_of(w, powers), tensor_of(w, *x));
    return found ? sum : NULL;
}

/* t = x, or x under another shape */
static bool is_reshape_of(const rewrite *w, ir_tensor_id t, ir_tensor_id x)
{
    const ir_op *reshape = rewrite_producer(w, t, "reshape");
    return t == x || (reshape && rewrite_input(w, reshape, 0) == x);
}

/* Rule log, whichever operand of the addition is the logarithm.  The other one, and so the result,
 * has the dtype of x (is_base_of). */
static mpk_status apply_log(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    ir_tensor_id y = op->out[0], x, base, out;
    if (strcmp(op->def->name, "add") != 0 || !is_small_float(tensor_of(w, y)->dtype))
        return MPK_OK;
    for (uint32_t side = 0; side < 2; side++) {
        ir_tensor_id logs = rewrite_input(w, op, side);
        const ir_op *sum = find_sum(w, logs, &x, &base);
        if (!sum || !is_base_of(w, base, x, sum, id) ||
            !is_reshape_of(w, rewrite_input(w, op, !side), base) ||
            !same_dims(tensor_of(w, logs), tensor_of(w, y)))
            continue;
        const ir_attribute *axes = rewrite_attribute(sum, "axes");
        TRY(rewrite_add(w, w->keys.at[id], "reduce", 1, &x,
                        (ir_set[]){{.name = "axes", .ints = axes->ints.at, .n_ints = axes->ints.n},
                                   {.name = "keep", .i = rewrite_attribute(sum, "keep")->i},
                                   {.name = "kind", .s = "logsumexp"},
                                   {0}},
                        &out));
        rewrite_replace(w, y, out);
        return MPK_OK;
    }
    return MPK_OK;
}

/* ---- rules flat and back ---- */

/* The tensor a [T, D] of t = reshape(a) [.., D] with more than two axes; IR_NONE if t is no such
 * reshape. */
static ir_tensor_id flat_of(const rewrite *w, ir_tensor_id t)
{
    const ir_op *reshape = rewrite_producer(w, t, "reshape");
    ir_tensor_id in = reshape ? rewrite_input(w, reshape, 0) : IR_NONE;
    const ir_tensor *a = in == IR_NONE ? NULL : tensor_of(w, in), *b = tensor_of(w, t);
    bool same_rows =
        a && a->rank == 2 && b->rank > 2 && a->dims[1] == b->dims[b->rank - 1] && a->live == IR_ALL;
    return same_rows ? in : IR_NONE;
}

/* Does each row of the last axis of the result depend on that row of the operands alone? */
static bool works_on_rows(const ir_op *op)
{
    return op->def->flags & OP_ELEMENTWISE || strcmp(op->def->name, "rms_norm") == 0 ||
           strcmp(op->def->name, "layer_norm") == 0;
}

/* May an operand stay as it is, because it is the same for every row (a row of weights, a
 * scalar)? */
static bool is_of_columns(const ir_tensor *t)
{
    return t->rank <= 1;
}
/* Has an operand the result's whole shape, so that it can be reshaped as the result is? */
static bool is_whole(const ir_tensor *t, const ir_tensor *y)
{
    return t->rank == y->rank && memcmp(t->dims, y->dims, y->rank * sizeof *y->dims) == 0;
}

/* Is it a layer_norm of what is no view, so that rows of it are neighbours?  One becomes part of a
 * product that reads it as [T, D], whatever its own x is. */
static bool is_flat_norm(const rewrite *w, const ir_op *op)
{
    return strcmp(op->def->name, "layer_norm") == 0 &&
           lies_dense(tensor_of(w, rewrite_input(w, op, 0)));
}

/* Rule flat applies if every operand is a set of rows or the same for each row, and at least one
 * of them is a reshaped [T, D], or the operator is a layer_norm.  Other operands of the result's
 * shape get a reshape of their own, which costs nothing if their storage is dense. */
static bool can_be_flat(const rewrite *w, const ir_op *op)
{
    const ir_tensor *y = tensor_of(w, op->out[0]);
    bool found = is_flat_norm(w, op);
    if (!works_on_rows(op) || y->rank < 3 || y->live != IR_ALL || y->shares != IR_NONE ||
        w->is_output[op->out[0]])
        return false;
    for (uint32_t i = 0; i < op->n_in; i++) {
        ir_tensor_id in = rewrite_input(w, op, i);
        if (in == IR_NONE || is_of_columns(tensor_of(w, in)))
            continue;
        bool is_flat = flat_of(w, in) != IR_NONE;
        if (!is_whole(tensor_of(w, in), y) || (!is_flat && tensor_of(w, in)->shares != IR_NONE))
            return false;
        found = found || is_flat;
    }
    return found;
}

/* Rule flat: the same operator on [T, D], and a reshape of its result, which later readers may
 * take back again. */
static mpk_status apply_flat(rewrite *w, ir_op_id id)
{
    const ir_op op = w->g->ops.at[id];
    const ir_tensor y = *tensor_of(w, op.out[0]);
    ir_tensor_id in[IR_MAX_INPUTS], rows, out;
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    uint32_t key = w->keys.at[id];
    if (!can_be_flat(w, &op))
        return MPK_OK;
    int64_t width = y.dims[y.rank - 1], dims[2] = {ir_elements(&y) / width, width};
    for (uint32_t i = 0; i < op.n_in; i++) {
        in[i] = rewrite_input(w, &op, i);
        if (in[i] == IR_NONE || is_of_columns(tensor_of(w, in[i])))
            continue;
        ir_tensor_id flat = flat_of(w, in[i]);
        if (flat != IR_NONE)
            in[i] = flat;
        else
            TRY(rewrite_reshape(w, key, in[i], 2, dims, &in[i]));
    }
    TRY(rewrite_copy_attributes(w, &op, sets));
    TRY(rewrite_add(w, key, op.def->name, op.n_in, in, sets, &rows));
    TRY(rewrite_reshape(w, key + 1, rows, y.rank, y.dims, &out));
    rewrite_replace(w, op.out[0], out);
    return MPK_OK;
}

/* Rule back, over any number of reshapes.  One may be a copy, which keeps what was there before a
 * later write. */
static mpk_status apply_back(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id], *there = op;
    if (strcmp(op->def->name, "reshape") != 0 || w->is_output[op->out[0]])
        return MPK_OK;
    while ((there = rewrite_producer(w, rewrite_input(w, there, 0), "reshape")) != NULL) {
        const ir_tensor_id a = rewrite_input(w, there, 0);
        if (!same_dims(tensor_of(w, a), tensor_of(w, op->out[0])))
            continue;
        if (rewrite_are_current(w, &a, 1, UINT32_MAX))
            rewrite_replace(w, op->out[0], a);
        return MPK_OK;
    }
    return MPK_OK;
}

/* ---- rule same ---- */

/* The key after the last operator that reads the storage of tensor t, views of it included; 0:
 * nothing reads it. */
static uint32_t end_of_reading(const rewrite *w, ir_tensor_id t)
{
    uint32_t end = 0;
    for (size_t o = 0; o < w->g->ops.n; o++)
        for (uint32_t i = 0; i < w->g->ops.at[o].n_in; i++) {
            ir_tensor_id in = w->g->ops.at[o].in[i];
            if (in != IR_NONE && tg_root(w->g, in) == t && w->keys.at[o] >= end)
                end = w->keys.at[o] + 1;
        }
    return end;
}

/* Is an output of the graph stored in root t? */
static bool is_in_output(const rewrite *w, ir_tensor_id t)
{
    for (size_t i = 0; i < w->g->outputs.n; i++)
        if (tg_root(w->g, w->g->outputs.at[i]) == t)
            return true;
    return false;
}

/* Rule same.  PyTorch copies integers by adding 0.  Dropping the copy is right only if nothing
 * writes the copy, the caller does not read it, and x keeps its value until the copy's last
 * reader. */
static mpk_status apply_same(rewrite *w, ir_op_id id)
{
    ir_tensor_id x, y = w->g->ops.at[id].out[0];
    str e = expression_of(w, y, &x);
    bool is_sum = str_is(e, "0 + x0") || str_is(e, "x0 + 0");
    ir_dtype dtype = tensor_of(w, y)->dtype;
    if (is_sum && (dtype == IR_I32 || dtype == IR_I64) &&
        same_dims(tensor_of(w, x), tensor_of(w, y)) && !is_in_output(w, y) &&
        !rewrite_is_written(w, y, w->keys.at[id], UINT32_MAX) &&
        !rewrite_is_written(w, x, w->keys.at[id], end_of_reading(w, y)))
        rewrite_replace(w, y, x);
    return MPK_OK;
}

/* ---- rule result ---- */

/* The temporary whose whole storage t views in order; IR_NONE if t views a part of it, in
 * another order, or it is not a temporary. */
static ir_tensor_id whole_of(const rewrite *w, ir_tensor_id t)
{
    ir_tensor_id base = rewrite_before_views(w, t);
    const ir_tensor *a = tensor_of(w, base), *b = tensor_of(w, t);
    int64_t dense[IR_MAX_RANK];
    ir_dense_strides(b->rank, b->dims, dense);
    for (uint32_t i = 0; i < b->rank; i++)
        if (b->dims[i] > 1 && b->stride[i] != dense[i])
            return IR_NONE;
    bool whole = a->kind == IR_TEMP && a->shares == IR_NONE && a->live == IR_ALL &&
                 b->offset == 0 && a->dtype == b->dtype && ir_elements(a) == ir_elements(b);
    return whole ? base : IR_NONE;
}

/* Does an operator write the storage of tensor t in place, after the one that made it? */
static bool is_overwritten(const rewrite *w, ir_tensor_id t)
{
    for (size_t o = 0; o < w->g->ops.n; o++)
        for (uint32_t i = 0; i < w->g->ops.at[o].n_out; i++) {
            ir_tensor_id out = w->g->ops.at[o].out[i];
            if (out != t && !(w->g->ops.at[o].def->flags & OP_VIEW) && tg_root(w->g, out) == t)
                return true;
        }
    return false;
}

/* Rule result: the copied tensor becomes the output and takes the copy's name.  Its shape may
 * differ from the copy's: the caller's memory is plain bytes. */
static mpk_status apply_result(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "copy") != 0 || !w->is_output[op->out[0]])
        return MPK_OK;
    ir_tensor_id whole = whole_of(w, rewrite_input(w, op, 0));
    if (whole == IR_NONE || w->is_output[whole] || w->names.at[whole].n || is_overwritten(w, whole))
        return MPK_OK;
    rewrite_replace(w, op->out[0], whole);
    return MPK_OK;
}

/* ---- rule column ---- */

/* Are rows of t neighbours in memory, and, if an element-wise operator makes it, those of its
 * operands? */
static bool is_of_rows(const rewrite *w, ir_tensor_id t)
{
    const ir_tensor *x = tensor_of(w, t);
    const ir_op *op = x->producer == IR_NONE ? NULL : &w->g->ops.at[x->producer];
    bool is = lies_by_rows(x);
    for (uint32_t i = 0; is && op && op->def->flags & OP_ELEMENTWISE && i < op->n_in; i++)
        is = lies_by_rows(tensor_of(w, rewrite_input(w, op, i)));
    return is;
}

/* Is it a product of short rows by one column, with rows for all workers? */
static bool is_of_column(const rewrite *w, const ir_op *op)
{
    enum { SHORT = 64 };
    const ir_tensor *a = tensor_of(w, rewrite_input(w, op, 0)),
                    *b = tensor_of(w, rewrite_input(w, op, 1)), *y = tensor_of(w, op->out[0]);
    return y->dims[y->rank - 1] == 1 && a->dims[a->rank - 1] <= SHORT && a->live == IR_ALL &&
           b->live == IR_ALL && is_small_float(a->dtype) && is_small_float(b->dtype) &&
           is_small_float(y->dtype) && ir_elements(y) >= w->s->options->n_workers &&
           is_of_rows(w, rewrite_input(w, op, 0));
}

/* Rule column, for a GPU.  The product is of f32, which holds those of two bf16. */
static mpk_status apply_column(rewrite *w, ir_op_id id)
{
    const ir_op op = w->g->ops.at[id];
    const uint32_t key = w->keys.at[id];
    if (!w->s->options->relaxed || strcmp(op.def->name, "batch_matmul") != 0 ||
        !is_of_column(w, &op))
        return MPK_OK;
    ir_tensor_id in[2] = {rewrite_input(w, &op, 0), rewrite_input(w, &op, 1)}, products, out;
    const int64_t rank = tensor_of(w, in[1])->rank, last = tensor_of(w, op.out[0])->rank - 1;
    int64_t perm[IR_MAX_RANK];
    for (int64_t i = 0; i < rank; i++)
        perm[i] = i < rank - 2 ? i : 2 * rank - 3 - i;
    if (!rewrite_attribute(&op, "transpose_b")->i)
        TRY(rewrite_add(w, key, "transpose", 1, &in[1],
                        (ir_set[]){{.name = "perm", .ints = perm, .n_ints = (uint32_t)rank}, {0}},
                        &in[1]));
    TRY(rewrite_add(
        w, key, "map", 2, in,
        (ir_set[]){{.name = "expr", .s = "x0 * x1"}, {.name = "dtype", .s = "f32"}, {0}},
        &products));
    TRY(rewrite_add(
        w, key, "reduce", 1, &products,
        (ir_set[]){{.name = "axes", .ints = &last, .n_ints = 1},
                   {.name = "keep", .i = 1},
                   {.name = "dtype", .s = ir_dtype_table[tensor_of(w, op.out[0])->dtype].name},
                   {0}},
        &out));
    rewrite_replace(w, op.out[0], out);
    return MPK_OK;
}

/* ---- rule window ---- */

enum { WINDOW = 4 }; /* entries that are summed, at most */

/* Entry `entry` of the last axis of t, which has another axis besides. */
static mpk_status add_entry(rewrite *w, uint32_t key, ir_tensor_id t, int64_t entry,
                            ir_tensor_id *out)
{
    const ir_tensor x = *tensor_of(w, t);
    int64_t starts[IR_MAX_RANK] = {0}, stops[IR_MAX_RANK];
    ir_tensor_id cut;
    memcpy(stops, x.dims, sizeof stops);
    starts[x.rank - 1] = entry;
    stops[x.rank - 1] = entry + 1;
    TRY(rewrite_add(w, key, "slice", 1, &t,
                    (ir_set[]){{.name = "starts", .ints = starts, .n_ints = x.rank},
                               {.name = "stops", .ints = stops, .n_ints = x.rank},
                               {0}},
                    &cut));
    return rewrite_reshape(w, key, cut, x.rank - 1, x.dims, out);
}

/* Entry `entry` of the last axis of a concat along it. */
static mpk_status add_entry_of_parts(rewrite *w, uint32_t key, const ir_op *concat, int64_t entry,
                                     ir_tensor_id *out)
{
    uint32_t part = 0;
    for (;; part++) {
        const ir_tensor *x = tensor_of(w, rewrite_input(w, concat, part));
        if (entry < x->dims[x->rank - 1])
            break;
        entry -= x->dims[x->rank - 1];
    }
    return add_entry(w, key, rewrite_input(w, concat, part), entry, out);
}

/* The concat along its last axis, of few entries, that is a factor of a product which `reduce` sums
 * over that axis, and no more; *c: the other factor.  NULL: it is none. */
static const ir_op *find_window(const rewrite *w, const ir_op *reduce, ir_tensor_id *c)
{
    const ir_op *mul = rewrite_producer(w, rewrite_input(w, reduce, 0), "mul");
    const ir_attribute *axes = rewrite_attribute(reduce, "axes");
    if (!mul || !str_is(rewrite_attribute(reduce, "kind")->s, "sum") ||
        rewrite_attribute(reduce, "expr")->s.n || rewrite_attribute(reduce, "then")->s.n ||
        rewrite_attribute(reduce, "keep")->i || axes->ints.n != 1)
        return NULL;
    const ir_tensor *x = tensor_of(w, mul->out[0]);
    const uint32_t last = x->rank - 1;
    for (uint32_t i = 0; i < 2; i++) {
        const ir_op *concat = rewrite_producer(w, rewrite_input(w, mul, i), "concat");
        const ir_tensor *other = tensor_of(w, *c = rewrite_input(w, mul, 1 - i));
        if (concat && axes->ints.at[0] == last && x->dims[last] <= WINDOW && x->rank > 1 &&
            rewrite_attribute(concat, "axis")->i == last &&
            same_dims(tensor_of(w, concat->out[0]), x) && other->rank > 1 &&
            other->dims[other->rank - 1] == x->dims[last])
            return concat;
    }
    return NULL;
}

/* Are they floats whose sum a map computes, at the place of the reduction as before? */
static bool may_be_window(const rewrite *w, ir_op_id id, const ir_op *concat, ir_tensor_id c)
{
    const ir_op *reduce = &w->g->ops.at[id];
    const ir_tensor *x = tensor_of(w, rewrite_input(w, reduce, 0)),
                    *y = tensor_of(w, reduce->out[0]);
    bool may = is_small_float(x->dtype) && is_small_float(y->dtype) && x->live == IR_ALL &&
               is_small_float(tensor_of(w, c)->dtype) &&
               is_small_float(tensor_of(w, concat->out[0])->dtype) &&
               rewrite_are_current(w, &c, 1, w->keys.at[id]);
    for (uint32_t i = 0; may && i < concat->n_in; i++) {
        const ir_tensor_id part = rewrite_input(w, concat, i);
        may =
            tensor_of(w, part)->rank == x->rank && rewrite_are_current(w, &part, 1, w->keys.at[id]);
    }
    return may;
}

/* Rule window.  Products are rounded as they were, and added in the same order, in fp32. */
static mpk_status apply_window(rewrite *w, ir_op_id id)
{
    const ir_op op = w->g->ops.at[id];
    ir_tensor_id c, in[2 * WINDOW], out;
    char expr[128];
    size_t at = 0;
    const bool is_sum = w->s->options->relaxed && strcmp(op.def->name, "reduce") == 0;
    const ir_op *concat = is_sum ? find_window(w, &op, &c) : NULL;
    if (!concat || !may_be_window(w, id, concat, c))
        return MPK_OK;
    const ir_op parts = *concat;
    const ir_tensor *x = tensor_of(w, rewrite_input(w, &op, 0));
    const char *dtype = ir_dtype_table[x->dtype].name,
               *result = ir_dtype_table[tensor_of(w, op.out[0])->dtype].name;
    const int64_t n = x->dims[x->rank - 1];
    for (int64_t i = 0; i < n; i++) {
        TRY(add_entry_of_parts(w, w->keys.at[id], &parts, i, &in[i]));
        TRY(add_entry(w, w->keys.at[id], c, i, &in[n + i]));
        at += (size_t)snprintf(expr + at, sizeof expr - at, "t%d = %s(x%d * x%d); ", (int)i, dtype,
                               (int)i, (int)(n + i));
    }
    for (int64_t i = 0; i < n; i++)
        at += (size_t)snprintf(expr + at, sizeof expr - at, "%st%d", i ? " + " : "", (int)i);
    TRY(rewrite_add(w, w->keys.at[id], "map", (uint32_t)(2 * n), in,
                    (ir_set[]){{.name = "expr", .s = expr}, {.name = "dtype", .s = result}, {0}},
                    &out));
    rewrite_replace(w, op.out[0], out);
    return MPK_OK;
}

/* Rounds of two rules.  Each round works on the program that the rounds before it left, since a
 * rule's pattern is made of results of the rules before: weight needs norm, cast needs weight. */
mpk_status pass_recognise(pass_state *s, ir_graph **g)
{
    static mpk_status (*const rounds[][2])(rewrite *, ir_op_id) = {
        {apply_row_norm, apply_log}, {apply_weight, apply_gelu}, {apply_cast, apply_quick_gelu},
        {apply_flat, apply_back},    {apply_same, apply_result}, {apply_column, apply_window}};
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds && s->options->fusion != PASS_FUSE_NONE;
         i++) {
        rewrite w;
        TRY(rewrite_begin(s, *g, &w));
        uint32_t n = (uint32_t)w.g->ops.n;
        for (ir_op_id o = 0; o < n; o++)
            for (uint32_t k = 0; k < 2 && rounds[i][k]; k++)
                TRY(rounds[i][k](&w, o));
        if (i == 0)
            TRY(recognise_attention(&w));
        TRY(rewrite_end(&w, g));
    }
    return MPK_OK;
}
