/* packed_form_test.c - weights in blocks keep their values when they are packed.
 *
 * For every format and every form that holds it, alone or beside another format of its kind: random
 * blocks are packed, read back by the layout as rt/rt_blocks.h describes it, and must have the bits
 * that blocks_unpack_row gives.  Rows end within a piece, within a slab, and at the end of one.
 */
#include "check.h"

#include <math.h>

#include "base/num.h"
#include "base/rng.h"
#include "gen/packed_form.h"
#include "ir/blocks.h"

enum { ROWS = 8, MOST_COLUMNS = 2048 };

static uint64_t base_seed;

static float half_of(uint32_t word, uint32_t high)
{
    return num_from_f16((f16)(high ? word >> 16 : word & 0xffff));
}

/* A number of MXFP4: pair i of a word has it in its low or its high half, at the places that a bf16
 * has for a sign, the last two bits of the exponent, and the first of the fraction. */
static float read_float(uint32_t word, uint32_t i, bool high)
{
    static const uint32_t turned[4] = {2, 6, 12, 0}, last[4] = {2, 6, 12, 8};
    static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    uint32_t bits = 0, at[4] = {6, 7, 8, 15};
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t left = k ? turned[i] : last[i];
        bits |= (word >> ((at[k] + 16 * high + 32 - left) % 32) & 1) << k;
    }
    return bits & 8 ? -values[bits & 7] : values[bits & 7];
}

/* Column `column` of row g of a group. */
static float read_weight(const uint32_t *group, uint32_t form, int zero, uint32_t g,
                         uint32_t column)
{
    const uint32_t *piece = group + column / RT_PIECE_COLUMNS * (RT_PIECE_BYTES(form) / 4);
    const uint32_t *head = piece + RT_QUANTS_BYTES(form) / 4 + g; /* words 8 apart */
    const uint32_t j = column % 128 / 32, odd = column % 32 / 16;
    uint32_t c = column % 32 / 8, h = column % 8 / 4, k = column % 4; /* lane, product, place */
    int q;
    if (form == RT_BLOCKS_8K) {
        c = column % 16 / 8 + column % 8 / 4 * 2;
        h = odd;
    }
    const uint32_t *mine = piece + (4 * g + c) * 4;
    if (form == RT_BLOCKS_MX4)
        return ldexpf(read_float(mine[j], h * 2 + k / 2, k % 2),
                      (int)(head[0] >> 8 * j & 255) - 126 + RT_MX4_SHIFT - 127);
    if (RT_IS_BYTES(form))
        q = (int)(mine[j / 2 * 128 + j % 2 * 2 + h] >> k * 8 & 255);
    else
        q = (int)(mine[j] >> (h * 8 + k / 2 * 4 + k % 2 * 16) & 15);
    q -= zero;
    if (RT_IS_K(form)) {
        const uint32_t wide = form == RT_BLOCKS_8K; /* a word of a more */
        const int a = (int)(head[8 * (1 + (wide ? odd : 0))] >> 8 * j & 255) - 128,
                  b = (int)(head[8 * (2 + wide)] >> 8 * j & 255);
        return half_of(head[0], 0) * (float)a * (float)q - half_of(head[0], 1) * (float)b;
    }
    return half_of(head[8 * (j / 2)], j % 2) * (float)q + half_of(head[8 * (2 + j / 2)], j % 2);
}

/* Eight rows of a format in a form. */
static void check_form(ir_dtype dtype, uint32_t form, int zero, uint32_t columns, uint64_t seed)
{
    static unsigned char blocks[ROWS * MOST_COLUMNS * 2];
    static uint32_t group[ROWS * MOST_COLUMNS];
    static float expected[MOST_COLUMNS];
    const size_t row_bytes = (size_t)ir_row_bytes(dtype, columns);
    memset(group, 0, sizeof group);
    assert_true(blocks_fill_random(dtype, ROWS * columns, seed, blocks));
    for (uint32_t g = 0; g < ROWS; g++)
        for (uint32_t at = 0; at < columns; at += RT_PIECE_COLUMNS)
            rt_pack_piece(gen_packed_format(dtype), form, blocks + g * row_bytes, at, columns, g,
                          group + at / RT_PIECE_COLUMNS * (RT_PIECE_BYTES(form) / 4));
    for (uint32_t g = 0; g < ROWS; g++) {
        assert_true(blocks_unpack_row(dtype, blocks + g * row_bytes, columns, expected));
        for (uint32_t i = 0; i < columns; i++) {
            const float got = read_weight(group, form, zero, g, i);
            if (got != expected[i])
                fail_msg("%s in form %u, row %u, column %u: %g, expected %g",
                         ir_dtype_table[dtype].name, form, g, i, (double)got, (double)expected[i]);
        }
    }
}

/* Alone, and beside each other format of the kind, which may need another form. */
static void test_values_are_kept(void **state)
{
    unsigned n = 0;
    (void)state;
    for (uint32_t a = 0; a < IR_DTYPES; a++)
        for (uint32_t b = 0; b < IR_DTYPES; b++) {
            const ir_dtype both[2] = {(ir_dtype)a, (ir_dtype)b};
            int zero;
            const uint32_t form = gen_packed_form(both, 2, &zero);
            const bool kind =
                gen_packed_kind(both[0]) && gen_packed_kind(both[0]) == gen_packed_kind(both[1]);
            assert_int_equal(form != RT_BLOCKS_NONE, kind);
            if (!kind)
                continue;
            const uint32_t block = ir_dtype_table[a].block_elements;
            check_form(both[0], form, zero, block, base_seed + n++);
            check_form(both[0], form, zero, 1024 + block, base_seed + n++);
            check_form(both[0], form, zero, 2048, base_seed + n++);
        }
    assert_int_equal(n, 3 * (5 * 5 + 3 * 3 + 1));
}

/* What the loader counts bytes by is what the formats' table has. */
static void test_formats_agree(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < IR_DTYPES; i++) {
        const uint32_t format = gen_packed_format((ir_dtype)i);
        if (format == RT_FORMATS)
            continue;
        assert_int_equal(rt_format_bytes(format), ir_dtype_table[i].block_bytes);
        assert_int_equal(rt_format_elements(format), ir_dtype_table[i].block_elements);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values_are_kept),
                                       cmocka_unit_test(test_formats_agree)};
    base_seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
