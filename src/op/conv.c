/* conv.c - convolution over one to three axes, or its transpose.
 *
 * x [N, C, ..], w [F, C / groups, k ..] (transposed: [C, F / groups, k ..]), bias [F] or absent
 * -> [N, F, ..] in x's dtype.  stride, padding, dilation, output_padding: one number an axis, or
 * none for 1, 0, 1 and 0.  last: the result has its channels last, [N, .., F].  expr: applied to
 * the result, an expression of the operator map whose x0 is an entry of the convolution,
 * rounded, and x1 ... the operands more0 ..., spread over the result.
 *
 *   entry j of the result reads entries j stride - padding + k dilation of x, k = 0, 1 ...
 *   [1, 2, 3, 4], w [1, 1], padding 1 -> [1, 3, 5, 7, 4]
 *
 * Sums run over channels and kernel entries in row-major order, in double, and are rounded once;
 * of integers they are exact (modulo the width).  Idea: a run along the last axis of x is loaded
 * once for a kernel entry and serves eight filters.  Cost: 2 C / groups k flops an entry of the
 * result.
 */
#include "op/images.h"
#include "op/fill.h"
#include "op/map_program.h"
#include "op/walk.h"

/* Inputs and attributes, by index; filters and entries of a run; the most spatial axes; filters
 * of a tile of matrix hardware, and those that one pass over the windows serves. */
enum { X, W, BIAS, MORE, MOST_MORE = 9 };
enum { STRIDE, PADDING, DILATION, GROUPS, TRANSPOSED, OUTPUT_PADDING, EXPR, LAST };
enum { FILTERS = 8, RUN = 256, SPACE = 3, MATRIX_FILTERS = 16, PRODUCT_FILTERS = 128 };
/* Channels of 16 bits that memory brings at a time. */
enum { SECTOR_CHANNELS = 16 };
/* In the time in which a worker brings one entry of a window it could read this many bytes; with
 * channels last it copies this many bytes at once. */
enum { ENTRY_BYTES = 8, COPY_BYTES = 16 };
/* Of patches: the least tile of channels; places that share what comes of the weights; products in
 * the time in which a worker reads a byte. */
enum { PATCH_CHANNELS = 32, PATCH_PLACES = 256, PRODUCTS_OF_BYTE = 53 };
/* Of a window of one channel: a worker makes so many products in the time in which it reads so many
 * bytes. */
enum { LONE_PRODUCTS = 4, LONE_BYTES = 3 };
/* Fewer products, some 4 million a worker, end before patches repay their iterations, which are
 * many. */
enum { PATCH_PRODUCTS = 1 << 29 };

/* The number of attribute `list` for spatial axis i. */
static int64_t number(const ir_op *op, uint32_t list, uint32_t i, int64_t otherwise)
{
    return i < op->attributes[list].ints.n ? op->attributes[list].ints.at[i] : otherwise;
}

/* Every number is bounded before it is multiplied, so that spans and paddings cannot overflow; k,
 * at least 1, bounds the dilation with it. */
static mpk_status infer_axis(mpk_context *cx, const ir_op *op, uint32_t i, int64_t n, int64_t k,
                             int64_t *out)
{
    int64_t stride = number(op, STRIDE, i, 1), padding = number(op, PADDING, i, 0);
    int64_t dilation = number(op, DILATION, i, 1), added = number(op, OUTPUT_PADDING, i, 0),
            limit = INT32_MAX;
    CHECK(cx,
          stride >= 1 && stride < limit && padding >= 0 && padding < limit && dilation >= 1 &&
              added >= 0 && added < limit && n < limit && k < limit / dilation,
          MPK_ESHAPE,
          "conv: stride %lld, padding %lld, dilation %lld or output_padding %lld of axis %u is not "
          "possible",
          (long long)stride, (long long)padding, (long long)dilation, (long long)added, i);
    if (op->attributes[TRANSPOSED].i)
        *out = (n - 1) * stride - 2 * padding + dilation * (k - 1) + added + 1;
    else
        *out = images_places(n, k, stride, padding, dilation);
    CHECK(cx, *out >= 1, MPK_ESHAPE,
          "conv: nothing is left of axis %u, which has %lld entries for a kernel of %lld", i,
          (long long)n, (long long)k);
    return MPK_OK;
}

