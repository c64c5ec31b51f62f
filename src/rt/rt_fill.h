/* rt_fill.h - whose tokens a step feeds: those of requests that decode, then pieces of prompts.
 *
 * Input: slots that have something to feed, and pages promised to them (rt_admit.h).  Output: the
 * step inputs, with built_tokens and built_rows of serving; each slot's part of the step.  Relies
 * on rt_feed.h and rt_build.h; rt_step.h calls rt_step_fill_in when it builds a step, while no task
 * runs.
 *
 * Fairness.  A long prompt would keep all that come after it waiting for many steps.  So the prompt
 * that comes first, the oldest of the most urgent ones, leaves a quarter of each step to those that
 * are short beside it.  None starves: the first one has three quarters of each step until it ends,
 * and of equally urgent prompts each becomes the first in time.
 *
 * All lanes take the same way through the slots, since they read a prompt's tokens and names
 * together: these lie in the host's memory.  Invariant: the first lane alone writes slots and
 * serving, and the lanes meet before it does and before any lane reads what it wrote.
 */
#ifndef RT_FILL_H
#define RT_FILL_H

#include "rt/rt_ahead.h"
#include "rt/rt_deal.h"

/* How many tokens of a request go into the step, and how many rows they need.  A text that is fed a
 * second time (RT_AGAIN, after being put back) delivered its rows the first time, so it needs only
 * the last one. */
RT_FN rt_u32 rt_slot_chunk(const rt_slot *slot, rt_u32 flags, rt_u32 tokens_left, rt_u32 rows_left,
                           rt_u32 *rows)
{
    rt_u32 left = slot->n_source - slot->n_fed;
    rt_u32 n = left < tokens_left ? left : tokens_left;
    if (flags & (RT_ALL_LOGITS | RT_ALL_SHARES) && slot->source != RT_AGAIN) {
        *rows = n < rows_left ? n : rows_left;
        return *rows;
    }
    if (n == left && rows_left == 0)
        n--; /* the last token needs a row in the same step: leave it for the next */
    *rows = n == left;
    return n;
}

/* One lane: tell the host the n drafts of a request with a mask, so that it makes the masks of the
 * tokens after them while the step runs. */
RT_FN void rt_slot_tell_guesses(rt_machine *m, rt_u32 index, rt_u32 n)
{
    const rt_slot *slot = &m->slots[index];
    const rt_i32 *fed = rt_slot_text(m, index) + slot->position;
    for (rt_u32 i = 1; i <= n; i++)
        rt_tell(m, m->running[index].id, fed[i], slot->generated + i, i, RT_GUESSED);
}

/* One lane: write the rows of a request whose next n tokens are in the step that is being built. */
RT_LARGE_FN void rt_slot_put_rows(rt_machine *m, rt_u32 index, rt_u32 n, rt_u32 rows)
{
    rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    slot->step_tokens = n;
    slot->step_row = s->built_rows;
    slot->step_rows = rows;
    for (rt_u32 i = 0; i < rows; i++) {
        rt_put_row(m, index, slot->step_row + i, s->built_tokens + n - rows + i,
                   slot->source == RT_NOWHERE ? i : 0);
        if (s->asks != RT_NOWHERE)
            rt_put_asks(m, index, slot->step_row + i, rows - 1 - i);
    }
    s->built_tokens += n;
    s->built_rows += rows;
    if (m->running[index].mask && rows > 1 && slot->source == RT_NOWHERE)
        rt_slot_tell_guesses(m, index, rows - 1);
}

/* All lanes: add the next n tokens of a request, and its rows, to the step that is being built. */
RT_LARGE_FN void rt_slot_put(rt_machine *m, rt_u32 index, rt_u32 n, rt_u32 rows)
{
    rt_meet(); /* all have read what the first one changes */
    if (rt_lane() == 0)
        rt_slot_extend(m, index, n);
    rt_meet();
    rt_feed_tokens(m, index, rt_slot_source(m, index), n);
    rt_meet();
    rt_slot_name(m, index, n);
    if (rt_lane() == 0)
        rt_slot_put_rows(m, index, n, rows);
    rt_meet();
}

/* All lanes: let a text that begins take pages that others have computed (rt_slot_match). 0: the
 * next one is computed by this very step, so the request sits the step out. */
