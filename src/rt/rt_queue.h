/* rt_queue.h - circular buffers (paper §6.1): queues of events and JIT tasks among workers, rings between host and
 * machine.
 *
 * Queues have many writers and many readers.  A writer takes a ticket with one atomic add; the slot's turn word passes
 * the slot back and forth.  No writer ever waits: the target makes each queue as long as the entries that one step can
 * put into it (rt_jit_bound, rt_event_bound), every entry of a step is taken before the step ends, and so no slot is
 * used twice in a step.  An entry that found its slot taken all the same would be refused, never overwritten.
 *
 * Rings have one writer and one reader; the count that a side does not own is read with acquire.
 * Cost: push 2 atomics, pop 3, on lines that are in the reader's cache while nothing happens.
 */
#ifndef RT_QUEUE_H
#define RT_QUEUE_H

#include "rt/rt.h"

/* Every slot free for its first ticket. */
RT_FN void rt_queue_reset(rt_queue *q, rt_slot_word *slots, rt_u32 mask)
{
    q->written.value = 0;
    q->read.value = 0;
    for (rt_u32 i = 0; i <= mask; i++) {
        slots[i].turn.value = i;
        slots[i].item = 0;
    }
}

/* Append.  0: the slot is still taken; the queue is then unusable and the caller must raise RT_OVERFLOW. */
RT_FN int rt_queue_push(rt_queue *q, rt_slot_word *slots, rt_u32 mask, rt_u32 item)
{
    rt_u32 ticket = rt_add_acq_rel_device(&q->written, 1);
    rt_slot_word *s = &slots[ticket & mask];
    if (rt_load_acquire_device(&s->turn) != ticket) /* partner: the release in rt_queue_pop */
        return 0;
    s->item = item;
    rt_store_release_device(&s->turn, ticket + 1); /* publishes the item and all that happened before */
    return 1;
}

/* Take the oldest entry.  0: none, or another reader was faster; *item stays. */
RT_FN int rt_queue_pop(rt_queue *q, rt_slot_word *slots, rt_u32 mask, rt_u32 *item)
{
    rt_u32 ticket = rt_load_relaxed_device(&q->read);
    rt_slot_word *s = &slots[ticket & mask];
    if (rt_load_acquire_device(&s->turn) != ticket + 1) /* partner: the release in rt_queue_push */
        return 0;
    if (!rt_replace_acq_rel_device(&q->read, ticket, ticket + 1))
        return 0;
    *item = s->item;
    rt_store_release_device(&s->turn, ticket + mask + 1); /* the slot is free for the next round */
    return 1;
}

/* ---- rings: `capacity` is a power of two ---- */

/* Entries that the writer may add. */
RT_FN rt_u32 rt_ring_space(const rt_ring *r, rt_u32 capacity)
{
    return capacity - (rt_load_relaxed_device(&r->written) - rt_load_acquire_system(&r->read));
}

/* Entries that the reader may take. */
RT_FN rt_u32 rt_ring_ready(const rt_ring *r)
{
    return rt_load_acquire_system(&r->written) - rt_load_relaxed_device(&r->read);
}

/* The writer has filled the next n entries; the reader is done with them. */
RT_FN void rt_ring_wrote(rt_ring *r, rt_u32 n)
{
    rt_store_release_system(&r->written, rt_load_relaxed_device(&r->written) + n);
}
RT_FN void rt_ring_took(rt_ring *r, rt_u32 n)
{
    rt_store_release_system(&r->read, rt_load_relaxed_device(&r->read) + n);
}

/* ---- how long the queues must be ---- */

/* Entries that one step of a graph can put into the JIT queue of one worker: a scheduler deals an event's JIT tasks in
 * turn, so a worker gets at most ceil(n / W) of them, whatever scheduler it is and wherever its turn began. */
RT_FN rt_u64 rt_jit_bound(const rt_graph *g, const rt_event *events, rt_u32 n_workers)
{
    rt_u64 n = 0;
    for (rt_u32 e = 0; e < g->n_events; e++)
        n += ((rt_u64)events[g->first_event + e].jit + n_workers - 1) / n_workers;
    return n;
}

/* Entries that one step can put into the event queue of one scheduler: each event with JIT tasks is activated once. */
RT_FN rt_u64 rt_event_bound(const rt_graph *g, const rt_event *events)
{
    rt_u64 n = 0;
    for (rt_u32 e = 0; e < g->n_events; e++)
        n += events[g->first_event + e].jit != 0;
    return n;
}

#endif
