/* cuda.c - the machine on a GPU: one kernel, started by the host and then left alone (paper §5).
 *
 * Input: an image and its weights.  Starting decides everything on the host first (code, memory,
 * tables), compares it with what the GPU has, and only then allocates.  The kernel runs while there
 * is work and ends after a while without; its state stays in device memory, so the next launch goes
 * on where the last one stopped.
 *
 * Host and kernel talk through the mailbox and the rings in pinned memory.  While the kernel runs
 * it fills every SM: nothing else that needs one (filling memory, packing) may be started and
 * waited for, see cuda_pause.  A thread that waits also looks at the stream: a kernel that died is
 * noticed, so no thread waits for ever (launch.c).  Of a program that several GPUs share each has a
 * machine of its own after the first one's (peers.c).
 *
 * Locks.  m->lock guards launching and everything below it in the struct.  The books' lock guards
 * the lent logits and the masks.  The books' lock may be held when m->lock is taken (ring,
 * put_mask), never the other way round: nothing under m->lock calls into the books.
 *
 * Called by cuda_target.c (cuda_start) and, through current.c, by host/machine.c and books.c. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "base/thread.h"
#include "cuda/cache.h"
#include "cuda/cuda_machine.h"
#include "rt/rt_queue.h"

/* How a thread waits for the kernel (rest): it spins for SPIN_NS, then sleeps SHORT_SLEEP_NS at a
 * time, and LONG_SLEEP_NS after LONG_WAIT sleeps, which is 20 ms without news. */
enum {
    SPIN_NS = 20000,
    SHORT_SLEEP_NS = 5000,
    LONG_SLEEP_NS = 100000,
    LONG_WAIT = 4000, /* short sleeps without news before longer ones */
};

/* ---- the device ---- */

/* All that can be wrong with a GPU for this program is found here, before memory is taken.  Fills
 * in driver, gpu, arch and as_ptx.  arch is a copy of the table's row with fewer features or pages
 * where the GPU or the options have less; given code fixes the row, since its source was made for
 * that. */
static mpk_status open_device(mpk_context *cx, cuda_machine *m)
{
    gen_arch row;
    uint32_t workers = cuda_workers(m);
    TRY(cuda_driver_open(cx, &m->driver));
    m->before = cuda_driver_current(m->driver);
    CHECK(cx, m->options.device < cuda_driver_gpus(m->driver), MPK_EUNSUPPORTED,
          "there is no GPU %u: this process sees %u", m->options.device,
          cuda_driver_gpus(m->driver));
    CHECK(cx, m->n_peers == 1 || m->options.mode == CUDA_PERSISTENT, MPK_EUNSUPPORTED,
          "a program that %u GPUs share runs in the persistent mode alone", m->n_peers);
    TRY(cuda_gpu_open(cx, m->driver, m->options.device, &m->gpu));
    const cuda_facts *f = cuda_gpu_facts(m->gpu);
    TRY(cuda_choose_arch(cx, f, &row, &m->as_ptx));
    CHECK(cx, gen_arch_fit(&row, f->n_sms, f->shared_bytes, &m->arch), MPK_EUNSUPPORTED,
          "%s has %u bytes of shared memory for a block: too few", f->name, f->shared_bytes);
    CHECK(cx, workers <= f->n_sms, MPK_EUNSUPPORTED,
          "the program was compiled for %u workers, %s has %u SMs: compile it again for this GPU",
          workers, f->name, f->n_sms);
    CHECK(cx, f->maps_host, MPK_EUNSUPPORTED, "%s cannot read the host's memory", f->name);
    if (m->options.code)
        m->arch = row; /* what it was compiled for; where that is too much, the launch is refused */
    if (m->options.reference_bodies)
        m->arch.features = 0;
    CHECK(cx, m->options.mode != CUDA_GRAPH_PDL || m->arch.features & GEN_BULK, MPK_EUNSUPPORTED,
          "%s is of compute capability %u.%u, and code for %s has no programmatic dependent launch "
          "(sm_90a and sm_100a "
          "have): use --mode=graph",
          f->name, f->major, f->minor, m->arch.name);
    return MPK_OK;
}

