/* sample.cuh - draw a token from a row of logits; the rules are those of src/op/sample.c and
 * src/op/rules.h, and so is the arithmetic: weights in double, added one after the other in falling
 * order of logits.
 *
 * Idea: candidates are taken out in blocks of at most 1024, in falling order.  A block is found by
 * its lowest rank (key of the logit, then id): histograms of one byte of the rank after the other
 * say where to cut.  It is sorted in scratch, and one thread walks it.  Peaked distributions, or a
 * small top_k, need one block.  Cost: a few passes over the row for each block.
 *
 * Rules change a copy of the row.  What happens once for each token of the history is found with a
 * map of bits in scratch, a part of the vocabulary after the other; where several threads change
 * one logit they all subtract the same number, so the order does not show.
 */
#ifndef TASK_SAMPLE_CUH
#define TASK_SAMPLE_CUH

#include "task/order.cuh"

enum { SAMPLE_BLOCK = 1024, SAMPLE_DIGITS = 256 };
enum { SAMPLE_TEMPERATURE, SAMPLE_TOP_K, SAMPLE_TOP_P, SAMPLE_MIN_P };
/* As in op/rules.h. */
enum {
    RULES_REPETITION,
    RULES_PRESENCE,
    RULES_FREQUENCY,
    RULES_SIGMA,
    RULES_TYPICAL,
    RULES_PROMPT,
    RULES_LEAST,
    RULES_BIASES,
    RULES_ALLOWED,
    RULES_ENDS,
    RULES_BANNED,
    RULES_LISTS
};
enum {
    ASK_RULES,
    ASK_FROM,
    ASK_HISTORY,
    ASK_LOGPROBS,
    ASK_TOKEN,
    ASK_MASK,
    ASK_CHOICE,
    ASKS,
    LOGPROBS = 21
};
enum { MASK_NUMBER, MASK_BITS, RULES_LATE = -1 };
/* Scratch after that of the reductions. */
enum {
    SAMPLE_RANKS = MPK_REDUCE_BYTES,                   /* rt_u64[SAMPLE_BLOCK] */
    SAMPLE_WEIGHTS = SAMPLE_RANKS + SAMPLE_BLOCK * 8,  /* double[SAMPLE_BLOCK] */
    SAMPLE_COUNTS = SAMPLE_WEIGHTS + SAMPLE_BLOCK * 8, /* rt_u32[SAMPLE_DIGITS] */
    SAMPLE_SHARED = SAMPLE_COUNTS + SAMPLE_DIGITS * 4, /* sample_shared */
    /* rt_u32[SAMPLE_BLOCK * 4], where no block is at hand */
    RULES_MAP = SAMPLE_RANKS,
    RULES_PART = SAMPLE_BLOCK * 4 * 32 /* ids that the map has bits for */
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
MPK_FN void sample_count(const mpk_task &t, const sample_row &r, rt_u64 low, rt_u64 below,
                         int shift)
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

/* Find the lowest rank of the next block: at most SAMPLE_BLOCK ranks are from there to `below`, and
 * all ranks or at least half a block. */
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
            /* Digits above `digit` are taken; that one holds too many, and is cut by its next
             * digit, or left. */
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
/* Ranks fall; all differ, because they contain ids. */
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
MPK_FN bool sample_walk(const mpk_task &t, const sample_row &r, int phase, const sample_bounds &b,
                        double *sum)
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
MPK_FN rt_i64 sample_best(const mpk_task &t, const mpk_view &logits, const mpk_view &peaks,
                          rt_i64 row)
{
    if (!mpk_is_there(peaks)) {
        rt_u64 best = mpk_largest(t, MPK_THREADS, logits, mpk_data(t, logits),
                                  row * logits.stride[0], logits.stride[1], 0, logits.dims[1]);
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
                                 row * peaks.stride[0] +
                                     (rt_i64)mpk_index_of(best) * peaks.stride[1] + peaks.stride[2])
               : -1;
}

/* The token of a row whose largest logit is at `best`. */
MPK_FN rt_i32 sample_draw(const mpk_task &t, sample_row *r, rt_i64 best, const float *sampling,
                          float uniform)
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
        bounds.share = sampling[SAMPLE_TOP_P] < 1 ? (double)sampling[SAMPLE_TOP_P] * total
                                                  : (double)MPK_INFINITY;
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
            if (phase == SAMPLE_PASS)
                phase = SAMPLE_DONE;
            else
                phase = phase == SAMPLE_WEIGH && filters ? SAMPLE_KEEP : SAMPLE_PASS;
        }
        mpk_sync();
    }
    return s->token;
}

