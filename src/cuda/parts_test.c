/* parts_test.c - which products of a program share tiles among tasks (gen/sharing.c, parts.c), and
 * that those who meet there can: as many as the tile has parts, each on a worker of its own, of
 * neighbouring columns and the same tokens, with no other operator's task between them.  And whose
 * squares are summed where x is made (squares.c), and what code a call is given for products. */
#include "cuda_bed.h"
#include "shape/linear_tile_shape.h"

enum { FEW = 4, MANY = 128, WORKERS = 6 };

/* Products of many columns and few rows, and one of few columns; `rows` of the first are cut evenly
 * if they are whole tiles. */
#define PRODUCTS(tokens, rows)                        \
    "input %x : bf16[" tokens ", 4096] live=tokens\n" \
    "const %a : bf16[" rows ", 4096]\n"               \
    "const %b : bf16[96, " rows "]\n"                 \
    "const %c : bf16[192, 4096]\n"                    \
    "%h = linear(%x, %a)\n"                           \
    "%i = linear(%h, %b)\n"                           \
    "%j = linear(%x, %c)\n"                           \
    "output %i\n"                                     \
    "output %j\n"

/* Norms of a product that shares tiles, of one that has a gate, and of an input. */
#define NORMS(tokens)                                                              \
    "input %x : bf16[" tokens ", 4096] live=tokens\n"                              \
    "const %a : bf16[192, 4096]\nconst %b : bf16[64, 192]\nconst %n : bf16[192]\n" \
    "const %c : bf16[192, 4096]\nconst %m : bf16[4096]\n"                          \
    "%h = linear(%x, %a)\n"                                                        \
    "%i = linear(%h, %b, _, _, _, _, _, %n)\n"                                     \
    "%j = linear(%x, %a, %c, _, _, _, _, %m) {glu = \"silu\"}\n"                   \
    "%k = linear(%j, %b, _, _, _, _, _, %n)\n"                                     \
    "output %i\noutput %k\n"

/* A norm of a product of 1,056 rows, whose tasks have 264 each: too many to share a tile. */
#define ALONE(tokens)                                                                  \
    "input %x : bf16[" tokens ", 256] live=tokens\n"                                   \
    "const %a : bf16[1056, 256]\nconst %b : bf16[1056, 1056]\nconst %n : bf16[1056]\n" \
    "%h = linear(%x, %a)\n%i = linear(%h, %b, _, _, _, _, _, %n)\noutput %i\n"

/* A norm of a product with residual `r`, the caller's or a temporary, in a program of one graph. */
#define IN_A_CALL(tokens, r, norm)                                                              \
    "input %x : bf16[" tokens ", 256]\ninput %y : bf16[" tokens ", 256]\n"                      \
    "const %e : bf16[4096, 256]\nconst %a : bf16[256, 4096]\n"                                  \
    "const %b : bf16[64, 256]\nconst %n : bf16[256]\n"                                          \
    "const %m : bf16[256]\n"                                                                    \
    "%t = linear(%x, %e)\n%s = add(%y, %y)\n"                                                   \
    "%h = linear(%t, %a, _, _, _, _, _, _, %" r ")\n%i = linear(%h, %b, _, _, _, _, _, %n" norm \
    "\noutput %i\n"
#define RMS ")"
#define LAYER ", _, %m) {centred = 1}"

/* A product of a call whose x is the caller's (z) or a temporary (t). */
#define OF_A_CALL(x, columns)                                                \
    "input %z : bf16[384, " columns "]\nconst %a : bf16[256, " columns "]\n" \
    "%t = add(%z, %z)\n%h = linear(%" x ", %a)\noutput %h\n"

/* The first of PRODUCTS with a bias, by which it does not come by boxes in a kernel for prompts. */
#define BIASED(tokens)                                                             \
    "input %x : bf16[" tokens ", 4096] live=tokens\n"                              \
    "const %a : bf16[192, 4096]\nconst %b : bf16[192]\nconst %c : bf16[96, 192]\n" \
    "%h = linear(%x, %a, _, _, %b)\n%i = linear(%h, %c)\noutput %i\n"

static const char four_workers[] = "capability:90,sms:4,memory:67108864",
                  twelve_workers[] = "capability:90,sms:12,memory:67108864";

