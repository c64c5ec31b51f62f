/* tokenizer_test.c - hand-made vocabularies, streams, hostile lengths, and every refusal.
 *
 * Expected ids are worked out by hand; random texts and ids are compared with what must hold for
 * any tokenizer: decoding gives the text back, a stream gives what decoding whole gives. */
#include "check.h"

#include "base/rng.h"
#include "base/thread.h"
#include "load/tokenizer.h"
#include "tokenizer_bed.h"

/* The 256 byte characters of GPT-2 as tokens 0 to 255, then these, whose merges are "left
 * right". */
static const char *const more[] = {"he", "ll",    "hell",   "hello", "\xc4\xa0w",
                                   "or", "<eos>", "<tool>", "aa",    "aaaa"};
static const char *const merge_list[] = {"h e",        "l l", "he ll", "hell o",
                                         "\xc4\xa0 w", "o r", "a a",   "aa aa"};
enum {
    N_MORE = sizeof more / sizeof *more,
    N_MERGES = sizeof merge_list / sizeof *merge_list,
    N_GPT2 = 256 + N_MORE
};

typedef struct gpt2 {
    char spelled[256][3];
    str tokens[N_GPT2], merges[N_MERGES];
    int32_t types[N_GPT2];
    tokenizer_vocab v;
} gpt2;

