/* regime.cuh - how the kernel of one regime hands over to that of another (MPK_REGIMES,
 * gen_regime).
 *
 * Each regime of a program has a kernel of its own.  The host puts them on the stream in turn,
 * several ahead: the first runs, and each later one begins when the one before it ends, without
 * the host.
 * All that they share lies in device memory: the tables, the KV cache, the rings, and what the step
 * task keeps (rt_serving, slots, epochs: step_end, step_begin).  Invariant: control.step is the
 * word of the last step that was published, rt_kernel.start_step that of the last one that has
 * ended.  Where they differ as a kernel begins, it runs that step first: it is of its regime.
 *
 *   1. The step task publishes a step as ever.  If its graph is another regime's, it leaves its
 *      loop and writes its state back; start_step stays the step before.
 *   2. Thread 0 of each worker's bodies sees the step word, waits for its clerk to be through with
 *      the step before, and raises the worker's `abort`; worker 0's is raised by the step task,
 *      when its state has been written back.
 *   3. All warps leave.  The loader first waits for the copies that it has requested on behalf of a
 *      step that does not come: nothing may write into the shared memory of the next kernel.
 *   4. The courier has moved what there was, names the regime to the host, and counts host_left, by
 *      which the host knows how many kernels are left on the stream.
 *   5. The next kernel begins.  Its step task takes the step for one that runs, its workers for one
 *      that has just come.
 *
 * Where several GPUs share the program each has its own stream of such kernels.  The step task of
 * GPU 0 sends the step to all before it leaves (1); on the others no step task holds worker 0,
 * which raises its `abort` by itself (2), and the warp in the courier's place ends the kernel (4).
 * A GPU may be through before another has begun: what it stores there lies in device memory.
 *
 * A kernel that begins after the machine has stopped (control.abort) leaves at once.
 * Relies on rt_kernel; the other roles call it.
 */
#ifndef ROLE_REGIME_CUH
#define ROLE_REGIME_CUH

#include "tile/worker.cuh"

/* The graph of the step that this kernel begins with; graph 0 where no step has been published
 * yet, which is a guess: if it is wrong, the bodies have the loader resync. */
MPK_FN rt_u32 regime_first_graph(const rt_kernel *k)
{
    if (MPK_CALLS)
        return 0;
    const rt_u64 step = mpk_load_step(k->machine.control);
    return step == RT_NO_STEP ? 0 : rt_word_graph(step);
}

/* Is this a step for the kernel of another regime?  Constant false in programs with one kernel. */
MPK_FN bool regime_is_other(const rt_kernel *k, rt_u64 step)
{
#if MPK_REGIMES > 1
    return k->regimes[rt_word_graph(step)] != MPK_REGIME;
#else
    (void)k, (void)step;
    return false;
#endif
}

/* One thread of the courier, at the end of the kernel: tell the host whose kernel goes on.
 * true: this is the end of the machine, and the caller tells the final state.  false: the next
 * kernel on the stream goes on by itself.  host_regime is stored before host_left and host_state
 * (release), so a host that has seen either of these reads the right one. */
MPK_FN bool regime_is_over(const rt_kernel *k)
{
#if MPK_REGIMES > 1
    const rt_u64 step = mpk_load_step(k->machine.control); /* published last */
    rt_store_release_system(k->host_regime,
                            step == RT_NO_STEP ? MPK_REGIME : k->regimes[rt_word_graph(step)]);
    if (step != RT_NO_STEP && regime_is_other(k, step) &&
        rt_load_relaxed_device(&k->machine.control->abort) == RT_RUNNING) {
        rt_store_release_system(k->host_left, rt_load_acquire_system(k->host_left) + 1);
        return false;
    }
#else
    (void)k;
#endif
    return true;
}

#endif
