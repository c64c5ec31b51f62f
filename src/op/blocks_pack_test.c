/* blocks_pack_test.c - what is packed and unpacked again is near; how near, format by format. */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "check.h"
#include "ir/blocks.h"

enum { N = 256 * 40 };

/* Numbers like weights: normal, with another deviation in every block, a few far out. */
static float *make_weights(uint64_t seed)
{
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    for (uint64_t i = 0; i < N; i++) {
        float deviation = exp2f(6 * rng_float(seed, i / 256 + N) - 8);
        x[i] = deviation * rng_normal(seed, i) * (rng_float(seed + 1, i) < 0.01f ? 4 : 1);
    }
    return x;
}

/* The weighted error of 256 numbers, over the weighted sum of their squares. */
static double relative_error(const float *back, const float *x, const float *weights)
{
    double error = 0, all = 0;
    for (int i = 0; i < 256; i++) {
        double off = (double)back[i] - x[i], w = weights ? (double)weights[i] : 1;
        error += w * off * off;
        all += w * x[i] * x[i];
    }
    return all > 0 ? error / all : error;
}

/* The mean of that over a packed row: every 256 count alike, however large they are. */
static double pack_error(ir_dtype dtype, const float *x, const float *importance,
                         const float *weights, int64_t n)
{
    double sum = 0;
    unsigned char *packed = malloc((size_t)n * 4);
    float *back = malloc((size_t)n * sizeof *back);
    assert_true(packed && back);
    assert_true(blocks_pack_row(dtype, x, importance, n, packed));
    assert_true(blocks_unpack_row(dtype, packed, n, back));
    for (int64_t i = 0; i < n; i += 256)
        sum += relative_error(back + i, x + i, weights ? weights + i : NULL);
    free(packed);
    free(back);
    return sum / (double)(n / 256);
}

/* Bounds of that for weights as above: a third above the largest of 200 seeds. */
static const struct {
    ir_dtype dtype;
    double most;
} formats[] = {{IR_Q4_0, 0.0146}, {IR_Q4_1, 0.0098}, {IR_Q5_0, 0.0036}, {IR_Q5_1, 0.0023},
               {IR_Q8_0, 5.8e-5}, {IR_Q2_K, 0.1},    {IR_Q3_K, 0.035},  {IR_Q4_K, 0.0077},
               {IR_Q5_K, 0.0019}, {IR_Q6_K, 5.2e-4}};
enum { FORMATS = sizeof formats / sizeof *formats };

/* Packing and unpacking loses no more than each format's bound, which is a little above what its
 * bits allow. */
static void test_error_is_small(void **state)
{
    (void)state;
    float *x = make_weights(check_seed());
    for (int i = 0; i < FORMATS; i++) {
        double error = pack_error(formats[i].dtype, x, NULL, NULL, N);
        if (!(error <= formats[i].most))
            print_message("%s: %g\n", ir_dtype_table[formats[i].dtype].name, error);
        assert_true(error <= formats[i].most);
    }
    free(x);
}

/* With importances the weighted error is no larger than without them. */
static void test_importance_counts(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    float *x = make_weights(seed), *w = malloc(N * sizeof *w);
    assert_non_null(w);
    for (uint64_t i = 0; i < N; i++)
        w[i] = exp2f(8 * rng_float(seed + 2, i) - 4);
    for (int i = 0; i < FORMATS; i++) {
        double without = pack_error(formats[i].dtype, x, NULL, w, N);
        double with = pack_error(formats[i].dtype, x, w, w, N);
        assert_true(with <= without);
        if (formats[i].dtype != IR_Q8_0)
            assert_true(with < 0.98 * without);
    }
    free(x);
    free(w);
}

/* Blocks that lie on a format's own grid come back with hardly an error. */
static void test_own_numbers_come_back(void **state)
{
    (void)state;
    unsigned char *blocks = malloc(N * 2);
    float *x = malloc(N * sizeof *x);
    assert_true(blocks && x);
    for (int i = 0; i < FORMATS; i++) {
        assert_true(blocks_fill_random(formats[i].dtype, N, check_seed() + (uint64_t)i, blocks));
        assert_true(blocks_unpack_row(formats[i].dtype, blocks, N, x));
        assert_true(pack_error(formats[i].dtype, x, NULL, NULL, N) <= formats[i].most);
    }
    free(blocks);
    free(x);
}

/* Zeros, one number alone, numbers of one sign, the smallest and the largest. */
static void test_odd_blocks(void **state)
{
    (void)state;
    float x[256] = {0};
    for (int i = 0; i < FORMATS; i++) {
        const ir_dtype dtype = formats[i].dtype;
        memset(x, 0, sizeof x);
        assert_true(pack_error(dtype, x, NULL, NULL, 256) == 0);
        x[77] = -3.5f;
        assert_true(pack_error(dtype, x, NULL, NULL, 256) < 2e-3);
        for (int k = 0; k < 256; k++)
            x[k] = -1 - (float)k / 256;
        assert_true(pack_error(dtype, x, NULL, NULL, 256) <= formats[i].most);
        for (int k = 0; k < 256; k++)
            x[k] = (float)k * 1e-42f; /* subnormal: becomes zeros */
        assert_true(pack_error(dtype, x, NULL, NULL, 256) <= 1.01);
    }
}

/* Values whose scale no f16 holds are refused: stored, they would come back as infinities. */
static void test_scales_beyond_f16(void **state)
{
    (void)state;
    float x[256];
    unsigned char packed[512];
    for (int i = 0; i < FORMATS; i++) {
        for (int k = 0; k < 256; k++)
            x[k] = k % 2 ? 1e30f : -1e30f;
        assert_false(blocks_pack_row(formats[i].dtype, x, NULL, 256, packed));
    }
    assert_false(blocks_can_pack(IR_F32) || blocks_can_pack(IR_IQ2_XS));
    assert_true(blocks_can_pack(IR_Q4_K));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_is_small), cmocka_unit_test(test_importance_counts),
        cmocka_unit_test(test_own_numbers_come_back), cmocka_unit_test(test_odd_blocks),
        cmocka_unit_test(test_scales_beyond_f16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
