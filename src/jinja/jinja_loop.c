/* jinja_loop.c - for, and what `loop` is inside it.
 *
 * Items are taken one at a time, and its condition is asked of each when it is taken: loop.last
 * and loop.nextitem take one more, loop.length of what has no length takes all.
 *
 * Items on their way, here at the second turn of three with loop.last asked for:
 *
 *   iterator: (c taken)   after: c   current: b   before: a      index0 = 1
 *
 * `after` is filled by peek_next and emptied by advance; find_length drains the iterator into a
 * list and puts an iterator over that list in its place.
 *
 * Called by jinja_run.c for the statement, by jinja_attribute.c for loop.NAME, by jinja_macro.c
 * for loop(...). */
#include "jinja/jinja_parts.h"

/* The condition of a for, of one item.  What passes is what was assigned: of several targets a
 * tuple, whatever the item was. */
static mpk_status test_item(jrun *r, const jloop *l, jval *item, bool *out)
{
    jscope *present = r->scope;
    jval test;
    TRY(jinja_open_scope(r, l->scope, &(jnames){0}, &r->scope));
    TRY(jinja_assign(r, l->node->a, *item));
    TRY(jinja_eval(r, l->node->c, &test));
    *out = jinja_true(test);
    if (*out && l->node->a->kind == N_TUPLE)
        TRY(jinja_eval(r, l->node->a, item));
    r->scope = present;
    return MPK_OK;
}

/* The next item that passes the loop's condition. */
static mpk_status pull(jrun *r, jloop *l, jval *out)
{
    for (bool taken = false; !taken;) {
        TRY(jinja_next(r, l->iterator, out));
        taken = out->kind == J_ABSENT || !l->node->c;
        if (!taken)
            TRY(test_item(r, l, out, &taken));
    }
    return MPK_OK;
}

/* Have the item after the present one, if there is one, without going to it. */
static mpk_status peek_next(jrun *r, jloop *l)
{
    return l->after.kind == J_ABSENT ? pull(r, l, &l->after) : MPK_OK;
}

/* `after` holds an item that was taken too early, for loop.last or loop.nextitem; it comes
 * first. */
static mpk_status advance(jrun *r, jloop *l)
{
    TRY(peek_next(r, l));
    if (l->after.kind == J_ABSENT)
        return MPK_OK;
    l->index0++;
    l->before = l->current;
    l->current = l->after;
    l->after = (jval){0};
    return MPK_OK;
}

/* ---- loop.NAME ---- */

/* What has a length and no condition tells it.  Otherwise the rest is taken now, and the loop goes
 * on over the list of it. `loop.length` or `loop.revindex` in a loop with a condition: the items
 * that are left are counted by taking them. Those before, the present one and one that peek_next
 * has taken are added. */
static mpk_status find_length(jrun *r, jloop *l)
{
    jval rest, item, again;
    if (l->length >= 0)
        return MPK_OK;
    if (!l->node->c && l->over.kind != J_ITERATOR)
        return jinja_length(r, l->over, &l->length);
    TRY(jinja_make_list(r, J_LIST, 0, &rest));
    for (;;) {
        TRY(pull(r, l, &item));
        if (item.kind == J_ABSENT)
            break;
        TRY(jinja_push(r, rest.list, item));
    }
    l->length = (int64_t)rest.list->n + l->index0 + 1 + (l->after.kind != J_ABSENT);
    TRY(jinja_iterate_list(r, rest.list, &again));
    l->iterator = again.iterator;
    return MPK_OK;
}

/* -1: name is not a number of a loop. */
static mpk_status loop_number(jrun *r, jloop *l, str name, int64_t *out)
{
    if (str_is(name, "index") || str_is(name, "index0"))
        *out = l->index0 + (name.n == 5);
    else if (str_is(name, "depth") || str_is(name, "depth0"))
        *out = l->depth0 + (name.n == 5);
    else if (str_is(name, "length") || str_is(name, "revindex") || str_is(name, "revindex0")) {
        TRY(find_length(r, l));
        *out = name.n == 6 ? l->length : l->length - l->index0 - (name.n == 9);
    } else
        *out = -1;
    return MPK_OK;
}

/* *out stays J_ABSENT for a name that `loop` has not: the caller then looks for an item. loop.last
 * has to know whether an item follows: it is taken and kept in l->after for the next turn. */
mpk_status jinja_loop_attribute(jrun *r, jloop *l, str name, jval *out)
{
    int64_t number = -1;
    const bool last = str_is(name, "last"), next = str_is(name, "nextitem");
    *out = (jval){0};
    if (str_is(name, "first"))
        *out = jinja_bool(l->index0 == 0);
    else if (last || next) {
        TRY(peek_next(r, l));
        *out = last ? jinja_bool(l->after.kind == J_ABSENT) : l->after;
        if (out->kind == J_ABSENT)
            *out = jinja_undefined(STR("nextitem"));
    } else if (str_is(name, "previtem"))
        *out = l->index0 == 0 ? jinja_undefined(name) : l->before;
    else {
        TRY(loop_number(r, l, name, &number));
        if (number >= 0)
            *out = jinja_int(number);
    }
    return MPK_OK;
}

