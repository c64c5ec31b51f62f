/* company.h - do requests get the same bits alone and in company?  For tests of machines that run a
 * language model of COMPANY_VOCABULARY tokens: requests of random lengths, a few at a time so that
 * they join each other in the middle, then each of them alone.  Those in company may try drafts.
 */
#ifndef TESTS_COMPANY_H
#define TESTS_COMPANY_H

#include <stdio.h>

#include "base/map.h"
#include "base/rng.h"
#include "host/books.h"
#include "host/machine.h"

enum { COMPANY = 12, COMPANY_TOKENS = 20, COMPANY_PROMPT = 512, COMPANY_VOCABULARY = 1003 };
enum { COMPANY_BLOCK = 23, COMPANY_SHARES = 4 };

/* What a request got: its tokens, and a hash of all its logits if they came to the host, else of
 * log probabilities. */
typedef struct company_request {
    uint64_t id, bits;
    uint64_t bits_of[COMPANY_TOKENS]; /* of what came with each token */
    uint32_t n, n_prompt;
    bool ended;
    host_shares *shares; /* until it has ended; NULL: its logits come to the host */
    int32_t tokens[COMPANY_TOKENS];
    float logits[COMPANY_VOCABULARY];
} company_request;

/* Every other request's logits come to the host, which samples; of the others the machine draws,
 * with log probabilities.  repeats: so that drafts are tried, and some stand, the machine draws for
 * all, for three of four the most probable token after a block of tokens again and again. */
static inline mpk_status company_submit(mpk_context *cx, machine *m, uint64_t seed, uint32_t r,
                                        bool repeats, uint32_t drafts, company_request *f)
{
    int32_t prompt[COMPANY_PROMPT];
    machine_request q = {.tokens = prompt,
                         .n_tokens =
                             1 + (uint32_t)(rng_u64(seed, r) % (r % 4 ? COMPANY_PROMPT : 40)),
                         .seed = r,
                         .drafts = drafts};
    for (uint32_t i = 0; i < q.n_tokens; i++)
        prompt[i] = (int32_t)(rng_u64(seed + 1 + r, repeats && r % 4 ? i % COMPANY_BLOCK : i) %
                              COMPANY_VOCABULARY);
    *f = (company_request){.n_prompt = q.n_tokens};
    q.host_samples = r % 2 && !repeats;
    q.max_tokens = COMPANY_TOKENS;
    q.temperature = repeats && r % 4 ? 0 : 0.8f;
    q.top_p = 1;
    if (q.host_samples) {
        q.logits = f->logits;
    } else {
        q.n_logprobs = COMPANY_SHARES;
        f->shares = host_shares_new(COMPANY_TOKENS * COMPANY_SHARES * 2);
        CHECK(cx, f->shares, MPK_ENOMEM, "out of memory");
        q.logprobs = f->shares;
    }
    return machine_submit(cx, m, &q, &f->id);
}

/* What has come for one of them; logits are answered by the most probable token. */
static inline mpk_status company_take(mpk_context *cx, machine *m, const rt_token *t,
                                      company_request *f)
{
    f->ended = t->reason != RT_GOING;
    if (t->token >= 0 && f->n < COMPANY_TOKENS)
        f->tokens[f->n++] = t->token;
    if (f->ended && f->shares) {
        const size_t each = sizeof f->shares->at[0] * COMPANY_SHARES * 2;
        for (uint32_t i = 0; i < f->n; i++)
            f->bits_of[i] = hash_bytes((const char *)f->shares->at + i * each, each, 0);
        host_shares_drop(f->shares);
        f->shares = NULL;
    }
    if (t->token >= 0 || f->ended)
        return MPK_OK;
    int32_t best = 0;
    for (int32_t i = 1; i < COMPANY_VOCABULARY; i++)
        best = f->logits[i] > f->logits[best] ? i : best;
    f->bits_of[f->n] = hash_bytes(f->logits, sizeof f->logits, 0);
    f->tokens[f->n++] = best;
    if (f->n < COMPANY_TOKENS)
        return machine_append(cx, m, f->id, &f->tokens[f->n - 1], 1, f->logits);
    machine_cancel(m, f->id);
    return MPK_OK;
}

/* Requests first ... first + n - 1, the later ones sent while the earlier ones run, to their
 * ends. */
static inline mpk_status company_serve(mpk_context *cx, machine *m, uint64_t seed, uint32_t first,
                                       uint32_t n, bool repeats, uint32_t drafts,
                                       company_request *all)
{
    uint32_t sent = 0, ended = 0, got;
    while (ended < n) {
        rt_token out[4];
        for (uint32_t k = 0; k < 1 + rng_u64(seed, sent) % 4 && sent < n; k++, sent++)
            TRY(company_submit(cx, m, seed, first + sent, repeats, drafts, &all[first + sent]));
        TRY(machine_drain(cx, m, out, 4, 20000000000u, &got));
        CHECK(cx, got, MPK_ESTALLED, "no token for 20 s while %u requests are open", sent - ended);
        for (uint32_t i = 0; i < got; i++)
            for (uint32_t r = first; r < first + sent; r++)
                if (all[r].id == out[i].id && !all[r].ended) {
                    TRY(company_take(cx, m, &out[i], &all[r]));
                    ended += all[r].ended;
                }
    }
    return MPK_OK;
}

