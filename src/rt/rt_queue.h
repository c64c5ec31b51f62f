/* rt_queue.h - circular buffers (paper §6.1): queues of events and JIT tasks among workers, rings
 * between host and machine.
 *
 * Queues have many writers and many readers.  A writer takes a ticket with one atomic add; the turn
 * word of the ticket's cell passes the cell back and forth between writers and readers.  A reader
 * claims the oldest ticket by compare and swap, and only after the turn word says that the item is
 * there; so no reader ever holds up another.
 *
 * Invariant: no writer waits and no entry is overwritten.  The host makes each queue as long as the
 * number of entries that one step can put into it (rt_jit_bound, rt_event_bound).  Every entry of a
 * step is taken before the step ends, so no cell is used twice in a step.  A push that finds its
 * cell taken all the same fails (RT_OVERFLOW).
 *
 * Rings have one writer and one reader.  Each side owns one count, and loads the other's with
 * acquire: the writer's entries are visible before the reader sees the count that covers them, and
 * a cell is reused only after its reader has let go of it.
 *
 * Cost: push 2 atomics, pop 3, on lines that stay in the reader's cache while nothing happens.
 */
#ifndef RT_QUEUE_H
#define RT_QUEUE_H

#include "rt/rt.h"

/* Make every cell free for its first ticket; no other thread uses the queue yet. */
RT_FN void rt_queue_reset(rt_queue *q, rt_slot_word *slots, rt_u32 mask)
{
    q->written.value = 0;
    q->read.value = 0;
    for (rt_u32 i = 0; i <= mask; i++) {
        slots[i].turn.value = i;
        slots[i].item = 0;
    }
}

/* Append an item.  0: the cell is still taken; the ticket is lost, the queue unusable, and the
 * caller must raise RT_OVERFLOW. */
RT_FN int rt_queue_push(rt_queue *q, rt_slot_word *slots, rt_u32 mask, rt_u32 item)
{
    rt_u32 ticket = rt_add_acq_rel_device(&q->written, 1);
    rt_slot_word *s = &slots[ticket & mask];
    if (rt_load_acquire_device(&s->turn) != ticket) /* partner: the release in rt_queue_pop */
        return 0;
    s->item = item;
    /* publishes the item and all that happened before */
    rt_store_release_device(&s->turn, ticket + 1);
    return 1;
}

/* Take the oldest item.  0: there is none, or another reader was faster; *item is unchanged.  The
 * item is read after the claim, which is safe: only the claimant sets the turn that lets a writer
 * reuse the cell. */
RT_FN int rt_queue_pop(rt_queue *q, rt_slot_word *slots, rt_u32 mask, rt_u32 *item)
{
    rt_u32 ticket = rt_load_relaxed_device(&q->read);
    rt_slot_word *s = &slots[ticket & mask];
    if (rt_load_acquire_device(&s->turn) != ticket + 1) /* partner: the release in rt_queue_push */
        return 0;
    if (!rt_replace_acq_rel_device(&q->read, ticket, ticket + 1))
        return 0;
    *item = s->item;
    /* the cell is free for the ticket one round later */
    rt_store_release_device(&s->turn, ticket + mask + 1);
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

/* The writer has filled the next n entries (rt_ring_wrote), the reader has finished with them
 * (rt_ring_took). */
RT_FN void rt_ring_wrote(rt_ring *r, rt_u32 n)
{
    rt_store_release_system(&r->written, rt_load_relaxed_device(&r->written) + n);
}
RT_FN void rt_ring_took(rt_ring *r, rt_u32 n)
{
    rt_store_release_system(&r->read, rt_load_relaxed_device(&r->read) + n);
}

/* ---- how long the queues must be ---- */

/* Entries that one step of a graph can put into the JIT queue of one worker.  A scheduler deals an
 * event's n JIT tasks in turn, so a worker gets at most ceil(n / W) of them, whichever scheduler
 * deals and wherever its turn begins. */
RT_FN rt_u64 rt_jit_bound(const rt_graph *g, const rt_event *events, rt_u32 n_workers)
{
    rt_u64 n = 0;
    for (rt_u32 e = 0; e < g->n_events; e++)
        n += ((rt_u64)events[g->first_event + e].jit + n_workers - 1) / n_workers;
    return n;
}

/* Entries that one step can put into the event queue of one scheduler: each event with JIT tasks is
 * activated once. */
RT_FN rt_u64 rt_event_bound(const rt_graph *g, const rt_event *events)
{
    rt_u64 n = 0;
    for (rt_u32 e = 0; e < g->n_events; e++)
        n += events[g->first_event + e].jit != 0;
    return n;
}

#endif
