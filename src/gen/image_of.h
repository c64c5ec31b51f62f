/* image_of.h - the images of a conv_flat as its bodies and tensor maps see them: sizes, and how
 * windows lie in them.  Numbers of the lines (the first axis of places) come first, then those of
 * the places in a line. */
#ifndef GEN_IMAGE_OF_H
#define GEN_IMAGE_OF_H

#include "ir/ir.h"

typedef struct gen_image {
    int n, in[2], channels; /* of x: images, places, channels */
    int out[2];             /* places of the result */
    int kernel[2], stride[2], padding[2], dilation[2];
} gen_image;

/* op: a conv_flat. */
gen_image gen_image_of(const ir_graph *g, const ir_op *op);

#endif
