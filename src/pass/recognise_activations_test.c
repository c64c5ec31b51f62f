/* recognise_activations_test.c - activations of small operators become one, and part of the product
 * before them. */
#include "recognise_bed.h"

static const char gelu[] =
    "input %x : f32[3, 17]\n%h = map(%x) {expr = \"x0 * 0.5\"}\n"
    "%c = map(%x) {expr = \"pow(x0, 3.0)\"}\n%s = map(%c) {expr = \"x0 * 0.044715\"}\n"
    "%t = add(%x, %s)\n%u = map(%t) {expr = \"x0 * 0.7978845608028654\"}\n"
    "%v = map(%u) {expr = \"tanh(x0)\"}\n%w = map(%v) {expr = \"x0 + 1.0\"}\n"
    "%y = mul(%h, %w)\noutput %y\n";

/* The formula with tanh, and six that differ from it in one constant or operand and must stay. */
static void the_gelu_of_gpt2_is_one_operator(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"x0 * 0.5", "x0 * 0.6"},           {"pow(x0, 3.0)", "pow(x0, 2.0)"},
        {"x0 * 0.044715", "x0 + 0.044715"}, {"tanh(x0)", "sin(x0)"},
        {"add(%x, %s)", "add(%h, %s)"},     {"x0 + 1.0", "x0 + 2.0"}};
    arena a = {0};
    ir_graph *g = parse(&a, gelu), *after = recognise(&a, g, false);
    assert_int_equal(count_of(after, "gelu"), 1);
    assert_int_equal(count_of(after, "map") + count_of(after, "mul"), 0);
    check_near(&a, g, after);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        ir_graph *other = parse_with(&a, gelu, changes[i][0], changes[i][1]),
                 *kept = recognise(&a, other, false);
        assert_int_equal(count_of(kept, "gelu"), 0);
        check_near(&a, other, kept);
    }
    arena_free(&a);
}

/* x sigmoid(1.702 x) as PyTorch writes it. */
#define QUICK(x, number)                             \
    "%u = map(" x ") {expr = \"x0 * " number "\"}\n" \
    "%v = map(%u) {expr = \"sigmoid(x0)\"}\n%y = mul(" x ", %v)"

/* Either operand may be the sigmoid; another constant, function or operand stays. */
static void quick_gelu_is_one_map(void **state)
{
    (void)state;
    static const char product[] = "input %x : f32[3, 17]\n" QUICK("%x", "1.702") "\noutput %y\n";
    static const struct {
        const char *old, *by;
        size_t maps, products;
    } rows[] = {{"mul(%x, %v)", "mul(%v, %x)", 1, 0},
                {"1.702", "1.7", 2, 1},
                {"x0 * 1.702", "x0 + 1.702", 2, 1},
                {"sigmoid", "tanh", 2, 1},
                {"mul(%x, %v)", "mul(%u, %v)", 2, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        ir_graph *g = parse_with(&a, product, rows[i].old, rows[i].by),
                 *after = recognise(&a, g, false);
        assert_int_equal(count_of(after, "map"), rows[i].maps);
        assert_int_equal(count_of(after, "mul"), rows[i].products);
        check_near(&a, g, after);
        arena_free(&a);
    }
    /* each result in bf16 is rounded, which a target must allow to skip */
    arena a = {0};
    ir_graph *rounded = parse_with(&a, product, "f32", "bf16");
    assert_int_equal(count_of(recognise(&a, rounded, false), "mul"), 1);
    assert_int_equal(count_of(fuse_for_gpu(&a, rounded), "mul"), 0);
    arena_free(&a);
}

static const char activated[] =
    "input %x : f32[18, 16]\nconst %w : f32[24, 16]\nconst %b : f32[24]\n"
    "%l = linear(%x, %w, _, _, %b)\n%y = gelu(%l)\noutput %y\n";

/* Which activations a linear takes in; `left` counts the operators that stay beside it. */
static void activations_join_linears(void **state)
{
    (void)state;
    static const struct {
        const char *old, *by;
        size_t left; /* operators beside the linear */
    } rows[] = {
        {"gelu(%l)", "gelu(%l) {tanh = 1}", 0},
        {"gelu(%l)", "silu(%l)", 0},
        {"gelu(%l)", "map(%l) {expr = \"max(x0, 0)\"}", 0},
        {"gelu(%l)", "map(%l) {expr = \"max(x0, 1)\"}", 1},
        {"%y = gelu(%l)", QUICK("%l", "1.702"), 0},
        {"%y = gelu(%l)", QUICK("%l", "1.703"), 3},
        {"f32[18, 16]", "f32[16, 16]", 0}, /* few rows: those that are gates too */
        {"output %y", "output %y\noutput %l", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        ir_graph *g = parse_with(&a, activated, rows[i].old, rows[i].by), *after;
        after = fuse_for_gpu(&a, g);
        assert_int_equal(count_of(after, "linear"), 1);
        assert_int_equal(after->ops.n, 1 + rows[i].left);
        check_near(&a, g, after);
        arena_free(&a);
    }
}

int main(void)
{
    base_seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gelu_of_gpt2_is_one_operator),
        cmocka_unit_test(quick_gelu_is_one_map),
        cmocka_unit_test(activations_join_linears),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
