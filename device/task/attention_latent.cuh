/* attention_latent.cuh - attention over a paged bf16 cache of latents, whose rows are keys and
 * values at once: attention and attention_parts without v_cache (DeepSeek's MLA).
 *
 * All query heads share the cached row of a position, so the rows of the tensor-core operand are
 * tokens of one slot times query heads, 16 or 32 of them: a chunk.  Its positions come by cp.async,
 * 32 at a time (a stage), and each byte is used twice, for scores and for results.  A row has too
 * many entries for the registers of a warp, so warps share out entries:
 *
 *   scores    warp w has the entries 144 (w % 4) ... of the queries, in registers, and with 16 rows
 *             the positions 16 (w / 4) ... of a stage, with 32 rows the rows 16 (w / 4) ...
 *   softmax   each warp has two or four rows, a position a lane: it adds up the four areas' sums
 *   results   warp w has 72 entries of all rows
 *
 * Three barriers a stage: it is there, scores are there, weights are there.  Scores pass through
 * scratch in f32, weights in bf16.  Softmax is online in powers of 2, as in attention_tile.cuh,
 * whose rows, runs and sources of pages this uses.
 *
 * The cache lies in blocks of keys (tile/kv.cuh).  ldmatrix reads 8 positions x 8 entries of these
 * as they are for scores, and transposed for results; 8 lanes read 128 bytes of different banks.
 * Positions that no row of the chunk sees are zeros in scratch, so what they hold does not matter.
 *
 * attention_parts: a chunk is one token, and its positions are those of a part (op/context.h).
 *
 * Relies on: ptx_multiply_bf16, KV pages of 64 positions; the task's event has come.  Cost of 16
 * rows and 32 positions: 288 products for scores and as many for results, 74 KB of shared memory
 * read; of 32 rows 111 KB, since a row of values is read for all of them.
 */
#ifndef TASK_ATTENTION_LATENT_CUH
#define TASK_ATTENTION_LATENT_CUH

#include "shape/attention_latent_shape.h"
#include "task/attention_tile.cuh"

#define CONTEXT_FN MPK_FN
#include "op/context.h"

enum {
    LATENT_STAGES = MPK_ROOM ? 2 : 1,         /* in scratch */
    LATENT_DIMS = LATENT_SIZE / LATENT_AREAS, /* of an area: 144 */
    LATENT_STEPS = LATENT_DIMS / 16,          /* products of 16 entries of an area */
    LATENT_PIECES = LATENT_STAGE_BYTES / 16,  /* of 16 bytes of a stage */
    LATENT_BLOCKS = LATENT_SIZE / 32,         /* of 8 positions x 32 entries, 512 bytes */
    LATENT_GROUP_BYTES = LATENT_BLOCKS * 512, /* from 8 positions to the next */
    LATENT_BLOCKS_OUT = LATENT_DIMS / 16,     /* of 8 entries, of a warp's results */
    LATENT_PART = ATTEND_SINKS,               /* results of attention_parts, in rt_entry.at */
    LATENT_LSE,
};

/* Rows of one KV head and the positions that any of them sees, least .. most. place: -1 in
 * attention, where each row sees what its token does, which may be less; in attention_parts the
 * part's number of CONTEXT_PARTS, and all rows see least .. most.  The same in all threads, so
 * barriers may stand in branches on it.  It derives from attend_chunk for attend_row and
 * attend_source_of; step, n_steps and row_warps of that are not used here. */
struct latent_chunk : attend_chunk {
    int least, most, place;
};

/* All lanes: what the tokens of a whole chunk see, at most 32 of them; the same in all threads.
 * Padding has a negative position and sees nothing, nor does a slot that the cache has not. */
