/* sample.cuh - draw a token from a row of logits; the rules are those of src/op/sample.c and
 * src/op/rules.h.  A row is the block's as a whole: chance.cuh has the passes over it, rules.cuh
 * changes a copy of it.
 *
 * Input: logits [rows, vocabulary], and for each row its sampling parameters, seed, number of the
 * draw and what it asks for; output: the token, log probabilities, and the changed rows.  All
 * weights are integers, so the token is that of the CPU to the bit, whatever the number of threads.
 *
 * A row goes through: its largest logit (sample_best), the mask and the rules (sample_mask,
 * sample_choose), the draw (sample_draw), the log probabilities (sample_tell).  Every function is
 * called by all threads, gives all of them the same result, and has barriers; so branches between
 * them are the same in all threads.
 * Scratch: that of chance.cuh.  Cost: with peaks, no pass over the row for the largest logit, nor
 * for a draw of top_k; a few passes for other draws, some twenty where a filter keeps many tokens.
 */
#ifndef TASK_SAMPLE_CUH
#define TASK_SAMPLE_CUH

#include "task/rules.cuh"

/* Columns of `sampling`, floats.  A temperature of 0 or less draws nothing: the largest logit is
 * the token; a top_k below 1, a top_p of 1 and a min_p of 0 filter nothing. */
enum { SAMPLE_TEMPERATURE, SAMPLE_TOP_K, SAMPLE_TOP_P, SAMPLE_MIN_P };
/* As in op/rules.h: the words of a row of `asked`.  Records and masks are numbered from 1 on, 0
 * asks for none; LOGPROBS is how many pairs a row of log probabilities has. */
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
/* A row of masks: the number of the draw that it is for, plus one, then a bit for each id.
 * RULES_LATE: the token of a row whose mask has not come. */
enum { MASK_NUMBER, MASK_BITS, RULES_LATE = -1 };

/* Random bits by stream (a request's seed) and number (of the draw), as rng_u64 of
 * src/base/rng.h. */
MPK_FN rt_u64 sample_bits(rt_u64 stream, rt_u64 index)
{
    rt_u64 z = stream * 0x9e3779b97f4a7c15ull + index;
    for (int round = 0; round < 2; round++) {
        z += 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        z ^= z >> 31;
    }
    return z;
}

/* The column of the largest logit: from peaks if they are there; -1: all are NaN.
 * peaks [rows, parts, 2]: the largest logit of each part of a row and its column, negative if the
 * part has none, as the product that made the logits has left them: it saves a pass over the row.
 * Parts are in rising order of columns, so of equal peaks the first part has the lowest. */
