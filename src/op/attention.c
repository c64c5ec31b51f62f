/* attention.c - attention of this step's tokens over the paged cache (paper §5.2: its time
 * depends on data).
 *
 * q [T, H, K], k_cache, v_cache [n_pages, G, P, K], positions, slots i32[T], pages i32[B, N],
 * sinks [H] -> [T, H K].  Token t sees the positions max(0, p - window + 1) .. p of its slot, query
 * head h the KV head h / (H / G).
 *
 *   pages of slot 0: [5, 2], P = 16: position 20 lies in page 2, at row 4
 *
 * Without v_cache the values are the keys, as where a model caches one latent row for both: what it
 * means by values are then some columns of the result.
 *
 * With a cap c > 0 a score s becomes c tanh(s / c).  The sink of a head is one more score, whose
 * value is zero: y = sum of exp(s) v / (exp(sink) + sum of exp(s)).  Positions without a page are
 * skipped; a token that sees nothing gives zeros.  How a context is cut into parts and the order of
 * the sums depend on positions alone (context.h), so a token's bits are the same whatever else is
 * in the step, and whether attention_parts or this does the work.
 * The keys and values of this step must be in the cache already (kv_write).  Cost: 4 K flops and
 * 2 K elements of cache for each position, token and head.
 */
#include "op/attend.h"

enum { Q = ATTEND_Q, K_CACHE = ATTEND_K, V_CACHE = ATTEND_V, POSITIONS, SLOTS, PAGES, SINKS };
enum { SCALE, WINDOW, CAP };
/* With whole tiles, by tokens in the step: up to STREAMS each token is its own tile; from RISES
 * on most are of a prompt; a body then takes ROWS rows, tokens times query heads of a KV head,
 * at once. */
enum { STREAMS = 256, RISES = 1024, ROWS = 128 };

/* Heads are joined in the result, as the projection after it wants them. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *q = shape_input(g, op, Q);
    TRY(attend_expect(cx, g, op, op->attributes[WINDOW].i, op->attributes[CAP].f));
    TRY(shape_expect(cx, g, op, SINKS, SHAPE_FLOAT, 1, &q->dims[1]));
    shape_like(q, out);
    out->rank = 2;
    out->dims[1] = q->dims[1] * q->dims[2];
    out->dims[2] = 0;
    return MPK_OK;
}

/* Where tiles are whole, 16 rows of matrix hardware: tokens times the query heads that share a KV
 * head.  In a step of up to STREAMS tokens each may be of another slot and share nothing with the
 * others: there a tile is one token. In one of RISES tokens and more most are of a prompt, where
 * later tokens see more, and bodies take ROWS rows in the time of one. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *q = shape_input(g, op, Q);
    int64_t group = q->dims[1] / shape_input(g, op, K_CACHE)->dims[1];
    axes[0] = (op_axis){.grain = 1,
                        .tile = q->dims[0] > STREAMS && group < 16 ? 16 / group : 1,
                        .together = q->dims[0] >= RISES && group < ROWS ? ROWS / group : 0,
                        .rises = q->dims[0] >= RISES};
    axes[1] = (op_axis){.grain = q->dims[2], .tile = group * q->dims[2]};
}

/* A token may see any page of its slot, and any page may belong to its slot: all pages of the KV
 * heads.  Sinks: those of the box's heads. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const int64_t size = shape_input(g, op, Q)->dims[2];
    attend_reads(g, op, input, box, 1, read);
    if (input == SINKS) {
        read->lo[0] = box->lo[1] / size;
        read->hi[0] = (box->hi[1] + size - 1) / size;
    }
}

/* Cut query heads, with the KV heads that they share: where there are more peers than KV heads,
 * several hold the same one. */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    out->in[Q] = out->in[K_CACHE] = out->in[V_CACHE] = out->out[0] = 1;
    out->in[SINKS] = 0;
    out->groups = shape_input(g, op, K_CACHE)->dims[1];
    out->covers = 1u << K_CACHE | 1u << V_CACHE;
    return way == 0;
}

/* Scratch: a query, two rows of attend_head, and the answer of a head. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return 4 * (size_t)shape_input(g, op, Q)->dims[2] * sizeof(float);
}

/* Heads of a token one by one. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *in = call->in, *q = &in[Q], *out = &call->out[0];
    int64_t size = q->dims[2], group = q->dims[1] / in[K_CACHE].dims[1];
    attend_view view = {
        .k_cache = &in[K_CACHE], .v_cache = attend_value_cache(in, V_CACHE), .pages = &in[PAGES]};
    view.scale = attend_scale(call->attributes[SCALE].f, size);
    view.window = call->attributes[WINDOW].i;
    view.cap = (float)call->attributes[CAP].f;
    float *query = scratch, *row = query + size, *answer = row + 2 * size;
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
        int64_t position = walk_load_int(&in[POSITIONS], t * in[POSITIONS].stride[0]);
        int64_t slot = walk_load_int(&in[SLOTS], t * in[SLOTS].stride[0]);
        for (int64_t head = box->lo[1] / size; head < box->hi[1] / size; head++) {
            walk_load_row(q, t * q->stride[0] + head * q->stride[1], 0, size, query);
            attend_head(&view, slot, position, head / group, attend_sink(&in[SINKS], head), query,
                        row, answer);
            walk_store_row(out, t * out->stride[0], head * size, size, answer);
        }
    }
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    pages_fill(g, op, POSITIONS, K_CACHE, input, seed, data);
}

static const op_operand in[] = {
    {"q", 0},     {"k_cache", 0}, {"v_cache", OP_OPTIONAL}, {"positions", 0},
    {"slots", 0}, {"pages", 0},   {"sinks", OP_OPTIONAL}};
static const op_operand out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("scale", 0), SHAPE_INT("window", 0),
                                          SHAPE_REAL("cap", 0)};

/* tokens, q [T, H, K], pages [B, N], cache [pages, G, P, K].  The cases vary the group size (1
 * to 8 query heads for a KV head), odd head sizes, windows shorter than a context, more tokens
 * than a tile has. */
