/* engine_model.c - sizes: from a model and options to the shapes that are compiled, and the memory
 * they take.
 *
 * Input: hyper-parameters, options, free memory; output: an engine_plan.  The KV cache is the one
 * thing whose size is a choice: by default every request of the batch may fill its context, unless
 * that is more than a quarter of what is free; then requests wait for one another's pages.  What
 * cannot run at all is refused with the numbers.
 *
 * Relies on host/target.h for what a device wants.  Called by engine_compile.c and
 * engine_inspect.c, which then have engine_build_graph make the tensor program of each number of
 * tokens in the plan.  Example: a batch of 16, a context of 4096 and steps up to 512 tokens give
 * graphs for 1, 2, 4 ... 512 tokens, 64 pages for a request, and 1024 pages if memory allows.
 */
#include <inttypes.h>
#include <stdio.h>

#include "engine/engine.h"

/* ---- steps ---- */

/* The smallest power of two that is at least n, but no more than ENGINE_MAX_STEP. */
static uint32_t power_above(uint64_t n)
{
    uint32_t p = 1;
    while (p < n && p < ENGINE_MAX_STEP)
        p *= 2;
    return p;
}

/* Which numbers of tokens get a graph: powers of two up to the longest useful step, which is all
 * that every request's context could hold.  A target may ask for two graphs of one number
 * (split_tokens).
 *
 * Long steps share weights and boundaries among more tokens, so they are usual where memory is the
 * device's own.  With batch_invariant a prompt's pieces are as long whatever else decodes (else at
 * most RT_MIXED_TOKENS), so there they stay short. */
static void plan_steps(const mpk_engine_options *o, const target_device *device, engine_plan *p)
{
    const bool is_long = device->target->has_own_memory && !o->batch_invariant;
    const uint32_t usual = is_long ? ENGINE_LONG_STEP : ENGINE_DEFAULT_STEP;
    uint32_t most = o->step_tokens ? o->step_tokens : usual;
    uint32_t useful = power_above((uint64_t)p->max_batch * p->context_tokens);
    if (most > useful)
        most = useful;
    const target_def *target = device->target;
    const uint32_t split = target->split_tokens ? target->split_tokens(device, o) : 0;
    /* with the longest steps ENGINE_MAX_GRAPHS leaves room for two of them alone */
    const uint32_t twice = most < ENGINE_MAX_STEP || split < ENGINE_TWICE ? split : ENGINE_TWICE;
    for (uint32_t t = 1; t <= most; t *= 2) {
        p->n_tokens[p->n_graphs++] = t;
        if (t > IMAGE_MOST_FRESH && t <= twice) /* one for streams, one for prompts */
            p->n_tokens[p->n_graphs++] = t;
    }
    p->max_rows = p->max_batch > ENGINE_ROWS ? p->max_batch : ENGINE_ROWS;
    if (p->max_rows > most)
        p->max_rows = most;
}

static const double GIB = 1 << 30;

/* ---- dtypes ---- */

/* The dtype of activations on a target that works in bf16: f32 if all matrices of the model are,
 * else bf16.  Without weights the configuration says what they would be. */
static ir_dtype precision_of(const load_model *model)
{
    if (!model->tensors.n)
        return model->config.weight_dtype == IR_F32 ? IR_F32 : IR_BF16;
    for (size_t i = 0; i < model->tensors.n; i++)
        if (model->tensors.at[i].rank >= 2 && model->tensors.at[i].dtype != IR_F32)
            return IR_BF16;
    return IR_F32;
}

/* ---- memory ---- */

/* What the KV cache may take: *most at all, *usual unless more is asked for.  State that each slot
 * has beside it counts as weights do. */
static mpk_status kv_budget(mpk_context *cx, engine_build *b, const engine_plan *p, uint64_t *most,
                            uint64_t *usual)
{
    uint64_t weights = 0, tied = 0;
    for (int i = 0; i <= (b->has_draft ? 1 : 0); i++) {
        const load_model *model = i ? &b->draft : &b->model;
        const model_config *c = &model->config;
        engine_dtypes dtypes;
        TRY(engine_find_dtypes(cx, &b->arena, b, i, &dtypes));
        weights += engine_weight_bytes(&dtypes) + p->max_batch * model_slot_bytes(c);
        tied += c->tied_embeddings ? (uint64_t)c->vocab_size * c->hidden_size * 2 : 0;
    }
    b->device.target->kv_budget(&b->device, weights, tied, most, usual);
    return MPK_OK;
}

