/* grammar_tag.c - structural tags as XGrammar, vLLM and SGLang write them -> trees.
 *
 *     {"type": "structural_tag", "format": FORMAT}
 *
 * A FORMAT is an object with a "type": texts (const_string, choice), what other front ends read
 * (json_schema, regex, grammar), free text (any_text), combinations (sequence, or), and tags: a
 * begin, a content, and an end, which may stand in free text (triggered_tags) or in a row
 * (tags_with_separator).  Free text holds none of the words that end it: a rule for each beginning
 * of such a word, as in the automaton of Aho and Corasick, says how it goes on.
 *
 * Called by grammar.c.  What is said of a tag's members is checked where it is read: text_of,
 * list_of and flag_of say which is missing or of a wrong type. */
#include "grammar/grammar_parts.h"

/* Characters of the words that one free text must not contain, and of all free texts. */
enum { MOST_WORD_CHARS = 2048, MOST_LETTERS = 16384 };

typedef struct tag_reader {
    maker *k;
    uint32_t nesting;
    uint32_t n_letters; /* of free texts so far */
} tag_reader;

static mpk_status format_node(tag_reader *r, const json_value *format, const node **out);

static mpk_status fault(const tag_reader *r, const json_value *type, const char *what)
{
    const str name = json_is(type, JSON_KIND_STRING) ? type->text : STR("");
    FAIL(r->k->cx, MPK_EFORMAT, "the structural tag's type \"%.*s\" %s", STR_ARG(name), what);
}

/* ---- members ---- */

/* A text that must be there; it may be empty. *out borrows from the tag. */
static mpk_status text_of(const tag_reader *r, const json_value *format, const char *key, str *out)
{
    const json_value *v = json_get(format, key);
    CHECK(r->k->cx, json_is(v, JSON_KIND_STRING), MPK_EFORMAT,
          "the structural tag lacks the text \"%s\"", key);
    *out = v->text;
    return MPK_OK;
}

/* A list that must be there and have an item. */
static mpk_status list_of(const tag_reader *r, const json_value *format, const char *key,
                          const json_value **out)
{
    *out = json_get(format, key);
    CHECK(r->k->cx, json_is(*out, JSON_KIND_LIST) && (*out)->n, MPK_EFORMAT,
          "the structural tag lacks the list \"%s\", or it is empty", key);
    return MPK_OK;
}

/* Absent is false. */
static mpk_status flag_of(const tag_reader *r, const json_value *format, const char *key, bool *out)
{
    const json_value *v = json_get(format, key);
    CHECK(r->k->cx, !v || v->kind == JSON_KIND_BOOL, MPK_EFORMAT,
          "\"%s\" of the structural tag is neither true nor false", key);
    *out = v && v->boolean;
    return MPK_OK;
}

/* The schema of a content, by its newer or its older name. */
static const json_value *schema_of(const json_value *format)
{
    const json_value *schema = json_get(format, "json_schema");
    return schema ? schema : json_get(format, "schema");
}

/* ---- free text ---- */

/* A beginning of words: each state is the one before it and a character.  Of the words "ab" and
 * "bc":
 *
 *     0 --a--> 1 --b--> 2     state 2 ("ab", a word) falls to 3 ("b"), and from there "c" makes the
 *       --b--> 3 --c--> 4     word "bc": in the text "abc", too, it is found
 */
typedef struct word_state {
    uint32_t parent, letter; /* a code point */
    uint32_t depth;          /* characters from state 0 to it */
    uint32_t child, sibling; /* the first state below it; the next of its parent's; 0: none */
    uint32_t fall;           /* the longest proper end of it that is a state */
    uint32_t rule;
    bool is_word; /* it is a word, or ends with one */
} word_state;

typedef struct word_tree {
    VEC(word_state) states; /* parents first; 0: the empty text */
} word_tree;

/* The state below `parent` by this letter; 0: there is none. */
static uint32_t find_child(const word_tree *t, uint32_t parent, uint32_t letter)
{
    uint32_t i = t->states.at[parent].child;
    while (i && t->states.at[i].letter != letter)
        i = t->states.at[i].sibling;
    return i;
}

