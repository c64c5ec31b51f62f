/* unpack_weights_test.c - products whose weights are unpacked apart give what they gave, but for
 * one rounding of each weight; which of them are; and how much memory the matrices take. */
#include "check.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "ir/op.h"
#include "pass/pass.h"

static mpk_context cx;
static uint64_t base_seed;

enum { TOKENS = 128, LAYERS = 5 };

#define X "input %x : bf16[128, 256] live=tokens\n"
#define W(name, dtype, rows, columns) "const %" name " : " dtype "[" rows ", " columns "]\n"
#define END "output %y\n"

static const struct {
    const char *graph;
    int unpacked; /* products that have their weights apart after the pass */
} rows[] = {
    {X W("w", "q4_k", "264", "256") "%y = linear(%x, %w)\n" END, 1},
    {X W("w", "q8_0", "256",
         "256") "%y = linear(%x, %w, _, _, _, _, _, _, %x) {factor = 0.5}\n" END,
     1},
    {X W("q", "q4_k", "256", "256") W("k", "q6_k", "64", "256") W("v", "q5_k", "64", "256")
         W("o", "q4_0", "256", "384") "%a = linear(%x, %q, %k, %v)\n%y = linear(%a, %o)\n" END,
     2},
    {X W("g", "q4_k", "320", "256") W("u", "q6_k", "320", "256")
         W("d", "q4_1", "256",
           "320") "%a = linear(%x, %g, %u) {glu = \"silu\"}\n%y = linear(%a, %d)\n" END,
     2},
    /* of fewer tokens, in f32, of a caller, of rows that are no lot */
    {"input %x : bf16[64, 256] live=tokens\n" W("w", "q4_k", "264", "256") "%y = linear(%x, "
                                                                           "%w)\n" END,
     0},
    {"input %x : f32[128, 256] live=tokens\n" W("w", "q4_k", "264", "256") "%y = linear(%x, "
                                                                           "%w)\n" END,
     0},
    {"input %x : bf16[128, 256]\n" W("w", "q4_k", "264", "256") "%y = linear(%x, %w)\n" END, 0},
    {"input %x : bf16[192, 256] live=tokens\n" W("w", "q4_k", "264", "256") "%y = linear(%x, "
                                                                            "%w)\n" END,
     0},
    /* not in blocks; not all; with a norm, a bias, an activation; columns of no whole group */
    {X W("w", "bf16", "264", "256") "%y = linear(%x, %w)\n" END, 0},
    {X W("w", "q4_k", "264", "256") W("v", "bf16", "8", "256") "%y = linear(%x, %w, %v)\n" END, 0},
    {X W("w", "q4_k", "264", "256") "const %n : f32[256]\n%y = linear(%x, %w, _, _, _, _, _, "
                                    "%n)\n" END,
     0},
    {X W("w", "q4_k", "264", "256") "const %b : f32[264]\n%y = linear(%x, %w, _, _, %b)\n" END, 0},
    {X W("w", "q4_k", "264", "256") "%y = linear(%x, %w) {act = \"silu\"}\n" END, 0},
    {X W("w", "q4_k", "260", "256") "%y = linear(%x, %w)\n" END, 0},
    /* few columns beside those of x, and more */
    {X W("w", "q4_k", "32", "256") "%y = linear(%x, %w)\n" END, 0},
    {X W("w", "q4_k", "40", "256") "%y = linear(%x, %w)\n" END, 1},
};

/* Run a program; inputs are filled by name. */
static void evaluate(arena *a, const ir_graph *g, ir_values *values)
{
    *values = (ir_values){.live = {UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    check_ok(&cx, ir_eval_allocate(&cx, a, g, values));
    for (ir_op_id o = 0; o < g->ops.n; o++)
        for (uint32_t i = 0; i < g->ops.at[o].n_in; i++) {
            const ir_tensor_id t = g->ops.at[o].in[i];
            if (t == IR_NONE || g->tensors.at[t].kind == IR_TEMP)
                continue;
            const str name = g->tensors.at[t].name;
            op_fill(g, &g->ops.at[o], i, hash_bytes(name.at, name.n, base_seed), values->data[t]);
        }
    check_ok(&cx, ir_eval(&cx, a, g, values));
}

/* A rounded weight is 2^-9 of itself off, a sum of products less, beside the largest; a product of
 * sums is off by both. */
static void check_near(const ir_graph *one, const ir_graph *two)
{
    arena a = {0};
    ir_values x, y;
    evaluate(&a, one, &x);
    evaluate(&a, two, &y);
    const ir_tensor_id o = one->outputs.at[0], t = two->outputs.at[0];
    const int64_t n = ir_elements(&one->tensors.at[o]);
    op_view v = {.data = x.data[o], .dtype = one->tensors.at[o].dtype}, w = v;
    float largest = 0;
    w.data = y.data[t];
    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(op_load(&v, i)));
    assert_true(largest > 0);
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(op_load(&v, i) - op_load(&w, i)) <= 0.02f * largest))
            fail_msg("entry %lld is %g, expected %g", (long long)i, (double)op_load(&w, i),
                     (double)op_load(&v, i));
    arena_free(&a);
}

static int count(const ir_graph *g, const char *name)
{
    int n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += strcmp(g->ops.at[i].def->name, name) == 0;
    return n;
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0}, scratch = {0};
        ir_graph *plain, *apart;
        pass_options options = {.n_workers = 2, .unpack_tokens = TOKENS};
        pass_state s = {&cx, &a, &scratch, &options};
        check_ok(&cx, ir_parse(&cx, &a, str_from(rows[i].graph), &plain));
        apart = plain;
        check_ok(&cx, pass_unpack_weights(&s, &apart));
        check_ok(&cx, ir_verify(&cx, apart));
        if (count(apart, "unpack") != rows[i].unpacked)
            fail_msg("row %zu: %d are unpacked", i, count(apart, "unpack"));
        if (rows[i].unpacked)
            check_near(plain, apart);
        arena_free(&scratch);
        arena_free(&a);
    }
}

/* Of products one after the other two matrices are alive at a time, however many there are, and the
 * plan of memory has room for hardly more. */
static void test_memory(void **state)
{
    (void)state;
    arena a = {0};
    ir_graph *g;
    tg_program p;
    text t = {0};
    uint32_t n_tokens = TOKENS;
    const uint64_t matrix = 1024 * 1024 * 2, x = TOKENS * 1024 * 2;
    const pass_options options = {.n_workers = 8,
                                  .page_bytes = 16384,
                                  .pages_per_worker = 1 << 10,
                                  .verify = true,
                                  .whole_tiles = true,
                                  .unpack_tokens = TOKENS};
    text_print(&t, "input %%y0 : bf16[%d, 1024] live=tokens\n", TOKENS);
    for (int i = 0; i < LAYERS; i++)
        text_print(&t, "const %%w%d : q4_k[1024, 1024]\n%%y%d = linear(%%y%d, %%w%d)\n", i, i + 1,
                   i, i);
    text_print(&t, "output %%y%d\n", LAYERS);
    check_ok(&cx, ir_parse(&cx, &a, text_str(&t), &g));
    check_ok(&cx, pass_compile(&cx, &a, &options, 1, &g, &n_tokens, &p));
    assert_int_equal(count(p.graphs[0].ir, "unpack"), LAYERS);
    assert_in_range(p.area_bytes[TG_TEMPS], 2 * matrix, 3 * matrix - 1 + 3 * x);
    text_free(&t);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_memory)};
    base_seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
