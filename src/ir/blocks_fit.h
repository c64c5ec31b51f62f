/* blocks_fit.h - scales, minima and integers that stand for floats with the least squared error.
 *
 * A group of neighbours x is written as s q - m with integers q; a block of 256 writes its
 * groups' s and m as d and dmin times small integers.  The error is the sum of w (x - (s q -
 * m))^2, where w is the importance of each element.  Used by blocks_pack.c alone.
 */
#ifndef IR_BLOCKS_FIT_H
#define IR_BLOCKS_FIT_H

#include <stdbool.h>

#include "base/num.h"

/* Elements of a block of 256, and its most groups. */
enum { FIT_BLOCK = 256, FIT_GROUPS = 16 };

/* What a format can store.  `minimum` says which m there may be: m = 0; m >= 0; any m. */
typedef struct fit_form {
    int group;                   /* elements of a group: 16 or 32 */
    int q_least, q_most;         /* integers */
    int scale_least, scale_most; /* the integer in place of s / d; of blocks of 32 unused */
    enum { FIT_NO_MINIMUM, FIT_MINIMUM_BELOW_ZERO, FIT_MINIMUM } minimum; /* m = 0; m >= 0; any m */
} fit_form;

/* The result for a block of 256: x = d scale q - dmin minimum, group by group. */
typedef struct fit_block {
    f16 d, dmin;
    /* integers in place of s / d and m / dmin; minima are 0 to scale_most */
    int scale[FIT_GROUPS], minimum[FIT_GROUPS];
    float q[FIT_BLOCK]; /* whole numbers, q_least to q_most */
    float error;        /* weighted and squared, of the whole block */
} fit_block;

/* Fit s and m for one group of form->group elements (w NULL: all are as important); the integers
 * follow by fit_assign. */
void fit_group(const fit_form *form, const float *x, const float *w, float *s, float *m);
/* The integers of a group for a given s and m; returns the error. */
float fit_assign(const fit_form *form, const float *x, const float *w, float s, float m, float *q);
/* A block of 256 of a form with scales.  Numbers that are too large give a d that is infinite. */
void fit_whole(const fit_form *form, const float *x, const float *w, fit_block *out);

#endif
