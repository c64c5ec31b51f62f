/* roll_test.c - rolled loops have the bits of their single steps, on random loops as frontends
 * unroll them and on loops that only look like ones. */
#include "check.h"

#include <string.h>

#include "base/rng.h"
#include "fuse_bed.h"
#include "same_outputs.h"

static uint64_t base_seed;

/* simplify and roll as compile.c runs them, and perhaps fuse_map as for a GPU, then a proof that
 * the result is a valid program. */
static ir_graph *roll_as(arena *a, ir_graph *g, pass_fusion fusion, bool fused)
{
    arena scratch = {0};
    const pass_options options = {.n_workers = 2, .fusion = fusion, .relaxed = fused};
    pass_state s = {&cx, a, &scratch, &options};
    check_ok(&cx, pass_simplify(&s, &g));
    check_ok(&cx, pass_roll(&s, &g));
    if (fused)
        check_ok(&cx, pass_fuse_map(&s, &g));
    arena_free(&scratch);
    check_ok(&cx, ir_verify(&cx, g));
    return g;
}

static void check_same(const ir_graph *one, const ir_graph *two, uint64_t seed)
{
    check_same_outputs(&cx, one, two, seed, 1);
}

enum { ANY = 1000 };

/* The rolled program has so many recurs (ANY: whatever is right), and its outputs the bytes that
 * they had, also where recurs have taken in what makes their operands.  Returns how many operators
 * it has then. */
static size_t check_rolled(const char *source, size_t n_recurs, uint64_t seed)
{
    arena a = {0};
    ir_graph *plain;
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &plain));
    const ir_graph *rolled = roll_as(&a, plain, PASS_FUSE_FULL, false);
    const ir_graph *fused = roll_as(&a, plain, PASS_FUSE_FULL, true);
    if (n_recurs != ANY && count_of(rolled, "recur") != n_recurs)
        fail_msg("%zu recurs, expected %zu:\n%s", count_of(rolled, "recur"), n_recurs, source);
    assert_int_equal(count_of(roll_as(&a, plain, PASS_FUSE_NONE, false), "recur"), 0);
    check_same(plain, rolled, seed);
    check_same(plain, fused, seed);
    const size_t n = fused->ops.n;
    arena_free(&a);
    return n;
}

/* ---- random loops ---- */

/* A loop of so many steps over axis `axis` of operands [.., steps, ..], states [rows, columns]. */
typedef struct loop {
    text out;
    uint64_t seed, used;
    uint32_t steps, rows, columns, axis;
    const char *dtype;
} loop;

static uint32_t draw(loop *l, uint32_t n)
{
    return (uint32_t)(rng_u64(l->seed, l->used++) % n);
}

/* The shape of a tensor with entries `first` to `last` of the axis. */
static void print_shape(loop *l, uint32_t first, uint32_t last, bool stops)
{
    const uint32_t dims[] = {l->rows, l->columns};
    text_print(&l->out, "[");
    for (uint32_t i = 0, k = 0; i < 3; i++) {
        const uint32_t n = i == l->axis ? (stops ? last : last - first) : dims[k];
        k += i != l->axis;
        text_print(&l->out, "%s%u", i ? ", " : "", n);
    }
    text_print(&l->out, "]");
}

/* Entry i of x as %NAME<i> : [rows, columns]. */
static void print_entry(loop *l, const char *x, uint32_t i)
{
    text_print(&l->out, "%%%s_%u = slice(%%%s) {starts = [", x, i, x);
    for (uint32_t k = 0; k < 3; k++)
        text_print(&l->out, "%s%u", k ? ", " : "", k == l->axis ? i : 0);
    text_print(&l->out, "], stops = ");
    print_shape(l, i, i + 1, true);
    text_print(&l->out, "}\n%%%s%u = reshape(%%%s_%u) {shape = [%u, %u]}\n", x, i, x, i, l->rows,
               l->columns);
}

/* Step i of the states `s` from those of step i - 1; what there is before is `%h`, or zeros that a
 * frontend writes as a number. */
