/* net_request.h - what the body of a completion asks for: the JSON of a client -> a request
 * whose every field is checked.
 *
 * The fields are those of OpenAI's API and those that vLLM, SGLang and llama-server add; null
 * counts as absent. net_parameters.h describes how each is treated.
 */
#ifndef NET_REQUEST_H
#define NET_REQUEST_H

#include "base/json.h"
#include "mpk/mpk.h"
#include "net/net_parameters.h"
#include "net/net_refusal.h"

/* Limits of a request; NET_MAX_VALUES: JSON values of a body. */
enum { NET_MAX_STOPS = 16, NET_MAX_ANSWERS = 128, NET_MAX_LOGPROBS = 20, NET_MAX_VALUES = 1 << 20 };
enum { NET_MAX_DRAFTS = 64 };

/* A mark at the end of a last message that the answer shall continue; the prompt is cut off
 * there. */
#define NET_CONTINUED "CONTINUE_FINAL_MESSAGE_TAG"

/* A prompt: a text, or token ids if text.at is NULL. */
typedef struct net_prompt {
    str text;
    const int32_t *ids;
    size_t n_ids;
} net_prompt;

/* A checked request.  Texts are slices of the body or lie in the arena that the reader was
 * given. */
typedef struct net_request {
    mpk_request_options sampling; /* max_tokens 0: until the context is full */
    const char *stops[NET_MAX_STOPS];
    /* the parameter that brought the form of the answer; NULL: none, or several */
    const char *form_name;
    uint32_t n_answers; /* for each prompt */
    /* how many of these the client gets, the most probable ones; equal to n_answers: all */
    uint32_t n_shown;
    bool has_seed, stream, echo;
    bool prompt_logprobs; /* the reply has them */
    bool token_ids;       /* the ids of prompt and answer, too */
    bool names_are_ids;   /* tokens in lists of log probabilities are named by their ids */
    /* how many of the most probable tokens are listed beside one of the answer, and of the
     * prompt */
    uint32_t n_top, n_prompt_top;
    bool include_usage, usage_always; /* in a stream: at its end; in every event */
    int64_t ping_s;                   /* seconds without an event before a ping is sent; 0: never */
    bool has_ping;                    /* ping_s was given; otherwise the server's value applies */
    /* add the tokens around the prompt that the tokenizer adds */
    bool special;
    /* keep this many tokens of a prompt, its last ones; 0: all; -1: as many as fit */
    int32_t truncate;
    char ignored[NET_IGNORED_BYTES]; /* names of unknown parameters */
    /* for completions */
    const net_prompt *prompts;
    size_t n_prompts;
    str suffix; /* the text after the answer, which fills the gap; at NULL: not given */
    /* for chats: JSON for mpk_chat_prompt, as C strings; NULL: not given */
    str messages;
    const char *tools, *variables, *chat_template;
    bool no_answer; /* the prompt ends after the last message */
    bool continues; /* the prompt ends within the last message, at NET_CONTINUED */
    bool hide_reasoning;
    bool one_call;               /* at most one call of a tool */
    bool must_call;              /* the answer must be calls */
    const json_value *tool_list; /* the tools that may be called; NULL: none */
    const json_value *only_tool; /* the tool of these that must be called; NULL: any */
} net_request;

/* An upper bound of the values of a document.  More than NET_MAX_VALUES are refused, 413, since
 * a tree of them takes a hundred times their text. */
mpk_status net_request_count_values(mpk_context *cx, str body, size_t *n_values, net_refusal *why);
/* Each reads into *out, which keeps slices of the body; `suggested` has the defaults of
 * sampling.  MPK_EARG with *why filled, MPK_ENOMEM. */
mpk_status net_request_read_completion(mpk_context *cx, arena *a, const json_value *body,
                                       const mpk_request_options *suggested, net_request *out,
                                       net_refusal *why);
/* The parameters of llama-server's own endpoints, NET_FOR_LLAMA or NET_FOR_INFILL, without the
 * prompts, which net_llama.c and net_infill.c read. */
mpk_status net_request_read_llama(mpk_context *cx, arena *a, const json_value *body,
                                  unsigned endpoint, const mpk_request_options *suggested,
                                  net_request *out, net_refusal *why);
mpk_status net_request_read_chat(mpk_context *cx, arena *a, const json_value *body,
                                 const mpk_request_options *suggested, net_request *out,
                                 net_refusal *why);
/* A list of token ids; name: of the parameter, for refusals. */
mpk_status net_request_read_ids(mpk_context *cx, arena *a, const json_value *list, const char *name,
                                const int32_t **ids, size_t *n, net_refusal *why);

#endif
