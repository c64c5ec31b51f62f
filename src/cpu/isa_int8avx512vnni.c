/* isa_int8avx512vnni.c - products with 8-bit activations, compiled for AVX-512 VNNI, in vectors
 * of 256 bits: they have 32 registers, and so twice the tile of AVX2. */
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
#include "cpu/int8_kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const int8_kernels int8_avx512vnni = INT8_SET(INT8_PANEL_BYTES);
