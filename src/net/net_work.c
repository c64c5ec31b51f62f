/* net_work.c - the engine's side of an exchange: take places, submit answers, take what arrives,
 * give the places back.
 *
 * A place stands for one answer in the engine, running or waiting.  The server counts places
 * over all exchanges and refuses a request with 429 before anything is made for it.  Invariant:
 * an exchange holds w->n_places of them; each ended answer gives one back, net_work_close the
 * rest.
 *
 * Called by the handlers (net_completion.c, net_chat.c, net_infill.c, net_llama.c) and by
 * net_stream.c, always on the exchange's own thread: only the server's counters are shared.
 */
#include <math.h>
#include <time.h>

#include "base/thread.h"
#include "net/net_exchange.h"
#include "net/net_random.h"

/* ---- places ---- */

/* Take n places of the server's and of the key's, or none: the count is raised by compare and
 * exchange, so two exchanges cannot both take the last ones. Places that were taken of the key are
 * given back at the end of the exchange, also if the server has none. */
static mpk_status take_places(net_exchange *x, size_t n)
{
    net_server *s = x->server;
    const uint64_t most = (uint64_t)s->facts.max_batch + s->options.max_waiting;
    if (n > most)
        return net_refuse(x->cx, &x->refusal, 400, "prompt", NULL,
                          "the request asks for %zu answers, this server takes %llu at a time", n,
                          (unsigned long long)most);
    TRY(net_meter_take_answers(x, (uint32_t)n));
    for (uint32_t now = s->answers;;) {
        if (now + n > most)
            return net_refuse(x->cx, &x->refusal, 429, NULL, "rate_limit_exceeded",
                              "%u answers are running or waiting, %llu at most; try again later",
                              now, (unsigned long long)most);
        if (atomic_compare_exchange_weak(&s->answers, &now, now + (uint32_t)n))
            break;
    }
    x->work.n_places = (uint32_t)n;
    return MPK_OK;
}

/* Copy the stop texts and tokens to the arena of the work, since the body that they came with is
 * freed before the answers end. */
static mpk_status keep_stops(net_exchange *x, const net_request *q)
{
    net_work *w = &x->work;
    const char **stops;
    NEW(x->cx, &w->arena, stops, q->sampling.n_stop);
    for (uint32_t i = 0; i < q->sampling.n_stop; i++) {
        stops[i] = arena_copy(&w->arena, q->sampling.stop[i], strlen(q->sampling.stop[i]));
        CHECK(x->cx, stops[i], MPK_ENOMEM, "out of memory for the stop texts");
    }
    w->stops = stops;
    w->n_stops = q->sampling.n_stop;
    int32_t *tokens;
    NEW(x->cx, &w->arena, tokens, q->sampling.n_stop_tokens);
    for (uint32_t i = 0; i < q->sampling.n_stop_tokens; i++)
        tokens[i] = q->sampling.stop_tokens[i];
    w->stop_tokens = tokens;
    w->n_stop_tokens = q->sampling.n_stop_tokens;
    return MPK_OK;
}

/* Copy to the work all that replies need of the request, and take the places. */
mpk_status net_work_open(net_exchange *x, const net_request *q, const net_dialect *dialect,
                         size_t n_prompts)
{
    net_work *w = &x->work;
    w->dialect = dialect;
    w->include_usage = q->include_usage;
    w->ping_s = x->server->options.ping_s;
    if (q->has_ping)
        w->ping_s = q->ping_s > 0 ? (uint64_t)q->ping_s : 0;
    w->logprobs = q->sampling.logprobs;
    w->prompt_logprobs = q->prompt_logprobs;
    w->token_ids = q->token_ids;
    w->names_are_ids = q->names_are_ids;
    w->echo_logprobs = q->echo && q->sampling.logprobs;
    w->n_top = q->n_top;
    w->n_prompt_top = q->n_prompt_top;
    w->n_each = q->n_answers;
    w->n_shown = q->n_shown;
    w->usage_always = q->include_usage && q->usage_always;
    memcpy(x->ignored, q->ignored, sizeof x->ignored);
    w->created = time(NULL);
    TRY(net_random_id(x->cx, dialect->id_prefix, w->id, sizeof w->id));
    TRY(keep_stops(x, q));
    TRY(take_places(x, n_prompts * q->n_answers));
    NEW(x->cx, &w->arena, w->answers, w->n_places);
    return MPK_OK;
}

static void stop_running(net_exchange *x, net_answer *a)
{
    if (a->is_running)
        x->server->running--;
    a->is_running = false;
}

