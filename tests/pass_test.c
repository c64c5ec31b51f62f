/* pass_test.c - random tensor programs through every pass give the bytes of the reference
 * interpreter.
 *
 * Random graphs of element-wise operators, views, norms and matrix products, and small random
 * decoders with a KV cache, are compiled with random options (fusion, launch policy, degrees of
 * freedom, 1 to 200 workers), proven at every level, and run task by task in random legal orders in
 * the memory that the plan gives them.  Temporaries begin as garbage.
 */
#include <math.h>

#include "check.h"

#include "base/rng.h"
#include "draw_sizes.h"
#include "ir/op.h"
#include "model/model.h"
#include "pass/pass.h"

typedef struct world {
    mpk_context cx;
    arena a;
    uint64_t seed, next;
} world;

static uint32_t pick(world *w, uint32_t n)
{
    return (uint32_t)(rng_u64(w->seed, w->next++) % n);
}

/* ---- programs ---- */

enum { MAX_POOL = 64 };

typedef struct pool {
    ir_graph *g;
    ir_tensor_id at[MAX_POOL]; /* f32 [T, columns] */
    uint32_t n;
    int64_t n_tokens;
} pool;

static int64_t columns(const pool *p, ir_tensor_id t)
{
    return p->g->tensors.at[t].dims[1];
}

static ir_tensor_id add_const(world *w, pool *p, uint32_t rank, int64_t rows, int64_t width)
{
    char name[32];
    int64_t dims[2] = {rows, width};
    ir_tensor_id t;
    snprintf(name, sizeof name, "w%zu", p->g->tensors.n);
    check_ok(&w->cx, ir_add_tensor(&w->cx, p->g, IR_CONST, IR_ALL, name, IR_F32, rank, dims, &t));
    return t;
}

static ir_tensor_id add_op(world *w, pool *p, const char *op, uint32_t n_in, const ir_tensor_id *in,
                           const ir_set *set)
{
    ir_tensor_id out[IR_MAX_OUTPUTS];
    check_ok(&w->cx, ir_add_op(&w->cx, p->g, op, NULL, n_in, in, set, out));
    return out[0];
}

static ir_tensor_id pick_like(world *w, pool *p, ir_tensor_id a)
{
    for (int i = 0; i < 8; i++) {
        ir_tensor_id b = p->at[pick(w, p->n)];
        if (columns(p, b) == columns(p, a))
            return b;
    }
    return a;
}

static ir_tensor_id add_swapped(world *w, pool *p, ir_tensor_id a)
{
    int64_t halves[3] = {p->n_tokens, 2, columns(p, a) / 2}, perm[3] = {0, 2, 1},
            flat[2] = {p->n_tokens, columns(p, a)};
    if (columns(p, a) % 2)
        return a;
    a = add_op(w, p, "reshape", 1, &a,
               (ir_set[]){{.name = "shape", .ints = halves, .n_ints = 3}, {0}});
    a = add_op(w, p, "transpose", 1, &a,
               (ir_set[]){{.name = "perm", .ints = perm, .n_ints = 3}, {0}});
    return add_op(w, p, "reshape", 1, &a,
                  (ir_set[]){{.name = "shape", .ints = flat, .n_ints = 2}, {0}});
}

static ir_tensor_id add_slice(world *w, pool *p, ir_tensor_id a)
{
    int64_t width = columns(p, a), lo = pick(w, (uint32_t)width),
            hi = lo + 1 + pick(w, (uint32_t)(width - lo));
    int64_t starts[2] = {0, lo}, stops[2] = {p->n_tokens, hi};
    return add_op(w, p, "slice", 1, &a,
                  (ir_set[]){{.name = "starts", .ints = starts, .n_ints = 2},
                             {.name = "stops", .ints = stops, .n_ints = 2},
                             {0}});
}

static ir_tensor_id add_linear(world *w, pool *p, ir_tensor_id a, int64_t rows)
{
    ir_tensor_id in[2] = {a, add_const(w, p, 2, rows, columns(p, a))};
    return add_op(w, p, "linear", 2, in, NULL);
}

static ir_tensor_id add_gated(world *w, pool *p, ir_tensor_id a)
{
    int64_t rows = 1 + pick(w, 40);
    ir_tensor_id in[2] = {add_linear(w, p, a, rows), add_linear(w, p, a, rows)};
    if (pick(w, 2))
        return add_op(w, p, "silu_mul", 2, in, NULL);
    in[0] = add_op(w, p, "gelu", 1, in, (ir_set[]){{.name = "tanh", .i = pick(w, 2)}, {0}});
    return add_op(w, p, "mul", 2, in, NULL);
}

