/* gguf_write_test.c - what the writer puts is what the reader finds. */
#include <stdlib.h>

#include "base/rng.h"
#include "check.h"
#include "load/gguf_write.h"

/* A random text of up to 20 bytes, in arena a. */
static str make_text(arena *a, uint64_t seed, uint64_t i)
{
    char bytes[20];
    size_t n = rng_u64(seed, i) % sizeof bytes;
    for (size_t k = 0; k < n; k++)
        bytes[k] = (char)(rng_u64(seed + i, k) & 0xff);
    return (str){arena_copy(a, bytes, n), n};
}

enum { ITEMS = 40 };

/* Values that were put, to compare with. */
typedef struct made {
    str texts[ITEMS];
    float floats[ITEMS];
    int32_t ints[ITEMS];
} made;

/* Random values of every kind. */
static void put_values(gguf_writer *w, arena *a, uint64_t seed, made *m)
{
    for (uint64_t i = 0; i < ITEMS; i++) {
        m->texts[i] = make_text(a, seed, i);
        m->floats[i] = rng_normal(seed, i);
        m->ints[i] = (int32_t)rng_u64(seed, i);
    }
    gguf_put_u32(w, "a.u32", 4000000000u);
    gguf_put_f32(w, "a.f32", m->floats[0]);
    gguf_put_bool(w, "a.bool", true);
    gguf_put_str(w, "a.str", m->texts[1]);
    gguf_put_strings(w, "a.strings", m->texts, ITEMS);
    gguf_put_floats(w, "a.floats", m->floats, ITEMS);
    gguf_put_ints(w, "a.ints", m->ints, ITEMS);
    gguf_put_strings(w, "a.none", NULL, 0);
}

/* Each of them, by its key. */
static void check_values(mpk_context *cx, arena *a, const gguf *f, const made *m)
{
    uint32_t u32 = 0;
    double number = 0;
    bool yes = false;
    str words = {0};
    const str *texts;
    check_ok(cx, gguf_get_u32(cx, f, "a.u32", &u32));
    check_ok(cx, gguf_get_double(cx, f, "a.f32", &number));
    check_ok(cx, gguf_get_bool(cx, f, "a.bool", &yes));
    check_ok(cx, gguf_get_str(cx, f, "a.str", &words));
    assert_true(u32 == 4000000000u && (float)number == m->floats[0] && yes &&
                str_equal(words, m->texts[1]));
    check_ok(cx, gguf_list_strings(cx, a, gguf_find(f, "a.strings"), &texts));
    for (uint64_t i = 0; i < ITEMS; i++) {
        assert_true(str_equal(texts[i], m->texts[i]));
        assert_true((float)gguf_item_double(gguf_find(f, "a.floats"), i) == m->floats[i]);
        assert_int_equal(gguf_item_int(gguf_find(f, "a.ints"), i), m->ints[i]);
    }
    assert_int_equal(gguf_find(f, "a.none")->n, 0);
}

/* Values are written, read, copied to a second file as they are, and read again. */
static void test_values_come_back(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    made m;
    gguf_writer first = {0}, second = {0};
    text head, copy;
    gguf f, g;
    put_values(&first, &a, check_seed(), &m);
    check_ok(&cx, gguf_writer_head(&cx, &first, &head));
    assert_int_equal(head.n % GGUF_ALIGNMENT, 0);
    check_ok(&cx, gguf_read_values(&cx, &a, (const unsigned char *)head.at, head.n, &f));
    check_values(&cx, &a, &f, &m);
    for (size_t i = 0; i < f.values.n; i++)
        gguf_put_value(&second, &f.values.at[i]);
    check_ok(&cx, gguf_writer_head(&cx, &second, &copy));
    assert_int_equal(copy.n, head.n);
    assert_memory_equal(copy.at, head.at, head.n);
    check_ok(&cx, gguf_read_values(&cx, &a, (const unsigned char *)copy.at, copy.n, &g));
    assert_int_equal(g.values.n, f.values.n);
    text_free(&head);
    text_free(&copy);
    gguf_writer_free(&first);
    gguf_writer_free(&second);
    arena_free(&a);
}

