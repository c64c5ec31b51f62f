/* linear_blocks.cuh - products of more than 64 tokens with weights that stay in GGUF blocks, on
 * warpgroups: linear, and logits.
 *
 * y[t, n] = epilogue(sum over k of x[t, k] w[n, k]), x bf16, w in blocks (rt/rt_blocks.h), sums
 * f32.  A weight is computed in f32, multiplied by the norm's weight of its column where there is a
 * norm, and rounded once to bf16: what packing as bf16 would have made of it, but for the last bit.
 *
 * Idea: the page ring brings weights as they are packed, and the eight warps that multiply unpack
 * them, 64 columns of up to 192 rows at a time, into one of two buffers in the layout that wgmma
 * reads.  Warpgroups have 64 tokens each and read the same buffer, so a weight is unpacked once for
 * 128 tokens.
 *
 *   ring    a page: blocks_together() pieces of each of up to 12 groups of 8 rows; two pages a load
 *   warp w  unpacks N / 64 groups: 8 rows, 64 columns, each
 *   buffer  s % 2: columns 64 s ... of N rows, 1,024 bytes a group, in the 64-byte swizzle
 *   x       64 tokens, 64 columns: a stage of four of each warpgroup (tile_copy.cuh)
 *
 * Stage s, all warps:
 *
 *   x of stage s has come | barrier of all: buffer s % 2 is full, no warp reads stage s - 1
 *   products of stage s begin; between them buffer (s + 1) % 2 is filled
 *   x of stage s + 3 is asked for; squares for a norm | products have ended
 *
 * Cost of a stage with 192 rows: 4 products of 64 x 192 x 16 a warpgroup, 768 cycles of the tensor
 * cores; 48 weights a thread, of some 5 instructions; 16 KB of x and 7.1 KB of w in nibbles (13.5
 * in bytes) from L2.
 *
 * Called by the generated switch over bodies for many tokens; the worker waits for the task's event
 * and counts it.
 */
#ifndef TASK_LINEAR_BLOCKS_CUH
#define TASK_LINEAR_BLOCKS_CUH

#include "task/blocks.cuh"
#include "task/linear_tile.cuh"

#if MPK_WGMMA

/* A use of the body: a product of many tokens, and what weights in blocks add to it.  In constant
 * memory; src/gen/body_linear_blocks.c prints it. */
struct blocks_shape {
    tile_shape tile;
    int norm_in, norm_type; /* operand of the norm's weight, -1: none; 0: bf16, 1: f32 */
    float zero;             /* 128 and what the format takes off its integers; see blocks_row_of */
};

/* Scratch: the warpgroups' stages of x and squares as in linear_tile.cuh, the buffers, and the
 * norm's weights of 64 columns, f32, twice.  In a buffer a group of 8 rows has two blocks of 512
 * bytes, 32 columns each, as bf16 weights have in a page: one descriptor reads both kinds. */
enum {
    BLOCKS_BUFFERS = TILE_SCRATCH,
    BLOCKS_BUFFER = TILE_MOST * TILE_BOX_BYTES,
    BLOCKS_NORMS = BLOCKS_BUFFERS + 2 * BLOCKS_BUFFER,
    BLOCKS_GROUPS = 12 /* of a page */
};
static_assert(BLOCKS_NORMS + 2 * 64 * 4 == TILE_BLOCKS_SCRATCH_OF(MPK_ROOM),
              "the record asks for as much scratch as the body has");

/* Pieces of 128 columns of a group that come as one copy, of 1.1 to 1.3 KB: half of it would take
 * nearly as long (docs/gpu.md, "Bulk copies"). */
