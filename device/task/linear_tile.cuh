/* linear_tile.cuh - products of many tokens with streamed weights on warpgroups: linear, and logits (paper §6.1).
 *
 * y[t, n] = epilogue(sum over k of x[t, k] w[n, k]), x bf16, w packed (gen/device_body.h), sums f32.
 *
 * Idea: tokens are the rows of wgmma and rows of w its columns, both read from shared memory.  w comes through the page
 * ring as in linear_stream.cuh, so loading runs ahead of the task's event; x is data of this step, so the warpgroups
 * bring it themselves, in stages of 64 columns of 64 tokens in the same swizzle, while products of the steps before are
 * under way.
 * A task of more than 64 tokens takes 128 at a time, 64 for each warpgroup, and up to 192 rows of w; the warpgroups
 * never wait for each other.  In one of at most 64 tokens each warpgroup multiplies half of the columns, every other
 * stage, with all rows, and x of three steps is on its way; the sums of both are added at the end.  Squares for an
 * rms_norm (whose weight is folded into w) are summed from the stages of x; the scale is applied to the sums.
 *
 * Nothing of a shape is a template parameter: all operators of all graphs share this code.
 *
 * A pass is up to 24 groups of 8 rows of w; for each pass all tokens of the task, for these all
 * columns, 128 in a step.  A page holds the step's 4 blocks of each of 8 groups, one group after the other: a copy of
 * 2 KB for each, since copies of 1 KB reach half the bandwidth.  The pages of a step lie together, so that one product
 * reads them all: where too few are left before the end of the ring, these are left out.
 * A task of at most 64 tokens and 64 rows is thin: its pages hold as many columns as fit, 128 to 1,024, and a step is
 * 256 of them, since steps cost instructions.
 * Columns are added in the same order whatever the number of tokens alive.
 * Cost of 64 columns, 128 tokens, 192 rows: 8 wgmma of 64 x 192 x 16; 16 KB of x and 24 KB of w from L2.
 */
#ifndef TASK_LINEAR_TILE_CUH
#define TASK_LINEAR_TILE_CUH

#include "ptx/matrix.cuh"
#include "task/activate.cuh"
#include "task/peaks.cuh"
#include "tile/inverse.cuh"
#include "tile/ring.cuh"

enum {
    TILE_TOKENS = 64,    /* of a warpgroup */
    TILE_STAGES = 4,     /* of a warpgroup: being read and on their way */
    TILE_HALF = 64 * 64, /* bytes: 64 tokens x 32 columns */
    TILE_STAGE = 2 * TILE_HALF,
    TILE_X = TILE_STAGES * TILE_STAGE,
    TILE_SCALES = 2 * TILE_X, /* float[2][64]: sum of squares of each token */
    TILE_SCRATCH = TILE_SCALES + 2 * 64 * 4,
    TILE_ROW = 72,   /* floats from a row of sums in scratch to the next: apart in banks */
    TILE_MOST = 24,  /* groups of a pass */
    TILE_BLOCKS = 4, /* of a step, of each group */
    TILE_PIECE = TILE_BLOCKS * 512,
    TILE_GROUPS = 8, /* of a page */
};

/* Where the operands stand in rt_entry.at, and what surrounds the product. */
struct tile_shape {
    int columns, blocks; /* of x; blocks of 32 columns in a packed group */
    int rows;            /* of w, or with an activation half of them: columns of y */
    int norm;            /* 1: rms_norm of x */
    float eps;
    int activation;                          /* ACTIVATE_*: not NONE: groups hold pairs of rows */
    int x, y, residual;                      /* operands; -1: absent */
    int bias[3], bias_rows[3], bias_type[3]; /* operand, rows of that weight, 0: bf16, 1: f32 */
    int gathered, tokens;                    /* operand rows i32[R]: row r is token rows[r] below T, if alive; -1: r */
    int peaks;                               /* operand of the peaks: y is f32; -1: y is bf16 */
};

/* ---- how a task is cut: the same for loader and body ---- */

struct tile_plan {
    int first, groups; /* of 8 packed rows */
    int per_pass;      /* a multiple of 8 */
    int wide, turns;   /* 1: 128 tokens at a time; how often */
    int piece;         /* thin: blocks of a page for each group; 0: not thin */
};

/* At most 64 tokens and 8 groups are a thin task: a page holds as many columns as there is room for, 128 to 1,024. */
MPK_FN int tile_piece_of(int groups)
{
    return groups > 4 ? 4 : groups > 2 ? 8 : groups > 1 ? 16 : 32;
}

