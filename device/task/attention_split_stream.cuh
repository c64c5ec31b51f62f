/* attention_split_stream.cuh - attention of a few tokens over bf16 pages that stream through the
 * page ring: the body, the tokens of the step, the caches (attention_split_heads.cuh: rows of qkv;
 * attention_split_pages.cuh: the pages).
 *
 * The operator attention_split: see src/op/attention_split.c for what belongs to which split.  One
 * task is some splits of some KV heads; the query heads of a KV head (at most 8) are the rows of
 * one tensor-core operand.
 *
 * A piece is what one split does of one token for one KV head.  A team of warps does it: of few
 * tokens all eight; of more, one of two teams of four, which take pieces in turn (team_of in
 * gen/body_attention_split_stream.c).  With many streams most pieces are a page or two, so a piece
 * costs some 2,000 instructions of each warp, one after the other, whatever its pages hold; two
 * teams overlap these.
 *
 * A warp takes 16 positions of a page at a time.  Keys and values lie in fragment order
 * (tile/kv.cuh), so that the products' operands are single shared loads and the scores of q k^T
 * are already the operand of p v.  Tokens of the step itself come from qkv, one warp a query head,
 * in f32.  The partial results of the warps meet in shared memory and are folded in the order of
 * warps: the same bits on every run.  A token's key and value go into the caches with the piece
 * that holds the end of its context, of few tokens after the results have gone out, unless this is
 * the worker's last task.
 *
 * With `own` a token has the same bits whatever else of its slot is in the step (drafts that stand
 * are tokens like others): only the token itself is taken in f32.  Earlier ones of the step belong
 * to the pages: each warp writes those of its 16 positions into the page in the ring, where the
 * cache would have them (attention_patch), before it reads that.
 *
 * Two barriers of the team divide a piece: between attention_prepare and the products (queries,
 * and keys and values of the step, are in scratch), and between these and the fold (all partials
 * are there).  A third is not needed: what the next piece prepares (QUERY, KEY, VALUE) was read
 * before the second barrier, and the partials that the fold reads are written again only after the
 * next piece's first.
 *
 * Lane 4 g + c of a warp: of scores row (query head) g and positions 2c, 2c + 1 of each 8; of
 * results dims g and heads 2c, 2c + 1, for v^T p^T is transposed.
 */
#ifndef TASK_ATTENTION_SPLIT_STREAM_CUH
#define TASK_ATTENTION_SPLIT_STREAM_CUH

#include "task/attention_split_heads.cuh"
#include "task/attention_split_pages.cuh"
#include "tile/inverse.cuh"

/* ---- the tokens of the step ---- */

/* What a query head has summed up of the tokens of the step, relative to exp2(most).  A lane has
 * dims 2 lane and + 1 of each 64. */
template <int K> struct attention_alone {
    enum { WORDS = (K + 63) / 64 }; /* of a lane, of two dims */
    float most, sum, query[2 * WORDS], out[2 * WORDS];
};

/* Has the lane word i of a head? */
template <int K> MPK_FN bool attention_has_word(int i)
{
    return K % 64 == 0 || mpk_thread() % 32 + 32 * i < K / 2;
}

/* Nothing summed up yet.  query: the head's row in scratch. */
template <int K> MPK_FN void attention_begin_alone(const char *query, attention_alone<K> *a)
{
    const int lane = mpk_thread() % 32;
    a->most = -__int_as_float(0x7f800000);
    a->sum = 0;
#pragma unroll
    for (int i = 0; i < attention_alone<K>::WORDS; i++) {
        const rt_u32 q =
            attention_has_word<K>(i) ? *(const rt_u32 *)(query + (lane + 32 * i) * 4) : 0;
        a->query[2 * i] = ptx_low_bf16(q);
        a->query[2 * i + 1] = ptx_high_bf16(q);
        a->out[2 * i] = a->out[2 * i + 1] = 0;
    }
}

