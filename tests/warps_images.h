/* warps_images.h - convolutions of images for body_warps_test.c (warps_graphs.h has the other
 * graphs). */
#ifndef TESTS_WARPS_IMAGES_H
#define TESTS_WARPS_IMAGES_H

/* Convolutions of images as products of boxes: images smaller and larger than a box of 64 places,
 * whose rows and images end within one; several lots, passes and parts of a kernel's entries; all
 * that surrounds the product. */
#define IMAGES(x, w, rest) \
    "input %x : bf16[" x "]\nconst %w : bf16[" w "]\n%y = conv_flat(%x, %w) {" rest "}\n"
static const char *const image_graphs[] = {
    IMAGES("3, 7, 7, 64", "136, 576", "kernel = [3, 3], padding = [1, 1]"),
    IMAGES("1, 14, 14, 128", "64, 3, 3, 128", "kernel = [3, 3], padding = [1, 1], stride = [2, 2]"),
    IMAGES("2, 12, 17, 64", "296, 128", "kernel = [1, 2], padding = [0, 1], stride = [1, 2]"),
    IMAGES("3, 28, 28, 64", "72, 64", "stride = [2, 2], relu = 1"),
    IMAGES("1, 15, 9, 64", "40, 576",
           "kernel = [3, 3], dilation = [2, 3], padding = [2, 3], stride = [1, 1]"),
    IMAGES("1, 30, 17, 64", "8, 960", "kernel = [5, 3], padding = [2, 0], stride = [3, 1]"),
    IMAGES("5, 3, 2, 320", "320, 320, 1, 1", "relu = 1"),
    "input %x : bf16[2, 10, 10, 64]\nconst %w : bf16[200, 576]\nconst %s : f32[200]\nconst %b : "
    "f32[200]\ninput %r : bf16[200, 200]\n%y = conv_flat(%x, %w, %s, %b, _, %r) {kernel = [3, 3], "
    "padding = [1, 1], relu = 1}\n",
    "input %x : bf16[1, 13, 11, 128]\nconst %w : bf16[64, 512]\nconst %b : bf16[64]\ninput %s : "
    "bf16[64]\n%y = conv_flat(%x, %w, _, %b, %s) {kernel = [2, 2]}\n",
    "input %x : bf16[1, 9, 9, 64]\nconst %w : bf16[96, 576]\nconst %s : bf16[96]\n%y = "
    "conv_flat(%x, %w, %s) {kernel = [3, 3]}\n",
};

#endif
