/* tokenizer_json.c - tokenizer.json (and tokenizer_config.json) -> struct tokenizer.
 *
 * Each object with a "type" becomes one or a few steps.  A type, an option or a value that is not known here is refused
 * by name: a tokenizer that is nearly right gives wrong answers that nobody sees.
 */
#include "load/tokenizer_parts.h"

#include "base/file.h"
#include "base/json.h"

/* --- reading values --- */

typedef struct reader {
    mpk_context *cx;
    tokenizer *t;
    int depth; /* of sequences */
} reader;

enum { MAX_DEPTH = 8, MAX_FILE_BYTES = 1 << 28, MAX_IDS = 1 << 24, MAX_GAP = 1 << 16 };

/* For %.*s: as much of a foreign name as a message has room for. */
#define SHOWN(s) (int)((s).n < 100 ? (s).n : 100), (s).at

static str type_of(const json_value *object)
{
    const json_value *type = json_get(object, "type");
    return json_is(type, JSON_KIND_STRING) ? type->text : STR("(none)");
}

static bool is_text(const json_value *v)
{
    return json_is(v, JSON_KIND_STRING);
}

/* A whole number from 0 to limit - 1. */
static bool is_below(const json_value *v, int64_t limit)
{
    return v && v->is_integer && v->integer >= 0 && v->integer < limit;
}

/* Refuse keys of object that are not in the list, which ends with NULL. */
static mpk_status known_keys(reader *r, const char *what, const json_value *object, const char *const *known)
{
    for (size_t k = 0; k < object->n; k++) {
        str key = object->items[k].key, type = type_of(object);
        bool found = str_is(key, "type");
        for (size_t i = 0; known[i] && !found; i++)
            found = str_is(key, known[i]);
        CHECK(r->cx, found, MPK_EUNSUPPORTED, "tokenizer.json: option \"%.*s\" of %s %.*s is not supported", SHOWN(key),
              what, SHOWN(type));
    }
    return MPK_OK;
}
#define KNOWN(r, what, object, ...) TRY(known_keys(r, what, object, (const char *const[]){__VA_ARGS__, NULL}))

static mpk_status get_bool(reader *r, const json_value *object, const char *key, bool otherwise, bool *out)
{
    const json_value *v = json_get(object, key);
    *out = otherwise;
    CHECK(r->cx, !v || v->kind == JSON_KIND_BOOL, MPK_EFORMAT, "tokenizer.json: \"%s\" of %.*s is not true or false",
          key, SHOWN(type_of(object)));
    if (v)
        *out = v->boolean;
    return MPK_OK;
}

/* A copy of a JSON string in the tokenizer. */
static mpk_status copy_str(reader *r, const json_value *v, str *out)
{
    const char *copy = arena_copy(&r->t->arena, v->text.at, v->text.n);
    CHECK(r->cx, copy, MPK_ENOMEM, "out of memory for a tokenizer");
    *out = (str){copy, v->text.n};
    return MPK_OK;
}

static mpk_status get_str(reader *r, const json_value *object, const char *key, bool needed, str *out)
{
    const json_value *v = json_get(object, key);
    *out = (str){0};
    if (!needed && !v)
        return MPK_OK;
    CHECK(r->cx, is_text(v), MPK_EFORMAT, "tokenizer.json: \"%s\" of %.*s is not a text", key, SHOWN(type_of(object)));
    return copy_str(r, v, out);
}

static mpk_status get_count(reader *r, const json_value *object, const char *key, uint32_t *out)
{
    const json_value *v = json_get(object, key);
    CHECK(r->cx, is_below(v, 1 << 20), MPK_EFORMAT, "tokenizer.json: \"%s\" of %.*s is not a count", key,
          SHOWN(type_of(object)));
    *out = (uint32_t)v->integer;
    return MPK_OK;
}

/* {"String": ...} or {"Regex": ...} into the matcher of a step. */
static mpk_status get_pattern(reader *r, const json_value *object, step *s)
{
    const json_value *v = json_get(object, "pattern");
    const json_value *literal = json_get(v, "String"), *pattern = json_get(v, "Regex");
    if (is_text(pattern)) {
        s->match = MATCH_REGEX;
        return regex_compile(r->cx, &r->t->arena, pattern->text, &s->regex);
    }
    CHECK(r->cx, is_text(literal) && literal->text.n, MPK_EFORMAT,
          "tokenizer.json: %.*s has no pattern {\"String\"} or {\"Regex\"} that is not empty", SHOWN(type_of(object)));
    s->match = MATCH_LITERAL;
    return copy_str(r, literal, &s->literal);
}

