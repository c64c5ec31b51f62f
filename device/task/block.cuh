/* block.cuh - what block programs are made of (src/super/block.h; printed by
 * src/gen/block_print.c): tiles in shared memory, products by tensor cores or in fp32, partial sums
 * of warps.
 *
 * Eight warps share a tile of sums: warps[0] along its rows, warps[1] along its columns, warps[2]
 * along what is summed over.  A fragment is float[A][B][E]: for tensor cores fields of 16 x 8 with
 * four entries a lane, as ptx_multiply_bf16 has them; in fp32 thread (i / 16, i % 16) has each 16th
 * row and column, E is 1. Needs nothing beyond sm_80. For example warps = {2, 2, 2} and a tile of
 * 64 x 64 give each warp 32 x 32 of the sums over half of what is summed: A = 2, B = 4, E = 4.
 * block_add puts such parts together.
 *
 * The loop of a program is: request the tiles of a later iteration (block_load, block_copy), wait
 * for those of this one (block_wait), multiply, sync before they are overwritten. Which tiles and
 * how many iterations ahead is printed; this file fixes none of it.
 *
 * Everything that depends on a tile's shape is a constant after inlining; loops over fragments are
 * unrolled, since an array of sums that is indexed by a variable would lie in memory.
 */
#ifndef TASK_BLOCK_CUH
#define TASK_BLOCK_CUH

#include "ptx/matrix.cuh"
#include "shape/block_shape.h"
#include "task/map.cuh"
#include "task/pieces.cuh"
#include "tile/view.cuh"

/* A tile in shared memory: rows x columns entries of dtype, row_bytes for a row (a multiple of
 * 16), the layout (BLOCK_PLAIN and so on, shape/block_shape.h).  Its first copy begins `offset`
 * bytes into scratch, and each further one, of iterations that are loaded ahead, copy_bytes after
 * the one before. */
struct block_tile {
    int rows, columns, row_bytes, layout, dtype, offset, copy_bytes;
};
/* How many warps share the rows, the columns and the sum of a tile (their product is 8), and
 * whether tensor cores multiply it.  In fp32 all are 1: threads, not warps, share the tile.
 *
 *   along = {2, 2, 2}, 64 x 64      columns 0-31   32-63
 *   rows 0-31                       warps 0, 4     2, 6        warps 4 to 7 have the second half
 *   rows 32-63                      warps 1, 5     3, 7        of what is summed over
 */
struct block_warps {
    int along[3]; /* rows, columns, what is summed over */
    bool mma;
};

/* ---- loads ---- */

/* One thread: one entry of a tile, from memory of any dtype; 0 where it is not inside, so that
 * products need no mask: a 0 adds nothing.  An entry that has the tile's 16-bit dtype already is
 * moved by its bits, so that NaNs keep their payload. */
MPK_FN void block_put(const block_tile &tile, char *s_tile, int row, int column, int dtype,
                      const char *g, rt_i64 at, bool inside)
{
    const int bytes = mpk_dtype_bytes(tile.dtype);
    const mpk_view from = {0, dtype}, to = {0, tile.dtype}; /* only their dtypes count */
    char *s = s_tile + BLOCK_AT(tile.row_bytes, tile.layout, row, column * bytes);
    if (dtype == tile.dtype && bytes == 2)
        *(rt_u16 *)s = inside ? ((const rt_u16 *)g)[at] : 0;
    else
        mpk_put(to, s, 0, inside ? mpk_get(from, g, at) : 0.0f);
}

/* Entry by entry, neighbouring threads along the axis whose entries are neighbours in memory, so
 * that a warp's loads fall into the same lines whichever way the matrix lies. */
MPK_FN void block_load_entries(const block_tile &tile, char *s_tile, int dtype, const char *g,
                               rt_i64 row_step, rt_i64 column_step, int rows, int columns)
{
    const bool by_rows = row_step == 1 && column_step != 1;
    const int inner = by_rows ? tile.rows : tile.columns;
#pragma unroll 4
    for (int i = mpk_kept_thread(); i < tile.rows * tile.columns; i += MPK_THREADS) {
        const int fast = i % inner, slow = i / inner; /* neighbouring threads: fast */
        const int row = by_rows ? fast : slow;
        const int column = by_rows ? slow : fast;
        block_put(tile, s_tile, row, column, dtype, g, row * row_step + column * column_step,
                  row < rows && column < columns);
    }
}

/* The same in a short loop, where copies were planned for memory that is not aligned for them: it
 * runs seldom, and stands in between code that a task fetches once. */
MPK_FN void block_load_unaligned(const block_tile &tile, char *s_tile, const char *g,
                                 rt_i64 row_step, rt_i64 rows, rt_i64 columns)
{
#pragma unroll 1
    for (int i = mpk_kept_thread(); i < tile.rows * tile.columns; i += MPK_THREADS) {
        const int row = i / tile.columns, column = i % tile.columns;
        block_put(tile, s_tile, row, column, tile.dtype, g, row * row_step + column,
                  row < rows && column < columns);
    }
}

