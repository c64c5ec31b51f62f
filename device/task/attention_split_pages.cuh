/* attention_split_pages.cuh - attention of a few tokens over the pages of a piece: for
 * attention_split_stream.cuh alone.
 *
 * Input: queries in scratch, pages in the ring, with `own` keys and values of the step in scratch.
 * Output: what each warp has summed up of its positions, in registers.  Of a page each warp of a
 * half of the worker takes 16 positions.  If all warps are one team they work at a pair of pages
 * at a time, a half each; of two teams each has its own piece.  Every warp takes and releases
 * every page, those of the other team's pieces too.
 *
 * Lane 4 g + c of a warp: of scores row (query head) g and positions 2c, 2c + 1 of each 8; of
 * results dims g and heads 2c, 2c + 1, for v^T p^T is transposed.
 */
#ifndef TASK_ATTENTION_SPLIT_PAGES_CUH
#define TASK_ATTENTION_SPLIT_PAGES_CUH

#include "task/attention_split_work.cuh"

/* What a warp has summed up of its positions so far, relative to exp2(most). */
template <int K> struct attention_state {
    float most, sum; /* of row g, this warp's tokens; scores in powers of 2 */
    /* dims 16 n + g (0, 1) and + 8 (2, 3) of heads 2c (0, 2) and 2c + 1 (1, 3) */
    float out[K / 16][4];
};

/* The score of a query and a key, in powers of 2; product: of the two.  cap is a constant. */
MPK_FN float attention_score_of(const attention_shape &s, float product)
{
    const float score = product * s.scale;
    return s.cap != 0 ? mpk_capped(score, s.cap, s.cap_rate) : score;
}

/* 16 tokens of one page: s_key, s_value the page's first bytes, `base` the position of the page's
 * first token.  Rows 8 to 15 of the query operand hold the other half of each block's dims, so four
 * registers serve both products of a block: a score is the first's upper row plus the second's
 * lower one. Positions that the piece does not see (beyond `cached`, before the window) get weight
 * 0 by a score of -inf.  If all 16 lie beyond `cached`, the loader has not brought them. */
template <int K>
MPK_FN void attention_tokens(const rt_u32 (*query)[4], const char *s_key, const char *s_value,
                             int base, int quarter, const attention_piece *k,
                             const attention_shape &s, attention_state<K> *a)
{
    const int lane = mpk_thread() % 32, g = lane / 4, c = lane % 4;
    if (base + quarter * 16 >= k->cached)
        return;
    /* The lane's 16 bytes of a block of keys: position g, dims 8 c ... + 7 (tile/kv.cuh).  Eight
     * lanes read 128 bytes in a row, all banks. */
    const int lane_at = g * 64 + (c ^ g / 2) * 16;
    const float none = -__int_as_float(0x7f800000); /* the score of what is not seen */
    float score[2][2][4], p[2][2], most = none;     /* [8 positions][product][fragment] */
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            score[i][0][e] = score[i][1][e] = 0;
#pragma unroll
    for (int d = 0; d < K / 32; d++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            /* Words 0 and 1 of the query meet 0 and 1 of the key in the upper rows of the first
             * product, words 2 and 3 meet in the lower rows of the second.  The other halves of
             * both products are garbage, which nobody reads. */
            mpk_words w =
                *(const mpk_words *)(s_key + ((2 * quarter + i) * (K / 32) + d) * 512 + lane_at);
            ptx_multiply_bf16(score[i][0], query[d][0], query[d][1], query[d][2], query[d][3], w.x,
                              w.y);
            ptx_multiply_bf16(score[i][1], query[d][0], query[d][1], query[d][2], query[d][3], w.z,
                              w.w);
        }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int position = base + quarter * 16 + 8 * i + 2 * c + e; /* of score p[i][e] */
            bool there = position < k->cached && position >= k->from;
            p[i][e] = there ? attention_score_of(s, score[i][0][e] + score[i][1][2 + e]) : none;
            most = fmaxf(most, p[i][e]);
        }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    most = fmaxf(a->most, most); /* of the row, before and now */
    /* While nothing has been seen, -inf less -inf would be NaN; 2^(-inf - 0) is the 0 that is
     * meant. */
    float zero = most == none ? 0 : most, correction = ptx_exp2(a->most - zero);
    a->most = most;
    a->sum *= correction; /* what was summed is brought to the new largest score */
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            p[i][e] = ptx_exp2(p[i][e] - zero);
            a->sum += p[i][e]; /* this lane's positions; attention_put adds the four lanes */
        }
    /* The scores of k^T are the operand of v^T p^T as they are; only what was summed before belongs
     * to other lanes. */
    rt_u32 first = ptx_pack_bf16(p[0][0], p[0][1]), second = ptx_pack_bf16(p[1][0], p[1][1]);
    float even = __shfl_sync(0xffffffffu, correction, 8 * c),
          odd = __shfl_sync(0xffffffffu, correction, 8 * c + 4);
    /* A lane's results are of heads 2c and 2c + 1, which the lanes 4 g of g = 2c and 2c + 1 have
     * scored: their corrections have come by the two shuffles.  v and w are dims 16 n + g and + 8,
     * as the rows of the left operand. */
