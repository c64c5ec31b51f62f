/* net_rewrite.h - the body of a chat, written from a request of another API.
 *
 * Order of calls: messages and tools in any order, net_rewrite_lists, the other members,
 * net_rewrite_read.
 */
#ifndef NET_REWRITE_H
#define NET_REWRITE_H

#include "net/net_exchange.h"

/* The most renamed members. */
enum { NET_REWRITE_RENAMED = 4 };

/* The body while it is written.  Zero-initialise; free with net_rewrite_free. */
typedef struct net_rewrite {
    text messages, tools, body;
    text content, reasoning, calls; /* of the message that is being written */
    struct {
        const char *chat, *own;
        /* members that have another name in the client's body: of the chat, and its own */
    } renamed[NET_REWRITE_RENAMED];
    unsigned n_renamed;
} net_rewrite;

/* Check the parameters of the other API's body. */
mpk_status net_rewrite_check(net_exchange *x, const json_value *body, unsigned endpoint);
/* A message: begin, its parts, end. */
void net_rewrite_begin(net_rewrite *w, str role);
void net_rewrite_text(net_rewrite *w, str words);
void net_rewrite_reasoning(net_rewrite *w, str words);
/* arguments: an object, or a text that holds one; NULL: none. */
void net_rewrite_call(net_rewrite *w, str id, str name, const json_value *arguments);
void net_rewrite_end(net_rewrite *w);
/* A message that is the result of a call. */
void net_rewrite_result(net_rewrite *w, str id, str words);
/* A tool; its members 'description' and 'strict' are taken over. */
void net_rewrite_tool(net_rewrite *w, str name, const json_value *tool, const json_value *schema);
void net_rewrite_lists(net_rewrite *w);
/* A member of the body; it is left out if value is NULL. */
void net_rewrite_value(net_rewrite *w, const char *name, const json_value *value);
/* Members that mean what they do in a chat and have its name: is this one of them?  And write all
 * that a body has. */
bool net_rewrites_same(str name);
void net_rewrite_same(net_rewrite *w, const json_value *body);
/* The same for a member that the other API calls `own`, so that a refusal names it so.  Both
 * names are static; at most NET_REWRITE_RENAMED of them. */
void net_rewrite_renamed(net_rewrite *w, const char *name, const char *own,
                         const json_value *value);
void net_rewrite_word(net_rewrite *w, const char *name, str value);
void net_rewrite_raw(net_rewrite *w, const char *name, const char *json);
/* The tool of this name must be called. */
void net_rewrite_choice(net_rewrite *w, str name);
/* Read the written body as a chat. */
mpk_status net_rewrite_read(net_exchange *x, net_rewrite *w, net_request *out);
void net_rewrite_free(net_rewrite *w);

#endif
