/* model.h - from hyper-parameters to a tensor program.
 *
 * A family of models is one file that defines `const model_def model_NAME`; it reads like the
 * model's forward pass. The weights are named as in Hugging Face checkpoints; the loader maps other
 * spellings onto these names.
 *
 * Every decoder has these IR_INPUT tensors, by name; the step task of the runtime writes them
 * before each step.
 *   tokens     i32[T] live=tokens     token ids
 *   positions  i32[T] live=tokens     position of each token in its sequence, from 0
 *   slots      i32[T] live=tokens     request slot of each token, 0 ... B-1; tokens of a slot are
 *                                     neighbours, and their positions rise
 *   pages      i32[B, N]              KV page that holds positions i * P ... (i + 1) * P - 1 of
 *                                     each slot
 *   rows       i32[R] live=rows       which token each row of logits belongs to
 *   sampling   f32[R, 4] live=rows    temperature (0: greedy), top_k (0: off), top_p (1: off),
 *                                     min_p (0: off)
 *   seeds      i64[R] live=rows       random stream of each row
 *   draws      i32[R] live=rows       how many tokens the sequence has drawn before: an index into
 *                                     its stream
 *   asks       i32[R, 7] live=rows    whether the row has rules, and which log probabilities it
 *                                     wants (op/rules.h)
 *   rules      i32[B (3 + 2 G), W]    what each slot's request asks of its tokens (op/rules.h);
 *                                     after these rows, two masks for each slot (MODEL_MASKS),
 *                                     then G = n_guesses rows for each of these masks, for drafts
 *   history    i32[B * N * P]         the tokens of each slot whose request has rules or drafts,
 *                                     from position 0
 * Outputs:
 *   logits     f32[R, V] live=rows; with no_head f32[R, D], the final norm's rows
 *   next       i32[R] live=rows       the sampled token
 *   logprobs   f32[R, 21, 2] live=rows
 *   with counts_experts, of each layer with experts: model.layers.L.experts i32[T, N] live=tokens,
 *              the experts of each token
 * State: k_cache.LAYER and v_cache.LAYER of each layer, of kv_dtype[n_pages, G, P, K], with latent
 * attention k_cache.LAYER alone, [n_pages, 1, P, latent_size + rope_size]; of layers with linear
 * attention delta_state.LAYER and {q,k,v}_conv_state.LAYER, f32[B, ..]; choice
 * f32[C, V], where the logits of rows with rules are changed.  With greedy_only there are no asks,
 * rules, history, choice and logprobs.
 */
#ifndef MODEL_H
#define MODEL_H

#include "ir/ir.h"

enum { MODEL_MAX_LAYERS = 1024, MODEL_MAX_EXPERTS = 4096 };
/* Masks for each slot: one for the request that runs, one for the request that waits after it. */
enum { MODEL_MASKS = 2 };

typedef enum model_rope_scaling {
    MODEL_ROPE_DEFAULT,
    MODEL_ROPE_LINEAR,
    MODEL_ROPE_LLAMA3,
    MODEL_ROPE_YARN,
    MODEL_ROPE_LONG /* "longrope" */
} model_rope_scaling;

