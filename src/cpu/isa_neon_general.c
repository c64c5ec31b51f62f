/* isa_neon_general.c - fast bodies of the operators of general tensor programs, compiled for arm64
 * with NEON.
 *
 * The same headers as in isa_avx2_general.c, over the vectors of vec_neon.h. Every arm64 processor
 * has NEON, so no pragmas are needed, and a record is refused only where MPK_ISA=none asks for the
 * reference code.
 */
#include <math.h>
#include <string.h>

#include "cpu/body.h"
#include "op/map_program.h"
#include "op/pool.h"
#include "op/upsample.h"
#include "op/walk.h"

#include "cpu/vec_neon.h"

#include "cpu/element_kernels.h"
#include "cpu/reduce_kernels.h"
#include "cpu/product_kernels.h"
#include "cpu/conv_kernels.h"
#include "cpu/sdpa_kernels.h"
#include "cpu/window_kernels.h"

enum { NEEDS = CPU_NEON, RANK = 1 };

const cpu_body cpu_body_map_neon = {.op = "map",
                                    .name = "map neon",
                                    .needs = NEEDS,
                                    .rank = RANK,
                                    .accepts = map_accepts,
                                    .scratch_bytes = map_scratch_bytes,
                                    .run = map_run};
const cpu_body cpu_body_recur_neon = {.op = "recur",
                                      .name = "recur neon",
                                      .needs = NEEDS,
                                      .rank = RANK,
                                      .accepts = recur_accepts,
                                      .scratch_bytes = recur_scratch_bytes,
                                      .run = recur_run};
const cpu_body cpu_body_add_neon = {.op = "add",
                                    .name = "add neon",
                                    .needs = NEEDS,
                                    .rank = RANK,
                                    .accepts = element_accepts,
                                    .scratch_bytes = element_scratch_bytes,
                                    .run = add_run};
const cpu_body cpu_body_mul_neon = {.op = "mul",
                                    .name = "mul neon",
                                    .needs = NEEDS,
                                    .rank = RANK,
                                    .accepts = element_accepts,
                                    .scratch_bytes = element_scratch_bytes,
                                    .run = mul_run};
const cpu_body cpu_body_gelu_neon = {.op = "gelu",
                                     .name = "gelu neon",
                                     .needs = NEEDS,
                                     .rank = RANK,
                                     .accepts = element_accepts,
                                     .scratch_bytes = element_scratch_bytes,
                                     .run = gelu_run};
const cpu_body cpu_body_silu_neon = {.op = "silu",
                                     .name = "silu neon",
                                     .needs = NEEDS,
                                     .rank = RANK,
                                     .accepts = element_accepts,
                                     .scratch_bytes = element_scratch_bytes,
                                     .run = silu_run};
const cpu_body cpu_body_layer_norm_neon = {.op = "layer_norm",
                                           .name = "layer_norm neon",
                                           .needs = NEEDS,
                                           .rank = RANK,
                                           .accepts = layer_norm_accepts,
                                           .run = layer_norm_run};
const cpu_body cpu_body_group_norm_neon = {.op = "group_norm",
                                           .name = "group_norm neon",
                                           .needs = NEEDS,
                                           .rank = RANK,
                                           .accepts = group_norm_accepts,
                                           .run = group_norm_run};
const cpu_body cpu_body_softmax_neon = {.op = "softmax",
                                        .name = "softmax neon",
                                        .needs = NEEDS,
                                        .rank = RANK,
                                        .accepts = softmax_accepts,
                                        .scratch_bytes = softmax_scratch,
                                        .run = softmax_run};
const cpu_body cpu_body_log_softmax_neon = {.op = "log_softmax",
                                            .name = "log_softmax neon",
                                            .needs = NEEDS,
                                            .rank = RANK,
                                            .accepts = softmax_accepts,
                                            .scratch_bytes = softmax_scratch,
                                            .run = log_softmax_run};
const cpu_body cpu_body_reduce_neon = {.op = "reduce",
                                       .name = "reduce neon",
                                       .needs = NEEDS,
                                       .rank = RANK,
                                       .accepts = reduce_accepts,
                                       .run = reduce_run};
const cpu_body cpu_body_batch_matmul_neon = {.op = "batch_matmul",
                                             .name = "batch_matmul neon",
                                             .needs = NEEDS,
                                             .rank = RANK,
                                             .accepts = batch_matmul_accepts,
                                             .scratch_bytes = batch_matmul_scratch_bytes,
                                             .run = batch_matmul_run};
const cpu_body cpu_body_conv_neon = {.op = "conv",
                                     .name = "conv neon",
                                     .needs = NEEDS,
                                     .rank = RANK,
                                     .accepts = conv_accepts,
                                     .scratch_bytes = conv_scratch_bytes,
                                     .run = conv_run};
const cpu_body cpu_body_sdpa_neon = {.op = "sdpa",
                                     .name = "sdpa neon",
                                     .needs = NEEDS,
                                     .rank = RANK,
                                     .accepts = sdpa_accepts,
                                     .scratch_bytes = sdpa_scratch_bytes,
                                     .run = sdpa_run};
const cpu_body cpu_body_max_pool_neon = {.op = "max_pool",
                                         .name = "max_pool neon",
                                         .needs = NEEDS,
                                         .rank = RANK,
                                         .accepts = pool_accepts,
                                         .scratch_bytes = pool_scratch_bytes,
                                         .run = max_pool_run};
const cpu_body cpu_body_avg_pool_neon = {.op = "avg_pool",
                                         .name = "avg_pool neon",
                                         .needs = NEEDS,
                                         .rank = RANK,
                                         .accepts = pool_accepts,
                                         .scratch_bytes = pool_scratch_bytes,
                                         .run = avg_pool_run};
const cpu_body cpu_body_upsample_neon = {.op = "upsample",
                                         .name = "upsample neon",
                                         .needs = NEEDS,
                                         .rank = RANK,
                                         .accepts = upsample_accepts,
                                         .scratch_bytes = upsample_scratch_bytes,
                                         .run = upsample_run};
