/* linear_stream.cuh - products of at most 16 tokens with weights that stream through the page
 * ring (paper §5.3).
 *
 * y[t, n] = epilogue(sum over k of x[t, k] w[n, k]), x bf16 or f16 (tile/halves.cuh), w packed
 * (gen/device_body.h), sums f32.  Called by the generated switch over bodies that wait; the
 * loader calls linear_stream_load.
 *
 * Idea: the warps split the columns (k); each keeps its slice of x in registers as the 16-row
 * operand of mma.m16n8k16 and multiplies it with every group of 8 rows of w as they arrive, so a
 * weight is read from shared memory once and up to 16 tokens cost what one costs.  A product may
 * sum k in any order if both operands agree: the 16 bytes that a lane reads of w (row g, 8
 * columns) are fed as two products' words, without a shuffle.  With at most 8 tokens (WIDE 0),
 * rows 8 to 15 of the operand hold other columns of the same tokens: half the registers, the
 * same sums in the same order, so a token's bits do not depend on how many share the step.  The
 * partial sums of the warps meet in shared memory after each tile of 8 groups and are added in
 * the order of warps.  The scale of an rms_norm is applied to the sum (its weight is folded into
 * w), the squares are summed from the registers.
 *
 * x and the residual may be carried (rt_lane.h): then each warp polls its own columns, and no
 * event stands between the operators.
 *
 * Columns: page p of a group holds columns 1024 p ..., warp w of them 128 w ...; the last page
 * may hold less, LAST blocks of 32 columns a warp:
 *
 *   page   warp 0: 4 blocks | warp 1: 4 blocks | ... | warp 7: 4 blocks     32 blocks of 512 bytes
 *   block  row g (64 bytes) = 4 units of 16 bytes; lane (g, c) reads unit c ^ g / 2
 *
 * Cost a page and warp: 4 shared loads of 16 bytes a lane, 8 products.
 */
#ifndef TASK_LINEAR_STREAM_CUH
#define TASK_LINEAR_STREAM_CUH

#include "shape/linear_stream_shape.h"
#include "task/peaks.cuh"
#include "tile/halves.cuh"
#include "tile/ring.cuh"

/* Groups of the task's box: the first one, and how many.  A group is 8 rows of w; of a gated
 * product these are 4 columns of y. */
MPK_FN rt_u32 stream_first(const rt_entry *e, const stream_shape &s)
{
    return e->lo[1] >> (s.glu != GLU_NONE ? 2 : 3);
}
/* Groups of 8 rows of w that the task touches, also in part; with a gate a group holds 4 rows of
 * each weight. */
MPK_FN rt_u32 stream_groups(const rt_entry *e, const stream_shape &s)
{
    const rt_u32 shift = s.glu != GLU_NONE ? 2 : 3;
    return ((e->hi[1] + (1u << shift) - 1) >> shift) - (e->lo[1] >> shift);
}

/* ---- the loader's part ---- */

/* The loader: pages in the order of use: tile by tile, in a tile pass by pass (x in registers),
 * in a pass group by group.  The body takes exactly these pages, whatever is alive. */
MPK_FN void linear_stream_load(mpk_load &l, const stream_shape &s)
{
    const rt_u32 first = stream_first(l.e, s), n = stream_groups(l.e, s); /* groups of the box */
    const rt_u32 pages = s.pages, last_bytes = s.last * 4096,
                 group_bytes = (pages - 1) * 16384 + last_bytes;
    const rt_u32 most = s.at_once, at_once = pages <= most ? pages : most; /* pages of x */
    const rt_u32 tile = pages <= most ? n : STREAM_TILE; /* one pass: no need to go tile by tile */
    const char *base = (const char *)l.e->at[RT_PACKED] + (rt_u64)first * group_bytes; /* group 0 */
#pragma unroll 1
    for (rt_u32 q = 0; q < n; q += tile)
#pragma unroll 1
        for (rt_u32 pass = 0; pass < pages; pass += at_once) {
            const rt_u32 end = pass + at_once < pages ? pass + at_once : pages,
                         here = n - q < tile ? n - q : tile;
            const char *group = base + (rt_u64)q * group_bytes; /* first group of the tile */
            rt_u32 p = pass;                                    /* page of the group */
#pragma unroll 1
            for (rt_u32 i = 0; i < here * (end - pass); i++) {
                load_from(&l, group + p * 16384, p + 1 == pages ? last_bytes : 16384);
                if (++p == end) {
                    p = pass;
                    group += group_bytes;
                }
            }
        }
}

