/* body_parts_test.c - products whose tiles several tasks share (device/task/linear_parts.cuh), on
 * the host: as many emulated workers as a tile has parts, each a thread with a copy of the code,
 * which meet in memory.  And a task that has its tile alone, of more tokens than one keeps norms
 * of (TILE_KEPT), which random cuts elsewhere seldom leave whole.
 *
 * With random operands, everything alive and only some tokens: the tasks together give what ref
 * gives and write nothing else, whatever order warps, workers and copies come in, and the same bits
 * each time.  No body reads beyond the end of a residual.  A worker that comes to its next task
 * while others still read what it left waits for them: every worker runs two tasks of two
 * operators, one after the other, in the same room.
 *
 * Squares of rows (device/task/row_squares.cuh): some products with a norm are given sums of x's,
 * and sum none themselves; those that may leave sums of what they store, and write no others.
 */
#include <pthread.h>

#include "emulated_bed.h"
#include "shape/linear_tile_shape.h"

enum { WORKERS = 8, TASKS = 2 };

/* x [tokens, columns], norm and residual or a gate; columns of y are cut into `tasks` equal ones,
 * of which so many have parts of a tile. */
typedef struct case_of {
    const char *graph;
    uint32_t tasks, parts;
    /* of a task, from the first on: no others are alive; 0: all; below 0: so many of the last */
    int tokens;
} case_of;

#define X(tokens, columns) "input %x : bf16[" tokens ", " columns "] live=tokens\n"
#define SUM(tokens, rows, columns)                                                          \
    X(tokens, columns)                                                                      \
    "input %r : bf16[" tokens ", " rows "] live=tokens\nconst %w : bf16[" rows ", " columns \
    "]\n%y = linear(%x, %w, _, _, _, _, _, _, %r)\n"
#define SCALED(tokens, rows, columns)                                                       \
    X(tokens, columns)                                                                      \
    "input %r : bf16[" tokens ", " rows "] live=tokens\nconst %w : bf16[" rows ", " columns \
    "]\n%y = linear(%x, %w, _, _, _, _, _, _, %r) {factor = 0.22}\n"
#define NORM(tokens, rows, columns)                                               \
    X(tokens, columns)                                                            \
    "const %w : bf16[" rows ", " columns "]\nconst %n : bf16[" columns "]\n%y = " \
    "linear(%x, %w, _, _, _, _, _, %n)\n"
#define GATED(tokens, rows, columns)                                             \
    X(tokens, columns)                                                           \
    "const %g : bf16[" rows ", " columns "]\nconst %u : bf16[" rows ", " columns \
    "]\nconst %n : f32[" columns "]\n%y = linear(%x, %g, %u, _, _, _, _, %n) {glu = \"silu\"}\n"
#define CENTRED(tokens, rows, columns)                                                    \
    "input %x : bf16[" tokens ", " columns "]\nconst %w : bf16[" rows ", " columns        \
    "]\nconst %b : bf16[" rows "]\nconst %n : bf16[" columns "]\nconst %m : f32[" columns \
    "]\n%y = linear(%x, %w, _, _, %b, _, _, %n, _, %m) {centred = 1}\n"
/* Weights that the step makes: a matrix of rows, of a gate and what it gates in turn.  Those of
 * calls are constants (in_f16), of pairs a and b. */
#define OF_ROWS(tokens, rows, columns)                                                      \
    X(tokens, columns)                                                                      \
    "input %r : bf16[" tokens ", " rows "] live=tokens\ninput %w : bf16[" rows ", " columns \
    "]\n%y = linear(%x, %w, _, _, _, _, _, _, %r)\n"
#define OF_PAIRS(tokens, half, rows, columns)                                                    \
    X(tokens, columns)                                                                           \
    "input %w : bf16[" rows ", " columns "]\nconst %a : bf16[" half ", " columns                 \
    "]\nconst %b : bf16[" half ", " columns "]\n%g = slice(%w) {starts = [0, 0], stops = [" rows \
    ", " columns "], steps = [2, 1]}\n%u = slice(%w) {starts = [1, 0], stops = [" rows           \
    ", " columns "], steps = [2, 1]}\n%y = linear(%x, %g, %u) {glu = \"silu\"}\n"