MPK_FN tile_plan tile_plan_of(const rt_entry *e, const tile_shape &s)
{
    const int shift = s.activation != ACTIVATE_NONE ? 2 : 3, tokens = (int)(e->hi[0] - e->lo[0]);
    tile_plan p;
    p.first = (int)(e->lo[1] >> shift);
    p.groups = (int)((e->hi[1] + (1u << shift) - 1) >> shift) - p.first;
    p.wide = tokens > TILE_TOKENS;
    p.turns = p.wide ? (tokens + 2 * TILE_TOKENS - 1) / (2 * TILE_TOKENS) : 1;
    const int passes = (p.groups + TILE_MOST - 1) / TILE_MOST;
    p.per_pass = passes ? ((p.groups + passes - 1) / passes + 7) / 8 * 8 : 8;
    p.piece = !p.wide && p.groups > 0 && p.groups <= TILE_GROUPS ? tile_piece_of(p.groups) : 0;
    return p;
}

/* One pass. */
struct tile_pass {
    int groups; /* of it */
    int pages;  /* of a step */
    int steps;  /* of 128 columns */
};

MPK_FN tile_pass tile_pass_at(const tile_plan &p, const tile_shape &s, int at)
{
    tile_pass q;
    q.groups = p.groups - at < p.per_pass ? p.groups - at : p.per_pass;
    q.pages = (q.groups + TILE_GROUPS - 1) / TILE_GROUPS;
    q.steps = ((s.columns + 31) / 32 + TILE_BLOCKS - 1) / TILE_BLOCKS;
    return q;
}

/* Pages to leave out, so that the next n lie together. */
MPK_FN int tile_gap(const mpk_ring &r, int n)
{
    return r.at + n > r.n ? (int)(r.n - r.at) : 0;
}

/* ---- the loader's part ---- */

/* The pages of one step, a piece of each group, a lane each; from: its first block of the pass's first group. */
MPK_FN void tile_load_step(mpk_load &l, const tile_pass &q, const char *from, rt_u32 group_bytes, bool once)
{
    const int lane = mpk_thread() % 32;
    int groups = 0; /* for which there is a page */
    for (int gap = tile_gap(l.ring, q.pages); gap > 0; gap--)
        load_open(&l, 0);
    char *first = mpk_s + (l.ring.first + l.ring.at) * MPK_PAGE_BYTES;
    while (groups < q.groups) {
        const int n = q.groups - groups < TILE_GROUPS ? q.groups - groups : TILE_GROUPS;
        if (!load_open(&l, (rt_u32)n * TILE_PIECE))
            break;
        groups += n;
    }
    if (lane < groups) {
        char *to = first + lane * TILE_PIECE;
        rt_u64 *full = &mpk_w.full[(to - mpk_s) / MPK_PAGE_BYTES];
        if (once)
            ptx_copy_bulk_once(ptx_shared(to), from + (rt_u64)lane * group_bytes, TILE_PIECE, full, l.policy);
        else /* other workers' tokens want the same */
            ptx_copy_bulk(to, from + (rt_u64)lane * group_bytes, TILE_PIECE, full);
    }
    __syncwarp();
}

/* No more than n pages under way. */
MPK_FN void tile_settle(mpk_load &l, rt_u32 n)
{
    for (; l.flying > n; l.flying--) {
        mpk_barrier_wait(&mpk_w.full[l.tail.first + l.tail.at], l.tail.parity);
        ring_next(&l.tail);
    }
    l.in_flight = n;
}

/* All columns of a thin task, of each group a piece for a page; by 256, as packed groups are padded. */
MPK_FN void tile_load_thin(mpk_load &l, const tile_plan &p, const tile_shape &s, const char *from, rt_u32 group_bytes)
{
    const int lane = mpk_thread() % 32, blocks = (s.columns + 255) / 256 * 8;
    for (int first = 0; first < blocks; first += p.piece) {
        const int n = blocks - first < p.piece ? blocks - first : p.piece;
        const rt_u32 page = l.ring.first + l.ring.at;
        if (!load_open(&l, (rt_u32)(p.groups * n) * 512))
            break;
        if (lane < p.groups)
            load_copy(&l, page, (rt_u32)(lane * p.piece) * 512, from + (rt_u64)lane * group_bytes + first * 512,
                      (rt_u32)n * 512);
        __syncwarp();
    }
}

