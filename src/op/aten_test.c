/* aten_test.c - the operators of general tensor programs against definitions written anew, entry by
 * entry.
 *
 * Random operands from a printed seed; corner cases (NaN, ties, negative indices, overflow) have
 * values by hand, which are those that PyTorch gives.
 */
#include "check.h"

#include <math.h>

#include "base/rng.h"
#include "ir/op.h"

static uint64_t base_seed;

typedef struct bed {
    mpk_context cx;
    arena arena;
    ir_graph *g;
    ir_values values;
} bed;

/* Parse a graph and allocate all its tensors. Every live count is unlimited, so each entry is
 * computed. */
static void set_up(bed *b, const char *graph)
{
    *b = (bed){0};
    check_ok(&b->cx, ir_parse(&b->cx, &b->arena, str_from(graph), &b->g));
    for (int i = 0; i < IR_LIVES; i++)
        b->values.live[i] = UINT32_MAX;
    check_ok(&b->cx, ir_eval_allocate(&b->cx, &b->arena, b->g, &b->values));
}

static ir_tensor_id id_of(const bed *b, const char *name)
{
    ir_tensor_id id = ir_find(b->g, name);
    assert_int_not_equal(id, IR_NONE);
    return id;
}

static void *data_of(const bed *b, const char *name)
{
    return b->values.data[id_of(b, name)];
}

/* Normal numbers times `scale`, integers of them rounded. */
static void fill(bed *b, const char *name, double scale)
{
    const ir_tensor *t = &b->g->tensors.at[id_of(b, name)];
    op_view v = {.data = data_of(b, name), .dtype = t->dtype};
    for (int64_t i = 0; i < ir_elements(t); i++)
        op_store(&v, i,
                 (float)scale * rng_normal(hash_bytes(name, strlen(name), base_seed), (uint64_t)i));
}

/* Numbers 0 .. limit - 1. */
static void fill_below(bed *b, const char *name, int64_t limit)
{
    const ir_tensor *t = &b->g->tensors.at[id_of(b, name)];
    for (int64_t i = 0; i < ir_elements(t); i++)
        ((int64_t *)data_of(b, name))[i] =
            (int64_t)(rng_u64(hash_bytes(name, strlen(name), base_seed), (uint64_t)i) %
                      (uint64_t)limit);
}

static void eval(bed *b)
{
    check_ok(&b->cx, ir_eval(&b->cx, &b->arena, b->g, &b->values));
}

static void tear_down(bed *b)
{
    arena_free(&b->arena);
}

/* Element number i of a tensor in row-major order. */
static double at(const bed *b, const char *name, int64_t i)
{
    const ir_tensor *t = &b->g->tensors.at[id_of(b, name)];
    int64_t offset = 0;
    for (uint32_t axis = t->rank; axis-- > 0; i /= t->dims[axis])
        offset += i % t->dims[axis] * t->stride[axis];
    if (t->dtype == IR_F64)
        return ((const double *)data_of(b, name))[offset];
    if (t->dtype == IR_I64)
        return (double)((const int64_t *)data_of(b, name))[offset];
    return (double)op_load(&(op_view){.data = data_of(b, name), .dtype = t->dtype}, offset);
}

/* Equal, equally NaN, or within `tolerance`, which is relative for large and absolute for small
 * values. The comparison itself lets equal infinities pass. */
static void near(double found, double expected, double tolerance)
{
    bool same =
        isnan(expected) ? isnan(found) : fabs(found - expected) <= tolerance * (1 + fabs(expected));
    if (!same && found != expected)
        fail_msg("found %.17g, expected %.17g", found, expected);
}

/* %y of a map over two inputs of one element each. */
static double map_of(const char *expression, const char *in, const char *out, double a, double c)
{
    char graph[512];
    bed b;
    snprintf(graph, sizeof graph,
             "input %%a : f64[]\ninput %%c : f64[]\n%%x = cast(%%a) {dtype = \"%s\"}\n%%z = "
             "cast(%%c) {dtype = \"%s\"}\n"
             "%%y = map(%%x, %%z) {expr = \"%s\", dtype = \"%s\"}\n",
             in, in, expression, out);
    set_up(&b, graph);
    *(double *)data_of(&b, "a") = a;
    *(double *)data_of(&b, "c") = c;
    eval(&b);
    double y = at(&b, "y", 0);
    tear_down(&b);
    return y;
}

/* The functions of `map` where C, Python and ATen disagree: signs of division and remainder,
 * rounding of halves, shifts, limits of casts. Expected values are PyTorch's. */
