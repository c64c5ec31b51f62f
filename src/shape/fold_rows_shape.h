/* fold_rows_shape.h - the limits of putting parts of an attention together, as host and device see
 * them (gen/body_fold_rows.c, device/task/fold_rows.cuh). */
#ifndef SHAPE_FOLD_ROWS_SHAPE_H
#define SHAPE_FOLD_ROWS_SHAPE_H

enum {
    FOLD_LANES = 32,                   /* splits of a lot: a lane of a warp each */
    FOLD_MOST_SPLITS = 8 * FOLD_LANES, /* lots are the template's parameter */
    FOLD_PIECE = 8 * FOLD_LANES,       /* columns of a warp: a lane adds 8 */
    FOLD_MOST_SIZE = 4 * FOLD_PIECE,   /* of a head */
};

/* Operands in rt_entry.at. */
enum { FOLD_PART, FOLD_LSE, FOLD_SINKS, FOLD_Y };

/* The dtype of the sinks: a constant of the instance. */
enum { FOLD_NO_SINKS, FOLD_F32_SINKS, FOLD_BF16_SINKS };

#endif
