/* rope_tile_shape.h - rotating the heads of many tokens, as host and device see it
 * (gen/body_rope_tile.c, device/task/rope_tile.cuh): the fields of an instance, its scratch, its
 * operands, the pages that it takes. */
#ifndef SHAPE_ROPE_TILE_SHAPE_H
#define SHAPE_ROPE_TILE_SHAPE_H

#include "shape/fields.h"

enum {
    ROTATE_PAGE = 64,        /* positions of a KV page: no other length is taken */
    ROTATE_MOST_DIMS = 256,  /* of a head */
    ROTATE_INVERSE = 30,     /* rotate_shape.inverse is 1 / group times 2 to this power */
    ROTATE_OWN = 512,        /* tokens whose places are found together */
    ROTATE_PLACES = 1 << 14, /* bits of the map of their places */
    /* scratch: places, the map, the weights of two norms, values of 8 warps, 8 positions and
     * 8 slots for each of 256 threads */
    ROTATE_SCRATCH =
        ROTATE_OWN * 4 + ROTATE_PLACES / 8 + 2 * ROTATE_MOST_DIMS * 4 + 8 * 2048 + 8 * 256 * 4 * 2,
};

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
 *   group, inverse            query heads of a KV head; 2^ROTATE_INVERSE / group, rounded up
 *   cache                     which of mpk_caches
 *   q_norm_type, k_norm_type  0 bf16, 1 f32, -1 absent
 *   eps                       of both norms
 *   q                         operand of the first output */
/* clang-format off */
#define ROTATE_SHAPE_FIELDS(INT, FLOAT)                          \
    INT(tokens) INT(heads) INT(kv_heads) INT(group) INT(inverse) INT(cache) \
    INT(q_norm_type) INT(k_norm_type) FLOAT(eps) INT(q)
/* clang-format on */

typedef struct rotate_shape {
    ROTATE_SHAPE_FIELDS(FIELD_INT, FIELD_FLOAT)
} rotate_shape;
SHAPE_ASSERT(rotate_shape_has_no_padding, sizeof(rotate_shape) == 10 * 4);

#endif
