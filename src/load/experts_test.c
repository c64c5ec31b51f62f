/* experts_test.c - the weights of experts become stacks, whatever the checkpoint calls them; each
 * fault once. */
#include "check.h"
#include "load/load.h"

enum { EXPERTS = 3, ROWS = 4, COLUMNS = 2 };

/* What all tensors here point into; put gives it out. */
static float bytes[4096];

/* A model of two layers with these experts and nothing else. */
static load_model make_model(void)
{
    return (load_model){.config = {.n_experts = EXPERTS, .n_layers = 2}};
}

/* The next free floats as a tensor f32[dims]. */
static void put(load_model *m, size_t *used, const char *name, uint32_t rank, int64_t a, int64_t b,
                int64_t c)
{
    mpk_context cx = {0};
    char *copy = arena_copy(&m->arena, name, strlen(name));
    load_tensor t = {.name = str_from(copy),
                     .dtype = IR_F32,
                     .rank = rank,
                     .dims = {a, b, c},
                     .data = bytes + *used};
    check_ok(&cx, load_tensor_bytes(&cx, &t, &t.n_bytes));
    *used += t.n_bytes / 4;
    assert_true(*used <= sizeof bytes / 4);
    check_ok(&cx, load_add_tensor(&cx, m, &t));
}

/* Every expert's three weights of layer 0, in an order that no stack has. */
static void put_experts(load_model *m, size_t *used, const char *pattern, const char *const *parts,
                        int left_out)
{
    char name[128];
    for (int part = 0; part < 3; part++)
        for (int e = EXPERTS; e-- > 0;) {
            const int64_t rows = part == 2 ? COLUMNS : ROWS;
            snprintf(name, sizeof name, pattern, e, parts[part]);
            if (3 * e + part != left_out)
                put(m, used, name, 2, rows, ROWS + COLUMNS - rows, 0);
        }
}

static const char *const qwen[] = {"gate_proj", "up_proj", "down_proj"}, *const mixtral[] = {
                                                                             "w1", "w3", "w2"};
static const char qwen_pattern[] = "model.layers.0.mlp.experts.%d.%s.weight",
                  mixtral_pattern[] = "model.layers.0.block_sparse_moe.experts.%d.%s.weight";

/* The stack of a part, under the name that models ask for and in its shape. */
static const load_tensor *check_stack(const load_model *m, int part)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.0.mlp.experts.%s.weight", qwen[part]);
    const load_tensor *t = load_find(m, name);
    assert_non_null(t);
    assert_true(t->rank == 3 && t->dims[0] == EXPERTS &&
                t->n_bytes == 4 * EXPERTS * ROWS * COLUMNS);
    assert_int_equal(t->dims[1], part == 2 ? COLUMNS : ROWS);
    assert_int_equal(t->dims[2], part == 2 ? ROWS : COLUMNS);
    return t;
}

/* Both spellings, with the router's name of each. */
static void check_one_by_one(const char *pattern, const char *const *parts, const char *router)
{
    mpk_context cx = {0};
    load_model m = make_model();
    size_t used = 0;
    put(&m, &used, router, 2, EXPERTS, COLUMNS, 0);
    put_experts(&m, &used, pattern, parts, -1);
    check_ok(&cx, load_stack_experts(&cx, &m));
    assert_int_equal(m.tensors.n, 4);
    assert_non_null(load_find(&m, "model.layers.0.mlp.gate.weight"));
    for (int part = 0; part < 3; part++) {
        const load_tensor *t = check_stack(&m, part);
        assert_null(t->data);
        for (int e = 0; e < EXPERTS; e++)
            assert_ptr_equal(t->parts[e], bytes + EXPERTS * COLUMNS +
                                              (part * EXPERTS + EXPERTS - 1 - e) * ROWS * COLUMNS);
    }
    load_close(&m);
}

/* Experts that lie one by one become one stack, in the order of their numbers, under both
 * spellings of their names. */
static void test_one_by_one(void **state)
{
    (void)state;
    check_one_by_one(qwen_pattern, qwen, "model.layers.0.mlp.gate.weight");
    check_one_by_one(mixtral_pattern, mixtral, "model.layers.0.block_sparse_moe.gate.weight");
}

/* Joined gate and up come apart without a copy. */
static void check_together(const char *gate_up, const char *down)
{
    mpk_context cx = {0};
    load_model m = make_model();
    size_t used = 0;
    put(&m, &used, gate_up, 3, EXPERTS, 2 * ROWS, COLUMNS);
    put(&m, &used, down, 3, EXPERTS, COLUMNS, ROWS);
    put(&m, &used, "model.layers.0.mlp.gate_proj.weight", 2, 5, 5, 0); /* of no expert */
    check_ok(&cx, load_stack_experts(&cx, &m));
    assert_int_equal(m.tensors.n, 4);
    for (int part = 0; part < 2; part++)
        for (int e = 0; e < EXPERTS; e++)
            assert_ptr_equal(check_stack(&m, part)->parts[e],
                             bytes + (2 * e + part) * ROWS * COLUMNS);
    assert_ptr_equal(check_stack(&m, 2)->data, bytes + 2 * EXPERTS * ROWS * COLUMNS);
    load_close(&m);
}

