/* cuda_target.c - GPUs as a target (host/target.h): which one, what the passes do for it, how a
 * machine starts on it.
 *
 * Relies on: cuda.h (the machine), cache.h (kernels and programs on disk), gen/arch.h (the table of
 * architectures).  Called through target_cuda by src/engine alone.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/cache.h"
#include "cuda/cuda.h"
#include "cuda/gpu_report.h"
#include "gen/device_body.h"
#include "gen/packed_form.h"
#include "host/target.h"
#include "shape/attention_split_shape.h"
#include "shape/linear_stream_shape.h"

/* Up to FEW_TOKENS a token's sums are in the same order in graphs of any number of tokens.  In
 * graphs of up to SPLIT_TOKENS the context of all tokens is split among workers; of FEW_TOKENS
 * where there is no room for the keys of more. */
enum {
    FEW_TOKENS = 16,
    SPLIT_TOKENS = 256,
    SHARE_TOKENS = 128, /* above, experts are multiplied on warpgroups */
    /* between, tasks of products are few rows of w and all of x, unless they share tiles */
    EVEN_OVER = 32,
    EVEN_UP_TO = 512,
    /* from here on weights in blocks are unpacked once a step.  On an H200 that is some 5 ms for 8
     * billion weights, and linear_blocks takes 2.8 ms more than bf16 for each 128 tokens */
    UNPACK_TOKENS = 256,
    NORM_ELEMENTS = 1 << 24
};
/* Of a step with drafts: up to FEW_TOKENS a step takes little longer than one of a single token. */
enum { DRAFT_TOKENS = FEW_TOKENS };
/* Units of 128 positions in a part of a context that is cut by itself: fewer parts are fewer pieces
 * for each worker when many tokens share a step, more parts share a short context among more
 * workers when one is alone. */
enum { OWN_UNITS = 2 };

/* target_def.arch_name: the table ends with a row whose name is NULL. */
static const char *arch_name(uint32_t i)
{
    return gen_arch_table[i].name;
}

/* ---- devices ---- */

/* Workers of all GPUs, as many on each. */
static uint32_t count_workers(const target_ask *ask, uint32_t n_peers, uint32_t n_sms)
{
    const uint32_t each = ask->options->threads / n_peers;
    if (!ask->options->threads)
        return n_sms * n_peers;
    return (each ? each : 1) * n_peers;
}

static void name_device(target_device *out, const char *name)
{
    if (out->n_peers > 1)
        snprintf(out->name, sizeof out->name, "%u x %.100s", out->n_peers, name);
    else
        snprintf(out->name, sizeof out->name, "%s", name);
}

/* Describe GPUs that are not here, from the table: all their memory is taken to be free. */
static void describe_arch(const target_ask *ask, target_device *out)
{
    const gen_arch *arch = gen_arch_find(ask->arch);
    char name[64];
    out->n_workers = count_workers(ask, out->n_peers, arch->n_sms);
    out->free_bytes = UINT64_MAX;
    snprintf(out->arch, sizeof out->arch, "%s", arch->name);
    snprintf(name, sizeof name, "%s (%s)", arch->name, arch->gpu);
    name_device(out, name);
}

/* target_def's leave: a machine that runs on the GPU holds it itself. */
static void leave(target_device *d)
{
    cuda_let_go(d->held);
}

/* The GPUs of a program are one after the other; what the one with the least memory has counts for
 * all.  Those that cannot share a program are refused here, before anything is compiled. */
static mpk_status find_memory(mpk_context *cx, const target_ask *ask,
                              const cuda_device_facts *first, target_device *out)
{
    uint64_t least = first->free_bytes;
    CHECK(cx, out->n_peers <= first->n_devices - ask->index, MPK_EUNSUPPORTED,
          "%u GPUs from cuda:%u on were asked for, and this process may use %u in all",
          out->n_peers, ask->index, first->n_devices);
    TRY(cuda_probe_peers(cx, ask->index, out->n_peers));
    for (uint32_t i = 1; i < out->n_peers; i++) {
        cuda_device_facts f;
        TRY(cuda_probe(cx, ask->index + i, &f));
        least = f.free_bytes < least ? f.free_bytes : least;
    }
    out->free_bytes = least * out->n_peers;
    return MPK_OK;
}

/* runs_code: machine code can be kept for this GPU; one that is newer than every architecture of
 * the table runs PTX instead. */
static mpk_status describe_gpu(mpk_context *cx, const target_ask *ask, target_device *out)
{
    cuda_device_facts f;
    TRY(cuda_probe(cx, ask->index, &f));
    TRY(find_memory(cx, ask, &f, out));
    out->runs_code = !f.as_ptx;
    out->index = ask->index;
    out->n_workers = count_workers(ask, out->n_peers, f.gpu.n_sms);
    snprintf(out->arch, sizeof out->arch, "%s", f.arch.name);
    name_device(out, f.gpu.name);
    CHECK(cx, out->n_workers <= f.gpu.n_sms * out->n_peers, MPK_EARG,
          "%u workers, but %s has %u SMs, and each holds one", out->n_workers / out->n_peers,
          f.gpu.name, f.gpu.n_sms);
    return MPK_OK;
}

