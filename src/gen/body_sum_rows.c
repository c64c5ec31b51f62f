/* body_sum_rows.c - sums of the peers' parts, bf16 by rows (device/task/sum_rows.cuh).  They stand
 * between any two products of several GPUs, so the body waits itself: it stays in the kernel's own
 * code.  All parts, and the residual after them, may be carried.  An instance for three inputs of
 * 4,096 columns is one call:
 *
 *   MPK_FN void body_9(const mpk_task &t)
 *   {
 *       sum_rows<3, false>(t, 4096);
 *   } */
#include "gen/body_print.h"
#include "rt/rt_lane.h"

enum { ALL_PARTS = (1 << RT_PACKED) - 1, FEW_TOKENS = 16 };

/* Eight entries of bf16 are a load of 16 bytes, so that places and columns count by eights. */
static bool is_rows(const ir_tensor *t)
{
    return t->rank == 2 && gen_is_dense(t, IR_BF16);
}

/* All parts have the shape of the sum (infer); so its columns speak for theirs. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *y = gen_output(c, 0);
    bool fits = is_rows(y) && y->dims[1] % 8 == 0 && ir_elements(y) < INT32_MAX;
    for (uint32_t i = 0; i < c->op->n_in && fits; i++)
        fits = is_rows(gen_input(c, i));
    return fits;
}

/* No head: the body finds its operands in the task by their numbers. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const ir_tensor *y = gen_output(c, 0);
    (void)cx;
    text_print(out,
               "MPK_FN void body_%u(const mpk_task &t)\n{\n    sum_rows<%u, %s>(t, %lld);\n}\n", n,
               c->op->n_in, y->dims[0] > FEW_TOKENS ? "true" : "false", (long long)y->dims[1]);
    return MPK_OK;
}

const gen_body gen_body_sum_rows = {.op = "add_parts",
                                    .name = "sum_rows",
                                    .needs = 0,
                                    .rank = 10,
                                    .waits = true,
                                    .carries = ALL_PARTS,
                                    .accepts = accepts,
                                    .print = print};

/* The same between products of some or of many tokens: the worker stays in their code. */
static bool accepts_some(const gen_call *c)
{
    return gen_output(c, 0)->dims[0] > FEW_TOKENS && accepts(c) && !gen_follows_many(c);
}

/* Between products of many tokens it belongs into their unit. */
static bool accepts_many(const gen_call *c)
{
    return gen_output(c, 0)->dims[0] > FEW_TOKENS && accepts(c) && gen_follows_many(c);
}

const gen_body gen_body_sum_rows_some = {.op = "add_parts",
                                         .name = "sum_rows",
                                         .needs = GEN_RING,
                                         .rank = 20,
                                         .waits = true,
                                         .some = true,
                                         .carries = ALL_PARTS,
                                         .accepts = accepts_some,
                                         .print = print};
const gen_body gen_body_sum_rows_many = {.op = "add_parts",
                                         .name = "sum_rows",
                                         .needs = GEN_RING,
                                         .rank = 20,
                                         .waits = true,
                                         .many = GEN_MANY_HEADS,
                                         .carries = ALL_PARTS,
                                         .accepts = accepts_many,
                                         .print = print};
