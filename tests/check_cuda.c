/* check_cuda.c - the GPU target on a GPU: every operator, small models, the same bits again and again.
 *
 * For each operator all its cases become one program, which the GPU runs with fresh random data, all entries alive and
 * only some; every result is compared with the operator's reference code.  Small models run a prompt and single tokens,
 * are compared with the interpreter, serve requests, and repeat; one of them also as CUDA graphs, and with tasks that
 * are launched just in time.  Models whose name ends in "invariant" are compiled and served so that company changes no
 * bit: requests alone and together, logits and tokens.  Models whose name ends in "peers2" are shared by two GPUs, or
 * by two halves of the only one.  The one that ends in "small" is as small as one can be that runs all kinds of warps
 * and bodies, on few workers, for the sanitizers (tools/sanitize_cuda.py).
 *
 * The work is done by child processes, one after the other: one that loses its GPU, or hangs, is replaced, and the next
 * item goes on.  Before, all programs are compiled by as many processes as there are processors, into a cache that the
 * others read.  One line for each item, a summary, exit code 1 if anything failed; without a GPU it says so and exits
 * with 0.
 *
 *   check_cuda [NAME ...]    items of these names; MPK_SEED=N repeats a run, MPK_KEEP=FOLDER keeps the kernels' source,
 *                            MPK_PATIENCE=N is for runs under a sanitizer: all time limits are N times as long, and the
 *                            kernel is compiled for that (cuda_options.checked)
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "base/thread.h"
#include "cuda/cache.h"
#include "cuda/cuda.h"
#include "gen/source.h"
#include "ir/op.h"
#include "load/load.h"
#include "model/model.h"
#include "pass/pass.h"
#include "company.h"

enum {
    MOST_ITEMS = 128,
    MOST_CASES = 64,
    REPEATS = 100,
    ITEM_SECONDS = 120,
    PEERS_SECONDS = 30,
    WORDS = 1600,
    STEPS = 6
};
enum { REQUESTS = 4, ANSWER = 24, DRAIN_SECONDS = 20, SMALL_WORKERS = 4 };
enum { FEW_TOKENS = 16, SPLIT_TOKENS = 64, MOST_TOKENS = 64, COMPANY_ROUNDS = 4 };
enum { PAGE_BYTES = 16384, PAGES_PER_WORKER = 1 << 16 };

typedef enum outcome { WAITING, PASSED, FAILED, DIED } outcome;

typedef struct item {
    char name[48];
    const op_def *def;  /* NULL: a model */
    ir_dtype dtype;     /* of a model's weights, KV cache and activations */
    char family[16];    /* of a model */
    bool fast;          /* compiled as for a GPU */
    bool invariant;     /* of a model: so that company changes no bit */
    bool small;         /* of a model: one layer, few workers, few steps */
    uint32_t n_peers;   /* of a model: GPUs that share it, or parts of the one that is there */
    cuda_mode mode;     /* of a model */
    pass_launch launch; /* of a model */
    outcome outcome;
    double seconds;
    char words[WORDS];
} item;

/* Shared with the children. */
typedef struct board {
    uint64_t seed;
    uint64_t patience; /* time limits are so many times as long; 1: usual */
    bool has_gpu;
    char no_gpu[ERROR_TEXT_BYTES];
    uint32_t n_gpus;
    gen_arch arch; /* as the GPU that is there wants it */
    char gpu[128];
    volatile uint32_t current; /* item under way */
    volatile uint64_t began_ns;
    uint32_t n;
    item items[MOST_ITEMS];
} board;

static board *b;

/* ---- programs ---- */

/* One program and what it needs. */
typedef struct unit {
    arena arena;
    uint32_t n_graphs;
    ir_graph *graphs[4];
    uint32_t n_tokens[4];
    tg_program program;
    program_image image;
    uint32_t n_cases, n_without_code, n_views;
    text bodies;
} unit;

/* Peers have a GPU each, or an equal part of the SMs of one. */
static bool is_on_one_gpu(const item *it)
{
    return it->n_peers > b->n_gpus;
}

static uint32_t workers_of(const item *it)
{
    if (it->small)
        return SMALL_WORKERS;
    if (is_on_one_gpu(it))
        return b->arch.n_sms / it->n_peers * it->n_peers;
    return b->arch.n_sms * (it->n_peers ? it->n_peers : 1);
}

static mpk_status compile_unit(mpk_context *cx, const item *it, unit *u, pass_options o)
{
    o.n_workers = workers_of(it);
    o.page_bytes = PAGE_BYTES;
    o.pages_per_worker = PAGES_PER_WORKER;
    o.verify = true;
    TRY(pass_compile(cx, &u->arena, &o, u->n_graphs, u->graphs, u->n_tokens, &u->program));
    return image_make(cx, &u->arena, &u->program, &u->image);
}

/* ---- operators ---- */

static bool is_work(const ir_graph *g, const ir_op *op)
{
    return !(op->def->flags & OP_VIEW) || g->tensors.at[op->out[0]].shares == IR_NONE;
}

static bool has_work(const ir_graph *g)
{
    for (uint32_t k = 0; k < g->ops.n; k++)
        if (is_work(g, &g->ops.at[k]))
            return true;
    return false;
}

/* Does the GPU have code for all of a case? */
static bool has_code(const ir_graph *g)
{
    for (uint32_t k = 0; k < g->ops.n; k++) {
        gen_call c = {
            .ir = g, .op = &g->ops.at[k], .n_tokens = 1, .n_workers = b->arch.n_sms, .needs = b->arch.features};
        if (is_work(g, c.op) && !gen_body_choose(&c, UINT32_MAX))
            return false;
    }
    return true;
}

