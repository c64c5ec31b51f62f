/* rope_tile_shape.h - rotating the heads of many tokens, as host and device see it
 * (gen/body_rope_tile.c, device/task/rope_tile.cuh): the fields of an instance, its scratch, its
 * operands, the pages that it takes. */
#ifndef SHAPE_ROPE_TILE_SHAPE_H
#define SHAPE_ROPE_TILE_SHAPE_H

#include "shape/fields.h"

enum {
    ROTATE_PAGE = 64,                /* positions of a KV page: no other length is taken */
    ROTATE_PLACES = 1 << 18,         /* bits of the map of places that are written */
    ROTATE_FLAG = ROTATE_PLACES / 8, /* scratch: the map, then 1 if a place was met twice */
    ROTATE_SCRATCH = ROTATE_FLAG + 16,
};
SHAPE_ASSERT(rotate_scratch_is_cleared_16_bytes_at_a_time, ROTATE_SCRATCH % 16 == 0);

/* Operands in rt_entry.at; the outputs follow from rotate_shape.q on. */
enum {
    ROTATE_QKV,
    ROTATE_TABLE,
    ROTATE_POSITIONS,
    ROTATE_SLOTS,
    ROTATE_PAGES,
    ROTATE_K_CACHE,
    ROTATE_V_CACHE,
    ROTATE_Q_NORM,
    ROTATE_K_NORM
};

/*   tokens                    that the operands have room for: a step in which all is alive counts
 *                             more
 *   heads, kv_heads           of q; of k and of v
 *   cache                     which of mpk_caches
 *   q_norm_type, k_norm_type  0 bf16, 1 f32, -1 absent
 *   eps                       of both norms
 *   q                         operand of the first output */
/* clang-format off */
#define ROTATE_SHAPE_FIELDS(INT, FLOAT)                          \
    INT(tokens) INT(heads) INT(kv_heads) INT(cache)            \
    INT(q_norm_type) INT(k_norm_type) FLOAT(eps) INT(q)
/* clang-format on */

typedef struct rotate_shape {
    ROTATE_SHAPE_FIELDS(FIELD_INT, FIELD_FLOAT)
} rotate_shape;
SHAPE_ASSERT(rotate_shape_has_no_padding, sizeof(rotate_shape) == 8 * 4);

#endif
