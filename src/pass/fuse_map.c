/* fuse_map.c - chains and small graphs of element-wise operators become one map.
 *
 * Input and output: a tensor program.  An operator is merged into the map of its readers if all of
 * them are part of it and its result has the shape of the map's.  Within the expression its
 * value is rounded to its dtype, so the result has the bits of the single operators:
 *
 *   %a = silu(%gate) : bf16[4, 64]
 *   %b = mul(%x, %a) : bf16[4, 64]
 *   -> %b = map(%gate, %x) {expr = "t0 = bf16(x0 / (1 + exp(-x0))); bf16(x1 * t0)", dtype = "bf16"}
 *
 * An operator that reads storage written in place by any operator is not merged, because its
 * reader may come after that write.  With options->relaxed, which a GPU has, a map follows the
 * convolution or the reduction that makes one of its operands, and then a reduction takes in the
 * operator that makes what it reduces; the bits stay the same:
 *
 *   map(conv(x, w, bias), a)     -> conv(x, w, bias, a) {expr = "x0 + x1"}
 *   map(reduce(mul(a, b)), c)    -> reduce(a, b, c) {expr = "bf16(x0 * x1)", inputs = 2,
 *                                                    then = "bf16(x0 + x1)"}
 *
 * and a recurrence takes in the operators that make its operands for it alone:
 *
 *   recur(map(a, b), c)          -> recur(a, b, c) {expr = "t0 = f32(exp(x0 * x1)); ..."}
 *
 * With relaxed, what is small is computed again where that saves a boundary between operators: a
 * map of fewer elements becomes part of the one that spreads it, and what a reduction reduces is
 * made of what others read too:
 *
 *   map(a, reshape(silu(b)))     -> map(a, reshape(b)) {expr = "... x1 / (1 + exp(-x1)) ..."}
 *   h = map(a, b), reduce(mul(h, c))  -> h, reduce(a, b, c) {expr = "t0 = ...; bf16(t0 * x2)"}
 *
 * Idea: walk from the last operator to the first; each operator that is not yet merged gathers
 * its producers, and theirs, within the limits of an expression.  Then the text is written,
 * producers first, with operands and temporaries renamed.  The text is parsed again by the
 * record of map (op/map_compile.c), which the limits below keep within what it takes.  Called by
 * compile.c, last of the rewriting passes: it takes what the rules before it left.  Cost: linear
 * in the program.
 */
#include "op/map_program.h"
#include "pass/fuse.h"
#include "pass/map_text.h"

/* Of conv: its own operands (x, w, bias), and the most operands of the expression after it. */
enum { CONV_INPUTS = 3, CONV_MORE = 9 };
/* Elements that a GPU computes in less time than a boundary between two operators takes. */
enum { SMALL_ELEMENTS = 1 << 18 };

typedef struct map_fuser {
    rewrite *w;
    bool *is_written; /* [tensors] of roots: an operator writes it in place */
    bool *is_taken;   /* [ops] part of the map of its reader */
} map_fuser;

/* The operators of one future map, and what its expression will need at most. */
typedef struct map_group {
    /* n: members; n_steps, n_temps: as in the limits above */
    ir_op_id members[FUSE_MEMBERS];
    uint32_t n, n_steps, n_temps;
    uint32_t n_in; /* operands from outside the group, counted once per read */
} map_group;

/* Not a block format: expressions work on single elements. */
static bool is_plain(ir_dtype dtype)
{
    return ir_dtype_table[dtype].block_elements == 1;
}

/* The number of steps of an operator's compiled expression, with one for rounding its result; 0
 * if the operator cannot be part of a map. */
