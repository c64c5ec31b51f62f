/* attention_cache.c - attention of a few tokens over a cache that lies in one piece, cut over
 * the context so that one long request uses every worker; norm, rotation and the cache update
 * are inside.
 *
 * B entries of T tokens each: qkv [B T, (H + 2 G) K], k_cache and v_cache [B, G, L, K] (state),
 * index [T] (positions that the tokens take, the same for each entry), mask broadcast to [B, H,
 * T, L] (bool: true may be seen; or real: added) or absent, cos and sin [1 or B, T, R] or both
 * absent, q_norm and k_norm [K] or absent -> part [B T, S, H K], lse f32[B T, S, H] and the
 * caches in place.
 *
 * First the new keys, normalised (rms_norm) and rotated (rotate) if those operands are there,
 * and the new values go to the positions of `index`: a negative one counts from the end, one
 * that does not exist is skipped, of two equal ones the later token stays.  Then token t of
 * entry b sees the positions that the mask lets it see, all of the L without one.  Positions are
 * cut into blocks of UNIT; split s has the blocks s, s + S, s + 2 S ..., so that the first n
 * positions, which are what a decoding mask shows, are spread over the splits whatever n is.
 *
 *   L = 256, UNIT = 64, S = 2:  split 0 has positions 0-63 and 128-191, split 1 all others
 *
 * part is a split's own mean of the values that it saw, lse the logarithm of the sum of
 * exp(score); attention_fold puts the parts together.  A split that has seen nothing of a row
 * gives lse = -inf and zeros.  The tasks with split S - 1 write the cache; all take new keys and
 * values from qkv.  Cost: that of attention.
 */
#include "op/attend.h"
#include "op/heads.h"
#include "op/rotate.h"

/* Inputs, results and attributes, by index; the positions of a block. */
enum { QKV, K_CACHE, V_CACHE, INDEX, MASK, COSINE, SINE, Q_NORM, K_NORM };
enum { PART, LSE, K_OUT, V_OUT };
enum { HEADS, KV_HEADS, HEAD_SIZE, EPS, SCALE, SPLITS };
enum { UNIT = 64 };

/* The counts of heads that the attributes give. */
static heads_split split_of(const ir_attribute *a)
{
    return (heads_split){a[HEADS].i, a[KV_HEADS].i, a[HEAD_SIZE].i};
}

/* The cache must be state: reads of earlier positions are not named (OP_READS_EARLIER), so
 * another operator of the same step that writes it would not be ordered with the splits. */
static mpk_status check_caches(mpk_context *cx, const ir_graph *g, const ir_op *op, heads_split n)
{
    const ir_tensor *qkv = shape_input(g, op, QKV), *k = shape_input(g, op, K_CACHE),
                    *index = shape_input(g, op, INDEX);
    int64_t dims[] = {SHAPE_FREE, n.kv, SHAPE_FREE, n.size};
    TRY(shape_expect(cx, g, op, K_CACHE, SHAPE_FLOAT, 4, dims));
    TRY(shape_expect(cx, g, op, V_CACHE, 1u << k->dtype, 4, k->dims));
    TRY(shape_expect(cx, g, op, INDEX, SHAPE_INDEX, 1, (int64_t[]){SHAPE_FREE}));
    CHECK(cx, qkv->dims[0] == k->dims[0] * index->dims[0], MPK_ESHAPE,
          "attention_cache: qkv has %lld rows, %lld entries of the cache with %lld tokens each "
          "need %lld",
          (long long)qkv->dims[0], (long long)k->dims[0], (long long)index->dims[0],
          (long long)(k->dims[0] * index->dims[0]));
    for (uint32_t i = K_CACHE; i <= V_CACHE; i++)
        CHECK(cx, shape_input(g, op, i)->kind == IR_STATE, MPK_EUNSUPPORTED,
              "attention_cache: %%%.*s is written in this step, the cache must be state",
              STR_ARG(shape_input(g, op, i)->name));
    return MPK_OK;
}