/* One of names, which ends with NULL, as its index. */
static mpk_status get_choice(reader *r, const json_value *object, const char *key, const char *const *names,
                             int otherwise, int *out)
{
    const json_value *v = json_get(object, key);
    *out = otherwise;
    if (!v)
        return MPK_OK;
    str name = is_text(v) ? v->text : STR("not a text");
    for (int i = 0; names[i]; i++)
        if (is_text(v) && str_is(name, names[i])) {
            *out = i;
            return MPK_OK;
        }
    FAIL(r->cx, MPK_EUNSUPPORTED, "tokenizer.json: \"%s\" of %.*s is \"%.*s\", which is not known", key,
         SHOWN(type_of(object)), SHOWN(name));
}

static const char *const behavior_names[] = {"Removed",        "Isolated",   "MergedWithPrevious",
                                             "MergedWithNext", "Contiguous", NULL};
static const char *const scheme_names[] = {"always", "first", "never", NULL};

typedef mpk_status (*read_one)(reader *r, const json_value *object);

/* The items of a Sequence, in order. */
static mpk_status read_sequence(reader *r, const json_value *object, const char *key, read_one one)
{
    const json_value *list = json_get(object, key);
    CHECK(r->cx, json_is(list, JSON_KIND_LIST), MPK_EFORMAT, "tokenizer.json: a Sequence without a list \"%s\"", key);
    CHECK(r->cx, ++r->depth <= MAX_DEPTH, MPK_ELIMIT, "tokenizer.json: sequences are nested more than %d deep",
          MAX_DEPTH);
    for (size_t i = 0; i < list->n; i++)
        TRY(one(r, &list->items[i]));
    r->depth--;
    return MPK_OK;
}

static mpk_status unknown(reader *r, const char *what, const json_value *object)
{
    CHECK(r->cx, json_is(object, JSON_KIND_OBJECT), MPK_EFORMAT, "tokenizer.json: a %s is not an object", what);
    FAIL(r->cx, MPK_EUNSUPPORTED, "tokenizer.json: %s \"%.*s\" is not supported", what, SHOWN(type_of(object)));
}

/* --- normalizers --- */

static mpk_status read_normalizer(reader *r, const json_value *o)
{
    static const struct {
        const char *type;
        step_kind kind;
    } plain[] = {{"NFC", STEP_NFC},
                 {"NFD", STEP_NFD},
                 {"NFKC", STEP_NFKC},
                 {"NFKD", STEP_NFKD},
                 {"Lowercase", STEP_LOWERCASE},
                 {"StripAccents", STEP_STRIP_ACCENTS},
                 {"ByteLevel", STEP_BYTES}};
    str type = type_of(o);
    step *s = NULL;
    if (str_is(type, "Sequence"))
        return read_sequence(r, o, "normalizers", read_normalizer);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (str_is(type, plain[i].type)) {
            KNOWN(r, "normalizer", o, "type");
            return steps_add(r->cx, &r->t->normalize, plain[i].kind, &s);
        }
    if (str_is(type, "Prepend")) {
        KNOWN(r, "normalizer", o, "prepend");
        TRY(steps_add(r->cx, &r->t->normalize, STEP_PREPEND, &s));
        return get_str(r, o, "prepend", true, &s->content);
    }
    if (str_is(type, "Replace")) {
        KNOWN(r, "normalizer", o, "pattern", "content");
        TRY(steps_add(r->cx, &r->t->normalize, STEP_REPLACE, &s));
        TRY(get_pattern(r, o, s));
        return get_str(r, o, "content", true, &s->content);
    }
    if (str_is(type, "Strip")) {
        bool left, right;
        KNOWN(r, "normalizer", o, "strip_left", "strip_right");
        TRY(get_bool(r, o, "strip_left", false, &left));
        TRY(get_bool(r, o, "strip_right", false, &right));
        TRY(steps_add(r->cx, &r->t->normalize, STEP_STRIP, &s));
        s->left = left;
        s->right = right;
        return MPK_OK;
    }
    return unknown(r, "normalizer", o);
}

/* --- pre-tokenizers --- */

static mpk_status add_class_split(reader *r, match_kind match, split_behavior behavior)
{
    step *s = NULL;
    TRY(steps_add(r->cx, &r->t->split, STEP_SPLIT, &s));
    s->match = match;
    s->behavior = behavior;
    return MPK_OK;
}

static mpk_status add_prefix(reader *r, str content, prefix_scheme scheme)
{
    step *s = NULL;
    TRY(steps_add(r->cx, &r->t->split, STEP_PREFIX, &s));
    s->content = content;
    s->scheme = scheme;
    return MPK_OK;
}

