/* boxes.c - tensor maps, by which kernels copy boxes of matrices (gen/device_body.h: gen_boxes) and
 * windows of images (gen/image_of.h).
 *
 * Input: a matrix or images, the address and the shape of a box; output: 128 bytes that a kernel
 * names in its copies.  They hold the address, so what moves needs another map.  No GPU is touched.
 * Relies on the driver for cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col, which came with CUDA
 * 12.0; called by maps.c.
 */
#include "cuda/cuda_machine.h"
#include "shape/linear_tile_shape.h"

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

/* map, data type, rank, address, sizes, strides as above, first and last place at which windows
 * begin, counted from the first and from the last one of a line and of the lines, channels and
 * places of a box, steps between elements, and the rest as above. */
typedef int encode_images(void *, int, unsigned, cuda_address, const uint64_t *, const uint64_t *,
                          const int *, const int *, uint32_t, uint32_t, const uint32_t *, int, int,
                          int, int);

/* Of images of 16 bits with channels last, without gaps; a box is TILE_BOX_COLUMNS channels of
 * TILE_BOX_TOKENS windows, swizzled as rows of a matrix.  Numbers of axes go from the innermost one
 * outwards, so places of a line come before lines.  false: as cuda_map_boxes. */
bool cuda_map_images(const cuda_gpu *g, const gen_image *m, cuda_address at, void *out)
{
    const uint64_t dims[4] = {(uint64_t)m->channels, (uint64_t)m->in[1], (uint64_t)m->in[0],
                              (uint64_t)m->n},
                   pixel = dims[0] * 2,
                   strides[3] = {pixel, pixel * dims[1], pixel * dims[1] * dims[2]};
    int first[2], last[2];
    for (int i = 0; i < 2; i++) {
        const int axis = 1 - i;
        first[i] = -m->padding[axis];
        last[i] = m->padding[axis] - m->dilation[axis] * (m->kernel[axis] - 1);
    }
    const uint32_t steps[4] = {1, (uint32_t)m->stride[1], (uint32_t)m->stride[0], 1};
    void *entry = cuda_find_entry(g, "cuTensorMapEncodeIm2col");
    encode_images *encode;
    memcpy(&encode, &entry, sizeof encode); /* C has no cast from data to a function */
    return encode && at % 16 == 0 && pixel % 16 == 0 &&
           encode(out, MAP_BF16, 4, at, dims, strides, first, last, TILE_BOX_COLUMNS,
                  TILE_BOX_TOKENS, steps, 0, MAP_SWIZZLE_128, MAP_PROMOTE_256, 0) == 0;
}
