/* tokenizer_export.c - a tokenizer that a tokenizer.json described -> what a GGUF file carries.
 *
 * GGUF knows a tokenizer by names: the kind of BPE, and for byte-level BPE the way text is cut.  A
 * name is found by trial: a tokenizer is made from the vocabulary under each name, as any reader of
 * the file would make it, and must give the same ids as the original.  A sentencepiece vocabulary
 * has scores in place of merges; a token's score is the negative rank of the first merge that makes
 * it, which merges in the same order:
 *
 *   merges  "▁ t", "h e", "▁t he"        scores  "▁t" -0, "he" -1, "▁the" -2
 *
 * Called by gguf_describe.c.  Cost: a tokenizer for each name tried. */
#include "load/tokenizer_parts.h"

#include <stdio.h>
#include <stdlib.h>

/* An export while it is built. */
typedef struct exporter {
    mpk_context *cx;
    arena *a;
    const tokenizer *t;
    tokenizer_vocab v;
    VEC(str) texts;                /* texts by which names are compared */
    const tokenizer_ids *expected; /* [texts.n] */
} exporter;

/* Copy a text to the arena of the vocabulary. */
static mpk_status copy_name(exporter *e, const char *name, str *out)
{
    *out = (str){arena_copy(e->a, name, strlen(name)), strlen(name)};
    CHECK(e->cx, out->at, MPK_ENOMEM, "out of memory for a vocabulary");
    return MPK_OK;
}

/* ---- the tokens ---- */

/* Texts and types of all ids; an added token has its content, which is searched for in texts. Ids
 * without a text get "[PAD7]", as llama.cpp's converter names them: a GGUF vocabulary has no
 * gaps. */
static mpk_status list_tokens(exporter *e, size_t least)
{
    const tokenizer *t = e->t;
    size_t n = t->n_tokens > least ? t->n_tokens : least;
    str *tokens;
    int32_t *types;
    char name[32];
    NEW(e->cx, e->a, tokens, n);
    NEW(e->cx, e->a, types, n);
    for (size_t i = 0; i < n; i++) {
        types[i] = TOKENIZER_TYPE_NORMAL;
        if (i < t->n_tokens && t->tokens[i].at) {
            tokens[i] = t->tokens[i];
            continue;
        }
        snprintf(name, sizeof name, "[PAD%zu]", i);
        TRY(copy_name(e, name, &tokens[i]));
        types[i] = TOKENIZER_TYPE_UNUSED;
    }
    for (size_t i = 0; i < t->added.n; i++) {
        const added_token *added = &t->added.at[i];
        /* last, since an added token may stand at an id of the model's own */
        tokens[added->id] = added->content;
        types[added->id] = added->special ? TOKENIZER_TYPE_CONTROL : TOKENIZER_TYPE_USER_DEFINED;
    }
    /* "<0x41>" and its like: readers recognise them by type, not by text */
    for (int b = 0; t->byte_fallback && b < 256; b++)
        if (t->byte_ids[b] >= 0)
            types[t->byte_ids[b]] = TOKENIZER_TYPE_BYTE;
    if (t->unk_id >= 0)
        types[t->unk_id] = TOKENIZER_TYPE_UNKNOWN;
    e->v.tokens = tokens;
    e->v.types = types;
    e->v.n_tokens = n;
    return MPK_OK;
}

/* ---- merges and scores ---- */

