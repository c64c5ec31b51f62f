/* tg_stats.c - the compiler-stage table of the paper (§6.6) for a linear graph.
 *
 * Input: a linear graph.  Output: counts, as a struct or as JSON for `mpk inspect --stats`.
 * Bytes of successors as the paper counts them: 8 for each task in the list of the event that
 * launches it, or 8 for each event, the first and last number of a range (13,867 tasks: 110,932
 * bytes; 2,366 events: 18,928).
 */
#include "tgraph/program.h"

enum { SUCCESSOR_BYTES = 8 };

/* Both sizes are computed from the linear graph: a list would hold the same successors that a range
 * names, so the two differ in form alone. */
void tg_fill_stats(const tg_graph *g, tg_stats *out)
{
    out->operators = out->tasks = out->jit_tasks = 0;
    for (size_t o = 0; o < g->ir->ops.n; o++)
        out->operators += tg_op_has_tasks(g->ir, &g->ir->ops.at[o]);
    for (tg_task_id t = 0; t < g->n_tasks; t++) {
        out->tasks += g->tasks[t].op != IR_NONE;
        out->jit_tasks += g->tasks[t].launch == TG_JIT;
    }
    out->events = g->n_events;
    out->successor_bytes_range = (uint64_t)g->n_events * SUCCESSOR_BYTES;
    out->successor_bytes_list = 0;
    for (tg_event_id e = 0; e < g->n_events; e++)
        out->successor_bytes_list += (uint64_t)g->events[e].n_out * SUCCESSOR_BYTES;
}

void tg_print_stats(const tg_stats *s, text *out)
{
    text_print(out, "\"operators\": %u, \"tasks\": %u, \"tasks_per_operator\": %.2f, ",
               s->operators, s->tasks, s->operators ? (double)s->tasks / s->operators : 0.0);
    text_print(out, "\"events\": %u, \"pairs\": %llu, \"fusion\": %.2f, ", s->events,
               (unsigned long long)s->pairs, s->events ? (double)s->pairs / s->events : 0.0);
    text_print(out, "\"normalize_tasks\": %u, \"jit_tasks\": %u, ", s->normalize_tasks,
               s->jit_tasks);
    text_print(out, "\"successor_bytes_list\": %llu, \"successor_bytes_range\": %llu, ",
               (unsigned long long)s->successor_bytes_list,
               (unsigned long long)s->successor_bytes_range);
    text_print(out, "\"compile_ms\": %.3f, \"verify_ms\": %.3f", s->compile_ms, s->verify_ms);
}
