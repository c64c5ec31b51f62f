/* shard.c - one tensor program for several peers (paper §6.4, §6.5): tensor and expert
 * parallelism.
 *
 * Input: a program, options->n_peers.  Output: the joint program of all peers, in which each
 * operator says which peer runs it and each tensor in whose memory it lies; with one peer the
 * program itself.  Weights and state are parts or copies of the whole ones (ir_name_share); what
 * crosses between peers is read by add_parts and concat (OP_GATHERS).  Outputs are peer 0's.
 *
 * A tensor of the source may be there in several forms: whole on each peer; cut along an axis, a
 * part on each; or as terms, one on each, that add up to it.  Operators are taken in their
 * order.  An operator is split by the first way of its record that cuts weights and needs no
 * communication for its inputs; else it runs whole on every peer if its inputs are whole there;
 * else it follows the form of its inputs.  Cutting a weight must pay: the
 * result is used in parts until the parts are added up, or the weight is large
 * (options->gather_bytes).  For a decoder this gives the usual plan: q, k, v, gate, up by rows,
 * output and down by columns, one sum after each of the two.
 *
 *   %y = linear(%x, %up)              %y.part@0 = linear(%x, %up[0:512/1024]@0)          peer 0
 *   %z = linear(%y, %down)            %z.term@0 = linear(%y.part@0, %down[:,0:512/1024]@0)
 *                                     %z = add_parts(%z.term@0, %z.term@1)
 *   the same on peer 1, with @1 and the other halves; its sum is %z@1
 *
 * Experts are cut by columns likewise.  Where that cannot be, or options->own_experts asks for it,
 * a peer has some of them whole, counts ids from its first one, and leaves zeros for pairs of
 * others: then the first product's results are terms too, which the second takes as they are.
 *
 * What no peer but 0 needs (sampling) runs there alone; sums without a reader go with the next
 * pass that drops dead operators.  Called by compile.c after simplify.  Cost: operators x peers.
 */
#include "pass/shard.h"

#include <stdio.h>

/* The tensors of the target that stand for a tensor of the source: arrays [n_peers], NULL if not
 * made.  A tensor may have several forms at once: terms, and later the whole that was added up
 * of them for another reader. */
typedef struct forms {
    ir_tensor_id *whole, *terms, *part[IR_MAX_RANK];
    ir_tensor_id *counted; /* whole, of integers: counted from the first entry of a peer's part */
} forms;

/* The pass under way.  `from` is the source, `to` the joint program under construction. */
typedef struct sharder {
    pass_state *s;
    const ir_graph *from;
    ir_graph *to;
    uint32_t n;      /* number of peers */
    shard_cuts cuts; /* where each axis may be cut, and which axes are cut together */
    forms *forms;    /* [tensors] */
    /* operators that read tensor t: readers[first_reader[t]] ... */
    uint32_t *first_reader, *readers;
    bool *is_output; /* [tensors] */
    bool *alone;     /* [ops] only peer 0 needs it */
} sharder;

/* A tensor of the source.  (The joint program numbers its tensors differently.) */
static const ir_tensor *tensor_of(const sharder *d, ir_tensor_id t)
{
    return &d->from->tensors.at[t];
}

/* A form that is not made yet: IR_NONE for each peer. */
static mpk_status new_form(sharder *d, ir_tensor_id **out)
{
    NEW(d->s->cx, d->s->scratch, *out, d->n);
    memset(*out, 0xff, d->n * sizeof **out);
    return MPK_OK;
}

/* Name a form of tensor t: "NAME.part@1".  What is whole on peer 0, and state of peer 0, keeps
 * its name, because the host looks for it by that name. */
static mpk_status make_name(sharder *d, ir_tensor_id t, const char *form, uint32_t peer, str *out)
{
    str name = tensor_of(d, t)->name;
    text words = {0};
    text_print(&words, "%.*s%s", STR_ARG(name), form);
    if (*form || peer)
        text_print(&words, "@%u", peer);
    char *copy = words.failed ? NULL : arena_copy(d->s->result, words.at, words.n);
    *out = (str){copy, words.n};
    text_free(&words);
    CHECK(d->s->cx, copy, MPK_ENOMEM, "out of memory for the name of a tensor");
    return MPK_OK;
}

