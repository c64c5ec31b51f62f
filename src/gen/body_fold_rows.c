/* body_fold_rows.c - parts of a split attention of bf16 put together (device/task/fold_rows.cuh).
 *
 * Input: for each token, split and head a part and the logarithm of its sum; output: the parts
 * weighed by these, and by the head's sink if there are sinks.  The number of splits that a lane
 * takes and the dtype of the sinks are constants of the instance.  Of 40 splits, of which a lane
 * takes up to two, and 32 heads of 128 entries without sinks:
 *
 *   fold_rows<2, 0>(t, 40, 32, 128); */
#include "gen/body_print.h"
#include "shape/fold_rows_shape.h"

enum { FEW_TOKENS = 16, SOME_TOKENS = 256 };

/* The parts of a head are 16-byte pieces, and offsets are counted in 32 bits. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *part = gen_input(c, FOLD_PART), *lse = gen_input(c, FOLD_LSE),
                    *sinks = gen_input(c, FOLD_SINKS);
    int64_t size = part->dims[2] / lse->dims[2];
    return (!sinks || gen_is_dense(sinks, IR_F32) || gen_is_dense(sinks, IR_BF16)) &&
           part->dims[1] <= FOLD_MOST_SPLITS && size % 8 == 0 && size <= FOLD_MOST_SIZE &&
           gen_is_dense(part, IR_BF16) && gen_is_dense(lse, IR_F32) &&
           gen_is_dense(gen_output(c, 0), IR_BF16) && ir_elements(part) < INT32_MAX;
}

/* The head is left out: the body knows where its operands lie by their numbers
 * (fold_rows_shape.h). */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    const ir_tensor *part = gen_input(c, FOLD_PART), *lse = gen_input(c, FOLD_LSE),
                    *sinks = gen_input(c, FOLD_SINKS);
    int kind = FOLD_NO_SINKS;
    if (sinks)
        kind = sinks->dtype == IR_F32 ? FOLD_F32_SINKS : FOLD_BF16_SINKS;
    text_print(out,
               "MPK_FN void body_%u(const mpk_task &t)\n{\n    fold_rows<%lld, %d>(t, %lld, %lld, "
               "%lld);\n}\n",
               n, (long long)(part->dims[1] + FOLD_LANES - 1) / FOLD_LANES, kind,
               (long long)part->dims[1], (long long)lse->dims[2],
               (long long)(part->dims[2] / lse->dims[2]));
    return MPK_OK;
}

/* For few tokens, in the unit of the kernel itself. */
const gen_body gen_body_fold_rows = {.op = "attention_fold",
                                     .name = "fold_rows",
                                     .needs = GEN_RING,
                                     .rank = 10,
                                     .waits = true,
                                     .carries = 1 << FOLD_PART | 1 << FOLD_LSE,
                                     .accepts = accepts,
                                     .print = print};

/* The same beside other bodies for some tokens, or for many: the worker stays in their code. */
static bool accepts_more(const gen_call *c)
{
    const int64_t tokens = gen_output(c, 0)->dims[0];
    return tokens > FEW_TOKENS && tokens <= SOME_TOKENS && accepts(c);
}

/* Between bodies for some tokens. */
static bool accepts_some(const gen_call *c)
{
    return accepts_more(c) && !gen_follows_many(c);
}

/* Between bodies for many tokens, in whose unit it then stands. */
static bool accepts_many(const gen_call *c)
{
    return accepts_more(c) && gen_follows_many(c);
}

const gen_body gen_body_fold_rows_some = {.op = "attention_fold",
                                          .name = "fold_rows",
                                          .needs = GEN_RING,
                                          .rank = 20,
                                          .waits = true,
                                          .some = true,
                                          .carries = 1 << FOLD_PART | 1 << FOLD_LSE,
                                          .accepts = accepts_some,
                                          .print = print};
const gen_body gen_body_fold_rows_many = {.op = "attention_fold",
                                          .name = "fold_rows",
                                          .needs = GEN_RING,
                                          .rank = 20,
                                          .waits = true,
                                          .many = GEN_MANY_HEADS,
                                          .carries = 1 << FOLD_PART | 1 << FOLD_LSE,
                                          .accepts = accepts_many,
                                          .print = print};
