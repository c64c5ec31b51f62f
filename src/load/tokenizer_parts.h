/* tokenizer_parts.h - what a tokenizer is made of; for the files tokenizer*.c alone.
 *
 *     tokenizer_json.c, tokenizer_vocab.c   a file's description -> struct tokenizer
 *     tokenizer_export.c                    struct tokenizer -> a GGUF file's description
 *     tokenizer.c                           the life of a tokenizer; encode: added tokens, then
 *                                           normalise, cut, merge
 *     tokenizer_text.c                      UTF-8, normalisation, classes of characters
 *     tokenizer_unicode.c                   tables: characters that the Unicode libraries do not
 *                                           agree on
 *     tokenizer_regex.c                     Oniguruma's regular expressions by PCRE2
 *     tokenizer_split.c                     steps that cut text
 *     tokenizer_bpe.c                       merges
 *     tokenizer_decode.c                    steps that undo
 */
#ifndef LOAD_TOKENIZER_PARTS_H
#define LOAD_TOKENIZER_PARTS_H

#include "base/map.h"
#include "load/tokenizer.h"

/* --- text: tokenizer_text.c --- */

/* The length in bytes of the character at at[0], in valid UTF-8. */
static inline size_t utf8_length(const char *at)
{
    return str_char_bytes(*at);
}
/* The character at at[0], in valid UTF-8. */
uint32_t utf8_get(const char *at);
/* Append a character. */
void utf8_add(text *t, uint32_t c);

bool utf8_is_valid(str s);

/* The bytes of a character that has begun but not ended. */
typedef struct utf8_rest {
    unsigned char at[4];
    unsigned n;
} utf8_rest;
/* Append n bytes to t as valid UTF-8; a character cut at the end stays in *rest. */
void utf8_add_valid(text *t, utf8_rest *rest, const char *bytes, size_t n);
/* The text ends: an unfinished character becomes U+FFFD. */
void utf8_end_valid(text *t, utf8_rest *rest);

/* Rust's char::is_whitespace, char::is_numeric, and the punctuation of the tokenizers library. */
bool char_is_space(uint32_t c);
bool char_is_numeric(uint32_t c);
bool char_is_punctuation(uint32_t c);
/* The lower-case form; U+0130 alone has two characters, the second is *second (else 0). */
uint32_t char_lower(uint32_t c, uint32_t *second);
bool char_is_mark(uint32_t c);
/* The library's normalisation tables are older than ours: true for characters that it leaves
 * unchanged. */
bool char_is_inert(uint32_t c);

/* GPT-2's representation of bytes by printable characters: the character of a byte; the byte of
 * a character, or -1. */
uint32_t byte_to_char(unsigned char byte);
int byte_from_char(uint32_t c);
/* The byte of a token <0xXX>, or -1. */
int byte_of_token(str token);

typedef enum normal_form { NORMAL_NFC, NORMAL_NFD, NORMAL_NFKC, NORMAL_NFKD } normal_form;
mpk_status normalize_unicode(mpk_context *cx, normal_form form, str in, text *out);

/* For a character that only tables newer than PCRE2's know: one of the same class and UTF-8
 * length that PCRE2 knows; otherwise c. */
uint32_t char_stand_in(uint32_t c);
/* Tables of tokenizer_unicode.c, used by the functions above. */
bool table_is_inert(uint32_t c);
bool table_is_new_punctuation(uint32_t c);
bool table_is_new_numeric(uint32_t c);
uint32_t table_new_lower(uint32_t c);

/* --- regular expressions: tokenizer_regex.c --- */

typedef struct regex regex;             /* compiled; read-only */
typedef struct regex_match regex_match; /* the memory of one thread's matching */

/* A text to search in.  Zero-initialise; subject_free. */
typedef struct subject {
    str original; /* borrowed */
    str shown;    /* of the same length as the original; the original itself, or copy */
    text copy;    /* original with stand-ins for the characters that have one */
} subject;

/* Compile a pattern in Oniguruma's syntax, as far as it is known here.  MPK_EUNSUPPORTED,
 * MPK_ENOMEM. */
mpk_status regex_compile(mpk_context *cx, arena *a, str pattern, regex **out);
/* Compile a pattern in PCRE2's own syntax. */
mpk_status regex_compile_native(mpk_context *cx, arena *a, str pattern, regex **out);
void regex_free(regex *r);