static bool has_blocks(const ir_graph *g)
{
    for (uint32_t i = 0; i < g->tensors.n; i++)
        if (ir_dtype_table[g->tensors.at[i].dtype].block_elements > 1)
            return true;
    return false;
}

static str named(arena *a, uint32_t number, str name)
{
    char words[256];
    int n = snprintf(words, sizeof words, "c%u.%.*s", number, STR_ARG(name));
    return (str){arena_copy(a, words, (size_t)n), (size_t)n};
}

static mpk_status add_tensors(mpk_context *cx, ir_graph *to, const ir_graph *from, uint32_t number, ir_tensor_id *ids)
{
    for (ir_tensor_id i = 0; i < from->tensors.n; i++) {
        const ir_tensor *t = &from->tensors.at[i];
        if (t->producer == IR_NONE && t->kind != IR_TEMP)
            TRY(ir_add_tensor(cx, to, t->kind, t->live, named(to->arena, number, t->name).at, t->dtype, t->rank,
                              t->dims, &ids[i]));
    }
    return MPK_OK;
}

static mpk_status add_ops(mpk_context *cx, ir_graph *to, const ir_graph *from, uint32_t number, ir_tensor_id *ids)
{
    for (uint32_t k = 0; k < from->ops.n; k++) {
        const ir_op *op = &from->ops.at[k];
        str names[IR_MAX_OUTPUTS];
        ir_tensor_id in[IR_MAX_INPUTS], out[IR_MAX_OUTPUTS];
        for (uint32_t i = 0; i < op->n_in; i++)
            in[i] = op->in[i] == IR_NONE ? IR_NONE : ids[op->in[i]];
        for (uint32_t i = 0; i < op->n_out; i++)
            names[i] = named(to->arena, number, from->tensors.at[op->out[i]].name);
        TRY(ir_add_op_as(cx, to, op->def, names, op->n_in, in, op->attributes, out));
        for (uint32_t i = 0; i < op->n_out; i++)
            ids[op->out[i]] = out[i];
        for (uint32_t i = 0; i < op->n_out && k + 1 == from->ops.n; i++)
            TRY(ir_add_output(cx, to, out[i]));
    }
    return MPK_OK;
}

/* A case becomes a part of the program, under names of its own. */
static mpk_status add_case(mpk_context *cx, unit *u, const char *source, uint32_t number)
{
    ir_graph *g;
    ir_tensor_id *ids;
    TRY(ir_parse(cx, &u->arena, str_from(source), &g));
    if (has_blocks(g)) /* quantised weights are unpacked before they reach a GPU */
        return MPK_OK;
    if (!has_code(g)) {
        u->n_without_code++;
        return MPK_OK;
    }
    if (!has_work(g)) {
        u->n_views++;
        return MPK_OK;
    }
    u->n_cases++;
    NEW(cx, &u->arena, ids, g->tensors.n);
    TRY(add_tensors(cx, u->graphs[0], g, number, ids));
    return add_ops(cx, u->graphs[0], g, number, ids);
}

static mpk_status make_operator(mpk_context *cx, const item *it, unit *u)
{
    TRY(ir_create(cx, &u->arena, it->name, &u->graphs[0]));
    u->n_graphs = 1;
    u->n_tokens[0] = 1;
    for (uint32_t i = 0; i < it->def->n_cases; i++)
        NOTE(cx, add_case(cx, u, it->def->cases[i].graph, i), "adding case %u", i);
    if (!u->n_cases && !u->n_without_code)
        return MPK_OK;
    CHECK(cx, u->n_cases, MPK_EUNSUPPORTED, "none of %u cases has code", it->def->n_cases);
    return compile_unit(cx, it, u, (pass_options){.fusion = PASS_FUSE_NONE, .whole_tiles = true});
}

static ir_tensor_id root_of(const ir_graph *g, ir_tensor_id t)
{
    while (g->tensors.at[t].shares != IR_NONE)
        t = g->tensors.at[t].shares;
    return t;
}

static void fill_operands(const ir_graph *g, ir_values *v, uint64_t seed)
{
    for (uint32_t k = 0; k < g->ops.n; k++)
        for (uint32_t i = 0; i < g->ops.at[k].n_in; i++) {
            ir_tensor_id in = g->ops.at[k].in[i];
            if (in != IR_NONE && g->tensors.at[in].producer == IR_NONE && g->tensors.at[in].shares == IR_NONE)
                op_fill(g, &g->ops.at[k], i, rng_u64(seed, in), v->data[in]);
        }
}

/* ---- comparing ---- */

static double tolerance(const ir_graph *g, const ir_op *op, ir_dtype dtype, bool fast)
{
    bool half = dtype == IR_BF16;
    for (uint32_t i = 0; fast && i < op->n_in; i++)
        half |= op->in[i] != IR_NONE && ir_dtype_table[g->tensors.at[op->in[i]].dtype].block_bytes != 4;
    return half ? 1.6e-2 : dtype == IR_F16 ? 2e-3 : dtype == IR_F32 ? 5e-5 : 1e-12;
}

static bool is_number(ir_dtype dtype)
{
    return dtype == IR_F32 || dtype == IR_F16 || dtype == IR_BF16 || dtype == IR_F64;
}

static double value(const op_view *v, int64_t i)
{
    return v->dtype == IR_F64 ? ((const double *)v->data)[i] : (double)op_load(v, i);
}

