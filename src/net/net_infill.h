/* net_infill.h - a gap between two texts -> the tokens of a prompt whose answer fills it. */
#ifndef NET_INFILL_H
#define NET_INFILL_H

#include "net/net_exchange.h"

/* The texts around a gap; slices of the body. */
typedef struct net_gap {
    str before, after;
    str begun;                /* how the text in the gap begins */
    const json_value *extras; /* a list of {"filename", "text"}; NULL: none */
} net_gap;

/* The prompt's tokens; *ids is in the arena of x.  400: the model has no tokens for gaps, or the
 * texts are too long. */
mpk_status net_infill_ids(net_exchange *x, const net_gap *gap, const int32_t **ids, size_t *n);
mpk_status net_infill_run(net_exchange *x, const char *path);

#endif