static ir_tensor_id add_random(world *w, pool *p)
{
    ir_tensor_id a = p->at[pick(w, p->n)], b = pick_like(w, p, a), in[2] = {a, b};
    switch (pick(w, 12)) {
    case 0:
    case 1:
        return add_op(w, p, "add", 2, in, NULL);
    case 2:
        return add_op(w, p, "mul", 2, in, NULL);
    case 3:
        in[1] = add_const(w, p, 1, columns(p, a), 0);
        return add_op(w, p, "rms_norm", 2, in, NULL);
    case 4:
    case 5:
        return add_linear(w, p, a, 1 + pick(w, 40));
    case 6:
        in[0] = add_linear(w, p, a, columns(p, a));
        return add_op(w, p, "add", 2, in, NULL);
    case 7:
        return add_gated(w, p, a);
    case 8:
        return add_slice(w, p, a);
    case 9:
        return add_swapped(w, p, a);
    case 10:
        return columns(p, a) > 200
                   ? a
                   : add_op(w, p, "concat", 2, in, (ir_set[]){{.name = "axis", .i = 1}, {0}});
    default:
        return add_op(w, p, "softmax", 1, in, NULL);
    }
}

static ir_graph *random_graph(world *w)
{
    pool p = {.n_tokens = 1 + pick(w, 6)};
    int64_t dims[2] = {p.n_tokens, 2 + pick(w, 40)};
    check_ok(&w->cx, ir_create(&w->cx, &w->a, "random", &p.g));
    for (p.n = 0; p.n < 2; p.n++)
        check_ok(&w->cx, ir_add_tensor(&w->cx, p.g, IR_INPUT, IR_TOKENS, p.n ? "b" : "a", IR_F32, 2,
                                       dims, &p.at[p.n]));
    for (uint32_t n = 3 + pick(w, 20); n; n--)
        p.at[p.n++] = add_random(w, &p);
    ir_tensor_id last[1] = {p.at[p.n - 1]};
    check_ok(&w->cx, ir_add_output(&w->cx, p.g, add_op(w, &p, "silu", 1, last, NULL)));
    ir_tensor_id also = p.at[pick(w, p.n)];
    if (p.g->tensors.at[also].kind == IR_TEMP)
        check_ok(&w->cx, ir_add_output(&w->cx, p.g, also));
    check_ok(&w->cx, ir_verify(&w->cx, p.g));
    return p.g;
}

static mpk_status weight_dtype(mpk_context *cx, const void *self, const char *name, uint32_t rank,
                               const int64_t *dims, ir_dtype *dtype)
{
    (void)cx, (void)self, (void)name, (void)rank, (void)dims;
    *dtype = IR_F32;
    return MPK_OK;
}

