/* fuse_ops_test.c - fused programs have the paper's operators, and compute the same bits as plain
 * ones. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "fuse_bed.h"
#include "load/load.h"

/* What a GPU's bodies are good at. */
static const pass_options gpu_options = {.n_workers = 132,
                                         .splits = 16,
                                         .split_tokens = 16,
                                         .norm_elements = 1 << 24,
                                         .relaxed = true,
                                         .logits = true};

/* A loader's answer for every weight: the dtype under test. */
static mpk_status any_dtype(mpk_context *c, const void *self, const char *name, uint32_t rank,
                            const int64_t *dims, ir_dtype *dtype)
{
    (void)c, (void)name, (void)rank, (void)dims;
    *dtype = *(const ir_dtype *)self;
    return MPK_OK;
}

/* Operators that compute: views cost nothing and do not count. */
static size_t count_work(const ir_graph *g)
{
    size_t n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += !(g->ops.at[i].def->flags & OP_VIEW);
    return n;
}

static ir_graph *fuse(arena *a, const ir_graph *g, pass_fusion fusion, uint32_t n_workers)
{
    pass_options options = {.n_workers = n_workers, .fusion = fusion};
    return fuse_as(a, g, &options);
}

/* A decoder for n_tokens tokens, each with a row of logits, over a cache of 16 small pages, so
 * that contexts span several. */
static ir_graph *build(arena *a, const model_config *c, uint32_t n_tokens, bool greedy,
                       ir_dtype dtype, ir_dtype activations)
{
    model_shape shape = {.n_tokens = n_tokens,
                         .n_rows = n_tokens,
                         .n_slots = 4,
                         .n_pages = 16,
                         .page_tokens = 4,
                         .max_pages_per_slot = 4,
                         .kv_dtype = IR_F32,
                         .activation_dtype = activations,
                         .greedy_only = greedy};
    model_weights weights = {any_dtype, &dtype};
    ir_graph *g;
    check_ok(&cx, model_build(&cx, a, c, &shape, &weights, &g));
    return g;
}

/* Paper §6.6, table of compiler stages: 229 operators for Qwen3-1.7B, 293 for Qwen3-8B. */
static void the_papers_operators(void **state)
{
    (void)state;
    const struct {
        const char *folder;
        size_t layers;
    } models[] = {{"models/qwen3-1.7b", 28}, {"models/qwen3-8b", 36}, {"models/llama-3.2-1b", 16}};
    for (size_t i = 0; i < 3; i++) {
        arena a = {0};
        load_model m;
        check_ok(&cx, load_open(&cx, models[i].folder, &m));
        ir_graph *plain = build(&a, &m.config, 1, true, IR_BF16, IR_F32);
        ir_graph *paper = fuse(&a, plain, PASS_FUSE_PAPER, 132);
        assert_int_equal(count_work(paper), 8 * models[i].layers + 5);
        ir_graph *full = fuse(&a, plain, PASS_FUSE_FULL, 132);
        assert_true(count_work(full) < count_work(paper));
        assert_int_equal(count_of(full, "rope_kv"), models[i].layers);
        assert_int_equal(count_of(full, "rms_norm"), 0);
        load_close(&m);
        arena_free(&a);
    }
}

/* The program for a GPU: six operators a layer, with a mixture of experts eight, and four more, for
 * each number of tokens. */
