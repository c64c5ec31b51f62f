/* serve_bed.h - what the tests of requests on a GPU's machine share: a small model, requests and
 * their answers, entries moved between rings as the courier does it.  For cuda_serve_test.c and
 * cuda_peers_test.c.
 */
#ifndef TESTS_SERVE_BED_H
#define TESTS_SERVE_BED_H

#include "check.h"

#include "base/rng.h"
#include "cpu/cpu.h"
#include "cuda/cuda_machine.h"
#include "fake_code.h"
#include "fake_cuda.h"
#include "model/model.h"
#include "op/rules.h"
#include "pass/pass.h"
#include "rt/rt_courier.h"

static uint64_t seed;

enum { TOKENS = 12, REQUESTS = 5, VOCABULARY = 769 };

/* As the courier's warp: the second look carries the commands that the first has seen. */
static inline void carry_asks(const rt_kernel *k)
{
    rt_courier c = rt_courier_begin(k);
    for (int i = 0; i < 2; i++) {
        rt_sight s = {.commands = rt_load_acquire_system(&k->host_command_ring->written)};
        s.requests = rt_load_acquire_system(&k->host_request_ring->written);
        s.begun = rt_load_acquire_system(&k->machine.request_ring->read);
        rt_courier_asks(&c, &k->machine, s);
    }
}

static inline void carry_tokens(const rt_kernel *k)
{
    rt_courier c = rt_courier_begin(k);
    rt_courier_tells(&c, rt_load_acquire_system(&k->machine.token_ring->written),
                     rt_load_acquire_system(&k->host_token_ring->read));
}

static inline mpk_status all_same(mpk_context *cx, const void *self, const char *name,
                                  uint32_t rank, const int64_t *dims, ir_dtype *dtype)
{
    (void)cx;
    (void)name;
    (void)rank;
    (void)dims;
    *dtype = *(const ir_dtype *)self;
    return MPK_OK;
}

/* Steps of 1 and of n_tokens tokens; six workers on each of n_peers peers. */
typedef struct serve_model {
    ir_dtype dtype;
    uint32_t n_tokens, n_peers;
    bool has_draft;     /* a draft model of the same shape stands beside it */
    uint32_t n_guesses; /* masks of drafts */
} serve_model;
enum { SERVE_GRAPHS = 4 }; /* of both models */

static inline void make_model(mpk_context *cx, arena *a, serve_model of, tg_program *program,
                              program_image *image)
{
    const uint32_t n_tokens[SERVE_GRAPHS] = {1, of.n_tokens, 1, of.n_tokens}, n_peers = of.n_peers,
                   n_graphs = of.has_draft ? SERVE_GRAPHS : 2;
    model_config c = {.family = STR("llama"),
                      .n_layers = 1,
                      .hidden_size = 32,
                      .n_heads = 4,
                      .n_kv_heads = 2,
                      .head_size = 16,
                      .ffn_size = 48,
                      .vocab_size = VOCABULARY,
                      .max_positions = 128,
                      .norm_eps = 1e-5,
                      .tied_embeddings = true,
                      .activation = STR("silu"),
                      .rope_size = 16,
                      .rope_theta = 10000,
                      .bos_token = -1};
    model_weights w = {all_same, &of.dtype};
    ir_graph *g[SERVE_GRAPHS];
    pass_options o = {.n_workers = 6 * n_peers,
                      .n_peers = n_peers,
                      .launch = n_peers > 1 ? PASS_LAUNCH_AOT : PASS_LAUNCH_AUTO,
                      .gather_bytes = 1, /* the vocabulary is cut too */
                      .n_draft_graphs = n_graphs - 2,
                      .page_bytes = 16384,
                      .pages_per_worker = 1024};
    for (uint32_t i = 0; i < n_graphs; i++) {
        model_shape s = {.n_tokens = n_tokens[i],
                         .n_rows = i % 2 ? 3 : 1,
                         .n_slots = 3,
                         .n_pages = 9,
                         .page_tokens = 16,
                         .max_pages_per_slot = 4,
                         .kv_dtype = of.dtype,
                         .activation_dtype = of.dtype,
                         .n_guesses = of.n_guesses,
                         .drafts = i >= 2};
        check_ok(cx, model_build(cx, a, &c, &s, &w, &g[i]));
    }
    check_ok(cx, pass_compile(cx, a, &o, n_graphs, g, n_tokens, program));
    check_ok(cx, image_make(cx, a, program, image));
}

