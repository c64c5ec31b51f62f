/* gguf_config.c - hyper-parameters and vocabulary of a GGUF file.
 *
 * The families' records (model.h) list the architectures and the meaning of their files.  GGUF
 * has no hyper-parameters for biases, a tied head, or layers without experts; which tensors
 * exist decides.  It stores Llama 3's rope scaling as divisors of the frequencies
 * (rope_freqs.weight): the parameters of the formula are recovered from them, and the divisors
 * recomputed and compared.
 *
 * A key of the model is below the architecture's name:
 *
 *   general.architecture = "llama"
 *   llama.block_count = 30, llama.attention.head_count = 9, llama.rope.freq_base = 100000.0
 *   tokenizer.ggml.model = "gpt2", tokenizer.ggml.tokens = ["<|endoftext|>", ..]
 *
 * An absent key has its default; a key that asks for something that is not supported is refused
 * by name, never ignored.  Called by gguf.c after the tensors are indexed.
 */
#include "load/gguf.h"

#include <math.h>
#include <stdio.h>

/* The values of a file, read below its architecture's name. */
typedef struct scope {
    mpk_context *cx;
    const gguf *f;
    str architecture;
    const model_def *def;
    char key[160]; /* the last key that was built, "<architecture>.<key>" */
} scope;

/* The full name of a key, valid until the next call; messages name s->key, too. */
static const char *scoped(scope *s, const char *key)
{
    snprintf(s->key, sizeof s->key, "%.*s.%s", LOAD_NAME(s->architecture), key);
    return s->key;
}

static mpk_status get_u32(scope *s, const char *key, uint32_t *out)
{
    return gguf_get_u32(s->cx, s->f, scoped(s, key), out);
}

static mpk_status get_double(scope *s, const char *key, double *out)
{
    return gguf_get_double(s->cx, s->f, scoped(s, key), out);
}

/* The rows of the embedding are the size of the vocabulary; the key and the list of tokens may be
 * shorter, since tables are padded. */
static mpk_status fill_vocab_size(scope *s, const load_model *m, model_config *c)
{
    const gguf_value *tokens = gguf_find(s->f, "tokenizer.ggml.tokens");
    const load_tensor *embedding = load_find(m, "model.embed_tokens.weight");
    c->vocab_size = tokens && tokens->n <= UINT32_MAX ? (uint32_t)tokens->n : 0;
    TRY(get_u32(s, "vocab_size", &c->vocab_size));
    /* what the weights have decides: logits come from that many rows */
    if (embedding && embedding->rank == 2 && embedding->dims[0] <= UINT32_MAX)
        c->vocab_size = (uint32_t)embedding->dims[0];
    return MPK_OK;
}

/* A number that must be given. */
static mpk_status get_needed(scope *s, const char *key, uint32_t *out)
{
    CHECK(s->cx, gguf_find(s->f, scoped(s, key)), MPK_EFORMAT, "%s is missing", s->key);
    return get_u32(s, key, out);
}

/* Heads of plain attention. */
static mpk_status fill_heads(scope *s, model_config *c)
{
    c->n_kv_heads = c->n_heads;
    TRY(get_u32(s, "attention.head_count_kv", &c->n_kv_heads));
    /* the sizes of a file that states none: heads share the hidden size */
    uint32_t value_size = c->head_size = c->n_heads ? c->hidden_size / c->n_heads : 0;
    TRY(get_u32(s, "attention.key_length", &c->head_size));
    TRY(get_u32(s, "attention.value_length", &value_size));
    CHECK(s->cx, value_size == c->head_size, MPK_EUNSUPPORTED,
          "heads of keys have %u elements, of values %u", c->head_size, value_size);
    return MPK_OK;
}

/* Latent attention.  key_length and value_length are the heads' own in older files; newer ones mean
 * what is cached by them, and have the heads' with "_mla". */
static mpk_status fill_latent(scope *s, model_config *c)
{
    c->n_kv_heads = 1;
    TRY(get_needed(s, "attention.kv_lora_rank", &c->latent_size));
    TRY(get_u32(s, "attention.q_lora_rank", &c->query_latent_size));
    TRY(get_needed(s, "rope.dimension_count", &c->rope_size));
    TRY(get_needed(s, "attention.key_length", &c->head_size));
    TRY(get_needed(s, "attention.value_length", &c->value_size));
    TRY(get_u32(s, "attention.key_length_mla", &c->head_size));
    return get_u32(s, "attention.value_length_mla", &c->value_size);
}

