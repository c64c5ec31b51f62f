/* rt_serve_test.c - the step task under requests: a tiny program whose next token depends on every
 * token of its sequence as read back from the paged cache, so that a page shared, lost or written
 * by another request changes the answer.
 *
 * Checked: answers do not depend on company, order of arrival, chunks or workers, nor on pages
 * that are shared, kept, taken back, or lost to older or more urgent requests; back-pressure of
 * pages, slots and rings loses nothing; cancelled and refused requests end once; every page comes
 * home; host samplers; idling; a draft model that is the program itself is always right, so its
 * cache never falls behind.  And of a program whose answers do depend on what shares a step:
 * filled apart, steps give each request what it gets alone, whoever computed its pages.
 */
#include "base/rng.h"
#include "base/thread.h"
#include "check.h"
#include "cpu/cpu.h"
#include "ir/op.h"

enum { V = 97, B = 3, P = 4, N = 8, N_PAGES = 14, MAX_T = 8, CONTEXT = N * P };
enum { CACHE_BYTES = 4 * N_PAGES * P };

/* ---- the program: two operators ---- */

/* What a fussy program remembers of a token is touched by what may change the last bits on a GPU:
 * in graphs of more than FEW tokens all that goes on around it. */
enum { FEW = 4 };
static bool fussy;

/* Rows of the largest step, and does the program like to say again what it said after the same
 * token?  Then drafts are worth something. */
static uint32_t most_rows = 2;
static bool echoes;

/* Has the program a draft model: one like itself, or one that errs in every fourth draft? */
static enum { ALONE, WITH_ITSELF, WITH_ANOTHER } drafts_of;

static uint64_t mix(uint64_t a, uint64_t b)
{
    return rng_u64(a, b);
}

static int32_t touch(const op_call *call, uint32_t t)
{
    const int32_t *tokens = call->in[0].data, *positions = call->in[1].data;
    const uint32_t graph = (uint32_t)call->in[0].dims[0], live = call->live[IR_TOKENS];
    uint64_t h = mix(mix(graph, live), t);
    for (uint32_t i = 0; i < live; i++)
        h = mix(h, (uint64_t)positions[i]);
    return tokens[t] + (graph > FEW ? V * (int32_t)(h % 1000) : 0);
}

static int32_t *cache_at(const op_view *cache, const op_view *pages, int32_t slot, int32_t position)
{
    int32_t page = ((const int32_t *)pages->data)[slot * N + position / P];
    return (int32_t *)cache->data + page * P + position % P;
}

/* (tokens, positions, slots, pages, cache) -> cache: remember each token. */
static void write_run(const op_call *call, const ir_box *box, void *scratch)
{
    const int32_t *tokens = call->in[0].data, *positions = call->in[1].data,
                  *slots = call->in[2].data;
    (void)box;
    (void)scratch;
    for (uint32_t t = 0; t < call->live[IR_TOKENS]; t++)
        *cache_at(&call->in[4], &call->in[3], slots[t], positions[t]) =
            fussy ? touch(call, t) : tokens[t];
}

static float logit(uint64_t h, int v)
{
    return (float)(mix(h, (uint64_t)v) % 1000);
}

/* Draw `number` after a text of this hash whose last token is `last`. */
static int32_t next_token(uint64_t h, uint64_t number, int32_t last)
{
    uint64_t x = mix(h, number);
    return echoes && x % 8 ? (3 * last + 1) % 7 : (int32_t)(x / (echoes ? 8 : 1) % V);
}

/* (cache, positions, slots, pages, rows, sampling, seeds, draws) -> next, logits: a hash of the
 * whole sequence. */
static void next_run(const op_call *call, const ir_box *box, void *scratch)
{
    const int32_t *positions = call->in[1].data, *slots = call->in[2].data,
                  *rows = call->in[4].data, *draws = call->in[7].data;
    (void)scratch;
    for (int64_t r = box->lo[0]; r < box->hi[0]; r++) {
        uint64_t h = mix((uint64_t)((const int64_t *)call->in[6].data)[r],
                         (uint64_t)((const float *)call->in[5].data)[4 * r]);
        for (int32_t p = 0; p <= positions[rows[r]]; p++)
            h = mix(h, (uint64_t)*cache_at(&call->in[0], &call->in[3], slots[rows[r]], p));
        ((int32_t *)call->out[0].data)[r] =
            next_token(h, (uint64_t)draws[r],
                       *cache_at(&call->in[0], &call->in[3], slots[rows[r]], positions[rows[r]]));
        for (int v = 0; v < V; v++)
            ((float *)call->out[1].data)[r * V + v] = logit(h, v);
    }
}

