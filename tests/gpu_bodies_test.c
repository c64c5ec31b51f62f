/* gpu_bodies_test.c - whatever the passes make of a program, a GPU body takes it.
 *
 * Random programs begin with a case of a random operator and grow by element-wise operators, wide
 * sums, views, reductions and casts over random shapes, ranks and dtypes.  Each is compiled with
 * random options as for a GPU; then every operator left must find a body on every architecture.
 * Weights in blocks are left out: on a GPU they are bf16 (engine_model.c).  The programs of all
 * families of models follow, each with what its files can ask for.
 */
#include "base/rng.h"
#include "check.h"
#include "draw_sizes.h"
#include "gen/source.h"
#include "ir/op.h"
#include "load/load.h"
#include "model/model.h"
#include "pass/pass.h"
#include "rt/rt_lane.h"

enum { PROGRAMS = 1500, MOST_STEPS = 24, MOST_TENSORS = 160 };

typedef struct world {
    mpk_context cx;
    arena a;
    uint64_t seed, next;
    ir_graph *g;
    ir_tensor_id pool[MOST_TENSORS]; /* what further operators may read */
    uint32_t n;
} world;

static uint32_t n_grown; /* operators that the builder took, in all programs */

static uint32_t pick(world *w, uint32_t n)
{
    return (uint32_t)(rng_u64(w->seed, w->next++) % n);
}

static const ir_tensor *tensor_of(const world *w, ir_tensor_id t)
{
    return &w->g->tensors.at[t];
}

static ir_tensor_id pick_tensor(world *w)
{
    return w->pool[pick(w, 2) ? w->n - 1 : pick(w, w->n)];
}

/* An operator, if the builder takes it: its results join the pool. */
static ir_tensor_id add_op(world *w, const char *op, uint32_t n_in, const ir_tensor_id *in,
                           const ir_set *set)
{
    ir_tensor_id out[IR_MAX_OUTPUTS];
    if (ir_add_op(&w->cx, w->g, op, NULL, n_in, in, set, out) != MPK_OK) {
        status_clear(&w->cx);
        return IR_NONE;
    }
    n_grown++;
    for (uint32_t i = 0; i < op_find(str_from(op))->n_out && w->n < MOST_TENSORS; i++)
        w->pool[w->n++] = out[i];
    return out[0];
}

/* ---- growing ---- */

/* An input that broadcasts to a: some of its axes, some of these with one entry, of a random
 * dtype. */
static ir_tensor_id add_like(world *w, ir_tensor_id a, bool same_dtype)
{
    static const ir_dtype dtypes[] = {IR_F32, IR_BF16, IR_F16, IR_F64, IR_I32,
                                      IR_I64, IR_BOOL, IR_U8,  IR_I8,  IR_I16};
    const ir_tensor *t = tensor_of(w, a);
    char name[32];
    uint32_t left_out = t->rank && !pick(w, 4) ? pick(w, t->rank) : 0, rank = t->rank - left_out;
    int64_t dims[IR_MAX_RANK];
    ir_tensor_id out;
    for (uint32_t i = 0; i < rank; i++)
        dims[i] = pick(w, 6) ? t->dims[left_out + i] : 1;
    ir_live live = rank && !left_out && dims[0] == t->dims[0] ? t->live : IR_ALL;
    ir_dtype dtype =
        same_dtype || pick(w, 3) ? t->dtype : dtypes[pick(w, sizeof dtypes / sizeof *dtypes)];
    snprintf(name, sizeof name, "given%zu", w->g->tensors.n);
    check_ok(&w->cx, ir_add_tensor(&w->cx, w->g, IR_INPUT, live, name, dtype, rank, dims, &out));
    return out;
}