/* ---- x into registers ---- */

/* Rows of the box that are alive; rows are counted from its first one, at most 16.  From shared
 * memory: mpk_task.hi0 would wait on the stack, out of the L1 cache. */
MPK_FN int stream_rows(const mpk_task &t)
{
    const rt_u32 lo = t.e->lo[0], end = mpk_smaller(t.e->hi[0], t.live[t.e->live]);
    return end > lo ? (int)(end - lo) : 0;
}

/* The token of a row, -1: none. */
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

/* Words as loaded become words as products take them.  The moves go through an instruction that
 * the compiler cannot see through (ptx_own): it would do them again for every page. */
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

/* Is the last page not full? */
MPK_FN bool stream_is_part(const stream_shape &s)
{
    return ptx_again((rt_u32)s.columns) % 1024;
}

/* Where the last page of this lane's pieces lies, and what of it there is. */
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

/* Where this lane's pieces of x begin; read once a task, kept in registers. */
template <int WIDE>
MPK_FN void stream_find_x(const mpk_task &t, const stream_shape &s, int rows, int thread,
                          stream_from<WIDE> *from)
{
    const int warp = thread / 32, g = thread % 32 / 4, c = thread % 4, columns = s.columns;
    from->x = mpk_at<const char>(t, s.x);
    stream_find_last<WIDE>(s, thread, from);
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const int token = stream_row(t, s, g + 8 * m, rows); /* -1: none */
        from->at[m] = token < 0 ? STREAM_NONE : (rt_u32)(token * columns + warp * 128 + c * 8) * 2;
    }
}

/* Issue the loads of this lane's pieces of page `page`, without waiting; AGAIN: only of pieces
 * that were still empty.  FULL: no page has less than four blocks a warp. */
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
 * While many rows are missing, repeated loads would delay the weights' copies: then each lane
 * polls one piece, and requests the others again only when that has come. */
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
template <int AT_ONCE, int WIDE>
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
            const mpk_words a = x.at[i][j][0], b = x.at[i][j][WIDE];
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

/* The lane that holds the diagonal's entry puts the warp's sum down for stream_scale: float[16
 * tokens][8 warps]. */
template <int WIDE>
MPK_FN void stream_put_squares(const mpk_task &t, int thread, const float *square)
{
    const int warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
    float *to = (float *)(t.s_scratch + STREAM_SQUARES) + g * 8 + warp; /* [token][warp] */
    if (c != g / 2) /* another lane has the entry */
        return;
    to[0] = square[0];
    if (WIDE)
        to[64] = square[WIDE];
}

/* ---- products ---- */

/* Blocks j of N pages.  first and second are sums of their own: a product that adds to the sum
 * of the one before would wait for it. */
template <int N, int WIDE>
MPK_FN void stream_multiply(const char *const *at, const mpk_words (*const *x)[1 + WIDE], int j,
                            float (*first)[4], float (*second)[4])
{
    mpk_words w[N]; /* all are requested before the first product */
#pragma unroll
    for (int i = 0; i < N; i++)
        w[i] = *(const mpk_words *)(at[i] + j * 512);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const mpk_words a = x[i][j][0], b = x[i][j][WIDE];
        halves_multiply(first[i], a.x, a.y, a.z, a.w, w[i].x, w[i].y);
        halves_multiply(second[i], b.x, b.y, b.z, b.w, w[i].z, w[i].w);
    }
}

/* Take the next N pages of the ring, all of `blocks` blocks a warp, multiply page i with x[i]
 * and release them.  sums[i]: columns 2c, 2c + 1 of token g, with WIDE then of token g + 8. */