#pragma unroll
    for (int n = 0; n < K / 16; n++) {
        const char *from = s_value + (quarter * (K / 8) + 2 * n) * 256 + kv_values_of_lane(lane);
        uint2 v = *(const uint2 *)from, w = *(const uint2 *)(from + 256);
        a->out[n][0] *= even;
        a->out[n][1] *= odd;
        a->out[n][2] *= even;
        a->out[n][3] *= odd;
        ptx_multiply_bf16(a->out[n], v.x, w.x, v.y, w.y, first, second);
    }
}

/* With `own`: of the 16 positions of a page that this warp works on, those of earlier tokens of the
 * step.  Their keys and values go from scratch into the page, in the cache's order: what the loader
 * brought there is of an earlier text, or is being stored by another task.  base: the page's first
 * position; n: tokens of the step in scratch, the newest, which is the piece's own, first.
 *
 * No other warp reads these bytes.  The fence: the next copy into the page is another proxy's, and
 * comes after these stores. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_patch(const mpk_task &t, const attention_piece *k, int n, const char *s_key,
                            const char *s_value, int base)
{
    typedef attention_scratch<K, GROUP, TOKENS, TEAM> at;
    const int lane = mpk_thread() % 32, first = mpk_thread() / 32 % 4 * 16;
    bool patched = false;
#pragma unroll 1
    for (int back = 1; back < n; back++) {
        const int place = k->position - back - base; /* in the page, if it is in it */
        /* The second test is for -15 ... -1, which a division rounds to 0. */
        if (place / 16 * 16 != first || place < 0)
            continue;
        const char *from = attention_scratch_of<K, GROUP, TOKENS, TEAM>(t) + back * at::ROW;
#pragma unroll
        for (int i = 0; i < (K + 63) / 64; i++) {
            const int dim = 2 * (lane + 32 * i); /* and the next one */
            if (K % 64 && dim >= K)
                continue;
            const rt_u32 value = *(const rt_u32 *)(from + at::VALUE + dim * 2);
            rt_u16 *to = (rt_u16 *)s_value + kv_value_at(place, dim, ATTENTION_PAGE, K, 2);
            *(rt_u32 *)((rt_u16 *)s_key + kv_key_at(place, dim, ATTENTION_PAGE, K, 2)) =
                *(const rt_u32 *)(from + at::KEY + dim * 2);
            to[0] = (rt_u16)value; /* dims are 16 elements apart */
            to[16] = (rt_u16)(value >> 16);
        }
        patched = true;
    }
    if (patched)
        ptx_fence_shared();
    __syncwarp();
}

/* All pages of a piece as attention_pages has them, one after the other: of two teams, and in a
 * ring that may not hold two, or one.  The warps that a page is not for let it go at once: a page
 * is empty only when all eight have arrived, so one that kept it would stop the loader.  Of a page
 * that comes in parts (attention_page_parts) each part is for some of its warps. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_pages_by_one(const mpk_task &t, const rt_u32 (*query)[4],
                                   const attention_shape &s, const attention_piece *k, int n,
                                   mpk_ring *ring, attention_state<K> *a)
{
    typedef attention_page_parts<K> parts;
    /* even pages are warps 0 to 3's, if all are one team; of a page each has some 16 positions */
    const int half = mpk_thread() / 128, first_quarter = mpk_thread() / 32 % (TEAM < 4 ? TEAM : 4);
#pragma unroll 1
    for (int p = k->first_page; p < k->last_page; p++)
#pragma unroll
        for (int i = 0; i < parts::N; i++) {
            rt_u32 first, second = 0;
            /* where the page would begin if all of it were there */
            const char *key = ring_take(ring, &first) - i * parts::BYTES,
                       *value = key + parts::BYTES;
            /* The note before the release: the loader writes it anew with the next page that lies
             * here. */
            const bool there =
                (TEAM < MPK_WARPS || (p - k->first_page) % 2 == half) && mpk_w.note[first];
            if (!parts::TOGETHER)
                value = ring_take(ring, &second) - i * parts::BYTES;
#pragma unroll 1
            for (int q = first_quarter; q < 4; q += TEAM < 4 ? TEAM : 4) {
                /* Quarter q of the positions is in part q N / 4. */
                if (!there || (parts::N > 1 && q * parts::N / 4 != i))
                    continue;
                if (s.own && n > 1)
                    attention_patch<K, GROUP, TOKENS, TEAM>(t, k, n, key, value,
                                                            p * ATTENTION_PAGE);
                attention_tokens<K>(query, key, value, p * ATTENTION_PAGE, q, k, s, a);
            }
            ring_release(first);
            if (!parts::TOGETHER)
                ring_release(second);
        }
}

