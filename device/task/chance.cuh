/* chance.cuh - passes over a row of logits by all threads: weights, the first few in falling
 * order, where a filter cuts, and the token that a part of the weight picks.  For sample.cuh and
 * rules.cuh.
 *
 * Weights are the integers of op/chance.h, so a sum may be cut among threads in any way and a
 * histogram filled in any order: the result is that of src/op/sample.c to the bit.
 *
 * A pass reads four neighbours (a quad) at once.  Each lane has several quads in flight from L2
 * to a ring in scratch: loads into registers would not do, since moving a register on waits for
 * its load, and a visit for each register of a batch is too much code.
 *
 * The first n of a row, n <= 256: no fewer than n logits are as large as the n-th largest of the
 * lanes' maxima, and hardly more, so these are gathered from the n lanes that have them, and
 * sorted.  Where the product has left the peaks of 64 columns each, lanes are of peaks and no pass
 * is needed.  A draw from no more than 256 tokens is made from that list.  Anything else is cut by
 * histograms, until the open bin has no more than 1024 entries, which are gathered and sorted:
 *
 *   digit   0      1024 bins by the distance from the largest logit
 *           1      64 within one of those
 *           2...   one byte of the rank (key of the logit, then id) after another
 *
 * So all that is left to one thread is 64 additions.  All functions are called by all threads
 * and give all of them the same result, but where a comment says otherwise.
 */
#ifndef TASK_CHANCE_CUH
#define TASK_CHANCE_CUH

#include "task/order.cuh"

#define CHANCE_FN MPK_FN
#ifdef MPK_EMULATED
#define CHANCE_MUL(a, b) ((a) * (b))
#define CHANCE_ADD(a, b) ((a) + (b))
#else
#define CHANCE_MUL(a, b) __fmul_rn(a, b)
#define CHANCE_ADD(a, b) __fadd_rn(a, b)
#endif
#include "op/chance.h"

/* A pass is some hundreds of instructions, and a draw with filters and log probabilities has twenty
 * of them: with all of them inlined NVRTC took minutes and gigabytes.  So what contains a pass is a
 * function that is called. */
#define SAMPLE_FN static __device__ __noinline__

/* Bins of a histogram and entries of a list in scratch; values that are added up as one group;
 * quads that a lane has in flight (src/gen/body_sample.c counts the same bytes): 8 x 256 lanes x
 * 16 bytes are 32 KB, which only GPUs with room have. */
enum { SAMPLE_BLOCK = 1024, SAMPLE_GROUP = 32, SAMPLE_IN_FLIGHT = MPK_ROOM ? 8 : 2 };
/* Scratch after that of the reductions. */
enum {
    SAMPLE_RANKS = MPK_REDUCE_BYTES,                  /* rt_u64[SAMPLE_BLOCK] */
    SAMPLE_COUNTS = SAMPLE_RANKS,                     /* rt_u32[SAMPLE_BLOCK], before the ranks */
    SAMPLE_VALUES = SAMPLE_RANKS + SAMPLE_BLOCK * 8,  /* rt_u64[SAMPLE_BLOCK] */
    SAMPLE_MAXIMA = SAMPLE_VALUES + SAMPLE_BLOCK * 8, /* rt_u32[CHANCE_LANES] */
    SAMPLE_GROUPS = SAMPLE_MAXIMA + CHANCE_LANES * 4, /* rt_u64[SAMPLE_BLOCK / SAMPLE_GROUP] */
    SAMPLE_TOPS = SAMPLE_GROUPS + SAMPLE_BLOCK / SAMPLE_GROUP * 8, /* rt_u64[CHANCE_LANES] */
    SAMPLE_SHARED = SAMPLE_TOPS + CHANCE_LANES * 8,                /* sample_shared */
    SAMPLE_RING = SAMPLE_SHARED + 64 /* sample_quad[SAMPLE_IN_FLIGHT][CHANCE_LANES] */
};

/* Where a running sum passes a target, and by how much the sum before it is short of it; past the
 * last value if the whole sum does not. */
struct sample_found {
    rt_i64 at;   /* index of the value */
    rt_u64 rest; /* of the target */
};

/* What one thread tells the others, in scratch: written between two barriers, read after the
 * second. */
struct sample_shared {
    sample_found found; /* of sample_find */
    rt_u64 rank;        /* of sample_low */
    rt_u32 n;           /* entries gathered so far */
};

/* A row that is drawn from.  quads: it is f32 whose entries are neighbours and begin at a
 * multiple of 16 bytes.  largest, scale: the largest logit, and what logits are multiplied by
 * (the temperature), once they are known. */
struct sample_row {
    const mpk_view *x;
    const char *g_x;
    rt_i64 from;          /* element of x */
    bool quads;           /* else any dtype, stride, alignment */
    float largest, scale; /* of the row; by which distances are multiplied */
};

