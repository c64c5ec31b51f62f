/* expert_fast.c - the fast expert_linear operator: its loops, for any instruction set.
 *
 * The pairs of a box (a token and one of its experts) are sorted by expert, so that an expert's
 * rows of weights are read once for all its pairs.  Then, expert by expert: blocks of pairs (so
 * many that their rows of x stay in the second cache), and for each block, LINEAR_COLUMNS
 * columns at a time, the products of linear (linear_fast.h), whose bits depend on the pair
 * alone.
 *
 * Without scale a finished row goes to the result.  With scale the rows of all pairs are kept
 * for some columns, and then added token by token in the order of its experts; the columns are
 * as many as fit into PAIRS_BYTES.
 *
 * Scratch: the sorted pairs; rows of x as f32: with a norm all of the box, each normalised once
 * for all its pairs, otherwise those of a block if they cannot be used in place; rows of a block
 * in other forms; a panel; two blocks of sums; kept rows.
 *
 * An example: tokens 0-2 with two experts each, of four experts:
 *
 *   ids     (1,3) (1,0) (3,1)      pairs 0 1 | 2 3 | 4 5
 *   pairs   3 | 0 2 5 | | 1 4      sorted by expert 0, 1, 2, 3
 *   ends    1   4      4  6        so expert e has pairs[ends[e - 1]] .. pairs[ends[e] - 1]
 *
 * Called through LINEAR_SET (linear_kernels.h) by the bodies of each instruction set.
 */
#include "cpu/expert_fast.h"

#include "op/experts.h"

enum { X, IDS, W0, W1, SCALE, RESIDUAL, NORM, B0, B1 }; /* inputs */
enum { GLU, EPS, ACTIVATIONS, LIMIT };                  /* attributes */
enum { PAIRS_BYTES = 2 << 20 };

/* One call. */
typedef struct expert_task {
    const op_call *call;
    linear_product product; /* of a block of pairs */
    linear_activation activation;
    int64_t t0, n_pairs;  /* first token of the box; pairs count from it */
    int64_t block;        /* most pairs of a block */
    int64_t lo, hi;       /* the columns that are being computed */
    int64_t kept_columns; /* with scale: columns of a kept row */
    /* [n_pairs] sorted by expert: the pair, and its row of x counted from token t0 */
    int32_t *pairs, *rows;
    int32_t *ends;                     /* [E] number of pairs of the experts up to this one */
    float *x_scratch, *sums[2], *kept; /* [block, LINEAR_COLUMNS] each of the sums */
    void *forms;                       /* rows of the block in other forms (linear_fill_forms) */
} expert_task;

/* True if the tensor is absent, or has dense rows of floats. */
static bool is_float_row(const op_view *v)
{
    bool is_float = v->dtype == IR_F32 || v->dtype == IR_F16 || v->dtype == IR_BF16;
    return !v->data || (is_float && v->stride[v->rank - 1] == 1);
}

/* Accepts every dtype that ref takes, if rows are dense. */
bool expert_accepts(const op_call *call)
{
    for (uint32_t i = W0; i <= W1; i++)
        if (linear_present(call, i) && call->in[i].stride[2] != 1)
            return false;
    return is_float_row(&call->in[X]) && is_float_row(&call->out[0]) &&
           (!linear_present(call, RESIDUAL) || is_float_row(&call->in[RESIDUAL])) &&
           (!linear_present(call, NORM) || is_float_row(&call->in[NORM])) &&
           (!linear_present(call, B0) || is_float_row(&call->in[B0])) &&
           (!linear_present(call, B1) || is_float_row(&call->in[B1]));
}

/* The address of the element at `offset`, a multiple of the dtype's block. */
static char *element(const op_view *v, int64_t offset)
{
    return (char *)v->data + ir_row_bytes(v->dtype, offset);
}

/* Can x be used in place: rows of f32, whole vectors, at one distance? */
static bool x_in_place(const op_call *call)
{
    const op_view *x = &call->in[X];
    return x->dtype == IR_F32 && x->dims[x->rank - 1] % 16 == 0 && !linear_present(call, NORM) &&
           (x->rank == 2 || x->stride[0] == x->dims[1] * x->stride[1]);
}

/* How many rows of x scratch holds.  With a norm all rows of the box, since several experts use
 * a token's row, and normalising it costs more than keeping it. */
static int64_t scratch_rows(const op_call *call, const expert_task *task)
{
    if (linear_present(call, NORM))
        return call->in[X].rank == 3 ? task->n_pairs : task->n_pairs / call->in[IDS].dims[1];
    return x_in_place(call) ? 0 : task->block;
}

