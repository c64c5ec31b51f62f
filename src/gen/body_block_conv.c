/* body_block_conv.c - convolutions of f32, f16 and bf16 as block programs: for each group the
 * product of its filters with the windows of its channels (src/super, device/task/block.cuh,
 * docs/superoptimizer.md).  Any stride, padding, dilation and layout of x; transposed ones and
 * groups of few filters run by windows.cuh. */
#include "gen/block_print.h"

#include <stdio.h>

#include "gen/body_print.h"
#include "gen/choices.h"

enum { X, W, BIAS, MORE, MOST_MORE = 9 };
enum { STRIDE, PADDING, DILATION, GROUPS, TRANSPOSED, OUTPUT_PADDING, EXPR };
/* Fewer leave most of a tile empty: a thread for each entry of the result is as fast. */
enum { FEWEST_FILTERS = 4, FEWEST_ENTRIES = 16 };

/* A list may be shorter than the spatial axes; `otherwise` is the operator's default. */
static int number(const gen_call *c, uint32_t list, uint32_t i, int otherwise)
{
    const ir_attribute *a = &c->op->attributes[list];
    return i < a->ints.n ? (int)a->ints.at[i] : otherwise;
}

/* Filters of a group. */
static int64_t filters_of(const gen_call *c)
{
    return gen_input(c, W)->dims[0] / c->op->attributes[GROUPS].i;
}

/* Entries of axes `first` to the last. */
static int64_t count_from(const ir_tensor *t, uint32_t first)
{
    int64_t n = 1;
    for (uint32_t i = first; i < t->rank; i++)
        n *= t->dims[i];
    return n;
}

/* Do axes `first` to the last count as one axis with one stride? */
static bool are_neighbours(const ir_tensor *t, uint32_t first)
{
    int64_t step = t->stride[t->rank - 1];
    for (uint32_t i = t->rank; i-- > first; step *= t->dims[i])
        if (t->dims[i] > 1 && t->stride[i] != step)
            return false;
    return true;
}

/* Windows always have BLOCK_WINDOW_AXES axes; an image of fewer has leading ones of a single
 * place. */
static void fill_window(const gen_call *c, block_window *w)
{
    const ir_tensor *x = gen_input(c, X), *y = gen_output(c, 0);
    const uint32_t missing = BLOCK_WINDOW_AXES + 2 - x->rank;
    *w = (block_window){.channel_step = (int)x->stride[1]};
    for (uint32_t i = 0; i < BLOCK_WINDOW_AXES; i++) {
        const bool there = i >= missing;
        const uint32_t axis = i - missing;
        w->out[i] = there ? (int)y->dims[axis + 2] : 1;
        w->in[i] = there ? (int)x->dims[axis + 2] : 1;
        w->kernel[i] = there ? (int)gen_input(c, W)->dims[axis + 2] : 1;
        w->stride[i] = there ? number(c, STRIDE, axis, 1) : 1;
        w->padding[i] = there ? number(c, PADDING, axis, 0) : 0;
        w->dilation[i] = there ? number(c, DILATION, axis, 1) : 1;
        w->step[i] = there ? (int)x->stride[axis + 2] : 0;
    }
}

/* Do offsets within an image's windows fit into an int, wherever padding begins? */
static bool is_small(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X);
    double reach = (double)x->dims[1] * (double)x->stride[1];
    for (uint32_t i = 0; i + 2 < x->rank; i++) {
        const double span =
            (double)number(c, DILATION, i, 1) * (double)gen_input(c, W)->dims[i + 2];
        const double last = (double)x->dims[i + 2] + number(c, PADDING, i, 0) + span;
        reach += last * (double)(x->stride[i + 2] > 0 ? x->stride[i + 2] : 1);
    }
    return reach < INT32_MAX && (double)count_from(gen_output(c, 0), 2) < INT32_MAX;
}

/* A task's box may hold parts of several groups; `boxes` counts the products that come of it, of
 * which the largest has box_rows filters. */
static void fill_box(const gen_call *c, super_product *s)
{
    const ir_tensor *y = gen_output(c, 0);
    const ir_box box = c->box ? *c->box : ir_box_whole(y);
    const int64_t filters = box.hi[1] - box.lo[1];
    s->boxes = (box.hi[0] - box.lo[0]) * ((filters + s->rows - 1) / s->rows);
    s->box_rows = filters < s->rows ? filters : s->rows;
    s->box_columns = 1;
    for (uint32_t i = 2; i < y->rank; i++)
        s->box_columns *= box.hi[i] - box.lo[i];
}