/* ---- memory ---- */

/* The GPU's memory but for pinned pieces.  State and temporaries begin as zeros; carried words as
 * RT_EMPTY, whose bytes are all alike, so that one fill of bytes does.  Weights and tables are
 * written in full later.  In calls, state and step tensors are the caller's memory and get none
 * here.  What other processes reach comes from cuda_ranks.c.  On failure what was allocated stays
 * in m, for stop. */
static mpk_status allocate(mpk_context *cx, cuda_machine *m)
{
    static const char *const names[RT_AREAS] = {"weights", "state (KV cache)",
                                                "step inputs and outputs", "temporaries"};
    TRY(cuda_memory_alloc(cx, m->gpu, names[0], m->weights.n_bytes, &m->weight_block));
    TRY(cuda_ranks_allocate(cx, m));
    for (int i = m->options.mode == CUDA_CALLS ? RT_TEMPS : RT_STATE; i < RT_AREAS; i++) {
        const uint64_t n = m->windows[i].n_bytes;
        if (!m->areas[i])
            TRY(cuda_memory_alloc(cx, m->gpu, names[i], n, &m->areas[i]));
        if (m->areas[i])
            TRY(cuda_fill_on(cx, m->gpu, m->copies, m->areas[i], 0, n));
    }
    if (!m->ranks)
        TRY(cuda_memory_alloc(cx, m->gpu, "carried results", m->carriers.n_bytes,
                              &m->carried_block));
    if (m->carried_block)
        TRY(cuda_fill_on(cx, m->gpu, m->copies, m->carried_block, RT_EMPTY & 0xff,
                         m->carriers.n_bytes));
    TRY(cuda_memory_alloc(cx, m->gpu, "sums of tiles", cuda_parts_bytes(m), &m->parts_block));
    if (m->parts_block) /* products read some floats that no task writes: 0 (squares.c) */
        TRY(cuda_fill_on(cx, m->gpu, m->copies, m->parts_block, 0, cuda_parts_bytes(m)));
    if (!m->ranks)
        TRY(cuda_memory_alloc(cx, m->gpu, "the runtime's tables", m->layout.n_bytes,
                              &m->table_block));
    return cuda_stream_wait(cx, m->gpu, m->copies);
}

static uint64_t lines(uint64_t n)
{
    return (n + RT_LINE - 1) / RT_LINE * RT_LINE;
}

/* The mailbox of every GPU, and the rings of the first one: the host's ends, and where the GPU sees
 * them.  The ring block holds requests, commands, tokens, then the token arena; one allocation,
 * since pinning is slow. */
static mpk_status allocate_rings(mpk_context *cx, cuda_machine *m)
{
    void *box = m->mailbox; /* there already: of ranks */
    if (!box)
        TRY(cuda_host_alloc(cx, m->gpu, sizeof *m->mailbox, &box, &m->mailbox_at));
    m->mailbox = box;
    m->rings.request_ring = &m->mailbox->request_ring;
    m->rings.command_ring = &m->mailbox->command_ring;
    m->rings.token_ring = &m->mailbox->token_ring;
    m->rings.bell = &m->mailbox->bell;
    if (!m->serving.ready || m->peer)
        return MPK_OK;
    uint64_t requests = lines(((uint64_t)m->rings.request_mask + 1) * sizeof(rt_request)),
             commands = lines(((uint64_t)m->rings.command_mask + 1) * sizeof(rt_command)),
             tokens = lines(((uint64_t)m->rings.token_mask + 1) * sizeof(rt_token));
    TRY(cuda_host_alloc(cx, m->gpu,
                        requests + commands + tokens + m->rings.n_arena * sizeof(rt_i32),
                        &m->ring_block, &m->ring_block_at));
    char *at = m->ring_block;
    m->rings.requests = (rt_request *)(void *)at;
    m->rings.commands = (rt_command *)(void *)(at + requests);
    m->rings.tokens = (rt_token *)(void *)(at + requests + commands);
    m->rings.token_arena = (rt_i32 *)(void *)(at + requests + commands + tokens);
    m->requests_at = m->ring_block_at;
    m->commands_at = m->ring_block_at + requests;
    m->tokens_at = m->commands_at + commands;
    m->arena_at = m->tokens_at + tokens;
    return MPK_OK;
}

