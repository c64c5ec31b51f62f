/* launch.c - kernels of a machine: started, watched, asked to end; on one GPU or on several that
 * share a program.
 *
 * Input: modules and tables (cuda.c).  A kernel tells how it ended in its mailbox; one that died is
 * found by a look at its stream.  Several kernels are one machine: they start together, and what
 * ends one ends all.  A kernel is started again only when all have ended: what a GPU stores to
 * others (rt_kernel.stop) has then arrived.  Where each GPU has a process of its own
 * (cuda_ranks.c), each process launches and watches its own kernel, when rank 0 says so.
 *
 * The states of a machine and what leads from one to the other:
 *
 *   never launched --work--> RT_RUNNING --idle_ns without work--> RT_STOPPING --work--> RT_RUNNING
 *   RT_RUNNING --a stall, an overflow, bad input--> RT_FAULTED, for good
 *   RT_RUNNING --its stream is done, or the driver fails--> m->lost, for good
 *
 * The host sets RT_RUNNING before a launch; everything else is the kernel's word in its mailbox.
 * Called by the machine's functions, which hold the lock. */
#include <stdio.h>

#include "base/thread.h"
#include "cuda/cuda_machine.h"

enum {
    LOOK_NS = 2000000, /* between looks at the stream */
    SHORT_SLEEP_NS = 5000,
    /* kernels on the stream at a time where a program has several regimes: each change of regime
     * takes the next one */
    KERNELS_AHEAD = 8,
    LEAVE_NS = 1000000000, /* for a kernel that only waits, after it was told to stop */
};

/* The state of the machine, from the mailboxes alone: any thread, without a lock or a driver.  Of
 * several GPUs: faulted if one is, else running if one is. */
rt_u32 cuda_state(const cuda_machine *m)
{
    rt_u32 state = RT_STOPPING;
    for (uint32_t i = 0; i < m->n_peers; i++) {
        const rt_u32 one = rt_load_acquire_system(&m->peers[i]->mailbox->state);
        if (one == RT_FAULTED)
            return RT_FAULTED;
        if (one == RT_RUNNING)
            state = RT_RUNNING;
    }
    return state;
}

/* Where each GPU has a process of its own every mailbox is in this one's memory, too. */
void cuda_tell_kernels(cuda_machine *m, rt_u32 stop)
{
    for (uint32_t i = 0; i < m->n_peers; i++)
        rt_store_release_system(&m->peers[i]->mailbox->abort, stop);
}

/* "GPU 1: " in words, where there are several GPUs; else "". */
static const char *name_gpu(const cuda_machine *m, char words[32])
{
    words[0] = 0;
    if (m && m->n_peers > 1)
        snprintf(words, 32, "GPU %u: ", m->options.device);
    return words;
}

/* The first loss counts; the others follow from it.  Callers hold the lock, under which m->lost is
 * read before the words are.  The kernels of other GPUs are asked to leave, since they would wait
 * for this one for ever. */
void cuda_note_lost(cuda_machine *m, const cuda_machine *which, mpk_status status,
                    const char *words)
{
    char gpu[32];
    if (m->lost)
        return;
    m->lost = true;
    m->lost_status = status;
    snprintf(m->lost_words, sizeof m->lost_words, "%s%s", name_gpu(which, gpu), words);
    if (m->n_peers > 1)
        cuda_tell_kernels(m, 1);
    cuda_ranks_tell(m, status, m->lost_words);
}

/* Kernels on the stream that have not handed over to the next; 0: the host was not there to put
 * more. */
static uint32_t kernels_left(const cuda_machine *m)
{
    return m->queued - rt_load_acquire_system(&m->mailbox->left);
}

/* Has this GPU's kernel died?  A stream that is done while the mailbox says RT_RUNNING: the kernel
 * died without a word.  The stream is asked first: a kernel that ended well has written its state
 * before, and the host's own change to RT_RUNNING is made under the lock that the caller holds. */
static void look_at(cuda_machine *m, const cuda_machine *which)
{
    mpk_context cx = {0};
    bool done = false;
    mpk_status status = cuda_gpu_use(&cx, which->gpu);
    if (status == MPK_OK)
        status = cuda_stream_poll(&cx, which->gpu, which->work, &done);
    if (status != MPK_OK)
        cuda_note_lost(m, which, status, cx.text);
    else if (done && rt_load_acquire_system(&which->mailbox->state) == RT_RUNNING &&
             kernels_left(which))
        cuda_note_lost(m, which, MPK_EDEVICE, "the kernel ended without saying why");
    if (m->lost)
        cuda_ranks_note_kernel(which, false);
}

/* At most every LOOK_NS, since each look is a call of the driver for each GPU; `now` asks in any
 * case. */
