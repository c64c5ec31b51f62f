/* engine_image_test.c - which steps the plan of an image may have.
 *
 * The plan sizes arrays of the engine, and a file may hold any numbers: the header of an image is
 * changed here and given its checksum again. */
#include "check.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/map.h"
#include "engine/engine.h"

static const char config[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, "
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"num_hidden_layers\": 1, "
    "\"intermediate_size\": 96, \"vocab_size\": 300, \"max_position_embeddings\": 128, "
    "\"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", \"torch_dtype\": \"bfloat16\", "
    "\"tie_word_embeddings\": true}";

enum { VERSION = 8, PATH_BYTES = 12, CHECKSUM = 16, HASHED = 24, STEPS = 6 };
enum { HEADER = 4096 }; /* bytes that hold the header and the path, at least */

/* As engine_image.c computes it: of what follows it in the header, and of the path. */
static void seal(char *image, const char *model)
{
    const char *path = memmem(image, HEADER, model, strlen(model));
    uint32_t version, path_bytes;
    assert_non_null(path);
    memcpy(&version, image + VERSION, sizeof version);
    memcpy(&path_bytes, image + PATH_BYTES, sizeof path_bytes);
    uint64_t sum = hash_bytes(image + HASHED, (size_t)(path - image) - HASHED, version);
    sum = hash_bytes(path, path_bytes, sum);
    memcpy(image + CHECKSUM, &sum, sizeof sum);
}

/* Powers of two from 1 on, in order, each once or twice. */
static bool may_be_steps(const uint32_t *n)
{
    uint32_t i = 0;
    for (uint32_t power = 1; i < STEPS; power *= 2) {
        const uint32_t first = i;
        while (i < STEPS && n[i] == power)
            i++;
        if (i == first || i - first > 2)
            return false;
    }
    return true;
}

/* A file has as many bytes as its header says: one less or one more is damage.  Of one that ends
 * with its header that is read, of one that ends in it nothing. */
static void check_length(const char *image_path, size_t n_header)
{
    mpk_context cx = {0};
    mpk_tokenizer *t;
    file_map file;
    check_ok(&cx, file_map_open(&cx, image_path, &file));
    const size_t n = file.n_bytes;
    char *longer = calloc(1, n + 1);
    assert_non_null(longer);
    memcpy(longer, file.bytes, n);
    file_map_close(&file);
    for (size_t k = 0; k < 2; k++) {
        check_ok(&cx, file_write(&cx, image_path, longer, n - 1 + 2 * k));
        check_fails(&cx, MPK_EFORMAT, "cut short or damaged",
                    mpk_tokenizer_open(&cx, image_path, &t));
    }
    check_ok(&cx, file_write(&cx, image_path, longer, n_header));
    check_fails(&cx, MPK_EFORMAT, "cut short or damaged", mpk_tokenizer_open(&cx, image_path, &t));
    check_ok(&cx, file_write(&cx, image_path, longer, n_header - 1));
    check_fails(&cx, MPK_EFORMAT, "cut short: it has", mpk_tokenizer_open(&cx, image_path, &t));
    free(longer);
}

/* Half of the drawn plans are those of a plan with one number changed; a file that is read for its
 * tokenizer alone is refused for its plan, or for the model that has none. */
static void test_steps(void **state)
{
    (void)state;
    static const uint32_t made[STEPS] = {1, 2, 4, 8, 16, 32};
    const uint64_t seed = check_seed();
    mpk_context cx = {0};
    mpk_tokenizer *t;
    char model[] = "/tmp/mpk-model-XXXXXX", path[64], image_path[64];
    assert_non_null(mkdtemp(model));
    snprintf(path, sizeof path, "%s/config.json", model);
    snprintf(image_path, sizeof image_path, "%s/image", model);
    check_ok(&cx, file_write(&cx, path, config, sizeof config - 1));
    const mpk_engine_options o = {
        .size = sizeof o, .device = "cpu", .threads = 1, .step_tokens = 32, .random_weights = true};
    check_ok(&cx, mpk_compile_to_file(&cx, model, &o, image_path));
    file_map file;
    check_ok(&cx, file_map_open(&cx, image_path, &file));
    char image[HEADER];
    assert_true(file.n_bytes > HEADER);
    memcpy(image, file.bytes, HEADER);
    file_map_close(&file);
    char *steps = memmem(image, HEADER, made, sizeof made);
    assert_non_null(steps);
    uint32_t good = 0, rounds = 300;
    for (uint64_t i = 0; i < rounds; i++) {
        uint32_t drawn[STEPS] = {1};
        for (uint32_t k = 1; k < STEPS; k++)
            drawn[k] = drawn[k - 1] << rng_u64(seed + i, k) % 2;
        const uint32_t at = rng_u64(seed + i, STEPS) % STEPS;
        if (i % 2)
            drawn[at] = (drawn[at] << rng_u64(seed + i, STEPS + 1) % 3) >> 1;
        memcpy(steps, drawn, sizeof drawn);
        seal(image, model);
        FILE *header = fopen(image_path, "r+b"); /* in place: what else it holds stays */
        assert_true(header && fwrite(image, HEADER, 1, header) == 1 && fclose(header) == 0);
        const bool may_be = may_be_steps(drawn);
        good += may_be;
        const mpk_status status = mpk_tokenizer_open(&cx, image_path, &t);
        if (may_be)
            check_fails(&cx, MPK_EUNSUPPORTED, "has no tokenizer", status);
        else
            check_fails(&cx, MPK_EFORMAT, "plan is damaged", status);
    }
    assert_true(good > 0 && good < rounds);
    const char *model_path = memmem(image, HEADER, model, strlen(model));
    assert_non_null(model_path); /* it follows the header */
    check_length(image_path, (size_t)(model_path - image));
    unlink(path);
    unlink(image_path);
    assert_int_equal(rmdir(model), 0);
}

/* Options that an image was not compiled for are refused by name; what it was compiled for, and
 * less where a larger program serves it, are not. */
static void test_options(void **state)
{
    (void)state;
    mpk_context cx = {0};
    mpk_engine *e;
    char model[] = "/tmp/mpk-model-XXXXXX", path[64], image_path[64];
    assert_non_null(mkdtemp(model));
    snprintf(path, sizeof path, "%s/config.json", model);
    snprintf(image_path, sizeof image_path, "%s/image", model);
    check_ok(&cx, file_write(&cx, path, config, sizeof config - 1));
#define WITH(...)                                                                                \
    {                                                                                            \
        .size = sizeof(mpk_engine_options), .device = "cpu", .random_weights = true, __VA_ARGS__ \
    }
    const mpk_engine_options made[] = {WITH(.threads = 1, .max_batch = 2, .context_tokens = 64,
                                            .step_tokens = 32, .activations = MPK_ACTIVATIONS_F32),
                                       WITH(.threads = 1, .max_batch = 2, .context_tokens = 64,
                                            .step_tokens = 32, .activations = MPK_ACTIVATIONS_I8)};
    const struct {
        mpk_engine_options o;
        const char *refused[2]; /* by an image of f32, of i8; NULL: it is opened */
    } cases[] = {
        {WITH(.threads = 1, .max_batch = 2, .context_tokens = 64, .step_tokens = 32), {NULL, NULL}},
        {WITH(.max_batch = 1, .context_tokens = 63, .step_tokens = 16), {NULL, NULL}},
        {WITH(.threads = 2), {"for threads 1, not 2", "for threads 1, not 2"}},
        {WITH(.max_batch = 3), {"for max_batch 2, not 3", "for max_batch 2, not 3"}},
        {WITH(.context_tokens = 65), {"for context 64, not 65", "for context 64, not 65"}},
        {WITH(.step_tokens = 64), {"for step_tokens 32, not 64", "for step_tokens 32, not 64"}},
        {WITH(.gpus = 1), {NULL, NULL}},
        {WITH(.gpus = 2), {"for 1 gpus, not for 2", "for 1 gpus, not for 2"}},
        {WITH(.activations = MPK_ACTIVATIONS_F32), {NULL, "with activations in 8 bits (i8)"}},
        {WITH(.activations = MPK_ACTIVATIONS_I8), {"with activations in f32", NULL}},
        {WITH(.batch_invariant = true), {NULL, NULL}}, /* on CPUs all are */
        {WITH(.random_routing = MPK_ROUTING_ZIPF), {"without random_routing", "without random_r"}},
        {WITH(.count_experts = true), {"without count_experts", "without count_experts"}},
    };
#undef WITH
    for (size_t k = 0; k < 2; k++) {
        check_ok(&cx, mpk_compile_to_file(&cx, model, &made[k], image_path));
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const mpk_status status = mpk_engine_open(&cx, image_path, &cases[i].o, &e);
            if (cases[i].refused[k]) {
                check_fails(&cx, MPK_EARG, cases[i].refused[k], status);
                continue;
            }
            check_ok(&cx, status);
            mpk_engine_close(e);
        }
    }
    unlink(path);
    unlink(image_path);
    assert_int_equal(rmdir(model), 0);
}

/* Every call that opens a model says that there is none. */
static void test_no_model(void **state)
{
    (void)state;
    mpk_context cx = {0};
    mpk_engine *e;
    mpk_tokenizer *t;
    check_fails(&cx, MPK_EARG, "no model", mpk_engine_open(&cx, NULL, NULL, &e));
    check_fails(&cx, MPK_EARG, "no model", mpk_compile_to_file(&cx, NULL, NULL, "/nowhere"));
    check_fails(&cx, MPK_EARG, "no model", mpk_tokenizer_open(&cx, NULL, &t));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps), cmocka_unit_test(test_options),
                                       cmocka_unit_test(test_no_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
