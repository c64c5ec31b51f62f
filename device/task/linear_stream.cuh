/* linear_stream.cuh - products of at most 16 tokens with weights that stream through the page ring (paper §5.3).
 *
 * y[t, n] = epilogue(sum over k of x[t, k] w[n, k]), x bf16, w packed (gen/device_body.h), sums f32.
 *
 * Idea: the warps split the columns (k); each keeps its slice of x in registers as the 16-row operand of
 * mma.m16n8k16 and multiplies it with every group of 8 rows of w as they arrive, so a weight is read from shared memory
 * once and up to 16 tokens cost what one costs.  With at most 8 tokens, rows 8 to 15 of the operand hold other columns
 * of the same tokens: half the registers, the same sums in the same order, so a token's bits do not depend on how many
 * share the step.  The partial sums of the warps meet in shared memory after each tile of 8 groups and are added in
 * the order of warps.  The scale of an rms_norm is applied to the sum (its weight is folded into w), the squares are
 * summed from the registers.
 *
 * Columns: page p of a group holds columns 1024 p ...; the last page may hold less, LAST blocks of 32 columns a warp.
 * Cost a page and warp: 4 shared loads of 16 bytes a lane, 8 products.
 */
#ifndef TASK_STREAM_STREAM_CUH
#define TASK_STREAM_STREAM_CUH

#include "tile/ring.cuh"

enum {
    STREAM_TILE = 8,                                       /* groups of 8 rows whose partial sums meet at once */
    STREAM_PARTS = 0,                                      /* scratch: float[STREAM_TILE][8 warps][32 lanes][4] */
    STREAM_SQUARES = STREAM_TILE * 8 * 32 * 16,            /* float[8 warps][16 tokens] */
    STREAM_PEAKS = STREAM_SQUARES + 512,                   /* float[2][STREAM_TILE][16 tokens][2] */
    STREAM_ROWS = STREAM_PEAKS + 2 * STREAM_TILE * 16 * 8, /* 16 bytes [8 warps][128]: rows on their way from folding */
    STREAM_SCRATCH = STREAM_ROWS + 8 * 128 * 16,
};

enum { GLU_NONE, GLU_SILU, GLU_GELU, GLU_GELU_TANH };
enum { TO_BF16, TO_LOGITS };

/* Where the operands stand in rt_entry.at, and what surrounds the product.  In constant memory: one body runs all
 * shapes, because code that is used by all operators of a layer stays in the instruction cache. */
struct stream_shape {
    int columns;           /* of x */
    float columns_inverse; /* 1 / columns */
    int pages, last;       /* of a group; blocks a warp in the last one: 1 .. 4 */
    int at_once;           /* pages of x in registers: the routine's */
    int rows;              /* of y: columns of the output, n */
    int norm;              /* 1: rms_norm of x */
    float eps;
    int glu;                                 /* GLU_*: groups hold pairs of rows */
    int x, y, residual;                      /* operands; -1: absent */
    int bias[3], bias_rows[3], bias_type[3]; /* operand, rows of that weight, 0: bf16, 1: f32 */
    int gathered, tokens;   /* operand rows i32[R]: row r of the product is token rows[r] below T, if alive; -1: r */
    int lse, splits, heads; /* x is [T, splits, columns], to be folded with lse f32[T, splits, heads] */
    int heads_inverse, head_inverse; /* of the number of heads, of a head's columns: see stream_divide */
    int output, peaks;               /* TO_*; operand of the peaks */
};

/* ---- the loader's part ---- */

