/* engine_form_test.c - answers of a given form, through the public API: each is of its form, alone
 * and beside others; forms are shared, forgotten and given back while requests run.
 *
 * The model is made up and so is its vocabulary (engine_letters.c), which has a token for each
 * byte: without masks a text of such a form would not come by chance.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "check.h"
#include "config_folder.h"

enum { N_REQUESTS = 12, MAX_TEXT = 64 };

static const char config[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_size\": 48, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 16, \"intermediate_size\": 72, \"vocab_size\": 400, "
    "\"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "
    "\"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"attention_bias\": false, "
    "\"torch_dtype\": \"bfloat16\", \"bos_token_id\": 300, \"eos_token_id\": 301}";

/* A folder with a small configuration; weights are random, so answers are arbitrary but for
 * their form. */
static int set_up(void **state)
{
    (void)state;
    return config_folder_make("mpk_form_test", config);
}

/* Two threads and random weights: which token is drawn depends on the seeds alone. */
static mpk_engine *open_engine(uint32_t batch)
{
    const mpk_engine_options o = {.size = sizeof o,
                                  .device = "cpu",
                                  .threads = 2,
                                  .max_batch = batch,
                                  .step_tokens = 32,
                                  .context_tokens = 128,
                                  .random_weights = true,
                                  .random_seed = 5};
    mpk_engine *e = NULL;
    check_ok(cx, mpk_engine_open(cx, folder, &o, &e));
    return e;
}

/* A prompt of two random tokens, and an answer that is drawn at temperature 1, so that only the
 * form makes it regular. */
static mpk_request *submit(mpk_engine *e, mpk_form form, const char *source, uint64_t seed)
{
    const int32_t prompt[] = {(int32_t)(rng_u64(seed, 0) % 256) + 1,
                              (int32_t)(rng_u64(seed, 1) % 256) + 1};
    mpk_request *r = NULL;
    const mpk_request_options o = {.size = sizeof o,
                                   .max_tokens = 40,
                                   .temperature = 1,
                                   .seed = seed,
                                   .form = form,
                                   .form_source = source};
    check_ok(cx, mpk_submit_tokens(cx, e, prompt, 2, &o, &r));
    return r;
}

/* The answer's text, of a request that the form has ended. */
static void read_text(mpk_request *r, char text[MAX_TEXT])
{
    mpk_answer a;
    check_ok(cx, mpk_request_wait(cx, r, &a));
    assert_int_equal(a.finish, MPK_FINISH_STOP);
    assert_true(a.n_bytes < MAX_TEXT);
    memcpy(text, a.text, a.n_bytes);
    text[a.n_bytes] = 0;
}

/* [0-9]{3,9}x */
static bool is_number(const char *text)
{
    size_t n = 0;
    while (isdigit((unsigned char)text[n]))
        n++;
    return n >= 3 && n <= 9 && strcmp(text + n, "x") == 0;
}

/* The texts that the form of odd requests allows. */
static bool is_choice(const char *text)
{
    return strcmp(text, "yes") == 0 || strcmp(text, "no") == 0 || strcmp(text, "maybe") == 0;
}

/* Request i of a run: numbers and choices by turns. */
static mpk_request *submit_one(mpk_engine *e, uint32_t i, uint64_t seed)
{
    if (i % 2)
        return submit(e, MPK_FORM_CHOICE, "[\"yes\", \"no\", \"maybe\"]", seed + i);
    return submit(e, MPK_FORM_REGEX, "[0-9]{3,9}x", seed + i);
}

/* Answers under forms are the same alone and beside others, whose masks are made by the same
 * thread at the same time. */
static void test_alone_and_together(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    char alone[N_REQUESTS][MAX_TEXT], text[MAX_TEXT];
    mpk_request *requests[N_REQUESTS];
    mpk_engine *e = open_engine(4);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        mpk_request *r = submit_one(e, i, seed);
        read_text(r, alone[i]);
        mpk_request_free(r);
        assert_true(i % 2 ? is_choice(alone[i]) : is_number(alone[i]));
    }
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        requests[i] = submit_one(e, i, seed);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        read_text(requests[i], text);
        assert_string_equal(text, alone[i]);
        mpk_request_free(requests[i]);
    }
    mpk_engine_close(e);
}

/* A request that is freed at once ends while its form is being followed; those that share the form
 * go on. */
static void test_freed_while_it_runs(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    char text[MAX_TEXT];
    mpk_engine *e = open_engine(4);
    for (uint32_t i = 0; i < 3 * N_REQUESTS; i += 2) {
        mpk_request *gone = submit_one(e, i, seed), *stays = submit_one(e, i, seed + 1);
        mpk_piece piece;
        if (i % 4)
            check_ok(cx, mpk_request_read(cx, gone, -1, &piece));
        mpk_request_free(gone);
        read_text(stays, text);
        assert_true(is_number(text));
        mpk_request_free(stays);
    }
    mpk_engine_close(e);
}

/* More forms than are kept (KEPT_GRAMMARS), while the first of them is in use. */
static void test_many_forms(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    char text[MAX_TEXT], source[MAX_TEXT], wanted[MAX_TEXT];
    mpk_engine *e = open_engine(2);
    mpk_request *first = submit(e, MPK_FORM_REGEX, "[0-9]{30}", seed);
    for (int i = 0; i < 80; i++) {
        snprintf(wanted, sizeof wanted, "a%d", i % 50);
        snprintf(source, sizeof source, "[\"a%d\"]", i % 50);
        mpk_request *r = submit(e, MPK_FORM_CHOICE, source, seed + (uint64_t)i);
        read_text(r, text);
        assert_string_equal(text, wanted);
        mpk_request_free(r);
    }
    read_text(first, text);
    assert_int_equal(strspn(text, "0123456789"), 30);
    mpk_request_free(first);
    mpk_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone_and_together),
        cmocka_unit_test(test_freed_while_it_runs),
        cmocka_unit_test(test_many_forms),
    };
    return cmocka_run_group_tests(tests, set_up, config_folder_remove);
}
