/* decompose_test.c - the tasks that a GPU's program is cut into: weights are read once, every
 * worker has its part. */
#include "check.h"

#include <string.h>

#include "ir/op.h"
#include "load/load.h"
#include "pass/pass.h"

enum { WORKERS = 132, FEW_TOKENS = 16, VERIFIED_WORKERS = 12 };

static mpk_context cx;

/* Every weight is bf16, as in the models that the bars are about. */
static mpk_status all_bf16(mpk_context *c, const void *self, const char *name, uint32_t rank,
                           const int64_t *dims, ir_dtype *dtype)
{
    (void)c, (void)self, (void)name, (void)rank, (void)dims;
    *dtype = IR_BF16;
    return MPK_OK;
}

/* A true model's program without its weights: cuts depend on shapes alone. */
static ir_graph *build(arena *a, const model_config *c, uint32_t n_tokens)
{
    model_shape shape = {.n_tokens = n_tokens,
                         .n_rows = n_tokens < 16 ? n_tokens : 16,
                         .n_slots = 16,
                         .n_pages = 4096,
                         .page_tokens = 16,
                         .max_pages_per_slot = 256,
                         .kv_dtype = IR_BF16,
                         .activation_dtype = IR_BF16};
    model_weights weights = {.dtype = all_bf16};
    ir_graph *g;
    check_ok(&cx, model_build(&cx, a, c, &shape, &weights, &g));
    return g;
}

/* What the GPU target sets for its bodies, with a split for each worker that the KV heads leave
 * over. */
static pass_options options_for(const model_config *c, uint32_t n_workers)
{
    return (pass_options){.n_workers = n_workers,
                          .splits = n_workers > c->n_kv_heads ? n_workers / c->n_kv_heads : 1,
                          .split_tokens = FEW_TOKENS,
                          .norm_elements = 1 << 24,
                          .relaxed = true,
                          .whole_tiles = true,
                          .logits = true,
                          .page_bytes = 1 << 20,
                          .pages_per_worker = 2,
                          .verify = true};
}

/* Tasks of an operator: how many, and the least and most that they have of an axis. */
typedef struct spread {
    uint32_t n;
    int64_t least, most;
} spread;

static spread spread_of(const tg_graph *g, ir_op_id op, uint32_t axis, int64_t unit)
{
    const ir_tensor *out = &g->ir->tensors.at[g->ir->ops.at[op].out[0]];
    spread s = {.least = INT64_MAX};
    for (tg_task_id t = 0; t < g->n_tasks; t++) {
        const ir_box *b = &g->tasks[t].box;
        if (g->tasks[t].op != op)
            continue;
        int64_t n = (b->hi[axis] - b->lo[axis] + unit - 1) / unit;
        assert_true(b->lo[axis] % unit == 0 &&
                    (b->hi[axis] % unit == 0 || b->hi[axis] == out->dims[axis]));
        s.least = n < s.least ? n : s.least;
        s.most = n > s.most ? n : s.most;
        s.n++;
    }
    return s;
}

/* One task a worker along an axis (fewer if there are not so many units), none with more than a
 * unit over another. */
static void check_even(const tg_graph *g, ir_op_id op, uint32_t axis, int64_t unit)
{
    const ir_tensor *out = &g->ir->tensors.at[g->ir->ops.at[op].out[0]];
    int64_t units = (out->dims[axis] + unit - 1) / unit;
    spread s = spread_of(g, op, axis, unit);
    assert_int_equal(s.n, units < WORKERS ? units : WORKERS);
    assert_true(s.most - s.least <= 1);
    assert_int_equal(spread_of(g, op, 0, 1).least, out->dims[0]);
}

/* A narrow product of 64 tokens: each task has half of them, the columns are dealt evenly. */
static void check_halves(const tg_graph *g, ir_op_id op)
{
    const ir_tensor *out = &g->ir->tensors.at[g->ir->ops.at[op].out[0]];
    spread tokens = spread_of(g, op, 0, 32), columns = spread_of(g, op, 1, 8);
    assert_int_equal(out->dims[0], 64);
    assert_int_equal(tokens.n, WORKERS);
    assert_true(tokens.least == 1 && tokens.most == 1);
    assert_true(columns.most - columns.least <= 1);
}