/* As soon as an answer has been written, since others of the exchange may run on. */
static void free_texts(net_answer *a)
{
    text_free(&a->content);
    text_free(&a->ids);
    text_free(&a->prompt_ids);
    a->content = a->ids = a->prompt_ids = (text){0};
    net_probs_close(&a->probs);
    text_free(&a->items);
    a->items = (text){0};
    net_parts_close(&a->parts);
    a->parts = (net_parts){0};
}

/* Answers that still run are cancelled by freeing their requests. */
void net_work_close(net_exchange *x)
{
    net_work *w = &x->work;
    for (uint32_t i = 0; i < w->n; i++) {
        stop_running(x, &w->answers[i]);
        if (w->answers[i].request)
            net_metrics_count_loss(&x->server->metrics,
                                   x->server->failed ? MPK_FINISH_ERROR : MPK_FINISH_CANCELLED);
        mpk_request_free(w->answers[i].request);
        w->answers[i].request = NULL;
        free_texts(&w->answers[i]);
    }
    x->server->answers -= w->n_places;
    w->n_places = w->n_running = 0;
}

/* ---- submission ---- */

mpk_status net_work_note_fault(net_exchange *x, mpk_status status, int http)
{
    x->server->failed = true;
    net_refuse(x->cx, &x->refusal, http, NULL, "engine_failed", "%s", mpk_error_message(x->cx));
    return status;
}

/* The first words are those by which clients of OpenAI recognise this error. */
static mpk_status refuse_length(net_exchange *x, size_t n)
{
    return net_refuse(
        x->cx, &x->refusal, 400, "prompt", "context_length_exceeded",
        "This model's maximum context length is %u tokens. However, your prompt has %zu tokens, "
        "which "
        "leaves no room for an answer. Shorten it, or start the server with a larger --context.",
        net_work_context(x->server), n);
}

uint32_t net_work_context(const net_server *s)
{
    const mpk_engine_facts *f = &s->facts;
    return f->kv_tokens && f->kv_tokens < f->context_tokens ? (uint32_t)f->kv_tokens
                                                            : f->context_tokens;
}

/* A status of the engine for a request of n tokens, in terms of HTTP.  `form`: the parameter that
 * brought the form of the answer, NULL if there is none. */
static mpk_status judge(net_exchange *x, mpk_status status, size_t n, const char *form)
{
    if (status == MPK_ELIMIT && n >= net_work_context(x->server))
        return refuse_length(x, n);
    if (status == MPK_ELIMIT) /* of the form, or of all rules together */
        return net_refuse(x->cx, &x->refusal, 400, NULL, NULL, "%s", mpk_error_message(x->cx));
    if (status == MPK_EFORMAT || (status == MPK_EUNSUPPORTED && form))
        return net_refuse(x->cx, &x->refusal, 400, form, NULL, "%s", mpk_error_message(x->cx));
    if (status == MPK_EARG || status == MPK_EUNSUPPORTED)
        return net_refuse(x->cx, &x->refusal, 400, "prompt", NULL, "%s", mpk_error_message(x->cx));
    return status == MPK_OK || status == MPK_ENOMEM ? status : net_work_note_fault(x, status, 503);
}

/* Submit one answer.  In OpenAI's API max_tokens is an upper limit, so a number that the context
 * cannot hold is no error: the engine refuses it, and is then asked for as many as fit. */
static mpk_status submit_tokens(net_exchange *x, const int32_t *ids, size_t n,
                                const mpk_request_options *wanted, const char *form,
                                mpk_request **out)
{
    mpk_request_options o = *wanted;
    mpk_status status = mpk_submit_tokens(x->cx, x->server->engine, ids, n, &o, out);
    if (status == MPK_ELIMIT && o.max_tokens) {
        o.max_tokens = 0;
        status = mpk_submit_tokens(x->cx, x->server->engine, ids, n, &o, out);
    }
    return judge(x, status, n, form);
}

/* With `echo` an answer begins with its prompt. */
static mpk_status add_echo(net_exchange *x, const net_prompt *prompt, text *to)
{
    const mpk_tokenizer *tokenizer = mpk_engine_tokenizer(x->server->engine);
    char *bytes;
    size_t n;
    if (prompt->text.at) {
        text_add(to, prompt->text.at, prompt->text.n);
        return MPK_OK;
    }
    if (!tokenizer)
        return MPK_OK;
    TRY(mpk_detokenize(x->cx, tokenizer, prompt->ids, prompt->n_ids, &bytes, &n));
    text_add(to, bytes, n);
    mpk_free(bytes);
    return MPK_OK;
}