/* ---- weights, inputs and state ---- */

/* Add a tensor that no operator makes, in the memory of one peer or everywhere. */
static mpk_status add_given(sharder *d, ir_tensor_id t, uint32_t peer, const char *name,
                            const int64_t *dims, ir_tensor_id *out)
{
    const ir_tensor *from = tensor_of(d, t);
    d->to->peer = peer;
    return ir_add_tensor(d->s->cx, d->to, from->kind, from->live, name, from->dtype, from->rank,
                         dims, out);
}

/* Give a weight or an input to all peers as one tensor that lies everywhere; of state, a copy to
 * each peer. */
static mpk_status give_whole(sharder *d, ir_tensor_id t)
{
    const ir_tensor *from = tensor_of(d, t);
    str name;
    TRY(new_form(d, &d->forms[t].whole));
    for (uint32_t p = 0; p < d->n; p++) {
        if (p && from->kind != IR_STATE) {
            d->forms[t].whole[p] = d->forms[t].whole[0];
            continue;
        }
        TRY(make_name(d, t, "", p, &name));
        uint32_t peer = from->kind == IR_STATE ? p : IR_EVERYWHERE;
        TRY(add_given(d, t, peer, name.at, from->dims, &d->forms[t].whole[p]));
    }
    return MPK_OK;
}

/* Give each peer its part of a weight or of state, cut along an axis. */
static mpk_status give_parts(sharder *d, ir_tensor_id t, uint32_t axis)
{
    const ir_tensor *from = tensor_of(d, t);
    TRY(new_form(d, &d->forms[t].part[axis]));
    for (uint32_t p = 0; p < d->n; p++) {
        ir_share share = {.whole = from->name, .axis = axis, .size = from->dims[axis]};
        int64_t dims[IR_MAX_RANK];
        str name;
        memcpy(dims, from->dims, sizeof dims);
        shard_find_part(&d->cuts, t, axis, p, &share.lo, &share.hi);
        dims[axis] = share.hi - share.lo;
        if (from->kind == IR_CONST)
            TRY(ir_name_share(d->s->cx, d->s->result, &share, p, &name));
        else
            TRY(make_name(d, t, "", p, &name));
        TRY(add_given(d, t, p, name.at, dims, &d->forms[t].part[axis][p]));
    }
    return MPK_OK;
}

/* ---- changes of form ---- */

/* Add an operator with one result, run by a peer. */
static mpk_status add_op(sharder *d, uint32_t peer, const char *kind, str name, uint32_t n_in,
                         const ir_tensor_id *in, const ir_set *attributes, ir_tensor_id *out)
{
    d->to->peer = peer;
    return ir_add_op(d->s->cx, d->to, kind, name.at, n_in, in, attributes, out);
}

/* Add a view of the entries lo <= i < hi of an axis. */
static mpk_status add_slice(sharder *d, ir_tensor_id what, uint32_t peer, uint32_t axis, int64_t lo,
                            int64_t hi, str name, ir_tensor_id *out)
{
    const ir_tensor *x = &d->to->tensors.at[what];
    int64_t starts[IR_MAX_RANK] = {0}, stops[IR_MAX_RANK];
    memcpy(stops, x->dims, sizeof stops);
    starts[axis] = lo;
    stops[axis] = hi;
    return add_op(d, peer, "slice", name, 1, &what,
                  (ir_set[]){{.name = "starts", .ints = starts, .n_ints = x->rank},
                             {.name = "stops", .ints = stops, .n_ints = x->rank},
                             {0}},
                  out);
}

/* all_reduce: every peer reads the terms of all and adds them in the same order, so all get the
 * same bits. */
static mpk_status add_up(sharder *d, ir_tensor_id t)
{
    forms *f = &d->forms[t];
    TRY(new_form(d, &f->whole));
    for (uint32_t p = 0; p < d->n; p++) {
        str name;
        TRY(make_name(d, t, "", p, &name));
        TRY(add_op(d, p, "add_parts", name, d->n, f->terms, NULL, &f->whole[p]));
    }
    return MPK_OK;
}

