/* rt_fair_test.c - who gets steps, places and pages when there are not enough (rt_fill.h,
 * rt_admit.h, rt_lend.h): nobody starves, short prompts need not wait for long ones, urgent
 * requests come first.
 *
 * A step task by itself.  The test plays the host and the machine: it reads what each step feeds
 * and says that every row drew token 1.
 */
#include "base/rng.h"
#include "check.h"
#include "rt_laws.h"

enum { SLOTS = 12, P = 4, PER_SLOT = 64, PAGES = 200, T = 32, FEW = 8, RING = 64, ARENA = 4096 };

typedef struct area {
    rt_i32 tokens[T], positions[T], slots[T], pages[SLOTS * PER_SLOT], rows[T], draws[T], next[T];
    rt_i32 history[SLOTS * PER_SLOT * P];
    rt_i64 seeds[T];
    float sampling[4 * T];
} area;

typedef enum policy { GROWS, LENDS, APART } policy; /* APART lends, and fills steps apart */

typedef struct bed {
    rt_machine m;
    rt_control control;
    rt_serving serving;
    rt_worker worker;
    rt_slot slots[SLOTS];
    rt_request running[SLOTS];
    rt_u32 free_pages[PAGES], epochs[2], buckets[1];
    rt_kv_page kv_pages[PAGES];
    rt_chain chains[SLOTS];
    rt_ring request_ring, command_ring, token_ring;
    rt_request requests[RING];
    rt_command commands[1];
    rt_token tokens[RING];
    area area;
    uint64_t n_steps, began[1024], first[1024], last[1024]; /* steps, by request */
    uint64_t n_told[1024];                                  /* tokens, by request */
} bed;

static const rt_graph graphs[2] = {
    {.n_tokens = FEW, .n_rows = FEW, .most_fresh = RT_NONE, .n_events = 2},
    {.n_tokens = T, .n_rows = T, .most_fresh = RT_NONE, .first_event = 2, .n_events = 2}};
static const rt_event events[4];
static rt_i32 arena[ARENA]; /* prompts of zeros */

static bed *make(policy how, uint32_t n_slots, uint32_t n_pages)
{
    bed *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->serving = (rt_serving){.n_slots = n_slots,
                              .n_pages = n_pages,
                              .n_free = n_pages,
                              .page_tokens = P,
                              .pages_per_slot = PER_SLOT,
                              .max_tokens = T,
                              .max_rows = T,
                              .few_tokens = how == APART ? FEW : 0,
                              .few_rows = FEW,
                              .ready = 1,
                              .tokens = offsetof(area, tokens),
                              .positions = offsetof(area, positions),
                              .slots = offsetof(area, slots),
                              .pages = offsetof(area, pages),
                              .rows = offsetof(area, rows),
                              .sampling = offsetof(area, sampling),
                              .seeds = offsetof(area, seeds),
                              .draws = offsetof(area, draws),
                              .logits = RT_NOWHERE,
                              .next = offsetof(area, next),
                              .asks = RT_NOWHERE,
                              .history = offsetof(area, history),
                              .history_tokens = PER_SLOT * P,
                              .grows = how == GROWS,
                              .keeps_text = how == GROWS};
    for (uint32_t i = 0; i < n_pages; i++)
        b->free_pages[i] = i;
    b->buckets[0] = RT_NONE;
    b->control.step.value = RT_NO_STEP;
    b->m = (rt_machine){.graphs = graphs,
                        .events = events,
                        .n_graphs = 2,
                        .n_workers = 1,
                        .n_schedulers = 1,
                        .control = &b->control,
                        .epochs = b->epochs,
                        .workers = &b->worker,
                        .limits = {.processors = 1},
                        .serving = &b->serving,
                        .slots = b->slots,
                        .running = b->running,
                        .free_pages = b->free_pages,
                        .kv_pages = b->kv_pages,
                        .buckets = b->buckets,
                        .chains = b->chains,
                        .step_area = (char *)&b->area,
                        .request_ring = &b->request_ring,
                        .command_ring = &b->command_ring,
                        .token_ring = &b->token_ring,
                        .requests = b->requests,
                        .commands = b->commands,
                        .tokens = b->tokens,
                        .token_arena = arena,
                        .n_arena = ARENA,
                        .request_mask = RING - 1,
                        .token_mask = RING - 1};
    return b;
}

