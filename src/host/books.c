/* books.c - the host's side of the rings: requests and commands in, tokens out.
 *
 * Input: machine_submit, machine_append, machine_cancel; output: what machine_drain gives.  A
 * request that never reached the machine ends in the book.  Nothing is lost, and nothing is
 * reordered but requests that wait, by priority.  Cost: O(requests under way) a call.
 */
#include <stdlib.h>

#include "host/machine.h"
#include "rt/rt_step.h"

/* ---- start and end ---- */

/* rings NULL: a program that takes no requests. */
mpk_status host_books_open(mpk_context *cx, const rt_serving *s, const host_rings *rings,
                           host_books *b)
{
    int error = pthread_mutex_init(&b->lock, NULL);
    CHECK(cx, !error, MPK_ENOMEM, "no mutex: %s", strerror(error));
    b->has_lock = true;
    b->serving = *s;
    if (rings)
        b->rings = *rings;
    b->mask_taken = calloc(s->n_masks + 1, sizeof *b->mask_taken);
    CHECK(cx, b->mask_taken, MPK_ENOMEM, "out of memory for %u masks", s->n_masks);
    return MPK_OK;
}

/* Counted by holders, because either side may let go last: the caller's handle or the request in
 * the machine. */
host_shares *host_shares_new(uint64_t n)
{
    host_shares *s =
        n < SIZE_MAX / sizeof(float) / 2 ? calloc(1, sizeof *s + n * sizeof *s->at) : NULL;
    if (!s)
        return NULL;
    atomic_init(&s->holders, 1);
    s->n = n;
    return s;
}

/* The last holder frees: acq_rel, so that it sees all that others wrote before they let go. */
void host_shares_drop(host_shares *s)
{
    if (s && atomic_fetch_sub_explicit(&s->holders, 1, memory_order_acq_rel) == 1)
        free(s);
}

static void entry_free(host_entry *e)
{
    host_shares_drop(e->shares);
    free(e->first_mask);
    free(e->tokens);
    free(e);
}

/* The machine has stopped by now: nothing reads the token arena or the shares any more. */
void host_books_close(host_books *b)
{
    for (size_t i = 0; i < b->entries.n; i++)
        entry_free(b->entries.at[i]);
    free(b->entries.at);
    free(b->early);
    free(b->mask_taken);
    if (b->has_lock)
        pthread_mutex_destroy(&b->lock);
    *b = (host_books){0};
}

/* Is a request under way, or has one ended early whose end was not yet drained? */
bool host_books_are_busy(host_books *b)
{
    pthread_mutex_lock(&b->lock);
    bool busy = b->entries.n || b->n_early;
    pthread_mutex_unlock(&b->lock);
    return busy;
}

/* ---- the token arena: first fit among the regions of the requests that were sent ---- */

/* Does [at, at + n) overlap a region in use?  *end is then the first place after it.  Only requests
 * that were sent have regions, so the cost does not grow with those that wait. */
static bool taken(const host_books *b, uint64_t at, uint64_t n, uint64_t *end)
{
    for (size_t i = 0; i < b->entries_unsent; i++) {
        const host_region *r = &b->entries.at[i]->region;
        if (r->n && at < r->at + r->n && r->at < at + n) {
            *end = r->at + r->n;
            return true;
        }
    }
    return false;
}

/* What a request takes of the token arena: its prompt, its rules, the names of its pages. */
static uint64_t words_of(const rt_request *r)
{
    return (uint64_t)r->n_prompt + r->n_rules + (uint64_t)r->n_names * RT_NAME_WORDS;
}

/* First fit among the regions in use.  `taken` moves `at` past the region that it found in the
 * way. */
static bool take_region(const host_books *b, uint64_t n, host_region *out)
{
    uint64_t at = 0;
    while (at + n <= b->rings.n_arena)
        if (!taken(b, at, n, &at)) {
            *out = (host_region){at, n};
            return true;
        }
    return false;
}

/* ---- places for logits ---- */

/* Where the machine shall write n logits for `to`; the entry remembers until they have come. */
static mpk_status lend(mpk_context *cx, machine *m, host_entry *e, float *to, uint64_t n,
                       rt_u64 *at)
{
    *at = (rt_u64)(uintptr_t)to;
    if (!m->def->lend_logits)
        return MPK_OK;
    TRY(m->def->lend_logits(cx, m, to, n, at));
    e->lent = *at;
    e->logits = to;
    e->n_logits = n;
    return MPK_OK;
}