/* Layers after the last one, which guess further tokens, are counted too. */
static mpk_status drop_guesses(scope *s, model_config *c)
{
    uint32_t n = 0;
    TRY(get_u32(s, "nextn_predict_layers", &n));
    CHECK(s->cx, !n || s->def->guesses, MPK_EUNSUPPORTED, "%s is not supported", s->key);
    CHECK(s->cx, n < c->n_layers || !n, MPK_EFORMAT, "%s is %u of %u layers", s->key, n,
          c->n_layers);
    c->n_layers -= n;
    return MPK_OK;
}

/* The sizes that every model states, and those that follow from others. */
static mpk_status fill_sizes(scope *s, const load_model *m, model_config *c)
{
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"block_count", &c->n_layers},
                 {"context_length", &c->max_positions},
                 {"embedding_length", &c->hidden_size},
                 {"attention.head_count", &c->n_heads}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        TRY(get_needed(s, sizes[i].key, sizes[i].out));
    c->ffn_size = s->def->sizes.ffn_size; /* files of families with experts alone may not say it */
    TRY(c->ffn_size ? get_u32(s, "feed_forward_length", &c->ffn_size)
                    : get_needed(s, "feed_forward_length", &c->ffn_size));
    TRY(drop_guesses(s, c));
    TRY(s->def->latent ? fill_latent(s, c) : fill_heads(s, c));
    return fill_vocab_size(s, m, c);
}

/* Linear attention: the layers that have it are those with its convolution; of a vocabulary alone,
 * as the interval says. */
static mpk_status fill_delta(scope *s, const load_model *m, model_config *c)
{
    uint32_t inner = 0, every = 4;
    if (!s->def->delta)
        return MPK_OK;
    TRY(get_needed(s, "ssm.conv_kernel", &c->delta_conv));
    TRY(get_needed(s, "ssm.state_size", &c->delta_key_size));
    TRY(get_needed(s, "ssm.group_count", &c->delta_key_heads));
    TRY(get_needed(s, "ssm.time_step_rank", &c->delta_heads));
    TRY(get_needed(s, "ssm.inner_size", &inner));
    CHECK(s->cx, c->delta_heads && inner % c->delta_heads == 0, MPK_EFORMAT,
          "%s %u does not divide into %u heads", s->key, inner, c->delta_heads);
    TRY(get_u32(s, "full_attention_interval", &every));
    CHECK(s->cx, every, MPK_EFORMAT, "%s is 0", s->key);
    c->delta_value_size = inner / c->delta_heads;
    c->delta_tiled = s->def->gguf_tiled;
    c->attention_gate = true;
    for (uint32_t i = 0; i < c->n_layers && i < MODEL_MAX_LAYERS; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%u.linear_attn.conv1d.weight", i);
        model_set_layer(c->delta_layers, i,
                        m->tensors.n ? load_find(m, name) != NULL : (i + 1) % every != 0);
    }
    return MPK_OK;
}

/* Refuse keys that ask for a computation that is not supported for these architectures. */
static mpk_status refuse_unsupported(scope *s)
{
    const bool shares = s->def->routing != MODEL_ROUTES_PLAIN || s->def->shared_one;
    const struct {
        const char *key;
        bool supported;
    } keys[] = {
        {"attention.clamp_kqv", false},
        {"attention.max_alibi_bias", false},
        {"expert_shared_count", shares},
        {"expert_group_count", s->def->routing != MODEL_ROUTES_PLAIN},
        {"attention.temperature_scale", s->def->scaled_queries},
        {"rope.scaling.yarn_log_multiplier", s->def->scaled_queries || s->def->latent},
        {"expert_shared_feed_forward_length", s->def->shared_expert || shares},
        {"rope.dimension_sections", !s->def->neighbours}, /* their rows are in another order */
        {"attn_logit_softcapping", s->def->caps},
        {"final_logit_softcapping", s->def->caps},
        {"attention.sliding_window_pattern", s->def->windows == MODEL_WINDOW_PATTERN},
        {"attention.scale", s->def->query_scalar != 0 || s->def->multipliers},
        {"logit_scale", s->def->multipliers || s->def->logit_scale != 0},
        {"residual_scale", s->def->multipliers},
        {"embedding_scale", s->def->multipliers}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const gguf_value *v = gguf_find(s->f, scoped(s, keys[i].key));
        bool is_off = !v || (!v->is_array && v->type != GGUF_STRING && gguf_item_double(v, 0) == 0);
        CHECK(s->cx, keys[i].supported || is_off, MPK_EUNSUPPORTED, "%s is not supported", s->key);
    }
    bool causal = true;
    TRY(gguf_get_bool(s->cx, s->f, scoped(s, "attention.causal"), &causal));
    CHECK(s->cx, causal, MPK_EUNSUPPORTED, "models without causal attention are not supported");
    return MPK_OK;
}

