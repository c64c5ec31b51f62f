/* engine_request.c - the life of a request: submitted to the machine, its tokens turned into text,
 * read by the caller, ended.
 *
 * The machine queues requests and admits them in order.  One thread, the collector, drains the
 * machine's tokens, decodes them, looks for stop texts, and wakes the callers that wait; it sleeps
 * while no token comes.  Relies on host/machine.h for submission and tokens, and on
 * load/tokenizer.h for text; called through mpk.h by any number of threads.
 *
 * Invariant, under the engine's mutex: a request is in the table from its submission until the
 * machine has reported its end, or until its owner frees it.  The machine's reports on an id that
 * is not in the table are dropped, so a request may be freed while it runs.  `finish` leaves
 * MPK_RUNNING once and is then final.
 *
 *     submit: prepare -> rules -> machine_submit -> table -> first mask
 *     collector: machine_drain -> take_token -> add_token -> add_text -> the waiting callers
 *                                            -> end_request -> out of the table
 *     read: wait_change -> copy of the new text, the new tokens in place
 *
 * Two ways to end: the machine reports a reason (end_request), or the engine ends the answer first
 * (end_early: a stop text, a form that is complete, no memory) and has the machine cancel it.  In
 * the second case the caller has a whole answer while the machine still has the request; what it
 * reports later finds `finish` final, and only takes the request out of the table.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/ids.h"
#include "base/thread.h"
#include "engine/engine_form.h"
#include "engine/engine_request.h"

/* Reports that the collector hands out under one hold of the mutex, at most. */
enum { BURST_TOKENS = 256 };

/* ---- the table of requests in the machine; the mutex is held ---- */

/* The pointer that leads to request `id`, so that it can be unlinked; it holds NULL if the id is
 * not in the table. */
static mpk_request **find_link(mpk_engine *e, uint64_t id)
{
    mpk_request **link = &e->requests[id % ENGINE_BUCKETS];
    while (*link && (*link)->id != id)
        link = &(*link)->next;
    return link;
}

/* At the head of the bucket; ids are numbered by the machine, so they spread evenly. */
static void enter(mpk_request *r)
{
    mpk_request **bucket = &r->engine->requests[r->id % ENGINE_BUCKETS];
    r->next = *bucket;
    *bucket = r;
    r->is_inside = true;
}

/* Out of the table, if it is in it: what the machine still reports on its id is dropped.  The
 * search by id finds the link that leads here, as buckets are linked one way. */
static void leave(mpk_request *r)
{
    if (r->is_inside)
        *find_link(r->engine, r->id) = r->next;
    r->is_inside = false;
}

/* ---- out of the machine; the mutex is held ---- */

/* End the answer, unless it has ended: show the text that was held back as the possible beginning
 * of a stop text or of a character, and wake all waiters.  A stop text found in that rest makes it
 * MPK_FINISH_STOP.  The machine may still be at work on the request. */
static void finish(mpk_request *r, mpk_finish how)
{
    if (r->finish != MPK_RUNNING)
        return;
    str rest = {0};
    if (r->decoder && !r->stream.stopped && how != MPK_FINISH_ERROR &&
        (tokenizer_stream_end(&r->words, r->decoder, &rest) != MPK_OK ||
         !engine_stream_put(&r->stream, rest))) {
        status_fail(&r->words, MPK_ENOMEM, "out of memory for the text of an answer");
        how = MPK_FINISH_ERROR;
    }
    if (r->stream.stopped && how != MPK_FINISH_ERROR)
        how = MPK_FINISH_STOP;
    engine_stream_end(&r->stream);
    r->finish = how;
    pthread_cond_broadcast(&r->changed);
}

/* End a request that runs with a failure; one that has ended keeps its end. */
static void fail_request(mpk_request *r, mpk_status status, const char *words)
{
    if (r->finish == MPK_RUNNING) {
        status_fail(&r->words, status, "%s", words);
        finish(r, MPK_FINISH_ERROR);
    }
}

/* End a request before the machine reports its end, and have the machine cancel it.  A request
 * that the caller cancels keeps running until the machine confirms, for tokens may be on their
 * way; for any other reason the answer is complete now, and later tokens are ignored. */
static void end_early(mpk_request *r, mpk_finish how)
{
    if (r->is_inside && !r->cancelled)
        machine_cancel(r->engine->machine, r->id);
    r->cancelled = true;
    if (!r->is_inside || how != MPK_FINISH_CANCELLED)
        finish(r, how);
}

