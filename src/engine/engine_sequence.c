/* engine_sequence.c - timelines that the caller drives: he gives tokens and gets logits.
 *
 * A sequence is a request whose tokens the host samples: the first feed submits it, each further
 * one appends, and the machine writes the logits where the caller wants them.
 */
#include <stdlib.h>

#include "engine/engine_request.h"

struct mpk_sequence {
    mpk_request *request;
    size_t length;
    bool all_logits;
};

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
    r->fed = false;
    if (s->length == 0)
        TRY(start(cx, s, tokens, n, logits));
    else
        TRY(machine_append(cx, r->engine->machine, r->id, tokens, (uint32_t)n, logits));
    TRY(engine_wait_fed(cx, r));
    s->length += n;
    return MPK_OK;
}
