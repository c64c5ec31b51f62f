/* model_bodies_test.c - which operators of whole models have generic bodies on a GPU, and which
 * bodies poll nothing: of models whose speed is measured, and of families by what sets them apart;
 * how linear attention ends; of models whose weights stay in blocks.
 */
#include "check.h"
#include "engine/engine.h"
#include "gen/source.h"
#include "host/target.h"
#include "ir/op.h"
#include "load/load.h"
#include "model/model.h"
#include "pass/pass.h"

extern const target_def target_cuda;

/* As its checkpoint's: bf16, to which MXFP4 is unpacked. */
static mpk_status all_bf16(mpk_context *cx, const void *self, const char *name, uint32_t rank,
                           const int64_t *dims, ir_dtype *dtype)
{
    (void)cx, (void)self, (void)name, (void)rank, (void)dims;
    *dtype = IR_BF16;
    return MPK_OK;
}

/* The body of an operator in steps of so many tokens. */
static const gen_body *body_of(const ir_graph *g, const ir_op *op, uint32_t n_tokens)
{
    const gen_arch *arch = gen_arch_find("sm_90a");
    const gen_call c = {.ir = g,
                        .op = op,
                        .n_tokens = n_tokens,
                        .n_workers = arch->n_sms,
                        .needs = arch->features,
                        .halves = IR_BF16,
                        .maps = true};
    const gen_body *body = gen_body_choose(&c, UINT32_MAX);
    assert_non_null(body);
    return body;
}

/* Operators of the graph, as " name" each, in its order: those with generic bodies, and those whose
 * bodies poll nothing, so that their tasks wait for counters. */
static void list_slow(const ir_graph *g, uint32_t n_tokens, text *generic, text *counted)
{
    for (size_t i = 0; i < g->ops.n; i++) {
        const ir_op *op = &g->ops.at[i];
        if (op->def->flags & OP_VIEW && g->tensors.at[op->out[0]].shares != IR_NONE)
            continue;
        const gen_body *body = body_of(g, op, n_tokens);
        if (!body->rank)
            text_print(generic, " %s", op->def->name);
        if (!body->carries)
            text_print(counted, " %s", op->def->name);
    }
}

/* What waits for counters where all between the embedding and the logits polls. */
#define CARRIED " embedding rope_table logits sample"

/* The same where the square of relu is an operator of its own. */
#define SQUARED " embedding rope_table map map logits sample"

static const uint32_t step_tokens[] = {1, 4, 16, 32, 64, 100, 128, 512, 2048};
enum { STEPS = sizeof step_tokens / sizeof *step_tokens };

/* A model as a GPU compiles it for steps of so many tokens. */
static const ir_graph *compile_with(arena *a, const model_config *config,
                                    const model_weights *weights, uint32_t n_tokens)
{
    mpk_context cx = {0};
    ir_graph *g;
    tg_program p;
    const model_shape s = {.n_tokens = n_tokens,
                           .n_rows = n_tokens < 16 ? n_tokens : 16,
                           .n_slots = 16,
                           .n_pages = 1024,
                           .page_tokens = 64,
                           .max_pages_per_slot = 64,
                           .kv_dtype = IR_BF16,
                           .activation_dtype = IR_BF16};
    const pass_options o = {.n_workers = 132,
                            .page_bytes = 16384,
                            .pages_per_worker = 1 << 16,
                            .fusion = PASS_FUSE_FULL,
                            .splits = 16,
                            .split_tokens = 256,
                            .norm_elements = 1 << 24,
                            .share_tokens = 128,
                            .relaxed = true,
                            .whole_tiles = true,
                            .logits = true,
                            .unpack_tokens = 256};
    check_ok(&cx, model_build(&cx, a, config, &s, weights, &g));
    check_ok(&cx, pass_compile(&cx, a, &o, 1, &g, &n_tokens, &p));
    return p.graphs[0].ir;
}

static const ir_graph *compile(arena *a, const model_config *config, uint32_t n_tokens)
{
    return compile_with(a, config, &(model_weights){.dtype = all_bf16}, n_tokens);
}

/* Two layers of a model: in decoding, streams and prompts these operators have generic bodies, and
 * all others fast ones.  In steps of few tokens those in `waiting` wait for counters; one of them
 * between the first product and the logits keeps all from polling (cuda/carriers.c). */