/* The text of a token, as far as it completes characters; special tokens have none.  A failure or a
 * stop text ends the request early. */
static void add_text(mpk_request *r, int32_t token)
{
    str piece = {0};
    if (!r->decoder)
        return;
    if (tokenizer_stream_put(&r->words, r->decoder, token, &piece) != MPK_OK ||
        !engine_stream_put(&r->stream, piece)) {
        status_fail(&r->words, MPK_ENOMEM, "out of memory for the text of an answer");
        end_early(r, MPK_FINISH_ERROR);
    } else if (r->stream.stopped)
        end_early(r, MPK_FINISH_STOP);
}

/* Append a token and the text that it completes.  now: clock_ns when the burst was drained.  A
 * token carries its age since admission, so the first one tells how long the request had waited in
 * the queue.  With prompt_only this age is all that is used of the token, which is not part of the
 * answer.  Drafts are told token by token and summed; `count`, what the prompt had from the cache,
 * is told each time.
 * The token that ends a text (RT_EOS) is one of the answer's tokens, but its text is shown only
 * with include_stop.
 *
 * The form learns of a token only if another may follow.  It is told through a queue, so that no
 * mask is made under the mutex. */
static void add_token(mpk_request *r, const rt_token *t, uint64_t now)
{
    if (r->finish != MPK_RUNNING || r->n_tokens == r->limit)
        return;
    r->n_cached = t->count;
    r->n_drafted += t->drafted;
    r->n_accepted += t->accepted;
    if (!r->n_tokens && now - r->submitted_ns > t->age_ns)
        r->queue_ns = now - r->submitted_ns - t->age_ns;
    if (r->options.prompt_only)
        return;
    r->tokens[r->n_tokens] = t->token;
    r->token_ns[r->n_tokens++] = now - r->submitted_ns;
    if (t->reason != RT_EOS || r->options.include_stop)
        add_text(r, t->token);
    if (r->form && t->reason == RT_GOING && r->finish == MPK_RUNNING)
        engine_form_take(r->engine->forms, r->id, t->token);
    pthread_cond_broadcast(&r->changed);
}

/* Called once for each submission: the machine's last report of an id. */
static void end_request(mpk_request *r, uint32_t reason)
{
    static const mpk_finish finishes[RT_REASONS] = {
        [RT_EOS] = MPK_FINISH_STOP,       [RT_LENGTH] = MPK_FINISH_LENGTH,
        [RT_CONTEXT] = MPK_FINISH_LENGTH, [RT_CANCELLED] = MPK_FINISH_CANCELLED,
        [RT_REFUSED] = MPK_FINISH_ERROR,
    };
    if (reason == RT_REFUSED)
        fail_request(r, MPK_ELIMIT, "the machine refused a request that can never fit");
    const bool stopped = finishes[reason] == MPK_FINISH_STOP;
    finish(r, stopped && r->options.prompt_only ? MPK_FINISH_LENGTH : finishes[reason]);
    leave(r);
}

/* One report of the machine: a token, an end, or both.  A report without a token is an end, or
 * tells a sequence that its logits are there. */
static void take_token(mpk_engine *e, const rt_token *t, uint64_t now)
{
    mpk_request *r = *find_link(e, t->id);
    if (!r)
        return;
    if (t->reason == RT_GUESSED) {
        if (r->form)
            engine_form_guess(e->forms, t);
        return;
    }
    if (t->token >= 0)
        add_token(r, t, now);
    else if (r->is_sequence) { /* its logits have come */
        r->fed = true;
        pthread_cond_broadcast(&r->changed);
    }
    if (t->reason != RT_GOING)
        end_request(r, t->reason);
}

void engine_end_request(mpk_engine *e, uint64_t id, mpk_status status, const char *words)
{
    pthread_mutex_lock(&e->mutex);
    mpk_request *r = *find_link(e, id);
    if (r && r->finish == MPK_RUNNING && status != MPK_OK)
        status_fail(&r->words, status, "%s", words);
    if (r && r->finish == MPK_RUNNING)
        end_early(r, status == MPK_OK ? MPK_FINISH_STOP : MPK_FINISH_ERROR);
    pthread_mutex_unlock(&e->mutex);
}

/* Found and held under one hold of the mutex, so it cannot be freed between the two. */
struct engine_form *engine_hold_form(mpk_engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->mutex);
    mpk_request *r = *find_link(e, id);
    struct engine_form *form = r && r->finish == MPK_RUNNING ? r->form : NULL;
    if (form)
        engine_form_hold(form);
    pthread_mutex_unlock(&e->mutex);
    return form;
}

