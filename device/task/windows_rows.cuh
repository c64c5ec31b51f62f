/* windows_rows.cuh - depthwise convolutions and max pools of images whose channels lie last, of two
 * spatial axes.
 *
 * A thread takes eight neighbouring channels (pieces.cuh) of one place or of some places next to
 * each other, so that a warp reads and writes whole lines and a column of x serves all windows that
 * hold it.  Sums are in fp32, in row-major order of the window.
 *
 *    conv_rows_staged   whole pieces of 16 bits, windows of 9 entries and more; by tiles
 *    conv_rows          any other depthwise convolution, from global memory
 *    max_pool_pieces    whole pieces, where no operator reads the indices
 *    max_pool_rows      any other pool
 *
 * Input: x and the filters with their channels as neighbours; output: the task's box, channels last
 * too.  But for staging (scratch and barriers) threads share nothing.  The columns of a window, its
 * stride and its dilation along them are template arguments, so entries stay in registers; its rows
 * are a loop.  Relies on floats of 16 or 32 bits; what this does not take is done by windows.cuh.
 * src/gen/body_windows_rows.c chooses.
 * Cost: a load of x for each column of each row of a window, from the cache.
 */
#ifndef TASK_WINDOWS_ROWS_CUH
#define TASK_WINDOWS_ROWS_CUH

#include "task/rows_warp.cuh"
#include "task/windows.cuh"

/* The items of a loop: the box as pieces of eight channels, its last axis, and as runs of `places`
 * along the axis before that.  Both are counted from 0 and rounded up, so the last ones may be part
 * empty.  Pieces are counted fastest, so neighbouring threads have neighbouring channels. */
MPK_FN mpk_box windows_items(const mpk_box &box, int rank, int places)
{
    mpk_box items = box;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == rank - 1 || i == rank - 2) {
            const int unit = i == rank - 1 ? ROWS_PIECE : places;
            items.lo[i] = 0;
            items.hi[i] = (box.hi[i] - box.lo[i] + unit - 1) / unit;
        }
    return items;
}

/* sum[p] += the row of the window, for PLACES windows: entry k of window p is column p * STRIDE + k
 * * APART of the run.  g_x, g_w: the piece of the image's row and of the filter's; first: the run's
 * first column.  All loads are in flight before the first product.  A column outside the image is
 * neither loaded nor counted.  Each column is unpacked once and added to all windows that have it:
 * j grows, so a window still gets its entries in rising order. */
template <int PLACES, int KERNEL, int STRIDE, int APART>
MPK_FN void windows_add_row(float (&r_sum)[PLACES][ROWS_PIECE], const mpk_view &x, const char *g_x,
                            const mpk_view &w, const char *g_w, int first)
{
    /* columns of x that the windows have between them, of which each is loaded once */
    enum { COLUMNS = (PLACES - 1) * STRIDE + (KERNEL - 1) * APART + 1 };
    const int columns = (int)x.dims[3]; /* of the image */
    rows_raw r_w[KERNEL], r_x[COLUMNS]; /* as loaded */
#pragma unroll
    for (int k = 0; k < KERNEL; k++)
        rows_fetch(w.dtype, g_w + k * w.stride[3] * mpk_dtype_bytes(w.dtype), r_w[k]);
        /* One unsigned comparison tests both ends of the row. */
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        if ((rt_u32)(first + j) < (rt_u32)columns)
            rows_fetch(x.dtype, g_x + (first + j) * x.stride[3] * mpk_dtype_bytes(x.dtype), r_x[j]);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        if ((rt_u32)(first + j) >= (rt_u32)columns)
            continue;
        float r_entry[ROWS_PIECE]; /* a column, unpacked once for all windows */
        rows_floats(x.dtype, r_x[j], r_entry);
#pragma unroll
        for (int p = 0; p < PLACES; p++)
#pragma unroll
            for (int k = 0; k < KERNEL; k++)
                /* constants after unrolling: one product for each window that has the column */
                if (p * STRIDE + k * APART == j) {
                    float r_weight[ROWS_PIECE];
                    rows_floats(w.dtype, r_w[k], r_weight);
#pragma unroll
                    for (int i = 0; i < ROWS_PIECE; i++)
                        r_sum[p][i] += r_weight[i] * r_entry[i];
                }
    }
}

/* The same where pieces are not whole or not aligned, entry by entry: n channels, of which eight at
 * most are read.  Products are added in the same order as in windows_add_row, so the bits are the
 * same.  A column is read again for each window that has it: short code counts here, not loads. */
