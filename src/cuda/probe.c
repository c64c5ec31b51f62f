/* probe.c - is there a GPU that mpk can use, and what is it?
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

void cuda_let_go(cuda_held *h)
{
    if (!h)
        return;
    cuda_gpu_close(h->gpu);
    cuda_driver_close(h->driver);
    free(h);
}
