/* max_pool.c - the largest entry of each window, and where it is.
 *
 * x [N, C, ..] -> values in x's dtype and indices i64 (in row-major order of the spatial axes),
 * [N, C, ..].  NaN wins; of equal entries the first.  Windows are those of pool.h.
 *
 *   [1, 3, 2, 0], kernel 2, stride 2 -> values [3, 2], indices [1, 2]
 *
 * Cost: a comparison an entry of a window.
 */
#include <math.h>

#include "op/fill.h"
#include "op/line.h"
#include "op/pool.h"
#include "op/runs.h"

/* Indices have the shape of the values. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    TRY(pool_infer(cx, g, op, SHAPE_NUMBER, out));
    out[1] = out[0];
    out[1].dtype = IR_I64;
    return MPK_OK;
}

/* Find the largest of one window.  A window that lies in the padding alone has the value -inf
 * (of integers the least) and the index 0. */
static void find(const op_call *call, const int64_t *at)
{
    const op_view *x = &call->in[0], *values = &call->out[0], *indices = &call->out[1];
    bool exact = walk_is_exact(x->dtype), found = false;
    pool_window windows[3];
    ir_box steps;
    int64_t step[IR_MAX_RANK] = {0}, number, best = 0, best_at = 0;
    int64_t plane = at[0] * x->stride[0] + at[1] * x->stride[1], to = walk_offset(values, at);
    line_key most = {0};
    pool_windows(call, at, windows, &steps);
    if (!ir_box_is_empty(&steps, x->rank - 2))
        do {
            int64_t offset = plane + pool_offset(x, windows, step, &number);
            line_key key = line_load(x, offset);
            if (found && !line_is_nan(exact, key) && !line_less(exact, most, key))
                continue;
            most = key;
            best = number;
            best_at = offset;
            found = true;
        } while (walk_next(&steps, x->rank - 2, step));
    if (found)
        walk_copy(values, to, 1, x, best_at, 1, 1);
    else
        walk_store_double(values, to, -INFINITY);
    ((int64_t *)indices->data)[walk_offset(indices, at)] = best;
}

/* Window by window; each is walked once, for value and place together. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do
        find(call, at);
    while (walk_next(box, call->out[0].rank, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"values", 0}, {"indices", 0}};
static const op_attribute attributes[] = {POOL_RECORD};
#define POOL(x, rest)                                                     \
    {                                                                     \
        "input %x : " x "\n%v, %i = max_pool(%x) {" rest "}\noutput %v\n" \
    }
/* Padding and strides; dilation with overhang; three axes; adaptive sizes of integers; channels as
 * a third axis, in whole pieces of 16 bytes, whose indices nothing reads: windows that overlap and
 * that do not, of one row and of several, of an even and of an odd number a line, apart, over an
 * end. */
static const op_case cases[] = {
    {"input %x : f32[3, 2, 9, 11] live=tokens\n%v, %i = max_pool(%x) {kernel = [3, 2], stride = "
     "[2, 1], padding = [1, "
     "0]}\n"},
    {"input %x : bf16[2, 3, 14]\n%v, %i = max_pool(%x) {kernel = [3], dilation = [2], ceil = 1}\n"},
    {"input %x : bf16[2, 1, 9, 8, 12]\n%v, %i = max_pool(%x) {kernel = [3, 3, 1], stride = [2, 2, "
     "1], padding = [1, 1, 0]}\noutput %v\n"
     "output %i\n"},
    POOL("bf16[2, 1, 9, 15, 16]", "kernel = [3, 3, 1], stride = [2, 2, 1], padding = [1, 1, 0]"),
    POOL("f16[2, 1, 7, 8, 24]", "kernel = [3, 3, 1], stride = [2, 2, 1], padding = [1, 1, 0]"),
    POOL("bf16[1, 2, 6, 9, 8]", "kernel = [2, 2, 1], stride = [2, 2, 1]"),
    POOL("f32[1, 1, 7, 8, 8]", "kernel = [3, 3, 1], stride = [1, 1, 1], padding = [1, 1, 0]"),
    POOL("bf16[1, 1, 8, 9, 16]", "kernel = [5, 5, 1], stride = [1, 1, 1], padding = [2, 2, 0]"),
    POOL("f16[1, 1, 9, 12, 8]",
         "kernel = [3, 2, 1], stride = [2, 4, 1], dilation = [2, 3, 1], padding = [1, 1, 0]"),
    POOL("bf16[1, 1, 8, 9, 8]", "kernel = [2, 3, 1], stride = [3, 2, 1], ceil = 1"),
    {"input %x : i64[1, 2, 5, 6, 7]\n%v, %i = max_pool(%x) {output = [3, 6, 2]}\n"},
};

const op_def op_max_pool = {
    .name = "max_pool",
    .summary = "the largest entry of each window over one to three axes, and where it is",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = runs_axes,
    .reads = pool_reads,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill_wide_integers,
};