static void print_state(loop *l, uint32_t form, uint32_t i, bool zeros)
{
    char before[16];
    snprintf(before, sizeof before, i ? "%%s%u" : "%%h", i - 1);
    print_entry(l, "a", i);
    print_entry(l, "x", i);
    if (form == 2)
        text_print(
            &l->out,
            "%%v%u = mul(%%x%u, %%w)\n%%u%u = reshape(%%v%u) {shape = [%u, 1, %u]}\n%%x%u_ = "
            "reshape(%%u%u) {shape = [%u, %u]}\n",
            i, i, i, i, l->rows, l->columns, i, i, l->rows, l->columns);
    if (i == 0 && zeros)
        text_print(&l->out, "%%p0 = map(%%a0) {expr = \"x0 * 0.0\", dtype = \"%s\"}\n", l->dtype);
    else if (form == 1)
        text_print(&l->out,
                   "%%p%u = map(%s, %%a%u) {expr = \"t0 = x1 * x0; t0\", dtype = \"%s\"}\n", i,
                   before, i, l->dtype);
    else
        text_print(&l->out, "%%p%u = mul(%%a%u, %s)\n", i, i, before);
    if (form == 2)
        text_print(&l->out,
                   "%%g%u = map(%%x%u, %%w) {expr = \"sigmoid(x0) * x1\", dtype = \"%s\"}\n"
                   "%%s%u = map(%%p%u, %%g%u, %%x%u_) {expr = \"max(x0 + x1, x2 - 1)\", dtype = "
                   "\"%s\"}\n",
                   i, i, l->dtype, i, i, i, i, l->dtype);
    else
        text_print(&l->out, "%%s%u = add(%%p%u, %%x%u)\n", i, i, i);
}

/* What is made of state i: itself, a row of it cast, a product by a column of step i, or a sum. */
static void print_result(loop *l, uint32_t form, uint32_t i)
{
    if (form == 0)
        text_print(&l->out, "%%y%u = reshape(%%s%u) {shape = [%u, 1, %u]}\n", i, i, l->rows,
                   l->columns);
    else if (form == 1)
        text_print(&l->out,
                   "%%k%u = slice(%%c) {starts = [%u, 0, 0], stops = [%u, %u, 1]}\n"
                   "%%r%u = batch_matmul(%%s%u, %%k%u)\n%%y%u = reshape(%%r%u) {shape = [%u, 1, "
                   "1]}\n",
                   i, i, i + 1, l->columns, i, i, i, i, i, l->rows);
    else if (form == 2)
        text_print(&l->out,
                   "%%f%u = map(%%s%u, %%w) {expr = \"x0 - x1\", dtype = \"f32\"}\n%%r%u = "
                   "reduce(%%f%u) {axes = [0], keep = 1}\n%%y%u = reshape(%%r%u) {shape = [1, 1, "
                   "%u]}\n",
                   i, i, i, i, i, i, l->columns);
    else
        text_print(&l->out,
                   "%%t%u = transpose(%%s%u) {perm = [1, 0]}\n%%q%u = cast(%%t%u) {dtype = "
                   "\"f16\"}\n%%e%u = reshape(%%q%u) {shape = [%u, 1, %u]}\n%%y%u = expand(%%e%u) "
                   "{shape = [%u, 2, %u]}\n",
                   i, i, i, i, i, i, l->columns, l->rows, i, i, l->columns, l->rows);
}

/* Concatenations of at most nine results each, and one of these. */
static void print_collection(loop *l, uint32_t first)
{
    uint32_t n = 0;
    for (uint32_t i = first; i < l->steps; n++) {
        text_print(&l->out, "%%z%u = concat(", n);
        for (uint32_t k = 0; k < 9 && i < l->steps; k++, i++)
            text_print(&l->out, "%s%%y%u", k ? ", " : "", i);
        text_print(&l->out, ") {axis = 1}\n");
    }
    text_print(&l->out, "%%z = concat(");
    for (uint32_t i = 0; i < n; i++)
        text_print(&l->out, "%s%%z%u", i ? ", " : "", i);
    text_print(&l->out, ") {axis = 1}\noutput %%z\n");
}

