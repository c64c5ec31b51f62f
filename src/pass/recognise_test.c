/* recognise_test.c - small operators become whole ones, what is nearly the pattern does not,
 * numbers stay. */
#include "recognise_bed.h"

#include <stdarg.h>
#include <stdio.h>

static const char layer[] =
    "input %x : f32[5, 16]\nconst %n : f32[16]\nconst %g : f32[24, 16]\nconst %u : f32[24, 16]\n"
    "const %d : f32[16, 24]\n"
    "%v = reshape(%x) {shape = [1, 5, 16]}\n"
    "%p = map(%v) {expr = \"pow(x0, 2)\"}\n"
    "%m = reduce(%p) {axes = [2], keep = 1, kind = \"mean\"}\n"
    "%e = map(%m) {expr = \"x0 + 1e-05\"}\n%r = map(%e) {expr = \"rsqrt(x0)\"}\n"
    "%z = mul(%v, %r)\n%h = mul(%n, %z)\n%f = reshape(%h) {shape = [5, 16]}\n"
    "%a = linear(%f, %g)\n%b = linear(%f, %u)\n"
    "%a3 = reshape(%a) {shape = [1, 5, 24]}\n%b3 = reshape(%b) {shape = [1, 5, 24]}\n"
    "%s = silu(%a3)\n%t = mul(%s, %b3)\n%t2 = reshape(%t) {shape = [5, 24]}\n"
    "%c = linear(%t2, %d)\n%c3 = reshape(%c) {shape = [1, 5, 16]}\n%q = add(%v, %c3)\n"
    "%y = copy(%q)\noutput %y\n";

/* A layer as Dynamo gives it: its norm is one operator, and after fuse_ops only two products
 * with everything around them are left. */
static void a_layer_of_small_operators_becomes_three_linears(void **state)
{
    (void)state;
    arena a = {0};
    ir_graph *g = parse(&a, layer), *plain = recognise(&a, g, false),
             *fused = recognise(&a, g, true);
    assert_int_equal(count_of(plain, "rms_norm"), 1);
    assert_int_equal(count_of(plain, "reduce") + count_of(plain, "map"), 0);
    assert_int_equal(count_of(fused, "linear"), 2); /* norm, gate and up; down and residual */
    assert_int_equal(count_of(fused, "rms_norm") + count_of(fused, "silu") + count_of(fused, "mul"),
                     0);
    check_near(&a, g, plain);
    check_near(&a, g, fused);
    arena_free(&a);
}

/* Models write a square in five ways; each must be found. */
static void squares_however_written(void **state)
{
    (void)state;
    static const char *const squares[] = {"pow(x0, 2)", "pow(x0, 2.0)", "square(x0)", "x0 * x0"};
    for (size_t i = 0; i < sizeof squares / sizeof *squares; i++) {
        arena a = {0};
        ir_graph *after = recognise(&a, parse_with(&a, layer, squares[0], squares[i]), false);
        assert_int_equal(count_of(after, "rms_norm"), 1);
        arena_free(&a);
    }
    static const char as_map[] = "%p = map(%v) {expr = \"pow(x0, 2)\"}";
    arena a = {0};
    ir_graph *g = parse_with(&a, layer, as_map, "%p = mul(%v, %v)"),
             *after = recognise(&a, g, false);
    assert_int_equal(count_of(after, "rms_norm"), 1);
    check_near(&a, g, after);
    g = parse_with(&a, layer, as_map, "%w = silu(%v)\n%p = mul(%v, %w)");
    assert_int_equal(count_of(recognise(&a, g, false), "rms_norm"), 0);
    arena_free(&a);
}

/* The mean of each column, which a square x can be multiplied by too; and numbers that no norm
 * takes. */
static void means_of_columns_are_no_norm(void **state)
{
    (void)state;
    static const char *const types[] = {"f32", "f64"};
    for (int i = 0; i < 3; i++) {
        arena a = {0};
        char source[512];
        snprintf(source, sizeof source,
                 "input %%x : %s[6, 6]\n%%p = map(%%x) {expr = \"pow(x0, 2)\"}\n"
                 "%%m = reduce(%%p) {axes = [1], keep = %d, kind = \"mean\"}\n"
                 "%%e = map(%%m) {expr = \"x0 + 1e-05\"}\n%%r = map(%%e) {expr = \"rsqrt(x0)\"}\n"
                 "%%y = mul(%%x, %%r)\noutput %%y\n",
                 types[i / 2], i != 1);
        ir_graph *g = parse(&a, source);
        assert_int_equal(count_of(recognise(&a, g, false), "rms_norm"), i == 0);
        arena_free(&a);
    }
}

/* One change at a time that makes the group no norm: it stays as it is, and computes what it
 * says. */
static void what_is_nearly_a_norm_stays(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"pow(x0, 2)", "pow(x0, 3)"},
        {"kind = \"mean\"", "kind = \"sum\""},
        {"axes = [2]", "axes = [1]"},
        {"x0 + 1e-05", "x0 - 1e-05"},
        {"map(%m)", "map(%v)"},
        {"%z = mul(%v, %r)", "%z = add(%v, %r)"},
        {"axes = [2]", "axes = [2, 1]"},
        {"rsqrt(x0)", "sqrt(x0)"},
        {"%z = mul(%v, %r)", "%w = mul(%v, %v)\n%z = mul(%w, %r)"}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        arena a = {0};
        ir_graph *g = parse_with(&a, layer, changes[i][0], changes[i][1]),
                 *after = recognise(&a, g, false);
        assert_int_equal(count_of(after, "rms_norm"), 0);
        check_near(&a, g, after);
        arena_free(&a);
    }
}

