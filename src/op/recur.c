/* recur.c - a value that is carried from step to step: y[i] is an expression of operands at step i
 * and of y[i - 1].  Axis 0 counts the steps.
 *
 * x0 .. of any plain dtype, broadcast to each other as those of map -> their shape, in the dtype
 * that is named; if none is, in that of x0 if it is a float, else f32.  The expression is one of
 * the operator map, of a float; with n operands xn is the value before, rounded to y's dtype.  What
 * there is before step 0 follows from `start`:
 *
 *   "zero"   zeros
 *   "given"  the last operand, a float of any shape that broadcasts to one step; it is xn
 *   "first"  nothing: the first value is that of x0, and the expression begins with step 1
 *
 *   y[i] = decay[i] * y[i - 1] + x[i], from h on:
 *   recur(decay, x, h) {expr = "x0 * x2 + x1", start = "given"}
 *
 * Steps are never cut, so the bits do not depend on the cut.  Idea: up to 64 neighbours walk the
 * steps together.  Cost: that of a map of the same shape; time grows with the number of steps
 * however many workers there are.
 */
#include "op/fill.h"
#include "op/map_program.h"
#include "op/runs.h"
#include "op/walk.h"

/* Attributes, by index. */
enum { EXPRESSION, DTYPE, START };

/* Is the last operand what there is before step 0? */
static bool is_given(const ir_op *op)
{
    return str_is(op->attributes[START].s, "given");
}

/* Operands of the steps. */
static uint32_t count_inputs(const ir_op *op)
{
    return op->n_in - is_given(op);
}

/* Compiling is also the check: a program that compiles can run.  `before` is the dtype of the value
 * before. */
static mpk_status check_expression(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                   ir_dtype before)
{
    map_program program;
    ir_dtype dtypes[IR_MAX_INPUTS];
    const uint32_t n = count_inputs(op);
    CHECK(cx, n < IR_MAX_INPUTS, MPK_EARG, "recur: %u operands, of at most %d", n,
          IR_MAX_INPUTS - 1);
    for (uint32_t i = 0; i < n; i++)
        dtypes[i] = shape_input(g, op, i)->dtype;
    dtypes[n] = before;
    TRY(map_compile(cx, op->attributes[EXPRESSION].s, n + 1, dtypes, &program));
    CHECK(cx, program.steps[program.result].type == MAP_F, MPK_EARG,
          "recur: the value of the expression is not a float of 32 bits");
    return MPK_OK;
}

/* What is before step 0 has the shape of a step, which may be broadcast to the operands' or they to
 * it. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const str name = op->attributes[DTYPE].s, start = op->attributes[START].s;
    CHECK(cx, is_given(op) || str_is(start, "zero") || str_is(start, "first"), MPK_EUNSUPPORTED,
          "recur: start \"%.*s\" is not one of zero, given, first", STR_ARG(start));
    CHECK(cx, count_inputs(op), MPK_EARG, "recur: no operand has steps");
    for (uint32_t i = 0; i < op->n_in; i++) {
        const bool plain = i < count_inputs(op) && (i || !str_is(start, "first"));
        TRY(shape_expect_dtype(cx, g, op, i, plain ? SHAPE_PLAIN : SHAPE_FLOAT));
        TRY(shape_expect_whole(cx, g, op, i));
    }
    out->dtype = shape_input(g, op, 0)->dtype;
    out->dtype = SHAPE_FLOAT >> out->dtype & 1 ? out->dtype : IR_F32;
    CHECK(cx, !name.n || (ir_dtype_from_name(name, &out->dtype) && SHAPE_FLOAT >> out->dtype & 1),
          MPK_EUNSUPPORTED, "recur: dtype \"%.*s\" is not one of f32, f16, bf16", STR_ARG(name));
    TRY(shape_broadcast(cx, g, op, out));
    CHECK(cx, out->rank, MPK_ESHAPE, "recur: operands have rank 0, expected an axis of steps");
    CHECK(cx, !is_given(op) || shape_input(g, op, op->n_in - 1)->rank < out->rank, MPK_ESHAPE,
          "recur: what is before step 0 has rank %u, expected at most %u",
          shape_input(g, op, op->n_in - 1)->rank, out->rank - 1);
    return check_expression(cx, g, op, out->dtype);
}

/* Everywhere but between steps. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    runs_axes(g, op, axes);
    axes[0] = (op_axis){0};
}

/* The operands of a call while neighbours walk their steps; the value before is the last. */
typedef struct walk {
    const op_call *call;
    const map_program *program;
    map_lane *lanes;       /* of the program: its slots */
    float before[MAP_RUN]; /* of n neighbours */
    int64_t n;
} walk;

/* A view of the same tensor that begins with what entry `at` of the result takes from it. */
static op_view view_from(const op_view *x, uint32_t rank, const int64_t *at)
{
    op_view v = *x;
    v.data = (char *)x->data + ir_row_bytes(x->dtype, walk_broadcast(x, rank, at));
    return v;
}

/* Values before step 0, or those of step 0 if they are the first; `at` is there. */
static void begin(walk *w, const int64_t *at)
{
    const op_call *call = w->call;
    const op_view *y = &call->out[0], *from = &call->in[0];
    if (str_is(call->attributes[START].s, "zero")) {
        memset(w->before, 0, sizeof w->before);
        return;
    }
    if (is_given(call->op))
        from = &call->in[call->n_in - 1];
    const int64_t offset = walk_broadcast(from, y->rank, at),
                  stride = y->rank > 1 ? walk_stride(from, y->rank, y->rank - 1) : 0;
    for (int64_t i = 0; i < w->n; i++)
        w->before[i] = op_load(from, offset + i * stride);
}

