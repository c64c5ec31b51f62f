/* rt_step.h - the step task (paper §6.1, "Supporting runtime dynamism"): requests in, tokens out, next step prepared.
 *
 * Input: what the last step left in the step area (logits, next), the host's rings.  Output: the token ring, the step
 * inputs (model.h), the published step.  It runs inside the machine, on the worker that ended the last step (a GPU: on
 * a warp of its own); nobody else runs a task then, so everything here is plain memory except the rings.  In order:
 * collect the tokens of the last step and retire requests, obey commands, admit in order of arrival, build the next
 * step, publish.  The usual step, in which every request got one token and goes on and nothing new has come, comes out
 * of the last one by adding 1 here and there (rt_step_advance): the same slots, rows and graph; all lanes share it.
 *
 * What a request is given never depends on the others: tokens of a request enter in order of position.  Where bodies
 * reduce each token on its own, neither chunks nor neighbours change a bit of it; where they do not (a GPU's), steps
 * can be filled so that they do not either (rt_step_fill_apart).  Pages of the KV cache are rt_admit.h's affair: who is
 * fed here has them.  Where there are none, the oldest request in the ring waits, and all behind it; the same holds for
 * a full token ring.  Cost: O(slots + tokens of the step); the usual step on a GPU: one round of independent loads, and
 * the stores.
 */
#ifndef RT_STEP_H
#define RT_STEP_H

#include "rt/rt_admit.h"

/* ---- publishing ---- */

/* One lane: begin the next run of a graph.  The release publishes the step inputs and live counts to every worker. */
RT_FN void rt_step_publish(rt_machine *m, rt_worker *w, rt_u32 graph, rt_u32 n_tokens, rt_u32 n_rows)
{
    const rt_graph *g = &m->graphs[graph];
    rt_control *c = m->control;
    rt_u64 step = rt_step_word(graph, ++m->epochs[graph], n_tokens, n_rows);
    m->serving->step = step;
    c->live[RT_TOKENS] = rt_word_tokens(step);
    c->live[RT_ROWS] = rt_word_rows(step);
    rt_store_wide_relaxed_device(&c->n_steps, ++m->serving->n_steps);
    w->owner = 0;
    rt_store_relaxed_device(&c->idle, 0);
    rt_point(m, w->index);
    rt_store_wide_release_device(&c->step, step);
    if (m->events[g->first_event + RT_START].jit)
        rt_event_submit(m, w, g->first_event + RT_START);
    rt_wake_all(m);
}

/* A step that the host drives itself: it has written the inputs and waits for the end.  1: published. */
RT_FN int rt_once_poll(rt_machine *m, rt_worker *w)
{
    rt_control *c = m->control;
    rt_u32 wanted = rt_load_acquire_system(&c->once_wanted); /* partner: run_graph; its inputs are visible */
    if (c->once_running) {
        c->once_running = 0;
        rt_store_release_system(&c->once_done, rt_load_relaxed_device(&c->once_done) + 1);
        rt_ring_host(m);
    }
    if (wanted == rt_load_relaxed_device(&c->once_done))
        return 0;
    c->once_running = 1;
    rt_pages_forget(m);
    rt_step_publish(m, w, c->once_graph, c->once_tokens, c->once_rows);
    return 1;
}

/* ---- collect: what the last step has produced ---- */

/* Copy the step's rows of logits of one request to the host. */
RT_FN void rt_slot_deliver(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    const float *from = (const float *)(m->step_area + s->logits) + (rt_u64)slot->step_row * s->n_vocab;
    float *to = (float *)m->running[index].logits + (rt_u64)slot->count * s->n_vocab;
    rt_u64 n = (rt_u64)slot->step_rows * s->n_vocab;
    for (rt_u64 i = 0; i < n; i++)
        to[i] = from[i];
    slot->count += slot->step_rows;
}

