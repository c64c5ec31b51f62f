/* pack_test.c - the loading kernels (device/pack.cuh), compiled by the host's C++ compiler: packed
 * weights lie where bodies look for them (gen/device_body.h), in whatever parts they come, rows for
 * a layer_norm keep what src/rt/rt_centre.h promises, and random weights are the host's. */
#include "emulated_bed.h"

#include "base/num.h"
#include "rt/rt_pack.h"

enum { MOST_COLUMNS = 700, MOST_ROWS = 40, PAD = 32 };

static uint64_t base_seed, used;
static void *library;
static void (*run_pack)(const rt_pack *job, unsigned blocks, unsigned threads);
static void (*run_fill)(const rt_fill *job, unsigned blocks, unsigned threads);

static uint64_t draw(uint64_t limit)
{
    return rng_u64(base_seed, used++) % limit;
}

static float from_f16(uint16_t bits)
{
    return num_from_f16(bits);
}
static uint16_t to_f16(float x)
{
    return num_to_f16(x);
}

/* The symbol of the compiled kernels. */
static void *symbol(const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fail_msg("%s", dlerror());
    return found;
}

static int compile(void **state)
{
    arena a = {0};
    gen_source source = {0};
    (void)state;
    check_ok(&cx, gen_source_expand(&cx, &a, "pack.cuh", &source.text));
    if (compile_emulated(&source, "emulated_pack.cuh", "emulated_pack_behind.cuh", &library, 1)) {
        *(void **)(&run_pack) = symbol("emulated_pack");
        *(void **)(&run_fill) = symbol("emulated_fill");
        *(float (**)(uint16_t))symbol("emulated_from_f16") = from_f16;
        *(uint16_t(**)(float))symbol("emulated_to_f16") = to_f16;
    }
    arena_free(&a);
    return 0;
}

/* ---- numbers of three formats ---- */

typedef struct numbers {
    rt_u32 dtype;
    void *at;
} numbers;

static ir_dtype dtype_of(rt_u32 format)
{
    static const ir_dtype of[] = {
        [RT_PACK_F32] = IR_F32, [RT_PACK_F16] = IR_F16, [RT_PACK_BF16] = IR_BF16};
    return of[format];
}
static float get(const numbers *n, uint64_t i)
{
    const op_view v = {.data = n->at, .dtype = dtype_of(n->dtype)};
    return op_load(&v, (int64_t)i);
}
static numbers made(uint64_t n, float mean)
{
    numbers made = {(rt_u32)draw(3), malloc(n * 4)};
    op_view v = {.data = made.at, .dtype = dtype_of(made.dtype)};
    for (uint64_t i = 0; i < n; i++)
        op_store(&v, (int64_t)i, mean + rng_normal(base_seed + 1, used++));
    return made;
}

/* ---- a weight of one or two matrices, packed in parts ---- */

typedef struct weight {
    uint64_t rows[2], columns, padded_columns, padded_rows;
    bool paired, centred;
    rt_u32 to_dtype;
    numbers w[2], scale, shift; /* scale.at, shift.at NULL: none */
    unsigned char *packed;
} weight;

static weight make_weight(bool centred)
{
    weight m = {.rows = {1 + draw(MOST_ROWS), 1 + draw(MOST_ROWS)},
                .columns = 1 + draw(MOST_COLUMNS),
                .paired = draw(2),
                .centred = centred,
                .to_dtype = draw(2) ? RT_PACK_F16 : RT_PACK_BF16};
    if (m.paired)
        m.rows[1] = m.rows[0];
    const uint64_t of_pairs = (m.rows[0] + 3) / 4 * 8, in_turn = m.rows[0] + m.rows[1];
    m.padded_columns = (m.columns + PAD - 1) / PAD * PAD;
    m.padded_rows = m.paired ? of_pairs : (in_turn + 7) / 8 * 8;
    for (uint32_t i = 0; i < 2; i++)
        m.w[i] = made(m.rows[i] * m.columns, 0.125F * (float)draw(4));
    if (draw(2))
        m.scale = made(m.columns, 1);
    if (centred && draw(4))
        m.shift = made(m.columns, 0);
    m.packed = calloc(m.padded_rows, m.padded_columns * 2 + sizeof(float));
    assert_non_null(m.packed);
    return m;
}