/* What the filters keep: ranks from `cut` on, of at least this weight. cut 0: all ranks. Both hold
 * at once: top_k and top_p set cut, min_p sets least. */
struct sample_kept {
    rt_u64 cut;   /* ranks below are dropped */
    chance least; /* weights below are dropped */
};

MPK_FN sample_shared *sample_words(const mpk_task &t)
{
    return (sample_shared *)(t.s_scratch + SAMPLE_SHARED);
}
MPK_FN rt_u64 *sample_ranks(const mpk_task &t)
{
    return (rt_u64 *)(t.s_scratch + SAMPLE_RANKS);
}
MPK_FN rt_u64 *sample_values(const mpk_task &t)
{
    return (rt_u64 *)(t.s_scratch + SAMPLE_VALUES);
}

/* The largest of each lane of a row that is copied, as mpk_ranked; see rules.cuh. */
MPK_FN rt_u64 *sample_tops(const mpk_task &t)
{
    return (rt_u64 *)(t.s_scratch + SAMPLE_TOPS);
}

/* The row that begins `from` elements into x; largest and scale are set once the largest logit is
 * known. */
MPK_FN sample_row sample_row_at(const mpk_view &x, const char *g_x, rt_i64 from)
{
    const bool whole = x.dtype == MPK_F32 && x.stride[1] == 1;
    sample_row r = {&x, g_x, from, whole && ((rt_u64)(g_x + 4 * from) & 15) == 0, 0, 1};
    return r;
}

/* ---- passes ---- */

/* Four neighbouring logits: a quad is what one load brings, and the unit in which lanes share out a
 * row. */
struct alignas(16) sample_quad {
    float at[CHANCE_NEIGHBOURS];
};

/* One thread: four neighbours from column id on, of any dtype and stride; columns beyond the row
 * are -inf, which never draws. */
SAMPLE_FN sample_quad sample_gather_quad(const sample_row &r, rt_i64 id)
{
    sample_quad q; /* columns id to id + 3 */
#pragma unroll
    for (int i = 0; i < CHANCE_NEIGHBOURS; i++)
        q.at[i] = id + i < r.x->dims[1] ? mpk_get(*r.x, r.g_x, r.from + (id + i) * r.x->stride[1])
                                        : -MPK_INFINITY;
    return q;
}

/* One thread: quad number `quad` of the row, columns 4 quad to 4 quad + 3. */
MPK_FN sample_quad sample_load(const sample_row &r, rt_i64 quad)
{
    const rt_i64 id = quad * CHANCE_NEIGHBOURS;
    return r.quads && id + CHANCE_NEIGHBOURS <= r.x->dims[1]
               ? *(const sample_quad *)(r.g_x + 4 * (r.from + id))
               : sample_gather_quad(r, id);
}

/* Where quad number `quad` lies in the ring in scratch, which has SAMPLE_IN_FLIGHT quads of each
 * lane; neighbouring lanes lie side by side. */
MPK_FN int sample_slot(int quad)
{
    return quad / CHANCE_LANES % SAMPLE_IN_FLIGHT * CHANCE_LANES + quad % CHANCE_LANES;
}

/* visit(first id, quad) for the quads of a lane in rising order: lane, lane + 256 ...  ask(quad)
 * may fetch more for a quad.
 *
 * Invariant: one group of fetches for each quad, requested in this order, and groups of a thread
 * end in order.  So when all but the last SAMPLE_IN_FLIGHT - 1 have ended, the quad that is visited
 * is there.  Its place is requested again before the next visit, when it has been read. */
template <typename more, typename function>
MPK_FN void sample_pass_lane(const mpk_task &t, const sample_row &r, int lane, const more &ask,
                             const function &visit)
{
    const int n = (int)r.x->dims[1], quads = (n + CHANCE_NEIGHBOURS - 1) / CHANCE_NEIGHBOURS,
              whole = r.quads ? n / CHANCE_NEIGHBOURS : 0;
    const char *g_row = r.g_x + 4 * r.from;
    sample_quad *s_ring = (sample_quad *)(t.s_scratch + SAMPLE_RING);
    int asked = lane; /* the next quad to fetch */
#pragma unroll 1
    for (int quad = lane; quad < quads; quad += CHANCE_LANES) {
        /* Up to SAMPLE_IN_FLIGHT quads ahead; after the row's end empty groups, so that the wait
         * counts alike. */
#pragma unroll 1
        for (; asked < quad + SAMPLE_IN_FLIGHT * CHANCE_LANES; asked += CHANCE_LANES) {
            if (asked < whole)
                mpk_fetch(&s_ring[sample_slot(asked)], g_row + sizeof(sample_quad) * asked);
            if (asked < quads)
                ask(asked);
            mpk_fetch_close();
        }
        mpk_fetch_wait<SAMPLE_IN_FLIGHT - 1>();
        visit((rt_i64)quad * CHANCE_NEIGHBOURS,
              quad < whole ? s_ring[sample_slot(quad)]
                           : sample_gather_quad(r, (rt_i64)quad * CHANCE_NEIGHBOURS));
    }
}

