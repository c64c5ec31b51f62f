/* tile_test.c - products by tiles, on any processor: the loops of tile_kernels.h over tiles in
 * memory that do what Intel defines for AMX, inside linear's own loops.
 *
 * Compared with products in double: within 1e-6 of the range, fp32's bar.  A token has the same
 * bits alone, in any company and however the columns are cut.  Where the processor has AMX, its
 * instructions give these bits too.
 */
#include <math.h>

#include "base/num.h"
#include "base/rng.h"
#include "check.h"
#include "cpu/cpu.h"
#include "cpu/linear_fast.h"

/* A tile in memory, and its shape. */
typedef struct held_tile {
    unsigned char bytes[16][64];
    uint32_t rows, row_bytes;
} held_tile;
static held_tile held[8];
static bool in_use;

/* A subnormal number counts as 0. */
static float flushed(float x)
{
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}

static float at_bf16(const held_tile *t, uint32_t row, uint32_t i)
{
    uint16_t half;
    uint32_t bits;
    float x;
    memcpy(&half, t->bytes[row] + 2 * i, sizeof half);
    bits = (uint32_t)half << 16;
    memcpy(&x, &bits, sizeof x);
    return flushed(x);
}

static void shape_tiles(const void *shapes)
{
    const unsigned char *at = shapes;
    memset(held, 0, sizeof held);
    in_use = at[0] == 1;
    for (int i = 0; i < 8; i++) {
        held[i].row_bytes = at[16 + 2 * i] | (uint32_t)at[17 + 2 * i] << 8;
        held[i].rows = at[48 + i];
        assert_true(held[i].rows <= 16 && held[i].row_bytes <= 64);
    }
}

static void load_tile(int i, const void *from, int64_t stride)
{
    assert_true(in_use);
    memset(held[i].bytes, 0, sizeof held[i].bytes);
    for (uint32_t r = 0; r < held[i].rows; r++)
        memcpy(held[i].bytes[r], (const char *)from + r * stride, held[i].row_bytes);
}

static void store_tile(int i, void *to, int64_t stride)
{
    assert_true(in_use);
    for (uint32_t r = 0; r < held[i].rows; r++)
        memcpy((char *)to + r * stride, held[i].bytes[r], held[i].row_bytes);
}

/* TDPBF16PS, as the manual writes it down. */
static void dot_tiles(int c, int a, int b)
{
    held_tile *to = &held[c];
    const held_tile *x = &held[a], *y = &held[b];
    assert_true(in_use && to->rows == x->rows && to->row_bytes == y->row_bytes);
    assert_int_equal(x->row_bytes, 4 * y->rows);
    for (uint32_t m = 0; m < to->rows; m++)
        for (uint32_t n = 0; n < to->row_bytes / 4; n++) {
            float even = 0, odd = 0, sum;
            for (uint32_t k = 0; k < x->row_bytes / 4; k++) {
                even = flushed(fmaf(at_bf16(x, m, 2 * k), at_bf16(y, k, 2 * n), even));
                odd = flushed(fmaf(at_bf16(x, m, 2 * k + 1), at_bf16(y, k, 2 * n + 1), odd));
            }
            memcpy(&sum, to->bytes[m] + 4 * n, sizeof sum);
            sum = flushed(flushed(sum) + flushed(even + odd));
            memcpy(to->bytes[m] + 4 * n, &sum, sizeof sum);
        }
}

#define TILE_SHAPE(shapes) shape_tiles(shapes)
#define TILE_ZERO(i) memset(held[i].bytes, 0, sizeof held[i].bytes)
#define TILE_LOAD(i, at, stride) load_tile(i, at, stride)
#define TILE_STORE(i, at, stride) store_tile(i, at, stride)
#define TILE_DOT(c, a, b) dot_tiles(c, a, b)
#define TILE_END() (in_use = false)

