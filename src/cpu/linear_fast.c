/* linear_fast.c - the fast linear operator: its loops, for any instruction set.
 *
 * A box of y[T, F] is computed in blocks of tokens (so many that their rows of x stay in the
 * second cache); for each block, weight by weight of those whose columns the box touches,
 * LINEAR_COLUMNS columns at a time: sums of products, then finish (bias, activation, residual,
 * store).
 *
 * With few tokens (4, or 32 where all weights are floats) the kernels unpack weights in
 * registers.  With many, a panel of rows is unpacked into scratch, chunk by chunk of K, and used
 * by all tokens of the block.  The arithmetic (linear_fast.h) is the same in both.
 *
 * Scratch: x as f32 if it is normalised, of 16 bits or ragged (one row if all weights multiply
 * other forms); x in 8-bit blocks, or as bf16 parts for tiles; one panel; two blocks of sums.
 *
 * The two ways of a product, of a weight [F, K] in chunks of K:
 *
 *              chunk 0    chunk 1    chunk 2
 *   rows 0-7   [......]   [......]   [...]     direct: unpacked in registers, 4 tokens at a time
 *                                              panel:  unpacked to scratch, 768 floats a
 *                                                      row, then used for every token
 *                                                      of the block
 *
 * Called by: linear_run and linear_scratch_bytes are wrapped for each instruction set by
 * LINEAR_SET (linear_kernels.h); expert_fast.c calls linear_sum.
 */
#include "cpu/linear_fast.h"

#include "ir/blocks.h"
#include "op/narrow.h"

enum { X, W0, W1, W2, B0, B1, B2, NORM, RESIDUAL };   /* inputs */
enum { EPS, GLU, ACTIVATIONS, ACT, FACTOR, CENTRED }; /* attributes */
enum {
    X_BYTES = 512 * 1024, /* bytes of x in a block of tokens */
    /* the same as bf16 parts: processors with tiles have a second cache of 2 MB, and a panel's
     * transposition is worth that of several tiles of tokens */
    SPLIT_BYTES = 1536 * 1024,
    SPLIT_TOKENS = 3 * TILE_ROWS, /* least tokens of such a block, which are a multiple of it */
    PANEL_TOKENS = 24,            /* tokens that use a panel between two prefetches of weights */
    AHEAD = 8                     /* tokens: how long before its stores a row of y is prefetched */
};

/* One call. */
typedef struct linear_task {
    const op_call *call;
    linear_product product; /* of the block */
    linear_activation activation;
    int64_t t0;                 /* the block's first token */
    float *x_scratch, *sums[2]; /* [block, LINEAR_COLUMNS] each of the sums */
} linear_task;

/* The dtypes of activations, norms, biases and results. */
static bool is_float(ir_dtype dtype)
{
    return dtype == IR_F32 || dtype == IR_F16 || dtype == IR_BF16;
}

/* Can the operand be used?  It must have dense rows of floats, or be absent (NULL). */
static bool takes_dtype(const op_view *v)
{
    return !v || (is_float(v->dtype) && v->stride[v->rank - 1] == 1);
}

/* Accepts every dtype that ref takes, if rows are dense; formats without a kernel are unpacked
 * by blocks.h. */
bool linear_accepts(const op_call *call)
{
    for (uint32_t i = 0; i < call->n_in; i++) {
        const op_view *v = linear_present(call, i);
        bool weight = i == W0 || i == W1 || i == W2;
        if (weight && v && v->stride[1] != 1)
            return false;
        if (!weight && !takes_dtype(v))
            return false;
    }
    return takes_dtype(&call->out[0]) && !call->attributes[ACT].s.n &&
           call->attributes[FACTOR].f == 1 && !call->attributes[CENTRED].i;
}

/* How many of n rows of `bytes` each form a block.  A multiple of twelve, since kernels take
 * three or four tokens at a time; sixteen at least, or unpacking a panel would cost more than
 * using it. */
