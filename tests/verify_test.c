/* verify_test.c - the verifier of task graphs against broken graphs of every kind; each must be
 * caught by a message that names the task and the event.  And whole programs, whose graphs follow
 * each other and become an image. */
#include "check.h"

#include "base/rng.h"
#include "image/image.h"
#include "ir/op.h"
#include "pass/pass.h"

/* Two products in a row, the second one written over tiles of the first, a state that is written in
 * place and read. */
static const char program[] = "input %x : f32[4, 8] live=tokens\n"
                              "const %w : f32[16, 8]\n"
                              "const %v : f32[8, 16]\n"
                              "%h = linear(%x, %w)\n"
                              "%g = silu(%h)\n"
                              "%y = linear(%g, %v)\n"
                              "%z = add(%y, %x)\n"
                              "output %z\n";

typedef struct fixture {
    mpk_context cx;
    arena a;
    tg_graph *g;
} fixture;

static pass_options options(void)
{
    static const pass_degree degrees[] = {
        {{"h", 1}, 1, 4}, {{"g", 1}, 1, 4}, {{"y", 1}, 1, 2}, {{"z", 1}, 0, 2}, {{"z", 1}, 1, 2}};
    return (pass_options){.n_workers = 4,
                          .page_bytes = 4096,
                          .pages_per_worker = 64,
                          .degrees = degrees,
                          .n_degrees = 5};
}

/* The graph after these passes, verified. */
static void make(fixture *f, const char *passes)
{
    pass_options o = options();
    text out = {0};
    *f = (fixture){0};
    check_ok(&f->cx,
             pass_run_text(&f->cx, &o, str_from(passes), (str){program, sizeof program - 1}, &out));
    check_ok(&f->cx, tg_parse(&f->cx, &f->a, (str){out.at, out.n}, &f->g));
    check_ok(&f->cx, tg_verify(&f->cx, &f->a, f->g));
    text_free(&out);
}

#define RAW "decompose,depend"
#define FUSED RAW ",drop_implied,fuse_events"
#define NORMAL FUSED ",label_launch,normalize"
#define LINEAR NORMAL ",linearize,assign"

/* Run `statement` on a fresh graph g; the verifier must refuse it and say each of the two words. */
#define check_broken(passes, first, second, statement)                      \
    do {                                                                    \
        fixture f;                                                          \
        make(&f, passes);                                                   \
        tg_graph *g = f.g;                                                  \
        statement;                                                          \
        check_fails(&f.cx, MPK_EVERIFY, first, tg_verify(&f.cx, &f.a, g));  \
        check_fails(&f.cx, MPK_EVERIFY, second, tg_verify(&f.cx, &f.a, g)); \
        arena_free(&f.a);                                                   \
    } while (0)

/* The event of a raw graph between two tasks. */
static tg_event *event_between(tg_graph *g, tg_task_id from, tg_task_id to)
{
    for (tg_event_id e = 2; e < g->n_events; e++)
        if (g->in_tasks[g->events[e].first_in] == from &&
            g->out_tasks[g->events[e].first_out] == to)
            return &g->events[e];
    fail_msg("no event between %u and %u", from, to);
    return NULL;
}

/* Give an event of a raw graph a second out-task, or a second in-task. */
static void double_event(tg_graph *g, bool out)
{
    const tg_task_id *tasks = out ? g->out_tasks : g->in_tasks;
    const uint32_t n = out ? g->n_out_tasks : g->n_in_tasks;
    for (tg_event_id e = 2; e < g->n_events; e++) {
        const uint32_t first = out ? g->events[e].first_out : g->events[e].first_in;
        if (first + 1 >= n || tasks[first + 1] <= tasks[first])
            continue;
        *(out ? &g->events[e].n_out : &g->events[e].n_in) = 2;
        return;
    }
    fail_msg("no event can have two tasks");
}

