/* calls.cuh - a launch that is one step (rt_call; MPK_CALLS): what torch.compile runs.
 *
 * kernel.cuh calls call_move in all threads when a worker begins with other addresses, and starts
 * call_loop in warp MPK_WARPS + 2 of worker 0, in the place of step_loop.
 *
 *   - Addresses: a block rewrites its own list's entries when the number of the address table
 *     differs from the one that it holds, before any of its warps reads one.  Worker 0 rewrites JIT
 *     tasks too; other workers read those only after it has published the step.
 *   - The step is known: graph 0, whose epoch is one more than the last call has left
 *     (call_step_of).  So workers begin at once.  Where there are JIT tasks they wait for the step
 *     word instead, since its change tells them that no more will come.
 *   - What the last call has left changes only when every worker has counted `arrived`.  A worker
 *     counts when it has read it, or has seen the step word: a block that starts late reads the
 *     right epoch, and cannot miss the step.
 *
 *     step word   RT_NO_STEP .. published ...................................... RT_NO_STEP
 *     workers     read the epoch, count `arrived`, run their lists
 *     call_loop   publish ..... wait for `arrived`, write epochs; wait for the end event . clear
 *
 *   - Each warp leaves when its part is done.  Where there is a clerk, it raises `abort` after it
 *     has counted the last task, and no warp waits for another one that has left.
 */
#ifndef ROLE_CALLS_CUH
#define ROLE_CALLS_CUH

#include "role/step.cuh"
#include "role/watcher.cuh"

/* All threads: write the addresses of the caller's tensors into the entries of one list.  uses[]
 * names each word of an entry that holds such an address, so nothing else is touched.  Copies by
 * this block see maps that the host has made anew. */
MPK_FN void call_move_list(const rt_kernel *k, rt_u32 list)
{
    const rt_call *c = &k->call;
    for (rt_u32 i = c->first_use[list] + threadIdx.x; i < c->first_use[list + 1]; i += blockDim.x) {
        const rt_use use = c->uses[i];
        ((rt_u64 *)k->entries)[use.word] = c->addresses[1 + (use.slot & ~RT_USE_MAP)] + use.offset;
        if (use.slot & RT_USE_MAP)
            ptx_acquire_map(
                (const void *)k->entries[use.word / (sizeof(rt_entry) / sizeof(rt_u64))].maps);
    }
}

/* All threads of a block: write the caller's addresses into its own list, worker 0 also into JIT
 * tasks. */
static __device__ __noinline__ void call_move(const rt_kernel *k, rt_u64 set)
{
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

/* The step of this call, as rt_step_publish makes its word, and the worker's list. */
MPK_FN mpk_call_step call_step_of(const rt_kernel *k)
{
    mpk_call_step c = {};
#if MPK_CALLS
    const rt_u32 *epochs = k->machine.epochs, *first = k->first_entry + blockIdx.x;
    c.step = rt_step_word(0, epochs[0] + 1, RT_NONE, RT_NONE);
    c.list.first = first[0];
    c.list.last = first[1];
#endif
    return c;
}

/* One warp of worker 0: publish the step, let the next call find its epoch, wait for the end of the
 * step, clear its word.  `everyone`: what `arrived` counts to when each worker has counted; like an
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
    bool all_here = false;
    while (!aborted && !(all_here && step_has_ended(&ending))) {
        if (!all_here && rt_every(rt_load_acquire_device(&k->call.arrived) == everyone)) {
            /* The next call's workers start from RT_NO_STEP, so the step that it publishes is new
             * to them. */
            step_end(k, RT_NO_STEP);
            all_here = true;
        }
        if (step_is_stuck(m, &since, &n) && rt_lane() == 0)
            rt_raise_stall(m, 0);
        if (n % 16 == 0) /* seldom: a look takes as long as one at the end event */
            aborted = !rt_every(rt_load_relaxed_device(&m->control->abort) == RT_RUNNING);
    }
    rt_meet();
    if (rt_lane() != 0)
        return;
    if (aborted)
        tell_end(k);
    else
        rt_store_wide_release_device(&m->control->step, RT_NO_STEP);
}

#endif
