/* hf_config_test.c - both spellings of config.json, what is refused and how. */
#include <math.h>

#include "check.h"
#include "load/load.h"

#define SIZES                                                                     \
    "\"num_hidden_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 4, " \
    "\"num_key_value_heads\": 2, "                                                \
    "\"intermediate_size\": 96, \"vocab_size\": 100, \"max_position_embeddings\": 2048"
#define LATENT                                                                                  \
    "\"kv_lora_rank\": 32, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, \"v_head_dim\": " \
    "24, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
#define DEEPSEEK2(more) "{\"model_type\": \"deepseek_v2\", " SIZES ", " LATENT more "}"
#define DEEPSEEK3(more) "{\"model_type\": \"deepseek_v3\", " SIZES ", " LATENT more "}"
#define GLM4_LITE(more) "{\"model_type\": \"glm4_moe_lite\", " SIZES ", " LATENT more "}"
#define MINIMAX(more)                                                        \
    "{\"model_type\": \"minimax_m2\", " SIZES ", \"num_local_experts\": 8, " \
    "\"num_experts_per_tok\": 2, " more "}"
#define MINISTRAL(more) "{\"model_type\": \"ministral3\", " SIZES ", " more "}"
#define HUNYUAN_MOE(more) "{\"model_type\": \"hunyuan_v1_moe\", " SIZES ", " more "}"
#define LLAMA4(more)                                                                \
    "{\"model_type\": \"llama4_text\", " SIZES ", \"intermediate_size_mlp\": 128, " \
    "\"num_local_experts\": 4, \"num_experts_per_tok\": 1, " more "}"
#define LLAMA(more) "{\"model_type\": \"llama\", " SIZES ", " more "}"
#define GEMMA3(more) "{\"model_type\": \"gemma3_text\", " SIZES ", " more "}"
#define GRANITE(more) "{\"model_type\": \"granite\", " SIZES ", " more "}"
#define EXAONE4(more) "{\"model_type\": \"exaone4\", " SIZES ", " more "}"
#define HUNYUAN(more) "{\"model_type\": \"hunyuan_v1_dense\", " SIZES ", " more "}"
#define SMOLLM3(more) "{\"model_type\": \"smollm3\", " SIZES ", " more "}"
#define QWEN2(more) "{\"model_type\": \"qwen2\", " SIZES ", " more "}"

#define QWEN3_MOE(more) "{\"model_type\": \"qwen3_moe\", " SIZES ", " more "}"
#define MIXTRAL(more) "{\"model_type\": \"mixtral\", " SIZES ", " more "}"
#define EXPERTS(n, of_token, size)                               \
    "\"num_experts\": " n ", \"num_experts_per_tok\": " of_token \
    ", \"moe_intermediate_size\": " size

/* The configuration of this text; its strings are literals or in *a. */
static model_config parse(arena *a, const char *json)
{
    mpk_context cx = {0};
    model_config c;
    check_ok(&cx, load_hf_config(&cx, a, str_from(json), &c));
    return c;
}

/* As Transformers 4 writes a Llama. */
static void test_old_spelling(void **state)
{
    (void)state;
    arena a = {0};
    model_config c = parse(
        &a,
        LLAMA("\"rope_theta\": 500000.0, \"torch_dtype\": \"bfloat16\", \"rms_norm_eps\": 1e-05, "
              "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.5}, \"eos_token_id\": [7, 8, "
              "7], \"bos_token_id\": 1, \"hidden_act\": \"gelu_new\", \"attention_bias\": true, "
              "\"mlp_bias\": true, \"tie_word_embeddings\": true, \"sliding_window\": 9"));
    assert_true(str_is(c.family, "llama"));
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.head_size, 16);
    assert_int_equal(c.rope_size, 16);
    assert_true(c.rope_theta == 500000 && c.norm_eps == 1e-5 && c.rope_factor == 2.5);
    assert_int_equal(c.rope_scaling, MODEL_ROPE_LINEAR);
    assert_int_equal(c.weight_dtype, IR_BF16);
    assert_true(str_is(c.activation, "gelu_tanh"));
    assert_true(c.attention_bias && c.attention_out_bias && c.mlp_bias && c.tied_embeddings);
    assert_int_equal(c.n_eos_tokens, 2);
    assert_int_equal(c.eos_tokens[1], 8);
    assert_int_equal(c.bos_token, 1);
    assert_int_equal(c.window, 0); /* Llama has none, whatever the file says */
    arena_free(&a);
}