static void submit(bed *b, rt_u64 id, rt_u32 n_prompt, rt_u32 max_tokens, rt_i32 priority)
{
    assert_true(rt_ring_space(&b->request_ring, RING));
    b->requests[b->request_ring.written.value & (RING - 1)] = (rt_request){
        .id = id, .n_prompt = n_prompt, .max_tokens = max_tokens, .priority = priority};
    rt_ring_wrote(&b->request_ring, 1);
    b->began[id] = b->n_steps;
}

/* One step: the laws hold after it is built, and the host reads what it is told.  0: there is
 * none. */
static int run(bed *b)
{
    const int published = rt_step_poll(&b->m, &b->worker);
    check_pages(&b->m);
    check_order(&b->m);
    check_loans(&b->m, !published);
    check_blocked(&b->m, !published);
    b->n_steps += published;
    for (rt_u32 r = 0; r < T; r++)
        b->area.next[r] = 1;
    while (rt_ring_ready(&b->token_ring)) {
        const rt_token t = b->tokens[b->token_ring.read.value & (RING - 1)];
        rt_ring_took(&b->token_ring, 1);
        assert_int_equal(b->last[t.id], 0); /* nothing comes after the end */
        b->n_told[t.id]++;
        if (!b->first[t.id])
            b->first[t.id] = b->n_steps;
        if (t.reason != RT_GOING)
            b->last[t.id] = b->n_steps;
    }
    return published;
}

/* Steps from a request's arrival to its first token. */
static uint64_t wait_of(const bed *b, rt_u64 id)
{
    assert_true(b->first[id] > 0);
    return b->first[id] - b->began[id];
}

static const char *const names[] = {"grows", "lends", "apart"};

/* A short prompt that comes after a long one has its first token soon, and the long one loses no
 * more than a quarter of its steps. */
static void test_short_beside_long(void **state)
{
    (void)state;
    enum { LONG = 7 * T };
    for (policy how = GROWS; how <= APART; how++) {
        bed *b = make(how, 4, PAGES);
        submit(b, 1, LONG, 1, 0);
        assert_true(run(b));
        submit(b, 2, 5, 1, 0);
        submit(b, 3, 2 * T, 1, 0);
        submit(b, 4, T / 4, 1, 0);
        while (run(b))
            continue;
        print_message("%s: %u, %u, %u, %u steps\n", names[how], (unsigned)wait_of(b, 1),
                      (unsigned)wait_of(b, 2), (unsigned)wait_of(b, 3), (unsigned)wait_of(b, 4));
        assert_in_range(wait_of(b, 2), 1, how == APART ? 8 : 2);
        assert_in_range(wait_of(b, 4), 1, how == APART ? 8 : 4);
        assert_in_range(wait_of(b, 1), LONG / T, LONG / T * 4 / 3 + 2);
        free(b);
    }
}

/* A prompt of n tokens after which its pages' names come: those of pages from `own` on belong to no
 * other prompt. */
static void submit_named(bed *b, rt_u64 id, rt_u32 n, rt_u32 own)
{
    const rt_u32 prompt = ARENA / 4 * (rt_u32)id;
    for (rt_u32 i = 0; i <= n / P; i++) {
        const rt_name name = {{i + 1, i > own ? id : 0}};
        memcpy(arena + prompt + n + i * RT_NAME_WORDS, &name, sizeof name);
    }
    assert_true(rt_ring_space(&b->request_ring, RING));
    b->requests[b->request_ring.written.value & (RING - 1)] = (rt_request){
        .id = id, .prompt = prompt, .n_prompt = n, .n_names = n / P + 1, .max_tokens = 1};
    rt_ring_wrote(&b->request_ring, 1);
    b->began[id] = b->n_steps;
}

/* What others have computed of a prompt counts as fed before a step's room is shared out: a long
 * one with no more left than that room ends in this step and leaves nothing to a short one; with a
 * token more left it leaves the short one all it needs. */
