/* net_request.h - what the body of a completion asks for: JSON of a stranger -> a request whose
 * every field is checked.
 *
 * The fields are those of OpenAI's API and those that vLLM, SGLang and llama-server add; null
 * counts as absent.  net_parameters.h says what becomes of each.
 */
#ifndef NET_REQUEST_H
#define NET_REQUEST_H

#include "base/json.h"
#include "mpk/mpk.h"
#include "net/net_parameters.h"
#include "net/net_refusal.h"

enum { NET_MAX_STOPS = 16, NET_MAX_ANSWERS = 128, NET_MAX_LOGPROBS = 20, NET_MAX_VALUES = 1 << 20 };
enum { NET_MAX_DRAFTS = 64 };

/* Stands at the end of a last message that the answer shall continue, until the prompt is cut off
 * there. */
#define NET_CONTINUED "CONTINUE_FINAL_MESSAGE_TAG"

/* A text, or token ids if text.at is NULL. */
typedef struct net_prompt {
    str text;
    const int32_t *ids;
    size_t n_ids;
} net_prompt;

typedef struct net_request {
    mpk_request_options sampling; /* max_tokens 0: until the context is full */
    const char *stops[NET_MAX_STOPS];
    uint32_t n_answers; /* of each prompt */
    uint32_t n_shown;   /* of these, the most probable ones; as many as n_answers: all */
    bool has_seed, stream, echo;
    bool prompt_logprobs; /* the reply has them */
    bool token_ids;       /* and the ids of the prompt and of the answer */
    bool names_are_ids;   /* tokens with log probabilities are called by their ids */
    /* the most probable tokens that stand beside one of the answer, and of the prompt */
    uint32_t n_top, n_prompt_top;
    bool include_usage, usage_always; /* in a stream: at its end, in every event */
    int64_t ping_s;                   /* seconds without an event before a ping; 0: none */
    bool has_ping;                    /* else as the server has it */
    /* put the tokens around the prompt that the tokenizer asks for */
    bool special;
    /* keep so many tokens of a prompt, its last; 0: all; -1: as many as fit */
    int32_t truncate;
    char ignored[NET_IGNORED_BYTES]; /* parameters that nobody documents */
    /* of a completion */
    const net_prompt *prompts;
    size_t n_prompts;
    str suffix; /* what comes after the answer, which fills the gap; at NULL: not given */
    /* of a chat: JSON for mpk_chat_prompt, NUL-terminated; NULL: not given */
    str messages;
    const char *tools, *variables, *chat_template;
    bool no_answer; /* end the prompt after the last message */
    bool continues; /* end it where the content of the last message ends, at NET_CONTINUED */
    bool hide_reasoning;
    bool one_call;               /* of a tool at most */
    bool must_call;              /* the answer is calls */
    const json_value *tool_list; /* of the tools that may be called; NULL: none */
    const json_value *only_tool; /* of these, the one that must be called; NULL: any */
} net_request;

/* How many values a document has at most; more than NET_MAX_VALUES are refused, since as a tree
 * they take a hundred times their size. */
mpk_status net_request_count_values(mpk_context *cx, str body, size_t *n_values, net_refusal *why);
/* Each reads into *out, which keeps slices of the document: sampling, as suggested for this model,
 * is the default.  Statuses: MPK_EARG with *why filled, MPK_ENOMEM. */
mpk_status net_request_read_completion(mpk_context *cx, arena *a, const json_value *body,
                                       const mpk_request_options *suggested, net_request *out,
                                       net_refusal *why);
/* The parameters of llama-server's own endpoints, NET_FOR_LLAMA or NET_FOR_INFILL; their prompts
 * are read by net_llama.c and net_infill.c. */
mpk_status net_request_read_llama(mpk_context *cx, arena *a, const json_value *body,
                                  unsigned endpoint, const mpk_request_options *suggested,
                                  net_request *out, net_refusal *why);
mpk_status net_request_read_chat(mpk_context *cx, arena *a, const json_value *body,
                                 const mpk_request_options *suggested, net_request *out,
                                 net_refusal *why);
/* A member that is a list of token ids. */
mpk_status net_request_read_ids(mpk_context *cx, arena *a, const json_value *list, const char *name,
                                const int32_t **ids, size_t *n, net_refusal *why);

#endif
