/* norm.h - normalisation of a row: by its root mean square, with the same bits in every operator
 * that does it (rms_norm, linear, expert_linear, logits and the attentions that normalise heads),
 * and about its mean, as layer_norm and linear do.  Bodies of a GPU add in another order and agree
 * up to rounding.
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

/* y[i] = (x[i] - mean) / sqrt(variance + eps) * weight[i] + bias[i], bias absent: 0; with the bits
 * of layer_norm, before these are rounded to a shorter dtype.  y may be x. */
static inline void norm_row_centred(const float *x, int64_t n, const op_view *weight,
                                    const op_view *bias, double eps, float *y)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i];
    const double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double factor = 1 / sqrt(squares / (double)n + eps);
    for (int64_t i = 0; i < n; i++) {
        y[i] = (float)(((double)x[i] - mean) * factor) * op_load(weight, i * weight->stride[0]);
        if (bias->data)
            y[i] += op_load(bias, i * bias->stride[0]);
    }
}

#endif
