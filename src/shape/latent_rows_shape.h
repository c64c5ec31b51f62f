/* latent_rows_shape.h - queries of latent attention and the latents that it caches, as host and
 * device see them (gen/body_latent_rows.c, device/task/latent_rows.cuh): the fields of an instance,
 * its operands. */
#ifndef SHAPE_LATENT_ROWS_SHAPE_H
#define SHAPE_LATENT_ROWS_SHAPE_H

#include "shape/fields.h"

/* Entries of a latent: four pieces of 16 bytes a lane; pairs that are rotated: one piece of both
 * halves a lane. */
enum { LATENT_ROWS_MOST = 1024, LATENT_ROWS_MOST_PAIRS = 256 };

/* Operands in rt_entry.at; the cache is written in place. */
enum {
    LATENT_ROWS_PLAIN,
    LATENT_ROWS_Q,
    LATENT_ROWS_LATENT,
    LATENT_ROWS_KEY,
    LATENT_ROWS_TABLE,
    LATENT_ROWS_NORM,
    LATENT_ROWS_POSITIONS,
    LATENT_ROWS_SLOTS,
    LATENT_ROWS_PAGES,
    LATENT_ROWS_CACHE
};

/*   heads                     of a token
 *   latent                    entries of a latent, and of a head that are joined
 *   half                      pairs that are rotated: a head has latent + 2 half entries
 *   plain_token, plain_head   elements from a token's row to the next, from a head's; and so on
 *   tokens                    that the operands have room for: a step in which all is alive counts
 *                             more
 *   cache                     which of mpk_caches
 *   page                      positions of a page
 *   norm_type                 of the norm's weight, 0: halves as all the rest, 1: f32
 *   query                     operand of the first output
 *   eps                       of the norm */
/* clang-format off */
#define LATENT_ROWS_FIELDS(INT, FLOAT)                                     \
    INT(heads) INT(latent) INT(half) INT(plain_token) INT(plain_head)     \
    INT(q_token) INT(q_head) INT(latent_token) INT(key_token) INT(tokens) \
    INT(cache) INT(page) INT(norm_type) INT(query) FLOAT(eps)
/* clang-format on */

typedef struct latent_rows_shape {
    LATENT_ROWS_FIELDS(FIELD_INT, FIELD_FLOAT)
} latent_rows_shape;
SHAPE_ASSERT(latent_rows_shape_has_no_padding, sizeof(latent_rows_shape) == 15 * 4);

#endif
