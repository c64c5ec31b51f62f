/* The host's books against a machine that the test plays: rings in plain memory, admitted and
 * answered by hand. */
#include <stdlib.h>

#include "base/rng.h"
#include "check.h"
#include "host/machine.h"
#include "rt/rt_queue.h"

enum { CONTEXT = 64, SLOTS = 3, VOCAB = 5, WAITING = 4, TOKENS = 8 };

/* A target without a program: what the books asked of it, and a seat for each request that it has
 * taken. */
typedef struct fake {
    machine base;
    rt_header block;
    rt_ring rings[3];
    host_rings ends;
    rt_word bell;
    uint32_t rings_heard, waits, lent;
    bool failed;
    float logits[VOCAB * CONTEXT]; /* what is lent: one place */
} fake;

/* The machine below has no runtime: the test plays its side of the rings, in any order that the
 * protocol allows. */
static void fake_ring(machine *m)
{
    ((fake *)m)->rings_heard++;
}

static mpk_status fake_check(mpk_context *cx, machine *m)
{
    CHECK(cx, !((fake *)m)->failed, MPK_EDEVICE, "the fake has failed");
    return MPK_OK;
}

/* Nothing comes while the test waits: time passes. */
static void fake_wait(machine *m, rt_u32 seen, uint64_t timeout_ns)
{
    fake *f = (fake *)m;
    f->waits++;
    if (f->bell.value == seen && timeout_ns != UINT64_MAX)
        rt_sleep(&f->bell, seen, timeout_ns);
}

/* One place for logits, so that running out of them is tested too. */
static mpk_status fake_lend(mpk_context *cx, machine *m, float *to, uint64_t n, rt_u64 *at)
{
    fake *f = (fake *)m;
    assert_non_null(to); /* who wants no logits takes no place */
    CHECK(cx, !f->lent, MPK_ELIMIT, "the fake lends one place");
    assert_true(n <= sizeof f->logits / sizeof *f->logits);
    f->lent++;
    *at = (rt_u64)(uintptr_t)f->logits;
    return MPK_OK;
}

/* What the request's caller gets is what lay in the place when it was returned. */
static void fake_return(machine *m, rt_u64 at, float *to, uint64_t n)
{
    fake *f = (fake *)m;
    assert_int_equal(at, (rt_u64)(uintptr_t)f->logits);
    memcpy(to, f->logits, n * sizeof *to);
    f->lent--;
}

static void fake_peek(machine *m, rt_u64 at, float *to, uint64_t first, uint64_t n)
{
    fake *f = (fake *)m;
    assert_int_equal(at, (rt_u64)(uintptr_t)f->logits);
    memcpy(to + first, f->logits + first, n * sizeof *to);
}

static const machine_def plain = {
    .name = "fake", .ring = fake_ring, .check = fake_check, .wait = fake_wait};
static const machine_def lending = {.name = "fake",
                                    .ring = fake_ring,
                                    .check = fake_check,
                                    .wait = fake_wait,
                                    .lend_logits = fake_lend,
                                    .return_logits = fake_return,
                                    .peek_logits = fake_peek};

/* Rings as short as the books allow, so that they fill up and wrap. */
static fake *fake_open(mpk_context *cx, const machine_def *def)
{
    fake *f = calloc(1, sizeof *f);
    rt_serving s = {.ready = 1,
                    .asks = RT_NOWHERE,
                    .n_slots = SLOTS,
                    .max_tokens = 16,
                    .max_rows = 8,
                    .n_vocab = VOCAB,
                    .n_pages = 8,
                    .page_tokens = CONTEXT / 4,
                    .pages_per_slot = 4};
    host_rings *r = &f->ends;
    host_size_rings(&s, WAITING, TOKENS, r);
    r->request_ring = &f->rings[0];
    r->command_ring = &f->rings[1];
    r->token_ring = &f->rings[2];
    r->requests = calloc(r->request_mask + 1, sizeof *r->requests);
    r->commands = calloc(r->command_mask + 1, sizeof *r->commands);
    r->tokens = calloc(r->token_mask + 1, sizeof *r->tokens);
    r->token_arena = calloc(r->n_arena, sizeof *r->token_arena);
    r->bell = &f->bell;
    f->block.n_workers = 1;
    check_ok(cx, machine_begin(cx, &f->base, def, &(program_image){.block = &f->block}, &s, r));
    return f;
}

