/* hf_config.c - config.json and generation_config.json of Hugging Face folders ->
 * hyper-parameters.
 *
 * Both spellings are read: rope_theta, rope_scaling, torch_dtype of older files;
 * rope_parameters, dtype of those that Transformers 5 writes.  Absent members take Transformers'
 * defaults.  Members that would change what the model computes and are not supported are refused
 * by name.
 *
 * Differences between families (defaults, biases, windows, experts) are in their records
 * (model.h, model_def), never tested by name here.  At the end model_check looks at all numbers
 * together.  Called by load.c, also for a config.json without weights.
 */
#include <math.h>

#include "base/json.h"
#include "load/hf_config.h"

/* Is the member there, be it null?  Then no default applies to it. */
static bool is_given(const json_value *j, const char *key)
{
    for (size_t i = 0; i < j->n; i++)
        if (str_is(j->items[i].key, key))
            return true;
    return false;
}

/* A number that must be given. */
mpk_status hf_read_needed(mpk_context *cx, const json_value *j, const char *key, uint32_t *out)
{
    CHECK(cx, json_get(j, key), MPK_EFORMAT, "\"%s\" is missing", key);
    return json_read_u32(cx, j, key, out);
}

/* A factor that is 1 costs an operator for nothing: 0 stands for it. */
mpk_status hf_read_factor(mpk_context *cx, const json_value *j, const char *key, double *out)
{
    double factor = 1;
    TRY(json_read_double(cx, j, key, &factor));
    CHECK(cx, factor > 0, MPK_EFORMAT, "\"%s\" is %g, expected more than 0", key, factor);
    *out = factor == 1 ? 0 : factor;
    return MPK_OK;
}

/* A member that must have this text if it is there. */
mpk_status hf_expect_text(mpk_context *cx, const json_value *j, const char *key,
                          const char *expected)
{
    str found = str_from(expected);
    TRY(json_read_str(cx, j, key, &found));
    CHECK(cx, str_is(found, expected), MPK_EUNSUPPORTED,
          "\"%s\" \"%.*s\" is not supported in this family; \"%s\" is", key, STR_SHOWN(found, 64),
          expected);
    return MPK_OK;
}

/* The sizes of latent attention.  "head_dim" and "num_key_value_heads" say nothing that counts: one
 * row is cached for all heads. */
static mpk_status fill_latent(mpk_context *cx, const json_value *j, model_config *c)
{
    bool neighbours = true;
    uint32_t plain = 0;
    TRY(hf_read_needed(cx, j, "kv_lora_rank", &c->latent_size));
    TRY(hf_read_needed(cx, j, "qk_nope_head_dim", &plain));
    TRY(hf_read_needed(cx, j, "qk_rope_head_dim", &c->rope_size));
    TRY(hf_read_needed(cx, j, "v_head_dim", &c->value_size));
    TRY(json_read_u32(cx, j, "q_lora_rank", &c->query_latent_size));
    TRY(json_read_bool(cx, j, "rope_interleave", &neighbours));
    CHECK(cx, neighbours, MPK_EUNSUPPORTED, "\"rope_interleave\" false is not supported");
    CHECK(cx, c->latent_size && plain && plain < 1 << 16 && c->rope_size < 1 << 16, MPK_EFORMAT,
          "\"kv_lora_rank\" %u, \"qk_nope_head_dim\" %u and \"qk_rope_head_dim\" %u are not sizes",
          c->latent_size, plain, c->rope_size);
    c->head_size = plain + c->rope_size;
    c->n_kv_heads = 1;
    return MPK_OK;
}

/* The sizes, which must be given unless the family has defaults.  Two may be absent, since they
 * follow: num_key_value_heads is the number of heads, head_dim the share of hidden_size. */
static mpk_status fill_sizes(mpk_context *cx, const json_value *j, const model_def *def,
                             model_config *c)
{
    const model_defaults *s = &def->sizes;
    const struct {
        const char *key;
        uint32_t *out, otherwise;
    } sizes[] = {{"num_hidden_layers", &c->n_layers, 0},
                 {"hidden_size", &c->hidden_size, 0},
                 {"num_attention_heads", &c->n_heads, s->n_heads},
                 {def->mlp_ffn ? def->mlp_ffn : "intermediate_size", &c->ffn_size, s->ffn_size},
                 {"vocab_size", &c->vocab_size, s->vocab_size},
                 {"max_position_embeddings", &c->max_positions, s->max_positions}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *sizes[i].out = sizes[i].otherwise;
        CHECK(cx, sizes[i].otherwise || json_get(j, sizes[i].key), MPK_EFORMAT, "\"%s\" is missing",
              sizes[i].key);
        TRY(json_read_u32(cx, j, sizes[i].key, sizes[i].out));
    }
    if (def->latent)
        return fill_latent(cx, j, c);
    c->n_kv_heads = s->n_kv_heads ? s->n_kv_heads : c->n_heads;
    c->head_size = s->head_size;
    TRY(json_read_u32(cx, j, "num_key_value_heads", &c->n_kv_heads));
    TRY(json_read_u32(cx, j, "head_dim", &c->head_size));
    if (!s->head_size && !json_get(j, "head_dim")) {
        CHECK(cx, c->n_heads && c->hidden_size % c->n_heads == 0, MPK_EFORMAT,
              "\"hidden_size\" %u does not divide into %u heads and there is no \"head_dim\"",
              c->hidden_size, c->n_heads);
        c->head_size = c->hidden_size / c->n_heads;
    }
    return MPK_OK;
}

