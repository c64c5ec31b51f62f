/* stress_graph.h - random tGraphs for tests of the runtime, and a machine that runs them.
 *
 * A graph is one operator over n cells; task t computes cell t from the step's seed and the cells
 * of the tasks that triggered its event.  So a task that runs before its event, twice, or not at
 * all leaves a wrong number somewhere, and the right ones follow from running the tasks one after
 * the other.  Events, fan-in, fan-out and launch modes are random.
 */
#ifndef STRESS_GRAPH_H
#define STRESS_GRAPH_H

#include "base/rng.h"
#include "check.h"
#include "cpu/cpu.h"
#include "ir/op.h"

enum { STRESS_GRAPHS = 3 };

/* What the body needs to know of the graph that it belongs to; found through the attribute
 * `graph`. */
static const tg_graph *stress_graphs[STRESS_GRAPHS];
static uint32_t stress_work; /* how long tasks take, in rounds */

static int64_t stress_mix(int64_t a, int64_t b)
{
    return (int64_t)(rng_u64((uint64_t)a, (uint64_t)b) >> 1);
}

/* Cell t, given the cells of the earlier tasks. */
static int64_t stress_cell(const tg_graph *g, uint32_t t, int64_t seed, const int64_t *cells)
{
    const tg_event *e = &g->events[g->tasks[t].depends];
    int64_t sum = stress_mix(seed, t);
    for (uint32_t i = 0; i < e->n_in; i++)
        sum = stress_mix(sum, cells[g->in_tasks[e->first_in + i]]);
    return sum;
}

static void stress_run(const op_call *call, const ir_box *box, void *scratch)
{
    const tg_graph *g = stress_graphs[call->attributes[0].i];
    int64_t seed = *(const int64_t *)call->in[0].data, *cells = call->out[0].data,
            *runs = call->in[1].data;
    uint32_t t = (uint32_t)box->lo[0];
    (void)scratch;
    cells[t] = stress_cell(g, t, seed, cells);
    runs[t]++;
    for (volatile uint32_t i = 0; i < stress_work * (t % 7); i++)
        ;
}

static mpk_status stress_infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    (void)cx;
    out[0].dtype = IR_I64;
    out[0].rank = 1;
    out[0].dims[0] = g->tensors.at[op->in[1]].dims[0];
    return MPK_OK;
}

static void stress_axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g;
    (void)op;
    axes[0].grain = 1;
}

static void stress_reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                         ir_box *read)
{
    (void)box;
    *read = ir_box_whole(&g->tensors.at[op->in[input]]);
}

static const op_def stress_def = {
    .name = "stress",
    .summary = "cells of a random task graph",
    .in = (const op_operand[]){{"seed", OP_REQUIRED}, {"runs", OP_REQUIRED}},
    .n_in = 2,
    .out = (const op_operand[]){{"cells", OP_REQUIRED}},
    .n_out = 1,
    .attributes =
        (const op_attribute[]){{.name = "graph", .type = IR_ATTRIBUTE_INT, .required = true}},
    .n_attributes = 1,
    .infer = stress_infer,
    .axes = stress_axes,
    .reads = stress_reads,
    .ref = stress_run,
};

/* A random stream. */
typedef struct stress_random {
    uint64_t seed, n;
} stress_random;

static uint32_t stress_below(stress_random *r, uint32_t n)
{
    return (uint32_t)(rng_u64(r->seed, r->n++) % n);
}

/* Take k of the n open tasks at random, to the end of the list. */
static void stress_shuffle(stress_random *r, uint32_t *open, uint32_t n, uint32_t k)
{
    for (uint32_t i = 0; i < k; i++) {
        uint32_t j = stress_below(r, n - i), swap = open[j];
        open[j] = open[n - 1 - i];
        open[n - 1 - i] = swap;
    }
}

/* n tasks in linear form: each new event takes some of the tasks that trigger nothing yet, and
 * launches some new ones.
 */
