/* tg_memory.c - which tensors may share bytes, and the proof of a memory plan (see program.h).
 *
 * Input: a linear graph, and for the proof the places that plan_memory chose.  plan_memory calls
 * tg_may_overwrite while it plans; tg_verify_memory checks the finished plan with the same
 * function and does not depend on how the plan was made.
 *
 * Invariant: if two temporaries overlap in memory, events order every task that touches the
 * earlier one before every task of the operator that writes the later one.  Then no schedule,
 * however slow a worker is, lets a reader of the earlier one see bytes of the later one.  All
 * pairs of overlapping tensors are checked; a pair with a barrier between them costs one
 * comparison.  In the shared areas no two tensors overlap.
 */
#include "ir/op.h"
#include "tgraph/program.h"

/* ---- which operators touch what ---- */
/* ---- who touches what ---- */

/* List the roots that an operator touches in roots[MOST operands], repetitions included.
 * Returns how many. */
static uint32_t list_roots(const ir_graph *ir, const ir_op *op, ir_tensor_id *roots)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] != IR_NONE)
            roots[n++] = tg_root(ir, op->in[i]);
    for (uint32_t i = 0; i < op->n_out; i++)
        roots[n++] = tg_root(ir, op->out[i]);
    return n;
}

/* Count the operators that touch each root, or (write) list them from users[first_user] on. */
static void add_users(tg_alive *t, bool write)
{
    ir_tensor_id roots[IR_MAX_INPUTS + IR_MAX_OUTPUTS];
    for (ir_op_id o = 0; o < t->ir->ops.n; o++) {
        const ir_op *op = &t->ir->ops.at[o];
        uint32_t n = tg_op_has_tasks(t->ir, op) ? list_roots(t->ir, op, roots) : 0;
        for (uint32_t i = 0; i < n; i++) {
            if (write)
                t->users[t->first_user[roots[i]] + t->n_users[roots[i]]] = o;
            t->n_users[roots[i]]++;
        }
    }
}

/* Two passes over the operators, as for all lists of this room: one to count, one to write. */
static mpk_status fill_users(mpk_context *cx, arena *a, tg_alive *t)
{
    uint32_t total = 0;
    NEW(cx, a, t->first_user, t->ir->tensors.n);
    NEW(cx, a, t->n_users, t->ir->tensors.n);
    add_users(t, false);
    for (size_t i = 0; i < t->ir->tensors.n; i++) {
        t->first_user[i] = total;
        total += t->n_users[i];
        t->n_users[i] = 0;
    }
    NEW(cx, a, t->users, total);
    add_users(t, true);
    return MPK_OK;
}

/* `above` is what makes the common question cheap: if all tasks of an operator lie below a set's
 * prefix, the set holds them, and no task is looked at. */
mpk_status tg_fill_alive(mpk_context *cx, arena *a, const tg_graph *g, tg_alive *out)
{
    tg_links links;
    out->ir = g->ir;
    TRY(tg_fill_op_tasks(cx, a, g, &out->by_op));
    TRY(tg_fill_links(cx, a, g, &links));
    TRY(tg_fill_reach(cx, a, g, &links, &out->reach));
    NEW(cx, a, out->above, g->ir->ops.n);
    for (tg_task_id t = 0; t < g->n_tasks; t++) {
        ir_op_id op = g->tasks[t].op;
        if (op != IR_NONE && out->above[op] <= out->reach.position[t])
            out->above[op] = out->reach.position[t] + 1;
    }
    return fill_users(cx, a, out);
}

/* A task that touches the root and is not in the set; TG_NONE if there is none. */
static tg_task_id find_outside(const tg_alive *t, ir_tensor_id root, const tg_set *before)
{
    for (uint32_t i = 0; i < t->n_users[root]; i++) {
        ir_op_id op = t->users[t->first_user[root] + i];
        if (t->above[op] <= before->prefix)
            continue;
        for (uint32_t k = t->by_op.first[op]; k < t->by_op.first[op + 1]; k++)
            if (!tg_set_has(before, t->reach.position[t->by_op.tasks[k]]))
                return t->by_op.tasks[k];
    }
    return TG_NONE;
}

/* Find a task of the operator (*writer) and a task that touches the root (*user) that are not
 * ordered; false if there is no such pair.  Tasks of one operator mostly wait for the same event
 * and then share one set, so a set equal to the last one is not searched again. */
static bool find_unordered(const tg_alive *t, ir_op_id op, ir_tensor_id root, tg_task_id *writer,
                           tg_task_id *user)
{
    const tg_set *last = NULL;
    for (uint32_t i = t->by_op.first[op]; i < t->by_op.first[op + 1]; i++) {
        const tg_set *before = t->reach.before[t->by_op.tasks[i]];
        *writer = t->by_op.tasks[i];
        *user = before == last ? TG_NONE : find_outside(t, root, before);
        if (*user != TG_NONE)
            return true;
        last = before;
    }
    return false;
}

