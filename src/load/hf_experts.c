/* hf_experts.c - what a config.json says of a mixture of experts: their number and sizes, which
 * layers have them, and how routers choose.  Called by hf_config.c.
 */
#include "base/json.h"
#include "load/hf_config.h"

/* The number of experts; 0 for a model without experts, or with one.  Transformers 5 writes
 * Qwen3's "num_experts" as "num_local_experts". */
static mpk_status count_experts(mpk_context *cx, const json_value *j, const model_def *def,
                                model_config *c)
{
    static const char *const names[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    if (def->expert_count)
        return json_read_u32(cx, j, def->expert_count, &c->n_experts);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint32_t n = 0;
        TRY(json_read_u32(cx, j, names[i], &n));
        CHECK(cx, n <= 1 || (def->is_mixture && (i < 2 || def->routing)), MPK_EUNSUPPORTED,
              "mixtures of experts of the family \"%.*s\" are not supported (\"%s\" is %u)",
              LOAD_NAME(c->family), names[i], n);
        c->n_experts = def->is_mixture && n > c->n_experts ? n : c->n_experts;
    }
    return MPK_OK;
}

/* "mlp_only_layers": the layers without experts, as bits. */
static mpk_status fill_dense_layers(mpk_context *cx, const json_value *j, model_config *c)
{
    const json_value *layers = json_get(j, "mlp_only_layers");
    CHECK(cx, !layers || json_is(layers, JSON_KIND_LIST), MPK_EFORMAT,
          "\"mlp_only_layers\" is not a list of layers");
    for (size_t i = 0; layers && i < layers->n; i++) {
        CHECK(cx, layers->items[i].is_integer, MPK_EFORMAT,
              "\"mlp_only_layers\" holds something that is not a layer");
        int64_t layer = layers->items[i].integer;
        if (layer >= 0 && layer < MODEL_MAX_LAYERS)
            model_set_layer(c->dense_layers, (uint32_t)layer, true);
    }
    return MPK_OK;
}

/* "mlp_layer_types", if given: "sparse" for each layer with experts, "dense" for the others. */
static mpk_status fill_layer_types(mpk_context *cx, const json_value *j, model_config *c)
{
    const json_value *types = json_get(j, "mlp_layer_types");
    CHECK(cx, !types || (json_is(types, JSON_KIND_LIST) && types->n == c->n_layers), MPK_EFORMAT,
          "\"mlp_layer_types\" is not a list of %u names", c->n_layers);
    for (uint32_t i = 0; types && i < c->n_layers; i++) {
        const str type = types->items[i].text;
        const bool dense = str_is(type, "dense");
        CHECK(cx, dense || str_is(type, "sparse"), MPK_EUNSUPPORTED,
              "\"mlp_layer_types\": layer %u is \"%.*s\"; dense and sparse are supported", i,
              LOAD_NAME(type));
        model_set_layer(c->dense_layers, i, dense);
    }
    return MPK_OK;
}

/* The groups of a router. */
static mpk_status fill_groups(mpk_context *cx, const json_value *j, const model_def *def,
                              model_config *c)
{
    const bool biased = def->routing == MODEL_ROUTES_BIASED;
    str method = STR("greedy");
    c->expert_sigmoid = c->expert_score_bias = biased;
    c->group_best = 1;
    if (biased)
        TRY(hf_expect_text(cx, j, "topk_method", "noaux_tc"));
    else
        TRY(json_read_str(cx, j, "topk_method", &method));
    TRY(hf_expect_text(cx, j, "scoring_func", biased ? "sigmoid" : "softmax"));
    CHECK(cx, str_is(method, "greedy") || str_is(method, "group_limited_greedy"), MPK_EUNSUPPORTED,
          "\"topk_method\" \"%.*s\" is not supported in this family; greedy and "
          "group_limited_greedy are",
          STR_SHOWN(method, 64));
    if (!biased && str_is(method, "greedy"))
        return MPK_OK;
    TRY(hf_read_needed(cx, j, "n_group", &c->expert_groups));
    TRY(hf_read_needed(cx, j, "topk_group", &c->kept_groups));
    CHECK(cx, c->expert_groups && c->kept_groups, MPK_EFORMAT,
          "\"n_group\" %u and \"topk_group\" %u are not numbers of groups", c->expert_groups,
          c->kept_groups);
    if (biased && c->expert_groups > 1) /* of one group all are chosen from, however it is rated */
        c->group_best = 2;
    return MPK_OK;
}

