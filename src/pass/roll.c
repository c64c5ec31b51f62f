/* roll.c - a loop that a frontend has unrolled becomes one recur, and what is made of each step
 * with its state alone one operator.
 *
 * Input and output: a tensor program.  States are a chain of results of element-wise operators,
 * each of the one before and of entry i of tensors along an axis:
 *
 *   %p4 = mul(slice(%decay) {entry 4}, %s3)    %s4 = add(%p4, slice(%x) {entry 4})
 *   %p5 = mul(slice(%decay) {entry 5}, %s4)    %s5 = add(%p5, slice(%x) {entry 5})      ...
 *   -> %s = recur(%decay, %x, %s0) {expr = "t0 = f32(x0 * x2); f32(t0 + x1)", start = "given"}
 *      %s4 = slice(%s) {entry 4}     %s5 = slice(%s) {entry 5}                          ...
 *
 * and what is collected of the states is computed for all steps at once, by the same bits:
 *
 *   concat(f(%s4, %w, slice(%c) {entry 4}), f(%s5, %w, slice(%c) {entry 5}), ...) {axis = 2}
 *   -> transposed so, and reshaped: f(%s, %w, %c)
 *
 * Idea: two neighbouring states have the same operators; if they match (roll.h), the state in the
 * earlier one's place of the later one's tells which came before, and so on to the first.  What a
 * step computes without its state stays outside: it is lifted, an operator of all steps.  A first
 * step whose state before was zeros is part of the loop although the frontend has written the 0
 * into the expression.
 *
 * A loop of recurrences that need each other's states one way is found in as many rounds.  Called
 * by compile.c before all rules but simplify, so that these see programs of few operators.  Cost:
 * linear in the program for each round. */
#include "pass/map_text.h"
#include "pass/roll.h"

enum { LEAST_STEPS = 4, MOST_ROUNDS = 4, MOST_CONE = 32 };

typedef struct roller {
    rewrite *w;
    bool *is_written; /* [tensors] of roots: an operator writes it in place */
    bool *is_taken;   /* [ops] part of a recurrence */
    uint32_t n_rolled;
} roller;

/* A recurrence: its states, first to last, and what was before the first. */
typedef struct chain {
    VEC(ir_tensor_id) states; /* last to first while they are gathered */
    ir_tensor_id before;      /* IR_NONE: zeros, and states[0] has a text of its own */
    roll_match match;         /* of two states whose texts are alike, the first of them at `at` */
    uint32_t at;
} chain;

static roll_match match_of(const roller *r, ir_tensor_id state, bool from_zero)
{
    return (roll_match){
        .w = r->w, .is_written = r->is_written, .state = state, .from_zero = from_zero};
}

/* ---- states ---- */

/* Does any part of a match follow the steps? */
static bool has_steps(const roll_match *m)
{
    for (uint32_t i = 0; i < m->n_pairs; i++)
        if (m->pairs[i].kind == ROLL_STEP)
            return true;
    return false;
}

/* The state before `last`: the nearest result among those that element-wise operators make it of
 * which matches it; IR_NONE if there is none.  *m is their match. */
static ir_tensor_id find_before(const roller *r, ir_tensor_id last, roll_match *m)
{
    ir_tensor_id cone[MOST_CONE] = {last};
    uint32_t n = 1;
    for (uint32_t i = 0; i < n; i++) {
        const ir_op *op = rewrite_maker(r->w, cone[i]);
        if (i && op->def == rewrite_maker(r->w, last)->def) {
            *m = match_of(r, cone[i], false);
            if (roll_compare(m, cone[i], last) == ROLL_STATE && has_steps(m))
                return cone[i];
        }
        for (uint32_t k = 0; k < op->n_in && n < MOST_CONE; k++) {
            const ir_op *of = rewrite_maker(r->w, op->in[k]);
            if (of && map_text_of(of).n && !r->is_taken[of - r->w->g->ops.at])
                cone[n++] = op->in[k];
        }
    }
    return IR_NONE;
}

/* Is the state before the first what the first step makes of zeros?  Its pairs must be of the kinds
 * that those of the next step are. */
static bool is_from_zero(const roller *r, const chain *c, const roll_match *next)
{
    roll_match m = match_of(r, c->before, true);
    if (roll_compare(&m, c->before, c->states.at[c->states.n - 1]) != ROLL_STATE)
        return false;
    for (uint32_t i = 0; i < m.n_pairs; i++)
        for (uint32_t k = 0; k < next->n_pairs; k++)
            if (next->pairs[k].a == m.pairs[i].b && next->pairs[k].kind != m.pairs[i].kind)
                return false;
    return true;
}

