/* grammar_probe.c - grammars for tests in Python (tests/test_grammar.py): a JSON object a line in,
 * one a line out.
 *
 * In: kind, source, and texts: which of them does the grammar take?  Out: {"fits": [true, ...]}, or
 * {"error": "..."}.  In: kind, source, seed, n, most: n texts of tokens that random logits draw
 * from the masks; after `most` tokens the ones that lead to an end are preferred.  Out: {"texts":
 * ["..."]}; a text that did not end is null.  The vocabulary has all bytes and many longer tokens.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/rng.h"
#include "grammar/grammar.h"

enum { LONGER_TOKENS = 2000, END = 256 + LONGER_TOKENS, TOKENS };

static const char *const pieces[] = {"\"",    "{\"",   "\":",      "\": ",
                                     ", \"",  "},",    "]",        "}",
                                     "true",  "false", "null",     "name",
                                     "[",     "12",    "0.",       "-",
                                     "\\n",   " the",  "\xc3\xa9", "\xe2\x82\xac",
                                     "  ",    "\n  ",  "abc",      "a",
                                     "2024",  "e",     "\\u00",    "\xf0\x9f\x98\x80",
                                     "value", "z"};

/* Bytes, and random pairs and triples of pieces. */
static mpk_status make_vocab(mpk_context *cx, arena *a, grammar_vocab **out)
{
    str *tokens;
    int32_t end = END;
    size_t n_pieces = sizeof pieces / sizeof *pieces;
    NEW(cx, a, tokens, TOKENS);
    for (uint32_t i = 0; i < TOKENS; i++) {
        text t = {0};
        if (i < 256)
            text_add(&t, &(char){(char)i}, 1);
        for (uint32_t k = 0; i >= 256 && k < 1 + i % 3; k++) {
            const char *piece = pieces[rng_u64(1, 3 * i + k) % n_pieces];
            text_add(&t, piece, strlen(piece));
        }
        tokens[i] = (str){arena_copy(a, t.at, t.n), t.n};
        text_free(&t);
    }
    return grammar_vocab_make(cx, tokens, TOKENS, &end, 1, out);
}

static bool is_set(const uint32_t *words, uint32_t i)
{
    return words[i / 32] >> i % 32 & 1;
}

/* A token that the mask has: the one of the largest random logit; late in a text, an end or what
 * closes something. */
static int32_t draw(const uint32_t *words, uint64_t seed, uint64_t step, bool late)
{
    static const char closing[] = "\"}]0,:e";
    int32_t best = -1;
    uint64_t largest = 0;
    if (late && is_set(words, END))
        return END;
    for (uint32_t i = 0; late && closing[i] && rng_u64(seed, step) % 4; i++)
        if (is_set(words, (uint8_t)closing[i]))
            return (uint8_t)closing[i];
    for (int32_t i = 0; i < TOKENS; i++) {
        uint64_t logit = rng_u64(seed + 1, step * TOKENS + (uint64_t)i);
        if (is_set(words, (uint32_t)i) && (best < 0 || logit > largest)) {
            best = i;
            largest = logit;
        }
    }
    return best;
}

static mpk_status write_text(mpk_context *cx, grammar_matcher *m, uint64_t seed, uint32_t most,
                             text *out, bool *ended)
{
    uint32_t words[(TOKENS + 31) / 32], n;
    bool over = false;
    *ended = false;
    for (uint32_t step = 0; step < 20 * most && !over; step++) {
        TRY(grammar_matcher_mask(cx, m, words, &n));
        int32_t token = draw(words, seed, step, step > most);
        CHECK(cx, token >= 0, MPK_EARG, "nothing may come after '%.*s'", STR_ARG(*out));
        if (token == END)
            break;
        TRY(grammar_matcher_take(cx, m, token, &over));
        if (token < 256)
            text_add(out, &(char){(char)token}, 1);
        for (int32_t k = 0; token >= 256 && k < 1 + token % 3; k++) {
            const char *piece =
                pieces[rng_u64(1, (uint64_t)(3 * token + k)) % (sizeof pieces / sizeof *pieces)];
            text_add(out, piece, strlen(piece));
        }
        *ended = false;
    }
    bool fits;
    return grammar_matcher_read(cx, m, (str){0}, &fits, ended);
}