/* The tables are filled on the host and sent in one copy; the host's bytes are freed when the copy
 * has ended.  Called last, when all addresses are known. */
static mpk_status upload_tables(mpk_context *cx, cuda_machine *m)
{
    char *block = calloc(1, m->layout.n_bytes);
    CHECK(cx, block, MPK_ENOMEM, "out of memory for %llu bytes of tables",
          (unsigned long long)m->layout.n_bytes);
    mpk_status status = cuda_fill_tables(cx, m, block);
    if (status == MPK_OK)
        status = cuda_upload_on(cx, m->gpu, m->copies, m->table_block, block, m->layout.n_bytes);
    if (status == MPK_OK)
        status = cuda_stream_wait(cx, m->gpu, m->copies);
    free(block);
    return status;
}

/* ---- the machine's functions ---- */

/* machine_def's check: MPK_OK, or why this machine will never go on.  A fault that the kernel has
 * told counts before what the driver says, since it knows more.  lost_words is written once, before
 * m->lost is seen under the lock, and may be read without it afterwards. */
static mpk_status check_machine(mpk_context *cx, machine *base)
{
    cuda_machine *m = cuda_of(base);
    if (cuda_state(m) == RT_FAULTED)
        return cuda_say_fault(cx, m);
    pthread_mutex_lock(&m->lock);
    cuda_look(m, false);
    bool lost = m->lost;
    mpk_status status = m->lost_status;
    pthread_mutex_unlock(&m->lock);
    if (lost)
        return status_fail(cx, status, "%s", m->lost_words);
    return MPK_OK;
}

/* A wait of this thread: without sleeping at first, then with sleeps that grow. */
typedef struct patience {
    uint64_t since;
    uint32_t sleeps;
    int slack; /* of the thread's timers before */
} patience;

/* Spin first: an answer mostly comes within microseconds.  Then sleep, longer and longer. */
static void rest(patience *p)
{
    if (clock_ns() - p->since < SPIN_NS) {
        rt_pause();
        return;
    }
    if (p->sleeps++ == 0) {
        p->slack = prctl(PR_GET_TIMERSLACK);
        prctl(PR_SET_TIMERSLACK, 1000ul); /* otherwise a sleep takes 50 us longer */
    }
    nanosleep(&(struct timespec){0, p->sleeps < LONG_WAIT ? SHORT_SLEEP_NS : LONG_SLEEP_NS}, NULL);
}

/* Give the thread back the slack of its timers, if rest has changed it. */
static void end_rest(const patience *p)
{
    if (p->sleeps && p->slack > 0)
        prctl(PR_SET_TIMERSLACK, (unsigned long)p->slack);
}

/* Until the courier has told that run number `wanted` is done.  The kernel may have ended for want
 * of work: it is started again.  Ends with the machine's fault if there is one. */
static mpk_status await_once(mpk_context *cx, cuda_machine *m, rt_u32 wanted, patience *p)
{
    while (rt_load_acquire_system(&m->mailbox->once_done) != wanted) {
        TRY(check_machine(cx, &m->machine));
        pthread_mutex_lock(&m->lock);
        cuda_keep_running(m);
        pthread_mutex_unlock(&m->lock);
        rest(p);
    }
    return MPK_OK;
}

/* machine_def's run_graph: one run of one graph, waited for.  The three words are written before
 * `once_wanted` is released, and the courier reads them after it acquired that; no other thread
 * writes them, since the host drives one run at a time. */
