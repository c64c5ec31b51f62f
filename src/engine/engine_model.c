/* engine_model.c - sizes: from a model and options to the shapes that are compiled, and the memory they take.
 *
 * Input: hyper-parameters, options, free memory; output: an engine_plan.  The KV cache is the one thing whose size is a
 * choice: by default every request of the batch may fill its context, unless that is more than a quarter of what is
 * free; then requests wait for one another's pages.  What cannot run at all is refused with the numbers.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"
#include "engine/engine.h"

/* ---- free memory ---- */

/* A decimal number in a file, or UINT64_MAX. */
static uint64_t read_limit(const char *path)
{
    uint64_t value = UINT64_MAX;
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%" SCNu64, &value) != 1)
        value = UINT64_MAX;
    if (f)
        fclose(f);
    return value;
}

uint64_t engine_free_memory(uint64_t *total)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), all = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    uint64_t available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page, kib;
    uint64_t limit = read_limit("/sys/fs/cgroup/memory.max"), used = read_limit("/sys/fs/cgroup/memory.current");
    char line[256];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            available = kib * 1024; /* counts the cache that can be dropped, which the C library does not */
    if (f)
        fclose(f);
    if (limit < all)
        all = limit;
    if (limit != UINT64_MAX && used != UINT64_MAX && used < limit && limit - used < available)
        available = limit - used;
    if (total)
        *total = all;
    return available < all ? available : all;
}

/* ---- steps ---- */

static uint32_t power_above(uint64_t n)
{
    uint32_t p = 1;
    while (p < n && p < ENGINE_MAX_STEP)
        p *= 2;
    return p;
}

static void plan_steps(const mpk_engine_options *o, engine_plan *p)
{
    uint32_t most = o->step_tokens ? o->step_tokens : ENGINE_DEFAULT_STEP;
    uint32_t useful = power_above((uint64_t)p->max_batch * p->context_tokens);
    if (most > useful)
        most = useful;
    for (uint32_t t = 1; t <= most; t *= 2)
        p->n_tokens[p->n_graphs++] = t;
    p->max_rows = p->max_batch > ENGINE_ROWS ? p->max_batch : ENGINE_ROWS;
    if (p->max_rows > most)
        p->max_rows = most;
}

static const double GIB = 1 << 30;

/* ---- dtypes ---- */

/* Of results and the KV cache on a GPU: as precise as the weights are. */
static ir_dtype gpu_dtype(const load_model *model)
{
    if (!model->tensors.n)
        return model->config.weight_dtype == IR_F32 ? IR_F32 : IR_BF16;
    for (size_t i = 0; i < model->tensors.n; i++)
        if (model->tensors.at[i].rank >= 2 && model->tensors.at[i].dtype != IR_F32)
            return IR_BF16;
    return IR_F32;
}

/* On a GPU weights are f32 or bf16: whatever else the file has becomes bf16 on its way there. */
static mpk_status gpu_weight_dtype(mpk_context *cx, const void *self, const char *name, uint32_t rank,
                                   const int64_t *dims, ir_dtype *dtype)
{
    model_weights file = load_weights(self);
    TRY(file.dtype(cx, file.self, name, rank, dims, dtype));
    if (*dtype != IR_F32)
        *dtype = IR_BF16;
    return MPK_OK;
}

static model_weights weights_for(const load_model *model, const engine_plan *p)
{
    return p->arch[0] ? (model_weights){gpu_weight_dtype, model} : load_weights(model);
}

/* ---- memory ---- */

/* About what the weights take on a GPU. */
static uint64_t gpu_weight_bytes(const load_model *model)
{
    const model_config *c = &model->config;
    uint64_t n = 0, H = c->hidden_size, K = c->head_size;
    for (size_t i = 0; i < model->tensors.n; i++) {
        const load_tensor *t = &model->tensors.at[i];
        uint64_t elements = 1;
        for (uint32_t d = 0; d < t->rank; d++)
            elements *= (uint64_t)t->dims[d];
        n += elements * (t->dtype == IR_F32 ? 4 : 2);
    }
    if (model->tensors.n)
        return n;
    n = (uint64_t)c->vocab_size * H * (c->tied_embeddings ? 1 : 2);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint64_t ffn = model_has_experts(c, i) ? (uint64_t)c->n_experts * c->expert_ffn_size : c->ffn_size;
        n += H * (2 * K * (c->n_heads + (uint64_t)c->n_kv_heads) + 3 * ffn);
    }
    return n * (c->weight_dtype == IR_F32 ? 4 : 2);
}

/* What the KV cache may take: *most at all, *usual unless more is asked for.  A GPU keeps a sixteenth for activations,
 * the kernel and others, and has embeddings that are also the vocabulary product's weights twice. */