/* One token more: its key and value, rows of scratch.  Scores are the same in all lanes. */
template <int K>
MPK_FN void attention_add_alone(const attention_shape &s, const char *key, const char *value,
                                attention_alone<K> *a)
{
    const int lane = mpk_thread() % 32;
    float score = 0; /* a lane's dims, then all */
#pragma unroll
    for (int i = 0; i < attention_alone<K>::WORDS; i++) {
        if (!attention_has_word<K>(i))
            continue;
        const rt_u32 v = *(const rt_u32 *)(key + (lane + 32 * i) * 4);
        score = fmaf(a->query[2 * i], ptx_low_bf16(v),
                     fmaf(a->query[2 * i + 1], ptx_high_bf16(v), score));
    }
#pragma unroll
    for (int d = 16; d; d /= 2)
        score += __shfl_xor_sync(0xffffffffu, score, d);
    score = attention_score_of(s, score);
    const float next = fmaxf(a->most, score), correction = ptx_exp2(a->most - next),
                p = ptx_exp2(score - next);
    a->sum = a->sum * correction + p; /* relative to the new largest score */
    a->most = next;
#pragma unroll
    for (int i = 0; i < attention_alone<K>::WORDS; i++) {
        if (!attention_has_word<K>(i))
            continue;
        const rt_u32 v = *(const rt_u32 *)(value + (lane + 32 * i) * 4);
        a->out[2 * i] = a->out[2 * i] * correction + p * ptx_low_bf16(v);
        a->out[2 * i + 1] = a->out[2 * i + 1] * correction + p * ptx_high_bf16(v);
    }
}

/* Into scratch, as partial TEAM of query head `row`. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_put_alone(char *s_scratch, int row, const attention_alone<K> &a)
{
    typedef attention_scratch<K, GROUP, TOKENS, TEAM> at;
    const int lane = mpk_thread() % 32;
    if (lane == 0) {
        ((float *)(s_scratch + at::MOST))[TEAM * 8 + row] = a.most;
        ((float *)(s_scratch + at::SUM))[TEAM * 8 + row] = a.sum;
    }
#pragma unroll
    for (int i = 0; i < attention_alone<K>::WORDS; i++)
        if (attention_has_word<K>(i))
            *(float2 *)(s_scratch + at::OUT +
                        ((TEAM * GROUP + row) * K + 2 * (lane + 32 * i)) * 4) =
                make_float2(a.out[2 * i], a.out[2 * i + 1]);
}

/* The n tokens of the step, in f32, newest first: the last partial.  Query head 0 by the team's
 * last warp, and so on: of a context of one page the first warps have the page.  Scratch holds
 * at::ROWS tokens at a time; where there are more, the team brings the others as it goes.  Warps
 * without a query head (GROUP < TEAM) bring rows alone. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_step(const mpk_task &t, const attention_shape &s, int token, int head, int n,
                           int from)
{
    typedef attention_scratch<K, GROUP, TOKENS, TEAM> at;
    constexpr int EACH = (GROUP + TEAM - 1) / TEAM; /* query heads of a warp */
    constexpr bool MORE = TEAM < MPK_WARPS;         /* may bring rows */
    char *s_scratch = attention_scratch_of<K, GROUP, TOKENS, TEAM>(t);
    const int first = TEAM - 1 - attention_warp<TEAM>(); /* query head */
    attention_alone<K> a[EACH];
    if (!MORE && first >= GROUP)
        return;
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (first + e * TEAM < GROUP)
            attention_begin_alone<K>(s_scratch + at::QUERY + (first + e * TEAM) * at::ROW, &a[e]);
    for (int done = 0;;) {
        const int rows = MORE && n - done > at::ROWS ? at::ROWS : n - done;
#pragma unroll 1
        for (int i = 0; i < rows; i++) {
            const int back = done + i;
            if (back && s.window && mpk_at<const int>(t, AT_POSITIONS)[token - back] < from)
                continue;
#pragma unroll
            for (int e = 0; e < EACH; e++)
                if (first + e * TEAM < GROUP)
                    attention_add_alone<K>(s, s_scratch + at::KEY + i * at::ROW,
                                           s_scratch + at::VALUE + i * at::ROW, &a[e]);
        }
        done += rows;
        if (!MORE || done >= n)
            break;
        attention_meet<TEAM>(); /* all have read the rows before */
        attention_prepare_more<K, GROUP, TOKENS, TEAM>(t, s, token, head, done,
                                                       n - done > at::ROWS ? at::ROWS : n - done);
        attention_meet<TEAM>();
    }
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (first + e * TEAM < GROUP)
            attention_put_alone<K, GROUP, TOKENS, TEAM>(s_scratch, first + e * TEAM, a[e]);
}

