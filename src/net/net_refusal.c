/* net_refusal.c - why a request is refused, in terms of HTTP. */
#include <stdbool.h>
#include <stdio.h>

#include "net/net_refusal.h"

/* The status of the library is always MPK_EARG; the HTTP status, the field and the code are kept
 * beside it for the reply. `format` is written for the client. */
mpk_status net_refuse(mpk_context *cx, net_refusal *why, int http, const char *field,
                      const char *code, const char *format, ...)
{
    char words[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(words, sizeof words, format, values);
    va_end(values);
    why->http = http;
    why->code = code;
    snprintf(why->field, sizeof why->field, "%s", field ? field : "");
    return status_fail(cx, MPK_EARG, "%s", words);
}

/* What the client can cause is its fault, 400; anything else is 500.  A refusal that is already
 * filled stays. */
void net_refuse_status(net_refusal *why, mpk_status status)
{
    const bool theirs = status == MPK_EARG || status == MPK_EFORMAT || status == MPK_ELIMIT ||
                        status == MPK_EUNSUPPORTED;
    if (why->http)
        return;
    why->http = theirs ? 400 : 500;
    why->code = NULL;
    why->field[0] = 0;
}