/* How shares are made, and whether what experts are chosen by has a bias.  Files of DeepSeek's form
 * that do not say it mean sigmoids if there is one. */
static mpk_status fill_shares(scope *s, const load_model *m, model_config *c)
{
    enum { SOFTMAX = 1, SIGMOID = 2 };
    uint32_t gating = SOFTMAX;
    for (uint32_t i = 0; i < c->n_layers && i < MODEL_MAX_LAYERS; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%u.mlp.gate.e_score_correction.bias", i);
        c->expert_score_bias = c->expert_score_bias || load_find(m, name);
    }
    if (s->def->sigmoid_routers || s->def->routing == MODEL_ROUTES_BIASED ||
        s->def->routing == MODEL_ROUTES_SCALED ||
        (s->def->routing == MODEL_ROUTES_GREEDY && c->expert_score_bias))
        gating = SIGMOID;
    TRY(get_u32(s, "expert_gating_func", &gating));
    CHECK(s->cx, gating == SOFTMAX || gating == SIGMOID, MPK_EUNSUPPORTED,
          "%s %u is not supported; 1 (softmax) and 2 (sigmoid) are", s->key, gating);
    c->expert_sigmoid = gating == SIGMOID;
    c->experts_scaled = s->def->routing == MODEL_ROUTES_SCALED;
    return MPK_OK;
}

/* DeepSeek's routers.  Files of its first models do not say by what experts are chosen: by a
 * softmax, and then a group counts as much as its best expert. */
static mpk_status fill_routing(scope *s, model_config *c)
{
    uint32_t n_shared = s->def->shared_one;
    TRY(get_u32(s, "expert_group_count", &c->expert_groups));
    TRY(get_u32(s, "expert_group_used_count", &c->kept_groups));
    TRY(get_double(s, "expert_weights_scale", &c->expert_scale));
    TRY(get_u32(s, "expert_shared_count", &n_shared));
    CHECK(s->cx, n_shared <= MODEL_MAX_EXPERTS && c->expert_ffn_size < 1 << 20, MPK_EFORMAT,
          "%s: %u shared experts of %u inner entries are too many", s->key, n_shared,
          c->expert_ffn_size);
    c->shared_ffn_size = n_shared * c->expert_ffn_size;
    c->group_best = c->expert_sigmoid && c->expert_groups > 1 ? 2 : 1;
    return MPK_OK;
}

/* Numbers of experts.  In Qwen3 and Mixtral the weights of a token's experts add up to 1, unless
 * the file says otherwise. A layer that has the gate of a plain feed-forward network is dense: bit
 * i of dense_layers. */
static mpk_status fill_experts(scope *s, const load_model *m, model_config *c)
{
    char name[64];
    TRY(get_u32(s, "expert_count", &c->n_experts));
    CHECK(s->cx, !c->n_experts || s->def->is_mixture, MPK_EUNSUPPORTED,
          "%s is not supported in this architecture", s->key);
    c->expert_ffn_size = c->ffn_size;
    c->expert_every = 1;
    c->normalize_experts = !s->def->gguf_unnormalized;
    TRY(get_u32(s, "expert_used_count", &c->experts_per_token));
    TRY(get_u32(s, "expert_feed_forward_length", &c->expert_ffn_size));
    if (c->n_experts && s->def->shared_one)
        c->shared_ffn_size = c->expert_ffn_size;
    if (c->n_experts && (s->def->shared_expert || s->def->shared_one))
        TRY(get_u32(s, "expert_shared_feed_forward_length", &c->shared_ffn_size));
    TRY(gguf_get_bool(s->cx, s->f, scoped(s, "expert_weights_norm"), &c->normalize_experts));
    if (s->def->is_mixture)
        TRY(fill_shares(s, m, c));
    if (s->def->routing)
        TRY(fill_routing(s, c));
    for (uint32_t i = 0; i < c->n_layers && i < MODEL_MAX_LAYERS; i++) {
        snprintf(name, sizeof name, "model.layers.%u.mlp.gate_proj.weight", i);
        if (load_find(m, name))
            model_set_layer(c->dense_layers, i, true);
    }
    return MPK_OK;
}

/* Find the family of the file's architecture. */
static mpk_status find_family(scope *s, model_config *c)
{
    uint32_t n_experts = 0;
    TRY(get_u32(s, "expert_count", &n_experts));
    TRY(model_find_gguf(s->cx, s->architecture, n_experts > 0, &s->def));
    c->family = str_from(s->def->family);
    return MPK_OK;
}

