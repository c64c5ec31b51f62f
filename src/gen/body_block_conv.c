/* body_block_conv.c - convolutions of f32, f16 and bf16 as block programs: for each group the
 * product of its filters with the windows of its channels (src/super, device/task/block.cuh,
 * docs/superoptimizer.md).  With `last` the product is transposed: its rows are places, its columns
 * filters.  Any stride, padding, dilation and layout of x is taken; transposed convolutions and
 * groups of few filters run by windows.cuh.  A body waits for its event itself, once it knows what
 * it has to do: its code and arithmetic up to there take 1 to 2 us.
 *
 * An instance, in outline:
 *
 *   for (rt_u64 i = 0; i < mpk_count(box, 4); i++) {       images and groups of the task's box
 *       block_find(box, 4, i, at);
 *       const rt_i64 group = at[1], first = group * filters;
 *       const char *g_in_x = mpk_data(t, in_x) + ...;      where the group's operands begin
 *       if (!i)
 *           mpk_wait(t);
 *       ... the block program (block_print.c) ...
 *   }
 *   mpk_trigger(t); */
#include "gen/block_print.h"

#include <stdio.h>

#include "gen/body_print.h"
#include "gen/choices.h"

enum { X, W, BIAS, MORE, MOST_MORE = 9 };
enum { STRIDE, PADDING, DILATION, GROUPS, TRANSPOSED, OUTPUT_PADDING, EXPR, LAST };
/* With fewer filters or entries most of a tile is empty, and a thread for each entry of the result
 * is as fast. */
enum { FEWEST_FILTERS = 4, FEWEST_ENTRIES = 16 };
/* Bytes of shared memory for tiles, which leave five pages of an H100's. */
enum { MOST_ROOM = 128 << 10 };

/* A list may be shorter than the spatial axes; `otherwise` is the operator's default. */
static int number(const gen_call *c, uint32_t list, uint32_t i, int otherwise)
{
    const ir_attribute *a = &c->op->attributes[list];
    return i < a->ints.n ? (int)a->ints.at[i] : otherwise;
}

/* Are filters the last axis of the result?  The axes of filters and places follow from that. */
static bool is_last(const gen_call *c)
{
    return c->op->attributes[LAST].i;
}
static uint32_t filter_axis(const gen_call *c)
{
    return is_last(c) ? gen_output(c, 0)->rank - 1 : 1;
}
static uint32_t first_place(const gen_call *c)
{
    return is_last(c) ? 1 : 2;
}

/* Filters of a group. */
static int64_t filters_of(const gen_call *c)
{
    return gen_input(c, W)->dims[0] / c->op->attributes[GROUPS].i;
}

/* Positions of the result. */
static int64_t count_places(const gen_call *c)
{
    const ir_tensor *y = gen_output(c, 0);
    int64_t n = 1;
    for (uint32_t i = 0; i + 2 < y->rank; i++)
        n *= y->dims[first_place(c) + i];
    return n;
}

/* Entries of axes `first` to the last. */
static int64_t count_from(const ir_tensor *t, uint32_t first)
{
    int64_t n = 1;
    for (uint32_t i = first; i < t->rank; i++)
        n *= t->dims[i];
    return n;
}

/* Do axes `first` to `end` - 1 count as one axis with one stride? */
static bool are_neighbours(const ir_tensor *t, uint32_t first, uint32_t end)
{
    int64_t step = t->stride[end - 1];
    for (uint32_t i = end; i-- > first; step *= t->dims[i])
        if (t->dims[i] > 1 && t->stride[i] != step)
            return false;
    return true;
}

/* Do filters lie as [kernel, channels]?  A kernel of one entry lies in both orders. */
static bool has_channels_last(const gen_call *c)
{
    const ir_tensor *w = gen_input(c, W);
    if (count_from(w, 2) == 1)
        return is_last(c) && w->stride[1] == 1;
    return w->dims[1] > 1 && w->stride[1] == 1 && w->stride[w->rank - 1] == w->dims[1] &&
           are_neighbours(w, 2, w->rank);
}
/* Do filters lie without gaps, as [kernel, channels] or as [channels, kernel]? */
static bool is_dense(const gen_call *c)
{
    const ir_tensor *w = gen_input(c, W);
    return has_channels_last(c) || (w->stride[w->rank - 1] == 1 && are_neighbours(w, 1, w->rank));
}