/* Dense elements of one tensor, those alive. */
static mpk_status compare(mpk_context *cx, const ir_tensor *t, const void *got, const void *expected, uint32_t live,
                          double allowed, const char *body)
{
    op_view x = {.data = (void *)(uintptr_t)got, .dtype = t->dtype, .rank = 1, .stride = {1}}, y = x;
    int64_t n = ir_elements(t);
    double range = 1e-3, worst = 0;
    y.data = (void *)(uintptr_t)expected;
    if (t->live != IR_ALL && t->rank && (int64_t)live < t->dims[0])
        n = n / t->dims[0] * live;
    if (!is_number(t->dtype)) {
        size_t bytes = (size_t)ir_row_bytes(t->dtype, n);
        for (size_t i = 0; i < bytes; i++)
            CHECK(cx, ((const char *)got)[i] == ((const char *)expected)[i], MPK_EVERIFY,
                  "%%%.*s (%s): byte %zu differs", STR_ARG(t->name), body, i);
        return MPK_OK;
    }
    for (int64_t i = 0; i < n; i++)
        range = isfinite(value(&y, i)) && fabs(value(&y, i)) > range ? fabs(value(&y, i)) : range;
    for (int64_t i = 0; i < n; i++) {
        double p = value(&x, i), q = value(&y, i);
        CHECK(cx, isnan(p) == isnan(q) && (isfinite(q) ? isfinite(p) : isnan(q) || p == q), MPK_EVERIFY,
              "%%%.*s (%s): element %lld is %g, expected %g", STR_ARG(t->name), body, (long long)i, p, q);
        double d = isfinite(q) ? fabs(p - q) : 0;
        worst = d > worst ? d : worst;
        CHECK(cx, d <= allowed * range, MPK_EVERIFY, "%%%.*s (%s): element %lld is %g, expected %g (range %g)",
              STR_ARG(t->name), body, (long long)i, p, q, range);
    }
    return MPK_OK;
}

/* The largest logit of each 64 columns and its column: two that are nearly the same may have changed places, so the
 * column must hold what is nearly the largest. */
static mpk_status compare_peaks(mpk_context *cx, const ir_tensor *logits, const ir_tensor *peaks, const float *got,
                                const float *expected, const float *values, uint32_t live, double allowed)
{
    int64_t columns = logits->dims[1], blocks = peaks->dims[1], rows = live < peaks->dims[0] ? live : peaks->dims[0];
    double range = 1e-3;
    for (int64_t i = 0; i < rows * columns; i++)
        range = fabs((double)values[i]) > range ? fabs((double)values[i]) : range;
    for (int64_t i = 0; i < rows * blocks; i++) {
        const int64_t row = i / blocks, first = i % blocks * 64, end = first + 64 < columns ? first + 64 : columns;
        const float most = expected[2 * i], column = got[2 * i + 1];
        CHECK(cx, column >= (float)first && column < (float)end && column == floorf(column), MPK_EVERIFY,
              "%%%.*s: block %lld of row %lld has its largest in column %g", STR_ARG(peaks->name),
              (long long)(i % blocks), (long long)row, (double)column);
        const float there = values[row * columns + (int64_t)column];
        CHECK(cx, fabs((double)got[2 * i] - most) <= allowed * range && most - there <= allowed * range, MPK_EVERIFY,
              "%%%.*s: block %lld of row %lld: %g in column %g, where %g is expected; the largest is %g",
              STR_ARG(peaks->name), (long long)(i % blocks), (long long)row, (double)got[2 * i], (double)column,
              (double)there, (double)most);
    }
    return MPK_OK;
}

static mpk_status compare_output(mpk_context *cx, machine *m, const unit *u, const ir_values *v, const ir_op *op,
                                 ir_op_id k, uint32_t o, arena *scratch)
{
    const ir_graph *g = u->image.ir[0];
    const ir_tensor *t = &g->tensors.at[op->out[o]];
    const tg_place *p = &u->image.places[0][root_of(g, op->out[o])];
    if (p->area != TG_STEP && p->area != TG_STATE)
        return MPK_OK;
    arena_mark mark = arena_get_mark(scratch);
    size_t n = (size_t)ir_bytes(t);
    char *got = arena_alloc(scratch, n, 1), *expected = arena_alloc(scratch, n, 1);
    CHECK(cx, got && expected, MPK_ENOMEM, "out of memory");
    gen_call c = {.ir = g, .op = op, .n_tokens = 1, .n_workers = b->arch.n_sms, .needs = b->arch.features};
    const gen_body *body = gen_body_choose(&c, UINT32_MAX);
    TRY(machine_read_tensor(cx, m, 0, op->out[o], got));
    machine_gather(g, op->out[o], v->data[op->out[o]], expected);
    const double allowed = tolerance(g, op, t->dtype, body && body->rank);
    mpk_status status;
    if (o == 1 && strcmp(op->def->name, "logits") == 0)
        status = compare_peaks(cx, &g->tensors.at[op->out[0]], t, (const float *)(const void *)got,
                               (const float *)(const void *)expected, v->data[op->out[0]], v->live[t->live], allowed);
    else
        status = compare(cx, t, got, expected, v->live[t->live], allowed, machine_body_of(m, 0, k));
    arena_reset(scratch, mark);
    return status;
}

/* The compiled program's operators have the names of the source's, so values are found by name. */
static mpk_status run_once(mpk_context *cx, machine *m, const unit *u, uint64_t seed, uint32_t live, arena *scratch,
                           ir_values *v)
{
    const ir_graph *g = u->image.ir[0];
    v->live[IR_ALL] = UINT32_MAX;
    v->live[IR_TOKENS] = v->live[IR_ROWS] = live;
    fill_operands(g, v, seed);
    for (ir_tensor_id t = 0; t < g->tensors.n; t++) {
        const ir_tensor *x = &g->tensors.at[t];
        if (x->shares == IR_NONE && (x->kind == IR_INPUT || x->kind == IR_STATE))
            TRY(machine_write_tensor(cx, m, 0, t, v->data[t]));
    }
    TRY(ir_eval(cx, scratch, g, v));
    TRY(machine_run_graph(cx, m, 0, live, live));
    for (uint32_t k = 0; k < g->ops.n; k++)
        for (uint32_t o = 0; o < g->ops.at[k].n_out; o++)
            TRY(compare_output(cx, m, u, v, &g->ops.at[k], k, o, scratch));
    return MPK_OK;
}

