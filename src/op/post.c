/* post.c - write a tensor where other processes read it.  x [R, C], number i64[] -> y like x,
 * flags i64[R].
 *
 * y and flags are bound to memory that the processes of a group share: y is this process's place in
 * `all` of collect, flags its row there.  A row's flag is stored, with release, after the row
 * (op/posted.h).  after: what is computed from it is not used; the exchange before this one has
 * ended when it is there.  Cost: one copy.
 */
#include "op/posted.h"

/* Inputs, by index. */
enum { X, NUMBER, AFTER };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    const int64_t plain[2] = {SHAPE_FREE, SHAPE_FREE};
    TRY(shape_expect(cx, g, op, X, POSTED_DTYPES, 2, plain));
    TRY(shape_expect_whole(cx, g, op, X));
    TRY(shape_expect(cx, g, op, NUMBER, SHAPE_I64, 0, plain));
    shape_like(x, &out[0]);
    out[1].dtype = IR_I64;
    out[1].live = IR_ALL;
    out[1].rank = 1;
    out[1].dims[0] = x->dims[0];
    return MPK_OK;
}

/* The box's rows of x, all of the others. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = input == X ? *box : ir_box_whole(shape_input(g, op, input));
}

/* The flags of the box's rows. */
static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    (void)g, (void)op, (void)output;
    *written = (ir_box){.lo = {box->lo[0]}, .hi = {box->hi[0]}};
}

/* Each row, then its flag: a process that sees the flag sees the row. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[X], *y = &call->out[0], *flags = &call->out[1];
    const int64_t flag = posted_flag(call, *(const int64_t *)call->in[NUMBER].data);
    for (int64_t i = box->lo[0]; i < box->hi[0]; i++) {
        walk_copy(y, i * y->stride[0], y->stride[1], x, i * x->stride[0], x->stride[1], y->dims[1]);
        atomic_store_explicit((_Atomic int64_t *)flags->data + i * flags->stride[0], flag,
                              memory_order_release);
    }
}

static const op_operand in[] = {{"x", 0}, {"number", 0}, {"after", OP_OPTIONAL}},
                        out[] = {{"y", 0}, {"flags", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("index", INT), SHAPE_NEEDED("kind", INT)};
static const op_case cases[] = {
    {"input %x : f32[7, 320]\ninput %n : i64[]\n%y, %f = post(%x, %n) {index = 0, kind = 5}\n"},
    {"input %x : bf16[5, 3]\ninput %n : i64[]\ninput %a : i32[2]\n%y, %f = post(%x, %n, %a) "
     "{index = 3, kind = 1}\n"},
};

const op_def op_post = {
    .name = "post",
    .summary = "write a tensor where other processes read it",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_PROCESSES,
    .infer = infer,
    .axes = shape_axes_rows,
    .reads = reads,
    .writes = writes,
    .ref = ref,
    OP_CASES(cases),
};