/* The same for all lanes, each by one thread. */
template <typename function>
MPK_FN void sample_pass(const mpk_task &t, const sample_row &r, const function &visit)
{
    for (int lane = mpk_thread(); lane < CHANCE_LANES; lane += MPK_THREADS)
        sample_pass_lane(
            t, r, lane, [](int) {}, visit);
}

/* The rank of a logit: falling logits, then rising ids, as falling numbers; 0: never drawn (NaN,
 * -inf).  Ranks of a row all differ, so a cut by rank has one place. */
MPK_FN rt_u64 sample_rank(float x, rt_i64 id)
{
    return x > -MPK_INFINITY ? mpk_ranked(x, (rt_u32)id) : 0;
}

/* The weight of a logit: 0 if the filters do not keep it.  An integer, 2^39 for the largest logit
 * (op/chance.h). */
MPK_FN chance sample_weight(const sample_row &r, const sample_kept &k, float x, rt_i64 id)
{
    const chance weight = chance_of(x, r.largest, r.scale);
    return weight < k.least || (k.cut && sample_rank(x, id) < k.cut) ? 0 : weight;
}

/* The largest of the row, as mpk_ranked; 0: nothing but NaN. */
SAMPLE_FN rt_u64 sample_largest(const mpk_task &t, const sample_row &r)
{
    const rt_i64 n = r.x->dims[1];
    rt_u64 best = 0; /* nothing but NaN so far */
    sample_pass(t, r, [n, &best](rt_i64 id, const sample_quad &q) {
#pragma unroll
        for (int i = 0; i < CHANCE_NEIGHBOURS; i++)
            if (id + i < n)
                best = mpk_max_pair(best, mpk_ranked(q.at[i], (rt_u32)(id + i)));
    });
    return mpk_max(t, MPK_THREADS, best);
}

/* The first rank of one lane, whose quads all threads share; 0: nothing in it can be drawn.  For a
 * lane whose largest has been changed since the pass (rules.cuh). */
SAMPLE_FN rt_u64 sample_largest_of(const mpk_task &t, const sample_row &r, int lane)
{
    const rt_i64 n = r.x->dims[1];
    rt_u64 best = 0;
    for (rt_i64 quad = lane + (rt_i64)mpk_thread() * CHANCE_LANES; quad * CHANCE_NEIGHBOURS < n;
         quad += MPK_THREADS * CHANCE_LANES) {
        const rt_i64 id = quad * CHANCE_NEIGHBOURS;
        const sample_quad q = sample_load(r, quad);
#pragma unroll
        for (int i = 0; i < CHANCE_NEIGHBOURS; i++) /* columns beyond the row are -inf */
            best = mpk_max_pair(best, sample_rank(q.at[i], id + i));
    }
    return mpk_max(t, MPK_THREADS, best);
}

/* ---- sums of values in scratch ---- */

/* Add the first n values in scratch up in groups of 32; returns the groups' sums.  The threads meet
 * before, when all values are there, and after.  n is at most SAMPLE_BLOCK, so there are 32 groups
 * at most. */
MPK_FN const rt_u64 *sample_groups(const mpk_task &t, int n)
{
    rt_u64 *s_group = (rt_u64 *)(t.s_scratch + SAMPLE_GROUPS);
    const rt_u64 *s_value = sample_values(t);
    mpk_sync();
    for (int g = mpk_thread(); g * SAMPLE_GROUP < n; g += MPK_THREADS) {
        rt_u64 sum = 0;
        for (int i = 0; i < SAMPLE_GROUP; i++) /* each from another bank on */
            if (g * SAMPLE_GROUP + ((i + g) & (SAMPLE_GROUP - 1)) < n)
                sum += s_value[g * SAMPLE_GROUP + ((i + g) & (SAMPLE_GROUP - 1))];
        s_group[g] = sum;
    }
    mpk_sync();
    return s_group;
}

/* The sum of the first n values, the same in all threads: no more than 32 groups, added by each. */
MPK_FN rt_u64 sample_sum(const mpk_task &t, int n)
{
    const rt_u64 *s_group = sample_groups(t, n);
    rt_u64 sum = 0; /* of at most 32 groups */
    for (int g = 0; g * SAMPLE_GROUP < n; g++)
        sum += s_group[g];
    return sum;
}

/* The first value with which the sum exceeds the target, and what of the target is left before it;
 * at n if the whole sum does not exceed it. One thread looks through at most 32 groups and 32
 * values. */
