/* move.h - copies and fills of whole boxes, bit for bit: what copy, concat, pad and their like
 * consist of.
 *
 * Neighbouring axes that both tensors step through evenly are merged, so that what lies densely
 * becomes a few long runs.  Elements, not blocks: rows of block dtypes keep their last axis.
 *
 *   box [4, 8, 64] of dense [4, 8, 64] into dense [4, 16, 64]: axes 1 and 2 merge, 4 runs of 512
 *
 * Uses walk.h; called by the reference code of those operators.
 */
#ifndef OP_MOVE_H
#define OP_MOVE_H

#include "op/walk.h"

/* A box of two tensors: where its first entry lies in each, and the strides, in elements. */
typedef struct move_box {
    uint32_t rank;
    int64_t to, from, to_stride[IR_MAX_RANK], from_stride[IR_MAX_RANK];
    ir_box box; /* from 0 */
} move_box;

/* Add an axis of n entries.  It is merged with the one before it where both tensors step from
 * one to the other evenly; axes of one entry are dropped. */
static inline void move_add_axis(move_box *m, int64_t n, int64_t to_stride, int64_t from_stride)
{
    uint32_t last = m->rank - 1;
    bool joins =
        m->rank && m->to_stride[last] == n * to_stride && m->from_stride[last] == n * from_stride;
    if (n == 1)
        return;
    last = joins ? last : m->rank++;
    m->box.hi[last] = joins ? m->box.hi[last] * n : n;
    m->to_stride[last] = to_stride;
    m->from_stride[last] = from_stride;
}

/* Exchange two entries of one of the lists. */
static inline void move_swap(int64_t *n, uint32_t a, uint32_t b)
{
    int64_t first = n[a];
    n[a] = n[b];
    n[b] = first;
}

/* Move the longest axis to the end if the last one is short: runs go along the last axis. */
static inline void move_order(move_box *m)
{
    uint32_t longest = m->rank - 1;
    if (!m->rank || m->box.hi[longest] >= 16)
        return;
    for (uint32_t i = m->rank - 1; i-- > 0;)
        longest = m->box.hi[i] > 8 * m->box.hi[longest] ? i : longest;
    move_swap(m->box.hi, longest, m->rank - 1);
    move_swap(m->to_stride, longest, m->rank - 1);
    move_swap(m->from_stride, longest, m->rank - 1);
}

/* Copy runs along the last axis, one after the other.  The two tensors must not overlap. */
static inline void move_run(move_box *m, const op_view *to, const op_view *from)
{
    move_order(m);
    uint32_t last = m->rank ? m->rank - 1 : 0;
    int64_t at[IR_MAX_RANK] = {0}, n = m->rank ? m->box.hi[last] : 1;
    int64_t to_stride = m->rank ? m->to_stride[last] : 1;
    int64_t from_stride = m->rank ? m->from_stride[last] : 1;
    do {
        int64_t t = m->to, f = m->from;
        for (uint32_t i = 0; i < last; i++) {
            t += at[i] * m->to_stride[i];
            f += at[i] * m->from_stride[i];
        }
        walk_copy(to, t, to_stride, from, f, from_stride, n);
    } while (walk_next(&m->box, last, at));
}

/* Copy `part` of `to`, which may be empty, from the entries of `from` that lie `before` earlier
 * along each axis. */
static inline void move_part(const op_view *to, const ir_box *part, const op_view *from,
                             const int64_t *before)
{
    move_box m = {.to = walk_offset(to, part->lo)};
    if (ir_box_is_empty(part, to->rank))
        return;
    for (uint32_t i = 0; i < to->rank; i++) {
        m.from += (part->lo[i] - before[i]) * from->stride[i];
        move_add_axis(&m, part->hi[i] - part->lo[i], to->stride[i], from->stride[i]);
    }
    move_run(&m, to, from);
}

/* Set every entry of `part` of `to` to this number, converted as cast does: a copy with strides
 * of 0. */
static inline void move_fill(const op_view *to, const ir_box *part, double value)
{
    uint64_t bits = 0;
    op_view one = {.data = &bits, .dtype = to->dtype};
    move_box m = {.to = walk_offset(to, part->lo)};
    if (ir_box_is_empty(part, to->rank))
        return;
    walk_store_double(&one, 0, value);
    for (uint32_t i = 0; i < to->rank; i++)
        move_add_axis(&m, part->hi[i] - part->lo[i], to->stride[i], 0);
    move_run(&m, to, &one);
}

/* to[i] = the entry of `from` at offset at[i], or zero if that is negative. */
#define MOVE_PICK(type)                                                  \
    do {                                                                 \
        for (int64_t i = 0; i < n; i++)                                  \
            ((type *)to->data)[offset + i * stride] =                    \
                at[i] < 0 ? (type)0 : ((const type *)from->data)[at[i]]; \
    } while (0)

/* Elements are moved by their size alone, so one loop serves all dtypes of that size. */
static inline void move_pick(const op_view *to, int64_t offset, int64_t stride, const op_view *from,
                             const int64_t *at, int64_t n)
{
    switch (ir_dtype_table[to->dtype].block_bytes) {
    case 1:
        MOVE_PICK(uint8_t);
        break;
    case 2:
        MOVE_PICK(uint16_t);
        break;
    case 4:
        MOVE_PICK(uint32_t);
        break;
    default:
        MOVE_PICK(uint64_t);
    }
}

#endif
