/* model_build.c - check hyper-parameters, find the family, build its tensor program.
 *
 * Input: hyper-parameters from any file, sizes, and the dtypes of the weights.  Output: a
 * verified graph.  The limits are far above every model that exists, and low enough that no
 * product of a few of them overflows.  Called by load.c (to check a checkpoint) and by the
 * engine.
 */
#include "model/model.h"

#include <math.h>
#include <stdio.h>

enum {
    MAX_HIDDEN = 1 << 17,
    MAX_HEADS = 4096,
    MAX_HEAD_SIZE = 1024,
    MAX_DELTA_KEY = 256, /* as many as the operator accepts */
    MAX_FFN = 1 << 20,
    MAX_EXPERTS_PER_TOKEN = 64, /* as many as the operators accept */
    MAX_EXPERT_GROUPS = 64,
    MAX_LATENT_HEADS = 128, /* likewise */
    MAX_VOCAB = 1 << 22,
    MAX_POSITIONS = 1 << 27,
    MAX_STEP_TOKENS = 1 << 20,
    LIST_BYTES = 1024, /* of a list of families in a message */
};

/* A count from 1 to a limit. */
static mpk_status check_size(mpk_context *cx, const char *what, uint32_t value, uint32_t limit)
{
    CHECK(cx, value >= 1 && value <= limit, MPK_EFORMAT, "the model's %s is %u, expected 1 to %u",
          what, value, limit);
    return MPK_OK;
}

/* False for NaN, too. */
static bool is_within(double value, double low, double high)
{
    return value >= low && value <= high;
}

static mpk_status check_number(mpk_context *cx, const char *what, double value, double low,
                               double high)
{
    CHECK(cx, is_within(value, low, high), MPK_EFORMAT, "the model's %s is %g, expected %g to %g",
          what, value, low, high);
    return MPK_OK;
}

/* Write "llama, qwen2": the families, or with `gguf` the architectures of their files, each
 * once; returns `to`. */
static const char *list_families(char to[LIST_BYTES], bool gguf)
{
    const char *last = "";
    size_t n = 0;
    to[0] = 0;
    for (const model_def *const *m = model_table; *m; m++) {
        const char *name = gguf ? (*m)->gguf : (*m)->family;
        if (!name || strcmp(name, last) == 0 || n + strlen(name) + 3 >= LIST_BYTES)
            continue;
        n += (size_t)snprintf(to + n, LIST_BYTES - n, "%s%s", n ? ", " : "", name);
        last = name;
    }
    return to;
}

/* By the family's name, which must be in the table; a refusal lists those that are. */
mpk_status model_find(mpk_context *cx, str family, const model_def **out)
{
    char known[LIST_BYTES];
    for (const model_def *const *m = model_table; *m; m++)
        if (str_is(family, (*m)->family)) {
            *out = *m;
            return MPK_OK;
        }
    FAIL(cx, MPK_EUNSUPPORTED, "models of the family \"%.*s\" are not supported; these are: %s",
         STR_SHOWN(family, 64), list_families(known, false));
}

const model_def *model_find_held(str holder, str held, const model_holder **how)
{
    for (const model_def *const *m = model_table; *m; m++)
        for (const model_holder *h = (*m)->holders; h && h->type; h++)
            if (str_is(holder, h->type) && (!held.n || str_is(held, h->text))) {
                *how = h;
                return *m;
            }
    return NULL;
}

/* GGUF has one name for models of an architecture with and without experts: of two families with
 * that name the one that is a mixture as the file is, else the first.
 */
mpk_status model_find_gguf(mpk_context *cx, str architecture, bool has_experts,
                           const model_def **out)
{
    const model_def *found = NULL;
    char known[LIST_BYTES];
    for (const model_def *const *m = model_table; *m; m++)
        if ((*m)->gguf && str_is(architecture, (*m)->gguf) &&
            (!found || (*m)->is_mixture == has_experts))
            found = *m;
    CHECK(cx, found, MPK_EUNSUPPORTED,
          "GGUF files of the architecture \"%.*s\" are not supported; these are: %s",
          STR_SHOWN(architecture, 64), list_families(known, true));
    *out = found;
    return MPK_OK;
}

