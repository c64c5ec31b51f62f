/* gguf_describe.c - the values of a GGUF file that is written; the inverse of gguf_config.c.
 *
 * Input: a loaded model.  Output: keys and values in a gguf_writer.  A model from a GGUF file
 * keeps all its own values: those that are unknown here may matter to other readers.  A Hugging
 * Face folder's hyper-parameters and vocabulary are written as llama.cpp's readers expect them.
 * Called by quantize.c.
 */
#include "load/gguf_write.h"

#include <math.h>
#include <stdio.h>

/* A description while it is written. */
typedef struct describer {
    mpk_context *cx;
    arena *a;
    const load_model *m;
    gguf_writer *w;
    const char *architecture;
    char key[96]; /* the last key that was built */
} describer;

/* "llama.block_count" for "block_count"; valid until the next call. */
static const char *scoped(describer *d, const char *key)
{
    snprintf(d->key, sizeof d->key, "%s.%s", d->architecture, key);
    return d->key;
}

/* ---- from a GGUF file ---- */

/* Is the value true of the old file's tensors only?  Then it is not copied. */
static bool is_of_tensors(str key)
{
    return str_is(key, "general.alignment") || str_is(key, "general.file_type") ||
           str_is(key, "general.quantization_version") || str_begins(key, STR("split.")) ||
           str_begins(key, STR("quantize.imatrix."));
}

/* Was the model read from one GGUF file? */
static bool is_gguf(const load_model *m)
{
    return m->files.n == 1 && m->files.at[0].n_bytes >= 4 &&
           memcmp(m->files.at[0].bytes, "GGUF", 4) == 0;
}

/* Copy the file's values.  They are read again from the file, because the model keeps only those
 * that it understands. */
static mpk_status copy_values(describer *d)
{
    gguf f;
    TRY(gguf_read_values(d->cx, d->a, d->m->files.at[0].bytes, d->m->files.at[0].n_bytes, &f));
    for (size_t i = 0; i < f.values.n; i++)
        if (!is_of_tensors(f.values.at[i].key))
            gguf_put_value(d->w, &f.values.at[i]);
    return MPK_OK;
}

/* ---- from a folder ---- */

/* The record whose spelling a file of this model gets.  Families that share an architecture name
 * in GGUF are distinguished by having experts. */
mpk_status gguf_find_written(mpk_context *cx, const load_model *m, const model_def **out)
{
    const model_def *own;
    TRY(model_find(cx, m->config.family, &own));
    CHECK(cx, !own->delta, MPK_EUNSUPPORTED,
          "GGUF files of models with linear attention are read, and cannot be written");
    const char *name = own->gguf_written ? own->gguf_written : own->gguf;
    CHECK(cx, name, MPK_EUNSUPPORTED, "GGUF files have no architecture for models of the family %s",
          own->family);
    return model_find_gguf(cx, str_from(name), m->config.n_experts > 0, out);
}

/* Does each layer have the window or not as readers of the architecture take it? */
static bool has_known_windows(const model_def *def, const model_config *c)
{
    const bool pattern = def->windows == MODEL_WINDOW_PATTERN;
    for (uint32_t i = 0; c->window && i < c->n_layers; i++)
        if (model_has_layer(c->full_layers, i) != (pattern && (i + 1) % def->window_every == 0))
            return false;
    return !c->window || pattern || def->gguf_window;
}

/* Granite's factors; readers take a missing one of scores for 1 / sqrt(head_size). */
static void put_multipliers(describer *d, const model_def *def)
{
    const model_config *c = &d->m->config;
    if (def->logit_scale != 0) /* which multiplies */
        gguf_put_f32(d->w, scoped(d, "logit_scale"), (float)c->logits_scale);
    if (!def->multipliers)
        return;
    gguf_put_f32(d->w, scoped(d, "embedding_scale"),
                 c->embedding_scale ? (float)c->embedding_scale : 1);
    gguf_put_f32(d->w, scoped(d, "residual_scale"),
                 c->residual_scale ? (float)c->residual_scale : 1);
    gguf_put_f32(d->w, scoped(d, "attention.scale"), (float)model_attention_scale(c));
    gguf_put_f32(d->w, scoped(d, "logit_scale"),
                 c->logits_scale ? (float)(1 / c->logits_scale) : 1);
}