/* Copy the lent logits to the request's buffer and return the place, once; nothing if none was
 * lent. */
static void give_back(machine *m, host_entry *e)
{
    if (e->logits)
        m->def->return_logits(m, e->lent, e->logits, e->n_logits);
    e->logits = NULL;
}

/* Floats that a feed of n_tokens gives: a row, or with RT_ALL_LOGITS one for each token. */
static uint64_t logits_of(const machine *m, const rt_request *r, uint32_t n_tokens)
{
    return (uint64_t)m->books.serving.n_vocab * (r->flags & RT_ALL_LOGITS ? n_tokens : 1);
}

/* Numbers for the log probabilities of a token, and of all tokens of a request. */
static uint64_t logprobs_a_token(const rt_request *r)
{
    return 2 * (uint64_t)r->n_logprobs;
}
/* Entries for the whole answer, and for the prompt if it asks for them; reserved when the
 * request is submitted, so that none is missing later. */
static uint64_t logprobs_of(const rt_request *r)
{
    return logprobs_a_token(r) *
           ((r->flags & RT_ALL_SHARES ? (uint64_t)r->n_prompt : 0) + r->max_tokens);
}

/* Bring the log probabilities of a token that has come, and with the first token those of the
 * prompt. */
static void bring_logprobs(machine *m, host_entry *e, const rt_token *t)
{
    const rt_request *r = &e->request;
    uint64_t n = logprobs_a_token(r), before = r->flags & RT_ALL_SHARES ? r->n_prompt : 0;
    if (!r->n_logprobs || !e->logits || !m->def->peek_logits)
        return;
    if (t->index == 0)
        m->def->peek_logits(m, e->lent, e->logits, 0, before * n);
    m->def->peek_logits(m, e->lent, e->logits, (before + t->index) * n, n);
}

/* ---- the book ---- */

/* Linear: as many entries as requests under way. */
static host_entry *find_entry(host_books *b, uint64_t id, size_t *index)
{
    for (size_t i = 0; i < b->entries.n; i++)
        if (b->entries.at[i]->id == id) {
            *index = i;
            return b->entries.at[i];
        }
    return NULL;
}

/* Order of arrival is kept, since entries before `entries_unsent` are those that the machine
 * has. */
static void remove_entry(machine *m, size_t index)
{
    host_books *b = &m->books;
    give_back(m, b->entries.at[index]);
    if (b->entries.at[index]->request.mask)
        b->mask_taken[b->entries.at[index]->request.mask - 1] = false;
    entry_free(b->entries.at[index]);
    memmove(&b->entries.at[index], &b->entries.at[index + 1],
            (b->entries.n - index - 1) * sizeof *b->entries.at);
    b->entries.n--;
    b->entries_unsent -= index < b->entries_unsent;
}

/* Entries that the machine has stay where they are; among those after them the new one goes
 * behind all of its own or a lower number, since the lowest is sent first. Called with the lock
 * held.
 */
static mpk_status add_entry(mpk_context *cx, host_books *b, host_entry *e)
{
    if (b->entries.n == b->entries.capacity) {
        size_t capacity = b->entries.capacity ? 2 * b->entries.capacity : 64;
        host_entry **at = realloc(b->entries.at, capacity * sizeof *at);
        CHECK(cx, at, MPK_ENOMEM, "out of memory for %zu requests", capacity);
        b->entries.at = at;
        b->entries.capacity = capacity;
    }
    size_t at = b->entries.n++;
    for (; at > b->entries_unsent && b->entries.at[at - 1]->request.priority > e->request.priority;
         at--)
        b->entries.at[at] = b->entries.at[at - 1];
    b->entries.at[at] = e;
    return MPK_OK;
}

/* The books' lock is held, which makes the host one writer.  Written before it is published; then
 * the machine is woken.
 */
static void send_command(machine *m, rt_command c)
{
    const host_rings *r = &m->books.rings;
    r->commands[rt_load_relaxed_device(&r->command_ring->written) & r->command_mask] = c;
    rt_ring_wrote(r->command_ring, 1); /* partner: rt_step_commands */
    m->def->ring(m);
}

/* The tokens must lie in the arena before the ring entry is published, and the entry before its
 * count: the machine reads both once it sees the count. */