/* Hyper-parameters of a decoder, whatever file they came from. */
typedef struct model_config {
    /* name of the model_def: "llama", "qwen3" .. */
    str family;
    uint32_t n_layers, hidden_size, n_heads, n_kv_heads, head_size, ffn_size, vocab_size;
    uint32_t max_positions; /* the context that the model was trained for */
    double norm_eps;
    bool layer_norms, norm_bias; /* norms subtract the mean; and add a bias */
    bool bare_norms;             /* norms have no weights */
    bool head_bias;              /* the head has a bias */
    bool parallel;               /* attention and MLP read the same x */
    bool tied_embeddings, attention_bias, attention_out_bias, mlp_bias;
    /* "silu", "gelu", "gelu_tanh", of MLPs without a gate also "relu2", of experts "swiglu_oai" */
    str activation;
    bool head_norms; /* heads of q and k have norms; of families where some models have them */
    uint32_t window; /* sliding window in tokens, 0: none */
    /* a bit for each layer that sees everything although others have the window */
    uint64_t full_layers[MODEL_MAX_LAYERS / 64];
    /* factors of the embedding, of what a layer adds, of logits and of attention scores; 0: 1, of
     * scores 1 / sqrt(head_size) */
    double embedding_scale, residual_scale, logits_scale, attention_scale;
    /* caps of attention scores and logits: x becomes cap tanh(x / cap); 0: none */
    double attention_cap, logits_cap;
    ir_dtype weight_dtype; /* of random weights; in files each tensor has its own */

    /* n_experts 0: every layer has one feed-forward of ffn_size */
    uint32_t n_experts, experts_per_token, expert_ffn_size;
    /* of the feed-forward of a layer with experts that every token goes through, 0: none */
    uint32_t shared_ffn_size;
    /* layers with experts: (index + 1) % expert_every == 0, and not in dense_layers */
    uint32_t expert_every;
    /* a bit for each layer that has one feed-forward although others have experts */
    uint64_t dense_layers[MODEL_MAX_LAYERS / 64];
    bool normalize_experts; /* the weights of a token's experts add up to 1 */
    bool router_bias; /* routers have biases: of the family, or random ones (engine_routing.c) */
    bool expert_bias; /* experts' products have biases */
    /* how routers choose (op/route.c): shares are sigmoids; what experts are chosen by has a bias;
     * of expert_groups groups kept_groups are chosen from, rated by their group_best best; weights
     * times expert_scale; 0 of any: 1 */
    bool expert_sigmoid, expert_score_bias;
    uint32_t expert_groups, kept_groups, group_best;
    double expert_scale;
    double swiglu_limit; /* of the activation "swiglu_oai" (op/activate.h), which it implies */
    bool sinks;          /* each head has a sink (op/attention.c) */

    /* Latent attention (decoder_latent_attention): entries of what is cached of a token for keys
     * and values together, of what queries are made from, 0: of the hidden state itself, and of a
     * head's values.  latent_size 0: attention is plain. */
    uint32_t latent_size, query_latent_size, value_size;

    /* each entry of what attention gives is multiplied by the sigmoid of one of another product */
    bool attention_gate;

    /* Linear attention by the delta rule (model_delta.c): a bit for each layer that has it in the
     * place of attention; heads of values, of keys and queries, entries of each; tokens that the
     * convolution before it covers.  delta_heads 0: no layer has it. */
    uint64_t delta_layers[MODEL_MAX_LAYERS / 64];
    uint32_t delta_heads, delta_key_heads, delta_value_size, delta_key_size, delta_conv;
    bool delta_tiled; /* head h of values takes key head h % delta_key_heads (op/delta_rule.c) */

    /* each KV head stands so often in programs (load/heads.c); 0 is 1 */
    uint32_t kv_times;
    /* entries of a head that are rotated, normally head_size; of checkpoints the first, with latent
     * attention the last; of programs see model_plain_pairs */
    uint32_t rope_size;
    double rope_theta;
    /* of the layers with a window, whose frequencies are not scaled; 0: they are as the others */
    double local_theta;
    /* a bit for each layer that does not rotate */
    uint64_t unrotated_layers[MODEL_MAX_LAYERS / 64];
    model_rope_scaling rope_scaling;
    /* all but default: how many times the context is stretched; llama3: its bounds */
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    /* yarn; attention_factor, also of longrope, 0: computed from the factor */
    double rope_beta_fast, rope_beta_slow, rope_attention_factor;
    double rope_mscale, rope_mscale_all_dim; /* yarn; 0: absent */
    uint32_t rope_original_positions;        /* llama3, yarn, longrope */
    bool rope_truncate;                      /* yarn: round the correction range (default true) */
    /* longrope: what divides the frequencies in contexts of up to rope_original_positions, and in
     * longer ones; [rope_size / 2] each, in the memory of the file or of the loaded model */
    const float *rope_short, *rope_long;

    /* Queries times 1 + query_growth log(1 + floor((position + query_offset) / query_step)); growth
     * 0: they stay; query_unrotated: those of layers that do not rotate, and no others */
    double query_growth;
    uint32_t query_step, query_offset;
    bool query_unrotated;
    /* Some layers see the positions of their token's chunk, of so many; contexts end with the first
     * one.  0: none do */
    uint32_t chunk;
    bool experts_scaled; /* a token's share multiplies what its expert reads, not the result */

    int32_t bos_token;      /* -1: none */
    int32_t eos_tokens[16]; /* ids that end a text */
    uint32_t n_eos_tokens;
} model_config;

