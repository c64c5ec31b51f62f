/* rt_request_test.c - what the step task believes of a request that comes from outside the machine
 * (rt_admit.h): up to the last word that is there, and not beyond.
 */
#include "check.h"
#include "rt/rt_step.h"

enum { P = 4, PER_SLOT = 16, PAGES = 300, ARENA = 1000, MASKS = 3 };

/* A program that gives logits and samples, without rules. */
static rt_serving make(rt_u32 n_pages)
{
    return (rt_serving){.n_slots = 2,
                        .n_pages = n_pages,
                        .page_tokens = P,
                        .pages_per_slot = PER_SLOT,
                        .logits = 0,
                        .next = 0,
                        .asks = RT_NOWHERE};
}

/* What a request says of the token arena, and of what the program has, is believed up to the last
 * word and not beyond. */
static void test_request_fits(void **state)
{
    (void)state;
    rt_serving s = make(PAGES);
    const rt_machine m = {.serving = &s, .n_arena = ARENA};
    const rt_u32 all = ARENA;
    const rt_u32 beside = 3 + 2 * RT_NAME_WORDS; /* words that three rules and two names take */
    rt_request r = {.n_prompt = all};
    assert_true(rt_request_fits(&m, &r));
    r.prompt = 1;
    assert_false(rt_request_fits(&m, &r));
    r.prompt = ~(rt_u64)0;
    assert_false(rt_request_fits(&m, &r));
    s.asks = 0;
    s.rule_words = 3;
    s.n_masks = MASKS;
    r = (rt_request){.n_prompt = all - beside, .n_rules = 3, .n_names = 2};
    assert_true(rt_request_fits(&m, &r));
    r.n_prompt++;
    assert_false(rt_request_fits(&m, &r));
    r = (rt_request){.n_prompt = 1, .n_rules = 4};
    assert_false(rt_request_fits(&m, &r)); /* more than a row of rules holds */
    r = (rt_request){.n_prompt = 1, .n_rules = 3, .mask = MASKS};
    assert_true(rt_request_fits(&m, &r));
    r.mask++;
    assert_false(rt_request_fits(&m, &r));
    r = (rt_request){.n_prompt = 1, .mask = 1};
    assert_false(rt_request_fits(&m, &r)); /* a mask needs rules */
    r = (rt_request){.n_prompt = 1, .n_logprobs = RT_LOGPROBS, .logprobs = 1};
    assert_true(rt_request_fits(&m, &r));
    r.logprobs = 0;
    assert_false(rt_request_fits(&m, &r));
    r = (rt_request){.n_prompt = 1, .n_logprobs = RT_LOGPROBS + 1, .logprobs = 1};
    assert_false(rt_request_fits(&m, &r));
    s.asks = RT_NOWHERE;
    r = (rt_request){.n_prompt = 1, .n_rules = 1};
    assert_false(rt_request_fits(&m, &r));
}

/* The positions that a request may take: what it asks for, the context, or all pages there are. */
static void test_request_limit(void **state)
{
    (void)state;
    const rt_u32 context = PER_SLOT * P;
    rt_serving s = make(PAGES), small = make(3);
    rt_request r = {.n_prompt = 5, .max_tokens = context - 5};
    assert_int_equal(rt_request_limit(&s, &r), context);
    assert_int_equal(rt_request_limit(&small, &r), 0);
    r.max_tokens++;
    assert_int_equal(rt_request_limit(&s, &r), 0);
    r.max_tokens = 0; /* until the context is full */
    assert_int_equal(rt_request_limit(&s, &r), context);
    assert_int_equal(rt_request_limit(&small, &r), 3 * P);
    r.n_prompt = context;
    assert_int_equal(rt_request_limit(&s, &r), context);
    r.n_prompt++;
    assert_int_equal(rt_request_limit(&s, &r), 0);
    r = (rt_request){.n_prompt = 0, .max_tokens = 1};
    assert_int_equal(rt_request_limit(&s, &r), 0);
    r = (rt_request){.n_prompt = 1, .max_tokens = 1, .n_eos = RT_MAX_EOS};
    assert_int_equal(rt_request_limit(&s, &r), 2);
    r.n_eos++;
    assert_int_equal(rt_request_limit(&s, &r), 0);
    r = (rt_request){.n_prompt = 1, .max_tokens = 1, .flags = RT_HOST_SAMPLES};
    assert_int_equal(rt_request_limit(&s, &r), 0); /* no room for logits */
    r.logits = 1;
    assert_int_equal(rt_request_limit(&s, &r), 2);
    s.logits = RT_NOWHERE;
    assert_int_equal(rt_request_limit(&s, &r), 0);
    r.flags = 0;
    assert_int_equal(rt_request_limit(&s, &r), 2);
    s.next = RT_NOWHERE;
    assert_int_equal(rt_request_limit(&s, &r), 0);
}

