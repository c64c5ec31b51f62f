/* rt_step_test.c - lanes together, with as many as the includer says (rt_step_lanes_test.c).
 *
 * The steady path against the general path: two step tasks get the same requests, commands and
 * tokens, and one of them is made to take the general path each time, by one lane.  Both must
 * publish the same steps, bit by bit, hold the same pages and tell the host the same.  Every other
 * time steps are filled so that company changes no bit; pages are shared or not, requests grow or
 * not, and the laws of the pages hold after each step.  A draft model may guess: then its steps
 * find in its cache all tokens of a text before those that they feed. */
#include <stdbool.h>
#include <string.h>

#include "base/rng.h"
#include "check.h"
#include "rt_laws.h"

#include "rt_lanes.h"

enum {
    SLOTS = 40,
    P = 4,
    PER_SLOT = 16,
    PAGES = 300,
    T = 96,
    V = 50,
    RING = 128,
    ASKED = 8,
    MASKS = 3,
    WORDS = 16,
    RULES = 2,   /* words of a request's rules */
    ENTRIES = 3, /* log probabilities of a token at most */
    GRAPHS = 4,  /* of the model, and of the draft model */
    FEW = 2,     /* the largest graph for few tokens */
    DRAFTED = 8, /* tokens of a step with drafts */
    GRAMS = 32,  /* buckets of a slot */
    BUCKETS = 64,
    TEXTS = 64, /* pieces of the token arena, each for one request at a time */
    TEXT = 2 * PER_SLOT * P + RULES,
    POLLS = RT_STEP_MOVES ? 3000 : 250 /* a step is long where there are lanes */
};

/* The step area of the largest graph. */
typedef struct area {
    rt_i32 tokens[T], positions[T], slots[T], pages[SLOTS * PER_SLOT], rows[T], draws[T], next[T];
    rt_i32 history[SLOTS * PER_SLOT * P];
    rt_i64 seeds[T];
    float sampling[4 * T], logits[T * V];
    rt_i32 asks[RT_ASKS * T], rules[(SLOTS + MASKS) * WORDS];
    float shares[T * RT_LOGPROBS * 2];
} area;

typedef struct bed {
    rt_machine m;
    rt_control control;
    rt_serving serving;
    rt_worker worker;
    rt_slot slots[SLOTS];
    rt_request running[SLOTS];
    rt_u32 free_pages[PAGES], epochs[2 * GRAPHS], buckets[BUCKETS];
    rt_kv_page kv_pages[PAGES];
    rt_chain chains[SLOTS];
    struct {
        rt_drafter slots[SLOTS];
        rt_ahead ahead;
        rt_ahead_slot of[SLOTS];
        rt_u32 pages[PAGES];
    } drafters; /* at least as much as stands there for fewer slots */
    rt_u32 grams[SLOTS * (GRAMS + PER_SLOT * P)];
    rt_ring request_ring, command_ring, token_ring;
    rt_request requests[ASKED];
    rt_command commands[ASKED];
    rt_token tokens[RING];
    area area;
    float shares[TEXTS][PER_SLOT * P * ENTRIES * 2]; /* what the host is told, by request */
    rt_i32 seen[PAGES * P]; /* the draft model's cache: the token at each place */
    uint32_t n_guessed;     /* steps of the draft model */
} bed;

static rt_graph graphs[2 * GRAPHS];
static rt_event events[4 * GRAPHS];
static rt_i32 arena[TEXTS * TEXT];
static float logits[V];