/* Do teams of warps take the product of 33 to 64 tokens (src/op/linear.c)? */
static bool is_narrow(const tg_graph *g, ir_op_id op)
{
    const ir_op *o = &g->ir->ops.at[op];
    const ir_tensor *y = &g->ir->tensors.at[o->out[0]], *w = &g->ir->tensors.at[o->in[1]];
    return y->dims[1] <= 1024 || w->dims[1] <= 1024;
}

/* Tiles of many tokens: nearly a task for each worker, one tile of tokens or a few, which read the
 * weights anew: then more columns in one tile would have been more to read. */
static void check_tiles(const tg_graph *g, ir_op_id op)
{
    spread tokens = spread_of(g, op, 0, 128), columns = spread_of(g, op, 1, 8);
    assert_true(tokens.n > WORKERS * 9 / 10 && tokens.n <= WORKERS);
    assert_true(tokens.most == 1 ||
                tokens.most * (128 + columns.most * 8) <= 128 + tokens.most * columns.most * 8);
}

/* Each operator is cut as its kind should be: products of few tokens evenly in tiles of 8
 * columns, others as the functions above say. */
static void check_ops(const tg_graph *g, uint32_t n_tokens, int64_t splits, int64_t kv_heads)
{
    for (ir_op_id o = 0; o < g->ir->ops.n; o++) {
        const char *name = g->ir->ops.at[o].def->name;
        if (strcmp(name, "linear") == 0 && n_tokens == 64 && is_narrow(g, o))
            check_halves(g, o);
        else if (strcmp(name, "linear") == 0 && n_tokens <= 64)
            check_even(g, o, 1, 8);
        else if (strcmp(name, "linear") == 0)
            check_tiles(g, o);
        else if (strcmp(name, "logits") == 0)
            check_even(g, o, 1, 64);
        else if (strcmp(name, "attention_split") == 0)
            assert_int_equal(spread_of(g, o, 1, 1).n, splits * kv_heads);
        else if (strcmp(name, "rope_kv") == 0) {
            /* blocks of 16 tokens, heads if there are too few of them */
            int64_t most = n_tokens / 16 * g->ir->tensors.at[g->ir->ops.at[o].out[0]].dims[1];
            assert_in_range(spread_of(g, o, 0, 16).n, most < WORKERS ? most : WORKERS * 9 / 10,
                            WORKERS);
        }
    }
}

/* Models and step sizes that the bars are about, on as many workers as an H100 has. */
static void every_worker_has_its_part(void **state)
{
    (void)state;
    const char *folders[] = {"models/qwen3-0.6b", "models/qwen3-1.7b", "models/qwen3-8b",
                             "models/llama-3.2-1b"};
    const uint32_t tokens[] = {1, 7, 16, 64, 512};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        for (size_t k = 0; k < sizeof tokens / sizeof *tokens; k++) {
            arena a = {0}, scratch = {0};
            load_model m;
            tg_graph *g;
            check_ok(&cx, load_open(&cx, folders[i], &m));
            pass_options options = options_for(&m.config, WORKERS);
            pass_state s = {&cx, &a, &scratch, &options};
            ir_graph *ir = build(&a, &m.config, tokens[k]);
            check_ok(&cx, pass_simplify(&s, &ir));
            check_ok(&cx, pass_fuse_ops(&s, &ir));
            check_ok(&cx, pass_decompose(&s, ir, &g));
            check_ops(g, tokens[k], options.splits, m.config.n_kv_heads);
            load_close(&m);
            arena_free(&scratch);
            arena_free(&a);
        }
}

/* An event between neighbouring operators and no more, but up to one for each KV head where parts
 * are folded; no empty tasks, nothing that a scheduler has to launch; task i of every large
 * operator is worker i's. */
static void check_chain(const tg_compiled *c, uint32_t n_workers, uint64_t kv_heads)
{
    const tg_graph *g = c->tg;
    uint64_t folds = 0;
    for (ir_op_id o = 0; o < g->ir->ops.n; o++)
        folds += strcmp(g->ir->ops.at[o].def->name, "attention_fold") == 0;
    assert_in_range(c->stats.events, c->stats.operators,
                    c->stats.operators + folds * (kv_heads - 1));
    assert_int_equal(c->stats.normalize_tasks, 0);
    assert_int_equal(c->stats.jit_tasks, 0);
    for (ir_op_id o = 0; o < g->ir->ops.n; o++) {
        uint32_t n = 0;
        /* its tasks are numbered by KV head */
        if (strcmp(g->ir->ops.at[o].def->name, "attention_fold") == 0)
            continue;
        for (tg_task_id t = 0; t < g->n_tasks; t++)
            n += g->tasks[t].op == o;
        for (tg_task_id t = 0, i = 0; t < g->n_tasks && n > n_workers / 2; t++)
            if (g->tasks[t].op == o)
                assert_int_equal(g->tasks[t].worker, i++);
    }
}