/* Of a prompt that is put back while it is fed, the rows that were delivered come again, and are
 * counted again; a text that is fed a second time keeps what it has counted, and so does one that
 * was decoding, of which the last token becomes a part. */
static void test_put_back(void **state)
{
    static const struct {
        rt_u64 source;
        rt_u32 count;
    } cases[] = {{3, 0}, {RT_AGAIN, 7}, {RT_NOWHERE, 7}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rt_serving s = make(PAGES);
        rt_control control = {0};
        rt_chain chain = {0};
        rt_i32 history[PER_SLOT * P] = {0};
        rt_slot slot = {.state = RT_SLOT_FEEDING,
                        .source = cases[i].source,
                        .n_source = 5,
                        .n_fed = 4,
                        .position = 4,
                        .token = 30,
                        .count = 7};
        rt_machine m = {.serving = &s,
                        .control = &control,
                        .chains = &chain,
                        .slots = &slot,
                        .step_area = (void *)history};
        s.n_active = 1;
        rt_slot_put_back(&m, 0);
        assert_int_equal(slot.count, cases[i].count);
        assert_int_equal(slot.state, RT_SLOT_PARKED);
        assert_int_equal(slot.n_fed + slot.position + s.n_active, 0);
        assert_int_equal(s.n_parked, 1);
        assert_true(slot.source == (cases[i].source == 3 ? 3 : RT_AGAIN) && slot.n_source == 5);
        assert_int_equal(history[4], cases[i].source == RT_NOWHERE ? 30 : 0);
    }
}

/* Text is appended to a sequence that waits for it: as much as the arena and its room hold.  A
 * command that says more ends it, and one for another slot does nothing. */
static void test_append(void **state)
{
    (void)state;
    enum { ROOM = 20, NONE = 99 };
    static const struct {
        rt_u32 state, n;
        rt_u64 tokens, logits;
        rt_u32 reason;
    } cases[] = {
        {RT_SLOT_WAITING, 1, 0, 1, NONE},
        {RT_SLOT_WAITING, ROOM, 0, 1, NONE},
        {RT_SLOT_WAITING, ROOM + 1, 0, 1, RT_LENGTH},
        {RT_SLOT_WAITING, 0, 0, 1, RT_REFUSED},
        {RT_SLOT_WAITING, 1, 0, 0, RT_REFUSED},
        {RT_SLOT_WAITING, 1, ARENA - 1, 1, NONE},
        {RT_SLOT_WAITING, 2, ARENA - 2, 1, NONE},
        {RT_SLOT_WAITING, 2, ARENA - 1, 1, RT_REFUSED},
        {RT_SLOT_WAITING, 1, ~(rt_u64)0, 1, RT_REFUSED},
        {RT_SLOT_WAITING, ARENA, 0, 1, RT_LENGTH},
        {RT_SLOT_WAITING, ARENA + 1, 0, 1, RT_REFUSED},
        {RT_SLOT_WAITING, ARENA + 1, ~(rt_u64)0, 1, RT_REFUSED},
        {RT_SLOT_FEEDING, 1, 0, 1, NONE},
        {RT_SLOT_FEEDING, 0, 0, 1, NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rt_serving s = make(PAGES);
        rt_control control = {0};
        rt_chain chain = {0};
        rt_request running = {.max_tokens = 1, .flags = RT_HOST_SAMPLES};
        rt_token told[4] = {{0}};
        rt_slot slot = {.state = cases[i].state, .position = 4, .limit = 4 + ROOM, .n_fed = 3};
        rt_machine m = {.serving = &s,
                        .control = &control,
                        .chains = &chain,
                        .slots = &slot,
                        .running = &running,
                        .tokens = told,
                        .token_mask = 3,
                        .n_arena = ARENA};
        const rt_command c = {.kind = RT_APPEND,
                              .n = cases[i].n,
                              .tokens = cases[i].tokens,
                              .logits = cases[i].logits};
        s.n_active = 1;
        rt_slot_append(&m, 0, &c);
        const bool ends = cases[i].reason != NONE, goes_on = cases[i].state == RT_SLOT_WAITING;
        assert_int_equal(s.told, ends);
        assert_int_equal(slot.state, ends ? RT_SLOT_FREE : RT_SLOT_FEEDING);
        if (ends)
            assert_int_equal(told[0].reason, cases[i].reason);
        else
            assert_true(!goes_on || (slot.source == c.tokens && slot.n_source == c.n &&
                                     slot.n_fed == 0 && running.logits == c.logits));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request_fits), cmocka_unit_test(test_request_limit),
        cmocka_unit_test(test_put_back), cmocka_unit_test(test_append)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