template <int PLACES, int KERNEL, int STRIDE, int APART>
MPK_FN void windows_add_entries(float (&r_sum)[PLACES][ROWS_PIECE], const mpk_view &x,
                                const char *g_x, const mpk_view &w, const char *g_w, int first,
                                rt_i64 n)
{
#pragma unroll 1
    for (int k = 0; k < KERNEL; k++) {
        float r_weight[ROWS_PIECE], r_entry[ROWS_PIECE]; /* entry k of the filter; of the image */
        rows_read_entries(w.dtype, g_w + k * w.stride[3] * mpk_dtype_bytes(w.dtype), 1, n, 0,
                          r_weight);
#pragma unroll
        for (int p = 0; p < PLACES; p++) {
            const int column = first + p * STRIDE + k * APART; /* of the image */
            if ((rt_u32)column >= (rt_u32)x.dims[3])
                continue;
            rows_read_entries(x.dtype, g_x + column * x.stride[3] * mpk_dtype_bytes(x.dtype), 1, n,
                              0, r_entry);
#pragma unroll
            for (int i = 0; i < ROWS_PIECE; i++)
                r_sum[p][i] += r_weight[i] * r_entry[i];
        }
    }
}

/* Is every piece of eight channels of an image aligned to 16 bytes, whatever its place?  Its
 * address and all strides but that of the channels have to be.  Strides are constants, so a task
 * looks at its address alone. */
MPK_FN bool windows_aligned(const mpk_view &x, const char *g_x)
{
    bool aligned = true; /* until an axis is not */
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        aligned =
            aligned && (i >= x.rank || x.stride[i] == 1 || rows_aligned(x.dtype, g_x, x.stride[i]));
    return aligned;
}

/* The body of a depthwise conv without staging: x [N, C, H, W] with channels last, w [C, 1, h,
 * KERNEL] with its filters last, y [N, .., C].
 *
 * An item is PLACES neighbouring places of a row of y and eight channels; the windows of an item
 * overlap, so a column of x is loaded once for all of them:
 *
 *   column of x     0 1 2 3 4          KERNEL 3, STRIDE 1, PLACES 3
 *   window 0        . . .
 *   window 1          . . .
 *   window 2            . . .
 *
 * `channels` is where the box ends: beyond it nothing is read or written, and places beyond the
 * box are computed and not written. */
template <int PLACES, int KERNEL, int STRIDE, int APART>
MPK_FN void conv_rows(const mpk_task &t, const mpk_view &x, const mpk_view &w, const mpk_view &bias,
                      const mpk_view &y, const conv_how &h)
{
    const char *g_x = mpk_data(t, x), *g_w = mpk_data(t, w), *g_bias = mpk_data(t, bias);
    char *g_y = mpk_data(t, y);
    const mpk_box box = mpk_box_of(t, 4), items = windows_items(box, 4, PLACES);
    const rt_i64 channels = box.hi[3]; /* end of the box's */
    /* Tested once a task: the fast loop has no test of alignment. */
    const bool aligned =
        windows_aligned(x, g_x) && windows_aligned(w, g_w) && box.lo[3] % ROWS_PIECE == 0;
    for (rt_u64 i = (rt_u64)mpk_thread(); i < mpk_count(items, 4); i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(items, 4, i, at);
        const rt_i64 channel = (rt_i64)box.lo[3] + at[3] * ROWS_PIECE,
                     place = (rt_i64)box.lo[2] + at[2] * PLACES;
        /* The window's first row and the first window's first column, perhaps in the padding. */
        const rt_i64 top = at[1] * h.stride.at[0] - h.padding.at[0],
                     left = place * h.stride.at[1] - h.padding.at[1];
        float r_sum[PLACES][ROWS_PIECE], r_bias[ROWS_PIECE] = {}; /* eight channels a place */
#pragma unroll
        for (int p = 0; p < PLACES * ROWS_PIECE; p++)
            r_sum[p / ROWS_PIECE][p % ROWS_PIECE] = 0;
#pragma unroll 1
        for (int k = 0; k < (int)w.dims[2]; k++) {
            /* row k of the window, which may be in the padding */
            const rt_i64 row = top + k * h.dilation.at[0];
            const char *g_row = g_x + (at[0] * x.stride[0] + row * x.stride[2] + channel) *
                                          mpk_dtype_bytes(x.dtype),
                       *g_filter = g_w + (k * w.stride[2] + channel) * mpk_dtype_bytes(w.dtype);
            /* a row in the padding: unsigned, so that one comparison tests both ends */
            if ((rt_u64)row >= (rt_u64)x.dims[2])
                continue;
            if (aligned && channels - channel >= ROWS_PIECE)
                windows_add_row<PLACES, KERNEL, STRIDE, APART>(r_sum, x, g_row, w, g_filter,
                                                               (int)left);
            else
                windows_add_entries<PLACES, KERNEL, STRIDE, APART>(r_sum, x, g_row, w, g_filter,
                                                                   (int)left, channels - channel);
        }
        if (mpk_is_there(bias))
            rows_read(bias.dtype, g_bias, channel, channels, 0, r_bias);
#pragma unroll
        for (int p = 0; p < PLACES; p++) {
#pragma unroll
            for (int e = 0; e < ROWS_PIECE; e++)
                r_sum[p][e] += r_bias[e];
            const rt_i64 to = at[0] * y.stride[0] + at[1] * y.stride[1] + (place + p) * y.stride[2];
            if (place + p < (rt_i64)box.hi[2])
                rows_write(y.dtype, g_y + to * mpk_dtype_bytes(y.dtype), channel, channels,
                           r_sum[p]);
        }
    }
}

