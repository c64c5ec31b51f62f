/* isa_int8avxvnni.c - products with 8-bit activations, compiled for AVX2 with AVX-VNNI, whose
 * dot products add four products of bytes at once. */
#include <immintrin.h>
#include <string.h>

#include "cpu/int8_fast.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avxvnni")
#endif
#include "cpu/vec_avx2.h"
#define INT8_DOT(acc, u, s) _mm256_dpbusd_avx_epi32(acc, u, s)
#define INT8_DOT_PAIRS(acc, a, b) _mm256_dpwssd_avx_epi32(acc, a, b)
/* tokens that are multiplied together, so that all sums stay in registers */
enum { INT8_TILE = 4 };
#include "cpu/int8_kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const int8_kernels int8_avxvnni = INT8_SET(INT8_PANEL_BYTES);
