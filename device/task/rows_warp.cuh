/* rows_warp.cuh - norms and softmax of rows of floats whose entries are neighbours, in fp32: a
 * warp a row, a part of a warp a short one, or all warps a long one.
 *
 * Input: x, of norms weight and bias, and of rms_norm a residual or a gate; output: the task's box,
 * which has whole rows.  A row of at most ROWS_MOST entries, or ROWS_LONG of all warps, is loaded
 * once, by pieces of eight entries, and stays in registers, as it lies in memory: entries become
 * floats where they are used, an instruction each.
 * No code of whole rows calls a function, and a division is one: ptxas spills what lives across it,
 * and spilled words come from L2.
 * What is added up, and in which order, follows from the row's length alone.
 *
 * LANES threads have a row: 8, 16, 32 or all MPK_THREADS.  PIECES, how many pieces each has, is the
 * row's length rounded up to 8 LANES entries; piece c of lane l begins at (LANES c + l) * 8, so
 * that they read neighbouring pieces at once, here of a warp:
 *
 *   entries   0-7     8-15    ...  248-255 | 256-263 ...
 *   lane      0       1            31      | 0
 *   piece     0       0            0       | 1
 *
 * Everything over PIECES is unrolled, or the arrays would lie on the stack.  The generic forms
 * are in rows.cuh; src/gen/body_rows_warp.c chooses and prints the calls.
 *
 * PIECES is 8 at most, N is 1 or 2 (below), and WHOLE says that all rows and vectors consist of
 * aligned pieces, which a task finds out from the addresses.  The host chooses LANES by the row's
 * length, so that a lane has three pieces at most where a warp has several rows (of 16 bits also
 * five, where the row fills them):
 *
 *   entries of a row    LANES          rows of a warp in a round
 *   up to 192           8              4 N
 *   up to 384           16             2 N
 *   up to 2,048         32             N
 *   up to 16,384        MPK_THREADS    one of all eight warps
 *
 *   loads    rows_load, rows_ask, rows_seek: pieces of a row into registers
 *   sums     rows_total_of, rows_largest_of: over the lanes of a row
 *   loop     rows_each: which rows a warp has, loaded ahead
 *   bodies   layer_norm_rows, rms_norm_rows, rms_norm_parts_rows; softmax_rows
 *
 * A row alone is a chain: its load, its sums, the loads of weight and bias, its store.  So the next
 * rows are loaded while these are made, weight and bias are loaded once, and where a task has many
 * short rows the lanes of a row make N of them at a time.  Where these are a part of a warp, the
 * warp makes as many rows together as it has parts, by the same instructions.  Cost: one load of
 * the row, two sums over its lanes; of a long row each sum has a barrier of all warps
 * (rows_meeting).
 */
#ifndef TASK_ROWS_WARP_CUH
#define TASK_ROWS_WARP_CUH

#include "task/activate.cuh"
#include "task/pieces.cuh"
#include "task/rows.cuh"

/* Load the bits of eight entries of a row of n from entry `first` on: in one or two loads of 16
 * bytes if they are all inside the row and aligned, else one by one.  Entries beyond the row are
 * `rest`: 0 for sums and -inf for maxima, which change neither.  One by one they shift up through
 * the words, so that the loop is short and no word has an index at run time: after eight rounds the
 * first entry stands in the lowest place. */
MPK_FN void rows_load(int dtype, const char *g_row, rt_i64 first, rt_i64 n, float rest,
                      rows_raw &raw)
{
    const int bytes = mpk_dtype_bytes(dtype);
    const char *g = g_row + first * bytes; /* of the piece */
    if (first + ROWS_PIECE <= n && ((rt_u64)g & 15) == 0) {
        rows_fetch(dtype, g, raw);
        return;
    }
    /* what stands for an entry beyond the row */
    const rt_u32 none =
        dtype == MPK_F32 ? __float_as_uint(rest) : rows_pair(dtype, rest, rest) & 0xffff;
    uint4 a = {}, b = {};
#pragma unroll 1
    for (int i = 0; i < ROWS_PIECE; i++) {
        rt_u32 v = none;
        if (first + i < n)
            v = bytes == 4 ? ((const rt_u32 *)g)[i] : ((const rt_u16 *)g)[i];
        if (bytes == 4) {
            a = {a.y, a.z, a.w, b.x};
            b = {b.y, b.z, b.w, v};
        } else {
            a = {a.x >> 16 | a.y << 16, a.y >> 16 | a.z << 16, a.z >> 16 | a.w << 16,
                 a.w >> 16 | v << 16};
        }
    }
    raw.at[0] = a;
    raw.at[1] = b;
}