/* All warps: let the `pages` pages of a piece go that is another team's.  They have to be taken,
 * not skipped: sides count pages alike only if each warp waits for every one (tile/ring.cuh). */
template <int K> MPK_FN void attention_pass(int pages, mpk_ring *ring)
{
    typedef attention_page_parts<K> parts;
    rt_u32 page;
#pragma unroll 1
    for (int i = pages * parts::N * (parts::TOGETHER ? 1 : 2); i > 0; i--) {
        ring_take(ring, &page);
        ring_release(page);
    }
}

/* All pages of a piece, in pairs: warps 0 .. 3 the first, 4 .. 7 the second.  Every warp takes and
 * releases every page, since a page counts the arrivals of all eight.  `note` says whether the
 * loader has found a page of the cache to put there; if not, its bytes are not read.  n: tokens of
 * the step in scratch. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_pages(const mpk_task &t, const attention_shape &s, const attention_piece *k,
                            int n, mpk_ring *ring, attention_state<K> *a)
{
    typedef attention_scratch<K, GROUP, TOKENS, TEAM> at;
    constexpr int BYTES = ATTENTION_PAGE * K * 2; /* of keys, and of values */
    const int thread = mpk_thread(), lane = thread % 32, g = lane / 4, c = lane % 4,
              half = thread / 128;
    const char *s_scratch = attention_scratch_of<K, GROUP, TOKENS, TEAM>(t);
    rt_u32 query[K / 32][4]; /* rows 8 to 15: the other half of each block's dims */
#pragma unroll
    for (int d = 0; d < K / 32; d++) {
        mpk_words w = {0, 0, 0, 0};
        if (g < GROUP)
            /* Rows beyond the group stay zeros: their scores are 0 and not garbage, and no one
             * stores them. */
            w = *(const mpk_words *)(s_scratch + at::QUERY + g * at::ROW + (d * 32 + c * 8) * 2);
        query[d][0] = w.x;
        query[d][1] = w.z;
        query[d][2] = w.y;
        query[d][3] = w.w;
    }
    /* pages of the ring for one of the cache: a ring that cannot hold two at once would never fill
     * the second, so it goes by single pages */
    constexpr int EACH = attention_page_parts<K>::TOGETHER ? 1 : 2;
    /* constants: one of the loops is compiled */
    if (TEAM < MPK_WARPS || attention_page_parts<K>::N > 1 || MPK_LEAST_PAGES < 2 * EACH) {
        attention_pages_by_one<K, GROUP, TOKENS, TEAM>(t, query, s, k, n, ring, a);
        return;
    }
#pragma unroll 1
    for (int p = k->first_page; p < k->last_page; p += 2) {
        const bool second = p + 1 < k->last_page;                  /* else warps 4 to 7 have none */
        const char *key, *value, *other_key = 0, *other_value = 0; /* of this half; of the other */
        rt_u32 taken[4] = {0, 0, 0, 0}, there; /* pages of the ring; is there something */
        value = (key = ring_take(ring, &taken[0])) + BYTES;
        there = mpk_w.note[taken[0]];
        if (EACH == 2)
            value = ring_take(ring, &taken[1]);
        if (second) {
            other_value = (other_key = ring_take(ring, &taken[2])) + BYTES;
            if (EACH == 2)
                other_value = ring_take(ring, &taken[3]);
        }
        if (half) {
            /* without a second page warps 4 to 7 only release */
            there = second ? mpk_w.note[taken[2]] : 0;
            key = other_key;
            value = other_value;
        }
        if (there && s.own && n > 1)
            attention_patch<K, GROUP, TOKENS, TEAM>(t, k, n, key, value,
                                                    (p + half) * ATTENTION_PAGE);
        if (there)
            attention_tokens<K>(query, key, value, (p + half) * ATTENTION_PAGE, thread / 32 % 4, k,
                                s, a);
        __syncwarp();
        if (lane == 0) {
            ptx_barrier_arrive(&mpk_w.empty[taken[0]]);
            if (EACH == 2)
                ptx_barrier_arrive(&mpk_w.empty[taken[1]]);
            if (second)
                ptx_barrier_arrive(&mpk_w.empty[taken[2]]);
            if (EACH == 2 && second)
                ptx_barrier_arrive(&mpk_w.empty[taken[3]]);
        }
    }
}

#endif