/* The layers that have the window, by the file or else by the family: a number n, of which each
 * n-th layer sees all, or a truth for each layer that has the window. */
static mpk_status fill_pattern(scope *s, model_config *c)
{
    uint32_t every = s->def->window_every;
    const gguf_value *v = gguf_find(s->f, scoped(s, "attention.sliding_window_pattern"));
    if (v && v->is_array) {
        CHECK(s->cx, (v->type == GGUF_BOOL || gguf_type_is_int(v->type)) && v->n == c->n_layers,
              MPK_EFORMAT, "%s is not a list of %u truths", s->key, c->n_layers);
        for (uint32_t i = 0; i < c->n_layers && i < MODEL_MAX_LAYERS; i++)
            model_set_layer(c->full_layers, i, gguf_item_int(v, i) == 0);
        return MPK_OK;
    }
    TRY(get_u32(s, "attention.sliding_window_pattern", &every));
    CHECK(s->cx, every, MPK_EFORMAT, "%s is 0", s->key);
    for (uint32_t i = 0; i < c->n_layers && i < MODEL_MAX_LAYERS; i++)
        model_set_layer(c->full_layers, i, (i + 1) % every == 0);
    return MPK_OK;
}

/* For most architectures GGUF does not say which layers have the window, so a window is refused
 * unless the family gives it to all layers or has a pattern. */
static mpk_status fill_window(scope *s, model_config *c)
{
    const bool pattern = s->def->windows == MODEL_WINDOW_PATTERN;
    uint32_t window = pattern && !s->def->gguf_window ? s->def->window : 0;
    TRY(get_u32(s, "attention.sliding_window", &window));
    CHECK(s->cx, !window || s->def->gguf_window || pattern, MPK_EUNSUPPORTED,
          "%s: a window of %u tokens is not supported in this architecture (which layers have it "
          "is not said)",
          s->key, window);
    c->window = window;
    return pattern && window ? fill_pattern(s, c) : MPK_OK;
}

/* Granite's factors; logits are divided by theirs. */
static mpk_status fill_multipliers(scope *s, model_config *c)
{
    double divisor = 0;
    TRY(get_double(s, "embedding_scale", &c->embedding_scale));
    TRY(get_double(s, "residual_scale", &c->residual_scale));
    TRY(get_double(s, "attention.scale", &c->attention_scale));
    TRY(get_double(s, "logit_scale", &divisor));
    c->embedding_scale = c->embedding_scale == 1 ? 0 : c->embedding_scale;
    c->residual_scale = c->residual_scale == 1 ? 0 : c->residual_scale;
    c->logits_scale = divisor == 0 || divisor == 1 ? 0 : 1 / divisor;
    return MPK_OK;
}

/* Factors and caps of the families that have them. */
static mpk_status fill_factors(scope *s, model_config *c)
{
    const model_def *def = s->def;
    if (def->root_embedding)
        c->embedding_scale = sqrt(c->hidden_size);
    c->attention_cap = def->attention_cap;
    c->logits_cap = def->logits_cap;
    if (def->caps) {
        TRY(get_double(s, "attn_logit_softcapping", &c->attention_cap));
        TRY(get_double(s, "final_logit_softcapping", &c->logits_cap));
    }
    if (def->multipliers)
        TRY(fill_multipliers(s, c));
    if (def->logit_scale != 0)
        TRY(get_double(s, "logit_scale", &c->logits_scale));
    for (uint32_t i = 0; def->unrotated_every && i < c->n_layers && i < MODEL_MAX_LAYERS; i++)
        model_set_layer(c->unrotated_layers, i, (i + 1) % def->unrotated_every == 0);
    if (def->query_scalar == 0)
        return MPK_OK;
    c->attention_scale = gguf_default_scale(def, c);
    return get_double(s, "attention.scale", &c->attention_scale);
}

/* Three generations of keys for the same numbers; if several are there, the newer one counts,
 * which is read last. */
