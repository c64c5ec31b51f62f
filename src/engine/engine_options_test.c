/* engine_options_test.c - every option has its bounds: the last value that is allowed passes, the
 * next one is refused by name; a struct of another version is read as far as both sides know it.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "check.h"
#include "engine/engine.h"
#include "engine/engine_request.h"
#include "op/rules.h"

static mpk_context cx;

/* The options as a caller of this version gives them: `size` is set, all else as in the test. */
static mpk_status read_engine(mpk_engine_options o)
{
    arena a = {0};
    mpk_engine_options to;
    o.size = sizeof o;
    mpk_status status = engine_read_options(&cx, &a, &o, &to);
    arena_free(&a);
    return status;
}

static mpk_status read_quantize(mpk_quantize_options o)
{
    arena a = {0};
    mpk_quantize_options to;
    o.size = sizeof o;
    mpk_status status = engine_read_quantize_options(&cx, &a, &o, &to);
    arena_free(&a);
    return status;
}

static mpk_status read_request(mpk_request_options o)
{
    mpk_request_options to;
    o.size = sizeof o;
    return engine_read_request_options(&cx, &o, &to);
}

#define engine_takes(...) check_ok(&cx, read_engine((mpk_engine_options){__VA_ARGS__}))
#define engine_refuses(needle, ...) \
    check_fails(&cx, MPK_EARG, needle, read_engine((mpk_engine_options){__VA_ARGS__}))
#define quantize_takes(...) check_ok(&cx, read_quantize((mpk_quantize_options){__VA_ARGS__}))
#define quantize_refuses(needle, ...) \
    check_fails(&cx, MPK_EARG, needle, read_quantize((mpk_quantize_options){__VA_ARGS__}))
#define request_takes(...) check_ok(&cx, read_request((mpk_request_options){__VA_ARGS__}))
#define request_refuses(needle, ...) \
    check_fails(&cx, MPK_EARG, needle, read_request((mpk_request_options){__VA_ARGS__}))

/* Each count at its largest value, and one beyond it. The message names the field. */
static void test_engine_counts(void **state)
{
    (void)state;
    engine_takes(0);
    engine_takes(.threads = RT_MAX_WORKERS);
    engine_refuses("threads", .threads = RT_MAX_WORKERS + 1);
    engine_takes(.gpus = IR_MAX_PEERS);
    engine_refuses("gpus", .gpus = IR_MAX_PEERS + 1);
    engine_takes(.embeddings = 1);
    engine_refuses("embeddings", .embeddings = 2);
    engine_takes(.gpus = 2, .own_experts = 1);
    engine_refuses("own_experts is 2", .gpus = 2, .own_experts = 2);
    engine_refuses("but gpus is 1", .own_experts = 1);
    engine_refuses("but gpus is 1", .gpus = 1, .own_experts = 1);
    engine_takes(.drafts_apart = 1);
    engine_refuses("drafts_apart", .drafts_apart = 2);
    engine_takes(.keep_blocks = MPK_BLOCKS_UNPACK);
    engine_refuses("keep_blocks", .keep_blocks = (mpk_blocks)3);
    engine_takes(.random_weights = true, .random_mix = "q4_k_m");
    engine_refuses("random_mix", .random_mix = "q4_k_m");
    const mpk_adapter adapters[] = {{"a", -0.5f}, {"b", 0}}, nameless = {.scale = 1},
                      endless = {"a", INFINITY};
    engine_takes(.adapters = adapters, .n_adapters = 2);
    engine_takes(.adapters = adapters);
    engine_refuses("adapters should have 1 items", .n_adapters = 1);
    engine_refuses("n_adapters is 65", .adapters = adapters, .n_adapters = 65);
    engine_refuses("adapter 1 has no path", .adapters = &nameless, .n_adapters = 1);
    engine_refuses("the scale of the adapter a is inf", .adapters = &endless, .n_adapters = 1);
    engine_refuses("the weights are random", .adapters = adapters, .n_adapters = 1,
                   .random_weights = true);
    engine_takes(.count_experts = 1);
    engine_refuses("count_experts", .count_experts = 2);
    engine_takes(.max_batch = ENGINE_MAX_BATCH);
    engine_refuses("max_batch", .max_batch = ENGINE_MAX_BATCH + 1);
    engine_takes(.step_tokens = ENGINE_MAX_STEP);
    engine_refuses("step_tokens", .step_tokens = 2 * ENGINE_MAX_STEP);
    engine_refuses("step_tokens", .step_tokens = ENGINE_MAX_STEP - 1);
    engine_refuses("step_tokens", .step_tokens = 3);
    engine_takes(.draft_tokens = ENGINE_MAX_DRAFTS);
    engine_refuses("draft_tokens", .draft_tokens = ENGINE_MAX_DRAFTS + 1);
    engine_takes(.draft_ngram = ENGINE_MAX_NGRAM);
    engine_refuses("draft_ngram", .draft_ngram = ENGINE_MAX_NGRAM + 1);
}