RT_FN int rt_slot_may_feed(rt_machine *m, rt_u32 index)
{
    if (!rt_slot_begins(&m->slots[index]))
        return 1;
    rt_meet();
    const rt_u32 may = rt_first(rt_lane() == 0 && rt_slot_match(m, index));
    rt_meet();
    return may != 0;
}

/* All lanes: add as many of a request's next tokens as fit into a step of `most`; with drafts all
 * do (rt_step_draft).  Pages that others have computed are taken first (rt_slot_match). */
RT_FN void rt_slot_feed(rt_machine *m, rt_u32 index, rt_u32 most)
{
    const rt_serving *s = m->serving;
    rt_u32 tried = s->draft_tokens ? m->drafters[index].tried : 0;
    if (tried) {
        rt_slot_put(m, index, 1 + tried, 1 + tried);
        return;
    }
    if (!rt_slot_may_feed(m, index))
        return;
    rt_u32 rows, n = rt_slot_chunk(&m->slots[index], m->running[index].flags,
                                   most - s->built_tokens, s->max_rows - s->built_rows, &rows);
    if (n)
        rt_slot_put(m, index, n, rows);
}

/* Does the slot feed a text: a prompt, or all that it had when it was put back? */
RT_FN int rt_slot_reads(const rt_slot *slot)
{
    return slot->state == RT_SLOT_FEEDING && slot->source != RT_NOWHERE;
}

/* The slot of the oldest prompt whose admission number is `after` or later and of which nothing is
 * in the step yet; RT_NONE: there is none.  Numbers wrap around; ages are compared modulo 2^32. */
RT_FN rt_u32 rt_next_prompt(const rt_machine *m, rt_u32 after)
{
    /* the age of a number before `after` wraps to at least this */
    rt_u32 best = RT_NONE, best_age = 0x80000000u;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        rt_u32 age = slot->admitted - after;
        if (rt_slot_reads(slot) && !slot->step_tokens && age < best_age) {
            best = i;
            best_age = age;
        }
    }
    return best;
}

/* The slot of the prompt that comes first: the most urgent one, of equals the oldest; RT_NONE: none
 * is fed. */
RT_FN rt_u32 rt_first_prompt(const rt_machine *m)
{
    rt_u32 best = RT_NONE;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++)
        if (rt_slot_reads(&m->slots[i]) && (best == RT_NONE || rt_slot_is_before(m, i, best)))
            best = i;
    return best;
}

/* Tokens of a slot's text that are in no step yet. */
RT_FN rt_u32 rt_slot_left(const rt_machine *m, rt_u32 index)
{
    return m->slots[index].n_source - m->slots[index].n_fed;
}

/* Of the prompts that are short beside the first one, and of which nothing is in the step yet, the
 * slot of the one with the least left to feed.  Short: it has at most half of what the first has
 * left.  RT_NONE: there is none. */
RT_FN rt_u32 rt_short_prompt(const rt_machine *m, rt_u32 first)
{
    rt_u32 best = RT_NONE, most = rt_slot_left(m, first) / 2;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        if (!rt_slot_reads(slot) || slot->step_tokens || rt_slot_left(m, i) > most)
            continue;
        if (best == RT_NONE || rt_slot_left(m, i) < rt_slot_left(m, best))
            best = i;
    }
    return best;
}

/* One lane: let prompts of which nothing was fed take pages that others have computed, so that it
 * is known how much is left of them. */
RT_LARGE_FN void rt_prompts_match(rt_machine *m)
{
    for (rt_u32 i = 0; i < m->serving->n_slots; i++)
        if (rt_slot_reads(&m->slots[i]) && !m->slots[i].n_fed)
            (void)rt_slot_match(m, i);
}

/* All lanes: of a step's room, the tokens that the first prompt leaves to prompts that are short
 * beside it: as many as they have, up to a quarter; none if the first one ends in this step. */
RT_LARGE_FN rt_u32 rt_step_leaves(rt_machine *m, rt_u32 first, rt_u32 room)
{
    rt_u32 left = rt_slot_left(m, first), n = 0;
    if (left <= room)
        return 0;
    rt_meet(); /* all have read what the first lane changes */
    if (rt_lane() == 0)
        rt_prompts_match(m);
    rt_meet();
    left = rt_slot_left(m, first);
    for (rt_u32 i = 0; left > room && i < m->serving->n_slots && n < room / 4; i++)
        n += rt_slot_reads(&m->slots[i]) && rt_slot_left(m, i) <= left / 2 ? rt_slot_left(m, i) : 0;
    return n < room / 4 ? n : room / 4;
}