/* Pages in the order of use: tile by tile, in a tile pass by pass (x in registers), in a pass group by group. */
MPK_FN void linear_stream_load(mpk_load &l, const stream_shape &s)
{
    const rt_u32 per_group = s.glu != GLU_NONE ? 4 : 8, first = l.e->lo[1] / per_group;
    const rt_u32 n = (l.e->hi[1] + per_group - 1) / per_group - first;
    const rt_u32 pages = s.pages, last_bytes = s.last * 4096, group_bytes = (pages - 1) * 16384 + last_bytes;
    const rt_u32 most = s.at_once, at_once = pages <= most ? pages : most;
    const rt_u32 tile = pages <= most ? n : STREAM_TILE; /* one pass: no need to go tile by tile */
    const char *base = (const char *)l.e->at[RT_PACKED] + (rt_u64)first * group_bytes;
#pragma unroll 1
    for (rt_u32 q = 0; q < n; q += tile)
#pragma unroll 1
        for (rt_u32 pass = 0; pass < pages; pass += at_once) {
            const rt_u32 end = pass + at_once < pages ? pass + at_once : pages, here = n - q < tile ? n - q : tile;
            const char *group = base + (rt_u64)q * group_bytes;
            rt_u32 p = pass;
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

/* Rows of the box that are alive; rows are counted from its first one, at most 16. */
MPK_FN int stream_rows(const mpk_task &t)
{
    return (int)t.hi0 - (int)t.e->lo[0];
}

/* The token of a row, -1: none. */
MPK_FN int stream_row(const mpk_task &t, const stream_shape &s, int row)
{
    if (row >= stream_rows(t))
        return -1;
    row += (int)t.e->lo[0];
    if (s.gathered < 0)
        return row;
    rt_u32 token = mpk_at<const rt_u32>(t, s.gathered)[row];
    return token < (rt_u32)s.tokens && token < t.live[RT_TOKENS] ? (int)token : -1;
}

/* x[i][j][0] token g (and with WIDE [1] token g + 8) of 8 columns: 4 words, columns c * 8 ... of block j of page i. */
template <int AT_ONCE, int WIDE> struct stream_x {
    mpk_words at[AT_ONCE][4][1 + WIDE];
};

/* The n pages of the pass. */
template <int AT_ONCE, int WIDE>
MPK_FN void stream_load_x(const mpk_task &t, const stream_shape &s, int pass, int n, stream_x<AT_ONCE, WIDE> &x)
{
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, columns = s.columns;
    const mpk_words none = {0, 0, 0, 0};
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const int token = stream_row(t, s, g + 8 * m);
        const char *base = mpk_at<const char>(t, s.x) + ((rt_u64)(token < 0 ? 0 : token) * columns + pass * 1024) * 2;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (i < n) {
                const int page = pass + i, blocks = page + 1 == s.pages ? s.last : 4;
                const int first = i * 1024 + warp * blocks * 32 + c * 8, end = columns - pass * 1024;
                const char *from = base + first * 2;
                if ((i + 1) * 1024 <= end) { /* a whole page: the usual case */
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        x.at[i][j][m] = token >= 0 ? ptx_load_words(from + j * 64) : none;
                } else {
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        x.at[i][j][m] =
                            token >= 0 && j < blocks && first + j * 32 < end ? ptx_load_words(from + j * 64) : none;
                }
            }
    }
}

/* x / d for small x, with inverse = ceil(2^20 / d): exact while x d < 2^20. */
MPK_FN int stream_divide(int x, int inverse)
{
    return x * inverse >> 20;
}

/* The weights of the splits of every token and head, exp(lse_s - M) / sum, into shared memory, and for each token the
 * range of splits that hold anything.  A lane is a split; a warp has one head, or two if there are at most 16 splits,
 * and asks for four at a time.  s_weight f32[tokens][splits][heads], s_range int[tokens][2]. */
MPK_FN void stream_split_weights(const mpk_task &t, const stream_shape &s, float *s_weight, int *s_range)
{
    const float *lse = mpk_at<const float>(t, s.lse) + (int)t.e->lo[0] * s.splits * s.heads;
    const float none = -__int_as_float(0x7f800000);
    const int width = s.splits <= 16 ? 16 : 32, per_warp = 32 / width, lane = threadIdx.x % 32, k = lane % width;
    const int items = stream_rows(t) * s.heads, stride = 8 * per_warp;
#pragma unroll 1
    for (int first = threadIdx.x / 32 * per_warp; first < items; first += 4 * stride) {
        float e[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            int item = first + u * stride + lane / width, token = stream_divide(item, s.heads_inverse);
            bool there = item < items && k < s.splits;
            e[u] = there
                       ? __uint_as_float(ptx_load_word(lse + (token * s.splits + k) * s.heads + item - token * s.heads))
                       : none;
        }
#pragma unroll
        for (int u = 0; u < 4; u++) {
            if (first + u * stride >= items)
                break;
            int item = first + u * stride + lane / width, token = stream_divide(item, s.heads_inverse);
            int head = item - token * s.heads;
            rt_u32 full = __ballot_sync(0xffffffffu, e[u] != none) >> (lane & ~(width - 1));
            if (width < 32)
                full &= 0xffff;
            float most = e[u], sum;
#pragma unroll
            for (int d = 16; d; d /= 2)
                if (d < width)
                    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
            e[u] = full >> k & 1 ? ptx_exp2((e[u] - most) * 1.44269504f) : 0;
            sum = e[u];
#pragma unroll
            for (int d = 16; d; d /= 2)
                if (d < width)
                    sum += __shfl_xor_sync(0xffffffffu, sum, d);
            if (item >= items)
                continue;
            if (k < s.splits)
                s_weight[(token * s.splits + k) * s.heads + head] = full ? __fdividef(e[u], sum) : 0;
            if (head == 0 && k == 0) {
                s_range[token * 2] = full ? __ffs((int)full) - 1 : 0;
                s_range[token * 2 + 1] = 32 - __clz((int)full);
            }
        }
    }
}

/* 8 columns of a token, being folded over its splits. */
struct stream_piece {
    const char *part;    /* of split 0 */
    const float *weight; /* of split 0 */
    int lo, hi;          /* splits to come */
    float sum[8];
};

MPK_FN void stream_begin_piece(const mpk_task &t, const stream_shape &s, int token, int column, const float *s_weight,
                               const int *s_range, stream_piece *p)
{
    p->part = mpk_at<const char>(t, s.x) + (rt_u32)(((int)t.e->lo[0] + token) * s.splits) * (rt_u32)(s.columns * 2) +
              column * 2;
    p->weight = s_weight + token * s.splits * s.heads + stream_divide(column, s.head_inverse);
    p->lo = s_range[token * 2];
    p->hi = s_range[token * 2 + 1];
#pragma unroll
    for (int e = 0; e < 8; e++)
        p->sum[e] = 0;
}

MPK_FN void stream_add_piece(float w, const mpk_words &v, float *sum)
{
    const rt_u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        sum[2 * e] = fmaf(w, ptx_low_bf16(words[e]), sum[2 * e]);
        sum[2 * e + 1] = fmaf(w, ptx_high_bf16(words[e]), sum[2 * e + 1]);
    }
}