static void test_map_values(void **state)
{
    static const struct {
        const char *expression, *in, *out;
        double a, c, y;
    } rows[] = {
        {"floordiv(x0, x1)", "i64", "i64", -7, 2, -4},
        {"truncdiv(x0, x1)", "i64", "i64", -7, 2, -3},
        {"remainder(x0, x1)", "i64", "i64", -7, 2, 1},
        {"fmod(x0, x1)", "i64", "i64", -7, 2, -1},
        {"floordiv(x0, x1)", "i32", "i32", 5, 0, 0},
        {"truncdiv(x0, x1)", "i64", "i64", -0x1p63, -1, -0x1p63},
        {"remainder(x0, x1)", "f32", "f32", -5, 3, 1},
        {"remainder(x0, x1)", "f32", "f32", -5, (double)INFINITY, (double)INFINITY},
        {"floordiv(x0, x1)", "f32", "f32", -5, (double)INFINITY, -1},
        {"floordiv(x0, x1)", "f64", "f64", 5, 0, (double)INFINITY},
        {"x0 / x1", "i32", "f32", 1, 2, 0.5},
        {"x0 * x1", "i32", "i32", 65536, 65536, 0},
        {"i32(x0 * x1) + 1", "i32", "i64", 65536, 32768, -2147483647},
        {"x0 * x1", "u8", "u8", 200, 2, 144},
        {"shl(x0, x1)", "i32", "i32", 3, 31, -2147483648.0},
        {"shl(x0, x1)", "i64", "i64", 3, 64, 0},
        {"shr(x0, x1)", "i64", "i64", -3, 70, -1},
        {"xor(x0, not(x1))", "i64", "i64", 12, 10, -7},
        {"not(x0)", "bool", "bool", 1, 0, 0},
        {"pow(x0, x1)", "i64", "i64", -2, 5, -32},
        {"pow(x0, x1)", "i64", "i64", 2, -1, 0},
        {"gcd(x0, x1)", "i64", "i64", -12, 18, 6},
        {"max(x0, x1)", "f32", "f32", (double)NAN, 1, (double)NAN},
        {"max(x0, x1)", "f32", "f32", 1, (double)NAN, (double)NAN},
        {"fmax(x0, x1)", "f32", "f32", (double)NAN, 1, 1},
        {"fmin(x0, x1)", "f32", "f32", 1, (double)NAN, 1},
        {"round(x0)", "f32", "f32", 2.5, 0, 2},
        {"round(x0)", "f64", "f64", -3.5, 0, -4},
        {"sign(x0)", "f32", "f32", (double)NAN, 0, 0},
        {"i64(x0)", "f32", "i64", -2.9, 0, -2},
        {"bf16(x0) - x0", "f32", "f32", 1.00390625, 0, -0.00390625},
        {"lnot(x0)", "f32", "bool", (double)NAN, 0, 0},
        {"where(x0, x1, 7)", "i64", "i64", 0, 3, 7},
        {"x0 + 9007199254740993", "i64", "i64", 1, 0, 9007199254740994.0},
        {"x0 + 0.1", "f64", "f64", 0, 0, 0.1},
        {"erfinv(x0)", "f64", "f64", 0.5, 0, 0.47693627620446987},
        {"erfinv(x0)", "f64", "f64", -0.999, 0, -2.3267537655135246},
        {"digamma(x0)", "f64", "f64", 0.5, 0, -1.9635100260214235},
        {"digamma(x0)", "f64", "f64", -1.5, 0, 0.7031566406452432},
        {"i0(x0)", "f64", "f64", 3, 0, 4.880792585865024},
        {"i1e(x0)", "f64", "f64", -30, 0, -0.07191633059864755},
        {"k0(x0)", "f64", "f64", 0.01, 0, 4.721244730161095},
        {"k1(x0)", "f64", "f64", 3, 0, 0.040156431128194185},
        {"k1e(x0)", "f64", "f64", 1000, 0, 0.03964813081296021},
        {"k0(x0)", "f64", "f64", -1, 0, (double)NAN},
        {"chebyshev_t(x0, x1)", "f64", "f64", 0.3, 3, -0.792},
        {"chebyshev_t(x0, x1)", "f64", "f64", 1.5, 9, 2889.0},
        {"chebyshev_u(x0, x1)", "f64", "f64", 0.3, 10, 1.0252491776000001},
        {"hermite_h(x0, x1)", "f32", "f32", 0.5, 3, -5},
        {"hermite_he(x0, x1)", "f32", "f32", 2, 3.9, 2},
        {"laguerre(x0, x1)", "f64", "f64", 2, 2, -1},
        {"legendre(x0, x1)", "f64", "f64", 0.5, 2, -0.125},
        {"legendre(x0, x1)", "f64", "f64", 0.5, -1, 0},
        {"zeta(x0, x1)", "f64", "f64", 2, 1, 1.6449340668482264},
        {"igamma(x0, x1)", "f64", "f64", 2.5, 1.5, 0.3000141641213724},
        {"igammac(x0, x1)", "f64", "f64", 2.5, 9, 0.0029464045878802923},
        {"igamma(x0, x1)", "f64", "f64", 0, 0, (double)NAN},
        {"igamma(x0, x1)", "f64", "f64", 0, 2, 1},
        {"igammac(x0, x1)", "f64", "f64", 0, 2, 0},
        {"igamma(x0, x1)", "f64", "f64", 2, 0, 0},
        {"igammac(x0, x1)", "f64", "f64", 2, 0, 1},
        {"igamma(x0, x1)", "f64", "f64", 2, (double)INFINITY, 1},
        {"igamma(x0, x1)", "f64", "f64", (double)INFINITY, 2, 0},
        {"igamma(x0, x1)", "f64", "f64", (double)INFINITY, (double)INFINITY, (double)NAN},
        {"igamma(x0, x1)", "f64", "f64", -1, 2, (double)NAN},
        {"igamma(x0, x1)", "f64", "f64", 2, -1, (double)NAN},
        {"ndtri(x0)", "f64", "f64", 1e-10, 0, -6.361340902404056},
        {"log_ndtr(x0)", "f64", "f64", -30, 0, -454.32124395634327},
        {"logaddexp(x0, x1)", "f32", "f32", 100, 100, 100.69314718},
        {"xlogy(x0, x1)", "f32", "f32", 0, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double y = map_of(rows[i].expression, rows[i].in, rows[i].out, rows[i].a, rows[i].c);
        if (isnan(rows[i].y) ? !isnan(y)
                             : !(fabs(y - rows[i].y) <= 2e-7 * fabs(rows[i].y)) && y != rows[i].y)
            fail_msg("%s of %s %g, %g: found %.17g, expected %.17g", rows[i].expression, rows[i].in,
                     rows[i].a, rows[i].c, y, rows[i].y);
    }
}

/* A faulty expression is refused when the operator is built, with words that name the fault. */
static void test_map_errors(void **state)
{
    static const char *const wrong[][2] = {{"shl(x0, 1)", "a function of integers has a float"},
                                           {"t0 + x0", "this temporary has no value"},
                                           {"t0 = x0; t0 = x0; t0", "has a value already"},
                                           {"t0 = x0 t0", "expected ;"},
                                           {"t32 = x0; t32", "cannot be set"},
                                           {"q8_0(x0)", "no such function"}};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mpk_context cx = {0};
        arena a = {0};
        ir_graph *g;
        char graph[256];
        snprintf(graph, sizeof graph, "input %%x : f32[2]\n%%y = map(%%x) {expr = \"%s\"}\n",
                 wrong[i][0]);
        check_fails(&cx, MPK_EFORMAT, wrong[i][1], ir_parse(&cx, &a, str_from(graph), &g));
        arena_free(&a);
    }
}

