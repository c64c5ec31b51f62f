/* isa_avx512.c - the fast bodies compiled for AVX-512 (F, BW, DQ, VL), with FMA and F16C. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#include "cpu/vec_avx512.h"
#include "cpu/linear_kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const cpu_body cpu_body_linear_avx512 = {.op = "linear",
                                         .name = "linear avx512",
                                         .needs = CPU_AVX2 | CPU_AVX512,
                                         .rank = 2,
                                         .accepts = linear_accepts,
                                         .scratch_bytes = linear_set_scratch_bytes,
                                         .run = linear_set_run};
