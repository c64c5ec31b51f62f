/* isa_int8avx2.c - products with 8-bit activations, compiled for AVX2, which has no dot product
 * of bytes: pairs of products are added in 16 bits (maddubs), which int8_formats.h keeps from
 * overflowing.
 *
 * There is one such file for each instruction set, because the macros of int8_kernels.h are set
 * before it is included.
 */
#include <immintrin.h>
#include <string.h>

#include "cpu/int8_fast.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#include "cpu/vec_avx2.h"

/* tokens that are multiplied together; all their sums fit the sixteen registers */
enum { INT8_TILE = 4 };
#include "cpu/int8_kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const int8_kernels int8_avx2 = INT8_SET(INT8_PANEL_BYTES);