/* ---- rules ---- */

/* The record of a row, its history, the row that they change, and the bits of its mask (0:
 * none). */
struct rules_row {
    const rt_i32 *g_words, *g_history;
    rt_i64 n_history;
    float *g_x;
    rt_i64 n;
    const rt_u32 *g_mask;
};

MPK_FN float rules_float(const rules_row &r, int word)
{
    return __uint_as_float((rt_u32)r.g_words[word]);
}

/* Do the lists lie within a record of so many words? */
MPK_FN bool rules_are_sound(const rt_i32 *g_words, rt_i64 width)
{
    rt_i64 n = RULES_LISTS;
    for (int i = RULES_PROMPT; i < RULES_LISTS; i++) {
        if (g_words[i] < 0)
            return false;
        n += (rt_i64)g_words[i] * (i < RULES_BIASES ? 0 : 1 + (i == RULES_BIASES));
    }
    if (n > width)
        return false;
    for (rt_i64 at = n - g_words[RULES_BANNED]; at < n; at += 1 + (rt_i64)g_words[at])
        if (g_words[at] < 1 || g_words[at] >= n - at)
            return false;
    return true;
}

MPK_FN void rules_ban(const rules_row &r, rt_i32 id)
{
    if (id >= 0 && id < r.n)
        r.g_x[id] = -MPK_INFINITY;
}

/* Empty the map of bits. */
MPK_FN rt_u32 *rules_map(const mpk_task &t)
{
    rt_u32 *s_map = (rt_u32 *)(t.s_scratch + RULES_MAP);
    mpk_sync();
    for (int i = mpk_thread(); i < RULES_PART / 32; i += MPK_THREADS)
        s_map[i] = 0;
    mpk_sync();
    return s_map;
}
/* Set the bit of an id of the part at `first`; false if it was set, or the id is of another
 * part. */
MPK_FN bool rules_mark(rt_u32 *s_map, rt_i64 first, rt_i64 n, rt_i32 id)
{
    rt_i64 at = id - first;
    if (at < 0 || at >= RULES_PART || id >= n)
        return false;
    rt_u32 bit = 1u << (at & 31);
    return !(atomicOr(&s_map[at >> 5], bit) & bit);
}

/* Repetition (of tokens from 0 on) or presence (of tokens after the prompt): each token once. */
MPK_FN void rules_once(const mpk_task &t, const rules_row &r, rt_i64 from, float penalty,
                       bool repetition)
{
    for (rt_i64 first = 0; first < r.n; first += RULES_PART) {
        rt_u32 *s_map = rules_map(t);
        for (rt_i64 i = from + mpk_thread(); i < r.n_history; i += MPK_THREADS) {
            rt_i32 id = r.g_history[i];
            if (!rules_mark(s_map, first, r.n, id))
                continue;
            float x = r.g_x[id];
            if (repetition)
                r.g_x[id] = x > 0 ? x / penalty : x * penalty;
            else
                r.g_x[id] = x - penalty;
        }
    }
    mpk_sync();
}

/* Frequency counts every occurrence, so additions to one logit meet: they are the same number, and
 * their order does not show. */
MPK_FN void rules_penalize(const mpk_task &t, const rules_row &r)
{
    float repetition = rules_float(r, RULES_REPETITION), presence = rules_float(r, RULES_PRESENCE),
          frequency = rules_float(r, RULES_FREQUENCY);
    rt_i64 prompt = r.g_words[RULES_PROMPT];
    if (repetition != 1)
        rules_once(t, r, 0, repetition, true);
    if (presence != 0)
        rules_once(t, r, prompt, presence, false);
    for (rt_i64 i = prompt + mpk_thread(); frequency != 0 && i < r.n_history; i += MPK_THREADS) {
        rt_i32 id = r.g_history[i];
        if (id >= 0 && id < r.n)
            atomicAdd(&r.g_x[id], -frequency);
    }
    mpk_sync();
}

/* Ban all but the listed ids. */
MPK_FN void rules_allow(const mpk_task &t, const rules_row &r, const rt_i32 *g_ids, int n)
{
    for (rt_i64 first = 0; first < r.n && n; first += RULES_PART) {
        rt_u32 *s_map = rules_map(t);
        rt_i64 end = first + RULES_PART < r.n ? first + RULES_PART : r.n;
        for (int i = mpk_thread(); i < n; i += MPK_THREADS)
            rules_mark(s_map, first, r.n, g_ids[i]);
        mpk_sync();
        for (rt_i64 id = first + mpk_thread(); id < end; id += MPK_THREADS)
            if (!(s_map[(id - first) >> 5] >> ((id - first) & 31) & 1))
                r.g_x[id] = -MPK_INFINITY;
    }
    mpk_sync();
}