static bed *make(uint32_t n_slots, uint32_t max_tokens, uint32_t max_rows, uint32_t n_pages,
                 uint32_t ring, uint32_t kind)
{
    const bool apart = kind & 1, deals = !apart && kind & 256, grows = !apart && kind & 2,
               shares = kind & 4, drafts = kind & 8, model = drafts && kind & 32, asks = kind & 128;
    const uint32_t draft_rows = apart ? graphs[FEW].n_rows : max_rows;
    bed *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->serving = (rt_serving){.n_slots = n_slots,
                              .n_pages = n_pages,
                              .page_tokens = P,
                              .pages_per_slot = PER_SLOT,
                              .n_vocab = V,
                              .max_tokens = max_tokens,
                              .max_rows = max_rows,
                              .few_tokens = apart ? graphs[FEW].n_tokens : 0,
                              .few_rows = graphs[FEW].n_rows,
                              .ready = 1,
                              .tokens = offsetof(area, tokens),
                              .positions = offsetof(area, positions),
                              .slots = offsetof(area, slots),
                              .pages = offsetof(area, pages),
                              .rows = offsetof(area, rows),
                              .sampling = offsetof(area, sampling),
                              .seeds = offsetof(area, seeds),
                              .draws = offsetof(area, draws),
                              .logits = offsetof(area, logits),
                              .next = offsetof(area, next),
                              .asks = asks ? offsetof(area, asks) : RT_NOWHERE,
                              .rules = offsetof(area, rules),
                              .shares = offsetof(area, shares),
                              .rule_words = WORDS,
                              .n_choices = max_rows,
                              .history = offsetof(area, history),
                              .history_tokens = PER_SLOT * P,
                              .grows = grows,
                              .deals = deals,
                              .unit = !shares ? 0
                                      : apart ? max_tokens
                                              : P,
                              .keeps_text = grows || drafts || (shares && !apart),
                              .draft_tokens = !drafts                ? 0
                                              : DRAFTED < draft_rows ? DRAFTED
                                                                     : draft_rows,
                              .drafts_freely = kind / 16 % 2,
                              .gram_tokens = model && kind & 64 ? 0 : 1 + rng_u64(kind, 0) % 3,
                              .gram_mask = GRAMS - 1,
                              .bucket_mask = BUCKETS - 1,
                              .keys = {0x123456789abcdefu, 0xfedcba987654321u},
                              .n_free = n_pages};
    for (uint32_t i = 0; i < n_pages; i++)
        b->free_pages[i] = n_pages - 1 - i;
    for (uint32_t i = 0; i < BUCKETS; i++)
        b->buckets[i] = RT_NONE;
    b->control.step.value = RT_NO_STEP;
    b->m = (rt_machine){.graphs = graphs,
                        .events = events,
                        .n_graphs = model ? 2 * GRAPHS : GRAPHS,
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
                        .drafters = b->drafters.slots,
                        .has_draft_model = model,
                        .grams = b->grams,
                        .step_area = (char *)&b->area,
                        .request_ring = &b->request_ring,
                        .command_ring = &b->command_ring,
                        .token_ring = &b->token_ring,
                        .requests = b->requests,
                        .commands = b->commands,
                        .tokens = b->tokens,
                        .token_arena = arena,
                        .n_arena = sizeof arena / sizeof *arena,
                        .request_mask = ASKED - 1,
                        .command_mask = ASKED - 1,
                        .token_mask = ring - 1};
    assert_true(rt_drafters_bytes(&b->serving, model) <= sizeof b->drafters);
    if (model)
        *rt_ahead_of(&b->m) = (rt_ahead){.first_graph = GRAPHS, .n_vocab = V};
    return b;
}

/* The graphs hold 1/8, 1/4, 1/2 and all of the largest step. */
static void make_graphs(uint32_t max_tokens, uint32_t max_rows)
{
    for (uint32_t g = 0; g < 2 * GRAPHS; g++) {
        uint32_t part = 1u << (GRAPHS - 1 - g % GRAPHS);
        graphs[g] = (rt_graph){.drafts = g >= GRAPHS,
                               .n_tokens = max_tokens / part ? max_tokens / part : 1,
                               .n_rows = max_rows / part ? max_rows / part : 1,
                               .most_fresh = RT_NONE,
                               .first_event = 2 * g,
                               .n_events = 2};
    }
}

/* A step of the draft model: what it feeds enters its cache, each place once, and its rows find
 * there the text and the drafts before them. */
static void check_draft_step(bed *b)
{
    const area *x = &b->area;
    bool fed[PAGES * P] = {0};
    b->n_guessed++;
    for (uint32_t t = 0; t < b->control.live[RT_TOKENS]; t++) {
        rt_i32 page = x->pages[x->slots[t] * PER_SLOT + x->positions[t] / P],
               at = page * P + x->positions[t] % P;
        assert_false(fed[at]);
        fed[at] = true;
        b->seen[at] = x->tokens[t];
    }
    for (uint32_t t = 0; t < b->control.live[RT_TOKENS]; t++)
        for (rt_i32 i = 0; i <= x->positions[t]; i++) {
            rt_i32 page = x->pages[x->slots[t] * PER_SLOT + i / P];
            assert_int_equal(b->seen[page * P + i % P], x->history[x->slots[t] * PER_SLOT * P + i]);
        }
}

/* What the program would do: each row's token depends on all that the step says of it.  Where
 * drafts are tried it is one of a few, so that some of them are right.  The draft model says what
 * the model will say, but for every third token. */
