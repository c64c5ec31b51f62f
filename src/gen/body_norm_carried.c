/* body_norm_carried.c - norms between products of few or some tokens, which may poll what they read
 * (device/task/norm_carried.cuh).
 *
 * Steps of more tokens have no carried operands; their norms are those of body_rows_warp.c.  An
 * instance names columns, vectors and their dtypes, the operands of residual and result, and
 * epsilon, so graphs of all sizes share it:
 *
 *   MPK_FN void body_6(const mpk_task &t)
 *   {
 *       norm_carried<2, false>(t, 4096, {1, MPK_BF16}, {-1, 0}, 2, 3, 9.99999975e-06f);
 *   } */
#include "gen/body_print.h"
#include "shape/rows_shape.h"

enum { FEW_TOKENS = 16, SOME_TOKENS = 256 };

/* Inputs, by index; the second and third of rms_norm_parts are its two weights, of layer_norm
 * weight and bias. */
enum { X, FIRST, SECOND, GATE };

static bool is(const gen_call *c, const char *name)
{
    return strcmp(c->op->def->name, name) == 0;
}

/* Absent, or a vector that is read in pieces of 16 bytes. */
static bool is_vector(const ir_tensor *t)
{
    return !t || (t->rank == 1 && (gen_is_dense(t, IR_BF16) || gen_is_dense(t, IR_F32)));
}

/* Rows of bf16, one after the other, of whole pieces. */
static bool is_rows(const ir_tensor *t)
{
    return t->rank == 2 && gen_is_dense(t, IR_BF16) && t->dims[1] % ROWS_PIECE == 0 &&
           ir_elements(t) < INT32_MAX;
}

/* The residual of rms_norm; NULL if there is none. */
static const ir_tensor *residual_of(const gen_call *c)
{
    return is(c, "rms_norm") ? gen_input(c, SECOND) : NULL;
}

static bool accepts(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *residual = residual_of(c);
    return x->dims[0] <= SOME_TOKENS && is_rows(x) && is_rows(gen_output(c, 0)) &&
           x->dims[1] <= ROWS_CARRIED && !gen_input(c, GATE) && is_vector(gen_input(c, FIRST)) &&
           (residual ? is_rows(residual) : !is(c, "layer_norm") || is_vector(gen_input(c, SECOND)));
}

/* Both parts, and what follows them, are whole pieces. */
static bool accepts_parts(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *first = gen_input(c, FIRST),
                    *second = gen_input(c, SECOND);
    return x->dims[0] <= SOME_TOKENS && is_rows(x) && is_rows(gen_output(c, 0)) &&
           is_vector(first) && is_vector(second) && first->dims[0] % ROWS_PIECE == 0 &&
           second->dims[0] % ROWS_PIECE == 0 && first->dims[0] <= ROWS_CARRIED &&
           second->dims[0] <= ROWS_CARRIED &&
           x->dims[1] - first->dims[0] - second->dims[0] <= ROWS_CARRIED;
}

/* Pieces that each thread has of so many entries; an array of none is not allowed. */
static int pieces_of(int64_t entries)
{
    const int64_t all = GEN_BODY_THREADS * ROWS_PIECE;
    return entries > all ? (int)((entries + all - 1) / all) : 1;
}

static void print_vector(const gen_call *c, uint32_t input, text *out)
{
    const ir_tensor *v = gen_input(c, input);
    if (v)
        text_print(out, ", {%u, %s}", gen_operand_of_input(c->op, input),
                   v->dtype == IR_F32 ? "MPK_F32" : "MPK_BF16");
    else
        text_print(out, ", {-1, 0}");
}

static void print_end(const gen_call *c, text *out)
{
    text_print(out, ", ");
    gen_print_float((float)c->op->attributes[0].f, out);
    text_print(out, ");\n}\n");
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const bool centred = is(c, "layer_norm");
    const int64_t columns = gen_input(c, X)->dims[1];
    (void)cx;
    text_print(out, "MPK_FN void body_%u(const mpk_task &t)\n{\n    norm_carried<%d, %s>(t, %lld",
               n, pieces_of(columns), centred ? "true" : "false", (long long)columns);
    print_vector(c, FIRST, out);
    if (centred)
        print_vector(c, SECOND, out);
    else
        text_print(out, ", {-1, 0}");
    text_print(out, ", %d, %u", residual_of(c) ? (int)gen_operand_of_input(c->op, SECOND) : -1,
               gen_operand_of_output(c->op, 0));
    print_end(c, out);
    return MPK_OK;
}

