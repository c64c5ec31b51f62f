/* engine_embed.c - vectors of texts: the final hidden states of their tokens, pooled, cut, and
 * brought to length 1.
 *
 * The program of an engine of embeddings ends where the head would begin, and its rows lie where
 * logits do.  A text is a sequence that is fed once; unlike mpk_sequence it holds no place while it
 * waits for one.  The texts of a call slide through a window: as many are in the machine as it has
 * places, and no more than ROWS_IN_FLIGHT hidden states wait to be pooled unless one text alone has
 * more.
 *
 *     texts:  0 1 2 | 3 4 5 | 6 7 8      0-2 ended, 3-5 in the window (n_window = 3), 6-8 waiting
 *
 * Input: token ids; output: f32[n, dimensions].  Called through mpk.h by any thread, on which all
 * of it runs; several calls share the machine's places, and the machine queues what has none.
 * Relies on engine_request.c, and on engine_wait_fed of engine_sequence.c.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "engine/engine_request.h"

/* Memory: at hidden size 4096, 2^14 rows of f32 are 256 MiB. */
enum { ROWS_IN_FLIGHT = 1 << 14 };

/* A text in the machine. */
typedef struct fed {
    mpk_request *request; /* owned */
    float *rows;          /* f32[n_rows, size], heap; the machine writes them until it is fed */
    size_t n_rows;
} fed;

/* One call of mpk_embed. */
typedef struct embedder {
    mpk_engine *engine;
    mpk_embed_options options; /* dimensions: never 0 */
    const mpk_tokens *texts;   /* the caller's */
    uint32_t size;             /* of a hidden state */
    fed *window;               /* heap; text i is at i % n_window */
    size_t n_window;           /* at most this many texts at a time */
    size_t begun, ended;       /* texts; ended <= begun <= ended + n_window */
    size_t n_rows;             /* of the texts between */
} embedder;

static mpk_status read_options(mpk_context *cx, const mpk_engine *e, const mpk_embed_options *from,
                               mpk_embed_options *to)
{
    const uint32_t size = e->build.model.config.hidden_size;
    CHECK(cx, e->build.options.embeddings, MPK_EUNSUPPORTED,
          "the model was not opened for embeddings: set mpk_engine_options.embeddings "
          "(--embeddings)");
    TRY(engine_read_embed_options(cx, from, to));
    CHECK(cx, to->dimensions <= size, MPK_EARG, "%u dimensions are asked for, the model has %u",
          to->dimensions, size);
    if (!to->dimensions)
        to->dimensions = size;
    return MPK_OK;
}

/* All texts before the first is fed, so that a refusal has computed nothing. */
static mpk_status check_texts(mpk_context *cx, const mpk_engine *e, const mpk_tokens *texts,
                              size_t n)
{
    const uint32_t capacity = engine_capacity(e);
    for (size_t i = 0; i < n; i++) {
        CHECK(cx, texts[i].at && texts[i].n, MPK_EARG, "text %zu has no tokens", i);
        CHECK(cx, texts[i].n <= capacity, MPK_ELIMIT,
              "text %zu: its %zu tokens are more than the context of %u", i, texts[i].n, capacity);
        TRY(engine_check_tokens(cx, e, texts[i].at, texts[i].n));
    }
    return MPK_OK;
}

/* ---- one text ---- */

/* Hidden states of a text that are pooled: of all its tokens, or of the last one alone. */
static size_t rows_of(const embedder *m, size_t i)
{
    return m->options.pooling == MPK_POOL_MEAN ? m->texts[i].n : 1;
}

static void drop(fed *f)
{
    mpk_request_free(f->request);
    free(f->rows);
    *f = (fed){0};
}

/* Submit a text, of which the machine writes the rows of all tokens or of the last.  No token is
 * ever appended, so max_tokens is 1; a text that fills the context leaves no room for even that,
 * and has 0: until the context is full.  On failure the caller drops *f. */
static mpk_status feed(mpk_context *cx, const embedder *m, const mpk_tokens *from, fed *f)
{
    const uint32_t capacity = engine_capacity(m->engine);
    f->rows = calloc(f->n_rows * m->size, sizeof *f->rows);
    CHECK(cx, f->rows, MPK_ENOMEM, "out of memory for %zu hidden states", f->n_rows);
    TRY(engine_new_request(cx, m->engine, &f->request));
    const machine_request wire = {
        .tokens = from->at,
        .n_tokens = (uint32_t)from->n,
        .max_tokens = from->n == capacity ? 0 : 1,
        .host_samples = true,
        .all_logits = f->n_rows != 1,
        .logits = f->rows,
    };
    f->request->is_sequence = true;
    return engine_submit(cx, f->request, &wire);
}