/* A tile of a staged convolution: pieces of eight channels that it has, rows of the filters.  In
 * scratch, pieces of 16 bytes, channels fastest:
 *
 *    filters   [kernel][KERNEL][pieces]
 *    image     [rows][columns][pieces]    all that the tile's windows see, zeros outside of x */
struct conv_tile {
    int pieces, kernel; /* of eight channels; rows of the filter */
};

/* All threads: request the filters of a tile's channels, [kernel, KERNEL, pieces], and after them
 * what its windows see of the image, [rows, columns, pieces]; zeros outside of it.  n_pieces of
 * them are there.  g_x: the image, g_w: the filters, both at the tile's first channel; first_row,
 * first_column: of the image, may be negative.  The copies are one group of the thread's
 * (ptx_copy_async_commit), and others' are seen after a barrier.  Pieces are fastest: neighbouring
 * threads read neighbours of the image and fill neighbouring banks. */
template <int KERNEL, int IN_ROWS, int IN_COLUMNS>
MPK_FN void conv_stage(char *s_w, const conv_tile &tile, const mpk_view &x, const char *g_x,
                       const mpk_view &w, const char *g_w, int n_pieces, int first_row,
                       int first_column)
{
    char *s_x = s_w + tile.kernel * KERNEL * tile.pieces * 16;
    const int row_step = (int)x.stride[2] * 2, column_step = (int)x.stride[3] * 2; /* bytes */
#pragma unroll 1
    for (int i = mpk_thread(); i < tile.kernel * KERNEL * tile.pieces; i += MPK_THREADS) {
        const int piece = i % tile.pieces, k = i / tile.pieces;
        const bool there = piece < n_pieces; /* of the box's channels */
        const int at = (k / KERNEL * (int)w.stride[2] + k % KERNEL * (int)w.stride[3]) * 2;
        /* an address inside the filters in any case: a copy of nothing still has one */
        ptx_copy_async(s_w + i * 16, g_w + at + (there ? piece * 16 : 0), there);
    }
#pragma unroll 1
    for (int i = mpk_thread(); i < IN_ROWS * IN_COLUMNS * tile.pieces; i += MPK_THREADS) {
        const int piece = i % tile.pieces, place = i / tile.pieces;
        const int row = first_row + place / IN_COLUMNS, column = first_column + place % IN_COLUMNS;
        /* zeros where the image ends: the padding of the convolution */
        const bool there = piece < n_pieces && (rt_u32)row < (rt_u32)x.dims[2] &&
                           (rt_u32)column < (rt_u32)x.dims[3];
        ptx_copy_async(s_x + i * 16,
                       there ? g_x + row * row_step + column * column_step + piece * 16 : g_x,
                       there);
    }
    ptx_copy_async_commit();
}

/* A piece of a tile in shared memory, as floats; 16 bits an entry. */
MPK_FN void conv_read(int dtype, const char *s, float (&r)[ROWS_PIECE])
{
    rows_raw raw;
    raw.at[0] = *(const uint4 *)s;
    rows_floats(dtype, raw, r);
}

