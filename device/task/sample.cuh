/* sample.cuh - draw a token from a row of logits; the rules are those of src/op/sample.c, and so is the arithmetic:
 * weights in double, added one after the other in falling order of logits.
 *
 * Idea: candidates are taken out in blocks of at most 1024, in falling order.  A block is found by its lowest rank (key
 * of the logit, then id): histograms of one byte of the rank after the other say where to cut.  It is sorted in
 * scratch, and one thread walks it.  Peaked distributions, or a small top_k, need one block.  Cost: a few passes over
 * the row for each block.
 */
#ifndef TASK_SAMPLE_CUH
#define TASK_SAMPLE_CUH

#include "task/order.cuh"

enum { SAMPLE_BLOCK = 1024, SAMPLE_DIGITS = 256 };
enum { SAMPLE_TEMPERATURE, SAMPLE_TOP_K, SAMPLE_TOP_P, SAMPLE_MIN_P };
/* Scratch behind that of the reductions. */
enum {
    SAMPLE_RANKS = MPK_REDUCE_BYTES,                   /* rt_u64[SAMPLE_BLOCK] */
    SAMPLE_WEIGHTS = SAMPLE_RANKS + SAMPLE_BLOCK * 8,  /* double[SAMPLE_BLOCK] */
    SAMPLE_COUNTS = SAMPLE_WEIGHTS + SAMPLE_BLOCK * 8, /* rt_u32[SAMPLE_DIGITS] */
    SAMPLE_SHARED = SAMPLE_COUNTS + SAMPLE_DIGITS * 4  /* sample_shared */
};

/* What one thread tells the others. */
struct sample_shared {
    rt_u64 low;     /* a block: ranks low .. below - 1 */
    rt_u32 n, more; /* entries of the block; 1: go on with the next */
    double sum;
    rt_i64 kept;
    rt_i32 token;
};

/* A row and the block at hand. */
struct sample_row {
    const mpk_view *x;
    const char *g_x;
    rt_i64 from;
    double largest, temperature;
    rt_i64 first; /* number, in falling order, of the block's first entry; -1: no block */
    rt_u32 n;
    rt_u64 low;
};

MPK_FN sample_shared *sample_words(const mpk_task &t)
{
    return (sample_shared *)(t.s_scratch + SAMPLE_SHARED);
}

/* Falling logits, then rising ids, as falling numbers; 0: never drawn (NaN, -inf). */
MPK_FN rt_u64 sample_rank(const sample_row &r, rt_i64 id)
{
    float x = mpk_get(*r.x, r.g_x, r.from + id * r.x->stride[1]);
    return x > -MPK_INFINITY ? mpk_ranked(x, (rt_u32)id) : 0;
}
MPK_FN double sample_weight(const sample_row &r, float x)
{
    return exp(((double)x - r.largest) / r.temperature);
}

/* Count the ranks below `below` that agree with `low` above the digit at `shift`, by that digit. */
MPK_FN void sample_count(const mpk_task &t, const sample_row &r, rt_u64 low, rt_u64 below, int shift)
{
    rt_u32 *s_count = (rt_u32 *)(t.s_scratch + SAMPLE_COUNTS);
    for (int i = mpk_thread(); i < SAMPLE_DIGITS; i += MPK_THREADS)
        s_count[i] = 0;
    mpk_sync();
    rt_u64 above = shift == 56 ? 0 : low >> (shift + 8);
    for (rt_i64 id = mpk_thread(); id < r.x->dims[1]; id += MPK_THREADS) {
        rt_u64 rank = sample_rank(r, id);
        if (rank && rank < below && (shift == 56 || rank >> (shift + 8) == above))
            atomicAdd(&s_count[rank >> shift & 255], 1u);
    }
    mpk_sync();
}

/* Find the lowest rank of the next block: at most SAMPLE_BLOCK ranks are from there to `below`, and all ranks or at
 * least half a block. */
MPK_FN rt_u64 sample_cut(const mpk_task &t, const sample_row &r, rt_u64 below)
{
    const rt_u32 *s_count = (const rt_u32 *)(t.s_scratch + SAMPLE_COUNTS);
    sample_shared *s = sample_words(t);
    rt_u64 low = 0;
    rt_u32 taken = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        sample_count(t, r, low, below, shift);
        if (mpk_thread() == 0) {
            int digit = SAMPLE_DIGITS - 1;
            rt_u32 n = taken;
            while (digit >= 0 && n + s_count[digit] <= SAMPLE_BLOCK)
                n += s_count[digit--];
            /* Digits above `digit` are taken; that one holds too many, and is cut by its next digit, or left. */
            s->more = digit >= 0 && n < SAMPLE_BLOCK / 2;
            s->low = low + ((rt_u64)(s->more ? digit : digit + 1) << shift);
            s->n = n;
        }
        mpk_sync();
        low = s->low;
        taken = s->n;
        bool more = s->more;
        mpk_sync();
        if (!more)
            break;
    }
    return low;
}