static mpk_status run_graph(mpk_context *cx, machine *base, uint32_t graph, uint32_t n_tokens,
                            uint32_t n_rows)
{
    cuda_machine *m = cuda_of(base);
    cuda_mailbox *box = m->mailbox;
    CHECK(cx, !m->is_elsewhere, MPK_EARG, "steps are rank 0's to run");
    if (m->baseline)
        return cuda_baseline_run(cx, m, graph, n_tokens, n_rows);
    patience p = {.since = clock_ns()};
    box->once[0] = graph;
    box->once[1] = n_tokens;
    box->once[2] = n_rows;
    rt_u32 wanted = rt_load_relaxed_device(&box->once_wanted) + 1;
    rt_store_release_system(&box->once_wanted, wanted); /* partner: the courier */
    mpk_status status = await_once(cx, m, wanted, &p);
    end_rest(&p);
    return status;
}

/* machine_def's ring, called with the books' lock held: a kernel at rest starts again, and the bell
 * wakes a thread that waits without polling. */
static void ring(machine *base)
{
    cuda_machine *m = cuda_of(base);
    pthread_mutex_lock(&m->lock);
    cuda_keep_running(m);
    pthread_mutex_unlock(&m->lock);
    machine_ring_host(base);
}

/* Anything that a waiting thread is to come back for: the bell, a token, or that nothing will
 * come. */
static bool has_news(const cuda_machine *m, rt_u32 seen)
{
    return rt_load_acquire_system(&m->mailbox->bell) != seen ||
           rt_ring_ready(&m->mailbox->token_ring) || cuda_state(m) == RT_FAULTED || m->lost;
}

/* The kernel cannot wake a thread: while requests are under way the host polls, and looks now and
 * then whether the kernel lives.  Without requests nothing can come but the bell, on which the
 * thread sleeps.  end: clock_ns() or UINT64_MAX. */
static void poll_news(cuda_machine *m, rt_u32 seen, uint64_t end, patience *p)
{
    while (!has_news(m, seen) && clock_ns() < end) {
        if (!host_books_are_busy(&m->machine.books)) {
            rt_sleep(&m->mailbox->bell, seen, end == UINT64_MAX ? RT_FOREVER : end - p->since);
            return;
        }
        pthread_mutex_lock(&m->lock);
        cuda_look(m, false);
        cuda_keep_running(m);
        pthread_mutex_unlock(&m->lock);
        rest(p);
    }
}

/* machine_def's wait, on any thread and without locks: until there is news or the time is over. */
static void wait_news(machine *base, rt_u32 seen, uint64_t timeout_ns)
{
    patience p = {.since = clock_ns()};
    poll_news(cuda_of(base), seen,
              timeout_ns < UINT64_MAX - p.since ? p.since + timeout_ns : UINT64_MAX, &p);
    end_rest(&p);
}

/* machine_def's describe.  The copy engine copies the statistics beside a running kernel, if that
 * is possible now; otherwise they stay 0.  Calls have none. */
static void describe(machine *base, machine_facts *out)
{
    cuda_machine *m = cuda_of(base);
    mpk_context cx = {0};
    rt_stats stats;
    out->device = m->name;
    out->scratch_bytes =
        (uint64_t)cuda_own(m)->kernels[GEN_STREAMS].shared_bytes * base->image.block->n_workers;
    for (uint32_t i = 0; i < m->n_peers; i++)
        out->area_bytes += m->peers[i]->layout.n_bytes + m->peers[i]->carriers.n_bytes;
    out->device_ns = m->device_ns;
    out->code_ns = m->code_ns;
    out->code_wait_ns = m->code_wait_ns;
    out->code_cached = m->code_cached;
    if (!m->calls && cuda_gpu_use(&cx, m->gpu) == MPK_OK &&
        cuda_download_on(&cx, m->gpu, m->copies, &stats,
                         m->table_block + m->layout.control + offsetof(rt_control, stats),
                         sizeof stats) == MPK_OK &&
        cuda_stream_wait(&cx, m->gpu, m->copies) == MPK_OK)
        machine_take_stats(out, &stats);
}

/* The names of a body and its block programs, from the host's own plan; any thread. */
static machine_code code_of(const machine *base, uint32_t graph, ir_op_id op)
{
    const gen_source *source = &((const cuda_machine *)base)->source;
    const gen_use *use = &source->uses[graph][op];
    if (!use->body)
        return (machine_code){.body = "view"};
    const gen_programs *programs = &source->instances[use->instance].programs;
    return (machine_code){use->body->name, programs->n, programs->at};
}

