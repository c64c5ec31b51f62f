/* body_latent_rows.c - queries of latent attention joined and rotated, latents normalised and
 * cached (device/task/latent_rows.cuh).
 *
 * For rows of 16 bits in whole eights; others have the generic body (body_attention.c).  An
 * instance is a function; of 64 tokens of DeepSeek-V2-Lite
 *
 *   static constexpr latent_rows_shape shape = {16, 512, 32, 8192, 512, 3072, 192, 576, ...};
 *   latent_rows<MPK_BF16, 2>(t, shape);
 *
 * (each number with its field's name as a comment before it).  It is no routine, which would stand
 * within the worker's own function (body_conv_runs.c). */
#include "gen/body_print.h"
#include "gen/map_print.h"
#include "shape/latent_rows_shape.h"

enum { EPS };
enum { EIGHT = GEN_EIGHT, LANES = 32 };

/* Rows of eights of this dtype, at most 2^31 elements apart. */
static bool has_rows(const ir_tensor *t, ir_dtype dtype)
{
    bool near = true;
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        near = near && t->stride[i] >= 0 && t->stride[i] <= INT32_MAX;
    return near && t->dtype == dtype && gen_is_whole_of_eights(t, t->dims[t->rank - 1]);
}

/* Places in the cache are numbered in 32 bits, and those of all tokens have room in scratch. */
static bool accepts(const gen_call *c)
{
    enum { MOST_TOKENS = 16384 };
    const ir_tensor *plain = gen_input(c, LATENT_ROWS_PLAIN), *q = gen_input(c, LATENT_ROWS_Q),
                    *table = gen_input(c, LATENT_ROWS_TABLE),
                    *norm = gen_input(c, LATENT_ROWS_NORM),
                    *cache = gen_input(c, LATENT_ROWS_CACHE);
    const ir_dtype dtype = plain->dtype;
    bool fit = dtype == IR_BF16 || dtype == IR_F16;
    for (uint32_t i = LATENT_ROWS_PLAIN; i <= LATENT_ROWS_KEY; i++)
        fit = fit && has_rows(gen_input(c, i), dtype);
    for (uint32_t i = LATENT_ROWS_POSITIONS; i <= LATENT_ROWS_PAGES; i++)
        fit = fit && gen_is_dense(gen_input(c, i), IR_I32);
    return fit && gen_is_dense(table, IR_F32) && gen_is_dense(cache, dtype) &&
           gen_is_dense(gen_output(c, 0), dtype) &&
           (gen_is_dense(norm, dtype) || gen_is_dense(norm, IR_F32)) &&
           plain->dims[2] <= LATENT_ROWS_MOST && q->dims[2] == 2 * table->dims[2] &&
           table->dims[2] % EIGHT == 0 && table->dims[2] <= LATENT_ROWS_MOST_PAIRS &&
           plain->dims[0] <= MOST_TOKENS && plain->dims[1] <= INT32_MAX / MOST_TOKENS &&
           cache->dims[0] < INT32_MAX / cache->dims[2];
}

/* How large the cache is stands in mpk_caches, by its number. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const ir_tensor *plain = gen_input(c, LATENT_ROWS_PLAIN), *q = gen_input(c, LATENT_ROWS_Q);
    uint32_t cache;
    TRY(gen_number_cache(cx, c, LATENT_ROWS_PAGES, LATENT_ROWS_CACHE, &cache));
    const latent_rows_shape s = {
        .heads = (int)plain->dims[1],
        .latent = (int)plain->dims[2],
        .half = (int)gen_input(c, LATENT_ROWS_TABLE)->dims[2],
        .plain_token = (int)plain->stride[0],
        .plain_head = (int)plain->stride[1],
        .q_token = (int)q->stride[0],
        .q_head = (int)q->stride[1],
        .latent_token = (int)gen_input(c, LATENT_ROWS_LATENT)->stride[0],
        .key_token = (int)gen_input(c, LATENT_ROWS_KEY)->stride[0],
        .tokens = (int)plain->dims[0],
        .cache = (int)cache,
        .page = (int)gen_input(c, LATENT_ROWS_CACHE)->dims[2],
        .norm_type = gen_input(c, LATENT_ROWS_NORM)->dtype == IR_F32,
        .query = (int)gen_operand_of_output(c->op, 0),
        .eps = (float)c->op->attributes[EPS].f,
    };
#define PRINT_INT(name) gen_print_field(#name, &s.name, 1, out);
#define PRINT_FLOAT(name) gen_print_float_field(#name, s.name, out);
    text_print(out,
               "static __device__ __noinline__ void body_%u(const mpk_task &t)\n{\n"
               "    static constexpr latent_rows_shape shape = {",
               n);
    LATENT_ROWS_FIELDS(PRINT_INT, PRINT_FLOAT)
    text_print(out, "};\n    latent_rows<%s, %d>(t, shape);\n}\n", gen_dtype_name(plain->dtype),
               (int)((plain->dims[2] + LANES * EIGHT - 1) / (LANES * EIGHT)));
    return MPK_OK;
}

/* The place of each token. */
static uint32_t scratch_bytes(const gen_call *c)
{
    return (uint32_t)(gen_input(c, LATENT_ROWS_PLAIN)->dims[0] * (int64_t)sizeof(int32_t));
}

const gen_body gen_body_latent_rows = {.op = "latent_rope",
                                       .name = "latent_rows",
                                       .rank = 10,
                                       .accepts = accepts,
                                       .print = print,
                                       .scratch_bytes = scratch_bytes};