/* Of the draft model. */
static void guess_run(const op_call *call, const ir_box *box, void *scratch)
{
    int32_t *next = call->out[0].data;
    next_run(call, box, scratch);
    for (int64_t r = box->lo[0]; r < box->hi[0]; r++)
        if (drafts_of == WITH_ANOTHER && mix((uint64_t)next[r], (uint64_t)r) % 4 == 0)
            next[r] = (next[r] + 1) % V;
}

static mpk_status write_infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    (void)cx;
    out[0] = g->tensors.at[op->in[4]];
    out[0].shares = op->in[4];
    return MPK_OK;
}

static mpk_status next_infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    (void)cx;
    int64_t rows = g->tensors.at[op->in[4]].dims[0];
    out[0].dtype = IR_I32;
    out[1].dtype = IR_F32;
    out[0].live = out[1].live = IR_ROWS;
    out[0].rank = 1;
    out[1].rank = 2;
    out[0].dims[0] = out[1].dims[0] = rows;
    out[1].dims[1] = V;
    return MPK_OK;
}

static void reads_all(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                      ir_box *read)
{
    (void)box;
    *read = ir_box_whole(&g->tensors.at[op->in[input]]);
}

#define OPERAND          \
    {                    \
        "x", OP_REQUIRED \
    }
static const op_def write_def = {
    .name = "test_write",
    .in = (const op_operand[]){OPERAND, OPERAND, OPERAND, OPERAND, OPERAND},
    .n_in = 5,
    .out = (const op_operand[]){OPERAND},
    .n_out = 1,
    .infer = write_infer,
    .reads = reads_all,
    .ref = write_run};
static const op_def next_def = {.name = "test_next",
                                .in = (const op_operand[]){OPERAND, OPERAND, OPERAND, OPERAND,
                                                           OPERAND, OPERAND, OPERAND, OPERAND},
                                .n_in = 8,
                                .out = (const op_operand[]){OPERAND, OPERAND},
                                .n_out = 2,
                                .infer = next_infer,
                                .reads = reads_all,
                                .ref = next_run};
static const op_def guess_def = {.name = "test_guess",
                                 .in = (const op_operand[]){OPERAND, OPERAND, OPERAND, OPERAND,
                                                            OPERAND, OPERAND, OPERAND, OPERAND},
                                 .n_in = 8,
                                 .out = (const op_operand[]){OPERAND, OPERAND},
                                 .n_out = 2,
                                 .infer = next_infer,
                                 .reads = reads_all,
                                 .ref = guess_run};

/* ---- its image: graphs for 1, 2, 4 and 8 tokens, and as many of the draft model ---- */

typedef struct program {
    arena arena;
    tg_program p;
    tg_compiled graphs[8];
    program_image image;
} program;

/* Each tensor lies 1024 bytes after the one before, in every graph; the caches do so, too. */
static tg_place *place(const ir_graph *ir, arena *a, bool drafts)
{
    const char *cache = drafts ? "draft.k_cache.0" : "k_cache.0";
    tg_place *places = arena_alloc(a, ir->tensors.n, sizeof *places);
    for (uint32_t t = 0; t < ir->tensors.n; t++)
        places[t] = (tg_place){TG_STEP, 1024 * t};
    places[ir_find(ir, cache)] = places[ir_find(ir, "written")] =
        (tg_place){TG_STATE, drafts ? CACHE_BYTES : 0};
    return places;
}