/* The same as floats. */
MPK_FN void rows_read(int dtype, const char *g_row, rt_i64 first, rt_i64 n, float rest,
                      float (&r)[ROWS_PIECE])
{
    rows_raw raw;
    rows_load(dtype, g_row, first, n, rest, raw);
    rows_floats(dtype, raw, r);
}

/* The counterpart: round and store eight entries; nothing is written beyond the row, where another
 * row begins. */
MPK_FN void rows_write(int dtype, char *g_row, rt_i64 first, rt_i64 n, const float (&r)[ROWS_PIECE])
{
    char *g = g_row + first * mpk_dtype_bytes(dtype); /* of the piece */
    const mpk_view v = {0, dtype};
    if (first + ROWS_PIECE > n || ((rt_u64)g & 15)) {
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++)
            if (first + i < n)
                mpk_put(v, g, i, r[i]);
    } else {
        rows_store(dtype, g, r);
    }
}

/* The first entry of this lane's piece c of a row; it may lie beyond the row.  The lanes of a row
 * are neighbours, and begin at a multiple of LANES. */
template <int LANES> MPK_FN rt_i64 rows_first(int c)
{
    return (rt_i64)(c * LANES + mpk_thread() % LANES) * ROWS_PIECE;
}

/* The lanes of a row that one warp has. */
template <int LANES> MPK_FN constexpr int rows_in_warp()
{
    return LANES < 32 ? LANES : 32;
}

/* The sum over these lanes.  A butterfly: every lane adds the same pairs in the same order and ends
 * with the same bits, so no lane has to tell the others.  All lanes of the warp call it, and of a
 * part of a warp each part has its own sum: the distances stay below LANES. */