static void fake_close(fake *f)
{
    machine_end(&f->base);
    free(f->ends.requests);
    free(f->ends.commands);
    free(f->ends.tokens);
    free(f->ends.token_arena);
    free(f);
}

/* ---- the machine's side ---- */

/* The machine's side: take the oldest request out of its ring. */
static bool take_request(fake *f, rt_request *out)
{
    host_rings *r = &f->ends;
    if (!rt_ring_ready(r->request_ring))
        return false;
    *out = r->requests[r->request_ring->read.value & r->request_mask];
    rt_ring_took(r->request_ring, 1);
    return true;
}

static bool take_command(fake *f, rt_command *out)
{
    host_rings *r = &f->ends;
    if (!rt_ring_ready(r->command_ring))
        return false;
    *out = r->commands[r->command_ring->read.value & r->command_mask];
    rt_ring_took(r->command_ring, 1);
    return true;
}

/* The machine's side: put a token into the ring; false if it is full, and the machine must wait. */
static bool tell(fake *f, rt_token t)
{
    host_rings *r = &f->ends;
    if (!rt_ring_space(r->token_ring, r->token_mask + 1))
        return false;
    r->tokens[r->token_ring->written.value & r->token_mask] = t;
    rt_ring_wrote(r->token_ring, 1);
    return true;
}

/* ---- many requests ---- */

enum { MANY = 400 };

typedef struct played {
    uint64_t id;
    uint32_t n_prompt, told;
    int32_t first;
    bool cancelled, ended;
    uint32_t reason;
} played;

/* A request that the fake works on. */
typedef struct seat {
    uint64_t id;
    uint32_t left, index;
    rt_request request;
} seat;

typedef struct game {
    fake *f;
    mpk_context *cx;
    played all[MANY];
    uint32_t submitted, ended;
    seat seats[SLOTS];
    uint64_t last_taken; /* id: requests come in order */
    uint64_t seed, draws;
} game;

static uint32_t below(game *g, uint32_t n)
{
    return (uint32_t)(rng_u64(g->seed, g->draws++) >> 8) % n;
}

static played *by_id(game *g, uint64_t id)
{
    for (uint32_t i = 0; i < g->submitted; i++)
        if (g->all[i].id == id)
            return &g->all[i];
    fail_msg("nobody has submitted request %llu", (unsigned long long)id);
    return NULL;
}

/* Its prompt lies in the arena, unharmed by the others, until it ends. */
static void check_prompt(game *g, const rt_request *r)
{
    const played *p = by_id(g, r->id);
    assert_int_equal(r->n_prompt, p->n_prompt);
    assert_true(r->prompt + r->n_prompt <= g->f->ends.n_arena);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        assert_int_equal(g->f->ends.token_arena[r->prompt + i], p->first + (int32_t)i);
}

/* Prompts are runs of numbers from a first one that tells requests apart. */
static void submit_one(game *g)
{
    int32_t tokens[CONTEXT];
    played *p = &g->all[g->submitted];
    p->n_prompt = 1 + below(g, CONTEXT / 2);
    p->first = (int32_t)below(g, 1 << 20);
    for (uint32_t i = 0; i < p->n_prompt; i++)
        tokens[i] = p->first + (int32_t)i;
    check_ok(g->cx, machine_submit(g->cx, &g->f->base,
                                   &(machine_request){
                                       .tokens = tokens, .n_tokens = p->n_prompt, .max_tokens = 4},
                                   &p->id));
    g->submitted++;
}

/* Free slots take requests in the order in which they were submitted. */
static void admit(game *g)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        seat *s = &g->seats[i];
        if (s->left || !take_request(g->f, &s->request))
            continue;
        assert_true(s->request.id > g->last_taken);
        g->last_taken = s->id = s->request.id;
        s->left = 1 + below(g, 4);
        s->index = 0;
    }
}