int64_t linear_block_tokens(const linear_product *p, int64_t bytes, int64_t n)
{
    int64_t fit = X_BYTES / bytes / 12 * 12;
    fit = fit < 16 ? 16 : fit;
    if (p->forms.parts) {
        fit = SPLIT_BYTES / bytes / SPLIT_TOKENS * SPLIT_TOKENS;
        fit = fit < SPLIT_TOKENS ? SPLIT_TOKENS : fit;
    }
    return fit < n ? fit : n;
}

/* Are weights of this dtype multiplied as tiles?  Tokens have no say: the bits are others. */
static bool takes_tiles(const linear_kernels *k, ir_dtype dtype, int64_t columns)
{
    return k->tiles && dtype == IR_BF16 && columns % TILE_STEP == 0;
}

linear_forms linear_forms_of(const linear_kernels *k, const op_call *call, uint32_t first,
                             uint32_t last, int parts, str activations)
{
    linear_forms forms = {0};
    for (uint32_t i = first; i <= last; i++) {
        const op_view *w = linear_present(call, i);
        int64_t block = w && narrow_is_asked(activations) ? narrow_block(w->dtype) : 0;
        if (block)
            forms.narrow[block != 32] = true;
        else if (w && takes_tiles(k, w->dtype, w->dims[w->rank - 1]))
            forms.parts = parts;
        else if (w)
            forms.plain = true;
    }
    return forms;
}

/* The two block sizes to which x may be narrowed, by index into linear_forms.narrow and
 * .narrowed. */
static const int64_t narrow_blocks[2] = {32, 256};

int64_t linear_form_bytes(const linear_product *p, int64_t n)
{
    int64_t bytes = tile_bytes(p->k, n, p->forms.parts);
    for (int i = 0; i < 2; i++)
        bytes += p->forms.narrow[i] ? n * int8_row_bytes(p->k, narrow_blocks[i]) : 0;
    return bytes;
}

void linear_place_forms(linear_product *p, int64_t n, void *scratch)
{
    unsigned char *at = scratch;
    for (int i = 0; i < 2; i++) {
        p->narrowed[i] = (int8_rows){at, p->k, narrow_blocks[i], n};
        at += p->forms.narrow[i] ? n * int8_row_bytes(p->k, narrow_blocks[i]) : 0;
    }
    p->split = (tile_x){at, p->k, n, p->forms.parts};
}

void linear_fill_forms(linear_product *p, const float *x, int64_t t)
{
    if (p->forms.parts)
        p->kernels->tiles->split(x, t, &p->split);
    for (int i = 0; i < 2; i++) {
        const int8_rows *to = &p->narrowed[i];
        if (p->forms.narrow[i])
            p->kernels->int8->narrow(
                x, p->k, to->block,
                (void *)(uintptr_t)(to->at + t * int8_row_bytes(p->k, to->block)));
    }
}

/* Can x be used in place: f32, whole vectors, not normalised? */
static bool x_in_place(const op_call *call)
{
    return call->in[X].dtype == IR_F32 && call->in[X].dims[1] % 16 == 0 &&
           !linear_present(call, NORM);
}

/* With more tokens than these the weights are unpacked only once.  Blocks are unpacked for four
 * tokens at a time at most, since unpacking takes longer than the products. */
int64_t linear_direct_tokens(const linear_kernels *k, ir_dtype dtype, int64_t columns)
{
    if (columns % 32 || !k->direct[dtype])
        return 0;
    return is_float(dtype) ? LINEAR_FEW_TOKENS : LINEAR_DIRECT_TOKENS;
}

/* Can this many tokens be multiplied by every weight without a panel of floats? */
static bool is_direct(const op_call *call, const linear_kernels *k, int64_t tokens)
{
    bool all = true;
    for (uint32_t i = W0; i <= W2; i++) {
        const op_view *w = linear_present(call, i);
        all = all && (!w || tokens <= linear_direct_tokens(k, w->dtype, call->in[X].dims[1]));
    }
    return all;
}

