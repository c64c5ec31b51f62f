/* build.c - make a tensor program: add tensors and operators, infer shapes (see ir.h).
 *
 * Called by src/model, by the graph API and by the parser; passes add operators through
 * rewrite.c.  Names, attributes and dimensions are copied into the graph's arena; the caller may
 * free its own.  A call that fails leaves the graph unchanged, except after MPK_ENOMEM: then the
 * graph must be discarded.
 */
#include <stdio.h>

#include "ir/op.h"

/* The graph's name may be NULL: it has none. */
mpk_status ir_create(mpk_context *cx, arena *a, const char *name, ir_graph **out)
{
    ir_graph *g;
    NEW(cx, a, g, 1);
    g->arena = a;
    size_t n = name ? strlen(name) : 0;
    char *copy = arena_copy(a, name ? name : "", n);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory");
    g->name = (str){copy, n};
    *out = g;
    return MPK_OK;
}

/* Copy into the arena with a zero after it, so that names can be given to C functions as they
 * are. */
static mpk_status copy_str(mpk_context *cx, arena *a, str from, str *to)
{
    char *copy = arena_copy(a, from.at ? from.at : "", from.n);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory for a name of %zu bytes", from.n);
    *to = (str){copy, from.n};
    return MPK_OK;
}

/* Append a tensor that has been checked; its name must be new.  *t becomes the graph's: its name
 * is copied. */
static mpk_status add_tensor(mpk_context *cx, ir_graph *g, ir_tensor *t, ir_tensor_id *out)
{
    TRY(ir_check_tensor(cx, t));
    CHECK(cx, !map_get(&g->names, t->name, NULL), MPK_EARG, "tensor %%%.*s: the name is taken",
          STR_ARG(t->name));
    /* IR_NONE is no number of a tensor */
    CHECK(cx, g->tensors.n < IR_NONE, MPK_ELIMIT, "the graph has too many tensors");
    TRY(copy_str(cx, g->arena, t->name, &t->name));
    PUSH(cx, g->arena, &g->tensors, *t);
    ir_tensor_id id = (ir_tensor_id)(g->tensors.n - 1);
    mpk_status status = map_put(cx, g->arena, &g->names, t->name, id);
    if (status != MPK_OK) {
        g->tensors.n--;
        return status;
    }
    *out = id;
    return MPK_OK;
}

/* Inputs, constants and states come in here, dense and row-major; only operators make
 * temporaries. */
mpk_status ir_add_tensor(mpk_context *cx, ir_graph *g, ir_kind kind, ir_live live, const char *name,
                         ir_dtype dtype, uint32_t rank, const int64_t *dims, ir_tensor_id *out)
{
    ir_tensor t = {.name = str_from(name),
                   .dtype = dtype,
                   .kind = kind,
                   .live = live,
                   .peer = g->peer,
                   .rank = rank};
    /* owns its storage, and is there before any operator runs */
    t.producer = t.shares = IR_NONE;
    CHECK(cx, kind == IR_INPUT || kind == IR_CONST || kind == IR_STATE, MPK_EARG,
          "tensor %%%s: only an operator makes temporaries", name);
    CHECK(cx, live == IR_ALL || kind == IR_INPUT, MPK_EARG,
          "tensor %%%s: only inputs can be partly alive", name);
    for (uint32_t i = 0; i < rank && i < IR_MAX_RANK; i++)
        t.dims[i] = dims[i];
    TRY(ir_check_tensor(cx, &t));
    ir_dense_strides(rank, t.dims, t.stride);
    return add_tensor(cx, g, &t, out);
}

