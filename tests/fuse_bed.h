/* fuse_bed.h - what the tests of fuse_ops share: a program through the pass, and how many operators
 * of a kind it has.  For the fuse_*_test.c of src/pass. */
#ifndef TESTS_FUSE_BED_H
#define TESTS_FUSE_BED_H

#include "check.h"

#include <string.h>

#include "base/rng.h"
#include "ir/op.h"
#include "pass/pass.h"

static mpk_context cx;

static inline size_t count_of(const ir_graph *g, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += strcmp(g->ops.at[i].def->name, name) == 0;
    return n;
}

/* simplify and fuse_ops as compile.c runs them, then a proof that the result is a valid program. */
static inline ir_graph *fuse_as(arena *a, const ir_graph *g, const pass_options *options)
{
    arena scratch = {0};
    pass_state s = {&cx, a, &scratch, options};
    ir_graph *copy = (ir_graph *)g;
    check_ok(&cx, pass_simplify(&s, &copy));
    check_ok(&cx, pass_fuse_ops(&s, &copy));
    arena_free(&scratch);
    check_ok(&cx, ir_verify(&cx, copy));
    return copy;
}

/* The first n entries of the f32 output of a program, by the interpreter.  Positions and pages
 * count up, slots are 0, all else is random by its name. */
static inline void evaluate_decoding(arena *a, const ir_graph *g, uint64_t seed, float *y, size_t n)
{
    ir_values values = {.live = {UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    check_ok(&cx, ir_eval_allocate(&cx, a, g, &values));
    for (size_t t = 0; t < g->tensors.n; t++) {
        const ir_tensor *x = &g->tensors.at[t];
        for (int64_t i = 0; i < ir_elements(x) && x->kind != IR_TEMP && x->kind != IR_STATE; i++)
            if (x->dtype == IR_F32)
                ((float *)values.data[t])[i] =
                    rng_normal(hash_bytes(x->name.at, x->name.n, seed), (uint64_t)i);
            else
                ((int32_t *)values.data[t])[i] = str_is(x->name, "slots") ? 0 : (int32_t)i;
    }
    check_ok(&cx, ir_eval(&cx, a, g, &values));
    memcpy(y, values.data[g->outputs.at[0]], n * sizeof *y);
}

#endif