/* A norm of bf16 that multiplies by its weight after rounding: rms_norm would round once, so the
 * product stays apart. */
static void low_precision_keeps_its_roundings(void **state)
{
    (void)state;
    static const char source[] =
        "input %x : bf16[3, 16]\nconst %n : bf16[16]\n%f = cast(%x) {dtype = \"f32\"}\n"
        "%p = map(%f) {expr = \"pow(x0, 2)\"}\n"
        "%m = reduce(%p) {axes = [1], keep = 1, kind = \"mean\"}\n"
        "%e = map(%m) {expr = \"x0 + 1e-05\"}\n%r = map(%e) {expr = \"rsqrt(x0)\"}\n"
        "%z = mul(%f, %r)\n%b = cast(%z) {dtype = \"bf16\"}\n%h = mul(%n, %b)\noutput %h\n";
    arena a = {0}, scratch = {0};
    ir_graph *g = parse(&a, source), *kept = recognise(&a, g, false), *relaxed = g;
    assert_int_equal(count_of(kept, "mul"), 1);
    pass_options options = {.n_workers = 2, .relaxed = true};
    check_ok(&cx, pass_recognise(&(pass_state){&cx, &a, &scratch, &options}, &relaxed));
    assert_int_equal(count_of(relaxed, "mul") + count_of(relaxed, "cast"), 0);
    assert_int_equal(count_of(relaxed, "rms_norm"), 1);
    arena_free(&scratch);
    arena_free(&a);
}

/* RMSNorm of PyTorch multiplies by the weight in f32 and rounds once: one norm, in any target. */
static void a_norm_that_rounds_after_its_weight(void **state)
{
    (void)state;
    static const char source[] =
        "input %x : bf16[3, 16]\nconst %n : bf16[16]\n%f = cast(%x) {dtype = \"f32\"}\n"
        "%p = map(%f) {expr = \"pow(x0, 2)\"}\n"
        "%m = reduce(%p) {axes = [1], keep = 1, kind = \"mean\"}\n"
        "%e = map(%m) {expr = \"x0 + 1e-05\"}\n%r = map(%e) {expr = \"rsqrt(x0)\"}\n"
        "%z = mul(%f, %r)\n%h = map(%z, %n) {expr = \"x0 * x1\", dtype = \"f32\"}\n"
        "%b = cast(%h) {dtype = \"bf16\"}\n%y = cast(%b) {dtype = \"f32\"}\noutput %y\n";
    arena a = {0};
    ir_graph *g = parse(&a, source), *after = recognise(&a, g, false);
    assert_int_equal(after->ops.n, 2); /* and the cast of the result */
    assert_int_equal(count_of(after, "rms_norm"), 1);
    /* both round a sum that they add in another order: by a place of bf16 at most */
    int64_t n, m;
    const float *one = evaluate(&a, g, &n), *two = evaluate(&a, after, &m);
    for (int64_t i = 0; i < n && n == m; i++)
        assert_true(fabsf(one[i] - two[i]) <= 0x1p-7f * fabsf(one[i]));
    assert_int_equal(n, m);
    g = parse_with(&a, source, "x0 * x1", "x0 + x1");
    assert_int_equal(count_of(recognise(&a, g, false), "map"), 1);
    arena_free(&a);
}

/* recognise as for a GPU of this many workers. */
static ir_graph *recognise_relaxed(arena *a, ir_graph *g, uint32_t n_workers)
{
    arena scratch = {0};
    pass_options options = {.n_workers = n_workers, .relaxed = true};
    check_ok(&cx, pass_recognise(&(pass_state){&cx, a, &scratch, &options}, &g));
    check_ok(&cx, ir_verify(&cx, g));
    arena_free(&scratch);
    return g;
}

/* Short rows by one column, for all workers: a sum of products; for few rows, long ones, ones that
 * lie apart or are partly alive the product stays. */
static void a_product_by_one_column_is_a_sum(void **state)
{
    (void)state;
    static const char source[] = "input %s : f32[2, 30, 16]\ninput %b : f32[2, 16, 1]\n"
                                 "%a = silu(%s)\n%p = batch_matmul(%a, %b)\n"
                                 "%y = silu(%p)\noutput %y\n";
    arena a = {0};
    ir_graph *g = parse(&a, source), *after = recognise_relaxed(&a, g, 60);
    assert_int_equal(count_of(after, "reduce"), 1);
    assert_int_equal(count_of(after, "batch_matmul"), 0);
    check_near(&a, g, after);
    assert_int_equal(count_of(recognise_relaxed(&a, g, 61), "batch_matmul"), 1);
    assert_int_equal(count_of(recognise(&a, g, false), "batch_matmul"), 1);
    g = parse_with(&a, source, "[2, 16, 1]\n%a = silu(%s)\n%p = batch_matmul(%a, %b)",
                   "[1, 16]\n%a = silu(%s)\n%p = batch_matmul(%a, %b) {transpose_b = 1}");
    after = recognise_relaxed(&a, g, 60);
    assert_int_equal(count_of(after, "reduce"), 1);
    assert_int_equal(count_of(after, "transpose"), 0);
    check_near(&a, g, after);
    g = parse_with(&a, source, "%b : f32[2, 16, 1]", "%b : f32[2, 16, 1] live=tokens");
    assert_int_equal(count_of(recognise_relaxed(&a, g, 60), "batch_matmul"), 1);
    g = parse_with(&a, source, "2, 16, 1", "2, 16, 3");
    assert_int_equal(count_of(recognise_relaxed(&a, g, 60), "batch_matmul"), 1);
    g = parse(&a, "input %s : f32[2, 16, 30]\ninput %b : f32[2, 16, 1]\n%t = transpose(%s) {perm = "
                  "[0, 2, 1]}\n%a = silu(%t)\n%p = batch_matmul(%a, %b)\noutput %p\n");
    assert_int_equal(count_of(recognise_relaxed(&a, g, 60), "batch_matmul"), 1);
    g = parse(&a, "input %a : f32[2, 30, 72]\ninput %b : f32[2, 72, 1]\n%p = batch_matmul(%a, "
                  "%b)\noutput %p\n");
    assert_int_equal(count_of(recognise_relaxed(&a, g, 60), "batch_matmul"), 1);
    arena_free(&a);
}