MPK_FN void latent_find(const mpk_task &t, const attend_shape &s, latent_chunk *c)
{
    /* Lane i looks at token i of the chunk, which has LATENT_ROWS = 32 at most.  Every warp does
     * the same work, so no barrier has to hand the result on. */
    const int room = mpk_caches[s.cache].slot_pages * ATTEND_PAGE, i = c->first + mpk_thread() % 32;
    const bool there = i < c->last && (rt_u32)c->slot < (rt_u32)mpk_caches[s.cache].slots;
    const int position = there ? mpk_at<const int>(t, ATTEND_POSITIONS)[i] : -1;
    /* Padding leaves the minimum and the maximum as they are: `room` is above all positions, -1
     * below. */
    c->least = position < 0 ? room : attend_from(s, position);
    c->most = position;
#pragma unroll
    for (int d = 16; d; d /= 2) {
        const int a = __shfl_xor_sync(0xffffffffu, c->least, d),
                  b = __shfl_xor_sync(0xffffffffu, c->most, d);
        c->least = a < c->least ? a : c->least;
        c->most = b > c->most ? b : c->most;
    }
    /* a position beyond the slot's pages sees what they have */
    c->most = c->most < room ? c->most : room - 1;
}

/* The positions that a row sees, from .. to; *to -1: none, as of rows beyond the chunk's tokens and
 * of padding.  A position beyond the slot's pages is no harm: latent_find has cut the stages at
 * `room`. */
MPK_FN void latent_sight(const mpk_task &t, const attend_shape &s, const latent_chunk &c, int row,
                         int *from, int *to)
{
    int token, head;
    const bool there = attend_row(c, row, &token, &head);
    *from = c.least;
    *to = there ? c.most : -1;
    if (c.place < 0 && there) {
        *to = mpk_at<const int>(t, ATTEND_POSITIONS)[token];
        *from = attend_from(s, *to);
    }
}

/* What the loop over stages needs of a chunk's attend_source, and the last position that is seen.
 * It lies in scratch and is read again in each stage: in registers it would be spilled, and what is
 * on the stack comes from L2, since the clerk empties L1 whenever it polls. */
struct __align__(16) latent_source
{
    rt_u64 keys, pages;
    rt_u32 page_bytes;
    int n_pages, slot_pages, most;
};
static_assert(sizeof(latent_source) == 32, "latent_take reads it as eight words");
MPK_FN latent_source latent_source_of(const attend_source &from, const latent_chunk &c)
{
    return {(rt_u64)from.keys, (rt_u64)from.pages, from.page_bytes,
            from.n_pages,      from.slot_pages,    c.most};
}
/* As it lies in scratch; by this instruction, or the compiler would keep it. */
MPK_FN latent_source latent_take(const char *s_source)
{
    const mpk_words a = ptx_load_shared_words(s_source), b = ptx_load_shared_words(s_source + 16);
    return {(rt_u64)a.y << 32 | a.x, (rt_u64)a.w << 32 | a.z, b.x, (int)b.y, (int)b.z, (int)b.w};
}
/* The page that holds positions 64 step ... of the slot, or -1; as attend_page. */
MPK_FN int latent_page(const latent_source &from, int step)
{
    const int page = step < from.slot_pages ? mpk_global((const int *)from.pages)[step] : -1;
    return (rt_u32)page < (rt_u32)from.n_pages ? page : -1;
}

/* All threads: request positions 32 stage ... of the slot, which are of this page; zeros for those
 * after the last that is seen.  Without a page nothing is copied, and latent_run leaves the stage
 * alone. */