/* The tile at g, of which this many rows and columns are there; the rest becomes 0.  copied:
 * strides and dtype allow copies of 16 bytes, if g is a multiple of 16.  Seen by all after a wait
 * for the group and a sync. */
MPK_FN void block_load(const block_tile &tile, char *s_tile, bool copied, int dtype, const char *g,
                       rt_i64 row_step, rt_i64 column_step, rt_i64 rows, rt_i64 columns)
{
    const int bytes = mpk_dtype_bytes(tile.dtype), pieces = tile.row_bytes / 16;
    const int n_rows = rows < tile.rows ? (int)rows : tile.rows;
    const int n_columns = columns < tile.columns ? (int)columns : tile.columns;
    if (!copied) { /* threads load entries */
        block_load_entries(tile, s_tile, dtype, g, row_step, column_step, n_rows, n_columns);
        return;
    }
    if ((rt_u64)g & 15) { /* planned as copies, but memory is not aligned */
        block_load_unaligned(tile, s_tile, g, row_step, n_rows, n_columns);
        return;
    }
#pragma unroll
    for (int i = mpk_kept_thread(); i < tile.rows * pieces; i += MPK_THREADS) {
        const int row = i / pieces, piece = i % pieces, left = n_columns * bytes - piece * 16;
        const int n = row >= n_rows || left <= 0 ? 0 : left < 16 ? left : 16;
        ptx_copy_async_part(s_tile + BLOCK_AT(tile.row_bytes, tile.layout, row, piece * 16),
                            n ? g + row * row_step * bytes + piece * 16 : g, n);
    }
}

/* ---- the same in a loop ---- */

/* The copies of 16 bytes that a thread makes for a tile in every iteration of a loop over one of
 * the tile's axes: of the same piece of N rows, which lie `BLOCK_ROWS_APART` apart.  Where they
 * begin without the loop's axis, and how many bytes of each are there along the other one, is found
 * once, in front of the loop: an iteration has few products, so that such arithmetic would be most
 * of it. */
#define BLOCK_PIECES(tile) ((tile).row_bytes / 16)
#define BLOCK_ROWS_APART(tile) (MPK_THREADS / BLOCK_PIECES(tile))
#define BLOCK_COPIES(tile) (((tile).rows * BLOCK_PIECES(tile) + MPK_THREADS - 1) / MPK_THREADS)
template <int N> struct block_copies {
    const char *g, *at[N]; /* the tile's begin; each copy's */
    int n_bytes[N];
    rt_i64 other; /* entries that are left along the other axis */
};

/* Row j of this thread's copies.  Neighbouring threads have the pieces of one row, so a warp asks
 * for whole rows. */
MPK_FN int block_copy_row(const block_tile &tile, int j)
{
    return mpk_kept_thread() / BLOCK_PIECES(tile) + j * BLOCK_ROWS_APART(tile);
}
/* Where it lies in the tile; rows that are a multiple of eight apart are swizzled alike. */
MPK_FN int block_copy_to(const block_tile &tile, int j)
{
    return BLOCK_AT(tile.row_bytes, tile.layout, mpk_kept_thread() / BLOCK_PIECES(tile),
                    mpk_kept_thread() % BLOCK_PIECES(tile) * 16) +
           j * BLOCK_ROWS_APART(tile) * BLOCK_PITCH(tile.row_bytes, tile.layout);
}
/* Has this thread a row j?  Tiles of fewer pieces than threads leave some without. */
MPK_FN bool block_has_copy(const block_tile &tile, int j)
{
    return tile.rows % BLOCK_ROWS_APART(tile) == 0 || block_copy_row(tile, j) < tile.rows;
}
/* Of a copy of 16 bytes, how many lie within what is left; cp.async fills the rest with zeros. */
MPK_FN int block_held_bytes(rt_i64 left)
{
    const int most = left < 16 ? (int)left : 16;
    return most > 0 ? most : 0;
}

/* by_rows: the loop is over the tile's rows.  g: the tile without the loop's axis; left: entries of
 * the other one. */
template <int N>
MPK_FN void block_find_copies(block_copies<N> &r, const block_tile &tile, bool by_rows,
                              const char *g, rt_i64 row_step, rt_i64 left)
{
    const int bytes = mpk_dtype_bytes(tile.dtype);
    const int piece = mpk_kept_thread() % BLOCK_PIECES(tile) * 16; /* the thread's bytes of a row */
    r.g = g;
    r.other = left;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int row = block_copy_row(tile, j);
        const int there = row < left ? 16 : 0; /* whole rows */
        r.n_bytes[j] = by_rows ? block_held_bytes(left * bytes - piece) : there;
        r.at[j] = r.n_bytes[j] ? g + row * row_step * bytes + piece : g;
    }
}