/* Two GPUs, of which the second has a product more. */
#define OF_TWO(tokens)                                        \
    "peer all\n"                                              \
    "input %x : bf16[" tokens ", 4096] live=tokens\n"         \
    "const %a : bf16[192, 4096]\nconst %b : bf16[96, 4096]\n" \
    "peer 0\n%h = linear(%x, %a)\n"                           \
    "peer 1\n%i = linear(%x, %a)\n%j = linear(%x, %b)\n"      \
    "output %h\noutput %i\noutput %j\n"

static const char two_gpus[] = "capability:90,sms:6,memory:67108864,gpus:2";

/* The programs, each a graph for so many tokens; n_workers: of a GPU. */
static bed *set_up_graphs(const char *device, uint32_t n_workers, uint32_t n_graphs,
                          const char *const *texts, const uint32_t *n_tokens, cuda_mode mode)
{
    bed *b = calloc(1, sizeof *b);
    ir_graph *g[2];
    pass_options o = {.page_bytes = 16384,
                      .pages_per_worker = 1024,
                      .launch = PASS_LAUNCH_AOT,
                      .relaxed = true,
                      .whole_tiles = true,
                      .even_over = 64,
                      .even_up_to = 256,
                      .verify = true};
    b->fake = fake_cuda_start(device);
    assert_non_null(b->fake);
    assert_true(n_graphs <= 2);
    for (uint32_t i = 0; i < n_graphs; i++)
        check_ok(&b->cx, ir_parse(&b->cx, &b->a, str_from(texts[i]), &g[i]));
    o.n_peers = ir_count_peers(g[0]);
    o.n_workers = n_workers * o.n_peers;
    check_ok(&b->cx, pass_compile(&b->cx, &b->a, &o, n_graphs, g, n_tokens, &b->program));
    check_ok(&b->cx, image_make(&b->cx, &b->a, &b->program, &b->image));
    if (mode == CUDA_CALLS)
        b->call_code = fake_code(&b->cx, &b->a, &b->image, GEN_CALL);
    else
        b->code = fake_code(&b->cx, &b->a, &b->image, GEN_KERNEL);
    for (uint32_t i = 0; i < b->image.n_weights; i++)
        b->weights[i].dtype = b->image.weights[i].dtype;
    check_ok(&b->cx, start_as(b, mode));
    return b;
}

/* The same program for few tokens and for many. */
static bed *set_up_regimes(const char *device, uint32_t n_workers, const char *few,
                           const char *many)
{
    return set_up_graphs(device, n_workers, 2, (const char *[]){few, many}, (uint32_t[]){FEW, MANY},
                         CUDA_PERSISTENT);
}

/* Of one meeting. */
typedef struct party {
    uint32_t n, came, first, lo, hi;
    bool workers[WORKERS];
} party;

/* A task comes to its meeting: after those with the parts before. */
static void come(const rt_task *t, const rt_entry *e, const rt_meeting *m, uint32_t number,
                 party *p)
{
    assert_int_equal(e->part, p->came);
    assert_int_equal(m->workers[e->part], t->worker);
    assert_false(p->workers[t->worker]);
    assert_true(p->came == 0 ||
                (t->lo[1] == p->hi && t->lo[0] == p->lo && number == p->first + p->came));
    p->n = e->parts;
    p->first = p->came ? p->first : number;
    p->lo = t->lo[0];
    p->hi = t->hi[1];
    p->workers[t->worker] = true;
    p->came++;
}

/* How many meetings a GPU's tasks come to; all of them are full. */
static uint32_t check_meetings_of(const bed *b, const cuda_machine *m)
{
    uint32_t n = 0;
    char *block = calloc(1, m->layout.n_bytes);
    party *parties = calloc(m->n_meetings + 1, sizeof *parties);
    assert_true(block && parties);
    for (uint32_t g = 0; g < b->image.n_graphs; g++) {
        const rt_graph *graph = (const rt_graph *)image_table(b->image.block, RT_GRAPHS) + g;
        const rt_task *tasks = (const rt_task *)image_table(b->image.block, RT_TASKS);
        for (uint32_t i = 0; i < graph->n_tasks; i++) {
            rt_task t = tasks[graph->first_task + i];
            if (t.worker / WORKERS != m->peer)
                continue;
            rt_entry e = {.op = t.op == RT_NONE ? RT_NONE : graph->first_op + t.op, .maps = 1};
            cuda_fill_parts(m, &t, block, &e);
            if (!e.parts)
                continue;
            assert_int_equal(b->image.n_graphs > 1 ? g : 1, 1);
            const uint64_t at = e.meeting - m->table_block;
            const uint64_t k = (at - m->layout.meetings) / sizeof(rt_meeting);
            assert_true(at >= m->layout.meetings && k < m->n_meetings);
            t.worker %= WORKERS; /* as its GPU counts them */
            come(&t, &e, (const rt_meeting *)(void *)(block + at), i, &parties[k]);
        }
    }
    for (uint32_t k = 0; k < m->n_meetings; k++) {
        assert_int_equal(parties[k].came, parties[k].n);
        n += parties[k].n > 1;
    }
    free(parties);
    free(block);
    return n;
}

