/* isa_int8avx512vnni.c - products with 8-bit activations, compiled for AVX-512 VNNI: of few tokens,
 * where memory decides, in vectors of 256 bits, of more in vectors of 512.  With 32 registers a
 * tile has twice the tokens of AVX2's. */
#include <immintrin.h>
#include <string.h>

#include "cpu/int8_fast.h"

#ifdef __clang__
#pragma clang attribute push(                                                               \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#endif
#include "cpu/vec_avx2.h"
#define INT8_DOT(acc, u, s) _mm256_dpbusd_epi32(acc, u, s)
#define INT8_DOT_PAIRS(acc, a, b) _mm256_dpwssd_epi32(acc, a, b)
/* tokens that are multiplied together, so that all sums stay in registers */
enum { INT8_TILE = 8 };
#define INT8_WIDE
#include "cpu/int8_kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

_Static_assert((int)WIDE_PANEL_BYTES <= (int)INT8_PANEL_BYTES, "the panel is as large as others'");
const int8_kernels int8_avx512vnni = INT8_SET(INT8_PANEL_BYTES);