template <int N, int WIDE>
MPK_FN void stream_pages(mpk_ring *ring, const mpk_words (*const *x)[1 + WIDE], int blocks,
                         int thread, float (*sums)[4])
{
    const int warp = thread / 32, lane = thread % 32, g = lane / 4, c = lane % 4; /* fragment */
    rt_u32 page[N];                                                               /* of the ring */
    const char *at[N];
    float first[N][4], second[N][4]; /* of words 0, 1 and of words 2, 3 */
#pragma unroll
    for (int i = 0; i < N; i++) {
        at[i] = ring_take(ring, &page[i]) + warp * blocks * 512 + g * 64 + (c ^ g / 2) * 16;
#pragma unroll
        for (int e = 0; e < 4; e++)
            first[i][e] = second[i][e] = 0;
    }
    if (blocks == 4) { /* nearly always */
#pragma unroll
        for (int j = 0; j < 4; j++)
            stream_multiply<N, WIDE>(at, x, j, first, second);
    } else {
#pragma unroll
        for (int j = 0; j < 3; j++)
            if (j < blocks)
                stream_multiply<N, WIDE>(at, x, j, first, second);
    }
    /* The pages have been read by all lanes: give them back before the sums are put together. */
    __syncwarp();
    if (lane == 0)
#pragma unroll
        for (int i = 0; i < N; i++)
            ptx_barrier_arrive(&mpk_w.empty[page[i]]);
#pragma unroll
    for (int i = 0; i < N; i++) {
        /* not WIDE: rows 8 to 15 of the second product are the token's other columns */
        sums[i][0] = first[i][0] + second[i][WIDE ? 0 : 2];
        sums[i][1] = first[i][1] + second[i][WIDE ? 1 : 3];
        if (WIDE) {
            sums[i][2] = first[i][2] + second[i][2];
            sums[i][3] = first[i][3] + second[i][3];
        }
    }
}

/* Where a group's sums of this warp lie, for stream_total: float[group][8 warps][32 lanes][2 or
 * 4]. */
template <int WIDE> MPK_FN float *stream_sums(char *s_parts, int group, int thread)
{
    return (float *)s_parts + ((group * 8) * 32 + thread) * (WIDE ? 4 : 2);
}
/* Lanes store next to each other, 8 or 16 bytes each, without bank conflicts. */
template <int WIDE> MPK_FN void stream_put(char *s_parts, int group, int thread, const float *sums)
{
    float *to = stream_sums<WIDE>(s_parts, group, thread); /* this lane's */
#pragma unroll
    for (int e = 0; e < (WIDE ? 4 : 2); e++)
        to[e] = sums[e];
}

/* Add one group: the n pages of this pass; `last`: blocks a warp in the last of them.  Pages are
 * added to the total one after the other, whatever the number of pages in a pass: the bits are the
 * same for all routines. */
template <int AT_ONCE, int WIDE>
MPK_FN void stream_group(mpk_ring *ring, const stream_x<AT_ONCE, WIDE> &x, int n, int last,
                         int thread, float *total)
{
    float sums[1][4]; /* of one page */
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        if (i >= n)
            break;
        const mpk_words(*const one[1])[1 + WIDE] = {x.at[i]};
        stream_pages<1, WIDE>(ring, one, i + 1 == n ? last : 4, thread, sums);
#pragma unroll
        for (int e = 0; e < (WIDE ? 4 : 2); e++)
            total[e] += sums[0][e];
    }
}

/* ---- the end of a tile ---- */

/* The bias of a column of y, whose weights stand one after the other; 0 where there is none. */
MPK_FN float stream_bias(const mpk_task &t, const stream_shape &s, int column)
{
#pragma unroll
    for (int i = 0; i < 3; i++) {
        /* the last weight takes what is left */
        if (column < s.bias_rows[i] || i == 2) {
            if (s.bias[i] < 0)
                return 0;
            if (s.bias_type[i])
                return mpk_at<const float>(t, s.bias[i])[column];
            return halves_low(mpk_at<const rt_u16>(t, s.bias[i])[column]);
        }
        column -= s.bias_rows[i]; /* of the next weight */
    }
    return 0;
}