/* Keep the last tokens of a prompt, as many as truncate_prompt_tokens says; negative: as many as
 * the context holds besides the answer. */
static void truncate_prompt(const net_exchange *x, const net_request *q, const int32_t **ids,
                            size_t *n)
{
    const uint32_t context = net_work_context(x->server), asked = q->sampling.max_tokens;
    const uint32_t answer = asked && asked < context ? asked : 1;
    const size_t most = q->truncate < 0 ? context - answer : (size_t)q->truncate;
    if (!q->truncate || *n <= most)
        return;
    *ids += *n - most;
    *n = most;
}

/* Append ids to a list separated by commas, if the client asked for ids. */
static void add_ids(const net_exchange *x, const int32_t *ids, size_t n, text *to)
{
    for (size_t i = 0; x->work.token_ids && i < n; i++)
        text_print(to, to->n ? ",%d" : "%d", ids[i]);
}

/* Submit n_answers requests for prompt `at`, which differ in their seeds.  If one fails, those
 * before it stay in w->answers, for net_work_close. Answers of one prompt share its KV pages: the
 * first fills them, the others find them in the prefix cache. */
static mpk_status submit_answers(net_exchange *x, const net_request *q, size_t at,
                                 const net_prompt *prompt, const int32_t *ids, size_t n_ids)
{
    truncate_prompt(x, q, &ids, &n_ids);
    net_work *w = &x->work;
    mpk_request_options o = q->sampling;
    /* best_of ranks answers by them, whether the client sees them or not */
    o.logprobs |= q->n_shown < q->n_answers;
    for (uint32_t i = 0; i < q->n_answers; i++) {
        net_answer *a = &w->answers[at * q->n_answers + i];
        if (q->has_seed)
            o.seed = q->sampling.seed + i;
        else
            TRY(net_random_seed(x->cx, &o.seed));
        TRY(submit_tokens(x, ids, n_ids, &o, q->form_name, &a->request));
        a->n_prompt = n_ids;
        a->first_token = ids[0];
        a->marked = prompt->text.at && net_probs_is_mark(x, ids[0], prompt->text);
        a->stop_token = -1;
        add_ids(x, ids, n_ids, &a->prompt_ids);
        a->leads = i == 0;
        w->n++;
        w->n_running++;
        if (q->echo)
            TRY(add_echo(x, prompt, &a->content));
    }
    w->n_prompt_tokens += n_ids;
    x->server->metrics.prompt_tokens += n_ids;
    net_meter_spend(x, n_ids);
    return MPK_OK;
}

static mpk_status check_id(net_exchange *x, const char *field, int32_t token)
{
    const uint32_t n = x->server->facts.vocab_size;
    if (token < 0 || (uint32_t)token >= n)
        return net_refuse(x->cx, &x->refusal, 400, field, NULL,
                          "'%s' has the token id %d, but the vocabulary has ids 0 to %u", field,
                          token, n - 1);
    return MPK_OK;
}

/* What the engine refuses too, but not by the name that the client gave it. */
static mpk_status check_sampling(net_exchange *x, const mpk_request_options *o)
{
    for (uint32_t i = 0; i < o->n_biases; i++)
        TRY(check_id(x, "logit_bias", o->biases[i].token));
    for (uint32_t i = 0; i < o->n_allowed; i++)
        TRY(check_id(x, "allowed_token_ids", o->allowed_tokens[i]));
    for (uint32_t i = 0; i < o->n_stop_tokens; i++)
        TRY(check_id(x, "stop_token_ids", o->stop_tokens[i]));
    if ((o->max_tokens || o->prompt_only) && o->min_tokens > o->max_tokens)
        return net_refuse(x->cx, &x->refusal, 400, "min_tokens", NULL,
                          "'min_tokens' is %u, more than the %u tokens that the answer may have",
                          o->min_tokens, o->max_tokens);
    return MPK_OK;
}

