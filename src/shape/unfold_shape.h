/* unfold_shape.h - the lines of images that a task of unfold keeps in scratch (gen/body_unfold.c,
 * device/task/unfold_lines.cuh). */
#ifndef SHAPE_UNFOLD_SHAPE_H
#define SHAPE_UNFOLD_SHAPE_H

/* Entries of a piece, 16 bytes of 16 bits; bytes of scratch at most; lines of the result that are
 * made at once, at most. */
enum { UNFOLD_PIECE = 8, UNFOLD_MOST_BYTES = 32 << 10, UNFOLD_MOST_LINES = 16 };

/* Where column 0 of an image lies in a line that is kept: after the padding, in whole pieces. */
static inline int unfold_left(int padding)
{
    return (padding + UNFOLD_PIECE - 1) / UNFOLD_PIECE * UNFOLD_PIECE;
}
/* Entries of a line that is kept, in whole pieces: up to the end of the last window. */
static inline int unfold_pitch(int padding, int places, int stride, int kernel)
{
    const int end = unfold_left(padding) - padding + (places - 1) * stride + kernel;
    return (end + UNFOLD_PIECE - 1) / UNFOLD_PIECE * UNFOLD_PIECE;
}
/* Lines of an image that the windows of `lines` lines see. */
static inline int unfold_rows(int lines, int stride, int kernel)
{
    return (lines - 1) * stride + kernel;
}

#endif
