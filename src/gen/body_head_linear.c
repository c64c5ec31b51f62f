/* body_head_linear.c - bodies of head_linear, products of heads with a weight each: the generic one
 * (device/task/head_linear.cuh), and those whose weights stream through the page ring: of few
 * tokens (head_stream.cuh) and of many (head_tile.cuh).
 *
 * Weights are packed as for linear, head after head, columns padded to chunks of 128; all graphs of
 * a program share them.  An instance of the fast bodies is a row of a table of shapes; of 16 heads
 * of 128 columns, in rows of 192, by 512 rows:
 *
 *   {128, 1, 512, 16, 2, 192, 3072}
 *
 * (each number with its field's name as a comment before it).  Neither operands nor results are
 * carried: x is a range of columns, and so is what readers take of the result. */
#include "gen/body_print.h"
#include "rt/rt_lane.h"
#include "shape/head_shape.h"

enum { X, W };

/* Rows of heads in any places where loads of 16 bytes may begin. */
static bool is_rows(const ir_tensor *x, ir_dtype halves)
{
    return x->dtype == halves && x->offset % 8 == 0 && x->dims[2] % 8 == 0 &&
           (x->dims[2] == 1 || x->stride[2] == 1) && (x->dims[1] == 1 || x->stride[1] % 8 == 0) &&
           (x->dims[0] == 1 || x->stride[0] % 8 == 0) && x->stride[0] <= INT32_MAX &&
           x->stride[1] <= INT32_MAX && x->stride[0] >= 0 && x->stride[1] >= 0;
}

/* Many tokens, of any width. */
static bool accepts_many(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *w = gen_input(c, W), *y = gen_output(c, 0);
    return is_rows(x, c->halves) && gen_is_streamed(w, c->halves) && gen_is_dense(y, c->halves) &&
           w->dims[1] % 8 == 0 && w->dims[1] <= INT32_MAX && x->dims[2] <= INT32_MAX / 2 &&
           y->dims[0] > HEAD_FEW_TOKENS && y->dims[0] <= INT32_MAX / 2;
}

/* As many, of a width whose chunks have room in a page. */
static bool accepts_few(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *w = gen_input(c, W), *y = gen_output(c, 0);
    return is_rows(x, c->halves) && gen_is_streamed(w, c->halves) && gen_is_dense(y, c->halves) &&
           w->dims[1] % 8 == 0 && w->dims[1] <= INT32_MAX && x->dims[2] <= HEAD_FEW_COLUMNS &&
           y->dims[0] <= HEAD_FEW_TOKENS;
}

/* The heads' rows one after the other. */
static void pack(const gen_call *c, gen_pack *out)
{
    const ir_tensor *w = gen_input(c, W);
    *out = (gen_pack){.n_weights = 1,
                      .dtype = c->halves,
                      .w = {c->op->in[W], IR_NONE},
                      .scale = IR_NONE,
                      .shift = IR_NONE,
                      .order = GEN_ROWS,
                      .rows = w->dims[0] * w->dims[1],
                      .columns = w->dims[2]};
    gen_pad_pack(out, 8, HEAD_CHUNK);
}

static mpk_status print_shape(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx, (void)n;
    const ir_tensor *x = gen_input(c, X), *y = gen_output(c, 0);
    const head_shape s = {
        .columns = (int)x->dims[2],
        .chunks = (int)((x->dims[2] + HEAD_CHUNK - 1) / HEAD_CHUNK),
        .rows = (int)y->dims[2],
        .heads = (int)y->dims[1],
        .y = (int)gen_operand_of_output(c->op, 0),
        .x_head = (int)x->stride[1],
        .x_token = (int)x->stride[0],
    };
#define PRINT_INT(name) gen_print_field(#name, &s.name, 1, out);
    text_print(out, "{");
    HEAD_SHAPE_FIELDS(PRINT_INT)
    text_print(out, "}");
    return MPK_OK;
}

static const gen_routine *few_routine(const gen_call *c)
{
    static const gen_routine few = {"head_shape", "head_stream", "head_stream_load"};
    (void)c;
    return &few;
}

static const gen_routine *many_routine(const gen_call *c)
{
    static const gen_routine many = {"head_shape", "head_tile", "head_tile_load"};
    (void)c;
    return &many;
}

static uint32_t few_scratch(const gen_call *c)
{
    (void)c;
    return HEAD_FEW_SCRATCH;
}

static uint32_t many_scratch(const gen_call *c)
{
    (void)c;
    return HEAD_TILE_SCRATCH;
}

GEN_PRINTER(generic, "head_linear_run", "")

const gen_body gen_body_head_linear = GEN_BODY("head_linear", "head_linear", print_generic, NULL);
const gen_body gen_body_head_stream = {.op = "head_linear",
                                       .name = "head_stream",
                                       .needs = GEN_RING,
                                       .rank = 10,
                                       .loads = true,
                                       .waits = true,
                                       .accepts = accepts_few,
                                       .print = print_shape,
                                       .routine = few_routine,
                                       .pack = pack,
                                       .scratch_bytes = few_scratch};
const gen_body gen_body_head_tile = {.op = "head_linear",
                                     .name = "head_tile",
                                     .needs = GEN_RING,
                                     .rank = 10,
                                     .many = GEN_MANY_HEADS,
                                     .loads = true,
                                     .waits = true,
                                     .accepts = accepts_many,
                                     .print = print_shape,
                                     .routine = many_routine,
                                     .pack = pack,
                                     .scratch_bytes = many_scratch};
