/* fill.h - random operands for the tests of a record: its `fill`.
 *
 * One integer in sixteen is out of range on purpose: what an operator does with it must be safe
 * and the same everywhere.
 *
 * Called by op_test and the bodies' tests through the record; operands without a `fill` get
 * random floats.  Everything follows from the seed, so a failure can be repeated.
 */
#ifndef OP_FILL_H
#define OP_FILL_H

#include "base/rng.h"
#include "op/shape.h"

/* A number that is none from 0 to limit - 1: either of the nearest, or one that is far away. */
static inline int64_t fill_beyond(uint64_t bits, int64_t limit)
{
    static const int64_t beyond[4] = {-1, INT32_MAX, INT32_MIN, 0};
    return beyond[bits % 4] ? beyond[bits % 4] : limit;
}

/* Entry i of a stream: a random number from 0 to limit - 1, or in one case of sixteen one that
 * is out of range. */
static inline int64_t fill_choose(uint64_t seed, uint64_t i, int64_t limit)
{
    uint64_t bits = rng_u64(seed, i);
    if (bits % 16 == 0)
        return fill_beyond(bits / 16, limit);
    return (int64_t)(bits / 16 % (uint64_t)limit);
}

/* Store an integer; narrower dtypes take its low bits. */
static inline void fill_store(const ir_tensor *t, int64_t i, int64_t value, void *data)
{
    if (t->dtype == IR_I64)
        ((int64_t *)data)[i] = value;
    else if (t->dtype == IR_I32)
        ((int32_t *)data)[i] = (int32_t)value;
    else if (t->dtype == IR_I16)
        ((int16_t *)data)[i] = (int16_t)value;
    else if (t->dtype == IR_I8 || t->dtype == IR_U8)
        ((uint8_t *)data)[i] = (uint8_t)value;
}

/* Indices 0 to limit - 1, and one in sixteen that names nothing. */
static inline void fill_indices(const ir_tensor *t, int64_t limit, uint64_t seed, void *data)
{
    for (int64_t i = 0; i < ir_elements(t); i++)
        fill_store(t, i, fill_choose(seed, (uint64_t)i, limit), data);
}

/* The `fill` of arithmetic on integers: 64 random bits, so that wrapping around is tested. */
static inline void fill_wide_integers(const ir_graph *g, const ir_op *op, uint32_t input,
                                      uint64_t seed, void *data)
{
    const ir_tensor *t = shape_input(g, op, input);
    for (int64_t i = 0; t->dtype != IR_F32 && i < ir_elements(t); i++)
        fill_store(t, i, (int64_t)rng_u64(seed, (uint64_t)i), data);
}

#endif
