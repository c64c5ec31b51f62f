/* isa_avx2.c - the fast bodies of language models, compiled for AVX2, with FMA and F16C.
 *
 * Everything between the pragmas is compiled for these instructions, and so must be static: of a
 * function that two files define inline, the linker could take the wrong one, which fails on a
 * processor without the instructions.  Headers that other files share are included before.
 */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "cpu/expert_fast.h"
#include "op/attend.h"
#include "op/heads.h"
#include "op/largest.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#include "cpu/vec_avx2.h"
#include "cpu/linear_kernels.h"
#include "cpu/attention_kernels.h"
#include "cpu/row_kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/* What the bodies need; their rank among the bodies of other instruction sets. */
enum { NEEDS = CPU_AVX2, RANK = 1 };

/* linear and expert_linear, with and without the dot products of AVX-VNNI. */
LINEAR_SET(linear_avx2, int8_avx2, NULL)
LINEAR_SET(linear_avxvnni, int8_avxvnni, NULL)

const cpu_body cpu_body_linear_avx2 = {.op = "linear",
                                       .name = "linear avx2",
                                       .needs = NEEDS,
                                       .rank = RANK,
                                       .accepts = linear_accepts,
                                       .scratch_bytes = linear_avx2_scratch_bytes,
                                       .run = linear_avx2_run};
const cpu_body cpu_body_expert_linear_avx2 = {.op = "expert_linear",
                                              .name = "expert_linear avx2",
                                              .needs = NEEDS,
                                              .rank = RANK,
                                              .accepts = expert_accepts,
                                              .scratch_bytes = linear_avx2_expert_scratch_bytes,
                                              .run = linear_avx2_expert_run};
const cpu_body cpu_body_linear_avxvnni = {.op = "linear",
                                          .name = "linear avxvnni",
                                          .needs = NEEDS | CPU_AVX_VNNI,
                                          .rank = RANK + 1,
                                          .accepts = linear_accepts,
                                          .scratch_bytes = linear_avxvnni_scratch_bytes,
                                          .run = linear_avxvnni_run};
const cpu_body cpu_body_expert_linear_avxvnni = {.op = "expert_linear",
                                                 .name = "expert_linear avxvnni",
                                                 .needs = NEEDS | CPU_AVX_VNNI,
                                                 .rank = RANK + 1,
                                                 .accepts = expert_accepts,
                                                 .scratch_bytes =
                                                     linear_avxvnni_expert_scratch_bytes,
                                                 .run = linear_avxvnni_expert_run};
const cpu_body cpu_body_attention_avx2 = {.op = "attention",
                                          .name = "attention avx2",
                                          .needs = NEEDS,
                                          .rank = RANK,
                                          .accepts = attend_accepts,
                                          .scratch_bytes = attend_scratch_bytes,
                                          .run = attend_run};
const cpu_body cpu_body_attention_parts_avx2 = {.op = "attention_parts",
                                                .name = "attention_parts avx2",
                                                .needs = NEEDS,
                                                .rank = RANK,
                                                .accepts = attend_accepts,
                                                .scratch_bytes = attend_scratch_bytes,
                                                .run = attend_parts_run};
const cpu_body cpu_body_attention_fold_avx2 = {.op = "attention_fold",
                                               .name = "attention_fold avx2",
                                               .needs = NEEDS,
                                               .rank = RANK,
                                               .accepts = attend_fold_accepts,
                                               .scratch_bytes = attend_fold_scratch,
                                               .run = attend_fold_run};
const cpu_body cpu_body_rms_norm_avx2 = {.op = "rms_norm",
                                         .name = "rms_norm avx2",
                                         .needs = NEEDS,
                                         .rank = RANK,
                                         .accepts = rms_norm_accepts,
                                         .run = rms_norm_run};
const cpu_body cpu_body_rms_norm_parts_avx2 = {.op = "rms_norm_parts",
                                               .name = "rms_norm_parts avx2",
                                               .needs = NEEDS,
                                               .rank = RANK,
                                               .accepts = rms_norm_parts_accepts,
                                               .run = rms_norm_parts_run};
const cpu_body cpu_body_rope_kv_avx2 = {.op = "rope_kv",
                                        .name = "rope_kv avx2",
                                        .needs = NEEDS,
                                        .rank = RANK,
                                        .accepts = rope_kv_accepts,
                                        .scratch_bytes = rope_kv_scratch_bytes,
                                        .run = rope_kv_run};
const cpu_body cpu_body_argmax_avx2 = {.op = "argmax",
                                       .name = "argmax avx2",
                                       .needs = NEEDS,
                                       .rank = RANK,
                                       .accepts = argmax_accepts,
                                       .run = argmax_run};
const cpu_body cpu_body_argmax_partial_avx2 = {.op = "argmax_partial",
                                               .name = "argmax_partial avx2",
                                               .needs = NEEDS,
                                               .rank = RANK,
                                               .accepts = argmax_accepts,
                                               .run = argmax_partial_run};