static void operators_of_a_gpu(void **state)
{
    (void)state;
    const struct {
        const char *folder;
        size_t layers;
        bool mixture;
    } models[] = {{"models/qwen3-0.6b", 28, false},
                  {"models/qwen3-1.7b", 28, false},
                  {"models/qwen3-8b", 36, false},
                  {"models/llama-3.2-1b", 16, false},
                  {"models/qwen3-30b-a3b", 48, true}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (uint32_t tokens = 1; tokens <= 32; tokens *= 2) {
            arena a = {0};
            load_model m;
            check_ok(&cx, load_open(&cx, models[i].folder, &m));
            ir_graph *g =
                fuse_as(&a, build(&a, &m.config, tokens, false, IR_BF16, IR_BF16), &gpu_options);
            bool few = tokens <= gpu_options.split_tokens;
            assert_int_equal(count_work(g), (models[i].mixture ? 8 : 6) * models[i].layers + 4);
            assert_int_equal(count_of(g, "linear"), (models[i].mixture ? 3 : 4) * models[i].layers);
            assert_int_equal(count_of(g, "expert_linear"),
                             models[i].mixture ? 2 * models[i].layers : 0);
            assert_int_equal(count_of(g, "attention_split"), few ? models[i].layers : 0);
            assert_int_equal(count_of(g, "attention_fold"), few ? models[i].layers : 0);
            assert_int_equal(count_of(g, "embedding") + count_of(g, "rope_table") +
                                 count_of(g, "logits") + count_of(g, "sample"),
                             4);
            assert_int_equal(g->outputs.n, 3);
            assert_true(ir_find(g, "logits") == g->outputs.at[0] &&
                        ir_find(g, "next") == g->outputs.at[1] &&
                        ir_find(g, "logprobs") == g->outputs.at[2]);
            load_close(&m);
            arena_free(&a);
        }
}

/* Random values by name, the same for every program of a model. */
static void fill(const ir_graph *g, uint64_t seed, ir_values *values)
{
    for (size_t t = 0; t < g->tensors.n; t++) {
        const ir_tensor *x = &g->tensors.at[t];
        uint64_t stream = hash_bytes(x->name.at, x->name.n, seed);
        if (x->kind == IR_TEMP || x->kind == IR_STATE)
            continue;
        for (int64_t i = 0; i < ir_elements(x); i++) {
            if (x->dtype == IR_F32)
                ((float *)values->data[t])[i] = rng_normal(stream, (uint64_t)i);
            else if (x->dtype == IR_I64)
                ((int64_t *)values->data[t])[i] = (int64_t)rng_u64(stream, (uint64_t)i);
            else if (str_is(x->name, "tokens"))
                ((int32_t *)values->data[t])[i] = (int32_t)(rng_u64(stream, (uint64_t)i) % 97);
            else if (str_is(x->name, "slots"))
                ((int32_t *)values->data[t])[i] = i >= 3;
            else if (str_is(x->name, "positions"))
                ((int32_t *)values->data[t])[i] = (int32_t)(i >= 3 ? i - 3 : i);
            else if (str_is(x->name, "pages") || str_is(x->name, "rows"))
                ((int32_t *)values->data[t])[i] = (int32_t)i;
        }
    }
}

/* Run the interpreter on random inputs that depend on the seed and on names alone, so that two
 * programs with the same inputs can be compared. */
static void evaluate(arena *a, const ir_graph *g, uint64_t seed, float *logits, size_t bytes)
{
    ir_values values = {.live = {UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    check_ok(&cx, ir_eval_allocate(&cx, a, g, &values));
    fill(g, seed, &values);
    check_ok(&cx, ir_eval(&cx, a, g, &values));
    memcpy(logits, values.data[ir_find(g, "logits")], bytes);
}

/* Small models of every family with all that may differ between them. */
static model_config small_model(uint64_t i)
{
    static const char *const families[] = {"llama", "qwen2", "qwen3",     "mistral",
                                           "llama", "qwen2", "qwen3_moe", "mixtral"};
    bool mixture = i % 8 >= 6;
    return (model_config){.family = str_from(families[i % 8]),
                          .n_layers = 2,
                          .hidden_size = 40,
                          .n_heads = 4,
                          .n_kv_heads = i & 4 ? 2 : 1,
                          .head_size = 16,
                          .ffn_size = 56,
                          .n_experts = mixture ? 5 : 0,
                          .experts_per_token = mixture ? 2 : 0,
                          .expert_ffn_size = mixture ? 24 : 0,
                          .expert_every = 1,
                          .normalize_experts = i % 3 != 2,
                          .vocab_size = 97,
                          .max_positions = 64,
                          .norm_eps = 1e-5f,
                          .tied_embeddings = i & 8,
                          .attention_bias = i % 4 == 1 || i % 3 == 0,
                          .mlp_bias = i % 4 == 0 && i % 3 == 0,
                          .activation = i % 5 == 4 ? STR("gelu_tanh") : STR("silu"),
                          .window = i % 4 == 3 ? 3 : 0,
                          .rope_size = 16,
                          .rope_theta = 10000,
                          .bos_token = -1};
}

/* Random small decoders: full fusion changes no bit of the logits, unless a target allows it. */
static void fused_and_plain_give_the_same_bits(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    for (uint64_t i = 0; i < 24; i++) {
        arena a = {0};
        model_config c = small_model(i);
        uint32_t n_tokens = 1 + (uint32_t)(rng_u64(seed, i) % 7);
        size_t bytes = n_tokens * 97 * sizeof(float);
        float *plain_logits = malloc(bytes), *logits = malloc(bytes);
        assert_true(plain_logits && logits);
        ir_graph *plain = build(&a, &c, n_tokens, false, IR_F32, IR_F32);
        evaluate(&a, plain, seed + i, plain_logits, bytes);
        for (pass_fusion f = PASS_FUSE_FULL; f <= PASS_FUSE_NONE; f++) {
            ir_graph *fused = fuse(&a, plain, f, 2);
            assert_true(f == PASS_FUSE_NONE || count_work(fused) < count_work(plain));
            evaluate(&a, fused, seed + i, logits, bytes);
            assert_memory_equal(logits, plain_logits, bytes);
        }
        free(plain_logits);
        free(logits);
        arena_free(&a);
    }
}

/* The difference between two rows of numbers as a part of the first: root of the sum of squares. */
static double difference(const float *a, const float *b, size_t n)
{
    double sum = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(a[i]) && isfinite(b[i]));
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)a[i] * (double)a[i];
    }
    return sqrt(sum / all);
}

/* Sums in another order in f32; in bf16 fewer roundings: over all models the distance from f32 does
 * not grow.  (But for mixtures, where a rounding may send a token to another expert.)  Means are of
 * logarithms: now and then a model makes ten times as much of a rounding in one program alone, and
 * would outweigh all others in a sum. */