/* One table for all entries, or one for each. */
static mpk_status check_tables(mpk_context *cx, const ir_graph *g, const ir_op *op, heads_split n)
{
    const ir_tensor *cosine = shape_input(g, op, COSINE), *sine = shape_input(g, op, SINE);
    CHECK(cx, !cosine == !sine, MPK_ESHAPE,
          "attention_cache: cos and sin must be given both or neither");
    if (!cosine)
        return MPK_OK;
    TRY(shape_expect(cx, g, op, COSINE, SHAPE_FLOAT, 3,
                     (int64_t[]){SHAPE_FREE, shape_input(g, op, INDEX)->dims[0], SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, SINE, SHAPE_FLOAT, 3, cosine->dims));
    CHECK(cx, cosine->dims[0] == 1 || cosine->dims[0] == shape_input(g, op, K_CACHE)->dims[0],
          MPK_ESHAPE, "attention_cache: cos has %lld entries, the cache %lld",
          (long long)cosine->dims[0], (long long)shape_input(g, op, K_CACHE)->dims[0]);
    CHECK(cx, cosine->dims[2] % 2 == 0 && cosine->dims[2] <= n.size, MPK_ESHAPE,
          "attention_cache: cos has rows of %lld, an even number and at most %lld is possible",
          (long long)cosine->dims[2], (long long)n.size);
    return MPK_OK;
}

/* The splits' parts are temporaries; the caches are outputs that share their inputs' storage. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    heads_split n = split_of(op->attributes);
    int64_t splits = op->attributes[SPLITS].i;
    TRY(heads_check(cx, g, op, n, Q_NORM));
    TRY(check_caches(cx, g, op, n));
    for (uint32_t i = QKV; i <= SINE; i++)
        TRY(shape_expect_whole(cx, g, op, i));
    const ir_tensor *qkv = shape_input(g, op, QKV), *k = shape_input(g, op, K_CACHE);
    TRY(check_tables(cx, g, op, n));
    TRY(shape_expect_mask(
        cx, g, op, MASK,
        (int64_t[]){k->dims[0], n.q, shape_input(g, op, INDEX)->dims[0], k->dims[2]}));
    CHECK(cx, splits >= 1 && splits <= 1 << 16, MPK_EARG,
          "attention_cache: splits is %lld, expected 1 to 65536", (long long)splits);
    for (uint32_t i = PART; i <= LSE; i++) {
        out[i].dtype = i == PART ? qkv->dtype : IR_F32;
        out[i].live = IR_ALL;
        out[i].rank = 3;
        out[i].dims[0] = qkv->dims[0];
        out[i].dims[1] = splits;
        out[i].dims[2] = i == PART ? n.q * n.size : n.q;
    }
    for (uint32_t i = 0; i < 2; i++) {
        shape_like(shape_input(g, op, K_CACHE + i), &out[K_OUT + i]);
        out[K_OUT + i].shares = op->in[K_CACHE + i];
    }
    return MPK_OK;
}

/* Columns of a part that belong to one KV head. */
static int64_t group_columns(const ir_op *op)
{
    return op->attributes[HEADS].i / op->attributes[KV_HEADS].i * op->attributes[HEAD_SIZE].i;
}

/* Tokens of an entry of the cache. */
static int64_t tokens_of(const ir_graph *g, const ir_op *op)
{
    return shape_input(g, op, INDEX)->dims[0];
}

/* Tasks: whole entries of the batch, any splits, whole KV heads. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    axes[0].grain = tokens_of(g, op);
    axes[1].grain = 1;
    axes[2].grain = group_columns(op);
}

/* Of the caches only positions that no task of this step writes are read: nothing is named, see
 * OP_READS_EARLIER. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == QKV) {
        *read = heads_box(shape_input(g, op, QKV), split_of(op->attributes),
                          box->lo[2] / group_columns(op), box->hi[2] / group_columns(op));
        read->lo[0] = box->lo[0];
        read->hi[0] = box->hi[0];
    } else if (input == K_CACHE || input == V_CACHE) {
        *read = (ir_box){0};
    }
}

/* lse has one entry where part has a head.  The caches are written by the tasks with the last
 * split alone: the box of the others is empty. */
static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    *written = *box;
    if (output == LSE) {
        written->lo[2] = box->lo[2] / op->attributes[HEAD_SIZE].i;
        written->hi[2] = box->hi[2] / op->attributes[HEAD_SIZE].i;
        return;
    }
    *written = (ir_box){0};
    if (box->hi[1] != op->attributes[SPLITS].i)
        return;
    *written = ir_box_whole(&g->tensors.at[op->out[output]]);
    written->lo[0] = box->lo[0] / tokens_of(g, op);
    written->hi[0] = box->hi[0] / tokens_of(g, op);
    written->lo[1] = box->lo[2] / group_columns(op);
    written->hi[1] = box->hi[2] / group_columns(op);
}

