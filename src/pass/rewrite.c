/* rewrite.c - the sweep that copies a tensor program through a rule (rewrite.h). */
#include "pass/rewrite.h"

static mpk_status start(pass_state *s, const ir_graph *from, rewrite *r)
{
    *r = (rewrite){.cx = s->cx, .options = s->options, .from = from};
    TRY(ir_create(s->cx, s->result, "", &r->to));
    r->to->name = from->name;
    NEW(s->cx, s->scratch, r->map, from->tensors.n);
    NEW(s->cx, s->scratch, r->done, from->ops.n);
    NEW(s->cx, s->scratch, r->n_users, from->tensors.n);
    NEW(s->cx, s->scratch, r->user, from->tensors.n);
    for (size_t i = 0; i < from->tensors.n; i++)
        r->map[i] = r->user[i] = IR_NONE;
    for (size_t i = 0; i < from->ops.n; i++)
        for (uint32_t k = 0; k < from->ops.at[i].n_in; k++) {
            ir_tensor_id t = from->ops.at[i].in[k];
            if (t != IR_NONE) {
                r->n_users[t]++;
                r->user[t] = (ir_op_id)i;
            }
        }
    for (size_t i = 0; i < from->outputs.n; i++)
        r->n_users[from->outputs.at[i]]++;
    return MPK_OK;
}

/* A tensor that no operator makes keeps its name and place in the order. */
static mpk_status copy_leaf(rewrite *r, ir_tensor_id t)
{
    const ir_tensor *old = &r->from->tensors.at[t];
    char *name = arena_copy(r->to->arena, old->name.at, old->name.n);
    CHECK(r->cx, name, MPK_ENOMEM, "out of memory for a name");
    return ir_add_tensor(r->cx, r->to, old->kind, old->live, name, old->dtype, old->rank, old->dims, &r->map[t]);
}

static mpk_status map_inputs(const rewrite *r, uint32_t n, const ir_tensor_id *in, ir_tensor_id *mapped)
{
    for (uint32_t i = 0; i < n; i++) {
        mapped[i] = in[i] == IR_NONE ? IR_NONE : r->map[in[i]];
        CHECK(r->cx, in[i] == IR_NONE || mapped[i] != IR_NONE, MPK_EVERIFY,
              "rewriting: %%%.*s is read before it is made", STR_ARG(r->from->tensors.at[in[i]].name));
    }
    return MPK_OK;
}

static mpk_status copy_op(rewrite *r, const ir_op *op)
{
    ir_tensor_id in[IR_MAX_INPUTS], out[IR_MAX_OUTPUTS];
    str names[IR_MAX_OUTPUTS];
    TRY(map_inputs(r, op->n_in, op->in, in));
    for (uint32_t i = 0; i < op->n_out; i++)
        names[i] = r->from->tensors.at[op->out[i]].name;
    TRY(ir_add_op_as(r->cx, r->to, op->def, names, op->n_in, in, op->attributes, out));
    for (uint32_t i = 0; i < op->n_out; i++)
        r->map[op->out[i]] = out[i];
    return MPK_OK;
}

mpk_status rewrite_graph(pass_state *s, ir_graph **g, rewrite_rule *rule)
{
    rewrite r;
    TRY(start(s, *g, &r));
    for (size_t t = 0; t < r.from->tensors.n; t++)
        if (r.from->tensors.at[t].kind != IR_TEMP)
            TRY(copy_leaf(&r, (ir_tensor_id)t));
    for (size_t i = 0; i < r.from->ops.n; i++) {
        bool matched = r.done[i];
        if (!matched && rule)
            TRY(rule(&r, (ir_op_id)i, &matched));
        if (!matched)
            TRY(copy_op(&r, &r.from->ops.at[i]));
    }
    for (size_t i = 0; i < r.from->outputs.n; i++)
        TRY(ir_add_output(r.cx, r.to, r.map[r.from->outputs.at[i]]));
    *g = r.to;
    return MPK_OK;
}

bool rewrite_is(const ir_op *op, const char *name)
{
    return strcmp(op->def->name, name) == 0;
}

const ir_op *rewrite_producer(const rewrite *r, ir_tensor_id t, const char *name)
{
    if (t == IR_NONE || r->from->tensors.at[t].producer == IR_NONE)
        return NULL;
    const ir_op *op = &r->from->ops.at[r->from->tensors.at[t].producer];
    return rewrite_is(op, name) ? op : NULL;
}

const ir_op *rewrite_sole_producer(const rewrite *r, ir_tensor_id t, const char *name)
{
    return t != IR_NONE && r->n_users[t] == 1 ? rewrite_producer(r, t, name) : NULL;
}

ir_tensor_id rewrite_in(const ir_op *op, uint32_t i)
{
    return i < op->n_in ? op->in[i] : IR_NONE;
}

const ir_attribute *rewrite_attribute(const ir_op *op, const char *name)
{
    uint32_t i = 0;
    while (i + 1 < op->def->n_attributes && strcmp(op->def->attributes[i].name, name) != 0)
        i++;
    return &op->attributes[i];
}

mpk_status rewrite_add(rewrite *r, const char *op, const char *name, uint32_t n_in, const ir_tensor_id *in,
                       const ir_set *attributes, ir_tensor_id *out)
{
    ir_tensor_id mapped[IR_MAX_INPUTS];
    TRY(map_inputs(r, n_in, in, mapped));
    return ir_add_op(r->cx, r->to, op, name, n_in, mapped, attributes, out);
}

mpk_status rewrite_add_like(rewrite *r, const ir_op *like, ir_tensor_id name_of, uint32_t n_in, const ir_tensor_id *in,
                            const ir_set *attributes, ir_tensor_id *out)
{
    ir_tensor_id mapped[IR_MAX_INPUTS];
    ir_attribute values[IR_MAX_ATTRIBUTES];
    TRY(map_inputs(r, n_in, in, mapped));
    memcpy(values, like->attributes, sizeof values);
    for (const ir_set *set = attributes; set && set->name; set++) {
        ir_attribute *value = &values[rewrite_attribute(like, set->name) - like->attributes];
        *value = (ir_attribute){.i = set->i, .f = set->f, .s = str_from(set->s ? set->s : "")};
    }
    return ir_add_op_as(r->cx, r->to, like->def, &r->from->tensors.at[name_of].name, n_in, mapped, values, out);
}

void rewrite_map(rewrite *r, ir_tensor_id t, ir_tensor_id n)
{
    r->map[t] = n;
}