/* As Transformers 5 writes the same. */
static void test_new_spelling(void **state)
{
    (void)state;
    arena a = {0};
    model_config c = parse(
        &a,
        LLAMA(
            "\"dtype\": \"float16\", \"head_dim\": 48, \"rope_scaling\": null, "
            "\"rope_parameters\": "
            "{\"rope_type\": \"yarn\", \"rope_theta\": 1000000.0, \"factor\": 4.0, \"beta_fast\": "
            "30, "
            "\"original_max_position_embeddings\": 512, \"mscale\": 0.7, \"mscale_all_dim\": 0.9, "
            "\"truncate\": false, \"partial_rotary_factor\": 0.5}, \"eos_token_id\": 3"));
    assert_int_equal(c.weight_dtype, IR_F16);
    assert_int_equal(c.head_size, 48);
    assert_int_equal(c.rope_size, 24);
    assert_int_equal(c.rope_scaling, MODEL_ROPE_YARN);
    assert_int_equal(c.rope_original_positions, 512);
    assert_true(c.rope_theta == 1e6 && c.rope_factor == 4 && c.rope_beta_fast == 30 &&
                c.rope_beta_slow == 1);
    assert_true(c.rope_mscale == 0.7 && c.rope_mscale_all_dim == 0.9 && !c.rope_truncate);
    assert_true(c.rope_attention_factor == 0 && c.norm_eps == 1e-6 && !c.tied_embeddings &&
                c.bos_token == -1);

    c = parse(&a,
              LLAMA("\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\", "
                    "\"rope_theta\": 77.0}, "
                    "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 77.0}}"));
    assert_true(c.rope_theta == 77);
    c = parse(
        &a,
        LLAMA(
            "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
            "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 256}"));
    assert_int_equal(c.rope_scaling, MODEL_ROPE_LLAMA3);
    assert_true(c.rope_low_freq_factor == 1 && c.rope_high_freq_factor == 4 &&
                c.rope_theta == 10000);
    arena_free(&a);
}

/* longrope by any of its names; the factor follows from the two numbers of positions. */
static void test_longrope(void **state)
{
    (void)state;
    arena a = {0};
    static const char *const types[] = {"longrope", "su", "yarn"};
    for (int i = 0; i < 3; i++) {
        char json[512];
        snprintf(json, sizeof json,
                 "{\"model_type\": \"phi3\", " SIZES
                 ", \"original_max_position_embeddings\": 64, \"partial_rotary_factor\": 0.25, "
                 "\"rope_scaling\": {\"type\": \"%s\", \"short_factor\": [1, 1.5], "
                 "\"long_factor\": [2, 40.25]}}",
                 types[i]);
        model_config c = parse(&a, json);
        assert_int_equal(c.rope_scaling, MODEL_ROPE_LONG);
        assert_int_equal(c.rope_original_positions, 64);
        assert_int_equal(c.rope_size, 4);
        assert_true(c.rope_factor == c.max_positions / 64.0 && c.norm_eps == 1e-5);
        assert_true(c.rope_short[1] == 1.5f && c.rope_long[0] == 2 && c.rope_long[1] == 40.25f);
    }
    arena_free(&a);
}

