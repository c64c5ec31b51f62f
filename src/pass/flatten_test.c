/* flatten_test.c - convolutions that became conv_flat give what they gave, within the roundings
 * that the pass leaves out; which of them do, and what is left behind one. */
#include "check.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "ir/op.h"
#include "pass/pass.h"

static mpk_context cx;
static uint64_t base_seed;

/* Images that are a temporary, filters with channels last, and what a convolution's end may name;
 * one of 4,096 places, 64 channels and 128 filters has just enough products. */
#define CONV(type, places, rest)                                                                   \
    "input %i : " type "[1, " places ", 64]\nconst %u : " type "[128, 3, 3, 64]\nconst %c : " type \
    "[128]\nconst %s : f32[1, 1, 1, 128]\nconst %b : f32[1, 1, 1, 128]\ninput %r : " type          \
    "[1, 64, 64, 128]\n%n = silu(%i)\n%x = transpose(%n) {perm = [0, 3, 1, 2]}\n"                  \
    "%w = transpose(%u) {perm = [0, 3, 1, 2]}\n%y = conv(" rest ", last = 1}\n"                    \
    "%z = silu(%y)\noutput %z\n"

#define TWO(result)                                                                                \
    "input %i : bf16[1, 64, 64, 64]\nconst %u : bf16[128, 3, 3, 64]\nconst %v : bf16[128, 9, "     \
    "64]\nconst %s : f32[1, 1, 1, 128]\nconst %b : f32[1, 1, 1, 128]\nconst %c : bf16[1, 1, 1, "   \
    "128]\n%n = silu(%i)\n%x = transpose(%n) {perm = [0, 3, 1, 2]}\n"                              \
    "%w = transpose(%u) {perm = [0, 3, 1, 2]}\n%v4 = reshape(%v) {shape = [128, 3, 3, 64]}\n"      \
    "%q = transpose(%v4) {perm = [0, 3, 1, 2]}\n%d = conv(%x, %q, _) {padding = [1, 1], last = "   \
    "1}\n%y = conv(%x, %w, _, %d, %s, %b, %s, %c) {padding = [1, 1], expr = \"t0 = f32(x1 * x2); " \
    "t1 = f32(t0 + x3); t2 = bf16(t1); t3 = f32(x0 * x4); t4 = f32(t3 + x5); t5 = bf16(t4); t6 = " \
    "bf16(t5 + t2); bf16(max(t6, 0))\", last = 1}\n%z = silu(%y)\n%e = silu(" result               \
    ")\noutput %z\noutput %e\n"

static const struct {
    const char *graph;
    int flat, maps; /* how many there are after the pass */
} rows[] = {
    {CONV("bf16", "64, 64", "%x, %w, %c) {padding = [1, 1]"), 1, 0},
    {CONV(
         "bf16", "64, 64",
         "%x, %w, _, %s, %b, %r) {padding = [1, 1], expr = \"t0 = f32(x0 * x1); t1 = f32(t0 + x2); "
         "t2 = bf16(t1); t3 = bf16(t2 + x3); bf16(max(t3, 0))\""),
     1, 0},
    {CONV("f16", "64, 64",
          "%x, %w, %c, %b, %r) {padding = [2, 2], dilation = [2, 2], expr = \"f16(x2 + f16(x1 + "
          "x0))\""),
     1, 0},
    {CONV("bf16", "127, 128",
          "%x, %w, %c, %b) {padding = [1, 1], stride = [2, 2], expr = \"max(x0 + x1, 0)\""),
     1, 0},
    /* scaled after its bias; divided; not a scale of x0; compared with another number; x0 twice */
    {CONV("bf16", "64, 64", "%x, %w, %c, %s) {padding = [1, 1], expr = \"bf16(x0 * x1)\""), 1, 1},
    {CONV("bf16", "64, 64", "%x, %w, _, %s) {padding = [1, 1], expr = \"bf16(x0 / x1)\""), 1, 1},
    {CONV("bf16", "64, 64", "%x, %w, _, %s, %r) {padding = [1, 1], expr = \"bf16(x0 + x1 * x2)\""),
     1, 1},
    {CONV("bf16", "64, 64", "%x, %w, _) {padding = [1, 1], expr = \"bf16(max(x0, 1))\""), 1, 1},
    {CONV("bf16", "64, 64", "%x, %w, _) {padding = [1, 1], expr = \"bf16(x0 + x0)\""), 1, 1},
    /* a residual that another convolution makes, with a scale of its own; one that is read twice */
    {TWO("%y"), 2, 0},
    {TWO("%d"), 2, 1},
    /* few products; of a kernel of one entry four times as many are few */
    {"input %i : bf16[1, 256, 256, 64]\nconst %u : bf16[128, 1, 1, 64]\n%n = silu(%i)\n"
     "%x = transpose(%n) {perm = [0, 3, 1, 2]}\n%w = transpose(%u) {perm = [0, 3, 1, 2]}\n"
     "%y = conv(%x, %w, _) {last = 1}\n%z = silu(%y)\noutput %z\n",
     0, 0},
    {CONV("bf16", "50, 64", "%x, %w, _) {padding = [1, 1]"), 0, 0},
};

