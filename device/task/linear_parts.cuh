/* linear_parts.cuh - a tile of a product whose columns several tasks share: their sums meet in
 * memory.
 *
 * Where outputs are few a task of all columns reads much more of x than of w.  So neighbouring
 * tasks, e->parts of them on as many workers, take a tile of all their rows together: each sums
 * a part of the columns (linear_box.cuh), leaves the sums of the others' rows in its worker's room
 * and those of its own in scratch, and, when all have, adds those of its own rows up, in the order
 * of parts, to its box of y.
 *
 *   parts_begin    where the partners' rooms are; wait until the own room is free
 *   parts_put      sums to the room and to scratch
 *   parts_meet     count `arrived`; wait until all partners have
 *   parts_gather   the sums of all parts, added, to scratch; count `read` in the partners' rooms
 *   parts_finish   all of these, then y
 *
 * From parts_put on each warp is alone: it has 16 tokens of all rows, reads the sums of these in
 * the partners' rooms, where the same warp has put them, and has a count `arrived` of its own.  It
 * waits for few round trips to L2: until its stores are published, until the partners' are, and for
 * 16 loads a lane at a time.
 *
 * Of a joint tile (at most 64 tokens) the first warpgroup has the first half of the rows, the
 * second the others, both of all tokens.  The rows of a task's box of y are all in one half, so
 * that warpgroup alone gathers; the other's warps count `arrived` and are done.  In rooms a
 * token's sums of the second half of the rows lie where those of the token 64 on would.
 *
 * Invariants.
 *   - A room is written only when all warps that read it before are through: `read` counts them,
 *     `owed` says how many there are, and only its worker changes `owed`.
 *   - `arrived` of a meeting counts tasks over all steps; a step adds `parts`, a power of two,
 *     and the next one begins after the end of this: so a value that is read before the own
 *     arrival, rounded down to a multiple of parts, tells for which value a warp waits.
 *   - Tasks that meet stand in the lists of different workers, and no others have numbers
 *     between theirs (src/cuda/parts.c): so each comes to run, and the wait ends.
 *   - Sums are ordered by `arrived` (release, device, after a meeting of the warp; acquire), the
 *     next writing by `read` likewise.
 *
 * A room: of each 4 rows of w 16 bytes for each of 128 tokens, then a float of each token: the sum
 * of the squares of the part's columns of x, unless they are summed already (row_squares.cuh), and
 * for a layer_norm one more of each, the sum of these columns.  Own sums
 * lie in scratch in the same way, from the first own row on, in place of the stages of x.  Relies
 * on: the sums as wgmma leaves them.  Called by linear_box.cuh, in all body threads.
 */
#ifndef TASK_LINEAR_PARTS_CUH
#define TASK_LINEAR_PARTS_CUH

#include "ptx/matrix.cuh"
#include "task/box_end.cuh"
#include "task/row_squares.cuh"
#include "task/tile_plan.cuh"

#if MPK_WGMMA

enum {
    PARTS_ROW = RT_PART_TOKENS * 16, /* bytes of 4 rows of w */
    /* in scratch, after the note, a float for each token: factors, or sums of squares before they
     * meet, and for a layer_norm sums of entries after these */
    PARTS_SCALES = TILE_SCALES + 1024,
    PARTS_LOADS = 8, /* of groups of 8 rows that a lane has in flight */
};

/* What a task with a part keeps in scratch, where one that has its tile alone keeps factors.
 * Written by warp 1 in parts_begin, read by all after the barrier in box_meet. */
struct parts_note {
    char *sums[RT_MOST_PARTS]; /* of the tile, in the order of parts: partners' rooms; own scratch,
                                * as if the whole tile lay there */
    rt_room *rooms[RT_MOST_PARTS];
    char *room;                   /* of this worker */
    rt_u32 wanted[RT_PART_WARPS]; /* of `arrived`, once all have */
};
static_assert(sizeof(parts_note) <= PARTS_SCALES - TILE_SCALES &&
                  PARTS_SCALES + 2 * RT_PART_TOKENS * 4 <= TILE_BEFORE_BIASES_OF(MPK_ROOM),
              "the note has no room");