/* What a file need not say, caps that null turns off, and a model beside an encoder of images. */
static void test_defaults_of_families(void **state)
{
    (void)state;
    arena a = {0};
    model_config c = parse(&a, "{\"model_type\": \"gemma2\", " SIZES "}");
    assert_true(c.tied_embeddings && str_is(c.activation, "gelu_tanh") && c.embedding_scale == 8);
    assert_true(c.attention_cap == 50 && c.logits_cap == 30 && c.attention_scale == 1 / 16.0);
    assert_true(c.window == 4096 && c.full_layers[0] == 2 && c.local_theta == 0);
    c = parse(&a, "{\"model_type\": \"gemma2\", " SIZES ", \"attn_logit_softcapping\": null, "
                  "\"final_logit_softcapping\": null, \"sliding_window\": null}");
    assert_true(c.attention_cap == 0 && c.logits_cap == 0 && c.window == 0);
    c = parse(&a,
              "{\"model_type\": \"gemma3\", \"eos_token_id\": [1, 6], \"text_config\": "
              "{\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 7, \"hidden_size\": 64, "
              "\"intermediate_size\": 96, \"rope_scaling\": {\"rope_type\": \"linear\", "
              "\"factor\": 8}}}");
    assert_true(str_is(c.family, "gemma3_text") && c.n_eos_tokens == 2 && c.eos_tokens[1] == 6);
    assert_true(c.n_heads == 8 && c.n_kv_heads == 4 && c.head_size == 256 &&
                c.vocab_size == 262208 && c.max_positions == 131072);
    assert_true(c.rope_theta == 1e6 && c.local_theta == 1e4 && c.rope_factor == 8);
    assert_int_equal(c.full_layers[0], 1 << 5);
    c = parse(&a, GRANITE("\"embedding_multiplier\": 12, \"logits_scaling\": 4"));
    assert_true(c.embedding_scale == 12 && c.logits_scale == 0.25 && c.residual_scale == 0 &&
                c.attention_scale == 1);
    c = parse(&a, SMOLLM3("\"no_rope_layers\": [0, 1]"));
    assert_true(c.unrotated_layers[0] == 1 && c.rope_theta == 2e6);
    c = parse(&a, EXAONE4("\"sliding_window\": 7, \"sliding_window_pattern\": \"LG\""));
    assert_true(c.window == 7 && c.full_layers[0] == 2 && c.unrotated_layers[0] == 2);
    c = parse(&a, EXAONE4("\"sliding_window\": null"));
    assert_true(c.window == 0 && c.unrotated_layers[0] == 0);
    c = parse(&a, HUNYUAN("\"use_qk_norm\": true, \"num_experts\": 1, \"rope_scaling\": {\"type\": "
                          "\"dynamic\", \"alpha\": 128}"));
    assert_true(fabs(c.rope_theta - 1e4 * pow(128, 16 / 14.0)) < 1 && !c.rope_scaling);
    c = parse(&a, "{\"model_type\": \"olmo3\", " SIZES ", \"rope_theta\": 7e5, "
                  "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8}}");
    assert_true(c.rope_theta == 7e5 && c.local_theta == 7e5 && c.window == 4096);
    c = parse(&a, "{\"model_type\": \"olmo3\", " SIZES "}");
    assert_true(c.rope_theta == 5e5 && c.local_theta == 0);
    c = parse(&a, "{\"model_type\": \"starcoder2\", " SIZES ", \"norm_epsilon\": 0.25}");
    assert_true(c.norm_eps == 0.25 && c.layer_norms && c.norm_bias && c.mlp_bias);
    assert_true(c.attention_bias && c.attention_out_bias && str_is(c.activation, "gelu_tanh"));
    c = parse(&a, MINISTRAL("\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 16, "
                            "\"original_max_position_embeddings\": 512, "
                            "\"llama_4_scaling_beta\": 0.1}"));
    assert_true(c.query_growth == 0.1 && c.query_step == 512 && !c.query_offset);
    assert_true(c.head_size == 128 && c.rope_theta == 1e6);
    c = parse(&a, "{\"model_type\": \"stablelm\", " SIZES ", \"use_parallel_residual\": true}");
    assert_true(c.parallel && c.rope_size == 4 && !c.attention_bias && c.norm_bias);
    c = parse(&a, "{\"model_type\": \"stablelm\", " SIZES ", \"use_qkv_bias\": true}");
    assert_true(!c.parallel && c.attention_bias && !c.attention_out_bias);
    c = parse(&a,
              "{\"model_type\": \"gpt_neox\", \"num_hidden_layers\": 2, \"hidden_size\": 64, "
              "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 100, "
              "\"max_position_embeddings\": 512, \"rotary_pct\": 0.5, \"rotary_emb_base\": 500}");
    assert_true(c.parallel && c.rope_size == 8 && c.rope_theta == 500 && c.n_kv_heads == 4);
    assert_true(c.mlp_bias && c.attention_bias && str_is(c.activation, "gelu"));
    c = parse(&a, "{\"model_type\": \"phi\", " SIZES ", \"hidden_act\": \"gelu\"}");
    assert_true(str_is(c.activation, "gelu") && c.head_bias && c.mlp_bias);
    c = parse(&a, "{\"model_type\": \"olmo\", " SIZES ", \"clip_qkv\": null}");
    assert_true(c.bare_norms && c.layer_norms && !c.norm_bias && c.norm_eps == 1e-5);
    c = parse(&a, "{\"model_type\": \"nemotron\", " SIZES ", \"norm_eps\": 0.25}");
    assert_true(str_is(c.activation, "relu2") && c.norm_eps == 0.25 && c.rope_size == 8);
    c = parse(&a, "{\"model_type\": \"glm4\", " SIZES "}");
    assert_true(c.head_size == 128 && c.rope_size == 64 && c.attention_bias);
    assert_true(!c.attention_out_bias);
    arena_free(&a);
}

/* Members that mean something in some families alone. */
static void test_windows_and_biases(void **state)
{
    (void)state;
    arena a = {0};
    model_config c = parse(&a, "{\"model_type\": \"mistral\", " SIZES ", \"sliding_window\": 9}");
    assert_int_equal(c.window, 9);
    assert_int_equal(c.full_layers[0], 0);
    assert_false(c.attention_bias);
    c = parse(&a, QWEN2("\"sliding_window\": 9"));
    assert_int_equal(c.window, 0);
    assert_true(c.attention_bias && !c.attention_out_bias);
    c = parse(
        &a, QWEN2("\"sliding_window\": 9, \"use_sliding_window\": true, \"max_window_layers\": 1"));
    assert_int_equal(c.window, 9);
    assert_int_equal(c.full_layers[0], 1);
    c = parse(&a, QWEN2("\"sliding_window\": 9, \"use_sliding_window\": true, "
                        "\"layer_types\": [\"full_attention\", \"sliding_attention\"]"));
    assert_int_equal(c.full_layers[0], 1);
    c = parse(&a, QWEN2("\"sliding_window\": 9, \"use_sliding_window\": true, "
                        "\"layer_types\": [\"sliding_attention\", \"full_attention\"]"));
    assert_true(model_layer_window(&c, 0) == 9 && model_layer_window(&c, 1) == 0);
    c = parse(&a, "{\"model_type\": \"qwen3\", " SIZES ", \"attention_bias\": true}");
    assert_true(c.attention_bias && c.attention_out_bias && !c.mlp_bias);
    arena_free(&a);
}

