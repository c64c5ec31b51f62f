/* box_image.cuh - boxes of x of products that are convolutions of images (gen/body_conv_tile.c): 64
 * channels of 64 windows at one entry of the kernel.
 *
 * Rows of such a product are places of the result, and its columns, 64 a step, the channels of the
 * kernel's first entry, then those of the second, and so on.  The map of x knows the image, its
 * padding and the steps between places (src/cuda/boxes.c).  A box is named by where the window of
 * its first row begins in x, and by where in the window its entry lies; the copy engine goes on
 * from there to the windows of the next rows, over the ends of lines and images, and brings zeros
 * for what lies in the padding.  A box is always whole: 64 rows of 128 bytes, as those of a matrix.
 *
 *   kernel 3 x 3, 128 channels:  step      0     1     2     3   ...    6    ...
 *                                entry   (0,0) (0,0) (0,1) (0,1)      (1,0)
 *                                channel   0    64     0    64          0
 *
 * linear_box.cuh asks for the first boxes of a lot, linear_box_ask.cuh for those after them, step
 * by step.  Without images (MPK_IMAGES) nothing of it is compiled.
 */
#ifndef TASK_BOX_IMAGE_CUH
#define TASK_BOX_IMAGE_CUH

#include "task/tile_end.cuh"

#if MPK_IMAGES

/* Where a row's window begins in x. */
struct image_place {
    int right, down, n; /* place in the line, line: negative in the padding; image */
};

/* Which entry of the kernel a step brings, and from which channel on. */
struct image_entry {
    int channel, right, down; /* places from where the window begins */
};

/* What the asking lane keeps of a lot: both warpgroups' first rows, and the next step's entry. */
struct image_asker {
    image_place place[2];
    image_entry entry;
};

/* Where the window of a row begins.  A row beyond the last one is given the last one's window: its
 * results are not stored, and its box begins within x. */
MPK_FN image_place image_place_of(const tile_shape &s, int row)
{
    const tile_image &m = s.image;
    const rt_u32 at = (rt_u32)(row < m.rows ? row : m.rows - 1), line = at / (rt_u32)m.out[1],
                 n = line / (rt_u32)m.out[0];
    return {(int)(at - line * (rt_u32)m.out[1]) * m.stride[1] - m.padding[1],
            (int)(line - n * (rt_u32)m.out[0]) * m.stride[0] - m.padding[0], (int)n};
}

/* The entry of a step. */
MPK_FN image_entry image_entry_of(const tile_shape &s, int step)
{
    const tile_image &m = s.image;
    const rt_u32 column = (rt_u32)step * TILE_BOX_COLUMNS, entry = column / (rt_u32)m.channels,
                 right = entry * (rt_u32)m.dilation[1], lines = right / (rt_u32)m.across;
    return {(int)(column - entry * (rt_u32)m.channels), (int)(right - lines * (rt_u32)m.across),
            (int)lines * m.dilation[0]};
}
/* That of the next step, without divisions. */
MPK_FN void image_next(const tile_shape &s, image_asker *a)
{
    image_entry *e = &a->entry;
    e->channel += TILE_BOX_COLUMNS;
    if (e->channel != s.image.channels)
        return;
    e->channel = 0;
    e->right += s.image.dilation[1];
    if (e->right != s.image.across)
        return;
    e->right = 0;
    e->down += s.image.dilation[0];
}

/* One lane: request a box of row `row` and the rows after it, of the task's step number `step`; to:
 * ptx_shared of a stage, which is free. */
MPK_FN void image_ask(rt_u32 to, const rt_map *map, const tile_shape &s, int row, int step,
                      rt_u64 *full)
{
    const image_place p = image_place_of(s, row);
    const image_entry e = image_entry_of(s, step);
    ptx_copy_image(to, map, e.channel, p.right, p.down, p.n, e.right, e.down, full);
}

/* To ask for a lot's boxes step by step, from number `step` on; row: the lot's first; apart: rows
 * from the first warpgroup's to the second's. */
MPK_FN image_asker image_asker_of(const tile_shape &s, int step, int row, int apart)
{
    return {{image_place_of(s, row), image_place_of(s, row + apart)}, image_entry_of(s, step)};
}
MPK_FN void image_ask_half(rt_u32 to, const rt_map *map, const image_asker &a, int half,
                           rt_u64 *full)
{
    const image_place &p = a.place[half];
    ptx_copy_image(to, map, a.entry.channel, p.right, p.down, p.n, a.entry.right, a.entry.down,
                   full);
}

#else

/* Never called. */
struct image_asker {
};
MPK_FN void image_ask(rt_u32, const rt_map *, const tile_shape &, int, int, rt_u64 *) {}
MPK_FN image_asker image_asker_of(const tile_shape &, int, int, int)
{
    return {};
}
MPK_FN void image_ask_half(rt_u32, const rt_map *, const image_asker &, int, rt_u64 *) {}
MPK_FN void image_next(const tile_shape &, image_asker *) {}

#endif

#endif
