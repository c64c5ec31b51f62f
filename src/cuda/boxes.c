/* boxes.c - tensor maps, by which kernels copy boxes of matrices (gen/device_body.h: gen_boxes).
 *
 * Input: a matrix, its address and the shape of a box; output: 128 bytes that a kernel names in
 * its copies.  They hold the address, so a matrix that moves needs another map.  No GPU is touched.
 * Relies on the driver for cuTensorMapEncodeTiled, which came with CUDA 12.0; called by tables.c.
 */
#include "cuda/cuda_machine.h"

/* Numbers of CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion. */
enum {
    MAP_F64 = 8,
    MAP_BF16 = 9,
    MAP_SWIZZLE_NONE = 0,
    MAP_SWIZZLE_128 = 3,
    MAP_PROMOTE_256 = 3, /* what is fetched into L2 at a time */
};

/* map, data type, rank, address, sizes, strides in bytes of all axes but the first, box, steps
 * between elements, interleave, swizzle, promotion, what is read outside (0: zeros). */
typedef int encode_tiled(void *, int, unsigned, cuda_address, const uint64_t *, const uint64_t *,
                         const uint32_t *, const uint32_t *, int, int, int, int);

/* false: an older driver, or an address or a stride that tensor maps cannot take. */
bool cuda_map_boxes(const cuda_gpu *g, const gen_boxes *m, cuda_address at, void *out)
{
    const uint64_t dims[2] = {m->columns, m->rows}, strides[1] = {m->stride_bytes};
    const uint32_t box[2] = {m->box_columns, m->box_rows}, steps[2] = {1, 1};
    const int dtype = m->element_bytes == 2 ? MAP_BF16 : MAP_F64;
    const int swizzle = m->swizzled ? MAP_SWIZZLE_128 : MAP_SWIZZLE_NONE;
    void *entry = cuda_find_entry(g, "cuTensorMapEncodeTiled");
    encode_tiled *encode;
    memcpy(&encode, &entry, sizeof encode); /* C has no cast from data to a function */
    return encode && at % 16 == 0 && m->stride_bytes % 16 == 0 &&
           encode(out, dtype, 2, at, dims, strides, box, steps, 0, swizzle, MAP_PROMOTE_256, 0) ==
               0;
}