/* Both spellings of their number, layers without, a name that says experts and a model without. */
static void test_experts(void **state)
{
    (void)state;
    arena a = {0};
    model_config c = parse(
        &a, QWEN3_MOE(EXPERTS("8", "3", "24") ", \"sliding_window\": 9, \"norm_topk_prob\": true"));
    assert_int_equal(c.n_experts, 8);
    assert_int_equal(c.experts_per_token, 3);
    assert_int_equal(c.expert_ffn_size, 24);
    assert_int_equal(c.ffn_size, 96);
    assert_int_equal(c.expert_every, 1);
    assert_true(c.normalize_experts && c.window == 0 && !c.attention_bias && c.rope_theta == 10000);
    c = parse(
        &a,
        QWEN3_MOE(
            "\"num_local_experts\": 4, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 5, "
            "\"decoder_sparse_step\": 2, \"mlp_only_layers\": [1, 70, 5000, -3], "
            "\"use_sliding_window\": true, \"sliding_window\": 9, \"attention_bias\": true"));
    assert_int_equal(c.n_experts, 4);
    assert_int_equal(c.expert_every, 2);
    assert_true(c.dense_layers[0] == 2 && c.dense_layers[1] == 64 && c.dense_layers[2] == 0);
    assert_true(!c.normalize_experts && c.window == 9 && c.full_layers[0] == 0 &&
                c.attention_out_bias);
    c = parse(&a, QWEN3_MOE("\"num_experts\": 0")); /* a dense model by another name */
    assert_int_equal(c.n_experts, 0);
    c = parse(
        &a, MIXTRAL("\"num_local_experts\": 3, \"num_experts_per_tok\": 2, \"sliding_window\": 7"));
    assert_int_equal(c.expert_ffn_size, 96);
    assert_true(c.n_experts == 3 && c.normalize_experts && c.window == 7);
    assert_true(c.rope_theta == 1e6 && c.norm_eps == 1e-5);
    arena_free(&a);
}

/* Latent attention, and how experts are chosen; a name that means another family. */
static void test_latent_models(void **state)
{
    (void)state;
    arena a = {0};
    model_config c = parse(&a, "{\"model_type\": \"kimi_k2\", " SIZES ", " LATENT
                               "\"n_group\": 4, \"topk_group\": 2, \"n_shared_experts\": 2, "
                               "\"first_k_dense_replace\": 1, \"routed_scaling_factor\": 2.5}");
    assert_true(str_is(c.family, "deepseek_v3"));
    assert_true(c.latent_size == 32 && c.head_size == 24 && c.rope_size == 8 && c.value_size == 24);
    assert_true(c.n_kv_heads == 1 && !c.query_latent_size && model_cache_size(&c) == 40);
    assert_true(c.expert_sigmoid && c.expert_score_bias && c.normalize_experts);
    assert_true(c.expert_groups == 4 && c.kept_groups == 2 && c.group_best == 2);
    assert_true(c.shared_ffn_size == 48 && c.expert_scale == 2.5);
    assert_true(!model_has_experts(&c, 0) && model_has_experts(&c, 1));
    c = parse(&a, DEEPSEEK2("\"q_lora_rank\": 40, \"topk_method\": \"greedy\", \"n_group\": 1"));
    assert_true(c.query_latent_size == 40 && !c.expert_sigmoid && !c.expert_score_bias);
    assert_true(!c.expert_groups && !c.normalize_experts && !c.shared_ffn_size);
    c = parse(&a, GLM4_LITE("\"n_group\": 1, \"topk_group\": 1, \"n_shared_experts\": 1"));
    assert_true(!model_has_experts(&c, 0) && model_has_experts(&c, 1) && c.norm_eps == 1e-5);
    c = parse(&a, GLM4_LITE("\"n_group\": 1, \"topk_group\": 1, "
                            "\"mlp_layer_types\": [\"sparse\", \"dense\"]"));
    assert_true(model_has_experts(&c, 0) && !model_has_experts(&c, 1) && c.expert_sigmoid);
    c = parse(&a,
              "{\"model_type\": \"ernie4_5_moe\", " SIZES ", \"moe_num_experts\": 8, \"moe_k\": 3, "
              "\"moe_intermediate_size\": 24}");
    assert_true(c.n_experts == 8 && c.experts_per_token == 3 && c.shared_ffn_size == 48);
    assert_true(!model_has_experts(&c, 0) && model_has_experts(&c, 1) && !c.expert_sigmoid &&
                c.expert_score_bias && c.normalize_experts && c.tied_embeddings);
    c = parse(&a, HUNYUAN_MOE("\"num_experts\": 4, \"moe_topk\": [2, 2]"));
    assert_true(c.experts_per_token == 2 && c.shared_ffn_size == 96 && c.normalize_experts);
    c = parse(&a,
              "{\"model_type\": \"dots1\", " SIZES ", " EXPERTS(
                  "8", "2", "24") ", \"n_group\": 1, \"topk_group\": 1, \"max_window_layers\": 1}");
    assert_true(c.window == 4096 && c.full_layers[0] == 1 && !c.normalize_experts);
    c = parse(&a, LLAMA4("\"attn_temperature_tuning\": 4, \"interleave_moe_layer_step\": 2"));
    assert_true(c.ffn_size == 128 && c.expert_ffn_size == 96 && c.shared_ffn_size == 96);
    assert_true(!model_has_experts(&c, 0) && model_has_experts(&c, 1) && c.experts_scaled);
    assert_true(c.chunk == 8192 && c.query_growth == 0.1 && c.query_step == 8192 && c.head_norms);
    c = parse(&a, LLAMA4("\"attn_temperature_tuning\": false, \"moe_layers\": [0], "
                         "\"attention_chunk_size\": null, \"no_rope_layers\": [], "
                         "\"use_qk_norm\": false"));
    assert_true(model_has_experts(&c, 0) && !model_has_experts(&c, 1) && !c.chunk);
    assert_true(c.query_growth == 0 && !c.head_norms && c.unrotated_layers[0] == 0);
    c = parse(&a, MINIMAX("\"rotary_dim\": 24, \"head_dim\": 40, \"scoring_func\": \"sigmoid\""));
    assert_true(c.rope_size == 24 && c.rope_theta == 5e6 && c.expert_ffn_size == 96);
    assert_true(c.expert_sigmoid && c.expert_score_bias && c.normalize_experts);
    arena_free(&a);
}

