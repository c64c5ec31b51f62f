/* recurrent.h - state that a request carries from token to token, beside the paged KV cache: what
 * operators with such state share.
 *
 * State [B, ..] has an entry for each request slot.  The tokens of a step are taken in their order,
 * in which the positions of each slot rise.  A token at position 0 begins a text,
 * so it finds zeros in place of what the slot's last request has left: nothing has to be cleared
 * when a request is admitted, or fed again from its beginning.
 *
 * positions and slots are data of the step: a token of a slot that does not exist, or of a negative
 * position, changes no state, and its result is zero.  The tokens of a slot are neighbours, a run,
 * within which no such token stands: bodies for GPUs find a token's past in the rows before it.
 * (A step feeds each request once, rt_fill.h, and where there is such state decoding tokens are not
 * dealt among those of prompts, rt_deal.h.)  The reference takes tokens in any order.
 *
 * Steps may cut a text anywhere and give the same bits, since each token finds what the one before
 * it left.  A token cannot be taken back: texts with drafts that may fail, and texts that begin in
 * the middle of another's, are not for these operators.
 *
 * Used by causal_conv and delta_rule.
 */
#ifndef OP_RECURRENT_H
#define OP_RECURRENT_H

#include "op/fill.h"
#include "op/walk.h"

/* Check positions i32[T] and slots i32[T], inputs first and first + 1, of T tokens. */
static inline mpk_status recurrent_expect(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                          uint32_t first, const ir_tensor *x)
{
    for (uint32_t i = first; i < first + 2; i++) {
        TRY(shape_expect(cx, g, op, i, SHAPE_I32, 1, x->dims));
        TRY(shape_expect_live(cx, g, op, i, x->live));
    }
    return MPK_OK;
}

/* What a token finds: its slot, and whether its text begins with it.  False: it has no slot. */
static inline bool recurrent_find(const op_call *call, uint32_t first, int64_t token,
                                  int64_t n_slots, int64_t *slot, bool *begins)
{
    const op_view *positions = &call->in[first], *slots = &call->in[first + 1];
    const int64_t position = walk_load_int(positions, token * positions->stride[0]);
    *slot = walk_load_int(slots, token * slots->stride[0]);
    *begins = position == 0;
    return position >= 0 && *slot >= 0 && *slot < n_slots;
}

/* Test data for positions and slots: each slot has a run of neighbours, of which about half begin a
 * text.  In one of two runs some tokens at either end are out of range, up to all of a short run.
 * (positions and slots are drawn apart: a token may be out of range by one of them.) */
static inline void recurrent_fill(const ir_graph *g, const ir_op *op, uint32_t first,
                                  int64_t n_slots, uint32_t input, uint64_t seed, void *data)
{
    if (input != first && input != first + 1)
        return;
    const ir_tensor *t = shape_input(g, op, input);
    const int64_t n = ir_elements(t), run = (n + n_slots - 1) / n_slots;
    for (int64_t i = 0; i < n; i++) {
        const int64_t slot = i / run, at = i % run;
        const int64_t offset = (int64_t)(rng_u64(11, (uint64_t)(slot + n)) % 2) * 5;
        const uint64_t ends = rng_u64(seed, (uint64_t)slot); /* out of range at its ends */
        int64_t value = input == first ? offset + at : slot;
        if (ends % 2 == 0 && (at < (int64_t)(ends / 2 % 3) || at >= run - (int64_t)(ends / 8 % 3)))
            value = input == first ? -1 : fill_beyond(rng_u64(seed, (uint64_t)(n + i)), n_slots);
        fill_store(t, i, value, data);
    }
}

#endif