template <int FORM> constexpr int blocks_together()
{
    return RT_IS_BYTES(FORM) ? 1 : 2;
}
template <int FORM> constexpr rt_u32 blocks_copy_bytes()
{
    return blocks_together<FORM>() * RT_PIECE_BYTES(FORM);
}
static_assert(BLOCKS_GROUPS % 3 == 0 && BLOCKS_GROUPS % 2 == 0 &&
                  BLOCKS_GROUPS * blocks_copy_bytes<RT_BLOCKS_4>() <= MPK_PAGE_BYTES &&
                  BLOCKS_GROUPS * blocks_copy_bytes<RT_BLOCKS_8>() <= MPK_PAGE_BYTES &&
                  2 * BLOCKS_GROUPS == TILE_MOST,
              "two pages hold the groups of a pass, and one those of a warp");

/* How a task is cut, the same for loader and body: passes over its groups of 8 rows, in each lots
 * over its tokens, in each loads.  It follows from the entry alone, not from what is alive, so
 * loader and body agree on the pages.
 *
 *    first, groups    of 8 packed rows: the task's first, and how many
 *    per_pass         8, 16 or 24 of them
 *    lots             of 128 tokens, 64 for each warpgroup
 *    loads            of all columns, 128 or 256 each (blocks_together pieces) */
struct blocks_plan {
    int first, groups, per_pass, lots, loads;
};
template <int FORM> MPK_FN blocks_plan blocks_plan_of(const rt_entry *e, const tile_shape &s)
{
    const int shift = s.activation != ACTIVATE_NONE ? 2 : 3, tokens = (int)(e->hi[0] - e->lo[0]),
              columns = blocks_together<FORM>() * RT_PIECE_COLUMNS;
    blocks_plan p;
    p.first = (int)(e->lo[1] >> shift);
    p.groups = (int)((e->hi[1] + (1u << shift) - 1) >> shift) - p.first;
    p.per_pass = tile_groups_of_pass(1, p.groups, 0, 0);
    p.lots = (tokens + 2 * TILE_TOKENS - 1) / (2 * TILE_TOKENS);
    p.loads = (s.columns + columns - 1) / columns;
    return p;
}

/* ---- the loader's part ---- */

/* All lanes: a load of the pass, one or two pages; a lane each asks for its group's pieces.  from:
 * the first piece of the load of the pass's first group; group_bytes: from a group to the next.  A
 * page is announced with the bytes of its groups alone, so a pass may have any number of them. */
template <int FORM>
MPK_FN void blocks_load_step(mpk_load &l, int groups, const char *from, rt_u32 group_bytes)
{
    constexpr rt_u32 BYTES = blocks_copy_bytes<FORM>();
    const int lane = mpk_thread() % 32;
#pragma unroll 1
    for (int i = 0; i < groups; i += BLOCKS_GROUPS) {
        const int n = mpk_smaller(groups - i, BLOCKS_GROUPS);
        const rt_u32 page = l.ring.first + l.ring.at;
        if (!load_open(&l, (rt_u32)n * BYTES))
            return;
        if (lane < n) /* other workers' tokens want the same */
            ptx_copy_bulk(mpk_s + page * MPK_PAGE_BYTES + (rt_u32)lane * BYTES,
                          from + (rt_u64)(i + lane) * group_bytes, BYTES, &mpk_w.full[page]);
        __syncwarp();
    }
}

/* The loader: the loads of each pass, once for each lot, since the body unpacks them anew for each.
 * The whole ring may be in flight meanwhile (load_settle sets the number back), as in
 * linear_tile_load. */
template <int FORM> MPK_FN void linear_blocks_load(mpk_load &l, const blocks_shape &s)
{
    const blocks_plan p = blocks_plan_of<FORM>(l.e, s.tile); /* the body makes the same */
    const rt_u32 group_bytes = (rt_u32)s.tile.blocks * 32 / RT_SLAB_COLUMNS * RT_SLAB_BYTES(FORM),
                 in_flight = l.in_flight;
    const char *base = (const char *)l.e->at[RT_PACKED] + (rt_u64)p.first * group_bytes;
    l.in_flight = l.ring.n;
#pragma unroll 1
    for (int at = 0; at < p.groups; at += p.per_pass)
#pragma unroll 1
        for (int i = 0; i < p.lots * p.loads && !l.cancelled; i++)
            blocks_load_step<FORM>(l, mpk_smaller(p.groups - at, p.per_pass),
                                   base + (rt_u64)at * group_bytes +
                                       (rt_u64)(i % p.loads) * blocks_copy_bytes<FORM>(),
                                   group_bytes);
    load_settle(l, in_flight);
}