/* Bytes of the panel.  Panels of floats, of bytes and of tiles are never needed at once: they share
 * the place, which has the largest size. */
size_t linear_panel_bytes(const linear_product *p, int64_t n)
{
    int64_t floats = p->kernels->panel_rows * (p->padded < LINEAR_CHUNK ? p->padded : LINEAR_CHUNK);
    size_t plain = p->direct || !p->forms.plain ? 0 : (size_t)linear_round_up(4 * floats, 64);
    size_t narrow = (p->forms.narrow[0] || p->forms.narrow[1]) && n > INT8_DIRECT_TOKENS
                        ? p->kernels->int8->panel_bytes
                        : 0;
    size_t tiles = p->forms.parts && n > TILE_FEW ? TILE_PANEL_BYTES : 0;
    plain = plain > narrow ? plain : narrow;
    return plain > tiles ? plain : tiles;
}

/* Where the parts of scratch begin: x, its 8-bit forms, the panel, two blocks of sums; returns
 * the size.  scratch NULL: the size alone, and the pointers stay unset. */
static size_t lay_out(const op_call *call, const ir_box *box, const linear_kernels *k,
                      char *scratch, linear_task *task)
{
    int64_t n = box->hi[0] - box->lo[0];
    linear_product *p = &task->product;
    p->kernels = k;
    p->k = call->in[X].dims[1];
    p->padded = linear_round_up(p->k, 16);
    p->direct = is_direct(call, k, n);
    p->forms = linear_forms_of(k, call, W0, W2, linear_x_parts(call, X, NORM),
                               call->attributes[ACTIVATIONS].s);
    p->x.n =
        linear_block_tokens(p, (p->forms.plain ? 4 * p->padded : 0) + linear_form_bytes(p, 1), n);
    size_t x_bytes = x_in_place(call) ? 0 : (size_t)((p->forms.plain ? p->x.n : 1) * p->padded) * 4;
    size_t form_bytes = (size_t)linear_form_bytes(p, p->x.n),
           panel_bytes = linear_panel_bytes(p, p->x.n);
    size_t sums_bytes = (size_t)p->x.n * LINEAR_COLUMNS * 4;
    if (scratch) {
        task->x_scratch = (float *)(void *)scratch;
        linear_place_forms(p, p->x.n, scratch + x_bytes);
        scratch += x_bytes + form_bytes;
        p->panel = (float *)(void *)scratch;
        for (int i = 0; i < 2; i++)
            task->sums[i] = (float *)(void *)(scratch + panel_bytes + (size_t)i * sums_bytes);
    }
    return x_bytes + form_bytes + panel_bytes + 2 * sums_bytes;
}

size_t linear_scratch_bytes(const op_call *call, const ir_box *box, const linear_kernels *k)
{
    linear_task task;
    return lay_out(call, box, k, 0, &task);
}

/* The address of an element; column is a multiple of the dtype's block.  A vector (a bias) has
 * no rows. */
static char *element(const op_view *v, int64_t row, int64_t column)
{
    const ir_dtype_info *info = &ir_dtype_table[v->dtype];
    int64_t n = v->rank == 1 ? column : row * v->stride[0] + column;
    return (char *)v->data + n / info->block_elements * info->block_bytes;
}

/* Row t of x as padded f32, normalised: in place if possible, else in `to`.  Returns where it
 * is. */
static const float *load_row(const linear_task *task, int64_t t, float *to)
{
    const op_call *call = task->call;
    const op_view *x = &call->in[X], *norm = linear_present(call, NORM);
    const linear_product *p = &task->product;
    const void *from = element(x, t, 0);
    if (x_in_place(call))
        return from;
    if (norm)
        p->kernels->norm(from, x->dtype, p->k, norm->data, norm->dtype,
                         (float)call->attributes[EPS].f, to);
    else
        p->kernels->widen(from, x->dtype, p->k, to);
    memset(to + p->k, 0, (size_t)(p->padded - p->k) * sizeof *to);
    return to;
}

