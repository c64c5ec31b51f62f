/* tg_print.c - the text form of a task graph (docs/text-form.md).
 *
 * Input: a graph at any level.  Output: the tensor program in its own text form, then a `tgraph`
 * line, then one line for each task and event:
 *
 *   tgraph fused workers=4
 *   task 0 = %q [0:4, 0:16] aot worker=3
 *   task 9 = empty jit
 *   event 2 <- 0-3 5 -> 6-9
 *
 * Only events list tasks; the events of a task are derived from these lists.  tg_parse reads the
 * text back, and printing what was parsed gives the same bytes, which the goldens and the fuzzer
 * rely on.
 */
#include "tgraph/tgraph.h"

/* May the name stand in the text without quotes?  These characters end no token of either parser;
 * names that PyTorch or a user chose may hold any others. */
static bool is_plain(str name)
{
    for (size_t i = 0; i < name.n; i++) {
        char c = name.at[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && c != '_' && c != '.' && c != '-' && c != '/' && c != '$')
            return false;
    }
    return name.n > 0;
}

/* An operator by the name of its first output; by its number where the name would need quotes. */
static void print_op(const tg_graph *g, ir_op_id op, text *out)
{
    str name = g->ir->ops.at[op].name;
    if (is_plain(name))
        text_print(out, " = %%%.*s [", STR_ARG(name));
    else
        text_print(out, " = @%u [", op);
}

/* task 3 = %y [0:16, 64:128] aot worker=2 */
static void print_task(const tg_graph *g, tg_task_id id, text *out)
{
    const tg_task *task = &g->tasks[id];
    text_print(out, "task %u", id);
    if (task->op == IR_NONE) {
        text_print(out, " = empty");
    } else {
        uint32_t rank = g->ir->tensors.at[g->ir->ops.at[task->op].out[0]].rank;
        print_op(g, task->op, out);
        for (uint32_t i = 0; i < rank; i++)
            text_print(out, "%s%lld:%lld", i ? ", " : "", (long long)task->box.lo[i],
                       (long long)task->box.hi[i]);
        text_print(out, "]");
    }
    text_print(out, task->launch == TG_JIT ? " jit" : " aot");
    if (task->worker != TG_NONE)
        text_print(out, " worker=%u", task->worker);
    text_print(out, "\n");
}

/* Print rising task numbers, consecutive ones as a range. */
static void print_list(const tg_graph *g, const tg_event *e, bool in, text *out)
{
    uint32_t n = in ? e->n_in : e->n_out;
    for (uint32_t i = 0, end; i < n; i = end) {
        uint32_t first = in ? g->in_tasks[e->first_in + i] : tg_out_task(g, e, i), last = first;
        for (end = i + 1; end < n; end++, last++)
            if ((in ? g->in_tasks[e->first_in + end] : tg_out_task(g, e, end)) != last + 1)
                break;
        text_print(out, " %u", first);
        if (last > first)
            text_print(out, "-%u", last);
    }
}

/* The text form of a tGraph, as tg_parse reads it and docs/text-form.md has it: the program, then
 * tasks and events by number.
 */
void tg_print(const tg_graph *g, text *out)
{
    ir_print(g->ir, out);
    text_print(out, "tgraph %s workers=%u\n", tg_level_names[g->level], g->n_workers);
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        print_task(g, t, out);
    for (tg_event_id e = 0; e < g->n_events; e++) {
        text_print(out, "event %u", e);
        if (g->events[e].n_in)
            text_print(out, " <-");
        print_list(g, &g->events[e], true, out);
        if (g->events[e].n_out)
            text_print(out, " ->");
        print_list(g, &g->events[e], false, out);
        text_print(out, "\n");
    }
}
