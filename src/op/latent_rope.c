/* latent_rope.c - from the parts of latent attention to queries and a filled cache: norm, ropes,
 * concats and latent_write in one operator.
 *
 * plain [T, H, L], q [T, H, R], latent [T, L], key [T, 1, R], table f32[T, 2, Kr/2], norm [L],
 * positions, slots, pages, k_cache [n_pages, 1, P, L + R] -> query [T, H, L + R] and the cache in
 * place:
 *
 *   plain  ----------------> query, entries 0 .. L - 1 of a head
 *   q      -> rope --------> query, entries L .. L + R - 1
 *   latent -> norm --------> k_cache at the token's place, entries 0 .. L - 1
 *   key    -> rope --------> k_cache at the token's place, entries L .. L + R - 1
 *
 * All but the table have one dtype, to which norm and ropes are rounded: the bits are those of the
 * single operators.  pass/ builds it from them.
 *
 * A task has some tokens of some heads, and caches those of its tokens whose number modulo H is one
 * of its heads: of equal tasks each caches as many.  Where a token goes depends on data, so tasks
 * share a box of the cache, but no row of it: of two tokens with one place the earlier is not
 * written at all.  Cost: one pass over the parts, and the places of all tokens for each task.
 */
#include "op/heads.h"

/* Inputs and outputs, by index. */
enum { PLAIN, Q, LATENT, KEY, TABLE, NORM, POSITIONS, SLOTS, PAGES, K_CACHE };
enum { QUERY, CACHE };
enum { EPS }; /* attribute */

/* Does a task of these heads, of H, cache token t? */
static bool is_filled(int64_t t, int64_t H, const ir_box *box)
{
    return t % H >= box->lo[1] && t % H < box->hi[1];
}

/* Does a task cache any token? */
static bool fills(const ir_box *box, int64_t H)
{
    bool any = false;
    for (int64_t t = box->lo[0]; t < box->hi[0] && t < box->lo[0] + H; t++)
        any = any || is_filled(t, H, box);
    return any;
}

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *plain = shape_input(g, op, PLAIN), *q = shape_input(g, op, Q),
                    *table = shape_input(g, op, TABLE), *cache = shape_input(g, op, K_CACHE);
    TRY(shape_expect(cx, g, op, PLAIN, SHAPE_FLOAT, 3,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, SHAPE_FREE}));
    const int64_t T = plain->dims[0], L = plain->dims[2];
    const uint32_t dtype = 1u << plain->dtype;
    TRY(shape_expect(cx, g, op, Q, dtype, 3, (int64_t[]){T, plain->dims[1], SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, LATENT, dtype, 2, (int64_t[]){T, L}));
    TRY(shape_expect(cx, g, op, KEY, dtype, 3, (int64_t[]){T, 1, q->dims[2]}));
    TRY(shape_expect(cx, g, op, TABLE, 1 << IR_F32, 3, (int64_t[]){T, 2, SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, NORM, SHAPE_FLOAT, 1, &L));
    for (uint32_t i = Q; i <= TABLE; i++)
        TRY(shape_expect_live(cx, g, op, i, plain->live));
    CHECK(cx, 2 * table->dims[2] <= q->dims[2], MPK_ESHAPE,
          "latent_rope: the table rotates %lld entries, q has %lld",
          (long long)(2 * table->dims[2]), (long long)q->dims[2]);
    TRY(pages_expect(cx, g, op, POSITIONS, T, plain->live));
    TRY(shape_expect(cx, g, op, K_CACHE, PAGES_DTYPES, 4,
                     (int64_t[]){SHAPE_FREE, 1, SHAPE_FREE, L + q->dims[2]}));
    shape_like(plain, &out[QUERY]);
    out[QUERY].dims[2] = L + q->dims[2];
    shape_like(cache, &out[CACHE]);
    out[CACHE].shares = op->in[K_CACHE];
    return MPK_OK;
}

static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g, (void)op;
    axes[0].grain = axes[1].grain = 1;
}

/* Tokens of the box, and of what has heads those of the box; what is cached only by tasks that
 * cache it. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const int64_t H = shape_input(g, op, PLAIN)->dims[1];
    *read = ir_box_whole(shape_input(g, op, input));
    if (input <= TABLE) {
        read->lo[0] = box->lo[0];
        read->hi[0] = box->hi[0];
    }
    if (input == PLAIN || input == Q) {
        read->lo[1] = box->lo[1];
        read->hi[1] = box->hi[1];
    } else if (input == K_CACHE || ((input == LATENT || input == KEY) && !fills(box, H))) {
        *read = (ir_box){0};
    }
}

/* All pages, or of a task that caches no token none. */
static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    const int64_t heads = fills(box, shape_input(g, op, PLAIN)->dims[1]);
    *written = pages_box(&g->tensors.at[op->out[output]], 0, heads);
}

/* Scratch: the places of all tokens, then a row of the cache, then one of the table. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    const ir_tensor *table = shape_input(g, op, TABLE);
    return (size_t)table->dims[0] * sizeof(int64_t) +
           (size_t)(shape_input(g, op, K_CACHE)->dims[3] + 2 * table->dims[2]) * sizeof(float);
}

/* Load a head of token t from q or key (which has one head), rotate it, and round it to the
 * operand's dtype. */