/* a + b + c ..., as a chain or as a tree. */
static void add_sum(world *w)
{
    ir_tensor_id terms[32], first = pick_tensor(w);
    uint32_t n = 2 + pick(w, 31);
    const char *op = pick(w, 2) ? "add" : "mul";
    terms[0] = first;
    for (uint32_t i = 1; i < n; i++)
        terms[i] = pick(w, 8) ? add_like(w, first, true) : pick_tensor(w);
    bool chain = pick(w, 2);
    while (n > 1) {
        uint32_t k = chain ? 0 : 2 * pick(w, n / 2);
        ir_tensor_id sum = add_op(w, op, 2, (ir_tensor_id[]){terms[k], terms[k + 1]}, NULL);
        if (sum == IR_NONE)
            return;
        terms[k] = sum;
        for (uint32_t i = k + 1; i + 1 < n; i++)
            terms[i] = terms[i + 1];
        n--;
    }
}

/* An expression over up to twelve inputs. */
static void add_map(world *w)
{
    static const char *const words[] = {"x%u", "exp(-x%u)", "tanh(x%u)", "where(x%u > 0, 1, x%u)",
                                        "abs(x%u)"};
    static const char *const dtypes[] = {"f32", "bf16", "f16", "f64", "i32", "i64", "bool"};
    ir_tensor_id in[12] = {pick_tensor(w)};
    uint32_t n = 1 + pick(w, 12);
    text expr = {0};
    for (uint32_t i = 0; i < n; i++) {
        in[i] = i ? add_like(w, in[0], false) : in[0];
        text_print(&expr, "%s", i ? pick(w, 2) ? " + " : " * " : "");
        text_print(&expr, words[pick(w, 5)], i, i);
    }
    add_op(w, "map", n, in,
           (ir_set[]){
               {.name = "expr", .s = expr.at}, {.name = "dtype", .s = dtypes[pick(w, 7)]}, {0}});
    text_free(&expr);
}

static void add_concat(world *w)
{
    ir_tensor_id in[RT_PACKED - 1] = {pick_tensor(w)};
    uint32_t n = 2 + pick(w, RT_PACKED - 2);
    for (uint32_t i = 1; i < n; i++)
        in[i] = in[0];
    add_op(w, "concat", n, in, (ir_set[]){{.name = "axis", .i = pick(w, 3)}, {0}});
}

static void add_transpose(world *w)
{
    ir_tensor_id a = pick_tensor(w);
    int64_t perm[IR_MAX_RANK] = {0};
    uint32_t rank = tensor_of(w, a)->rank;
    for (uint32_t i = 0; i < rank; i++) {
        uint32_t k = pick(w, i + 1);
        perm[i] = perm[k];
        perm[k] = i;
    }
    add_op(w, "transpose", 1, &a, (ir_set[]){{.name = "perm", .ints = perm, .n_ints = rank}, {0}});
}

static void add_slice(world *w)
{
    ir_tensor_id a = pick_tensor(w);
    int64_t starts[IR_MAX_RANK], stops[IR_MAX_RANK], steps[IR_MAX_RANK];
    const ir_tensor *t = tensor_of(w, a);
    uint32_t rank = t->rank;
    for (uint32_t i = 0; i < rank; i++) {
        bool whole = pick(w, 2);
        starts[i] = whole ? 0 : pick(w, (uint32_t)t->dims[i]);
        stops[i] = whole ? t->dims[i] : starts[i] + 1 + pick(w, (uint32_t)(t->dims[i] - starts[i]));
        steps[i] = whole ? 1 : 1 + pick(w, 3);
    }
    add_op(w, "slice", 1, &a,
           (ir_set[]){{.name = "starts", .ints = starts, .n_ints = rank},
                      {.name = "stops", .ints = stops, .n_ints = rank},
                      {.name = "steps", .ints = steps, .n_ints = rank},
                      {0}});
}

