/* tokenizer_bed.h - what the tests of tokenizers share: texts to ids and back, compared with what
 * is expected.  For src/load/tokenizer_test.c and src/load/tokenizer_json_test.c. */
#ifndef TESTS_TOKENIZER_BED_H
#define TESTS_TOKENIZER_BED_H

#include "check.h"

#include "load/tokenizer.h"

static inline void ids_are(const tokenizer *t, const char *input, unsigned flags,
                           const char *expected)
{
    mpk_context cx = {0};
    arena a = {0};
    tokenizer_ids ids = {0};
    text got = {0};
    check_ok(&cx, tokenizer_encode(&cx, t, &a, input, strlen(input), flags, &ids));
    for (size_t i = 0; i < ids.n; i++)
        text_print(&got, "%s%d", i ? " " : "", ids.at[i]);
    assert_string_equal(got.n ? got.at : "", expected);
    text_free(&got);
    arena_free(&a);
}

static inline void text_is(const tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                           const char *expected)
{
    mpk_context cx = {0};
    arena a = {0};
    str out;
    check_ok(&cx, tokenizer_decode(&cx, t, &a, ids, n, flags, &out));
    assert_string_equal(out.at, expected);
    assert_int_equal(out.n, strlen(expected));
    arena_free(&a);
}
#define TEXT_IS(t, flags, expected, ...)                                                     \
    text_is(t, (int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), \
            flags, expected)

/* A tokenizer.json of the smallest vocabulary that tells its parts apart. */
#define VOCAB \
    "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xe2\x96\x81\":3,\"<unk>\":4,\"\xc3\xa9\":5,\"A\":6}"
#define BPE(options) "\"model\":{\"type\":\"BPE\"," options VOCAB ",\"merges\":[\"a b\"]}"
#define JSON(model, rest) "{\"version\":\"1.0\"," rest model "}"

static inline tokenizer *open_json(const char *json, const char *config)
{
    mpk_context cx = {0};
    tokenizer *t;
    check_ok(&cx, tokenizer_from_json_bytes(&cx, str_from(json), str_from(config), &t));
    return t;
}

#endif