static void lists_that_are_wrong(void **state)
{
    (void)state;
    check_broken(RAW, "event 2", "in-task", g->in_tasks[g->events[2].first_in] = g->n_tasks);
    check_broken(RAW, "event 3", "out-task", g->out_tasks[g->events[3].first_out] = g->n_tasks);
    check_broken(RAW, "event 2", "outside", g->events[2].first_in = 4000);
    check_broken(RAW, "event 2", "outside", g->events[2].n_in = 4000);
    check_broken(FUSED, "h/", "out of order", {
        tg_task_id *in = g->in_tasks + g->events[TG_END].first_in;
        (void)in;
        for (tg_event_id e = 2; e < g->n_events; e++)
            if (g->events[e].n_out > 1) {
                tg_task_id *out = g->out_tasks + g->events[e].first_out;
                out[1] = out[0];
            }
        g->out_tasks[g->events[TG_START].first_out + 1] =
            g->out_tasks[g->events[TG_START].first_out];
    });
    check_broken(FUSED, "event 0, the start", "task z/0", {
        g->events[TG_START].first_in = g->events[TG_END].first_in;
        g->events[TG_START].n_in = 1;
    });
    check_broken(FUSED, "event 1, the end", "task h/0", {
        g->events[TG_END].first_out = g->events[TG_START].first_out;
        g->events[TG_END].n_out = 1;
    });
    check_broken(FUSED, "event 2 is triggered by no task", "g/0", g->events[2].n_in = 0);
    check_broken(FUSED, "event 1 is triggered by no task", "the end", g->events[TG_END].n_in = 0);
    check_broken(FUSED, "event 2", "launches no task", g->events[2].n_out = 0);
    check_broken(RAW, "of a raw task graph", "has 1 in-tasks and 2 out-tasks",
                 double_event(g, true));
    check_broken(RAW, "of a raw task graph", "has 2 in-tasks and 1 out-tasks",
                 double_event(g, false));
    check_broken(RAW, "lacks its start", "or end event", g->n_events = 1);
    check_broken(RAW, "lacks its start", "or end event", g->n_events = 0);
    check_broken("decompose", "event 0", "task h/0", {
        static tg_task_id first[1];
        g->out_tasks = first;
        g->n_out_tasks = 1;
        g->events[TG_START].n_out = 1;
    });
}

static void tasks_that_are_wrong(void **state)
{
    (void)state;
    check_broken(RAW, "box of task h/0", "%h", g->tasks[0].box.hi[1] = 17);
    check_broken(RAW, "box of task h/1", "empty", g->tasks[1].box.hi[1] = g->tasks[1].box.lo[1]);
    check_broken(RAW, "task h/", "writes what task h/", g->tasks[0].box = g->tasks[1].box);
    check_broken(RAW, "the tasks of h", "60 elements", g->tasks[0].box.lo[1] = 1);
    check_broken(RAW, "task 0 is empty", "raw", g->tasks[0].op = IR_NONE);
    check_broken(RAW, "task 0", "of operator number 4, there are 4",
                 g->tasks[0].op = (ir_op_id)g->ir->ops.n);
    check_broken(NORMAL, "task h/0", "triggers", g->tasks[0].triggers = TG_END);
    check_broken(NORMAL, "task g/0", "depends on event 0", g->tasks[4].depends = TG_START);
    check_broken(FUSED, "task h/0", "depends on no event", {
        g->events[TG_START].first_out++;
        g->events[TG_START].n_out--;
    });
    check_broken(FUSED, "task z/0", "triggers no event", {
        g->events[TG_END].first_in++;
        g->events[TG_END].n_in--;
    });
}

static void order_that_is_missing(void **state)
{
    (void)state;
    /* g/0 waits for h/1 in place of h/0. */
    check_broken(RAW, "task h/0", "triggers no event", {
        tg_event *e = event_between(g, 0, 4);
        g->in_tasks[e->first_in] = 1;
    });
    /* y/0 waits for one task of g less. */
    check_broken(RAW, "task g/2 and task y/0", "event ", {
        tg_event *e = event_between(g, 6, 8);
        g->out_tasks[e->first_out] = 9;
    });
    /* A cycle: h/0 waits for what needs it. */
    check_broken(RAW, "cycle", "event ", {
        tg_event *e = event_between(g, 4, 8);
        g->out_tasks[e->first_out] = 0;
    });
    check_broken(RAW, "event 5", "in-tasks", {
        g->events[5].n_in = 2;
        g->in_tasks[g->events[5].first_in + 1] = g->in_tasks[g->events[5].first_in] + 1;
    });
}

/* The level that needs one event a task, and tasks that name one. */
static void claim_normal(tg_graph *g)
{
    g->level = TG_NORMAL;
    for (tg_event_id e = 0; e < g->n_events; e++) {
        for (uint32_t i = 0; i < g->events[e].n_in; i++)
            g->tasks[g->in_tasks[g->events[e].first_in + i]].triggers = e;
        for (uint32_t i = 0; i < g->events[e].n_out; i++)
            g->tasks[g->out_tasks[g->events[e].first_out + i]].depends = e;
    }
}

