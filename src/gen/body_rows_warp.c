/* body_rows_warp.c - norms and softmax of rows of floats by a warp each, of short rows by a part of
 * a warp, of long rows by all warps of the worker (device/task/rows_warp.cuh).
 *
 * A lane keeps its pieces of a row in registers, so a row is read once; ROWS_MOST entries are what
 * those of a warp hold, ROWS_LONG those of all.  Longer rows take the generic bodies of
 * body_rows.c. */
#include <stdio.h>

#include "gen/body_print.h"
#include "shape/rows_shape.h"

/* Rows of up to PAIR_PIECES pieces are made two at a time in operators of PAIR_ROWS rows and more:
 * some twenty for each worker of a large GPU. */
enum { PAIR_PIECES = 2, PAIR_ROWS = 2560 };

/* Pieces of a lane at most where a row has a part of a warp, ROWS_KEPT of the device's; and of 16
 * bits, ROWS_THIN, where they are the row without a rest. */
enum { PART_PIECES = 3, THIN_PIECES = 5 };

/* Absent, or neighbours of such a float. */
static bool is_line(const ir_tensor *t)
{
    return !t ||
           (gen_is_short_float(t) && (t->stride[t->rank - 1] == 1 || t->dims[t->rank - 1] == 1));
}

/* Operators of x whose other inputs are vectors along its last axis, or like x. */
static bool accepts_norm(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, 0);
    bool fit = gen_accepts_plain(c) && x->rank >= 2 && x->dims[x->rank - 1] <= ROWS_LONG &&
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

/* Two vectors along parts of the last axis. */
static bool accepts_parts(const gen_call *c)
{
    bool fit = gen_accepts_plain(c) && is_line(gen_output(c, 0));
    for (uint32_t i = 0; i < c->op->n_in; i++)
        fit = fit && is_line(gen_input(c, i)) && (!i || gen_input(c, i)->dims[0] <= ROWS_LONG);
    return fit;
}

/* Entries of the longest row that is normalised. */
static int64_t width_of(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, 0);
    int64_t width = 0;
    if (strcmp(c->op->def->name, "rms_norm_parts") != 0)
        return x->dims[x->rank - 1];
    for (uint32_t i = 1; i <= 2; i++)
        if (gen_input(c, i)->dims[0] > width)
            width = gen_input(c, i)->dims[0];
    return width;
}

/* Threads that share a row.  To find a row and to add up what its lanes have takes as long for few
 * entries as for many.  So a short row gets as few lanes as PART_PIECES pieces each allow, and a
 * warp several such rows. */
static int64_t lanes_of(const gen_call *c)
{
    const int64_t width = width_of(c);
    bool thin = true;
    for (uint32_t i = 0; i < c->op->n_in; i++)
        thin = thin && (!gen_input(c, i) || gen_input(c, i)->dtype != IR_F32);
    for (int64_t lanes = 8; lanes < 32; lanes *= 2)
        if (width <= lanes * PART_PIECES * ROWS_PIECE ||
            (thin && width == lanes * THIN_PIECES * ROWS_PIECE))
            return lanes;
    return width > ROWS_MOST ? GEN_BODY_THREADS : 32;
}

/* Warps that share a row exchange what they have of its sums. */
static uint32_t scratch_bytes(const gen_call *c)
{
    return lanes_of(c) > 32 ? gen_scratch_reduce(c) : 0;
}

/* "softmax_rows<3, 1, 32>": the pieces that a lane has of a row, the rows that are made at a time,
 * the lanes of a row.  Two rows cost code, which a task of few rows runs once and from L2. */
static void print_name(const gen_call *c, const char *name, char *out, size_t size)
{
    const ir_tensor *x = gen_input(c, 0);
    const int64_t width = width_of(c), lanes = lanes_of(c), all = lanes * ROWS_PIECE,
                  pieces = (width + all - 1) / all, row = x->dims[x->rank - 1];
    const bool two =
        lanes <= 32 && pieces <= PAIR_PIECES && row && ir_elements(x) / row >= PAIR_ROWS;
    snprintf(out, size, "%s_rows<%d, %d, %d>", name, (int)pieces, two ? 2 : 1, (int)lanes);
}

/* Norms, whose one attribute is epsilon.  The task says which rows there are. */
static mpk_status print_norm(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    char name[64];
    (void)cx;
    print_name(c, c->op->def->name, name, sizeof name);
    gen_print_head_of_rows(c, n, out);
    gen_print_call(c, name, out);
    text_print(out, ", ");
    gen_print_double(c->op->attributes[0].f, out);
    text_print(out, ");\n}\n");
    return MPK_OK;
}

/* softmax and log_softmax are one function, whose last argument tells them apart. */
static mpk_status print_softmax(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    char name[64];
    (void)cx;
    print_name(c, "softmax", name, sizeof name);
    gen_print_head_of_rows(c, n, out);
    gen_print_call(c, name, out);
    text_print(out, ", %s);\n}\n", strcmp(c->op->def->name, "log_softmax") == 0 ? "true" : "false");
    return MPK_OK;
}

/* Rank 5: above the generic bodies, which take the rows that these refuse. */
#define RECORD(operator, accept, printer)                                                    \
    {                                                                                        \
        .op = operator, .name = "rows_warp", .rank = 5, .accepts = accept, .print = printer, \
        .scratch_bytes = scratch_bytes                                                       \
    }
const gen_body gen_body_rms_norm_warp = RECORD("rms_norm", accepts_norm, print_norm);
const gen_body gen_body_rms_norm_parts_warp = RECORD("rms_norm_parts", accepts_parts, print_norm);
const gen_body gen_body_layer_norm_warp = RECORD("layer_norm", accepts_norm, print_norm);
const gen_body gen_body_softmax_warp = RECORD("softmax", accepts_softmax, print_softmax);
const gen_body gen_body_log_softmax_warp = RECORD("log_softmax", accepts_softmax, print_softmax);