/* Prefix of the names of weights and state of a draft model. */
#define MODEL_DRAFT "draft."

/* The sizes for which a program is built; letters as in the table of inputs above. */
typedef struct model_shape {
    uint32_t n_tokens;           /* T */
    uint32_t n_rows;             /* R, rows of logits; at most T */
    uint32_t n_slots;            /* B */
    uint32_t n_guesses;          /* masks for drafts that follow each mask of a request */
    uint32_t n_choices;          /* C: rows of a step that can have rules; taken as B if less */
    uint32_t n_pages;            /* KV pages of the whole cache */
    uint32_t page_tokens;        /* P */
    uint32_t max_pages_per_slot; /* N */
    ir_dtype kv_dtype;           /* F32, BF16, F16, or Q8_0 if K is a multiple of 32 */
    ir_dtype activation_dtype;   /* F32 or BF16 */
    /* The paper's decode step: argmax in two stages instead of sample.  If in addition R = T,
     * every token has its row of logits, in order, so nothing is gathered (`rows` is not read;
     * logits and next are live=tokens). */
    bool greedy_only;
    /* the program ends with the final norm, whose rows take the place of the logits */
    bool no_head;
    bool counts_experts; /* the experts of each token are an output */
    /* A draft model: names of weights and state begin with MODEL_DRAFT, so that its graphs can
     * be in one program with those of the model and share inputs and outputs with them. */
    bool drafts;
    /* ids for which a row of rules has room in a mask, the same for both models; taken as V if
     * less */
    uint32_t rule_vocab;
} model_shape;

/* The dtypes of the weights, by name; the builder asks for each constant that it adds.  MPK_EARG
 * if there is no such weight. */
typedef struct model_weights {
    mpk_status (*dtype)(mpk_context *cx, const void *self, const char *name, uint32_t rank,
                        const int64_t *dims, ir_dtype *dtype);
    const void *self;
} model_weights;

/* Which biases the attention products have. */
typedef enum model_biases {
    MODEL_NO_BIASES,
    MODEL_BIASES_SAID,        /* all four products, if "attention_bias" is true */
    MODEL_BIASES_QKV,         /* q, k and v, always */
    MODEL_BIASES_QKV_IF_USED, /* the same, if "use_qkv_bias" is true */
    MODEL_BIASES_UNLESS_SAID, /* all four products, unless "attention_bias" is false */
    /* q, k and v unless "attention_bias" is false, the output's if "attention_out_bias" is true */
    MODEL_BIASES_APART,
    MODEL_BIASES_APART_IF_SAID,    /* the same, but if "attention_bias" is true */
    MODEL_BIASES_USED,             /* those of attention and of the MLP, if "use_bias" is true */
    MODEL_BIASES_USED_UNLESS_SAID, /* the same, unless it is false */
} model_biases;

/* The meaning of "sliding_window" in a config.json. */
typedef enum model_windows {
    MODEL_NO_WINDOW,
    MODEL_WINDOW_ALWAYS,       /* every layer has the window */
    MODEL_WINDOW_IF_USED,      /* the same, if "use_sliding_window" is true */
    MODEL_WINDOW_UPPER_LAYERS, /* if that is true, the layers from "max_window_layers" on */
    MODEL_WINDOW_LAST_LAYERS,  /* the same, unless "sliding_window" is null */
    /* those whose number, counted from 1, is no multiple of "sliding_window_pattern" */
    MODEL_WINDOW_PATTERN
} model_windows;

/* How the routers of a family choose, and what its configuration says of it. */
typedef enum model_routing {
    MODEL_ROUTES_PLAIN, /* by a softmax over all experts */
    /* the same, with "topk_method" "group_limited_greedy" in the groups with the best expert */
    MODEL_ROUTES_GREEDY,
    /* by a sigmoid and a bias for the choice, in the groups with the best two experts */
    MODEL_ROUTES_BIASED,
    /* by a softmax and a bias for the choice; the members are ERNIE's: moe_num_experts, moe_k,
     * moe_num_shared_experts, moe_layer_start_index, moe_layer_end_index, moe_layer_interval */
    MODEL_ROUTES_SHIFTED,
    /* by a sigmoid, which multiplies what the expert reads; the members are Llama 4's:
     * interleave_moe_layer_step, moe_layers */
    MODEL_ROUTES_SCALED,
} model_routing;