/* Gather the states that end in `last`, if it is one. */
static mpk_status gather(roller *r, ir_tensor_id last, chain *c)
{
    const rewrite *w = r->w;
    arena *a = w->s->scratch;
    roll_match m;
    *c = (chain){0};
    c->before = find_before(r, last, &c->match);
    if (c->before == IR_NONE)
        return MPK_OK;
    PUSH(w->s->cx, a, &c->states, last);
    while (c->before != IR_NONE) {
        const ir_tensor_id state = c->before;
        PUSH(w->s->cx, a, &c->states, state);
        m = match_of(r, c->match.before, false);
        c->before = c->match.before;
        if (!rewrite_maker(r->w, c->before) || roll_compare(&m, c->before, state) != ROLL_STATE ||
            !roll_is_alike(&m, &c->match))
            break;
        c->match = m;
    }
    if (is_from_zero(r, c, &c->match)) {
        PUSH(w->s->cx, a, &c->states, c->before);
        c->before = IR_NONE;
    }
    c->at = c->before == IR_NONE;
    for (size_t i = 0; i < c->states.n / 2; i++) {
        const ir_tensor_id swap = c->states.at[i];
        c->states.at[i] = c->states.at[c->states.n - 1 - i];
        c->states.at[c->states.n - 1 - i] = swap;
    }
    return MPK_OK;
}

/* Is a loop better than its operators?  A short one of whose states only the last is read may be
 * one map (fuse_map). */
static bool is_worth(const roller *r, const chain *c)
{
    const rewrite *w = r->w;
    uint32_t reads = 0, n_steps = 0;
    if (c->states.n < LEAST_STEPS)
        return false;
    const ir_tensor_id state = c->states.at[c->at];
    for (uint32_t i = 0; i < c->match.n_pairs; i++) {
        const ir_op *op = rewrite_maker(r->w, c->match.pairs[i].b);
        n_steps += c->match.pairs[i].kind == ROLL_STEP;
        for (uint32_t k = 0; op && c->match.pairs[i].kind == ROLL_STATE && k < op->n_in; k++)
            reads += op->in[k] == state;
    }
    return w->uses.at[state] > reads || c->states.n * c->match.n_members > FUSE_MEMBERS ||
           c->states.n * n_steps > FUSE_INPUTS;
}

/* The text of a step: the state before is its last operand.  It is written twice, since only then
 * is it known how many there are. */
static bool write_step(const roller *r, const chain *c, map_writer *to)
{
    const roll_match *m = &c->match;
    const ir_op *ops = r->w->g->ops.at;
    if (m->n_members > FUSE_MEMBERS)
        return false;
    ir_tensor_id in[IR_MAX_INPUTS];
    uint32_t n = 0;
    for (int turn = 0; turn < 2; turn++) {
        *to = (map_writer){.w = r->w, .n_in = n};
        memcpy(to->in, in, n * sizeof *in);
        for (uint32_t i = 0; i < m->n_members; i++) {
            uint32_t temps = to->n_temps + map_text_count_temps(&ops[m->members[i]]);
            if (to->n_in + ops[m->members[i]].n_in > IR_MAX_INPUTS || temps > FUSE_TEMPS)
                return false;
            map_text_add(to, &ops[m->members[i]], i + 1 == m->n_members);
        }
        for (uint32_t i = n = 0; i < to->n_in; i++)
            if (to->in[i] != m->before)
                in[n++] = to->in[i];
        in[n++] = m->before;
        if (!turn)
            text_free(&to->out);
    }
    return to->n_in < FUSE_INPUTS && map_text_fits(to);
}

/* Add the recurrence at the place of its first state; *out is its result, or IR_NONE if its record
 * would not give the states' shape. */
static mpk_status add_recur(roller *r, chain *c, const map_writer *to, uint32_t key,
                            ir_tensor_id *out)
{
    rewrite *w = r->w;
    const ir_tensor y = *tensor_of(w, c->states.at[0]);
    const int64_t n = (int64_t)c->states.n;
    ir_tensor_id in[IR_MAX_INPUTS];
    uint32_t n_in = 0;
    for (; n_in + 1 < to->n_in; n_in++)
        TRY(roll_lift_operand(w, &c->match, key, to->in[n_in], c->at, n, y.rank, &in[n_in]));
    if (c->before != IR_NONE)
        in[n_in++] = c->before;
    TRY(rewrite_add(w, key, "recur", n_in, in,
                    (ir_set[]){{.name = "expr", .s = to->out.at},
                               {.name = "dtype", .s = ir_dtype_table[y.dtype].name},
                               {.name = "start", .s = c->before == IR_NONE ? "zero" : "given"},
                               {0}},
                    out));
    const ir_tensor *all = tensor_of(w, *out);
    if (all->rank != y.rank + 1 || all->dims[0] != n ||
        memcmp(all->dims + 1, y.dims, y.rank * sizeof *y.dims) != 0)
        *out = IR_NONE;
    return MPK_OK;
}