static void levels_that_lie(void **state)
{
    (void)state;
    check_broken(RAW, "equal", "fuse them", g->level = TG_FUSED);
    check_broken(FUSED, "task h/0 says", "event 2 counts it", {
        g->level = TG_NORMAL;
        for (tg_task_id t = 0; t < g->n_tasks; t++)
            g->tasks[t].depends = g->tasks[t].triggers = 0;
    });
    check_broken(RAW, "task g/0 triggers 2 events", "event ", claim_normal(g));
    check_broken(NORMAL, "task g/0 depends on 2 events", "event 0 the first", {
        static tg_task_id out[64];
        tg_event *start = &g->events[TG_START];
        assert_true(g->n_out_tasks + start->n_out < 64);
        memcpy(out, g->out_tasks, g->n_out_tasks * sizeof *out);
        memcpy(out + g->n_out_tasks, g->out_tasks + start->first_out, start->n_out * sizeof *out);
        start->first_out = g->n_out_tasks;
        out[start->first_out + start->n_out++] = 4;
        g->n_out_tasks = start->first_out + start->n_out;
        g->out_tasks = out;
    });
    check_broken(NORMAL, "task h/0 and task h/1", "event 0 launches", g->tasks[1].launch = TG_JIT);
    check_broken(RAW, "no level", "out-tasks that do not fit", g->level = TG_LEVELS);
    check_broken(RAW, "no level", "out-tasks that do not fit", g->level = TG_LINEAR);
    check_broken(LINEAR, "worker 4 of 4", "task h/2 (event 0)", g->tasks[2].worker = 4);
    check_broken(LINEAR, "task h/2 (event 0) is AOT", "no worker", g->tasks[2].worker = TG_NONE);
    check_broken(LINEAR, "its out-tasks end", "event 0", g->events[0].n_out = 400);
}

/* The numbers of two tasks exchanged, everything else kept: a worker would wait for a task after
 * it. */
static void numbers_that_deadlock(void **state)
{
    (void)state;
    fixture f;
    make(&f, LINEAR);
    tg_graph *g = f.g;
    /* Event 6 launches y/0 and y/1, tasks 8 and 9; event 7 launches z/0 and z/1, tasks 10 and
     * 11. */
    tg_event *before = &g->events[6], *after = &g->events[7];
    assert_int_equal(before->first_out, 8);
    assert_int_equal(after->first_out, 10);
    for (uint32_t i = 8; i < 10; i++) {
        tg_task swapped = g->tasks[i];
        g->tasks[i] = g->tasks[i + 2];
        g->tasks[i + 2] = swapped;
    }
    before->first_out = 10;
    after->first_out = 8;
    for (uint32_t i = 0; i < g->n_in_tasks; i++)
        if (g->in_tasks[i] >= 8 && g->in_tasks[i] < 12)
            g->in_tasks[i] += g->in_tasks[i] < 10 ? 2 : -2u;
    check_fails(&f.cx, MPK_EVERIFY, "would not end", tg_verify(&f.cx, &f.a, g));
    check_fails(&f.cx, MPK_EVERIFY, "z/", tg_verify(&f.cx, &f.a, g));
    arena_free(&f.a);
}

/* Event 7, which launches z/0, counts it too in place of the end. */
static void a_task_that_waits_for_itself(void **state)
{
    (void)state;
    check_broken(LINEAR, "would not end", "task z/0 waits at event 7 for task z/0", {
        static tg_task_id in[64];
        in[0] = 8;
        in[1] = 10;
        assert_int_equal(g->events[7].first_out, 10);
        assert_true(g->n_in_tasks + 2 < 64);
        memcpy(in + 2, g->in_tasks, g->n_in_tasks * sizeof *in);
        for (tg_event_id e = 0; e < g->n_events; e++)
            g->events[e].first_in += 2;
        g->events[TG_END].first_in++;
        g->events[TG_END].n_in--;
        g->events[7].first_in = 0;
        g->events[7].n_in = 2;
        g->in_tasks = in;
        g->n_in_tasks += 2;
        g->tasks[10].triggers = 7;
    });
}

