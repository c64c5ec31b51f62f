/* tokenizer_json_test.c - tokenizer.json: its parts, what stands around them, decoders, patterns,
 * and every refusal. */
#include "check.h"

#include "load/tokenizer.h"
#include "tokenizer_bed.h"

/* Kinds of normalizers and pre-tokenizers, by what becomes of a text. */
static void test_json_parts(void **state)
{
    (void)state;
    static const struct {
        const char *json, *input, *ids;
    } cases[] = {
        {JSON(BPE(""), ""), "abxb", "2 1"}, /* no unknown token: x gives nothing */
        {JSON(BPE("\"unk_token\":\"<unk>\","), ""), "axxb", "0 4 4 1"},
        {JSON(BPE("\"unk_token\":\"<unk>\",\"fuse_unk\":true,"), ""), "axxb", "0 4 1"},
        {JSON(BPE(""),
              "\"normalizer\":{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true},"
              "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\","
              "\"prepend_scheme\":"
              "\"never\"},"),
         " \xe3\x80\x80 a b\xc3\xa9\xe3\x80\x80\n ", "0 3 1 5"},
        {JSON(BPE(""),
              "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
              "\"Lowercase\"}]},"),
         "Ae\xcc\x81", "0 5"},
        {JSON(BPE(""), "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x+\"},"
                       "\"content\":\"b\"},"),
         "axxxa", "2 0"},
        {JSON(BPE(""), "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},"
                       "\"behavior\":\"Isolated\"},"),
         "abab", "0 1 0 1"},
        {JSON(
             BPE(""),
             "\"added_tokens\":[{\"id\":7,\"content\":\"<x>\",\"special\":true,\"lstrip\":true}],"),
         "a <x>b", "0 7 1"},
        {JSON(BPE(""),
              "\"added_tokens\":[{\"id\":7,\"content\":\"ab\xc3\xa9\",\"single_word\":true}],"),
         "ab\xc3\xa9"
         "a ab\xc3\xa9 ",
         "2 5 0 7"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tokenizer *t = open_json(cases[i].json, "");
        ids_are(t, cases[i].input, TOKENIZER_PARSE_SPECIAL, cases[i].ids);
        tokenizer_free(t);
    }
}

#define TEMPLATE                                                                                 \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":" \
    "\"<s>\"}},"                                                                                 \
    "{\"Sequence\":{\"id\":\"A\"}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\","    \
    "\"ids\":[7,6]}}},"

/* Post-processors, tokenizer_config.json, and what both together put around a text. */
static void test_json_around(void **state)
{
    (void)state;
    static const char json[] = JSON(
        BPE(""), TEMPLATE "\"added_tokens\":[{\"id\":7,\"content\":\"<s>\",\"special\":true}],");
    tokenizer *t = open_json(json, "");
    ids_are(t, "ab", TOKENIZER_ADD_SPECIAL, "7 6 2");
    ids_are(t, "ab", 0, "2");
    assert_int_equal(tokenizer_bos(t), -1);
    tokenizer_free(t);

    t = open_json(json,
                  "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"a\",\"add_bos_token\":true,"
                  "\"add_eos_token\":true}");
    assert_int_equal(tokenizer_bos(t), 7);
    assert_int_equal(tokenizer_eos(t), 0);
    ids_are(t, "ab", TOKENIZER_ADD_SPECIAL, "7 6 2 0"); /* BOS was there, EOS was not */
    tokenizer_free(t);
}

/* Kinds of decoders, by the text that comes of ids. */
static void test_json_decoders(void **state)
{
    (void)state;
    tokenizer *t = open_json(JSON(BPE(""), ""), "");
    TEXT_IS(t, 0, "a b \xe2\x96\x81", 0, 1, 3); /* no decoder: spaces between */
    tokenizer_free(t);
    t = open_json(JSON(BPE(""), "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
                                "\"Fuse\"},{\"type\":\"Replace\","
                                "\"pattern\":{\"String\":\"ba\"},\"content\":\"-\"},{\"type\":"
                                "\"Strip\",\"content\":\"a\","
                                "\"start\":1,\"stop\":1}]},"),
                  "");
    TEXT_IS(t, 0, "b", 0, 1); /* joined, then stripped once at each end */
    TEXT_IS(t, 0, "-", 1, 0);
    TEXT_IS(t, 0, "a-", 0, 0, 1, 0);
    tokenizer_free(t);
    t = open_json(JSON(BPE(""), "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":"
                                "\"\xe2\x96\x81\",\"prepend_scheme\":"
                                "\"always\"},"),
                  "");
    TEXT_IS(t, 0, "a b", 3, 0, 3, 1);
    tokenizer_free(t);
}

/* A match joins the range before it, but only one that is no match: two matches in a row stay
 * apart. */
static void test_split_merged_with_previous(void **state)
{
    (void)state;
    tokenizer *t = open_json(
        JSON(BPE(""), "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[ab]\"},"
                      "\"behavior\":\"MergedWithPrevious\"},"),
        "");
    ids_are(t, "ab", 0, "0 1");
    ids_are(t, "Aab", 0, "6 0 1");
    tokenizer_free(t);
}

/* Bytes of a run that does not become valid are U+FFFD each, also those that were a whole character
 * for a moment, where the decoder does not join its parts: a stream must wait for the end of the
 * run. */
static void test_stream_of_bytes_that_are_not_joined(void **state)
{
    (void)state;
    static const char json[] = "{\"version\":\"1.0\",\"decoder\":{\"type\":\"Sequence\","
                               "\"decoders\":[{\"type\":\"ByteFallback\"},"
                               "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":"
                               "\"y\"}]},\"model\":{\"type\":\"BPE\","
                               "\"vocab\":{\"<0xC3>\":0,\"<0xA9>\":1,\"a\":2},\"merges\":[]}}";
    static const int32_t ids[] = {0, 1, 0, 2}; /* a whole e with accent, half of another, a */
    mpk_context cx = {0};
    arena a = {0};
    tokenizer *t = open_json(json, "");
    tokenizer_stream *s;
    text all = {0};
    str piece, whole;
    check_ok(&cx, tokenizer_stream_open(&cx, t, 0, &s));
    for (size_t i = 0; i < 4; i++) {
        check_ok(&cx, tokenizer_stream_put(&cx, s, ids[i], &piece));
        text_add(&all, piece.at, piece.n);
    }
    check_ok(&cx, tokenizer_stream_end(&cx, s, &piece));
    text_add(&all, piece.at, piece.n);
    check_ok(&cx, tokenizer_decode(&cx, t, &a, ids, 4, 0, &whole));
    assert_string_equal(whole.at, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                                  "a");
    assert_true(str_equal(whole, (str){all.at, all.n}));
    tokenizer_stream_close(s);
    tokenizer_free(t);
    text_free(&all);
    arena_free(&a);
}

/* Documents with one mistake each; the message names what is wrong. */
static void test_json_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        mpk_status status;
        const char *says;
    } cases[] = {
        {"", MPK_EFORMAT, "line 1"},
        {"[]", MPK_EFORMAT, "not an object"},
        {"{\"a\":1,\"a\":2}", MPK_EFORMAT, "two members"},
        {"{}", MPK_EFORMAT, "no \"model\""},
        {"{\"version\":\"2.0\",\"model\":{}}", MPK_EUNSUPPORTED, "1.0"},
        {"{\"model\":{\"type\":\"WordPiece\"}}", MPK_EUNSUPPORTED, "WordPiece"},
        {"{\"model\":{\"type\":\"Unigram\"}}", MPK_EUNSUPPORTED, "Unigram"},
        {"{\"model\":{\"type\":\"BPE\"}}", MPK_EFORMAT, "vocab"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", MPK_EFORMAT, "merges"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", MPK_EFORMAT, "\"a\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999},\"merges\":[]}}", MPK_EFORMAT,
         "\"a\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":70000},\"merges\":[]}}", MPK_EFORMAT,
         "id 70000"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", MPK_EFORMAT,
         "\"b\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", MPK_EFORMAT,
         "merge 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", MPK_EFORMAT,
         "\"b\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\"]]}}",
         MPK_EFORMAT, "\"aa\""},
        {JSON(BPE("\"dropout\":0.1,"), ""), MPK_EUNSUPPORTED, "dropout"},
        {JSON(BPE("\"surprise\":1,"), ""), MPK_EUNSUPPORTED, "surprise"},
        {JSON(BPE("\"fuse_unk\":3,"), ""), MPK_EFORMAT, "fuse_unk"},
        {JSON(BPE("\"unk_token\":\"?\","), ""), MPK_EFORMAT, "unknown token"},
        {JSON(BPE(""), "\"normalizer\":{\"type\":\"Precompiled\"},"), MPK_EUNSUPPORTED,
         "Precompiled"},
        {JSON(BPE(""), "\"normalizer\":{\"type\":\"NFC\",\"how\":1},"), MPK_EUNSUPPORTED, "how"},
        {JSON(BPE(""), "\"normalizer\":3,"), MPK_EFORMAT, "normalizer"},
        {JSON(BPE(""), "\"normalizer\":{\"type\":\"Sequence\"},"), MPK_EFORMAT, "normalizers"},
        {JSON(BPE(""), "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},"
                       "\"content\":\"\"},"),
         MPK_EFORMAT, "Replace"},
        {JSON(BPE(""), "\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"},"), MPK_EUNSUPPORTED,
         "UnicodeScripts"},
        {JSON(BPE(""), "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"}},"),
         MPK_EFORMAT, "behavior"},
        {JSON(BPE(""), "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},"
                       "\"behavior\":\"Odd\"},"),
         MPK_EUNSUPPORTED, "Odd"},
        {JSON(BPE(""), "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"xy\"},"),
         MPK_EFORMAT, "replacement"},
        {JSON(BPE(""), "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"x\",\"add_"
                       "prefix_space\":false,"
                       "\"prepend_scheme\":\"always\"},"),
         MPK_EFORMAT, "contradict"},
        {JSON(BPE(""), "\"pre_tokenizer\":{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"\"},"),
         MPK_EFORMAT, "delimiter"},
        {JSON(BPE(""), "\"decoder\":{\"type\":\"CTC\"},"), MPK_EUNSUPPORTED, "CTC"},
        {JSON(BPE(""),
              "\"decoder\":{\"type\":\"Strip\",\"content\":\"a\",\"start\":-1,\"stop\":0},"),
         MPK_EFORMAT, "start"},
        {JSON(BPE(""), "\"post_processor\":{\"type\":\"Odd\"},"), MPK_EUNSUPPORTED, "Odd"},
        {JSON(BPE(""),
              "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"a\",0],\"cls\":7},"),
         MPK_EFORMAT, "cls"},
        {JSON(BPE(""), "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]},"),
         MPK_EUNSUPPORTED, "0 times"},
        {JSON(BPE(""), "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
                       "\"SpecialToken\":{\"id\":\"x\"}}]},"),
         MPK_EFORMAT, "\"x\""},
        {JSON(BPE(""), TEMPLATE), MPK_EFORMAT, "adds id 7"},
        {JSON(BPE(""), "\"added_tokens\":3,"), MPK_EFORMAT, "added_tokens"},
        {JSON(BPE(""), "\"added_tokens\":[{\"content\":\"x\"}],"), MPK_EFORMAT, "no id"},
        {JSON(BPE(""), "\"added_tokens\":[{\"id\":9,\"content\":\"x\"}],"), MPK_EUNSUPPORTED,
         "is 7"},
        {JSON(BPE(""), "\"added_tokens\":[{\"id\":7,\"content\":\"\"}],"), MPK_EUNSUPPORTED,
         "empty"},
        {JSON(BPE(""), "\"normalizer\":{\"type\":\"Strip\",\"strip_left\":true},\"added_tokens\":[{"
                       "\"id\":7,\"content\":\""
                       " \"}],"),
         MPK_EUNSUPPORTED, "empty once normalised"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mpk_context cx = {0};
        tokenizer *t = NULL;
        check_fails(&cx, cases[i].status, cases[i].says,
                    tokenizer_from_json_bytes(&cx, str_from(cases[i].json), STR(""), &t));
        assert_null(t);
    }
    mpk_context cx = {0};
    tokenizer *t = NULL;
    check_fails(&cx, MPK_EFORMAT, "tokenizer_config.json",
                tokenizer_from_json_bytes(&cx, STR(JSON(BPE(""), "")), STR("{"), &t));
    check_fails(&cx, MPK_EIO, "/nowhere", tokenizer_from_json(&cx, "/nowhere/tokenizer.json", &t));
}

