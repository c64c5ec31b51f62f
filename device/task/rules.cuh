/* rules.cuh - what a request's record of rules makes of its row of logits, as src/op/rules.h
 * says it, by all threads.  For sample.cuh.
 *
 * Input: the record, the history and the mask of a row, all data of the host; output: a row of
 * `choice` that holds the changed logits.  All functions are called by all threads but where a
 * comment says one.
 *
 * What happens once for each token of the history is found with a map of bits in scratch, a part
 * of the vocabulary after the other; where several threads change one logit they all subtract
 * the same number, so the order does not show.  A mask is applied while the row is copied: what
 * it bans stays -inf whatever is added, or becomes NaN, and neither is drawn.
 *
 *   rules_copy     the row of the model, without what the mask bans
 *   rules_list     biases, penalties, allowed ids, ids that end, banned sequences
 *   rules_cut_...  cuts by distribution, where something will be drawn at random
 */
#ifndef TASK_RULES_CUH
#define TASK_RULES_CUH

#include "task/chance.cuh"

/* As in op/rules.h. The first five words are floats by their bits. RULES_PROMPT says how many
 * tokens of the history are the prompt, RULES_LEAST how many must be generated before one that ends
 * the text; the last four are the lengths of the lists, which follow from word RULES_LISTS on:
 * pairs (id, bias), allowed ids, ids that end, banned sequences, each with its length in front. */
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
    RULES_MAP = SAMPLE_RANKS,           /* rt_u32[SAMPLE_BLOCK * 4], also over the values */
    RULES_PART = SAMPLE_BLOCK * 4 * 32, /* ids that the map has bits for */
    RULES_MASK = SAMPLE_RANKS,          /* rt_u32[SAMPLE_IN_FLIGHT][CHANCE_LANES], of a mask */
    RULES_LOOKS = 16                    /* lanes to look through before the whole row is */
};

/* A row with rules: the record, the history, the row that they change (g_x, of n logits), and the
 * bits of its mask (NULL: none).  All but g_x is what the host has written: numbers in it are
 * believed only in range. */
struct rules_row {
    const rt_i32 *g_words, *g_history; /* the record; ids from the first token on */
    rt_i64 n_history;                  /* tokens, prompt and answer */
    float *g_x;                        /* in `choice`, this row's own */
    rt_i64 n;                          /* of the vocabulary */
    const rt_u32 *g_mask;              /* a bit an id, 1: allowed */
};

/* A word of the record that is a float by its bits. */
MPK_FN float rules_float(const rules_row &r, int word)
{
    return __uint_as_float((rt_u32)r.g_words[word]);
}

/* Do the lists lie within a record of `width` words?  The record comes from the host through the
 * token arena; nothing is indexed by it before this holds.  The second loop follows the lengths of
 * the banned sequences: each must be at least 1 and end within the list.  Each thread asks, and
 * gets the same answer: barriers depend on it. */
MPK_FN bool rules_are_sound(const rt_i32 *g_words, rt_i64 width)
{
    rt_i64 n = RULES_LISTS;   /* words so far */
    rt_i32 head[RULES_LISTS]; /* all loads are in flight at once */
#pragma unroll
    for (int i = 0; i < RULES_LISTS; i++)
        head[i] = g_words[i];
#pragma unroll
    for (int i = RULES_PROMPT; i < RULES_LISTS; i++) {
        if (head[i] < 0)
            return false;
        /* two words for a bias, one for an id or a word of a sequence */
        n += (rt_i64)head[i] * (i < RULES_BIASES ? 0 : 1 + (i == RULES_BIASES));
    }
    if (n > width)
        return false;
    for (rt_i64 at = n - head[RULES_BANNED]; at < n; at += 1 + (rt_i64)g_words[at])
        if (g_words[at] < 1 || g_words[at] >= n - at)
            return false;
    return true;
}

/* Ban a token.  An id outside of the vocabulary is ignored: lists may name tokens for which a
 * model has no logits. */
MPK_FN void rules_ban(const rules_row &r, rt_i32 id)
{
    if (id >= 0 && id < r.n)
        r.g_x[id] = -MPK_INFINITY;
}

/* Empty the map of bits, which lies over what sampling uses later.  The first barrier waits for
 * readers of the map before, the second makes the zeros visible.  RULES_PART ids have bits, so a
 * larger vocabulary takes several maps, and walks over the history. */