static uint32_t count_steps(const map_fuser *f, const ir_op *op)
{
    map_program program;
    ir_dtype dtypes[IR_MAX_INPUTS];
    str expression = map_text_of(op);
    if (!expression.n)
        return 0;
    for (uint32_t i = 0; i < op->n_in; i++) {
        dtypes[i] = f->w->g->tensors.at[op->in[i]].dtype;
        if (!is_plain(dtypes[i]))
            return 0;
    }
    if (map_compile(NULL, expression, op->n_in, dtypes, &program) != MPK_OK)
        return 0;
    return program.n + 1; /* and the rounding */
}

/* ---- which operators ---- */

static bool same_shape(const ir_tensor *a, const ir_tensor *b)
{
    return a->live == b->live && same_extents(a, b);
}

/* May an operator that spreads x over y compute x for each element of y again? */
static bool is_small_spread(const map_fuser *f, const ir_tensor *x, const ir_tensor *y)
{
    bool spread = f->w->s->options->relaxed && x->live == IR_ALL && y->live == IR_ALL &&
                  x->rank <= y->rank && ir_elements(y) <= SMALL_ELEMENTS;
    for (uint32_t i = 1; spread && i <= x->rank; i++)
        spread = x->dims[x->rank - i] == 1 || x->dims[x->rank - i] == y->dims[y->rank - i];
    return spread;
}

/* How many operands of an operator are t: a square reads one twice. */
static uint32_t count_operand(const ir_op *op, ir_tensor_id t)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < op->n_in; i++)
        n += op->in[i] == t;
    return n;
}

/* Does an operator read storage that some operator writes in place?  Then it cannot be computed
 * later. */
static bool reads_written(const map_fuser *f, const ir_op *op)
{
    bool reads = false;
    for (uint32_t i = 0; i < op->n_in && !reads; i++)
        reads = op->in[i] != IR_NONE && f->is_written[tg_root(f->w->g, op->in[i])];
    return reads;
}

/* Reads of t by all members together. */
static uint32_t count_reads(const map_fuser *f, const map_group *group, ir_tensor_id t)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < group->n; i++)
        n += count_operand(&f->w->g->ops.at[group->members[i]], t);
    return n;
}

/* The operator that makes t, an operand of a member, if it may become a member too; NULL
 * otherwise.  All reads of t must be by members, so that t needs no storage any more. */
static const ir_op *find_member(const map_fuser *f, const map_group *group, ir_tensor_id t)
{
    const ir_graph *g = f->w->g;
    const ir_tensor *made = &g->tensors.at[t];
    if (made->producer == IR_NONE || made->shares != IR_NONE || f->w->is_output[t] ||
        f->is_taken[made->producer])
        return NULL;
    const ir_op *op = &g->ops.at[made->producer];
    const ir_tensor *y = &g->tensors.at[g->ops.at[group->members[0]].out[0]];
    if (!map_text_of(op).n || f->w->uses.at[t] != count_reads(f, group, t) ||
        !(same_shape(made, y) || is_small_spread(f, made, y)))
        return NULL;
    return reads_written(f, op) ? NULL : op;
}

/* Add the producer of operand t if it may be a member and the limits allow it. */
static void take_member(map_fuser *f, map_group *group, ir_tensor_id t)
{
    const ir_op *op = group->n < FUSE_MEMBERS ? find_member(f, group, t) : NULL;
    if (!op)
        return;
    uint32_t steps = count_steps(f, op), temps = map_text_count_temps(op);
    uint32_t n_in = group->n_in + op->n_in - count_reads(f, group, t);
    if (!steps || group->n_steps + steps > FUSE_STEPS || group->n_temps + temps > FUSE_TEMPS ||
        n_in > FUSE_INPUTS)
        return;
    group->n_steps += steps;
    group->n_temps += temps;
    group->n_in = n_in;
    group->members[group->n++] = f->w->g->tensors.at[t].producer;
    f->is_taken[f->w->g->tensors.at[t].producer] = true;
}

/* Fill the group that ends in operator `first`: breadth first, the producers of its members, and
 * theirs, as far as the limits allow; again after each new member, which may have been the last
 * reader from outside of an older one's operand.  A producer beyond a limit stays an operator of
 * its own, and so may begin a group of its own later. */