/* Reductions of every kind against loops: over several axes, of integers and floats, in a wider
 * dtype than the input's. */
static void test_reductions(void **state)
{
    bed b;
    (void)state;
    set_up(&b,
           "input %x : f32[3, 5, 70]\ninput %n : i32[3, 5, 70]\n%sum = reduce(%x) {axes = [1]}\n"
           "%mean = reduce(%n) {axes = [0, 2], kind = \"mean\", dtype = \"f64\"}\n"
           "%any = reduce(%n) {axes = [1], kind = \"any\"}\n%all = reduce(%n) {axes = [1], kind = "
           "\"all\"}\n"
           "%v, %i = extreme(%n) {axis = 1}\n%s = scan(%n) {axis = 1, dtype = \"i64\"}\n"
           "%c, %k = scan_extreme(%n) {axis = 1, kind = \"min\"}\n");
    fill(&b, "x", 1);
    fill(&b, "n", 1.5);
    eval(&b);
    double means[5] = {0};
    for (int64_t i = 0; i < 3 * 70; i++) {
        double sum = 0, running = 0, least = 1e9, most = -1e9;
        int64_t where = 0, least_at = 0, non_zero = 0;
        for (int64_t e = 0; e < 5; e++) {
            int64_t from = i / 70 * 350 + e * 70 + i % 70;
            double n = at(&b, "n", from);
            sum += at(&b, "x", from);
            running += n;
            means[e] += n / 210;
            non_zero += n != 0;
            where = n > most ? e : where;
            most = n > most ? n : most;
            least_at = n <= least ? e : least_at;
            least = n < least ? n : least;
            assert_true(at(&b, "s", from) == running);
            assert_true(at(&b, "c", from) == least && at(&b, "k", from) == (double)least_at);
        }
        near(at(&b, "sum", i), sum, 1e-6);
        assert_true(at(&b, "any", i) == (non_zero > 0) && at(&b, "all", i) == (non_zero == 5));
        assert_true(at(&b, "v", i) == most && at(&b, "i", i) == (double)where);
    }
    for (int64_t e = 0; e < 5; e++)
        near(at(&b, "mean", e), means[e], 1e-9);
    tear_down(&b);
}