static_assert(RT_PART_ROWS / 2 * RT_PART_TOKENS * 4 <= 2 * TILE_X, "own sums have no room");

MPK_FN char *parts_scratch(void)
{
    return mpk_s + MPK_PAGES * MPK_PAGE_BYTES;
}
MPK_FN parts_note *parts_noted(void)
{
    return (parts_note *)(parts_scratch() + TILE_SCALES);
}
MPK_FN float *parts_scales(void)
{
    return (float *)(parts_scratch() + PARTS_SCALES);
}

/* Of a joint tile: are the rows of the task's box those of this warpgroup?  Of others all are.
 * Parts are a power of two of at least 2, so a half of the rows is that of a half of the parts. */
MPK_FN bool parts_gathers(const tile_plan &p)
{
    return !p.joint || mpk_thread() / 128 == (2 * p.part >= p.parts);
}

/* Groups of the tile that are a task's, and the first of this one's. */
MPK_FN int parts_own(const tile_plan &p)
{
    return p.groups >> tile_shift_of(p.parts);
}
MPK_FN int parts_first(const tile_plan &p)
{
    return parts_own(p) * p.part;
}

/* One thread: until the count, which wraps, has reached `wanted`; acquires what was stored before
 * the counting.  The pause leaves L2 to the others. */
MPK_FN void parts_await(const rt_word *count, rt_u32 wanted)
{
    while ((rt_i32)(rt_load_acquire_device(count) - wanted) < 0 && !ptx_load_flag(&mpk_w.abort))
        __nanosleep(20);
}

/* Warp 1, while the first boxes are in flight: note where the partners' sums are, a lane each,
 * and wait until the own room is free. */
MPK_FN void parts_begin(const mpk_task &t, const tile_plan &p)
{
    const rt_u32 lane = (rt_u32)mpk_thread() % 32, parts = t.e->parts; /* a partner a lane */
    const rt_meeting *m = (const rt_meeting *)t.e->meeting;            /* of the tile */
    if (mpk_thread() / 32 != 1)
        return;
    if (lane < mpk_larger(parts, RT_PART_WARPS)) {
        parts_note *n = parts_noted();
        /* two round trips: these four values, then the two words of the room */
        rt_room *rooms = mpk_w.k->rooms, *own = rooms + mpk_w.index;
        char *sums = mpk_w.k->parts;
        const rt_u32 worker = ptx_load_word(&m->workers[lane]),
                     arrived = ptx_load_word(&m->arrived[lane % RT_PART_WARPS]),
                     owed = ptx_load_word(&own->owed), read = rt_load_acquire_device(&own->read);
        if (lane < RT_PART_WARPS)
            n->wanted[lane] = (arrived & ~(parts - 1)) + parts;
        if (lane < parts) {
            if (lane != t.e->part)
                n->sums[lane] = sums + (rt_u64)worker * RT_PART_BYTES;
            n->rooms[lane] = rooms + worker;
        }
        if (lane == t.e->part) {
            n->room = sums + (rt_u64)worker * RT_PART_BYTES;
            n->sums[lane] = parts_scratch() - 2 * parts_first(p) * PARTS_ROW;
            if (read != owed)
                parts_await(&own->read, owed);
            ptx_store_word(&own->owed,
                           owed + (parts - 1) * (p.joint ? RT_PART_WARPS / 2 : RT_PART_WARPS));
        }
    }
    __syncwarp();
}

/* Sums of a warp's 16 tokens: those of own groups, 8 rows each, to scratch, others to the room.
 * Lane (g, c) has rows 2c, 2c + 1 of w for tokens g and g + 8: half of a unit of 16 bytes each;
 * token g + 8 is 128 bytes on.  Two neighbouring lanes fill a unit, and eight such pairs 128 bytes
 * together. */
