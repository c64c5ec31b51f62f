/* collect.c - what the processes of a group have posted, one after the other: their all-gather.
 * x [R, C], all [N, R, C], flags i64[N, F], number i64[], trouble i64[] -> y [N R, C].
 *
 * x is what this process has posted, `all` and flags what all N have (op/posted.h).  A task waits
 * until the rows that it copies have been posted with this exchange's number and kind, or until
 * trouble is not 0: then y has no meaning, and the caller, who has set it, drops it.  Cost: one
 * copy.
 */
#include "op/posted.h"

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *all = shape_input(g, op, POSTED_ALL);
    TRY(posted_expect(cx, g, op));
    shape_like(shape_input(g, op, POSTED_X), out);
    CHECK(cx, !__builtin_mul_overflow(all->dims[0], all->dims[1], &out->dims[0]), MPK_ESHAPE,
          "collect: %lld processes with %lld rows each", (long long)all->dims[0],
          (long long)all->dims[1]);
    return MPK_OK;
}

/* Of `all`: the rows of one process, or of several whole ones. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    posted_reads(g, op, input, read);
    if (input != POSTED_ALL)
        return;
    const int64_t rows = shape_input(g, op, POSTED_ALL)->dims[1], last = box->hi[0] - 1;
    read->lo[0] = box->lo[0] / rows;
    read->hi[0] = last / rows + 1;
    if (read->hi[0] == read->lo[0] + 1) {
        read->lo[1] = box->lo[0] % rows;
        read->hi[1] = last % rows + 1;
    }
}

static bool arrived(const op_call *call, const ir_box *box)
{
    const int64_t rows = call->in[POSTED_ALL].dims[1];
    for (int64_t i = box->lo[0]; i < box->hi[0]; i++)
        if (!posted_rows(call, i / rows, i % rows, i % rows + 1))
            return posted_trouble(call);
    return true;
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *all = &call->in[POSTED_ALL], *y = &call->out[0];
    for (int64_t i = box->lo[0]; i < box->hi[0]; i++) {
        const int64_t p = i / all->dims[1], row = i % all->dims[1];
        walk_copy(y, i * y->stride[0], y->stride[1], all, p * all->stride[0] + row * all->stride[1],
                  all->stride[2], y->dims[1]);
    }
}

static const op_operand in[] = {{"x", 0}, {"all", 0}, {"flags", 0}, {"number", 0}, {"trouble", 0}},
                        out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("index", INT), SHAPE_NEEDED("kind", INT)};
static const op_case cases[] = {
    {"input %x : f32[7, 32]\ninput %a : f32[2, 7, 32]\ninput %f : i64[2, 9]\ninput %n : "
     "i64[]\ninput %t : i64[]\n%y = collect(%x, %a, %f, %n, %t) {index = 0, kind = 5}\n"},
    {"input %x : bf16[1, 3]\ninput %a : bf16[3, 1, 3]\ninput %f : i64[3, 1]\ninput %n : "
     "i64[]\ninput %t : i64[]\n%y = collect(%x, %a, %f, %n, %t) {index = 2, kind = 9}\n"},
};

const op_def op_collect = {
    .name = "collect",
    .summary = "what the processes of a group have posted, one after the other",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_PROCESSES,
    .infer = infer,
    .axes = shape_axes_rows,
    .reads = reads,
    .arrived = arrived,
    .ref = ref,
    OP_CASES(cases),
};
