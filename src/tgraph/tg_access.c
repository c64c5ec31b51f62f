/* tg_access.c - which tasks touch the same bytes (paper §4.1, dependency analysis).
 *
 * Input: the tasks' boxes and the operators' records.  Output: for each task, the tasks of
 * earlier operators that it conflicts with.  Called by pass_depend, which makes an event of each
 * conflict, and by tg_verify, which asks that events order each; events are not consulted here,
 * so the two are independent.
 *
 * Idea: walk the operators in program order.  For each tensor that owns storage and is written
 * in this graph, keep the accesses made so far.  The accesses of one operator to one tensor form
 * a group, sorted along the axis that is cut into the most parts; the accesses that overlap a
 * box are then neighbours, and bisection finds them.  A group that covers its whole tensor
 * replaces all earlier groups.
 *
 *   %k_cache: written by kv_write (8 tasks, one for each KV head), read by attention (8 tasks)
 *     group of kv_write on root k_cache: 8 boxes, sorted along the axis of heads
 *     task 3 of attention reads the box of head 3: bisection finds 1 access, not 8
 *
 * Cost: O(boxes log boxes) plus the pairs found.
 */
#include <stdlib.h>

#include "ir/op.h"
#include "tgraph/tgraph.h"

/* One task's use of one root. */
typedef struct access {
    tg_task_id task;
    uint32_t ordinal; /* of the task among those of its operator */
    /* the largest hi along the group's axis, of this and of those before it in the group */
    int64_t most;
    ir_box box; /* of the root */
} access;

/* What the tasks of one operator read (or write) of one root. */
typedef struct access_group {
    struct access_group *before; /* of the same root, made earlier */
    ir_op_id op;
    ir_tensor_id root;
    uint32_t axis, n;
    access *at;      /* sorted by lo along the axis */
    uint32_t *where; /* [tasks of op] index into `at`; TG_NONE: the task touches nothing */
    bool covers;     /* it writes all of the root */
} access_group;

/* The walk under way; all arrays are indexed by the graph's own numbers. */
typedef struct walk {
    mpk_context *cx;
    arena *a;
    const tg_graph *g;
    /* what an operator that comes now may conflict with; a group leaves when a later one covers
     * it */
    access_group **writes, **reads; /* [tensors] newest group of each root */
    /* [tensors] the last operator that writes each root; IR_NONE: none */
    ir_op_id *last_writer;
    uint32_t *stamp;    /* [n_tasks] task + 1 whose list holds this one */
    tg_task_id *before; /* [n_tasks] the list being made */
    uint32_t n_before;
} walk;

/* ---- groups ---- */

/* How often neighbours in task order begin at different places of the axis: an estimate of how well
 * this axis separates the boxes, by which sort_group chooses. */
static int64_t count_cuts(const access *at, uint32_t n, uint32_t axis)
{
    int64_t cuts = 0;
    for (uint32_t i = 1; i < n; i++)
        cuts += at[i].box.lo[axis] != at[i - 1].box.lo[axis];
    return cuts;
}

/* An access by its lower bound along the axis: qsort gives its comparison no context, such as the
 * axis to compare. */
typedef struct key {
    int64_t lo;
    uint32_t index;
} key;

