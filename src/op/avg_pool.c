/* avg_pool.c - the mean of each window.  x [N, C, ..] -> [N, C, ..] in x's dtype.
 *
 * The sum, in double, is divided by `divisor`, or if that is 0 by the number of entries of the
 * window: with those in the padding (count_include_pad) or without.  Integers round towards
 * zero.  Windows are those of pool.h.
 *
 *   [1, 2, 3, 4], kernel 2, stride 2 -> [1.5, 3.5]
 *
 * Cost: an addition an entry of a window.
 */
#include "op/fill.h"
#include "op/pool.h"
#include "op/runs.h"

enum { INCLUDE = POOL_ATTRIBUTES, DIVISOR };

/* Windows have no gaps: no framework has means over dilated windows. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    for (uint32_t i = 0; i < op->attributes[POOL_DILATION].ints.n; i++)
        CHECK(cx, op->attributes[POOL_DILATION].ints.at[i] == 1, MPK_EUNSUPPORTED,
              "avg_pool: dilation must be 1");
    return pool_infer(cx, g, op, SHAPE_NUMBER, out);
}

/* The mean of one window.  A window that lies in the padding alone has the sum 0. */
static double find_mean(const op_call *call, const int64_t *at)
{
    const op_view *x = &call->in[0];
    pool_window windows[3];
    ir_box steps;
    int64_t step[IR_MAX_RANK] = {0}, number, plane = at[0] * x->stride[0] + at[1] * x->stride[1];
    int64_t padded = pool_windows(call, at, windows, &steps),
            inside = ir_box_elements(&steps, x->rank - 2);
    double sum = 0;
    if (inside)
        do
            sum += walk_load_double(x, plane + pool_offset(x, windows, step, &number));
        while (walk_next(&steps, x->rank - 2, step));
    int64_t n = call->attributes[INCLUDE].i ? padded : inside;
    if (call->attributes[DIVISOR].i)
        n = call->attributes[DIVISOR].i;
    return sum / (double)(n ? n : 1);
}

/* Window by window. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *y = &call->out[0];
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do
        walk_store_double(y, walk_offset(y, at), find_mean(call, at));
    while (walk_next(box, y->rank, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {POOL_RECORD, SHAPE_INT("count_include_pad", 1),
                                          SHAPE_INT("divisor", 0)};
/* Padding counted and not; windows that overhang at the end (ceil); adaptive sizes; integers
 * with a divisor. */
static const op_case cases[] = {
    {"input %x : f32[3, 2, 9, 11] live=tokens\n%y = avg_pool(%x) {kernel = [3, 2], stride = [2, "
     "1], padding = [1, "
     "0]}\n"},
    {"input %x : bf16[2, 3, 14]\n%y = avg_pool(%x) {kernel = [4], padding = [2], ceil = 1, "
     "count_include_pad = 0}\n"},
    {"input %x : f64[1, 2, 5, 6, 7]\n%y = avg_pool(%x) {output = [3, 6, 2]}\n"},
    {"input %x : i64[1, 2, 5]\n%y = avg_pool(%x) {kernel = [2], divisor = 3}\n"},
};

const op_def op_avg_pool = {
    .name = "avg_pool",
    .summary = "the mean of each window over one to three axes",
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