static void add_program_ops(mpk_context *cx, ir_graph *g, int64_t t, int64_t r, bool drafts)
{
    static const char *const names[] = {"tokens", "positions", "slots", "pages",
                                        "rows",   "sampling",  "seeds", "draws"};
    const int64_t dims[][2] = {{t}, {t}, {t}, {B, N}, {r}, {r, 4}, {r}, {r}},
                  cache[] = {N_PAGES, 1, P, 1};
    ir_tensor_id in[9], written, out[2], history;
    for (int i = 0; i < 8; i++)
        check_ok(cx, ir_add_tensor(cx, g, IR_INPUT,
                                   i < 3    ? IR_TOKENS
                                   : i == 3 ? IR_ALL
                                            : IR_ROWS,
                                   names[i],
                                   i == 5   ? IR_F32
                                   : i == 6 ? IR_I64
                                            : IR_I32,
                                   i == 3 || i == 5 ? 2 : 1, dims[i], &in[i]));
    check_ok(cx, ir_add_tensor(cx, g, IR_STATE, IR_ALL, drafts ? "draft.k_cache.0" : "k_cache.0",
                               IR_I32, 4, cache, &in[8]));
    check_ok(cx, ir_add_tensor(cx, g, IR_INPUT, IR_ALL, "history", IR_I32, 1,
                               &(int64_t){B * CONTEXT}, &history));
    check_ok(cx, ir_add_op_as(cx, g, &write_def, &STR("written"), 5,
                              (ir_tensor_id[]){in[0], in[1], in[2], in[3], in[8]}, NULL, &written));
    check_ok(cx, ir_add_op_as(
                     cx, g, drafts ? &guess_def : &next_def, (str[]){STR("next"), STR("logits")}, 8,
                     (ir_tensor_id[]){written, in[1], in[2], in[3], in[4], in[5], in[6], in[7]},
                     NULL, out));
}

/* Task 0 writes; then one task for each row. */
static tg_graph *add_tasks(mpk_context *cx, arena *a, const ir_graph *ir, uint32_t rows,
                           uint32_t n_workers, bool jit)
{
    tg_graph *g = arena_alloc(a, 1, sizeof *g);
    *g = (tg_graph){.arena = a,
                    .ir = ir,
                    .level = TG_LINEAR,
                    .n_tasks = 1 + rows,
                    .n_events = 3,
                    .n_workers = n_workers};
    g->tasks = arena_alloc(a, 1 + rows, sizeof *g->tasks);
    g->events = arena_alloc(a, 3, sizeof *g->events);
    g->tasks[0] = (tg_task){.op = 0,
                            .box = ir_box_whole(&ir->tensors.at[ir_find(ir, "written")]),
                            .depends = TG_START,
                            .triggers = 2};
    for (uint32_t i = 0; i < rows; i++) {
        tg_task *t = &g->tasks[1 + i];
        *t = (tg_task){.op = 1,
                       .depends = 2,
                       .triggers = TG_END,
                       .launch = jit ? TG_JIT : TG_AOT,
                       .worker = jit ? TG_NONE : i % n_workers};
        t->box.lo[0] = i;
        t->box.hi[0] = i + 1;
    }
    check_ok(cx, tg_fill_events(cx, g));
    return g;
}

static void make(mpk_context *cx, program *s, uint32_t n_workers, bool jit)
{
    *s = (program){.p = {.n_workers = n_workers, .page_bytes = 4096, .graphs = s->graphs}};
    s->p.n_graphs = drafts_of ? 8 : 4;
    s->p.area_bytes[TG_STATE] = CACHE_BYTES * (drafts_of ? 2 : 1);
    s->p.area_bytes[TG_STEP] = 1024 * 16 + 4 * V * MAX_T;
    for (uint32_t i = 0; i < s->p.n_graphs; i++) {
        uint32_t t = 1u << i % 4, r = t < most_rows ? t : most_rows;
        const bool drafts = i >= 4;
        ir_graph *ir;
        check_ok(cx, ir_create(cx, &s->arena, "serve", &ir));
        add_program_ops(cx, ir, t, r, drafts);
        s->graphs[i] = (tg_compiled){
            .n_tokens = t, .drafts = drafts, .ir = ir, .places = place(ir, &s->arena, drafts)};
        s->graphs[i].tg = add_tasks(cx, &s->arena, ir, r, n_workers, jit);
    }
    check_ok(cx, image_make(cx, &s->arena, &s->p, &s->image));
}

/* ---- what a request must give ---- */

typedef struct expected {
    int32_t prompt[CONTEXT], answer[CONTEXT];
    machine_request r;
    int32_t eos;
    uint32_t n, reason; /* the right answer */
    uint32_t got, ends; /* what came */
    bool cancel;
    uint64_t id;
} expected;

static uint64_t hash_of(const expected *e, const int32_t *answer, uint32_t n)
{
    uint64_t h = mix(e->r.seed, (uint64_t)e->r.temperature);
    for (uint32_t i = 0; i < e->r.n_tokens; i++)
        h = mix(h, (uint64_t)e->prompt[i]);
    for (uint32_t i = 0; i < n; i++)
        h = mix(h, (uint64_t)answer[i]);
    return h;
}

