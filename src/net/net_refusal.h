/* net_refusal.h - why a request is not answered, in HTTP's terms; the words are in the context. */
#ifndef NET_REFUSAL_H
#define NET_REFUSAL_H

#include "base/status.h"

typedef struct net_refusal {
    int http;         /* status; 0: not refused */
    const char *code; /* for programs, "context_length_exceeded"; NULL: none */
    char field[64];   /* which parameter; "": none */
} net_refusal;

/* Set the words in cx, the rest in *why, and return MPK_EARG. */
mpk_status net_refuse(mpk_context *cx, net_refusal *why, int http, const char *field,
                      const char *code, const char *format, ...) BASE_PRINTF(6, 7);
/* A refusal for a status of the engine that nobody has put into HTTP's terms: what a request can
 * cause is 400. */
void net_refuse_status(net_refusal *why, mpk_status status);

#endif