static void free_weight(weight *m)
{
    free(m->w[0].at);
    free(m->w[1].at);
    free(m->scale.at);
    free(m->shift.at);
    free(m->packed);
}

static float *added_of(const weight *m)
{
    return (float *)(void *)(m->packed + m->padded_rows * m->padded_columns * 2);
}

/* Matrix i in parts of some rows each, which come in any number of blocks and threads. */
static void pack_matrix(const weight *m, uint32_t i)
{
    const uint64_t row_bytes = m->columns * (m->w[i].dtype == RT_PACK_F32 ? 4 : 2);
    for (uint64_t first = 0, n; first < m->rows[i]; first += n) {
        n = 1 + draw(m->rows[i] - first);
        const rt_pack job = {.from = (rt_u64)(uintptr_t)m->w[i].at + first * row_bytes,
                             .to = (rt_u64)(uintptr_t)m->packed,
                             .scale = (rt_u64)(uintptr_t)m->scale.at,
                             .added = m->centred ? (rt_u64)(uintptr_t)added_of(m) : 0,
                             .shift = (rt_u64)(uintptr_t)m->shift.at,
                             .first_row = first,
                             .n_rows = n,
                             .base_row = i ? m->rows[0] : 0,
                             .columns = m->columns,
                             .padded_columns = m->padded_columns,
                             .dtype = m->w[i].dtype,
                             .scale_dtype = m->scale.dtype,
                             .shift_dtype = m->shift.dtype,
                             .paired = m->paired,
                             .which = i,
                             .to_dtype = m->to_dtype};
        run_pack(&job, 1 + (unsigned)draw(3), 1 + (unsigned)draw(40));
    }
}

/* The packed row of a matrix's row. */
static uint64_t packed_row(const weight *m, uint32_t i, uint64_t row)
{
    if (m->paired)
        return row / 4 * 8 + row % 4 * 2 + i;
    return (i ? m->rows[0] : 0) + row;
}

/* An entry as bodies read it, by the table of gen/device_body.h: blocks of 8 rows x 32 columns,
 * whose units of 8 columns are swizzled by pairs of rows. */
static float packed_entry(const weight *m, uint64_t packed, uint64_t column)
{
    const uint64_t block = packed / 8 * (m->padded_columns / 32) + column / 32,
                   unit = (column / 8 % 4) ^ (packed % 8 / 2);
    const numbers at = {m->to_dtype, m->packed + block * 512 + packed % 8 * 64 + unit * 16};
    return get(&at, column % 8);
}

static float rounded(rt_u32 dtype, float x)
{
    return dtype == RT_PACK_F16 ? num_from_f16(num_to_f16(x)) : num_from_bf16(num_to_bf16(x));
}

static float entry_of(const weight *m, uint32_t i, uint64_t row, uint64_t column)
{
    const float x = get(&m->w[i], row * m->columns + column);
    return m->scale.at ? x * get(&m->scale, column) : x;
}

/* Entries are those of the weight, scaled and rounded once; what lies between is 0. */
static void test_rows(void **state)
{
    (void)state;
    for (int round = 0; run_pack && round < 60; round++) {
        weight m = make_weight(false);
        uint64_t n = 0, n_set = 0;
        for (uint32_t i = 0; i < 2; i++)
            pack_matrix(&m, i);
        for (uint32_t i = 0; i < 2; i++)
            for (uint64_t r = 0; r < m.rows[i]; r++)
                for (uint64_t k = 0; k < m.columns; k++) {
                    const float want = rounded(m.to_dtype, entry_of(&m, i, r, k));
                    assert_true(packed_entry(&m, packed_row(&m, i, r), k) == want);
                    n += want != 0;
                }
        for (uint64_t r = 0; r < m.padded_rows; r++)
            for (uint64_t k = 0; k < m.padded_columns; k++)
                n_set += packed_entry(&m, r, k) != 0;
        assert_int_equal(n_set, n);
        free_weight(&m);
    }
    if (!run_pack)
        check_skip("no C++ compiler");
}