static ir_graph *random_decoder(world *w)
{
    static const char *const activations[] = {"silu", "gelu", "gelu_tanh"};
    uint32_t kv_heads = 1 + pick(w, 2), head = 8u << pick(w, 2), tokens = 1 + pick(w, 5);
    uint32_t n_families = 0;
    while (model_table[n_families])
        n_families++;
    const model_def *def = model_table[pick(w, n_families)];
    const uint32_t latent = def->latent ? 8 + 8 * pick(w, 2) : 0;
    model_config c = {.family = str_from(def->family),
                      .n_layers = 1 + pick(w, 2),
                      .hidden_size = 16 + 8 * pick(w, 4),
                      .n_heads = kv_heads * (1 + pick(w, 3)),
                      .n_kv_heads = kv_heads,
                      .head_size = head,
                      .ffn_size = 16 + pick(w, 30),
                      .vocab_size = 31 + pick(w, 60),
                      .max_positions = 64,
                      .norm_eps = 1e-5f,
                      .tied_embeddings = pick(w, 2),
                      .attention_bias = pick(w, 2),
                      .mlp_bias = pick(w, 2),
                      .activation = str_from(activations[pick(w, 3)]),
                      .window = pick(w, 2) ? 5 : 0,
                      .full_layers = {pick(w, 4)},
                      .unrotated_layers = {pick(w, 3) ? 0 : pick(w, 4)},
                      .local_theta = pick(w, 3) ? 0 : 100,
                      .embedding_scale = pick(w, 3) ? 0 : 4,
                      .residual_scale = pick(w, 3) ? 0 : 0.25,
                      .logits_scale = pick(w, 3) ? 0 : 0.5,
                      .attention_scale = pick(w, 3) ? 0 : 0.4,
                      .attention_cap = pick(w, 4) ? 0 : 0.5,
                      .logits_cap = pick(w, 3) ? 0 : 2,
                      .query_growth = pick(w, 3) ? 0 : 0.5,
                      .query_step = 2 + pick(w, 9),
                      .head_bias = pick(w, 4) == 0,
                      .parallel = pick(w, 2),
                      .n_experts = 2 + pick(w, 9),
                      .experts_per_token = 1 + pick(w, 2),
                      .expert_ffn_size = 8 + pick(w, 20),
                      .shared_ffn_size = 8 + pick(w, 20),
                      .expert_every = 1 + pick(w, 2),
                      .normalize_experts = pick(w, 2),
                      .rope_size = latent ? head / 2 : head,
                      .rope_theta = 10000,
                      .latent_size = latent,
                      .query_latent_size = latent && pick(w, 2) ? 12 : 0,
                      .value_size = latent ? 4 + 4 * pick(w, 2) : 0};
    if (latent)
        c.n_kv_heads = 1;
    if (def->delta)
        draw_delta(w->seed, 24, 20, &c);
    if (def->routing == MODEL_ROUTES_SCALED)
        c.experts_per_token = 1, c.experts_scaled = c.expert_sigmoid = true;
    if (def->activation && strcmp(def->activation, "relu2") == 0)
        c.activation = STR("relu2");
    model_shape shape = {.n_tokens = tokens,
                         .n_rows = 1 + pick(w, tokens),
                         .n_slots = tokens,
                         .n_pages = 4 * tokens,
                         .page_tokens = 4,
                         .max_pages_per_slot = 4,
                         .kv_dtype = pick(w, 2) ? IR_F32 : IR_BF16,
                         .activation_dtype = pick(w, 4) ? IR_F32 : IR_BF16,
                         .greedy_only = pick(w, 2)};
    model_weights weights = {.dtype = weight_dtype};
    ir_graph *g = NULL;
    check_ok(&w->cx, model_build(&w->cx, &w->a, &c, &shape, &weights, &g));
    return g;
}

/* The same after fusion as for a GPU; false: nothing was split, as with caps of scores and norms of
 * all heads together. */
static bool split_decoder(world *w, ir_graph **out)
{
    ir_graph *g = random_decoder(w);
    pass_options options = {.n_workers = 1,
                            .splits = 1 + pick(w, 6),
                            .split_tokens = 16,
                            .own_units = pick(w, 3),
                            .norm_elements = pick(w, 2) ? 1 : 1 << 20,
                            .share_tokens = pick(w, 2),
                            .relaxed = pick(w, 2),
                            .logits = pick(w, 4)};
    pass_state s = {&w->cx, &w->a, &w->a, &options};
    check_ok(&w->cx, pass_simplify(&s, &g));
    check_ok(&w->cx, pass_fuse_ops(&s, &g));
    size_t split = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        split += strcmp(g->ops.at[i].def->name, "attention_split") == 0;
    *out = g;
    return split > 0;
}

/* A program for a GPU, whose sums run in an order of their own. */
static ir_graph *random_split_decoder(world *w)
{
    ir_graph *g = NULL;
    for (uint32_t i = 0; i < 100; i++)
        if (split_decoder(w, &g))
            return g;
    fail_msg("of 100 random decoders none was split");
    return NULL;
}

/* ---- values ---- */

/* Step inputs that make sense to a decoder: token t is alone in slot t, at some position of its
 * four pages. */
static void fill_integers(world *w, const ir_tensor *t, void *data)
{
    for (int64_t i = 0; i < ir_elements(t); i++) {
        uint32_t value = str_is(t->name, "tokens")      ? pick(w, 31)
                         : str_is(t->name, "positions") ? pick(w, 16)
                         : str_is(t->name, "rows")      ? (uint32_t)i
                         : str_is(t->name, "draws")     ? pick(w, 100)
                         : str_is(t->name, "asks")      ? 0
                                                        : (uint32_t)i;
        if (t->dtype == IR_I64)
            ((int64_t *)data)[i] = value;
        else
            ((int32_t *)data)[i] = (int32_t)value;
    }
}

