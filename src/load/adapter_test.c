/* adapter_test.c - the arithmetic of merging against sums in double, and what folders of PEFT and
 * GGUF files say of an update.  tests/test_lora.py has whole models. */
#include <math.h>

#include "base/num.h"
#include "check.h"
#include "ir/blocks.h"
#include "load/adapter.h"

static uint64_t stream;
static uint64_t drawn;

static int64_t draw(int64_t n)
{
    return (int64_t)(rng_u64(stream, drawn++) % (uint64_t)n);
}

static float number(void)
{
    return rng_normal(stream, drawn++);
}

/* A matrix of random numbers of a plain dtype, in arena a. */
static load_tensor make_matrix(arena *a, ir_dtype dtype, int64_t rows, int64_t columns)
{
    mpk_context cx = {0};
    load_tensor t = {.name = STR("w"), .dtype = dtype, .rank = 2, .dims = {rows, columns}};
    check_ok(&cx, load_tensor_bytes(&cx, &t, &t.n_bytes));
    char *to = arena_alloc(a, (size_t)t.n_bytes, 1);
    assert_non_null(to);
    for (int64_t i = 0; i < rows * columns; i++) {
        const float x = number();
        const uint16_t half = dtype == IR_F16 ? num_to_f16(x) : num_to_bf16(x);
        if (dtype == IR_F32)
            memcpy(to + 4 * i, &x, sizeof x);
        else
            memcpy(to + 2 * i, &half, sizeof half);
    }
    t.data = to;
    return t;
}

/* Entry [i, k] of a matrix, or of its transpose. */
static double entry(const load_tensor *t, bool turned, int64_t i, int64_t k)
{
    return load_number(t, turned ? k * t->dims[1] + i : i * t->dims[1] + k);
}

static adapter_change make_change(arena *a, int64_t rows, int64_t columns, int64_t rank)
{
    static const ir_dtype dtypes[] = {IR_F32, IR_F16, IR_BF16};
    adapter_change c = {.entry = -1, .factor = number()};
    c.left_turned = draw(2);
    c.right_turned = draw(2);
    if (c.left_turned)
        c.left = make_matrix(a, dtypes[draw(3)], rank, rows);
    else
        c.left = make_matrix(a, dtypes[draw(3)], rows, rank);
    if (c.right_turned)
        c.right = make_matrix(a, dtypes[draw(3)], columns, rank);
    else
        c.right = make_matrix(a, dtypes[draw(3)], rank, columns);
    assert_true(adapter_rows(&c) == rows && adapter_columns(&c) == columns &&
                adapter_rank(&c) == rank);
    return c;
}

/* Entry [i, k] of the update of c. */
static double update_of(const adapter_change *c, int64_t i, int64_t k)
{
    double sum = 0;
    for (int64_t j = 0; j < adapter_rank(c); j++)
        sum += entry(&c->left, c->left_turned, i, j) * entry(&c->right, c->right_turned, j, k);
    return sum * c->factor;
}

/* Is `found` what `exact` rounds to, or the other neighbour where the sum in f32 fell beyond the
 * middle of two? */
static void check_number(ir_dtype dtype, double exact, float found)
{
    static const double steps[] = {
        [IR_F32] = 0x1p-21, [IR_F16] = 0x1.01p-11, [IR_BF16] = 0x1.01p-8};
    const double step = steps[dtype];
    if (!(fabs(found - exact) <= step * fabs(exact) + 1e-5))
        fail_msg("%.9g is not %.9g rounded to %s", found, exact, ir_dtype_table[dtype].name);
}

/* Any sizes, dtypes and numbers of updates; rows at any address. */
static void test_sums(void **state)
{
    static const ir_dtype dtypes[] = {IR_F32, IR_F16, IR_BF16};
    (void)state;
    stream = check_seed();
    for (uint32_t round = 0; round < check_rounds(60); round++) {
        mpk_context cx = {0};
        arena a = {0};
        const int64_t rows = 1 + draw(40), columns = 1 + draw(round % 8 ? 60 : 1100),
                      n = 1 + draw(3);
        adapter_change changes[3];
        load_tensor t = make_matrix(&a, dtypes[draw(3)], rows, columns);
        const load_tensor before = t;
        if (round % 3 == 0) {
            t.parts = arena_alloc(&a, (size_t)rows, sizeof *t.parts);
            for (int64_t i = 0; i < rows; i++)
                t.parts[i] = load_row_at(&before, rows, i);
            t.data = NULL;
        }
        for (int64_t i = 0; i < n; i++) {
            changes[i] = make_change(&a, rows, columns, 1 + draw(11));
            if (i)
                changes[i - 1].next = &changes[i];
        }
        check_ok(&cx, adapter_merge(&cx, &a, changes, IR_F16, &t));
        assert_true(t.dtype == before.dtype && t.data && !t.parts && t.n_bytes == before.n_bytes);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = 0; k < columns; k++) {
                double sum = entry(&before, false, i, k);
                for (int64_t c = 0; c < n; c++)
                    sum += update_of(&changes[c], i, k);
                check_number(t.dtype, sum, (float)entry(&t, false, i, k));
            }
        arena_free(&a);
    }
}