#define CASE(tokens, q, pages, cache, rest)                                       \
    {                                                                             \
        "input %q : " q " live=tokens\nstate %k : " cache "\nstate %v : " cache   \
        "\ninput %p : i32[" tokens "] live=tokens\n"                              \
        "input %s : i32[" tokens "] live=tokens\ninput %pages : i32[" pages "]\n" \
        "%y = attention(%q, %k, %v, %p, %s, %pages)" rest "\n"                    \
    }
#define SUNK(tokens, q, pages, cache, sinks, rest)                                               \
    {                                                                                            \
        "input %q : " q " live=tokens\nstate %k : " cache "\nstate %v : " cache                  \
        "\ninput %p : i32[" tokens "] live=tokens\n"                                             \
        "input %s : i32[" tokens "] live=tokens\ninput %pages : i32[" pages "]\n"                \
        "const %sinks : " sinks "\n%y = attention(%q, %k, %v, %p, %s, %pages, %sinks)" rest "\n" \
    }
#define LATENT(tokens, q, pages, cache, rest)                                              \
    {                                                                                      \
        "input %q : " q " live=tokens\nstate %k : " cache "\ninput %p : i32[" tokens       \
        "] live=tokens\ninput %s : i32[" tokens "] live=tokens\ninput %pages : i32[" pages \
        "]\n%y = attention(%q, %k, _, %p, %s, %pages)" rest "\n"                           \
    }
static const op_case cases[] = {
    CASE("1", "f32[1, 9, 64]", "2, 4", "f32[9, 3, 16, 64]", ""),
    CASE("7", "f32[7, 5, 48]", "3, 2", "bf16[7, 1, 8, 48]", " {window = 5}"),
    CASE("7", "bf16[7, 4, 80]", "4, 3", "f16[12, 2, 4, 80]", " {scale = 0.25}"),
    CASE("3", "f32[3, 2, 16]", "1, 5", "f32[5, 2, 4, 16]", ""),
    CASE("3", "f32[3, 4, 96]", "2, 3", "bf16[6, 4, 16, 96]", " {window = 1}"),
    CASE("7", "f32[7, 16, 128]", "7, 2", "bf16[14, 8, 16, 128]", ""),
    CASE("33", "bf16[33, 8, 128]", "1, 5", "bf16[5, 2, 64, 128]", ""),
    CASE("100", "bf16[100, 6, 64]", "1, 4", "bf16[6, 2, 64, 64]", " {window = 70}"),
    CASE("20", "bf16[20, 4, 64]", "5, 3", "bf16[17, 4, 64, 64]", ""),
    CASE("64", "bf16[64, 16, 128]", "2, 3", "bf16[6, 1, 64, 128]", ""),
    CASE("5", "f32[5, 4, 48]", "3, 2", "f32[7, 2, 8, 48]", " {window = 9, cap = 0.5}"),
    CASE("9", "bf16[9, 2, 256]", "2, 3", "bf16[6, 1, 16, 256]", " {scale = 0.3, cap = 2.0}"),
    CASE("150", "bf16[150, 4, 64]", "1, 4", "bf16[6, 2, 64, 64]", " {cap = 1.5}"),
    SUNK("1", "f32[1, 9, 64]", "2, 40", "f32[80, 3, 16, 64]", "f32[9]", ""),
    SUNK("7", "f32[7, 5, 48]", "3, 2", "bf16[7, 1, 8, 48]", "bf16[5]", " {window = 5}"),
    SUNK("33", "bf16[33, 8, 64]", "2, 5", "bf16[10, 1, 64, 64]", "bf16[8]", " {window = 70}"),
    SUNK("150", "bf16[150, 4, 64]", "1, 4", "bf16[6, 2, 64, 64]", "f32[4]", " {cap = 1.5}"),
    CASE("150", "bf16[150, 4, 256]", "1, 4", "bf16[7, 2, 64, 256]", " {window = 90}"),
    CASE("131", "bf16[131, 8, 256]", "2, 3", "bf16[5, 1, 64, 256]", " {cap = 1.5}"),
    LATENT("2", "bf16[2, 16, 576]", "2, 3", "bf16[6, 1, 64, 576]", " {scale = 0.07}"),
    LATENT("7", "bf16[7, 3, 40]", "3, 2", "f32[7, 1, 8, 40]", ""),
    LATENT("33", "bf16[33, 8, 64]", "2, 5", "bf16[10, 1, 64, 64]", " {window = 70}"),
};

const op_def op_attention = {
    .name = "attention",
    .summary = "softmax(scale q k^T) v over the paged cache, causal, with grouped heads and an "
               "optional window",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_DATA_DEPENDENT,
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .split = split,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