static mpk_status print_parts(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const int64_t columns = gen_input(c, X)->dims[1], n0 = gen_input(c, FIRST)->dims[0],
                  n1 = gen_input(c, SECOND)->dims[0];
    (void)cx;
    text_print(out,
               "MPK_FN void body_%u(const mpk_task &t)\n{\n    norm_parts_carried<%d, %d, %d>(t, "
               "%lld, %lld, %lld",
               n, pieces_of(n0), pieces_of(n1), pieces_of(columns - n0 - n1), (long long)columns,
               (long long)n0, (long long)n1);
    print_vector(c, FIRST, out);
    print_vector(c, SECOND, out);
    print_end(c, out);
    return MPK_OK;
}

/* Of more than a few tokens the body stands in the unit of the products beside it.  Where those are
 * for many tokens nothing is carried, but the worker of a step stays in their unit.  A call is one
 * unit, and rows_warp makes several of its rows at a time. */
static bool is_some(const gen_call *c)
{
    return gen_input(c, X)->dims[0] > FEW_TOKENS && !gen_follows_many(c);
}
static bool is_many(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X);
    return x->dims[0] > FEW_TOKENS && x->live == IR_TOKENS && gen_follows_many(c);
}
static bool accepts_few(const gen_call *c)
{
    return gen_input(c, X)->dims[0] <= FEW_TOKENS && accepts(c);
}
static bool accepts_some(const gen_call *c)
{
    return accepts(c) && is_some(c);
}
static bool accepts_many(const gen_call *c)
{
    return accepts(c) && is_many(c);
}
static bool accepts_few_parts(const gen_call *c)
{
    return gen_input(c, X)->dims[0] <= FEW_TOKENS && accepts_parts(c);
}
static bool accepts_some_parts(const gen_call *c)
{
    return accepts_parts(c) && is_some(c);
}
static bool accepts_many_parts(const gen_call *c)
{
    return accepts_parts(c) && is_many(c);
}

#define RECORD(operator, accept, printer, polled, ...)                                        \
    {                                                                                         \
        .op = operator, .name = "norm_carried", .needs = GEN_RING, .rank = 20, .waits = true, \
        .carries = polled, .accepts = accept, .print = printer,                               \
        .scratch_bytes = gen_scratch_reduce, __VA_ARGS__                                      \
    }
enum { OF_RMS_NORM = 1 << X | 1 << SECOND, OF_X = 1 << X };
const gen_body gen_body_rms_norm_few = RECORD("rms_norm", accepts_few, print, OF_RMS_NORM);
const gen_body gen_body_rms_norm_some =
    RECORD("rms_norm", accepts_some, print, OF_RMS_NORM, .some = true);
const gen_body gen_body_rms_norm_many =
    RECORD("rms_norm", accepts_many, print, OF_RMS_NORM, .many = GEN_MANY_HEADS);
const gen_body gen_body_layer_norm_few = RECORD("layer_norm", accepts_few, print, OF_X);
const gen_body gen_body_layer_norm_some =
    RECORD("layer_norm", accepts_some, print, OF_X, .some = true);
const gen_body gen_body_layer_norm_many =
    RECORD("layer_norm", accepts_many, print, OF_X, .many = GEN_MANY_HEADS);
const gen_body gen_body_rms_norm_parts_few =
    RECORD("rms_norm_parts", accepts_few_parts, print_parts, OF_X);
const gen_body gen_body_rms_norm_parts_some =
    RECORD("rms_norm_parts", accepts_some_parts, print_parts, OF_X, .some = true);
const gen_body gen_body_rms_norm_parts_many =
    RECORD("rms_norm_parts", accepts_many_parts, print_parts, OF_X, .many = GEN_MANY_HEADS);
