/* engine_compile.c - from MODEL to a compiled program with its weights.
 *
 * Input: a path and options; output: an image and an address for each weight.  Weights that are
 * small beside the free memory are gathered in large pages; others stay in the file's mapping, and only what is not
 * aligned there, or is made up, gets memory of its own.
 */
#include <sys/mman.h>

#include <stdio.h>
#include <stdlib.h>

#include "base/large_pages.h"
#include "base/thread.h"
#include "engine/engine.h"

enum { PAGE_BYTES = 16384, PAGES_PER_WORKER = 1 << 16 };
enum { GPU_SPLIT_TOKENS = 16, GPU_NORM_ELEMENTS = 1 << 24, GPU_NORM_TOKENS = 64 };
/* Units of 128 positions in a part of a context that is cut by itself: fewer parts are fewer pieces for each worker
 * when many tokens share a step, more parts share a short context among more workers when one is alone. */
enum { GPU_OWN_UNITS = 2 };

/* What the bodies of a GPU do well: the context of a few tokens is cut so that every worker has a part of some head,
 * a norm is cheaper than the event that it saves, and results are rounded once. */
static void set_gpu_options(const engine_device *device, uint32_t kv_heads, bool batch_invariant, pass_options *to)
{
    to->splits = kv_heads && kv_heads < device->n_workers ? device->n_workers / kv_heads : kv_heads ? 1 : 0;
    to->split_tokens = GPU_SPLIT_TOKENS;
    to->own_units = batch_invariant ? GPU_OWN_UNITS : 0;
    to->norm_elements = GPU_NORM_ELEMENTS;
    to->norm_tokens = GPU_NORM_TOKENS;
    to->relaxed = true;
    to->whole_tiles = true;
    to->logits = true;
}

mpk_status engine_pass_options(mpk_context *cx, arena *a, const mpk_engine_options *from, const engine_device *device,
                               uint32_t kv_heads, pass_options *to)
{
    static const pass_fusion fusions[] = {PASS_FUSE_FULL, PASS_FUSE_PAPER, PASS_FUSE_NONE};
    static const pass_launch launches[] = {PASS_LAUNCH_AUTO, PASS_LAUNCH_PAPER, PASS_LAUNCH_AOT, PASS_LAUNCH_JIT};
    pass_degree *degrees;
    NEW(cx, a, degrees, from->n_degrees);
    for (uint32_t i = 0; i < from->n_degrees; i++)
        degrees[i] = (pass_degree){str_from(from->degrees[i].match), from->degrees[i].axis, from->degrees[i].degree};
    *to = (pass_options){
        .n_workers = device->n_workers,
        .page_bytes = PAGE_BYTES, /* a target counts its own scratch when it chooses bodies */
        .pages_per_worker = PAGES_PER_WORKER,
        .fusion = fusions[from->fusion],
        .launch = launches[from->launch],
        .coarse_events = from->coarse_events,
        .verify = from->verify,
        .degrees = degrees,
        .n_degrees = from->n_degrees,
    };
    CHECK(cx, !device->is_gpu || from->activations != MPK_ACTIVATIONS_I8, MPK_EUNSUPPORTED,
          "activations in 8 bits (i8) are of the CPU target: on a GPU say auto or f32");
    to->narrow = from->activations == MPK_ACTIVATIONS_I8;
    if (device->is_gpu)
        set_gpu_options(device, kv_heads, from->batch_invariant != 0, to);
    return MPK_OK;
}

/* ---- compile ---- */

static mpk_status load(mpk_context *cx, const char *path, engine_build *b)
{
    TRY(engine_progress(cx, &b->options, "loading", 0));
    TRY(load_open(cx, path, &b->model));
    b->is_loaded = true;
    CHECK(cx, b->model.has_config, MPK_EUNSUPPORTED, "%s is a vocabulary alone: it serves mpk tokenize, nothing else",
          path);
    return engine_progress(cx, &b->options, "loading", 1);
}