/* Feed text number m->begun.  On failure it does not count as begun. */
static mpk_status begin(mpk_context *cx, embedder *m)
{
    fed *f = &m->window[m->begun % m->n_window];
    f->n_rows = rows_of(m, m->begun);
    mpk_status status = feed(cx, m, &m->texts[m->begun], f);
    if (status != MPK_OK) {
        drop(f);
        return status;
    }
    m->n_rows += f->n_rows;
    m->begun++;
    return MPK_OK;
}

/* The mean of n rows, into the first. */
static void average(float *rows, size_t n, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++) {
        double sum = 0;
        for (size_t row = 0; row < n; row++)
            sum += rows[row * size + i];
        rows[i] = (float)(sum / (double)n);
    }
}

/* To length 1; a vector of zeros stays zeros.  Sums are double: squares of f32 do not overflow
 * it. */
static void normalize(float *v, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)v[i] * v[i];
    for (uint32_t i = 0; i < n && sum > 0; i++)
        v[i] = (float)(v[i] / sqrt(sum));
}

/* NaN and infinities are not a vector: neither JSON nor a cosine can say them. */
static mpk_status check_finite(mpk_context *cx, const embedder *m, const float *v)
{
    for (uint32_t i = 0; i < m->options.dimensions; i++)
        CHECK(cx, isfinite(v[i]), MPK_EFORMAT,
              "text %zu: number %u of its vector is not finite: the model's weights hold NaN, or "
              "its numbers overflow",
              m->ended, i);
    return MPK_OK;
}

/* Wait for text number m->ended, the oldest, pool it and write its vector.  The order of cutting
 * and normalising is that of mpk.h: the length is that of the cut vector.  On failure the text
 * counts as begun still, and give_up drops it. */
static mpk_status end(mpk_context *cx, embedder *m, float *out)
{
    fed *f = &m->window[m->ended % m->n_window];
    TRY(engine_wait_fed(cx, f->request));
    average(f->rows, f->n_rows, m->size);
    TRY(check_finite(cx, m, f->rows));
    if (!m->options.raw)
        normalize(f->rows, m->options.dimensions);
    memcpy(out + m->ended * m->options.dimensions, f->rows, m->options.dimensions * sizeof *out);
    m->n_rows -= f->n_rows;
    m->ended++;
    drop(f);
    return MPK_OK;
}

/* ---- all ---- */

/* May text number m->begun be fed now?  One always may if none is in the machine, however long it
 * is. */
static bool fits(const embedder *m)
{
    return m->begun == m->ended || (m->begun - m->ended < m->n_window &&
                                    m->n_rows + rows_of(m, m->begun) <= ROWS_IN_FLIGHT);
}

/* Fill the window, then take the oldest text out of it, until all are done. */
static mpk_status run(mpk_context *cx, embedder *m, size_t n, float *out)
{
    while (m->ended < n) {
        while (m->begun < n && fits(m))
            TRY(begin(cx, m));
        TRY(end(cx, m, out));
    }
    return MPK_OK;
}

/* After a failure: wait for every text that is in the machine and drop it.  They must not be freed
 * before, because the machine writes their rows until they are fed.  After success there are
 * none. */
static void give_up(embedder *m)
{
    mpk_context unheard = {0};
    for (; m->ended < m->begun; m->ended++) {
        fed *f = &m->window[m->ended % m->n_window];
        engine_wait_fed(&unheard, f->request);
        drop(f);
    }
}

/* At most max_batch texts are under way at a time, in the window; give_up waits for those that a
 * failure has left there.
 */
mpk_status mpk_embed(mpk_context *cx, mpk_engine *e, const mpk_tokens *texts, size_t n,
                     const mpk_embed_options *options, float *out)
{
    embedder m = {.engine = e,
                  .texts = texts,
                  .size = e->build.model.config.hidden_size,
                  .n_window = e->build.plan.max_batch};
    TRY(read_options(cx, e, options, &m.options));
    CHECK(cx, !n || (texts && out), MPK_EARG, "no texts, or no place for their vectors");
    TRY(check_texts(cx, e, texts, n));
    m.window = calloc(m.n_window, sizeof *m.window);
    CHECK(cx, m.window, MPK_ENOMEM, "out of memory for %zu texts", m.n_window);
    mpk_status status = run(cx, &m, n, out);
    give_up(&m);
    free(m.window);
    return status;
}
