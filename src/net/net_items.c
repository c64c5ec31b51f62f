/* net_items.c - an answer as a list of items: reasoning, texts, calls (net_items.h).
 *
 * Texts are not copied: an item is a range of the answer's reasoning or content, which therefore
 * stay whole until the answer is closed.  Invariant: all items but the last are done.
 *
 *   reasoning "Let me see", content "I call f", call f  ->  items 0-2, each begun, grown, ended
 */
#include "net/net_items.h"

uint32_t net_items_count(const net_answer *a)
{
    return (uint32_t)(a->items.n / sizeof(net_item));
}

const net_item *net_items_at(const net_answer *a, uint32_t index)
{
    return (const net_item *)(const void *)a->items.at + index;
}

static net_item *last(net_answer *a)
{
    const uint32_t n = net_items_count(a);
    return n ? (net_item *)(void *)a->items.at + n - 1 : NULL;
}

/* A text's item is a range of the answer's text, which only grows: so an item stays valid while the
 * answer goes on, though the bytes may move. */
str net_items_text(const net_answer *a, const net_item *item)
{
    const text *from = item->kind == NET_ITEM_REASONING ? &a->parts.reasoning : &a->parts.content;
    if (item->kind == NET_ITEM_CALL)
        return a->parts.calls.at[item->call].arguments;
    return (str){from->at ? from->at + item->from : "", item->to - item->from};
}

bool net_items_any_call(const net_answer *a)
{
    return a->parts.calls.n > 0;
}

/* Mark the last item as done, and write its end event.  events NULL: a document is written at
 * the end, and nothing is sent meanwhile. */
static void end_last(net_exchange *x, net_answer *a, const net_item_events *events, text *to)
{
    net_item *item = last(a);
    if (!item || item->done)
        return;
    item->done = true;
    if (events)
        events->end(x, a, net_items_count(a) - 1, to);
}

/* End the last item and append another one, with its event. */
static void begin(net_exchange *x, net_answer *a, const net_item *item,
                  const net_item_events *events, text *to)
{
    end_last(x, a, events, to);
    text_add(&a->items, (const char *)item, sizeof *item);
    to->failed |= a->items.failed;
    if (events && !a->items.failed)
        events->begin(x, a, net_items_count(a) - 1, to);
}

/* Take what is new in the reasoning or the content, which has n bytes now, of which *n_taken are
 * in items.  The last item grows if it is of this kind; otherwise another one begins. */
static void grow(net_exchange *x, net_answer *a, net_item_kind kind, size_t n, size_t *n_taken,
                 const net_item_events *events, text *to)
{
    if (n == *n_taken)
        return;
    if (!last(a) || last(a)->kind != kind)
        begin(x, a, &(net_item){.kind = kind, .from = *n_taken, .to = *n_taken}, events, to);
    if (a->items.failed)
        return;
    net_item *item = last(a);
    const size_t before = item->to - item->from;
    item->to = n;
    *n_taken = n;
    str piece = net_items_text(a, item);
    if (events)
        events->add(x, a, net_items_count(a) - 1, (str){piece.at + before, piece.n - before}, to);
}

/* A call is complete when it is parsed: it begins, is written and ends at once. */
static void add_call(net_exchange *x, net_answer *a, uint32_t call, const net_item_events *events,
                     text *to)
{
    begin(x, a, &(net_item){.kind = NET_ITEM_CALL, .call = call}, events, to);
    if (events && !a->items.failed)
        events->add(x, a, net_items_count(a) - 1, a->parts.calls.at[call].arguments, to);
    if (!a->items.failed)
        end_last(x, a, events, to);
}

/* Reasoning precedes content, content precedes calls, as the parser yields them. */
void net_items_take(net_exchange *x, net_answer *a, const net_item_events *events, text *to)
{
    grow(x, a, NET_ITEM_REASONING, a->parts.reasoning.n, &a->n_reasoning_taken, events, to);
    grow(x, a, NET_ITEM_TEXT, a->parts.content.n, &a->n_content_taken, events, to);
    for (; a->n_calls_sent < a->parts.calls.n && !a->items.failed; a->n_calls_sent++)
        add_call(x, a, a->n_calls_sent, events, to);
    if (!a->request)
        end_last(x, a, events, to);
}
