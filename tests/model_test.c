/* model_test.c - every configuration that ships becomes a verified program with the model's true
 * number of parameters.
 */
#include <dirent.h>

#include "check.h"
#include "ir/op.h"
#include "load/load.h"

static model_shape make_shape(uint32_t n_tokens, uint32_t n_rows)
{
    return (model_shape){.n_tokens = n_tokens,
                         .n_rows = n_rows,
                         .n_slots = 4,
                         .n_pages = 64,
                         .page_tokens = 16,
                         .max_pages_per_slot = 16,
                         .kv_dtype = IR_BF16,
                         .activation_dtype = IR_F32};
}

static int64_t count_parameters(const ir_graph *g)
{
    int64_t n = 0;
    for (size_t i = 0; i < g->tensors.n; i++)
        if (g->tensors.at[i].kind == IR_CONST)
            n += ir_elements(&g->tensors.at[i]);
    return n;
}

static size_t count_ops(const ir_graph *g, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += strcmp(g->ops.at[i].def->name, name) == 0;
    return n;
}

/* Build a program of this shape for a model, all its weights of the config's dtype. */
static ir_graph *build(const load_model *m, arena *a, model_shape shape)
{
    mpk_context cx = {0};
    ir_graph *g = NULL;
    model_weights w = load_weights(m);
    check_ok(&cx, model_build(&cx, a, &m->config, &shape, &w, &g));
    check_ok(&cx, ir_verify(&cx, g));
    return g;
}

static void check_tensor(const ir_graph *g, const char *name, ir_dtype dtype, ir_live live,
                         uint32_t rank, const int64_t *dims)
{
    ir_tensor_id id = ir_find(g, name);
    if (id == IR_NONE)
        fail_msg("there is no tensor %s", name);
    const ir_tensor *t = &g->tensors.at[id];
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->live, live);
    assert_int_equal(t->rank, rank);
    assert_memory_equal(t->dims, dims, rank * sizeof *dims);
}

static const struct {
    const char *path;
    int64_t n_parameters, n_layers, n_vocab, n_kv_heads, head_size, n_rotations; /* as published */
} shipped[] = {
    {"models/qwen3-0.6b", 596049920, 28, 151936, 8, 128, 1},
    {"models/llama-3.2-1b", 1235814400, 16, 128256, 8, 64, 1},
    {"models/qwen3-1.7b", 1720574976, 28, 151936, 8, 128, 1},
    {"models/qwen3-8b", 8190735360, 36, 151936, 8, 128, 1},
    {"models/qwen3-30b-a3b", 30532122624, 48, 151936, 4, 128, 1},
    {"models/qwen3-32b", 32762123264, 64, 151936, 8, 128, 1},
    {"models/gpt-oss-20b", 20914757184, 24, 201088, 8, 64, 1},
    {"models/olmoe-1b-7b", 6919161856, 16, 50304, 16, 128, 1},
    {"models/olmo-2-7b", 7298617344, 32, 100352, 32, 128, 1},
    {"models/glm-4-9b", 9400279040, 40, 151552, 2, 128, 1},
    {"models/gemma-3-4b", 3880263168, 34, 262208, 4, 256, 2},
};
enum { N_SHIPPED = sizeof shipped / sizeof *shipped };