/* The experts that every token goes to are one feed-forward. */
static mpk_status fill_shared_size(mpk_context *cx, uint32_t n, model_config *c)
{
    CHECK(cx, n <= MODEL_MAX_EXPERTS && c->expert_ffn_size < 1 << 20, MPK_EFORMAT,
          "%u shared experts of %u inner entries are too many", n, c->expert_ffn_size);
    c->shared_ffn_size = n * c->expert_ffn_size;
    return MPK_OK;
}

/* What DeepSeek's routers and layers have: groups, a factor, experts for every token, dense layers
 * before all others. */
static mpk_status fill_routing(mpk_context *cx, const json_value *j, const model_def *def,
                               model_config *c)
{
    const bool biased = def->routing == MODEL_ROUTES_BIASED;
    uint32_t n_shared = 0, n_dense = def->dense_first, every = 1;
    c->normalize_experts = biased && !def->unnormalized;
    TRY(json_read_bool(cx, j, "norm_topk_prob", &c->normalize_experts));
    CHECK(cx, biased || !c->normalize_experts, MPK_EUNSUPPORTED,
          "\"norm_topk_prob\" true is not supported in this family");
    TRY(fill_groups(cx, j, def, c));
    TRY(hf_read_factor(cx, j, "routed_scaling_factor", &c->expert_scale));
    TRY(json_read_u32(cx, j, "n_shared_experts", &n_shared));
    TRY(json_read_u32(cx, j, "num_shared_experts", &n_shared));
    TRY(fill_shared_size(cx, n_shared, c));
    TRY(json_read_u32(cx, j, "moe_layer_freq", &every));
    CHECK(cx, every == 1, MPK_EUNSUPPORTED, "\"moe_layer_freq\" %u is not supported; 1 is", every);
    TRY(json_read_u32(cx, j, "first_k_dense_replace", &n_dense));
    for (uint32_t i = 0; i < n_dense && i < c->n_layers && i < MODEL_MAX_LAYERS; i++)
        model_set_layer(c->dense_layers, i, true);
    return fill_layer_types(cx, j, c);
}

/* What ERNIE's layers have: experts for every token, and experts in each moe_layer_interval-th
 * layer of a range. */
static mpk_status fill_shifted(mpk_context *cx, const json_value *j, model_config *c)
{
    uint32_t n_shared = 2, start = 1;
    double end = -1, least = 0;
    bool biases = false;
    c->expert_score_bias = c->normalize_experts = true;
    TRY(json_read_u32(cx, j, "moe_num_shared_experts", &n_shared));
    TRY(fill_shared_size(cx, n_shared, c));
    TRY(json_read_u32(cx, j, "moe_layer_start_index", &start));
    TRY(json_read_double(cx, j, "moe_layer_end_index", &end));
    TRY(json_read_u32(cx, j, "moe_layer_interval", &c->expert_every));
    TRY(json_read_double(cx, j, "moe_norm_min", &least));
    CHECK(cx, least <= 1e-6, MPK_EUNSUPPORTED, "\"moe_norm_min\" %g is not supported", least);
    TRY(json_read_bool(cx, j, "use_bias", &biases));
    CHECK(cx, !biases, MPK_EUNSUPPORTED, "\"use_bias\" is not supported in this family");
    for (uint32_t i = 0; i < c->n_layers && i < MODEL_MAX_LAYERS; i++)
        model_set_layer(c->dense_layers, i, i < start || (end >= 0 && i > end));
    return MPK_OK;
}

