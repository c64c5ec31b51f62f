/* rewrite.c - the working copy of a tensor program (see rewrite.h); used by the passes that
 * rewrite operators.
 *
 * Operators are only added, never moved or removed: keys give their order, stands_for redirects
 * the readers of what was replaced, and `uses` counts the readers that are left.  Invariant:
 * uses[t] is the number of operands and outputs that read t among operators whose own results
 * are still read, so 0 means that t is dead.  rewrite_end copies what is alive.  Cost: linear in
 * the program, and a sort at the end.
 */
#include "pass/rewrite.h"

#include <stdio.h>
#include <stdlib.h>

/* The distance between the keys of neighbouring operators of the source. */
enum { KEY_STEP = 8 };

/* Copy tensors and operators into a graph in the scratch arena; numbers stay the same, contents
 * are borrowed. */
static mpk_status copy_graph(pass_state *s, const ir_graph *from, ir_graph **out)
{
    ir_graph *g;
    TRY(ir_create(s->cx, s->scratch, "", &g));
    for (size_t i = 0; i < from->tensors.n; i++) {
        PUSH(s->cx, s->scratch, &g->tensors, from->tensors.at[i]);
        TRY(map_put(s->cx, s->scratch, &g->names, from->tensors.at[i].name, i));
    }
    for (size_t i = 0; i < from->ops.n; i++)
        PUSH(s->cx, s->scratch, &g->ops, from->ops.at[i]);
    for (size_t i = 0; i < from->outputs.n; i++)
        PUSH(s->cx, s->scratch, &g->outputs, from->outputs.at[i]);
    g->name = from->name;
    *out = g;
    return MPK_OK;
}

/* Append rows for the tensors that were added to the graph: each stands for itself and has no
 * reader yet. */
static mpk_status extend(rewrite *w)
{
    while (w->uses.n < w->g->tensors.n) {
        PUSH(w->s->cx, w->s->scratch, &w->stands_for, (ir_tensor_id)w->uses.n);
        PUSH(w->s->cx, w->s->scratch, &w->names, (str){0});
        PUSH(w->s->cx, w->s->scratch, &w->uses, 0);
    }
    return MPK_OK;
}

/* An operator begins to read its operands. */
static void count_uses(rewrite *w, const ir_op *op)
{
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] != IR_NONE)
            w->uses.at[rewrite_input(w, op, i)]++;
}

/* Begin with keys 8, 16, 24 ...: gaps of KEY_STEP, so that rewrite_add can put operators between
 * any two. */
mpk_status rewrite_begin(pass_state *s, const ir_graph *from, rewrite *out)
{
    *out = (rewrite){.s = s, .n_source = (uint32_t)from->tensors.n};
    TRY(copy_graph(s, from, &out->g));
    TRY(extend(out));
    NEW(s->cx, s->scratch, out->is_output, from->tensors.n);
    for (size_t i = 0; i < from->ops.n; i++) {
        PUSH(s->cx, s->scratch, &out->keys, (uint32_t)(i + 1) * KEY_STEP);
        count_uses(out, &from->ops.at[i]);
    }
    for (size_t i = 0; i < from->outputs.n; i++) {
        out->uses.at[from->outputs.at[i]]++;
        out->is_output[from->outputs.at[i]] = true;
    }
    return MPK_OK;
}

/* The tensor that now stands for t.  A replacement may be replaced again, so this follows a
 * chain. */
static ir_tensor_id resolve(const rewrite *w, ir_tensor_id t)
{
    while (w->stands_for.at[t] != t)
        t = w->stands_for.at[t];
    return t;
}

ir_tensor_id rewrite_input(const rewrite *w, const ir_op *op, uint32_t input)
{
    return input < op->n_in && op->in[input] != IR_NONE ? resolve(w, op->in[input]) : IR_NONE;
}

const ir_op *rewrite_maker(const rewrite *w, ir_tensor_id tensor)
{
    if (tensor == IR_NONE || w->g->tensors.at[tensor].producer == IR_NONE)
        return NULL;
    return &w->g->ops.at[w->g->tensors.at[tensor].producer];
}

const ir_op *rewrite_producer(const rewrite *w, ir_tensor_id tensor, const char *kind)
{
    const ir_op *op = rewrite_maker(w, tensor);
    return op && strcmp(op->def->name, kind) == 0 ? op : NULL;
}

/* See rewrite.h.  Only views that share storage are followed: one that had to copy is an
 * operator that computes. */