static int compare_keys(const void *a, const void *b)
{
    const key *x = a, *y = b;
    if (x->lo != y->lo)
        return x->lo < y->lo ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Decomposition cuts boxes in rising order, so nearly all groups are sorted already and nothing is
 * copied. */
static bool is_sorted(const access_group *group)
{
    for (uint32_t i = 1; i < group->n; i++)
        if (group->at[i].box.lo[group->axis] < group->at[i - 1].box.lo[group->axis])
            return false;
    return true;
}

/* Sort the accesses along the axis that separates them best, and fill `most`.  Both bounds of a
 * search follow: `lo` rises, so the last candidate is found by a comparison; `most` rises too, so
 * the first is found by bisection, though `hi` alone need not rise. */
static mpk_status sort_group(walk *w, access_group *group)
{
    uint32_t rank = w->g->ir->tensors.at[group->root].rank;
    int64_t most = -1;
    for (uint32_t i = 0; i < rank; i++) {
        int64_t cuts = count_cuts(group->at, group->n, i);
        if (cuts > most) {
            most = cuts;
            group->axis = i;
        }
    }
    if (!is_sorted(group)) {
        key *keys;
        access *sorted;
        NEW(w->cx, w->a, keys, group->n);
        NEW(w->cx, w->a, sorted, group->n);
        for (uint32_t i = 0; i < group->n; i++)
            keys[i] = (key){group->at[i].box.lo[group->axis], i};
        qsort(keys, group->n, sizeof *keys, compare_keys);
        for (uint32_t i = 0; i < group->n; i++)
            sorted[i] = group->at[keys[i].index];
        group->at = sorted;
    }
    int64_t reach = INT64_MIN;
    for (uint32_t i = 0; i < group->n; i++) {
        int64_t hi = group->at[i].box.hi[group->axis];
        reach = group->at[i].most = hi > reach ? hi : reach;
    }
    return MPK_OK;
}

/* What a task may write of output 0.  Tasks of an OP_SHARES operator deal the columns out among
 * themselves at run time, so each of them may write the whole width of its rows. */
static ir_box output_box(const ir_graph *ir, const ir_op *op, const ir_box *task_box)
{
    const ir_tensor *y = &ir->tensors.at[op->out[0]];
    ir_box box = *task_box;
    if (op->def->flags & OP_SHARES && y->rank) {
        box.lo[y->rank - 1] = 0;
        box.hi[y->rank - 1] = y->dims[y->rank - 1];
    }
    return box;
}

/* The box of operand `operand` (inputs first, then outputs) that a task touches.  Output 0 is the
 * task's box itself; of further outputs and of all inputs only the operator's record knows. */
static ir_box operand_box(const ir_graph *ir, const ir_op *op, uint32_t operand,
                          const ir_box *task_box)
{
    if (operand < op->n_in) {
        ir_box box = {0};
        op->def->reads(ir, op, operand, task_box, &box);
        return box;
    }
    uint32_t output = operand - op->n_in;
    if (output == 0 || !op->def->writes)
        return output_box(ir, op, task_box);
    ir_box box = {0};
    op->def->writes(ir, op, output, task_box, &box);
    return box;
}

/* Do the accesses to an output write its whole root?  The boxes of one output do not overlap, so
 * it is enough to add up their sizes.  Where a view could not be followed exactly, or tasks
 * share a box (OP_WRITES_APART, OP_SHARES), the sum comes out too large and the answer is no;
 * that only costs pairs which a cover would have spared. */
static bool covers_root(const ir_graph *ir, const ir_tensor *tensor, const access_group *group)
{
    const ir_tensor *root = &ir->tensors.at[group->root];
    int64_t sum = 0;
    for (uint32_t i = 0; i < group->n; i++)
        sum += ir_box_elements(&group->at[i].box, root->rank);
    return sum == ir_elements(root) && sum == ir_elements(tensor);
}

/* Make the group of the accesses of all tasks of an operator to one operand; *out is NULL if
 * they touch nothing.  Operands are numbered inputs first, then outputs. */
static mpk_status make_group(walk *w, ir_op_id op_id, uint32_t operand, const tg_task_id *tasks,
                             uint32_t n, access_group **out)
{
    const ir_graph *ir = w->g->ir;
    const ir_op *op = &ir->ops.at[op_id];
    ir_tensor_id tensor = operand < op->n_in ? op->in[operand] : op->out[operand - op->n_in];
    access_group *made;
    NEW(w->cx, w->a, made, 1);
    NEW(w->cx, w->a, made->at, n);
    NEW(w->cx, w->a, made->where, n);
    made->op = op_id;
    for (uint32_t i = 0; i < n; i++) {
        ir_box box = operand_box(ir, op, operand, &w->g->tasks[tasks[i]].box), at_root;
        ir_root(ir, tensor, &box, &made->root, &at_root);
        if (!ir_box_is_empty(&at_root, ir->tensors.at[made->root].rank))
            made->at[made->n++] = (access){.task = tasks[i], .ordinal = i, .box = at_root};
    }
    *out = NULL;
    if (!made->n)
        return MPK_OK;
    TRY(sort_group(w, made));
    memset(made->where, 0xff, n * sizeof *made->where);
    for (uint32_t i = 0; i < made->n; i++)
        made->where[made->at[i].ordinal] = i;
    made->covers = operand >= op->n_in && covers_root(ir, &ir->tensors.at[tensor], made);
    *out = made;
    return MPK_OK;
}

/* ---- pairs ---- */

/* Add a task to the list of those that must end before `after`, once: tasks usually conflict in
 * several operands. */
static void add_before(walk *w, tg_task_id task, tg_task_id after)
{
    if (w->stamp[task] != after + 1) {
        w->stamp[task] = after + 1;
        w->before[w->n_before++] = task;
    }
}

/* The first access of a group that may reach beyond lo along its axis. */
static uint32_t first_beyond(const access_group *group, int64_t lo)
{
    uint32_t low = 0, high = group->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (group->at[middle].most > lo)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Add every task of a chain of groups that touches some byte of the box.  A box that is the
 * whole root overlaps everything, and takes no search. */
static void add_overlaps(walk *w, const access_group *groups, const ir_box *box, tg_task_id after)
{
    for (const access_group *group = groups; group; group = group->before) {
        const ir_tensor *root = &w->g->ir->tensors.at[group->root];
        ir_box whole = ir_box_whole(root);
        if (ir_box_contains(box, &whole, root->rank)) {
            for (uint32_t i = 0; i < group->n; i++)
                add_before(w, group->at[i].task, after);
            continue;
        }
        /* A scalar has no axis; its box is the whole tensor, which is handled above. */
        for (uint32_t i = first_beyond(group, box->lo[group->axis]);
             i < group->n && group->at[i].box.lo[group->axis] < box->hi[group->axis]; i++)
            if (ir_box_overlaps(&group->at[i].box, box, root->rank))
                add_before(w, group->at[i].task, after);
    }
}

/* MPK_EVERIFY if one task writes what another task of the same operator writes or reads: no
 * event could order the two without a reason to prefer one.  Exempt are writes of operators
 * whose record promises that they are disjoint although their boxes overlap. */
static mpk_status check_within(walk *w, const access_group *writes, const access_group *other)
{
    const ir_tensor *root = &w->g->ir->tensors.at[writes->root];
    const uint32_t flags = w->g->ir->ops.at[writes->op].def->flags;
    if (writes == other &&
        ((root->kind == IR_STATE && flags & OP_WRITES_APART) || flags & OP_SHARES))
        return MPK_OK;
    uint32_t rank = root->rank;
    for (uint32_t i = 0; rank && i < other->n; i++) {
        const ir_box *box = &other->at[i].box;
        for (uint32_t k = first_beyond(writes, box->lo[writes->axis]);
             k < writes->n && writes->at[k].box.lo[writes->axis] < box->hi[writes->axis]; k++) {
            if (writes->at[k].task == other->at[i].task ||
                !ir_box_overlaps(&writes->at[k].box, box, rank))
                continue;
            char a[TG_NAME_BYTES], b[TG_NAME_BYTES];
            FAIL(w->cx, MPK_EVERIFY,
                 "task %s writes what task %s of the same operator %s, in %%%.*s",
                 tg_name_task(w->g, writes->at[k].task, a),
                 tg_name_task(w->g, other->at[i].task, b), other == writes ? "writes" : "reads",
                 STR_ARG(root->name));
        }
    }
    return MPK_OK;
}

/* ---- the walk ---- */

/* Reserve what the walk needs, and find each root's last writer: a read after that conflicts with
 * nothing that follows, so it need not be remembered. */
static mpk_status start(walk *w)
{
    const ir_graph *ir = w->g->ir;
    NEW(w->cx, w->a, w->writes, ir->tensors.n);
    NEW(w->cx, w->a, w->reads, ir->tensors.n);
    NEW(w->cx, w->a, w->last_writer, ir->tensors.n);
    NEW(w->cx, w->a, w->stamp, w->g->n_tasks);
    NEW(w->cx, w->a, w->before, w->g->n_tasks);
    memset(w->last_writer, 0xff, ir->tensors.n * sizeof *w->last_writer);
    for (ir_op_id o = 0; o < ir->ops.n; o++) {
        const ir_op *op = &ir->ops.at[o];
        for (uint32_t i = 0; tg_op_has_tasks(ir, op) && i < op->n_out; i++)
            w->last_writer[tg_root(ir, op->out[i])] = o;
    }
    return MPK_OK;
}

enum { MAX_OPERANDS = IR_MAX_INPUTS + IR_MAX_OUTPUTS };

/* The operands of one operator whose storage is written somewhere in the program, with what its
 * tasks touch of each.  Operands that no operator writes (weights, step inputs) take no room and
 * no time. */
typedef struct op_accesses {
    access_group *at[MAX_OPERANDS];
    /* at[i] is of an output */
    bool writes[MAX_OPERANDS];
    uint32_t n;
} op_accesses;

/* Make the groups of an operator's operands. */
static mpk_status gather_operands(walk *w, ir_op_id o, const tg_task_id *tasks, uint32_t n,
                                  op_accesses *out)
{
    const ir_op *op = &w->g->ir->ops.at[o];
    out->n = 0;
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        bool writes = i >= op->n_in;
        ir_tensor_id tensor = writes ? op->out[i - op->n_in] : op->in[i];
        if (tensor == IR_NONE || w->last_writer[tg_root(w->g->ir, tensor)] == IR_NONE)
            continue; /* absent, or never written: a weight, an input */
        access_group *made = NULL;
        TRY(make_group(w, o, i, tasks, n, &made));
        if (made) {
            out->writes[out->n] = writes;
            out->at[out->n++] = made;
        }
    }
    return MPK_OK;
}

/* Check every output against every operand of the same root, itself included. */
static mpk_status check_operands(walk *w, const op_accesses *operands)
{
    for (uint32_t i = 0; i < operands->n; i++)
        for (uint32_t k = 0; operands->writes[i] && k < operands->n; k++)
            if (operands->at[i]->root == operands->at[k]->root)
                TRY(check_within(w, operands->at[i], operands->at[k]));
    return MPK_OK;
}

/* Keep the operator's accesses for those after it.  One that overwrites the whole root makes all
 * earlier groups of that root unnecessary: whatever conflicts with those conflicts with this one
 * too, and this one is ordered after them.  All lists are cut before any access is added, so that
 * an operator that reads and overwrites a root keeps its own read. */
static void remember(walk *w, ir_op_id o, const op_accesses *operands)
{
    for (uint32_t i = 0; i < operands->n; i++) {
        access_group *made = operands->at[i];
        if (made->covers) {
            w->writes[made->root] = NULL;
            w->reads[made->root] = NULL;
        }
    }
    for (uint32_t i = 0; i < operands->n; i++) {
        access_group *made = operands->at[i];
        access_group **list = operands->writes[i] ? &w->writes[made->root] : &w->reads[made->root];
        if (!operands->writes[i] && w->last_writer[made->root] <= o)
            continue; /* the root is never written later, so nothing waits for this read */
        made->before = *list;
        *list = made;
    }
}

/* Visit the conflicts of one operator's tasks: of its reads with earlier writes, of its writes
 * with earlier writes and reads.  Then remember its accesses. */
static mpk_status visit_op(walk *w, ir_op_id o, const tg_task_id *tasks, uint32_t n,
                           tg_conflict_visitor *visit, void *user)
{
    op_accesses operands;
    TRY(gather_operands(w, o, tasks, n, &operands));
    TRY(check_operands(w, &operands));
    for (uint32_t i = 0; i < n; i++) {
        w->n_before = 0;
        for (uint32_t k = 0; k < operands.n; k++) {
            const access_group *group = operands.at[k];
            if (group->where[i] == TG_NONE)
                continue;
            const ir_box *box = &group->at[group->where[i]].box;
            add_overlaps(w, w->writes[group->root], box, tasks[i]);
            if (operands.writes[k])
                add_overlaps(w, w->reads[group->root], box, tasks[i]);
        }
        if (w->n_before)
            TRY(visit(user, tasks[i], w->before, w->n_before));
    }
    remember(w, o, &operands);
    return MPK_OK;
}

mpk_status tg_visit_conflicts(mpk_context *cx, arena *scratch, const tg_graph *g,
                              tg_conflict_visitor *visit, void *user)
{
    walk w = {.cx = cx, .a = scratch, .g = g};
    tg_op_tasks by_op;
    TRY(start(&w));
    TRY(tg_fill_op_tasks(cx, scratch, g, &by_op));
    for (ir_op_id o = 0; o < g->ir->ops.n; o++) {
        uint32_t n = by_op.first[o + 1] - by_op.first[o];
        if (n)
            TRY(visit_op(&w, o, by_op.tasks + by_op.first[o], n, visit, user));
    }
    return MPK_OK;
}
