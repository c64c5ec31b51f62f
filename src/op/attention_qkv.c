/* attention_qkv.c - the paper's fused attention operator: norm and rope of heads, cache update,
 * attention (paper §6.1).
 *
 * qkv [T, (H + 2 G) K], positions, slots, pages, k_cache, v_cache, q_norm [K], k_norm [K] -> [T,
 * H K] and the caches in place.  The bits are those of rope_table, rope_kv and attention one
 * after the other.  A task does all tokens of some KV heads: it fills their cache, then attends.
 *
 * Made by fuse_ops at level `paper` alone; `full` splits the context instead (attention_split).
 * Cost: that of rope_kv and attention, and a sine and a cosine for each token, pair and KV head.
 */
#include "op/attend.h"
#include "op/heads.h"

enum { QKV, POSITIONS, SLOTS, PAGES, K_CACHE, V_CACHE, Q_NORM, K_NORM };
enum { HEADS = ROPE_ATTRIBUTES, KV_HEADS, HEAD_SIZE, EPS, SCALE, WINDOW };

/* The counts that attributes give, after those of the rotation. */
static heads_split split_of(const ir_attribute *a)
{
    return (heads_split){a[HEADS].i, a[KV_HEADS].i, a[HEAD_SIZE].i};
}

/* The attributes of the rotation are checked as rope_table checks them. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    heads_split n = split_of(op->attributes);
    TRY(rope_check(cx, op));
    TRY(heads_check(cx, g, op, n, Q_NORM));
    const ir_tensor *qkv = shape_input(g, op, QKV);
    CHECK(cx, 2 * rope_pairs(op->attributes) <= n.size, MPK_ESHAPE,
          "attention_qkv: %lld pairs are more than a head of %lld has",
          (long long)rope_pairs(op->attributes), (long long)n.size);
    CHECK(cx, op->attributes[WINDOW].i >= 0, MPK_EARG,
          "attention_qkv: window is %lld, expected 0 (none) or more",
          (long long)op->attributes[WINDOW].i);
    TRY(pages_expect(cx, g, op, POSITIONS, qkv->dims[0], qkv->live));
    TRY(pages_expect_caches(cx, g, op, K_CACHE, n.kv, n.size));
    shape_like(qkv, &out[0]);
    out[0].dims[1] = n.q * n.size;
    for (uint32_t i = 0; i < 2; i++) {
        shape_like(shape_input(g, op, K_CACHE + i), &out[1 + i]);
        out[1 + i].shares = op->in[K_CACHE + i];
    }
    return MPK_OK;
}

/* Columns of the output that belong to one KV head. */
static int64_t group_columns(const ir_op *op)
{
    return op->attributes[HEADS].i / op->attributes[KV_HEADS].i * op->attributes[HEAD_SIZE].i;
}

/* Tokens are not cut: each sees what the others of the step have just written, within one task. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g;
    axes[1].grain = group_columns(op);
}

/* The caches count as read: earlier positions lie there. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    int64_t lo = box->lo[1] / group_columns(op), hi = box->hi[1] / group_columns(op);
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == QKV)
        *read = heads_box(shape_input(g, op, QKV), split_of(op->attributes), lo, hi);
    else if (input == K_CACHE || input == V_CACHE)
        *read = pages_box(shape_input(g, op, input), lo, hi);
}

/* The page that a token goes to follows from data: all pages of the KV heads count as written. */
static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    *written = pages_box(&g->tensors.at[op->out[output]], box->lo[1] / group_columns(op),
                         box->hi[1] / group_columns(op));
}

/* Scratch: query, row and answer, then frequencies, cosines and sines of half a head each. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)g, (void)box;
    return (size_t)(4 * op->attributes[HEAD_SIZE].i + 3 * rope_pairs(op->attributes)) *
           sizeof(float);
}

/* The rotation of a call: the frequencies, filled once, and the row of the token at hand. */
typedef struct rotation {
    int64_t half;
    float amplitude, *frequency, *cosine, *sine;
} rotation;

/* Cosines and sines of a position's angles, rounded as rope_table rounds them. */
static void rotation_to(rotation *w, int64_t position)
{
    for (int64_t i = 0; i < w->half; i++)
        rope_angle(w->frequency[i], w->amplitude, position, &w->cosine[i], &w->sine[i]);
}

/* A token's position or slot. */
static int64_t integer_of(const op_view *v, int64_t token)
{
    return walk_load_int(v, token * v->stride[0]);
}

/* Put the keys and values of all tokens into the cache, for KV heads lo .. hi - 1. */
static void fill_cache(const op_call *call, rotation *w, int64_t lo, int64_t hi, float *row)
{
    const ir_attribute *a = call->attributes;
    const op_view *in = call->in;
    heads_split n = split_of(a);
    for (int64_t t = 0; t < op_live_entries(call, &in[QKV]); t++) {
        int64_t position = integer_of(&in[POSITIONS], t), slot = integer_of(&in[SLOTS], t);
        rotation_to(w, position);
        for (int64_t head = lo; head < hi; head++) {
            heads_load(&in[QKV], n, t, n.q + head, row);
            heads_rotate(in[QKV].dtype, row, n.size, (heads_norm){&in[K_NORM], a[EPS].f, false},
                         w->cosine, w->sine, w->half);
            pages_store(&in[PAGES], &call->out[1], slot, position, head, row);
            heads_load(&in[QKV], n, t, n.q + n.kv + head, row);
            pages_store(&in[PAGES], &call->out[2], slot, position, head, row);
        }
    }
}

