/* model_decoder.h - the parts that the forward passes of decoders are made of.
 *
 * A family's file is a few lines of these, each adding one or two plain operators; passes fuse them
 * later.  They return the tensor that they made.  The first failure is kept in the decoder: after
 * it they add nothing and return IR_NONE, so that a forward pass reads without error handling and
 * decoder_build reports.
 *
 * Weights are named "model.layers.LAYER.<what>", e.g. what = "self_attn.q_proj".
 */
#ifndef MODEL_DECODER_H
#define MODEL_DECODER_H

#include "model/model.h"

typedef struct decoder {
    mpk_context *cx;
    const model_config *c;
    const model_shape *s;
    const model_weights *w;
    ir_graph *g;
    mpk_status status;
    /* the one being built */
    uint32_t layer;
    /* step inputs, see model.h */
    ir_tensor_id tokens, positions, slots, pages, rows, sampling, seeds, draws;
    /* too; not if greedy_only */
    ir_tensor_id asks, rules, history;
    /* table[V, D]; cos and sin of this step, f32[T, 2, rope_size / 2] */
    ir_tensor_id embedding, rope;
} decoder;

/* RMS norm over the last axis with the layer's weight `what`.weight. */
ir_tensor_id decoder_norm(decoder *d, ir_tensor_id x, const char *what);
/* x[T, n_in] times the layer's `what`.weight[n_out, n_in], plus `what`.bias[n_out] if bias: [T,
 * n_out]. */
ir_tensor_id decoder_linear(decoder *d, ir_tensor_id x, const char *what, int64_t n_out,
                            int64_t n_in, bool bias);
/* x[T, n * K] seen as [T, n, K]. */
ir_tensor_id decoder_heads(decoder *d, ir_tensor_id x, int64_t n, const char *name);
/* Rotate x[T, n, K] by the positions of its tokens. */
ir_tensor_id decoder_rope(decoder *d, ir_tensor_id x, const char *name);
/* Write k and v[T, G, K] to the layer's cache, then attend with q[T, H, K], over the layer's
 * window: [T, H * K]. */
ir_tensor_id decoder_attention(decoder *d, ir_tensor_id q, ir_tensor_id k, ir_tensor_id v);
/* down(activation(gate(h)) * up(h)). */
ir_tensor_id decoder_mlp(decoder *d, ir_tensor_id h);
ir_tensor_id decoder_add(decoder *d, ir_tensor_id a, ir_tensor_id b, const char *name);

/* x + the sum of the layer's experts that h[T, D] goes to, each down(activation(gate(h)) * up(h))
 * and counted as the router says; round: what they count is rounded to h's dtype. */
ir_tensor_id decoder_experts(decoder *d, ir_tensor_id h, ir_tensor_id x, bool round);

/* x + attention over the norm of x; head_norms: with an RMS norm over each head of q and k before
 * the rotation. */
ir_tensor_id decoder_attend(decoder *d, ir_tensor_id x, bool qkv_bias, bool out_bias,
                            bool head_norms);
/* The layer of Llama, which others share but for its biases: on q, k and v, and on the output
 * projection. */
ir_tensor_id decoder_layer(decoder *d, ir_tensor_id x, bool qkv_bias, bool out_bias);

/* The whole program: step inputs, embedding, rope table; `layer` for d->layer = 0 ... n_layers - 1,
 * from x[T, D] to x[T, D]; final norm and head over the rows that are wanted, and the choice of the
 * next token. */
mpk_status decoder_build(mpk_context *cx, const model_config *c, const model_shape *s,
                         const model_weights *w, ir_graph *g,
                         ir_tensor_id (*layer)(decoder *d, ir_tensor_id x));

#endif
