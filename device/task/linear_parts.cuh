/* linear_parts.cuh - a tile of a product whose columns several tasks share: their sums meet in
 * memory.
 *
 * Where outputs are few a task of all columns reads much more of x than of w.  So neighbouring
 * tasks, e->parts of them on as many workers, take a tile of all their rows together: each sums
 * a part of the columns (linear_box.cuh), leaves the sums in its worker's room and, when all
 * have, adds those of its own rows up, in the order of parts, to its box of y.
 *
 *   parts_begin    where the partners' rooms are; wait until the own room is free
 *   parts_put      sums to the own room
 *   parts_meet     count `arrived`; wait until all partners have
 *   parts_finish   add, store y; parts_leave: count `read` in each partner's room
 *
 * Invariants.
 *   - A room is written only when all tasks that read it before are through: `read` counts them,
 *     `owed` says how many there are, and only its worker changes `owed`.
 *   - `arrived` of a meeting counts tasks over all steps; a step adds `parts`, a power of two,
 *     and the next one begins after the end of this: so the old value, rounded down to a
 *     multiple of parts, tells for which value a task waits.
 *   - Tasks that meet stand in the lists of different workers, and no others have numbers
 *     between theirs (src/cuda/parts.c): so each comes to run, and the wait ends.
 *   - Sums are ordered by `arrived` (release, device, after a barrier of all warps; acquire),
 *     the next writing by `read` likewise.
 *
 * A room: of each 4 rows of w 16 bytes for each of 128 tokens, then a float of each token: the
 * squares of the part's columns of x, unless they are summed already (row_squares.cuh). Relies
 * on: the sums as wgmma leaves them.  Called by linear_box.cuh, in all body threads.
 */
#ifndef TASK_LINEAR_PARTS_CUH
#define TASK_LINEAR_PARTS_CUH

#include "task/box_end.cuh"
#include "task/row_squares.cuh"
#include "task/tile_plan.cuh"

#if MPK_WGMMA

enum {
    PARTS_ROW = RT_PART_TOKENS * 16, /* bytes of 4 rows of w */
    /* in scratch, after the note, a float for each token: factors, squares of one warpgroup */
    PARTS_SCALES = TILE_SCALES + 1024,
    PARTS_SQUARES = PARTS_SCALES + RT_PART_TOKENS * 4,
};

/* What a task with a part keeps in scratch, where one that has its tile alone keeps factors.
 * Written by warp 1 in parts_begin, read by all after the barrier in box_meet. */
struct parts_note {
    char *sums[RT_MOST_PARTS]; /* the workers' that share the tile, in the order of parts */
    rt_room *rooms[RT_MOST_PARTS];
    rt_u32 owed; /* of the own room, before this task */
};
static_assert(sizeof(parts_note) <= PARTS_SCALES - TILE_SCALES &&
                  PARTS_SQUARES + RT_PART_TOKENS * 4 <= TILE_SCRATCH,
              "the note has no room");

MPK_FN parts_note *parts_noted(void)
{
    return (parts_note *)(mpk_s + MPK_PAGES * MPK_PAGE_BYTES + TILE_SCALES);
}

MPK_FN float *parts_scales(void)
{
    return (float *)(mpk_s + MPK_PAGES * MPK_PAGE_BYTES + PARTS_SCALES);
}
MPK_FN float *parts_squares(void)
{
    return (float *)(mpk_s + MPK_PAGES * MPK_PAGE_BYTES + PARTS_SQUARES);
}

/* One thread: until the count, which wraps, has reached `wanted`.  The pause leaves L2 to the
 * others. */
MPK_FN void parts_await(const rt_word *count, rt_u32 wanted)
{
    while ((rt_i32)(rt_load_acquire_device(count) - wanted) < 0 && !ptx_load_flag(&mpk_w.abort))
        __nanosleep(20);
}

/* Warp 1, while the first boxes are in flight: note where the partners' sums are, a lane each,
 * and wait until the own room is free. */