static void test_shipped_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHIPPED; i++) {
        mpk_context cx = {0};
        arena a = {0};
        load_model m;
        check_ok(&cx, load_open(&cx, shipped[i].path, &m));
        ir_graph *g = build(&m, &a, make_shape(8, 4));
        assert_int_equal(count_parameters(g), shipped[i].n_parameters);
        assert_int_equal(count_ops(g, "attention"), shipped[i].n_layers);
        bool mixture = count_ops(g, "route") > 0;
        assert_int_equal(count_ops(g, "linear"), (mixture ? 5 : 7) * shipped[i].n_layers + 1);
        assert_int_equal(count_ops(g, "expert_linear"), mixture ? 2 * shipped[i].n_layers : 0);
        assert_int_equal(count_ops(g, "rope_table"), shipped[i].n_rotations);
        assert_int_equal(g->outputs.n, 3);
        check_tensor(g, "asks", IR_I32, IR_ROWS, 2, (int64_t[]){4, 7});
        check_tensor(g, "history", IR_I32, IR_ALL, 1, (int64_t[]){4 * 16 * 16});
        check_tensor(g, "choice", IR_F32, IR_ALL, 2, (int64_t[]){4, shipped[i].n_vocab});
        check_tensor(g, "tokens", IR_I32, IR_TOKENS, 1, (int64_t[]){8});
        check_tensor(g, "pages", IR_I32, IR_ALL, 2, (int64_t[]){4, 16});
        check_tensor(g, "sampling", IR_F32, IR_ROWS, 2, (int64_t[]){4, 4});
        check_tensor(g, "seeds", IR_I64, IR_ROWS, 1, (int64_t[]){4});
        check_tensor(g, "logits", IR_F32, IR_ROWS, 2, (int64_t[]){4, shipped[i].n_vocab});
        check_tensor(g, "next", IR_I32, IR_ROWS, 1, (int64_t[]){4});
        check_tensor(g, "k_cache.0", IR_BF16, IR_ALL, 4,
                     (int64_t[]){64, shipped[i].n_kv_heads, 16, shipped[i].head_size});
        arena_free(&a);
        load_close(&m);
    }
}

/* One whose cache holds latents; heads' products are experts that each token goes to. */
static void test_model_of_latents(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    load_model m;
    check_ok(&cx, load_open(&cx, "models/deepseek-v2-lite", &m));
    ir_graph *g = build(&m, &a, make_shape(8, 4));
    assert_int_equal(count_parameters(g), 15706484224);
    assert_int_equal(count_ops(g, "attention"), 27);
    assert_int_equal(count_ops(g, "latent_write"), 27);
    assert_int_equal(count_ops(g, "route"), 26);
    assert_int_equal(count_ops(g, "expert_linear"), 2 * 26 + 2 * 27);
    check_tensor(g, "k_cache.0", IR_BF16, IR_ALL, 4, (int64_t[]){64, 1, 16, 576});
    check_tensor(g, "logits", IR_F32, IR_ROWS, 2, (int64_t[]){4, 102400});
    arena_free(&a);
    load_close(&m);
}

/* Those of whose layers three in four keep state of a fixed size in place of keys and values; all
 * layers of one have experts.  Parameters as Transformers counts them. */
static void test_models_of_state(void **state)
{
    static const struct {
        const char *path;
        int64_t n_parameters, n_layers, n_kv_heads, n_experts;
    } rows[] = {{"models/qwen3.5-9b", 8953803264, 32, 4, 0},
                {"models/qwen3.5-35b-a3b", 34660610688, 40, 2, 256}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpk_context cx = {0};
        arena a = {0};
        load_model m;
        check_ok(&cx, load_open(&cx, rows[i].path, &m));
        ir_graph *g = build(&m, &a, make_shape(8, 4));
        const int64_t n_with_state = rows[i].n_layers / 4 * 3;
        assert_int_equal(count_parameters(g), rows[i].n_parameters);
        assert_int_equal(count_ops(g, "attention"), rows[i].n_layers - n_with_state);
        assert_int_equal(count_ops(g, "delta_rule"), n_with_state);
        assert_int_equal(count_ops(g, "causal_conv"), 3 * n_with_state);
        assert_int_equal(count_ops(g, "route"), rows[i].n_experts ? rows[i].n_layers : 0);
        check_tensor(g, "delta_state.0", IR_F32, IR_ALL, 3, (int64_t[]){4, 4096, 128});
        check_tensor(g, "k_cache.3", IR_BF16, IR_ALL, 4,
                     (int64_t[]){64, rows[i].n_kv_heads, 16, 256});
        check_tensor(g, "logits", IR_F32, IR_ROWS, 2, (int64_t[]){4, 248320});
        arena_free(&a);
        load_close(&m);
    }
}

static void test_every_folder_of_models_is_tested(void **state)
{
    (void)state;
    DIR *folder = opendir("models");
    size_t n = 0;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    closedir(folder);
    assert_int_equal(n, N_SHIPPED + 3); /* and those of the two tests after that of these */
}