/* SiLU, GELU, GELU by tanh. */
MPK_FN float stream_activate(int glu, float x)
{
    if (glu == GLU_SILU)
        return __fdividef(x, 1 + __expf(-x));
    if (glu == GLU_GELU)
        return 0.5f * x * (1 + erff(x * 0.70710678f));
    return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

/* What the end of a tile needs, in shared memory: constant memory is far when every word is asked
 * for by itself. */
struct __align__(16) stream_end
{
    rt_u64 y;                   /* the box's first row */
    rt_u32 row_bytes, modes;    /* of y; END_* */
    float columns_inverse, eps; /* of the norm */
    int rows, columns;          /* of the box, alive; of y */
};
enum {
    END_NORM = 1,
    END_GLU = 2,
    END_BIAS = 4,
    END_RESIDUAL = 8,
    END_PART = 16, /* of words, columns count */
    END_LOGITS = 32,
    END_WHICH = 64, /* GLU_* times this */
};

/* By one thread after mpk_wait; the barrier after the first tile's products publishes it. */
MPK_FN void stream_put_end(const mpk_task &t, const stream_shape &s)
{
    const int glu = (int)ptx_again((rt_u32)s.glu), unit = s.output == TO_LOGITS ? 4 : 2; /* bytes */
    const bool part = (t.e->lo[1] | t.e->hi[1]) % (glu != GLU_NONE ? 4 : 8) || s.rows % 2;
    stream_end e; /* written as a whole, for all threads */
    e.row_bytes = (rt_u32)s.rows * unit;
    e.y = (rt_u64)(mpk_at<char>(t, s.y) + (rt_u64)t.e->lo[0] * e.row_bytes);
    e.modes = (s.norm ? END_NORM : 0) | (glu != GLU_NONE ? END_GLU : 0) |
              (s.residual >= 0 ? END_RESIDUAL : 0) |
              (s.bias[0] >= 0 || s.bias[1] >= 0 || s.bias[2] >= 0 ? END_BIAS : 0) |
              (part ? END_PART : 0) | (s.output == TO_LOGITS ? END_LOGITS : 0) |
              (rt_u32)glu * END_WHICH;
    e.columns_inverse = s.columns_inverse;
    e.eps = s.eps;
    e.rows = stream_rows(t);
    e.columns = s.rows;
    *(stream_end *)(t.s_scratch + STREAM_END) = e;
}

/* 1 / rms of token `row`, from the squares that the warps have put down, added in their order. */
MPK_FN float stream_scale(const mpk_task &t, const stream_end &e, int row)
{
    const float4 *square = (const float4 *)(t.s_scratch + STREAM_SQUARES) + row * 2, a = square[0],
                 b = square[1];
    const float sum = ((((((a.x + a.y) + a.z) + a.w) + b.x) + b.y) + b.z) + b.w;
    return rsqrtf(sum * e.columns_inverse + e.eps);
}

/* In the residual, which has y's shape; row counts from the task's first token. */
MPK_FN const rt_u16 *stream_residual_at(const mpk_task &t, const stream_shape &s, int row,
                                        int column)
{
    return mpk_at<const rt_u16>(t, s.residual) + (rt_u64)(t.e->lo[0] + row) * s.rows + column;
}

/* Two neighbouring values of a row of the residual that is alive, in one word; what lies outside
 * the box is 0. */
MPK_FN rt_u32 stream_residual(const mpk_task &t, const stream_shape &s, int row, int column)
{
    const rt_u16 *r = stream_residual_at(t, s, row, column); /* may be odd, or outside the box */
    int lo = (int)t.e->lo[1], hi = (int)t.e->hi[1];          /* columns of the box */
    rt_u32 v = 0; /* what lies outside the box may not be there yet */
    if (column >= lo && column + 1 < hi && s.rows % 2 == 0)
        return ptx_load_word(r);
    if (column >= lo && column < hi)
        v = r[0];
    if (column + 1 >= lo && column + 1 < hi)
        v |= (rt_u32)r[1] << 16;
    return v;
}

/* Two neighbouring values from `column` on, at y: those of columns lo .. hi - 1.  whole: y lies at
 * a whole word. */
MPK_FN void stream_store_two(const mpk_task &t, rt_u16 *y, int column, int lo, int hi, bool whole,
                             float a, float b)
{
    const rt_u32 v = halves_pack(a, b); /* one word of y */
    if (column >= lo && column + 1 < hi && whole) {
        mpk_put_word(t, y, v);
        return;
    }
    if (column >= lo && column < hi)
        y[0] = (rt_u16)v;
    if (column + 1 >= lo && column + 1 < hi)
        y[1] = (rt_u16)(v >> 16);
}

/* The same of a row of y. */
MPK_FN void stream_store(const mpk_task &t, const stream_shape &s, int row, int column, float a,
                         float b)
{
    rt_u16 *y = mpk_at<rt_u16>(t, s.y) + (rt_u64)(t.e->lo[0] + row) * s.rows + column;
    stream_store_two(t, y, column, (int)t.e->lo[1], (int)t.e->hi[1], s.rows % 2 == 0, a, b);
}

/* Add the warps' sums of one group, in their order: this warp's group of the tile. */
template <int WIDE> MPK_FN void stream_total(const char *s_parts, int group, int lane, float *total)
{
    const float *from = (const float *)s_parts + (group * 8 * 32 + lane) * (WIDE ? 4 : 2);
#pragma unroll
    for (int e = 0; e < 4; e++)
        total[e] = 0;
#pragma unroll
    for (int w = 0; w < 8; w++)
#pragma unroll
        for (int e = 0; e < (WIDE ? 4 : 2); e++)
            total[e] += from[w * 32 * (WIDE ? 4 : 2) + e];
}

/* Sums of one lane become values of y: tokens first_row + g and + 8, columns 2c and 2c + 1 of
 * group `group` of the operator.  Gated, the two columns are gate and up of one, so even lanes
 * get the neighbour's value too and store both. */
template <int WIDE>
MPK_FN void stream_finish(const mpk_task &t, const stream_shape &s, int group, int first_row,
                          int thread, const float *total, const rt_u32 *residual)
{
    const stream_end e = *(const stream_end *)(t.s_scratch + STREAM_END);
    const int g = thread % 32 / 4, c = thread % 4;
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const rt_u32 modes = ptx_again(e.modes); /* tests of it are not kept in predicates */
        const int row = first_row + g + 8 * m,
                  column = modes & END_GLU ? group * 4 + c : group * 8 + 2 * c;
        const bool alive = row < e.rows; /* lanes of others take part in the shuffles */
        float scale = modes & END_NORM ? stream_scale(t, e, row) : 1, a = total[2 * m] * scale,
              b = total[2 * m + 1] * scale;
        if (modes & END_BIAS) {
            const int second = modes & END_GLU ? s.bias_rows[0] + column : column + 1;
            if (column < e.columns)
                a += stream_bias(t, s, column);
            if (modes & END_GLU ? column < e.columns : second < e.columns)
                b += stream_bias(t, s, second);
        }
        /* gate times its partner; b becomes the neighbour's value, so that even lanes store a
         * pair */
        if (modes & END_GLU) {
            a = stream_activate((int)(modes / END_WHICH), a) * b;
            b = __shfl_down_sync(0xffffffffu, a, 1);
        }
        if (modes & END_RESIDUAL) {
            rt_u32 r = residual[m]; /* requested before the products */
            if (alive && r == RT_EMPTY && mpk_carries(t, s.residual))
                r = mpk_carried_word(stream_residual_at(t, s, row, column), r);
            a += halves_low(r);
            b += halves_high(r);
        }
        if (!alive || (modes & END_GLU && c % 2))
            continue;
        if (modes & END_PART)
            stream_store(t, s, row, column, a, b);
        else
            mpk_put_word(t, (char *)e.y + (rt_u32)row * e.row_bytes + column * 2,
                         halves_pack(a, b));
    }
}