/* T5 casts x where it squares it, and multiplies x as it is. */
static void a_norm_that_casts_its_squares_alone(void **state)
{
    (void)state;
    static const char source[] =
        "input %x : bf16[3, 16]\nconst %n : bf16[16]\n%f = cast(%x) {dtype = \"f32\"}\n"
        "%p = map(%f) {expr = \"pow(x0, 2)\"}\n"
        "%m = reduce(%p) {axes = [1], keep = 1, kind = \"mean\"}\n"
        "%e = map(%m) {expr = \"x0 + 1e-05\"}\n%r = map(%e) {expr = \"rsqrt(x0)\"}\n"
        "%z = map(%x, %r) {expr = \"x0 * x1\", dtype = \"f32\"}\n"
        "%y = cast(%z) {dtype = \"f32\"}\noutput %y\n";
    arena a = {0};
    ir_graph *g = parse(&a, source), *after = recognise(&a, g, false);
    assert_int_equal(count_of(after, "rms_norm"), 1);
    assert_int_equal(count_of(after, "map") + count_of(after, "reduce"), 0);
    check_near(&a, g, after);
    ir_graph *other = parse_with(&a, source, "map(%x, %r)", "map(%p, %r)"),
             *kept = recognise(&a, other, false);
    assert_int_equal(count_of(kept, "rms_norm"), 0);
    arena_free(&a);
}

static const char by_rows[] =
    "input %q : f32[2, 3, 5, 8]\ninput %k : f32[2, 3, 7, 8]\ninput %v : f32[2, 3, 7, 4]\n"
    "%s = sdpa(%q, %k, %v, _) {causal = 1}\n%t = transpose(%s) {perm = [0, 2, 1, 3]}\n"
    "%r = reshape(%t) {shape = [10, 12]}\n%y = map(%r) {expr = \"x0 + 1\"}\noutput %y\n";

/* A transpose after attention vanishes, since attention can write [token, head] rows itself.
 * Another order of axes is not what it writes, and stays. */
static void attention_is_written_by_rows(void **state)
{
    (void)state;
    arena a = {0};
    ir_graph *g = parse(&a, by_rows), *after = fuse_for_gpu(&a, g);
    assert_int_equal(count_of(after, "transpose"), 0);
    check_near(&a, g, after);
    ir_graph *other = parse_with(&a, by_rows, "perm = [0, 2, 1, 3]", "perm = [0, 2, 3, 1]"),
             *kept = fuse_for_gpu(&a, other);
    assert_int_equal(count_of(kept, "transpose"), 1);
    check_near(&a, other, kept);
    arena_free(&a);
}

/* The reshape had to copy; after sdpa writes by rows it would be a view, which has no memory of its
 * own. */
static void an_output_still_owns_its_bytes(void **state)
{
    (void)state;
    arena a = {0};
    ir_graph *g = parse_with(&a, by_rows, "%y = map(%r) {expr = \"x0 + 1\"}\noutput %y",
                             "output %r"),
             *after = fuse_for_gpu(&a, g);
    assert_int_equal(count_of(after, "transpose"), 0);
    assert_int_equal(count_of(after, "copy"), 1);
    assert_int_equal(after->outputs.at[0], ir_find(after, "r"));
    assert_int_equal(after->tensors.at[after->outputs.at[0]].shares, IR_NONE);
    check_near(&a, g, after);
    arena_free(&a);
}

/* A norm in f32 whose result is rounded has the bits of a norm of the rounded tensor itself. */
static void a_norm_between_casts_keeps_its_bits(void **state)
{
    (void)state;
    static const char source[] =
        "input %x : bf16[3, 16]\nconst %n : f32[16]\n%f = cast(%x) {dtype = \"f32\"}\n"
        "%y = rms_norm(%f, %n)\n%z = cast(%y) {dtype = \"bf16\"}\noutput %z\n";
    arena a = {0};
    ir_graph *g = parse(&a, source), *after = recognise(&a, g, false);
    assert_int_equal(after->ops.n, 1);
    int64_t n, m;
    const void *x = evaluate(&a, g, &n), *y = evaluate(&a, after, &m);
    assert_memory_equal(x, y, (size_t)n * 2);
    g = parse_with(&a, source, "rms_norm(%f, %n)\n%z = cast(%y) {dtype = \"bf16\"}",
                   "rms_norm(%f, %n)\n%z = cast(%y) {dtype = \"f16\"}");
    assert_int_equal(count_of(recognise(&a, g, false), "cast"), 2);
    arena_free(&a);
}