/* A text is tokenized here, after a check of its length, which costs nothing. */
mpk_status net_work_submit(net_exchange *x, const net_request *q, size_t at,
                           const net_prompt *prompt)
{
    const mpk_tokenizer *tokenizer = mpk_engine_tokenizer(x->server->engine);
    int32_t *ids;
    size_t n;
    TRY(check_sampling(x, &q->sampling));
    if (!prompt->text.at)
        return submit_answers(x, q, at, prompt, prompt->ids, prompt->n_ids);
    if (!tokenizer)
        return net_refuse(x->cx, &x->refusal, 400, "prompt", NULL,
                          "the model has no tokenizer: give token ids, or put its "
                          "tokenizer.json beside the weights");
    if (prompt->text.n > x->server->most_text_bytes)
        return net_refuse(x->cx, &x->refusal, 400, "prompt", "context_length_exceeded",
                          "This model's maximum context length is %u tokens. However, your prompt "
                          "has %zu bytes, more than that many tokens can hold. Shorten it, or "
                          "start the server with a larger --context.",
                          net_work_context(x->server), prompt->text.n);
    TRY(mpk_tokenize(x->cx, tokenizer, prompt->text.at, prompt->text.n, q->special, &ids, &n));
    /* the engine has copied the ids when it returns */
    mpk_status status = submit_answers(x, q, at, prompt, ids, n);
    mpk_free(ids);
    return status;
}

/* ---- taking what arrives ---- */

/* Is there still a reason to wait?  Fails if the client has gone or answers are being cut off. */
static mpk_status look_around(net_exchange *x)
{
    if (net_exchange_is_gone(x))
        FAIL(x->cx, MPK_ECANCELLED, "the client has gone");
    if (x->server->cancelling)
        return net_refuse(x->cx, &x->refusal, 503, NULL, "stopping",
                          "the server is stopping: the answer was cut off");
    return MPK_OK;
}

/* Find which stop text or token ended an answer. */
static void find_stop(const net_work *w, net_answer *a)
{
    const int32_t stop = mpk_request_stop(a->request);
    if (stop < 0)
        return;
    if ((uint32_t)stop < w->n_stops)
        a->stopped_by = w->stops[stop];
    else
        a->stop_token = w->stop_tokens[(uint32_t)stop - w->n_stops];
}

/* The score by which best_of ranks answers; an answer without tokens is the worst. */
static double mean_logprob(const mpk_request *request, size_t n)
{
    double sum = 0;
    mpk_logprob own;
    for (size_t i = 0; i < n; i++)
        if (mpk_request_logprobs(request, i, &own, 1))
            sum += own.logprob;
    return n ? sum / (double)n : -HUGE_VAL;
}

/* The engine's times of an answer: queue_ns may be read after the first token, hence the check.  Of
 * the prompt alone it has none, so the server's own clock counts. */
static void note_times(const net_exchange *x, net_answer *a, const mpk_answer *whole)
{
    const uint64_t *at = whole->token_ns, queue_ns = mpk_request_queue_ns(a->request),
                   first = whole->n_tokens ? at[0] : clock_ns() - x->begun_ns;
    a->prompt_ns = queue_ns < first ? first - queue_ns : 0;
    a->decode_ns = whole->n_tokens ? at[whole->n_tokens - 1] - first : 0;
}

/* Take the facts of an answer that has ended, and give back its request and its place. */
static mpk_status end_answer(net_exchange *x, net_answer *a)
{
    net_work *w = &x->work;
    mpk_answer whole;
    /* it has ended, so this does not wait */
    mpk_status status = mpk_request_wait(x->cx, a->request, &whole);
    if (status != MPK_OK)
        return status == MPK_ENOMEM ? status : net_work_note_fault(x, status, 500);
    if (w->dialect->is_chat)
        TRY(net_parts_end(x->cx, &a->parts));
    find_stop(w, a);
    if (w->n_shown < w->n_each)
        a->score = mean_logprob(a->request, whole.n_tokens);
    net_metrics_count_answer(&x->server->metrics, &whole, mpk_request_queue_ns(a->request));
    stop_running(x, a);
    a->finish = whole.finish;
    a->n_tokens = whole.n_tokens;
    note_times(x, a, &whole);
    size_t drafted, accepted;
    mpk_request_drafts(a->request, &drafted, &accepted);
    w->n_drafted += drafted;
    w->n_accepted += accepted;
    mpk_request_free(a->request);
    a->request = NULL;
    w->n_running--;
    w->n_places--;
    x->server->answers--;
    return MPK_OK;
}

/* n tokens of an answer have come; the first ones make it a running one. */
static void note_tokens(net_exchange *x, net_answer *a, size_t n)
{
    if (!a->is_running) {
        x->server->running++;
        a->n_cached = mpk_request_cached_tokens(a->request);
        /* the other answers of the prompt find what the first has just computed: no saving */
        x->work.n_cached += a->leads ? a->n_cached : 0;
    }
    a->is_running = true;
    a->n_tokens += n;
    x->server->metrics.generated_tokens += n;
    net_meter_spend(x, n);
    if (!x->work.first_token_ns)
        x->work.first_token_ns = clock_ns();
}

