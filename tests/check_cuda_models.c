/* check_cuda_models.c - items of check_cuda that are small models with random weights.
 *
 * A prompt and single tokens run step by step and are compared with the interpreter; the same steps
 * must then give the same bits again and again, and requests the same tokens alone as together.
 * Models whose name ends in "invariant" are checked for the bits of company instead (company.h).
 */
#include <math.h>
#include <stdio.h>

#include "check_cuda.h"

#include "base/rng.h"
#include "base/thread.h"
#include "load/load.h"
#include "model/model.h"
#include "company.h"

enum { REPEATS = 100, STEPS = 6, REQUESTS = 4, ANSWER = 24, DRAIN_SECONDS = 12 };
enum { VOCAB = 1003, MOST_PROMPT = 40 };
enum { DRAFTS = 5, DRAFT_TOKENS = 8, GRAM_TOKENS = 2 };
enum { FEW_TOKENS = 16, SPLIT_TOKENS = 256, MOST_TOKENS = 512 };

static bool is_of(const item *it, const char *family)
{
    return strcmp(it->family, family) == 0;
}

/* What families have beside the sizes that all share. */
static void add_traits(const item *it, model_config *c)
{
    if (is_of(it, "qwen2"))
        c->attention_bias = true;
    if (is_of(it, "phi3"))
        c->head_size = c->rope_size = 96;
    if (is_of(it, "gemma2")) {
        c->head_size = c->rope_size = 256;
        c->attention_scale = 1.0 / 16;
        c->attention_cap = 50;
        c->logits_cap = 30;
        c->embedding_scale = sqrt(c->hidden_size);
        c->activation = STR("gelu_tanh");
    }
    if (is_of(it, "deepseek_v2")) {
        c->n_kv_heads = 1;
        c->latent_size = 512;
        c->query_latent_size = 64;
        c->head_size = 96;
        c->value_size = 32;
        c->shared_ffn_size = 64;
    }
    if (is_of(it, "qwen3_5_text")) {
        c->delta_layers[0] = 1; /* layer 1 has attention */
        c->delta_key_heads = 2;
        c->delta_heads = 4;
        c->delta_key_size = 128;
        c->delta_value_size = 64;
        c->delta_conv = 4;
        c->attention_gate = true;
    }
    if (is_of(it, "gpt_oss")) {
        c->attention_bias = c->attention_out_bias = c->router_bias = c->expert_bias = true;
        c->sinks = true;
        c->window = 128;
        c->full_layers[0] = 2; /* every other layer */
        c->activation = STR("swiglu_oai");
        c->swiglu_limit = 7;
    }
}

/* In bf16 every token goes to every expert: of logits that are nearly equal the GPU may well choose
 * others. */
static model_config config_of(const item *it)
{
    const bool mixture = is_of(it, "qwen3_moe") || is_of(it, "mixtral") || is_of(it, "gpt_oss") ||
                         is_of(it, "deepseek_v2");
    model_config c = {.family = str_from(it->family),
                      .n_layers = it->small || it->wide ? 1 : 2,
                      /* 1024 columns are cut into as many tasks as there may be; blocks of K
                       * formats are 256 */
                      .hidden_size = it->streams  ? 1024
                                     : it->blocks ? 256
                                                  : 192,
                      .n_heads = 6,
                      .n_kv_heads = 2,
                      .head_size = 64,
                      .ffn_size = it->wide     ? 8192
                                  : it->blocks ? 512
                                               : 320,
                      .vocab_size = VOCAB,
                      .max_positions = 1024,
                      .norm_eps = 1e-5,
                      .tied_embeddings = !it->blocks,
                      .activation = STR("silu"),
                      .weight_dtype = IR_F32,
                      .n_experts = mixture ? 5 : 0,
                      .experts_per_token = it->dtype == IR_F32 ? 2 : 5,
                      .expert_ffn_size = !it->blocks            ? 96
                                         : is_of(it, "gpt_oss") ? 288
                                                                : 512,
                      .expert_every = 1,
                      .normalize_experts = true,
                      .rope_size = 64,
                      .rope_theta = 10000,
                      .bos_token = -1};
    if (it->wide) {
        c.hidden_size = 4096;
        c.n_heads = 64;
        c.n_kv_heads = 16;
        c.ffn_size = 8192;
    }
    add_traits(it, &c);
    return c;
}

