/* rope_tile_shape.h - turning the heads of many tokens, as host and device see it
 * (gen/body_rope_tile.c, device/task/rope_tile.cuh): the fields of an instance, its scratch, its
 * operands, the pages that it takes. */
#ifndef SHAPE_ROPE_TILE_SHAPE_H
#define SHAPE_ROPE_TILE_SHAPE_H

#include "shape/fields.h"

enum {
    TURN_PAGE = 64,              /* positions of a KV page: no other length is taken */
    TURN_PLACES = 1 << 18,       /* bits of the map of places that are written */
    TURN_FLAG = TURN_PLACES / 8, /* scratch: the map, then 1 if a place was met twice */
    TURN_SCRATCH = TURN_FLAG + 16,
};
SHAPE_ASSERT(turn_scratch_is_cleared_16_bytes_at_a_time, TURN_SCRATCH % 16 == 0);

/* Operands in rt_entry.at; the outputs follow from turn_shape.q on. */
enum {
    TURN_QKV,
    TURN_TABLE,
    TURN_POSITIONS,
    TURN_SLOTS,
    TURN_PAGES,
    TURN_K_CACHE,
    TURN_V_CACHE,
    TURN_Q_NORM,
    TURN_K_NORM
};

/*   tokens                    that the operands have room for: a step in which all is alive counts
 *                             more
 *   heads, kv_heads           of q; of k and of v
 *   cache                     which of mpk_caches
 *   q_norm_type, k_norm_type  0 bf16, 1 f32, -1 absent
 *   eps                       of both norms
 *   q                         operand of the first output */
/* clang-format off */
#define TURN_SHAPE_FIELDS(INT, FLOAT)                          \
    INT(tokens) INT(heads) INT(kv_heads) INT(cache)            \
    INT(q_norm_type) INT(k_norm_type) FLOAT(eps) INT(q)
/* clang-format on */

typedef struct turn_shape {
    TURN_SHAPE_FIELDS(FIELD_INT, FIELD_FLOAT)
} turn_shape;
SHAPE_ASSERT(turn_shape_has_no_padding, sizeof(turn_shape) == 8 * 4);

#endif
