/* narrow.h - rows of x in 8-bit blocks: what {activations = "i8"} means to linear and
 * expert_linear.
 *
 * For a weight in a block format x is cut along K into blocks of as many elements as the
 * weight's, 32 or 256.  A block holds integers q of -127 to 127 and a scale d in fp32:
 *
 *   greatest = max |x|, d = greatest / 127, q = x (127 / greatest) rounded to the nearest integer,
 *   ties to even
 *   x = [0.5, -1.0, 0.1, ...]: d = 0.00787, q = [64, -127, 13, ...]
 *
 * A block whose greatest is below NARROW_LEAST is zeros; one with an infinity or a NaN has d =
 * NaN, so that its products are NaN.  Weights in plain dtypes are multiplied by x itself.  The
 * sums of q times the weights' integers are exact, whatever their order.
 *
 * The reference code multiplies d q by unpacked weights; src/cpu/int8_kernels.h multiplies
 * integers.
 */
#ifndef OP_NARROW_H
#define OP_NARROW_H

#include <math.h>

#include "op/shape.h"

/* The least greatest magnitude whose inverse times 127 is still finite by a wide margin. */
static const float NARROW_LEAST = 1e-30f;

/* Elements of a block of x for a weight of this dtype; 0: x stays as it is. */
static inline int64_t narrow_block(ir_dtype weight)
{
    uint32_t n = ir_dtype_table[weight].block_elements;
    return n > 1 ? n : 0;
}

/* to = d q for n elements of x, a multiple of `block`; x and to may be the same. */
static inline void narrow_row(const float *x, int64_t n, int64_t block, float *to)
{
    for (int64_t at = 0; at < n; at += block) {
        float greatest = 0;
        bool finite = true;
        for (int64_t i = at; i < at + block; i++) {
            finite = finite && isfinite(x[i]);
            greatest = fabsf(x[i]) > greatest ? fabsf(x[i]) : greatest;
        }
        bool zero = greatest < NARROW_LEAST;
        float d = finite ? greatest / 127 : NAN;
        float by = zero || !finite ? 0 : 127 / greatest;
        for (int64_t i = at; i < at + block; i++) {
            float q = by != 0 ? nearbyintf(x[i] * by) : 0;
            to[i] = zero && finite ? 0 : d * q;
        }
    }
}

/* Does the operator ask for 8-bit blocks? */
static inline bool narrow_is_asked(str activations)
{
    return str_is(activations, "i8");
}

/* MPK_EUNSUPPORTED unless the attribute is f32, or i8 with a weight in a block format among
 * inputs w0 to `last`. */
static inline mpk_status narrow_check(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                      str activations, uint32_t w0, uint32_t last)
{
    bool serves = str_is(activations, "f32");
    CHECK(cx, serves || narrow_is_asked(activations), MPK_EUNSUPPORTED,
          "%s: activations \"%.*s\" is not one of f32, i8", op->def->name, STR_ARG(activations));
    for (uint32_t i = w0; i <= last; i++)
        serves = serves || (shape_input(g, op, i) && narrow_block(shape_input(g, op, i)->dtype));
    CHECK(cx, serves, MPK_EUNSUPPORTED,
          "%s: activations \"i8\" are for weights in block formats, and none here is",
          op->def->name);
    return MPK_OK;
}

#endif
