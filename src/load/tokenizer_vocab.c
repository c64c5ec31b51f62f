/* tokenizer_vocab.c - the vocabulary of a GGUF file -> struct tokenizer.
 *
 * GGUF names the pre-tokenizer instead of describing it.  Here each name has the steps of the
 * model's own tokenizer.json; a model that normalises (Qwen2: NFC) normalises here too.  A name
 * that is not in the table is refused: a wrong pre-tokenizer still gives ids, only worse ones.
 * A new name is a row of pre_tokenizers, and nothing else if its pattern is known.  Called by
 * gguf_config.c, and by tokenizer_export.c, which tries the names one after the other.
 */
#include "load/tokenizer_parts.h"

#include <stdio.h>

/* Words of GPT-2; then of the models after Llama 3, which differ in how they take numbers and
 * marks. */
#define GPT2_WORDS \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES_AND_SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3_WORDS                                            \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| " \
                 "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES
#define QWEN2_WORDS \
    CONTRACTIONS    \
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES
#define QWEN35_WORDS                                  \
    CONTRACTIONS                                      \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| " \
    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES
/* o200k: a word begins with letters that are not small, or ends with letters that are not large. */
#define O200K_LARGE "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_WORDS                                                                           \
    "[^\\r\\n\\p{L}\\p{N}]?" O200K_LARGE "*" O200K_SMALL "+" CONTRACTIONS                     \
    "?|[^\\r\\n\\p{L}\\p{N}]?" O200K_LARGE "+" O200K_SMALL "*" CONTRACTIONS "?|\\p{N}{1,3}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_AND_SPACES
/* Mistral's: as o200k, but no contractions, and each digit is a word. */
#define TEKKEN_WORDS                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?" O200K_LARGE "*" O200K_SMALL "+"           \
    "|[^\\r\\n\\p{L}\\p{N}]?" O200K_LARGE "+" O200K_SMALL "*|\\p{N}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_AND_SPACES
#define SEED_WORDS \
    CONTRACTIONS   \
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" LINES_AND_SPACES
/* Numbers, then Chinese and Japanese, then words that may begin with a mark. */
#define DEEPSEEK3_CJK "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define DEEPSEEK3_WORDS                                      \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" \
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES_AND_SPACES
/* The sets that DeepSeek lists: cased letters outside of CJK; marks; CJK and Hangul. */
#define DEEPSEEK_LETTERS                                                                           \
    "\\x{41}-\\x{5A}\\x{61}-\\x{7A}\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-" \
    "\\x{1BF}"                                                                                     \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}" \
    "\\x{386}"                                                                                     \
    "\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{"    \
    "52F}"                                                                                         \
    "\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{"     \
    "1CBA}"                                                                                        \
    "\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{"   \
    "1F15}"                                                                                        \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{"    \
    "1F5B}\\x{1F5D}"                                                                               \
    "\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{"    \
    "1FC6}-\\x{1FCC}"                                                                              \
    "\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{"   \
    "1FFC}\\x{2102}"                                                                               \
    "\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}" \
    "-\\x{212D}"                                                                                   \
    "\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{"     \
    "2184}"                                                                                        \
    "\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{"    \
    "A66D}"                                                                                        \
    "\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{"   \
    "ABBF}"                                                                                        \
    "\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{"  \
    "1044F}"                                                                                       \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}"         \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
#define DEEPSEEK_MARKS                                                                        \
    "\\x{21}-\\x{2F}\\x{3A}-\\x{7E}\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}" \
    "\\x{3000}-\\x{3002}"
#define DEEPSEEK_CJK "\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}"

enum { MAX_PATTERNS = 6 };

/* A pre-tokenizer by its name in GGUF. */
typedef struct pre_tokenizer {
    const char *name;
    bool nfc, ignore_merges, add_bos;
    const char *patterns[MAX_PATTERNS]; /* each isolates its matches, one after the other */
} pre_tokenizer;

