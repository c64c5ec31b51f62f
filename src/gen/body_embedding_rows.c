/* body_embedding_rows.c - rows of a 16-bit table (device/task/embedding_rows.cuh).
 *
 * The table and the result have one dtype, so rows are copied by 16 bytes at a time and nothing is
 * computed; other tables take the generic body.  Of 151,936 rows of 4,096 columns and tokens of 32
 * bits: embedding_rows(t, 4096, 151936, false). */
#include "gen/body_print.h"

enum { TOKENS, TABLE };

/* Dense rows: a single one may have any stride. */
static bool is_rows(const ir_tensor *t)
{
    return t->stride[1] == 1 && (t->dims[0] == 1 || t->stride[0] == t->dims[1]);
}

/* Columns are whole pieces of 16 bytes; offsets in such pieces fit 32 bits. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *tokens = gen_input(c, TOKENS), *table = gen_input(c, TABLE),
                    *x = gen_output(c, 0);
    return (table->dtype == IR_BF16 || table->dtype == IR_F16) && x->dtype == table->dtype &&
           is_rows(table) && is_rows(x) && tokens->stride[0] == 1 && table->dims[1] % 8 == 0 &&
           table->dims[0] < INT32_MAX && table->dims[1] < INT32_MAX &&
           x->dims[0] * x->dims[1] / 8 < INT32_MAX;
}

/* Columns, rows of the table, and whether tokens have 64 bits; the operands are found by number. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    const ir_tensor *table = gen_input(c, TABLE);
    text_print(
        out,
        "MPK_FN void body_%u(const mpk_task &t)\n{\n    embedding_rows(t, %lld, %lld, %s);\n}\n", n,
        (long long)table->dims[1], (long long)table->dims[0],
        gen_input(c, TOKENS)->dtype == IR_I64 ? "true" : "false");
    return MPK_OK;
}

const gen_body gen_body_embedding_rows = {.op = "embedding",
                                          .name = "embedding_rows",
                                          .needs = 0,
                                          .rank = 10,
                                          .accepts = accepts,
                                          .print = print};
