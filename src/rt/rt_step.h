/* rt_step.h - the step task (paper §6.1, "Supporting runtime dynamism"): requests in, tokens out,
 * next step prepared.
 *
 * Input: the results of the last step in the step area (logits, next) and the host's rings.
 * Output: the token ring, the step inputs (model.h) and the published step word.
 *
 * Who runs it: on a CPU the worker whose trigger completed the end event (rt_event_trigger); on a
 * GPU a warp of its own on worker 0.  No other task runs between the end of a step and the
 * publication of the next, so everything here is plain memory except the rings and the words of
 * rt_control that others poll.
 *
 * The general path, rt_step_look, does in this order:
 *
 *   1. collect   account for the last step: deliver tokens and logits, retire requests that ended;
 *   2. commands  cancel, append;
 *   3. admit     take requests from the ring, by priority and arrival (rt_admit.h);
 *   4. build     choose the tokens of the next step and write the step inputs;
 *   5. publish   store the step word (release).
 *
 * One lane does that, but for the choice of tokens (rt_fill.h): all lanes read the tokens and names
 * of prompts, which lie in the host's memory.
 *
 * The steady path, rt_step_advance, covers the usual step: each request got one token and goes on,
 * and the host has sent nothing.  Slots, rows and graph stay the same; positions and counts grow by
 * 1.  All lanes share that work.
 *
 * Independence: the tokens of a request are fed in order of position, and nothing that a request
 * receives depends on the others.  Where bodies reduce each token on its own, neither the cuts of a
 * prompt nor its neighbours change a bit of the result.  Where they do not (a GPU), steps can be
 * filled so that the bits still do not change (rt_step_fill_apart).
 *
 * With a draft model its steps come between 4 and 5 (rt_ahead.h): while one runs nothing is
 * collected, no command is obeyed and no request admitted, so that slots stay as they were found.
 *
 * Drafts: what the requests of a step in which all decode leave of draft_tokens may hold drafts
 * (rt_draft.h).  Such a request feeds its last token and, after it, tokens that may follow, each
 * with a row of logits; each row draws as it would alone, with the random number of its position.
 * A row counts if every draft before it was the token drawn there (rt_slot_verify).  The other rows
 * leave nothing: a token reads the KV cache up to its own position alone, so what lies at or after
 * `position` is written again before anything reads it.
 *
 * Back pressure: rt_admit.h promises KV pages before a request is fed.  If there are none, or if
 * the token ring may be too full, the next request in the ring waits and so do those after it.
 *
 * Cost: O(slots + tokens of the step).  The steady path on a GPU costs one round of independent
 * loads, and the stores.  There the tokens of a prompt cost a round trip over the bus for every 512
 * of them, the names of its pages one for every 32.
 */
#ifndef RT_STEP_H
#define RT_STEP_H

#include "rt/rt_fill.h"

/* ---- steps of the host ---- */

/* A step that the host drives itself (run_graph): it has written the inputs and waits for the end.
 * once_wanted is the host's count of such steps, once_done ours; a step is due while they differ.
 * 1: published. */
