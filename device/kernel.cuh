/* kernel.cuh - the mega-kernel: which warp of a worker does what (paper §5), and how a worker
 * begins.
 *
 * Input: rt_kernel in device memory.  One block is one worker; the grid is all workers, all
 * resident at once (the host checks).  The generated source includes this file last, after it has
 * defined mpk_dispatch_body, mpk_dispatch_waiting (bodies that wait and trigger themselves),
 * mpk_dispatch_load, mpk_body_waits, mpk_body_many, mpk_body_many_waits and mpk_body_loads.  Warps
 * that run no bodies are a unit of their own (units.cuh): run_role.
 *
 *   warps                role             file
 *   0 .. MPK_WARPS - 1   bodies           role/bodies.cuh, role/jit.cuh
 *   MPK_WARPS            loader           role/loader.cuh
 *   MPK_WARPS + 1        clerk            role/clerk.cuh
 *   MPK_WARPS + 2        worker 0: the step task, role/step.cuh, or in a call role/calls.cuh
 *                        workers 1 .. n_schedulers: a scheduler, rt/rt_event.h
 *   MPK_WARPS + 3        worker 0: the courier, role/courier.cuh (GPUs 1 to n - 1: role/peers.cuh)
 *                        others: the watcher, role/watcher.cuh
 *
 * All that roles tell each other lies in mpk_worker (tile/worker.cuh), in shared memory.  Each file
 * states the invariants of its protocols at its top.
 *
 * A task of a step whose tasks are all AOT, time from left to right; -> says who wakes whom:
 *
 *   loader   descriptor .. load phase: pages requested, long before the task is due
 *                |                |
 *                v entry_full     v full[page]            empty[page] ^
 *   bodies     entry      mpk_wait ... products, page by page ........| stores, mpk_trigger
 *                            ^ ready                                            | written
 *   clerk      entry .. polls the event (L2) .................................  v counts (L2)
 *
 * A body that polls carried operands does not wait for `ready`.  Read first: role/bodies.cuh for
 * the order of a step, tile/ring.cuh for the pages, role/clerk.cuh for events, then a body of
 * task/, of which sum_pairs.cuh is short and linear_stream.cuh has everything.
 *
 * Where an operator is a kernel (RT_ONE_OP, src/cuda/baseline.c) the loader runs ahead of the end
 * of the kernel before as it runs ahead of events; all that bodies do comes after that end.
 */
#ifndef KERNEL_CUH
#define KERNEL_CUH

#include "role/calls.cuh"
#include "role/clerk.cuh"
#include "role/courier.cuh"
#include "role/loader.cuh"
#include "role/peers.cuh"
#include "role/regime.cuh"
#include "role/step.cuh"
#include "role/watcher.cuh"
/* bodies.cuh includes it too, but is left out of two units */
#include "role/jit.cuh"
#if MPK_UNIT <= MPK_UNIT_KERNEL
#include "role/bodies.cuh"
#endif

/* What a worker reads of device memory when it begins. */
struct worker_start {
    rt_word *counters;
    rt_control *control;
    rt_times *times;
    rt_u64 stall_ns, start_step;
    rt_u32 mode, graph, n_jit, live[RT_LIVES];
    mpk_call_step call;
};

/* One thread: addresses before what lies there, so the loads take two round trips. */
MPK_FN worker_start worker_read(const rt_kernel *k)
{
    worker_start s;
    s.counters = k->machine.counters;
    s.control = k->machine.control;
    s.times = k->times;
    s.stall_ns = k->machine.limits.stall_ns;
    s.start_step = k->start_step;
    s.mode = k->mode;
    s.call = call_step_of(k);
    for (int i = 0; i < RT_LIVES; i++)
        s.live[i] = k->machine.control->live[i];
    /* The loader starts on this graph's list before any step is published.  If another one comes
     * first, the bodies make it resync. */
    s.graph = !MPK_CALLS && s.mode == RT_ONE_OP ? k->graph : regime_first_graph(k);
    s.n_jit = k->machine.graphs[s.graph].n_jit;
    return s;
}

