/* centred_test.c - rows of weights that are centred for a layer_norm (rt/rt_centre.h): products of
 * them by rows of x, which are not centred, beside a layer_norm and a product in double.
 *
 * Weights are of 16 bits times a norm's weight, or of 16 bits alone, where whole octaves of entries
 * would be rounded the same way.  Entries of x have a mean of 0 to ten deviations.
 */
#include "check.h"

#include <math.h>

#include "base/num.h"
#include "base/rng.h"
#include "rt/rt_centre.h"

enum { MOST_COLUMNS = 1536, TOKENS = 64 };

static uint64_t base_seed;

static float rounded(float x, bool is_bf16)
{
    return is_bf16 ? num_from_bf16(num_to_bf16(x)) : num_from_f16(num_to_f16(x));
}

/* A row as the loading kernel packs it; returns the squares of its distances from the mean. */
static double pack(const float *entries, int n, bool is_bf16, float *packed)
{
    double sum = 0, squares = 0;
    rt_centre c = {.unit = is_bf16 ? RT_CENTRE_BF16 : RT_CENTRE_F16};
    for (int k = 0; k < n; k++)
        sum += (double)entries[k];
    c.mean = (float)(sum / n);
    for (int k = 0; k < n; k++)
        c.largest = fmaxf(c.largest, fabsf(entries[k] - c.mean));
    for (int k = 0; k < n; k++) {
        const double own = (double)entries[k] - (double)c.mean;
        packed[k] = rounded(rt_centre_next(&c, (rt_u64)k, (rt_u64)n, entries[k]), is_bf16);
        rt_centre_take(&c, packed[k]);
        squares += own * own;
    }
    return squares;
}

/* The error of a product of a token, of which `mean` is that of its entries in deviations. */
static double error_of(const float *entries, const float *packed, int n, double mean, uint64_t seed)
{
    double sum = 0, squares = 0, exact = 0, got = 0, x[MOST_COLUMNS];
    for (int k = 0; k < n; k++) {
        x[k] = (double)rounded((float)(mean + (double)rng_normal(seed, (uint64_t)k)), true);
        sum += x[k];
    }
    for (int k = 0; k < n; k++)
        squares += (x[k] - sum / n) * (x[k] - sum / n);
    for (int k = 0; k < n; k++) {
        exact += (x[k] - sum / n) * (double)entries[k];
        got += x[k] * (double)packed[k];
    }
    return (got - exact) / sqrt(squares / n);
}

/* The errors of all tokens are those of rounding the weights, whatever the mean of x. */
static void check_row(int n, bool is_bf16, bool scaled, uint64_t seed)
{
    static float entries[MOST_COLUMNS], packed[MOST_COLUMNS];
    float largest = 0;
    const float mean = 0.1f * rng_normal(seed, 1u << 20);
    double sum = 0;
    for (int k = 0; k < n; k++) {
        entries[k] = rounded(mean + rng_normal(seed, (uint64_t)k), is_bf16);
        if (scaled)
            entries[k] *= 1 + 0.3f * rng_normal(seed + 1, (uint64_t)k);
        largest = fmaxf(largest, fabsf(entries[k]));
    }
    /* what rounding numbers to nearest costs: 0.42 units of each in the mean of squares */
    const double unit = is_bf16 ? 0x1p-8 : 0x1p-11,
                 cost = 0.42 * unit * sqrt(pack(entries, n, is_bf16, packed));
    for (int k = 0; k < n; k++)
        sum += (double)packed[k];
    if (!(fabs(sum) <= unit * (double)largest))
        fail_msg("%d entries, bf16 %d, scaled %d: the sum is %g, the largest %g", n, is_bf16,
                 scaled, sum, (double)largest);
    for (int of_mean = 0; of_mean <= 10; of_mean += 5) {
        double squares = 0;
        for (int t = 0; t < TOKENS; t++) {
            const double error =
                error_of(entries, packed, n, of_mean, rng_u64(seed + 2, (uint64_t)t));
            squares += error * error;
        }
        /* 1.2 times the cost in the median of rows, 2.4 at most of 38,000 */
        if (!(sqrt(squares / TOKENS) <= 3 * cost + of_mean * unit / 2 * (double)largest))
            fail_msg("%d entries, bf16 %d, scaled %d, mean %d: error %g, rounding costs %g", n,
                     is_bf16, scaled, of_mean, sqrt(squares / TOKENS), cost);
    }
}

static void rows_of_weights(void **state)
{
    static const int columns[] = {96, 320, 768, MOST_COLUMNS};
    (void)state;
    for (uint64_t i = 0; i < 64; i++)
        check_row(columns[i % 4], i / 4 % 2, i / 8 % 2, rng_u64(base_seed, i));
}

/* Rows of equal entries, and of zeros, have nothing but their mean. */
static void rows_without_deviations(void **state)
{
    float entries[40] = {0}, packed[40];
    (void)state;
    for (int value = 0; value < 3; value++) {
        for (int k = 0; k < 40; k++)
            entries[k] = 0.3f * (float)value;
        pack(entries, 40, true, packed);
        for (int k = 0; k < 40; k++)
            assert_true(fabsf(packed[k]) <= 1e-6f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_weights),
                                       cmocka_unit_test(rows_without_deviations)};
    base_seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