RT_FN int rt_once_poll(rt_machine *m, rt_worker *w)
{
    rt_control *c = m->control;
    /* partner: run_graph; its inputs are visible */
    rt_u32 wanted = rt_load_acquire_system(&c->once_wanted);
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

/* ---- commands ---- */

/* The slot that runs the request; RT_NONE: it waits in the ring, or has ended. */
RT_FN rt_u32 rt_slot_of(const rt_machine *m, rt_u64 id)
{
    for (rt_u32 i = 0; i < m->serving->n_slots; i++)
        if (m->slots[i].state != RT_SLOT_FREE && m->running[i].id == id)
            return i;
    return RT_NONE;
}

/* Cancel a request that still waits in the ring.  It ends now; rt_requests_pass takes its entry
 * away. */
RT_FN void rt_cancel_waiting(rt_machine *m, rt_u64 id)
{
    rt_u32 first = rt_load_relaxed_device(&m->request_ring->read),
           n = rt_ring_ready(m->request_ring);
    for (rt_u32 i = 0; i < n; i++) {
        const rt_request *r = &m->requests[(first + i) & m->request_mask];
        if (r->id == id && !r->dropped) {
            rt_request_drop(m, first + i);
            m->serving->blocked = 0;
            rt_tell(m, id, -1, 0, 0, RT_CANCELLED);
            return;
        }
    }
}

/* The host's tokens for a request that it samples for, and where the logits after them go.  A
 * request that does not wait for them has ended or is about to: the command is late and does
 * nothing. */
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

/* Execute the host's commands, as long as the token ring has room for an answer.  A command for an
 * unknown request is dropped: the request ended before the command arrived. */
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

/* How many drafts the next step may have beside the tokens of the slots that decode; 0 if a slot
 * feeds a text. */
RT_FN rt_u32 rt_draft_room(const rt_machine *m)
{
    const rt_serving *s = m->serving;
    rt_u32 room = s->draft_tokens, decoding = 0;
    for (rt_u32 i = 0; i < s->n_slots; i++) {
        if (m->slots[i].state != RT_SLOT_FEEDING)
            continue;
        if (m->slots[i].source != RT_NOWHERE)
            return 0;
        if (m->running[i].n_rules && room > s->n_choices)
            room = s->n_choices;
        decoding++;
    }
    return room > decoding ? room - decoding : 0;
}

/* Look up what each slot that decodes may draft; how many found something. */
RT_FN rt_u32 rt_step_look_up(rt_machine *m, rt_u32 room)
{
    rt_u32 found = 0;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        rt_drafter *d = &m->drafters[i];
        d->tried = room && rt_looks_up(m->serving) && rt_slot_decodes(slot)
                       ? rt_draft_most(m, i, 0, slot->position, slot->generated)
                       : 0;
        if (!d->tried)
            continue;
        rt_u32 from = rt_draft_look(m, i, slot->position, &d->tried);
        if (from == RT_NONE) {
            d->tried = 0;
        } else {
            d->from = from;
            found++;
        }
    }
    return found;
}

/* Let the draft model guess for the slots that found nothing; how many of them may draft. */
RT_FN rt_u32 rt_step_ask(rt_machine *m)
{
    rt_u32 asked = 0;
    for (rt_u32 i = 0; i < m->serving->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        rt_drafter *d = &m->drafters[i];
        if (d->tried || !rt_slot_decodes(slot))
            continue;
        d->tried = rt_ahead_most(m, i, slot->position, slot->generated);
        if (!d->tried)
            continue;
        d->from = RT_NONE;
        asked++;
    }
    return asked;
}

/* Draft for the step that is built.  Those who decode have their tokens first; what they leave of
 * the room is shared evenly among those whose text goes on somewhere.  So drafts never take the
 * place of another slot's token, nor make a step larger than draft_tokens. */
RT_LARGE_FN void rt_step_draft(rt_machine *m)
{
    rt_u32 room = rt_draft_room(m), drafting = rt_step_look_up(m, room);
    if (rt_has_draft_model(m) && room)
        drafting += rt_step_ask(m);
    for (rt_u32 i = 0; drafting; i++) {
        rt_drafter *d = &m->drafters[i];
        if (!d->tried)
            continue;
        rt_u32 share = (room + drafting - 1) / drafting;
        if (d->tried > share)
            d->tried = share;
        if (!rt_has_draft_model(m) || d->from != RT_NONE)
            rt_draft_copy(m, i, d->from, d->tried);
        room -= d->tried;
        drafting--;
    }
}

/* The texts that the step feeds enter the indexes. */
RT_LARGE_FN void rt_step_index(rt_machine *m)
{
    for (rt_u32 i = 0; rt_looks_up(m->serving) && i < m->serving->n_slots; i++) {
        const rt_slot *slot = &m->slots[i];
        if (slot->state == RT_SLOT_FEEDING && slot->source != RT_NOWHERE && slot->step_tokens &&
            m->running[i].drafts)
            rt_draft_index(m, i, slot->position + slot->step_tokens);
    }
}

/* One lane: what comes before the step is filled: nothing is in it, and each request has pages and
 * drafts for what it may feed. */
