/* profile.c - where the time of each operator's tasks went, as the workers noted it (rt_times), and
 * how long tokens took to the host (rt_delays).
 *
 * Each task has one record, of the step that ran it last; so a profile is that of one step.  Cycles
 * are those of the task's own SM: differences, never compared between SMs.
 *
 *   begin ------ ready ------ done ------ end
 *         wait         body        trigger
 *
 * Called through machine_def.read_profile. */
#include <stdlib.h>

#include "cuda/cuda_machine.h"

/* Clocks are 32 bits and may wrap between two readings: differences are taken in 32 bits. */
static void add_task(const rt_times *t, machine_times *to)
{
    double body = (double)(rt_u32)(t->done - t->ready);
    to->n_tasks++;
    to->wait += (double)(rt_u32)(t->ready - t->begin);
    to->body += body;
    to->trigger += (double)(rt_u32)(t->end - t->done);
    to->longest = body > to->longest ? body : to->longest;
}

/* The tasks of one GPU, summed by operator; those that never ran have no end. */
static void add_tasks(const cuda_machine *m, uint32_t graph, const rt_entry *entries,
                      const rt_times *times, machine_times *out)
{
    const rt_graph *g = (const rt_graph *)image_table(m->machine.image.block, RT_GRAPHS) + graph;
    for (uint64_t i = 0; i < m->layout.n_tasks; i++) {
        uint64_t op = (uint64_t)entries[i].op - g->first_op;
        if (entries[i].op != RT_NONE && op < g->n_ops && times[i].end)
            add_task(&times[i], &out[op]);
    }
}

/* From sums over the tasks of an operator to means of a task; `longest` stays as it is. */
static void average(uint32_t n_ops, machine_times *out)
{
    for (uint32_t k = 0; k < n_ops; k++) {
        double n = out[k].n_tasks ? out[k].n_tasks : 1;
        out[k].wait /= n;
        out[k].body /= n;
        out[k].trigger /= n;
    }
}

/* Bring the machine to rest, so that the notes stand still.  MPK_EARG: it was not started with a
 * profile. */
static mpk_status begin_reading(mpk_context *cx, cuda_machine *m)
{
    CHECK(cx, m->options.profile, MPK_EARG, "the machine was not started with a profile");
    if (m->calls)
        return cuda_call_wait(cx, &m->machine);
    TRY(cuda_gpu_use(cx, m->gpu));
    return cuda_pause(cx, m);
}

/* From the block of tables; a caller of programs may use other GPUs on this thread. */
static mpk_status download(mpk_context *cx, cuda_machine *m, void *to, uint64_t from,
                           uint64_t n_bytes)
{
    cuda_context before;
    CHECK(cx, to, MPK_ENOMEM, "out of memory for a profile of %llu tasks",
          (unsigned long long)m->layout.n_tasks);
    TRY(cuda_gpu_enter(cx, m->gpu, &before));
    mpk_status status = cuda_download(cx, m->gpu, to, m->table_block + from, n_bytes);
    cuda_gpu_leave(m->gpu, before);
    return status;
}

/* Add the times of one GPU to *out, operator by operator.  Entries are read back from the GPU
 * rather than made again: what ran is what counts. */
static mpk_status read_times(mpk_context *cx, cuda_machine *m, uint32_t graph, machine_times *out)
{
    uint64_t n = m->layout.n_tasks;
    rt_entry *entries = calloc(n, sizeof *entries);
    rt_times *times = calloc(n, sizeof *times);
    mpk_status status = download(cx, m, entries, m->layout.entries, n * sizeof *entries);
    if (status == MPK_OK)
        status = download(cx, m, times, m->layout.times, n * sizeof *times);
    if (status == MPK_OK)
        add_tasks(m, graph, entries, times, out);
    free(entries);
    free(times);
    return status;
}

static int compare_ns(const void *a, const void *b)
{
    rt_u32 x = *(const rt_u32 *)a, y = *(const rt_u32 *)b;
    return x < y ? -1 : x > y;
}

/* Of the last RT_DELAYS bursts: how many, the median, the 99th percentile, the longest. */
static mpk_status read_delays(mpk_context *cx, cuda_machine *m, machine_delays *out)
{
    rt_delays *d = calloc(1, sizeof *d);
    mpk_status status = download(cx, m, d, m->layout.delays, sizeof *d);
    if (status == MPK_OK) {
        uint32_t n = d->n < RT_DELAYS ? d->n : RT_DELAYS;
        qsort(d->ns, n, sizeof *d->ns, compare_ns);
        *out = n ? (machine_delays){n, d->ns[n / 2], d->ns[(uint64_t)n * 99 / 100], d->ns[n - 1]}
                 : (machine_delays){0};
    }
    free(d);
    return status;
}

/* machine_def's read_profile.  out->times has room for the graph's operators.  The machine rests
 * afterwards and starts again with the next work.  Delays are GPU 0's alone, whose courier talks to
 * the host. */
mpk_status cuda_read_profile(mpk_context *cx, machine *base, uint32_t graph, machine_profile *out)
{
    cuda_machine *m = cuda_of(base);
    const uint32_t n_ops =
        ((const rt_graph *)image_table(base->image.block, RT_GRAPHS) + graph)->n_ops;
    TRY(begin_reading(cx, m));
    memset(out->times, 0, n_ops * sizeof *out->times);
    for (uint32_t i = 0; i < m->n_peers; i++)
        TRY(read_times(cx, m->peers[i], graph, out->times));
    average(n_ops, out->times);
    TRY(read_delays(cx, m, &out->to_host));
    out->clock_khz = cuda_gpu_facts(m->gpu)->clock_khz;
    return MPK_OK;
}
