/* engine_blocks_test.c - which matrices of a file stay in blocks on a GPU, and what they take. */
#include "check.h"
#include "engine/engine.h"

extern const target_def target_cuda;

#define ATTENTION "model.layers.0.self_attn.q_proj.weight"
#define ROUTER "model.layers.0.mlp.gate.weight"
#define EXPERTS(part) "model.layers.0.mlp.experts." part "_proj.weight"

enum { ROWS = 8, COLUMNS = 256, N_EXPERTS = 4 };

/* Bytes that these tensors take on a GPU whose weights stay in blocks. */
static uint64_t bytes_of(load_tensor *tensors, size_t n)
{
    mpk_context cx = {0};
    arena a = {0};
    engine_dtypes d;
    engine_build b = {.device.target = &target_cuda, .options.keep_blocks = MPK_BLOCKS_KEEP};
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

/* Matrices of as many columns stay in blocks if those of the layer are of one kind.  A router is
 * never multiplied together with them, so its kind does not count. */
static void test_kinds_of_a_layer(void **state)
{
    (void)state;
    const uint64_t entries = ROWS * COLUMNS;
    load_tensor two[] = {matrix_of(IR_Q4_0), matrix_of(IR_Q8_0)};
    assert_int_equal(bytes_of(two, 2), entries / 8 * (5 + 9));
    two[1].dtype = IR_Q4_K;
    assert_int_equal(bytes_of(two, 2), entries * (2 + 2));
    two[1].dtype = IR_F32;
    two[1].name = STR(ROUTER);
    assert_int_equal(bytes_of(two, 2), entries / 8 * 5 + entries * 4);
}

/* A router in f32 becomes bf16 if nothing is rounded, beside weights that are not f32. */
static void test_routers(void **state)
{
    (void)state;
    static float numbers[ROWS * COLUMNS];
    const uint64_t entries = ROWS * COLUMNS;
    load_tensor two[] = {matrix_of(IR_Q4_0), matrix_of(IR_F32)};
    two[1].name = STR(ROUTER), two[1].data = numbers, two[1].n_bytes = sizeof numbers;
    for (size_t i = 0; i < entries; i++)
        numbers[i] = i < 256 ? (float)i * 0.5f - 64 : -0x1.8p-100f;
    assert_int_equal(bytes_of(two, 2), entries / 8 * 5 + entries * 2);
    two[0].dtype = IR_F32;
    assert_int_equal(bytes_of(two, 2), entries * (4 + 4));
    two[0].dtype = IR_BF16;
    numbers[entries - 1] = 0x1p0f + 0x1p-20f;
    assert_int_equal(bytes_of(two, 2), entries * (2 + 4));
    numbers[entries - 1] = 1, numbers[0] = 1.0f / 3;
    assert_int_equal(bytes_of(two, 2), entries * (2 + 4));
}

static load_tensor experts_of(str name, ir_dtype dtype)
{
    return (load_tensor){
        .name = name, .dtype = dtype, .rank = 3, .dims = {N_EXPERTS, COLUMNS, COLUMNS}};
}

/* Gate and up of experts are one product, the last one is another; matrices and other tensors of
 * three axes have nothing to do with them. */
static void test_experts(void **state)
{
    (void)state;
    const uint64_t stack = (uint64_t)N_EXPERTS * COLUMNS * COLUMNS;
    load_tensor four[] = {experts_of(STR(EXPERTS("gate")), IR_Q4_K),
                          experts_of(STR(EXPERTS("up")), IR_Q6_K),
                          experts_of(STR(EXPERTS("down")), IR_Q8_0), matrix_of(IR_Q4_0)};
    assert_int_equal(bytes_of(four, 4), stack / 8 * (5 + 9 + 9) + ROWS * COLUMNS / 8 * 5);
    four[0].dtype = four[1].dtype = IR_MXFP4; /* which matrices do not keep */
    four[3].dtype = IR_MXFP4;
    assert_int_equal(bytes_of(four, 4),
                     stack / 32 * (17 + 17) + stack / 8 * 9 + ROWS * COLUMNS * 2);
    four[0].dtype = IR_Q4_K, four[3].dtype = IR_Q4_0;
    four[1].dtype = IR_Q8_0; /* of another kind than gate */
    assert_int_equal(bytes_of(four, 4), stack * (2 + 2) + stack / 8 * 9 + ROWS * COLUMNS / 8 * 5);
    four[2].dims[1] = 4; /* no whole group of rows */
    four[3] = experts_of(STR("model.layers.0.self_attn.k_b_proj.weight"), IR_Q8_0);
    assert_int_equal(bytes_of(four, 4), stack * (2 + 2 + 2) + stack / COLUMNS * 4 * 2);
    four[0].dims[0] = 257; /* more than a body takes */
    assert_int_equal(bytes_of(four, 1), (uint64_t)257 * COLUMNS * COLUMNS * 2);
}

/* A made-up mixture: 128 experts, 8 layers, of which the mix gives four down projections 6 bits. */
static void test_made_up(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    engine_dtypes d;
    engine_build b = {.device.target = &target_cuda,
                      .options = {.keep_blocks = MPK_BLOCKS_KEEP, .random_mix = "q4_k_m"}};
    b.model.config = (model_config){.vocab_size = 1000,
                                    .hidden_size = 2048,
                                    .n_layers = 8,
                                    .n_heads = 32,
                                    .n_kv_heads = 4,
                                    .head_size = 128,
                                    .n_experts = 128,
                                    .expert_every = 1,
                                    .experts_per_token = 8,
                                    .expert_ffn_size = 768,
                                    .weight_dtype = IR_BF16};
    check_ok(&cx, engine_find_dtypes(&cx, &a, &b, false, &d));
    const uint64_t stack = (uint64_t)128 * 768 * 2048, kept = 8 * 2048 / 8 * 5 * 2 * 128 * 36;
    assert_int_equal(engine_weight_bytes(&d), 1000 * 2048 * 2 * 2 + kept + 8 * 2 * stack / 8 * 5 +
                                                  stack / 8 * (4 * 5 + 4 * 9));
    arena_free(&a);
}

/* Asked for neither way, blocks stay where they are faster than bf16. */
static void test_what_is_faster(void **state)
{
    (void)state;
    static const struct {
        const char *arch;
        mpk_engine_options options;
        bool keeps;
    } rows[] = {
        {"sm_90a", {.max_batch = 16}, true},
        {"sm_90a", {0}, true}, /* the usual max_batch */
        {"sm_90a", {.max_batch = 17}, false},
        {"sm_90a", {.max_batch = 17, .keep_blocks = MPK_BLOCKS_KEEP}, true},
        {"sm_90a", {.max_batch = 1, .keep_blocks = MPK_BLOCKS_UNPACK}, false},
        {"sm_90a", {.max_batch = 1, .draft_tokens = 15, .draft_model = "small"}, true},
        {"sm_90a",
         {.max_batch = 2, .draft_tokens = 8, .speculation = MPK_SPECULATION_NGRAM},
         false},
        {"sm_90a", {.max_batch = 16, .draft_tokens = 8}, true}, /* nothing drafts */
        {"sm_90a", {.max_batch = 1, .gpus = 2}, false},
        {"sm_80", {.max_batch = 1}, false},
        {"sm_100a", {.max_batch = 1}, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpk_context cx = {0};
        arena a = {0};
        engine_dtypes d;
        engine_build b = {.device = {.target = &target_cuda}, .options = rows[i].options};
        snprintf(b.device.arch, sizeof b.device.arch, "%s", rows[i].arch);
        check_ok(&cx, engine_find_dtypes(&cx, &a, &b, false, &d));
        assert_int_equal(d.keeps, rows[i].keeps);
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_faster),   cmocka_unit_test(test_bits_of_formats),
        cmocka_unit_test(test_kinds_of_a_layer), cmocka_unit_test(test_routers),
        cmocka_unit_test(test_experts),          cmocka_unit_test(test_made_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
