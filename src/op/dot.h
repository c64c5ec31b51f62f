/* dot.h - the inner product of reference code: sixteen partial sums in fp32, added in pairs at
 * the end.
 *
 * The order depends on n alone, so any cut of the other axes gives the same bits; sixteen
 * independent sums are what compilers can turn into vector code without being allowed to
 * reorder.
 *
 *   n = 35: lanes 0-15 get elements 0-15 and 16-31, lanes 0-2 also 32-34; then lanes l and l + 8
 *   are added, l and l + 4, l and l + 2, l and l + 1
 *
 * The order is that of src/cpu's vectors, except that those use FMA.  Used by every reference
 * that multiplies rows.
 */
#ifndef OP_DOT_H
#define OP_DOT_H

#include <stdint.h>

enum { DOT_LANES = 16 };

/* The sum of a[i] b[i].  Elements after the last sixteen go to the first lanes. */
static inline float dot_rows(const float *a, const float *b, int64_t n)
{
    float sum[DOT_LANES] = {0};
    int64_t whole = n - n % DOT_LANES;
    for (int64_t i = 0; i < whole; i += DOT_LANES)
        for (int lane = 0; lane < DOT_LANES; lane++)
            sum[lane] += a[i + lane] * b[i + lane];
    for (int64_t i = whole; i < n; i++)
        sum[i - whole] += a[i] * b[i];
    for (int half = DOT_LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            sum[lane] += sum[lane + half];
    return sum[0];
}

#endif
