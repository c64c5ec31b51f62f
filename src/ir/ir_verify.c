/* ir_verify.c - check every rule that ir.h states.
 *
 * Input: a graph, whatever made it.  Output: MPK_OK, or MPK_EVERIFY with a sentence that names
 * operator and tensor.  Called for every program that is parsed or built, and by the compiler
 * with --verify for what its passes made of it.
 *
 * One walk over the tensors, then one over the operators in order.  The second keeps a version
 * of each root, the number of in-place writes so far, and the version that each tensor refers
 * to: a tensor may be read only while its version is the current one.
 *
 *   %k1 = kv_write(%k0, ...)      root k0: version 0 -> 1; %k0 refers to 0, %k1 to 1
 *   %a = attention(%q, %k1)       reads version 1, the current one: right
 *   %b = copy(%k0)                reads version 0, which is gone: refused
 *
 * Cost: linear.
 */
#include "ir/op.h"

/* The walk under way; arrays lie in scratch memory of ir_verify. */
typedef struct verifier {
    mpk_context *cx;
    const ir_graph *g;
    ir_tensor_id *root; /* [tensors] owner of the storage */
    uint32_t *version;  /* [tensors] the version of the root that the tensor refers to */
    uint32_t *current;  /* [tensors] of a root: its version after the operators so far */
    bool *is_output;    /* [tensors] */
} verifier;

/* The name of a tensor for a format string with %.*s. */
#define TENSOR_ARG(v, id) STR_ARG((v)->g->tensors.at[id].name)

/* Check what can be said of a tensor alone.  Given tensors own their storage and have no
 * producer; a temporary is a result of its producer. */
static mpk_status verify_tensor(verifier *v, ir_tensor_id id)
{
    const ir_graph *g = v->g;
    const ir_tensor *t = &g->tensors.at[id];
    uint64_t named;
    mpk_status status = ir_check_tensor(v->cx, t);
    if (status != MPK_OK)
        return status_note(v->cx, MPK_EVERIFY, "verifying tensor number %u", id);
    CHECK(v->cx, map_get(&g->names, t->name, &named) && named == id, MPK_EVERIFY,
          "tensor %%%.*s: the name belongs to another tensor", STR_ARG(t->name));
    CHECK(v->cx, (unsigned)t->kind < IR_KINDS, MPK_EVERIFY,
          "tensor %%%.*s: there is no kind number %d", STR_ARG(t->name), (int)t->kind);
    v->root[id] = id;
    if (t->kind != IR_TEMP) {
        bool everywhere = t->peer == IR_EVERYWHERE && t->kind != IR_STATE;
        CHECK(v->cx, t->peer < IR_MAX_PEERS || everywhere, MPK_EVERIFY,
              "tensor %%%.*s: there is no such peer", STR_ARG(t->name));
        CHECK(v->cx, t->producer == IR_NONE, MPK_EVERIFY,
              "tensor %%%.*s is given and has a producer", STR_ARG(t->name));
        CHECK(v->cx, t->shares == IR_NONE, MPK_EVERIFY, "tensor %%%.*s is given and shares storage",
              STR_ARG(t->name));
        CHECK(v->cx, t->live == IR_ALL || t->kind == IR_INPUT, MPK_EVERIFY,
              "tensor %%%.*s is partly alive and no input of the step", STR_ARG(t->name));
        return MPK_OK;
    }
    CHECK(v->cx, t->producer < g->ops.n, MPK_EVERIFY, "tensor %%%.*s has no producer",
          STR_ARG(t->name));
    const ir_op *op = &g->ops.at[t->producer];
    bool found = false;
    for (uint32_t i = 0; i < op->n_out && i < IR_MAX_OUTPUTS; i++)
        found = found || op->out[i] == id;
    CHECK(v->cx, found, MPK_EVERIFY, "tensor %%%.*s is not a result of its producer",
          STR_ARG(t->name));
    return MPK_OK;
}

/* Check counts and tensor numbers, that operands are made earlier and lie where the operator may
 * read them, and that results are its own; the record's functions rely on all of it. */