/* Scratch: query, row, answer, and a row of both tables. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    const ir_tensor *cosine = shape_input(g, op, COSINE);
    return (size_t)(3 * op->attributes[HEAD_SIZE].i + (cosine ? 2 * cosine->dims[2] : 0)) *
           sizeof(float);
}

/* What the functions below share: the call, and the entry and KV head at hand. */
typedef struct work {
    const op_call *call;
    heads_split n;
    int64_t tokens, length; /* tokens of an entry, positions of the cache */
    int64_t entry, kv_head;
    /* query, row, answer: [K] each; tables: [2 R] */
    float scale, *query, *row, *answer, *tables;
} work;

/* The token of this step that is written to position p, the last of several; -1: none. */
static int64_t find_token(const work *w, int64_t p)
{
    const op_view *index = &w->call->in[INDEX];
    for (int64_t t = w->tokens; t-- > 0;) {
        int64_t i = walk_load_int(index, t * index->stride[0]);
        if ((i < 0 ? i + w->length : i) == p)
            return t;
    }
    return -1;
}

/* Load a head of token t from qkv; normalised and rotated if norm is not NULL (that is, not for
 * values). */
static void load_head(const work *w, int64_t t, int64_t head, const op_view *norm, float *row)
{
    const op_view *in = w->call->in, *cosine = &in[COSINE], *sine = &in[SINE];
    ir_dtype dtype = in[QKV].dtype;
    heads_load(&in[QKV], w->n, w->entry * w->tokens + t, head, row);
    if (norm && norm->data) {
        norm_row(row, w->n.size, norm, w->call->attributes[EPS].f, row);
        for (int64_t i = 0; i < w->n.size && dtype != IR_F32; i++)
            row[i] = walk_round(dtype, row[i]);
    }
    if (!norm || !cosine->data)
        return;
    int64_t at[3] = {w->entry, t, 0}, n = cosine->dims[2];
    walk_load_row(cosine, walk_broadcast(cosine, 3, at), 0, n, w->tables);
    walk_load_row(sine, walk_broadcast(sine, 3, at), 0, n, w->tables + n);
    rotate_row(dtype, row, w->tables, w->tables + n, n);
}

/* Load the key or value at position p: from qkv if a token of this step takes the position,
 * rounded as the cache would round it, else from the cache. */
static void load_position(const work *w, uint32_t cache, int64_t p, float *row)
{
    const op_view *c = &w->call->in[cache];
    int64_t t = find_token(w, p);
    if (t < 0) {
        walk_load_row(c, w->entry * c->stride[0] + w->kv_head * c->stride[1] + p * c->stride[2], 0,
                      w->n.size, row);
        return;
    }
    int64_t head = w->n.q + w->kv_head + (cache == V_CACHE ? w->n.kv : 0);
    load_head(w, t, head, cache == K_CACHE ? &w->call->in[K_NORM] : NULL, row);
    for (int64_t i = 0; i < w->n.size; i++)
        row[i] = walk_round(c->dtype, row[i]);
}

