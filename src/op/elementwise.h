/* elementwise.h - reference code of element-wise operators of one and two inputs. */
#ifndef OP_ELEMENTWISE_H
#define OP_ELEMENTWISE_H

#include "op/shape.h"
#include "op/walk.h"

/* out[i] = f(x[i]) over a box, in fp32. */
static inline void elementwise_unary(const op_call *call, const ir_box *box, float (*f)(float))
{
    const op_view *x = &call->in[0], *y = &call->out[0];
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do
        op_store(y, walk_offset(y, at), f(op_load(x, walk_offset(x, at))));
    while (walk_next(box, y->rank, at));
}

/* out[i] = f(a[i], b[i]) over a box, a and b broadcast: floats in fp32, f64 in fp64, integers exactly (modulo 2^64). */
static inline void elementwise_binary(const op_call *call, const ir_box *box, float (*f)(float, float),
                                      double (*f64)(double, double), uint64_t (*integer)(uint64_t, uint64_t))
{
    const op_view *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do {
        int64_t i = walk_broadcast(a, y->rank, at), k = walk_broadcast(b, y->rank, at), o = walk_offset(y, at);
        if (y->dtype == IR_F64)
            ((double *)y->data)[o] = f64(((const double *)a->data)[i], ((const double *)b->data)[k]);
        else if (walk_is_exact(y->dtype))
            walk_store_int(y, o, (int64_t)integer((uint64_t)walk_load_int(a, i), (uint64_t)walk_load_int(b, k)));
        else
            op_store(y, o, f(op_load(a, i), op_load(b, k)));
    } while (walk_next(box, y->rank, at));
}

/* infer of a unary operator on floats: the result is like the input. */
static inline mpk_status elementwise_infer_unary(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_FLOAT));
    shape_like(shape_input(g, op, 0), out);
    return MPK_OK;
}

/* infer of a binary operator: both inputs have one dtype, which is the result's; shapes broadcast. */
static inline mpk_status elementwise_infer_binary(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_NUMBER));
    TRY(shape_expect_dtype(cx, g, op, 1, 1u << shape_input(g, op, 0)->dtype));
    out->dtype = shape_input(g, op, 0)->dtype;
    return shape_broadcast(cx, g, op, out);
}

#endif