MPK_FN void latent_copy(const latent_source &from, int page, int stage, char *to)
{
    const int warp = mpk_thread() / 32, lane = mpk_thread() % 32;
    if (page >= 0) {
        /* A page of keys is in groups of 8 positions, one after the other, so half of the page's
         * positions are half of its bytes, and a stage is one run of LATENT_STAGE_BYTES. */
        const char *g_stage = mpk_global((const char *)from.keys) + (rt_u64)page * from.page_bytes +
                              stage % (ATTEND_PAGE / LATENT_UNIT) * LATENT_STAGE_BYTES;
        const int left = from.most - stage * LATENT_UNIT; /* the last position of the stage */
        /* A warp copies a block of 512 bytes; 4 lanes have the 64 bytes of a position in it.
         * LATENT_BLOCKS blocks are 8 positions.  So a lane copies of its blocks those before this
         * one: one number for all of them, where one for each would take as many registers. */
        const int before = ((left - lane / 4 + 8) >> 3) * LATENT_BLOCKS - warp;
        g_stage += warp * 512 + lane * 16;
        to += warp * 512 + lane * 16;
#pragma unroll
        for (int i = 0; i < LATENT_PIECES / MPK_THREADS; i++)
            /* Zeros and not what lies there: a weight of 0 does not help against a NaN, and pages
             * that another text has left, or that were never written, may hold any bits. */
            ptx_copy_async(to + i * MPK_WARPS * 512, g_stage + i * MPK_WARPS * 512,
                           i * MPK_WARPS < before);
    }
    /* An empty group counts as well, so that each stage has one to wait for. */
    ptx_copy_async_commit();
}

/* This lane's queries: rows 16 tile + g and + 8, of the warp's area, as operands of products:
 * query[k] is the left operand of ptx_multiply_bf16 for 16 entries from 16 k of the area on.  36
 * registers, held through all stages. */
MPK_FN void latent_queries(const mpk_task &t, const attend_shape &s, const latent_chunk &c,
                           int tile, int area, rt_u32 (*query)[4])
{
    const int g = mpk_thread() % 32 / 4, dim = area * LATENT_DIMS + mpk_thread() % 4 * 2;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int token, head; /* of row g + 8 m */
        const bool there = attend_row(c, tile * 16 + g + 8 * m, &token, &head);
        /* Of a row that is not there the address may lie behind q; nothing is read from it. */
        const char *from = mpk_at<const char>(t, ATTEND_Q) +
                           (((rt_u64)token * s.heads + head) * LATENT_SIZE + dim) * 2;
#pragma unroll
        for (int k = 0; k < LATENT_STEPS; k++) {
            query[k][m] = there ? ptx_load_word(from + k * 32) : 0;
            query[k][2 + m] = there ? ptx_load_word(from + k * 32 + 16) : 0;
        }
    }
}

/* Byte in a stage of entries 8 unit ... of a position; unit below LATENT_SIZE / 8.  The order is
 * that of kv_key_at (tile/kv.cuh): groups of 8 positions, in these blocks of 32 entries, in these
 * rows of 64 bytes whose four pieces of 16 are swizzled.  The eight rows that ldmatrix reads
 * together are one unit of eight positions; r % 2 and the swizzle by r / 2 put them into eight
 * different quarters of 128 bytes, all 32 banks. */
MPK_FN int latent_at(int position, int unit)
{
    const int r = position % 8;
    return position / 8 * LATENT_GROUP_BYTES + unit / 4 * 512 + r * 64 + (unit % 4 ^ r / 2) * 16;
}

/* Addresses of this lane's rows for ldmatrix of units unit, unit + 1, + 2 and + 3 of a position of
 * a stage.  The unit four further on is LATENT_NEXT bytes further, whatever the first: so the loops
 * over units need no address for each, of which there would be no registers for all. */
enum { LATENT_NEXT = 512 };
struct latent_lane {
    rt_u32 at[4];
};
MPK_FN latent_lane latent_lane_of(const char *s_stage, int position, int unit)
{
    latent_lane l;
#pragma unroll
    for (int i = 0; i < 4; i++)
        l.at[i] = ptx_shared(s_stage) + (rt_u32)latent_at(position, unit + i);
    return l;
}