static void gather(map_fuser *f, ir_op_id first, map_group *group)
{
    const ir_graph *g = f->w->g;
    const ir_op *root = &g->ops.at[first];
    *group = (map_group){.members = {first}, .n = 1, .n_in = root->n_in};
    group->n_steps = count_steps(f, root);
    group->n_temps = map_text_count_temps(root);
    for (uint32_t before = 0; group->n_steps && before < group->n;) {
        before = group->n;
        for (uint32_t m = 0; m < group->n; m++) {
            const ir_op *reader = &g->ops.at[group->members[m]];
            for (uint32_t i = 0; i < reader->n_in; i++)
                take_member(f, group, reader->in[i]);
        }
    }
}

/* Sort members by number, so that each comes after its producers: operators stand in an order in
 * which they may run.  Insertion sort, of at most FUSE_MEMBERS. */
static void sort_members(map_group *group)
{
    for (uint32_t i = 1; i < group->n; i++)
        for (uint32_t k = i; k > 0 && group->members[k - 1] > group->members[k]; k--) {
            ir_op_id swap = group->members[k];
            group->members[k] = group->members[k - 1];
            group->members[k - 1] = swap;
        }
}

/* ---- maps after convolutions and reductions ---- */

/* Has t one entry for all places of y, such as a bias per channel, or one for each place, as conv
 * wants it?  last: y has its channels in the last axis, else in the second. */
static bool is_one_or_all(const ir_tensor *t, const ir_tensor *y, bool last)
{
    bool is_spread = true, is_whole = t->rank == y->rank;
    for (uint32_t i = 1; i <= t->rank; i++) {
        const int64_t n = t->dims[t->rank - i], all = y->dims[y->rank - i];
        const bool is_place = last ? i > 1 && i < y->rank : i + 2 <= y->rank;
        is_spread = is_spread && (n == 1 || !is_place);
        is_whole = is_whole && (n == all || !is_place);
    }
    return is_spread || is_whole;
}

/* Can a group follow this convolution or reduction, with its other operands?  y: the group's
 * result. */
static bool takes_group(const map_fuser *f, const ir_op *op, const map_writer *to,
                        const ir_tensor *y)
{
    const rewrite *w = f->w;
    const bool is_conv = strcmp(op->def->name, "conv") == 0;
    const uint32_t most = is_conv ? CONV_MORE : FUSE_INPUTS - op->n_in;
    if (rewrite_attribute(op, is_conv ? "expr" : "then")->s.n || to->n_in > most + 1)
        return false;
    for (uint32_t i = 0; i < to->n_in; i++) {
        const ir_tensor *t = &w->g->tensors.at[to->in[i]];
        if (!is_small_float(t->dtype) || t->live != IR_ALL ||
            (is_conv && !is_one_or_all(t, y, rewrite_attribute(op, "last")->i)))
            return false;
    }
    if (reads_written(f, op))
        return false;
    return is_conv || (is_small_float(y->dtype) && w->g->tensors.at[op->in[0]].live == IR_ALL);
}

/* Is t the result of a convolution or a reduction that the group can follow, `to` being the group's
 * text?  It must have no expression yet, only readers within the group, and operands that nothing
 * writes in place, since they are read later now. */
static bool may_stand_behind(const map_fuser *f, const map_group *group, const map_writer *to,
                             ir_tensor_id t)
{
    const rewrite *w = f->w;
    const ir_op *op = rewrite_producer(w, t, "conv");
    const ir_tensor *made = &w->g->tensors.at[t],
                    *y = &w->g->tensors.at[w->g->ops.at[group->members[group->n - 1]].out[0]];
    op = op ? op : rewrite_producer(w, t, "reduce");
    return op && !w->is_output[t] && made->dtype == y->dtype && same_shape(made, y) &&
           w->uses.at[t] == count_reads(f, group, t) && takes_group(f, op, to, y);
}

