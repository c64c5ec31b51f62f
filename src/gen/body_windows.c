/* body_windows.c - generic bodies of operators over windows of spatial axes
 * (device/task/windows.cuh).
 *
 * Convolution, pooling and resampling of images of one to three axes.  Attributes may be shorter
 * than the axes; what is left out has the operator's default.  An instance of a convolution of
 * images by a kernel of 3 x 3:
 *
 *   constexpr conv_how how = {{{1, 1}}, {{1, 1}}, {{1, 1}}, 1, false, false};
 *   conv_run(t, in_x, in_w, in_bias, out_y, how); */
#include <math.h>

#include "op/pool.h"

#include "gen/body_print.h"

/* The number that attribute `list` has for spatial axis i; an empty list leaves all at
 * `otherwise`. */
static int64_t number(const gen_call *c, uint32_t list, uint32_t i, int64_t otherwise)
{
    const ir_attribute *a = &c->op->attributes[list];
    return i < a->ints.n ? a->ints.at[i] : otherwise;
}

/* "{{1, 2}}": a number for each spatial axis; those that are not given are `otherwise`. */
static void print_numbers(const gen_call *c, uint32_t attribute, int64_t otherwise, text *out)
{
    text_print(out, "{{");
    gen_print_list(c, attribute, gen_input(c, 0)->rank - 2, otherwise, out);
    text_print(out, "}}");
}

/* What follows a convolution, as a loop of map over the result in its place: a thread has the same
 * entries as before, so it needs no barrier.  x0 of the expression is the result itself. */
static mpk_status print_end(mpk_context *cx, const gen_call *c, str expression, text *out)
{
    enum { MORE = 3 };
    static const char *const names[] = {"out_y",    "in_more0", "in_more1", "in_more2", "in_more3",
                                        "in_more4", "in_more5", "in_more6", "in_more7", "in_more8"};
    ir_dtype dtypes[sizeof names / sizeof *names] = {gen_output(c, 0)->dtype};
    map_program p;
    uint32_t n = 1;
    for (; n < sizeof names / sizeof *names && gen_input(c, MORE + n - 1); n++)
        dtypes[n] = gen_input(c, MORE + n - 1)->dtype;
    TRY(map_compile(cx, expression, n, dtypes, &p));
    gen_print_map_loop(c, &p, names, out);
    return MPK_OK;
}

/* Does conv_planes_run do it: groups of one channel, as depthwise convolutions have, whose sums
 * need no more than fp32 (where x is short, w and bias are, too), and whose offsets fit an int? */
static bool goes_by_planes(const gen_call *c, bool transposed)
{
    enum { X, W, PADDING = 1, DILATION, MOST_ENTRIES = 64 };
    const ir_tensor *x = gen_input(c, X), *w = gen_input(c, W);
    const uint32_t floats = 1u << IR_F32 | 1u << IR_F16 | 1u << IR_BF16; /* a bit a dtype */
    int64_t entries = 1;
    double reach = 0; /* elements from a plane's first to the farthest that a window names */
    for (uint32_t i = 2; i < x->rank; i++) {
        entries *= w->dims[i];
        const double away = (double)number(c, PADDING, i - 2, 0) +
                            (double)w->dims[i] * (double)number(c, DILATION, i - 2, 1);
        reach += ((double)x->dims[i] + away) * fabs((double)x->stride[i]);
    }
    return !transposed && w->dims[1] == 1 && entries <= MOST_ENTRIES && reach < INT32_MAX &&
           (floats >> x->dtype & 1);
}

/* stride, padding and dilation are the first three attributes; what a list lacks is 1, of padding
 * 0. */
static mpk_status print_conv(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    enum { STRIDE, PADDING, DILATION, GROUPS, TRANSPOSED, EXPR = 6, LAST };
    const ir_attribute *a = c->op->attributes;
    gen_print_head(c, n, out);
    text_print(out, "    constexpr conv_how how = {");
    for (uint32_t i = STRIDE; i <= DILATION; i++) {
        print_numbers(c, i, i != PADDING, out);
        text_print(out, ", ");
    }
    text_print(out, "%lld, %s, %s};\n", (long long)a[GROUPS].i, str_bool(a[TRANSPOSED].i),
               str_bool(a[LAST].i));
    text_print(out, "    conv_%s(t, in_x, in_w, in_bias, out_y, how);\n",
               goes_by_planes(c, a[TRANSPOSED].i) ? "planes_run" : "run");
    if (a[EXPR].s.n)
        TRY(print_end(cx, c, a[EXPR].s, out));
    text_print(out, "}\n");
    return MPK_OK;
}