/* Of a single GPU, whose tasks come to all that there are. */
static uint32_t check_meetings(const bed *b)
{
    const uint32_t n = check_meetings_of(b, cuda_of(b->m));
    assert_int_equal(n, cuda_of(b->m)->n_meetings);
    return n;
}

/* 192 rows are 6 tasks of 32: three tiles of two parts, of each of the two long products. */
static void test_products_that_share(void **state)
{
    (void)state;
    bed *b = set_up_regimes(settings, WORKERS, PRODUCTS("4", "192"), PRODUCTS("128", "192"));
    assert_int_equal(cuda_of(b->m)->source.n_regimes, 2);
    assert_int_equal(check_meetings(b), 6);
    assert_int_equal(cuda_parts_bytes(cuda_of(b->m)), (uint64_t)WORKERS * RT_PART_BYTES);
    const uint32_t *units = cuda_of(b->m)->source.units;
    assert_true(units[GEN_PROMPTS] >> GEN_UNIT_PARTS & 1);
    assert_false(units[GEN_STREAMS] >> GEN_UNIT_PARTS & 1);
    tear_down(b);
}

/* The code of shared tiles is for boxes alone. */
static void test_a_product_without_boxes(void **state)
{
    (void)state;
    bed *b = set_up_regimes(settings, WORKERS, BIASED("4"), BIASED("128"));
    assert_int_equal(cuda_of(b->m)->source.n_regimes, 2);
    assert_int_equal(check_meetings(b), 0);
    tear_down(b);
}

/* 184 rows are no equal tasks of whole tiles: only the other long product shares. */
static void test_uneven_products(void **state)
{
    (void)state;
    bed *b = set_up_regimes(settings, WORKERS, PRODUCTS("4", "184"), PRODUCTS("128", "184"));
    assert_int_equal(check_meetings(b), 3);
    tear_down(b);
}

/* Each GPU has tiles of its own, and counts its workers from 0. */
static void test_two_gpus(void **state)
{
    (void)state;
    bed *b = set_up_regimes(two_gpus, WORKERS, OF_TWO("4"), OF_TWO("128"));
    const cuda_machine *first = cuda_of(b->m);
    assert_int_equal(check_meetings_of(b, first->peers[0]), 3);
    assert_int_equal(check_meetings_of(b, first->peers[1]), 6);
    tear_down(b);
}

/* An entry without tensor maps has its tile alone.  A driver that makes none is refused, since a
 * kernel for prompts has no other way to copy. */
static void test_no_maps(void **state)
{
    (void)state;
    bed *b = set_up_regimes(settings, WORKERS, PRODUCTS("4", "192"), PRODUCTS("128", "192"));
    const rt_task *t = image_table(b->image.block, RT_TASKS);
    const uint64_t n = image_count(b->image.block, RT_TASKS);
    for (uint64_t i = 0; i < n; i++) {
        rt_entry e = {.op = 0};
        cuda_fill_parts(cuda_of(b->m), &t[i], NULL, &e);
        assert_int_equal(e.parts, 0);
    }
    setenv("MPK_FAKE_CUDA", "capability:90,sms:6,memory:67108864,fail:cuTensorMapEncodeTiled:2", 1);
    machine_stop(b->m);
    b->fake->reset();
    check_fails(&b->cx, MPK_EUNSUPPORTED, "update the driver", start(b));
    tear_down(b);
}

/* ---- squares of rows ---- */

/* The operator that makes the named tensor of the last graph. */
static ir_op_id maker(const bed *b, const char *name)
{
    const ir_graph *g = b->image.ir[b->image.n_graphs - 1];
    return g->tensors.at[ir_find(g, name)].producer;
}