/* Small copies want more pages under way, and there are no polls that they could delay. */
MPK_FN void linear_tile_load(mpk_load &l, const tile_shape &s)
{
    const tile_plan p = tile_plan_of(l.e, s);
    const rt_u32 group_bytes = (rt_u32)s.blocks * 512, in_flight = l.in_flight;
    l.in_flight = l.ring.n;
    if (p.piece)
        tile_load_thin(l, p, s, (const char *)l.e->at[RT_PACKED] + (rt_u64)p.first * group_bytes, group_bytes);
    for (int at = 0; at < p.groups && !p.piece; at += p.per_pass) {
        const tile_pass q = tile_pass_at(p, s, at);
        const char *base = (const char *)l.e->at[RT_PACKED] + (rt_u64)(p.first + at) * group_bytes;
        for (int turn = 0; turn < p.turns; turn++)
            for (int step = 0; step < q.steps && !l.cancelled; step++)
                tile_load_step(l, q, base + step * TILE_PIECE, group_bytes, !p.wide);
    }
    tile_settle(l, in_flight);
}

/* ---- x into shared memory ---- */

/* What a thread brings of a stage: 8 columns, and 8 columns 32 on, of two tokens, 32 apart. */
struct tile_copy {
    const char *x;
    rt_u32 from[2]; /* bytes from x; TILE_NONE: there is no such token */
    char *to;       /* of the first token, in stage 0; the second is 2048 bytes on */
    int column;     /* of stage 0 */
};
#define TILE_NONE 0xffffffffu

MPK_FN void tile_copy_begin(const mpk_task &t, const tile_shape &s, int first, char *s_x, tile_copy *c)
{
    const int i = mpk_thread() % 128, row = i / 4, piece = i % 4;
    c->x = mpk_at<const char>(t, s.x);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int token = first + row + 32 * m;
        bool there = token < (int)t.hi0;
        if (there && s.gathered >= 0) {
            rt_u32 chosen = mpk_at<const rt_u32>(t, s.gathered)[token];
            there = chosen < (rt_u32)s.tokens && chosen < t.live[RT_TOKENS];
            token = (int)chosen;
        }
        c->from[m] = there ? (rt_u32)token * (rt_u32)s.columns * 2 + (rt_u32)piece * 16 : TILE_NONE;
    }
    c->column = piece * 8;
    c->to = s_x + row / 8 * 512 + row % 8 * 64 + (piece ^ row % 8 / 2) * 16;
}

/* Ask for stage `stage` of x. */
MPK_FN void tile_copy_stage(const tile_copy &c, int columns, int stage, int buffer)
{
    const int column = stage * 64 + c.column;
    char *to = c.to + buffer * TILE_STAGE;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const bool there = column + half * 32 < columns && c.from[m] != TILE_NONE;
            ptx_copy_async(to + half * TILE_HALF + m * 2048,
                           c.x + (there ? c.from[m] + (rt_u32)(stage * 128 + half * 64) : 0), there);
        }
    ptx_copy_async_commit();
}

MPK_FN void tile_add_squares(const tile_copy &c, int buffer, float *square)
{
#pragma unroll 1
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const mpk_words v = ptx_load_shared_words(c.to + buffer * TILE_STAGE + half * TILE_HALF + m * 2048);
            const rt_u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float a = ptx_low_bf16(words[e]), b = ptx_high_bf16(words[e]);
                square[m] = fmaf(b, b, fmaf(a, a, square[m]));
            }
        }
}

/* ---- products ---- */

MPK_FN void tile_meet(void)
{
    ptx_meet(2 + mpk_thread() / 128, 128);
}

#if MPK_WGMMA
/* Where columns 16 k ... of a stage begin, in units of a matrix's address, which are 16 bytes. */
MPK_FN rt_u32 tile_in_x(int k)
{
    return (rt_u32)(k / 2 * (TILE_HALF / 16) + k % 2 * 2);
}
MPK_FN rt_u32 tile_in_w(int k)
{
    return (rt_u32)(k / 2 * (512 / 16) + k % 2 * 2);
}
/* A matrix n units on: the address stands in the low bits and does not overflow. */
MPK_FN rt_u64 tile_further(rt_u64 matrix, rt_u32 n)
{
    return (matrix & 0xffffffff00000000u) | ((rt_u32)matrix + n);
}

/* One stage: s_x, s_w its first bytes, `stride` those from a group of w to the next; between tile_begin_products and
 * tile_end_products. */
template <int N> MPK_FN void tile_multiply(const char *s_x, const char *s_w, int stride, float *sum)
{
    const rt_u64 x = ptx_matrix(s_x, 512), w = ptx_matrix(s_w, stride);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const rt_u64 a = tile_further(x, tile_in_x(k)), b = tile_further(w, tile_in_w(k));
        if (N == 192)
            ptx_group_multiply_192(sum, a, b);
        else if (N == 128)
            ptx_group_multiply_128(sum, a, b);
        else
            ptx_group_multiply_64(sum, a, b);
    }
}

