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
 *
 *     step word   RT_NO_STEP .. published .............................. RT_NO_STEP
 *     workers                    see it, count `arrived`, run their lists
 *     call_loop   publish ...... wait for the end event and for `arrived` . clear
 *
 *   - Each warp leaves when its part is done.  Where there is a clerk, it raises `abort` after it
 *     has counted the last task, and no warp waits for another one that has left.
 */
#ifndef ROLE_CALLS_CUH
#define ROLE_CALLS_CUH

#include "role/step.cuh"
#include "role/watcher.cuh"

/* All threads: write the addresses of the caller's tensors into the entries of one list.  uses[]
 * names each word of an entry that holds such an address, so nothing else is touched. */
MPK_FN void call_move_list(const rt_kernel *k, rt_u32 list)
{
    const rt_call *c = &k->call;
    for (rt_u32 i = c->first_use[list] + threadIdx.x; i < c->first_use[list + 1]; i += blockDim.x)
        ((rt_u64 *)k->entries)[c->uses[i].word] =
            c->addresses[1 + c->uses[i].slot] + c->uses[i].offset;
}

/* All threads of a block, before anything else: if the caller's addresses have changed since
 * this worker's last call, write them into its own list, worker 0 also into JIT tasks.  Each
 * block compares with the number that it holds, so a block that does not run for some calls
 * still catches up. */
static __device__ __noinline__ void call_begin(const rt_kernel *k)
{
    const rt_u64 set = k->call.addresses[0]; /* number of the set of addresses */
    if (k->call.held[blockIdx.x] == set)
        return;
    call_move_list(k, blockIdx.x);
    if (blockIdx.x == 0)
        call_move_list(k, k->machine.n_workers);
    /* Entries are read next by other threads of this block and by other blocks (JIT tasks): the
     * fence publishes them.  The proxy fence does so for the copy engine, which fetches
     * descriptors. */
    __threadfence();
#if MPK_RING
    ptx_fence_bulk();
#endif
    __syncthreads();
    if (threadIdx.x == 0)
        k->call.held[blockIdx.x] = set;
}

/* One warp of worker 0: publish the step, wait for its end, clear the step word for the next
 * call.  `everyone`: what `arrived` counts to when each worker has seen this step; like an
 * event's counter it never resets. */
static __device__ __noinline__ void call_loop(rt_kernel *k)
{
    rt_machine *m = step_begin(k);
    rt_u64 since = 0;
    rt_u32 n = 0, aborted = 0; /* looks; the machine has stopped */
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
    /* The next call's workers start from RT_NO_STEP, so the step that it publishes is new to
     * them. */
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