/* A new state below `parent`. */
static mpk_status add_state(maker *k, word_tree *t, uint32_t parent, uint32_t letter, uint32_t *out)
{
    const word_state *up = &t->states.at[parent];
    const word_state made = {
        .parent = parent, .letter = letter, .depth = up->depth + 1, .sibling = up->child};
    CHECK(k->cx, t->states.n < MOST_WORD_CHARS, MPK_ELIMIT,
          "triggers and ends of the structural tag have more than %d characters", MOST_WORD_CHARS);
    *out = (uint32_t)t->states.n;
    PUSH(k->cx, k->a, &t->states, made);
    t->states.at[parent].child = *out;
    return MPK_OK;
}

/* A tree of characters, not bytes, because free text is a rule of characters. Triggers "<a>" and
 * "<b>" share the states of "<". With state_body it is Aho and Corasick's automaton for free text
 * that holds none of the words. */
static mpk_status add_word(tag_reader *r, word_tree *t, str word)
{
    maker *k = r->k;
    uint32_t at = 0, letter;
    CHECK(k->cx, word.n, MPK_EFORMAT,
          "a trigger or an end of the structural tag is empty, so that no text is free");
    for (size_t i = 0; i < word.n;) {
        TRY(chars_read(k, word, &i, &letter));
        CHECK(k->cx, r->n_letters++ < MOST_LETTERS, MPK_ELIMIT,
              "all triggers and ends of the structural tag have more than %d characters",
              MOST_LETTERS);
        uint32_t next = find_child(t, at, letter);
        if (!next)
            TRY(add_state(k, t, at, letter, &next));
        at = next;
    }
    t->states.at[at].is_word = true;
    return MPK_OK;
}

/* The state of a text that is in a state and gets a letter. */
static uint32_t step(const word_tree *t, uint32_t state, uint32_t letter)
{
    uint32_t child = find_child(t, state, letter);
    while (!child && state) {
        state = t->states.at[state].fall;
        child = find_child(t, state, letter);
    }
    return child;
}

/* By rising depth: the fall of a state is shorter than the state, so it is complete when it is
 * needed.  (The order in which states were made does not suffice: a second word may begin below
 * the end of the first.) */
static void fill_falls(word_tree *t)
{
    uint32_t most = 0;
    for (uint32_t i = 1; i < t->states.n; i++)
        most = t->states.at[i].depth > most ? t->states.at[i].depth : most;
    for (uint32_t n = 2; n <= most; n++)
        for (uint32_t i = 1; i < t->states.n; i++) {
            word_state *s = &t->states.at[i];
            if (s->depth != n)
                continue;
            s->fall = step(t, t->states.at[s->parent].fall, s->letter);
            s->is_word |= t->states.at[s->fall].is_word;
        }
}

/* The text continues with the letter of state `to`, and is in that state then. */
static mpk_status add_onward(maker *k, const word_tree *t, uint32_t to, node *alt)
{
    const word_state *s = &t->states.at[to];
    const node *letter = NULL, *rest = NULL, *child = NULL;
    TRY(node_range(k, s->letter, s->letter, &letter));
    TRY(node_rule(k, s->rule, &rest));
    TRY(node_pair(k, NODE_SEQ, letter, rest, &child));
    return node_add(k, alt, child);
}

/* The letters that lead on from `state`: those of its children, and those of the states to which
 * it falls. */
static mpk_status add_letters(maker *k, const word_tree *t, uint32_t state, char_set *onward,
                              node *alt)
{
    pair_table seen = {0};
    uint32_t before;
    for (uint32_t at = state;; at = t->states.at[at].fall) {
        for (uint32_t i = t->states.at[at].child; i; i = t->states.at[i].sibling) {
            const word_state *to = &t->states.at[i];
            if (pair_get(&seen, to->letter, &before))
                continue;
            TRY(pair_put(k->cx, k->a, &seen, to->letter, i));
            TRY(chars_add(k, onward, to->letter, to->letter));
            if (!to->is_word)
                TRY(add_onward(k, t, i, alt));
        }
        if (!at)
            return MPK_OK;
    }
}

/* In a state the text may end, or get a letter that does not complete a word.  A text is never in a
 * state that is a word. A letter that leads nowhere in the tree goes back to the state of the empty
 * text, unless add_letters knows a longer way on. */
