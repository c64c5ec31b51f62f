/* engine_profile.c - the code of a graph's operators, by kind; where a step's time went among them
 * (paper 6.6: what scheduling costs), how long steps took, and how long their tokens took to the
 * host.
 *
 * Input: the code that the machine runs, the workers' notes of the last step of a graph, means over
 * the tasks of each operator, and those of steps and of tokens on their way to the host
 * (machine_read_profile); output: JSON, one entry for each operator, code, and columns of its first
 * input and result (the products of a layer differ in these), in the order in which they first run.
 * Called by mpk_engine_profile, mpk_program_profile and mpk_program_describe.
 */
#include <stdlib.h>

#include "base/json.h"
#include "engine/engine.h"
#include "ir/op.h"

/* Sums over the operators of one kind; times in cycles of an SM. */
typedef struct profile_kind {
    str kind;
    machine_code code;
    int64_t from, to; /* columns of the first input, and of the result; 0: it has none */
    uint32_t n_ops;
    /* wait, body_time, trigger: summed over tasks; longest: the slowest task of each operator,
     * summed over operators */
    double n_tasks, wait, body_time, trigger, longest;
} profile_kind;

/* The last dimension; 0 for an input that is absent and for a scalar. */
static int64_t columns_of(const ir_graph *ir, ir_tensor_id id)
{
    const ir_tensor *t = id == IR_NONE ? NULL : &ir->tensors.at[id];
    return t && t->rank ? t->dims[t->rank - 1] : 0;
}

/* What tells kinds apart, with sums of 0.  The products of a layer are all "linear"; their columns
 * tell which is which. */
static profile_kind kind_of(const ir_graph *ir, const ir_op *op, machine_code code)
{
    return (profile_kind){.kind = str_from(op->def->name),
                          .code = code,
                          .from = op->n_in ? columns_of(ir, op->in[0]) : 0,
                          .to = columns_of(ir, op->out[0])};
}

/* Lists of block programs are the machine's and are compared by address: operators that were given
 * one list run the same code. */
static bool same_code(const machine_code *a, const machine_code *b)
{
    return strcmp(a->body, b->body) == 0 && a->n_programs == b->n_programs &&
           (!a->n_programs || a->programs == b->programs);
}

/* Operators that are one entry of the report: the products of all layers that have one shape and
 * run one code. */
static bool same_kind(const profile_kind *a, const profile_kind *b)
{
    return str_equal(a->kind, b->kind) && same_code(&a->code, &b->code) && a->from == b->from &&
           a->to == b->to;
}

/* Sum the operators of a graph by kind into kinds [ir->ops.n] and return how many kinds there are.
 * `times` holds means over tasks, so each is multiplied by the number of tasks.  Operators without
 * tasks are left out: views, and with a profile all of a graph that has not run.  The search is
 * linear, for kinds are few. */
static uint32_t sum_kinds(const ir_graph *ir, const machine_code *codes, const machine_times *times,
                          profile_kind *kinds)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < ir->ops.n; i++) {
        double tasks = times[i].n_tasks;
        if (!times[i].n_tasks)
            continue;
        profile_kind kind = kind_of(ir, &ir->ops.at[i], codes[i]);
        uint32_t k = 0;
        while (k < n && !same_kind(&kinds[k], &kind))
            k++;
        if (k == n)
            kinds[n++] = kind;
        kinds[k].n_ops++;
        kinds[k].n_tasks += tasks;
        kinds[k].wait += times[i].wait * tasks;
        kinds[k].body_time += times[i].body * tasks;
        kinds[k].trigger += times[i].trigger * tasks;
        kinds[k].longest += times[i].longest;
    }
    return n;
}

/* The block programs as text, and what the search that chose them said: how many it listed, how
 * many fit and were refused, and the cycles that it expects. */
static void write_programs(const machine_code *code, text *out)
{
    text_print(out, ", \"programs\": [");
    for (uint32_t i = 0; i < code->n_programs; i++) {
        const super_choice *c = code->programs[i];
        text words = {0};
        block_print(&c->program, &words);
        text_print(out,
                   "%s{\"listed\": %u, \"fitting\": %u, \"refused\": %u, \"cycles\": %.0f, "
                   "\"text\": ",
                   i ? ", " : "", c->n_listed, c->n_fitting, c->n_refused, c->cycles);
        json_write_str(out, text_str(&words));
        text_print(out, "}");
        out->failed |= words.failed;
        text_free(&words);
    }
    text_print(out, "]");
}

/* What is known before anything runs; the object stays open. */
static void begin_kind(const profile_kind *k, text *out)
{
    text_print(out, "{\"kind\": ");
    json_write_str(out, k->kind);
    text_print(out, ", \"body\": ");
    json_write_str(out, str_from(k->code.body));
    text_print(out, ", \"from\": %lld, \"to\": %lld, \"operators\": %u, \"tasks\": %.0f",
               (long long)k->from, (long long)k->to, k->n_ops, k->n_tasks);
    write_programs(&k->code, out);
}

