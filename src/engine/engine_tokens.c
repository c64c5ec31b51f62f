/* engine_tokens.c - tokenizers for the caller: text to ids and back.
 *
 * Input: a model folder, a GGUF file (a vocabulary alone is enough) or an image, whose model is
 * opened instead; output: an mpk_tokenizer, or memory that the caller returns with mpk_free.  An
 * engine holds an mpk_tokenizer of its own, which it lends through mpk_engine_tokenizer; the calls
 * here make no difference between the two, except that only mpk_tokenizer_close owns a loaded
 * model.
 *
 * Encoding and decoding read the tokenizer and write only a scratch arena and the caller's context,
 * so several threads may share one tokenizer.  Relies on load/tokenizer.h.
 */
#include <stdlib.h>

#include "base/ids.h"
#include "engine/engine.h"

/* Fill t from the files of the model.  On failure t holds nothing that must be closed.  The path
 * that an image names lives in `scratch`; load_open has copied what it needs before that is
 * freed. */
static mpk_status open_model(mpk_context *cx, const char *model, mpk_tokenizer *t)
{
    arena scratch = {0};
    const char *path = model;
    mpk_status status = MPK_OK;
    if (engine_is_image(model))
        status = engine_read_image_model(cx, &scratch, model, &path);
    if (status == MPK_OK)
        status = load_open(cx, path, &t->model);
    arena_free(&scratch);
    NOTE(cx, status, "loading %s", model);
    t->tokenizer = t->model.tokenizer;
    t->chats = &t->model;
    if (t->tokenizer)
        return MPK_OK;
    load_close(&t->model);
    FAIL(cx, MPK_EUNSUPPORTED, "%s has no tokenizer: a tokenizer.json must lie beside the weights",
         model);
}

mpk_status mpk_tokenizer_open(mpk_context *cx, const char *model, mpk_tokenizer **out)
{
    mpk_tokenizer *t = calloc(1, sizeof *t);
    CHECK(cx, t, MPK_ENOMEM, "out of memory for a tokenizer");
    mpk_status status = open_model(cx, model, t);
    if (status == MPK_OK)
        *out = t;
    else
        free(t);
    return status;
}

void mpk_tokenizer_close(mpk_tokenizer *t)
{
    if (!t)
        return;
    load_close(&t->model);
    free(t);
}

/* A copy on the heap, which the caller frees.  The extra zero byte ends a text with a NUL and makes
 * the block non-NULL for n_bytes = 0, where malloc(0) need not. */
static mpk_status copy_out(mpk_context *cx, const void *from, size_t n_bytes, void **out)
{
    char *to = malloc(n_bytes + 1);
    CHECK(cx, to, MPK_ENOMEM, "out of memory for %zu bytes", n_bytes);
    if (n_bytes)
        memcpy(to, from, n_bytes);
    to[n_bytes] = 0;
    *out = to;
    return MPK_OK;
}

/* Special tokens that are spelt out in the text ("<|im_start|>") become their single ids;
 * add_special decides only about those that the model puts around a text.  On failure *ids and
 * *n_ids keep their values. */
mpk_status mpk_tokenize(mpk_context *cx, const mpk_tokenizer *t, const char *bytes, size_t n,
                        bool add_special, int32_t **ids, size_t *n_ids)
{
    arena scratch = {0};
    tokenizer_ids found = {0};
    void *copy = NULL;
    unsigned flags = TOKENIZER_PARSE_SPECIAL | (add_special ? TOKENIZER_ADD_SPECIAL : 0);
    mpk_status status = tokenizer_encode(cx, t->tokenizer, &scratch, bytes, n, flags, &found);
    if (status == MPK_OK)
        status = copy_out(cx, found.at, found.n * sizeof(int32_t), &copy);
    if (status == MPK_OK) {
        *ids = copy;
        *n_ids = found.n;
    }
    arena_free(&scratch);
    return status;
}

/* Ids are checked first: the decoder relies on each being inside the vocabulary.  Special tokens
 * are written out, unlike in the text of an answer.  The n bytes need not be valid UTF-8, since a
 * token may hold part of a character. */
mpk_status mpk_detokenize(mpk_context *cx, const mpk_tokenizer *t, const int32_t *ids, size_t n_ids,
                          char **bytes, size_t *n)
{
    arena scratch = {0};
    str found = {0};
    void *copy = NULL;
    TRY(ids_check(cx, ids, n_ids, (uint32_t)tokenizer_vocab_size(t->tokenizer)));
    mpk_status status = tokenizer_decode(cx, t->tokenizer, &scratch, ids, n_ids, 0, &found);
    if (status == MPK_OK)
        status = copy_out(cx, found.at, found.n, &copy);
    if (status == MPK_OK) {
        *bytes = copy;
        *n = found.n;
    }
    arena_free(&scratch);
    return status;
}
