/* tokenizer.h - text to token ids and back, as the model's makers do it.
 *
 * A tokenizer comes from a Hugging Face tokenizer.json or from the vocabulary of a GGUF file.
 * Both become the same: added tokens to find, steps that normalise text, steps that cut it, BPE
 * merges, ids to put around the result, and steps that reverse it all.  Whatever a file asks for
 * that is not known here is refused by name, never guessed.
 *
 * Text in is UTF-8; invalid bytes are read as U+FFFD, one for each maximal part of a broken
 * character (the policy of Python's errors="replace" and of Unicode's recommendation).  Text out
 * is always valid UTF-8, by the same rule.
 *
 * A tokenizer never changes after it was made: any number of threads may use one.  Time is O(n
 * log n) in the text.
 */
#ifndef LOAD_TOKENIZER_H
#define LOAD_TOKENIZER_H

#include <stdint.h>

#include "base/str.h"

typedef struct tokenizer tokenizer;
typedef struct tokenizer_stream tokenizer_stream;
typedef VEC(int32_t) tokenizer_ids;

enum {
    /* encode: the ids that the model's post-processor puts around a text (BOS, EOS) */
    TOKENIZER_ADD_SPECIAL = 1,
    /* encode: the text of a special token in the input becomes that token */
    TOKENIZER_PARSE_SPECIAL = 2,
    TOKENIZER_SKIP_SPECIAL = 4, /* decode: special tokens give no text */
};

/* The values of tokenizer.ggml.token_type in a GGUF file. */
enum {
    TOKENIZER_TYPE_NORMAL = 1,
    TOKENIZER_TYPE_UNKNOWN = 2,
    TOKENIZER_TYPE_CONTROL = 3,
    TOKENIZER_TYPE_USER_DEFINED = 4,
    TOKENIZER_TYPE_UNUSED = 5,
    TOKENIZER_TYPE_BYTE = 6,
};

/* What a GGUF file has of a tokenizer (tokenizer.ggml.*).  Everything is borrowed until
 * tokenizer_from_vocab returns. */
typedef struct tokenizer_vocab {
    /* "gpt2" (byte-level BPE), "llama" (sentencepiece BPE), "gemma4" (BPE over raw UTF-8) */
    str model;
    str pre; /* the name of the pre-tokenizer; empty if the file has none */
    const str *tokens;
    size_t n_tokens;
    const float *scores;  /* [n_tokens], NULL if the file has none; "llama" needs them */
    const int32_t *types; /* [n_tokens] TOKENIZER_TYPE_*, NULL: all normal */
    const str *merges;    /* "left right", first merged first; "gpt2" and "gemma4" need them */
    size_t n_merges;
    int32_t bos_id, eos_id, eot_id, unk_id, pad_id; /* -1: the file does not name it */
    int32_t add_bos, add_eos, add_space_prefix;     /* 0, 1, or -1: the file does not say */
} tokenizer_vocab;

/* A vocabulary in which nothing is said yet: every id and choice is -1. */
#define TOKENIZER_VOCAB_EMPTY                                                                \
    {                                                                                        \
        .bos_id = -1, .eos_id = -1, .eot_id = -1, .unk_id = -1, .pad_id = -1, .add_bos = -1, \
        .add_eos = -1, .add_space_prefix = -1                                                \
    }

/* Make a tokenizer from tokenizer.json at path (the file, or its folder); tokenizer_config.json
 * beside it, if it exists, names BOS, EOS, padding and whether they are added.  "truncation" and
 * "padding" of the file are about batches of rows, not about ids, and are ignored.  MPK_EIO,
 * MPK_EFORMAT, MPK_EUNSUPPORTED (names what), MPK_ENOMEM. */
mpk_status tokenizer_from_json(mpk_context *cx, const char *path, tokenizer **out);
/* The same from bytes; config may be empty. */
mpk_status tokenizer_from_json_bytes(mpk_context *cx, str json, str config, tokenizer **out);
/* From a GGUF vocabulary.  MPK_EFORMAT, MPK_EUNSUPPORTED (names the model or pre-tokenizer),
 * MPK_ENOMEM. */