/* Are rows of x taken as they are?  What one part holds is BF16 (linear_x_parts). */
static bool x_is_copied(const linear_forms *forms)
{
    return forms->parts == 1 && !forms->plain && !forms->narrow[0] && !forms->narrow[1];
}

/* The block's rows of x in the forms that its weights need.  If no weight multiplies f32, one row
 * of scratch serves every token in turn: only its other forms are kept. */
static void prepare_x(linear_task *task, int64_t t0, int64_t n)
{
    linear_product *p = &task->product;
    bool in_place = x_in_place(task->call);
    task->t0 = t0;
    p->x = (linear_rows){task->x_scratch, p->padded, n, 0};
    if (in_place)
        p->x = (linear_rows){load_row(task, t0, 0), task->call->in[X].stride[0], n, 0};
    for (int i = 0; i < 2; i++)
        p->narrowed[i].n = n;
    p->split.n = n;
    if (x_is_copied(&p->forms)) {
        for (int64_t t = 0; t < n; t++)
            p->kernels->tiles->copy(
                (const uint16_t *)(const void *)element(&task->call->in[X], t0 + t, 0), t,
                &p->split);
        return;
    }
    for (int64_t t = 0; t < n && (!in_place || linear_form_bytes(p, 1)); t++)
        linear_fill_forms(
            p, load_row(task, t0 + t, task->x_scratch + (p->forms.plain ? t : 0) * p->padded), t);
}

/* The end of the chunk of K that begins at k0.  Chunks begin at multiples of LINEAR_CHUNK
 * however the box is cut, since the order of the sums is part of the operator's bits. */
static int64_t chunk_end(int64_t k0, int64_t end)
{
    return k0 + LINEAR_CHUNK < end ? k0 + LINEAR_CHUNK : end;
}

/* The rows [t, t + n) of x. */
static linear_rows some_rows(linear_rows x, int64_t t, int64_t n)
{
    if (x.index)
        return (linear_rows){x.at, x.stride, n, x.index + t};
    return (linear_rows){x.at + t * x.stride, x.stride, n, 0};
}

/* Sums of n columns from row `row` of a weight, directly from its packed rows: four tokens after
 * the others, while the rows are in the second cache. */
static void sum_direct(const linear_product *p, const op_view *w, int64_t row, int64_t n,
                       float *sums)
{
    int64_t row_bytes = element(w, 1, 0) - element(w, 0, 0);
    for (int64_t t = 0, some; t < p->x.n; t += some) {
        some = p->x.n - t < LINEAR_DIRECT_TOKENS ? p->x.n - t : LINEAR_DIRECT_TOKENS;
        const linear_rows x = some_rows(p->x, t, some);
        for (int64_t k0 = 0, k1; k0 < p->k; k0 = k1) {
            k1 = chunk_end(k0, p->k);
            p->kernels->direct[w->dtype](x, element(w, row, 0), row_bytes, n, k0, k1, k0 > 0,
                                         sums + t * LINEAR_COLUMNS, LINEAR_COLUMNS);
        }
    }
}

/* Elements [k0, k1) of a row of weights as f32, zeros after the end of the row: in place if
 * possible, else in `to`. */
static const float *unpacked(const linear_product *p, const op_view *w, int64_t row, int64_t k0,
                             int64_t k1, float *to)
{
    const void *from = element(w, row, k0);
    int64_t end = k1 < p->k ? k1 : p->k, n = end - k0;
    if (w->dtype == IR_F32 && end == k1)
        return from;
    if (!p->kernels->unpack(w->dtype, from, n, to))
        blocks_unpack_row(w->dtype, from, n, to);
    memset(to + n, 0, (size_t)(k1 - end) * sizeof *to);
    return to;
}

/* Prefetch part `part` of `parts` of the rows that the next panel will have: the rows of a box
 * follow each other in memory. */
