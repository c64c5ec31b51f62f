/* net_responses.h - OpenAI's API of responses: its requests. */
#ifndef NET_RESPONSES_H
#define NET_RESPONSES_H

#include "net/net_exchange.h"

/* The body, rewritten as a chat and read as that; what the reply repeats of it goes to
 * x->work.echo; 400, 404. */
mpk_status net_responses_read(net_exchange *x, net_request *out);

#endif
