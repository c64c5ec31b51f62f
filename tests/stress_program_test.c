/* stress_program_test.c - random tensor programs through the whole compiler, as an image, on the
 * CPU target: the bits must be those of the reference interpreter, whatever the number of workers,
 * the launch policy and the live entries; so for the joint programs of several peers.
 * And images: what was written opens and runs the same; damaged ones are refused, or run without
 * harm.
 */
#include "base/thread.h"
#include "check.h"
#include "cpu/cpu.h"
#include "ir/op.h"
#include "pass/pass.h"
#include "random_program.h"

typedef struct bed {
    mpk_context cx;
    arena arena;
    random_program random;
    tg_program program;
    program_image image;
    void **weights;
} bed;

static uint32_t below(bed *b, uint32_t n)
{
    return random_below(&b->random, n);
}

static void build(bed *b, uint64_t seed)
{
    random_build(&b->random, &b->cx, &b->arena, seed);
}

/* n_workers: of each peer. */
static void compile(bed *b, uint32_t n_workers, uint32_t n_peers)
{
    uint32_t n_tokens = (uint32_t)b->random.rows;
    pass_options o = {.n_workers = n_workers * n_peers,
                      .n_peers = n_peers,
                      .page_bytes = 32768,
                      .pages_per_worker = 7,
                      .verify = true};
    o.launch = (pass_launch[]){PASS_LAUNCH_AUTO, PASS_LAUNCH_PAPER, PASS_LAUNCH_AOT,
                               PASS_LAUNCH_JIT}[below(b, 4)];
    if (n_peers > 1)
        o.launch = PASS_LAUNCH_AOT;
    o.fusion = (pass_fusion[]){PASS_FUSE_FULL, PASS_FUSE_NONE}[below(b, 2)];
    o.coarse_events = below(b, 4) == 0;
    check_ok(&b->cx, pass_compile(&b->cx, &b->arena, &o, 1, &b->random.g, &n_tokens, &b->program));
    check_ok(&b->cx, image_make(&b->cx, &b->arena, &b->program, &b->image));
}

static void make_weights(bed *b)
{
    b->weights = arena_alloc(&b->arena, b->image.n_weights, sizeof(void *));
    for (uint32_t i = 0; i < b->image.n_weights; i++) {
        ir_tensor t = {.name = b->image.weights[i].name, .rank = 2};
        memcpy(t.dims, b->image.weights[i].dims, sizeof t.dims);
        b->weights[i] = arena_alloc(&b->arena, (size_t)ir_elements(&t), sizeof(float));
        random_fill(&b->random, &t, b->weights[i]);
    }
}

static void interpret(bed *b, uint32_t live, ir_values *v)
{
    const ir_graph *g = b->image.ir[0]; /* after fusion: the same operators, so the same bits */
    *v = (ir_values){.live = {UINT32_MAX, live, live}};
    v->data = arena_alloc(&b->arena, g->tensors.n, sizeof(void *));
    check_ok(&b->cx, ir_eval_allocate(&b->cx, &b->arena, g, v));
    for (ir_tensor_id t = 0; t < g->tensors.n; t++)
        if (g->tensors.at[t].kind == IR_INPUT || g->tensors.at[t].kind == IR_CONST)
            random_fill(&b->random, &g->tensors.at[t], v->data[t]);
    check_ok(&b->cx, ir_eval(&b->cx, &b->arena, g, v));
}

static void compare(bed *b, machine *m, const ir_values *v, uint32_t live)
{
    const ir_graph *g = b->image.ir[0];
    for (size_t i = 0; i < g->outputs.n; i++) {
        ir_tensor_id id = g->outputs.at[i];
        const ir_tensor *t = &g->tensors.at[id];
        const float *want = v->data[id], *have = cpu_tensor(m, 0, id);
        int64_t rows = t->live == IR_ALL || t->dims[0] < live ? t->dims[0] : live;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < t->dims[1]; c++)
                if (memcmp(&want[r * t->stride[0] + c * t->stride[1]],
                           &have[r * t->stride[0] + c * t->stride[1]], sizeof(float)))
                    fail_msg("output %.*s differs at %lld, %lld", STR_ARG(t->name), (long long)r,
                             (long long)c);
    }
}

/* What the workers noted of the last run: no more tasks of an operator than there are, and each
 * took no longer than the longest. */