/* Logits stay f32; the largest of a group goes to s_peaks, float[tokens][2], whence stream_peaks
 * takes it later. */
template <int WIDE>
MPK_FN void stream_finish_logits(const mpk_task &t, int group, int first_row, int thread,
                                 const float *total, float *s_peaks)
{
    const stream_end e = *(const stream_end *)(t.s_scratch + STREAM_END);
    const int g = thread % 32 / 4, c = thread % 4, column = group * 8 + 2 * c;
    const bool has_a = column < e.columns, has_b = column + 1 < e.columns; /* of the vocabulary */
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const int row = first_row + g + 8 * m;
        const float scale = e.modes & END_NORM ? stream_scale(t, e, row) : 1,
                    a = total[2 * m] * scale, b = total[2 * m + 1] * scale;
        float *y = (float *)((char *)e.y + (rt_u64)row * e.row_bytes) + column;
        if (row < e.rows && !(e.modes & END_PART)) {
            *(float2 *)y = make_float2(a, b);
        } else if (row < e.rows) {
            if (has_a)
                y[0] = a;
            if (has_b)
                y[1] = b;
        }
        /* of the group's 8 columns, by the four lanes of the row */
        const peak p = peak_of_lanes<4>(peak_of_pair(a, b, column, has_a, has_b));
        if (c == 0) {
            s_peaks[row * 2] = p.best;
            s_peaks[row * 2 + 1] = (float)p.at;
        }
    }
}

