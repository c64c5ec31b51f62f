/* probe.c - is there a GPU that mpk can use, and what is it?  May several share a program?
 *
 * For the choice of a device (cuda_target.c): asked before anything is compiled, so that a refusal
 * comes at once and says why.  Opens the driver and the GPU, and closes both.  The thread's current
 * context is the same afterwards. */
#include <stdlib.h>

#include "cuda/cuda.h"

/* The caller's thread may use another GPU (PyTorch's): that is current again afterwards. */
static mpk_status look_at_memory(mpk_context *cx, cuda_driver *d, cuda_device_facts *out)
{
    cuda_gpu *g;
    uint64_t total;
    const cuda_context before = cuda_driver_current(d);
    TRY(cuda_gpu_open(cx, d, out->index, &g));
    mpk_status status = cuda_memory_available(cx, g, &out->free_bytes, &total);
    cuda_driver_leave(d, before);
    cuda_gpu_close(g);
    return status;
}

/* The row of the GPU, or the older one that MPK_ARCH asks for, which a later GPU runs compiled for
 * itself.  *as_ptx: there is no row of its own age, so the driver translates. */
mpk_status cuda_choose_arch(mpk_context *cx, const cuda_facts *f, gen_arch *out, bool *as_ptx)
{
    const char *word = getenv("MPK_ARCH");
    const gen_arch *own = gen_arch_for(f->major, f->minor, f->shared_bytes, as_ptx);
    CHECK(cx, own, MPK_EUNSUPPORTED,
          "%s has compute capability %u.%u, and mpk has code for %s and later: run on the CPU "
          "(--device=cpu)",
          f->name, f->major, f->minor, gen_arch_table[0].name);
    *out = *own;
    if (!word || !*word)
        return MPK_OK;
    const gen_arch *older = gen_arch_find(word);
    CHECK(cx, older, MPK_EARG,
          "MPK_ARCH: there is no architecture '%s': `mpk compile --help` lists them", word);
    CHECK(cx, gen_arch_as(own, older, out), MPK_EARG,
          "MPK_ARCH: %s (%s) cannot run code for %s: name one of its own age or older", f->name,
          own->name, word);
    return MPK_OK;
}

/* From cheap questions to dear ones: only the free memory needs a context. */
static mpk_status probe(mpk_context *cx, cuda_driver *d, uint32_t index, cuda_device_facts *out)
{
    cuda_device_facts f = {
        .index = index, .n_devices = cuda_driver_gpus(d), .driver_version = cuda_driver_version(d)};
    CHECK(cx, index < f.n_devices, MPK_EUNSUPPORTED,
          "there is no GPU %u: this process may use %u, the first is cuda:0", index, f.n_devices);
    TRY(cuda_driver_describe(cx, d, index, &f.gpu));
    TRY(cuda_choose_arch(cx, &f.gpu, &f.arch, &f.as_ptx));
    TRY(look_at_memory(cx, d, &f));
    *out = f;
    return MPK_OK;
}

/* MPK_EUNSUPPORTED: there is no GPU that mpk can use, and the words say why.  Nothing stays open;
 * cuda_hold keeps a context that this would otherwise make only to destroy it. */
mpk_status cuda_probe(mpk_context *cx, uint32_t index, cuda_device_facts *out)
{
    cuda_driver *d;
    TRY(cuda_driver_open(cx, &d));
    mpk_status status = probe(cx, d, index, out);
    cuda_driver_close(d);
    return status;
}

/* ---- several ---- */

/* The passes cut work evenly among the peers, for one number of SMs and one size of memory. */
static mpk_status check_alike(mpk_context *cx, const cuda_driver *d, uint32_t a, uint32_t b)
{
    cuda_facts f, g;
    TRY(cuda_driver_describe(cx, d, a, &f));
    TRY(cuda_driver_describe(cx, d, b, &g));
    CHECK(cx,
          f.major == g.major && f.minor == g.minor && f.n_sms == g.n_sms &&
              f.memory_bytes == g.memory_bytes,
          MPK_EUNSUPPORTED,
          "GPU %u (%s, %u SMs, %.1f GiB) and GPU %u (%s, %u SMs, %.1f GiB) differ: a program is "
          "shared by GPUs of one "
          "kind",
          a, f.name, f.n_sms, (double)f.memory_bytes / (1 << 30), b, g.name, g.n_sms,
          (double)g.memory_bytes / (1 << 30));
    return MPK_OK;
}

/* Counters of events are changed by atomic additions from other GPUs; over PCIe these are no more
 * than reads and writes, and counts would be lost. */
static mpk_status check_link(mpk_context *cx, const cuda_driver *d, uint32_t a, uint32_t b)
{
    cuda_link link;
    TRY(cuda_driver_link(cx, d, a, b, &link));
    CHECK(cx, link.reaches, MPK_EUNSUPPORTED,
          "GPU %u cannot reach the memory of GPU %u: mpk doctor shows the links; use fewer GPUs, "
          "or others "
          "(CUDA_VISIBLE_DEVICES)",
          a, b);
    CHECK(cx, link.atomics, MPK_EUNSUPPORTED,
          "GPU %u reaches GPU %u over a link without atomic operations (PCIe): a program is shared "
          "over NVLink",
          a, b);
    return MPK_OK;
}

/* A machine asks again when it starts, since an image may come from elsewhere. */
mpk_status cuda_check_peers(mpk_context *cx, const cuda_driver *d, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++) {
            if (i == k)
                continue;
            TRY(check_alike(cx, d, first + i, first + k));
            TRY(check_link(cx, d, first + i, first + k));
        }
    return MPK_OK;
}

mpk_status cuda_probe_peers(mpk_context *cx, uint32_t first, uint32_t n)
{
    cuda_driver *d;
    TRY(cuda_driver_open(cx, &d));
    mpk_status status = cuda_check_peers(cx, d, first, n);
    cuda_driver_close(d);
    return status;
}

/* ---- kept open ---- */

/* It keeps the primary context alive; machines that start meanwhile retain it, too. */
struct cuda_held {
    cuda_driver *driver;
    cuda_gpu *gpu;
};

/* What was current on the thread is so again at once: letting go may be another thread's, and much
 * later. */
static mpk_status hold(mpk_context *cx, uint32_t index, cuda_held *h)
{
    TRY(cuda_driver_open(cx, &h->driver));
    CHECK(cx, index < cuda_driver_gpus(h->driver), MPK_EUNSUPPORTED,
          "there is no GPU %u: this process may use %u, the first is cuda:0", index,
          cuda_driver_gpus(h->driver));
    const cuda_context before = cuda_driver_current(h->driver);
    TRY(cuda_gpu_open(cx, h->driver, index, &h->gpu));
    cuda_driver_leave(h->driver, before);
    return MPK_OK;
}

/* Open the GPU early and keep it open while programs are built, so that the machine which starts
 * later finds its context made.  The caller lets go of it when that machine runs, or after a
 * failure. */
mpk_status cuda_hold(mpk_context *cx, uint32_t index, cuda_held **out)
{
    cuda_held *h = calloc(1, sizeof *h);
    CHECK(cx, h, MPK_ENOMEM, "out of memory for a GPU");
    mpk_status status = hold(cx, index, h);
    if (status != MPK_OK) {
        cuda_let_go(h);
        return status;
    }
    *out = h;
    return MPK_OK;
}

/* The reverse of cuda_hold: the GPU's context and the driver's library go. */
void cuda_let_go(cuda_held *h)
{
    if (!h)
        return;
    cuda_gpu_close(h->gpu);
    cuda_driver_close(h->driver);
    free(h);
}