MPK_FN void tile_begin_products(void)
{
    ptx_group_begin();
}
/* They go on; their sums and what they read are theirs until tile_wait_products. */
MPK_FN void tile_end_products(void)
{
    ptx_group_commit();
}
MPK_FN void tile_wait_products(void)
{
    ptx_group_wait<0>();
}
#else
/* Without warpgroups' products: the same sums in the same registers by those of warps, 16 tokens each.  a: of the
 * warp's tokens, columns 16 k ... of a block; s_w: that block of the first group. */
template <int N> MPK_FN void tile_multiply_by_warps(const rt_u32 *a, const char *s_w, int stride, int k, float *sum)
{
    const int lane = mpk_thread() % 32, row = lane % 8, matrix = lane / 8;
    s_w += matrix / 2 * stride + row * 64 + ((2 * k + matrix % 2) ^ row / 2) * 16;
#pragma unroll
    for (int n = 0; n < N / 8; n += 2) {
        rt_u32 b[4];
        ptx_load_matrices(b, s_w + n * stride);
        ptx_multiply_bf16(sum + 4 * n, a[0], a[1], a[2], a[3], b[0], b[1]);
        ptx_multiply_bf16(sum + 4 * n + 4, a[0], a[1], a[2], a[3], b[2], b[3]);
    }
}

template <int N> MPK_FN void tile_multiply(const char *s_x, const char *s_w, int stride, float *sum)
{
    const int thread = mpk_thread(), warp = thread / 32 % 4, lane = thread % 32, row = lane % 8, matrix = lane / 8;
    s_x += (2 * warp + matrix % 2) * 512 + row * 64;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int block = i / 2, k = i % 2;
        rt_u32 a[4];
        ptx_load_matrices(a, s_x + block * TILE_HALF + ((2 * k + matrix / 2) ^ row / 2) * 16);
        tile_multiply_by_warps<N>(a, s_w + block * 512, stride, k, sum);
    }
}

MPK_FN void tile_begin_products(void) {}
MPK_FN void tile_end_products(void) {}
MPK_FN void tile_wait_products(void) {}
#endif

/* Take the pages of the next step, which lie together; the number of the first. */
MPK_FN rt_u32 tile_take(const tile_pass &q, mpk_ring *ring)
{
    rt_u32 page;
    for (int gap = tile_gap(*ring, q.pages); gap > 0; gap--) {
        ring_take(ring, &page);
        ring_release(page);
    }
    const rt_u32 first = ring->first + ring->at;
    for (int i = 0; i < q.pages; i++)
        ring_take(ring, &page);
    __syncwarp(); /* barriers and products take whole warps */
    return first;
}

MPK_FN void tile_release(const tile_pass &q, rt_u32 first)
{
    __syncwarp();
    if (mpk_thread() % 32 == 0)
        for (int i = 0; i < q.pages; i++)
            ptx_barrier_arrive(&mpk_w.empty[first + i]);
}

/* Columns of a pass for this warpgroup's tokens, N rows of w: both stages of each step, or that of number `turn`.
 * sum[N / 2] per lane, as ptx_group_multiply leaves it. */

/* Both stages.  While the products of a step are under way, x of the next step is asked for and squares are added; the
 * other warpgroup keeps the tensor cores busy while this one waits. */
template <int N>
MPK_FN void tile_columns_wide(const tile_shape &s, const tile_pass &q, const tile_copy &c, const char *s_x,
                              mpk_ring *ring, float *sum, float *square)
{
    constexpr int STAGES = 2;
    const int columns = s.columns, norm = s.norm;
#pragma unroll
    for (int i = 0; i < STAGES; i++)
        tile_copy_stage(c, columns, i, i);
    for (int step = 0; step < q.steps; step++) {
        const int buffer = step % 2 * 2;
        const rt_u32 page = tile_take(q, ring);
        const char *s_w = mpk_s + page * MPK_PAGE_BYTES;
        ptx_copy_async_wait<0>();
        ptx_fence_shared(); /* products read through the other proxy */
        tile_meet();        /* the step is there, and nobody reads the one before any more */
        tile_begin_products();
#pragma unroll
        for (int i = 0; i < STAGES; i++)
            tile_multiply<N>(s_x + (buffer + i) * TILE_STAGE, s_w + i * 1024, TILE_PIECE, sum);
        tile_end_products();
        if (step + 1 < q.steps)
#pragma unroll
            for (int i = 0; i < STAGES; i++)
                tile_copy_stage(c, columns, 2 * step + 2 + i, (buffer ^ 2) + i);
        for (int i = 0; i < STAGES && norm; i++)
            tile_add_squares(c, buffer + i, square);
        tile_wait_products();
        tile_release(q, page);
    }
}