/* One token of each seat, as far as the ring has room; a cancelled one ends. */
static void step(game *g)
{
    rt_command c = {0};
    while (take_command(g->f, &c)) {
        assert_int_equal(c.kind, RT_CANCEL);
        assert_true(by_id(g, c.id)->cancelled);
        for (uint32_t i = 0; i < SLOTS; i++)
            if (g->seats[i].left && g->seats[i].id == c.id)
                g->seats[i].left = 1;
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        seat *s = &g->seats[i];
        if (!s->left)
            continue;
        check_prompt(g, &s->request);
        rt_token t = {.id = s->id,
                      .token = 7,
                      .index = s->index,
                      .reason = s->left == 1 ? RT_LENGTH : RT_GOING};
        if (!tell(g->f, t))
            continue;
        s->left--;
        s->index++;
    }
}

/* Take a few entries at a time. Tokens of a request come in order, none after its end, and a
 * request that was cancelled while it waited has none. */
static void drain(game *g)
{
    rt_token out[3];
    uint32_t n;
    check_ok(g->cx, machine_drain(g->cx, &g->f->base, out, 1 + below(g, 3), 0, &n));
    for (uint32_t i = 0; i < n; i++) {
        played *p = by_id(g, out[i].id);
        assert_false(p->ended);
        if (out[i].token >= 0)
            assert_int_equal(out[i].index, p->told++);
        if (out[i].reason == RT_CANCELLED)
            assert_true(p->cancelled && out[i].token < 0 && !p->told);
        p->ended = out[i].reason != RT_GOING;
        g->ended += p->ended;
    }
}

/* Every request ends exactly once, in whatever order submitting, cancelling, working and draining
 * come. */
static void test_many_requests(void **state)
{
    (void)state;
    mpk_context cx = {0};
    game *g = calloc(1, sizeof *g);
    g->cx = &cx;
    g->seed = check_seed();
    g->f = fake_open(&cx, &plain);
    for (uint32_t round = 0; g->ended < MANY; round++) {
        assert_true(round < 1000 * MANY);
        uint32_t what = below(g, 8);
        if (what < 3 && g->submitted < MANY)
            submit_one(g);
        else if (what == 3 && g->submitted) {
            played *p = &g->all[below(g, g->submitted)];
            p->cancelled |= !p->ended;
            machine_cancel(&g->f->base, p->id);
        } else if (what < 6) {
            admit(g);
            step(g);
        } else
            drain(g);
    }
    assert_false(host_books_are_busy(&g->f->base.books));
    assert_true(g->f->rings_heard > 0);
    for (uint32_t i = 0; i < MANY; i++)
        assert_true(g->all[i].ended && (g->all[i].told || g->all[i].cancelled));
    fake_close(g->f);
    free(g);
}

/* ---- one at a time ---- */

/* What the ring has no room for waits in the book; a request cancelled there never reaches the
 * machine. */
static void test_waiting_and_cancelling(void **state)
{
    (void)state;
    mpk_context cx = {0};
    fake *f = fake_open(&cx, &plain);
    int32_t prompt[4] = {1, 2, 3, 4};
    uint64_t id[WAITING + 2];
    rt_token t;
    rt_request r;
    uint32_t n;
    for (uint32_t i = 0; i < WAITING + 2; i++)
        check_ok(&cx, machine_submit(&cx, &f->base,
                                     &(machine_request){.tokens = prompt, .n_tokens = 4}, &id[i]));
    assert_int_equal(rt_ring_ready(f->ends.request_ring), WAITING);
    machine_cancel(&f->base, id[WAITING]);
    machine_cancel(&f->base, id[WAITING]); /* once is enough */
    check_ok(&cx, machine_drain(&cx, &f->base, &t, 1, UINT64_MAX, &n));
    assert_int_equal(n, 1);
    assert_int_equal(t.id, id[WAITING]);
    assert_int_equal(t.reason, RT_CANCELLED);
    assert_true(take_request(f, &r));
    assert_true(tell(f, (rt_token){.id = r.id, .token = 9, .reason = RT_EOS}));
    check_ok(&cx, machine_drain(&cx, &f->base, &t, 1, UINT64_MAX, &n));
    assert_int_equal(t.id, id[0]);
    assert_int_equal(rt_ring_ready(f->ends.request_ring), WAITING); /* the last one has moved up */
    for (uint32_t i = 1; i < WAITING; i++)
        assert_true(take_request(f, &r));
    assert_true(take_request(f, &r));
    assert_int_equal(r.id, id[WAITING + 1]);
    fake_close(f);
}

