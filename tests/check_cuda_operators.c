/* check_cuda_operators.c - items of check_cuda that are operators.
 *
 * All cases of an operator's record become one program, which runs with fresh random data, all
 * entries alive and only some; every result is compared with the record's reference.  A case whose
 * operator no body accepts is counted and fails the item.
 */
#include <math.h>
#include <stdio.h>

#include "check_cuda.h"
#include "check_tolerance.h"

#include "base/rng.h"

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
        gen_call c = {.ir = g,
                      .op = &g->ops.at[k],
                      .n_tokens = 1,
                      .n_workers = checks->arch.n_sms,
                      .needs = checks->arch.features,
                      .halves = gen_find_halves(1, &(gen_graph){.ir = g}),
                      .maps = true};
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

static mpk_status add_tensors(mpk_context *cx, ir_graph *to, const ir_graph *from, uint32_t number,
                              ir_tensor_id *ids)
{
    for (ir_tensor_id i = 0; i < from->tensors.n; i++) {
        const ir_tensor *t = &from->tensors.at[i];
        if (t->producer == IR_NONE && t->kind != IR_TEMP)
            TRY(ir_add_tensor(cx, to, t->kind, t->live, named(to->arena, number, t->name).at,
                              t->dtype, t->rank, t->dims, &ids[i]));
    }
    return MPK_OK;
}

static mpk_status add_ops(mpk_context *cx, ir_graph *to, const ir_graph *from, uint32_t number,
                          ir_tensor_id *ids)
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
    if (!has_code(g)) { /* most weights in blocks are unpacked before they reach a GPU */
        u->n_without_code += !has_blocks(g);
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

mpk_status check_make_operator(mpk_context *cx, const item *it, unit *u)
{
    TRY(ir_create(cx, &u->arena, it->name, &u->graphs[0]));
    u->n_graphs = 1;
    u->n_tokens[0] = 1;
    for (uint32_t i = 0; i < it->def->n_cases; i++)
        NOTE(cx, add_case(cx, u, it->def->cases[i].graph, i), "adding case %u", i);
    if (!u->n_cases && !u->n_without_code)
        return MPK_OK;
    CHECK(cx, u->n_cases, MPK_EUNSUPPORTED, "none of %u cases has code", it->def->n_cases);
    return check_compile_unit(cx, it, u,
                              (pass_options){.fusion = PASS_FUSE_NONE, .whole_tiles = true});
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
            if (in != IR_NONE && g->tensors.at[in].producer == IR_NONE &&
                g->tensors.at[in].shares == IR_NONE)
                op_fill(g, &g->ops.at[k], i, rng_u64(seed, in), v->data[in]);
        }
}

/* ---- comparing ---- */

static bool is_number(ir_dtype dtype)
{
    return dtype == IR_F32 || dtype == IR_F16 || dtype == IR_BF16 || dtype == IR_F64;
}

static double value(const op_view *v, int64_t i)
{
    return v->dtype == IR_F64 ? ((const double *)v->data)[i] : (double)op_load(v, i);
}

/* Dense elements of one tensor, those alive. */
static mpk_status compare(mpk_context *cx, const ir_tensor *t, const void *got,
                          const void *expected, uint32_t live, double allowed, const char *body)
{
    op_view x = {.data = (void *)(uintptr_t)got, .dtype = t->dtype, .rank = 1, .stride = {1}},
            y = x;
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
        CHECK(cx, isnan(p) == isnan(q) && (isfinite(q) ? isfinite(p) : isnan(q) || p == q),
              MPK_EVERIFY, "%%%.*s (%s): element %lld is %g, expected %g", STR_ARG(t->name), body,
              (long long)i, p, q);
        double d = isfinite(q) ? fabs(p - q) : 0;
        worst = d > worst ? d : worst;
        CHECK(cx, d <= allowed * range, MPK_EVERIFY,
              "%%%.*s (%s): element %lld is %g, expected %g (range %g)", STR_ARG(t->name), body,
              (long long)i, p, q, range);
    }
    return MPK_OK;
}

/* The largest logit of each 64 columns and its column: two that are nearly the same may have
 * changed places, so the column must hold what is nearly the largest. */
static mpk_status compare_peaks(mpk_context *cx, const ir_tensor *logits, const ir_tensor *peaks,
                                const float *got, const float *expected, const float *values,
                                uint32_t live, double allowed)
{
    int64_t columns = logits->dims[1], blocks = peaks->dims[1],
            rows = live < peaks->dims[0] ? live : peaks->dims[0];
    double range = 1e-3;
    for (int64_t i = 0; i < rows * columns; i++)
        range = fabs((double)values[i]) > range ? fabs((double)values[i]) : range;
    for (int64_t i = 0; i < rows * blocks; i++) {
        const int64_t row = i / blocks, first = i % blocks * 64,
                      end = first + 64 < columns ? first + 64 : columns;
        const float most = expected[2 * i], column = got[2 * i + 1];
        CHECK(cx, column >= (float)first && column < (float)end && column == floorf(column),
              MPK_EVERIFY, "%%%.*s: block %lld of row %lld has its largest in column %g",
              STR_ARG(peaks->name), (long long)(i % blocks), (long long)row, (double)column);
        const float there = values[row * columns + (int64_t)column];
        CHECK(cx,
              fabs((double)got[2 * i] - most) <= allowed * range && most - there <= allowed * range,
              MPK_EVERIFY,
              "%%%.*s: block %lld of row %lld: %g in column %g, where %g is expected; the largest "
              "is %g",
              STR_ARG(peaks->name), (long long)(i % blocks), (long long)row, (double)got[2 * i],
              (double)column, (double)there, (double)most);
    }
    return MPK_OK;
}

