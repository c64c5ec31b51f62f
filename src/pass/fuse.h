/* fuse.h - what the rules of fuse_ops and recognise share: common conditions, and the parts of a
 * linear.
 *
 * Each group of rules has a file of its own, fuse_*.c or recognise_attention.c.  A rule is a
 * function apply_NAME(w, op) that looks whether `op` is the operator at which its pattern is
 * found (mostly the last one), walks back to the producers of its operands, checks its
 * conditions, adds the replacement at the place of `op` and substitutes the results.  A rule
 * that does not match returns MPK_OK and changes nothing.
 */
#ifndef PASS_FUSE_H
#define PASS_FUSE_H

#include "pass/rewrite.h"
#include "shape/linear_stream_shape.h"

/* Operands of linear, by index: x, up to LINEAR_WEIGHTS weights, as many biases, the norm's
 * weight, the residual, the norm's bias. */
enum {
    X,
    W0,
    B0 = 4,
    NORM = 7,
    RESIDUAL = 8,
    NORM_BIAS = 9,
    LINEAR_INPUTS = 10,
    LINEAR_WEIGHTS = 3
};
/* Operands of rms_norm after x; of layer_norm the second is its bias. */
enum { NORM_WEIGHT = 1, NORM_RESIDUAL, NORM_GATE, NORM_INPUTS };

static inline const ir_tensor *tensor_of(const rewrite *w, ir_tensor_id t)
{
    return &w->g->tensors.at[t];
}

/* Equal rank and dims. */
static inline bool same_extents(const ir_tensor *a, const ir_tensor *b)
{
    return a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof *a->dims) == 0;
}

/* Equal dtype, shape and liveness: one tensor can take the place of the other. */
static inline bool same_dims(const ir_tensor *a, const ir_tensor *b)
{
    return a->dtype == b->dtype && a->live == b->live && same_extents(a, b);
}

/* A weight, or an absent operand: its value is the same wherever an operator stands in the
 * program. */
static inline bool is_const(const rewrite *w, ir_tensor_id t)
{
    return t == IR_NONE || tensor_of(w, t)->kind == IR_CONST;
}

/* The dtypes that norms, attention and activations are rounded to. */
static inline bool is_small_float(ir_dtype dtype)
{
    return dtype == IR_F32 || dtype == IR_F16 || dtype == IR_BF16;
}

/* Are rows of t neighbours in memory, as those of what is made of it would be? */
static inline bool lies_by_rows(const ir_tensor *t)
{
    return !t->rank || t->dims[t->rank - 1] == 1 || t->stride[t->rank - 1] == 1;
}

/* Do t's elements follow each other in memory, row by row? */
static inline bool lies_dense(const ir_tensor *t)
{
    int64_t n = 1;
    for (uint32_t i = t->rank; i-- > 0; n *= t->dims[i])
        if (t->dims[i] > 1 && t->stride[i] != n)
            return false;
    return true;
}

/* GELU by a sigmoid as recognise writes it for map; linear calls it quick_gelu. */
#define FUSE_QUICK_GELU "x0 / (1 + exp(-1.702 * x0))"

/* May a rule skip the rounding of this operator's result?  An f32 result is not rounded; of
 * shorter dtypes rules may only if the target asks for it (pass_options.relaxed), because the
 * bits change. */
static inline bool may_skip_rounding(const rewrite *w, const ir_op *op)
{
    return w->s->options->relaxed || tensor_of(w, op->out[0])->dtype == IR_F32;
}

/* Exactly `uses` operands read the operator's first result, and it is not an output of the
 * graph: if all of these readers are replaced, the operator is dead. */
static inline bool is_private(const rewrite *w, const ir_op *op, uint32_t uses)
{
    ir_tensor_id t = op->out[0];
    return w->uses.at[t] == uses && !(t < w->n_source && w->is_output[t]);
}

/* Does an rms_norm nothing but normalise?  It adds no residual, and no gate multiplies it. */
static inline bool is_plain_norm(const rewrite *w, const ir_op *norm)
{
    return rewrite_input(w, norm, NORM_RESIDUAL) == IR_NONE &&
           rewrite_input(w, norm, NORM_GATE) == IR_NONE;
}

