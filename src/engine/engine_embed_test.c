/* engine_embed_test.c - mpk_embed as a caller in C sees it: what it refuses, before anything is
 * computed, and vectors of many texts at once against those of each text alone.  The numbers
 * themselves are compared with Transformers in tests/test_embeddings.py.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "check.h"
#include "config_folder.h"

enum { SIZE = 32, VOCABULARY = 100, CONTEXT = 64, LONG_CONTEXT = 20000, N_TEXTS = 9 };

static const char config[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_size\": 32, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
    "\"head_dim\": 16, \"intermediate_size\": 40, \"vocab_size\": 100, "
    "\"max_position_embeddings\": 20000, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "
    "\"hidden_act\": \"silu\", \"tie_word_embeddings\": true, \"attention_bias\": false, "
    "\"torch_dtype\": \"bfloat16\", \"bos_token_id\": 1, \"eos_token_id\": 2}";

static int set_up(void **state)
{
    (void)state;
    return config_folder_make("mpk_embed_test", config);
}

static mpk_engine *open_for(uint32_t context, uint32_t batch, bool embeddings)
{
    const mpk_engine_options o = {.size = sizeof o,
                                  .device = "cpu",
                                  .threads = 2,
                                  .max_batch = batch,
                                  .step_tokens = context > CONTEXT ? 512 : 16,
                                  .context_tokens = context,
                                  .embeddings = embeddings,
                                  .random_weights = true,
                                  .random_seed = 5};
    mpk_engine *e = NULL;
    check_ok(cx, mpk_engine_open(cx, folder, &o, &e));
    return e;
}

static mpk_engine *open_engine(uint32_t batch, bool embeddings)
{
    return open_for(CONTEXT, batch, embeddings);
}

static const int32_t words[CONTEXT + 1] = {7, 3, 9};

/* Whether the options are taken for one text of three tokens. */
static mpk_status embed(mpk_engine *e, mpk_embed_options o)
{
    float out[SIZE + 1];
    return mpk_embed(cx, e, &(mpk_tokens){words, 3}, 1, &o, out);
}

enum { FULL = sizeof(mpk_embed_options), LEAST = offsetof(mpk_embed_options, raw) };

#define takes(bytes, ...) check_ok(cx, embed(e, (mpk_embed_options){.size = (bytes), __VA_ARGS__}))
#define refuses(needle, bytes, ...) \
    check_fails(cx, MPK_EARG, needle, embed(e, (mpk_embed_options){.size = (bytes), __VA_ARGS__}))

/* The first and the last value of each option, and the next ones beyond them. */
static void test_options(void **state)
{
    (void)state;
    mpk_engine *e = open_engine(2, true);
    takes(LEAST, .dimensions = 1);
    refuses("size is", LEAST - 1, .dimensions = 1);
    takes(FULL, .pooling = MPK_POOL_MEAN);
    refuses("pooling is 2", FULL, .pooling = (mpk_pooling)(MPK_POOL_MEAN + 1));
    refuses("pooling is -1", FULL, .pooling = (mpk_pooling)-1);
    takes(FULL, .dimensions = SIZE);
    refuses("33 dimensions", FULL, .dimensions = SIZE + 1);
    mpk_engine_close(e);
    e = open_engine(2, false);
    check_fails(cx, MPK_EUNSUPPORTED, "not opened for embeddings",
                embed(e, (mpk_embed_options){.size = FULL}));
    mpk_engine_close(e);
}

/* Options of a newer version, with a field that this one does not know: a program that does not use
 * it goes on working. */
static void test_newer_options(void **state)
{
    (void)state;
    const mpk_tokens text = {words, 1};
    float out[SIZE];
    struct {
        mpk_embed_options known;
        uint64_t newer;
    } o = {.known = {.size = sizeof o, .raw = true}};
    mpk_engine *e = open_engine(2, true);
    check_ok(cx, mpk_embed(cx, e, &text, 1, &o.known, out));
    o.newer = 1;
    check_fails(cx, MPK_EUNSUPPORTED, "does not know", mpk_embed(cx, e, &text, 1, &o.known, out));
    mpk_engine_close(e);
}

