/* net_reader.h - what the readers of requests share: members of a body by their type, and the
 * parameters that completions and chats have in common.  net_request.c reads completions,
 * net_request_chat.c chats.
 *
 * Each function leaves *to as it is if the member is absent or null, and refuses a member of
 * another type by its name: MPK_EARG with *why filled.
 */
#ifndef NET_READER_H
#define NET_READER_H

#include "net/net_request.h"

/* A body while it is read. */
typedef struct net_reader {
    mpk_context *cx;
    arena *a;               /* owns what *out points to outside the body */
    const json_value *body; /* or one of its objects */
    net_request *out;
    net_refusal *why;
} net_reader;

#define REFUSE(r, field, ...) return net_refuse((r)->cx, (r)->why, 400, (field), NULL, __VA_ARGS__)

mpk_status net_read_flag(net_reader *r, const char *key, bool *to);
/* A whole number from least to most; 16.0 is one. */
mpk_status net_read_whole(net_reader *r, const char *key, int64_t least, int64_t most, int64_t *to);
mpk_status net_read_real(net_reader *r, const char *key, double least, double most, float *to);
/* A text as a C string in the arena; *to is NULL if it is absent. */
mpk_status net_read_words(net_reader *r, const char *key, const char **to);
/* A value as JSON text in the arena. */
mpk_status net_read_json(net_reader *r, const json_value *value, const char **to);

/* ---- net_request.c ---- */

/* All parameters that do not depend on the endpoint (NET_FOR_..), except the length of the
 * answer; suggested: the defaults. */
mpk_status net_read_shared(net_reader *r, unsigned endpoint, const mpk_request_options *suggested);
/* llama-server's name of max_tokens; -1: until the context is full, which is 0 in *max_tokens. */
mpk_status net_read_n_predict(net_reader *r, int64_t *max_tokens);

#endif