static tg_graph *stress_build(mpk_context *cx, arena *a, stress_random *r, const ir_graph *ir,
                              uint32_t n, uint32_t n_workers)
{
    uint32_t *open = arena_alloc(a, n, sizeof *open), n_open = 0, jit_share = stress_below(r, 3),
             fan = 1 + stress_below(r, 40);
    tg_graph *g = arena_alloc(a, 1, sizeof *g);
    *g = (tg_graph){.arena = a, .ir = ir, .level = TG_LINEAR, .n_tasks = n, .n_workers = n_workers};
    g->tasks = arena_alloc(a, n, sizeof *g->tasks);
    g->events = arena_alloc(a, n + 2, sizeof *g->events);
    uint32_t event = TG_START, done = 0;
    g->n_events = 2;
    while (done < n) {
        uint32_t k = 1 + stress_below(r, fan), jit = stress_below(r, 3) < jit_share;
        for (uint32_t i = 0; i < k && done < n; i++, done++) {
            g->tasks[done] = (tg_task){
                .op = stress_below(r, 8) ? 0 : IR_NONE, .depends = event, .triggers = TG_END};
            g->tasks[done].box.lo[0] = done;
            g->tasks[done].box.hi[0] = done + 1;
            g->tasks[done].launch = jit ? TG_JIT : TG_AOT;
            g->tasks[done].worker = jit ? TG_NONE : stress_below(r, n_workers);
            open[n_open++] = done;
        }
        if (done == n)
            break;
        uint32_t in = 1 + stress_below(r, n_open < fan ? n_open : fan);
        stress_shuffle(r, open, n_open, in);
        event = g->n_events++;
        for (uint32_t i = 0; i < in; i++)
            g->tasks[open[--n_open]].triggers = event;
    }
    check_ok(cx, tg_fill_events(cx, g));
    return g;
}

/* A program of random graphs, laid out; area offsets are by hand. */
typedef struct stress_program {
    arena arena;
    tg_program p;
    tg_compiled graphs[STRESS_GRAPHS];
    program_image image;
} stress_program;

static void stress_add_graph(mpk_context *cx, stress_program *s, stress_random *r, uint32_t index,
                             uint32_t n_tasks)
{
    arena *a = &s->arena;
    ir_graph *ir;
    ir_tensor_id in[2], out;
    int64_t one = 1, n = n_tasks;
    check_ok(cx, ir_create(cx, a, "stress", &ir));
    check_ok(cx, ir_add_tensor(cx, ir, IR_INPUT, IR_ALL, "seed", IR_I64, 1, &one, &in[0]));
    check_ok(cx, ir_add_tensor(cx, ir, IR_INPUT, IR_ALL, "runs", IR_I64, 1, &n, &in[1]));
    ir_attribute attribute = {.i = index};
    check_ok(cx, ir_add_op_as(cx, ir, &stress_def, &STR("cells"), 2, in, &attribute, &out));
    check_ok(cx, ir_add_output(cx, ir, out));
    tg_place *places = arena_alloc(a, 3, sizeof *places);
    places[0] = (tg_place){TG_STEP, 0};
    places[1] = (tg_place){TG_STEP, 64};
    places[2] = (tg_place){TG_STEP, 64 + 8 * 4096};
    s->graphs[index] = (tg_compiled){.n_tokens = index + 1, .ir = ir, .places = places};
    s->graphs[index].tg = stress_build(cx, a, r, ir, n_tasks, s->p.n_workers);
    stress_graphs[index] = s->graphs[index].tg;
}

static void stress_make(mpk_context *cx, stress_program *s, stress_random *r, uint32_t n_workers,
                        uint32_t n_graphs, uint32_t max_tasks)
{
    *s = (stress_program){
        .p = {
            .n_workers = n_workers, .page_bytes = 4096, .n_graphs = n_graphs, .graphs = s->graphs}};
    s->p.area_bytes[TG_STEP] = 64 + 2 * 8 * 4096;
    for (uint32_t i = 0; i < n_graphs; i++)
        stress_add_graph(cx, s, r, i, 1 + stress_below(r, max_tasks));
    check_ok(cx, image_make(cx, &s->arena, &s->p, &s->image));
}

/* The cells after one step, task after task. */
static void stress_expect(const tg_graph *g, int64_t seed, int64_t *cells)
{
    for (uint32_t t = 0; t < g->n_tasks; t++)
        if (g->tasks[t].op != IR_NONE)
            cells[t] = stress_cell(g, t, seed, cells);
}

/* Run one step of a graph on the machine and compare every cell and how often it was computed. */
static void stress_step(mpk_context *cx, machine *m, uint32_t graph, int64_t seed)
{
    const tg_graph *g = stress_graphs[graph];
    int64_t *cells = cpu_tensor(m, graph, 2), *runs = cpu_tensor(m, graph, 1);
    static int64_t expected[4096];
    memcpy(expected, cells, g->n_tasks * sizeof *cells);
    memset(runs, 0, g->n_tasks * sizeof *runs);
    *(int64_t *)cpu_tensor(m, graph, 0) = seed;
    check_ok(cx, machine_run_graph(cx, m, graph, UINT32_MAX, UINT32_MAX));
    stress_expect(g, seed, expected);
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        if (runs[t] != (g->tasks[t].op != IR_NONE))
            fail_msg("graph %u of %u tasks: task %u ran %lld times", graph, g->n_tasks, t,
                     (long long)runs[t]);
        if (cells[t] != expected[t])
            fail_msg("graph %u of %u tasks: task %u computed a wrong cell", graph, g->n_tasks, t);
    }
}

#endif
