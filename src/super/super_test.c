/* super_test.c - search and proof of block programs: what is chosen is right, deterministic and
 * fits; wrong programs of every kind are refused. */
#include "check.h"

#include <math.h>

#include "base/rng.h"
#include "super/field.h"
#include "super/super.h"

static mpk_context cx;
static uint64_t base_seed, used;

static uint64_t draw(uint64_t limit)
{
    return rng_u64(base_seed, used++) % limit;
}

/* ---- fields ---- */

static void test_fields(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        const field a = field_random(base_seed, (uint64_t)round),
                    b = field_random(base_seed + 1, (uint64_t)round);
        const uint32_t root = field_power(a.p, 2, FIELD_P);
        assert_int_equal(field_multiply(a, field_inverse(a)).p, 1);
        assert_int_equal(field_multiply(a, field_inverse(a)).q, 1);
        assert_int_equal(field_exp(field_add(a, b), root).p,
                         field_multiply(field_exp(a, root), field_exp(b, root)).p);
    }
    assert_int_equal(field_add(field_of(0.375), field_of(0.625)).p, 1);
    assert_int_equal(field_multiply(field_of(-1.5), field_of(-4)).q, 6);
    assert_int_equal(field_exp(field_of(-INFINITY), 4).p, 0);
}

/* ---- products ---- */

/* b's columns lie as [columns, depth] if `transposed`. */
static super_product product_of(int64_t rows, int64_t columns, int64_t depth, ir_dtype dtype,
                                bool transposed)
{
    return (super_product){.rows = rows,
                           .columns = columns,
                           .depth = depth,
                           .n_b = 1,
                           .a = {.name = "a", .dtype = dtype, .stride = {depth, 0, 1}},
                           .b = {{.name = "b",
                                  .dtype = dtype,
                                  .stride = {0, transposed ? depth : 1, transposed ? 1 : columns}}},
                           .y = {.name = "y", .dtype = dtype, .stride = {columns, 1, 0}},
                           .box_rows = rows,
                           .box_columns = columns,
                           .boxes = 1};
}

/* A bias and a residual after the product. */
static void add_more(super_product *s)
{
    s->n_more = 2;
    s->more[0] = (block_operand){.name = "bias", .dtype = IR_F32, .stride = {0, 1, 0}};
    s->more[1] = (block_operand){.name = "residual", .dtype = IR_F32, .stride = {s->columns, 1, 0}};
    s->expression = "tanh(x0 + x1) * 0.5 + x2";
}

static void choose(const super_product *s, super_choice *out)
{
    block_program region;
    check_ok(&cx, super_choose_product(&cx, s, &super_target_usual, out));
    assert_int_equal(out->n_refused, 0);
    assert_true(out->n_fitting > 20);
    assert_true(block_scratch_bytes(&out->program) <= super_target_usual.scratch_bytes);
    super_region_of_product(s, &region);
    for (uint64_t i = 0; i < 2; i++)
        check_ok(&cx, super_prove(&cx, &region, &out->program, draw(UINT64_MAX)));
}

static void test_choices(void **state)
{
    (void)state;
    static const ir_dtype dtypes[] = {IR_F16, IR_BF16, IR_F32};
    for (int round = 0; round < 12; round++) {
        super_choice first, again;
        text one = {0}, two = {0};
        super_product s = product_of(1 + (int64_t)draw(200), 1 + (int64_t)draw(200),
                                     1 + (int64_t)draw(300), dtypes[draw(3)], draw(2));
        if (draw(2))
            add_more(&s);
        choose(&s, &first);
        check_ok(&cx, super_choose_product(&cx, &s, &super_target_usual, &again));
        block_print(&first.program, &one);
        block_print(&again.program, &two);
        assert_string_equal(one.at, two.at);
        if (getenv("MPK_VERBOSE"))
            print_message("%lld x %lld x %lld, %u candidates:\n%s", (long long)s.rows,
                          (long long)s.columns, (long long)s.depth, first.n_fitting, one.at);
        text_free(&one);
        text_free(&two);
    }
}

