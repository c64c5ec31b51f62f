/* engine_test.c - the library as a program uses it, over tiny models whose weights are made up.
 *
 * A request gives the same tokens alone, in company, in any order, for any number of threads and
 * any limits; requests wait for room and none is lost; cancelling, closing and wrong use end in
 * what mpk.h promises.
 */
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "check.h"
#include "engine/engine_request.h"
#include "mpk/graph.h"
#include "mpk/mpk.h"

enum { VOCAB = 131, CONTEXT = 192, N_REQUESTS = 12, MAX_PROMPT = 90, MAX_ANSWER = 24 };

static char folder[256];
static mpk_context *cx;

static const char config[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_size\": 48, "
    "\"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, "
    "\"intermediate_size\": 72,"
    " \"vocab_size\": 131, \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-6, "
    "\"rope_theta\": 10000.0,"
    " \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"attention_bias\": false, "
    "\"torch_dtype\": "
    "\"bfloat16\","
    " \"bos_token_id\": 1, \"eos_token_id\": 2}";

static int set_up(void **state)
{
    (void)state;
    char path[300];
    snprintf(folder, sizeof folder, "%s/mpk_engine_test.XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    if (!f || fputs(config, f) == EOF || fclose(f) != 0)
        return 1;
    cx = mpk_context_create();
    return cx == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    char path[300];
    const char *const names[] = {"config.json", "image"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    mpk_context_free(cx);
    return rmdir(folder);
}

static mpk_engine_options options_of(uint32_t threads, uint32_t batch)
{
    return (mpk_engine_options){
        .size = sizeof(mpk_engine_options),
        .threads = threads,
        .max_batch = batch,
        .step_tokens = 32,
        .context_tokens = CONTEXT,
        .random_weights = true,
        .random_seed = 5,
        .verify = true,
    };
}

static mpk_engine *open_with(const mpk_engine_options *o)
{
    mpk_engine *e = NULL;
    check_ok(cx, mpk_engine_open(cx, folder, o, &e));
    return e;
}

static mpk_engine *open_tiny(uint32_t threads, uint32_t batch)
{
    mpk_engine_options o = options_of(threads, batch);
    return open_with(&o);
}

typedef struct question {
    int32_t tokens[MAX_PROMPT];
    size_t n;
    mpk_request_options options;
} question;

typedef struct reply {
    int32_t tokens[MAX_ANSWER];
    size_t n;
    mpk_finish finish;
} reply;

static question question_of(uint64_t seed, uint32_t i)
{
    question q = {.n = 1 + rng_u64(seed, i) % MAX_PROMPT, .options = {.size = sizeof q.options}};
    for (size_t t = 0; t < q.n; t++)
        q.tokens[t] = (int32_t)(rng_u64(seed + i + 1, t) % VOCAB);
    q.options.max_tokens = 1 + (uint32_t)(rng_u64(seed, 100 + i) % MAX_ANSWER);
    q.options.ignore_eos = i % 3 != 0;
    q.options.seed = seed + i;
    if (i % 2) {
        q.options.temperature = 0.5f + 0.25f * (float)(i % 5);
        q.options.top_k = i % 4 == 1 ? 20 : 0;
        q.options.top_p = i % 3 == 1 ? 0.9f : 0;
        q.options.min_p = i % 5 == 1 ? 0.02f : 0;
    }
    return q;
}

static mpk_request *submit(mpk_engine *e, const question *q)
{
    mpk_request *r = NULL;
    check_ok(cx, mpk_submit_tokens(cx, e, q->tokens, q->n, &q->options, &r));
    return r;
}

static reply wait_reply(mpk_request *r)
{
    mpk_answer a = {0};
    reply out = {0};
    check_ok(cx, mpk_request_wait(cx, r, &a));
    assert_true(a.n_tokens <= MAX_ANSWER);
    for (size_t i = 1; i < a.n_tokens; i++)
        assert_true(a.token_ns[i] >= a.token_ns[i - 1]);
    memcpy(out.tokens, a.tokens, a.n_tokens * sizeof *a.tokens);
    out.n = a.n_tokens;
    out.finish = a.finish;
    mpk_request_free(r);
    return out;
}

static void check_same(const reply *expected, const reply *found, uint32_t i)
{
    if (expected->n != found->n || expected->finish != found->finish ||
        memcmp(expected->tokens, found->tokens, expected->n * sizeof(int32_t)) != 0)
        fail_msg("request %u: %zu tokens (%s), expected %zu (%s), or other tokens", i, found->n,
                 mpk_finish_name(found->finish), expected->n, mpk_finish_name(expected->finish));
}

/* All at once, in an order that the seed chooses. */
static void check_together(mpk_engine *e, uint64_t seed, const reply *alone, uint64_t order)
{
    mpk_request *requests[N_REQUESTS];
    uint32_t at[N_REQUESTS];
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        at[i] = i;
    for (uint32_t i = N_REQUESTS - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(rng_u64(order, i) % (i + 1)), kept = at[i];
        at[i] = at[j];
        at[j] = kept;
    }
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        question q = question_of(seed, at[i]);
        requests[at[i]] = submit(e, &q);
    }
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        reply found = wait_reply(requests[i]);
        check_same(&alone[i], &found, i);
    }
}

static void test_company_order_threads(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    reply alone[N_REQUESTS];
    mpk_engine *e = open_tiny(1, 1);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        question q = question_of(seed, i);
        alone[i] = wait_reply(submit(e, &q));
        assert_true(alone[i].n >= 1 && alone[i].n <= q.options.max_tokens);
        assert_true(alone[i].finish == MPK_FINISH_LENGTH ||
                    (alone[i].finish == MPK_FINISH_STOP && !q.options.ignore_eos));
    }
    mpk_engine_close(e);
    const uint32_t shapes[][2] = {{1, 16}, {2, 16}, {3, 4}, {7, 5}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        e = open_tiny(shapes[s][0], shapes[s][1]);
        for (uint64_t order = 0; order < 3; order++)
            check_together(e, seed, alone, seed + order);
        mpk_engine_close(e);
    }
}