/* Not of a step that serves requests. */
#define AFTER(tokens, rows, columns, bias, name)                                  \
    "input %x : bf16[" tokens ", " columns "]\ninput %r : bf16[" tokens ", " rows \
    "]\nconst %w : bf16[" rows ", " columns "]\nconst %b : " bias "[" rows        \
    "]\n%y = linear(%x, %w, _, _, %b, _, _, _, %r) {act = \"" name "\"}\n"

#define GATED_AFTER(tokens, rows, columns, name)                                                 \
    "input %x : bf16[" tokens ", " columns "]\nconst %g : bf16[" rows ", " columns               \
    "]\nconst %u : bf16[" rows ", " columns "]\nconst %b : bf16[" rows "]\nconst %c : f32[" rows \
    "]\n%y = linear(%x, %g, %u, _, %b, %c) {glu = \"" name "\"}\n"

/* A convolution of images: every row of x that a window has lies in one of them. */
#define IMAGE(x, rows, filters, columns, rest)                                                 \
    "input %x : bf16[" x "]\ninput %r : bf16[" rows ", " filters "]\nconst %w : bf16[" filters \
    ", " columns "]\nconst %s : f32[" filters "]\nconst %b : bf16[" filters                    \
    "]\n%y = conv_flat(%x, %w, %s, %b, _, %r) {" rest "}\n"