/* An iteration's: `ahead` bytes after the beginnings, with this many entries left along the loop's
 * axis. whole: no iteration has fewer than the tile. */
template <int N>
MPK_FN void block_copy(const block_tile &tile, char *s_tile, const block_copies<N> &r, bool by_rows,
                       bool whole, rt_i64 row_step, rt_i64 ahead, rt_i64 left)
{
    const int bytes = mpk_dtype_bytes(tile.dtype);
    if ((rt_u64)r.g & 15) {
        const rt_i64 rows = by_rows ? left : r.other, columns = left + r.other - rows;
        block_load_unaligned(tile, s_tile, r.g + ahead, row_step, rows, columns);
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        int n = r.n_bytes[j];
        if (!whole && by_rows)
            n = block_copy_row(tile, j) < left ? n : 0;
        if (!whole && !by_rows) {
            const int there =
                block_held_bytes(left * bytes - mpk_kept_thread() % BLOCK_PIECES(tile) * 16);
            n = there < n ? there : n;
        }
        if (block_has_copy(tile, j))
            ptx_copy_async_part(s_tile + block_copy_to(tile, j),
                                whole || n ? r.at[j] + ahead : r.at[j], n);
    }
}

/* ---- windows: a convolution as a product ---- */

/* Entry `entry` of the window whose first entries along the axes are at[..], or none; base: the
 * offset of these. Entries count channels first where a window has them last (w.channels), else the
 * axes of the kernel in row-major order and channels slowest. */
MPK_FN int block_window_at(const block_window &w, const int *at, int base, rt_u32 entry,
                           bool *inside)
{
    int offset = base;
    rt_u32 channel = 0; /* stays 0 where channels are the slowest */
    if (w.channels) {
        channel = entry % (rt_u32)w.channels;
        entry /= (rt_u32)w.channels;
    }
#pragma unroll
    for (int i = BLOCK_WINDOW_AXES - 1; i >= 0; i--) {
        const int away = (int)(entry % (rt_u32)w.kernel[i]) * w.dilation[i]; /* from the first */
        entry /= (rt_u32)w.kernel[i];
        *inside = *inside && (rt_u32)(at[i] + away) < (rt_u32)w.in[i];
        offset += away * w.step[i];
    }
    return offset + (int)(w.channels ? channel : entry) * w.channel_step;
}

/* The beginnings of a place's windows, at[..]; returns their offset. */
MPK_FN int block_window_begin(const block_window &w, rt_u32 place, int *at)
{
    int base = 0;
#pragma unroll
    for (int i = BLOCK_WINDOW_AXES - 1; i >= 0; i--) {
        at[i] = (int)(place % (rt_u32)w.out[i]) * w.stride[i] - w.padding[i]; /* may be negative */
        place /= (rt_u32)w.out[i];
        base += at[i] * w.step[i];
    }
    return base;
}

/* One entry into a tile, as bits of the tile's dtype if both are the same 16-bit one, else as those
 * of a float. */
MPK_FN rt_u32 block_bits(const block_tile &tile, int dtype, const char *g, int at)
{
    const mpk_view from = {0, dtype};
    return dtype == tile.dtype && mpk_dtype_bytes(dtype) == 2
               ? ((const rt_u16 *)g)[at]
               : __float_as_uint(mpk_get(from, g, at));
}
/* bits: an element as it was loaded.  One that has the tile's dtype already is not converted, so it
 * keeps its bits. */
MPK_FN void block_put_bits(const block_tile &tile, char *s_tile, int row, int column, int dtype,
                           rt_u32 bits)
{
    const int bytes = mpk_dtype_bytes(tile.dtype);
    const mpk_view to = {0, tile.dtype}; /* only its dtype counts */
    char *s = s_tile + BLOCK_AT(tile.row_bytes, tile.layout, row, column * bytes);
    if (dtype == tile.dtype && bytes == 2)
        *(rt_u16 *)s = (rt_u16)bits;
    else
        mpk_put(to, s, 0, __uint_as_float(bits));
}

/* The tile of windows of g from `place` and `entry` on, of which this many are left.  A thread
 * keeps its place, so that neighbouring threads read neighbours. */
MPK_FN void block_load_window(const block_tile &tile, char *s_tile, const block_window &w,
                              bool places_are_rows, int dtype, const char *g, rt_u32 place,
                              rt_u32 entry, rt_i64 places, rt_i64 entries)
{
    const int n_places = places_are_rows ? tile.rows : tile.columns,
              n_entries = places_are_rows ? tile.columns : tile.rows;
    const int own = mpk_kept_thread() % n_places, apart = MPK_THREADS / n_places; /* its place */
    int at[BLOCK_WINDOW_AXES];
    const int base = block_window_begin(w, place + (rt_u32)own, at);
#pragma unroll 1
    for (int first = mpk_kept_thread() / n_places; first < n_entries;
         first += apart * BLOCK_WINDOW_BATCH) {
        rt_u32 r_bits[BLOCK_WINDOW_BATCH];
#pragma unroll
        for (int j = 0; j < BLOCK_WINDOW_BATCH; j++) {
            const int e = first + j * apart;
            bool inside = own < places && e < entries && e < n_entries; /* then of the tensor */
            const int offset = block_window_at(w, at, base, entry + (rt_u32)e, &inside);
            r_bits[j] = inside ? block_bits(tile, dtype, g, offset) : 0;
        }
#pragma unroll
        for (int j = 0; j < BLOCK_WINDOW_BATCH; j++) {
            const int e = first + j * apart;
            if (e < n_entries)
                block_put_bits(tile, s_tile, places_are_rows ? own : e, places_are_rows ? e : own,
                               dtype, r_bits[j]);
        }
    }
}

