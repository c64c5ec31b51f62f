/* images.h - windows of images: how many there are along an axis, and which convolutions tensor
 * maps can hold.  For the records conv and conv_flat, pass flatten and the body of conv_flat. */
#ifndef OP_IMAGES_H
#define OP_IMAGES_H

#include <stdbool.h>
#include <stdint.h>

/* Places of the result along an axis of n entries; 0: the kernel does not fit.  With n = 5, kernel
 * 3, padding 1 and stride 2 the room is 5 + 2 - 2 - 1 = 4, which gives 4 / 2 + 1 = 3 places.  The
 * numbers are bounded by the caller, so that nothing overflows. */
static inline int64_t images_places(int64_t n, int64_t kernel, int64_t stride, int64_t padding,
                                    int64_t dilation)
{
    const int64_t room = n + 2 * padding - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

/* Does a tensor map of images hold these numbers of an axis?  Steps between places, corners of
 * windows and places within one have few bits there. */
static inline bool images_fit_map(int64_t kernel, int64_t stride, int64_t padding, int64_t dilation)
{
    enum { MOST_STRIDE = 8, MOST_CORNER = 127, MOST_WITHIN = 255 };
    const int64_t within = dilation * (kernel - 1);
    return stride <= MOST_STRIDE && within <= MOST_WITHIN && padding <= MOST_CORNER &&
           within - padding <= MOST_CORNER;
}

#endif