static mpk_status fill_rope_scaling(scope *s, model_config *c)
{
    str type = STR("none");
    TRY(get_double(s, "rope.scale_linear", &c->rope_factor)); /* of old files */
    TRY(get_double(s, "rope.scaling.factor", &c->rope_factor));
    if (c->rope_factor != 0 && c->rope_factor != 1)
        type = STR("linear"); /* unless a type is given */
    TRY(gguf_get_str(s->cx, s->f, scoped(s, "rope.scaling.type"), &type));
    c->rope_original_positions = c->max_positions;
    TRY(get_u32(s, "rope.scaling.original_context_length", &c->rope_original_positions));
    TRY(get_double(s, "rope.scaling.attn_factor", &c->rope_attention_factor));
    c->rope_beta_fast = 32, c->rope_beta_slow = 1, c->rope_truncate = !s->def->rope_unrounded;
    TRY(get_double(s, "rope.scaling.yarn_attn_factor", &c->rope_attention_factor));
    TRY(get_double(s, "rope.scaling.yarn_beta_fast", &c->rope_beta_fast));
    TRY(get_double(s, "rope.scaling.yarn_beta_slow", &c->rope_beta_slow));
    if (s->def->scaled_queries) {
        TRY(get_double(s, "rope.scaling.yarn_log_multiplier", &c->rope_mscale_all_dim));
        c->rope_mscale = c->rope_mscale_all_dim != 0;
        c->query_step = c->rope_original_positions;
        TRY(get_double(s, "attention.temperature_scale", &c->query_growth));
    }
    if (s->def->latent) { /* a tenth of mscale_all_dim, and mscale is the same */
        TRY(get_double(s, "rope.scaling.yarn_log_multiplier", &c->rope_mscale_all_dim));
        c->rope_mscale = c->rope_mscale_all_dim *= 10;
    }
    if (str_is(type, "linear"))
        c->rope_scaling = MODEL_ROPE_LINEAR;
    else if (str_is(type, "yarn"))
        c->rope_scaling = MODEL_ROPE_YARN;
    else /* longrope is told by its tensors (fill_rope_long) */
        CHECK(s->cx, str_is(type, "none") || str_is(type, "longrope"), MPK_EUNSUPPORTED,
              "the rope scaling \"%.*s\" is not supported; none, linear, yarn and longrope are",
              LOAD_NAME(type));
    return MPK_OK;
}

/* The divisor of frequency i: 1 for short waves, factor for long ones, interpolated by 1 /
 * wavelength in between.  quantize.c writes these when it makes a GGUF file of a checkpoint with
 * Llama 3's scaling. */
double gguf_llama3_divisor(const model_config *c, uint32_t i)
{
    double wavelength = 2 * acos(-1) * pow(c->rope_theta, 2.0 * i / c->rope_size);
    double smooth = (c->rope_original_positions / wavelength - c->rope_low_freq_factor) /
                    (c->rope_high_freq_factor - c->rope_low_freq_factor);
    smooth = fmin(fmax(smooth, 0), 1);
    return 1 / ((1 - smooth) / c->rope_factor + smooth);
}

/* Does the tensor hold the divisors of the formula, up to the fp32 rounding of the writer's
 * intermediate values? */
static bool matches_llama3(const load_tensor *t, const model_config *c)
{
    for (uint32_t i = 0; i < c->rope_size / 2; i++) {
        float divisor;
        memcpy(&divisor, (const char *)t->data + 4 * (size_t)i, sizeof divisor);
        double expected = gguf_llama3_divisor(c, i);
        if (!(fabs(divisor - expected) <= 2e-5 * expected))
            return false;
    }
    return true;
}

/* Recover factor and limits from the divisors: the last one is the factor itself, the limits are
 * one of the sets below, which all known models use.  Divisors that are all 1 scale nothing. */
static mpk_status fill_rope_divisors(scope *s, const load_tensor *t, model_config *c)
{
    static const struct {
        double low, high;
        uint32_t positions;
    } known[] = {{1, 4, 8192}, {1, 4, 4096}, {1, 4, 16384}, {1, 4, 32768}, {1, 1, 8192}};
    CHECK(s->cx,
          t->dtype == IR_F32 && t->rank == 1 && t->dims[0] == c->rope_size / 2 && c->rope_size >= 2,
          MPK_ESHAPE, "rope_freqs.weight is not f32[%u]", c->rope_size / 2);
    CHECK(s->cx, c->rope_scaling == MODEL_ROPE_DEFAULT, MPK_EUNSUPPORTED,
          "rope_freqs.weight together with rope.scaling is not supported");
    float largest;
    memcpy(&largest, (const char *)t->data + 4 * (size_t)(t->dims[0] - 1), sizeof largest);
    c->rope_factor = largest; /* the divisor of the longest wave */
    if (largest == 1)
        return MPK_OK;
    c->rope_scaling = MODEL_ROPE_LLAMA3;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        c->rope_low_freq_factor = known[i].low;
        c->rope_high_freq_factor = known[i].high;
        c->rope_original_positions = known[i].positions;
        if (matches_llama3(t, c))
            return MPK_OK;
    }
    FAIL(s->cx, MPK_EUNSUPPORTED, "rope_freqs.weight is not Llama 3's scaling as it is known here");
}

