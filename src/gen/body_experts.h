/* body_experts.h - what the records of products with experts share: expert_linear of few tokens
 * (body_expert_stream.c) and of many (body_expert_tile.c). */
#ifndef GEN_BODY_EXPERTS_H
#define GEN_BODY_EXPERTS_H

#include "gen/body_print.h"
#include "op/experts.h"
#include "rt/rt_lane.h"

/* Operands and attributes of expert_linear. */
enum { X, IDS, W0, W1, SCALE, RESIDUAL, NORM, B0, B1 };
enum { GLU, EPS, ACTIVATIONS, LIMIT };

/* Of bodies for many tokens: steps of this many tokens and more, and their limits. */
enum { FEWEST_OF_MANY = 129, MOST_EXPERTS = 256, MOST_COLUMNS = 65535 };

/* Do the products have biases, or a gate with a limit?  Shapes and code of those that have are of a
 * kind of their own. */
static inline bool has_ends(const gen_call *c)
{
    return gen_input(c, B0) || gen_input(c, B1) || c->op->attributes[LIMIT].f != 0;
}

/* Absent, or bf16 or f32 and dense: bodies read biases [experts, rows] by index. */
static inline bool takes_bias(const gen_call *c, uint32_t i)
{
    return gen_is_dense(gen_input(c, i), IR_BF16) || gen_is_dense(gen_input(c, i), IR_F32);
}

/* Operand of a bias, -1: absent; its dtype, 1: f32, 0: bf16. */
static inline int bias_of(const gen_call *c, uint32_t i)
{
    return gen_input(c, i) ? (int)i : -1;
}
static inline int bias_type_of(const gen_call *c, uint32_t i)
{
    return gen_input(c, i) && gen_input(c, i)->dtype == IR_F32;
}

/* Do the bodies for many tokens (body_expert_tile.c, body_expert_unpack.c) take the operands, but
 * for weights and norm?  For rows of pairs alone, in long steps: sums of pairs are an operator of
 * their own there (fuse_experts.c).  Places in x are 32 bits. */
static inline bool takes_many_pairs(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *w = gen_input(c, W0), *y = gen_output(c, 0);
    return y->rank == 3 && y->dims[0] >= FEWEST_OF_MANY && gen_is_dense(x, IR_BF16) &&
           gen_is_dense(gen_input(c, IDS), IR_I32) && gen_is_dense(y, IR_BF16) &&
           takes_bias(c, B0) && takes_bias(c, B1) &&
           gen_input(c, IDS)->dims[1] <= EXPERTS_MOST_PER_TOKEN && w->dims[0] <= MOST_EXPERTS &&
           w->dims[1] % 8 == 0 && w->dims[1] <= MOST_COLUMNS && w->dims[2] % 8 == 0 &&
           ir_bytes(x) < UINT32_MAX && c->op->n_in + c->op->n_out <= RT_PACKED;
}

#endif