/* Can the steady path continue this step?  Yes if each request that feeds has one token and one
 * row, none feeds a prompt or waits for a mask, and none that pauses could go on.  Row i then
 * belongs to token i. */
RT_FN rt_u32 rt_step_is_steady(const rt_machine *m)
{
    if (m->serving->n_parked && !m->serving->blocked)
        return 0;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        if (slot->state == RT_SLOT_LATE ||
            (m->serving->carries && slot->state == RT_SLOT_FEEDING && m->running[i].mask))
            return 0;
        if (slot->state == RT_SLOT_FEEDING &&
            (slot->source != RT_NOWHERE || slot->step_tokens != 1 || slot->step_rows != 1))
            return 0;
    }
    return 1;
}

RT_FN int rt_slot_decodes(const rt_slot *slot)
{
    return slot->state == RT_SLOT_FEEDING && slot->source == RT_NOWHERE;
}

/* Tokens of a step to which prompts may be added: where requests decode it stays short, so that
 * their next tokens are not late, unless they fill much of it themselves. */
RT_FN rt_u32 rt_step_most(const rt_serving *s)
{
    const rt_u32 few = RT_MIXED_TOKENS / 2;
    return s->built_tokens && s->built_tokens < few && s->max_tokens > RT_MIXED_TOKENS
               ? RT_MIXED_TOKENS
               : s->max_tokens;
}

/* All lanes: add pieces of prompts to a step, up to `most` tokens.  The first prompt gets all room
 * but what it leaves to shorter ones, of which the shortest comes first; then all others, oldest
 * first, as far as there is room.  One that waits for pages which this step computes is passed
 * over. */
RT_FN void rt_step_fill_prompts(rt_machine *m, rt_u32 most, rt_u32 oldest)
{
    const rt_serving *s = m->serving;
    rt_u32 index = rt_first_prompt(m);
    if (index == RT_NONE || s->built_tokens >= most)
        return;
    const rt_u32 first = index, leaves = rt_step_leaves(m, first, most - s->built_tokens);
    rt_slot_feed(m, first, most - leaves);
    while (leaves && s->built_tokens < most && (index = rt_short_prompt(m, first)) != RT_NONE) {
        rt_slot_feed(m, index, most);
        if (!m->slots[index].step_tokens)
            break;
    }
    while (s->built_tokens < most && (index = rt_next_prompt(m, oldest)) != RT_NONE) {
        rt_slot_feed(m, index, most);
        oldest = m->slots[index].admitted + 1;
    }
}

/* All lanes: fill a step: first the requests that decode, in the order of slots from `start` on,
 * then prompts.  So a prompt never delays a token of another request by a step.  Where that is
 * faster, the order of tokens then changes (rt_deal.h). */
RT_FN void rt_step_fill(rt_machine *m, rt_u32 start, rt_u32 oldest)
{
    const rt_serving *s = m->serving;
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        rt_u32 index = start + i < s->n_slots ? start + i : start + i - s->n_slots;
        if (rt_slot_decodes(&m->slots[index]))
            rt_slot_feed(m, index, s->max_tokens);
    }
    const rt_u32 decoding = s->built_tokens;
    rt_step_fill_prompts(m, rt_step_most(s), oldest);
    if (s->deals)
        rt_step_deal(m, decoding);
}

/* The length of a request's next piece: at most a whole largest step, whatever else runs.  It
 * depends on the request alone, so that the request's bits do not depend on company.  Drafts are an
 * exception that does no harm: a token has the same bits with drafts after it and without, so as
 * many are fed as fit. */
RT_FN rt_u32 rt_slot_piece(const rt_machine *m, rt_u32 index, rt_u32 *rows)
{
    const rt_serving *s = m->serving;
    const rt_u32 tried = s->draft_tokens ? m->drafters[index].tried : 0;
    if (tried) {
        *rows = 1 + tried;
        return 1 + tried;
    }
    return rt_slot_chunk(&m->slots[index], m->running[index].flags, s->max_tokens, s->max_rows,
                         rows);
}

/* All lanes: add the next piece of a request to a step of few tokens if the whole piece fits.  0:
 * it does not, or the request waits for pages that this step computes. */
RT_FN int rt_slot_join(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    if (!rt_slot_may_feed(m, index))
        return 0;
    rt_u32 rows, n = rt_slot_piece(m, index, &rows);
    if (n > s->few_tokens - s->built_tokens || rows > s->few_rows - s->built_rows)
        return 0;
    rt_slot_put(m, index, n, rows);
    return 1;
}

