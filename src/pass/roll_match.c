/* roll_match.c - the same tensor of two steps, and of all (roll.h).
 *
 * Input: a program, two of its tensors; the operators of steps are those that is_known
 * names.  Lifting an operator adds the axis of steps in front:
 *
 *   slice(%x) {starts = [0, 4], stops = [9, 5]}   ->  [n, 9, 1]: a view of %x, transposed; or, of
 *                                                     a state, what makes %x, of such views
 *   reshape, transpose, expand, slice             ->  the same of the axes behind
 *   reduce {axes = [1]}                           ->  {axes = [2]}
 *   element-wise, batch_matmul                    ->  operands get axes of 1 up to its rank
 *
 * Cost: linear in the operators of a step; the limits of roll_match bound it. */
#include "pass/roll.h"

#include "pass/map_text.h"

static bool is_op(const ir_op *op, const char *name)
{
    return strcmp(op->def->name, name) == 0;
}

static bool is_view(const ir_op *op)
{
    return is_op(op, "reshape") || is_op(op, "transpose") || is_op(op, "expand") ||
           is_op(op, "slice");
}

static bool is_elementwise(const ir_op *op)
{
    return map_text_of(op).n;
}

/* Operators that work on each step by itself.  Results that are collected may need more of them
 * than states. */
static bool is_known(const roll_match *m, const ir_op *op)
{
    const bool sums = is_op(op, "reduce") && !rewrite_attribute(op, "expr")->s.n &&
                      !rewrite_attribute(op, "then")->s.n;
    return is_view(op) || is_elementwise(op) ||
           (m->state == IR_NONE && (sums || is_op(op, "batch_matmul")));
}

/* Write down a number of the pattern. */
static bool note(roll_match *m, uint32_t number)
{
    if (m->n_pattern == ROLL_PATTERN)
        return false;
    m->pattern[m->n_pattern++] = number;
    return true;
}

/* Write down a pair.  No tensor may be one thing in one place and another elsewhere. */
static roll_kind keep(roll_match *m, ir_tensor_id a, ir_tensor_id b, roll_kind kind)
{
    if (kind == ROLL_NONE || m->n_pairs == ROLL_PAIRS || !note(m, kind))
        return ROLL_NONE;
    m->pairs[m->n_pairs++] = (roll_pair){a, b, kind, IR_NONE};
    return kind;
}

static bool same_attribute(ir_attribute_type type, const ir_attribute *a, const ir_attribute *b)
{
    if (type == IR_ATTRIBUTE_INT)
        return a->i == b->i;
    if (type == IR_ATTRIBUTE_FLOAT)
        return memcmp(&a->f, &b->f, sizeof a->f) == 0;
    if (type == IR_ATTRIBUTE_STR)
        return str_equal(a->s, b->s);
    return a->ints.n == b->ints.n &&
           (!a->ints.n || memcmp(a->ints.at, b->ints.at, a->ints.n * sizeof *a->ints.at) == 0);
}

static bool same_attributes(const ir_op *a, const ir_op *b)
{
    for (uint32_t i = 0; i < a->def->n_attributes; i++)
        if (!same_attribute(a->def->attributes[i].type, &a->attributes[i], &b->attributes[i]))
            return false;
    return true;
}

/* The axis along which a and b are entries i and i + 1 of one tensor; IR_MAX_RANK: they are not. */
static uint32_t axis_of_steps(const ir_op *a, const ir_op *b)
{
    const ir_attribute *from_a = rewrite_attribute(a, "starts"),
                       *from_b = rewrite_attribute(b, "starts"),
                       *to_a = rewrite_attribute(a, "stops"), *to_b = rewrite_attribute(b, "stops");
    uint32_t axis = IR_MAX_RANK;
    if (a->in[0] != b->in[0] || rewrite_attribute(a, "steps")->ints.n ||
        rewrite_attribute(b, "steps")->ints.n)
        return IR_MAX_RANK;
    for (uint32_t i = 0; i < from_a->ints.n; i++) {
        const int64_t start = from_a->ints.at[i], stop = to_a->ints.at[i];
        if (from_b->ints.at[i] == start && to_b->ints.at[i] == stop)
            continue;
        if (axis != IR_MAX_RANK || stop != start + 1 || from_b->ints.at[i] != stop ||
            to_b->ints.at[i] != stop + 1)
            return IR_MAX_RANK;
        axis = i;
    }
    return axis;
}