/* Gate and up in one tensor are taken apart into two stacks, with and without ".weight". */
static void test_together(void **state)
{
    (void)state;
    check_together("model.layers.0.mlp.experts.gate_up_proj",
                   "model.layers.0.mlp.experts.down_proj");
    check_together("model.layers.0.mlp.experts.gate_up_proj.weight",
                   "model.layers.0.mlp.experts.down_proj.weight");
}

/* Each one missing is named as the file names the others. */
static void test_missing(void **state)
{
    (void)state;
    for (int i = 0; i < 3 * EXPERTS; i++) {
        mpk_context cx = {0};
        char name[128], needle[256];
        load_model m = make_model();
        size_t used = 0;
        const char *pattern = i % 2 ? qwen_pattern : mixtral_pattern;
        const char *const *parts = i % 2 ? qwen : mixtral;
        put_experts(&m, &used, pattern, parts, i);
        snprintf(name, sizeof name, pattern, i / 3, parts[i % 3]);
        snprintf(needle, sizeof needle, "the weight %s is missing: the model has 3 experts", name);
        check_fails(&cx, MPK_EFORMAT, needle, load_stack_experts(&cx, &m));
        load_close(&m);
    }
}

/* A tensor more, of this name and shape, and stacking fails so. */
static void expect_fault(mpk_status status, const char *needle, const char *name, uint32_t rank,
                         int64_t a, int64_t b, int64_t c)
{
    mpk_context cx = {0};
    load_model m = make_model();
    size_t used = 0;
    put_experts(&m, &used, qwen_pattern, qwen, 3);
    put(&m, &used, name, rank, a, b, c);
    check_fails(&cx, status, needle, load_stack_experts(&cx, &m));
    load_close(&m);
}

/* One wrong tensor among right ones: another shape or dtype, one expert too many, one that is
 * there twice under two spellings. */
static void test_faults(void **state)
{
    (void)state;
    static const char missing[] = "model.layers.0.mlp.experts.1.gate_proj.weight";
    expect_fault(MPK_ESHAPE, "does not have the shape and dtype of the other experts", missing, 2,
                 ROWS + 1, COLUMNS, 0);
    expect_fault(MPK_ESHAPE, "does not have the shape and dtype of the other experts", missing, 3,
                 ROWS, COLUMNS, 1);
    expect_fault(MPK_EFORMAT, "gate_proj.weight: the model has 3 experts",
                 "model.layers.0.mlp.experts.3.gate_proj.weight", 2, ROWS, COLUMNS, 0);
    expect_fault(MPK_EFORMAT, "is there twice",
                 "model.layers.0.block_sparse_moe.experts.2.w1.weight", 2, ROWS, COLUMNS, 0);
    expect_fault(MPK_EFORMAT, "is there twice", "model.layers.0.mlp.experts.down_proj", 3, EXPERTS,
                 COLUMNS, ROWS);
    expect_fault(MPK_EFORMAT, "is there twice", "model.layers.0.mlp.experts.gate_up_proj", 3,
                 EXPERTS, 2 * ROWS, COLUMNS);
    expect_fault(MPK_ESHAPE, "rows of gate and up", "model.layers.1.mlp.experts.gate_up_proj", 3,
                 EXPERTS + 1, ROWS, COLUMNS);
    expect_fault(MPK_ESHAPE, "rows of gate and up", "model.layers.1.mlp.experts.gate_up_proj", 3,
                 EXPERTS, 3, COLUMNS);
    expect_fault(MPK_ESHAPE, "has 1 dimensions", "model.layers.1.mlp.experts.0.up_proj.weight", 1,
                 ROWS, 0, 0);
}

/* Other dtypes in one layer are refused; what is of no layer, or no expert's, stays; so does a
 * dense model. */
static void test_kept(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m = make_model();
    size_t used = 0;
    static const char *const names[] = {
        "model.layers.2.mlp.experts.0.up_proj.weight", "model.layers.0.mlp.experts.0.up_proj.bias",
        "model.layers.0.mlp.experts.0_up_proj.weight", "model.layers.0.mlp.experts.",
        "model.layers.1234567.mlp.experts.0.up_proj.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        put(&m, &used, names[i], 2, ROWS, COLUMNS, 0);
    check_ok(&cx, load_stack_experts(&cx, &m));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_non_null(load_find(&m, names[i]));
    m.config.n_experts = 0;
    put_experts(&m, &used, qwen_pattern, qwen, -1);
    check_ok(&cx, load_stack_experts(&cx, &m));
    assert_int_equal(m.tensors.n, 5 + 3 * EXPERTS);
    load_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_by_one), cmocka_unit_test(test_together),
        cmocka_unit_test(test_missing), cmocka_unit_test(test_faults), cmocka_unit_test(test_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