static void fill_values(world *w, const ir_graph *g, ir_values *v)
{
    check_ok(&w->cx, ir_eval_allocate(&w->cx, &w->a, g, v));
    for (ir_tensor_id i = 0; i < g->tensors.n; i++) {
        const ir_tensor *t = &g->tensors.at[i];
        if (t->kind == IR_TEMP)
            continue;
        if (t->dtype == IR_I32 || t->dtype == IR_I64)
            fill_integers(w, t, v->data[i]);
        for (int64_t k = 0; t->dtype != IR_I32 && t->dtype != IR_I64 && k < ir_elements(t); k++) {
            op_view view = {.data = v->data[i], .dtype = t->dtype};
            float x = rng_normal(w->seed, w->next++);
            op_store(&view, k,
                     str_is(t->name, "sampling") ? (x < 0 ? 0 : x) * (k % 4 == 0) : x * 0.5f);
        }
    }
}

/* Some of the tokens and rows are alive. */
static void fill_live(world *w, const ir_graph *g, ir_values *v)
{
    int64_t rows = INT64_MAX, tokens = INT64_MAX;
    for (ir_tensor_id i = 0; i < g->tensors.n; i++) {
        if (g->tensors.at[i].live == IR_TOKENS)
            tokens = g->tensors.at[i].dims[0];
        if (g->tensors.at[i].live == IR_ROWS)
            rows = g->tensors.at[i].dims[0];
    }
    v->live[IR_ALL] = UINT32_MAX;
    v->live[IR_TOKENS] = 1 + pick(w, (uint32_t)tokens);
    v->live[IR_ROWS] = rows == INT64_MAX ? 1 : 1 + pick(w, (uint32_t)rows);
    if (v->live[IR_ROWS] > v->live[IR_TOKENS])
        v->live[IR_ROWS] = v->live[IR_TOKENS];
}

/* The tensors that the caller fills, by name from one graph's storage to another's. */
static void copy_given(const ir_graph *from, const ir_values *source, const ir_graph *to,
                       void **data)
{
    for (ir_tensor_id i = 0; i < to->tensors.n; i++) {
        uint64_t id;
        if (to->tensors.at[i].kind != IR_TEMP && map_get(&from->names, to->tensors.at[i].name, &id))
            memcpy(data[i], source->data[id], (size_t)ir_bytes(&to->tensors.at[i]));
    }
}

static void *garbage(world *w, uint64_t bytes)
{
    void *p = arena_alloc(&w->a, bytes + 64, 1);
    assert_non_null(p);
    memset(p, 0xa5, bytes);
    return p;
}

/* Memory for a compiled graph as the plan says, with the given tensors copied in. */
static ir_values planned_values(world *w, const tg_program *p, const ir_graph *original,
                                const ir_values *given)
{
    ir_values v = {.data = arena_alloc(&w->a, p->graphs[0].ir->tensors.n + 1, sizeof(void *))};
    void *areas[TG_AREAS] = {0}, **weights = arena_alloc(&w->a, p->n_weights + 1, sizeof *weights);
    assert_non_null(v.data);
    assert_non_null(weights);
    for (int i = TG_STATE; i < TG_AREAS; i++)
        areas[i] = garbage(w, p->area_bytes[i]);
    for (uint32_t i = 0; i < p->n_weights; i++) {
        ir_tensor t = {.dtype = p->weights[i].dtype, .rank = p->weights[i].rank};
        memcpy(t.dims, p->weights[i].dims, sizeof t.dims);
        weights[i] = garbage(w, (uint64_t)ir_bytes(&t));
    }
    tg_bind(&p->graphs[0], areas, weights, v.data);
    copy_given(original, given, p->graphs[0].ir, v.data);
    memcpy(v.live, given->live, sizeof v.live);
    return v;
}

static void check_tensor(const ir_graph *g, ir_tensor_id a, const ir_values *va, const ir_graph *h,
                         ir_tensor_id b, const ir_values *vb)
{
    const ir_tensor *t = &g->tensors.at[a], *u = &h->tensors.at[b];
    op_view x = {.data = va->data[a], .dtype = t->dtype},
            y = {.data = vb->data[b], .dtype = u->dtype};
    assert_int_equal(t->dtype, u->dtype);
    assert_memory_equal(t->dims, u->dims, t->rank * sizeof *t->dims);
    int64_t live = t->live == IR_ALL ? INT64_MAX : (int64_t)va->live[t->live];
    for (int64_t i = 0; i < ir_elements(t); i++) {
        int64_t at_x = 0, at_y = 0, row = 0;
        for (int64_t k = t->rank, rest = i; k-- > 0; rest /= t->dims[k]) {
            row = rest % t->dims[k];
            at_x += row * t->stride[k];
            at_y += row * u->stride[k];
        }
        float p = op_load(&x, at_x), q = op_load(&y, at_y);
        if (row < live && memcmp(&p, &q, sizeof p) != 0)
            fail_msg("%%%.*s, element %lld: %.9g by the interpreter, %.9g by tasks",
                     STR_ARG(t->name), (long long)i, (double)p, (double)q);
    }
}