static const char rotated[] =
    "input %x : bf16[1, 2, 3, 8]\ninput %c : bf16[1, 1, 3, 6]\ninput %s : bf16[1, 1, 3, 6]\n"
    "%r = slice(%x) {starts = [0, 0, 0, 0], stops = [1, 2, 3, 6]}\n"
    "%p = slice(%x) {starts = [0, 0, 0, 6], stops = [1, 2, 3, 8]}\n"
    "%l = slice(%r) {starts = [0, 0, 0, 0], stops = [1, 2, 3, 3]}\n"
    "%h = slice(%r) {starts = [0, 0, 0, 3], stops = [1, 2, 3, 6]}\n"
    "%m = map(%h) {expr = \"-x0\"}\n%t = concat(%m, %l) {axis = 3}\n"
    "%a = mul(%r, %c)\n%b = mul(%s, %t)\n%d = add(%a, %b)\n%y = concat(%d, %p) {axis = 3}\noutput "
    "%y\n";

static void check_same(arena *a, const ir_graph *one, const ir_graph *two)
{
    int64_t n, m;
    const void *x = evaluate(a, one, &n), *y = evaluate(a, two, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, (size_t)ir_bytes(&one->tensors.at[one->outputs.at[0]]));
}

/* Both halves of rotary embeddings become `rotate` with the same bits; what nearly matches
 * stays. */
static void rotation_keeps_its_bits(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"-x0", "-x0 * 2"},
        {"concat(%m, %l)", "concat(%l, %m)"},
        {"mul(%r, %c)", "mul(%t, %c)"},
        {"starts = [0, 0, 0, 3], stops = [1, 2, 3, 6]",
         "starts = [0, 0, 0, 2], stops = [1, 2, 3, 5]"},
        {"input %c : bf16[1, 1, 3, 6]", "input %c : bf16[1, 1, 3, 1]"}};
    arena a = {0};
    ir_graph *g = parse(&a, rotated), *after = recognise(&a, g, false);
    assert_int_equal(count_of(after, "rotate"), 1);
    assert_int_equal(after->ops.n, 1);
    check_same(&a, g, after);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        g = parse_with(&a, rotated, changes[i][0], changes[i][1]);
        after = recognise(&a, g, false);
        assert_int_equal(count_of(after, "rotate"), 0);
        check_same(&a, g, after);
    }
    /* x has entries that the result has not */
    g = parse_with(&a, rotated, "bf16[1, 2, 3, 8]", "bf16[1, 2, 3, 10]");
    check_same(&a, g, recognise(&a, g, false));
    arena_free(&a);
}

static const char grouped[] =
    "input %q : f32[1, 4, 3, 8]\ninput %k : f32[1, 2, 5, 8]\ninput %v : f32[1, 2, 5, 8]\n"
    "%k5 = reshape(%k) {shape = [1, 2, 1, 5, 8]}\n%ke = expand(%k5) {shape = [1, 2, 2, 5, 8]}\n"
    "%kr = reshape(%ke) {shape = [1, 4, 5, 8]}\n"
    "%v5 = reshape(%v) {shape = [1, 2, 1, 5, 8]}\n%ve = expand(%v5) {shape = [1, 2, 2, 5, 8]}\n"
    "%vr = reshape(%ve) {shape = [1, 4, 5, 8]}\n%y = sdpa(%q, %kr, %vr, _) {causal = 1}\noutput "
    "%y\n";

/* Heads that are expanded for attention need no copies: the operator reads each KV head for all
 * of its query heads. Heads in another order do. */
static void repeated_heads_are_read_once(void **state)
{
    (void)state;
    arena a = {0};
    ir_graph *g = parse(&a, grouped), *after = recognise(&a, g, false);
    assert_int_equal(count_of(after, "expand"), 0);
    check_same(&a, g, after);
    g = parse_with(
        &a, grouped, "%y = sdpa(%q, %kr, %vr, _)",
        "%vs = reshape(%v) {shape = [1, 1, 2, 5, 8]}\n%vt = expand(%vs) {shape = [1, 2, 2, 5, 8]}\n"
        "%vu = reshape(%vt) {shape = [1, 4, 5, 8]}\n%y = sdpa(%q, %kr, %vu, _)");
    after = recognise(&a, g, false);
    assert_int_equal(count_of(after, "expand"), 2);
    check_same(&a, g, after);
    arena_free(&a);
}

/* 0 + x is x as long as x is. */
/* What goes row by row over a reshaped matrix goes over the matrix; what does not stays. */
static void rows_of_a_matrix_stay_flat(void **state)
{
    (void)state;
    static const char source[] =
        "input %x : f32[6, 16]\nconst %n : f32[16]\nconst %b : f32[16]\n"
        "%r = reshape(%x) {shape = [2, 3, 16]}\n%l = layer_norm(%r, %n, %b)\n"
        "%s = silu(%l)\n%y = reshape(%s) {shape = [6, 16]}\n%z = silu(%y)\noutput %z\n";
    static const struct {
        const char *by;
        size_t reshapes;
    } rows[] = {{"layer_norm(%r, %n, %b)", 0},
                {"rms_norm(%r, %n)", 0},
                {"mul(%r, %n)", 0},
                {"softmax(%r) {axis = 1}", 2},
                {"softmax(%r) {axis = 0}", 2}};
    arena a = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ir_graph *g = parse_with(&a, source, "layer_norm(%r, %n, %b)", rows[i].by);
        const ir_graph *after = recognise(&a, g, false);
        if (count_of(after, "reshape") != rows[i].reshapes)
            fail_msg("%s: %zu reshapes", rows[i].by, count_of(after, "reshape"));
        check_same(&a, g, after);
    }
    arena_free(&a);
}