/* Each state is an entry of the result. */
static mpk_status replace_states(roller *r, const chain *c, uint32_t key, ir_tensor_id all)
{
    rewrite *w = r->w;
    const ir_tensor y = *tensor_of(w, c->states.at[0]);
    for (size_t i = 0; i < c->states.n; i++) {
        int64_t starts[IR_MAX_RANK] = {(int64_t)i}, stops[IR_MAX_RANK] = {(int64_t)i + 1};
        ir_tensor_id one;
        memcpy(stops + 1, y.dims, y.rank * sizeof *y.dims);
        TRY(rewrite_add(w, key, "slice", 1, &all,
                        (ir_set[]){{.name = "starts", .ints = starts, .n_ints = y.rank + 1},
                                   {.name = "stops", .ints = stops, .n_ints = y.rank + 1},
                                   {0}},
                        &one));
        TRY(rewrite_reshape(w, key, one, y.rank, y.dims, &one));
        rewrite_replace(w, c->states.at[i], one);
    }
    return MPK_OK;
}

/* What is before the first state must be a float that the record takes. */
static bool is_state(const roller *r, const chain *c)
{
    const ir_tensor *y = tensor_of(r->w, c->states.at[0]),
                    *before = c->before == IR_NONE ? y : tensor_of(r->w, c->before);
    return is_small_float(y->dtype) && is_small_float(before->dtype) && before->live == IR_ALL &&
           before->rank <= y->rank;
}

/* The recurrence whose last state is the result of this operator, if it is one. */
static mpk_status roll_states(roller *r, ir_op_id id)
{
    rewrite *w = r->w;
    const ir_op *op = &w->g->ops.at[id];
    chain c;
    map_writer to = {0};
    ir_tensor_id all = IR_NONE;
    if (r->is_taken[id] || !map_text_of(op).n || tensor_of(w, op->out[0])->live != IR_ALL)
        return MPK_OK;
    TRY(gather(r, op->out[0], &c));
    for (size_t i = 0; i < c.states.n; i++)
        r->is_taken[rewrite_maker(r->w, c.states.at[i]) - w->g->ops.at] = true;
    if (!is_worth(r, &c) || !is_state(r, &c))
        return MPK_OK;
    const uint32_t key = w->keys.at[rewrite_maker(r->w, c.states.at[0]) - w->g->ops.at];
    const bool fits = write_step(r, &c, &to);
    const mpk_status status = fits ? add_recur(r, &c, &to, key, &all) : MPK_OK;
    text_free(&to.out);
    TRY(status);
    if (all == IR_NONE)
        return MPK_OK;
    r->n_rolled++;
    return replace_states(r, &c, key, all);
}

/* ---- what is collected of states ---- */

typedef VEC(ir_tensor_id) tensors;

/* The parts of a concatenation, those of its parts that are such along the same axis too. */
static mpk_status list_parts(const roller *r, const ir_op *op, tensors *to)
{
    for (uint32_t i = 0; i < op->n_in; i++) {
        const ir_op *of = rewrite_producer(r->w, op->in[i], "concat");
        if (of && of->attributes[0].i == op->attributes[0].i)
            TRY(list_parts(r, of, to));
        else
            PUSH(r->w->s->cx, r->w->s->scratch, to, op->in[i]);
    }
    return MPK_OK;
}

/* How many parts from `first` on are what neighbouring steps make of their states; *m: of the first
 * two of them. */
static size_t count_alike(const roller *r, const tensors *parts, size_t first, roll_match *m)
{
    roll_match next;
    size_t n = 1;
    *m = next = match_of(r, IR_NONE, false);
    if (first + 1 >= parts->n ||
        roll_compare(m, parts->at[first], parts->at[first + 1]) != ROLL_STEP || !m->reads_recur)
        return 1;
    do
        n++;
    while (first + n < parts->n &&
           roll_compare(&next, parts->at[first + n - 1], parts->at[first + n]) == ROLL_STEP &&
           roll_is_alike(m, &next));
    return n;
}