static void solve(expected *e)
{
    for (e->n = 0, e->reason = RT_GOING; e->reason == RT_GOING;) {
        int32_t last = e->n ? e->answer[e->n - 1] : e->prompt[e->r.n_tokens - 1];
        int32_t token = next_token(hash_of(e, e->answer, e->n), e->n, last);
        e->answer[e->n++] = token;
        if (e->r.n_eos && token == e->eos)
            e->reason = RT_EOS;
        else if (e->r.max_tokens && e->n == e->r.max_tokens)
            e->reason = RT_LENGTH;
        else if (e->r.n_tokens + e->n > CONTEXT)
            e->reason = RT_CONTEXT;
    }
}

static uint32_t below(uint64_t seed, uint64_t *n, uint32_t limit)
{
    return (uint32_t)(rng_u64(seed, (*n)++) % limit);
}

/* The beginning is one of a few texts: prompts share up to all of it, and some have a salt. */
static void draw_request(expected *e, uint64_t seed)
{
    uint64_t n = 0, story = below(seed, &n, 3);
    *e = (expected){.r.tokens = e->prompt};
    e->r.n_tokens = 1 + below(seed, &n, CONTEXT);
    uint32_t own = below(seed, &n, 2) ? CONTEXT : below(seed, &n, CONTEXT);
    for (uint32_t i = 0; i < e->r.n_tokens; i++)
        e->prompt[i] = (int32_t)(i < own ? mix(story, i) % V : below(seed, &n, V));
    e->r.salt = "tenant";
    e->r.n_salt = below(seed, &n, 4) ? 0 : 1 + below(seed, &n, 6);
    e->r.alone = below(seed, &n, 8) == 0;
    e->r.max_tokens = below(seed, &n, CONTEXT - e->r.n_tokens + 1); /* 0: to the end */
    e->r.seed = rng_u64(seed, n++);
    e->r.temperature = (float)below(seed, &n, 3);
    e->eos = (int32_t)below(seed, &n, echoes ? 12 : V);
    e->r.eos = &e->eos;
    e->r.n_eos = below(seed, &n, 2);
    e->cancel = below(seed, &n, 6) == 0;
    e->r.drafts = below(seed, &n, 8);
    e->r.priority = (int32_t)below(seed, &n, 3);
    solve(e);
}

static expected *find(expected *all, uint32_t n, uint64_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (all[i].id == id)
            return &all[i];
    fail_msg("a token for a request that nobody made: %llu", (unsigned long long)id);
    return NULL;
}

/* One entry of the token ring against what must come. */
static void take_token(expected *e, const rt_token *t)
{
    assert_int_equal(e->ends, 0);
    if (t->token >= 0) {
        assert_true(e->got < e->n);
        assert_int_equal(t->index, e->got);
        if (t->token != e->answer[e->got])
            fail_msg("request %llu: token %u is %d, expected %d", (unsigned long long)e->id, e->got,
                     t->token, e->answer[e->got]);
        e->got++;
    }
    if (t->reason == RT_GOING)
        return;
    e->ends++;
    if (t->reason == RT_CANCELLED && e->cancel)
        return;
    assert_int_equal(t->reason, e->reason);
    assert_int_equal(e->got, e->n);
}

/* Submit all in random bursts, draining at random, until every request has ended. */
static void serve_all(mpk_context *cx, machine *m, expected *all, uint32_t n, uint64_t seed)
{
    uint64_t draws = 0;
    uint32_t sent = 0, ended = 0;
    while (ended < n) {
        rt_token tokens[16];
        uint32_t burst = below(seed, &draws, 8), got;
        for (uint32_t i = 0; i < burst && sent < n; i++, sent++) {
            check_ok(cx, machine_submit(cx, m, &all[sent].r, &all[sent].id));
            if (all[sent].cancel && below(seed, &draws, 2))
                machine_cancel(m, all[sent].id);
        }
        check_ok(cx, machine_drain(cx, m, tokens, 1 + below(seed, &draws, 16),
                                   sent < n ? 100000 : 60000000000u, &got));
        assert_true(got || sent < n);
        for (uint32_t i = 0; i < got; i++) {
            expected *e = find(all, sent, tokens[i].id);
            take_token(e, &tokens[i]);
            ended += e->ends;
            if (e->cancel && !e->ends && below(seed, &draws, 3) == 0)
                machine_cancel(m, e->id);
        }
    }
}

/* A request's end is told before its pages are let go: wait until all have come home. */
static void describe_at_rest(machine *m, machine_facts *out)
{
    uint32_t looks = 0;
    do {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        machine_describe(m, out);
    } while (out->free_pages != N_PAGES && ++looks < 20000);
    assert_int_equal(out->free_pages, N_PAGES);
}