/* Of those that wait in the book, the ring gets that with the least priority first. */
static void test_priorities(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    enum { N = 12 };
    mpk_context cx = {0};
    fake *f = fake_open(&cx, &plain);
    int32_t prompt[4] = {1, 2, 3, 4}, priority[WAITING + N];
    uint64_t id;
    rt_request r = {0}, before = {.priority = INT32_MIN};
    for (uint32_t i = 0; i < WAITING + N; i++) {
        priority[i] = (int32_t)(rng_u64(seed, i) % 5) - 2;
        machine_request one = {.tokens = prompt, .n_tokens = 4, .priority = priority[i]};
        check_ok(&cx, machine_submit(&cx, &f->base, &one, &id));
        assert_int_equal(id, i + 1);
    }
    for (uint32_t i = 0; i < WAITING + N; i++) {
        assert_true(take_request(f, &r));
        assert_int_equal(r.priority, priority[r.id - 1]);
        if (i < WAITING)
            assert_int_equal(r.id, i + 1);
        else
            assert_true(r.priority > before.priority ||
                        (r.priority == before.priority && r.id > before.id));
        before = i < WAITING ? (rt_request){.priority = INT32_MIN} : r;
        rt_token t = {.id = r.id, .token = 9, .reason = RT_EOS};
        uint32_t n;
        assert_true(tell(f, t));
        check_ok(&cx, machine_drain(&cx, &f->base, &t, 1, UINT64_MAX, &n));
    }
    fake_close(f);
}

/* Logits pass through a place that the target lends, and only while a feed is under way. */
static void test_lent_logits(void **state)
{
    (void)state;
    mpk_context cx = {0};
    fake *f = fake_open(&cx, &lending);
    int32_t prompt[3] = {1, 2, 3};
    float logits[3 * VOCAB] = {0};
    uint64_t id, other;
    rt_token t;
    rt_request r;
    rt_command c = {0};
    uint32_t n;
    machine_request wanted = {.tokens = prompt,
                              .n_tokens = 3,
                              .host_samples = true,
                              .all_logits = true,
                              .logits = logits};
    check_ok(&cx, machine_submit(&cx, &f->base, &wanted, &id));
    check_fails(&cx, MPK_ELIMIT, "lends one place", machine_submit(&cx, &f->base, &wanted, &other));
    assert_true(take_request(f, &r));
    assert_int_equal(r.logits, (rt_u64)(uintptr_t)f->logits);
    for (uint32_t i = 0; i < 3 * VOCAB; i++)
        f->logits[i] = (float)i;
    assert_true(tell(f, (rt_token){.id = id, .token = -1, .count = 3}));
    check_ok(&cx, machine_drain(&cx, &f->base, &t, 1, UINT64_MAX, &n));
    assert_int_equal(f->lent, 0);
    assert_true(logits[3 * VOCAB - 1] == (float)(3 * VOCAB - 1));

    check_fails(&cx, MPK_EARG, "no tokens to append",
                machine_append(&cx, &f->base, id, prompt, 0, logits));
    check_fails(&cx, MPK_EARG, "no room for their logits",
                machine_append(&cx, &f->base, id, prompt, 1, NULL));
    check_ok(&cx, machine_append(&cx, &f->base, id, prompt, 1, logits));
    check_fails(&cx, MPK_EARG, "does not wait",
                machine_append(&cx, &f->base, id, prompt, 1, logits));
    assert_true(take_command(f, &c));
    assert_int_equal(c.kind, RT_APPEND);
    assert_int_equal(f->ends.token_arena[c.tokens], prompt[0]);
    assert_int_equal(f->lent, 1);
    machine_cancel(&f->base, id);
    machine_cancel(&f->base, id); /* told once */
    assert_true(take_command(f, &c));
    assert_int_equal(c.kind, RT_CANCEL);
    assert_false(take_command(f, &c));
    assert_true(tell(f, (rt_token){.id = id, .token = -1, .reason = RT_CANCELLED}));
    check_ok(&cx, machine_drain(&cx, &f->base, &t, 1, UINT64_MAX, &n));
    assert_int_equal(f->lent, 0);
    assert_false(host_books_are_busy(&f->base.books));
    fake_close(f);
}

