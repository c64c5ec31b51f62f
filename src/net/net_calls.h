/* net_calls.h - answers that must call tools: tools, tool_choice and the template's style of
 * calls -> a form of the answer (a structural tag, docs/structured-output.md).
 *
 * A call that must come (tool_choice) is held from the first token on; calls of strict tools
 * once one has begun.  In both cases the arguments are valid by the tools' schemas.  Called by
 * net_chat.c between prompt and submission.
 */
#ifndef NET_CALLS_H
#define NET_CALLS_H

#include "net/net_exchange.h"

/* Set q->sampling to the form that holds the calls of q, if any must be held; its source is in
 * the arena of x.  *prompt is the rendered prompt; templates whose calls begin with a token that
 * has no text get that token appended.  told: the tools were told by net_tools.c, not by the
 * template.  *style: how calls are to be read from the answer.  400 if the template's style is
 * not known. */
mpk_status net_calls_hold(net_exchange *x, net_request *q, bool told, text *prompt,
                          net_call_style *style);

#endif
