/* adapter.h - adapters (LoRA): what one says, and its merging into the weights of a model.
 *
 *   adapter.c         opens adapters, finds the weights that they change
 *   adapter_peft.c    what a folder of PEFT says
 *   adapter_gguf.c    what a GGUF file of llama.cpp says
 *   adapter_merge.c   the arithmetic
 *
 * An adapter of rank r changes a weight W [N, K] by factor * left [N, r] right [r, K].  A change
 * may also put a tensor in the place of one (a bias, a norm, an embedding that was trained whole),
 * and may then give each row of the sum a length of its own (DoRA):
 *
 *   row n becomes  magnitude[n] * (W + update)[n] / |(W + update)[n]|
 *
 * Merging is done once, when a model is opened, where the names and the layout of its tensors are
 * still those of the file: programs, targets and images know nothing of adapters.
 */
#ifndef LOAD_ADAPTER_H
#define LOAD_ADAPTER_H

#include "load/gguf.h"

/* What an adapter does to one tensor of the model.  Tensors are of the adapter's files. */
typedef struct adapter_change {
    str name;  /* of the tensor that it changes, as checkpoints name it */
    str found; /* of a tensor of the adapter that says so, for messages */
    /* [N, r] and [r, K], or [r, N] and [K, r] if they are turned; rank 0: no update */
    load_tensor left, right;
    bool left_turned, right_turned;
    load_tensor magnitude; /* [N]; rank 0: rows keep the length that they get */
    load_tensor whole;     /* takes the place of the tensor; rank 0: an update */
    double factor;         /* of the update, the caller's scale included */

    /* where it belongs, once it is found: which tensor of the model, which entry of a stack of
     * experts, -1: all of it; whose it is; the next change of this tensor: one that takes its place
     * comes first, updates in the order of adapters */
    size_t tensor;
    int64_t entry;
    const struct adapter *of;
    struct adapter_change *next;
} adapter_change;

/* An adapter as it is stored; its tensors and names live until load_close(&a.files). */
typedef struct adapter {
    load_model files; /* the tensors under the names of their file, and the arena */
    VEC(adapter_change) changes;
    bool is_gguf;
    str architecture; /* of a GGUF file: the model's, as GGUF calls it */
    str made_for;     /* the model that a PEFT folder names; at NULL: none */
    bool ties;        /* it wants the head to change with the embedding */
} adapter;

/* Rows and columns of what a change changes, and the rank of an update. */
static inline int64_t adapter_rows(const adapter_change *c)
{
    return c->left.dims[c->left_turned];
}
static inline int64_t adapter_rank(const adapter_change *c)
{
    return c->left.dims[!c->left_turned];
}
static inline int64_t adapter_columns(const adapter_change *c)
{
    return c->right.dims[!c->right_turned];
}

/* Add the changes that the tensors of a PEFT folder are, by its adapter_config.json.  MPK_EFORMAT,
 * MPK_ESHAPE; MPK_EUNSUPPORTED: another method, or a tensor that is not known here, by name. */
mpk_status adapter_read_peft(mpk_context *cx, str config, adapter *a);
/* Add the tensors and changes of a GGUF file; the bytes are borrowed. */
mpk_status adapter_read_gguf(mpk_context *cx, const unsigned char *bytes, size_t n, adapter *a);
/* Of an update: left and right are numbers and agree about the rank.  MPK_ESHAPE,
 * MPK_EUNSUPPORTED. */
mpk_status adapter_check_update(mpk_context *cx, const adapter_change *c);

/* ---- adapter_merge.c ---- */

/* Put the tensor with all its changes (from `first` on) in the place of t, in m's arena: in t's
 * dtype, or in `plain` if t's has blocks; summed in f32 and rounded once.  Shapes have been
 * compared.  MPK_ELIMIT: a number is not finite, or beyond the dtype; MPK_EUNSUPPORTED: t's dtype;
 * MPK_ENOMEM. */
mpk_status adapter_merge(mpk_context *cx, arena *a, const adapter_change *first, ir_dtype plain,
                         load_tensor *t);

#endif