/* One thread: ban the last token of each sequence whose other tokens end the history. */
MPK_FN void rules_ban_sequences(const rules_row &r, const rt_i32 *g_at, const rt_i32 *g_end)
{
    for (; g_at < g_end; g_at += 1 + g_at[0]) {
        rt_i64 before = g_at[0] - 1, same = 0;
        while (same < before && before <= r.n_history &&
               g_at[1 + same] == r.g_history[r.n_history - before + same])
            same++;
        if (same == before)
            rules_ban(r, g_at[g_at[0]]);
    }
}

/* In the order that op/rules.h fixes, since rules do not commute: a token that one bans stays
 * banned whatever the next adds. */
MPK_FN void rules_list(const mpk_task &t, const rules_row &r)
{
    const rt_i32 *g_words = r.g_words, *g_at = g_words + RULES_LISTS;
    for (int i = mpk_thread(); i < g_words[RULES_BIASES]; i += MPK_THREADS)
        if (g_at[2 * i] >= 0 && g_at[2 * i] < r.n)
            r.g_x[g_at[2 * i]] += __uint_as_float((rt_u32)g_at[2 * i + 1]);
    mpk_sync();
    g_at += 2 * g_words[RULES_BIASES];
    rules_penalize(t, r);
    rules_allow(t, r, g_at, g_words[RULES_ALLOWED]);
    g_at += g_words[RULES_ALLOWED];
    for (rt_i64 id = mpk_thread(); id < r.n && r.g_mask; id += MPK_THREADS)
        if (!(r.g_mask[id / 32] >> (id % 32) & 1))
            r.g_x[id] = -MPK_INFINITY;
    mpk_sync();
    if (mpk_thread() == 0) {
        for (int i = 0;
             i < g_words[RULES_ENDS] && r.n_history - g_words[RULES_PROMPT] < g_words[RULES_LEAST];
             i++)
            rules_ban(r, g_at[i]);
        g_at += g_words[RULES_ENDS];
        rules_ban_sequences(r, g_at, g_at + g_words[RULES_BANNED]);
    }
    mpk_sync();
}

/* Ban what is more than `sigmas` standard deviations below the largest. */
MPK_FN void rules_cut_deviation(const mpk_task &t, const rules_row &r, double largest,
                                double sigmas)
{
    double count = 0, sum = 0, squares = 0;
    for (rt_i64 i = mpk_thread(); i < r.n; i += MPK_THREADS)
        if (r.g_x[i] > -MPK_INFINITY) {
            count += 1;
            sum += (double)r.g_x[i];
        }
    count = mpk_sum(t, MPK_THREADS, count);
    double mean = mpk_sum(t, MPK_THREADS, sum) / count;
    for (rt_i64 i = mpk_thread(); i < r.n; i += MPK_THREADS)
        if (r.g_x[i] > -MPK_INFINITY)
            squares += ((double)r.g_x[i] - mean) * ((double)r.g_x[i] - mean);
    double least = largest - sigmas * sqrt(mpk_sum(t, MPK_THREADS, squares) / count);
    for (rt_i64 i = mpk_thread(); i < r.n; i += MPK_THREADS)
        if ((double)r.g_x[i] < least)
            r.g_x[i] = -MPK_INFINITY;
    mpk_sync();
}

/* How far a token's surprise is from the expected one, as bits that rise with it. */
MPK_FN rt_u32 rules_distance(float x, double largest, double temperature, double expected)
{
    return x > -MPK_INFINITY
               ? __float_as_uint((float)fabs(((double)x - largest) / temperature - expected))
               : 0x7f800000u;
}