static void expect_slow(const model_config *config, const char *expected, const char *waiting)
{
    for (size_t i = 0; i < STEPS; i++) {
        arena a = {0};
        text generic = {0}, counted = {0};
        list_slow(compile(&a, config, step_tokens[i]), step_tokens[i], &generic, &counted);
        assert_string_equal(text_str(&generic).at, expected);
        if (step_tokens[i] <= 16)
            assert_string_equal(text_str(&counted).at, waiting);
        text_free(&generic);
        text_free(&counted);
        arena_free(&a);
    }
}

/* gpt-oss-20b has layers with a window and without; of the others a part of each head is rotated,
 * and the last has groups as GLM-4 has them. */
static void models_have_fast_bodies(void **state)
{
    (void)state;
    static const struct {
        const char *folder;
        uint32_t rope_size, n_heads, n_kv_heads;
    } models[] = {{"models/gpt-oss-20b", 64, 64, 8},
                  {"models/qwen3-1.7b", 96, 16, 8},
                  {"models/qwen3-1.7b", 64, 32, 2}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        mpk_context cx = {0};
        load_model m;
        check_ok(&cx, load_open(&cx, models[i].folder, &m));
        m.config.n_layers = 2;
        m.config.rope_size = models[i].rope_size;
        m.config.n_heads = models[i].n_heads;
        m.config.n_kv_heads = models[i].n_kv_heads;
        check_ok(&cx, load_order_heads(&cx, &m, target_cuda.most_group));
        expect_slow(&m.config, " rope_table sample", CARRIED);
        load_close(&m);
    }
}

/* Rows of 4,096, post norms, norms after the rotation, an MLP without a gate, sums with a factor,
 * groups of experts, factors of embedding and logits and a cap are no reason for generic bodies. */
static void families_have_fast_bodies(void **state)
{
    (void)state;
    static const struct {
        const char *family, *generic, *waiting;
    } rows[] = {{"glm4", " rope_table sample", CARRIED},
                {"gemma2", " rope_table sample", CARRIED},
                {"gemma3_text", " rope_table sample", CARRIED},
                {"exaone4", " rope_table sample", CARRIED},
                {"cohere", " rope_table sample", " embedding rope_table gather logits sample"},
                {"starcoder2", " rope_table sample", " embedding rope_table gather logits sample"},
                {"olmo2", " rope_table sample", CARRIED},
                {"glm4_moe", " rope_table sample", CARRIED},
                {"minimax_m2", " rope_table sample", CARRIED},
                {"dots1", " rope_table sample", CARRIED},
                {"ernie4_5_moe", " rope_table sample", CARRIED},
                {"stablelm", " rope_table sample", " embedding rope_table gather logits sample"},
                {"arcee", " rope_table map map sample", SQUARED},
                {"nemotron", " rope_table map map sample",
                 " embedding rope_table map map gather logits sample"},
                {"gpt_neox", " rope_table sample", " embedding rope_table gather logits sample"},
                {"olmo", " rope_table sample", " embedding rope_table gather logits sample"},
                {"granite", " rope_table sample", CARRIED},
                {"granitemoe", " rope_table sample", CARRIED},
                {"hunyuan_v1_dense", " rope_table sample", CARRIED}};
    mpk_context cx = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        load_model m;
        const model_def *def;
        check_ok(&cx, load_open(&cx, "models/qwen3-8b", &m));
        check_ok(&cx, model_find(&cx, str_from(rows[i].family), &def));
        model_config c = m.config;
        c.family = str_from(def->family);
        c.n_layers = 2, c.head_norms = false;
        c.layer_norms = def->layer_norms, c.norm_bias = def->norm_bias;
        c.bare_norms = def->bare_norms, c.mlp_bias = def->mlp_biased;
        c.activation = str_from(def->activation ? def->activation : "silu");
        c.embedding_scale = def->root_embedding || def->multipliers ? 12.5 : 0;
        c.residual_scale = c.logits_scale = def->multipliers ? 0.22 : 0;
        if (def->logit_scale != 0)
            c.logits_scale = def->logit_scale;
        c.logits_cap = def->logits_cap;
        if (def->is_mixture)
            c.n_experts = 128, c.experts_per_token = 8, c.expert_every = 1, c.expert_ffn_size = 512;
        c.expert_sigmoid = def->sigmoid_routers || def->routing == MODEL_ROUTES_BIASED;
        c.expert_score_bias = def->score_bias || c.expert_sigmoid;
        if (def->routing) {
            c.expert_ffn_size = c.shared_ffn_size = 1408, c.expert_scale = 2.5;
            c.expert_groups = 8, c.kept_groups = 4, c.group_best = c.expert_sigmoid ? 2 : 1;
        }
        expect_slow(&c, rows[i].generic, rows[i].waiting);
        load_close(&m);
    }
}