/* Copy the step's log probabilities of one request to the host: those of a row are of the token after it. */
RT_FN void rt_slot_deliver_shares(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    const rt_slot *slot = &m->slots[index];
    const rt_request *r = &m->running[index];
    rt_u32 first = r->flags & RT_ALL_SHARES ? 0 : r->n_prompt;
    for (rt_u32 row = 0; row < slot->step_rows; row++) {
        rt_u64 at = slot->position - slot->step_rows + row + 1 - first;
        const float *from =
            (const float *)(m->step_area + s->shares) + (rt_u64)(slot->step_row + row) * RT_LOGPROBS * 2;
        for (rt_u32 i = 0; i < 2 * r->n_logprobs; i++)
            ((float *)r->logprobs)[at * 2 * r->n_logprobs + i] = from[i];
    }
}

RT_FN int rt_is_eos(const rt_request *r, rt_u32 n_eos, rt_i32 token)
{
    int found = 0; /* no way out of the loop: the loads do not wait for each other */
    RT_UNROLL_4
    for (rt_u32 i = 0; i < n_eos; i++)
        found |= r->eos[i] == token;
    return found;
}

/* Why a request ends with this token, RT_GOING if it does not. */
RT_FN rt_u32 rt_slot_reason(const rt_slot *slot, const rt_request *r, rt_i32 token)
{
    if (rt_is_eos(r, slot->n_eos, token))
        return RT_EOS;
    if (r->max_tokens && slot->generated + 1 >= r->max_tokens)
        return RT_LENGTH;
    return slot->position >= slot->limit ? RT_CONTEXT : RT_GOING;
}

/* Its mask was not there when the token was to be drawn: the last token is fed again, once the mask has come.  What it
 * left in the KV cache is written again with the same values. */
RT_FN void rt_slot_repeat(rt_slot *slot)
{
    slot->position--;
    slot->n_fed--;
    slot->state = RT_SLOT_LATE;
}

/* The first word of a request's mask: 1 + the number of the draw that it is for. */
RT_FN const rt_word *rt_mask_number(const rt_machine *m, const rt_request *r)
{
    const rt_serving *s = m->serving;
    return (const rt_word *)(m->step_area + s->rules) + (rt_u64)(s->n_slots + r->mask - 1) * s->rule_words;
}

/* Slots that wait for a mask which has come feed again. */
RT_FN void rt_slots_find_masks(rt_machine *m)
{
    for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
        rt_slot *slot = &m->slots[i];
        if (slot->state == RT_SLOT_LATE &&
            rt_load_acquire_system(rt_mask_number(m, &m->running[i])) == slot->generated + 1) /* host_put_mask */
            slot->state = RT_SLOT_FEEDING;
    }
}

/* Everything that was to be fed is in, and the last row is there: the request's next token. */
RT_FN void rt_slot_next(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    const rt_request *r = &m->running[index];
    if (r->flags & RT_HOST_SAMPLES) {
        slot->state = RT_SLOT_WAITING;
        rt_tell(m, r->id, -1, slot->generated, slot->count, RT_GOING);
        return;
    }
    rt_i32 token = ((const rt_i32 *)(m->step_area + s->next))[slot->step_row + slot->step_rows - 1];
    if (r->mask && token == RT_LATE_TOKEN) {
        rt_slot_repeat(slot);
        return;
    }
    rt_u32 reason = rt_slot_reason(slot, r, token);
    if (reason != RT_GOING) {
        rt_slot_finish(m, index, token, reason);
        return;
    }
    rt_tell(m, r->id, token, slot->generated, slot->count, RT_GOING);
    slot->generated++;
    slot->token = token;
    slot->source = RT_NOWHERE;
    slot->n_source = 1;
    slot->n_fed = 0;
}