/* A warp's partial of the pages into scratch; what was summed by lanes is added up here.  Partials
 * are [warp][query head][dim], so the fold reads neighbouring dims of each. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_put(const mpk_task &t, attention_state<K> *a)
{
    typedef attention_scratch<K, GROUP, TOKENS, TEAM> at;
    char *s_scratch = attention_scratch_of<K, GROUP, TOKENS, TEAM>(t);
    const int warp = attention_warp<TEAM>(), lane = mpk_thread() % 32, g = lane / 4, c = lane % 4;
    a->sum += __shfl_xor_sync(0xffffffffu, a->sum, 1); /* the four lanes of row g */
    a->sum += __shfl_xor_sync(0xffffffffu, a->sum, 2);
    if (c == 0 && g < GROUP) {
        ((float *)(s_scratch + at::MOST))[warp * 8 + g] = a->most;
        ((float *)(s_scratch + at::SUM))[warp * 8 + g] = a->sum;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float *to = (float *)(s_scratch + at::OUT) + (warp * GROUP + 2 * c + e) * K + g;
        if (2 * c + e < GROUP)
#pragma unroll
            for (int n = 0; n < K / 16; n++) {
                to[16 * n] = a->out[n][e];
                to[16 * n + 8] = a->out[n][2 + e];
            }
    }
}

/* Fold the partials in order and store the piece: the result as bf16, and the natural logarithm of
 * its sum of weights, by which the splits are folded later.  A thread has some dims of a head and
 * finds the head's largest score itself, so no barrier is needed for it.  pairs: there were pages
 * for warps 4 to 7, if all are one team; if not, what these have left in scratch is of an earlier
 * piece, so it is skipped, not weighed by 0.
 */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_fold_partials(const mpk_task &t, const attention_shape &s, int token,
                                    int split, int head, bool pairs)
{
    typedef attention_scratch<K, GROUP, TOKENS, TEAM> at;
    const char *s_scratch = attention_scratch_of<K, GROUP, TOKENS, TEAM>(t);
    const float *s_most = (const float *)(s_scratch + at::MOST),
                *s_sum = (const float *)(s_scratch + at::SUM);
    const float *s_out = (const float *)(s_scratch + at::OUT);
    const float none = -__int_as_float(0x7f800000);
    char *part = mpk_at<char>(t, s.part) +
                 ((rt_u64)(token * s.splits + split) * s.heads + head * GROUP) * K * 2;
    float *lse =
        mpk_at<float>(t, s.part + 1) + (rt_u64)(token * s.splits + split) * s.heads + head * GROUP;
    /* of two teams' threads each has twice as many, so that it goes round half as often */
    constexpr int DIMS = TEAM < MPK_WARPS ? 4 : 2;
#pragma unroll 1
    for (int i = attention_thread<TEAM>(); i < GROUP * K / DIMS; i += 32 * TEAM) {
        int row = DIMS * i / K, dim = DIMS * i % K; /* query head of the group; its dims */
        float most = none, sum = 0, out[DIMS];      /* over the partials */
#pragma unroll
        for (int d = 0; d < DIMS; d++)
            out[d] = 0;
#pragma unroll
        for (int w = 0; w <= TEAM; w++)
            most = fmaxf(most, s_most[w * 8 + row]);
        float zero = most == none ? 0 : most; /* -inf less -inf would be NaN */
#pragma unroll
        for (int w = 0; w <= TEAM; w++) {
            if (TEAM == MPK_WARPS && w >= 4 && w < 8 && !pairs)
                continue;
            float f = ptx_exp2(s_most[w * 8 + row] - zero); /* factor of the partial */
            sum += f * s_sum[w * 8 + row];                  /* partials in the order of warps */
#pragma unroll
            for (int d = 0; d < DIMS; d += 2) {
                float2 v = *(const float2 *)(s_out + (w * GROUP + row) * K + dim + d);
                out[d] += f * v.x;
                out[d + 1] += f * v.y;
            }
        }
        float scale = sum > 0 ? mpk_inverse(sum) : 0; /* nothing was seen: zeros */
#pragma unroll
        for (int d = 0; d < DIMS; d += 2)
            ptx_store_word(part + (row * K + dim + d) * 2,
                           ptx_pack_bf16(out[d] * scale, out[d + 1] * scale));
        if (dim == 0)
            ptx_store_word(lse + row,
                           __float_as_uint(sum > 0 ? (most + ptx_log2(sum)) * 0.69314718f : none));
    }
}