/* The machine has stopped: nothing that was submitted will ever end by itself.  e->failure refuses
 * all later submissions.  fail_request does not touch the table, so each request leaves it after;
 * the first of a bucket is taken until none is left. */
static void fail_all(mpk_engine *e, mpk_status status, const char *words)
{
    e->failure = status;
    snprintf(e->failure_words, sizeof e->failure_words, "%.400s", words);
    for (uint32_t i = 0; i < ENGINE_BUCKETS; i++)
        while (e->requests[i]) {
            fail_request(e->requests[i], status, words);
            leave(e->requests[i]);
        }
}

/* The collector's thread.  It drains without the mutex, so that callers are held up only while a
 * burst is handed out; it ends when the engine closes or the machine fails. */
static void *collect(void *argument)
{
    mpk_engine *e = argument;
    mpk_context cx = {0};
    rt_token burst[BURST_TOKENS];
    for (;;) {
        uint32_t n = 0;
        mpk_status status = machine_drain(&cx, e->machine, burst, BURST_TOKENS, UINT64_MAX, &n);
        uint64_t now = clock_ns();
        pthread_mutex_lock(&e->mutex);
        for (uint32_t i = 0; i < n; i++)
            take_token(e, &burst[i], now);
        if (status != MPK_OK)
            fail_all(e, status, cx.text);
        bool over = e->closing || status != MPK_OK;
        pthread_mutex_unlock(&e->mutex);
        if (over)
            return NULL;
    }
}

/* The thread is joined by engine_stop_collector; if it does not start there is nothing to undo. */
mpk_status engine_start_collector(mpk_context *cx, mpk_engine *e)
{
    TRY(thread_start(cx, &e->collector, collect, e));
    e->has_collector = true;
    return MPK_OK;
}

/* The nudge ends machine_drain's wait; `closing` is set before it, so the thread cannot sleep
 * again. */
void engine_stop_collector(mpk_engine *e)
{
    if (!e->has_collector)
        return;
    pthread_mutex_lock(&e->mutex);
    e->closing = true;
    pthread_mutex_unlock(&e->mutex);
    machine_nudge(e->machine);
    pthread_join(e->collector, NULL);
    e->has_collector = false;
}

/* ---- submission ---- */

/* Into the request's arena: the collector looks for stop texts long after the caller's array may be
 * gone.  engine_stream borrows them from there. */
static mpk_status copy_stops(mpk_context *cx, mpk_request *r)
{
    str *stops;
    NEW(cx, &r->arena, stops, r->options.n_stop);
    for (uint32_t i = 0; i < r->options.n_stop; i++) {
        size_t n = strlen(r->options.stop[i]);
        stops[i] = (str){arena_copy(&r->arena, r->options.stop[i], n), n};
        CHECK(cx, stops[i].at, MPK_ENOMEM, "out of memory for the stop texts");
    }
    r->stream.stops = stops;
    r->stream.n_stops = r->options.n_stop;
    r->stream.keeps_stop = r->options.include_stop;
    return MPK_OK;
}

/* The context, or all KV pages if those are fewer: one request may take them all. */
uint32_t engine_capacity(const mpk_engine *e)
{
    uint64_t pages = (uint64_t)e->build.plan.n_pages * ENGINE_PAGE_TOKENS;
    return pages < e->build.plan.context_tokens ? (uint32_t)pages : e->build.plan.context_tokens;
}

mpk_status engine_check_tokens(mpk_context *cx, const mpk_engine *e, const int32_t *tokens,
                               size_t n)
{
    return ids_check(cx, tokens, n, e->build.model.config.vocab_size);
}

/* Sets limit: what is asked for, or all that the context has left.  More than that is refused
 * rather than cut. */
static mpk_status check_length(mpk_context *cx, mpk_request *r)
{
    uint32_t capacity = engine_capacity(r->engine);
    CHECK(cx, r->n_prompt, MPK_EARG, "the prompt is empty");
    CHECK(cx, r->n_prompt < capacity, MPK_ELIMIT,
          "the prompt has %zu tokens, which leaves no room for an answer in the context of %u: "
          "shorten it, or open the "
          "model with a larger context",
          r->n_prompt, capacity);
    r->limit = capacity - (uint32_t)r->n_prompt;
    CHECK(cx, r->options.max_tokens <= r->limit, MPK_ELIMIT,
          "%zu tokens of prompt and %u of answer are more than the context of %u: ask for less, or "
          "open the model with a "
          "larger context",
          r->n_prompt, r->options.max_tokens, capacity);
    if (r->options.max_tokens)
        r->limit = r->options.max_tokens;
    if (r->options.prompt_only) /* the machine draws a token after each prompt */
        r->limit = 1;
    return MPK_OK;
}