static void send_request(host_books *b, host_entry *e)
{
    const host_rings *r = &b->rings;
    memcpy(r->token_arena + e->region.at, e->tokens, e->region.n * sizeof *e->tokens);
    free(e->tokens);
    e->tokens = NULL;
    e->request.prompt = e->region.at;
    r->requests[rt_load_relaxed_device(&r->request_ring->written) & r->request_mask] = e->request;
    rt_ring_wrote(r->request_ring, 1); /* partner: rt_step_admit */
    e->sent = true;
    b->entries_unsent++;
}

/* 32 tokens a word. */
static uint32_t mask_words(const host_books *b)
{
    return (b->serving.n_vocab + 31) / 32;
}

/* Where the mask after draft i of a request lies, from 1 on: rt_mask_of without the slots' rows. */
static uint32_t guess_row(const host_books *b, const host_entry *e, uint32_t i)
{
    return b->serving.n_masks + (e->request.mask - 1) * b->serving.n_guesses + i - 1;
}

/* A row of masks for a request that wants one; false: all are taken. */
static bool take_mask(machine *m, host_entry *e)
{
    host_books *b = &m->books;
    uint32_t row = 0;
    if (!e->is_masked || e->request.mask)
        return true;
    while (row < b->serving.n_masks && b->mask_taken[row])
        row++;
    if (row == b->serving.n_masks)
        return false;
    b->mask_taken[row] = true;
    e->request.mask = row + 1;
    for (uint32_t i = 1; i <= b->serving.n_guesses && e->request.drafts; i++)
        m->def->put_mask(m, guess_row(b, e, i), NULL, mask_words(b), 0); /* not the last owner's */
    m->def->put_mask(m, row, e->has_first_mask ? e->first_mask : NULL, mask_words(b),
                     e->has_first_mask);
    return true;
}

/* Move what waits into the machine's ring, as far as ring and arena allow. */
static void send_waiting(machine *m)
{
    host_books *b = &m->books;
    bool sent = false;
    while (b->entries_unsent < b->entries.n &&
           rt_ring_space(b->rings.request_ring, b->rings.request_mask + 1)) {
        host_entry *e = b->entries.at[b->entries_unsent];
        if (!take_mask(m, e) || !take_region(b, words_of(&e->request), &e->region))
            break;
        send_request(b, e);
        sent = true;
        if (e->cancelled)
            send_command(m, (rt_command){.kind = RT_CANCEL, .id = e->id});
    }
    if (sent)
        m->def->ring(m);
}

/* ---- requests ---- */

/* Why a request cannot be taken, before it enters any queue. */
static mpk_status check_request(mpk_context *cx, const machine *m, const machine_request *r,
                                const rt_request *to)
{
    const rt_serving *s = &m->books.serving;
    unsigned long long context = host_context(s);
    CHECK(cx, s->ready, MPK_EUNSUPPORTED,
          "this program takes no requests: it lacks the step inputs of a language model");
    CHECK(cx, r->n_tokens, MPK_EARG, "the prompt has no token");
    CHECK(cx, r->n_eos <= RT_MAX_EOS, MPK_ELIMIT, "%u tokens end the request, at most %d can",
          r->n_eos, RT_MAX_EOS);
    CHECK(cx, s->asks != RT_NOWHERE || (!r->n_rules && !r->n_logprobs), MPK_EUNSUPPORTED,
          "this program samples without penalties, biases and log probabilities");
    CHECK(cx, r->n_rules <= s->rule_words || !r->n_rules, MPK_ELIMIT,
          "biases, allowed and banned tokens take %u words, at most %u are possible", r->n_rules,
          s->rule_words);
    CHECK(cx,
          r->n_logprobs <= RT_LOGPROBS &&
              (!r->n_logprobs || (r->logprobs && r->logprobs->n >= logprobs_of(to) &&
                                  r->max_tokens && !r->host_samples)),
          MPK_EARG,
          "log probabilities of %u tokens, at most %d are possible, or there is no room for them",
          r->n_logprobs, RT_LOGPROBS);
    CHECK(cx, !r->host_samples || (r->logits && s->logits != RT_NOWHERE), MPK_EARG,
          "the program gives no logits, or there is no room for them");
    CHECK(cx, !r->is_masked || (r->n_rules && s->n_masks && m->def->put_mask), MPK_EUNSUPPORTED,
          "this machine takes no masks of tokens, or the request has no rules");
    CHECK(cx, r->n_tokens <= context, MPK_ELIMIT,
          "the prompt has %u tokens, the context holds %llu", r->n_tokens, context);
    CHECK(cx, rt_request_limit(s, to), MPK_ELIMIT,
          "%u tokens of prompt and %u of answer do not fit into a context of %llu: ask for at most "
          "%llu",
          r->n_tokens, r->max_tokens, context, context - r->n_tokens);
    return MPK_OK;
}