/* The axis of y that is axis i of [N, F, ..]: with `last` the filters stand at the end. */
static uint32_t axis_of(const ir_op *op, uint32_t rank, uint32_t i)
{
    if (!op->attributes[LAST].i || i == 0)
        return i;
    return i == 1 ? rank - 1 : i - 1;
}

/* A box of the result with its axes in the order [N, F, ..]. */
static ir_box in_order(const ir_op *op, uint32_t rank, const ir_box *box)
{
    ir_box out = {0};
    for (uint32_t i = 0; i < rank; i++) {
        out.lo[i] = box->lo[axis_of(op, rank, i)];
        out.hi[i] = box->hi[axis_of(op, rank, i)];
    }
    return out;
}

/* The operands for expr that are given: they are given without gaps. */
static uint32_t count_more(const ir_graph *g, const ir_op *op)
{
    uint32_t n = 0;
    while (n < MOST_MORE && shape_input(g, op, MORE + n))
        n++;
    return n;
}

/* They must be floats of at most 32 bits that can be spread over the result. */
static mpk_status check_more(mpk_context *cx, const ir_graph *g, const ir_op *op,
                             const ir_tensor *y, uint32_t i)
{
    const ir_tensor *t = shape_input(g, op, MORE + i);
    if (!t)
        return MPK_OK;
    CHECK(cx, i < count_more(g, op), MPK_ESHAPE, "conv: more%u is given without those before", i);
    TRY(shape_expect_dtype(cx, g, op, MORE + i, SHAPE_FLOAT));
    CHECK(cx, t->rank <= y->rank, MPK_ESHAPE, "conv: more%u has rank %u, the result %u", i, t->rank,
          y->rank);
    for (uint32_t k = 1; k <= t->rank; k++)
        CHECK(cx, t->dims[t->rank - k] == 1 || t->dims[t->rank - k] == y->dims[y->rank - k],
              MPK_ESHAPE, "conv: more%u has %lld entries where the result has %lld", i,
              (long long)t->dims[t->rank - k], (long long)y->dims[y->rank - k]);
    return MPK_OK;
}

/* Check expr and its operands.  Compiling is also the check: a program that compiles can run. */
static mpk_status check_end(mpk_context *cx, const ir_graph *g, const ir_op *op, const ir_tensor *y)
{
    const str expr = op->attributes[EXPR].s;
    ir_dtype dtypes[1 + MOST_MORE] = {y->dtype};
    map_program program;
    for (uint32_t i = 0; i < MOST_MORE; i++)
        TRY(check_more(cx, g, op, y, i));
    const uint32_t n = count_more(g, op);
    CHECK(cx, expr.n || !n, MPK_EARG, "conv: more0 is given without expr");
    if (!expr.n)
        return MPK_OK;
    CHECK(cx, SHAPE_FLOAT >> y->dtype & 1, MPK_EUNSUPPORTED, "conv: expr needs f32, f16 or bf16");
    for (uint32_t i = 0; i < n; i++)
        dtypes[1 + i] = shape_input(g, op, MORE + i)->dtype;
    TRY(map_compile(cx, expr, 1 + n, dtypes, &program));
    CHECK(cx, program.steps[program.result].type == MAP_F, MPK_EARG,
          "conv: the value of expr is not a float of 32 bits");
    return MPK_OK;
}

