/* recognise_bed.h - what the tests of recognise share: a program parsed, with one text in the place
 * of another, through the pass, evaluated on random numbers and compared.  For
 * src/pass/recognise_test.c, recognise_activations_test.c and recognise_logarithm_test.c. */
#ifndef TESTS_RECOGNISE_BED_H
#define TESTS_RECOGNISE_BED_H

#include "check.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "ir/op.h"
#include "pass/pass.h"

static mpk_context cx;
static uint64_t base_seed;

static inline ir_graph *parse(arena *a, const char *source)
{
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, a, str_from(source), &g));
    return g;
}

/* The pass alone or, with fuse, with fuse_ops after it; both results must be valid programs. */
static inline ir_graph *recognise(arena *a, ir_graph *g, bool fuse)
{
    arena scratch = {0};
    pass_options options = {.n_workers = 2};
    pass_state s = {&cx, a, &scratch, &options};
    check_ok(&cx, pass_recognise(&s, &g));
    check_ok(&cx, ir_verify(&cx, g));
    if (fuse)
        check_ok(&cx, pass_fuse_ops(&s, &g));
    check_ok(&cx, ir_verify(&cx, g));
    arena_free(&scratch);
    return g;
}

static inline size_t count_of(const ir_graph *g, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += strcmp(g->ops.at[i].def->name, name) == 0;
    return n;
}

/* The first output of a program; inputs are filled by name. */
static inline float *evaluate(arena *a, const ir_graph *g, int64_t *n)
{
    ir_values values = {.live = {UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    check_ok(&cx, ir_eval_allocate(&cx, a, g, &values));
    for (size_t t = 0; t < g->tensors.n; t++) {
        const ir_tensor *x = &g->tensors.at[t];
        op_view v = {.data = values.data[t], .dtype = x->dtype};
        for (int64_t i = 0; x->kind != IR_TEMP && i < ir_elements(x); i++)
            op_store(&v, i, rng_normal(hash_bytes(x->name.at, x->name.n, base_seed), (uint64_t)i));
    }
    check_ok(&cx, ir_eval(&cx, a, g, &values));
    *n = ir_elements(&g->tensors.at[g->outputs.at[0]]);
    return values.data[g->outputs.at[0]];
}

/* Equal within rounding: a rule that replaces several operators may round less often. */
static inline void check_near(arena *a, const ir_graph *one, const ir_graph *two)
{
    int64_t n, m;
    const float *x = evaluate(a, one, &n), *y = evaluate(a, two, &m);
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++)
        assert_true(isnan(x[i]) ? isnan(y[i]) : fabsf(x[i] - y[i]) <= 1e-4f * (1 + fabsf(x[i])));
}

/* The program with one text in the place of another. */
static inline ir_graph *parse_with(arena *a, const char *source, const char *old, const char *by)
{
    const char *at = strstr(source, old);
    assert_non_null(at);
    text t = {0};
    text_add(&t, source, (size_t)(at - source));
    text_add(&t, by, strlen(by));
    text_add(&t, at + strlen(old), strlen(at + strlen(old)));
    ir_graph *g = parse(a, arena_copy(a, t.at, t.n));
    text_free(&t);
    return g;
}

/* A program of general operators as for a GPU. */
static inline ir_graph *fuse_for_gpu(arena *a, ir_graph *g)
{
    arena scratch = {0};
    pass_options options = {.n_workers = 2, .relaxed = true};
    pass_state s = {&cx, a, &scratch, &options};
    check_ok(&cx, pass_recognise(&s, &g));
    check_ok(&cx, pass_fuse_ops(&s, &g));
    check_ok(&cx, ir_verify(&cx, g));
    arena_free(&scratch);
    return g;
}

#endif