/* List the pieces that make up a tensor cut along an axis, each where its part lies, *n <=
 * n_peers.  Parts may overlap (KV heads that several peers hold), so a piece is what of a part
 * those before it do not have; a part that adds nothing has no piece. */
static mpk_status gather_pieces(sharder *d, ir_tensor_id t, uint32_t axis, ir_tensor_id *pieces,
                                uint32_t *n)
{
    int64_t lo, hi, covered = 0;
    str name;
    *n = 0;
    for (uint32_t k = 0; k < d->n; k++) {
        shard_find_part(&d->cuts, t, axis, k, &lo, &hi);
        if (hi <= covered)
            continue;
        ir_tensor_id piece = d->forms[t].part[axis][k];
        if (lo < covered) {
            TRY(make_name(d, t, ".piece", k, &name));
            TRY(add_slice(d, piece, k, axis, covered - lo, hi - lo, name, &piece));
        }
        pieces[(*n)++] = piece;
        covered = hi;
    }
    return MPK_OK;
}

/* all_gather: every peer reads the pieces of all and concatenates them. */
static mpk_status gather(sharder *d, ir_tensor_id t, uint32_t axis)
{
    ir_tensor_id pieces[IR_MAX_PEERS];
    uint32_t n;
    TRY(new_form(d, &d->forms[t].whole));
    TRY(gather_pieces(d, t, axis, pieces, &n));
    for (uint32_t p = 0; p < d->n; p++) {
        str name;
        TRY(make_name(d, t, "", p, &name));
        TRY(add_op(d, p, "concat", name, n, pieces, (ir_set[]){{.name = "axis", .i = axis}, {0}},
                   &d->forms[t].whole[p]));
    }
    return MPK_OK;
}

/* Make the whole tensor on every peer, if it is not there yet: by a sum over the terms, by
 * gathering parts, or by giving it whole.  Once made it stays for all later readers. */
static mpk_status need_whole(sharder *d, ir_tensor_id t)
{
    const forms *f = &d->forms[t];
    if (f->whole)
        return MPK_OK;
    if (f->terms)
        return add_up(d, t);
    ir_kind kind = tensor_of(d, t)->kind;
    for (uint32_t axis = 0; kind != IR_CONST && axis < IR_MAX_RANK; axis++)
        if (f->part[axis])
            return gather(d, t, axis);
    return give_whole(d, t);
}

/* Make the parts of a tensor along an axis: weights and untouched state are given in parts, so that
 * a peer never holds the rest; anything else is made whole first and sliced, which costs no
 * communication beyond the whole. */
static mpk_status need_parts(sharder *d, ir_tensor_id t, uint32_t axis)
{
    forms *f = &d->forms[t];
    ir_kind kind = tensor_of(d, t)->kind;
    bool given = kind == IR_CONST || (kind == IR_STATE && !f->whole);
    if (f->part[axis])
        return MPK_OK;
    if (given)
        return give_parts(d, t, axis);
    TRY(need_whole(d, t));
    TRY(new_form(d, &f->part[axis]));
    for (uint32_t p = 0; p < d->n; p++) {
        int64_t lo, hi;
        str name;
        char form[16];
        snprintf(form, sizeof form, ".part%u", axis);
        shard_find_part(&d->cuts, t, axis, p, &lo, &hi);
        TRY(make_name(d, t, form, p, &name));
        TRY(add_slice(d, f->whole[p], p, axis, lo, hi, name, &f->part[axis][p]));
    }
    return MPK_OK;
}

/* The first entry of a peer's part along the axis that a way cuts: of the first operand that it
 * cuts. */
static int64_t first_entry(const sharder *d, const ir_op *op, const op_split *way, uint32_t peer)
{
    int64_t lo = 0, hi;
    uint32_t i = 0;
    while (i + 1 < op->n_in && (op->in[i] == IR_NONE || way->in[i] < 0))
        i++;
    shard_find_part(&d->cuts, op->in[i], (uint32_t)way->in[i], peer, &lo, &hi);
    return lo;
}