/* ---- start and end ---- */

/* Everything that one GPU's machine has allocated there or pinned.  Called only when no kernel
 * runs, with this GPU current on the thread: a release while another GPU's context is current
 * fails, and the memory would stay. */
static void release_memory(cuda_machine *m)
{
    for (size_t i = 0; i < m->n_logits; i++)
        cuda_host_release(m->gpu, m->logits[i].host);
    cuda_host_release(m->gpu, m->masks);
    cuda_host_release(m->gpu, m->ring_block);
    cuda_host_release(m->gpu, m->mailbox);
    cuda_memory_release(m->gpu, m->table_block);
    cuda_memory_release(m->gpu, m->parts_block);
    cuda_memory_release(m->gpu, m->carried_block);
    for (int i = 0; i < RT_AREAS; i++)
        cuda_memory_release(m->gpu, m->areas[i]);
    cuda_memory_release(m->gpu, m->weight_block);
    if (m->work)
        cuda_stream_release(m->gpu, m->work);
    if (m->copies)
        cuda_stream_release(m->gpu, m->copies);
    for (uint32_t r = 0; r < GEN_REGIMES; r++)
        if (m->kernels[r].module)
            cuda_module_release(m->gpu, m->kernels[r].module);
    if (m->loader)
        cuda_module_release(m->gpu, m->loader);
}

/* Everything of one GPU but the machine itself, and what was current on the thread before is so
 * again.  A kernel that does not end keeps its memory: freeing would wait for it. */
static void leave_gpu(cuda_machine *m, bool ended, cuda_context before)
{
    mpk_context late = {0};
    if (!m->gpu || m->is_elsewhere)
        return;
    if (ended) {
        cuda_gpu_use(&late, m->gpu);
        release_memory(m);
    }
    cuda_gpu_leave(m->gpu, before);
    if (ended)
        cuda_gpu_close(m->gpu);
}

/* Kernels do not see the struct, so it is freed even if one does not end; the driver then stays
 * open. */
static void free_machine(cuda_machine *m, bool ended)
{
    if (ended && !m->is_elsewhere)
        cuda_driver_close(m->driver);
    arena_free(&m->arena);
    free(m->logits);
    free(m);
}

/* The kernels, and what this process shares with those of other GPUs.  False: one does not stop. */
static bool end_kernels(cuda_machine *m)
{
    mpk_context cx = {0};
    const cuda_machine *own = cuda_own(m);
    bool ended = true, is_usable = own->gpu && cuda_gpu_use(&cx, own->gpu) == MPK_OK;
    cuda_baseline_end(m);
    cuda_ranks_leave(m);
    if (is_usable && m->has_lock)
        ended = cuda_end_kernels(m, true);
    cuda_ranks_close(m);
    return ended;
}

/* machine_def's stop, also for a machine that was started in part.  The order: end the baseline's
 * thread and the kernels, then the books, then what only kernels use, GPU by GPU, the first one
 * last. ended: if a kernel does not stop, what it may still touch is leaked rather than freed
 * under it. */
static void stop(machine *base)
{
    cuda_machine *m = cuda_of(base), *own = cuda_own(m);
    cuda_context before = own->gpu ? cuda_driver_current(own->driver) : NULL;
    const bool ended = end_kernels(m);
    if (m->has_books)
        machine_end(base);
    if (m->gpu && ended)
        cuda_calls_stop(m);
    if (ended) {
        mpk_context late = {0};
        cuda_unlink_peers(m);
        if (own->gpu)
            cuda_gpu_use(&late, own->gpu);
        cuda_baseline_release(m);
        cuda_ranks_release(m);
    }
    for (uint32_t i = m->n_peers; i-- > 0;)
        if (m->peers[i])
            leave_gpu(m->peers[i], ended, before);
    if (m->has_lock)
        pthread_mutex_destroy(&m->lock);
    for (uint32_t i = m->n_peers; i-- > 0;)
        if (m->peers[i])
            free_machine(m->peers[i], ended);
}