/* That of the item, or of its matrices and experts but the embedding blocks of a GGUF file. */
static mpk_status weight_dtype(mpk_context *cx, const void *self, const char *name, uint32_t rank,
                               const int64_t *dims, ir_dtype *dtype)
{
    const item *it = self;
    (void)cx;
    *dtype = it->dtype;
    if (!it->blocks || rank < 2 || !strstr(name, ".weight") || strstr(name, "embed"))
        return MPK_OK;
    if (is_of(it, "gpt_oss") && rank == 3)
        *dtype = IR_MXFP4;
    else
        *dtype = strstr(name, "down") ? IR_Q6_K : IR_Q4_K;
    if (*dtype != IR_MXFP4 && dims[rank - 1] % 256) /* no whole blocks of these */
        *dtype = IR_Q4_1;
    return MPK_OK;
}

/* Sizes of the four graphs.  Those of peers end with 128 tokens, which take the bodies for many
 * tokens; those of prompts with 512, which run on a kernel of their own and unpack weights in
 * blocks apart from products, and with 256, whose attention is split between products of many
 * tokens; those of streams with 128, whose attention is split, and 256, where it is whole, or with
 * 64 and 128; those of invariant models serve longer contexts. */
static const uint32_t *sizes_of(const item *it)
{
    static const uint32_t usual[4] = {1, 8, 32, 64}, peers[4] = {1, 8, 32, 128},
                          prompts[4] = {1, 8, 256, 512}, invariant[4] = {1, 4, 16, 64},
                          streams[4] = {1, 8, 128, 256}, wide[4] = {1, 8, 64, 128};
    if (it->invariant)
        return invariant;
    if (it->wide)
        return wide;
    if (it->streams)
        return streams;
    if (it->prompts)
        return prompts;
    return it->n_peers ? peers : usual;
}

/* The graphs are fused for the GPU unless the item is a plain one. */
mpk_status check_make_model(mpk_context *cx, const item *it, unit *u)
{
    const bool invariant = it->invariant;
    const uint32_t *sizes = sizes_of(it);
    model_config config = config_of(it);
    model_weights w = {weight_dtype, it};
    const uint32_t n_graphs = it->ahead ? UNIT_GRAPHS : 4;
    for (; u->n_graphs < n_graphs; u->n_graphs++) {
        const bool drafts = u->n_graphs >= 4;
        const uint32_t n = sizes[drafts ? 3 * (u->n_graphs - 4) : u->n_graphs],
                       rows = it->streams ? MOST_TOKENS : 8;
        model_shape s = {.n_tokens = n,
                         .n_rows = n < rows ? n : rows,
                         .n_slots = invariant ? 8 : 4,
                         .n_pages = invariant ? 40 : 16,
                         /* 64: what the fast bodies of attention take */
                         .page_tokens = it->fast ? 64 : 16,
                         .max_pages_per_slot = invariant ? 10 : 8,
                         .kv_dtype = it->dtype,
                         .activation_dtype = it->dtype,
                         .drafts = drafts};
        u->n_tokens[u->n_graphs] = n;
        TRY(model_build(cx, &u->arena, &config, &s, &w, &u->graphs[u->n_graphs]));
    }
    pass_options plain = {.fusion = PASS_FUSE_FULL}, fast = plain;
    fast.splits = check_workers_of(it) / config.n_kv_heads / (invariant ? 8 : 1);
    fast.split_tokens = it->streams ? 128 : it->n_peers ? 64 : SPLIT_TOKENS;
    fast.own_units = invariant;
    fast.launch = it->launch;
    fast.norm_elements = 1 << 24;
    fast.relaxed = fast.whole_tiles = fast.logits = fast.sum_terms = true;
    fast.even_over = it->streams ? 64 : 0;
    if (it->wide)
        fast.even_over = 32;
    fast.even_up_to = 256;
    if (it->blocks && checks->arch.features & GEN_WGMMA)
        fast.share_tokens = 128; /* experts are multiplied on warpgroups, as the target has it */
    /* of prompts the larger graph alone */
    fast.unpack_tokens = it->blocks && checks->arch.features & GEN_WGMMA ? 512 : 0;
    plain.n_draft_graphs = fast.n_draft_graphs = n_graphs - 4;
    if (it->n_peers) {
        fast.n_peers = it->n_peers;
        fast.launch = PASS_LAUNCH_AOT;
        fast.gather_bytes = 1; /* the vocabulary is cut too */
        fast.own_experts = it->own_experts;
    }
    return check_compile_unit(cx, it, u, it->fast ? fast : plain);
}