/* NaN, and equal entries. */
static void test_order_values(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[6]\n%v, %i = sort(%x) {axis = 0}\n%dv, %di = sort(%x) {axis = 0, "
               "descending = 1}\n"
               "%tv, %ti = topk(%x) {axis = 0, k = 4}\n%lv, %li = topk(%x) {axis = 0, k = 3, "
               "largest = 0}\n"
               "%mv, %mi = extreme(%x) {axis = 0}\n%cv, %ci = scan_extreme(%x) {axis = 0}\n"
               "%max = reduce(%x) {axes = [0], kind = \"max\"}\n");
    memcpy(data_of(&b, "x"), (float[]){3, 1, 3, NAN, 1, NAN}, 24);
    eval(&b);
    static const int sorted[] = {1, 4, 0, 2, 3, 5}, falling[] = {3, 5, 0, 2, 1, 4},
                     so_far[] = {0, 0, 2, 3, 3, 5};
    for (int i = 0; i < 6; i++) {
        near(at(&b, "i", i), (double)(sorted[i]), 0);
        near(at(&b, "di", i), (double)(falling[i]), 0);
        near(at(&b, "ci", i), (double)(so_far[i]), 0);
        near(at(&b, "dv", i), at(&b, "x", falling[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        near(at(&b, "ti", i), (double)(falling[i]), 0);
    for (int i = 0; i < 3; i++)
        near(at(&b, "li", i), (double)(sorted[i]), 0);
    near(at(&b, "mi", 0), (double)(3), 0);
    assert_true(isnan(at(&b, "max", 0)) && isnan(at(&b, "mv", 0)));
    tear_down(&b);
}

/* Many entries with few distinct values: a sort that is not stable, or a search that takes the
 * other side of equal entries, gives other positions. */
static void test_sort_random(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : i32[2, 1003]\n%v, %i = sort(%x) {axis = 1}\n%tv, %ti = topk(%x) {axis = "
               "1, k = 100, largest "
               "= 0}\n%p = search_sorted(%v, %x)\n%q = search_sorted(%v, %x) {right = 1}\n");
    fill(&b, "x", 100);
    eval(&b);
    for (int64_t r = 0; r < 2; r++)
        for (int64_t i = 0; i < 1003; i++) {
            int64_t from = (int64_t)at(&b, "i", r * 1003 + i), below = 0, up_to = 0;
            double x = at(&b, "x", r * 1003 + i);
            assert_true(at(&b, "v", r * 1003 + i) == at(&b, "x", r * 1003 + from));
            for (int64_t k = 0; k < 1003; k++) {
                below += at(&b, "x", r * 1003 + k) < x;
                up_to += at(&b, "x", r * 1003 + k) <= x;
            }
            assert_true(at(&b, "p", r * 1003 + i) == (double)below &&
                        at(&b, "q", r * 1003 + i) == (double)up_to);
            if (i == 0)
                continue;
            double before = at(&b, "v", r * 1003 + i - 1), value = at(&b, "v", r * 1003 + i);
            assert_true(before < value ||
                        (before == value && at(&b, "i", r * 1003 + i - 1) < (double)from));
            if (i < 100)
                assert_true(at(&b, "ti", r * 100 + i) == (double)from &&
                            at(&b, "tv", r * 100 + i) == value);
        }
    tear_down(&b);
}

/* Products with broadcast batch axes, with the second operand transposed, and of integers,
 * against sums in double. */
static void test_products(void **state)
{
    bed b;
    (void)state;
    set_up(&b,
           "input %a : f32[2, 1, 11, 133]\ninput %w : f32[3, 133, 67]\n%y = batch_matmul(%a, %w)\n"
           "%t = transpose(%w) {perm = [0, 2, 1]}\n%z = batch_matmul(%a, %t) {transpose_b = 1}\n"
           "input %n : i64[2, 3]\n%m = transpose(%n) {perm = [1, 0]}\n%i = batch_matmul(%n, %m)\n");
    fill(&b, "a", 1);
    fill(&b, "w", 1);
    memcpy(data_of(&b, "n"), (int64_t[]){INT64_C(4000000007), 2, 3, 4, 5, -6}, 48);
    eval(&b);
    for (int64_t i = 0; i < 2 * 3 * 11 * 67; i++) {
        double sum = 0;
        int64_t q = i % 67, m = i / 67 % 11, k = i / 67 / 11 % 3, n = i / 67 / 11 / 3;
        for (int64_t e = 0; e < 133; e++)
            sum += at(&b, "a", (n * 11 + m) * 133 + e) * at(&b, "w", (k * 133 + e) * 67 + q);
        near(at(&b, "y", i), sum, 1e-6);
        assert_true(at(&b, "y", i) == at(&b, "z", i));
    }
    const int64_t *product = data_of(&b, "i");
    assert_true(product[1] == INT64_C(16000000028) + 10 - 18);
    tear_down(&b);
}

/* Attention with grouped heads, a causal window and both kinds of mask: added numbers, and
 * booleans that select positions. */
static void test_sdpa(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %q : f32[2, 4, 9, 6]\ninput %k : f32[2, 2, 12, 6]\ninput %v : f32[2, 2, 12, "
               "5]\ninput %m : f32[9, "
               "12]\n%y = sdpa(%q, %k, %v, %m) {scale = 0.7, causal = 1, window = 4}\ninput %u : "
               "bool[12]\n"
               "%z = sdpa(%q, %k, %v, %u)\n");
    fill(&b, "q", 1);
    fill(&b, "k", 1);
    fill(&b, "v", 1);
    fill(&b, "m", 1);
    eval(&b);
    for (int64_t i = 0; i < 2 * 4 * 9 * 5; i++) {
        double sum = 0, answer = 0;
        int64_t c = i % 5, t = i / 5 % 9, h = i / 45 % 4, n = i / 180, g = n * 2 + h / 2;
        for (int64_t s = t > 3 ? t - 3 : 0; s <= t; s++) {
            double score = at(&b, "m", t * 12 + s);
            for (int64_t e = 0; e < 6; e++)
                score += 0.7 * at(&b, "q", i / 5 * 6 + e) * at(&b, "k", (g * 12 + s) * 6 + e);
            sum += exp(score);
            answer += exp(score) * at(&b, "v", (g * 12 + s) * 5 + c);
        }
        near(at(&b, "y", i), answer / sum, 1e-6);
        assert_true(at(&b, "z", i) == 0); /* sees nothing */
    }
    tear_down(&b);
}

/* Groups that span several channels, and log_softmax along a middle axis, against sums in
 * double. */
static void test_group_norm(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[2, 6, 5]\ninput %w : f32[6]\ninput %c : f32[6]\n%y = group_norm(%x, "
               "%w, %c) {groups = 3, "
               "eps = 0.25}\n%l = log_softmax(%x) {axis = 1}\n");
    fill(&b, "x", 2);
    fill(&b, "w", 1);
    fill(&b, "c", 1);
    eval(&b);
    for (int64_t i = 0; i < 60; i++) {
        double mean = 0, squares = 0, sum = 0;
        for (int64_t e = 0; e < 10; e++) {
            mean += at(&b, "x", i / 10 * 10 + e) / 10;
            squares += at(&b, "x", i / 10 * 10 + e) * at(&b, "x", i / 10 * 10 + e) / 10;
        }
        for (int64_t c = 0; c < 6; c++)
            sum += exp(at(&b, "x", i / 30 * 30 + c * 5 + i % 5));
        double y = (at(&b, "x", i) - mean) / sqrt(squares - mean * mean + 0.25);
        near(at(&b, "y", i), y * at(&b, "w", i / 5 % 6) + at(&b, "c", i / 5 % 6), 1e-5);
        near(at(&b, "l", i), at(&b, "x", i) - log(sum), 1e-6);
    }
    tear_down(&b);
}

/* Indices that are broadcast against each other.  A negative one counts from the end; one out of
 * range reads zero and writes nothing; of an entry that is named twice the last value stays, or
 * with `accumulate` the sum. */
static void test_indices(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[5, 4, 3]\ninput %i : i64[2, 1]\ninput %k : i64[3]\ninput %v : "
               "f32[2, 3, 3]\n"
               "%y = index(%x, %i, %k)\n%p = index_put(%x, %v, %i, %k)\n"
               "%a = index_put(%x, %v, %i, %k) {accumulate = 1}\n");
    fill(&b, "x", 1);
    fill(&b, "v", 1);
    memcpy(data_of(&b, "i"), (int64_t[]){-1, 9}, 16); /* the last, and one that does not exist */
    memcpy(data_of(&b, "k"), (int64_t[]){2, 0, 2}, 24);
    eval(&b);
    for (int64_t e = 0; e < 18; e++) {
        int64_t k = e / 3 % 3 == 1 ? 0 : 2;
        near(at(&b, "y", e), e < 9 ? at(&b, "x", 4 * 12 + k * 3 + e % 3) : 0, 0);
    }
    for (int64_t e = 0; e < 60; e++) {
        double put = at(&b, "x", e), add = put;
        if (e / 3 == 16)
            put = at(&b, "v", 3 + e % 3), add += put;
        if (e / 3 == 18) /* named twice */
            put = at(&b, "v", 6 + e % 3), add += at(&b, "v", e % 3) + put;
        near(at(&b, "p", e), put, 0);
        near(at(&b, "a", e), add, 1e-6);
    }
    tear_down(&b);
}

/* In place: what is not named is not touched. */
static void test_in_place(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "state %c : bf16[3, 4]\ninput %v : bf16[2]\ninput %i : i64[2]\ninput %k : i64[]\n"
               "%p = index_put(%c, %v, %i, %k) {in_place = 1}\ninput %s : bf16[1, 2]\n"
               "%q = slice_scatter(%p, %s) {starts = [1, 0], stops = [2, 4], steps = [1, 2], "
               "in_place = 1}\n");
    assert_ptr_equal(data_of(&b, "c"), data_of(&b, "q"));
    fill(&b, "c", 0);
    fill(&b, "v", 1);
    fill(&b, "s", 1);
    memcpy(data_of(&b, "i"), (int64_t[]){0, -1}, 16);
    *(int64_t *)data_of(&b, "k") = 3;
    eval(&b);
    double wanted[12] = {0};
    wanted[3] = at(&b, "v", 0);
    wanted[11] = at(&b, "v", 1);
    wanted[4] = at(&b, "s", 0);
    wanted[6] = at(&b, "s", 1);
    for (int64_t e = 0; e < 12; e++)
        assert_true(at(&b, "c", e) == wanted[e]);
    tear_down(&b);
}

/* What scatter makes of an entry that has a value already; a mean is a sum, divided at the end. */
static double combined(const char *kind, double old, double value)
{
    if (strcmp(kind, "sum") == 0 || strcmp(kind, "mean") == 0)
        return old + value;
    if (strcmp(kind, "prod") == 0)
        return old * value;
    if (strcmp(kind, "max") == 0)
        return value > old ? value : old;
    if (strcmp(kind, "min") == 0)
        return value < old ? value : old;
    return value;
}

/* Along an axis that is longer than the parts in which scatter works. */
static void test_scatter(void **state)
{
    static const char *const kinds[] = {"set", "sum", "prod", "mean", "max", "min"};
    enum { N = 9000, M = 20000 };
    (void)state;
    for (int kind = 0; kind < 6; kind++)
        for (int include = 0; include < 2; include++) {
            char graph[512];
            bed b;
            snprintf(
                graph, sizeof graph,
                "input %%x : f64[%d]\ninput %%i : i64[%d]\ninput %%s : f64[%d]\n%%t = "
                "take_along(%%x, %%i) {axis = "
                "0}\n%%y = scatter(%%x, %%i, %%s) {axis = 0, kind = \"%s\", include_self = %d}\n",
                N, M, M, kinds[kind], include);
            set_up(&b, graph);
            fill(&b, "x", 1);
            fill(&b, "s", 1);
            fill_below(&b, "i", N);
            eval(&b);
            static double y[N];
            static int64_t count[N];
            for (int64_t e = 0; e < N; e++) {
                y[e] = at(&b, "x", e);
                count[e] = include;
            }
            for (int64_t e = 0; e < M; e++) {
                int64_t to = (int64_t)at(&b, "i", e);
                double s = at(&b, "s", e), old = y[to];
                assert_true(at(&b, "t", e) == at(&b, "x", to));
                y[to] = count[to] ? combined(kinds[kind], old, s) : s;
                count[to]++;
            }
            for (int64_t e = 0; e < N; e++)
                near(at(&b, "y", e), kind == 3 && count[e] ? y[e] / (double)count[e] : y[e], 1e-12);
            tear_down(&b);
        }
}

/* NaN stays, whichever of the two comes first. */
static void test_scatter_nan(void **state)
{
    static const char *const kinds[] = {"max", "min"};
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        char graph[512];
        bed b;
        snprintf(graph, sizeof graph,
                 "input %%x : f32[3]\ninput %%i : i64[4]\ninput %%s : f32[4]\n%%y = scatter(%%x, "
                 "%%i, %%s) {axis = 0, kind = \"%s\"}\n",
                 kinds[kind]);
        set_up(&b, graph);
        memcpy(data_of(&b, "x"), (float[]){NAN, 1, 2}, 3 * sizeof(float));
        memcpy(data_of(&b, "i"), (int64_t[]){0, 1, 1, 2}, 4 * sizeof(int64_t));
        memcpy(data_of(&b, "s"), (float[]){5, NAN, 5, 2}, 4 * sizeof(float));
        eval(&b);
        assert_true(isnan(at(&b, "y", 0)) && isnan(at(&b, "y", 1)) && at(&b, "y", 2) == 2);
        tear_down(&b);
    }
}

/* A diagonal far outside of the matrix keeps all of it, or nothing. */
static void test_far_diagonals(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[2, 3]\n%a = triangle(%x) {diagonal = 9223372036854775807}\n%b = "
               "triangle(%x) {diagonal = -9223372036854775808}\n%c = triangle(%x) {diagonal = "
               "-9223372036854775808, upper = 1}\n");
    fill(&b, "x", 1);
    eval(&b);
    for (int64_t e = 0; e < 6; e++)
        assert_true(at(&b, "a", e) == at(&b, "x", e) && at(&b, "b", e) == 0 &&
                    at(&b, "c", e) == at(&b, "x", e));
    tear_down(&b);
}