template <int LANES> MPK_FN float rows_lanes_sum(float x)
{
#pragma unroll
    for (int apart = rows_in_warp<LANES>() / 2; apart; apart /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}
/* NaN wins: a row with a NaN has it as its largest, and all of its softmax is NaN, as in the
 * reference. */
MPK_FN float rows_larger(float a, float b)
{
    return b > a || b != b ? b : a;
}
/* The largest over these lanes, in each of them; a NaN in any lane is the answer. */
template <int LANES> MPK_FN float rows_lanes_largest(float x)
{
#pragma unroll
    for (int apart = rows_in_warp<LANES>() / 2; apart; apart /= 2)
        x = rows_larger(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
}

/* Where warps that share a row exchange what each has of it: a float a warp, twice.  Sums use both
 * in turn: who stores for one has passed the barrier of the sum before, to which all came after
 * they had read the sum before that.  So a sum takes one barrier instead of two.  Only LANES above
 * 32 touch it. */
struct rows_meeting {
    float *s_sums; /* [2][MPK_THREADS / 32] */
    int half;
};
/* Leave x of each warp where all warps see it; returns [MPK_THREADS / 32], in the warps' order.
 * All threads call it equally often: half must be the same in each. */
MPK_FN const float *rows_meet(rows_meeting &meeting, float x)
{
    float *s = meeting.s_sums + meeting.half * (MPK_THREADS / 32);
    meeting.half ^= 1;
    if (mpk_thread() % 32 == 0)
        s[mpk_thread() / 32] = x;
    mpk_sync();
    return s;
}
/* The sum over the lanes of a row, in each of them. */
template <int LANES> MPK_FN float rows_total_of(rows_meeting &meeting, float x)
{
    x = rows_lanes_sum<LANES>(x);
    if (LANES <= 32)
        return x;
    const float *s = rows_meet(meeting, x);
    x = s[0];
#pragma unroll
    for (int i = 1; i < MPK_THREADS / 32; i++)
        x += s[i];
    return x;
}
/* The largest over them; a NaN in any is the answer. */
template <int LANES> MPK_FN float rows_largest_of(rows_meeting &meeting, float x)
{
    x = rows_lanes_largest<LANES>(x);
    if (LANES <= 32)
        return x;
    const float *s = rows_meet(meeting, x);
    x = s[0];
#pragma unroll
    for (int i = 1; i < MPK_THREADS / 32; i++)
        x = rows_larger(x, s[i]);
    return x;
}

/* A row of x, of which each lane has its pieces in x's dtype, perhaps still in flight; its length
 * n; where its residual or gate is, if there is one, and of short rows that too as it lies; and
 * where its result goes, 0: nowhere. */
template <int PIECES> struct rows_row {
    rows_raw raw[PIECES], more[PIECES];
    rt_i64 n;
    const char *g_beside;
    char *g_y;
};

/* Rows of up to ROWS_SHORT pieces a lane are loaded one round ahead; up to ROWS_KEPT, weight and
 * bias stay in registers for all rows of a task.  ROWS_THIN: both of entries of 16 bits.  A piece
 * of 16 bits takes 4 registers, of 32 bits 8; more would spill.  ROWS_BROUGHT: bytes of an entry
 * times pieces times rows of a round, up to which a residual or gate is loaded ahead, too: it takes
 * 16 registers twice. */
enum { ROWS_SHORT = 4, ROWS_KEPT = 3, ROWS_THIN = 5, ROWS_BROUGHT = 8 };
MPK_FN bool rows_are_short(int pieces, const mpk_view &x)
{
    return pieces <= (mpk_dtype_bytes(x.dtype) == 2 ? ROWS_THIN : ROWS_SHORT);
}
MPK_FN bool rows_are_kept(int pieces, const mpk_view &v)
{
    return pieces <= (mpk_dtype_bytes(v.dtype) == 2 ? ROWS_THIN : ROWS_KEPT);
}

/* Are a residual or gate of N rows loaded together with the rows?  Else when the rows are made. */
template <int N> MPK_FN bool rows_bring(int pieces, const mpk_view &beside)
{
    return mpk_is_there(beside) && N * pieces * mpk_dtype_bytes(beside.dtype) <= ROWS_BROUGHT;
}

/* Load a lane's pieces of the row or vector of n entries at g.  WHOLE: n is a multiple of a piece
 * and all are aligned; then the loads are in flight together, and a piece beyond n keeps what it
 * had, which rows_has tells to leave out.  Else entries beyond n are `rest`. */
template <bool WHOLE, int LANES, int PIECES>
MPK_FN void rows_ask(int dtype, const char *g, rt_i64 n, float rest, rows_raw (&raw)[PIECES])
{
#pragma unroll
    for (int c = 0; c < PIECES; c++)
        if (!WHOLE)
            rows_load(dtype, g, rows_first<LANES>(c), n, rest, raw[c]);
        else if (rows_first<LANES>(c) < n)
            rows_fetch(dtype, g + rows_first<LANES>(c) * mpk_dtype_bytes(dtype), raw[c]);
}

/* Are all rows of x, or a vector, whole pieces and aligned?  Also true of an absent operand.  last:
 * the axis of the row; of a view that is broadcast along another axis the stride is 0. */
MPK_FN bool rows_are_whole(const mpk_task &t, const mpk_view &x, int last)
{
    if (!mpk_is_there(x))
        return true;
    bool whole = x.dims[last] % ROWS_PIECE == 0;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i < last)
            whole = whole && x.stride[i] * mpk_dtype_bytes(x.dtype) % 16 == 0;
    return whole && ((rt_u64)mpk_data(t, x) & 15) == 0;
}

/* Request line number `line` of the box, and set where its result goes; box.lo[last] is the row's
 * first column.  A warp's last round may have fewer than N lines: for a number beyond the last, the
 * last line is loaded again and its result stored nowhere.  A task's lines are counted in 32
 * bits. */
template <bool WHOLE, int N, int LANES, int PIECES>
MPK_FN void rows_seek(const mpk_task &t, const mpk_view &x, int last, const mpk_view &beside,
                      const mpk_view &y, const mpk_box &box, rt_u32 line, rt_u32 lines, float rest,
                      rows_row<PIECES> *row)
{
    const bool there = line < lines;
    /* digits of the line's number, the last axis before the row fastest, by divisions of 32 bits */
    rt_i64 at[RT_MAX_RANK];
    rt_u32 left = there ? line : lines - 1;
#pragma unroll
    for (int i = RT_MAX_RANK - 1; i >= 0; i--)
        if (i < last) {
            const rt_u32 size = (rt_u32)(box.hi[i] - box.lo[i]), above = i ? left / size : 0;
            at[i] = box.lo[i] + (rt_i64)(left - above * size);
            left = above;
        } else {
            at[i] = box.lo[i];
        }
    row->n = x.dims[last];
    row->g_y = there ? mpk_data(t, y) + mpk_offset(y, at) * mpk_dtype_bytes(y.dtype) : 0;
    rows_ask<WHOLE, LANES>(x.dtype, mpk_data(t, x) + mpk_offset(x, at) * mpk_dtype_bytes(x.dtype),
                           row->n, rest, row->raw);
    if (mpk_is_there(beside))
        row->g_beside =
            mpk_data(t, beside) + mpk_offset(beside, at) * mpk_dtype_bytes(beside.dtype);
    if (rows_bring<N>(PIECES, beside))
        rows_ask<WHOLE, LANES>(beside.dtype, row->g_beside, row->n, 0, row->more);
}

/* Has a lane entries of piece c of a row?  A constant but for a row's last piece, since PIECES is
 * no more than the row needs. */
template <int LANES> MPK_FN bool rows_has(int c, rt_i64 n)
{
    return (rt_i64)(c + 1) * LANES * ROWS_PIECE <= n || rows_first<LANES>(c) < n;
}
/* Entries of piece c of a row as floats; beyond the row: rest. */
template <int LANES, int PIECES>
MPK_FN void rows_piece(const mpk_view &x, const rows_row<PIECES> &row, int c, float rest,
                       float (&r)[ROWS_PIECE])
{
    const bool there = rows_has<LANES>(c, row.n); /* some of them */
    rows_floats(x.dtype, row.raw[c], r);
#pragma unroll
    for (int i = 0; i < ROWS_PIECE; i++)
        r[i] = there ? r[i] : rest;
}

/* Store piece c of a row's result, unless the line is one that is made again (g_y is 0) or the
 * piece lies beyond the row. */
template <bool WHOLE, int LANES, int PIECES>
MPK_FN void rows_put(const mpk_view &y, const rows_row<PIECES> &row, int c,
                     const float (&r)[ROWS_PIECE])
{
    const rt_i64 first = rows_first<LANES>(c);
    if (!row.g_y || first >= row.n)
        return;
    if (WHOLE)
        rows_store(y.dtype, row.g_y + first * mpk_dtype_bytes(y.dtype), r);
    else
        rows_write(y.dtype, row.g_y, first, row.n, r);
}

/* The sum over a row of its entries, or of (entry - mean)^2, in each lane.  Entries beyond the row
 * are left out by their place: in whole rows the sum of a piece, which is one question.  Summed by
 * pieces in rising order, then over lanes, then over warps. */
template <bool WHOLE, bool SQUARES, int LANES, int PIECES>
MPK_FN float rows_total(const mpk_view &x, const rows_row<PIECES> &row, float mean,
                        rows_meeting &meeting)
{
    float sum = 0; /* of this lane's entries */
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        float r[ROWS_PIECE], of_piece = 0;
        rows_floats(x.dtype, row.raw[c], r);
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++) {
            const float away = r[i] - mean, term = SQUARES ? away * away : r[i];
            of_piece += WHOLE || rows_first<LANES>(c) + i < row.n ? term : 0.0f;
        }
        sum += rows_has<LANES>(c, row.n) ? of_piece : 0.0f;
    }
    return rows_total_of<LANES>(meeting, sum);
}