const char *const (*model_gguf_names(str architecture))[2]
{
    for (const model_def *const *m = model_table; *m; m++)
        if ((*m)->gguf && str_is(architecture, (*m)->gguf) && (*m)->gguf_names)
            return (*m)->gguf_names;
    return NULL;
}

/* The divisors of longrope must be there and positive. */
static mpk_status check_divisors(mpk_context *cx, const model_config *c)
{
    CHECK(cx, c->rope_short && c->rope_long, MPK_EFORMAT,
          "the model's rope scaling is longrope, but its factors for short and long contexts are "
          "not given");
    for (uint32_t i = 0; i < c->rope_size / 2; i++) {
        TRY(check_number(cx, "rope factor of short contexts", c->rope_short[i], 1e-6, 1e6));
        TRY(check_number(cx, "rope factor of long contexts", c->rope_long[i], 1e-6, 1e6));
    }
    return check_number(cx, "rope attention_factor", c->rope_attention_factor, 0, 1e6);
}

/* Each kind of scaling needs other numbers.  theta must exceed 1, because its logarithm is a
 * divisor. */
static mpk_status check_rope(mpk_context *cx, const model_config *c)
{
    CHECK(cx, c->rope_size && c->rope_size % 2 == 0 && c->rope_size <= c->head_size, MPK_EFORMAT,
          "the model rotates %u of the %u elements of a head, expected an even number up to that",
          c->rope_size, c->head_size);
    TRY(check_number(cx, "rope theta", c->rope_theta, 1.0 + 1e-6, 1e30));
    if (c->local_theta != 0)
        TRY(check_number(cx, "rope theta of layers with a window", c->local_theta, 1.0 + 1e-6,
                         1e30));
    CHECK(cx, (unsigned)c->rope_scaling <= MODEL_ROPE_LONG, MPK_EUNSUPPORTED,
          "rope scaling %d is not supported", (int)c->rope_scaling);
    if (c->rope_scaling != MODEL_ROPE_DEFAULT)
        TRY(check_number(cx, "rope scaling factor", c->rope_factor, 1e-3, 1e6));
    if (c->rope_scaling >= MODEL_ROPE_LLAMA3)
        TRY(check_size(cx, "original number of positions (rope scaling)",
                       c->rope_original_positions, MAX_POSITIONS));
    if (c->rope_scaling == MODEL_ROPE_LLAMA3) {
        TRY(check_number(cx, "rope low_freq_factor", c->rope_low_freq_factor, 1e-6, 1e6));
        TRY(check_number(cx, "rope high_freq_factor", c->rope_high_freq_factor, 1e-6, 1e6));
        CHECK(cx, c->rope_high_freq_factor >= c->rope_low_freq_factor, MPK_EFORMAT,
              "rope high_freq_factor %g is below low_freq_factor %g", c->rope_high_freq_factor,
              c->rope_low_freq_factor);
    }
    if (c->rope_scaling == MODEL_ROPE_YARN) {
        TRY(check_number(cx, "rope beta_fast", c->rope_beta_fast, 1e-6, 1e6));
        TRY(check_number(cx, "rope beta_slow", c->rope_beta_slow, 1e-6, 1e6));
        TRY(check_number(cx, "rope attention_factor", c->rope_attention_factor, 0, 1e6));
        TRY(check_number(cx, "rope mscale", c->rope_mscale, 0, 1e6));
        TRY(check_number(cx, "rope mscale_all_dim", c->rope_mscale_all_dim, 0, 1e6));
    }
    return c->rope_scaling == MODEL_ROPE_LONG ? check_divisors(cx, c) : MPK_OK;
}