/* A transposed convolution is the gradient of an ordinary one: the first two axes of w exchange
 * their roles. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *w = shape_input(g, op, W);
    int64_t groups = op->attributes[GROUPS].i;
    bool transposed = op->attributes[TRANSPOSED].i;
    TRY(shape_expect_dtype(cx, g, op, X, SHAPE_NUMBER));
    uint32_t same = 1u << x->dtype, dtypes = SHAPE_FLOAT & same ? SHAPE_FLOAT : same;
    TRY(shape_expect_dtype(cx, g, op, W, dtypes));
    CHECK(cx, x->rank >= 3 && x->rank <= 2 + SPACE && w->rank == x->rank, MPK_ESHAPE,
          "conv: x has rank %u and w rank %u, expected both 3, 4 or 5", x->rank, w->rank);
    TRY(shape_expect_whole(cx, g, op, W));
    CHECK(cx, groups >= 1 && groups <= w->dims[0] && w->dims[0] % groups == 0, MPK_ESHAPE,
          "conv: w has %lld filters, which are not %lld groups", (long long)w->dims[0],
          (long long)groups);
    /* w is [F, C / groups, ..], transposed [C, F / groups, ..] */
    int64_t channels = transposed ? w->dims[0] : w->dims[1] * groups;
    CHECK(cx, x->dims[1] == channels, MPK_ESHAPE,
          "conv: x has %lld channels, w is for %lld in %lld groups", (long long)x->dims[1],
          (long long)channels, (long long)groups);
    for (uint32_t i = STRIDE; i <= OUTPUT_PADDING; i++)
        CHECK(cx,
              op->def->attributes[i].type != IR_ATTRIBUTE_INTS || op->attributes[i].ints.n == 0 ||
                  op->attributes[i].ints.n == x->rank - 2,
              MPK_ESHAPE, "conv: %s has %u numbers for %u axes", op->def->attributes[i].name,
              op->attributes[i].ints.n, x->rank - 2);
    shape_like(x, out);
    int64_t *filters = &out->dims[axis_of(op, x->rank, 1)];
    *filters = transposed ? w->dims[1] * groups : w->dims[0];
    for (uint32_t i = 0; i + 2 < x->rank; i++)
        TRY(infer_axis(cx, op, i, x->dims[i + 2], w->dims[i + 2],
                       &out->dims[axis_of(op, x->rank, i + 2)]));
    TRY(check_end(cx, g, op, out));
    return shape_expect(cx, g, op, BIAS, dtypes, 1, filters);
}

/* a / b, rounded towards plus infinity, for a numerator of any sign; b > 0. */
static int64_t divide_up(int64_t a, int64_t b)
{
    return a > 0 ? (a + b - 1) / b : -(-a / b);
}

/* Rounded towards minus infinity. */
static int64_t divide_down(int64_t a, int64_t b)
{
    return -divide_up(-a, b);
}

/* Where tiles are whole, the places of a task are neighbours: of the spatial axes only the first
 * with more than one entry is cut. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *y = &g->tensors.at[op->out[0]];
    const uint32_t filters = axis_of(op, y->rank, 1);
    bool is_row = false;
    shape_axes_all(g, op, axes);
    axes[filters].fastest = FILTERS;
    const int64_t in_group = y->dims[filters] / op->attributes[GROUPS].i;
    axes[filters].tile = in_group % MATRIX_FILTERS == 0 ? MATRIX_FILTERS : 0;
    /* depthwise: channels, as neighbours, if they can be in whole sectors of memory */
    if (in_group == 1 && y->dims[filters] % FILTERS == 0)
        axes[filters].tile = axes[filters].fastest =
            y->dims[filters] % SECTOR_CHANNELS ? FILTERS : SECTOR_CHANNELS;
    for (uint32_t i = 2; i < y->rank; i++) {
        const uint32_t at = axis_of(op, y->rank, i);
        axes[at].tile = is_row ? y->dims[at] : 0;
        is_row = is_row || y->dims[at] > 1;
    }
}

/* Can windows be brought by copies?  Channels must be neighbours in x and w, in whole copies. */
static bool is_copied(const ir_graph *g, const ir_op *op)
{
    const ir_tensor *x = shape_input(g, op, X), *w = shape_input(g, op, W);
    const int64_t bytes = (int64_t)ir_dtype_table[x->dtype].block_bytes;
    return op->attributes[LAST].i && x->stride[1] == 1 && w->stride[1] == 1 &&
           w->dims[1] * bytes % COPY_BYTES == 0;
}

/* Are windows kept as patches, which hold each pixel once for all entries of the kernel?  As a
 * search of block programs finds best for kernels of several entries, and tiles of channels. */