/* Windows always have BLOCK_WINDOW_AXES axes; an image of fewer has leading ones of a single
 * place.  One axis alone is the second, so that a place is a line of its own (block_patch_of). */
static void fill_window(const gen_call *c, block_window *w)
{
    const ir_tensor *x = gen_input(c, X), *y = gen_output(c, 0);
    const uint32_t n_axes = x->rank - 2, missing = n_axes == 1 ? 1 : BLOCK_WINDOW_AXES - n_axes;
    *w = (block_window){.channel_step = (int)x->stride[1],
                        .channels = has_channels_last(c) ? (int)gen_input(c, W)->dims[1] : 0};
    for (uint32_t i = 0; i < BLOCK_WINDOW_AXES; i++) {
        const bool there = i >= missing && i - missing < n_axes;
        const uint32_t axis = i - missing;
        w->out[i] = there ? (int)y->dims[first_place(c) + axis] : 1;
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
    return reach < INT32_MAX && (double)count_places(c) < INT32_MAX;
}

/* A task's box may hold parts of several groups; `boxes` counts the products that come of it, of
 * which the largest has box_rows filters. */
static void fill_box(const gen_call *c, super_product *s)
{
    const ir_tensor *y = gen_output(c, 0);
    const ir_box box = c->box ? *c->box : ir_box_whole(y);
    const uint32_t axis = filter_axis(c);
    const int64_t filters = box.hi[axis] - box.lo[axis], in_group = filters_of(c),
                  own = filters < in_group ? filters : in_group;
    int64_t places = 1;
    for (uint32_t i = 0; i + 2 < y->rank; i++)
        places *= box.hi[first_place(c) + i] - box.lo[first_place(c) + i];
    s->boxes = (box.hi[0] - box.lo[0]) * ((filters + in_group - 1) / in_group);
    s->box_rows = is_last(c) ? places : own;
    s->box_columns = is_last(c) ? own : places;
}

/* Is the kernel one entry that visits every place?  Then the second factor is x itself. */
static bool is_pointwise(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X);
    bool plain = are_neighbours(x, 2, x->rank);
    for (uint32_t i = 0; i + 2 < x->rank && plain; i++)
        plain = gen_input(c, W)->dims[i + 2] == 1 && number(c, STRIDE, i, 1) == 1 &&
                number(c, PADDING, i, 0) == 0;
    return plain;
}

/* The stride of an operand along an axis of the result; 0 where it is broadcast. */
static int64_t stride_along(const gen_call *c, const ir_tensor *t, uint32_t axis)
{
    const uint32_t missing = gen_output(c, 0)->rank - t->rank;
    return axis < missing || t->dims[axis - missing] == 1 ? 0 : t->stride[axis - missing];
}

/* Has the operand one entry for all places? */
static bool is_spread(const gen_call *c, const ir_tensor *t)
{
    bool spread = true;
    for (uint32_t i = 0; i + 2 < gen_output(c, 0)->rank; i++)
        spread = spread && !stride_along(c, t, first_place(c) + i);
    return spread;
}

/* Has the operand one entry for all places, or one for each, all with one stride? */
static bool is_regular(const gen_call *c, const ir_tensor *t)
{
    const ir_tensor *y = gen_output(c, 0);
    const uint32_t first = first_place(c), end = first + y->rank - 2;
    bool whole = t->rank == y->rank;
    for (uint32_t axis = first; axis < end && whole; axis++)
        whole = t->dims[axis] == y->dims[axis];
    return is_spread(c, t) || (whole && are_neighbours(t, first, end));
}

/* The convolution's own result as an expression, rounded as if it were stored. */
static const char *rounded(const gen_call *c, bool has_bias)
{
    static const char *const texts[][2] = {
        {"x0", "x0 + x1"}, {"f16(x0)", "f16(x0 + x1)"}, {"bf16(x0)", "bf16(x0 + x1)"}};
    const ir_dtype dtype = gen_output(c, 0)->dtype;
    if (dtype == IR_F32)
        return texts[0][has_bias];
    return texts[dtype == IR_F16 ? 1 : 2][has_bias];
}