/* Is the program in the cache?  What is to be kept or proved is compiled; so is a part, which is to be looked at. */
static mpk_status look_into_cache(mpk_context *cx, engine_build *b, const pass_options *options, uint32_t n,
                                  ir_graph *const *graphs, const uint32_t *tokens)
{
    if (!b->device.held || b->options.keep || options->verify)
        return MPK_OK;
    TRY(engine_program_key(cx, &b->arena, &b->device, options, n, graphs, tokens, &b->key));
    b->is_cached = engine_find_program(b);
    return MPK_OK;
}

static mpk_status compile(mpk_context *cx, uint32_t only_tokens, engine_build *b)
{
    ir_graph *graphs[ENGINE_MAX_GRAPHS];
    uint32_t tokens[ENGINE_MAX_GRAPHS], n = 0;
    const engine_plan *p = &b->plan;
    pass_options options;
    TRY(engine_pass_options(cx, &b->arena, &b->options, &b->device, b->model.config.n_kv_heads, &options));
    options.narrow = !b->device.is_gpu && b->options.activations != MPK_ACTIVATIONS_F32;
    for (uint32_t i = 0; i < p->n_graphs; i++) {
        bool last = i + 1 == p->n_graphs;
        if (only_tokens && p->n_tokens[i] < only_tokens && !last)
            continue;
        TRY(engine_progress(cx, &b->options, "compiling", (double)i / p->n_graphs));
        TRY(engine_build_graph(cx, &b->arena, &b->model, p, p->n_tokens[i], &graphs[n]));
        tokens[n++] = p->n_tokens[i];
        if (only_tokens)
            break;
    }
    TRY(look_into_cache(cx, b, &options, n, graphs, tokens));
    if (!b->is_cached) {
        TRY(pass_compile(cx, &b->arena, &options, n, graphs, tokens, &b->program));
        TRY(image_make(cx, &b->arena, &b->program, &b->image));
    }
    return engine_progress(cx, &b->options, "compiling", 1);
}

mpk_status engine_build_open(mpk_context *cx, const char *model, const mpk_engine_options *options, bool for_running,
                             uint32_t only_tokens, engine_build *b)
{
    uint64_t start = clock_ns();
    TRY(engine_read_options(cx, &b->arena, options, &b->options));
    CHECK(cx, b->options.mode != MPK_MODE_CALLS, MPK_EARG, "MPK_MODE_CALLS is for tensor programs (mpk/graph.h)");
    if (engine_is_image(model)) {
        NOTE(cx, engine_read_image(cx, model, for_running, b), "opening the image %s", model);
        b->load_ns = clock_ns() - start - b->device_ns;
    } else {
        NOTE(cx, load(cx, model, b), "loading %s", model);
        b->load_ns = clock_ns() - start;
        TRY(engine_choose_device(cx, &b->options, for_running, &b->device));
        b->device_ns = clock_ns() - start - b->load_ns;
        TRY(engine_make_plan(cx, &b->model, &b->options, &b->device, for_running, &b->plan));
    }
    if (b->options.random_weights && !b->model.tensors.n && !b->model.tokenizer)
        TRY(engine_make_tokenizer(cx, b->model.config.vocab_size, &b->model.tokenizer));
    if (b->image.block)
        return MPK_OK;
    NOTE(cx, compile(cx, only_tokens, b), "compiling %s", model);
    b->compile_ns = clock_ns() - start - b->load_ns - b->device_ns;
    return MPK_OK;
}

void engine_build_free(engine_build *b)
{
    if (b->is_loaded)
        load_close(&b->model);
    engine_leave_device(&b->device);
    text_free(&b->code);
    arena_free(&b->arena);
    *b = (engine_build){0};
}

/* ---- weights ---- */

static uint64_t weight_bytes(const tg_weight *w)
{
    uint64_t rows = 1;
    for (uint32_t i = 0; i + 1 < w->rank; i++)
        rows *= (uint64_t)w->dims[i];
    return rows * (uint64_t)ir_row_bytes(w->dtype, w->rank ? w->dims[w->rank - 1] : 1);
}