SAMPLE_FN sample_found sample_find(const mpk_task &t, int n, rt_u64 target)
{
    const rt_u64 *s_group = sample_groups(t, n), *s_value = sample_values(t);
    if (mpk_thread() == 0) {
        int i = 0;
        for (; i < n && s_group[i / SAMPLE_GROUP] <= target; i += SAMPLE_GROUP)
            target -= s_group[i / SAMPLE_GROUP];
        for (; i < n && s_value[i] <= target; i++)
            target -= s_value[i];
        sample_words(t)->found = {i < n ? i : n, target};
    }
    mpk_sync();
    const sample_found found = sample_words(t)->found;
    mpk_sync();
    return found;
}

/* The weight of all that is kept; leaves the weight and the largest key of each lane in scratch.
 * A lane here is one of CHANCE_LANES (256) columns of quads, not one of a warp: lane l has quads
 * l, l + 256, ...  The draw goes through lanes in this order, which does not depend on the
 * number of threads. */
SAMPLE_FN rt_u64 sample_weigh(const mpk_task &t, const sample_row &row, const sample_kept &kept)
{
    const sample_row r = row; /* in registers: a fetch makes what is in memory be read again */
    const sample_kept k = kept;
    const bool filters = k.cut || k.least;
    rt_u64 *s_value = sample_values(t);
    rt_u32 *s_most = (rt_u32 *)(t.s_scratch + SAMPLE_MAXIMA);
    for (int lane = mpk_thread(); lane < CHANCE_LANES; lane += MPK_THREADS) {
        rt_u64 sum = 0;
        float most = -MPK_INFINITY; /* of the lane's logits */
        sample_pass_lane(
            t, row, lane, [](int) {},
            [&](rt_i64 id, const sample_quad &q) {
                chance weight[CHANCE_NEIGHBOURS];
#pragma unroll
                for (int i = 0; i < CHANCE_NEIGHBOURS; i++)
                    weight[i] = chance_of(q.at[i], r.largest, r.scale);
                if (filters) /* the same in all threads */
#pragma unroll
                    for (int i = 0; i < CHANCE_NEIGHBOURS; i++)
                        weight[i] = sample_weight(r, k, q.at[i], id + i);
#pragma unroll
                for (int i = 0; i < CHANCE_NEIGHBOURS; i++) {
                    sum += weight[i];
                    most = fmaxf(most, q.at[i]);
                }
            });
        s_value[lane] = sum;
        s_most[lane] = most > -MPK_INFINITY ? mpk_key(most) : 0;
    }
    return sample_sum(t, CHANCE_LANES);
}

/* ---- cuts ---- */

/* What is known of the rank at which to cut: how many of its digits, from the highest on. Example:
 * after two digits all ranks with another distance from the largest are closed; the eight that
 * follow go through the 64 bits of (key, ~id) byte by byte. */
struct sample_open {
    int digits;   /* known, from the highest */
    rt_u32 place; /* the first two: distance from the largest logit, SAMPLE_PLACES at most */
    rt_u64 rank;  /* the others */
};
enum { SAMPLE_PLACES = 65535 };

/* Distance from the largest logit in steps of 1/1638 of a binary logarithm. The scale makes 2^-40,
 * the least weight there is, fall into the last place: 40 * 1638.4 = 65,536. */
MPK_FN rt_u32 sample_place(const sample_row &r, float x)
{
    const float log = chance_log(x, r.largest, r.scale); /* of the weight, base 2 */
    return (rt_u32)fminf(fmaxf(log * -1638.4f, 0.0f), (float)SAMPLE_PLACES);
}

/* The next digit of a rank, 0 for the highest ranks; -1: it differs in those that are known. */
MPK_FN int sample_digit(const sample_open &o, rt_u32 place, rt_u64 rank)
{
    if (o.digits == 0)
        return (int)(place >> 6);
    if (o.digits == 1)
        return place >> 6 == o.place ? (int)(place & 63) : -1;
    const int shift = 56 - 8 * (o.digits - 2); /* of the byte in 64 bits */
    if (place != o.place || (shift < 56 && rank >> (shift + 8) != o.rank))
        return -1;
    return 255 - (int)(rank >> shift & 255);
}
/* Digit `digit` of the cut is known: what follows looks only at ranks that have it.  In both parts
 * of a rank digits count from the highest down, so its byte is 255 - digit.  A digit more closes
 * all ranks with another. */
MPK_FN void sample_narrow(sample_open *o, int digit)
{
    if (o->digits < 2)
        o->place = o->digits ? o->place << 6 | (rt_u32)digit : (rt_u32)digit;
    else
        o->rank = o->rank << 8 | (rt_u32)(255 - digit);
    o->digits++;
}

/* Add to the bins of up to four neighbours (-1: none); a bin's value is 64 bits in two additions,
 * of which the first says whether it carries.  Neighbours of one bin are added up before. */