/* The entry of the first task of an operator, of whose graph all operators have maps but `without`;
 * its x is carried or not. */
static rt_entry entry_of(const bed *b, ir_op_id op, ir_op_id without, bool carried)
{
    const cuda_machine *m = cuda_of(b->m);
    const uint32_t last = b->image.n_graphs - 1;
    const rt_graph *graph = (const rt_graph *)image_table(b->image.block, RT_GRAPHS) + last;
    const rt_task *t = (const rt_task *)image_table(b->image.block, RT_TASKS) + graph->first_task;
    rt_entry patterns[8] = {{0}}, e = {.carried = carried};
    assert_true(graph->n_ops <= 8);
    for (uint32_t i = 0; i < graph->n_ops; i++)
        patterns[i].maps = i != without;
    while (t->op != op || t->lo[1] == 0) /* the second, to be exact */
        t++;
    cuda_fill_squares(m, last, t, patterns, &e);
    return e;
}

/* Tasks of %h leave sums for %i; those of %j, which has a gate, leave none for %k; no task leaves
 * any of %x. */
static void test_squares(void **state)
{
    (void)state;
    bed *b = set_up_regimes(four_workers, 4, NORMS("4"), NORMS("128"));
    const cuda_machine *m = cuda_of(b->m);
    const ir_op_id h = maker(b, "h"), i = maker(b, "i"), j = maker(b, "j"), k = maker(b, "k");
    const cuda_address at = m->parts_block + (uint64_t)4 * RT_PART_BYTES;
    assert_int_equal(m->squares_bytes, MANY * RT_SQUARES_ROW);
    assert_int_equal(cuda_parts_bytes(m), 4 * RT_PART_BYTES + m->squares_bytes);
    const rt_entry of_h = entry_of(b, h, RT_NONE, false), of_i = entry_of(b, i, RT_NONE, false);
    assert_int_equal(of_h.at[RT_SQUARES_OF_Y], at + sizeof(float));
    assert_int_equal(of_h.at[RT_SQUARES_OF_X], 0);
    assert_int_equal(of_i.at[RT_SQUARES_OF_X], at);
    assert_int_equal(of_i.at[RT_SQUARES_N], 4);
    assert_int_equal(of_i.at[RT_SQUARES_OF_Y], 0);
    for (uint32_t n = 0; n < 2; n++) {
        const rt_entry e = entry_of(b, n ? j : k, RT_NONE, false);
        assert_int_equal(e.at[RT_SQUARES_OF_X] | e.at[RT_SQUARES_OF_Y], 0);
    }
    /* not of carried x, and not where a tile without maps has one task */
    assert_int_equal(entry_of(b, i, RT_NONE, true).at[RT_SQUARES_OF_X], 0);
    assert_int_equal(entry_of(b, i, h, false).at[RT_SQUARES_OF_X], 0);
    assert_int_equal(entry_of(b, h, h, false).at[RT_SQUARES_OF_Y], 0);
    tear_down(b);
}

/* Tasks of %h have tiles alone, with two passes each, which leave a sum each. */
static void test_squares_of_passes(void **state)
{
    (void)state;
    bed *b = set_up_regimes(four_workers, 4, ALONE("4"), ALONE("128"));
    const cuda_machine *m = cuda_of(b->m);
    const ir_op_id h = maker(b, "h"), i = maker(b, "i");
    const cuda_address at = m->parts_block + (uint64_t)4 * RT_PART_BYTES;
    const rt_entry of_h = entry_of(b, h, RT_NONE, false), of_i = entry_of(b, i, RT_NONE, false);
    /* no tile is shared, and there is memory all the same */
    assert_int_equal(m->n_meetings, 0);
    assert_int_equal(cuda_parts_bytes(m), 4 * RT_PART_BYTES + MANY * RT_SQUARES_ROW);
    assert_true(m->parts_block);
    assert_int_equal(of_h.at[RT_SQUARES_OF_Y], at + 2 * sizeof(float));
    assert_int_equal(of_i.at[RT_SQUARES_OF_X], at);
    assert_int_equal(of_i.at[RT_SQUARES_N], 8);
    tear_down(b);
}