static mpk_status state_body(maker *k, const word_tree *t, uint32_t state, const node **out)
{
    char_set onward = {0}, others;
    const node *letter = NULL, *rest = NULL, *child = NULL;
    node *alt;
    TRY(node_new(k, t->states.at[state].is_word ? NODE_NEVER : NODE_ALT, &alt));
    *out = alt;
    if (t->states.at[state].is_word)
        return MPK_OK;
    TRY(node_bytes(k, (str){0}, &child));
    TRY(node_add(k, alt, child));
    TRY(add_letters(k, t, state, &onward, alt));
    chars_settle(&onward);
    TRY(chars_invert(k, &onward, &others));
    TRY(node_chars(k, &others, &letter));
    TRY(node_rule(k, t->states.at[0].rule, &rest));
    TRY(node_pair(k, NODE_SEQ, letter, rest, &child));
    return node_add(k, alt, child);
}

/* Any text that contains none of the words. */
static mpk_status free_text(tag_reader *r, const str *words, size_t n, const node **out)
{
    maker *k = r->k;
    word_tree t = {0};
    const node *body = NULL;
    PUSH(k->cx, k->a, &t.states, (word_state){0});
    for (size_t i = 0; i < n; i++)
        TRY(add_word(r, &t, words[i]));
    fill_falls(&t);
    for (size_t i = 0; i < t.states.n; i++)
        TRY(rule_new(k, STR("free text"), &t.states.at[i].rule));
    for (uint32_t i = 0; i < t.states.n; i++) {
        TRY(state_body(k, &t, i, &body));
        k->rules.at[t.states.at[i].rule].body = body;
    }
    return node_rule(k, t.states.at[0].rule, out);
}

/* ---- tags ---- */

/* The texts of a member that is one text or a list of them. */
static mpk_status texts_of(tag_reader *r, const json_value *v, const char *key, str **out,
                           size_t *n)
{
    const json_value *items = json_is(v, JSON_KIND_LIST) ? v->items : v;
    *n = json_is(v, JSON_KIND_LIST) ? v->n : 1;
    NEW(r->k->cx, r->k->a, *out, *n);
    for (size_t i = 0; i < *n; i++) {
        CHECK(r->k->cx, items && items[i].kind == JSON_KIND_STRING, MPK_EFORMAT,
              "\"%s\" of the structural tag is neither a text nor a list of texts", key);
        (*out)[i] = items[i].text;
    }
    return MPK_OK;
}

/* Free text in a tag continues to the tag's end. */
static mpk_status content_node(tag_reader *r, const json_value *content, const str *ends, size_t n,
                               const node **out)
{
    const json_value *type = json_get(content, "type");
    bool is_free = json_is(type, JSON_KIND_STRING) && str_is(type->text, "any_text");
    return is_free ? free_text(r, ends, n, out) : format_node(r, content, out);
}

/* begin, content, end.  A content that is free text must know the ends, which stop it. For example
 * "<tool_call>", {"type": "json_schema", ..}, "</tool_call>". */
static mpk_status tag_node(tag_reader *r, const json_value *tag, const node **out)
{
    const json_value *content = json_get(tag, "content");
    const node *begin = NULL, *middle = NULL, *end = NULL;
    str first, *ends;
    size_t n;
    TRY(text_of(r, tag, "begin", &first));
    TRY(texts_of(r, json_get(tag, "end"), "end", &ends, &n));
    CHECK(r->k->cx, content || schema_of(tag), MPK_EFORMAT,
          "a tag of the structural tag lacks its \"content\"");
    if (content)
        TRY(content_node(r, content, ends, n, &middle));
    else
        TRY(schema_parse_node(r->k, schema_of(tag), &middle));
    TRY(node_bytes(r->k, first, &begin));
    TRY(node_texts(r->k, ends, n, &end));
    TRY(node_pair(r->k, NODE_SEQ, begin, middle, &middle));
    return node_pair(r->k, NODE_SEQ, middle, end, out);
}