void cuda_look(cuda_machine *m, bool now)
{
    uint64_t time = clock_ns();
    cuda_ranks_look(m);
    if (!m->launched || m->lost || (!now && time - m->looked_ns < LOOK_NS))
        return;
    m->looked_ns = time;
    for (uint32_t i = m->n_peers; i-- > 0;)
        if (!m->peers[i]->is_elsewhere)
            look_at(m, m->peers[i]);
}

/* Kernels of the regimes in turn, so that some always wait after the one that runs
 * (device/role/regime.cuh). */
static mpk_status queue_kernels(mpk_context *cx, cuda_machine *m)
{
    const uint32_t n = m->source.n_regimes, wanted = n > 1 ? KERNELS_AHEAD : 1;
    TRY(cuda_gpu_use(cx, m->gpu));
    while (kernels_left(m) < wanted) {
        TRY(cuda_launch_main(cx, m, (m->first_regime + m->queued) % n, m->work));
        m->queued++;
    }
    return MPK_OK;
}

/* Before a launch on this GPU: words that say stop are taken back, on the device by fills on the
 * stream, so that they come before the kernel; the regime to begin with is the one that was to go
 * on. With several GPUs the fill is waited for, because another GPU's kernel may write `stop` as
 * soon as it runs. */
static mpk_status reset_words(mpk_context *cx, cuda_machine *m)
{
    const cuda_address abort_word =
        m->table_block + m->layout.control + offsetof(rt_control, abort);
    const cuda_address stop_word = m->table_block + m->layout.kernel + offsetof(rt_kernel, stop);
    TRY(cuda_gpu_use(cx, m->gpu));
    TRY(cuda_fill_on(cx, m->gpu, m->work, abort_word, 0, sizeof(rt_word)));
    m->first_regime = rt_load_acquire_system(&m->mailbox->regime) % m->source.n_regimes;
    m->queued = 0;
    rt_store_release_system(&m->mailbox->left, 0);
    rt_store_release_system(&m->mailbox->state, RT_RUNNING);
    if (m->n_peers == 1)
        return MPK_OK;
    TRY(cuda_fill_on(cx, m->gpu, m->work, stop_word, 0, sizeof(rt_word)));
    return cuda_stream_wait(cx, m->gpu, m->work); /* before another GPU's kernel can write it */
}

mpk_status cuda_prepare_kernels(mpk_context *cx, cuda_machine *m)
{
    for (uint32_t i = 0; i < m->n_peers; i++)
        if (!m->peers[i]->is_elsewhere)
            TRY(reset_words(cx, m->peers[i]));
    return MPK_OK;
}

/* GPU 0 comes last: its kernel has the step task. */
mpk_status cuda_start_kernels(mpk_context *cx, cuda_machine *m)
{
    m->launched = true;
    for (uint32_t i = m->n_peers; i-- > 0;) {
        if (m->peers[i]->is_elsewhere)
            continue;
        cuda_ranks_note_kernel(m->peers[i], true);
        TRY(queue_kernels(cx, m->peers[i]));
    }
    m->looked_ns = clock_ns();
    m->n_launches++;
    return MPK_OK;
}

/* The kernel's work is in memory: start it, or start it again. */
static mpk_status launch(mpk_context *cx, cuda_machine *m)
{
    TRY(cuda_prepare_kernels(cx, m));
    TRY(cuda_ranks_launch(cx, m));
    return cuda_start_kernels(cx, m);
}

/* Kernels that have ended are not followed by others. */
mpk_status cuda_refill_kernels(mpk_context *cx, cuda_machine *m)
{
    for (uint32_t i = m->n_peers; i-- > 0;) {
        cuda_machine *p = m->peers[i];
        if (!p->is_elsewhere && m->source.n_regimes > 1 && kernels_left(p) < KERNELS_AHEAD &&
            rt_load_acquire_system(&p->mailbox->state) == RT_RUNNING)
            TRY(queue_kernels(cx, p));
    }
    return MPK_OK;
}

/* There is work: a kernel that has gone to rest starts again, after its own end on the stream; one
 * that runs has others after it. */
void cuda_keep_running(cuda_machine *m)
{
    mpk_context cx = {0};
    mpk_status status = MPK_OK;
    if (m->baseline || m->lost)
        return;
    const rt_u32 state = cuda_state(m);
    if (!m->launched || state == RT_STOPPING)
        status = launch(&cx, m);
    else if (state == RT_RUNNING)
        status = cuda_refill_kernels(&cx, m);
    if (status != MPK_OK)
        cuda_note_lost(m, m, status, cx.text);
}

/* Has a kernel ended?  One of another process by its own word, or with that process. */
static mpk_status has_ended(mpk_context *cx, const cuda_machine *m, bool *done)
{
    if (!m->is_elsewhere)
        return cuda_stream_poll(cx, m->gpu, m->work, done);
    *done = cuda_ranks_has_ended(m);
    return MPK_OK;
}