/* One row for a layer_norm: near its distances from the mean, of which nearly nothing is left in
 * sum; and its product by the norm's shift. */
static void check_centred(const weight *m, uint32_t i, uint64_t row)
{
    const uint64_t packed = packed_row(m, i, row);
    const double unit = m->to_dtype == RT_PACK_F16 ? 1.0 / 2048 : 1.0 / 256;
    double mean = 0, largest = 0, sum = 0, product = 0, size = 0;
    for (uint64_t k = 0; k < m->columns; k++)
        mean += (double)entry_of(m, i, row, k) / (double)m->columns;
    for (uint64_t k = 0; k < m->columns; k++)
        largest = fmax(largest, fabs((double)entry_of(m, i, row, k) - mean));
    for (uint64_t k = 0; k < m->columns; k++) {
        const double got = (double)packed_entry(m, packed, k),
                     want = (double)entry_of(m, i, row, k) - mean,
                     shift = m->shift.at ? (double)get(&m->shift, k) : 0,
                     plain = (double)get(&m->w[i], row * m->columns + k);
        /* the last entries take what rounding has lost before */
        const double most =
            k + RT_CENTRE_LAST >= m->columns ? 4 * unit * largest : 2 * unit * fabs(want);
        assert_true(fabs(got - want) <= most + 1e-6);
        sum += got;
        product += plain * shift;
        size += fabs(plain * shift);
    }
    assert_true(fabs(sum) <= unit * largest + 1e-5 * (double)m->columns);
    assert_true(fabs((double)added_of(m)[packed] - product) <= 1e-4 * size);
}

static void test_centred_rows(void **state)
{
    (void)state;
    for (int round = 0; run_pack && round < 60; round++) {
        weight m = make_weight(true);
        for (uint32_t i = 0; i < 2; i++)
            pack_matrix(&m, i);
        for (uint32_t i = 0; i < 2; i++)
            for (uint64_t r = 0; r < m.rows[i]; r++)
                check_centred(&m, i, r);
        free_weight(&m);
    }
    if (!run_pack)
        check_skip("no C++ compiler");
}

/* A part of a peer has runs of the whole weight; its numbers are those of their places there. */
static void test_random_weights(void **state)
{
    (void)state;
    for (int round = 0; run_fill && round < 60; round++) {
        const uint64_t n = 1 + draw(900), first = draw(50), run = 1 + draw(30);
        rt_fill job = {.stream = draw(1000),
                       .first = first,
                       .n = n,
                       .base = draw(100),
                       .step = draw(2) ? run + draw(30) : 0,
                       .run = run,
                       .mean = (float)draw(3) - 1,
                       .deviation = 0.02F,
                       .dtype = (rt_u32)draw(3)};
        numbers made = {job.dtype, calloc(n + 1, 4)};
        job.to = (rt_u64)(uintptr_t)made.at;
        run_fill(&job, 1 + (unsigned)draw(3), 1 + (unsigned)draw(40));
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t at = first + i, place = job.step ? at / run * job.step + at % run : at;
            float want = job.mean + job.deviation * rng_normal(job.stream, job.base + place);
            if (job.dtype != RT_PACK_F32)
                want = rounded(job.dtype, want);
            assert_true(get(&made, i) == want);
        }
        assert_true(get(&made, n) == 0);
        free(made.at);
    }
    if (!run_fill)
        check_skip("no C++ compiler");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_centred_rows),
                                       cmocka_unit_test(test_random_weights)};
    base_seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, compile, NULL));
}
