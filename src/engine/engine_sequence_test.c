/* engine_sequence_test.c - sequences beside requests that share pages: whatever others have left in
 * the cache, a sequence's logits are those that it has in an engine of its own.  And how many
 * tokens may end a request.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "check.h"
#include "config_folder.h"

enum { VOCABULARY = 100, CONTEXT = 1024, UNIT = 64 };

static const char config[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_size\": 32, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
    "\"head_dim\": 16, \"intermediate_size\": 40, \"vocab_size\": 100, "
    "\"max_position_embeddings\": 1024, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "
    "\"hidden_act\": \"silu\", \"tie_word_embeddings\": true, \"attention_bias\": false, "
    "\"torch_dtype\": \"bfloat16\", \"bos_token_id\": 1, \"eos_token_id\": 2}";

static int set_up(void **state)
{
    (void)state;
    return config_folder_make("mpk_sequence_test", config);
}

/* One place, so that each request runs where the one before it ran. */
static mpk_engine *open_engine(void)
{
    const mpk_engine_options o = {.size = sizeof o,
                                  .device = "cpu",
                                  .threads = 2,
                                  .max_batch = 1,
                                  .step_tokens = 64,
                                  .context_tokens = CONTEXT,
                                  .random_weights = true,
                                  .random_seed = 5};
    mpk_engine *e = NULL;
    check_ok(cx, mpk_engine_open(cx, folder, &o, &e));
    return e;
}

/* The logits of the last token of a text that is fed in two parts. */
static void feed(mpk_engine *e, const int32_t *text, size_t first, size_t n, float *logits)
{
    mpk_sequence *s = NULL;
    check_ok(cx, mpk_sequence_open(cx, e, false, &s));
    check_ok(cx, mpk_sequence_feed(cx, s, text, first, logits));
    check_ok(cx, mpk_sequence_feed(cx, s, text + first, n - first, logits));
    mpk_sequence_close(s);
}

/* The request keeps its text for its penalties. */
static void run(mpk_engine *e, const int32_t *text, size_t n)
{
    mpk_request *r = NULL;
    mpk_answer a = {0};
    const mpk_request_options o = {
        .size = sizeof o, .max_tokens = 1, .repetition_penalty = 1.5f, .ignore_eos = true};
    check_ok(cx, mpk_submit_tokens(cx, e, text, n, &o, &r));
    check_ok(cx, mpk_request_wait(cx, r, &a));
    mpk_request_free(r);
}

/* A request leaves pages of a text that begins as the sequence does, and goes on otherwise: what is
 * appended to the sequence must not be taken for that text. */
static void test_appended_text_takes_no_pages(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    for (uint64_t round = 0; round < 4; round++) {
        const size_t first = UNIT * (1 + (size_t)(rng_u64(seed, round) % 3)),
                     n = first + 2 * UNIT + 1 + (size_t)(rng_u64(seed, 10 + round) % UNIT);
        static int32_t text[CONTEXT], other[CONTEXT];
        float alone[VOCABULARY], after[VOCABULARY];
        for (size_t i = 0; i < n; i++) {
            text[i] = (int32_t)(rng_u64(seed + round, 100 + i) % VOCABULARY);
            other[i] = i < first ? text[i] : (text[i] + 1) % VOCABULARY;
        }
        mpk_engine *e = open_engine();
        feed(e, text, first, n, alone);
        mpk_engine_close(e);
        e = open_engine();
        run(e, other, n);
        feed(e, text, first, n, after);
        assert_memory_equal(alone, after, sizeof alone);
        mpk_engine_close(e);
    }
}

/* A request ends at up to 16 tokens; one more is refused. */
static void test_most_stop_tokens(void **state)
{
    enum { MOST = 16 };
    const int32_t text[] = {1, 5};
    int32_t stops[MOST + 1];
    (void)state;
    for (int i = 0; i <= MOST; i++)
        stops[i] = 20 + i;
    mpk_request_options o = {.size = sizeof o,
                             .max_tokens = 1,
                             .ignore_eos = true,
                             .stop_tokens = stops,
                             .n_stop_tokens = MOST};
    mpk_engine *e = open_engine();
    mpk_request *r = NULL;
    check_ok(cx, mpk_submit_tokens(cx, e, text, 2, &o, &r));
    mpk_request_free(r);
    o.n_stop_tokens++;
    check_fails(cx, MPK_ELIMIT, "more than 16 tokens end the answer",
                mpk_submit_tokens(cx, e, text, 2, &o, &r));
    mpk_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_appended_text_takes_no_pages),
        cmocka_unit_test(test_most_stop_tokens),
    };
    return cmocka_run_group_tests(tests, set_up, config_folder_remove);
}
