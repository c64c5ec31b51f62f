/* baseline.c - the same bodies without a mega-kernel: one kernel for each operator, recorded in
 * CUDA graphs.
 *
 * The mega-kernel is compared with this (docs/performance.md): what the GPU does for a step is what
 * the mega-kernel does, but every operator is a launch of its own, with or without programmatic
 * dependent launch.  A step is one CUDA graph: its operators, then the step task, then a copy of
 * the control block to the host, which reads there which graph comes next. A thread launches graphs
 * while requests are running. Cost of a step besides its kernels: the copy, and the host's launch
 * of the next graph.
 *
 * With programmatic dependent launch a kernel's blocks start as soon as those of the kernel before
 * leave room (a block fills its SM, so that is one by one), bring their descriptions and weights
 * into the pages, as the mega-kernel's loader does ahead of an event, and then wait
 * (griddepcontrol.wait) until the kernel before has ended and all that it wrote is seen.  Why that
 * is enough though an operator reads what operators long before have written: that wait is for one
 * kernel only, but a kernel ends when all its threads have, and in every block of every kernel the
 * bodies' threads wait first, whether they have tasks or not.  So a thread that is past the
 * wait comes after the end of the kernel before, that one after the end of the one before it, and
 * so on to the first of the graph, which follows the graph before without any overlap.  Before the
 * wait nothing is written, and nothing is read that changes while the graph runs.
 */
#include <stdlib.h>

#include "base/thread.h"
#include "cuda/cuda_machine.h"

/* A pause after the steps that were ready: more work comes from the host, or room in a ring. */
enum { BUSY_NS = 50000 };

/* In the machine's arena.  `lock` is held while a graph is launched and waited for, and guards
 * next, n_steps and *control. */
typedef struct cuda_baseline {
    /* [n_graphs + 1]: operators, step task, copy; the last one without operators */
    cuda_graph *steps;
    cuda_graph *once;    /* [n_graphs]: operators alone */
    rt_control *control; /* pinned: the copy */
    cuda_address control_at;
    pthread_t thread;
    bool has_thread;
    rt_word stopping;
    pthread_mutex_t lock; /* one launch at a time */
    bool has_lock;
    uint64_t n_steps; /* seen */
    uint32_t next;    /* graph to launch; n_graphs: the step task alone */
} cuda_baseline;

/* ---- recording ---- */

/* Put a kernel of one operator on the stream, or with op == n_ops the step task.  early: with
 * programmatic dependent launch. */
static mpk_status launch_kernel(mpk_context *cx, cuda_machine *m, uint32_t regime, uint64_t op,
                                uint32_t n_blocks, bool early)
{
    cuda_address argument = m->table_block + m->layout.op_kernels + op * sizeof(rt_kernel);
    void *arguments[] = {&argument};
    cuda_launch l = {.function = m->kernels[regime].function,
                     .name = "mpk_kernel",
                     .n_blocks = n_blocks,
                     .n_threads = m->arch.worker_threads,
                     .shared_bytes = m->kernels[regime].shared_bytes,
                     .arguments = arguments,
                     .early = early};
    return cuda_launch_on(cx, m->gpu, m->work, &l);
}

/* *early: the next kernel of the recording may start early; false before the first one, which
 * follows a copy. */
static mpk_status launch_ops(mpk_context *cx, cuda_machine *m, uint32_t graph, bool *early)
{
    const rt_graph *g = (const rt_graph *)image_table(m->machine.image.block, RT_GRAPHS) + graph;
    for (uint32_t k = 0; k < g->n_ops; k++) {
        if (m->source.uses[graph][k].instance == RT_NONE)
            continue;
        TRY(launch_kernel(cx, m, m->source.regime_of[graph], g->first_op + k,
                          m->machine.image.block->n_workers, *early));
        *early = m->options.mode == CUDA_GRAPH_PDL;
    }
    return MPK_OK;
}

/* The step task takes one block; what it decided is then copied to the host. */
static mpk_status launch_step(mpk_context *cx, cuda_machine *m, bool early)
{
    TRY(launch_kernel(cx, m, GEN_STREAMS, m->layout.n_ops, 1, early));
    return cuda_download_on(cx, m->gpu, m->work, m->baseline->control,
                            m->table_block + m->layout.control, sizeof(rt_control));
}

/* Record a graph of the program, with or without the step task after it; graph n_graphs: no
 * operators. On failure *out may be set all the same, and cuda_baseline_stop releases it. */
static mpk_status record(mpk_context *cx, cuda_machine *m, uint32_t graph, bool with_step,
                         cuda_graph *out)
{
    bool early = false;
    TRY(cuda_graph_begin(cx, m->gpu, m->work));
    mpk_status status =
        graph < m->machine.image.n_graphs ? launch_ops(cx, m, graph, &early) : MPK_OK;
    if (status == MPK_OK && with_step)
        status = launch_step(cx, m, early);
    return cuda_graph_end(cx, m->gpu, m->work, status, out);
}

/* ---- steps ---- */

/* Look again and again until everything on the stream has ended: the next graph is launched with
 * the least delay. */
static mpk_status finish(mpk_context *cx, cuda_machine *m)
{
    bool done = false;
    while (!done)
        TRY(cuda_stream_poll(cx, m->gpu, m->work, &done));
    return MPK_OK;
}