/* Store what lies in the box of the piece at channel `first` of a row of y.  The box may begin
 * within the piece: the other channels are another task's, which makes them, too. */
MPK_FN void conv_write(const mpk_view &y, char *g_row, rt_i64 first, const mpk_box &box,
                       const float (&r)[ROWS_PIECE])
{
    if (first >= (rt_i64)box.lo[3]) {
        rows_write(y.dtype, g_row, first, box.hi[3], r);
        return;
    }
#pragma unroll
    for (int e = 0; e < ROWS_PIECE; e++)
        if (first + e >= (rt_i64)box.lo[3] && first + e < (rt_i64)box.hi[3])
            mpk_put(y, g_row, first + e, r[e]);
}

/* The sums of PLACES windows side by side of a tile that has been staged: the item's piece of the
 * first row's first column is at s_x, of the filters at s_w; ROW_BYTES from a row of the window to
 * the next.  Entries come in the order of the window, and those in the padding are zeros.  A row of
 * the filters is converted once for all places, a column of x once for all windows that have it. */
template <int PLACES, int KERNEL, int STRIDE, int APART, int ROW_BYTES>
MPK_FN void conv_staged_sums(float (&r_sum)[PLACES][ROWS_PIECE], const conv_tile &tile, int x_dtype,
                             const char *s_x, int w_dtype, const char *s_w)
{
    enum { COLUMNS = (PLACES - 1) * STRIDE + (KERNEL - 1) * APART + 1 };
#pragma unroll 1
    for (int k = 0; k < tile.kernel; k++) {
        float r_w[KERNEL][ROWS_PIECE]; /* a row of the filter */
#pragma unroll
        for (int i = 0; i < KERNEL; i++)
            conv_read(w_dtype, s_w + (k * KERNEL + i) * tile.pieces * 16, r_w[i]);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            float r_x[ROWS_PIECE]; /* a column of the row */
            conv_read(x_dtype, s_x + k * ROW_BYTES + j * tile.pieces * 16, r_x);
#pragma unroll
            for (int p = 0; p < PLACES; p++)
#pragma unroll
                for (int i = 0; i < KERNEL; i++)
                    if (p * STRIDE + i * APART == j)
#pragma unroll
                        for (int e = 0; e < ROWS_PIECE; e++)
                            r_sum[p][e] += r_w[i][e] * r_x[e];
        }
    }
}

/* How a task's box is cut into tiles of TILE_ROWS x TILE_COLUMNS places and PIECES pieces, piece
 * tiles first.  Rows, columns and pieces of the box; its first place and piece.  The last tile
 * along an axis may reach beyond the box: what lies there is staged and not made. */