static const uint64_t MOST_GATHERED_BYTES = (uint64_t)2 << 30;

/* Room for all weights in large pages, if they are small beside the free memory.  A file's mapping has a translation
 * for every 4 KiB; without most of them weights are read 10 to 15 % faster.  No room is no error: then they stay in the
 * file. */
static void find_room_for_weights(mpk_engine *e)
{
    uint64_t n = LARGE_PAGE;
    for (uint32_t i = 0; i < e->build.image.n_weights; i++)
        n += (weight_bytes(&e->build.image.weights[i]) + 63) / 64 * 64;
    if (n > MOST_GATHERED_BYTES || n > engine_free_memory(NULL) / 4)
        return;
    void *p = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return;
    pages_make_large(p, (size_t)n);
    e->gathered = p;
    e->gathered_bytes = (size_t)n;
    e->gathered_used = (size_t)(-(uintptr_t)p & (LARGE_PAGE - 1));
}

/* Memory for a weight of the engine's own. */
static mpk_status own_bytes(mpk_context *cx, mpk_engine *e, uint32_t i)
{
    const tg_weight *w = &e->build.image.weights[i];
    uint64_t n = weight_bytes(w);
    if (e->gathered) {
        e->weights[i] = e->gathered + e->gathered_used;
        e->gathered_used += (size_t)(n + 63) / 64 * 64;
        return MPK_OK;
    }
    void *p = NULL;
    bool large = n >= LARGE_PAGE;
    CHECK(cx, n <= SIZE_MAX - LARGE_PAGE && posix_memalign(&p, large ? LARGE_PAGE : 64, n ? n : 1) == 0, MPK_ENOMEM,
          "out of memory for the %llu bytes of weight %.*s", (unsigned long long)n, LOAD_NAME(w->name));
    if (large)
        pages_make_large(p, n);
    e->weights[i] = e->own_weights[i] = p;
    return MPK_OK;
}

static mpk_status make_up_weight(mpk_context *cx, mpk_engine *e, uint32_t i)
{
    const tg_weight *w = &e->build.image.weights[i];
    int64_t elements = 1;
    for (uint32_t d = 0; d < w->rank; d++)
        elements *= w->dims[d];
    TRY(own_bytes(cx, e, i));
    load_random_fill(e->build.options.random_seed, w->name, w->dtype, 0, elements, e->weights[i]);
    return MPK_OK;
}

/* What the machine's loads of a dtype want; wider vectors are loaded without. */
static uintptr_t alignment_of(ir_dtype dtype)
{
    const ir_dtype_info *info = &ir_dtype_table[dtype];
    return info->block_elements > 1 ? 2 : info->block_bytes;
}

/* The tensor of the file for a weight of the program; converted: it may have another dtype. */
static mpk_status find_weight(mpk_context *cx, const mpk_engine *e, uint32_t i, bool converted, const load_tensor **out)
{
    const tg_weight *w = &e->build.image.weights[i];
    char name[256];
    CHECK(cx, w->name.n < sizeof name, MPK_EFORMAT, "a weight's name has %zu bytes", w->name.n);
    snprintf(name, sizeof name, "%.*s", STR_ARG(w->name));
    const load_tensor *t = load_find(&e->build.model, name);
    CHECK(cx, t, MPK_EFORMAT, "the model has no weight %s", name);
    bool same = t->rank == w->rank && (converted || (t->dtype == w->dtype && t->n_bytes == weight_bytes(w)));
    for (uint32_t d = 0; same && d < w->rank; d++)
        same = t->dims[d] == w->dims[d];
    CHECK(cx, same, MPK_ESHAPE, "weight %s is not of the shape and dtype that the program was compiled for", name);
    *out = t;
    return MPK_OK;
}