/* Refuse members that ask for a computation that the supported families do not have.  null
 * counts as absent, since Transformers writes it for what is off. */
static mpk_status refuse_unsupported(mpk_context *cx, const json_value *j, const model_def *def)
{
    const struct {
        const char *key;
        bool supported;
    } members[] = {{"sinks", false},
                   {"clip_qkv", false},
                   {"attention_chunk_size", def->chunk != 0},
                   {"attn_logit_softcapping", def->caps},
                   {"final_logit_softcapping", def->caps},
                   {"embedding_multiplier", def->multipliers},
                   {"residual_multiplier", def->multipliers},
                   {"attention_multiplier", def->multipliers},
                   {"logits_scaling", def->multipliers}};
    bool both_ways = false, head_norms = false, shared = false, layer_norms = false;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        CHECK(cx, members[i].supported || !json_get(j, members[i].key), MPK_EUNSUPPORTED,
              "\"%s\" is not supported", members[i].key);
    TRY(json_read_bool(cx, j, "use_qk_norm", &head_norms));
    /* Cohere's are layer norms; other families that say it have their norms always */
    CHECK(cx, !head_norms || !def->layer_norms, MPK_EUNSUPPORTED,
          "\"use_qk_norm\" is not supported");
    TRY(json_read_bool(cx, j, "qk_layernorm", &layer_norms));
    CHECK(cx, !layer_norms, MPK_EUNSUPPORTED, "\"qk_layernorm\" is not supported");
    TRY(json_read_bool(cx, j, "use_cla", &shared));
    CHECK(cx, !shared, MPK_EUNSUPPORTED, "\"use_cla\" is not supported");
    TRY(json_read_bool(cx, j, "use_bidirectional_attention", &both_ways));
    CHECK(cx, !both_ways, MPK_EUNSUPPORTED, "models without causal attention are not supported");
    return MPK_OK;
}

/* A number that the file may turn off by null. */
static mpk_status read_cap(mpk_context *cx, const json_value *j, const char *key, double otherwise,
                           double *out)
{
    *out = is_given(j, key) ? 0 : otherwise;
    return json_read_double(cx, j, key, out);
}

/* Granite's factors; logits are divided by theirs, and without a factor of the scores it is 1. */
static mpk_status fill_multipliers(mpk_context *cx, const json_value *j, model_config *c)
{
    TRY(hf_read_factor(cx, j, "embedding_multiplier", &c->embedding_scale));
    TRY(hf_read_factor(cx, j, "residual_multiplier", &c->residual_scale));
    TRY(hf_read_factor(cx, j, "attention_multiplier", &c->attention_scale));
    TRY(hf_read_factor(cx, j, "logits_scaling", &c->logits_scale));
    if (c->attention_scale == 0)
        c->attention_scale = 1;
    if (c->logits_scale != 0)
        c->logits_scale = 1 / c->logits_scale;
    return MPK_OK;
}

/* "no_rope_layers": 1 for each layer that rotates, 0 for the others. */
static mpk_status fill_unrotated(mpk_context *cx, const json_value *j, const model_def *def,
                                 model_config *c)
{
    uint32_t every = def->unrotated_every;
    const json_value *list = json_get(j, "no_rope_layers");
    bool use = false;
    if (def->unrotated_full)
        model_unrotate_full(c);
    if (json_is(list, JSON_KIND_LIST) && !list->n)
        list = NULL;
    if (!every)
        return MPK_OK;
    TRY(json_read_bool(cx, j, "use_sliding_window", &use));
    CHECK(cx, !use || !json_get(j, "sliding_window"), MPK_EUNSUPPORTED,
          "\"use_sliding_window\" is not supported in this family");
    TRY(json_read_u32(cx, j, "no_rope_layer_interval", &every));
    CHECK(cx, every, MPK_EFORMAT, "\"no_rope_layer_interval\" is 0");
    CHECK(cx, !list || (json_is(list, JSON_KIND_LIST) && list->n == c->n_layers), MPK_EFORMAT,
          "\"no_rope_layers\" is not a list of %u numbers", c->n_layers);
    for (size_t i = 0; list && i < list->n; i++)
        CHECK(cx, json_is(&list->items[i], JSON_KIND_NUMBER), MPK_EFORMAT,
              "\"no_rope_layers\" holds something that is not a number");
    for (uint32_t i = 0; i < c->n_layers && i < MODEL_MAX_LAYERS; i++)
        model_set_layer(c->unrotated_layers, i,
                        list ? list->items[i].number == 0 : (i + 1) % every == 0);
    return MPK_OK;
}