/* The warp's sums of scores: 16 rows of its tile, 16 positions from `first` on, its area.  Even and
 * odd steps have sums of their own: a product that adds to the sum of the one before would wait for
 * it.
 *
 * By ldmatrix lanes 0-7 give the rows of matrix 0 (positions first ... + 7, entries 0-7 of 16),
 * 8-15 those of matrix 1 (the same positions, entries 8-15), 16-31 the same of positions first + 8
 * ...  So w[0], w[1] and w[2], w[3] are the right operands for 8 positions each. */
MPK_FN void latent_score(const char *s_stage, const rt_u32 (*query)[4], int first, int area,
                         float *s_scores)
{
    const int lane = mpk_thread() % 32, position = first + lane / 16 * 8 + lane % 8,
              unit = area * (LATENT_DIMS / 8) + lane / 8 % 2, g = lane / 4, c = lane % 4;
    float sum[2][2][4] = {}; /* of even and odd steps, of 8 positions each */
    const latent_lane own = latent_lane_of(s_stage, position, unit);
#pragma unroll
    for (int k = 0; k < LATENT_STEPS; k++) {
        rt_u32 w[4];
        ptx_load_matrices_at(w, own.at[2 * k % 4] + k / 2 * LATENT_NEXT);
#pragma unroll
        for (int i = 0; i < 2; i++)
            ptx_multiply_bf16(sum[k % 2][i], query[k][0], query[k][1], query[k][2], query[k][3],
                              w[2 * i], w[2 * i + 1]);
    }
    /* m: row g + 8 m.  Rows are 40 floats apart, 8 banks further each, so what a store of half a
     * warp covers, four rows of 8 floats, fills all 32 banks. */
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            float *to = s_scores + (g + 8 * m) * LATENT_SCORE_FLOATS + first + 8 * i + 2 * c;
            *(float2 *)to = make_float2(sum[0][i][2 * m] + sum[1][i][2 * m],
                                        sum[0][i][2 * m + 1] + sum[1][i][2 * m + 1]);
        }
}

/* The positions that a row sees; in scratch. */
struct __align__(8) latent_seen
{
    int from, to;
};

/* All lanes: the scores of a row become weights, lane l that of position base + l.  s_scores: the
 * row in area 0; the four areas' sums are added in rising order, whichever warp was first.  s_kept
 * gets the factor by which all warps bring this row's results to the new maximum, which is
 * returned; s_most: the one before.  sum: the lane's own until latent_end adds them up.
 *
 * Weights are rounded to bf16 for the product; the sum is of what they are before, as in
 * attention_tile.cuh. */