/* Two factors after one load of a: a gate. */
static void test_gate(void **state)
{
    super_choice choice;
    (void)state;
    super_product s = product_of(70, 90, 100, IR_BF16, true);
    s.n_b = 2;
    s.b[1] = s.b[0];
    s.b[1].name = "c";
    s.expression = "x0 * sigmoid(x0) * x1";
    choose(&s, &choice);
}

/* A convolution: 3 x 5 windows, and as a wrong program the same with other padding, or columns of
 * another row. */
static void test_windows(void **state)
{
    static const ir_dtype dtypes[] = {IR_F16, IR_F32};
    (void)state;
    for (int round = 0; round < 6; round++) {
        super_choice choice;
        block_program region, wrong;
        const int channels = 1 + (int)draw(20), width = 9 + (int)draw(9), out = width - 2;
        const int64_t places = 11 * out, rows = 1 + (int64_t)draw(40), depth = channels * 15;
        const block_window window = {.out = {1, 11, out},
                                     .in = {1, 11, width},
                                     .kernel = {1, 3, 5},
                                     .stride = {1, 1, 1},
                                     .padding = {0, 1, 1},
                                     .dilation = {1, 1, 1},
                                     .step = {0, width, 1},
                                     .channel_step = 11 * width};
        block_window other = window;
        super_product s = product_of(rows, places, depth, dtypes[draw(2)], true);
        s.b[0] = (block_operand){
            .name = "b", .dtype = s.a.dtype, .stride = {0, 1, 2}, .window = &window};
        choose(&s, &choice);
        super_region_of_product(&s, &region);
        wrong = choice.program;
        other.padding[1 + draw(2)] = 0;
        wrong.operands[1].window = &other;
        assert_int_equal(super_prove(&cx, &region, &wrong, draw(UINT64_MAX)), MPK_EVERIFY);
    }
}

/* A tile of the first factor of a product. */
static block_tile *factor_of(block_program *p)
{
    return &p->tiles[0];
}

/* A wrong program of this region is refused, by a rule or by what it stores. */
static void refuse(const block_program *region, const block_program *wrong)
{
    assert_int_equal(super_prove(&cx, region, wrong, draw(UINT64_MAX)), MPK_EVERIFY);
}

/* A convolution of an image with channels last: its windows are kept as patches.  Wrong are patches
 * with too few pixels or copies, iterations in the order of the entries, runs of other lengths, and
 * windows of another stride. */
static void test_patches(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++) {
        super_choice choice;
        block_program region, wrong;
        const int channels = 64 * (1 + (int)draw(3)), width = 12 + (int)draw(9);
        const block_window window = {.out = {1, 14, width},
                                     .in = {1, 14, width},
                                     .kernel = {1, 3, 3},
                                     .stride = {1, 1, 1},
                                     .padding = {0, 1, 1},
                                     .dilation = {1, 1, 1},
                                     .step = {0, width * channels, channels},
                                     .channel_step = 1,
                                     .channels = channels};
        block_window other = window;
        super_product s = product_of(14 * width, 32, channels * 9, IR_BF16, true);
        s.a =
            (block_operand){.name = "a", .dtype = IR_BF16, .stride = {1, 0, 2}, .window = &window};
        choose(&s, &choice);
        super_region_of_product(&s, &region);
        assert_int_equal(factor_of(&choice.program)->patch,
                         block_patch_of(&window, choice.program.axes[SUPER_M].tile));
        wrong = choice.program;
        factor_of(&wrong)->patch--;
        refuse(&region, &wrong);
        wrong = choice.program;
        factor_of(&wrong)->stages = 1;
        refuse(&region, &wrong);
        wrong = choice.program;
        wrong.axes[SUPER_K].run = 0;
        refuse(&region, &wrong);
        wrong = choice.program;
        wrong.axes[SUPER_K].run *= 3;
        refuse(&region, &wrong);
        wrong = choice.program;
        other.dilation[1 + draw(2)] = 2;
        wrong.operands[0].window = &other;
        refuse(&region, &wrong);
        wrong = choice.program;
        wrong.operands[1].stride[SUPER_K]++;
        refuse(&region, &wrong);
    }
}