mpk_status regex_match_new(mpk_context *cx, regex_match **out);
void regex_match_free(regex_match *m);
/* Set the text to search in; it is copied only if it has characters with stand-ins. */
mpk_status subject_set(mpk_context *cx, subject *s, str original);
void subject_free(subject *s);
/* The first match at or after byte `from`: *found, *start, *end.  MPK_ELIMIT if it takes too
 * long. */
mpk_status regex_find(mpk_context *cx, regex_match *m, const regex *r, const subject *in,
                      size_t from, bool *found, size_t *start, size_t *end);

/* --- steps --- */

typedef enum step_kind {
    /* text -> text */
    STEP_NFC = NORMAL_NFC,
    STEP_NFD = NORMAL_NFD,
    STEP_NFKC = NORMAL_NFKC,
    STEP_NFKD = NORMAL_NFKD,
    STEP_LOWERCASE,
    STEP_STRIP_ACCENTS,
    STEP_STRIP,   /* white space: left, right */
    STEP_PREPEND, /* content, unless the text is empty */
    STEP_REPLACE, /* matches become content; also a decoder */
    STEP_BYTES,   /* every byte becomes its GPT-2 character */
    /* text -> pieces */
    STEP_PREFIX, /* content before a piece that does not begin with it, if scheme says so */
    STEP_SPLIT,  /* at what the matcher finds, by behavior */
    /* tokens -> text */
    STEP_UNBYTES, /* GPT-2 characters to bytes, all tokens together */
    /* content to a space; scheme never: also the first; else the first token's are dropped */
    STEP_METASPACE,
    STEP_BYTE_FALLBACK, /* <0xXX> */
    STEP_FUSE,          /* all tokens become one */
    STEP_STRIP_TOKEN,   /* up to left and right times content at a token's ends */
    STEP_JOIN,          /* a space between tokens: what the library does without a decoder */
} step_kind;

/* What a step matches. */
typedef enum match_kind {
    MATCH_REGEX,
    MATCH_LITERAL,
    MATCH_SPACE,
    MATCH_NUMERIC,
    MATCH_PUNCTUATION
} match_kind;

/* What becomes of matches when a piece is cut; tokenizer_split.c has an example of each. */
typedef enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
} split_behavior;

/* When a prefix is put: before every piece, before the first of the input, never. */
typedef enum prefix_scheme { PREFIX_ALWAYS, PREFIX_FIRST, PREFIX_NEVER } prefix_scheme;

/* One step of normalising, cutting or decoding; which fields count depends on the kind. */
typedef struct step {
    step_kind kind;
    match_kind match;
    regex *regex; /* MATCH_REGEX */
    str literal;  /* MATCH_LITERAL, not empty */
    str content;
    split_behavior behavior;
    bool invert; /* cut at what does not match */
    prefix_scheme scheme;
    uint32_t left, right; /* how often: left and right end */
} step;

enum { MAX_STEPS = 32 };
typedef struct steps {
    step at[MAX_STEPS];
    size_t n;
} steps;

/* --- the parts --- */

/* A slot of the map; for merges, rank is the order and id the token of the pair. */
typedef struct pair_slot {
    uint64_t key; /* left id << 32 | right id; UINT64_MAX: empty */
    uint32_t rank, id;
} pair_slot;

/* A hash map from 64-bit keys, capacity a power of two, at most half full. */
typedef struct pair_map {
    pair_slot *slots;
    size_t n, capacity;
} pair_map;

mpk_status pair_map_reserve(mpk_context *cx, arena *a, pair_map *m, size_t n);
/* Room must be reserved; an earlier value is replaced. */
void pair_map_put(pair_map *m, uint64_t key, uint32_t rank, uint32_t id);
const pair_slot *pair_map_get(const pair_map *m, uint64_t key);

/* A token that is searched for in the text before the model's vocabulary is used. */
typedef struct added_token {
    str text; /* searched for; normalised if `normalized` */
    str content;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} added_token;

/* The texts of added tokens as a tree of bytes: the longest one at a place is found in time
 * proportional to its length. */
typedef struct added_tree {
    pair_map edges;   /* node << 8 | byte -> node */
    uint32_t *tokens; /* for each node: 1 + index of the added token that ends here, or 0 */
    uint32_t n_nodes;
    bool first[256]; /* bytes with which some token begins */
} added_tree;

typedef enum merge_order {
    MERGE_BY_RANK, /* a list of merges, first ones first */
    MERGE_BY_SCORE /* any two whose joined text is a token, the highest score first */
} merge_order;