static void ask_next(const linear_product *p, const op_view *w, int64_t row, int64_t k0, int64_t k1,
                     int64_t part, int64_t parts)
{
    const int64_t rows = p->kernels->panel_rows, row_bytes = element(w, 1, 0) - element(w, 0, 0);
    const int64_t bytes = element(w, row, k1) - element(w, row, k0);
    const int64_t first = bytes * part / parts / 64 * 64, end = bytes * (part + 1) / parts;
    const char *next = element(w, row + rows, k0);
    for (int64_t r = 0; r < rows; r++, next += row_bytes)
        for (int64_t i = first; i < end; i += 64)
            __builtin_prefetch(next + i, 0, 2);
}

/* Multiply a panel with all tokens of the block, a few at a time.  Between them a part of the
 * next panel is prefetched: all of it at once would fill the queue of loads from memory, and the
 * products after it would wait. */
static void use_panel(const linear_product *p, const op_view *w, int64_t row,
                      const float *const *at, int64_t k0, int64_t k1, float *sums)
{
    int64_t parts = (p->x.n + PANEL_TOKENS - 1) / PANEL_TOKENS;
    for (int64_t i = 0; i < parts; i++) {
        int64_t t = i * PANEL_TOKENS, left = p->x.n - t;
        linear_rows x = some_rows(p->x, t, left < PANEL_TOKENS ? left : PANEL_TOKENS);
        x.at += k0;
        ask_next(p, w, row, k0, k1, i, parts);
        p->kernels->panel(x, at, k1 - k0, k0 > 0, sums + t * LINEAR_COLUMNS, LINEAR_COLUMNS);
    }
}

/* The same sums through a panel of floats: eight rows or so at a time, chunk by chunk, with all
 * tokens of the block each time. */
static void sum_panel(const linear_product *p, const op_view *w, int64_t row, int64_t n,
                      float *sums)
{
    int64_t rows = p->kernels->panel_rows;
    const float *at[8];
    for (int64_t r0 = 0; r0 < n; r0 += rows)
        for (int64_t k0 = 0, k1; k0 < p->padded; k0 = k1) {
            k1 = chunk_end(k0, p->padded);
            /* past the end the last row is repeated; its sums are not read */
            for (int64_t r = 0; r < rows; r++)
                at[r] = r0 + r < n ? unpacked(p, w, row + r0 + r, k0, k1, p->panel + r * (k1 - k0))
                                   : at[r - 1];
            use_panel(p, w, row + r0, at, k0, k1, sums + r0);
        }
}

/* The four ways of a product: narrowed x, tiles, direct, panel.  The first two differ in their
 * arithmetic, so only the operator's attribute, the dtype and K decide about them; the number of
 * tokens decides between the other two, whose bits are equal. */
void linear_sum(const linear_product *p, const op_view *w, int64_t row, int64_t n, float *sums)
{
    const int64_t block = narrow_block(w->dtype), row_bytes = element(w, 1, 0) - element(w, 0, 0);
    if (block && p->forms.narrow[block != 32])
        p->kernels->int8->product[w->dtype](&p->narrowed[block != 32], element(w, row, 0),
                                            row_bytes, n, p->panel, sums, LINEAR_COLUMNS);
    else if (takes_tiles(p->kernels, w->dtype, p->k))
        p->kernels->tiles->product(&p->split, element(w, row, 0), row_bytes, n, p->panel, sums,
                                   LINEAR_COLUMNS);
    else if (p->direct)
        sum_direct(p, w, row, n, sums);
    else
        sum_panel(p, w, row, n, sums);
}

/* Prefetch elements of y for storing: rows are too far apart for the processor to predict them,
 * and a store that misses delays the next ones. */
static void ask_stored(const op_view *y, int64_t row, int64_t column, int64_t n)
{
    const char *end = element(y, row, column + n);
    for (const char *at = element(y, row, column); at < end; at += 64)
        __builtin_prefetch(at, 1, 3);
}