static const case_of cases[] = {
    {SUM("100", "64", "512"), 8, 8, 0},  /* 8 rows of a task, one step each */
    {SUM("128", "128", "648"), 4, 4, 0}, /* a whole box, uneven steps */
    {SCALED("100", "128", "328"), 4, 4, 0},
    {SCALED("130", "192", "264"), 1, 1, 0},
    {NORM("70", "192", "320"), 4, 2, 0},  /* two tiles of 96 rows */
    {NORM("128", "192", "264"), 4, 4, 0}, /* a box and half of one */
    {NORM("65", "256", "128"), 2, 2, 0},  /* two boxes */
    {GATED("90", "48", "192"), 4, 2, 0},  /* 12 columns of y are 24 rows of w */
    {GATED("128", "128", "256"), 4, 4, 0},
    {NORM("600", "264", "64"), 1, 1, 0},  /* alone: five lots, two passes */
    {GATED("130", "192", "64"), 1, 1, 0}, /* alone: two lots, passes of two pages and of one */
    {SUM("130", "640", "328"), 1, 1, 0},  /* alone: two lots, three passes, six steps each */
    {SUM("100", "336", "64"), 2, 1, 0},   /* alone: a pass of two pages, one of them half */
    {AFTER("100", "128", "328", "bf16", "gelu"), 4, 4, 0},
    {AFTER("128", "192", "264", "f32", "silu"), 4, 2, 0},
    {AFTER("300", "264", "72", "f32", "gelu"), 1, 1, 0}, /* alone: three lots, two passes */
    {AFTER("130", "192", "136", "bf16", "gelu_tanh"), 1, 1, 0},
    {AFTER("70", "72", "64", "bf16", "relu"), 1, 1, 0},
    {AFTER("77", "128", "264", "f32", "quick_gelu"), 4, 4, 0},
    {AFTER("130", "192", "72", "bf16", "quick_gelu"), 1, 1, 0},
    {AFTER("300", "24", "136", "bf16", "gelu"), 1, 1, 0},
    {GATED_AFTER("300", "192", "72", "gelu"), 1, 1, 0}, /* alone: three lots, two passes */
    {GATED_AFTER("128", "128", "256", "gelu_tanh"), 4, 4, 0},
    {GATED_AFTER("90", "48", "192", "silu"), 4, 2, 0},
    /* joint: tasks of 64 tokens or fewer, of which each warpgroup has half of the rows */
    {SUM("90", "128", "648"), 4, 4, 64},
    {NORM("90", "192", "264"), 4, 4, 40},   /* halves of 96 rows */
    {NORM("90", "160", "328"), 4, 4, 64},   /* 20 groups: halves of 80 rows in a loop of 96 */
    {GATED("90", "112", "256"), 4, 4, 33},  /* 28 groups: 112 rows in a loop of 128 */
    {SCALED("90", "128", "520"), 2, 2, 57}, /* 8 groups each */
    {NORM("90", "512", "136"), 2, 1, 64},   /* alone: 256 rows */
    {SUM("90", "136", "200"), 1, 1, 50},    /* alone: a half with one group */
    {GATED("90", "144", "192"), 1, 1, 64},  /* alone: two passes, 24 groups and 12 */
    {AFTER("90", "136", "200", "f32", "gelu"), 1, 1, 50},
    {GATED_AFTER("90", "144", "192", "silu"), 1, 1, 64},
    {SUM("90", "40", "648"), 1, 1, 64}, /* thin */
    {AFTER("90", "40", "328", "bf16", "gelu"), 1, 1, 64},
    {AFTER("90", "24", "648", "f32", "silu"), 1, 1, 47},
    {AFTER("96", "10", "328", "bf16", "gelu"), 1, 1, -50}, /* a group of two columns */
    {NORM("90", "24", "1288"), 1, 1, 30},
    {CENTRED("90", "48", "648"), 1, 1, 64}, /* thin */
    {CENTRED("100", "128", "328"), 4, 4, 0},
    {CENTRED("70", "192", "320"), 4, 2, 0},
    {CENTRED("300", "264", "136"), 1, 1, 0}, /* alone: three lots, two passes */
    {CENTRED("90", "192", "264"), 4, 4, 40}, /* joint */
    {CENTRED("90", "136", "200"), 1, 1, 50},
    {SUM("90", "128", "648"), 4, 4, 20}, /* fewer than half of a box */
    {NORM("90", "192", "264"), 4, 4, 20},
    {GATED("90", "112", "256"), 4, 4, 17},
    {OF_ROWS("128", "128", "648"), 4, 4, 0},
    /* two tiles, each a box and half of one */
    {OF_ROWS("128", "384", "264"), 4, 2, 0},
    {OF_PAIRS("128", "128", "256", "328"), 4, 4, 0},
    /* alone: three lots, two passes */
    {OF_ROWS("384", "264", "136"), 1, 1, 0},
    /* images, of which few places are a tile too */
    {IMAGE("2, 7, 7, 64", "98", "128", "576", "kernel = [3, 3], padding = [1, 1], relu = 1"), 4, 4,
     0},
    {IMAGE("1, 7, 7, 128", "49", "256", "1152", "kernel = [3, 3], padding = [1, 1]"), 8, 8, 0},
    {IMAGE("2, 5, 6, 192", "12", "128", "192", "stride = [2, 3], relu = 1"), 4, 2, 0},
    {IMAGE("1, 20, 15, 64", "240", "264", "256", "kernel = [1, 4], padding = [0, 0], relu = 1"), 1,
     1, 0}, /* alone */
    /* thin, without maps: pages of one step, of two and of four */
    {NORM("90", "24", "1288"), 1, 1, 30},
    {SUM("90", "16", "1288"), 1, 1, 64},
    {SCALED("90", "8", "1288"), 1, 1, 64},
};
enum { CASES = sizeof cases / sizeof *cases, UNMAPPED = CASES - 3 /* the first without maps */ };

typedef int run_function(const rt_entry *, unsigned, const unsigned *, unsigned, const void *,
                         unsigned, unsigned long long);
typedef void allow_function(const uint64_t *, int, int);
typedef void join_function(unsigned, char *, rt_room *);
typedef void fail_function(int);
typedef int wait_function(int, int);

static arena graphs_arena;
static gen_source source;
static ir_dtype source_halves;
static subject subjects[CASES];
static run_function *run[WORKERS];
static allow_function *allow[WORKERS];
static join_function *join[WORKERS];
static fail_function *fails[WORKERS];
static wait_function *waits;
static bool is_there;
static uint64_t base_seed;
/* of all workers, over all tests: rooms are used again and again */
static char *room_bytes;
static rt_room rooms[WORKERS];

/* Write `by` over these words of a text, of equal length, if it has them. */
static void replace(char *words, const char *what, const char *by)
{
    char *at = strstr(words, what);
    if (at)
        memcpy(at, by, strlen(by));
}