static void kv_budget(const load_model *model, const engine_device *device, uint64_t *most, uint64_t *usual)
{
    *most = device->free_bytes;
    *usual = *most / 4;
    if (device->is_gpu && *most != UINT64_MAX) {
        const model_config *c = &model->config;
        uint64_t embedding = (uint64_t)c->vocab_size * c->hidden_size * 2;
        uint64_t other = gpu_weight_bytes(model) + (c->tied_embeddings ? embedding : 0) + *most / 16;
        *most = *usual = *most > other ? *most - other : 0;
    }
}

/* Pages: as many as asked for, or as memory allows; at least those of one whole context. */
static mpk_status plan_pages(mpk_context *cx, const load_model *model, const mpk_engine_options *o,
                             const engine_device *device, bool for_running, engine_plan *p)
{
    uint64_t page_bytes = p->kv_token_bytes * ENGINE_PAGE_TOKENS, most, usual;
    uint64_t whole = (uint64_t)p->max_batch * p->pages_per_slot, n = whole;
    kv_budget(model, device, &most, &usual);
    if (o->kv_tokens)
        n = (o->kv_tokens + ENGINE_PAGE_TOKENS - 1) / ENGINE_PAGE_TOKENS;
    else if (n * page_bytes > usual)
        n = usual / page_bytes;
    if (n > whole)
        n = whole;
    if (n < p->pages_per_slot && !o->kv_tokens)
        n = p->pages_per_slot;
    CHECK(cx, n <= INT32_MAX, MPK_ELIMIT, "%" PRIu64 " KV pages are more than %d: lower the context or the batch", n,
          INT32_MAX);
    p->n_pages = (uint32_t)n;
    p->kv_bytes = n * page_bytes;
    CHECK(cx, !for_running || p->kv_bytes <= most, MPK_ELIMIT,
          "the KV cache of %" PRIu64 " tokens takes %.2f GiB (%" PRIu64
          " bytes a token), but only %.2f GiB are free%s: lower the context or the batch, or keep it in bf16",
          n * ENGINE_PAGE_TOKENS, (double)p->kv_bytes / GIB, p->kv_token_bytes, (double)most / GIB,
          device->is_gpu ? " beside the weights" : "");
    return MPK_OK;
}

mpk_status engine_make_plan(mpk_context *cx, const load_model *model, const mpk_engine_options *o,
                            const engine_device *device, bool for_running, engine_plan *out)
{
    static const ir_dtype kv_dtypes[] = {[MPK_F32] = IR_F32, [MPK_F16] = IR_F16, [MPK_BF16] = IR_BF16};
    const model_config *c = &model->config;
    engine_plan p = {
        .threads = device->n_workers,
        .max_batch = o->max_batch ? o->max_batch : ENGINE_DEFAULT_BATCH,
        .context_tokens = o->context_tokens,
        .kv_dtype = kv_dtypes[o->kv_dtype],
        .activation_dtype = IR_F32,
    };
    if (device->is_gpu) {
        snprintf(p.arch, sizeof p.arch, "%s", device->arch->name);
        p.activation_dtype = gpu_dtype(model);
        if (!o->kv_dtype)
            p.kv_dtype = p.activation_dtype;
    }
    if (!p.context_tokens)
        p.context_tokens = c->max_positions < ENGINE_DEFAULT_CONTEXT ? c->max_positions : ENGINE_DEFAULT_CONTEXT;
    CHECK(cx, p.context_tokens <= c->max_positions, MPK_ELIMIT,
          "a context of %u tokens is more than the %u that the model was made for", p.context_tokens, c->max_positions);
    p.kv_token_bytes = 2ull * c->n_layers * c->n_kv_heads * (uint64_t)ir_row_bytes(p.kv_dtype, c->head_size);
    p.pages_per_slot = (p.context_tokens + ENGINE_PAGE_TOKENS - 1) / ENGINE_PAGE_TOKENS;
    plan_steps(o, &p);
    TRY(plan_pages(cx, model, o, device, for_running, &p));
    *out = p;
    return MPK_OK;
}

mpk_status engine_build_graph(mpk_context *cx, arena *a, const load_model *model, const engine_plan *plan,
                              uint32_t n_tokens, ir_graph **out)
{
    model_weights weights = weights_for(model, plan);
    model_shape shape = {
        .n_tokens = n_tokens,
        .n_rows = n_tokens < plan->max_rows ? n_tokens : plan->max_rows,
        .n_slots = plan->max_batch,
        .n_pages = plan->n_pages,
        .page_tokens = ENGINE_PAGE_TOKENS,
        .max_pages_per_slot = plan->pages_per_slot,
        .kv_dtype = plan->kv_dtype,
        .activation_dtype = plan->activation_dtype,
    };
    return model_build(cx, a, &model->config, &shape, &weights, out);
}