/* Keep the fewest tokens of typical surprise whose share reaches `share`. */
MPK_FN void rules_cut_untypical(const mpk_task &t, const rules_row &r, double largest,
                                double temperature, double share)
{
    rt_u32 low = 0, high = 0x7f800000u;
    double sum = 0, weighted = 0, below = 0;
    for (rt_i64 i = mpk_thread(); i < r.n; i += MPK_THREADS)
        if (r.g_x[i] > -MPK_INFINITY) {
            double scaled = ((double)r.g_x[i] - largest) / temperature, weight = exp(scaled);
            sum += weight;
            weighted += weight * scaled;
        }
    sum = mpk_sum(t, MPK_THREADS, sum);
    double expected = mpk_sum(t, MPK_THREADS, weighted) / sum;
    while (low < high) {
        rt_u32 middle = low + (high - low) / 2;
        double inside = 0;
        for (rt_i64 i = mpk_thread(); i < r.n; i += MPK_THREADS) {
            rt_u32 far = rules_distance(r.g_x[i], largest, temperature, expected);
            if (far >= low && far <= middle)
                inside += exp(((double)r.g_x[i] - largest) / temperature);
        }
        inside = mpk_sum(t, MPK_THREADS, inside);
        if (below + inside >= share * sum) {
            high = middle;
        } else {
            below += inside;
            low = middle + 1;
        }
    }
    for (rt_i64 i = mpk_thread(); i < r.n; i += MPK_THREADS)
        if (rules_distance(r.g_x[i], largest, temperature, expected) > high)
            r.g_x[i] = -MPK_INFINITY;
    mpk_sync();
}

/* The column of the largest of the row that the rules have changed; -1: there is none. */
MPK_FN rt_i64 rules_best(const mpk_task &t, const rules_row &r)
{
    rt_u64 best = 0;
    for (rt_i64 i = mpk_thread(); i < r.n; i += MPK_THREADS)
        best = mpk_max_pair(best, mpk_ranked(r.g_x[i], (rt_u32)i));
    best = mpk_max(t, MPK_THREADS, best);
    return best ? (rt_i64)mpk_index_of(best) : -1;
}

/* The cuts by distribution look at what the lists have left, and only where something will be drawn
 * at random. */
MPK_FN void rules_apply(const mpk_task &t, const rules_row &r, double temperature)
{
    double sigmas = (double)rules_float(r, RULES_SIGMA),
           typical = (double)rules_float(r, RULES_TYPICAL);
    rules_list(t, r);
    rt_i64 best = rules_best(t, r);
    if (!(temperature > 0) || best < 0 || !(fabsf(r.g_x[best]) < MPK_INFINITY))
        return;
    double largest = (double)r.g_x[best];
    mpk_sync();
    if (sigmas > 0)
        rules_cut_deviation(t, r, largest, sigmas);
    if (typical > 0 && typical < 1)
        rules_cut_untypical(t, r, largest, temperature, typical);
}

/* ---- a row ---- */

/* Log probabilities of a row as the model made it; the first entry is that of `token`. */
MPK_FN void sample_tell(const mpk_task &t, sample_row r, rt_i64 best, rt_i32 n, rt_i32 token,
                        float *g_to)
{
    const rt_u64 *s_rank = (const rt_u64 *)(t.s_scratch + SAMPLE_RANKS);
    for (int i = mpk_thread(); i < 2 * LOGPROBS; i += MPK_THREADS)
        g_to[i] = 0;
    if (n <= 0 || best < 0 || best >= r.x->dims[1])
        return;
    rt_i64 count;
    r.largest = (double)mpk_get(*r.x, r.g_x, r.from + best * r.x->stride[1]);
    r.temperature = 1;
    double total = log(sample_weigh_all(t, r, &count));
    if (n > 1)
        sample_next(t, &r, false);
    mpk_sync(); /* the zeros come first */
    for (int i = mpk_thread(); i < n && i < LOGPROBS && i <= (int)r.n; i += MPK_THREADS) {
        rt_i32 id = i ? (rt_i32)mpk_index_of(s_rank[i - 1]) : token;
        bool known = id >= 0 && id < r.x->dims[1];
        float x = known ? mpk_get(*r.x, r.g_x, r.from + id * r.x->stride[1]) : 0;
        g_to[2 * i] = (float)id;
        g_to[2 * i + 1] = known ? (float)((double)x - r.largest - total) : 0;
    }
    mpk_sync();
}

/* The operands that rows with rules go by. */
struct rules_views {
    const mpk_view &rules, &history, &choice;
};

/* The mask of a row, 0 if it asks for none.  False: it is not there yet; one thread looks, so that
 * all agree. */
MPK_FN bool sample_mask(const mpk_task &t, const mpk_view &rules, const rt_i32 *asks, rt_i64 n,
                        rt_u32 draw, const rt_u32 **g_mask)
{
    rt_i64 row = asks[ASK_MASK] - 1;
    *g_mask = 0;
    if (row < 0 || row >= rules.dims[0] || rules.dims[1] < MASK_BITS + (n + 31) / 32)
        return true;
    const rt_u32 *g_at = (const rt_u32 *)mpk_data(t, rules) + row * rules.stride[0];
    *g_mask = g_at + MASK_BITS;
    mpk_sync();
    if (mpk_thread() == 0)
        sample_words(t)->more =
            rt_load_acquire_system((const rt_word *)(g_at + MASK_NUMBER)) == draw + 1;
    mpk_sync();
    bool there = sample_words(t)->more;
    mpk_sync();
    return there;
}

