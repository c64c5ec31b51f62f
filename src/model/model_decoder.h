/* model_decoder.h - the parts of which the forward passes of decoders are composed.
 *
 * A family's file is a few lines of these, each of which adds one or two plain operators and
 * returns the tensor that it made; passes fuse them later.  The first failure is kept in the
 * decoder: after it they add nothing and return IR_NONE, so a forward pass needs no error
 * handling, and decoder_build reports.  Weights are named "model.layers.LAYER.<what>", for
 * instance with what = "self_attn.q_proj".
 */
#ifndef MODEL_DECODER_H
#define MODEL_DECODER_H

#include "model/model.h"

/* A program under construction. */
typedef struct decoder {
    mpk_context *cx;
    const model_config *c;
    const model_shape *s;
    const model_weights *w;
    ir_graph *g;
    mpk_status status; /* the first failure */
    /* the layer that is being built */
    uint32_t layer;
    /* step inputs, see model.h; IR_NONE until add_begin */
    ir_tensor_id tokens, positions, slots, pages, rows, sampling, seeds, draws;
    /* likewise; not with greedy_only */
    ir_tensor_id asks, rules, history;
    /* table[V, D]; cos and sin of this step, f32[T, 2, rope_size / 2]: of most layers, of those
     * with a window if they have a theta of their own, and of layers that do not rotate */
    ir_tensor_id embedding, rope, local_rope, no_rope;
    /* what queries of each token are multiplied by, f32[T, 1, 1]; IR_NONE: all by 1 */
    ir_tensor_id query_scales;
    /* with latent attention i32[T, H]: 0 .. H - 1 for each token */
    ir_tensor_id head_ids;
} decoder;

/* Norm over the last axis with the layer's weight `what`.weight: an RMS norm, or with layer_norms
 * a layer norm, with norm_bias and `what`.bias. */
ir_tensor_id decoder_norm(decoder *d, ir_tensor_id x, const char *what);
/* x[T, n_in] times the layer's `what`.weight[n_out, n_in], plus `what`.bias[n_out] if bias: [T,
 * n_out]. */
ir_tensor_id decoder_linear(decoder *d, ir_tensor_id x, const char *what, int64_t n_out,
                            int64_t n_in, bool bias);
/* x[T, n * K] as a view [T, n, K]. */
ir_tensor_id decoder_heads(decoder *d, ir_tensor_id x, int64_t n, const char *name);
/* Rotate x[T, n, K] by the positions of its tokens. */
ir_tensor_id decoder_rope(decoder *d, ir_tensor_id x, const char *name);
/* Write k and v[T, G, K] to the layer's cache, then attend with q[T, H, K] over the layer's
 * window: [T, H * K]. */
ir_tensor_id decoder_attention(decoder *d, ir_tensor_id q, ir_tensor_id k, ir_tensor_id v);
/* down(activation(gate(h)) * up(h)). */
ir_tensor_id decoder_mlp(decoder *d, ir_tensor_id h);
/* down(activation(up(h))), by the names of these two weights. */
ir_tensor_id decoder_plain_mlp(decoder *d, ir_tensor_id h, const char *up, const char *down);
/* x + sigmoid(gate(h)) * MLP(h), the MLP that every token goes through beside its experts. */
ir_tensor_id decoder_shared_expert(decoder *d, ir_tensor_id h, ir_tensor_id x);
/* x + MLP(h), of the experts that every token goes through, whose weights are joined; without such
 * x. */
ir_tensor_id decoder_shared_experts(decoder *d, ir_tensor_id h, ir_tensor_id x);
/* a + b, the latter times residual_scale. */
ir_tensor_id decoder_add(decoder *d, ir_tensor_id a, ir_tensor_id b, const char *name);

/* x + the weighted sum over the experts of each token of h[T, D] of down(activation(gate(h)) *
 * up(h)), with the router's weights; round: these are rounded to h's dtype.  The sum times
 * residual_scale. */