/* A configuration that is refused, and a part of the message. */
typedef struct fault {
    mpk_status status;
    const char *needle, *json;
} fault;

static void check_faults(const fault *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        mpk_context cx = {0};
        arena a = {0};
        model_config c = {.n_layers = 77};
        check_fails(&cx, cases[i].status, cases[i].needle,
                    load_hf_config(&cx, &a, str_from(cases[i].json), &c));
        assert_int_equal(c.n_layers, 77); /* written on success only */
        arena_free(&a);
    }
}

static void test_faults_of_latent_models(void **state)
{
    (void)state;
    static const fault cases[] = {
        {MPK_EFORMAT, "\"kv_lora_rank\" is missing",
         "{\"model_type\": \"deepseek_v3\", " SIZES "}"},
        {MPK_EUNSUPPORTED, "\"rope_interleave\" false", DEEPSEEK3("\"rope_interleave\": false")},
        {MPK_EFORMAT, "\"mlp_layer_types\" is not a list of 2",
         GLM4_LITE("\"n_group\": 1, \"topk_group\": 1, \"mlp_layer_types\": [\"dense\"]")},
        {MPK_EUNSUPPORTED, "layer 1 is \"thin\"",
         GLM4_LITE("\"n_group\": 1, \"topk_group\": 1, "
                   "\"mlp_layer_types\": [\"dense\", \"thin\"]")},
        {MPK_EUNSUPPORTED, "\"scoring_func\" \"softmax\"",
         MINIMAX("\"scoring_func\": \"softmax\"")},
        {MPK_EFORMAT, "\"partial_rotary_factor\" is 1.5",
         MINIMAX("\"head_dim\": 16, \"rotary_dim\": 24")},
        {MPK_EUNSUPPORTED, "\"moe_topk\" differs between layers",
         HUNYUAN_MOE("\"num_experts\": 4, \"moe_topk\": [2, 1]")},
        {MPK_EFORMAT, "\"moe_topk\" is an empty list",
         HUNYUAN_MOE("\"num_experts\": 4, \"moe_topk\": []")},
        {MPK_EUNSUPPORTED, "\"use_cla\" is not supported", HUNYUAN_MOE("\"use_cla\": true")},
        {MPK_EUNSUPPORTED, "\"use_bias\" is not supported in this family",
         "{\"model_type\": \"ernie4_5_moe\", " SIZES ", \"moe_num_experts\": 8, \"moe_k\": 3, "
         "\"moe_intermediate_size\": 24, \"use_bias\": true}"},
        {MPK_EFORMAT, "\"moe_layers\" holds", LLAMA4("\"moe_layers\": [2]")},
        {MPK_EFORMAT, "\"moe_layers\" is not a list", LLAMA4("\"moe_layers\": 1")},
        {MPK_EUNSUPPORTED, "\"attention_chunk_size\" is not supported",
         MINIMAX("\"attention_chunk_size\": 64")},
        {MPK_EFORMAT, "\"n_group\" is missing", DEEPSEEK3("\"topk_group\": 1")},
        {MPK_EFORMAT, "\"n_group\" 4 and \"topk_group\" 0",
         DEEPSEEK3("\"n_group\": 4, \"topk_group\": 0")},
        {MPK_EFORMAT, "8 experts are not 3 equal groups",
         DEEPSEEK3("\"n_group\": 3, \"topk_group\": 1")},
        {MPK_EFORMAT, "groups of 1 experts cannot be rated by their 2 best",
         DEEPSEEK3("\"n_group\": 8, \"topk_group\": 2")},
        {MPK_EFORMAT, "2 experts a token cannot be chosen from 1 of 8 groups of 1",
         DEEPSEEK2("\"topk_method\": \"group_limited_greedy\", \"n_group\": 8, \"topk_group\": 1")},
        {MPK_EFORMAT, "expected 1 to 4", DEEPSEEK3("\"n_group\": 4, \"topk_group\": 5")},
        {MPK_EUNSUPPORTED, "\"topk_method\" \"noaux_tc\"",
         DEEPSEEK2("\"topk_method\": \"noaux_tc\"")},
        {MPK_EUNSUPPORTED,
         "\"scoring_func\" \"softmax\" is not supported in this family; \"sigmoid\"",
         DEEPSEEK3("\"scoring_func\": \"softmax\"")},
        {MPK_EUNSUPPORTED, "\"norm_topk_prob\" true", DEEPSEEK2("\"norm_topk_prob\": true")},
        {MPK_EUNSUPPORTED, "\"moe_layer_freq\" 2", DEEPSEEK2("\"moe_layer_freq\": 2")},
        {MPK_EFORMAT, "the latent (kv_lora_rank) is 5000",
         "{\"model_type\": \"deepseek_v2\", " SIZES
         ", \"kv_lora_rank\": 5000, \"qk_nope_head_dim\": 16, "
         "\"qk_rope_head_dim\": 8, \"v_head_dim\": 24}"},
    };
    check_faults(cases, sizeof cases / sizeof *cases);
}