/* Two neighbouring axes become one, or one of even length two. */
static void add_reshape(world *w)
{
    ir_tensor_id a = pick_tensor(w);
    const ir_tensor *t = tensor_of(w, a);
    int64_t dims[IR_MAX_RANK + 1];
    uint32_t rank = t->rank, n = 0, at = rank ? pick(w, rank) : 0;
    bool split = rank && rank < IR_MAX_RANK && t->dims[at] % 2 == 0;
    for (uint32_t i = 0; i < rank; i++) {
        dims[n++] = t->dims[i];
        if (split && i == at) {
            dims[n - 1] /= 2;
            dims[n++] = 2;
        } else if (!split && i == at && i + 1 < rank) {
            dims[n - 1] *= t->dims[++i];
        }
    }
    add_op(w, "reshape", 1, &a, (ir_set[]){{.name = "shape", .ints = dims, .n_ints = n}, {0}});
}

/* One of the operators with one operand, on a random axis. */
static void add_unary(world *w)
{
    static const char *const names[] = {"silu",   "gelu", "softmax", "log_softmax",
                                        "sort",   "scan", "flip",    "extreme",
                                        "reduce", "cast", "copy",    "argmax"};
    static const char *const dtypes[] = {"f32", "bf16", "f16", "f64", "i32", "i64", "bool"};
    const char *name = names[pick(w, sizeof names / sizeof *names)];
    ir_tensor_id a = pick_tensor(w);
    uint32_t rank = tensor_of(w, a)->rank;
    int64_t axis = rank ? pick(w, rank) : 0;
    ir_set set[2] = {{.name = "axis", .i = axis}};
    if (!strcmp(name, "flip") || !strcmp(name, "reduce"))
        set[0] = (ir_set){.name = "axes", .ints = &axis, .n_ints = 1};
    if (!strcmp(name, "cast"))
        set[0] = (ir_set){.name = "dtype", .s = dtypes[pick(w, 7)]};
    if (!strcmp(name, "gelu"))
        set[0] = (ir_set){.name = "tanh", .i = pick(w, 2)};
    bool plain = !strcmp(name, "silu") || !strcmp(name, "copy") || !strcmp(name, "argmax");
    add_op(w, name, 1, &a, plain ? NULL : set);
}

static void grow(world *w)
{
    static void (*const ways[])(world * w) = {add_sum,   add_map,   add_concat,  add_transpose,
                                              add_slice, add_unary, add_reshape, add_unary};
    if (w->n < MOST_TENSORS - 40)
        ways[pick(w, sizeof ways / sizeof *ways)](w);
}

/* ---- one program ---- */

static bool has_blocks(const ir_graph *g)
{
    for (size_t i = 0; i < g->tensors.n; i++)
        if (ir_dtype_table[g->tensors.at[i].dtype].block_elements > 1)
            return true;
    return false;
}

/* A case of a random operator; false: it has weights in blocks, or is none for GPUs. */
static bool begin(world *w)
{
    uint32_t n_ops = 0;
    while (op_table[n_ops])
        n_ops++;
    const op_def *def = op_table[pick(w, n_ops)];
    check_ok(&w->cx,
             ir_parse(&w->cx, &w->a, str_from(def->cases[pick(w, def->n_cases)].graph), &w->g));
    const ir_graph *g = w->g;
    for (size_t i = 0; i < g->tensors.n && w->n < MOST_STEPS; i++) {
        const ir_tensor *t = &g->tensors.at[i];
        if (t->kind == IR_INPUT || (t->kind == IR_TEMP && t->shares == IR_NONE))
            w->pool[w->n++] = (ir_tensor_id)i;
    }
    return !(def->flags & OP_PROCESSES) && !has_blocks(g) && w->n > 0;
}

