/* pages.h - the paged KV cache: where the keys and values of (slot, position) lie (paper §6.1).
 *
 * cache[n_pages, G, P, K] has pages of P positions for G KV heads of K entries.  pages i32[B, N]
 * names the pages of each of B slots in the order of positions.  These integers are data of the
 * step: whatever they hold, nothing outside the cache is touched, because a slot, position or
 * page that does not exist has no place (-1).
 *
 * A cache of q8_0 holds a row of K entries as blocks of 32 (ir/blocks.h).  A row is packed by
 * itself when it is stored, so what a token reads does not depend on which tokens were stored
 * with it.
 *
 * An example: P = 4, a slot whose row of `pages` is 7, 2, -1.  Position 5 is entry 1 of the
 * second page, page 2: the row of KV head g begins at cache[2, g, 1, 0].  Position 9 has no page
 * and so no place.  Offsets are for KV head 0; the next head is stride[1] further on, in keys as
 * in values.
 *
 * Used by kv_write, rope_kv and the attention operators (heads.h, attend.h).
 */
#ifndef OP_PAGES_H
#define OP_PAGES_H

#include "ir/blocks.h"
#include "op/fill.h"
#include "op/walk.h"

/* What a cache may hold; entries and bytes of a block of q8_0. */
enum { PAGES_DTYPES = SHAPE_FLOAT | 1 << IR_Q8_0, PAGES_BLOCK = 32, PAGES_BLOCK_BYTES = 34 };

/* The offset in elements of cache[page, 0, position % P, 0], where `page` is the page that the
 * slot's row of `pages` has for this position; -1 if the slot, the position or the page does not
 * exist. */
static inline int64_t pages_find(const op_view *pages, const op_view *cache, int64_t slot,
                                 int64_t position)
{
    int64_t per_page = cache->dims[2];
    if (slot < 0 || slot >= pages->dims[0] || position < 0 || position / per_page >= pages->dims[1])
        return -1;
    int64_t page =
        walk_load_int(pages, slot * pages->stride[0] + position / per_page * pages->stride[1]);
    if (page < 0 || page >= cache->dims[0])
        return -1;
    return page * cache->stride[0] + position % per_page * cache->stride[2];
}

/* Check the shapes of positions i32[T], slots i32[T] and pages i32[B, N], which are inputs
 * first, first + 1, first + 2; T is `tokens`. */
static inline mpk_status pages_expect(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                      uint32_t first, int64_t tokens, ir_live live)
{
    for (uint32_t i = first; i < first + 2; i++) {
        TRY(shape_expect(cx, g, op, i, SHAPE_I32, 1, &tokens));
        TRY(shape_expect_live(cx, g, op, i, live));
    }
    return shape_expect(cx, g, op, first + 2, SHAPE_I32, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE});
}

/* Check the shapes of k_cache and v_cache [n_pages, G, P, K], inputs first and first + 1: both
 * have the same dims, if the second, where it is optional, is there. */
static inline mpk_status pages_expect_caches(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                             uint32_t first, int64_t kv_heads, int64_t head_size)
{
    TRY(shape_expect(cx, g, op, first, PAGES_DTYPES, 4,
                     (int64_t[]){SHAPE_FREE, kv_heads, SHAPE_FREE, head_size}));
    const ir_tensor *k = shape_input(g, op, first);
    return shape_expect(cx, g, op, first + 1, PAGES_DTYPES, 4, k->dims);
}

/* The part of a cache that belongs to the KV heads lo .. hi - 1, in all pages. */
static inline ir_box pages_box(const ir_tensor *cache, int64_t lo, int64_t hi)
{
    ir_box b = ir_box_whole(cache);
    b.lo[1] = lo;
    b.hi[1] = hi;
    return b;
}

/* Store n floats as a row of the cache, in its dtype; `offset` is in elements.  A row of q8_0
 * that is not finite, or beyond what its scales can say, becomes NaN: wrong numbers would be
 * harder to notice. */
