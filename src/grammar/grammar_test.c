/* grammar_test.c - masks against what reading each token's bytes says; limits; what has been learnt
 * is forgotten. */
#include "base/rng.h"
#include "check.h"
#include "grammar/grammar_parts.h"

enum { TOKENS = 700, END = TOKENS - 1 };

static arena memory;
static str tokens[TOKENS];
static grammar_vocab *vocab;

/* All bytes, random texts of a few letters of all lengths, and an end. */
static void make_vocab(uint64_t seed)
{
    mpk_context cx = {0};
    static const char letters[] = "ab\"{}[]:, 01-.xé";
    for (uint32_t i = 0; i < END; i++) {
        text t = {0};
        const uint64_t most = i % 20 == 0 ? 40 : 6;
        const uint64_t n = i < 256 ? 1 : 2 + rng_u64(seed, i) % most;
        for (uint64_t k = 0; k < n; k++)
            text_add(&t,
                     i < 256 ? &(char){(char)i}
                             : &letters[rng_u64(seed + i, k) % (sizeof letters - 1)],
                     1);
        tokens[i] = (str){arena_copy(&memory, t.at, t.n), t.n};
        text_free(&t);
    }
    check_ok(&cx, grammar_vocab_make(&cx, tokens, TOKENS, &(int32_t){END}, 1, &vocab));
}

static grammar *make(grammar_kind kind, const char *source)
{
    mpk_context cx = {0};
    grammar *g = NULL;
    check_ok(&cx, grammar_make(&cx, kind, str_from(source), &g));
    return g;
}

/* Each bit of the mask, asked of a second matcher that has read the same text. */
static void check_mask(grammar *g, grammar_matcher *m, str so_far, const uint32_t *words)
{
    mpk_context cx = {0};
    (void)m;
    for (uint32_t i = 0; i < TOKENS; i++) {
        grammar_matcher *other;
        bool fits, may_end;
        check_ok(&cx, grammar_matcher_open(&cx, g, NULL, &other));
        check_ok(&cx, grammar_matcher_read(&cx, other, so_far, &fits, &may_end));
        assert_true(fits);
        if (i != END)
            check_ok(&cx, grammar_matcher_read(&cx, other, tokens[i], &fits, &may_end));
        if ((words[i / 32] >> i % 32 & 1) != (i == END ? may_end : fits))
            fail_msg("token %u '%.*s' after '%.*s'", i, STR_ARG(tokens[i]), STR_ARG(so_far));
        grammar_matcher_close(other);
    }
}

/* What a mask says of itself; before: the last one's bits, or zeros.  Returns whether it is said to
 * be the same. */
static bool check_words(const grammar_matcher *m, const uint32_t *words, uint32_t n,
                        uint32_t *before)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < TOKENS; i++)
        bits += words[i / 32] >> i % 32 & 1;
    assert_int_equal(n, bits);
    const bool same = grammar_matcher_is_same(m);
    if (same)
        assert_memory_equal(words, before, (TOKENS + 31) / 32 * sizeof *words);
    memcpy(before, words, (TOKENS + 31) / 32 * sizeof *words);
    return same;
}

/* A random walk; every mask is checked. */
static void walk(grammar *g, uint64_t seed, uint32_t most)
{
    mpk_context cx = {0};
    grammar_matcher *m;
    text so_far = {0};
    bool over = false;
    uint32_t before[(TOKENS + 31) / 32] = {0};
    check_ok(&cx, grammar_matcher_open(&cx, g, vocab, &m));
    for (uint32_t step = 0; step < most && !over; step++) {
        uint32_t words[(TOKENS + 31) / 32], n, chosen = TOKENS;
        check_ok(&cx, grammar_matcher_mask(&cx, m, words, &n));
        assert_true(n);
        check_words(m, words, n, before);
        check_mask(g, m, (str){so_far.at ? so_far.at : "", so_far.n}, words);
        for (uint32_t i = 0, best = 0; i < END; i++) {
            uint32_t rank = (uint32_t)rng_u64(seed + step, i) | 1;
            if ((words[i / 32] >> i % 32 & 1) && rank > best) {
                best = rank;
                chosen = i;
            }
        }
        if (chosen == TOKENS)
            break;
        check_ok(&cx, grammar_matcher_take(&cx, m, (int32_t)chosen, &over));
        text_add(&so_far, tokens[chosen].at, tokens[chosen].n);
        if (step % 3 == 2)
            check_ok(&cx, store_forget(&cx, g));
    }
    grammar_matcher_close(m);
    text_free(&so_far);
}