/* Patterns: what they match at the beginning of a text, or how they are refused. */
static void test_patterns(void **state)
{
    (void)state;
    static const char *const refused[] = {
        "(",
        ")",
        "[a",
        "[]a]",
        "[a[b]]",
        "[a&&b]",
        "\\\\",
        "\\\\p",
        "\\\\pL",
        "\\\\p{L",
        "\\\\p{1}",
        "\\\\p{Nosuch}",
        "\\\\x{110000}",
        "\\\\xff",
        "\\\\q",
        "\\\\1",
        "(?<n>a)",
        "(?(1)a)",
        "(*F)",
        "*a",
        "a**",
        "{2}",
        "a{2}?",
        "a{3,2}",
        "[\\\\W]",
        "a{70000}",
        "\\\\ud800",
        "(?<=a+)",
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char json[1024];
        mpk_context cx = {0};
        tokenizer *t = NULL;
        snprintf(
            json, sizeof json,
            JSON(
                BPE(""),
                "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":"
                "\"Removed\"},"),
            refused[i]);
        check_fails(&cx, MPK_EUNSUPPORTED, "regular expression",
                    tokenizer_from_json_bytes(&cx, str_from(json), STR(""), &t));
    }
    static const struct {
        /* what remains of input when matches are removed, as ids of a (0), b (1) */
        const char *pattern, *input, *left;
    } cases[] = {
        {"x{1,2}+", "axxxxb", "0 1"},
        {"(?i:X)", "axb", "0 1"},
        {"[^ab]",
         "a\xc3\xb6"
         "b",
         "0 1"},
        {"\\\\s+$", "a \n \nb", "0 1"},
        {"[\\\\x{62}]", "ab", "0"},
        {"\\\\u0062", "ab", "0"},
        {"b{,2}", "abba", "0 0"},
        {"(?m:.)b", "a\nb", "0"},
        {"^b", "a\nb", "0"},
        {"[\\\\S]", "ab", ""},
        {"\\\\h+?", "ab", ""},
        {"a{", "a{b", "1"},
        {"(?>a|b)\\\\z", "ab", "0"},
        {"\\\\p{^Letter}", "a1b", "0 1"},
        {"[a-]", "a-b", "1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[1024];
        snprintf(
            json, sizeof json,
            JSON(
                BPE(""),
                "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":"
                "\"Removed\"},"),
            cases[i].pattern);
        tokenizer *t = open_json(json, "");
        ids_are(t, cases[i].input, 0, cases[i].left);
        tokenizer_free(t);
    }
}

/* A pattern that explodes gives an error, not hours. */
static void test_exploding_pattern(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    tokenizer_ids ids = {0};
    char input[200];
    memset(input, 'a', sizeof input);
    tokenizer *t = open_json(JSON(BPE(""), "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{"
                                           "\"Regex\":\"(a|aa)+[xy]|(a+)+[xy]\"},"
                                           "\"behavior\":\"Removed\"},"),
                             "");
    check_fails(&cx, MPK_ELIMIT, "gave up",
                tokenizer_encode(&cx, t, &a, input, sizeof input, 0, &ids));
    arena_free(&a);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_parts),
        cmocka_unit_test(test_json_around),
        cmocka_unit_test(test_json_decoders),
        cmocka_unit_test(test_json_refused),
        cmocka_unit_test(test_split_merged_with_previous),
        cmocka_unit_test(test_stream_of_bytes_that_are_not_joined),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_exploding_pattern),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