/* Outputs and state. */
static void check_results(const ir_graph *g, const ir_values *expected, const ir_graph *h,
                          const ir_values *found)
{
    assert_int_equal(g->outputs.n, h->outputs.n);
    for (size_t i = 0; i < g->outputs.n; i++)
        check_tensor(g, g->outputs.at[i], expected, h, h->outputs.at[i], found);
    for (ir_tensor_id i = 0; i < h->tensors.n; i++)
        if (h->tensors.at[i].kind == IR_STATE) {
            uint64_t id;
            assert_true(map_get(&g->names, h->tensors.at[i].name, &id));
            check_tensor(g, (ir_tensor_id)id, expected, h, i, found);
        }
}

/* ---- the test ---- */

static pass_options random_options(world *w)
{
    return (pass_options){.n_workers = 1 + pick(w, pick(w, 2) ? 8 : 200),
                          .page_bytes = 4096,
                          .pages_per_worker = 1024,
                          .fusion = (pass_fusion)pick(w, 3),
                          .launch = (pass_launch)pick(w, 4),
                          .coarse_events = pick(w, 6) == 0,
                          .verify = true,
                          .whole_tiles = pick(w, 2),
                          .sum_terms = pick(w, 2),
                          .tasks_per_worker = pick(w, 3)};
}

static void compare(world *w, ir_graph *g)
{
    ir_values given = {0};
    pass_options options = random_options(w);
    options.n_peers = ir_count_peers(g);
    if (options.n_peers > 1) {
        options.n_workers *= options.n_peers;
        options.launch = PASS_LAUNCH_AOT;
    }
    tg_program p;
    uint32_t n_tokens = 1;
    fill_values(w, g, &given);
    fill_live(w, g, &given);
    check_ok(&w->cx, pass_compile(&w->cx, &w->a, &options, 1, &g, &n_tokens, &p));
    check_ok(&w->cx, ir_verify(&w->cx, p.graphs[0].ir));
    ir_values planned = planned_values(w, &p, g, &given);
    check_ok(&w->cx, ir_eval(&w->cx, &w->a, g, &given));
    check_ok(&w->cx, tg_run(&w->cx, &w->a, p.graphs[0].tg, &planned, w->seed));
    check_results(g, &given, p.graphs[0].ir, &planned);
}

static void run_many(ir_graph *(*make)(world *w), uint32_t n)
{
    uint64_t seed = check_seed();
    for (uint32_t i = 0; i < check_rounds(n); i++) {
        world w = {.seed = seed + i};
        if (i % 50 == 0)
            print_message("graph %u, MPK_SEED=%llu\n", i, (unsigned long long)w.seed);
        compare(&w, make(&w));
        arena_free(&w.a);
    }
}

static void random_graphs_keep_their_bytes(void **state)
{
    (void)state;
    run_many(random_graph, 600);
}

static void random_decoders_keep_their_bytes(void **state)
{
    (void)state;
    run_many(random_decoder, 200);
}

static void random_split_decoders_keep_their_bytes(void **state)
{
    (void)state;
    run_many(random_split_decoder, 200);
}

/* ---- several peers ---- */

static ir_graph *shard(world *w, ir_graph *g, uint32_t n_peers)
{
    pass_options options = {.n_workers = n_peers, .n_peers = n_peers, .own_experts = pick(w, 2)};
    pass_state s = {&w->cx, &w->a, &w->a, &options};
    check_ok(&w->cx, pass_simplify(&s, &g));
    check_ok(&w->cx, pass_shard(&s, &g));
    check_ok(&w->cx, ir_verify(&w->cx, g));
    return g;
}

static uint32_t pick_peers(world *w)
{
    static const uint32_t n[] = {2, 3, 4, 8};
    return n[pick(w, 4)];
}

static ir_graph *random_sharded(world *w)
{
    return shard(w, pick(w, 2) ? random_decoder(w) : random_graph(w), pick_peers(w));
}

/* What a peer holds of a weight: a part of the whole one, element by element. */
static void copy_share(const ir_tensor *whole, const void *from, const ir_tensor *part,
                       const ir_share *share, void *to)
{
    int64_t at[IR_MAX_RANK] = {0}, stride[IR_MAX_RANK];
    op_view x = {.data = (void *)(uintptr_t)from, .dtype = whole->dtype},
            y = {.data = to, .dtype = part->dtype};
    ir_dense_strides(whole->rank, whole->dims, stride);
    for (int64_t i = 0; i < ir_elements(part); i++) {
        int64_t place = 0;
        for (uint32_t k = 0; k < part->rank; k++)
            place += (at[k] + (k == share->axis ? share->lo : 0)) * stride[k];
        op_store(&y, i, op_load(&x, place));
        for (uint32_t k = part->rank; k-- > 0 && ++at[k] == part->dims[k];)
            at[k] = 0;
    }
}