/* A tensor of f32[rope_size / 2] as a list in the model's arena, since data in a file need not be
 * aligned. */
static mpk_status list_divisors(scope *s, load_model *m, const char *name, const model_config *c,
                                const float **out)
{
    const load_tensor *t = load_find(m, name);
    const uint32_t half = c->rope_size / 2;
    float *list;
    CHECK(s->cx, t && half && t->dtype == IR_F32 && t->rank == 1 && t->dims[0] == half, MPK_EFORMAT,
          "%s is not f32[%u]", name, half);
    NEW(s->cx, &m->arena, list, half);
    memcpy(list, t->data, half * sizeof *list);
    *out = list;
    return MPK_OK;
}

/* longrope: divisors for short contexts and for long ones. */
static mpk_status fill_rope_long(scope *s, load_model *m, model_config *c)
{
    CHECK(s->cx, c->rope_scaling == MODEL_ROPE_DEFAULT, MPK_EUNSUPPORTED,
          "rope_factors_long.weight together with rope.scaling is not supported");
    c->rope_scaling = MODEL_ROPE_LONG;
    if (!c->rope_factor)
        c->rope_factor = (double)c->max_positions / c->rope_original_positions;
    TRY(list_divisors(s, m, "rope_factors_short.weight", c, &c->rope_short));
    return list_divisors(s, m, "rope_factors_long.weight", c, &c->rope_long);
}

const char *gguf_eps_key(const model_def *def)
{
    return def->layer_norms ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
}

double gguf_default_scale(const model_def *def, const model_config *c)
{
    const bool wide = def->gguf_wide_layers && c->n_layers == def->gguf_wide_layers && c->n_heads;
    return 1 / sqrt(wide ? (double)c->hidden_size / c->n_heads : c->head_size);
}

/* All about rope: theta, rotated size, scaling by name or by divisors. */
static mpk_status fill_rope(scope *s, load_model *m, model_config *c)
{
    if (!s->def->latent)
        c->rope_size = c->head_size;
    c->rope_theta = s->def->local_theta != 0 ? s->def->rope_theta : 10000;
    c->local_theta = s->def->local_theta;
    if (c->local_theta != 0)
        TRY(get_double(s, "rope.freq_base_swa", &c->local_theta));
    TRY(get_u32(s, "rope.dimension_count", &c->rope_size));
    TRY(get_double(s, "rope.freq_base", &c->rope_theta));
    TRY(fill_rope_scaling(s, c));
    if (s->def->local_unscaled && c->rope_scaling != MODEL_ROPE_DEFAULT) {
        c->local_theta = c->rope_theta;
        TRY(get_double(s, "rope.freq_base_swa", &c->local_theta));
    }
    if (load_find(m, "rope_factors_long.weight"))
        return fill_rope_long(s, m, c);
    const load_tensor *divisors = load_find(m, "rope_freqs.weight");
    return divisors ? fill_rope_divisors(s, divisors, c) : MPK_OK;
}

/* A token id; -1 if the key is absent or out of range (some writers mean none by 4294967295). */
static mpk_status fill_token(scope *s, const char *key, int32_t *out)
{
    uint32_t id = UINT32_MAX;
    TRY(gguf_get_u32(s->cx, s->f, key, &id));
    *out = id <= INT32_MAX ? (int32_t)id : -1;
    return MPK_OK;
}

/* Fill all hyper-parameters and check them.  Tensors must be indexed: they decide whether the head
 * is tied and which products have a bias. norm_eps: the default of llama.cpp's readers. GGUF names
 * two ends: of a text (eos) and of a turn (eot); an answer ends at either. */