static int compare_ranks(const void *left, const void *right)
{
    const pair_slot *a = left, *b = right;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* The merges, sorted by rank. */
static mpk_status list_slots(exporter *e, pair_slot **out, size_t *n_out)
{
    const pair_map *m = &e->t->merges;
    pair_slot *slots;
    size_t n = 0;
    NEW(e->cx, e->a, slots, m->n);
    for (size_t i = 0; i < m->capacity; i++)
        if (m->slots[i].key != UINT64_MAX)
            slots[n++] = m->slots[i];
    qsort(slots, n, sizeof *slots, compare_ranks);
    *out = slots;
    *n_out = n;
    return MPK_OK;
}

/* The merges as "left right", in the order of the ranks. */
static mpk_status list_merges(exporter *e, const pair_slot *slots, size_t n)
{
    str *merges;
    NEW(e->cx, e->a, merges, n);
    for (size_t i = 0; i < n; i++) {
        str left = e->t->tokens[slots[i].key >> 32],
            right = e->t->tokens[slots[i].key & UINT32_MAX];
        char *both;
        NEW(e->cx, e->a, both, left.n + right.n + 2);
        memcpy(both, left.at, left.n);
        both[left.n] = ' ';
        memcpy(both + left.n + 1, right.at, right.n);
        merges[i] = (str){both, left.n + right.n + 1};
    }
    e->v.merges = merges;
    e->v.n_merges = n;
    return MPK_OK;
}

/* Scores: minus the rank of the first merge that makes the token; tokens that no merge makes
 * come last. */
static mpk_status list_scores(exporter *e, const pair_slot *slots, size_t n)
{
    float *scores;
    NEW(e->cx, e->a, scores, e->v.n_tokens);
    for (size_t i = 0; i < e->v.n_tokens; i++)
        scores[i] = -1e9f;
    for (size_t i = n; i-- > 0;) /* so the first merge of a token is written last */
        scores[slots[i].id] = -(float)i;
    e->v.scores = scores;
    return MPK_OK;
}

/* ---- ids ---- */

/* GGUF can express that one token comes first or last, and which, by its role; more tokens
 * cannot be written. */
static mpk_status take_around(exporter *e, const tokenizer_ids *ids, const char *where, int32_t *id,
                              int32_t *add)
{
    *add = ids->n != 0;
    if (!ids->n)
        return MPK_OK;
    CHECK(e->cx, ids->n == 1 && (*id < 0 || *id == ids->at[0]), MPK_EUNSUPPORTED,
          "the tokenizer puts %zu tokens %s a text; a GGUF file can name one, which is BOS or EOS",
          ids->n, where);
    *id = ids->at[0];
    return MPK_OK;
}

/* Ids by role, and whether BOS and EOS come around a text. */
static mpk_status list_ids(exporter *e)
{
    const tokenizer *t = e->t;
    tokenizer_vocab *v = &e->v;
    v->bos_id = t->bos_id;
    v->eos_id = t->eos_id;
    v->eot_id = t->eot_id;
    v->unk_id = t->unk_id;
    v->pad_id = t->pad_id;
    TRY(take_around(e, &t->before, "before", &v->bos_id, &v->add_bos));
    return take_around(e, &t->after, "after", &v->eos_id, &v->add_eos);
}

/* ---- finding the name ---- */

/* Contractions, numbers, marks, lines, spaces, scripts with and without spaces, marks on letters,
 * surrogates. */
static const char *const samples[] = {
    "Hello, world! It's 3 o'clock; WE'LL see what they'Ve done, I'd say.",
    " leading, and trailing spaces   ",
    "1 12 123 1234 12345 1234567890, 3.14159e-10 and 0x1F; \xc2\xbd \xe2\x85\xa7 \xd9\xa3\xd9\xa4",
    "\n\nint main(void)\n{\n\t\treturn x[i] += ~y <<= 2;  // done\r\n}\n\n\n   \n",
    "tabs\t\tand   many    spaces\xc2\xa0no-break \xe3\x80\x80wide",
    "!!!???...---***///(([[{{}}]])) $5.00 a+b=c <|x|> #$%^&",
    "na\xc3\xafve caf\xc3\xa9 \xc3\x85ngstr\xc3\xb6m stra\xc3\x9f"
    "e e\xcc\x81 a\xcc\x8a",
    "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82, \xd0\xbc\xd0\xb8\xd1\x80! "
    "\xce\xb3\xce\xb5\xce\xb9\xce\xac",
    "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c\xe3\x80\x82 "
    "\xe3\x81\x93\xe3\x82\x93"
    "\xe3\x81\xab\xe3\x81\xa1\xe3\x81\xaf \xec\x95\x88\xeb\x85\x95",
    "\xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d\xe0\xa4\xa4\xe0\xa5\x87 "
    "\xe0\xb8\xaa\xe0\xb8\xa7\xe0\xb8\xb1"
    "\xe0\xb8\xaa\xe0\xb8\x94\xe0\xb8\xb5 \xd8\xb3\xd9\x84\xd8\xa7\xd9\x85",
    "\xf0\x9f\x98\x80\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb \xe2\x9c\x93 "
    "\xe2\x80\x9cquoted\xe2\x80\x9d"
    "\xe2\x80\xa6 \xef\xbc\xa1\xef\xbc\x91",
};

enum { TOKEN_SAMPLES = 4096 };

/* The texts to compare with: the samples, and pairs of the vocabulary's own tokens, at most
 * TOKEN_SAMPLES of them. */
static mpk_status list_texts(exporter *e)
{
    size_t n = e->t->n_tokens, stride = n / TOKEN_SAMPLES + 1;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        PUSH(e->cx, e->a, &e->texts, str_from(samples[i]));
    for (size_t i = 0; i + 1 < n; i += stride) {
        str s;
        const int32_t pair[] = {(int32_t)i, (int32_t)(i + 1)};
        TRY(tokenizer_decode(e->cx, e->t, e->a, pair, 2, TOKENIZER_SKIP_SPECIAL, &s));
        PUSH(e->cx, e->a, &e->texts, s);
    }
    return MPK_OK;
}

/* The ids of all texts, with special tokens, as a reader of the file would get them. */
static mpk_status encode_texts(exporter *e, const tokenizer *t, arena *a, tokenizer_ids *ids)
{
    for (size_t i = 0; i < e->texts.n; i++)
        TRY(tokenizer_encode(e->cx, t, a, e->texts.at[i].at, e->texts.at[i].n,
                             TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL, &ids[i]));
    return MPK_OK;
}

/* *same stays true only if every text has the same ids. */
static mpk_status compare(exporter *e, const tokenizer *t, arena *a, bool *same)
{
    tokenizer_ids *ids;
    NEW(e->cx, a, ids, e->texts.n);
    TRY(encode_texts(e, t, a, ids));
    for (size_t i = 0; *same && i < e->texts.n; i++)
        *same =
            ids[i].n == e->expected[i].n &&
            (!ids[i].n || memcmp(ids[i].at, e->expected[i].at, ids[i].n * sizeof *ids[i].at) == 0);
    return MPK_OK;
}

/* Does a reader of the vocabulary, as it is now, get the same ids?  No if a tokenizer cannot be
 * made of it. */
static mpk_status try_vocab(exporter *e, bool *same)
{
    tokenizer *t;
    arena scratch = {0};
    mpk_status status = tokenizer_from_vocab(e->cx, &e->v, &t);
    *same = status == MPK_OK;
    if (status == MPK_OK) {
        status = compare(e, t, &scratch, same);
        tokenizer_free(t);
    } else if (status != MPK_ENOMEM) {
        status_clear(e->cx);
        status = MPK_OK;
    }
    arena_free(&scratch);
    return status;
}

/* The first name under which all texts have the same ids. */
static mpk_status find_cutting(exporter *e)
{
    bool same = false;
    e->v.model = STR("gpt2");
    for (size_t i = 0; tokenizer_pre_name(i); i++) {
        e->v.pre = str_from(tokenizer_pre_name(i));
        TRY(try_vocab(e, &same));
        if (same)
            return MPK_OK;
    }
    FAIL(e->cx, MPK_EUNSUPPORTED,
         "none of the ways to cut text that GGUF files name gives this tokenizer's ids: it cannot "
         "be written");
}

/* Sentencepiece: try with and without a space before a text. */
static mpk_status find_prefix(exporter *e)
{
    bool same = false;
    e->v.model = STR("llama");
    e->v.pre = STR("default");
    e->v.n_merges = 0;
    for (e->v.add_space_prefix = 1; e->v.add_space_prefix >= 0; e->v.add_space_prefix--) {
        TRY(try_vocab(e, &same));
        if (same)
            return MPK_OK;
    }
    FAIL(e->cx, MPK_EUNSUPPORTED,
         "this tokenizer falls back to bytes, but merges otherwise than the sentencepiece "
         "vocabularies of GGUF files: "
         "it "
         "cannot be written");
}

/* Byte fallback means a sentencepiece vocabulary, with scores; all others are byte-level, with
 * merges. The ids that the original gives to the test texts are found once; each attempt is
 * compared with them. */
static mpk_status export_vocab(exporter *e, size_t n_tokens)
{
    pair_slot *slots = NULL;
    size_t n_slots = 0;
    tokenizer_ids *expected;
    TRY(list_tokens(e, n_tokens));
    TRY(list_slots(e, &slots, &n_slots));
    TRY(list_ids(e));
    TRY(list_texts(e));
    NEW(e->cx, e->a, expected, e->texts.n);
    TRY(encode_texts(e, e->t, e->a, expected));
    e->expected = expected;
    if (e->t->byte_fallback) {
        TRY(list_scores(e, slots, n_slots));
        return find_prefix(e);
    }
    TRY(list_merges(e, slots, n_slots));
    return find_cutting(e);
}

/* n_tokens: at least this many tokens, the rows of the embedding. Texts lie in `a` or in t. */
mpk_status tokenizer_to_vocab(mpk_context *cx, arena *a, const tokenizer *t, size_t n_tokens,
                              tokenizer_vocab *out)
{
    exporter e = {.cx = cx, .a = a, .t = t, .v = TOKENIZER_VOCAB_EMPTY};
    TRY(export_vocab(&e, n_tokens));
    *out = e.v;
    return MPK_OK;
}