const machine_def cuda_inner_def = {.name = "cuda",
                                    .stop = stop,
                                    .check = check_machine,
                                    .write_tensor = cuda_write_tensor,
                                    .read_tensor = cuda_read_tensor,
                                    .run_graph = run_graph,
                                    .clear_state = cuda_clear_state,
                                    .ring = ring,
                                    .wait = wait_news,
                                    .describe = describe,
                                    .code_of = code_of,
                                    .lend_logits = cuda_lend_logits,
                                    .return_logits = cuda_return_logits,
                                    .peek_logits = cuda_peek_logits,
                                    .put_mask = cuda_put_mask,
                                    .read_profile = cuda_read_profile};

static const machine_def calls_def = {.name = "cuda",
                                      .stop = stop,
                                      .check = cuda_call_check,
                                      .write_tensor = cuda_call_refuse_write,
                                      .read_tensor = cuda_call_refuse_read,
                                      .run_graph = cuda_call_refuse_run,
                                      .clear_state = cuda_call_refuse_clear,
                                      .describe = describe,
                                      .code_of = code_of,
                                      .make_slots = cuda_call_make_slots,
                                      .launch_slots = cuda_call_launch,
                                      .wait_launch = cuda_call_wait,
                                      .touch_slot = cuda_call_touch,
                                      .keeps_copy = cuda_call_keeps_copy,
                                      .read_profile = cuda_read_profile};

/* The options with their defaults filled in; in calls a stall is told later, since the caller's own
 * kernels may hold the SMs; of several GPUs earlier, since finding the one that hangs takes up to a
 * second more. */
static void read_options(cuda_machine *m, const cuda_options *from)
{
    cuda_options *o = &m->options;
    if (from)
        *o = *from;
    uint64_t stall_ns = m->n_peers > 1 ? 8000000000u : 10000000000u;
    if (o->mode == CUDA_CALLS)
        stall_ns = 60000000000u;
    o->stall_ns = o->stall_ns ? o->stall_ns : stall_ns;
    o->stop_ns = o->stop_ns ? o->stop_ns : 10000000000u;
    o->idle_ns = o->idle_ns ? o->idle_ns : 200000000u;
}

/* The machines of the other peers, on the GPUs after the first one's in their order (on_one_gpu: on
 * the same).  They are the first machine's: stop frees them.  All hold the same list of peers,
 * which is copied once it is complete. */
static mpk_status make_peers(mpk_context *cx, cuda_machine *m)
{
    for (uint32_t i = 1; i < m->n_peers; i++) {
        cuda_machine *p = calloc(1, sizeof *p);
        CHECK(cx, p, MPK_ENOMEM, "out of memory for a machine");
        m->peers[i] = p;
        p->machine.image = m->machine.image;
        p->options = m->options;
        p->options.device += m->options.on_one_gpu ? 0 : i;
        p->peer = i;
        p->n_peers = m->n_peers;
    }
    for (uint32_t i = 1; i < m->n_peers; i++)
        memcpy(m->peers[i]->peers, m->peers, sizeof m->peers);
    return MPK_OK;
}

/* Say how far starting is; the caller of cuda_start ends it by a status. */
static mpk_status tell(mpk_context *cx, const cuda_machine *m, const char *stage, double done)
{
    return m->options.progress ? m->options.progress(cx, m->options.progress_user, stage, done)
                               : MPK_OK;
}

/* Everything that can be decided and refused without allocating; the code's part of the time is
 * counted. */
static mpk_status plan(mpk_context *cx, cuda_machine *m)
{
    uint64_t begin = clock_ns();
    TRY(open_device(cx, m));
    m->device_ns = clock_ns() - begin;
    TRY(cuda_plan_program(cx, m));
    if (!m->options.in_flight)
        m->options.in_flight = cuda_weights_in_flight(
            &m->weights, cuda_workers(m), cuda_gpu_facts(m->gpu)->memory_bytes_s, &m->arch);
    return cuda_check_memory(cx, m);
}