/* JIT tasks have no worker, though the AOT tasks have. */
static void jit_tasks_need_no_worker(void **state)
{
    (void)state;
    fixture f;
    make(&f, LINEAR);
    tg_event *e = &f.g->events[7];
    for (uint32_t i = 0; i < e->n_out; i++) {
        f.g->tasks[e->first_out + i].launch = TG_JIT;
        f.g->tasks[e->first_out + i].worker = TG_NONE;
    }
    check_ok(&f.cx, tg_verify(&f.cx, &f.a, f.g));
    f.g->tasks[12].worker = TG_NONE;
    check_fails(&f.cx, MPK_EVERIFY, "task z/2 (event 8) is AOT and has no worker",
                tg_verify(&f.cx, &f.a, f.g));
    f.g->tasks[e->first_out].worker = 0;
    check_fails(&f.cx, MPK_EVERIFY, "but it is JIT", tg_verify(&f.cx, &f.a, f.g));
    arena_free(&f.a);
}

/* Any single edge of a minimal graph that is taken away must be missed. */
static void every_edge_counts(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    fixture f;
    make(&f, "decompose,depend,drop_implied");
    uint32_t n = f.g->n_events;
    arena_free(&f.a);
    for (uint32_t i = 0; i < n - 2; i++) {
        make(&f, "decompose,depend,drop_implied");
        tg_event_id e = 2 + (tg_event_id)((seed + i) % (n - 2));
        tg_task_id in = f.g->in_tasks[f.g->events[e].first_in],
                   out = f.g->out_tasks[f.g->events[e].first_out];
        bool out_waits = false, in_triggers = false;
        for (tg_event_id k = 2; k < n; k++) {
            out_waits = out_waits || (k != e && f.g->out_tasks[f.g->events[k].first_out] == out);
            in_triggers = in_triggers || (k != e && f.g->in_tasks[f.g->events[k].first_in] == in);
        }
        f.g->events[e] = f.g->events[--f.g->n_events];
        check_fails(&f.cx, MPK_EVERIFY,
                    out_waits && in_triggers ? "touch the same bytes" : "no event, not even the",
                    tg_verify(&f.cx, &f.a, f.g));
        arena_free(&f.a);
    }
}

/* ---- memory ---- */

static void plans_that_overlap(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    pass_options o = options();
    ir_graph *g;
    tg_program p;
    uint32_t n_tokens = 4;
    o.fusion = PASS_FUSE_NONE;
    check_ok(&cx, ir_parse(&cx, &a, (str){program, sizeof program - 1}, &g));
    check_ok(&cx, pass_compile(&cx, &a, &o, 1, &g, &n_tokens, &p));
    tg_compiled *c = &p.graphs[0];
    check_ok(&cx, tg_verify_memory(&cx, &a, c, p.area_bytes));
    ir_tensor_id h = ir_find(c->ir, "h"), y = ir_find(c->ir, "y"), x = ir_find(c->ir, "x"),
                 gt = ir_find(c->ir, "g");
    tg_place *places = arena_alloc(&a, c->ir->tensors.n, sizeof *places);
    assert_non_null(places);
    memcpy(places, c->places, c->ir->tensors.n * sizeof *places);
    c->places = places;
    places[gt] = places[h]; /* alive together */
    check_fails(&cx, MPK_EVERIFY, "%g takes bytes of %h",
                tg_verify_memory(&cx, &a, c, p.area_bytes));
    check_fails(&cx, MPK_EVERIFY, "task g/0 (event ", tg_verify_memory(&cx, &a, c, p.area_bytes));
    memcpy(places, (tg_place[]){{TG_TEMPS, 4096}}, sizeof *places);
    places[y].offset = p.area_bytes[TG_TEMPS];
    places[gt].offset += 512;
    check_fails(&cx, MPK_EVERIFY, "does not fit", tg_verify_memory(&cx, &a, c, p.area_bytes));
    places[x] = (tg_place){TG_WEIGHTS, 0};
    check_fails(&cx, MPK_EVERIFY, "%x lies in the wrong area",
                tg_verify_memory(&cx, &a, c, p.area_bytes));
    arena_free(&a);
}