MPK_FN void parts_put(const float *sum, const tile_plan &p)
{
    /* groups that the warpgroup has, and the first of them */
    const int groups = p.joint ? p.groups / 2 : p.groups;
    const int begin = p.joint ? mpk_thread() / 128 * groups : 0;
    const int g = mpk_thread() % 32 / 4, c = mpk_thread() % 4, token = mpk_thread() / 32 * 16 + g;
    const int own = parts_own(p), first = parts_first(p) - begin;
    const int at = c / 2 * PARTS_ROW + token * 16 + c % 2 * 8;
    char *room = parts_noted()->room + 2 * begin * PARTS_ROW + at,
         *scratch = parts_scratch() - 2 * first * PARTS_ROW + at;
#pragma unroll
    for (int n = 0; n < BOX_SUMS / 4; n++) {
        if (!BOX_HAS_UNIT(n / 8) || n >= groups)
            break;
        char *to = ((rt_u32)(n - first) < (rt_u32)own ? scratch : room) + 2 * n * PARTS_ROW;
        ptx_store_sums(to, sum[4 * n], sum[4 * n + 1]);
        ptx_store_sums(to + 128, sum[4 * n + 2], sum[4 * n + 3]);
    }
}

/* A lane of 16, and for entries the others: the sums of this part's columns of a token, from
 * scratch to the room.  Called before parts_meet, which publishes them with the rest. */
MPK_FN void parts_put_row_sums(void)
{
    const int lane = mpk_thread() % 32,
              at = mpk_thread() / 32 * 16 + lane % 16 + lane / 16 * RT_PART_TOKENS;
    if (lane < 16 || MPK_CENTRED)
        ptx_store_word(parts_noted()->room + RT_PART_SUMS + at * 4,
                       __float_as_uint(parts_scales()[at]));
}

/* A warp: publish what it has put, and, if it gathers, wait until the sums of all partners are
 * there.  The first meeting puts every lane's stores before lane 0's addition, the second hands
 * what it has acquired to all. */
MPK_FN void parts_meet(const mpk_task &t, bool gathers)
{
    const int warp = mpk_thread() / 32;
    __syncwarp();
    if (mpk_thread() % 32 == 0) {
        rt_word *arrived = &((rt_meeting *)t.e->meeting)->arrived[warp];
        ptx_add_release(arrived, 1);
        if (gathers)
            parts_await(arrived, parts_noted()->wanted[warp]);
    }
    __syncwarp();
}

/* In fp32 and in the order of parts, which is what makes the bits independent of which part is
 * done first. */
MPK_FN void parts_add(const mpk_words &v, float *sum)
{
    sum[0] += __uint_as_float(v.x);
    sum[1] += __uint_as_float(v.y);
    sum[2] += __uint_as_float(v.z);
    sum[3] += __uint_as_float(v.w);
}

/* Where a lane's token and groups are.  A lane has a token of the warp's 16, of these the first 16
 * lanes the even and the others the odd groups of the task: so neighbouring lanes read 256 bytes of
 * a room together, and two lanes store 32 bytes of a row of y. */
struct parts_lane {
    int token, half; /* of the tile's 128; 0 or 1: the lane's first group */
    int first, own;  /* groups of the tile that are the task's; none of a token that is not alive */
};

/* A warp: the sums of all parts of its tokens and own groups, in place of the own ones.  A lane
 * goes through the groups, and for each through the parts; so many of these are loaded together, of
 * several groups where the parts are fewer.  It stores where it alone has read, so the lanes need
 * not meet. */
MPK_FN void parts_gather(const parts_lane &l, int parts)
{
    const int shift = tile_shift_of(parts), end = (l.own + 1) / 2 << shift;
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0}; /* of a group, of the parts so far */
    char *to = parts_scratch() + 2 * l.half * PARTS_ROW + l.token * 16;
    const rt_u32 from = (rt_u32)(2 * (l.first + l.half) * PARTS_ROW + l.token * 16);
