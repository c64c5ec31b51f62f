/* isa_int8amx.c - products with 8-bit activations, compiled for AMX (tiles and bytes) and AVX-512;
 * few tokens are multiplied by AVX-512 VNNI. */
#include <immintrin.h>
#include <string.h>

#include "cpu/int8_fast.h"

#ifdef __clang__
#pragma clang attribute push(                                                                      \
    __attribute__((                                                                                \
        target("amx-tile,amx-int8,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-int8,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#endif
#include "cpu/vec_avx2.h"
#include "cpu/amx.h"
#define TILE_DOT_BYTES(c, a, b) _tile_dpbssd(c, a, b)
#define TILE_DOT_LOW(c, a, b) _tile_dpbsud(c, a, b)
#define INT8_SIGNED
#include "cpu/int8_tiles.h"

/* The least tokens that tiles multiply: where they become as fast as vectors of 512 bits, on a
 * Sapphire Rapids (docs/attempts.md, "Products on a CPU"). */
V_INLINE int64_t least_tokens(ir_dtype dtype)
{
    return has_parts(dtype) ? 24 : 32;
}

V_INLINE void multiply_rows(ir_dtype dtype, const int8_rows *x, const void *w, int64_t row_bytes,
                            int64_t n, void *panel, float *sums, int64_t ld)
{
    if (x->n < least_tokens(dtype))
        int8_avx512vnni.product[dtype](x, w, row_bytes, n, panel, sums, ld);
    else
        tile_rows_of(dtype, x, w, row_bytes, n, panel, sums, ld);
}
#include "cpu/int8_set.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

_Static_assert((int)TILES_PANEL_BYTES >= (int)INT8_PANEL_BYTES, "the panel must serve both");
const int8_kernels int8_amx = INT8_SET(TILES_PANEL_BYTES);
