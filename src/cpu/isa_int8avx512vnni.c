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
#include "cpu/int8_wide.h"

V_INLINE void multiply_rows(ir_dtype dtype, const int8_rows *x, const void *w, int64_t row_bytes,
                            int64_t n, void *panel, float *sums, int64_t ld)
{
    if (x->n <= INT8_DIRECT_TOKENS)
        direct_few(dtype, x, w, row_bytes, n, sums, ld);
    else
        wide_rows(dtype, x, w, row_bytes, n, panel, sums, ld);
}
#include "cpu/int8_set.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

_Static_assert((int)WIDE_PANEL_BYTES <= (int)INT8_PANEL_BYTES, "the panel is as large as others'");
const int8_kernels int8_avx512vnni = INT8_SET(INT8_PANEL_BYTES);