/* Views have no task, and lie where their storage is. */
static void views_that_lie_apart(void **state)
{
    (void)state;
    static const char source[] = "input %x : f32[4, 8]\n%g = silu(%x)\n"
                                 "%r = reshape(%g) {shape = [8, 4]}\n%y = silu(%r)\noutput %y\n"
                                 "%q = reshape(%x) {shape = [8, 4]}\n%z = silu(%q)\noutput %z\n";
    mpk_context cx = {0};
    arena a = {0};
    pass_options o = options();
    ir_graph *g;
    tg_program p;
    uint32_t n_tokens = 4;
    o.n_degrees = 0;
    o.fusion = PASS_FUSE_NONE;
    check_ok(&cx, ir_parse(&cx, &a, (str){source, sizeof source - 1}, &g));
    check_ok(&cx, pass_compile(&cx, &a, &o, 1, &g, &n_tokens, &p));
    tg_compiled *c = &p.graphs[0];
    ir_tensor_id r = ir_find(c->ir, "r");
    tg_place *places = arena_alloc(&a, c->ir->tensors.n, sizeof *places);
    assert_non_null(places);
    memcpy(places, c->places, c->ir->tensors.n * sizeof *places);
    c->places = places;
    for (int area = 0; area <= TG_AREAS; area++) {
        places[r].area = (tg_area)area;
        if (places[r].area == c->places[ir_find(c->ir, "g")].area)
            check_ok(&cx, tg_verify_memory(&cx, &a, c, p.area_bytes));
        else
            check_fails(&cx, MPK_EVERIFY,
                        area < TG_AREAS ? "%r does not lie where" : "%r lies in no area",
                        tg_verify_memory(&cx, &a, c, p.area_bytes));
    }
    places[r] = places[ir_find(c->ir, "g")];
    places[r].offset += 64;
    check_fails(&cx, MPK_EVERIFY, "%r does not lie where",
                tg_verify_memory(&cx, &a, c, p.area_bytes));
    c->tg->tasks[0].op = c->ir->tensors.at[r].producer;
    check_fails(&cx, MPK_EVERIFY, "is of a view", tg_verify(&cx, &a, c->tg));
    arena_free(&a);
}

/* Loads and carriers count on places at multiples of 64 bytes; one between them is refused though
 * it has room. */
static void places_are_aligned(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    pass_options o = options();
    ir_graph *g;
    tg_program p;
    uint32_t n_tokens = 4;
    check_ok(&cx, ir_parse(&cx, &a, STR("input %x : f32[4, 8]\n%y = silu(%x)\noutput %y\n"), &g));
    o.n_degrees = 0;
    check_ok(&cx, pass_compile(&cx, &a, &o, 1, &g, &n_tokens, &p));
    tg_compiled *c = &p.graphs[0];
    ir_tensor_id x = ir_find(c->ir, "x");
    tg_place *places = arena_alloc(&a, c->ir->tensors.n, sizeof *places);
    uint64_t bytes[TG_AREAS];
    assert_non_null(places);
    memcpy(places, c->places, c->ir->tensors.n * sizeof *places);
    memcpy(bytes, p.area_bytes, sizeof bytes);
    c->places = places;
    uint64_t end = bytes[places[x].area];
    bytes[places[x].area] = end + 1024;
    for (uint64_t k = 0; k <= 64; k++) {
        places[x].offset = end + k;
        if (places[x].offset % 64 == 0)
            check_ok(&cx, tg_verify_memory(&cx, &a, c, bytes));
        else
            check_fails(&cx, MPK_EVERIFY, "%x does not fit", tg_verify_memory(&cx, &a, c, bytes));
    }
    arena_free(&a);
}

/* A result whose tiles read what other tiles of it write. */
static void tiles_that_race(void **state)
{
    (void)state;
    static const char source[] = "input %k : f32[2, 2, 4] live=tokens\ninput %v : f32[2, 2, 4] "
                                 "live=tokens\ninput %p : i32[2] live=tokens\n"
                                 "input %s : i32[2] live=tokens\ninput %pages : i32[2, 1]\nstate "
                                 "%kc : f32[2, 2, 4, 4]\nstate %vc : f32[2, 2, "
                                 "4, "
                                 "4]\n%a, %b = kv_write(%k, %v, %p, %s, %pages, %kc, %vc) : f32[2, "
                                 "2, 4, 4], f32[2, 2, 4, 4]\n"
                                 "output %a\ntgraph raw workers=2\ntask 0 = %a [0:2, 0:2, 0:4, "
                                 "0:4] aot\ntask 1 = %a [0:2, 1:2, 0:4, 0:4] aot\n"
                                 "event 0 -> 0-1\nevent 1 <- 0-1\n";
    mpk_context cx = {0};
    arena a = {0};
    tg_graph *g;
    check_ok(&cx, tg_parse(&cx, &a, (str){source, sizeof source - 1}, &g));
    check_fails(&cx, MPK_EVERIFY, "the tasks of a compute", tg_verify(&cx, &a, g));
    g->tasks[0].box.hi[0] = 1;
    g->tasks[1].box.lo[0] = 1;
    g->tasks[1].box.lo[1] = 0;
    check_ok(&cx, tg_verify(&cx, &a, g)); /* two pages: apart */
    arena_free(&a);
}