/* Account for the last step.  0: the token ring may be too full; nothing was done. */
RT_LARGE_FN int rt_step_collect(rt_machine *m)
{
    rt_serving *s = m->serving;
    if (rt_tokens_space(m) < s->n_slots) /* each slot tells at most one thing */
        return 0;
    s->running = s->steady = 0;
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        rt_slot *slot = &m->slots[i];
        if (slot->state != RT_SLOT_FEEDING || !slot->step_tokens)
            continue;
        slot->position += slot->step_tokens;
        slot->n_fed += slot->step_tokens;
        slot->step_tokens = 0;
        if (m->running[i].flags & RT_HOST_SAMPLES)
            rt_slot_deliver(m, i);
        if (m->running[i].n_logprobs)
            rt_slot_deliver_shares(m, i);
        if (slot->n_fed == slot->n_source)
            rt_slot_next(m, i);
    }
    return 1;
}

/* ---- commands ---- */

RT_FN rt_u32 rt_slot_of(const rt_machine *m, rt_u64 id)
{
    for (rt_u32 i = 0; i < m->serving->n_slots; i++)
        if (m->slots[i].state != RT_SLOT_FREE && m->running[i].id == id)
            return i;
    return RT_NONE;
}

/* A request that still waits in the ring ends here; its entry is skipped when its turn comes. */
RT_FN void rt_cancel_waiting(rt_machine *m, rt_u64 id)
{
    rt_u32 first = rt_load_relaxed_device(&m->request_ring->read), n = rt_ring_ready(m->request_ring);
    for (rt_u32 i = 0; i < n; i++) {
        rt_request *r = &m->requests[(first + i) & m->request_mask];
        if (r->id == id && !r->dropped) {
            r->dropped = 1;
            rt_tell(m, id, -1, 0, 0, RT_CANCELLED);
            return;
        }
    }
}

RT_FN void rt_slot_append(rt_machine *m, rt_u32 index, const rt_command *c)
{
    rt_slot *slot = &m->slots[index];
    if (slot->state != RT_SLOT_WAITING)
        return;
    if (c->n == 0 || c->n > m->n_arena || c->tokens > m->n_arena - c->n || !c->logits) {
        rt_slot_finish(m, index, -1, RT_REFUSED);
        return;
    }
    if (c->n > slot->limit - slot->position) {
        rt_slot_finish(m, index, -1, m->running[index].max_tokens ? RT_LENGTH : RT_CONTEXT);
        return;
    }
    slot->source = c->tokens;
    slot->n_source = c->n;
    slot->n_fed = slot->count = 0;
    m->running[index].logits = c->logits;
    slot->generated += c->n;
    slot->state = RT_SLOT_FEEDING;
}

/* Obey the host, as long as there is room to answer. */
RT_LARGE_FN void rt_step_commands(rt_machine *m)
{
    rt_u32 mask = m->command_mask;
    while (rt_ring_ready(m->command_ring) && rt_tokens_space(m)) {
        const rt_command *c = &m->commands[rt_load_relaxed_device(&m->command_ring->read) & mask];
        rt_u32 index = rt_slot_of(m, c->id);
        if (c->kind == RT_CANCEL && index == RT_NONE)
            rt_cancel_waiting(m, c->id);
        else if (c->kind == RT_CANCEL)
            rt_slot_finish(m, index, -1, RT_CANCELLED);
        else if (c->kind == RT_APPEND && index != RT_NONE)
            rt_slot_append(m, index, c);
        rt_ring_took(m->command_ring, 1);
    }
}

/* ---- building the step ---- */

/* Make the page table reach as far as the next `n` tokens; the pages have been promised. */
RT_FN void rt_slot_extend(rt_machine *m, rt_u32 index, rt_u32 n)
{
    rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    rt_u32 needed = rt_pages_for(s, slot->position + n);
    while (slot->held < needed) {
        *rt_page_entry(m, index, slot->held++) = (rt_i32)rt_page_take(m);
        s->n_promised--;
    }
    rt_pages_say(m);
}