struct conv_tiles {
    int rows, columns, pieces, top, left, begin;
    int row_tiles, column_tiles, piece_tiles, n; /* n: all */
};
template <int TILE_ROWS, int TILE_COLUMNS, int PIECES>
MPK_FN conv_tiles conv_tiles_of(const mpk_box &box)
{
    conv_tiles c;
    c.top = (int)box.lo[1];
    c.left = (int)box.lo[2];
    c.begin = (int)box.lo[3] / ROWS_PIECE;
    c.rows = (int)box.hi[1] - c.top;
    c.columns = (int)box.hi[2] - c.left;
    c.pieces = ((int)box.hi[3] + ROWS_PIECE - 1) / ROWS_PIECE - c.begin;
    c.row_tiles = (c.rows + TILE_ROWS - 1) / TILE_ROWS;
    c.column_tiles = (c.columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    c.piece_tiles = (c.pieces + PIECES - 1) / PIECES;
    c.n = (int)(box.hi[0] - box.lo[0]) * c.row_tiles * c.column_tiles * c.piece_tiles;
    return c;
}

/* Where tile number n begins, counted from the box: image, place and piece. */
struct conv_at {
    int image, row, column, piece;
};
template <int TILE_ROWS, int TILE_COLUMNS, int PIECES>
MPK_FN conv_at conv_at_of(const conv_tiles &c, int n)
{
    const int over = n / c.piece_tiles, rows = over / c.column_tiles;
    return {rows / c.row_tiles, rows % c.row_tiles * TILE_ROWS,
            over % c.column_tiles * TILE_COLUMNS, n % c.piece_tiles * PIECES};
}

/* The body of a depthwise conv with staging.  As conv_rows, of 16-bit x and filters whose pieces
 * are all aligned and whole; of a piece that the box cuts all is read, and its part is written.
 * The box is cut into tiles; what a tile's windows see of the image, and its filters, are brought
 * to shared memory once, where each entry is read by up to all entries of a window.  COPIES 2: the
 * next tile comes while this one is multiplied.
 *
 *    round n     COPIES 1: tile n comes, is made       COPIES 2: tile n + 1 comes, tile n is made
 *    room        n % COPIES of the scratch             round -1 only brings tile 0
 *
 * An item is PLACES places of a row and eight channels; neighbouring threads have neighbouring
 * pieces, so reads of shared memory meet no conflicts.  Cost: a tile's bytes from L2, and a read of
 * 16 bytes from shared memory for each column of a row of an item's windows, and of its filters.
 * src/gen/body_windows_rows.c chooses tiles and places. */
template <int PLACES, int KERNEL, int STRIDE, int APART, int ROW_STRIDE, int ROW_APART,
          int TILE_ROWS, int TILE_COLUMNS, int PIECES, int KERNEL_ROWS, int COPIES>
MPK_FN void conv_rows_staged(const mpk_task &t, const mpk_view &x, const mpk_view &w,
                             const mpk_view &bias, const mpk_view &y, const conv_how &h)
{
    enum {
        /* rows and columns of x that a tile's windows see; runs of PLACES in a row of the tile */
        RUNS = (TILE_COLUMNS + PLACES - 1) / PLACES,
        IN_ROWS = (TILE_ROWS - 1) * ROW_STRIDE + (KERNEL_ROWS - 1) * ROW_APART + 1,
        IN_COLUMNS = (RUNS * PLACES - 1) * STRIDE + (KERNEL - 1) * APART + 1,
        COPY_BYTES = (IN_ROWS * IN_COLUMNS + KERNEL_ROWS * KERNEL) * PIECES * 16
    };
    constexpr conv_tile tile = {PIECES, KERNEL_ROWS}; /* so that sizes are constants */
    const char *g_x = mpk_data(t, x), *g_w = mpk_data(t, w), *g_bias = mpk_data(t, bias);
    char *g_y = mpk_data(t, y);
    const mpk_box box = mpk_box_of(t, 4);
    const conv_tiles c = conv_tiles_of<TILE_ROWS, TILE_COLUMNS, PIECES>(box);
#pragma unroll 1
    for (int n = 1 - COPIES; n < c.n; n++) {
        const int next = n + COPIES - 1;
        /* the tile that lay there has been read by all */
        mpk_sync();
        if (next < c.n) {
            const conv_at a = conv_at_of<TILE_ROWS, TILE_COLUMNS, PIECES>(c, next);
            const int channel = (c.begin + a.piece) * ROWS_PIECE;
            conv_stage<KERNEL, IN_ROWS, IN_COLUMNS>(
                t.s_scratch + next % COPIES * COPY_BYTES, tile, x,
                g_x + (((rt_i64)box.lo[0] + a.image) * x.stride[0] + channel) * 2, w,
                g_w + channel * 2, c.pieces - a.piece,
                (c.top + a.row) * ROW_STRIDE - (int)h.padding.at[0],
                (c.left + a.column) * STRIDE - (int)h.padding.at[1]);
            /* of this thread all but the newest group of copies have ended: tile n is there, after
             * the barrier of all */
            ptx_copy_async_wait<COPIES - 1>();
        } else {
            ptx_copy_async_wait<0>();
        }
        mpk_sync();
        if (n < 0)
            continue;
        const conv_at a = conv_at_of<TILE_ROWS, TILE_COLUMNS, PIECES>(c, n);
        const char *s_w = t.s_scratch + n % COPIES * COPY_BYTES,
                   *s_x = s_w + KERNEL_ROWS * KERNEL * PIECES * 16;
#pragma unroll 1
        for (int i = mpk_thread(); i < TILE_ROWS * RUNS * PIECES; i += MPK_THREADS) {
            const int piece = i % PIECES, column = i / PIECES % RUNS * PLACES,
                      row = i / PIECES / RUNS;
            /* the tile reaches beyond the box */
            if (a.piece + piece >= c.pieces || a.row + row >= c.rows)
                continue;
            const rt_i64 first = (c.begin + a.piece + piece) * ROWS_PIECE; /* of the item */
            float r_sum[PLACES][ROWS_PIECE], r_bias[ROWS_PIECE] = {};
            if (mpk_is_there(bias))
                rows_read(bias.dtype, g_bias, first, y.dims[3], 0, r_bias);
#pragma unroll
            for (int p = 0; p < PLACES * ROWS_PIECE; p++)
                r_sum[p / ROWS_PIECE][p % ROWS_PIECE] = 0;
            conv_staged_sums<PLACES, KERNEL, STRIDE, APART, ROW_APART * IN_COLUMNS * PIECES * 16>(
                r_sum, tile, x.dtype,
                s_x + ((row * ROW_STRIDE * IN_COLUMNS + column * STRIDE) * PIECES + piece) * 16,
                w.dtype, s_w + piece * 16);
            const rt_i64 to = ((rt_i64)box.lo[0] + a.image) * y.stride[0] +
                              (c.top + a.row + row) * y.stride[1] +
                              (c.left + a.column + column) * y.stride[2];
#pragma unroll
            for (int p = 0; p < PLACES; p++) {
#pragma unroll
                for (int e = 0; e < ROWS_PIECE; e++)
                    r_sum[p][e] += r_bias[e];
                if (a.column + column + p < c.columns && column + p < TILE_COLUMNS)
                    conv_write(y, g_y + (to + p * y.stride[2]) * mpk_dtype_bytes(y.dtype), first,
                               box, r_sum[p]);
            }
        }
    }
}

/* The largest entry so far of each of eight channels, and its place: the number of its pixel,
 * row * columns + column, in the image; -1 while there is none. */
struct windows_most {
    float r_most[ROWS_PIECE]; /* by channel */
    int r_at[ROWS_PIECE];     /* pixel of the image */
};
/* Take in an entry: what is larger than the largest so far, or NaN, takes its place; and whatever
 * comes first.  Without indices the value alone, which begins as -infinity and needs no first. */
template <bool INDICES>
MPK_FN void windows_take(windows_most &m, const float (&r_entry)[ROWS_PIECE], int number)
{
#pragma unroll
    for (int i = 0; i < ROWS_PIECE; i++)
        /* a later equal entry does not replace the first; a later NaN does */
        if ((INDICES && m.r_at[i] < 0) || r_entry[i] > m.r_most[i] || r_entry[i] != r_entry[i]) {
            m.r_most[i] = r_entry[i];
            m.r_at[i] = number;
        }
}

/* One row of a window, of KERNEL entries `apart` columns apart, from column `first` on; aligned:
 * its pieces are whole, and loaded together.  g_x: row number `row` of the image at these channels;
 * n: channels that are left in the box.  Entries come in rising order, so that of equal ones the
 * first is kept. */
template <int KERNEL, bool INDICES>
MPK_FN void windows_take_row(windows_most &m, const mpk_view &x, const char *g_x, int row,
                             int first, int apart, bool aligned, rt_i64 n)
{
    const int columns = (int)x.dims[3];
    const rt_i64 step = x.stride[3] * mpk_dtype_bytes(x.dtype); /* bytes to the next column */
    float r_entry[ROWS_PIECE];
    rows_raw r_x[KERNEL];
    /* the slow way, a loop that stays one: it is rare, and its code small */
#pragma unroll 1
    for (int k = 0; k < KERNEL && !aligned; k++)
        if ((rt_u32)(first + k * apart) < (rt_u32)columns) {
            rows_read_entries(x.dtype, g_x + (first + k * apart) * step, 1, n, 0, r_entry);
            windows_take<INDICES>(m, r_entry, row * columns + first + k * apart);
        }
    if (!aligned)
        return;
#pragma unroll
    for (int k = 0; k < KERNEL; k++)
        if ((rt_u32)(first + k * apart) < (rt_u32)columns)
            rows_fetch(x.dtype, g_x + (first + k * apart) * step, r_x[k]);
#pragma unroll
    for (int k = 0; k < KERNEL; k++)
        if ((rt_u32)(first + k * apart) < (rt_u32)columns) {
            rows_floats(x.dtype, r_x[k], r_entry);
            windows_take<INDICES>(m, r_entry, row * columns + first + k * apart);
        }
}

/* Sixteen bytes of the least value of a dtype. */
MPK_FN uint4 windows_least(int dtype)
{
    const rt_u32 halves = dtype == MPK_BF16 ? 0xff80ff80u : 0xfc00fc00u,
                 least = dtype == MPK_F32 ? 0xff800000u : halves; /* -infinity */
    return make_uint4(least, least, least, least);
}
/* The larger of two words: of two entries of 16 bits each, or of an f32.  One instruction; NaN
 * wins. */
MPK_FN rt_u32 windows_larger(int dtype, rt_u32 a, rt_u32 b)
{
    if (dtype == MPK_F32)
        return __float_as_uint(ptx_larger(__uint_as_float(a), __uint_as_float(b)));
    return dtype == MPK_BF16 ? ptx_larger_bf16(a, b) : ptx_larger_f16(a, b);
}

/* The largest entries of PLACES windows side by side, of 16 bytes of channels.  ROWS rows are under
 * way together, a divisor of the window's rows: all their loads come before the first comparison,
 * since nothing else hides their latency.  A column that several windows have is loaded once; with
 * PLACES > 1 columns of a window are neighbours.  A place outside of the image is not loaded and is
 * the least value.  g_x: the image at these channels; top, left: where the first window begins,
 * perhaps outside. */
template <int PLACES, int KERNEL, int STRIDE, int ROWS>
MPK_FN void windows_most_of(uint4 (&r)[PLACES], const mpk_view &x, const char *g_x, int top,
                            int left, const pool_how &h)
{
    enum { COLUMNS = (PLACES - 1) * STRIDE + KERNEL };
    const int bytes = mpk_dtype_bytes(x.dtype), row_bytes = (int)x.stride[2] * bytes,
              column_bytes = (int)x.stride[3] * bytes, down = (int)h.dilation.at[0],
              right = (int)h.dilation.at[1];
#pragma unroll 1
    for (int k = 0; k < (int)h.kernel.at[0]; k += ROWS) {
        uint4 r_x[ROWS * COLUMNS];
#pragma unroll
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            const int row = top + (k + i / COLUMNS) * down, column = left + i % COLUMNS * right;
            r_x[i] = windows_least(x.dtype);
            if ((rt_u32)row < (rt_u32)x.dims[2] && (rt_u32)column < (rt_u32)x.dims[3])
                r_x[i] = *(const uint4 *)(g_x + row * row_bytes + column * column_bytes);
        }
#pragma unroll
        for (int i = 0; i < ROWS * COLUMNS; i++)
#pragma unroll
            for (int p = 0; p < PLACES; p++)
                /* a constant after unrolling: does window p have the column? */
                if (i % COLUMNS >= p * STRIDE && i % COLUMNS < p * STRIDE + KERNEL)
                    r[p] = make_uint4(windows_larger(x.dtype, r[p].x, r_x[i].x),
                                      windows_larger(x.dtype, r[p].y, r_x[i].y),
                                      windows_larger(x.dtype, r[p].z, r_x[i].z),
                                      windows_larger(x.dtype, r[p].w, r_x[i].w));
    }
}