/* Nothing writes its storage again: it can be read earlier or later than it is. */
static bool is_lasting(const roll_match *m, ir_tensor_id t)
{
    return !m->is_written[tg_root(m->w->g, t)] && m->w->g->tensors.at[t].live == IR_ALL;
}

static roll_kind compare(roll_match *m, ir_tensor_id a, ir_tensor_id b);

/* Do all operands match?  The kind is that of the one that depends on most. */
static roll_kind compare_operands(roll_match *m, const ir_op *a, const ir_op *b)
{
    roll_kind kind = ROLL_SAME;
    for (uint32_t i = 0; i < a->n_in && kind != ROLL_NONE; i++) {
        const roll_kind of =
            a->in[i] == IR_NONE || b->in[i] == IR_NONE ? ROLL_NONE : compare(m, a->in[i], b->in[i]);
        kind = of == ROLL_NONE || of > kind ? of : kind;
    }
    return kind;
}

/* Is the token a number 0? */
static bool is_zero(str token)
{
    bool zero = token.n && token.at[0] == '0';
    for (size_t i = 0; i < token.n; i++)
        zero = zero && (token.at[i] == '0' || token.at[i] == '.');
    return zero;
}

/* Is the text of a that of b with 0 in the place of b's state?  of[k]: the operand of a that stands
 * for operand k of b. */
static bool is_text_from_zero(const roll_match *m, const ir_op *a, const ir_op *b, uint32_t *of)
{
    const str s = map_text_of(a), t = map_text_of(b);
    size_t i = 0, k = 0;
    uint32_t x, y;
    while (i < s.n && k < t.n) {
        const str from = map_text_token(s, i), to = map_text_token(t, k);
        if (map_text_is_numbered(to, 'x', &y) && y < b->n_in && b->in[y] == m->state) {
            if (!is_zero(from))
                return false;
        } else if (map_text_is_numbered(to, 'x', &y) && y < b->n_in) {
            if (!map_text_is_numbered(from, 'x', &x) || x >= a->n_in ||
                (of[y] != IR_MAX_INPUTS && of[y] != x))
                return false;
            of[y] = x;
        } else if (!str_equal(from, to)) {
            return false;
        }
        i += from.n;
        k += to.n;
    }
    return i == s.n && k == t.n;
}

/* An operator of the first step that has a number 0 where that of the second has the state. */
static roll_kind compare_from_zero(roll_match *m, const ir_op *a, const ir_op *b)
{
    uint32_t of[IR_MAX_INPUTS];
    for (uint32_t i = 0; i < IR_MAX_INPUTS; i++)
        of[i] = IR_MAX_INPUTS;
    if (!is_elementwise(a) || !is_elementwise(b) || !is_text_from_zero(m, a, b, of))
        return ROLL_NONE;
    for (uint32_t i = 0; i < b->n_in; i++) {
        const bool is_state = b->in[i] == m->state;
        if (!is_state && (of[i] == IR_MAX_INPUTS || !compare(m, a->in[of[i]], b->in[i])))
            return ROLL_NONE;
    }
    return ROLL_STATE;
}

static bool reads(const ir_op *op, ir_tensor_id t)
{
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] == t)
            return true;
    return false;
}