ir_tensor_id rewrite_before_views(const rewrite *w, ir_tensor_id t)
{
    while (w->g->tensors.at[t].producer != IR_NONE) {
        const ir_op *op = &w->g->ops.at[w->g->tensors.at[t].producer];
        if (!(op->def->flags & OP_VIEW) || w->g->tensors.at[t].shares == IR_NONE)
            break;
        t = rewrite_input(w, op, 0);
    }
    return t;
}

/* An attribute that the record lacks is a defect of the caller; the last one is then returned,
 * and nothing is read outside the array. */
const ir_attribute *rewrite_attribute(const ir_op *op, const char *name)
{
    uint32_t i = 0;
    while (i + 1 < op->def->n_attributes && strcmp(op->def->attributes[i].name, name) != 0)
        i++;
    return &op->attributes[i];
}

/* The peer that runs an operator that stands at `key`: the one that has its inputs.  Where
 * inputs may lie on any peer (OP_GATHERS), or lie on all, it is the peer of the operator of the
 * source that stands there. */
static uint32_t peer_at(const rewrite *w, uint32_t key, const op_def *def, uint32_t n_in,
                        const ir_tensor_id *in)
{
    for (uint32_t i = 0; i < n_in && !(def->flags & OP_GATHERS); i++)
        if (in[i] != IR_NONE && w->g->tensors.at[in[i]].peer != IR_EVERYWHERE)
            return w->g->tensors.at[in[i]].peer;
    uint32_t at = (key + KEY_STEP / 2) / KEY_STEP;
    return w->g->ops.at[at ? at - 1 : 0].peer;
}

/* Add an operator and rows for its results.  Names must be new in the graph: the counter skips
 * those that the user's program has already. */
mpk_status rewrite_add(rewrite *w, uint32_t key, const char *kind, uint32_t n_in,
                       const ir_tensor_id *in, const ir_set *attributes, ir_tensor_id *out)
{
    char name[64];
    do
        snprintf(name, sizeof name, "%s_%u", kind, w->n_made++);
    while (ir_find(w->g, name) != IR_NONE);
    w->g->peer = peer_at(w, key, op_find(str_from(kind)), n_in, in);
    TRY(ir_add_op(w->s->cx, w->g, kind, name, n_in, in, attributes, out));
    TRY(extend(w));
    PUSH(w->s->cx, w->s->scratch, &w->keys, key);
    count_uses(w, &w->g->ops.at[w->g->ops.n - 1]);
    return MPK_OK;
}

mpk_status rewrite_reshape(rewrite *w, uint32_t key, ir_tensor_id t, uint32_t rank,
                           const int64_t *dims, ir_tensor_id *out)
{
    return rewrite_add(w, key, "reshape", 1, &t,
                       (ir_set[]){{.name = "shape", .ints = dims, .n_ints = rank}, {0}}, out);
}

/* Fill sets[n + 1], which ends with an empty entry as ir_add_op wants it.  Strings are copied
 * because ir_set takes them with a zero at the end. */
mpk_status rewrite_copy_attributes(rewrite *w, const ir_op *op, ir_set *sets)
{
    uint32_t n = op->def->n_attributes;
    for (uint32_t i = 0; i < n; i++) {
        const ir_attribute *a = &op->attributes[i];
        char *words = arena_copy(w->s->scratch, a->s.n ? a->s.at : "", a->s.n);
        CHECK(w->s->cx, words, MPK_ENOMEM, "out of memory for an attribute");
        sets[i] = (ir_set){op->def->attributes[i].name, a->i, a->f, words, a->ints.at, a->ints.n};
    }
    sets[n] = (ir_set){0};
    return MPK_OK;
}

/* Looks at keys strictly between `first` and `last`: a rule that moves a read from one to the
 * other asks this. */
bool rewrite_is_written(const rewrite *w, ir_tensor_id t, uint32_t first, uint32_t last)
{
    ir_tensor_id root = tg_root(w->g, t);
    for (size_t o = 0; o < w->g->ops.n; o++) {
        const ir_op *op = &w->g->ops.at[o];
        for (uint32_t i = 0; i < op->n_out && w->keys.at[o] > first && w->keys.at[o] < last; i++)
            if (!(op->def->flags & OP_VIEW) && tg_root(w->g, op->out[i]) == root)
                return true;
    }
    return false;
}

