/* body_experts.h - what the records of products with experts share: expert_linear of few tokens
 * (body_expert_stream.c) and of many (body_expert_tile.c). */
#ifndef GEN_BODY_EXPERTS_H
#define GEN_BODY_EXPERTS_H

#include "gen/body_print.h"
#include "rt/rt_lane.h"

/* Operands and attributes of expert_linear. */
enum { X, IDS, W0, W1, SCALE, RESIDUAL, NORM, B0, B1 };
enum { GLU, EPS, ACTIVATIONS, LIMIT };

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

#endif
