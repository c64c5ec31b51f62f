/* same_outputs.h - do two programs with the same inputs have the same outputs?  By the interpreter,
 * to the bit; for the tests of passes that keep all bits. */
#ifndef TESTS_SAME_OUTPUTS_H
#define TESTS_SAME_OUTPUTS_H

#include "check.h"

#include "base/rng.h"
#include "ir/op.h"

/* Run a program.  Inputs are random by their names, normal with this deviation, so programs of one
 * family get the same. */
static inline void evaluate_random(mpk_context *c, arena *a, const ir_graph *g, uint64_t seed,
                                   double deviation, ir_values *values)
{
    *values = (ir_values){.live = {UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    check_ok(c, ir_eval_allocate(c, a, g, values));
    for (size_t t = 0; t < g->tensors.n; t++) {
        const ir_tensor *x = &g->tensors.at[t];
        const op_view v = {.data = values->data[t], .dtype = x->dtype};
        const uint64_t stream = hash_bytes(x->name.at, x->name.n, seed);
        for (int64_t i = 0; i < ir_elements(x) && x->kind != IR_TEMP; i++)
            op_store(&v, i, deviation * rng_normal(stream, (uint64_t)i));
    }
    check_ok(c, ir_eval(c, a, g, values));
}

static inline void check_same_outputs(mpk_context *c, const ir_graph *one, const ir_graph *two,
                                      uint64_t seed, double deviation)
{
    arena a = {0};
    ir_values x, y;
    evaluate_random(c, &a, one, seed, deviation, &x);
    evaluate_random(c, &a, two, seed, deviation, &y);
    assert_int_equal(one->outputs.n, two->outputs.n);
    for (size_t i = 0; i < one->outputs.n; i++) {
        const ir_tensor *t = &one->tensors.at[one->outputs.at[i]],
                        *u = &two->tensors.at[two->outputs.at[i]];
        assert_true(t->dtype == u->dtype && str_equal(t->name, u->name));
        assert_memory_equal(x.data[one->outputs.at[i]], y.data[two->outputs.at[i]],
                            (size_t)ir_bytes(t));
    }
    arena_free(&a);
}

#endif