/* The next part of scratch, in whole cache lines.  scratch NULL: only the size is counted, and
 * NULL is returned. */
static void *take(char *scratch, size_t *used, size_t bytes)
{
    char *part = scratch ? scratch + *used : 0;
    *used += (bytes + 63) / 64 * 64;
    return part;
}

/* How many columns of all pairs fit into PAIRS_BYTES; at least LINEAR_COLUMNS, at most all. */
static int64_t kept_columns(int64_t n_pairs, int64_t columns)
{
    int64_t fit = PAIRS_BYTES / (4 * n_pairs) / LINEAR_COLUMNS * LINEAR_COLUMNS;
    fit = fit < LINEAR_COLUMNS ? LINEAR_COLUMNS : fit;
    return fit < columns ? fit : columns;
}

/* Bytes of the kept rows: enough for kept_columns, and never less for more pairs, since a box
 * may be clipped to fewer live tokens. */
static size_t kept_bytes(int64_t n_pairs, int64_t columns)
{
    int64_t all = n_pairs * columns * 4, most = n_pairs * LINEAR_COLUMNS * 4;
    most = most < PAIRS_BYTES ? PAIRS_BYTES : most;
    return (size_t)(all < most ? all : most);
}

/* Where the parts of scratch begin; returns their size.  scratch NULL: the size alone. */
static size_t lay_out(const op_call *call, const ir_box *box, const linear_kernels *k,
                      char *scratch, expert_task *task)
{
    linear_product *p = &task->product;
    uint32_t last = call->out[0].rank - 1;
    int64_t columns = box->hi[last] - box->lo[last];
    size_t used = 0;
    task->n_pairs = (box->hi[0] - box->lo[0]) * call->in[IDS].dims[1];
    p->kernels = k;
    p->k = call->in[W0].dims[2];
    p->padded = linear_round_up(p->k, 16);
    p->direct = false; /* set for each block of pairs */
    p->forms = linear_forms_of(k, call, W0, W1, linear_x_parts(call, X, NORM),
                               call->attributes[ACTIVATIONS].s);
    task->block = linear_block_tokens(p, 4 * p->padded + linear_form_bytes(p, 1), task->n_pairs);
    task->kept_columns = kept_columns(task->n_pairs, columns);
    task->pairs = take(scratch, &used, (size_t)task->n_pairs * sizeof *task->pairs);
    task->rows = take(scratch, &used, (size_t)task->n_pairs * sizeof *task->rows);
    task->ends = take(scratch, &used, (size_t)call->in[W0].dims[0] * sizeof *task->ends);
    task->x_scratch =
        take(scratch, &used, (size_t)(scratch_rows(call, task) * p->padded) * sizeof(float));
    task->forms = take(scratch, &used, (size_t)linear_form_bytes(p, task->block));
    p->panel = take(scratch, &used, linear_panel_bytes(p, task->block));
    for (int i = 0; i < 2; i++)
        task->sums[i] = take(scratch, &used, (size_t)task->block * LINEAR_COLUMNS * sizeof(float));
    task->kept =
        take(scratch, &used, linear_present(call, SCALE) ? kept_bytes(task->n_pairs, columns) : 0);
    return used;
}

size_t expert_scratch_bytes(const op_call *call, const ir_box *box, const linear_kernels *k)
{
    expert_task task;
    return lay_out(call, box, k, 0, &task);
}

/* The expert of a pair; -1: the id names none. */
static int64_t expert_of(const expert_task *task, int64_t pair)
{
    const op_view *ids = &task->call->in[IDS];
    return experts_of_pair(ids, task->t0 + pair / ids->dims[1], pair % ids->dims[1],
                           task->call->in[W0].dims[0]);
}

/* Counting sort: count the pairs of each expert, sum the counts up, then put each pair to its
 * expert's next place.  Pairs without an expert are left out. */
static void sort_pairs(expert_task *task)
{
    int64_t n_experts = task->call->in[W0].dims[0], of_token = task->call->in[IDS].dims[1];
    int32_t before = 0;
    memset(task->ends, 0, (size_t)n_experts * sizeof *task->ends);
    for (int64_t i = 0; i < task->n_pairs; i++)
        if (expert_of(task, i) >= 0)
            task->ends[expert_of(task, i)]++;
    for (int64_t e = 0; e < n_experts; e++) {
        int32_t n = task->ends[e];
        task->ends[e] = before;
        before += n;
    }
    for (int64_t i = 0; i < task->n_pairs; i++) {
        int64_t e = expert_of(task, i);
        if (e < 0)
            continue;
        int32_t at = task->ends[e]++;
        task->pairs[at] = (int32_t)i;
        task->rows[at] = (int32_t)(task->call->in[X].rank == 3 ? i : i / of_token);
    }
}