/* Factors and caps, which 0 turns off. */
static mpk_status check_factors(mpk_context *cx, const model_config *c)
{
    TRY(check_number(cx, "embedding factor", c->embedding_scale, 0, 1e6));
    TRY(check_number(cx, "factor of what a layer adds", c->residual_scale, 0, 1e6));
    TRY(check_number(cx, "factor of the logits", c->logits_scale, 0, 1e6));
    TRY(check_number(cx, "factor of attention scores", c->attention_scale, 0, 1e6));
    TRY(check_number(cx, "growth of queries", c->query_growth, 0, 1e6));
    if (c->query_growth != 0)
        TRY(check_size(cx, "positions after which queries grow", c->query_step, MAX_POSITIONS));
    TRY(check_number(cx, "cap of attention scores", c->attention_cap, 0, 1e6));
    return check_number(cx, "cap of the logits", c->logits_cap, 0, 1e6);
}

/* Groups of equal size, of which those that are kept have enough experts; heads, whose weights lie
 * like experts, as many as the operators accept. */
static mpk_status check_groups(mpk_context *cx, const model_config *c)
{
    const uint32_t groups = c->expert_groups ? c->expert_groups : 1,
                   kept = c->kept_groups ? c->kept_groups : 1,
                   best = c->group_best ? c->group_best : 1;
    TRY(check_size(cx, "number of groups of experts", groups, MAX_EXPERT_GROUPS));
    TRY(check_size(cx, "number of groups that experts are chosen from", kept, groups));
    CHECK(cx, c->n_experts % groups == 0, MPK_EFORMAT, "%u experts are not %u equal groups",
          c->n_experts, groups);
    CHECK(cx, c->experts_per_token <= kept * (c->n_experts / groups), MPK_EFORMAT,
          "%u experts a token cannot be chosen from %u of %u groups of %u experts",
          c->experts_per_token, kept, groups, c->n_experts / groups);
    CHECK(cx, best <= 2 && best <= c->n_experts / groups, MPK_EFORMAT,
          "groups of %u experts cannot be rated by their %u best", c->n_experts / groups, best);
    return check_number(cx, "factor of the weights of experts", c->expert_scale, 0, 1e6);
}

/* The head has a part that is rotated and one that is not. */
static mpk_status check_latent(mpk_context *cx, const model_def *family, const model_config *c)
{
    CHECK(cx, !c->latent_size == !family->latent, MPK_EFORMAT,
          "a model of the family %s has a latent of %u entries", family->family, c->latent_size);
    if (!c->latent_size)
        return MPK_OK;
    TRY(check_size(cx, "number of attention heads", c->n_heads, MAX_LATENT_HEADS));
    TRY(check_size(cx, "number of key-value heads", c->n_kv_heads, 1));
    TRY(check_size(cx, "size of the latent (kv_lora_rank)", c->latent_size,
                   MAX_HEAD_SIZE - c->rope_size));
    CHECK(cx, c->query_latent_size <= MAX_HIDDEN, MPK_EFORMAT,
          "the model's size of the latent of queries (q_lora_rank) is %u, expected up to %d",
          c->query_latent_size, MAX_HIDDEN);
    TRY(check_size(cx, "size of the values of a head", c->value_size, MAX_HEAD_SIZE));
    CHECK(cx, c->rope_size < c->head_size, MPK_EFORMAT,
          "the model rotates %u of the %u elements of a head, expected a part of them",
          c->rope_size, c->head_size);
    return MPK_OK;
}

/* Sizes of linear attention, and at least one layer of each kind: the KV cache's size is that of a
 * layer that has one. */
static mpk_status check_delta(mpk_context *cx, const model_def *family, const model_config *c)
{
    CHECK(cx, !c->delta_heads == !family->delta, MPK_EFORMAT,
          "a model of the family %s has %u heads of linear attention", family->family,
          c->delta_heads);
    if (!c->delta_heads)
        return MPK_OK;
    TRY(check_size(cx, "number of value heads of linear attention", c->delta_heads, MAX_HEADS));
    TRY(check_size(cx, "number of key heads of linear attention", c->delta_key_heads, MAX_HEADS));
    TRY(check_size(cx, "key size of linear attention", c->delta_key_size, MAX_DELTA_KEY));
    TRY(check_size(cx, "value size of linear attention", c->delta_value_size, MAX_HEAD_SIZE));
    CHECK(cx, c->delta_heads % c->delta_key_heads == 0, MPK_EFORMAT,
          "%u value heads of linear attention cannot share %u key heads evenly", c->delta_heads,
          c->delta_key_heads);
    CHECK(cx, c->delta_conv >= 2 && c->delta_conv <= 8, MPK_EFORMAT,
          "the convolution of linear attention covers %u tokens, expected 2 to 8", c->delta_conv);
    CHECK(cx, model_cached_layers(c), MPK_EUNSUPPORTED,
          "models all of whose layers have linear attention are not supported");
    return MPK_OK;
}

