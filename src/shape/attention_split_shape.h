/* attention_split_shape.h - attention of few tokens over streamed pages, as host and device see it
 * (gen/body_attention_split_stream.c, device/task/attention_split_stream.cuh). */
#ifndef SHAPE_ATTENTION_SPLIT_SHAPE_H
#define SHAPE_ATTENTION_SPLIT_SHAPE_H

#include "shape/fields.h"

/* Limits. */
enum {
    ATTENTION_PAGE = 64, /* tokens of a KV page */
    ATTENTION_ROWS = 8,  /* query heads of a KV head, at most */
    ATTENTION_FEW_TOKENS = 16,
    ATTENTION_TOKENS = 256,   /* T, at most: lots of 32, a lane each */
    ATTENTION_STEP_ROWS = 64, /* keys and values of the step for all warps */
    ATTENTION_PARTIALS = 9,   /* of 8 warps, and of the tokens of the step */
};

/* Operands in rt_entry.at. */
enum {
    AT_QKV,
    AT_TABLE,
    AT_POSITIONS,
    AT_SLOTS,
    AT_PAGES,
    AT_K_CACHE,
    AT_V_CACHE,
    AT_Q_NORM,
    AT_K_NORM
};

/* Scratch for heads of K elements, `group` query heads each, for up to this many tokens: offsets in
 * bytes.
 *
 *   ROW     bytes of a row of bf16, apart from the next in banks
 *   QUERY   bf16[ATTENTION_ROWS][K]
 *   MOST    float[ATTENTION_PARTIALS][8] largest score, SUM the same of weights
 *   OUT     float[ATTENTION_PARTIALS][group][K]
 *   KEY     bf16[rows][K] of the step, VALUE the same; rows: one for each token, or of more than
 *           ATTENTION_STEP_ROWS that many, and one for each warp */
#define ATTENTION_SCRATCH_ROW(K) ((K)*2 + 16)
#define ATTENTION_SCRATCH_QUERY(K) 0
#define ATTENTION_SCRATCH_MOST(K) (ATTENTION_ROWS * ATTENTION_SCRATCH_ROW(K))
#define ATTENTION_SCRATCH_SUM(K) (ATTENTION_SCRATCH_MOST(K) + ATTENTION_PARTIALS * 32)
#define ATTENTION_SCRATCH_OUT(K) (ATTENTION_SCRATCH_SUM(K) + ATTENTION_PARTIALS * 32)
#define ATTENTION_SCRATCH_KEY(K, group) \
    (ATTENTION_SCRATCH_OUT(K) + ATTENTION_PARTIALS * (group) * (K)*4)
#define ATTENTION_SCRATCH_ROWS(tokens) \
    ((tokens) <= ATTENTION_STEP_ROWS ? (tokens) : ATTENTION_STEP_ROWS + 8)
#define ATTENTION_SCRATCH_VALUE(K, group, tokens) \
    (ATTENTION_SCRATCH_KEY(K, group) + ATTENTION_SCRATCH_ROWS(tokens) * ATTENTION_SCRATCH_ROW(K))
#define ATTENTION_SCRATCH_BYTES(K, group, tokens) \
    (ATTENTION_SCRATCH_VALUE(K, group, tokens) +  \
     ATTENTION_SCRATCH_ROWS(tokens) * ATTENTION_SCRATCH_ROW(K))

/*   heads, kv_heads, head_size, group   group: query heads of a KV head
 *   splits, unit, own, window           attributes of the operator
 *   slots, slot_pages, n_pages          of the KV cache: known when the kernel is loaded
 *                                       (mpk_caches)
 *   norm_type                           of q_norm and k_norm: 0 bf16, 1 f32, -1 absent
 *   eps, scale                          scale: for scores in powers of 2
 *   cap, cap_rate                       of scores in powers of 2, as mpk_capped takes them
 *                                       (tile/cap.cuh); 0: none
 *   part                                operand of the first output */
/* clang-format off */
#define ATTENTION_SHAPE_FIELDS(INT, CACHE, FLOAT)                                       \
    INT(heads) INT(kv_heads) INT(head_size) INT(group) INT(splits) INT(unit) INT(own)   \
    INT(window) CACHE(slots) CACHE(slot_pages) CACHE(n_pages) INT(norm_type) FLOAT(eps) \
    FLOAT(scale) FLOAT(cap) FLOAT(cap_rate) INT(part)
/* clang-format on */

typedef struct attention_shape {
    ATTENTION_SHAPE_FIELDS(FIELD_INT, FIELD_INT, FIELD_FLOAT)
} attention_shape;
SHAPE_ASSERT(attention_shape_has_no_padding, sizeof(attention_shape) == 17 * 4);

#endif