/* ---- the caches ---- */

/* Those of `tokens`, a bit each, that are number `warp` and + 8: everything is asked for before any
 * of it is used.  Of a warp with one token both rounds are that token, so that the loads stand
 * without branches; the second has page -1 and stores nothing. For graphs of at most 16 tokens,
 * hence two for each of the eight warps. */
template <int K>
MPK_FN void attention_fill_cache(const mpk_task &t, const attention_shape &s,
                                 const attention_plan *plan, int head, rt_u32 tokens)
{
    const int warp = mpk_thread() / 32;
    attention_row<K> key[2], value[2];      /* of the warp's two tokens */
    attention_rotation<K> rotation[2] = {}; /* of the two tokens' keys */
    int page[2], position[2];
    const rt_u32 mine = tokens >> warp & (1u | 1u << MPK_WARPS);
    if (!mine) /* the warp has no token */
        return;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const bool there = mine >> u * MPK_WARPS & 1; /* has the warp a token u? */
        const int known = warp + (there ? u : !u) * MPK_WARPS;
        position[u] = __shfl_sync(0xffffffffu, plan->position, known);
        const int slot = __shfl_sync(0xffffffffu, plan->slot, known);
        page[u] = there && position[u] >= 0
                      ? attention_page(t.e, s, slot, position[u] / ATTENTION_PAGE)
                      : -1;
        key[u] = attention_ask_row<K>(attention_row_at<K>(t, s, known, s.heads + head));
        value[u] =
            attention_ask_row<K>(attention_row_at<K>(t, s, known, s.heads + s.kv_heads + head));
        attention_ask_rotation<K>(t.e, s, known, AT_K_NORM, &rotation[u]);
    }
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const int known = warp + (mine >> u * MPK_WARPS & 1 ? u : !u) * MPK_WARPS;
        attention_await_row<K>(t, attention_row_at<K>(t, s, known, s.heads + head), &key[u]);
        attention_await_row<K>(t, attention_row_at<K>(t, s, known, s.heads + s.kv_heads + head),
                               &value[u]);
        attention_rotate_row<K>(s, rotation[u], &key[u]);
        if (page[u] < 0)
            continue;
        const int place = position[u] % ATTENTION_PAGE; /* in the page */
        attention_store_key<K>(t, s, page[u], place, head, key[u]);
        attention_store_value<K>(t, s, page[u], place, head, value[u]);
    }
}

/* ---- the body ---- */

/* Tokens of the step that a piece of token `token` needs: those of its slot up to itself, if the
 * piece has the end of the context or, with `own`, a position of the step; else none. */
MPK_FN int attention_of_step(const attention_piece *k, const attention_shape &s, int token)
{
    const int back = token - k->first; /* the step begins with position k->position - back */
    if (s.own && k->position - back < k->hi * s.unit)
        return back + 1;
    return k->hi == k->units ? back + 1 : 0;
}

/* A split of a KV head: units lo <= u < hi of token lot + t in lane t.  A warp's lanes hold all of
 * a lot's, and hand them out by shuffles (attention_find). */
struct attention_work {
    int split, head, lo, hi; /* head: of the KV heads */
};