static mpk_status verify_operands(verifier *v, ir_op_id id)
{
    const ir_graph *g = v->g;
    const ir_op *op = &g->ops.at[id];
    CHECK(v->cx, op->def, MPK_EVERIFY, "operator number %u has no record", id);
    const op_def *def = op->def;
    bool variadic = def->n_in && def->in[def->n_in - 1].presence == OP_VARIADIC;
    CHECK(v->cx,
          op->n_in >= def->n_in &&
              (op->n_in == def->n_in || (variadic && op->n_in <= IR_MAX_INPUTS)),
          MPK_EVERIFY, "%s number %u has %u inputs, the record says %u", def->name, id, op->n_in,
          def->n_in);
    CHECK(v->cx, op->n_out == def->n_out, MPK_EVERIFY,
          "%s number %u has %u results, the record says %u", def->name, id, op->n_out, def->n_out);
    for (uint32_t i = 0; i < op->n_in; i++) {
        const op_operand *operand = op_operand_of(def, i);
        if (op->in[i] == IR_NONE) {
            CHECK(v->cx, operand->presence == OP_OPTIONAL, MPK_EVERIFY,
                  "%s number %u: input %s is missing", def->name, id, operand->name);
            continue;
        }
        CHECK(v->cx, op->in[i] < g->tensors.n, MPK_EVERIFY,
              "%s number %u: input %s is tensor number %u of %zu", def->name, id, operand->name,
              op->in[i], g->tensors.n);
        const ir_tensor *t = &g->tensors.at[op->in[i]];
        CHECK(v->cx, t->kind != IR_TEMP || t->producer < id, MPK_EVERIFY,
              "%s number %u reads %%%.*s before it is made", def->name, id, STR_ARG(t->name));
        CHECK(v->cx, t->peer == op->peer || t->peer == IR_EVERYWHERE || def->flags & OP_GATHERS,
              MPK_EVERIFY, "%s number %u runs on peer %u and reads %%%.*s, which lies on peer %u",
              def->name, id, op->peer, STR_ARG(t->name), t->peer);
    }
    CHECK(v->cx, op->peer < IR_MAX_PEERS && op_result_peer(op) < IR_MAX_PEERS, MPK_EVERIFY,
          "%s number %u: there is no such peer", def->name, id);
    for (uint32_t i = 0; i < op->n_out; i++) {
        CHECK(v->cx, op->out[i] < g->tensors.n, MPK_EVERIFY,
              "%s number %u: result %u is tensor number %u of %zu", def->name, id, i, op->out[i],
              g->tensors.n);
        const ir_tensor *t = &g->tensors.at[op->out[i]];
        CHECK(v->cx, t->kind == IR_TEMP && t->producer == id && t->peer == op_result_peer(op),
              MPK_EVERIFY, "%s number %u writes %%%.*s, which is not its own", def->name, id,
              STR_ARG(t->name));
        for (uint32_t k = 0; k < i; k++)
            CHECK(v->cx, op->out[k] != op->out[i], MPK_EVERIFY, "%s number %u writes %%%.*s twice",
                  def->name, id, STR_ARG(t->name));
    }
    CHECK(v->cx, str_equal(op->name, g->tensors.at[op->out[0]].name), MPK_EVERIFY,
          "%s number %u does not have the name of its first result %%%.*s", def->name, id,
          TENSOR_ARG(v, op->out[0]));
    return MPK_OK;
}

/* Are two tensors equal in all that a record infers and that placing follows from?  Names and
 * producers are checked elsewhere. */
static bool same_place(const ir_tensor *a, const ir_tensor *b)
{
    return a->dtype == b->dtype && a->live == b->live && a->rank == b->rank &&
           a->shares == b->shares && a->offset == b->offset &&
           memcmp(a->dims, b->dims, a->rank * sizeof *a->dims) == 0 &&
           memcmp(a->stride, b->stride, a->rank * sizeof *a->stride) == 0;
}

/* Check that the record infers what the graph states: a pass may have changed inputs after a
 * result was made. */
static mpk_status verify_inferred(verifier *v, const ir_op *op)
{
    ir_tensor out[IR_MAX_OUTPUTS] = {0};
    for (uint32_t i = 0; i < op->n_out; i++)
        out[i].shares = IR_NONE;
    mpk_status status = op->def->infer(v->cx, v->g, op, out);
    for (uint32_t i = 0; status == MPK_OK && i < op->n_out; i++)
        status = ir_place_output(v->cx, v->g, op, &out[i]);
    if (status != MPK_OK)
        return status_note(v->cx, MPK_EVERIFY, "verifying %%%.*s = %s(...)", STR_ARG(op->name),
                           op->def->name);
    for (uint32_t i = 0; i < op->n_out; i++)
        CHECK(v->cx, same_place(&out[i], &v->g->tensors.at[op->out[i]]), MPK_EVERIFY,
              "%s: %%%.*s does not have the dtype, shape or storage that its inputs give",
              op->def->name, TENSOR_ARG(v, op->out[i]));
    return MPK_OK;
}

