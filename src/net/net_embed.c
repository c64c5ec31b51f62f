/* net_embed.c - /v1/embeddings, and what follows from vectors: /v1/score and /v1/rerank, on a
 * server that has a model for embeddings.
 *
 * Input: texts or lists of token ids.  Each is a sequence of its own in the engine, which
 * computes those of several connections together.  Output: vectors of length 1, or cosines of
 * them.  Called by net_route.c.
 */
#include <stdlib.h>

#include "net/net_embed.h"

/* TEXTS_A_CALL: texts that go to the engine together, between looks at the client.
 * NUMBER_BYTES: bytes of a number in a reply whose text grows by doubling, "%.9g" and a comma. */
enum { TEXTS_A_CALL = 64, NUMBER_BYTES = 2 * 16 };

/* A request for vectors while it is answered. */
typedef struct embedder {
    net_exchange *x;
    mpk_embed_options options;
    /* 0: longer inputs are refused; -1: cut to the context; else to this many tokens */
    int32_t truncate;
    bool special; /* tokens around each text that the tokenizer adds */
    /* of all texts of the request so far, for its usage */
    size_t n_tokens;
} embedder;

/* Refuse the request, 400, from the function at hand. */
#define REFUSE(x, field, ...) \
    return net_refuse((x)->cx, &(x)->refusal, 400, (field), NULL, __VA_ARGS__)

/* ---- the request ---- */

/* 400 if the server's model writes text: a server has one model, which either writes text or
 * makes vectors. */
static mpk_status check_server(net_exchange *x)
{
    if (!x->server->facts.embedding_size)
        REFUSE(
            x, NULL,
            "the server has a model that writes text: start it with --embeddings to get vectors");
    return MPK_OK;
}

/* An optional whole number from least to most; *to is 0 if it is absent. */
static mpk_status read_count(net_exchange *x, const json_value *body, const char *name,
                             int64_t least, int64_t most, int64_t *to)
{
    const json_value *v = json_get(body, name);
    if (v &&
        (v->kind != JSON_KIND_NUMBER || !v->is_integer || v->integer < least || v->integer > most))
        REFUSE(x, name, "'%s' must be a whole number from %lld to %lld", name, (long long)least,
               (long long)most);
    *to = v ? v->integer : 0;
    return MPK_OK;
}

/* An optional flag; *to stays as it is if it is absent. */
static mpk_status read_flag(net_exchange *x, const json_value *body, const char *name, bool *to)
{
    const json_value *v = json_get(body, name);
    if (v && v->kind != JSON_KIND_BOOL)
        REFUSE(x, name, "'%s' must be true or false", name);
    *to = v ? v->boolean : *to;
    return MPK_OK;
}

/* What vLLM lets a request choose and this server does in one way: that way may be named. */
static mpk_status check_form(net_exchange *x, const json_value *body)
{
    const json_value *type = json_get(body, "embed_dtype"), *order = json_get(body, "endianness"),
                     *activation = json_get(body, "use_activation");
    if (type && !(type->kind == JSON_KIND_STRING && str_is(type->text, "float32")))
        REFUSE(x, "embed_dtype", "'embed_dtype' is not supported: vectors are \"float32\"");
    if (order && !(order->kind == JSON_KIND_STRING &&
                   (str_is(order->text, "native") || str_is(order->text, "little"))))
        REFUSE(x, "endianness", "'endianness' is not supported: base64 is of \"little\" numbers");
    if (activation && !(activation->kind == JSON_KIND_BOOL && activation->boolean))
        REFUSE(x, "use_activation", "'use_activation' is not supported: vectors have length 1");
    return MPK_OK;
}

/* The beginning of all three endpoints: key, body, options.  A request for vectors counts as one
 * answer of its key's limit. */
static mpk_status open_request(net_exchange *x, embedder *e, const json_value **body)
{
    int64_t dimensions = 0, truncate = 0;
    TRY(check_server(x));
    TRY(net_meter_take_answers(x, 1));
    TRY(net_completion_open(x, body));
    if ((*body)->kind != JSON_KIND_OBJECT)
        REFUSE(x, NULL, "the body is not a JSON object");
    TRY(net_parameters_check(x->cx, *body, NET_FOR_VECTORS, x->ignored, &x->refusal));
    TRY(read_count(x, *body, "dimensions", 1, x->server->facts.embedding_size, &dimensions));
    TRY(read_count(x, *body, "truncate_prompt_tokens", -1, INT32_MAX, &truncate));
    *e = (embedder){.x = x, .truncate = (int32_t)truncate, .special = true};
    TRY(read_flag(x, *body, "add_special_tokens", &e->special));
    TRY(check_form(x, *body));
    e->options = (mpk_embed_options){.size = sizeof e->options,
                                     .pooling = x->server->options.pooling,
                                     .dimensions = (uint32_t)dimensions};
    return MPK_OK;
}