/* The last axis of places, whose stride is that from one place to the next. */
static uint32_t last_place(const gen_call *c)
{
    return first_place(c) + gen_output(c, 0)->rank - 3;
}

/* The product of a group: rows are its filters, columns places, or with `last` the other way
 * round.  window: where to read the factor x; NULL if x is read by strides. */
static super_product product_of(const gen_call *c, const block_window *window)
{
    const int place = is_last(c) ? SUPER_M : SUPER_N;
    const int filter = is_last(c) ? SUPER_N : SUPER_M;
    const ir_tensor *x = gen_input(c, X), *w = gen_input(c, W), *bias = gen_input(c, BIAS),
                    *y = gen_output(c, 0);
    super_product s = {.rows = is_last(c) ? count_places(c) : filters_of(c),
                       .columns = is_last(c) ? filters_of(c) : count_places(c),
                       .depth = count_from(w, 1),
                       .n_b = 1,
                       .y = {.name = "out_y", .dtype = y->dtype}};
    block_operand filters = {.name = "in_w", .dtype = w->dtype},
                  places = {.name = "in_x", .dtype = x->dtype, .window = window};
    filters.stride[filter] = s.depth;
    filters.stride[SUPER_K] = 1;
    /* through a window the strides only number places and depth; it finds the address itself */
    places.stride[place] = window ? 1 : x->stride[x->rank - 1];
    places.stride[SUPER_K] = window ? 2 : x->stride[1];
    s.a = is_last(c) ? places : filters;
    s.b[0] = is_last(c) ? filters : places;
    s.y.stride[filter] = y->stride[filter_axis(c)];
    s.y.stride[place] = y->stride[last_place(c)];
    if (bias) {
        s.more[s.n_more] = (block_operand){.name = "in_bias", .dtype = bias->dtype};
        s.more[s.n_more++].stride[filter] = bias->stride[0];
        s.expression = "x0 + x1";
    }
    fill_box(c, &s);
    return s;
}

/* What follows the convolution (expr), and its operands, with their strides along filters and
 * places.  x0 of the expression is the result as the convolution alone would store it. */
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
        o.stride[is_last(c) ? SUPER_N : SUPER_M] = stride_along(c, t, filter_axis(c));
        o.stride[is_last(c) ? SUPER_M : SUPER_N] =
            is_spread(c, t) ? 0 : stride_along(c, t, last_place(c));
        s->more[s->n_more++] = o;
    }
    return MPK_OK;
}

/* Can a program read all operands of what follows by one stride along the places? */
static bool accepts_more(const gen_call *c)
{
    bool regular = true;
    for (uint32_t i = 0; i < MOST_MORE && gen_input(c, MORE + i); i++)
        regular = regular && is_regular(c, gen_input(c, MORE + i));
    return regular;
}

/* Taken are groups with enough filters and depth to fill tiles, offsets that fit an int and filters
 * without gaps; operands of what follows have one entry for all places, or one for each. */
static bool accepts(const gen_call *c)
{
    const super_product s = product_of(c, NULL);
    return gen_accepts_plain(c) && !c->op->attributes[TRANSPOSED].i && super_accepts_product(&s) &&
           is_small(c) && filters_of(c) >= FEWEST_FILTERS && s.depth >= FEWEST_ENTRIES &&
           gen_input(c, W)->stride[0] == s.depth && is_dense(c) &&
           are_neighbours(gen_output(c, 0), first_place(c), last_place(c) + 1) && accepts_more(c);
}

/* Bytes of shared memory for tiles.  In a graph whose products are mostly convolutions, copies of
 * tiles in flight gain more from it than pages for the few products whose weights are loaded. */
static uint32_t room_of(const gen_call *c)
{
    uint32_t n_convs = 0, n_linears = 0;
    for (size_t i = 0; i < c->ir->ops.n; i++) {
        n_convs += strcmp(c->ir->ops.at[i].def->name, "conv") == 0;
        n_linears += strcmp(c->ir->ops.at[i].def->name, "linear") == 0;
    }
    if (n_convs <= n_linears || !(c->needs & GEN_ROOM))
        return super_target_usual.scratch_bytes;
    return c->scratch_most && c->scratch_most < MOST_ROOM ? c->scratch_most : MOST_ROOM;
}