/* Tasks that write the same pages, apart by what the data say: the record promises it, of state
 * alone. */
static void tiles_that_write_apart(void **state)
{
    (void)state;
    static const char source[] = "input %x : f32[4, 12] live=tokens\ninput %t : f32[4, 2, 1] "
                                 "live=tokens\ninput %p : i32[4] live=tokens\n"
                                 "input %s : i32[4] live=tokens\ninput %pages : i32[2, 1]\nstate "
                                 "%kc : f32[2, 1, 4, 2]\nstate %vc : f32[2, 1, "
                                 "4, 2]\n%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc) "
                                 "{heads = 4, kv_heads = 1, head_size = 2}\n"
                                 "output %q\ntgraph raw workers=2\ntask 0 = %q [0:2, 0:4, 0:2] "
                                 "aot\ntask 1 = %q [2:4, 0:4, 0:2] aot\n"
                                 "event 0 -> 0-1\nevent 1 <- 0-1\n";
    mpk_context cx = {0};
    arena a = {0};
    tg_graph *g;
    check_ok(&cx, tg_parse(&cx, &a, (str){source, sizeof source - 1}, &g));
    check_ok(&cx, tg_verify(&cx, &a, g));
    g->tasks[1].box.lo[0] = 1;
    check_fails(&cx, MPK_EVERIFY, "the tasks of q compute", tg_verify(&cx, &a, g));
    arena_free(&a);
}

/* The second write takes the place of all that the first one wrote, and waits for it: so a task
 * that reads the result waits for the second write alone. */
static void writes_that_cover(void **state)
{
    (void)state;
    static const char source[] =
        "state %s : f32[8, 4]\ninput %z : f32[8, 4]\ninput %w : f32[8, 4]\n"
        "%a = slice_scatter(%s, %z) {starts = [0, 0], stops = [8, 4], in_place = 1}\n"
        "%b = slice_scatter(%a, %w) {starts = [0, 0], stops = [8, 4], in_place = 1}\n"
        "%y = silu(%b)\noutput %y\n";
    mpk_context cx = {0};
    text out = {0};
    const pass_options o = {.n_workers = 2};
    check_ok(&cx, pass_run_text(&cx, &o, STR(RAW), str_from(source), &out));
    assert_non_null(strstr(out.at, " <- 0 -> 1\n"));
    assert_non_null(strstr(out.at, " <- 1 -> 2\n"));
    assert_null(strstr(out.at, " <- 0 -> 2\n"));
    text_free(&out);
}

/* What is read of a text: a comment may end any line; tasks stand before events, and the numbers of
 * a list rise. */
static void lines_of_a_text(void **state)
{
    (void)state;
    static const char graph[] = "input %x : f32[4, 8]\n%y = silu(%x)\noutput %y\n"
                                "tgraph raw workers=2 # two\n",
                      task[] = "task 0 = %y [0:4, 0:8] aot # all of it\n",
                      late[] = "task 1 = %y [0:4, 0:8] aot\n",
                      events[] = "event 0 -> 0\nevent 1 <- 0 # the end\n",
                      halves[] = "task 0 = %y [0:2, 0:8] aot\ntask 1 = %y [2:4, 0:8] aot\n",
                      *const falling[] = {"event 0 -> 1 0\n", "event 0 -> 1-0\n",
                                          "event 0 -> 0 0-1\n"};
    mpk_context cx = {0};
    arena a = {0};
    tg_graph *g;
    char source[400];
    snprintf(source, sizeof source, "%s%s%s", graph, task, events);
    check_ok(&cx, tg_parse(&cx, &a, str_from(source), &g));
    check_ok(&cx, tg_verify(&cx, &a, g));
    snprintf(source, sizeof source, "%s%s%s%s", graph, task, events, late);
    check_fails(&cx, MPK_EFORMAT, "stand before the events",
                tg_parse(&cx, &a, str_from(source), &g));
    text out = {0};
    pass_options o = options();
    check_fails(&cx, MPK_EARG, "works on a linear task graph, this one is",
                pass_run_text(&cx, &o, STR("decompose,depend,plan_memory"),
                              (str){program, sizeof program - 1}, &out));
    o.degrees = (pass_degree[]){{.match = STR("no_such"), .degree = 2}};
    o.n_degrees = 1;
    check_fails(&cx, MPK_EARG, "the tensor program has no such operator",
                pass_run_text(&cx, &o, STR("decompose"), (str){program, sizeof program - 1}, &out));
    text_free(&out);
    for (uint32_t i = 0; i < sizeof falling / sizeof *falling; i++) {
        snprintf(source, sizeof source, "%s%s%s%s", graph, halves, falling[i], "event 1 <- 0-1\n");
        check_fails(&cx, MPK_EFORMAT, "must rise", tg_parse(&cx, &a, str_from(source), &g));
    }
    snprintf(source, sizeof source, "%s", graph);
    memcpy(strstr(source, "raw"), "row", 3);
    check_fails(&cx, MPK_EFORMAT, "expected tasks, raw, fused, normal or linear",
                tg_parse(&cx, &a, str_from(source), &g));
    snprintf(source, sizeof source, "%stask 0 = %%yz", graph); /* of which all but z is the text */
    check_fails(&cx, MPK_EFORMAT, "expected [",
                tg_parse(&cx, &a, (str){source, strlen(source) - 1}, &g));
    arena_free(&a);
}