/* Drafts are tried by a machine that drafts, for requests that it samples itself. */
static void test_who_drafts(void **state)
{
    (void)state;
    mpk_context cx = {0};
    int32_t prompt[3] = {1, 2, 3};
    float logits[3 * VOCAB];
    for (int i = 0; i < 4; i++) {
        const bool machine_drafts = i & 1, host_samples = i & 2;
        fake *f = fake_open(&cx, &lending);
        uint64_t id;
        rt_request r;
        f->base.books.serving.draft_tokens = machine_drafts ? 4 : 0;
        machine_request wanted = {.tokens = prompt,
                                  .n_tokens = 3,
                                  .max_tokens = 2,
                                  .drafts = 3,
                                  .host_samples = host_samples,
                                  .all_logits = host_samples,
                                  .logits = host_samples ? logits : NULL};
        check_ok(&cx, machine_submit(&cx, &f->base, &wanted, &id));
        assert_true(take_request(f, &r));
        assert_int_equal(r.drafts, machine_drafts && !host_samples ? 3 : 0);
        assert_true(tell(f, (rt_token){.id = id, .token = -1, .reason = RT_CANCELLED}));
        rt_token t;
        uint32_t n;
        check_ok(&cx, machine_drain(&cx, &f->base, &t, 1, UINT64_MAX, &n));
        fake_close(f);
    }
}

/* Log probabilities come with their tokens, those of the prompt with the first; rules lie after the
 * prompt. */
static void test_lent_logprobs(void **state)
{
    (void)state;
    mpk_context cx = {0};
    fake *f = fake_open(&cx, &lending);
    int32_t prompt[3] = {1, 2, 3}, rules[2] = {77, 78};
    uint64_t id;
    rt_token t;
    rt_request r;
    uint32_t n;
    host_shares *shares = host_shares_new(2 * 2 * (3 + 2));
    machine_request wanted = {.tokens = prompt,
                              .n_tokens = 3,
                              .max_tokens = 2,
                              .rules = rules,
                              .n_rules = 2,
                              .n_logprobs = 2,
                              .all_logprobs = true,
                              .logprobs = shares};
    check_fails(&cx, MPK_EUNSUPPORTED, "without penalties",
                machine_submit(&cx, &f->base, &wanted, &id));
    f->base.books.serving.asks = 0;
    check_fails(&cx, MPK_ELIMIT, "take 2 words", machine_submit(&cx, &f->base, &wanted, &id));
    f->base.books.serving.rule_words = 8;
    wanted.max_tokens = 3;
    check_fails(&cx, MPK_EARG, "no room for them", machine_submit(&cx, &f->base, &wanted, &id));
    wanted.max_tokens = 2;
    host_shares *wide = host_shares_new(2 * 8 * (RT_LOGPROBS + 2));
    wanted.logprobs = wide;
    wanted.n_logprobs = RT_LOGPROBS + 1;
    check_fails(&cx, MPK_EARG, "at most 21 are possible",
                machine_submit(&cx, &f->base, &wanted, &id));
    host_shares_drop(wide);
    wanted.logprobs = shares;
    wanted.n_logprobs = 2;
    check_ok(&cx, machine_submit(&cx, &f->base, &wanted, &id));
    assert_true(take_request(f, &r));
    assert_true(r.n_rules == 2 && r.n_logprobs == 2 && r.flags == RT_ALL_SHARES);
    assert_memory_equal(f->ends.token_arena + r.prompt + 3, rules, sizeof rules);
    for (int i = 0; i < 20; i++)
        f->logits[i] = (float)i + 1;
    assert_true(tell(f, (rt_token){.id = id, .token = 0, .reason = RT_GOING}));
    check_ok(&cx, machine_drain(&cx, &f->base, &t, 1, UINT64_MAX, &n));
    assert_true(shares->at[0] == 1 && shares->at[15] == 16 && shares->at[16] == 0);
    assert_true(tell(f, (rt_token){.id = id, .token = 6, .index = 1, .reason = RT_LENGTH}));
    check_ok(&cx, machine_drain(&cx, &f->base, &t, 1, UINT64_MAX, &n));
    assert_true(shares->at[19] == 20);
    assert_int_equal(f->lent, 0);
    host_shares_drop(shares);
    fake_close(f);
}