/* Chunks, and queries that grow in layers that do not rotate; the latter by a number or a truth. */
static mpk_status fill_chunks(mpk_context *cx, const json_value *j, const model_def *def,
                              model_config *c)
{
    const json_value *grows = json_get(j, "attn_temperature_tuning");
    if (!def->chunk)
        return MPK_OK;
    c->chunk = is_given(j, "attention_chunk_size") ? 0 : def->chunk;
    TRY(json_read_u32(cx, j, "attention_chunk_size", &c->chunk));
    c->query_growth = def->growth;
    c->query_step = def->growth_step;
    c->query_offset = 1;
    c->query_unrotated = true;
    TRY(json_read_double(cx, j, "attn_scale", &c->query_growth));
    TRY(json_read_u32(cx, j, "floor_scale", &c->query_step));
    bool on = true;
    if (json_is(grows, JSON_KIND_NUMBER))
        on = grows->number != 0;
    else
        TRY(json_read_bool(cx, j, "attn_temperature_tuning", &on));
    if (!on)
        c->query_growth = 0;
    return MPK_OK;
}

/* Factors and caps of the families that have them. */
static mpk_status fill_factors(mpk_context *cx, const json_value *j, const model_def *def,
                               model_config *c)
{
    if (def->root_embedding)
        c->embedding_scale = sqrt(c->hidden_size);
    if (def->multipliers)
        TRY(fill_multipliers(cx, j, c));
    if (def->logit_scale != 0) {
        c->logits_scale = def->logit_scale;
        TRY(json_read_double(cx, j, "logit_scale", &c->logits_scale));
        CHECK(cx, c->logits_scale > 0, MPK_EFORMAT, "\"logit_scale\" is %g, expected more than 0",
              c->logits_scale);
    }
    if (def->caps) {
        TRY(read_cap(cx, j, "attn_logit_softcapping", def->attention_cap, &c->attention_cap));
        TRY(read_cap(cx, j, "final_logit_softcapping", def->logits_cap, &c->logits_cap));
    }
    double scalar = def->query_scalar;
    if (scalar == 0)
        return MPK_OK;
    TRY(json_read_double(cx, j, "query_pre_attn_scalar", &scalar));
    CHECK(cx, scalar > 0, MPK_EFORMAT, "\"query_pre_attn_scalar\" is %g, expected more than 0",
          scalar);
    c->attention_scale = 1 / sqrt(scalar);
    return MPK_OK;
}

/* Transformers' names of activations -> ours; the tanh forms differ in spelling only. */
static mpk_status fill_activation(mpk_context *cx, arena *a, const json_value *j,
                                  const model_def *def, model_config *c)
{
    static const char *const names[][2] = {
        {"silu", "silu"},           {"swish", "silu"},
        {"gelu", "gelu"},           {"gelu_python", "gelu"},
        {"gelu_tanh", "gelu_tanh"}, {"gelu_new", "gelu_tanh"},
        {"gelu_fast", "gelu_tanh"}, {"gelu_pytorch_tanh", "gelu_tanh"}};
    str name = str_from(def->activation ? def->activation : "silu");
    TRY(json_read_str(cx, j, "hidden_act", &name));
    if (def->swiglu_limit != 0 && str_is(name, "silu")) { /* the sigmoid of the gate's own form */
        c->swiglu_limit = def->swiglu_limit;
        c->activation = STR("swiglu_oai");
        return json_read_double(cx, j, "swiglu_limit", &c->swiglu_limit);
    }
    if (def->loose_gelu && str_is(name, "gelu"))
        name = str_from(def->activation);
    if (def->activation)
        TRY(json_read_str(cx, j, "hidden_activation", &name));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (str_is(name, names[i][0])) {
            c->activation = str_from(names[i][1]);
            return MPK_OK;
        }
    c->activation = (str){arena_copy(a, name.at, name.n), name.n};
    CHECK(cx, c->activation.at, MPK_ENOMEM, "out of memory reading a config");
    return MPK_OK; /* model_check refuses an unknown one by name */
}

/* The dtype of saved weights.  Used for random weights only: each tensor of a file has its own
 * dtype. */