/* Make ids that each peer counts from the first entry of its part; all operators that read them
 * are cut at the same entries (shard_cuts.c). */
static mpk_status need_counted(sharder *d, const ir_op *op, const op_split *way, uint32_t input)
{
    ir_tensor_id t = op->in[input];
    const char *dtype = ir_dtype_table[tensor_of(d, t)->dtype].name;
    forms *f = &d->forms[t];
    if (f->counted)
        return MPK_OK;
    TRY(need_whole(d, t));
    TRY(new_form(d, &f->counted));
    for (uint32_t p = 0; p < d->n; p++) {
        const int64_t first = first_entry(d, op, way, p);
        char expr[32];
        str name;
        f->counted[p] = f->whole[p];
        if (!first)
            continue;
        snprintf(expr, sizeof expr, "x0 - %lld", (long long)first);
        TRY(make_name(d, t, ".own", p, &name));
        TRY(add_op(d, p, "map", name, 1, &f->whole[p],
                   (ir_set[]){{.name = "expr", .s = expr}, {.name = "dtype", .s = dtype}, {0}},
                   &f->counted[p]));
    }
    return MPK_OK;
}

/* Make an input in the form that a way wants. */
static mpk_status need_form(sharder *d, const ir_op *op, const op_split *way, uint32_t input)
{
    const int axis = way ? way->in[input] : OP_WHOLE;
    if (axis == OP_SUM) /* is_free has seen that they are there */
        return MPK_OK;
    if (axis == OP_IDS)
        return need_counted(d, op, way, input);
    return axis >= 0 ? need_parts(d, op->in[input], (uint32_t)axis) : need_whole(d, op->in[input]);
}

/* ---- which way ---- */

/* Is a tensor whole on every peer, or can it be without communication? */
static bool is_whole(const sharder *d, ir_tensor_id t)
{
    const forms *f = &d->forms[t];
    ir_kind kind = tensor_of(d, t)->kind;
    bool cut = false;
    for (uint32_t axis = 0; axis < IR_MAX_RANK; axis++)
        cut = cut || f->part[axis];
    return f->whole || kind == IR_CONST || kind == IR_INPUT || (kind == IR_STATE && !cut);
}

/* Are all inputs there in the forms that a way wants? */
static bool is_free(const sharder *d, const ir_op *op, const op_split *way)
{
    for (uint32_t i = 0; i < op->n_in; i++) {
        ir_tensor_id t = op->in[i];
        if (t == IR_NONE)
            continue;
        if (way->in[i] == OP_SUM
                ? !d->forms[t].terms
                : !is_whole(d, t) && !(way->in[i] >= 0 && d->forms[t].part[way->in[i]]))
            return false;
    }
    return true;
}

/* The bytes of the weights that a way cuts; 0: it cuts none, and nothing is gained by it alone. */
static int64_t cut_bytes(const sharder *d, const ir_op *op, const op_split *way)
{
    int64_t bytes = 0;
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] != IR_NONE && way->in[i] >= 0 && tensor_of(d, op->in[i])->kind == IR_CONST)
            bytes += ir_bytes(tensor_of(d, op->in[i]));
    return bytes;
}

/* Could the operator run whole on every peer without communication? */
static bool are_whole(const sharder *d, const ir_op *op)
{
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] != IR_NONE && !is_whole(d, op->in[i]))
            return false;
    return true;
}

/* Does a way end in terms of a sum, that is, in an all_reduce? */
static bool has_terms(const ir_op *op, const op_split *way)
{
    for (uint32_t i = 0; i < op->n_out; i++)
        if (way->out[i] == OP_SUM)
            return true;
    return false;
}

/* the most operators that are followed from one product to the next */
enum { MOST_STEPS = 16 };

static bool is_used_in_parts(const sharder *d, ir_tensor_id t, int axis, uint32_t steps);

/* Is there a way of a reader that takes tensor t cut along `axis` (OP_SUM: as terms), and whose
 * own results are used in parts as well? */