/* First the cache of these KV heads for all tokens, then attention for each. Scratch holds, in
 * floats: the query, two rows of attend_head and the answer (a head each), then frequencies,
 * cosines and sines (half a rotated head each). Frequencies are found once for each task, angles
 * once for each token. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const ir_attribute *a = call->attributes;
    const op_view *in = call->in, *out = &call->out[0];
    heads_split n = split_of(a);
    int64_t group = n.q / n.kv, half = rope_pairs(a), lo = box->lo[1] / n.size,
            hi = box->hi[1] / n.size;
    float *query = scratch, *row = query + n.size, *answer = row + 2 * n.size,
          *frequency = answer + n.size;
    /* one room of scratch after the other: frequencies, then cosines, then sines of one token */
    rotation w = {half, rope_amplitude(a), frequency, frequency + half, frequency + 2 * half};
    for (int64_t i = 0; i < half; i++)
        frequency[i] = rope_frequency(a, i);
    /* the whole step's keys before any query: a token sees those of the step's earlier tokens */
    fill_cache(call, &w, lo / group, hi / group, row);
    attend_view view = {
        &call->out[1], &call->out[2], &in[PAGES], attend_scale(a[SCALE].f, n.size), a[WINDOW].i, 0};
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
        int64_t position = integer_of(&in[POSITIONS], t), slot = integer_of(&in[SLOTS], t);
        rotation_to(&w, position);
        for (int64_t head = lo; head < hi; head++) {
            heads_load(&in[QKV], n, t, head, query);
            heads_rotate(in[QKV].dtype, query, n.size, (heads_norm){&in[Q_NORM], a[EPS].f, false},
                         w.cosine, w.sine, half);
            attend_head(&view, slot, position, head / group, -INFINITY, query, row, answer);
            walk_store_row(out, t * out->stride[0], head * n.size, n.size, answer);
        }
    }
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    pages_fill(g, op, POSITIONS, K_CACHE, input, seed, data);
}

static const op_operand in[] = {
    {"qkv", 0},     {"positions", 0},        {"slots", 0},           {"pages", 0}, {"k_cache", 0},
    {"v_cache", 0}, {"q_norm", OP_OPTIONAL}, {"k_norm", OP_OPTIONAL}};
static const op_operand out[] = {{"y", 0}, {"k_cache", 0}, {"v_cache", 0}};
static const op_attribute attributes[] = {
    ROPE_ATTRIBUTE_ROWS,           SHAPE_NEEDED("heads", INT),
    SHAPE_NEEDED("kv_heads", INT), SHAPE_NEEDED("head_size", INT),
    SHAPE_REAL("eps", 1e-6),       SHAPE_REAL("scale", 0),
    SHAPE_INT("window", 0)};

#define INPUTS(tokens, qkv, pages, cache)                     \
    "input %x : " qkv " live=tokens\ninput %p : i32[" tokens  \
    "] live=tokens\ninput %s : i32[" tokens "] live=tokens\n" \
    "input %pages : i32[" pages "]\nstate %kc : " cache "\nstate %vc : " cache "\n"
/* Grouped heads; norms and a window; a rotation of part of a head, scaled (yarn). */
static const op_case cases[] = {
    {INPUTS("1", "f32[1, 960]", "2, 4",
            "f32[9, 3, 16, 64]") "%y, %k, %v = attention_qkv(%x, %p, %s, %pages, %kc, %vc) "
                                 "{size = 64, heads = 9, kv_heads = 3, head_size = 64}\n"},
    {INPUTS("7", "f32[7, 336]", "3, 2",
            "bf16[7, 1, 8, 48]") "const %qn : f32[48]\nconst %kn : f32[48]\n"
                                 "%y, %k, %v = attention_qkv(%x, %p, %s, %pages, %kc, %vc, "
                                 "%qn, %kn) {size = 48, heads = 5, kv_heads = 1, "
                                 "head_size = 48, eps = 1e-05, window = 4}\n"},
    {INPUTS("7", "bf16[7, 640]", "4, 3",
            "f16[12, 2, 4, 80]") "%y, %k, %v = attention_qkv(%x, %p, %s, %pages, %kc, %vc) {size = "
                                 "64, scaling = "
                                 "\"yarn\", factor = 4.0, heads = 4, "
                                 "kv_heads = 2, head_size = 80}\n"},
};

const op_def op_attention_qkv = {
    .name = "attention_qkv",
    .summary = "rope, cache update and attention from packed q, k, v: the paper's fused operator",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_DATA_DEPENDENT,
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .writes = writes,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
