/* tokenizer_json_steps.c - what stands around the model in tokenizer.json -> steps of a tokenizer.
 *
 * Each object with a "type" becomes one or a few steps (tokenizer_parts.h), in the order of the
 * document; the ids that a post-processor adds become `before` and `after`.  Called by
 * tokenizer_json.c, part by part.
 *
 *   {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}
 *       STEP_REPLACE " " by "▁", STEP_PREFIX "▁" for the first piece, STEP_SPLIT before each "▁" */
#include "load/tokenizer_json.h"

static const char *const behavior_names[] = {"Removed",        "Isolated",   "MergedWithPrevious",
                                             "MergedWithNext", "Contiguous", NULL};
static const char *const scheme_names[] = {"always", "first", "never", NULL};

/* --- normalizers --- */

/* A table for the types without options, and a branch for each of the others. A sequence adds its
 * parts to the same list of steps, in order. */
mpk_status doc_read_normalizer(doc_reader *r, const json_value *o)
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
    str type = doc_type(o);
    step *s = NULL;
    if (str_is(type, "Sequence"))
        return doc_read_sequence(r, o, "normalizers", doc_read_normalizer);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (str_is(type, plain[i].type)) {
            KNOWN(r, "normalizer", o, "type");
            return steps_add(r->cx, &r->t->normalize, plain[i].kind, &s);
        }
    if (str_is(type, "Prepend")) {
        KNOWN(r, "normalizer", o, "prepend");
        TRY(steps_add(r->cx, &r->t->normalize, STEP_PREPEND, &s));
        return doc_get_text(r, o, "prepend", true, &s->content);
    }
    if (str_is(type, "Replace")) {
        KNOWN(r, "normalizer", o, "pattern", "content");
        TRY(steps_add(r->cx, &r->t->normalize, STEP_REPLACE, &s));
        TRY(doc_get_pattern(r, o, s));
        return doc_get_text(r, o, "content", true, &s->content);
    }
    if (str_is(type, "Strip")) {
        bool left, right;
        KNOWN(r, "normalizer", o, "strip_left", "strip_right");
        TRY(doc_get_bool(r, o, "strip_left", false, &left));
        TRY(doc_get_bool(r, o, "strip_right", false, &right));
        TRY(steps_add(r->cx, &r->t->normalize, STEP_STRIP, &s));
        s->left = left;
        s->right = right;
        return MPK_OK;
    }
    return doc_refuse(r, "normalizer", o);
}

/* --- pre-tokenizers --- */

/* A step that cuts at single characters of a class. */
static mpk_status add_class_split(doc_reader *r, match_kind match, split_behavior behavior)
{
    step *s = NULL;
    TRY(steps_add(r->cx, &r->t->split, STEP_SPLIT, &s));
    s->match = match;
    s->behavior = behavior;
    return MPK_OK;
}

/* A step that puts `content` before a piece, by the scheme. */
static mpk_status add_prefix(doc_reader *r, str content, prefix_scheme scheme)
{
    step *s = NULL;
    TRY(steps_add(r->cx, &r->t->split, STEP_PREFIX, &s));
    s->content = content;
    s->scheme = scheme;
    return MPK_OK;
}

/* ByteLevel.  The expression is GPT-2's own, which the library has built in. */
static mpk_status read_byte_level(doc_reader *r, const json_value *o)
{
    bool prefix, use_regex;
    step *s = NULL;
    KNOWN(r, "pre-tokenizer", o, "add_prefix_space", "trim_offsets", "use_regex");
    TRY(doc_get_bool(r, o, "add_prefix_space", true, &prefix));
    TRY(doc_get_bool(r, o, "use_regex", true, &use_regex));
    if (prefix)
        TRY(add_prefix(r, STR(" "), PREFIX_ALWAYS));
    if (use_regex)
        TRY(steps_add_split(r->cx, r->t,
                            STR("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| "
                                "?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"),
                            SPLIT_ISOLATED));
    return steps_add(r->cx, &r->t->split, STEP_BYTES, &s);
}

/* When to put the marker first; old files have add_prefix_space, newer ones prepend_scheme. */
static mpk_status get_scheme(doc_reader *r, const json_value *o, prefix_scheme *out)
{
    int scheme;
    bool old;
    TRY(doc_get_choice(r, o, "prepend_scheme", scheme_names, PREFIX_ALWAYS, &scheme));
    TRY(doc_get_bool(r, o, "add_prefix_space", true, &old));
    CHECK(r->cx, old || scheme == PREFIX_NEVER || !json_get(o, "prepend_scheme"), MPK_EFORMAT,
          "tokenizer.json: \"add_prefix_space\" and \"prepend_scheme\" of Metaspace contradict "
          "each other");
    *out = old ? (prefix_scheme)scheme : PREFIX_NEVER;
    return MPK_OK;
}

/* Metaspace, as three steps: spaces become the marker, the marker is put before the text, and text
 * is cut before each marker. "a b" becomes "\u2581a\u2581b", and then the pieces "\u2581a" and
 * "\u2581b". */