/* What the interpreter computes with: one memory for tensors of the same name. */
typedef struct model_bed {
    arena arena;
    ir_values values[UNIT_GRAPHS];
    machine *m;
} model_bed;

static mpk_status share_by_name(mpk_context *cx, const unit *u, model_bed *bed,
                                const machine_weights *w)
{
    for (uint32_t g = 0; g < u->n_graphs; g++) {
        const ir_graph *ir = u->graphs[g];
        NEW(cx, &bed->arena, bed->values[g].data, ir->tensors.n);
        for (ir_tensor_id t = 0; t < ir->tensors.n; t++) {
            const ir_tensor *x = &ir->tensors.at[t];
            if (x->kind != IR_STATE && x->kind != IR_CONST)
                continue;
            ir_tensor_id first = ir_find(u->graphs[0], x->name.at);
            if (g && first != IR_NONE) {
                bed->values[g].data[t] = bed->values[0].data[first];
                continue;
            }
            char *bytes = arena_alloc(&bed->arena, (size_t)ir_bytes(x), 1);
            CHECK(cx, bytes, MPK_ENOMEM, "out of memory");
            if (x->kind == IR_CONST)
                load_random_fill(w->seed, x->name, x->dtype, 0, ir_elements(x), bytes);
            bed->values[g].data[t] = bytes;
        }
        TRY(ir_eval_allocate(cx, &bed->arena, ir, &bed->values[g]));
    }
    return MPK_OK;
}

/* Weights by name, those of a draft model as if they were the model's own. */
static mpk_status fill_weights(mpk_context *cx, const unit *u, model_bed *bed, uint64_t seed,
                               machine_weight *to)
{
    const size_t n_prefix = sizeof MODEL_DRAFT - 1;
    for (uint32_t i = 0; i < u->image.n_weights; i++) {
        const tg_weight *w = &u->image.weights[i];
        str name = w->name;
        if (name.n > n_prefix && memcmp(name.at, MODEL_DRAFT, n_prefix) == 0)
            name = (str){name.at + n_prefix, name.n - n_prefix};
        int64_t n = 1;
        for (uint32_t d = 0; d < w->rank; d++)
            n *= w->dims[d];
        void *bytes = arena_alloc(&bed->arena, (size_t)ir_row_bytes(w->dtype, n), 1);
        CHECK(cx, bytes, MPK_ENOMEM, "out of memory");
        load_random_fill(seed, name, w->dtype, 0, n, bytes);
        to[i].at = bytes;
    }
    return MPK_OK;
}

/* Weights that are made up on the GPU, of the program's own dtypes; with a draft model on the host,
 * since it gets those of the model. */
static mpk_status make_weights(mpk_context *cx, const item *it, const unit *u, model_bed *bed,
                               machine_weights *out)
{
    machine_weight *made_up;
    NEW(cx, &bed->arena, made_up, u->image.n_weights);
    for (uint32_t i = 0; i < u->image.n_weights; i++)
        made_up[i].dtype = u->image.weights[i].dtype;
    *out = (machine_weights){.at = made_up, .seed = checks->seed};
    return it->ahead ? fill_weights(cx, u, bed, checks->seed, made_up) : MPK_OK;
}

/* Write a step input for the interpreter and, unless it is NULL, for the machine. */
static mpk_status put(mpk_context *cx, const unit *u, model_bed *bed, machine *m, uint32_t g,
                      const char *name, const void *from)
{
    ir_tensor_id mine = ir_find(u->graphs[g], name), its = ir_find(u->image.ir[g], name);
    if (mine != IR_NONE)
        memcpy(bed->values[g].data[mine], from, (size_t)ir_bytes(&u->graphs[g]->tensors.at[mine]));
    return its == IR_NONE || !m ? MPK_OK : machine_write_tensor(cx, m, g, its, from);
}

typedef struct step {
    uint32_t graph, first, n; /* positions of slot 1 */
} step;

/* The tokens that the steps of a run have at their positions. */
static void draw_tokens(const step *s, uint64_t seed, int32_t *tokens)
{
    for (uint32_t i = 0; i < s->n; i++)
        tokens[i] = (int32_t)(rng_u64(seed, s->first + i) % VOCAB);
}