/* Piece c of a norm's weight or bias as floats, from the words that were loaded before if they are
 * kept, else loaded now, from the cache.  ptx_keep makes the compiler convert them for each row: it
 * would convert all of them before the first row, and floats take twice as many registers. */
template <bool WHOLE, int LANES, int PIECES>
MPK_FN void rows_vector_piece(const mpk_task &t, const mpk_view &v, const rows_raw (&kept)[PIECES],
                              int c, float (&r)[ROWS_PIECE])
{
    rows_raw raw = kept[c];
    if (!rows_are_kept(PIECES, v) && !WHOLE)
        rows_load(v.dtype, mpk_data(t, v), rows_first<LANES>(c), v.dims[0], 0, raw);
    else if (!rows_are_kept(PIECES, v) && rows_first<LANES>(c) < v.dims[0])
        rows_fetch(v.dtype, mpk_data(t, v) + rows_first<LANES>(c) * mpk_dtype_bytes(v.dtype), raw);
#pragma unroll
    for (int i = 0; i < mpk_dtype_bytes(v.dtype) / 2; i++)
        raw.at[i] = {ptx_keep(raw.at[i].x), ptx_keep(raw.at[i].y), ptx_keep(raw.at[i].z),
                     ptx_keep(raw.at[i].w)};
    rows_floats(v.dtype, raw, r);
}