static void run_step(bed *b)
{
    area *x = &b->area;
    const bool guesses = b->m.has_draft_model && rt_ahead_of(&b->m)->running;
    if (guesses)
        check_draft_step(b);
    for (uint32_t r = 0; r < b->control.live[RT_ROWS]; r++) {
        uint64_t h = rng_u64((uint64_t)x->seeds[r], (uint64_t)x->draws[r]);
        rt_i32 t = x->rows[r], slot = x->slots[t], position = x->positions[t];
        assert_true(t >= 0 && t < (rt_i32)b->control.live[RT_TOKENS] && slot >= 0 &&
                    slot < (rt_i32)b->serving.n_slots);
        h = rng_u64(h, (uint64_t)x->tokens[t]);
        h = rng_u64(h, (uint64_t)position);
        h = rng_u64(h, (uint64_t)x->pages[slot * PER_SLOT + position / P]);
        if (b->serving.asks != RT_NOWHERE && x->asks[RT_ASKS * r + RT_ASK_RULES])
            for (rt_i32 i = 0; i < x->asks[RT_ASKS * r + RT_ASK_HISTORY]; i++)
                h = rng_u64(h, (uint64_t)x->history[x->asks[RT_ASKS * r + RT_ASK_FROM] + i]);
        x->next[r] =
            (rt_i32)(rng_u64(h, (uint64_t)x->sampling[4 * r]) % (b->serving.draft_tokens ? 3 : V));
        for (uint32_t i = 0; i < RT_LOGPROBS * 2; i++)
            x->shares[r * RT_LOGPROBS * 2 + i] = rng_float(h, i);
        if (guesses && h % 3 == 0)
            x->next[r] = h % 2 ? -1 : x->next[r] + 1;
    }
}

/* ---- the host, the same to both ---- */

typedef struct host {
    uint64_t seed, draws, n_sent, n_ended;
    uint64_t waiting; /* a request of the host's own sampler that waits; 0: none */
    uint64_t last;    /* the one that was heard of last */
} host;

static uint32_t below(host *h, uint32_t limit)
{
    return (uint32_t)(rng_u64(h->seed, h->draws++) % limit);
}

/* A prompt that begins as some others do, and the names of its pages after it. */
static void write_prompt(host *h, const bed *b, rt_request *r)
{
    rt_i32 *at = arena + r->prompt, *names = at + r->n_prompt + r->n_rules,
           story = (rt_i32)below(h, 3), own = (rt_i32)below(h, PER_SLOT * P);
    rt_name name = rt_name_begin(&b->serving, "salt", below(h, 2));
    for (rt_i32 i = 0; i < (rt_i32)r->n_prompt; i++)
        at[i] = i < own ? story : (rt_i32)below(h, V);
    r->n_names = below(h, 4) ? r->n_prompt / P + 1 : 0;
    for (rt_u32 i = 0; i < r->n_names; i++) {
        rt_name_tokens(&b->serving, &name, at + (i ? i - 1 : 0) * P, i ? P : 0);
        memcpy(names + i * RT_NAME_WORDS, &name, sizeof name);
    }
}

static void send_request(host *h, bed *const beds[2])
{
    rt_request r = {.id = ++h->n_sent,
                    .prompt = h->n_sent % TEXTS * TEXT,
                    .seed = below(h, 1000),
                    .n_prompt = 1 + below(h, below(h, 4) ? 4 : PER_SLOT * P - 1),
                    .n_eos = below(h, 3),
                    .drafts = below(h, 3) ? 0 : 1 + below(h, 6),
                    .priority = h->seed % 2 ? 0 : (rt_i32)below(h, 3) - 1,
                    .temperature = (float)below(h, 3)};
    r.max_tokens = below(h, PER_SLOT * P - r.n_prompt + 1);
    if (beds[0]->serving.asks != RT_NOWHERE) {
        r.n_rules = below(h, 2) ? RULES : 0;
        r.n_logprobs = below(h, 2) ? 1 + below(h, ENTRIES) : 0;
    }
    write_prompt(h, beds[0], &r);
    for (uint32_t i = 0; i < r.n_eos; i++)
        r.eos[i] = (rt_i32)below(h, V);
    if (below(h, 12) == 0) {
        r.flags = RT_HOST_SAMPLES;
        r.drafts = 0;
        r.logits = (rt_u64)(uintptr_t)logits;
    }
    for (int i = 0; i < 2; i++) {
        r.logprobs = (rt_u64)(uintptr_t)beds[i]->shares[r.id % TEXTS];
        beds[i]->requests[beds[i]->request_ring.written.value & (ASKED - 1)] = r;
        rt_ring_wrote(&beds[i]->request_ring, 1);
    }
}