/* The splits that are left, four loads in flight. */
MPK_FN mpk_words stream_end_piece(const stream_shape &s, stream_piece *p)
{
    const rt_u32 row_bytes = s.columns * 2;
#pragma unroll 1
    for (; p->lo < p->hi; p->lo += 4) {
        mpk_words v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (p->lo + i < p->hi)
                v[i] = ptx_load_words(p->part + (rt_u32)(p->lo + i) * row_bytes);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (p->lo + i < p->hi)
                stream_add_piece(p->weight[(p->lo + i) * s.heads], v[i], p->sum);
    }
    mpk_words y = {ptx_pack_bf16(p->sum[0], p->sum[1]), ptx_pack_bf16(p->sum[2], p->sum[3]),
                   ptx_pack_bf16(p->sum[4], p->sum[5]), ptx_pack_bf16(p->sum[6], p->sum[7])};
    return y;
}

/* x from the partial results of split attention: the lanes of a warp fold its columns and hand them on through shared
 * memory, as many blocks of 32 columns at once as 128 pieces hold.  All pages are of one pass. */
template <int AT_ONCE, int WIDE>
MPK_FN void stream_fold_x(const mpk_task &t, const stream_shape &s, stream_x<AT_ONCE, WIDE> &x)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const int tokens = stream_rows(t), blocks = s.pages * 4, at_once = tokens ? 32 / tokens : blocks;
    const int inverse = tokens ? ((1 << 20) + tokens - 1) / tokens : 0;
    int *s_range = (int *)(t.s_scratch + STREAM_PEAKS);
    float *s_weight = (float *)(t.s_scratch + STREAM_PARTS);
    mpk_words *s_row = (mpk_words *)(t.s_scratch + STREAM_ROWS) + warp * 128; /* [blocks][tokens][4] */
    const mpk_words none = {0, 0, 0, 0};
    stream_split_weights(t, s, s_weight, s_range);
    mpk_sync();
