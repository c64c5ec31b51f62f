/* net_parameters.h - every parameter of a completion, a chat, a response or a message that the
 * documents of OpenAI, Anthropic, vLLM, SGLang and llama-server name: which are read, which have
 * no effect, and which are refused.
 *
 * No parameter is dropped silently: one that would change the answer and is not supported is
 * refused by its name, one that no document names is listed in the reply's header
 * X-Ignored-Parameters and in the log line.
 */
#ifndef NET_PARAMETERS_H
#define NET_PARAMETERS_H

#include "base/json.h"
#include "mpk/mpk.h"
#include "net/net_refusal.h"

/* Endpoints, as bits. */
enum {
    NET_FOR_COMPLETION = 1,
    NET_FOR_CHAT = 2,
    NET_FOR_RESPONSES = 4,
    NET_FOR_MESSAGES = 8,
    NET_FOR_INFILL = 16,
    NET_FOR_VECTORS = 32, /* embeddings, scores, ranks */
    NET_FOR_LLAMA = 64,   /* llama-server's own completion */
    NET_IGNORED_BYTES = 256,
};

/* Check the members of a body for one endpoint.  *ignored: the unknown names, separated by
 * commas, cut off if they are too many.  MPK_EARG with *why filled. */
mpk_status net_parameters_check(mpk_context *cx, const json_value *body, unsigned endpoint,
                                char ignored[NET_IGNORED_BYTES], net_refusal *why);

#endif
