/* net_messages.h - Anthropic's API: its requests, its errors. */
#ifndef NET_MESSAGES_H
#define NET_MESSAGES_H

#include "net/net_exchange.h"

/* Read the body, rewritten as a chat; 400, 404. */
mpk_status net_messages_read(net_exchange *x, net_request *out);
void net_messages_write_error(const net_exchange *x, text *to);

#endif