/* The parts of a weight one behind the other; what was read of the file is given back, since most of it is copied. */
static void join_parts(const load_tensor *t, char *to)
{
    size_t n = (size_t)(t->n_bytes / (uint64_t)t->dims[0]);
    for (int64_t k = 0; k < t->dims[0]; k++) {
        memcpy(to + (size_t)k * n, t->parts[k], n);
        file_map_release_part(t->parts[k], n);
    }
}

static mpk_status bind_weight(mpk_context *cx, mpk_engine *e, uint32_t i)
{
    const tg_weight *w = &e->build.image.weights[i];
    const load_tensor *t;
    TRY(find_weight(cx, e, i, false, &t));
    if (t->parts) {
        TRY(own_bytes(cx, e, i));
        join_parts(t, e->weights[i]);
        return MPK_OK;
    }
    e->weights[i] = (void *)(uintptr_t)t->data; /* only read */
    if (e->gathered || (uintptr_t)t->data % alignment_of(w->dtype)) {
        TRY(own_bytes(cx, e, i));
        memcpy(e->weights[i], t->data, t->n_bytes);
    }
    return MPK_OK;
}

static const double GIB = 1 << 30;

/* Bytes of the weights that have to be copied because they lie in parts. */
static uint64_t joined_bytes(const mpk_engine *e)
{
    uint64_t n = 0, index;
    for (uint32_t i = 0; i < e->build.image.n_weights; i++) {
        const tg_weight *w = &e->build.image.weights[i];
        if (map_get(&e->build.model.names, w->name, &index) && e->build.model.tensors.at[index].parts)
            n += weight_bytes(w);
    }
    return n;
}

/* What is not mapped from files must fit into memory: said now, with numbers, instead of by the system later.  On a GPU
 * that is everything. */
static mpk_status check_memory(mpk_context *cx, const mpk_engine *e)
{
    const rt_u64 *area = e->build.image.block->area_bytes;
    const engine_device *d = &e->build.device;
    bool counted = d->is_gpu || e->build.options.random_weights;
    uint64_t weights = counted ? area[RT_WEIGHTS] : joined_bytes(e), kv = e->build.plan.kv_bytes;
    uint64_t other = area[RT_STEP] + area[RT_TEMPS], available = d->is_gpu ? d->free_bytes : engine_free_memory(NULL);
    CHECK(
        cx, weights + kv + other <= available, MPK_ELIMIT,
        "this takes %.2f GiB of memory (%sweights %.2f, KV cache %.2f, activations %.2f), but only %.2f are free%s%s: "
        "lower the context or the batch%s",
        (double)(weights + kv + other) / GIB, counted && !d->is_gpu ? "made-up " : "", (double)weights / GIB,
        (double)kv / GIB, (double)other / GIB, (double)available / GIB, d->is_gpu ? " on " : "",
        d->is_gpu ? d->name : "", e->build.plan.kv_dtype == IR_F32 ? ", or keep the KV cache in bf16" : "");
    return MPK_OK;
}

static mpk_status bind_cpu_weights(mpk_context *cx, mpk_engine *e)
{
    uint32_t n = e->build.image.n_weights;
    const mpk_engine_options *o = &e->build.options;
    e->weights = calloc(n + 1, sizeof *e->weights);
    e->own_weights = calloc(n + 1, sizeof *e->own_weights);
    CHECK(cx, e->weights && e->own_weights, MPK_ENOMEM, "out of memory for %u weights", n);
    find_room_for_weights(e);
    for (uint32_t i = 0; i < n; i++) {
        TRY(engine_progress(cx, o, o->random_weights ? "making up weights" : "finding weights", (double)i / n));
        TRY(o->random_weights ? make_up_weight(cx, e, i) : bind_weight(cx, e, i));
    }
    for (size_t i = 0; e->gathered && i < e->build.model.files.n; i++)
        file_map_release(&e->build.model.files.at[i]);
    return MPK_OK;
}

