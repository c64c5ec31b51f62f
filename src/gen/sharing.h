/* sharing.h - products whose tiles several tasks sum together (device/task/linear_parts.cuh): by
 * how many tasks.  The host places where they meet (src/cuda/parts.c); a call whose products share
 * none has no code for it (source.c). */
#ifndef GEN_SHARING_H
#define GEN_SHARING_H

#include "gen/source.h"

/* Of one operator.  n: tasks of a tile, a power of two; 1: a task has its tile alone; 0: its tasks
 * are not alike. */
typedef struct gen_sharing {
    uint32_t n;
    uint32_t n_across;  /* tasks with the same tokens */
    uint32_t n_columns; /* of a task; where each is alone, of the largest */
    uint32_t first;     /* number in the graph of the first task, which the others follow */
    uint32_t n_tasks;
} gen_sharing;

/* joint: products of at most 64 tokens may come by boxes, too.  seen: [n_workers of all peers],
 * overwritten. */
gen_sharing gen_find_sharing(const gen_graph *g, ir_op_id op, const gen_use *use, bool joint,
                             uint32_t n_workers, bool *seen);
/* Has the operator a norm whose sums of squares it may take from the product that makes its x
 * (device/task/row_squares.cuh)?  use: of the operator, with a body or without. */
bool gen_takes_squares(const ir_graph *g, ir_op_id op, const gen_use *use);
/* Take TILE_FORM_PARTS out of the forms of a call, of one graph, unless some product shares tiles,
 * and TILE_FORM_SQUARES unless one has a norm that may take squares of rows
 * (device/task/row_squares.cuh).  uses: of its operators. */
mpk_status gen_drop_parts(mpk_context *cx, arena *a, const gen_graph *g, const gen_use *uses,
                          uint32_t n_workers, uint64_t *forms);

#endif
