/* net_items.h - an answer as a list of items, as the APIs of messages and responses have it:
 * reasoning, texts, calls.
 *
 * An item is a range of the answer's reasoning or content (which are kept whole), or one call.
 * In a stream an item grows until one of another kind begins; in a document everything comes at
 * once.
 */
#ifndef NET_ITEMS_H
#define NET_ITEMS_H

#include "net/net_exchange.h"

typedef enum net_item_kind { NET_ITEM_REASONING, NET_ITEM_TEXT, NET_ITEM_CALL } net_item_kind;

typedef struct net_item {
    net_item_kind kind;
    bool done;
    size_t from, to; /* range of the reasoning or the content, in bytes */
    uint32_t call;   /* index of the call */
} net_item;

/* What a stream writes about item `index`: its begin, a further piece of its text, its end. */
typedef struct net_item_events {
    void (*begin)(net_exchange *x, net_answer *a, uint32_t index, text *to);
    void (*add)(net_exchange *x, net_answer *a, uint32_t index, str piece, text *to);
    void (*end)(net_exchange *x, net_answer *a, uint32_t index, text *to);
} net_item_events;

/* Put what is new in the answer into items, and write their events.  events NULL: none are
 * written. */
void net_items_take(net_exchange *x, net_answer *a, const net_item_events *events, text *to);
uint32_t net_items_count(const net_answer *a);
const net_item *net_items_at(const net_answer *a, uint32_t index);
/* The text of an item; for a call, its arguments. */
str net_items_text(const net_answer *a, const net_item *item);
bool net_items_any_call(const net_answer *a);

#endif