/* Choices and max after a product: both sides of a choice count, wherever an operand is read. */
static void test_ends(void **state)
{
    static const char *const ends[] = {"max(x0 * x1 + x2, 0)", "where(x0 * x1 <= x2, 0.0, x0)",
                                       "t0 = x0 + x1; where(t0 <= 0, 0.0, t0 * x2)"};
    (void)state;
    for (int round = 0; round < 9; round++) {
        super_choice choice;
        block_program region, wrong;
        super_product s =
            product_of(20 + (int64_t)draw(60), 20 + (int64_t)draw(60), 40, IR_BF16, draw(2));
        s.expression = ends[round % 3];
        s.n_more = 2;
        s.more[0] = (block_operand){.name = "line", .dtype = IR_F32, .stride = {1, 0, 0}};
        s.more[1] = (block_operand){.name = "r", .dtype = IR_BF16, .stride = {s.columns, 1, 0}};
        choose(&s, &choice);
        super_region_of_product(&s, &region);
        wrong = choice.program;
        wrong.operands[2 + draw(2)].stride[SUPER_M]++;
        assert_int_equal(super_prove(&cx, &region, &wrong, draw(UINT64_MAX)), MPK_EVERIFY);
        wrong = choice.program;
        wrong.operands[draw(2)].stride[SUPER_K]++;
        assert_int_equal(super_prove(&cx, &region, &wrong, draw(UINT64_MAX)), MPK_EVERIFY);
    }
}

/* What follows a convolution: its value with the bias, rounded, then choices, of which both sides
 * count. */
static void test_made(void **state)
{
    static const char *const ends[] = {"t0 = bf16((x0 - x1) * x2); max(bf16(t0 + x3), 0)",
                                       "where((x0 - x1) * x2 <= x3, 0.0, x0)",
                                       "t0 = x0 * x1 + x2; where(t0 <= 0, 0.0, t0 + x3)"};
    (void)state;
    for (int round = 0; round < 6; round++) {
        super_choice choice;
        block_program region, wrong;
        super_product s =
            product_of(20 + (int64_t)draw(60), 20 + (int64_t)draw(60), 40, IR_BF16, draw(2));
        s.made = "bf16(x0 + x1)";
        s.n_made = 1;
        s.expression = ends[draw(3)];
        s.n_more = 4;
        for (uint32_t i = 0; i < 3; i++)
            s.more[i] = (block_operand){.name = "line", .dtype = IR_F32, .stride = {1, 0, 0}};
        s.more[3] = (block_operand){.name = "r", .dtype = IR_BF16, .stride = {s.columns, 1, 0}};
        choose(&s, &choice);
        super_region_of_product(&s, &region);
        wrong = choice.program;
        wrong.operands[2 + draw(4)].stride[SUPER_M]++;
        assert_int_equal(super_prove(&cx, &region, &wrong, draw(UINT64_MAX)), MPK_EVERIFY);
    }
}

/* ---- attention ---- */