/* What nothing reads is a result of the program. */
static void add_outputs(world *w)
{
    ir_graph *g = w->g;
    size_t n = g->tensors.n;
    bool *is_read = arena_alloc(&w->a, n, sizeof *is_read);
    assert_non_null(is_read);
    for (size_t i = 0; i < g->ops.n; i++)
        for (uint32_t k = 0; k < g->ops.at[i].n_in; k++)
            if (g->ops.at[i].in[k] != IR_NONE)
                is_read[g->ops.at[i].in[k]] = true;
    g->outputs.n = 0;
    for (size_t i = 0; i < n; i++)
        if (g->tensors.at[i].kind == IR_TEMP && !is_read[i])
            check_ok(&w->cx, ir_add_output(&w->cx, g, (ir_tensor_id)i));
}

static pass_options random_options(world *w)
{
    pass_options o = {.n_workers = 1 + pick(w, 150),
                      .page_bytes = 16384,
                      .pages_per_worker = 1 << 16,
                      .fusion = pick(w, 3) ? PASS_FUSE_FULL : (pass_fusion)pick(w, 3),
                      .relaxed = true,
                      .whole_tiles = true,
                      .logits = true,
                      .norm_elements = 8192};
    o.splits = pick(w, 2) ? 1 + pick(w, 40) : 0;
    o.split_tokens = 16;
    return o;
}

static void check_bodies(const world *w, const ir_graph *g, const gen_arch *arch, uint32_t n_tokens)
{
    for (size_t i = 0; i < g->ops.n; i++) {
        const ir_op *op = &g->ops.at[i];
        gen_call c = {.ir = g,
                      .op = op,
                      .n_tokens = n_tokens,
                      .n_workers = arch->n_sms,
                      .needs = arch->features,
                      .halves = IR_BF16};
        if ((op->def->flags & OP_VIEW && g->tensors.at[op->out[0]].shares != IR_NONE) ||
            gen_body_choose(&c, UINT32_MAX))
            continue;
        text t = {0};
        ir_print(g, &t);
        print_message("MPK_SEED=%llu:\n%s", (unsigned long long)w->seed, t.at);
        fail_msg("%s (%%%.*s) of %u operands has no body on %s", op->def->name, STR_ARG(op->name),
                 op->n_in + op->n_out, arch->name);
    }
}

static void check_program(world *w)
{
    uint32_t n_tokens = 1;
    tg_program p;
    add_op(w, "copy", 1, w->pool, NULL); /* a program of views alone is none */
    for (uint32_t n = pick(w, MOST_STEPS); n > 0; n--)
        grow(w);
    add_outputs(w);
    for (size_t i = 0; i < w->g->tensors.n; i++)
        if (w->g->tensors.at[i].live == IR_TOKENS)
            n_tokens = (uint32_t)w->g->tensors.at[i].dims[0];
    pass_options o = random_options(w);
    check_ok(&w->cx, pass_compile(&w->cx, &w->a, &o, 1, &w->g, &n_tokens, &p));
    for (const gen_arch *arch = gen_arch_table; arch->name; arch++)
        check_bodies(w, p.graphs[0].ir, arch, n_tokens);
}

static void every_operator_finds_a_body(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    const uint32_t rounds = check_rounds(PROGRAMS);
    uint32_t n = 0;
    for (uint32_t i = 0; i < rounds; i++) {
        world w = {.seed = seed + i};
        if (begin(&w)) {
            check_program(&w);
            n++;
        }
        arena_free(&w.a);
    }
    print_message("%u programs, %u operators added to their first\n", n, n_grown);
    assert_true(n > rounds / 2 && n_grown > 10 * n);
}

/* ---- families of models ---- */

/* Norms as GGUF files and Gemma's folders have them, all other weights as on a GPU. */
static mpk_status weight_dtype(mpk_context *cx, const void *self, const char *name, uint32_t rank,
                               const int64_t *dims, ir_dtype *dtype)
{
    (void)cx, (void)self, (void)name, (void)dims;
    *dtype = rank == 1 ? IR_F32 : IR_BF16;
    return MPK_OK;
}