/* The graph with f16 in place of bf16, and constants in place of weights that the step makes. */
static str in_f16(const char *graph)
{
    text changed = {0};
    const char *at = graph;
    char *copy;
    for (const char *next; (next = strstr(at, "bf16")); at = next + 1)
        text_add(&changed, at, (size_t)(next - at));
    text_print(&changed, "%s", at);
    assert_non_null(copy = text_copy(&changed, &graphs_arena));
    text_free(&changed);
    replace(copy, "input %w", "const %w");
    replace(copy, "(%x, %g, %u)", "(%x, %a, %b)");
    return str_from(copy);
}

/* The code of all cases, whose products multiply these halves. */
static int set_up_code(ir_dtype halves)
{
    void *code[WORKERS];
    gen_graph graphs[CASES];
    for (uint32_t i = 0; i < CASES; i++) {
        subject *s = &subjects[i];
        const char *graph = cases[i].graph;
        *s = (subject){.number = i};
        check_ok(&cx, ir_parse(&cx, &graphs_arena,
                               halves == IR_F16 ? in_f16(graph) : str_from(graph), &s->g));
        s->def = s->g->ops.at[s->g->ops.n - 1].def;
        graphs[i] = (gen_graph){.ir = s->g, .n_tokens = 128};
    }
    assert_int_equal(gen_find_halves(CASES, graphs), halves);
    source_halves = halves;
    check_ok(&cx, gen_source_make(&cx, &graphs_arena, CASES, graphs, WORKERS,
                                  gen_arch_find("sm_90a"), GEN_BODIES, &source));
    for (uint32_t i = 0; i < CASES; i++) {
        subjects[i].use = &source.uses[i][subjects[i].g->ops.n - 1];
        subjects[i].instance = subjects[i].use->instance;
        assert_true(subjects[i].use->body->parts);
    }
    if (!room_bytes) {
        room_bytes = malloc((size_t)WORKERS * RT_PART_BYTES);
        assert_non_null(room_bytes);
        memset(room_bytes, 0xff, (size_t)WORKERS * RT_PART_BYTES);
    }
    is_there =
        compile_emulated(&source, "emulated_warps.cuh", "emulated_warps_behind.cuh", code, WORKERS);
    for (uint32_t i = 0; i < WORKERS && is_there; i++) {
        *(void **)&run[i] = dlsym(code[i], "emulated_run");
        *(void **)&allow[i] = dlsym(code[i], "emulated_allow");
        *(void **)&join[i] = dlsym(code[i], "emulated_join");
        *(void **)&fails[i] = dlsym(code[i], "emulated_fail");
        join[i](i, room_bytes, rooms);
    }
    if (is_there)
        *(void **)&waits = dlsym(code[0], "emulated_waits");
    return 0;
}

static int set_up_bf16(void **state)
{
    (void)state;
    return set_up_code(IR_BF16);
}
static int set_up_f16(void **state)
{
    (void)state;
    return set_up_code(IR_F16);
}

/* ---- an operator and its tasks ---- */

typedef struct product {
    const case_of *c;
    bed b;
    void *packed, **start, **expected;
    rt_map maps[RT_MAPS];
    rt_meeting meetings[WORKERS];
    char *squares_of_y; /* rows of RT_SQUARES_ROW bytes; NULL: none */
    uint32_t floats;    /* of a sum: 2 in a kernel that has a layer_norm */
} product;

/* ---- squares of rows ---- */

/* Tokens of the tasks that are alive. */
static int64_t alive_of(const product *p)
{
    const ir_box box = alive_box(&p->b);
    return p->c->tokens > 0 && p->c->tokens < box.hi[0] ? p->c->tokens : box.hi[0];
}

static int64_t columns_of_task(const product *p)
{
    return tensor(&p->b, p->b.op->out[0])->dims[1] / p->c->tasks;
}

/* Columns of y of which a task leaves one sum: its own, or those of a pass if it is alone. */
static int64_t columns_of_sum(const product *p)
{
    return p->c->parts > 1 ? columns_of_task(p)
                           : 8 * tile_groups_of_pass(1, (int)(columns_of_task(p) / 8), 1, 0);
}

static uint32_t sums_of_task(const product *p)
{
    return (uint32_t)((columns_of_task(p) + columns_of_sum(p) - 1) / columns_of_sum(p));
}

