/* stream_x.cuh - x of a streamed product in registers: which rows a task has, how they are loaded,
 * awaited where they are carried, squared for a norm, and ordered as products take them.
 *
 * Called by linear_stream.cuh, by linear_team.cuh and by the experts' products, in whole warps.
 * Relies on shape/linear_stream_shape.h; the scratch of a task has the squares at STREAM_SQUARES.
 *
 * Which lane has what: warp w has columns 1024 p + 128 w ... of page p, four blocks of 32; in a
 * block lane (g, c) has columns 8 c ... + 7 of tokens g and, with WIDE, g + 8: 16 bytes, one load.
 * It is the lane that has the same 8 columns of row g of w, so nothing is exchanged before a
 * product.  A page of x takes 16 registers a lane, with WIDE 32.
 *
 * The life of x in a pass: stream_ask_x, other work, stream_await_x if it is carried,
 * stream_order_x, stream_add_squares where there is a norm.
 */
#ifndef TASK_STREAM_X_CUH
#define TASK_STREAM_X_CUH

#include "shape/linear_stream_shape.h"
#include "tile/halves.cuh"
#include "tile/ring.cuh"

/* Rows of the box that are alive; rows are counted from its first one, at most 16 (of teams 64).
 * From shared memory: mpk_task.hi0 would wait on the stack, out of the L1 cache. */
MPK_FN int stream_rows(const mpk_task &t)
{
    const rt_u32 lo = t.e->lo[0], end = mpk_smaller(t.e->hi[0], t.live[t.e->live]);
    return end > lo ? (int)(end - lo) : 0;
}

/* The token of a row, -1: none.  row: from the box's first row on; rows: how many are alive.
 * Numbers of gathered rows are data, and believed only in range: a bad one is a row of zeros, never
 * a bad address. */
MPK_FN int stream_row(const mpk_task &t, const stream_shape &s, int row, int rows)
{
    if (row >= rows) /* padding of the operand */
        return -1;
    row += (int)t.e->lo[0]; /* of the operator */
    if (s.gathered < 0)     /* rows are tokens */
        return row;
    rt_u32 token = mpk_at<const rt_u32>(t, s.gathered)[row];
    return token < (rt_u32)s.tokens && token < t.live[RT_TOKENS] ? (int)token : -1;
}

/* x as the operand of the products, for the pages of a pass: at[i][j][m] are the four words a0
 * .. a3 of product m of block j of page i.  Of the lane's 8 columns of the block, words 0 to 3:
 *
 *   WIDE   m = 0: words 0, 1 of token g and of g + 8 in turn; m = 1: words 2, 3 likewise
 *   else   words 0, 2, 1, 3 of token g: row g has words 0, 1 and row g + 8 words 2, 3
 */
template <int AT_ONCE, int WIDE> struct stream_x {
    mpk_words at[AT_ONCE][4][1 + WIDE];
};

/* What is loaded on some paths only must be set on all: else its registers are live, and so
 * taken, for the life of the kernel (docs/gpu.md, "Registers"). */
template <int AT_ONCE, int WIDE> MPK_FN void stream_clear_x(stream_x<AT_ONCE, WIDE> &x)
{
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int m = 0; m <= WIDE; m++)
                x.at[i][j][m] = {0, 0, 0, 0};
}

/* Words as loaded become words as products take them (struct stream_x).  The moves go through an
 * instruction that the compiler cannot see through (ptx_own): it would do them again for every
 * page. */
template <int WIDE> MPK_FN void stream_order_page(mpk_words (*x)[1 + WIDE])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const mpk_words a = x[j][0], b = x[j][WIDE]; /* tokens g and g + 8 */
        if (WIDE) {
            x[j][0] = {ptx_own(a.x), ptx_own(b.x), ptx_own(a.y), ptx_own(b.y)};
            x[j][WIDE] = {ptx_own(a.z), ptx_own(b.z), ptx_own(a.w), ptx_own(b.w)};
        } else {
            x[j][0] = {ptx_own(a.x), ptx_own(a.z), ptx_own(a.y), ptx_own(a.w)};
        }
    }
}

