/* unpack_weights.c - in steps of many tokens weights in block formats are unpacked once, apart from
 * their products.
 *
 * Input and output: a tensor program of at least pass_options.unpack_tokens tokens.  A product with
 * weights in blocks unpacks them for each lot of 128 tokens; here an operator of its own makes one
 * matrix of bf16 of them, and the product reads that, as it would read a temporary:
 *
 *   %y = linear(%x, %gate, %up) {glu = "silu"}
 *   -> %u = unpack(%gate, %up, _, %b) {paired = 1}       rows of gate and up in turn
 *      %v = whole(%u), %g = slice(%v), %h = slice(%v)    each second row
 *      %z = whole(%x)
 *      %y = linear(%z, %g, %h) {glu = "silu"}
 *
 * Nothing of the step is needed for that, so the order is free, and chosen for memory and time: the
 * weights of a product are unpacked in front of the product before it, where workers that have
 * nothing else to do begin, and after all of the product before that one (%b).  So at most two
 * matrices are alive, and each takes memory that an earlier one has left (plan_memory).
 *
 *   product    a     b     c     d        of each its weights: A, B ...
 *   order      A B a C b D c E d ...      C waits for a, whose matrix A it may overwrite
 *
 * A product waits for its whole matrix (op/whole.c), since tasks that share a tile read the rows of
 * each other's columns (gen/sharing.c); and for all of x, so that one event suffices: with one for
 * each lot of x, every task that unpacks would have to trigger all of them.
 *
 * Products with a norm, a bias or an activation behind them stay as they are, and those that are
 * cut between fewer tokens: their weights are not read by boxes (gen/body_linear_tile.c).
 *
 * Called by compile.c if the target asks for it.  Cost: linear in the program.
 */
#include "pass/fuse.h"

/* Tokens between which products are cut, but those with few columns beside those of x
 * (op/linear.c). */
enum { LOT = 128, NARROW_COLUMNS = 256 };
/* Operands of unpack. */
enum { AFTER = LINEAR_WEIGHTS, UNPACK_INPUTS };

static bool can_be_unpacked(const rewrite *w, ir_tensor_id t)
{
    const ir_tensor *weight = tensor_of(w, t);
    return weight->kind == IR_CONST && is_in_blocks(weight) && lies_dense(weight);
}

static bool is_taken(const rewrite *w, const ir_op *op)
{
    linear_parts p;
    if (strcmp(op->def->name, "linear") != 0)
        return false;
    fuse_read_linear(w, op, &p);
    const ir_tensor *x = tensor_of(w, p.in[X]), *y = tensor_of(w, op->out[0]);
    const bool narrow = y->dims[1] <= NARROW_COLUMNS && y->dims[1] * 8 <= x->dims[1];
    bool fits = x->dtype == IR_BF16 && x->live != IR_ALL && lies_dense(x) &&
                x->dims[0] % LOT == 0 && y->dims[1] % 8 == 0 && !narrow &&
                x->dims[0] >= (int64_t)w->s->options->unpack_tokens && p.in[NORM] == IR_NONE &&
                !p.act.n;
    for (uint32_t i = 0; i < p.n_weights; i++)
        fits = fits && can_be_unpacked(w, p.in[W0 + i]) && p.in[B0 + i] == IR_NONE;
    return fits;
}

/* Every second row of a matrix, from row `first` on. */
static mpk_status add_rows(rewrite *w, uint32_t key, ir_tensor_id t, int64_t first,
                           ir_tensor_id *out)
{
    const int64_t starts[2] = {first, 0}, steps[2] = {2, 1},
                  stops[2] = {tensor_of(w, t)->dims[0], tensor_of(w, t)->dims[1]};
    return rewrite_add(w, key, "slice", 1, &t,
                       (ir_set[]){{.name = "starts", .ints = starts, .n_ints = 2},
                                  {.name = "stops", .ints = stops, .n_ints = 2},
                                  {.name = "steps", .ints = steps, .n_ints = 2},
                                  {0}},
                       out);
}

/* A product and the two before it. */
typedef struct places {
    ir_op_id before;    /* whose place the unpacking precedes */
    ir_tensor_id after; /* the result that it waits for; IR_NONE: nothing */
} places;

/* Replace operator `op`; *out is the result of the new product. */
static mpk_status replace(rewrite *w, ir_op_id op, const places *at, ir_tensor_id *out)
{
    const uint32_t key = w->keys.at[op], early = w->keys.at[at->before] - 1;
    const ir_tensor_id old = w->g->ops.at[op].out[0];
    ir_tensor_id in[UNPACK_INPUTS], made;
    linear_parts p;
    fuse_read_linear(w, &w->g->ops.at[op], &p);
    memcpy(in, p.in + W0, LINEAR_WEIGHTS * sizeof *in);
    in[AFTER] = at->after;
    TRY(rewrite_add(w, early, "unpack", UNPACK_INPUTS, in,
                    (ir_set[]){{.name = "paired", .i = p.glu.n > 0}, {0}}, &made));
    TRY(rewrite_add(w, early, "whole", 1, &made, NULL, &made));
    p.in[W0] = made;
    p.in[W0 + 1] = p.in[W0 + 2] = IR_NONE;
    if (p.glu.n) {
        TRY(add_rows(w, early, made, 0, &p.in[W0]));
        TRY(add_rows(w, early, made, 1, &p.in[W0 + 1]));
    }
    p.n_weights = p.glu.n ? 2 : 1;
    TRY(rewrite_add(w, key, "whole", 1, &p.in[X], NULL, &p.in[X]));
    TRY(fuse_add_linear(w, key, &p, out));
    rewrite_replace(w, old, *out);
    return MPK_OK;
}

mpk_status pass_unpack_weights(pass_state *s, ir_graph **g)
{
    rewrite w;
    const ir_op_id n = (ir_op_id)(*g)->ops.n;
    places at = {IR_NONE, IR_NONE};
    ir_tensor_id last = IR_NONE; /* the result of the product before */
    TRY(rewrite_begin(s, *g, &w));
    for (ir_op_id o = 0; o < n; o++) {
        ir_tensor_id made;
        if (!is_taken(&w, &w.g->ops.at[o]))
            continue;
        at.before = at.before == IR_NONE ? o : at.before;
        TRY(replace(&w, o, &at, &made));
        at = (places){o, last};
        last = made;
    }
    return rewrite_end(&w, g);
}
