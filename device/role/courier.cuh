/* courier.cuh - the warp of worker 0 that carries entries between the machine's rings and the
 * host's.
 *
 * kernel.cuh starts courier_loop in warp MPK_WARPS + 3 of worker 0.  The runtime (src/rt) never
 * touches host memory: it uses rings in device memory, and the host uses rings of the same layout
 * in pinned memory (src/host/books.c).  rt/rt_courier.h has the rules by which entries go from one
 * to the other; this warp also passes on the host's words:
 *
 *   once_wanted, abort   --- courier --->   control
 *
 * What was written before the end still goes out: the loop runs until nothing is left to carry
 * after `abort`.
 *
 * A look over the bus takes more than a microsecond, so one look requests all words, one in each
 * lane, and what only the courier writes is kept in registers.
 */
#ifndef ROLE_COURIER_CUH
#define ROLE_COURIER_CUH

#include "role/peers.cuh"
#include "role/regime.cuh"
#include "role/step.cuh"
#include "role/watcher.cuh"
#include "rt/rt_courier.h"

/* The words of a look, by the lane that reads each: the host's, and one of the machine's. */
enum {
    /* `written` of the rings that the host fills */
    COURIER_COMMANDS,
    COURIER_REQUESTS,
    /* number of the last host-driven step that the host wants (rt_control.once_wanted) */
    COURIER_WANTED,
    /* 1: the host asks the machine to stop */
    COURIER_ABORT,
    /* `read` of the token ring, which the host drains */
    COURIER_TAKEN,
    /* `read` of the machine's request ring */
    COURIER_BEGUN,
    COURIER_WORDS
};

/* The word that this lane reads in each look.  Lanes from COURIER_WORDS on get an address too, but
 * do not load. */
MPK_FN const rt_word *courier_word(const rt_kernel *k)
{
    switch (threadIdx.x % 32) {
    case COURIER_COMMANDS:
        return &k->host_command_ring->written;
    case COURIER_REQUESTS:
        return &k->host_request_ring->written;
    case COURIER_WANTED:
        return k->host_once_wanted;
    case COURIER_ABORT:
        return k->host_abort;
    case COURIER_BEGUN:
        return &k->machine.request_ring->read;
    default:
        return &k->host_token_ring->read;
    }
}

/* Lane 0: host-driven steps, and stopping.  A new `wanted` takes three words of the host with it
 * (graph, tokens, rows), which are stored before the device's copy is released, since the step
 * task reads them after an acquire of that.  *asked, *done: the last numbers that were passed
 * on. */
MPK_FN void courier_words(rt_kernel *k, rt_u32 wanted, rt_u32 abort, rt_u32 *asked, rt_u32 *done)
{
    rt_control *c = k->machine.control;
    if (wanted != *asked) {
        c->once_graph = ((const volatile rt_u32 *)k->host_once)[0];
        c->once_tokens = ((const volatile rt_u32 *)k->host_once)[1];
        c->once_rows = ((const volatile rt_u32 *)k->host_once)[2];
        *asked = wanted;
        rt_store_release_system(&c->once_wanted, wanted);
    }
    const rt_u32 now = rt_load_acquire_system(&c->once_done);
    if (now != *done)
        rt_store_release_system(k->host_once_done, now);
    *done = now;
    if (abort)
        rt_replace_acq_rel_device(&c->abort, RT_RUNNING, RT_STOPPING);
}

/* With a profile: how long the host takes to see tokens.  One burst is followed at a time. */
struct courier_burst {
    rt_u32 is_out, end; /* end: `written` of the host's ring when it was sent */
    rt_u64 since;
};

/* Lane 0: begin to follow a burst, or note that the host has taken it. */
MPK_FN void courier_note(rt_kernel *k, courier_burst *b, rt_u32 sent, rt_u32 written, rt_u32 taken)
{
    if (!b->is_out && sent) {
        b->is_out = 1;
        b->end = written;
        b->since = *(volatile rt_u64 *)&mpk_step.ended_ns;
    }
    if (b->is_out && (rt_i32)(taken - b->end) >= 0) {
        b->is_out = 0;
        k->delays->ns[k->delays->n++ % RT_DELAYS] = (rt_u32)(rt_clock_ns() - b->since);
    }
}

/* Whole warp; lane 0 alone stores words that are not entries.  Each round is one look: tokens go
 * out first, since they are what a user waits for, then requests and commands come in.  A round
 * that has carried nothing is followed by a pause of half a microsecond, so that an idle courier
 * leaves the bus alone.
 *
 * After the end requests and commands are not taken any more: they stay in the host's rings, where
 * the next kernel finds them.
 */
static __device__ __noinline__ void courier_loop(rt_kernel *k)
{
    rt_machine *m = &k->machine;
    const rt_word *word = courier_word(k); /* of this lane */
    rt_courier c = rt_courier_begin(k);
    rt_u32 lane = threadIdx.x % 32, asked = m->control->once_wanted.value,
           done = k->host_once_done->value, last = 0, n;
    courier_burst burst = {0, 0, 0}; /* none is followed */
    do {
        const rt_u32 mine = lane < COURIER_WORDS ? rt_load_acquire_system(word) : 0;
        rt_u32 seen[COURIER_WORDS];
        __syncwarp(); /* what one lane has acquired holds for all */
        for (int i = 0; i < COURIER_WORDS; i++)
            seen[i] = __shfl_sync(0xffffffffu, mine, i);
        const rt_u32 sent = rt_courier_tells(&c, rt_load_acquire_system(&m->token_ring->written),
                                             seen[COURIER_TAKEN]);
        n = sent;
        if (!last)
            n += rt_courier_asks(
                &c, m, {seen[COURIER_COMMANDS], seen[COURIER_REQUESTS], seen[COURIER_BEGUN]});
        if (lane == 0) {
            if (k->delays)
                courier_note(k, &burst, sent, c.tokens.carried, seen[COURIER_TAKEN]);
            courier_words(k, seen[COURIER_WANTED], seen[COURIER_ABORT], &asked, &done);
            if (MPK_PEERS > 1)
                peer_obey(k);
            /* This worker has no watcher; the courier raises its flag. */
            if (rt_load_relaxed_device(&m->control->abort) != RT_RUNNING)
                ptx_store_flag(&mpk_w.abort, 1);
        }
        __syncwarp();
        last = __shfl_sync(0xffffffffu, ptx_load_flag(&mpk_w.abort), 0);
        if (!n && !last)
            __nanosleep(500);
    } while (!last || n); /* what was written before the end still goes out */
    if (lane == 0 && regime_is_over(k)) {
        if (MPK_PEERS > 1)
            rt_peers_stop(k);
        tell_end(k);
    }
}

#endif
