/* net_tokens.c - /tokenize and /detokenize, with the field names of llama-server and vLLM; and
 * lists of ids for endpoints whose prompts are composed of several pieces. */
#include "net/net_exchange.h"

/* A model of weights and config.json alone has none, and takes token ids only. */
static mpk_status find_tokenizer(net_exchange *x, const mpk_tokenizer **out)
{
    *out = mpk_engine_tokenizer(x->server->engine);
    CHECK(x->cx, *out, MPK_EUNSUPPORTED,
          "the model has no tokenizer: put its tokenizer.json beside the weights");
    return MPK_OK;
}

mpk_status net_ids_add(net_exchange *x, net_ids *to, int32_t id)
{
    PUSH(x->cx, &x->arena, to, id);
    return MPK_OK;
}

/* special: marks such as <|im_start|> in the text become their tokens; only where the text is the
 * server's own or the client asked for it.  A list that no context can hold is refused before the
 * text is tokenized, since megabytes take seconds. */
mpk_status net_ids_add_text(net_exchange *x, net_ids *to, str words, bool special)
{
    int32_t *ids;
    size_t n;
    if (to->n > net_work_context(x->server) || words.n > x->server->most_text_bytes)
        return net_refuse(x->cx, &x->refusal, 400, NULL, "context_length_exceeded",
                          "This model's maximum context length is %u tokens. However, the request "
                          "has %zu tokens and a text of %zu bytes after them.",
                          net_work_context(x->server), to->n, words.n);
    TRY(mpk_tokenize(x->cx, mpk_engine_tokenizer(x->server->engine), words.n ? words.at : "",
                     words.n, special, &ids, &n));
    mpk_status status = MPK_OK;
    for (size_t i = 0; i < n && status == MPK_OK; i++)
        status = net_ids_add(x, to, ids[i]);
    mpk_free(ids);
    return status;
}

/* Members of other servers' requests that would change the reply. */
static mpk_status refuse_pieces(net_exchange *x, const json_value *body)
{
    static const char *const names[] = {"with_pieces", "return_token_strs"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_value *v = json_get(body, names[i]);
        if (v && v->kind != JSON_KIND_NULL && !(v->kind == JSON_KIND_BOOL && !v->boolean))
            return net_refuse(x->cx, &x->refusal, 400, names[i], NULL,
                              "'%s' is not supported: /detokenize tells the text of a token",
                              names[i]);
    }
    return MPK_OK;
}

/* The text, which is to be freed also on failure, and whether to add special tokens.  "content" is
 * llama-server's name, with which none are added by default; "prompt" is vLLM's, with which they
 * are, and so is "messages", a chat. */
static mpk_status read_content(net_exchange *x, const json_value *body, text *words, bool *special)
{
    const json_value *content = json_get(body, "content");
    const json_value *v = content ? content : json_get(body, "prompt");
    const char *flag = content ? "add_special" : "add_special_tokens";
    const json_value *add = json_get(body, flag);
    TRY(refuse_pieces(x, body));
    if (!v && json_get(body, "messages"))
        return net_chat_prompt(x, body, words, special);
    if (!json_is(v, JSON_KIND_STRING))
        return net_refuse(x->cx, &x->refusal, 400, "content", NULL,
                          "neither 'content' nor 'prompt' is a text, and there are no 'messages'");
    if (add && add->kind != JSON_KIND_BOOL)
        return net_refuse(x->cx, &x->refusal, 400, flag, NULL, "'%s' must be true or false", flag);
    text_add(words, v->text.at ? v->text.at : "", v->text.n);
    *special = add ? add->boolean : !content;
    const json_value *parse = json_get(body, "parse_special");
    if (parse && !(parse->kind == JSON_KIND_BOOL && parse->boolean))
        return net_refuse(x->cx, &x->refusal, 400, "parse_special", NULL,
                          "'parse_special' is not supported: special tokens that a text spells "
                          "out are those tokens");
    return MPK_OK;
}

/* Bytes that the tokens of a text take for each of its bytes, if each is a token: ids of 4 bytes,
 * and a reply of digits and a comma that grows by doubling. */
enum { TOKEN_BYTES = 16 };

/* max_model_len is in vLLM's reply, and lets a client count what fits. */
static mpk_status write_ids(net_exchange *x, const mpk_tokenizer *tokenizer, str words,
                            bool special, text *reply)
{
    int32_t *ids;
    size_t n;
    TRY(net_exchange_hold(x, (uint64_t)words.n * TOKEN_BYTES));
    TRY(mpk_tokenize(x->cx, tokenizer, words.n ? words.at : "", words.n, special, &ids, &n));
    text_print(reply, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++)
        text_print(reply, i ? ",%d" : "%d", ids[i]);
    text_print(reply, "],\"count\":%zu,\"max_model_len\":%u}", n, x->server->facts.context_tokens);
    mpk_free(ids);
    return MPK_OK;
}

/* POST /tokenize: {"tokens":[..],"count":N,"max_model_len":N}. */
mpk_status net_tokens_encode(net_exchange *x, const char *path)
{
    const mpk_tokenizer *tokenizer;
    const json_value *body;
    text words = {0}, reply = {0};
    bool special = false;
    (void)path;
    TRY(net_completion_parse(x, &body));
    TRY(find_tokenizer(x, &tokenizer));
    mpk_status status = read_content(x, body, &words, &special);
    if (status == MPK_OK && words.failed)
        status = status_fail(x->cx, MPK_ENOMEM, "out of memory for a text");
    if (status == MPK_OK)
        status = write_ids(x, tokenizer, text_str(&words), special, &reply);
    text_free(&words);
    TRY(status);
    return net_reply_json(x, &reply);
}

/* POST /detokenize: the text under both servers' names. The bytes may be no valid UTF-8 if a token
 * is a part of a character: json_write_str writes U+FFFD for these. */
mpk_status net_tokens_decode(net_exchange *x, const char *path)
{
    const mpk_tokenizer *tokenizer;
    const json_value *body;
    const int32_t *ids;
    char *bytes;
    size_t n_ids, n;
    text reply = {0};
    (void)path;
    TRY(net_completion_parse(x, &body));
    TRY(find_tokenizer(x, &tokenizer));
    TRY(net_request_read_ids(x->cx, &x->arena, json_get(body, "tokens"), "tokens", &ids, &n_ids,
                             &x->refusal));
    const json_value *skip = json_get(body, "skip_special_tokens");
    if (skip && !(skip->kind == JSON_KIND_BOOL && skip->boolean))
        return net_refuse(x->cx, &x->refusal, 400, "skip_special_tokens", NULL,
                          "'skip_special_tokens' is not supported: special tokens have no text");
    TRY(mpk_detokenize(x->cx, tokenizer, ids, n_ids, &bytes, &n));
    text_print(&reply, "{\"content\":");
    json_write_str(&reply, (str){bytes, n});
    text_print(&reply, ",\"prompt\":");
    json_write_str(&reply, (str){bytes, n});
    text_print(&reply, "}");
    mpk_free(bytes);
    return net_reply_json(x, &reply);
}