static bool has_patches(const ir_graph *g, const ir_op *op)
{
    const ir_tensor *w = shape_input(g, op, W), *y = &g->tensors.at[op->out[0]];
    int64_t kernel = 1;
    for (uint32_t i = 2; i < w->rank; i++)
        kernel *= w->dims[i];
    return ir_elements(y) * w->dims[1] * kernel >= PATCH_PRODUCTS && is_copied(g, op) &&
           ir_dtype_table[w->dtype].block_bytes == 2 && kernel > 1 && w->rank < 5 &&
           w->dims[1] % PATCH_CHANNELS == 0;
}

/* With patches, reading is what the task's box reads.  Besides it come products, of whole fields,
 * and weights again for every PATCH_PLACES places. */
static int64_t effort_of_patches(const ir_tensor *w, int64_t images, int64_t filters,
                                 int64_t places, int64_t entries)
{
    const int64_t fields = divide_up(places, MATRIX_FILTERS) * divide_up(filters, MATRIX_FILTERS),
                  products = fields * MATRIX_FILTERS * MATRIX_FILTERS * entries,
                  again = images * divide_up(places, PATCH_PLACES) - 1;
    return images * products / PRODUCTS_OF_BYTE +
           again * filters * entries * (int64_t)ir_dtype_table[w->dtype].block_bytes;
}

/* The work besides reading.  As a matrix product a task brings the window of each of its places
 * into a tile, entry by entry, once for every PRODUCT_FILTERS filters.  Where copies do that, an
 * entry counts as its bytes, and the weights are read again for every PRODUCT_FILTERS places.
 * Images come one after the other, each with tiles of its own. */
static int64_t effort(const ir_graph *g, const ir_op *op, const ir_box *given)
{
    const ir_tensor *x = shape_input(g, op, X), *w = shape_input(g, op, W);
    const ir_box box = in_order(op, x->rank, given);
    if (op->attributes[TRANSPOSED].i)
        return 0;
    int64_t places = 1, entries = 1;
    for (uint32_t i = 1; i < w->rank; i++) {
        entries *= w->dims[i];
        places *= i > 1 ? box.hi[i] - box.lo[i] : 1;
    }
    const int64_t images = box.hi[0] - box.lo[0], filters = box.hi[1] - box.lo[1];
    if (w->dims[1] == 1 && op->attributes[GROUPS].i > 1) /* depthwise: a sum for each entry */
        return images * filters * places * entries * LONE_BYTES / LONE_PRODUCTS;
    if (has_patches(g, op))
        return effort_of_patches(w, images, filters, places, entries);
    const int64_t passes = images * divide_up(filters, PRODUCT_FILTERS);
    const int64_t all = passes * divide_up(places, MATRIX_FILTERS) * MATRIX_FILTERS * entries;
    if (!is_copied(g, op))
        return all * ENTRY_BYTES;
    const int64_t again = (images * divide_up(places, PRODUCT_FILTERS) - 1) * filters * entries;
    return (all + again) * (int64_t)ir_dtype_table[x->dtype].block_bytes;
}

/* Turn entries [*lo, *hi) of the result along spatial axis i into the entries of x that they
 * read. */
static void source_range(const ir_op *op, uint32_t i, int64_t n, int64_t k, int64_t *lo,
                         int64_t *hi)
{
    int64_t stride = number(op, STRIDE, i, 1), padding = number(op, PADDING, i, 0);
    int64_t span = number(op, DILATION, i, 1) * (k - 1);
    if (op->attributes[TRANSPOSED].i) {
        *lo = divide_up(*lo + padding - span, stride);
        *hi = divide_down(*hi - 1 + padding, stride) + 1;
    } else {
        *lo = *lo * stride - padding;
        *hi = (*hi - 1) * stride - padding + span + 1;
    }
    *lo = *lo < 0 ? 0 : *lo;
    *hi = *hi > n ? n : *hi;
}

