/* sdpa_split.c - attention of a few rows over tensors, cut over the keys so that one long
 * context uses every worker.
 *
 * q [B, H, T, K], k and v [B, G, L, K] (one dtype), mask: bool (true: seen) or real (added to
 * the score), broadcast to [B, H, T, L], or absent -> part [B T, S, H K] in q's dtype, lse f32[B
 * T, S, H].  Query head h uses KV head h / (H / G).
 *
 * Keys are cut into blocks of UNIT = 64; split s has the blocks s, s + S, s + 2 S .., so that
 * the first n keys, which are what most masks show, are spread over the splits whatever n is.  L
 * = 300 and S = 2: split 0 has the keys 0-63, 128-191, 256-299, split 1 has 64-127 and 192-255.
 *
 * part is the mean of the values that a split saw, weighted by exp(score); lse is the logarithm
 * of the sum of exp(score). attention_fold combines the parts: weights exp(lse - largest lse).
 * A split that sees nothing of a row gives lse = -inf and zeros.  Scores and sums are fp32.
 * Cost: that of attention.
 */
#include "op/attend.h"
#include "op/shape.h"

/* Inputs, outputs and attributes, by index. */
enum { Q, KEYS, VALUES, MASK };
enum { PART, LSE };
enum { SCALE, SPLITS };
enum { UNIT = 64 };

/* The outputs are those of attention_split, so attention_fold serves both. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *q = shape_input(g, op, Q), *k = shape_input(g, op, KEYS);
    int64_t splits = op->attributes[SPLITS].i;
    TRY(shape_expect(cx, g, op, Q, SHAPE_FLOAT, 4,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, SHAPE_FREE, SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, KEYS, SHAPE_FLOAT, 4,
                     (int64_t[]){q->dims[0], SHAPE_FREE, SHAPE_FREE, q->dims[3]}));
    TRY(shape_expect(cx, g, op, VALUES, 1u << k->dtype, 4, k->dims));
    for (uint32_t i = Q; i <= VALUES; i++)
        TRY(shape_expect_whole(cx, g, op, i));
    CHECK(cx, q->dims[1] % k->dims[1] == 0, MPK_ESHAPE,
          "sdpa_split: %lld query heads cannot share %lld KV heads", (long long)q->dims[1],
          (long long)k->dims[1]);
    TRY(shape_expect_mask(cx, g, op, MASK,
                          (int64_t[]){q->dims[0], q->dims[1], q->dims[2], k->dims[2]}));
    CHECK(cx, splits >= 1 && splits <= 1 << 16, MPK_EARG,
          "sdpa_split: splits is %lld, expected 1 to 65536", (long long)splits);
    for (uint32_t i = PART; i <= LSE; i++) {
        out[i].dtype = i == PART ? q->dtype : IR_F32;
        out[i].live = IR_ALL;
        out[i].rank = 3;
        out[i].dims[0] = q->dims[0] * q->dims[2];
        out[i].dims[1] = splits;
        out[i].dims[2] = i == PART ? q->dims[1] * q->dims[3] : q->dims[1];
    }
    return MPK_OK;
}

/* Columns of `part` that belong to the query heads of one KV head. */
static int64_t group_columns(const ir_graph *g, const ir_op *op)
{
    const ir_tensor *q = shape_input(g, op, Q), *k = shape_input(g, op, KEYS);
    return q->dims[1] / k->dims[1] * q->dims[3];
}

/* Tasks have whole entries of the batch, any splits, whole KV heads. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    axes[0].grain = shape_input(g, op, Q)->dims[2];
    axes[1].grain = 1;
    axes[2].grain = group_columns(g, op);
}

/* Of keys and values the splits' own blocks if no split has more than one; otherwise all
 * positions, as the blocks of a split are spread over L. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *q = shape_input(g, op, Q), *k = shape_input(g, op, KEYS);
    int64_t tokens = q->dims[2];
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == MASK)
        return;
    read->lo[0] = box->lo[0] / tokens;
    read->hi[0] = box->hi[0] / tokens;
    read->lo[1] = box->lo[2] / (input == Q ? q->dims[3] : group_columns(g, op));
    read->hi[1] = box->hi[2] / (input == Q ? q->dims[3] : group_columns(g, op));
    if (input != Q && op->attributes[SPLITS].i * UNIT >= k->dims[2]) {
        read->lo[2] = box->lo[1] * UNIT < k->dims[2] ? box->lo[1] * UNIT : k->dims[2];
        read->hi[2] = box->hi[1] * UNIT < k->dims[2] ? box->hi[1] * UNIT : k->dims[2];
    }
}

/* lse has one entry for each head, where part has K columns. */
static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    (void)output;
    int64_t size = shape_input(g, op, Q)->dims[3];
    *written = *box;
    written->lo[2] = box->lo[2] / size;
    written->hi[2] = box->hi[2] / size;
}

