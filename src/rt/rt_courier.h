/* rt_courier.h - entries carried between the host's rings and the machine's, where the two lie in
 * different memory (rt_kernel).
 *
 * Input: counts of the rings, as one look has seen them.  Output: entries in the ring that they go
 * to, and counts that tell both ends.  On a GPU a warp of its own calls this
 * (device/role/courier.cuh); all its lanes copy.
 *
 *   host, pinned memory                       device memory
 *   requests, commands   --- carried --->     rings of the step task
 *   tokens               <-- carried ---      ring of the step task
 *
 * The two rings of a pair have the same length, and entry i of one is entry i of the other, so one
 * count says what was carried (rt_way.carried).
 *
 *   - An entry is stored before `written` of its new ring is released, at system scope.
 *   - A command follows the request that it is about.  It is carried only if an earlier look has
 *     seen it, and every request of this look has been carried.
 *   - Requests always have room.  The host's ring gives an entry back when the step task has read
 *     it, not when it was carried, so both rings hold the same ones.  Otherwise requests that wait
 *     for the machine's ring would hold up commands, and among these may be the very cancel that
 *     makes room.
 */
#ifndef RT_COURIER_H
#define RT_COURIER_H

#include "rt/rt_lane.h"
#include "rt/rt_queue.h"

/* From one ring to another of the same length mask + 1: entries of `size` bytes, a multiple of 4.
 */
typedef struct rt_way {
    rt_ring *from, *to;
    const char *source;
    char *target;
    rt_u32 mask, size;
    rt_u32 carried; /* entries since the start: to->written */
    rt_u32 given;   /* from->read, which the courier alone writes */
} rt_way;

typedef struct rt_courier {
    rt_way tokens, requests, commands;
    /* commands that the last look has seen: by now it has seen every request before them */
    rt_u32 ordered;
} rt_courier;

/* Counts of one look, for rt_courier_asks. */
typedef struct rt_sight {
    rt_u32 commands, requests; /* written by the host */
    rt_u32 begun;              /* requests read by the step task */
} rt_sight;

/* Goes on where an earlier kernel's courier stopped: both counts lie in memory. */
RT_FN rt_way rt_way_begin(rt_ring *from, const void *source, rt_ring *to, void *target, rt_u32 mask,
                          rt_u32 size)
{
    const rt_way w = {from, to,   (const char *)source, (char *)target,
                      mask, size, to->written.value,    from->read.value};
    return w;
}

RT_FN rt_courier rt_courier_begin(const rt_kernel *k)
{
    const rt_machine *m = &k->machine;
    rt_courier c;
    c.tokens = rt_way_begin(m->token_ring, m->tokens, k->host_token_ring, k->host_tokens,
                            m->token_mask, sizeof(rt_token));
    c.requests = rt_way_begin(k->host_request_ring, k->host_requests, m->request_ring, m->requests,
                              m->request_mask, sizeof(rt_request));
    c.commands = rt_way_begin(k->host_command_ring, k->host_commands, m->command_ring, m->commands,
                              m->command_mask, sizeof(rt_command));
    c.ordered = c.commands.carried;
    return c;
}

/* All lanes: carry the entries before number `end`, as many as there is room for, and return how
 * many.
 *
 *   end    from->written, or a value that it once had: entries before it are complete
 *   taken  to->read, or an earlier value of it: there is at least that much room
 *
 * Each lane copies words of any entry.  The lanes meet, and the first one's release covers what all
 * have stored.  They may have loaded different counts, so the first one's number is everyone's. */
RT_FN rt_u32 rt_way_carry(rt_way *w, rt_u32 end, rt_u32 taken)
{
    const rt_u32 words = w->size / 4, all = end - w->carried,
                 space = w->mask + 1 - (w->carried - taken),
                 n = rt_first(all < space ? all : space);
    for (rt_u32 at = rt_lane(); at < n * words; at += RT_LANES) {
        const rt_u64 entry = (rt_u64)((w->carried + at / words) & w->mask) * w->size;
        ((volatile rt_u32 *)(w->target + entry))[at % words] =
            ((const volatile rt_u32 *)(w->source + entry))[at % words];
    }
    rt_meet();
    w->carried += n;
    if (n && rt_lane() == 0)
        rt_store_release_system(&w->to->written, w->carried);
    return n;
}

/* All lanes: the writer of the ring that entries come from may use those before `read` again. */
RT_FN void rt_way_give(rt_way *w, rt_u32 read)
{
    read = rt_first(read);
    if (read != w->given && rt_lane() == 0)
        rt_store_release_system(&w->from->read, read);
    w->given = read;
    rt_meet();
}

/* All lanes: carry the entries before number `told`, which the step task has written; how many.
 * taken: those that the host has read. */
RT_FN rt_u32 rt_courier_tells(rt_courier *c, rt_u32 told, rt_u32 taken)
{
    const rt_u32 n = rt_way_carry(&c->tokens, told, taken);
    rt_way_give(&c->tokens, c->tokens.carried);
    return n;
}

/* All lanes: carry requests, then the commands that the look before has seen; how many entries. */
RT_FN rt_u32 rt_courier_asks(rt_courier *c, const rt_machine *m, rt_sight s)
{
    rt_u32 n = rt_way_carry(&c->requests, s.requests, s.begun);
    rt_way_give(&c->requests, s.begun);
    if (c->requests.carried == s.requests && c->commands.carried != c->ordered) {
        n += rt_way_carry(&c->commands, c->ordered, rt_load_acquire_system(&m->command_ring->read));
        rt_way_give(&c->commands, c->commands.carried);
    }
    c->ordered = s.commands;
    return n;
}

#endif