typedef struct answers {
    int32_t tokens[REQUESTS][TOKENS];
    float logits[VOCABULARY];
} answers;

static inline bool is_masked(uint32_t request)
{
    return request % 2 == 1;
}

/* Is a token in the mask of a request's token number `index`?  About one in four is. */
static inline bool may_come(uint32_t request, uint32_t index, int32_t token)
{
    return rng_u64(seed + 1000 * request + index, (uint64_t)token) % 4 == 0;
}

/* guess: NULL, or the entry that asks for the mask after a draft. */
static inline void put_mask(machine *m, uint64_t id, uint32_t request, uint32_t index,
                            const rt_token *guess)
{
    uint32_t bits[(VOCABULARY + 31) / 32] = {1}; /* never none */
    for (int32_t i = 0; i < VOCABULARY; i++)
        bits[i / 32] |= (uint32_t)may_come(request, index, i) << i % 32;
    if (guess)
        machine_put_guess(m, id, guess->count, index, bits);
    else
        machine_put_mask(m, id, index, bits);
}

/* Requests at the same time, more than there are slots.  Each second one has masks, the first of
 * them when the first token of any request is there; the last one wants logits. */
static void ask(mpk_context *cx, machine *m, answers *out)
{
    static const int32_t record[RULES_LISTS] = {
        [RULES_REPETITION] = 0x3f800000, [RULES_TYPICAL] = 0x3f800000};
    uint64_t ids[REQUESTS];
    uint32_t n[REQUESTS] = {0}, open = REQUESTS;
    host_shares *shares[REQUESTS] = {0};
    bool begun = false;
    memset(out, 0, sizeof *out);
    for (uint32_t r = 0; r < REQUESTS; r++) {
        int32_t prompt[20];
        for (uint32_t i = 0; i < 20; i++)
            prompt[i] = (int32_t)(rng_u64(seed + r, i) % VOCABULARY);
        machine_request q = {
            .tokens = prompt, .n_tokens = 1 + 4 * r, .max_tokens = TOKENS, .top_p = 1, .drafts = 4};
        if (is_masked(r)) {
            q.is_masked = true;
            q.rules = record;
            q.n_rules = RULES_LISTS;
            q.n_logprobs = 1;
            q.all_logprobs = r > 1; /* so a prompt has several rows, none of them a draft's */
            q.logprobs = shares[r] = host_shares_new(2 * (q.n_tokens + TOKENS));
        }
        if (r + 1 == REQUESTS) {
            q.host_samples = true;
            q.logits = out->logits;
        }
        check_ok(cx, machine_submit(cx, m, &q, &ids[r]));
    }
    while (open) {
        rt_token got[8];
        uint32_t k;
        check_ok(cx, machine_drain(cx, m, got, 8, 5000000000u, &k));
        assert_true(k > 0);
        for (uint32_t r = 1; r < REQUESTS && !begun; r += 2)
            put_mask(m, ids[r], r, 0, NULL);
        begun = true;
        for (uint32_t i = 0; i < k; i++)
            for (uint32_t r = 0; r < REQUESTS; r++) {
                if (got[i].id != ids[r])
                    continue;
                if (got[i].reason == RT_GUESSED) { /* now and then it does not come */
                    assert_true(got[i].index > n[r] && n[r] > 0);
                    if (rng_u64(seed + r, got[i].index) % 8)
                        put_mask(m, ids[r], r, got[i].index, &got[i]);
                    continue;
                }
                if (got[i].token >= 0 && n[r] < TOKENS)
                    out->tokens[r][n[r]++] = got[i].token;
                else if (got[i].reason == RT_GOING)
                    machine_cancel(m, ids[r]); /* its logits are there */
                open -= got[i].reason != RT_GOING;
                if (is_masked(r) && got[i].reason == RT_GOING)
                    put_mask(m, ids[r], r, n[r], NULL);
            }
    }
    for (uint32_t r = 0; r < REQUESTS; r++)
        host_shares_drop(shares[r]);
}

#endif