/* GPT-2's own rule, written as its authors describe it. */
static void spell_bytes(gpt2 *g)
{
    unsigned next = 256;
    for (unsigned b = 0; b < 256; b++) {
        bool kept = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        unsigned c = kept ? b : next++;
        g->spelled[b][0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
        g->spelled[b][1] = (char)(c < 0x80 ? 0 : 0x80 | (c & 0x3f));
        g->tokens[b] = str_from(g->spelled[b]);
    }
}

/* A vocabulary of bytes and a few merges, with a control token and one that users define. */
static void fill_gpt2(gpt2 *g)
{
    *g = (gpt2){.v = TOKENIZER_VOCAB_EMPTY};
    spell_bytes(g);
    for (int i = 0; i < N_GPT2; i++)
        g->types[i] = TOKENIZER_TYPE_NORMAL;
    for (int i = 0; i < N_MORE; i++)
        g->tokens[256 + i] = str_from(more[i]);
    g->types[262] = TOKENIZER_TYPE_CONTROL;
    g->types[263] = TOKENIZER_TYPE_USER_DEFINED;
    for (int i = 0; i < N_MERGES; i++)
        g->merges[i] = str_from(merge_list[i]);
    g->v.model = STR("gpt2");
    g->v.pre = STR("gpt-2");
    g->v.tokens = g->tokens;
    g->v.n_tokens = N_GPT2;
    g->v.types = g->types;
    g->v.merges = g->merges;
    g->v.n_merges = N_MERGES;
    g->v.bos_id = g->v.eos_id = 262;
}

/* The vocabulary above, as a GGUF file would bring it. */
static tokenizer *open_gpt2(void)
{
    static const mpk_context none;
    mpk_context cx = none;
    gpt2 g;
    tokenizer *t;
    fill_gpt2(&g);
    check_ok(&cx, tokenizer_from_vocab(&cx, &g.v, &t));
    return t;
}

/* A sentencepiece vocabulary: <unk> <s> </s>, the bytes as 3 to 258, then these with their
 * scores. */
static const struct {
    const char *text;
    float score;
} pieces[] = {{"\xe2\x96\x81", -1},
              {"a", -2},
              {"b", -3},
              {"ab", -9},
              {"\xe2\x96\x81"
               "a",
               -8},
              {"aa", -10},
              {"aab", -7},
              {"\xc3\xa9", -4},
              {"<user>", 0}};
enum { N_PIECES = sizeof pieces / sizeof *pieces, N_LLAMA = 259 + N_PIECES };

/* A vocabulary of pieces with scores, and a token for each byte that no piece holds. */
static tokenizer *open_llama(void)
{
    mpk_context cx = {0};
    static char names[256][8];
    str tokens[N_LLAMA] = {STR("<unk>"), STR("<s>"), STR("</s>")};
    int32_t types[N_LLAMA] = {TOKENIZER_TYPE_UNKNOWN, TOKENIZER_TYPE_CONTROL,
                              TOKENIZER_TYPE_CONTROL};
    float scores[N_LLAMA] = {0};
    for (int b = 0; b < 256; b++) {
        snprintf(names[b], sizeof names[b], "<0x%02X>", (unsigned)b);
        tokens[3 + b] = str_from(names[b]);
        types[3 + b] = TOKENIZER_TYPE_BYTE;
    }
    for (int i = 0; i < N_PIECES; i++) {
        tokens[259 + i] = str_from(pieces[i].text);
        scores[259 + i] = pieces[i].score;
        types[259 + i] = TOKENIZER_TYPE_NORMAL;
    }
    types[N_LLAMA - 1] = TOKENIZER_TYPE_USER_DEFINED;
    tokenizer_vocab v = TOKENIZER_VOCAB_EMPTY;
    v.model = STR("llama");
    v.tokens = tokens;
    v.n_tokens = N_LLAMA;
    v.types = types;
    v.scores = scores;
    v.unk_id = 0;
    v.bos_id = 1;
    v.eos_id = 2;
    tokenizer *t;
    check_ok(&cx, tokenizer_from_vocab(&cx, &v, &t));
    return t;
}

/* --- encode and decode --- */

/* Bytes as characters, merges in the order of the list, special tokens on request. */
static void test_gpt2(void **state)
{
    (void)state;
    tokenizer *t = open_gpt2();
    ids_are(t, "", 0, "");
    ids_are(t, "hello world", 0, "259 260 261 108 100");
    ids_are(t, "hell hel", 0, "258 32 256 108");
    ids_are(t, "aaaaaaa", 0, "265 264 97");
    ids_are(t, "\n\xc3\xa9", 0, "10 195 169");
    ids_are(t, "<eos><tool>x", 0, "60 101 111 115 62 263 120");
    ids_are(t, "<eos><tool>x", TOKENIZER_PARSE_SPECIAL, "262 263 120");
    ids_are(t, "x", TOKENIZER_ADD_SPECIAL, "120"); /* GPT-2 adds nothing unless the file says so */
    TEXT_IS(t, 0, "hello world", 259, 260, 261, 108, 100);
    TEXT_IS(t, 0, "<eos>x<tool>", 262, 120, 263);
    TEXT_IS(t, TOKENIZER_SKIP_SPECIAL, "x<tool>", 262, 120, 263);
    TEXT_IS(t, 0, "a\xef\xbf\xbd", 97, 195);
    TEXT_IS(t, 0, "a", 97, -1, N_GPT2, INT32_MAX); /* ids without a token give nothing */
    tokenizer_free(t);
}

/* The space before a text, merges by score, byte tokens for what no token spells. */
static void test_llama(void **state)
{
    (void)state;
    tokenizer *t = open_llama();
    ids_are(t, "", TOKENIZER_ADD_SPECIAL, "1");
    ids_are(t, "a", TOKENIZER_ADD_SPECIAL, "1 263");
    /* ab comes before aa; what counts for a and ab is their joined text */
    ids_are(t, "xaab", 0, "259 123 265");
    ids_are(t, "\xc3\xa9\xe4\xb8\xad", 0, "259 266 231 187 176");
    ids_are(t, "b<user>b", 0, "259 261 267 259 261");
    ids_are(t, "<s>b", 0, "259 63 118 65 261");
    ids_are(t, "<s>b", TOKENIZER_PARSE_SPECIAL, "1 259 261");
    TEXT_IS(t, 0, "a b", 263, 259, 261);
    TEXT_IS(t, 0, "<s> a", 1, 263);
    TEXT_IS(t, TOKENIZER_SKIP_SPECIAL, "a", 1, 263);
    TEXT_IS(t, 0, "\xe4\xb8\xad", 231, 187, 176);
    TEXT_IS(t, 0, "\xef\xbf\xbd\xef\xbf\xbd\x61", 231, 187, 260);
    tokenizer_free(t);
}

/* From text to id and back; ids that are none. */
static void test_lookup(void **state)
{
    (void)state;
    tokenizer *t = open_llama();
    assert_int_equal(tokenizer_vocab_size(t), N_LLAMA);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    assert_int_equal(tokenizer_eot(t), -1);
    assert_int_equal(tokenizer_pad(t), -1);
    assert_int_equal(tokenizer_find(t, STR("aab")), 265);
    assert_int_equal(tokenizer_find(t, STR("zz")), -1);
    assert_true(str_is(tokenizer_token(t, 265), "aab"));
    assert_null(tokenizer_token(t, -1).at);
    assert_null(tokenizer_token(t, N_LLAMA).at);
    assert_true(tokenizer_is_special(t, 1));
    assert_false(tokenizer_is_special(t, 267));
    assert_false(tokenizer_is_special(t, N_LLAMA));
    tokenizer_free(t);
    tokenizer_free(NULL);
}

/* Invalid input is read as Python's errors="replace" reads it: U+FFFD for each maximal part. */
static void test_invalid_input(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\xff", "\xef\xbf\xbd"},
        {"\xe2\x82", "\xef\xbf\xbd"},
        {"\xe2\x82x", "\xef\xbf\xbdx"},
        {"\xf0\x9f\x99\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
    };
    tokenizer *t = open_gpt2();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mpk_context cx = {0};
        arena a = {0};
        tokenizer_ids ids = {0};
        check_ok(&cx, tokenizer_encode(&cx, t, &a, cases[i][0], strlen(cases[i][0]), 0, &ids));
        text_is(t, ids.at, ids.n, 0, cases[i][1]);
        arena_free(&a);
    }
    tokenizer_free(t);
}