/* Argument number index0 modulo their number; no state of its own. */
static mpk_status loop_cycle(jrun *r, jval self, const jargs *args, jval *out)
{
    if (!args->n || args->n_keywords)
        return jinja_fail(r, "loop.cycle takes the values to cycle through");
    *out = args->at[(uint64_t)self.loop->index0 % args->n];
    return MPK_OK;
}

/* Values are compared with those of the last call in this loop, wherever in its body that was. */
static mpk_status loop_changed(jrun *r, jval self, const jargs *args, jval *out)
{
    jval now;
    bool equal = false;
    if (args->n_keywords)
        return jinja_fail(r, "loop.changed takes values, and no names");
    TRY(jinja_make_list(r, J_TUPLE, args->n, &now));
    for (size_t i = 0; i < args->n; i++)
        TRY(jinja_push(r, now.list, args->at[i]));
    if (self.loop->changed.kind != J_ABSENT)
        TRY(jinja_equal(r, self.loop->changed, now, &equal));
    self.loop->changed = now;
    *out = jinja_bool(!equal);
    return MPK_OK;
}

const jmethod jinja_loop_methods[] = {
    {.name = "cycle", .call = loop_cycle}, {.name = "changed", .call = loop_changed}, {0}};

/* ---- running ---- */

/* A turn's scope is used again in the next turn, unless a macro was made in it: the macro keeps its
 * scope, and the next turn gets a new one. */
static mpk_status run_turn(jrun *r, jloop *l, jscope **scope, jflow *flow)
{
    if (!*scope || (*scope)->is_kept)
        TRY(jinja_open_scope(r, l->scope, &l->node->hidden, scope));
    jscope *s = *scope;
    s->n = 0;
    for (size_t i = 0; i < l->node->hidden.n; i++)
        TRY(jinja_bind_name(r, s, l->node->hidden.at[i], (jval){0}));
    r->scope = s;
    TRY(jinja_bind_name(r, s, STR("loop"), (jval){.kind = J_LOOP, .loop = l}));
    TRY(jinja_assign(r, l->node->a, l->current));
    TRY(jinja_run_nodes(r, &l->node->body, flow));
    r->scope = l->scope;
    return MPK_OK;
}

/* A turn that is left early does not count: else runs if no turn came to its end, as in what Jinja2
 * compiles to.  What leaves the else, leaves the loop around this one. `turn` counts what was asked
 * for, index0 what came: they differ when nothing is left. */
static mpk_status run_over(jrun *r, const jnode *n, jval over, int64_t depth0, jflow *outer)
{
    jloop *l;
    jscope *scope = NULL;
    bool completed = false;
    jflow flow = J_GO_ON;
    TRY(jinja_charge(r, sizeof *l));
    NEW(r->cx, r->a, l, 1);
    *l = (jloop){
        .node = n, .scope = r->scope, .over = over, .index0 = -1, .length = -1, .depth0 = depth0};
    TRY(jinja_iterate(r, over, &l->iterator));
    for (int64_t turn = 0; flow != J_LEAVE; turn++) {
        flow = J_GO_ON;
        TRY(advance(r, l));
        if (l->index0 != turn)
            break;
        TRY(run_turn(r, l, &scope, &flow));
        completed |= flow == J_GO_ON;
    }
    if (completed || !n->items.n)
        return MPK_OK;
    TRY(jinja_open_scope(r, l->scope, &n->hidden_else, &r->scope));
    TRY(jinja_run_nodes(r, &n->items, outer));
    r->scope = l->scope;
    return MPK_OK;
}

/* What the loop runs over is computed once, in the scope around it. */
mpk_status jinja_run_for(jrun *r, const jnode *n, jflow *flow)
{
    jval over;
    TRY(jinja_eval(r, n->b, &over));
    r->line = n->line;
    return run_over(r, n, over, 0, flow);
}

/* loop(items) inside a recursive loop: the body over other items, caught as text. */
mpk_status jinja_loop_recurse(jrun *r, jloop *l, const jargs *args, jval *out)
{
    jscope *present = r->scope;
    text *outer = r->out, mine = {0};
    jflow flow = J_GO_ON;
    if (!l->node->flag)
        return jinja_fail(r, "only a loop that is marked recursive can be called");
    if (args->n != 1 || args->n_keywords)
        return jinja_fail(r, "a loop is called with what it shall run over");
    r->out = &mine;
    r->scope = l->scope;
    mpk_status status = run_over(r, l->node, args->at[0], l->depth0 + 1, &flow);
    r->out = outer;
    r->scope = present;
    return jinja_take_text(r, status, &mine, out);
}