static cuda_options options(void)
{
    return (cuda_options){
        .keep = getenv("MPK_KEEP"), .stall_ns = 5000000000u * b->patience, .checked = b->patience > 1};
}

static mpk_status find_weights(mpk_context *cx, const unit *u, arena *a, void *const *data, machine_weights *out)
{
    const ir_graph *g = u->image.ir[0];
    machine_weight *at;
    NEW(cx, a, at, u->image.n_weights);
    for (ir_tensor_id t = 0; t < g->tensors.n; t++)
        if (g->tensors.at[t].kind == IR_CONST && g->tensors.at[t].shares == IR_NONE)
            at[u->image.places[0][t].offset] = (machine_weight){.at = data[t], .dtype = g->tensors.at[t].dtype};
    *out = (machine_weights){.at = at};
    return MPK_OK;
}

static mpk_status run_operator(mpk_context *cx, const item *it, unit *u, char *words)
{
    arena a = {0};
    ir_values v = {0};
    machine_weights weights;
    cuda_options o = options();
    machine *m = NULL;
    const ir_graph *g = u->image.ir[0];
    uint64_t seed = rng_u64(b->seed, hash_bytes(it->name, strlen(it->name), 0));
    mpk_status status = ir_eval_allocate(cx, &a, g, &v);
    if (status == MPK_OK) {
        fill_operands(g, &v, seed);
        status = find_weights(cx, u, &a, v.data, &weights);
    }
    if (status == MPK_OK)
        status = cuda_start(cx, &u->image, &weights, &o, &m);
    for (int round = 0; status == MPK_OK && round < COMPANY_ROUNDS; round++)
        status = run_once(cx, m, u, seed, round % 2 ? 1 + (uint32_t)(rng_u64(seed, (uint64_t)round) % 5) : UINT32_MAX,
                          &a, &v);
    snprintf(words, WORDS, "%u cases, %zu operators, %llu tasks", u->n_cases, g->ops.n,
             (unsigned long long)image_count(u->image.block, RT_TASKS));
    machine_stop(m);
    arena_free(&a);
    if (status == MPK_OK && u->n_without_code)
        status = status_fail(cx, MPK_EUNSUPPORTED, "%u of %u cases have no code", u->n_without_code, it->def->n_cases);
    return status;
}

/* ---- models ---- */

/* In bf16 every token goes to every expert: of logits that are nearly equal the GPU may well choose others. */
static model_config config_of(const item *it)
{
    const bool mixture = strcmp(it->family, "qwen3_moe") == 0 || strcmp(it->family, "mixtral") == 0;
    return (model_config){.family = str_from(it->family),
                          .n_layers = it->small ? 1 : 2,
                          .hidden_size = 192,
                          .n_heads = 6,
                          .n_kv_heads = 2,
                          .head_size = 64,
                          .ffn_size = 320,
                          .vocab_size = 1003,
                          .max_positions = 1024,
                          .norm_eps = 1e-5,
                          .tied_embeddings = true,
                          .attention_bias = strcmp(it->family, "qwen2") == 0,
                          .activation = STR("silu"),
                          .weight_dtype = IR_F32,
                          .n_experts = mixture ? 5 : 0,
                          .experts_per_token = it->dtype == IR_F32 ? 2 : 5,
                          .expert_ffn_size = 96,
                          .expert_every = 1,
                          .normalize_experts = true,
                          .rope_size = 64,
                          .rope_theta = 10000,
                          .bos_token = -1};
}

static mpk_status weight_dtype(mpk_context *cx, const void *self, const char *name, uint32_t rank, const int64_t *dims,
                               ir_dtype *dtype)
{
    (void)cx;
    (void)name;
    (void)rank;
    (void)dims;
    *dtype = *(const ir_dtype *)self;
    return MPK_OK;
}

/* Steps of one token, of 8, 32 and 64, fused for the GPU; invariant: of 1, 4, 16 and 64, over longer contexts. */
static mpk_status make_model(mpk_context *cx, const item *it, unit *u)
{
    static const uint32_t tokens[2][4] = {{1, 8, 32, 64}, {1, 4, 16, 64}};
    const bool invariant = it->invariant;
    model_config config = config_of(it);
    model_weights w = {weight_dtype, &it->dtype};
    for (; u->n_graphs < 4; u->n_graphs++) {
        const uint32_t n = tokens[invariant][u->n_graphs];
        model_shape s = {.n_tokens = n,
                         .n_rows = n < 8 ? n : 8,
                         .n_slots = invariant ? 8 : 4,
                         .n_pages = invariant ? 80 : 16,
                         .page_tokens = it->fast ? 64 : 16, /* 64: what the fast bodies of attention take */
                         .max_pages_per_slot = invariant ? 10 : 8,
                         .kv_dtype = it->dtype,
                         .activation_dtype = it->dtype};
        u->n_tokens[u->n_graphs] = n;
        TRY(model_build(cx, &u->arena, &config, &s, &w, &u->graphs[u->n_graphs]));
    }
    pass_options plain = {.fusion = PASS_FUSE_FULL}, fast = plain;
    fast.splits = workers_of(it) / config.n_kv_heads / (invariant ? 8 : 1);
    fast.split_tokens = SPLIT_TOKENS;
    fast.own_units = invariant;
    fast.launch = it->launch;
    fast.norm_elements = 1 << 24;
    fast.relaxed = fast.whole_tiles = fast.logits = true;
    if (it->n_peers) {
        fast.n_peers = it->n_peers;
        fast.launch = PASS_LAUNCH_AOT;
        fast.gather_bytes = 1; /* the vocabulary is cut too */
    }
    return compile_unit(cx, it, u, it->fast ? fast : plain);
}