MPK_FN void sample_tally(rt_u32 *s_count, rt_u32 *s_value, int (&bin)[CHANCE_NEIGHBOURS],
                         rt_u64 (&value)[CHANCE_NEIGHBOURS], bool by_weight)
{
    rt_u32 n[CHANCE_NEIGHBOURS], old[CHANCE_NEIGHBOURS]; /* to add; the low half before */
#pragma unroll
    for (int i = 0; i < CHANCE_NEIGHBOURS; i++) {
        n[i] = 1;
        if (i && bin[i] == bin[i - 1]) {
            n[i] += n[i - 1];
            value[i] += value[i - 1];
            bin[i - 1] = -1;
        }
    }
#pragma unroll
    for (int i = 0; i < CHANCE_NEIGHBOURS; i++)
        if (bin[i] >= 0) {
            atomicAdd(&s_count[bin[i]], n[i]);
            old[i] = by_weight ? atomicAdd(&s_value[2 * bin[i]], (rt_u32)value[i]) : 0;
        }
#pragma unroll
    for (int i = 0; i < CHANCE_NEIGHBOURS; i++)
        if (bin[i] >= 0 && by_weight)
            atomicAdd(&s_value[2 * bin[i] + 1],
                      (rt_u32)(value[i] >> 32) + (old[i] + (rt_u32)value[i] < old[i]));
}

/* A histogram of the open ranks by their next digit: how many, and in the values their weight or
 * again how many.  One pass over the row.  Ranks without weight are left out where weights count: a
 * cut never falls on one. */
SAMPLE_FN void sample_count(const mpk_task &t, const sample_row &row, const sample_open &open,
                            bool by_weight)
{
    const sample_row r = row; /* in registers, as in sample_weigh */
    const sample_open o = open;
    rt_u32 *s_count = (rt_u32 *)(t.s_scratch + SAMPLE_COUNTS);
    rt_u64 *s_value = sample_values(t);
    mpk_sync();
    for (int i = mpk_thread(); i < SAMPLE_BLOCK; i += MPK_THREADS) {
        s_count[i] = 0;
        s_value[i] = 0;
    }
    mpk_sync();
    sample_pass(t, row, [&](rt_i64 id, const sample_quad &q) {
        int bin[CHANCE_NEIGHBOURS]; /* of the quad's entries; -1: not counted */
        rt_u64 value[CHANCE_NEIGHBOURS];
#pragma unroll
        for (int i = 0; i < CHANCE_NEIGHBOURS; i++) {
            const rt_u64 rank = sample_rank(q.at[i], id + i);
            bin[i] = rank ? sample_digit(o, sample_place(r, q.at[i]), rank) : -1;
            value[i] = by_weight && bin[i] >= 0 ? chance_of(q.at[i], r.largest, r.scale) : 0;
            bin[i] = by_weight && !value[i] ? -1 : bin[i];
        }
        sample_tally(s_count, (rt_u32 *)s_value, bin, value, by_weight);
    });
    mpk_sync();
    for (int i = mpk_thread(); i < SAMPLE_BLOCK && !by_weight; i += MPK_THREADS)
        s_value[i] = s_count[i];
    mpk_sync();
}

/* Ranks in scratch, which order.cuh sorts, the highest first (order_settle); all differ, because
 * they contain ids. */
struct sample_list {
    rt_u64 *s_rank;
};
/* Put entries a and b in order.  order.cuh gives a pair to one thread at a time. */
MPK_FN void order_settle(const sample_list &l, rt_i64 a, rt_i64 b)
{
    const rt_u64 first = l.s_rank[a], second = l.s_rank[b];
    if (first < second) {
        l.s_rank[a] = second;
        l.s_rank[b] = first;
    }
}

/* An empty list of ranks in scratch.  All threads; the first barrier waits for readers of the one
 * before, the second shows n = 0 before anyone appends. */
MPK_FN void sample_begin(const mpk_task &t)
{
    mpk_sync();
    if (mpk_thread() == 0)
        sample_words(t)->n = 0;
    mpk_sync();
}

/* Append to the list, by any thread; of more than SAMPLE_BLOCK entries the others are counted, so
 * that the caller sees that the list does not suffice. */
MPK_FN void sample_append(const mpk_task &t, rt_u64 rank)
{
    const rt_u32 at = atomicAdd(&sample_words(t)->n, 1u);
    if (at < SAMPLE_BLOCK)
        sample_ranks(t)[at] = rank;
}

/* Sort the list; how many have been appended. */
MPK_FN rt_u32 sample_end(const mpk_task &t)
{
    mpk_sync();
    const rt_u32 n = sample_words(t)->n;
    const sample_list list = {sample_ranks(t)};
    order_sort(t, list, n < SAMPLE_BLOCK ? n : SAMPLE_BLOCK, SAMPLE_BLOCK);
    return n;
}

/* Gather the ranks of which all digits of `open` are known, and sort them; returns how many there
 * are, of which only SAMPLE_BLOCK are gathered.  They come in any order; sorting makes it one. */