/* Texts, and where their vectors go; a wrong text among good ones writes nothing. */
static void test_texts(void **state)
{
    (void)state;
    static const int32_t strange[] = {VOCABULARY}, negative[] = {-1};
    mpk_engine *e = open_engine(2, true);
    float out[2 * SIZE] = {0};
    const mpk_tokens full = {words, CONTEXT};
    const struct {
        mpk_tokens text;
        mpk_status status;
        const char *needle;
    } rows[] = {{{NULL, 1}, MPK_EARG, "text 1 has no tokens"},
                {{words, 0}, MPK_EARG, "text 1 has no tokens"},
                {{words, CONTEXT + 1}, MPK_ELIMIT, "its 65 tokens"},
                {{strange, 1}, MPK_EARG, "vocabulary"},
                {{negative, 1}, MPK_EARG, "vocabulary"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const mpk_tokens texts[] = {full, rows[i].text};
        check_fails(cx, rows[i].status, rows[i].needle, mpk_embed(cx, e, texts, 2, NULL, out));
    }
    check_fails(cx, MPK_EARG, "no texts", mpk_embed(cx, e, NULL, 1, NULL, out));
    check_fails(cx, MPK_EARG, "no texts", mpk_embed(cx, e, &full, 1, NULL, NULL));
    for (int i = 0; i < 2 * SIZE; i++)
        assert_true(out[i] == 0);
    check_ok(cx, mpk_embed(cx, e, NULL, 0, NULL, NULL));
    check_ok(cx, mpk_embed(cx, e, &full, 1, NULL, out));
    mpk_engine_close(e);
}

/* More texts than places: each vector is, bit for bit, that of the text alone, of length 1. */
static void test_many(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    static int32_t tokens[N_TEXTS][CONTEXT];
    static float together[N_TEXTS][SIZE], alone[SIZE];
    mpk_tokens texts[N_TEXTS];
    mpk_engine *e = open_engine(1 + (uint32_t)(seed % 4), true);
    for (uint64_t i = 0; i < N_TEXTS; i++) {
        texts[i] = (mpk_tokens){tokens[i], 1 + (size_t)(rng_u64(seed, i) % CONTEXT)};
        for (size_t k = 0; k < texts[i].n; k++)
            tokens[i][k] = (int32_t)(rng_u64(seed + 1 + i, k) % VOCABULARY);
    }
    for (int mean = 0; mean < 2; mean++) {
        const mpk_embed_options o = {.size = sizeof o,
                                     .pooling = mean ? MPK_POOL_MEAN : MPK_POOL_LAST};
        check_ok(cx, mpk_embed(cx, e, texts, N_TEXTS, &o, together[0]));
        for (int i = 0; i < N_TEXTS; i++) {
            double length = 0;
            check_ok(cx, mpk_embed(cx, e, &texts[i], 1, &o, alone));
            assert_memory_equal(together[i], alone, sizeof alone);
            for (int k = 0; k < SIZE; k++)
                length += (double)alone[k] * alone[k];
            assert_true(fabs(length - 1) < 1e-5);
        }
    }
    mpk_engine_close(e);
}

/* A text of more hidden states than wait to be pooled at a time goes alone, and is not kept
 * waiting for ever.  Sanitizers would take long. */
static void test_long(void **state)
{
    (void)state;
    if (CHECK_SHARE != 1)
        skip();
    const uint64_t seed = check_seed();
    enum { N = (1 << 14) + 1 };
    static int32_t tokens[N];
    static float together[3][SIZE], alone[SIZE];
    for (uint64_t i = 0; i < N; i++)
        tokens[i] = (int32_t)(rng_u64(seed, i) % VOCABULARY);
    const mpk_tokens texts[] = {{tokens, 2}, {tokens, N}, {tokens + 3, 5}};
    const mpk_embed_options o = {.size = sizeof o, .pooling = MPK_POOL_MEAN};
    mpk_engine *e = open_for(LONG_CONTEXT, 2, true);
    check_ok(cx, mpk_embed(cx, e, texts, 3, &o, together[0]));
    for (int i = 0; i < 3; i += 2) {
        check_ok(cx, mpk_embed(cx, e, &texts[i], 1, &o, alone));
        assert_memory_equal(together[i], alone, sizeof alone);
    }
    mpk_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options), cmocka_unit_test(test_newer_options),
        cmocka_unit_test(test_texts),   cmocka_unit_test(test_many),
        cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, set_up, config_folder_remove);
}