static void test_long_found(void **state)
{
    (void)state;
    enum { FOUND = 6 * T, SHORT = 6 };
    for (rt_u32 more = 0; more <= 1; more++) {
        bed *b = make(GROWS, 4, PAGES);
        b->serving.unit = P;
        submit_named(b, 1, FOUND + T, PER_SLOT);
        while (run(b))
            continue;
        submit_named(b, 2, FOUND + T + more, FOUND / P);
        submit(b, 3, SHORT, 1, 0);
        assert_true(run(b));
        assert_int_equal(b->control.stats.found.value, FOUND);
        assert_true(b->running[0].id == 2 && b->running[1].id == 3);
        assert_int_equal(b->slots[0].step_tokens, T - more * SHORT);
        assert_int_equal(b->slots[1].step_tokens, more * SHORT);
        while (run(b))
            continue;
        assert_true(b->last[2] > 0 && b->last[3] > 0);
        free(b);
    }
}

/* Short prompts without end: a long one has its first token as soon as three quarters of the steps
 * allow. */
static void test_long_beside_short(void **state)
{
    (void)state;
    enum { LONG = 6 * T };
    for (policy how = GROWS; how <= APART; how++) {
        bed *b = make(how, SLOTS, PAGES);
        rt_u64 id = 2;
        submit(b, 1, LONG, 1, 0);
        while (!b->first[1]) {
            while (rt_ring_ready(&b->request_ring) < SLOTS)
                submit(b, id++, T / 2, 1, 0);
            assert_true(run(b) && b->n_steps < 100);
        }
        print_message("%s: %u steps\n", names[how], (unsigned)wait_of(b, 1));
        assert_in_range(wait_of(b, 1), LONG / T, LONG / T * 4 / 3 + 3);
        free(b);
    }
}

/* A first prompt that ends in this step leaves nothing to short ones: the oldest of the others gets
 * the rest. */
static void test_rest_for_the_oldest(void **state)
{
    (void)state;
    enum { REST = 12 };
    for (policy how = GROWS; how <= LENDS; how++) {
        bed *b = make(how, 4, PAGES);
        submit(b, 1, T - REST, 1, 0);
        submit(b, 2, T - 2, 1, 0);
        submit(b, 3, 5, 1, 0); /* short beside the first */
        assert_true(run(b));
        assert_int_equal(b->slots[0].step_tokens, T - REST);
        assert_int_equal(b->slots[1].step_tokens, REST);
        assert_int_equal(b->slots[2].step_tokens, 0);
        while (run(b))
            continue;
        free(b);
    }
}

/* Requests that decode, more of them than a step of few tokens takes, have their turns: after any
 * number of steps each has its share of the tokens, up to two. */
static void test_turns(void **state)
{
    (void)state;
    enum { STEPS = 40 };
    bed *b = make(APART, SLOTS, PAGES);
    uint64_t before[SLOTS + 1];
    uint32_t waiting = SLOTS;
    for (rt_u64 id = 1; id <= SLOTS; id++)
        submit(b, id, 1, 50, 0);
    while (waiting) {
        assert_true(run(b) && b->n_steps < 100);
        waiting = 0;
        for (rt_u64 id = 1; id <= SLOTS; id++)
            waiting += !b->first[id];
    }
    memcpy(before, b->n_told, sizeof before);
    for (uint32_t i = 1; i <= STEPS; i++) {
        assert_true(run(b));
        for (rt_u64 id = 1; id <= SLOTS; id++) {
            assert_int_equal(b->last[id], 0);
            assert_in_range(b->n_told[id] - before[id],
                            i * FEW / SLOTS > 1 ? i * FEW / SLOTS - 1 : 0, i * FEW / SLOTS + 2);
        }
    }
    while (run(b))
        continue;
    free(b);
}

static uint32_t below(uint64_t seed, uint64_t *draws, uint32_t limit)
{
    return (uint32_t)(rng_u64(seed, (*draws)++) % limit);
}

/* Requests come as fast as they are taken, with far too few pages and places.  Of equal urgency
 * each ends, in about the time that all older ones and a share beside younger ones need; none is
 * lost. */