static void test_paper_tail(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    load_model m;
    check_ok(&cx, load_open(&cx, "models/qwen3-1.7b", &m));
    model_shape shape = make_shape(4, 4);
    shape.greedy_only = true;
    ir_graph *g = build(&m, &a, shape);
    assert_int_equal(count_ops(g, "sample") + count_ops(g, "gather"), 0);
    assert_int_equal(count_ops(g, "argmax_partial") + count_ops(g, "argmax_reduce"), 2);
    shape.n_rows = 2; /* fewer rows than tokens have to be gathered */
    g = build(&m, &a, shape);
    assert_int_equal(count_ops(g, "gather"), 1);
    arena_free(&a);
    load_close(&m);
}

static void test_bf16_activations(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    load_model m;
    check_ok(&cx, load_open(&cx, "models/llama-3.2-1b", &m));
    model_shape shape = make_shape(2, 1);
    shape.activation_dtype = IR_BF16;
    ir_graph *g = build(&m, &a, shape);
    assert_int_equal(g->tensors.at[ir_find(g, "layers.3.mlp_add")].dtype, IR_BF16);
    assert_int_equal(g->tensors.at[ir_find(g, "logits")].dtype, IR_F32);
    arena_free(&a);
    load_close(&m);
}

/* The layers that slide, and the biases, as the configuration says. */
static void test_windows_and_biases(void **state)
{
    (void)state;
    static const char json[] = "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 3, "
                               "\"hidden_size\": 320, \"num_attention_heads\": 5, "
                               "\"num_key_value_heads\": 1, \"intermediate_size\": 96, "
                               "\"vocab_size\": 1003, \"max_position_embeddings\": 64, "
                               "\"use_sliding_window\": true, \"sliding_window\": 7, "
                               "\"max_window_layers\": 2, \"hidden_act\": \"gelu\"}";
    mpk_context cx = {0};
    load_model m = {0};
    arena a = {0};
    check_ok(&cx, load_hf_config(&cx, &m.arena, STR(json), &m.config));
    ir_graph *g = build(&m, &a, make_shape(2, 1));
    int64_t window[3] = {-1, -1, -1};
    for (size_t i = 0, n = 0; i < g->ops.n; i++) {
        const ir_op *op = &g->ops.at[i];
        for (uint32_t k = 0; k < op->def->n_attributes; k++)
            if (strcmp(op->def->name, "attention") == 0 &&
                strcmp(op->def->attributes[k].name, "window") == 0)
                window[n++] = op->attributes[k].i;
    }
    assert_true(window[0] == 0 && window[1] == 0 && window[2] == 7);
    assert_true(ir_find(g, "model.layers.0.self_attn.q_proj.bias") != IR_NONE);
    assert_true(ir_find(g, "model.layers.0.self_attn.o_proj.bias") == IR_NONE);
    assert_true(ir_find(g, "lm_head.weight") != IR_NONE);
    assert_int_equal(count_ops(g, "gelu"), 3);
    arena_free(&a);
    load_close(&m);
}

static void test_shape_faults(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    load_model m;
    ir_graph *g;
    check_ok(&cx, load_open(&cx, "models/qwen3-0.6b", &m));
    model_weights w = load_weights(&m);
    model_shape shape = make_shape(0, 0);
    check_fails(&cx, MPK_EARG, "0 tokens a step", model_build(&cx, &a, &m.config, &shape, &w, &g));
    shape = make_shape(2, 3);
    check_fails(&cx, MPK_EARG, "3 rows of logits of 2 tokens",
                model_build(&cx, &a, &m.config, &shape, &w, &g));
    shape = make_shape(2, 1);
    shape.kv_dtype = IR_Q4_0;
    check_fails(&cx, MPK_EARG, "not q4_0", model_build(&cx, &a, &m.config, &shape, &w, &g));
    shape = make_shape(2, 1);
    m.config.n_kv_heads = 3;
    check_fails(&cx, MPK_EFORMAT, "16 attention heads cannot share 3",
                model_build(&cx, &a, &m.config, &shape, &w, &g));
    arena_free(&a);
    load_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shipped_models),
        cmocka_unit_test(test_model_of_latents),
        cmocka_unit_test(test_models_of_state),
        cmocka_unit_test(test_every_folder_of_models_is_tested),
        cmocka_unit_test(test_paper_tail),
        cmocka_unit_test(test_bf16_activations),
        cmocka_unit_test(test_windows_and_biases),
        cmocka_unit_test(test_shape_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
