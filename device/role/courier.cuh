/* courier.cuh - the warp of worker 0 that carries entries between the machine's rings and the
 * host's.
 *
 * kernel.cuh starts courier_loop in warp MPK_WARPS + 3 of worker 0.  The runtime (src/rt) never
 * touches host memory: it uses rings in device memory, and the host uses rings of the same layout
 * in pinned memory (src/host/books.c).
 *
 *   - Each ring has one writer and one reader: `written` and `read` are monotonic, written - read
 *     <= its size.  An entry is stored before `written` is released, at system scope, and given
 *     back by `read` after it has been copied.
 *   - Order between rings: a command that follows a request is carried after it.  A command is
 *     moved only if an earlier look has seen it and the requests of this look have all been moved.
 *   - What was written before the end still goes out: the loop runs until nothing is left to move
 *     after `abort`.
 *
 *   host, pinned memory                                 device memory
 *   requests, commands   --- courier: host's `written` --->   rings of the step task
 *   tokens               <-- courier: host's `read` -------   ring of the step task
 *   once_wanted, abort   --------------------------------->   control
 *
 * A look over the bus takes more than a microsecond, so one look requests all words of the host,
 * one in each lane, and what only the courier writes is kept in registers.
 */
#ifndef ROLE_COURIER_CUH
#define ROLE_COURIER_CUH

#include "role/peers.cuh"
#include "role/regime.cuh"
#include "role/step.cuh"
#include "role/watcher.cuh"

/* The host's words, by the lane that reads each. */
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
    COURIER_WORDS
};

/* The word that this lane reads in each look, in pinned host memory.  Lanes from COURIER_WORDS
 * on get an address too, but do not load. */
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
    default:
        return &k->host_token_ring->read;
    }
}

/* From one ring to another of the same length mask + 1: entries of `size` bytes, a multiple of
 * 4.  One of the two rings lies in device memory, the other in pinned host memory. */
struct courier_way {
    rt_ring *from, *to;
    const char *source;
    char *target;
    rt_u32 mask, size;
    rt_u32 read, written; /* from->read and to->written, which the courier alone writes */
};

/* A way that goes on where an earlier kernel's courier stopped: both counts lie in memory. */
MPK_FN courier_way courier_begin(rt_ring *from, const void *source, rt_ring *to, void *target,
                                 rt_u32 mask, rt_u32 size)
{
    return {from, to,   (const char *)source, (char *)target,
            mask, size, from->read.value,     to->written.value};
}

/* All lanes: move the entries before number `end`, as many as there is room for, and return how
 * many.
 *
 *   end     from->written, or a value that it once had: entries before it are complete
 *   taken   to->read, or an earlier value of it: there is at least that much room
 *
 * Each lane moves words of any entry.  The lanes meet, then lane 0's fence and release publish
 * all words with the new `written`; only after that is the source's `read` released, so an entry
 * is never lost: it lies in one ring or the other.  The lanes may have loaded different values
 * of the counts, so lane 0's number is everyone's. */
MPK_FN rt_u32 courier_move(courier_way *w, rt_u32 end, rt_u32 taken)
{
    const rt_u32 lane = threadIdx.x % 32, words = w->size / 4, all = end - w->read,
                 space = w->mask + 1 - (w->written - taken),
                 n = __shfl_sync(0xffffffffu, mpk_smaller(all, space), 0);
    for (rt_u32 at = lane; at < n * words; at += 32)
        ((volatile rt_u32 *)(w->target +
                             (rt_u64)((w->written + at / words) & w->mask) * w->size))[at % words] =
            ((const volatile rt_u32 *)(w->source + (rt_u64)((w->read + at / words) & w->mask) *
                                                       w->size))[at % words];
    __syncwarp();
    w->written += n;
    w->read += n;
    if (n && lane == 0) {
        /* The other lanes' stores, which lane 0 has seen at the meeting, must reach the host
         * before the count: the fence makes the release cover them at system scope. */
        __threadfence_system();
        rt_store_release_system(&w->to->written, w->written);
        rt_store_release_system(&w->from->read, w->read);
    }
    __syncwarp();
    return n;
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

/* Whole warp; lane 0 alone stores words that are not entries.  Each turn is one look at the host's
 * words and one at the machine's: tokens go out first, since they are what a user waits for, then
 * requests, then the commands that the look before has seen (`ordered`).  A turn that has moved
 * nothing is followed by a pause of half a microsecond, so that an idle courier leaves the bus
 * alone.
 *
 * After the end requests and commands are not taken any more: they stay in the host's rings, where
 * the next kernel finds them.
 */
static __device__ __noinline__ void courier_loop(rt_kernel *k)
{
    rt_machine *m = &k->machine;
    const rt_word *word = courier_word(k); /* of this lane */
    courier_way tokens = courier_begin(m->token_ring, m->tokens, k->host_token_ring, k->host_tokens,
                                       m->token_mask, sizeof(rt_token));
    courier_way requests = courier_begin(k->host_request_ring, k->host_requests, m->request_ring,
                                         m->requests, m->request_mask, sizeof(rt_request));
    courier_way commands = courier_begin(k->host_command_ring, k->host_commands, m->command_ring,
                                         m->commands, m->command_mask, sizeof(rt_command));
    rt_u32 lane = threadIdx.x % 32, asked = m->control->once_wanted.value,
           done = k->host_once_done->value, last = 0, n;
    /* as the last look has seen them: by now it has seen every request before them */
    rt_u32 ordered = commands.read;
    courier_burst burst = {0, 0, 0}; /* none is followed */
    do {
        const rt_u32 mine = lane < COURIER_WORDS ? rt_load_acquire_system(word) : 0;
        rt_u32 host[COURIER_WORDS];
        __syncwarp(); /* what one lane has acquired holds for all */
        for (int i = 0; i < COURIER_WORDS; i++)
            host[i] = __shfl_sync(0xffffffffu, mine, i);
        /* Tokens first: a user waits for them. */
        const rt_u32 sent = courier_move(&tokens, rt_load_acquire_system(&m->token_ring->written),
                                         host[COURIER_TAKEN]);
        n = sent;
        if (!last && requests.read != host[COURIER_REQUESTS])
            n += courier_move(&requests, host[COURIER_REQUESTS],
                              rt_load_acquire_system(&m->request_ring->read));
        if (!last && commands.read != ordered && requests.read == host[COURIER_REQUESTS])
            n += courier_move(&commands, ordered, rt_load_acquire_system(&m->command_ring->read));
        ordered = host[COURIER_COMMANDS];
        if (lane == 0) {
            if (k->delays)
                courier_note(k, &burst, sent, tokens.written, host[COURIER_TAKEN]);
            courier_words(k, host[COURIER_WANTED], host[COURIER_ABORT], &asked, &done);
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
