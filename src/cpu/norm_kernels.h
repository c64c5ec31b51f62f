/* norm_kernels.h - rms_norm of one row over the vectors of vec_*.h.  linear and rope_kv use the
 * same functions, so that a fused norm has the bits of the operator.
 *
 * Sums: lane k mod 16 in rising k by FMA, then v_sum: the order depends on the row's length
 * alone.
 */
#ifndef CPU_NORM_KERNELS_H
#define CPU_NORM_KERNELS_H

#include "cpu/vec_math.h"

/* The sum of the squares of a row, one chain of FMAs for each of sixteen lanes.  fp32 is enough:
 * with n = 8192 a lane adds 512 squares, which are all positive, so nothing cancels. */
V_INLINE float norm_sum_squares(const void *x, ir_dtype dtype, int64_t n)
{
    vf sum = v_zero();
    for (int64_t i = 0; i < n; i += 16) {
        vf v = row_load(x, dtype, i, n - i);
        sum = v_fma(v, v, sum);
    }
    return v_sum(sum);
}

/* to[i] = x[i] * (1 / sqrt(mean of squares + eps)) * weight[i] + beside[i], or with `gated` times
 * silu(beside[i]); weight NULL: 1; beside, of x's dtype, NULL: nothing.  `to` may be x if both are
 * f32. */
V_INLINE void norm_rms(const void *x, ir_dtype dtype, int64_t n, const void *weight,
                       ir_dtype weight_dtype, const void *beside, bool gated, float eps, void *to,
                       ir_dtype to_dtype)
{
    vf scale = v_set(1.0f / sqrtf(norm_sum_squares(x, dtype, n) / (float)n + eps));
    for (int64_t i = 0; i < n; i += 16) {
        vf v = v_mul(row_load(x, dtype, i, n - i), scale);
        if (weight)
            v = v_mul(v, row_load(weight, weight_dtype, i, n - i));
        if (beside && gated)
            v = v_mul(v, v_silu(row_load(beside, dtype, i, n - i)));
        else if (beside)
            v = v_add(v, row_load(beside, dtype, i, n - i));
        row_store(to, to_dtype, i, n - i, v);
    }
}

/* The same, compiled for rows of f32, the common case, and for any. */
static void norm_rms_row(const void *x, ir_dtype dtype, int64_t n, const void *weight,
                         ir_dtype weight_dtype, const void *beside, bool gated, float eps, void *to,
                         ir_dtype to_dtype)
{
    if (dtype == IR_F32 && weight_dtype == IR_F32 && to_dtype == IR_F32)
        norm_rms(x, IR_F32, n, weight, IR_F32, beside, gated, eps, to, IR_F32);
    else
        norm_rms(x, dtype, n, weight, weight_dtype, beside, gated, eps, to, to_dtype);
}

#endif