static void rotate_part(const op_call *call, uint32_t input, int64_t t, int64_t head, float *row,
                        const float *cosine)
{
    const op_view *x = &call->in[input];
    const int64_t half = call->in[TABLE].dims[2];
    walk_load_row(x, t * x->stride[0] + head * x->stride[1], 0, x->dims[2], row);
    rope_rotate(row, cosine, cosine + half, half);
    heads_round(x->dtype, row, x->dims[2]);
}

/* Put token t into the cache. */
static void fill_cache(const op_call *call, int64_t t, float *row, const float *cosine)
{
    const op_view *in = call->in, *latent = &in[LATENT];
    const int64_t L = latent->dims[1];
    walk_load_row(latent, t * latent->stride[0], 0, L, row);
    norm_row(row, L, &in[NORM], call->attributes[EPS].f, row);
    heads_round(latent->dtype, row, L);
    rotate_part(call, KEY, t, 0, row + L, cosine);
    pages_store(&in[PAGES], &call->out[CACHE], walk_load_int(&in[SLOTS], t * in[SLOTS].stride[0]),
                walk_load_int(&in[POSITIONS], t * in[POSITIONS].stride[0]), 0, row);
}

/* place[t] is the row of the cache for token t, less than 0 if there is none to write. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *in = call->in, *table = &in[TABLE], *plain = &in[PLAIN], *to = &call->out[QUERY];
    int64_t half = table->dims[2], L = plain->dims[2], *place = scratch;
    float *row = (float *)(void *)(place + table->dims[0]), *cosine = row + to->dims[2];
    pages_find_tokens(&in[POSITIONS], &in[SLOTS], &in[PAGES], &call->out[CACHE],
                      op_live_entries(call, plain), box->lo[0], box->hi[0], place);
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
        walk_load_row(table, t * table->stride[0], 0, half, cosine);
        walk_load_row(table, t * table->stride[0] + table->stride[1], 0, half, cosine + half);
        for (int64_t head = box->lo[1]; head < box->hi[1]; head++) {
            walk_load_row(plain, t * plain->stride[0] + head * plain->stride[1], 0, L, row);
            rotate_part(call, Q, t, head, row + L, cosine);
            walk_store_row(to, t * to->stride[0] + head * to->stride[1], 0, to->dims[2], row);
        }
        if (is_filled(t, plain->dims[1], box) && place[t] >= 0)
            fill_cache(call, t, row, cosine);
    }
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    pages_fill(g, op, POSITIONS, K_CACHE, input, seed, data);
}

static const op_operand in[] = {{"plain", 0}, {"q", 0},      {"latent", 0},    {"key", 0},
                                {"table", 0}, {"norm", 0},   {"positions", 0}, {"slots", 0},
                                {"pages", 0}, {"k_cache", 0}};
static const op_operand out[] = {{"query", 0}, {"k_cache", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("eps", 1e-6)};

#define PARTS(dtype, tokens, heads, latent, rotated, half, weight, pages, cache)                 \
    "input %x : " dtype "[" tokens ", " heads ", " latent "] live=tokens\ninput %q : " dtype     \
    "[" tokens ", " heads ", " rotated "] live=tokens\ninput %l : " dtype "[" tokens ", " latent \
    "] live=tokens\ninput %k : " dtype "[" tokens ", 1, " rotated                                \
    "] live=tokens\ninput %t : f32[" tokens ", 2, " half "] live=tokens\nconst %n : " weight     \
    "[" latent "]\ninput %p : i32[" tokens "] live=tokens\ninput %s : i32[" tokens               \
    "] live=tokens\ninput %pages : i32[" pages "]\nstate %kc : " cache                           \
    "\n%y, %kn = latent_rope(%x, %q, %l, %k, %t, %n, %p, %s, %pages, %kc)"
/* One token; several slots; a part of the entries rotated, another dtype of the cache; more tokens
 * than a tile, of the sizes that models have. */
static const op_case cases[] = {
    {PARTS("f32", "1", "3", "40", "8", "4", "f32", "2, 4", "f32[9, 1, 16, 48]") "\n"},
    {PARTS("f32", "7", "2", "24", "16", "8", "bf16", "3, 3", "f32[9, 1, 4, 40]") " {eps = 0.5}\n"},
    {PARTS("bf16", "5", "4", "32", "16", "6", "f32", "2, 3", "f16[6, 1, 8, 48]") "\n"},
    {PARTS("bf16", "19", "2", "512", "64", "32", "bf16", "4, 1", "bf16[4, 1, 64, 576]") "\n"},
    {PARTS("bf16", "21", "16", "40", "16", "8", "f32", "3, 2", "bf16[6, 1, 12, 56]") "\n"},
};

const op_def op_latent_rope = {
    .name = "latent_rope",
    .summary = "join and rotate the queries of latent attention; normalise, rotate and cache its "
               "latents",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_WRITES_APART,
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .writes = writes,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