/* Drafts that the request may have: none where the host samples, or where its masks have no rows
 * for drafts. */
static uint32_t drafts_of(const rt_serving *s, const machine_request *r)
{
    if (!s->draft_tokens || r->host_samples || (r->is_masked && !s->n_guesses))
        return 0;
    return r->drafts < RT_MAX_DRAFTS ? r->drafts : RT_MAX_DRAFTS;
}

/* A request that must see every token of its prompt computed gets no names for its pages, so it
 * takes no pages of other requests. */
static bool is_alone(const machine_request *r)
{
    return r->alone || (r->host_samples && r->all_logits) || (r->n_logprobs && r->all_logprobs);
}

/* The RT_ flags of a request.  All of the logits or shares are told only where any are. */
static rt_u32 flags_of(const machine_request *r)
{
    rt_u32 flags = 0;
    if (r->host_samples)
        flags |= RT_HOST_SAMPLES;
    if (r->host_samples && r->all_logits)
        flags |= RT_ALL_LOGITS;
    if (r->n_logprobs && r->all_logprobs)
        flags |= RT_ALL_SHARES;
    return flags;
}

/* What the request itself says; its number, and pinned memory for logits in the place of the
 * caller's, come with submit_locked.
 */
static void fill_request(const rt_serving *s, rt_request *to, const machine_request *r)
{
    *to = (rt_request){.logits = (rt_u64)(uintptr_t)r->logits,
                       .seed = r->seed,
                       .n_prompt = r->n_tokens,
                       .max_tokens = r->max_tokens,
                       .flags = flags_of(r),
                       .n_eos = r->n_eos,
                       .priority = r->priority,
                       .temperature = r->temperature,
                       .top_k = r->top_k,
                       .top_p = r->top_p,
                       .min_p = r->min_p,
                       .n_logprobs = r->n_logprobs,
                       .drafts = drafts_of(s, r)};
    if (r->rules)
        to->n_rules = r->n_rules;
    if (r->logprobs)
        to->logprobs = (rt_u64)(uintptr_t)r->logprobs->at;
    if (!is_alone(r))
        to->n_names = host_names(s, r->n_tokens);
    for (uint32_t i = 0; i < r->n_eos && i < RT_MAX_EOS; i++)
        to->eos[i] = r->eos[i];
}

/* Name a prompt's full pages, from none to all. */
static void write_names(const rt_serving *s, const machine_request *r, uint32_t n, int32_t *to)
{
    rt_name name = rt_name_begin(s, r->salt, r->n_salt);
    for (uint32_t i = 0; i < n; i++, to += RT_NAME_WORDS) {
        if (i)
            rt_name_tokens(s, &name, r->tokens + (size_t)(i - 1) * s->page_tokens, s->page_tokens);
        memcpy(to, &name, sizeof name);
    }
}

/* All memory that submitting needs is taken here, before the lock. */
static mpk_status new_entry(mpk_context *cx, const host_books *b, const machine_request *r,
                            const rt_request *request, host_entry **out)
{
    host_entry *e = calloc(1, sizeof *e);
    size_t n = words_of(request);
    int32_t *tokens = malloc(n * sizeof *tokens);
    uint32_t *mask = malloc(mask_words(b) * sizeof *mask + 1);
    if (!e || !tokens || !mask) {
        free(e);
        free(tokens);
        free(mask);
        FAIL(cx, MPK_ENOMEM, "out of memory for a request of %u tokens", r->n_tokens);
    }
    memcpy(tokens, r->tokens, r->n_tokens * sizeof *tokens);
    if (request->n_rules)
        memcpy(tokens + r->n_tokens, r->rules, request->n_rules * sizeof *tokens);
    write_names(&b->serving, r, request->n_names, tokens + r->n_tokens + request->n_rules);
    e->tokens = tokens;
    e->request = *request;
    e->is_masked = r->is_masked;
    e->first_mask = mask;
    if (!r->is_masked) {
        free(mask);
        e->first_mask = NULL;
    }
    if (request->n_logprobs) {
        e->shares = r->logprobs;
        atomic_fetch_add_explicit(&e->shares->holders, 1, memory_order_relaxed);
    }
    *out = e;
    return MPK_OK;
}