static void send_command(host *h, bed *const beds[2])
{
    rt_command c = {.kind = RT_CANCEL, .id = h->last};
    if (h->waiting && below(h, 4)) {
        c = (rt_command){.kind = RT_APPEND,
                         .id = h->waiting,
                         .n = 1 + below(h, 3),
                         .tokens = below(h, 64),
                         .logits = (rt_u64)(uintptr_t)logits};
        h->waiting = 0;
    }
    for (int i = 0; i < 2; i++) {
        beds[i]->commands[beds[i]->command_ring.written.value & (ASKED - 1)] = c;
        rt_ring_wrote(&beds[i]->command_ring, 1);
    }
}

/* Read some of the tokens; both must have told the same. */
static void drain(host *h, bed *const beds[2], uint32_t most)
{
    uint32_t ready = rt_ring_ready(&beds[0]->token_ring), mask = beds[0]->m.token_mask;
    assert_int_equal(ready, rt_ring_ready(&beds[1]->token_ring));
    for (uint32_t n = 0; n < ready && n < most; n++) {
        const rt_token *t = &beds[0]->tokens[beds[0]->token_ring.read.value & mask];
        rt_token other = beds[1]->tokens[beds[1]->token_ring.read.value & mask];
        other.age_ns = t->age_ns; /* each has its own clock */
        assert_memory_equal(t, &other, sizeof *t);
        assert_true(!t->age_ns || (!t->index && !t->drafted));
        h->last = t->id;
        h->n_ended += t->reason != RT_GOING;
        if (t->token < 0 && t->reason == RT_GOING)
            h->waiting = t->id;
        for (int i = 0; i < 2; i++)
            rt_ring_took(&beds[i]->token_ring, 1);
    }
}

static void act(host *h, bed *const beds[2], uint32_t busy)
{
    if (below(h, busy) == 0 && rt_ring_space(&beds[0]->request_ring, ASKED))
        send_request(h, beds);
    if (below(h, h->waiting ? 4 : 16 * busy) == 0 && rt_ring_space(&beds[0]->command_ring, ASKED))
        send_command(h, beds);
    if (below(h, 4))
        drain(h, beds, below(h, 8) ? RING : below(h, 4));
}

/* ---- the comparison ---- */

/* `token` means something only while it is what the slot feeds; each has its own clock. */
static void check_same_slot(const rt_slot *a, const rt_slot *b)
{
    rt_slot x = *a, y = *b;
    assert_int_equal(x.state, y.state);
    if (x.state == RT_SLOT_FREE)
        return;
    if (x.source != RT_NOWHERE)
        x.token = y.token;
    x.admitted_ns = y.admitted_ns;
    assert_memory_equal(&x, &y, sizeof x);
}

static void check_same(const bed *a, const bed *b)
{
    assert_int_equal(a->control.step.value, b->control.step.value);
    assert_int_equal(a->control.stats.n_steps.value, b->control.stats.n_steps.value);
    assert_int_equal(a->serving.n_free, b->serving.n_free);
    assert_int_equal(a->serving.n_promised, b->serving.n_promised);
    assert_int_equal(a->serving.n_short, b->serving.n_short);
    assert_int_equal(a->serving.told, b->serving.told);
    assert_int_equal(a->control.stats.free_pages.value, b->control.stats.free_pages.value);
    assert_memory_equal(a->control.live, b->control.live, sizeof a->control.live);
    for (uint32_t i = 0; i < a->serving.n_slots; i++)
        check_same_slot(&a->slots[i], &b->slots[i]);
    assert_memory_equal(a->free_pages, b->free_pages, a->serving.n_free * sizeof *a->free_pages);
    assert_memory_equal(a->kv_pages, b->kv_pages, sizeof a->kv_pages);
    assert_memory_equal(a->buckets, b->buckets, sizeof a->buckets);
    assert_memory_equal(&a->drafters, &b->drafters, sizeof a->drafters);
    assert_memory_equal(a->grams, b->grams, sizeof a->grams);
    assert_memory_equal(&a->area, &b->area, sizeof a->area);
    assert_memory_equal(a->shares, b->shares, sizeof a->shares);
}

/* ---- the step task ---- */

static int step(void *user)
{
    bed *b = user;
    return rt_step_poll(&b->m, &b->worker);
}

/* The step task; 2: it took the steady path, which has no need to read the doorbell. */
static int poll_by(rt_u32 n_lanes, bed *b)
{
    enum { UNREAD = 0x5eed };
    b->worker.doorbell = UNREAD;
    int published = by_lanes(n_lanes, step, b);
    return published + (b->worker.doorbell == UNREAD);
}

static int poll(bed *b)
{
    return poll_by(MOST_LANES, b);
}

/* `n_ranked` counts the entries with a priority that have been looked at and not taken away; of
 * those that wait, `first`, if it is known, is the oldest of the least priority. */