/* Load row `row` of x, counted from token t0, as f32 padded with zeros; normalised if the
 * operator has a norm. */
static void load_row(const expert_task *task, int64_t row, float *to)
{
    const op_view *x = &task->call->in[X], *norm = linear_present(task->call, NORM);
    const linear_product *p = &task->product;
    int64_t of_token = x->rank == 3 ? x->dims[1] : 1;
    const void *from = element(x, (task->t0 + row / of_token) * x->stride[0] +
                                      row % of_token * (x->rank == 3 ? x->stride[1] : 0));
    if (norm)
        p->kernels->norm(from, x->dtype, p->k, norm->data, norm->dtype,
                         (float)task->call->attributes[EPS].f, to);
    else
        p->kernels->widen(from, x->dtype, p->k, to);
    memset(to + p->k, 0, (size_t)(p->padded - p->k) * sizeof *to);
}

/* Point product.x to the rows of n sorted pairs from `first` on, as padded f32: in place, in
 * scratch from before, or loaded now. */
static void find_x(expert_task *task, int64_t first, int64_t n)
{
    const op_view *x = &task->call->in[X];
    linear_product *p = &task->product;
    if (x_in_place(task->call)) {
        const float *at = (const float *)(const void *)element(x, task->t0 * x->stride[0]);
        p->x = (linear_rows){at, x->stride[x->rank - 2], n, task->rows + first};
        return;
    }
    bool ready = linear_present(task->call, NORM);
    p->x = (linear_rows){task->x_scratch, p->padded, n, ready ? task->rows + first : 0};
    for (int64_t i = 0; !ready && i < n; i++)
        load_row(task, task->rows[first + i], task->x_scratch + i * p->padded);
}

/* Those rows in all forms that the weights need: f32, 8-bit integers for block formats, and bf16
 * parts for tiles. */
static void prepare_x(expert_task *task, int64_t first, int64_t n)
{
    linear_product *p = &task->product;
    find_x(task, first, n);
    linear_place_forms(p, n, task->forms);
    for (int64_t i = 0; i < n && linear_form_bytes(p, 1); i++)
        linear_fill_forms(p, linear_row(&p->x, i), i);
}

/* The weight of one expert as a matrix. */
static op_view matrix_of(const op_view *w, int64_t expert)
{
    return (op_view){.data = element(w, expert * w->stride[0]),
                     .dtype = w->dtype,
                     .rank = 2,
                     .dims = {w->dims[1], w->dims[2]},
                     .stride = {w->stride[1], w->stride[2]}};
}

/* An expert's bias from `column` on; NULL: the operator has none. */
static const void *bias_at(const op_call *call, uint32_t input, int64_t expert, int64_t column)
{
    const op_view *b = linear_present(call, input);
    return b ? element(b, expert * b->stride[0] + column) : NULL;
}

/* Turn sums of n columns from `column` on into rows of the result, or into kept rows. */
static void finish_rows(const expert_task *task, int64_t expert, int64_t first, int64_t column,
                        int64_t n)
{
    const op_call *call = task->call;
    const op_view *out = &call->out[0];
    bool keeps = linear_present(call, SCALE);
    int64_t of_token = call->in[IDS].dims[1];
    linear_finish f = {.activation = task->activation,
                       .n = n,
                       .out_dtype = keeps ? IR_F32 : out->dtype,
                       .limit = (float)call->attributes[LIMIT].f,
                       .bias_a = bias_at(call, B0, expert, column),
                       .bias_a_dtype = call->in[B0].dtype,
                       .bias_b = bias_at(call, B1, expert, column),
                       .bias_b_dtype = call->in[B1].dtype};
    for (int64_t i = 0; i < task->product.x.n; i++) {
        int64_t pair = task->pairs[first + i];
        f.a = task->sums[0] + i * LINEAR_COLUMNS;
        f.b = task->activation != LINEAR_PLAIN ? task->sums[1] + i * LINEAR_COLUMNS : 0;
        if (keeps)
            f.out = task->kept + pair * task->kept_columns + column - task->lo;
        else
            f.out = element(out, (task->t0 + pair / of_token) * out->stride[0] +
                                     pair % of_token * out->stride[1] + column);
        task->product.kernels->finish(&f);
    }
}

/* The sorted pairs first .. end - 1, which are all of one expert.  An expert with few pairs
 * takes the direct kernels even if others of the box take panels: both give the same bits. */
