/* engine_embed.c - a text's vector: the final hidden states of its tokens, pooled, cut, and brought to length 1.
 *
 * The program of an engine of embeddings ends where the head would begin, and its rows lie where logits do.  A text is
 * a sequence that is fed once; unlike mpk_sequence it holds no place when it waits for one.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "engine/engine_request.h"

static mpk_status read_options(mpk_context *cx, const mpk_engine *e, const mpk_embed_options *from,
                               mpk_embed_options *to)
{
    const uint32_t size = e->build.model.config.hidden_size;
    *to = (mpk_embed_options){.size = sizeof *to};
    CHECK(cx, e->build.options.embeddings, MPK_EUNSUPPORTED,
          "the model was not opened for embeddings: set mpk_engine_options.embeddings (--embeddings)");
    if (from) {
        CHECK(cx, from->size >= offsetof(mpk_embed_options, raw) && from->size <= sizeof *to, MPK_EARG,
              "mpk_embed_options.size is %zu: set it to sizeof(mpk_embed_options)", from->size);
        memcpy(to, from, from->size);
    }
    CHECK(cx, (unsigned)to->pooling <= MPK_POOL_MEAN, MPK_EARG, "pooling is %d: no such choice", (int)to->pooling);
    CHECK(cx, to->dimensions <= size, MPK_EARG, "%u dimensions are asked for, the model has %u", to->dimensions, size);
    if (!to->dimensions)
        to->dimensions = size;
    return MPK_OK;
}

/* The rows of all tokens, or of the last. */
static mpk_status feed(mpk_context *cx, mpk_engine *e, const int32_t *tokens, size_t n, bool all, float *rows)
{
    mpk_request *r;
    TRY(engine_new_request(cx, e, &r));
    const machine_request wire = {
        .tokens = tokens,
        .n_tokens = (uint32_t)n,
        .max_tokens = n < engine_capacity(e),
        .host_samples = true,
        .all_logits = all,
        .logits = rows,
    };
    r->is_sequence = true;
    mpk_status status = engine_submit(cx, r, &wire);
    if (status == MPK_OK)
        status = engine_wait_fed(cx, r);
    mpk_request_free(r);
    return status;
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

static void normalize(float *v, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)v[i] * v[i];
    for (uint32_t i = 0; i < n && sum > 0; i++)
        v[i] = (float)(v[i] / sqrt(sum));
}

mpk_status mpk_embed(mpk_context *cx, mpk_engine *e, const int32_t *tokens, size_t n, const mpk_embed_options *options,
                     float *out)
{
    const uint32_t size = e->build.model.config.hidden_size, capacity = engine_capacity(e);
    mpk_embed_options o;
    TRY(read_options(cx, e, options, &o));
    CHECK(cx, n && out, MPK_EARG, "no tokens, or no place for their vector");
    CHECK(cx, n <= capacity, MPK_ELIMIT, "%zu tokens are more than the context of %u", n, capacity);
    TRY(engine_check_tokens(cx, e, tokens, n));
    const size_t n_rows = o.pooling == MPK_POOL_MEAN ? n : 1;
    float *rows = calloc(n_rows * size, sizeof *rows);
    CHECK(cx, rows, MPK_ENOMEM, "out of memory for %zu hidden states", n_rows);
    mpk_status status = feed(cx, e, tokens, n, n_rows > 1, rows);
    if (status == MPK_OK) {
        average(rows, n_rows, size);
        if (!o.raw)
            normalize(rows, o.dimensions);
        memcpy(out, rows, o.dimensions * sizeof *out);
    }
    free(rows);
    return status;
}