/* Inputs, weights and their parts; state begins as zeros on either side. */
static ir_values sharded_values(world *w, const ir_graph *g, const ir_values *given,
                                const ir_graph *h)
{
    ir_values v = {0};
    check_ok(&w->cx, ir_eval_allocate(&w->cx, &w->a, h, &v));
    memcpy(v.live, given->live, sizeof v.live);
    for (ir_tensor_id i = 0; i < h->tensors.n; i++) {
        const ir_tensor *t = &h->tensors.at[i];
        uint64_t id;
        ir_share share = ir_read_share(t->name);
        if (t->kind != IR_INPUT && t->kind != IR_CONST)
            continue;
        assert_true(map_get(&g->names, share.whole, &id));
        if (share.axis == IR_NONE)
            memcpy(v.data[i], given->data[id], (size_t)ir_bytes(t));
        else
            copy_share(&g->tensors.at[id], given->data[id], t, &share, v.data[i]);
    }
    return v;
}

/* Sums over peers are added in another order, so results agree to rounding: every element of f32;
 * of bf16, whose rounding a norm of small values may amplify, only the mean. */
static void check_close(const ir_graph *g, ir_tensor_id a, const ir_values *va, const ir_graph *h,
                        ir_tensor_id b, const ir_values *vb, bool rounded)
{
    const ir_tensor *t = &g->tensors.at[a], *u = &h->tensors.at[b];
    int64_t n = ir_elements(t), rows = t->live == IR_ALL ? INT64_MAX : (int64_t)va->live[t->live];
    int64_t row = n / t->dims[0], live = rows < t->dims[0] ? rows * row : n;
    float most = 1e-3f;
    op_view x = {.data = va->data[a], .dtype = t->dtype},
            y = {.data = vb->data[b], .dtype = u->dtype};
    assert_memory_equal(t->dims, u->dims, t->rank * sizeof *t->dims);
    for (int64_t i = 0; i < live; i++)
        most = fabsf(op_load(&x, i)) > most ? fabsf(op_load(&x, i)) : most;
    double sum = 0;
    for (int64_t i = 0; i < live; i++) {
        float p = op_load(&x, i), q = op_load(&y, i);
        sum += fabsf(p - q);
        if (!(fabsf(p - q) <= (rounded ? 2 : 1e-4f) * most))
            fail_msg("%%%.*s, element %lld: %.9g of one, %.9g of several peers", STR_ARG(t->name),
                     (long long)i, (double)p, (double)q);
    }
    if (sum > (rounded ? 0.05 : 1e-4) * (double)most * (double)live)
        fail_msg("%%%.*s: one and several peers differ by %.3g in the mean, largest value %.3g",
                 STR_ARG(t->name), sum / (double)live, (double)most);
}

static bool is_dense(const ir_tensor *t)
{
    int64_t stride[IR_MAX_RANK];
    ir_dense_strides(t->rank, t->dims, stride);
    return t->offset == 0 && memcmp(stride, t->stride, t->rank * sizeof *stride) == 0;
}

static bool has_bf16(const ir_graph *g)
{
    for (ir_tensor_id i = 0; i < g->tensors.n; i++)
        if (g->tensors.at[i].dtype == IR_BF16)
            return true;
    return false;
}

/* The same program in f32. */
static void widen(ir_graph *g)
{
    for (ir_tensor_id i = 0; i < g->tensors.n; i++)
        if (g->tensors.at[i].dtype == IR_BF16)
            g->tensors.at[i].dtype = IR_F32;
    for (ir_op_id o = 0; o < g->ops.n; o++)
        for (uint32_t k = 0; k < g->ops.at[o].def->n_attributes; k++)
            if (str_is(g->ops.at[o].attributes[k].s, "bf16"))
                g->ops.at[o].attributes[k].s = STR("f32");
}

/* In bf16 the order of a sum may send a token to another expert, after which nothing is close. */
static bool may_route_apart(const ir_graph *g)
{
    for (ir_op_id o = 0; o < g->ops.n && has_bf16(g); o++)
        if (strcmp(g->ops.at[o].def->name, "route") == 0)
            return true;
    return false;
}