#if MPK_RING
/* One thread of each warp: the warp's share of the barriers, each of which takes some 40 cycles. */
MPK_FN void worker_make_barriers(void)
{
    const int warp = (int)threadIdx.x / 32, n_warps = (int)blockDim.x / 32;
#pragma unroll 1
    for (int i = warp; i < 2 * MPK_BOXES; i += n_warps)
        /* The warpgroup's thread that requests the box arrives once; its bytes do the rest. */
        ptx_barrier_init(&mpk_w.box_full[0][i], 1);
#pragma unroll 1
    for (int i = warp; i < MPK_PAGES; i += n_warps) {
        /* one arrival of the loader, which announces the bytes; one of each body warp to give it
         * back */
        ptx_barrier_init(&mpk_w.full[i], 1);
        ptx_barrier_init(&mpk_w.empty[i], MPK_WARPS);
    }
#pragma unroll 1
    for (int i = warp; i < MPK_ENTRIES; i += n_warps) {
        ptx_barrier_init(&mpk_w.entry_full[i], 1);
        ptx_barrier_init(&mpk_w.entry_empty[i], MPK_WARPS + 1); /* bodies and clerk */
        ptx_barrier_init(&mpk_w.written[i], MPK_WARPS);
    }
    /* The initial values must be visible to the copy engine before the first copy completes on one
     * of these barriers. */
    ptx_fence_barrier_init();
}
#endif

/* Thread 0: the worker's state in shared memory, which holds garbage at first.  What is counted
 * from the start of the kernel (sides, flags, ordinals) begins at 0; what the machine keeps from
 * kernel to kernel (step, live counts) comes from device memory. */
MPK_FN void worker_set(const rt_kernel *k, const worker_start &s)
{
    mpk_w.k = k;
    mpk_w.counters = s.counters;
    mpk_w.control = s.control;
    mpk_w.stall_ns = s.stall_ns;
    mpk_w.index = blockIdx.x;
    mpk_w.mode = s.mode;
    mpk_w.times = 0;
    /* the last step that has ended: a published word that differs is a step to run */
    mpk_w.step = s.start_step;
    mpk_w.call = s.call;
    /* both rings begin at page 0 in phase 0, the list at nothing */
    for (int i = 0; i < MPK_WARPS; i++) {
        mpk_w.sides[i] = {};
        mpk_w.jit_sides[i] = {};
    }
    mpk_w.all_times = s.times;
    mpk_w.direct = s.mode != RT_SERVE;
    mpk_w.graph = mpk_w.first_graph = s.graph;
    /* Only with regimes may a kernel begin after the machine has stopped: it was already on the
     * stream when the one before it saw the end. */
    mpk_w.is_late = MPK_REGIMES > 1 && rt_load_acquire_device(&s.control->abort) != RT_RUNNING;
    mpk_w.hybrid = s.n_jit != 0;
    /* Counts and flags of the protocols; none is read before the barrier of worker_begin. */
    mpk_w.abort = mpk_w.begun = mpk_w.loaded = mpk_w.clerked = mpk_w.resync = mpk_w.jit_mail =
        mpk_w.ready = mpk_w.plans[0] = mpk_w.plans[1] = 0;
    for (int i = 0; i < RT_LIVES; i++)
        mpk_w.live[i] = s.live[i];
    mpk_w.box_fills[0] = mpk_w.box_fills[1] = 0;
    mpk_w.routed = {};
#if MPK_PEERS > 1
    for (int i = 0; i < MPK_PEERS; i++)
        mpk_w.away[i] = k->peers[i].away;
#endif
}

/* All threads of the block, once, before any role starts; called by mpk_kernel.  After it, every
 * thread may read mpk_w and wait for its barriers: the barrier at its end publishes both.
 * In a call the caller's addresses, if they have changed since the worker's last call, come into
 * the entries before a loader or a body reads one: each block compares the number of their set with
 * the one that it holds, so a block that does not run for some calls still catches up. */
MPK_FN void worker_begin(const rt_kernel *k)
{
    const bool first = threadIdx.x == 0;
    worker_start s = {};
    const rt_u64 *sets = k->call.addresses, *held = k->call.held + blockIdx.x;
    rt_u64 set = 0, old = 0; /* of the caller's addresses: number of the set; of the worker's set */
    if (MPK_CALLS) {
        set = sets[0];
        old = *held;
    }
    if (first)
        s = worker_read(k);
#if MPK_RING
    if (threadIdx.x % 32 == 0)
        worker_make_barriers();
#endif
    if (first)
        worker_set(k, s);
    if (MPK_CALLS && old != set)
        call_move(k, set);
    __syncthreads();
}

#if MPK_UNIT == 0 || MPK_UNIT == MPK_UNIT_STEP

/* Called by run_role, in one warp of worker 0: in warp 0 of a launch that is only to poll the step
 * task, else in warp MPK_WARPS + 2, for the life of the kernel. */