/* Prompts that fill the token arena to its last word are all with the machine; one more waits. */
static void test_full_arena(void **state)
{
    (void)state;
    mpk_context cx = {0};
    fake *f = fake_open(&cx, &plain);
    const int32_t prompt[CONTEXT] = {0};
    const uint32_t fit = 4; /* requests in the ring */
    uint64_t id;
    f->base.books.rings.n_arena = fit * CONTEXT;
    for (uint32_t i = 0; i < fit; i++)
        check_ok(&cx,
                 machine_submit(&cx, &f->base,
                                &(machine_request){.tokens = prompt, .n_tokens = CONTEXT}, &id));
    assert_int_equal(rt_ring_ready(f->ends.request_ring), fit);
    fake_close(f);
    f = fake_open(&cx, &plain);
    f->base.books.rings.n_arena = fit * CONTEXT - 1;
    for (uint32_t i = 0; i < fit; i++)
        check_ok(&cx,
                 machine_submit(&cx, &f->base,
                                &(machine_request){.tokens = prompt, .n_tokens = CONTEXT}, &id));
    assert_int_equal(rt_ring_ready(f->ends.request_ring), fit - 1);
    fake_close(f);
}

/* Token 0 is a token like others: a request that the machine samples for does not wait for any
 * after it.  A mask for a request that has ended is dropped. */
static void test_token_0(void **state)
{
    (void)state;
    mpk_context cx = {0};
    fake *f = fake_open(&cx, &plain);
    const int32_t prompt[1] = {0};
    uint64_t id;
    uint32_t n = 0;
    rt_token t;
    check_ok(&cx, machine_submit(&cx, &f->base, &(machine_request){.tokens = prompt, .n_tokens = 1},
                                 &id));
    assert_true(tell(f, (rt_token){.id = id, .token = 0, .reason = RT_GOING}));
    check_ok(&cx, machine_drain(&cx, &f->base, &t, 1, UINT64_MAX, &n));
    assert_int_equal(n, 1);
    check_fails(&cx, MPK_EARG, "does not wait for tokens",
                machine_append(&cx, &f->base, id, prompt, 1, f->logits));
    machine_put_mask(&f->base, id + 1, 0, NULL);
    fake_close(f);
}

static void fake_mask(machine *m, uint32_t row, const uint32_t *bits, uint32_t n_words,
                      uint32_t index)
{
    (void)m, (void)bits, (void)n_words, (void)index;
    assert_int_equal(row, 0); /* the only one */
}

/* A request that has got its row of masks, and no place in the token arena, keeps the row while it
 * waits; it drafts nothing, since no row is there for what follows a draft.  A machine without
 * rows, or without the call that fills them, takes no masks. */
static void test_mask_that_waits(void **state)
{
    (void)state;
    mpk_context cx = {0};
    machine_def masking = plain;
    masking.put_mask = fake_mask;
    fake *f = fake_open(&cx, &masking);
    machine *m = &f->base;
    int32_t prompt[CONTEXT] = {0}, rules[1] = {0};
    const machine_request wide = {.tokens = prompt, .n_tokens = CONTEXT},
                          masked = {.tokens = prompt,
                                    .n_tokens = 1,
                                    .rules = rules,
                                    .n_rules = 1,
                                    .drafts = 3,
                                    .is_masked = true};
    uint64_t first, second;
    uint32_t n;
    rt_token t;
    rt_request r;
    m->books.serving.asks = 0;
    m->books.serving.rule_words = 1;
    assert_false(machine_takes_masks(m));
    check_fails(&cx, MPK_EUNSUPPORTED, "takes no masks", machine_submit(&cx, m, &masked, &second));
    m->books.serving.n_masks = 1;
    assert_true(machine_takes_masks(m));
    m->books.serving.draft_tokens = 4;
    m->books.rings.n_arena = CONTEXT;
    check_ok(&cx, machine_submit(&cx, m, &wide, &first));
    assert_true(take_request(f, &r));
    check_ok(&cx, machine_submit(&cx, m, &masked, &second));
    assert_false(take_request(f, &r));
    assert_true(tell(f, (rt_token){.id = first, .token = 1, .reason = RT_LENGTH}));
    check_ok(&cx, machine_drain(&cx, m, &t, 1, UINT64_MAX, &n));
    assert_true(take_request(f, &r));
    assert_true(r.id == second && r.mask == 1 && !r.drafts);
    m->def = &plain;
    assert_false(machine_takes_masks(m));
    fake_close(f);
}

