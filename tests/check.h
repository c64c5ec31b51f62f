/* check.h - cmocka, and what every test of ours needs: a context and a printed seed. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/status.h"

/* Fail with the context's message unless the call returns MPK_OK. */
#define check_ok(cx, expression)                                                      \
    do {                                                                              \
        mpk_status check_ = (expression);                                             \
        if (check_ != MPK_OK)                                                         \
            fail_msg("%s: %s: %s", #expression, status_sentence(check_), (cx)->text); \
    } while (0)

/* Fail unless the call returns this status and its message contains this text. */
#define check_fails(cx, code, needle, expression)                                         \
    do {                                                                                  \
        mpk_status check_ = (expression);                                                 \
        if (check_ != (code) || !strstr((cx)->text, (needle)))                            \
            fail_msg("%s: got %s: %s", #expression, status_sentence(check_), (cx)->text); \
    } while (0)

/* The seed of this run: MPK_SEED if set, else from the clock; printed, so that a failure can be
 * repeated. */
static inline uint64_t check_seed(void)
{
    const char *text = getenv("MPK_SEED");
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t seed =
        text ? strtoull(text, NULL, 10) : (uint64_t)t.tv_sec * 1000003u + (uint64_t)t.tv_nsec;
    print_message("seed: MPK_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Does this run take every case?  Else a test may draw some by its seed, of cases that run the same
 * code. */
static inline bool check_thorough(void)
{
    const char *text = getenv("MPK_THOROUGH");
    return text && *text;
}

/* Is this one of the cases that the seed draws, one in `of`? */
static inline bool check_takes(uint64_t seed, uint64_t number, uint32_t of)
{
    return check_thorough() || rng_u64(seed, number) % of == 0;
}

/* Code with sanitizers takes five to ten times as long, and looks for other faults than wrong
 * numbers: of random rounds, and of cases that are alike, it takes one in CHECK_SHARE. */
#ifdef MPK_SANITIZED
enum { CHECK_SHARE = 4 };
#else
enum { CHECK_SHARE = 1 };
#endif

static inline uint32_t check_rounds(uint32_t all)
{
    return check_thorough() ? all : (all + CHECK_SHARE - 1) / CHECK_SHARE;
}

/* A test that leaves something out says why; ctest then lists the whole as skipped, not as
 * passed. */
enum { CHECK_SKIPPED = 77 }; /* SKIP_RETURN_CODE in cmake/tests.cmake */

static inline bool *check_skips(void)
{
    static bool any;
    return &any;
}

#define check_skip(reason)                        \
    do {                                          \
        print_message("skipped: %s\n", (reason)); \
        *check_skips() = true;                    \
        skip();                                   \
    } while (0)

/* What main returns, from the number of tests that failed. */
static inline int check_result(int failed)
{
    return failed || !*check_skips() ? failed : CHECK_SKIPPED;
}

/* The number that the next file to be opened gets: the same as before, if nothing is left open. */
static inline int check_next_descriptor(void)
{
    const int next = dup(STDERR_FILENO);
    close(next);
    return next;
}

#endif