/* Choose the program for this use; the second time it is a look-up.  The window outlives the call,
 * since the chosen program points to it. */
static mpk_status choose(mpk_context *cx, const gen_call *c, const super_choice **out)
{
    block_window *window = NULL;
    if (!is_pointwise(c)) {
        NEW(cx, c->arena, window, 1);
        fill_window(c, window);
    }
    super_product s = product_of(c, window);
    TRY(add_end(cx, c, &s));
    const super_target target = {.scratch_bytes = room_of(c),
                                 .registers = super_target_usual.registers};
    return gen_choose_product(cx, c->arena, c->choices, &s, &target, out);
}

/* `print` has chosen the program already, so this is a look-up. */
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

/* Print pointers to the operands of what follows, for the image and group at hand; `first` is the
 * group's first filter. */
static void print_more(const gen_call *c, text *out)
{
    for (uint32_t i = 0; i < MOST_MORE && gen_input(c, MORE + i); i++) {
        const ir_tensor *t = gen_input(c, MORE + i);
        char name[16], at[64];
        snprintf(name, sizeof name, "in_more%u", i);
        snprintf(at, sizeof at, "at[0] * %lldll + first * %lldll", (long long)stride_along(c, t, 0),
                 (long long)stride_along(c, t, filter_axis(c)));
        print_pointer(name, at, out);
    }
}

/* A loop over images and groups of the box; within one, the program's rows are the filters m_lo to
 * m_hi of the group, its columns a run of places n_lo to n_hi; with `last` rows are places. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const super_choice *chosen;
    const uint32_t rank = gen_output(c, 0)->rank, axis = filter_axis(c), place = first_place(c);
    const char filter = is_last(c) ? 'n' : 'm';
    const char of_place = is_last(c) ? 'm' : 'n';
    TRY(choose(cx, c, &chosen));
    const block_program *p = &chosen->program;
    gen_print_head_of_waiting(c, n, out);
    gen_print_note(c->choices, chosen, out);
    text_print(
        out,
        "    const rt_i64 filters = %lld, k_lo = 0, k_hi = %lld;\n    mpk_box box = mpk_box_of(t, "
        "%u);\n"
        "    const rt_i64 filter_lo = box.lo[%u], filter_hi = box.hi[%u];\n"
        "    const rt_i64 run = block_places(out_y, %u, %u, filters, &box);\n"
        "    if (!mpk_count(box, %u))\n        mpk_wait(t);\n"
        "    for (rt_u64 i = 0; i < mpk_count(box, %u); i++) {\n"
        "        rt_i64 at[RT_MAX_RANK];\n        block_find(box, %u, i, at);\n"
        "        const rt_i64 group = at[%u], first = group * filters;\n"
        "        const rt_i64 %c_lo = block_place(out_y, %u, at), %c_hi = %c_lo + run;\n"
        "        const rt_i64 %c_lo = filter_lo > first ? filter_lo - first : 0;\n"
        "        const rt_i64 %c_hi = filter_hi - first < filters ? filter_hi - first : filters;\n",
        (long long)filters_of(c), (long long)p->axes[SUPER_K].extent, rank, axis, axis, place, axis,
        rank, rank, rank, axis, of_place, place, of_place, of_place, filter, filter);
    print_pointer("in_x", "at[0] * in_x.stride[0] + group * in_w.dims[1] * in_x.stride[1]", out);
    print_pointer("in_w", "first * in_w.stride[0]", out);
    if (gen_input(c, BIAS))
        print_pointer("in_bias", "first * in_bias.stride[0]", out);
    print_more(c, out);
    char at[64];
    snprintf(at, sizeof at, "at[0] * out_y.stride[0] + first * out_y.stride[%u]", axis);
    print_pointer("out_y", at, out);
    text_print(out, "        if (!i)\n            mpk_wait(t);\n");
    TRY(gen_print_block(cx, p, out));
    text_print(out, "    }\n    mpk_trigger(t);\n}\n");
    return MPK_OK;
}

const gen_body gen_body_block_conv = {.op = "conv",
                                      .name = "block",
                                      .rank = 5,
                                      .waits = true,
                                      .accepts = accepts,
                                      .print = print,
                                      .scratch_bytes = scratch_bytes};
