/* body_windows_rows.c - depthwise convolutions and max pools of images whose channels lie last,
 * eight channels a thread (device/task/windows_rows.cuh).
 *
 * Rank 5: above the generic bodies of body_windows.c, which take all else.  Of a convolution with a
 * kernel of 3 columns, two places a thread:
 *
 *   conv_rows<2, 3, 1, 1>(t, in_x, in_w, in_bias, out_y, how);
 *
 * Of a pool of windows of 3 x 3 by steps of 2 whose indices no operator reads, so that they are not
 * written (false), two windows a thread with all loads of three rows under way:
 *
 *   if (!max_pool_pieces<2, 3, 2, 3>(t, in_x, out_values, how))
 *       max_pool_rows<3, false>(t, in_x, out_values, out_indices, how); */
#include "gen/body_print.h"
#include "op/pool.h"
#include "shape/rows_shape.h"

#include <math.h>

enum { X, W, BIAS };
enum { STRIDE, PADDING, DILATION, GROUPS, TRANSPOSED, OUTPUT_PADDING, EXPR, LAST };
/* A thread keeps a row of the window; places that share its columns where there are many. */
enum { MOST_KERNEL = 8, MOST_APART = 4, PLACES = 2, THREADS = 256 };
/* Shared memory of a copy of a tile of a staged convolution; places of a thread there; entries of a
 * window from which it pays. */
enum { STAGE_BYTES = 32 << 10, MOST_PLACES = 4, FEWEST_STAGED = 9 };

/* Attribute `list` for spatial axis i. */
static int64_t number(const gen_call *c, uint32_t list, uint32_t i, int64_t otherwise)
{
    const ir_attribute *a = &c->op->attributes[list];
    return i < a->ints.n ? a->ints.at[i] : otherwise;
}

/* A channel a group, and a filter a channel; what follows the convolution runs by the generic
 * body. */
static bool accepts_conv(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *w = gen_input(c, W), *bias = gen_input(c, BIAS);
    const ir_attribute *a = c->op->attributes;
    return gen_accepts_plain(c) && x->rank == 4 && a[LAST].i && !a[TRANSPOSED].i && !a[EXPR].s.n &&
           gen_is_short_float(x) && gen_is_short_float(w) && (!bias || gen_is_short_float(bias)) &&
           a[GROUPS].i == x->dims[1] && w->dims[0] == x->dims[1] && x->stride[1] == 1 &&
           w->stride[0] == 1 && (!bias || bias->stride[0] == 1) && w->dims[3] <= MOST_KERNEL &&
           number(c, STRIDE, 1, 1) <= MOST_APART && number(c, DILATION, 1, 1) <= MOST_APART;
}

/* Places of a thread where nothing is staged: some only if threads are left none without work. */
static int places_of(const gen_call *c)
{
    const ir_tensor *y = gen_output(c, 0);
    const ir_box box = c->box ? *c->box : ir_box_whole(y);
    return ir_box_elements(&box, y->rank) >= (int64_t)PLACES * ROWS_PIECE * THREADS ? PLACES : 1;
}

/* A tile of a staged convolution: places along rows and columns, pieces of eight channels, places
 * of a thread; copies of it in shared memory.  With 0 pieces it is not staged. */
typedef struct stage {
    int64_t rows, columns, pieces, places, copies;
} stage;

/* Parts of `part` entries that n entries have; the last may be short. */
static int64_t parts_of(int64_t n, int64_t part)
{
    return (n + part - 1) / part;
}

/* The next number of parts after `parts` in which n parts are smaller; n + 1 after the last. */
static int64_t next_parts(int64_t n, int64_t parts)
{
    const int64_t part = parts_of(n, parts);
    return part > 1 ? parts_of(n, part - 1) : n + 1;
}