/* What the machine says of itself when all have ended. */
static machine_facts run_requests(uint32_t n_workers, bool jit, uint64_t seed, uint32_t n,
                                  const cpu_options *o)
{
    mpk_context cx = {0};
    program s;
    machine *m;
    machine_facts facts;
    expected *all = calloc(n, sizeof *all);
    make(&cx, &s, n_workers, jit);
    check_ok(&cx, cpu_start(&cx, &s.image, NULL, o, &m));
    for (uint32_t i = 0; i < n; i++)
        draw_request(&all[i], seed + i);
    serve_all(&cx, m, all, n, seed);
    describe_at_rest(m, &facts);
    assert_int_equal(facts.max_context, CONTEXT);
    assert_true(facts.found <= facts.asked);
    machine_stop(m);
    arena_free(&s.arena);
    free(all);
    return facts;
}

static void test_random_requests(void **state)
{
    (void)state;
    uint64_t seed = check_seed(), found = 0, asked = 0, put_back = 0;
    for (uint32_t i = 0; i < 40; i++) {
        machine_facts f = run_requests(1 + i % 5, i & 1, seed + 1000 * i, 300, NULL);
        found += f.found, asked += f.asked, put_back += f.put_back;
    }
    assert_true(found > asked / 20 && put_back > 0); /* one round may put none back */
}

/* Each policy without the other. */
static void test_pages_lent_or_not_shared(void **state)
{
    (void)state;
    uint64_t seed = check_seed(), put_back[2] = {0};
    for (uint32_t i = 0; i < 40; i++) {
        const cpu_options o = {.lend_pages = i % 2 == 0, .no_shared_pages = i % 2};
        machine_facts f = run_requests(1 + i / 2 % 5, i / 2 & 1, seed + i / 2, 200, &o);
        assert_true(i % 2 ? f.found == 0 && f.asked == 0 : f.found > 0);
        put_back[i % 2] += f.put_back;
    }
    assert_true(put_back[0] > 0 && put_back[1] > 0);
}

/* Rings so short that every one of them is full most of the time. */
static void test_short_rings(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    for (uint32_t i = 0; i < 20; i++)
        run_requests(1 + i % 3, i & 1, seed + 1000 * i, 200,
                     &(cpu_options){.waiting_requests = 2,
                                    .token_entries = 1,
                                    .delay_seed = i & 1 ? seed : 0});
}

/* Drafts of random numbers, looked up by random numbers of tokens, with each policy for pages and
 * short rings: the answers are those that they would be without. */
static void test_drafts(void **state)
{
    (void)state;
    uint64_t seed = check_seed(), drafted = 0, accepted = 0;
    echoes = true;
    most_rows = MAX_T;
    for (uint32_t i = 0; i < 60; i++) {
        const cpu_options o = {.draft_tokens = 2 + i % 8,
                               .gram_tokens = 1 + i % 3,
                               .drafts_freely = i % 4 > 1,
                               .lend_pages = i % 5 == 0,
                               .no_shared_pages = i % 7 == 0,
                               .token_entries = i % 4 ? 0 : 1,
                               .delay_seed = i % 6 ? 0 : seed};
        machine_facts f = run_requests(1 + i % 5, i & 1, seed + 1000 * i, 150, &o);
        drafted += f.drafted;
        accepted += f.accepted;
    }
    print_message("%.0f of %.0f drafts were drawn\n", (double)accepted, (double)drafted);
    assert_true(accepted > drafted / 10 && accepted < drafted);
    assert_int_equal(run_requests(2, false, seed, 100, NULL).drafted, 0);
    echoes = false;
    most_rows = 2;
}

/* A draft model, alone and after look-up.  Alone, and like the program, it is always right: its
 * cache holds the whole text, whatever was shared, put back, cancelled or taken before. */