/* Each how many layers one has experts; 0: they do not come in such steps. */
static uint32_t step_of_experts(const model_config *c)
{
    uint32_t step = 1;
    while (step <= c->n_layers && !model_has_experts(c, step - 1))
        step++;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (model_has_experts(c, i) != ((i + 1) % step == 0))
            return 0;
    return step;
}

/* Has yarn the factors and the rounding that readers of the architecture take? */
static bool has_known_yarn(const model_def *def, const model_config *c)
{
    bool same = !c->rope_mscale && !c->rope_mscale_all_dim;
    if (def->latent)
        same = c->rope_mscale == c->rope_mscale_all_dim;
    else if (def->scaled_queries)
        same = c->rope_mscale == (c->rope_mscale_all_dim != 0);
    return same && c->rope_truncate == !def->rope_unrounded;
}

/* Refuse a model with a property for which GGUF has no key: readers of an architecture compute with
 * its activation, its factor of scores, and its windows. */
static mpk_status refuse_unsaid(describer *d, const model_def *def)
{
    const model_config *c = &d->m->config;
    const bool is_limited = def->swiglu_limit != 0 && c->swiglu_limit == def->swiglu_limit;
    CHECK(d->cx, is_limited || str_is(c->activation, def->activation ? def->activation : "silu"),
          MPK_EUNSUPPORTED, "GGUF files of %s cannot say that the activation is %.*s",
          d->architecture, LOAD_NAME(c->activation));
    CHECK(d->cx,
          !def->query_scalar || fabs(c->attention_scale / gguf_default_scale(def, c) - 1) < 1e-6,
          MPK_EUNSUPPORTED, "GGUF files of %s cannot say \"query_pre_attn_scalar\"",
          d->architecture);
    CHECK(d->cx, (!def->attention_cap || c->attention_cap) && (!def->logits_cap || c->logits_cap),
          MPK_EUNSUPPORTED, "GGUF files of %s cannot say that there is no cap", d->architecture);
    for (uint32_t i = 0; def->unrotated_every && i < c->n_layers; i++)
        CHECK(d->cx,
              model_has_layer(c->unrotated_layers, i) == ((i + 1) % def->unrotated_every == 0),
              MPK_EUNSUPPORTED, "GGUF files of %s cannot say that layer %u %s", d->architecture, i,
              model_has_layer(c->unrotated_layers, i) ? "does not rotate" : "rotates");
    CHECK(d->cx, def->routing != MODEL_ROUTES_SCALED || step_of_experts(c), MPK_EUNSUPPORTED,
          "GGUF files of %s cannot say which layers have experts", d->architecture);
    const bool known = c->query_growth == def->growth && c->query_step == def->growth_step &&
                       c->head_norms == (c->n_experts != def->gguf_unnormed);
    CHECK(
        d->cx, !def->chunk || (known && c->chunk == def->chunk), MPK_EUNSUPPORTED,
        "GGUF files of %s cannot say \"attention_chunk_size\", \"attn_scale\", \"floor_scale\" and "
        "\"use_qk_norm\"",
        d->architecture);
    CHECK(d->cx, has_known_windows(def, c), MPK_EUNSUPPORTED,
          "GGUF files of %s cannot say which layers have a window of %u tokens", d->architecture,
          c->window);
    CHECK(d->cx, !c->n_experts || !def->gguf_unnormalized || !c->normalize_experts || def->routing,
          MPK_EUNSUPPORTED,
          "GGUF files of %s cannot say that the weights of a token's experts add up to 1",
          d->architecture);
    CHECK(d->cx, c->rope_scaling != MODEL_ROPE_YARN || has_known_yarn(def, c), MPK_EUNSUPPORTED,
          "GGUF files of %s cannot say \"mscale\" or \"truncate\" of the rope scaling",
          d->architecture);
    return MPK_OK;
}