static const pre_tokenizer pre_tokenizers[] = {
    {"gpt-2", false, false, false, {GPT2_WORDS}},
    {"mpt", false, false, false, {GPT2_WORDS}},
    {"smollm", false, false, false, {"\\p{N}", GPT2_WORDS}},
    {"starcoder", false, false, false, {"\\p{N}", GPT2_WORDS}},
    {"refact", false, false, false, {"\\p{N}", GPT2_WORDS}},
    {"command-r", false, false, false, {"\\p{N}", GPT2_WORDS}},
    {"llama-bpe", false, true, true, {LLAMA3_WORDS}},
    {"dbrx", false, false, false, {LLAMA3_WORDS}},
    {"smaug-bpe", false, false, false, {LLAMA3_WORDS}},
    {"glm4", false, true, false, {LLAMA3_WORDS}},
    {"chatglm-bpe", false, false, false, {LLAMA3_WORDS}},
    {"olmo", false, false, false, {GPT2_WORDS}},
    {"exaone4", false, false, false, {GPT2_WORDS}},
    {"seed-coder", false, false, false, {SEED_WORDS}},
    {"tekken", false, true, true, {TEKKEN_WORDS}},
    {"hunyuan-dense", false, false, false, {"\\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3_WORDS}},
    {"deepseek-v3", false, false, false, {"\\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3_WORDS}},
    {"gpt-4o", false, false, false, {O200K_WORDS}},
    {"llama4", false, false, false, {O200K_WORDS}},
    {"minimax-m2", false, false, false, {O200K_WORDS}},
    {"qwen2", true, false, false, {QWEN2_WORDS}},
    {"stablelm2", false, false, false, {QWEN2_WORDS}},
    {"hunyuan", false, false, false, {QWEN2_WORDS}},
    {"solar-open", false, false, false, {QWEN2_WORDS}},
    {"qwen35", false, false, false, {QWEN35_WORDS}},
    {"falcon", false, false, false, {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"}},
    /* \s+$ is written so that it is not tried again within spaces where it has failed */
    {"deepseek-llm",
     false,
     false,
     false,
     {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+", "\\s?[" DEEPSEEK_MARKS "]+", "(?<!\\s)\\s+$",
      "[" DEEPSEEK_CJK "]+", "\\p{N}+"}},
    {"deepseek-coder",
     false,
     false,
     false,
     {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[" DEEPSEEK_CJK "]+", "\\p{N}"}},
};

const char *tokenizer_pre_name(size_t i)
{
    return i < sizeof pre_tokenizers / sizeof *pre_tokenizers ? pre_tokenizers[i].name : NULL;
}

/* The tokenizer while it is made, and the file's vocabulary. */
typedef struct maker {
    mpk_context *cx;
    tokenizer *t;
    const tokenizer_vocab *v;
} maker;

/* Copy and index the tokens.  They must be valid UTF-8, since characters are read from them
 * without checks. */
static mpk_status copy_tokens(maker *m)
{
    tokenizer *t = m->t;
    const tokenizer_vocab *v = m->v;
    CHECK(m->cx, v->n_tokens && v->n_tokens < 1 << 24, MPK_EFORMAT, "the vocabulary has %zu tokens",
          v->n_tokens);
    t->n_tokens = v->n_tokens;
    NEW(m->cx, &t->arena, t->tokens, t->n_tokens);
    NEW(m->cx, &t->arena, t->special, t->n_tokens);
    for (size_t i = 0; i < v->n_tokens; i++) {
        str token = v->tokens[i];
        CHECK(m->cx, utf8_is_valid(token), MPK_EFORMAT,
              "token %zu of the vocabulary is not valid UTF-8", i);
        const char *copy = arena_copy(&t->arena, token.at, token.n);
        CHECK(m->cx, copy, MPK_ENOMEM, "out of memory for a vocabulary");
        t->tokens[i] = (str){copy, token.n};
        uint64_t other;
        if (!token.n) /* padding: an id without a text */
            continue;
        CHECK(m->cx, !map_get(&t->model_ids, token, &other), MPK_EFORMAT,
              "tokens %llu and %zu of the vocabulary are both \"%.*s\"", (unsigned long long)other,
              i, STR_ARG(token));
        TRY(map_put(m->cx, &t->arena, &t->model_ids, t->tokens[i], i));
    }
    return MPK_OK;
}

/* Control and unknown tokens are special; user-defined ones are searched for in any text. */
static mpk_status copy_types(maker *m)
{
    tokenizer *t = m->t;
    for (size_t i = 0; m->v->types && i < t->n_tokens; i++) {
        int32_t type = m->v->types[i];
        bool special = type == TOKENIZER_TYPE_CONTROL || type == TOKENIZER_TYPE_UNKNOWN;
        t->special[i] = special;
        if ((!special && type != TOKENIZER_TYPE_USER_DEFINED) || !t->tokens[i].n)
            continue;
        added_token a = {
            .text = t->tokens[i], .content = t->tokens[i], .id = (int32_t)i, .special = special};
        PUSH(m->cx, &t->arena, &t->added, a);
    }
    return MPK_OK;
}

/* Merges are texts "left right"; both must be tokens. */
static mpk_status copy_merges(maker *m)
{
    const tokenizer_vocab *v = m->v;
    CHECK(m->cx, v->n_merges, MPK_EFORMAT, "a vocabulary of model %.*s needs tokenizer.ggml.merges",
          STR_ARG(v->model));
    TRY(pair_map_reserve(m->cx, &m->t->arena, &m->t->merges, v->n_merges));
    for (size_t i = 0; i < v->n_merges; i++) {
        str both = v->merges[i];
        /* from the second byte on, since a token may begin with a space */
        const char *space = both.n > 1 ? memchr(both.at + 1, ' ', both.n - 1) : NULL;
        CHECK(m->cx, space, MPK_EFORMAT, "merge %zu is not two tokens with a space between", i);
        str left = {both.at, (size_t)(space - both.at)}, right = {space + 1, both.n - left.n - 1};
        TRY(tokenizer_add_merge(m->cx, m->t, i, left, right));
    }
    return MPK_OK;
}

/* An id must exist; -1: the file names none. */
static mpk_status check_id(maker *m, const char *name, int32_t id)
{
    CHECK(m->cx, id >= -1 && (id < 0 || (size_t)id < m->t->n_tokens), MPK_EFORMAT,
          "the vocabulary's %s id is %d, but it has %zu tokens", name, id, m->t->n_tokens);
    return MPK_OK;
}

/* Copy the ids by role, and those around a text; add_bos and add_eos: what this kind of vocabulary
 * does if the file does not say. A file may ask to have BOS added and not name it: refused, since
 * every prompt would lack it. */
static mpk_status copy_ids(maker *m, bool add_bos, bool add_eos)
{
    tokenizer *t = m->t;
    const tokenizer_vocab *v = m->v;
    TRY(check_id(m, "BOS", v->bos_id));
    TRY(check_id(m, "EOS", v->eos_id));
    TRY(check_id(m, "end of turn", v->eot_id));
    TRY(check_id(m, "unknown", v->unk_id));
    TRY(check_id(m, "padding", v->pad_id));
    t->bos_id = v->bos_id;
    t->eos_id = v->eos_id;
    t->eot_id = v->eot_id;
    t->unk_id = v->unk_id;
    t->pad_id = v->pad_id;
    add_bos = v->add_bos < 0 ? add_bos : v->add_bos;
    add_eos = v->add_eos < 0 ? add_eos : v->add_eos;
    CHECK(m->cx, (!add_bos || t->bos_id >= 0) && (!add_eos || t->eos_id >= 0), MPK_EFORMAT,
          "the vocabulary wants BOS or EOS added, but does not name it");
    if (add_bos)
        PUSH(m->cx, &t->arena, &t->before, t->bos_id);
    if (add_eos)
        PUSH(m->cx, &t->arena, &t->after, t->eos_id);
    return MPK_OK;
}

/* Model gpt2: byte-level BPE. */
static mpk_status make_gpt2(maker *m)
{
    const pre_tokenizer *pre = NULL;
    step *s = NULL;
    for (size_t i = 0; i < sizeof pre_tokenizers / sizeof *pre_tokenizers; i++)
        if (str_is(m->v->pre, pre_tokenizers[i].name))
            pre = &pre_tokenizers[i];
    CHECK(m->cx, m->v->pre.n, MPK_EUNSUPPORTED,
          "the vocabulary does not name its pre-tokenizer (tokenizer.ggml.pre); convert the model "
          "anew");
    CHECK(m->cx, pre, MPK_EUNSUPPORTED,
          "pre-tokenizer \"%.*s\" (tokenizer.ggml.pre) is not supported", STR_ARG(m->v->pre));
    if (pre->nfc)
        TRY(steps_add(m->cx, &m->t->normalize, STEP_NFC, &s));
    for (size_t i = 0; i < MAX_PATTERNS && pre->patterns[i]; i++)
        TRY(steps_add_split(m->cx, m->t, str_from(pre->patterns[i]), SPLIT_ISOLATED));
    TRY(steps_add(m->cx, &m->t->split, STEP_BYTES, &s));
    TRY(steps_add(m->cx, &m->t->decode, STEP_UNBYTES, &s));
    m->t->ignore_merges = pre->ignore_merges;
    TRY(copy_merges(m));
    TRY(copy_ids(m, pre->add_bos, false));
    m->t->unk_id = -1; /* every byte has a token */
    return MPK_OK;
}

#define SPACE_MARK "\xe2\x96\x81"

/* Spaces are written as a mark; characters without a token become bytes. prefix: a text gets a
 * space in front, which decoding takes away again. */
static mpk_status make_marked(maker *m, bool prefix)
{
    tokenizer *t = m->t;
    step *s = NULL;
    if (prefix) {
        TRY(steps_add(m->cx, &t->normalize, STEP_PREPEND, &s));
        s->content = STR(SPACE_MARK);
    }
    TRY(steps_add_replace(m->cx, &t->normalize, STR(" "), STR(SPACE_MARK)));
    TRY(steps_add_replace(m->cx, &t->decode, STR(SPACE_MARK), STR(" ")));
    TRY(steps_add(m->cx, &t->decode, STEP_BYTE_FALLBACK, &s));
    TRY(steps_add(m->cx, &t->decode, STEP_FUSE, &s));
    if (prefix) {
        TRY(steps_add(m->cx, &t->decode, STEP_STRIP_TOKEN, &s));
        s->content = STR(" ");
        s->left = 1;
    }
    t->byte_fallback = true;
    return MPK_OK;
}

/* Model llama: sentencepiece BPE, merges by score. */
static mpk_status make_llama(maker *m)
{
    tokenizer *t = m->t;
    CHECK(m->cx, m->v->scores, MPK_EFORMAT,
          "a vocabulary of model llama needs tokenizer.ggml.scores");
    float *scores;
    NEW(m->cx, &t->arena, scores, t->n_tokens);
    memcpy(scores, m->v->scores, t->n_tokens * sizeof *scores);
    t->scores = scores;
    t->order = MERGE_BY_SCORE;
    TRY(make_marked(m, m->v->add_space_prefix != 0));
    for (int b = 0; b < 256; b++) { /* some vocabularies have bytes as one-byte tokens */
        uint64_t id;
        char name[8], byte = (char)b;
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
        if (!map_get(&t->model_ids, str_from(name), &id) &&
            map_get(&t->model_ids, (str){&byte, 1}, &id))
            t->byte_ids[b] = (int32_t)id;
    }
    return copy_ids(m, true, false);
}

/* Model gemma4: BPE with a list of merges over raw UTF-8, cut at line ends only. */
static mpk_status make_gemma4(maker *m)
{
    TRY(make_marked(m, m->v->add_space_prefix == 1));
    TRY(steps_add_split(m->cx, m->t, STR("\\n+"), SPLIT_ISOLATED));
    TRY(copy_merges(m));
    return copy_ids(m, true, false);
}

/* tokenizer.ggml.model names the algorithm, not the model. */
static mpk_status make(maker *m)
{
    TRY(copy_tokens(m));
    TRY(copy_types(m));
    if (str_is(m->v->model, "gpt2"))
        TRY(make_gpt2(m));
    else if (str_is(m->v->model, "llama"))
        TRY(make_llama(m));
    else if (str_is(m->v->model, "gemma4"))
        TRY(make_gemma4(m));
    else
        FAIL(m->cx, MPK_EUNSUPPORTED,
             "tokenizer model \"%.*s\" (tokenizer.ggml.model) is not supported",
             STR_ARG(m->v->model));
    return tokenizer_finish(m->cx, m->t);
}

/* The texts of *v may be freed afterwards. */
mpk_status tokenizer_from_vocab(mpk_context *cx, const tokenizer_vocab *v, tokenizer **out)
{
    maker m = {.cx = cx, .v = v};
    TRY(tokenizer_new(cx, &m.t));
    mpk_status status = make(&m);
    if (status == MPK_OK)
        *out = m.t;
    else
        tokenizer_free(m.t);
    return status;
}