static void test_draft_model(void **state)
{
    (void)state;
    uint64_t seed = check_seed(), drafted = 0, accepted = 0, steps[3] = {0};
    echoes = true;
    most_rows = MAX_T;
    for (uint32_t i = 0; i < 60; i++) {
        const cpu_options o = {.draft_tokens = 2 + i % 7,
                               .gram_tokens = i % 3,
                               .drafts_freely = i % 4 > 1,
                               .lend_pages = i % 5 == 0,
                               .no_shared_pages = i % 7 == 0,
                               .token_entries = i % 4 ? 0 : 1,
                               .delay_seed = i % 6 ? 0 : seed};
        drafts_of = i % 2 ? WITH_ITSELF : WITH_ANOTHER;
        machine_facts f = run_requests(1 + i % 5, i / 2 & 1, seed + 1000 * i, 150, &o);
        assert_true(f.ahead_drafted <= f.drafted);
        steps[i % 3] += f.ahead_steps; /* few where the look-up and a short ring leave few */
        assert_true(o.gram_tokens || f.ahead_drafted == f.drafted);
        assert_true(drafts_of == WITH_ANOTHER || f.ahead_accepted == f.ahead_drafted);
        drafted += f.ahead_drafted;
        accepted += f.ahead_accepted;
    }
    print_message("%llu of %llu drafts of the draft model were drawn\n",
                  (unsigned long long)accepted, (unsigned long long)drafted);
    assert_true(accepted > drafted / 4 && accepted < drafted && steps[0] && steps[1] && steps[2]);
    drafts_of = ALONE;
    echoes = false;
    most_rows = 2;
}

/* Submit all in random bursts and note the tokens that each gets. */
static void record_all(mpk_context *cx, machine *m, expected *all, uint32_t n, uint64_t seed)
{
    uint64_t draws = 0;
    uint32_t sent = 0, ended = 0;
    while (ended < n) {
        rt_token t;
        uint32_t got;
        for (uint32_t burst = below(seed, &draws, 4); burst && sent < n; burst--, sent++) {
            all[sent].got = 0;
            check_ok(cx, machine_submit(cx, m, &all[sent].r, &all[sent].id));
        }
        check_ok(cx, machine_drain(cx, m, &t, 1, sent < n ? 20000 : 60000000000u, &got));
        assert_true(got || sent < n);
        if (!got)
            continue;
        expected *e = find(all, sent, t.id);
        if (t.token >= 0)
            e->answer[e->got++] = t.token;
        ended += t.reason != RT_GOING;
    }
}

/* How many of the requests get other tokens together, with pages that others have computed and, by
 * *o, drafts, than one by one without.  *accepted grows by the drafts that stood. */
static uint32_t count_touched(uint32_t n_workers, uint64_t seed, const cpu_options *o,
                              uint64_t *accepted)
{
    enum { n = 100 };
    mpk_context cx = {0};
    program s;
    machine *m;
    machine_facts facts;
    uint32_t touched = 0;
    expected *alone = calloc(n, sizeof *alone), *among = calloc(n, sizeof *among);
    assert_true(alone && among);
    make(&cx, &s, n_workers, false);
    const cpu_options plain = {.few_tokens = o->few_tokens, .no_shared_pages = true};
    check_ok(&cx, cpu_start(&cx, &s.image, NULL, &plain, &m));
    for (uint32_t i = 0; i < n; i++) {
        draw_request(&alone[i], seed + i);
        alone[i].r.tokens = alone[i].prompt;
        alone[i].r.eos = &alone[i].eos;
        among[i] = alone[i];
        record_all(&cx, m, &alone[i], 1, seed);
    }
    machine_stop(m);
    check_ok(&cx, cpu_start(&cx, &s.image, NULL, o, &m));
    record_all(&cx, m, among, n, seed);
    machine_describe(m, &facts);
    assert_true(facts.found > 0);
    *accepted += facts.accepted;
    for (uint32_t i = 0; i < n; i++)
        touched += alone[i].got != among[i].got ||
                   memcmp(alone[i].answer, among[i].answer, alone[i].got * 4) != 0;
    machine_stop(m);
    arena_free(&s.arena);
    free(alone);
    free(among);
    return touched;
}

/* Of a program that depends on company, steps that are filled apart keep it away, with drafts too;
 * others do not. */
static void test_company(void **state)
{
    (void)state;
    uint64_t seed = check_seed(), accepted = 0, touched = 0;
    echoes = fussy = true;
    most_rows = MAX_T;
    for (uint32_t i = 0; i < 30; i++) {
        const cpu_options o = {.few_tokens = FEW, .draft_tokens = i % 8, .gram_tokens = 1};
        assert_int_equal(count_touched(1 + i % 3, seed + 1000 * i, &o, &accepted), 0);
    }
    assert_true(accepted > 0);
    for (uint32_t i = 0; i < 3; i++)
        touched += count_touched(1, seed + 1000 * i, &(cpu_options){0}, &accepted);
    assert_true(touched > 0);
    fussy = echoes = false;
    most_rows = 2;
}