/* A factor or cap, unless it is off. */
static void put_factor(describer *d, const char *key, double value)
{
    if (value != 0)
        gguf_put_f32(d->w, scoped(d, key), (float)value);
}

/* llama.cpp's keys for the sizes; keys that are not written have their defaults there. */
static void put_sizes(describer *d, const model_def *def)
{
    const model_config *c = &d->m->config;
    const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"block_count", c->n_layers},
                 {"context_length", c->max_positions},
                 {"embedding_length", c->hidden_size},
                 {"feed_forward_length", c->ffn_size},
                 {"attention.head_count", c->n_heads},
                 {"attention.head_count_kv", c->n_kv_heads},
                 {"attention.key_length", model_cache_size(c)},
                 {"attention.value_length", c->latent_size ? c->latent_size : c->head_size},
                 {"rope.dimension_count", c->rope_size},
                 {"vocab_size", c->vocab_size}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        gguf_put_u32(d->w, scoped(d, sizes[i].key), sizes[i].value);
    if (c->window)
        gguf_put_u32(d->w, scoped(d, "attention.sliding_window"), c->window);
    gguf_put_f32(d->w, scoped(d, gguf_eps_key(def)), (float)c->norm_eps);
    if (def->parallel_said)
        gguf_put_bool(d->w, scoped(d, "use_parallel_residual"), c->parallel);
    put_factor(d, "attn_logit_softcapping", c->attention_cap);
    put_factor(d, "final_logit_softcapping", c->logits_cap);
}

/* Latent attention, and how DeepSeek's routers choose. */
static void put_latent(describer *d, const model_def *def)
{
    const model_config *c = &d->m->config;
    if (c->latent_size) {
        gguf_put_u32(d->w, scoped(d, "attention.kv_lora_rank"), c->latent_size);
        gguf_put_u32(d->w, scoped(d, "attention.key_length_mla"), c->head_size);
        gguf_put_u32(d->w, scoped(d, "attention.value_length_mla"), c->value_size);
    }
    if (c->query_latent_size)
        gguf_put_u32(d->w, scoped(d, "attention.q_lora_rank"), c->query_latent_size);
    if (def->routing == MODEL_ROUTES_PLAIN)
        return;
    gguf_put_u32(d->w, scoped(d, "expert_shared_count"),
                 c->shared_ffn_size / (c->expert_ffn_size ? c->expert_ffn_size : 1));
    gguf_put_f32(d->w, scoped(d, "expert_weights_scale"),
                 c->expert_scale != 0 ? (float)c->expert_scale : 1);
    if (c->expert_groups > 1) {
        gguf_put_u32(d->w, scoped(d, "expert_group_count"), c->expert_groups);
        gguf_put_u32(d->w, scoped(d, "expert_group_used_count"), c->kept_groups);
    }
    if (def->routing == MODEL_ROUTES_SHIFTED)
        gguf_put_u32(d->w, scoped(d, "interleave_moe_layer_step"), c->expert_every);
    if (def->routing == MODEL_ROUTES_SCALED)
        gguf_put_u32(d->w, scoped(d, "interleave_moe_layer_step"), step_of_experts(c));
    uint32_t n_dense = 0;
    while (n_dense < c->n_layers && model_has_layer(c->dense_layers, n_dense))
        n_dense++;
    gguf_put_u32(d->w, scoped(d, "leading_dense_block_count"), n_dense);
}

