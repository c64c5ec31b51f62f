/* llama.c - Llama 2, 3, 3.1, 3.2 (and SmolLM2, TinyLlama and others that share the
 * architecture).
 *
 * Grouped-query attention with rotary positions (default, linear, llama3, yarn), a gated MLP,
 * and an RMS norm before each.  If the configuration says so, the four attention products and
 * the MLP have biases.  Called through model_table.
 */
#include "model/model_decoder.h"

/* Which projections have biases is the file's to say: Llama has none, models of its architecture
 * may. */
static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_layer(d, x, d->c->attention_bias, d->c->attention_out_bias);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

/* The record that loaders and model_build use; the defaults are those of Transformers'
 * LlamaConfig. */
const model_def model_llama = {
    .family = "llama",
    .gguf = "llama",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .mlp_bias = true,
    .gguf_window = true, /* of Mistral's files, which name this architecture */
    .gguf_neighbours = true,
    .build = build,
};
