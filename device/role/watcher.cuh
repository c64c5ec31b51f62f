/* watcher.cuh - how an end reaches everyone: the machine's abort word to each worker, the final
 * state to the host.
 *
 * kernel.cuh starts watch_loop in one thread of warp MPK_WARPS + 3 of each worker that has no
 * courier.  Bodies and loaders look only at the worker's own flag in shared memory: a look at
 * global memory would be a trip to L2 in each round of each wait.  The flag only ever goes from 0
 * to 1.
 *
 * tell_end runs once for each launch that ends by itself or by a fault, in one thread, when no
 * thread changes the fault record any more (RT_FAULTING has passed): the fault is written before
 * the state, with release at system scope, so a host that sees RT_FAULTED reads the whole record.
 */
#ifndef ROLE_WATCHER_CUH
#define ROLE_WATCHER_CUH

#include "tile/worker.cuh"

/* One thread: raise the worker's flag once the machine's abort word says so, at which it looks
 * every 5 us.  In a call it looks at the flag more often, since the call ends when the last warp
 * leaves; and it counts the worker's arrival, which no other warp has the time for. */
static __device__ __noinline__ void watch_loop(void)
{
    const rt_u32 rest_ns = MPK_CALLS ? 100 : 5000, looks = MPK_CALLS ? 50 : 1;
    if (MPK_CALLS && !mpk_w.hybrid)
        mpk_call_arrive();
    for (rt_u32 n = 0; !ptx_load_flag(&mpk_w.abort); n++) {
        if (n % looks == 0 && rt_load_relaxed_device(&mpk_w.control->abort) != RT_RUNNING)
            ptx_store_flag(&mpk_w.abort, 1);
        __nanosleep(rest_ns);
    }
}

/* One thread: tell the host how the machine ended, and the fault if there was one. */
static __device__ __noinline__ void tell_end(rt_kernel *k)
{
    rt_machine *m = &k->machine; /* in device memory */
    while (rt_load_relaxed_device(&m->control->abort) == RT_FAULTING)
        __nanosleep(100);
    rt_u32 state = rt_load_acquire_system(&m->control->abort);
    if (state == RT_FAULTED)
        for (rt_u32 i = 0; i < sizeof(rt_fault) / 4; i++)
            ((volatile rt_u32 *)k->host_fault)[i] = ((const rt_u32 *)&m->control->fault)[i];
    __threadfence_system();
    rt_store_release_system(k->host_state, state == RT_RUNNING ? RT_STOPPING : state);
}

#endif