/* The body of max_pool where nothing reads indices, of fewer than 2^31 bytes an image and pieces in
 * all: PLACES windows of a row and 16 bytes of channels a thread.  NaN wins, and 0 is larger than
 * -0. Entries stay as they are stored: nothing is converted.  false: some piece is not whole or not
 * aligned, and nothing was done; the instance then calls max_pool_rows. */
template <int PLACES, int KERNEL, int STRIDE, int ROWS>
MPK_FN bool max_pool_pieces(const mpk_task &t, const mpk_view &x, const mpk_view &values,
                            const pool_how &h)
{
    const int bytes = mpk_dtype_bytes(x.dtype);
    const rt_u32 piece = 16 / (rt_u32)bytes; /* entries */
    const char *g_x = mpk_data(t, x);
    char *g_values = mpk_data(t, values);
    const mpk_box box = mpk_box_of(t, 5);
    if (!windows_aligned(x, g_x) || !windows_aligned(values, g_values) ||
        (box.lo[4] | box.hi[4]) % piece)
        return false;
    /* numbers of 32 bits, whose divisions are short */
    const rt_u32 pieces = (box.hi[4] - box.lo[4]) / piece,
                 runs = (box.hi[3] - box.lo[3] + PLACES - 1) / PLACES, rows = box.hi[2] - box.lo[2],
                 planes = box.hi[1] - box.lo[1],
                 n = (box.hi[0] - box.lo[0]) * planes * rows * runs * pieces;
#pragma unroll 1
    for (rt_u32 i = (rt_u32)mpk_thread(); i < n; i += MPK_THREADS) {
        /* channels fastest, then runs of places, rows, planes, images */
        const rt_u32 run = i / pieces, line = run / runs, plane = line / rows,
                     image = plane / planes;
        const int channel = (int)(box.lo[4] + (i - run * pieces) * piece),
                  place = (int)(box.lo[3] + (run - line * runs) * PLACES),
                  row = (int)(box.lo[2] + (line - plane * rows));
        const rt_i64 n_at = box.lo[0] + image, p_at = box.lo[1] + (plane - image * planes);
        const char *g_image = g_x + (n_at * x.stride[0] + p_at * x.stride[1] + channel) * bytes;
        char *g_to = g_values + (n_at * values.stride[0] + p_at * values.stride[1] +
                                 row * values.stride[2] + place * values.stride[3] + channel) *
                                    bytes;
        uint4 r[PLACES];
#pragma unroll
        for (int p = 0; p < PLACES; p++)
            r[p] = windows_least(x.dtype);
        windows_most_of<PLACES, KERNEL, STRIDE, ROWS>(
            r, x, g_image, row * (int)h.stride.at[0] - (int)h.padding.at[0],
            place * (int)h.stride.at[1] - (int)h.padding.at[1], h);
#pragma unroll
        for (int p = 0; p < PLACES; p++)
            /* windows beyond the box are made, too, and not stored */
            if (place + p < (int)box.hi[3])
                *(uint4 *)(g_to + p * values.stride[3] * bytes) = r[p];
    }
    return true;
}