#pragma unroll 1
    for (int at = 0; at < end; at += PARTS_LOADS) {
        /* What is not there is not loaded and stays 0. */
        mpk_words v[PARTS_LOADS][2] = {};
#pragma unroll
        for (int i = 0; i < PARTS_LOADS; i++) {
            const int pair = (at + i) >> shift, part = (at + i) & (parts - 1);
            const bool is_there = 2 * pair + l.half < l.own;
            const char *p = parts_noted()->sums[part] + from + 4 * pair * PARTS_ROW;
            ptx_load_sums_if(p, is_there, &v[i][0]);
            ptx_load_sums_if(p + PARTS_ROW, is_there, &v[i][1]);
        }
#pragma unroll
        for (int i = 0; i < PARTS_LOADS; i++) {
            const int pair = (at + i) >> shift;
            parts_add(v[i][0], sum);
            parts_add(v[i][1], sum + 4);
            if (((at + i + 1) & (parts - 1)) != 0)
                continue;
            float4 *s_sum = (float4 *)(to + 4 * pair * PARTS_ROW);
            if (2 * pair + l.half < l.own) {
                s_sum[0] = {sum[0], sum[1], sum[2], sum[3]};
                s_sum[PARTS_ROW / 16] = {sum[4], sum[5], sum[6], sum[7]};
            }
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e] = 0;
        }
    }
}

/* A warp: it no longer reads the others' rooms.  A lane for each partner counts `read` there: the
 * release says that all reads are done.  Called while the warp has no store in flight, for which
 * the release would wait. */
MPK_FN void parts_leave(const mpk_task &t)
{
    const int lane = mpk_thread() % 32;
    __syncwarp();
    if (lane < (int)t.e->parts && lane != (int)t.e->part)
        ptx_add_release(&parts_noted()->rooms[lane]->read, 1); /* partner: parts_begin */
}

/* The room of a part's worker. */
MPK_FN const char *parts_room(const mpk_task &t, int part)
{
    return part == (int)t.e->part ? parts_noted()->room : parts_noted()->sums[part];
}

/* The factor of a token: its row is summed by parts too, unless that was done before. */
MPK_FN float parts_scale(const mpk_task &t, const tile_shape &s, int parts, int token)
{
    row_sums sums = {}; /* over the parts' columns */
    if (!s.norm)
        return s.eps;
    if (squares_are_summed(t))
        return parts_scales()[token];
#pragma unroll 1
    for (int first = 0; first < parts; first += 4) {
        rt_u32 square[4], entry[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const char *from =
                parts_room(t, first + i < parts ? first + i : 0) + RT_PART_SUMS + token * 4;
            square[i] = ptx_load_word(from);
            if (MPK_CENTRED)
                entry[i] = ptx_load_word(from + RT_PART_TOKENS * 4);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums.square += first + i < parts ? __uint_as_float(square[i]) : 0;
            sums.entry += first + i < parts ? __uint_as_float(entry[i]) : 0;
        }
    }
    return tile_factor(s.norm, sums, s.columns, s.eps);
}

/* Where a group's columns of y of a token are, in bytes from y's first; g: of the tile. */
MPK_FN rt_u64 parts_at(const tile_shape &s, int row, int group)
{
    const int column = group << (s.activation != ACTIVATE_NONE ? 2 : 3);
    return ((rt_u64)(rt_u32)row * (rt_u32)s.rows + (rt_u32)column) * 2;
}

/* Make a group's columns of y for one token, scaled; s_sum: its sums; s_bias: its biases; r: the
 * residual.  Returns the sums of the columns; 0 where they are gated. */
MPK_FN row_sums parts_store(const mpk_task &t, const tile_shape &s, const char *s_sum, float scale,
                            int row, int group, const float *s_bias, const mpk_words &r)
{
    char *y = mpk_at<char>(t, s.y) + parts_at(s, row, group);
    const mpk_words a = ptx_load_shared_words(s_sum), b = ptx_load_shared_words(s_sum + PARTS_ROW);
    tile_eight sums = {{__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z),
                        __uint_as_float(a.w), __uint_as_float(b.x), __uint_as_float(b.y),
                        __uint_as_float(b.z), __uint_as_float(b.w)}};
    if (s.activation != ACTIVATE_NONE) {
        float v[4]; /* the gated columns */
        tile_eight bias = {};
        if (TILE_HAS(TILE_FORM_BOX_ENDS))
            bias = box_eight(s_bias);
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = tile_activate(s.activation, sums.at[2 * i] * scale + bias.at[2 * i]) *
                   (sums.at[2 * i + 1] * scale + bias.at[2 * i + 1]);
        const rt_u32 low = halves_pack(v[0], v[1]), high = halves_pack(v[2], v[3]);
        ptx_store_two_words(y, low, high);
        mpk_send_two_words(t.e->sends, y, low, high);
        return {};
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums.at[i] *= scale;
    if (BOX_HAS_ENDS)
        box_finish_sums(s, s.after, box_eight(s_bias),
                        TILE_IS_IMAGE(s) ? box_eight(s_bias + BOX_FACTORS) : tile_eight{}, &sums);
    return row_sums_add(box_store(t.e->sends, (rt_u64)y, sums, r, TILE_HAS_RELU(s)), {});
}