static void check_ring(const bed *b)
{
    rt_u32 n = 0;
    const rt_request *first = NULL;
    for (rt_u32 at = b->request_ring.read.value; at != b->serving.n_looked; at++) {
        const rt_request *r = &b->requests[at & b->m.request_mask];
        n += r->priority != 0;
        if (!r->dropped && (!first || r->priority < first->priority))
            first = r;
    }
    assert_int_equal(n, b->serving.n_ranked);
    if (!b->serving.has_first)
        return;
    assert_ptr_equal(first, &b->requests[b->serving.first & b->m.request_mask]);
    assert_int_equal(first->priority, b->serving.first_priority);
}

/* always: with a draft model, else with one now and then. */
static uint32_t draw_kind(uint64_t seed, bool always)
{
    const uint32_t kind = (uint32_t)(rng_u64(seed, 0) % 512);
    return always ? (kind & ~1u) | 8 | 32 : kind;
}

/* How often a request paused, of all that lend; requests that ended. */
static uint64_t n_paused, n_ended;

static uint32_t compare(uint64_t seed, uint32_t kind, uint32_t n_slots, uint32_t max_rows,
                        uint32_t n_pages, uint32_t ring, uint64_t *drafted, uint64_t *guessed)
{
    make_graphs(T, max_rows);
    bed *beds[2] = {make(n_slots, T, max_rows, n_pages, ring, kind),
                    make(n_slots, T, max_rows, n_pages, ring, kind)};
    host h = {.seed = seed};
    uint32_t usual = 0, busy = 1 + (uint32_t)(seed % 20);
    for (uint32_t i = 0; i < POLLS; i++) {
        act(&h, beds, busy);
        beds[1]->serving.steady = 0;
        int a = poll(beds[0]), b = poll_by(1, beds[1]);
        assert_int_equal(a != 0, b != 0);
        assert_true(b < 2);
        usual += a == 2;
        check_loans(&beds[0]->m, !a && !beds[0]->serving.running);
        check_blocked(&beds[0]->m, !a && !beds[0]->serving.running);
        if (!a)
            continue;
        check_same(beds[0], beds[1]);
        check_pages(&beds[0]->m);
        check_order(&beds[0]->m);
        check_ring(beds[0]);
        run_step(beds[0]);
        run_step(beds[1]);
    }
    n_ended += h.n_ended;
    n_paused += beds[0]->serving.grows ? 0 : beds[0]->control.stats.put_back.value;
    *drafted += beds[0]->control.stats.drafted.value;
    assert_int_equal(beds[0]->control.stats.ahead_steps.value, beds[0]->n_guessed);
    *guessed += beds[0]->control.stats.ahead_accepted.value;
    free(beds[0]);
    free(beds[1]);
    return usual;
}

static void test_usual_step_is_the_general_one(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_slots, max_rows, n_pages, ring;
    } shapes[] = {{1, 8, 20, 16},      {3, 8, 20, 16},        {16, 16, PAGES, RING},
                  {16, 16, 40, 32},    {40, 40, PAGES, RING}, {16, 4, PAGES, RING},
                  {40, 40, PAGES, 128}};
    uint64_t seed = check_seed();
    const uint32_t least = check_rounds(40);
    uint32_t rounds = 0, usual = 0;
    uint64_t drafted = 0, guessed = 0;
    bool met = false;
    /* Few rounds may draw no bed whose requests pause, or none whose drafts stand; short ones may
     * end no request. */
    while (rounds < least || (!met && rounds < 20 * least)) {
        const uint32_t i = rounds++;
        usual += compare(seed + i, draw_kind(seed + i, i % 4 == 1), shapes[i % 7].n_slots,
                         shapes[i % 7].max_rows, shapes[i % 7].n_pages, shapes[i % 7].ring,
                         &drafted, &guessed);
        met = usual > rounds * POLLS / 20 && drafted > 0 && guessed > 0 && n_paused > 0 &&
              n_ended > rounds;
    }
    print_message("%u of %u steps were usual ones\n", usual, rounds * POLLS);
    print_message("%llu drafts of the draft model stood\n", (unsigned long long)guessed);
    print_message("%llu times a request paused\n", (unsigned long long)n_paused);
    assert_true(met);
}

/* ---- single rules ---- */

/* A bed whose requests may have masks. */
static bed *make_masked(void)
{
    bed *b = make(2, 8, 8, 16, RING, 0);
    b->serving.asks = offsetof(area, asks);
    b->serving.rules = offsetof(area, rules);
    b->serving.shares = RT_NOWHERE;
    b->serving.rule_words = WORDS;
    b->serving.n_masks = MASKS;
    return b;
}