/* All lanes: fill a step of few tokens: decode tokens, beginning at slot `start`, then pieces of
 * prompts, oldest first. */
RT_LARGE_FN void rt_step_fill_few(rt_machine *m, rt_u32 start, rt_u32 oldest)
{
    const rt_serving *s = m->serving;
    rt_u32 late = RT_NONE, index;
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        index = start + i < s->n_slots ? start + i : start + i - s->n_slots;
        if (rt_slot_decodes(&m->slots[index]) && !rt_slot_join(m, index) && late == RT_NONE)
            late = index;
    }
    if (late != RT_NONE && rt_lane() == 0)
        m->serving->decode_at = late;
    for (index = rt_next_prompt(m, oldest); index != RT_NONE; index = rt_next_prompt(m, oldest)) {
        rt_slot_join(m, index);
        oldest = m->slots[index].admitted + 1;
    }
}

/* The prompt whose piece begins a step, where steps are filled apart: the first one, but in one of
 * four such steps the shortest, if that is short beside the first.  The two steps of eight in which
 * it is are an even and an odd one, since beside requests that decode only every other step begins
 * with a prompt. */
RT_FN rt_u32 rt_leading_prompt(const rt_machine *m)
{
    const rt_u32 first = rt_first_prompt(m), eighth = m->serving->n_steps % 8;
    if (first == RT_NONE || (eighth != 2 && eighth != 7))
        return first;
    const rt_u32 shorter = rt_short_prompt(m, first);
    return shorter == RT_NONE ? first : shorter;
}

/* All lanes: fill a step so that no request's bits depend on company, on a target where they could:
 * where bodies for few tokens and bodies for many sum in different orders, and where bits depend on
 * where a prompt is cut.  (Within graphs of up to few_tokens the order of sums is the same.)
 *
 *   - A text is cut every max_tokens from its beginning, never because of other requests.
 *   - A piece of at most few_tokens shares a step with other such pieces and with decode tokens.
 *   - Drafts are tried in such steps alone (host_plan_drafts), all of a step or none.
 *   - A longer piece gets a step to itself, so that the choice of the graph depends on it alone.
 *
 * While some requests decode, every other step starts with a piece of a prompt, and of those three
 * in four with the first prompt's: none starves. */
RT_LARGE_FN void rt_step_fill_apart(rt_machine *m, rt_u32 start, rt_u32 oldest)
{
    const rt_serving *s = m->serving;
    rt_u32 prompt = rt_leading_prompt(m), rows, decoding = 0;
    for (rt_u32 i = 0; i < s->n_slots; i++)
        decoding |= (rt_u32)rt_slot_decodes(&m->slots[i]);
    const rt_u32 leads = prompt != RT_NONE && !(decoding && s->prompt_led);
    rt_meet(); /* all have read prompt_led */
    if (rt_lane() == 0)
        m->serving->prompt_led = leads;
    if (leads && !rt_slot_join(m, prompt)) {
        rt_u32 n = rt_slot_piece(m, prompt, &rows);
        rt_slot_put(m, prompt, n, rows);
        return;
    }
    rt_step_fill_few(m, start, oldest);
}

/* Does a token of every request fit into a step? */
RT_FN rt_u32 rt_step_fits(const rt_serving *s)
{
    rt_u32 few = s->few_tokens;
    rt_u32 tokens = few ? few : s->max_tokens, rows = few ? s->few_rows : s->max_rows;
    return s->n_active <= tokens && s->n_active <= rows;
}

/* All lanes: choose tokens and rows of the step.  If the requests that decode do not all fit, the
 * slot that comes first rotates, so that each gets its turn. */
RT_LARGE_FN void rt_step_fill_in(rt_machine *m, rt_u32 fits)
{
    rt_serving *s = m->serving;
    const rt_u32 oldest = s->n_admitted - 0x80000000u;
    if (s->few_tokens)
        rt_step_fill_apart(m, fits ? 0 : s->decode_at, oldest);
    else
        rt_step_fill(m, fits ? 0 : (rt_u32)(s->n_steps % s->n_slots), oldest);
    /* rows stand in the order of slots */
    const rt_u32 steady = fits && s->built_tokens && rt_step_is_steady(m);
    if (rt_lane() == 0)
        s->steady = steady;
}

#endif