/* The ranks of a block, which order.cuh sorts, the highest first. */
struct sample_ranks {
    rt_u64 *s_rank;
};
MPK_FN void order_settle(const sample_ranks &r, rt_i64 a, rt_i64 b)
{
    rt_u64 first = r.s_rank[a], second = r.s_rank[b];
    if (first < second) {
        r.s_rank[a] = second;
        r.s_rank[b] = first;
    }
}

/* The next block, or the first again: its ranks and weights. */
MPK_FN void sample_next(const mpk_task &t, sample_row *r, bool again)
{
    rt_u64 *s_rank = (rt_u64 *)(t.s_scratch + SAMPLE_RANKS);
    double *s_weight = (double *)(t.s_scratch + SAMPLE_WEIGHTS);
    sample_shared *s = sample_words(t);
    if (again && r->first == 0)
        return;
    rt_u64 below = again || r->first < 0 ? ~(rt_u64)0 : r->low;
    rt_i64 first = again || r->first < 0 ? 0 : r->first + r->n;
    mpk_sync();
    r->low = sample_cut(t, *r, below);
    if (mpk_thread() == 0)
        s->n = 0;
    mpk_sync();
    for (rt_i64 id = mpk_thread(); id < r->x->dims[1]; id += MPK_THREADS) {
        rt_u64 rank = sample_rank(*r, id);
        if (rank && rank >= r->low && rank < below) {
            rt_u32 at = atomicAdd(&s->n, 1u);
            if (at < SAMPLE_BLOCK)
                s_rank[at] = rank;
        }
    }
    mpk_sync();
    r->n = s->n < SAMPLE_BLOCK ? s->n : SAMPLE_BLOCK;
    r->first = first;
    sample_ranks ranks = {s_rank};
    order_sort(t, ranks, (rt_i64)r->n, SAMPLE_BLOCK);
    for (int i = mpk_thread(); i < (int)r->n; i += MPK_THREADS)
        s_weight[i] = sample_weight(*r, mpk_from_key((rt_u32)(s_rank[i] >> 32)));
    mpk_sync();
}

/* Walking the candidates in falling order: three things are found so, one after the other. */
enum {
    SAMPLE_WEIGH, /* the weight of the first n */
    SAMPLE_KEEP,  /* how many of them are kept, by share and by weight, and the weight of those */
    SAMPLE_PASS,  /* the one at which the running sum passes a target */
    SAMPLE_DONE
};

/* What the walk compares with. */
struct sample_bounds {
    rt_i64 n;
    double share, least, target;
};

/* One thread, one block: *sum is the running one.  True: the next block is needed. */
MPK_FN bool sample_walk(const mpk_task &t, const sample_row &r, int phase, const sample_bounds &b, double *sum)
{
    const rt_u64 *s_rank = (const rt_u64 *)(t.s_scratch + SAMPLE_RANKS);
    const double *s_weight = (const double *)(t.s_scratch + SAMPLE_WEIGHTS);
    sample_shared *s = sample_words(t);
    rt_i64 i = 0, end = b.n - r.first < (rt_i64)r.n ? b.n - r.first : (rt_i64)r.n;
    bool found = false;
    for (; i < end && !found; i++) {
        if (phase == SAMPLE_KEEP && r.first + i > 0 && (*sum >= b.share || s_weight[i] < b.least)) {
            found = true;
            break;
        }
        *sum += s_weight[i];
        s->token = (rt_i32)mpk_index_of(s_rank[i]);
        found = phase == SAMPLE_PASS && *sum > b.target;
    }
    s->kept = r.first + i;
    s->sum = *sum;
    return !found && r.n > 0 && r.first + i < b.n;
}

/* The weight of all that can be drawn, and how many there are. */
MPK_FN double sample_weigh_all(const mpk_task &t, const sample_row &r, rt_i64 *n)
{
    double sum = 0, count = 0;
    for (rt_i64 id = mpk_thread(); id < r.x->dims[1]; id += MPK_THREADS) {
        float x = mpk_get(*r.x, r.g_x, r.from + id * r.x->stride[1]);
        if (x > -MPK_INFINITY) {
            sum += sample_weight(r, x);
            count += 1;
        }
    }
    *n = (rt_i64)mpk_sum(t, MPK_THREADS, count);
    return mpk_sum(t, MPK_THREADS, sum);
}

/* Uniform in [0, 1) by stream and number, as src/base/rng.h. */
MPK_FN float sample_uniform(rt_u64 stream, rt_u64 index)
{
    rt_u64 z = stream * 0x9e3779b97f4a7c15ull + index;
    for (int round = 0; round < 2; round++) {
        z += 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        z ^= z >> 31;
    }
    return (float)(z >> 40) * 5.9604644775390625e-8f; /* 2^-24 */
}