/* The last of the group's operands that is such a result, or IR_NONE; always IR_NONE unless
 * relaxed. */
static ir_tensor_id find_before(const map_fuser *f, const map_group *group, const map_writer *to)
{
    for (uint32_t i = to->n_in; i-- > 0 && f->w->s->options->relaxed;)
        if (may_stand_behind(f, group, to, to->in[i]))
            return to->in[i];
    return IR_NONE;
}

/* ---- replacements ---- */

/* Write the text of the group.  Members are written producers first, which is their order;
 * operand `first`, if any, becomes x0, which is how conv and reduce name their own results. */
static void write_group(map_fuser *f, const map_group *group, ir_tensor_id first, map_writer *to)
{
    *to = (map_writer){.w = f->w};
    if (first != IR_NONE)
        to->in[to->n_in++] = first;
    for (uint32_t i = 0; i < group->n; i++)
        map_text_add(to, &f->w->g->ops.at[group->members[i]], i + 1 == group->n);
}

/* A map in the place of the group's last operator; *out is its result. */
static mpk_status add_map(map_fuser *f, const map_group *group, const map_writer *to,
                          ir_tensor_id *out)
{
    rewrite *w = f->w;
    const ir_op_id root = group->members[group->n - 1];
    const ir_tensor *y = &w->g->tensors.at[w->g->ops.at[root].out[0]];
    ir_set set[] = {{.name = "expr", .s = to->out.at},
                    {.name = "dtype", .s = ir_dtype_table[y->dtype].name},
                    {.name = NULL}};
    return rewrite_add(w, w->keys.at[root], "map", to->n_in, to->in, set, out);
}

/* Add `op` again in the place of another operator, with these operands and `n` attributes set. */
static mpk_status add_again(map_fuser *f, const ir_op *op, ir_op_id place, uint32_t n_in,
                            const ir_tensor_id *in, uint32_t n, const ir_set *set,
                            ir_tensor_id *out)
{
    rewrite *w = f->w;
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    TRY(rewrite_copy_attributes(w, op, sets));
    for (uint32_t i = 0; sets[i].name; i++)
        for (uint32_t k = 0; k < n; k++)
            if (strcmp(sets[i].name, set[k].name) == 0)
                sets[i] = set[k];
    return rewrite_add(w, w->keys.at[place], op->def->name, n_in, in, sets, out);
}

/* The convolution or reduction that makes x0 again, with the group's expression and its other
 * operands; places of conv's operands are fixed. */
static mpk_status add_behind(map_fuser *f, const map_group *group, const map_writer *to,
                             ir_tensor_id *out)
{
    const rewrite *w = f->w;
    const ir_op *conv = rewrite_producer(w, to->in[0], "conv"),
                *op = conv ? conv : rewrite_producer(w, to->in[0], "reduce");
    const uint32_t own = conv ? CONV_INPUTS : op->n_in;
    ir_tensor_id in[IR_MAX_INPUTS];
    uint32_t n = 0;
    for (; n < own; n++)
        in[n] = rewrite_input(w, op, n);
    for (uint32_t i = 1; i < to->n_in; i++)
        in[n++] = to->in[i];
    while (conv && n < CONV_INPUTS + CONV_MORE)
        in[n++] = IR_NONE;
    const ir_set set = {.name = conv ? "expr" : "then", .s = to->out.at};
    return add_again(f, op, group->members[group->n - 1], n, in, 1, &set, out);
}

/* Replace one group.  The text is written twice if it can stand behind an operand: that must be
 * x0.  If the text or the number of operands is beyond what an operator may have, or the group
 * is a single operator, all stays as it was. */