/* Of x and w the channels of the groups that the filters belong to; of x also the windows. A window
 * that lies in the padding alone reads nothing of x. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *given,
                  ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, X), *w = shape_input(g, op, W),
                    *t = shape_input(g, op, input);
    const ir_box ordered = in_order(op, x->rank, given), *box = &ordered;
    int64_t groups = op->attributes[GROUPS].i,
            in_group = g->tensors.at[op->out[0]].dims[axis_of(op, x->rank, 1)] / groups;
    /* groups that the filters of the box belong to, both ends included */
    int64_t first = box->lo[1] / in_group, last = (box->hi[1] - 1) / in_group,
            channels = x->dims[1] / groups;
    *read = ir_box_whole(t);
    if (input >= MORE) {
        shape_reads_broadcast(g, op, input, given, read);
    } else if (input == BIAS || (input == W && !op->attributes[TRANSPOSED].i)) {
        read->lo[0] = box->lo[1];
        read->hi[0] = box->hi[1];
    } else if (input == W) {
        /* transposed: axis 0 of w is the channels, and a group has all of its own */
        read->lo[0] = first * channels;
        read->hi[0] = (last + 1) * channels;
    } else {
        read->lo[0] = box->lo[0];
        read->hi[0] = box->hi[0];
        read->lo[1] = first * channels;
        read->hi[1] = (last + 1) * channels;
        for (uint32_t i = 0; i + 2 < x->rank; i++) {
            read->lo[i + 2] = box->lo[i + 2];
            read->hi[i + 2] = box->hi[i + 2];
            source_range(op, i, x->dims[i + 2], w->dims[i + 2], &read->lo[i + 2], &read->hi[i + 2]);
        }
        /* in the padding alone: one form of an empty box for all axes */
        if (ir_box_is_empty(read, x->rank))
            *read = (ir_box){0};
    }
}

/* An entry of the sums: doubles for floats, integers themselves modulo 2^64. */
typedef union cell {
    double f;
    uint64_t i;
} cell;

/* Scratch: sums of up to eight filters over a run of the last axis, and a run of x. */
typedef struct room {
    cell sum[FILTERS][RUN], x[RUN];
} room;

/* The same for every box, since sums and a run are of fixed size; expr may need more. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    const size_t end = op->attributes[EXPR].s.n ? op_map.scratch_bytes(g, op, box) : 0;
    return end > sizeof(room) ? end : sizeof(room);
}

/* The run being computed: filters f .. f + n - 1, entries lo .. hi - 1 of the last axis, at `at`
 * of the others. */
typedef struct run {
    const op_call *call;
    room *room;
    bool exact;
    uint32_t space;            /* spatial axes */
    int64_t at[IR_MAX_RANK];   /* of the result; the last is lo */
    int64_t n_filters, lo, hi; /* of the last axis */
} run;

/* The entry of x along spatial axis i that entry `at` of the result multiplies with kernel entry
 * k; -1: padding. */
static int64_t source(const run *r, uint32_t i, int64_t k)
{
    const ir_op *op = r->call->op;
    int64_t stride = number(op, STRIDE, i, 1), padding = number(op, PADDING, i, 0);
    int64_t away = k * number(op, DILATION, i, 1), n = r->call->in[X].dims[i + 2],
            at = r->at[i + 2], from;
    if (op->attributes[TRANSPOSED].i) {
        from = at + padding - away;
        if (from < 0 || from % stride)
            return -1;
        from /= stride;
    } else {
        from = at * stride - padding + away;
    }
    return from >= 0 && from < n ? from : -1;
}

/* Add a kernel entry: sum[filter][first + i step] += weight * x[i] for the n entries of the run of
 * x. Step 1, the usual one, has a loop of its own, which compilers turn into vector
 * instructions. */
static void add_run(run *r, const op_view *w, int64_t w_offset, int64_t w_step, int64_t first,
                    int64_t step, int64_t n)
{
    for (int64_t f = 0; f < r->n_filters; f++) {
        cell *sum = r->room->sum[f] + first, *x = r->room->x;
        if (r->exact) {
            uint64_t weight = (uint64_t)walk_load_int(w, w_offset + f * w_step);
            for (int64_t i = 0; i < n; i++)
                sum[i * step].i += weight * x[i].i;
            continue;
        }
        double weight = walk_load_double(w, w_offset + f * w_step);
        if (step == 1)
            for (int64_t i = 0; i < n; i++)
                sum[i].f += weight * x[i].f;
        else
            for (int64_t i = 0; i < n; i++)
                sum[i * step].f += weight * x[i].f;
    }
}

