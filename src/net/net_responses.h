/* net_responses.h - OpenAI's API of responses: its requests. */
#ifndef NET_RESPONSES_H
#define NET_RESPONSES_H

#include "net/net_exchange.h"

/* Read the body, rewritten as a chat; x->work.echo gets the members that the reply repeats.
 * 400, 404. */
mpk_status net_responses_read(net_exchange *x, net_request *out);

#endif
