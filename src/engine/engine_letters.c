/* engine_letters.c - a vocabulary for a model that is made up, so that each verb can work on a
 * configuration alone.
 *
 * Input: how many ids there are; output: a tokenizer that reads text byte by byte, id 1 + byte (a
 * space has an id of its own), and writes every other id as <tNUMBER>.  Such a model's text means
 * nothing, but it takes the same time as any other.
 *
 *     "a b" -> 98, 257, 99
 *
 * Called by engine_compile.c for random_weights without a tokenizer in the model's folder.
 */
#include <stdio.h>

#include "engine/engine.h"

enum { N_BYTES = 256, SPACE = N_BYTES + 1, NAME_BYTES = 16 };

/* A vocabulary as that of a sentencepiece model with byte tokens: letters have no tokens of their
 * own, so text falls back to bytes.  All lies in a, which may be freed once tokenizer_from_vocab
 * has returned. */
static mpk_status fill(mpk_context *cx, arena *a, uint32_t n, tokenizer_vocab *v)
{
    str *tokens;
    int32_t *types;
    float *scores;
    char *names;
    NEW(cx, a, tokens, n);
    NEW(cx, a, types, n);
    NEW(cx, a, scores, n);
    NEW(cx, a, names, (size_t)n * NAME_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        char *name = names + (size_t)i * NAME_BYTES;
        bool is_byte = i >= 1 && i <= N_BYTES;
        int length = is_byte ? snprintf(name, NAME_BYTES, "<0x%02X>", i - 1)
                             : snprintf(name, NAME_BYTES, "<t%u>", i);
        /* sentencepiece writes a space so */
        tokens[i] = i == SPACE ? STR("\u2581") : (str){name, (size_t)length};
        types[i] = is_byte ? TOKENIZER_TYPE_BYTE : TOKENIZER_TYPE_NORMAL;
    }
    types[0] = TOKENIZER_TYPE_UNKNOWN;
    v->model = STR("llama");
    v->tokens = tokens;
    v->n_tokens = n;
    v->types = types;
    v->scores = scores;
    v->unk_id = 0;
    v->add_bos = v->add_eos = v->add_space_prefix = 0;
    return MPK_OK;
}

mpk_status engine_make_tokenizer(mpk_context *cx, uint32_t vocab_size, tokenizer **out)
{
    arena scratch = {0};
    tokenizer_vocab v = TOKENIZER_VOCAB_EMPTY;
    mpk_status status = MPK_OK;
    if (vocab_size <= SPACE) {
        *out = NULL; /* too few ids for bytes: such a model takes ids only */
        return MPK_OK;
    }
    status = fill(cx, &scratch, vocab_size, &v);
    if (status == MPK_OK)
        status = tokenizer_from_vocab(cx, &v, out);
    arena_free(&scratch);
    return status;
}