/* Random sizes, and everything that the family's record lets a file say. */
static model_config random_config(world *w, const model_def *def)
{
    static const uint32_t heads[] = {64, 128, 256, 80, 96};
    static const float divisors[] = {1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3,
                                     3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5};
    const uint32_t groups = 1 + pick(w, 3);
    model_config c = {.family = str_from(def->family),
                      .n_layers = 3,
                      .hidden_size = 64 * (1 + pick(w, 9)),
                      .n_heads = groups * (1 + pick(w, 4)),
                      .n_kv_heads = groups,
                      .head_size = heads[pick(w, 5)],
                      .ffn_size = 32 * (1 + pick(w, 20)),
                      .vocab_size = 300 + pick(w, 900),
                      .max_positions = 4096,
                      .norm_eps = 1e-6,
                      .activation = str_from(def->activation ? def->activation : "silu"),
                      .rope_theta = 10000,
                      .tied_embeddings = pick(w, 2),
                      .expert_every = 1};
    c.rope_size = c.head_size;
    if (def->windows != MODEL_NO_WINDOW && pick(w, 2))
        c.window = 100, c.full_layers[0] = pick(w, 8), c.local_theta = def->local_theta;
    if (def->joints && pick(w, 2)) {
        c.rope_scaling = MODEL_ROPE_LONG, c.rope_factor = 4, c.rope_original_positions = 1024;
        c.rope_size = c.head_size < 80 ? c.head_size : 80;
        c.rope_short = c.rope_long = divisors;
    }
    if (def->is_mixture)
        c.n_experts = 8, c.experts_per_token = 2, c.expert_ffn_size = 64;
    c.layer_norms = def->layer_norms, c.norm_bias = def->norm_bias;
    c.expert_sigmoid = def->sigmoid_routers, c.expert_score_bias = def->score_bias;
    if (def->shared_expert)
        c.shared_ffn_size = 96;
    if (def->unrotated_full)
        model_unrotate_full(&c);
    c.unrotated_layers[0] = def->unrotated_every ? pick(w, 8) : 0;
    if (def->scaled_queries && pick(w, 2))
        c.query_growth = 0.1, c.query_step = 256;
    if (def->chunk)
        c.query_growth = 0.1, c.query_step = 256, c.query_offset = 1, c.query_unrotated = true;
    if (def->routing == MODEL_ROUTES_SCALED)
        c.experts_per_token = 1, c.experts_scaled = true;
    c.attention_cap = pick(w, 2) ? def->attention_cap : 0;
    c.logits_cap = def->logits_cap;
    c.embedding_scale = def->root_embedding || def->multipliers ? 12.5 : 0;
    c.residual_scale = c.logits_scale = def->multipliers ? 0.22 : 0;
    if (def->logit_scale != 0)
        c.logits_scale = def->logit_scale;
    c.attention_bias = def->biases != MODEL_NO_BIASES && pick(w, 2);
    c.head_norms = def->head_norms_said && pick(w, 2);
    c.bare_norms = def->bare_norms, c.head_bias = def->head_bias;
    c.mlp_bias = def->mlp_biased || (def->mlp_bias && pick(w, 2));
    c.parallel = def->parallel_said && pick(w, 2);
    if (def->latent)
        draw_latent(w->seed, &c);
    if (def->delta)
        draw_delta(w->seed, 128, 256, &c);
    c.shared_ffn_size = def->shared_one ? 64 : c.shared_ffn_size;
    if (def->routing) {
        c.shared_ffn_size = 64 * pick(w, 3), c.expert_scale = 2.5, c.dense_layers[0] = pick(w, 4);
        c.expert_sigmoid = def->routing == MODEL_ROUTES_BIASED;
        c.expert_sigmoid |= c.experts_scaled;
        c.expert_score_bias = def->routing != MODEL_ROUTES_GREEDY && !c.experts_scaled;
        c.expert_groups = 1 + 3 * pick(w, 2), c.kept_groups = 1 + pick(w, c.expert_groups);
        c.group_best = c.expert_sigmoid ? 2 : 1;
    }
    return c;
}

