/* embedding_rows.cuh - rows of a table by id, 16 bytes at a time: table and result of one 16-bit
 * dtype.  embedding, whose ids are tokens and whose rows may be multiplied by a factor; gather,
 * whose table is another result of the step.
 *
 * Input: ids, i32 or i64, and a table of dense rows; output: the task's box of rows and columns.
 * An id that names no row gives zeros: ids are data.  src/gen/body_embedding_rows.c says when it
 * applies; the worker has waited for the task's event.
 *
 * A piece is 8 columns.  A thread has EMBED_AT_ONCE pieces in flight: it loads that many ids,
 * then the pieces that they name, then stores. Cost: the bytes of the rows, read and written,
 * and two latencies of L2 for every four pieces.
 */
#ifndef TASK_EMBEDDING_ROWS_CUH
#define TASK_EMBEDDING_ROWS_CUH

#include "ptx/ptx.cuh"
#include "tile/halves.cuh"

enum { EMBED_X = 2 /* operands 0 and 1 are ids and table, or the other way round */ };
/* Rows whose pieces a thread has in flight: four words of 16 bytes are 16 registers. */
enum { EMBED_AT_ONCE = 4 };

/* Store piece `piece` of a row, or of it what lies in columns lo to hi - 1.  A box that cuts a
 * piece must not write its neighbour's columns. */
MPK_FN void embed_store(rt_u16 *row, int piece, int lo, int hi, const mpk_words &w)
{
    if (piece * 8 >= lo && piece * 8 + 8 <= hi) {
        *(mpk_words *)(row + piece * 8) = w;
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        const rt_u32 word = i < 4 ? (i < 2 ? w.x : w.y) : i < 6 ? w.z : w.w;
        if (piece * 8 + i >= lo && piece * 8 + i < hi)
            row[piece * 8 + i] = (rt_u16)(word >> (i % 2 * 16));
    }
}

/* Id `item`, of 32 bits or of 64 (wide); n_rows: there is no such row.  A 64-bit id with
 * anything in its high word is negative or too large: neither names a row. */
MPK_FN rt_u32 embed_id(const char *ids, int item, rt_u32 n_rows, bool wide)
{
    const char *at = ids + item * (wide ? 8 : 4); /* the id's low word */
    return wide && ptx_load_word(at + 4) ? n_rows : ptx_load_word(at);
}

/* Two columns times the factor. */
MPK_FN rt_u32 embed_scaled(rt_u32 v, float factor)
{
    return halves_pack(halves_low(v) * factor, halves_high(v) * factor);
}

/* All threads.  Threads share out the pieces of a row, 2^shift of them side by side, and what
 * threads are left over the rows: no division, which would be most of the code, and code that
 * runs once in a step comes from far.  ids: the operand that has them; n_rows: of the table, or
 * those that are alive. */
template <bool SCALED>
MPK_FN void embed_rows(const mpk_task &t, int ids, int columns, rt_u32 n_rows, bool wide,
                       float factor)
{
    const char *g_ids = mpk_at<const char>(t, ids);
    const int lo = (int)mpk_lo(t, 1), hi = (int)mpk_hi(t, 1), first = lo / 8,
              pieces = (hi + 7) / 8 - first;
    const int token0 = (int)mpk_lo(t, 0), n = (int)mpk_hi(t, 0) - token0, thread = mpk_thread();
    const mpk_words none = {0, 0, 0, 0};
    int shift = 0;
    while (1 << shift < pieces && 2 << shift <= MPK_THREADS)
        shift++;
    static_assert((MPK_THREADS & (MPK_THREADS - 1)) == 0, "no thread is left over, whatever shift");
    /* shift: the least with a thread for each piece, or as many as there are threads; then a thread
     * has several pieces of a row, and all threads one row at a time. */
    const int rows = MPK_THREADS >> shift, row0 = thread >> shift;
#pragma unroll 1
    for (int piece = first + (thread & ((1 << shift) - 1)); piece < first + pieces;
         piece += 1 << shift)
    /* three loops, so that all ids and then all pieces are in flight together */
#pragma unroll 1
        for (int base = row0; base < n; base += rows * EMBED_AT_ONCE) {
            const char *table = mpk_at<const char>(t, 1 - ids) + piece * 16;
            rt_u32 id[EMBED_AT_ONCE]; /* n_rows: a row of zeros */
            mpk_words w[EMBED_AT_ONCE];
#pragma unroll
            for (int i = 0; i < EMBED_AT_ONCE; i++)
                id[i] = base + i * rows < n
                            ? embed_id(g_ids, token0 + base + i * rows, n_rows, wide)
                            : n_rows;
#pragma unroll
            for (int i = 0; i < EMBED_AT_ONCE; i++)
                w[i] = id[i] < n_rows ? ptx_load_words(table + (rt_u64)id[i] * (rt_u32)columns * 2)
                                      : none;
#pragma unroll
            for (int i = 0; i < EMBED_AT_ONCE; i++)
                if (base + i * rows < n) {
                    if (SCALED)
                        w[i] = {embed_scaled(w[i].x, factor), embed_scaled(w[i].y, factor),
                                embed_scaled(w[i].z, factor), embed_scaled(w[i].w, factor)};
                    embed_store(mpk_at<rt_u16>(t, EMBED_X) +
                                    (rt_u64)(token0 + base + i * rows) * (rt_u32)columns,
                                piece, lo, hi, w[i]);
                }
        }
}

/* A function of its own: few registers, called once a step.  Inlined it would be in the loop over
 * tasks, whose registers are those of its worst body. */
static __device__ __noinline__ void embedding_rows(const mpk_task &t, int ids, int columns,
                                                   rt_u32 n_rows, bool wide)
{
    embed_rows<false>(t, ids, columns, n_rows, wide, 1);
}

static __device__ __noinline__ void embedding_rows_scaled(const mpk_task &t, int ids, int columns,
                                                          rt_u32 n_rows, bool wide, float factor)
{
    embed_rows<true>(t, ids, columns, n_rows, wide, factor);
}

#endif
