/* engine_profile.c - where a step's time went, by kind of operator (paper 6.6: what scheduling
 * costs), and how long its tokens took to the host.
 *
 * Input: the workers' notes of the last step of a graph, means over the tasks of each operator, and
 * those of tokens on their way to the host (machine_read_profile); output: JSON, one entry for each
 * operator, code, and columns of its first input and result (the products of a layer differ in
 * these), in the order in which they first run.
 */
#include <stdlib.h>

#include "base/json.h"
#include "engine/engine.h"
#include "ir/op.h"

/* Sums over the operators of one kind, in cycles of an SM. */
typedef struct profile_kind {
    str kind;
    const char *body;
    int64_t from, to; /* columns of the first input, and of the result; 0: it has none */
    uint32_t n_ops;
    double n_tasks, wait, body_time, trigger, longest; /* all but longest: summed over tasks */
} profile_kind;

static int64_t columns_of(const ir_graph *ir, ir_tensor_id id)
{
    const ir_tensor *t = id == IR_NONE ? NULL : &ir->tensors.at[id];
    return t && t->rank ? t->dims[t->rank - 1] : 0;
}

static profile_kind kind_of(const ir_graph *ir, const ir_op *op, const char *body)
{
    return (profile_kind){.kind = str_from(op->def->name),
                          .body = body,
                          .from = op->n_in ? columns_of(ir, op->in[0]) : 0,
                          .to = columns_of(ir, op->out[0])};
}

static bool same_kind(const profile_kind *a, const profile_kind *b)
{
    return str_equal(a->kind, b->kind) && strcmp(a->body, b->body) == 0 && a->from == b->from &&
           a->to == b->to;
}

static uint32_t sum_kinds(const ir_graph *ir, const char *const *bodies, const machine_times *times,
                          profile_kind *kinds)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < ir->ops.n; i++) {
        double tasks = times[i].n_tasks;
        if (!times[i].n_tasks)
            continue;
        profile_kind kind = kind_of(ir, &ir->ops.at[i], bodies[i]);
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

static void write_kind(const profile_kind *k, uint32_t n_workers, double us, text *out)
{
    text_print(out, "{\"kind\": ");
    json_write_str(out, k->kind);
    text_print(out, ", \"body\": ");
    json_write_str(out, str_from(k->body));
    text_print(out,
               ", \"from\": %lld, \"to\": %lld, \"operators\": %u, \"tasks\": %.0f, \"sm_us\": "
               "%.3f, \"wait_us\": %.4f, "
               "\"body_us\": %.4f, \"trigger_us\": %.4f, \"longest_us\": %.4f}",
               (long long)k->from, (long long)k->to, k->n_ops, k->n_tasks,
               (k->wait + k->body_time + k->trigger) * us / n_workers, k->wait * us / k->n_tasks,
               k->body_time * us / k->n_tasks, k->trigger * us / k->n_tasks,
               k->longest * us / k->n_ops);
}

static void write_kinds(const profile_kind *kinds, uint32_t n, uint32_t n_tokens,
                        uint32_t n_workers, const machine_profile *p, text *out)
{
    const machine_delays *delays = &p->to_host;
    double all = 0, trigger = 0;
    for (uint32_t k = 0; k < n; k++) {
        all += kinds[k].wait + kinds[k].body_time + kinds[k].trigger;
        trigger += kinds[k].trigger;
    }
    text_print(
        out,
        "{\"tokens\": %u, \"clock_mhz\": %.3f, \"scheduling\": %.6f, \"to_host\": {\"bursts\": %u, "
        "\"median_us\": %.3f, \"p99_us\": %.3f, \"most_us\": %.3f}, \"kinds\": [",
        n_tokens, p->clock_khz * 1e-3, all > 0 ? trigger / all : 0, delays->n,
        delays->median_ns * 1e-3, delays->p99_ns * 1e-3, delays->most_ns * 1e-3);
    for (uint32_t k = 0; k < n; k++) {
        text_print(out, "%s", k ? ", " : "");
        write_kind(&kinds[k], n_workers, 1e3 / p->clock_khz, out);
    }
    text_print(out, "]}");
}

void engine_write_profile(const ir_graph *ir, const char *const *bodies,
                          const machine_profile *profile, uint32_t n_tokens, uint32_t n_workers,
                          text *out)
{
    profile_kind *kinds = calloc(ir->ops.n ? ir->ops.n : 1, sizeof *kinds);
    if (kinds)
        write_kinds(kinds, sum_kinds(ir, bodies, profile->times, kinds), n_tokens, n_workers,
                    profile, out);
    else
        out->failed = true;
    free(kinds);
}

static mpk_status read_profile(mpk_context *cx, arena *a, machine *m, uint32_t graph,
                               uint32_t n_tokens, text *out)
{
    const ir_graph *ir = m->image.ir[graph];
    machine_profile profile = {0};
    const char **bodies;
    NEW(cx, a, profile.times, ir->ops.n);
    NEW(cx, a, bodies, ir->ops.n);
    for (uint32_t i = 0; i < ir->ops.n; i++)
        bodies[i] = machine_body_of(m, graph, i);
    TRY(machine_read_profile(cx, m, graph, &profile));
    engine_write_profile(ir, bodies, &profile, n_tokens, m->image.block->n_workers, out);
    return MPK_OK;
}

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
    return engine_read_profile(cx, e->machine, graph, p->n_tokens[graph], json);
}