static void events_stand_between_operators(void **state)
{
    (void)state;
    const uint32_t workers[2] = {WORKERS, VERIFIED_WORKERS};
    for (size_t i = 0; i < 2; i++) {
        arena a = {0};
        load_model m;
        tg_program p;
        uint32_t n_tokens = i ? 5 : 1;
        check_ok(&cx, load_open(&cx, "models/qwen3-0.6b", &m));
        pass_options options = options_for(&m.config, workers[i]);
        /* the proof of many tasks is tested elsewhere */
        options.verify = workers[i] == VERIFIED_WORKERS;
        ir_graph *ir = build(&a, &m.config, n_tokens);
        check_ok(&cx, pass_compile(&cx, &a, &options, 1, &ir, &n_tokens, &p));
        check_chain(&p.graphs[0], workers[i], m.config.n_kv_heads);
        load_close(&m);
        arena_free(&a);
    }
}

/* What each worker has of an operator's work, if every token takes as long as it has tokens before
 * it: none has much more than the mean. */
static void check_pairs(const tg_graph *g, ir_op_id op)
{
    int64_t work[WORKERS] = {0}, most = 0, all = 0;
    uint32_t tasks[WORKERS] = {0};
    for (tg_task_id t = 0; t < g->n_tasks; t++) {
        const tg_task *k = &g->tasks[t];
        const ir_box *b = &k->box;
        if (k->op != op)
            continue;
        assert_int_equal(k->launch, TG_AOT);
        assert_true(k->worker < WORKERS && ++tasks[k->worker] <= 2);
        work[k->worker] += (b->hi[0] - b->lo[0]) * (b->hi[0] + b->lo[0]) * (b->hi[1] - b->lo[1]);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        most = work[i] > most ? work[i] : most;
        all += work[i];
    }
    assert_true(all > 0 && most * WORKERS <= all * 5 / 4);
}

/* Attention of long prompts: a worker that gets an early tile of tokens also gets a late one,
 * and so no worker much more than the mean. */
static void early_tiles_meet_late_ones(void **state)
{
    (void)state;
    const struct {
        const char *folder;
        uint32_t tokens;
    } cases[] = {{"models/qwen3-0.6b", 2048},
                 {"models/qwen3-8b", 1024},
                 {"models/qwen3-8b", 2048},
                 {"models/llama-3.2-1b", 4096}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        arena a = {0};
        load_model m;
        tg_program p;
        check_ok(&cx, load_open(&cx, cases[i].folder, &m));
        pass_options options = options_for(&m.config, WORKERS);
        options.verify = false; /* the proof of many tasks is tested elsewhere */
        m.config.n_layers = 1;
        ir_graph *ir = build(&a, &m.config, cases[i].tokens);
        check_ok(&cx, pass_compile(&cx, &a, &options, 1, &ir, &cases[i].tokens, &p));
        const tg_graph *g = p.graphs[0].tg;
        uint32_t found = 0;
        for (ir_op_id o = 0; o < g->ir->ops.n; o++)
            if (strcmp(g->ir->ops.at[o].def->name, "attention") == 0) {
                check_pairs(g, o);
                found++;
            }
        assert_int_equal(found, 1);
        load_close(&m);
        arena_free(&a);
    }
}

/* Bodies that work on a tile of tokens at once take longer the later it lies, so that pairs of an
 * early and a late one are even.  Of others nothing is known: workers take tasks as they come. */