/* What the last masks were put to, and how many were. */
static struct {
    uint32_t n, row, index;
} put;

static void note_mask(machine *m, uint32_t row, const uint32_t *bits, uint32_t n_words,
                      uint32_t index)
{
    (void)m, (void)bits, (void)n_words;
    put.n++;
    put.row = row;
    put.index = index;
}

/* The mask after a guess goes to the row of that guess, of those that a request has; before the
 * first and after the last there is none, and none of a request that has no masks or has ended. */
static void test_masks_of_guesses(void **state)
{
    (void)state;
    enum { GUESSES = 2, MASKS = 3 };
    static const uint32_t bits[64];
    mpk_context cx = {0};
    machine_def masking = plain;
    masking.put_mask = note_mask;
    fake *f = fake_open(&cx, &masking);
    machine *m = &f->base;
    int32_t prompt[1] = {0}, rules[1] = {0};
    machine_request r = {.tokens = prompt, .n_tokens = 1, .rules = rules, .n_rules = 1};
    uint64_t bare, masked;
    rt_request taken;
    m->books.serving.asks = 0;
    m->books.serving.rule_words = 1;
    m->books.serving.n_masks = MASKS;
    m->books.serving.n_guesses = GUESSES;
    check_ok(&cx, machine_submit(&cx, m, &r, &bare));
    r.is_masked = true;
    check_ok(&cx, machine_submit(&cx, m, &r, &masked));
    assert_true(take_request(f, &taken) && taken.id == bare && !taken.mask);
    assert_true(take_request(f, &taken) && taken.id == masked && taken.mask);
    for (uint32_t draft = 0; draft <= GUESSES + 1; draft++) {
        const bool has = draft >= 1 && draft <= GUESSES;
        put.n = 0;
        machine_put_guess(m, bare, draft, 7, bits);
        machine_put_guess(m, masked + 1, draft, 7, bits);
        assert_int_equal(put.n, 0);
        machine_put_guess(m, masked, draft, 7, bits);
        assert_int_equal(put.n, has);
        if (has)
            assert_true(put.row == MASKS + (taken.mask - 1) * GUESSES + draft - 1 &&
                        put.index == 8);
    }
    fake_close(f);
}

static mpk_status fake_run(mpk_context *cx, machine *m, uint32_t graph, uint32_t n_tokens,
                           uint32_t n_rows)
{
    (void)cx, (void)m, (void)graph, (void)n_tokens, (void)n_rows;
    return MPK_OK;
}

/* As many tokens and rows as a step can have, and not one more; UINT32_MAX stands for all. */
static void test_most_of_a_step(void **state)
{
    (void)state;
    mpk_context cx = {0};
    machine_def runs = plain;
    runs.run_graph = fake_run;
    fake *f = fake_open(&cx, &runs);
    machine *m = &f->base;
    m->image.n_graphs = 1;
    check_ok(&cx, machine_run_graph(&cx, m, 0, RT_MAX_TOKENS, RT_MAX_ROWS));
    check_ok(&cx, machine_run_graph(&cx, m, 0, UINT32_MAX, UINT32_MAX));
    check_fails(&cx, MPK_ELIMIT, "a step of", machine_run_graph(&cx, m, 0, RT_MAX_TOKENS + 1, 1));
    check_fails(&cx, MPK_ELIMIT, "a step of", machine_run_graph(&cx, m, 0, 1, RT_MAX_ROWS + 1));
    check_fails(&cx, MPK_EARG, "graph 1 of 1", machine_run_graph(&cx, m, 1, 1, 1));
    fake_close(f);
}