/* Are weights in the blocks of a file? */
static inline bool is_in_blocks(const ir_tensor *weight)
{
    return ir_dtype_table[weight->dtype].block_elements > 1;
}

/* Do a norm of x and what gathers its rows stay operators of their own, where x is multiplied by
 * this weight?  On a GPU weights in blocks cannot have the norm's folded in, and of more rows than
 * linear_stream has at a time x comes by boxes (gen/body_linear_blocks.c). */
static inline bool keeps_apart(const rewrite *w, const ir_tensor *x, ir_tensor_id weight)
{
    return w->s->options->relaxed && x->dims[0] > STREAM_MOST_TOKENS && weight != IR_NONE &&
           is_in_blocks(tensor_of(w, weight));
}
/* Are experts in blocks shared, in steps of as many tokens as x has (gen/body_expert_unpack.c)?
 * Beside the rings of JIT tasks there is no room for the body's scratch. */
static inline bool shares_blocks(const rewrite *w, const ir_tensor *x)
{
    const pass_options *o = w->s->options;
    return o->share_tokens && x->dims[0] > o->share_tokens && o->launch != PASS_LAUNCH_PAPER &&
           o->launch != PASS_LAUNCH_JIT;
}
/* As keeps_apart, of experts' weights: rows of x are copied as they are where these are shared. */
static inline bool keeps_apart_of_experts(const rewrite *w, const ir_tensor *x, ir_tensor_id weight)
{
    return w->s->options->relaxed && is_in_blocks(tensor_of(w, weight)) && shares_blocks(w, x);
}

/* The plain rms_norm that makes t, or NULL. */
static inline const ir_op *find_plain_norm(const rewrite *w, ir_tensor_id t)
{
    const ir_op *norm = rewrite_producer(w, t, "rms_norm");
    return norm && is_plain_norm(w, norm) ? norm : NULL;
}

/* A linear taken apart, so that a rule can change some parts and add it again. */
typedef struct linear_parts {
    ir_tensor_id in[LINEAR_INPUTS]; /* IR_NONE: absent */
    double eps;                     /* of the norm, if it has one */
    str glu, activations, act;      /* attributes of the same names; empty or "f32": none */
    double factor;
    bool centred; /* the norm is a layer_norm */
    uint32_t n_weights;
} linear_parts;

/* The number F of a map of `before` and F, as in "x0 * F", where 0 < F < 1e30; 0: another operator,
 * or none (NULL). */
double fuse_number_of_map(const ir_op *op, const char *before);

/* ---- the rules; each may be applied to a program that others have been applied to ---- */

/* fuse_linear.c: glu, act, siblings, residual, scaled, norm, post norm, gated norm. */
mpk_status fuse_linears(rewrite *w);
/* fuse_sum.c: sum. */
mpk_status fuse_sums(rewrite *w);
/* fuse_experts.c: weights, pairs. */
mpk_status fuse_experts(rewrite *w);
/* fuse_attention.c: rope_kv, attention, split, fold. */
mpk_status fuse_attentions(rewrite *w);
/* fuse_delta.c: chunks. */
mpk_status fuse_deltas(rewrite *w);
/* fuse_latent.c: latent. */
mpk_status fuse_latents(rewrite *w);
/* fuse_logits.c: logits. */
mpk_status fuse_logits(rewrite *w);

/* recognise_attention.c: rotate, partly, heads. */
mpk_status recognise_attention(rewrite *w);
/* fuse_cache.c: cache and split; views. */
mpk_status fuse_caches(rewrite *w);
mpk_status fuse_views(rewrite *w);

/* ---- fuse_linear.c ---- */

/* Copy a name with a zero at its end into to[NAME_BYTES]; a name too long to be one of an
 * activation becomes "". */
enum { NAME_BYTES = 16 };
void fuse_copy_name(str name, char *to);

/* The operands and attributes of a linear; the parts borrow from it. */
void fuse_read_linear(const rewrite *w, const ir_op *op, linear_parts *out);
/* Add a linear made of these parts at place `key`; *out is its result. */
mpk_status fuse_add_linear(rewrite *w, uint32_t key, const linear_parts *parts, ir_tensor_id *out);

#endif