/* Returns how many weights were cut. */
static uint32_t compare_sharded(world *w, ir_graph *g, uint32_t n_peers)
{
    ir_values given = {0};
    uint32_t cut = 0;
    fill_values(w, g, &given);
    fill_live(w, g, &given);
    ir_graph *h = shard(w, g, n_peers);
    ir_values several = sharded_values(w, g, &given, h);
    for (ir_tensor_id i = 0; i < g->tensors.n; i++)
        if (g->tensors.at[i].kind == IR_STATE)
            memset(given.data[i], 0, (size_t)ir_bytes(&g->tensors.at[i]));
    for (ir_tensor_id i = 0; i < h->tensors.n; i++)
        cut += h->tensors.at[i].kind == IR_CONST &&
               ir_read_share(h->tensors.at[i].name).axis != IR_NONE;
    check_ok(&w->cx, ir_eval(&w->cx, &w->a, g, &given));
    check_ok(&w->cx, ir_eval(&w->cx, &w->a, h, &several));
    assert_int_equal(g->outputs.n, h->outputs.n);
    for (size_t i = 0; i < g->outputs.n && !may_route_apart(g); i++) {
        ir_tensor_id out = g->outputs.at[i];
        const ir_tensor *t = &g->tensors.at[out];
        if ((t->dtype == IR_F32 || t->dtype == IR_BF16) && !str_is(t->name, "logprobs") &&
            is_dense(t) && is_dense(&h->tensors.at[h->outputs.at[i]]))
            check_close(g, out, &given, h, h->outputs.at[i], &several, has_bf16(g));
    }
    return cut;
}

static void several_peers_give_the_answer_of_one(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    const uint32_t rounds = check_rounds(400);
    uint32_t cut = 0;
    for (uint32_t i = 0; i < rounds; i++) {
        world w = {.seed = seed + i};
        ir_graph *g = i % 2 ? random_decoder(&w) : random_graph(&w);
        if (i % 50 == 0)
            print_message("graph %u, MPK_SEED=%llu\n", i, (unsigned long long)w.seed);
        cut += compare_sharded(&w, g, pick_peers(&w));
        widen(g);
        cut += compare_sharded(&w, g, pick_peers(&w));
        arena_free(&w.a);
    }
    assert_true(cut > 2 * rounds);
}

/* ---- experts that peers own ---- */

typedef enum skew { RANDOM, ALL_TO_FIRST, ALL_TO_LAST, NONE_VALID, N_SKEWS } skew;

/* A layer of experts whose ids come from outside, so that the test can send tokens anywhere; every
 * expert is cut, or none can be. */
static ir_graph *expert_layer(world *w, uint32_t n_experts, bool narrow)
{
    const int tokens = 1 + (int)pick(w, 9), each = 1 + (int)pick(w, 3), D = 8 + (int)pick(w, 9),
              F = narrow ? 1 : 9 + (int)pick(w, 20);
    char source[1024];
    ir_graph *g;
    snprintf(source, sizeof source,
             "input %%x : f32[%d, %d] live=tokens\ninput %%i : i32[%d, %d] live=tokens\n"
             "input %%s : f32[%d, %d] live=tokens\nconst %%g : f32[%u, %d, %d]\n"
             "const %%u : f32[%u, %d, %d]\nconst %%d : f32[%u, %d, %d]\n"
             "%%h = expert_linear(%%x, %%i, %%g, %%u) {glu = \"silu\"}\n"
             "%%y = expert_linear(%%h, %%i, %%d, _, %%s, %%x)\noutput %%y\n",
             tokens, D, tokens, each, tokens, each, n_experts, F, D, n_experts, F, D, n_experts, D,
             F);
    check_ok(&w->cx, ir_parse(&w->cx, &w->a, str_from(source), &g));
    return g;
}

/* Experts of the first peer are the first ones, and those of the last peer the last. */
static void send_tokens(world *w, const ir_graph *g, skew how, uint32_t n_experts, uint32_t n_peers,
                        ir_values *v)
{
    uint64_t id;
    const uint32_t own = n_experts / n_peers;
    assert_true(map_get(&g->names, STR("i"), &id));
    for (int64_t k = 0; k < ir_elements(&g->tensors.at[id]); k++) {
        const uint32_t expert = how == RANDOM       ? pick(w, n_experts + 2)
                                : how == NONE_VALID ? n_experts + pick(w, 3)
                                                    : pick(w, own);
        const bool is_last = how == ALL_TO_LAST;
        ((int32_t *)v->data[id])[k] = (int32_t)(is_last ? n_experts - 1 - expert : expert);
        if (how == NONE_VALID && pick(w, 2))
            ((int32_t *)v->data[id])[k] = -1 - (int32_t)pick(w, 9);
    }
}

