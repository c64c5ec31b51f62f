/* net_calls.h - answers that call tools as they must: tools, tool_choice and the template's way to
 * write calls -> a form of the answer (a structural tag, docs/structured-output.md).
 *
 * A call that must come (tool_choice) is held from the first token on; the calls of strict tools,
 * once one has begun.  Either way their arguments are valid by the tools' schemas.  Called by
 * net_chat.c between prompt and submission.
 */
#ifndef NET_CALLS_H
#define NET_CALLS_H

#include "net/net_exchange.h"

/* The prompt of q has been made; told: its tools are told by net_tools.c, not by the template.  The
 * form goes into q->sampling, its source into the arena of x; *style: how calls are to be read from
 * the answer.  Templates whose calls begin with a token that has no text get it at the end of
 * *prompt.  400 where the template's way is not known. */
mpk_status net_calls_hold(net_exchange *x, net_request *q, bool told, text *prompt,
                          net_call_style *style);

#endif