struct tokenizer {
    arena arena;
    str *tokens; /* [n_tokens] text; at NULL: the id is unused */
    bool *special;
    size_t n_tokens;
    map model_ids; /* of the model's vocabulary */
    map added_ids;
    VEC(added_token) added;
    added_tree raw_tree, normal_tree; /* tokens found before normalising, and after it */
    /* matches one character that is part of a word; NULL if no token needs it */
    regex *word;
    steps normalize, split, decode;
    /* BPE */
    merge_order order;
    pair_map merges;
    const float *scores; /* [n_tokens] */
    size_t longest_token_bytes;
    bool fuse_unk, byte_fallback, ignore_merges;
    int32_t unk_id;        /* -1: characters without a token give nothing */
    str prefix, suffix;    /* continuing_subword_prefix, end_of_word_suffix */
    int32_t byte_ids[256]; /* <0xXX>, -1 if missing */
    int32_t char_ids[256]; /* of the characters below U+0100, -1 if missing */
    /* around a text */
    tokenizer_ids before, after;
    int32_t bos_id, eos_id, eot_id, pad_id;
};

/* An empty tokenizer; the caller fills it, then calls tokenizer_finish.  MPK_ENOMEM. */
mpk_status tokenizer_new(mpk_context *cx, tokenizer **out);
/* Build the indexes over tokens and added tokens; the last call while a tokenizer is made. */
mpk_status tokenizer_finish(mpk_context *cx, tokenizer *t);
/* Merge number `rank`: two tokens become the one that is spelled as both.  Room in t->merges
 * must be reserved. */
mpk_status tokenizer_add_merge(mpk_context *cx, tokenizer *t, size_t rank, str left, str right);
/* The names that tokenizer_from_vocab knows for model gpt2; NULL after the last. */
const char *tokenizer_pre_name(size_t i);
/* Normalise a text into arena a. */
mpk_status tokenizer_normalize(mpk_context *cx, const tokenizer *t, arena *a, str in, str *out);
/* Append a step, zeroed except for its kind.  MPK_ELIMIT over MAX_STEPS. */
mpk_status steps_add(mpk_context *cx, steps *s, step_kind kind, step **out);
/* Split at a pattern by behavior. */
mpk_status steps_add_split(mpk_context *cx, tokenizer *t, str pattern, split_behavior behavior);
/* Replace a literal. */
mpk_status steps_add_replace(mpk_context *cx, steps *s, str literal, str content);

/* --- encoding --- */

/* A part of a word while pairs are merged. */
typedef struct symbol {
    int32_t id, before, after; /* -1: none */
    uint32_t start, n;         /* bytes of the word; n = 0: merged away */
} symbol;

/* A pair of neighbours that may merge. */
typedef struct merge_entry {
    uint64_t order; /* rank << 32 | place of the left symbol; the smallest merges first */
    uint32_t id;    /* of the result */
} merge_entry;

/* The scratch memory of one call of encode. */
typedef struct encoder {
    mpk_context *cx;
    const tokenizer *t;
    arena *out_arena;
    tokenizer_ids *out;
    regex_match *match;
    /* by step: the text that a cutting step made, while its pieces are processed */
    text buffers[MAX_STEPS];
    subject subjects[MAX_STEPS];
    text normal[2]; /* normalising goes from one to the other */
    symbol *symbols;
    size_t n_symbols, symbols_capacity;
    merge_entry *heap;
    size_t n_heap, heap_capacity;
    bool parse_special;
} encoder;

/* Normalise a text; the result is in *in, or in one of e->normal. */
mpk_status run_normalize(encoder *e, const steps *s, str *in);
/* Replace the matches of the step, appending to out. */
mpk_status run_replace(mpk_context *cx, regex_match *match, const step *s, str in, text *out);
/* Cut a piece by step k of t->split and those after it, then merge its words.  at_start: it
 * begins where the input does. */
mpk_status run_split(encoder *e, size_t k, str piece, bool at_start);
/* Append the ids of one word to e->out. */
mpk_status run_bpe(encoder *e, str word);
/* An iteration over the matches of a step, as the library does it: an empty match directly after
 * a match does not count. */
typedef struct finder {
    mpk_context *cx;
    regex_match *match;
    const step *step;
    const subject *in;
    size_t from, last_end;
    bool any;
    size_t start, end; /* of the match found last */
} finder;
mpk_status finder_next(finder *f, bool *found);

/* MPK_ENOMEM if the text ran out of memory. */
mpk_status text_check(mpk_context *cx, const text *t);

#endif