MPK_FN void parts_begin(const mpk_task &t)
{
    const rt_u32 lane = (rt_u32)mpk_thread() % 32;          /* a partner a lane */
    const rt_meeting *m = (const rt_meeting *)t.e->meeting; /* of the tile */
    if (mpk_thread() / 32 != 1)
        return;
    if (lane < t.e->parts) {
        parts_note *n = parts_noted();
        rt_room *rooms = mpk_w.k->rooms, *own = rooms + mpk_w.index;
        /* requested at once: one wait for all */
        const rt_u32 worker = ptx_load_word(&m->workers[lane]), owed = ptx_load_word(&own->owed),
                     read = rt_load_acquire_device(&own->read);
        n->sums[lane] = mpk_w.k->parts + (rt_u64)worker * RT_PART_BYTES;
        n->rooms[lane] = rooms + worker;
        if (lane == t.e->part) {
            n->owed = owed;
            if (read != owed)
                parts_await(&own->read, owed);
        }
    }
    __syncwarp();
}

/* Sums of a warp's 16 tokens from `token` on to the room; groups: of the tile, 8 rows of w each.
 * Lane (g, c) has rows 2c, 2c + 1 of w for tokens g and g + 8: half of a unit of 16 bytes each. */
template <int N> MPK_FN void parts_put(char *room, const float *sum, int token, int groups)
{
    const int g = mpk_thread() % 32 / 4, c = mpk_thread() % 4;
    char *to = room + c / 2 * PARTS_ROW + (token + g) * 16 + c % 2 * 8;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        if (n < groups) {
            ptx_store_sums(to + 2 * n * PARTS_ROW, sum[4 * n], sum[4 * n + 1]);
            ptx_store_sums(to + 2 * n * PARTS_ROW + 128, sum[4 * n + 2], sum[4 * n + 3]);
        }
}

/* All threads: publish what they have put, and wait until the sums of all partners are there.
 * The first barrier puts every thread's stores before thread 0's addition, the second hands what
 * it has acquired to all. */
MPK_FN void parts_meet(const mpk_task &t)
{
    mpk_sync();
    if (mpk_thread() == 0) {
        const parts_note *n = parts_noted();
        rt_word *arrived = &((rt_meeting *)t.e->meeting)->arrived;
        const rt_u32 parts = t.e->parts, before = rt_add_acq_rel_device(arrived, 1);
        ptx_store_word(&n->rooms[t.e->part]->owed, n->owed + parts - 1);
        parts_await(arrived, (before & ~(parts - 1)) + parts);
    }
    mpk_sync();
}

/* All threads: this task no longer reads the others' rooms.  A thread for each partner counts
 * `read` there, after a barrier: the release says that all reads are done. */
MPK_FN void parts_leave(const mpk_task &t)
{
    const int thread = mpk_thread();
    mpk_sync();
    if (thread < (int)t.e->parts && thread != (int)t.e->part)
        ptx_add_release(&parts_noted()->rooms[thread]->read, 1); /* partner: parts_begin */
}

/* 8 rows of w of one token. */
struct parts_sums {
    float at[8];
};

/* In fp32 and in the order of parts, which is what makes the bits independent of which part is
 * done first. */
MPK_FN void parts_add(const mpk_words &v, float *sum)
{
    sum[0] += __uint_as_float(v.x);
    sum[1] += __uint_as_float(v.y);
    sum[2] += __uint_as_float(v.z);
    sum[3] += __uint_as_float(v.w);
}

/* Sums of a group of the tile for one token, of all parts in their order; eight parts at a time,
 * so that loads overlap. */
MPK_FN parts_sums parts_gather(int parts, int group, int token)
{
    const rt_u32 at = (rt_u32)(2 * group * PARTS_ROW + token * 16);
    parts_sums s = {}; /* 8 rows of w, in the order of parts */
    /* Parts that are not there load nothing and stay 0: adding 0 changes no bit but that of -0. */
    for (int first = 0; first < parts; first += 8) {
        mpk_words v[8][2] = {}; /* of eight parts, in flight together */
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const bool is_there = first + i < parts;
            const char *from = parts_noted()->sums[is_there ? first + i : 0] + at;
            ptx_load_words_if(from, is_there, &v[i][0]);
            ptx_load_words_if(from + PARTS_ROW, is_there, &v[i][1]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            parts_add(v[i][0], s.at);
            parts_add(v[i][1], s.at + 4);
        }
    }
    return s;
}