static bool reader_takes_parts(const sharder *d, const ir_op *op, ir_tensor_id t, int axis,
                               uint32_t steps)
{
    op_split way;
    for (uint32_t k = 0; op_find_split(d->from, op, k, &way); k++) {
        bool takes = shard_can_split(&d->cuts, op, &way);
        for (uint32_t i = 0; i < op->n_in && takes; i++)
            takes = op->in[i] != t || way.in[i] == axis;
        for (uint32_t i = 0; i < op->n_out && takes; i++)
            takes = way.out[i] < 0 || is_used_in_parts(d, op->out[i], way.out[i], steps + 1);
        if (takes)
            return true;
    }
    return false;
}

/* Does every reader take the parts of a tensor as they are, until they are terms of a sum?
 * steps: operators followed so far. */
static bool is_used_in_parts(const sharder *d, ir_tensor_id t, int axis, uint32_t steps)
{
    if (d->is_output[t] || steps == MOST_STEPS)
        return false;
    for (uint32_t i = d->first_reader[t]; i < d->first_reader[t + 1]; i++)
        if (!reader_takes_parts(d, &d->from->ops.at[d->readers[i]], t, axis, steps))
            return false;
    return true;
}

/* Are the terms of a way's results added up only after the next product? */
static bool are_terms_used(const sharder *d, const ir_op *op, const op_split *way)
{
    for (uint32_t i = 0; i < op->n_out; i++)
        if (way->out[i] == OP_SUM && !is_used_in_parts(d, op->out[i], OP_SUM, 0))
            return false;
    return true;
}

/* Is it worth while to cut the weights that this way cuts?  A way that ends in terms pays only
 * if its inputs are in parts already (the second product of a pair), or if its readers take the
 * terms: otherwise it would turn one product into a product and a sum.  A way that ends in parts
 * pays if they are used as parts.  A weight of gather_bytes or more (the vocabulary) is cut in any
 * case. */
static bool pays(const sharder *d, const ir_op *op, const op_split *way)
{
    int64_t bytes = cut_bytes(d, op, way);
    bool in_parts =
        bytes && (!has_terms(op, way) || !are_whole(d, op) || are_terms_used(d, op, way));
    for (uint32_t i = 0; i < op->n_out && in_parts; i++)
        in_parts = way->out[i] < 0 || is_used_in_parts(d, op->out[i], way->out[i], 0);
    return bytes && (in_parts || bytes >= (int64_t)d->s->options->gather_bytes);
}

/* Does a way deal out whole entries that ids name, as experts? */
static bool deals_out(const ir_op *op, const op_split *way)
{
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] != IR_NONE && way->in[i] == OP_IDS)
            return true;
    return false;
}

/* The first way that pays; dealing: of those that deal out what ids name. */
static bool find_paying(const sharder *d, const ir_op *op, bool dealing, op_split *way)
{
    for (uint32_t k = 0; op_find_split(d->from, op, k, way); k++)
        if ((!dealing || deals_out(op, way)) && shard_can_split(&d->cuts, op, way) &&
            is_free(d, op, way) && pays(d, op, way))
            return true;
    return false;
}

/* Choose the way that an operator goes; false: it runs whole.  First ways that pay; then, if an
 * input is not whole, any way that takes the inputs as they are, which saves gathering them. */
static bool choose_way(const sharder *d, const ir_op *op, op_split *way)
{
    if ((d->s->options->own_experts && find_paying(d, op, true, way)) ||
        find_paying(d, op, false, way))
        return true;
    for (uint32_t k = 0; !are_whole(d, op) && op_find_split(d->from, op, k, way); k++)
        if (shard_can_split(&d->cuts, op, way) && is_free(d, op, way))
            return true;
    return false;
}

/* ---- operators ---- */

/* Copy attributes for a peer's operator: a list of the result's dimensions (reshape, expand)
 * follows the cut. */