static void programs_of_a_gpu_compute_the_same(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    double plain = 0, fused = 0;
    int n_dense = 0;
    for (uint64_t i = 0; i < 24; i++) {
        arena a = {0};
        model_config c = small_model(i);
        pass_options options = gpu_options;
        uint32_t n_tokens = 1 + (uint32_t)(rng_u64(seed, i) % 7);
        size_t n = n_tokens * 97;
        float *logits[4];
        options.splits = 1 + (uint32_t)(rng_u64(seed, i) >> 8) % 5;
        for (int k = 0; k < 4; k++) {
            ir_graph *g = build(&a, &c, n_tokens, false, IR_F32, k < 2 ? IR_F32 : IR_BF16);
            if (k % 2)
                g = fuse_as(&a, g, &options);
            assert_true(k % 2 == 0 || count_of(g, "attention_split") == 2);
            logits[k] = malloc(n * sizeof(float));
            assert_non_null(logits[k]);
            evaluate(&a, g, seed + i, logits[k], n * sizeof(float));
        }
        assert_true(difference(logits[0], logits[1], n) < 1e-4);
        if (!c.n_experts) {
            n_dense++;
            plain += log(difference(logits[0], logits[2], n));
            fused += log(difference(logits[0], logits[3], n));
        }
        for (int k = 0; k < 4; k++)
            free(logits[k]);
        arena_free(&a);
    }
    plain = exp(plain / n_dense);
    fused = exp(fused / n_dense);
    print_message("distance from f32: %.4f, fused %.4f\n", plain, fused);
    assert_true(fused < 1.5 * plain && plain < 0.1);
}

/* Operands that a norm makes. */
static uint32_t count_normed(const ir_graph *g)
{
    uint32_t n = 0;
    for (size_t o = 0; o < g->ops.n; o++)
        for (uint32_t i = 0; i < g->ops.at[o].n_in; i++) {
            const ir_tensor_id in = g->ops.at[o].in[i];
            const ir_op_id by = in == IR_NONE ? IR_NONE : g->tensors.at[in].producer;
            n += by != IR_NONE && strcmp(g->ops.at[by].def->name, "rms_norm") == 0;
        }
    return n;
}

/* A norm goes into all that read it or into none, and only where it reads what it read at its own
 * place. */
