/* net_rules.h - the parameters that change logits before a token is drawn, and the tokens that
 * end an answer, under the names of all servers that have them. */
#ifndef NET_RULES_H
#define NET_RULES_H

#include "base/json.h"
#include "mpk/mpk.h"
#include "net/net_refusal.h"

/* Read them into *to, which keeps what the model's makers suggest where the body says nothing;
 * lists lie in the arena.  MPK_EARG with *why filled, MPK_ENOMEM. */
mpk_status net_rules_read(mpk_context *cx, arena *a, const json_value *body,
                          mpk_request_options *to, net_refusal *why);

#endif