#pragma unroll 1
    for (int first = 0; first < blocks; first += at_once) {
        const int n = blocks - first < at_once ? blocks - first : at_once;
        __syncwarp();
        const int items = n * tokens * 4;
        if (WIDE) {
            /* Many tokens have few splits each: ask for the first of four pieces before any is used. */
#pragma unroll 1
            for (int from = lane; from < items; from += 128) {
                stream_piece p[4];
                mpk_words v[4];
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    const int item = from + 32 * u, of_chunk = stream_divide(item / 4, inverse);
                    const int row = item / 4 - of_chunk * tokens, page = (first + of_chunk) / 4;
                    const int j = (first + of_chunk) % 4, of_page = page + 1 == s.pages ? s.last : 4;
                    const int column = page * 1024 + (warp * of_page + j) * 32 + item % 4 * 8;
                    const bool there = item < items && j < of_page && column < s.columns;
                    stream_begin_piece(t, s, there ? row : 0, there ? column : 0, s_weight, s_range, &p[u]);
                    if (!there)
                        p[u].hi = p[u].lo;
                    if (p[u].lo < p[u].hi)
                        v[u] = ptx_load_words(p[u].part + (rt_u32)p[u].lo * (rt_u32)(s.columns * 2));
                }
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    if (p[u].lo < p[u].hi) {
                        stream_add_piece(p[u].weight[p[u].lo * s.heads], v[u], p[u].sum);
                        p[u].lo++;
                    }
                    const mpk_words y = stream_end_piece(s, &p[u]);
                    if (from + 32 * u < items)
                        s_row[from + 32 * u] = y;
                }
            }
        } else {
#pragma unroll 1
            for (int item = lane; item < items; item += 32) {
                const int of_chunk = stream_divide(item / 4, inverse), row = item / 4 - of_chunk * tokens;
                const int page = (first + of_chunk) / 4, j = (first + of_chunk) % 4;
                const int of_page = page + 1 == s.pages ? s.last : 4;
                const int column = page * 1024 + (warp * of_page + j) * 32 + item % 4 * 8;
                stream_piece p;
                s_row[item] = none;
                if (j < of_page && column < s.columns) {
                    stream_begin_piece(t, s, row, column, s_weight, s_range, &p);
                    s_row[item] = stream_end_piece(s, &p);
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < AT_ONCE * 4; i++)
            if (i >= first && i < first + n)
#pragma unroll
                for (int m = 0; m <= WIDE; m++)
                    x.at[i / 4][i % 4][m] =
                        g + 8 * m < tokens ? s_row[((i - first) * tokens + g + 8 * m) * 4 + c] : none;
    }
    mpk_sync(); /* the scratch is free for partial sums */
}

template <int AT_ONCE, int WIDE> MPK_FN void stream_add_squares(const stream_x<AT_ONCE, WIDE> &x, int n, float *square)
{
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        if (i < n)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int m = 0; m <= WIDE; m++) {
                    const mpk_words v = x.at[i][j][m];
                    const rt_u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        float a = ptx_low_bf16(words[e]), b = ptx_high_bf16(words[e]);
                        square[m] = fmaf(b, b, fmaf(a, a, square[m]));
                    }
                }
}

/* ---- products ---- */