/* A layer_norm of three axes is one of rows, where its x lies by rows. */
static void a_layer_norm_is_of_rows(void **state)
{
    (void)state;
    static const char source[] =
        "input %x : f32[2, 3, 16]\nconst %n : f32[16]\nconst %b : f32[16]\n"
        "%l = layer_norm(%x, %n, %b)\n%y = reshape(%l) {shape = [6, 16]}\n"
        "%z = silu(%y)\noutput %z\n";
    static const struct {
        const char *by;
        uint32_t rank;
    } rows[] = {{"%l = layer_norm(%x, %n, %b)", 2},
                {"%h = silu(%x)\n%l = layer_norm(%h, %n, _)", 2},
                {"%h = reshape(%x) {shape = [3, 2, 16]}\n%t = transpose(%h) {perm = [1, 0, 2]}\n"
                 "%l = layer_norm(%t, %n, %b)",
                 3}};
    arena a = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ir_graph *g = parse_with(&a, source, "%l = layer_norm(%x, %n, %b)", rows[i].by);
        const ir_graph *after = recognise(&a, g, false);
        for (size_t o = 0; o < after->ops.n; o++)
            if (strcmp(after->ops.at[o].def->name, "layer_norm") == 0)
                assert_int_equal(after->tensors.at[after->ops.at[o].in[0]].rank, rows[i].rank);
        check_same(&a, g, after);
    }
    arena_free(&a);
}

/* Counts a state up in place; before that, zero is added to it. */
#define COUNTED(dtype)                                                                            \
    "state %x : " dtype "[4]\ninput %u : " dtype "[4]\n%s = map(%x) {expr = \"0 + x0\", dtype = " \
    "\"" dtype "\"}\n%y = map(%s) {expr = \"x0 + 3\", dtype = \"" dtype "\"}\n"                   \
    "%w = slice_scatter(%x, %u) {starts = [0], stops = [4], in_place = 1}\noutput %y\n"

/* Zero added to an integer is the integer; of a float it makes -0 another number.  A copy that is
 * read after the state has changed stays. */
static void nothing_added_is_nothing_done(void **state)
{
    (void)state;
    arena a = {0};
    assert_int_equal(count_of(recognise(&a, parse(&a, COUNTED("i64")), false), "map"), 1);
    assert_int_equal(count_of(recognise(&a, parse(&a, COUNTED("i32")), false), "map"), 1);
    assert_int_equal(count_of(recognise(&a, parse(&a, COUNTED("f32")), false), "map"), 2);
    static const char after[] =
        "in_place = 1}\n%z = map(%s) {expr = \"-x0\", dtype = \"i64\"}\noutput %z";
    ir_graph *g = parse_with(&a, COUNTED("i64"), "in_place = 1}", after);
    assert_int_equal(count_of(recognise(&a, g, false), "map"), 3);
    arena_free(&a);
}

static const char copied[] =
    "input %x : f32[6, 4]\n%s = softmax(%x)\n%v = reshape(%s) {shape = [2, 3, 4]}\n"
    "%y = copy(%v)\noutput %y\n";

/* A copy into a slice vanishes if its source can be made there, and stays where the order of
 * axes, the shape or another reader forbids it. */
static void a_result_is_written_where_its_copy_would_be(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"%y = copy(%v)", "%t = transpose(%v) {perm = [1, 0, 2]}\n%y = copy(%t)"},
        {"%y = copy(%v)", "%t = slice(%v) {starts = [0, 0, 0], stops = [1, 3, 4]}\n%y = copy(%t)"},
        {"reshape(%s)", "reshape(%x)"},
        {"%y = copy(%v)", "%o = map(%x) {expr = \"0 * x0\"}\n%y = copy(%v)\n%w = slice_scatter(%s, "
                          "%o) {starts = [0, "
                          "0], stops = [6, 4], in_place = 1}\noutput %w"},
        {"%y = copy(%v)", "%y = copy(%v)\n%z = copy(%v)\noutput %z"}};
    arena a = {0};
    ir_graph *g = parse(&a, copied), *after = recognise(&a, g, false);
    assert_int_equal(count_of(after, "copy"), 0);
    assert_int_equal(after->outputs.at[0], ir_find(after, "y"));
    check_same(&a, g, after);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        g = parse_with(&a, copied, changes[i][0], changes[i][1]);
        after = recognise(&a, g, false);
        assert_int_equal(count_of(after, "copy"), 1);
        check_same(&a, g, after);
    }
    arena_free(&a);
}

/* In each program a pattern's first operator reads state, and the state is overwritten before its
 * last: one operator in that place would read the new bytes.  ir_verify refuses such a read; the
 * numbers differ as well. */