/* The column of the largest logit: from peaks if they are there; -1: all are NaN. */
MPK_FN rt_i64 sample_best(const mpk_task &t, const mpk_view &logits, const mpk_view &peaks, rt_i64 row)
{
    if (!mpk_is_there(peaks)) {
        rt_u64 best = mpk_largest(t, MPK_THREADS, logits, mpk_data(t, logits), row * logits.stride[0], logits.stride[1],
                                  0, logits.dims[1]);
        return best ? (rt_i64)mpk_index_of(best) : -1;
    }
    const char *g_peaks = mpk_data(t, peaks);
    rt_u64 best = 0;
    for (rt_i64 i = mpk_thread(); i < peaks.dims[1]; i += MPK_THREADS) {
        rt_i64 at = row * peaks.stride[0] + i * peaks.stride[1];
        if (mpk_get(peaks, g_peaks, at + peaks.stride[2]) >= 0)
            best = mpk_max_pair(best, mpk_ranked(mpk_get(peaks, g_peaks, at), (rt_u32)i));
    }
    best = mpk_max(t, MPK_THREADS, best);
    return best
               ? (rt_i64)mpk_get(peaks, g_peaks,
                                 row * peaks.stride[0] + (rt_i64)mpk_index_of(best) * peaks.stride[1] + peaks.stride[2])
               : -1;
}

/* The token of a row whose largest logit is at `best`. */
MPK_FN rt_i32 sample_draw(const mpk_task &t, sample_row *r, rt_i64 best, const float *sampling, float uniform)
{
    if (best < 0 || best >= r->x->dims[1])
        return 0;
    float largest = mpk_get(*r->x, r->g_x, r->from + best * r->x->stride[1]);
    r->largest = (double)largest;
    r->temperature = (double)sampling[SAMPLE_TEMPERATURE];
    if (!(r->temperature > 0) || !(fabsf(largest) < MPK_INFINITY))
        return (rt_i32)best;
    bool filters = sampling[SAMPLE_TOP_P] < 1 || sampling[SAMPLE_MIN_P] > 0, again = true;
    float top_k = sampling[SAMPLE_TOP_K];
    sample_bounds bounds;
    sample_shared *s = sample_words(t);
    double total = sample_weigh_all(t, *r, &bounds.n), running = 0;
    int phase = filters ? SAMPLE_KEEP : SAMPLE_PASS;
    if (top_k >= 1 && top_k < (float)bounds.n) {
        bounds.n = (rt_i64)top_k;
        phase = SAMPLE_WEIGH;
    }
    while (phase != SAMPLE_DONE) {
        sample_next(t, r, again);
        bounds.share = sampling[SAMPLE_TOP_P] < 1 ? (double)sampling[SAMPLE_TOP_P] * total : (double)MPK_INFINITY;
        bounds.least = sampling[SAMPLE_MIN_P] > 0 ? (double)sampling[SAMPLE_MIN_P] : 0;
        bounds.target = (double)uniform * total;
        if (mpk_thread() == 0)
            s->more = sample_walk(t, *r, phase, bounds, &running);
        mpk_sync();
        again = !s->more;
        if (again) {
            total = s->sum;
            running = 0;
            bounds.n = phase == SAMPLE_KEEP ? s->kept : bounds.n;
            phase = phase == SAMPLE_WEIGH && filters ? SAMPLE_KEEP : phase == SAMPLE_PASS ? SAMPLE_DONE : SAMPLE_PASS;
        }
        mpk_sync();
    }
    return s->token;
}

MPK_FN void sample_run(const mpk_task &t, const mpk_view &logits, const mpk_view &sampling, const mpk_view &seeds,
                       const mpk_view &draws, const mpk_view &peaks, const mpk_view &token)
{
    const char *g_sampling = mpk_data(t, sampling), *g_seeds = mpk_data(t, seeds), *g_draws = mpk_data(t, draws);
    char *g_token = mpk_data(t, token);
    for (rt_i64 row = mpk_lo(t, 0); row < (rt_i64)mpk_hi(t, 0); row++) {
        sample_row r = {&logits, mpk_data(t, logits), row * logits.stride[0], 0, 1, -1, 0, 0};
        float how[4];
        for (int i = 0; i < 4; i++)
            how[i] = mpk_get(sampling, g_sampling, row * sampling.stride[0] + i * sampling.stride[1]);
        rt_i32 id = sample_draw(t, &r, sample_best(t, logits, peaks, row), how,
                                sample_uniform((rt_u64)mpk_get_int(seeds, g_seeds, row * seeds.stride[0]),
                                               (rt_u64)mpk_get_int(draws, g_draws, row * draws.stride[0])));
        if (mpk_thread() == 0)
            ((rt_i32 *)g_token)[row * token.stride[0]] = id;
    }
}

#endif