static mpk_status replace_group(map_fuser *f, map_group *group)
{
    map_writer to;
    mpk_status status = MPK_OK;
    sort_members(group);
    const ir_tensor_id old = f->w->g->ops.at[group->members[group->n - 1]].out[0];
    write_group(f, group, IR_NONE, &to);
    const ir_tensor_id before = map_text_fits(&to) ? find_before(f, group, &to) : IR_NONE;
    ir_tensor_id made = IR_NONE;
    if (before != IR_NONE) {
        text_free(&to.out);
        write_group(f, group, before, &to);
        status = map_text_fits(&to) ? add_behind(f, group, &to, &made) : MPK_OK;
    } else if (group->n > 1 && map_text_fits(&to)) {
        status = add_map(f, group, &to, &made);
    }
    if (status == MPK_OK && made != IR_NONE)
        rewrite_replace(f->w, old, made);
    text_free(&to.out);
    return status;
}

/* ---- what is reduced ---- */

/* Would a reduction have as many workers as the operator that makes what it reduces?  x and y: its
 * operand and its result.  A worker reads a few thousand entries in the time that a boundary
 * between two operators takes. */
static bool has_lines_for_all(const pass_options *o, const ir_tensor *x, const ir_tensor *y)
{
    enum { FEW_ENTRIES = 1 << 13 };
    const int64_t workers = o->n_workers, lines = ir_elements(y);
    return lines >= workers || ir_elements(x) <= FEW_ENTRIES * lines;
}

/* Can a reduction compute an operator's value where it reduces it?  It then reads the operands
 * later, by rows. */
static bool is_term(const map_fuser *f, const ir_op *op)
{
    const ir_graph *g = f->w->g;
    bool is = count_steps(f, op) > 0 && !reads_written(f, op);
    for (uint32_t i = 0; is && i < op->n_in; i++)
        is = lies_by_rows(&g->tensors.at[op->in[i]]) && g->tensors.at[op->in[i]].live == IR_ALL;
    return is;
}

/* The operator that makes what `reduce` reduces, if it can be taken in; NULL otherwise. */
static const ir_op *find_terms(const map_fuser *f, const ir_op *reduce)
{
    static const char *const kinds[] = {"sum", "mean", "max", "min", "prod"};
    const ir_graph *g = f->w->g;
    const ir_tensor_id t = reduce->in[0];
    const ir_tensor *x = &g->tensors.at[t], *y = &g->tensors.at[reduce->out[0]];
    const str kind = rewrite_attribute(reduce, "kind")->s;
    bool takes = false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        takes = takes || str_is(kind, kinds[i]);
    if (!takes || rewrite_attribute(reduce, "expr")->s.n || x->producer == IR_NONE ||
        x->shares != IR_NONE || f->w->is_output[t] || f->w->uses.at[t] != 1 || x->live != IR_ALL ||
        !is_small_float(x->dtype) || !is_small_float(y->dtype) ||
        !has_lines_for_all(f->w->s->options, x, y))
        return NULL;
    const ir_op *op = &g->ops.at[x->producer];
    return is_term(f, op) && op->n_in + reduce->n_in - 1 <= FUSE_INPUTS ? op : NULL;
}

/* Can a reduction of x compute again what makes t? */
static bool may_repeat(const map_fuser *f, ir_tensor_id t, const ir_tensor *x)
{
    const ir_graph *g = f->w->g;
    const ir_tensor *made = &g->tensors.at[t];
    return made->producer != IR_NONE && made->shares == IR_NONE && same_shape(made, x) &&
           is_small_float(made->dtype) && is_term(f, &g->ops.at[made->producer]);
}

/* What a reduction takes in: the operator that makes what it reduces, and if that is small also the
 * operators that make its operands, even if others read these too. */