/* ---- unpacking ---- */

/* What 32 columns of a row share: w = scale[h] v + add, of RT_BLOCKS_8K a scale for 16 columns h;
 * v is the integer as it stands in a float's lowest places that count 1. */
struct blocks_row {
    float scale[2], add[2];
};

/* A byte of a word as a float, less `less`: it is put into the lowest byte of 2^23, where a float
 * counts 1, and 2^23 is taken off with `less` in one subtraction.  exponent: the bits of 2^23, in a
 * register (blocks_constants). */
MPK_FN float blocks_number(rt_u32 word, rt_u32 byte, rt_u32 exponent, float less)
{
    return __uint_as_float(__byte_perm(word, exponent, 0x7440u + byte)) - (8388608.0f + less);
}

/* Of block j = 2 half + i of a piece; head: the row's words, 8 apart.  What integers have too much
 * of, 128 and the format's zero, is taken off `add`: in f32 that costs 2^-16 of a scale, where
 * rounding w to bf16 costs 2^-9 of it or more.  Bytes of RT_BLOCKS_8 have it off already. */
template <int FORM>
MPK_FN blocks_row blocks_row_of(const rt_u32 *head, int half, int i, const blocks_numbers &n,
                                float zero)
{
    /* the word that has the integers b */
    constexpr int LAST = RT_HEADER_WORDS(FORM) - 1;
    blocks_row r;
    float add;
    /* Without K two blocks share a word, scales in the first two words, what is added in the next
     * two. Of K all four blocks have a byte of each word, and d and e are those of the row's
     * piece. */
    if (!RT_IS_K(FORM)) {
        const rt_u32 s = head[8 * half], m = head[8 * (2 + half)];
        r.scale[0] = r.scale[1] = i ? ptx_high_f16(s) : ptx_low_f16(s);
        add = i ? ptx_high_f16(m) : ptx_low_f16(m);
    } else {
        const rt_u32 byte = (rt_u32)(2 * half + i);
        const float d = ptx_low_f16(head[0]);
        r.scale[0] = r.scale[1] = d * blocks_number(head[8], byte, n.exponent, 128);
        if (FORM == RT_BLOCKS_8K)
            r.scale[1] = d * blocks_number(head[16], byte, n.exponent, 128);
        add = -ptx_high_f16(head[0]) * blocks_number(head[8 * LAST], byte, n.exponent, 0);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
        r.add[h] = FORM == RT_BLOCKS_8 ? add : fmaf(r.scale[h], -zero, add);
    return r;
}

/* Integers 2 k and 2 k + 1 of the lane's eight of a block: of nibbles one word, of bytes two.  128
 * and a number of up to 7 bits are exact in a bf16's, or the upper half of a float's, places. */
template <int FORM>
MPK_FN void blocks_integers(rt_u32 first, rt_u32 second, int k, const blocks_numbers &n, float *q)
{
    const rt_u32 word = k / 2 ? second : first, byte = (rt_u32)k % 2 * 2;
    if (!RT_IS_BYTES(FORM)) {
        const rt_u32 v = ptx_choose(first >> 4 * k, 0x000f000fu, n.of_128);
        q[0] = ptx_low_bf16(v);
        q[1] = ptx_high_bf16(v);
    } else if (FORM == RT_BLOCKS_8K) {
        q[0] = __uint_as_float(__byte_perm(word, n.of_128, 0x7044u + (byte << 8)));
        q[1] = __uint_as_float(__byte_perm(word, n.of_128, 0x7144u + (byte << 8)));
    } else {
        q[0] = blocks_number(word, byte, n.exponent, 128);
        q[1] = blocks_number(word, byte + 1, n.exponent, 128);
    }
}

/* A warp: columns 64 half ... of a piece, 8 rows, become two blocks of 512 bytes at `to`, the
 * lane's eight of each.  s_norm: the norm's weights of these 64 columns.
 *
 * Lane (g, c) has row g; its eight columns of block i are 32 i + 8 c ..., which are one unit of 16
 * bytes (rt/rt_blocks.h).  Of RT_BLOCKS_8K they are four of each half of the block, because a scale
 * is of 16 columns and few tokens' products want those together: two halves of units, so lanes
 * store 8 and 8 bytes.  A unit of row g stands at its number ^ g / 2, so that the lanes of two rows
 * fill 128 bytes: no bank conflict. */
template <int FORM, bool NORM>
MPK_FN void blocks_unpack(const char *s_piece, int half, const float *s_norm, char *to, int lane,
                          const blocks_numbers &n, float zero)
{
    const int g = lane / 4, c = lane % 4;
    const rt_u32 *head = (const rt_u32 *)(s_piece + RT_QUANTS_BYTES(FORM)) + g;
    uint2 v[2]; /* of both blocks; nibbles: a word */
    if (RT_IS_BYTES(FORM)) {
        const mpk_words all = ((const mpk_words *)s_piece)[32 * half + lane];
        v[0] = {all.x, all.y};
        v[1] = {all.z, all.w};
    } else {
        v[0] = ((const uint2 *)s_piece)[2 * lane + half];
        v[1] = {v[0].y, 0};
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const blocks_row r = blocks_row_of<FORM>(head, half, i, n, zero);
        rt_u32 words[4];
#pragma unroll
        for (int h = 0; h < 2; h++) { /* four columns, of RT_BLOCKS_8K 16 on */
            const int column =
                FORM == RT_BLOCKS_8K ? 16 * h + c % 2 * 8 + c / 2 * 4 : 8 * c + 4 * h;
            float q[4];
            blocks_integers<FORM>(v[i].x, v[i].y, 2 * h, n, q);
            blocks_integers<FORM>(v[i].x, v[i].y, 2 * h + 1, n, q + 2);
#pragma unroll
            for (int e = 0; e < 4; e++)
                /* the weight, in f32; the norm multiplies it before the one rounding to bf16 */
                q[e] = fmaf(r.scale[h], q[e], r.add[h]);
            if (NORM) {
                const float4 w = *(const float4 *)(s_norm + 32 * i + column);
                q[0] *= w.x, q[1] *= w.y, q[2] *= w.z, q[3] *= w.w;
            }
            words[2 * h] = ptx_pack_bf16(q[0], q[1]);
            words[2 * h + 1] = ptx_pack_bf16(q[2], q[3]);
        }
        char *row = to + 512 * i + g * 64;
        if (FORM == RT_BLOCKS_8K) {
            row += c / 2 * 8;
            *(uint2 *)(row + (c % 2 ^ g / 2) * 16) = {words[0], words[1]};
            *(uint2 *)(row + ((2 + c % 2) ^ g / 2) * 16) = {words[2], words[3]};
        } else {
            *(mpk_words *)(row + (c ^ g / 2) * 16) = {words[0], words[1], words[2], words[3]};
        }
    }
}

/* ---- products ---- */

/* A load as a warp sees it: where its own groups' pieces begin, and the first page. */
struct blocks_source {
    const char *at;
    rt_u32 page;
};

/* All warps: take the pages of the next load.  Every warp takes both, also if its groups are in
 * one: the ring counts warps.  Warps whose groups the pass has not got read what else is in its
 * first page: what becomes of that is not stored. */
template <int FORM, int N>
MPK_FN void blocks_take_load(mpk_ring *ring, int groups, int warp, blocks_source *from)
{
    const int group = warp * (N / 64); /* its own are in one page: BLOCKS_GROUPS % (N / 64) is 0 */
    rt_u32 second;
    from->at = ring_take(ring, &from->page);
    if (groups > BLOCKS_GROUPS) {
        const char *page = ring_take(ring, &second);
        if (group >= BLOCKS_GROUPS)
            from->at = page;
    }
    __syncwarp();
    from->at += group % BLOCKS_GROUPS * (int)blocks_copy_bytes<FORM>();
}
/* All warps: the pages of a load, whose bytes this warp has unpacked; the second may be the ring's
 * first. */
MPK_FN void blocks_release_load(const mpk_ring &ring, int groups, rt_u32 page)
{
    ring_release(page);
    if (groups > BLOCKS_GROUPS)
        ring_release(page + 1 == ring.first + ring.n ? ring.first : page + 1);
}

/* The norm's weight of a column of stage `stage`, for threads below 64; 0 after the last one. */
MPK_FN float blocks_norm(const mpk_task &t, const blocks_shape &s, int stage)
{
    const int column = 64 * stage + mpk_thread();
    if (column >= s.tile.columns)
        return 0;
    return s.norm_type ? mpk_at<const float>(t, s.norm_in)[column]
                       : halves_low(mpk_at<const rt_u16>(t, s.norm_in)[column]);
}

/* All columns of a pass for this warpgroup's tokens, N rows of w; sum[N / 2] per lane.  anew: sum
 * the squares of x.
 *
 * Invariants at the barrier of stage s: all warps have filled their part of buffer s % 2, and none
 * reads buffer (s + 1) % 2 any more, since its products of stage s - 1 have ended.  So one barrier
 * a stage does for full and empty.  OF_LOAD stages have their weights from one load: the first is
 * unpacked before the loop, and each load is given back when its last stage is unpacked, one stage
 * ahead of its products.  stages is even, whatever the columns; of columns after the last x is
 * zeros. */
template <int FORM, int N, bool NORM>
MPK_FN void blocks_columns(const mpk_task &t, const blocks_shape &s, int loads, int groups,
                           const tile_copy &c, const char *s_x, bool anew, mpk_ring *ring,
                           float *sum, row_sums *of_x)
{
    constexpr int AHEAD = TILE_STAGES - 1, OF_LOAD = 2 * blocks_together<FORM>(), OWN = N / 64;
    const int thread = mpk_thread(), warp = thread / 32, lane = thread % 32,
              columns = s.tile.columns, stages = loads * OF_LOAD;
    /* from mpk_s on, or the compiler would not know that it is shared memory */
    char *s_buffers = mpk_s + (ptx_shared(t.s_scratch) - ptx_shared(mpk_s)) + BLOCKS_BUFFERS,
         *s_own = s_buffers + warp * OWN * TILE_BOX_BYTES; /* this warp's groups of the first */
    float *s_norms = (float *)(s_buffers + (BLOCKS_NORMS - BLOCKS_BUFFERS)), next = 0;
    const blocks_numbers n = blocks_constants(s.zero);
    blocks_source from;
    /* stages of x that are under way while one is read */
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        tile_copy_stage(c, columns, i, i);
    /* The norm's weights of stages 0 and 1 lie there, of stage 2 in a register: each is loaded a
     * stage before it is stored and two before it is used, so no stage waits for memory. */
    if (NORM) {
        if (thread < 64) {
            s_norms[thread] = blocks_norm(t, s, 0);
            s_norms[64 + thread] = blocks_norm(t, s, 1);
            next = blocks_norm(t, s, 2);
        }
        mpk_sync();
    }
    blocks_take_load<FORM, N>(ring, groups, warp, &from);
#pragma unroll
    for (int i = 0; i < OWN; i++)
        blocks_unpack<FORM, NORM>(from.at + i * (int)blocks_copy_bytes<FORM>(), 0, s_norms,
                                  s_own + i * TILE_BOX_BYTES, lane, n, s.zero);
#pragma unroll 1
    for (int stage = 0;; stage++) {
        const int of_load = (stage + 1) % OF_LOAD; /* of the stage that is unpacked */
        const rt_u64 x = ptx_matrix(s_x + stage % TILE_STAGES * TILE_STAGE, 512),
                     w = ptx_matrix(s_buffers + stage % 2 * BLOCKS_BUFFER, TILE_BOX_BYTES);
        char *to = s_own + (stage + 1) % 2 * BLOCKS_BUFFER;
        ptx_copy_async_wait<AHEAD - 1>();
        ptx_fence_shared(); /* products read through the other proxy */
        mpk_sync();         /* the stage is there, and no warp reads the one before any more */
        if (stage + 1 == stages)
            break;
        tile_begin_products();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            halves_group_multiply<N>(sum, tile_further(x, tile_in_x(k)),
                                     tile_further(w, tile_in_w(k)));
            /* A warp is held while a product is issued; it unpacks a group in between, so that
             * tensor cores and integer units work side by side. */
            if (k < OWN)
                blocks_unpack<FORM, NORM>(from.at + k * (int)blocks_copy_bytes<FORM>() +
                                              of_load / 2 * RT_PIECE_BYTES(FORM),
                                          of_load % 2, s_norms + (stage + 1) % 2 * 64,
                                          to + k * TILE_BOX_BYTES, lane, n, s.zero);
        }
        tile_end_products();
        /* into the stage that the products of the stage before have read */
        tile_copy_stage(c, columns, stage + AHEAD, (stage + AHEAD) % TILE_STAGES);
        /* In place of the weights of stage `stage`, which all warps have used before the
         * barrier. */
        if (NORM && thread < 64) {
            s_norms[stage % 2 * 64 + thread] = next; /* of stage + 2 */
            next = blocks_norm(t, s, stage + 3);
        }
        if (NORM && anew)
            tile_add_sums(c, stage % TILE_STAGES, of_x);
        if (of_load == OF_LOAD - 1) {
            blocks_release_load(*ring, groups, from.page);
            if (stage + 2 < stages)
                blocks_take_load<FORM, N>(ring, groups, warp, &from);
        }
        tile_wait_products();
    }
    /* The last stage, beside which nothing is unpacked.  Its number is odd, so it is in the second
     * buffer. */
    tile_begin_products();
    tile_multiply<N>(s_x + (stages - 1) % TILE_STAGES * TILE_STAGE, s_buffers + BLOCKS_BUFFER,
                     TILE_BOX_BYTES, sum);
    tile_end_products();
    if (NORM && anew)
        tile_add_sums(c, (stages - 1) % TILE_STAGES, of_x);
    tile_wait_products();
    ptx_copy_async_wait<0>(); /* stages after the last one give way to sums */
}