static void submit_to(bed *b, rt_u64 id, rt_u32 mask)
{
    b->requests[rt_load_relaxed_device(&b->request_ring.written)] = (rt_request){
        .id = id, .n_prompt = 3, .max_tokens = 7, .mask = mask, .n_rules = mask ? 2 : 0};
    rt_ring_wrote(&b->request_ring, 1);
}

/* A stream whose mask is late skips steps, others go on; then it draws the same token from the same
 * position. */
static void test_late_mask(void **state)
{
    (void)state;
    make_graphs(8, 8);
    bed *b = make_masked();
    rt_word *number = (rt_word *)&b->area.rules[(2 + 1) * WORDS];
    submit_to(b, 1, 2);
    assert_true(poll(b)); /* the prompt's step is not held up by the mask */
    assert_int_equal(b->area.asks[RT_ASK_MASK], 1 + 2 + 1);
    b->area.next[0] = RT_LATE_TOKEN;
    submit_to(b, 2, 0);
    assert_true(poll(b));
    assert_int_equal(b->control.live[RT_TOKENS], 3); /* the other's prompt alone */
    assert_int_equal(b->slots[0].state, RT_SLOT_LATE);
    b->area.next[0] = 7;
    assert_true(poll(b));
    assert_int_equal(b->control.live[RT_TOKENS], 1);
    rt_store_release_system(number, 1);
    b->area.next[0] = 8;
    assert_true(poll(b));
    assert_int_equal(b->control.live[RT_TOKENS], 2); /* both */
    rt_u32 row = b->slots[0].step_row;
    assert_true(b->area.positions[row] == 2 && b->area.draws[row] == 0 &&
                b->slots[0].position == 2);
    b->area.next[row] = 9;
    /* of a request without a mask it is a token like others */
    b->area.next[1 - row] = RT_LATE_TOKEN;
    assert_true(poll(b));
    assert_true(b->slots[0].token == 9 && b->slots[0].position == 3 && b->slots[1].generated == 3);
    row = b->slots[0].step_row;
    rt_store_release_system(number, 2);
    b->area.next[row] = 10;
    b->area.next[1 - row] = 11;
    assert_int_equal(poll(b), 2); /* both in time: the steady path */
    b->area.next[row] = RT_LATE_TOKEN;
    assert_int_equal(poll(b), 1);
    assert_true(b->slots[0].state == RT_SLOT_LATE && b->slots[0].position == 4);
    rt_store_release_system(number, 3);
    b->area.next[0] = 12;
    assert_true(poll(b));
    assert_int_equal(b->area.tokens[b->slots[0].step_row], 10); /* again */
    submit_to(b, 3, MASKS + 1);                                 /* there is no such mask */
    poll(b);
    rt_u32 told = b->serving.told;
    assert_int_equal(b->tokens[(told - 1) & (RING - 1)].reason, RT_REFUSED);
    free(b);
}

/* However often a request that still waits is cancelled, its end is told once, and it never gets a
 * slot. */
static void test_cancelled_once(void **state)
{
    (void)state;
    make_graphs(8, 8);
    bed *b = make(1, 8, 8, 16, RING, 0);
    for (rt_u64 id = 1; id <= 3; id++)
        submit_to(b, id, 0);
    assert_true(poll(b)); /* the first holds the only slot */
    for (rt_u32 i = 0; i < 3; i++)
        b->commands[i] = (rt_command){.kind = RT_CANCEL, .id = i < 2 ? 2 : 1};
    rt_ring_wrote(&b->command_ring, 3);
    for (int i = 0; i < 12; i++)
        (void)poll(b);
    rt_u32 ends[4] = {0};
    for (rt_u32 i = 0; i < b->serving.told; i++) {
        const rt_token *t = &b->tokens[i];
        assert_in_range(t->id, 1, 3);
        ends[t->id] += t->reason != RT_GOING;
        assert_true(t->id != 2 || (t->token < 0 && t->reason == RT_CANCELLED));
    }
    assert_true(ends[1] == 1 && ends[2] == 1 && ends[3] == 1);
    free(b);
}

/* With one slot, requests begin by priority, and of equals in the order in which they came; those
 * that are cancelled before never do. */