/* Copy the row into the row of `choice` that it asks for and change it; false: it has no rules. */
MPK_FN bool sample_choose(const mpk_task &t, const rules_views &v, const rt_i32 *asks,
                          const rt_u32 *g_mask, double temperature, const sample_row &r,
                          rules_row *out)
{
    rt_i64 row = asks[ASK_RULES] - 1, to = asks[ASK_CHOICE];
    if (row < 0 || row >= v.rules.dims[0] || to < 0 || to >= v.choice.dims[0] ||
        asks[ASK_HISTORY] < 0 || asks[ASK_FROM] < 0 ||
        asks[ASK_FROM] > v.history.dims[0] - asks[ASK_HISTORY])
        return false;
    rules_row made = {(const rt_i32 *)mpk_data(t, v.rules) + row * v.rules.stride[0],
                      (const rt_i32 *)mpk_data(t, v.history) + asks[ASK_FROM],
                      asks[ASK_HISTORY],
                      (float *)mpk_data(t, v.choice) + to * v.choice.stride[0],
                      r.x->dims[1],
                      g_mask};
    if (!rules_are_sound(made.g_words, v.rules.dims[1]))
        return false;
    for (rt_i64 i = mpk_thread(); i < made.n; i += MPK_THREADS)
        made.g_x[i] = mpk_get(*r.x, r.g_x, r.from + i * r.x->stride[1]);
    mpk_sync();
    rules_apply(t, made, temperature);
    *out = made;
    return true;
}

/* One row at a time by all threads.  `best` is of the row as the model made it, `from` of the row
 * that is drawn from. */
MPK_FN void sample_run(const mpk_task &t, const mpk_view &logits, const mpk_view &sampling,
                       const mpk_view &seeds, const mpk_view &draws, const mpk_view &asked,
                       const mpk_view &rules, const mpk_view &history, const mpk_view &choice,
                       const mpk_view &peaks, const mpk_view &token, const mpk_view &chosen,
                       const mpk_view &logprobs)
{
    const char *g_sampling = mpk_data(t, sampling), *g_seeds = mpk_data(t, seeds),
               *g_draws = mpk_data(t, draws), *g_asked = mpk_data(t, asked);
    char *g_token = mpk_data(t, token);
    rules_views views = {rules, history, chosen};
    for (rt_i64 row = mpk_lo(t, 0); row < (rt_i64)mpk_hi(t, 0); row++) {
        sample_row r = {&logits, mpk_data(t, logits), row * logits.stride[0], 0, 1, -1, 0, 0};
        float how[4];
        rt_i32 asks[ASKS];
        for (int i = 0; i < 4; i++)
            how[i] =
                mpk_get(sampling, g_sampling, row * sampling.stride[0] + i * sampling.stride[1]);
        for (int i = 0; i < ASKS; i++)
            asks[i] =
                (rt_i32)mpk_get_int(asked, g_asked, row * asked.stride[0] + i * asked.stride[1]);
        rt_u64 draw = (rt_u64)mpk_get_int(draws, g_draws, row * draws.stride[0]);
        float uniform =
            sample_uniform((rt_u64)mpk_get_int(seeds, g_seeds, row * seeds.stride[0]), draw);
        rt_i64 best = sample_best(t, logits, peaks, row), from = best;
        sample_row of = r;
        rules_row made;
        const rt_u32 *g_mask;
        bool there = sample_mask(t, rules, asks, logits.dims[1], (rt_u32)draw, &g_mask);
        if (there &&
            sample_choose(t, views, asks, g_mask, (double)how[SAMPLE_TEMPERATURE], r, &made)) {
            of.x = &chosen;
            of.g_x = mpk_data(t, chosen);
            of.from = (rt_i64)asks[ASK_CHOICE] * chosen.stride[0];
            from = rules_best(t, made);
        }
        rt_i32 id = there ? sample_draw(t, &of, from, how, uniform) : (rt_i32)RULES_LATE;
        if (mpk_thread() == 0)
            ((rt_i32 *)g_token)[row * token.stride[0]] = id;
        sample_tell(t, r, best, asks[ASK_LOGPROBS], asks[ASK_TOKEN] < 0 ? id : asks[ASK_TOKEN],
                    (float *)mpk_data(t, logprobs) + row * logprobs.stride[0]);
    }
}

#endif