/* Pages: as many as asked for, or as memory allows; at least those of one whole context unless
 * fewer were asked for, and no more than all requests can fill.  kv_token_bytes is set.
 *
 * The refusal is only for running: an inspection shows the numbers instead. */
static mpk_status plan_pages(mpk_context *cx, engine_build *b, bool for_running, engine_plan *p)
{
    const mpk_engine_options *o = &b->options;
    uint64_t page_bytes = p->kv_token_bytes * ENGINE_PAGE_TOKENS, most, usual;
    uint64_t whole = (uint64_t)p->max_batch * p->pages_per_slot, n = whole;
    TRY(kv_budget(cx, b, p, &most, &usual));
    if (o->kv_tokens)
        n = (o->kv_tokens + ENGINE_PAGE_TOKENS - 1) / ENGINE_PAGE_TOKENS;
    else if (n * page_bytes > usual)
        n = usual / page_bytes;
    if (n > whole)
        n = whole;
    if (n < p->pages_per_slot && !o->kv_tokens)
        n = p->pages_per_slot;
    CHECK(cx, n <= INT32_MAX, MPK_ELIMIT,
          "%" PRIu64 " KV pages are more than %d: lower the context or the batch", n, INT32_MAX);
    p->n_pages = (uint32_t)n;
    p->kv_bytes = n * page_bytes;
    CHECK(cx, !for_running || p->kv_bytes <= most, MPK_ELIMIT,
          "the KV cache of %" PRIu64 " tokens takes %.2f GiB (%" PRIu64
          " bytes a token), but only %.2f GiB are free%s: lower the context or the batch, or keep "
          "it in bf16",
          n * ENGINE_PAGE_TOKENS, (double)p->kv_bytes / GIB, p->kv_token_bytes, (double)most / GIB,
          b->device.target->has_own_memory ? " beside the weights" : "");
    return MPK_OK;
}

/* Add to kv_token_bytes a position's keys and values in one of the program's models.  A
 * block of a quantised dtype may not reach over two heads. */
static mpk_status add_kv(mpk_context *cx, const model_config *c, engine_plan *p)
{
    CHECK(cx, model_cache_size(c) % ir_dtype_table[p->kv_dtype].block_elements == 0,
          MPK_EUNSUPPORTED,
          "a KV cache of %s needs heads of a multiple of %u entries, those of this model have %u: "
          "say f32, f16 or bf16",
          ir_dtype_table[p->kv_dtype].name, ir_dtype_table[p->kv_dtype].block_elements,
          model_cache_size(c));
    /* each peer has a head at least */
    uint64_t heads = model_kv_heads(c), held = heads > p->n_peers ? heads : p->n_peers;
    p->kv_token_bytes += model_caches(c) * model_cached_layers(c) * held *
                         (uint64_t)ir_row_bytes(p->kv_dtype, model_cache_size(c));
    return MPK_OK;
}

/* Chunks beyond the first are seen by no program. */
static mpk_status check_chunk(mpk_context *cx, const model_config *c, uint32_t context)
{
    CHECK(
        cx, !c->chunk || context <= c->chunk, MPK_EUNSUPPORTED,
        "the model's layers see chunks of %u tokens: contexts of more, here %u, are not supported",
        c->chunk, context);
    return MPK_OK;
}

/* The context that was asked for, or else one that is usual and that the model has. */
static mpk_status plan_context(mpk_context *cx, const model_config *c, engine_plan *p)
{
    uint32_t most = c->max_positions;
    if (c->chunk && c->chunk < most)
        most = c->chunk;
    if (!p->context_tokens)
        p->context_tokens = most < ENGINE_DEFAULT_CONTEXT ? most : ENGINE_DEFAULT_CONTEXT;
    TRY(check_chunk(cx, c, p->context_tokens));
    CHECK(cx, p->context_tokens <= c->max_positions, MPK_ELIMIT,
          "a context of %u tokens is more than the %u that the model was made for",
          p->context_tokens, c->max_positions);
    return MPK_OK;
}

/* What a draft model's keys and values take, in the context of the model. */
static mpk_status add_draft(mpk_context *cx, const model_config *c, engine_plan *p)
{
    TRY(check_chunk(cx, c, p->context_tokens));
    return add_kv(cx, c, p);
}