/* In prompts heads of 256 are multiplied by warpgroups, as those of 128 are: of Gemma with a window
 * and without, and of the fourth layer of Qwen3.5. */
static void large_heads_have_warpgroups(void **state)
{
    (void)state;
    static const char *const folders[] = {"models/gemma-3-4b", "models/qwen3.5-9b",
                                          "models/qwen3.5-35b-a3b", "models/qwen3-8b"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        mpk_context cx = {0};
        load_model m;
        check_ok(&cx, load_open(&cx, folders[i], &m));
        m.config.n_layers = 6;
        for (uint32_t n_tokens = 512; n_tokens <= 2048; n_tokens *= 4) {
            arena a = {0};
            unsigned n = 0;
            const ir_graph *g = compile(&a, &m.config, n_tokens);
            for (size_t o = 0; o < g->ops.n; o++)
                if (strcmp(g->ops.at[o].def->name, "attention") == 0) {
                    assert_string_equal(body_of(g, &g->ops.at[o], n_tokens)->name,
                                        "attention_group");
                    n++;
                }
            assert_true(n > 0);
            arena_free(&a);
        }
        load_close(&m);
    }
}

/* A layer of DeepSeek-V2-Lite has none that is generic: products of heads are no experts' on a GPU.
 * Contexts are cut in steps of fewer tokens than there are workers. */
static void latents_have_fast_bodies(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m;
    check_ok(&cx, load_open(&cx, "models/deepseek-v2-lite", &m));
    m.config.n_layers = 2;
    expect_slow(&m.config, " rope_table sample",
                " embedding rope_table head_linear latent_rope attention_parts head_linear"
                " head_linear latent_rope attention_parts head_linear logits sample");
    load_close(&m);
}

/* Linear attention ends in one operator, the norm of each head with its gate. */
static void linear_attention_ends_in_a_norm(void **state)
{
    (void)state;
    static const char *const families[] = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"};
    mpk_context cx = {0};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        load_model m;
        const model_def *def;
        check_ok(&cx, load_open(&cx, "models/qwen3-8b", &m));
        check_ok(&cx, model_find(&cx, str_from(families[i]), &def));
        model_config c = m.config;
        c.family = str_from(def->family);
        c.n_layers = 2, c.delta_layers[0] = 1, c.attention_gate = true;
        c.delta_key_heads = 16, c.delta_heads = 32, c.delta_conv = 4;
        c.delta_key_size = c.delta_value_size = 128;
        if (def->is_mixture)
            c.n_experts = 128, c.experts_per_token = 8, c.expert_every = 1,
            c.expert_ffn_size = c.shared_ffn_size = 512;
        for (size_t k = 0; k < STEPS; k++) {
            arena a = {0};
            uint32_t gated = 0;
            const ir_graph *g = compile(&a, &c, step_tokens[k]);
            for (size_t o = 0; o < g->ops.n; o++) {
                const ir_op *op = &g->ops.at[o];
                assert_string_not_equal(op->def->name, "silu_mul");
                gated += strcmp(op->def->name, "rms_norm") == 0 && op->in[3] != IR_NONE;
            }
            assert_int_equal(gated, 1);
            arena_free(&a);
        }
        load_close(&m);
    }
}

/* The weights of a graph as those of a file, in their dtypes but for routers: f32, of numbers that
 * bf16 has too. */
static void make_file(const ir_graph *g, load_model *m)
{
    mpk_context cx = {0};
    for (uint32_t i = 0; i < g->tensors.n; i++) {
        const ir_tensor *t = &g->tensors.at[i];
        if (t->kind != IR_CONST)
            continue;
        load_tensor out = {.name = t->name, .dtype = t->dtype, .rank = t->rank};
        memcpy(out.dims, t->dims, sizeof out.dims);
        if (str_ends(t->name, STR(".mlp.gate.weight"))) {
            assert_int_equal(t->dtype, IR_BF16);
            out.dtype = IR_F32;
            out.n_bytes = (uint64_t)ir_elements(t) * sizeof(float);
            out.data = arena_alloc(&m->arena, (size_t)out.n_bytes, 1);
            assert_non_null(out.data);
        }
        check_ok(&cx, load_add_tensor(&cx, m, &out));
    }
}

