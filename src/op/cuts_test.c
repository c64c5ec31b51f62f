/* cuts_test.c - how operators may be cut into tasks, and what a task then reads. */
#include "check.h"

#include "ir/op.h"

typedef struct bed {
    mpk_context cx;
    arena arena;
    ir_graph *g;
} bed;

static void tear_down(bed *b)
{
    arena_free(&b->arena);
}

/* Parse a program that must be right. The bed's arena owns it until tear_down. */
static void parse(bed *b, const char *source)
{
    *b = (bed){0};
    check_ok(&b->cx, ir_parse(&b->cx, &b->arena, str_from(source), &b->g));
}

/* Where products are cut where tiles are whole: by rows of x, and by columns of y; those that GPUs
 * take by boxes of weights, which no others are, by half a box or a quarter. */
static void test_cuts_of_products(void **state)
{
#define PRODUCT(x, w, kind) "input %x : " x "\n" kind " %w : " w "\n%y = linear(%x, %w)\n"
    static const struct {
        const char *source;
        int64_t rows, columns;
    } rows[] = {
        {PRODUCT("bf16[257, 64]", "bf16[256, 64]", "const"), 128, 32},
        {PRODUCT("f16[257, 64]", "f16[256, 64]", "const"), 128, 32},
        {PRODUCT("bf16[1920, 64]", "bf16[256, 64]", "const"), 128, 32},
        {PRODUCT("bf16[1921, 64]", "bf16[256, 64]", "const"), 128, 64},
        {PRODUCT("bf16[257, 64] live=tokens", "bf16[256, 64]", "const"), 128, 8},
        {PRODUCT("bf16[257, 64]", "bf16[256, 64]", "input"), 128, 8},
        {PRODUCT("f32[257, 64]", "f32[256, 64]", "const"), 128, 8},
        {PRODUCT("bf16[257, 64]", "f16[256, 64]", "const"), 128, 8},
        {PRODUCT("bf16[257, 60]", "bf16[256, 60]", "const"), 128, 8},
        {PRODUCT("bf16[257, 64]", "bf16[252, 64]", "const"), 128, 8},
        {PRODUCT("bf16[256, 64]", "bf16[256, 64]", "const"), 32, 8},
        {PRODUCT("bf16[65, 64]", "bf16[256, 64]", "const"), 32, 8},
        {PRODUCT("bf16[64, 64]", "bf16[256, 64]", "const"), 128, 8},
        {PRODUCT("bf16[129, 2048] live=tokens", "bf16[256, 2048]", "const"), 16, 8},
        {PRODUCT("bf16[129, 2048] live=tokens", "bf16[264, 2048]", "const"), 128, 8},
        {PRODUCT("bf16[129, 2040] live=tokens", "bf16[256, 2040]", "const"), 128, 8},
        {PRODUCT("bf16[128, 2048] live=tokens", "bf16[256, 2048]", "const"), 128, 8},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bed b = {0};
        op_axis axes[IR_MAX_RANK] = {{0}};
        parse(&b, rows[i].source);
        const ir_op *op = &b.g->ops.at[0];
        op->def->axes(b.g, op, axes);
        if (axes[0].tile != rows[i].rows || axes[1].tile != rows[i].columns)
            fail_msg("cut by %lld rows and %lld columns: %s", (long long)axes[0].tile,
                     (long long)axes[1].tile, rows[i].source);
        tear_down(&b);
    }
#undef PRODUCT
}

/* A reshape may be cut along the axes that begin at the same elements on both sides, but not along
 * one that is partly alive. */
static void test_cuts_of_a_reshape(void **state)
{
    bed b;
    (void)state;
    parse(&b, "input %x : f32[4, 6]\ninput %z : f32[4, 6] live=tokens\n"
              "%y = reshape(%x) {shape = [4, 2, 3]}\n%w = reshape(%z) {shape = [4, 2, 3]}\n");
    for (uint32_t i = 0; i < 2; i++) {
        const ir_op *op = &b.g->ops.at[i];
        op_split found;
        if (i == 0) {
            assert_true(op_find_split(b.g, op, 0, &found));
            assert_true(found.in[0] == 0 && found.out[0] == 0);
        }
        assert_true(op_find_split(b.g, op, 1 - i, &found));
        assert_true(found.in[0] == 1 && found.out[0] == 1);
        assert_false(op_find_split(b.g, op, 2 - i, &found));
    }
    tear_down(&b);
}

/* What decompose minimises: rows of x, rows of w, the bias. */
static void test_bytes_read(void **state)
{
    bed b;
    (void)state;
    parse(&b, "input %x : f32[4, 64] live=tokens\nconst %w : q8_0[6, 64]\nconst %b : f32[6]\n%y = "
              "linear(%x, %w, _, _, "
              "%b)\n");
    ir_box box = {{0, 2}, {2, 5}};
    assert_int_equal(op_bytes_read(b.g, &b.g->ops.at[0], &box), 2 * 64 * 4 + 3 * 68 + 3 * 4);
    tear_down(&b);
    /* rows that ids name: as many as the box has, and no more than there are */
    static const struct {
        const char *words;
        int64_t bytes;
    } rows[] = {
        {"input %i : i32[4]\nconst %w : bf16[900, 64]\n"
         "%y = embedding(%i, %w) {dtype = \"bf16\"}\n",
         2 * 4 + 2 * 3 * 2},
        {"input %x : f32[900, 64]\ninput %i : i32[4]\n%y = gather(%x, %i)\n", 2 * 3 * 4 + 2 * 4},
        {"input %x : f32[1, 64]\ninput %i : i32[4]\n%y = gather(%x, %i)\n", 3 * 4 + 2 * 4},
        {"input %x : f32[900, 64]\ninput %i : i64[4]\n%y = index(%x, %i)\n", 2 * 3 * 4 + 2 * 8}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        parse(&b, rows[i].words);
        assert_int_equal(op_bytes_read(b.g, &b.g->ops.at[0], &box), rows[i].bytes);
        tear_down(&b);
    }
}

/* A task of some heads reads those of q alone, as of the latent queries, but all of the table. */
static void test_reads_of_heads(void **state)
{
    bed b;
    (void)state;
    parse(&b, "input %x : f32[2, 4, 4]\ninput %q : f32[2, 4, 4]\ninput %l : f32[2, 4]\n"
              "input %k : f32[2, 1, 4]\ninput %t : f32[2, 2, 2]\nconst %n : f32[4]\n"
              "input %p : i32[2]\ninput %s : i32[2]\ninput %g : i32[1, 1]\n"
              "state %c : f32[1, 1, 4, 8]\n"
              "%y, %kc = latent_rope(%x, %q, %l, %k, %t, %n, %p, %s, %g, %c)\n");
    const ir_op *op = &b.g->ops.at[0];
    const ir_box box = {{0, 1, 0}, {1, 3, 8}};
    for (uint32_t i = 0; i < 2; i++) {
        ir_box read = {0};
        op->def->reads(b.g, op, i, &box, &read);
        assert_true(read.lo[0] == 0 && read.hi[0] == 1);
        assert_true(read.lo[1] == 1 && read.hi[1] == 3);
    }
    tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts_of_products), cmocka_unit_test(test_cuts_of_a_reshape),
        cmocka_unit_test(test_bytes_read), cmocka_unit_test(test_reads_of_heads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