SAMPLE_FN rt_u32 sample_gather(const mpk_task &t, const sample_row &row, const sample_open &open)
{
    const sample_row r = row; /* in registers, as in sample_weigh */
    const sample_open o = open;
    sample_begin(t);
    sample_pass(t, row, [&](rt_i64 id, const sample_quad &q) {
#pragma unroll
        for (int i = 0; i < CHANCE_NEIGHBOURS; i++) {
            const rt_u64 rank = sample_rank(q.at[i], id + i);
            if (rank && sample_digit(o, sample_place(r, q.at[i]), rank) >= 0)
                sample_append(t, rank);
        }
    });
    return sample_end(t);
}

/* The same of the ranks from `low` on.  Follows sample_weigh, which has left the largest key of
 * each lane: only lanes whose own is not below that of `low` are looked at, which are few. */
SAMPLE_FN rt_u32 sample_gather_from(const mpk_task &t, const sample_row &row, rt_u64 low)
{
    const sample_row r = row;
    const rt_u32 *s_most = (const rt_u32 *)(t.s_scratch + SAMPLE_MAXIMA);
    rt_u64 *s_lane = sample_values(t); /* the lanes */
    sample_begin(t);
    for (int lane = mpk_thread(); lane < CHANCE_LANES; lane += MPK_THREADS)
        if (s_most[lane] && s_most[lane] >= (rt_u32)(low >> 32))
            s_lane[atomicAdd(&sample_words(t)->n, 1u)] = (rt_u64)lane;
    mpk_sync();
    const int quads = ((int)r.x->dims[1] + CHANCE_NEIGHBOURS - 1) / CHANCE_NEIGHBOURS,
              of_lane = (quads + CHANCE_LANES - 1) / CHANCE_LANES,
              n = (int)sample_words(t)->n * of_lane;
    sample_begin(t);
#pragma unroll 1
    for (int i = mpk_thread(); i < n; i += MPK_THREADS) {
        const int quad = i % of_lane * CHANCE_LANES + (int)s_lane[i / of_lane];
        if (quad >= quads)
            continue;
        const sample_quad q = sample_load(r, quad);
#pragma unroll
        for (int j = 0; j < CHANCE_NEIGHBOURS; j++) {
            const rt_u64 rank = sample_rank(q.at[j], (rt_i64)quad * CHANCE_NEIGHBOURS + j);
            if (rank && rank >= low)
                sample_append(t, rank);
        }
    }
    return sample_end(t);
}

/* The rank, in falling order, at which the sum of weights, or the number of ranks, passes the
 * target; 0: it does not. Invariant of the loop: all ranks above the open ones lie before the cut,
 * and `target` is what is left of it for these. 1024 open ranks fit the list, and ranks differ, so
 * the loop ends. */
SAMPLE_FN rt_u64 sample_cut(const mpk_task &t, const sample_row &r, bool by_weight, rt_u64 target)
{
    const rt_u32 *s_count = (const rt_u32 *)(t.s_scratch + SAMPLE_COUNTS);
    sample_open o = {0, 0, 0};   /* nothing is known */
    rt_u32 n = SAMPLE_BLOCK + 1; /* ranks that are open: too many for the list */
    while (n > SAMPLE_BLOCK) {   /* before the last digit no more than 256 are open */
        sample_count(t, r, o, by_weight);
        const sample_found found = sample_find(t, SAMPLE_BLOCK, target);
        /* the whole sum does not reach the target */
        if (found.at == SAMPLE_BLOCK)
            return 0;
        n = s_count[found.at];
        target = found.rest;
        sample_narrow(&o, (int)found.at);
    }
    n = sample_gather(t, r, o);
    n = n < SAMPLE_BLOCK ? n : SAMPLE_BLOCK;
    const sample_kept all = {0, 0}; /* no filter */
    for (int i = mpk_thread(); i < (int)n; i += MPK_THREADS) {
        const rt_u64 rank = sample_ranks(t)[i];
        const float x = mpk_from_key((rt_u32)(rank >> 32));
        sample_values(t)[i] = by_weight ? sample_weight(r, all, x, mpk_index_of(rank)) : 1;
    }
    const sample_found found = sample_find(t, (int)n, target);
    return found.at < n ? sample_ranks(t)[found.at] : 0;
}

/* The lowest rank that may be among the first n (n <= CHANCE_LANES): that of the n-th largest
 * maximum of a lane.  Follows sample_weigh. Each of those n maxima is itself a logit of the row, so
 * at least n ranks lie at or above this one. */
MPK_FN rt_u64 sample_low(const mpk_task &t, int n)
{
    const rt_u32 *s_most = (const rt_u32 *)(t.s_scratch + SAMPLE_MAXIMA);
    sample_shared *s = sample_words(t);
    mpk_sync();
    for (int lane = mpk_thread(); lane < CHANCE_LANES; lane += MPK_THREADS) {
        int before = 0; /* lanes whose maximum comes first */
        for (int i = 0; i < CHANCE_LANES; i++)
            before += s_most[i] > s_most[lane] || (s_most[i] == s_most[lane] && i < lane);
        if (before == n - 1)
            s->rank = (rt_u64)s_most[lane] << 32;
    }
    mpk_sync();
    return s->rank;
}