/* c[0 .. 3]: token g columns 2c, 2c + 1, token g + 8 the same; without WIDE only the first two. */
template <int WIDE> MPK_FN void stream_multiply(float *first, float *second, const mpk_words *x, const mpk_words &w)
{
    const mpk_words a = x[0], b = x[WIDE];
    if (WIDE) {
        ptx_multiply_bf16(first, a.x, b.x, a.y, b.y, w.x, w.y);
        ptx_multiply_bf16(second, a.z, b.z, a.w, b.w, w.z, w.w);
    } else {
        ptx_multiply_bf16(first, a.x, a.z, a.y, a.w, w.x, w.y);
        ptx_multiply_bf16(second, a.x, a.z, a.y, a.w, w.z, w.w);
    }
}

/* The next N pages of the ring, page i with x.at[X + i * STEP]; sums[i] as in stream_multiply. */
template <int N, int X, int STEP, int AT_ONCE, int WIDE>
MPK_FN void stream_pages(mpk_ring *ring, const stream_x<AT_ONCE, WIDE> &x, int blocks_of_first, int blocks_of_last,
                         int warp, int lane_at, float sums[][4])
{
    rt_u32 page[N];
    const char *at[N];
    float first[N][4], second[N][4];
#pragma unroll
    for (int i = 0; i < N; i++) {
        int blocks = i + 1 == N ? blocks_of_last : blocks_of_first;
        at[i] = ring_take(ring, &page[i]) + warp * blocks * 512 + lane_at;
#pragma unroll
        for (int e = 0; e < 4; e++)
            first[i][e] = second[i][e] = 0;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        mpk_words w[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            if (j < (i + 1 < N ? blocks_of_first : blocks_of_last))
                w[i] = *(const mpk_words *)(at[i] + j * 512);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (j < (i + 1 < N ? blocks_of_first : blocks_of_last))
                stream_multiply<WIDE>(first[i], second[i], x.at[X + i * STEP][j], w[i]);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int i = 0; i < N; i++)
            ptx_barrier_arrive(&mpk_w.empty[page[i]]);
#pragma unroll
    for (int i = 0; i < N; i++) {
        sums[i][0] = first[i][0] + second[i][WIDE ? 0 : 2];
        sums[i][1] = first[i][1] + second[i][WIDE ? 1 : 3];
        if (WIDE) {
            sums[i][2] = first[i][2] + second[i][2];
            sums[i][3] = first[i][3] + second[i][3];
        }
    }
}

/* Where a group's sums of this warp lie, for stream_total. */
template <int WIDE> MPK_FN float *stream_part(char *s_parts, int group)
{
    return (float *)s_parts + ((group * 8) * 32 + threadIdx.x) * (WIDE ? 4 : 2);
}
template <int WIDE> MPK_FN void stream_put(char *s_parts, int group, const float *sums)
{
    float *to = stream_part<WIDE>(s_parts, group);
#pragma unroll
    for (int e = 0; e < (WIDE ? 4 : 2); e++)
        to[e] = sums[e];
}

/* Add one group: the n pages of this pass; `last`: blocks a warp in the last of them.  Pairs of pages are added to the
 * total one after the other, whatever the number of pages in a pass: the bits are the same for all routines. */
template <int AT_ONCE, int WIDE>
MPK_FN void stream_group(mpk_ring *ring, const stream_x<AT_ONCE, WIDE> &x, int n, int last, int warp, int lane_at,
                         float *total)
{
    float sums[2][4];
    if (n == 1) {
        stream_pages<1, 0, 1>(ring, x, 4, last, warp, lane_at, sums);
#pragma unroll
        for (int e = 0; e < (WIDE ? 4 : 2); e++)
            total[e] += sums[0][e];
        return;
    }
    stream_pages<2, 0, 1>(ring, x, 4, n == 2 ? last : 4, warp, lane_at, sums);
#pragma unroll
    for (int e = 0; e < (WIDE ? 4 : 2); e++)
        total[e] += sums[0][e] + sums[1][e];
    if (AT_ONCE == 2 || n == 2)
        return;
    if (n == 3) {
        stream_pages<1, AT_ONCE - 2, 1>(ring, x, 4, last, warp, lane_at, sums);
#pragma unroll
        for (int e = 0; e < (WIDE ? 4 : 2); e++)
            total[e] += sums[0][e];
        return;
    }
    stream_pages<2, AT_ONCE - 2, 1>(ring, x, 4, last, warp, lane_at, sums);
#pragma unroll
    for (int e = 0; e < (WIDE ? 4 : 2); e++)
        total[e] += sums[0][e] + sums[1][e];
}

/* ---- the end of a tile ---- */

MPK_FN float stream_bias(const mpk_task &t, const stream_shape &s, int column)
{
#pragma unroll
    for (int i = 0; i < 3; i++) {
        if (column < s.bias_rows[i] || i == 2) {
            if (s.bias[i] < 0)
                return 0;
            if (s.bias_type[i])
                return mpk_at<const float>(t, s.bias[i])[column];
            return __uint_as_float((rt_u32)mpk_at<const rt_u16>(t, s.bias[i])[column] << 16);
        }
        column -= s.bias_rows[i];
    }
    return 0;
}

MPK_FN float stream_activate(int glu, float x)
{
    if (glu == GLU_SILU)
        return __fdividef(x, 1 + __expf(-x));
    if (glu == GLU_GELU)
        return 0.5f * x * (1 + erff(x * 0.70710678f));
    return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

/* 1 / rms of token `row` from the squares that the warps have put down. */
MPK_FN float stream_scale(const mpk_task &t, const stream_shape &s, int row)
{
    const float *square = (const float *)(t.s_scratch + STREAM_SQUARES) + row;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < 8; w++)
        sum += square[w * 16];
    return rsqrtf(sum * s.columns_inverse + s.eps);
}

/* Two neighbouring values of a row of the residual, in one word; what lies outside the box is 0. */
MPK_FN rt_u32 stream_residual(const mpk_task &t, const stream_shape &s, int row, int column)
{
    const rt_u16 *r = mpk_at<const rt_u16>(t, s.residual) + (rt_u64)(t.e->lo[0] + row) * s.rows + column;
    int lo = (int)t.e->lo[1], hi = (int)t.e->hi[1];
    rt_u32 v = 0;
    if (row >= stream_rows(t))
        return 0;
    if (column >= lo && column + 1 < hi && s.rows % 2 == 0)
        return ptx_load_word(r);
    if (column >= lo && column < hi)
        v = r[0];
    if (column + 1 >= lo && column + 1 < hi)
        v |= (rt_u32)r[1] << 16;
    return v;
}

/* Two neighbouring values of a row of y: round and store what lies in the box. */
MPK_FN void stream_store(const mpk_task &t, const stream_shape &s, int row, int column, float a, float b)
{
    rt_u16 *y = mpk_at<rt_u16>(t, s.y) + (rt_u64)(t.e->lo[0] + row) * s.rows + column;
    int lo = (int)t.e->lo[1], hi = (int)t.e->hi[1];
    rt_u32 v = ptx_pack_bf16(a, b);
    if (column >= lo && column + 1 < hi && s.rows % 2 == 0) {
        ptx_store_word(y, v);
        return;
    }
    if (column >= lo && column < hi)
        y[0] = (rt_u16)v;
    if (column + 1 >= lo && column + 1 < hi)
        y[1] = (rt_u16)(v >> 16);
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

/* Values of one lane after the sums: tokens g and g + 8, columns 2c and 2c + 1 of group `group` of the operator. */
template <int WIDE>
MPK_FN void stream_finish(const mpk_task &t, const stream_shape &s, int group, const float *total,
                          const rt_u32 *residual)
{
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        int row = g + 8 * m;
        bool alive = row < stream_rows(t);
        float scale = s.norm ? stream_scale(t, s, row) : 1, a = total[2 * m] * scale, b = total[2 * m + 1] * scale;
        if (s.glu != GLU_NONE) {
            int column = group * 4 + c;
            if (s.bias[0] >= 0 && column < s.rows)
                a += stream_bias(t, s, column);
            if (s.bias[1] >= 0 && column < s.rows)
                b += stream_bias(t, s, s.bias_rows[0] + column);
            float v = stream_activate(s.glu, a) * b, next = __shfl_down_sync(0xffffffffu, v, 1);
            if (alive && c % 2 == 0)
                stream_store(t, s, row, column, v, next);
        } else {
            int column = group * 8 + 2 * c;
            if (s.bias[0] >= 0 || s.bias[1] >= 0 || s.bias[2] >= 0) {
                a += column < s.rows ? stream_bias(t, s, column) : 0;
                b += column + 1 < s.rows ? stream_bias(t, s, column + 1) : 0;
            }
            if (s.residual >= 0) {
                a += ptx_low_bf16(residual[m]);
                b += ptx_high_bf16(residual[m]);
            }
            if (alive)
                stream_store(t, s, row, column, a, b);
        }
    }
}

/* Logits stay f32; the largest of a group goes to shared memory, whence stream_peaks takes it a tile later. */
template <int WIDE>
MPK_FN void stream_finish_logits(const mpk_task &t, const stream_shape &s, int group, int in_tile, int tile,
                                 const float *total)
{
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, column = group * 8 + 2 * c;
    float *s_peaks = (float *)(t.s_scratch + STREAM_PEAKS) + (tile % 2 * STREAM_TILE + in_tile) * 32;
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        int row = g + 8 * m;
        float scale = s.norm ? stream_scale(t, s, row) : 1, a = total[2 * m] * scale, b = total[2 * m + 1] * scale;
        float *y = mpk_at<float>(t, s.y) + (rt_u64)(t.e->lo[0] + row) * s.rows + column,
              best = -__int_as_float(0x7f800000);
        int at = -1;
        bool has_a = column < s.rows, has_b = column + 1 < s.rows;
        if (row < stream_rows(t)) {
            if (has_a)
                y[0] = a;
            if (has_b)
                y[1] = b;
        }
        if (has_a && a == a) {
            best = a;
            at = column;
        }
        if (has_b && b == b && (at < 0 || b > best)) {
            best = b;
            at = column + 1;
        }
#pragma unroll
        for (int d = 1; d < 4; d *= 2) {
            float other = __shfl_xor_sync(0xffffffffu, best, d);
            int other_at = __shfl_xor_sync(0xffffffffu, at, d);
            if (other_at >= 0 && (at < 0 || other > best || (other == best && other_at < at))) {
                best = other;
                at = other_at;
            }
        }
        if (c == 0) {
            s_peaks[row * 2] = best;
            s_peaks[row * 2 + 1] = (float)at;
        }
    }
}