/* How many operators on a peer multiply by experts, and that each has its own ones whole. */
static uint32_t count_owners(const ir_graph *h, uint32_t peer, uint32_t n_experts, uint32_t n_peers)
{
    const int64_t lo = n_experts * peer / n_peers, hi = n_experts * (peer + 1) / n_peers;
    uint32_t n = 0;
    for (ir_op_id o = 0; o < h->ops.n; o++) {
        const ir_op *op = &h->ops.at[o];
        if (strcmp(op->def->name, "expert_linear") != 0 || op->peer != peer)
            continue;
        const ir_share share = ir_read_share(h->tensors.at[op->in[2]].name);
        assert_int_equal(share.axis, 0);
        assert_true(share.lo == lo && share.hi == hi);
        n++;
    }
    return n;
}

static void check_owned(world *w, uint32_t n_peers, skew how)
{
    const uint32_t n_experts = n_peers + pick(w, 20);
    const bool narrow = pick(w, 2); /* columns that cannot be cut: owned without being asked to */
    ir_values given = {0};
    ir_graph *g = expert_layer(w, n_experts, narrow), *h = g;
    pass_options options = {.n_workers = n_peers, .n_peers = n_peers, .own_experts = !narrow};
    pass_state s = {&w->cx, &w->a, &w->a, &options};
    fill_values(w, g, &given);
    fill_live(w, g, &given);
    send_tokens(w, g, how, n_experts, n_peers, &given);
    check_ok(&w->cx, pass_shard(&s, &h));
    check_ok(&w->cx, ir_verify(&w->cx, h));
    for (uint32_t p = 0; p < n_peers; p++)
        assert_int_equal(count_owners(h, p, n_experts, n_peers), 2);
    ir_values several = sharded_values(w, g, &given, h);
    check_ok(&w->cx, ir_eval(&w->cx, &w->a, g, &given));
    check_ok(&w->cx, ir_eval(&w->cx, &w->a, h, &several));
    check_close(g, g->outputs.at[0], &given, h, h->outputs.at[0], &several, false);
}

/* Whichever peer's experts the router prefers. */
static void peers_own_experts(void **state)
{
    (void)state;
    static const uint32_t n_peers[] = {2, 3, 4, 8};
    uint64_t seed = check_seed();
    for (uint32_t i = 0; i < check_rounds(20); i++)
        for (uint32_t k = 0; k < 4; k++)
            for (int how = 0; how < N_SKEWS; how++) {
                world w = {.seed = seed + i * 100 + k * 10 + (uint32_t)how};
                check_owned(&w, n_peers[k], (skew)how);
                arena_free(&w.a);
            }
}

/* Two operators that number different experts by the same ids are not dealt out. */
static void experts_of_different_numbers_are_not_dealt_out(void **state)
{
    (void)state;
    world w = {.seed = check_seed()};
    ir_graph *g;
    check_ok(&w.cx,
             ir_parse(&w.cx, &w.a,
                      STR("input %x : f32[3, 8]\ninput %i : i32[3, 2]\ninput %s : f32[3, 2]\n"
                          "const %a : f32[6, 1, 8]\nconst %b : f32[8, 1, 8]\n"
                          "%y = expert_linear(%x, %i, %a, _, %s)\n"
                          "%z = expert_linear(%x, %i, %b, _, %s)\noutput %y\noutput %z\n"),
                      &g));
    pass_options options = {.n_workers = 2, .n_peers = 2, .own_experts = true, .gather_bytes = 1};
    pass_state s = {&w.cx, &w.a, &w.a, &options};
    check_ok(&w.cx, pass_shard(&s, &g));
    for (ir_tensor_id t = 0; t < g->tensors.n; t++)
        assert_int_not_equal(ir_read_share(g->tensors.at[t].name).axis, 0);
    arena_free(&w.a);
}

static void programs_of_several_peers_keep_their_bytes(void **state)
{
    (void)state;
    run_many(random_sharded, 150);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_graphs_keep_their_bytes),
        cmocka_unit_test(random_decoders_keep_their_bytes),
        cmocka_unit_test(random_split_decoders_keep_their_bytes),
        cmocka_unit_test(several_peers_give_the_answer_of_one),
        cmocka_unit_test(peers_own_experts),
        cmocka_unit_test(experts_of_different_numbers_are_not_dealt_out),
        cmocka_unit_test(programs_of_several_peers_keep_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