/* What the interpreter computes with: one memory for tensors of the same name. */
typedef struct model_bed {
    arena arena;
    ir_values values[4];
    machine *m;
} model_bed;

static mpk_status share_by_name(mpk_context *cx, const unit *u, model_bed *bed, const machine_weights *w)
{
    for (uint32_t g = 0; g < u->n_graphs; g++) {
        const ir_graph *ir = u->graphs[g];
        NEW(cx, &bed->arena, bed->values[g].data, ir->tensors.n);
        for (ir_tensor_id t = 0; t < ir->tensors.n; t++) {
            const ir_tensor *x = &ir->tensors.at[t];
            if (x->kind != IR_STATE && x->kind != IR_CONST)
                continue;
            ir_tensor_id first = ir_find(u->graphs[0], x->name.at);
            if (g && first != IR_NONE) {
                bed->values[g].data[t] = bed->values[0].data[first];
                continue;
            }
            char *bytes = arena_alloc(&bed->arena, (size_t)ir_bytes(x), 1);
            CHECK(cx, bytes, MPK_ENOMEM, "out of memory");
            if (x->kind == IR_CONST)
                load_random_fill(w->seed, x->name, x->dtype, 0, ir_elements(x), bytes);
            bed->values[g].data[t] = bytes;
        }
        TRY(ir_eval_allocate(cx, &bed->arena, ir, &bed->values[g]));
    }
    return MPK_OK;
}

/* Weights that are made up on the GPU, of the program's own dtypes. */
static mpk_status make_weights(mpk_context *cx, const unit *u, model_bed *bed, machine_weights *out)
{
    machine_weight *made_up;
    NEW(cx, &bed->arena, made_up, u->image.n_weights);
    for (uint32_t i = 0; i < u->image.n_weights; i++)
        made_up[i].dtype = u->image.weights[i].dtype;
    *out = (machine_weights){.at = made_up, .seed = b->seed};
    return MPK_OK;
}

/* Write a step input on both sides. */
static mpk_status put(mpk_context *cx, const unit *u, model_bed *bed, uint32_t g, const char *name, const void *from)
{
    ir_tensor_id mine = ir_find(u->graphs[g], name), its = ir_find(u->image.ir[g], name);
    if (mine != IR_NONE)
        memcpy(bed->values[g].data[mine], from, (size_t)ir_bytes(&u->graphs[g]->tensors.at[mine]));
    return its == IR_NONE ? MPK_OK : machine_write_tensor(cx, bed->m, g, its, from);
}

typedef struct step {
    uint32_t graph, first, n; /* positions of slot 1 */
} step;

static mpk_status put_step(mpk_context *cx, const unit *u, model_bed *bed, const step *s, uint64_t seed)
{
    int32_t tokens[MOST_TOKENS] = {0}, positions[MOST_TOKENS] = {0}, slots[MOST_TOKENS] = {0}, rows[MOST_TOKENS] = {0},
            draws[MOST_TOKENS] = {0}, pages[4 * 8];
    int64_t seeds[MOST_TOKENS] = {0};
    float sampling[MOST_TOKENS * 4] = {0};
    int32_t asks[MOST_TOKENS * 7] = {0};
    for (uint32_t i = 0; i < s->n; i++) {
        tokens[i] = (int32_t)(rng_u64(seed, s->first + i) % 1003);
        positions[i] = (int32_t)(s->first + i);
        slots[i] = 1;
    }
    for (int i = 0; i < 32; i++)
        pages[i] = 15 - i % 16;
    rows[0] = (int32_t)s->n - 1;
    TRY(put(cx, u, bed, s->graph, "tokens", tokens));
    TRY(put(cx, u, bed, s->graph, "positions", positions));
    TRY(put(cx, u, bed, s->graph, "slots", slots));
    TRY(put(cx, u, bed, s->graph, "pages", pages));
    TRY(put(cx, u, bed, s->graph, "rows", rows));
    TRY(put(cx, u, bed, s->graph, "sampling", sampling));
    TRY(put(cx, u, bed, s->graph, "seeds", seeds));
    TRY(put(cx, u, bed, s->graph, "asks", asks));
    return put(cx, u, bed, s->graph, "draws", draws);
}

/* One row of logits and the token, from the machine. */
static mpk_status read_row(mpk_context *cx, const unit *u, model_bed *bed, uint32_t g, float *logits)
{
    const ir_graph *ir = u->image.ir[g];
    ir_tensor_id t = ir_find(ir, "logits");
    CHECK(cx, t != IR_NONE, MPK_EVERIFY, "the program has no logits");
    arena_mark mark = arena_get_mark(&bed->arena);
    float *all = arena_alloc(&bed->arena, (size_t)ir_bytes(&ir->tensors.at[t]), 1);
    CHECK(cx, all, MPK_ENOMEM, "out of memory");
    TRY(machine_read_tensor(cx, bed->m, g, t, all));
    memcpy(logits, all, 1003 * sizeof *logits);
    arena_reset(&bed->arena, mark);
    return MPK_OK;
}

static mpk_status run_step(mpk_context *cx, const unit *u, model_bed *bed, const step *s, uint64_t seed, double allowed,
                           double *worst)
{
    float got[1003];
    ir_values *v = &bed->values[s->graph];
    TRY(put_step(cx, u, bed, s, seed));
    v->live[IR_ALL] = UINT32_MAX;
    v->live[IR_TOKENS] = s->n;
    v->live[IR_ROWS] = 1;
    TRY(ir_eval(cx, &bed->arena, u->graphs[s->graph], v));
    TRY(machine_run_graph(cx, bed->m, s->graph, s->n, 1));
    TRY(read_row(cx, u, bed, s->graph, got));
    const float *expected = v->data[ir_find(u->graphs[s->graph], "logits")];
    double range = 0;
    for (int i = 0; i < 1003; i++)
        range = fabs((double)expected[i]) > range ? fabs((double)expected[i]) : range;
    for (int i = 0; i < 1003; i++) {
        double d = fabs((double)got[i] - (double)expected[i]) / range;
        CHECK(cx, d <= allowed, MPK_EVERIFY, "graph for %u tokens, position %u: logit %d is %g, expected %g (range %g)",
              u->n_tokens[s->graph], s->first, i, (double)got[i], (double)expected[i], range);
        *worst = d > *worst ? d : *worst;
    }
    return MPK_OK;
}

