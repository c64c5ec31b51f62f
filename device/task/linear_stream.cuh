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
 * event stands between the operators.  x of at most 8 tokens may be the sum of terms that several
 * GPUs make (stream_terms.cuh).
 *
 * Columns: page p of a group holds columns 1024 p ..., warp w of them 128 w ...; the last page
 * may hold less, LAST blocks of 32 columns a warp:
 *
 *   page   warp 0: 4 blocks | warp 1: 4 blocks | ... | warp 7: 4 blocks     32 blocks of 512 bytes
 *   block  row g (64 bytes) = 4 units of 16 bytes; lane (g, c) reads unit c ^ g / 2
 *
 * Cost a page and warp: 4 shared loads of 16 bytes a lane, 8 products.
 *
 * Scratch (offsets: STREAM_*), which the task has from mpk_wait on:
 *
 *   SQUARES  of each token by warp    from the first tile's products to the end of the task
 *   END      stream_end, then BEND    put down by one thread during the first tile
 *   PEAKS    of logits, of two tiles in turn
 *   PARTS    the warps' sums of the tile at hand; before, terms of x (stream_terms.cuh)
 *
 * Weights in block formats (FORM not 0; rt/rt_blocks.h) stream in the same way, as slabs of 1,024
 * columns of each of two groups, and are multiplied as integers (blocks.cuh).  A norm's weight
 * cannot be folded into them, so x is multiplied by it in registers, after its squares are summed.
 * Such a product takes any number of tokens, 16 at a time: for each 16 the task's weights pass
 * through the ring again.
 */
#ifndef TASK_LINEAR_STREAM_CUH
#define TASK_LINEAR_STREAM_CUH

#include "shape/linear_stream_shape.h"
#include "shape/linear_tile_shape.h"
#include "task/blocks.cuh"
#include "task/linear_stream_load.cuh"
#include "task/peaks.cuh"
#include "task/stream_terms.cuh"
#include "task/stream_x.cuh"

/* ---- products ---- */

/* Blocks j of N pages, of all rows of a group and this lane's 16 bytes of each.  first and second
 * are sums of their own: a product that adds to the sum of the one before would wait for it.
 *
 * With at most 8 tokens (WIDE 0) x[..][0] and x[..][WIDE] are the same registers: rows 0 to 7 of
 * the operand meet words 0, 1 of w in the first product, rows 8 to 15, the token's other columns,
 * meet words 2, 3 in the second.  The other halves of both results multiply columns that do not
 * belong together; nothing reads them. */
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

/* Take the next N pages of the ring, all of `blocks` blocks a warp, multiply page i with x[i] and
 * release them.  sums[i]: columns 2c, 2c + 1 of token g, with WIDE then of token g + 8.  A lane
 * reads row g of w, unit c ^ g / 2 of each block: eight lanes at a time, two rows, cover all 32
 * banks. */
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

/* Where a group's sums of this warp lie, for stream_total: float[group][8 warps][32 lanes][2 or 4].
 * A lane leaves what it has, in the order of the fragment: the lane of the same number picks it
 * up. */
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

/* SiLU, GELU, GELU by tanh; glu: GLU_*, the last for any other value. */
MPK_FN float stream_activate(int glu, float x)
{
    if (glu == GLU_SILU)
        return __fdividef(x, 1 + __expf(-x));
    if (glu == GLU_GELU)
        return 0.5f * x * (1 + erff(x * 0.70710678f));
    return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

/* What the end of a tile needs, in shared memory: constant memory is far when every word is asked
 * for by itself.  stream_put_end fills it once a task, linear_team.cuh too. */
struct __align__(16) stream_end
{
    rt_u64 y;                   /* the box's first row */
    rt_u32 row_bytes, modes;    /* of y; END_* */
    float columns_inverse, eps; /* of the norm; without one eps is a factor */
    int rows, columns;          /* of the box, alive; of y */
};
enum {
    END_NORM = 1,
    END_GLU = 2,
    END_BIAS = 4,
    END_RESIDUAL = 8,
    END_PART = 16, /* y has words of which another task, or row, has a half */
    END_LOGITS = 32,
    END_AFTER = 64,
    END_WHICH = 128, /* GLU_* times this */
};

/* Has some task of the kernel an activation without a gate?  Else its code is left out. */
#define STREAM_HAS_AFTER (MPK_FORMS >> TILE_FORM_STREAM_AFTER & 1)

/* By one thread after mpk_wait; the barrier after the first tile's products publishes it.  The box
 * of a part, whose columns do not begin and end at whole groups, or rows of an odd length, takes
 * the careful stores. */
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
    if (STREAM_HAS_AFTER && s.after != GLU_NONE)
        e.modes |= END_AFTER | (rt_u32)s.after * END_WHICH;
    e.columns_inverse = s.columns_inverse;
    e.eps = s.eps;
    e.rows = stream_rows(t);
    e.columns = s.rows;
    *(stream_end *)(t.s_scratch + STREAM_END) = e;
    if (LOGITS_BEND)
        *(float2 *)(t.s_scratch + STREAM_BEND) = make_float2(s.cap, s.rate);
}