/* Run a program; inputs are filled by name. */
static void evaluate(arena *a, const ir_graph *g, ir_values *values)
{
    *values = (ir_values){.live = {UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    check_ok(&cx, ir_eval_allocate(&cx, a, g, values));
    for (size_t t = 0; t < g->tensors.n; t++) {
        const ir_tensor *x = &g->tensors.at[t];
        op_view v = {.data = values->data[t], .dtype = x->dtype};
        for (int64_t i = 0; x->kind != IR_TEMP && i < ir_elements(x); i++)
            op_store(&v, i, rng_normal(hash_bytes(x->name.at, x->name.n, base_seed), (uint64_t)i));
    }
    check_ok(&cx, ir_eval(&cx, a, g, values));
}

/* Terms are up to some 50, of which a rounding that is left out is a small part. */
static void check_near(const ir_graph *one, const ir_graph *two)
{
    arena a = {0};
    ir_values x, y;
    evaluate(&a, one, &x);
    evaluate(&a, two, &y);
    const ir_tensor_id o = one->outputs.at[0], t = two->outputs.at[0];
    op_view v = {.data = x.data[o], .dtype = one->tensors.at[o].dtype}, w = v;
    w.data = y.data[t];
    assert_int_equal(ir_elements(&one->tensors.at[o]), ir_elements(&two->tensors.at[t]));
    for (int64_t i = 0; i < ir_elements(&one->tensors.at[o]); i++) {
        const float p = op_load(&v, i), q = op_load(&w, i);
        if (!(fabsf(p - q) <= 0.02f * (fabsf(p) + 50)))
            fail_msg("entry %lld is %g, expected %g", (long long)i, (double)q, (double)p);
    }
    arena_free(&a);
}

static int count(const ir_graph *g, const char *name)
{
    int n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += strcmp(g->ops.at[i].def->name, name) == 0;
    return n;
}

/* All rows are flattened; of those that are, the seed draws one to run, which takes seconds. */
static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0}, scratch = {0};
        ir_graph *plain, *flat;
        pass_options options = {.n_workers = 2};
        pass_state s = {&cx, &a, &scratch, &options};
        check_ok(&cx, ir_parse(&cx, &a, str_from(rows[i].graph), &plain));
        flat = plain;
        check_ok(&cx, pass_flatten(&s, &flat));
        check_ok(&cx, ir_verify(&cx, flat));
        if (count(flat, "conv_flat") != rows[i].flat || count(flat, "map") != rows[i].maps ||
            count(flat, "conv") != !rows[i].flat)
            fail_msg("row %zu: %d conv_flat and %d maps", i, count(flat, "conv_flat"),
                     count(flat, "map"));
        if (rows[i].flat && check_takes(base_seed, i, 4))
            check_near(plain, flat);
        arena_free(&scratch);
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};
    base_seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