static mpk_status fill_dtype(mpk_context *cx, const json_value *j, model_config *c)
{
    str name = STR("float32");
    TRY(json_read_str(cx, j, "torch_dtype", &name));
    TRY(json_read_str(cx, j, "dtype", &name));
    if (name.n > 6 && memcmp(name.at, "torch.", 6) == 0)
        name = (str){name.at + 6, name.n - 6};
    if (str_is(name, "bfloat16"))
        c->weight_dtype = IR_BF16;
    else if (str_is(name, "float16"))
        c->weight_dtype = IR_F16;
    else
        c->weight_dtype = IR_F32;
    return MPK_OK;
}

/* Biases in the config count only for families that use them, as in Transformers' modules. */
static mpk_status fill_biases(mpk_context *cx, const json_value *j, const model_def *def,
                              model_config *c)
{
    bool attention = def->biases == MODEL_BIASES_UNLESS_SAID || def->biases == MODEL_BIASES_APART ||
                     def->biases == MODEL_BIASES_USED_UNLESS_SAID;
    c->expert_bias = c->router_bias = def->expert_bias;
    c->sinks = def->sinks;
    c->tied_embeddings = def->tied;
    const bool used = def->biases >= MODEL_BIASES_USED;
    TRY(json_read_bool(cx, j, used ? "use_bias" : "attention_bias", &attention));
    TRY(json_read_bool(cx, j, "tie_word_embeddings", &c->tied_embeddings));
    if (def->mlp_bias)
        TRY(json_read_bool(cx, j, "mlp_bias", &c->mlp_bias));
    if (used)
        c->mlp_bias = attention;
    c->mlp_bias |= def->mlp_biased;
    c->head_bias = def->head_bias;
    if (def->biases != MODEL_NO_BIASES)
        c->attention_bias = attention;
    if (def->biases == MODEL_BIASES_APART || def->biases == MODEL_BIASES_APART_IF_SAID)
        return json_read_bool(cx, j, "attention_out_bias", &c->attention_out_bias);
    if (def->biases == MODEL_BIASES_QKV_IF_USED) {
        c->attention_bias = false;
        return json_read_bool(cx, j, "use_qkv_bias", &c->attention_bias);
    }
    if (def->biases != MODEL_BIASES_QKV) {
        c->attention_out_bias = c->attention_bias;
        return MPK_OK;
    }
    c->attention_bias = true;
    return json_read_bool(cx, j, "qkv_bias", &c->attention_bias);
}

/* layer_types, if given: which layers have the window, in place of any rule. */
static mpk_status fill_layer_types(mpk_context *cx, const json_value *j, model_config *c)
{
    const json_value *types = json_get(j, "layer_types");
    if (!types)
        return MPK_OK;
    CHECK(cx, json_is(types, JSON_KIND_LIST) && types->n == c->n_layers, MPK_EFORMAT,
          "\"layer_types\" is not a list of %u names", c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        str type = types->items[i].text;
        bool slides = str_is(type, "sliding_attention");
        CHECK(cx, slides || str_is(type, "full_attention"), MPK_EUNSUPPORTED,
              "\"layer_types\": layer %u is \"%.*s\"; full_attention and sliding_attention are "
              "supported",
              i, LOAD_NAME(type));
        model_set_layer(c->full_layers, i, !slides);
    }
    return MPK_OK;
}

/* Linear attention: its sizes, and the layers that have it. */
static mpk_status fill_delta(mpk_context *cx, const json_value *j, const model_def *def,
                             model_config *c)
{
    const json_value *types = json_get(j, "layer_types");
    uint32_t every = 4;
    if (!def->delta)
        return MPK_OK;
    c->delta_heads = 32, c->delta_key_heads = 16, c->delta_conv = 4;
    c->delta_value_size = c->delta_key_size = 128;
    c->attention_gate = true;
    TRY(json_read_u32(cx, j, "linear_num_value_heads", &c->delta_heads));
    TRY(json_read_u32(cx, j, "linear_num_key_heads", &c->delta_key_heads));
    TRY(json_read_u32(cx, j, "linear_value_head_dim", &c->delta_value_size));
    TRY(json_read_u32(cx, j, "linear_key_head_dim", &c->delta_key_size));
    TRY(json_read_u32(cx, j, "linear_conv_kernel_dim", &c->delta_conv));
    TRY(json_read_bool(cx, j, "attn_output_gate", &c->attention_gate));
    CHECK(cx, c->attention_gate, MPK_EUNSUPPORTED, "\"attn_output_gate\" false is not supported");
    TRY(json_read_u32(cx, j, "full_attention_interval", &every));
    CHECK(cx, every, MPK_EFORMAT, "\"full_attention_interval\" is 0");
    CHECK(cx, !types || (json_is(types, JSON_KIND_LIST) && types->n == c->n_layers), MPK_EFORMAT,
          "\"layer_types\" is not a list of %u names", c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const str type = types ? types->items[i].text : (str){0};
        const bool linear = types ? str_is(type, "linear_attention") : (i + 1) % every != 0;
        CHECK(cx, !types || linear || str_is(type, "full_attention"), MPK_EUNSUPPORTED,
              "\"layer_types\": layer %u is \"%.*s\"; full_attention and linear_attention are "
              "supported",
              i, LOAD_NAME(type));
        model_set_layer(c->delta_layers, i, linear);
    }
    return MPK_OK;
}