/* A GPU that another process drives is like this one's, so its plan needs no look at it. */
static mpk_status plan_elsewhere(mpk_context *cx, cuda_machine *m, const cuda_machine *own)
{
    m->driver = own->driver;
    m->gpu = own->gpu;
    m->arch = own->arch;
    m->as_ptx = own->as_ptx;
    m->device_ns = own->device_ns;
    return cuda_plan_program(cx, m);
}

/* The memory of one GPU: allocated, and weights brought.  Tables come later (upload_all), since
 * they hold addresses of all GPUs.  j has the loader's code; the kernels may still be compiling
 * meanwhile. */
static mpk_status fill_memory(mpk_context *cx, cuda_machine *m, const machine_weights *weights,
                              const cuda_code_job *j)
{
    TRY(cuda_gpu_use(cx, m->gpu));
    NOTE(cx, cuda_load_loader(cx, m, j), "preparing to load weights");
    TRY(allocate(cx, m));
    TRY(allocate_rings(cx, m));
    return m->options.mode == CUDA_CALLS ? cuda_calls_start(cx, m, weights)
                                         : cuda_upload_weights(cx, m, weights, IR_NONE);
}

/* GPU after GPU; of several, the message of a failure names the one that it came from. */
static mpk_status fill_all(mpk_context *cx, cuda_machine *m, const machine_weights *weights,
                           const cuda_code_job *j)
{
    for (uint32_t i = 0; i < m->n_peers; i++) {
        if (m->peers[i]->is_elsewhere)
            continue;
        mpk_status status = fill_memory(cx, m->peers[i], weights, j);
        if (status != MPK_OK)
            return m->n_peers > 1
                       ? status_note(cx, status, "filling GPU %u", m->peers[i]->options.device)
                       : status;
    }
    return MPK_OK;
}

/* The modules of every GPU, and whether their launches fit.  After cuda_end_code. */
static mpk_status load_kernels(mpk_context *cx, cuda_machine *m, const cuda_code_job *j)
{
    for (uint32_t i = 0; i < m->n_peers; i++) {
        if (m->peers[i]->is_elsewhere)
            continue;
        TRY(cuda_gpu_use(cx, m->peers[i]->gpu));
        NOTE(cx, cuda_load_kernels(cx, m->peers[i], j), "preparing the kernel");
    }
    return MPK_OK;
}

/* Code and weights side by side: a thread compiles the kernels while this one brings the weights.
 * Whatever fails, the thread is joined (cuda_end_code) before this returns, since it writes to *j
 * and to m.  code_wait_ns counts what the weights did not hide. */
static mpk_status prepare(mpk_context *cx, cuda_machine *m, const machine_weights *weights,
                          cuda_code_job *j)
{
    uint64_t begin;
    mpk_status status = cuda_begin_code(cx, m, j);
    if (status == MPK_OK)
        status = fill_all(cx, m, weights, j);
    if (status == MPK_OK && j->has_thread)
        status = tell(cx, m, "compiling the kernel", 0);
    NOTE(cx, cuda_end_code(cx, j, status), "preparing the machine");
    begin = clock_ns();
    TRY(load_kernels(cx, m, j));
    m->code_wait_ns += clock_ns() - begin;
    m->code_ns += clock_ns() - begin;
    TRY(tell(cx, m, "compiling the kernel", 1));
    return cuda_offer_code(cx, m, j);
}

/* For people: "2 x NVIDIA H100 80GB HBM3". */
static void name_device(cuda_machine *m)
{
    const char *name = cuda_gpu_facts(m->gpu)->name;
    if (m->n_peers > 1)
        snprintf(m->name, sizeof m->name, "%u x %s", m->n_peers, name);
    else
        snprintf(m->name, sizeof m->name, "%s", name);
}