/* ---- vectors ---- */

/* The numbers of a vector that the client asks for: all of them, or only the first `dimensions`
 * (Matryoshka models). */
static uint32_t size_of(const embedder *e)
{
    return e->options.dimensions ? e->options.dimensions : e->x->server->facts.embedding_size;
}

/* Whose fault a failure of the engine is: bad input is the client's, anything else the server's.
 * first: of the call's texts. */
static mpk_status judge(net_exchange *x, mpk_status status, size_t first)
{
    if (status == MPK_OK || status == MPK_ENOMEM)
        return status;
    if (status == MPK_EARG)
        REFUSE(x, "input", "%s", mpk_error_message(x->cx));
    if (status == MPK_EFORMAT) /* a fault of these inputs; others may have vectors */
        return net_refuse(x->cx, &x->refusal, 500, "input", NULL, "of the texts from %zu on: %s",
                          first, mpk_error_message(x->cx));
    return net_work_note_fault(x, status, 503);
}

/* Cut an input to its last tokens, if the request asks for that; refuse it if it is empty or
 * longer than the context. */
static mpk_status cut(const embedder *e, mpk_tokens *input)
{
    net_exchange *x = e->x;
    const size_t context = net_work_context(x->server),
                 most = e->truncate < 0 ? context : (size_t)e->truncate;
    if (e->truncate && input->n > most)
        *input = (mpk_tokens){input->at + input->n - most, most};
    if (!input->n)
        REFUSE(x, "input", "an input has no tokens");
    if (input->n > context)
        return net_refuse(
            x->cx, &x->refusal, 400, "input", "context_length_exceeded",
            "This model's maximum context length is %zu tokens. However, an input has %zu tokens.",
            context, input->n);
    return MPK_OK;
}

/* The tokens of a text, with those around it that the tokenizer adds, in the exchange's arena.  A
 * text that no context can hold is refused first, since tokenizing megabytes takes seconds; one
 * that is to be cut has to be tokenized whole, because its last tokens are kept. */
static mpk_status tokenize(const embedder *e, str words, mpk_tokens *out)
{
    net_exchange *x = e->x;
    const mpk_tokenizer *tokenizer = mpk_engine_tokenizer(x->server->engine);
    int32_t *ids, *kept;
    size_t n;
    if (!tokenizer)
        REFUSE(x, "input", "the model has no tokenizer: give token ids");
    if (!e->truncate && words.n > x->server->most_text_bytes)
        return net_refuse(x->cx, &x->refusal, 400, "input", "context_length_exceeded",
                          "This model's maximum context length is %u tokens. However, an input has "
                          "%zu bytes, more than that many tokens can hold.",
                          net_work_context(x->server), words.n);
    TRY(mpk_tokenize(x->cx, tokenizer, words.n ? words.at : "", words.n, e->special, &ids, &n));
    kept = arena_alloc(&x->arena, n, sizeof *kept);
    if (kept)
        memcpy(kept, ids, n * sizeof *ids);
    mpk_free(ids);
    CHECK(x->cx, kept, MPK_ENOMEM, "out of memory for %zu tokens", n);
    *out = (mpk_tokens){kept, n};
    return MPK_OK;
}

/* One input, a text or a list of token ids; its tokens count for the usage, the metrics and the
 * key's limit. */
static mpk_status read_input(embedder *e, const json_value *v, const char *name, mpk_tokens *out)
{
    net_exchange *x = e->x;
    if (v->kind == JSON_KIND_STRING)
        TRY(tokenize(e, v->text, out));
    else
        TRY(net_request_read_ids(x->cx, &x->arena, v, name, &out->at, &out->n, &x->refusal));
    TRY(cut(e, out));
    e->n_tokens += out->n;
    x->server->metrics.prompt_tokens += out->n;
    net_meter_spend(x, out->n);
    return MPK_OK;
}

/* Is the work still wanted?  No if the client has gone or the server cuts its answers off. */
static mpk_status look_around(net_exchange *x)
{
    if (x->server->cancelling || net_exchange_is_gone(x))
        return net_refuse(x->cx, &x->refusal, 503, NULL, "stopping",
                          "the server is stopping, or the client has gone");
    return MPK_OK;
}

