/* sdpa.c - attention over tensors: softmax(scale q k^T + mask) v with grouped heads.
 *
 * q [B, H, T, K], k [B, G, S, K], v [B, G, S, Kv], mask: bool (true: seen) or real (added to the
 * score), broadcast to [B, H, T, S], or absent -> [B, H, T, Kv] in q's dtype, or with by_rows
 * [B, T, H, Kv].  Query head h uses KV head h / (H / G).  causal: row t sees s <= t; window: in
 * addition s > t - window.  A row that sees nothing gives zeros. scale 0 means 1 / sqrt(K).
 *
 * With T = S = 4, causal and window = 2 each row sees the keys
 *
 *   t = 0: 0    t = 1: 0 1    t = 2: 1 2    t = 3: 2 3
 *
 * Scores are sums in double, exponentials fp32 (fp64 for f64).  The order of the sums depends on
 * s alone.  Idea: eight rows at a time share each row of k and v that is loaded.  Cost: 2 T S (K
 * + Kv) flops a head.
 */
#include <math.h>

#include "op/shape.h"
#include "op/walk.h"

/* Inputs and attributes, by index. */
enum { Q, KEYS, VALUES, MASK };
enum { SCALE, CAUSAL, WINDOW, BY_ROWS };
/* Rows of q that are computed together: by the reference code; at most by fast bodies. */
enum { ROWS = 8, MOST_ROWS = 128 };

/* Keys and values may have different head sizes. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *q = shape_input(g, op, Q), *k = shape_input(g, op, KEYS),
                    *v = shape_input(g, op, VALUES);
    TRY(shape_expect(cx, g, op, Q, SHAPE_REAL_NUMBER, 4,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, SHAPE_FREE, SHAPE_FREE}));
    uint32_t dtypes = q->dtype == IR_F64 ? 1 << IR_F64 : SHAPE_FLOAT;
    TRY(shape_expect(cx, g, op, KEYS, dtypes, 4,
                     (int64_t[]){q->dims[0], SHAPE_FREE, SHAPE_FREE, q->dims[3]}));
    TRY(shape_expect(cx, g, op, VALUES, dtypes, 4,
                     (int64_t[]){q->dims[0], k->dims[1], k->dims[2], SHAPE_FREE}));
    for (uint32_t i = 0; i < 3; i++)
        TRY(shape_expect_whole(cx, g, op, i));
    CHECK(cx, q->dims[1] % k->dims[1] == 0, MPK_ESHAPE,
          "sdpa: %lld query heads cannot share %lld KV heads", (long long)q->dims[1],
          (long long)k->dims[1]);
    CHECK(cx, op->attributes[WINDOW].i >= 0, MPK_EARG, "sdpa: window is %lld, expected 0 or more",
          (long long)op->attributes[WINDOW].i);
    TRY(shape_expect_mask(cx, g, op, MASK,
                          (int64_t[]){q->dims[0], q->dims[1], q->dims[2], k->dims[2]}));
    shape_like(q, out);
    out->dims[3] = v->dims[3];
    if (op->attributes[BY_ROWS].i) {
        /* [B, L, H, K]: heads of a token side by side, as the next product reads them */
        out->dims[1] = q->dims[2];
        out->dims[2] = q->dims[1];
    }
    return MPK_OK;
}

/* A box of the result with its heads as axis 1 and its rows as axis 2, whichever order the
 * result has. */
static ir_box by_heads(const ir_op *op, const ir_box *box)
{
    ir_box to = *box;
    if (op->attributes[BY_ROWS].i) {
        to.lo[1] = box->lo[2];
        to.hi[1] = box->hi[2];
        to.lo[2] = box->lo[1];
        to.hi[2] = box->hi[1];
    }
    return to;
}