static void what_was_overwritten_is_not_read_later(void **state)
{
    (void)state;
    static const char *const programs[] = {
        "state %x : f32[4, 8]\ninput %z : f32[1, 8]\nconst %w : f32[8]\n%n = rms_norm(%x)\n"
        "%o = slice_scatter(%x, %z) {starts = [0, 0], stops = [1, 8], in_place = 1}\n"
        "%y = mul(%n, %w)\noutput %y\n",
        "state %x : bf16[4, 8]\ninput %z : bf16[1, 8]\nconst %w : f32[8]\n"
        "%c = cast(%x) {dtype = \"f32\"}\n%n = rms_norm(%c, %w)\n"
        "%o = slice_scatter(%x, %z) {starts = [0, 0], stops = [1, 8], in_place = 1}\n"
        "%y = cast(%n) {dtype = \"bf16\"}\n%f = cast(%y) {dtype = \"f32\"}\noutput %f\n",
        "state %x : f32[3, 17]\ninput %z : f32[1, 17]\n%h = map(%x) {expr = \"x0 * 0.5\"}\n"
        "%c = map(%x) {expr = \"pow(x0, 3.0)\"}\n%s = map(%c) {expr = \"x0 * 0.044715\"}\n"
        "%t = add(%x, %s)\n"
        "%o = slice_scatter(%x, %z) {starts = [0, 0], stops = [1, 17], in_place = 1}\n"
        "%u = map(%t) {expr = \"x0 * 0.7978845608028654\"}\n%v = map(%u) {expr = \"tanh(x0)\"}\n"
        "%w = map(%v) {expr = \"x0 + 1.0\"}\n%y = mul(%h, %w)\noutput %y\n",
        "state %x : f32[1, 2, 3, 8]\ninput %z : f32[1, 2, 1, 8]\ninput %c : f32[1, 1, 3, 8]\n"
        "input %s : f32[1, 1, 3, 8]\n"
        "%l = slice(%x) {starts = [0, 0, 0, 0], stops = [1, 2, 3, 4]}\n"
        "%h = slice(%x) {starts = [0, 0, 0, 4], stops = [1, 2, 3, 8]}\n"
        "%m = map(%h) {expr = \"-x0\"}\n%t = concat(%m, %l) {axis = 3}\n%a = mul(%x, %c)\n"
        "%b = mul(%s, %t)\n%o = slice_scatter(%x, %z) "
        "{starts = [0, 0, 0, 0], stops = [1, 2, 1, 8], in_place = 1}\n"
        "%y = add(%a, %b)\noutput %y\n",
        "state %k : f32[1, 2, 1, 6, 8]\ninput %q : f32[1, 4, 3, 8]\ninput %z : f32[1, 2, 1, 1, 8]\n"
        "%e = expand(%k) {shape = [1, 2, 2, 6, 8]}\n%r = reshape(%e) {shape = [1, 4, 6, 8]}\n"
        "%o = slice_scatter(%k, %z) "
        "{starts = [0, 0, 0, 0, 0], stops = [1, 2, 1, 1, 8], in_place = 1}\n"
        "%y = sdpa(%q, %r, %r, _)\noutput %y\n",
        "state %v : f32[5, 7]\ninput %z : f32[1, 7]\n"
        "%l = reduce(%v) {axes = [1], keep = 1, kind = \"max\"}\n"
        "%m = map(%l) {expr = \"abs(x0)\"}\n"
        "%i = map(%m) {expr = \"x0 == inf\", dtype = \"bool\"}\n"
        "%b = map(%i, %l) {expr = \"where(x0, 0.0, x1)\"}\n%c = reshape(%b) {shape = [5]}\n"
        "%d = map(%v, %b) {expr = \"x0 - x1\"}\n"
        "%o = slice_scatter(%v, %z) {starts = [0, 0], stops = [1, 7], in_place = 1}\n"
        "%e = map(%d) {expr = \"exp(x0)\"}\n"
        "%s = reduce(%e) {axes = [1]}\n%g = map(%s) {expr = \"log(x0)\"}\n"
        "%y = add(%g, %c)\noutput %y\n",
        "state %x : f32[3, 8]\ninput %p : f32[3, 8]\ninput %r : f32[3, 8]\ninput %z : f32[1, 8]\n"
        "%s = add_parts(%x, %p)\n"
        "%o = slice_scatter(%x, %z) {starts = [0, 0], stops = [1, 8], in_place = 1}\n"
        "%y = add(%s, %r)\noutput %y\n",
    };
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        arena a = {0};
        ir_graph *g = parse(&a, programs[i]);
        check_near(&a, g, recognise(&a, g, true));
        check_near(&a, g, fuse_for_gpu(&a, g));
        arena_free(&a);
    }
}

/* ---- rule softmax ---- */

/* A random program of attention: its text, and the number n of the last result, %tn.  Sizes:
 * batch entries, heads, rows, keys, entries of a query and of a value. */
typedef struct drawn {
    text t;
    unsigned n, batch, heads, rows, keys, width, values;
    uint64_t seed, asked;
} drawn;

static unsigned draw(drawn *d, unsigned n)
{
    return (unsigned)(rng_u64(d->seed, d->asked++) % n);
}

/* Add the operator that makes the next result. */
static void step(drawn *d, const char *format, ...)
{
    char line[256];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    text_print(&d->t, "%%t%u = %s\n", ++d->n, line);
}

/* The last result as matrices of so many rows and columns: with an axis for batch entries and one
 * for heads, or one for both, or three. */
static void shape(drawn *d, unsigned axes, unsigned rows, unsigned columns)
{
    if (axes == 1)
        step(d, "reshape(%%t%u) {shape = [%u, %u, %u]}", d->n, d->batch * d->heads, rows, columns);
    else
        step(d, "reshape(%%t%u) {shape = [%s%u, %u, %u, %u]}", d->n, axes == 3 ? "1, " : "",
             d->batch, d->heads, rows, columns);
}

/* Scores plus a mask that is the same for all rows, batch entries, heads, or for none of them;
 * any axes of the two may stand on either side, and one of f32 makes the sum a map. */