/* All products of experts have fast bodies and weights in blocks, and in steps of few tokens
 * nothing waits for counters. */
static const ir_graph *check_mixture(arena *a, engine_build *b, uint32_t n_tokens)
{
    mpk_context cx = {0};
    text generic = {0}, counted = {0};
    engine_dtypes d;
    model_weights weights;
    unsigned blocks = 0;
    check_ok(&cx, engine_find_dtypes(&cx, a, b, false, &d));
    engine_weight_dtypes(&d, &weights);
    const ir_graph *g = compile_with(a, &b->model.config, &weights, n_tokens);
    for (size_t o = 0; o < g->ops.n; o++)
        blocks += strcmp(g->ops.at[o].def->name, "expert_linear") == 0 &&
                  ir_dtype_table[g->tensors.at[g->ops.at[o].in[2]].dtype].block_elements > 1;
    assert_int_equal(blocks, 4);
    list_slow(g, n_tokens, &generic, &counted);
    assert_string_equal(text_str(&generic).at, " rope_table sample");
    if (n_tokens <= 16)
        assert_string_equal(text_str(&counted).at, CARRIED);
    text_free(&generic);
    text_free(&counted);
    return g;
}

/* Mixtures whose weights are made up by the rules of a file's type, or have the format of the
 * configuration, MXFP4, and stay in blocks; and the same weights from a file. */
static void mixtures_in_blocks_have_fast_bodies(void **state)
{
    (void)state;
    static const char *const rows[][2] = {{"models/qwen3-30b-a3b", "q4_k_m"},
                                          {"models/qwen3-30b-a3b", "q4_0"},
                                          {"models/gpt-oss-20b", "q8_0"},
                                          {"models/gpt-oss-20b", NULL},
                                          {"models/olmoe-1b-7b", "q6_k"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < STEPS; k++) {
            mpk_context cx = {0};
            arena a = {0};
            engine_build b = {
                .device.target = &target_cuda,
                .options = {.keep_blocks = MPK_BLOCKS_KEEP, .random_mix = rows[i][1]}};
            check_ok(&cx, load_open(&cx, rows[i][0], &b.model));
            b.model.config.n_layers = 2;
            make_file(check_mixture(&a, &b, step_tokens[k]), &b.model);
            b.options.random_mix = NULL;
            check_mixture(&a, &b, step_tokens[k]);
            load_close(&b.model);
            arena_free(&a);
        }
}

/* Dense weights by the rules of a file's type: of few tokens products read blocks, of many a matrix
 * that is unpacked once, four of each layer, and all of them have fast bodies. */
static void blocks_are_unpacked_for_many_tokens(void **state)
{
    (void)state;
    static const char *const mixes[] = {"q4_k_m", "q8_0", "q4_0"};
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++)
        for (size_t k = 0; k < STEPS; k++) {
            mpk_context cx = {0};
            arena a = {0};
            text generic = {0}, counted = {0};
            engine_dtypes d;
            model_weights weights;
            unsigned unpacked = 0;
            engine_build b = {.device.target = &target_cuda,
                              .options = {.keep_blocks = 1, .random_mix = mixes[i]}};
            check_ok(&cx, load_open(&cx, "models/qwen3-8b", &b.model));
            b.model.config.n_layers = 2;
            check_ok(&cx, engine_find_dtypes(&cx, &a, &b, false, &d));
            engine_weight_dtypes(&d, &weights);
            const ir_graph *g = compile_with(&a, &b.model.config, &weights, step_tokens[k]);
            for (size_t o = 0; o < g->ops.n; o++)
                unpacked += strcmp(g->ops.at[o].def->name, "unpack") == 0;
            assert_int_equal(unpacked, step_tokens[k] >= 256 ? 2 * 4 : 0);
            list_slow(g, step_tokens[k], &generic, &counted);
            assert_string_equal(text_str(&generic).at, " rope_table sample");
            text_free(&generic);
            text_free(&counted);
            load_close(&b.model);
            arena_free(&a);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_attention_ends_in_a_norm),
        cmocka_unit_test(models_have_fast_bodies),
        cmocka_unit_test(families_have_fast_bodies),
        cmocka_unit_test(large_heads_have_warpgroups),
        cmocka_unit_test(latents_have_fast_bodies),
        cmocka_unit_test(mixtures_in_blocks_have_fast_bodies),
        cmocka_unit_test(blocks_are_unpacked_for_many_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