/* Load a run of x.  The common dtype has a branch of its own, because this loop takes most of
 * the time. */
static void load_run(const run *r, int64_t offset, int64_t stride, int64_t n)
{
    const op_view *x = &r->call->in[X];
    for (int64_t i = 0; i < n; i++)
        if (r->exact)
            r->room->x[i].i = (uint64_t)walk_load_int(x, offset + i * stride);
        else
            r->room->x[i].f = x->dtype == IR_F32
                                  ? (double)((const float *)x->data)[offset + i * stride]
                                  : walk_load_double(x, offset + i * stride);
}

/* Add all kernel entries along the last axis, for a row of x and of the kernel. */
static void add_kernel_row(run *r, int64_t x_offset, int64_t w_offset, int64_t w_step)
{
    const op_view *x = &r->call->in[X], *w = &r->call->in[W];
    const ir_op *op = r->call->op;
    uint32_t last = x->rank - 1, i = last - 2;
    bool transposed = op->attributes[TRANSPOSED].i;
    int64_t stride = number(op, STRIDE, i, 1), padding = number(op, PADDING, i, 0),
            n = x->dims[last];
    for (int64_t k = 0; k < w->dims[last]; k++) {
        int64_t away = k * number(op, DILATION, i, 1), from, end, first;
        if (transposed) { /* entry j of x goes to j * stride - padding + away */
            from = divide_up(r->lo + padding - away, stride);
            end = divide_up(r->hi + padding - away, stride);
            from = from < 0 ? 0 : from;
            end = end < n ? end : n;
            first = from * stride - padding + away - r->lo;
        } else { /* entry j of the result takes j * stride - padding + away */
            from = divide_up(padding - away, stride);
            end = divide_up(n + padding - away, stride);
            from = from < r->lo ? r->lo : from;
            end = end < r->hi ? end : r->hi;
            first = from - r->lo;
        }
        if (from >= end)
            continue;
        int64_t x_at = transposed ? from : from * stride - padding + away;
        load_run(r, x_offset + x_at * x->stride[last], (transposed ? 1 : stride) * x->stride[last],
                 end - from);
        add_run(r, w, w_offset + k * w->stride[last], w_step, first, transposed ? stride : 1,
                end - from);
    }
}

/* Add all rows of the kernel for one channel; rows in the padding are skipped. */
static void add_channel(run *r, int64_t x_offset, int64_t w_offset, int64_t w_step)
{
    const op_view *x = &r->call->in[X], *w = &r->call->in[W];
    ir_box kernel = {0};
    int64_t k[IR_MAX_RANK] = {0};
    for (uint32_t i = 0; i + 1 < r->space; i++)
        kernel.hi[i] = w->dims[i + 2];
    do {
        int64_t x_at = x_offset, w_at = w_offset;
        bool inside = true;
        for (uint32_t i = 0; i + 1 < r->space; i++) {
            int64_t from = source(r, i, k[i]);
            inside = inside && from >= 0;
            x_at += from * x->stride[i + 2];
            w_at += k[i] * w->stride[i + 2];
        }
        if (inside)
            add_kernel_row(r, x_at, w_at, w_step);
    } while (walk_next(&kernel, r->space - 1, k));
}

/* Add the bias and store: floats are rounded once, integers cut to their width. */
static void store_run(const run *r)
{
    const op_view *y = &r->call->out[0], *bias = &r->call->in[BIAS];
    int64_t offset = walk_offset(y, r->at);
    for (int64_t f = 0; f < r->n_filters; f++)
        for (int64_t i = 0; i < r->hi - r->lo; i++) {
            int64_t to = offset + f * y->stride[1] + i * y->stride[y->rank - 1];
            int64_t b = bias->data ? (r->at[1] + f) * bias->stride[0] : 0;
            if (r->exact)
                walk_store_int(y, to,
                               (int64_t)(r->room->sum[f][i].i +
                                         (bias->data ? (uint64_t)walk_load_int(bias, b) : 0)));
            else
                walk_store_double(
                    y, to, r->room->sum[f][i].f + (bias->data ? walk_load_double(bias, b) : 0));
        }
}