static void random_loops(void **state)
{
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    (void)state;
    for (uint64_t round = 0; round < check_rounds(200); round++) {
        loop l = {.seed = base_seed + round};
        l.steps = 5 + draw(&l, 30);
        l.rows = 1 + draw(&l, 5);
        l.columns = 1 + draw(&l, 9);
        l.axis = draw(&l, 3);
        l.dtype = dtypes[draw(&l, 3)];
        const uint32_t form = draw(&l, 3), result = draw(&l, 4);
        const bool zeros = draw(&l, 2);
        for (const char *name = "ix"; *name; name++) {
            text_print(&l.out, "input %%%c : %s", *name, l.dtype);
            print_shape(&l, 0, l.steps, false);
            text_print(&l.out, "\n");
        }
        text_print(&l.out,
                   "input %%j : f32[%u]\n%%b = map(%%j, %%i) {expr = \"exp(x0) - x1\", "
                   "dtype = \"f32\"}\n%%a = cast(%%b) {dtype = \"%s\"}\n",
                   l.axis < 2 ? l.columns : l.steps, l.dtype);
        text_print(&l.out, "input %%c : %s[%u, %u, 1]\ninput %%w : %s[%u]\ninput %%h : %s[%u, 1]\n",
                   l.dtype, l.steps, l.columns, l.dtype, l.columns, l.dtype,
                   draw(&l, 2) ? l.rows : 1);
        for (uint32_t i = 0; i < l.steps; i++) {
            print_state(&l, form, i, zeros && form != 1);
            print_result(&l, result, i);
        }
        print_collection(&l, draw(&l, 2));
        if (draw(&l, 2))
            text_print(&l.out, "output %%s%u\n", l.steps - 1);
        /* views, the recur, what a step computes without its state, what is made of it */
        assert_true(check_rolled(l.out.at, 1, base_seed + round) < 50);
        text_free(&l.out);
    }
}

/* ---- loops of other kinds ---- */

/* Programs of n steps, each from a form with the number of the step, @, and those before and after
 * it, < and >. */
static void check_steps(const char *begin, const char *step, uint32_t n, const char *end,
                        size_t n_recurs)
{
    text out = {0};
    text_print(&out, "%s", begin);
    for (uint32_t i = 1; i <= n; i++)
        for (const char *c = step; *c; c++)
            if (*c == '@' || *c == '<' || *c == '>')
                text_print(&out, "%u", i + (*c == '>') - (*c == '<'));
            else
                text_add(&out, c, 1);
    text_print(&out, "%s", end);
    check_rolled(out.at, n_recurs, base_seed);
    text_free(&out);
}

#define ENTRY(name, x) "%" name "@ = slice(%" x ") {starts = [0, @], stops = [3, >]}\n"

static void examples(void **state)
{
    static const char begin[] = "input %x : f32[3, 40]\ninput %v : f32[3, 40]\ninput %s0 : f32[3, "
                                "1]\ninput %q0 : f32[3, 1]\n";
    (void)state;
    /* a state of which another loop is made */
    check_steps(begin,
                ENTRY("x", "x") ENTRY("v", "v") "%s@ = map(%s<, %x@) {expr = \"max(x0 - 1, x1)\"}\n"
                                                "%e@ = map(%x@, %s@) {expr = \"exp(x0 - x1)\"}\n"
                                                "%m@ = mul(%e@, %v@)\n%q@ = map(%q<, %m@) {expr = "
                                                "\"x0 * 0.5 + x1\"}\n",
                12, "output %q12\noutput %s12\n", 2);
    /* only the last state is read: of few steps one map, of many a loop */
    check_steps(begin, ENTRY("x", "x") "%s@ = add(%s<, %x@)\n", 5, "output %s5\n", 0);
    check_steps(begin, ENTRY("x", "x") "%s@ = add(%s<, %x@)\n", 30, "output %s30\n", 1);
    /* three steps are none */
    check_steps(begin, ENTRY("x", "x") "%s@ = add(%s<, %x@)\n", 3, "output %s2\noutput %s3\n", 0);
    /* no operand follows the steps; entries that do not follow each other; two states before */
    check_steps(begin, "%s@ = map(%s<, %q0) {expr = \"x0 * x1 + 1\"}\n", 30, "output %s30\n", 0);
    check_steps(begin,
                "%x@ = slice(%x) {starts = [0, @], stops = [3, 40], steps = [1, 40]}\n%s@ = "
                "add(%s<, %x@)\n",
                30, "output %s30\n", 0);
    check_steps("input %x : f32[3, 40]\ninput %s-1 : f32[3, 1]\ninput %s0 : f32[3, 1]\n%t0 = "
                "add(%s-1, %s0)\n",
                ENTRY("x", "x") "%t@ = add(%s<, %x@)\n%s@ = mul(%t@, %t<)\n", 30, "output %s30\n",
                0);
}