/* Check that all required inputs of the operator are given, and that those given exist. */
static mpk_status check_inputs(mpk_context *cx, const ir_graph *g, const op_def *def, uint32_t n_in,
                               const ir_tensor_id *in)
{
    bool variadic = def->n_in && def->in[def->n_in - 1].presence == OP_VARIADIC;
    uint32_t most = variadic ? IR_MAX_INPUTS : def->n_in;
    CHECK(cx, n_in <= most, MPK_EARG, "%s takes at most %u inputs, %u are given", def->name, most,
          n_in);
    /* one loop over what is given and what the record names: either may be longer */
    for (uint32_t i = 0; i < n_in || i < def->n_in; i++) {
        const op_operand *operand = op_operand_of(def, i);
        bool given = i < n_in && in[i] != IR_NONE;
        CHECK(cx, given || operand->presence == OP_OPTIONAL, MPK_EARG, "%s: input %s is missing",
              def->name, operand->name);
        CHECK(cx, !given || in[i] < g->tensors.n, MPK_EARG,
              "%s: input %s is tensor number %u of %zu", def->name, operand->name, in[i],
              g->tensors.n);
    }
    return MPK_OK;
}

/* Texts and lists are copied into the graph; the caller's may be on its stack. */
static mpk_status copy_attribute(mpk_context *cx, arena *a, const ir_attribute *from,
                                 ir_attribute *to)
{
    *to = *from;
    if (from->s.at)
        TRY(copy_str(cx, a, from->s, &to->s));
    if (from->ints.n) {
        int64_t *ints;
        NEW(cx, a, ints, from->ints.n);
        memcpy(ints, from->ints.at, from->ints.n * sizeof *ints);
        to->ints.at = ints;
    }
    return MPK_OK;
}

/* Infer the outputs of op, check them all, then append them: a record that refuses its inputs
 * leaves the graph as it was. names[n_out]. */
static mpk_status add_outputs(mpk_context *cx, ir_graph *g, ir_op *op, const str *names)
{
    ir_tensor out[IR_MAX_OUTPUTS] = {0};
    for (uint32_t i = 0; i < op->n_out; i++)
        out[i].shares = IR_NONE;
    TRY(op->def->infer(cx, g, op, out));
    for (uint32_t i = 0; i < op->n_out; i++) {
        out[i].name = names[i];
        out[i].kind = IR_TEMP;
        out[i].producer = (ir_op_id)g->ops.n;
        out[i].peer = op_result_peer(op);
        TRY(ir_check_tensor(cx, &out[i]));
        CHECK(cx, !map_get(&g->names, names[i], NULL), MPK_EARG, "tensor %%%.*s: the name is taken",
              STR_ARG(names[i]));
        for (uint32_t k = 0; k < i; k++)
            CHECK(cx, !str_equal(names[i], names[k]), MPK_EARG, "tensor %%%.*s: the name is taken",
                  STR_ARG(names[i]));
        /* strides and offset: of a view those of its input, else dense */
        TRY(ir_place_output(cx, g, op, &out[i]));
    }
    for (uint32_t i = 0; i < op->n_out; i++)
        TRY(add_tensor(cx, g, &out[i], &op->out[i]));
    return MPK_OK;
}

/* The builder, the parser and the passes all add operators by this.  Shapes and dtypes of the
 * results are inferred by the record, and nothing is added if that fails.  Absent inputs at the
 * end may be left out; in the graph they are IR_NONE. */
mpk_status ir_add_op_as(mpk_context *cx, ir_graph *g, const op_def *def, const str *names,
                        uint32_t n_in, const ir_tensor_id *in, const ir_attribute *attributes,
                        ir_tensor_id *out)
{
    TRY(check_inputs(cx, g, def, n_in, in));
    CHECK(cx, g->ops.n < IR_NONE, MPK_ELIMIT, "the graph has too many operators");
    CHECK(cx, g->peer < IR_MAX_PEERS, MPK_EARG, "%s: an operator runs on one peer, 0 to %d",
          def->name, IR_MAX_PEERS - 1);
    ir_op op = {.def = def,
                .peer = g->peer,
                .n_in = n_in > def->n_in ? n_in : def->n_in,
                .n_out = def->n_out};
    for (uint32_t i = 0; i < op.n_in; i++)
        op.in[i] = i < n_in ? in[i] : IR_NONE;
    for (uint32_t i = 0; i < def->n_attributes; i++)
        TRY(copy_attribute(cx, g->arena, &attributes[i], &op.attributes[i]));
    NOTE(cx, add_outputs(cx, g, &op, names), "adding %%%.*s = %s(...)", STR_ARG(names[0]),
         def->name);
    /* an operator has no name of its own */
    op.name = g->tensors.at[op.out[0]].name;
    PUSH(cx, g->arena, &g->ops, op);
    memcpy(out, op.out, def->n_out * sizeof *out);
    return MPK_OK;
}