/* The same by copies of 16 bytes, for images with their channels last: a copy brings neighbouring
 * channels at one place of the kernel.  The tile's rows are places of the image.  They are the
 * same in all iterations of the loop over entries, so a thread finds where the windows of its N
 * copies begin once for a tile.  A row that does not exist begins at BLOCK_AWAY, outside of any
 * image. */
enum { BLOCK_AWAY = -(1 << 30) };
template <int N> struct block_spots {
    rt_u32 place;  /* of the tile's first row */
    rt_i64 places; /* that are left from there on */
    int base[N], at[N][BLOCK_WINDOW_AXES];
};
/* The same for windows: where each row's window begins, for rows place, place + 1 ... of
 * `places`. A row beyond the last is marked as outside, so that an iteration copies zeros for it.
 * */
template <int N>
MPK_FN void block_find_spots(block_spots<N> &r, const block_tile &tile, const block_window &w,
                             rt_u32 place, rt_i64 places)
{
    r.place = place;
    r.places = places;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int row = block_copy_row(tile, j);
        r.base[j] = block_window_begin(w, place + (rt_u32)row, r.at[j]);
        if (row >= places) /* no entry of it is inside */
            r.at[j][BLOCK_WINDOW_AXES - 1] = BLOCK_AWAY;
    }
}
/* Entry `entry` of a window: its offset from the window's beginning, and how far away[..] it is
 * from there along the axes. */
MPK_FN int block_entry_at(const block_window &w, rt_u32 entry, int *away)
{
    int offset = (int)(entry % (rt_u32)w.channels); /* channels are neighbours */
    entry /= (rt_u32)w.channels;
#pragma unroll
    for (int i = BLOCK_WINDOW_AXES - 1; i >= 0; i--) {
        away[i] = (int)(entry % (rt_u32)w.kernel[i]) * w.dilation[i];
        entry /= (rt_u32)w.kernel[i];
        offset += away[i] * w.step[i];
    }
    return offset;
}
/* For a tensor that does not begin at a multiple of 16: like block_load_unaligned, a short loop
 * that seldom runs. */
MPK_FN void block_window_unaligned(const block_tile &tile, char *s_tile, const block_window &w,
                                   const char *g, rt_u32 place, rt_u32 entry, rt_i64 places,
                                   rt_i64 entries)
{
#pragma unroll 1
    for (int i = mpk_kept_thread(); i < tile.rows * tile.columns; i += MPK_THREADS) {
        const int row = i / tile.columns, column = i % tile.columns;
        int at[BLOCK_WINDOW_AXES];
        const int base = block_window_begin(w, place + (rt_u32)row, at);
        bool inside = row < places && column < entries;
        const int offset = block_window_at(w, at, base, entry + (rt_u32)column, &inside);
        block_put(tile, s_tile, row, column, tile.dtype, g, offset, inside);
    }
}

/* The tile's entries from `entry` on, of which this many are left.  Where entries of a tile share a
 * place of the kernel, it is found once for all copies.  If g is not a multiple of 16, threads load
 * entries. */
template <int N>
MPK_FN void block_copy_window(const block_tile &tile, char *s_tile, const block_window &w,
                              const block_spots<N> &r, const char *g, rt_u32 entry, rt_i64 entries)
{
    const int bytes = mpk_dtype_bytes(tile.dtype);
    const int first = mpk_kept_thread() % BLOCK_PIECES(tile) * (16 / bytes);
    const bool shared =
        w.channels % tile.columns == 0; /* an iteration has one place of the kernel */
    int away[BLOCK_WINDOW_AXES];        /* of the iteration's entry */
    if ((rt_u64)g & 15) {
        block_window_unaligned(tile, s_tile, w, g, r.place, entry, r.places, entries);
        return;
    }
    const int begin =
        block_entry_at(w, shared ? entry : entry + (rt_u32)first, away) + (shared ? first : 0);
#pragma unroll
    for (int j = 0; j < N; j++) {
        bool inside = first < entries; /* then of the tensor */
#pragma unroll
        for (int k = 0; k < BLOCK_WINDOW_AXES; k++)
            inside = inside && (rt_u32)(r.at[j][k] + away[k]) < (rt_u32)w.in[k];
        if (block_has_copy(tile, j))
            ptx_copy_async_part(s_tile + block_copy_to(tile, j),
                                inside ? g + (rt_i64)(r.base[j] + begin) * bytes : g,
                                inside ? 16 : 0);
    }
}