RT_LARGE_FN void rt_step_prepare(rt_machine *m)
{
    rt_serving *s = m->serving;
    s->built_tokens = s->built_rows = s->built_choices = 0;
    rt_slots_find_masks(m);
    for (rt_u32 i = 0; i < s->n_slots; i++)
        m->slots[i].step_tokens = 0;
    if (s->grows)
        rt_step_grow(m);
    else if (s->n_short)
        rt_step_borrow(m);
    rt_step_stock(m);
    if (s->draft_tokens)
        rt_step_draft(m);
}

/* Does this graph hold the step, with as few tokens without a row as it is for? */
RT_FN int rt_graph_fits(const rt_graph *g, const rt_serving *s)
{
    return g->n_tokens >= s->built_tokens && g->n_rows >= s->built_rows &&
           (s->built_tokens <= s->built_rows || s->built_tokens - s->built_rows <= g->most_fresh);
}

/* Graphs of the model; those of a draft model come after them. */
RT_FN rt_u32 rt_model_graphs(const rt_machine *m)
{
    return rt_has_draft_model(m) ? rt_ahead_of(m)->first_graph : m->n_graphs;
}

/* The smallest of the model's graphs that fits the step: they are sorted by n_tokens, and the last
 * one holds every step.  All are looked at, so that no load waits for the one before. */
RT_FN rt_u32 rt_step_graph(const rt_machine *m)
{
    const rt_serving *s = m->serving;
    rt_u32 best = rt_model_graphs(m) - 1;
    RT_UNROLL_4
    for (rt_u32 g = best; g-- > 0;)
        best = rt_graph_fits(&m->graphs[g], s) ? g : best;
    return best;
}

/* ---- the usual step: all lanes, each for the slots lane, lane + RT_LANES ... ---- */

/* Record the token that each of this lane's requests got.  1: all of them surely go on after it.
 * The last positions before a limit are left to the general path, which finds the reason, and so is
 * a request that needs a page which was not promised or is not on the stack.  The test is
 * conservative: a 0 costs time, never a result. */
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
        yes &= !rt_is_eos(&m->running[i], slot->n_eos, token) && token != RT_LATE_TOKEN;
        if (token != RT_LATE_TOKEN) /* otherwise the last one may be fed again */
            slot->token = token;
    }
    return yes;
}

/* All requests go on: do none of them draft for the next step?  Each lane looks up what
 * rt_step_draft would. */
RT_FN int rt_lanes_draft_none(rt_machine *m)
{
    const rt_serving *s = m->serving;
    int none = 1;
    if (rt_word_tokens(s->step) >= s->draft_tokens)
        return 1;
    for (rt_u32 i = rt_lane(); i < s->n_slots; i += RT_LANES) {
        const rt_slot *slot = &m->slots[i];
        rt_u32 at = slot->position + 1, n = slot->step_tokens && rt_looks_up(s)
                                                ? rt_draft_most(m, i, 0, at, slot->generated + 1)
                                                : 0;
        if (n)
            none &= rt_draft_look(m, i, at, &n) == RT_NONE;
        if (rt_has_draft_model(m) && slot->step_tokens)
            none &= !rt_ahead_most(m, i, at, slot->generated + 1);
    }
    return rt_every(none);
}

/* 1 if the host has sent nothing since the last look, every request goes on without drafts, and the
 * token ring has room.  The loads before the vote do not depend on each other, so that the lanes
 * wait for all of them once. */
RT_FN int rt_step_goes_on(rt_machine *m)
{
    const rt_serving *s = m->serving;
    rt_u32 requests = rt_load_relaxed_system(&m->request_ring->written),
           commands = rt_load_relaxed_system(&m->command_ring->written),
           taken = rt_load_relaxed_device(&m->request_ring->read),
           obeyed = rt_load_relaxed_device(&m->command_ring->read);
    int yes = rt_lane_goes_on(m);
    yes &= requests == s->n_looked && (requests == taken || s->blocked) && commands == obeyed;
    yes &= s->told_end - s->told >= rt_told_most(s) || rt_tokens_space(m) >= rt_told_most(s);
    return rt_every(yes) && rt_lanes_draft_none(m);
}

