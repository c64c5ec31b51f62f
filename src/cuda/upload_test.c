/* upload_test.c - weights that stay in blocks, on their way to a GPU: the stand-in for the driver
 * does what mpk_pack does (device/pack.cuh), and the packed copy has every row where bodies look
 * for it.
 */
#include "cuda_bed.h"

#include "base/rng.h"
#include "gen/packed_form.h"
#include "ir/blocks.h"

/* Runs mpk_pack for weights in blocks; another launch of it would be a weight that was unpacked. */
static void pack_as_device(void *user, const fake_launch *l)
{
    unsigned *n = user;
    rt_pack p;
    if (strcmp(l->function, "mpk_pack") != 0)
        return;
    memcpy(&p, l->argument_at, sizeof p);
    assert_int_not_equal(p.form, RT_BLOCKS_NONE);
    const uint64_t row_bytes = p.columns / rt_format_elements(p.dtype) * rt_format_bytes(p.dtype);
    for (uint64_t r = 0; r < p.n_rows; r++) {
        const uint64_t row = p.first_row + r,
                       packed = p.paired ? row / 4 * 8 + row % 4 * 2 + p.which : p.base_row + row;
        for (uint64_t at = 0; at < p.columns; at += RT_PIECE_COLUMNS) {
            const uint64_t piece =
                packed / 8 * (p.padded_columns / RT_PIECE_COLUMNS) + at / RT_PIECE_COLUMNS;
            rt_pack_piece(p.dtype, p.form, (const unsigned char *)(uintptr_t)p.from + r * row_bytes,
                          at, p.columns, (uint32_t)(packed % 8),
                          (uint32_t *)(uintptr_t)(p.to + piece * RT_PIECE_BYTES(p.form)));
        }
    }
    __atomic_add_fetch(n, 1, __ATOMIC_RELAXED); /* weights come by several threads */
}

/* Rows of a weight, those of all experts. */
static int64_t rows_of(const tg_weight *w)
{
    return w->rank == 3 ? w->dims[0] * w->dims[1] : w->dims[0];
}

/* What the copy should be: rows of the weights in blocks, in the order of `paired` or one weight
 * after the other; a row has whole slabs of 1,024 columns, or of experts pieces of 128. */
static void check_copy(const bed *b, const cuda_packed *c, uint32_t form, bool paired)
{
    const char *found = (const char *)(uintptr_t)(cuda_of(b->m)->weight_block + c->offset);
    char *expected = calloc(1, c->n_bytes);
    int64_t base = 0;
    assert_non_null(expected);
    assert_int_equal(c->form, form);
    for (uint32_t i = 0; i < b->image.n_weights; i++) {
        const tg_weight *w = &b->image.weights[i];
        const int64_t rows = rows_of(w), columns = w->dims[w->rank - 1],
                      pieces = w->rank == 3
                                   ? (columns + RT_PIECE_COLUMNS - 1) / RT_PIECE_COLUMNS
                                   : (columns + RT_SLAB_COLUMNS - 1) / RT_SLAB_COLUMNS * RT_PIECES;
        const unsigned char *from = b->weights[i].at;
        for (int64_t r = 0; r < rows; r++, from += ir_row_bytes(w->dtype, columns)) {
            const int64_t packed = paired ? r / 4 * 8 + r % 4 * 2 + i : base + r;
            for (int64_t at = 0; at < columns; at += RT_PIECE_COLUMNS)
                rt_pack_piece(
                    gen_packed_format(w->dtype), form, from, (uint64_t)at, (uint64_t)columns,
                    (uint32_t)(packed % 8),
                    (uint32_t *)(expected + (packed / 8 * pieces + at / RT_PIECE_COLUMNS) *
                                                RT_PIECE_BYTES(form)));
        }
        base += rows;
        if (i + 1 == b->image.n_weights) /* no byte more is loaded */
            assert_int_equal(c->n_bytes, (base + 7) / 8 * pieces * RT_PIECE_BYTES(form));
    }
    assert_memory_equal(found, expected, c->n_bytes);
    free(expected);
}

/* Random blocks of a program's weights, none of which has a copy of 16 bits. */
static void check_program(const char *source, uint32_t form, bool paired)
{
    unsigned n = 0;
    bed *b = set_up(source);
    b->fake->kernel(pack_as_device, &n);
    for (uint32_t i = 0; i < b->image.n_weights; i++) {
        const tg_weight *w = &b->image.weights[i];
        const int64_t elements = rows_of(w) * w->dims[w->rank - 1];
        void *at = arena_alloc(&b->a, (size_t)ir_row_bytes(w->dtype, elements), 1);
        assert_non_null(at);
        assert_true(blocks_fill_random(w->dtype, elements, rng_u64(seed, i), at));
        b->weights[i].at = at;
    }
    check_ok(&b->cx, start(b));
    const cuda_weight_plan *plan = &cuda_of(b->m)->weights;
    assert_int_equal(plan->packed.n, 1);
    assert_true(n >= b->image.n_weights);
    for (uint32_t i = 0; i < b->image.n_weights; i++)
        assert_false(plan->weights[i].plain);
    check_copy(b, &plan->packed.at[0], form, paired);
    b->fake->kernel(NULL, NULL);
    tear_down(b);
}

static void test_blocks_reach_their_place(void **state)
{
    (void)state;
    check_program("input %x : bf16[4, 2304] live=tokens\nconst %w : q4_k[43, 2304]\n"
                  "const %v : q6_k[24, 2304]\n%y = linear(%x, %w, %v)\noutput %y\n",
                  RT_BLOCKS_8K, false);
    check_program("input %x : bf16[4, 288] live=tokens\nconst %g : q4_0[61, 288]\n"
                  "const %u : q4_0[61, 288]\n%y = linear(%x, %g, %u) {glu = \"silu\"}\n"
                  "output %y\n",
                  RT_BLOCKS_4, true);
    /* more than a piece of an upload */
    check_program("input %x : bf16[4, 4096] live=tokens\nconst %w : q8_0[5000, 4096]\n"
                  "%y = linear(%x, %w)\noutput %y\n",
                  RT_BLOCKS_8, false);
}

static void test_blocks_of_experts(void **state)
{
    (void)state;
    check_program("input %x : bf16[4, 1280] live=tokens\ninput %i : i32[4, 2] live=tokens\n"
                  "const %g : q4_k[5, 24, 1280]\nconst %u : q4_k[5, 24, 1280]\n"
                  "%y = expert_linear(%x, %i, %g, %u) {glu = \"silu\"}\noutput %y\n",
                  RT_BLOCKS_4K, true);
    check_program("input %x : bf16[4, 2, 288] live=tokens\ninput %i : i32[4, 2] live=tokens\n"
                  "const %w : q5_0[5, 40, 288]\ninput %s : f32[4, 2] live=tokens\n"
                  "%y = expert_linear(%x, %i, %w, _, %s)\noutput %y\n",
                  RT_BLOCKS_8, false);
    check_program("input %x : bf16[4, 288] live=tokens\ninput %i : i32[4, 2] live=tokens\n"
                  "const %g : mxfp4[5, 24, 288]\nconst %u : mxfp4[5, 24, 288]\n"
                  "%y = expert_linear(%x, %i, %g, %u) {glu = \"silu\"}\noutput %y\n",
                  RT_BLOCKS_MX4, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks_reach_their_place),
                                       cmocka_unit_test(test_blocks_of_experts)};
    seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
