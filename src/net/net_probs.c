/* net_probs.c - log probabilities of an answer's tokens, as OpenAI's documents and events have
 * them, and of its prompt's, as vLLM has them.
 *
 * A chat, and llama-server's completion, has a list of entries; a completion has four parallel
 * lists, which begin with the prompt if that is echoed.  What has come is kept as JSON until a
 * document or an event takes it.  vLLM's list for the prompt has an object for each token: the
 * ids of the token and of the most probable ones, with their ranks.
 *
 *   chat        {"token":"a","logprob":-0.1,"bytes":[97],"top_logprobs":[..]}
 *   completion  "tokens":["a"],"token_logprobs":[-0.1],"top_logprobs":[{"a":-0.1}],
 *               "text_offset":[0]
 */
#include <math.h>

#include "net/net_exchange.h"

/* A token's own entry and NET_MAX_LOGPROBS others. */
enum { MOST_PROBS = 21 };
static const double never = -9999; /* stands for minus infinity, which JSON lacks */

static void add_number(float logprob, text *to)
{
    text_add_double(to, isfinite(logprob) ? (double)logprob : never);
}

/* The text of a token; freed by mpk_free.  NULL: it has none. */
static char *text_of(net_exchange *x, int32_t token, size_t *n)
{
    const mpk_tokenizer *tokenizer = mpk_engine_tokenizer(x->server->engine);
    char *bytes = NULL;
    *n = 0;
    if (tokenizer && mpk_detokenize(x->cx, tokenizer, &token, 1, &bytes, n) != MPK_OK)
        bytes = NULL;
    return bytes;
}

/* False for a token that is a part of a character: the tokenizer gives U+FFFD for it. */
static bool is_whole(str bytes)
{
    return !memmem(bytes.at, bytes.n, "\xef\xbf\xbd", 3);
}

/* The number of code points of a text. */
static size_t count_characters(str words)
{
    size_t n = 0;
    for (size_t i = 0; i < words.n; i++)
        n += ((unsigned char)words.at[i] & 0xc0) != 0x80;
    return n;
}

/* The name of a token: its text; or its id, if the text is a part of a character (several tokens
 * would have one name) or if the request asks for ids.  As vLLM does. */
static void write_name(const net_exchange *x, int32_t token, str bytes, text *to)
{
    if (is_whole(bytes) && !x->work.names_are_ids)
        json_write_str(to, bytes);
    else
        text_print(to, "\"token_id:%d\"", token);
}

/* A comma, unless the list is empty. */
static void separate(text *to)
{
    text_add(to, ",", to->n > 0);
}

/* {"token":..,"logprob":..,"bytes":[..] without the closing brace; with "id":.. in dialects that
 * have it. A token that is a part of a character has no text of its own: its bytes are null then,
 * and write_name shows it by its id. */
static void add_entry(net_exchange *x, const mpk_logprob *p, text *to)
{
    size_t n;
    char *bytes = text_of(x, p->token, &n);
    const str words = {bytes ? bytes : "", n};
    const bool whole = is_whole(words);
    text_print(to, "{");
    if (x->work.dialect->names_ids)
        text_print(to, "\"id\":%d,", p->token);
    text_print(to, "\"token\":");
    write_name(x, p->token, words, to);
    text_print(to, ",\"logprob\":");
    add_number(p->logprob, to);
    text_print(to, whole ? ",\"bytes\":[" : ",\"bytes\":null");
    for (size_t i = 0; whole && i < n; i++)
        text_print(to, i ? ",%u" : "%u", (unsigned char)bytes[i]);
    text_print(to, whole ? "]" : "");
    mpk_free(bytes);
}

/* An entry of a chat's list, with its top_logprobs. */
static void add_to_list(net_exchange *x, net_probs *to, const mpk_logprob *p, uint32_t n)
{
    separate(&to->tokens);
    add_entry(x, &p[0], &to->tokens);
    text_print(&to->tokens, ",\"top_logprobs\":[");
    for (uint32_t i = 1; i < n; i++) {
        text_add(&to->tokens, ",", i > 1);
        add_entry(x, &p[i], &to->tokens);
        text_print(&to->tokens, "}");
    }
    text_print(&to->tokens, "]}");
}

/* An object of the most probable tokens: text to log probability. */
static void add_tops(net_exchange *x, const mpk_logprob *p, uint32_t n, text *to)
{
    text_add(to, "{", 1);
    for (uint32_t i = 1; i < n; i++) {
        size_t n_bytes;
        char *bytes = text_of(x, p[i].token, &n_bytes);
        text_add(to, ",", i > 1);
        write_name(x, p[i].token, (str){bytes ? bytes : "", n_bytes}, to);
        text_print(to, ":");
        add_number(p[i].logprob, to);
        mpk_free(bytes);
    }
    text_add(to, "}", 1);
}

/* An entry of each of the four parallel lists. */
static void add_to_completion(net_exchange *x, net_probs *to, const mpk_logprob *p, uint32_t n)
{
    size_t n_bytes;
    char *bytes = text_of(x, p[0].token, &n_bytes);
    separate(&to->tokens);
    write_name(x, p[0].token, (str){bytes ? bytes : "", n_bytes}, &to->tokens);
    separate(&to->values);
    add_number(p[0].logprob, &to->values);
    separate(&to->tops);
    add_tops(x, p, n, &to->tops);
    separate(&to->offsets);
    text_print(&to->offsets, "%zu", to->offset);
    to->offset += count_characters((str){bytes ? bytes : "", n_bytes});
    mpk_free(bytes);
}