/* Take what comes for an answer within timeout_ms; *news is set if anything did. A timeout is no
 * error: the thread looks whether its client is still there, and comes again. */
static mpk_status take(net_exchange *x, net_answer *a, int64_t timeout_ms, bool *news)
{
    mpk_piece piece;
    TRY(mpk_request_read(x->cx, a->request, timeout_ms, &piece));
    str words = {piece.text, piece.n_bytes};
    const bool whole = piece.finish == MPK_FINISH_STOP || piece.finish == MPK_FINISH_LENGTH;
    /* one of the prompt alone has no token, but log probabilities */
    if (piece.n_tokens || (whole && !a->is_running)) {
        note_tokens(x, a, piece.n_tokens);
        add_ids(x, piece.tokens, piece.n_tokens, &a->ids);
        TRY(net_probs_take(x, a, a->n_tokens - piece.n_tokens, a->n_tokens));
    }
    *news |= piece.n_tokens || piece.finish != MPK_RUNNING;
    if (x->work.dialect->is_chat)
        TRY(net_parts_put(x->cx, &a->parts, words));
    else
        text_add(&a->content, words.at, words.n);
    CHECK(x->cx, !a->content.failed && !a->ids.failed && !a->prompt_ids.failed, MPK_ENOMEM,
          "out of memory for the text of an answer");
    return piece.finish == MPK_RUNNING ? MPK_OK : end_answer(x, a);
}

/* The next answer after `from` that has not ended, cyclically; `from` if there is no other. */
static uint32_t next_running(const net_work *w, uint32_t from)
{
    for (uint32_t i = 1; i <= w->n; i++)
        if (w->answers[(from + i) % w->n].request)
            return (from + i) % w->n;
    return from;
}

/* Take what has come for any of several answers, without waiting.  A thread can sleep on one
 * request only; the one that had tokens is watched next, because it runs, while others may be
 * queued. */
static mpk_status take_all(net_exchange *x, bool *news)
{
    net_work *w = &x->work;
    for (uint32_t i = 0; i < w->n; i++) {
        bool here = false;
        if (w->answers[i].request)
            TRY(take(x, &w->answers[i], 0, &here));
        if (here)
            w->watched = i;
        *news |= here;
    }
    return MPK_OK;
}

/* One thread serves all answers of its exchange: it takes what has come for any of them without
 * waiting, and only then waits for one. With a short timeout if others run, since what they have
 * would lie there. */
mpk_status net_work_wait(net_exchange *x)
{
    net_work *w = &x->work;
    bool news = false;
    TRY(look_around(x));
    if (w->n_running > 1)
        TRY(take_all(x, &news));
    if (news)
        return MPK_OK;
    if (!w->answers[w->watched].request)
        w->watched = next_running(w, w->watched);
    TRY(take(x, &w->answers[w->watched], w->n_running > 1 ? NET_SHARED_LOOK_MS : NET_LOOK_MS,
             &news));
    if (!news) /* it may be queued; watch another one */
        w->watched = next_running(w, w->watched);
    return MPK_OK;
}

/* ---- the best of several answers ---- */

/* Move the most probable of n answers to the front; of equal ones the earlier. */
static void bring_best(net_answer *answers, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (answers[i].score > answers[best].score)
            best = i;
    const net_answer first = answers[0];
    answers[0] = answers[best];
    answers[best] = first;
}

/* Sorts as many answers to the front as the client gets, for each prompt, and closes the gaps. */
void net_work_choose(net_exchange *x)
{
    net_work *w = &x->work;
    uint32_t kept = 0;
    for (uint32_t first = 0; w->n_shown < w->n_each && first < w->n; first += w->n_each) {
        net_answer *answers = &w->answers[first];
        for (uint32_t i = 0; i < w->n_shown; i++)
            bring_best(&answers[i], w->n_each - i);
        for (uint32_t i = w->n_shown; i < w->n_each; i++) {
            w->n_hidden_tokens += answers[i].n_tokens;
            free_texts(&answers[i]);
        }
        memmove(&w->answers[kept], answers, w->n_shown * sizeof *answers);
        kept += w->n_shown;
    }
    w->n = kept ? kept : w->n;
}
