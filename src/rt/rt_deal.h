/* rt_deal.h - tokens that decode are dealt among the prompt's tokens of a step.
 *
 * Input: a step whose first tokens decode, one of each request, and whose others are pieces of
 * prompts.  Output: the same step with its tokens in another order, and rows that point to them.
 * rt_step_fill calls it where rt_serving.deals is set, all lanes.
 *
 * A task of attention takes some neighbouring tokens of a step.  A token that decodes reads the
 * whole context of its request; if all of them stood side by side, the task that has them would
 * read all contexts, while every other one has a piece of a prompt, and a step lasts as long as
 * its longest task.  So the step is cut in lots of RT_LOT tokens, and each lot begins with about
 * as many tokens that decode.  A piece of a prompt stays in order, and between two tasks it is cut
 * anyway.
 *
 * Lot l begins with the tokens i for which i * lots / decoding is l.  In all lots before it there
 * are ceil(l * decoding / lots) of them.
 *
 * Cost: the step inputs tokens, positions and slots are read and written once.
 */
#ifndef RT_DEAL_H
#define RT_DEAL_H

#include "rt/rt_feed.h"

/* Tokens of a lot; tokens of prompts from which on a step is dealt; entries that a lane moves at
 * once. */
enum { RT_LOT = 16, RT_DEAL_LEAST = 64, RT_DEAL_AT_ONCE = 4 };

/* The first `decoding` tokens of a step decode and are dealt to `lots` lots. */
typedef struct rt_deal {
    rt_u32 decoding, lots;
} rt_deal;

/* Tokens that decode in the lots before this one. */
RT_FN rt_u32 rt_deal_before(rt_deal d, rt_u32 lot)
{
    return lot < d.lots ? (lot * d.decoding + d.lots - 1) / d.lots : d.decoding;
}

/* Where token i goes, which decodes. */
RT_FN rt_u32 rt_deal_place(rt_deal d, rt_u32 i)
{
    const rt_u32 lot = i * d.lots / d.decoding;
    return lot * RT_LOT + i - rt_deal_before(d, lot);
}

/* Which token of a prompt comes to a place; RT_NONE: one that decodes. */
RT_FN rt_u32 rt_deal_source(rt_deal d, rt_u32 place)
{
    const rt_u32 lot = place / RT_LOT, upto = rt_deal_before(d, lot + 1);
    if (lot < d.lots && place % RT_LOT < upto - rt_deal_before(d, lot))
        return RT_NONE;
    return d.decoding + place - upto;
}

/* Where token i of the step goes, which is of a prompt: the first place p with as many tokens that
 * decode up to its lot as p - (i - decoding).  The search comes from below. */
RT_FN rt_u32 rt_deal_find(rt_deal d, rt_u32 i)
{
    rt_u32 place = i - d.decoding;
    for (;;) {
        const rt_u32 next = i - d.decoding + rt_deal_before(d, place / RT_LOT + 1);
        if (next == place)
            return place;
        place = next;
    }
}

/* All lanes: move the prompts' entries of one step input of n.  No token of a prompt goes to a
 * later place, so places are filled from the first on. */
RT_FN void rt_deal_column(rt_deal d, rt_i32 *column, rt_u32 n)
{
    for (rt_u32 first = 0; column && first < n; first += RT_DEAL_AT_ONCE * RT_LANES) {
        rt_i32 value[RT_DEAL_AT_ONCE];
        RT_UNROLL
        for (rt_u32 k = 0; k < RT_DEAL_AT_ONCE; k++) {
            const rt_u32 place = first + k * RT_LANES + rt_lane(),
                         source = place < n ? rt_deal_source(d, place) : RT_NONE;
            value[k] = source != RT_NONE ? column[source] : 0;
        }
        rt_meet(); /* all have read */
        RT_UNROLL
        for (rt_u32 k = 0; k < RT_DEAL_AT_ONCE; k++) {
            const rt_u32 place = first + k * RT_LANES + rt_lane();
            if (place < n && rt_deal_source(d, place) != RT_NONE)
                column[place] = value[k];
        }
    }
}

/* All lanes: write the tokens that decode to their places, from the slots, whose row has their old
 * number. */
RT_FN void rt_deal_slots(const rt_machine *m, rt_deal d)
{
    const rt_serving *s = m->serving;
    for (rt_u32 i = rt_lane(); i < s->n_slots; i += RT_LANES) {
        const rt_slot *slot = &m->slots[i];
        if (slot->state != RT_SLOT_FEEDING || slot->source != RT_NOWHERE || !slot->step_tokens)
            continue;
        const rt_u32 place = rt_deal_place(d, slot->step_row);
        rt_put(m, s->tokens, place, slot->token);
        rt_put(m, s->positions, place, (rt_i32)slot->position);
        rt_put(m, s->slots, place, (rt_i32)i);
        rt_put(m, s->rows, slot->step_row, (rt_i32)place);
    }
}

/* All lanes: deal a step whose first `decoding` tokens decode, each with the row of its number. */
RT_LARGE_FN void rt_step_deal(rt_machine *m, rt_u32 decoding)
{
    const rt_serving *s = m->serving;
    const rt_u32 n = s->built_tokens;
    const rt_deal d = {decoding, n / RT_LOT};
    rt_i32 *rows = rt_column(m, s->rows, 0);
    if (!decoding || n - decoding < RT_DEAL_LEAST)
        return;
    rt_deal_column(d, rt_column(m, s->tokens, 0), n);
    rt_deal_column(d, rt_column(m, s->positions, 0), n);
    rt_deal_column(d, rt_column(m, s->slots, 0), n);
    for (rt_u32 r = decoding + rt_lane(); rows && r < s->built_rows; r += RT_LANES)
        rows[r] = (rt_i32)rt_deal_find(d, (rt_u32)rows[r]);
    rt_meet(); /* the places of tokens that decode have been read */
    rt_deal_slots(m, d);
    rt_meet();
}

#endif