RT_FN void rt_put(const rt_machine *m, rt_u64 tensor, rt_u32 i, rt_i32 value)
{
    if (tensor != RT_NOWHERE)
        ((rt_i32 *)(m->step_area + tensor))[i] = value;
}

/* What one row asks beside the filters: `after` tokens follow its own in what is fed.  Rules are for the row that
 * draws. */
RT_FN void rt_put_asks(const rt_machine *m, rt_u32 index, rt_u32 row, rt_u32 after)
{
    const rt_slot *slot = &m->slots[index];
    const rt_request *r = &m->running[index];
    rt_i32 *asks = (rt_i32 *)(m->step_area + m->serving->asks) + RT_ASKS * (rt_u64)row;
    rt_u32 known = slot->position + slot->step_tokens - after, fed = slot->n_fed + slot->step_tokens - after;
    int draws = fed == slot->n_source;
    asks[RT_ASK_RULES] = r->n_rules && draws ? (rt_i32)index + 1 : 0;
    asks[RT_ASK_FROM] = (rt_i32)(index * m->serving->history_tokens);
    asks[RT_ASK_HISTORY] = (rt_i32)known;
    asks[RT_ASK_LOGPROBS] = (rt_i32)r->n_logprobs;
    asks[RT_ASK_TOKEN] = draws ? -1 : m->token_arena[slot->source + fed];
    asks[RT_ASK_MASK] = r->mask && draws ? (rt_i32)(m->serving->n_slots + r->mask) : 0;
}

/* One row of logits for token `token` of the step. */
RT_FN void rt_put_row(const rt_machine *m, rt_u32 index, rt_u32 row, rt_u32 token)
{
    const rt_serving *s = m->serving;
    const rt_request *r = &m->running[index];
    rt_put(m, s->rows, row, (rt_i32)token);
    rt_put(m, s->draws, row, (rt_i32)m->slots[index].generated);
    if (s->seeds != RT_NOWHERE)
        ((rt_i64 *)(m->step_area + s->seeds))[row] = (rt_i64)r->seed;
    if (s->sampling != RT_NOWHERE) {
        float *p = (float *)(m->step_area + s->sampling) + 4 * (rt_u64)row;
        p[0] = r->temperature;
        p[1] = r->top_k;
        p[2] = r->top_p;
        p[3] = r->min_p;
    }
}

/* How many tokens of a request go into the step, and how many rows they need.  What is fed once more (RT_AGAIN) gave
 * all its rows the first time. */
RT_FN rt_u32 rt_slot_chunk(const rt_slot *slot, rt_u32 flags, rt_u32 tokens_left, rt_u32 rows_left, rt_u32 *rows)
{
    rt_u32 left = slot->n_source - slot->n_fed;
    rt_u32 n = left < tokens_left ? left : tokens_left;
    if (flags & (RT_ALL_LOGITS | RT_ALL_SHARES) && slot->source != RT_AGAIN) {
        *rows = n < rows_left ? n : rows_left;
        return *rows;
    }
    if (n == left && rows_left == 0)
        n--; /* the last token must come with its row: leave it for another step */
    *rows = n == left;
    return n;
}

/* The next tokens that a slot feeds. */
RT_FN const rt_i32 *rt_slot_source(const rt_machine *m, rt_u32 index)
{
    const rt_slot *slot = &m->slots[index];
    if (slot->source == RT_NOWHERE)
        return &slot->token;
    return (slot->source == RT_AGAIN ? rt_slot_text(m, index) : m->token_arena + slot->source) + slot->n_fed;
}

