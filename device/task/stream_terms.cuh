/* stream_terms.cuh - x of a streamed product as the sum of terms (op/sum_linear.c): each worker
 * adds what it multiplies, and stores a part of the sum for later operators.
 *
 * Terms come from several GPUs and are carried: each warp polls the words of its own columns.  A
 * slot is a row's columns of one page that a warp multiplies, 256 bytes; half a warp has a slot, a
 * lane 8 columns of it, of all terms and of two slots at once, so that all loads of a row of 4,096
 * columns are in flight together.  The sums go through the scratch to the lanes that multiply them:
 * into the place of the warp's own sums of products (stream_sums), which it writes later.
 *
 *   slot   row 0 page 0 | row 0 page 1 | ... | row 1 page 0 | ...     STREAM_TILE slots; 3 pages
 *                                                                     of a row take as many as 4
 *
 * This code stands between two products, and every instruction of it is waited for: there are no
 * divisions after the terms have come, and the number of terms is a constant.
 *
 * Called by linear_stream.cuh.  The order of a sum and its rounding are those of sum_rows.cuh.
 */
#ifndef TASK_STREAM_TERMS_CUH
#define TASK_STREAM_TERMS_CUH

#include "task/stream_x.cuh"

/* Where no task of the kernel has such an x (MPK_TERMS), the code is left out. */
template <int WIDE, int FORM> MPK_FN bool stream_has_terms(const stream_shape &s)
{
    return MPK_TERMS && !WIDE && !FORM && s.terms;
}

/* Where a warp's slot lies in the scratch: its 256 bytes of row and page, 128 columns of 16 bits.
 * The eight warps' slots of one number are neighbours, as the row's columns are. */
MPK_FN char *stream_slot(char *s_parts, int slot, int warp)
{
    return s_parts + (slot * 8 + warp) * 256;
}

/* The first of a lane's 8 columns of a slot; -1: there are none, as beyond the last page, or where
 * three pages have the slots of four.  piece: the lane among the 16 that have the slot. */
MPK_FN int stream_term_column(const stream_shape &s, int page, int warp, int piece)
{
    const int of_warp = page + 1 == s.pages ? s.last * 32 : 128, /* columns of the page */
        column = page * STREAM_COLUMNS + warp * of_warp + piece * 8;
    return page < s.pages && piece * 8 < of_warp && column < s.columns ? column : -1;
}

/* All terms of one sum, the third of which may be absent: then its words hold -0, which changes no
 * sum. */
enum { STREAM_NO_TERM = 0x80008000u };
struct stream_terms {
    const rt_u16 *at[STREAM_MOST_TERMS]; /* of the tensors; NULL: absent */
    bool carried[STREAM_MOST_TERMS];
};
MPK_FN stream_terms stream_find_terms(const mpk_task &t, const stream_shape &s)
{
    stream_terms terms;
#pragma unroll
    for (int k = 0; k < STREAM_MOST_TERMS; k++) {
        const int operand = k ? STREAM_FIRST_TERM + k - 1 : s.x;
        /* x itself is the first term; s.terms counts those after it */
        terms.at[k] = k <= s.terms ? mpk_at<const rt_u16>(t, operand) : 0;
        terms.carried[k] = k <= s.terms && mpk_carries(t, operand);
    }
    return terms;
}

/* Issue the loads of 8 columns from entry `at` on, without waiting; AGAIN: of what was empty.  at
 * < 0: nowhere. */
template <bool AGAIN> MPK_FN void stream_ask_terms(const stream_terms &terms, int at, mpk_words *v)
{
#pragma unroll
    for (int k = 0; k < STREAM_MOST_TERMS; k++)
        if (at >= 0 && terms.at[k] && (!AGAIN || mpk_is_empty(v[k])))
            v[k] = mpk_load_terms(terms.at[k] + at);
}

/* Is a word of a carried term still empty? */
MPK_FN bool stream_misses_terms(const stream_terms &terms, const mpk_words *v)
{
    bool misses = false;
#pragma unroll
    for (int k = 0; k < STREAM_MOST_TERMS; k++)
        misses |= terms.carried[k] && mpk_is_empty(v[k]);
    return misses;
}

/* One word of each term, two entries: added in f32, in the order of the terms, rounded once.  As
 * sum_word of sum_rows.cuh: every GPU that adds these terms gets the same bits. */