static void test_priorities(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    make_graphs(8, 8);
    bed *b = make(1, 8, 8, 16, RING, 0);
    rt_i32 last = INT32_MIN;
    rt_u64 last_id = 0;
    rt_u32 n_begun = 0;
    for (rt_u64 id = 1; id <= ASKED; id++) {
        submit_to(b, id, 0);
        b->requests[id - 1].priority = (rt_i32)(rng_u64(seed, id) % 5) - 2;
    }
    rt_u64 gone = 1 + rng_u64(seed, 0) % ASKED;
    b->commands[0] = (rt_command){.kind = RT_CANCEL, .id = gone};
    rt_ring_wrote(&b->command_ring, 1);
    while (n_begun < ASKED - 1) {
        assert_true(poll(b));
        const rt_request *r = &b->running[0];
        assert_true(b->slots[0].state == RT_SLOT_FEEDING && r->id != gone);
        n_begun += r->id != last_id;
        if (r->id != last_id && last_id)
            assert_true(r->priority > last || (r->priority == last && r->id > last_id));
        last = r->priority;
        last_id = r->id;
        check_ring(b);
    }
    while (poll(b))
        continue;
    assert_int_equal(b->request_ring.read.value, ASKED);
    assert_int_equal(b->serving.n_ranked, 0);
    free(b);
}

/* The name of the first n pages of a text without salt. */
static rt_name name_of_pages(const bed *b, const rt_i32 *text, rt_u32 n)
{
    rt_name name = rt_name_begin(&b->serving, "", 0);
    rt_name_tokens(&b->serving, &name, text, n * P);
    return name;
}

/* Once the prompt of a request whose tokens the host samples has been fed, the host writes other
 * things to its part of the arena.  The pages of the answer get their true names all the same. */
static void test_names_of_host_sampled_answers(void **state)
{
    (void)state;
    enum { ANSWER = 2 * P, AT = TEXT };
    static const rt_u32 prompts[] = {1, P - 1, P, P + 1, 2 * P + 3};
    make_graphs(8, 8);
    for (size_t k = 0; k < sizeof prompts / sizeof *prompts; k++) {
        bed *b = make(1, 8, 8, 16, RING, 4);
        rt_u32 n = prompts[k], n_names = n / P + 1;
        rt_i32 text[3 * P + ANSWER];
        for (rt_u32 i = 0; i < 3 * P + ANSWER; i++)
            text[i] = (rt_i32)(rng_u64(77 + k, i) % V);
        for (rt_u32 i = 0; i < n && i < 3 * P; i++)
            arena[i] = text[i];
        rt_i32 *end = arena + n;
        for (rt_u32 i = 0; i < n_names; i++, end += RT_NAME_WORDS) {
            rt_name name = name_of_pages(b, text, i);
            memcpy(end, &name, sizeof name);
        }
        b->requests[0] = (rt_request){.id = 1,
                                      .n_prompt = n,
                                      .n_names = n_names,
                                      .flags = RT_HOST_SAMPLES,
                                      .logits = (rt_u64)(uintptr_t)logits};
        rt_ring_wrote(&b->request_ring, 1);
        while (poll(b))
            ;
        assert_int_equal(b->slots[0].state, RT_SLOT_WAITING);
        for (rt_u32 i = 0; i < AT; i++)
            arena[i] = 1;
        memcpy(arena + AT, text + n, ANSWER * sizeof *text);
        b->commands[0] = (rt_command){.kind = RT_APPEND,
                                      .id = 1,
                                      .n = ANSWER,
                                      .tokens = AT,
                                      .logits = (rt_u64)(uintptr_t)logits};
        rt_ring_wrote(&b->command_ring, 1);
        while (poll(b))
            ;
        b->commands[1] = (rt_command){.kind = RT_CANCEL, .id = 1};
        rt_ring_wrote(&b->command_ring, 1);
        (void)poll(b);
        assert_int_equal(b->serving.n_kept, (n + ANSWER) / P);
        for (rt_u32 i = 1; i <= (n + ANSWER) / P; i++) {
            rt_name name = name_of_pages(b, text, i);
            assert_true(rt_page_find(&b->m, &name) != RT_NONE);
        }
        free(b);
    }
}

/* Two requests with one prompt ask the draft model in the same step.  What they share is fed once:
 * by the first, for both. */
static void test_drafts_on_shared_pages(void **state)
{
    (void)state;
    enum { PROMPT = 3 * P + 2, KIND = 4 | 8 | 32 | 64 }; /* shared pages, a draft model alone */
    host h = {.seed = check_seed()};
    make_graphs(T, 8);
    bed *b = make(2, T, 8, 20, RING, KIND);
    rt_i32 *end = arena + PROMPT;
    for (rt_u32 i = 0; i < PROMPT; i++)
        arena[i] = (rt_i32)below(&h, V);
    for (rt_u32 i = 0; i <= 3; i++, end += RT_NAME_WORDS) {
        rt_name name = name_of_pages(b, arena, i);
        memcpy(end, &name, sizeof name);
    }
    for (rt_u64 id = 1; id <= 2; id++)
        b->requests[id - 1] = (rt_request){
            .id = id, .n_prompt = PROMPT, .n_names = 4, .drafts = 4, .seed = 7, .max_tokens = 20};
    rt_ring_wrote(&b->request_ring, 2);
    while (!b->n_guessed) {
        assert_true(poll(b));
        run_step(b);
    }
    assert_int_equal(b->control.stats.found.value, 3 * P);
    assert_in_range(b->control.live[RT_TOKENS], PROMPT + 2, 2 * PROMPT - 1);
    assert_int_equal(b->control.live[RT_ROWS], 2);
    free(b);
}