/* Sum i that tasks have left of a token. */
static void check_square(const product *p, int64_t token, uint32_t i)
{
    const ir_tensor *y = tensor(&p->b, p->b.op->out[0]);
    const int64_t task = i / sums_of_task(p) * columns_of_task(p), end = task + columns_of_task(p),
                  first = task + i % sums_of_task(p) * columns_of_sum(p),
                  last = first + columns_of_sum(p);
    const float *got = squares_at(p->squares_of_y, token) + i * p->floats;
    double want = 0, entries = 0, most = 0;
    for (int64_t c = first; c < last && c < end; c++) {
        const double v = element(y, p->b.values.data[p->b.op->out[0]], token * y->dims[1] + c);
        want += v * v;
        entries += v;
        most += fabs(v);
    }
    if (!(fabs((double)got[0] - want) <= 1e-5 * want))
        fail_msg("case %u: squares of token %lld, sum %u, are %g, expected %g", p->b.s->number,
                 (long long)token, i, (double)got[0], want);
    if (p->floats > 1 && !(fabs((double)got[1] - entries) <= 1e-5 * most))
        fail_msg("case %u: entries of token %lld, sum %u, are %g, expected %g", p->b.s->number,
                 (long long)token, i, (double)got[1], entries);
}

/* Every task has left the sums of its columns of all tokens alive, and nothing else. */
static void check_squares(product *p)
{
    if (!p->squares_of_y)
        return;
    const uint32_t n = p->c->tasks * sums_of_task(p);
    for (int64_t t = 0; t < alive_of(p); t++)
        for (uint32_t i = 0; i < n; i++)
            check_square(p, t, i);
    for (int64_t t = 0; t < alive_of(p); t++)
        memset(squares_at(p->squares_of_y, t), 0xff, n * p->floats * sizeof(float));
    for (size_t i = 0; i < squares_bytes(&p->b); i++)
        assert_int_equal((unsigned char)p->squares_of_y[i], 0xff);
}

/* Some norms are given sums; what is stored whole leaves some. */
static void make_squares(product *p)
{
    const ir_op_id op = (ir_op_id)(p->b.g->ops.n - 1);
    if (p->b.s->use->body->images) /* no norm is before or after one (src/cuda/squares.c) */
        return;
    if (gen_has_norm(p->b.g, op) && next_random(&p->b, 2))
        give_squares(&p->b, alive_of(p), p->floats);
    /* each warpgroup of a joint task that is alone would leave sums of its own */
    const uint32_t columns = (uint32_t)tensor(&p->b, p->b.op->out[0])->dims[1] / p->c->tasks;
    if (gen_stores_whole_groups(p->b.g, op, columns) && (p->c->parts > 1 || !p->c->tokens)) {
        p->squares_of_y = fenced(squares_bytes(&p->b));
        memset(p->squares_of_y, 0xff, squares_bytes(&p->b));
    }
}

/* Tell an entry where its sums of squares come from and go to, as the host's tables do. Task i
 * writes its own floats of each token's row. */
static void fill_squares(const product *p, uint32_t i, rt_entry *e, uint64_t *forms)
{
    e->at[RT_SQUARES_OF_X] = (rt_u64)(uintptr_t)p->b.squares;
    e->at[RT_SQUARES_N] = p->b.n_squares * p->floats;
    if (p->squares_of_y)
        e->at[RT_SQUARES_OF_Y] =
            (rt_u64)(uintptr_t)p->squares_of_y + i * sums_of_task(p) * p->floats * sizeof(float);
    if (p->b.squares || p->squares_of_y)
        *forms |= UINT64_C(1) << TILE_FORM_SQUARES;
}

static void drop_rows_of_squares(product *p)
{
    drop_squares(&p->b);
    if (p->squares_of_y)
        free_fenced(p->squares_of_y, squares_bytes(&p->b));
}

/* ---- a product ---- */

/* Leave a task's tokens in a box of those that are alive. */
static void cut_tokens(const product *p, ir_box *box)
{
    const int tokens = p->c->tokens;
    if (tokens > 0 && box->hi[0] > tokens)
        box->hi[0] = tokens;
    if (tokens < 0)
        box->lo[0] = box->hi[0] + tokens;
}

