/* llama4.c - the text model of Llama 4: in three of four layers q and k are rotated, then
 * normalised without weights, and see the tokens of their chunk; in the others they are not, and
 * queries grow with the position.  Experts, of which a token goes to one, read what its share
 * multiplies, beside one expert for every token; in Maverick every other layer has an MLP.
 *
 * Contexts end with the first chunk: in it a layer sees what it would see without chunks.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    const bool bias = d->c->attention_bias;
    const decoder_qk_norms norms = d->c->head_norms ? DECODER_BARE_NORMS : DECODER_NO_NORMS;
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    h = decoder_self_attention(d, h, bias, d->c->attention_out_bias, norms);
    return decoder_expert_or_mlp(d, decoder_add(d, x, h, "attention_add"));
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    CHECK(cx, c->experts_per_token <= 1, MPK_EUNSUPPORTED,
          "\"num_experts_per_tok\" %u is not supported in a llama4 model; 1 is",
          c->experts_per_token);
    return decoder_build(cx, c, s, w, g, layer);
}

static const model_holder holders[] = {{"llama4", "llama4_text", false}, {NULL, NULL, false}};
static const char *const names[][2] = {{"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                                       {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                                       {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
                                       {NULL, NULL}};
static const char *const renames[][2] = {{".feed_forward.", ".mlp."},
                                         {".mlp.router.", ".mlp.gate."},
                                         {".mlp.shared_expert.", ".mlp.shared_experts."},
                                         {NULL, NULL}};

const model_def model_llama4 = {
    .family = "llama4_text",
    .holders = holders,
    .gguf = "llama4",
    .norm_eps = 1e-5,
    .rope_theta = 500000,
    .sizes = {.n_kv_heads = 8, .head_size = 128},
    .neighbours = true,
    .gguf_neighbours = true,
    .unrotated_every = 4,
    .chunk = 8192,
    .growth = 0.1,
    .growth_step = 8192,
    .head_norms_said = true,
    .head_norms = true,
    .gguf_unnormed = 128,
    .biases = MODEL_BIASES_SAID,
    .is_mixture = true,
    .routing = MODEL_ROUTES_SCALED,
    .shared_one = true,
    .mlp_ffn = "intermediate_size_mlp",
    .expert_ffn = "intermediate_size",
    .expert_layout = MODEL_EXPERTS_BY_COLUMNS,
    .gguf_unnormalized = true,
    .gguf_names = names,
    .hf_names = renames,
    .build = build,
};