/* One stage: with few tokens a step is short, so x of AHEAD steps is on its way. */
template <int N>
MPK_FN void tile_columns_narrow(const tile_shape &s, const tile_pass &q, const tile_copy &c, const char *s_x, int turn,
                                mpk_ring *ring, float *sum, float *square)
{
    constexpr int AHEAD = TILE_STAGES - 1;
    const int columns = s.columns, norm = s.norm;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        tile_copy_stage(c, columns, 2 * i + turn, i);
    for (int step = 0; step < q.steps; step++) {
        const int buffer = step % TILE_STAGES;
        const rt_u32 page = tile_take(q, ring);
        ptx_copy_async_wait<AHEAD - 1>();
        ptx_fence_shared(); /* products read through the other proxy */
        tile_meet();        /* the stage is there, and nobody reads the one before any more */
        tile_begin_products();
        tile_multiply<N>(s_x + buffer * TILE_STAGE, mpk_s + page * MPK_PAGE_BYTES + turn * 1024, TILE_PIECE, sum);
        tile_end_products();
        tile_copy_stage(c, columns, 2 * (step + AHEAD) + turn, (step + AHEAD) % TILE_STAGES);
        if (norm)
            tile_add_squares(c, buffer, square);
        tile_wait_products();
        tile_release(q, page);
    }
    ptx_copy_async_wait<0>(); /* stages behind the last one give way to sums */
}

/* Pages of a thin task's next 256 columns: those of this warpgroup's half begin at *s_w.  The page of the columns
 * before goes on if `page` is not TILE_NO_PAGE. */
#define TILE_NO_PAGE 0xffffffffu
MPK_FN const char *tile_take_thin(int piece, int step, int half, mpk_ring *ring, rt_u32 *page)
{
    if (piece == 4) {
        rt_u32 first, second;
        ring_take(ring, &first);
        ring_take(ring, &second);
        *page = half ? second : first;
        ring_release(half ? first : second);
        return mpk_s + *page * MPK_PAGE_BYTES;
    }
    if (*page == TILE_NO_PAGE)
        ring_take(ring, page);
    __syncwarp();
    return mpk_s + *page * MPK_PAGE_BYTES + ((step * 8 & (piece - 1)) + half * 4) * 512;
}

/* All columns of a thin task: 128 of each 256 for this warpgroup. */
MPK_FN void tile_columns_thin(const tile_shape &s, int piece, int groups, const tile_copy &c, const char *s_x, int half,
                              mpk_ring *ring, float *sum, float *square)
{
    const int columns = s.columns, norm = s.norm, steps = (columns + 255) / 256;
    const int stride = groups > 1 ? piece * 512 : 0; /* the products' other rows are nobody's, but they are there */
    rt_u32 page = TILE_NO_PAGE;
#pragma unroll
    for (int i = 0; i < 2; i++)
        tile_copy_stage(c, columns, 2 * half + i, i);
    for (int step = 0; step < steps; step++) {
        const int buffer = step % 2 * 2;
        const char *s_w = tile_take_thin(piece, step, half, ring, &page);
        ptx_copy_async_wait<0>();
        ptx_fence_shared(); /* products read through the other proxy */
        tile_meet();        /* the stages are there, and nobody reads those before any more */
        tile_begin_products();
#pragma unroll
        for (int i = 0; i < 2; i++)
            tile_multiply<64>(s_x + (buffer + i) * TILE_STAGE, s_w + i * 1024, stride, sum);
        tile_end_products();
        if (step + 1 < steps)
#pragma unroll
            for (int i = 0; i < 2; i++)
                tile_copy_stage(c, columns, 4 * (step + 1) + 2 * half + i, (buffer ^ 2) + i);
        for (int i = 0; i < 2 && norm; i++)
            tile_add_squares(c, buffer + i, square);
        tile_wait_products();
        if (piece == 4 || ((step + 1) * 8 & (piece - 1)) == 0 || step + 1 == steps) {
            ring_release(page);
            page = TILE_NO_PAGE;
        }
    }
}

/* The pages of a thin task of which no token is alive. */
MPK_FN void tile_drop_thin(const tile_shape &s, int piece, mpk_ring *ring)
{
    const int blocks = (s.columns + 255) / 256 * 8;
    for (int i = 0; i < blocks; i += piece) {
        rt_u32 page;
        ring_take(ring, &page);
        ring_release(page);
    }
}

/* Nothing to do for a pass and these tokens: let its pages go. */
MPK_FN void tile_drop(const tile_pass &q, mpk_ring *ring)
{
    for (int i = 0; i < q.steps; i++)
        tile_release(q, tile_take(q, ring));
}

/* ---- the end of a tile ---- */