/* MPK_FORMS of the machine's source. */
static uint64_t forms_of(const bed *b)
{
    static const char name[] = "#define MPK_FORMS ";
    const str source = cuda_of(b->m)->source.text;
    const char *at = memmem(source.at, source.n, name, sizeof name - 1);
    assert_non_null(at);
    return strtoull(at + sizeof name - 1, NULL, 16);
}

/* In a call a product by boxes leaves sums of squares for the norm of the next one,
 * whether its residual is the caller's tensor or a temporary; and sums of entries beside them for a
 * layer_norm. */
static void test_squares_of_calls(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        bool leaves;
        uint32_t floats;
    } all[] = {
        {IN_A_CALL("384", "s", RMS), true, 1},
        {IN_A_CALL("384", "y", RMS), true, 1},
        {IN_A_CALL("384", "y", LAYER), true, 2},
        {IN_A_CALL("300", "s", RMS), true, 1}, /* the last 44 tokens are a task of their own */
        {IN_A_CALL("300", "s", LAYER), true, 2},
        {IN_A_CALL("64", "s", LAYER), false, 2}, /* no boxes */
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        bed *b = set_up_graphs(twelve_workers, 12, 1, &all[i].source, (uint32_t[]){1}, CUDA_CALLS);
        const rt_entry of_h = entry_of(b, maker(b, "h"), RT_NONE, false),
                       of_i = entry_of(b, maker(b, "i"), RT_NONE, false);
        assert_int_equal(forms_of(b) >> TILE_FORM_SQUARES & 1, all[i].leaves);
        assert_int_equal(of_h.at[RT_SQUARES_OF_Y] != 0, all[i].leaves);
        assert_int_equal(of_i.at[RT_SQUARES_OF_X] != 0, all[i].leaves);
        assert_int_equal(of_h.at[RT_SQUARES_OF_Y] - of_i.at[RT_SQUARES_OF_X],
                         all[i].leaves ? all[i].floats * sizeof(float) : 0);
        assert_int_equal(of_i.at[RT_SQUARES_N], all[i].leaves ? 4 * all[i].floats : 0);
        assert_int_equal(cuda_of(b->m)->source.centred, all[i].floats - 1);
        tear_down(b);
    }
}

/* A call whose products share no tiles has no code for it. */
static void test_forms_of_calls(void **state)
{
    (void)state;
    const char *sources[] = {OF_A_CALL("t", "128"), OF_A_CALL("t", "4096")};
    for (uint32_t i = 0; i < 2; i++) {
        bed *b = set_up_graphs(twelve_workers, 12, 1, &sources[i], (uint32_t[]){1}, CUDA_CALLS);
        assert_int_equal(cuda_of(b->m)->n_meetings != 0, i);
        assert_int_equal(forms_of(b) >> TILE_FORM_PARTS & 1, i);
        tear_down(b);
    }
}

/* Maps of x of a call are made in any case, be it a temporary or the caller's: there is no other
 * loop, and a driver that makes none is refused. */
static void test_loops_of_calls(void **state)
{
    (void)state;
    const char *sources[] = {OF_A_CALL("t", "4096"), OF_A_CALL("z", "4096")};
    const uint64_t by_rows = (UINT64_C(1) << TILE_BOX_128 * TILE_ENDS) - 1;
    for (uint32_t i = 0; i < 2; i++) {
        bed *b = set_up_graphs(twelve_workers, 12, 1, &sources[i], (uint32_t[]){1}, CUDA_CALLS);
        assert_true((forms_of(b) & by_rows) == 0);
        assert_true(cuda_of(b->m)->source.maps[0]);
        setenv("MPK_FAKE_CUDA",
               "capability:90,sms:12,memory:67108864,fail:cuTensorMapEncodeTiled:1", 1);
        machine_stop(b->m);
        b->fake->reset();
        b->m = NULL;
        check_fails(&b->cx, MPK_EUNSUPPORTED, "update the driver", start_as(b, CUDA_CALLS));
        tear_down(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_that_share),
        cmocka_unit_test(test_a_product_without_boxes),
        cmocka_unit_test(test_uneven_products),
        cmocka_unit_test(test_two_gpus),
        cmocka_unit_test(test_no_maps),
        cmocka_unit_test(test_squares),
        cmocka_unit_test(test_squares_of_passes),
        cmocka_unit_test(test_squares_of_calls),
        cmocka_unit_test(test_forms_of_calls),
        cmocka_unit_test(test_loops_of_calls),
    };
    seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
