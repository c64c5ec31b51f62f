/* peers.cuh - the warp that a GPU without the step task has in the place of the courier, where
 * several GPUs share a program.
 *
 * kernel.cuh starts peer_loop in one thread of warp MPK_WARPS + 3 of worker 0 of GPUs 1 to n - 1.
 * An end spreads within a GPU by control.abort, between GPUs by rt_kernel.stop, to which others
 * only store 1, and which is read here and by GPU 0's courier.  A GPU that stops tells all others,
 * then the host: a host that reads the state of every GPU as ended knows that no store to a `stop`
 * is in flight.
 */
#ifndef ROLE_PEERS_CUH
#define ROLE_PEERS_CUH

#include "role/regime.cuh"
#include "role/watcher.cuh"

/* One thread: should this GPU's kernel end, because another's has? */
MPK_FN void peer_obey(rt_kernel *k)
{
    if (rt_load_acquire_system(&k->stop) || rt_load_acquire_system(k->host_abort))
        rt_replace_acq_rel_device(&k->machine.control->abort, RT_RUNNING, RT_STOPPING);
}

/* A look every 2 us, so that the bus is left to others.  start_step: the last step that has ended,
 * from which this GPU's next kernel goes on: of a kernel that hands over to another regime's, the
 * one before the step that it has seen. */
static __device__ __noinline__ void peer_loop(rt_kernel *k)
{
    rt_control *c = k->machine.control; /* of this GPU */
    while (!ptx_load_flag(&mpk_w.abort)) {
        peer_obey(k);
        if (rt_load_relaxed_device(&c->abort) != RT_RUNNING)
            ptx_store_flag(&mpk_w.abort, 1);
        __nanosleep(2000);
    }
    /* the step has ended, if the kernel was asked to stop */
    const bool is_over = regime_is_over(k);
    k->start_step = is_over ? rt_load_wide_acquire_system(&c->step) : mpk_w.step;
    if (!is_over)
        return;
    rt_peers_stop(k);
    tell_end(k);
}

#endif