MPK_FN rt_u32 *rules_map(const mpk_task &t)
{
    rt_u32 *s_map = (rt_u32 *)(t.s_scratch + RULES_MAP);
    mpk_sync();
    for (int i = mpk_thread(); i < RULES_PART / 32; i += MPK_THREADS)
        s_map[i] = 0;
    mpk_sync();
    return s_map;
}
/* One thread: set the bit of an id in the map of the part that begins at `first`; true for the
 * one thread that has set it, false if it was set or the id is of another part. */
MPK_FN bool rules_mark(rt_u32 *s_map, rt_i64 first, rt_i64 n, rt_i32 id)
{
    rt_i64 at = id - first; /* in the part of the vocabulary that the map has */
    if (at < 0 || at >= RULES_PART || id >= n)
        return false;
    rt_u32 bit = 1u << (at & 31); /* of its word */
    return !(atomicOr(&s_map[at >> 5], bit) & bit);
}

/* Repetition (of tokens from 0 on) or presence (of tokens after the prompt): each token once. The
 * thread that sets a token's bit changes its logit, and no other: so every distinct token of the
 * history is penalised once, without sorting the history. */
MPK_FN void rules_once(const mpk_task &t, const rules_row &r, rt_i64 from, float penalty,
                       bool repetition)
{
    for (rt_i64 first = 0; first < r.n; first += RULES_PART) {
        rt_u32 *s_map = rules_map(t);
        /* One walk over the history for each part of the vocabulary: the bit map holds one part,
         * so tokens of other parts are skipped. */
        for (rt_i64 i = from + mpk_thread(); i < r.n_history; i += MPK_THREADS) {
            rt_i32 id = r.g_history[i];
            if (!rules_mark(s_map, first, r.n, id))
                continue;
            float x = r.g_x[id]; /* this thread's alone: it has set the bit */
            if (repetition)
                r.g_x[id] = x > 0 ? x / penalty : x * penalty;
            else
                r.g_x[id] = x - penalty;
        }
    }
    mpk_sync();
}

/* All penalties for tokens of the history.  Frequency counts every occurrence, so additions to
 * one logit meet: they are the same number, and their order does not show. */
