/* isa_int8neon.c - products with 8-bit activations, compiled for arm64: NEON alone, for the
 * Cortex-A72 and others without dot products.  Signed bytes are multiplied by vmull_s8, and
 * pairs added in 16 bits.
 */
#include <string.h>

#include "cpu/int8_fast.h"
#include "cpu/vec_neon.h"

/* Products of 16 signed bytes, two added in 16 bits.  No overflow: of the two operands only
 * weights can be -128. */
V_INLINE __m128i pairs_of_lane(__m128i w, __m128i x)
{
    return (__m128i)vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x));
}
V_INLINE __m256i signed_pairs(__m256i w, __m256i x)
{
    return (__m256i){pairs_of_lane(w.a, x.a), pairs_of_lane(w.b, x.b)};
}
#define INT8_SIGNED
#define INT8_PAIRS(w, x) signed_pairs(w, x)
/* tokens that are multiplied together, so that all sums stay in registers */
enum { INT8_TILE = 4 };
#include "cpu/int8_kernels.h"

const int8_kernels int8_neon = INT8_SET(INT8_PANEL_BYTES);