static void run_expert(expert_task *task, int64_t expert, int64_t first, int64_t end)
{
    const op_call *call = task->call;
    linear_product *p = &task->product;
    bool glu = task->activation != LINEAR_PLAIN;
    op_view w0 = matrix_of(&call->in[W0], expert), w1 = glu ? matrix_of(&call->in[W1], expert) : w0;
    int64_t most0 = linear_direct_tokens(p->kernels, w0.dtype, p->k),
            most1 = linear_direct_tokens(p->kernels, w1.dtype, p->k);
    for (int64_t at = first, n; at < end; at += n) {
        n = end - at < task->block ? end - at : task->block;
        p->direct = n <= most0 && n <= most1;
        prepare_x(task, at, n);
        for (int64_t c = task->lo; c < task->hi; c += LINEAR_COLUMNS) {
            int64_t columns = task->hi - c < LINEAR_COLUMNS ? task->hi - c : LINEAR_COLUMNS;
            linear_sum(p, &w0, c, columns, task->sums[0]);
            if (glu)
                linear_sum(p, &w1, c, columns, task->sums[1]);
            finish_rows(task, expert, at, c, columns);
        }
    }
}

/* Add the kept rows of a token, times its scales, in the order of its experts, plus the
 * residual: a row of the result. */
static void add_token(const expert_task *task, int64_t t)
{
    const op_call *call = task->call;
    const op_view *scale = &call->in[SCALE], *residual = linear_present(call, RESIDUAL),
                  *out = &call->out[0];
    int64_t of_token = call->in[IDS].dims[1], n = task->hi - task->lo, token = task->t0 + t;
    float *sum = task->kept + t * of_token * task->kept_columns;
    for (int64_t j = 0; j < of_token; j++) {
        const float *row = sum + j * task->kept_columns;
        bool has_expert = expert_of(task, t * of_token + j) >= 0;
        float by = op_load(scale, token * scale->stride[0] + j * scale->stride[1]);
        for (int64_t i = 0; j == 0 && i < n; i++)
            sum[i] = has_expert ? by * row[i] : 0;
        for (int64_t i = 0; j && has_expert && i < n; i++)
            sum[i] += by * row[i];
    }
    linear_finish f = {.a = sum, .n = n, .out_dtype = out->dtype};
    f.out = element(out, token * out->stride[0] + task->lo);
    if (residual) {
        f.residual = element(residual, token * residual->stride[0] + task->lo);
        f.residual_dtype = residual->dtype;
    }
    task->product.kernels->finish(&f);
}

/* Without scale, rows of pairs that have no expert become zeros. */
static void clear_pairs(const expert_task *task)
{
    const op_view *out = &task->call->out[0];
    int64_t of_token = out->dims[1];
    for (int64_t i = 0; i < task->n_pairs; i++)
        if (expert_of(task, i) < 0)
            memset(element(out, (task->t0 + i / of_token) * out->stride[0] +
                                    i % of_token * out->stride[1] + task->lo),
                   0, (size_t)ir_row_bytes(out->dtype, task->hi - task->lo));
}

/* All experts for the columns [lo, hi), then what needs all of them: the sums of tokens, or
 * zeros. */
static void run_columns(expert_task *task)
{
    int32_t first = 0;
    for (int64_t e = 0; e < task->call->in[W0].dims[0]; first = task->ends[e++])
        run_expert(task, e, first, task->ends[e]);
    if (!linear_present(task->call, SCALE)) {
        clear_pairs(task);
        return;
    }
    for (int64_t t = 0; t < task->n_pairs / task->call->in[IDS].dims[1]; t++)
        add_token(task, t);
}

/* A task of expert_linear. Pairs are sorted by expert once, and rows with a norm normalised once;
 * then columns, where results of experts are added up in pieces whose sums fit scratch.
 */
void expert_run(const op_call *call, const ir_box *box, void *scratch, const linear_kernels *k)
{
    expert_task task = {.call = call,
                        .t0 = box->lo[0],
                        .activation = linear_activation_of(call->attributes[GLU].s)};
    int64_t lo = box->lo[call->out[0].rank - 1], hi = box->hi[call->out[0].rank - 1];
    lay_out(call, box, k, scratch, &task);
    sort_pairs(&task);
    for (int64_t i = 0; linear_present(call, NORM) && i < scratch_rows(call, &task); i++)
        load_row(&task, i, task.x_scratch + i * task.product.padded);
    int64_t step = linear_present(call, SCALE) ? task.kept_columns : hi - lo;
    for (int64_t c = lo; c < hi; c += step) {
        task.lo = c;
        task.hi = hi - c < step ? hi : c + step;
        run_columns(&task);
    }
}