/* The largest of a tile's 64 columns for each token. */
MPK_FN void stream_peaks(const mpk_task &t, const stream_shape &s, int first_group, int n_groups, int tile)
{
    const float *s_peaks = (const float *)(t.s_scratch + STREAM_PEAKS) + tile % 2 * STREAM_TILE * 32;
    int row = mpk_thread();
    if (row >= stream_rows(t))
        return;
    float best = s_peaks[row * 2], at = s_peaks[row * 2 + 1];
#pragma unroll 1
    for (int i = 1; i < n_groups; i++)
        if (s_peaks[i * 32 + row * 2 + 1] >= 0 && (at < 0 || s_peaks[i * 32 + row * 2] > best)) {
            best = s_peaks[i * 32 + row * 2];
            at = s_peaks[i * 32 + row * 2 + 1];
        }
    float *to = mpk_at<float>(t, s.peaks) + ((rt_u64)(t.e->lo[0] + row) * ((s.rows + 63) / 64) + first_group / 8) * 2;
    to[0] = best;
    to[1] = at;
}

/* ---- the body ---- */

/* FOLDS: 1 only for shapes with lse, 0 only for those without, 2 for both. */
template <int AT_ONCE, int WIDE, int FOLDS> MPK_FN void linear_stream(const mpk_task &t, const stream_shape &s)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const int per_group = s.glu != GLU_NONE ? 4 : 8, first = (int)t.e->lo[1] / per_group;
    const int n = ((int)t.e->hi[1] + per_group - 1) / per_group - first;
    const int lane_at = g * 64 + (c ^ g / 2) * 16, pages = s.pages, last = s.last;
    char *s_parts = t.s_scratch + STREAM_PARTS;
    mpk_ring ring = *t.ring;
    stream_x<AT_ONCE, WIDE> x;
    float square[2] = {0, 0};
    mpk_wait(t);
