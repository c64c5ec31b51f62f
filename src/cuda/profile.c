/* profile.c - where the time of each operator's tasks went, as the workers noted it (rt_times), how
 * long steps took (rt_step_notes), and how long tokens took to the host (rt_delays).
 *
 * Each task has one record, of the step that ran it last; so a profile is that of one step.  Cycles
 * are those of the task's own SM: differences, never compared between SMs.
 *
 *   begin ------ ready ------ done ------ end
 *         wait         body        trigger
 *                              done ------ begin of the worker's next task
 *                                  between
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

/* Cycles between the tasks of each worker's list; `first` is its table of a graph (tables.c).  0 of
 * a step with JIT tasks, which do not stand in the order in which they ran. */
static double add_between(const cuda_machine *m, uint32_t graph, const rt_u32 *first,
                          const rt_times *times)
{
    const rt_graph *g = (const rt_graph *)image_table(m->machine.image.block, RT_GRAPHS) + graph;
    double sum = 0;
    if (g->n_jit)
        return 0;
    for (uint32_t w = 0; w < cuda_workers(m); w++)
        for (rt_u32 i = first[w]; i + 1 < first[w + 1]; i++)
            if (times[i].end && times[i + 1].end)
                sum += (double)(rt_u32)(times[i + 1].begin - times[i].done);
    return sum;
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
static mpk_status read_times(mpk_context *cx, cuda_machine *m, uint32_t graph, machine_profile *out)
{
    const uint64_t n = m->layout.n_tasks, workers = cuda_workers(m);
    rt_entry *entries = calloc(n, sizeof *entries);
    rt_times *times = calloc(n, sizeof *times);
    rt_u32 *first = calloc(workers + 1, sizeof *first);
    mpk_status status = download(cx, m, entries, m->layout.entries, n * sizeof *entries);
    if (status == MPK_OK)
        status = download(cx, m, times, m->layout.times, n * sizeof *times);
    if (status == MPK_OK)
        status = download(cx, m, first, m->layout.first_entry + graph * workers * sizeof *first,
                          (workers + 1) * sizeof *first);
    if (status == MPK_OK) {
        add_tasks(m, graph, entries, times, out->times);
        out->between += add_between(m, graph, first, times);
    }
    free(entries);
    free(times);
    free(first);
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

/* Of the noted steps of a graph: how many, their medians, and the clock at which they ran, which
 * under load is lower than the highest. */
static mpk_status summarize_steps(mpk_context *cx, const rt_step_notes *notes, uint32_t graph,
                                  machine_profile *out)
{
    const uint32_t n_notes = notes->n < RT_STEP_NOTES ? notes->n : RT_STEP_NOTES;
    rt_u32 *ns = calloc(2 * RT_STEP_NOTES, sizeof *ns), *between = ns + RT_STEP_NOTES, n = 0;
    double all_ns = 0, all_cycles = 0;
    CHECK(cx, ns, MPK_ENOMEM, "out of memory for a profile of %d steps", RT_STEP_NOTES);
    for (uint32_t i = 0; i < n_notes; i++) {
        if (notes->of[i].graph != graph)
            continue;
        all_ns += notes->of[i].ns;
        all_cycles += notes->of[i].cycles;
        ns[n] = notes->of[i].ns;
        between[n++] = notes->of[i].between_ns;
    }
    qsort(ns, n, sizeof *ns, compare_ns);
    qsort(between, n, sizeof *between, compare_ns);
    out->steps = n ? (machine_steps){n, ns[n / 2], between[n / 2]} : (machine_steps){0};
    if (all_ns > 0)
        out->clock_khz = (uint32_t)(all_cycles / all_ns * 1e6);
    free(ns);
    return MPK_OK;
}

static mpk_status read_steps(mpk_context *cx, cuda_machine *m, uint32_t graph, machine_profile *out)
{
    rt_step_notes *notes = calloc(1, sizeof *notes);
    mpk_status status = download(cx, m, notes, m->layout.steps, sizeof *notes);
    if (status == MPK_OK)
        status = summarize_steps(cx, notes, graph, out);
    free(notes);
    return status;
}

/* machine_def's read_profile.  out->times has room for the graph's operators.  The machine rests
 * afterwards and starts again with the next work.  Delays and steps are GPU 0's alone, whose
 * courier talks to the host and whose step task begins all steps. */
mpk_status cuda_read_profile(mpk_context *cx, machine *base, uint32_t graph, machine_profile *out)
{
    cuda_machine *m = cuda_of(base);
    const uint32_t n_ops =
        ((const rt_graph *)image_table(base->image.block, RT_GRAPHS) + graph)->n_ops;
    TRY(begin_reading(cx, m));
    memset(out->times, 0, n_ops * sizeof *out->times);
    out->between = 0;
    for (uint32_t i = 0; i < m->n_peers; i++)
        TRY(read_times(cx, m->peers[i], graph, out));
    average(n_ops, out->times);
    TRY(read_delays(cx, m, &out->to_host));
    out->clock_khz = cuda_gpu_facts(m->gpu)->clock_khz;
    return read_steps(cx, m, graph, out);
}