/* The body of max_pool: x [N, P, H, W, C] -> values and indices [N, P, h, w, C], windows of
 * KERNEL columns and one channel.  NaN wins, and the last NaN of several; of equal entries the
 * first.
 *
 * INDICES: whether some operator reads the second result.  If none does, it is not written: an
 * index has 8 bytes, a value mostly 2.
 *
 * An index counts entries of [H, W, C], since to the operator the channels are a third spatial
 * axis, whose windows are one entry; P is its channels. */
template <int KERNEL, bool INDICES>
MPK_FN void max_pool_rows(const mpk_task &t, const mpk_view &x, const mpk_view &values,
                          const mpk_view &indices, const pool_how &h)
{
    const char *g_x = mpk_data(t, x);
    char *g_values = mpk_data(t, values), *g_indices = mpk_data(t, indices);
    const mpk_box box = mpk_box_of(t, 5), items = windows_items(box, 5, 1);
    const int channels = (int)x.dims[4];
    const bool aligned = windows_aligned(x, g_x) && box.lo[4] % ROWS_PIECE == 0;
    for (rt_u64 i = (rt_u64)mpk_thread(); i < mpk_count(items, 5); i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(items, 5, i, at);
        at[3] += box.lo[3];
        at[4] = box.lo[4] + at[4] * ROWS_PIECE;
        const int n = (int)(box.hi[4] - at[4]); /* channels that are left in the box */
        const int top = (int)(at[2] * h.stride.at[0] - h.padding.at[0]),
                  left = (int)(at[3] * h.stride.at[1] - h.padding.at[1]);
        windows_most m; /* of the window so far */
#pragma unroll
        for (int e = 0; e < ROWS_PIECE; e++) {
            m.r_most[e] = -MPK_INFINITY;
            m.r_at[e] = -1;
        }
#pragma unroll 1
        for (int k = 0; k < (int)h.kernel.at[0]; k++) {
            const int row = top + k * (int)h.dilation.at[0]; /* of the image, perhaps outside */
            const char *g_row =
                g_x + (at[0] * x.stride[0] + at[1] * x.stride[1] + row * x.stride[2] + at[4]) *
                          mpk_dtype_bytes(x.dtype);
            if ((rt_u32)row < (rt_u32)x.dims[2])
                windows_take_row<KERNEL, INDICES>(m, x, g_row, row, left, (int)h.dilation.at[1],
                                                  aligned && n >= ROWS_PIECE, n);
        }
        /* Channels that are left out have -infinity here, and are not written. */
        rows_write(values.dtype, g_values + mpk_offset(values, at) * mpk_dtype_bytes(values.dtype),
                   0, n, m.r_most);
        if (!INDICES)
            continue;
        /* a window without entries gives -infinity and number 0 */
        rt_i64 *g_at = (rt_i64 *)g_indices + mpk_offset(indices, at);
#pragma unroll
        for (int e = 0; e < ROWS_PIECE; e++)
            if (e < n)
                g_at[e] = m.r_at[e] < 0 ? 0 : (rt_i64)m.r_at[e] * channels + at[4] + e;
    }
}

#endif