#pragma unroll 1
    for (int q = 0, tile = 0; q < n; q += STREAM_TILE, tile++) {
        const int here = n - q < STREAM_TILE ? n - q : STREAM_TILE;
        if (q)
            mpk_sync();              /* the sums of the last tile have been read */
        rt_u32 residual[2] = {0, 0}; /* asked for before the products, used after them */
        if (s.residual >= 0 && warp < here)
#pragma unroll
            for (int m = 0; m <= WIDE; m++)
                residual[m] = stream_residual(t, s, g + 8 * m, (first + q + warp) * 8 + 2 * c);
#pragma unroll 1
        for (int pass = 0; pass < pages; pass += AT_ONCE) {
            const int of_pass = pages - pass < AT_ONCE ? pages - pass : AT_ONCE;
            const int of_last = pass + of_pass == pages ? last : 4;
            if (pages > AT_ONCE || q == 0) {
                if (FOLDS == 1 || (FOLDS == 2 && s.lse >= 0))
                    stream_fold_x<AT_ONCE, WIDE>(t, s, x);
                else
                    stream_load_x<AT_ONCE, WIDE>(t, s, pass, of_pass, x);
                if (s.norm && q == 0)
                    stream_add_squares<AT_ONCE, WIDE>(x, of_pass, square);
            }
            int i = 0;
            if (pages == 1) /* two groups at a time, so that there are pages in flight */
#pragma unroll 1
                for (; i + 1 < here; i += 2) {
                    float sums[2][4];
                    stream_pages<2, 0, 0>(&ring, x, last, last, warp, lane_at, sums);
                    stream_put<WIDE>(s_parts, i, sums[0]);
                    stream_put<WIDE>(s_parts, i + 1, sums[1]);
                }
#pragma unroll 1
            for (; i < here; i++) {
                float total[4] = {0, 0, 0, 0};
                if (pass) /* what earlier passes have summed */
#pragma unroll
                    for (int e = 0; e < (WIDE ? 4 : 2); e++)
                        total[e] = stream_part<WIDE>(s_parts, i)[e];
                stream_group<AT_ONCE, WIDE>(&ring, x, of_pass, of_last, warp, lane_at, total);
                stream_put<WIDE>(s_parts, i, total);
            }
        }
        if (s.norm && q == 0) {
#pragma unroll
            for (int m = 0; m <= WIDE; m++) {
                square[m] += __shfl_xor_sync(0xffffffffu, square[m], 1);
                square[m] += __shfl_xor_sync(0xffffffffu, square[m], 2);
                if (c == 0)
                    ((float *)(t.s_scratch + STREAM_SQUARES))[warp * 16 + g + 8 * m] = square[m];
            }
        }
        mpk_sync();
        if (warp < here) {
            float total[4];
            stream_total<WIDE>(s_parts, warp, lane, total);
            if (s.output == TO_LOGITS)
                stream_finish_logits<WIDE>(t, s, first + q + warp, warp, tile, total);
            else
                stream_finish<WIDE>(t, s, first + q + warp, total, residual);
        }
        if (s.output == TO_LOGITS && q)
            stream_peaks(t, s, first + q - STREAM_TILE, STREAM_TILE, tile - 1);
    }
    if (s.output == TO_LOGITS && n) {
        mpk_sync();
        stream_peaks(t, s, first + (n - 1) / STREAM_TILE * STREAM_TILE, (n - 1) % STREAM_TILE + 1,
                     (n - 1) / STREAM_TILE);
    }
    *t.ring = ring;
    mpk_trigger(t);
}

#endif
