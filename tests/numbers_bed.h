/* numbers_bed.h - what the tests of operators' numbers share: a graph with random operands, its
 * tensors by name, and the comparison with what is expected.  For src/op/numbers_test.c,
 * src/op/attention_numbers_test.c and src/op/map_text_test.c. */
#ifndef TESTS_NUMBERS_BED_H
#define TESTS_NUMBERS_BED_H

#include "check.h"

#include <math.h>

#include "base/rng.h"
#include "ir/op.h"

static uint64_t base_seed;

typedef struct bed {
    mpk_context cx;
    arena arena;
    ir_graph *g;
    ir_values values;
} bed;

/* Parse a graph and give it random operands. */
static inline void set_up(bed *b, const char *graph)
{
    *b = (bed){0};
    check_ok(&b->cx, ir_parse(&b->cx, &b->arena, str_from(graph), &b->g));
    for (int i = 0; i < IR_LIVES; i++)
        b->values.live[i] = UINT32_MAX;
    check_ok(&b->cx, ir_eval_allocate(&b->cx, &b->arena, b->g, &b->values));
    for (size_t k = 0; k < b->g->ops.n; k++)
        for (uint32_t i = 0; i < b->g->ops.at[k].n_in; i++) {
            ir_tensor_id in = b->g->ops.at[k].in[i];
            if (in != IR_NONE && b->g->tensors.at[in].kind != IR_TEMP)
                op_fill(b->g, &b->g->ops.at[k], i, rng_u64(base_seed, in), b->values.data[in]);
        }
}

static inline void eval(bed *b)
{
    check_ok(&b->cx, ir_eval(&b->cx, &b->arena, b->g, &b->values));
}

static inline void tear_down(bed *b)
{
    arena_free(&b->arena);
}

/* The memory of a tensor. */
static inline void *data_of(const bed *b, const char *name)
{
    ir_tensor_id id = ir_find(b->g, name);
    assert_int_not_equal(id, IR_NONE);
    return b->values.data[id];
}

static inline const ir_tensor *tensor_of(const bed *b, const char *name)
{
    return &b->g->tensors.at[ir_find(b->g, name)];
}

/* Element number i of a tensor, in row-major order of its own axes. */
static inline double at(const bed *b, const char *name, int64_t i)
{
    const ir_tensor *t = tensor_of(b, name);
    int64_t offset = 0;
    for (uint32_t axis = t->rank; axis-- > 0; i /= t->dims[axis])
        offset += i % t->dims[axis] * t->stride[axis];
    op_view v = {.data = b->values.data[ir_find(b->g, name)], .dtype = t->dtype};
    if (t->dtype == IR_F64)
        return ((const double *)v.data)[offset];
    if (t->dtype == IR_I64)
        return (double)((const int64_t *)v.data)[offset];
    if (ir_dtype_table[t->dtype].block_elements > 1) {
        float block[256];
        int64_t n = ir_dtype_table[t->dtype].block_elements;
        op_load_row(&v, offset / n * n, 0, n, block);
        return (double)block[offset % n];
    }
    return (double)op_load(&v, offset);
}

static inline void near(double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance * (1 + fabs(expected))))
        fail_msg("found %.9g, expected %.9g", found, expected);
}

#endif