static void without_whole_tiles_workers_take_tasks_as_they_come(void **state)
{
    static const char prompt[] =
        "input %q : bf16[1024, 4, 64] live=tokens\nstate %k : bf16[32, 2, 64, 64]\n"
        "state %v : bf16[32, 2, 64, 64]\ninput %p : i32[1024] live=tokens\n"
        "input %s : i32[1024] live=tokens\ninput %pages : i32[2, 16]\n"
        "%y = attention(%q, %k, %v, %p, %s, %pages)\noutput %y\n";
    (void)state;
    for (int whole = 0; whole < 2; whole++) {
        arena a = {0};
        tg_program p;
        ir_graph *ir;
        uint32_t n_tokens = 1024, n = 0;
        const pass_options options = {.n_workers = VERIFIED_WORKERS,
                                      .whole_tiles = whole,
                                      .page_bytes = 1 << 20,
                                      .pages_per_worker = 2,
                                      .verify = true};
        check_ok(&cx, ir_parse(&cx, &a, STR(prompt), &ir));
        check_ok(&cx, pass_compile(&cx, &a, &options, 1, &ir, &n_tokens, &p));
        const tg_graph *g = p.graphs[0].tg;
        for (tg_task_id t = 0; t < g->n_tasks; t++)
            if (g->tasks[t].op != IR_NONE) {
                assert_int_equal(g->tasks[t].launch, whole ? TG_AOT : TG_JIT);
                n++;
            }
        assert_true(n > VERIFIED_WORKERS);
        arena_free(&a);
    }
}

/* A router of experts has few columns: over many tokens it is cut between tokens too, so that most
 * workers have a part and none reads much of x; so is what comes after it. */
static void routers_of_prompts_are_cut_between_tokens(void **state)
{
    (void)state;
    const uint32_t tokens[] = {200, 512, 2048};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        arena a = {0};
        load_model m;
        tg_program p;
        check_ok(&cx, load_open(&cx, "models/qwen3-30b-a3b", &m));
        pass_options options = options_for(&m.config, WORKERS);
        options.verify = false; /* the proof of many tasks is tested elsewhere */
        m.config.n_layers = 1;
        ir_graph *ir = build(&a, &m.config, tokens[i]);
        check_ok(&cx, pass_compile(&cx, &a, &options, 1, &ir, &tokens[i], &p));
        const tg_graph *g = p.graphs[0].tg;
        for (ir_op_id o = 1; o < g->ir->ops.n; o++) {
            if (strcmp(g->ir->ops.at[o].def->name, "route") != 0)
                continue;
            const spread router = spread_of(g, o - 1, 0, 16), route = spread_of(g, o, 0, 1);
            assert_true(router.n * 5 >= WORKERS * 4 && router.most <= 4);
            assert_true(route.n * 3 >= tokens[i] / 8 || route.n * 3 >= WORKERS);
        }
        load_close(&m);
        arena_free(&a);
    }
}

/* What is written in place and what is read lie in two tensors: no task waits for another, though
 * their boxes have numbers in common. */
static void rows_of_another_tensor_are_written_by_many(void **state)
{
    (void)state;
    arena a = {0};
    tg_program p;
    ir_graph *ir;
    uint32_t n_tokens = 1, n_tasks = 0;
    const pass_options options = {
        .n_workers = 8, .page_bytes = 1 << 20, .pages_per_worker = 2, .verify = true};
    check_ok(&cx, ir_parse(&cx, &a,
                           STR("state %x : f32[512, 64]\nstate %z : f32[512, 64]\n"
                               "%u = slice(%z) {starts = [0, 0], stops = [511, 64]}\n"
                               "%y = slice_scatter(%x, %u) {starts = [1, 0], stops = [512, 64], "
                               "in_place = 1}\noutput %y\n"),
                           &ir));
    check_ok(&cx, pass_compile(&cx, &a, &options, 1, &ir, &n_tokens, &p));
    const tg_graph *g = p.graphs[0].tg;
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        n_tasks += g->tasks[t].op != IR_NONE;
    assert_in_range(n_tasks, 2, 8);
    arena_free(&a);
}

/* A call of a GPU: the task graph of a text. */
static const tg_graph *compile_call(arena *a, const char *graph)
{
    const pass_options options = {.n_workers = WORKERS,
                                  .whole_tiles = true,
                                  .relaxed = true,
                                  .page_bytes = 1 << 20,
                                  .pages_per_worker = 2,
                                  .verify = true};
    tg_program p;
    ir_graph *ir;
    check_ok(&cx, ir_parse(&cx, a, str_from(graph), &ir));
    check_ok(&cx, pass_compile(&cx, a, &options, 1, &ir, (uint32_t[]){1}, &p));
    return p.graphs[0].tg;
}

