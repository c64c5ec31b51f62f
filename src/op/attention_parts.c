/* attention_parts.c - attention of this step's tokens over the paged cache, a context in parts, so
 * that several workers share one long context (paper §5.2: its time depends on data).
 *
 * q, k_cache, v_cache, positions, slots, pages as in attention -> part [T, S, H K] of q's dtype,
 * lse f32[T, S, H] with S = 16 places.  attention_fold puts the parts together: of an f32 q what it
 * makes of them has the bits of attention.
 *
 * A token's context is cut into up to 16 parts by its own positions alone, each with a place of its
 * own (context.h):
 *
 *   positions 0 .. 1,039, 65 blocks of 16: 4 parts of 16, 16, 16 and 17 blocks, places 0, 4, 8, 12
 *
 * part is the mean of the values that a part saw, lse the logarithm of the sum of exp(scaled
 * score).  A place without a part, or whose part saw nothing, has lse = -inf; its row of `part` is
 * undefined and must not be read (here it is zeros).  Cost: that of attention.
 */
#include "op/attend.h"

enum { PART, LSE };
enum { SCALE, WINDOW, CAP };

/* Parts are rounded to q's dtype, their logarithms are f32. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *q = shape_input(g, op, ATTEND_Q);
    TRY(attend_expect(cx, g, op, op->attributes[WINDOW].i, op->attributes[CAP].f));
    for (uint32_t i = PART; i <= LSE; i++) {
        shape_like(q, &out[i]);
        out[i].dims[1] = CONTEXT_PARTS;
        out[i].dims[2] = i == PART ? q->dims[1] * q->dims[2] : q->dims[1];
    }
    out[LSE].dtype = IR_F32;
    return MPK_OK;
}

/* Any tokens, any places, whole KV heads; of the places a short context fills few. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *q = shape_input(g, op, ATTEND_Q);
    axes[0].grain = 1;
    axes[1] = (op_axis){.grain = 1, .context = true};
    axes[2].grain = q->dims[1] / shape_input(g, op, ATTEND_K)->dims[1] * q->dims[2];
}

static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    attend_reads(g, op, input, box, 2, read);
}

/* lse has one entry for each head, where part has K columns. */
static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    (void)output;
    int64_t size = shape_input(g, op, ATTEND_Q)->dims[2];
    *written = *box;
    written->lo[2] = box->lo[2] / size;
    written->hi[2] = box->hi[2] / size;
}

/* Scratch: a query, a row of the cache, and the mean of a part. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return 3 * (size_t)shape_input(g, op, ATTEND_Q)->dims[2] * sizeof(float);
}

/* The places of the box for one head of a token, whose query is in query[K]; scratch for two rows
 * follows it. */
static void attend_places(const op_call *call, const attend_view *view, const ir_box *box,
                          int64_t t, int64_t head, float *query)
{
    const op_view *in = call->in, *part = &call->out[PART], *lse = &call->out[LSE];
    int64_t size = in[ATTEND_Q].dims[2], group = in[ATTEND_Q].dims[1] / in[ATTEND_K].dims[1];
    int64_t slot = walk_load_int(&in[ATTEND_SLOTS], t * in[ATTEND_SLOTS].stride[0]);
    float *row = query + size, *mean = row + size;
    attend_context c =
        attend_see(view, walk_load_int(&in[ATTEND_POSITIONS], t * in[ATTEND_POSITIONS].stride[0]));
    for (int64_t place = box->lo[1]; place < box->hi[1]; place++) {
        int i = context_from(c.parts, (int)place);
        bool filled = i < context_from(c.parts, (int)place + 1);
        float log = -INFINITY;
        memset(mean, 0, (size_t)size * sizeof *mean);
        if (filled)
            log = attend_part(view, &c, i, slot, head / group, query, row, mean);
        walk_store_row(part, t * part->stride[0] + place * part->stride[1], head * size, size,
                       mean);
        op_store(lse, t * lse->stride[0] + place * lse->stride[1] + head * lse->stride[2], log);
    }
}

/* Heads of a token one by one. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *in = call->in, *q = &in[ATTEND_Q];
    int64_t size = q->dims[2];
    attend_view view = {.k_cache = &in[ATTEND_K],
                        .v_cache = attend_value_cache(in, ATTEND_V),
                        .pages = &in[ATTEND_PAGES],
                        .scale = attend_scale(call->attributes[SCALE].f, size),
                        .window = call->attributes[WINDOW].i,
                        .cap = (float)call->attributes[CAP].f};
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++)
        for (int64_t head = box->lo[2] / size; head < box->hi[2] / size; head++) {
            walk_load_row(q, t * q->stride[0] + head * q->stride[1], 0, size, scratch);
            attend_places(call, &view, box, t, head, scratch);
        }
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    pages_fill(g, op, ATTEND_POSITIONS, ATTEND_K, input, seed, data);
}

static const op_operand in[] = {{"q", 0},         {"k_cache", 0}, {"v_cache", OP_OPTIONAL},
                                {"positions", 0}, {"slots", 0},   {"pages", 0}};
static const op_operand out[] = {{"part", 0}, {"lse", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("scale", 0), SHAPE_INT("window", 0),
                                          SHAPE_REAL("cap", 0)};

/* Contexts of one part and of several; odd sizes of heads, windows of more than a part. */
#define CASE(tokens, q, pages, cache, rest)                                       \
    {                                                                             \
        "input %q : " q " live=tokens\nstate %k : " cache "\nstate %v : " cache   \
        "\ninput %p : i32[" tokens "] live=tokens\n"                              \
        "input %s : i32[" tokens "] live=tokens\ninput %pages : i32[" pages "]\n" \
        "%y, %l = attention_parts(%q, %k, %v, %p, %s, %pages)" rest "\n"          \
    }
#define LATENT(q, cache, pages)                                                           \
    {                                                                                     \
        "input %q : " q " live=tokens\nstate %k : " cache                                 \
        "\ninput %p : i32[2] live=tokens\ninput %s : i32[2] live=tokens\ninput %pages : " \
        "i32[" pages "]\n%y, %l = attention_parts(%q, %k, _, %p, %s, %pages)\n"           \
    }
static const op_case cases[] = {
    CASE("1", "f32[1, 9, 64]", "1, 10", "f32[10, 3, 64, 64]", ""),
    CASE("7", "f32[7, 5, 48]", "3, 2", "bf16[7, 1, 8, 48]", " {window = 5}"),
    CASE("2", "f32[2, 2, 16]", "2, 100", "f16[200, 1, 23, 16]", ""),
    CASE("3", "bf16[3, 4, 32]", "1, 9", "bf16[9, 2, 128, 32]", " {window = 700, scale = 0.25}"),
    CASE("1", "f32[1, 4, 32]", "1, 8", "f32[8, 2, 80, 32]", " {cap = 1.5}"),
    LATENT("f32[2, 16, 72]", "bf16[40, 1, 64, 72]", "2, 20"),
    LATENT("bf16[2, 3, 576]", "bf16[20, 1, 64, 576]", "2, 10"),
};

const op_def op_attention_parts = {
    .name = "attention_parts",
    .summary = "attention over the paged cache, each token's context in parts; see attention_fold",
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