/* Llama 4's layers: those with experts are listed, or each interleave_moe_layer_step-th. */
static mpk_status fill_scaled(mpk_context *cx, const json_value *j, model_config *c)
{
    const json_value *layers = json_get(j, "moe_layers");
    c->expert_sigmoid = c->experts_scaled = true;
    if (!layers)
        return json_read_u32(cx, j, "interleave_moe_layer_step", &c->expert_every);
    CHECK(cx, json_is(layers, JSON_KIND_LIST), MPK_EFORMAT,
          "\"moe_layers\" is not a list of layers");
    for (uint32_t i = 0; i < c->n_layers && i < MODEL_MAX_LAYERS; i++)
        model_set_layer(c->dense_layers, i, true);
    for (size_t i = 0; i < layers->n; i++) {
        const json_value *layer = &layers->items[i];
        CHECK(cx, layer->is_integer && layer->integer >= 0 && layer->integer < c->n_layers,
              MPK_EFORMAT, "\"moe_layers\" holds something that is not a layer");
        model_set_layer(c->dense_layers, (uint32_t)layer->integer, false);
    }
    return MPK_OK;
}

/* A number, or a list with the same number for each layer. */
static mpk_status read_each(mpk_context *cx, const json_value *j, const char *key, uint32_t *out)
{
    const json_value *v = json_get(j, key);
    if (!json_is(v, JSON_KIND_LIST))
        return hf_read_needed(cx, j, key, out);
    for (size_t i = 0; i < v->n; i++)
        CHECK(cx,
              v->items[i].is_integer && v->items[i].integer >= 0 &&
                  v->items[i].integer <= UINT32_MAX && v->items[i].integer == v->items[0].integer,
              MPK_EUNSUPPORTED, "\"%s\" differs between layers: not supported", key);
    CHECK(cx, v->n, MPK_EFORMAT, "\"%s\" is an empty list", key);
    *out = (uint32_t)v->items[0].integer;
    return MPK_OK;
}

/* The numbers of experts.  Sizes must be given; other absent members take Transformers' defaults.
 * only_experts: a family such as Mixtral, whose layers all have experts and whose weights always
 * add up to 1. */
mpk_status hf_fill_experts(mpk_context *cx, const json_value *j, const model_def *def,
                           model_config *c)
{
    TRY(count_experts(cx, j, def, c));
    if (!def->is_mixture)
        return MPK_OK;
    CHECK(cx, c->n_experts || !def->only_experts, MPK_EFORMAT,
          "\"num_local_experts\" is missing or 0");
    const char *choice = def->expert_choice ? def->expert_choice : "num_experts_per_tok";
    if (c->n_experts) {
        TRY(read_each(cx, j, choice, &c->experts_per_token));
        TRY(read_each(cx, j, def->expert_ffn, &c->expert_ffn_size));
    }
    if (c->n_experts && def->shared_expert)
        TRY(json_read_u32(cx, j, "shared_expert_intermediate_size", &c->shared_ffn_size));
    if (c->n_experts && def->shared_one)
        c->shared_ffn_size = c->expert_ffn_size;
    c->expert_every = 1;
    if (def->routing == MODEL_ROUTES_SCALED)
        return fill_scaled(cx, j, c);
    if (def->routing == MODEL_ROUTES_SHIFTED)
        return fill_shifted(cx, j, c);
    if (def->routing)
        return fill_routing(cx, j, def, c);
    c->normalize_experts = def->only_experts;
    if (def->sigmoid_routers)
        TRY(hf_expect_text(cx, j, "scoring_func", "sigmoid"));
    c->expert_sigmoid = def->sigmoid_routers;
    c->expert_score_bias = def->score_bias;
    if (def->only_experts)
        return MPK_OK;
    TRY(json_read_u32(cx, j, "decoder_sparse_step", &c->expert_every));
    TRY(json_read_bool(cx, j, "norm_topk_prob", &c->normalize_experts));
    c->normalize_experts |= def->normalized;
    return fill_dense_layers(cx, j, c);
}
