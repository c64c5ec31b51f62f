/* isa_avx512.c - the fast bodies of language models, compiled for AVX-512 (F, BW, DQ, VL), with
 * FMA and F16C.
 *
 * Everything between the pragmas is compiled for these instructions, and so must be static
 * (isa_avx2.c says why).  Without AVX-512 VNNI the 8-bit products are those of AVX2.
 */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "cpu/expert_fast.h"
#include "op/attend.h"
#include "op/heads.h"
#include "op/largest.h"

#ifdef __clang__
#pragma clang attribute push(                                                    \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#include "cpu/vec_avx512.h"
#include "cpu/linear_kernels.h"
#include "cpu/attention_kernels.h"
#include "cpu/row_kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/* Above the ranks of AVX2 and AVX-VNNI. */
enum { NEEDS = CPU_AVX2 | CPU_AVX512, RANK = 3 };

/* linear and expert_linear, with the 8-bit products of AVX2 and with those of VNNI. */
LINEAR_SET(linear_avx512, int8_avx2, NULL)
LINEAR_SET(linear_avx512vnni, int8_avx512vnni, NULL)
/* Products by tiles: those with 8-bit activations, and those of BF16 weights. */
LINEAR_SET(linear_amx, int8_amx, &tile_amx)

const cpu_body cpu_body_linear_avx512 = {.op = "linear",
                                         .name = "linear avx512",
                                         .needs = NEEDS,
                                         .rank = RANK,
                                         .accepts = linear_accepts,
                                         .scratch_bytes = linear_avx512_scratch_bytes,
                                         .run = linear_avx512_run};
const cpu_body cpu_body_expert_linear_avx512 = {.op = "expert_linear",
                                                .name = "expert_linear avx512",
                                                .needs = NEEDS,
                                                .rank = RANK,
                                                .accepts = expert_accepts,
                                                .scratch_bytes = linear_avx512_expert_scratch_bytes,
                                                .run = linear_avx512_expert_run};
const cpu_body cpu_body_linear_avx512vnni = {.op = "linear",
                                             .name = "linear avx512vnni",
                                             .needs = NEEDS | CPU_AVX512_VNNI,
                                             .rank = RANK + 1,
                                             .accepts = linear_accepts,
                                             .scratch_bytes = linear_avx512vnni_scratch_bytes,
                                             .run = linear_avx512vnni_run};
const cpu_body cpu_body_expert_linear_avx512vnni = {.op = "expert_linear",
                                                    .name = "expert_linear avx512vnni",
                                                    .needs = NEEDS | CPU_AVX512_VNNI,
                                                    .rank = RANK + 1,
                                                    .accepts = expert_accepts,
                                                    .scratch_bytes =
                                                        linear_avx512vnni_expert_scratch_bytes,
                                                    .run = linear_avx512vnni_expert_run};
const cpu_body cpu_body_linear_amx = {.op = "linear",
                                      .name = "linear amx",
                                      .needs = NEEDS | CPU_AVX512_VNNI | CPU_AMX,
                                      .rank = RANK + 2,
                                      .accepts = linear_accepts,
                                      .scratch_bytes = linear_amx_scratch_bytes,
                                      .run = linear_amx_run};
const cpu_body cpu_body_expert_linear_amx = {.op = "expert_linear",
                                             .name = "expert_linear amx",
                                             .needs = NEEDS | CPU_AVX512_VNNI | CPU_AMX,
                                             .rank = RANK + 2,
                                             .accepts = expert_accepts,
                                             .scratch_bytes = linear_amx_expert_scratch_bytes,
                                             .run = linear_amx_expert_run};
const cpu_body cpu_body_attention_avx512 = {.op = "attention",
                                            .name = "attention avx512",
                                            .needs = NEEDS,
                                            .rank = RANK,
                                            .accepts = attend_accepts,
                                            .scratch_bytes = attend_scratch_bytes,
                                            .run = attend_run};
const cpu_body cpu_body_attention_parts_avx512 = {.op = "attention_parts",
                                                  .name = "attention_parts avx512",
                                                  .needs = NEEDS,
                                                  .rank = RANK,
                                                  .accepts = attend_accepts,
                                                  .scratch_bytes = attend_scratch_bytes,
                                                  .run = attend_parts_run};
const cpu_body cpu_body_attention_fold_avx512 = {.op = "attention_fold",
                                                 .name = "attention_fold avx512",
                                                 .needs = NEEDS,
                                                 .rank = RANK,
                                                 .accepts = attend_fold_accepts,
                                                 .scratch_bytes = attend_fold_scratch,
                                                 .run = attend_fold_run};
const cpu_body cpu_body_rms_norm_avx512 = {.op = "rms_norm",
                                           .name = "rms_norm avx512",
                                           .needs = NEEDS,
                                           .rank = RANK,
                                           .accepts = rms_norm_accepts,
                                           .run = rms_norm_run};
const cpu_body cpu_body_rms_norm_parts_avx512 = {.op = "rms_norm_parts",
                                                 .name = "rms_norm_parts avx512",
                                                 .needs = NEEDS,
                                                 .rank = RANK,
                                                 .accepts = rms_norm_parts_accepts,
                                                 .run = rms_norm_parts_run};
const cpu_body cpu_body_rope_kv_avx512 = {.op = "rope_kv",
                                          .name = "rope_kv avx512",
                                          .needs = NEEDS,
                                          .rank = RANK,
                                          .accepts = rope_kv_accepts,
                                          .scratch_bytes = rope_kv_scratch_bytes,
                                          .run = rope_kv_run};
const cpu_body cpu_body_argmax_avx512 = {.op = "argmax",
                                         .name = "argmax avx512",
                                         .needs = NEEDS,
                                         .rank = RANK,
                                         .accepts = argmax_accepts,
                                         .run = argmax_run};
const cpu_body cpu_body_argmax_partial_avx512 = {.op = "argmax_partial",
                                                 .name = "argmax_partial avx512",
                                                 .needs = NEEDS,
                                                 .rank = RANK,
                                                 .accepts = argmax_accepts,
                                                 .run = argmax_partial_run};
