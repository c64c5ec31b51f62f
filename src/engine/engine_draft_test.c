/* engine_draft_test.c - which draft models are refused, and in which words.
 *
 * Models are configurations alone, with made-up weights, so their vocabularies are compared by
 * their numbers of tokens.
 */
#include "check.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/engine.h"

static const char form[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, "
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"num_hidden_layers\": 1, "
    "\"intermediate_size\": 96, \"vocab_size\": %d, \"max_position_embeddings\": 128, "
    "\"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", \"torch_dtype\": \"bfloat16\", "
    "\"tie_word_embeddings\": true}";

typedef struct folder {
    char path[32], config[64];
} folder;

static void make(folder *f, int tokens)
{
    mpk_context cx = {0};
    char words[1024];
    const int n = snprintf(words, sizeof words, form, tokens);
    snprintf(f->path, sizeof f->path, "/tmp/mpk-draft-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    snprintf(f->config, sizeof f->config, "%s/config.json", f->path);
    check_ok(&cx, file_write(&cx, f->config, words, (size_t)n));
}

static void drop(const folder *f)
{
    unlink(f->config);
    assert_int_equal(rmdir(f->path), 0);
}

static void expect(const folder *model, mpk_engine_options o, const char *needle)
{
    mpk_context cx = {0};
    mpk_engine *e;
    o.size = sizeof o;
    o.device = "cpu";
    o.threads = 1;
    o.max_batch = 1;
    o.context_tokens = 64;
    o.step_tokens = 8;
    const mpk_status status = mpk_engine_open(&cx, model->path, &o, &e);
    if (needle) {
        check_fails(&cx, MPK_EARG, needle, status);
        return;
    }
    check_ok(&cx, status);
    mpk_engine_close(e);
}

static void test_draft_models(void **state)
{
    (void)state;
    mpk_context cx = {0};
    folder model, same, fewer, more;
    char image[64];
    make(&model, 300);
    make(&same, 300);
    make(&fewer, 299);
    make(&more, 301);
    snprintf(image, sizeof image, "%s.image", model.path);
    const mpk_engine_options plain = {
        .size = sizeof plain, .device = "cpu", .threads = 1, .random_weights = true};
    check_ok(&cx, mpk_compile_to_file(&cx, model.path, &plain, image));
    expect(&model, (mpk_engine_options){.random_weights = true, .draft_model = same.path}, NULL);
    expect(&model, (mpk_engine_options){.random_weights = true, .draft_model = fewer.path},
           "it has 299 tokens, the model 300");
    expect(&model, (mpk_engine_options){.random_weights = true, .draft_model = more.path},
           "it has 301 tokens, the model 300");
    expect(&model, (mpk_engine_options){.random_weights = true, .draft_model = image},
           "it is an image: name the model that it was made from");
    expect(
        &model,
        (mpk_engine_options){.random_weights = true, .draft_model = same.path, .embeddings = true},
        "a draft model is for answers, not for embeddings");
    unlink(image);
    drop(&model);
    drop(&same);
    drop(&fewer);
    drop(&more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_draft_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