/* --- streams --- */

/* Not a continuation byte of UTF-8: only there may a text be cut. */
static bool begins_character(unsigned char c)
{
    return (c & 0xc0) != 0x80;
}

/* Characters that the bytes at s are worth, -1 if they are not whole valid characters. */
static int whole_characters(str s)
{
    int n = 0;
    for (size_t i = 0; i < s.n; n++) {
        const unsigned char c = (unsigned char)s.at[i];
        const bool begins = c < 0x80 || (c >= 0xc2 && c < 0xf5);
        const size_t length = begins ? 1 + (size_t)(c >= 0x80) + (c >= 0xe0) + (c >= 0xf0) : 0;
        if (!length || length > s.n - i)
            return -1;
        for (size_t j = 1; j < length; j++)
            if (begins_character((unsigned char)s.at[i + j]))
                return -1;
        i += length;
    }
    return n;
}

/* Random ids: pieces are whole characters, and together what decode says (exactly: false where
 * invalid byte tokens may differ). */
static void stream_against_decode(const tokenizer *t, uint64_t seed, bool exactly)
{
    mpk_context cx = {0};
    arena a = {0};
    tokenizer_stream *s;
    int32_t ids[24];
    text all = {0};
    str piece, whole;
    size_t n = rng_u64(seed, 0) % 24;
    check_ok(&cx, tokenizer_stream_open(&cx, t, 0, &s));
    for (int round = 0; round < 2; round++) { /* a stream that ended begins anew */
        all.n = 0;
        for (size_t i = 0; i < n; i++) {
            ids[i] = (int32_t)(rng_u64(seed, i + 1) % (uint64_t)tokenizer_vocab_size(t));
            check_ok(&cx, tokenizer_stream_put(&cx, s, ids[i], &piece));
            assert_true(whole_characters(piece) >= 0);
            text_add(&all, piece.at, piece.n);
        }
        check_ok(&cx, tokenizer_stream_end(&cx, s, &piece));
        assert_true(whole_characters(piece) >= 0);
        text_add(&all, piece.at, piece.n);
        check_ok(&cx, tokenizer_decode(&cx, t, &a, ids, n, 0, &whole));
        assert_true(whole_characters(whole) >= 0);
        if (exactly || !memmem(whole.at, whole.n, "\xef\xbf\xbd", 3))
            assert_true(str_equal(whole, (str){all.at, all.n}));
    }
    tokenizer_stream_close(s);
    text_free(&all);
    arena_free(&a);
}