/* Is there what compiles kernels? */
static mpk_status find_compiler(mpk_context *cx)
{
    cuda_nvrtc *compiler;
    TRY(cuda_nvrtc_open(cx, &compiler));
    cuda_nvrtc_close(compiler);
    return MPK_OK;
}

/* target_def's open.  With ask->arch it is a GPU that need not be there, for compiling.  For
 * running the context is held, so that it is made once; where the user has named no device, one
 * without a compiler is refused, so that the engine can take the CPU. */
static mpk_status open_device(mpk_context *cx, const target_ask *ask, target_device *out)
{
    cuda_held *held = NULL;
    out->n_peers = ask->options->gpus ? ask->options->gpus : 1;
    if (ask->arch) {
        describe_arch(ask, out);
        return MPK_OK;
    }
    if (ask->for_running) /* the one that this process will drive */
        TRY(cuda_hold(cx, ask->index + ask->options->rank, &held));
    mpk_status status = describe_gpu(cx, ask, out);
    if (status == MPK_OK && ask->unnamed)
        status = find_compiler(cx);
    if (status != MPK_OK) {
        cuda_let_go(held);
        return status;
    }
    out->held = held;
    return MPK_OK;
}

/* ---- compiling ---- */

/* Up to how many tokens a step has its context split among the workers. */
static uint32_t split_tokens(const target_device *d, const mpk_engine_options *o)
{
    const uint32_t features = gen_arch_find(d->arch)->features;
    if (o->batch_invariant || !(features & GEN_ROOM))
        return FEW_TOKENS;
    return SPLIT_TOKENS;
}

/* What a GPU changes in the passes: the context of a step of few tokens is split so that every
 * worker has a part of some KV head; a norm up to NORM_ELEMENTS is computed by each of its
 * readers, which costs less than an event; and intermediate results of a fused operator are not
 * rounded. */
static void tune(const target_device *d, const mpk_engine_options *o, uint32_t kv_heads,
                 pass_options *to)
{
    uint32_t parts = kv_heads ? d->n_workers / kv_heads : 0;
    to->splits = kv_heads && !parts ? 1 : parts;
    to->split_tokens = kv_heads ? split_tokens(d, o) : FEW_TOKENS;
    to->own_units = o->batch_invariant ? OWN_UNITS : 0;
    to->norm_elements = NORM_ELEMENTS;
    const bool groups = gen_arch_find(d->arch)->features & GEN_WGMMA;
    to->share_tokens = groups ? SHARE_TOKENS : 0;
    if (groups && kv_heads) {
        to->even_over = EVEN_OVER;
        to->even_up_to = EVEN_UP_TO;
    }
    /* products of what is unpacked read boxes, for which rings of JIT tasks are too short */
    to->unpack_tokens =
        groups && !to->n_degrees && to->launch != PASS_LAUNCH_JIT ? UNPACK_TOKENS : 0;
    /* the same, and maps of images name temporaries */
    to->flatten = groups && o->mode == MPK_MODE_CALLS && to->launch != PASS_LAUNCH_JIT;
    to->relaxed = true;
    to->whole_tiles = true;
    to->logits = true;
    to->sum_terms = gen_arch_find(d->arch)->features & GEN_RING;
}

/* A sixteenth stays free for activations, the kernel and others.  Embeddings that are also the
 * vocabulary product's weights lie there twice: as rows, and packed. */
static void kv_budget(const target_device *d, uint64_t weight_bytes, uint64_t tied_bytes,
                      uint64_t *most, uint64_t *usual)
{
    *most = d->free_bytes;
    *usual = *most / 4;
    if (*most == UINT64_MAX)
        return;
    uint64_t other = weight_bytes + tied_bytes + *most / 16;
    *most = *usual = *most > other ? *most - other : 0;
}

/* MPK_MODE_* are numbered in this order. */
static cuda_mode mode_of(const mpk_engine_options *o)
{
    static const cuda_mode modes[] = {CUDA_PERSISTENT, CUDA_GRAPH, CUDA_GRAPH_PDL, CUDA_CALLS};
    return modes[o->mode];
}

/* With experts each token of a step brings weights of its own: drafts must pay for themselves. */
static bool has_experts(const program_image *image)
{
    const ir_graph *g = image->ir[0];
    bool found = false;
    for (ir_op_id i = 0; i < g->ops.n; i++)
        found |= strcmp(g->ops.at[i].def->name, "route") == 0;
    return found;
}