/* Both products' words of a block of x, which is ordered or as it was loaded; of at most 8 tokens b
 * is a.  Weights in blocks take x as it was loaded, hence both (blocks.cuh). */
template <int WIDE, bool ORDERED>
MPK_FN void stream_operand(const mpk_words *x, mpk_words *a, mpk_words *b)
{
    const mpk_words first = x[0], second = x[WIDE];
    if (ORDERED) {
        *a = first;
        *b = second;
    } else if (WIDE) {
        *a = {first.x, second.x, first.y, second.y};
        *b = {first.z, second.z, first.w, second.w};
    } else {
        *a = *b = {first.x, first.z, first.y, first.w};
    }
}

/* Where this lane's pieces of x lie: 16 bytes of each block, for token g and, with WIDE, for token
 * g + 8. */
template <int WIDE> struct stream_from {
    const char *x; /* the tensor's first byte */
    /* bytes from x to page 0; page i is 2048 bytes further on; STREAM_NONE: no such token */
    rt_u32 at[1 + WIDE];
    /* bytes from page 0 to the last page, and pieces of it: warps may have fewer blocks there */
    int last_at, last_n;
};
enum { STREAM_NONE = 0xffffffffu };

/* Is the last page not full?  Asked anew each time (ptx_again): known ahead, it would hold a
 * predicate through the task. */
MPK_FN bool stream_is_part(const stream_shape &s)
{
    return ptx_again((rt_u32)s.columns) % 1024;
}

/* Where the last page of this lane's pieces lies, and what of it there is.  In a page that is not
 * full the warps' blocks follow each other without gaps, so that warp w begins at column 32 last w
 * of it and not at 128 w; last_at undoes what `at` has counted for the warp. */
template <int WIDE>
MPK_FN void stream_find_last(const stream_shape &s, int thread, stream_from<WIDE> *from)
{
    const int warp = thread / 32, c = thread % 4, columns = s.columns;
    from->last_at = (s.pages - 1) * 2048;
    from->last_n = 4; /* a full page */
    if (stream_is_part(s)) {
        const int last = s.last, first = (s.pages - 1) * 1024 + warp * last * 32;
        const int end = (columns - first - c * 8 + 31) / 32;
        from->last_at = (first - warp * 128) * 2;
        from->last_n = end < 0 ? 0 : end < last ? end : last;
    }
}

/* Find where this lane's pieces of x begin, for the 16 tokens from the box's row first_row on. They
 * are found once for all pages and kept in registers. */
template <int WIDE>
MPK_FN void stream_find_x(const mpk_task &t, const stream_shape &s, int first_row, int rows,
                          int thread, stream_from<WIDE> *from)
{
    const int warp = thread / 32, g = thread % 32 / 4, c = thread % 4, columns = s.columns;
    from->x = mpk_at<const char>(t, s.x);
    stream_find_last<WIDE>(s, thread, from);
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const int token = stream_row(t, s, first_row + g + 8 * m, rows); /* -1: none */
        from->at[m] = token < 0 ? STREAM_NONE : (rt_u32)(token * columns + warp * 128 + c * 8) * 2;
    }
}

/* Issue the loads of this lane's pieces of page `page`, without waiting; AGAIN: only of pieces that
 * were still empty, which excludes those that do not exist: they are 0.  FULL: no page has less
 * than four blocks a warp.  Relaxed loads, past L1: what was there in the last step must not
 * answer. */
template <int WIDE, bool AGAIN, bool FULL>
MPK_FN void stream_ask_page(const stream_from<WIDE> &from, int page, bool last,
                            mpk_words (*x)[1 + WIDE])
{
    const int further = !FULL && last ? from.last_at : page * 2048,
              n = !FULL && last ? from.last_n : 4;
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const char *at = from.x + (from.at[m] + further); /* may be nowhere: then not loaded */
        const bool there = from.at[m] != STREAM_NONE;     /* else its words stay 0 */
#pragma unroll
        for (int j = 0; j < 4; j++)
            ptx_load_words_if(at + j * 64, AGAIN ? mpk_is_empty(x[j][m]) : there && j < n,
                              &x[j][m]);
    }
}

