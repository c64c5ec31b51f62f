/* attention_parts.cuh - attention over the paged cache, each token's context in parts, for any
 * shape.
 *
 * The operator attention_parts (src/op/attention_parts.c).  All threads do one query head of one
 * token and one place after the other, as attention.cuh does a whole context.  The CPU compiles
 * programs with this operator; on a GPU a program that names it has it, and latent attention in
 * steps of few tokens, whose fast body is attention_latent.cuh.  Scratch and barriers are those of
 * attention.cuh.
 */
#ifndef TASK_ATTENTION_PARTS_CUH
#define TASK_ATTENTION_PARTS_CUH

#include "task/attention.cuh"

#define CONTEXT_FN MPK_FN
#include "op/context.h"

/* One place of a query head whose query is being written to scratch, read after the first barrier
 * of attend_cached; without a part: zeros and -inf. */
MPK_FN void attention_place(const mpk_task &t, const heads_place &p, const attend_how &how,
                            const mpk_view &part, const mpk_view &lse, rt_i64 token, rt_i64 head,
                            rt_i64 kv_head, rt_i64 place)
{
    int size = (int)p.k_cache.dims[3];
    rt_i64 position = heads_integer(t, p.positions, token), slot = heads_integer(t, p.slots, token);
    rt_i64 room = p.pages.dims[1] * p.k_cache.dims[2]; /* positions of a slot */
    const rt_i64 first = attend_first(how.window, position),
                 last = position < room ? position : room - 1;
    const int blocks = context_blocks(first, last), parts = context_parts(blocks);
    const int i = context_from(parts, (int)place);
    char *g_part = mpk_data(t, part), *g_lse = mpk_data(t, lse);
    attend_sum a = attend_begin(t, size);
    /* Part i is this place's only if the next place has another first; else the place is empty, and
     * the result is what attend_begin has left.  The same in all threads: attend_cached has
     * barriers. */
    if (i < context_from(parts, (int)place + 1)) {
        const rt_i64 block = first / CONTEXT_BLOCK;
        rt_i64 lo = (block + context_begin(blocks, parts, i)) * CONTEXT_BLOCK,
               hi = (block + context_begin(blocks, parts, i + 1)) * CONTEXT_BLOCK - 1;
        /* Blocks are counted from position 0, so the first and the last may stick out of what is
         * seen. */
        lo = lo > first ? lo : first;
        hi = hi < last ? hi : last;
        attend_cached(t, p, slot, lo, hi, kv_head, how, &a);
    }
    const rt_i64 to = token * part.stride[0] + place * part.stride[1];
    /* Entry k is the thread's own in scratch, so no barrier precedes. */
    for (int k = mpk_thread(); k < size; k += MPK_THREADS)
        mpk_put(part, g_part, to + (head * size + k) * part.stride[2],
                attend_answer(t, size, &a, k));
    if (mpk_thread() == 0)
        mpk_put(lse, g_lse, token * lse.stride[0] + place * lse.stride[1] + head * lse.stride[2],
                a.sum == 0 ? -MPK_INFINITY : a.largest + logf(a.sum));
}

/* The body: tokens, query heads and places of the box, one after the other. */
MPK_FN void attention_parts_run(const mpk_task &t, const mpk_view &q, const heads_place &p,
                                const attend_how &how, const mpk_view &part, const mpk_view &lse)
{
    int size = (int)q.dims[2];
    rt_i64 group = q.dims[1] / p.k_cache.dims[1]; /* query heads of a KV head */
    for (rt_i64 token = mpk_lo(t, 0); token < (rt_i64)mpk_hi(t, 0); token++)
        for (rt_i64 head = mpk_lo(t, 2) / size; head < (rt_i64)mpk_hi(t, 2) / size; head++) {
            attend_take_query(t, q, token, head);
            for (rt_i64 place = mpk_lo(t, 1); place < (rt_i64)mpk_hi(t, 1); place++)
                attention_place(t, p, how, part, lse, token, head, head / group, place);
        }
}

#endif