/* r + the entries of a residual, or r silu(those of a gate).  is_short: the result has 16 bits. */
MPK_FN void rows_end(bool gated, bool is_short, const float (&beside)[ROWS_PIECE],
                     float (&r)[ROWS_PIECE])
{
#pragma unroll
    for (int i = 0; i < ROWS_PIECE; i++)
        r[i] = gated ? r[i] * activate_as(is_short, ACTIVATE_SILU, beside[i]) : r[i] + beside[i];
}

/* y = (entry - mean) factor weight + bias + residual of N rows; the last three may be absent.
 * beside is the residual, or with `gated` what silu is taken of, which then multiplies.  A piece of
 * weight and bias is converted once for all N rows.  by, plus: weight and bias as they lie, if they
 * are kept; more: the rows' residuals or gates. */
template <bool WHOLE, int LANES, int PIECES, int N>
MPK_FN void rows_scale(const mpk_task &t, const mpk_view &x, const rows_row<PIECES> (&row)[N],
                       const float (&mean)[N], const float (&factor)[N], const mpk_view &weight,
                       const rows_raw (&by)[PIECES], const mpk_view &bias,
                       const rows_raw (&plus)[PIECES], const mpk_view &beside, bool gated,
                       const rows_raw (&more)[N][PIECES], const mpk_view &y)
{
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        float w[ROWS_PIECE], b[ROWS_PIECE];
        if (mpk_is_there(weight))
            rows_vector_piece<WHOLE, LANES>(t, weight, by, c, w);
        if (mpk_is_there(bias))
            rows_vector_piece<WHOLE, LANES>(t, bias, plus, c, b);
#pragma unroll
        for (int k = 0; k < N; k++) {
            float r[ROWS_PIECE];
            rows_floats(x.dtype, row[k].raw[c], r);
#pragma unroll
            for (int i = 0; i < ROWS_PIECE; i++) {
                r[i] = (r[i] - mean[k]) * factor[k];
                r[i] = mpk_is_there(weight) ? r[i] * w[i] : r[i];
                r[i] = mpk_is_there(bias) ? r[i] + b[i] : r[i];
            }
            if (mpk_is_there(beside)) {
                float s[ROWS_PIECE];
                rows_floats(beside.dtype, more[k][c], s);
                rows_end(gated, mpk_dtype_bytes(y.dtype) == 2, s, r);
            }
            rows_put<WHOLE, LANES>(y, row[k], c, r);
        }
    }
}

/* Go through the lines of the box that are this warp's: make(rows) stores the results of N of them,
 * or of N for each part of the warp that has a row.  Lines are dealt to the eight warps in turn,
 * and a warp never waits for another; or all warps share each line, and come to the same barriers.
 * The parts of a warp stay together: it goes on while the first of them has a line, so that all
 * lanes come to each shuffle.  A line has columns [first, first + n), n being x's last dimension.
 * The next short lines are loaded while these are computed.
 *
 *    round     lines of the eight warps, WARP / LANES parts each, N a part
 *    of_warp   the first line of this warp in the round, the same in all its lanes
 *    line      the first of this lane's part: of_warp + part N; it may be beyond the last */