/* live: tokens that are alive; floats: of a sum. */
static void make_product(product *p, uint32_t number, uint64_t seed, uint32_t live, uint32_t floats)
{
    memset(p, 0, sizeof *p);
    p->floats = floats;
    p->c = &cases[number];
    set_up(&p->b, &subjects[number], seed, true, 0, 0);
    p->b.values.live[IR_TOKENS] = live;
    round_scale(&p->b);
    p->packed = pack_weights(&p->b, &subjects[number].use->pack);
    make_squares(p);
    p->start = save(&p->b);
    ir_box alive = alive_box(&p->b);
    cut_tokens(p, &alive);
    run_ref(&p->b, &alive);
    p->expected = save(&p->b);
    end_memory(&p->b);
    if (number < UNMAPPED)
        lengthen_x(&p->b);
}

static void drop_product(product *p)
{
    drop_rows_of_squares(p);
    drop_residual(&p->b);
    shorten_x(&p->b);
    if (p->packed)
        free_fenced(p->packed, p->b.s->use->pack.n_bytes);
    drop(&p->b, p->start);
    drop(&p->b, p->expected);
    tear_down(&p->b);
}

/* Task number i is worker i's. */
static void fill_task(product *p, uint32_t i, rt_entry *e, uint64_t *forms)
{
    const ir_tensor *y = tensor(&p->b, p->b.op->out[0]);
    const int64_t columns = y->dims[1] / p->c->tasks;
    ir_box box = ir_box_whole(y);
    cut_tokens(p, &box);
    box.lo[1] = i * columns;
    box.hi[1] = box.lo[1] + columns;
    const bool mapped = p->b.s->number < UNMAPPED;
    make_entry(&p->b, &box, p->packed, e);
    *forms = forms_of(&p->b, gen_arch_find("sm_90a"), source_halves, &box, mapped);
    if (p->c->parts > 1 && p->c->tokens) /* tasks of so few columns would be alone */
        *forms |= UINT64_C(1) << TILE_FORM_PARTS | UINT64_C(1) << TILE_FORM_JOINT;
    if (p->c->parts > 1) /* those of calls have fewer rows */
        *forms |= UINT64_C(1) << TILE_FORM_LARGE_PARTS;
    if (mapped)
        make_maps(&p->b, p->packed, p->maps, e);
    fill_squares(p, i, e, forms);
    rt_meeting *m = &p->meetings[i / p->c->parts];
    e->parts = p->c->parts;
    e->part = i % p->c->parts;
    e->meeting = (rt_u64)(uintptr_t)m;
    m->workers[e->part] = i;
}

/* ---- workers ---- */

typedef struct worker {
    uint32_t index, n, scratch_bytes;
    rt_entry entries[TASKS];
    uint64_t forms[TASKS];
    unsigned live[RT_LIVES];
    uint64_t seed;
    int result;
    pthread_t thread;
} worker;

/* A thread runs the entries of one worker. Tasks of one tile are on different threads and wait
 * for each other. */
static void *run_worker(void *of)
{
    worker *w = of;
    w->result =
        run[w->index](w->entries, w->n, w->live, w->scratch_bytes, NULL, 0, w->seed + w->index);
    return NULL;
}

/* Both operators on all workers at once. */
static void run_all(product *products, uint64_t seed)
{
    static worker workers[WORKERS];
    memset(workers, 0, sizeof workers);
    for (uint32_t i = 0; i < WORKERS; i++) {
        worker *w = &workers[i];
        *w = (worker){.index = i, .seed = seed};
        for (uint32_t k = 0; k < TASKS; k++)
            if (i < products[k].c->tasks) {
                fill_task(&products[k], i, &w->entries[w->n], &w->forms[w->n]);
                w->n++;
                memcpy(w->live, products[k].b.values.live, sizeof w->live);
                const uint32_t n = source.instances[products[k].b.s->instance].scratch_bytes;
                w->scratch_bytes = n > w->scratch_bytes ? n : w->scratch_bytes;
            }
        if (w->n)
            w->entries[w->n - 1].is_last = 1;
        allow[i](w->forms, true, products[0].floats > 1);
    }
    /* only now do all meetings know who comes */
    for (uint32_t i = 0; i < WORKERS; i++)
        if (workers[i].n)
            assert_int_equal(pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]), 0);
    for (uint32_t i = 0; i < WORKERS; i++) {
        if (workers[i].n)
            assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].result, 0);
    }
}