static super_attention attention_of(int64_t rows, int64_t keys, int64_t width, bool causal,
                                    int64_t window, int mask)
{
    super_attention s = {
        .rows = rows,
        .keys = keys,
        .width = width,
        .values = width,
        .causal = causal,
        .window = window,
        .has_mask = mask > 0,
        .q = {.name = "q", .dtype = IR_F16, .stride = {width, 0, 1, 0}},
        .k = {.name = "k", .dtype = IR_F16, .stride = {0, width, 1, 0}},
        .v = {.name = "v", .dtype = IR_F16, .stride = {0, width, 0, 1}},
        .y = {.name = "y", .dtype = IR_F16, .stride = {width, 0, 0, 1}},
        .mask = {.name = "mask", .dtype = mask == 1 ? IR_BOOL : IR_F32, .stride = {keys, 1, 0, 0}},
        .scores = mask == 1   ? "where(x1 != 0, x0 * 0.125, (-inf))"
                  : mask == 2 ? "x0 * 0.125 + x1"
                              : "x0 * 0.125",
        .weights = mask ? NULL : "exp(x0 * 0.125 - x1)",
        .scaled = mask ? NULL : "x0 * 0.125",
        .apart = mask ? NULL : "exp((x0 - x1) * 0.125)",
        .box_rows = 16,
        .boxes = 1};
    return s;
}

static void choose_attention(const super_attention *s, super_choice *out)
{
    block_program region;
    check_ok(&cx, super_choose_attention(&cx, s, &super_target_usual, out));
    assert_int_equal(out->n_refused, 0);
    super_region_of_attention(s, &region);
    check_ok(&cx, super_prove(&cx, &region, &out->program, draw(UINT64_MAX)));
}

static void test_attention(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        super_choice choice;
        text words = {0};
        const super_attention s =
            attention_of(1 + (int64_t)draw(90), 1 + (int64_t)draw(400), 1 + (int64_t)draw(100),
                         draw(2), draw(2) * 50, (int)draw(3));
        choose_attention(&s, &choice);
        block_print(&choice.program, &words);
        if (getenv("MPK_VERBOSE"))
            print_message("%lld x %lld x %lld:\n%s", (long long)s.rows, (long long)s.keys,
                          (long long)s.width, words.at);
        text_free(&words);
    }
}

/* ---- wrong programs ---- */

static block_step *find_step(block_program *p, block_verb verb)
{
    for (uint32_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].verb == verb)
            return &p->steps[i];
    fail_msg("the program has no such step");
    return NULL;
}

/* Every planted fault below is one that a wrong recipe could make; the proof or the rules must
 * refuse each of them. */
static void drop_step(block_program *p, block_verb verb)
{
    block_step *s = find_step(p, verb);
    memmove(s, s + 1, (size_t)(p->steps + p->n_steps - (s + 1)) * sizeof *s);
    p->n_steps--;
}

static void transpose_index(block_program *p)
{
    int64_t *stride = p->operands[1].stride, kept = stride[SUPER_N];
    stride[SUPER_N] = stride[SUPER_K];
    stride[SUPER_K] = kept;
}
static void forget_fill(block_program *p)
{
    drop_step(p, BLOCK_FILL);
}
static void forget_wait(block_program *p)
{
    drop_step(p, BLOCK_WAIT);
}
static void wait_too_little(block_program *p)
{
    find_step(p, BLOCK_WAIT)->pending++;
}
static void forget_sync(block_program *p)
{
    drop_step(p, BLOCK_SYNC);
}
static void forget_map(block_program *p)
{
    drop_step(p, BLOCK_MAP);
}
static void sum_in_shared(block_program *p)
{
    p->tiles[find_step(p, BLOCK_FILL)->to].space = BLOCK_SHARED;
}
static void store_a_part(block_program *p)
{
    find_step(p, BLOCK_MAP)->from[0] = find_step(p, BLOCK_ADD)->from[0];
}
static void take_other_bias(block_program *p)
{
    int8_t *from = find_step(p, BLOCK_MAP)->from, kept = from[1];
    from[1] = from[2];
    from[2] = kept;
}
static void one_copy_less(block_program *p)
{
    p->tiles[0].stages--;
}
static void other_order(block_program *p)
{
    find_step(p, BLOCK_MAP)->expression = "tanh(x0) * 0.5 + x1 + x2";
}
static void other_layout(block_program *p)
{
    p->tiles[0].layout = BLOCK_SWIZZLED;
    p->axes[SUPER_K].tile = 48;
}
static void odd_warps(block_program *p)
{
    p->warps[0] = 3;
}