/* Each how many layers one sees all: a number, or the letters of as many layers, "LLLG". */
static mpk_status read_pattern(mpk_context *cx, const json_value *j, uint32_t *every)
{
    const json_value *pattern = json_get(j, "sliding_window_pattern");
    if (!json_is(pattern, JSON_KIND_STRING))
        return json_read_u32(cx, j, "sliding_window_pattern", every);
    const size_t n = pattern->text.n;
    for (size_t i = 0; i < n; i++)
        CHECK(cx, pattern->text.at[i] == (i + 1 < n ? 'L' : 'G'), MPK_EUNSUPPORTED,
              "\"sliding_window_pattern\" \"%.*s\" is not supported; \"LLLG\" is",
              STR_SHOWN(pattern->text, 64));
    *every = (uint32_t)n;
    return MPK_OK;
}

/* The window and the layers that have it (see model_windows). */
static mpk_status fill_window(mpk_context *cx, const json_value *j, const model_def *def,
                              model_config *c)
{
    uint32_t first = 28, every = def->window_every; /* Transformers' default of max_window_layers */
    uint32_t window = is_given(j, "sliding_window") ? 0 : def->window;
    const bool last = def->windows == MODEL_WINDOW_LAST_LAYERS;
    bool use = last || def->windows == MODEL_WINDOW_PATTERN;
    TRY(json_read_u32(cx, j, "sliding_window", &window));
    if (last)
        first = every;
    else
        TRY(read_pattern(cx, j, &every));
    if (!last)
        TRY(json_read_bool(cx, j, "use_sliding_window", &use));
    if (def->windows == MODEL_WINDOW_ALWAYS || (def->windows == MODEL_WINDOW_IF_USED && use))
        c->window = window;
    if (def->windows < MODEL_WINDOW_UPPER_LAYERS || !use || !window)
        return MPK_OK;
    TRY(json_read_u32(cx, j, "max_window_layers", &first));
    CHECK(cx, every || def->windows != MODEL_WINDOW_PATTERN, MPK_EFORMAT,
          "\"sliding_window_pattern\" is 0");
    c->window = window;
    for (uint32_t i = 0; i < c->n_layers && i < MODEL_MAX_LAYERS; i++)
        model_set_layer(c->full_layers, i,
                        def->windows == MODEL_WINDOW_PATTERN ? (i + 1) % every == 0 : i < first);
    TRY(fill_layer_types(cx, j, c));
    bool slides = def->unrotated_full; /* a window that no layer has says which ones rotate */
    for (uint32_t i = 0; i < c->n_layers && i < MODEL_MAX_LAYERS; i++)
        slides |= !model_has_layer(c->full_layers, i);
    c->window = slides ? window : 0;
    return MPK_OK;
}

/* The theta of layers with a window, which have no scaling. */
static mpk_status fill_local_theta(mpk_context *cx, const json_value *j, const json_value *local,
                                   const model_def *def, model_config *c)
{
    str type = STR("default");
    c->local_theta = def->local_theta;
    TRY(json_read_double(cx, j, "rope_local_base_freq", &c->local_theta));
    TRY(json_read_double(cx, local, "rope_theta", &c->local_theta));
    TRY(json_read_str(cx, local, "rope_type", &type));
    CHECK(cx, str_is(type, "default"), MPK_EUNSUPPORTED,
          "the rope type \"%.*s\" of layers with sliding attention is not supported",
          STR_SHOWN(type, 64));
    return MPK_OK;
}

/* The rope object; NULL if there is none.  One object for each type of layer is accepted if all are
 * equal: {"full_attention": {..}, "sliding_attention": {..}}, or if the family has a theta for
 * layers with a window. Older files call it rope_scaling, Transformers 5 rope_parameters; an empty
 * rope_scaling is no answer. */