bool tg_may_overwrite(const tg_alive *alive, ir_op_id op, ir_tensor_id root)
{
    tg_task_id writer, user;
    return !find_unordered(alive, op, root, &writer, &user);
}

/* ---- the proof ---- */

/* A root must lie inside its area, a multiple of 64 bytes from its start; weights lie in theirs
 * and nothing else with them; a view or an in-place result must lie where its root does. */
static mpk_status check_place(mpk_context *cx, const tg_compiled *c, ir_tensor_id t,
                              const uint64_t *area_bytes)
{
    const ir_tensor *tensor = &c->ir->tensors.at[t];
    const tg_place *place = &c->places[t];
    uint64_t bytes = (uint64_t)ir_bytes(tensor);
    CHECK(cx, (unsigned)place->area < TG_AREAS, MPK_EVERIFY, "%%%.*s lies in no area",
          STR_ARG(tensor->name));
    if (tensor->shares != IR_NONE) {
        const tg_place *root = &c->places[tg_root(c->ir, t)];
        CHECK(cx, root->area == place->area && root->offset == place->offset, MPK_EVERIFY,
              "%%%.*s does not lie where its storage is", STR_ARG(tensor->name));
        return MPK_OK;
    }
    CHECK(cx, (place->area == TG_WEIGHTS) == (tensor->kind == IR_CONST), MPK_EVERIFY,
          "%%%.*s lies in the wrong area", STR_ARG(tensor->name));
    if (place->area == TG_WEIGHTS)
        return MPK_OK;
    CHECK(cx,
          place->offset % 64 == 0 && place->offset <= area_bytes[place->area] &&
              bytes <= area_bytes[place->area] - place->offset,
          MPK_EVERIFY, "%%%.*s does not fit its area at byte %llu", STR_ARG(tensor->name),
          (unsigned long long)place->offset);
    return MPK_OK;
}

/* Half-open ranges of bytes in one area; an empty tensor shares none. */
static bool share_bytes(const tg_compiled *c, ir_tensor_id a, ir_tensor_id b)
{
    uint64_t a_end = c->places[a].offset + (uint64_t)ir_bytes(&c->ir->tensors.at[a]);
    uint64_t b_end = c->places[b].offset + (uint64_t)ir_bytes(&c->ir->tensors.at[b]);
    return c->places[a].area == c->places[b].area && c->places[a].offset < b_end &&
           c->places[b].offset < a_end;
}

/* Two tensors that share bytes; `earlier` is written before `later` in program order.  Only
 * temporaries may share bytes: state, inputs and outputs must survive the step. */
static mpk_status check_pair(mpk_context *cx, const tg_compiled *c, const tg_alive *alive,
                             ir_tensor_id earlier, ir_tensor_id later)
{
    const ir_tensor *a = &c->ir->tensors.at[earlier], *b = &c->ir->tensors.at[later];
    tg_task_id writer, user;
    char writer_name[TG_NAME_BYTES], user_name[TG_NAME_BYTES];
    CHECK(cx, c->places[later].area == TG_TEMPS, MPK_EVERIFY,
          "%%%.*s and %%%.*s share bytes of one area", STR_ARG(a->name), STR_ARG(b->name));
    CHECK(cx, !find_unordered(alive, b->producer, earlier, &writer, &user), MPK_EVERIFY,
          "%%%.*s takes bytes of %%%.*s, but task %s (event %u) does not wait for task %s",
          STR_ARG(b->name), STR_ARG(a->name), tg_name_task(c->tg, writer, writer_name),
          c->tg->tasks[writer].depends, tg_name_task(c->tg, user, user_name));
    return MPK_OK;
}

/* Every root lies where it may, and every pair of roots that share bytes is ordered. Weights are
 * not compared: check_place has seen that nothing lies with them. All pairs are compared by their
 * bytes; few share any.
 */
mpk_status tg_verify_memory(mpk_context *cx, arena *scratch, const tg_compiled *c,
                            const uint64_t *area_bytes)
{
    tg_alive alive;
    VEC(ir_tensor_id) roots = {0};
    TRY(tg_fill_alive(cx, scratch, c->tg, &alive));
    for (ir_tensor_id t = 0; t < c->ir->tensors.n; t++) {
        TRY(check_place(cx, c, t, area_bytes));
        if (c->ir->tensors.at[t].shares == IR_NONE && c->places[t].area != TG_WEIGHTS)
            PUSH(cx, scratch, &roots, t);
    }
    /* Tensor numbers rise in the order in which tensors are written. */
    for (size_t i = 0; i < roots.n; i++)
        for (size_t k = 0; k < i; k++)
            if (share_bytes(c, roots.at[k], roots.at[i]))
                TRY(check_pair(cx, c, &alive, roots.at[k], roots.at[i]));
    return MPK_OK;
}