static mpk_status bind_gpu_weights(mpk_context *cx, mpk_engine *e)
{
    uint32_t n = e->build.image.n_weights;
    e->gpu_weights = calloc(n + 1, sizeof *e->gpu_weights);
    CHECK(cx, e->gpu_weights, MPK_ENOMEM, "out of memory for %u weights", n);
    for (uint32_t i = 0; i < n && !e->build.options.random_weights; i++) {
        const load_tensor *t;
        TRY(find_weight(cx, e, i, true, &t));
        e->gpu_weights[i] = (cuda_weight){t->data, t->dtype, t->parts};
    }
    return MPK_OK;
}

mpk_status engine_bind_weights(mpk_context *cx, mpk_engine *e)
{
    CHECK(cx, e->build.options.random_weights || e->build.model.tensors.n, MPK_EARG,
          "%.*s has a configuration but no weights: put them beside it, or have them made up (--random-weights=SEED)",
          STR_ARG(e->build.model.path));
    TRY(check_memory(cx, e));
    return e->build.device.is_gpu ? bind_gpu_weights(cx, e) : bind_cpu_weights(cx, e);
}

void engine_free_weights(mpk_engine *e)
{
    for (uint32_t i = 0; e->own_weights && i < e->build.image.n_weights; i++)
        free(e->own_weights[i]);
    free(e->own_weights);
    free(e->weights);
    free(e->gpu_weights);
    if (e->gathered)
        munmap(e->gathered, e->gathered_bytes);
}

/* ---- starting ---- */

static mpk_status tell_progress(mpk_context *cx, void *options, const char *stage, double done)
{
    return engine_progress(cx, options, stage, done);
}

/* What a kernel that is compiled belongs to. */
typedef struct made_for {
    const program_image *image;
    str key;
} made_for;

static void keep_made(mpk_context *cx, void *user, str code)
{
    const made_for *of = user;
    engine_keep_program(cx, of->key, of->image, code);
}

static cuda_mode mode_of(const mpk_engine_options *o)
{
    static const cuda_mode modes[] = {CUDA_PERSISTENT, CUDA_GRAPH, CUDA_GRAPH_PDL, CUDA_CALLS};
    return modes[o->mode];
}

mpk_status engine_plan_gpu_memory(mpk_context *cx, const engine_build *b, cuda_memory *out)
{
    cuda_options options = {
        .mode = mode_of(&b->options), .no_carriers = b->options.no_carriers != 0, .profile = b->options.profile != 0};
    return cuda_plan_memory(cx, &b->image, b->device.arch, &options, out);
}

static mpk_status start_gpu(mpk_context *cx, const program_image *image, const mpk_engine_options *o,
                            const engine_device *device, const engine_code *code, const cuda_weight *weights,
                            machine **out)
{
    mpk_engine_options told = *o;
    made_for of = {image, code->key};
    cuda_options options = {
        .device = device->index,
        .mode = mode_of(o),
        .few_tokens = o->batch_invariant ? GPU_SPLIT_TOKENS : 0,
        .no_preload = o->no_preload != 0,
        .no_descriptor_prefetch = o->no_descriptor_prefetch != 0,
        .no_carriers = o->no_carriers != 0,
        .profile = o->profile != 0,
        .keep = o->keep,
        .progress = tell_progress,
        .progress_user = &told,
        .code_may_differ = code->key.at != NULL,
        .made = code->key.at ? keep_made : NULL,
        .made_user = &of,
    };
    if ((device->runs_code || code->key.at) && code->code.n) {
        options.code = code->code.at;
        options.code_bytes = code->code.n;
    }
    return cuda_start(cx, image, &(cuda_weights){weights, o->random_seed}, &options, out);
}

mpk_status engine_start_machine(mpk_context *cx, const program_image *image, const mpk_engine_options *o,
                                const engine_device *device, const engine_code *code, void *const *weights,
                                const cuda_weight *gpu_weights, machine **out)
{
    if (device->is_gpu)
        return start_gpu(cx, image, o, device, code, gpu_weights, out);
    return cpu_start(cx, image, weights, &(cpu_options){.no_preload = o->no_preload != 0}, out);
}