/* Where a lane keeps the residual of its groups until the sums are there, after all own sums: 16
 * bytes for each.  NULL: there is no residual, or no room for it. */
MPK_FN char *parts_residual(const tile_shape &s, const parts_lane &l)
{
    const int at = 2 * l.own * PARTS_ROW, bytes = (l.own + 1) / 2 * (MPK_THREADS * 16);
    return s.residual >= 0 && at + bytes <= 2 * TILE_X ? parts_scratch() + at + mpk_thread() * 16
                                                       : 0;
}

/* The lane's residual, requested before it waits for others. */
MPK_FN void parts_ask_residual(const mpk_task &t, const tile_shape &s, const parts_lane &l, int row,
                               int group, char *s_residual)
{
    if (s_residual)
#pragma unroll 1
        for (int g = l.half; g < l.own; g += 2)
            ptx_copy_async(s_residual + g / 2 * (MPK_THREADS * 16),
                           mpk_at<const char>(t, s.residual) + parts_at(s, row, group + g), true);
    ptx_copy_async_commit();
}

/* A warp, after parts_put: y of its tokens and of this task's box.  The residual is asked for
 * before the wait and the factor before the gathering; y is stored after parts_leave, whose release
 * would wait for the stores. */
MPK_FN void parts_finish(const mpk_task &t, const tile_shape &s, const tile_plan &p)
{
    const int lane = mpk_thread() % 32, token = mpk_thread() / 32 * 16 + lane % 16,
              row = (int)t.e->lo[0] + (p.joint ? token % TILE_TOKENS : token);
    const bool alive = row < (int)t.hi0;
    if (!parts_gathers(p)) {
        parts_meet(t, false);
        return;
    }
    const parts_lane l = {token, lane / 16, parts_first(p), alive ? parts_own(p) : 0};
    const int group = p.first + l.first; /* of y */
    char *s_residual = parts_residual(s, l);
    parts_ask_residual(t, s, l, row, group, s_residual);
    parts_meet(t, true);
    const float scale = parts_scale(t, s, p.parts, token);
    parts_gather(l, p.parts);
    parts_leave(t);
    ptx_copy_async_wait<0>();
    row_sums stored = {};
    const float *s_bias = box_biases();
#pragma unroll 1
    for (int g = l.half; g < l.own; g += 2) {
        mpk_words r = {};
        if (s_residual)
            r = ptx_load_shared_words(s_residual + g / 2 * (MPK_THREADS * 16));
        else if (s.residual >= 0)
            r = ptx_load_words(mpk_at<const char>(t, s.residual) + parts_at(s, row, group + g));
        const row_sums more = parts_store(t, s, parts_scratch() + 2 * g * PARTS_ROW + token * 16,
                                          scale, row, group + g, s_bias + 8 * g, r);
        stored.square += more.square;
        stored.entry += more.entry;
    }
    if (t.e->at[RT_SQUARES_OF_Y]) {
        /* the sum of the even groups, then that of the odd ones */
        stored = row_sums_of_lanes(stored, 16, 32);
        if (lane < 16 && alive)
            squares_store((char *)t.e->at[RT_SQUARES_OF_Y] +
                              (rt_u64)((rt_u32)row * (rt_u32)RT_SQUARES_ROW),
                          stored);
    }
}

#endif

#endif