/* Lent memory is given back if the entry cannot be added; the caller frees the entry itself. */
static mpk_status submit_locked(mpk_context *cx, machine *m, const machine_request *r,
                                host_entry *e)
{
    host_books *b = &m->books;
    e->id = e->request.id = ++b->next_id;
    if (r->host_samples)
        TRY(lend(cx, m, e, r->logits, logits_of(m, &e->request, r->n_tokens), &e->request.logits));
    if (r->n_logprobs)
        TRY(lend(cx, m, e, r->logprobs->at, r->logprobs->n, &e->request.logprobs));
    mpk_status status = add_entry(cx, b, e);
    if (status == MPK_OK)
        send_waiting(m);
    else
        give_back(m, e);
    return status;
}

/* The checks come before the lock, because they read only constants of the machine. */
mpk_status machine_submit(mpk_context *cx, machine *m, const machine_request *r, uint64_t *id)
{
    rt_request request;
    host_entry *e = NULL;
    fill_request(&m->books.serving, &request, r);
    TRY(check_request(cx, m, r, &request));
    TRY(machine_check(cx, m));
    TRY(new_entry(cx, &m->books, r, &request, &e));
    pthread_mutex_lock(&m->books.lock);
    mpk_status status = submit_locked(cx, m, r, e);
    if (status == MPK_OK)
        *id = m->books.next_id;
    else
        entry_free(e);
    pthread_mutex_unlock(&m->books.lock);
    return status;
}

/* The prompt's region is reused, since it was fed before the request could wait for tokens. */
static mpk_status append_locked(mpk_context *cx, machine *m, uint64_t id, const int32_t *tokens,
                                uint32_t n, float *logits)
{
    size_t index;
    host_books *b = &m->books;
    host_entry *e = find_entry(b, id, &index);
    CHECK(cx, e && e->ready, MPK_EARG, "request %llu does not wait for tokens",
          (unsigned long long)id);
    CHECK(cx, n && logits, MPK_EARG, "no tokens to append, or no room for their logits");
    rt_command c = {.kind = RT_APPEND, .n = n, .id = id};
    e->region.n = 0; /* they have been fed */
    CHECK(cx, take_region(b, n, &e->region), MPK_ELIMIT,
          "no room for %u more tokens among the waiting prompts", n);
    TRY(lend(cx, m, e, logits, logits_of(m, &e->request, n), &c.logits));
    memcpy(b->rings.token_arena + e->region.at, tokens, n * sizeof *tokens);
    c.tokens = e->region.at;
    e->ready = false;
    send_command(m, c);
    return MPK_OK;
}

mpk_status machine_append(mpk_context *cx, machine *m, uint64_t id, const int32_t *tokens,
                          uint32_t n, float *logits)
{
    TRY(machine_check(cx, m));
    pthread_mutex_lock(&m->books.lock);
    mpk_status status = append_locked(cx, m, id, tokens, n, logits);
    pthread_mutex_unlock(&m->books.lock);
    return status;
}

/* ---- masks ---- */

bool machine_takes_masks(const machine *m)
{
    return m->books.serving.n_masks && m->def->put_mask;
}

/* A mask for a request that has no row yet is kept until it is sent. */
void machine_put_mask(machine *m, uint64_t id, uint32_t index, const uint32_t *bits)
{
    host_books *b = &m->books;
    size_t at;
    pthread_mutex_lock(&b->lock);
    host_entry *e = find_entry(b, id, &at);
    uint32_t n = mask_words(b);
    if (e && e->request.mask) {
        m->def->put_mask(m, e->request.mask - 1, bits, n, index + 1);
        m->def->ring(m); /* its request may be all that runs, and late */
    } else if (e && e->first_mask) {
        memcpy(e->first_mask, bits, n * sizeof *bits);
        e->has_first_mask = true;
    }
    pthread_mutex_unlock(&b->lock);
}

/* A guess may come after its request has ended: then there is nothing to write. The number is
 * that of the draw after the draft, for which `sample` looks. */
void machine_put_guess(machine *m, uint64_t id, uint32_t draft, uint32_t index,
                       const uint32_t *bits)
{
    host_books *b = &m->books;
    size_t at;
    pthread_mutex_lock(&b->lock);
    host_entry *e = find_entry(b, id, &at);
    if (e && e->request.mask && draft && draft <= b->serving.n_guesses)
        m->def->put_mask(m, guess_row(b, e, draft), bits, mask_words(b), index + 1);
    pthread_mutex_unlock(&b->lock);
}