static void test_wrong_programs(void **state)
{
    static const struct {
        const char *what;
        void (*plant)(block_program *p);
    } faults[] = {{"a transposed index", transpose_index},
                  {"sums that begin with anything", forget_fill},
                  {"no wait for loads", forget_wait},
                  {"a wait that lets too much be under way", wait_too_little},
                  {"no barrier before copies are used again", forget_sync},
                  {"no map", forget_map},
                  {"a sum in shared memory", sum_in_shared},
                  {"a partial sum taken for the whole", store_a_part},
                  {"sources exchanged", take_other_bias},
                  {"a copy too few", one_copy_less},
                  {"a function at another place", other_order},
                  {"a row that cannot be swizzled", other_layout},
                  {"warps that do not divide", odd_warps}};
    (void)state;
    super_product s = product_of(40, 150, 500, IR_F16, true);
    s.box_rows = 16;
    s.box_columns = 16;
    add_more(&s);
    super_choice choice;
    block_program region;
    choose(&s, &choice);
    assert_true(choice.program.warps[2] > 1); /* else there are no parts to add */
    super_region_of_product(&s, &region);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        block_program wrong = choice.program;
        faults[i].plant(&wrong);
        if (super_prove(&cx, &region, &wrong, draw(UINT64_MAX)) != MPK_EVERIFY)
            fail_msg("a program with %s is taken for right", faults[i].what);
    }
}

/* The map with this expression, number `which` of them. */
static block_step *find_map(block_program *p, const char *expression, int which)
{
    for (uint32_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].expression && strcmp(p->steps[i].expression, expression) == 0 &&
            which-- == 0)
            return &p->steps[i];
    fail_msg("the program has no such map");
    return NULL;
}

static void forget_rescale(block_program *p)
{
    find_map(p, "x0 * x1", 0)->expression = "x0";
}
static void forget_rescaled_total(block_program *p)
{
    find_map(p, "x0 * x1 + x2", 0)->expression = "x0 + x2";
}
static void forget_share(block_program *p)
{
    find_map(p, "x0 * x1", 2)->expression = "x0";
}
static void keep_old_largest(block_program *p)
{
    find_map(p, "x0", 0)->from[0] = find_map(p, "x0", 0)->to;
}
static void forget_tail(block_program *p)
{
    drop_step(p, BLOCK_BOUND);
}
static void other_values(block_program *p)
{
    p->operands[2].stride[1] = 1;
    p->operands[2].stride[3] = p->operands[1].stride[1];
}
static void sum_before_weights(block_program *p)
{
    block_step *total = find_step(p, BLOCK_TOTAL), kept = *total;
    *total = total[-1];
    total[-1] = kept;
}

/* A planted fault. */
typedef struct fault {
    const char *what;
    void (*plant)(block_program *p);
} fault;

/* The program that is chosen is taken for right, and each wrong one is refused. */
static void check_refused(const super_attention *s, const block_program *right, const fault *faults,
                          size_t n)
{
    block_program region;
    super_region_of_attention(s, &region);
    check_ok(&cx, super_prove(&cx, &region, right, draw(UINT64_MAX)));
    for (size_t i = 0; i < n; i++) {
        block_program wrong = *right;
        faults[i].plant(&wrong);
        if (super_prove(&cx, &region, &wrong, draw(UINT64_MAX)) != MPK_EVERIFY)
            fail_msg("a program with %s is taken for right", faults[i].what);
    }
}