/* Operators that move entries: steps of slices, strides that overlap, each mode of padding, flips,
 * triangles; and those that make entries of nothing. */
static void test_shapes(void **state)
{
    bed b;
    (void)state;
    set_up(
        &b,
        "input %x : i32[4, 6]\n%s = slice(%x) {starts = [0, 1], stops = [4, 6], steps = [2, 2]}\n"
        "%d = strided(%x) {shape = [4], strides = [7]}\n%w = strided(%x) {shape = [5, 2], strides "
        "= [1, 1], offset = "
        "6}\n%r = pad(%x) {before = [2, 0], after = [0, 3], mode = \"reflect\"}\n"
        "%e = pad(%x) {before = [2, 0], after = [0, 3], mode = \"replicate\"}\n"
        "%c = pad(%x) {before = [2, 0], after = [0, 3], mode = \"circular\"}\n"
        "%v = pad(%x) {before = [2, 0], after = [0, 3], value = -5.0}\n%f = flip(%x) {axes = [1]}\n"
        "%lo = triangle(%x) {diagonal = 1}\n%up = triangle(%x) {diagonal = 1, upper = 1}\n"
        "%n = iota() {n = 5, start = 3.0, step = -2.0}\n%one = full() {shape = [2], value = 0.1, "
        "dtype = \"f64\"}\n");
    for (int i = 0; i < 24; i++)
        ((int32_t *)data_of(&b, "x"))[i] = i + 1;
    eval(&b);
    for (int64_t i = 0; i < 6; i++)
        near(at(&b, "s", i), (double)(i / 3 * 12 + i % 3 * 2 + 2), 0);
    for (int64_t i = 0; i < 4; i++)
        near(at(&b, "d", i), (double)(i * 7 + 1), 0);
    for (int64_t i = 0; i < 10; i++)
        near(at(&b, "w", i), (double)(7 + i / 2 + i % 2), 0);
    for (int64_t i = 0; i < 54; i++) {
        const int64_t r = i / 9 - 2, c = i % 9;
        const int64_t edge_r = r < 0 ? 0 : r;
        const int64_t edge_c = c > 5 ? 5 : c;
        const int64_t mirror = (2 * edge_r - r) * 6 + 2 * edge_c - c;
        near(at(&b, "r", i), (double)(mirror + 1), 0);
        near(at(&b, "e", i), (double)(edge_r * 6 + edge_c + 1), 0);
        near(at(&b, "c", i), (double)((r + 4) % 4 * 6 + c % 6 + 1), 0);
        near(at(&b, "v", i), (double)(r < 0 || c > 5 ? -5 : r * 6 + c + 1), 0);
    }
    for (int64_t i = 0; i < 24; i++) {
        int64_t r = i / 6, c = i % 6;
        near(at(&b, "f", i), (double)(r * 6 + 6 - c), 0);
        near(at(&b, "lo", i), (double)(c - r <= 1 ? i + 1 : 0), 0);
        near(at(&b, "up", i), (double)(c - r >= 1 ? i + 1 : 0), 0);
    }
    for (int64_t i = 0; i < 5; i++)
        near(at(&b, "n", i), (double)(3 - 2 * i), 0);
    assert_true(at(&b, "one", 1) == 0.1);
    tear_down(&b);
}

