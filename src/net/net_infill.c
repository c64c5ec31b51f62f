/* net_infill.c - /infill as llama-server has it, and `suffix` of /v1/completions: the text
 * between two texts.
 *
 * Models that fill gaps have three tokens for it; after the last of them the answer begins:
 *
 *   <|fim_prefix|> text before <|fim_suffix|> text after <|fim_middle|> answer
 *
 * They are found by the names that the makers of such models give them; each text is tokenized
 * by itself.  Other files of a project come first, separated as the model's makers have it, or
 * by a line of text.
 */
#include "net/net_infill.h"

enum { FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, FIM_TOKENS };

/* By family; the first row whose three names are single tokens of the tokenizer is used. */
static const char *const names[][FIM_TOKENS] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}, /* Qwen2.5-Coder, CodeGemma */
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},       /* StarCoder, Granite */
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"}, /* Code Llama */
    {"<PRE>", "<SUF>", "<MID>"},
    /* DeepSeek-Coder */
    {"<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"},
};
/* What precedes another file: a token of Qwen's models, or a line of text. */
static const char file_mark[] = "<|file_sep|>", snippet_mark[] = "\n\n--- snippet ---\n\n";

/* A prompt under construction. */
typedef struct filler {
    net_exchange *x;
    const mpk_tokenizer *tokenizer;
    int32_t marks[FIM_TOKENS]; /* the tokens of FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE */
    net_ids ids;
} filler;

/* The token with this text; *found false: the text is not a single token. */
static mpk_status find_token(net_exchange *x, const mpk_tokenizer *tokenizer, const char *name,
                             int32_t *id, bool *found)
{
    int32_t *ids;
    size_t n;
    TRY(mpk_tokenize(x->cx, tokenizer, name, strlen(name), false, &ids, &n));
    *found = n == 1;
    if (*found)
        *id = ids[0];
    mpk_free(ids);
    return MPK_OK;
}

/* Find the first row of names of which the tokenizer has all three as single tokens; 400 if
 * there is none. */
static mpk_status find_marks(filler *f)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool found = true;
        for (unsigned k = 0; k < FIM_TOKENS && found; k++)
            TRY(find_token(f->x, f->tokenizer, names[i][k], &f->marks[k], &found));
        if (found)
            return MPK_OK;
    }
    return net_refuse(
        f->x->cx, &f->x->refusal, 400, NULL, NULL,
        "the model cannot fill gaps: its tokenizer has no tokens such as <|fim_prefix|>");
}

/* Append the token that the model expects before every text, if any. */
static mpk_status add_begin(filler *f)
{
    const size_t n = f->ids.n;
    TRY(net_ids_add_text(f->x, &f->ids, STR(""), true));
    /* the first token only, not those that end a text */
    f->ids.n = f->ids.n > n ? n + 1 : n;
    return MPK_OK;
}

/* Append another file: with the model's own mark and the file's name, or, if it has no mark, after
 * a line of text. Only the file mark is looked for as a token; the text of the file is tokenized
 * without special tokens, so a file cannot bring marks of its own. */
static mpk_status add_extra(filler *f, const json_value *extra, size_t i)
{
    const json_value *name = json_get(extra, "filename"), *words = json_get(extra, "text");
    int32_t mark = 0;
    bool found;
    if (!json_is(words, JSON_KIND_STRING) || (name && name->kind != JSON_KIND_STRING))
        return net_refuse(
            f->x->cx, &f->x->refusal, 400, "input_extra", NULL,
            "'input_extra': item %zu is not {\"filename\": ..., \"text\": ...} with texts", i);
    TRY(find_token(f->x, f->tokenizer, file_mark, &mark, &found));
    if (!found)
        TRY(net_ids_add_text(f->x, &f->ids, STR(snippet_mark), false));
    else {
        TRY(net_ids_add(f->x, &f->ids, mark));
        TRY(net_ids_add_text(f->x, &f->ids, name ? name->text : STR("file"), false));
        TRY(net_ids_add_text(f->x, &f->ids, STR("\n"), false));
    }
    return net_ids_add_text(f->x, &f->ids, words->text, false);
}

/* The prompt of a gap: the marks of the model with the texts between them. */
mpk_status net_infill_ids(net_exchange *x, const net_gap *gap, const int32_t **ids, size_t *n)
{
    filler f = {.x = x, .tokenizer = mpk_engine_tokenizer(x->server->engine)};
    if (!f.tokenizer)
        return net_refuse(x->cx, &x->refusal, 400, NULL, NULL,
                          "the model has no tokenizer, so it cannot fill gaps");
    TRY(find_marks(&f));
    TRY(add_begin(&f));
    for (size_t i = 0; gap->extras && i < gap->extras->n; i++)
        TRY(add_extra(&f, &gap->extras->items[i], i));
    TRY(net_ids_add(f.x, &f.ids, f.marks[FIM_PREFIX]));
    TRY(net_ids_add_text(f.x, &f.ids, gap->before, false));
    TRY(net_ids_add(f.x, &f.ids, f.marks[FIM_SUFFIX]));
    TRY(net_ids_add_text(f.x, &f.ids, gap->after, false));
    TRY(net_ids_add(f.x, &f.ids, f.marks[FIM_MIDDLE]));
    TRY(net_ids_add_text(f.x, &f.ids, gap->begun, false));
    *ids = f.ids.at;
    *n = f.ids.n;
    return MPK_OK;
}

/* ---- the request ---- */

/* *to borrows from the body; an absent optional text is empty. */
static mpk_status read_text(net_exchange *x, const json_value *body, const char *name, bool needed,
                            str *to)
{
    const json_value *v = json_get(body, name);
    *to = STR("");
    if (!v && needed)
        return net_refuse(x->cx, &x->refusal, 400, name, NULL, "'%s' is missing", name);
    if (v && v->kind != JSON_KIND_STRING)
        return net_refuse(x->cx, &x->refusal, 400, name, NULL, "'%s' must be a string", name);
    if (v)
        *to = v->text;
    return MPK_OK;
}

/* Both sides of the gap must be given, though they may be empty. */
static mpk_status read_gap(net_exchange *x, const json_value *body, net_gap *gap)
{
    if (body->kind != JSON_KIND_OBJECT)
        return net_refuse(x->cx, &x->refusal, 400, NULL, NULL, "the body is not a JSON object");
    TRY(read_text(x, body, "input_prefix", true, &gap->before));
    TRY(read_text(x, body, "input_suffix", true, &gap->after));
    TRY(read_text(x, body, "prompt", false, &gap->begun));
    gap->extras = json_get(body, "input_extra");
    if (gap->extras && gap->extras->kind != JSON_KIND_LIST)
        return net_refuse(x->cx, &x->refusal, 400, "input_extra", NULL,
                          "'input_extra' must be a list");
    return MPK_OK;
}

/* POST /infill. */
mpk_status net_infill_run(net_exchange *x, const char *path)
{
    const mpk_request_options suggested = net_completion_suggested(x);
    const json_value *body;
    net_prompt prompt = {0};
    net_request q;
    net_gap gap;
    (void)path;
    TRY(net_completion_open(x, &body));
    TRY(read_gap(x, body, &gap));
    TRY(net_request_read_llama(x->cx, &x->arena, body, NET_FOR_INFILL, &suggested, &q,
                               &x->refusal));
    TRY(net_infill_ids(x, &gap, &prompt.ids, &prompt.n_ids));
    TRY(net_work_open(x, &q, &net_dialect_llama, 1));
    TRY(net_work_submit(x, &q, 0, &prompt));
    return net_completion_answer(x, &q);
}