MPK_FN float tile_bias(const mpk_task &t, const tile_shape &s, int i, int row)
{
    if (s.bias[i] < 0)
        return 0;
    if (s.bias_type[i])
        return mpk_at<const float>(t, s.bias[i])[row];
    return __uint_as_float((rt_u32)mpk_at<const rt_u16>(t, s.bias[i])[row] << 16);
}

/* Of a column of y, where the weights stand one after the other. */
MPK_FN float tile_bias_of(const mpk_task &t, const tile_shape &s, int column)
{
    if (column >= s.rows)
        return 0;
    if (column < s.bias_rows[0])
        return tile_bias(t, s, 0, column);
    column -= s.bias_rows[0];
    return column < s.bias_rows[1] ? tile_bias(t, s, 1, column) : tile_bias(t, s, 2, column - s.bias_rows[1]);
}

/* As activate(), without its division, which is a call: beside one, ptxas waits after every product (C7509). */
MPK_FN float tile_activate(int activation, float x)
{
    if (activation == ACTIVATE_GELU)
        return activate_gelu(x);
    const float u = activation == ACTIVATE_SILU ? x : 1.59576912160573072f * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1 + __expf(-u));
}

/* Where a tile goes; read before the first store, or it would be read again behind each. */
struct tile_end {
    rt_u16 *y;
    const rt_u16 *residual; /* NULL: none */
    int rows, lo, hi;       /* columns of y, and those of the task */
    int tokens;             /* end of the task's that are alive */
    int norm, columns;      /* of x */
    float eps;
};

MPK_FN tile_end tile_end_of(const mpk_task &t, const tile_shape &s)
{
    tile_end e;
    e.y = mpk_at<rt_u16>(t, s.y);
    e.residual = s.residual >= 0 ? mpk_at<const rt_u16>(t, s.residual) : 0;
    e.rows = s.rows;
    e.lo = (int)t.e->lo[1];
    e.hi = (int)t.e->hi[1];
    e.tokens = (int)t.hi0;
    e.norm = s.norm;
    e.columns = s.columns;
    e.eps = s.eps;
    return e;
}

/* Two neighbours of a row, of which the first stands at an even column: as one word where that is aligned. */
MPK_FN void tile_store(const tile_end &e, int row, int column, float a, float b)
{
    rt_u16 *y = e.y + (rt_u64)row * e.rows + column;
    const rt_u32 v = ptx_pack_bf16(a, b);
    if (column >= e.lo && column + 1 < e.hi && e.rows % 2 == 0) {
        ptx_store_word(y, v);
        return;
    }
    if (column >= e.lo && column < e.hi)
        y[0] = (rt_u16)v;
    if (column + 1 >= e.lo && column + 1 < e.hi)
        y[1] = (rt_u16)(v >> 16);
}

MPK_FN rt_u32 tile_residual(const tile_end &e, int row, int column)
{
    const rt_u16 *r = e.residual + (rt_u64)row * e.rows + column;
    rt_u32 v = 0;
    if (row >= e.tokens)
        return 0;
    if (column >= e.lo && column + 1 < e.hi && e.rows % 2 == 0)
        return ptx_load_word(r);
    if (column >= e.lo && column < e.hi)
        v = r[0];
    if (column + 1 >= e.lo && column + 1 < e.hi)
        v |= (rt_u32)r[1] << 16;
    return v;
}

/* 1 / root mean square; 1 without a norm. */
MPK_FN float tile_scale(const tile_end &e, float square)
{
    return e.norm ? rsqrtf(square * mpk_inverse((float)e.columns) + e.eps) : 1;
}

/* A warp's 16 tokens from `row` on and 64 packed rows from group `group` on; s_sum f32[16][TILE_ROW], s_square of the
 * tokens.  Lane l has columns 2 l and 2 l + 1. */
MPK_FN void tile_finish(const mpk_task &t, const tile_shape &s, int row, int group, const float *s_sum,
                        const float *s_square)
{
    const int lane = mpk_thread() % 32, column = group * 8 + 2 * lane;
    const tile_end e = tile_end_of(t, s);
    const float bias[2] = {tile_bias_of(t, s, column), tile_bias_of(t, s, column + 1)};
    for (int r0 = 0; r0 < 16; r0 += 8) {
        rt_u32 residual[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (e.residual)
#pragma unroll
            for (int i = 0; i < 8; i++)
                residual[i] = tile_residual(e, row + r0 + i, column);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float2 v = *(const float2 *)(s_sum + (r0 + i) * TILE_ROW + 2 * lane);
            const float scale = tile_scale(e, s_square[r0 + i]);
            if (row + r0 + i < e.tokens)
                tile_store(e, row + r0 + i, column, v.x * scale + bias[0] + ptx_low_bf16(residual[i]),
                           v.y * scale + bias[1] + ptx_high_bf16(residual[i]));
        }
    }
}