/* 1 / rms of token `row`, from the squares that the warps have put down, added in their order,
 * which no number of tokens changes. */
MPK_FN float stream_scale(const mpk_task &t, const stream_end &e, int row)
{
    const float4 *square =
        (const float4 *)(t.s_scratch + STREAM_SQUARES) + row % TEAM_MOST_TOKENS * 2;
    const float4 a = square[0], b = square[1];
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
 * a whole word.  Halves of words are plain stores: a result that has some is torn, and never
 * carried. */
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

/* Add the sums of one group's warps, in their order: this warp's group of the tile.  total: as the
 * fragment of a product has it, see stream_pages. */
template <int WIDE, int WARPS = 8>
MPK_FN void stream_total(const char *s_parts, int group, int lane, float *total)
{
    const float *from = (const float *)s_parts + (group * WARPS * 32 + lane) * (WIDE ? 4 : 2);
#pragma unroll
    for (int e = 0; e < 4; e++)
        total[e] = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
#pragma unroll
        for (int e = 0; e < (WIDE ? 4 : 2); e++)
            total[e] += from[w * 32 * (WIDE ? 4 : 2) + e];
}

/* Sums of one lane become values of y: tokens first_row + g and + 8, columns 2c and 2c + 1 of group
 * `group` of the operator.  Gated, the two columns are gate and up of one, so even lanes get the
 * neighbour's value too and store both.  In this order: factor, bias, gate or activation, residual;
 * rounded once.  total: as stream_total left it. */
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
        float scale = modes & END_NORM ? stream_scale(t, e, row) : e.eps, a = total[2 * m] * scale,
              b = total[2 * m + 1] * scale;
        if (modes & END_BIAS) {
            /* Of a gated product the biases of up stand after those of gate. */
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
        if (STREAM_HAS_AFTER && modes & END_AFTER) {
            a = stream_activate((int)(modes / END_WHICH), a);
            b = stream_activate((int)(modes / END_WHICH), b);
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
 * takes it later.  A column is put down as a float: exact below 2^24. */
template <int WIDE>
MPK_FN void stream_finish_logits(const mpk_task &t, int group, int first_row, int thread,
                                 const float *total, float *s_peaks)
{
    const stream_end e = *(const stream_end *)(t.s_scratch + STREAM_END);
    const int g = thread % 32 / 4, c = thread % 4, column = group * 8 + 2 * c;
    const bool has_a = column < e.columns, has_b = column + 1 < e.columns; /* of the vocabulary */
    const float2 bend =
        LOGITS_BEND ? *(const float2 *)(t.s_scratch + STREAM_BEND) : make_float2(0, 1);
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const int row = first_row + g + 8 * m;
        const float scale = e.modes & END_NORM ? stream_scale(t, e, row) : e.eps,
                    a = logits_bent(total[2 * m] * scale, bend.x, bend.y),
                    b = logits_bent(total[2 * m + 1] * scale, bend.x, bend.y);
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

/* The peaks of a tile's groups; two tiles have some at the same time: warps may end groups of one
 * tile while a thread still goes through those of the tile before. */
MPK_FN float *stream_peaks_of(const mpk_task &t, int tile)
{
    return (float *)(t.s_scratch + STREAM_PEAKS) + tile % 2 * STREAM_TILE * 32;
}

/* The largest of 64 columns for each token, from the box's row first_row on: the n_groups from
 * first_group on, whose peaks lie `stride` floats apart.  In rising order of columns and only if
 * larger, so the lowest of equal columns wins.  A barrier of all has come after the last of these
 * groups. */
MPK_FN void stream_peaks(const mpk_task &t, const stream_shape &s, const float *s_peaks, int stride,
                         int first_group, int n_groups, int first_row = 0)
{
    int row = mpk_thread(); /* a thread a token; `stride` has room for stride / 2 of them */
    if (row >= stream_rows(t) - first_row || row >= stride / 2) /* no token */
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
    float *to =
        mpk_at<float>(t, s.peaks) +
        ((rt_u64)(t.e->lo[0] + first_row + row) * ((s.rows + 63) / 64) + first_group / 8) * 2;
    to[0] = best;
    to[1] = at;
}

/* ---- the body ---- */

/* The groups of a tile over the pages of one pass; the warp's sums go to s_parts.  of_pass: pages
 * of it; of_last: blocks a warp in the last of them, 4 but in a group's last page. */
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

/* x of a pass, as products with weights in blocks take it, from what was loaded.  In this order:
 * the sums of 32 columns are of x as it is multiplied, so after the norm, and by columns as they
 * lie, so before lanes exchange them. */
template <int AT_ONCE, int WIDE, int FORM>
MPK_FN void stream_prepare_blocks(const mpk_task &t, const stream_shape &s, int pass, int of_pass,
                                  int thread, stream_x<AT_ONCE, WIDE> &x,
                                  blocks_sums<AT_ONCE, WIDE> &sums)
{
    if (s.norm)
        stream_apply_norm<AT_ONCE, WIDE>(t, s, pass, of_pass, thread, x);
    blocks_add_up<AT_ONCE, WIDE>(x, thread, sums);
    if (FORM == RT_BLOCKS_8K)
        blocks_exchange<AT_ONCE, WIDE>(of_pass, thread, x);
}

/* The next page of each of `here` groups, read and released, then multiplied.  A piece is a warp's
 * 128 columns, which it has in registers before it gives the page back: the products then need no
 * page.  Where one group is left, it is multiplied twice: the second sums are not used.  has_piece
 * false: the page has none for this warp (expert_blocks.cuh). */
template <int WIDE, int FORM>
MPK_FN void stream_page_blocks(mpk_ring *ring, const mpk_words (*x)[1 + WIDE],
                               const blocks_sum *sums, const blocks_numbers &n, int here,
                               int thread, float (*total)[4], bool has_piece = true)
{
    constexpr int PAGES = 2 / RT_GROUPS_OF_PAGE(FORM); /* of two groups */
    const int lane = thread % 32, piece = thread / 32 * RT_PIECE_BYTES(FORM);
    rt_u32 page[2];
    blocks_piece<FORM> p[2];
    const char *at[2];
    at[0] = at[1] = ring_take(ring, &page[0]) + piece;
    if (here == 2 && PAGES == 2)
        at[1] = ring_take(ring, &page[1]) + piece;
    else if (here == 2)
        at[1] += RT_SLAB_BYTES(FORM);
#pragma unroll
    for (int k = 0; k < 2; k++)
        blocks_load<FORM>(at[k], lane, &p[k]);
    __syncwarp(); /* all lanes have read */
    if (lane == 0) {
        ptx_barrier_arrive(&mpk_w.empty[page[0]]);
        if (here == 2 && PAGES == 2)
            ptx_barrier_arrive(&mpk_w.empty[page[1]]);
    }
    if (!has_piece) /* what was read is nothing */
        return;
    if constexpr (FORM == RT_BLOCKS_MX4)
        blocks_multiply_floats<WIDE>(p, x, total);
    else
        blocks_multiply<FORM, WIDE>(p, x, sums, n, lane, total);
}

/* As stream_tile, of weights in blocks, two groups at a time. */
template <int AT_ONCE, int WIDE, int FORM>
MPK_FN void stream_tile_blocks(const stream_x<AT_ONCE, WIDE> &x,
                               const blocks_sums<AT_ONCE, WIDE> &sums, mpk_ring *ring,
                               char *s_parts, const blocks_numbers &n, int groups, int pass,
                               int of_pass, int thread)
{
#pragma unroll 1
    for (int i = 0; i < groups; i += 2) {
        float total[1 + WIDE][4] = {}; /* of the pages so far */
        const int here = groups - i < 2 ? 1 : 2;
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (pass && k < here)
                blocks_take<WIDE>(s_parts, i + k, thread, total, k);
#pragma unroll
        for (int p = 0; p < AT_ONCE; p++) {
            if (p >= of_pass)
                break;
            stream_page_blocks<WIDE, FORM>(ring, x.at[p], sums.at[p], n, here, thread, total);
        }
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (k < here)
                blocks_put<WIDE>(s_parts, i + k, thread, total, k);
    }
}

/* None of 16 tokens is alive: take and release the pages that are loaded for them. */
template <int FORM> MPK_FN void stream_drop(mpk_ring *ring, int groups, int pages)
{
    for (int i = (groups + RT_GROUPS_OF_PAGE(FORM) - 1) / RT_GROUPS_OF_PAGE(FORM) * pages; i > 0;
         i--) {
        rt_u32 page;
        ring_take(ring, &page);
        ring_release(page);
    }
}

/* All body threads; at most 16 tokens, those from first_row of the box on.  Per tile: x, unless it
 * is in registers already; products, page by page; a barrier; each warp ends one group.  Sums of a
 * tile are overwritten after the next barrier only.  x is loaded once a task if one pass has all
 * pages, else again in each tile; squares are summed in the first tile alone.  rows: tokens of the
 * box that are alive. */
template <int AT_ONCE, int WIDE, int FORM>
MPK_FN void stream_tokens(const mpk_task &t, const stream_shape &s, int first_row, int rows,
                          mpk_ring &ring)
{
    const int thread = mpk_thread(), warp = thread / 32, lane = thread % 32, g = lane / 4,
              c = lane % 4;
    const int first = (int)stream_first(t.e, s), n = (int)stream_groups(t.e, s), pages = s.pages;
    char *s_parts = t.s_scratch + STREAM_PARTS;
    bool is_logits = false; /* known after the products of the first tile */
    stream_from<WIDE> from; /* where this lane's x lies */
    stream_x<AT_ONCE, WIDE> x;
    stream_clear_x<AT_ONCE, WIDE>(x);
    float square[1 + WIDE] = {}; /* of tokens g and g + 8 */
    blocks_sums<AT_ONCE, WIDE> sums = {};
    blocks_numbers numbers = {};
    if (FORM)
        numbers = blocks_constants(s.zero);
    stream_find_x<WIDE>(t, s, first_row, rows, thread, &from);
#pragma unroll 1
    for (int q = 0, tile = 0; q < n; q += STREAM_TILE, tile++) {
        const int here = n - q < STREAM_TILE ? n - q : STREAM_TILE; /* groups of the tile */
        rt_u32 residual[2] = {0, 0}; /* requested before the products, used after them */
        if (q || first_row)
            mpk_sync(); /* the sums of the last tile have been read */
#pragma unroll 1
        for (int pass = 0; pass < pages; pass += AT_ONCE) {
            const int of_pass = pages - pass < AT_ONCE ? pages - pass : AT_ONCE; /* pages */
            const bool asks = pages > AT_ONCE || q == 0; /* else x is in registers */
            if (asks && !stream_has_terms<WIDE, FORM>(s))
                stream_ask_x<AT_ONCE, WIDE>(from, pass, of_pass, pages, stream_is_part(s), x);
            if (pass == 0 && s.residual >= 0 && warp < here)
#pragma unroll
                for (int m = 0; m <= WIDE; m++)
                    residual[m] = first_row + g + 8 * m < rows
                                      ? stream_residual(t, s, first_row + g + 8 * m,
                                                        (first + q + warp) * 8 + 2 * c)
                                      : 0;
            /* While x is in flight, by one lane of the last warp; read after the products'
             * barrier. */
            if (pass == 0 && q == 0 && first_row == 0 && mpk_thread() == MPK_THREADS - 32)
                stream_put_end(t, s);
            if (asks) {
                if (stream_has_terms<WIDE, FORM>(s))
                    stream_add_terms<AT_ONCE, WIDE>(t, s, rows, thread, s_parts, x);
                else if (mpk_carries(t, s.x))
                    stream_await_x<AT_ONCE, WIDE>(from, pass, of_pass, pages, rows > 2, x);
                if (!FORM)
                    stream_order_x<AT_ONCE, WIDE>(of_pass, x);
                if (s.norm && q == 0)
                    /* x does not change from tile to tile, so the first has all squares. */
                    stream_add_squares<AT_ONCE, WIDE, !FORM>(x, of_pass, thread, square);
                if (FORM)
                    stream_prepare_blocks<AT_ONCE, WIDE, FORM>(t, s, pass, of_pass, thread, x,
                                                               sums);
            }
            if (FORM)
                stream_tile_blocks<AT_ONCE, WIDE, FORM>(x, sums, &ring, s_parts, numbers, here,
                                                        pass, of_pass, thread);
            else
                stream_tile<AT_ONCE, WIDE>(x, &ring, s_parts, here, pass, of_pass,
                                           pass + of_pass == pages ? s.last : 4, thread);
        }
        /* All passes of the first tile have added theirs. */
        if (s.norm && q == 0)
            stream_put_squares<WIDE>(t, first_row, thread, square);
        /* From here on all warps' sums of the tile are there, and after the first the squares and
         * stream_end, too. */
        mpk_sync();
        /* The shape itself is out of reach by now: it would come back from the stack. */
        is_logits = ((const stream_end *)(t.s_scratch + STREAM_END))->modes & END_LOGITS;
        if (warp < here) {
            /* Warp i ends group i of the tile.  The warps that have none go on to the next tile's
             * x. */
            float total[4]; /* of the warp's group, all columns */
            if (FORM)
                blocks_total<WIDE>(s_parts, warp, lane, total);
            else
                stream_total<WIDE>(s_parts, warp, lane, total);
            if (is_logits)
                stream_finish_logits<WIDE>(t, first + q + warp, first_row, thread, total,
                                           stream_peaks_of(t, tile) + warp * 32 - first_row * 2);
            else
                stream_finish<WIDE>(t, s, first + q + warp, first_row, thread, total, residual);
        }
        /* The peaks of the tile before: the barrier above says that all of its groups are there. */
        if (is_logits && q)
            stream_peaks(t, s, stream_peaks_of(t, tile - 1), 32, first + q - STREAM_TILE,
                         STREAM_TILE, first_row);
    }
    if (is_logits) {
        mpk_sync();
        stream_peaks(t, s, stream_peaks_of(t, (n - 1) / STREAM_TILE), 32,
                     first + (n - 1) / STREAM_TILE * STREAM_TILE, (n - 1) % STREAM_TILE + 1,
                     first_row);
    }
}

/* The body; all threads.  FORM: that of the weights, RT_BLOCKS_*; RT_BLOCKS_NONE: 16 bits, and at
 * most 16 tokens.  AT_ONCE: pages of x in registers, STREAM_NARROW_PAGES or STREAM_WIDE_PAGES;
 * WIDE: 1 for more than 8 tokens. */
template <int AT_ONCE, int WIDE, int FORM = RT_BLOCKS_NONE>
MPK_FN void linear_stream(const mpk_task &t, const stream_shape &s)
{
    mpk_ring ring = *t.ring; /* in registers for the life of the task */
    /* Also if the task is quiet: polls of x while other warps of this worker still write would
     * only delay their stores. */
    mpk_wait(t);
    const int rows = stream_rows(t);
    if (FORM) {
        const int tokens = (int)(t.e->hi[0] - t.e->lo[0]);
#pragma unroll 1
        for (int row = 0; row < tokens; row += STREAM_MOST_TOKENS)
            /* The first 16 go through the products also if none is alive: that takes their pages,
             * too. */
            if (row == 0 || row < rows)
                stream_tokens<AT_ONCE, WIDE, FORM>(t, s, row, rows, ring);
            else
                stream_drop<FORM>(&ring, (int)stream_groups(t.e, s), s.pages);
    } else {
        stream_tokens<AT_ONCE, WIDE, RT_BLOCKS_NONE>(t, s, 0, rows, ring);
    }
    *t.ring = ring; /* where the next task goes on */
    mpk_trigger(t);
}

#endif