static mpk_status fill_config(scope *s, load_model *m, model_config *c)
{
    TRY(find_family(s, c));
    TRY(refuse_unsupported(s));
    TRY(fill_sizes(s, m, c));
    TRY(fill_experts(s, m, c));
    TRY(fill_delta(s, m, c));
    c->norm_eps = 1e-5;
    c->layer_norms = s->def->layer_norms;
    c->norm_bias = s->def->norm_bias;
    c->bare_norms = s->def->bare_norms;
    c->parallel = s->def->parallel;
    if (s->def->parallel_said) {
        TRY(gguf_get_bool(s->cx, s->f, scoped(s, "use_parallel_residual"), &c->parallel));
        c->parallel |= !load_find(m, "model.layers.0.post_attention_layernorm.weight");
    }
    TRY(get_double(s, gguf_eps_key(s->def), &c->norm_eps));
    TRY(fill_factors(s, c));
    TRY(fill_window(s, c));
    if (s->def->unrotated_full)
        model_unrotate_full(c);
    TRY(fill_rope(s, m, c));
    c->activation = str_from(s->def->activation ? s->def->activation : "silu");
    if (s->def->swiglu_limit != 0) {
        c->swiglu_limit = s->def->swiglu_limit;
        c->activation = STR("swiglu_oai");
    }
    c->expert_bias = c->router_bias = s->def->expert_bias;
    c->sinks = s->def->sinks;
    c->weight_dtype = IR_BF16;
    c->tied_embeddings = !load_find(m, "lm_head.weight");
    c->head_norms =
        s->def->head_norms_said && load_find(m, "model.layers.0.self_attn.q_norm.weight");
    if (s->def->gguf_unnormed)
        c->head_norms = c->n_experts != s->def->gguf_unnormed;
    c->chunk = s->def->chunk;
    if (s->def->chunk) {
        c->query_growth = s->def->growth;
        c->query_step = s->def->growth_step;
        c->query_offset = 1;
        c->query_unrotated = true;
    }
    c->attention_bias = load_find(m, "model.layers.0.self_attn.q_proj.bias") ||
                        load_find(m, "model.layers.0.self_attn.qkv_proj.bias");
    c->attention_out_bias = load_find(m, "model.layers.0.self_attn.o_proj.bias");
    c->head_bias = load_find(m, "lm_head.bias");
    c->mlp_bias = load_find(m, "model.layers.0.mlp.gate_proj.bias") ||
                  load_find(m, "model.layers.0.mlp.up_proj.bias") ||
                  load_find(m, "model.layers.0.mlp.c_fc.bias");
    int32_t eos = -1, eot = -1;
    TRY(fill_token(s, "tokenizer.ggml.bos_token_id", &c->bos_token));
    TRY(fill_token(s, "tokenizer.ggml.eos_token_id", &eos));
    TRY(fill_token(s, "tokenizer.ggml.eot_token_id", &eot));
    if (eos >= 0)
        TRY(load_add_eos(s->cx, c, eos));
    if (eot >= 0)
        TRY(load_add_eos(s->cx, c, eot));
    return model_check(s->cx, c);
}

/* The gate of the shared expert is a matrix of one row; some converters write it as a vector. */
static void widen_gates(load_model *m)
{
    for (size_t i = 0; i < m->tensors.n; i++) {
        load_tensor *t = &m->tensors.at[i];
        if (t->rank == 1 && str_ends(t->name, STR(".mlp.shared_expert_gate.weight"))) {
            t->rank = 2;
            t->dims[1] = t->dims[0];
            t->dims[0] = 1;
        }
    }
}

/* See gguf.h; *m changes only if everything could be filled. */
mpk_status gguf_fill_config(mpk_context *cx, const gguf *f, load_model *m)
{
    scope s = {.cx = cx, .f = f};
    model_config c = {0};
    TRY(gguf_get_str(cx, f, "general.architecture", &s.architecture));
    CHECK(cx, s.architecture.n, MPK_EFORMAT, "general.architecture is missing");
    TRY(fill_config(&s, m, &c));
    m->config = c;
    widen_gates(m);
    return s.def->gguf_neighbours ? gguf_order_rope_rows(cx, m) : MPK_OK;
}

/* ---- vocabulary ---- */

/* An array of n numbers as floats in arena a; *out stays NULL if the key is absent. */
static mpk_status list_floats(mpk_context *cx, arena *a, const gguf *f, const char *key, size_t n,
                              const float **out)
{
    const gguf_value *v = gguf_find(f, key);
    float *list;
    if (!v)
        return MPK_OK;
    CHECK(cx, v->is_array && (v->type == GGUF_F32 || v->type == GGUF_F64) && v->n == n, MPK_EFORMAT,
          "%s is not a list of %zu floats", key, n);
    NEW(cx, a, list, n);
    for (size_t i = 0; i < n; i++)
        list[i] = (float)gguf_item_double(v, i);
    *out = list;
    return MPK_OK;
}

/* An array of n integers as int32 in arena a; *out stays NULL if the key is absent. */
static mpk_status list_ints(mpk_context *cx, arena *a, const gguf *f, const char *key, size_t n,
                            const int32_t **out)
{
    const gguf_value *v = gguf_find(f, key);
    int32_t *list;
    if (!v)
        return MPK_OK;
    CHECK(cx, v->is_array && gguf_type_is_int(v->type) && v->n == n, MPK_EFORMAT,
          "%s is not a list of %zu integers", key, n);
    NEW(cx, a, list, n);
    for (size_t i = 0; i < n; i++)
        list[i] = (int32_t)gguf_item_int(v, i);
    *out = list;
    return MPK_OK;
}