/* KV memory for one context only: the others wait, none is lost, and the answers are the same. */
static void test_pages_run_out(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    reply alone[N_REQUESTS];
    mpk_engine *e = open_tiny(2, 8);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        question q = question_of(seed, i);
        alone[i] = wait_reply(submit(e, &q));
    }
    mpk_engine_close(e);
    mpk_engine_options o = options_of(2, 8);
    o.kv_tokens = CONTEXT;
    e = open_with(&o);
    check_together(e, seed, alone, seed);
    mpk_engine_close(e);
}

static void test_launch_and_fusion_change_nothing(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    question q = question_of(seed, 2);
    mpk_engine *e = open_tiny(2, 2);
    reply expected = wait_reply(submit(e, &q));
    mpk_engine_close(e);
    for (int launch = MPK_LAUNCH_AUTO; launch <= MPK_LAUNCH_JIT; launch++)
        for (int fusion = MPK_FUSION_FULL; fusion <= MPK_FUSION_NONE; fusion++) {
            mpk_engine_options o = options_of(3, 2);
            o.launch = (mpk_launch)launch;
            o.fusion = (mpk_fusion)fusion;
            o.coarse_events = fusion == MPK_FUSION_NONE;
            e = open_with(&o);
            reply found = wait_reply(submit(e, &q));
            check_same(&expected, &found, (uint32_t)(launch * 10 + fusion));
            mpk_engine_close(e);
        }
}

static void test_image_runs_the_same(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    char path[300];
    question q = question_of(seed, 1);
    mpk_engine_options o = options_of(2, 4);
    mpk_engine *e = open_with(&o);
    reply expected = wait_reply(submit(e, &q));
    mpk_engine_close(e);
    snprintf(path, sizeof path, "%s/image", folder);
    check_ok(cx, mpk_compile_to_file(cx, folder, &o, path));
    check_ok(cx, mpk_engine_open(cx, path, NULL, &e));
    reply found = wait_reply(submit(e, &q));
    check_same(&expected, &found, 0);
    mpk_engine_close(e);
    o.max_batch--; /* a smaller one is served by the image's */
    check_ok(cx, mpk_engine_open(cx, path, &o, &e));
    found = wait_reply(submit(e, &q));
    check_same(&expected, &found, 1);
    mpk_engine_close(e);
    o.max_batch += 2;
    check_fails(cx, MPK_EARG, "max_batch", mpk_engine_open(cx, path, &o, &e));
    o.max_batch--;
    o.threads = 3;
    check_fails(cx, MPK_EARG, "threads", mpk_engine_open(cx, path, &o, &e));
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 5000, SEEK_SET), 0);
    fputs("damage", f);
    fclose(f);
    check_fails(cx, MPK_EFORMAT, "", mpk_engine_open(cx, path, NULL, &e));
}

