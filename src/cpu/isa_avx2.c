/* isa_avx2.c - the fast bodies compiled for AVX2, with FMA and F16C. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#include "cpu/vec_avx2.h"
#include "cpu/linear_kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const cpu_body cpu_body_linear_avx2 = {.op = "linear",
                                       .name = "linear avx2",
                                       .needs = CPU_AVX2,
                                       .rank = 1,
                                       .accepts = linear_accepts,
                                       .scratch_bytes = linear_set_scratch_bytes,
                                       .run = linear_set_run};