/* How the checkpoints of a family hold the weights of experts. */
typedef enum model_layout {
    MODEL_EXPERTS_BY_ROWS,     /* as load/experts.c says */
    MODEL_EXPERTS_INTERLEAVED, /* all in one, by columns, rows of gate and up alternate */
    MODEL_EXPERTS_BY_COLUMNS,  /* the same, but gate before up */
    MODEL_EXPERTS_EITHER,      /* the same, in some folders by rows */
} model_layout;

/* What the files of a family hold as one tensor (load/joined.c); may be added up. */
typedef enum model_joints {
    MODEL_JOINS_QKV = 1,    /* q, k and v */
    MODEL_JOINS_GATE_UP = 2 /* gate and up */
} model_joints;

/* A model that holds one of a family under "text_config", beside an encoder of images, which is
 * not loaded. */
typedef struct model_holder {
    const char *type; /* its "model_type"; NULL: the end of a list */
    const char *text; /* the "model_type" of its "text_config" */
    bool flat;        /* older files have no "text_config": its members are beside the others */
} model_holder;

/* Numbers of a family that its configuration files may leave out. */
typedef struct model_defaults {
    uint32_t n_heads, n_kv_heads, head_size, ffn_size, vocab_size, max_positions;
} model_defaults;

/* A family: the meaning of its configuration files, and its forward pass.  Loaders and the
 * builder use this record, and never compare a family's name. */