/* Wait until a kernel has ended, by looking at its stream until `end` (clock_ns).  False: it does
 * not end.  A GPU that fails has no kernel any more, which is an end too. */
static bool await_end(cuda_machine *m, const cuda_machine *which, uint64_t end)
{
    mpk_context cx = {0};
    mpk_status status = cuda_gpu_use(&cx, which->gpu);
    for (;;) {
        bool done = false;
        if (status == MPK_OK)
            status = has_ended(&cx, which, &done);
        if (status != MPK_OK)
            cuda_note_lost(m, which, status, cx.text);
        if ((done || status != MPK_OK) && !which->is_elsewhere)
            cuda_ranks_note_kernel(which, false);
        if (done || status != MPK_OK)
            return true;
        if (clock_ns() > end)
            return false;
        nanosleep(&(struct timespec){0, SHORT_SLEEP_NS}, NULL);
    }
}

/* Ask all kernels to end and wait for them, GPU 0 last: each has as long as a step may take,
 * stop_ns at least.  The request is taken back, so that the next launch runs; for good it stays,
 * and kernels of other processes are not waited for: what these touch here lives as long as they
 * do. */
bool cuda_end_kernels(cuda_machine *m, bool for_good)
{
    bool ended = true;
    if (!m->launched)
        return true;
    cuda_tell_kernels(m, 1);
    const cuda_options *o = &m->options;
    const uint64_t end = clock_ns() + (o->stall_ns > o->stop_ns ? o->stall_ns : o->stop_ns);
    for (uint32_t i = m->n_peers; i-- > 0;)
        if (!for_good || !m->peers[i]->is_elsewhere)
            ended &= await_end(m, m->peers[i], end);
    if (!for_good)
        cuda_tell_kernels(m, 0);
    return ended;
}

/* After this the SMs are free for other kernels, until cuda_keep_running.  The caller does not hold
 * m->lock and has seen to it that no requests are under way.  MPK_ESTALLED: a kernel does not end;
 * its SMs stay taken. */
mpk_status cuda_pause(mpk_context *cx, cuda_machine *m)
{
    if (m->baseline)
        return MPK_OK;
    TRY(machine_check(cx, &m->machine));
    pthread_mutex_lock(&m->lock);
    bool ended = cuda_end_kernels(m, false);
    pthread_mutex_unlock(&m->lock);
    CHECK(cx, ended, MPK_ESTALLED, "the kernel does not stop");
    return MPK_OK;
}

/* Which kernels are still there when all have been told to stop?  A task that does not end holds
 * its kernel, while those that wait for it leave at once.  Looked at once for a machine; the lock
 * is held. */
static void find_hung(cuda_machine *m)
{
    if (m->knows_hung)
        return;
    m->knows_hung = true;
    cuda_tell_kernels(m, 1);
    const uint64_t wait = m->options.stop_ns < LEAVE_NS ? m->options.stop_ns : LEAVE_NS;
    const uint64_t end = clock_ns() + wait;
    for (uint32_t i = m->n_peers; i-- > 0;)
        if (!await_end(m, m->peers[i], end))
            m->hung |= 1u << i;
}

/* Of a stall of several GPUs: those in whose kernels a task does not end. */
static mpk_status note_hung(mpk_context *cx, cuda_machine *m, mpk_status status)
{
    char gpu[32];
    pthread_mutex_lock(&m->lock);
    find_hung(m);
    const uint32_t hung = m->hung;
    pthread_mutex_unlock(&m->lock);
    for (uint32_t i = 0; i < m->n_peers; i++)
        if (hung >> i & 1)
            status = status_note(cx, status, "%sa task on peer %u does not end",
                                 name_gpu(m->peers[i], gpu), i);
    return status;
}

/* The words of a fault, once cuda_state has said RT_FAULTED: of the first GPU that has one; the
 * others were asked to stop.  Of several GPUs the message names it. */
mpk_status cuda_say_fault(mpk_context *cx, cuda_machine *m)
{
    char gpu[32];
    uint32_t i = 0;
    while (i + 1 < m->n_peers && rt_load_acquire_system(&m->peers[i]->mailbox->state) != RT_FAULTED)
        i++;
    rt_fault fault = m->peers[i]->mailbox->fault;
    cuda_find_waiting(m, &fault);
    mpk_status status = machine_say_fault(cx, &m->machine, &fault);
    if (m->n_peers == 1)
        return status;
    status =
        status_note(cx, status, "told by %.*s", (int)strlen(name_gpu(m->peers[i], gpu)) - 2, gpu);
    return fault.kind == RT_STALL ? note_hung(cx, m, status) : status;
}