static mpk_status set_name(mpk_context *cx, ir_graph *g, ir_tensor_id t, str name)
{
    ir_tensor *tensor = &g->tensors.at[t];
    tensor->name = name;
    if (tensor->producer != IR_NONE && g->ops.at[tensor->producer].out[0] == t)
        g->ops.at[tensor->producer].name = name;
    return map_put(cx, g->arena, &g->names, name, t);
}

/* Both names are in the table already, so that nothing can fail half way. */
mpk_status ir_swap_names(mpk_context *cx, ir_graph *g, ir_tensor_id a, ir_tensor_id b)
{
    str name = g->tensors.at[a].name;
    TRY(set_name(cx, g, a, g->tensors.at[b].name));
    return set_name(cx, g, b, name);
}

/* Fill the attributes: the values of the list, and the record's defaults for all others. */
static mpk_status fill_attributes(mpk_context *cx, const op_def *def, const ir_set *sets,
                                  ir_attribute *out)
{
    bool given[IR_MAX_ATTRIBUTES] = {false};
    for (uint32_t i = 0; i < def->n_attributes; i++)
        out[i] = def->attributes[i].otherwise;
    for (const ir_set *set = sets; set && set->name; set++) {
        uint32_t i = 0;
        while (i < def->n_attributes && strcmp(def->attributes[i].name, set->name) != 0)
            i++;
        CHECK(cx, i < def->n_attributes, MPK_EARG, "%s has no attribute %s", def->name, set->name);
        given[i] = true;
        out[i] = (ir_attribute){.i = set->i, .f = set->f, .s = str_from(set->s ? set->s : "")};
        out[i].ints.at = set->ints;
        out[i].ints.n = set->n_ints;
    }
    for (uint32_t i = 0; i < def->n_attributes; i++)
        CHECK(cx, given[i] || !def->attributes[i].required, MPK_EARG, "%s needs the attribute %s",
              def->name, def->attributes[i].name);
    return MPK_OK;
}

/* The form for code written by hand: attributes by name, defaults where they are not given, and
 * a made-up name (KIND_NUMBER) where there is none. */
mpk_status ir_add_op(mpk_context *cx, ir_graph *g, const char *op, const char *name, uint32_t n_in,
                     const ir_tensor_id *in, const ir_set *attributes, ir_tensor_id *out)
{
    const op_def *def = op_find(str_from(op));
    CHECK(cx, def, MPK_EARG, "there is no operator %s", op);
    ir_attribute values[IR_MAX_ATTRIBUTES] = {0};
    TRY(fill_attributes(cx, def, attributes, values));
    char made[IR_MAX_OUTPUTS][256];
    str names[IR_MAX_OUTPUTS];
    for (uint32_t i = 0; i < def->n_out; i++) {
        /* unique without a search, since no two operators have one number */
        int n = name ? snprintf(made[i], sizeof made[i], "%s", name)
                     : snprintf(made[i], sizeof made[i], "%s_%zu", def->name, g->ops.n);
        CHECK(cx, n > 0 && n < 200, MPK_EARG, "the name of an operator has 1 to 199 bytes, here %d",
              n);
        if (i)
            n += snprintf(made[i] + n, sizeof made[i] - (size_t)n, ".%u", i);
        names[i] = (str){made[i], (size_t)n};
    }
    return ir_add_op_as(cx, g, def, names, n_in, in, values, out);
}

mpk_status ir_add_output(mpk_context *cx, ir_graph *g, ir_tensor_id tensor)
{
    CHECK(cx, tensor < g->tensors.n, MPK_EARG, "output is tensor number %u of %zu", tensor,
          g->tensors.n);
    PUSH(cx, g->arena, &g->outputs, tensor);
    return MPK_OK;
}

ir_tensor_id ir_find(const ir_graph *g, const char *name)
{
    uint64_t id;
    return map_get(&g->names, str_from(name), &id) ? (ir_tensor_id)id : IR_NONE;
}