static inline void pages_put_row(const op_view *cache, int64_t offset, int64_t n, const float *from)
{
    if (cache->dtype != IR_Q8_0) {
        walk_store_row(cache, offset, 0, n, from);
        return;
    }
    void *to = (char *)cache->data + ir_row_bytes(IR_Q8_0, offset);
    float zero = 0;
    for (int64_t i = 0; i < n; i++)
        /* stays 0 unless an entry is infinite or NaN */
        zero += from[i] * 0;
    if (zero != 0 || !blocks_pack_row(IR_Q8_0, from, NULL, n, to))
        memset(to, 0x7f, (size_t)ir_row_bytes(IR_Q8_0, n)); /* scales of 0x7f7f are NaN */
}

/* Store the keys (or values) of one token and KV head, a row of the cache.  Nothing happens if
 * the position has no place. */
static inline void pages_store(const op_view *pages, const op_view *cache, int64_t slot,
                               int64_t position, int64_t kv_head, const float *from)
{
    int64_t at = pages_find(pages, cache, slot, position);
    if (at >= 0)
        pages_put_row(cache, at + kv_head * cache->stride[1], cache->dims[3], from);
}

/* Where the rows of n tokens lie in a cache: at[n], as pages_find says.  If several tokens have
 * the same place, the last one wins: an earlier one among first .. last - 1 gets -1.  So the
 * result does not depend on which task writes first.  Cost: n (last - first) comparisons. */
static inline void pages_find_tokens(const op_view *positions, const op_view *slots,
                                     const op_view *pages, const op_view *cache, int64_t n,
                                     int64_t first, int64_t last, int64_t *at)
{
    for (int64_t t = 0; t < n; t++)
        at[t] = pages_find(pages, cache, walk_load_int(slots, t * slots->stride[0]),
                           walk_load_int(positions, t * positions->stride[0]));
    for (int64_t t = first; t < last; t++) {
        bool is_lost = false;
        for (int64_t later = t + 1; later < n; later++)
            is_lost |= at[later] == at[t];
        if (is_lost)
            at[t] = -1;
    }
}

/* Test data for positions, slots and pages (inputs first ..): token i is of slot i % B, the
 * tokens of a slot have consecutive positions from a random start, and the pages are distinct.
 * Slot 0 writes to page 0 first, except under one seed in three.  One integer in sixteen is
 * another: half of these are out of range, often by one. */
static inline void pages_fill(const ir_graph *g, const ir_op *op, uint32_t first, uint32_t cache,
                              uint32_t input, uint64_t seed, void *data)
{
    if (input < first || input > first + 2)
        return;
    const ir_tensor *t = shape_input(g, op, input), *pages = shape_input(g, op, first + 2),
                    *k = shape_input(g, op, cache);
    const int64_t slots = pages->dims[0], room = pages->dims[1] * k->dims[2],
                  tokens = ir_elements(shape_input(g, op, first)),
                  most = room - (tokens + slots - 1) / slots;
    for (int64_t i = 0; i < ir_elements(t); i++) {
        const uint64_t bits = rng_u64(seed, (uint64_t)i);
        const int64_t slot = input == first + 2 ? 0 : i % slots;
        const int64_t start =
            most > 0 ? (int64_t)(rng_u64(seed ^ 7, (uint64_t)slot) % (uint64_t)(most + 1)) : 0;
        const int64_t before = seed % 3 ? k->dims[0] - start / k->dims[2] % k->dims[0] : 1;
        int64_t limit = k->dims[0], value = (i + before) * 7 % k->dims[0];
        if (input == first) { /* positions */
            limit = room;
            value = start + i / slots;
        } else if (input == first + 1) { /* slots */
            limit = slots;
            value = slot;
        }
        if (bits % 16 == 0)
            value = bits / 16 % 2 ? fill_beyond(bits / 32, limit)
                                  : fill_choose(seed ^ 3, (uint64_t)i, limit);
        fill_store(t, i, value, data);
    }
}

#endif