/* A type is needed; a text is there if it has bytes, and as many workers may read it as run. */
static void test_quantize_options(void **state)
{
    (void)state;
    quantize_takes(.type = "q8_0");
    quantize_refuses("adapters should have 2 items", .type = "q8_0", .n_adapters = 2);
    quantize_refuses("type is NULL", .threads = 1);
    quantize_takes(.type = "q8_0", .calibration = "text", .calibration_bytes = 4);
    quantize_refuses("calibration is NULL, and calibration_bytes is 4", .type = "q8_0",
                     .calibration_bytes = 4);
    quantize_takes(.type = "q8_0", .threads = ENGINE_MAX_BATCH);
    quantize_refuses("threads", .type = "q8_0", .threads = ENGINE_MAX_BATCH + 1);
}

/* The last value of each enumeration is taken, the one after it refused. */
static void test_engine_choices(void **state)
{
    (void)state;
    static const mpk_dtype caches[] = {MPK_F32, MPK_F16, MPK_BF16, MPK_Q8_0};
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++)
        engine_takes(.kv_dtype = caches[i]);
    engine_refuses("dtype of the KV cache", .kv_dtype = MPK_I32);
    engine_takes(.fusion = MPK_FUSION_NONE);
    engine_refuses("fusion", .fusion = MPK_FUSION_NONE + 1);
    engine_refuses("fusion", .fusion = (mpk_fusion)-1);
    engine_takes(.launch = MPK_LAUNCH_JIT);
    engine_refuses("launch", .launch = MPK_LAUNCH_JIT + 1);
    engine_takes(.mode = MPK_MODE_CALLS);
    engine_refuses("mode", .mode = MPK_MODE_CALLS + 1);
    engine_takes(.activations = MPK_ACTIVATIONS_I8);
    engine_refuses("activations", .activations = MPK_ACTIVATIONS_I8 + 1);
    engine_takes(.speculation = MPK_SPECULATION_NGRAM);
    engine_refuses("speculation", .speculation = MPK_SPECULATION_NGRAM + 1);
}

/* Options that only make sense together. */
static void test_engine_pairs(void **state)
{
    (void)state;
    for (mpk_launch launch = MPK_LAUNCH_AUTO; launch <= MPK_LAUNCH_JIT; launch++) {
        engine_takes(.launch = launch);
        if (launch == MPK_LAUNCH_AUTO || launch == MPK_LAUNCH_AOT)
            engine_takes(.launch = launch, .gpus = 2);
        else
            engine_refuses("ahead of time", .launch = launch, .gpus = 2);
    }
    for (mpk_mode mode = 0; mode <= MPK_MODE_CALLS; mode++)
        if (mode == MPK_MODE_KERNEL || mode == MPK_MODE_CALLS)
            engine_takes(.mode = mode, .profile = 1);
        else
            engine_refuses("profile", .mode = mode, .profile = 1);
    engine_takes(.meet = "m", .gpus = 2, .rank = 1);
    engine_refuses("rank is 2, expected 0 to 1", .meet = "m", .gpus = 2, .rank = 2);
    engine_refuses("gpus is 1", .meet = "m", .gpus = 1);
    engine_refuses("set meet", .gpus = 2, .rank = 1);
    engine_refuses("set meet", .gpus = 2, .meet_seconds = 1);
    engine_takes(.degrees = (mpk_degree[]){{.match = "x", .degree = 1}}, .n_degrees = 1);
    engine_refuses("degree 0", .degrees = (mpk_degree[]){{.match = "x"}}, .n_degrees = 1);
    engine_refuses("degree 0", .degrees = (mpk_degree[]){{.degree = 1}}, .n_degrees = 1);
    engine_refuses("degree 0", .degrees = (mpk_degree[]){{.degree = 1}}, .n_degrees = 1);
}

