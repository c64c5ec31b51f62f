/* body_rows_warp.c - norms and softmax of rows of floats by a warp each
 * (device/task/rows_warp.cuh).
 *
 * A lane keeps its pieces of a row in registers, so a row is read once; ROWS_MOST entries are what
 * they hold.  Longer rows take the generic bodies of body_rows.c. */
#include <stdio.h>

#include "gen/body_print.h"
#include "shape/rows_shape.h"

/* Rows of up to PAIR_PIECES pieces are made two at a time in operators of PAIR_ROWS rows and more:
 * some twenty for each worker of a large GPU. */
enum { PAIR_PIECES = 2, PAIR_ROWS = 2560 };

/* What a lane can widen to fp32 without losing bits. */
static bool is_short_float(ir_dtype dtype)
{
    return dtype == IR_F32 || dtype == IR_F16 || dtype == IR_BF16;
}

/* Absent, or neighbours of such a float. */
static bool is_line(const ir_tensor *t)
{
    return !t ||
           (is_short_float(t->dtype) && (t->stride[t->rank - 1] == 1 || t->dims[t->rank - 1] == 1));
}

/* Operators whose input 0 is x, whose other inputs are vectors along its last axis. */
static bool accepts_norm(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, 0);
    bool fit = gen_accepts_plain(c) && x->rank >= 2 && x->dims[x->rank - 1] <= ROWS_MOST &&
               is_line(gen_output(c, 0));
    for (uint32_t i = 0; i < c->op->n_in; i++)
        fit = fit && is_line(gen_input(c, i));
    return fit;
}

/* Along the last axis only. */
static bool accepts_softmax(const gen_call *c)
{
    const int64_t axis = c->op->attributes[0].i;
    return accepts_norm(c) && (axis == -1 || axis == (int64_t)gen_input(c, 0)->rank - 1);
}

/* "softmax_warp<3, 1>": the pieces that a lane has of a row, and the rows that a warp makes at a
 * time.  Two cost code, which a task of few rows runs once and from L2. */
static void print_name(const gen_call *c, const char *name, char *out, size_t size)
{
    const ir_tensor *x = gen_input(c, 0);
    const int64_t width = x->dims[x->rank - 1], all = 32 * ROWS_PIECE,
                  pieces = (width + all - 1) / all;
    const bool two = pieces <= PAIR_PIECES && width && ir_elements(x) / width >= PAIR_ROWS;
    snprintf(out, size, "%s_warp<%d, %d>", name, (int)pieces, two ? 2 : 1);
}

/* rms_norm and layer_norm: "d0" is epsilon. */
static mpk_status print_norm(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    char name[64];
    (void)cx;
    print_name(c, c->op->def->name, name, sizeof name);
    gen_print_simple(c, n, name, "d0", out);
    return MPK_OK;
}

/* softmax and log_softmax are one function, whose last argument tells them apart. */
static mpk_status print_softmax(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    char name[64];
    (void)cx;
    print_name(c, "softmax", name, sizeof name);
    gen_print_head(c, n, out);
    gen_print_call(c, name, out);
    text_print(out, ", %s);\n}\n", strcmp(c->op->def->name, "log_softmax") == 0 ? "true" : "false");
    return MPK_OK;
}

/* Rank 5: above the generic bodies, which take the rows that these refuse. */
#define RECORD(operator, accept, printer)                                                   \
    {                                                                                       \
        .op = operator, .name = "rows_warp", .rank = 5, .accepts = accept, .print = printer \
    }
const gen_body gen_body_rms_norm_warp = RECORD("rms_norm", accepts_norm, print_norm);
const gen_body gen_body_layer_norm_warp = RECORD("layer_norm", accepts_norm, print_norm);
const gen_body gen_body_softmax_warp = RECORD("softmax", accepts_softmax, print_softmax);
const gen_body gen_body_log_softmax_warp = RECORD("log_softmax", accepts_softmax, print_softmax);