static mpk_status find_rope(mpk_context *cx, const json_value *j, const model_def *def,
                            model_config *c, const json_value **rope)
{
    const json_value *r = json_get(j, "rope_scaling");
    if (!r || (r->kind == JSON_KIND_OBJECT && r->n == 0))
        r = json_get(j, "rope_parameters");
    CHECK(cx, !r || r->kind == JSON_KIND_OBJECT, MPK_EFORMAT,
          "\"rope_parameters\" is not an object");
    const bool local = def->local_theta != 0 || def->local_unscaled;
    const json_value *nested = local ? json_get(r, "full_attention") : NULL;
    if (local)
        TRY(fill_local_theta(cx, j, json_get(r, "sliding_attention"), def, c));
    for (size_t i = 0; r && !local && i < r->n; i++) {
        const json_value *value = &r->items[i];
        if (value->kind != JSON_KIND_OBJECT)
            continue;
        CHECK(cx, !nested || json_equals(nested, value), MPK_EUNSUPPORTED,
              "\"rope_parameters\" that differ between types of layers are not supported");
        nested = value;
    }
    *rope = nested ? nested : r;
    return MPK_OK;
}

/* One of longrope's lists of divisors, as f32 in arena a; their number is checked here. */
static mpk_status list_divisors(mpk_context *cx, arena *a, const json_value *rope, const char *key,
                                uint32_t n, const float **out)
{
    const json_value *list = json_get(rope, key);
    float *divisors;
    CHECK(cx, json_is(list, JSON_KIND_LIST) && list->n == n && n, MPK_EFORMAT,
          "\"%s\" is not a list of %u numbers, half of what is rotated of a head", key, n);
    NEW(cx, a, divisors, n);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(cx, json_is(&list->items[i], JSON_KIND_NUMBER), MPK_EFORMAT,
              "\"%s\" holds something that is not a number", key);
        divisors[i] = (float)list->items[i].number;
    }
    *out = divisors;
    return MPK_OK;
}

/* Hunyuan's "dynamic" scaling, which does not depend on the context: theta rises with "alpha". */
static mpk_status raise_theta(mpk_context *cx, const json_value *rope, model_config *c)
{
    double alpha = 0;
    TRY(json_read_double(cx, rope, "alpha", &alpha));
    CHECK(cx, alpha > 0 && c->rope_size > 2, MPK_EUNSUPPORTED,
          "the rope type \"dynamic\" without an \"alpha\" above 0 is not supported");
    c->rope_theta *= pow(alpha, c->rope_size / (c->rope_size - 2.0));
    return MPK_OK;
}

/* The kind of scaling; "type" is the older spelling of "rope_type", and "su" of "longrope".  Lists
 * of divisors mean longrope, whatever its name ("yarn" in early files). */
static mpk_status fill_rope_type(mpk_context *cx, const json_value *rope, const model_def *def,
                                 model_config *c)
{
    static const char *const names[] = {"default", "linear", "llama3", "yarn", "longrope"};
    str type = STR("default");
    TRY(json_read_str(cx, rope, "type", &type));
    TRY(json_read_str(cx, rope, "rope_type", &type));
    if (str_is(type, "su") || json_get(rope, "long_factor"))
        type = STR("longrope");
    if (str_is(type, "mrope")) /* positions in images: those of text are one number */
        type = STR("default");
    if (def->rope_alpha && str_is(type, "dynamic"))
        return raise_theta(cx, rope, c);
    for (int i = 0; i < 5; i++)
        if (str_is(type, names[i])) {
            c->rope_scaling = (model_rope_scaling)i;
            return MPK_OK;
        }
    FAIL(cx, MPK_EUNSUPPORTED,
         "the rope type \"%.*s\" is not supported; default, linear, llama3, yarn and longrope are",
         STR_SHOWN(type, 64));
}

/* Queries that grow with the position, by steps of the original context. */
static mpk_status fill_query_scale(mpk_context *cx, const json_value *rope, const model_def *def,
                                   model_config *c)
{
    static const char key[] = "llama_4_scaling_beta";
    CHECK(cx, rope || !def->scaled_queries, MPK_EFORMAT, "\"rope_parameters\" is missing");
    double growth = 0;
    TRY(json_read_double(cx, rope, key, &growth));
    CHECK(cx, growth == 0 || def->scaled_queries, MPK_EUNSUPPORTED,
          "\"%s\" is not supported in this family", key);
    if (growth == 0)
        return MPK_OK;
    c->query_growth = growth;
    return hf_read_needed(cx, rope, "original_max_position_embeddings", &c->query_step);
}

/* All about rope.  Values in the rope object take precedence over those beside it, except
 * original_max_position_embeddings, which Transformers takes from outside. A second reading of the
 * same member leaves the value if the member is absent: so the order of the lines is the order of
 * precedence. */