/* A box of a convolution's result as runs of neighbouring places; returns their length.  Places are
 * axes `first` on, filters axis `filter`.  The box becomes that of their beginnings, its filters
 * those of the groups of `filters`. */
MPK_FN rt_i64 block_places(const mpk_view &y, int first, int filter, rt_i64 filters, mpk_box *box)
{
    rt_i64 run = 1;    /* places that follow each other */
    bool whole = true; /* so far all axes are whole, so places go on */
#pragma unroll
    for (int i = RT_MAX_RANK - 1; i >= 1; i--)
        if (i >= first && i < first + y.rank - 2 && whole) {
            run *= (rt_i64)(box->hi[i] - box->lo[i]);
            whole = box->lo[i] == 0 && (rt_i64)box->hi[i] == y.dims[i];
            box->hi[i] = box->lo[i] + 1;
        }
#pragma unroll
    for (int i = 1; i < RT_MAX_RANK; i++)
        if (i == filter) {
            box->lo[i] = (rt_u32)(box->lo[i] / filters);
            box->hi[i] = (rt_u32)((box->hi[i] + filters - 1) / filters);
        }
    return run;
}
/* Entry number i of a box, as mpk_place finds it; the first, which is often the only one, without a
 * division. */
MPK_FN void block_find(const mpk_box &box, int rank, rt_u64 i, rt_i64 *at)
{
    if (i) {
        mpk_place(box, rank, i, at);
        return;
    }
#pragma unroll
    for (int axis = 0; axis < RT_MAX_RANK; axis++)
        at[axis] = axis < rank ? (rt_i64)box.lo[axis] : 0;
}
/* The number of a place in row-major order of the result's positions. */
MPK_FN rt_i64 block_place(const mpk_view &y, int first, const rt_i64 *at)
{
    rt_i64 number = 0;
#pragma unroll
    for (int i = 1; i < RT_MAX_RANK; i++)
        if (i >= first && i < first + y.rank - 2)
            number = number * y.dims[i] + at[i];
    return number;
}

/* All but the last N groups of loads have arrived, and all threads see them. */
template <int N> MPK_FN void block_wait(void)
{
    ptx_copy_async_wait<N>();
    mpk_sync();
}

/* ---- where an entry of a fragment lies in its tile ---- */

/* The row of the tile that entry e of field a of this thread's fragment is; block_column
 * likewise. */
MPK_FN int block_row(const block_warps &w, int rows, int a, int e)
{
    const int thread = mpk_kept_thread(), warp = thread / 32;
    return w.mma ? warp % w.along[0] * (rows / w.along[0]) + a * BLOCK_MMA_ROWS + thread % 32 / 4 +
                       e / 2 * 8
                 : a * BLOCK_SIDE + thread / BLOCK_SIDE;
}
/* Which partial sum this warp has: its number along what is summed over, the slowest of the
 * three. */
MPK_FN int block_part(const block_warps &w)
{
    return w.mma ? mpk_kept_thread() / 32 / (w.along[0] * w.along[1]) : 0;
}

/* A thread has two neighbouring columns of each field, in entries e and e + 1. */
MPK_FN int block_column(const block_warps &w, int columns, int b, int e)
{
    const int thread = mpk_kept_thread(), warp = thread / 32;
    return w.mma ? warp / w.along[0] % w.along[1] * (columns / w.along[1]) + b * BLOCK_MMA_COLUMNS +
                       thread % 4 * 2 + e % 2
                 : b * BLOCK_SIDE + thread % BLOCK_SIDE;
}
/* Of a tile whose columns are shared out: 16 for each warp along the sum, in turn. */
MPK_FN int block_own_column(const block_warps &w, int b, int e)
{
    return (b / 2 * w.along[2] + block_part(w)) * 16 + b % 2 * BLOCK_MMA_COLUMNS +
           mpk_kept_thread() % 4 * 2 + e % 2;
}

/* A line has an entry for each row: float[A][2], the same in four neighbouring lanes. */
template <int A> MPK_FN void block_fill(float (&r)[A][2], float value)
{
#pragma unroll
    for (int i = 0; i < A * 2; i++)
        r[i / 2][i % 2] = value;
}
template <int A, int B, int E> MPK_FN void block_fill(float (&r)[A][B][E], float value)
{
#pragma unroll
    for (int i = 0; i < A * B * E; i++)
        r[i / (B * E)][i / E % B][i % E] = value;
}

/* An operand's entry for one of a fragment, 0 outside of the box.  The dtype is a constant where
 * this is called, as a view's is not always: a compiler that keeps the view in memory asks for the
 * dtype again at each entry, and then loads of a thread's entries wait for each other. */