/* Both kinds of vocabulary, many random ids. */
static void test_stream_random(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    tokenizer *g = open_gpt2(), *l = open_llama();
    for (uint64_t i = 0; i < 2000; i++) {
        stream_against_decode(g, seed + i, true);
        stream_against_decode(l, seed + i, false);
    }
    tokenizer_free(g);
    tokenizer_free(l);
}

/* What must be shown at once, and what has to wait for the next token. */
static void test_stream_prompt(void **state)
{
    (void)state;
    mpk_context cx = {0};
    tokenizer *g = open_gpt2(), *l = open_llama();
    tokenizer_stream *s;
    str piece;
    static const int32_t smile[] = {0xf0, 0x9f, 0x99, 0x82};
    check_ok(&cx, tokenizer_stream_open(&cx, g, 0, &s));
    for (int i = 0; i < 4; i++) {
        check_ok(&cx, tokenizer_stream_put(&cx, s, smile[i], &piece));
        assert_int_equal(piece.n, i < 3 ? 0 : 4);
    }
    check_ok(&cx, tokenizer_stream_put(&cx, s, 0xf0, &piece));
    assert_int_equal(piece.n, 0);
    /* the broken character shows when it is known broken */
    check_ok(&cx, tokenizer_stream_put(&cx, s, 'a', &piece));
    assert_true(str_is(piece, "\xef\xbf\xbd"
                              "a"));
    check_ok(&cx, tokenizer_stream_put(&cx, s, 0xc3, &piece));
    check_ok(&cx, tokenizer_stream_end(&cx, s, &piece));
    assert_true(str_is(piece, "\xef\xbf\xbd"));
    tokenizer_stream_close(s);

    /* Byte tokens: the character shows with its last byte, not with the end of the run. */
    check_ok(&cx, tokenizer_stream_open(&cx, l, TOKENIZER_SKIP_SPECIAL, &s));
    static const int32_t run[] = {1, 3 + 0xe4, 3 + 0xb8, 3 + 0xad, 3 + 0xe4};
    static const size_t shown[] = {0, 0, 0, 3, 0};
    for (int i = 0; i < 5; i++) {
        check_ok(&cx, tokenizer_stream_put(&cx, s, run[i], &piece));
        assert_int_equal(piece.n, shown[i]);
    }
    check_ok(&cx, tokenizer_stream_end(&cx, s, &piece));
    assert_true(str_is(piece, "\xef\xbf\xbd"));
    tokenizer_stream_close(s);
    tokenizer_stream_close(NULL);
    tokenizer_free(g);
    tokenizer_free(l);
}

/* --- vocabularies refused --- */

/* A vocabulary with one mistake is refused with these words. */
static void vocab_fails(gpt2 *g, mpk_status status, const char *says)
{
    mpk_context cx = {0};
    tokenizer *t = NULL;
    check_fails(&cx, status, says, tokenizer_from_vocab(&cx, &g->v, &t));
    assert_null(t);
    fill_gpt2(g);
}

/* A model or a splitting rule that is not known, and merges that do not fit the vocabulary, are
 * refused by name. */