/* Every row of the result is a softmax of its own, so rows may be cut anywhere; where tiles are
 * whole, 16 rows share the keys that are read. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const uint32_t rows = op->attributes[BY_ROWS].i ? 1 : 2;
    shape_axes_rows(g, op, axes);
    axes[rows].fastest = ROWS;
    axes[rows].tile = 2 * ROWS;
    axes[rows].rises = op->attributes[CAUSAL].i && !op->attributes[WINDOW].i;
}

/* Keys and values of the KV heads that the box's query heads use, all positions; of the mask
 * what is broadcast to the scores of the box. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *t = shape_input(g, op, input), *q = shape_input(g, op, Q),
                    *k = shape_input(g, op, KEYS);
    int64_t share = q->dims[1] / k->dims[1];
    ir_box scores = by_heads(op, box);
    if (input == MASK) {
        scores.lo[3] = 0;
        scores.hi[3] = k->dims[2];
        shape_broadcast_box(t, 4, &scores, read);
        return;
    }
    *read = ir_box_whole(t);
    read->lo[0] = scores.lo[0];
    read->hi[0] = scores.hi[0];
    read->lo[1] = input == Q ? scores.lo[1] : scores.lo[1] / share;
    read->hi[1] = input == Q ? scores.hi[1] : (scores.hi[1] - 1) / share + 1;
    if (input == Q) {
        read->lo[2] = scores.lo[2];
        read->hi[2] = scores.hi[2];
    }
}

/* The keys *from .. *end - 1, of n, that any of rows first .. last - 1 may see by causal and
 * window; the mask is not looked at. */
static void seen_keys(const ir_attribute *attributes, int64_t n, int64_t first, int64_t last,
                      int64_t *from, int64_t *end)
{
    const int64_t window = attributes[WINDOW].i;
    *from = window && first >= window ? first - window + 1 : 0;
    *end = attributes[CAUSAL].i && last < n ? last : n;
    *from = *from < *end ? *from : *end;
}

/* Keys and values that are read again: every head reads those that its rows see for each MOST_ROWS
 * rows.  So it costs the same to cut rows or heads, and rows are cut first (decompose takes the
 * first of equal cuts): tasks that run at the same time then read the same keys and values, which
 * are in L2 once, where all heads at once need not fit. */
static int64_t effort(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    const ir_tensor *k = shape_input(g, op, KEYS), *v = shape_input(g, op, VALUES);
    const ir_box heads = by_heads(op, box);
    ir_box once;
    int64_t keys = 0;
    for (int64_t t = heads.lo[2]; t < heads.hi[2]; t += MOST_ROWS) {
        const int64_t last = t + MOST_ROWS < heads.hi[2] ? t + MOST_ROWS : heads.hi[2];
        int64_t from, end;
        seen_keys(op->attributes, k->dims[2], t, last, &from, &end);
        keys += end - from;
    }
    reads(g, op, KEYS, box, &once);
    keys = keys * (heads.hi[1] - heads.lo[1]) - k->dims[2] * (once.hi[1] - once.lo[1]);
    const int64_t bytes = k->dims[3] * (int64_t)ir_dtype_table[k->dtype].block_bytes +
                          v->dims[3] * (int64_t)ir_dtype_table[v->dtype].block_bytes;
    return keys > 0 ? keys * bytes * (heads.hi[0] - heads.lo[0]) : 0;
}

/* The scratch of ref: scores [ROWS, S], queries [K, ROWS], sums [ROWS, Kv], and one row of k or
 * v as doubles. */
typedef struct parts {
    double *scores, *queries, *sums, *row;
} parts;

/* One row of scratch serves for keys and for values, so it has the wider of both. */
static size_t widest(int64_t a, int64_t b)
{
    return (size_t)(a > b ? a : b);
}

/* As struct parts, for any box. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    const ir_tensor *k = shape_input(g, op, KEYS), *v = shape_input(g, op, VALUES);
    size_t rows = (size_t)(k->dims[2] + k->dims[3] + v->dims[3]) * ROWS;
    return (rows + widest(k->dims[3], v->dims[3])) * sizeof(double);
}

/* Up to eight rows of one head: the unit of work. */
typedef struct rows {
    const op_call *call;
    parts *to;
    int64_t at[4];     /* batch entry, head, first row */
    int64_t n;         /* rows, at most ROWS */
    int64_t from, end; /* what any of them sees */
} rows;

/* Load the queries, times scale, interleaved by row: then an entry of a key is multiplied with
 * all rows at once.  Rows beyond n are zeros. */