/* All that can fail before the machine knows of the request, so that no submission is taken back.
 * The limit comes first: arrays of tokens and log probabilities have room for all of it, so they
 * never move while others read them.  What was made is the request's, and mpk_request_free frees it
 * after a failure too. */
static mpk_status prepare(mpk_context *cx, mpk_request *r, const int32_t *tokens)
{
    mpk_engine *e = r->engine;
    TRY(check_length(cx, r));
    TRY(engine_check_tokens(cx, e, tokens, r->n_prompt));
    NEW(cx, &r->arena, r->tokens, r->limit);
    NEW(cx, &r->arena, r->token_ns, r->limit);
    TRY(copy_stops(cx, r));
    TRY(engine_make_ends(cx, r));
    TRY(engine_make_logprobs(cx, r));
    TRY(engine_form_open(cx, r->engine, &r->options, &r->form));
    if (e->tokens.tokenizer)
        return tokenizer_stream_open(cx, e->tokens.tokenizer, TOKENIZER_SKIP_SPECIAL, &r->decoder);
    CHECK(cx, !r->options.n_stop, MPK_EUNSUPPORTED,
          "stop texts need a tokenizer, and this model has none");
    return MPK_OK;
}

mpk_status engine_check_words(mpk_context *cx, const mpk_engine *e)
{
    CHECK(cx, !e->build.options.embeddings, MPK_EUNSUPPORTED,
          "the model was opened for embeddings: it gives vectors, and neither text nor logits");
    return MPK_OK;
}

mpk_status engine_new_request(mpk_context *cx, mpk_engine *e, mpk_request **out)
{
    mpk_request *r = calloc(1, sizeof *r);
    CHECK(cx, r, MPK_ENOMEM, "out of memory for a request");
    r->engine = e;
    int error = thread_make_condition(&r->changed);
    if (error) {
        free(r);
        FAIL(cx, MPK_ENOMEM, "no condition variable: %s", strerror(error));
    }
    *out = r;
    return MPK_OK;
}

/* Tokens into the machine, under the mutex so that the collector finds the request in the table: a
 * report that it drains meanwhile waits for the mutex.  submitted_ns is set before, for the same
 * reason. */
static mpk_status submit_locked(mpk_context *cx, mpk_request *r, const machine_request *wire)
{
    mpk_engine *e = r->engine;
    CHECK(cx, !e->build.options.rank, MPK_EARG,
          "this is rank %u: requests go to the engine of rank 0", e->build.options.rank);
    CHECK(cx, !e->failure, e->failure, "the engine has failed: %s", e->failure_words);
    r->submitted_ns = clock_ns();
    TRY(machine_submit(cx, e->machine, wire, &r->id));
    enter(r);
    return MPK_OK;
}

mpk_status engine_submit(mpk_context *cx, mpk_request *r, const machine_request *wire)
{
    pthread_mutex_lock(&r->engine->mutex);
    mpk_status status = submit_locked(cx, r, wire);
    pthread_mutex_unlock(&r->engine->mutex);
    return status;
}

/* Drafts in a step at most: the request's own number within the engine's; -1 means none, 0 as many
 * as the engine's. */
static uint32_t drafts_of(const mpk_request *r)
{
    uint32_t most = r->engine->build.options.draft_tokens;
    int32_t own = r->options.draft_tokens;
    if (own < 0)
        return 0;
    return own && (uint32_t)own < most ? (uint32_t)own : most;
}

/* Rules are made before the machine knows of the request, and the form's first mask after it, since
 * forms follow requests by their id. */
static mpk_status submit(mpk_context *cx, mpk_request *r, const int32_t *tokens)
{
    const mpk_request_options *o = &r->options;
    machine_request wire = {
        .tokens = tokens,
        .n_tokens = (uint32_t)r->n_prompt,
        .max_tokens = r->limit,
        .temperature = o->temperature,
        .top_k = (float)o->top_k,
        .top_p = o->top_p > 0 ? o->top_p : 1,
        .min_p = o->min_p,
        .seed = o->seed,
        .eos = r->ends,
        .n_eos = r->n_ends,
        .priority = o->priority,
        .n_logprobs = r->n_logprobs,
        .all_logprobs = o->prompt_logprobs,
        .logprobs = r->shares,
        .alone = o->no_prefix_cache,
        .is_masked = r->form != NULL,
        .drafts = drafts_of(r),
    };
    if (o->cache_salt) {
        wire.salt = o->cache_salt;
        wire.n_salt = strlen(o->cache_salt);
    }
    TRY(engine_make_rules(cx, r, &wire.rules, &wire.n_rules));
    TRY(engine_submit(cx, r, &wire));
    if (r->form)
        engine_form_take(r->engine->forms, r->id, ENGINE_FORM_FIRST);
    return MPK_OK;
}