static void test_vocab_refused(void **state)
{
    (void)state;
    gpt2 g;
    fill_gpt2(&g);
    g.v.model = STR("t5");
    vocab_fails(&g, MPK_EUNSUPPORTED, "t5");
    g.v.pre = STR("somebody-else");
    vocab_fails(&g, MPK_EUNSUPPORTED, "somebody-else");
    g.v.pre = STR("");
    vocab_fails(&g, MPK_EUNSUPPORTED, "tokenizer.ggml.pre");
    g.v.n_tokens = 0;
    vocab_fails(&g, MPK_EFORMAT, "0 tokens");
    g.v.n_merges = 0;
    vocab_fails(&g, MPK_EFORMAT, "merges");
    g.merges[1] = STR("h e l");
    vocab_fails(&g, MPK_EFORMAT, "\"e l\"");
    g.merges[1] = STR("he");
    vocab_fails(&g, MPK_EFORMAT, "merge 1");
    g.tokens[257] = STR("he");
    vocab_fails(&g, MPK_EFORMAT, "both \"he\"");
    g.tokens[257] = STR("\xff");
    vocab_fails(&g, MPK_EFORMAT, "UTF-8");
    g.v.eos_id = N_GPT2;
    vocab_fails(&g, MPK_EFORMAT, "EOS");
    g.v.bos_id = -1;
    g.v.add_bos = 1;
    vocab_fails(&g, MPK_EFORMAT, "BOS");
    g.v.model = STR("llama");
    vocab_fails(&g, MPK_EFORMAT, "scores");
}

/* --- hostile lengths, threads, round trips --- */

/* Of this thread: other processes do not count. */
static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Processor seconds, the least of three, to encode n bytes of a repeated unit. */
static double encode_seconds(const tokenizer *t, const char *unit, size_t n)
{
    double least = 1e9;
    char *input = malloc(n);
    assert_non_null(input);
    for (size_t i = 0; i < n; i++)
        input[i] = unit[i % strlen(unit)];
    for (int round = 0; round < 3; round++) {
        mpk_context cx = {0};
        arena a = {0};
        tokenizer_ids ids = {0};
        double start = cpu_seconds();
        check_ok(&cx, tokenizer_encode(&cx, t, &a, input, n, 0, &ids));
        double taken = cpu_seconds() - start;
        least = taken < least ? taken : least;
        arena_free(&a);
    }
    free(input);
    return least;
}

/* Eight times the text takes about eight times as long; quadratic would be 64 times. */
static void test_hostile_lengths(void **state)
{
    (void)state;
    static const char *const units[] = {
        "a", " ", "\n", "hello", "<tool", "<", "\xff", "\xcc\x81\xcc\xa3", "'s", "1"};
    static const char normal[] = JSON(BPE(""), "\"normalizer\":{\"type\":\"NFKC\"},");
    tokenizer *tokenizers[] = {open_gpt2(), open_llama(), open_json(normal, "")};
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            double one = encode_seconds(tokenizers[k], units[i], 12000);
            double eight = encode_seconds(tokenizers[k], units[i], 96000);
            if (eight > 30 * one + 0.005)
                fail_msg("tokenizer %zu, unit %zu: 12 KB take %.4f s, 96 KB %.4f s", k, i, one,
                         eight);
        }
        tokenizer_free(tokenizers[k]);
    }
}

/* One thread's part of test_threads. */
static void *encode_often(void *argument)
{
    const tokenizer *t = argument;
    uintptr_t differences = 0;
    for (int i = 0; i < 200; i++) {
        mpk_context cx = {0};
        arena a = {0};
        tokenizer_ids ids = {0};
        mpk_status status = tokenizer_encode(&cx, t, &a, "hello world", 11, 0, &ids);
        differences += status != MPK_OK || ids.n != 5 || ids.at[0] != 259 || ids.at[2] != 261;
        arena_free(&a);
    }
    return (void *)differences;
}

/* One tokenizer, several threads, the ids of one thread. */
static void test_threads(void **state)
{
    (void)state;
    mpk_context cx = {0};
    tokenizer *t = open_gpt2();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        check_ok(&cx, thread_start(&cx, &threads[i], encode_often, t));
    for (int i = 0; i < 4; i++) {
        void *differences;
        pthread_join(threads[i], &differences);
        assert_null(differences);
    }
    tokenizer_free(t);
}