/* The factor of a token: its squares are summed by parts too, unless that was done before. */
MPK_FN float parts_scale(const mpk_task &t, const tile_shape &s, int parts, int token)
{
    float square = 0; /* over the parts' columns */
    if (!s.norm)
        return s.eps;
    if (squares_are_summed(t))
        return parts_scales()[token];
#pragma unroll 1
    for (int first = 0; first < parts; first += 4) {
        rt_u32 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = ptx_load_word(parts_noted()->sums[first + i < parts ? first + i : 0] +
                                 RT_PART_SUMS + token * 4);
#pragma unroll
        for (int i = 0; i < 4; i++)
            square += first + i < parts ? __uint_as_float(v[i]) : 0;
    }
    return tile_scale_of(square, s.columns, s.eps);
}

/* Make a group's columns of y for one token, scaled; g: the group's number in the tile.  Residual
 * and biases are requested before the sums, so that one wait does for all.  Returns the sum of the
 * columns' squares; 0 where they are gated. */
MPK_FN float parts_store(const mpk_task &t, const tile_shape &s, int parts, int g, int token,
                         float scale, int row, int group)
{
    const int column = group << (s.activation != ACTIVATE_NONE ? 2 : 3);
    const rt_u64 at = ((rt_u64)(rt_u32)row * (rt_u32)s.rows + (rt_u32)column) * 2;
    char *y = mpk_at<char>(t, s.y) + at;
    mpk_words r = {}; /* of the residual, in flight beside the sums */
    if (s.residual >= 0)
        r = ptx_load_words(mpk_at<const char>(t, s.residual) + at);
    box_sums bias = {};
    if (TILE_HAS(TILE_FORM_BOX_ENDS))
        bias = box_bias(t, s, column);
    const parts_sums v = parts_gather(parts, g, token);
    if (s.activation != ACTIVATE_NONE) {
        float a[4]; /* the gated columns */
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = tile_activate(s.activation, v.at[2 * i] * scale) * (v.at[2 * i + 1] * scale);
        ptx_store_two_words(y, halves_pack(a[0], a[1]), halves_pack(a[2], a[3]));
        return 0;
    }
    const rt_u32 residual[4] = {r.x, r.y, r.z, r.w};
    rt_u32 words[4];
    box_sums sums;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums.at[i] = v.at[i] * scale;
    box_finish_sums(s, bias, &sums);
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = halves_pack(sums.at[2 * i] + halves_low(residual[i]),
                               sums.at[2 * i + 1] + halves_high(residual[i]));
    const mpk_words stored = {words[0], words[1], words[2], words[3]};
    ptx_store_words(y, stored);
    return squares_add(stored, 0);
}

/* All threads: let the others' rooms go, and store this task's sum of squares of each token of
 * y.  Both warpgroups have some groups of each token, so the second hands its part over in
 * scratch; the barrier in parts_leave orders that.  row: of y; one that is not alive stores
 * nothing. */
MPK_FN void parts_end(const mpk_task &t, int token, int row, float square)
{
    const bool sums = t.e->at[RT_SQUARES_OF_Y], second = mpk_thread() >= RT_PART_TOKENS;
    if (sums && second)
        parts_squares()[token] = square;
    parts_leave(t); /* all threads meet in it */
    if (sums && !second && row < (int)t.hi0)
        squares_store(t, row, square + parts_squares()[token]);
}

/* All threads: y of this task's box: `own` of the tile's groups are its own.  A thread has a
 * token and every other group. */
MPK_FN void parts_finish(const mpk_task &t, const tile_shape &s, const tile_plan &p)
{
    const int thread = mpk_thread(), token = thread % RT_PART_TOKENS, row = (int)t.e->lo[0] + token,
              parts = (int)t.e->parts;
    const int own = p.groups / parts, first = own * (int)t.e->part; /* of this task's box */
    float square = 0;
    if (row < (int)t.hi0) {
        const float scale = parts_scale(t, s, parts, token);
        /* The two warpgroups take groups in turn; a thread's token is the same in both. */
        for (int g = first + thread / RT_PART_TOKENS; g < first + own; g += 2)
            square += parts_store(t, s, parts, g, token, scale, row, p.first + g);
    }
    parts_end(t, token, row, square);
}

#endif

#endif