/* For a mixture of experts only: readers take a missing expert_count for a dense model. */
static void put_experts(describer *d, const model_def *def)
{
    const model_config *c = &d->m->config;
    if (!c->n_experts)
        return;
    gguf_put_u32(d->w, scoped(d, "expert_count"), c->n_experts);
    gguf_put_u32(d->w, scoped(d, "expert_used_count"), c->experts_per_token);
    gguf_put_u32(d->w, scoped(d, "expert_feed_forward_length"), c->expert_ffn_size);
    gguf_put_bool(d->w, scoped(d, "expert_weights_norm"), c->normalize_experts);
    if (def->routing || c->expert_sigmoid)
        gguf_put_u32(d->w, scoped(d, "expert_gating_func"), c->expert_sigmoid ? 2 : 1);
    if (def->shared_one && !def->routing)
        gguf_put_u32(d->w, scoped(d, "expert_shared_count"), 1);
    if (def->shared_expert || def->shared_one)
        gguf_put_u32(d->w, scoped(d, "expert_shared_feed_forward_length"), c->shared_ffn_size);
}

/* Rope; the scalings of Llama 3 and longrope are tensors of divisors, which quantize.c writes.
 * Without scaling there is only the base. */
static void put_rope(describer *d)
{
    const model_config *c = &d->m->config;
    gguf_put_f32(d->w, scoped(d, "rope.freq_base"), (float)c->rope_theta);
    put_factor(d, "rope.freq_base_swa", c->local_theta);
    if (!c->query_unrotated)
        put_factor(d, "attention.temperature_scale", c->query_growth);
    if (c->rope_scaling == MODEL_ROPE_LONG) {
        gguf_put_u32(d->w, scoped(d, "rope.scaling.original_context_length"),
                     c->rope_original_positions);
        gguf_put_f32(d->w, scoped(d, "rope.scaling.attn_factor"), (float)model_long_factor(c));
    }
    if (c->rope_scaling != MODEL_ROPE_LINEAR && c->rope_scaling != MODEL_ROPE_YARN)
        return;
    gguf_put_str(d->w, scoped(d, "rope.scaling.type"),
                 c->rope_scaling == MODEL_ROPE_YARN ? STR("yarn") : STR("linear"));
    gguf_put_f32(d->w, scoped(d, "rope.scaling.factor"), (float)c->rope_factor);
    if (c->rope_scaling == MODEL_ROPE_LINEAR)
        return;
    gguf_put_u32(d->w, scoped(d, "rope.scaling.original_context_length"),
                 c->rope_original_positions);
    gguf_put_f32(d->w, scoped(d, "rope.scaling.yarn_beta_fast"), (float)c->rope_beta_fast);
    gguf_put_f32(d->w, scoped(d, "rope.scaling.yarn_beta_slow"), (float)c->rope_beta_slow);
    if (c->rope_mscale_all_dim)
        gguf_put_f32(d->w, scoped(d, "rope.scaling.yarn_log_multiplier"),
                     (float)((c->latent_size ? 0.1 : 1) * c->rope_mscale_all_dim));
    if (c->rope_attention_factor)
        gguf_put_f32(d->w, scoped(d, "rope.scaling.yarn_attn_factor"),
                     (float)c->rope_attention_factor);
}

/* Write a token id, unless it is -1, which means none. */
static void put_id(describer *d, const char *key, int32_t id)
{
    if (id >= 0)
        gguf_put_u32(d->w, key, (uint32_t)id);
}

/* The tokenizer's own end of text, and the first other token that ends an answer as the end of a
 * turn. */
static void put_ends(describer *d, const tokenizer_vocab *v)
{
    const model_config *c = &d->m->config;
    int32_t eos = v->eos_id, eot = v->eot_id;
    for (uint32_t i = 0; i < c->n_eos_tokens; i++) {
        if (eos < 0)
            eos = c->eos_tokens[i];
        else if (eot < 0 && c->eos_tokens[i] != eos)
            eot = c->eos_tokens[i];
    }
    put_id(d, "tokenizer.ggml.eos_token_id", eos);
    put_id(d, "tokenizer.ggml.eot_token_id", eot);
}