/* Two axes; a transposed convolution spreads what a convolution gathers. */
static void test_conv(void **state)
{
    bed b;
    (void)state;
    set_up(
        &b,
        "input %x : f32[2, 4, 7, 9]\ninput %w : f32[6, 2, 3, 2]\ninput %c : f32[6]\n"
        "%y = conv(%x, %w, %c) {stride = [2, 1], padding = [1, 2], dilation = [1, 3], groups = 2}\n"
        "input %u : f32[4, 3, 3, 2]\n%t = conv(%x, %u, _) {stride = [2, 3], padding = [1, 0], "
        "groups = 2, "
        "transposed = 1, output_padding = [1, 0]}\n");
    fill(&b, "x", 1);
    fill(&b, "w", 1);
    fill(&b, "c", 1);
    fill(&b, "u", 1);
    eval(&b);
    for (int64_t i = 0; i < 2 * 6 * 4 * 10; i++) { /* (7 + 2 - 3) / 2 + 1 and (9 + 4 - 4) + 1 */
        int64_t w = i % 10, h = i / 10 % 4, f = i / 40 % 6, n = i / 240;
        double sum = at(&b, "c", f);
        for (int64_t e = 0; e < 12; e++) {
            int64_t c = e / 6, kh = e / 2 % 3, kw = e % 2, row = h * 2 - 1 + kh,
                    column = w - 2 + kw * 3;
            if (row >= 0 && row < 7 && column >= 0 && column < 9)
                sum += at(&b, "x", ((n * 4 + f / 3 * 2 + c) * 7 + row) * 9 + column) *
                       at(&b, "w", f * 12 + e);
        }
        near(at(&b, "y", i), sum, 1e-6);
    }
    static double spread[2 * 6 * 14 * 26]; /* 6 * 2 - 2 + 2 + 1 + 1 and 8 * 3 + 1 + 1 */
    memset(spread, 0, sizeof spread);
    for (int64_t i = 0; i < 2 * 4 * 63 * 18; i++) {
        int64_t e = i % 18, place = i / 18 % 63, c = i / 18 / 63 % 4, n = i / 18 / 63 / 4;
        int64_t f = c / 2 * 3 + e / 6, row = place / 9 * 2 - 1 + e / 2 % 3,
                column = place % 9 * 3 + e % 2;
        if (row >= 0 && row < 14)
            spread[((n * 6 + f) * 14 + row) * 26 + column] +=
                at(&b, "x", (n * 4 + c) * 63 + place) * at(&b, "u", c * 18 + e);
    }
    for (int64_t i = 0; i < 2 * 6 * 14 * 26; i++)
        near(at(&b, "t", i), spread[i], 1e-6);
    tear_down(&b);
}