/* The first n ranks of the row (n <= CHANCE_LANES), sorted in scratch, and perhaps some after
 * them; how many there are.  Follows sample_weigh, whose maxima it uses.  If a lane holds very
 * many large logits the list overflows, and the exact cut is found instead. */
SAMPLE_FN int sample_first(const mpk_task &t, const sample_row &r, int n)
{
    rt_u32 found = sample_gather_from(t, r, sample_low(t, n));
    /* more than the list holds are as large */
    if (found > SAMPLE_BLOCK)
        found = sample_gather_from(t, r, sample_cut(t, r, false, (rt_u64)n - 1));
    return (int)found;
}

/* ---- the first few, from peaks ---- */

/* Peaks of one row: value and column of the largest logit of each of n parts, SAMPLE_PART
 * neighbouring columns (src/op/peaks.h).  g_values 0: the row has none, or has been changed
 * since. */
struct sample_peaks {
    const float *g_values;
    rt_i64 n, step, column; /* in elements: from part to part, from a value to its column */
};
enum { SAMPLE_PART = 64 };

/* The key of part i; 0: nothing in it can be drawn.  A column below 0 says that the part had
 * nothing but NaN. */
MPK_FN rt_u32 sample_peak(const sample_peaks &p, rt_i64 i)
{
    const float most = p.g_values[i * p.step], column = p.g_values[i * p.step + p.column];
    return column >= 0 && most > -MPK_INFINITY ? mpk_key(most) : 0;
}

/* Leave the largest key of each lane in scratch, as sample_weigh does; lane l here has parts l, l +
 * 256, ...  So sample_low works on it as on a pass's: any 256 parts of a row would do. */
SAMPLE_FN void sample_weigh_peaks(const mpk_task &t, const sample_peaks &peaks)
{
    const sample_peaks p = peaks; /* in registers, as in sample_weigh */
    rt_u32 *s_most = (rt_u32 *)(t.s_scratch + SAMPLE_MAXIMA);
    for (int lane = mpk_thread(); lane < CHANCE_LANES; lane += MPK_THREADS) {
        rt_u32 most = 0; /* of the lane's parts */
#pragma unroll 4
        for (rt_i64 i = lane; i < p.n; i += CHANCE_LANES) {
            const rt_u32 key = sample_peak(p, i);
            most = key > most ? key : most;
        }
        s_most[lane] = most;
    }
}

/* Gather the ranks from `low` on from the parts whose peak is not below it, and sort them; how many
 * there are, more than SAMPLE_BLOCK if they, or those parts, do not fit the list. */
SAMPLE_FN rt_u32 sample_gather_parts(const mpk_task &t, const sample_row &row,
                                     const sample_peaks &peaks, rt_u64 low)
{
    const sample_row r = row; /* in registers, as in sample_weigh */
    const sample_peaks p = peaks;
    rt_u64 *s_part = sample_values(t);
    sample_begin(t);
    for (rt_i64 i = mpk_thread(); i < p.n; i += MPK_THREADS) {
        const rt_u32 key = sample_peak(p, i);
        if (!key || key < (rt_u32)(low >> 32))
            continue;
        const rt_u32 at = atomicAdd(&sample_words(t)->n, 1u);
        if (at < SAMPLE_BLOCK)
            s_part[at] = (rt_u64)i;
    }
    mpk_sync();
    const rt_u32 parts = sample_words(t)->n; /* the same in all threads */
    if (parts > SAMPLE_BLOCK)
        return parts;
    enum { QUADS = SAMPLE_PART / CHANCE_NEIGHBOURS };
    const rt_i64 quads = (r.x->dims[1] + CHANCE_NEIGHBOURS - 1) / CHANCE_NEIGHBOURS;
    sample_begin(t);
#pragma unroll 1
    for (int i = mpk_thread(); i < (int)parts * QUADS; i += MPK_THREADS) {
        const rt_i64 quad = (rt_i64)s_part[i / QUADS] * QUADS + i % QUADS;
        if (quad >= quads)
            continue;
        const sample_quad q = sample_load(r, quad);
#pragma unroll
        for (int j = 0; j < CHANCE_NEIGHBOURS; j++) {
            const rt_u64 rank = sample_rank(q.at[j], quad * CHANCE_NEIGHBOURS + j);
            if (rank && rank >= low)
                sample_append(t, rank);
        }
    }
    return sample_end(t);
}

/* ---- a draw from a list ---- */

/* Leave the weights of the first n ranks of the list in scratch; those below `least` are 0.  Seen
 * by all after the next barrier, that of sample_groups. */
