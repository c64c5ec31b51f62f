/* engine_routing_test.c - experts that a step's tokens went to, by random routers whose laws are
 * known, with weights of each float dtype; and when there is no answer.
 */
#include "check.h"

#include "config_folder.h"
#include "engine/engine.h"

/* Two layers; an expert has 3 * 64 * 16 weights. */
static const char form[] =
    "{\"model_type\": \"qwen3_moe\", \"architectures\": [\"Qwen3MoeForCausalLM\"], "
    "\"hidden_size\": 64, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": "
    "32, \"num_hidden_layers\": 2, \"intermediate_size\": 96, \"moe_intermediate_size\": 16, "
    "\"num_experts\": 12, \"num_experts_per_tok\": 3, \"norm_topk_prob\": true, "
    "\"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"vocab_size\": 300, "
    "\"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", "
    "\"torch_dtype\": \"%s\", \"tie_word_embeddings\": false}";
enum { EXPERTS = 12, OF_TOKEN = 3, LAYERS = 2, TOKENS = 16, EXPERT = 3 * 64 * 16 };

static void begin(const char *dtype)
{
    char words[1024];
    snprintf(words, sizeof words, form, dtype);
    assert_int_equal(config_folder_make("mpk_routing_test", words), 0);
}

static void end(void)
{
    assert_int_equal(config_folder_remove(NULL), 0);
}

static mpk_engine *open_engine(mpk_routing_law law, bool counts)
{
    const mpk_engine_options o = {.size = sizeof o,
                                  .device = "cpu",
                                  .threads = 1,
                                  .max_batch = 1,
                                  .context_tokens = 64,
                                  .step_tokens = TOKENS,
                                  .random_weights = true,
                                  .random_seed = 5,
                                  .random_routing = law,
                                  .count_experts = counts};
    mpk_engine *e;
    check_ok(cx, mpk_engine_open(cx, folder, &o, &e));
    return e;
}

/* One step of TOKENS different tokens. */
static void run_step(mpk_engine *e)
{
    const mpk_request_options o = {.size = sizeof o, .max_tokens = 1};
    int32_t tokens[TOKENS];
    mpk_request *r;
    mpk_answer a = {0};
    for (int32_t i = 0; i < TOKENS; i++)
        tokens[i] = 7 + 11 * i;
    check_ok(cx, mpk_submit_tokens(cx, e, tokens, TOKENS, &o, &r));
    check_ok(cx, mpk_request_wait(cx, r, &a));
    mpk_request_free(r);
}

static mpk_routing measure(mpk_routing_law law)
{
    mpk_engine *e = open_engine(law, true);
    mpk_routing out = {.size = sizeof out};
    run_step(e);
    check_ok(cx, mpk_engine_routing(cx, e, TOKENS, &out));
    mpk_engine_close(e);
    assert_true(out.layers == LAYERS && out.experts == EXPERTS && out.of_token == OF_TOKEN &&
                out.tokens == TOKENS);
    return out;
}

/* By SAME all tokens go to as many experts as one does, by ZIPF to more, of all; each that is hit
 * is read.  What else is read is the same: attention, routers with their biases, norms, and the
 * vocabulary. */
static void test_laws(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int bytes;
    } dtypes[] = {{"float32", 4}, {"float16", 2}, {"bfloat16", 2}};
    const double plain =
        LAYERS * (64 * 32 * (2 * 2 + 2) + EXPERTS * 64 + EXPERTS + 2 * 64 + 2 * 32) + 64 + 300 * 64;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        begin(dtypes[i].name);
        const mpk_routing same = measure(MPK_ROUTING_SAME), zipf = measure(MPK_ROUTING_ZIPF);
        assert_true(same.hit == OF_TOKEN && zipf.hit > OF_TOKEN && zipf.hit <= EXPERTS);
        assert_float_equal(same.weight_bytes,
                           dtypes[i].bytes * (plain + LAYERS * OF_TOKEN * EXPERT), 0.5);
        assert_float_equal(zipf.weight_bytes - same.weight_bytes,
                           dtypes[i].bytes * (zipf.hit - OF_TOKEN) * LAYERS * EXPERT, 0.5);
        end();
    }
}

/* Of 1 to as many tokens as a step holds, where experts are counted. */
static void test_no_answer(void **state)
{
    (void)state;
    mpk_routing out = {.size = sizeof out}, old = {.size = sizeof old.size - 1};
    begin("bfloat16");
    mpk_engine *e = open_engine(MPK_ROUTING_SAME, false);
    check_fails(cx, MPK_EARG, "not opened with count_experts", mpk_engine_routing(cx, e, 1, &out));
    mpk_engine_close(e);
    e = open_engine(MPK_ROUTING_SAME, true);
    run_step(e);
    check_fails(cx, MPK_EARG, "mpk_routing.size is 7", mpk_engine_routing(cx, e, 1, &old));
    check_fails(cx, MPK_EARG, "1 to 16 tokens, not 0", mpk_engine_routing(cx, e, 0, &out));
    check_fails(cx, MPK_EARG, "1 to 16 tokens, not 17", mpk_engine_routing(cx, e, 17, &out));
    check_ok(cx, mpk_engine_routing(cx, e, 16, &out));
    out = (mpk_routing){.size = sizeof out.size};
    check_ok(cx, mpk_engine_routing(cx, e, 16, &out));
    assert_true(out.size == sizeof out.size && !out.layers); /* no more is written */
    mpk_engine_close(e);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_laws),
                                       cmocka_unit_test(test_no_answer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