template <int PIECES, int N, int LANES, bool WHOLE, typename maker>
MPK_FN void rows_each(const mpk_task &t, const mpk_view &x, int last, rt_i64 first,
                      const mpk_view &beside, const mpk_view &y, float rest, const maker &make)
{
    /* A constant, so that one of the two ways is compiled.  Rows that are not whole, or long, are
     * loaded when they are made. */
    const bool ahead = WHOLE && rows_are_short(PIECES, x);
    constexpr rt_u32 ROUND = MPK_THREADS / LANES * N; /* lines of all warps */
    constexpr int WARP = LANES < 32 ? 32 : LANES;     /* threads that stay together */
    mpk_box box = mpk_box_of(t, last);
    const rt_u32 lines = (rt_u32)mpk_count(box, last);
    rt_u32 of_warp = (rt_u32)(mpk_thread() / WARP * (WARP / LANES) * N); /* the first of them */
    rt_u32 line = (rt_u32)(mpk_thread() / LANES * N);
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == last) /* an index at run time would put the box on the stack */
            box.lo[i] = (rt_u32)first;
    rows_row<PIECES> row[N], next[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        if (ahead && of_warp < lines)
            rows_seek<WHOLE, N, LANES>(t, x, last, beside, y, box, line + k, lines, rest, &next[k]);
#pragma unroll 1
    for (; of_warp < lines; of_warp += ROUND, line += ROUND) {
        const rt_u32 after = line + ROUND;
#pragma unroll
        for (int k = 0; k < N; k++) {
            if (!ahead) {
                rows_seek<WHOLE, N, LANES>(t, x, last, beside, y, box, line + k, lines, rest,
                                           &row[k]);
                continue;
            }
            /* what the round before has asked for; the next is asked for before this one is waited
             * for */
            row[k] = next[k];
            if (of_warp + ROUND < lines)
                rows_seek<WHOLE, N, LANES>(t, x, last, beside, y, box, after + k, lines, rest,
                                           &next[k]);
        }
        make(row);
    }
}

/* Norms of all lines.  centred: around the row's mean, else around 0. The variance is a second sum
 * over the registers, so a large mean costs no digits.  The N rows of a round go through each step
 * together, so that the shuffles of one fill the waits of the other.  first: the first column;
 * beside: a residual, or with `gated` a gate. */
template <int PIECES, int N, int LANES, bool WHOLE>
MPK_FN void norm_lines(const mpk_task &t, const mpk_view &x, rt_i64 first, const mpk_view &weight,
                       const mpk_view &bias, const mpk_view &beside, bool gated, const mpk_view &y,
                       double eps, bool centred)
{
    const int last = x.rank - 1; /* computed here, where the compiler sees a constant */
    const float each = 1.0f / (float)x.dims[last]; /* a division in the loop is a call: it spills */
    rows_raw by[PIECES], plus[PIECES];
    rows_meeting meeting = {(float *)t.s_scratch, 0};
    /* Constants of all rows: under way before the first row is. */
    if (mpk_is_there(weight) && rows_are_kept(PIECES, weight))
        rows_ask<WHOLE, LANES>(weight.dtype, mpk_data(t, weight), weight.dims[0], 0, by);
    if (mpk_is_there(bias) && rows_are_kept(PIECES, bias))
        rows_ask<WHOLE, LANES>(bias.dtype, mpk_data(t, bias), bias.dims[0], 0, plus);
    rows_each<PIECES, N, LANES, WHOLE>(
        t, x, last, first, beside, y, 0, [&](const rows_row<PIECES>(&row)[N]) {
            float mean[N] = {}, factor[N];
            /* Those of longer rows are asked for first and read last, behind both sums. */
            rows_raw more[N][PIECES];
#pragma unroll
            for (int k = 0; k < N; k++)
                if (mpk_is_there(beside) && !rows_bring<N>(PIECES, beside))
                    rows_ask<WHOLE, LANES>(beside.dtype, row[k].g_beside, row[k].n, 0, more[k]);
#pragma unroll
            for (int i = 0; i < N * PIECES; i++)
                if (rows_bring<N>(PIECES, beside))
                    more[i / PIECES][i % PIECES] = row[i / PIECES].more[i % PIECES];
#pragma unroll
            for (int k = 0; k < N; k++)
                if (centred)
                    mean[k] = rows_total<WHOLE, false, LANES>(x, row[k], 0, meeting) * each;
#pragma unroll
            for (int k = 0; k < N; k++)
                factor[k] =
                    rsqrtf(rows_total<WHOLE, true, LANES>(x, row[k], mean[k], meeting) * each +
                           (float)eps);
            rows_scale<WHOLE, LANES>(t, x, row, mean, factor, weight, by, bias, plus, beside, gated,
                                     more, y);
        });
}