/* A request that the machine has not seen ends here. */
static void end_early(machine *m, size_t index)
{
    host_books *b = &m->books;
    if (b->n_early == b->early_capacity) {
        size_t capacity = b->early_capacity ? 2 * b->early_capacity : 16;
        rt_token *at = realloc(b->early, capacity * sizeof *at);
        if (!at) {
            /* it stays in the book, and is cancelled once it has been sent */
            b->entries.at[index]->cancelled = true;
            return;
        }
        b->early = at;
        b->early_capacity = capacity;
    }
    b->early[b->n_early++] =
        (rt_token){.id = b->entries.at[index]->id, .token = -1, .reason = RT_CANCELLED};
    remove_entry(m, index);
    machine_ring_host(m);
}

/* A request that the machine has not seen ends here; another ends when the machine says so, which
 * may be with a token that was on its way. */
void machine_cancel(machine *m, uint64_t id)
{
    size_t index;
    pthread_mutex_lock(&m->books.lock);
    host_entry *e = find_entry(&m->books, id, &index);
    if (e && !e->sent) {
        end_early(m, index);
    } else if (e && !e->cancelled) {
        e->cancelled = true;
        send_command(m, (rt_command){.kind = RT_CANCEL, .id = id});
    }
    pthread_mutex_unlock(&m->books.lock);
}

/* ---- draining ---- */

/* One entry of the token ring has been read: keep the book. */
static void note_token(machine *m, const rt_token *t)
{
    size_t index;
    host_entry *e = t->reason == RT_GUESSED ? NULL : find_entry(&m->books, t->id, &index);
    if (e && t->token >= 0)
        bring_logprobs(m, e, t);
    if (e && t->reason != RT_GOING)
        remove_entry(m, index);
    else if (e && t->token < 0) {
        give_back(m, e);
        e->ready = true;
    }
}

/* Take what is there, without waiting. */
static uint32_t drain_locked(machine *m, rt_token *out, uint32_t most)
{
    host_books *b = &m->books;
    const host_rings *r = &b->rings;
    uint32_t n = 0, from_ring = 0, there = rt_ring_ready(r->token_ring),
             first = rt_load_relaxed_device(&r->token_ring->read);
    for (; n < most && b->n_early; n++) {
        out[n] = b->early[0];
        memmove(b->early, b->early + 1, --b->n_early * sizeof *b->early);
    }
    for (; n < most && from_ring < there; n++, from_ring++) {
        out[n] = r->tokens[(first + from_ring) & r->token_mask];
        note_token(m, &out[n]);
    }
    if (from_ring) {
        rt_ring_took(r->token_ring, from_ring); /* partner: rt_ring_space in the step task */
        send_waiting(m);
        m->def->ring(m); /* it may have waited for room */
    }
    return n;
}

/* The same under the lock; *nudged: another thread wants this call to return, though nothing was
 * there. */
static uint32_t look(machine *m, rt_token *out, uint32_t most, bool *nudged)
{
    host_books *b = &m->books;
    pthread_mutex_lock(&b->lock);
    uint32_t n = drain_locked(m, out, most);
    *nudged = n == 0 && b->nudged;
    b->nudged = b->nudged && !*nudged;
    pthread_mutex_unlock(&b->lock);
    return n;
}

/* The bell is read before looking: one that rings in between changes it, and the wait then returns
 * at once. */
mpk_status machine_drain(mpk_context *cx, machine *m, rt_token *out, uint32_t most,
                         uint64_t timeout_ns, uint32_t *n)
{
    uint64_t end = timeout_ns == UINT64_MAX ? UINT64_MAX : clock_ns() + timeout_ns;
    CHECK(cx, m->books.serving.ready, MPK_EUNSUPPORTED, "this program takes no requests");
    for (;;) {
        bool nudged;
        rt_u32 bell = rt_load_acquire_system(m->books.rings.bell); /* before looking */
        *n = look(m, out, most, &nudged);
        if (*n)
            return MPK_OK;
        TRY(machine_check(cx, m));
        uint64_t now = clock_ns();
        if (nudged || now >= end)
            return MPK_OK;
        m->def->wait(m, bell, end == UINT64_MAX ? UINT64_MAX : end - now);
    }
}

/* The flag is set before the bell rings, under the lock, so a drain that misses the bell finds
 * the flag. */
void machine_nudge(machine *m)
{
    pthread_mutex_lock(&m->books.lock);
    m->books.nudged = true;
    pthread_mutex_unlock(&m->books.lock);
    machine_ring_host(m);
}