/* Of a stack one entry changes; blocks become f16 everywhere. */
static void test_stacks_of_blocks(void **state)
{
    mpk_context cx = {0};
    arena a = {0};
    enum { E = 3, N = 20, K = 64 };
    float *was = arena_alloc(&a, (size_t)E * N * K, sizeof *was);
    load_tensor t = {.name = STR("stack"), .dtype = IR_Q8_0, .rank = 3, .dims = {E, N, K}};
    (void)state;
    stream = check_seed();
    check_ok(&cx, load_tensor_bytes(&cx, &t, &t.n_bytes));
    void *blocks = arena_alloc(&a, (size_t)t.n_bytes, 1);
    assert_true(blocks_fill_random(IR_Q8_0, E * N * K, stream, blocks));
    assert_true(blocks_unpack_row(IR_Q8_0, blocks, E * N * K, was));
    t.parts = arena_alloc(&a, E, sizeof *t.parts);
    for (int e = 0; e < E; e++)
        t.parts[e] = (char *)blocks + t.n_bytes / E * (uint64_t)e;
    adapter_change c = make_change(&a, N, K, 5);
    c.entry = 1;
    check_ok(&cx, adapter_merge(&cx, &a, &c, IR_F16, &t));
    assert_true(t.dtype == IR_F16 && t.rank == 3 && t.n_bytes == 2 * E * N * K && !t.parts);
    for (int64_t i = 0; i < E * N; i++)
        for (int64_t k = 0; k < K; k++)
            check_number(IR_F16, was[i * K + k] + (i / N == 1 ? update_of(&c, i - N, k) : 0),
                         load_number(&t, i * K + k));
    arena_free(&a);
}

/* Another tensor takes the place of W, and rows get lengths. */
static void test_whole_and_lengths(void **state)
{
    mpk_context cx = {0};
    arena a = {0};
    enum { N = 19, K = 33 };
    (void)state;
    stream = check_seed();
    load_tensor t = make_matrix(&a, IR_F32, N, K), lengths = make_matrix(&a, IR_F32, N, 1);
    adapter_change whole = {.entry = -1, .whole = make_matrix(&a, IR_BF16, N, K)},
                   update = make_change(&a, N, K, 3);
    lengths.rank = 1;
    update.magnitude = lengths;
    whole.next = &update;
    check_ok(&cx, adapter_merge(&cx, &a, &whole, IR_F16, &t));
    for (int64_t i = 0; i < N; i++) {
        double length = 0;
        for (int64_t k = 0; k < K; k++)
            length += pow(entry(&whole.whole, false, i, k) + update_of(&update, i, k), 2);
        const double times = load_number(&lengths, i) / sqrt(length);
        for (int64_t k = 0; k < K; k++)
            check_number(IR_F32,
                         times * (entry(&whole.whole, false, i, k) + update_of(&update, i, k)),
                         load_number(&t, i * K + k));
    }
    arena_free(&a);
}

/* A number that is not finite, or too large for f16, leaves the tensor as it was. */
static void test_overflow(void **state)
{
    mpk_context cx = {0};
    arena a = {0};
    static const float ones[4] = {1, 1, 1, 1}, large[2] = {3e4f, INFINITY};
    static const uint16_t base[4] = {0x7bff, 0, 0x7bff, 0}; /* 65504 */
    load_tensor t = {.name = STR("w"), .dtype = IR_F16, .rank = 2, .dims = {2, 2}, .data = base};
    adapter_change c = {.entry = -1, .factor = 1e-4};
    (void)state;
    t.n_bytes = sizeof base;
    c.left = (load_tensor){.dtype = IR_F32, .rank = 2, .dims = {2, 1}, .data = ones, .n_bytes = 8};
    c.right =
        (load_tensor){.dtype = IR_F32, .rank = 2, .dims = {1, 2}, .data = large, .n_bytes = 8};
    check_fails(&cx, MPK_ELIMIT, "the weight w, row 0, is not finite in f16",
                adapter_merge(&cx, &a, &c, IR_F16, &t));
    assert_true(t.data == base && t.dtype == IR_F16);
    c.right.data = ones;
    check_ok(&cx, adapter_merge(&cx, &a, &c, IR_F16, &t));
    c.factor = 32;
    check_fails(&cx, MPK_ELIMIT, "is not finite in f16", adapter_merge(&cx, &a, &c, IR_F16, &t));
    t.dtype = IR_I32;
    check_fails(&cx, MPK_EUNSUPPORTED, "the weight w is i32",
                adapter_merge(&cx, &a, &c, IR_F16, &t));
    arena_free(&a);
}

