/* isa_int8i8mm.c - products with 8-bit activations, compiled for arm64: NEON with dot products
 * and products of matrices of bytes.  CMakeLists.txt sets the compiler's options for this file. */
#include <string.h>

#include "cpu/int8_fast.h"
#include "cpu/vec_neon.h"

/* 2 x 8 bytes of w times 8 x 2 bytes of x, in each lane of 128 bits. */
V_INLINE __m256i matrix(__m256i sum, __m256i w, __m256i x)
{
    return (__m256i){(__m128i)vmmlaq_s32((int32x4_t)sum.a, w.a, x.a),
                     (__m128i)vmmlaq_s32((int32x4_t)sum.b, w.b, x.b)};
}
#define INT8_SIGNED
#define INT8_DOT(sum, w, x) neon_dot(sum, w, x)
#define INT8_MATRIX(sum, w, x) matrix(sum, w, x)
/* tokens that are multiplied together, so that all sums stay in registers */
enum { INT8_TILE = 4 };
#include "cpu/int8_kernels.h"

const int8_kernels int8_i8mm = INT8_SET(INT8_PANEL_BYTES);