static mpk_status read_metaspace(doc_reader *r, const json_value *o)
{
    str replacement;
    prefix_scheme scheme;
    bool cut;
    step *s = NULL;
    KNOWN(r, "pre-tokenizer", o, "replacement", "prepend_scheme", "add_prefix_space", "split",
          "str_rep");
    TRY(doc_get_text(r, o, "replacement", true, &replacement));
    CHECK(r->cx, replacement.n && utf8_length(replacement.at) == replacement.n, MPK_EFORMAT,
          "tokenizer.json: \"replacement\" of Metaspace is not one character");
    TRY(get_scheme(r, o, &scheme));
    TRY(doc_get_bool(r, o, "split", true, &cut));
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

/* Split: a cut at a literal or an expression.  The format has no default for the behaviour;
 * `invert` cuts at what does not match. */
static mpk_status read_split(doc_reader *r, const json_value *o)
{
    step *s = NULL;
    int behavior;
    KNOWN(r, "pre-tokenizer", o, "pattern", "behavior", "invert");
    TRY(steps_add(r->cx, &r->t->split, STEP_SPLIT, &s));
    TRY(doc_get_pattern(r, o, s));
    TRY(doc_get_choice(r, o, "behavior", behavior_names, -1, &behavior));
    CHECK(r->cx, behavior >= 0, MPK_EFORMAT, "tokenizer.json: Split has no \"behavior\"");
    s->behavior = (split_behavior)behavior;
    return doc_get_bool(r, o, "invert", false, &s->invert);
}

/* Whitespace: words and runs of other characters, by Rust's definition of a word, which differs
 * from Oniguruma's. */
static mpk_status read_whitespace(doc_reader *r)
{
    step *s = NULL;
    TRY(steps_add(r->cx, &r->t->split, STEP_SPLIT, &s));
    s->behavior = SPLIT_REMOVED;
    s->invert = true;
#define RUST_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"
    return regex_compile_native(
        r->cx, &r->t->arena,
        STR("[" RUST_WORD "]+|[^" RUST_WORD "\\x{9}-\\x{d}\\x{20}\\x{85}\\p{Z}]+"), &s->regex);
}

/* A cut at one character, which is dropped: CharDelimiterSplit of "-" makes "a", "b" of "a-b". */
static mpk_status read_delimiter(doc_reader *r, const json_value *o)
{
    step *s = NULL;
    KNOWN(r, "pre-tokenizer", o, "delimiter");
    TRY(steps_add(r->cx, &r->t->split, STEP_SPLIT, &s));
    s->match = MATCH_LITERAL;
    s->behavior = SPLIT_REMOVED;
    TRY(doc_get_text(r, o, "delimiter", true, &s->literal));
    CHECK(r->cx, s->literal.n && utf8_length(s->literal.at) == s->literal.n, MPK_EFORMAT,
          "tokenizer.json: \"delimiter\" of CharDelimiterSplit is not one character");
    return MPK_OK;
}

/* A branch for each type of the library, by its name there.  Bert's is two steps, and a Sequence
 * its parts in order. Digits with individual_digits cuts 123 into 1, 2, 3, without into 123. */
mpk_status doc_read_pre_tokenizer(doc_reader *r, const json_value *o)
{
    str type = doc_type(o);
    bool yes;
    int behavior;
    if (str_is(type, "Sequence"))
        return doc_read_sequence(r, o, "pretokenizers", doc_read_pre_tokenizer);
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
        TRY(doc_get_bool(r, o, "individual_digits", false, &yes));
        return add_class_split(r, MATCH_NUMERIC, yes ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
    }
    if (str_is(type, "Punctuation")) {
        KNOWN(r, "pre-tokenizer", o, "behavior");
        TRY(doc_get_choice(r, o, "behavior", behavior_names, SPLIT_ISOLATED, &behavior));
        return add_class_split(r, MATCH_PUNCTUATION, (split_behavior)behavior);
    }
    return doc_refuse(r, "pre-tokenizer", o);
}

/* --- decoders --- */

/* Decoders become steps in the order of the file. Fuse joins all tokens; a stream needs no step for
 * it, but steps after it act on the whole text. */
mpk_status doc_read_decoder(doc_reader *r, const json_value *o)
{
    str type = doc_type(o);
    steps *list = &r->t->decode;
    step *s = NULL;
    if (str_is(type, "Sequence"))
        return doc_read_sequence(r, o, "decoders", doc_read_decoder);
    if (str_is(type, "ByteLevel"))
        return steps_add(r->cx, list, STEP_UNBYTES, &s);
    if (str_is(type, "ByteFallback"))
        return steps_add(r->cx, list, STEP_BYTE_FALLBACK, &s);
    if (str_is(type, "Fuse"))
        return steps_add(r->cx, list, STEP_FUSE, &s);
    if (str_is(type, "Metaspace")) {
        TRY(steps_add(r->cx, list, STEP_METASPACE, &s));
        TRY(doc_get_text(r, o, "replacement", true, &s->content));
        return get_scheme(r, o, &s->scheme);
    }
    if (str_is(type, "Replace")) {
        KNOWN(r, "decoder", o, "pattern", "content");
        TRY(steps_add(r->cx, list, STEP_REPLACE, &s));
        TRY(doc_get_pattern(r, o, s));
        return doc_get_text(r, o, "content", true, &s->content);
    }
    if (str_is(type, "Strip")) {
        KNOWN(r, "decoder", o, "content", "start", "stop");
        TRY(steps_add(r->cx, list, STEP_STRIP_TOKEN, &s));
        TRY(doc_get_text(r, o, "content", true, &s->content));
        /* start and stop count how often this one character is cut off */
        CHECK(r->cx, s->content.n && utf8_length(s->content.at) == s->content.n, MPK_EFORMAT,
              "tokenizer.json: \"content\" of decoder Strip is not one character");
        TRY(doc_get_count(r, o, "start", &s->left));
        return doc_get_count(r, o, "stop", &s->right);
    }
    return doc_refuse(r, "decoder", o);
}

/* --- post-processors --- */

/* A later processor puts its tokens outside of those of an earlier one: before [A], after [Z],
 * then before [B], after [Y] give B A text Z Y. */
mpk_status doc_surround(doc_reader *r, const tokenizer_ids *before, const tokenizer_ids *after)
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

/* The ids of a special token of a template. */
static mpk_status add_template_ids(doc_reader *r, const json_value *o, str name, tokenizer_ids *ids)
{
    const json_value *list = json_get(json_find(json_get(o, "special_tokens"), name), "ids");
    CHECK(r->cx, json_is(list, JSON_KIND_LIST), MPK_EFORMAT,
          "tokenizer.json: TemplateProcessing does not define \"%.*s\"", SHOWN(name));
    for (size_t i = 0; i < list->n; i++) {
        CHECK(r->cx, doc_is_below(&list->items[i], DOC_MAX_IDS), MPK_EFORMAT,
              "tokenizer.json: TemplateProcessing gives \"%.*s\" an id that is none", SHOWN(name));
        PUSH(r->cx, &r->t->arena, ids, (int32_t)list->items[i].integer);
    }
    return MPK_OK;
}

/* TemplateProcessing.  Only the form for a single text is used: tokens, the text once, tokens;
 * sides[0] are those before the text.  "pair" is for two texts, which no caller has.
 * [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}] puts <s> before the text. */
static mpk_status read_template(doc_reader *r, const json_value *o)
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
        CHECK(r->cx, doc_is_text(name) || (doc_is_text(sequence) && str_is(sequence->text, "A")),
              MPK_EUNSUPPORTED,
              "tokenizer.json: item %zu of TemplateProcessing is neither a SpecialToken nor "
              "Sequence A",
              i);
        if (doc_is_text(name))
            TRY(add_template_ids(r, o, name->text, &sides[texts > 0]));
        else
            texts++;
    }
    CHECK(r->cx, texts == 1, MPK_EUNSUPPORTED,
          "tokenizer.json: TemplateProcessing has the text %zu times, not once", texts);
    return doc_surround(r, &sides[0], &sides[1]);
}