/* The peaks of a tile's groups; two tiles have some at the same time. */
MPK_FN float *stream_peaks_of(const mpk_task &t, int tile)
{
    return (float *)(t.s_scratch + STREAM_PEAKS) + tile % 2 * STREAM_TILE * 32;
}

/* The largest of 64 columns for each token: the n_groups from first_group on, whose peaks lie
 * `stride` floats apart. */
MPK_FN void stream_peaks(const mpk_task &t, const stream_shape &s, const float *s_peaks, int stride,
                         int first_group, int n_groups)
{
    int row = mpk_thread();    /* a thread a token */
    if (row >= stream_rows(t)) /* no token */
        return;
    float best = s_peaks[row * 2], at = s_peaks[row * 2 + 1]; /* of group 0; at < 0: none */
#pragma unroll 1
    for (int i = 1; i < n_groups; i++)
        /* a group without a peak has column -1 */
        if (s_peaks[i * stride + row * 2 + 1] >= 0 &&
            (at < 0 || s_peaks[i * stride + row * 2] > best)) {
            best = s_peaks[i * stride + row * 2];
            at = s_peaks[i * stride + row * 2 + 1];
        }
    float *to = mpk_at<float>(t, s.peaks) +
                ((rt_u64)(t.e->lo[0] + row) * ((s.rows + 63) / 64) + first_group / 8) * 2;
    to[0] = best;
    to[1] = at;
}

/* ---- the body ---- */

/* The groups of a tile over the pages of one pass; the warp's sums go to s_parts. */
template <int AT_ONCE, int WIDE>
MPK_FN void stream_tile(const stream_x<AT_ONCE, WIDE> &x, mpk_ring *ring, char *s_parts, int groups,
                        int pass, int of_pass, int of_last, int thread)
{
    int i = 0; /* group of the tile */
    /* Two groups at a time, so that there are products to do while others end; only where one page
     * is a whole group, so that no sum goes on in another page. */
    if (pass == 0 && of_pass == 1)
#pragma unroll 1
        for (; i + 1 < groups; i += 2) {
            const mpk_words(*const both[2])[1 + WIDE] = {x.at[0], x.at[0]};
            float sums[2][4];
            stream_pages<2, WIDE>(ring, both, of_last, thread, sums);
            stream_put<WIDE>(s_parts, i, thread, sums[0]);
            stream_put<WIDE>(s_parts, i + 1, thread, sums[1]);
        }
#pragma unroll 1
    for (; i < groups; i++) {
        float total[4] = {0, 0, 0, 0}; /* of the pages so far */
        if (pass)                      /* what earlier passes have summed */
#pragma unroll
            for (int e = 0; e < (WIDE ? 4 : 2); e++)
                total[e] = stream_sums<WIDE>(s_parts, i, thread)[e];
        stream_group<AT_ONCE, WIDE>(ring, x, of_pass, of_last, thread, total);
        stream_put<WIDE>(s_parts, i, thread, total);
    }
}

/* All body threads.  Per tile: x, unless it is in registers already; products, page by page; a
 * barrier; each warp ends one group.  Sums of a tile are overwritten after the next barrier
 * only. */