/* On failure the request is freed whole; nothing was submitted, because submission is the last step
 * that can fail. */
mpk_status mpk_submit_tokens(mpk_context *cx, mpk_engine *engine, const int32_t *tokens, size_t n,
                             const mpk_request_options *options, mpk_request **out)
{
    mpk_request *r = NULL;
    mpk_request_options o;
    TRY(engine_read_request_options(cx, options, &o));
    TRY(engine_check_words(cx, engine));
    TRY(engine_new_request(cx, engine, &r));
    r->options = o;
    r->n_prompt = n;
    mpk_status status = prepare(cx, r, tokens);
    if (status == MPK_OK)
        status = submit(cx, r, tokens);
    if (status == MPK_OK)
        *out = r;
    else
        mpk_request_free(r);
    return status;
}

/* Options are read here for raw_prompt alone; mpk_submit_tokens reads them again. */
mpk_status mpk_submit_text(mpk_context *cx, mpk_engine *engine, const char *bytes, size_t n,
                           const mpk_request_options *options, mpk_request **out)
{
    mpk_request_options o;
    arena scratch = {0};
    tokenizer_ids ids = {0};
    TRY(engine_read_request_options(cx, options, &o));
    CHECK(cx, engine->tokens.tokenizer, MPK_EUNSUPPORTED,
          "the model has no tokenizer: give token ids, or put its tokenizer.json beside the "
          "weights");
    unsigned flags = TOKENIZER_PARSE_SPECIAL | (o.raw_prompt ? 0 : TOKENIZER_ADD_SPECIAL);
    mpk_status status =
        tokenizer_encode(cx, engine->tokens.tokenizer, &scratch, bytes, n, flags, &ids);
    if (status == MPK_OK)
        status = mpk_submit_tokens(cx, engine, ids.at, ids.n, options, out);
    arena_free(&scratch);
    return status;
}

/* ---- reading ---- */

/* Until a token has come that was not read yet, the end, or the deadline; the mutex is held, and
 * released while it waits.  A token whose text is held back ends the wait too: the piece then has
 * tokens and no text.  The deadline is a point in time, so that false wake-ups do not prolong
 * it. */
static void wait_change(mpk_request *r, int64_t timeout_ms)
{
    const struct timespec until = clock_after(clock_now(), timeout_ms > 0 ? timeout_ms : 0);
    while (timeout_ms && r->finish == MPK_RUNNING && r->n_read == r->n_tokens) {
        int error = timeout_ms < 0 ? pthread_cond_wait(&r->changed, &r->engine->mutex)
                                   : pthread_cond_timedwait(&r->changed, &r->engine->mutex, &until);
        if (error == ETIMEDOUT)
            return;
    }
}

/* Copy the text that was not read yet: the collector may move the original as soon as the mutex is
 * released.  The copy lives until the next read. */
static bool take_text(mpk_request *r, mpk_piece *piece)
{
    text_free(&r->piece);
    r->piece = (text){0};
    text_add(&r->piece, r->stream.text.at + r->n_text_read, r->stream.n_shown - r->n_text_read);
    if (r->piece.failed)
        return false;
    r->n_text_read = r->stream.n_shown;
    piece->text = r->piece.at ? r->piece.at : "";
    piece->n_bytes = r->piece.n;
    return true;
}

/* Tokens are not copied: they stand in an array of `limit` entries that never moves, and those that
 * are handed out do not change any more.  n_read and n_text_read are advanced only if the text
 * could be copied, so after MPK_ENOMEM the next read gives the same piece. */
mpk_status mpk_request_read(mpk_context *cx, mpk_request *r, int64_t timeout_ms, mpk_piece *piece)
{
    mpk_piece p = {.text = ""};
    pthread_mutex_lock(&r->engine->mutex);
    wait_change(r, timeout_ms);
    bool good = r->stream.n_shown == r->n_text_read || take_text(r, &p);
    if (good) {
        p.tokens = r->tokens + r->n_read;
        p.n_tokens = r->n_tokens - r->n_read;
        r->n_read = r->n_tokens;
        p.finish = r->finish;
    }
    pthread_mutex_unlock(&r->engine->mutex);
    CHECK(cx, good, MPK_ENOMEM, "out of memory for a piece of text");
    *piece = p;
    return MPK_OK;
}