static void load_queries(const rows *r)
{
    const op_view *q = &r->call->in[Q];
    double scale = r->call->attributes[SCALE].f, k = (double)q->dims[3];
    scale = scale != 0 ? scale : 1 / sqrt(k);
    memset(r->to->queries, 0, (size_t)q->dims[3] * ROWS * sizeof(double));
    for (int64_t i = 0; i < r->n; i++) {
        int64_t offset = walk_offset(q, r->at) + i * q->stride[2];
        for (int64_t e = 0; e < q->dims[3]; e++)
            r->to->queries[e * ROWS + i] = walk_load_double(q, offset + e * q->stride[3]) * scale;
    }
}

/* Add what the mask adds to the score of row i and key s; false: the row does not see the key. */
static bool add_mask(const rows *r, int64_t i, int64_t s, double *score)
{
    const op_view *mask = &r->call->in[MASK];
    int64_t t = r->at[2] + i, window = r->call->attributes[WINDOW].i;
    if ((r->call->attributes[CAUSAL].i && s > t) || (window && s <= t - window))
        return false;
    if (!mask->data)
        return true;
    int64_t at[4] = {r->at[0], r->at[1], t, s}, offset = walk_broadcast(mask, 4, at);
    if (mask->dtype == IR_BOOL)
        return walk_load_int(mask, offset) != 0;
    *score += walk_load_double(mask, offset);
    return true;
}

/* scores[i][s] for all rows; -inf where a row does not see a key. */
static void score_rows(const rows *r, int64_t k_offset)
{
    const op_view *k = &r->call->in[KEYS];
    int64_t n = k->dims[3], s_dim = k->dims[2];
    for (int64_t s = r->from; s < r->end; s++) {
        double sum[ROWS] = {0};
        walk_load_doubles(k, k_offset + s * k->stride[2], k->stride[3], n, r->to->row);
        for (int64_t e = 0; e < n; e++)
            for (int i = 0; i < ROWS; i++)
                sum[i] += r->to->queries[e * ROWS + i] * r->to->row[e];
        for (int64_t i = 0; i < r->n; i++)
            r->to->scores[i * s_dim + s] = add_mask(r, i, s, &sum[i]) ? sum[i] : -INFINITY;
    }
}

/* Turn a row's scores into weights exp(score - largest); returns their sum, 0 for a row that
 * sees nothing. */
static double weigh_row(const rows *r, double *scores)
{
    bool wide = r->call->in[Q].dtype == IR_F64;
    double largest = -INFINITY, sum = 0;
    for (int64_t s = r->from; s < r->end; s++)
        largest = scores[s] > largest || isnan(scores[s]) ? scores[s] : largest;
    for (int64_t s = r->from; s < r->end; s++) {
        if (scores[s] == -INFINITY)
            scores[s] = 0;
        else
            scores[s] =
                wide ? exp(scores[s] - largest) : (double)expf((float)(scores[s] - largest));
        sum += scores[s];
    }
    return sum;
}

/* sums[i][c] = sum over s of weight times value.  A weight of 0 is skipped: values that no row
 * sees may be NaN. */
static void sum_values(const rows *r, int64_t v_offset)
{
    const op_view *v = &r->call->in[VALUES];
    int64_t n = v->dims[3], s_dim = v->dims[2];
    memset(r->to->sums, 0, (size_t)(ROWS * n) * sizeof(double));
    for (int64_t s = r->from; s < r->end; s++) {
        walk_load_doubles(v, v_offset + s * v->stride[2], v->stride[3], n, r->to->row);
        for (int64_t i = 0; i < r->n; i++) {
            double weight = r->to->scores[i * s_dim + s], *sums = r->to->sums + i * n;
            for (int64_t c = 0; c < n && weight != 0; c++)
                sums[c] += weight * r->to->row[c];
        }
    }
}

/* All of it for up to eight rows.  A row whose total is 0 saw nothing, and is zeros rather than
 * 0 / 0. */