/* Loops of which now and then a step reads what another one reads, or an entry twice, or what is no
 * entry: only steps that are alike become one operator. */
static void random_interrupted_loops(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < check_rounds(200); round++) {
        loop l = {.seed = base_seed + round};
        const uint32_t steps = 10 + draw(&l, 30), rarely = 4 + draw(&l, 12);
        text_print(&l.out,
                   "input %%x : f32[3, %u]\ninput %%v : f32[3, %u]\ninput %%s0 : f32[3, 1]\n"
                   "input %%c : f32[3, 1]\n",
                   steps, steps);
        for (uint32_t i = 1; i <= steps; i++) {
            const char *names[] = {"x", "v"};
            for (int k = 0; k < 2; k++) {
                const bool is_odd = draw(&l, rarely) == 0;
                const uint32_t at = is_odd ? draw(&l, steps) : i - 1;
                text_print(&l.out, "%%%s%u = slice(%%%s) {starts = [0, %u], stops = [3, %u]}\n",
                           names[k], i, names[k], at, at + 1);
            }
            char one[16], two[16];
            snprintf(one, sizeof one, "x%u", draw(&l, rarely) || i < 2 ? i : i - 1);
            snprintf(two, sizeof two, "v%u", i);
            if (draw(&l, rarely) == 0)
                snprintf(two, sizeof two, "%s", draw(&l, 2) ? one : "c");
            text_print(&l.out, "%%p%u = mul(%%s%u, %%%s)\n%%s%u = add(%%p%u, %%%s)\n", i, i - 1,
                       one, i, i, two);
        }
        text_print(&l.out, "output %%s%u\n", steps);
        check_rolled(l.out.at, ANY, base_seed + round);
        text_free(&l.out);
    }
}

/* What makes operands for a recurrence alone is part of it: one operator is left. */
static void operands_are_taken_in(void **state)
{
    text out = {0};
    (void)state;
    text_print(&out,
               "input %%t : f32[3, 4, 40, 1]\ninput %%w : f32[4, 1, 8]\ninput %%u : bf16[3, 1, "
               "40, 8]\ninput %%s-1 : f32[8]\n%%m = mul(%%t, %%w)\n%%a = map(%%m) {expr = "
               "\"exp(x0)\"}\n%%b = map(%%t, %%u) {expr = \"x0 * x1\"}\n");
    for (int i = 0; i < 40; i++)
        for (const char *x = "ab"; *x; x++)
            text_print(&out,
                       "%%%c_%d = slice(%%%c) {starts = [0, 0, %d, 0], stops = [3, 4, %d, "
                       "8]}\n%%%c%d = reshape(%%%c_%d) {shape = [3, 4, 8]}\n",
                       *x, i, *x, i, i + 1, *x, i, *x, i);
    for (int i = 0; i < 40; i++)
        text_print(&out, "%%p%d = mul(%%a%d, %%s%d)\n%%s%d = add(%%p%d, %%b%d)\n", i, i, i - 1, i,
                   i, i);
    text_print(&out, "output %%s39\n");
    arena a = {0};
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, &a, str_from(out.at), &g));
    const ir_graph *fused = roll_as(&a, g, PASS_FUSE_FULL, true);
    assert_int_equal(count_of(fused, "recur"), 1);
    assert_int_equal(count_of(fused, "map") + count_of(fused, "mul"), 0);
    arena_free(&a);
    check_rolled(out.at, 1, base_seed);
    text_free(&out);
}

/* An operator that writes an operand in place comes between the steps. */
static void nothing_moves_past_a_write(void **state)
{
    (void)state;
    check_steps("state %x : f32[3, 40]\ninput %s0 : f32[3, 1]\ninput %v : f32[40]\ninput %i : "
                "i32[]\n",
                ENTRY("x", "x") "%s@ = add(%s<, %x@)\n", 30,
                "%new = index_put(%x, %v, %i) {in_place = 1}\noutput %s30\n", 0);
}

int main(void)
{
    base_seed = check_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_loops), cmocka_unit_test(examples),
                                       cmocka_unit_test(random_interrupted_loops),
                                       cmocka_unit_test(operands_are_taken_in),
                                       cmocka_unit_test(nothing_moves_past_a_write)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
