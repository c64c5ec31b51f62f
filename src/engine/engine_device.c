/* engine_device.c - where a program runs: this processor, or a GPU, there or only named.
 *
 * Input: the options `device` and `target`; output: workers, free memory and the row of the table of architectures.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/thread.h"
#include "cuda/nvrtc.h"
#include "engine/engine.h"

/* "cuda" or "cuda:1"; false: neither. */
static bool parse_cuda(const char *word, uint32_t *index)
{
    uint64_t n = 0;
    if (strncmp(word, "cuda", 4) != 0)
        return false;
    if (word[4] == 0) {
        *index = 0;
        return true;
    }
    size_t digits = strspn(word + 5, "0123456789");
    for (size_t i = 0; i < digits && i < 9; i++)
        n = 10 * n + (uint64_t)(word[5 + i] - '0');
    *index = (uint32_t)n;
    return word[4] == ':' && digits && digits < 9 && word[5 + digits] == 0;
}

static void use_cpu(const mpk_engine_options *o, engine_device *out)
{
    *out = (engine_device){.n_workers = o->threads ? o->threads : thread_processors(),
                           .free_bytes = engine_free_memory(NULL)};
    snprintf(out->name, sizeof out->name, "CPU");
}

void engine_leave_device(engine_device *device)
{
    cuda_let_go(device->held);
    device->held = NULL;
}

static mpk_status use_gpu(mpk_context *cx, const mpk_engine_options *o, uint32_t index, bool for_running,
                          engine_device *out)
{
    cuda_device_facts f;
    cuda_held *held = NULL;
    bool as_ptx;
    if (for_running)
        TRY(cuda_hold(cx, index, &held));
    mpk_status status = cuda_probe(cx, index, &f);
    if (status != MPK_OK) {
        cuda_let_go(held);
        return status;
    }
    gen_arch_for(f.gpu.major, f.gpu.minor, &as_ptx);
    *out = (engine_device){.is_gpu = true,
                           .held = held,
                           .runs_code = !as_ptx,
                           .index = index,
                           .arch = f.arch,
                           .n_workers = o->threads ? o->threads : f.gpu.n_sms,
                           .free_bytes = f.free_bytes};
    snprintf(out->name, sizeof out->name, "%s", f.gpu.name);
    CHECK(cx, out->n_workers <= f.gpu.n_sms, MPK_EARG, "%u workers, but %s has %u SMs, and each holds one",
          out->n_workers, f.gpu.name, f.gpu.n_sms);
    return MPK_OK;
}

/* A GPU that is not here: all its memory is taken to be free. */
static mpk_status use_target(mpk_context *cx, const mpk_engine_options *o, engine_device *out)
{
    const gen_arch *arch = gen_arch_find(o->target);
    char names[128] = "";
    for (const gen_arch *a = gen_arch_table; a->name; a++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", a == gen_arch_table ? "" : ", ", a->name);
    CHECK(cx, arch, MPK_EARG, "there is no target '%s': %s are", o->target, names);
    *out = (engine_device){
        .is_gpu = true, .arch = arch, .n_workers = o->threads ? o->threads : arch->n_sms, .free_bytes = UINT64_MAX};
    snprintf(out->name, sizeof out->name, "%s (%s)", arch->name, arch->gpu);
    return MPK_OK;
}

/* A GPU, and the compiler of its kernels.  That there is none is no error. */
static bool finds_gpu(const mpk_engine_options *o, bool for_running, engine_device *out)
{
    mpk_context unsaid = {0};
    cuda_nvrtc *compiler;
    if (use_gpu(&unsaid, o, 0, for_running, out) != MPK_OK || cuda_nvrtc_open(&unsaid, &compiler) != MPK_OK) {
        engine_leave_device(out);
        return false;
    }
    cuda_nvrtc_close(compiler);
    return true;
}

mpk_status engine_choose_device(mpk_context *cx, const mpk_engine_options *o, bool for_running, engine_device *out)
{
    const char *chosen = getenv("MPK_DEVICE"), *word = o->device ? o->device : "auto";
    uint32_t index;
    *out = (engine_device){0};
    if (strcmp(word, "auto") == 0 && chosen && *chosen && (for_running || !o->target))
        word = chosen;
    bool is_auto = strcmp(word, "auto") == 0, is_cuda = parse_cuda(word, &index);
    CHECK(cx, is_auto || is_cuda || strcmp(word, "cpu") == 0, MPK_EARG,
          "there is no device '%s': auto, cpu, cuda and cuda:1 are", word);
    if (o->target && !for_running) {
        CHECK(cx, is_auto || is_cuda, MPK_EARG, "the target %s is a GPU's, and the device is the CPU", o->target);
        return use_target(cx, o, out);
    }
    if (is_cuda)
        return use_gpu(cx, o, index, for_running, out);
    if (is_auto && finds_gpu(o, for_running, out))
        return MPK_OK;
    CHECK(cx, o->mode == MPK_MODE_KERNEL && !o->no_descriptor_prefetch && !o->no_carriers && !o->keep && !o->profile,
          MPK_EARG,
          "this runs on the CPU, but mode, no_descriptor_prefetch, no_carriers, keep and profile are for a GPU");
    use_cpu(o, out);
    return MPK_OK;
}

mpk_status engine_image_device(mpk_context *cx, const mpk_engine_options *o, const char *arch, uint32_t n_workers,
                               bool for_running, engine_device *out)
{
    mpk_engine_options wanted = *o;
    uint32_t index;
    bool is_gpu = *arch, is_auto = !o->device || strcmp(o->device, "auto") == 0;
    CHECK(cx, is_auto || parse_cuda(o->device, &index) == is_gpu, MPK_EARG,
          "the image was compiled for %s, not for %s: compile the model again", is_gpu ? arch : "the CPU", o->device);
    CHECK(cx, !o->target || strcmp(o->target, arch) == 0, MPK_EARG,
          "the image was compiled for %s, not for %s: compile the model again", is_gpu ? arch : "the CPU", o->target);
    wanted.threads = n_workers;
    wanted.target = for_running || !is_gpu ? NULL : arch;
    if (is_auto)
        wanted.device = is_gpu ? "cuda" : "cpu";
    TRY(engine_choose_device(cx, &wanted, for_running, out));
    CHECK(cx, !is_gpu || strcmp(out->arch->name, arch) == 0, MPK_EARG,
          "the image was compiled for %s, but %s wants %s: compile the model again", arch, out->name, out->arch->name);
    return MPK_OK;
}
