/* isa_avx512_general.c - fast bodies of the operators of general tensor programs, compiled for
 * AVX-512 (F, BW, DQ, VL), with FMA and F16C.
 *
 * The same headers as in isa_avx2_general.c, over the vectors of vec_avx512.h: a record here and
 * its namesake there give the same bits, so a machine may have either.
 */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "cpu/body.h"
#include "op/map_program.h"
#include "op/pool.h"
#include "op/upsample.h"
#include "op/walk.h"

#ifdef __clang__
#pragma clang attribute push(                                                    \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#include "cpu/vec_avx512.h"
#include "cpu/element_kernels.h"
#include "cpu/reduce_kernels.h"
#include "cpu/product_kernels.h"
#include "cpu/conv_kernels.h"
#include "cpu/sdpa_kernels.h"
#include "cpu/window_kernels.h"
#include "cpu/tile_bodies.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/* AVX2 is needed too: sums end in vectors of 256 bits (vec_halves.h). */
enum { NEEDS = CPU_AVX2 | CPU_AVX512, RANK = 2 };

const cpu_body cpu_body_map_avx512 = {.op = "map",
                                      .name = "map avx512",
                                      .needs = NEEDS,
                                      .rank = RANK,
                                      .accepts = map_accepts,
                                      .scratch_bytes = map_scratch_bytes,
                                      .run = map_run};
const cpu_body cpu_body_recur_avx512 = {.op = "recur",
                                        .name = "recur avx512",
                                        .needs = NEEDS,
                                        .rank = RANK,
                                        .accepts = recur_accepts,
                                        .scratch_bytes = recur_scratch_bytes,
                                        .run = recur_run};
const cpu_body cpu_body_add_avx512 = {.op = "add",
                                      .name = "add avx512",
                                      .needs = NEEDS,
                                      .rank = RANK,
                                      .accepts = element_accepts,
                                      .scratch_bytes = element_scratch_bytes,
                                      .run = add_run};
const cpu_body cpu_body_mul_avx512 = {.op = "mul",
                                      .name = "mul avx512",
                                      .needs = NEEDS,
                                      .rank = RANK,
                                      .accepts = element_accepts,
                                      .scratch_bytes = element_scratch_bytes,
                                      .run = mul_run};
const cpu_body cpu_body_gelu_avx512 = {.op = "gelu",
                                       .name = "gelu avx512",
                                       .needs = NEEDS,
                                       .rank = RANK,
                                       .accepts = element_accepts,
                                       .scratch_bytes = element_scratch_bytes,
                                       .run = gelu_run};
const cpu_body cpu_body_silu_avx512 = {.op = "silu",
                                       .name = "silu avx512",
                                       .needs = NEEDS,
                                       .rank = RANK,
                                       .accepts = element_accepts,
                                       .scratch_bytes = element_scratch_bytes,
                                       .run = silu_run};
const cpu_body cpu_body_layer_norm_avx512 = {.op = "layer_norm",
                                             .name = "layer_norm avx512",
                                             .needs = NEEDS,
                                             .rank = RANK,
                                             .accepts = layer_norm_accepts,
                                             .run = layer_norm_run};
const cpu_body cpu_body_group_norm_avx512 = {.op = "group_norm",
                                             .name = "group_norm avx512",
                                             .needs = NEEDS,
                                             .rank = RANK,
                                             .accepts = group_norm_accepts,
                                             .run = group_norm_run};
const cpu_body cpu_body_softmax_avx512 = {.op = "softmax",
                                          .name = "softmax avx512",
                                          .needs = NEEDS,
                                          .rank = RANK,
                                          .accepts = softmax_accepts,
                                          .scratch_bytes = softmax_scratch,
                                          .run = softmax_run};
const cpu_body cpu_body_log_softmax_avx512 = {.op = "log_softmax",
                                              .name = "log_softmax avx512",
                                              .needs = NEEDS,
                                              .rank = RANK,
                                              .accepts = softmax_accepts,
                                              .scratch_bytes = softmax_scratch,
                                              .run = log_softmax_run};
const cpu_body cpu_body_reduce_avx512 = {.op = "reduce",
                                         .name = "reduce avx512",
                                         .needs = NEEDS,
                                         .rank = RANK,
                                         .accepts = reduce_accepts,
                                         .run = reduce_run};
const cpu_body cpu_body_batch_matmul_avx512 = {.op = "batch_matmul",
                                               .name = "batch_matmul avx512",
                                               .needs = NEEDS,
                                               .rank = RANK,
                                               .accepts = batch_matmul_accepts,
                                               .scratch_bytes = batch_matmul_scratch_bytes,
                                               .run = batch_matmul_run};
const cpu_body cpu_body_conv_avx512 = {.op = "conv",
                                       .name = "conv avx512",
                                       .needs = NEEDS,
                                       .rank = RANK,
                                       .accepts = conv_accepts,
                                       .scratch_bytes = conv_scratch_bytes,
                                       .run = conv_run};
const cpu_body cpu_body_sdpa_avx512 = {.op = "sdpa",
                                       .name = "sdpa avx512",
                                       .needs = NEEDS,
                                       .rank = RANK,
                                       .accepts = sdpa_accepts,
                                       .scratch_bytes = sdpa_scratch_bytes,
                                       .run = sdpa_run};
const cpu_body cpu_body_max_pool_avx512 = {.op = "max_pool",
                                           .name = "max_pool avx512",
                                           .needs = NEEDS,
                                           .rank = RANK,
                                           .accepts = pool_accepts,
                                           .scratch_bytes = pool_scratch_bytes,
                                           .run = max_pool_run};
const cpu_body cpu_body_avg_pool_avx512 = {.op = "avg_pool",
                                           .name = "avg_pool avx512",
                                           .needs = NEEDS,
                                           .rank = RANK,
                                           .accepts = pool_accepts,
                                           .scratch_bytes = pool_scratch_bytes,
                                           .run = avg_pool_run};
const cpu_body cpu_body_upsample_avx512 = {.op = "upsample",
                                           .name = "upsample avx512",
                                           .needs = NEEDS,
                                           .rank = RANK,
                                           .accepts = upsample_accepts,
                                           .scratch_bytes = upsample_scratch_bytes,
                                           .run = upsample_run};
const cpu_body cpu_body_batch_matmul_amx = {.op = "batch_matmul",
                                            .name = "batch_matmul amx",
                                            .needs = NEEDS | CPU_AMX,
                                            .rank = RANK + 1,
                                            .accepts = tile_matmul_accepts,
                                            .scratch_bytes = tile_matmul_scratch_bytes,
                                            .run = tile_matmul_run};
const cpu_body cpu_body_sdpa_amx = {.op = "sdpa",
                                    .name = "sdpa amx",
                                    .needs = NEEDS | CPU_AMX,
                                    .rank = RANK + 1,
                                    .accepts = tile_sdpa_accepts,
                                    .scratch_bytes = tile_sdpa_scratch_bytes,
                                    .run = tile_sdpa_run};
const cpu_body cpu_body_conv_amx = {.op = "conv",
                                    .name = "conv amx",
                                    .needs = NEEDS | CPU_AMX,
                                    .rank = RANK + 1,
                                    .accepts = tile_conv_accepts,
                                    .scratch_bytes = tile_conv_scratch_bytes,
                                    .run = tile_conv_run};