static mpk_status read_byte_level(reader *r, const json_value *o)
{
    bool prefix, use_regex;
    step *s = NULL;
    KNOWN(r, "pre-tokenizer", o, "add_prefix_space", "trim_offsets", "use_regex");
    TRY(get_bool(r, o, "add_prefix_space", true, &prefix));
    TRY(get_bool(r, o, "use_regex", true, &use_regex));
    if (prefix)
        TRY(add_prefix(r, STR(" "), PREFIX_ALWAYS));
    if (use_regex)
        TRY(steps_add_split(r->cx, r->t,
                            STR("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"),
                            SPLIT_ISOLATED));
    return steps_add(r->cx, &r->t->split, STEP_BYTES, &s);
}

/* Old files say add_prefix_space, newer ones prepend_scheme. */
static mpk_status get_scheme(reader *r, const json_value *o, prefix_scheme *out)
{
    int scheme;
    bool old;
    TRY(get_choice(r, o, "prepend_scheme", scheme_names, PREFIX_ALWAYS, &scheme));
    TRY(get_bool(r, o, "add_prefix_space", true, &old));
    CHECK(r->cx, old || scheme == PREFIX_NEVER || !json_get(o, "prepend_scheme"), MPK_EFORMAT,
          "tokenizer.json: \"add_prefix_space\" and \"prepend_scheme\" of Metaspace contradict each other");
    *out = old ? (prefix_scheme)scheme : PREFIX_NEVER;
    return MPK_OK;
}

static mpk_status read_metaspace(reader *r, const json_value *o)
{
    str replacement;
    prefix_scheme scheme;
    bool cut;
    step *s = NULL;
    KNOWN(r, "pre-tokenizer", o, "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep");
    TRY(get_str(r, o, "replacement", true, &replacement));
    CHECK(r->cx, replacement.n && utf8_length(replacement.at) == replacement.n, MPK_EFORMAT,
          "tokenizer.json: \"replacement\" of Metaspace is not one character");
    TRY(get_scheme(r, o, &scheme));
    TRY(get_bool(r, o, "split", true, &cut));
    TRY(steps_add_replace(r->cx, &r->t->split, STR(" "), replacement));
    TRY(add_prefix(r, replacement, scheme));
    if (!cut)
        return MPK_OK;
    TRY(steps_add(r->cx, &r->t->split, STEP_SPLIT, &s));
    s->match = MATCH_LITERAL;
    s->literal = replacement;
    s->behavior = SPLIT_MERGED_WITH_NEXT;
    return MPK_OK;
}

static mpk_status read_split(reader *r, const json_value *o)
{
    step *s = NULL;
    int behavior;
    KNOWN(r, "pre-tokenizer", o, "pattern", "behavior", "invert");
    TRY(steps_add(r->cx, &r->t->split, STEP_SPLIT, &s));
    TRY(get_pattern(r, o, s));
    TRY(get_choice(r, o, "behavior", behavior_names, -1, &behavior));
    CHECK(r->cx, behavior >= 0, MPK_EFORMAT, "tokenizer.json: Split has no \"behavior\"");
    s->behavior = (split_behavior)behavior;
    return get_bool(r, o, "invert", false, &s->invert);
}

/* Words and runs of other characters; Rust's idea of a word, which is not quite Oniguruma's. */
static mpk_status read_whitespace(reader *r)
{
    step *s = NULL;
    TRY(steps_add(r->cx, &r->t->split, STEP_SPLIT, &s));
    s->behavior = SPLIT_REMOVED;
    s->invert = true;
#define RUST_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"
    return regex_compile_native(r->cx, &r->t->arena,
                                STR("[" RUST_WORD "]+|[^" RUST_WORD "\\x{9}-\\x{d}\\x{20}\\x{85}\\p{Z}]+"), &s->regex);
}

static mpk_status read_delimiter(reader *r, const json_value *o)
{
    step *s = NULL;
    KNOWN(r, "pre-tokenizer", o, "delimiter");
    TRY(steps_add(r->cx, &r->t->split, STEP_SPLIT, &s));
    s->match = MATCH_LITERAL;
    s->behavior = SPLIT_REMOVED;
    TRY(get_str(r, o, "delimiter", true, &s->literal));
    CHECK(r->cx, s->literal.n && utf8_length(s->literal.at) == s->literal.n, MPK_EFORMAT,
          "tokenizer.json: \"delimiter\" of CharDelimiterSplit is not one character");
    return MPK_OK;
}

