/* net_limits_test.c - limits of keys: what random clients get in random spans of time, against what
 * the limits promise; and the keys' file.
 */
#include <unistd.h>

#include "check.h"
#include "base/file.h"
#include "base/rng.h"
#include "net/net_keys.h"

#define SECOND UINT64_C(1000000000)

typedef struct draws {
    uint64_t seed, n;
} draws;

static uint64_t draw(draws *d, uint64_t below)
{
    return rng_u64(d->seed, d->n++) % below;
}

/* A request that was let in. */
typedef struct event {
    uint64_t at_ns, tokens;
} event;

enum { MOST_EVENTS = 400 };

/* In no span of t seconds more than limit * (1 + t / 60) requests begin, and when one begins the
 * tokens of those before it in any span are no more than that. */
static void check_spans(const event *e, size_t n, const net_limits *limits)
{
    for (size_t first = 0; first < n; first++) {
        uint64_t tokens = 0;
        for (size_t last = first; last < n; last++) {
            const double minutes =
                (double)(e[last].at_ns - e[first].at_ns) / (60.0 * (double)SECOND);
            assert_true((double)(last - first + 1) <= limits->requests * (1 + minutes) + 1e-6);
            assert_true((double)tokens <= limits->tokens * (1 + minutes) + 1e-6);
            tokens += e[last].tokens;
        }
    }
}

/* Requests at random moments: in no minute more are let through than the limit, and what is
 * refused is let through after the time that was told. */
static void test_spans(void **state)
{
    (void)state;
    draws d = {.seed = check_seed()};
    for (int round = 0; round < 40; round++) {
        const net_limits limits = {.requests = (uint32_t)(1 + draw(&d, 60)),
                                   .tokens = (uint32_t)(1 + draw(&d, 5000))};
        net_account a = {0};
        event events[MOST_EVENTS];
        size_t n = 0;
        uint64_t now = draw(&d, UINT64_C(1) << 60);
        net_limits_set(&a, &limits, now);
        while (n < MOST_EVENTS) {
            const char *what;
            const uint64_t wait = net_limits_begin(&a, now, &what);
            if (wait) { /* a moment before it is still refused, then it is let in */
                assert_int_equal(net_limits_begin(&a, now + wait - 1, &what), 1);
                now += wait;
                assert_int_equal(net_limits_begin(&a, now, &what), 0);
            }
            events[n] = (event){now, draw(&d, 200)};
            net_limits_spend(&a, events[n].tokens, now);
            n++;
            now += draw(&d, 3) ? draw(&d, 2 * SECOND) : 0;
        }
        check_spans(events, n, &limits);
    }
}

/* Tokens are spent after the answer, so an account may be in debt. What is left and when it is
 * full again are what the reply's headers say. */