MPK_FN float block_get(int dtype, bool inside, const char *g, rt_i64 at)
{
    const mpk_view from = {0, dtype}; /* only its dtype counts */
    return inside ? mpk_get(from, g, at) : 0.0f;
}

/* ---- ends by rows ---- */

/* Sums into shared memory, as rows of fp32 with BLOCK_ROW_GAP between them, all parts. Entries e
 * and e + 1 are neighbours in a row, hence stores of 8 bytes; the gap keeps the rows that half a
 * warp stores at once in different banks. */
template <int A, int B>
MPK_FN void block_put_sums(const float (&r_sum)[A][B][4], const block_warps &w, int rows,
                           int columns, float *s)
{
    const int pitch = columns + BLOCK_ROW_GAP;
    float *s_own = s + (block_part(w) * rows + block_row(w, rows, 0, 0)) * pitch + /* warp's */
                   block_column(w, columns, 0, 0);
#pragma unroll
    for (int a = 0; a < A; a++)
#pragma unroll
        for (int b = 0; b < B; b++)
#pragma unroll
            for (int e = 0; e < 4; e += 2)
                *(float2 *)(s_own + (a * BLOCK_MMA_ROWS + e * 4) * pitch + b * BLOCK_MMA_COLUMNS) =
                    make_float2(r_sum[a][b][e], r_sum[a][b][e + 1]);
}
/* Entries of a row, their parts added up in the order of warps, whichever was first: the same bits
 * in every run. */
template <int PARTS>
MPK_FN void block_take_sums(float (&r)[ROWS_PIECE], const float *s, int rows, int columns, int row,
                            int column)
{
    const int pitch = columns + BLOCK_ROW_GAP;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i += 4) {
            const float4 v = *(const float4 *)(s + (p * rows + row) * pitch + column + i);
            const float part[4] = {v.x, v.y, v.z, v.w}; /* of part p */
#pragma unroll
            for (int k = 0; k < 4; k++)
                r[i + k] = p ? r[i + k] + part[k] : part[k];
        }
}

/* The operand's entries for those of a row from `at` on, STEP apart (0: one for all).  left:
 * entries that are there; a piece that is not whole or not aligned is read one by one. */
template <int STEP>
MPK_FN void block_get_row(const mpk_view &v, const char *data, rt_i64 at, int left,
                          float (&r)[ROWS_PIECE])
{
    const char *g = data + at * mpk_dtype_bytes(v.dtype);
    if (STEP == 1 && left >= ROWS_PIECE && rows_aligned(v.dtype, g, 0)) {
        rows_raw raw;
        rows_fetch(v.dtype, g, raw);
        rows_floats(v.dtype, raw, r);
        return;
    }
    if (STEP) {
        rows_read_entries(v.dtype, g, STEP, left, 0, r);
        return;
    }
    const float one = mpk_get(v, g, 0);
#pragma unroll
    for (int i = 0; i < ROWS_PIECE; i++)
        r[i] = one;
}
/* Rows of an operand of the end to scratch, in the background: this thread's pieces of a tile, of
 * which so many rows and columns are there.  g: where the tile begins, of 16 bits; stride: from a
 * row to the next.  A piece that is not whole, or not aligned, is left out, as block_take_row
 * knows. */
MPK_FN void block_fetch_rows(const char *g, rt_i64 stride, int rows, int columns, rt_i64 rows_left,
                             rt_i64 columns_left, char *s)
{
    const int pieces = columns / ROWS_PIECE, column = mpk_kept_thread() % pieces * ROWS_PIECE;
    int row = mpk_kept_thread() / pieces;
    const int end = rows_left < rows ? (int)rows_left : rows;
    g += (row * stride + column) * 2;
    s += mpk_kept_thread() * 16;
    if (columns_left - column < ROWS_PIECE || (rt_u64)g % 16)
        return;
#pragma unroll 1
    for (; row < end; row += MPK_THREADS / pieces) {
        ptx_copy_async(s, g, true);
        g += MPK_THREADS / pieces * stride * 2;
        s += MPK_THREADS * 16;
    }
}
/* What block_get_row<1> gives, of a piece that was fetched. */
MPK_FN void block_take_row(const char *s, const mpk_view &v, const char *data, rt_i64 at, int left,
                           float (&r)[ROWS_PIECE])
{
    const char *g = data + at * mpk_dtype_bytes(v.dtype);
    if (left >= ROWS_PIECE && rows_aligned(v.dtype, g, 0)) {
        rows_raw raw;
        raw.at[0] = *(const uint4 *)s;
        rows_floats(v.dtype, raw, r);
    } else {
        rows_read_entries(v.dtype, g, 1, left, 0, r);
    }
}
/* The counterpart of block_get_row: the first `left` entries of a piece of a row of the result. */
MPK_FN void block_put_row(const mpk_view &v, char *data, rt_i64 at, int left,
                          const float (&r)[ROWS_PIECE])
{
    char *g = data + at * mpk_dtype_bytes(v.dtype);
    if (left >= ROWS_PIECE && rows_aligned(v.dtype, g, 0))
        rows_store(v.dtype, g, r);
    else
        rows_write_entries(v.dtype, g, left, r);
}

