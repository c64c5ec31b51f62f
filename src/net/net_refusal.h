/* net_refusal.h - why a request is refused, in terms of HTTP; the message is in the context. */
#ifndef NET_REFUSAL_H
#define NET_REFUSAL_H

#include "base/status.h"

typedef struct net_refusal {
    int http;         /* status; 0: not refused */
    const char *code; /* for programs, "context_length_exceeded"; NULL: none */
    char field[64];   /* the name of the parameter; "": none */
} net_refusal;

/* Put the message into cx and the rest into *why; returns MPK_EARG. */
mpk_status net_refuse(mpk_context *cx, net_refusal *why, int http, const char *field,
                      const char *code, const char *format, ...) BASE_PRINTF(6, 7);
/* Fill *why from a status of the engine, unless it is filled: what a request can cause is 400. */
void net_refuse_status(net_refusal *why, mpk_status status);

#endif