/* A mask allows a token exactly if reading its bytes one after the other is possible, in every
 * situation of random walks; with forms that count far, so that the short cuts for counts are
 * used. */
static void test_masks(void **state)
{
    static const struct {
        grammar_kind kind;
        const char *source;
    } cases[] = {
        {GRAMMAR_JSON_OBJECT, ""},
        {GRAMMAR_REGEX, "(a|ab|[^x]{2,5})*b"},
        {GRAMMAR_REGEX, "a{3,30}|[ab]{100,2000}\\."},
        {GRAMMAR_CHOICE, "[\"ab\", \"a\", \"abba01\", \"-\"]"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": "
                              "\"string\", \"maxLength\": 25}, "
                              "\"b\": {\"type\": \"number\", \"minimum\": -10.5, \"maximum\": "
                              "0.25}}, \"maxProperties\": 3}"},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, \"maxItems\": 4}"},
    };
    uint64_t seed = check_seed();
    (void)state;
    make_vocab(seed);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        grammar *g = make(cases[i].kind, cases[i].source);
        for (uint32_t round = 0; round < 3; round++)
            walk(g, seed + 1000 * round + i, 12);
        grammar_free(g);
    }
    grammar_vocab_free(vocab);
    arena_free(&memory);
}

/* Counts that are large, or nested, cost no more than what is read of them. */
static void test_counts(void **state)
{
    static const struct {
        const char *source, *text;
        bool fits, may_end;
    } cases[] = {
        {"a{100000}", "aaa", true, false},
        {"(a{1000}){1000}", "aaaa", true, false},
        {"(a?){100000}b", "aab", true, true},
        {"(a|aa){1,100000}", "aaaaaaaaaaaaaaaa", true, true},
        {"(a*)*(a*)*b", "aaaaaaaaaaab", true, true},
        {"((a?){2,5}){2,5}", "aaaaaaaaaaaaaaaaaaaaaaaaa", true, true},
        {"((a?){2,5}){2,5}", "aaaaaaaaaaaaaaaaaaaaaaaaaa", false, false},
        {"x{0}y", "y", true, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mpk_context cx = {0};
        grammar_matcher *m;
        bool fits, may_end;
        grammar *g = make(GRAMMAR_REGEX, cases[i].source);
        check_ok(&cx, grammar_matcher_open(&cx, g, NULL, &m));
        check_ok(&cx, grammar_matcher_read(&cx, m, str_from(cases[i].text), &fits, &may_end));
        if (fits != cases[i].fits || may_end != cases[i].may_end)
            fail_msg("%s: %s", cases[i].source, cases[i].text);
        grammar_matcher_close(m);
        grammar_free(g);
    }
}

/* Does the schema allow this text, as it stands? */
static bool allows(grammar *g, const char *words)
{
    mpk_context cx = {0};
    grammar_matcher *m;
    bool fits, may_end;
    check_ok(&cx, grammar_matcher_open(&cx, g, NULL, &m));
    check_ok(&cx, grammar_matcher_read(&cx, m, str_from(words), &fits, &may_end));
    grammar_matcher_close(m);
    return fits && may_end;
}

/* Comments end with their line; after a bar the rule goes on. */
static void test_comments(void **state)
{
    (void)state;
    grammar *g = make(GRAMMAR_EBNF, "# digits or x\nroot ::= [0-9]+ | # as you like, or | y\n"
                                    "  \"x\" # the end");
    assert_true(allows(g, "07") && allows(g, "x"));
    assert_false(allows(g, "y") || allows(g, "") || allows(g, "1x"));
    grammar_free(g);
}

/* Numbers in tenths, low to high, by a schema of these bounds: each number from -most to most, with
 * a digit after the point and, where that is 0, without. */
static void check_bounds(int64_t low, int64_t high, int64_t most, bool integer)
{
    char source[200], words[32];
    snprintf(source, sizeof source, "{\"type\": \"%s\", \"minimum\": %.1f, \"maximum\": %.1f}",
             integer ? "integer" : "number", (double)low / 10, (double)high / 10);
    grammar *g = make(GRAMMAR_JSON_SCHEMA, source);
    for (int64_t t = -most; t <= most; t++) {
        const bool inside = t >= low && t <= high;
        snprintf(words, sizeof words, "%.1f", (double)t / 10);
        if (allows(g, words) != (inside && !integer))
            fail_msg("%s: %s", source, words);
        snprintf(words, sizeof words, "%lld", (long long)(t / 10));
        if (t % 10 == 0 && allows(g, words) != inside)
            fail_msg("%s: %s", source, words);
    }
    assert_false(allows(g, "01") || allows(g, "-01") || allows(g, "."));
    grammar_free(g);
}

/* Bounds of one to four digits, every fourth of them 0. */
static void test_bounds(void **state)
{
    const uint64_t seed = check_seed();
    (void)state;
    for (uint64_t round = 0; round < 48; round++) {
        static const int64_t spans[] = {12, 150, 1500, 12000};
        const int64_t span = spans[round % 4];
        int64_t bound[2];
        for (uint64_t i = 0; i < 2; i++) {
            bound[i] = (int64_t)(rng_u64(seed, 2 * round + i) % (uint64_t)(2 * span)) - span;
            if (round / 4 % 2) /* there are whole numbers between */
                bound[i] -= bound[i] % 10;
            if (rng_u64(seed + 1, 2 * round + i) % 4 == 0)
                bound[i] = 0;
        }
        const int64_t low = bound[0] < bound[1] ? bound[0] : bound[1];
        check_bounds(low, bound[0] + bound[1] - low, span + span / 5, round / 4 % 2);
    }
}

/* The form is accepted, or refused with this status and these words. */
static void check_made(mpk_status status, const char *words, grammar_kind kind, const text *source)
{
    mpk_context cx = {0};
    grammar *g = NULL;
    const mpk_status found = grammar_make(&cx, kind, (str){source->at, source->n}, &g);
    if (status == MPK_OK)
        check_ok(&cx, found);
    else
        check_fails(&cx, status, words, found);
    grammar_free(g);
}

/* 40 levels that each ask for the next one twice: 2^40 schemas put together, of the last one. */
static void add_doubling(text *t, const char *last)
{
    text_print(t, "{\"$ref\": \"#/$defs/0\", \"$defs\": {");
    for (int i = 0; i < 40; i++)
        text_print(
            t, "\"%d\": {\"allOf\": [{\"$ref\": \"#/$defs/%d\"}, {\"$ref\": \"#/$defs/%d\"}]}, ", i,
            i + 1, i + 1);
    text_print(t, "\"40\": %s}}", last);
}

static void add_doubled_types(text *t)
{
    add_doubling(t, "{\"type\": \"null\"}");
}

/* Schemas without members, too, take time. */
static void add_doubled_flags(text *t)
{
    add_doubling(t, "false");
}

/* Ten lists of 500 items, each the last item of the one around it. */
static void add_lists(text *t)
{
    for (int i = 0; i < 10; i++) {
        text_print(t, "{\"type\": \"array\", \"prefixItems\": [");
        for (int k = 0; k < 499; k++)
            text_print(t, "{\"type\": \"null\"}, ");
    }
    text_print(t, "true");
    for (int i = 0; i < 10; i++)
        text_print(t, "]}");
}

/* n members, numbered upwards or downwards. */
static void add_members(text *t, int n, bool down)
{
    text_print(t, "{");
    for (int i = 0; i < n; i++)
        text_print(t, "%s\"%d\": true", i ? ", " : "", down ? n - 1 - i : i);
    text_print(t, "}");
}

/* A thousand properties that are put together with one more, 2000 times. */
static void add_properties(text *t)
{
    text_print(t, "{\"allOf\": [{\"properties\": ");
    add_members(t, 1000, false);
    text_print(t, "}");
    for (int i = 0; i < 2000; i++)
        text_print(t, ", {\"properties\": {\"x%d\": true}}", i);
    text_print(t, "]}");
}

/* The same members in the other order: each is found as the last one. */
static void add_constants(text *t)
{
    text_print(t, "{\"oneOf\": [{\"const\": ");
    add_members(t, 15000, false);
    text_print(t, "}, {\"const\": ");
    add_members(t, 15000, true);
    text_print(t, "}]}");
}

/* Lists of six empty lists, each beside a schema of the same kind: 6^30 literals to judge, if the
 * inner schema were made for each. */
static void add_enums(text *t)
{
    for (int i = 0; i < 30; i++)
        text_print(t, "{\"enum\": [[], [], [], [], [], []], \"items\": ");
    text_print(t, "true");
    for (int i = 0; i < 30; i++)
        text_print(t, "}");
}

/* A tag whose free text ends at one long word. */
static void add_long_word(text *t)
{
    text_print(t, "{\"format\": {\"type\": \"tag\", \"begin\": \"<\", \"content\": {\"type\": "
                  "\"any_text\"}, \"end\": \"");
    for (int i = 0; i < 2000; i++)
        text_print(t, "%c", i % 37 ? 'a' : 'b');
    text_print(t, "\"}}");
}

/* A level of recursion for each byte. */
static void add_stars(text *t)
{
    text_print(t, "root ::= \"a\"");
    for (int i = 0; i < 190000; i++)
        text_print(t, "*");
}

/* The same in groups, each of which has as many as one item may have. */
static void add_groups_of_stars(text *t)
{
    text_print(t, "root ::= ");
    for (int i = 0; i < 100; i++)
        text_print(t, "(");
    text_print(t, "\"a\"");
    for (int i = 0; i < 100; i++) {
        for (int k = 0; k < 199; k++)
            text_print(t, "+");
        text_print(t, ")");
    }
}

/* Small forms that cost 2^n steps, the square of their size, or recursion without a bound end
 * soon. */
static void test_hostile(void **state)
{
    static const struct {
        void (*add)(text *t);
        grammar_kind kind;
        mpk_status status;
        const char *words;
    } cases[] = {
        {add_doubled_types, GRAMMAR_JSON_SCHEMA, MPK_ELIMIT, "too large"},
        {add_doubled_flags, GRAMMAR_JSON_SCHEMA, MPK_ELIMIT, "too large"},
        {add_enums, GRAMMAR_JSON_SCHEMA, MPK_OK, NULL},
        {add_lists, GRAMMAR_JSON_SCHEMA, MPK_ELIMIT, "nested too deeply"},
        {add_properties, GRAMMAR_JSON_SCHEMA, MPK_ELIMIT, "too large"},
        {add_constants, GRAMMAR_JSON_SCHEMA, MPK_ELIMIT, "too large"},
        {add_long_word, GRAMMAR_TAG, MPK_OK, NULL},
        {add_stars, GRAMMAR_EBNF, MPK_EFORMAT, "in a row"},
        {add_groups_of_stars, GRAMMAR_EBNF, MPK_ELIMIT, "nested too deeply"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        text t = {0};
        cases[i].add(&t);
        check_made(cases[i].status, cases[i].words, cases[i].kind, &t);
        text_free(&t);
    }
}

/* Lists of required names that are put together 200 times take memory for their names, not for
 * each time. */
static void test_required(void **state)
{
    mpk_context cx = {0};
    arena a = {0};
    maker k = {.cx = &cx, .a = &a};
    text t = {0};
    const json_value *schema;
    const node *made;
    (void)state;
    text_print(&t, "{\"allOf\": [true");
    for (int i = 0; i < 200; i++)
        text_print(&t, ", {\"$ref\": \"#/$defs/%d\"}", i % 2);
    text_print(&t, "], \"$defs\": {");
    for (int i = 0; i < 2; i++) {
        text_print(&t, "%s\"%d\": {\"required\": [\"a\"", i ? ", " : "", i);
        for (int n = 0; n < 50; n++)
            text_print(&t, ", \"%c%d\"", 'b' + i, n);
        text_print(&t, "]}");
    }
    text_print(&t, "}}");
    check_ok(&cx, json_parse(&cx, &a, (str){t.at, t.n}, &schema));
    check_ok(&cx, schema_parse_node(&k, schema, &made));
    assert_true(a.reserved_bytes < 32 << 20);
    arena_free(&a);
    text_free(&t);
}

/* Free text stops at the first of its words, however they overlap. */
static void test_words(void **state)
{
    static const char *const cases[] = {"<abcabd", "<ab",  "<bcd", "<abcabcabd",
                                        "<xabd",   "<abd", "<abce"};
    static const bool ends[] = {true, false, true, true, true, true, true};
    (void)state;
    grammar *g =
        make(GRAMMAR_TAG, "{\"format\": {\"type\": \"tag\", \"begin\": \"<\", \"content\": "
                          "{\"type\": \"any_text\"}, \"end\": [\"abd\", \"bcd\", \"ce\"]}}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (allows(g, cases[i]) != ends[i])
            fail_msg("%s", cases[i]);
    assert_false(allows(g, "<abdabd") || allows(g, "<bcdx") || allows(g, "<cece"));
    grammar_free(g);
}

/* Ranges over the surrogates have none of them; values that exclude each other leave nothing. */
static void test_edges(void **state)
{
    (void)state;
    grammar *g = make(GRAMMAR_REGEX, "[\\u0000-\\uffff]");
    assert_true(allows(g, "\xed\x9f\xbf") && allows(g, "\xee\x80\x80") && allows(g, "a"));
    assert_false(allows(g, "\xed\xa0\x80") || allows(g, "\xed\xbf\xbf"));
    grammar_free(g);
    g = make(GRAMMAR_EBNF, "root ::= [\\uD7FF-\\uE000]");
    assert_true(allows(g, "\xed\x9f\xbf") && allows(g, "\xee\x80\x80"));
    assert_false(allows(g, "\xed\xa0\x80"));
    grammar_free(g);
    g = make(GRAMMAR_REGEX, "\\ud83d\\ude00");
    assert_true(allows(g, "\xf0\x9f\x98\x80"));
    grammar_free(g);
    g = make(GRAMMAR_JSON_SCHEMA, "{\"enum\": [1, 2.0, \"a\", \"abc\"], \"maxLength\": 2, "
                                  "\"type\": [\"integer\", \"string\"]}");
    assert_true(allows(g, "1") && allows(g, "2") && allows(g, "\"a\""));
    assert_false(allows(g, "\"abc\""));
    grammar_free(g);
    g = make(GRAMMAR_JSON_SCHEMA, "{\"enum\": [1e300, 0.5], \"type\": \"integer\"}");
    assert_true(allows(g, "1e300"));
    assert_false(allows(g, "0.5"));
    grammar_free(g);
}

/* What node 20 makes of a - beside a set, without the flag u: of " " to "~" these match. */
static void test_dashes_beside_sets(void **state)
{
    static const struct {
        const char *source, *matches;
    } cases[] = {{"[a-\\d]", "-0123456789a"},         {"[\\d-z]", "-0123456789z"},
                 {"[\\d-a-z]", "-0123456789az"},      {"[a-\\d-z]", "-0123456789az"},
                 {"[a-\\d-\\s-z]", " -0123456789az"}, {"[%--\\d]", "%&'()*+,-0123456789"},
                 {"[--\\d]", "-0123456789"},          {"[\\d--a]", "-0123456789a"},
                 {"[\\d-]", "-0123456789"},           {"[\\s-\\d]", " -0123456789"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        grammar *g = make(GRAMMAR_REGEX, cases[i].source);
        for (char c = ' '; c <= '~'; c++)
            if (allows(g, (char[]){c, 0}) != (strchr(cases[i].matches, c) != NULL))
                fail_msg("%s and %c", cases[i].source, c);
        grammar_free(g);
    }
}

/* What no automaton of bytes can say is unsupported; what is no expression or schema at all is a
 * fault. The message says where. */
static void test_refused(void **state)
{
    static const struct {
        grammar_kind kind;
        mpk_status status;
        const char *source, *words;
    } cases[] = {
        {GRAMMAR_REGEX, MPK_EUNSUPPORTED, "a(?=b)", "byte 3"},
        {GRAMMAR_REGEX, MPK_EUNSUPPORTED, "(a)\\1", "reference"},
        {GRAMMAR_REGEX, MPK_EUNSUPPORTED, "a\\b", "assertion"},
        {GRAMMAR_REGEX, MPK_EUNSUPPORTED, "a++", "possessive"},
        {GRAMMAR_REGEX, MPK_EFORMAT, "a)", "byte 1"},
        {GRAMMAR_REGEX, MPK_EFORMAT, "(a", "no end"},
        {GRAMMAR_REGEX, MPK_EFORMAT, "a{3,2}", "ends below its beginning"},
        {GRAMMAR_REGEX, MPK_EFORMAT, "\\ud800\\u0041", "no second half"},
        {GRAMMAR_JSON_SCHEMA, MPK_EFORMAT,
         "{\"allOf\": [{\"enum\": [1, 2]}, {\"const\": 1}, {\"const\": 2}]}", "contradicts itself"},
        {GRAMMAR_JSON_SCHEMA, MPK_EFORMAT, "{\"enum\": [1], \"minimum\": \"x\"}", "minimum at #"},
        {GRAMMAR_JSON_SCHEMA, MPK_EFORMAT, "{\"$ref\": \"#/anyOf/0a\", \"anyOf\": [true]}",
         "leads nowhere"},
        {GRAMMAR_JSON_SCHEMA, MPK_EUNSUPPORTED, "{\"properties\": {\"x\": {\"not\": {}}}}",
         "\"not\" at #/properties/x"},
        {GRAMMAR_JSON_SCHEMA, MPK_EUNSUPPORTED, "{\"$ref\": \"#\"}", "left recursion"},
        {GRAMMAR_JSON_SCHEMA, MPK_EUNSUPPORTED, "{\"$ref\": \"http://x/y\"}",
         "must lead into the same schema"},
        {GRAMMAR_JSON_SCHEMA, MPK_EFORMAT, "{\"type\": \"text\"}", "type at #"},
        {GRAMMAR_JSON_SCHEMA, MPK_EFORMAT, "{\"minLength\": -1}", "minLength at #"},
        {GRAMMAR_JSON_SCHEMA, MPK_EFORMAT, "{", "while reading the JSON schema"},
        {GRAMMAR_JSON_SCHEMA, MPK_EUNSUPPORTED,
         "{\"oneOf\": [{\"type\": \"number\"}, {\"type\": \"integer\"}]}", "options 0 and 1"},
        {GRAMMAR_CHOICE, MPK_EFORMAT, "[]", "at least one"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mpk_context cx = {0};
        grammar *g = NULL;
        check_fails(&cx, cases[i].status, cases[i].words,
                    grammar_make(&cx, cases[i].kind, str_from(cases[i].source), &g));
    }
}

/* Within a long text each mask is that of the token before, also after everything has been
 * forgotten but once. */
static void test_same(void **state)
{
    (void)state;
    mpk_context cx = {0};
    grammar *g = make(GRAMMAR_REGEX, "[ab]{600}");
    grammar_matcher *m;
    make_vocab(check_seed());
    uint32_t words[(TOKENS + 31) / 32], before[(TOKENS + 31) / 32] = {0}, n, n_same = 0;
    bool over;
    check_ok(&cx, grammar_matcher_open(&cx, g, vocab, &m));
    for (uint32_t step = 0; step < 500; step++) {
        check_ok(&cx, grammar_matcher_mask(&cx, m, words, &n));
        n_same += check_words(m, words, n, before);
        if (step == 100)
            check_ok(&cx, store_forget(&cx, g));
        check_ok(&cx, grammar_matcher_take(&cx, m, 'a', &over));
    }
    assert_int_equal(n_same, 498); /* not the first, and not the one after step 100 */
    grammar_matcher_close(m);
    grammar_free(g);
    grammar_vocab_free(vocab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_comments),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_required),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_dashes_beside_sets),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
