/* rt_pack.h - the wire format of loading: what the host asks the GPU's loading kernels
 * (device/pack.cuh) to do.
 *
 * Weights go to the GPU in pieces of whole rows.  A piece is packed from a staging buffer into the
 * layout that bodies stream (gen/device_body.h), or made up on the spot; so there is never a second
 * copy of the model.
 */
#ifndef RT_PACK_H
#define RT_PACK_H

#include "rt/rt_port.h"

/* Formats of floats.  Same order as ir_dtype. */
enum { RT_PACK_F32, RT_PACK_F16, RT_PACK_BF16 };

/* Rows [first_row, first_row + n_rows) of matrix `which` of a packed weight. */
typedef struct rt_pack {
    rt_u64 from, to; /* device addresses: of row first_row, dense; of the packed weight */
    rt_u64 scale;    /* one number for each column, or 0 */
    /* of rows that are centred (rt_centre.h): floats of the packed rows, for the product of each by
     * shift, one number for each column or 0; 0: rows are not centred */
    rt_u64 added, shift;
    rt_u64 first_row, n_rows;
    rt_u64 base_row; /* in order of rows: rows of the matrices before this one */
    rt_u64 columns, padded_columns;
    rt_u32 dtype, scale_dtype; /* RT_PACK_*; with a form RT_FORMAT_* (rt_blocks.h), no scale */
    rt_u32 shift_dtype, reserved;
    rt_u32 paired, which; /* paired: rows of matrices 0 and 1 in turn */
    rt_u32 to_dtype;      /* of the packed weight: RT_PACK_F16 or RT_PACK_BF16 */
    rt_u32 form;          /* RT_BLOCKS_*: it stays in blocks, and to_dtype means nothing */
} rt_pack;

/* Elements [first, first + n) of a random weight: mean + deviation * a nearly normal number
 * (base/rng.h), that of the element in the whole weight.  Of a part (host_share) run i begins with
 * element base + i * step of it. */
typedef struct rt_fill {
    rt_u64 to; /* of element `first` */
    rt_u64 stream, first, n;
    rt_u64 base, step, run; /* step 0: there is one run */
    float mean, deviation;
    rt_u32 dtype, reserved;
} rt_fill;

typedef char rt_size_of_pack[sizeof(rt_pack) == 112 ? 1 : -1];
typedef char rt_size_of_fill[sizeof(rt_fill) == 72 ? 1 : -1];

#endif