/* ---- products ---- */

/* Where the 16 bytes of row `row` + `near` lie that begin with column `column` + `further` of
 * 16-bit entries: row and column are multiples of 16, near is below 16, further 0 or 8.  This is
 * BLOCK_AT with what depends on the lane kept apart, so that it is found once for all fields: a
 * swizzle does not see multiples of 16 rows, and moves a piece by an exclusive or. */
MPK_FN const char *block_piece(const block_tile &tile, const char *s_tile, int row, int near,
                               int column, int further)
{
    const char *s = s_tile + near * BLOCK_PITCH(tile.row_bytes, tile.layout);
    const int own = BLOCK_AT(tile.row_bytes, tile.layout, near, further * 2) -
                    near * BLOCK_PITCH(tile.row_bytes, tile.layout);
    s += tile.layout == BLOCK_SWIZZLED ? own ^ column * 2 : own + column * 2;
    return s + row * BLOCK_PITCH(tile.row_bytes, tile.layout);
}
/* transposed: memory holds the matrix the other way round, and the load transposes it. */
MPK_FN void block_read(rt_u32 *r, bool transposed, const char *s)
{
    if (transposed)
        ptx_load_matrices_transposed(r, s);
    else
        ptx_load_matrices(r, s);
}

/* 16 rows and 16 entries of the sum of the first factor: the four 8 x 8 matrices of an mma operand,
 * in the order rows 0-7 and 8-15 of entries 0-7, then of entries 8-15. ldmatrix takes the address
 * of one row of 16 bytes from each lane, hence the arithmetic on the lane's number. */
MPK_FN void block_read_rows(const block_tile &tile, const char *s_tile, bool transposed, int row,
                            int k, rt_u32 *r)
{
    const int lane = mpk_kept_thread() % 32, near = lane % 8, low = lane / 8 % 2 * 8,
              high = lane / 16 * 8;
    block_read(r, transposed,
               transposed ? block_piece(tile, s_tile, k, near + high, row, low)
                          : block_piece(tile, s_tile, row, near + low, k, high));
}
/* 16 columns of the second factor: r[0], r[1] for the first eight, r[2], r[3] for the others.
 * Memory holds entries of the sum as rows, or, if transposed, as columns, which is what an operand
 * wants. */
MPK_FN void block_read_columns(const block_tile &tile, const char *s_tile, bool transposed,
                               int column, int k, rt_u32 *r)
{
    const int lane = mpk_kept_thread() % 32, near = lane % 8, low = lane / 8 % 2 * 8,
              high = lane / 16 * 8;
    block_read(r, !transposed,
               transposed ? block_piece(tile, s_tile, column, near + high, k, low)
                          : block_piece(tile, s_tile, k, near + low, column, high));
}
/* c += a b of one field of 16 x 8 sums and 16 entries; a: four registers, b: two. */
MPK_FN void block_multiply_one(int dtype, float *c, const rt_u32 *a, const rt_u32 *b)
{
    if (dtype == MPK_BF16)
        ptx_multiply_bf16(c, a[0], a[1], a[2], a[3], b[0], b[1]);
    else
        ptx_multiply_f16(c, a[0], a[1], a[2], a[3], b[0], b[1]);
}

/* r_sum += a b, 16 entries of the sum from k on; columns of the sums from `column` on, `apart` from
 * 16 to the next.  The columns of b are loaded once for all rows of a: A B products take A + B / 2
 * loads of matrices. */
template <int A, int B>
MPK_FN void block_multiply_columns(float (&r_sum)[A][B][4], const rt_u32 (&r_a)[A][4],
                                   const block_tile &b, const char *s_b, bool b_transposed, int k,
                                   int column, int apart)
{
    rt_u32 r_b[B / 2][4];
#pragma unroll
    for (int j = 0; j < B / 2; j++)
        block_read_columns(b, s_b, b_transposed, column + j * apart, k, r_b[j]);
#pragma unroll
    for (int i = 0; i < A; i++)
#pragma unroll
        for (int j = 0; j < B; j++)
            block_multiply_one(b.dtype, r_sum[i][j], r_a[i], r_b[j / 2] + j % 2 * 2);
}

/* r_sum += a b.  a_transposed: rows of tile a are entries of the sum, else the sums' rows;
 * b_transposed: rows of tile b are the sums' columns, else entries of the sum.  shared_out: the
 * sums' columns are shared among the warps along the sum, each of which adds up all entries; else
 * these are. */