static void test_none_starves(void **state)
{
    (void)state;
    enum { N = 300 };
    const uint64_t seed = check_seed();
    for (uint32_t k = 0; k < 60; k++) {
        uint64_t draws = 0;
        bed *b = make(k % 3, 2 + k % (SLOTS - 1), PER_SLOT + below(seed + k, &draws, 40));
        rt_u64 id = 1;
        for (uint32_t n = 0; id <= N || run(b); n++) {
            assert_true(n < 400 * N);
            for (; id <= N && rt_ring_ready(&b->request_ring) < 4; id++) {
                const rt_u32 prompt = 1 + below(seed + k, &draws, id % 5 ? 20 : PER_SLOT * P - 1);
                submit(b, id, prompt, below(seed + k, &draws, PER_SLOT * P - prompt + 1), 0);
            }
            if (id <= N)
                assert_true(run(b));
        }
        uint64_t most = 0;
        for (id = 1; id <= N; id++) {
            assert_true(b->last[id] > 0);
            most = b->last[id] - b->began[id] > most ? b->last[id] - b->began[id] : most;
        }
        /* requests before it in the ring and in places, each at most a context long, one after the
         * other: even so none waits longer */
        assert_true(most <= (uint64_t)(b->serving.n_slots + 5) * 2 * PER_SLOT * P);
        assert_int_equal(b->serving.n_active + b->serving.n_parked, 0);
        free(b);
    }
}

/* Requests of all urgencies: all end, and with places for all an urgent one is not kept waiting by
 * those that are less so. */
static void test_urgent_ones_first(void **state)
{
    (void)state;
    enum { N = 200 };
    const uint64_t seed = check_seed();
    uint64_t put_back = 0, waited[3] = {0}, count[3] = {0};
    for (uint32_t k = 0; k < 30; k++) {
        uint64_t draws = 0;
        rt_i32 priority[N + 1];
        bed *b = make(k % 3, SLOTS, PER_SLOT + 8);
        rt_u64 id = 1;
        for (uint32_t n = 0; id <= N || run(b); n++) {
            assert_true(n < 400 * N);
            for (; id <= N && rt_ring_ready(&b->request_ring) < 4; id++) {
                const rt_u32 prompt = 1 + below(seed + k, &draws, 60);
                priority[id] = (rt_i32)below(seed + k, &draws, 3);
                submit(b, id, prompt, 1 + below(seed + k, &draws, 80), priority[id]);
            }
            if (id <= N)
                assert_true(run(b));
        }
        for (id = 1; id <= N; id++) {
            assert_true(b->last[id] > 0);
            waited[priority[id]] += wait_of(b, id);
            count[priority[id]]++;
        }
        put_back += b->serving.grows ? b->control.stats.put_back.value : 0;
        free(b);
    }
    assert_true(put_back > 0);
    for (int i = 0; i < 3; i++)
        print_message("urgency %d: %.1f steps to the first token\n", i,
                      (double)waited[i] / (double)count[i]);
    assert_true(waited[0] * count[1] < waited[1] * count[0] &&
                waited[1] * count[2] < waited[2] * count[1]);
}

/* An urgent request takes the pages of the least urgent ones, no more of them than it needs, and
 * not those of its equals; they go on after it. */
static void test_urgent_takes_pages(void **state)
{
    (void)state;
    for (rt_i32 priority = -1; priority <= 1; priority++) {
        bed *b = make(GROWS, 4, 3 * 10 + 3);
        for (rt_u64 id = 1; id <= 3; id++)
            submit(b, id, 8 * P - 1, 8, (rt_i32)id - 2); /* -1, 0, 1: eight pages each at first */
        assert_true(run(b));
        assert_int_equal(b->serving.n_active, 3);
        submit(b, 4, 7 * P - 1, 2, priority);
        while (b->serving.n_active == 3 && !b->first[4])
            assert_true(run(b));
        const rt_u32 of_third = b->slots[2].state;
        while (run(b))
            continue;
        for (rt_u64 id = 1; id <= 4; id++)
            assert_true(b->last[id] > 0);
        assert_int_equal(b->control.stats.put_back.value, priority < 1);
        if (priority < 1) { /* the third one, which was the least urgent, gave way at once */
            assert_int_equal(of_third, RT_SLOT_PARKED);
            assert_in_range(wait_of(b, 4), 1, 3);
        }
        assert_true((b->last[4] < b->last[3]) == (priority < 1));
        free(b);
    }
}