static const step steps[STEPS] = {{2, 0, 27}, {1, 27, 5}, {0, 32, 1}, {0, 33, 1}, {1, 34, 8}, {3, 42, 51}};

/* The same steps again and again, from an empty cache. */
static mpk_status repeat(mpk_context *cx, const unit *u, model_bed *bed, uint64_t seed, int repeats)
{
    static float first[STEPS][1003], again[1003];
    for (int i = 0; i < repeats; i++) {
        TRY(machine_clear_state(cx, bed->m));
        for (int k = 0; k < STEPS; k++) {
            TRY(put_step(cx, u, bed, &steps[k], seed));
            TRY(machine_run_graph(cx, bed->m, steps[k].graph, steps[k].n, 1));
            TRY(read_row(cx, u, bed, steps[k].graph, i ? again : first[k]));
            CHECK(cx, i == 0 || memcmp(again, first[k], sizeof again) == 0, MPK_EVERIFY,
                  "run %d of step %d has other bits than the first", i, k);
        }
    }
    return MPK_OK;
}

/* `together` requests at a time; each alone and among others must get the same tokens. */
static mpk_status serve(mpk_context *cx, model_bed *bed, uint64_t seed, uint32_t n, uint32_t together, uint32_t answer,
                        int32_t tokens[REQUESTS][ANSWER])
{
    const uint64_t limit_ns = DRAIN_SECONDS * 1000000000ull * b->patience;
    uint32_t counts[REQUESTS] = {0};
    for (uint32_t first = 0; first < n; first += together) {
        uint64_t ids[REQUESTS];
        uint32_t open = 0;
        for (uint32_t r = first; r < first + together; r++, open++) {
            int32_t prompt[40];
            for (uint32_t i = 0; i < 40; i++)
                prompt[i] = (int32_t)(rng_u64(seed + r, i) % 1003);
            machine_request q = {.tokens = prompt, .n_tokens = 3 + 11 * r, .max_tokens = answer, .top_p = 1};
            TRY(machine_submit(cx, bed->m, &q, &ids[r]));
        }
        while (open) {
            rt_token out[16];
            uint32_t got;
            TRY(machine_drain(cx, bed->m, out, 16, limit_ns, &got));
            CHECK(cx, got, MPK_ESTALLED, "no token for %llu s while %u requests are open",
                  (unsigned long long)(limit_ns / 1000000000u), open);
            for (uint32_t i = 0; i < got; i++)
                for (uint32_t r = first; r < first + together; r++)
                    if (ids[r] == out[i].id) {
                        if (out[i].token >= 0 && counts[r] < answer)
                            tokens[r][counts[r]++] = out[i].token;
                        open -= out[i].reason != RT_GOING;
                    }
        }
    }
    for (uint32_t r = 0; r < n; r++)
        CHECK(cx, counts[r] == answer, MPK_EVERIFY, "request %u got %u tokens of %u", r, counts[r], answer);
    return MPK_OK;
}

/* Sums are in another order where the bodies for another number of tokens run: in bf16 two tokens that are nearly as
 * likely may change places, once in a hundred runs of this check.  So there one request may differ; one that reads what
 * belongs to another does not stay alone. */
static mpk_status serve_twice(mpk_context *cx, model_bed *bed, uint64_t seed, bool small, uint32_t may_differ)
{
    static int32_t alone[REQUESTS][ANSWER], among[REQUESTS][ANSWER];
    uint32_t differ = 0;
    const uint32_t n = small ? 2 : REQUESTS, answer = small ? 3 : ANSWER;
    NOTE(cx, serve(cx, bed, seed, n, n, answer, among), "serving %u requests together", n);
    nanosleep(&(struct timespec){0, 400000000}, NULL); /* the kernel goes to rest, and must come back */
    NOTE(cx, serve(cx, bed, seed, n, 1, answer, alone), "serving them one by one");
    for (uint32_t r = 0; r < n; r++)
        differ += memcmp(alone[r], among[r], answer * sizeof alone[r][0]) != 0;
    CHECK(cx, differ <= may_differ, MPK_EVERIFY,
          "%u of %u requests got other tokens among others than alone, %u may, where two are nearly as likely", differ,
          n, may_differ);
    return MPK_OK;
}

/* ---- models whose bits do not depend on company ---- */

static mpk_status check_invariant(mpk_context *cx, const unit *u, model_bed *bed, char *words)
{
    uint32_t touched[2] = {0};
    cuda_options o = options();
    machine_weights w;
    TRY(make_weights(cx, u, bed, &w));
    for (uint32_t apart = 0; apart < 2; apart++) {
        machine_stop(bed->m);
        bed->m = NULL;
        o.few_tokens = apart ? FEW_TOKENS : 0;
        TRY(cuda_start(cx, &u->image, &w, &o, &bed->m));
        for (uint64_t round = 0; round < COMPANY_ROUNDS; round++) {
            uint32_t n = 0;
            TRY(company_count(cx, bed->m, rng_u64(b->seed, 100 + round), &n));
            touched[apart] += n;
        }
    }
    CHECK(cx, !touched[1], MPK_EVERIFY, "%u of %d requests got other bits in company than alone", touched[1],
          COMPANY_ROUNDS * COMPANY);
    snprintf(words, WORDS,
             "%d requests got the same bits in company as alone; where steps are not kept apart, %u did not",
             COMPANY_ROUNDS * COMPANY, touched[0]);
    return MPK_OK;
}