static void a_norm_for_all_or_none(void **state)
{
    (void)state;
    const char *head = "state %x : f32[2, 32]\ninput %i : i32[2, 2]\ninput %z : f32[2, 4]\nconst "
                       "%n : f32[32]\nconst %r : "
                       "f32[8, 32]\nconst %g : f32[5, 8, 32]\nconst %s : f32[32, 32]\n%h = "
                       "rms_norm(%x, %n) {eps = "
                       "1e-05}\n";
    const struct {
        const char *rest;
        bool folded;
    } rows[] = {
        {"%a = linear(%h, %r)\n%b = expert_linear(%h, %i, %g)\noutput %a\noutput %b\n", true},
        {"%b = expert_linear(%h, %i, %g, %g) {glu = \"silu\"}\noutput %b\n", true},
        {"%a = linear(%h, %r)\n%b = linear(%h, %r, %r) {glu = \"gelu\"}\noutput %a\noutput %b\n",
         true},
        {"%a = linear(%h, %r)\n%b = expert_linear(%h, %i, %g)\noutput %a\noutput %b\noutput %h\n",
         false},
        {"%a = linear(%h, %r)\n%b = silu(%h)\noutput %a\noutput %b\n", false},
        {"%a = linear(%h, %s, _, _, _, _, _, _, %h)\noutput %a\n", false},
        {"%a = linear(%h, %r)\n%b = linear(%h, %r, %r, _, _, _, _, %n) {glu = \"silu\"}\noutput "
         "%a\noutput %b\n",
         false},
        {"%a = linear(%h, %r)\n%y = slice_scatter(%x, %z) {starts = [0, 0], stops = [2, 4], "
         "in_place = 1}\n%b = "
         "expert_linear(%h, %i, %g)\noutput %a\noutput %b\n",
         false},
        {"%k = reshape(%h) {shape = [2, 2, 16]}\nconst %c : f32[5, 8, 16]\n%b = expert_linear(%k, "
         "%i, %c)\noutput %b\n",
         false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        char program[1024];
        ir_graph *g;
        snprintf(program, sizeof program, "%s%s", head, rows[i].rest);
        check_ok(&cx, ir_parse(&cx, &a, str_from(program), &g));
        const ir_graph *fused = fuse(&a, g, PASS_FUSE_FULL, 2);
        assert_int_equal(count_of(fused, "rms_norm"), !rows[i].folded);
        assert_int_equal(count_normed(fused), rows[i].folded ? 0 : count_normed(g));
        assert_int_equal(count_of(fuse(&a, g, PASS_FUSE_PAPER, 2), "rms_norm"), 1);
        arena_free(&a);
    }
}

/* Products of one x become one only if their norms are one: the same weight and the same eps. */
static void siblings_share_a_norm(void **state)
{
    (void)state;
    const struct {
        const char *norm;
        size_t linears;
    } rows[] = {{"%n) {eps = 1e-05}", 1}, {"%n) {eps = 1e-06}", 2}, {"%m) {eps = 1e-05}", 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        char program[512];
        ir_graph *g;
        snprintf(
            program, sizeof program,
            "input %%x : f32[2, 32]\nconst %%n : f32[32]\nconst %%m : f32[32]\nconst %%r : f32[8, "
            "32]\n"
            "const %%s : f32[8, 32]\n%%a = linear(%%x, %%r, _, _, _, _, _, %%n) {eps = 1e-05}\n"
            "%%b = linear(%%x, %%s, _, _, _, _, _, %s\n%%y = add(%%a, %%b)\noutput %%y\n",
            rows[i].norm);
        check_ok(&cx, ir_parse(&cx, &a, str_from(program), &g));
        assert_int_equal(count_of(fuse(&a, g, PASS_FUSE_FULL, 2), "linear"), rows[i].linears);
        arena_free(&a);
    }
}

/* A gate and what it multiplies become one operator only if both are plain products of one weight,
 * of the same x and shape: whatever else one of them has would be lost. */
static void gates_are_plain_products(void **state)
{
    (void)state;
    static const struct {
        const char *gate, *up;
        bool fused;
    } rows[] = {
        {"linear(%x, %a)", "linear(%x, %b)", true},
        {"linear(%x, %a, _, _, %v)", "linear(%x, %b, _, _, %v)", true},
        {"linear(%x, %a)", "linear(%x, %c, %d)", false},
        {"linear(%x, %c, %d)", "linear(%x, %a)", false},
        {"linear(%x, %a)", "linear(%x, %b, _, _, _, _, _, _, %r)", false},
        {"linear(%x, %a, _, _, _, _, _, _, %r)", "linear(%x, %b)", false},
        {"linear(%x, %a)", "linear(%x, %b, %a) {glu = \"silu\"}", false},
        {"linear(%x, %a)", "linear(%x, %b) {act = \"silu\"}", false},
        {"linear(%x, %a) {act = \"silu\"}", "linear(%x, %b)", false},
        {"linear(%x, %a)", "linear(%z, %b)", false},
        {"linear(%x, %a)", "linear(%x, %b, _, _, _, _, _, %n)", false},
        {"linear(%x, %a)", "linear(%x, %w)", false},
        {"linear(%x, %w)", "linear(%x, %a)", false},
    };
    static const char *const products[] = {"silu_mul(%g, %u)", "silu(%g)\n%y = mul(%s, %u)",
                                           "silu(%g)\n%y = mul(%u, %s)"};
    for (size_t i = 0; i < 3 * sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        char program[1024];
        ir_graph *g;
        snprintf(program, sizeof program,
                 "input %%x : f32[2, 32]\ninput %%z : f32[2, 32]\ninput %%r : f32[2, 8]\n"
                 "const %%a : f32[8, 32]\nconst %%b : f32[8, 32]\nconst %%c : f32[4, 32]\n"
                 "const %%d : f32[4, 32]\nconst %%w : f32[1, 32]\nconst %%v : f32[8]\n"
                 "const %%n : f32[32]\n%%g = %s\n%%u = %s\n%%%s = %s\noutput %%y\n",
                 rows[i / 3].gate, rows[i / 3].up, i % 3 ? "s" : "y", products[i % 3]);
        if (strstr(program, "(%x, %w)") && i % 3 == 0)
            continue; /* silu_mul does not repeat a column */
        check_ok(&cx, ir_parse(&cx, &a, str_from(program), &g));
        const ir_graph *fused = fuse(&a, g, PASS_FUSE_FULL, 2);
        const size_t n = count_of(fused, "silu_mul") + count_of(fused, "mul");
        if ((n == 0) != rows[i / 3].fused)
            fail_msg("%s", program);
        arena_free(&a);
    }
}

/* A gate, or what it multiplies, that the program also gives out is still computed. */
static void what_else_is_read_stays(void **state)
{
    (void)state;
    static const char *const also[] = {"", "output %g\n", "output %u\n"};
    for (size_t i = 0; i < sizeof also / sizeof *also; i++) {
        arena a = {0};
        char program[256];
        ir_graph *g;
        snprintf(program, sizeof program,
                 "input %%x : f32[2, 32]\nconst %%a : f32[8, 32]\nconst %%b : f32[8, 32]\n"
                 "%%g = linear(%%x, %%a)\n%%u = linear(%%x, %%b)\n%%y = silu_mul(%%g, %%u)\n"
                 "output %%y\n%s",
                 also[i]);
        check_ok(&cx, ir_parse(&cx, &a, str_from(program), &g));
        assert_int_equal(count_of(fuse(&a, g, PASS_FUSE_FULL, 2), "silu_mul"), i != 0);
        arena_free(&a);
    }
}

/* What follows a product becomes a part of it, or stays if the product could not compute it: of
 * every row, the operator that is left then. */
static void what_follows_a_product(void **state)
{
    (void)state;
    static const char write[] =
        "%o = slice_scatter(%x, %z) {starts = [0, 0], stops = [20, 4], in_place = 1}\n";
#define SCALED(terms, expr) "%y = map(" terms ") {expr = \"" expr "\"}\noutput %y\n"
    const struct {
        const char *product, *between, *more, *left;
    } rows[] = {
        /* an activation */
        {"linear(%x, %a)", "", "%s = silu(%l)\n%y = mul(%s, %r)\noutput %y\n", NULL},
        {"linear(%x, %a)", "", "%s = silu(%l)\noutput %s\n", NULL},
        {"linear(%x, %a)", write, "%s = silu(%l)\noutput %s\n", "silu"},
        {"linear(%x, %a)", "", "%s = silu(%l)\noutput %s\noutput %l\n", "silu"},
        {"linear(%x, %a, _, _, _, _, _, _, %r)", "", "%s = silu(%l)\noutput %s\n", "silu"},
        {"linear(%x, %a, %b) {glu = \"silu\"}", "", "%s = silu(%l)\noutput %s\n", "silu"},
        {"linear(%x, %a) {act = \"relu\"}", "", "%s = silu(%l)\noutput %s\n", "silu"},
        {"linear(%f, %a)", "", "%s = silu(%l)\noutput %s\n", NULL},
        {"linear(%f, %a)", "", "%s = map(%l) {expr = \"max(x0, 0)\"}\noutput %s\n", "map"},
        {"linear(%g, %a)", "", "%s = silu(%l)\noutput %s\n", NULL},
        {"linear(%t, %a)", "", "%s = silu(%l)\noutput %s\n", NULL},
        {"linear(%t, %a)", "", "%s = gelu(%l)\noutput %s\n", NULL},
        {"linear(%t, %a)", "", "%s = map(%l) {expr = \"max(x0, 0)\"}\noutput %s\n", "map"},
        {"group_scale(%s0, %s1, _, %m)", "", "%s = silu(%l)\noutput %s\n", NULL},
        {"group_scale(%s0, %s1, _, %m)", "", "%s = silu(%l)\noutput %s\noutput %l\n", "silu"},
        {"group_scale(%s0, %s1, _, %m) {act = \"relu\"}", "", "%s = silu(%l)\noutput %s\n", "silu"},
        /* a residual */
        {"linear(%x, %a)", "", "%y = add(%l, %r)\noutput %y\n", NULL},
        {"linear(%x, %a)", "", "%y = add(%r, %l)\noutput %y\n", NULL},
        {"linear(%x, %a, %b) {glu = \"silu\"}", "", "%y = add(%r, %l)\noutput %y\n", NULL},
        {"linear(%x, %a)", write, "%y = add(%l, %r)\noutput %y\n", "add"},
        {"linear(%x, %a)", "", "%y = add(%l, %r)\noutput %y\noutput %l\n", "add"},
        {"linear(%x, %a)", "", "%y = add(%l, %l)\noutput %y\n", "add"},
        {"linear(%x, %a)", "", "%y = add(%l, %v)\noutput %y\n", "add"},
        {"linear(%i, %a)", "", "%y = add(%l, %r)\noutput %y\n", "add"},
        {"linear(%x, %a, _, _, _, _, _, _, %r)", "", "%y = add(%l, %r)\noutput %y\n", "add"},
        {"linear(%x, %a) {act = \"relu\"}", "", "%y = add(%l, %r)\noutput %y\n", "add"},
        /* a residual, and a factor of the product */
        {"linear(%x, %a)", "", SCALED("%r, %l", "x0 + x1 * 0.22"), NULL},
        {"linear(%x, %a)", "", SCALED("%l, %r", "x0 + x1 * 0.22"), "map"},
        {"linear(%x, %a)", "", SCALED("%r, %l", "x0 + x1 * 0.22 + 1"), "map"},
        {"linear(%x, %a)", "", SCALED("%r, %l", "x0 + x1 * x0"), "map"},
        {"linear(%x, %a)", "", SCALED("%r, %l", "x0 + x1 * -2"), "map"},
        {"linear(%x, %a)", "", SCALED("%r, %l", "x0 + x1"), "map"},
        {"linear(%x, %a)", write, SCALED("%r, %l", "x0 + x1 * 0.22"), "map"},
        {"linear(%x, %a)", "", SCALED("%r, %l", "x0 + x1 * 0.22") "output %l\n", "map"},
        {"linear(%x, %a)", "", SCALED("%l, %l", "x0 + x1 * 0.22"), "map"},
        {"linear(%x, %a)", "", SCALED("%v, %l", "x0 + x1 * 0.22"), "map"},
        {"linear(%x, %a, _, _, %n)", "", SCALED("%r, %l", "x0 + x1 * 0.22"), "map"},
        {"linear(%x, %a, _, _, _, _, _, %m)", "", SCALED("%r, %l", "x0 + x1 * 0.22"), "map"},
        {"linear(%x, %a, _, _, _, _, _, _, %r)", "", SCALED("%r, %l", "x0 + x1 * 0.22"), "map"},
        {"linear(%x, %a) {factor = 3.0}", "", SCALED("%r, %l", "x0 + x1 * 0.22"), "map"},
        {"linear(%x, %a) {act = \"relu\"}", "", SCALED("%r, %l", "x0 + x1 * 0.22"), "map"},
        {"linear(%x, %a, %b) {glu = \"silu\"}", "", SCALED("%r, %l", "x0 + x1 * 0.22"), "map"},
    };
#undef SCALED
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        char program[1024];
        ir_graph *g;
        snprintf(program, sizeof program,
                 "state %%x : f32[20, 32]\ninput %%z : f32[20, 4]\ninput %%r : f32[20, 8]\n"
                 "const %%a : f32[8, 32]\nconst %%b : f32[8, 32]\ninput %%v : f32[1, 8]\n"
                 "input %%i : f32[1, 32]\ninput %%f : f32[16, 32]\ninput %%g : f32[17, 32]\n"
                 "input %%t : f32[20, 32] live=tokens\n"
                 "input %%s0 : f32[2, 3, 32]\ninput %%s1 : f32[2, 2, 4, 2]\n"
                 "const %%n : f32[8]\nconst %%m : f32[32]\n%%l = %s\n%s%s",
                 rows[i].product, rows[i].between, rows[i].more);
        check_ok(&cx, ir_parse(&cx, &a, str_from(program), &g));
        const ir_graph *fused = fuse_as(&a, g, &gpu_options);
        const size_t n = count_of(fused, "silu") + count_of(fused, "gelu") +
                         count_of(fused, "add") + count_of(fused, "map");
        if (n != (rows[i].left != NULL) || (rows[i].left && !count_of(fused, rows[i].left)))
            fail_msg("%s", program);
        arena_free(&a);
    }
}

/* Attention of few tokens is cut along its keys if it sees all of them, or what a mask says: a
 * split knows no causal rule and no window, and its values have the size of its keys. */
static void other_attention_is_split(void **state)
{
    (void)state;
    static const struct {
        const char *q, *k, *v, *more;
        bool split;
    } rows[] = {
        {"f32[2, 4, 8, 16]", "f32[2, 2, 100, 16]", "f32[2, 2, 100, 16]", "", true},
        {"f32[2, 4, 8, 16]", "f32[2, 2, 100, 16]", "f32[2, 2, 100, 16]", "scale = 0.5", true},
        {"bf16[1, 4, 16, 16]", "bf16[1, 2, 100, 16]", "bf16[1, 2, 100, 16]", "", true},
        {"f32[1, 4, 17, 16]", "f32[1, 2, 100, 16]", "f32[1, 2, 100, 16]", "", false},
        {"f32[3, 4, 6, 16]", "f32[3, 2, 100, 16]", "f32[3, 2, 100, 16]", "", false},
        {"f32[2, 4, 8, 16]", "f32[2, 2, 100, 16]", "f32[2, 2, 100, 16]", "causal = 1", false},
        {"f32[2, 4, 8, 16]", "f32[2, 2, 100, 16]", "f32[2, 2, 100, 16]", "window = 9", false},
        {"f32[2, 4, 8, 16]", "f32[2, 2, 100, 16]", "f32[2, 2, 100, 24]", "", false},
        {"f32[2, 4, 8, 16]", "f32[2, 2, 100, 16]", "f32[2, 2, 100, 16]", "by_rows = 1", false},
        {"f64[2, 4, 8, 16]", "f64[2, 2, 100, 16]", "f64[2, 2, 100, 16]", "", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        char program[512];
        ir_graph *g;
        snprintf(program, sizeof program,
                 "input %%q : %s\ninput %%k : %s\ninput %%v : %s\n%%y = sdpa(%%q, %%k, %%v, _) "
                 "{%s}\noutput %%y\n",
                 rows[i].q, rows[i].k, rows[i].v, *rows[i].more ? rows[i].more : "scale = 1.0");
        check_ok(&cx, ir_parse(&cx, &a, str_from(program), &g));
        const ir_graph *fused = fuse_as(&a, g, &gpu_options);
        if ((count_of(fused, "sdpa_split") == 1) != rows[i].split ||
            (count_of(fused, "sdpa") == 0) != rows[i].split)
            fail_msg("%s", program);
        arena_free(&a);
    }
}

/* The paper's attention makes the rotation table by itself, from its own positions: where the table
 * comes from elsewhere, both stay apart. */
static void tables_of_other_positions_stay(void **state)
{
    (void)state;
    static const struct {
        const char *table;
        bool is_one;
    } rows[] = {{"%t = rope_table(%p) {size = 8}\n", true},
                {"input %o : i32[2] live=tokens\n%t = rope_table(%o) {size = 8}\n", false},
                {"input %t : f32[2, 2, 4] live=tokens\n", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        char program[1024];
        ir_graph *g;
        snprintf(program, sizeof program,
                 "input %%x : f32[2, 16] live=tokens\ninput %%p : i32[2] live=tokens\n"
                 "input %%s : i32[2] live=tokens\ninput %%g : i32[2, 4]\nconst %%w : f32[32, 16]\n"
                 "state %%kc : f32[8, 1, 4, 8]\nstate %%vc : f32[8, 1, 4, 8]\n%s"
                 "%%qkv = linear(%%x, %%w)\n"
                 "%%a = slice(%%qkv) {starts = [0, 0], stops = [2, 16]}\n"
                 "%%b = slice(%%qkv) {starts = [0, 16], stops = [2, 24]}\n"
                 "%%c = slice(%%qkv) {starts = [0, 24], stops = [2, 32]}\n"
                 "%%q = reshape(%%a) {shape = [2, 2, 8]}\n%%k = reshape(%%b) {shape = [2, 1, 8]}\n"
                 "%%v = reshape(%%c) {shape = [2, 1, 8]}\n%%qr = rope(%%q, %%t)\n%%kr = rope(%%k, "
                 "%%t)\n%%kn, %%vn = kv_write(%%kr, %%v, %%p, %%s, %%g, %%kc, %%vc)\n"
                 "%%y = attention(%%qr, %%kn, %%vn, %%p, %%s, %%g)\noutput %%y\n",
                 rows[i].table);
        check_ok(&cx, ir_parse(&cx, &a, str_from(program), &g));
        const ir_graph *fused = fuse(&a, g, PASS_FUSE_PAPER, 132);
        assert_int_equal(count_of(fused, "attention_qkv"), rows[i].is_one);
        assert_int_equal(count_of(fused, "rope_kv"), !rows[i].is_one);
        arena_free(&a);
    }
}

/* Settings may stand after the name of a pass; what is no setting is refused. */
static void settings_on_text(void **state)
{
    (void)state;
    const char *program =
        "input %x : bf16[2, 32] live=tokens\nconst %n : bf16[32]\nconst %w : bf16[8, 32]\n"
        "%h = rms_norm(%x, %n)\n%y = linear(%h, %w)\noutput %y\n";
    const struct {
        const char *passes;
        bool ok, fused;
    } rows[] = {{"fuse_ops", true, false},
                {"fuse_ops:relaxed=1", true, true},
                {"fuse_ops:relaxed=1:norm_elements=63", true, false},
                {"fuse_ops:relaxed=1:norm_elements=64,simplify", true, true},
                {"fuse_ops:relaxed=1,fuse_ops:relaxed=0", true, true},
                {"fuse_ops:relaxed", false, false},
                {"fuse_ops:", false, false},
                {"fuse_ops:relaxed=", false, false},
                {"fuse_ops:relaxed=x", false, false},
                {"fuse_ops:splits=99999999999", false, false},
                {"fuse_ops:speed=9", false, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pass_options options = {.n_workers = 2};
        text out = {0};
        mpk_status status =
            pass_run_text(&cx, &options, str_from(rows[i].passes), str_from(program), &out);
        assert_int_equal(status, rows[i].ok ? MPK_OK : MPK_EARG);
        text_add(&out, "", 1);
        assert_int_equal(rows[i].fused, rows[i].ok && !strstr(out.at, "rms_norm"));
        text_free(&out);
    }
}

/* A norm without a weight stays: the product has no place for it.  So does one whose weight is not
 * known before the program runs. */
static void a_norm_without_a_weight_stays(void **state)
{
    (void)state;
    pass_options options = {.n_workers = 2};
    static const struct {
        const char *norm;
        bool stays;
    } rows[] = {{"%h = rms_norm(%x)\n", true},
                {"const %n : bf16[32]\n%h = rms_norm(%x, %n)\n", false},
                {"input %n : bf16[32]\n%h = rms_norm(%x, %n)\n", true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char source[256];
        text out = {0};
        snprintf(source, sizeof source,
                 "input %%x : bf16[2, 32] live=tokens\nconst %%w : bf16[8, 32]\n%s"
                 "%%y = linear(%%h, %%w)\noutput %%y\n",
                 rows[i].norm);
        check_ok(&cx,
                 pass_run_text(&cx, &options, STR("fuse_ops:relaxed=1"), str_from(source), &out));
        text_add(&out, "", 1);
        assert_int_equal(strstr(out.at, "rms_norm(") != NULL, rows[i].stays);
        text_free(&out);
    }
}

/* On a GPU an attention without v_cache: of few tokens, whose contexts may have several parts, and
 * whose tasks are fewer than the workers. */
static void latent_contexts_are_cut_on_a_gpu(void **state)
{
    (void)state;
    static const struct {
        int tokens, pages;
        unsigned splits, split_tokens;
        bool values, cut;
    } rows[] = {{1, 8, 16, 16, false, true},   {16, 8, 16, 16, false, true},
                {17, 8, 16, 16, false, false}, {20, 8, 16, 64, false, false},
                {1, 7, 16, 16, false, false},  {1, 8, 0, 16, false, false},
                {1, 8, 16, 16, true, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int t = rows[i].tokens, pages = rows[i].pages;
        pass_options options = {
            .n_workers = 20, .splits = rows[i].splits, .split_tokens = rows[i].split_tokens};
        text program = {0}, out = {0};
        text_print(
            &program,
            "input %%q : bf16[%d, 4, 32] live=tokens\nstate %%k : bf16[%d, 1, 64, 32]\nstate "
            "%%v : bf16[%d, 1, 64, 32]\ninput %%p : i32[%d] live=tokens\ninput %%s : i32[%d] "
            "live=tokens\ninput %%t : i32[1, %d]\n%%y = attention(%%q, %%k, %s, %%p, %%s, "
            "%%t)\noutput %%y\n",
            t, pages, pages, t, t, pages, rows[i].values ? "%v" : "_");
        check_ok(&cx,
                 pass_run_text(&cx, &options, STR("fuse_ops"), (str){program.at, program.n}, &out));
        text_add(&out, "", 1);
        assert_true(rows[i].cut == (strstr(out.at, "attention_parts(") != NULL));
        text_free(&program);
        text_free(&out);
    }
}

/* Attention is cut over contexts where a token and a KV head for each task make fewer than four a
 * worker, or unequal numbers, and a context can have several parts. */
static void contexts_are_cut_where_heads_are_few(void **state)
{
    (void)state;
    static const struct {
        int tokens, kv_heads, workers, pages, context_tasks;
        const char *q;
        bool cut;
    } rows[] = {{1, 3, 2, 40, 4, "f32", true},    {1, 3, 2, 32, 4, "f32", true},
                {1, 3, 2, 31, 4, "f32", false},   {1, 3, 1, 40, 4, "f32", false},
                {1, 2, 2, 40, 4, "f32", false},   {2, 2, 2, 40, 4, "f32", true},
                {4, 2, 2, 40, 4, "f32", false},   {1, 3, 2, 40, 4, "bf16", false},
                {1, 3, 2, 40, 0, "f32", false},   {1, 3, 32, 900, 4, "f32", true},
                {43, 3, 32, 900, 4, "f32", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int t = rows[i].tokens, heads = rows[i].kv_heads, pages = rows[i].pages;
        pass_options options = {.n_workers = (uint32_t)rows[i].workers,
                                .context_tasks = (uint32_t)rows[i].context_tasks};
        text program = {0}, out = {0};
        text_print(&program, "input %%q : %s[%d, %d, 16] live=tokens\n", rows[i].q, t, 2 * heads);
        text_print(&program, "state %%k : f32[%d, %d, 16, 16]\nstate %%v : f32[%d, %d, 16, 16]\n",
                   pages, heads, pages, heads);
        text_print(&program, "input %%p : i32[%d] live=tokens\ninput %%s : i32[%d] live=tokens\n",
                   t, t);
        text_print(&program,
                   "input %%t : i32[1, %d]\n%%y = attention(%%q, %%k, %%v, %%p, %%s, "
                   "%%t) {window = 7}\noutput %%y\n",
                   pages);
        check_ok(&cx,
                 pass_run_text(&cx, &options, STR("fuse_ops"), (str){program.at, program.n}, &out));
        text_add(&out, "", 1);
        assert_true(rows[i].cut == (strstr(out.at, "attention_parts(") != NULL));
        assert_true(rows[i].cut == (strstr(out.at, "attention_fold(") != NULL));
        assert_true(strstr(out.at, "window = 7") != NULL);
        text_free(&program);
        text_free(&out);
    }
}

/* The bounds of n_workers, which is what limits a task's worker number to 16 bits. */
static void workers_of_a_text(void **state)
{
    (void)state;
    static const uint32_t n_workers[] = {0, 1, 65535, 65536};
    for (size_t i = 0; i < 4; i++) {
        pass_options options = {.n_workers = n_workers[i]};
        text out = {0};
        mpk_status status =
            pass_run_text(&cx, &options, STR("simplify"),
                          STR("input %x : f32[2, 8]\n%y = silu(%x)\noutput %y\n"), &out);
        assert_int_equal(status, i % 3 ? MPK_OK : MPK_EARG);
        text_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_papers_operators),
                                       cmocka_unit_test(operators_of_a_gpu),
                                       cmocka_unit_test(programs_of_a_gpu_compute_the_same),
                                       cmocka_unit_test(settings_on_text),
                                       cmocka_unit_test(a_norm_without_a_weight_stays),
                                       cmocka_unit_test(latent_contexts_are_cut_on_a_gpu),
                                       cmocka_unit_test(contexts_are_cut_where_heads_are_few),
                                       cmocka_unit_test(workers_of_a_text),
                                       cmocka_unit_test(a_norm_for_all_or_none),
                                       cmocka_unit_test(siblings_share_a_norm),
                                       cmocka_unit_test(gates_are_plain_products),
                                       cmocka_unit_test(what_else_is_read_stays),
                                       cmocka_unit_test(what_follows_a_product),
                                       cmocka_unit_test(other_attention_is_split),
                                       cmocka_unit_test(tables_of_other_positions_stay),
                                       cmocka_unit_test(fused_and_plain_give_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