/* The piece of token `token`, by its team; then *k is that of token `next`, if that is not -1, and
 * what it begins with has been asked for: one wait less for each piece but the first.  pass: pages
 * of the pieces of other teams that come before its next one.
 *
 *   prepare   rows from qkv to scratch                   meeting
 *   pages     the ring's, a partial a warp
 *   ask       the next piece's rows, under way during
 *   step      tokens of the step, the last partial
 *   put       partials to scratch                        meeting
 *   fold      partials to part and lse */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_split_piece(const mpk_task &t, const attention_shape &s,
                                  const attention_plan *plan, const attention_work &w, int token,
                                  int next, int pass, attention_piece *k,
                                  attention_ahead<K, GROUP, TEAM> *ahead, mpk_ring *ring)
{
    const int n = attention_of_step(k, s, token), from = k->from;
    /* of these in f32: with `own` the token alone, and by the piece that ends with it */
    const int n_alone = !s.own ? n : k->hi == k->units ? 1 : 0;
    const bool pairs = k->last_page - k->first_page > 1; /* warps 4 to 7 have partials */
    attention_state<K> a;
    a.most = -__int_as_float(0x7f800000);
    a.sum = 0; /* nothing seen yet */
#pragma unroll
    for (int n = 0; n < K / 16; n++)
        a.out[n][0] = a.out[n][1] = a.out[n][2] = a.out[n][3] = 0;
    attention_prepare<K, GROUP, TOKENS, TEAM>(t, s, k, token, w.head, n, ahead);
    attention_meet<TEAM>();
    attention_pages<K, GROUP, TOKENS, TEAM>(t, s, k, n, ring, &a);
    /* Before the fold, so that the loader gets them back early. */
    if (TEAM < MPK_WARPS)
        attention_pass<K>(pass, ring);
    if (K > 128) /* set anew, so that the registers are not kept through the pages */
        *ahead = {};
    /* *k is not needed any more (n_alone and from have been kept): it becomes the next piece's,
     * whose loads are under way during the tokens of the step and the fold. */
    if (next >= 0) {
        attention_find(plan, s, w.lo, w.hi, next - plan->lot, k);
        attention_ask_rotations<K, GROUP, TEAM>(t, s, next, ahead);
        attention_ask_ahead<K, GROUP, TOKENS, TEAM>(t, s, k, next, w.head,
                                                    attention_of_step(k, s, next), ahead);
    }
    attention_step<K, GROUP, TOKENS, TEAM>(t, s, token, w.head, n_alone, from);
    attention_put<K, GROUP, TOKENS, TEAM>(t, &a);
    attention_meet<TEAM>();
    attention_fold_partials<K, GROUP, TOKENS, TEAM>(t, s, token, w.split, w.head, pairs);
}

/* Of a few tokens those whose last units the task does. The task with a token's last unit is the
 * one that has its key and value in its hands, and the only one: so each place of the cache has one
 * writer. */
template <int K, int GROUP>
MPK_FN void attention_fill_caches(const mpk_task &t, const attention_shape &s,
                                  const attention_plan *plan)
{
#pragma unroll 1
    for (int split = (int)t.e->lo[1]; split < (int)t.e->hi[1]; split++) {
        int lo, hi; /* units of this lane's token */
        attention_share(plan, s, split, &lo, &hi);
        const rt_u32 tokens = __ballot_sync(0xffffffffu, lo < hi && hi == plan->units);
        const int first = (int)t.e->lo[2] / (GROUP * K), last = (int)t.e->hi[2] / (GROUP * K);
#pragma unroll 1
        for (int head = first; tokens && head < last; head++)
            attention_fill_cache<K>(t, s, plan, head, tokens);
    }
}

/* Of the lot's tokens that this split does nothing of: -infinity as the logarithm of the sum, which
 * gives it no weight; its row of results is not written, and not read. */
template <int GROUP>
MPK_FN void attention_put_none(const mpk_task &t, const attention_shape &s, int lot, int live,
                               rt_u32 tokens, int split, int head)
{
    const int thread = mpk_thread(), token = lot + thread % 32, row = thread / 32;
    if (row < GROUP && token < live && !(tokens >> thread % 32 & 1))
        ptx_store_word(mpk_at<float>(t, s.part + 1) + (token * s.splits + split) * s.heads +
                           head * GROUP + row,
                       __float_as_uint(-__int_as_float(0x7f800000)));
}

/* All lanes: leave out the first n bits of *left; returns how many pages their pieces have.  pages:
 * of this lane's token. */
MPK_FN int attention_skip(rt_u32 *left, rt_u32 n, int pages)
{
    int sum = 0;
    for (; n && *left; n--) {
        sum += __shfl_sync(0xffffffffu, pages, __ffs((int)*left) - 1);
        *left &= *left - 1;
    }
    return sum;
}