/* Random requests of a program that does not depend on company get what they must however steps are
 * filled. */
static void test_requests_apart(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    for (uint32_t i = 0; i < 30; i++)
        run_requests(1 + i % 4, i & 1, seed + 1000 * i, 300,
                     &(cpu_options){.few_tokens = 1u << i % 4, .token_entries = i % 3 ? 0 : 1});
}

/* Which of two requests ends first: one to the end of the context, and one that came later and
 * would not fit beside it if both had all their pages promised.  Nothing is drained before both are
 * there, so the first cannot end. */
static uint64_t first_to_end(mpk_context *cx, const program *s, bool lend_pages)
{
    machine *m;
    uint64_t ids[2];
    rt_token t = {0};
    uint32_t got;
    int32_t prompt[CONTEXT] = {0};
    machine_request r = {.tokens = prompt, .n_tokens = 1};
    check_ok(cx, cpu_start(cx, &s->image, NULL,
                           &(cpu_options){.token_entries = 1, .lend_pages = lend_pages}, &m));
    check_ok(cx, machine_submit(cx, m, &r, &ids[0]));
    r.n_tokens = CONTEXT - P;
    r.max_tokens = 1;
    check_ok(cx, machine_submit(cx, m, &r, &ids[1]));
    while (t.reason == RT_GOING)
        check_ok(cx, machine_drain(cx, m, &t, 1, 60000000000u, &got));
    machine_stop(m);
    return t.id - ids[0];
}

static void test_short_beside_long(void **state)
{
    (void)state;
    mpk_context cx = {0};
    program s;
    make(&cx, &s, 2, false);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(first_to_end(&cx, &s, false), 1);
        assert_int_equal(first_to_end(&cx, &s, true), 1);
    }
    arena_free(&s.arena);
}

/* Tokens of the prompt that a request finds in the cache; it generates one. */
static uint32_t find_tokens(mpk_context *cx, machine *m, const int32_t *prompt, uint32_t n,
                            const char *salt, bool alone, uint32_t max_tokens, int32_t *answer)
{
    uint64_t id;
    rt_token t = {0};
    uint32_t got;
    machine_request r = {.tokens = prompt,
                         .n_tokens = n,
                         .max_tokens = max_tokens,
                         .salt = salt,
                         .n_salt = strlen(salt),
                         .alone = alone};
    check_ok(cx, machine_submit(cx, m, &r, &id));
    for (uint32_t i = 0; t.reason == RT_GOING; i++) {
        check_ok(cx, machine_drain(cx, m, &t, 1, 60000000000u, &got));
        assert_int_equal(got, 1);
        answer[i] = t.token;
    }
    return t.count;
}

/* What is found: whole pages, of the same salt, of answers too, never the whole prompt. */
static void test_what_is_found(void **state)
{
    (void)state;
    mpk_context cx = {0};
    program s;
    machine *m;
    int32_t prompt[CONTEXT], answer[CONTEXT];
    for (int i = 0; i < CONTEXT; i++)
        prompt[i] = i;
    make(&cx, &s, 2, false);
    check_ok(&cx, cpu_start(&cx, &s.image, NULL, NULL, &m));
    assert_int_equal(find_tokens(&cx, m, prompt, 2 * P, "", true, 1, answer), 0);
    assert_int_equal(find_tokens(&cx, m, prompt, 2 * P, "", false, 1, answer), 0);
    assert_int_equal(find_tokens(&cx, m, prompt, 2 * P, "", false, 1, answer), P);
    assert_int_equal(find_tokens(&cx, m, prompt, 2 * P + 1, "", false, 1, answer), 2 * P);
    assert_int_equal(find_tokens(&cx, m, prompt, 2 * P + 1, "a", false, 1, answer), 0);
    assert_int_equal(find_tokens(&cx, m, prompt, 2 * P + 1, "a", false, 1, answer), 2 * P);
    assert_int_equal(find_tokens(&cx, m, prompt, 2 * P + 1, "ab", false, 1, answer), 0);
    assert_int_equal(find_tokens(&cx, m, prompt, 2 * P + 1, "", true, 1, answer), 0);
    prompt[P] = V - 1;
    assert_int_equal(find_tokens(&cx, m, prompt, 2 * P + 1, "", false, 1, answer), P);
    /* an answer, continued */
    assert_int_equal(find_tokens(&cx, m, prompt, P + 1, "", false, 3 * P, answer), P);
    memcpy(prompt + P + 1, answer, 3 * P * sizeof *prompt);
    assert_int_equal(find_tokens(&cx, m, prompt, 4 * P + 1, "", false, 1, answer), 4 * P);
    machine_stop(m);
    arena_free(&s.arena);
}