static mpk_status fill_rope(mpk_context *cx, arena *a, const json_value *j, const model_def *def,
                            model_config *c)
{
    const json_value *rope = NULL;
    double rotated = def->rotated != 0 ? def->rotated : 1;
    uint32_t entries = 0;
    TRY(find_rope(cx, j, def, c, &rope));
    c->rope_theta = def->rope_theta;
    TRY(json_read_double(cx, j, "rope_theta", &c->rope_theta));
    TRY(json_read_u32(cx, j, "rotary_dim", &entries));
    if (entries)
        rotated = (double)entries / c->head_size;
    TRY(json_read_double(cx, j, "rotary_pct", &rotated));
    TRY(json_read_double(cx, j, "rotary_emb_base", &c->rope_theta));
    TRY(json_read_double(cx, j, "partial_rotary_factor", &rotated));
    TRY(json_read_double(cx, rope, "rope_theta", &c->rope_theta));
    TRY(json_read_double(cx, rope, "partial_rotary_factor", &rotated));
    CHECK(cx, rotated > 0 && rotated <= 1, MPK_EFORMAT,
          "\"partial_rotary_factor\" is %g, expected 0 to 1", rotated);
    /* entries after these pass unrotated */
    if (!def->latent)
        c->rope_size = (uint32_t)(c->head_size * rotated);
    TRY(fill_rope_type(cx, rope, def, c));
    TRY(fill_query_scale(cx, rope, def, c));
    if (def->local_unscaled && c->rope_scaling != MODEL_ROPE_DEFAULT && c->local_theta == 0)
        c->local_theta = c->rope_theta;
    if (c->rope_scaling == MODEL_ROPE_DEFAULT)
        return MPK_OK;

    c->rope_original_positions = c->max_positions;
    c->rope_beta_fast = 32, c->rope_beta_slow = 1, c->rope_truncate = !def->rope_unrounded;
    TRY(json_read_double(cx, rope, "factor", &c->rope_factor));
    TRY(json_read_double(cx, rope, "low_freq_factor", &c->rope_low_freq_factor));
    TRY(json_read_double(cx, rope, "high_freq_factor", &c->rope_high_freq_factor));
    TRY(json_read_double(cx, rope, "beta_fast", &c->rope_beta_fast));
    TRY(json_read_double(cx, rope, "beta_slow", &c->rope_beta_slow));
    TRY(json_read_double(cx, rope, "attention_factor", &c->rope_attention_factor));
    TRY(json_read_double(cx, rope, "mscale", &c->rope_mscale));
    TRY(json_read_double(cx, rope, "mscale_all_dim", &c->rope_mscale_all_dim));
    TRY(json_read_bool(cx, rope, "truncate", &c->rope_truncate));
    TRY(json_read_u32(cx, rope, "original_max_position_embeddings", &c->rope_original_positions));
    TRY(json_read_u32(cx, j, "original_max_position_embeddings", &c->rope_original_positions));
    /* as Transformers derives a factor that is left out */
    if (c->rope_scaling >= MODEL_ROPE_YARN && !json_get(rope, "factor") &&
        c->rope_original_positions)
        c->rope_factor = (double)c->max_positions / c->rope_original_positions;
    if (c->rope_scaling != MODEL_ROPE_LONG)
        return MPK_OK;
    TRY(list_divisors(cx, a, rope, "short_factor", c->rope_size / 2, &c->rope_short));
    return list_divisors(cx, a, rope, "long_factor", c->rope_size / 2, &c->rope_long);
}

/* Add a token id, or a list of them; negative ids mean none. */
static mpk_status add_eos_tokens(mpk_context *cx, const json_value *value, model_config *c)
{
    const json_value *items = json_is(value, JSON_KIND_LIST) ? value->items : value;
    const size_t n = json_is(value, JSON_KIND_LIST) ? value->n : value != NULL;
    for (size_t i = 0; i < n; i++) {
        CHECK(cx, items[i].is_integer && items[i].integer <= INT32_MAX, MPK_EFORMAT,
              "\"eos_token_id\" is not a token id");
        if (items[i].integer >= 0)
            TRY(load_add_eos(cx, c, (int32_t)items[i].integer));
    }
    return MPK_OK;
}

/* The family, and in *j the configuration of its model, which models that also read images hold
 * under "text_config". */
static mpk_status find_family(mpk_context *cx, const json_value **j, const model_def **def)
{
    str family = {0};
    TRY(json_read_str(cx, *j, "model_type", &family));
    CHECK(cx, family.n, MPK_EFORMAT,
          "\"model_type\" is missing: this is not the configuration of a model");
    const model_holder *how = NULL;
    if (!model_find_held(family, (str){0}, &how))
        return model_find(cx, family, def);
    const json_value *held = json_get(*j, "text_config");
    str type = {0};
    CHECK(cx, how->flat || json_is(held, JSON_KIND_OBJECT), MPK_EFORMAT,
          "\"text_config\" is missing: it is the part of a %.*s model that is supported",
          STR_SHOWN(family, 64));
    TRY(json_read_str(cx, held, "model_type", &type));
    *def = model_find_held(family, type, &how);
    CHECK(cx, *def, MPK_EUNSUPPORTED,
          "\"text_config\" of a %.*s model of the type \"%.*s\" is not supported",
          STR_SHOWN(family, 64), STR_SHOWN(type, 64));
    *j = held ? held : *j;
    return MPK_OK;
}