template <int AT_ONCE, int WIDE> MPK_FN void linear_stream(const mpk_task &t, const stream_shape &s)
{
    const int thread = mpk_thread(), warp = thread / 32, lane = thread % 32, g = lane / 4,
              c = lane % 4;
    const int first = (int)stream_first(t.e, s), n = (int)stream_groups(t.e, s), pages = s.pages;
    char *s_parts = t.s_scratch + STREAM_PARTS;
    mpk_ring ring = *t.ring; /* in registers for the life of the task */
    bool is_logits = false;  /* known after the products of the first tile */
    stream_from<WIDE> from;  /* where this lane's x lies */
    stream_x<AT_ONCE, WIDE> x;
    stream_clear_x<AT_ONCE, WIDE>(x);
    float square[1 + WIDE] = {}; /* of tokens g and g + 8 */
    /* Also if the task is quiet: polls of x while other warps of this worker still write would
     * only delay their stores. */
    mpk_wait(t);
    const int rows = stream_rows(t);
    stream_find_x<WIDE>(t, s, rows, thread, &from);
#pragma unroll 1
    for (int q = 0, tile = 0; q < n; q += STREAM_TILE, tile++) {
        const int here = n - q < STREAM_TILE ? n - q : STREAM_TILE; /* groups of the tile */
        rt_u32 residual[2] = {0, 0}; /* requested before the products, used after them */
        if (q)
            mpk_sync(); /* the sums of the last tile have been read */
#pragma unroll 1
        for (int pass = 0; pass < pages; pass += AT_ONCE) {
            const int of_pass = pages - pass < AT_ONCE ? pages - pass : AT_ONCE; /* pages */
            const bool asks = pages > AT_ONCE || q == 0; /* else x is in registers */
            if (asks)
                stream_ask_x<AT_ONCE, WIDE>(from, pass, of_pass, pages, stream_is_part(s), x);
            if (pass == 0 && s.residual >= 0 && warp < here)
#pragma unroll
                for (int m = 0; m <= WIDE; m++)
                    residual[m] = g + 8 * m < rows ? stream_residual(t, s, g + 8 * m,
                                                                     (first + q + warp) * 8 + 2 * c)
                                                   : 0;
            /* While x is in flight, by one lane of the last warp; read after the products'
             * barrier. */
            if (pass == 0 && q == 0 && mpk_thread() == MPK_THREADS - 32)
                stream_put_end(t, s);
            if (asks) {
                if (mpk_carries(t, s.x))
                    stream_await_x<AT_ONCE, WIDE>(from, pass, of_pass, pages, rows > 2, x);
                stream_order_x<AT_ONCE, WIDE>(of_pass, x);
                if (s.norm && q == 0)
                    stream_add_squares<AT_ONCE, WIDE>(x, of_pass, thread, square);
            }
            stream_tile<AT_ONCE, WIDE>(x, &ring, s_parts, here, pass, of_pass,
                                       pass + of_pass == pages ? s.last : 4, thread);
        }
        if (s.norm && q == 0)
            stream_put_squares<WIDE>(t, thread, square);
        mpk_sync();
        /* The shape itself is out of reach by now: it would come back from the stack. */
        is_logits = ((const stream_end *)(t.s_scratch + STREAM_END))->modes & END_LOGITS;
        if (warp < here) {
            float total[4]; /* of the warp's group, all columns */
            stream_total<WIDE>(s_parts, warp, lane, total);
            if (is_logits)
                stream_finish_logits<WIDE>(t, first + q + warp, 0, thread, total,
                                           stream_peaks_of(t, tile) + warp * 32);
            else
                stream_finish<WIDE>(t, s, first + q + warp, 0, thread, total, residual);
        }
        /* The peaks of the tile before: the barrier above says that all of its groups are there. */
        if (is_logits && q)
            stream_peaks(t, s, stream_peaks_of(t, tile - 1), 32, first + q - STREAM_TILE,
                         STREAM_TILE);
    }
    if (is_logits) {
        mpk_sync();
        stream_peaks(t, s, stream_peaks_of(t, (n - 1) / STREAM_TILE), 32,
                     first + (n - 1) / STREAM_TILE * STREAM_TILE, (n - 1) % STREAM_TILE + 1);
    }
    *t.ring = ring; /* where the next task goes on */
    mpk_trigger(t);
}

#endif