/* Places of different images are no neighbours: a task that had rows of several would have a tile
 * for each, mostly empty, and read its filters for each again.  The convolutions are those of
 * ResNet-50 at batch 8 that halve an image, by a kernel of one entry and of nine. */
static void places_of_a_task_belong_to_one_image(void **state)
{
    static const char halving[] =
        "input %t : bf16[8, 14, 14, 1024]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\n"
        "const %u : bf16[2048, 1, 1, 1024]\n%w = transpose(%u) {perm = [0, 3, 1, 2]}\n"
        "%y = conv(%x, %w) {stride = [2, 2], last = 1}\noutput %y\n"
        "const %n : bf16[512, 3, 3, 1024]\n%m = transpose(%n) {perm = [0, 3, 1, 2]}\n"
        "%z = conv(%x, %m) {stride = [2, 2], padding = [1, 1], last = 1}\noutput %z\n";
    (void)state;
    arena a = {0};
    uint32_t seen = 0;
    const tg_graph *g = compile_call(&a, halving);
    for (ir_op_id op = 0; op < g->ir->ops.n; op++)
        if (strcmp(g->ir->ops.at[op].def->name, "conv") == 0) {
            assert_int_equal(spread_of(g, op, 0, 1).most, 1);
            assert_in_range(spread_of(g, op, 0, 1).n, WORKERS / 2, WORKERS);
            seen++;
        }
    assert_int_equal(seen, 2);
    arena_free(&a);
}

/* Products of a call that GPUs take by boxes are cut between half boxes of 64 rows of a weight;
 * where these are few, between quarters, which tasks sum together; gated, by half of the columns.
 * Those of f32 and of steps that serve requests are cut anywhere. */
static void products_of_calls_are_cut_for_boxes(void **state)
{
    static const struct {
        const char *graph;
        int64_t unit;
    } cases[] = {
        {"input %x : bf16[1576, 768]\nconst %w : bf16[2304, 768]\n%y = linear(%x, %w)\noutput %y\n",
         64},
        {"input %x : f16[512, 3072]\nconst %w : f16[768, 3072]\n%y = linear(%x, %w)\noutput %y\n",
         32},
        {"input %x : bf16[1024, 512]\nconst %g : bf16[2048, 512]\nconst %u : bf16[2048, 512]\n"
         "%y = linear(%x, %g, %u) {glu = \"silu\"}\noutput %y\n",
         32},
        {"input %x : f32[1576, 768]\nconst %w : f32[2304, 768]\n%y = linear(%x, %w)\noutput %y\n",
         8},
        {"input %x : bf16[1576, 768] live=tokens\nconst %w : bf16[2304, 768]\n"
         "%y = linear(%x, %w)\noutput %y\n",
         8},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        arena a = {0};
        int64_t unit = 0; /* the greatest that all cuts of columns are multiples of */
        const tg_graph *g = compile_call(&a, cases[i].graph);
        for (tg_task_id t = 0; t < g->n_tasks; t++)
            for (int64_t b = g->tasks[t].op == IR_NONE ? 0 : g->tasks[t].box.lo[1]; b;) {
                const int64_t rest = unit % b;
                unit = b;
                b = rest;
            }
        assert_int_equal(unit % cases[i].unit, 0);
        assert_true(unit == cases[i].unit || cases[i].unit > 8);
        arena_free(&a);
    }
}

/* Tasks of attention that run at the same time read the keys of few heads: where a head has many
 * rows, rows are cut before heads and images.  Not where later rows see more keys. */
static void rows_of_attention_are_cut_before_heads(void **state)
{
    static const struct {
        const char *graph;
        int64_t images, heads, rows; /* of the largest task */
    } cases[] = {
        {"input %q : bf16[8, 8, 4096, 40]\ninput %k : bf16[8, 8, 4096, 40]\n"
         "input %v : bf16[8, 8, 4096, 40]\n%y = sdpa(%q, %k, %v, _) {by_rows = 1}\noutput %y\n",
         8, 2, 128},
        {"input %q : bf16[8, 32, 512, 64]\ninput %k : bf16[8, 8, 512, 64]\n"
         "input %v : bf16[8, 8, 512, 64]\n"
         "%y = sdpa(%q, %k, %v, _) {by_rows = 1, causal = 1}\noutput %y\n",
         2, 1, 512},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        arena a = {0};
        const tg_graph *g = compile_call(&a, cases[i].graph);
        assert_in_range(spread_of(g, 0, 0, 1).n, WORKERS * 4 / 5, WORKERS);
        assert_int_equal(spread_of(g, 0, 0, 1).most, cases[i].images);
        assert_int_equal(spread_of(g, 0, 1, 1).most, cases[i].rows);
        assert_int_equal(spread_of(g, 0, 2, 1).most, cases[i].heads);
        arena_free(&a);
    }
}