/* Issue the loads of the n pages of a pass.  x has been set to 0, so rows without a token stay
 * 0. */
template <int AT_ONCE, int WIDE, bool FULL>
MPK_FN void stream_ask_pages(const stream_from<WIDE> &from, int pass, int n, int pages,
                             stream_x<AT_ONCE, WIDE> &x)
{
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        if (i >= n)
            break;
        stream_ask_page<WIDE, false, FULL>(from, pass + i, pass + i + 1 == pages, x.at[i]);
    }
}
/* Request the pages of x of a pass. part: the last page has fewer columns than a page, so lanes
 * beyond them load nothing and must not keep what an earlier pass left. */
template <int AT_ONCE, int WIDE>
MPK_FN void stream_ask_x(const stream_from<WIDE> &from, int pass, int n, int pages, bool part,
                         stream_x<AT_ONCE, WIDE> &x)
{
    if (!part) {
        stream_ask_pages<AT_ONCE, WIDE, true>(from, pass, n, pages, x);
        return;
    }
    if (pass) /* of the last page not all is loaded, and a pass before has left something */
        stream_clear_x<AT_ONCE, WIDE>(x);
    stream_ask_pages<AT_ONCE, WIDE, false>(from, pass, n, pages, x);
}

/* Until all that was requested is there: no word of it is RT_EMPTY, which is the largest word.
 * pass, n, pages: as stream_ask_x had them.  While many rows are missing, repeated loads would
 * delay the weights' copies: then each lane polls one piece, and requests the others again only
 * when that has come.  No word is ordered by another; each is looked at. */
template <int AT_ONCE, int WIDE>
MPK_FN void stream_await_x(const stream_from<WIDE> &from, int pass, int n, int pages, bool many,
                           stream_x<AT_ONCE, WIDE> &x)
{
#pragma unroll 1
    for (;;) {
        rt_u32 most = 0; /* of all words: RT_EMPTY if any is */
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (i >= n)
                break;
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int m = 0; m <= WIDE; m++)
                    most = mpk_larger(most, mpk_largest_word(x.at[i][j][m]));
        }
        /* The warp goes on together: its lanes share the next products. */
        if (!__any_sync(0xffffffffu, most == RT_EMPTY) || ptx_load_flag(&mpk_w.abort))
            break;
        const char *first =
            from.x + (from.at[0] + (pass + 1 == pages ? from.last_at : pass * 2048));
        /* The piece that each lane polls: the first block of its token g. */
        while (many && mpk_is_empty(x.at[0][0][0]) && !ptx_load_flag(&mpk_w.abort))
            x.at[0][0][0] = ptx_load_words(first);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (i >= n)
                break;
            stream_ask_page<WIDE, true, false>(from, pass + i, pass + i + 1 == pages, x.at[i]);
        }
    }
}

/* The n pages of a pass, once all words have come: empty ones must be found before they are
 * mixed. */
template <int AT_ONCE, int WIDE> MPK_FN void stream_order_x(int n, stream_x<AT_ONCE, WIDE> &x)
{
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        if (i >= n)
            break;
        stream_order_page<WIDE>(x.at[i]);
    }
}

/* Add the squares of x: the diagonal of x x^T, whose second operand are the same registers.
 * Words 0, 1 of a lane's 8 columns and words 2, 3 have sums of their own, and each page has: so
 * the bits are the same whatever the layout and the number of pages in a pass.  Entry (g, g) of
 * a product is held by lane c = g / 2 of row g, in its register g % 2; with WIDE (g + 8, g + 8)
 * too: square[0], square[1] of that lane. */
