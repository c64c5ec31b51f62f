/* body_delta.c - delta_rule by the warps of a worker: token by token (device/task/delta_warp.cuh),
 * and by chunks of neighbouring tokens (delta_chunk.cuh) in programs of many tokens.
 *
 * Their shape (delta_shape) is data, so programs for all numbers of tokens share their code; here
 * of Qwen3.5-9B, whose a and b lie in the rows of one product with z:
 *
 *   {128, 128, 32, 16, 16, 8192, 8192, 8192, 4160, 4160, 4096, 0, 1, 0, 1e-06f}
 *
 * It is a row of a table for chunks, and a constant of an instance of the other body, which is a
 * function of its own (why: body_conv_runs.c). */
#include "gen/body_print.h"
#include "gen/map_print.h"
#include "shape/delta_shape.h"
#include "shape/rows_shape.h"

/* Attributes of delta_rule, by index. */
enum { EPS, TILED, CHUNKS };
enum { FEW_TOKENS = 64, WIDTH = 16 };

/* Rows of q and k whose heads are pieces of eight neighbours; v, a, b and y of the same dtype;
 * rows short enough for 32 bits. */
static bool accepts_warp(const gen_call *c)
{
    const ir_tensor *q = gen_input(c, DELTA_Q), *y = gen_output(c, 0),
                    *state = gen_input(c, DELTA_STATE);
    bool fit = gen_accepts_plain(c) && gen_is_short_float(q) && state->dims[2] % ROWS_PIECE == 0 &&
               gen_is_dense(state, IR_F32) && y->dtype == q->dtype && y->stride[1] == 1 &&
               y->stride[0] <= INT32_MAX && y->dims[0] <= INT32_MAX / 2;
    for (uint32_t i = DELTA_Q; i <= DELTA_K; i++)
        fit = fit && gen_is_whole_of_eights(gen_input(c, i), q->dims[1]);
    for (uint32_t i = DELTA_Q; i <= DELTA_B; i++) {
        const ir_tensor *x = gen_input(c, i);
        fit = fit && x->dtype == q->dtype && (x->dims[1] == 1 || x->stride[1] == 1) &&
              x->stride[0] <= INT32_MAX;
    }
    return fit && gen_is_vector(gen_input(c, DELTA_LOG), q->dtype) &&
           gen_is_vector(gen_input(c, DELTA_BIAS), q->dtype) &&
           gen_is_dense(gen_input(c, DELTA_POSITIONS), IR_I32) &&
           gen_is_dense(gen_input(c, DELTA_SLOTS), IR_I32);
}

/* Many tokens of bf16, heads of 64 or 128 keys, columns by sixteens whose rows of v and y are
 * pieces of eight; where the program lets chunks change last bits. */
static bool accepts_chunk(const gen_call *c)
{
    const ir_tensor *v = gen_input(c, DELTA_V), *y = gen_output(c, 0);
    const int64_t keys = gen_input(c, DELTA_STATE)->dims[2], heads = gen_input(c, DELTA_A)->dims[1];
    return accepts_warp(c) && c->op->attributes[CHUNKS].i && v->dtype == IR_BF16 &&
           y->dims[0] > FEW_TOKENS && (keys == 64 || keys == 128) &&
           v->dims[1] / heads % WIDTH == 0 && gen_is_whole_of_eights(v, v->dims[1]) &&
           gen_is_whole_of_eights(y, y->dims[1]);
}

/* The initializer of a delta_shape. */
static mpk_status print_shape(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx, (void)n;
    const ir_tensor *state = gen_input(c, DELTA_STATE), *v = gen_input(c, DELTA_V);
    const int64_t heads = gen_input(c, DELTA_A)->dims[1], keys = state->dims[2];
    text_print(out, "{%lld, %lld, %lld, %lld, %lld, ", (long long)keys,
               (long long)(v->dims[1] / heads), (long long)heads,
               (long long)(gen_input(c, DELTA_Q)->dims[1] / keys), (long long)state->dims[0]);
    for (uint32_t i = DELTA_Q; i <= DELTA_B; i++)
        text_print(out, "%lld, ", (long long)gen_input(c, i)->stride[0]);
    text_print(out, "%lld, %d, %d, %d, ", (long long)gen_output(c, 0)->stride[0],
               c->op->attributes[TILED].i != 0, gen_input(c, DELTA_LOG)->dtype == IR_F32,
               gen_input(c, DELTA_BIAS)->dtype == IR_F32);
    gen_print_float((float)c->op->attributes[EPS].f, out);
    text_print(out, "}");
    return MPK_OK;
}

/* A function for the dtype, and for the pieces that a lane of eight has of a row of keys. */
static mpk_status print_warp(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const int64_t keys = gen_input(c, DELTA_STATE)->dims[2];
    text_print(
        out,
        "MPK_FN void body_%u(const mpk_task &t)\n{\n    static constexpr delta_shape shape = ", n);
    TRY(print_shape(cx, c, n, out));
    text_print(out, ";\n    delta_warp<%s, %d>(t, shape);\n}\n",
               gen_dtype_name(gen_input(c, DELTA_Q)->dtype),
               (int)((keys + DELTA_LANES * ROWS_PIECE - 1) / (DELTA_LANES * ROWS_PIECE)));
    return MPK_OK;
}

static const gen_routine *chunk_routine(const gen_call *c)
{
    static const gen_routine routines[] = {{"delta_shape", "delta_chunk<64>", NULL},
                                           {"delta_shape", "delta_chunk<128>", NULL}};
    return &routines[gen_input(c, DELTA_STATE)->dims[2] == 128];
}

static uint32_t chunk_scratch(const gen_call *c)
{
    return DELTA_SCRATCH_BYTES((uint32_t)gen_input(c, DELTA_STATE)->dims[2]);
}

const gen_body gen_body_delta_warp = {.op = "delta_rule",
                                      .name = "delta_warp",
                                      .rank = 1,
                                      .accepts = accepts_warp,
                                      .print = print_warp};
const gen_body gen_body_delta_chunk = {.op = "delta_rule",
                                       .name = "delta_chunk",
                                       .needs = GEN_ROOM,
                                       .rank = 2,
                                       .many = GEN_MANY_ROWS,
                                       .accepts = accepts_chunk,
                                       .print = print_shape,
                                       .routine = chunk_routine,
                                       .scratch_bytes = chunk_scratch};