/* Two operators of a kind, or of the first step and the second. */
static roll_kind compare_ops(roll_match *m, ir_op_id id, const ir_op *a, const ir_op *b)
{
    const ir_tensor *y = tensor_of(m->w, a->out[0]), *z = tensor_of(m->w, b->out[0]);
    if (a->n_out != 1 || b->n_out != 1 || !same_dims(y, z) || y->live != IR_ALL ||
        y->rank == IR_MAX_RANK || !note(m, y->rank))
        return ROLL_NONE;
    if (m->from_zero && reads(b, m->state))
        return compare_from_zero(m, a, b);
    if (a->def != b->def || a->n_in != b->n_in || !is_known(m, a))
        return ROLL_NONE;
    if (is_op(a, "slice") && !same_attributes(a, b)) {
        const uint32_t axis = axis_of_steps(a, b);
        const ir_op *maker = rewrite_maker(m->w, rewrite_before_views(m->w, a->in[0]));
        m->reads_recur = m->reads_recur || (maker && is_op(maker, "recur"));
        return axis != IR_MAX_RANK && is_lasting(m, a->in[0]) && note(m, a->in[0]) && note(m, axis)
                   ? ROLL_STEP
                   : ROLL_NONE;
    }
    if (!same_attributes(a, b) || !note(m, (uint32_t)map_text_of(a).n))
        return ROLL_NONE;
    const roll_kind kind = compare_operands(m, a, b);
    if (kind == ROLL_SAME || (kind == ROLL_STATE && is_view(a)) || m->n_members == ROLL_PAIRS)
        return ROLL_NONE;
    if (kind == ROLL_STATE)
        m->members[m->n_members++] = id;
    return kind;
}

static roll_kind compare(roll_match *m, ir_tensor_id a, ir_tensor_id b)
{
    const ir_op *of_a = rewrite_maker(m->w, a), *of_b = rewrite_maker(m->w, b);
    for (uint32_t i = 0; i < m->n_pairs; i++)
        if (m->pairs[i].a == a || m->pairs[i].b == b)
            return m->pairs[i].a == a && m->pairs[i].b == b && note(m, i) ? m->pairs[i].kind
                                                                          : ROLL_NONE;
    if (b == m->state) {
        m->before = a;
        return keep(m, a, b, is_lasting(m, a) ? ROLL_STATE : ROLL_NONE);
    }
    if (a == b)
        return keep(m, a, b, is_lasting(m, a) && note(m, a) ? ROLL_SAME : ROLL_NONE);
    return keep(m, a, b,
                of_a && of_b ? compare_ops(m, (ir_op_id)(of_a - m->w->g->ops.at), of_a, of_b)
                             : ROLL_NONE);
}

roll_kind roll_compare(roll_match *m, ir_tensor_id a, ir_tensor_id b)
{
    m->before = IR_NONE;
    m->n_pairs = m->n_pattern = m->n_members = 0;
    m->reads_recur = false;
    return compare(m, a, b);
}

bool roll_is_alike(const roll_match *m, const roll_match *other)
{
    return m->n_pattern == other->n_pattern &&
           memcmp(m->pattern, other->pattern, m->n_pattern * sizeof *m->pattern) == 0;
}

/* ---- all steps at once ---- */

/* The pair of a tensor of the first of both; NULL: it is the same in all steps. */
static roll_pair *find_pair(roll_match *m, ir_tensor_id a)
{
    for (uint32_t i = 0; i < m->n_pairs; i++)
        if (m->pairs[i].a == a)
            return m->pairs[i].kind == ROLL_SAME ? NULL : &m->pairs[i];
    return NULL;
}

/* A list of numbers behind one for the steps. */
static void put_behind(const ir_attribute *list, int64_t first, int64_t add, int64_t *to)
{
    to[0] = first;
    for (uint32_t i = 0; i < list->ints.n; i++)
        to[i + 1] = list->ints.at[i] + add;
}

/* Where the entries of steps lie: `op` is the slice of step `before`, along `axis`. */
typedef struct entries {
    const ir_op *op;
    uint32_t axis, key;
    int64_t before, n;
} entries;

/* Entries of a tensor of the shape of what is sliced: its steps first, and where they were one
 * entry. */
