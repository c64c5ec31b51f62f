/* isa_neon.c - the fast bodies of language models, compiled for arm64 with NEON, which every
 * arm64 processor has; so no pragmas are needed. */
#include <math.h>
#include <string.h>

#include "cpu/expert_fast.h"
#include "op/attend.h"
#include "op/heads.h"
#include "op/largest.h"

#include "cpu/vec_neon.h"

#include "cpu/linear_kernels.h"
#include "cpu/attention_kernels.h"
#include "cpu/row_kernels.h"

enum { NEEDS = CPU_NEON, RANK = 1 };

/* linear and expert_linear for each kind of 8-bit products. Only products with 8-bit activations
 * differ among the three; fp32 ones are the same code. */
LINEAR_SET(linear_neon, int8_neon, NULL)
LINEAR_SET(linear_dotprod, int8_dotprod, NULL)
LINEAR_SET(linear_i8mm, int8_i8mm, NULL)

const cpu_body cpu_body_linear_neon = {.op = "linear",
                                       .name = "linear neon",
                                       .needs = NEEDS,
                                       .rank = RANK,
                                       .accepts = linear_accepts,
                                       .scratch_bytes = linear_neon_scratch_bytes,
                                       .run = linear_neon_run};
const cpu_body cpu_body_expert_linear_neon = {.op = "expert_linear",
                                              .name = "expert_linear neon",
                                              .needs = NEEDS,
                                              .rank = RANK,
                                              .accepts = expert_accepts,
                                              .scratch_bytes = linear_neon_expert_scratch_bytes,
                                              .run = linear_neon_expert_run};
/* sdot adds four products of bytes to 32 bits; optional before Armv8.4. */
const cpu_body cpu_body_linear_dotprod = {.op = "linear",
                                          .name = "linear dotprod",
                                          .needs = NEEDS | CPU_NEON_DOT,
                                          .rank = RANK + 1,
                                          .accepts = linear_accepts,
                                          .scratch_bytes = linear_dotprod_scratch_bytes,
                                          .run = linear_dotprod_run};
const cpu_body cpu_body_expert_linear_dotprod = {.op = "expert_linear",
                                                 .name = "expert_linear dotprod",
                                                 .needs = NEEDS | CPU_NEON_DOT,
                                                 .rank = RANK + 1,
                                                 .accepts = expert_accepts,
                                                 .scratch_bytes =
                                                     linear_dotprod_expert_scratch_bytes,
                                                 .run = linear_dotprod_expert_run};
/* smmla multiplies 2 x 8 by 8 x 2 bytes: two tokens at a time; optional before Armv8.6. */
const cpu_body cpu_body_linear_i8mm = {.op = "linear",
                                       .name = "linear i8mm",
                                       .needs = NEEDS | CPU_NEON_DOT | CPU_NEON_I8MM,
                                       .rank = RANK + 2,
                                       .accepts = linear_accepts,
                                       .scratch_bytes = linear_i8mm_scratch_bytes,
                                       .run = linear_i8mm_run};
const cpu_body cpu_body_expert_linear_i8mm = {.op = "expert_linear",
                                              .name = "expert_linear i8mm",
                                              .needs = NEEDS | CPU_NEON_DOT | CPU_NEON_I8MM,
                                              .rank = RANK + 2,
                                              .accepts = expert_accepts,
                                              .scratch_bytes = linear_i8mm_expert_scratch_bytes,
                                              .run = linear_i8mm_expert_run};
const cpu_body cpu_body_attention_neon = {.op = "attention",
                                          .name = "attention neon",
                                          .needs = NEEDS,
                                          .rank = RANK,
                                          .accepts = attend_accepts,
                                          .scratch_bytes = attend_scratch_bytes,
                                          .run = attend_run};
const cpu_body cpu_body_attention_parts_neon = {.op = "attention_parts",
                                                .name = "attention_parts neon",
                                                .needs = NEEDS,
                                                .rank = RANK,
                                                .accepts = attend_accepts,
                                                .scratch_bytes = attend_scratch_bytes,
                                                .run = attend_parts_run};
const cpu_body cpu_body_attention_fold_neon = {.op = "attention_fold",
                                               .name = "attention_fold neon",
                                               .needs = NEEDS,
                                               .rank = RANK,
                                               .accepts = attend_fold_accepts,
                                               .scratch_bytes = attend_fold_scratch,
                                               .run = attend_fold_run};
const cpu_body cpu_body_rms_norm_neon = {.op = "rms_norm",
                                         .name = "rms_norm neon",
                                         .needs = NEEDS,
                                         .rank = RANK,
                                         .accepts = rms_norm_accepts,
                                         .run = rms_norm_run};
const cpu_body cpu_body_rms_norm_parts_neon = {.op = "rms_norm_parts",
                                               .name = "rms_norm_parts neon",
                                               .needs = NEEDS,
                                               .rank = RANK,
                                               .accepts = rms_norm_parts_accepts,
                                               .run = rms_norm_parts_run};
const cpu_body cpu_body_rope_kv_neon = {.op = "rope_kv",
                                        .name = "rope_kv neon",
                                        .needs = NEEDS,
                                        .rank = RANK,
                                        .accepts = rope_kv_accepts,
                                        .scratch_bytes = rope_kv_scratch_bytes,
                                        .run = rope_kv_run};
const cpu_body cpu_body_argmax_neon = {.op = "argmax",
                                       .name = "argmax neon",
                                       .needs = NEEDS,
                                       .rank = RANK,
                                       .accepts = argmax_accepts,
                                       .run = argmax_run};
const cpu_body cpu_body_argmax_partial_neon = {.op = "argmax_partial",
                                               .name = "argmax_partial neon",
                                               .needs = NEEDS,
                                               .rank = RANK,
                                               .accepts = argmax_accepts,
                                               .run = argmax_partial_run};