mpk_status tokenizer_from_vocab(mpk_context *cx, const tokenizer_vocab *v, tokenizer **out);
/* The inverse: what a GGUF file must have of a tokenizer from a tokenizer.json, with at least
 * n_tokens tokens (unused ids get texts of their own).  The result lies in arena a or in t.
 * GGUF names how text is cut instead of describing it: the name is the first one that gives the
 * same ids as t for check texts of many scripts and for the tokens' own texts.
 * MPK_EUNSUPPORTED: no name does, or GGUF cannot express which ids t puts around a text. */
mpk_status tokenizer_to_vocab(mpk_context *cx, arena *a, const tokenizer *t, size_t n_tokens,
                              tokenizer_vocab *out);
/* NULL is fine. */
void tokenizer_free(tokenizer *t);

/* Append the ids of n bytes to *out, which grows in arena a.  On failure *out may hold a part.
 * MPK_ELIMIT: a regular expression of the file took too long on this text, or the text is over 1
 * GiB. */
mpk_status tokenizer_encode(mpk_context *cx, const tokenizer *t, arena *a, const char *bytes,
                            size_t n, unsigned flags, tokenizer_ids *out);
/* The text of n ids, NUL-terminated, into arena a.  Ids without a token (padding of the
 * embedding) give nothing. */
mpk_status tokenizer_decode(mpk_context *cx, const tokenizer *t, arena *a, const int32_t *ids,
                            size_t n, unsigned flags, str *out);

/* Decoding token by token, for text that is shown while it is generated.  Each piece is whole
 * characters; bytes that could still become part of a character wait.  The pieces together are
 * what tokenizer_decode gives, with one exception: if a vocabulary spells characters as byte
 * tokens and they are invalid, tokenizer_decode (like the Python library) replaces every byte of
 * the run, a stream only those that it has not already shown.  One thread at a time; the
 * tokenizer must outlive the stream. */
mpk_status tokenizer_stream_open(mpk_context *cx, const tokenizer *t, unsigned flags,
                                 tokenizer_stream **out);
/* *piece (possibly empty) is valid until the next call on s. */
mpk_status tokenizer_stream_put(mpk_context *cx, tokenizer_stream *s, int32_t id, str *piece);
/* The text that still waits, an unfinished character as U+FFFD.  The stream is then ready for a
 * new text. */
mpk_status tokenizer_stream_end(mpk_context *cx, tokenizer_stream *s, str *piece);
void tokenizer_stream_close(tokenizer_stream *s);

/* One more than the largest id. */
int32_t tokenizer_vocab_size(const tokenizer *t);
/* A token as the vocabulary spells it; at == NULL if no token has this id. */
str tokenizer_token(const tokenizer *t, int32_t id);
/* The id of a token spelled as in the vocabulary, or -1. */
int32_t tokenizer_find(const tokenizer *t, str token);
/* The bytes that each token adds to a text that has begun, in arena *a: bytes[n]; none for
 * special tokens and unused ids.  A character may be split between tokens.  MPK_EUNSUPPORTED:
 * what a token adds depends on others. */
mpk_status tokenizer_bytes(mpk_context *cx, const tokenizer *t, arena *a, uint32_t n, str *bytes);
/* True for tokens that TOKENIZER_SKIP_SPECIAL leaves out. */
bool tokenizer_is_special(const tokenizer *t, int32_t id);
/* -1 if the files do not say. */
int32_t tokenizer_bos(const tokenizer *t);
int32_t tokenizer_eos(const tokenizer *t);
/* the end of a turn, if GGUF names it apart from the end of text */
int32_t tokenizer_eot(const tokenizer *t);
int32_t tokenizer_pad(const tokenizer *t);

#endif