/* Places of x along spatial axis i that so many windows side by side see. */
static int64_t seen_of(const gen_call *c, uint32_t i, int64_t places)
{
    return (places - 1) * number(c, STRIDE, i, 1) +
           (gen_input(c, W)->dims[2 + i] - 1) * number(c, DILATION, i, 1) + 1;
}

/* Bytes of shared memory that a piece of a tile takes: what its windows see, and its filters. */
static int64_t piece_bytes(const gen_call *c, const stage *s)
{
    const int64_t *kernel = gen_input(c, W)->dims + 2;
    const int64_t places =
        parts_of(s->columns, s->places) * s->places; /* of a row, in whole runs */
    return (seen_of(c, 0, s->rows) * seen_of(c, 1, places) + kernel[0] * kernel[1]) * ROWS_PIECE *
           2;
}

/* Tiles of an image. */
static int64_t tiles_of(const stage *s, const ir_box *box)
{
    return parts_of(box->hi[1] - box->lo[1], s->rows) *
           parts_of(box->hi[2] - box->lo[2], s->columns) *
           parts_of((box->hi[3] - box->lo[3]) / ROWS_PIECE, s->pieces);
}

/* Are all pieces of eight channels of this tensor, whose channels are axis `channels`, whole,
 * aligned and of 16 bits? */
static bool has_pieces(const ir_tensor *t, uint32_t channels)
{
    bool has = (t->dtype == IR_BF16 || t->dtype == IR_F16) && t->offset % ROWS_PIECE == 0 &&
               t->dims[channels] % ROWS_PIECE == 0;
    for (uint32_t i = 0; i < t->rank; i++)
        has = has && (i == channels || t->dims[i] == 1 || t->stride[i] % ROWS_PIECE == 0);
    return has && ir_elements(t) < INT32_MAX / 4;
}

/* Cycles of an image of a task by tiles like this: instructions of its warps, of which a scheduler
 * has two.  An item's row of the window takes the reads and conversions of its columns and of the
 * filters, 9 each, and a product for each entry; a copy of 16 bytes takes 20, and a tile 600
 * besides. */
static double stage_cost(const gen_call *c, const stage *s, const ir_box *box)
{
    enum { READ = 9, COPY = 20, TILE = 600, ITEM = 100, WARPS_OF_A_SCHEDULER = 2 };
    const int64_t *kernel = gen_input(c, W)->dims + 2, runs = parts_of(s->columns, s->places);
    const int64_t row =
        READ * (seen_of(c, 1, s->places) + kernel[1]) + ROWS_PIECE * s->places * kernel[1];
    const int64_t rounds = parts_of(s->rows * runs * s->pieces, THREADS),
                  copies = parts_of(s->pieces * piece_bytes(c, s) / 16, THREADS);
    return (double)tiles_of(s, box) *
           (double)(WARPS_OF_A_SCHEDULER * (rounds * (kernel[0] * row + ITEM) + copies * COPY) +
                    TILE);
}

/* The cheapest tile of so many places a thread that fits: the box cut into equal parts along each
 * axis.  *cost: of the best so far. */
static void try_places(const gen_call *c, const ir_box *box, int64_t places, double *cost,
                       stage *best)
{
    const int64_t rows = box->hi[1] - box->lo[1], columns = box->hi[2] - box->lo[2],
                  pieces = (box->hi[3] - box->lo[3]) / ROWS_PIECE;
    for (int64_t i = 1; i <= rows; i = next_parts(rows, i))
        for (int64_t j = 1; j <= columns; j = next_parts(columns, j)) {
            stage s = {parts_of(rows, i), parts_of(columns, j), 1, places, 1};
            const int64_t most = STAGE_BYTES / piece_bytes(c, &s); /* pieces that fit */
            for (int64_t k = most ? parts_of(pieces, most) : pieces + 1; k <= pieces;
                 k = next_parts(pieces, k)) {
                s.pieces = parts_of(pieces, k);
                const double now = stage_cost(c, &s, box);
                if (now < *cost) {
                    *best = s;
                    *cost = now;
                }
            }
        }
}