static void write_config(const char *source)
{
    char path[300];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(source, f) != EOF);
    assert_int_equal(fclose(f), 0);
}

/* An image does not open if its model would be another program now, though all sizes are the same;
 * what no program depends on may change. */
static void test_image_of_another_program(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        bool same;
    } changes[] = {{"10000.0", "20000.0", false},
                   {"1e-6", "1e-5", false},
                   {"silu", "gelu", false},
                   {"_token_id\": 1", "_token_id\": 0", true}};
    char path[300];
    mpk_engine_options o = options_of(2, 1);
    mpk_engine *e;
    snprintf(path, sizeof path, "%s/image", folder);
    check_ok(cx, mpk_compile_to_file(cx, folder, &o, path));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char source[sizeof config + 8];
        const char *at = strstr(config, changes[i].from);
        snprintf(source, sizeof source, "%.*s%s%s", (int)(at - config), config, changes[i].to,
                 at + strlen(changes[i].from));
        write_config(source);
        mpk_status status = mpk_engine_open(cx, path, NULL, &e);
        write_config(config);
        if (changes[i].same) {
            check_ok(cx, status);
            mpk_engine_close(e);
        } else {
            check_fails(cx, MPK_EARG, "has changed since", status);
        }
    }
}

static void test_cancel(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    mpk_engine *e = open_tiny(2, 2);
    question q = question_of(seed, 4);
    q.n = 3;
    q.options = (mpk_request_options){.size = sizeof q.options, .ignore_eos = true};
    for (int i = 0; i < 20; i++) {
        mpk_request *running = submit(e, &q), *second = submit(e, &q), *waiting = submit(e, &q);
        mpk_piece piece;
        mpk_answer a;
        if (i % 2)
            check_ok(cx, mpk_request_read(cx, running, -1, &piece));
        mpk_request_cancel(waiting);
        mpk_request_cancel(running);
        mpk_request_cancel(running);
        check_ok(cx, mpk_request_wait(cx, running, &a));
        assert_true(a.finish == MPK_FINISH_CANCELLED || a.finish == MPK_FINISH_LENGTH);
        check_ok(cx, mpk_request_wait(cx, waiting, &a));
        assert_true(a.finish == MPK_FINISH_CANCELLED || a.finish == MPK_FINISH_LENGTH);
        mpk_request_free(running);
        mpk_request_free(waiting);
        mpk_request_free(second); /* while it runs */
    }
    q.options.max_tokens = 5;
    reply after = wait_reply(submit(e, &q));
    assert_int_equal(after.n, 5);
    mpk_engine_close(e);
}

typedef struct client {
    mpk_engine *engine;
    uint64_t seed;
    const reply *alone;
    const char *fault;
} client;

static void *ask(void *argument)
{
    client *c = argument;
    mpk_context *own = mpk_context_create();
    for (uint32_t i = 0; i < N_REQUESTS && own && !c->fault; i++) {
        question q = question_of(c->seed, i);
        mpk_request *r = NULL;
        mpk_answer a;
        if (mpk_submit_tokens(own, c->engine, q.tokens, q.n, &q.options, &r) ||
            mpk_request_wait(own, r, &a))
            c->fault = "a request failed";
        else if (a.n_tokens != c->alone[i].n ||
                 memcmp(a.tokens, c->alone[i].tokens, a.n_tokens * sizeof *a.tokens) != 0)
            c->fault = "other tokens";
        mpk_request_free(r);
    }
    mpk_context_free(own);
    return NULL;
}

static void test_many_threads_ask(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    enum { CLIENTS = 6 };
    pthread_t threads[CLIENTS];
    client clients[CLIENTS];
    reply alone[N_REQUESTS];
    mpk_engine *e = open_tiny(2, 4);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        question q = question_of(seed, i);
        alone[i] = wait_reply(submit(e, &q));
    }
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (client){e, seed, alone, NULL};
        assert_int_equal(pthread_create(&threads[i], NULL, ask, &clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < CLIENTS; i++)
        if (clients[i].fault)
            fail_msg("client %d: %s", i, clients[i].fault);
    mpk_engine_close(e);
}