static void check_profile(bed *b, machine *m)
{
    const rt_graph *g = image_table(m->image.block, RT_GRAPHS);
    machine_profile p = {.times = arena_alloc(&b->arena, g->n_ops, sizeof *p.times)};
    uint32_t n = 0;
    check_ok(&b->cx, machine_read_profile(&b->cx, m, 0, &p));
    for (uint32_t i = 0; i < g->n_ops; i++) {
        n += p.times[i].n_tasks;
        assert_true(p.times[i].body <= p.times[i].longest);
    }
    assert_true(n > 0 && n <= g->n_tasks && p.clock_khz == 1000000);
}

/* Graphs, tensors and sizes that are not there are refused, and nothing is run. */
static void check_refusals(bed *b, machine *m)
{
    const uint32_t n = m->image.n_graphs;
    const ir_tensor_id n_tensors = (ir_tensor_id)m->image.ir[0]->tensors.n;
    machine_profile p = {0};
    char room[1];
    check_fails(&b->cx, MPK_EARG, "graph ", machine_read_tensor(&b->cx, m, n, 0, room));
    check_fails(&b->cx, MPK_EARG, "tensor ", machine_read_tensor(&b->cx, m, 0, n_tensors, room));
    check_fails(&b->cx, MPK_EARG, "graph ", machine_write_tensor(&b->cx, m, n, 0, room));
    check_fails(&b->cx, MPK_EARG, "graph ", machine_run_graph(&b->cx, m, n, 1, 1));
    check_fails(&b->cx, MPK_ELIMIT, "tokens with",
                machine_run_graph(&b->cx, m, 0, RT_MAX_TOKENS + 1, 1));
    check_fails(&b->cx, MPK_ELIMIT, "rows: at most",
                machine_run_graph(&b->cx, m, 0, 1, RT_MAX_ROWS + 1));
    check_fails(&b->cx, MPK_EARG, "graph ", machine_read_profile(&b->cx, m, n, &p));
}

/* Run an image some times and compare every output with the interpreter's. */
static void run_image(bed *b, const program_image *image, uint64_t delay_seed)
{
    machine *m;
    ir_values v;
    uint32_t live = 1 + below(b, 12);
    interpret(b, live, &v);
    const cpu_options options = {
        .no_fast_bodies = true, .delay_seed = delay_seed, .profile = below(b, 2)};
    check_ok(&b->cx, cpu_start(&b->cx, image, b->weights, &options, &m));
    check_refusals(b, m);
    for (int i = 0; i < 3; i++) {
        const ir_graph *g = image->ir[0];
        for (ir_tensor_id t = 0; t < g->tensors.n; t++)
            if (g->tensors.at[t].kind == IR_INPUT)
                random_fill(&b->random, &g->tensors.at[t], cpu_tensor(m, 0, t));
        check_ok(&b->cx, machine_run_graph(&b->cx, m, 0, live, live));
        compare(b, m, &v, live);
        if (options.profile)
            check_profile(b, m);
    }
    machine_stop(m);
}

static void test_random_programs(void **state)
{
    (void)state;
    uint64_t seed = check_seed(), end = clock_ns() + 3500000000u;
    uint32_t n = 0;
    for (; n < 10 || clock_ns() < end; n++) {
        bed b = {0};
        program_image again;
        build(&b, seed + n);
        uint32_t n_workers = 1 + below(&b, below(&b, 8) ? 8 : 64);
        compile(&b, n_workers, below(&b, 2) ? 1 : 2 + below(&b, 3));
        make_weights(&b);
        run_image(&b, &b.image, n % 4 == 0 ? seed + n : 0);
        if (n % 3 == 0) {
            check_ok(&b.cx,
                     image_open(&b.cx, &b.arena, b.image.block, b.image.block->n_bytes, &again));
            run_image(&b, &again, 0);
        }
        arena_free(&b.arena);
    }
    print_message("%u random programs\n", n);
}

/* A task of peer 1 whose event needs one trigger more than will come: one error for all, within the
 * limit, that names the peer. */
static void test_a_peer_that_stalls(void **state)
{
    (void)state;
    bed b = {0};
    machine *m;
    build(&b, 11);
    compile(&b, 2, 2);
    make_weights(&b);
    const rt_graph *g = image_table(b.image.block, RT_GRAPHS);
    const rt_task *tasks = image_table(b.image.block, RT_TASKS);
    rt_event *events = (rt_event *)(uintptr_t)image_table(b.image.block, RT_EVENTS);
    uint32_t t = 0;
    while (t < g->n_tasks && (tasks[t].worker < 2 || tasks[t].depends == RT_START))
        t++;
    assert_true(t < g->n_tasks);
    events[tasks[t].depends].needed++;
    check_ok(&b.cx,
             cpu_start(&b.cx, &b.image, b.weights, &(cpu_options){.stall_ns = 500000000u}, &m));
    check_fails(&b.cx, MPK_ESTALLED, " on peer 1 waits for event",
                machine_run_graph(&b.cx, m, 0, UINT32_MAX, UINT32_MAX));
    machine_stop(m);
    arena_free(&b.arena);
}

