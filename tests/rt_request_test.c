/* rt_request_test.c - what the step task believes of a request that comes from outside the machine
 * (rt_admit.h): up to the last word that is there, and not beyond.  And the questions it asks when
 * it fills a step, at their limits: rt_fill.h, rt_ahead.h, rt_draft.h.
 */
#include "base/rng.h"
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

/* Pages that hold a prompt already are counted, for the host that is told of the prompt and in the
 * statistics; but not by a request that counts its logits, nor where a text is fed again. */
static void test_found_pages(void **state)
{
    enum { FOUND = 2 };
    static const struct {
        rt_u64 source;
        rt_u32 flags, count, found;
    } cases[] = {
        {3, 0, 7 + FOUND * P, FOUND * P}, {3, RT_HOST_SAMPLES, 7, FOUND * P}, {RT_AGAIN, 0, 7, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rt_serving s = make(PAGES);
        rt_control control = {0};
        rt_kv_page pages[FOUND] = {{.sharers = 1}, {.sharers = 2}};
        rt_request r = {.flags = cases[i].flags};
        rt_i32 table[PER_SLOT] = {1, 0};
        rt_slot slot = {.source = cases[i].source, .count = 7};
        rt_machine m = {.serving = &s,
                        .control = &control,
                        .kv_pages = pages,
                        .running = &r,
                        .slots = &slot,
                        .step_area = (void *)table};
        s.n_promised = 5;
        rt_slot_skip(&m, 0, FOUND, FOUND * P);
        assert_int_equal(slot.count, cases[i].count);
        assert_int_equal(control.stats.found.value, cases[i].found);
        assert_true(slot.held == FOUND && slot.position == FOUND * P && slot.n_fed == FOUND * P);
        assert_true(pages[0].sharers == 2 && pages[1].sharers == 3 && s.n_promised == 3);
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

/* A step holds a token and a row of each request, up to exactly as many as it has; where tokens
 * that decode have steps of their own, those count. */
static void test_step_fits(void **state)
{
    (void)state;
    static const struct {
        rt_u32 n_active, tokens, rows, fits;
    } cases[] = {{4, 4, 6, 1}, {5, 4, 6, 0}, {6, 8, 6, 1}, {7, 8, 6, 0}, {0, 1, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rt_serving s = {.n_active = cases[i].n_active,
                        .max_tokens = cases[i].tokens,
                        .max_rows = cases[i].rows};
        assert_int_equal(rt_step_fits(&s), cases[i].fits);
        s.few_tokens = cases[i].tokens;
        s.few_rows = cases[i].rows;
        s.max_tokens = s.max_rows = 100;
        assert_int_equal(rt_step_fits(&s), cases[i].fits);
    }
}

/* Beside a long prompt the shortest of those that have at most half as much left comes in, if the
 * step has nothing of it yet. */
static void test_short_prompt(void **state)
{
    (void)state;
    enum { FIRST = 100 };
    static const struct {
        rt_u32 left[2], in_step[2], found;
    } cases[] = {{{50, 60}, {0, 0}, 1}, {{51, 60}, {0, 0}, RT_NONE}, {{50, 49}, {0, 0}, 2},
                 {{7, 9}, {1, 0}, 2},   {{7, 9}, {1, 1}, RT_NONE},   {{9, 9}, {0, 0}, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rt_serving s = {.n_slots = 3};
        rt_slot slots[3] = {{.state = RT_SLOT_FEEDING, .n_source = FIRST + 3, .n_fed = 3}};
        const rt_machine m = {.serving = &s, .slots = slots};
        for (uint32_t k = 0; k < 2; k++)
            slots[k + 1] = (rt_slot){.state = RT_SLOT_FEEDING,
                                     .n_source = cases[i].left[k],
                                     .step_tokens = cases[i].in_step[k]};
        assert_int_equal(rt_short_prompt(&m, 0), cases[i].found);
    }
}

/* A request that found no pages is not looked at again until another one comes; where requests
 * grow, it is. */
static void test_still_blocked(void **state)
{
    (void)state;
    rt_serving s = {.blocked = 1, .n_looked = 5};
    rt_ring ring = {.written = {7}, .read = {2}};
    const rt_machine m = {.serving = &s, .request_ring = &ring};
    ring.written.value = 5;
    assert_true(rt_is_still_blocked(&m));
    ring.written.value = 6;
    assert_false(rt_is_still_blocked(&m));
    ring.written.value = 5;
    s.blocked = 0;
    assert_false(rt_is_still_blocked(&m));
    s.blocked = s.grows = 1;
    assert_false(rt_is_still_blocked(&m));
}

/* What the draft model draws is a draft if it is a token of the model and does not end the text. */
static void test_drafts_are_tokens(void **state)
{
    (void)state;
    enum { VOCABULARY = 50, END = 9 };
    static const struct {
        rt_i32 token;
        rt_u32 made;
    } cases[] = {{0, 1}, {VOCABULARY - 1, 1}, {VOCABULARY, 0}, {-1, 0}, {END, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct {
            rt_i32 next[2], history[PER_SLOT * P];
        } area = {.next = {0, cases[i].token}};
        struct {
            rt_drafter slot;
            rt_ahead ahead;
            rt_ahead_slot of;
        } drafters = {.slot = {.tried = 3, .from = RT_NONE}, .of = {.row = 1}};
        rt_serving s = {.n_slots = 1,
                        .n_vocab = VOCABULARY,
                        .next = (rt_u64)((char *)area.next - (char *)&area),
                        .history = (rt_u64)((char *)area.history - (char *)&area),
                        .history_tokens = PER_SLOT * P};
        rt_slot slot = {.state = RT_SLOT_FEEDING, .source = RT_NOWHERE, .position = 4, .n_eos = 1};
        rt_request running = {.eos = {END}, .n_eos = 1};
        rt_machine m = {.serving = &s,
                        .slots = &slot,
                        .running = &running,
                        .drafters = &drafters.slot,
                        .step_area = (char *)&area};
        rt_ahead_take(&m, 0);
        assert_int_equal(drafters.of.made, cases[i].made);
        assert_int_equal(drafters.slot.tried, cases[i].made ? 3 : 0);
        assert_int_equal(area.history[5], cases[i].made ? cases[i].token : 0);
    }
}

/* A look-up says how many of the last tokens are the same where it points to: those are, and the
 * one before them is another, unless there is none or so many were compared.  The text has random
 * words of three tokens, which come again. */
static void test_look_up(void **state)
{
    (void)state;
    enum { TEXT = 400, MASK = 63, GRAM = 2 };
    const uint64_t seed = check_seed();
    rt_i32 text[TEXT];
    rt_u32 grams[MASK + 1 + TEXT] = {0}, n_found = 0;
    rt_drafter drafter = {0};
    rt_serving s = {.n_slots = 1, .history_tokens = TEXT, .gram_tokens = GRAM, .gram_mask = MASK};
    rt_machine m = {.serving = &s, .drafters = &drafter, .grams = grams, .step_area = (char *)text};
    for (rt_u32 i = 0; i < TEXT; i++)
        text[i] = (rt_i32)(rng_u64(seed, i / 3) % 6 * 3 + i % 3);
    for (rt_u32 known = 1; known < TEXT; known++) {
        rt_u32 n, at = rt_draft_find(&m, 0, known, &n);
        rt_draft_index(&m, 0, known + 1);
        if (known <= GRAM || at == RT_NONE)
            continue;
        n_found++;
        assert_in_range(n, GRAM, at < RT_GRAM_LONGEST ? at : RT_GRAM_LONGEST);
        for (rt_u32 i = 1; i <= n; i++)
            assert_int_equal(text[at - i], text[known - i]);
        if (n < at && n < RT_GRAM_LONGEST)
            assert_int_not_equal(text[at - n - 1], text[known - n - 1]);
    }
    assert_true(n_found > TEXT / 4);
}

/* When a slot is fed a token, it drafts the tokens that followed the longest earlier text that
 * equals its last ones; of two such texts the later, and of each bucket only the latest places.
 * Where drafts cost much, it drafts one token, and one more for each equal token beyond the first
 * N. */
static void test_look(void **state)
{
    (void)state;
    enum { TEXT = 300, MASK = 15, ROOM = 9 };
    const uint64_t seed = check_seed();
    for (rt_u32 round = 0; round < 12; round++) {
        rt_i32 text[TEXT] = {0};
        rt_u32 grams[MASK + 1 + TEXT] = {0}, n_few = 0, n_found = 0;
        rt_drafter drafter = {0};
        rt_slot slot = {0};
        rt_serving s = {.n_slots = 1,
                        .history_tokens = TEXT,
                        .gram_tokens = 1 + round % 3,
                        .gram_mask = MASK,
                        .drafts_freely = round / 3 % 2};
        rt_machine m = {.serving = &s,
                        .slots = &slot,
                        .drafters = &drafter,
                        .grams = grams,
                        .step_area = (char *)text};
        for (rt_u32 position = 0; position + 1 < TEXT; position++) {
            const rt_u32 known = position + 1;
            slot.token = (rt_i32)(rng_u64(seed + round, position) % 4);
            rt_u32 n = ROOM, best = RT_NONE, longest = s.gram_tokens - 1, tries = 0;
            const rt_u32 from = rt_draft_look(&m, 0, position, &n);
            assert_int_equal(text[position], slot.token);
            for (rt_u32 q = position; q >= s.gram_tokens && tries < RT_GRAM_TRIES; q--) {
                rt_u32 equal = 0;
                if (known < s.gram_tokens ||
                    rt_gram_bucket(&s, text + q) != rt_gram_bucket(&s, text + known))
                    continue;
                while (equal < q && equal < RT_GRAM_LONGEST &&
                       text[q - 1 - equal] == text[known - 1 - equal])
                    equal++;
                best = equal > longest ? q : best;
                longest = equal > longest ? equal : longest;
                tries++;
            }
            assert_int_equal(from, best);
            const rt_u32 most = longest - s.gram_tokens + 1;
            const bool is_few = from != RT_NONE && !s.drafts_freely && most < ROOM;
            assert_int_equal(n, is_few ? most : ROOM);
            n_few += is_few;
            n_found += from != RT_NONE;
        }
        assert_true(n_found > TEXT / 8 && (n_few > 0) == !s.drafts_freely);
    }
}

/* After steps without an accepted draft one is tried at a time: at once where drafts cost much,
 * else from the second such step on; after more of them none, for RT_DRAFT_REST tokens. */
static void test_drafts_that_miss(void **state)
{
    (void)state;
    for (rt_u32 freely = 0; freely < 2; freely++) {
        rt_serving s = {.n_slots = 1, .drafts_freely = freely};
        rt_slot slot = {.position = 7};
        rt_drafter d = {.most = RT_DRAFT_FIRST, .rest = RT_DRAFT_REST};
        rt_machine m = {.serving = &s, .slots = &slot, .drafters = &d};
        const rt_u32 patience = freely ? RT_DRAFT_FREE_MISSES : RT_DRAFT_MISSES;
        for (rt_u32 i = 1; i <= patience; i++) {
            rt_draft_judge(&m, 0, 0);
            assert_int_equal(d.most, freely && i < RT_DRAFT_MODEL_DOUBTS ? RT_DRAFT_FIRST : 1);
            assert_int_equal(d.again, i < patience ? 0 : 7 + RT_DRAFT_REST);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_request_fits),
                                       cmocka_unit_test(test_request_limit),
                                       cmocka_unit_test(test_put_back),
                                       cmocka_unit_test(test_found_pages),
                                       cmocka_unit_test(test_append),
                                       cmocka_unit_test(test_step_fits),
                                       cmocka_unit_test(test_short_prompt),
                                       cmocka_unit_test(test_still_blocked),
                                       cmocka_unit_test(test_drafts_are_tokens),
                                       cmocka_unit_test(test_look_up),
                                       cmocka_unit_test(test_look),
                                       cmocka_unit_test(test_drafts_that_miss)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