/* A tensor is made at its producer's key, or, without one, before the first operator. */
bool rewrite_are_current(const rewrite *w, const ir_tensor_id *tensors, uint32_t n, uint32_t key)
{
    for (uint32_t i = 0; i < n; i++) {
        if (tensors[i] == IR_NONE)
            continue;
        ir_op_id producer = w->g->tensors.at[tensors[i]].producer;
        uint32_t made = producer == IR_NONE ? 0 : w->keys.at[producer];
        if (rewrite_is_written(w, tensors[i], made, key))
            return false;
    }
    return true;
}

/* Tensor t has lost its last reader: if that holds of all results of its producer, the
 * producer's operands lose a reader each, and so on.  Recursion is as deep as the longest chain
 * of operators that die together. */
static void release(rewrite *w, ir_tensor_id t)
{
    ir_op_id producer = w->g->tensors.at[t].producer;
    if (producer == IR_NONE)
        return;
    const ir_op *op = &w->g->ops.at[producer];
    for (uint32_t i = 0; i < op->n_out; i++)
        if (w->uses.at[op->out[i]])
            return;
    for (uint32_t i = 0; i < op->n_in; i++) {
        ir_tensor_id in = rewrite_input(w, op, i);
        if (in != IR_NONE && w->uses.at[in] && --w->uses.at[in] == 0)
            release(w, in);
    }
}

/* The readers of `old` are counted for `by` from now on; what only `old` needed loses its
 * readers. */
void rewrite_replace(rewrite *w, ir_tensor_id old, ir_tensor_id by)
{
    w->uses.at[by] += w->uses.at[old];
    w->uses.at[old] = 0;
    w->stands_for.at[old] = by;
    if (old < w->n_source && w->is_output[old])
        w->names.at[by] = w->g->tensors.at[old].name;
    release(w, old);
}

/* ---- the finished program ---- */

/* An operator and its place, for sorting. */
typedef struct keyed {
    uint32_t key;
    ir_op_id op;
} keyed;

static int compare_keys(const void *a, const void *b)
{
    const keyed *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op;
}

/* Does the operator change something that outlives its graph's temporaries?  Then it is alive
 * even if no operator reads it. */
static bool writes_state(const rewrite *w, const ir_op *op)
{
    for (uint32_t i = 0; i < op->n_out; i++) {
        const ir_tensor *root = &w->g->tensors.at[tg_root(w->g, op->out[i])];
        if (root->kind != IR_TEMP && !(op->def->flags & OP_VIEW))
            return true;
    }
    return false;
}

/* Fill live[ops] and read[tensors], walking from the last operator to the first: an operator is
 * live if something live reads one of its results, or if it writes state and its results were
 * not replaced by those of another operator that writes it.  ops: by rising key. */
static void find_live(const rewrite *w, const keyed *ops, bool *live, bool *read)
{
    for (size_t i = 0; i < w->g->outputs.n; i++)
        read[resolve(w, w->g->outputs.at[i])] = true;
    for (size_t i = w->g->ops.n; i-- > 0;) {
        const ir_op *op = &w->g->ops.at[ops[i].op];
        bool wanted = false, replaced = true;
        for (uint32_t k = 0; k < op->n_out; k++) {
            wanted = wanted || read[op->out[k]];
            replaced = replaced && w->stands_for.at[op->out[k]] != op->out[k];
        }
        live[ops[i].op] = wanted || (writes_state(w, op) && !replaced);
        for (uint32_t k = 0; k < op->n_in && live[ops[i].op]; k++)
            if (rewrite_input(w, op, k) != IR_NONE)
                read[rewrite_input(w, op, k)] = true;
    }
}

/* Copy a tensor that no operator makes when it is first used, so that it precedes every operator
 * that reads it. */
static mpk_status copy_tensor(rewrite *w, ir_graph *to, ir_tensor_id t, ir_tensor_id *moved)
{
    const ir_tensor *tensor = &w->g->tensors.at[t];
    if (moved[t] != IR_NONE || tensor->kind == IR_TEMP)
        return MPK_OK;
    char *name = arena_copy(w->s->result, tensor->name.at, tensor->name.n);
    CHECK(w->s->cx, name, MPK_ENOMEM, "out of memory for the name of a tensor");
    to->peer = tensor->peer;
    return ir_add_tensor(w->s->cx, to, tensor->kind, tensor->live, name, tensor->dtype,
                         tensor->rank, tensor->dims, &moved[t]);
}

/* Copy a live operator with its operands and results, which keep their names unless they replace
 * an output.  moved[t]: the tensor of the new graph for tensor t of the working copy, IR_NONE
 * until it is copied. */