/* Add the next n tokens of a request, and its rows, to the step that is being built. */
RT_LARGE_FN void rt_slot_put(rt_machine *m, rt_u32 index, rt_u32 n, rt_u32 rows)
{
    rt_serving *s = m->serving;
    rt_slot *slot = &m->slots[index];
    const rt_i32 *from = rt_slot_source(m, index);
    rt_u32 at = s->built_tokens;
    rt_slot_extend(m, index, n);
    for (rt_u32 i = 0; i < n; i++) {
        rt_i32 token = from[i];
        rt_put(m, s->tokens, at + i, token);
        rt_put(m, s->positions, at + i, (rt_i32)(slot->position + i));
        rt_put(m, s->slots, at + i, (rt_i32)index);
        if (s->keeps_text || m->running[index].n_rules)
            rt_put(m, s->history, index * s->history_tokens + slot->position + i, token);
    }
    rt_slot_name(m, index, n);
    slot->step_tokens = n;
    slot->step_row = s->built_rows;
    slot->step_rows = rows;
    for (rt_u32 i = 0; i < rows; i++) {
        rt_put_row(m, index, slot->step_row + i, at + n - rows + i);
        if (s->asks != RT_NOWHERE)
            rt_put_asks(m, index, slot->step_row + i, rows - 1 - i);
    }
    s->built_tokens += n;
    s->built_rows += rows;
}

/* Add what fits of a request. */
RT_FN void rt_slot_feed(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    if (!rt_slot_match(m, index))
        return;
    rt_u32 rows, n = rt_slot_chunk(&m->slots[index], m->running[index].flags, s->max_tokens - s->built_tokens,
                                   s->max_rows - s->built_rows, &rows);
    if (n)
        rt_slot_put(m, index, n, rows);
}

/* The oldest prompt whose admission number is `after` or later. */
RT_FN rt_u32 rt_next_prompt(const rt_machine *m, rt_u32 after)
{
    rt_u32 best = RT_NONE, best_age = 0x80000000u; /* older than `after`: beyond */
    for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        rt_u32 age = slot->admitted - after;
        if (slot->state == RT_SLOT_FEEDING && slot->source != RT_NOWHERE && age < best_age) {
            best = i;
            best_age = age;
        }
    }
    return best;
}

/* One token and one row of each request that feeds, no prompt, no rules: rows are numbered like tokens. */
RT_FN rt_u32 rt_step_is_steady(const rt_machine *m)
{
    for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        if (slot->state == RT_SLOT_LATE)
            return 0;
        if (slot->state == RT_SLOT_FEEDING &&
            (slot->source != RT_NOWHERE || slot->step_tokens != 1 || slot->step_rows != 1 || m->running[i].n_rules ||
             m->running[i].n_logprobs))
            return 0;
    }
    return 1;
}

RT_FN int rt_slot_decodes(const rt_slot *slot)
{
    return slot->state == RT_SLOT_FEEDING && slot->source == RT_NOWHERE;
}

/* Decode tokens first, beginning at slot `start`, then prompts, oldest first. */
RT_FN void rt_step_fill(rt_machine *m, rt_u32 start, rt_u32 oldest)
{
    const rt_serving *s = m->serving;
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        rt_u32 index = start + i < s->n_slots ? start + i : start + i - s->n_slots;
        if (rt_slot_decodes(&m->slots[index]))
            rt_slot_feed(m, index);
    }
    for (;;) {
        rt_u32 index = s->built_tokens < s->max_tokens ? rt_next_prompt(m, oldest) : RT_NONE;
        if (index == RT_NONE)
            break;
        rt_slot_feed(m, index);
        oldest = m->slots[index].admitted + 1;
    }
}

/* The next piece of a request, as long as the largest step, whoever else there is; its end is that of what is fed. */
RT_FN rt_u32 rt_slot_piece(const rt_machine *m, rt_u32 index, rt_u32 *rows)
{
    const rt_serving *s = m->serving;
    return rt_slot_chunk(&m->slots[index], m->running[index].flags, s->max_tokens, s->max_rows, rows);
}