/* A kernel of one entry that goes over every place: then the second factor is x as it lies. */
static bool is_pointwise(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X);
    bool plain = are_neighbours(x, 2);
    for (uint32_t i = 0; i + 2 < x->rank && plain; i++)
        plain = gen_input(c, W)->dims[i + 2] == 1 && number(c, STRIDE, i, 1) == 1 &&
                number(c, PADDING, i, 0) == 0;
    return plain;
}

/* The stride of an operand along an axis of the result, 0 where it is spread. */
static int64_t stride_along(const gen_call *c, const ir_tensor *t, uint32_t axis)
{
    const uint32_t missing = gen_output(c, 0)->rank - t->rank;
    return axis < missing || t->dims[axis - missing] == 1 ? 0 : t->stride[axis - missing];
}

/* Has it one entry for all places? */
static bool is_spread(const gen_call *c, const ir_tensor *t)
{
    bool spread = true;
    for (uint32_t axis = 2; axis < gen_output(c, 0)->rank; axis++)
        spread = spread && !stride_along(c, t, axis);
    return spread;
}

/* Or one for each, which are neighbours? */
static bool is_regular(const gen_call *c, const ir_tensor *t)
{
    const ir_tensor *y = gen_output(c, 0);
    bool whole = t->rank == y->rank;
    for (uint32_t axis = 2; axis < y->rank && whole; axis++)
        whole = t->dims[axis] == y->dims[axis];
    return is_spread(c, t) || (whole && are_neighbours(t, 2));
}

/* What the convolution itself gives is rounded as its result would be. */
static const char *rounded(const gen_call *c, bool has_bias)
{
    static const char *const texts[][2] = {
        {"x0", "x0 + x1"}, {"f16(x0)", "f16(x0 + x1)"}, {"bf16(x0)", "bf16(x0 + x1)"}};
    const ir_dtype dtype = gen_output(c, 0)->dtype;
    if (dtype == IR_F32)
        return texts[0][has_bias];
    return texts[dtype == IR_F16 ? 1 : 2][has_bias];
}

/* Rows are the filters of a group, columns places; window: of the second factor, NULL where it has
 * strides. */
static super_product product_of(const gen_call *c, const block_window *window)
{
    const ir_tensor *x = gen_input(c, X), *w = gen_input(c, W), *bias = gen_input(c, BIAS),
                    *y = gen_output(c, 0);
    super_product s = {.rows = filters_of(c),
                       .columns = count_from(y, 2),
                       .depth = count_from(w, 1),
                       .n_b = 1,
                       .a = {.name = "in_w", .dtype = w->dtype},
                       .b = {{.name = "in_x", .dtype = x->dtype, .window = window}},
                       .y = {.name = "out_y", .dtype = y->dtype}};
    s.a.stride[SUPER_M] = s.depth;
    s.a.stride[SUPER_K] = 1;
    s.b[0].stride[SUPER_N] = window ? 1 : x->stride[x->rank - 1];
    s.b[0].stride[SUPER_K] = window ? 2 : x->stride[1];
    s.y.stride[SUPER_M] = y->stride[1];
    s.y.stride[SUPER_N] = y->stride[y->rank - 1];
    if (bias) {
        s.more[s.n_more] = (block_operand){.name = "in_bias", .dtype = bias->dtype};
        s.more[s.n_more++].stride[SUPER_M] = bias->stride[0];
        s.expression = "x0 + x1";
    }
    fill_box(c, &s);
    return s;
}

/* What follows the convolution, and its operands. */
static mpk_status add_end(mpk_context *cx, const gen_call *c, super_product *s)
{
    static const char *const names[MOST_MORE] = {"in_more0", "in_more1", "in_more2",
                                                 "in_more3", "in_more4", "in_more5",
                                                 "in_more6", "in_more7", "in_more8"};
    const str expr = c->op->attributes[EXPR].s;
    if (!expr.n)
        return MPK_OK;
    s->made = rounded(c, s->n_more);
    s->n_made = s->n_more;
    s->expression = arena_copy(c->arena, expr.at, expr.n);
    CHECK(cx, s->expression, MPK_ENOMEM, "out of memory for what follows a convolution");
    for (uint32_t i = 0; i < MOST_MORE && gen_input(c, MORE + i); i++) {
        const ir_tensor *t = gen_input(c, MORE + i);
        block_operand o = {.name = names[i], .dtype = t->dtype};
        o.stride[SUPER_M] = stride_along(c, t, 1);
        o.stride[SUPER_N] = is_spread(c, t) ? 0 : t->stride[t->rank - 1];
        s->more[s->n_more++] = o;
    }
    return MPK_OK;
}

static bool accepts_more(const gen_call *c)
{
    bool regular = true;
    for (uint32_t i = 0; i < MOST_MORE && gen_input(c, MORE + i); i++)
        regular = regular && is_regular(c, gen_input(c, MORE + i));
    return regular;
}