static void every_family_finds_bodies(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    for (uint32_t i = 0; model_table[i / 8]; i++) {
        world w = {.seed = seed + i};
        static const uint32_t tokens[] = {1, 2, 16, 33, 200, 300};
        uint32_t n_tokens = tokens[pick(&w, 6)];
        const model_config c = random_config(&w, model_table[i / 8]);
        const model_weights weights = {.dtype = weight_dtype};
        const model_shape s = {.n_tokens = n_tokens,
                               .n_rows = n_tokens < 16 ? n_tokens : 16,
                               .n_slots = 16,
                               .n_pages = 64,
                               .page_tokens = 64,
                               .max_pages_per_slot = 8,
                               .kv_dtype = IR_BF16,
                               .activation_dtype = IR_BF16};
        check_ok(&w.cx, model_build(&w.cx, &w.a, &c, &s, &weights, &w.g));
        pass_options o = random_options(&w);
        tg_program p;
        check_ok(&w.cx, pass_compile(&w.cx, &w.a, &o, 1, &w.g, &n_tokens, &p));
        for (const gen_arch *arch = gen_arch_table; arch->name; arch++)
            check_bodies(&w, p.graphs[0].ir, arch, n_tokens);
        arena_free(&w.a);
    }
}

/* ---- limits of fast bodies ---- */

/* Which body the last operator of a program gets on Hopper; at a limit the fast one, just beyond it
 * another.  Where instances of a template are its routines, which of them. */