/* Check a result that is written in place.  What is overwritten must be memory of the program's
 * own, must hold each element once (no stride of 0), and must not be read by the same operator
 * through another tensor, since bodies write while they read. */
static mpk_status verify_in_place(verifier *v, const ir_op *op, uint32_t output)
{
    const ir_tensor *t = &v->g->tensors.at[op->out[output]];
    ir_tensor_id root = v->root[t->shares];
    ir_kind kind = v->g->tensors.at[root].kind;
    CHECK(v->cx, kind == IR_STATE || kind == IR_TEMP, MPK_EVERIFY,
          "%s writes %%%.*s in place, which is an input or a weight", op->def->name,
          TENSOR_ARG(v, root));
    for (uint32_t i = 0; i < op->n_in; i++)
        CHECK(v->cx, op->in[i] == IR_NONE || op->in[i] == t->shares || v->root[op->in[i]] != root,
              MPK_EVERIFY, "%s reads %%%.*s and writes its storage in place", op->def->name,
              TENSOR_ARG(v, op->in[i]));
    for (uint32_t i = 0; i < output; i++)
        CHECK(v->cx, v->root[op->out[i]] != root, MPK_EVERIFY,
              "%s has two results in the storage of %%%.*s", op->def->name, TENSOR_ARG(v, root));
    for (uint32_t i = 0; i < t->rank; i++)
        CHECK(v->cx, t->stride[i] != 0 || t->dims[i] == 1, MPK_EVERIFY,
              "%s writes %%%.*s in place, which repeats elements", op->def->name,
              TENSOR_ARG(v, t->shares));
    v->version[op->out[output]] = ++v->current[root];
    return MPK_OK;
}

/* Check that the operator reads no storage that was overwritten since the operand was made; then
 * advance the versions of what it writes in place. */
static mpk_status verify_storage(verifier *v, const ir_op *op)
{
    for (uint32_t i = 0; i < op->n_in; i++)
        CHECK(v->cx,
              op->in[i] == IR_NONE || v->version[op->in[i]] == v->current[v->root[op->in[i]]],
              MPK_EVERIFY, "%%%.*s = %s(...) reads %%%.*s, which has been overwritten in place",
              STR_ARG(op->name), op->def->name, TENSOR_ARG(v, op->in[i]));
    for (uint32_t i = 0; i < op->n_out; i++) {
        ir_tensor_id shares = v->g->tensors.at[op->out[i]].shares;
        if (shares == IR_NONE)
            continue;
        if (op->def->flags & OP_VIEW)
            v->version[op->out[i]] = v->version[shares];
        else
            TRY(verify_in_place(v, op, i));
        v->root[op->out[i]] = v->root[shares];
    }
    return MPK_OK;
}

/* An output must still hold what its producer wrote when the program ends. */
static mpk_status verify_outputs(verifier *v)
{
    const ir_graph *g = v->g;
    for (size_t i = 0; i < g->outputs.n; i++) {
        ir_tensor_id id = g->outputs.at[i];
        CHECK(v->cx, id < g->tensors.n, MPK_EVERIFY, "output %zu is tensor number %u of %zu", i, id,
              g->tensors.n);
        CHECK(v->cx, v->version[id] == v->current[v->root[id]], MPK_EVERIFY,
              "output %%%.*s has been overwritten in place", TENSOR_ARG(v, id));
        CHECK(v->cx, !v->is_output[id], MPK_EVERIFY, "output %%%.*s is listed twice",
              TENSOR_ARG(v, id));
        v->is_output[id] = true;
    }
    return MPK_OK;
}

/* Check tensors, then operators in program order, which the versions of a root (verify_storage)
 * follow. */
static mpk_status verify(verifier *v, arena *scratch)
{
    NEW(v->cx, scratch, v->root, v->g->tensors.n);
    NEW(v->cx, scratch, v->version, v->g->tensors.n);
    NEW(v->cx, scratch, v->current, v->g->tensors.n);
    NEW(v->cx, scratch, v->is_output, v->g->tensors.n);
    for (ir_tensor_id i = 0; i < v->g->tensors.n; i++)
        TRY(verify_tensor(v, i));
    for (ir_op_id i = 0; i < v->g->ops.n; i++) {
        TRY(verify_operands(v, i));
        TRY(verify_inferred(v, &v->g->ops.at[i]));
        TRY(verify_storage(v, &v->g->ops.at[i]));
    }
    return verify_outputs(v);
}

mpk_status ir_verify(mpk_context *cx, const ir_graph *g)
{
    verifier v = {.cx = cx, .g = g};
    arena scratch = {0};
    mpk_status status = verify(&v, &scratch);
    arena_free(&scratch);
    return status;
}