static mpk_status write_texts(mpk_context *cx, grammar *g, const grammar_vocab *v,
                              const json_value *order, text *out)
{
    uint32_t n = 1, most = 50;
    double seed = 0;
    TRY(json_read_u32(cx, order, "n", &n));
    TRY(json_read_u32(cx, order, "most", &most));
    TRY(json_read_double(cx, order, "seed", &seed));
    text_print(out, "{\"texts\": [");
    for (uint32_t i = 0; i < n; i++) {
        grammar_matcher *m;
        text t = {0};
        bool ended = false;
        TRY(grammar_matcher_open(cx, g, v, &m));
        mpk_status status = write_text(cx, m, (uint64_t)seed * 1000 + i, most, &t, &ended);
        grammar_matcher_close(m);
        text_print(out, "%s", i ? ", " : "");
        if (ended)
            json_write_str(out, (str){t.at ? t.at : "", t.n});
        else
            text_print(out, "null");
        text_free(&t);
        TRY(status);
    }
    text_print(out, "]}");
    return MPK_OK;
}

static mpk_status try_texts(mpk_context *cx, grammar *g, const grammar_vocab *v,
                            const json_value *list, text *out)
{
    text_print(out, "{\"fits\": [");
    for (size_t i = 0; i < list->n; i++) {
        grammar_matcher *m;
        bool fits = false, may_end = false;
        TRY(grammar_matcher_open(cx, g, v, &m));
        mpk_status status = grammar_matcher_read(cx, m, list->items[i].text, &fits, &may_end);
        grammar_matcher_close(m);
        TRY(status);
        text_print(out, "%s%s", i ? ", " : "", fits && may_end ? "true" : "false");
    }
    text_print(out, "]}");
    return MPK_OK;
}

static mpk_status answer(mpk_context *cx, const json_value *order, const grammar_vocab *v,
                         text *out)
{
    str kind = {0}, source = {0};
    grammar *g = NULL;
    const json_value *texts = json_get(order, "texts");
    TRY(json_read_str(cx, order, "kind", &kind));
    TRY(json_read_str(cx, order, "source", &source));
    for (uint32_t i = 0; i < GRAMMAR_KINDS; i++)
        if (str_is(kind, grammar_kind_name((grammar_kind)i)))
            TRY(grammar_make(cx, (grammar_kind)i, source, &g));
    CHECK(cx, g, MPK_EARG, "no such kind");
    mpk_status status = texts ? try_texts(cx, g, v, texts, out) : write_texts(cx, g, v, order, out);
    grammar_free(g);
    return status;
}

int main(void)
{
    mpk_context cx = {0};
    arena a = {0};
    grammar_vocab *v;
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    if (make_vocab(&cx, &a, &v) != MPK_OK)
        return 1;
    while ((n = getline(&line, &room, stdin)) > 0) {
        const json_value *order;
        text out = {0};
        arena_mark mark = arena_get_mark(&a);
        mpk_status status = json_parse(&cx, &a, (str){line, (size_t)n}, &order);
        if (status == MPK_OK)
            status = answer(&cx, order, v, &out);
        if (status != MPK_OK) {
            text_free(&out);
            out = (text){0};
            text_print(&out, "{\"error\": ");
            json_write_str(&out, str_from(cx.text));
            text_print(&out, ", \"status\": %d}", (int)status);
        }
        printf("%s\n", out.at);
        fflush(stdout);
        text_free(&out);
        arena_reset(&a, mark);
    }
    free(line);
    grammar_vocab_free(v);
    arena_free(&a);
    return 0;
}