/* The part of a vector's vocabulary that the loops use. */
#define V_INLINE static inline
typedef struct vf {
    float lane[16];
} vf;
static vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
static void v_transpose(const vf in[16], vf out[16])
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            memcpy(&out[j].lane[i], &in[i].lane[j], sizeof(float));
}
static vf v_load_halves(const void *p, int64_t n)
{
    vf v = {{0}};
    memcpy(&v, p, 2 * (size_t)(n < 32 ? n : 32));
    return v;
}
static vf v_load_pairs(const uint16_t *p, int64_t step, int64_t left, int64_t n)
{
    vf v = {{0}};
    for (int64_t l = 0; l < 16 && l < n; l++)
        for (int64_t i = 0; i < 2 && i < left; i++)
            memcpy((char *)&v.lane[l] + 2 * i, p + l + i * step, sizeof *p);
    return v;
}
#include "cpu/tile_kernels.h"

static const tile_kernels tiles_in_memory = TILE_KERNELS;

/* ---- linear's other code, which these tests use little of ---- */

static void widen(const void *from, ir_dtype dtype, int64_t n, float *to)
{
    const uint16_t *half = from;
    if (dtype == IR_F32)
        memcpy(to, from, (size_t)n * sizeof *to);
    for (int64_t i = 0; dtype != IR_F32 && i < n; i++)
        to[i] = dtype == IR_BF16 ? num_from_bf16(half[i]) : num_from_f16(half[i]);
}

static void finish(const linear_finish *f)
{
    for (int64_t i = 0; i < f->n; i++)
        ((float *)f->out)[i] = f->b ? f->a[i] * f->b[i] : f->a[i];
}

static const linear_kernels kernels = {
    .panel_rows = 4, .widen = widen, .finish = finish, .tiles = &tiles_in_memory};

/* ---- a product with random numbers ---- */

static uint64_t seed;

enum { MOST_TOKENS = 70, MOST_K = 800, MOST_F = 130 };
static float x[MOST_TOKENS * MOST_K], y[MOST_TOKENS * MOST_F], alone[MOST_F];

typedef struct product {
    int64_t n, k, f;
    uint16_t *w[2]; /* exactly f rows, so that sanitizers see a byte too many */
    op_call call;
    ir_attribute attributes[4];
} product;

static int64_t choose(uint64_t *state, int64_t n)
{
    return (int64_t)(rng_u64(seed, (*state)++) % (uint64_t)n);
}