/* All of config.json.  The family is checked before the sizes, so that an unknown model is reported
 * as unknown. bos_token_id may be a list or null in some files: then there is none. */
static mpk_status fill_config(mpk_context *cx, arena *a, const json_value *j, model_config *c)
{
    const model_def *def;
    const json_value *whole = j;
    TRY(find_family(cx, &j, &def));
    c->family = str_from(def->family);
    TRY(refuse_unsupported(cx, j, def));
    TRY(fill_sizes(cx, j, def, c));
    TRY(fill_factors(cx, j, def, c));
    TRY(hf_fill_experts(cx, j, def, c));
    c->norm_eps = def->norm_eps;
    c->layer_norms = def->layer_norms;
    c->norm_bias = def->norm_bias;
    c->bare_norms = def->bare_norms;
    c->parallel = def->parallel;
    if (def->parallel_said)
        TRY(json_read_bool(cx, j, "use_parallel_residual", &c->parallel));
    TRY(json_read_double(cx, j, def->eps ? def->eps : "rms_norm_eps", &c->norm_eps));
    TRY(fill_biases(cx, j, def, c));
    TRY(fill_chunks(cx, j, def, c));
    c->head_norms = def->head_norms;
    if (def->head_norms_said)
        TRY(json_read_bool(cx, j, "use_qk_norm", &c->head_norms));
    TRY(fill_activation(cx, a, j, def, c));
    TRY(fill_dtype(cx, j, c));
    TRY(fill_window(cx, j, def, c));
    TRY(fill_delta(cx, j, def, c));
    TRY(fill_rope(cx, a, j, def, c));
    TRY(fill_unrotated(cx, j, def, c));
    c->bos_token = -1;
    const json_value *bos = json_get(json_get(whole, "bos_token_id") ? whole : j, "bos_token_id");
    if (bos && bos->is_integer && bos->integer >= 0 && bos->integer <= INT32_MAX)
        c->bos_token = (int32_t)bos->integer;
    TRY(add_eos_tokens(cx, json_get(j, "eos_token_id"), c));
    if (whole != j)
        TRY(add_eos_tokens(cx, json_get(whole, "eos_token_id"), c));
    return model_check(cx, c);
}

/* The document lives in scratch memory; texts that the configuration keeps are copied to *a. */
static mpk_status parse_config(mpk_context *cx, arena *a, arena *scratch, str json, model_config *c)
{
    const json_value *j = NULL;
    TRY(json_parse(cx, scratch, json, &j));
    return fill_config(cx, a, j, c);
}

/* *out is changed only on success, so a caller never sees half a configuration. */
mpk_status load_hf_config(mpk_context *cx, arena *a, str json, model_config *out)
{
    arena scratch = {0};
    model_config c = {0};
    mpk_status status = parse_config(cx, a, &scratch, json, &c);
    arena_free(&scratch);
    TRY(status);
    *out = c;
    return MPK_OK;
}

/* Suggestions for sampling.  The filters apply only with do_sample; the repetition penalty
 * always. */
static mpk_status fill_generation(mpk_context *cx, const json_value *j, load_model *m)
{
    double temperature = -1, top_p = -1, min_p = -1, typical_p = -1, repetition = -1, top_k = 0;
    bool sample = false;
    TRY(json_read_bool(cx, j, "do_sample", &sample));
    TRY(json_read_double(cx, j, "temperature", &temperature));
    TRY(json_read_double(cx, j, "top_p", &top_p));
    TRY(json_read_double(cx, j, "min_p", &min_p));
    TRY(json_read_double(cx, j, "typical_p", &typical_p));
    TRY(json_read_double(cx, j, "repetition_penalty", &repetition));
    TRY(json_read_double(cx, j, "top_k", &top_k)); /* some files write -1 for off */
    m->suggested.repetition_penalty = (float)repetition;
    TRY(add_eos_tokens(cx, json_get(j, "eos_token_id"), &m->config));
    if (!sample) /* greedy decoding: the sampling values of the file are unused */
        return MPK_OK;
    m->suggested.temperature = (float)temperature;
    m->suggested.top_p = (float)top_p;
    m->suggested.min_p = (float)min_p;
    m->suggested.typical_p = (float)typical_p;
    m->suggested.top_k = top_k >= 1 && top_k <= INT32_MAX ? (int32_t)top_k : 0;
    return MPK_OK;
}

mpk_status load_hf_generation_config(mpk_context *cx, str json, load_model *m)
{
    const json_value *j = NULL;
    TRY(json_parse(cx, &m->arena, json, &j));
    return fill_generation(cx, j, m);
}