/* A machine that has failed may have left any number in the place of a graph's. */
static void test_damaged_fault(void **state)
{
    (void)state;
    mpk_context cx = {0};
    fake *f = fake_open(&cx, &plain);
    for (uint32_t n = 0; n < 2; n++) {
        f->base.image.n_graphs = n;
        check_fails(&cx, MPK_EDEVICE, "fault record is damaged",
                    machine_say_fault(&cx, &f->base, &(rt_fault){.graph = n}));
    }
    fake_close(f);
}

/* A nudge ends a wait at once and is spent by it; a wait ends by its timeout; errors of the
 * machine and of the caller come back in words. */
static void test_waking_and_failing(void **state)
{
    (void)state;
    mpk_context cx = {0};
    fake *f = fake_open(&cx, &plain);
    int32_t prompt[CONTEXT + 1] = {0};
    uint64_t id;
    rt_token t;
    uint32_t n = 1;
    machine_nudge(&f->base);
    check_ok(&cx, machine_drain(&cx, &f->base, &t, 1, UINT64_MAX, &n));
    assert_int_equal(n, 0);
    assert_int_equal(f->waits, 0);
    check_ok(&cx, machine_drain(&cx, &f->base, &t, 1, 1000000, &n));
    assert_int_equal(n, 0);
    assert_true(f->waits > 0);
    check_fails(&cx, MPK_ELIMIT, "the context holds 64",
                machine_submit(&cx, &f->base,
                               &(machine_request){.tokens = prompt, .n_tokens = CONTEXT + 1}, &id));
    check_fails(
        &cx, MPK_EARG, "there is no room for them",
        machine_submit(&cx, &f->base,
                       &(machine_request){.tokens = prompt, .n_tokens = 1, .host_samples = true},
                       &id));
    f->base.books.serving.ready = 0;
    check_fails(
        &cx, MPK_EUNSUPPORTED, "takes no requests",
        machine_submit(&cx, &f->base, &(machine_request){.tokens = prompt, .n_tokens = 1}, &id));
    f->base.books.serving.ready = 1;
    f->base.books.serving.logits = RT_NOWHERE;
    check_fails(&cx, MPK_EARG, "the program gives no logits",
                machine_submit(&cx, &f->base,
                               &(machine_request){.tokens = prompt,
                                                  .n_tokens = 1,
                                                  .host_samples = true,
                                                  .logits = (float[VOCAB]){0}},
                               &id));
    f->base.books.serving.logits = 0;
    check_ok(&cx, machine_submit(&cx, &f->base,
                                 &(machine_request){.tokens = prompt,
                                                    .n_tokens = 1,
                                                    .n_eos = RT_MAX_EOS,
                                                    .eos = (int32_t[RT_MAX_EOS]){0}},
                                 &id));
    check_fails(&cx, MPK_ELIMIT, "tokens end the request",
                machine_submit(&cx, &f->base,
                               &(machine_request){.tokens = prompt,
                                                  .n_tokens = 1,
                                                  .n_eos = RT_MAX_EOS + 1,
                                                  .eos = (int32_t[RT_MAX_EOS + 1]){0}},
                               &id));
    check_fails(&cx, MPK_EARG, "graph 0 of 0", machine_run_graph(&cx, &f->base, 0, 1, 1));
    f->failed = true;
    check_fails(
        &cx, MPK_EDEVICE, "has failed",
        machine_submit(&cx, &f->base, &(machine_request){.tokens = prompt, .n_tokens = 1}, &id));
    check_fails(&cx, MPK_EDEVICE, "has failed",
                machine_drain(&cx, &f->base, &t, 1, UINT64_MAX, &n));
    fake_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_requests),
        cmocka_unit_test(test_waiting_and_cancelling),
        cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_lent_logits),
        cmocka_unit_test(test_lent_logprobs),
        cmocka_unit_test(test_who_drafts),
        cmocka_unit_test(test_waking_and_failing),
        cmocka_unit_test(test_full_arena),
        cmocka_unit_test(test_token_0),
        cmocka_unit_test(test_most_of_a_step),
        cmocka_unit_test(test_mask_that_waits),
        cmocka_unit_test(test_masks_of_guesses),
        cmocka_unit_test(test_damaged_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