/* One of the tags, as a rule, since it is used in several places. */
static mpk_status one_of(tag_reader *r, const json_value *tags, const node **out)
{
    const node *child = NULL;
    node *alt;
    uint32_t number;
    TRY(node_new(r->k, NODE_ALT, &alt));
    for (size_t i = 0; i < tags->n; i++) {
        TRY(tag_node(r, &tags->items[i], &child));
        TRY(node_add(r->k, alt, child));
    }
    TRY(rule_new(r->k, STR("tags"), &number));
    r->k->rules.at[number].body = alt;
    return node_rule(r->k, number, out);
}

/* A tag may only begin where a trigger does. */
static bool begins_with_one(str s, const str *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s.n >= words[i].n && memcmp(s.at, words[i].at, words[i].n) == 0)
            return true;
    return false;
}

/* A tag without a trigger could never begin, and is refused. */
static mpk_status check_triggers(tag_reader *r, const json_value *tags, const str *triggers,
                                 size_t n)
{
    str begin = {0};
    for (size_t i = 0; i < tags->n; i++) {
        TRY(text_of(r, &tags->items[i], "begin", &begin));
        CHECK(r->k->cx, begins_with_one(begin, triggers, n), MPK_EFORMAT,
              "tag %zu of the structural tag begins with none of the triggers", i);
    }
    return MPK_OK;
}

/* With stop_after_first: FREE TAG?, else FREE (TAG FREE)*; at_least_one: the text begins with a
 * tag. */
static mpk_status triggered_node(tag_reader *r, const json_value *format, const node **out)
{
    const json_value *list, *tags;
    const node *any = NULL, *tag = NULL, *more = NULL;
    bool at_least_one = false, only_first = false;
    str *triggers;
    size_t n;
    TRY(list_of(r, format, "triggers", &list));
    TRY(list_of(r, format, json_get(format, "structures") ? "structures" : "tags", &tags));
    TRY(texts_of(r, list, "triggers", &triggers, &n));
    TRY(flag_of(r, format, "at_least_one", &at_least_one));
    TRY(flag_of(r, format, "stop_after_first", &only_first));
    /* limits the triggers, before every tag is compared with them */
    TRY(free_text(r, triggers, n, &any));
    TRY(check_triggers(r, tags, triggers, n));
    TRY(one_of(r, tags, &tag));
    if (only_first && at_least_one) {
        *out = tag;
        return MPK_OK;
    }
    if (only_first) {
        TRY(node_repeat(r->k, tag, 0, 1, &more));
        return node_pair(r->k, NODE_SEQ, any, more, out);
    }
    TRY(node_pair(r->k, NODE_SEQ, tag, any, &more));
    TRY(node_repeat(r->k, more, at_least_one, GRAMMAR_FOREVER, &more));
    if (at_least_one)
        *out = more;
    else
        TRY(node_pair(r->k, NODE_SEQ, any, more, out));
    return MPK_OK;
}

/* TAG (SEPARATOR TAG)*, or nothing unless at_least_one. stop_after_first: one tag at most. */
static mpk_status row_node(tag_reader *r, const json_value *format, const node **out)
{
    const json_value *tags;
    const node *tag = NULL, *between = NULL, *row = NULL;
    bool at_least_one = false, only_first = false;
    str separator;
    TRY(list_of(r, format, "tags", &tags));
    TRY(text_of(r, format, "separator", &separator));
    TRY(flag_of(r, format, "at_least_one", &at_least_one));
    TRY(flag_of(r, format, "stop_after_first", &only_first));
    TRY(one_of(r, tags, &tag));
    row = tag;
    if (!only_first) {
        TRY(node_bytes(r->k, separator, &between));
        TRY(node_pair(r->k, NODE_SEQ, between, tag, &row));
        TRY(node_repeat(r->k, row, 0, GRAMMAR_FOREVER, &row));
        TRY(node_pair(r->k, NODE_SEQ, tag, row, &row));
    }
    return node_repeat(r->k, row, at_least_one, 1, out);
}

/* ---- formats ---- */

