/* isa_avx2_general.c - fast bodies of the operators of general tensor programs, compiled for AVX2,
 * with FMA and F16C.
 *
 * Only the set of instructions and the records differ from the two other isa_*_general.c files: the
 * code is the *_kernels.h headers, over the vectors of vec_avx2.h. See isa_avx2.c for the pragmas,
 * and why what they enclose must be static. CMake finds the records by their names (cpu_body_*),
 * and cpu_body_choose picks among those that a call accepts the one of the highest rank.
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
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#include "cpu/vec_avx2.h"
#include "cpu/element_kernels.h"
#include "cpu/reduce_kernels.h"
#include "cpu/product_kernels.h"
#include "cpu/conv_kernels.h"
#include "cpu/sdpa_kernels.h"
#include "cpu/window_kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/* Below the rank of AVX-512's bodies: where both run, those are chosen. The bits are the same. */
enum { NEEDS = CPU_AVX2, RANK = 1 };

const cpu_body cpu_body_map_avx2 = {.op = "map",
                                    .name = "map avx2",
                                    .needs = NEEDS,
                                    .rank = RANK,
                                    .accepts = map_accepts,
                                    .scratch_bytes = map_scratch_bytes,
                                    .run = map_run};
const cpu_body cpu_body_recur_avx2 = {.op = "recur",
                                      .name = "recur avx2",
                                      .needs = NEEDS,
                                      .rank = RANK,
                                      .accepts = recur_accepts,
                                      .scratch_bytes = recur_scratch_bytes,
                                      .run = recur_run};
const cpu_body cpu_body_add_avx2 = {.op = "add",
                                    .name = "add avx2",
                                    .needs = NEEDS,
                                    .rank = RANK,
                                    .accepts = element_accepts,
                                    .scratch_bytes = element_scratch_bytes,
                                    .run = add_run};
const cpu_body cpu_body_mul_avx2 = {.op = "mul",
                                    .name = "mul avx2",
                                    .needs = NEEDS,
                                    .rank = RANK,
                                    .accepts = element_accepts,
                                    .scratch_bytes = element_scratch_bytes,
                                    .run = mul_run};
const cpu_body cpu_body_gelu_avx2 = {.op = "gelu",
                                     .name = "gelu avx2",
                                     .needs = NEEDS,
                                     .rank = RANK,
                                     .accepts = element_accepts,
                                     .scratch_bytes = element_scratch_bytes,
                                     .run = gelu_run};
const cpu_body cpu_body_silu_avx2 = {.op = "silu",
                                     .name = "silu avx2",
                                     .needs = NEEDS,
                                     .rank = RANK,
                                     .accepts = element_accepts,
                                     .scratch_bytes = element_scratch_bytes,
                                     .run = silu_run};
const cpu_body cpu_body_layer_norm_avx2 = {.op = "layer_norm",
                                           .name = "layer_norm avx2",
                                           .needs = NEEDS,
                                           .rank = RANK,
                                           .accepts = layer_norm_accepts,
                                           .run = layer_norm_run};
const cpu_body cpu_body_group_norm_avx2 = {.op = "group_norm",
                                           .name = "group_norm avx2",
                                           .needs = NEEDS,
                                           .rank = RANK,
                                           .accepts = group_norm_accepts,
                                           .run = group_norm_run};
const cpu_body cpu_body_softmax_avx2 = {.op = "softmax",
                                        .name = "softmax avx2",
                                        .needs = NEEDS,
                                        .rank = RANK,
                                        .accepts = softmax_accepts,
                                        .scratch_bytes = softmax_scratch,
                                        .run = softmax_run};
const cpu_body cpu_body_log_softmax_avx2 = {.op = "log_softmax",
                                            .name = "log_softmax avx2",
                                            .needs = NEEDS,
                                            .rank = RANK,
                                            .accepts = softmax_accepts,
                                            .scratch_bytes = softmax_scratch,
                                            .run = log_softmax_run};
const cpu_body cpu_body_reduce_avx2 = {.op = "reduce",
                                       .name = "reduce avx2",
                                       .needs = NEEDS,
                                       .rank = RANK,
                                       .accepts = reduce_accepts,
                                       .run = reduce_run};
const cpu_body cpu_body_batch_matmul_avx2 = {.op = "batch_matmul",
                                             .name = "batch_matmul avx2",
                                             .needs = NEEDS,
                                             .rank = RANK,
                                             .accepts = batch_matmul_accepts,
                                             .scratch_bytes = batch_matmul_scratch_bytes,
                                             .run = batch_matmul_run};
const cpu_body cpu_body_conv_avx2 = {.op = "conv",
                                     .name = "conv avx2",
                                     .needs = NEEDS,
                                     .rank = RANK,
                                     .accepts = conv_accepts,
                                     .scratch_bytes = conv_scratch_bytes,
                                     .run = conv_run};
const cpu_body cpu_body_sdpa_avx2 = {.op = "sdpa",
                                     .name = "sdpa avx2",
                                     .needs = NEEDS,
                                     .rank = RANK,
                                     .accepts = sdpa_accepts,
                                     .scratch_bytes = sdpa_scratch_bytes,
                                     .run = sdpa_run};
const cpu_body cpu_body_max_pool_avx2 = {.op = "max_pool",
                                         .name = "max_pool avx2",
                                         .needs = NEEDS,
                                         .rank = RANK,
                                         .accepts = pool_accepts,
                                         .scratch_bytes = pool_scratch_bytes,
                                         .run = max_pool_run};
const cpu_body cpu_body_avg_pool_avx2 = {.op = "avg_pool",
                                         .name = "avg_pool avx2",
                                         .needs = NEEDS,
                                         .rank = RANK,
                                         .accepts = pool_accepts,
                                         .scratch_bytes = pool_scratch_bytes,
                                         .run = avg_pool_run};
const cpu_body cpu_body_upsample_avx2 = {.op = "upsample",
                                         .name = "upsample avx2",
                                         .needs = NEEDS,
                                         .rank = RANK,
                                         .accepts = upsample_accepts,
                                         .scratch_bytes = upsample_scratch_bytes,
                                         .run = upsample_run};