static void test_refused_at_submission(void **state)
{
    (void)state;
    mpk_context cx = {0};
    program s;
    machine *m;
    uint64_t id;
    int32_t prompt[CONTEXT + 1] = {0};
    make(&cx, &s, 2, false);
    check_ok(&cx, cpu_start(&cx, &s.image, NULL, NULL, &m));
    check_fails(
        &cx, MPK_ELIMIT, "the context holds 32",
        machine_submit(&cx, m, &(machine_request){.tokens = prompt, .n_tokens = CONTEXT + 1}, &id));
    check_fails(
        &cx, MPK_ELIMIT, "ask for at most 2",
        machine_submit(&cx, m,
                       &(machine_request){.tokens = prompt, .n_tokens = 30, .max_tokens = 3}, &id));
    check_fails(&cx, MPK_EARG, "no token",
                machine_submit(&cx, m, &(machine_request){.tokens = prompt}, &id));
    machine_stop(m);
    arena_free(&s.arena);
}

/* A sampler of the host's own: feeds of random length, logits of all tokens or of the last. */
static void drive_sequence(mpk_context *cx, machine *m, uint64_t seed, bool all_logits)
{
    static float logits[CONTEXT * V];
    expected e = {0};
    uint64_t draws = 0, id;
    uint32_t fed = 0, length = CONTEXT - below(seed, &draws, 4), n = 1 + below(seed, &draws, 12);
    for (uint32_t i = 0; i < CONTEXT; i++)
        e.prompt[i] = (int32_t)below(seed, &draws, V);
    e.r = (machine_request){.tokens = e.prompt,
                            .n_tokens = n,
                            .host_samples = true,
                            .all_logits = all_logits,
                            .logits = logits};
    check_ok(cx, machine_submit(cx, m, &e.r, &id));
    for (;;) {
        rt_token t;
        uint32_t got;
        check_ok(cx, machine_drain(cx, m, &t, 1, 60000000000u, &got));
        assert_int_equal(got, 1);
        assert_int_equal(t.reason, RT_GOING);
        assert_int_equal(t.count, all_logits ? n : 1);
        for (uint32_t i = all_logits ? 0 : n - 1; i < n; i++) {
            e.r.n_tokens = fed + i + 1;
            for (int v = 0; v < V; v++)
                assert_true(logits[(all_logits ? i : 0) * V + (uint32_t)v] ==
                            logit(hash_of(&e, NULL, 0), v));
        }
        fed += n;
        if (fed == length)
            break;
        n = 1 + below(seed, &draws, length - fed);
        check_ok(cx, machine_append(cx, m, id, e.prompt + fed, n, logits));
        check_fails(cx, MPK_EARG, "does not wait", machine_append(cx, m, id, e.prompt, 1, logits));
    }
    rt_token t;
    uint32_t got;
    machine_cancel(m, id);
    check_ok(cx, machine_drain(cx, m, &t, 1, 60000000000u, &got));
    assert_int_equal(got, 1);
    assert_int_equal(t.reason, RT_CANCELLED);
}

static void test_host_samples(void **state)
{
    (void)state;
    mpk_context cx = {0};
    program s;
    machine *m;
    uint64_t seed = check_seed();
    make(&cx, &s, 2, false);
    for (uint32_t few = 0; few <= FEW; few += FEW) {
        check_ok(&cx, cpu_start(&cx, &s.image, NULL, &(cpu_options){.few_tokens = few}, &m));
        for (uint64_t i = 0; i < 100; i++)
            drive_sequence(&cx, m, seed + i / 4, i & 1); /* later ones find pages */
        machine_stop(m);
    }
    arena_free(&s.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_requests), cmocka_unit_test(test_pages_lent_or_not_shared),
        cmocka_unit_test(test_drafts),          cmocka_unit_test(test_draft_model),
        cmocka_unit_test(test_what_is_found),   cmocka_unit_test(test_short_beside_long),
        cmocka_unit_test(test_short_rings),     cmocka_unit_test(test_company),
        cmocka_unit_test(test_requests_apart),  cmocka_unit_test(test_refused_at_submission),
        cmocka_unit_test(test_host_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