/* Is the first token of a text's prompt one that the tokenizer has put before the text? */
bool net_probs_is_mark(net_exchange *x, int32_t token, str prompt)
{
    size_t n;
    char *bytes = text_of(x, token, &n);
    const str words = {bytes ? bytes : "", n};
    const bool mark =
        is_whole(words) && (prompt.n < n || memcmp(prompt.at, words.at, words.n) != 0);
    mpk_free(bytes);
    return mark;
}

/* The first token of a prompt follows nothing, so it has no probability: null.  marked: the text
 * does not have it. */
static void add_first(net_exchange *x, net_probs *to, int32_t token, bool marked)
{
    size_t n_bytes;
    char *bytes = text_of(x, token, &n_bytes);
    write_name(x, token, (str){bytes ? bytes : "", n_bytes}, &to->tokens);
    text_print(&to->values, "null");
    text_print(&to->tops, "null");
    text_print(&to->offsets, "0");
    to->offset = marked ? 0 : count_characters((str){bytes ? bytes : "", n_bytes});
    mpk_free(bytes);
}

/* For `echo`: the prompt's tokens come before the answer's. */
static void add_echo(net_exchange *x, net_answer *a)
{
    mpk_logprob found[MOST_PROBS];
    add_first(x, &a->probs, a->first_token, a->marked);
    for (size_t i = 1; i < a->n_prompt; i++) {
        const uint32_t n = mpk_prompt_logprobs(a->request, i, found, 1 + x->work.n_top);
        add_to_completion(x, &a->probs, found, n);
    }
}

/* "ID":{"logprob":..,"rank":..,"decoded_token":..}; rank 0: not known. */
static void add_ranked(net_exchange *x, const mpk_logprob *p, uint32_t rank, text *to)
{
    size_t n;
    char *bytes = text_of(x, p->token, &n);
    text_print(to, "\"%d\":{\"logprob\":", p->token);
    add_number(p->logprob, to);
    if (rank)
        text_print(to, ",\"rank\":%u,\"decoded_token\":", rank);
    else
        text_print(to, ",\"rank\":null,\"decoded_token\":");
    write_name(x, p->token, (str){bytes ? bytes : "", n}, to);
    text_print(to, "}");
    mpk_free(bytes);
}

/* A token of a prompt, then the most probable ones except itself. */
static void add_ranks(net_exchange *x, const mpk_logprob *p, uint32_t n, text *to)
{
    uint32_t own = 0;
    for (uint32_t i = 1; i < n; i++)
        own = p[i].token == p[0].token ? i : own;
    text_print(to, ",{");
    add_ranked(x, &p[0], own, to);
    for (uint32_t i = 1; i < n; i++)
        if (i != own) {
            text_add(to, ",", 1);
            add_ranked(x, &p[i], i, to);
        }
    text_print(to, "}");
}

/* vLLM's list for the whole prompt. */
static void add_prompt(net_exchange *x, net_answer *a)
{
    mpk_logprob found[MOST_PROBS];
    text_print(&a->probs.prompt, "[null");
    for (size_t i = 1; i < a->n_prompt; i++) {
        const uint32_t n = mpk_prompt_logprobs(a->request, i, found, 1 + x->work.n_prompt_top);
        add_ranks(x, found, n, &a->probs.prompt);
    }
    text_print(&a->probs.prompt, "]");
}

/* Tokens from .. to - 1 of the answer have just come. MOST_PROBS has room for the token itself and
 * the most alternatives that a request may ask for. */
mpk_status net_probs_take(net_exchange *x, net_answer *a, size_t from, size_t to)
{
    mpk_logprob found[MOST_PROBS];
    net_probs *probs = &a->probs;
    if (from == 0 && x->work.prompt_logprobs)
        add_prompt(x, a);
    if (from == 0 && x->work.echo_logprobs)
        add_echo(x, a);
    for (size_t i = from; x->work.logprobs && i < to; i++) {
        const uint32_t n = mpk_request_logprobs(a->request, i, found, 1 + x->work.n_top);
        if (n && (x->work.dialect->is_chat || x->work.dialect->names_ids))
            add_to_list(x, probs, found, n);
        else if (n)
            add_to_completion(x, probs, found, n);
    }
    CHECK(x->cx,
          !probs->tokens.failed && !probs->values.failed && !probs->tops.failed &&
              !probs->offsets.failed && !probs->prompt.failed,
          MPK_ENOMEM, "out of memory for log probabilities");
    return MPK_OK;
}

/* Writes a list and empties it: in a stream each event has its own tokens only. */
static void move(const char *before, text *from, text *to)
{
    text_print(to, "%s[", before);
    text_add(to, from->at, from->n);
    text_add(to, "]", 1);
    from->n = 0;
}

/* A chat has a list of objects, a completion four lists side by side; "logprobs" is always a
 * member, null if none were asked for. */
void net_probs_move(const net_exchange *x, net_answer *a, text *to)
{
    net_probs *p = &a->probs;
    text_print(to, ",\"logprobs\":");
    if (!x->work.logprobs)
        text_print(to, "null");
    else if (x->work.dialect->is_chat) {
        move("{\"content\":", &p->tokens, to);
        text_print(to, ",\"refusal\":null}");
    } else {
        move("{\"tokens\":", &p->tokens, to);
        move(",\"token_logprobs\":", &p->values, to);
        move(",\"top_logprobs\":", &p->tops, to);
        move(",\"text_offset\":", &p->offsets, to);
        text_print(to, "}");
    }
}

/* Safe to call twice. */
void net_probs_close(net_probs *p)
{
    text_free(&p->tokens);
    text_free(&p->values);
    text_free(&p->tops);
    text_free(&p->offsets);
    text_free(&p->prompt);
    *p = (net_probs){0};
}