/* One part that is n of them, [.., n d, ..], from what all steps make together, [n, .., d, ..]. */
static mpk_status add_part(roller *r, roll_match *m, uint32_t key, ir_tensor_id first, int64_t n,
                           uint32_t axis, ir_tensor_id *out)
{
    rewrite *w = r->w;
    const ir_tensor t = *tensor_of(w, first);
    int64_t perm[IR_MAX_RANK], dims[IR_MAX_RANK];
    TRY(roll_lift(w, m, key, first, 0, n, out));
    for (uint32_t i = 0; i < t.rank; i++) {
        perm[i + (i >= axis)] = i + 1;
        dims[i] = i == axis ? n * t.dims[i] : t.dims[i];
    }
    perm[axis] = 0;
    TRY(rewrite_add(w, key, "transpose", 1, out,
                    (ir_set[]){{.name = "perm", .ints = perm, .n_ints = t.rank + 1}, {0}}, out));
    return rewrite_reshape(w, key, *out, t.rank, dims, out);
}

/* A concatenation of what steps make of their states. */
static mpk_status roll_parts(roller *r, ir_op_id id)
{
    rewrite *w = r->w;
    const ir_op op = w->g->ops.at[id];
    const uint32_t key = w->keys.at[id], axis = (uint32_t)op.attributes[0].i;
    ir_tensor_id in[IR_MAX_INPUTS];
    uint32_t n_in = 0;
    tensors parts = {0};
    roll_match m;
    bool rolled = false;
    TRY(list_parts(r, &op, &parts));
    for (size_t i = 0; i < parts.n; n_in++) {
        const size_t n = count_alike(r, &parts, i, &m);
        if (n_in == IR_MAX_INPUTS)
            return MPK_OK;
        in[n_in] = parts.at[i];
        if (n >= LEAST_STEPS)
            TRY(add_part(r, &m, key, parts.at[i], (int64_t)n, axis, &in[n_in]));
        rolled = rolled || n >= LEAST_STEPS;
        i += n >= LEAST_STEPS ? n : 1;
    }
    if (!rolled)
        return MPK_OK;
    if (n_in > 1)
        TRY(rewrite_add(w, key, "concat", n_in, in, (ir_set[]){{.name = "axis", .i = axis}, {0}},
                        &in[0]));
    rewrite_replace(w, op.out[0], in[0]);
    return MPK_OK;
}

/* ---- rounds ---- */

/* is_written: some operator, not a view, has a result that shares the storage of this root. */
static mpk_status begin(roller *r, rewrite *w)
{
    const ir_graph *g = w->g;
    *r = (roller){.w = w};
    NEW(w->s->cx, w->s->scratch, r->is_written, g->tensors.n);
    NEW(w->s->cx, w->s->scratch, r->is_taken, g->ops.n);
    for (size_t i = 0; i < g->ops.n; i++)
        for (uint32_t k = 0; k < g->ops.at[i].n_out; k++) {
            ir_tensor_id out = g->ops.at[i].out[k];
            if (g->tensors.at[out].shares != IR_NONE && !(g->ops.at[i].def->flags & OP_VIEW))
                r->is_written[tg_root(g, out)] = true;
        }
    return MPK_OK;
}

/* One rule for all operators, the last first: a loop is found by its last state, a concatenation
 * before those that are its parts. */
static mpk_status apply(pass_state *s, ir_graph **g, mpk_status (*rule)(roller *, ir_op_id),
                        uint32_t *n_rolled)
{
    rewrite w;
    roller r;
    TRY(rewrite_begin(s, *g, &w));
    TRY(begin(&r, &w));
    for (ir_op_id o = (ir_op_id)w.g->ops.n; o-- > 0;)
        if (rule == roll_states || strcmp(w.g->ops.at[o].def->name, "concat") == 0)
            TRY(rule(&r, o));
    *n_rolled = r.n_rolled;
    return r.n_rolled || rule == roll_parts ? rewrite_end(&w, g) : MPK_OK;
}

/* Only at level PASS_FUSE_FULL.  What is left of the single steps is simplified once more, so that
 * later rules need not expect twins. */
mpk_status pass_roll(pass_state *s, ir_graph **g)
{
    uint32_t n = s->options->fusion == PASS_FUSE_FULL, none;
    bool rolled = false;
    for (int round = 0; n && round < MOST_ROUNDS; round++) {
        TRY(apply(s, g, roll_states, &n));
        rolled = rolled || n;
    }
    if (!rolled)
        return MPK_OK;
    TRY(apply(s, g, roll_parts, &none));
    return pass_simplify(s, g);
}