/* Names of experts and routers in one spelling, and the stack that one belongs to. */
static void test_names(void **state)
{
    static const char *const cases[][3] = {
        {"model.layers.3.block_sparse_moe.experts.17.w3.weight",
         "model.layers.3.mlp.experts.17.up_proj.weight",
         "model.layers.3.mlp.experts.up_proj.weight"},
        {"model.layers.0.mlp.experts.2.down_proj.weight",
         "model.layers.0.mlp.experts.2.down_proj.weight",
         "model.layers.0.mlp.experts.down_proj.weight"},
        {"model.layers.1.block_sparse_moe.gate.weight", "model.layers.1.mlp.gate.weight", NULL},
        {"model.layers.1.mlp.experts.down_proj", "model.layers.1.mlp.experts.down_proj.weight",
         NULL},
        {"model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.gate_up_proj",
         NULL},
        {"model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight", NULL},
    };
    mpk_context cx = {0};
    arena a = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        str name = str_from(cases[i][0]), stack = {0};
        int64_t expert;
        check_ok(&cx, load_rename_expert(&cx, &a, &name));
        assert_true(str_is(name, cases[i][1]));
        check_ok(&cx, load_find_stack(&cx, &a, name, &stack, &expert));
        assert_int_equal(expert >= 0, cases[i][2] != NULL);
        assert_true(!cases[i][2] || str_is(stack, cases[i][2]));
        assert_true(!cases[i][2] || expert == (i ? 2 : 17));
    }
    arena_free(&a);
}

/* The factor of an update, by what adapter_config.json says. */
static void test_factors(void **state)
{
    static const struct {
        const char *more;
        double factor;
    } cases[] = {
        {"", 1.5},
        {", \"use_rslora\": true", 3},
        {", \"alpha_pattern\": {\"o_proj\": 1, \"q_pro.\": 2, \"q_proj\": 3}", 0.5},
        {", \"alpha_pattern\": {\"proj\": 1, \"attn.q_proj\": 8, \"a.attn.q_proj\": 3}", 2},
        {", \"alpha_pattern\": {\"a\": 1}, \"rank_pattern\": {\"k\": 3}, \"bias\": \"none\"", 1.5},
    };
    static const float zeros[64];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mpk_context cx = {0};
        adapter a = {0};
        load_tensor part = {.dtype = IR_F32, .rank = 2, .data = zeros};
        char config[256];
        snprintf(config, sizeof config, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 6%s}",
                 cases[i].more);
        part.name = STR("base_model.model.a.attn.q_proj.lora_A.weight");
        part.dims[0] = 4, part.dims[1] = 5, part.n_bytes = 80;
        check_ok(&cx, load_add_tensor(&cx, &a.files, &part));
        part.name = STR("base_model.model.a.attn.q_proj.lora_B.weight");
        part.dims[0] = 3, part.dims[1] = 4, part.n_bytes = 48;
        check_ok(&cx, load_add_tensor(&cx, &a.files, &part));
        check_ok(&cx, adapter_read_peft(&cx, str_from(config), &a));
        assert_int_equal(a.changes.n, 1);
        const adapter_change *c = a.changes.at;
        assert_true(str_is(c->name, "a.attn.q_proj.weight") && c->entry == -1 && !c->whole.rank);
        assert_true(adapter_rows(c) == 3 && adapter_columns(c) == 5 && adapter_rank(c) == 4);
        assert_true(c->factor == cases[i].factor);
        load_close(&a.files);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),     cmocka_unit_test(test_stacks_of_blocks),
        cmocka_unit_test(test_overflow), cmocka_unit_test(test_whole_and_lengths),
        cmocka_unit_test(test_names),    cmocka_unit_test(test_factors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
