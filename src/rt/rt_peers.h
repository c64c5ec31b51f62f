/* rt_peers.h - what the step task sends to the other GPUs of a program that several peers share
 * (docs/gpus.md).
 *
 * GPU 0 has the requests, the rings and the step task.  Each step's inputs and its word are pushed:
 * stored into the memory of every GPU that needs them, so that no GPU polls or reads over a link.
 * Relies on rt_lane.h; called by device/role/step.cuh, and by tests on the host.
 *
 *   - Words that another GPU writes are read with acquire at system scope and written with release
 *     at system scope: control.step of GPUs 1 to n - 1, rt_kernel.stop, and counters of events with
 *     RT_TRIGGER_PEERS.  No word is changed by one GPU at device scope and by another at system
 *     scope.
 *   - Inputs are overwritten only after the end event of the step before: every task of every peer
 *     comes before it, so no task reads them any more.  They are read only after the step word that
 *     follows them.
 */
#ifndef RT_PEERS_H
#define RT_PEERS_H

#include "rt/rt_lane.h"

/* All lanes: the rows that are alive, 8 bytes at a time; areas are padded to that. */
RT_FN void rt_peers_push(const rt_push *p, rt_u64 step, const char *from, char *to)
{
    rt_u32 live = rt_word_live(step, p->live), rows = p->n_rows < live ? p->n_rows : live;
    rt_u64 n = ((rt_u64)rows * p->row_bytes + 7) / 8;
    const rt_u64 *source = (const rt_u64 *)(from + p->offset);
    rt_u64 *target = (rt_u64 *)(to + p->offset);
    RT_UNROLL_4
    for (rt_u64 i = rt_lane(); i < n; i += RT_LANES)
        target[i] = source[i];
}

/* All lanes, after the step has been published on GPU 0: its inputs and its word to all others. */
RT_FN void rt_peers_publish(const rt_kernel *k, rt_u64 step)
{
    const rt_u32 *first = k->first_push + rt_word_graph(step);
    for (rt_u32 p = 1; p < k->n_peers; p++)
        for (rt_u32 i = first[0]; i < first[1]; i++)
            rt_peers_push(&k->pushes[i], step, k->machine.step_area, k->peers[p].step_area);
    rt_meet();
    for (rt_u32 p = 1 + rt_lane(); p < k->n_peers; p += RT_LANES)
        rt_store_wide_release_system(&k->peers[p].control->step, step); /* partner: await_step */
}

/* One thread: count a task of an event whose kind is RT_TRIGGER_PEERS, on peer p. */
RT_FN void rt_peers_count(const rt_kernel *k, rt_u32 p, rt_u32 event, rt_u32 kind)
{
    if (kind & RT_TRIGGER_PEER << p)
        rt_count_release_system(k->peers[p].counters + event, 1); /* partner: mpk_poll */
}

/* One thread: ask the kernels of all other GPUs to stop. */
RT_FN void rt_peers_stop(const rt_kernel *k)
{
    for (rt_u32 p = 0; p < k->n_peers; p++)
        if (p != k->peer)
            rt_store_release_system(k->peers[p].stop, 1); /* partners: peer_loop, courier_loop */
}

#endif