static void gather_terms(const map_fuser *f, const ir_op *reduce, const ir_op *op, map_group *group)
{
    const ir_graph *g = f->w->g;
    const ir_tensor *x = &g->tensors.at[op->out[0]];
    *group = (map_group){.members = {(ir_op_id)(op - g->ops.at)}, .n = 1, .n_in = op->n_in};
    group->n_steps = count_steps(f, op);
    group->n_temps = map_text_count_temps(op);
    for (uint32_t i = 0; i < op->n_in && ir_elements(x) <= SMALL_ELEMENTS; i++) {
        if (!may_repeat(f, op->in[i], x) || count_operand(op, op->in[i]) > 1)
            continue;
        const ir_op *more = &g->ops.at[g->tensors.at[op->in[i]].producer];
        const uint32_t n_in = group->n_in + more->n_in - 1, steps = count_steps(f, more),
                       temps = map_text_count_temps(more);
        if (n_in + reduce->n_in - 1 > FUSE_INPUTS || group->n_steps + steps > FUSE_STEPS ||
            group->n_temps + temps > FUSE_TEMPS)
            continue;
        group->n_in = n_in;
        group->n_steps += steps;
        group->n_temps += temps;
        group->members[group->n++] = g->tensors.at[op->in[i]].producer;
    }
    sort_members(group);
}

/* Put the expression of what it reduces into a reduction. */
static mpk_status take_in_terms(map_fuser *f, ir_op_id id)
{
    const ir_graph *g = f->w->g;
    const ir_op *reduce = &g->ops.at[id], *op = find_terms(f, reduce);
    map_writer to = {0};
    map_group group;
    ir_tensor_id in[IR_MAX_INPUTS], out;
    if (!op)
        return MPK_OK;
    const ir_tensor_id old = reduce->out[0];
    gather_terms(f, reduce, op, &group);
    write_group(f, &group, IR_NONE, &to);
    mpk_status status = MPK_OK;
    if (map_text_fits(&to)) {
        const uint32_t n = to.n_in + reduce->n_in - 1;
        memcpy(in, to.in, to.n_in * sizeof *in);
        memcpy(in + to.n_in, reduce->in + 1, (reduce->n_in - 1) * sizeof *in);
        const ir_set set[] = {
            {.name = "expr", .s = to.out.at},
            {.name = "inputs", .i = to.n_in},
            {.name = "dtype", .s = ir_dtype_table[g->tensors.at[old].dtype].name}};
        status = add_again(f, reduce, id, n, in, 3, set, &out);
        if (status == MPK_OK)
            rewrite_replace(f->w, old, out);
    }
    text_free(&to.out);
    return status;
}

/* ---- what steps of a recurrence read ---- */

/* The operator that makes operand i of a recurrence, if it can be taken in; NULL otherwise.  It is
 * computed as often as before: its result has the shape of the states. */
static const ir_op *find_step(const map_fuser *f, const ir_op *recur, uint32_t i)
{
    const ir_graph *g = f->w->g;
    const ir_tensor *x = &g->tensors.at[recur->in[i]], *y = &g->tensors.at[recur->out[0]];
    const bool first = str_is(rewrite_attribute(recur, "start")->s, "first");
    const ir_op *op = x->producer == IR_NONE ? NULL : &g->ops.at[x->producer];
    if ((first && i == 0) || !op || !count_steps(f, op) || x->shares != IR_NONE ||
        f->w->is_output[recur->in[i]] || f->w->uses.at[recur->in[i]] != 1 || !same_shape(x, y))
        return NULL;
    for (uint32_t k = 0; k < op->n_in; k++)
        if (g->tensors.at[op->in[k]].live != IR_ALL)
            return NULL;
    return reads_written(f, op) ? NULL : op;
}

/* Write the text of a recurrence with all operators that it takes in, if in[n] are its first
 * operands; its own result stands for the value before.  False: it takes in none, or too much. */