typedef struct guest {
    mpk_engine *engine;
    uint64_t seed;
    atomic_bool *over;
    uint32_t n_begun; /* requests that it has submitted */
    const char *fault;
} guest;

/* Submits requests until `over`, holds the last few in any state, and frees them all at once: some
 * still run then, wait for a slot, or were put back. */
static void *visit(void *argument)
{
    enum { HELD = 5 };
    guest *g = argument;
    mpk_context *own = mpk_context_create();
    mpk_request *held[HELD] = {0};
    for (uint32_t i = 0; own && !g->fault && !atomic_load(g->over); i++, g->n_begun++) {
        mpk_request **r = &held[i % HELD];
        mpk_piece piece;
        mpk_engine_facts facts = {.size = sizeof facts};
        question q = question_of(g->seed + i, i % 50);
        if (i % 3)
            q.options.max_tokens = 0; /* to the end of the context */
        q.options.priority = (int32_t)(i % 2);
        mpk_request_free(*r);
        *r = NULL;
        mpk_engine_describe(g->engine, &facts); /* as others do at the same time */
        if (!strstr(facts.device, "thread"))
            g->fault = "the facts lack the device";
        else if (mpk_submit_tokens(own, g->engine, q.tokens, q.n, &q.options, r))
            g->fault = "a request was refused";
        else if (i % 4 == 1 && mpk_request_read(own, *r, 5, &piece))
            g->fault = "a read failed";
        else if (i % 4 == 2)
            mpk_request_cancel(*r);
        usleep((useconds_t)(rng_u64(g->seed, i) % 3000)); /* so that some grow */
    }
    for (uint32_t i = 0; i < HELD; i++)
        mpk_request_free(held[i]);
    mpk_context_free(own);
    return NULL;
}

/* An engine closes right after its clients have let go of requests that the machine still runs,
 * has put back, or has not seen yet. */
static void test_close_amid_requests(void **state)
{
    (void)state;
    enum { GUESTS = 4 };
    const uint64_t seed = check_seed();
    const uint32_t rounds = check_rounds(12);
    uint32_t put_back = 0, begun = 0;
    for (uint32_t k = 0; k < rounds; k++) {
        mpk_engine_options o = options_of(1 + k % 3, 3);
        o.kv_tokens = CONTEXT + 64; /* far less than three contexts */
        mpk_engine *e = open_with(&o);
        atomic_bool over = false;
        pthread_t threads[GUESTS];
        guest guests[GUESTS];
        for (uint32_t i = 0; i < GUESTS; i++) {
            guests[i] = (guest){e, seed + 1000 * k + 100 * i, &over, 0, NULL};
            assert_int_equal(pthread_create(&threads[i], NULL, visit, &guests[i]), 0);
        }
        usleep((useconds_t)(rng_u64(seed, k) % 60000));
        atomic_store(&over, true);
        for (uint32_t i = 0; i < GUESTS; i++) {
            pthread_join(threads[i], NULL);
            if (guests[i].fault)
                fail_msg("round %u, guest %u: %s", k, i, guests[i].fault);
            begun += guests[i].n_begun;
        }
        mpk_engine_facts facts = {.size = sizeof facts};
        mpk_engine_describe(e, &facts);
        put_back += facts.put_back;
        mpk_engine_close(e);
    }
    /* time decides whether any was put back */
    print_message("%u requests, %u times one was put back\n", begun, put_back);
    assert_true(begun > 0);
}

