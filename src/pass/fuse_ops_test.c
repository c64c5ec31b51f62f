/* fuse_ops_test.c - fused programs have the paper's operators, and compute the same bits as plain ones. */
#include "check.h"

#include <string.h>

#include "base/rng.h"
#include "ir/op.h"
#include "load/load.h"
#include "pass/pass.h"

static mpk_context cx;

static mpk_status any_dtype(mpk_context *c, const void *self, const char *name, uint32_t rank, const int64_t *dims,
                            ir_dtype *dtype)
{
    (void)c, (void)name, (void)rank, (void)dims;
    *dtype = *(const ir_dtype *)self;
    return MPK_OK;
}

static size_t count_work(const ir_graph *g)
{
    size_t n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += !(g->ops.at[i].def->flags & OP_VIEW);
    return n;
}

static size_t count_of(const ir_graph *g, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += strcmp(g->ops.at[i].def->name, name) == 0;
    return n;
}

static ir_graph *fuse(arena *a, const ir_graph *g, pass_fusion fusion, uint32_t n_workers)
{
    arena scratch = {0};
    pass_options options = {.n_workers = n_workers, .fusion = fusion};
    pass_state s = {&cx, a, &scratch, &options};
    ir_graph *copy = (ir_graph *)g;
    check_ok(&cx, pass_simplify(&s, &copy));
    check_ok(&cx, pass_fuse_ops(&s, &copy));
    arena_free(&scratch);
    check_ok(&cx, ir_verify(&cx, copy));
    return copy;
}

static ir_graph *build(arena *a, const model_config *c, uint32_t n_tokens, bool greedy, ir_dtype dtype)
{
    model_shape shape = {.n_tokens = n_tokens,
                         .n_rows = n_tokens,
                         .n_slots = 4,
                         .n_pages = 16,
                         .page_tokens = 4,
                         .max_pages_per_slot = 4,
                         .kv_dtype = IR_F32,
                         .activation_dtype = IR_F32,
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
        ir_graph *plain = build(&a, &m.config, 1, true, IR_BF16);
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

static void evaluate(arena *a, const ir_graph *g, uint64_t seed, float *logits, size_t bytes)
{
    ir_values values = {.live = {UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    check_ok(&cx, ir_eval_allocate(&cx, a, g, &values));
    fill(g, seed, &values);
    check_ok(&cx, ir_eval(&cx, a, g, &values));
    memcpy(logits, values.data[ir_find(g, "logits")], bytes);
}

static void fused_and_plain_give_the_same_bits(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    const char *families[] = {"llama", "qwen2", "qwen3", "mistral"};
    for (uint64_t i = 0; i < 24; i++) {
        arena a = {0};
        model_config c = {.family = str_from(families[i % 4]),
                          .n_layers = 2,
                          .hidden_size = 40,
                          .n_heads = 4,
                          .n_kv_heads = i & 4 ? 2 : 1,
                          .head_size = 16,
                          .ffn_size = 56,
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
                          .rope_interleaved = i % 3 == 1,
                          .bos_token = -1};
        uint32_t n_tokens = 1 + (uint32_t)(rng_u64(seed, i) % 7);
        size_t bytes = n_tokens * 97 * sizeof(float);
        float *plain_logits = malloc(bytes), *logits = malloc(bytes);
        assert_true(plain_logits && logits);
        ir_graph *plain = build(&a, &c, n_tokens, false, IR_F32);
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_papers_operators),
                                       cmocka_unit_test(fused_and_plain_give_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