/* tokens[s->n], for the interpreter and, unless it is NULL, the machine. */
static mpk_status put_step(mpk_context *cx, const unit *u, model_bed *bed, machine *m,
                           const step *s, const int32_t *of_step)
{
    int32_t tokens[MOST_TOKENS] = {0}, positions[MOST_TOKENS] = {0}, slots[MOST_TOKENS] = {0},
            rows[MOST_TOKENS] = {0}, draws[MOST_TOKENS] = {0}, pages[4 * 8];
    int64_t seeds[MOST_TOKENS] = {0};
    float sampling[MOST_TOKENS * 4] = {0};
    int32_t asks[MOST_TOKENS * 7] = {0};
    for (uint32_t i = 0; i < s->n; i++) {
        tokens[i] = of_step[i];
        positions[i] = (int32_t)(s->first + i);
        slots[i] = 1;
    }
    for (int i = 0; i < 32; i++)
        pages[i] = 15 - i % 16;
    rows[0] = (int32_t)s->n - 1;
    const struct {
        const char *name;
        const void *at;
    } inputs[] = {{"tokens", tokens}, {"positions", positions}, {"slots", slots},
                  {"pages", pages},   {"rows", rows},           {"sampling", sampling},
                  {"seeds", seeds},   {"asks", asks},           {"draws", draws}};
    for (uint32_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        TRY(put(cx, u, bed, m, s->graph, inputs[i].name, inputs[i].at));
    return MPK_OK;
}

/* One row of logits and the token, from the machine. */
static mpk_status read_row(mpk_context *cx, const unit *u, model_bed *bed, uint32_t g,
                           float *logits)
{
    const ir_graph *ir = u->image.ir[g];
    ir_tensor_id t = ir_find(ir, "logits");
    CHECK(cx, t != IR_NONE, MPK_EVERIFY, "the program has no logits");
    arena_mark mark = arena_get_mark(&bed->arena);
    float *all = arena_alloc(&bed->arena, (size_t)ir_bytes(&ir->tensors.at[t]), 1);
    CHECK(cx, all, MPK_ENOMEM, "out of memory");
    TRY(machine_read_tensor(cx, bed->m, g, t, all));
    memcpy(logits, all, VOCAB * sizeof *logits);
    arena_reset(&bed->arena, mark);
    return MPK_OK;
}

/* The interpreter's logits of a step. */
static mpk_status expect_step(mpk_context *cx, const unit *u, model_bed *bed, const step *s,
                              float *logits)
{
    ir_values *v = &bed->values[s->graph];
    v->live[IR_ALL] = UINT32_MAX;
    v->live[IR_TOKENS] = s->n;
    v->live[IR_ROWS] = 1;
    TRY(ir_eval(cx, &bed->arena, u->graphs[s->graph], v));
    memcpy(logits, v->data[ir_find(u->graphs[s->graph], "logits")], VOCAB * sizeof *logits);
    return MPK_OK;
}

/* The entry in which two rows of logits differ most; *by is by how much, without end for a NaN. */
static int find_farthest(const float *a, const float *b, double *by)
{
    int at = 0;
    *by = 0;
    for (int i = 0; i < VOCAB; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (d <= *by)
            continue;
        *by = isnan(d) ? INFINITY : d;
        at = i;
    }
    return at;
}

/* Change the last bit of half of the embedding's numbers, or change them back. */
static void flip_last_bits(const unit *u, model_bed *bed, uint32_t g, uint64_t seed)
{
    const ir_tensor_id t = ir_find(u->graphs[g], "model.embed_tokens.weight");
    uint16_t *at = bed->values[g].data[t];
    for (int64_t i = 0; i < ir_elements(&u->graphs[g]->tensors.at[t]); i++)
        at[i] ^= (uint16_t)(rng_u64(seed, (uint64_t)i) & 1);
}

static bool has_halves(const unit *u, uint32_t g)
{
    const ir_tensor_id t = ir_find(u->graphs[g], "model.embed_tokens.weight");
    return u->graphs[g]->tensors.at[t].dtype != IR_F32;
}

/* How far the last bits of what a step in 16 bits reads move its logits: the most of a few draws.
 * Small models of random weights have steps that magnify them a hundred times.  The step is
 * computed once more at the end, so that the cache holds what it held. */
static mpk_status find_unrest(mpk_context *cx, const unit *u, model_bed *bed, const step *s,
                              uint64_t seed, const float *expected, double *most)
{
    float moved[VOCAB];
    *most = 0;
    for (uint64_t draw = 0; draw < 8; draw++) {
        double by;
        flip_last_bits(u, bed, s->graph, seed + draw);
        mpk_status status = expect_step(cx, u, bed, s, moved);
        flip_last_bits(u, bed, s->graph, seed + draw);
        TRY(status);
        find_farthest(moved, expected, &by);
        *most = by > *most ? by : *most;
    }
    return expect_step(cx, u, bed, s, moved);
}

/* Twice what last bits do may be rounding, whatever `allowed` says. */
static mpk_status run_step(mpk_context *cx, const unit *u, model_bed *bed, const step *s,
                           uint64_t seed, double allowed, double *worst)
{
    float got[VOCAB], expected[VOCAB], zero[VOCAB] = {0};
    int32_t tokens[MOST_TOKENS];
    double range, by, unrest = 0;
    draw_tokens(s, seed, tokens);
    TRY(put_step(cx, u, bed, bed->m, s, tokens));
    TRY(expect_step(cx, u, bed, s, expected));
    TRY(machine_run_graph(cx, bed->m, s->graph, s->n, 1));
    TRY(read_row(cx, u, bed, s->graph, got));
    find_farthest(expected, zero, &range);
    const int at = find_farthest(got, expected, &by);
    if (by > allowed * range && has_halves(u, s->graph))
        TRY(find_unrest(cx, u, bed, s, seed, expected, &unrest));
    CHECK(cx, by <= allowed * range || by <= 2 * unrest, MPK_EVERIFY,
          "graph for %u tokens, position %u: logit %d is %g, expected %g (range %g; last bits move "
          "it by %g)",
          u->n_tokens[s->graph], s->first, at, (double)got[at], (double)expected[at], range,
          unrest);
    *worst = by / range > *worst ? by / range : *worst;
    return MPK_OK;
}

/* Step k; the last one has as many tokens as its graph takes, up to the end of the context: 128
 * positions, or with a kernel for prompts the 512 of eight pages of 64. */
static step step_of(const unit *u, int k)
{
    static const step steps[STEPS] = {{2, 0, 27}, {1, 27, 5}, {0, 32, 1},
                                      {0, 33, 1}, {1, 34, 8}, {3, 42, MOST_TOKENS}};
    step s = steps[k];
    const uint32_t most = u->n_tokens[s.graph], context = most > 128 ? 512 : 128;
    s.n = s.n < most ? s.n : most;
    s.n = s.n < context - s.first ? s.n : context - s.first;
    return s;
}

/* The same steps again and again, from an empty cache. */
static mpk_status repeat(mpk_context *cx, const unit *u, model_bed *bed, uint64_t seed, int repeats)
{
    static float first[STEPS][VOCAB], again[VOCAB];
    int32_t tokens[MOST_TOKENS];
    for (int i = 0; i < repeats; i++) {
        TRY(machine_clear_state(cx, bed->m));
        for (int k = 0; k < STEPS; k++) {
            const step s = step_of(u, k);
            draw_tokens(&s, seed, tokens);
            TRY(put_step(cx, u, bed, bed->m, &s, tokens));
            TRY(machine_run_graph(cx, bed->m, s.graph, s.n, 1));
            TRY(read_row(cx, u, bed, s.graph, i ? again : first[k]));
            CHECK(cx, i == 0 || memcmp(again, first[k], sizeof again) == 0, MPK_EVERIFY,
                  "run %d of step %d has other bits than the first", i, k);
        }
    }
    return MPK_OK;
}

/* Requests are open and no token comes: how far each is, and what the machine did for a second
 * more. */
static mpk_status say_silence(mpk_context *cx, machine *m, const uint32_t *counts, uint32_t first,
                              uint32_t n, uint64_t waited_ns)
{
    char words[256] = "";
    machine_facts before, after;
    for (uint32_t r = first; r < first + n; r++)
        snprintf(words + strlen(words), sizeof words - strlen(words), " %u", counts[r]);
    machine_describe(m, &before);
    nanosleep(&(struct timespec){1, 0}, NULL);
    machine_describe(m, &after);
    FAIL(cx, MPK_ESTALLED,
         "no token for %llu s; the requests have%s tokens; %u of %u pages are free; %llu steps, "
         "%llu a second later",
         (unsigned long long)(waited_ns / 1000000000u), words, before.free_pages, before.n_pages,
         (unsigned long long)before.n_steps, (unsigned long long)after.n_steps);
}

/* The requests first <= r < first + n, by the ids that they were given. */
typedef struct served {
    uint64_t ids[REQUESTS];
    uint32_t counts[REQUESTS]; /* tokens that have come */
    uint32_t first, n, answer;
} served;

/* Note a token with its request.  Returns 1 if it ends that. */
static uint32_t note_token(served *s, const rt_token *t, int32_t tokens[REQUESTS][ANSWER])
{
    uint32_t r = s->first;
    while (r < s->first + s->n && s->ids[r] != t->id)
        r++;
    if (r == s->first + s->n)
        return 0;
    if (t->token >= 0 && s->counts[r] < s->answer)
        tokens[r][s->counts[r]++] = t->token;
    return t->reason != RT_GOING;
}

/* The prompt of request r.  Returns how many tokens it has. */
static uint32_t make_prompt(uint64_t seed, uint32_t r, int32_t prompt[MOST_PROMPT])
{
    const uint32_t n = 3 + 11 * r;
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = (int32_t)(rng_u64(seed + r, i) % VOCAB);
    return n;
}

static mpk_status submit_all(mpk_context *cx, model_bed *bed, uint64_t seed, served *s)
{
    for (uint32_t r = s->first; r < s->first + s->n; r++) {
        int32_t prompt[MOST_PROMPT];
        const uint32_t n = make_prompt(seed, r, prompt);
        machine_request q = {
            .tokens = prompt, .n_tokens = n, .max_tokens = s->answer, .top_p = 1, .drafts = DRAFTS};
        TRY(machine_submit(cx, bed->m, &q, &s->ids[r]));
    }
    return MPK_OK;
}

/* `together` requests at a time; each alone and among others must get the same tokens. */
static mpk_status serve(mpk_context *cx, model_bed *bed, uint64_t seed, uint32_t n,
                        uint32_t together, uint32_t answer, int32_t tokens[REQUESTS][ANSWER])
{
    const uint64_t limit_ns = DRAIN_SECONDS * 1000000000ull * checks->patience;
    served s = {.n = together, .answer = answer};
    for (; s.first < n; s.first += together) {
        TRY(submit_all(cx, bed, seed, &s));
        for (uint32_t open = together; open;) {
            rt_token out[16];
            uint32_t got;
            TRY(machine_drain(cx, bed->m, out, 16, limit_ns, &got));
            if (!got)
                return say_silence(cx, bed->m, s.counts, s.first, together, limit_ns);
            for (uint32_t i = 0; i < got; i++)
                open -= note_token(&s, &out[i], tokens);
        }
    }
    for (uint32_t r = 0; r < n; r++)
        CHECK(cx, s.counts[r] == answer, MPK_EVERIFY, "request %u got %u tokens of %u", r,
              s.counts[r], answer);
    return MPK_OK;
}

/* Request r got the tokens a one time and b another, greedily.  Where they part for the first time
 * both must be nearly as likely as the likeliest token: sums that are added in another order, by
 * the bodies for another number of tokens, can change the places of such tokens, and nothing else
 * may.  Nearly is, as in run_step, what a GPU's logits may differ by from the interpreter's, which
 * decide here. */
static mpk_status expect_near_tie(mpk_context *cx, const unit *u, model_bed *bed, uint64_t seed,
                                  double allowed, uint32_t r, const int32_t *a, const int32_t *b)
{
    int32_t tokens[MOST_PROMPT + ANSWER];
    float logits[VOCAB], zero[VOCAB] = {0};
    double range, unrest = 0;
    uint32_t at = 0, n = make_prompt(seed, r, tokens);
    while (a[at] == b[at])
        tokens[n++] = a[at++];
    CHECK(cx, a[at] >= 0 && a[at] < VOCAB && b[at] >= 0 && b[at] < VOCAB, MPK_EVERIFY,
          "request %u got %d and %d, which are no tokens", r, a[at], b[at]);
    const step s = {3, 0, n};
    TRY(put_step(cx, u, bed, NULL, &s, tokens));
    TRY(expect_step(cx, u, bed, &s, logits));
    find_farthest(logits, zero, &range);
    float most = logits[0];
    for (int i = 1; i < VOCAB; i++)
        most = logits[i] > most ? logits[i] : most;
    const double by = most - fmin(logits[a[at]], logits[b[at]]);
    if (by > allowed * range && has_halves(u, s.graph))
        TRY(find_unrest(cx, u, bed, &s, seed, logits, &unrest));
    CHECK(cx, by <= allowed * range || by <= 2 * unrest, MPK_EVERIFY,
          "request %u got %d one time and %d another after %u tokens: logits %g and %g, the most "
          "%g (range %g; last bits move it by %g)",
          r, a[at], b[at], at, (double)logits[a[at]], (double)logits[b[at]], (double)most, range,
          unrest);
    return MPK_OK;
}

/* The answers of n requests to the same prompts.  *n_differ grows by those that differ. */
static mpk_status expect_answers(mpk_context *cx, const unit *u, model_bed *bed, uint64_t seed,
                                 double allowed, uint32_t n, uint32_t answer,
                                 int32_t a[REQUESTS][ANSWER], int32_t b[REQUESTS][ANSWER],
                                 uint32_t *n_differ)
{
    for (uint32_t r = 0; r < n; r++) {
        if (memcmp(a[r], b[r], answer * sizeof a[r][0]) == 0)
            continue;
        ++*n_differ;
        TRY(expect_near_tie(cx, u, bed, seed, allowed, r, a[r], b[r]));
    }
    return MPK_OK;
}

/* Each request alone must get the tokens that it gets among others, but for near ties. */
static mpk_status serve_twice(mpk_context *cx, const unit *u, model_bed *bed, uint64_t seed,
                              bool small, double allowed, uint32_t *n_differ)
{
    static int32_t alone[REQUESTS][ANSWER], among[REQUESTS][ANSWER];
    const uint32_t n = small ? 2 : REQUESTS, answer = small ? 3 : ANSWER;
    NOTE(cx, serve(cx, bed, seed, n, n, answer, among), "serving %u requests together", n);
    /* the kernel goes to rest, and must come back */
    nanosleep(&(struct timespec){0, 400000000}, NULL);
    NOTE(cx, serve(cx, bed, seed, n, 1, answer, alone), "serving them one by one");
    NOTE(cx, expect_answers(cx, u, bed, seed, allowed, n, answer, alone, among, n_differ),
         "alone and among others");
    return MPK_OK;
}

/* The same requests by a machine that tries drafts; *bed is left with it.  Attention adds up tokens
 * of the step in another order than tokens of the cache, so as above near ties may differ. */
static mpk_status serve_drafts(mpk_context *cx, const item *it, const unit *u, model_bed *bed,
                               const machine_weights *w, cuda_options o, uint64_t seed,
                               double allowed, char *words)
{
    static int32_t plain[REQUESTS][ANSWER], drafted[REQUESTS][ANSWER];
    machine_facts f;
    uint32_t differ = 0;
    TRY(serve(cx, bed, seed, REQUESTS, 1, ANSWER, plain));
    machine_stop(bed->m);
    bed->m = NULL;
    o.draft_tokens = DRAFT_TOKENS;
    o.gram_tokens = it->ahead ? 0 : GRAM_TOKENS;
    o.drafts_freely = true;
    TRY(cuda_start(cx, &u->image, w, &o, &bed->m));
    for (uint32_t together = 1; together <= REQUESTS; together += REQUESTS - 1) {
        NOTE(cx, serve(cx, bed, seed, REQUESTS, together, ANSWER, drafted), "serving with drafts");
        NOTE(cx,
             expect_answers(cx, u, bed, seed, allowed, REQUESTS, ANSWER, plain, drafted, &differ),
             "with drafts and without");
    }
    machine_describe(bed->m, &f);
    /* as its own draft model it is right, but for tokens that are nearly as likely */
    const uint64_t least = it->ahead ? f.drafted - f.drafted / 4 : 1;
    CHECK(cx, f.accepted >= least && f.accepted && f.accepted <= f.drafted, MPK_EVERIFY,
          "%llu of %llu drafts stood", (unsigned long long)f.accepted,
          (unsigned long long)f.drafted);
    size_t n = strlen(words);
    snprintf(words + n, WORDS - n,
             "; %llu of %llu drafts stood, %u of %d answers part at a near tie",
             (unsigned long long)f.accepted, (unsigned long long)f.drafted, differ, 2 * REQUESTS);
    return MPK_OK;
}

/* ---- models whose bits do not depend on company ---- */

/* Requests that try drafts, in company, against the same without, alone. */
static mpk_status check_invariant_drafts(mpk_context *cx, const item *it, const unit *u,
                                         model_bed *bed, const machine_weights *w, cuda_options o,
                                         char *words)
{
    company_touched touched = {0};
    machine_facts f;
    machine_stop(bed->m);
    bed->m = NULL;
    o.draft_tokens = FEW_TOKENS;
    o.gram_tokens = it->ahead ? 0 : 1;
    o.drafts_freely = true;
    TRY(cuda_start(cx, &u->image, w, &o, &bed->m));
    for (uint64_t round = 0; round < COMPANY_ROUNDS; round++)
        TRY(company_count(cx, bed->m, rng_u64(checks->seed, 200 + round), DRAFTS + 2, &touched));
    machine_describe(bed->m, &f);
    CHECK(cx, !touched.n && f.accepted, MPK_EVERIFY,
          "%u of %d requests got other bits in company with drafts than alone without%s; %llu of "
          "%llu drafts stood",
          touched.n, COMPANY_ROUNDS * COMPANY, touched.first, (unsigned long long)f.accepted,
          (unsigned long long)f.drafted);
    size_t n = strlen(words);
    snprintf(words + n, WORDS - n, "; nor do drafts change a bit, of which %llu of %llu stood",
             (unsigned long long)f.accepted, (unsigned long long)f.drafted);
    return MPK_OK;
}

static mpk_status check_invariant(mpk_context *cx, const item *it, const unit *u, model_bed *bed,
                                  char *words)
{
    company_touched touched[2] = {{0}};
    uint32_t n_long = 0;
    machine_facts f;
    cuda_options o = check_options();
    machine_weights w;
    TRY(make_weights(cx, it, u, bed, &w));
    for (uint32_t apart = 0; apart < 2; apart++) {
        machine_stop(bed->m);
        bed->m = NULL;
        o.few_tokens = apart ? FEW_TOKENS : 0;
        TRY(cuda_start(cx, &u->image, &w, &o, &bed->m));
        for (uint64_t round = 0; round < COMPANY_ROUNDS; round++)
            TRY(company_count(cx, bed->m, rng_u64(checks->seed, 100 + round), 0, &touched[apart]));
    }
    CHECK(cx, !touched[1].n, MPK_EVERIFY,
          "%u of %d requests got other bits in company than alone%s", touched[1].n,
          COMPANY_ROUNDS * COMPANY, touched[1].first);
    TRY(company_count_long(cx, bed->m, rng_u64(checks->seed, 99), &n_long));
    machine_describe(bed->m, &f);
    CHECK(cx, !n_long && f.put_back, MPK_EVERIFY,
          "with few pages %u of %d requests got other tokens than alone, and requests paused %u "
          "times",
          n_long, LONG_COMPANY, f.put_back);
    snprintf(words, WORDS,
             "%d requests got the same bits in company as alone; where steps are not kept apart, "
             "%u did not; with few pages requests paused %u times and got the same tokens",
             COMPANY_ROUNDS * COMPANY, touched[0].n, f.put_back);
    return it->drafts ? check_invariant_drafts(cx, it, u, bed, &w, o, words) : MPK_OK;
}

static mpk_status check_model(mpk_context *cx, const item *it, const unit *u, model_bed *bed,
                              char *words)
{
    uint64_t seed = rng_u64(checks->seed, 77);
    double worst = 0, allowed = it->dtype == IR_F32 ? 2e-4 : 5e-2;
    const int repeats = it->small ? 2 : REPEATS;
    uint32_t n_differ = 0;
    machine_weights w;
    cuda_options o = check_options();
    o.mode = it->mode;
    o.on_one_gpu = check_is_on_one_gpu(it);
    TRY(make_weights(cx, it, u, bed, &w));
    TRY(share_by_name(cx, u, bed, &w));
    TRY(cuda_start(cx, &u->image, &w, &o, &bed->m));
    for (int k = 0; k < STEPS; k++) {
        const step s = step_of(u, k);
        TRY(run_step(cx, u, bed, &s, seed, allowed, &worst));
    }
    snprintf(words, WORDS, "logits differ by %.1e of their range", worst);
    TRY(repeat(cx, u, bed, seed, repeats));
    uint64_t start = clock_ns();
    TRY(serve_twice(cx, u, bed, seed, it->small, allowed, &n_differ));
    snprintf(
        words, WORDS,
        "logits differ by %.1e of their range, %d runs the same, %d requests served in %.2f s, "
        "of which %u part at a near tie",
        worst, repeats, 2 * (it->small ? 2 : REQUESTS), (double)(clock_ns() - start) * 1e-9,
        n_differ);
    if (it->drafts)
        TRY(serve_drafts(cx, it, u, bed, &w, o, seed, allowed, words));
    return MPK_OK;
}

mpk_status check_run_model(mpk_context *cx, const item *it, unit *u, char *words)
{
    model_bed bed = {0};
    mpk_status status = it->invariant ? check_invariant(cx, it, u, &bed, words)
                                      : check_model(cx, it, u, &bed, words);
    machine_stop(bed.m);
    arena_free(&bed.arena);
    return status;
}
