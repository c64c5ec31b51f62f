/* net_infill.c - /infill as llama-server has it, and `suffix` of /v1/completions: the text between
 * two texts.
 *
 * Models that fill gaps have three tokens for it: after the last of them the answer begins.  They
 * are looked for by the names that the makers of such models give them; each text is tokenized by
 * itself.  Other files of a project stand before, apart from each other as the model's makers have
 * it, or by a line.
 */
#include "net/net_infill.h"

enum { FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, FIM_TOKENS };

static const char *const names[][FIM_TOKENS] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}, /* Qwen2.5-Coder, CodeGemma */
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},       /* StarCoder, Granite */
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"}, /* Code Llama */
    {"<PRE>", "<SUF>", "<MID>"},
    /* DeepSeek-Coder */
    {"<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"},
};
static const char file_mark[] = "<|file_sep|>", snippet_mark[] = "\n\n--- snippet ---\n\n";

typedef struct filler {
    net_exchange *x;
    const mpk_tokenizer *tokenizer;
    int32_t marks[FIM_TOKENS];
    VEC(int32_t) ids; /* in the arena of the exchange */
} filler;

/* The token of this text; false: there is none. */
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
        "the model fills no gaps: its tokenizer has no tokens such as <|fim_prefix|>");
}

static mpk_status add_token(filler *f, int32_t id)
{
    PUSH(f->x->cx, &f->x->arena, &f->ids, id);
    return MPK_OK;
}

static mpk_status add_text(filler *f, str words, bool special)
{
    int32_t *ids;
    size_t n;
    TRY(mpk_tokenize(f->x->cx, f->tokenizer, words.n ? words.at : "", words.n, special, &ids, &n));
    mpk_status status = MPK_OK;
    for (size_t i = 0; i < n && status == MPK_OK; i++)
        status = add_token(f, ids[i]);
    mpk_free(ids);
    return status;
}

/* The token before every text, if the model asks for one. */
static mpk_status add_begin(filler *f)
{
    const size_t n = f->ids.n;
    TRY(add_text(f, STR(""), true));
    f->ids.n = f->ids.n > n ? n + 1 : n; /* without what ends a text */
    return MPK_OK;
}

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
        TRY(add_text(f, STR(snippet_mark), false));
    else {
        TRY(add_token(f, mark));
        TRY(add_text(f, name ? name->text : STR("file"), false));
        TRY(add_text(f, STR("\n"), false));
    }
    return add_text(f, words->text, false);
}

mpk_status net_infill_ids(net_exchange *x, const net_gap *gap, const int32_t **ids, size_t *n)
{
    filler f = {.x = x, .tokenizer = mpk_engine_tokenizer(x->server->engine)};
    if (!f.tokenizer)
        return net_refuse(x->cx, &x->refusal, 400, NULL, NULL,
                          "the model brings no tokenizer: it fills no gaps");
    if (gap->before.n + gap->after.n > x->server->most_text_bytes)
        return net_refuse(x->cx, &x->refusal, 400, NULL, "context_length_exceeded",
                          "This model's maximum context length is %u tokens. However, the texts "
                          "around the gap have %zu "
                          "bytes, more than so many tokens can hold.",
                          net_work_context(x->server), gap->before.n + gap->after.n);
    TRY(find_marks(&f));
    TRY(add_begin(&f));
    for (size_t i = 0; gap->extras && i < gap->extras->n; i++)
        TRY(add_extra(&f, &gap->extras->items[i], i));
    TRY(add_token(&f, f.marks[FIM_PREFIX]));
    TRY(add_text(&f, gap->before, false));
    TRY(add_token(&f, f.marks[FIM_SUFFIX]));
    TRY(add_text(&f, gap->after, false));
    TRY(add_token(&f, f.marks[FIM_MIDDLE]));
    TRY(add_text(&f, gap->begun, false));
    *ids = f.ids.at;
    *n = f.ids.n;
    return MPK_OK;
}

/* ---- the answer, as llama-server writes it ---- */

static const char *stop_type(const net_answer *a)
{
    if (a->finish == MPK_FINISH_LENGTH)
        return "limit";
    return a->stopped_by ? "word" : "eos";
}

/* What has come, and at the end how it ended; empties the content. */
static void write_members(const net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    text_print(to, "{\"index\":%u,\"content\":", index);
    json_write_str(to, text_str(&a->content));
    a->content.n = 0;
    text_print(to,
               ",\"tokens\":[],\"id_slot\":%u,\"stop\":%s,\"tokens_predicted\":%zu,\"tokens_"
               "evaluated\":%zu",
               index, a->request ? "false" : "true", a->n_tokens, a->n_prompt);
    if (!a->request) {
        text_print(to, ",\"model\":");
        json_write_str(to, str_from(x->server->options.model_name));
        text_print(to, ",\"stop_type\":\"%s\",\"stopping_word\":", stop_type(a));
        json_write_str(to, str_from(a->stopped_by ? a->stopped_by : ""));
        text_print(to, ",\"tokens_cached\":%zu,\"truncated\":false", x->work.n_cached);
    }
    text_print(to, "}");
}

static void write_document(net_exchange *x, text *to)
{
    const bool many = x->work.n > 1;
    text_print(to, many ? "[" : "");
    for (uint32_t i = 0; i < x->work.n; i++) {
        text_print(to, i ? "," : "");
        write_members(x, &x->work.answers[i], i, to);
    }
    text_print(to, many ? "]" : "");
}

static void write_news(net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    if (a->told || (a->request && !a->content.n))
        return;
    text_print(to, "data: ");
    write_members(x, a, index, to);
    text_print(to, "\n\n");
    a->told = !a->request;
}

/* The last answer's last event says that it has ended. */
static void write_end(net_exchange *x, text *to)
{
    (void)x;
    (void)to;
}

static void write_failure(net_exchange *x, text *to)
{
    text_print(to, "error: ");
    net_reply_write_error(x, to);
    text_print(to, "\n\n");
}

static const net_dialect dialect = {
    .id_prefix = "infill-",
    .write_document = write_document,
    .write_news = write_news,
    .write_end = write_end,
    .write_failure = write_failure,
    .ping = ": still at work\n\n",
};

/* ---- the request ---- */

static mpk_status read_text(net_exchange *x, const json_value *body, const char *name, bool needed,
                            str *to)
{
    const json_value *v = json_get(body, name);
    *to = STR("");
    if (!v && needed)
        return net_refuse(x->cx, &x->refusal, 400, name, NULL, "'%s' is missing", name);
    if (v && v->kind != JSON_KIND_STRING)
        return net_refuse(x->cx, &x->refusal, 400, name, NULL, "'%s' is not a text", name);
    if (v && v->text.n)
        *to = v->text;
    return MPK_OK;
}

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
                          "'input_extra' is not a list");
    return MPK_OK;
}

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
    TRY(net_request_read_infill(x->cx, &x->arena, body, &suggested, &q, &x->refusal));
    TRY(net_infill_ids(x, &gap, &prompt.ids, &prompt.n_ids));
    TRY(net_work_open(x, &q, &dialect, 1));
    TRY(net_work_submit(x, &q, 0, &prompt));
    return net_completion_answer(x, &q);
}