/* Operators of a peer whose tasks do not end until they are let go. */
typedef struct trap {
    uint32_t peer;
    rt_word open;
} trap;

static void *set_trap(void *user, const ir_graph *g, const ir_op *op)
{
    (void)g;
    return op->peer == ((trap *)user)->peer ? user : NULL;
}

static void fall_in(void *subject, const op_call *call, const ir_box *box)
{
    (void)call, (void)box;
    while (!rt_load_acquire_system(&((trap *)subject)->open))
        rt_yield();
}

/* A task that does not end: one error for all, within the limit, that names the peer that is in
 * it. */
static void test_a_peer_that_hangs(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    const uint32_t n = 2 + (uint32_t)(seed % 3);
    bed b = {0};
    machine *m;
    trap t = {.peer = (uint32_t)(seed / 3 % n)};
    char words[32];
    build(&b, 11);
    compile(&b, 2, n);
    make_weights(&b);
    const machine_watcher watcher = {.find = set_trap, .see = fall_in, .user = &t};
    const cpu_options options = {.body_ns = 3000000000u, .watcher = &watcher};
    check_ok(&b.cx, cpu_start(&b.cx, &b.image, b.weights, &options, &m));
    snprintf(words, sizeof words, "of peer %u is in task", t.peer);
    check_fails(&b.cx, MPK_ESTALLED, words, machine_run_graph(&b.cx, m, 0, UINT32_MAX, UINT32_MAX));
    print_message("%s\n", b.cx.text);
    check_fails(&b.cx, MPK_ESTALLED, words, machine_check(&b.cx, m));
    rt_store_release_system(&t.open, 1);
    machine_stop(m);
    arena_free(&b.arena);
}

static void seal(rt_header *h)
{
    size_t from = offsetof(rt_header, checksum) + sizeof h->checksum;
    h->checksum = hash_bytes((const char *)h + from, h->n_bytes - from, 0);
}

/* Damage with a right checksum, as an enemy would do it: refused, or the program still runs to its
 * end. */
static void test_hostile_images(void **state)
{
    (void)state;
    uint64_t seed = check_seed(), end = clock_ns() + 2500000000u;
    uint32_t n = 0, accepted = 0;
    bed b = {0};
    build(&b, 11);
    compile(&b, 2, 2);
    make_weights(&b);
    size_t bytes = b.image.block->n_bytes;
    rt_header *copy = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memcpy(copy, b.image.block, bytes);
    ((char *)copy)[bytes / 2] ^= 1;
    program_image opened;
    check_fails(&b.cx, MPK_EFORMAT, "checksum", image_open(&b.cx, &b.arena, copy, bytes, &opened));
    for (size_t k = 0; k < bytes; k += 1 + k / 16)
        assert_true(image_open(&b.cx, &b.arena, copy, k, &opened) != MPK_OK);
    for (; n < 200 || clock_ns() < end; n++) {
        arena a = {0};
        machine *m;
        memcpy(copy, b.image.block, bytes);
        for (uint64_t i = 0; i < 1 + n % 3; i++) {
            uint64_t r = rng_u64(seed + n, i), tables = b.image.block->sections[RT_TEXT].offset;
            size_t at = r % 4 ? sizeof *copy + (r >> 8) % (tables - sizeof *copy)
                              : (r >> 8) % bytes; /* mostly the tables */
            ((unsigned char *)copy)[at] = r >> 4 & 1
                                              ? (unsigned char)(r >> 40)
                                              : (unsigned char)(((unsigned char *)copy)[at] + 1);
        }
        seal(copy->n_bytes == bytes ? copy : memcpy(copy, b.image.block, bytes));
        if (image_open(&b.cx, &a, copy, bytes, &opened) == MPK_OK &&
            opened.n_weights == b.image.n_weights) {
            bool same = true;
            for (uint32_t i = 0; i < opened.n_weights; i++)
                same = same && memcmp(opened.weights[i].dims, b.image.weights[i].dims,
                                      sizeof opened.weights[i].dims) == 0;
            accepted++;
            if (same) {
                mpk_status status = cpu_start(&b.cx, &opened, b.weights,
                                              &(cpu_options){.no_fast_bodies = true}, &m);
                if (status == MPK_OK) {
                    check_ok(&b.cx, machine_run_graph(&b.cx, m, 0, UINT32_MAX, UINT32_MAX));
                    machine_stop(m);
                }
                /* larger areas than this machine has */
                assert_true(status == MPK_OK || status == MPK_ENOMEM);
            }
        }
        arena_free(&a);
    }
    print_message("%u damaged images, %u of them harmless\n", n, accepted);
    free(copy);
    arena_free(&b.arena);
}