/* A number from `low` to `high`: both ends are taken, their neighbours and NaN are not. */
#define check_range(field, low, high)                                   \
    do {                                                                \
        request_takes(.field = (low));                                  \
        request_takes(.field = (high));                                 \
        request_refuses(#field, .field = nextafterf((low), -INFINITY)); \
        request_refuses(#field, .field = nextafterf((high), INFINITY)); \
        request_refuses(#field, .field = NAN);                          \
    } while (0)

/* Ends of each range are taken; the numbers next to them, infinities and NaN are not. */
static void test_request_ranges(void **state)
{
    (void)state;
    request_takes(0);
    check_range(temperature, 0.0f, 1e6f);
    check_range(top_p, 0.0f, 1.0f);
    check_range(min_p, 0.0f, 1.0f);
    check_range(repetition_penalty, 0.0f, 1e6f);
    check_range(presence_penalty, -1e6f, 1e6f);
    check_range(frequency_penalty, -1e6f, 1e6f);
    check_range(top_n_sigma, 0.0f, 1e6f);
    check_range(typical_p, 0.0f, 1.0f);
    request_takes(.top_k = INT32_MAX);
    request_refuses("top_k", .top_k = (uint32_t)INT32_MAX + 1);
    request_takes(.top_logprobs = LOGPROBS_TOP);
    request_refuses("top_logprobs", .top_logprobs = LOGPROBS_TOP + 1);
    request_takes(.draft_tokens = -1);
    request_refuses("draft_tokens", .draft_tokens = -2);
    request_takes(.draft_tokens = ENGINE_MAX_DRAFTS);
    request_refuses("draft_tokens", .draft_tokens = ENGINE_MAX_DRAFTS + 1);
}

/* Lists are checked entry by entry, and the message counts from 1. Texts must be whole UTF-8 and
 * not empty. */
static void test_request_lists(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "\xc3\xa9"}, *const empty[] = {"a", ""},
                             *const cut[] = {"a", "\xa9"}, *const none[] = {"a", NULL};
    mpk_token_bias bias = {.token = 7, .bias = -INFINITY};
    request_refuses("stop should have 1", .n_stop = 1);
    request_refuses("biases should have 2", .n_biases = 2);
    request_refuses("allowed_tokens should", .n_allowed = 1);
    request_refuses("bad_words should", .n_bad_words = 1);
    request_refuses("stop_tokens should", .n_stop_tokens = 1);
    request_takes(.biases = &bias, .n_biases = 1);
    bias.bias = nextafterf(1e6f, 0);
    request_takes(.biases = &bias, .n_biases = 1);
    bias.bias = 1e6f;
    request_refuses("token 7", .biases = &bias, .n_biases = 1);
    bias.bias = NAN;
    request_refuses("token 7", .biases = &bias, .n_biases = 1);
    request_takes(.bad_words = good, .n_bad_words = 2);
    request_refuses("bad word 2", .bad_words = empty, .n_bad_words = 2);
    request_refuses("bad word 2", .bad_words = none, .n_bad_words = 2);
    request_takes(.stop = good, .n_stop = 2);
    request_refuses("stop text 2", .stop = empty, .n_stop = 2);
    request_refuses("stop text 2", .stop = cut, .n_stop = 2);
    request_refuses("stop text 2", .stop = none, .n_stop = 2);
}

/* A form needs its source, and an answer with a form must be able to end. */
static void test_request_forms(void **state)
{
    (void)state;
    request_takes(.form = MPK_FORM_JSON_OBJECT);
    request_refuses("form_source", .form = MPK_FORM_JSON_OBJECT + 1);
    request_takes(.form = MPK_FORM_STRUCTURAL_TAG, .form_source = "{}");
    request_refuses("form", .form = MPK_FORM_STRUCTURAL_TAG + 1, .form_source = "{}");
    request_takes(.ignore_eos = true);
    request_refuses("ignore_eos", .form = MPK_FORM_JSON_OBJECT, .ignore_eos = true);
}

/* A shorter struct lacks its last fields, which are then 0; a longer one may not ask for more. */
static void test_sizes(void **state)
{
    (void)state;
    struct {
        mpk_request_options known;
        char more[8];
    } newer = {.known = {.size = sizeof newer, .top_k = 5}};
    mpk_request_options to,
        from = {.size = offsetof(mpk_request_options, min_p), .top_k = 5, .min_p = 0.5f};
    check_ok(&cx, engine_read_request_options(&cx, &newer.known, &to));
    assert_int_equal(to.size, sizeof to);
    assert_int_equal(to.top_k, 5);
    newer.more[7] = 1;
    check_fails(&cx, MPK_EUNSUPPORTED, "build against its headers",
                engine_read_request_options(&cx, &newer.known, &to));
    check_ok(&cx, engine_read_request_options(&cx, &from, &to));
    assert_int_equal(to.top_k, 5);
    assert_true(to.min_p == 0);
    from.size = offsetof(mpk_request_options, temperature) - 1;
    check_fails(&cx, MPK_EARG, "sizeof(mpk_request_options)",
                engine_read_request_options(&cx, &from, &to));
    check_ok(&cx, engine_read_request_options(&cx, NULL, &to));
    assert_int_equal(to.size, sizeof to);
    assert_int_equal(to.top_k, 0);
}

/* Options that change nothing make no rules, so that a request can be drafted for; each one that
 * changes something does. */
static void test_rules_only_where_asked(void **state)
{
    (void)state;
    static const struct {
        mpk_request_options options;
        bool has_rules;
    } rows[] = {{{0}, false},
                {{.repetition_penalty = 1, .typical_p = 1}, false},
                {{.temperature = 1, .top_p = 0.5f, .top_k = 3, .min_p = 0.1f}, false},
                {{.repetition_penalty = 1.5f}, true},
                {{.presence_penalty = -1}, true},
                {{.frequency_penalty = 1}, true},
                {{.top_n_sigma = 1}, true},
                {{.typical_p = 0.5f}, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpk_engine e = {0};
        mpk_request r = {.engine = &e, .options = rows[i].options};
        const int32_t *words = NULL;
        uint32_t n = 0;
        check_ok(&cx, engine_make_rules(&cx, &r, &words, &n));
        assert_int_equal(n, rows[i].has_rules ? RULES_LISTS : 0);
        assert_true((words != NULL) == rows[i].has_rules);
        arena_free(&r.arena);
    }
}

/* A caller's options with values that no suggestion has. */
static mpk_request_options suggested(const mpk_engine *e, size_t size)
{
    mpk_request_options o = {.size = size,
                             .temperature = 0.25f,
                             .top_k = 7,
                             .top_p = 0.125f,
                             .min_p = 0.5f,
                             .typical_p = 0.75f,
                             .repetition_penalty = 2};
    mpk_engine_suggest(e, &o);
    return o;
}

static bool is_untouched(const mpk_request_options *o)
{
    return o->temperature == 0.25f && o->top_k == 7 && o->top_p == 0.125f && o->min_p == 0.5f &&
           o->typical_p == 0.75f && o->repetition_penalty == 2;
}

/* What a model's files do not say, or what no request may ask for, leaves the caller's value; what
 * they say is taken, as far as the caller's struct goes. */
static void test_suggestions(void **state)
{
    (void)state;
    const size_t whole = sizeof(mpk_request_options);
    mpk_engine e = {0};
    mpk_request_options o = suggested(&e, whole);
    assert_true(is_untouched(&o));
    e.build.model.suggested.temperature = e.build.model.suggested.repetition_penalty = 2e6f;
    e.build.model.suggested.top_k = -1;
    e.build.model.suggested.top_p = e.build.model.suggested.min_p = 1.5f;
    e.build.model.suggested.typical_p = 1.5f;
    o = suggested(&e, whole);
    assert_true(is_untouched(&o));
    e.build.model.suggested.temperature = e.build.model.suggested.repetition_penalty = 1e6f;
    e.build.model.suggested.top_k = 1;
    e.build.model.suggested.top_p = e.build.model.suggested.min_p = 1;
    e.build.model.suggested.typical_p = 1;
    o = suggested(&e, whole);
    assert_true(o.temperature == 1e6f && o.top_k == 1 && o.top_p == 1 && o.min_p == 1 &&
                o.typical_p == 1 && o.repetition_penalty == 1e6f);
    o = suggested(&e, offsetof(mpk_request_options, top_logprobs));
    assert_true(o.typical_p == 1 && o.repetition_penalty == 1e6f);
    o = suggested(&e, offsetof(mpk_request_options, top_logprobs) - 1);
    assert_true(o.top_k == 1 && o.typical_p == 0.75f && o.repetition_penalty == 2);
    o = suggested(&e, offsetof(mpk_request_options, seed));
    assert_true(o.min_p == 1);
    o = suggested(&e, offsetof(mpk_request_options, seed) - 1);
    assert_true(o.temperature == 0.25f && o.top_k == 7);
}

/* Log probabilities are given of tokens that have come, the prompt's (never its first) once all of
 * it is computed; those asked for the prompt stand first. */
static void test_logprobs_of_what_has_come(void **state)
{
    (void)state;
    mpk_engine e = {0};
    mpk_logprob out[2] = {0};
    host_shares *shares = host_shares_new(12); /* two entries of each token */
    assert_non_null(shares);
    assert_int_equal(pthread_mutex_init(&e.mutex, NULL), 0);
    for (int i = 0; i < 12; i++)
        shares->at[i] = (float)i;
    mpk_request r = {.engine = &e, .n_prompt = 2, .n_logprobs = 2, .shares = shares};
    r.options.prompt_logprobs = 1;
    assert_int_equal(mpk_prompt_logprobs(&r, 1, out, 2), 0);
    r.n_tokens = 1;
    assert_int_equal(mpk_request_logprobs(&r, 0, out, 2), 0); /* none were asked for */
    assert_true(mpk_prompt_logprobs(&r, 1, out, 2) == 2 && out[1].token == 6);
    assert_int_equal(mpk_prompt_logprobs(&r, 0, out, 2) + mpk_prompt_logprobs(&r, 2, out, 2), 0);
    r.options.logprobs = 1;
    assert_true(mpk_request_logprobs(&r, 0, out, 1) == 1 && out[0].token == 8);
    assert_int_equal(mpk_request_logprobs(&r, 1, out, 2), 0);
    r.options.prompt_logprobs = 0;
    assert_true(mpk_request_logprobs(&r, 0, out, 2) == 2 && out[0].token == 0);
    pthread_mutex_destroy(&e.mutex);
    host_shares_drop(shares);
}

/* The thread of forms may end a request that has been freed meanwhile: then nothing happens, also
 * to another one of the same bucket. */
static void test_end_of_what_has_gone(void **state)
{
    (void)state;
    mpk_engine e = {0};
    mpk_request other = {.engine = &e, .id = 1};
    assert_int_equal(pthread_mutex_init(&e.mutex, NULL), 0);
    e.requests[1] = &other;
    engine_end_request(&e, 1 + ENGINE_BUCKETS, MPK_EARG, "of no request");
    engine_end_request(&e, 2, MPK_OK, "");
    assert_int_equal(other.finish, MPK_RUNNING);
    assert_int_equal(other.words.text[0], 0);
    pthread_mutex_destroy(&e.mutex);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_counts),
        cmocka_unit_test(test_engine_choices),
        cmocka_unit_test(test_engine_pairs),
        cmocka_unit_test(test_request_ranges),
        cmocka_unit_test(test_request_lists),
        cmocka_unit_test(test_request_forms),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_rules_only_where_asked),
        cmocka_unit_test(test_suggestions),
        cmocka_unit_test(test_logprobs_of_what_has_come),
        cmocka_unit_test(test_quantize_options),
        cmocka_unit_test(test_end_of_what_has_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