/* kind: NODE_SEQ for a sequence, NODE_ALT for "or". */
static mpk_status elements_node(tag_reader *r, const json_value *format, node_kind kind,
                                const node **out)
{
    const json_value *list;
    const node *child = NULL;
    node *all;
    TRY(list_of(r, format, "elements", &list));
    TRY(node_new(r->k, kind, &all));
    for (size_t i = 0; i < list->n; i++) {
        TRY(format_node(r, &list->items[i], &child));
        TRY(node_add(r->k, all, child));
    }
    *out = all;
    return MPK_OK;
}

static mpk_status sequence_node(tag_reader *r, const json_value *format, const node **out)
{
    return elements_node(r, format, NODE_SEQ, out);
}

static mpk_status or_node(tag_reader *r, const json_value *format, const node **out)
{
    return elements_node(r, format, NODE_ALT, out);
}

/* One of the texts, as it stands. */
static mpk_status choice_node(tag_reader *r, const json_value *format, const node **out)
{
    const json_value *list;
    str *texts;
    size_t n;
    TRY(list_of(r, format, "choices", &list));
    TRY(texts_of(r, list, "choices", &texts, &n));
    return node_texts(r->k, texts, n, out);
}

static mpk_status string_node(tag_reader *r, const json_value *format, const node **out)
{
    str value;
    TRY(text_of(r, format, "value", &value));
    return node_bytes(r->k, value, out);
}

static mpk_status schema_format_node(tag_reader *r, const json_value *format, const node **out)
{
    const json_value *schema = schema_of(format);
    CHECK(r->k->cx, schema, MPK_EFORMAT, "the structural tag lacks the schema \"json_schema\"");
    return schema_parse_node(r->k, schema, out);
}

static mpk_status regex_format_node(tag_reader *r, const json_value *format, const node **out)
{
    str pattern;
    TRY(text_of(r, format, "pattern", &pattern));
    return regex_parse_node(r->k, pattern, true, out);
}

static mpk_status grammar_format_node(tag_reader *r, const json_value *format, const node **out)
{
    str source;
    TRY(text_of(r, format, "grammar", &source));
    return ebnf_parse_node(r->k, source, out);
}

static mpk_status any_node(tag_reader *r, const json_value *format, const node **out)
{
    (void)format;
    return free_text(r, NULL, 0, out);
}

/* A new format is one row here and one function. */
static mpk_status by_type(tag_reader *r, const json_value *format, const node **out)
{
    static const struct {
        const char *name;
        mpk_status (*make)(tag_reader *r, const json_value *format, const node **out);
    } formats[] = {
        {"const_string", string_node},
        {"choice", choice_node},
        {"json_schema", schema_format_node},
        {"regex", regex_format_node},
        {"grammar", grammar_format_node},
        {"any_text", any_node},
        {"sequence", sequence_node},
        {"or", or_node},
        {"tag", tag_node},
        {"triggered_tags", triggered_node},
        {"tags_with_separator", row_node},
    };
    const json_value *type = json_get(format, "type");
    for (size_t i = 0; json_is(type, JSON_KIND_STRING) && i < sizeof formats / sizeof *formats; i++)
        if (str_is(type->text, formats[i].name))
            return formats[i].make(r, format, out);
    return fault(r, type,
                 "is not a format: const_string, choice, json_schema, regex, grammar, any_text, "
                 "sequence, or, tag, "
                 "triggered_tags and tags_with_separator are");
}

/* All recursion of formats passes through here, and is limited. */
static mpk_status format_node(tag_reader *r, const json_value *format, const node **out)
{
    CHECK(r->k->cx, r->nesting < GRAMMAR_MOST_NESTING, MPK_ELIMIT,
          "the structural tag is nested more than %d levels deep", GRAMMAR_MOST_NESTING);
    r->nesting++;
    TRY(by_type(r, format, out));
    r->nesting--;
    return MPK_OK;
}

/* "structures" and "triggers" are the older spelling of triggered_tags. */
mpk_status tag_parse_node(maker *k, const json_value *source, const node **out)
{
    tag_reader r = {.k = k};
    const json_value *format = json_get(source, "format");
    if (format)
        return format_node(&r, format, out);
    CHECK(
        k->cx, json_get(source, "structures"), MPK_EFORMAT,
        "a structural tag is an object with a \"format\", or with \"structures\" and \"triggers\"");
    return triggered_node(&r, source, out);
}