MPK_FN rt_i64 sample_best(const mpk_task &t, const sample_row &r, const mpk_view &peaks, rt_i64 row)
{
    if (!mpk_is_there(peaks)) {
        rt_u64 best = sample_largest(t, r);
        return best ? (rt_i64)mpk_index_of(best) : -1;
    }
    const char *g_peaks = mpk_data(t, peaks);
    rt_u64 best = 0; /* no part has a peak */
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

/* Ranks of a row of which a list is complete, as good as surely: the lanes' maxima that are looked
 * at are then 532 ranks in the mean, and the list holds 1024.  All 256 would be 1,570. */
enum { SAMPLE_SURE = 224 };

/* The first n ranks of the row (n <= CHANCE_LANES), sorted in scratch, and perhaps some after them;
 * how many there are, SAMPLE_BLOCK at most. */
MPK_FN int sample_first_of(const mpk_task &t, const sample_row &r, const sample_peaks &p, int n)
{
    const sample_kept all = {0, 0};
    if (p.g_values && n <= SAMPLE_SURE) {
        sample_weigh_peaks(t, p);
        const rt_u32 found = sample_gather_parts(t, r, p, sample_low(t, n));
        if (found <= SAMPLE_BLOCK)
            return (int)found;
    }
    sample_weigh(t, r, all);
    const int found = sample_first(t, r, n);
    return found < SAMPLE_BLOCK ? found : SAMPLE_BLOCK;
}

/* The token of a row whose largest logit is at `best`.
 *
 * Without a temperature, or if the largest is not finite, it is the largest; 0 if all are NaN.  The
 * filters top_k and top_p find, from the weights of all, the rank from which on tokens are kept;
 * min_p is a least weight.  Then the kept ones are weighed, and `bits` as a fraction of 2^64 of
 * their total says where in it the token lies.
 *
 * A top_k of at most 256, and a top_p that keeps no more, draw from a list of the first ranks.  So
 * the usual filters need no pass over the row, or one for the weight of all. */
MPK_FN rt_i32 sample_draw(const mpk_task &t, sample_row *r, const sample_peaks &p, rt_i64 best,
                          const float *sampling, rt_u64 bits)
{
    if (best < 0 || best >= r->x->dims[1])
        return 0;
    r->largest = mpk_get(*r->x, r->g_x, r->from + best * r->x->stride[1]);
    if (!(sampling[SAMPLE_TEMPERATURE] > 0) || !(fabsf(r->largest) < MPK_INFINITY))
        return (rt_i32)best;
    r->scale = chance_scale(sampling[SAMPLE_TEMPERATURE]);
    const float top_k = sampling[SAMPLE_TOP_K], top_p = sampling[SAMPLE_TOP_P]; /* 0, 1: off */
    const bool cuts = top_k >= 1 && top_k < (float)r->x->dims[1];
    sample_kept k = {0, chance_least(sampling[SAMPLE_MIN_P])};
    const sample_kept all = {0, 0};
    if (cuts && top_k <= CHANCE_LANES) {
        int n = sample_first_of(t, *r, p, (int)top_k);
        n = n < (int)top_k ? n : (int)top_k;
        if (top_p < 1) {
            const int kept = sample_nucleus(t, *r, n, top_p, 0);
            n = kept < n ? kept : n;
        }
        return sample_pick_first(t, *r, n, k.least, bits, best);
    }
    rt_u64 total; /* of what is kept */
    if (cuts || top_p < 1) {
        total = sample_weigh(t, *r, all);
        const int n = cuts ? 0 : (int)sample_gather_from(t, *r, sample_low(t, SAMPLE_SURE));
        const int kept = n && n <= SAMPLE_BLOCK ? sample_nucleus(t, *r, n, top_p, total) : n + 1;
        if (kept <= n && kept <= CHANCE_LANES)
            return sample_pick_first(t, *r, kept, k.least, bits, best);
        k.cut = sample_filter(t, *r, cuts ? (rt_i64)top_k : r->x->dims[1], top_p, total);
    }
    total = sample_weigh(t, *r, k);
    return sample_pick(t, *r, k, sample_find(t, CHANCE_LANES, rt_mul_high(bits, total)));
}

/* Log probabilities of a row as the model made it, n pairs of id and log probability; the first is
 * that of `token`, then come the n - 1 largest.  What is not asked for is zeros.  At temperature 1,
 * and from the integer weights, whose unit is 2^-CHANCE_BITS of the largest.  The last barrier: the
 * ranks in scratch have been read. */
MPK_FN void sample_tell(const mpk_task &t, sample_row r, rt_i64 best, rt_i32 n, rt_i32 token,
                        float *g_to)
{
    for (int i = mpk_thread(); i < 2 * LOGPROBS; i += MPK_THREADS)
        g_to[i] = 0;
    if (n <= 0 || best < 0 || best >= r.x->dims[1])
        return;
    r.largest = mpk_get(*r.x, r.g_x, r.from + best * r.x->stride[1]);
    r.scale = chance_scale(1);
    const sample_kept all = {0, 0}; /* no filter: probabilities of the model */
    n = n < LOGPROBS ? n : LOGPROBS;
    const double total = log((double)sample_weigh(t, r, all) / (double)((chance)1 << CHANCE_BITS));
    const int found = n > 1 ? sample_first(t, r, n - 1) : 1;
    mpk_sync(); /* the zeros come first */
    for (int i = mpk_thread(); i < n && i <= found; i += MPK_THREADS) {
        const rt_i32 id = i ? (rt_i32)mpk_index_of(sample_ranks(t)[i - 1]) : token;
        const bool known = id >= 0 && id < r.x->dims[1];
        const float x = known ? mpk_get(*r.x, r.g_x, r.from + id * r.x->stride[1]) : 0;
        g_to[2 * i] = (float)id;
        g_to[2 * i + 1] = known ? (float)((double)x - (double)r.largest - total) : 0;
    }
    mpk_sync();
}

/* Operands that only rows with rules read and write; each row has a row of `choice` of its own. */
struct rules_views {
    const mpk_view &rules, &history, &choice;
};

/* The mask of a row, 0 if it asks for none.  False: it is not there yet; one thread looks, so that
 * all agree.
 *
 * The host writes the bits and then the number, while the kernel runs: hence an acquire at system
 * scope, which the barrier after it extends to all threads.  The last barrier keeps the answer in
 * scratch until all have read it. */
MPK_FN bool sample_mask(const mpk_task &t, const mpk_view &rules, const rt_i32 *asks, rt_i64 n,
                        rt_u32 draw, const rt_u32 **g_mask)
{
    rt_i64 row = asks[ASK_MASK] - 1; /* -1: none is asked for */
    *g_mask = 0;
    if (row < 0 || row >= rules.dims[0] || rules.dims[1] < MASK_BITS + (n + 31) / 32)
        return true;
    const rt_u32 *g_at = (const rt_u32 *)mpk_data(t, rules) + row * rules.stride[0];
    *g_mask = g_at + MASK_BITS;
    mpk_sync();
    if (mpk_thread() == 0)
        sample_words(t)->n =
            rt_load_acquire_system((const rt_word *)(g_at + MASK_NUMBER)) == draw + 1;
    mpk_sync();
    bool there = sample_words(t)->n; /* the same in all threads */
    mpk_sync();
    return there;
}

/* Copy the row into the row of `choice` that it asks for and change it.  If it has no rules nothing
 * changes; otherwise *row becomes the changed one and *best the column of its largest (-1: nothing
 * but NaN).  What it asks for is data: with a record, a history or a row out of range it counts as
 * without rules.  The logits themselves stay, for the log probabilities. */
MPK_FN void sample_choose(const mpk_task &t, const rules_views &v, const rt_i32 *asks,
                          const rt_u32 *g_mask, double temperature, sample_row *row, rt_i64 *best)
{
    rt_i64 record = asks[ASK_RULES] - 1, to = asks[ASK_CHOICE];
    if (record < 0 || record >= v.rules.dims[0] || to < 0 || to >= v.choice.dims[0] ||
        asks[ASK_HISTORY] < 0 || asks[ASK_FROM] < 0 ||
        asks[ASK_FROM] > v.history.dims[0] - asks[ASK_HISTORY])
        return;
    char *g_choice = mpk_data(t, v.choice); /* rows that may be changed */
    rules_row made = {(const rt_i32 *)mpk_data(t, v.rules) + record * v.rules.stride[0],
                      (const rt_i32 *)mpk_data(t, v.history) + asks[ASK_FROM],
                      asks[ASK_HISTORY],
                      (float *)g_choice + to * v.choice.stride[0],
                      row->x->dims[1],
                      g_mask};
    if (!rules_are_sound(made.g_words, v.rules.dims[1]))
        return;
    rules_copy(t, made, *row);
    *row = sample_row_at(v.choice, g_choice, to * v.choice.stride[0]);
    const rt_u64 largest = rules_apply(t, made, *row, temperature);
    *best = largest ? (rt_i64)mpk_index_of(largest) : -1;
}

/* One row at a time by all threads.  `best` is of the row as the model made it, `from` of the row
 * that is drawn from.  The random bits depend on the row's seed and the number of its draw alone,
 * so a request's tokens do not depend on what else is in the step. */
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
        const sample_row r = sample_row_at(logits, mpk_data(t, logits), row * logits.stride[0]);
        float how[4];      /* SAMPLE_TEMPERATURE ... */
        rt_i32 asks[ASKS]; /* what the row wants besides a token */
        for (int i = 0; i < 4; i++)
            how[i] =
                mpk_get(sampling, g_sampling, row * sampling.stride[0] + i * sampling.stride[1]);
        for (int i = 0; i < ASKS; i++)
            asks[i] =
                (rt_i32)mpk_get_int(asked, g_asked, row * asked.stride[0] + i * asked.stride[1]);
        rt_u64 draw = (rt_u64)mpk_get_int(draws, g_draws, row * draws.stride[0]);
        const rt_u64 bits =
            sample_bits((rt_u64)mpk_get_int(seeds, g_seeds, row * seeds.stride[0]), draw);
        rt_i64 best = sample_best(t, r, peaks, row), from = best;
        sample_row of = r; /* the row that is drawn from */
        const rt_u32 *g_mask;
        bool there = sample_mask(t, rules, asks, logits.dims[1], (rt_u32)draw, &g_mask);
        if (there)
            sample_choose(t, views, asks, g_mask, (double)how[SAMPLE_TEMPERATURE], &of, &from);
        /* of a row that rules have changed the peaks are not those of the model */
        const bool is_peaked = mpk_is_there(peaks) && of.g_x == r.g_x;
        const sample_peaks peaks_of = {
            is_peaked ? (const float *)mpk_data(t, peaks) + row * peaks.stride[0] : 0,
            peaks.dims[1], peaks.stride[1], peaks.stride[2]};
        rt_i32 id = there ? sample_draw(t, &of, peaks_of, from, how, bits) : (rt_i32)RULES_LATE;
        if (mpk_thread() == 0)
            ((rt_i32 *)g_token)[row * token.stride[0]] = id;
        sample_tell(t, r, best, asks[ASK_LOGPROBS], asks[ASK_TOKEN] < 0 ? id : asks[ASK_TOKEN],
                    (float *)mpk_data(t, logprobs) + row * logprobs.stride[0]);
    }
}

#endif