/* Without the mutex after the end: `finish` is final, and the collector no longer touches the
 * request's text.  The answer borrows from the request and does not change what a read would
 * give. */
mpk_status mpk_request_wait(mpk_context *cx, mpk_request *r, mpk_answer *answer)
{
    pthread_mutex_lock(&r->engine->mutex);
    while (r->finish == MPK_RUNNING)
        pthread_cond_wait(&r->changed, &r->engine->mutex);
    pthread_mutex_unlock(&r->engine->mutex);
    CHECK(cx, r->finish != MPK_FINISH_ERROR, r->words.status, "%s", r->words.text);
    *answer = (mpk_answer){
        .text = r->stream.text.at ? r->stream.text.at : "",
        .n_bytes = r->stream.text.n,
        .tokens = r->tokens,
        .token_ns = r->token_ns,
        .n_tokens = r->n_tokens,
        .n_prompt_tokens = r->n_prompt,
        .finish = r->finish,
    };
    return MPK_OK;
}

/* The mutex in these readers: the collector writes the numbers while the request runs. */
size_t mpk_request_cached_tokens(const mpk_request *r)
{
    pthread_mutex_lock(&r->engine->mutex);
    size_t n = r->n_cached;
    pthread_mutex_unlock(&r->engine->mutex);
    return n;
}

/* As mpk_request_stop; the mutex is held.  A stop text has cut the text, which the stream
 * remembers.  A stop token is the last token of an answer that ended with MPK_FINISH_STOP; the
 * model's own end gives -1 unless the caller lists it, too. */
static int32_t stop_of(const mpk_request *r)
{
    const mpk_request_options *o = &r->options;
    if (r->finish == MPK_FINISH_STOP && r->stream.stopped)
        return (int32_t)r->stream.stop;
    for (uint32_t i = 0; r->finish == MPK_FINISH_STOP && i < o->n_stop_tokens && r->n_tokens; i++)
        if (o->stop_tokens[i] == r->tokens[r->n_tokens - 1])
            return (int32_t)(o->n_stop + i);
    return -1;
}

int32_t mpk_request_stop(const mpk_request *r)
{
    pthread_mutex_lock(&r->engine->mutex);
    int32_t stop = stop_of(r);
    pthread_mutex_unlock(&r->engine->mutex);
    return stop;
}

uint64_t mpk_request_queue_ns(const mpk_request *r)
{
    pthread_mutex_lock(&r->engine->mutex);
    const uint64_t ns = r->queue_ns;
    pthread_mutex_unlock(&r->engine->mutex);
    return ns;
}

void mpk_request_drafts(const mpk_request *r, size_t *drafted, size_t *accepted)
{
    pthread_mutex_lock(&r->engine->mutex);
    *drafted = r->n_drafted;
    *accepted = r->n_accepted;
    pthread_mutex_unlock(&r->engine->mutex);
}

/* Returns at once.  Tokens that are on their way may still be added until the machine confirms. */
void mpk_request_cancel(mpk_request *r)
{
    pthread_mutex_lock(&r->engine->mutex);
    end_early(r, MPK_FINISH_CANCELLED);
    pthread_mutex_unlock(&r->engine->mutex);
}

/* Leaving the table first: from then on the collector cannot find the request, and what it has here
 * is freed without the mutex. */
void mpk_request_free(mpk_request *r)
{
    if (!r)
        return;
    mpk_engine *e = r->engine;
    pthread_mutex_lock(&e->mutex);
    if (r->is_inside)
        end_early(r, MPK_FINISH_CANCELLED);
    leave(r);
    pthread_mutex_unlock(&e->mutex);
    tokenizer_stream_close(r->decoder);
    text_free(&r->stream.text);
    text_free(&r->piece);
    host_shares_drop(r->shares);
    engine_form_drop(e->forms, r->form);
    pthread_cond_destroy(&r->changed);
    arena_free(&r->arena);
    free(r);
}

const char *mpk_finish_name(mpk_finish how)
{
    static const char *const names[] = {"running", "stop", "length", "cancelled", "error"};
    return (unsigned)how <= MPK_FINISH_ERROR ? names[how] : "unknown";
}