static void test_faults_of_families(void **state)
{
    (void)state;
    static const fault cases[] = {
        {MPK_EUNSUPPORTED, "of a mistral3 model of the type \"gpt2\"",
         "{\"model_type\": \"mistral3\", \"text_config\": {\"model_type\": \"gpt2\"}}"},
        {MPK_EUNSUPPORTED, "\"sliding_window_pattern\" \"LGLG\" is not supported",
         EXAONE4("\"sliding_window\": 7, \"sliding_window_pattern\": \"LGLG\"")},
        {MPK_EFORMAT, "\"sliding_window_pattern\" is 0",
         EXAONE4("\"sliding_window\": 7, \"sliding_window_pattern\": \"\"")},
        {MPK_EUNSUPPORTED, "\"dynamic\" without an \"alpha\"",
         HUNYUAN("\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}")},
        {MPK_EUNSUPPORTED, "\"use_qk_norm\" is not supported",
         "{\"model_type\": \"cohere\", " SIZES ", \"use_qk_norm\": true}"},
        {MPK_EFORMAT, "\"logit_scale\" is 0",
         "{\"model_type\": \"cohere\", " SIZES ", \"logit_scale\": 0}"},
        {MPK_EUNSUPPORTED, "\"clip_qkv\" is not supported",
         "{\"model_type\": \"olmoe\", " SIZES ", \"clip_qkv\": 8.0}"},
        {MPK_EFORMAT, "feed-forward size of the shared expert is 0",
         "{\"model_type\": \"qwen2_moe\", " SIZES ", " EXPERTS("8", "2", "24") "}"},
    };
    check_faults(cases, sizeof cases / sizeof *cases);
}