/* Attend to the blocks split, split + S ... for one query head of token t, and store part and
 * lse. */
static void attend_split(const work *w, int64_t t, int64_t head, int64_t split)
{
    const op_view *part = &w->call->out[PART], *lse = &w->call->out[LSE];
    int64_t row = w->entry * w->tokens + t, splits = w->call->attributes[SPLITS].i;
    attend_sum a = attend_begin(w->n.size, w->answer);
    float added;
    load_head(w, t, head, &w->call->in[Q_NORM], w->query);
    for (int64_t first = split * UNIT; first < w->length; first += splits * UNIT)
        for (int64_t p = first; p < first + UNIT && p < w->length; p++) {
            if (!attend_sees(&w->call->in[MASK], (int64_t[4]){w->entry, head, t, p}, &added))
                continue;
            load_position(w, K_CACHE, p, w->row);
            float weight = attend_weigh(&a, w->scale * dot_rows(w->query, w->row, a.size) + added);
            load_position(w, V_CACHE, p, w->row);
            attend_add(&a, weight, w->row);
        }
    attend_end(&a);
    walk_store_row(part, row * part->stride[0] + split * part->stride[1], head * w->n.size,
                   w->n.size, w->answer);
    op_store(lse, row * lse->stride[0] + split * lse->stride[1] + head * lse->stride[2],
             attend_log(&a));
}

/* Write the new keys and values of an entry and KV head to their positions. */
static void fill_cache(const work *w)
{
    for (int64_t p = 0; p < w->length; p++) {
        if (find_token(w, p) < 0)
            continue;
        for (uint32_t i = 0; i < 2; i++) {
            const op_view *c = &w->call->out[K_OUT + i];
            load_position(w, K_CACHE + i, p, w->row);
            walk_store_row(c,
                           w->entry * c->stride[0] + w->kv_head * c->stride[1] + p * c->stride[2],
                           0, w->n.size, w->row);
        }
    }
}

/* Entry by entry and KV head by KV head; each task takes the new keys and values from qkv, so no
 * task waits for another's write. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const ir_attribute *a = call->attributes;
    heads_split n = split_of(a);
    int64_t group = n.q / n.kv;
    work w = {.call = call,
              .n = n,
              .tokens = call->in[INDEX].dims[0],
              .length = call->in[K_CACHE].dims[2]};
    w.scale = attend_scale(a[SCALE].f, n.size);
    w.query = scratch;
    w.row = w.query + n.size;
    w.answer = w.row + n.size;
    w.tables = w.answer + n.size;
    for (w.entry = box->lo[0] / w.tokens; w.entry < box->hi[0] / w.tokens; w.entry++)
        for (w.kv_head = box->lo[2] / n.size / group; w.kv_head < box->hi[2] / n.size / group;
             w.kv_head++) {
            for (int64_t split = box->lo[1]; split < box->hi[1]; split++)
                for (int64_t i = 0; i < w.tokens * group; i++)
                    attend_split(&w, i / group, w.kv_head * group + i % group, split);
            if (box->hi[1] == a[SPLITS].i)
                fill_cache(&w);
        }
}

/* Positions: some that do not exist, some from the end, some twice.  A mask of f32 shows most of
 * the first positions of each row, as a decoding mask does. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    const ir_tensor *t = shape_input(g, op, input);
    int64_t length = shape_input(g, op, K_CACHE)->dims[2];
    for (int64_t i = 0; input == INDEX && i < ir_elements(t); i++)
        fill_store(t, i,
                   (int64_t)(rng_u64(seed, (uint64_t)i) % (uint64_t)(2 * length + 2)) - length - 1,
                   data);
    for (int64_t i = 0; input == MASK && t->dtype == IR_F32 && i < ir_elements(t); i++)
        if (i % length >=
                (int64_t)(rng_u64(seed, (uint64_t)(i / length)) % (uint64_t)(length + 1)) ||
            rng_u64(seed ^ 1, (uint64_t)i) % 8 == 0)
            ((float *)data)[i] = -INFINITY;
}

static const op_operand in[] = {
    {"qkv", 0},           {"k_cache", 0},          {"v_cache", 0},
    {"index", 0},         {"mask", OP_OPTIONAL},   {"cos", OP_OPTIONAL},
    {"sin", OP_OPTIONAL}, {"q_norm", OP_OPTIONAL}, {"k_norm", OP_OPTIONAL}};
static const op_operand out[] = {{"part", 0}, {"lse", 0}, {"k_cache", 0}, {"v_cache", 0}};
static const op_attribute attributes[] = {
    SHAPE_NEEDED("heads", INT), SHAPE_NEEDED("kv_heads", INT), SHAPE_NEEDED("head_size", INT),
    SHAPE_REAL("eps", 1e-6),    SHAPE_REAL("scale", 0),        SHAPE_NEEDED("splits", INT)};

#define INPUTS(qkv, cache, index) \
    "input %x : " qkv "\nstate %kc : " cache "\nstate %vc : " cache "\ninput %i : " index "\n"
/* Grouped heads with everything present; two entries with an additive mask; bf16; no mask and no
 * tables. */