/* Add the next piece of a request to a step of few tokens, if it fits there whole. */
RT_FN int rt_slot_join(rt_machine *m, rt_u32 index)
{
    const rt_serving *s = m->serving;
    if (!rt_slot_match(m, index))
        return 0;
    rt_u32 rows, n = rt_slot_piece(m, index, &rows);
    if (n > s->few_tokens - s->built_tokens || rows > s->few_rows - s->built_rows)
        return 0;
    rt_slot_put(m, index, n, rows);
    return 1;
}

/* Fill a step of few tokens: decode tokens, beginning at slot `start`, then pieces of prompts, oldest first. */
RT_LARGE_FN void rt_step_fill_few(rt_machine *m, rt_u32 start, rt_u32 oldest)
{
    rt_serving *s = m->serving;
    rt_u32 late = RT_NONE, index;
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        index = start + i < s->n_slots ? start + i : start + i - s->n_slots;
        if (rt_slot_decodes(&m->slots[index]) && !rt_slot_join(m, index) && late == RT_NONE)
            late = index;
    }
    if (late != RT_NONE)
        s->decode_at = late;
    for (index = rt_next_prompt(m, oldest); index != RT_NONE; index = rt_next_prompt(m, oldest)) {
        if (!m->slots[index].step_tokens)
            rt_slot_join(m, index);
        oldest = m->slots[index].admitted + 1;
    }
}

/* Where bodies for few tokens (a token's sums are in the same order in graphs of up to few_tokens) and bodies for many
 * give other bits, and where bits depend on where a prompt is cut: what a request feeds is cut every max_tokens from
 * its beginning, never because of others; a piece of few tokens shares a step with others of the kind, decode tokens
 * among them; a longer one has a step, and so the choice of the graph, to itself.  While some decode, every other step
 * begins with a prompt's piece. */
RT_LARGE_FN void rt_step_fill_apart(rt_machine *m, rt_u32 start, rt_u32 oldest)
{
    rt_serving *s = m->serving;
    rt_u32 prompt = rt_next_prompt(m, oldest), rows, decoding = 0;
    for (rt_u32 i = 0; i < s->n_slots; i++)
        decoding |= (rt_u32)rt_slot_decodes(&m->slots[i]);
    s->prompt_led = prompt != RT_NONE && !(decoding && s->prompt_led);
    if (s->prompt_led && !rt_slot_join(m, prompt)) {
        rt_u32 n = rt_slot_piece(m, prompt, &rows);
        rt_slot_put(m, prompt, n, rows);
        return;
    }
    rt_step_fill_few(m, start, oldest);
}

/* Fill the step inputs.  If not all that decode fit into a step, the slot that begins rotates.  Tokens in the step. */
RT_FN rt_u32 rt_step_build(rt_machine *m)
{
    rt_serving *s = m->serving;
    rt_u32 few = s->few_tokens, oldest = s->n_admitted - 0x80000000u;
    rt_u32 fits = s->n_active <= (few ? few : s->max_tokens) && s->n_active <= (few ? s->few_rows : s->max_rows);
    s->built_tokens = s->built_rows = 0;
    rt_slots_find_masks(m);
    for (rt_u32 i = 0; i < s->n_slots; i++)
        m->slots[i].step_tokens = 0;
    if (s->grows)
        rt_step_grow(m);
    rt_step_stock(m);
    if (few)
        rt_step_fill_apart(m, fits ? 0 : s->decode_at, oldest);
    else
        rt_step_fill(m, fits ? 0 : (rt_u32)(s->n_steps % s->n_slots), oldest);
    s->steady = fits && s->built_tokens && rt_step_is_steady(m); /* rows stand in the order of slots */
    return s->built_tokens;
}

/* The smallest graph that holds the step. */
RT_FN rt_u32 rt_step_graph(const rt_machine *m)
{
    const rt_serving *s = m->serving;
    rt_u32 g = 0;
    while (g + 1 < m->n_graphs && (m->graphs[g].n_tokens < s->built_tokens || m->graphs[g].n_rows < s->built_rows))
        g++;
    return g;
}

