/* tokenizer_fuzz.c - any bytes as tokenizer.json, a zero byte, and a text: an error, or ids of that
 * tokenizer whose text is valid UTF-8, the same whole and, where nothing was invalid, in a
 * stream. */
#include <stdlib.h>

#include "load/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TEXT = 256 };

/* A property that fails ends the process, which is what a fuzzer looks for. */
static void must(bool holds)
{
    if (!holds)
        abort();
}

/* UTF-8 checked apart from the code under test. */
static bool is_valid(str s)
{
    for (size_t i = 0; i < s.n;) {
        const unsigned char c = (unsigned char)s.at[i];
        const bool begins = c < 0x80 || (c >= 0xc2 && c < 0xf5);
        const size_t n = begins ? 1 + (size_t)(c >= 0x80) + (c >= 0xe0) + (c >= 0xf0) : 0;
        if (!n || n > s.n - i)
            return false;
        for (size_t k = 1; k < n; k++)
            if (((unsigned char)s.at[i + k] & 0xc0) != 0x80)
                return false;
        i += n;
    }
    return true;
}

/* Token by token gives what decoding whole gave, in whole characters. */
static void stream(const tokenizer *t, const tokenizer_ids *ids, str whole)
{
    mpk_context cx = {0};
    tokenizer_stream *s;
    text all = {0};
    str piece;
    if (tokenizer_stream_open(&cx, t, 0, &s) != MPK_OK)
        return;
    bool ok = true;
    for (size_t i = 0; ok && i < ids->n; i++) {
        ok = tokenizer_stream_put(&cx, s, ids->at[i], &piece) == MPK_OK;
        must(!ok || is_valid(piece));
        if (ok)
            text_add(&all, piece.at, piece.n);
    }
    if (ok && tokenizer_stream_end(&cx, s, &piece) == MPK_OK) {
        text_add(&all, piece.at, piece.n);
        must(memmem(whole.at, whole.n, "\xef\xbf\xbd", 3) ||
             str_equal(whole, (str){all.at, all.n}));
    }
    tokenizer_stream_close(s);
    text_free(&all);
}

/* Encode and decode one text: ids are ids of the vocabulary, text is valid. */
static void use(const tokenizer *t, str input, unsigned flags)
{
    mpk_context cx = {0};
    arena a = {0};
    tokenizer_ids ids = {0};
    str whole;
    if (tokenizer_encode(&cx, t, &a, input.at, input.n, flags, &ids) == MPK_OK) {
        for (size_t i = 0; i < ids.n; i++)
            must(ids.at[i] >= 0 && ids.at[i] < tokenizer_vocab_size(t));
        if (tokenizer_decode(&cx, t, &a, ids.at, ids.n, 0, &whole) == MPK_OK) {
            must(is_valid(whole));
            stream(t, &ids, whole);
        }
    }
    arena_free(&a);
}

/* Up to the first zero byte the input is a tokenizer.json, and after it a text to encode with
 * it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mpk_context cx = {0};
    tokenizer *t;
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size;
    str json = {(const char *)data, n};
    str input = {(const char *)data + n, size - n < MAX_TEXT ? size - n : MAX_TEXT};
    if (tokenizer_from_json_bytes(&cx, json, (str){0}, &t) != MPK_OK)
        return 0;
    use(t, input, 0);
    use(t, input, TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL);
    tokenizer_free(t);
    return 0;
}