/* The parser reads no byte after the end of its text: each prefix of a text, parsed in place, gives
 * the status and the message of a copy of that prefix. */
static void texts_cut_short(void **state)
{
    (void)state;
    static const char whole[] = "input %x : f32[4, 128]\n%y = silu(%x)\noutput %y\n"
                                "tgraph raw workers=12 # two\n"
                                "task 0 = %y [0:4, 0:128] aot  # all of it\n"
                                "event 0 -> 0\n\t \r\nevent 1 <- 0  \n # the end \n";
    for (size_t n = 0; n < sizeof whole; n++) {
        mpk_context in_place = {0}, alone = {0};
        arena a = {0};
        tg_graph *g;
        char *copy = calloc(n + 1, 1);
        memcpy(copy, whole, n);
        assert_int_equal(tg_parse(&in_place, &a, (str){whole, n}, &g),
                         tg_parse(&alone, &a, (str){copy, n}, &g));
        assert_string_equal(in_place.text, alone.text);
        if (n > 3 && memcmp(whole + n - 3, "aot", 3) == 0) /* a word ends the text, and is one */
            assert_non_null(strstr(in_place.text, "is missing"));
        arena_free(&a);
        free(copy);
    }
}

/* Names of any characters in a drawing. */
static void names_in_quotes(void **state)
{
    (void)state;
    static const char source[] =
        "input %x : f32[4, 8]\n%\"a\\\"b\\\\c\" = silu(%x)\noutput %\"a\\\"b\\\\c\"\n"
        "tgraph raw workers=1\ntask 0 = @0 [0:4, 0:8] aot\nevent 0 -> 0\nevent 1 <- 0\n";
    mpk_context cx = {0};
    arena a = {0};
    tg_graph *g;
    text out = {0};
    check_ok(&cx, tg_parse(&cx, &a, str_from(source), &g));
    check_ok(&cx, tg_dot(&cx, &a, g, 0, 1, &out));
    assert_non_null(strstr(out.at, "label=\"a\\\"b\\\\c/0\\nsilu\""));
    text_free(&out);
    arena_free(&a);
}

/* A part of a drawing has the empty tasks that its tasks lead to, and none of another part. */
static void empty_tasks_in_a_drawing(void **state)
{
    (void)state;
    static const char source[] =
        "input %x : f32[4, 8]\n%y = silu(%x)\n%z = silu(%y)\noutput %z\ntgraph raw workers=1\n"
        "task 0 = %y [0:4, 0:8] aot\ntask 1 = empty aot\ntask 2 = %z [0:4, 0:8] aot\n"
        "event 0 -> 0\nevent 1 <- 0 -> 1\nevent 2 <- 1 -> 2\nevent 3 <- 2\n";
    mpk_context cx = {0};
    arena a = {0};
    tg_graph *g;
    check_ok(&cx, tg_parse(&cx, &a, str_from(source), &g));
    for (uint32_t first = 0; first < 2; first++) {
        text out = {0};
        check_ok(&cx, tg_dot(&cx, &a, g, first, 1, &out));
        assert_int_equal(strstr(out.at, "t1 [label=\"empty\"") != NULL, first == 0);
        assert_int_equal(strstr(out.at, "t2 [label=\"z/0") != NULL, first == 1);
        text_free(&out);
    }
    arena_free(&a);
}