template <int A, int B>
MPK_FN void block_multiply_mma(float (&r_sum)[A][B][4], const block_warps &w, bool shared_out,
                               const block_tile &a, const char *s_a, bool a_transposed,
                               const block_tile &b, const char *s_b, bool b_transposed)
{
    const int warp = mpk_kept_thread() / 32, depth = a_transposed ? a.rows : a.columns,
              part = block_part(w);
    const int row = warp % w.along[0] * A * BLOCK_MMA_ROWS; /* the warp's first */
    const int column =
        shared_out ? part * 16 : warp / w.along[0] % w.along[1] * B * BLOCK_MMA_COLUMNS;
#pragma unroll
    for (int k = 0; k < depth; k += BLOCK_MMA_DEPTH * (shared_out ? 1 : w.along[2])) {
        rt_u32 r_a[A][4];
        const int at = k + (shared_out ? 0 : part * BLOCK_MMA_DEPTH);
#pragma unroll
        for (int i = 0; i < A; i++)
            block_read_rows(a, s_a, a_transposed, row + i * BLOCK_MMA_ROWS, at, r_a[i]);
        block_multiply_columns(r_sum, r_a, b, s_b, b_transposed, at, column,
                               shared_out ? 16 * w.along[2] : 16);
    }
}

/* The same where the first factor is a fragment whose columns are shared out: fields of sums lie as
 * those of factors.  So what one product leaves in registers is the factor of the next, and never
 * passes through shared memory. */
template <int A, int B, int COLUMNS>
MPK_FN void block_multiply_kept(float (&r_sum)[A][B][4], const block_warps &w,
                                const float (&r_a)[A][COLUMNS][4], const block_tile &b,
                                const char *s_b, bool b_transposed)
{
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 2) {
        rt_u32 r_pairs[A][4];
#pragma unroll
        for (int i = 0; i < A * 4; i++) {
            const float *r = &r_a[i / 4][j + i % 4 / 2][i % 2 * 2]; /* word i % 4 of an operand */
            r_pairs[i / 4][i % 4] = rows_pair(b.dtype, r[0], r[1]);
        }
        block_multiply_columns(r_sum, r_pairs, b, s_b, b_transposed,
                               (j / 2 * w.along[2] + block_part(w)) * BLOCK_MMA_DEPTH, 0, 16);
    }
}

/* The same in fp32; rows of both tiles hold entries of the sum, which are taken four at a time, one
 * after the other: an entry's order is that of the axis. */
template <int A, int B>
MPK_FN void block_multiply_fma(float (&r_sum)[A][B][1], const block_tile &a, const char *s_a,
                               const block_tile &b, const char *s_b)
{
    const int row = mpk_kept_thread() / BLOCK_SIDE, column = mpk_kept_thread() % BLOCK_SIDE;
#pragma unroll 2
    for (int k = 0; k < a.columns; k += 4) {
        float4 r_b[B];
#pragma unroll
        for (int j = 0; j < B; j++)
            r_b[j] = *(const float4 *)(s_b + BLOCK_AT(b.row_bytes, b.layout,
                                                      column + j * BLOCK_SIDE, k * 4));
#pragma unroll
        for (int i = 0; i < A; i++) {
            const float4 x = *(
                const float4 *)(s_a + BLOCK_AT(a.row_bytes, a.layout, row + i * BLOCK_SIDE, k * 4));
#pragma unroll
            for (int j = 0; j < B; j++) {
                r_sum[i][j][0] += x.x * r_b[j].x;
                r_sum[i][j][0] += x.y * r_b[j].y;
                r_sum[i][j][0] += x.z * r_b[j].z;
                r_sum[i][j][0] += x.w * r_b[j].w;
            }
        }
    }
}

/* Partial sums of the warps along what is summed over, added in their order; the first warps have
 * the result.  s: for all parts but the first, of scratch that no thread reads after the next sync.
 * Lanes are the fastest index of s, so that a warp's 32 stores go to 32 banks. */
template <int A, int B, int E>
MPK_FN void block_add(float (&r_whole)[A][B][E], const float (&r_part)[A][B][E],
                      const block_warps &w, char *s)
{
    const int lanes = 32 * w.along[0] * w.along[1], part = block_part(w),
              lane = mpk_kept_thread() % lanes;
    float *s_sum = (float *)s + lane;
    mpk_sync();
#pragma unroll
    for (int i = 0; i < A * B * E; i++) {
        r_whole[i / (B * E)][i / E % B][i % E] = r_part[i / (B * E)][i / E % B][i % E];
        if (part)
            s_sum[((part - 1) * A * B * E + i) * lanes] = r_part[i / (B * E)][i / E % B][i % E];
    }
    mpk_sync();
    for (int p = 1; p < w.along[2] && !part; p++)
#pragma unroll
        for (int i = 0; i < A * B * E; i++)
            r_whole[i / (B * E)][i / E % B][i % E] += s_sum[((p - 1) * A * B * E + i) * lanes];
}

#include "task/block_lines.cuh"
#include "task/block_put.cuh"
#include "task/block_reads.cuh"
#include "task/block_patch.cuh"

#include "task/block_group.cuh"

#endif
