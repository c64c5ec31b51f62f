/* body_embedding_rows.c - rows of a 16-bit table by id: embedding, and gather
 * (device/task/embedding_rows.cuh).
 *
 * The table and the result have one dtype, so rows are copied by 16 bytes at a time and nothing is
 * computed, but for a factor of rows of the kernel's halves; other tables take the generic bodies.
 * Of 151,936 rows of 4,096 columns and tokens of 32 bits: embedding_rows(t, 0, 4096, 151936,
 * false).  Of a step's tokens, of which those that are alive may be named: embedding_rows(t, 1,
 * 4096, mpk_smaller(t.live[1], 256), false). */
#include "gen/body_print.h"

enum { TOKENS, TABLE, DTYPE = 0, FACTOR }; /* of embedding */
enum { G_TABLE, G_IDS };                   /* of gather */

/* Columns are whole pieces of 16 bytes; offsets in such pieces fit 32 bits. */
static bool takes(const ir_tensor *ids, const ir_tensor *table, const ir_tensor *x)
{
    return (table->dtype == IR_BF16 || table->dtype == IR_F16) && table->rank == 2 &&
           x->rank == 2 && gen_is_dense(table, table->dtype) && gen_is_dense(x, table->dtype) &&
           ids->stride[0] == 1 && table->dims[1] % 8 == 0 && table->dims[0] < INT32_MAX &&
           table->dims[1] < INT32_MAX && x->dims[0] * x->dims[1] / 8 < INT32_MAX;
}

static float factor_of(const gen_call *c)
{
    return (float)c->op->attributes[FACTOR].f;
}

static bool accepts(const gen_call *c)
{
    return takes(gen_input(c, TOKENS), gen_input(c, TABLE), gen_output(c, 0)) &&
           (factor_of(c) == 1 || gen_input(c, TABLE)->dtype == c->halves);
}

static bool accepts_gather(const gen_call *c)
{
    return takes(gen_input(c, G_IDS), gen_input(c, G_TABLE), gen_output(c, 0));
}

/* Columns, rows of the table, whether tokens have 64 bits, and a factor; the operands are found by
 * number. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    const ir_tensor *table = gen_input(c, TABLE);
    text_print(out,
               "MPK_FN void body_%u(const mpk_task &t)\n{\n    embedding_rows%s(t, %d, %lld, %lld, "
               "%s",
               n, factor_of(c) == 1 ? "" : "_scaled", TOKENS, (long long)table->dims[1],
               (long long)table->dims[0], gen_input(c, TOKENS)->dtype == IR_I64 ? "true" : "false");
    if (factor_of(c) != 1) {
        text_print(out, ", ");
        gen_print_float(factor_of(c), out);
    }
    text_print(out, ");\n}\n");
    return MPK_OK;
}

/* Rows of x that are alive: all, or as many as the step has. */
static mpk_status print_gather(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    const ir_tensor *table = gen_input(c, G_TABLE);
    text_print(out, "MPK_FN void body_%u(const mpk_task &t)\n{\n    embedding_rows(t, %d, %lld, ",
               n, G_IDS, (long long)table->dims[1]);
    if (table->live == IR_ALL)
        text_print(out, "%lld", (long long)table->dims[0]);
    else
        text_print(out, "mpk_smaller(t.live[%d], %lld)", (int)table->live,
                   (long long)table->dims[0]);
    text_print(out, ", false);\n}\n");
    return MPK_OK;
}

const gen_body gen_body_gather_rows = {.op = "gather",
                                       .name = "embedding_rows",
                                       .needs = 0,
                                       .rank = 10,
                                       .accepts = accepts_gather,
                                       .print = print_gather};
const gen_body gen_body_embedding_rows = {.op = "embedding",
                                          .name = "embedding_rows",
                                          .needs = 0,
                                          .rank = 10,
                                          .accepts = accepts,
                                          .print = print};