static void attend(rows *r)
{
    const op_view *q = &r->call->in[Q], *k = &r->call->in[KEYS], *v = &r->call->in[VALUES],
                  *y = &r->call->out[0];
    int64_t kv[4] = {r->at[0], r->at[1] / (q->dims[1] / k->dims[1]), 0, 0}, n = v->dims[3];
    const int of_rows = r->call->attributes[BY_ROWS].i ? 1 : 2;
    const int64_t row_step = y->stride[of_rows], head_step = y->stride[3 - of_rows],
                  first = r->at[0] * y->stride[0] + r->at[1] * head_step + r->at[2] * row_step;
    double total[ROWS];
    load_queries(r);
    score_rows(r, walk_offset(k, kv));
    for (int64_t i = 0; i < r->n; i++)
        total[i] = weigh_row(r, r->to->scores + i * k->dims[2]);
    sum_values(r, walk_offset(v, kv));
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t c = 0; c < n; c++)
            walk_store_double(y, first + i * row_step + c * y->stride[3],
                              total[i] == 0 ? 0 : r->to->sums[i * n + c] / total[i]);
}

static void find_range(rows *r)
{
    seen_keys(r->call->attributes, r->call->in[KEYS].dims[2], r->at[2], r->at[2] + r->n, &r->from,
              &r->end);
}

/* Scratch is laid out as scratch_bytes counts it. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *k = &call->in[KEYS], *v = &call->in[VALUES];
    const ir_box heads = by_heads(call->op, box);
    parts to = {.scores = scratch};
    to.queries = to.scores + ROWS * k->dims[2];
    to.sums = to.queries + ROWS * k->dims[3];
    to.row = to.sums + ROWS * v->dims[3];
    for (int64_t b = heads.lo[0]; b < heads.hi[0]; b++)
        for (int64_t h = heads.lo[1]; h < heads.hi[1]; h++)
            for (int64_t t = heads.lo[2]; t < heads.hi[2]; t += ROWS) {
                rows r = {.call = call, .to = &to, .at = {b, h, t, 0}};
                r.n = heads.hi[2] - t < ROWS ? heads.hi[2] - t : ROWS;
                find_range(&r);
                attend(&r);
            }
}

static const op_operand in[] = {{"q", 0}, {"k", 0}, {"v", 0}, {"mask", OP_OPTIONAL}},
                        out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("scale", 0), SHAPE_INT("causal", 0),
                                          SHAPE_INT("window", 0), SHAPE_INT("by_rows", 0)};

#define CASE(q, k, v, mask, rest)                                                \
    {                                                                            \
        "input %q : " q "\ninput %k : " k "\ninput %v : " v "\ninput %m : " mask \
        "\n%y = sdpa(%q, %k, %v, %m) {"                                          \
        "scale = 0.3" rest "}\n"                                                 \
    }
static const op_case cases[] = {
    {"input %q : f32[2, 4, 11, 16]\ninput %k : f32[2, 2, 13, 16]\ninput %v : f32[2, 2, 13, 5]\n%y "
     "= sdpa(%q, %k, %v, "
     "_)\n"},
    CASE("f32[2, 4, 11, 16]", "bf16[2, 2, 13, 16]", "bf16[2, 2, 13, 8]", "bool[2, 1, 11, 13]", ""),
    CASE("bf16[1, 2, 19, 8]", "bf16[1, 2, 19, 8]", "f32[1, 2, 19, 8]", "f32[19]", ", causal = 1"),
    CASE("f32[1, 2, 19, 8]", "f32[1, 1, 19, 8]", "f32[1, 1, 19, 8]", "bool[1, 1]",
         ", causal = 1, window = 4"),
    CASE("bf16[2, 4, 35, 16]", "bf16[2, 2, 35, 16]", "bf16[2, 2, 35, 8]", "bool[1, 1, 35, 35]",
         ", by_rows = 1"),
    CASE("f32[1, 3, 20, 8]", "f32[1, 3, 20, 8]", "f32[1, 3, 20, 8]", "f32[20]",
         ", causal = 1, by_rows = 1"),
    CASE("f64[1, 2, 3, 8]", "f64[1, 2, 5, 8]", "f64[1, 2, 5, 3]", "f64[2, 3, 5]", ""),
};

const op_def op_sdpa = {
    .name = "sdpa",
    .summary = "softmax(scale q k^T + mask) v with grouped heads",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .effort = effort,
    .reads = reads,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