/* ["text", id] of BertProcessing and RobertaProcessing. */
static mpk_status add_pair_id(doc_reader *r, const json_value *o, const char *key,
                              tokenizer_ids *ids)
{
    const json_value *pair = json_get(o, key);
    CHECK(r->cx,
          json_is(pair, JSON_KIND_LIST) && pair->n == 2 &&
              doc_is_below(&pair->items[1], DOC_MAX_IDS),
          MPK_EFORMAT, "tokenizer.json: \"%s\" of %.*s is not [text, id]", key, SHOWN(doc_type(o)));
    PUSH(r->cx, &r->t->arena, ids, (int32_t)pair->items[1].integer);
    return MPK_OK;
}

/* Bert's and Roberta's processors are templates in another spelling. */
mpk_status doc_read_post_processor(doc_reader *r, const json_value *o)
{
    str type = doc_type(o);
    if (str_is(type, "Sequence"))
        return doc_read_sequence(r, o, "processors", doc_read_post_processor);
    if (str_is(type, "ByteLevel")) /* about offsets only */
        return MPK_OK;
    if (str_is(type, "TemplateProcessing"))
        return read_template(r, o);
    if (str_is(type, "BertProcessing") || str_is(type, "RobertaProcessing")) {
        tokenizer_ids before = {0}, after = {0};
        KNOWN(r, "post-processor", o, "sep", "cls", "trim_offsets", "add_prefix_space");
        TRY(add_pair_id(r, o, "cls", &before));
        TRY(add_pair_id(r, o, "sep", &after));
        return doc_surround(r, &before, &after);
    }
    return doc_refuse(r, "post-processor", o);
}