/* ---- whole programs ---- */

/* Of a small program n graphs, for so many tokens each. */
static mpk_status compile(mpk_context *cx, arena *a, uint32_t n_workers, uint32_t n_drafts,
                          uint32_t n, const uint32_t *n_tokens, tg_program *p)
{
    ir_graph *g[5];
    pass_options o = options();
    o.n_degrees = 0;
    o.launch = PASS_LAUNCH_AOT;
    o.n_workers = n_workers;
    o.n_draft_graphs = n_drafts;
    for (uint32_t i = 0; i < n; i++)
        check_ok(cx, ir_parse(cx, a, str_from(program), &g[i]));
    return pass_compile(cx, a, &o, n, g, n_tokens, p);
}

/* The graphs of a program rise by their tokens; a number may stand twice, not three times; those of
 * a draft model begin anew. */
static void numbers_of_tokens_rise(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, n_drafts, tokens[5];
        bool ok;
    } rows[] = {{1, 0, {1}, true},
                {3, 0, {1, 2, 4}, true},
                {2, 0, {2, 1}, false},
                {2, 0, {4, 4}, true},
                {3, 0, {4, 4, 4}, false},
                {3, 0, {1, 4, 4}, true},
                {4, 0, {1, 4, 4, 4}, false},
                {4, 0, {1, 1, 4, 4}, true},
                {4, 0, {1, 4, 1, 4}, false},
                {4, 2, {1, 4, 1, 4}, true},
                {4, 2, {1, 4, 4, 4}, true},
                {4, 2, {1, 4, 4, 1}, false},
                {5, 3, {1, 4, 4, 4, 4}, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpk_context cx = {0};
        arena a = {0};
        tg_program p;
        const mpk_status status =
            compile(&cx, &a, 4, rows[i].n_drafts, rows[i].n, rows[i].tokens, &p);
        if (status != (rows[i].ok ? MPK_OK : MPK_EARG))
            fail_msg("row %zu: %s", i, cx.text);
        arena_free(&a);
    }
}

/* An image has tasks of its own workers alone, and of as many as a machine may have, not more. */
static void images_have_workers(void **state)
{
    (void)state;
    static const uint32_t one = 4;
    mpk_context cx = {0};
    arena a = {0};
    tg_program p;
    program_image image, read;
    check_ok(&cx, compile(&cx, &a, RT_MAX_WORKERS + 1, 0, 1, &one, &p));
    check_fails(&cx, MPK_ELIMIT, "for 4097 workers", image_make(&cx, &a, &p, &image));
    check_ok(&cx, compile(&cx, &a, RT_MAX_WORKERS, 0, 1, &one, &p));
    check_ok(&cx, image_make(&cx, &a, &p, &image));
    check_ok(&cx, image_open(&cx, &a, image.block, image.block->n_bytes, &read));
    tg_task *task = &p.graphs[0].tg->tasks[0];
    assert_int_equal(task->launch, TG_AOT);
    task->worker = RT_MAX_WORKERS - 1;
    check_ok(&cx, image_make(&cx, &a, &p, &image));
    task->worker = RT_MAX_WORKERS;
    check_fails(&cx, MPK_EVERIFY, "task 0 has no worker", image_make(&cx, &a, &p, &image));
    task->worker = TG_NONE;
    check_fails(&cx, MPK_EVERIFY, "task 0 has no worker", image_make(&cx, &a, &p, &image));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_tokens_rise),
        cmocka_unit_test(images_have_workers),
        cmocka_unit_test(writes_that_cover),
        cmocka_unit_test(lines_of_a_text),
        cmocka_unit_test(texts_cut_short),
        cmocka_unit_test(names_in_quotes),
        cmocka_unit_test(empty_tasks_in_a_drawing),
        cmocka_unit_test(lists_that_are_wrong),
        cmocka_unit_test(tasks_that_are_wrong),
        cmocka_unit_test(order_that_is_missing),
        cmocka_unit_test(levels_that_lie),
        cmocka_unit_test(numbers_that_deadlock),
        cmocka_unit_test(a_task_that_waits_for_itself),
        cmocka_unit_test(jit_tasks_need_no_worker),
        cmocka_unit_test(every_edge_counts),
        cmocka_unit_test(plans_that_overlap),
        cmocka_unit_test(places_are_aligned),
        cmocka_unit_test(views_that_lie_apart),
        cmocka_unit_test(tiles_that_race),
        cmocka_unit_test(tiles_that_write_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