typedef struct model_def {
    const char *family;          /* "model_type" of its config.json */
    const model_holder *holders; /* NULL: none */
    /* "general.architecture" of its GGUF files; NULL: none, or those of another family */
    const char *gguf;
    /* the architecture of GGUF files that are written from it; NULL: gguf */
    const char *gguf_written;
    /* defaults for a config.json without "rms_norm_eps" or "rope_theta" */
    double norm_eps, rope_theta;
    /* the theta of layers with a window, if it is another, for files that do not say it */
    double local_theta;
    bool local_unscaled;  /* these layers have the same theta, but their angles are not scaled */
    model_defaults sizes; /* 0: must be given */
    bool tied;            /* the head is the embedding if "tie_word_embeddings" is not given */
    /* "hidden_activation" is read, and this is the default; NULL: "hidden_act", and "silu" */
    const char *activation;
    bool loose_gelu; /* "gelu" means the default too, as early files say */
    bool sinks;      /* attention heads have sinks */
    /* yarn's range is not rounded unless the file says so; else it is unless the file says no */
    bool rope_unrounded;
    /* "llama_4_scaling_beta" of the rope object is read: queries grow with the position, by steps
     * of the original context */
    bool scaled_queries;
    /* "attention_chunk_size", "attn_scale" and "floor_scale" are read: chunks, and queries that
     * grow in layers that do not rotate; their defaults, also of GGUF files, which say none of
     * them; 0: they are not read */
    uint32_t chunk, growth_step;
    double growth;
    /* norms are layer_norm instead of rms_norm, with biases or without; the member that holds their
     * epsilon then, NULL: "rms_norm_eps" */
    bool layer_norms, norm_bias;
    const char *eps;
    bool bare_norms;    /* norms have no weights */
    bool parallel_said; /* "use_parallel_residual" is read */
    bool parallel;      /* and this is its default */
    /* "logit_scale" multiplies the logits, and this is its default; 0: it is not read */
    double logit_scale;
    bool unit_norms;     /* norms multiply by 1 + weight in checkpoints, by the weight in GGUF */
    bool root_embedding; /* the embedding is multiplied by the root of hidden_size */
    /* "query_pre_attn_scalar" is read, and this is its default: scores are divided by its root */
    double query_scalar;
    /* GGUF files do not say it: it is head_size, but hidden_size / n_heads in models of this many
     * layers */
    uint32_t gguf_wide_layers;
    /* "attn_logit_softcapping" and "final_logit_softcapping" are read, with these defaults */
    bool caps;
    double attention_cap, logits_cap;
    /* "embedding_multiplier", "attention_multiplier", "residual_multiplier" and "logits_scaling"
     * are read */
    bool multipliers;
    /* entries of a head that rotate, of all, if "partial_rotary_factor" is not given; 0: all */
    double rotated;
    /* "rope_type" "dynamic" means the theta that "alpha" raises (load/hf_config.c) */
    bool rope_alpha;
    /* "no_rope_layers" and "no_rope_layer_interval" are read, and this is the latter's default:
     * each layer whose number, counted from 1, is a multiple of it does not rotate; 0: all do */
    uint32_t unrotated_every;
    /* where some layers have a window, the others do not rotate */
    bool unrotated_full;
    model_biases biases;
    bool mlp_bias;              /* "mlp_bias" is read: the MLP may have biases */
    bool mlp_biased, head_bias; /* the MLP has biases, and the head has one */
    model_windows windows;
    /* defaults of MODEL_WINDOW_PATTERN; of MODEL_WINDOW_LAST_LAYERS the latter is the one of
     * "max_window_layers" */
    uint32_t window, window_every;
    /* a window in a GGUF file applies to every layer; otherwise it is refused.  Of a pattern: files
     * that do not say a window have none */
    bool gguf_window;
    /* rows of q and k in GGUF files are in the order for rope over neighbours (gguf_rope.c) */
    bool gguf_neighbours;
    bool neighbours;     /* the same in checkpoints */
    model_joints joints; /* 0: all tensors are apart */
    bool heads_joined;   /* checkpoints join q, k and v head by head */
    bool latent; /* attention is latent: kv_lora_rank, q_lora_rank and sizes of heads are read */
    /* some layers have linear attention: linear_* and layer_types, or full_attention_interval, are
     * read, and heads of q_proj have their gates beside them (load/delta.c) */
    bool delta;
    bool gguf_tiled; /* in GGUF files the heads of values are in the order of delta_tiled */
    /* "use_qk_norm" is read: heads of q and k may have norms */
    bool head_norms_said;
    bool head_norms; /* and this is its default */
    /* GGUF files do not say it: models with so many experts have none */
    uint32_t gguf_unnormed;
    /* files may hold layers after the last one, which guess further tokens; they are not used */
    bool guesses;
    /* names of parts of layers that differ from those of other families: pairs of GGUF's and
     * Hugging Face's, after the last a NULL; NULL: none */
    const char *const (*gguf_names)[2];
    /* the same for checkpoints: parts of names and what replaces them, after the last a NULL; of
     * each pair the first occurrence is replaced */
    const char *const (*hf_names)[2];

    bool is_mixture; /* the family may have experts; the fields below are about them */
    /* every layer has experts, their number must be given, and a token's weights add up to 1;
     * otherwise "decoder_sparse_step", "mlp_only_layers" and "norm_topk_prob" are read */
    bool only_experts;
    /* shares are sigmoids; what experts are chosen by has a bias */
    bool sigmoid_routers, score_bias;
    /* GGUF files do not say that the weights of a token's experts add up to 1, and they do not */
    bool gguf_unnormalized;
    /* layers with experts also have a feed-forward for every token, of the size
     * "shared_expert_intermediate_size", with a gate of its own */
    bool shared_expert;
    /* layers with experts also have a feed-forward for every token, as large as an expert */
    bool shared_one;
    /* of the families with MODEL_ROUTES_GREEDY and MODEL_ROUTES_BIASED the members are DeepSeek's:
     * n_routed_experts, n_group, topk_group, routed_scaling_factor, first_k_dense_replace, and
     * n_shared_experts, which are one feed-forward for every token, without a gate;
     * "mlp_layer_types", if given, says which layers have experts */
    model_routing routing;
    /* the first so many layers have no experts, if "first_k_dense_replace" is not given */
    uint32_t dense_first;
    /* the members of config.json that hold the feed-forward size of an expert, the number of
     * experts, and of those that a token goes to; NULL, of the latter two: "num_experts" and its
     * spellings, "num_experts_per_tok" */
    const char *expert_ffn, *expert_count, *expert_choice;
    const char
        *mlp_ffn;    /* of the feed-forward of layers without experts; NULL: "intermediate_size" */
    bool normalized; /* the weights of a token's experts add up to 1, whatever the file says */
    bool unnormalized; /* of MODEL_ROUTES_BIASED: they do only if "norm_topk_prob" is true */
    bool expert_bias;  /* routers and experts have biases */
    /* how checkpoints hold the weights of experts */
    model_layout expert_layout;
    /* "swiglu_limit" is read, and this is its default: experts have the activation "swiglu_oai";
     * 0: they do not */
    double swiglu_limit;

    /* Build the tensor program into an empty graph. */
    mpk_status (*build)(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g);
} model_def;