/* Cycles of workers, summed over all tasks of the kind. */
static double time_of(const profile_kind *k)
{
    return k->wait + k->body_time + k->trigger;
}

/* all: time_of of all kinds, for the share; us: microseconds of a cycle.  sm_us is the time of all
 * tasks divided by the number of workers, so those of all kinds add up to the time that a worker
 * spends on tasks on average; wait, body and trigger are means over tasks, longest is a mean over
 * operators. */
static void write_kind(const profile_kind *k, uint32_t n_workers, double all, double us, text *out)
{
    begin_kind(k, out);
    text_print(out,
               ", \"sm_us\": %.3f, \"share\": %.6f, \"wait_us\": %.4f, \"body_us\": %.4f, "
               "\"trigger_us\": %.4f, \"longest_us\": %.4f}",
               time_of(k) * us / n_workers, all > 0 ? time_of(k) / all : 0,
               k->wait * us / k->n_tasks, k->body_time * us / k->n_tasks,
               k->trigger * us / k->n_tasks, k->longest * us / k->n_ops);
}

/* Does the operator read a tensor that lies at another peer?  IR_EVERYWHERE: each peer has its own
 * copy. */
static bool reads_peers(const ir_graph *ir, const ir_op *op)
{
    for (uint32_t i = 0; i < op->n_in; i++) {
        uint32_t peer = op->in[i] == IR_NONE ? op->peer : ir->tensors.at[op->in[i]].peer;
        if (peer != op->peer && peer != IR_EVERYWHERE)
            return true;
    }
    return false;
}

/* Cycles in which tasks waited that read what other peers make; a task that waits for both its own
 * peer and another counts whole. */
static double wait_for_peers(const ir_graph *ir, const machine_times *times)
{
    double sum = 0;
    for (uint32_t i = 0; i < ir->ops.n; i++)
        if (reads_peers(ir, &ir->ops.at[i]))
            sum += times[i].wait * times[i].n_tasks;
    return sum;
}

/* The whole report.  "scheduling" is the share of the time that workers spent counting the events
 * of finished tasks, "waiting_for_peers" the share that they waited for results of other GPUs. */
static void write_kinds(const ir_graph *ir, const profile_kind *kinds, uint32_t n,
                        uint32_t n_tokens, uint32_t n_workers, const machine_profile *p, text *out)
{
    const machine_delays *delays = &p->to_host;
    const double us = 1e3 / p->clock_khz; /* a cycle */
    double all = 0, trigger = 0, peers = wait_for_peers(ir, p->times);
    for (uint32_t k = 0; k < n; k++) {
        all += time_of(&kinds[k]);
        trigger += kinds[k].trigger;
    }
    text_print(out,
               "{\"tokens\": %u, \"clock_mhz\": %.3f, \"scheduling\": %.6f, "
               "\"waiting_for_peers\": %.6f, \"to_host\": {\"bursts\": %u, \"median_us\": %.3f, "
               "\"p99_us\": %.3f, \"most_us\": %.3f}, "
               "\"steps\": {\"n\": %u, \"median_us\": %.3f, \"between_us\": %.3f}, "
               "\"between_tasks_us\": %.3f, \"kinds\": [",
               n_tokens, p->clock_khz * 1e-3, all > 0 ? trigger / all : 0,
               all > 0 ? peers / all : 0, delays->n, delays->median_ns * 1e-3,
               delays->p99_ns * 1e-3, delays->most_ns * 1e-3, p->steps.n, p->steps.ns * 1e-3,
               p->steps.between_ns * 1e-3, p->between * us / n_workers);
    for (uint32_t k = 0; k < n; k++) {
        text_print(out, "%s", k ? ", " : "");
        write_kind(&kinds[k], n_workers, all, us, out);
    }
    text_print(out, "]}");
}

/* A failure for want of memory is told as that of the text, which the caller looks at anyway. */
void engine_write_profile(const ir_graph *ir, const machine_code *codes,
                          const machine_profile *profile, uint32_t n_tokens, uint32_t n_workers,
                          text *out)
{
    profile_kind *kinds = calloc(ir->ops.n ? ir->ops.n : 1, sizeof *kinds);
    if (kinds)
        write_kinds(ir, kinds, sum_kinds(ir, codes, profile->times, kinds), n_tokens, n_workers,
                    profile, out);
    else
        out->failed = true;
    free(kinds);
}

/* The code of every operator of a graph, in the arena; the strings and lists in it are the
 * machine's. */
static mpk_status find_codes(mpk_context *cx, arena *a, const machine *m, uint32_t graph,
                             machine_code **out)
{
    const uint32_t n = (uint32_t)m->image.ir[graph]->ops.n;
    NEW(cx, a, *out, n);
    for (uint32_t i = 0; i < n; i++)
        (*out)[i] = machine_code_of(m, graph, i);
    return MPK_OK;
}

/* How many tasks each operator has, on all workers, read from the image's table of tasks; the times
 * stay 0.  This stands in for a profile where nothing has run: sum_kinds skips operators without
 * tasks. */
