/* heads_test.c - rows of q, k and v in a program's order: a program that rotates all pairs, the
 * plain ones by 0, gives the checkpoint's scores; a KV head that stands more often serves the same
 * query heads. */
#include "check.h"
#include "base/rng.h"
#include "load/load.h"
#include "op/rope.h"

enum { MOST = 24, HEADS = 3, COLUMNS = 5 };

typedef struct model {
    load_model m;
    float weight[HEADS * MOST][COLUMNS], bias[HEADS * MOST];
} model;

static void put(model *w, const char *name, uint32_t rank, const void *data)
{
    mpk_context cx = {0};
    load_tensor t = {.name = str_from(name),
                     .dtype = IR_F32,
                     .rank = rank,
                     .dims = {HEADS * w->m.config.head_size, rank == 2 ? COLUMNS : 0},
                     .data = data};
    check_ok(&cx, load_tensor_bytes(&cx, &t, &t.n_bytes));
    check_ok(&cx, load_add_tensor(&cx, &w->m, &t));
}

static const char q_weight[] = "model.layers.0.self_attn.q_proj.weight",
                  q_bias[] = "model.layers.0.self_attn.q_proj.bias",
                  k_norm[] = "model.layers.0.self_attn.k_norm.weight",
                  v_weight[] = "model.layers.0.self_attn.v_proj.weight";

/* Three tensors whose entries say which row they are of. */
static model *make_model(uint32_t size, uint32_t rotated, uint32_t latent)
{
    model *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->m.has_config = true;
    w->m.config.head_size = size;
    w->m.config.rope_size = rotated;
    w->m.config.latent_size = latent;
    for (uint32_t i = 0; i < HEADS * size; i++) {
        w->bias[i] = (float)i;
        for (uint32_t k = 0; k < COLUMNS; k++)
            w->weight[i][k] = (float)(i * 8 + k);
    }
    put(w, q_weight, 2, w->weight);
    put(w, q_bias, 1, w->bias);
    put(w, k_norm, 1, w->bias);
    put(w, v_weight, 2, w->weight);
    return w;
}

static void free_model(model *w)
{
    arena_free(&w->m.arena);
    free(w);
}

/* Entry i of the vector that a tensor of row numbers has become. */
static int64_t row_of(const load_tensor *t, int64_t i)
{
    if (t->rank == 1)
        return (int64_t)((const float *)t->data)[i];
    const float *row = t->parts ? t->parts[i] : (const float *)t->data + i * COLUMNS;
    for (int k = 0; k < COLUMNS; k++)
        assert_true(row[k] == row[0] + (float)k);
    return (int64_t)row[0] / 8;
}

static int64_t row_at(const load_model *m, const char *name, int64_t i)
{
    const load_tensor *t = load_find(m, name);
    assert_non_null(t);
    return row_of(t, i);
}

/* All three have the same order, of whole heads, and v keeps its own. */
static void check_order(const model *w, int64_t size)
{
    bool seen[HEADS * MOST] = {false};
    for (int64_t i = 0; i < HEADS * size; i++) {
        const int64_t row = row_at(&w->m, q_weight, i);
        assert_true(row / size == i / size && !seen[row]);
        seen[row] = true;
        assert_int_equal(row_at(&w->m, q_bias, i), row);
        assert_int_equal(row_at(&w->m, k_norm, i), row);
        assert_int_equal(row_at(&w->m, v_weight, i), i);
    }
}

/* Heads of random numbers, rotated as the checkpoint means it and as the program does: the same
 * entries. */
static void check_rotation(const model *w, int64_t size, int64_t rotated, uint64_t seed)
{
    float x[MOST], y[MOST], cosine[MOST / 2], sine[MOST / 2];
    const ir_attribute a[ROPE_ATTRIBUTES] = {
        [ROPE_SIZE].i = rotated,
        [ROPE_PLAIN].i = model_plain_pairs(&w->m.config),
        [ROPE_THETA].f = 100,
        [ROPE_SCALING].s = STR("longrope"),
        [ROPE_DIVISORS].s = STR("1 1 1 1 1 1 1 1 1 1 1 1"),
        [ROPE_ATTENTION_FACTOR].f = 1.5,
    };
    assert_int_equal(2 * rope_pairs(a), size);
    for (int64_t i = 0; i < rope_pairs(a); i++)
        rope_angle(rope_frequency(a, i), rope_amplitude(a), 7, &cosine[i], &sine[i]);
    for (int64_t i = 0; i < size; i++)
        x[i] = rng_normal(seed, (uint64_t)i);
    for (int64_t i = 0; i < size; i++)
        y[i] = x[row_at(&w->m, q_weight, i)];
    rope_rotate(x, cosine, sine, rotated / 2);
    rope_rotate(y, cosine, sine, rope_pairs(a));
    for (int64_t i = 0; i < size; i++)
        assert_true(y[i] == x[row_at(&w->m, q_weight, i)]);
}