MPK_FN rt_u32 stream_term_word(rt_u32 a, rt_u32 b, rt_u32 c)
{
    return halves_pack(halves_low(a) + halves_low(b) + halves_low(c),
                       halves_high(a) + halves_high(b) + halves_high(c));
}
MPK_FN mpk_words stream_term_sum(const mpk_words *v)
{
    return {stream_term_word(v[0].x, v[1].x, v[2].x), stream_term_word(v[0].y, v[1].y, v[2].y),
            stream_term_word(v[0].z, v[1].z, v[2].z), stream_term_word(v[0].w, v[1].w, v[2].w)};
}

/* Which columns of the sum the task stores: n from lo on, in whole pieces of 8.  All tasks of the
 * product add all columns; each stores a share that follows from its box of y, so that together
 * they store each once.  They are found before the terms come: there are divisions in it. */
struct stream_share {
    rt_u32 lo, n;
};
MPK_FN stream_share stream_find_share(const mpk_task &t, const stream_shape &s)
{
    const rt_u32 columns = (rt_u32)s.rows, width = (rt_u32)s.columns,
                 lo = SUM_COLUMN(t.e->lo[1], columns, width),
                 hi = SUM_COLUMN(t.e->hi[1], columns, width);
    return {ptx_own(lo), ptx_own(hi - lo)};
}

/* Add N slots of this lane, `first` and first + 2, and leave the sums in the scratch.  A slot after
 * the last one has no columns.  shift: a row has 2^shift slots.  Words of a third term that is
 * absent are -0, others that are not loaded 0: columns after the last become 0. */
template <int N>
MPK_FN void stream_add_slots(const mpk_task &t, const stream_shape &s, const stream_terms &terms,
                             const stream_share &share, int first, int shift, int slots, int thread,
                             char *s_parts)
{
    const int warp = thread / 32, piece = thread % 16;
    const rt_u32 third = terms.at[2] ? 0 : STREAM_NO_TERM;
    mpk_words v[N][STREAM_MOST_TERMS] = {};
    int at[N], column[N];
    bool misses;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int slot = first + 2 * i, row = slot >> shift, page = slot - (row << shift);
        column[i] = slot < slots ? stream_term_column(s, page, warp, piece) : -1;
        at[i] = column[i] < 0 ? -1 : ((int)t.e->lo[0] + row) * s.columns + column[i];
        v[i][2] = {third, third, third, third};
        stream_ask_terms<false>(terms, at[i], v[i]);
    }
    do {
        misses = false;
#pragma unroll
        for (int i = 0; i < N; i++)
            misses |= stream_misses_terms(terms, v[i]);
        if (misses)
#pragma unroll
            for (int i = 0; i < N; i++)
                stream_ask_terms<true>(terms, at[i], v[i]);
    } while (misses && !ptx_load_flag(&mpk_w.abort));
#pragma unroll
    for (int i = 0; i < N; i++) {
        const mpk_words words = stream_term_sum(v[i]);
        if (first + 2 * i < slots)
            *(mpk_words *)(stream_slot(s_parts, first + 2 * i, warp) + piece * 16) = words;
        if (column[i] >= 0 && (rt_u32)column[i] - share.lo < share.n)
            /* The sum is the operand after y; later operators read or poll it. */
            ptx_store_words(mpk_at<rt_u16>(t, s.y + 1) + at[i], words);
    }
}

/* All body threads, once a task, instead of loading x: `rows` rows of at most STREAM_NARROW_PAGES
 * pages. */
template <int AT_ONCE, int WIDE>
MPK_FN void stream_add_terms(const mpk_task &t, const stream_shape &s, int rows, int thread,
                             char *s_parts, stream_x<AT_ONCE, WIDE> &x)
{
    const int lane = thread % 32, g = lane / 4, c = lane % 4,
              shift = s.pages > 2 ? 2 : s.pages - 1, /* of a row's slots */
        slots = rows << shift;
    const stream_share share = stream_find_share(t, s);
    const stream_terms terms = stream_find_terms(t, s);
    if (slots <= 2)
        stream_add_slots<1>(t, s, terms, share, lane / 16, shift, slots, thread, s_parts);
    else
#pragma unroll 1
        for (int first = lane / 16; first < slots; first += 4)
            stream_add_slots<2>(t, s, terms, share, first, shift, slots, thread, s_parts);
    __syncwarp(); /* the slots of this warp have been written */
    /* a lane whose row does not exist multiplies row 0; sums of such rows are not stored */
    const char *from = stream_slot(s_parts, (g < rows ? g : 0) << shift, thread / 32) + c * 16;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        if (i >= s.pages)
            break;
#pragma unroll
        for (int j = 0; j < 4; j++)
            x.at[i][j][0] = *(const mpk_words *)(from + i * 2048 + j * 64);
    }
    __syncwarp(); /* and have been read: the warp's sums may take their place */
}

#endif