static void fast_bodies_keep_their_limits(void **state)
{
    (void)state;
    static const struct {
        const char *body, *graph;
        bool taken;
    } rows[] = {
#define FOLDED "%y = attention_fold(%p, %l)\n"
#define CONVED "%y = conv(%x, %w, _)\n"
#define FOLD(n, c) "input %p : bf16[2, " n ", " c "]\ninput %l : f32[2, " n ", 2]\n" FOLDED
        {"fold_rows", FOLD("9", "2048"), true},
        {"fold_rows", FOLD("9", "2064"), false},
        {"fold_rows", FOLD("256", "256"), true},
        {"fold_rows", FOLD("257", "256"), false},
#define CONV(n, c) "input %x : bf16[1, " c ", 9, 9]\nconst %w : bf16[" n ", " c ", 3, 3]\n" CONVED
        {"block", CONV("4", "2"), true},
        {"block", CONV("3", "2"), false},
        {"block", CONV("4", "1"), false},
#define ROTATED(qkv, half, size)                                                                   \
    "input %x : bf16[2, " qkv "] live=tokens\ninput %t : f32[2, 2, " half "] live=tokens\ninput "  \
    "%p : i32[2] live=tokens\ninput %s : i32[2] live=tokens\ninput %pages : i32[1, 3]\nstate %kc " \
    ": bf16[4, 1, 64, " size "]\nstate %vc : bf16[4, 1, 64, " size "]\n%q, %k, %v = rope_kv(%x, "  \
    "%t, %p, %s, %pages, %kc, %vc) {heads = 2, kv_heads = 1, head_size = " size "}\n"
#define PARTS(shape) \
    "input %a : bf16[" shape "]\ninput %b : bf16[" shape "]\n%y = add_parts(%a, %b)\n"
        {"sum_rows", PARTS("2, 8"), true},
        {"sum_rows", PARTS("2, 12"), false},
        {"sum_rows", PARTS("2, 8, 8"), false},
        {"rope_tile<64>", ROTATED("256", "32", "64"), true},
        {"rope_tile<128>", ROTATED("512", "64", "128"), true},
        {"rope_tile<96>", ROTATED("384", "48", "96"), true},
        {"rope_tile<256>", ROTATED("1024", "128", "256"), true},
        {"rope_tile", ROTATED("768", "96", "192"), false},
#define BIASED(tokens, bias)                                                                      \
    "input %x : bf16[" tokens ", 64] live=tokens\ninput %i : i32[" tokens ", 2] live=tokens\n"    \
    "const %g : bf16[5, 24, 64]\nconst %u : bf16[5, 24, 64]\nconst %bg : " bias "[5, 24]\nconst " \
    "%bu : bf16[5, 24]\n%y = expert_linear(%x, %i, %g, %u, _, _, _, %bg, %bu) {glu = "            \
    "\"swiglu_oai\", limit = 7.0}\n"
        {"expert_stream", BIASED("16", "bf16"), true},
        {"expert_stream", BIASED("128", "f32"), true},
        {"expert_stream", BIASED("16", "f16"), false},
#define HEADS(tokens)                                                                             \
    "input %a : bf16[" tokens ", 3072] live=tokens\ninput %i : i32[" tokens ", 16] live=tokens\n" \
    "const %w : bf16[16, 512, 128]\n%q = reshape(%a) {shape = [" tokens                           \
    ", 16, 192]}\n%x = slice(%q) {starts = [0, 0, 0], stops = [" tokens                           \
    ", 16, 128]}\n%y = expert_linear(%x, %i, %w)\n"
        {"expert_stream", HEADS("1"), true},
        {"expert_stream", HEADS("2"), true},
#define PAIRS(experts)                                                                     \
    "input %x : bf16[4, 2, 64] live=tokens\ninput %i : i32[4, 2] live=tokens\nconst %w : " \
    "bf16[" experts ", 8, 64]\n%y = expert_linear(%x, %i, %w)\n"
        {"expert_stream", PAIRS("256"), true},
        {"expert_stream", PAIRS("257"), false},
        {"expert_tile", BIASED("129", "f32"), true},
        {"expert_tile", BIASED("129", "f16"), false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        world w = {0};
        check_ok(&w.cx, ir_parse(&w.cx, &w.a, str_from(rows[i].graph), &w.g));
        const gen_arch *arch = gen_arch_find("sm_90a");
        gen_call c = {.ir = w.g,
                      .op = &w.g->ops.at[w.g->ops.n - 1],
                      .n_tokens = 2,
                      .n_workers = arch->n_sms,
                      .needs = arch->features,
                      .halves = IR_BF16};
        const gen_body *body = gen_body_choose(&c, UINT32_MAX);
        assert_non_null(body);
        const bool is_template = strchr(rows[i].body, '<') && body->routine;
        const char *name = is_template ? body->routine(&c)->body : body->name;
        if ((strcmp(name, rows[i].body) == 0) != rows[i].taken)
            fail_msg("row %zu: the body is %s", i, name);
        arena_free(&w.a);
    }
}

/* A body is taken if what is left beside the rings holds its scratch, to the byte; else another. */
static void bodies_have_room_for_their_scratch(void **state)
{
    (void)state;
    const gen_arch *arch = gen_arch_find("sm_90a");
    const str source =
        STR("input %x : bf16[129, 64] live=tokens\ninput %i : i32[129, 2] live=tokens"
            "\nconst %g : bf16[5, 24, 64]\nconst %u : bf16[5, 24, 64]\n"
            "%y = expert_linear(%x, %i, %g, %u) {glu = \"silu\"}\n");
    world w = {0};
    check_ok(&w.cx, ir_parse(&w.cx, &w.a, source, &w.g));
    gen_call c = {.ir = w.g,
                  .op = &w.g->ops.at[0],
                  .n_tokens = 129,
                  .n_workers = arch->n_sms,
                  .needs = arch->features,
                  .halves = IR_BF16};
    const gen_body *body = gen_body_choose(&c, UINT32_MAX);
    assert_true(body && body->rank && body->scratch_bytes);
    c.scratch_most = body->scratch_bytes(&c);
    assert_ptr_equal(gen_body_choose(&c, UINT32_MAX), body);
    c.scratch_most--;
    const gen_body *other = gen_body_choose(&c, UINT32_MAX);
    assert_true(other && other != body && other->rank < body->rank);
    arena_free(&w.a);
}

/* What an operator of a graph for n tokens runs on Hopper. */
static const gen_body *body_of(const ir_graph *g, const char *name, uint32_t n_tokens)
{
    const gen_arch *arch = gen_arch_find("sm_90a");
    for (size_t i = 0; i < g->ops.n; i++)
        if (strcmp(g->ops.at[i].def->name, name) == 0)
            return gen_body_choose(&(gen_call){.ir = g,
                                               .op = &g->ops.at[i],
                                               .n_tokens = n_tokens,
                                               .n_workers = arch->n_sms,
                                               .needs = arch->features,
                                               .halves = IR_BF16},
                                   UINT32_MAX);
    fail_msg("no %s", name);
    return NULL;
}

/* Attention and its fold stand in the unit of the product before them: a worker that changes its
 * machine code between the three waits longer. */
static void attention_stands_beside_its_product(void **state)
{
    (void)state;
    bool has_many = false, has_some = false;
    for (uint32_t n = 1; n <= 129; n++) {
        const uint32_t page = n == 129 ? 32 : 64; /* the stream knows no pages of 32 */
        world w = {0};
        char source[1024];
        snprintf(source, sizeof source,
                 "input %%t : bf16[%u, 256] live=tokens\ninput %%r : f32[%u, 2, 64] live=tokens\n"
                 "input %%p : i32[%u] live=tokens\ninput %%s : i32[%u] live=tokens\n"
                 "input %%q : i32[2, 4]\nstate %%kc : bf16[8, 1, %u, 128]\n"
                 "state %%vc : bf16[8, 1, %u, 128]\nconst %%a : bf16[512, 256]\n"
                 "%%h = linear(%%t, %%a)\n"
                 "%%y, %%l, %%k, %%v = attention_split(%%h, %%r, %%p, %%s, %%q, %%kc, %%vc) "
                 "{heads = 2, kv_heads = 1, head_size = 128, splits = 2, unit = 64}\n"
                 "%%f = attention_fold(%%y, %%l)\n",
                 n, n, n, n, page, page);
        check_ok(&w.cx, ir_parse(&w.cx, &w.a, str_from(source), &w.g));
        const gen_body *product = body_of(w.g, "linear", n),
                       *split = body_of(w.g, "attention_split", n),
                       *fold = body_of(w.g, "attention_fold", n);
        assert_int_equal(strcmp(split->name, "attention_split_stream") == 0, page == 64);
        assert_string_equal(fold->name, "fold_rows");
        if (page == 64 &&
            ((split->many != 0) != (product->many != 0) || fold->many != split->many ||
             split->some != (n > 16 && !split->many) || fold->some != split->some))
            fail_msg("%u tokens: %s, many %d %d %d, some %d %d %d", n, product->name, product->many,
                     split->many, fold->many, product->some, split->some, fold->some);
        has_many |= split->many != 0;
        has_some |= split->some;
        arena_free(&w.a);
    }
    assert_true(has_many && has_some);
    for (uint32_t n = 255; n <= 257; n++) { /* alone */
        world w = {0};
        char source[256];
        snprintf(source, sizeof source,
                 "input %%p : bf16[%u, 9, 128]\ninput %%l : f32[%u, 9, 2]\n"
                 "%%y = attention_fold(%%p, %%l)\n",
                 n, n);
        check_ok(&w.cx, ir_parse(&w.cx, &w.a, str_from(source), &w.g));
        assert_int_equal(body_of(w.g, "attention_fold", n)->some, n <= 256);
        arena_free(&w.a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_finds_a_body),
        cmocka_unit_test(every_family_finds_bodies),
        cmocka_unit_test(fast_bodies_keep_their_limits),
        cmocka_unit_test(bodies_have_room_for_their_scratch),
        cmocka_unit_test(attention_stands_beside_its_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