/* Compute one run.  A transposed convolution has filters on axis 1 of w and channels on axis 0,
 * an ordinary one the other way round. */
static void compute_run(run *r)
{
    const op_view *x = &r->call->in[X], *w = &r->call->in[W], *y = &r->call->out[0];
    bool transposed = r->call->attributes[TRANSPOSED].i;
    int64_t groups = r->call->attributes[GROUPS].i, in_group = y->dims[1] / groups,
            channels = x->dims[1] / groups;
    int64_t group = r->at[1] / in_group;
    memset(r->room->sum, 0, (size_t)r->n_filters * sizeof r->room->sum[0]);
    for (int64_t c = 0; c < channels; c++) {
        int64_t channel = group * channels + c;
        int64_t w_offset =
            transposed ? channel * w->stride[0] + (r->at[1] - group * in_group) * w->stride[1]
                       : r->at[1] * w->stride[0] + c * w->stride[1];
        add_channel(r, r->at[0] * x->stride[0] + channel * x->stride[1], w_offset,
                    w->stride[!!transposed]);
    }
    store_run(r);
}

/* Apply expr in place: the operator map, whose first operand is the result so far. */
static void run_end(const op_call *call, const ir_box *box, void *scratch)
{
    op_call end = *call;
    const ir_attribute of_map[] = {call->attributes[EXPR], {0}};
    end.attributes = of_map;
    end.in[0] = call->out[0];
    for (end.n_in = 1; end.n_in <= MOST_MORE && call->in[MORE + end.n_in - 1].data; end.n_in++)
        end.in[end.n_in] = call->in[MORE + end.n_in - 1];
    op_map.ref(&end, box, scratch);
}

/* Compute a box: up to eight filters of one group, and up to 256 entries of the last axis, at a
 * time; the result's axes are in the order [N, F, ..]. */
static void compute(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *y = &call->out[0];
    uint32_t last = y->rank - 1;
    int64_t in_group = y->dims[1] / call->attributes[GROUPS].i;
    run r = {.call = call, .room = scratch, .exact = walk_is_exact(y->dtype), .space = y->rank - 2};
    ir_box rows = *box;
    rows.hi[1] = rows.lo[1] + 1;
    int64_t at[IR_MAX_RANK], end;
    memcpy(at, rows.lo, sizeof at);
    do {
        for (int64_t f = box->lo[1]; f < box->hi[1]; f += r.n_filters) {
            /* filters of one group share their channels of x; a run of them must not cross into
             * the next */
            end = (f / in_group + 1) * in_group;
            end = end < box->hi[1] ? end : box->hi[1];
            r.n_filters = end - f < FILTERS ? end - f : FILTERS;
            for (r.lo = box->lo[last]; r.lo < box->hi[last]; r.lo = r.hi) {
                r.hi = box->hi[last] - r.lo < RUN ? box->hi[last] : r.lo + RUN;
                memcpy(r.at, at, sizeof at);
                r.at[1] = f;
                r.at[last] = r.lo;
                compute_run(&r);
            }
        }
    } while (walk_next(&rows, last, at));
}

/* With channels last, the result's axes are put into the order [N, F, ..] first, by strides. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *y = &call->out[0];
    const ir_box ordered = in_order(call->op, y->rank, box);
    op_call transposed = *call;
    for (uint32_t i = 0; i < y->rank; i++) {
        const uint32_t at = axis_of(call->op, y->rank, i);
        transposed.out[0].dims[i] = y->dims[at];
        transposed.out[0].stride[i] = y->stride[at];
    }
    compute(&transposed, &ordered, scratch);
    if (call->attributes[EXPR].s.n)
        run_end(call, box, scratch);
}

static const op_operand in[] = {{"x", 0},
                                {"w", 0},
                                {"bias", OP_OPTIONAL},
                                {"more0", OP_OPTIONAL},
                                {"more1", OP_OPTIONAL},
                                {"more2", OP_OPTIONAL},
                                {"more3", OP_OPTIONAL},
                                {"more4", OP_OPTIONAL},
                                {"more5", OP_OPTIONAL},
                                {"more6", OP_OPTIONAL},
                                {"more7", OP_OPTIONAL},
                                {"more8", OP_OPTIONAL}},
                        out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_LIST("stride"),       SHAPE_LIST("padding"),
                                          SHAPE_LIST("dilation"),     SHAPE_INT("groups", 1),
                                          SHAPE_INT("transposed", 0), SHAPE_LIST("output_padding"),
                                          SHAPE_WORD("expr", ""),     SHAPE_INT("last", 0)};

#define CASE(x, w, rest)                                                        \
    {                                                                           \
        "input %x : " x "\nconst %w : " w "\n%y = conv(%x, %w, _) {" rest "}\n" \
    }
/* One to three axes, groups down to one channel, every attribute; transposed; a run longer than
 * RUN; expr with operands of every kind of shape; channels last, also with an x whose channels
 * lie last in memory. */
