/* rms_norm_parts.c - root-mean-square normalisation of two parts of each row: of all heads of q,
 * and of all heads of k.  x [T, N], weight0 [N0], weight1 [N1], N0 + N1 <= N -> x's shape and
 * dtype.
 *
 * Columns [0, N0) are a row of their own, normalised as rms_norm does, and so are columns
 * [N0, N0 + N1).  The columns after them, which are v, are copied.  The result is what attention
 * takes as qkv (fuse_attention.c, rule wide).  A row is never cut.
 */
#include "op/norm.h"
#include "op/shape.h"
#include "op/walk.h"

/* Inputs, by index. */
enum { X, WEIGHT0, WEIGHT1 };

/* Two dimensions, and room for both parts. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *first = shape_input(g, op, WEIGHT0),
                    *second = shape_input(g, op, WEIGHT1);
    const int64_t any[2] = {SHAPE_FREE, SHAPE_FREE};
    TRY(shape_expect(cx, g, op, X, SHAPE_FLOAT, 2, any));
    TRY(shape_expect(cx, g, op, WEIGHT0, SHAPE_FLOAT, 1, any));
    TRY(shape_expect(cx, g, op, WEIGHT1, SHAPE_FLOAT, 1, any));
    CHECK(cx, first->dims[0] + second->dims[0] <= x->dims[1], MPK_ESHAPE,
          "rms_norm_parts: parts of %lld and %lld columns, input x (%%%.*s) has %lld",
          (long long)first->dims[0], (long long)second->dims[0], STR_ARG(x->name),
          (long long)x->dims[1]);
    CHECK(cx, op->attributes[0].f >= 0, MPK_EARG, "rms_norm_parts: eps is %g, expected 0 or more",
          op->attributes[0].f);
    shape_like(x, out);
    return MPK_OK;
}

/* A row is loaded as f32, its parts are normalised in place, and it is rounded when stored. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *x = &call->in[X], *y = &call->out[0];
    float *row = scratch;
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
        int64_t from = 0;
        walk_load_row(x, t * x->stride[0], 0, x->dims[1], row);
        for (uint32_t i = WEIGHT0; i <= WEIGHT1; i++) {
            const op_view *weight = &call->in[i];
            norm_row(row + from, weight->dims[0], weight, call->attributes[0].f, row + from);
            from += weight->dims[0];
        }
        walk_store_row(y, t * y->stride[0], 0, x->dims[1], row);
    }
}

static const op_operand in[] = {{"x", 0}, {"weight0", 0}, {"weight1", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("eps", 1e-6)};
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\nconst %w : f32[128]\nconst %v : f32[64]\n%y = "
     "rms_norm_parts(%x, %w, %v) {eps = 1e-05}\n"},
    {"input %x : bf16[5, 12288] live=tokens\nconst %w : bf16[4096]\nconst %v : bf16[4096]\n%y = "
     "rms_norm_parts(%x, %w, %v)\n"},
    {"input %x : bf16[3, 3584] live=tokens\nconst %w : bf16[2560]\nconst %v : f32[512]\n%y = "
     "rms_norm_parts(%x, %w, %v)\n"},
    {"input %x : f16[9, 143]\nconst %w : f16[41]\nconst %v : bf16[102]\n%y = rms_norm_parts(%x, "
     "%w, %v)\n"},
};

const op_def op_rms_norm_parts = {
    .name = "rms_norm_parts",
    .summary = "the first two parts of each row normalised each by itself, the rest copied",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_rows,
    .reads = shape_reads_rows,
    .scratch_bytes = shape_scratch_row,
    .ref = ref,
    OP_CASES(cases),
};
