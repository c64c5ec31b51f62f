/* cpu_ranks.c - one process for each peer: what the machine's processes share, and how one of them
 * ends (docs/gpus.md, "One process for each peer").
 *
 * Input: processes that have met (host/ranks.h), each with the same image.  Every process makes the
 * whole machine, but binds only its own peer's operators and starts only its own workers.  What
 * workers and hosts of several peers touch lies in one memory that all have mapped:
 *
 *   control, counters, workers, pulses, the areas of state, step and temporaries
 *
 * It holds no pointers, so that each process may have it elsewhere.  All processes write the same
 * values there while they start (but for the scratch of their own workers), and none runs a task
 * before all have said that they are ready.  Requests, rings, books and the step task are rank 0's
 * alone.
 *
 * The end.  Rank 0 stops the machine for all.  If a process of another rank ends for any
 * reason, that is a fault of the machine (RT_LEFT), raised by each process that detects it.  A
 * process that is stopped has a socket still; it is a stall (rt_watch).  Its workers may have been
 * in tasks, which would count as work for minutes, so each process has a pulse: a worker whose
 * process has none counts as waiting.
 *
 * Called by cpu.c.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "base/map.h"
#include "cpu/cpu_machine.h"
#include "rt/rt_wait.h"

/* Of each block, so that no two share a cache line; ticks without a pulse after which a process
 * counts as stopped: 5 s. */
enum { BLOCK_ALIGN = 64, STOPPED_TICKS = 5000 / RANKS_TICK_MS };

static uint64_t aligned(uint64_t n)
{
    return (n + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
}

/* Workers of one process. */
static uint32_t workers_each(const cpu_machine *m)
{
    return m->base.image.block->n_workers / m->base.image.block->n_peers;
}

mpk_status cpu_ranks_map(mpk_context *cx, cpu_machine *m)
{
    const rt_header *h = m->base.image.block;
    void *at;
    if (!m->ranks)
        return MPK_OK;
    CHECK(cx, h->n_peers == ranks_count(m->ranks), MPK_EARG,
          "%u ranks have met, and the program has %u peers", ranks_count(m->ranks), h->n_peers);
    uint64_t n =
        aligned(sizeof *m->control) + aligned(image_count(h, RT_EVENTS) * sizeof *m->rt.counters) +
        aligned(h->n_workers * sizeof *m->rt.workers) + aligned(h->n_peers * sizeof *m->pulses);
    for (int i = RT_STATE; i < RT_AREAS; i++)
        n += aligned(h->area_bytes[i]);
    TRY(ranks_map(cx, m->ranks, (size_t)n, &at));
    m->shared = at;
    m->shared_bytes = (size_t)n;
    m->control = cpu_ranks_take(m, sizeof *m->control);
    m->pulses = cpu_ranks_take(m, h->n_peers * sizeof *m->pulses);
    return MPK_OK;
}

void *cpu_ranks_take(cpu_machine *m, uint64_t n)
{
    char *at = m->shared + m->shared_used;
    m->shared_used += (size_t)aligned(n);
    return at;
}

bool cpu_ranks_runs(const cpu_machine *m, uint32_t worker)
{
    return !m->ranks || worker / workers_each(m) == ranks_rank(m->ranks);
}

bool cpu_ranks_has(const host_ranks *r, uint32_t peer)
{
    return !r || peer == IR_EVERYWHERE || peer == ranks_rank(r);
}

/* By the watch's thread, of another rank, or by `stop`, of this one. */
static void raise_left(void *user, uint32_t rank)
{
    cpu_machine *m = user;
    rt_raise(&m->rt, rank * workers_each(m), RT_LEFT, RT_NONE, RT_NONE);
}

/* The workers of a stopped process run no task, whatever their words say.  If it continues, they
 * write these words again. */
static void note_stopped(cpu_machine *m, uint32_t rank)
{
    const uint32_t each = workers_each(m);
    for (uint32_t i = rank * each; i < (rank + 1) * each; i++)
        rt_store_relaxed_device(&m->rt.workers[i].at, RT_AT_WAIT);
}

/* Ticks for which the pulse of a rank has stood. */
static rt_u32 stands(const cpu_machine *m, uint32_t rank)
{
    return rt_load_relaxed_device(&m->pulse_still[rank]);
}

/* By the watch's thread: this process's pulse, and a look at those of the others. */
static void tick(void *user)
{
    cpu_machine *m = user;
    const uint32_t own = ranks_rank(m->ranks);
    rt_store_relaxed_device(&m->pulses[own].beats,
                            rt_load_relaxed_device(&m->pulses[own].beats) + 1);
    for (uint32_t i = 0; i < ranks_count(m->ranks); i++) {
        const rt_u32 beats = rt_load_relaxed_device(&m->pulses[i].beats);
        const rt_u32 still = beats == m->pulse_seen[i] ? stands(m, i) + 1 : 0;
        rt_store_relaxed_device(&m->pulse_still[i], still);
        m->pulse_seen[i] = beats;
        if (still >= STOPPED_TICKS)
            note_stopped(m, i);
    }
}

mpk_status cpu_ranks_note(mpk_context *cx, const cpu_machine *m, mpk_status status)
{
    for (uint32_t i = 0; m->ranks && i < ranks_count(m->ranks); i++)
        if (stands(m, i) >= STOPPED_TICKS)
            status_note(cx, status, "the process of rank %u has not run for %u s", i,
                        stands(m, i) * RANKS_TICK_MS / 1000);
    return status;
}

/* The exchange is the moment from which on all have mapped and filled what they share. */
mpk_status cpu_ranks_begin(mpk_context *cx, cpu_machine *m)
{
    uint64_t all[RANKS_MOST];
    if (!m->ranks)
        return MPK_OK;
    const rt_header *h = m->base.image.block;
    const uint64_t mine = hash_bytes(h, (size_t)h->n_bytes, 0);
    TRY(ranks_exchange(cx, m->ranks, &mine, sizeof mine, all));
    for (uint32_t i = 1; i < ranks_count(m->ranks); i++)
        CHECK(cx, all[i] == all[0], MPK_EARG, "rank %u has compiled another program than rank 0",
              i);
    return ranks_watch(cx, m->ranks, (ranks_watcher){.ended = raise_left, .tick = tick, .user = m});
}

/* Rank 0 first stops the machine and then says so, so that no other rank takes its end for a
 * failure.  Another rank that stops before rank 0 has closed leaves the machine in the lurch. */
void cpu_ranks_leave(cpu_machine *m)
{
    const uint32_t rank = ranks_rank(m->ranks);
    if (!m->shared)
        return;
    if (rank && !ranks_closed(m->ranks))
        raise_left(m, rank);
    else if (rt_replace_acq_rel_device(&m->control->abort, RT_RUNNING, RT_STOPPING))
        rt_rouse(&m->rt);
    ranks_unwatch(m->ranks);
}

void cpu_ranks_unmap(cpu_machine *m)
{
    if (m->shared)
        munmap(m->shared, m->shared_bytes);
}
