/* elementwise.h - reference code of element-wise operators of one and two inputs.
 *
 * An operator gives its arithmetic as functions of scalars; the walk over a box, broadcasting
 * and dtypes are written here once.  Used by add, mul, gelu, silu and silu_mul.
 */
#ifndef OP_ELEMENTWISE_H
#define OP_ELEMENTWISE_H

#include "op/shape.h"
#include "op/walk.h"

/* out[i] = f(x[i]) over a box, in fp32. */
static inline void elementwise_unary(const op_call *call, const ir_box *box, float (*f)(float))
{
    const op_view *x = &call->in[0], *y = &call->out[0];
    uint32_t last = y->rank ? y->rank - 1 : 0;
    int64_t at[IR_MAX_RANK], n = y->rank ? box->hi[last] - box->lo[last] : 1;
    memcpy(at, box->lo, sizeof at);
    do {
        int64_t from = walk_offset(x, at), to = walk_offset(y, at);
        for (int64_t i = 0; i < n; i++)
            op_store(y, to + i * y->stride[last], f(op_load(x, from + i * x->stride[last])));
    } while (walk_next(box, last, at));
}

/* A run of the last axis: offsets of its first element in a, b and the result, and steps, in
 * elements. */
typedef struct elementwise_run {
    int64_t a, b, y, step_a, step_b, step_y, n;
} elementwise_run;

/* Compute a run.  The dtype is tested inside the loop, where it never changes: compilers move the
 * test out of it. The step of an operand that is broadcast along the last axis is 0. */
static inline void elementwise_run_binary(const op_call *call, const elementwise_run *r,
                                          float (*f)(float, float), double (*f64)(double, double),
                                          uint64_t (*integer)(uint64_t, uint64_t))
{
    const op_view *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    for (int64_t i = 0; i < r->n; i++) {
        int64_t from = r->a + i * r->step_a, with = r->b + i * r->step_b, to = r->y + i * r->step_y;
        if (y->dtype == IR_F32)
            ((float *)y->data)[to] =
                f(((const float *)a->data)[from], ((const float *)b->data)[with]);
        else if (y->dtype == IR_F64)
            ((double *)y->data)[to] =
                f64(((const double *)a->data)[from], ((const double *)b->data)[with]);
        else if (walk_is_exact(y->dtype))
            walk_store_int(y, to,
                           (int64_t)integer((uint64_t)walk_load_int(a, from),
                                            (uint64_t)walk_load_int(b, with)));
        else
            op_store(y, to, f(op_load(a, from), op_load(b, with)));
    }
}

/* The cases of such an operator, named `op`; inputs as fill_wide_integers makes them. */
#define ELEMENTWISE_BINARY_CASES(op)                                                          \
    {"input %a : f32[7, 320] live=tokens\ninput %b : f32[7, 320] live=tokens\n%y = " op       \
     "(%a, %b)\n"},                                                                           \
        {"input %a : bf16[7, 320] live=tokens\nconst %b : bf16[320]\n%y = " op "(%a, %b)\n"}, \
        {"input %a : f32[3, 1, 17]\ninput %b : f32[5, 1]\n%y = " op "(%a, %b)\n"},            \
        {"input %a : i64[3, 4]\ninput %b : i64[]\n%y = " op "(%a, %b)\n"},                    \
        {"input %a : i32[3, 4]\ninput %b : i32[3, 1]\n%y = " op "(%a, %b)\n"},                \
        {"input %a : f64[2, 3]\ninput %b : f64[2, 3]\n%y = " op "(%a, %b)\n"},

/* out[i] = f(a[i], b[i]) over a box, a and b broadcast: floats in fp32, f64 in fp64, integers
 * exactly (modulo 2^64). */
static inline void elementwise_binary(const op_call *call, const ir_box *box,
                                      float (*f)(float, float), double (*f64)(double, double),
                                      uint64_t (*integer)(uint64_t, uint64_t))
{
    const op_view *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    uint32_t last = y->rank ? y->rank - 1 : 0;
    elementwise_run r = {.n = 1};
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    if (y->rank) {
        r.step_a = walk_stride(a, y->rank, last);
        r.step_b = walk_stride(b, y->rank, last);
        r.step_y = y->stride[last];
        r.n = box->hi[last] - box->lo[last];
    }
    do {
        r.a = walk_broadcast(a, y->rank, at);
        r.b = walk_broadcast(b, y->rank, at);
        r.y = walk_offset(y, at);
        elementwise_run_binary(call, &r, f, f64, integer);
    } while (walk_next(box, last, at));
}

/* infer of a unary operator on floats: the result is like the input. */
static inline mpk_status elementwise_infer_unary(mpk_context *cx, const ir_graph *g,
                                                 const ir_op *op, ir_tensor *out)
{
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_FLOAT));
    shape_like(shape_input(g, op, 0), out);
    return MPK_OK;
}

/* infer of a binary operator: both inputs have one dtype, which is the result's; shapes
 * broadcast. */
static inline mpk_status elementwise_infer_binary(mpk_context *cx, const ir_graph *g,
                                                  const ir_op *op, ir_tensor *out)
{
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_NUMBER));
    TRY(shape_expect_dtype(cx, g, op, 1, 1u << shape_input(g, op, 0)->dtype));
    out->dtype = shape_input(g, op, 0)->dtype;
    return shape_broadcast(cx, g, op, out);
}

#endif