static mpk_status copy_op(rewrite *w, ir_graph *to, const ir_op *op, ir_tensor_id *moved)
{
    ir_tensor_id in[IR_MAX_INPUTS], out[IR_MAX_OUTPUTS];
    str names[IR_MAX_OUTPUTS];
    for (uint32_t i = 0; i < op->n_in; i++) {
        ir_tensor_id from = rewrite_input(w, op, i);
        in[i] = IR_NONE;
        if (from == IR_NONE)
            continue;
        TRY(copy_tensor(w, to, from, moved));
        in[i] = moved[from];
    }
    for (uint32_t i = 0; i < op->n_out; i++)
        names[i] =
            w->names.at[op->out[i]].n ? w->names.at[op->out[i]] : w->g->tensors.at[op->out[i]].name;
    to->peer = op->peer;
    TRY(ir_add_op_as(w->s->cx, to, op->def, names, op->n_in, in, op->attributes, out));
    for (uint32_t i = 0; i < op->n_out; i++)
        moved[op->out[i]] = out[i];
    return MPK_OK;
}

/* An output that owns its bytes in the source still owns them: its caller may ask for them at an
 * address of their own.  A reshape that had to copy may have become a view, because what it reads
 * is laid out otherwise now; the output is then a copy of that view. */
static mpk_status own_output(rewrite *w, ir_graph *to, ir_tensor_id source, ir_tensor_id *t)
{
    const ir_tensor *view = &to->tensors.at[*t];
    bool is_view = view->shares != IR_NONE && to->ops.at[view->producer].def->flags & OP_VIEW;
    if (w->g->tensors.at[source].shares != IR_NONE || !is_view)
        return MPK_OK;
    char name[32];
    uint32_t n = 0;
    do
        snprintf(name, sizeof name, "copy_%u", n++);
    while (ir_find(to, name) != IR_NONE || ir_find(w->g, name) != IR_NONE);
    ir_tensor_id copy;
    to->peer = view->peer;
    TRY(ir_add_op(w->s->cx, to, "copy", name, 1, t, NULL, &copy));
    TRY(ir_swap_names(w->s->cx, to, *t, copy));
    *t = copy;
    return MPK_OK;
}

/* Extract the finished program.  Operators go in the order of their keys; equal keys keep the
 * order in which they were added.  Shapes, strides and storage of views are inferred anew by
 * ir_add_op_as. */
mpk_status rewrite_end(rewrite *w, ir_graph **out)
{
    mpk_context *cx = w->s->cx;
    ir_graph *to;
    keyed *ops;
    ir_tensor_id *moved;
    bool *live, *read;
    char *name = arena_copy(w->s->scratch, w->g->name.at ? w->g->name.at : "", w->g->name.n);
    CHECK(cx, name, MPK_ENOMEM, "out of memory for the name of a graph");
    TRY(ir_create(cx, w->s->result, name, &to));
    NEW(cx, w->s->scratch, ops, w->g->ops.n);
    NEW(cx, w->s->scratch, moved, w->g->tensors.n);
    NEW(cx, w->s->scratch, live, w->g->ops.n);
    NEW(cx, w->s->scratch, read, w->g->tensors.n);
    memset(moved, 0xff, w->g->tensors.n * sizeof *moved);
    for (size_t i = 0; i < w->g->ops.n; i++)
        ops[i] = (keyed){w->keys.at[i], (ir_op_id)i};
    qsort(ops, w->g->ops.n, sizeof *ops, compare_keys);
    find_live(w, ops, live, read);
    /* Inputs stay, in order, even if nothing reads them any more: they are the program's
     * interface. */
    for (ir_tensor_id t = 0; t < w->n_source; t++)
        if (w->g->tensors.at[t].kind == IR_INPUT)
            TRY(copy_tensor(w, to, t, moved));
    for (size_t i = 0; i < w->g->ops.n; i++)
        if (live[ops[i].op])
            TRY(copy_op(w, to, &w->g->ops.at[ops[i].op], moved));
    for (size_t i = 0; i < w->g->outputs.n; i++) {
        ir_tensor_id t = resolve(w, w->g->outputs.at[i]);
        TRY(copy_tensor(w, to, t, moved));
        TRY(own_output(w, to, w->g->outputs.at[i], &moved[t]));
        TRY(ir_add_output(cx, to, moved[t]));
    }
    *out = to;
    return MPK_OK;
}