/* The tile and the places of a thread: the cheapest, of two copies if the task has several tiles.
 * Windows of a few entries gain nothing. */
static stage stage_of(const gen_call *c)
{
    const ir_tensor *y = gen_output(c, 0), *w = gen_input(c, W);
    const ir_box box = c->box ? *c->box : ir_box_whole(y);
    stage s = {.places = places_of(c)};
    double cost = INFINITY;
    if (!has_pieces(gen_input(c, X), 1) || !has_pieces(w, 0) || !has_pieces(y, 3) ||
        w->dims[2] * w->dims[3] < FEWEST_STAGED || box.hi[3] - box.lo[3] < ROWS_PIECE)
        return s;
    for (int64_t places = 1; places <= MOST_PLACES; places *= 2)
        try_places(c, &box, places, &cost, &s);
    if (s.pieces)
        s.copies = (box.hi[0] - box.lo[0]) * tiles_of(&s, &box) > 1 ? 2 : 1;
    return s;
}

/* The tile's part of the image and its filters, of each copy; 0 without staging. */
static uint32_t conv_scratch_bytes(const gen_call *c)
{
    const stage s = stage_of(c); /* pieces 0: nothing is staged */
    return (uint32_t)(s.pieces ? s.copies * s.pieces * piece_bytes(c, &s) : 0);
}

/* Places, columns of the kernel, its stride and its dilation along them are arguments of the
 * template: arrays in registers have lengths that follow from these. */
static mpk_status print_conv(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    text_print(out, "    constexpr conv_how how = {");
    for (uint32_t i = STRIDE; i <= DILATION; i++) {
        text_print(out, "{{");
        gen_print_list(c, i, 2, i != PADDING, out);
        text_print(out, "}}, ");
    }
    text_print(out, "%lld, false, true};\n", (long long)c->op->attributes[GROUPS].i);
    const stage s = stage_of(c);
    text_print(out, "    conv_rows%s<%d, %lld, %lld, %lld", s.pieces ? "_staged" : "",
               (int)s.places, (long long)gen_input(c, W)->dims[3],
               (long long)number(c, STRIDE, 1, 1), (long long)number(c, DILATION, 1, 1));
    if (s.pieces)
        text_print(out, ", %lld, %lld, %lld, %lld, %lld, %lld, %lld",
                   (long long)number(c, STRIDE, 0, 1), (long long)number(c, DILATION, 0, 1),
                   (long long)s.rows, (long long)s.columns, (long long)s.pieces,
                   (long long)gen_input(c, W)->dims[2], (long long)s.copies);
    text_print(out, ">(t, in_x, in_w, in_bias, out_y, how);\n}\n");
    return MPK_OK;
}

/* Numbers of a pool's windows along a spatial axis. */
static int64_t windows_number(const gen_call *c, uint32_t list, uint32_t i)
{
    const bool is_kernel = list == POOL_STRIDE && !c->op->attributes[list].ints.n;
    return number(c, is_kernel ? POOL_KERNEL : list, i, list != POOL_PADDING);
}

/* Channels are the last of three axes of places, with windows of one entry, and neighbours. */
static bool accepts_pool(const gen_call *c)
{
    enum { CHANNELS = 2, COLUMNS = 1, RANK = 5 };
    const ir_tensor *x = gen_input(c, X), *values = gen_output(c, 0), *indices = gen_output(c, 1);
    return x->rank == RANK && gen_is_short_float(x) && !c->op->attributes[POOL_OUTPUT].ints.n &&
           windows_number(c, POOL_KERNEL, CHANNELS) == 1 &&
           windows_number(c, POOL_STRIDE, CHANNELS) == 1 &&
           windows_number(c, POOL_PADDING, CHANNELS) == 0 &&
           windows_number(c, POOL_KERNEL, COLUMNS) <= MOST_KERNEL && x->stride[RANK - 1] == 1 &&
           values->stride[RANK - 1] == 1 && indices->stride[RANK - 1] == 1 &&
           (double)x->dims[2] * (double)x->dims[3] < INT32_MAX;
}