template <int AT_ONCE, int WIDE, bool ORDERED = true>
MPK_FN void stream_add_squares(const stream_x<AT_ONCE, WIDE> &x, int n, int thread, float *square)
{
    const int odd = thread / 4 % 2, second = WIDE ? 0 : 2; /* entry of the diagonal */
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        float sum[2 + 2 * WIDE][4] = {}; /* of this page alone */
        if (i >= n)
            break;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            mpk_words a, b;
            stream_operand<WIDE, ORDERED>(x.at[i][j], &a, &b);
            halves_multiply(sum[0], a.x, a.y, a.z, a.w, a.x, a.z);
            halves_multiply(sum[1], b.x, b.y, b.z, b.w, WIDE ? b.x : b.y, WIDE ? b.z : b.w);
            if (WIDE) {
                halves_multiply(sum[2 * WIDE], a.x, a.y, a.z, a.w, a.y, a.w);
                halves_multiply(sum[3 * WIDE], b.x, b.y, b.z, b.w, b.y, b.w);
            }
        }
        square[0] += (odd ? sum[0][1] : sum[0][0]) + (odd ? sum[1][second + 1] : sum[1][second]);
        if (WIDE)
            square[WIDE] += (odd ? sum[2 * WIDE][3] : sum[2 * WIDE][2]) +
                            (odd ? sum[3 * WIDE][3] : sum[3 * WIDE][2]);
    }
}

/* Two values of x, each times its column's weight of the norm, rounded again to 16 bits: products
 * take no others. */
MPK_FN rt_u32 stream_scale_word(rt_u32 v, float low, float high)
{
    return halves_pack(halves_low(v) * low, halves_high(v) * high);
}
/* Eight neighbours of a norm's weight, from `column` on, a multiple of 8; they lie at a multiple of
 * 16 bytes.  norm_type 1: f32, else as x. */
MPK_FN void stream_norm(const mpk_task &t, const stream_shape &s, int column, float *norm)
{
    const char *at = mpk_at<const char>(t, s.norm_in);
    if (s.norm_type) {
        const float4 a = ((const float4 *)at)[column / 4], b = ((const float4 *)at)[column / 4 + 1];
        norm[0] = a.x, norm[1] = a.y, norm[2] = a.z, norm[3] = a.w;
        norm[4] = b.x, norm[5] = b.y, norm[6] = b.z, norm[7] = b.w;
        return;
    }
    const mpk_words v = *(const mpk_words *)(at + column * 2);
    norm[0] = halves_low(v.x), norm[1] = halves_high(v.x);
    norm[2] = halves_low(v.y), norm[3] = halves_high(v.y);
    norm[4] = halves_low(v.z), norm[5] = halves_high(v.z);
    norm[6] = halves_low(v.w), norm[7] = halves_high(v.w);
}
/* Multiply the n pages of x from `pass` on, which are as loaded, by the norm's weight, where that
 * is not folded into w.  All pages are full, with columns after the last, where x is 0 and stays
 * so.  The token's factor comes at the end (stream_scale). */
template <int AT_ONCE, int WIDE>
MPK_FN void stream_apply_norm(const mpk_task &t, const stream_shape &s, int pass, int n, int thread,
                              stream_x<AT_ONCE, WIDE> &x)
{
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        if (i >= n)
            break;
        float norm[4][8]; /* all are requested before the first is used */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int column = (pass + i) * 1024 + thread / 32 * 128 + j * 32 + thread % 4 * 8;
            stream_norm(t, s, column < s.columns ? column : 0, norm[j]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int m = 0; m <= WIDE; m++) {
                const mpk_words v = x.at[i][j][m];
                x.at[i][j][m] = {stream_scale_word(v.x, norm[j][0], norm[j][1]),
                                 stream_scale_word(v.y, norm[j][2], norm[j][3]),
                                 stream_scale_word(v.z, norm[j][4], norm[j][5]),
                                 stream_scale_word(v.w, norm[j][6], norm[j][7])};
            }
    }
}

/* The lane that holds the diagonal's entry puts the warp's sum down for stream_scale: float[64
 * tokens][8 warps], of which a body has 16 at a time.  The barrier after the products publishes
 * it. */
template <int WIDE>
MPK_FN void stream_put_squares(const mpk_task &t, int first_row, int thread, const float *square)
{
    const int warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
    float *to = (float *)(t.s_scratch + STREAM_SQUARES) + (first_row % TEAM_MOST_TOKENS + g) * 8 +
                warp; /* [token][warp] */
    if (c != g / 2)   /* another lane has the entry */
        return;
    to[0] = square[0];
    if (WIDE)
        to[64] = square[WIDE];
}

#endif
