/* calls.cuh - a launch that is one step (rt_call; MPK_CALLS): what torch.compile runs.
 *
 * kernel.cuh calls call_begin in all threads before anything else, and starts call_loop in warp
 * MPK_WARPS + 2 of worker 0, in the place of step_loop.
 *
 *   - Addresses: a block rewrites its own list's entries when the number of the address table
 *     differs from the one that it holds, before any of its warps reads one.  Worker 0 rewrites JIT
 *     tasks too; other workers read those only after it has published the step.
 *   - The step word is cleared for the next call only when the end event is activated and every
 *     worker has counted `arrived`: a block that starts late cannot miss the step.
 *   - Each warp leaves when its part is done.  Where there is a clerk, it raises `abort` after it
 *     has counted the last task, and no warp waits for another one that has left.
 */
#ifndef ROLE_CALLS_CUH
#define ROLE_CALLS_CUH

#include "role/step.cuh"
#include "role/watcher.cuh"

/* Write the new addresses into the entries of one list; all threads. */
MPK_FN void call_move_list(const rt_kernel *k, rt_u32 list)
{
    const rt_call *c = &k->call;
    for (rt_u32 i = c->first_use[list] + threadIdx.x; i < c->first_use[list + 1]; i += blockDim.x)
        ((rt_u64 *)k->entries)[c->uses[i].word] =
            c->addresses[1 + c->uses[i].slot] + c->uses[i].offset;
}

/* All threads: new addresses into the worker's own list, and by worker 0 into JIT tasks. */
static __device__ __noinline__ void call_begin(const rt_kernel *k)
{
    const rt_u64 set = k->call.addresses[0];
    if (k->call.held[blockIdx.x] == set)
        return;
    call_move_list(k, blockIdx.x);
    if (blockIdx.x == 0)
        call_move_list(k, k->machine.n_workers);
    __threadfence();
#if MPK_RING
    ptx_fence_bulk();
#endif
    __syncthreads();
    if (threadIdx.x == 0)
        k->call.held[blockIdx.x] = set;
}

/* One warp of worker 0: publish the step, wait for its end, clear the step word. */
static __device__ __noinline__ void call_loop(rt_kernel *k)
{
    rt_machine *m = step_begin(k);
    rt_u64 since = 0;
    rt_u32 n = 0, aborted = 0;
    mpk_ending ending = {0, RT_NONE, 0, 0};
    if (rt_lane() == 0)
        rt_step_publish(m, &m->workers[0], 0, RT_NONE, RT_NONE);
    rt_meet();
    rt_u64 step = m->serving->step;
    ending_follow(&ending, m, step);
    const rt_u32 everyone = m->n_workers * rt_word_epoch(step);
    while (!aborted && !(step_has_ended(&ending) &&
                         rt_every(rt_load_acquire_device(&k->call.arrived) == everyone))) {
        if (step_is_stuck(m, &since, &n) && rt_lane() == 0)
            rt_raise_stall(m, 0);
        aborted = !rt_every(rt_load_relaxed_device(&m->control->abort) == RT_RUNNING);
    }
    step_end(k, RT_NO_STEP);
    rt_meet();
    if (rt_lane() != 0)
        return;
    if (aborted)
        tell_end(k);
    else
        rt_store_wide_release_device(&m->control->step, RT_NO_STEP);
}

#endif