/* Parts that hold nothing are undefined: as expected. */
static void forget_empty_parts(const ir_graph *g, const ir_op *op, const float *lse, void *got,
                               const void *expected)
{
    const ir_tensor *part = &g->tensors.at[op->out[0]];
    const int64_t n = ir_elements(&g->tensors.at[op->out[1]]);
    const size_t bytes = (size_t)(ir_bytes(part) / n);
    for (int64_t i = 0; i < n; i++)
        if (lse[i] == -INFINITY)
            memcpy((char *)got + (size_t)i * bytes, (const char *)expected + (size_t)i * bytes,
                   bytes);
}

static mpk_status compare_output(mpk_context *cx, machine *m, const unit *u, const ir_values *v,
                                 const ir_op *op, ir_op_id k, uint32_t o, arena *scratch)
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
    gen_call c = {.ir = g,
                  .op = op,
                  .n_tokens = 1,
                  .n_workers = checks->arch.n_sms,
                  .needs = checks->arch.features,
                  .halves = gen_find_halves(1, &(gen_graph){.ir = g}),
                  .maps = true};
    const gen_body *body = gen_body_choose(&c, UINT32_MAX);
    TRY(machine_read_tensor(cx, m, 0, op->out[o], got));
    machine_gather(g, op->out[o], v->data[op->out[o]], expected);
    if (o == 0 && strcmp(op->def->name, "attention_parts") == 0)
        forget_empty_parts(g, op, v->data[op->out[1]], got, expected);
    const double allowed = check_tolerance(g, op, t->dtype, body && body->rank);
    mpk_status status;
    if (o == 1 && strcmp(op->def->name, "logits") == 0)
        status = compare_peaks(cx, &g->tensors.at[op->out[0]], t, (const float *)(const void *)got,
                               (const float *)(const void *)expected, v->data[op->out[0]],
                               v->live[t->live], allowed);
    else
        status =
            compare(cx, t, got, expected, v->live[t->live], allowed, machine_code_of(m, 0, k).body);
    arena_reset(scratch, mark);
    return status;
}

/* The compiled program's operators have the names of the source's, so values are found by name. */
static mpk_status run_once(mpk_context *cx, machine *m, const unit *u, uint64_t seed, uint32_t live,
                           arena *scratch, ir_values *v)
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

static mpk_status find_weights(mpk_context *cx, const unit *u, arena *a, void *const *data,
                               machine_weights *out)
{
    const ir_graph *g = u->image.ir[0];
    machine_weight *at;
    NEW(cx, a, at, u->image.n_weights);
    for (ir_tensor_id t = 0; t < g->tensors.n; t++)
        if (g->tensors.at[t].kind == IR_CONST && g->tensors.at[t].shares == IR_NONE)
            at[u->image.places[0][t].offset] =
                (machine_weight){.at = data[t], .dtype = g->tensors.at[t].dtype};
    *out = (machine_weights){.at = at};
    return MPK_OK;
}

mpk_status check_run_operator(mpk_context *cx, const item *it, unit *u, char *words)
{
    arena a = {0};
    ir_values v = {0};
    machine_weights weights;
    cuda_options o = check_options();
    machine *m = NULL;
    const ir_graph *g = u->image.ir[0];
    uint64_t seed = rng_u64(checks->seed, hash_bytes(it->name, strlen(it->name), 0));
    mpk_status status = ir_eval_allocate(cx, &a, g, &v);
    if (status == MPK_OK) {
        fill_operands(g, &v, seed);
        status = find_weights(cx, u, &a, v.data, &weights);
    }
    if (status == MPK_OK)
        status = cuda_start(cx, &u->image, &weights, &o, &m);
    for (int round = 0; status == MPK_OK && round < COMPANY_ROUNDS; round++)
        status = run_once(
            cx, m, u, seed,
            round % 2 ? 1 + (uint32_t)(rng_u64(seed, (uint64_t)round) % 5) : UINT32_MAX, &a, &v);
    snprintf(words, WORDS, "%u cases, %zu operators, %llu tasks", u->n_cases, g->ops.n,
             (unsigned long long)image_count(u->image.block, RT_TASKS));
    machine_stop(m);
    arena_free(&a);
    if (status == MPK_OK && u->n_without_code)
        status = status_fail(cx, MPK_EUNSUPPORTED, "%u of %u cases have no code", u->n_without_code,
                             it->def->n_cases);
    return status;
}