/* The step inputs that change in each steady step; NULL: the program has no such tensor. */
typedef struct rt_columns {
    rt_i32 *tokens, *positions, *draws, *text, *asks;
} rt_columns;

/* Feed the slot's token in the next step, in the row that the slot had in the last one.  Of that
 * row in `asks` only the length of the history changes.  The log probabilities of the last step go
 * to the host.  page: a new KV page for its next positions; RT_NONE: the last page has room. */
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
    if (to->text && (m->serving->keeps_text || slot->asks & RT_SLOT_RULES))
        to->text[index * m->serving->history_tokens + position] = token;
    if (to->asks)
        to->asks[RT_ASKS * row + RT_ASK_HISTORY] = (rt_i32)(position + 1);
    slot->position = position;
    slot->generated = generated;
    if (slot->asks & RT_SLOT_SHARES)
        rt_slot_deliver_shares(m, index);
}

/* All lanes: feed every request's next token.  Slots that need a new page take them from the stack
 * in the order of slots (rt_before counts those before), as the general path would. */
RT_FN void rt_slots_advance(rt_machine *m)
{
    rt_serving *s = m->serving;
    const rt_u64 history = s->keeps_text || s->asks != RT_NOWHERE ? s->history : RT_NOWHERE;
    const rt_columns to = {rt_column(m, s->tokens, 0), rt_column(m, s->positions, 0),
                           rt_column(m, s->draws, 0), rt_column(m, history, 0),
                           rt_column(m, s->asks, 0)};
    rt_u32 n_slots = s->n_slots, page_tokens = s->n_pages ? s->page_tokens : 0, n_free = s->n_free,
           crossing;
    rt_meet(); /* all lanes have read n_free; one of them changes it below */
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

/* All lanes: deliver the tokens that rt_slots_advance fed, in the order of slots. */
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
            rt_tell_at(m, told + before, m->running[i].id, slot->token, slot->generated - 1,
                       slot->count, RT_GOING);
        told += n;
    }
    rt_meet();
    if (rt_lane() == 0) {
        s->told = told;
        rt_show(m);
    }
    rt_meet();
}

/* All lanes: the steady path.  If the last step was steady and all its requests go on, publish its
 * successor.  0: the general path must run; nothing was changed but slot->token and, if all go on
 * and one drafts, what the general path does first with the texts and their indexes. */
RT_FN int rt_step_advance(rt_machine *m, rt_worker *w)
{
    rt_serving *s = m->serving;
    if (!s->steady || !rt_step_goes_on(m))
        return 0;
    rt_slots_advance(m);
    if (RT_STEP_MOVES)
        rt_slots_tell(m);
    if (rt_lane() == 0)
        rt_step_publish(m, w, rt_word_graph(s->step), rt_word_tokens(s->step),
                        rt_word_rows(s->step));
    if (!RT_STEP_MOVES)
        rt_slots_tell(
            m); /* after publishing: workers start at once, the host learns a little later */
    if (rt_lane() == 0)
        rt_ring_host(m);
    return 1;
}

/* ---- one look ---- */

/* What the first lane remembers of a look from its beginning to its end. */
typedef struct rt_look {
    rt_u32 told, taken; /* entries of the rings before it */
    rt_u32 fits;        /* rt_step_fits */
} rt_look;

/* How a look goes on: nothing is to be done, a step has been published, or one is to be filled. */
enum { RT_LOOK_RESTS, RT_LOOK_PUBLISHED, RT_LOOK_FILLS };

RT_FN void rt_look_note(const rt_machine *m, rt_look *look)
{
    look->told = m->serving->told;
    look->taken = rt_load_relaxed_device(&m->request_ring->read);
    look->fits = rt_step_fits(m->serving);
}

/* Tell the host what the look has brought. */
RT_FN void rt_look_tell(rt_machine *m, const rt_look *look)
{
    const int tells = look->told != m->serving->told;
    if (tells)
        rt_show(m);
    if (tells || look->taken != rt_load_relaxed_device(&m->request_ring->read))
        rt_ring_host(m);
}

