/* linear.h - what linear and sum_linear share: up to three weights whose products stand side by
 * side, or with a gate are multiplied column by column.  Both have these inputs and attributes at
 * the same places.
 */
#ifndef OP_LINEAR_H
#define OP_LINEAR_H

#include "op/shape.h"

enum { LINEAR_X, LINEAR_W0, LINEAR_W1, LINEAR_W2, LINEAR_B0, LINEAR_NORM = 7 };
enum { LINEAR_EPS, LINEAR_GLU };

/* With a gate, column i of both weights makes column i of the result. */
static inline bool linear_has_glu(const ir_op *op)
{
    return op->attributes[LINEAR_GLU].s.n > 0;
}

/* The gate and what it gates must have one shape, since their columns are multiplied one by one. */
static inline mpk_status linear_check_glu(mpk_context *cx, const ir_graph *g, const ir_op *op)
{
    const str glu = op->attributes[LINEAR_GLU].s;
    const char *name = op->def->name;
    CHECK(cx, str_is(glu, "silu") || str_is(glu, "gelu") || str_is(glu, "gelu_tanh"),
          MPK_EUNSUPPORTED, "%s: glu \"%.*s\" is not one of \"\", silu, gelu, gelu_tanh", name,
          STR_ARG(glu));
    CHECK(cx, shape_input(g, op, LINEAR_W1) && !shape_input(g, op, LINEAR_W2), MPK_ESHAPE,
          "%s: with glu the inputs w0 and w1 are needed and w2 is not", name);
    return shape_expect(cx, g, op, LINEAR_W1, SHAPE_WEIGHT, 2, shape_input(g, op, LINEAR_W0)->dims);
}

/* Check x [T, D], weights, biases and gate.  *columns: of the result; widths add up, or with a gate
 * are equal. The dtypes of the weights are independent of each other. */
static inline mpk_status linear_infer(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                      int64_t *columns)
{
    const char *name = op->def->name;
    TRY(shape_expect(cx, g, op, LINEAR_X, SHAPE_FLOAT, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE}));
    const int64_t width = shape_input(g, op, LINEAR_X)->dims[1];
    CHECK(cx, shape_input(g, op, LINEAR_W1) || !shape_input(g, op, LINEAR_W2), MPK_ESHAPE,
          "%s: input w2 is given without w1", name);
    *columns = 0;
    for (uint32_t i = 0; i < 3; i++) {
        const ir_tensor *w = shape_input(g, op, LINEAR_W0 + i);
        CHECK(cx, w || !shape_input(g, op, LINEAR_B0 + i), MPK_ESHAPE,
              "%s: bias b%u is given without w%u", name, i, i);
        if (!w)
            continue;
        TRY(shape_expect(cx, g, op, LINEAR_W0 + i, SHAPE_WEIGHT, 2,
                         (int64_t[]){SHAPE_FREE, width}));
        TRY(shape_expect(cx, g, op, LINEAR_B0 + i, SHAPE_FLOAT, 1, &w->dims[0]));
        if (i == 0 || !linear_has_glu(op))
            *columns += w->dims[0];
    }
    return linear_has_glu(op) ? linear_check_glu(cx, g, op) : MPK_OK;
}

/* The rows lo .. hi - 1 of weight i that make columns of the box; lo >= hi: none. */
static inline void linear_weight_rows(const ir_graph *g, const ir_op *op, uint32_t i,
                                      const ir_box *box, int64_t *lo, int64_t *hi)
{
    int64_t first = 0, rows = shape_input(g, op, LINEAR_W0 + i)->dims[0];
    for (uint32_t k = 0; k < i && !linear_has_glu(op); k++)
        first += shape_input(g, op, LINEAR_W0 + k)->dims[0];
    *lo = box->lo[1] > first ? box->lo[1] - first : 0;
    *hi = box->hi[1] - first < rows ? box->hi[1] - first : rows;
}

#endif