static const op_case cases[] = {
    {"input %x : f32[3, 4, 9, 11]\nconst %w : f32[10, 4, 3, 3]\nconst %b : bf16[10]\n%y = conv(%x, "
     "%w, %b)\n"},
    CASE("f32[2, 6, 17] live=tokens", "f32[4, 3, 5]",
         "stride = [2], padding = [3], dilation = [2], groups = 2"),
    CASE("bf16[1, 2, 4, 5, 6]", "bf16[3, 2, 2, 3, 1]", "padding = [1, 1, 0], stride = [1, 2, 2]"),
    CASE("f32[2, 6, 4, 5]", "f32[6, 2, 3, 3]",
         "transposed = 1, groups = 2, stride = [2, 3], padding = [1, 0], output_padding = [1, 0], "
         "dilation = [1, 2]"),
    CASE("i64[2, 2, 7]", "i64[3, 2, 3]", "padding = [4]"),
    CASE("f64[1, 2, 300]", "f64[1, 2, 7]", "padding = [3]"),
    {"input %x : bf16[2, 16, 5, 7]\nconst %w : bf16[20, 16, 3, 3]\nconst %b : bf16[20]\n"
     "const %s : f32[20, 1, 1]\ninput %r : bf16[2, 20, 5, 7]\n"
     "%y = conv(%x, %w, %b, %s, %r) "
     "{padding = [1, 1], expr = \"t0 = bf16(x0 * x1 + x2); max(t0, 0)\"}\n"},
    CASE("bf16[2, 6, 9, 10]", "bf16[12, 1, 5, 3]",
         "groups = 6, stride = [2, 1], padding = [2, 3], dilation = [1, 2]"),
    CASE("f32[2, 6, 7, 8]", "f32[9, 2, 3, 2]", "groups = 3, padding = [1, 1], last = 1"),
    CASE("f32[2, 6, 5]", "f32[6, 2, 3]", "transposed = 1, groups = 2, stride = [2], last = 1"),
    {"input %t : bf16[2, 6, 7, 16]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : bf16[24, "
     "3, "
     "3, 16]\n%w = transpose(%u) {perm = [0, 3, 1, 2]}\nconst %b : bf16[24]\nconst %s : f32[24]\n"
     "input %r : bf16[2, 6, 7, 24]\n%y = conv(%x, %w, %b, %s, %r) {padding = [1, 1], last = 1, "
     "expr = \"t0 = bf16(x0 * x1 + x2); max(t0, 0)\"}\n"},
    {"input %t : bf16[2, 9, 11, 96]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : bf16[40, "
     "3, 3, 96]\n%w = transpose(%u) {perm = [0, 3, 1, 2]}\nconst %s : f32[40]\ninput %r : bf16[2, "
     "9, 6, 40]\n%y = conv(%x, %w, _, %s, %r) {padding = [1, 1], stride = [1, 2], last = 1, "
     "expr = \"max(bf16(x0 * x1) + x2, 0)\"}\n"},
    {"input %x : f32[2, 4, 31]\nconst %w : f32[4, 1, 4]\ninput %s : f32[2, 4, 1]\n"
     "%y = conv(%x, %w, _, %s) {groups = 4, expr = \"x0 * sigmoid(x1)\"}\n"},
};

const op_def op_conv = {
    .name = "conv",
    .summary = "convolution over one to three axes, or its transpose",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .effort = effort,
    .reads = reads,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill_wide_integers,
};
