/* cpu_profile.c - where the time of each operator's tasks goes.  Called by cpu.c around the code
 * of each task, if the machine was started with a profile.
 *
 * Each task has one record, of the last step that ran it, written by the worker that ran it.  It
 * is read between steps, when the end event of that step has ordered all records before the
 * reader.  The wait of a task runs from the end of its worker's last task to the begin of its
 * own code: it includes triggering events, and what the worker did as step task or scheduler.
 */
#include "base/thread.h"
#include "cpu/cpu_machine.h"

mpk_status cpu_profile_make(mpk_context *cx, cpu_machine *m)
{
    NEW(cx, &m->arena, m->times, image_count(m->base.image.block, RT_TASKS));
    NEW(cx, &m->arena, m->ended, m->rt.n_workers);
    for (uint32_t i = 0; i < m->rt.n_workers; i++)
        m->ended[i].ns = clock_ns();
    return MPK_OK;
}

uint64_t cpu_profile_begin(const cpu_machine *m)
{
    return m->times ? clock_ns() : 0;
}

void cpu_profile_end(cpu_machine *m, const rt_worker *w, const rt_task *task, uint64_t begin_ns)
{
    if (!m->times)
        return;
    uint64_t now = clock_ns();
    m->times[task - m->rt.tasks] = (cpu_time){
        .wait_ns = begin_ns - m->ended[w->index].ns, .body_ns = now - begin_ns, .epoch = w->epoch};
    m->ended[w->index].ns = now;
}

/* The number of the last step that ran a graph; 0: none did. */
static uint32_t last_epoch(const rt_graph *g, const cpu_time *times)
{
    uint32_t last = 0;
    for (uint32_t t = 0; t < g->n_tasks; t++)
        last = times[t].epoch > last ? times[t].epoch : last;
    return last;
}

/* Add one task to the times of its operator. */
static void add_task(const cpu_time *t, machine_times *to)
{
    double body = (double)t->body_ns;
    to->n_tasks++;
    to->wait += (double)t->wait_ns;
    to->body += body;
    to->longest = body > to->longest ? body : to->longest;
}

/* Averages over the tasks of the last step that ran the graph, in nanoseconds; an operator
 * without tasks in that step has zeros. */
mpk_status cpu_read_profile(mpk_context *cx, machine *base, uint32_t graph, machine_profile *out)
{
    cpu_machine *m = cpu_of(base);
    CHECK(cx, m->times, MPK_EARG, "the machine was not started with a profile");
    const rt_graph *g = &m->rt.graphs[graph];
    const cpu_time *times = m->times + g->first_task;
    const uint32_t epoch = last_epoch(g, times);
    memset(out->times, 0, g->n_ops * sizeof *out->times);
    for (uint32_t t = 0; t < g->n_tasks; t++)
        if (epoch && times[t].epoch == epoch)
            add_task(&times[t], &out->times[m->rt.tasks[g->first_task + t].op]);
    for (uint32_t k = 0; k < g->n_ops; k++) {
        double n = out->times[k].n_tasks ? out->times[k].n_tasks : 1;
        out->times[k].wait /= n;
        out->times[k].body /= n;
    }
    out->clock_khz = 1000000; /* nanoseconds */
    out->between = 0;
    out->steps = (machine_steps){0};
    return MPK_OK;
}