static mpk_status add_entries(rewrite *w, const entries *e, ir_tensor_id from, ir_tensor_id *out)
{
    int64_t starts[IR_MAX_RANK], stops[IR_MAX_RANK], perm[IR_MAX_RANK], dims[IR_MAX_RANK + 1];
    const ir_tensor y = *tensor_of(w, e->op->out[0]);
    const uint32_t axis = e->axis;
    for (uint32_t i = 0; i < y.rank; i++) {
        starts[i] = rewrite_attribute(e->op, "starts")->ints.at[i];
        stops[i] = rewrite_attribute(e->op, "stops")->ints.at[i];
        perm[i] = i == 0 ? axis : i - (i <= axis);
        dims[i + 1] = y.dims[i];
    }
    dims[0] = e->n;
    starts[axis] -= e->before;
    stops[axis] = starts[axis] + e->n;
    TRY(rewrite_add(w, e->key, "slice", 1, &from,
                    (ir_set[]){{.name = "starts", .ints = starts, .n_ints = y.rank},
                               {.name = "stops", .ints = stops, .n_ints = y.rank},
                               {0}},
                    out));
    TRY(rewrite_add(w, e->key, "transpose", 1, out,
                    (ir_set[]){{.name = "perm", .ints = perm, .n_ints = y.rank}, {0}}, out));
    return rewrite_reshape(w, e->key, *out, y.rank + 1, dims, out);
}

/* Are entries of single steps all that is read of t? */
static bool is_read_by_steps(const rewrite *w, ir_tensor_id t)
{
    uint32_t n = 0;
    for (size_t i = 0; i < w->g->ops.n; i++)
        n += is_op(&w->g->ops.at[i], "slice") && w->g->ops.at[i].in[0] == t;
    return n == w->uses.at[t] && t < w->n_source && !w->is_output[t];
}

/* Can an operator that makes a whole tensor make its entries in the order of the steps instead? */
static const ir_op *find_movable(const roll_match *m, ir_tensor_id t)
{
    const ir_op *op = rewrite_maker(m->w, t);
    bool movable = op && is_elementwise(op) && m->w->g->tensors.at[t].shares == IR_NONE;
    for (uint32_t i = 0; movable && i < op->n_in; i++)
        movable = is_lasting(m, op->in[i]);
    return movable ? op : NULL;
}

/* The entries of all steps of t.  If only these steps read t (is_private) and an element-wise
 * operator makes it, the operator is applied to the entries of its operands instead, so that
 * fuse_map can make it part of the recurrence; the same holds for the operators that make those. */
static mpk_status lift_entries(rewrite *w, const roll_match *m, const entries *e, ir_tensor_id t,
                               bool is_private, ir_tensor_id *out)
{
    const ir_op *movable = is_private && m->state != IR_NONE ? find_movable(m, t) : NULL;
    if (!movable)
        return add_entries(w, e, t, out);
    const ir_op op = *movable;
    const ir_tensor x = *tensor_of(w, t);
    ir_tensor_id in[IR_MAX_INPUTS];
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    for (uint32_t i = 0; i < op.n_in; i++) {
        const ir_tensor *a = tensor_of(w, op.in[i]);
        const bool whole = same_extents(a, &x);
        in[i] = op.in[i];
        if (!whole)
            TRY(rewrite_add(w, e->key, "expand", 1, &in[i],
                            (ir_set[]){{.name = "shape", .ints = x.dims, .n_ints = x.rank}, {0}},
                            &in[i]));
        const bool alone =
            whole && w->uses.at[in[i]] == 1 && in[i] < w->n_source && !w->is_output[in[i]];
        TRY(lift_entries(w, m, e, in[i], alone, &in[i]));
    }
    TRY(rewrite_copy_attributes(w, &op, sets));
    return rewrite_add(w, e->key, op.def->name, op.n_in, in, sets, out);
}

/* The operator again with one more axis in front: of its lists, which `lists` is room for. */
static mpk_status add_lifted(rewrite *w, uint32_t key, const ir_op *op, const ir_tensor_id *in,
                             int64_t n, int64_t lists[3][IR_MAX_RANK + 1], ir_tensor_id *out)
{
    const bool view = is_view(op), sums = is_op(op, "reduce");
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    uint32_t n_lists = 0;
    TRY(rewrite_copy_attributes(w, op, sets));
    for (uint32_t i = 0; sets[i].name; i++) {
        const ir_attribute *list = &op->attributes[i];
        if (op->def->attributes[i].type != IR_ATTRIBUTE_INTS || (view && !list->ints.n))
            continue;
        const bool moves = sums || is_op(op, "transpose"); /* it names axes */
        int64_t first = moves || strcmp(sets[i].name, "starts") == 0 ? 0 : n;
        if (strcmp(sets[i].name, "steps") == 0)
            first = 1;
        put_behind(list, first, moves, lists[n_lists]);
        sets[i].ints = lists[n_lists++] + sums;
        sets[i].n_ints = list->ints.n + !sums;
    }
    return rewrite_add(w, key, op->def->name, op->n_in, in, sets, out);
}