/* Run what was published, and the step task after it.  *busy: it has published more. */
static mpk_status run_step(mpk_context *cx, cuda_machine *m, bool *busy)
{
    cuda_baseline *b = m->baseline;
    TRY(cuda_graph_launch(cx, m->gpu, b->steps[b->next], m->work));
    TRY(finish(cx, m));
    *busy = b->control->stats.n_steps.value != b->n_steps;
    b->n_steps = b->control->stats.n_steps.value;
    b->next = *busy ? rt_word_graph(b->control->step.value) : m->machine.image.n_graphs;
    CHECK(cx, b->next <= m->machine.image.n_graphs, MPK_EDEVICE, "the step task names graph %u",
          b->next);
    return MPK_OK;
}

/* As cuda_note_lost, for the thread that serves. */
static void note_failure(cuda_machine *m, mpk_status status, const mpk_context *cx)
{
    pthread_mutex_lock(&m->lock);
    if (!m->lost) {
        m->lost_status = status;
        memcpy(m->lost_words, cx->text, sizeof m->lost_words);
        m->lost = true;
    }
    pthread_mutex_unlock(&m->lock);
}

/* The thread: while requests are under way, step after step; otherwise it sleeps on the bell.  The
 * bell is read before the books are looked at, so a request that comes in between wakes it at
 * once. */
static void *serve(void *argument)
{
    cuda_machine *m = argument;
    cuda_baseline *b = m->baseline;
    mpk_context cx = {0};
    mpk_status status = cuda_gpu_use(&cx, m->gpu);
    while (status == MPK_OK && !rt_load_acquire_system(&b->stopping)) {
        bool busy = false;
        rt_u32 seen = rt_load_acquire_system(&m->mailbox->bell); /* before looking */
        if (!host_books_are_busy(&m->machine.books)) {
            if (!rt_load_acquire_system(&b->stopping)) /* set before the bell rings */
                rt_sleep(&m->mailbox->bell, seen, RT_FOREVER);
        } else {
            pthread_mutex_lock(&b->lock);
            do
                status = run_step(&cx, m, &busy);
            while (status == MPK_OK && busy && !rt_load_acquire_system(&b->stopping));
            pthread_mutex_unlock(&b->lock);
            /* it waits for the host, or for room in a ring */
            nanosleep(&(struct timespec){0, BUSY_NS}, NULL);
        }
    }
    if (status != MPK_OK)
        note_failure(m, status, &cx);
    return NULL;
}

/* A step that the host drives; the lock keeps it apart from those of requests. */
mpk_status cuda_baseline_run(mpk_context *cx, cuda_machine *m, uint32_t graph, uint32_t n_tokens,
                             uint32_t n_rows)
{
    rt_u32 live[RT_LIVES] = {[RT_ALL] = UINT32_MAX, [RT_TOKENS] = n_tokens, [RT_ROWS] = n_rows};
    cuda_address at = m->table_block + m->layout.control + offsetof(rt_control, live);
    TRY(cuda_gpu_use(cx, m->gpu));
    pthread_mutex_lock(&m->baseline->lock);
    mpk_status status = cuda_upload_on(cx, m->gpu, m->work, at, live, sizeof live);
    if (status == MPK_OK)
        status = cuda_graph_launch(cx, m->gpu, m->baseline->once[graph], m->work);
    if (status == MPK_OK)
        status = finish(cx, m);
    pthread_mutex_unlock(&m->baseline->lock);
    return status;
}

/* ---- start and end ---- */

/* steps[g]: graph g and the step task after it; steps[n]: the step task alone, which begins;
 * once[g]: graph g alone. */
mpk_status cuda_baseline_start(mpk_context *cx, cuda_machine *m)
{
    uint32_t n = m->machine.image.n_graphs;
    cuda_baseline *b;
    void *host;
    NEW(cx, &m->arena, b, 1);
    m->baseline = b;
    b->next = n;
    NEW(cx, &m->arena, b->steps, n + 1);
    NEW(cx, &m->arena, b->once, n);
    b->has_lock = pthread_mutex_init(&b->lock, NULL) == 0;
    CHECK(cx, b->has_lock, MPK_ENOMEM, "out of memory for a lock");
    TRY(cuda_host_alloc(cx, m->gpu, sizeof *b->control, &host, &b->control_at));
    b->control = host;
    for (uint32_t g = 0; g < n; g++)
        TRY(record(cx, m, g, false, &b->once[g]));
    for (uint32_t g = 0; g <= n; g++)
        TRY(record(cx, m, g, true, &b->steps[g]));
    if (!m->serving.ready)
        return MPK_OK;
    TRY(thread_start(cx, &b->thread, serve, m));
    b->has_thread = true;
    return MPK_OK;
}

/* End the thread; the graphs that it launches are released later. */
void cuda_baseline_end(cuda_machine *m)
{
    cuda_baseline *b = m->baseline;
    if (!b)
        return;
    rt_store_release_system(&b->stopping, 1);
    machine_ring_host(&m->machine);
    if (b->has_thread)
        pthread_join(b->thread, NULL);
}

/* After cuda_baseline_end.  The GPU must be current on the thread: else the driver keeps the pinned
 * memory. */
void cuda_baseline_release(cuda_machine *m)
{
    cuda_baseline *b = m->baseline;
    uint32_t n = m->machine.image.n_graphs;
    if (!b)
        return;
    for (uint32_t g = 0; b->steps && g <= n; g++)
        if (b->steps[g])
            cuda_graph_release(m->gpu, b->steps[g]);
    for (uint32_t g = 0; b->once && g < n; g++)
        if (b->once[g])
            cuda_graph_release(m->gpu, b->once[g]);
    cuda_host_release(m->gpu, b->control);
    if (b->has_lock)
        pthread_mutex_destroy(&b->lock);
}