static mpk_status read_pre_tokenizer(reader *r, const json_value *o)
{
    str type = type_of(o);
    bool yes;
    int behavior;
    if (str_is(type, "Sequence"))
        return read_sequence(r, o, "pretokenizers", read_pre_tokenizer);
    if (str_is(type, "ByteLevel"))
        return read_byte_level(r, o);
    if (str_is(type, "Metaspace"))
        return read_metaspace(r, o);
    if (str_is(type, "Split"))
        return read_split(r, o);
    if (str_is(type, "CharDelimiterSplit"))
        return read_delimiter(r, o);
    if (str_is(type, "Whitespace"))
        return read_whitespace(r);
    if (str_is(type, "WhitespaceSplit"))
        return add_class_split(r, MATCH_SPACE, SPLIT_REMOVED);
    if (str_is(type, "BertPreTokenizer")) {
        TRY(add_class_split(r, MATCH_SPACE, SPLIT_REMOVED));
        return add_class_split(r, MATCH_PUNCTUATION, SPLIT_ISOLATED);
    }
    if (str_is(type, "Digits")) {
        KNOWN(r, "pre-tokenizer", o, "individual_digits");
        TRY(get_bool(r, o, "individual_digits", false, &yes));
        return add_class_split(r, MATCH_NUMERIC, yes ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
    }
    if (str_is(type, "Punctuation")) {
        KNOWN(r, "pre-tokenizer", o, "behavior");
        TRY(get_choice(r, o, "behavior", behavior_names, SPLIT_ISOLATED, &behavior));
        return add_class_split(r, MATCH_PUNCTUATION, (split_behavior)behavior);
    }
    return unknown(r, "pre-tokenizer", o);
}

/* --- decoders --- */

static mpk_status read_decoder(reader *r, const json_value *o)
{
    str type = type_of(o);
    steps *list = &r->t->decode;
    step *s = NULL;
    if (str_is(type, "Sequence"))
        return read_sequence(r, o, "decoders", read_decoder);
    if (str_is(type, "ByteLevel"))
        return steps_add(r->cx, list, STEP_UNBYTES, &s);
    if (str_is(type, "ByteFallback"))
        return steps_add(r->cx, list, STEP_BYTE_FALLBACK, &s);
    if (str_is(type, "Fuse"))
        return steps_add(r->cx, list, STEP_FUSE, &s);
    if (str_is(type, "Metaspace")) {
        TRY(steps_add(r->cx, list, STEP_METASPACE, &s));
        TRY(get_str(r, o, "replacement", true, &s->content));
        return get_scheme(r, o, &s->scheme);
    }
    if (str_is(type, "Replace")) {
        KNOWN(r, "decoder", o, "pattern", "content");
        TRY(steps_add(r->cx, list, STEP_REPLACE, &s));
        TRY(get_pattern(r, o, s));
        return get_str(r, o, "content", true, &s->content);
    }
    if (str_is(type, "Strip")) {
        KNOWN(r, "decoder", o, "content", "start", "stop");
        TRY(steps_add(r->cx, list, STEP_STRIP_TOKEN, &s));
        TRY(get_str(r, o, "content", true, &s->content));
        CHECK(r->cx, s->content.n && utf8_length(s->content.at) == s->content.n, MPK_EFORMAT,
              "tokenizer.json: \"content\" of decoder Strip is not one character");
        TRY(get_count(r, o, "start", &s->left));
        return get_count(r, o, "stop", &s->right);
    }
    return unknown(r, "decoder", o);
}

/* --- post-processors --- */

/* Put ids around what is there: a template's own ids stand outside of those of the processors before it. */
static mpk_status surround(reader *r, const tokenizer_ids *before, const tokenizer_ids *after)
{
    tokenizer *t = r->t;
    tokenizer_ids all = {0};
    for (size_t i = 0; i < before->n; i++)
        PUSH(r->cx, &t->arena, &all, before->at[i]);
    for (size_t i = 0; i < t->before.n; i++)
        PUSH(r->cx, &t->arena, &all, t->before.at[i]);
    t->before = all;
    for (size_t i = 0; i < after->n; i++)
        PUSH(r->cx, &t->arena, &t->after, after->at[i]);
    return MPK_OK;
}

/* The ids of a template's special token. */
static mpk_status add_template_ids(reader *r, const json_value *o, str name, tokenizer_ids *ids)
{
    const json_value *list = json_get(json_find(json_get(o, "special_tokens"), name), "ids");
    CHECK(r->cx, json_is(list, JSON_KIND_LIST), MPK_EFORMAT,
          "tokenizer.json: TemplateProcessing does not define \"%.*s\"", SHOWN(name));
    for (size_t i = 0; i < list->n; i++) {
        CHECK(r->cx, is_below(&list->items[i], MAX_IDS), MPK_EFORMAT,
              "tokenizer.json: TemplateProcessing gives \"%.*s\" an id that is none", SHOWN(name));
        PUSH(r->cx, &r->t->arena, ids, (int32_t)list->items[i].integer);
    }
    return MPK_OK;
}

static mpk_status read_template(reader *r, const json_value *o)
{
    tokenizer_ids sides[2] = {{0}, {0}};
    const json_value *list = json_get(o, "single");
    size_t texts = 0;
    KNOWN(r, "post-processor", o, "single", "pair", "special_tokens");
    CHECK(r->cx, json_is(list, JSON_KIND_LIST), MPK_EFORMAT,
          "tokenizer.json: TemplateProcessing has no list \"single\"");
    for (size_t i = 0; i < list->n; i++) {
        const json_value *name = json_get(json_get(&list->items[i], "SpecialToken"), "id");
        const json_value *sequence = json_get(json_get(&list->items[i], "Sequence"), "id");
        CHECK(r->cx, is_text(name) || (is_text(sequence) && str_is(sequence->text, "A")), MPK_EUNSUPPORTED,
              "tokenizer.json: item %zu of TemplateProcessing is neither a SpecialToken nor Sequence A", i);
        if (is_text(name))
            TRY(add_template_ids(r, o, name->text, &sides[texts > 0]));
        else
            texts++;
    }
    CHECK(r->cx, texts == 1, MPK_EUNSUPPORTED, "tokenizer.json: TemplateProcessing has the text %zu times, not once",
          texts);
    return surround(r, &sides[0], &sides[1]);
}

/* ["text", id] of BertProcessing and RobertaProcessing. */
static mpk_status add_pair_id(reader *r, const json_value *o, const char *key, tokenizer_ids *ids)
{
    const json_value *pair = json_get(o, key);
    CHECK(r->cx, json_is(pair, JSON_KIND_LIST) && pair->n == 2 && is_below(&pair->items[1], MAX_IDS), MPK_EFORMAT,
          "tokenizer.json: \"%s\" of %.*s is not [text, id]", key, SHOWN(type_of(o)));
    PUSH(r->cx, &r->t->arena, ids, (int32_t)pair->items[1].integer);
    return MPK_OK;
}

static mpk_status read_post_processor(reader *r, const json_value *o)
{
    str type = type_of(o);
    if (str_is(type, "Sequence"))
        return read_sequence(r, o, "processors", read_post_processor);
    if (str_is(type, "ByteLevel")) /* offsets only */
        return MPK_OK;
    if (str_is(type, "TemplateProcessing"))
        return read_template(r, o);
    if (str_is(type, "BertProcessing") || str_is(type, "RobertaProcessing")) {
        tokenizer_ids before = {0}, after = {0};
        KNOWN(r, "post-processor", o, "sep", "cls", "trim_offsets", "add_prefix_space");
        TRY(add_pair_id(r, o, "cls", &before));
        TRY(add_pair_id(r, o, "sep", &after));
        return surround(r, &before, &after);
    }
    return unknown(r, "post-processor", o);
}

/* --- the model --- */

static mpk_status read_vocab(reader *r, const json_value *vocab)
{
    tokenizer *t = r->t;
    int64_t most = -1;
    CHECK(r->cx, json_is(vocab, JSON_KIND_OBJECT), MPK_EFORMAT, "tokenizer.json: model has no \"vocab\" of text to id");
    for (size_t i = 0; i < vocab->n; i++) {
        const json_value *v = &vocab->items[i];
        CHECK(r->cx, is_below(v, MAX_IDS), MPK_EFORMAT,
              "tokenizer.json: token \"%.*s\" has an id that is none (ids are below %d)", SHOWN(v->key), MAX_IDS);
        if (v->integer > most)
            most = v->integer;
    }
    CHECK(r->cx, most < (int64_t)(4 * vocab->n + MAX_GAP), MPK_EFORMAT,
          "tokenizer.json: a vocabulary of %zu tokens has an id %lld", vocab->n, (long long)most);
    t->n_tokens = (size_t)(most + 1);
    NEW(r->cx, &t->arena, t->tokens, t->n_tokens);
    for (size_t i = 0; i < vocab->n; i++) {
        const json_value *v = &vocab->items[i];
        str *token = &t->tokens[v->integer];
        CHECK(r->cx, !token->at, MPK_EFORMAT, "tokenizer.json: id %lld belongs to \"%.*s\" and to \"%.*s\"",
              (long long)v->integer, SHOWN(*token), SHOWN(v->key));
        token->at = arena_copy(&t->arena, v->key.at, v->key.n);
        token->n = v->key.n;
        CHECK(r->cx, token->at, MPK_ENOMEM, "out of memory for a vocabulary");
        TRY(map_put(r->cx, &t->arena, &t->model_ids, *token, (uint64_t)v->integer));
    }
    return MPK_OK;
}

/* A merge is "left right" or ["left", "right"]. */
static mpk_status split_merge(reader *r, const json_value *v, size_t i, str *left, str *right)
{
    if (json_is(v, JSON_KIND_LIST) && v->n == 2 && is_text(&v->items[0]) && is_text(&v->items[1])) {
        *left = v->items[0].text;
        *right = v->items[1].text;
        return MPK_OK;
    }
    str both = v->text;
    const char *space = is_text(v) ? memchr(both.at, ' ', both.n) : NULL;
    CHECK(r->cx, space && !memchr(space + 1, ' ', (size_t)(both.at + both.n - space - 1)), MPK_EFORMAT,
          "tokenizer.json: merge %zu is not two tokens with a space between", i);
    *left = (str){both.at, (size_t)(space - both.at)};
    *right = (str){space + 1, (size_t)(both.at + both.n - space - 1)};
    return MPK_OK;
}

mpk_status tokenizer_add_merge(mpk_context *cx, tokenizer *t, size_t rank, str left, str right)
{
    uint64_t left_id, right_id, id;
    CHECK(cx, map_get(&t->model_ids, left, &left_id), MPK_EFORMAT, "merge %zu names \"%.*s\", which is no token", rank,
          SHOWN(left));
    CHECK(cx, map_get(&t->model_ids, right, &right_id), MPK_EFORMAT, "merge %zu names \"%.*s\", which is no token",
          rank, SHOWN(right));
    size_t skip = t->prefix.n; /* the mark of a token that continues a word goes when it is joined to one before */
    CHECK(cx, right.n >= skip, MPK_EFORMAT, "merge %zu: \"%.*s\" is shorter than the prefix of such tokens", rank,
          SHOWN(right));
    text joined = {0};
    text_add(&joined, left.at, left.n);
    text_add(&joined, right.at + skip, right.n - skip);
    mpk_status status = text_check(cx, &joined);
    if (status == MPK_OK && !map_get(&t->model_ids, (str){joined.at, joined.n}, &id))
        status =
            status_fail(cx, MPK_EFORMAT, "merge %zu gives \"%.*s\", which is no token", rank, (int)joined.n, joined.at);
    text_free(&joined);
    TRY(status);
    pair_map_put(&t->merges, left_id << 32 | right_id, (uint32_t)rank, (uint32_t)id);
    return MPK_OK;
}

static mpk_status read_merges(reader *r, const json_value *merges)
{
    CHECK(r->cx, json_is(merges, JSON_KIND_LIST), MPK_EFORMAT, "tokenizer.json: model has no list \"merges\"");
    TRY(pair_map_reserve(r->cx, &r->t->arena, &r->t->merges, merges->n));
    for (size_t i = 0; i < merges->n; i++) {
        str left, right;
        TRY(split_merge(r, &merges->items[i], i, &left, &right));
        NOTE(r->cx, tokenizer_add_merge(r->cx, r->t, i, left, right), "reading tokenizer.json");
    }
    return MPK_OK;
}

static mpk_status read_model(reader *r, const json_value *o)
{
    tokenizer *t = r->t;
    str unk;
    const json_value *dropout = json_get(o, "dropout");
    CHECK(r->cx, json_is(o, JSON_KIND_OBJECT), MPK_EFORMAT, "tokenizer.json has no \"model\"");
    CHECK(r->cx, str_is(type_of(o), "BPE"), MPK_EUNSUPPORTED, "tokenizer.json: model \"%.*s\" is not supported, BPE is",
          SHOWN(type_of(o)));
    KNOWN(r, "model", o, "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
          "byte_fallback", "ignore_merges", "vocab", "merges");
    CHECK(r->cx, !dropout || (dropout->kind == JSON_KIND_NUMBER && dropout->number == 0), MPK_EUNSUPPORTED,
          "tokenizer.json: \"dropout\" of BPE gives random ids and is not supported");
    TRY(get_str(r, o, "unk_token", false, &unk));
    TRY(get_str(r, o, "continuing_subword_prefix", false, &t->prefix));
    TRY(get_str(r, o, "end_of_word_suffix", false, &t->suffix));
    TRY(get_bool(r, o, "fuse_unk", false, &t->fuse_unk));
    TRY(get_bool(r, o, "byte_fallback", false, &t->byte_fallback));
    TRY(get_bool(r, o, "ignore_merges", false, &t->ignore_merges));
    TRY(read_vocab(r, json_get(o, "vocab")));
    TRY(read_merges(r, json_get(o, "merges")));
    uint64_t id;
    if (unk.at) {
        CHECK(r->cx, map_get(&t->model_ids, unk, &id), MPK_EFORMAT,
              "tokenizer.json: the unknown token \"%.*s\" is no token", SHOWN(unk));
        t->unk_id = (int32_t)id;
    }
    return MPK_OK;
}

/* --- added tokens --- */

static mpk_status read_added(reader *r, const json_value *o, size_t i, added_token *a)
{
    CHECK(r->cx, json_is(o, JSON_KIND_OBJECT), MPK_EFORMAT, "tokenizer.json: added token %zu is not an object", i);
    KNOWN(r, "added token", o, "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special");
    const json_value *id = json_get(o, "id");
    CHECK(r->cx, is_below(id, MAX_IDS), MPK_EFORMAT, "tokenizer.json: added token %zu has no id", i);
    *a = (added_token){.id = (int32_t)id->integer};
    TRY(get_str(r, o, "content", true, &a->content));
    CHECK(r->cx, a->content.n, MPK_EUNSUPPORTED, "tokenizer.json: added token %d is an empty text", a->id);
    TRY(get_bool(r, o, "single_word", false, &a->single_word));
    TRY(get_bool(r, o, "lstrip", false, &a->lstrip));
    TRY(get_bool(r, o, "rstrip", false, &a->rstrip));
    TRY(get_bool(r, o, "special", false, &a->special));
    TRY(get_bool(r, o, "normalized", !a->special, &a->normalized));
    a->text = a->content;
    if (a->normalized)
        TRY(tokenizer_normalize(r->cx, r->t, &r->t->arena, a->content, &a->text));
    return MPK_OK;
}

/* The library does not believe the ids of added tokens: a token of the model keeps its id, others are counted on. */
static mpk_status check_added_id(reader *r, const added_token *a, size_t model_tokens, int64_t *last)
{
    uint64_t id;
    if (!map_get(&r->t->model_ids, a->content, &id) && !map_get(&r->t->added_ids, a->content, &id)) {
        id = *last >= (int64_t)model_tokens || (*last >= 0 && !model_tokens) ? (uint64_t)*last + 1 : model_tokens;
    }
    CHECK(r->cx, (int32_t)id == a->id, MPK_EUNSUPPORTED,
          "tokenizer.json: added token \"%.*s\" says id %d, but its place in the vocabulary is %llu", SHOWN(a->content),
          a->id, (unsigned long long)id);
    if (a->id > *last)
        *last = a->id;
    return MPK_OK;
}

/* Room in the table of tokens for id. */
static mpk_status grow_tokens(reader *r, size_t id)
{
    tokenizer *t = r->t;
    if (id < t->n_tokens)
        return MPK_OK;
    str *more;
    NEW(r->cx, &t->arena, more, id + 1);
    if (t->n_tokens)
        memcpy(more, t->tokens, t->n_tokens * sizeof *more);
    t->tokens = more;
    t->n_tokens = id + 1;
    return MPK_OK;
}

static mpk_status read_added_tokens(reader *r, const json_value *list)
{
    tokenizer *t = r->t;
    size_t model_tokens = t->model_ids.n;
    int64_t last = -1, most = -1;
    CHECK(r->cx, !list || list->kind == JSON_KIND_LIST, MPK_EFORMAT, "tokenizer.json: \"added_tokens\" is not a list");
    for (size_t i = 0; list && i < list->n; i++) {
        added_token a;
        TRY(read_added(r, &list->items[i], i, &a));
        TRY(check_added_id(r, &a, model_tokens, &last));
        TRY(map_put(r->cx, &t->arena, &t->added_ids, a.content, (uint64_t)a.id));
        PUSH(r->cx, &t->arena, &t->added, a);
        most = a.id > most ? a.id : most;
    }
    TRY(grow_tokens(r, (size_t)(most + 1 > 0 ? most : 0)));
    NEW(r->cx, &t->arena, t->special, t->n_tokens);
    for (size_t i = 0; i < t->added.n; i++) { /* decoded as they are searched for: so does the library */
        t->tokens[t->added.at[i].id] = t->added.at[i].text;
        t->special[t->added.at[i].id] |= t->added.at[i].special;
    }
    return MPK_OK;
}

/* --- tokenizer_config.json --- */

/* The id of a token that the config names, as text or as an object with "content"; -1 if it does not. */
static int32_t config_id(const tokenizer *t, const json_value *config, const char *key)
{
    const json_value *v = json_get(config, key);
    if (json_is(v, JSON_KIND_OBJECT))
        v = json_get(v, "content");
    return is_text(v) ? tokenizer_find(t, v->text) : -1;
}

static bool is_true(const json_value *v)
{
    return json_is(v, JSON_KIND_BOOL) && v->boolean;
}

/* BOS, EOS and padding; add_bos_token and add_eos_token add what the post-processor does not add already. */
static mpk_status read_config(reader *r, const json_value *config)
{
    tokenizer *t = r->t;
    tokenizer_ids before = {0}, after = {0};
    t->bos_id = config_id(t, config, "bos_token");
    t->eos_id = config_id(t, config, "eos_token");
    t->pad_id = config_id(t, config, "pad_token");
    bool has_bos = t->before.n && t->before.at[0] == t->bos_id;
    bool has_eos = t->after.n && t->after.at[t->after.n - 1] == t->eos_id;
    if (is_true(json_get(config, "add_bos_token")) && t->bos_id >= 0 && !has_bos)
        PUSH(r->cx, &t->arena, &before, t->bos_id);
    if (is_true(json_get(config, "add_eos_token")) && t->eos_id >= 0 && !has_eos)
        PUSH(r->cx, &t->arena, &after, t->eos_id);
    return surround(r, &before, &after);
}

/* The ids around a text must be ids: whoever reads them indexes with them. */
static mpk_status check_ids(reader *r, const tokenizer_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        CHECK(r->cx, (size_t)ids->at[i] < r->t->n_tokens, MPK_EFORMAT,
              "tokenizer.json: the post-processor adds id %d, but there are %zu tokens", ids->at[i], r->t->n_tokens);
    return MPK_OK;
}

/* --- the file --- */

static mpk_status read_part(reader *r, const json_value *root, const char *key, read_one one)
{
    const json_value *v = json_get(root, key);
    return v ? one(r, v) : MPK_OK;
}

static mpk_status read_root(reader *r, const json_value *root, const json_value *config)
{
    const json_value *version = json_get(root, "version");
    step *s = NULL;
    CHECK(r->cx, json_is(root, JSON_KIND_OBJECT), MPK_EFORMAT, "tokenizer.json is not an object");
    CHECK(r->cx, !version || (is_text(version) && str_is(version->text, "1.0")), MPK_EUNSUPPORTED,
          "tokenizer.json: only version \"1.0\" is known");
    TRY(read_model(r, json_get(root, "model")));
    TRY(read_part(r, root, "normalizer", read_normalizer));
    TRY(read_part(r, root, "pre_tokenizer", read_pre_tokenizer));
    TRY(read_part(r, root, "decoder", read_decoder));
    if (!json_get(root, "decoder"))
        TRY(steps_add(r->cx, &r->t->decode, STEP_JOIN, &s));
    TRY(read_part(r, root, "post_processor", read_post_processor));
    TRY(read_added_tokens(r, json_get(root, "added_tokens")));
    TRY(check_ids(r, &r->t->before));
    TRY(check_ids(r, &r->t->after));
    TRY(tokenizer_finish(r->cx, r->t));
    return config ? read_config(r, config) : MPK_OK;
}

static mpk_status read_documents(reader *r, arena *a, str json, str config)
{
    const json_value *root, *config_root = NULL;
    NOTE(r->cx, json_parse(r->cx, a, json, &root), "reading tokenizer.json");
    if (config.n)
        NOTE(r->cx, json_parse(r->cx, a, config, &config_root), "reading tokenizer_config.json");
    TRY(tokenizer_new(r->cx, &r->t));
    return read_root(r, root, config_root);
}

mpk_status tokenizer_from_json_bytes(mpk_context *cx, str json, str config, tokenizer **out)
{
    reader r = {.cx = cx};
    arena documents = {0};
    mpk_status status = read_documents(&r, &documents, json, config);
    arena_free(&documents);
    if (status == MPK_OK)
        *out = r.t;
    else
        tokenizer_free(r.t);
    return status;
}

static mpk_status read_files(mpk_context *cx, arena *a, const char *path, str *json, str *config)
{
    const char *folder = path, *file = path;
    if (file_is_folder(path)) {
        TRY(file_join(cx, a, path, "tokenizer.json", &file));
    } else {
        const char *slash = strrchr(path, '/');
        folder = slash ? arena_copy(a, path, (size_t)(slash - path + 1)) : ".";
        CHECK(cx, folder, MPK_ENOMEM, "out of memory for a path");
    }
    TRY(file_read(cx, a, file, MAX_FILE_BYTES, json));
    const char *beside;
    TRY(file_join(cx, a, folder, "tokenizer_config.json", &beside));
    *config = (str){0};
    return file_exists(beside) ? file_read(cx, a, beside, MAX_FILE_BYTES, config) : MPK_OK;
}

mpk_status tokenizer_from_json(mpk_context *cx, const char *path, tokenizer **out)
{
    arena a = {0};
    str json, config;
    mpk_status status = read_files(cx, &a, path, &json, &config);
    if (status == MPK_OK)
        status = tokenizer_from_json_bytes(cx, json, config, out);
    if (status != MPK_OK)
        status = status_note(cx, status, "loading the tokenizer of %s", path);
    arena_free(&a);
    return status;
}