/* Prompts may fill a step up to its end, but beside few requests that decode only a short one. */
static void test_short_steps_beside_decoding(void **state)
{
    (void)state;
    static const rt_u32 cases[][3] = {
        /* largest step, tokens that decode, tokens of the step at most */
        {2048, 0, 2048}, {2048, 1, 512}, {2048, 255, 512}, {2048, 256, 2048},
        {8192, 16, 512}, {512, 16, 512}, {64, 3, 64},      {1024, 600, 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const rt_serving s = {.max_tokens = cases[i][0], .built_tokens = cases[i][1]};
        assert_int_equal(rt_step_most(&s), cases[i][2]);
    }
}

/* Is a graph for steps with so many tokens without a row? */
static bool is_for(const rt_graph *g, rt_u32 tokens, rt_u32 rows)
{
    return g->most_fresh == RT_NONE || tokens <= rows + g->most_fresh;
}

/* The graph of a step holds it and is for its pieces of prompts; none smaller does.  The last one
 * takes what no other does. */
static void test_graph_of_a_step(void **state)
{
    (void)state;
    host h = {.seed = check_seed()};
    for (uint32_t k = 0; k < 2000; k++) {
        rt_graph all[GRAPHS];
        rt_serving s = {.built_tokens = 1 + below(&h, 1u << GRAPHS)};
        s.built_rows = below(&h, s.built_tokens + 1);
        for (uint32_t i = 0; i < GRAPHS; i++)
            all[i] = (rt_graph){.n_tokens = 2u << i,
                                .n_rows = 1 + below(&h, 2u << i),
                                .most_fresh = below(&h, 2) ? RT_NONE : below(&h, 4)};
        all[GRAPHS - 1].n_rows = 1u << GRAPHS;
        const rt_machine m = {.graphs = all, .n_graphs = GRAPHS, .serving = &s};
        const rt_u32 chosen = rt_step_graph(&m);
        assert_true(chosen < GRAPHS && all[chosen].n_tokens >= s.built_tokens &&
                    all[chosen].n_rows >= s.built_rows);
        assert_true(chosen == GRAPHS - 1 || is_for(&all[chosen], s.built_tokens, s.built_rows));
        for (uint32_t i = 0; i < chosen; i++)
            assert_true(all[i].n_tokens < s.built_tokens || all[i].n_rows < s.built_rows ||
                        !is_for(&all[i], s.built_tokens, s.built_rows));
    }
}

/* What goes into the step word comes out of it. */
static void test_step_word(void **state)
{
    (void)state;
    static const rt_u32 tokens[] = {0, 1, 4095, RT_MAX_TOKENS, RT_NONE},
                        rows[] = {0, 1, 4096, RT_MAX_ROWS, RT_NONE};
    for (rt_u32 i = 0; i < 5 * 5; i++) {
        rt_u32 graph = i % 2 ? RT_MAX_GRAPHS - 1 : i, epoch = i % 3 ? 0xffffffffu - i : i;
        rt_u64 step = rt_step_word(graph, epoch, tokens[i / 5], rows[i % 5]);
        assert_true(step != RT_NO_STEP);
        assert_int_equal(rt_word_graph(step), graph);
        assert_int_equal(rt_word_epoch(step), epoch);
        assert_int_equal(rt_word_live(step, RT_TOKENS), tokens[i / 5]);
        assert_int_equal(rt_word_live(step, RT_ROWS), rows[i % 5]);
        assert_int_equal(rt_word_live(step, RT_ALL), RT_NONE);
    }
    assert_true(rt_step_word(RT_MAX_GRAPHS - 1, RT_NONE, RT_NONE, RT_NONE) != RT_NO_STEP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usual_step_is_the_general_one),
        cmocka_unit_test(test_late_mask),
        cmocka_unit_test(test_cancelled_once),
        cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_names_of_host_sampled_answers),
        cmocka_unit_test(test_drafts_on_shared_pages),
        cmocka_unit_test(test_short_steps_beside_decoding),
        cmocka_unit_test(test_graph_of_a_step),
        cmocka_unit_test(test_step_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