/* Compute the vectors of n texts, TEXTS_A_CALL at a time. */
static mpk_status embed_texts(embedder *e, const mpk_tokens *texts, size_t n, float *rows)
{
    net_exchange *x = e->x;
    for (size_t at = 0; at < n; at += TEXTS_A_CALL) {
        const size_t some = n - at < TEXTS_A_CALL ? n - at : TEXTS_A_CALL;
        TRY(look_around(x));
        TRY(judge(x,
                  mpk_embed(x->cx, x->server->engine, texts + at, some, &e->options,
                            rows + at * size_of(e)),
                  at));
    }
    return MPK_OK;
}

/* Read n inputs and compute their vectors. */
static mpk_status embed_inputs(embedder *e, const json_value *inputs, const char *name,
                               mpk_tokens *texts, size_t n, float *rows)
{
    for (size_t i = 0; i < n; i++) {
        TRY(look_around(e->x));
        TRY(read_input(e, &inputs[i], name, &texts[i]));
    }
    return embed_texts(e, texts, n, rows);
}

/* The vectors of a member that is one input or a list of inputs: *rows is f32[n, size] in the
 * arena. A list whose first item is a number is one input given as token ids. What the reply will
 * take is reserved before anything is computed, so a huge request is refused and not half done; the
 * time limit of the connection does not run while texts are tokenized and vectors computed. */
static mpk_status embed_member(embedder *e, const json_value *body, const char *name, float **rows,
                               size_t *n)
{
    net_exchange *x = e->x;
    const json_value *v = json_get(body, name);
    mpk_tokens *texts;
    if (!v || (v->kind == JSON_KIND_LIST && !v->n))
        REFUSE(x, name, "'%s' is missing or empty", name);
    const bool many = v->kind == JSON_KIND_LIST && v->items[0].kind != JSON_KIND_NUMBER;
    *n = many ? v->n : 1;
    TRY(net_exchange_hold(x, (uint64_t)*n * size_of(e) * (sizeof **rows + NUMBER_BYTES)));
    NEW(x->cx, &x->arena, texts, *n);
    NEW(x->cx, &x->arena, *rows, *n * size_of(e));
    net_exchange_stop_clock(x, true);
    mpk_status status = embed_inputs(e, many ? v->items : v, name, texts, *n, *rows);
    net_exchange_stop_clock(x, false);
    return status;
}

/* ---- /v1/embeddings ---- */

/* Base64: three bytes are four digits; the last group is filled up with =. */
static void write_base64(const void *data, size_t n, text *to)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *at = data;
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i < 3 ? n - i : 3;
        uint8_t three[3] = {0};
        memcpy(three, at + i, left);
        const uint32_t bits = (uint32_t)three[0] << 16 | (uint32_t)three[1] << 8 | three[2];
        char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63], digits[bits >> 6 & 63],
                        digits[bits & 63]};
        memset(four + 1 + left, '=', 3 - left);
        text_add(to, four, 4);
    }
}

/* One vector as base64 of its bytes or as a list of numbers; nine digits give a float back
 * exactly. */
static void write_vector(const float *v, uint32_t n, bool base64, text *to)
{
    if (base64) {
        text_print(to, "\"");
        /* little endian, as all machines that this runs on are */
        write_base64(v, n * sizeof *v, to);
        text_print(to, "\"");
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        text_print(to, i ? ",%.9g" : "[%.9g", (double)v[i]);
    text_print(to, "]");
}

/* The end of all three replies: model and usage. */
static void write_tail(const embedder *e, text *to)
{
    text_print(to, "],\"model\":");
    json_write_str(to, str_from(e->x->server->options.model_name));
    text_print(to, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}", e->n_tokens,
               e->n_tokens);
}

/* Absent is "float", as in OpenAI's API. */
static mpk_status read_encoding(net_exchange *x, const json_value *body, bool *base64)
{
    const json_value *v = json_get(body, "encoding_format");
    *base64 = json_is(v, JSON_KIND_STRING) && str_is(v->text, "base64");
    if (v && !*base64 && !(v->kind == JSON_KIND_STRING && str_is(v->text, "float")))
        REFUSE(x, "encoding_format", "'encoding_format' is neither \"float\" nor \"base64\"");
    return MPK_OK;
}

/* POST /v1/embeddings. The order of the vectors is that of the inputs; `index` repeats it for
 * clients that sort. */
mpk_status net_embed_vectors(net_exchange *x, const char *path)
{
    const json_value *body;
    embedder e;
    bool base64;
    float *rows;
    size_t n;
    text reply = {0};
    (void)path;
    TRY(open_request(x, &e, &body));
    TRY(read_encoding(x, body, &base64));
    TRY(embed_member(&e, body, "input", &rows, &n));
    text_print(&reply, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n; i++) {
        text_print(&reply, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "",
                   i);
        write_vector(rows + i * size_of(&e), size_of(&e), base64, &reply);
        text_print(&reply, "}");
    }
    write_tail(&e, &reply);
    return net_reply_json(x, &reply);
}