/* Vocabulary.  Scores belong to SentencePiece, merges to byte-pair encoding; a file has one of
 * them. A model without a tokenizer gets "no_vocab", which readers know: it takes ids. */
static mpk_status put_vocab(describer *d)
{
    tokenizer_vocab v;
    gguf_writer *w = d->w;
    if (!d->m->tokenizer) {
        gguf_put_str(w, "tokenizer.ggml.model", STR("no_vocab"));
        put_ends(d, &(tokenizer_vocab)TOKENIZER_VOCAB_EMPTY);
        put_id(d, "tokenizer.ggml.bos_token_id", d->m->config.bos_token);
        return MPK_OK;
    }
    NOTE(d->cx, tokenizer_to_vocab(d->cx, d->a, d->m->tokenizer, d->m->config.vocab_size, &v),
         "writing the tokenizer of %.*s", LOAD_NAME(d->m->path));
    gguf_put_str(w, "tokenizer.ggml.model", v.model);
    gguf_put_str(w, "tokenizer.ggml.pre", v.pre);
    gguf_put_strings(w, "tokenizer.ggml.tokens", v.tokens, v.n_tokens);
    gguf_put_ints(w, "tokenizer.ggml.token_type", v.types, v.n_tokens);
    if (v.scores)
        gguf_put_floats(w, "tokenizer.ggml.scores", v.scores, v.n_tokens);
    else
        gguf_put_strings(w, "tokenizer.ggml.merges", v.merges, v.n_merges);
    put_id(d, "tokenizer.ggml.bos_token_id", v.bos_id >= 0 ? v.bos_id : d->m->config.bos_token);
    put_ends(d, &v);
    put_id(d, "tokenizer.ggml.unknown_token_id", v.unk_id);
    put_id(d, "tokenizer.ggml.padding_token_id", v.pad_id);
    gguf_put_bool(w, "tokenizer.ggml.add_bos_token", v.add_bos == 1);
    gguf_put_bool(w, "tokenizer.ggml.add_eos_token", v.add_eos == 1);
    if (v.add_space_prefix >= 0)
        gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", v.add_space_prefix);
    return MPK_OK;
}

/* Chat templates; readers find a second one by its name in the list. */
static void put_templates(describer *d)
{
    const load_model *m = d->m;
    if (m->chat_template.at)
        gguf_put_str(d->w, "tokenizer.chat_template", m->chat_template);
    if (!m->tool_template.at)
        return;
    gguf_put_strings(d->w, "tokenizer.chat_templates", &STR("tool_use"), 1);
    gguf_put_str(d->w, "tokenizer.chat_template.tool_use", m->tool_template);
}

/* The last part of a path, which is the folder's name. */
static str name_of(str path)
{
    while (path.n > 1 && path.at[path.n - 1] == '/')
        path.n--;
    size_t at = path.n;
    while (at && path.at[at - 1] != '/')
        at--;
    return (str){path.at + at, path.n - at};
}

/* All values.  A property for which GGUF has no key is refused before anything is written
 * (refuse_unsaid): the file would be read as another model. */
static mpk_status put_all(describer *d)
{
    const model_def *def;
    TRY(gguf_find_written(d->cx, d->m, &def));
    d->architecture = def->gguf;
    TRY(refuse_unsaid(d, def));
    gguf_put_str(d->w, "general.architecture", str_from(d->architecture));
    gguf_put_str(d->w, "general.type", STR("model"));
    gguf_put_str(d->w, "general.name", name_of(d->m->path));
    put_sizes(d, def);
    put_experts(d, def);
    put_latent(d, def);
    put_multipliers(d, def);
    put_rope(d);
    TRY(put_vocab(d));
    put_templates(d);
    return MPK_OK;
}

mpk_status gguf_describe(mpk_context *cx, arena *a, const load_model *m, gguf_writer *w)
{
    describer d = {.cx = cx, .a = a, .m = m, .w = w};
    return is_gguf(m) ? copy_values(&d) : put_all(&d);
}