MPK_FN void rules_penalize(const mpk_task &t, const rules_row &r)
{
    float repetition = rules_float(r, RULES_REPETITION), presence = rules_float(r, RULES_PRESENCE),
          frequency = rules_float(r, RULES_FREQUENCY);
    rt_i64 prompt = r.g_words[RULES_PROMPT]; /* tokens of the history */
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

/* Ban all but the listed ids; an empty list allows everything.  The listed ids are marked, then the
 * whole row is gone through: the list need not be sorted. */
MPK_FN void rules_allow(const mpk_task &t, const rules_row &r, const rt_i32 *g_ids, int n)
{
    for (rt_i64 first = 0; first < r.n && n; first += RULES_PART) {
        rt_u32 *s_map = rules_map(t);
        rt_i64 end = first + RULES_PART < r.n ? first + RULES_PART : r.n; /* of the part */
        for (int i = mpk_thread(); i < n; i += MPK_THREADS)
            rules_mark(s_map, first, r.n, g_ids[i]);
        mpk_sync();
        for (rt_i64 id = first + mpk_thread(); id < end; id += MPK_THREADS)
            if (!(s_map[(id - first) >> 5] >> ((id - first) & 31) & 1))
                r.g_x[id] = -MPK_INFINITY;
    }
    mpk_sync();
}

/* One thread: ban the last token of each sequence whose other tokens end the history.  g_at, g_end:
 * the sequences, each with its length in front; rules_are_sound has followed them. */
MPK_FN void rules_ban_sequences(const rules_row &r, const rt_i32 *g_at, const rt_i32 *g_end)
{
    for (; g_at < g_end; g_at += 1 + g_at[0]) {
        rt_i64 before = g_at[0] - 1, same = 0; /* tokens before the last; those that agree */
        while (same < before && before <= r.n_history &&
               g_at[1 + same] == r.g_history[r.n_history - before + same])
            same++;
        if (same == before)
            rules_ban(r, g_at[g_at[0]]);
    }
}

/* All rules but the cuts.  In the order that op/rules.h fixes, since rules do not commute: a token
 * that one bans stays banned whatever the next adds.  Barriers stand between lists that may change
 * one logit by different threads. */
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
    /* A few ids: lists of some words, done by one thread in order. */
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

/* Ban what is more than `sigmas` standard deviations below the largest.  Mean and variance are of
 * the logits that are not banned, in fp64, the variance around the mean in a second pass.  largest
 * is finite (rules_apply), so there is a logit to count. */
MPK_FN void rules_cut_deviation(const mpk_task &t, const rules_row &r, double largest,
                                double sigmas)
{
    double count = 0, sum = 0, squares = 0; /* of logits that are not banned */
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
    /* the largest logit is at least the mean, so it is never banned */
    double least = largest - sigmas * sqrt(mpk_sum(t, MPK_THREADS, squares) / count);
    for (rt_i64 i = mpk_thread(); i < r.n; i += MPK_THREADS)
        if ((double)r.g_x[i] < least)
            r.g_x[i] = -MPK_INFINITY;
    mpk_sync();
}

/* How far a token's surprise, -log p, is from the expected one (the entropy), as bits: those of
 * floats from 0 on rise with the number.  Both lack the logarithm of the sum of weights, which
 * falls out of the difference.  A banned token is infinitely far, which no cut keeps. */
MPK_FN rt_u32 rules_distance(float x, double largest, double temperature, double expected)
{
    return x > -MPK_INFINITY
               ? __float_as_uint((float)fabs(((double)x - largest) / temperature - expected))
               : 0x7f800000u;
}

/* Keep the fewest tokens of typical surprise whose share of the probability reaches `share`.
 * Instead of sorting by distance, the cut is found by bisection over the bits of the distance: at
 * most 31 passes over the row. Invariant: `below` is the weight of all tokens nearer than `low`,
 * and the cut lies in low .. high; tokens at the very distance of the cut are all kept. */
MPK_FN void rules_cut_untypical(const mpk_task &t, const rules_row &r, double largest,
                                double temperature, double share)
{
    rt_u32 low = 0, high = 0x7f800000u;      /* distance 0 and infinity, as bits */
    double sum = 0, weighted = 0, below = 0; /* weights; times their logarithm; under `low` */
    for (rt_i64 i = mpk_thread(); i < r.n; i += MPK_THREADS)
        if (r.g_x[i] > -MPK_INFINITY) {
            double scaled = ((double)r.g_x[i] - largest) / temperature, weight = exp(scaled);
            sum += weight;
            weighted += weight * scaled;
        }
    sum = mpk_sum(t, MPK_THREADS, sum);
    double expected = mpk_sum(t, MPK_THREADS, weighted) / sum;
    /* Every thread has the same sums, so all leave the loop together. */
    while (low < high) {
        rt_u32 middle = low + (high - low) / 2;
        double inside = 0; /* weight from `low` to `middle` */
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

/* Copy the row that the model made, without what the mask bans. r.g_x is a row of `choice` that
 * belongs to this row alone; later passes and the draw read that one, and the logits stay as the
 * model made them. A bit of the mask is 1 where the token is allowed.  The largest of each lane is
 * left in its top; 0: it is -inf, or nothing but NaN. */
MPK_FN void rules_copy(const mpk_task &t, const rules_row &r, const sample_row &from)
{
    const rt_u32 *g_mask = r.g_mask;
    float *g_x = r.g_x;
    const rt_i64 n = r.n;
    const bool quads = ((rt_u64)g_x & 15) == 0;            /* whole quads may be stored */
    rt_u32 *s_mask = (rt_u32 *)(t.s_scratch + RULES_MASK); /* a ring beside that of the quads */
    /* Quads come through a ring in scratch (sample_pass_lane); their words of the mask come beside
     * them. */
    const auto ask = [=](int quad) {
        if (g_mask)
            mpk_fetch_word(&s_mask[sample_slot(quad)], &g_mask[quad * CHANCE_NEIGHBOURS / 32]);
    };
    float most;
    rt_i64 at;
    const auto visit = [=, &most, &at](rt_i64 id, sample_quad q) {
        const rt_u32 may =
            g_mask ? s_mask[sample_slot((int)id / CHANCE_NEIGHBOURS)] >> (id % 32) : ~0u;
#pragma unroll
        for (int i = 0; i < CHANCE_NEIGHBOURS; i++)
            /* the mask is applied before the largest is looked for */
            q.at[i] = may >> i & 1 ? q.at[i] : -MPK_INFINITY;
#pragma unroll
        for (int i = 0; i < CHANCE_NEIGHBOURS; i++) { /* of equals the first stays */
            at = q.at[i] > most ? id + i : at;
            most = fmaxf(most, q.at[i]);
        }
        if (quads && id + CHANCE_NEIGHBOURS <= n) {
            *(sample_quad *)(g_x + id) = q;
            return;
        }
#pragma unroll
        for (int i = 0; i < CHANCE_NEIGHBOURS; i++)
            if (id + i < n)
                g_x[id + i] = q.at[i];
    };
    for (int lane = mpk_thread(); lane < CHANCE_LANES; lane += MPK_THREADS) {
        most = -MPK_INFINITY;
        at = 0;
        sample_pass_lane(t, from, lane, ask, visit);
        sample_tops(t)[lane] = sample_rank(most, at);
    }
    mpk_sync();
}

/* May rules that look at the history raise a logit, or a list ban nearly all?  Then the tops of
 * lanes tell too little, and the largest is looked for in the whole row. */
MPK_FN bool rules_change_much(const rules_row &r)
{
    return r.g_words[RULES_ALLOWED] || rules_float(r, RULES_REPETITION) < 1 ||
           rules_float(r, RULES_PRESENCE) < 0 || rules_float(r, RULES_FREQUENCY) < 0;
}

/* The largest of the row after the lists, as mpk_ranked, without a pass over it where few logits
 * have changed.  All but biased ones can only have fallen.  So a lane whose top is as it was copied
 * has it still; of another one, that top is more than all that is left in it, and it is looked
 * through only if nothing as large has been found. */
MPK_FN rt_u64 rules_largest(const mpk_task &t, const rules_row &r, const sample_row &row)
{
    rt_u64 best = 0, *s_top = sample_tops(t);
    if (rules_change_much(r))
        return sample_largest(t, row);
    for (int i = mpk_thread(); i < r.g_words[RULES_BIASES]; i += MPK_THREADS) {
        const rt_i32 id = r.g_words[RULES_LISTS + 2 * i];
        if (id >= 0 && id < r.n)
            best = mpk_max_pair(best, sample_rank(r.g_x[id], id));
    }
#pragma unroll 1
    for (int look = 0; look < RULES_LOOKS; look++) {
        rt_u64 fallen = 0;
        for (int lane = mpk_thread(); lane < CHANCE_LANES; lane += MPK_THREADS) {
            const rt_u64 top = s_top[lane];
            const rt_i64 id = mpk_index_of(top);
            if (top && sample_rank(r.g_x[id], id) == top)
                best = mpk_max_pair(best, top);
            else
                fallen = mpk_max_pair(fallen, top);
        }
        best = mpk_max(t, MPK_THREADS, best);
        fallen = mpk_max(t, MPK_THREADS, fallen);
        if (best && fallen <= best)
            return best;
        if (!fallen)
            break; /* nothing but -inf and NaN */
        const int lane = (int)(mpk_index_of(fallen) / CHANCE_NEIGHBOURS % CHANCE_LANES);
        best = mpk_max_pair(best, sample_largest_of(t, row, lane));
        if (mpk_thread() == lane % MPK_THREADS)
            s_top[lane] = 0; /* its largest is known; only this thread reads it again */
    }
    return sample_largest(t, row);
}

/* Change the row as the record says; the largest of it, as mpk_ranked; 0: nothing but NaN.  The
 * cuts by distribution look at what the lists have left, and only where something will be drawn at
 * random; the largest stays.  temperature: of the draw; 0 takes the largest. */
MPK_FN rt_u64 rules_apply(const mpk_task &t, const rules_row &r, const sample_row &row,
                          double temperature)
{
    double sigmas = (double)rules_float(r, RULES_SIGMA),
           typical = (double)rules_float(r, RULES_TYPICAL);
    rules_list(t, r);
    const rt_u64 best = rules_largest(t, r, row);
    const double largest = (double)mpk_from_key((rt_u32)(best >> 32));
    const bool typically = typical > 0 && typical < 1; /* a filter that keeps not all */
    if (!(temperature > 0) || !best || !(fabs(largest) < (double)MPK_INFINITY) ||
        !(sigmas > 0 || typically))
        return best;
    if (sigmas > 0)
        rules_cut_deviation(t, r, largest, sigmas);
    if (typically)
        rules_cut_untypical(t, r, largest, temperature, typical);
    return sample_largest(t, row);
}

#endif
