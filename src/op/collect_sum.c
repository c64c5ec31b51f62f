/* collect_sum.c - the sum of what the processes of a group have posted, or some rows of it: their
 * all-reduce and reduce-scatter.  x [R, C], all [N, R, C], flags i64[N, F], number i64[],
 * trouble i64[] -> y [rows, C], rows `first` .. first + rows - 1 of the sum.
 *
 * As collect.  Every process adds in the same order, from process 0 on, floats of 32 and 16 bits
 * in fp32 and rounded once, so that all get the same bits in every run.  Cost: one operation an
 * element and process.
 */
#include "op/posted.h"

/* Attributes after POSTED_KIND. */
enum { FIRST = POSTED_KIND + 1, ROWS };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, POSTED_X);
    const int64_t first = op->attributes[FIRST].i, rows = op->attributes[ROWS].i;
    TRY(posted_expect(cx, g, op));
    CHECK(cx, 0 <= first && first < x->dims[0] && 0 < rows && rows <= x->dims[0] - first,
          MPK_ESHAPE, "collect_sum: %lld rows from %lld on, of %lld", (long long)rows,
          (long long)first, (long long)x->dims[0]);
    shape_like(x, out);
    out->dims[0] = rows;
    return MPK_OK;
}

/* Of `all`: the box's rows of every process. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    posted_reads(g, op, input, read);
    if (input == POSTED_ALL) {
        read->lo[1] = box->lo[0] + op->attributes[FIRST].i;
        read->hi[1] = box->hi[0] + op->attributes[FIRST].i;
    }
}

static bool arrived(const op_call *call, const ir_box *box)
{
    const int64_t first = call->attributes[FIRST].i;
    for (int64_t p = 0; p < call->in[POSTED_ALL].dims[0]; p++)
        if (!posted_rows(call, p, first + box->lo[0], first + box->hi[0]))
            return posted_trouble(call);
    return true;
}

/* Scratch: the sum of a row, and the next process's row. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return 2 * sizeof(float) * (size_t)shape_input(g, op, POSTED_X)->dims[1];
}

/* A row of floats of 32 or 16 bits.  from: its offset in process 0's tensor. */
static void add_floats(const op_view *all, int64_t from, const op_view *y, int64_t to, float *sum)
{
    const int64_t n = y->dims[1];
    float *part = sum + n;
    walk_load_row(all, from, 0, n, sum);
    for (int64_t p = 1; p < all->dims[0]; p++) {
        walk_load_row(all, from + p * all->stride[0], 0, n, part);
        for (int64_t k = 0; k < n; k++)
            sum[k] += part[k];
    }
    walk_store_row(y, to, 0, n, sum);
}

/* A row of f64 or integers, which wrap. */
static void add_wide(const op_view *all, int64_t from, const op_view *y, int64_t to)
{
    for (int64_t k = 0; k < y->dims[1]; k++) {
        const int64_t at = to + k * y->stride[1];
        double sum = 0;
        uint64_t whole = 0;
        for (int64_t p = 0; p < all->dims[0]; p++) {
            const int64_t i = from + p * all->stride[0] + k * all->stride[2];
            if (y->dtype == IR_F64)
                sum = p ? sum + ((const double *)all->data)[i] : ((const double *)all->data)[i];
            else
                whole += (uint64_t)walk_load_int(all, i);
        }
        if (y->dtype == IR_F64)
            ((double *)y->data)[at] = sum;
        else if (y->dtype == IR_I64)
            ((int64_t *)y->data)[at] = (int64_t)whole;
        else
            ((int32_t *)y->data)[at] = (int32_t)(uint32_t)whole;
    }
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *all = &call->in[POSTED_ALL], *y = &call->out[0];
    for (int64_t i = box->lo[0]; i < box->hi[0]; i++) {
        const int64_t from = (call->attributes[FIRST].i + i) * all->stride[1];
        if (1u << y->dtype & SHAPE_FLOAT)
            add_floats(all, from, y, i * y->stride[0], scratch);
        else
            add_wide(all, from, y, i * y->stride[0]);
    }
}

static const op_operand in[] = {{"x", 0}, {"all", 0}, {"flags", 0}, {"number", 0}, {"trouble", 0}},
                        out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("index", INT), SHAPE_NEEDED("kind", INT),
                                          SHAPE_NEEDED("first", INT), SHAPE_NEEDED("rows", INT)};
/* All rows of floats; some rows of 16 bits; f64; integers. */
static const op_case cases[] = {
    {"input %x : f32[7, 32]\ninput %a : f32[2, 7, 32]\ninput %f : i64[2, 9]\ninput %n : "
     "i64[]\ninput %t : i64[]\n%y = collect_sum(%x, %a, %f, %n, %t) {index = 0, kind = 5, first = "
     "0, rows = 7}\n"},
    {"input %x : bf16[6, 3]\ninput %a : bf16[3, 6, 3]\ninput %f : i64[3, 6]\ninput %n : "
     "i64[]\ninput %t : i64[]\n%y = collect_sum(%x, %a, %f, %n, %t) {index = 1, kind = 2, first = "
     "2, rows = 2}\n"},
    {"input %x : f64[2, 5]\ninput %a : f64[3, 2, 5]\ninput %f : i64[3, 2]\ninput %n : "
     "i64[]\ninput %t : i64[]\n%y = collect_sum(%x, %a, %f, %n, %t) {index = 1, kind = 2, first = "
     "0, rows = 2}\n"},
    {"input %x : i32[2, 5]\ninput %a : i32[3, 2, 5]\ninput %f : i64[3, 2]\ninput %n : "
     "i64[]\ninput %t : i64[]\n%y = collect_sum(%x, %a, %f, %n, %t) {index = 1, kind = 2, first = "
     "1, rows = 1}\n"},
};

const op_def op_collect_sum = {
    .name = "collect_sum",
    .summary = "the sum of what the processes of a group have posted, or some rows of it",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_PROCESSES,
    .infer = infer,
    .axes = shape_axes_rows,
    .reads = reads,
    .arrived = arrived,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