static mpk_status check_model(mpk_context *cx, const item *it, const unit *u, model_bed *bed, char *words)
{
    uint64_t seed = rng_u64(b->seed, 77);
    double worst = 0, allowed = it->dtype == IR_F32 ? 2e-4 : 5e-2;
    const int repeats = it->small ? 2 : REPEATS;
    machine_weights w;
    cuda_options o = options();
    o.mode = it->mode;
    o.on_one_gpu = is_on_one_gpu(it);
    TRY(make_weights(cx, u, bed, &w));
    TRY(share_by_name(cx, u, bed, &w));
    TRY(cuda_start(cx, &u->image, &w, &o, &bed->m));
    for (int k = 0; k < STEPS; k++)
        TRY(run_step(cx, u, bed, &steps[k], seed, allowed, &worst));
    snprintf(words, WORDS, "logits differ by %.1e of their range", worst);
    TRY(repeat(cx, u, bed, seed, repeats));
    uint64_t start = clock_ns();
    TRY(serve_twice(cx, bed, seed, it->small, it->dtype != IR_F32));
    snprintf(words, WORDS, "logits differ by %.1e of their range, %d runs the same, %d requests served in %.2f s",
             worst, repeats, 2 * (it->small ? 2 : REQUESTS), (double)(clock_ns() - start) * 1e-9);
    return MPK_OK;
}

static mpk_status run_model(mpk_context *cx, const item *it, unit *u, char *words)
{
    model_bed bed = {0};
    mpk_status status = it->invariant ? check_invariant(cx, u, &bed, words) : check_model(cx, it, u, &bed, words);
    machine_stop(bed.m);
    arena_free(&bed.arena);
    return status;
}

/* ---- items ---- */

static mpk_status make_unit(mpk_context *cx, const item *it, unit *u)
{
    return it->def ? make_operator(cx, it, u) : make_model(cx, it, u);
}

static void free_unit(unit *u)
{
    text_free(&u->bodies);
    arena_free(&u->arena);
}

static bool run_item(item *it)
{
    mpk_context cx = {0};
    unit u = {0};
    char words[WORDS] = "";
    uint64_t start = clock_ns();
    mpk_status status = make_unit(&cx, it, &u);
    if (status == MPK_OK && !u.image.block)
        snprintf(words, sizeof words, "%u views, which are no work", u.n_views);
    else if (status == MPK_OK)
        status = it->def ? run_operator(&cx, it, &u, words) : run_model(&cx, it, &u, words);
    snprintf(it->words, WORDS, "%.*s", WORDS - 1, status == MPK_OK ? words : cx.text);
    it->seconds = (double)(clock_ns() - start) * 1e-9;
    it->outcome = status == MPK_OK ? PASSED : FAILED;
    free_unit(&u);
    return status != MPK_EDEVICE && status != MPK_ESTALLED;
}

static bool is_wanted(const char *name, int n, char **names)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return n == 0;
}

static item *add_item(const char *name, int n, char **names)
{
    if (!is_wanted(name, n, names) || b->n == MOST_ITEMS)
        return NULL;
    item *it = &b->items[b->n++];
    snprintf(it->name, sizeof it->name, "%s", name);
    return it;
}

static void add_op(const op_def *def, int n, char **names)
{
    item *it = add_item(def->name, n, names);
    if (!it)
        return;
    it->def = def;
    it->dtype = IR_F32;
    it->fast = true;
}

/* The name says all: family, dtype, and what is peculiar. */
static void add_model(const char *name, int n, char **names)
{
    item *it = add_item(name, n, names);
    if (!it)
        return;
    snprintf(it->family, sizeof it->family, "%.*s", (int)strcspn(name, "-"), name);
    it->dtype = strstr(name, "-f32") ? IR_F32 : IR_BF16;
    it->fast = !strstr(name, "-plain");
    it->invariant = strstr(name, "-invariant") != NULL;
    it->small = strstr(name, "-small") != NULL;
    const char *peers = strstr(name, "-peers");
    it->n_peers = peers ? (uint32_t)strtoul(peers + strlen("-peers"), NULL, 10) : 0;
    it->mode = strstr(name, "-pdl") ? CUDA_GRAPH_PDL : strstr(name, "-graph") ? CUDA_GRAPH : CUDA_PERSISTENT;
    it->launch = strstr(name, "-jit") ? PASS_LAUNCH_JIT : strstr(name, "-paper") ? PASS_LAUNCH_PAPER : PASS_LAUNCH_AUTO;
}

static void list_items(int n, char **names)
{
    static const char *const models[] = {
        "llama-f32-plain",
        "llama-bf16-plain",
        "llama-f32",
        "llama-bf16",
        "qwen3-f32",
        "qwen3-bf16",
        "qwen2-bf16",
        "llama-bf16-invariant",
        "qwen3-bf16-invariant",
        "llama-f32-invariant",
        "qwen3-bf16-jit",
        "qwen3-bf16-paper",
        "qwen3-bf16-graph",
        "qwen3-bf16-small",
        "qwen3_moe-f32",
        "mixtral-bf16",
        "llama-f32-peers2",
        "qwen3-bf16-peers2",
    };
    for (const op_def *const *d = op_table; *d; d++)
        add_op(*d, n, names);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        add_model(models[i], n, names);
    if (b->arch.features & GEN_BULK)
        add_model("qwen3-bf16-graph-pdl", n, names);
}

/* ---- children ---- */