/* The task's norms, by whole rows or by any.  Whole rows have code of their own: what other rows
 * need would take its registers.  The others go one at a time: their code is long enough. */
template <int PIECES, int N, int LANES>
MPK_FN void norm_rows(const mpk_task &t, const mpk_view &x, rt_i64 first, const mpk_view &weight,
                      const mpk_view &bias, const mpk_view &beside, bool gated, const mpk_view &y,
                      double eps, bool centred)
{
    const int last = x.rank - 1;
    if (first % ROWS_PIECE == 0 && rows_are_whole(t, x, last) && rows_are_whole(t, y, last) &&
        rows_are_whole(t, weight, 0) && rows_are_whole(t, bias, 0) &&
        rows_are_whole(t, beside, last))
        norm_lines<PIECES, N, LANES, true>(t, x, first, weight, bias, beside, gated, y, eps,
                                           centred);
    else
        norm_lines<PIECES, 1, LANES, false>(t, x, first, weight, bias, beside, gated, y, eps,
                                            centred);
}

/* The bodies of layer_norm and rms_norm, as body_rows_warp.c prints their calls. */
template <int PIECES, int N, int LANES>
MPK_FN void layer_norm_rows(const mpk_task &t, const mpk_view &x, const mpk_view &weight,
                            const mpk_view &bias, const mpk_view &y, double eps)
{
    constexpr mpk_view nothing = {-1}; /* an absent residual */
    norm_rows<PIECES, N, LANES>(t, x, 0, weight, bias, nothing, false, y, eps, true);
}

template <int PIECES, int N, int LANES>
MPK_FN void rms_norm_rows(const mpk_task &t, const mpk_view &x, const mpk_view &weight,
                          const mpk_view &residual, const mpk_view &gate, const mpk_view &y,
                          double eps)
{
    constexpr mpk_view nothing = {-1}; /* an absent bias */
    const bool gated = mpk_is_there(gate);
    norm_rows<PIECES, N, LANES>(t, x, 0, weight, nothing, gated ? gate : residual, gated, y, eps,
                                false);
}

/* A view of rank 2 whose rows have n entries: the strides stay, so its rows are those of v, cut
 * short. */
MPK_FN mpk_view rows_part(const mpk_view &v, rt_i64 n)
{
    mpk_view part = v;
    part.dims[1] = n;
    return part;
}

/* The body of rms_norm_parts: two parts of each row of x [T, N], normalised each by itself; the
 * columns after them are copied by pieces.  One number of lanes for both, and of pieces, which the
 * longer one needs. */