/* Does an operator read the tensor, or the graph's caller? */
static bool is_read(const ir_graph *g, ir_tensor_id t)
{
    bool read = false;
    for (size_t i = 0; i < g->outputs.n; i++)
        read |= g->outputs.at[i] == t;
    for (size_t i = 0; i < g->ops.n && !read; i++)
        for (uint32_t k = 0; k < g->ops.at[i].n_in; k++)
            read |= g->ops.at[i].in[k] == t;
    return read;
}

/* How max_pool_pieces goes over windows: windows side by side in a thread, none where it does not
 * take the pool, and rows of theirs whose loads are under way together. */
typedef struct pieces_plan {
    int64_t places, rows;
} pieces_plan;

static pieces_plan plan_pieces(const gen_call *c)
{
    enum { MOST_LOADS = 20, MOST_STEP = 3 };
    const ir_tensor *x = gen_input(c, X), *values = gen_output(c, 0);
    const int64_t kernel = windows_number(c, POOL_KERNEL, 1),
                  rows = windows_number(c, POOL_KERNEL, 0),
                  step = windows_number(c, POOL_STRIDE, 1);
    const int64_t bytes = (int64_t)ir_dtype_table[x->dtype].block_bytes;
    pieces_plan p = {1, 1};
    if (is_read(c->ir, c->op->out[1]) || x->dims[4] % ROWS_PIECE || values->dtype != x->dtype ||
        (double)bytes * (double)ir_elements(x) / (double)x->dims[0] >= INT32_MAX ||
        ir_elements(values) >= INT32_MAX)
        return (pieces_plan){0, 0};
    if (windows_number(c, POOL_DILATION, 1) == 1 && step <= MOST_STEP &&
        kernel + step <= MOST_LOADS)
        p.places = PLACES;
    while (p.rows < rows && (p.rows + 1) * (kernel + (p.places - 1) * step) <= MOST_LOADS)
        p.rows++;
    while (rows % p.rows) /* no row is read that the window has not */
        p.rows--;
    return p;
}

/* The windows of the first two axes; those of the channels have one entry. */
static mpk_status print_pool(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    static const uint32_t lists[] = {POOL_KERNEL, POOL_STRIDE, POOL_PADDING, POOL_DILATION};
    const long long kernel = windows_number(c, POOL_KERNEL, 1);
    const pieces_plan p = plan_pieces(c);
    (void)cx;
    gen_print_head(c, n, out);
    text_print(out, "    constexpr pool_how how = {");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        text_print(out, "{{%lld, %lld, 1}}, ", (long long)windows_number(c, lists[i], 0),
                   (long long)windows_number(c, lists[i], 1));
    text_print(out, "{{1, 1, 1}}, false};\n");
    if (p.places)
        text_print(
            out,
            "    if (!max_pool_pieces<%lld, %lld, %lld, %lld>(t, in_x, out_values, how))\n    ",
            (long long)p.places, kernel, (long long)windows_number(c, POOL_STRIDE, 1),
            (long long)p.rows);
    text_print(out, "    max_pool_rows<%lld, %s>(t, in_x, out_values, out_indices, how);\n}\n",
               kernel, str_bool(is_read(c->ir, c->op->out[1])));
    return MPK_OK;
}

const gen_body gen_body_max_pool_rows = {.op = "max_pool",
                                         .name = "windows_rows",
                                         .rank = 5,
                                         .accepts = accepts_pool,
                                         .print = print_pool};
const gen_body gen_body_conv_rows = {.op = "conv",
                                     .name = "windows_rows",
                                     .rank = 5,
                                     .accepts = accepts_conv,
                                     .print = print_conv,
                                     .scratch_bytes = conv_scratch_bytes};