/* One wrong member a document; the message names it. */
static void test_each_fault(void **state)
{
    (void)state;
    static const fault cases[] = {
        {MPK_EFORMAT, "not valid JSON: line 1", "{\"model_type\" 7}"},
        {MPK_EFORMAT, "\"model_type\" is missing", "{}"},
        {MPK_EFORMAT, "\"model_type\" is not a string", "{\"model_type\": 7}"},
        {MPK_EUNSUPPORTED, "\"falcon\" are not supported; these are: arcee, cohere",
         "{\"model_type\": \"falcon\"}"},
        {MPK_EFORMAT, "\"text_config\" is missing", "{\"model_type\": \"gemma3\"}"},
        {MPK_EUNSUPPORTED, "without causal attention",
         GEMMA3("\"use_bidirectional_attention\": true")},
        {MPK_EFORMAT, "\"query_pre_attn_scalar\" is 0", GEMMA3("\"query_pre_attn_scalar\": 0")},
        {MPK_EFORMAT, "\"sliding_window_pattern\" is 0", GEMMA3("\"sliding_window_pattern\": 0")},
        {MPK_EUNSUPPORTED, "\"yarn\" of layers with sliding attention",
         GEMMA3("\"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"yarn\"}}")},
        {MPK_EFORMAT, "rope theta of layers with a window is 1",
         GEMMA3("\"rope_local_base_freq\": 1")},
        {MPK_EFORMAT, "\"logits_scaling\" is -2", GRANITE("\"logits_scaling\": -2")},
        {MPK_EFORMAT, "\"no_rope_layers\" is not a list of 2", SMOLLM3("\"no_rope_layers\": [1]")},
        {MPK_EFORMAT, "\"no_rope_layers\" holds", SMOLLM3("\"no_rope_layers\": [1, true]")},
        {MPK_EFORMAT, "\"no_rope_layer_interval\" is 0", SMOLLM3("\"no_rope_layer_interval\": 0")},
        {MPK_EUNSUPPORTED, "\"use_sliding_window\" is not supported in this family",
         SMOLLM3("\"use_sliding_window\": true, \"sliding_window\": 7")},
        {MPK_EFORMAT, "\"num_hidden_layers\" is missing", "{\"model_type\": \"llama\"}"},
        {MPK_EUNSUPPORTED, "\"attn_logit_softcapping\"", LLAMA("\"attn_logit_softcapping\": 50.0")},
        {MPK_EUNSUPPORTED, "mixtures of experts", LLAMA("\"num_local_experts\": 8")},
        {MPK_EUNSUPPORTED, "\"n_routed_experts\" is 8", QWEN3_MOE("\"n_routed_experts\": 8")},
        {MPK_EFORMAT, "\"num_experts_per_tok\" is missing",
         QWEN3_MOE("\"num_experts\": 8, \"moe_intermediate_size\": 24")},
        {MPK_EFORMAT, "\"moe_intermediate_size\" is missing",
         QWEN3_MOE("\"num_experts\": 8, \"num_experts_per_tok\": 2")},
        {MPK_EFORMAT, "number of experts a token is 9, expected 1 to 8",
         QWEN3_MOE(EXPERTS("8", "9", "24"))},
        {MPK_EFORMAT, "number of experts a token is 0", QWEN3_MOE(EXPERTS("8", "0", "24"))},
        {MPK_EFORMAT, "number of experts is 5000", QWEN3_MOE(EXPERTS("5000", "2", "24"))},
        {MPK_EFORMAT, "feed-forward size of an expert is 0", QWEN3_MOE(EXPERTS("8", "2", "0"))},
        {MPK_EFORMAT, "step between layers with experts is 0",
         QWEN3_MOE(EXPERTS("8", "2", "24") ", \"decoder_sparse_step\": 0")},
        {MPK_EFORMAT, "\"mlp_only_layers\" is not a list",
         QWEN3_MOE(EXPERTS("8", "2", "24") ", \"mlp_only_layers\": 1")},
        {MPK_EFORMAT, "\"mlp_only_layers\" holds",
         QWEN3_MOE(EXPERTS("8", "2", "24") ", \"mlp_only_layers\": [\"1\"]")},
        {MPK_EFORMAT, "\"num_local_experts\" is missing", MIXTRAL("\"num_experts_per_tok\": 2")},
        {MPK_EUNSUPPORTED, "\"qk_layernorm\" is not supported", LLAMA("\"qk_layernorm\": true")},
        {MPK_EUNSUPPORTED, "\"relu2\" is not supported", LLAMA("\"hidden_act\": \"relu2\"")},
        {MPK_EUNSUPPORTED, "\"clip_qkv\" is not supported",
         "{\"model_type\": \"olmo\", " SIZES ", \"clip_qkv\": 8.0}"},
        {MPK_EUNSUPPORTED, "\"relu\" is not supported", LLAMA("\"hidden_act\": \"relu\"")},
        {MPK_EUNSUPPORTED, "\"dynamic\" is not supported",
         LLAMA("\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}")},
        {MPK_EFORMAT, "\"short_factor\" is not a list of 8 numbers",
         LLAMA("\"rope_parameters\": {\"rope_type\": \"longrope\"}")},
        {MPK_EFORMAT, "\"long_factor\" is not a list of 8 numbers",
         LLAMA("\"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1, 1, 1, 1, 1, 1, 1, 1], "
               "\"long_factor\": [1, 2]}")},
        {MPK_EFORMAT, "\"long_factor\" holds something that is not a number",
         LLAMA("\"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1, 1, 1, 1, 1, 1, 1, 1], "
               "\"long_factor\": [1, 2, \"3\", 4, 5, 6, 7, 8]}")},
        {MPK_EFORMAT, "rope factor of long contexts is 0",
         LLAMA("\"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1, 1, 1, 1, 1, 1, 1, 1], "
               "\"long_factor\": [1, 2, 3, 4, 5, 6, 7, 0]}")},
        {MPK_EUNSUPPORTED, "differ between types",
         LLAMA("\"rope_parameters\": {\"a\": {\"x\": 1}, \"b\": {\"x\": 2}}")},
        {MPK_EFORMAT, "\"rope_parameters\" is not an object", LLAMA("\"rope_scaling\": 7")},
        {MPK_EFORMAT, "rope scaling factor is 0",
         LLAMA("\"rope_scaling\": {\"type\": \"linear\"}")},
        {MPK_EFORMAT, "high_freq_factor 0.5 is below low_freq_factor 1",
         LLAMA("\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 2, \"low_freq_factor\": 1, "
               "\"high_freq_factor\": "
               "0.5}")},
        {MPK_EUNSUPPORTED, "\"llama_4_scaling_beta\" is not supported in this family",
         LLAMA("\"rope_parameters\": {\"llama_4_scaling_beta\": 0.1}")},
        {MPK_EFORMAT, "\"rope_parameters\" is missing", MINISTRAL("\"sliding_window\": null")},
        {MPK_EFORMAT, "\"original_max_position_embeddings\" is missing",
         MINISTRAL("\"rope_parameters\": {\"llama_4_scaling_beta\": 0.1}")},
        {MPK_EFORMAT, "positions after which queries grow is 0",
         MINISTRAL("\"rope_parameters\": {\"llama_4_scaling_beta\": 0.1, "
                   "\"original_max_position_embeddings\": 0}")},
        {MPK_EFORMAT, "rope theta is -1", LLAMA("\"rope_theta\": -1")},
        {MPK_EFORMAT, "\"rope_theta\" is not a number", LLAMA("\"rope_theta\": \"1\"")},
        {MPK_EFORMAT, "\"partial_rotary_factor\" is 2", LLAMA("\"partial_rotary_factor\": 2")},
        {MPK_EFORMAT, "rotates 5 of the 16", LLAMA("\"partial_rotary_factor\": 0.33")},
        {MPK_EFORMAT, "\"tie_word_embeddings\" is neither", LLAMA("\"tie_word_embeddings\": 1")},
        {MPK_EFORMAT, "\"eos_token_id\" is not a token id", LLAMA("\"eos_token_id\": [1, \"x\"]")},
        {MPK_ELIMIT, "more than 16 end-of-text",
         LLAMA("\"eos_token_id\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]")},
        {MPK_EFORMAT, "norm epsilon is -1", LLAMA("\"rms_norm_eps\": -1")},
        {MPK_EFORMAT, "head size is 0", LLAMA("\"head_dim\": 0")},
        {MPK_EFORMAT, "\"head_dim\" is not a whole number", LLAMA("\"head_dim\": 16.5")},
        {MPK_EFORMAT, "\"layer_types\" is not a list of 2",
         QWEN2("\"use_sliding_window\": true, \"sliding_window\": 4, \"layer_types\": []")},
        {MPK_EUNSUPPORTED, "layer 0 is \"chunked_attention\"",
         QWEN2("\"use_sliding_window\": true, \"sliding_window\": 4, "
               "\"layer_types\": [\"chunked_attention\", \"full_attention\"]")},
    };
    check_faults(cases, sizeof cases / sizeof *cases);
}

