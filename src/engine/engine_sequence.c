/* engine_sequence.c - timelines that the caller drives: it gives tokens and gets logits.
 *
 * A sequence is a request whose tokens the host samples: the first feed submits it, each further
 * one appends, and the machine writes the logits straight into the caller's array.  A feed returns
 * only when they are there, so at most one is under way for each sequence, and the array is not
 * touched once the call has returned with MPK_OK.
 *
 * Called through mpk.h, and by engine_calibrate.c; engine_embed.c uses engine_wait_fed for requests
 * of its own.  Different sequences may be fed by different threads; one sequence belongs to one
 * thread at a time.  Relies on engine_request.c for submission and for the collector, which sets
 * `fed`.
 */
#include <stdlib.h>

#include "engine/engine_request.h"

struct mpk_sequence {
    mpk_request *request; /* owned; in the machine from the first feed on */
    size_t length;        /* tokens whose logits have come; of the feeding thread, no lock */
    bool all_logits;      /* a row after every token, not only after the last of a feed */
};

/* Counts the sequence but submits nothing: the machine gives it a place at its first feed.  The
 * count is limited to max_batch because an open sequence keeps its place between feeds; one more
 * would wait in the queue for as long as the others stay open. */
mpk_status mpk_sequence_open(mpk_context *cx, mpk_engine *engine, bool all_logits,
                             mpk_sequence **out)
{
    TRY(engine_check_words(cx, engine));
    mpk_sequence *s = calloc(1, sizeof *s);
    uint32_t most = engine->build.plan.max_batch;
    CHECK(cx, s, MPK_ENOMEM, "out of memory for a sequence");
    mpk_status status = engine_new_request(cx, engine, &s->request);
    if (status != MPK_OK) {
        free(s);
        return status;
    }
    s->request->is_sequence = true;
    s->all_logits = all_logits;
    pthread_mutex_lock(&engine->mutex);
    bool good = engine->n_sequences < most;
    engine->n_sequences += good;
    pthread_mutex_unlock(&engine->mutex);
    if (!good) {
        mpk_request_free(s->request);
        free(s);
        FAIL(cx, MPK_ELIMIT,
             "%u sequences are open, as many as max_batch: close one, or open the model with more",
             most);
    }
    *out = s;
    return MPK_OK;
}

/* mpk_request_free cancels it in the machine and does not wait: what another sequence feeds
 * meanwhile stands in the machine's queue until the place is free. */
void mpk_sequence_close(mpk_sequence *s)
{
    if (!s)
        return;
    mpk_engine *e = s->request->engine;
    pthread_mutex_lock(&e->mutex);
    e->n_sequences--;
    pthread_mutex_unlock(&e->mutex);
    mpk_request_free(s->request);
    free(s);
}

size_t mpk_sequence_length(const mpk_sequence *s)
{
    return s->length;
}

/* Without the mutex after the wait: a finish other than MPK_RUNNING is final, and so are its words.
 * An end counts more than `fed`: a sequence that has ended can take no more tokens. */
mpk_status engine_wait_fed(mpk_context *cx, mpk_request *r)
{
    pthread_mutex_lock(&r->engine->mutex);
    while (!r->fed && r->finish == MPK_RUNNING)
        pthread_cond_wait(&r->changed, &r->engine->mutex);
    bool good = r->finish == MPK_RUNNING;
    pthread_mutex_unlock(&r->engine->mutex);
    CHECK(cx, good || r->finish != MPK_FINISH_ERROR, r->words.status, "%s", r->words.text);
    CHECK(cx, good, MPK_ELIMIT, "the sequence has ended (%s)", mpk_finish_name(r->finish));
    return MPK_OK;
}

/* The first feed.  max_tokens is the room for all later ones: the machine cannot know how many
 * tokens the caller will append. */
static mpk_status start(mpk_context *cx, mpk_sequence *s, const int32_t *tokens, size_t n,
                        float *logits)
{
    machine_request wire = {
        .tokens = tokens,
        .n_tokens = (uint32_t)n,
        .max_tokens = engine_capacity(s->request->engine) - (uint32_t)n,
        .host_samples = true,
        .all_logits = s->all_logits,
        .logits = logits,
    };
    return engine_submit(cx, s->request, &wire);
}

/* Checks come before anything is changed, so after MPK_EARG or MPK_ELIMIT from them the sequence
 * goes on as before. */
mpk_status mpk_sequence_feed(mpk_context *cx, mpk_sequence *s, const int32_t *tokens, size_t n,
                             float *logits)
{
    mpk_request *r = s->request;
    uint32_t capacity = engine_capacity(r->engine);
    CHECK(cx, n && logits, MPK_EARG, "no tokens, or no place for their logits");
    CHECK(cx, n <= capacity - s->length, MPK_ELIMIT,
          "%zu tokens after %zu are more than the context of %u: open the model with a larger "
          "context",
          n, s->length, capacity);
    TRY(engine_check_tokens(cx, r->engine, tokens, n));
    /* before the submission: the collector may report the logits before it returns.  No mutex,
     * since nothing of this sequence is under way that it could report */
    r->fed = false;
    if (s->length == 0)
        TRY(start(cx, s, tokens, n, logits));
    else
        TRY(machine_append(cx, r->engine->machine, r->id, tokens, (uint32_t)n, logits));
    TRY(engine_wait_fed(cx, r));
    s->length += n;
    return MPK_OK;
}