/* Scratch: a query, a row of k or v, the sums of the answer. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return (size_t)(3 * shape_input(g, op, Q)->dims[3]) * sizeof(float);
}

/* One split of one row.  at: batch entry, head, token; at[3] is overwritten.  query: scratch for
 * three rows. */
static void attend_row(const op_call *call, int64_t *at, int64_t split, float *query)
{
    const op_view *q = &call->in[Q], *k = &call->in[KEYS], *v = &call->in[VALUES];
    const op_view *part = &call->out[PART], *lse = &call->out[LSE];
    int64_t size = q->dims[3], splits = call->attributes[SPLITS].i, length = k->dims[2];
    int64_t kv_head = at[1] / (q->dims[1] / k->dims[1]), to = at[0] * q->dims[2] + at[2];
    float *row = query + size, scale = attend_scale(call->attributes[SCALE].f, size), added;
    attend_sum a = attend_begin(size, row + size);
    at[3] = 0;
    walk_load_row(q, walk_offset(q, at), 0, size, query);
    /* blocks are dealt to splits in turn, so that the positions that a mask shows are spread
     * evenly */
    for (int64_t first = split * UNIT; first < length; first += splits * UNIT)
        for (int64_t p = first; p < first + UNIT && p < length; p++) {
            at[3] = p;
            /* before K is read: positions that are not seen cost their mask alone */
            if (!attend_sees(&call->in[MASK], at, &added))
                continue;
            walk_load_row(k, at[0] * k->stride[0] + kv_head * k->stride[1] + p * k->stride[2], 0,
                          size, row);
            float weight = attend_weigh(&a, scale * dot_rows(query, row, size) + added);
            walk_load_row(v, at[0] * v->stride[0] + kv_head * v->stride[1] + p * v->stride[2], 0,
                          size, row);
            attend_add(&a, weight, row);
        }
    attend_end(&a);
    walk_store_row(part, to * part->stride[0] + split * part->stride[1], at[1] * size, size, a.out);
    op_store(lse, to * lse->stride[0] + split * lse->stride[1] + at[1] * lse->stride[2],
             attend_log(&a));
}

/* Every row, split and head by itself.  Rows of one head read the same keys again: simple, and
 * slow. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    int64_t tokens = call->in[Q].dims[2], size = call->in[Q].dims[3];
    for (int64_t i = box->lo[0]; i < box->hi[0]; i++)
        for (int64_t split = box->lo[1]; split < box->hi[1]; split++)
            for (int64_t head = box->lo[2] / size; head < box->hi[2] / size; head++)
                attend_row(call, (int64_t[4]){i / tokens, head, i % tokens}, split, scratch);
}

/* Test data: a mask of f32 that shows the first keys of each row, a random number, with holes. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    const ir_tensor *t = shape_input(g, op, input);
    int64_t length = shape_input(g, op, KEYS)->dims[2];
    for (int64_t i = 0; input == MASK && t->dtype == IR_F32 && i < ir_elements(t); i++)
        if (i % length >=
                (int64_t)(rng_u64(seed, (uint64_t)(i / length)) % (uint64_t)(length + 1)) ||
            rng_u64(seed ^ 1, (uint64_t)i) % 8 == 0)
            ((float *)data)[i] = -INFINITY;
}

static const op_operand in[] = {{"q", 0}, {"k", 0}, {"v", 0}, {"mask", OP_OPTIONAL}},
                        out[] = {{"part", 0}, {"lse", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("scale", 0), SHAPE_NEEDED("splits", INT)};

#define CASE(q, kv, mask, rest)                                                    \
    {                                                                              \
        "input %q : " q "\ninput %k : " kv "\ninput %v : " kv "\ninput %m : " mask \
        "\n%y, %l = sdpa_split(%q, %k, "                                           \
        "%v, %m) {" rest "}\n"                                                     \
    }
static const op_case cases[] = {
    {"input %q : bf16[1, 4, 1, 64]\ninput %k : bf16[1, 2, 150, 64]\ninput %v : bf16[1, 2, 150, "
     "64]\n%y, %l = "
     "sdpa_split(%q, %k, %v, _) {splits = 3}\n"},
    CASE("f32[2, 4, 3, 16]", "bf16[2, 2, 140, 16]", "f32[2, 1, 3, 140]", "scale = 0.3, splits = 2"),
    CASE("bf16[1, 3, 2, 128]", "f16[1, 1, 70, 128]", "bool[70]", "splits = 1"),
    CASE("f32[1, 2, 4, 24]", "f32[1, 2, 5, 24]", "bf16[1, 2, 4, 1]", "splits = 2"),
};

const op_def op_sdpa_split = {
    .name = "sdpa_split",
    .summary = "attention of a few rows over tensors, cut over the keys; see attention_fold",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .writes = writes,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