/* A weight that no graph binds is checked all the same: its bytes would not fit in 64 bits. */
static void test_a_weight_too_large(void **state)
{
    (void)state;
    bed b = {0};
    program_image image, opened;
    build(&b, 11);
    compile(&b, 2, 2);
    tg_program p = b.program;
    tg_weight *weights = arena_alloc(&b.arena, p.n_weights + 1, sizeof *weights);
    assert_non_null(weights);
    memcpy(weights, p.weights, p.n_weights * sizeof *weights);
    weights[p.n_weights++] = (tg_weight){
        .name = STR("extra"), .dtype = IR_F32, .rank = 2, .dims = {INT64_C(1) << 40, 1 << 30}};
    p.weights = weights;
    check_ok(&b.cx, image_make(&b.cx, &b.arena, &p, &image));
    check_fails(&b.cx, MPK_EFORMAT, "extra",
                image_open(&b.cx, &b.arena, image.block, image.block->n_bytes, &opened));
    arena_free(&b.arena);
}

/* A worker's list whose tasks are its own, each once, but out of order: a later task could wait for
 * one after it.  Where the image counts as proved that is not seen, while a wrong checksum is, and
 * a place that is none. */
static void test_lists_out_of_order(void **state)
{
    (void)state;
    bed b = {0};
    rt_header *copy = NULL;
    program_image opened;
    const rt_range *range = NULL;
    size_t bytes = 0;
    /* until one leaves a worker two tasks of its own */
    for (uint64_t program = 1; !range; program++) {
        arena_free(&b.arena);
        free(copy);
        b = (bed){0};
        build(&b, program);
        compile(&b, 1, 1);
        bytes = b.image.block->n_bytes;
        copy = aligned_alloc(64, (bytes + 63) / 64 * 64);
        memcpy(copy, b.image.block, bytes);
        const rt_graph *g = image_table(copy, RT_GRAPHS);
        const rt_range *of_worker = (const rt_range *)image_table(copy, RT_RANGES) + g->first_range;
        range = of_worker->last - of_worker->first > 1 ? of_worker : NULL;
    }
    rt_u32 *first = (rt_u32 *)((char *)copy + copy->sections[RT_LISTS].offset) + range->first,
           kept = first[0];
    first[0] = first[1];
    first[1] = kept;
    seal(copy);
    check_fails(&b.cx, MPK_EFORMAT, "out of order",
                image_open(&b.cx, &b.arena, copy, bytes, &opened));
    check_ok(&b.cx, image_open_proved(&b.cx, &b.arena, copy, bytes, &opened));
    assert_int_equal(opened.n_graphs, b.image.n_graphs);
    assert_int_equal(opened.ir[0]->ops.n, b.image.ir[0]->ops.n);
    for (ir_tensor_id t = 0; t < opened.ir[0]->tensors.n; t++) { /* without the padding */
        assert_int_equal(opened.places[0][t].area, b.image.places[0][t].area);
        assert_int_equal(opened.places[0][t].offset, b.image.places[0][t].offset);
    }
    rt_place *place = (rt_place *)((char *)copy + copy->sections[RT_PLACES].offset);
    place->area = RT_AREAS;
    check_fails(&b.cx, MPK_EFORMAT, "checksum",
                image_open_proved(&b.cx, &b.arena, copy, bytes, &opened));
    seal(copy);
    check_fails(&b.cx, MPK_EFORMAT, "no area",
                image_open_proved(&b.cx, &b.arena, copy, bytes, &opened));
    free(copy);
    arena_free(&b.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_programs),    cmocka_unit_test(test_a_peer_that_stalls),
        cmocka_unit_test(test_a_peer_that_hangs),  cmocka_unit_test(test_hostile_images),
        cmocka_unit_test(test_a_weight_too_large), cmocka_unit_test(test_lists_out_of_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