/* No token of a lot is alive: take and release the pages of its pass.  The loader has brought them
 * ahead of the step, whose live tokens it could not know. */
MPK_FN void blocks_drop(int loads, int groups, mpk_ring *ring)
{
    for (int i = 0; i < loads * (groups > BLOCKS_GROUPS ? 2 : 1); i++) {
        rt_u32 page;
        ring_take(ring, &page);
        ring_release(page);
    }
}

/* One lot of the pass that begins at group `at`, for this warpgroup's tokens from `row` on.  anew:
 * the squares of these tokens are to be summed; else an earlier pass has left their factors in
 * scratch, which has room for those of TILE_KEPT lots. */
template <int FORM, int LOOP, int N, bool NORM>
MPK_FN void blocks_run(const mpk_task &t, const blocks_shape &s, const blocks_plan &p, int at,
                       int lot, int row, mpk_ring *ring)
{
    const int half = mpk_thread() / 128, warp = mpk_thread() / 32 % 4,
              groups = mpk_smaller(p.groups - at, p.per_pass);
    const bool anew = at == 0 || p.lots > TILE_KEPT;
    char *s_x = t.s_scratch + half * TILE_X;
    float *s_scale =
              (float *)(t.s_scratch + TILE_SCALES) + (lot % TILE_KEPT * 2 + half) * TILE_TOKENS,
          *s_sum = (float *)s_x + warp * 16 * TILE_ROW;
    float sum[N / 2];      /* as products leave them */
    row_sums of_x[2] = {}; /* of the thread's two rows */
    tile_copy c;           /* what this thread brings of x */
    row += half * TILE_TOKENS;
    tile_copy_begin(t, s.tile, row, s_x, &c);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sum[i] = 0;
    blocks_columns<FORM, N, NORM>(t, s, p.loads, groups, c, s_x, anew, ring, sum, of_x);
    if (anew)
        tile_put_scales(s.tile, of_x, mpk_thread() % 128 / 4, s_scale);
    tile_meet(); /* stages of x give way to sums */
    /* 64 rows of w at a time, from registers through the warp's own scratch to y (tile_end.cuh). */
#pragma unroll 1
    for (int u = 0; u < N / 64 && TILE_GROUPS * u < groups; u++) {
        tile_put_unit<N>(sum, u, s_sum);
        __syncwarp();
        tile_finish_unit<LOOP, true>(t, s.tile, row + 16 * warp, p.first + at + TILE_GROUPS * u,
                                     s_sum, s_scale + 16 * warp);
        __syncwarp();
    }
    tile_meet(); /* and sums to stages */
}