/* The same for a plan of memory and for a start, since drafts need tables of their own. */
static void choose_drafts(const program_image *image, const mpk_engine_options *o, cuda_options *to)
{
    to->draft_tokens = o->speculation || o->draft_model ? DRAFT_TOKENS : 0;
    to->gram_tokens = o->speculation ? o->draft_ngram : 0;
    to->drafts_freely = !has_experts(image);
    to->drafts_apart = o->drafts_apart != 0;
}

/* What memory a program takes on this GPU, by purpose; nothing is allocated. */
static mpk_status plan_areas(mpk_context *cx, const program_image *image, const target_device *d,
                             const mpk_engine_options *o, target_area out[TARGET_AREAS],
                             uint32_t *n)
{
    cuda_options options = {
        .mode = mode_of(o), .no_carriers = o->no_carriers != 0, .profile = o->profile != 0};
    cuda_memory m;
    choose_drafts(image, o, &options);
    TRY(cuda_plan_memory(cx, image, gen_arch_find(d->arch), &options, &m));
    const target_area areas[] = {{"weights", m.weights_bytes},
                                 {"kv", m.state_bytes},
                                 {"inputs_and_outputs", image->block->area_bytes[RT_STEP]},
                                 {"activations", image->block->area_bytes[RT_TEMPS]},
                                 {"carried", m.carried_bytes},
                                 {"tables", m.tables_bytes},
                                 {"staging", m.staging_bytes},
                                 {"total", m.total_bytes}};
    memcpy(out, areas, sizeof areas);
    *n = sizeof areas / sizeof *areas;
    return MPK_OK;
}

/* target_def's compile: the bytes to keep with the image, without a GPU. */
static mpk_status compile(mpk_context *cx, const program_image *image, const target_device *d,
                          const mpk_engine_options *o, text *code)
{
    return cuda_compile(cx, image, gen_arch_find(d->arch), o->keep, code);
}

/* ---- running ---- */

/* Options of the engine become those of the machine; kept code is used where it fits the GPU.
 * Where it would have to be translated (runs_code is false) it is not even tried, unless it may
 * differ. */
static mpk_status start(mpk_context *cx, const program_image *image, const target_device *d,
                        const target_start *s, machine **out)
{
    const mpk_engine_options *o = s->options;
    cuda_options options = {
        .device = d->index,
        .mode = mode_of(o),
        .few_tokens = o->batch_invariant ? FEW_TOKENS : 0,
        .no_shared_pages = o->no_prefix_cache != 0,
        .no_preload = o->no_preload != 0,
        .no_descriptor_prefetch = o->no_descriptor_prefetch != 0,
        .no_carriers = o->no_carriers != 0,
        .profile = o->profile != 0,
        .ranks = s->ranks,
        .keep = o->keep,
        .progress = s->progress,
        .progress_user = s->progress_user,
        .code_may_differ = s->code_may_differ,
        .made = s->made,
        .made_user = s->made_user,
    };
    choose_drafts(image, o, &options);
    if ((d->runs_code || s->code_may_differ) && s->code.n) {
        options.code = s->code.at;
        options.code_bytes = s->code.n;
    }
    return cuda_start(cx, image, &s->weights, &options, out);
}

/* NVRTC's version is not in the key, except that one named by MPK_NVRTC has programs of its own:
 * looking for NVRTC is a part of what the cache saves. */
static void print_key(const target_device *d, text *key)
{
    const char *compiler = getenv("MPK_NVRTC"), *arch = getenv("MPK_ARCH");
    text_print(key, "%s %d %s\nnvrtc %s\n", d->arch, d->runs_code, arch ? "on a later GPU" : "",
               compiler ? compiler : "");
}

static mpk_status report(mpk_context *cx, text *t)
{
    (void)cx;
    cuda_report_add(t);
    return MPK_OK;
}

/* Products of more tokens with weights in blocks take longer than in bf16, and without wgmma their
 * weights pass once for each 16 tokens of a prompt (docs/gpu.md, "Weights in blocks"). */
static bool prefers_blocks(const target_device *d, uint32_t n_tokens)
{
    return gen_arch_find(d->arch)->features & GEN_WGMMA && n_tokens <= STREAM_MOST_TOKENS;
}

const target_def target_cuda = {
    .name = "cuda",
    .title = "a GPU",
    .is_numbered = true,
    .has_own_memory = true,
    .works_in_bf16 = true,
    .block_kind = gen_packed_kind_of,
    .prefers_blocks = prefers_blocks,
    .call_align = CUDA_OPERAND_ALIGN,
    .arch_name = arch_name,
    .open = open_device,
    .leave = leave,
    .most_group = ATTENTION_ROWS,
    .split_tokens = split_tokens,
    .tune = tune,
    .kv_budget = kv_budget,
    .plan_areas = plan_areas,
    .compile = compile,
    .start = start,
    .print_key = print_key,
    .find_program = cuda_cache_open_program,
    .keep_program = cuda_cache_store_program,
    .clear_programs = cuda_cache_clear,
    .report = report,
};