MPK_FN float latent_weigh(const float *s_scores, int base, float scale, const latent_seen *s_seen,
                          const float *s_most, char *s_weights, float *s_kept, float *sum)
{
    const latent_seen seen = *s_seen;
    const float before = *s_most;
    const int lane = mpk_thread() % 32, position = base + lane;
    const float none = -__int_as_float(0x7f800000);
    float score = 0;
#pragma unroll
    for (int area = 0; area < LATENT_AREAS; area++)
        score += s_scores[area * LATENT_ROWS * LATENT_SCORE_FLOATS + lane];
    score = position >= seen.from && position <= seen.to ? score * scale : none;
    /* What is masked has the score -inf whatever the products gave, NaN of a bad key included. */
    float most = score;
#pragma unroll
    for (int d = 16; d; d /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
    most = fmaxf(most, before);
    /* nothing seen so far: 2^(-inf - 0) is the 0 that is meant */
    const float zero = most == none ? 0 : most, kept = ptx_exp2(before - zero),
                weight = ptx_exp2(score - zero);
    *sum = *sum * kept + weight;
    *(rt_u16 *)(s_weights + lane * 2) = (rt_u16)ptx_pack_bf16(weight, 0);
    if (lane == 0)
        *s_kept = kept;
    return most;
}

/* The warp's results, blocks of 8 entries from `unit` on of 16 R rows: out[m][n] as the sum of
 * ptx_multiply_bf16, rows 16 m + g and + 8, entries 8 (unit + n) + 2c and + 1.  A position is read
 * once for all rows. */
template <int R>
MPK_FN void latent_add(const char *s_stage, const char *s_weights, const float *s_kept, int unit,
                       float (*out)[LATENT_BLOCKS_OUT][4])
{
    const int lane = mpk_thread() % 32, g = lane / 4;
    rt_u32 p[R][2][4]; /* weights of 16 rows and 16 positions each */
#pragma unroll
    for (int m = 0; m < R; m++) {
        const float kept[2] = {s_kept[16 * m + g], s_kept[16 * m + g + 8]};
        /* Lane l gives row l % 16, from position 16 k + 8 (l / 16) on: the four matrices are then
         * a0 to a3 of the left operand.  Eight rows, 80 bytes apart, begin in eight different
         * groups of four banks. */
#pragma unroll
        for (int k = 0; k < 2; k++)
            ptx_load_matrices(p[m][k], s_weights + (16 * m + lane % 16) * LATENT_WEIGHT_BYTES +
                                           lane / 16 * 16 + k * 32);
        /* The whole warp decides alike.  After the first stages a maximum rises rarely, and this
         * spares 36 multiplications of each lane. */
        if (__any_sync(0xffffffffu, kept[0] != 1 || kept[1] != 1))
#pragma unroll
            for (int n = 0; n < LATENT_BLOCKS_OUT; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    out[m][n][e] *= kept[e / 2];
    }
    const latent_lane own = latent_lane_of(s_stage, lane, unit);
#pragma unroll
    for (int n = 0; n < LATENT_BLOCKS_OUT; n++) {
        rt_u32 w[4]; /* of 32 positions */
        /* Lane l gives the row of position l.  Transposed, matrix i has entries as columns and
         * positions 8 i ... as rows, so w[2k] and w[2k + 1] are the right operand for positions 16
         * k ... + 15. */
        ptx_load_matrices_transposed_at(w, own.at[n % 4] + n / 4 * LATENT_NEXT);
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int m = 0; m < R; m++)
                ptx_multiply_bf16(out[m][n], p[m][k][0], p[m][k][1], p[m][k][2], p[m][k][3],
                                  w[2 * k], w[2 * k + 1]);
    }
}

/* The end of a row, by the warp that has weighed it: what its results are multiplied by, for the
 * warps that have them; of a part also its lse, the natural logarithm of the sum of weights, which
 * fold_rows reads (most counts in powers of 2).  A row that saw nothing gets the factor 0, and as a
 * part -inf. */
MPK_FN void latent_end(const mpk_task &t, const attend_shape &s, const latent_chunk &c, int row,
                       float most, float sum, float *s_kept)
{
    int token, head;
#pragma unroll
    for (int d = 16; d; d /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (mpk_thread() % 32)
        return;
    *s_kept = sum > 0 ? mpk_inverse(sum) : 0;
    if (c.place >= 0 && attend_row(c, row, &token, &head)) {
        const float lse =
            sum > 0 ? (most + ptx_log2(sum)) * 0.693147181f : -__int_as_float(0x7f800000);
        mpk_at<float>(t, LATENT_LSE)[((rt_u64)token * CONTEXT_PARTS + c.place) * s.heads + head] =
            lse;
    }
}

/* Store the warp's results; mpk_sync has come since latent_end, which has written s_kept.  All 576
 * entries of a row are stored; which columns of them are values is the model's (op/attention.c). */
MPK_FN void latent_store(const mpk_task &t, const attend_shape &s, const latent_chunk &c, int tile,
                         int unit, const float *s_kept, float (*out)[4])
{
    const int g = mpk_thread() % 32 / 4, dim = unit * 8 + mpk_thread() % 4 * 2;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int token, head;
        if (!attend_row(c, tile * 16 + g + 8 * m, &token, &head))
            continue;
        const rt_u64 row = c.place < 0 ? token : (rt_u64)token * CONTEXT_PARTS + c.place;
        char *y = mpk_at<char>(t, c.place < 0 ? (int)ATTEND_Y : (int)LATENT_PART) +
                  ((row * s.heads + head) * LATENT_SIZE + dim) * 2;
        const float scale = s_kept[g + 8 * m];
#pragma unroll
        for (int n = 0; n < LATENT_BLOCKS_OUT; n++)
            ptx_store_word(y + n * 16,
                           ptx_pack_bf16(out[n][2 * m] * scale, out[n][2 * m + 1] * scale));
    }
}

/* What a warp has: for scores an area and 16 of the rows (tile), or of the positions (half); of
 * the softmax the rows from `row` on; of results the entries from 8 unit on. */
struct latent_part {
    int row, area, half, tile, unit;
};
/* Found anew wherever it is needed: kept over the loop it would be spilled. */
template <int R> MPK_FN latent_part latent_part_of(void)
{
    const int warp = mpk_thread() / 32, area = warp % LATENT_AREAS, half = warp / LATENT_AREAS;
    return {warp * 2 * R, area, half, R > 1 ? half : 0,
            area * (LATENT_DIMS / 8) + half * LATENT_BLOCKS_OUT};
}

/* All threads: a chunk of up to 16 R rows, R 1 or 2.  Who has what:
 *
 *            scores: entries, rows, positions          results: entries, rows
 *   R = 1    area of 144, all 16, 16 (w / 4) ...       72 from area and half on, all
 *   R = 2    area of 144, 16 (w / 4) ..., all 32       the same
 *
 * Copies run one stage ahead, numbers of pages two, as in attend_steps. */
template <int R>
MPK_FN void latent_run(const mpk_task &t, const attend_shape &s, const latent_chunk &c)
{
    latent_part p = latent_part_of<R>();
    const latent_source from = latent_source_of(attend_source_of<LATENT_SIZE>(t, s, c), c);
    char *s_source = t.s_scratch + LATENT_SOURCE(LATENT_STAGES);
    latent_seen *s_seen = (latent_seen *)(t.s_scratch + LATENT_SEEN(LATENT_STAGES));
    float *s_most = (float *)(t.s_scratch + LATENT_MOST(LATENT_STAGES));
    float *s_scores = (float *)(t.s_scratch + LATENT_SCORES(LATENT_STAGES));
    char *s_weights = t.s_scratch + LATENT_WEIGHTS(LATENT_STAGES);
    float *s_kept = (float *)(t.s_scratch + LATENT_KEPT(LATENT_STAGES));
    /* A chunk that sees nothing has no stage, and stores zeros; it meets the other barriers all the
     * same. */
    const int first = c.least / LATENT_UNIT,
              end = c.most < c.least ? first : c.most / LATENT_UNIT + 1; /* stages */
    constexpr int IN_PAGE = ATTEND_PAGE / LATENT_UNIT;
    int page = first < end ? latent_page(from, first / IN_PAGE) : -1;
    if (LATENT_STAGES > 1)
        latent_copy(from, page, first, t.s_scratch);
    int next = first + 1 < end ? latent_page(from, (first + 1) / IN_PAGE) : -1;
    /* all threads write the same, which the first barrier of the loop publishes */
    *(latent_source *)s_source = from;
    rt_u32 query[LATENT_STEPS][4];
    float out[R][LATENT_BLOCKS_OUT][4];
    float sum[2 * R]; /* of weights of rows 2 R warp ... */
    latent_queries(t, s, c, p.tile, p.area, query);
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int n = 0; n < LATENT_BLOCKS_OUT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[m][n][e] = 0;
#pragma unroll
    for (int i = 0; i < 2 * R; i++) {
        latent_seen seen;
        latent_sight(t, s, c, p.row + i, &seen.from, &seen.to);
        s_seen[p.row + i] = seen;
        s_most[p.row + i] = -__int_as_float(0x7f800000);
        sum[i] = 0;
    }
    int odd = 0; /* the buffer that is read */
#pragma unroll 1
    for (int stage = first; stage < end; stage++) {
        /* page, next, after: the KV pages of this stage and the two after it; -1: none. */
        const char *s_stage = t.s_scratch + odd * LATENT_STAGE_BYTES;
        if (LATENT_STAGES == 1) {
            mpk_sync(); /* all warps have read the one before */
            latent_copy(latent_take(s_source), page, stage, t.s_scratch);
        }
        ptx_copy_async_wait<0>();
        mpk_sync(); /* the stage is there, and all warps have read the one before */
        const latent_source own = latent_take(s_source);
        if (LATENT_STAGES > 1)
            latent_copy(own, next, stage + 1, t.s_scratch + (odd ^ 1) * LATENT_STAGE_BYTES);
        /* its load has this stage's products to come back */
        const int after = stage + 2 < end ? latent_page(own, (stage + 2) / IN_PAGE) : -1;
        /* The same in all threads, or the barriers below would not be met.  A page that the table
         * has not is left out, as if its positions were masked: scratch holds an older stage
         * there. */
        if (page >= 0) {
            p = latent_part_of<R>();
            float *s_area = s_scores + (p.area * LATENT_ROWS + p.tile * 16) * LATENT_SCORE_FLOATS;
#pragma unroll
            for (int i = 0; i < R; i++)
                latent_score(s_stage, query, (R > 1 ? i : p.half) * 16, p.area, s_area);
            mpk_sync(); /* scores are there */
            p = latent_part_of<R>();
            float most[2 * R]; /* the same in all lanes */
#pragma unroll
            for (int i = 0; i < 2 * R; i++) {
                const int row = p.row + i;
                most[i] =
                    latent_weigh(s_scores + row * LATENT_SCORE_FLOATS, stage * LATENT_UNIT, s.scale,
                                 s_seen + row, s_most + row, s_weights + row * LATENT_WEIGHT_BYTES,
                                 s_kept + row, &sum[i]);
            }
            __syncwarp(); /* all lanes have read the maxima before */
#pragma unroll
            for (int i = 0; i < 2 * R; i++)
                s_most[p.row + i] = most[i];
            mpk_sync(); /* weights are there */
            p = latent_part_of<R>();
            latent_add<R>(s_stage, s_weights, s_kept, p.unit, out);
        }
        page = next;
        next = after;
        odd = LATENT_STAGES - 1 - odd;
    }
    ptx_copy_async_wait<0>(); /* of an empty group after the last stage */
    mpk_sync();               /* s_kept has been read, and stages give way to the next chunk's */
    p = latent_part_of<R>();
#pragma unroll
    for (int i = 0; i < 2 * R; i++)
        latent_end(t, s, c, p.row + i, s_most[p.row + i], sum[i], s_kept + p.row + i);
    mpk_sync();
#pragma unroll
    for (int m = 0; m < R; m++)
        latent_store(t, s, c, m, p.unit, s_kept + 16 * m, out[m]);
}

/* Up to 16 rows, or up to 32: a chunk of one token of 16 heads would otherwise multiply as many
 * rows of zeros. */
MPK_FN void latent_run_rows(const mpk_task &t, const attend_shape &s, const latent_chunk &c)
{
    if ((c.last - c.first) * c.n_heads <= 16)
        latent_run<1>(t, s, c);
    else
        latent_run<2>(t, s, c);
}

/* The most heads of a chunk from head c->head on, all of one KV head and before `end`. */
MPK_FN void latent_take_heads(const attend_shape &s, int end, latent_chunk *c)
{
    const int group = s.heads / s.kv_heads;
    c->kv_head = c->head / group;
    /* 128 heads of a token (DeepSeek-V3) are four chunks, each of which copies the positions to
     * scratch again. */
    const int last = (c->kv_head + 1) * group < end ? (c->kv_head + 1) * group : end;
    c->n_heads = last - c->head < LATENT_ROWS ? last - c->head : LATENT_ROWS;
}

/* attention: the task's box is tokens (axis 0) by columns (axis 1, whole query heads).  It is
 * divided into runs of tokens of one slot, by heads, into chunks.  With fewer heads than
 * LATENT_ROWS a chunk has several tokens, and reads a position once for all of them. */
MPK_FN void attention_latent(const mpk_task &t, const attend_shape &s)
{
    const int end = (int)t.hi0, heads_end = (int)t.e->hi[1] / LATENT_SIZE;
    latent_chunk c;
    c.place = -1;
    for (int first = (int)t.e->lo[0]; first < end;) {
        const int run_end = first + attend_run(t, first, end);
        c.slot = mpk_at<const int>(t, ATTEND_SLOTS)[first];
        for (c.head = (int)t.e->lo[1] / LATENT_SIZE; c.head < heads_end; c.head += c.n_heads) {
            latent_take_heads(s, heads_end, &c);
            const int tokens = LATENT_ROWS / c.n_heads;
            for (c.first = first; c.first < run_end; c.first += tokens) {
                c.last = c.first + tokens < run_end ? c.first + tokens : run_end;
                latent_find(t, s, &c);
                latent_run_rows(t, s, c);
            }
        }
        first = run_end;
    }
}

/* attention_parts: the box is tokens by places by columns.  A place without a part has lse -inf,
 * and what stands in its row of `part` is not written: fold_rows does not read it.  One token a
 * chunk, since each is cut by its own length (op/context.h); its bits then do not depend on its
 * neighbours. */
MPK_FN void attention_latent_parts(const mpk_task &t, const attend_shape &s)
{
    const int room = mpk_caches[s.cache].slot_pages * ATTEND_PAGE, end = (int)t.hi0,
              head = (int)t.e->lo[2] / LATENT_SIZE, heads_end = (int)t.e->hi[2] / LATENT_SIZE;
    latent_chunk c;
    for (c.first = (int)t.e->lo[0]; c.first < end; c.first++) {
        const int position = mpk_at<const int>(t, ATTEND_POSITIONS)[c.first];
        c.last = c.first + 1;
        c.slot = mpk_at<const int>(t, ATTEND_SLOTS)[c.first];
        const bool there = (rt_u32)c.slot < (rt_u32)mpk_caches[s.cache].slots;
        const int from = attend_from(s, position), to = position < room ? position : room - 1;
        const int blocks = there ? context_blocks(from, to) : 0, parts = context_parts(blocks);
        for (c.place = (int)t.e->lo[1]; c.place < (int)t.e->hi[1]; c.place++) {
            /* Part i is the first whose place is this one or a later one; it is this place's only
             * if the next place has another first. */
            const int i = context_from(parts, c.place),
                      block = from / CONTEXT_BLOCK + context_begin(blocks, parts, i),
                      after = from / CONTEXT_BLOCK + context_begin(blocks, parts, i + 1);
            const bool filled = i < context_from(parts, c.place + 1);
            c.least = block * CONTEXT_BLOCK > from ? block * CONTEXT_BLOCK : from;
            /* The last part ends where the token does, in the middle of a block. */
            c.most = after * CONTEXT_BLOCK <= to ? after * CONTEXT_BLOCK - 1 : to;
            /* The second is a token without a context: padding, or a slot that the cache has not,
             * whose `parts` is 1 of 0 blocks. */
            if (!filled || c.most < c.least) {
                for (int h = head + mpk_thread(); h < heads_end; h += MPK_THREADS)
                    mpk_at<float>(
                        t, LATENT_LSE)[((rt_u64)c.first * CONTEXT_PARTS + c.place) * s.heads + h] =
                        -__int_as_float(0x7f800000);
                continue;
            }
            for (c.head = head; c.head < heads_end; c.head += c.n_heads) {
                latent_take_heads(s, heads_end, &c);
                latent_run_rows(t, s, c);
            }
        }
    }
}

#endif
