/* grammar_fuzz.c - any bytes as the source of a form: a grammar, or an error that says something.
 *
 * Input: a byte that chooses the kind, the source.  What follows the grammar byte by byte is taken
 * by it.
 */
#include <stdlib.h>

#include "grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* Bytes that the masks allow, the first from `from` on; what is too ambiguous may end it. */
static void follow(grammar *g, const grammar_vocab *v, uint32_t from)
{
    mpk_context cx = {0};
    grammar_matcher *m;
    bool over = false;
    if (grammar_matcher_open(&cx, g, v, &m) != MPK_OK)
        return;
    for (uint32_t step = 0; step < 40 && !over; step++) {
        uint32_t words[8], n, i = 0;
        if (grammar_matcher_mask(&cx, m, words, &n) != MPK_OK || !n)
            break;
        while (!(words[(from + i) % 256 / 32] >> (from + i) % 32 & 1))
            i++;
        must(grammar_matcher_take(&cx, m, (int32_t)((from + i) % 256), &over) == MPK_OK);
        from = from * 31 + 7;
    }
    grammar_matcher_close(m);
}

/* The first byte chooses the kind of form, the rest is its source; the vocabulary is the 256
 * bytes, so every text can be walked through. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mpk_context cx = {0};
    grammar *g = NULL;
    grammar_vocab *v = NULL;
    str bytes[256];
    char each[256];
    if (!size)
        return 0;
    for (uint32_t i = 0; i < 256; i++) {
        each[i] = (char)i;
        bytes[i] = (str){&each[i], 1};
    }
    must(grammar_vocab_make(&cx, bytes, 256, NULL, 0, &v) == MPK_OK);
    str source = {(const char *)data + 1, size - 1};
    if (grammar_make(&cx, (grammar_kind)(data[0] % GRAMMAR_KINDS), source, &g) == MPK_OK)
        follow(g, v, data[0]);
    else
        must(cx.text_bytes);
    grammar_free(g);
    grammar_vocab_free(v);
    return 0;
}
