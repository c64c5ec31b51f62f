/* int8_tiles_test.c - products with 8-bit activations by AMX have the bits of AVX2, for every
 * format, any number of tokens and of rows, and any K; a token's bits are the same alone.
 */
#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "cpu/body.h"
#include "cpu/cpu.h"
#include "cpu/int8_fast.h"
#include "cpu/tile_fast.h"
#include "ir/blocks.h"
#include "op/narrow.h"

#if defined(__x86_64__)
enum { MOST_TOKENS = 100, MOST_K = 1536, LD = TILE_COLUMNS + 16 };

static uint64_t seed, drawn;
static float sums[MOST_TOKENS * LD], wanted[MOST_TOKENS * LD], row[MOST_K];

static int64_t choose(int64_t n)
{
    return (int64_t)(rng_u64(seed, drawn++) % (uint64_t)n);
}

/* Rows of x as 8-bit blocks; some hold large numbers, zeros, and one in a while NaN. */
static int8_rows make_x(int64_t k, int64_t block, int64_t n)
{
    const int64_t bytes = int8_row_bytes(k, block);
    unsigned char *at = aligned_alloc(64, (size_t)(n * bytes));
    assert_non_null(at);
    for (int64_t t = 0; t < n; t++) {
        const float scale = choose(8) ? 1 : 1e20f * (float)choose(2);
        for (int64_t i = 0; i < k; i++)
            row[i] = rng_normal(seed, drawn++) * scale * (i % 97 == 3 ? 20 : 1);
        if (!choose(40))
            row[choose(k)] = NAN;
        int8_avx2.narrow(row, k, block, at + t * bytes);
    }
    return (int8_rows){at, k, block, n};
}

/* One product by both, and one of some of its tokens.  Sums past the multiple of 16 and panels past
 * their end stay as they are. */
static void check_product(ir_dtype dtype)
{
    const int64_t block = narrow_block(dtype), n = 1 + choose(MOST_TOKENS),
                  k = block * (1 + choose(MOST_K / block)), rows = 1 + choose(TILE_COLUMNS),
                  row_bytes = ir_row_bytes(dtype, k), first = choose(n),
                  some = 1 + choose(n - first);
    int8_rows x = make_x(k, block, n);
    unsigned char *w = malloc((size_t)(rows * row_bytes)), *panel;
    const size_t panel_bytes = int8_amx.panel_bytes;
    panel = aligned_alloc(64, panel_bytes + 64);
    assert_true(w && panel && blocks_fill_random(dtype, rows * k, rng_u64(seed, drawn++), w));
    memset(sums, 0xff, sizeof sums);
    memset(wanted, 0xff, sizeof wanted);
    memset(panel, 0xff, panel_bytes + 64);
    int8_avx2.product[dtype](&x, w, row_bytes, rows, panel, wanted, LD);
    int8_amx.product[dtype](&x, w, row_bytes, rows, panel, sums, LD);
    for (int64_t t = 0; t < n; t++) {
        if (memcmp(sums + t * LD, wanted + t * LD, (size_t)rows * sizeof *sums) != 0)
            fail_msg("%s: other bits; %lld tokens, K %lld, %lld rows, token %lld",
                     ir_dtype_table[dtype].name, (long long)n, (long long)k, (long long)rows,
                     (long long)t);
        for (int64_t r = (rows + 15) / 16 * 16; r < LD; r++)
            assert_memory_equal(&sums[t * LD + r], "\xff\xff\xff\xff", 4);
    }
    for (int i = 0; i < 64; i++)
        assert_int_equal(panel[panel_bytes + (size_t)i], 0xff);
    x.at += first * int8_row_bytes(k, block);
    x.n = some;
    int8_amx.product[dtype](&x, w, row_bytes, rows, panel, sums, LD);
    for (int64_t t = 0; t < some; t++)
        assert_memory_equal(sums + t * LD, wanted + (first + t) * LD, (size_t)rows * sizeof *sums);
    free((void *)(uintptr_t)(x.at - first * int8_row_bytes(k, block)));
    free(w);
    free(panel);
}

#endif

static void test_formats(void **state)
{
    (void)state;
#if defined(__x86_64__)
    int formats = 0;
    if (!(cpu_features() & CPU_AMX))
        skip();
    for (int d = 0; d < IR_DTYPES; d++)
        if (int8_avx2.product[d]) {
            assert_non_null(int8_amx.product[d]);
            formats++;
            for (int i = 0; i < 20; i++)
                check_product((ir_dtype)d);
        }
    assert_int_equal(formats, 22);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formats)};
#if defined(__x86_64__)
    seed = check_seed();
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