static void test_rest(void **state)
{
    (void)state;
    const char *what;
    char words[32];
    net_account a = {0};
    net_limits_set(&a, &(net_limits){.requests = 2, .tokens = 60}, 0);
    assert_int_equal(net_limits_left(&a.requests, 2, 0), 2);
    assert_int_equal(net_limits_begin(&a, 0, &what), 0);
    net_limits_spend(&a, 90, 0);
    assert_int_equal(net_limits_left(&a.tokens, 60, 0), 0);
    assert_int_equal(net_limits_begin(&a, 0, &what), 31 * SECOND); /* 30 tokens of debt, and one */
    assert_string_equal(what, "tokens");
    assert_int_equal(net_limits_full_ns(&a.tokens, 60, 0), 90 * SECOND);
    assert_int_equal(net_limits_full_ns(&a.requests, 2, 0), 30 * SECOND);
    net_limits_set(&a, &(net_limits){.requests = 2}, 0); /* the debt is forgiven */
    assert_int_equal(net_limits_begin(&a, 0, &what), 0);
    assert_int_equal(net_limits_begin(&a, 0, &what), 30 * SECOND);
    assert_string_equal(what, "requests");
    net_limits_set(&a, &(net_limits){.requests = 60}, 0); /* fills at the new rate */
    assert_int_equal(net_limits_begin(&a, 0, &what), SECOND);
    net_limits_set(&a, &(net_limits){0}, 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(net_limits_begin(&a, 0, &what), 0);
    assert_int_equal(net_limits_begin(&(net_account){.limits = {.requests = 1}}, 0, &what),
                     60 * SECOND);
    const struct {
        uint64_t ns;
        const char *words;
    } durations[] = {{0, "0s"},
                     {1, "1ms"},
                     {999000000, "999ms"},
                     {1500 * SECOND / 1000, "1.5s"},
                     {360 * SECOND, "6m0s"}};
    for (size_t i = 0; i < sizeof durations / sizeof *durations; i++) {
        net_limits_write_duration(durations[i].ns, words, sizeof words);
        assert_string_equal(words, durations[i].words);
    }
}

/* At the edges of what the sums hold: the largest limit, debts without end, times far apart. */
static void test_edges(void **state)
{
    (void)state;
    const char *what;
    const uint32_t most = 70000000;
    net_account a = {0};
    net_limits_set(&a, &(net_limits){.requests = most, .tokens = most}, 0);
    for (int i = 0; i < 5; i++)
        net_limits_spend(&a, UINT64_MAX, 0);
    /* a minute's debt, and one token */
    assert_int_equal(net_limits_begin(&a, 0, &what), 60 * SECOND + 858);
    assert_int_equal(net_limits_full_ns(&a.tokens, most, 0), 120 * SECOND);
    assert_int_equal(net_limits_begin(&a, UINT64_MAX, &what), 0);
    assert_int_equal(net_limits_left(&a.tokens, most, UINT64_MAX), most);
    /* a clock that goes back changes nothing */
    assert_int_equal(net_limits_left(&a.requests, most, 0), most - 1);
    net_limits_set(&a, &(net_limits){.tokens = 1}, UINT64_MAX);
    assert_int_equal(net_limits_left(&a.tokens, 1, UINT64_MAX), 1);
}

/* Answers at a time: all of a request's or none, and no sum that wraps. */
static void test_answers(void **state)
{
    (void)state;
    net_account a = {0};
    net_limits_set(&a, &(net_limits){.concurrent = 3}, 0);
    assert_true(net_limits_take_answers(&a, 2));
    assert_false(net_limits_take_answers(&a, 2));
    assert_true(net_limits_take_answers(&a, 1));
    a.n_answers -= 3;
    assert_true(net_limits_take_answers(&a, 3));
    assert_false(net_limits_take_answers(&a, UINT32_MAX));
}

/* The words of a key's line: any order and blanks; each at most once, with a whole number within
 * its bounds. */
static void test_words(void **state)
{
    (void)state;
    mpk_context cx = {0};
    net_limits l;
    check_ok(&cx,
             net_limits_read(
                 &cx, STR(" tokens-per-minute=7\tconcurrent=2  requests-per-minute=70000000"), &l));
    assert_true(l.tokens == 7 && l.concurrent == 2 && l.requests == 70000000);
    check_ok(&cx, net_limits_read(&cx, STR(""), &l));
    assert_true(!l.tokens && !l.concurrent && !l.requests);
    const char *const bad[] = {"concurrent",     "concurrent=",
                               "concurrent=0",   "concurrent=-1",
                               "concurrent=1.5", "concurrent=70000001",
                               "concurrent=nan", "concurrent=1 concurrent=1",
                               "words",          "=1",
                               "requests=3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(net_limits_read(&cx, str_from(bad[i]), &l), MPK_EFORMAT);
}

/* A file as an editor on any system writes it.  Read again, only the keys that it has now are
 * valid, and one that was there before keeps its account. */
static void test_file_of_keys(void **state)
{
    (void)state;
    mpk_context cx = {0};
    char path[] = "/tmp/mpk_keys_test.XXXXXX";
    static const char first[] = "# who may ask\r\n\r\n\tann requests-per-minute=5\r\nbob\r\n",
                      second[] = "bob concurrent=2";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    net_keys k = {.path = path};
    assert_int_equal(pthread_mutex_init(&k.mutex, NULL), 0);
    net_key *ann, *bob, *again;
    check_ok(&cx, file_write(&cx, path, first, sizeof first - 1));
    check_ok(&cx, net_keys_read(&cx, &k));
    assert_true(net_keys_find(&k, "ann", &ann));
    assert_true(net_keys_find(&k, "bob", &bob));
    assert_int_equal(ann->account.limits.requests, 5);
    assert_false(net_keys_find(&k, "an", &again) || net_keys_find(&k, "", &again) ||
                 net_keys_find(&k, "#", &again) || net_keys_find(&k, "bob\r", &again));
    check_ok(&cx, file_write(&cx, path, second, sizeof second - 1));
    check_ok(&cx, net_keys_read(&cx, &k));
    assert_false(net_keys_find(&k, "ann", &again));
    assert_true(net_keys_find(&k, "bob", &again) && again == bob);
    assert_int_equal(bob->account.limits.concurrent, 2);
    check_ok(&cx, file_write(&cx, path, "#", 1));
    check_fails(&cx, MPK_EFORMAT, "no key", net_keys_read(&cx, &k));
    assert_true(net_keys_find(&k, "bob", &again)); /* as before */
    unlink(path);
    net_keys_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spans), cmocka_unit_test(test_rest),
        cmocka_unit_test(test_edges), cmocka_unit_test(test_answers),
        cmocka_unit_test(test_words), cmocka_unit_test(test_file_of_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