static void test_wrong_attention(void **state)
{
    static const fault faults[] = {{"a missing rescale of the sums", forget_rescale},
                                   {"a missing rescale of the total", forget_rescaled_total},
                                   {"parts that are not brought to one largest", forget_share},
                                   {"a largest that is not kept", keep_old_largest},
                                   {"a tail that counts", forget_tail},
                                   {"transposed values", other_values},
                                   {"a total of scores", sum_before_weights},
                                   {"no wait for loads", forget_wait},
                                   {"no barrier before copies are used again", forget_sync}};
    (void)state;
    super_choice choice;
    const super_attention s = attention_of(40, 300, 64, false, 0, 0);
    choose_attention(&s, &choice);
    assert_true(choice.program.warps[2] > 1);
    check_refused(&s, &choice.program, faults, sizeof faults / sizeof *faults);
}

/* ---- products of warpgroups ---- */

static void forget_rescaled_sums(block_program *p)
{
    find_map(p, "x0 * x1", 1)->expression = "x0";
}
static void forget_total_of_groups(block_program *p)
{
    find_map(p, "x0 * x1", 0)->expression = "x0";
}
/* The late product of a program by warpgroups. */
static block_step *find_late(block_program *p)
{
    block_step *s = find_step(p, BLOCK_MULTIPLY);
    while (!s->is_late)
        s++;
    return s;
}
static void values_at_once(block_program *p)
{
    find_late(p)->is_late = false;
}
static void late_scores(block_program *p)
{
    find_step(p, BLOCK_MULTIPLY)->is_late = true;
}
static void weights_too_early(block_program *p)
{
    block_step *late = find_late(p), kept = *late, *s = late;
    for (; s[1].verb != BLOCK_END || s[2].verb == BLOCK_MAP; s++)
        *s = s[1];
    *s = kept; /* behind this iteration's weights */
}
static void forget_no_growth(block_program *p)
{
    block_step *s = find_step(p, BLOCK_GROWN) - 1;
    assert_int_equal(s->verb, BLOCK_FILL);
    s->number = 2;
}
/* Step `which` of a verb among those that follow `grown`. */
static block_step *find_grown(block_program *p, block_verb verb, int which)
{
    block_step *s = find_step(p, BLOCK_GROWN);
    while (s->verb != verb || which-- > 0)
        s++;
    return s;
}
static void forget_weights_of_growth(block_program *p)
{
    block_step *s = find_grown(p, BLOCK_TOTAL, 0) - 1;
    s->expression = "x0";
    s->from[0] = s->to;
    s->n_from = 1;
}
static void forget_total_of_growth(block_program *p)
{
    block_step *s = find_grown(p, BLOCK_TOTAL, 0);
    memmove(s, s + 1, (size_t)(p->steps + p->n_steps - (s + 1)) * sizeof *s);
    p->n_steps--;
}
static void forget_base_of_growth(block_program *p)
{
    block_step *s = find_grown(p, BLOCK_TOTAL, 0) - 2;
    s->expression = "x0";
    s->from[0] = s->to;
}
/* The line of the lanes' totals; then the step that adds them up. */
static block_tile *find_lanes(block_program *p)
{
    for (uint32_t i = 0; i < p->n_tiles; i++)
        if (strcmp(p->tiles[i].name, "total") == 0)
            return &p->tiles[i];
    fail_msg("the program has no totals");
    return NULL;
}
static void total_of_one_lane(block_program *p)
{
    block_tile *t = find_lanes(p);
    t->is_by_lane = false;
    t->parts = 1;
}
static void total_by_warp(block_program *p)
{
    find_lanes(p)->parts = 2;
}
static void division_by_a_lane(block_program *p)
{
    block_step *s = find_map(p, "where(x0 == 0, 0.0, 1.0 / x0)", 0);
    s->from[0] = (int8_t)(find_lanes(p) - p->tiles);
}
static void begin_with_one(block_program *p)
{
    const int8_t sums = find_late(p)->to;
    block_step *s = p->steps;
    while (s->verb != BLOCK_FILL || s->to != sums)
        s++;
    s->number = 1;
}
static void fewer_copies_of_keys(block_program *p)
{
    p->tiles[1].stages--;
}
static void fewer_copies_of_values(block_program *p)
{
    p->tiles[2].stages--;
}
static void forget_turn(block_program *p)
{
    drop_step(p, BLOCK_TURN);
    drop_step(p, BLOCK_PASS);
}
static void forget_pass(block_program *p)
{
    drop_step(p, BLOCK_PASS);
}
static void wait_longer(block_program *p)
{
    find_step(p, BLOCK_TURN)->pending++;
}
static void padded_keys(block_program *p)
{
    p->tiles[1].layout = BLOCK_PADDED;
}
static void other_rows(block_program *p)
{
    p->axes[0].tile = 256;
}
/* The candidate by warpgroups, and that it is chosen where there are some and rows are many. */
static void test_groups(void **state)
{
    static const fault faults[] = {
        {"a missing rescale of the sums", forget_rescaled_sums},
        {"a missing rescale of the total", forget_total_of_groups},
        {"a rescale where nothing grew", forget_no_growth},
        {"weights that stay where scores grew", forget_weights_of_growth},
        {"a total of weights that were made again", forget_total_of_growth},
        {"a base that does not follow the largest", forget_base_of_growth},
        {"lanes' totals in a line of whole rows", total_of_one_lane},
        {"lanes' totals in two parts", total_by_warp},
        {"a division by the total of a lane", division_by_a_lane},
        {"a largest that is not kept", keep_old_largest},
        {"a tail that counts", forget_tail},
        {"transposed values", other_values},
        {"values of this iteration in place of the last", values_at_once},
        {"scores of the last iteration", late_scores},
        {"weights of this iteration in place of the last", weights_too_early},
        {"sums that begin with one", begin_with_one},
        {"too few copies of keys", fewer_copies_of_keys},
        {"too few copies of values", fewer_copies_of_values},
        {"no turns", forget_turn},
        {"turns that never end", forget_pass},
        {"a wait that lets too much be under way", wait_longer},
        {"no barrier before copies are used again", forget_sync},
        {"keys that lie as no warpgroup reads them", padded_keys},
        {"more rows than warpgroups multiply", other_rows}};
    (void)state;
    super_choice choice;
    for (int i = 0; i < 6; i++) {
        const int mask = i / 2;
        const bool causal = draw(2), few = i % 2;
        const int64_t keys = few ? 201 + (int64_t)draw(56) : 257 + (int64_t)draw(180);
        super_attention s = attention_of(300 + (int64_t)draw(90), keys, 40 + 8 * (int64_t)draw(4),
                                         causal, draw(2) * 50, mask);
        s.box_rows = s.rows;
        s.group_bytes = few ? 88 << 10 : 104 << 10; /* a turn more is loaded ahead of many keys */
        choose_attention(&s, &choice);
        assert_true(choice.program.by_groups);
        s.group_bytes--;
        choose_attention(&s, &choice);
        assert_false(choice.program.by_groups);
        s.group_bytes = UINT32_MAX;
        s.values = 33; /* copies would bring a piece in part */
        choose_attention(&s, &choice);
        assert_false(choice.program.by_groups);
    }
    super_attention s = attention_of(200, 400, 64, false, 0, 0); /* the sync at its end counts */
    s.box_rows = s.rows;
    s.group_bytes = UINT32_MAX;
    choose_attention(&s, &choice);
    check_refused(&s, &choice.program, faults, sizeof faults / sizeof *faults);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),    cmocka_unit_test(test_choices),
        cmocka_unit_test(test_gate),      cmocka_unit_test(test_wrong_programs),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_wrong_attention),
        cmocka_unit_test(test_groups),    cmocka_unit_test(test_windows),
        cmocka_unit_test(test_patches),   cmocka_unit_test(test_ends),
        cmocka_unit_test(test_made)};
    base_seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
