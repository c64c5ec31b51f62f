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
    ATTENTION_STEP_ROWS = 64, /* keys and values of the step in scratch, at most */
    /* A piece is done by a team of all warps, or by one of two teams of 4, which bring fewer rows
     * of the step at a time. */
    ATTENTION_WHOLE_TEAM = 8,
    ATTENTION_HALF_TEAM = 4,
    ATTENTION_HALF_ROWS = 16,
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

/* Scratch of a team of `team` warps for heads of K elements, `group` query heads each, for up to
 * this many tokens: offsets in bytes.
 *
 *   ROW     bytes of a row of bf16, apart from the next in banks
 *   QUERY   bf16[ATTENTION_ROWS][K]
 *   MOST    float[partials][8] largest score, SUM the same of weights; partials: of each warp, and
 *           of the tokens of the step
 *   OUT     float[partials][group][K]
 *   KEY     bf16[rows][K] of the step, VALUE the same
 *   TEAM    all of it */
#define ATTENTION_SCRATCH_ROW(K) ((K)*2 + 16)
#define ATTENTION_SCRATCH_QUERY(K) 0
#define ATTENTION_SCRATCH_MOST(K) (ATTENTION_ROWS * ATTENTION_SCRATCH_ROW(K))
#define ATTENTION_SCRATCH_SUM(K, team) (ATTENTION_SCRATCH_MOST(K) + ((team) + 1) * 32)
#define ATTENTION_SCRATCH_OUT(K, team) (ATTENTION_SCRATCH_SUM(K, team) + ((team) + 1) * 32)
#define ATTENTION_SCRATCH_KEY(K, group, team) \
    (ATTENTION_SCRATCH_OUT(K, team) + ((team) + 1) * (group) * (K)*4)
#define ATTENTION_SCRATCH_ROWS(tokens, team)                 \
    ((team) < ATTENTION_WHOLE_TEAM     ? ATTENTION_HALF_ROWS \
     : (tokens) <= ATTENTION_STEP_ROWS ? (tokens)            \
                                       : ATTENTION_STEP_ROWS)
#define ATTENTION_SCRATCH_VALUE(K, group, tokens, team) \
    (ATTENTION_SCRATCH_KEY(K, group, team) +            \
     ATTENTION_SCRATCH_ROWS(tokens, team) * ATTENTION_SCRATCH_ROW(K))
#define ATTENTION_SCRATCH_TEAM(K, group, tokens, team) \
    (ATTENTION_SCRATCH_VALUE(K, group, tokens, team) + \
     ATTENTION_SCRATCH_ROWS(tokens, team) * ATTENTION_SCRATCH_ROW(K))
/* Of all teams. */
#define ATTENTION_SCRATCH_BYTES(K, group, tokens, team) \
    (ATTENTION_WHOLE_TEAM / (team)*ATTENTION_SCRATCH_TEAM(K, group, tokens, team))

/*   heads, kv_heads, head_size, group   group: query heads of a KV head
 *   splits, unit, own, window           attributes of the operator
 *   slots, slot_pages, n_pages          of the KV cache: known when the kernel is loaded
 *                                       (mpk_caches)
 *   norm_type                           of q_norm and k_norm: -1 absent, else 0 bf16, or
 *                                       ATTENTION_NORM_F32, and ATTENTION_NORM_LAST if they follow
 *                                       the rotation
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

enum { ATTENTION_NORM_F32 = 1, ATTENTION_NORM_LAST = 2 };

typedef struct attention_shape {
    ATTENTION_SHAPE_FIELDS(FIELD_INT, FIELD_INT, FIELD_FLOAT)
} attention_shape;
SHAPE_ASSERT(attention_shape_has_no_padding, sizeof(attention_shape) == 17 * 4);

#endif