static void count_tasks(const program_image *image, uint32_t graph, machine_times *times)
{
    const rt_graph *g = (const rt_graph *)image_table(image->block, RT_GRAPHS) + graph;
    const rt_task *tasks = (const rt_task *)image_table(image->block, RT_TASKS) + g->first_task;
    for (uint32_t t = 0; t < g->n_tasks; t++)
        if (tasks[t].op != RT_NONE)
            times[tasks[t].op].n_tasks++;
}

/* One object for each kind, without times: JSON such as
 *
 *     [{"kind": "linear", "body": "ref", "from": 576, "to": 1536, "operators": 60, ...}, ...] */
static mpk_status print_code(mpk_context *cx, arena *a, const machine *m, uint32_t graph, text *out)
{
    const ir_graph *ir = m->image.ir[graph];
    machine_code *codes;
    machine_times *times;
    profile_kind *kinds;
    TRY(find_codes(cx, a, m, graph, &codes));
    NEW(cx, a, times, ir->ops.n);
    NEW(cx, a, kinds, ir->ops.n);
    count_tasks(&m->image, graph, times);
    const uint32_t n = sum_kinds(ir, codes, times, kinds);
    text_print(out, "[");
    for (uint32_t k = 0; k < n; k++) {
        text_print(out, "%s", k ? ", " : "");
        begin_kind(&kinds[k], out);
        text_print(out, "}");
    }
    text_print(out, "]");
    return MPK_OK;
}

/* Without a run and without a profile.  On failure `out` may be half written; the caller frees
 * it. */
mpk_status engine_print_code(mpk_context *cx, const machine *m, uint32_t graph, text *out)
{
    arena a = {0};
    mpk_status status = print_code(cx, &a, m, graph, out);
    arena_free(&a);
    return status;
}

static mpk_status read_profile(mpk_context *cx, arena *a, machine *m, uint32_t graph,
                               uint32_t n_tokens, text *out)
{
    const ir_graph *ir = m->image.ir[graph];
    machine_profile profile = {0};
    machine_code *codes;
    NEW(cx, a, profile.times, ir->ops.n);
    TRY(find_codes(cx, a, m, graph, &codes));
    TRY(machine_read_profile(cx, m, graph, &profile));
    engine_write_profile(ir, codes, &profile, n_tokens, m->image.block->n_workers, out);
    return MPK_OK;
}

/* Reading brings the machine to rest.  n_tokens is only printed.  The text becomes the caller's
 * *json; if memory runs out it is freed here. */
mpk_status engine_read_profile(mpk_context *cx, machine *m, uint32_t graph, uint32_t n_tokens,
                               char **json)
{
    arena a = {0};
    text t = {0};
    mpk_status status = read_profile(cx, &a, m, graph, n_tokens, &t);
    arena_free(&a);
    if (status == MPK_OK && !t.failed) {
        *json = t.at;
        return MPK_OK;
    }
    text_free(&t);
    return status == MPK_OK ? status_fail(cx, MPK_ENOMEM, "out of memory for a profile") : status;
}

/* Has a step of the graph run?  If it has, some operator has tasks that have times. */
static mpk_status has_run(mpk_context *cx, machine *m, uint32_t graph, bool *out)
{
    const uint32_t n = (uint32_t)m->image.ir[graph]->ops.n;
    machine_profile profile = {0};
    arena a = {0};
    mpk_status status;
    *out = false;
    profile.times = arena_alloc(&a, n, sizeof *profile.times);
    status = profile.times ? machine_read_profile(cx, m, graph, &profile)
                           : status_fail(cx, MPK_ENOMEM, "out of memory for a profile");
    for (uint32_t i = 0; i < n && status == MPK_OK; i++)
        *out = *out || profile.times[i].n_tasks;
    arena_free(&a);
    return status;
}

/* The graph that a step of `tokens` tokens would take: the smallest that holds them.  Two graphs
 * may be of that size, one for streams and one for prompts (plan_steps in engine_model.c); the
 * second is read if the first has not run.  No request may be under way, since its next step would
 * overwrite the notes. */
mpk_status mpk_engine_profile(mpk_context *cx, mpk_engine *e, uint32_t tokens, char **json)
{
    const engine_plan *p = &e->build.plan;
    uint32_t graph = 0;
    while (graph < p->n_graphs && p->n_tokens[graph] < tokens)
        graph++;
    CHECK(cx, e->build.options.profile, MPK_EARG, "the engine was not opened with a profile");
    CHECK(cx, graph < p->n_graphs, MPK_EARG, "no graph is for %u tokens: the largest is for %u",
          tokens, p->n_tokens[p->n_graphs - 1]);
    CHECK(cx, !host_books_are_busy(&e->machine->books), MPK_EARG,
          "a profile is read when no request is under way");
    if (graph + 1 < p->n_graphs && p->n_tokens[graph + 1] == p->n_tokens[graph]) {
        bool first;
        TRY(has_run(cx, e->machine, graph, &first));
        graph += !first;
    }
    return engine_read_profile(cx, e->machine, graph, p->n_tokens[graph], json);
}