/* The same with an activation: columns 2 l and 2 l + 1 make one column of y. */
MPK_FN void tile_finish_pairs(const mpk_task &t, const tile_shape &s, int row, int group, const float *s_sum,
                              const float *s_square)
{
    const int lane = mpk_thread() % 32, column = group * 4 + lane, activation = s.activation;
    const tile_end e = tile_end_of(t, s);
    const float gate = column < e.rows ? tile_bias(t, s, 0, column) : 0;
    const float up = column < e.rows ? tile_bias(t, s, 1, column) : 0;
#pragma unroll 4
    for (int i = 0; i < 16; i++) {
        const float2 v = *(const float2 *)(s_sum + i * TILE_ROW + 2 * lane);
        const float scale = tile_scale(e, s_square[i]);
        const float a = tile_activate(activation, v.x * scale + gate) * (v.y * scale + up);
        const float b = __shfl_down_sync(0xffffffffu, a, 1);
        if (row + i < e.tokens && lane % 2 == 0)
            tile_store(e, row + i, column, a, b);
    }
}

/* The same for logits: f32, and the largest of the 64 columns. */
MPK_FN void tile_finish_logits(const mpk_task &t, const tile_shape &s, int row, int group, const float *s_sum,
                               const float *s_square)
{
    const int lane = mpk_thread() % 32, column = group * 8 + 2 * lane;
    const tile_end e = tile_end_of(t, s);
    const bool has_a = column < e.rows, has_b = column + 1 < e.rows;
    for (int i = 0; i < 16 && row + i < e.tokens; i++) {
        const float2 v = *(const float2 *)(s_sum + i * TILE_ROW + 2 * lane);
        const float scale = tile_scale(e, s_square[i]), a = v.x * scale, b = v.y * scale;
        float *y = (float *)e.y + (rt_u64)(row + i) * e.rows + column;
        if (has_a)
            y[0] = a;
        if (has_b)
            y[1] = b;
        const peak p = peak_of_lanes<32>(peak_of_pair(a, b, column, has_a, has_b));
        if (lane == 0) {
            float *to = mpk_at<float>(t, s.peaks) + ((rt_u64)(row + i) * ((e.rows + 63) / 64) + group / 8) * 2;
            to[0] = p.best;
            to[1] = (float)p.at;
        }
    }
}

/* Sums of this warp's 16 x 64 from registers to shared memory, where a row lies together. */
MPK_FN void tile_put(const float *sum, float *s_sum)
{
    const int thread = mpk_thread(), g = thread % 32 / 4, c = thread % 4;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        *(float2 *)(s_sum + g * TILE_ROW + 8 * n + 2 * c) = make_float2(sum[4 * n], sum[4 * n + 1]);
        *(float2 *)(s_sum + (g + 8) * TILE_ROW + 8 * n + 2 * c) = make_float2(sum[4 * n + 2], sum[4 * n + 3]);
    }
}

/* Those of 64 columns of N; which, is known at run time, so that what comes after them is there once. */
template <int N> MPK_FN void tile_put_unit(const float *sum, int unit, float *s_sum)
{
#pragma unroll
    for (int u = 0; u < N / 64; u++)
        if (u == unit)
            tile_put(sum + 32 * u, s_sum);
}

/* Sum of squares of each token of the warpgroup. */
MPK_FN void tile_put_squares(float *square, float *s_square)
{
    const int i = mpk_thread() % 128;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        square[m] += __shfl_xor_sync(0xffffffffu, square[m], 1);
        square[m] += __shfl_xor_sync(0xffffffffu, square[m], 2);
        if (i % 4 == 0)
            s_square[i / 4 + 32 * m] = square[m];
    }
}

/* ---- the body ---- */

/* Where warpgroup `half` leaves its sums of a unit. */
MPK_FN float *tile_sums_of(const mpk_task &t, int half, int unit)
{
    return (float *)(t.s_scratch + half * TILE_X) + unit / 2 * (32 * 128);
}

/* Both warpgroups have sums of the same tokens, each over its columns: units of 64 rows go in turn to the first and to
 * the second, which adds what the other one has.  The squares become those of all columns. */
template <int N> MPK_FN void tile_join(const mpk_task &t, float *sum)
{
    float *s_square = (float *)(t.s_scratch + TILE_SCALES);
    const int thread = mpk_thread(), i = thread % 128, half = thread / 128;
    mpk_sync(); /* stages of x give way to sums */
#pragma unroll
    for (int u = 0; u < N / 64; u++)
        if (u % 2 != half)
#pragma unroll
            for (int e = 0; e < 32; e++)
                tile_sums_of(t, half, u)[e * 128 + i] = sum[32 * u + e];
    mpk_sync();
#pragma unroll
    for (int u = 0; u < N / 64; u++)
        if (u % 2 == half)
#pragma unroll
            for (int e = 0; e < 32; e++)
                sum[32 * u + e] += tile_sums_of(t, half ^ 1, u)[e * 128 + i];
    if (thread < TILE_TOKENS)
        s_square[thread] += s_square[TILE_TOKENS + thread];
    mpk_sync();
}