/* A file without hyper-parameters is refused as a model, but only after its tensors were found in
 * order. */
static void test_tensors_come_back(void **state)
{
    (void)state;
    mpk_context cx = {0};
    gguf_writer w = {0};
    load_model m = {0};
    text file;
    const int64_t matrix[] = {3, 64}, vector[] = {5};
    gguf_put_tensor(&w, STR("blk.7.ffn_down.weight"), IR_Q4_1, 2, matrix, 3 * 2 * 20);
    gguf_put_tensor(&w, STR("output_norm.weight"), IR_F32, 1, vector, 20);
    check_ok(&cx, gguf_writer_head(&cx, &w, &file));
    size_t head = file.n;
    assert_non_null(text_room(&file, (size_t)w.data_bytes));
    assert_int_equal(load_gguf_bytes(&cx, (const unsigned char *)file.at, file.n, &m), MPK_EFORMAT);
    const load_tensor *down = load_find(&m, "model.layers.7.mlp.down_proj.weight");
    const load_tensor *norm = load_find(&m, "model.norm.weight");
    assert_true(down && norm);
    assert_true(down->dtype == IR_Q4_1 && down->dims[0] == 3 && down->dims[1] == 64);
    assert_ptr_equal(down->data, file.at + head);
    assert_ptr_equal(norm->data, file.at + head + 120 + gguf_padding(120));
    load_close(&m);
    text_free(&file);
    gguf_writer_free(&w);
}

/* Every name that is translated one way is found by the way back. */
static void test_names(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"model.layers.12.self_attn.q_proj.bias", "blk.12.attn_q.bias"},
        {"model.layers.0.mlp.experts.up_proj.weight", "blk.0.ffn_up_exps.weight"},
        {"model.embed_tokens.weight", "token_embd.weight"},
        {"lm_head.weight", "output.weight"}};
    mpk_context cx = {0};
    arena a = {0};
    str name;
    bool known;
    for (size_t i = 0; i < 4; i++) {
        check_ok(&cx, gguf_name_tensor(&cx, &a, NULL, str_from(pairs[i][0]), &name, &known));
        assert_true(known && str_is(name, pairs[i][1]));
    }
    check_ok(&cx, gguf_name_tensor(&cx, &a, NULL, STR("rope_freqs.weight"), &name, &known));
    assert_true(!known && str_is(name, "rope_freqs.weight"));
    const str norm = STR("model.layers.3.post_attention_layernorm.weight");
    check_ok(&cx, gguf_name_tensor(&cx, &a, NULL, norm, &name, &known));
    assert_true(known && str_is(name, "blk.3.ffn_norm.weight"));
    check_ok(&cx, gguf_name_tensor(&cx, &a, model_gguf_names(STR("gemma2")), norm, &name, &known));
    assert_true(known && str_is(name, "blk.3.post_attention_norm.weight"));
    arena_free(&a);
}

/* Rows that are put into the file's order and back are where they were. */
static void test_row_orders_are_inverse(void **state)
{
    (void)state;
    for (int64_t rotated = 2; rotated <= 16; rotated += 2) {
        bool seen[48] = {false};
        /* of latent attention: rows before the rotated ones */
        const int64_t plain = rotated <= 10 ? 6 : 0;
        const gguf_rows rows = {16, rotated, plain};
        for (int64_t row = 0; row < 48; row++) {
            int64_t from = gguf_row_from(&rows, row);
            assert_true(from >= 0 && from < 48 && from / 16 == row / 16 && !seen[from]);
            seen[from] = true;
        }
        assert_int_equal(gguf_row_from(&rows, 17 + plain), 16 + plain + rotated / 2);
        assert_true(!plain || gguf_row_from(&rows, 17) == 17);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_come_back), cmocka_unit_test(test_tensors_come_back),
        cmocka_unit_test(test_names), cmocka_unit_test(test_row_orders_are_inverse)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
