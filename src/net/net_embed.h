/* net_embed.h - the handlers of a server of embeddings; called by net_route.c. */
#ifndef NET_EMBED_H
#define NET_EMBED_H

#include "net/net_exchange.h"

mpk_status net_embed_vectors(net_exchange *x, const char *path);
mpk_status net_embed_score(net_exchange *x, const char *path);
mpk_status net_embed_rerank(net_exchange *x, const char *path);

#endif
