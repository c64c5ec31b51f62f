/* isa_amx.c - products of BF16 weights by tiles, compiled for AMX (tiles and bf16) and AVX-512.
 *
 * A thread's tiles are in use from the first instruction of a product to TILE_END: between
 * products the system has no tiles to save when it switches threads.  cpu_features.c asks the
 * system whether this process may use them.
 */
#include <immintrin.h>

#include "cpu/tile_fast.h"

#ifdef __clang__
#pragma clang attribute push(                                                                      \
    __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#include "cpu/vec_avx512.h"
#include "cpu/amx.h"
#define TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)
#include "cpu/tile_kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const tile_kernels tile_amx = TILE_KERNELS;
