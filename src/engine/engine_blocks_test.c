/* engine_blocks_test.c - which matrices of a file stay in blocks on a GPU, and what they take. */
#include "check.h"
#include "engine/engine.h"

extern const target_def target_cuda;

#define ATTENTION "model.layers.0.self_attn.q_proj.weight"
#define EXPERTS "model.layers.0.mlp.experts.up_proj.weight"

enum { ROWS = 8, COLUMNS = 256, N_EXPERTS = 4 };

/* Bytes that these tensors take on a GPU whose weights stay in blocks. */
static uint64_t bytes_of(load_tensor *tensors, size_t n)
{
    mpk_context cx = {0};
    arena a = {0};
    engine_dtypes d;
    engine_build b = {.device.target = &target_cuda, .options.keep_blocks = 1};
    b.model.tensors.at = tensors;
    b.model.tensors.n = n;
    check_ok(&cx, engine_find_dtypes(&cx, &a, &b, false, &d));
    const uint64_t bytes = engine_weight_bytes(&d);
    arena_free(&a);
    return bytes;
}

static load_tensor matrix_of(ir_dtype dtype)
{
    return (load_tensor){
        .name = STR(ATTENTION), .dtype = dtype, .rank = 2, .dims = {ROWS, COLUMNS}};
}

/* 5 bits an element for integers of 4 bits, 9 for longer ones. */
static void test_bits_of_formats(void **state)
{
    (void)state;
    static const struct {
        ir_dtype dtype;
        uint64_t bits;
    } formats[] = {{IR_Q4_0, 5}, {IR_Q4_1, 5}, {IR_Q4_K, 5},  {IR_Q5_0, 9}, {IR_Q8_0, 9},
                   {IR_Q5_K, 9}, {IR_Q6_K, 9}, {IR_BF16, 16}, {IR_F32, 32}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        load_tensor t = matrix_of(formats[i].dtype);
        assert_int_equal(bytes_of(&t, 1), ROWS * COLUMNS / 8 * formats[i].bits);
    }
}

/* Matrices of as many columns stay in blocks if those of the layer are of one kind.  Experts are
 * never multiplied together with matrices, so their kind does not count. */
static void test_kinds_of_a_layer(void **state)
{
    (void)state;
    const uint64_t entries = ROWS * COLUMNS;
    load_tensor two[] = {matrix_of(IR_Q4_0), matrix_of(IR_Q8_0)};
    assert_int_equal(bytes_of(two, 2), entries / 8 * (5 + 9));
    two[1].dtype = IR_Q4_K;
    assert_int_equal(bytes_of(two, 2), entries * (2 + 2));
    two[1] = (load_tensor){
        .name = STR(EXPERTS), .dtype = IR_Q4_K, .rank = 3, .dims = {N_EXPERTS, COLUMNS, COLUMNS}};
    assert_int_equal(bytes_of(two, 2),
                     entries / 8 * 5 + (uint64_t)N_EXPERTS * COLUMNS * COLUMNS * 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits_of_formats),
                                       cmocka_unit_test(test_kinds_of_a_layer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