/* A split of a KV head, of the tokens of a lot.  Teams take pieces in turn; *pieces counts all of
 * them.  *waited: for the task's event; what can be asked for ahead, is.  Order matters
 * to `waited`: before the event come the plan, the piece and the rotations, which no task of this
 * step writes; after it qkv. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_split_lot(const mpk_task &t, const attention_shape &s,
                                const attention_plan *plan, int live, int split, int head,
                                rt_u32 *pieces, bool *waited, mpk_ring *ring)
{
    constexpr int TEAMS = attention_teams<TEAM>::N;
    attention_work w = {split, head, 0, 0}; /* units are filled in next */
    attention_piece k = {};                 /* of the token that is worked on */
    /* what is set on some ways only keeps its registers for ever */
    attention_ahead<K, GROUP, TEAM> ahead = {};
    const rt_u32 tokens = attention_share(plan, s, split, &w.lo, &w.hi);
    /* bits of the lot's tokens of which the split has a piece that is to be done yet */
    rt_u32 left = tokens;
    int pages = 0; /* of this lane's token */
    if (TEAMS > 1)
        pages = attention_count_pages(plan, s, w.lo, w.hi);
    /* the first pieces are other teams' */
    const int before = attention_skip(&left, (attention_team<TEAM>() - *pieces) % TEAMS, pages);
    const int lot = plan->lot, first = lot + __ffs((int)left) - 1;
    if (left) {
        attention_find(plan, s, w.lo, w.hi, first - lot, &k);
        attention_ask_rotations<K, GROUP, TEAM>(t, s, first, &ahead);
    }
    if (!*waited)
        mpk_wait(t);
    *waited = true;
    if (left)
        attention_ask_ahead<K, GROUP, TOKENS, TEAM>(t, s, &k, first, head,
                                                    attention_of_step(&k, s, first), &ahead);
    attention_put_none<GROUP>(t, s, lot, live, tokens, split, head);
    if (TEAMS > 1)
        attention_pass<K>(before, ring);
    *pieces += (rt_u32)__popc(tokens);
#pragma unroll 1
    while (left) {
        const int token = lot + __ffs((int)left) - 1;
        left &= left - 1;
        const int pass = attention_skip(&left, TEAMS - 1, pages);
        attention_split_piece<K, GROUP, TOKENS, TEAM>(
            t, s, plan, w, token, left ? lot + __ffs((int)left) - 1 : -1, pass, &k, &ahead, ring);
    }
}

/* The body.  Lots of 32 tokens, KV heads, splits: in this order the loader has asked for the pages,
 * so neither may change alone.  The position in the ring is kept in a copy, in registers. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_split_stream(const mpk_task &t, const attention_shape &s)
{
    const int live = (int)mpk_smaller(t.live[RT_TOKENS], t.e->hi[0]);
    mpk_ring ring = *t.ring; /* in registers for the life of the task */
    attention_plan plan;     /* of the lot, a token a lane */
    rt_u32 pieces = 0;       /* so far */
    attention_plan_step<TOKENS>(t.e, live, s, &plan);
    bool waited = !t.e->quiet; /* for the event, by all threads alike */
    if (waited)                /* the angles are of this step */
        mpk_wait(t);
    do
#pragma unroll 1
        for (int head = (int)t.e->lo[2] / (GROUP * K); head < (int)t.e->hi[2] / (GROUP * K); head++)
#pragma unroll 1
            for (int split = (int)t.e->lo[1]; split < (int)t.e->hi[1]; split++)
                attention_split_lot<K, GROUP, TOKENS, TEAM>(t, s, &plan, live, split, head, &pieces,
                                                            &waited, &ring);
    while (attention_next_lot<TOKENS>(t.e, live, s, &plan));
    if (!waited)
        mpk_wait(t);
    *t.ring = ring;
    if (attention_puts_as_it_goes(TOKENS)) {
        mpk_trigger(t);
        return;
    }
    /* No task reads these positions in this step, and the worker's next trigger releases the writes
     * too.  But what is not carried gives its memory away once the event has come, and filling
     * reads qkv. */
    const bool late = t.e->is_last || !mpk_carries(t, AT_QKV);
    if (!late)
        mpk_trigger(t);
    attention_fill_caches<K, GROUP>(t, s, &plan);
    if (late)
        mpk_trigger(t);
}

#endif
