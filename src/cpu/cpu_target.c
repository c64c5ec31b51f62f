/* cpu_target.c - the CPU as a target (host/target.h): its device, its defaults for the passes,
 * and how a machine starts.
 *
 * Relies on: cpu.c, which runs programs, and cpu_weights.c.  Called through target_cpu by
 * src/engine alone.
 */
#include <stdio.h>

#include "base/free_memory.h"
#include "base/thread.h"
#include "cpu/cpu_machine.h"

/* Most tokens of a step with drafts: with more tokens than these, a draft costs as much as a
 * token. */
enum { DRAFT_TOKENS = 16 };

/* Describe the device: workers, peers, free memory.  Options that only a GPU has are refused: if
 * they were ignored, a measurement would look as if they had done nothing.  `gpus` on the CPU
 * means groups of threads, each of which is a peer (docs/gpus.md). */
static mpk_status open_device(mpk_context *cx, const target_ask *ask, target_device *out)
{
    const mpk_engine_options *o = ask->options;
    CHECK(cx,
          o->mode == MPK_MODE_KERNEL && !o->no_descriptor_prefetch && !o->no_carriers && !o->keep,
          MPK_EARG,
          "this runs on the CPU, but mode, no_descriptor_prefetch, no_carriers and keep are for a "
          "GPU");
    uint32_t peers = o->gpus ? o->gpus : 1,
             each = (o->threads ? o->threads : thread_cores()) / peers;
    out->n_peers = peers;
    out->n_workers = (each ? each : 1) * peers; /* groups of as many threads each */
    out->free_bytes = memory_free_bytes(NULL);
    snprintf(out->name, sizeof out->name, "CPU");
    return MPK_OK;
}

/* Attention with fewer tasks than this for each thread is cut over contexts: three KV heads on two
 * threads would keep one of them waiting for a third of the time. */
enum { CONTEXT_TASKS = 4 };

/* The passes' own defaults are made for the CPU, but for attention, of whose cut only it gives the
 * same bits however it is made. */
static void tune(const target_device *d, const mpk_engine_options *o, uint32_t kv_heads,
                 pass_options *to)
{
    (void)d, (void)o, (void)kv_heads;
    to->context_tasks = CONTEXT_TASKS;
}

/* Bytes for the KV cache: at most all free memory, usually a quarter.  Weights stay in the
 * files, whose pages the system can drop, so they are not subtracted. */
static void kv_budget(const target_device *d, uint64_t weight_bytes, uint64_t tied_bytes,
                      uint64_t *most, uint64_t *usual)
{
    (void)weight_bytes, (void)tied_bytes;
    *most = d->free_bytes;
    *usual = *most / 4;
}

/* The memory that a program needs, by name, for the report.  Weights of files count in full,
 * though the system may drop their pages. */
static mpk_status plan_areas(mpk_context *cx, const program_image *image, const target_device *d,
                             const mpk_engine_options *o, target_area out[TARGET_AREAS],
                             uint32_t *n)
{
    const rt_u64 *area = image->block->area_bytes;
    (void)cx, (void)d, (void)o;
    *n = 0;
    out[(*n)++] = (target_area){"weights", area[RT_WEIGHTS]};
    out[(*n)++] = (target_area){"kv", area[RT_STATE]};
    out[(*n)++] = (target_area){"inputs_and_outputs", area[RT_STEP]};
    out[(*n)++] = (target_area){"activations", area[RT_TEMPS]};
    return MPK_OK;
}

/* Bind the weights and start a machine, which then owns them; if starting fails they are freed
 * here. */
static mpk_status start(mpk_context *cx, const program_image *image, const target_device *d,
                        const target_start *s, machine **out)
{
    const mpk_engine_options *o = s->options;
    const bool drafts = o->speculation || o->draft_model;
    const cpu_options options = {.no_preload = o->no_preload != 0,
                                 .profile = o->profile != 0,
                                 .no_shared_pages = o->no_prefix_cache != 0,
                                 .draft_tokens = drafts ? DRAFT_TOKENS : 0,
                                 .gram_tokens = o->speculation ? o->draft_ngram : 0,
                                 .drafts_apart = o->drafts_apart != 0,
                                 .watcher = s->watcher,
                                 .ranks = s->ranks};
    cpu_weights weights = {0};
    machine *m;
    (void)d;
    mpk_status status = cpu_bind_weights(cx, image, s, &weights);
    if (status == MPK_OK)
        status = cpu_start(cx, image, weights.at, &options, &m);
    if (status != MPK_OK) {
        cpu_free_weights(&weights);
        return status;
    }
    cpu_of(m)->weights = weights; /* freed when the machine stops */
    *out = m;
    return MPK_OK;
}

/* Add the CPU's facts to the object of `mpk doctor --json`, as members without braces. */
static mpk_status report(mpk_context *cx, text *t)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } sets[] = {{CPU_AVX2, "AVX2 with FMA and F16C"},
                {CPU_AVX_VNNI, "AVX-VNNI"},
                {CPU_AVX512, "AVX-512"},
                {CPU_AVX512_VNNI, "AVX-512 VNNI"},
                {CPU_AVX512_BF16, "AVX-512 BF16"},
                {CPU_AMX, "AMX for BF16 and 8-bit activations"},
                {CPU_NEON, "NEON"},
                {CPU_NEON_DOT, "NEON dot products"},
                {CPU_NEON_I8MM, "NEON I8MM"}};
    TRY(cpu_check_isa(cx));
    uint32_t features = cpu_features();
    text_print(t, "\"features\": \"");
    for (size_t i = 0, n = 0; i < sizeof sets / sizeof *sets; i++)
        if (features & sets[i].bit)
            text_print(t, "%s%s", n++ ? ", " : "", sets[i].name);
    text_print(t, "\", \"isa\": \"%s\"", cpu_isa());
    return MPK_OK;
}

const target_def target_cpu = {
    .name = "cpu",
    .title = "the CPU",
    .is_fallback = true,
    .narrows = true,
    .open = open_device,
    .tune = tune,
    .kv_budget = kv_budget,
    .plan_areas = plan_areas,
    .start = start,
    .report = report,
};