static const op_case cases[] = {
    {INPUTS(
        "f32[1, 512]", "f32[1, 2, 150, 64]",
        "i64[1]") "input %m : bool[1, 1, 1, 150]\ninput %c : f32[1, 1, 64]\ninput %s : f32[1, 1, "
                  "64]\n"
                  "const %qn : f32[64]\nconst %kn : f32[64]\n%y, %l, %k, %v = attention_cache(%x, "
                  "%kc, %vc, %i, "
                  "%m, %c, %s, %qn, %kn) {heads = 4, kv_heads = 2, head_size = 64, splits = 2}\n"},
    {INPUTS("bf16[6, 240]", "f16[2, 1, 70, 48]",
            "i32[3]") "input %m : f32[2, 1, 3, 70]\ninput %c : bf16[2, 3, 32]\ninput %s : bf16[2, "
                      "3, 32]\n%y, %l, %k, "
                      "%v = attention_cache(%x, %kc, %vc, %i, %m, %c, %s) {heads = 3, kv_heads = "
                      "1, head_size = 48, "
                      "scale = 0.2, splits = 3}\n"},
    {INPUTS(
        "bf16[1, 1536]", "bf16[1, 2, 70, 128]",
        "i64[1]") "input %m : bf16[1, 1, 1, 70]\ninput %c : bf16[1, 1, 128]\ninput %s : bf16[1, 1, "
                  "128]\nconst "
                  "%qn : bf16[128]\nconst %kn : bf16[128]\n%y, %l, %k, %v = attention_cache(%x, "
                  "%kc, %vc, %i, "
                  "%m, %c, %s, %qn, %kn) {heads = 8, kv_heads = 2, head_size = 128, splits = 2}\n"},
    {INPUTS("bf16[2, 192]", "bf16[1, 1, 5, 64]",
            "i64[2]") "const %kn : bf16[64]\n%y, %l, %k, %v = attention_cache(%x, %kc, %vc, %i, _, "
                      "_, _, _, %kn) "
                      "{heads = 1, kv_heads = 1, head_size = 64, splits = 1}\n"},
};

const op_def op_attention_cache = {
    .name = "attention_cache",
    .summary = "norm, rotation, cache update and attention of a few tokens over a cache in one "
               "piece, cut over the "
               "context; see attention_fold",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_READS_EARLIER,
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .writes = writes,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