/* A prompt's later tokens see more: attention gets a short and a long task for each worker, however
 * large the cache is, and no task has a lot of 128 rows in part. */
static void prompts_have_two_tasks_for_each_worker(void **state)
{
    static const struct {
        int heads, kv_heads, pages;
        int64_t rows; /* of a task */
    } cases[] = {{16, 4, 64, 32},   {16, 4, 50000, 32}, {32, 8, 64, 64},
                 {32, 8, 9000, 64}, {32, 4, 64, 32},    {32, 4, 20000, 32}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        arena a = {0};
        char graph[512];
        snprintf(graph, sizeof graph,
                 "input %%q : bf16[2048, %d, 64] live=tokens\nstate %%k : bf16[%d, %d, 64, 64]\n"
                 "state %%v : bf16[%d, %d, 64, 64]\ninput %%p : i32[2048] live=tokens\n"
                 "input %%s : i32[2048] live=tokens\ninput %%t : i32[1, 64]\n"
                 "%%y = attention(%%q, %%k, %%v, %%p, %%s, %%t)\noutput %%y\n",
                 cases[i].heads, cases[i].pages, cases[i].kv_heads, cases[i].pages,
                 cases[i].kv_heads);
        const tg_graph *g = compile_call(&a, graph);
        assert_int_equal(spread_of(g, 0, 0, 1).most, cases[i].rows);
        assert_int_equal(spread_of(g, 0, 1, 64 * cases[i].heads / cases[i].kv_heads).most, 1);
        arena_free(&a);
    }
}

/* A number of parts that a user asks for is taken as it is, or refused: an axis has no more parts
 * than units, and none without axes. */
static void degrees_are_taken_or_refused(void **state)
{
    static const char source[] = "input %x : f32[2, 64]\nconst %w : f32[40, 64]\n"
                                 "%y = linear(%x, %w)\noutput %y\n";
    static const struct {
        uint32_t axis, degree;
        const char *error; /* NULL: taken */
    } rows[] = {{0, 2, NULL},
                {1, 1, NULL},
                {1, 40, NULL},
                {0, 3, "axis 0 of y can be cut in 1 to 2 parts, not 3"},
                {1, 41, "axis 1 of y can be cut in 1 to 40 parts, not 41"},
                {1, 0, "can be cut in 1 to 40 parts, not 0"},
                {2, 1, "the output of y has no axis 2, it has 2"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const pass_degree degree = {STR("linear"), rows[i].axis, rows[i].degree};
        const pass_options options = {.n_workers = 4,
                                      .page_bytes = 1 << 20,
                                      .pages_per_worker = 2,
                                      .degrees = &degree,
                                      .n_degrees = 1};
        text out = {0};
        mpk_status status = pass_run_text(&cx, &options, STR("decompose"), str_from(source), &out);
        if (!rows[i].error)
            check_ok(&cx, status);
        else
            check_fails(&cx, MPK_EARG, rows[i].error, status);
        text_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_worker_has_its_part),
        cmocka_unit_test(early_tiles_meet_late_ones),
        cmocka_unit_test(without_whole_tiles_workers_take_tasks_as_they_come),
        cmocka_unit_test(routers_of_prompts_are_cut_between_tokens),
        cmocka_unit_test(rows_of_another_tensor_are_written_by_many),
        cmocka_unit_test(places_of_a_task_belong_to_one_image),
        cmocka_unit_test(products_of_calls_are_cut_for_boxes),
        cmocka_unit_test(rows_of_attention_are_cut_before_heads),
        cmocka_unit_test(prompts_have_two_tasks_for_each_worker),
        cmocka_unit_test(degrees_are_taken_or_refused),
        cmocka_unit_test(events_stand_between_operators)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