MPK_FN void sample_weigh_list(const mpk_task &t, const sample_row &r, int n, chance least)
{
    for (int i = mpk_thread(); i < n; i += MPK_THREADS) {
        const float x = mpk_from_key((rt_u32)(sample_ranks(t)[i] >> 32));
        const chance weight = chance_of(x, r.largest, r.scale);
        sample_values(t)[i] = weight < least ? 0 : weight;
    }
}

/* How many of the first n ranks top_p keeps, of the weight `total`, or of theirs if that is 0;
 * n + 1 if it keeps more. */
SAMPLE_FN int sample_nucleus(const mpk_task &t, const sample_row &r, int n, float top_p,
                             rt_u64 total)
{
    sample_weigh_list(t, r, n, 0);
    const rt_u64 sum = total ? total : sample_sum(t, n);
    return (int)sample_find(t, n, chance_share(top_p, sum) - 1).at + 1;
}

/* The id that `bits` draw from the first n ranks (n <= CHANCE_LANES, one of them `best`): the same
 * as sample_pick, since ids come in the order of lanes, and within a lane in rising order.  A
 * thread adds up what comes before its own. */
SAMPLE_FN rt_i32 sample_pick_first(const mpk_task &t, const sample_row &r, int n, chance least,
                                   rt_u64 bits, rt_i64 best)
{
    const rt_u64 *s_rank = sample_ranks(t), *s_value = sample_values(t);
    mpk_sync(); /* sample_nucleus has read its weights */
    sample_weigh_list(t, r, n, least);
    if (mpk_thread() == 0)
        sample_words(t)->found = {best, 0};
    const rt_u64 target = rt_mul_high(bits, sample_sum(t, n));
    for (int i = mpk_thread(); i < n; i += MPK_THREADS) {
        const rt_u32 id = mpk_index_of(s_rank[i]), lane = id / CHANCE_NEIGHBOURS % CHANCE_LANES;
        rt_u64 before = 0;
        for (int j = 0; j < n; j++) {
            const rt_u32 other = mpk_index_of(s_rank[j]),
                         at = other / CHANCE_NEIGHBOURS % CHANCE_LANES;
            before += at < lane || (at == lane && other < id) ? s_value[j] : 0;
        }
        if (before <= target && target - before < s_value[i])
            sample_words(t)->found.at = (rt_i64)id;
    }
    mpk_sync();
    const rt_i32 id = (rt_i32)sample_words(t)->found.at;
    mpk_sync();
    return id;
}

/* ---- a token ---- */

/* The rank from which on top_k (more than CHANCE_LANES) and top_p (1: all) keep tokens; 0: all.
 * total: the weight of the row.  top_p counts within what top_k has left: so the weight of that is
 * taken again. */
MPK_FN rt_u64 sample_filter(const mpk_task &t, const sample_row &r, rt_i64 top_k, float top_p,
                            rt_u64 total)
{
    sample_kept k = {0, 0}; /* all, until top_k is found */
    if (top_k < r.x->dims[1])
        k.cut = sample_cut(t, r, false, (rt_u64)top_k - 1);
    if (!(top_p < 1))
        return k.cut;
    if (k.cut)
        total = sample_weigh(t, r, k);
    return sample_cut(t, r, true, chance_share(top_p, total) - 1);
}

/* The id of a lane at which the sum of kept weights passes the target. Sampling draws a number
 * below the total weight; sample_find has found the lane, and lane.rest is what is left of the
 * number in it. QUADS quads of the lane are weighed at a time. */
SAMPLE_FN rt_i32 sample_pick(const mpk_task &t, const sample_row &r, const sample_kept &k,
                             sample_found lane)
{
    enum { QUADS = SAMPLE_BLOCK / CHANCE_NEIGHBOURS };
    const rt_i64 quads = (r.x->dims[1] + CHANCE_NEIGHBOURS - 1) / CHANCE_NEIGHBOURS;
    for (rt_i64 first = lane.at; first < quads; first += QUADS * CHANCE_LANES) {
        for (int i = mpk_thread(); i < QUADS; i += MPK_THREADS) {
            const rt_i64 quad = first + (rt_i64)i * CHANCE_LANES, id = quad * CHANCE_NEIGHBOURS;
            const sample_quad q = sample_load(r, quad);
            for (int j = 0; j < CHANCE_NEIGHBOURS; j++)
                sample_values(t)[i * CHANCE_NEIGHBOURS + j] = sample_weight(r, k, q.at[j], id + j);
        }
        const sample_found found = sample_find(t, SAMPLE_BLOCK, lane.rest);
        if (found.at < SAMPLE_BLOCK)
            return (rt_i32)((first + found.at / CHANCE_NEIGHBOURS * CHANCE_LANES) *
                                CHANCE_NEIGHBOURS +
                            found.at % CHANCE_NEIGHBOURS);
        lane.rest = found.rest;
    }
    return 0;
}

#endif
