/* latent_write.c - put one row of each token of a step into a paged cache, in place: what a model
 * caches once for keys and values together (attention without v_cache).
 *
 * k [T, G, K], positions, slots i32[T], pages i32[B, N], k_cache [n_pages, G, P, K] -> the cache.
 * Tokens, pages and places are those of kv_write, of which this is the half: a token whose slot,
 * position or page does not exist is skipped; of two tokens at one place the later one stays.
 * Cost: one copy of k.
 */
#include "op/pages.h"

/* Inputs, by index. */
enum { K, POSITIONS, SLOTS, PAGES, K_CACHE };

/* The output is the cache itself. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *k = shape_input(g, op, K);
    TRY(shape_expect(cx, g, op, K, SHAPE_FLOAT, 3,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, SHAPE_FREE}));
    TRY(pages_expect(cx, g, op, POSITIONS, k->dims[0], k->live));
    TRY(shape_expect(cx, g, op, K_CACHE, PAGES_DTYPES, 4,
                     (int64_t[]){SHAPE_FREE, k->dims[1], SHAPE_FREE, k->dims[2]}));
    shape_like(shape_input(g, op, K_CACHE), out);
    out->shares = op->in[K_CACHE];
    return MPK_OK;
}

/* Two tokens may share a page, so tokens are not cut; heads never meet in a page. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g, (void)op;
    axes[1].grain = 1;
}

/* Rows of the box's heads, for all tokens, and all integers; the cache's old rows are not read. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = (ir_box){0};
    if (input == K_CACHE)
        return;
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == K) {
        read->lo[1] = box->lo[1];
        read->hi[1] = box->hi[1];
    }
}

/* Heads: each peer keeps the cache of its own heads. */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    (void)g, (void)op;
    out->in[K] = out->in[K_CACHE] = out->out[0] = 1;
    return way == 0;
}

/* Scratch: a row of a head. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return (size_t)shape_input(g, op, K)->dims[2] * sizeof(float);
}

/* The loop goes over the live tokens of k, not over the box, which is one of the cache. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *in = call->in, *from = &in[K];
    for (int64_t t = 0; t < op_live_entries(call, from); t++) {
        int64_t position = walk_load_int(&in[POSITIONS], t * in[POSITIONS].stride[0]);
        int64_t slot = walk_load_int(&in[SLOTS], t * in[SLOTS].stride[0]);
        for (int64_t head = box->lo[1]; head < box->hi[1]; head++) {
            walk_load_row(from, t * from->stride[0] + head * from->stride[1], 0, from->dims[2],
                          scratch);
            pages_store(&in[PAGES], &call->out[0], slot, position, head, scratch);
        }
    }
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    pages_fill(g, op, POSITIONS, K_CACHE, input, seed, data);
}

static const op_operand in[] = {
    {"k", 0}, {"positions", 0}, {"slots", 0}, {"pages", 0}, {"k_cache", 0}};
static const op_operand out[] = {{"k_cache", 0}};

/* tokens, k, pages [B, N], cache. */
#define CASE(tokens, k, pages, cache)                                             \
    {                                                                             \
        "input %k : " k " live=tokens\ninput %p : i32[" tokens "] live=tokens\n"  \
        "input %s : i32[" tokens "] live=tokens\ninput %pages : i32[" pages       \
        "]\nstate %kc : " cache "\n%ka = latent_write(%k, %p, %s, %pages, %kc)\n" \
    }
static const op_case cases[] = {
    CASE("1", "f32[1, 1, 576]", "2, 4", "f32[9, 1, 16, 576]"),
    CASE("7", "f32[7, 1, 48]", "3, 2", "bf16[7, 1, 8, 48]"),
    CASE("7", "bf16[7, 2, 64]", "4, 3", "bf16[12, 2, 16, 64]"),
    CASE("5", "f32[5, 1, 96]", "2, 3", "q8_0[6, 1, 16, 96]"),
};

const op_def op_latent_write = {
    .name = "latent_write",
    .summary = "put one row of each of this step's tokens into the paged cache, in place",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .split = split,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