/* ---- /v1/score, /v1/rerank: cosines ---- */

/* The cosine of two vectors of length 1, summed in double in the order of the elements. */
static double cosine(const embedder *e, const float *a, const float *b)
{
    double sum = 0; /* both have length 1, so no division */
    for (uint32_t i = 0; i < size_of(e); i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* The name under which a request has one of the two sides of a score; the first if it has none. */
static const char *find_side(const json_value *body, const char *const names[4])
{
    for (size_t i = 0; i < 4 && names[i]; i++)
        if (json_get(body, names[i]))
            return names[i];
    return names[0];
}

/* POST /v1/score: each text of text_2 against the one text of text_1, or against that at the
 * same place. */
mpk_status net_embed_score(net_exchange *x, const char *path)
{
    const json_value *body;
    embedder e;
    float *first, *second;
    size_t n_first, n;
    text reply = {0};
    (void)path;
    TRY(open_request(x, &e, &body));
    const char *left = find_side(body, (const char *const[4]){"text_1", "data_1", "queries"}),
               *right = find_side(body,
                                  (const char *const[4]){"text_2", "data_2", "documents", "items"});
    TRY(embed_member(&e, body, left, &first, &n_first));
    TRY(embed_member(&e, body, right, &second, &n));
    if (n_first != 1 && n_first != n)
        REFUSE(x, right, "'%s' has %zu texts and '%s' %zu: give one, or as many", left, n_first,
               right, n);
    text_print(&reply, "{\"id\":\"score\",\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n; i++) {
        const float *other = first + (n_first == 1 ? 0 : i) * size_of(&e);
        text_print(&reply, "%s{\"index\":%zu,\"object\":\"score\",\"score\":%.9g}", i ? "," : "", i,
                   cosine(&e, other, second + i * size_of(&e)));
    }
    write_tail(&e, &reply);
    return net_reply_json(x, &reply);
}

/* A document and its similarity to the query. */
typedef struct ranked {
    double score;
    size_t index;
} ranked;

/* For qsort: best first; equal ones in the order of the request, so the reply does not depend on
 * how qsort treats them. */
static int compare_ranked(const void *a, const void *b)
{
    const ranked *p = a, *q = b;
    if (p->score != q->score)
        return p->score < q->score ? 1 : -1;
    return p->index < q->index ? -1 : 1;
}

/* POST /v1/rerank: documents in falling order of similarity to the query, the best top_n. Equal
 * similarities stay in the order of the documents (compare_ranked), so a reply is the same every
 * time. */
mpk_status net_embed_rerank(net_exchange *x, const char *path)
{
    const json_value *body, *documents;
    embedder e;
    float *query, *rows;
    ranked *order;
    size_t n_query, n;
    int64_t most = 0;
    bool with_documents = false;
    text reply = {0};
    (void)path;
    TRY(open_request(x, &e, &body));
    TRY(read_count(x, body, "top_n", 1, INT32_MAX, &most));
    TRY(read_flag(x, body, "return_documents", &with_documents));
    TRY(embed_member(&e, body, "query", &query, &n_query));
    documents = json_get(body, "documents");
    if (!json_is(documents, JSON_KIND_LIST) || n_query != 1)
        REFUSE(x, "documents", "'documents' must be a list of strings, and 'query' one string");
    TRY(embed_member(&e, body, "documents", &rows, &n));
    NEW(x->cx, &x->arena, order, n);
    for (size_t i = 0; i < n; i++)
        order[i] = (ranked){cosine(&e, query, rows + i * size_of(&e)), i};
    qsort(order, n, sizeof *order, compare_ranked);
    text_print(&reply, "{\"id\":\"rerank\",\"results\":[");
    /* without top_n all of them */
    for (size_t i = 0; i < n && (!most || i < (size_t)most); i++) {
        const json_value *document = documents->items + order[i].index;
        text_print(&reply, "%s{\"index\":%zu,\"relevance_score\":%.9g", i ? "," : "",
                   order[i].index, order[i].score);
        if (with_documents && document->kind == JSON_KIND_STRING) { /* ids have no text to repeat */
            text_print(&reply, ",\"document\":{\"text\":");
            json_write_str(&reply, document->text);
            text_print(&reply, "}");
        }
        text_print(&reply, "}");
    }
    write_tail(&e, &reply);
    return net_reply_json(x, &reply);
}