template <int PIECES, int N, int LANES>
MPK_FN void rms_norm_parts_rows(const mpk_task &t, const mpk_view &x, const mpk_view &weight0,
                                const mpk_view &weight1, const mpk_view &y, double eps)
{
    constexpr mpk_view nothing = {-1}; /* an absent bias, and residual */
    const rt_i64 n0 = weight0.dims[0], n1 = weight1.dims[0], rest = n0 + n1;
    norm_rows<PIECES, N, LANES>(t, rows_part(x, n0), 0, weight0, nothing, nothing, false,
                                rows_part(y, n0), eps, false);
    mpk_sync(); /* both begin with the same half of rows_meeting */
    norm_rows<PIECES, N, LANES>(t, rows_part(x, n1), n0, weight1, nothing, nothing, false,
                                rows_part(y, n1), eps, false);
    /* The columns after both parts, of which no norm wrote one: no barrier is needed. */
    const mpk_box box = mpk_box_of(t, 1);
    for (rt_i64 line = box.lo[0]; line < box.hi[0]; line++)
        for (rt_i64 i = rest + mpk_thread() * ROWS_PIECE; i < x.dims[1];
             i += MPK_THREADS * ROWS_PIECE) {
            float r[ROWS_PIECE];
            rows_read(x.dtype, mpk_data(t, x) + line * x.stride[0] * mpk_dtype_bytes(x.dtype), i,
                      x.dims[1], 0, r);
            rows_write(y.dtype, mpk_data(t, y) + line * y.stride[0] * mpk_dtype_bytes(y.dtype), i,
                       y.dims[1], r);
        }
}

/* Softmax, or its logarithm, of one row.  Entries beyond the row are -inf for the maximum, and are
 * excluded from the sum by their place: in a row of -inf alone, expf(-inf + inf) would be NaN there
 * too.  The row is in registers as floats from here on: its entries, then their weights (of the
 * logarithm: entry - most), then results. */
template <bool WHOLE, int LANES, int PIECES>
MPK_FN void rows_softmax(const mpk_view &x, const rows_row<PIECES> &row, bool logarithm,
                         const mpk_view &y, rows_meeting &meeting)
{
    float r[PIECES][ROWS_PIECE], most = -MPK_INFINITY, sum = 0; /* of this lane, then of the row */
#pragma unroll
    for (int c = 0; c < PIECES; c++)
        rows_piece<LANES>(x, row, c, -MPK_INFINITY, r[c]);
#pragma unroll
    for (int i = 0; i < PIECES * ROWS_PIECE; i++)
        most = rows_larger(most, r[i / ROWS_PIECE][i % ROWS_PIECE]);
    most = rows_largest_of<LANES>(meeting, most);
#pragma unroll
    for (int i = 0; i < PIECES * ROWS_PIECE; i++) {
        float *v = &r[i / ROWS_PIECE][i % ROWS_PIECE];
        const float weight =
            rows_first<LANES>(i / ROWS_PIECE) + i % ROWS_PIECE < row.n ? expf(*v - most) : 0.0f;
        sum += weight;
        *v = logarithm ? *v - most : weight;
    }
    sum = rows_total_of<LANES>(meeting, sum);
    /* The sum is 1 at least, the weight of the largest entry, or NaN: within what the fast division
     * takes. */
    const float factor = logarithm ? 1.0f : __fdividef(1, sum), less = logarithm ? logf(sum) : 0.0f;
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++)
            r[c][i] = r[c][i] * factor - less;
        rows_put<WHOLE, LANES>(y, row, c, r[c]);
    }
}

/* softmax, or log_softmax (logarithm). */
template <int PIECES, int N, int LANES, bool WHOLE>
MPK_FN void softmax_lines(const mpk_task &t, const mpk_view &x, const mpk_view &y, bool logarithm)
{
    constexpr mpk_view nothing = {-1}; /* an absent residual */
    const int last = x.rank - 1;
    rows_meeting meeting = {(float *)t.s_scratch, 0};
    rows_each<PIECES, N, LANES, WHOLE>(
        t, x, last, 0, nothing, y, -MPK_INFINITY, [&](const rows_row<PIECES>(&row)[N]) {
#pragma unroll
            for (int k = 0; k < N; k++)
                rows_softmax<WHOLE, LANES>(x, row[k], logarithm, y, meeting);
        });
}
/* The body of softmax and, with `logarithm`, of log_softmax, along the last axis. */
template <int PIECES, int N, int LANES>
MPK_FN void softmax_rows(const mpk_task &t, const mpk_view &x, const mpk_view &y, bool logarithm)
{
    const int last = x.rank - 1;
    if (rows_are_whole(t, x, last) && rows_are_whole(t, y, last))
        softmax_lines<PIECES, N, LANES, true>(t, x, y, logarithm);
    else
        softmax_lines<PIECES, 1, LANES, false>(t, x, y, logarithm);
}

#endif