/* Finish the sums of all tokens: columns [row, row + n) of weight `weight`, which are columns
 * [column, column + n) of y. */
static void finish_rows(const linear_task *task, uint32_t weight, int64_t row, int64_t column,
                        int64_t n, bool glu)
{
    const op_call *call = task->call;
    const op_view *a = linear_present(call, weight - W0 + B0),
                  *b = glu ? linear_present(call, B1) : 0;
    const op_view *residual = linear_present(call, RESIDUAL), *out = &call->out[0];
    linear_finish f = {.activation = task->activation, .n = n, .out_dtype = out->dtype};
    if (a)
        f.bias_a = element(a, 0, row), f.bias_a_dtype = a->dtype;
    if (b)
        f.bias_b = element(b, 0, row), f.bias_b_dtype = b->dtype;
    if (residual)
        f.residual_dtype = residual->dtype;
    for (int64_t t = 0; t < task->product.x.n; t++) {
        if (t + AHEAD < task->product.x.n)
            ask_stored(out, task->t0 + t + AHEAD, column, n);
        f.a = task->sums[0] + t * LINEAR_COLUMNS;
        f.b = glu ? task->sums[1] + t * LINEAR_COLUMNS : 0;
        f.out = element(out, task->t0 + t, column);
        f.residual = residual ? element(residual, task->t0 + t, column) : 0;
        task->product.kernels->finish(&f);
    }
}

/* Columns [lo, hi) of y, which are rows of `weight`; row 0 is column first_column. */
static void run_columns(const linear_task *task, uint32_t weight, int64_t first_column, int64_t lo,
                        int64_t hi)
{
    bool glu = task->activation != LINEAR_PLAIN;
    for (int64_t c = lo; c < hi; c += LINEAR_COLUMNS) {
        int64_t n = hi - c < LINEAR_COLUMNS ? hi - c : LINEAR_COLUMNS, row = c - first_column;
        linear_sum(&task->product, &task->call->in[weight], row, n, task->sums[0]);
        if (glu)
            linear_sum(&task->product, &task->call->in[W1], row, n, task->sums[1]);
        finish_rows(task, weight, row, c, n, glu);
    }
}

/* One block of tokens.  q, k and v may be three weights, W0 to W2, whose results lie side by
 * side in y; with a gate there are two of one size, whose results are multiplied.  Only the
 * weights whose columns the box touches are read. */
static void run_block(const linear_task *task, const ir_box *box)
{
    int64_t first = 0;
    uint32_t last = task->activation != LINEAR_PLAIN ? W0 : W2;
    for (uint32_t i = W0; i <= last && linear_present(task->call, i); i++) {
        int64_t end = first + task->call->in[i].dims[0];
        int64_t lo = box->lo[1] > first ? box->lo[1] : first,
                hi = box->hi[1] < end ? box->hi[1] : end;
        run_columns(task, i, first, lo, hi);
        first = end;
    }
}

linear_activation linear_activation_of(str glu)
{
    if (str_is(glu, "silu"))
        return LINEAR_SILU;
    if (str_is(glu, "gelu"))
        return LINEAR_GELU;
    if (str_is(glu, "swiglu_oai"))
        return LINEAR_SWIGLU_OAI;
    return str_is(glu, "gelu_tanh") ? LINEAR_GELU_TANH : LINEAR_PLAIN;
}

void linear_run(const op_call *call, const ir_box *box, void *scratch, const linear_kernels *k)
{
    linear_task task = {.call = call, .activation = linear_activation_of(call->attributes[GLU].s)};
    lay_out(call, box, k, scratch, &task);
    int64_t tokens = task.product.x.n;
    for (int64_t t = box->lo[0]; t < box->hi[0]; t += tokens) {
        prepare_x(&task, t, box->hi[0] - t < tokens ? box->hi[0] - t : tokens);
        run_block(&task, box);
    }
}