/* All families, by name; the build collects them.  Ends with NULL. */
extern const model_def *const model_table[];

/* ---- model_build.c ---- */

/* The record of a family.  MPK_EUNSUPPORTED, with a list of all families. */
mpk_status model_find(mpk_context *cx, str family, const model_def **out);
/* The record of a family whose models a model of the type `holder` holds, with "text_config" of the
 * type `held`; if that is empty, the first one.  *how: the row of its list.  NULL: none. */
const model_def *model_find_held(str holder, str held, const model_holder **how);
/* Is the bit of the layer set? */
static inline bool model_has_layer(const uint64_t *layers, uint32_t layer)
{
    return layers[layer / 64] >> layer % 64 & 1;
}
/* Set or clear the bit of a layer; numbers beyond MODEL_MAX_LAYERS are ignored. */
static inline void model_set_layer(uint64_t *layers, uint32_t layer, bool value)
{
    const uint64_t bit = (uint64_t)1 << layer % 64;
    if (layer < MODEL_MAX_LAYERS)
        layers[layer / 64] = (layers[layer / 64] & ~bit) | (value ? bit : 0);
}
/* How many tokens the layer sees, the token itself included; 0: all. */
static inline uint32_t model_layer_window(const model_config *c, uint32_t layer)
{
    return model_has_layer(c->full_layers, layer) ? 0 : c->window;
}
/* KV heads of programs. */
static inline uint32_t model_kv_heads(const model_config *c)
{
    return c->n_kv_heads * (c->kv_times ? c->kv_times : 1);
}
/* Pairs of a head that are not rotated.  The program rotates all of them, these by an angle of 0,
 * and expects rows of q and k in the order of load/heads.c.  0 with latent attention, whose rotated
 * entries stand apart. */
static inline uint32_t model_plain_pairs(const model_config *c)
{
    return c->latent_size ? 0 : (c->head_size - c->rope_size) / 2;
}
/* Where some layers have a window, let the others not rotate. */
void model_unrotate_full(model_config *c);
/* What attention scores are multiplied by.  With latent attention yarn's factor, squared, is in it,
 * since only a part of a head is rotated. */
double model_attention_scale(const model_config *c);
/* The record for GGUF files of an architecture, with or without experts.  MPK_EUNSUPPORTED, with
 * a list of all. */
mpk_status model_find_gguf(mpk_context *cx, str architecture, bool has_experts,
                           const model_def **out);
/* The names of layers' parts that are special to GGUF files of an architecture; NULL: none. */
const char *const (*model_gguf_names(str architecture))[2];
/* Refuse impossible hyper-parameters: zero or absurd sizes, heads that do not divide.
 * MPK_EFORMAT, MPK_EUNSUPPORTED (unknown family). */
mpk_status model_check(mpk_context *cx, const model_config *c);
/* longrope's factor of cos and sin: the one that is given, or what follows from the factor. */
double model_long_factor(const model_config *c);
/* Layers that have a KV cache; the first of them. */
uint32_t model_cached_layers(const model_config *c);
/* Bytes of state that a request slot has beside the KV cache. */
uint64_t model_slot_bytes(const model_config *c);
/* Entries that a token's row of a KV head has in the cache of keys, and how many such caches a
 * layer has: 2, of keys and of values, or 1 for both. */
static inline uint32_t model_cache_size(const model_config *c)
{
    return c->latent_size ? c->latent_size + c->rope_size : c->head_size;
}
static inline uint32_t model_caches(const model_config *c)
{
    return c->latent_size ? 1 : 2;
}
/* Does this layer have experts instead of one feed-forward? */
bool model_has_experts(const model_config *c, uint32_t layer);
/* Find the family, check, build the program in arena a, verify it. */
mpk_status model_build(mpk_context *cx, arena *a, const model_config *c, const model_shape *s,
                       const model_weights *w, ir_graph **out);

#endif