/* The order matters: dtypes, then the bytes of a position, then the steps, then the pages, which
 * get what is left.  With drafts a step may have rules in more rows than it has requests, one for
 * each draft that is tried.  b->plan is written only if all is well. */
mpk_status engine_make_plan(mpk_context *cx, bool for_running, engine_build *b)
{
    static const ir_dtype kv_dtypes[] = {
        [MPK_F32] = IR_F32, [MPK_F16] = IR_F16, [MPK_BF16] = IR_BF16, [MPK_Q8_0] = IR_Q8_0};
    const load_model *model = &b->model;
    const mpk_engine_options *o = &b->options;
    const target_device *device = &b->device;
    const model_config *c = &model->config;
    const bool drafts = o->speculation || b->has_draft;
    engine_plan p = {
        .threads = device->n_workers,
        .n_peers = device->n_peers,
        .max_batch = o->max_batch ? o->max_batch : ENGINE_DEFAULT_BATCH,
        .context_tokens = o->context_tokens,
        .kv_dtype = kv_dtypes[o->kv_dtype],
        .activation_dtype = IR_F32,
        .no_head = o->embeddings,
        .counts_experts = o->count_experts,
    };
    p.n_choices = drafts && p.max_batch < ENGINE_CHOICES ? ENGINE_CHOICES : p.max_batch;
    memcpy(p.arch, device->arch, sizeof p.arch);
    if (device->target->works_in_bf16) {
        p.activation_dtype = precision_of(model);
        if (!o->kv_dtype)
            p.kv_dtype = p.activation_dtype;
    }
    TRY(plan_context(cx, c, &p));
    CHECK(cx, p.kv_dtype != IR_Q8_0 || device->target->narrows, MPK_EUNSUPPORTED,
          "a KV cache of q8_0 is for the CPU: on %s say f32, f16 or bf16", device->target->title);
    TRY(add_kv(cx, c, &p));
    if (b->has_draft)
        NOTE(cx, add_draft(cx, &b->draft.config, &p), "planning the draft model %s",
             o->draft_model);
    p.pages_per_slot = (p.context_tokens + ENGINE_PAGE_TOKENS - 1) / ENGINE_PAGE_TOKENS;
    plan_steps(o, device, &p);
    TRY(plan_pages(cx, b, for_running, &p));
    b->plan = p;
    return MPK_OK;
}

/* Drafts of a request with a form have masks of their own, where that takes little memory. */
static uint32_t guesses_of(const engine_build *b)
{
    const bool drafts = b->options.speculation || b->has_draft;
    return drafts && b->plan.max_batch <= ENGINE_GUESSING_BATCH ? ENGINE_GUESSES : 0;
}

/* The draft model's graphs have the same slots, pages and plan as the model's, since both are
 * compiled into one program.  rule_vocab is the larger of the two vocabularies. */
mpk_status engine_build_graph(mpk_context *cx, arena *a, const engine_build *b, bool drafts,
                              uint32_t n_tokens, ir_graph **out)
{
    const load_model *model = drafts ? &b->draft : &b->model;
    const model_config *c = &b->model.config, *other = &b->draft.config; /* zeros: there is none */
    const engine_plan *plan = &b->plan;
    model_weights weights;
    engine_dtypes dtypes;
    TRY(engine_find_dtypes(cx, a, b, drafts, &dtypes));
    engine_weight_dtypes(&dtypes, &weights);
    model_shape shape = {
        .n_tokens = n_tokens,
        .n_rows = n_tokens < plan->max_rows ? n_tokens : plan->max_rows,
        .n_slots = plan->max_batch,
        .n_choices = plan->n_choices,
        .n_guesses = guesses_of(b),
        .n_pages = plan->n_pages,
        .page_tokens = ENGINE_PAGE_TOKENS,
        .max_pages_per_slot = plan->pages_per_slot,
        .kv_dtype = plan->kv_dtype,
        .activation_dtype = plan->activation_dtype,
        .no_head = plan->no_head,
        .counts_experts = plan->counts_experts && !drafts,
        .drafts = drafts,
        .rule_vocab = c->vocab_size > other->vocab_size ? c->vocab_size : other->vocab_size,
    };
    return model_build(cx, a, &model->config, &shape, &weights, out);
}