static void test_orders(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    for (uint32_t size = 2; size <= MOST; size += 2)
        for (uint32_t rotated = 2; rotated <= size; rotated += 2) {
            mpk_context cx = {0};
            model *w = make_model(size, rotated, 0);
            check_ok(&cx, load_order_heads(&cx, &w->m, 0));
            check_order(w, size);
            check_rotation(w, size, rotated, seed);
            assert_true(rotated < size || !load_find(&w->m, q_weight)->parts);
            free_model(w);
        }
}

/* The order of the head in heads.c: of 8 entries the first 4 are rotated. */
static const int half_rotated[] = {0, 1, 4, 5, 2, 3, 6, 7};

/* Rows that lie anywhere, as after gguf_order_rope_rows, are moved by their addresses. */
static void test_rows_in_parts(void **state)
{
    (void)state;
    mpk_context cx = {0};
    model *w = make_model(8, 4, 0);
    const void *parts[HEADS * 8];
    load_tensor *t = &w->m.tensors.at[0];
    for (int i = 0; i < HEADS * 8; i++)
        parts[i] = w->weight[i];
    t->parts = parts;
    t->data = NULL;
    check_ok(&cx, load_order_heads(&cx, &w->m, 0));
    check_order(w, 8);
    for (int i = 0; i < 8; i++)
        assert_int_equal(row_at(&w->m, q_weight, i), half_rotated[i]);
    free_model(w);
}

static void test_what_stays(void **state)
{
    (void)state;
    mpk_context cx = {0};
    model *w = make_model(8, 4, 16); /* latent attention */
    check_ok(&cx, load_order_heads(&cx, &w->m, 0));
    for (int i = 0; i < HEADS * 8; i++)
        assert_int_equal(row_at(&w->m, q_weight, i), i);
    free_model(w);
    w = make_model(8, 4, 0);
    w->m.tensors.at[1].dtype = IR_Q8_0;
    check_fails(&cx, MPK_EUNSUPPORTED, "self_attn.q_proj.bias is a bias of q8_0",
                load_order_heads(&cx, &w->m, 0));
    free_model(w);
}

/* Twelve query heads for one of three KV heads: at most eight, so each stands twice; v likewise.
 * With a part of each head rotated, the rows of k also move within their head, those of v do
 * not. */
static void check_large_groups(uint32_t rotated)
{
    static const struct {
        uint32_t n_heads, most, norm, times;
    } cases[] =
        {
            {3, 8, 8, 1},  {24, 8, 8, 1}, {36, 8, 8, 2},  {48, 8, 8, 2},
            {27, 8, 8, 3}, {96, 8, 8, 4}, {192, 8, 8, 1}, {39, 8, 8, 1},
            {96, 0, 8, 1}, {12, 2, 8, 2}, {36, 8, 24, 1}, /* a norm over all heads of k */
        };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mpk_context cx = {0};
        model *w = make_model(8, rotated, 0);
        const int64_t times = cases[i].times, n = HEADS * 8 * times;
        w->m.config.n_heads = cases[i].n_heads;
        w->m.config.n_kv_heads = HEADS;
        w->m.tensors.at[0].name = STR("model.layers.0.self_attn.k_proj.weight");
        w->m.tensors.at[1].name = STR("model.layers.0.self_attn.k_proj.bias");
        w->m.tensors.at[2].dims[0] = cases[i].norm;
        check_ok(&cx, load_order_heads(&cx, &w->m, cases[i].most));
        assert_int_equal(model_kv_heads(&w->m.config), HEADS * times);
        for (uint32_t t = 0; t < 4; t += t == 1 ? 2 : 1) { /* k, its bias, v */
            const load_tensor *tensor = &w->m.tensors.at[t];
            assert_int_equal(tensor->dims[0], n);
            assert_int_equal(tensor->n_bytes, 4 * n * (t == 1 ? 1 : COLUMNS));
            for (int64_t row = 0; row < n; row++) { /* the head of the query heads that it serves */
                const int64_t entry = rotated < 8 && t < 2 ? half_rotated[row % 8] : row % 8;
                assert_int_equal(row_of(tensor, row), row / 8 / times * 8 + entry);
            }
        }
        assert_int_equal(w->m.tensors.at[2].dims[0], cases[i].norm);
        free_model(w);
    }
}

static void test_large_groups(void **state)
{
    (void)state;
    check_large_groups(8);
    check_large_groups(4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_rows_in_parts),
        cmocka_unit_test(test_what_stays),
        cmocka_unit_test(test_large_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