/* Valid text comes back from its ids. */
static void test_round_trip(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    static const char *const parts[] = {
        "hello", " ",   "\n\n", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x99\x82",
        "a",     "'ll", "12",   "\xcc\x81", "<tool>",       "\xe2\x96\x81x"};
    tokenizer *tokenizers[] = {open_gpt2(), open_llama()};
    for (uint64_t i = 0; i < 2000; i++) {
        text input = {0};
        for (uint64_t k = 0; k < 1 + rng_u64(seed + i, 0) % 12; k++) {
            /* the last part is spelled like a space: only the byte-level vocabulary keeps it */
            const char *part =
                parts[rng_u64(seed + i, k + 1) % (sizeof parts / sizeof *parts - i % 2)];
            text_add(&input, part, strlen(part));
        }
        mpk_context cx = {0};
        arena a = {0};
        tokenizer_ids ids = {0};
        const tokenizer *t = tokenizers[i % 2];
        bool user = i % 2 && memmem(input.at, input.n, "<tool>", 6); /* not a token there */
        check_ok(&cx, tokenizer_encode(&cx, t, &a, input.at, input.n,
                                       user ? 0 : TOKENIZER_PARSE_SPECIAL, &ids));
        text_is(t, ids.at, ids.n, 0, input.at);
        arena_free(&a);
        text_free(&input);
    }
    tokenizer_free(tokenizers[0]);
    tokenizer_free(tokenizers[1]);
}

/* Where the words of the GGUF pre-tokenizers come apart, by the ids that GPT-2's merges give. */
static void test_pre_tokenizers(void **state)
{
    (void)state;
    static const struct {
        const char *pre, *input, *ids;
    } cases[] = {
        {"gpt-2", "aa111 hello\n w", "264 49 49 49 32 259 10 260"},
        {"smollm", "1aa", "49 264"},
        {"llama-bpe", "hello", "259"},     /* with BOS, see below */
        {"qwen2", "e\xcc\x81", "195 169"}, /* composed */
        {"qwen35", "e\xcc\x81", "101 204 129"},
        {"deepseek-llm", "a  \n w", "97 32 32 10 260"},
        {"falcon", "a<=aa", "97 60 61 264"},
        {"deepseek-coder", "aa'aa", "264 39 264"},
        {"glm4", "hello", "259"},
        {"chatglm-bpe", "aa1aa", "264 49 264"},
        {"olmo", "aa111 hello\n w", "264 49 49 49 32 259 10 260"},
        {"llama4", "aa1aa'l hello", "264 49 264 39 108 32 259"},
        {"minimax-m2", "aa1aa'l hello", "264 49 264 39 108 32 259"},
        {"stablelm2", "aa1aa hello", "264 49 264 32 259"},
        {"hunyuan", "aa1aa hello", "264 49 264 32 259"},
        {"solar-open", "aa1aa hello", "264 49 264 32 259"},
        {"exaone4", "aa111 hello\n w", "264 49 49 49 32 259 10 260"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mpk_context cx = {0};
        gpt2 g;
        tokenizer *t;
        fill_gpt2(&g);
        g.v.pre = str_from(cases[i].pre);
        check_ok(&cx, tokenizer_from_vocab(&cx, &g.v, &t));
        ids_are(t, cases[i].input, 0, cases[i].ids);
        if (str_is(g.v.pre, "llama-bpe"))
            ids_are(t, "hello", TOKENIZER_ADD_SPECIAL, "262 259");
        tokenizer_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),           cmocka_unit_test(test_llama),
        cmocka_unit_test(test_lookup),         cmocka_unit_test(test_invalid_input),
        cmocka_unit_test(test_stream_random),  cmocka_unit_test(test_stream_prompt),
        cmocka_unit_test(test_vocab_refused),  cmocka_unit_test(test_hostile_lengths),
        cmocka_unit_test(test_pre_tokenizers), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