MPK_FN void tile_finish_unit(const mpk_task &t, const tile_shape &s, int row, int group, const float *s_sum,
                             const float *s_square)
{
    if (s.peaks >= 0)
        tile_finish_logits(t, s, row, group, s_sum, s_square);
    else if (s.activation != ACTIVATE_NONE)
        tile_finish_pairs(t, s, row, group, s_sum, s_square);
    else
        tile_finish(t, s, row, group, s_sum, s_square);
}

/* One pass for this warpgroup's tokens from `row` on, N rows of w; WIDE 0: both warpgroups have the same tokens and
 * join.  Sums are this function's own for each shape: were they one array for all, ptxas would wait after every
 * product. */
template <int N, int WIDE>
MPK_FN void tile_run_as(const mpk_task &t, const tile_shape &s, const tile_pass &q, int first, int row, int piece,
                        mpk_ring *ring)
{
    const int thread = mpk_thread(), half = thread / 128, warp = thread / 32 % 4;
    char *s_x = t.s_scratch + half * TILE_X;
    float *s_square = (float *)(t.s_scratch + TILE_SCALES) + half * TILE_TOKENS,
          *s_sum = (float *)s_x + warp * 16 * TILE_ROW;
    float sum[N / 2], square[2] = {0, 0};
    tile_copy c;
    tile_copy_begin(t, s, row, s_x, &c);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sum[i] = 0;
    if (WIDE)
        tile_columns_wide<N>(s, q, c, s_x, ring, sum, square);
    else if (N == 64)
        tile_columns_thin(s, piece, q.groups, c, s_x, half, ring, sum, square);
    else
        tile_columns_narrow<N>(s, q, c, s_x, half, ring, sum, square);
    tile_put_squares(square, s_square);
    if (WIDE)
        tile_meet(); /* stages of x give way to sums */
    else
        tile_join<N>(t, sum);
#pragma unroll 1
    for (int u = WIDE ? 0 : half; u < N / 64 && TILE_GROUPS * u < q.groups; u += WIDE ? 1 : 2) {
        tile_put_unit<N>(sum, u, s_sum);
        __syncwarp();
        tile_finish_unit(t, s, row + 16 * warp, first + TILE_GROUPS * u, s_sum,
                         (WIDE ? s_square : (float *)(t.s_scratch + TILE_SCALES)) + 16 * warp);
        __syncwarp();
    }
    if (WIDE)
        tile_meet(); /* and sums to stages */
    else
        mpk_sync(); /* of both warpgroups: they share the squares */
}

MPK_FN void tile_run(const mpk_task &t, const tile_shape &s, const tile_plan &p, const tile_pass &q, int first, int row,
                     mpk_ring *ring)
{
    if (p.wide && q.pages <= 2)
        tile_run_as<128, 1>(t, s, q, first, row, 0, ring);
    else if (p.wide)
        tile_run_as<192, 1>(t, s, q, first, row, 0, ring);
    else if (p.piece)
        tile_run_as<64, 0>(t, s, q, first, row, p.piece, ring);
    else if (q.pages <= 2)
        tile_run_as<128, 0>(t, s, q, first, row, 0, ring);
    else
        tile_run_as<192, 0>(t, s, q, first, row, 0, ring);
}

/* Part of the kernel's own function: in one that the kernel calls, ptxas would wait after every product. */
MPK_FN void linear_tile(const mpk_task &t, const tile_shape &s)
{
    const int half = mpk_thread() / 128;
    mpk_ring ring = *t.ring;
    for (int i = 0;; i++) {
        /* Worked out again each time: the products want the registers. */
        const tile_plan p = tile_plan_of(t.e, s);
        const int at = i / p.turns * p.per_pass, row = (int)t.e->lo[0] + 2 * TILE_TOKENS * (i % p.turns);
        if (at >= p.groups)
            break;
        const tile_pass q = tile_pass_at(p, s, at);
        if (row >= (int)t.hi0 && p.piece)
            tile_drop_thin(s, p.piece, &ring);
        else if (row >= (int)t.hi0)
            tile_drop(q, &ring);
        else
            tile_run(t, s, p, q, p.first + at, p.wide ? row + half * TILE_TOKENS : row, &ring);
    }
    *t.ring = ring;
}

#endif