static void add_mask(drawn *d)
{
    static const unsigned axes_of[] = {2, 2, 2, 2, 3, 1};
    const unsigned kind = draw(d, 6), mixed = draw(d, 2), axes = axes_of[kind];
    shape(d, axes, d->rows, d->keys);
    const unsigned batch = kind > 1 ? d->batch : 1;
    const unsigned heads = kind > 2 ? 1 : d->heads;
    const unsigned rows = kind > 3 ? 1 : d->rows;
    const char *dtype = mixed ? "f32" : "f16";
    const char *before = axes == 3 ? "1, " : "";
    text_print(&d->t, "input %%mask : %s[", dtype);
    if (kind == 5)
        text_print(&d->t, "%u, %u, ", d->batch * d->heads, d->rows);
    else if (kind)
        text_print(&d->t, "%s%u, %u, %u, ", before, batch, heads, rows);
    text_print(&d->t, "%u]\n", d->keys);
    const char *end = mixed ? " {expr = \"x0 + x1\", dtype = \"f16\"}" : "",
               *kinds = mixed ? "map" : "add";
    if (draw(d, 2))
        step(d, "%s(%%t%u, %%mask)%s", kinds, d->n, end);
    else
        step(d, "%s(%%mask, %%t%u)%s", kinds, d->n, end);
}

/* Weights of the scores that were made last, in f16 or in f32. */
static void add_softmax(drawn *d)
{
    const unsigned axes = 1 + draw(d, 2);
    const bool wide = draw(d, 2);
    shape(d, axes, d->rows, d->keys);
    if (wide)
        step(d, "cast(%%t%u) {dtype = \"f32\"}", d->n);
    step(d, "softmax(%%t%u) {axis = %u}", d->n, axes + 1);
    if (wide)
        step(d, "cast(%%t%u) {dtype = \"f16\"}", d->n);
}

/* Add a product by a number, or nothing. */
static void add_scale(drawn *d, bool wanted)
{
    if (wanted)
        step(d, "map(%%t%u) {expr = \"x0 * 0.4375\"}", d->n);
}

/* Attention as models write it: a scale before the product, after it, or none; with a mask or
 * without; batch and heads as two axes or joined in one; random sizes. */
static const char *random_attention(drawn *d)
{
    const unsigned scaled = draw(d, 3), axes = 1 + draw(d, 2);
    d->batch = 1 + draw(d, 3), d->heads = 1 + draw(d, 3), d->rows = 1 + draw(d, 9);
    d->keys = 1 + draw(d, 9), d->width = 1 + draw(d, 12), d->values = 1 + draw(d, 12);
    text_print(&d->t, "input %%t1 : f16[%u, %u, %u, %u]\ninput %%k : f16[%u, %u, %u, %u]\n",
               d->batch, d->heads, d->rows, d->width, d->batch, d->heads, d->keys, d->width);
    text_print(&d->t, "input %%v : f16[%u, %u, %u, %u]\n", d->batch, d->heads, d->keys, d->values);
    d->n = 1;
    add_scale(d, scaled == 1);
    shape(d, axes, d->rows, d->width);
    const unsigned q = d->n;
    step(d, "transpose(%%k) {perm = [0, 1, 3, 2]}");
    shape(d, axes, d->width, d->keys);
    step(d, "batch_matmul(%%t%u, %%t%u)", q, d->n);
    add_scale(d, scaled == 2);
    if (draw(d, 4))
        add_mask(d);
    add_softmax(d);
    shape(d, axes, d->rows, d->keys);
    const unsigned weights = d->n;
    step(d, "transpose(%%v) {perm = [0, 1, 2, 3]}");
    shape(d, axes, d->keys, d->values);
    step(d, "batch_matmul(%%t%u, %%t%u)", weights, d->n);
    shape(d, 2, d->rows, d->values);
    text_print(&d->t, "%%y = cast(%%t%u) {dtype = \"f32\"}\noutput %%y\n", d->n);
    return d->t.at;
}

/* Programs whose scores and weights are rounded to f16 differ from those that round neither by so
 * much of a value. */
static void check_nearly(arena *a, const ir_graph *one, const ir_graph *two)
{
    int64_t n, m;
    const float *x = evaluate(a, one, &n), *y = evaluate(a, two, &m);
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++)
        assert_true(fabsf(x[i] - y[i]) <= 0.03f * (1 + fabsf(x[i])));
}

/* Random groups that are attention become `sdpa`, with results that agree within rounding. */
static void softmax_between_products_is_attention(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 200; i++) {
        arena a = {0};
        drawn d = {.seed = base_seed + i};
        ir_graph *g = parse(&a, random_attention(&d)), *after = fuse_for_gpu(&a, g);
        assert_int_equal(count_of(after, "sdpa"), 1);
        assert_int_equal(count_of(after, "softmax") + count_of(after, "batch_matmul"), 0);
        check_nearly(&a, g, after);
        text_free(&d.t);
        arena_free(&a);
    }
}

static const char attention[] =
    "input %q : f16[2, 3, 5, 8]\ninput %k : f16[2, 3, 7, 8]\ninput %v : f16[2, 3, 7, 4]\n"
    "input %m : f16[5, 7]\n%t = transpose(%k) {perm = [0, 1, 3, 2]}\n"
    "%s = batch_matmul(%q, %t)\n%a = add(%s, %m)\n%p = softmax(%a) {axis = 3}\n"
    "%z = batch_matmul(%p, %v)\n%y = cast(%z) {dtype = \"f32\"}\noutput %y\n";

/* Softmax over another axis, a weight that is also an output, a mask that is multiplied or of f64:
 * the products stay.  Without a mask they do not, nor where queries have been other matrices, or
 * numbers that no sdpa takes. */