/* The result is near the reference, and in the second round, with other delays, equal to that of
 * the first to the bit. */
static void check_product(product *p, void ***first)
{
    const ir_tensor_id y = p->b.op->out[0];
    const size_t bytes = (size_t)ir_bytes(tensor(&p->b, y));
    for (ir_tensor_id i = 0; i < p->b.g->tensors.n; i++)
        if (p->expected[i])
            compare(&p->b, i, p->expected[i], p->start[i]);
    check_squares(p);
    if (*first && memcmp((*first)[y], p->b.values.data[y], bytes) != 0)
        fail_msg("case %u: another order gives different bits", p->b.s->number);
    if (!*first)
        *first = save(&p->b);
    load(&p->b, p->start);
}

/* Several products in a row, so that a worker's room is used again by the next one. Half of the
 * cases have dead rows. */
static void test_tiles_that_tasks_share(void **state)
{
    (void)state;
    if (!is_there)
        check_skip("there is no C++ compiler");
    for (uint32_t i = 0; i < CASES; i++) {
        static product products[TASKS];
        void **first[TASKS] = {NULL};
        const uint64_t seed = rng_u64(base_seed, i);
        uint32_t live = i % 2 ? UINT32_MAX : (uint32_t)(rng_u64(seed, 20) % 129);
        live = i % 4 ? live : 0;                   /* pages of tasks without tokens are let go */
        bool centred = rng_u64(seed, 21) % 4 == 0; /* of a kernel's products */
        for (uint32_t k = 0; k < TASKS; k++) {
            const int tokens = cases[(i + k) % CASES].tokens;
            live = tokens > 0 && (uint32_t)tokens < live ? (uint32_t)tokens : live;
            centred |= is_centred(subjects[(i + k) % CASES].g->ops.at);
        }
        for (uint32_t k = 0; k < TASKS; k++)
            make_product(&products[k], (i + k) % CASES, rng_u64(seed, k), live, centred ? 2 : 1);
        for (uint32_t round = 0; round < 2; round++) {
            for (uint32_t k = 0; k < TASKS; k++)
                load(&products[k].b, products[k].start);
            run_all(products, rng_u64(seed, 10 + round));
            for (uint32_t k = 0; k < TASKS; k++)
                check_product(&products[k], &first[k]);
        }
        for (uint32_t k = 0; k < TASKS; k++) {
            drop(&products[k].b, first[k]);
            drop_product(&products[k]);
        }
    }
}

/* A worker whose partners never come, because the machine has failed meanwhile, does not wait for
 * them for ever. */
static void test_partners_that_never_come(void **state)
{
    (void)state;
    if (!is_there)
        check_skip("there is no C++ compiler");
    static product p;
    static worker w;
    make_product(&p, 0, base_seed, UINT32_MAX, 1);
    w = (worker){.index = 0, .n = 1, .seed = base_seed};
    fill_task(&p, 0, &w.entries[0], &w.forms[0]);
    w.entries[0].is_last = 1;
    memcpy(w.live, p.b.values.live, sizeof w.live);
    w.scratch_bytes = source.instances[p.b.s->instance].scratch_bytes;
    for (uint32_t i = 1; i < p.c->parts; i++)
        p.meetings[0].workers[i] = i;
    allow[0](w.forms, true, false);
    fails[0](true);
    run_worker(&w);
    fails[0](false);
    memset(rooms, 0, sizeof rooms); /* what it owes to those that did not come */
    drop_product(&p);
    assert_int_equal(w.result, 0);
}

/* A loader of AOT tasks may run into a step that does not come, and then stops as soon as the
 * bodies request a resync.  JIT tasks are known only once their step has begun. */
static void test_steps_that_do_not_come(void **state)
{
    (void)state;
    if (!is_there)
        check_skip("there is no C++ compiler");
    for (int asked = 0; asked < 2; asked++) {
        assert_int_equal(waits(true, asked), !asked);
        assert_true(waits(false, asked));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_tiles_that_tasks_share, set_up_bf16),
        cmocka_unit_test(test_partners_that_never_come),
        cmocka_unit_test(test_steps_that_do_not_come),
        cmocka_unit_test_setup(test_tiles_that_tasks_share, set_up_f16)};
    base_seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