/* A configuration whose member `key` is replaced by this value. */
static void test_absurd_sizes(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "num_hidden_layers", "hidden_size", "num_attention_heads",    "num_key_value_heads",
        "intermediate_size", "vocab_size",  "max_position_embeddings"};
    static const char *const values[] = {
        "0", "4294967295", "-1", "1e300", "99999999999999999999999", "\"2\"", "[2]"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            mpk_context cx = {0};
            arena a = {0};
            model_config c;
            text t = {0};
            text_print(&t, "{\"model_type\": \"llama\"");
            for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
                text_print(&t, ", \"%s\": %s", keys[i], i == k ? values[v] : "64");
            text_print(&t, "}");
            mpk_status status = load_hf_config(&cx, &a, (str){t.at, t.n}, &c);
            if (status != MPK_EFORMAT)
                fail_msg("%s: %s", t.at, cx.text);
            text_free(&t);
            arena_free(&a);
        }
}

/* Suggestions and ends of text; templates and special tokens, which other files of the folder
 * bring. */
static void test_generation_config(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m = {0};
    check_ok(&cx, load_hf_generation_config(
                      &cx,
                      STR("{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, "
                          "\"top_p\": 0.95, \"typical_p\": 0.9, \"eos_token_id\": [5, 6]}"),
                      &m));
    assert_true(m.suggested.temperature == 0.6f && m.suggested.top_p == 0.95f &&
                m.suggested.top_k == 20);
    assert_true(m.suggested.min_p <= 0 && m.suggested.typical_p == 0.9f &&
                m.suggested.repetition_penalty <= 0);
    assert_int_equal(m.config.n_eos_tokens, 2);
    check_ok(&cx, load_hf_chat_template(&cx, STR("{\"chat_template\": \"{{ x }}\"}"), &m));
    assert_true(str_is(m.chat_template, "{{ x }}"));
    load_close(&m);
    check_ok(&cx, load_hf_chat_template(
                      &cx,
                      STR("{\"chat_template\": [{\"name\": \"rag\", \"template\": \"r\"}, "
                          "{\"name\": \"tool_use\", \"template\": \"t\"}, "
                          "{\"name\": \"default\", \"template\": \"d\"}], \"bos_token\": \"<s>\", "
                          "\"eos_token\": {\"content\": \"</s>\"}, \"pad_token\": null}"),
                      &m));
    assert_true(str_is(m.chat_template, "d") && str_is(m.tool_template, "t") &&
                !m.lists_added_tokens);
    check_ok(&cx, load_hf_special_tokens(
                      &cx, STR("{\"eos_token\": \"<end>\", \"unk_token\": \"<unk>\"}"), &m));
    assert_int_equal(m.n_specials, 3);
    assert_true(str_is(m.specials[0].token, "<s>") && str_is(m.specials[1].token, "<end>"));
    assert_string_equal(m.specials[2].name, "unk_token");
    load_close(&m);
    check_ok(&cx,
             load_hf_generation_config(
                 &cx,
                 STR("{\"temperature\": 0.6, \"repetition_penalty\": 1.1, \"eos_token_id\": null}"),
                 &m));
    /* without do_sample the model is meant to be greedy */
    assert_true(m.suggested.temperature <= 0);
    assert_true(m.suggested.repetition_penalty == 1.1f);
    check_ok(&cx, load_hf_generation_config(
                      &cx, STR("{\"do_sample\": true, \"top_k\": -1, \"top_p\": 0.5}"), &m));
    assert_true(m.suggested.top_k == 0 && m.suggested.top_p == 0.5f);
    check_fails(&cx, MPK_EFORMAT, "\"top_k\"",
                load_hf_generation_config(&cx, STR("{\"top_k\": \"all\"}"), &m));
    load_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_old_spelling),       cmocka_unit_test(test_new_spelling),
        cmocka_unit_test(test_longrope),           cmocka_unit_test(test_defaults_of_families),
        cmocka_unit_test(test_windows_and_biases), cmocka_unit_test(test_experts),
        cmocka_unit_test(test_each_fault),         cmocka_unit_test(test_absurd_sizes),
        cmocka_unit_test(test_generation_config),  cmocka_unit_test(test_faults_of_families),
        cmocka_unit_test(test_latent_models),      cmocka_unit_test(test_faults_of_latent_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