static void what_is_nearly_attention_stays(void **state)
{
    (void)state;
    static const struct {
        const char *was, *becomes;
        size_t n;
    } changes[] = {
        {"axis = 3", "axis = 2", 0},
        {"output %y", "output %y\noutput %p", 0},
        {"add(%s, %m)", "mul(%s, %m)", 0},
        {"%a = add(%s, %m)",
         "%w = cast(%m) {dtype = \"f64\"}\n"
         "%a = map(%s, %w) {expr = \"x0 + x1\", dtype = \"f16\"}",
         0},
        {"%p = softmax(%a)", "%b = mul(%a, %m)\n%p = softmax(%b)", 0},
        {"softmax(%a)", "softmax(%s)", 1},
        {"input %q : f16[2, 3, 5, 8]",
         "input %o : f16[2, 6, 5, 4]\n%q = reshape(%o) {shape = [2, 3, 5, 8]}", 1},
        {"input %q : f16[2, 3, 5, 8]",
         "input %o : f16[2, 1, 15, 8]\n%q = reshape(%o) {shape = [2, 3, 5, 8]}", 1},
        {"input %q : f16[2, 3, 5, 8]",
         "input %o : f64[2, 3, 5, 8]\n%q = cast(%o) {dtype = \"f16\"}", 1},
    };
    arena a = {0};
    ir_graph *g = parse(&a, attention);
    assert_int_equal(count_of(recognise(&a, g, true), "sdpa"), 0); /* it would round less */
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        ir_graph *other = parse_with(&a, attention, changes[i].was, changes[i].becomes),
                 *after = fuse_for_gpu(&a, other);
        check_nearly(&a, other, after);
        assert_int_equal(count_of(after, "sdpa"), changes[i].n);
    }
    arena_free(&a);
}

/* Queries of one head, whose scale is applied before they get an axis for it. */
static void a_single_head_may_be_a_matrix(void **state)
{
    (void)state;
    arena a = {0};
    ir_graph *g = parse(&a, "input %q : f16[5, 8]\ninput %k : f16[1, 7, 8]\n"
                            "input %v : f16[1, 7, 4]\n%b = map(%q) {expr = \"x0 * 0.4375\"}\n"
                            "%r = reshape(%b) {shape = [1, 5, 8]}\n"
                            "%t = transpose(%k) {perm = [0, 2, 1]}\n%s = batch_matmul(%r, %t)\n"
                            "%p = softmax(%s) {axis = 2}\n%z = batch_matmul(%p, %v)\n"
                            "%y = cast(%z) {dtype = \"f32\"}\noutput %y\n"),
             *after = fuse_for_gpu(&a, g);
    assert_int_equal(count_of(after, "sdpa"), 1);
    assert_int_equal(count_of(after, "map"), 0);
    check_nearly(&a, g, after);
    arena_free(&a);
}

/* A chain of reshapes that ends in its first shape is dropped, so that the residual can join the
 * product. */
static void reshapes_that_lead_back_are_nothing(void **state)
{
    (void)state;
    static const char there[] =
        "input %x : f32[6, 8]\nconst %w : f32[8, 8]\n%l = linear(%x, %w)\n"
        "%a = reshape(%l) {shape = [2, 3, 8]}\n%b = reshape(%a) {shape = [1, 2, 3, 8]}\n"
        "%c = reshape(%b) {shape = [6, 8]}\n%y = add(%x, %c)\noutput %y\n";
    arena a = {0};
    ir_graph *g = parse(&a, there), *after = recognise(&a, g, true);
    assert_int_equal(count_of(after, "reshape") + count_of(after, "add"), 0);
    check_near(&a, g, after);
    g = parse_with(&a, there, "shape = [6, 8]}\n%y = add(%x, %c)",
                   "shape = [3, 16]}\n%y = map(%c) {expr = \"x0 + 1\"}");
    after = recognise(&a, g, true);
    assert_int_equal(count_of(after, "reshape"), 3);
    check_near(&a, g, after);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_of_small_operators_becomes_three_linears),
        cmocka_unit_test(squares_however_written),
        cmocka_unit_test(what_is_nearly_a_norm_stays),
        cmocka_unit_test(low_precision_keeps_its_roundings),
        cmocka_unit_test(a_norm_that_rounds_after_its_weight),
        cmocka_unit_test(a_norm_that_casts_its_squares_alone),
        cmocka_unit_test(a_product_by_one_column_is_a_sum),
        cmocka_unit_test(means_of_columns_are_no_norm),
        cmocka_unit_test(attention_is_written_by_rows),
        cmocka_unit_test(an_output_still_owns_its_bytes),
        cmocka_unit_test(rows_of_a_matrix_stay_flat),
        cmocka_unit_test(a_layer_norm_is_of_rows),
        cmocka_unit_test(softmax_between_products_is_attention),
        cmocka_unit_test(what_is_nearly_attention_stays),
        cmocka_unit_test(a_single_head_may_be_a_matrix),
        cmocka_unit_test(a_norm_between_casts_keeps_its_bits),
        cmocka_unit_test(what_was_overwritten_is_not_read_later),
        cmocka_unit_test(rotation_keeps_its_bits),
        cmocka_unit_test(repeated_heads_are_read_once),
        cmocka_unit_test(reshapes_that_lead_back_are_nothing),
        cmocka_unit_test(nothing_added_is_nothing_done),
        cmocka_unit_test(a_result_is_written_where_its_copy_would_be),
    };
    base_seed = check_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