/* The largest of a window with NaN is its last NaN, as torch has it. */
static void test_pool_of_nan(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[1, 1, 5]\n%m, %i = max_pool(%x) {kernel = [5]}\n");
    memcpy(data_of(&b, "x"), (float[]){3, NAN, 4, NAN, 5}, 20);
    eval(&b);
    assert_true(isnan(at(&b, "m", 0)) && at(&b, "i", 0) == 3);
    tear_down(&b);
}

/* Windows that reach over the edge: `ceil` adds a last one that is not full, and the padding is
 * neither a largest value nor part of an average.  Adaptive pools have windows that overlap. */
static void test_pools(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[2, 3, 8, 7]\n%m, %i = max_pool(%x) {kernel = [3, 2], stride = [2, "
               "2], padding = [1, 1], "
               "ceil = 1}\n%a = avg_pool(%x) {kernel = [3, 2], stride = [2, 2], padding = [1, 1], "
               "ceil = 1, "
               "count_include_pad = 0}\n%d = avg_pool(%x) {output = [3, 7]}\n");
    fill(&b, "x", 1);
    eval(&b);
    assert_int_equal(b.g->tensors.at[id_of(&b, "m")].dims[2], 5); /* ceil((8 + 2 - 3) / 2) + 1 */
    for (int64_t i = 0; i < 2 * 3 * 5 * 4; i++) {
        int64_t w = i % 4 * 2 - 1, h = i / 4 % 5 * 2 - 1, plane = i / 20 * 56, best = -1;
        double sum = 0, n = 0, most = -1e9;
        for (int64_t r = h < 0 ? 0 : h; r < h + 3 && r < 8; r++)
            for (int64_t c = w < 0 ? 0 : w; c < w + 2 && c < 7; c++, n++) {
                double x = at(&b, "x", plane + r * 7 + c);
                sum += x;
                best = x > most ? r * 7 + c : best;
                most = x > most ? x : most;
            }
        near(at(&b, "m", i), most, 0);
        near(at(&b, "i", i), (double)best, 0);
        near(at(&b, "a", i), sum / n, 1e-6);
    }
    static const int from[] = {0, 2, 5}, end[] = {3, 6, 8};
    for (int64_t i = 0; i < 2 * 3 * 3 * 7; i++) {
        double sum = 0;
        for (int r = from[i / 7 % 3]; r < end[i / 7 % 3]; r++)
            sum += at(&b, "x", i / 21 * 56 + r * 7 + i % 7);
        near(at(&b, "d", i), sum / (end[i / 7 % 3] - from[i / 7 % 3]), 1e-6);
    }
    tear_down(&b);
}

/* Values from PyTorch's interpolate of 0, 1, 4, 9. */
static void test_upsample(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[1, 1, 4]\n%n = upsample(%x) {size = [6]}\n"
               "%e = upsample(%x) {size = [6], mode = \"nearest_exact\"}\n%l = upsample(%x) {size "
               "= [6], mode = "
               "\"linear\"}\n%a = upsample(%x) {size = [7], mode = \"linear\", align_corners = 1}\n"
               "%r = reshape(%x) {shape = [1, 1, 2, 2]}\n%c = upsample(%r) {size = [3, 2], mode = "
               "\"cubic\"}\n");
    memcpy(data_of(&b, "x"), (float[]){0, 1, 4, 9}, 16);
    eval(&b);
    static const double nearest[] = {0, 0, 1, 4, 4, 9}, exact[] = {0, 1, 1, 4, 9, 9};
    static const double linear[] = {0, 0.5, 1.5, 3.5, 6.5, 9},
                        corners[] = {0, 0.5, 1, 2.5, 4, 6.5, 9};
    static const double cubic[] = {-0.34722222, 0.30555556, 2, 5, 4.3472222, 9.6944444};
    for (int i = 0; i < 7; i++)
        near(at(&b, "a", i), corners[i], 1e-6);
    for (int i = 0; i < 6; i++) {
        near(at(&b, "n", i), nearest[i], 0);
        near(at(&b, "e", i), exact[i], 0);
        near(at(&b, "l", i), linear[i], 1e-6);
        near(at(&b, "c", i), cubic[i], 1e-6);
    }
    tear_down(&b);
}

int main(void)
{
    base_seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map_values),    cmocka_unit_test(test_map_errors),
        cmocka_unit_test(test_reductions),    cmocka_unit_test(test_order_values),
        cmocka_unit_test(test_sort_random),   cmocka_unit_test(test_products),
        cmocka_unit_test(test_sdpa),          cmocka_unit_test(test_group_norm),
        cmocka_unit_test(test_indices),       cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_scatter),       cmocka_unit_test(test_scatter_nan),
        cmocka_unit_test(test_far_diagonals), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_conv),          cmocka_unit_test(test_pools),
        cmocka_unit_test(test_pool_of_nan),   cmocka_unit_test(test_upsample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