/* No experts, or bounds for what sizes tensors and the lists of a token's experts. */
static mpk_status check_experts(mpk_context *cx, const model_def *family, const model_config *c)
{
    if (!c->n_experts)
        return MPK_OK;
    TRY(check_size(cx, "number of experts", c->n_experts, MODEL_MAX_EXPERTS));
    TRY(check_size(cx, "number of experts a token", c->experts_per_token,
                   c->n_experts < MAX_EXPERTS_PER_TOKEN ? c->n_experts : MAX_EXPERTS_PER_TOKEN));
    TRY(check_size(cx, "feed-forward size of an expert", c->expert_ffn_size, MAX_FFN));
    if (family->shared_expert)
        TRY(check_size(cx, "feed-forward size of the shared expert", c->shared_ffn_size, MAX_FFN));
    TRY(check_groups(cx, c));
    return check_size(cx, "step between layers with experts", c->expert_every, UINT32_MAX);
}

/* All that a builder of a graph relies on: numbers come from files, and products of two of them
 * must not overflow.  A configuration that passes gives a graph whose shapes can be inferred.
 */
mpk_status model_check(mpk_context *cx, const model_config *c)
{
    const model_def *family;
    TRY(model_find(cx, c->family, &family));
    TRY(check_size(cx, "number of layers", c->n_layers, MODEL_MAX_LAYERS));
    TRY(check_size(cx, "hidden size", c->hidden_size, MAX_HIDDEN));
    TRY(check_size(cx, "number of attention heads", c->n_heads, MAX_HEADS));
    TRY(check_size(cx, "number of key-value heads", c->n_kv_heads, MAX_HEADS));
    TRY(check_size(cx, "head size", c->head_size, MAX_HEAD_SIZE));
    TRY(check_size(cx, "feed-forward size", c->ffn_size, MAX_FFN));
    TRY(check_size(cx, "vocabulary size", c->vocab_size, MAX_VOCAB));
    TRY(check_size(cx, "number of positions", c->max_positions, MAX_POSITIONS));
    CHECK(cx, c->n_heads % c->n_kv_heads == 0, MPK_EFORMAT,
          "%u attention heads cannot share %u key-value heads evenly", c->n_heads, c->n_kv_heads);
    TRY(check_number(cx, "norm epsilon", c->norm_eps, 0, 1));
    const bool is_limited = str_is(c->activation, "swiglu_oai");
    const bool has_relu2 = family->activation && strcmp(family->activation, "relu2") == 0;
    if (is_limited)
        TRY(check_number(cx, "swiglu_limit", c->swiglu_limit, 1e-6, 1e6));
    CHECK(cx,
          str_is(c->activation, "silu") || str_is(c->activation, "gelu") ||
              str_is(c->activation, "gelu_tanh") || (family->swiglu_limit != 0 && is_limited) ||
              (str_is(c->activation, "relu2") && has_relu2),
          MPK_EUNSUPPORTED,
          "the activation \"%.*s\" is not supported; silu, gelu and gelu_tanh are",
          STR_SHOWN(c->activation, 64));
    CHECK(cx, c->n_eos_tokens <= sizeof c->eos_tokens / sizeof *c->eos_tokens, MPK_EFORMAT,
          "the model has %u end-of-text tokens, at most 16 are supported", c->n_eos_tokens);
    TRY(check_factors(cx, c));
    TRY(check_experts(cx, family, c));
    TRY(check_delta(cx, family, c));
    TRY(check_rope(cx, c));
    return check_latent(cx, family, c);
}

