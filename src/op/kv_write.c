/* kv_write.c - put the keys and values of a step into the paged cache, in place (paper §6.1).
 *
 * k, v [T, G, K], positions, slots i32[T], pages i32[B, N], k_cache, v_cache [n_pages, G, P, K]
 * -> the caches.  A task does all tokens of some heads: which pages a token touches is known
 * only at run time.
 *
 *   position 20 of slot 1, P = 16, pages[1] = [7, 3]: row 20 % 16 = 4 of page pages[1][1] = 3
 *
 * A token whose slot, position or page does not exist is skipped; of two tokens at one place the
 * later one stays.  Cost: one copy of k and v.
 */
#include "op/pages.h"

/* Inputs, by index. */
enum { K, V, POSITIONS, SLOTS, PAGES, K_CACHE, V_CACHE };

/* The outputs are the caches themselves. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *k = shape_input(g, op, K);
    TRY(shape_expect(cx, g, op, K, SHAPE_FLOAT, 3,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, V, SHAPE_FLOAT, 3, k->dims));
    TRY(shape_expect_live(cx, g, op, V, k->live));
    TRY(pages_expect(cx, g, op, POSITIONS, k->dims[0], k->live));
    TRY(pages_expect_caches(cx, g, op, K_CACHE, k->dims[1], k->dims[2]));
    for (uint32_t i = 0; i < 2; i++) {
        shape_like(shape_input(g, op, K_CACHE + i), &out[i]);
        out[i].shares = op->in[K_CACHE + i];
    }
    return MPK_OK;
}

/* Two tokens may share a page, so tokens are not cut; heads never meet in a page. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g, (void)op;
    axes[1].grain = 1;
}

/* Keys and values of the box's heads, for all tokens, and all integers. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = (ir_box){0}; /* the old values of the caches are not read */
    if (input >= K_CACHE)
        return;
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == K || input == V) {
        read->lo[1] = box->lo[1];
        read->hi[1] = box->hi[1];
    }
}

/* Heads: each peer keeps the cache of its own heads. */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    (void)g, (void)op;
    out->in[K] = out->in[V] = out->in[K_CACHE] = out->in[V_CACHE] = out->out[0] = out->out[1] = 1;
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
    const op_view *in = call->in;
    for (int64_t t = 0; t < op_live_entries(call, &in[K]); t++) {
        int64_t position = walk_load_int(&in[POSITIONS], t * in[POSITIONS].stride[0]);
        int64_t slot = walk_load_int(&in[SLOTS], t * in[SLOTS].stride[0]);
        for (int64_t head = box->lo[1]; head < box->hi[1]; head++)
            for (uint32_t i = 0; i < 2; i++) {
                const op_view *from = &in[K + i];
                walk_load_row(from, t * from->stride[0] + head * from->stride[1], 0, from->dims[2],
                              scratch);
                pages_store(&in[PAGES], &call->out[i], slot, position, head, scratch);
            }
    }
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    pages_fill(g, op, POSITIONS, K_CACHE, input, seed, data);
}

static const op_operand in[] = {{"k", 0},     {"v", 0},       {"positions", 0}, {"slots", 0},
                                {"pages", 0}, {"k_cache", 0}, {"v_cache", 0}};
static const op_operand out[] = {{"k_cache", 0}, {"v_cache", 0}};

/* tokens, [G, K] of k and v, their dtype, pages [B, N], cache: dtypes of cache and values differ
 * in two of the cases. */
#define CASE(tokens, heads, kv, pages, cache)                                             \
    {                                                                                     \
        "input %k : " kv "[" tokens ", " heads "] live=tokens\ninput %v : " kv "[" tokens \
        ", " heads "] live=tokens\n"                                                      \
        "input %p : i32[" tokens "] live=tokens\ninput %s : i32[" tokens                  \
        "] live=tokens\ninput %pages : i32[" pages "]\n"                                  \
        "state %kc : " cache "\nstate %vc : " cache                                       \
        "\n%ka, %va = kv_write(%k, %v, %p, %s, %pages, %kc, %vc)\n"                       \
    }
static const op_case cases[] = {
    CASE("1", "3, 64", "f32", "2, 4", "f32[9, 3, 16, 64]"),
    CASE("7", "1, 48", "f32", "3, 2", "bf16[7, 1, 8, 48]"),
    CASE("7", "2, 80", "bf16", "4, 3", "f16[12, 2, 4, 80]"),
};

const op_def op_kv_write = {
    .name = "kv_write",
    .summary = "put keys and values of this step's tokens into the paged cache, in place",
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