static void find_gpu(void)
{
    mpk_context cx = {0};
    cuda_device_facts f;
    mpk_status status = cuda_probe(&cx, 0, &f);
    b->has_gpu = status == MPK_OK && gen_arch_fit(f.arch, f.gpu.n_sms, f.gpu.shared_bytes, &b->arch);
    snprintf(b->no_gpu, sizeof b->no_gpu, "%s", status == MPK_OK ? "its shared memory is too small" : cx.text);
    snprintf(b->gpu, sizeof b->gpu, "%s", f.gpu.name);
    b->n_gpus = status == MPK_OK ? f.n_devices : 0;
}

/* Programs into the cache; what does not compile is reported when its turn comes. */
static void compile_share(uint32_t first, uint32_t stride)
{
    for (uint32_t i = first; i < b->n; i += stride) {
        mpk_context cx = {0};
        unit u = {0};
        text code = {0};
        if (make_unit(&cx, &b->items[i], &u) == MPK_OK && u.image.block)
            cuda_compile(&cx, &u.image, &b->arch, NULL, &code);
        text_free(&code);
        free_unit(&u);
    }
}

static void run_items(void)
{
    for (uint32_t i = b->current; i < b->n; i++) {
        b->current = i;
        b->began_ns = clock_ns();
        if (!run_item(&b->items[i]))
            _exit(1); /* the GPU may be lost to this process */
    }
    b->current = b->n;
    _exit(0);
}

static void say(const item *it)
{
    static const char *const marks[] = {"?", "ok", "FAILED", "DIED"};
    printf("%-24s %-7s %6.2f s  %s\n", it->name, marks[it->outcome], it->seconds, it->words);
    fflush(stdout);
}

/* How long an item may take: kernels that wait for each other, and one does not start, would take for ever. */
static uint64_t most_seconds(uint32_t i)
{
    return (i < b->n && b->items[i].n_peers ? PEERS_SECONDS : ITEM_SECONDS) * b->patience;
}

/* Wait for a child that runs items; kill it if one takes too long. */
static void watch(pid_t child, uint32_t *said)
{
    int how;
    for (;;) {
        pid_t ended = waitpid(child, &how, WNOHANG);
        while (*said < b->n && b->items[*said].outcome != WAITING)
            say(&b->items[(*said)++]);
        if (ended == child)
            break;
        const uint64_t most = most_seconds(b->current);
        if (clock_ns() - b->began_ns > most * 1000000000u) {
            kill(child, SIGKILL);
            waitpid(child, &how, 0);
            snprintf(b->items[*said].words, WORDS, "killed after %llu s", (unsigned long long)most);
            break;
        }
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
    bool died = !WIFEXITED(how) || WEXITSTATUS(how) > 1;
    if (died && *said < b->n) {
        item *it = &b->items[*said];
        it->outcome = DIED;
        it->seconds = (double)(clock_ns() - b->began_ns) * 1e-9;
        if (!it->words[0])
            snprintf(it->words, WORDS, "%s %d", WIFSIGNALED(how) ? "killed by signal" : "ended with",
                     WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    }
}

static pid_t child_of(void)
{
    fflush(NULL);
    return fork();
}

static void compile_all(void)
{
    uint32_t n = thread_processors();
    pid_t children[64];
    n = n < 64 ? n : 64;
    for (uint32_t i = 0; i < n; i++) {
        children[i] = child_of();
        if (children[i] == 0) {
            compile_share(i, n);
            _exit(0);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        if (children[i] > 0)
            waitpid(children[i], NULL, 0);
}

/* Run everything, with a new child after each one that was lost. */
static void run_all(void)
{
    uint32_t said = 0;
    while (said < b->n) {
        b->current = said;
        b->began_ns = clock_ns();
        pid_t child = child_of();
        if (child == 0)
            run_items();
        watch(child, &said);
        if (said < b->n && b->items[said].outcome == DIED)
            say(&b->items[said++]);
    }
}

static int summarise(double seconds)
{
    uint32_t passed = 0;
    for (uint32_t i = 0; i < b->n; i++)
        passed += b->items[i].outcome == PASSED;
    printf("%u of %u passed on %s in %.1f s (MPK_SEED=%llu)\n", passed, b->n, b->gpu, seconds,
           (unsigned long long)b->seed);
    return passed == b->n && b->n ? 0 : 1;
}

int main(int argc, char **argv)
{
    char cache[] = "/tmp/mpk-check-cuda.XXXXXX";
    const char *seed = getenv("MPK_SEED"), *patience = getenv("MPK_PATIENCE");
    uint64_t start = clock_ns();
    b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED)
        return 1;
    b->seed = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    b->patience = patience ? strtoull(patience, NULL, 10) : 1;
    if (!b->patience || b->patience > 1000) {
        fprintf(stderr, "check_cuda: MPK_PATIENCE=%s is no number from 1 to 1000\n", patience);
        return 2;
    }
    bool own_cache = !getenv("MPK_CACHE") && mkdtemp(cache) && setenv("MPK_CACHE", cache, 1) == 0;
    pid_t child = child_of();
    if (child == 0) {
        find_gpu();
        _exit(0);
    }
    waitpid(child, NULL, 0);
    if (!b->has_gpu) {
        printf("skipped: there is no GPU to check: %s\n", b->no_gpu);
        rmdir(cache);
        return 0;
    }
    list_items(argc - 1, argv + 1);
    if (b->patience == 1) /* other code is compiled by the items themselves */
        compile_all();
    printf("%s, %s, %u SMs; %u programs compiled in %.1f s\n", b->gpu, b->arch.name, b->arch.n_sms, b->n,
           (double)(clock_ns() - start) * 1e-9);
    run_all();
    if (own_cache) {
        cuda_cache_clear(&(mpk_context){0});
        rmdir(cache);
    }
    return summarise((double)(clock_ns() - start) * 1e-9);
}