/* A flag with three values: *out keeps its "not said" unless the file says true or false. */
static mpk_status fill_flag(mpk_context *cx, const gguf *f, const char *key, int32_t *out)
{
    bool value = false;
    if (gguf_find(f, key)) {
        TRY(gguf_get_bool(cx, f, key, &value));
        *out = value;
    }
    return MPK_OK;
}

/* Ids that are absent stay -1 and flags "not said": the tokenizer then takes the defaults of its
 * kind. */
static mpk_status fill_vocab_ids(mpk_context *cx, const gguf *f, tokenizer_vocab *v)
{
    scope s = {.cx = cx, .f = f};
    TRY(fill_token(&s, "tokenizer.ggml.bos_token_id", &v->bos_id));
    TRY(fill_token(&s, "tokenizer.ggml.eos_token_id", &v->eos_id));
    TRY(fill_token(&s, "tokenizer.ggml.eot_token_id", &v->eot_id));
    TRY(fill_token(&s, "tokenizer.ggml.unknown_token_id", &v->unk_id));
    TRY(fill_token(&s, "tokenizer.ggml.padding_token_id", &v->pad_id));
    TRY(fill_flag(cx, f, "tokenizer.ggml.add_bos_token", &v->add_bos));
    TRY(fill_flag(cx, f, "tokenizer.ggml.add_eos_token", &v->add_eos));
    return fill_flag(cx, f, "tokenizer.ggml.add_space_prefix", &v->add_space_prefix);
}

/* The texts of the special tokens that chat templates can name. */
static mpk_status fill_specials(mpk_context *cx, const tokenizer_vocab *v, load_model *m)
{
    const struct {
        const char *name;
        int32_t id;
    } ids[] = {{"bos_token", v->bos_id},
               {"eos_token", v->eos_id},
               {"unk_token", v->unk_id},
               {"pad_token", v->pad_id}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (ids[i].id >= 0 && (size_t)ids[i].id < v->n_tokens)
            TRY(load_set_special(cx, m, ids[i].name, v->tokens[ids[i].id]));
    return MPK_OK;
}

/* Make the tokenizer.  Its texts are slices of the mapping, listed in scratch memory; the tokenizer
 * copies those that it keeps. Scores belong to sentencepiece, merges to byte-level BPE; which of
 * them are needed, tokenizer_vocab.c knows. */
static mpk_status make_tokenizer(mpk_context *cx, arena *scratch, const gguf *f, str model,
                                 load_model *m)
{
    tokenizer_vocab v = TOKENIZER_VOCAB_EMPTY;
    v.model = model;
    TRY(gguf_get_str(cx, f, "tokenizer.ggml.pre", &v.pre));
    const gguf_value *tokens = gguf_find(f, "tokenizer.ggml.tokens"),
                     *merges = gguf_find(f, "tokenizer.ggml.merges");
    CHECK(cx, tokens, MPK_EFORMAT, "tokenizer.ggml.tokens is missing");
    TRY(gguf_list_strings(cx, scratch, tokens, &v.tokens));
    v.n_tokens = tokens->n;
    if (merges) {
        TRY(gguf_list_strings(cx, scratch, merges, &v.merges));
        v.n_merges = merges->n;
    }
    TRY(list_floats(cx, scratch, f, "tokenizer.ggml.scores", v.n_tokens, &v.scores));
    TRY(list_ints(cx, scratch, f, "tokenizer.ggml.token_type", v.n_tokens, &v.types));
    TRY(fill_vocab_ids(cx, f, &v));
    TRY(fill_specials(cx, &v, m));
    return tokenizer_from_vocab(cx, &v, &m->tokenizer);
}

/* A file without a vocabulary is still a model: it takes and gives token ids. */
mpk_status gguf_fill_vocab(mpk_context *cx, const gguf *f, load_model *m)
{
    str model = {0};
    arena scratch = {0};
    TRY(gguf_get_str(cx, f, "tokenizer.chat_template", &m->chat_template));
    TRY(gguf_get_str(cx, f, "tokenizer.chat_template.tool_use", &m->tool_template));
    TRY(gguf_get_str(cx, f, "tokenizer.ggml.model", &model));
    if (!model.n || str_is(model, "no_vocab") || str_is(model, "none"))
        return MPK_OK;
    mpk_status status = make_tokenizer(cx, &scratch, f, model, m);
    arena_free(&scratch);
    return status;
}