ir_tensor_id decoder_experts(decoder *d, ir_tensor_id h, ir_tensor_id x, bool round);

/* Which norms q and k have before the rotation. */
typedef enum decoder_qk_norms {
    DECODER_NO_NORMS,
    DECODER_HEAD_NORMS, /* each head by itself */
    DECODER_WIDE_NORMS, /* all heads together */
    /* each head by itself after the rotation, "query_layernorm" and "key_layernorm" */
    DECODER_ROTATED_NORMS,
    /* each head by itself after the rotation, without weights, in layers that rotate */
    DECODER_BARE_NORMS
} decoder_qk_norms;
/* Attention over h[T, D], from the products of q, k and v to the one of the output: [T, D]. */
ir_tensor_id decoder_self_attention(decoder *d, ir_tensor_id h, bool qkv_bias, bool out_bias,
                                    decoder_qk_norms norms);
/* Latent attention over h[T, D] (DeepSeek's MLA): [T, D].  Of a token one row is cached for all
 * heads, the latent and a rotated key; each head's products with keys and values go to the query
 * and to the result instead (absorbed), so that the cache is never expanded. */
ir_tensor_id decoder_latent_attention(decoder *d, ir_tensor_id h);
/* Linear attention by the delta rule over h[T, D]: [T, D] (model_delta.c). */
ir_tensor_id decoder_delta_attention(decoder *d, ir_tensor_id h);
/* Qwen3.5's layer: attention, linear or full, then an MLP or experts beside a gated one. */
ir_tensor_id decoder_delta_layer(decoder *d, ir_tensor_id x);
/* DeepSeek's layer: latent attention, then an MLP or experts. */
ir_tensor_id decoder_latent_layer(decoder *d, ir_tensor_id x);
/* What follows attention in a layer with routed and shared experts, or with an MLP: x and the MLP
 * or experts over its norm. */
ir_tensor_id decoder_expert_or_mlp(decoder *d, ir_tensor_id x);
/* x + attention over the norm of x; head_norms: each head of q and k is normalised before the
 * rotation. */
ir_tensor_id decoder_attend(decoder *d, ir_tensor_id x, bool qkv_bias, bool out_bias,
                            bool head_norms);
/* Llama's layer, which others share; they differ in the biases on q, k and v, and on the output
 * projection. */
ir_tensor_id decoder_layer(decoder *d, ir_tensor_id x, bool qkv_bias, bool out_bias);

/* Qwen3's layer: Llama's with a norm of each head of q and k before the rotation. */
ir_tensor_id decoder_qwen3_layer(decoder *d, ir_tensor_id x);
/* The same with experts, or in layers without them the plain feed-forward part. */
ir_tensor_id decoder_qwen3_expert_layer(decoder *d, ir_tensor_id x);
/* GGUF's names of what DeepSeek-V3's experts have, for model_def.gguf_names. */
extern const char *const decoder_routed_names[][2];
/* Olmo 2's layer: norms after attention and MLP, none before. */
ir_tensor_id decoder_normed_layer(decoder *d, ir_tensor_id x, decoder_qk_norms norms);
/* Cohere's layer: attention and MLP both read the one norm of x. */
ir_tensor_id decoder_parallel_layer(decoder *d, ir_tensor_id x);
/* Gemma's layer since its second version: what attention and MLP add is normalised too. */
ir_tensor_id decoder_wrapped_layer(decoder *d, ir_tensor_id x, decoder_qk_norms norms);

/* The whole program: step inputs, embedding, rope table; `layer` for d->layer = 0 .. n_layers -
 * 1, from x[T, D] to x[T, D]; final norm and head over the wanted rows, and the choice of the
 * next token. */
mpk_status decoder_build(mpk_context *cx, const model_config *c, const model_shape *s,
                         const model_weights *w, ir_graph *g,
                         ir_tensor_id (*layer)(decoder *d, ir_tensor_id x));

#endif