/* So it does if it needs the page too that is kept for the least urgent one to grow. */
static void test_urgent_takes_kept_page(void **state)
{
    (void)state;
    bed *b = make(GROWS, 2, 8);
    submit(b, 1, 7 * P - 1, 5, 1); /* seven pages at first, eight in the end */
    assert_true(run(b));
    submit(b, 2, 8 * P - 1, 1, 0); /* eight pages */
    assert_true(run(b));
    assert_int_equal(b->slots[0].state, RT_SLOT_PARKED);
    assert_true(b->slots[1].state == RT_SLOT_FEEDING && b->running[1].id == 2);
    while (run(b))
        continue;
    assert_true(b->last[2] > 0 && b->last[2] < b->last[1]);
    free(b);
}

/* A request that waits for its mask still wants its next page, so the step task does not promise
 * the last free page to another request. */
static void test_late_one_keeps_its_page(void **state)
{
    (void)state;
    bed *b = make(LENDS, 3, PER_SLOT);
    for (rt_u64 id = 1; id <= 3; id++)
        submit(b, id, 2, PER_SLOT * P / 2 + 2, 0);
    assert_true(run(b) && run(b));
    const rt_u32 wanted = rt_pages_wanted(&b->m);
    assert_true(wanted > 0);
    for (rt_u32 i = 0; i < 3; i++)
        b->slots[i].state = RT_SLOT_LATE;
    assert_int_equal(rt_pages_wanted(&b->m), wanted);
    free(b);
}

/* Promises that are not used are taken back for a request that comes only if they make room for it:
 * one that needs every page waits, and the promise stays. */
static void test_promise_that_makes_no_room(void **state)
{
    (void)state;
    bed *b = make(LENDS, 2, PER_SLOT);
    submit(b, 1, 2, PER_SLOT * P / 2, 0);
    assert_true(run(b));
    const rt_u32 promised = b->slots[0].reserved;
    assert_true(promised > PER_SLOT / 2 && b->slots[0].held == 1);
    submit(b, 2, PER_SLOT * P - 1, 1, 0);
    assert_true(run(b));
    assert_int_equal(b->slots[0].reserved, promised);
    assert_int_equal(b->slots[1].state, RT_SLOT_FREE);
    while (run(b))
        continue;
    assert_true(b->last[2] > b->last[1]);
    free(b);
}

/* The host does not read its tokens.  While no step runs another one may begin, whose tokens wait
 * for room. */
static void test_unread_tokens(void **state)
{
    (void)state;
    bed *b = make(GROWS, SLOTS, PAGES);
    rt_u64 id = 0;
    while (rt_tokens_space(&b->m) >= SLOTS) {
        submit(b, ++id, 1, 1, 0);
        assert_true(rt_step_poll(&b->m, &b->worker));
        assert_false(rt_step_poll(&b->m, &b->worker));
    }
    submit(b, ++id, 1, 1, 0);
    assert_true(rt_step_poll(&b->m, &b->worker));
    assert_false(rt_step_poll(&b->m, &b->worker));
    assert_int_equal(rt_ring_ready(&b->token_ring), id - 1);
    for (int i = 0; i < 2; i++)
        assert_false(run(b));
    for (; id; id--)
        assert_int_equal(b->n_told[id], 1);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_beside_long),
        cmocka_unit_test(test_long_found),
        cmocka_unit_test(test_long_beside_short),
        cmocka_unit_test(test_rest_for_the_oldest),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_none_starves),
        cmocka_unit_test(test_urgent_ones_first),
        cmocka_unit_test(test_urgent_takes_pages),
        cmocka_unit_test(test_urgent_takes_kept_page),
        cmocka_unit_test(test_late_one_keeps_its_page),
        cmocka_unit_test(test_promise_that_makes_no_room),
        cmocka_unit_test(test_unread_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