static mpk_status copy_attributes(sharder *d, const ir_op *op, const op_split *way, uint32_t peer,
                                  ir_attribute *to)
{
    memcpy(to, op->attributes, sizeof op->attributes);
    if (!way || way->sized < 0)
        return MPK_OK;
    const ir_tensor *y = tensor_of(d, op->out[0]);
    int64_t *dims, lo, hi;
    NEW(d->s->cx, d->s->scratch, dims, y->rank);
    memcpy(dims, y->dims, y->rank * sizeof *dims);
    shard_find_part(&d->cuts, op->out[0], (uint32_t)way->out[0], peer, &lo, &hi);
    dims[way->out[0]] = hi - lo;
    to[way->sized].ints.at = dims;
    to[way->sized].ints.n = y->rank;
    return MPK_OK;
}

/* *out: where the results of all peers for output i of an operator are noted; way NULL: it runs
 * whole. */
static mpk_status new_result(sharder *d, const ir_op *op, const op_split *way, uint32_t i,
                             ir_tensor_id **out)
{
    forms *f = &d->forms[op->out[i]];
    int axis = way ? way->out[i] : OP_WHOLE;
    ir_tensor_id **form = axis == OP_SUM ? &f->terms : &f->whole;
    if (axis >= 0)
        form = &f->part[axis];
    TRY(new_form(d, form));
    *out = *form;
    return MPK_OK;
}

/* The form of an input that a way wants, one tensor for each peer. */
static const ir_tensor_id *form_of(const sharder *d, ir_tensor_id t, int axis)
{
    const forms *f = &d->forms[t];
    if (axis >= 0)
        return f->part[axis];
    if (axis == OP_SUM)
        return f->terms;
    return axis == OP_IDS ? f->counted : f->whole;
}

/* Add the operator for one peer, on its forms of the inputs; results[i][peer] becomes output i.
 * An input marked OP_FIRST (a residual or a bias of a sum) is given to peer 0 only, so that it
 * is added once. */
static mpk_status add_for_peer(sharder *d, const ir_op *op, const op_split *way, uint32_t peer,
                               ir_tensor_id **results)
{
    ir_tensor_id in[IR_MAX_INPUTS], out[IR_MAX_OUTPUTS];
    str names[IR_MAX_OUTPUTS];
    ir_attribute attributes[IR_MAX_ATTRIBUTES];
    for (uint32_t i = 0; i < op->n_in; i++) {
        int axis = way ? way->in[i] : OP_WHOLE;
        in[i] = IR_NONE;
        if (op->in[i] != IR_NONE && !(axis == OP_FIRST && peer))
            in[i] = form_of(d, op->in[i], axis)[peer];
    }
    for (uint32_t i = 0; i < op->n_out; i++) {
        int axis = way ? way->out[i] : OP_WHOLE;
        const char *form = axis == OP_SUM ? ".term" : "";
        if (axis >= 0)
            form = ".part";
        TRY(make_name(d, op->out[i], form, peer, &names[i]));
    }
    TRY(copy_attributes(d, op, way, peer, attributes));
    d->to->peer = peer;
    TRY(ir_add_op_as(d->s->cx, d->to, op->def, names, op->n_in, in, attributes, out));
    for (uint32_t i = 0; i < op->n_out; i++)
        results[i][peer] = out[i];
    return MPK_OK;
}

/* Make the inputs in the forms that the chosen way wants, and add the operator on each peer that
 * needs it. */
static mpk_status shard_op(sharder *d, ir_op_id id)
{
    const ir_op *op = &d->from->ops.at[id];
    ir_tensor_id *results[IR_MAX_OUTPUTS];
    op_split chosen;
    const op_split *way = choose_way(d, op, &chosen) ? &chosen : NULL;
    for (uint32_t i = 0; i < op->n_in; i++) {
        if (op->in[i] != IR_NONE)
            TRY(need_form(d, op, way, i));
    }
    for (uint32_t i = 0; i < op->n_out; i++)
        TRY(new_result(d, op, way, i, &results[i]));
    for (uint32_t p = 0; p < (d->alone[id] ? 1 : d->n); p++)
        NOTE(d->s->cx, add_for_peer(d, op, way, p, results), "giving %.*s to peer %u",
             STR_ARG(op->name), p);
    return MPK_OK;
}

/* ---- the program ---- */