MPK_FN void run_step(rt_kernel *k)
{
#if !MPK_CALLS
    if (k->mode == RT_ONE_STEP) {
        k->machine.workers[0].owner = 1;
        rt_step_poll(&k->machine, &k->machine.workers[0]);
        return;
    }
    step_loop(k);
#else
    call_loop(k);
#endif
}

#endif

#if MPK_UNIT == MPK_UNIT_STEP

extern "C" __device__ __noinline__ void mpk_run_step(rt_kernel *k)
{
    run_step(k);
}

#elif MPK_UNIT != MPK_UNIT_KERNEL

#if MPK_UNIT
MPK_FN void run_step(rt_kernel *k)
{
    mpk_run_step(k);
}
#endif

/* Called by mpk_kernel in all threads that do not run bodies, and in all threads of a launch
 * that is only to poll the step task (RT_ONE_STEP).  Each warp finds its role by its number and
 * stays in it until the kernel ends.  The order of the branches matters only in that a warp
 * whose role does not exist in this kernel (no ring, no schedulers, a call) leaves at once. */
MPK_FN void run_role(rt_kernel *k)
{
    const rt_u32 warp = threadIdx.x / 32;
#if !MPK_CALLS
    if (k->mode == RT_ONE_STEP) {
        /* The operators before it are kernels of their own, which may still run when this one
         * starts (programmatic dependent launch). */
        ptx_grid_wait();
        if (blockIdx.x == 0 && warp == 0)
            run_step(k);
        return;
    }
#endif
#if MPK_RING
    /* a kernel of one operator has a loader, too: it loads ahead of the end of the kernel before */
    if (warp == MPK_WARPS) {
        loader_loop();
        return;
    }
    if (warp == MPK_WARPS + 1) {
        if (k->mode == RT_SERVE)
            clerk_loop();
        return;
    }
#endif
    /* nothing to schedule, poll or carry for one operator */
    if (k->mode != RT_SERVE)
        return;
#if MPK_PEERS > 1
    if (blockIdx.x == 0 && k->peer) {
        if (threadIdx.x == (MPK_WARPS + 3) * 32)
            peer_loop(k);
        return;
    }
#endif
    if (warp == MPK_WARPS + 2 && blockIdx.x == 0)
        run_step(k);
    else if (warp == MPK_WARPS + 2 && blockIdx.x <= k->machine.n_schedulers) {
        /* A scheduler: paper §5.1.  Its queues lie in device memory; the pause keeps idle polls
         * off L2. */
        while (rt_every(!ptx_load_flag(&mpk_w.abort)))
            if (!rt_sched_poll(&k->machine, &k->machine.schedulers[blockIdx.x - 1]))
                __nanosleep(50);
    }
#if !MPK_CALLS
    else if (warp == MPK_WARPS + 3 && blockIdx.x == 0)
        courier_loop(k);
#endif
    /* One lane suffices, and 31 fewer loads of the abort word go to L2 in each look. */
    else if (warp == MPK_WARPS + 3 && threadIdx.x % 32 == 0)
        watch_loop();
}

#endif

#if MPK_UNIT == MPK_UNIT_ROLES

extern "C" __device__ __noinline__ void mpk_run_role(rt_kernel *k)
{
    run_role(k);
}

#elif MPK_UNIT <= MPK_UNIT_KERNEL

#if MPK_UNIT
MPK_FN void run_role(rt_kernel *k)
{
    mpk_run_role(k);
}
#endif

/* The kernel: one block for each worker, one block on each SM.  Warps part here for good:
 * block-wide barriers (barrier 0) end with worker_begin, since the roles never meet again, and
 * bodies meet at barrier 1 (mpk_sync).  The `1` of the launch bounds says that one block has the
 * whole register file: 384 threads may have 168 registers each. */
extern "C" __global__ void __launch_bounds__(MPK_WORKER_THREADS, 1) mpk_kernel(rt_kernel *k)
{
    /* Let the next operator's kernel start its loader while this one still computes. */
    if (!MPK_CALLS && k->mode == RT_ONE_OP)
        ptx_grid_let_next();
    worker_begin(k);
#if MPK_REGIMES > 1
    if (mpk_w.is_late && k->mode == RT_SERVE) {
        if (blockIdx.x == 0 && threadIdx.x == 0 &&
            rt_load_relaxed_device(&k->machine.control->abort) != RT_STOPPING)
            tell_end(k); /* of a fault that no earlier kernel could tell */
        return;
    }
#endif
    if (threadIdx.x / 32 < MPK_WARPS && (MPK_CALLS || k->mode != RT_ONE_STEP))
        body_loop();
    else
        run_role(k);
}

#endif

#endif