static bool write_steps(const map_fuser *f, const ir_op *recur, const ir_tensor_id *in, uint32_t n,
                        map_writer *to)
{
    const bool given = str_is(rewrite_attribute(recur, "start")->s, "given");
    uint32_t n_taken = 0, n_temps = 0, n_steps = 0, n_in = n + recur->n_in;
    ir_op step = *recur;
    step.def = &op_map;
    step.n_in = recur->n_in + !given;
    step.in[step.n_in - 1] = recur->out[0];
    *to = (map_writer){.w = f->w, .n_in = n};
    memcpy(to->in, in, n * sizeof *in);
    for (uint32_t i = 0; i < recur->n_in - given; i++) {
        const ir_op *op = find_step(f, recur, i);
        if (!op)
            continue;
        n_taken++;
        n_in += op->n_in;
        n_temps += map_text_count_temps(op);
        n_steps += count_steps(f, op);
        if (n_in >= IR_MAX_INPUTS || n_steps > FUSE_STEPS / 2 || n_taken == FUSE_MEMBERS ||
            n_temps + map_text_count_temps(&step) > FUSE_TEMPS)
            return false;
        map_text_add(to, op, false);
    }
    map_text_add(to, &step, true);
    return n_taken && map_text_fits(to);
}

/* Put what makes the operands of a recurrence into its expression.  The text is written twice: the
 * value before is the last operand. */
static mpk_status take_in_steps(map_fuser *f, ir_op_id id)
{
    const ir_op recur = f->w->g->ops.at[id];
    const bool given = str_is(rewrite_attribute(&recur, "start")->s, "given");
    const bool first = str_is(rewrite_attribute(&recur, "start")->s, "first");
    ir_tensor_id in[IR_MAX_INPUTS] = {recur.in[0]}, out;
    map_writer to;
    uint32_t n = first;
    bool fits = write_steps(f, &recur, in, n, &to);
    for (uint32_t i = n; fits && i < to.n_in; i++)
        if (to.in[i] != recur.out[0])
            in[n++] = to.in[i];
    fits = fits && n + 1 < FUSE_INPUTS;
    text_free(&to.out);
    if (!fits)
        return MPK_OK;
    in[n] = recur.out[0];
    mpk_status status = MPK_OK;
    if (write_steps(f, &recur, in, n + 1, &to)) {
        if (given)
            in[n] = recur.in[recur.n_in - 1];
        const ir_set set = {.name = "expr", .s = to.out.at};
        status = add_again(f, &recur, id, n + given, in, 1, &set, &out);
        if (status == MPK_OK)
            rewrite_replace(f->w, recur.out[0], out);
    }
    text_free(&to.out);
    return status;
}

/* is_written: some operator, not a view, has a result that shares the storage of this root. */
static mpk_status begin(map_fuser *f, rewrite *w)
{
    const ir_graph *g = w->g;
    f->w = w;
    NEW(w->s->cx, w->s->scratch, f->is_written, g->tensors.n);
    NEW(w->s->cx, w->s->scratch, f->is_taken, g->ops.n);
    for (size_t i = 0; i < g->ops.n; i++)
        for (uint32_t k = 0; k < g->ops.at[i].n_out; k++) {
            ir_tensor_id out = g->ops.at[i].out[k];
            if (g->tensors.at[out].shares != IR_NONE && !(g->ops.at[i].def->flags & OP_VIEW))
                f->is_written[tg_root(g, out)] = true;
        }
    return MPK_OK;
}

/* ---- maps before views ---- */

/* The reshape of a small map that only adds axes of one element, or drops some: its operator and
 * the map; NULL: it is none. */