/* ---- the usual step: all lanes, each for the slots lane, lane + RT_LANES ... ---- */

/* Note the token of each request of this lane: do they surely go on after it?  The last positions before a limit are
 * left to the general way, which knows the reasons, and so are pages that are not promised or not on the stack. */
RT_FN int rt_lane_goes_on(rt_machine *m)
{
    const rt_serving *s = m->serving;
    const rt_i32 *next = (const rt_i32 *)(m->step_area + s->next);
    int yes = 1;
    for (rt_u32 i = rt_lane(); i < s->n_slots; i += RT_LANES) {
        rt_slot *slot = &m->slots[i];
        if (!slot->step_tokens)
            continue;
        rt_i32 token = next[slot->step_row];
        yes &= slot->position + 2 < slot->limit;
        yes &= !s->n_pages || slot->position + 2 <= slot->held * s->page_tokens ||
               (slot->held < slot->reserved && s->n_free >= s->n_active);
        yes &= !rt_is_eos(&m->running[i], slot->n_eos, token);
        slot->token = token;
    }
    return yes;
}

/* Nothing new has come, every request goes on, and there is room to tell so.  The loads are independent of each other,
 * so that the lanes wait once for all of them. */
RT_FN int rt_step_goes_on(rt_machine *m)
{
    const rt_serving *s = m->serving;
    rt_u32 requests = rt_load_relaxed_system(&m->request_ring->written),
           commands = rt_load_relaxed_system(&m->command_ring->written),
           taken = rt_load_relaxed_device(&m->request_ring->read),
           obeyed = rt_load_relaxed_device(&m->command_ring->read);
    int yes = rt_lane_goes_on(m);
    yes &= (requests == taken || s->blocked) && commands == obeyed;
    yes &= s->told_end - s->told >= s->n_slots || rt_tokens_space(m) >= s->n_slots;
    return rt_every(yes);
}

/* Where each step writes; NULL: the program has no such tensor. */
typedef struct rt_columns {
    rt_i32 *tokens, *positions, *draws, *text;
} rt_columns;

RT_FN rt_i32 *rt_column(const rt_machine *m, rt_u64 tensor)
{
    return tensor == RT_NOWHERE ? (rt_i32 *)0 : (rt_i32 *)(m->step_area + tensor);
}

/* Feed the token in the row that the slot had in the last step.  page: where its next positions lie, or RT_NONE: where
 * the last ones do. */
RT_FN void rt_slot_advance(rt_machine *m, rt_u32 index, rt_u32 page, const rt_columns *to)
{
    rt_slot *slot = &m->slots[index];
    rt_u32 row = slot->step_row, position = slot->position + 1, generated = slot->generated + 1;
    rt_i32 token = slot->token;
    if (page != RT_NONE)
        *rt_page_entry(m, index, slot->held++) = (rt_i32)page;
    if (to->tokens)
        to->tokens[row] = token;
    if (to->positions)
        to->positions[row] = (rt_i32)position;
    if (to->draws)
        to->draws[row] = (rt_i32)generated;
    if (to->text)
        to->text[index * m->serving->history_tokens + position] = token;
    slot->position = position;
    slot->generated = generated;
}