/* One lane: publish a step of the draft model or, if no request wants more, have the step filled
 * that tries drafts. */
RT_LARGE_FN rt_u32 rt_step_guess(rt_machine *m, rt_worker *w)
{
    rt_serving *s = m->serving;
    if (rt_ahead_step(m, w))
        return RT_LOOK_PUBLISHED;
    s->built_tokens = s->built_rows = s->built_choices = 0;
    return RT_LOOK_FILLS;
}

/* One lane: collect, commands, admit, and what else comes before the step is filled. */
RT_LARGE_FN rt_u32 rt_look_begin(rt_machine *m, rt_worker *w, rt_look *look)
{
    rt_serving *s = m->serving;
    /* before looking: a later ring ends the sleep at once */
    w->doorbell = rt_load_acquire_system(&m->control->doorbell);
    if (rt_has_draft_model(m) && rt_ahead_of(m)->running) {
        rt_look_note(m, look);
        rt_ahead_collect(m);
        return rt_step_guess(m, w);
    }
    if (!s->running && rt_once_poll(m, w))
        return RT_LOOK_PUBLISHED;
    if (!s->ready) /* there need not be any rings */
        return RT_LOOK_RESTS;
    rt_look_note(m, look);
    if (s->running && !rt_step_collect(m))
        return RT_LOOK_RESTS;
    rt_step_commands(m);
    rt_step_admit(m);
    look->fits = rt_step_fits(s);
    rt_step_prepare(m);
    if (!rt_has_draft_model(m) || !rt_ahead_begin(m))
        return RT_LOOK_FILLS;
    rt_look_tell(m, look); /* before the draft model's steps */
    rt_look_note(m, look);
    return rt_step_guess(m, w);
}

/* One lane: publish the step, if anything is in it, and tell the host.  Where the step task may
 * move to another thread (RT_STEP_MOVES), tokens are shown and texts indexed before the step is
 * published, since another thread may own `serving` from then on; elsewhere after it, to save
 * time. */
RT_LARGE_FN void rt_look_end(rt_machine *m, rt_worker *w, const rt_look *look, rt_u32 graph)
{
    rt_serving *s = m->serving;
    const rt_u32 n = s->built_tokens, indexes = n && s->draft_tokens;
    const int tells = look->told != s->told,
              news = tells || look->taken != rt_load_relaxed_device(&m->request_ring->read);
    if (tells && (RT_STEP_MOVES || !n))
        rt_show(m);
    if (indexes && RT_STEP_MOVES)
        rt_step_index(m);
    if (n) {
        s->running = 1;
        rt_step_publish(m, w, graph, n, s->built_rows);
    }
    if (tells && n && !RT_STEP_MOVES)
        rt_show(m);
    if (news)
        rt_ring_host(m);
    if (indexes && !RT_STEP_MOVES)
        rt_step_index(m); /* while the step runs */
}

/* All lanes: the general path.  1: a step was published. */
RT_LARGE_FN int rt_step_look(rt_machine *m, rt_worker *w)
{
    rt_look look = {0, 0, 0};
    const rt_u32 what = rt_first(rt_lane() == 0 ? rt_look_begin(m, w, &look) : 0);
    if (what != RT_LOOK_FILLS)
        return what == RT_LOOK_PUBLISHED;
    rt_meet();
    rt_step_fill_in(m, rt_first(look.fits));
    const rt_u32 n = m->serving->built_tokens, graph = rt_step_graph(m);
    rt_meet();
    if (rt_lane() == 0)
        rt_look_end(m, w, &look, graph);
    return n != 0; /* after a publication another thread may own `serving` */
}

/* One look by the owner, all lanes.  1: a step was published. */
RT_LARGE_FN int rt_step_poll(rt_machine *m, rt_worker *w)
{
    rt_meet();
    int published = rt_step_advance(m, w);
    rt_meet(); /* no lane still asks what the general path changes */
    if (!published)
        published = rt_step_look(m, w);
    rt_meet();
    return published;
}

#endif
