/* net_form.h - the form that a body asks the answer to have, under the names of all servers that
 * have one. */
#ifndef NET_FORM_H
#define NET_FORM_H

#include "base/json.h"
#include "mpk/mpk.h"
#include "net/net_refusal.h"

/* Read it into form and form_source of *to, the source in the arena, and the name of the member
 * that brings it into *name; neither is changed if the body asks for none.  MPK_EARG with *why
 * filled, MPK_ENOMEM. */
mpk_status net_form_read(mpk_context *cx, arena *a, const json_value *body, mpk_request_options *to,
                         const char **name, net_refusal *why);

#endif