/* A group with enough filters and depth to fill tiles, offsets that fit an int, and filters that
 * lie one after the other.  Operands of what follows have one entry for all places, or one for
 * each. */
static bool accepts(const gen_call *c)
{
    const super_product s = product_of(c, NULL);
    return gen_accepts_plain(c) && !c->op->attributes[TRANSPOSED].i && super_accepts_product(&s) &&
           is_small(c) && s.rows >= FEWEST_FILTERS && s.depth >= FEWEST_ENTRIES &&
           gen_input(c, W)->stride[0] == s.depth &&
           gen_input(c, W)->stride[gen_input(c, W)->rank - 1] == 1 &&
           are_neighbours(gen_input(c, W), 1) && are_neighbours(gen_output(c, 0), 2) &&
           accepts_more(c);
}

/* The window outlives the call, since the chosen program points to it. */
static mpk_status choose(mpk_context *cx, const gen_call *c, const super_choice **out)
{
    block_window *window = NULL;
    if (!is_pointwise(c)) {
        NEW(cx, c->arena, window, 1);
        fill_window(c, window);
    }
    super_product s = product_of(c, window);
    TRY(add_end(cx, c, &s));
    return gen_choose_product(cx, c->arena, c->choices, &s, out);
}

/* Print has chosen already: the answer is there. */
static uint32_t scratch_bytes(const gen_call *c)
{
    mpk_context quiet = {0};
    const super_choice *chosen;
    return choose(&quiet, c, &chosen) == MPK_OK ? block_scratch_bytes(&chosen->program) : 0;
}

/* "g_NAME": where the program's operand begins, `at` entries after the tensor's first. */
static void print_pointer(const char *name, const char *at, text *out)
{
    text_print(out, "        %schar *g_%s = mpk_data(t, %s) + (%s) * mpk_dtype_bytes(%s.dtype);\n",
               strcmp(name, "out_y") == 0 ? "" : "const ", name, name, at, name);
}

/* Where an image's entries of a group begin. */
static void print_more(const gen_call *c, text *out)
{
    for (uint32_t i = 0; i < MOST_MORE && gen_input(c, MORE + i); i++) {
        const ir_tensor *t = gen_input(c, MORE + i);
        char name[16], at[64];
        snprintf(name, sizeof name, "in_more%u", i);
        snprintf(at, sizeof at, "at[0] * %lldll + first * %lldll", (long long)stride_along(c, t, 0),
                 (long long)stride_along(c, t, 1));
        print_pointer(name, at, out);
    }
}

/* A loop over images and groups of the box; within one, the program's rows are the filters m_lo to
 * m_hi of the group, its columns a run of places n_lo to n_hi. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const super_choice *chosen;
    const uint32_t rank = gen_output(c, 0)->rank;
    TRY(choose(cx, c, &chosen));
    const block_program *p = &chosen->program;
    gen_print_head(c, n, out);
    gen_print_note(c->choices, chosen, out);
    text_print(
        out,
        "    const rt_i64 filters = %lld, k_lo = 0, k_hi = %lld;\n    mpk_box box = mpk_box_of(t, "
        "%u);\n"
        "    const rt_i64 filter_lo = box.lo[1], filter_hi = box.hi[1];\n"
        "    const rt_i64 run = block_places(out_y, filters, &box);\n"
        "    for (rt_u64 i = 0; i < mpk_count(box, %u); i++) {\n"
        "        rt_i64 at[RT_MAX_RANK];\n        mpk_place(box, %u, i, at);\n"
        "        const rt_i64 first = at[1] * filters, n_lo = block_place(out_y, at), n_hi = n_lo "
        "+ run;\n"
        "        const rt_i64 m_lo = filter_lo > first ? filter_lo - first : 0;\n"
        "        const rt_i64 m_hi = filter_hi - first < filters ? filter_hi - first : filters;\n",
        (long long)p->axes[SUPER_M].extent, (long long)p->axes[SUPER_K].extent, rank, rank, rank);
    print_pointer("in_x", "at[0] * in_x.stride[0] + at[1] * in_w.dims[1] * in_x.stride[1]", out);
    print_pointer("in_w", "first * in_w.stride[0]", out);
    if (gen_input(c, BIAS))
        print_pointer("in_bias", "first * in_bias.stride[0]", out);
    print_more(c, out);
    print_pointer("out_y", "at[0] * out_y.stride[0] + first * out_y.stride[1]", out);
    TRY(gen_print_block(cx, p, out));
    text_print(out, "    }\n}\n");
    return MPK_OK;
}

const gen_body gen_body_block_conv = {.op = "conv",
                                      .name = "block",
                                      .rank = 5,
                                      .accepts = accepts,
                                      .print = print,
                                      .scratch_bytes = scratch_bytes};
