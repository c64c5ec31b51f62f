/* norm.h - root-mean-square normalisation of a row, with the same bits in every operator that
 * does it: rms_norm, linear, expert_linear, logits and the attentions that normalise heads.
 * Bodies of a GPU add in another order and agree up to rounding.
 */
#ifndef OP_NORM_H
#define OP_NORM_H

#include <math.h>

#include "ir/op.h"

/* y[i] = (x[i] / sqrt(mean(x^2) + eps)) * weight[i]; weight absent: 1.  The sum runs in double from
 * 0 to n - 1; the factor is rounded to fp32, then each product.  y may be x. */
static inline void norm_row(const float *x, int64_t n, const op_view *weight, double eps, float *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    float factor = (float)(1.0 / sqrt(sum / (double)n + eps));
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * factor;
    if (weight->data)
        for (int64_t i = 0; i < n; i++)
            y[i] *= op_load(weight, i * weight->stride[0]);
}

#endif