static uint16_t some_bf16(uint64_t number)
{
    float v = rng_normal(seed, number) * 0.05f;
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static op_view view(void *data, ir_dtype dtype, int64_t rows, int64_t columns)
{
    return (op_view){
        .data = data, .dtype = dtype, .rank = 2, .dims = {rows, columns}, .stride = {columns, 1}};
}

static void make(product *p, uint64_t *state, bool glu)
{
    p->n = 1 + choose(state, choose(state, 2) ? 6 : MOST_TOKENS);
    p->k = TILE_STEP * (1 + choose(state, choose(state, 2) ? 4 : MOST_K / TILE_STEP));
    p->f = 1 + choose(state, MOST_F);
    for (int64_t i = 0; i < p->n * p->k; i++)
        x[i] = rng_normal(seed, (*state)++) * (i % 97 == 3 ? 20 : 1);
    p->call = (op_call){.attributes = p->attributes, .n_in = 9, .n_out = 1};
    memset(p->attributes, 0, sizeof p->attributes);
    if (glu)
        p->attributes[1].s = STR("gelu");
    p->call.in[0] = view(x, IR_F32, p->n, p->k);
    for (int i = 0; i < 1 + glu; i++) {
        p->w[i] = malloc((size_t)(p->f * p->k) * sizeof *p->w[i]);
        assert_non_null(p->w[i]);
        for (int64_t j = 0; j < p->f * p->k; j++)
            p->w[i][j] = some_bf16((*state)++);
        p->call.in[1 + i] = view(p->w[i], IR_BF16, p->f, p->k);
    }
    p->call.out[0] = view(y, IR_F32, p->n, p->f);
}

static void free_product(product *p, bool glu)
{
    for (int i = 0; i < 1 + glu; i++)
        free(p->w[i]);
}

/* Tokens [t, t + n) and columns [c, end), by the given kernels. */
static void run(const product *p, const linear_kernels *by, int64_t t, int64_t n, int64_t c,
                int64_t end)
{
    const ir_box box = {.lo = {t, c}, .hi = {t + n, end}};
    const size_t bytes = linear_scratch_bytes(&p->call, &box, by), all = (bytes + 127) / 64 * 64;
    unsigned char *scratch = aligned_alloc(64, all);
    assert_non_null(scratch);
    memset(scratch, 0xff, all);
    linear_run(&p->call, &box, scratch, by);
    for (size_t i = bytes; i < all; i++)
        assert_int_equal(scratch[i], 0xff);
    free(scratch);
}

static double exact(const product *p, int weight, int64_t t, int64_t f)
{
    double sum = 0;
    for (int64_t i = 0; i < p->k; i++) {
        uint32_t bits = (uint32_t)p->w[weight][f * p->k + i] << 16;
        float w;
        memcpy(&w, &bits, sizeof w);
        sum += (double)w * x[t * p->k + i];
    }
    return sum;
}

static void test_exact(void **state)
{
    (void)state;
    uint64_t draw = 0;
    for (int round = 0; round < 12; round++) {
        const bool glu = round % 4 == 3;
        product p;
        double worst = 0, range = 0;
        make(&p, &draw, glu);
        run(&p, &kernels, 0, p.n, 0, p.f);
        for (int64_t t = 0; t < p.n; t++)
            for (int64_t f = 0; f < p.f; f++) {
                const double right = exact(&p, 0, t, f) * (glu ? exact(&p, 1, t, f) : 1),
                             e = fabs(y[t * p.f + f] - right);
                range = fabs(right) > range ? fabs(right) : range;
                worst = e > worst ? e : worst;
            }
        /* a few sums may all be near 0 where their terms are not */
        const double least = p.n * p.f < 16 ? sqrt((double)p.k) * 0.1 : 0;
        range = range > least ? range : least;
        if (!(worst <= 1e-6 * range))
            fail_msg("%lld tokens, K %lld, F %lld: off by %g of the range", (long long)p.n,
                     (long long)p.k, (long long)p.f, worst / range);
        free_product(&p, glu);
    }
}

/* One token alone, in a cut of the columns, equals its row in company. */
static void check_alone(const product *p, uint64_t *draw)
{
    static float all[MOST_TOKENS * MOST_F];
    memcpy(all, y, sizeof all);
    for (int i = 0; i < 3; i++) {
        const int64_t t = choose(draw, p->n), left = p->n - t,
                      n = 1 + choose(draw, left < 20 ? left : 20), cut = choose(draw, p->f + 1);
        memset(y, 0xff, sizeof y);
        if (cut < p->f)
            run(p, &kernels, t, n, cut, p->f);
        if (cut)
            run(p, &kernels, t, n, 0, cut);
        memcpy(alone, y + t * p->f, (size_t)p->f * sizeof *alone);
        assert_memory_equal(y + t * p->f, all + t * p->f, (size_t)(n * p->f) * sizeof *y);
    }
}

static void test_company(void **state)
{
    (void)state;
    uint64_t draw = 1u << 30;
    for (int round = 0; round < 12; round++) {
        product p;
        make(&p, &draw, false);
        run(&p, &kernels, 0, p.n, 0, p.f);
        check_alone(&p, &draw);
        free_product(&p, false);
    }
}

/* The parts of x add up to x, whatever it is, but for what is less than the least normal number,
 * which products leave out. */
static void test_split(void **state)
{
    (void)state;
    static const float rare[] = {0, -0.0f, INFINITY, -INFINITY, 3.4e38f, 1e-38f, 1e-30f, -1};
    float row[TILE_STEP];
    uint16_t part[TILE_PARTS][TILE_STEP];
    for (int i = 0; i < TILE_STEP; i++)
        row[i] = i < 8 ? rare[i] : rng_normal(seed, (uint64_t)i);
    split_step(row, TILE_PARTS, part);
    for (int i = 0; i < TILE_STEP; i++) {
        double sum = 0;
        for (int p = TILE_PARTS; p-- > 0;) {
            uint32_t bits = (uint32_t)part[p][i] << 16;
            float v;
            memcpy(&v, &bits, sizeof v);
            sum += v;
        }
        assert_true(sum == row[i] || fabs(sum - row[i]) < 0x1p-126);
    }
}

/* x of 16 bits has fewer parts, and the bits of the same numbers as f32. */
static void test_half_x(void **state)
{
    (void)state;
    static uint16_t half[MOST_TOKENS * MOST_K];
    static float as_f32[MOST_TOKENS * MOST_F];
    uint64_t draw = 3u << 30;
    for (int round = 0; round < 12; round++) {
        const ir_dtype dtype = round % 2 ? IR_BF16 : IR_F16;
        product p;
        make(&p, &draw, false);
        for (int64_t i = 0; i < p.n * p.k; i++)
            half[i] = dtype == IR_BF16 ? num_to_bf16(x[i]) : num_to_f16(x[i]);
        widen(half, dtype, p.n * p.k, x);
        run(&p, &kernels, 0, p.n, 0, p.f);
        memcpy(as_f32, y, sizeof as_f32);
        memset(y, 0xff, sizeof y);
        p.call.in[0] = view(half, dtype, p.n, p.k);
        run(&p, &kernels, 0, p.n, 0, p.f);
        assert_memory_equal(y, as_f32, (size_t)(p.n * p.f) * sizeof *y);
        free_product(&p, false);
    }
}

/* ---- products of two operands ---- */

enum { MOST_LINES = 110, SIDE_K = 700 };

/* One operand: `values`, line by line, in memory that ends with its last element; what lies between
 * is NaN. */
typedef struct side {
    tile_operand operand;
    float values[MOST_LINES * SIDE_K];
    uint16_t *memory;
} side;

static void make_side(side *s, int64_t n, int64_t k, uint64_t *draw)
{
    const int64_t gap = choose(draw, 3);
    const tile_operand forms[] = {
        {NULL, k + gap, 1, n, k}, {NULL, 1, n + gap, n, k}, {NULL, 3, 3 * n + gap, n, k}};
    s->operand = forms[choose(draw, 3)];
    const int64_t size = (n - 1) * s->operand.line + (k - 1) * s->operand.step + 1;
    s->memory = malloc((size_t)size * sizeof *s->memory);
    assert_non_null(s->memory);
    for (int64_t i = 0; i < size; i++)
        s->memory[i] = 0x7fc0;
    for (int64_t i = 0; i < n * k; i++) {
        const uint16_t half = num_to_bf16(rng_normal(seed, (*draw)++));
        s->memory[i / k * s->operand.line + i % k * s->operand.step] = half;
        s->values[i] = num_from_bf16(half);
    }
    s->operand.at = s->memory;
}

static void *aligned_bytes(int64_t n)
{
    void *p = aligned_alloc(64, (size_t)(n + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0xff, (size_t)(n + 63) / 64 * 64);
    return p;
}

/* Rows of one or two parts times columns, over some steps and some columns. */
static side left[2], right;
typedef struct sides {
    tile_sides p;
    int64_t k, ld;
} sides;

static sides make_sides(uint64_t *draw)
{
    const int64_t n = 1 + choose(draw, MOST_LINES), c = 1 + choose(draw, MOST_LINES),
                  k = 1 + choose(draw, choose(draw, 2) ? 100 : SIDE_K), steps = tile_steps(k);
    sides s = {{.n_rows = n, .n_columns = c, .steps = steps, .parts = 1 + (int)choose(draw, 2)},
               k,
               tile_lines(c) + 16 * choose(draw, 2)};
    s.p.end_step = 1 + choose(draw, steps);
    s.p.first_step = choose(draw, s.p.end_step);
    s.p.end_column = 1 + choose(draw, c);
    s.p.first_column = choose(draw, s.p.end_column);
    for (int i = 0; i < s.p.parts; i++)
        make_side(&left[i], n, k, draw);
    make_side(&right, c, k, draw);
    return s;
}

static float *multiply(const tile_kernels *by, const sides *s)
{
    const int64_t rows = tile_side_bytes(s->p.n_rows, s->k), tile = TILE_ROWS * 64;
    unsigned char *all = aligned_bytes(rows * s->p.parts), *one = aligned_bytes(rows);
    void *columns = aligned_bytes(tile_side_bytes(s->p.n_columns, s->k));
    float *sums = aligned_bytes(tile_lines(s->p.n_rows) * s->ld * 4);
    tile_sides p = s->p;
    for (int i = 0; i < p.parts; i++) {
        by->rows(&left[i].operand, one);
        for (int64_t t = 0; t < rows / tile; t++)
            memcpy(all + (t * p.parts + i) * tile, one + t * tile, (size_t)tile);
    }
    by->columns(&right.operand, columns);
    p.rows = all;
    p.columns = columns;
    by->begin();
    by->multiply(&p, sums, s->ld);
    by->end();
    free(all);
    free(one);
    free(columns);
    return sums;
}

static double exact_side(const sides *s, int64_t row, int64_t column)
{
    const int64_t end = s->p.end_step * TILE_STEP < s->k ? s->p.end_step * TILE_STEP : s->k;
    double sum = 0;
    for (int64_t k = s->p.first_step * TILE_STEP; k < end; k++)
        for (int i = 0; i < s->p.parts; i++)
            sum += (double)left[i].values[row * s->k + k] * right.values[column * s->k + k];
    return sum;
}

static void free_sides(const sides *s)
{
    for (int i = 0; i < s->p.parts; i++)
        free(left[i].memory);
    free(right.memory);
}

/* Right within fp32's bar wherever asked for, and nothing is written past whole tiles. */
static void test_sides(void **state)
{
    (void)state;
    uint64_t draw = 5u << 29;
    for (uint32_t round = 0; round < check_rounds(24); round++) {
        const sides s = make_sides(&draw);
        float *sums = multiply(&tiles_in_memory, &s);
        for (int64_t r = 0; r < s.p.n_rows; r++)
            for (int64_t c = 0; c < s.ld; c++) {
                uint32_t bits;
                memcpy(&bits, &sums[r * s.ld + c], sizeof bits);
                if (c >= tile_lines(s.p.n_columns))
                    assert_int_equal(bits, 0xffffffff);
                if (c < s.p.first_column || c >= s.p.end_column)
                    continue;
                const double right_sum = exact_side(&s, r, c),
                             e = fabs(sums[r * s.ld + c] - right_sum);
                if (!(e <= 4e-6 * sqrt((double)(s.p.parts * s.k))))
                    fail_msg("row %lld column %lld of %lld x %lld x %lld: %g, not %g", (long long)r,
                             (long long)c, (long long)s.p.n_rows, (long long)s.p.n_columns,
                             (long long)s.k, sums[r * s.ld + c], right_sum);
            }
        free(sums);
        free_sides(&s);
    }
}

/* The instructions' sums have the bits of the tiles in memory, wherever those wrote any. */
static void test_sides_by_instructions(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (!(cpu_features() & CPU_AMX))
        skip();
    uint64_t draw = 7u << 29;
    for (uint32_t round = 0; round < check_rounds(24); round++) {
        const sides s = make_sides(&draw);
        float *emulated = multiply(&tiles_in_memory, &s), *real = multiply(&tile_amx, &s);
        assert_memory_equal(real, emulated, (size_t)(tile_lines(s.p.n_rows) * s.ld) * sizeof *real);
        free(emulated);
        free(real);
        free_sides(&s);
    }
#else
    skip();
#endif
}

/* The instructions themselves, where there are any. */
static void test_instructions(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (!(cpu_features() & CPU_AMX))
        skip();
    linear_kernels real = kernels;
    static float emulated[MOST_TOKENS * MOST_F];
    uint64_t draw = 1u << 31;
    real.tiles = &tile_amx;
    for (int round = 0; round < 20; round++) {
        product p;
        make(&p, &draw, false);
        run(&p, &kernels, 0, p.n, 0, p.f);
        memcpy(emulated, y, sizeof emulated);
        memset(y, 0xff, sizeof y);
        run(&p, &real, 0, p.n, 0, p.f);
        assert_memory_equal(y, emulated, (size_t)(p.n * p.f) * sizeof *y);
        free_product(&p, false);
    }
#else
    skip();
#endif
}

int main(void)
{
    seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),       cmocka_unit_test(test_exact),
        cmocka_unit_test(test_company),     cmocka_unit_test(test_half_x),
        cmocka_unit_test(test_sides),       cmocka_unit_test(test_sides_by_instructions),
        cmocka_unit_test(test_instructions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