/* Every request of the step: its next token.  Slots that cross into a new page take from the stack in their order. */
RT_FN void rt_slots_advance(rt_machine *m)
{
    rt_serving *s = m->serving;
    const rt_columns to = {rt_column(m, s->tokens), rt_column(m, s->positions), rt_column(m, s->draws),
                           rt_column(m, s->keeps_text ? s->history : RT_NOWHERE)};
    rt_u32 n_slots = s->n_slots, page_tokens = s->n_pages ? s->page_tokens : 0, n_free = s->n_free, crossing;
    rt_meet(); /* everyone has read n_free */
    for (rt_u32 first = 0; first < n_slots; first += RT_LANES) {
        rt_u32 i = first + rt_lane();
        const rt_slot *slot = &m->slots[i];
        int in_step = i < n_slots && slot->step_tokens;
        int crosses = in_step && page_tokens && slot->position + 2 > slot->held * page_tokens;
        rt_u32 before = rt_before(crosses, &crossing);
        if (in_step)
            rt_slot_advance(m, i, crosses ? m->free_pages[n_free - 1 - before] : RT_NONE, &to);
        n_free -= crossing;
    }
    if (rt_lane() == 0 && n_free != s->n_free) {
        s->n_promised -= s->n_free - n_free;
        s->n_free = n_free;
        rt_pages_say(m);
    }
    rt_meet();
}

/* The tokens that rt_slots_advance fed, in the order of slots. */
RT_FN void rt_slots_tell(rt_machine *m)
{
    rt_serving *s = m->serving;
    rt_u32 told = s->told, n;
    for (rt_u32 first = 0; first < s->n_slots; first += RT_LANES) {
        rt_u32 i = first + rt_lane();
        const rt_slot *slot = &m->slots[i];
        int in_step = i < s->n_slots && slot->step_tokens;
        rt_u32 before = rt_before(in_step, &n);
        if (in_step)
            rt_tell_at(m, told + before, m->running[i].id, slot->token, slot->generated - 1, slot->count, RT_GOING);
        told += n;
    }
    rt_meet();
    if (rt_lane() == 0) {
        s->told = told;
        rt_show(m);
    }
    rt_meet();
}

/* All lanes.  If the step that has ended was steady and its requests all go on, publish the like of it.  0: this is for
 * the general way. */
RT_FN int rt_step_advance(rt_machine *m, rt_worker *w)
{
    rt_serving *s = m->serving;
    if (!s->steady || !rt_step_goes_on(m))
        return 0;
    rt_slots_advance(m);
    if (RT_STEP_MOVES)
        rt_slots_tell(m);
    if (rt_lane() == 0)
        rt_step_publish(m, w, rt_word_graph(s->step), rt_word_tokens(s->step), rt_word_rows(s->step));
    if (!RT_STEP_MOVES)
        rt_slots_tell(m); /* the host can wait, the workers should not */
    if (rt_lane() == 0)
        rt_ring_host(m);
    return 1;
}

/* ---- one look ---- */

/* One lane: the general way. */
RT_LARGE_FN int rt_step_look(rt_machine *m, rt_worker *w)
{
    rt_serving *s = m->serving;
    w->doorbell =
        rt_load_acquire_system(&m->control->doorbell); /* before looking: a later ring ends the sleep at once */
    if (!s->running && rt_once_poll(m, w))
        return 1;
    if (!s->ready)
        return 0;
    rt_u32 told = s->told, taken = rt_load_relaxed_device(&m->request_ring->read);
    if (s->running && !rt_step_collect(m))
        return 0;
    rt_step_commands(m);
    rt_step_admit(m);
    rt_u32 n = rt_step_build(m);
    int tells = told != s->told, news = tells || taken != rt_load_relaxed_device(&m->request_ring->read);
    if (tells && (RT_STEP_MOVES || !n))
        rt_show(m);
    if (n) {
        s->running = 1;
        rt_step_publish(m, w, rt_step_graph(m), n, s->built_rows);
    }
    if (tells && n && !RT_STEP_MOVES)
        rt_show(m);
    if (news)
        rt_ring_host(m);
    return n != 0;
}

/* One look by the owner, all lanes.  1: a step was published. */
RT_LARGE_FN int rt_step_poll(rt_machine *m, rt_worker *w)
{
    rt_meet();
    int published = rt_step_advance(m, w);
    rt_meet(); /* no lane still asks what the general way changes */
    if (!published && rt_lane() == 0)
        published = rt_step_look(m, w);
    rt_meet();
    return !rt_every(!published);
}

#endif