/* One step: the expression, whose value is rounded when it is stored. */
static void step(walk *w, const int64_t *at)
{
    static const int64_t start[IR_MAX_RANK] = {0};
    const op_call *call = w->call;
    const op_view *y = &call->out[0];
    const uint32_t n = count_inputs(call->op);
    op_view in[IR_MAX_INPUTS];
    for (uint32_t i = 0; i < n; i++)
        in[i] = view_from(&call->in[i], y->rank, at);
    in[n] = (op_view){.data = w->before, .dtype = IR_F32, .rank = 1, .dims = {w->n}, .stride = {1}};
    map_evaluate(w->program, in, y->rank, start, w->n, w->lanes);
    memcpy(w->before, w->lanes[w->program->steps[w->program->result].slot].f,
           (size_t)w->n * sizeof *w->before);
}

/* All steps of n neighbours along the last axis, from `at` on, whose step is 0. */
static void run(walk *w, int64_t *at)
{
    const op_view *y = &w->call->out[0];
    begin(w, at);
    for (at[0] = 0; at[0] < y->dims[0]; at[0]++) {
        if (at[0] || !str_is(w->call->attributes[START].s, "first"))
            step(w, at);
        for (int64_t i = 0; i < w->n && y->dtype != IR_F32; i++)
            w->before[i] = walk_round(y->dtype, w->before[i]);
        walk_store_row(&(op_view){.data = y->data,
                                  .dtype = y->dtype,
                                  .rank = 1,
                                  .stride = {y->rank > 1 ? y->stride[y->rank - 1] : 1}},
                       walk_offset(y, at), 0, w->n, w->before);
    }
    at[0] = 0;
}

/* Scratch: the compiled program and its lanes. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)g, (void)op, (void)box;
    return sizeof(map_program) + MAP_SLOTS * sizeof(map_lane);
}

/* Runs of neighbours, of which a vector of steps has none: it is walked by itself. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *y = &call->out[0];
    map_program *program = scratch;
    walk w = {.call = call, .program = program, .lanes = (void *)(program + 1)};
    ir_dtype dtypes[IR_MAX_INPUTS];
    const uint32_t n = count_inputs(call->op), last = y->rank - 1;
    ir_box lines = *box;
    int64_t at[IR_MAX_RANK];
    for (uint32_t i = 0; i < n; i++)
        dtypes[i] = call->in[i].dtype;
    dtypes[n] = y->dtype;
    if (map_compile(NULL, call->attributes[EXPRESSION].s, n + 1, dtypes, program) != MPK_OK)
        return; /* infer has refused it */
    lines.lo[0] = 0;
    lines.hi[0] = 1;
    memcpy(at, lines.lo, sizeof at);
    do
        for (at[last] = lines.lo[last]; at[last] < lines.hi[last]; at[last] += w.n) {
            w.n = op_clamp(lines.hi[last] - at[last], 1, MAP_RUN);
            run(&w, at);
        }
    while (at[last] = lines.lo[last], walk_next(&lines, last, at));
}

static const op_operand in[] = {{"x", OP_VARIADIC}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("expr", STR), SHAPE_WORD("dtype", ""),
                                          SHAPE_WORD("start", "zero")};
/* Each start; steps that are neighbours, that are rows, of a view; operands without steps; rounding
 * from step to step; a vector; few and many steps. */
static const op_case cases[] = {
    {"input %a : f32[9, 70]\ninput %b : f32[9, 70]\n%y = recur(%a, %b) {expr = \"sigmoid(x0) * x2 "
     "+ x1\"}\n"},
    {"input %a : f32[3, 40, 17, 4]\ninput %b : bf16[17, 1]\ninput %h : f32[3, 1, 4]\n"
     "%t = transpose(%a) {perm = [2, 0, 1, 3]}\n%s = reshape(%b) {shape = [17, 1, 1, 1]}\n"
     "%y = recur(%t, %s, %h) {expr = \"t0 = tanh(x2); x0 * t0 + x1\", start = \"given\"}\n"},
    {"input %a : bf16[33, 2, 24]\ninput %b : f32[2, 24]\n%y = recur(%a, %b) {expr = \"bf16(max(x2, "
     "x0) * 0.5 + x1)\", dtype = \"bf16\", start = \"first\"}\n"},
    {"input %a : f16[130]\ninput %h : f32[]\n%y = recur(%a, %h) {expr = \"x1 * 0.75 + x0\", start "
     "= \"given\"}\n"},
    {"input %a : i32[7, 5]\ninput %m : bool[7, 1]\n%y = recur(%a, %m) {expr = \"where(x1, 0.0, x2 "
     "* 0.5) + sin(f32(x0))\"}\n"},
    {"input %a : f32[5, 16]\ninput %d : bf16[2, 5, 9]\n%p = reshape(%a) {shape = [1, 1, 5, 16]}\n"
     "%e = expand(%p) {shape = [9, 2, 5, 16]}\n%t = transpose(%d) {perm = [2, 0, 1]}\n%s = "
     "reshape(%t) {shape = [9, 2, 5, 1]}\n%y = recur(%e, %s) {expr = \"t0 = exp(min(x0 * x1, 0)); "
     "t0 * x2 + x1\"}\n"},
    {"input %a : f32[1, 8, 72]\n%y = recur(%a) {expr = \"x0 - x1\", dtype = \"f16\"}\n"},
};

const op_def op_recur = {
    .name = "recur",
    .summary = "an expression of a step's operands and of its own value at the step before",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .reads = shape_reads_broadcast,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill_wide_integers,
};