/* A lot by this loop, if some task of the kernel has it and this lot is such a one. */
template <int FORM, int LOOP, int N, bool NORM>
MPK_FN void blocks_run_if(const mpk_task &t, const blocks_shape &s, const blocks_plan &p, int at,
                          int lot, int row, int loop, mpk_ring *ring)
{
    if (TILE_HAS_LOOP(LOOP) && loop == LOOP)
        blocks_run<FORM, LOOP, N, NORM>(t, s, p, at, lot, row, ring);
}

/* All body threads, once the task's event is activated.  i counts lots over all passes, so that
 * only it and the ring live through the products. */
template <int FORM> MPK_FN void linear_blocks(const mpk_task &t, const blocks_shape &s)
{
    mpk_ring ring = *t.ring;
    if (MPK_REGIMES > 1) { /* no JIT tasks, one ring: constants take no registers */
        ring.first = 0;
        ring.n = MPK_PAGES;
    }
    for (int i = 0;; i++) {
        /* Worked out again each time: the products want the registers. */
        const blocks_plan p = blocks_plan_of<FORM>(t.e, s.tile);
        const int at = i / p.lots * p.per_pass, lot = i % p.lots,
                  row = (int)t.e->lo[0] + 2 * TILE_TOKENS * lot;
        if (at >= p.groups)
            break;
        const int groups = mpk_smaller(p.groups - at, p.per_pass),
                  loop = tile_loop_of_blocks(s.norm_in >= 0, groups);
        if (row >= (int)t.hi0) { /* no token is alive, but the pages have been loaded */
            blocks_drop(p.loads, groups, &ring);
            continue;
        }
        blocks_run_if<FORM, TILE_BLOCKS_64, 64, false>(t, s, p, at, lot, row, loop, &ring);
        blocks_run_if<FORM, TILE_BLOCKS_128, 128, false>(t, s, p, at, lot, row, loop, &ring);
        blocks_run_if<FORM, TILE_BLOCKS_192, 192, false>(t, s, p, at, lot, row, loop, &ring);
        blocks_run_if<FORM, TILE_BLOCKS_NORM_64, 64, true>(t, s, p, at, lot, row, loop, &ring);
        blocks_run_if<FORM, TILE_BLOCKS_NORM_128, 128, true>(t, s, p, at, lot, row, loop, &ring);
        blocks_run_if<FORM, TILE_BLOCKS_NORM_192, 192, true>(t, s, p, at, lot, row, loop, &ring);
    }
    *t.ring = ring;
}

#endif

#endif