/* Fill the lists of readers by counting and filling: `next` is first_reader shifted by one, so
 * that filling the lists leaves the first indices where they belong.  An operator that reads a
 * tensor twice is listed twice. */
static mpk_status fill_readers(sharder *d)
{
    const ir_graph *g = d->from;
    NEW(d->s->cx, d->s->scratch, d->first_reader, g->tensors.n + 2);
    NEW(d->s->cx, d->s->scratch, d->readers, g->ops.n * IR_MAX_INPUTS + 1);
    uint32_t *next = d->first_reader + 1;
    for (size_t o = 0; o < g->ops.n; o++)
        for (uint32_t i = 0; i < g->ops.at[o].n_in; i++)
            if (g->ops.at[o].in[i] != IR_NONE)
                next[g->ops.at[o].in[i] + 1]++;
    for (size_t t = 0; t < g->tensors.n; t++)
        next[t + 1] += next[t];
    for (size_t o = 0; o < g->ops.n; o++)
        for (uint32_t i = 0; i < g->ops.at[o].n_in; i++)
            if (g->ops.at[o].in[i] != IR_NONE)
                d->readers[next[g->ops.at[o].in[i]]++] = (uint32_t)o;
    return MPK_OK;
}

/* An operator is peer 0's alone if it cannot be split and the same holds for all that read its
 * results: sampling, and what leads from its results to outputs. */
static void find_alone(sharder *d)
{
    for (size_t o = d->from->ops.n; o-- > 0;) {
        const ir_op *op = &d->from->ops.at[o];
        op_split way;
        d->alone[o] = !op_find_split(d->from, op, 0, &way);
        for (uint32_t i = 0; i < op->n_out; i++)
            for (uint32_t k = d->first_reader[op->out[i]]; k < d->first_reader[op->out[i] + 1]; k++)
                d->alone[o] = d->alone[o] && d->alone[d->readers[k]];
    }
}

/* The joint program begins with the inputs in the source's order, whole and everywhere: they are
 * the interface, and the host writes them once for all peers. */
static mpk_status begin(sharder *d)
{
    mpk_context *cx = d->s->cx;
    const ir_graph *g = d->from;
    char *name = arena_copy(d->s->scratch, g->name.at ? g->name.at : "", g->name.n);
    CHECK(cx, name, MPK_ENOMEM, "out of memory for the name of a graph");
    TRY(ir_create(cx, d->s->result, name, &d->to));
    TRY(shard_fill_cuts(cx, d->s->scratch, g, d->n, &d->cuts));
    NEW(cx, d->s->scratch, d->forms, g->tensors.n);
    NEW(cx, d->s->scratch, d->is_output, g->tensors.n);
    NEW(cx, d->s->scratch, d->alone, g->ops.n);
    for (size_t i = 0; i < g->outputs.n; i++)
        d->is_output[g->outputs.at[i]] = true;
    TRY(fill_readers(d));
    find_alone(d);
    for (ir_tensor_id t = 0; t < g->tensors.n; t++)
        if (g->tensors.at[t].kind == IR_INPUT)
            TRY(give_whole(d, t));
    return MPK_OK;
}

/* The pass. A program for one peer, or one that was written for several, stays as it is.
 * Outputs are needed whole on the first peer, where the host reads them.
 */
mpk_status pass_shard(pass_state *s, ir_graph **g)
{
    sharder d = {.s = s, .from = *g, .n = s->options->n_peers};
    if (d.n <= 1 || ir_count_peers(*g) > 1) /* it may have been written for several */
        return MPK_OK;
    CHECK(s->cx, d.n <= IR_MAX_PEERS, MPK_EARG, "%u peers: at most %d are possible", d.n,
          IR_MAX_PEERS);
    TRY(begin(&d));
    for (ir_op_id o = 0; o < d.from->ops.n; o++)
        TRY(shard_op(&d, o));
    for (size_t i = 0; i < d.from->outputs.n; i++) {
        ir_tensor_id t = d.from->outputs.at[i];
        TRY(need_whole(&d, t));
        TRY(ir_add_output(s->cx, d.to, d.forms[t].whole[0]));
    }
    *g = d.to;
    return MPK_OK;
}
