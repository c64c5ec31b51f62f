/* super.h - superoptimization of a task (paper §4.2): a region in, the block program that is to
 * run it out.
 *
 * The search lists candidates for the region's shape, drops those that do not fit the target,
 * ranks the rest by a model of cost, and proves the best one equal to the region; if the proof
 * refuses it, the next one is tried.  It is a function of its arguments: the same program on
 * every machine, in every run.  Cost: 1 ms for some hundred candidates, and 20 to 80 ms for a
 * proof, once for each kind of region in a source.
 *
 * Called by gen (choices.c), which knows operators and prints what was chosen.
 */
#ifndef SUPER_SUPER_H
#define SUPER_SUPER_H

#include "super/block.h"

/* What a task may use.  The usual row serves all GPUs that are known: what differs between them is
 * too little to change a rank.  Programs of many convolutions leave more scratch to them. */
typedef struct super_target {
    /* shared memory of a task; registers of a thread that sums may take */
    uint32_t scratch_bytes, registers;
} super_target;
extern const super_target super_target_usual;

/* A product with what follows it: y[m, n] = expression(sum over k of a[m, k] b0[k, n], the same
 * with b1, more ...).  Operands have strides for the axes m, n, k, in this order; a stride of 0:
 * the same for all.  n_b: 1 or 2 factors. expression: of x0 (and x1: the second sum), then of
 * `more`, as the operator map has them; NULL: x0.  made: NULL, or an expression of the sums and
 * of the first n_made of `more`; `expression` is then of its value and of the rest.
 *
 *   gate and up with silu: n_b 2, expression "x0 / (1 + exp(-x0)) * x1"
 *   a bias and a residual: n_b 1, more {bias (strides 0, 1), r}, expression "x0 + x1 + x2" */
enum { SUPER_M, SUPER_N, SUPER_K, SUPER_MOST_MORE = 10 };
typedef struct super_product {
    int64_t rows, columns, depth;
    uint32_t n_b, n_more;
    block_operand a, b[2], more[SUPER_MOST_MORE], y;
    const char *made, *expression;
    uint32_t n_made;
    /* of the task that takes longest: of a matrix, and how many matrices */
    int64_t box_rows, box_columns, boxes;
} super_product;

/* What was chosen, and what the search looked at. */
typedef struct super_choice {
    block_program program;
    uint32_t n_listed, n_fitting,
        n_refused; /* candidates; of these, that fit the target; of these, refused by a proof */
    double cycles; /* of the longest task, by the model */
} super_choice;

/* Does super have programs for these dtypes?  Floats of at most 32 bits. */
bool super_accepts_product(const super_product *s);
/* Does an asynchronous copy bring this tile, as far as strides and dtypes tell?  If not, threads
 * load entry by entry and convert. */
bool super_is_copied(const block_program *p, int8_t tile, const block_operand *o);
/* The definition: every axis whole. */
void super_region_of_product(const super_product *s, block_program *out);
/* MPK_EVERIFY: no candidate is right, which is a fault of super itself. */
mpk_status super_choose_product(mpk_context *cx, const super_product *s, const super_target *t,
                                super_choice *out);

/* Attention of a head: y[m, e] = sum over s of weight[m, s] v[s, e], the weights a softmax over
 * s of `scores`, an expression of x0, the sum over d of q[m, d] k[s, d], and with a mask of x1,
 * mask[m, s].  Columns after the row (causal), or `window` or more before it, are not seen, and
 * rows that see nothing are zeros.  Strides for m, s, d, e. */
typedef struct super_attention {
    int64_t rows, keys, width, values, window; /* window 0: none */
    bool causal, has_mask;
    block_operand q, k, v, mask, y;
    const char *scores;
    /* where scores are a positive number times the product, and there is no mask: "exp(x0 c - x1)",
     * the weight of a product x0 by x1, the largest product times c; "x0 c"; and
     * "exp((x0 - x1) c)"; else NULL, and candidates scale the scores first */
    const char *weights, *scaled, *apart;
    /* of the task that takes longest: rows of a head, and how many heads */
    int64_t box_rows, boxes;
    /* where products of warpgroups are at hand: the shared memory that a task may have then */
    uint32_t group_bytes;
} super_attention;
/* Are there programs for it?  f16 and bf16, heads of up to 128 entries. */
bool super_accepts_attention(const super_attention *s);
/* The definition, and the search, as for products. */
void super_region_of_attention(const super_attention *s, block_program *out);
mpk_status super_choose_attention(mpk_context *cx, const super_attention *s, const super_target *t,
                                  super_choice *out);

/* Prove that a candidate computes what the region says: both run over a box that is not whole
 * and has a full tile and a tail of each axis, with enough iterations that every copy of a tile is
 * used again.  Two programs that differ agree with a probability of at most 2^-28 for each entry
 * that is stored if they are products (docs/superoptimizer.md).  MPK_EVERIFY, with what is
 * wrong. */
mpk_status super_prove(mpk_context *cx, const block_program *region, const block_program *candidate,
                       uint64_t seed);

#endif