/* The streams of this process's GPUs; a GPU of another is looked at by the own one's. */
static mpk_status make_streams(mpk_context *cx, cuda_machine *m)
{
    for (uint32_t i = 0; i < m->n_peers; i++) {
        if (m->peers[i]->is_elsewhere)
            continue;
        TRY(cuda_gpu_use(cx, m->peers[i]->gpu));
        TRY(cuda_stream_create(cx, m->peers[i]->gpu, &m->peers[i]->work));
        TRY(cuda_stream_create(cx, m->peers[i]->gpu, &m->peers[i]->copies));
    }
    for (uint32_t i = 0; i < m->n_peers; i++)
        if (m->peers[i]->is_elsewhere)
            m->peers[i]->copies = cuda_own(m)->copies;
    return cuda_gpu_use(cx, m->gpu);
}

/* All GPUs: what can be refused, then the links between them. */
static mpk_status plan_all(mpk_context *cx, cuda_machine *m)
{
    TRY(make_peers(cx, m));
    TRY(cuda_ranks_open(cx, m));
    const cuda_machine *own = cuda_own(m);
    TRY(plan(cx, m->peers[own->peer]));
    for (uint32_t i = 0; i < m->n_peers; i++)
        if (i != own->peer)
            TRY(m->peers[i]->is_elsewhere ? plan_elsewhere(cx, m->peers[i], own)
                                          : plan(cx, m->peers[i]));
    if (m->n_peers > 1)
        TRY(cuda_link_peers(cx, m));
    TRY(cuda_ranks_agree(cx, m));
    name_device(m);
    return make_streams(cx, m);
}

/* GPU 0 comes last, since launches begin there: by then every other GPU has its tables. */
static mpk_status upload_all(mpk_context *cx, cuda_machine *m)
{
    for (uint32_t i = m->n_peers; i-- > 0;) {
        if (m->peers[i]->is_elsewhere)
            continue;
        TRY(cuda_gpu_use(cx, m->peers[i]->gpu));
        TRY(upload_tables(cx, m->peers[i]));
    }
    return MPK_OK;
}

/* The order matters: the loader's code first, then weights while the kernel is compiled, the tables
 * last, when all addresses are known. */
static mpk_status start(mpk_context *cx, cuda_machine *m, const machine_weights *weights)
{
    cuda_code_job job = {0};
    TRY(plan_all(cx, m));
    mpk_status status = prepare(cx, m, weights, &job);
    text_free(&job.loader);
    for (uint32_t r = 0; r < GEN_REGIMES; r++)
        text_free(&job.kernels[r]);
    TRY(status);
    TRY(cuda_ranks_share(cx, m));
    TRY(upload_all(cx, m));
    TRY(cuda_prepare_logits(cx, m));
    TRY(cuda_prepare_masks(cx, m));
    TRY(machine_begin(cx, &m->machine, m->machine.def, &m->machine.image, &m->serving,
                      m->serving.ready ? &cuda_own(m)->rings : NULL));
    TRY(cuda_ranks_begin(cx, m));
    if (m->options.mode == CUDA_CALLS)
        return cuda_calls_record(cx, m);
    return cuda_has_op_kernels(m) ? cuda_baseline_start(cx, m) : MPK_OK;
}

/* After a failure the machine is stopped, which works for one that was started in part.  On return
 * the thread has the context that it had before, whatever happened. */
mpk_status cuda_start(mpk_context *cx, const program_image *image, const machine_weights *weights,
                      const cuda_options *options, machine **out)
{
    cuda_machine *m = calloc(1, sizeof *m);
    CHECK(cx, m, MPK_ENOMEM, "out of memory for a machine");
    m->machine.image = *image;
    m->n_peers = image->block->n_peers;
    m->peers[0] = m;
    read_options(m, options);
    m->machine.def = m->options.mode == CUDA_CALLS ? &calls_def : &cuda_outer_def;
    m->has_lock = pthread_mutex_init(&m->lock, NULL) == 0;
    m->has_books = true; /* they are zero until they are opened */
    mpk_status status = m->has_lock ? start(cx, m, weights)
                                    : status_fail(cx, MPK_ENOMEM, "out of memory for a lock");
    const cuda_machine *own = cuda_own(m);
    if (own->driver)
        cuda_driver_leave(own->driver, own->before);
    if (status != MPK_OK) {
        stop(&m->machine);
        return status;
    }
    *out = &m->machine;
    return MPK_OK;
}