/* Do all operands have the shape of the result? */
static bool is_even(const rewrite *w, const ir_op *op)
{
    bool even = true;
    for (uint32_t i = 0; i < op->n_in; i++)
        even = even && same_extents(tensor_of(w, op->in[i]), tensor_of(w, op->out[0]));
    return even;
}

/* A lifted view of t, or of the operands of element-wise operators that have been moved. */
static mpk_status add_view(rewrite *w, uint32_t key, const ir_op *view, ir_tensor_id t, int64_t n,
                           ir_tensor_id *out)
{
    int64_t lists[3][IR_MAX_RANK + 1];
    const ir_op *maker = rewrite_maker(w, t);
    if (t < w->n_source || !is_elementwise(maker) || !is_even(w, maker))
        return add_lifted(w, key, view, &t, n, lists, out);
    const ir_op op = *maker;
    ir_tensor_id in[IR_MAX_INPUTS];
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    for (uint32_t i = 0; i < op.n_in; i++)
        TRY(add_view(w, key, view, op.in[i], n, &in[i]));
    TRY(rewrite_copy_attributes(w, &op, sets));
    return rewrite_add(w, key, op.def->name, op.n_in, in, sets, out);
}

mpk_status roll_lift_operand(rewrite *w, roll_match *m, uint32_t key, ir_tensor_id a,
                             int64_t before, int64_t n, uint32_t rank, ir_tensor_id *out)
{
    TRY(roll_lift(w, m, key, a, before, n, out));
    const ir_tensor t = *tensor_of(w, a);
    int64_t dims[IR_MAX_RANK];
    if (!find_pair(m, a) || t.rank == rank)
        return MPK_OK;
    dims[0] = n;
    for (uint32_t i = 1; i <= rank; i++)
        dims[i] = i + t.rank > rank ? t.dims[i + t.rank - rank - 1] : 1;
    return rewrite_reshape(w, key, *out, rank + 1, dims, out);
}

mpk_status roll_lift(rewrite *w, roll_match *m, uint32_t key, ir_tensor_id a, int64_t before,
                     int64_t n, ir_tensor_id *out)
{
    int64_t lists[3][IR_MAX_RANK + 1];
    ir_tensor_id in[IR_MAX_INPUTS];
    roll_pair *pair = find_pair(m, a);
    *out = pair ? pair->lifted : a;
    if (*out != IR_NONE)
        return MPK_OK;
    const ir_op op = *rewrite_maker(w, a), *of_b = rewrite_maker(w, pair->b);
    const uint32_t axis =
        is_op(&op, "slice") && !same_attributes(&op, of_b) ? axis_of_steps(&op, of_b) : IR_MAX_RANK;
    if (axis != IR_MAX_RANK) {
        const entries e = {&op, axis, key, before, n};
        TRY(lift_entries(w, m, &e, op.in[0], is_read_by_steps(w, op.in[0]), &pair->lifted));
    } else {
        const bool spread = is_elementwise(&op) || is_op(&op, "batch_matmul");
        const uint32_t rank = tensor_of(w, a)->rank;
        for (uint32_t i = 0; i < op.n_in; i++)
            TRY(roll_lift_operand(w, m, key, op.in[i], before, n,
                                  spread ? rank : tensor_of(w, op.in[i])->rank, &in[i]));
        if (is_view(&op) && m->state != IR_NONE)
            TRY(add_view(w, key, &op, in[0], n, &pair->lifted));
        else
            TRY(add_lifted(w, key, &op, in, n, lists, &pair->lifted));
    }
    *out = pair->lifted;
    return MPK_OK;
}