static int32_t best_of(const float *logits)
{
    int32_t best = 0;
    for (int32_t i = 1; i < VOCAB; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* A greedy sampler of one's own gives what the engine's does, and logits do not depend on how the
 * tokens are fed. */
static void test_sequences(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    static float all[MAX_PROMPT * VOCAB], parts[MAX_PROMPT * VOCAB], last[VOCAB];
    mpk_engine *e = open_tiny(2, 3);
    question q = question_of(seed, 8);
    q.options =
        (mpk_request_options){.size = sizeof q.options, .max_tokens = 10, .ignore_eos = true};
    reply expected = wait_reply(submit(e, &q));
    mpk_sequence *s = NULL, *whole = NULL, *cut = NULL, *more = NULL;
    check_ok(cx, mpk_sequence_open(cx, e, false, &s));
    check_ok(cx, mpk_sequence_feed(cx, s, q.tokens, q.n, last));
    for (size_t i = 0; i < expected.n; i++) {
        int32_t token = best_of(last);
        assert_int_equal(token, expected.tokens[i]);
        check_ok(cx, mpk_sequence_feed(cx, s, &token, 1, last));
    }
    assert_int_equal(mpk_sequence_length(s), q.n + expected.n);
    check_ok(cx, mpk_sequence_open(cx, e, true, &whole));
    check_ok(cx, mpk_sequence_open(cx, e, true, &cut));
    check_fails(cx, MPK_ELIMIT, "max_batch", mpk_sequence_open(cx, e, true, &more));
    check_ok(cx, mpk_sequence_feed(cx, whole, q.tokens, q.n, all));
    for (size_t at = 0; at < q.n;) {
        size_t n = 1 + rng_u64(seed, 500 + at) % 13;
        n = n < q.n - at ? n : q.n - at;
        check_ok(cx, mpk_sequence_feed(cx, cut, q.tokens + at, n, parts + at * VOCAB));
        at += n;
    }
    assert_memory_equal(all, parts, q.n * VOCAB * sizeof(float));
    assert_true(isfinite(all[0]));
    check_fails(cx, MPK_EARG, "131", mpk_sequence_feed(cx, cut, &(int32_t){VOCAB}, 1, last));
    while (mpk_sequence_length(s) < CONTEXT)
        check_ok(cx, mpk_sequence_feed(cx, s, q.tokens, 1, last));
    check_fails(cx, MPK_ELIMIT, "context", mpk_sequence_feed(cx, s, q.tokens, 1, last));
    mpk_sequence_close(s);
    mpk_sequence_close(whole);
    mpk_sequence_close(cut);
    mpk_engine_close(e);
}

static void test_routing_of_no_mixture(void **state)
{
    (void)state;
    mpk_engine_options o = options_of(1, 1);
    o.count_experts = 1;
    mpk_engine *e = open_with(&o);
    mpk_routing routing = {.size = 3};
    check_fails(cx, MPK_EARG, "mpk_routing", mpk_engine_routing(cx, e, 1, &routing));
    routing.size = sizeof routing.size; /* of the first version */
    check_ok(cx, mpk_engine_routing(cx, e, 32, &routing));
    routing.size = sizeof routing;
    check_fails(cx, MPK_EARG, "1 to 32 tokens", mpk_engine_routing(cx, e, 33, &routing));
    check_fails(cx, MPK_EARG, "1 to 32 tokens", mpk_engine_routing(cx, e, 0, &routing));
    check_ok(cx, mpk_engine_routing(cx, e, 1, &routing));
    assert_int_equal(routing.layers, 0);
    assert_int_equal(routing.size, sizeof routing);
    mpk_engine_close(e);
    o.random_routing = MPK_ROUTING_EVEN;
    check_fails(cx, MPK_EARG, "mixtures of experts", mpk_inspect(cx, folder, &o, 1, NULL));
    o.random_weights = false;
    check_fails(cx, MPK_EARG, "ask for random_weights", mpk_inspect(cx, folder, &o, 1, NULL));
}

static void test_wrong_use(void **state)
{
    (void)state;
    mpk_engine *e = NULL;
    mpk_request *r = NULL;
    mpk_engine_options o = options_of(1, 1);
    o.size = 3;
    check_fails(cx, MPK_EARG, "size", mpk_engine_open(cx, folder, &o, &e));
    o = options_of(1, 1);
    o.random_weights = false;
    check_fails(cx, MPK_EARG, "weights", mpk_engine_open(cx, folder, &o, &e));
    o = options_of(1, 1);
    o.step_tokens = 48;
    check_fails(cx, MPK_EARG, "power of two", mpk_engine_open(cx, folder, &o, &e));
    o = options_of(1, 1);
    o.device = "cpu";
    o.mode = MPK_MODE_GRAPH;
    check_fails(cx, MPK_EARG, "for a GPU", mpk_engine_open(cx, folder, &o, &e));
    o.profile = 1;
    check_fails(cx, MPK_EARG, "one kernel", mpk_engine_open(cx, folder, &o, &e));
    o = options_of(1, 1);
    o.context_tokens = 1000;
    check_fails(cx, MPK_ELIMIT, "512", mpk_engine_open(cx, folder, &o, &e));
    struct {
        mpk_engine_options known;
        uint64_t unknown;
    } newer = {options_of(1, 1), 1};
    newer.known.size = sizeof newer;
    check_fails(cx, MPK_EUNSUPPORTED, "version", mpk_engine_open(cx, folder, &newer.known, &e));
    newer.unknown = 0;
    e = open_with(&newer.known);
    char *json;
    check_fails(cx, MPK_EARG, "not opened with a profile", mpk_engine_profile(cx, e, 1, &json));
    mpk_routing routing = {.size = sizeof routing};
    check_fails(cx, MPK_EARG, "count_experts", mpk_engine_routing(cx, e, 1, &routing));
    int32_t tokens[CONTEXT + 1] = {1, 2, -4};
    check_fails(cx, MPK_EARG, "empty", mpk_submit_tokens(cx, e, tokens, 0, NULL, &r));
    check_fails(cx, MPK_EARG, "-4", mpk_submit_tokens(cx, e, tokens, 3, NULL, &r));
    check_fails(cx, MPK_ELIMIT, "193", mpk_submit_tokens(cx, e, tokens, CONTEXT + 1, NULL, &r));
    tokens[2] = 3;
    check_fails(cx, MPK_ELIMIT, "no room for an answer",
                mpk_submit_tokens(cx, e, tokens, CONTEXT, NULL, &r));
    mpk_request_options many = {.size = sizeof many, .max_tokens = CONTEXT};
    check_fails(cx, MPK_ELIMIT, "context", mpk_submit_tokens(cx, e, tokens, 2, &many, &r));
    mpk_request_options hot = {.size = sizeof hot, .temperature = NAN};
    check_fails(cx, MPK_EARG, "temperature", mpk_submit_tokens(cx, e, tokens, 2, &hot, &r));
    check_fails(cx, MPK_EUNSUPPORTED, "tokenizer", mpk_submit_text(cx, e, "text", 4, NULL, &r));
    assert_null(mpk_engine_tokenizer(e));
    e->failure = MPK_ESTALLED; /* as the collector notes it */
    strcpy(e->failure_words, "worker 7 waits");
    check_fails(cx, MPK_ESTALLED, "the engine has failed: worker 7 waits",
                mpk_submit_tokens(cx, e, tokens, 2, NULL, &r));
    mpk_engine_close(e);
    const char *const words = "tests/corpus/gguf/vocab.gguf";
    o = options_of(1, 1);
    check_fails(cx, MPK_EUNSUPPORTED, "vocabulary alone", mpk_engine_open(cx, words, &o, &e));
    check_fails(cx, MPK_EUNSUPPORTED, "vocabulary alone",
                mpk_print_program(cx, words, &o, 1, &json));
    o.draft_model = words;
    check_fails(cx, MPK_EARG, "a vocabulary alone", mpk_engine_open(cx, folder, &o, &e));
    check_fails(cx, MPK_EIO, "", mpk_engine_open(cx, "/nowhere/at/all", NULL, &e));
}

static bool give_up(void *user, const char *stage, double done)
{
    (void)stage;
    (void)done;
    return ++*(int *)user < 3;
}

static void test_progress_can_stop(void **state)
{
    (void)state;
    int calls = 0;
    mpk_engine *e = NULL;
    mpk_engine_options o = options_of(1, 1);
    o.progress = give_up;
    o.progress_user = &calls;
    check_fails(cx, MPK_ECANCELLED, "", mpk_engine_open(cx, folder, &o, &e));
    assert_int_equal(calls, 3);
}

/* Tasks on the caller's thread do not round as the caller does, who keeps its rounding. */
static void check_rounding(const mpk_graph *g, const mpk_binding *w, mpk_binding *bindings)
{
    const mpk_engine_options alone = {.size = sizeof alone, .threads = 1};
    float *x = bindings[0].data, *y = bindings[1].data;
    mpk_program *p;
    check_ok(cx, mpk_program_compile(cx, g, 1, w, &alone, &p));
    x[0] = 1e-8f; /* rounded up, 1 + x[0] is greater than 1 */
    assert_int_equal(fesetround(FE_UPWARD), 0);
    check_ok(cx, mpk_program_run(cx, p, 2, bindings));
    assert_int_equal(fegetround(), FE_UPWARD);
    assert_int_equal(fesetround(FE_TONEAREST), 0);
    assert_true(y[0] == 1.0f);
    mpk_program_close(p);
}

/* A transposed view as output, a state that counts the runs. */
static void test_graph_by_hand(void **state)
{
    (void)state;
    float x[6] = {1, 2, 3, 4, 5, 6}, y[6] = {0};
    _Alignas(16) float one[6] = {1, 1, 1, 1, 1, 1};
    static const float still[6] = {0}; /* nothing is written to an input */
    const int64_t dims[] = {2, 3}, perm[] = {1, 0};
    mpk_graph *g = NULL, *again = NULL;
    mpk_program *p = NULL;
    mpk_tensor tx, tw, t;
    char *source = NULL, *second = NULL;
    mpk_attribute order = mpk_ints("perm", perm, 2);
    check_ok(cx, mpk_graph_create(cx, "by_hand", &g));
    check_ok(cx, mpk_graph_tensor(cx, g, MPK_TENSOR_INPUT, "x", MPK_F32, 2, dims, &tx));
    check_ok(cx, mpk_graph_tensor(cx, g, MPK_TENSOR_CONSTANT, "w", MPK_F32, 2, dims, &tw));
    check_ok(cx, mpk_graph_operator(cx, g, "add", "sum", 2, (mpk_tensor[]){tx, tw}, 0, NULL, &t));
    check_ok(cx, mpk_graph_operator(cx, g, "transpose", "y", 1, &t, 1, &order, &t));
    check_ok(cx, mpk_graph_output(cx, g, t));
    mpk_dtype dtype;
    uint32_t rank;
    int64_t found[MPK_MAX_RANK];
    check_ok(cx, mpk_graph_describe(cx, g, t, &dtype, &rank, found));
    assert_true(dtype == MPK_F32 && rank == 2 && found[0] == 3 && found[1] == 2);
    check_ok(cx, mpk_graph_print(cx, g, &source));
    check_ok(cx, mpk_graph_parse(cx, source, strlen(source), &again));
    check_ok(cx, mpk_graph_print(cx, again, &second));
    assert_string_equal(source, second);
    mpk_binding w = {"w", one, sizeof one};
    check_fails(cx, MPK_EARG, "w", mpk_program_compile(cx, g, 0, NULL, NULL, &p));
    mpk_engine_options calls = {.size = sizeof calls, .device = "cpu", .mode = MPK_MODE_CALLS};
    mpk_engine *e;
    check_fails(cx, MPK_EARG, "for a GPU", mpk_program_compile(cx, g, 1, &w, &calls, &p));
    check_fails(cx, MPK_EARG, "for tensor programs",
                mpk_engine_open(cx, "no_such_model", &calls, &e));
    check_fails(cx, MPK_EARG, "operator",
                mpk_graph_operator(cx, g, "no_such", NULL, 0, NULL, 0, NULL, &t));
    char aside[sizeof one + 1];
    mpk_binding odd = {"w", aside + ((uintptr_t)aside % 2 == 0), sizeof one};
    check_fails(cx, MPK_EARG, "the bytes of w are not aligned",
                mpk_program_compile(cx, g, 1, &odd, NULL, &p));
    const mpk_binding strange = {"v", w.data, w.n_bytes};
    check_fails(cx, MPK_EARG, "no constant 'v'", mpk_program_compile(cx, g, 1, &strange, NULL, &p));
    check_ok(cx, mpk_program_compile(cx, g, 1, &w, NULL, &p));
    mpk_graph_free(g);
    mpk_binding bindings[] = {{"x", x, sizeof x}, {"y", y, sizeof y}};
    for (int run = 0; run < 3; run++) {
        x[0] = (float)run;
        check_ok(cx, mpk_program_run(cx, p, 2, bindings));
        const float expected[] = {(float)run + 1, 5, 3, 6, 4, 7};
        assert_memory_equal(y, expected, sizeof y);
    }
    check_rounding(again, &w, bindings);
    bindings[0].data = (void *)(uintptr_t)still;
    check_ok(cx, mpk_program_run(cx, p, 2, bindings));
    mpk_graph_free(again);
    mpk_binding wrong = {"z", x, sizeof x};
    check_fails(cx, MPK_EARG, "z", mpk_program_run(cx, p, 1, &wrong));
    check_fails(cx, MPK_EARG, "'w' is neither an input", mpk_program_run(cx, p, 1, &w));
    check_fails(cx, MPK_EARG, "2 addresses for 0 slots",
                mpk_program_launch(cx, p, NULL, NULL, 2, (void *[]){x, y}));
    check_ok(cx, mpk_program_name_slots(cx, p, 1, (const char *[]){"x"}));
    check_fails(cx, MPK_EUNSUPPORTED, "mpk_program_call runs it",
                mpk_program_launch(cx, p, NULL, NULL, 1, (void *[]){x}));
    check_fails(cx, MPK_EUNSUPPORTED, "MPK_MODE_CALLS", mpk_program_wait(cx, p));
    check_fails(cx, MPK_EARG, "slot 1 of 1", mpk_program_touch(cx, p, 1));
    mpk_program_close(p);
    mpk_free(source);
    mpk_free(second);
}

/* Each call reads its inputs anew, constants where their address is another one; a tensor has one
 * slot. */
static void test_slots(void **state)
{
    (void)state;
    static const char source[] = "input %x : f32[4]\nconst %w : f32[4]\n"
                                 "%y = add(%x, %w)\noutput %y\n";
    _Alignas(16) float x[4] = {0}, first[4] = {1, 2, 3, 4}, second[4] = {5, 6, 7, 8}, y[4];
    mpk_graph *g = NULL;
    mpk_program *p = NULL;
    mpk_binding w = {"w", first, sizeof first};
    check_ok(cx, mpk_graph_parse(cx, source, sizeof source - 1, &g));
    check_ok(cx, mpk_program_compile(cx, g, 1, &w, NULL, &p));
    check_fails(cx, MPK_EARG, "x is given twice",
                mpk_program_name_slots(cx, p, 3, (const char *[]){"x", "y", "x"}));
    check_ok(cx, mpk_program_name_slots(cx, p, 3, (const char *[]){"x", "w", "y"}));
    for (int run = 0; run < 4; run++) {
        const float *added = run < 2 ? first : second;
        x[0] = (float)run;
        check_ok(cx, mpk_program_call(cx, p, 3, (void *[]){x, (void *)(uintptr_t)added, y}));
        for (int i = 0; i < 4; i++)
            assert_true(y[i] == x[i] + added[i]);
    }
    mpk_program_close(p);
    mpk_graph_free(g);
}

static void test_inspect_and_opt(void **state)
{
    (void)state;
    mpk_engine_options o = options_of(4, 4);
    char *json = NULL, *source = NULL, *result = NULL, *dot = NULL;
    check_ok(cx, mpk_inspect(cx, folder, &o, 4, &json));
    assert_non_null(strstr(json, "\"tasks\""));
    assert_non_null(strstr(json, "\"successor_bytes_range\""));
    check_ok(cx, mpk_print_program(cx, folder, &o, 4, &source));
    check_ok(cx, mpk_opt(cx, "fuse_ops", source, strlen(source), &o, &result));
    assert_true(strlen(result) > 100 && strcmp(result, source) != 0);
    check_ok(cx, mpk_draw(cx, folder, &o, 1, NULL, &dot));
    assert_non_null(strstr(dot, "digraph"));
    mpk_free(dot);
    check_ok(cx, mpk_draw(cx, folder, &o, 1, "layers.0", &dot));
    check_fails(cx, MPK_EARG, "contains 'no_op'", mpk_draw(cx, folder, &o, 1, "no_op", &json));
    check_fails(cx, MPK_EARG, "run decompose first",
                mpk_opt(cx, "depend", source, strlen(source), &o, &dot));
    check_fails(cx, MPK_EARG, "no_pass", mpk_opt(cx, "no_pass", source, strlen(source), &o, &dot));
    o.target = "sm_90a";
    o.activations = MPK_ACTIVATIONS_I8;
    check_fails(cx, MPK_EUNSUPPORTED, "activations in 8 bits",
                mpk_inspect(cx, folder, &o, 4, &dot));
    mpk_free(json);
    mpk_free(source);
    mpk_free(result);
    mpk_free(dot);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_company_order_threads),
        cmocka_unit_test(test_pages_run_out),
        cmocka_unit_test(test_launch_and_fusion_change_nothing),
        cmocka_unit_test(test_image_runs_the_same),
        cmocka_unit_test(test_image_of_another_program),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_many_threads_ask),
        cmocka_unit_test(test_close_amid_requests),
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_routing_of_no_mixture),
        cmocka_unit_test(test_wrong_use),
        cmocka_unit_test(test_progress_can_stop),
        cmocka_unit_test(test_graph_by_hand),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_inspect_and_opt),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