static const ir_op *find_lifted(const map_fuser *f, const ir_op *view)
{
    const ir_graph *g = f->w->g;
    if (strcmp(view->def->name, "reshape") != 0 || f->w->uses.at[view->in[0]] != 1)
        return NULL;
    const ir_tensor *x = &g->tensors.at[view->in[0]], *y = &g->tensors.at[view->out[0]];
    const ir_op *op = rewrite_maker(f->w, view->in[0]);
    uint32_t k = 0;
    for (uint32_t i = 0; i < y->rank; i++) { /* the axes of more than one element, in order */
        if (y->dims[i] == 1)
            continue;
        while (k < x->rank && x->dims[k] == 1)
            k++;
        if (k == x->rank || x->dims[k++] != y->dims[i])
            return NULL;
    }
    if (!op || !count_steps(f, op) || f->w->is_output[view->in[0]] || x->live != IR_ALL ||
        ir_elements(x) > SMALL_ELEMENTS)
        return NULL;
    for (uint32_t i = 0; i < op->n_in; i++)
        if (!same_shape(x, &g->tensors.at[op->in[i]]))
            return NULL;
    return reads_written(f, op) ? NULL : op;
}

/* reshape(map(a, b)) -> map(reshape(a), reshape(b)). */
static mpk_status lift(map_fuser *f, ir_op_id id)
{
    const ir_op view = f->w->g->ops.at[id], *found = find_lifted(f, &view);
    ir_tensor_id in[IR_MAX_INPUTS], out;
    if (!found)
        return MPK_OK;
    const ir_op op = *found;
    const ir_tensor y = f->w->g->tensors.at[view.out[0]];
    for (uint32_t i = 0; i < op.n_in; i++)
        TRY(rewrite_reshape(f->w, f->w->keys.at[id], rewrite_input(f->w, &op, i), y.rank, y.dims,
                            &in[i]));
    TRY(add_again(f, &op, id, op.n_in, in, 0, NULL, &out));
    rewrite_replace(f->w, view.out[0], out);
    return MPK_OK;
}

/* *lifted: there was one. */
static mpk_status lift_maps(pass_state *s, ir_graph **g, bool *lifted)
{
    rewrite w;
    map_fuser f;
    TRY(rewrite_begin(s, *g, &w));
    TRY(begin(&f, &w));
    const ir_op_id n = (ir_op_id)w.g->ops.n;
    for (ir_op_id o = 0; o < n; o++)
        TRY(lift(&f, o));
    *lifted = w.n_made > 0;
    return rewrite_end(&w, g);
}

/* ---- the pass ---- */

/* From the last operator to the first: a reader takes its producers before these could start
 * groups of their own. */
static mpk_status make_maps(pass_state *s, ir_graph **g)
{
    rewrite w;
    map_fuser f;
    map_group group;
    TRY(rewrite_begin(s, *g, &w));
    TRY(begin(&f, &w));
    for (ir_op_id o = (ir_op_id)w.g->ops.n; o-- > 0;) {
        if (f.is_taken[o] || !map_text_of(&w.g->ops.at[o]).n)
            continue;
        gather(&f, o, &group);
        TRY(replace_group(&f, &group));
    }
    return rewrite_end(&w, g);
}

/* Once maps are whole, what reductions and steps of recurrences are made of is one operator at
 * most. */
static mpk_status take_in_operands(pass_state *s, ir_graph **g)
{
    rewrite w;
    map_fuser f;
    TRY(rewrite_begin(s, *g, &w));
    TRY(begin(&f, &w));
    const ir_op_id n = (ir_op_id)w.g->ops.n;
    for (ir_op_id o = 0; o < n; o++)
        if (strcmp(w.g->ops.at[o].def->name, "reduce") == 0)
            TRY(take_in_terms(&f, o));
        else if (strcmp(w.g->ops.at[o].def->name, "recur") == 0)
            TRY(take_in_steps(&f, o));
    return rewrite_end(&w, g);
}

/* Only at level PASS_FUSE_FULL. */
mpk_status pass_fuse_map(pass_state *s, ir_graph **g)
{
    if (s->options->fusion != PASS_FUSE_FULL)
        return MPK_OK;
    TRY(make_maps(s, g));
    if (!s->options->relaxed)
        return MPK_OK;
    bool lifted;
    TRY(lift_maps(s, g, &lifted)); /* these are whole maps */
    if (lifted)
        TRY(make_maps(s, g));
    return take_in_operands(s, g);
}