void model_unrotate_full(model_config *c)
{
    for (uint32_t i = 0; c->window && i < c->n_layers && i < MODEL_MAX_LAYERS; i++)
        model_set_layer(c->unrotated_layers, i, model_has_layer(c->full_layers, i));
}

double model_attention_scale(const model_config *c)
{
    const double scale = c->attention_scale != 0 ? c->attention_scale : 1.0 / sqrt(c->head_size);
    if (!c->latent_size || c->rope_scaling == MODEL_ROPE_DEFAULT || c->rope_factor <= 1)
        return scale;
    const double factor = 0.1 * c->rope_mscale_all_dim * log(c->rope_factor) + 1;
    return scale * factor * factor;
}

/* As op/rope.h computes it. */
double model_long_factor(const model_config *c)
{
    if (c->rope_attention_factor)
        return c->rope_attention_factor;
    if (c->rope_factor <= 1 || c->rope_original_positions <= 1)
        return 1;
    return sqrt(1 + log(c->rope_factor) / log(c->rope_original_positions));
}

uint32_t model_cached_layers(const model_config *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_layers && i < MODEL_MAX_LAYERS; i++)
        n += !model_has_layer(c->delta_layers, i);
    return n;
}

uint64_t model_slot_bytes(const model_config *c)
{
    const uint64_t keys = (uint64_t)c->delta_key_heads * c->delta_key_size,
                   values = (uint64_t)c->delta_heads * c->delta_value_size;
    if (!c->delta_heads)
        return 0;
    return (c->n_layers - model_cached_layers(c)) * sizeof(float) *
           (values * c->delta_key_size + (c->delta_conv - 1) * (2 * keys + values));
}

/* The n-th of every expert_every layers, unless the file lists it among the dense ones. */
bool model_has_experts(const model_config *c, uint32_t layer)
{
    bool dense = model_has_layer(c->dense_layers, layer);
    return c->n_experts && (layer + 1) % c->expert_every == 0 && !dense;
}

/* The caller's sizes, not a file's: MPK_EARG. */
static mpk_status check_shape(mpk_context *cx, const model_shape *s)
{
    CHECK(cx, s->n_tokens >= 1 && s->n_tokens <= MAX_STEP_TOKENS, MPK_EARG,
          "%u tokens a step, expected 1 to %d", s->n_tokens, MAX_STEP_TOKENS);
    CHECK(cx, s->n_rows >= 1 && s->n_rows <= s->n_tokens, MPK_EARG,
          "%u rows of logits of %u tokens", s->n_rows, s->n_tokens);
    CHECK(cx, s->n_slots && s->n_pages && s->page_tokens && s->max_pages_per_slot, MPK_EARG,
          "a model needs request slots and KV pages: %u slots, %u pages of %u tokens, %u a slot",
          s->n_slots, s->n_pages, s->page_tokens, s->max_pages_per_slot);
    CHECK(cx,
          s->kv_dtype == IR_F32 || s->kv_dtype == IR_F16 || s->kv_dtype == IR_BF16 ||
              s->kv_dtype == IR_Q8_0,
          MPK_EARG, "the KV cache holds f32, f16, bf16 or q8_0, not %s",
          ir_dtype_table[s->kv_dtype].name);
    CHECK(cx, s->activation_dtype == IR_F32 || s->activation_dtype == IR_BF16, MPK_EARG,
          "activations are f32 or bf16, not %s", ir_dtype_table[s->activation_dtype].name);
    return MPK_OK;
}

/* Numbers are checked before and the graph after: what a family builds from a configuration that
 * passed must verify, so a failure there is a fault of its builder.
 */
mpk_status model_build(mpk_context *cx, arena *a, const model_config *c, const model_shape *s,
                       const model_weights *w, ir_graph **out)
{
    TRY(model_check(cx, c));
    TRY(check_shape(cx, s));
    const model_def *family;
    ir_graph *g;
    TRY(model_find(cx, c->family, &family));
    TRY(ir_create(cx, a, family->family, &g));
    NOTE(cx, family->build(cx, c, s, w, g), "building a %s model", family->family);
    NOTE(cx, ir_verify(cx, g), "checking the %s model that was built", family->family);
    *out = g;
    return MPK_OK;
}