/* The head, the windows, and a call whose arguments go on.  Without a stride windows lie side by
 * side: the stride is the kernel.  An output size instead of windows means adaptive pooling. */
static void print_pool(const gen_call *c, uint32_t n, const char *function, text *out)
{
    const ir_attribute *kernel = &c->op->attributes[POOL_KERNEL],
                       *stride = &c->op->attributes[POOL_STRIDE];
    gen_print_head(c, n, out);
    text_print(out, "    constexpr pool_how how = {");
    print_numbers(c, POOL_KERNEL, 1, out);
    text_print(out, ", ");
    print_numbers(c, stride->ints.n || !kernel->ints.n ? POOL_STRIDE : POOL_KERNEL, 1, out);
    text_print(out, ", ");
    print_numbers(c, POOL_PADDING, 0, out);
    text_print(out, ", ");
    print_numbers(c, POOL_DILATION, 1, out);
    text_print(out, ", ");
    print_numbers(c, POOL_OUTPUT, 1, out);
    text_print(out, ", %s};\n", str_bool(c->op->attributes[POOL_OUTPUT].ints.n));
    gen_print_call(c, function, out);
    text_print(out, ", how");
}

/* Values and where they were, two results of one call. */
static mpk_status print_max_pool(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_pool(c, n, "max_pool_run", out);
    text_print(out, ");\n}\n");
    return MPK_OK;
}

/* Whether padding counts in the mean, and what is divided by instead of the count; 0: the count. */
static mpk_status print_avg_pool(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    enum { INCLUDE = POOL_ATTRIBUTES, DIVISOR };
    (void)cx;
    print_pool(c, n, "avg_pool_run", out);
    text_print(out, ", %s, %lld);\n}\n", str_bool(c->op->attributes[INCLUDE].i),
               (long long)c->op->attributes[DIVISOR].i);
    return MPK_OK;
}

/* Entries of x for one of the result, as the record defines it: rounded to fp32 but for f64. */
static double ratio_of(const gen_call *c, uint32_t i, bool aligned)
{
    enum { SCALE = 3 };
    const ir_tensor *x = gen_input(c, 0);
    if (i + 2 >= x->rank)
        return 1;
    double scale = c->op->attributes[SCALE + i].f, size = (double)gen_output(c, 0)->dims[i + 2];
    double ratio;
    if (aligned)
        ratio = size > 1 ? (double)(x->dims[i + 2] - 1) / (size - 1) : 0;
    else
        ratio = scale > 0 ? 1 / scale : (double)x->dims[i + 2] / size;
    return x->dtype == IR_F64 ? ratio : (double)(float)ratio;
}

/* What follows UPSAMPLE_ for the attribute `mode`. */
static const char *upsample_name(str mode)
{
    if (str_is(mode, "nearest"))
        return "NEAREST";
    if (str_is(mode, "nearest_exact"))
        return "NEAREST_EXACT";
    return str_is(mode, "linear") ? "LINEAR" : "CUBIC";
}

/* The ratios of three axes, however many there are: 1 for those that are missing. */
static mpk_status print_upsample(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    enum { MODE = 1, ALIGN };
    (void)cx;
    const ir_attribute *a = c->op->attributes;
    bool nearest = str_is(a[MODE].s, "nearest"), exact = str_is(a[MODE].s, "nearest_exact");
    bool align = a[ALIGN].i != 0;
    gen_print_head(c, n, out);
    gen_print_call(c, "upsample_run", out);
    text_print(out, ", UPSAMPLE_%s, %s", upsample_name(a[MODE].s), str_bool(align));
    for (uint32_t i = 0; i < 3; i++) {
        text_print(out, ", ");
        gen_print_double(ratio_of(c, i, align && !nearest && !exact), out);
    }
    text_print(out, ");\n}\n");
    return MPK_OK;
}

const gen_body gen_body_conv = GEN_BODY("conv", "windows", print_conv, NULL);
const gen_body gen_body_max_pool = GEN_BODY("max_pool", "windows", print_max_pool, NULL);
const gen_body gen_body_avg_pool = GEN_BODY("avg_pool", "windows", print_avg_pool, NULL);
const gen_body gen_body_upsample = GEN_BODY("upsample", "windows", print_upsample, NULL);