/* How many requests got other bits in company than alone, and where the first of them did. */
typedef struct company_touched {
    uint32_t n;
    char first[160];
} company_touched;

/* The first token at which two runs of a request part; COMPANY_TOKENS: they are the same. */
static inline uint32_t company_parting(const company_request *a, const company_request *b)
{
    for (uint32_t i = 0; i < COMPANY_TOKENS; i++)
        if (a->bits_of[i] != b->bits_of[i] || a->tokens[i] != b->tokens[i])
            return i;
    return COMPANY_TOKENS;
}

/* Compare requests in company, with so many drafts in a step, with the same alone without drafts,
 * and add to *t those that got other bits. */
static inline mpk_status company_count(mpk_context *cx, machine *m, uint64_t seed, uint32_t drafts,
                                       company_touched *t)
{
    static company_request alone[COMPANY], among[COMPANY];
    const bool repeats = drafts > 0;
    NOTE(cx, company_serve(cx, m, seed, 0, COMPANY, repeats, drafts, among),
         "following requests together");
    for (uint32_t r = 0; r < COMPANY; r++) {
        NOTE(cx, company_serve(cx, m, seed, r, 1, repeats, 0, alone), "following request %u alone",
             r);
        CHECK(cx, alone[r].n && among[r].n, MPK_EVERIFY, "request %u got no token", r);
        const uint32_t i = company_parting(&alone[r], &among[r]);
        if (i == COMPANY_TOKENS && alone[r].n == among[r].n)
            continue;
        if (!t->n++)
            snprintf(t->first, sizeof t->first,
                     "; the first, of %u tokens, at its token %u of %u: %d in place of %d",
                     alone[r].n_prompt, i, alone[r].n, among[r].tokens[i % COMPANY_TOKENS],
                     alone[r].tokens[i % COMPANY_TOKENS]);
    }
    return MPK_OK;
}

/* ---- with few pages ---- */

enum { LONG_COMPANY = 12, SHORT_TOKENS = 5 };

/* Two of three requests have no max_tokens: they go on until their context is full. */
static inline mpk_status company_submit_long(mpk_context *cx, machine *m, uint64_t seed, uint32_t r,
                                             company_request *f)
{
    int32_t prompt[40];
    const machine_request q = {.tokens = prompt,
                               .n_tokens = 1 + (uint32_t)(rng_u64(seed, r) % 40),
                               .max_tokens = r % 3 == 2 ? SHORT_TOKENS : 0,
                               .seed = r,
                               .temperature = 0.8f,
                               .top_p = 1};
    for (uint32_t i = 0; i < q.n_tokens; i++)
        prompt[i] = (int32_t)(rng_u64(seed + 1 + r, i) % COMPANY_VOCABULARY);
    *f = (company_request){0};
    return machine_submit(cx, m, &q, &f->id);
}

/* Requests first ... first + n - 1 together, to their ends; of each a hash of its tokens. */
static inline mpk_status company_serve_long(mpk_context *cx, machine *m, uint64_t seed,
                                            uint32_t first, uint32_t n, company_request *all)
{
    uint32_t ended = 0, got;
    for (uint32_t r = first; r < first + n; r++)
        TRY(company_submit_long(cx, m, seed, r, &all[r]));
    while (ended < n) {
        rt_token out[16];
        TRY(machine_drain(cx, m, out, 16, 20000000000u, &got));
        CHECK(cx, got, MPK_ESTALLED, "no token for 20 s while %u requests are open", n - ended);
        for (uint32_t i = 0; i < got; i++)
            for (uint32_t r = first; r < first + n; r++)
                if (all[r].id == out[i].id) {
                    all[r].n += out[i].token >= 0;
                    all[r].bits = hash_bytes(&out[i].token, sizeof out[i].token, all[r].bits);
                    ended += out[i].reason != RT_GOING;
                }
    }
    return MPK_OK;
}

/* How many requests get other tokens together, where pages are short, than alone. */
static inline mpk_status company_count_long(mpk_context *cx, machine *m, uint64_t seed,
                                            uint32_t *touched)
{
    static company_request alone[LONG_COMPANY], among[LONG_COMPANY];
    NOTE(cx, company_serve_long(cx, m, seed, 0, LONG_COMPANY, among), "serving all together");
    *touched = 0;
    for (uint32_t r = 0; r < LONG_COMPANY; r++) {
        NOTE(cx, company_serve_long(cx, m, seed, r, 1, alone), "serving request %u alone", r);
        CHECK(cx, alone[r].n, MPK_EVERIFY, "request %u got no token", r);
        *touched += alone[r].n != among[r].n || alone[r].bits != among[r].bits;
    }
    return MPK_OK;
}

#endif
