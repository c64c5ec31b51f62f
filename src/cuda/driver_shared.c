/* driver_shared.c - memory of a GPU that another process of this host maps: made and handed on as a
 * descriptor of a file, opened by that descriptor.
 *
 * Input: a GPU, and bytes or a descriptor; output: an address for kernels of that GPU.  The driver
 * keeps apart the memory (a handle), a range of addresses, the mapping of one to the other, and who
 * may use it.  Here they are one thing, since each is of no use alone: a handle is let go as soon
 * as it is mapped, and the memory lives as long as any process has it mapped.  So neither the end
 * of the process that has made it nor that of one that has opened it takes it from the other.
 *
 * Called by cuda_ranks.c, with the GPU current.
 */
#include "cuda/driver_entries.h"

/* ---- ranges of addresses ---- */

/* Map memory to addresses that are there and let kernels of g use them. */
static mpk_status map_at(mpk_context *cx, cuda_gpu *g, unsigned long long memory, cuda_shared *s)
{
    const memory_access access = {
        .location = MEMORY_OF_DEVICE, .device = g->device, .flags = MEMORY_READ_WRITE};
    CALL(cx, g->d, cuMemMap, (s->at, s->n_bytes, 0, memory, 0), "map %llu bytes of a GPU's memory",
         U64(s->n_bytes));
    int code = g->d->cuMemSetAccess(s->at, s->n_bytes, &access, 1);
    if (code == CUDA_SUCCESS)
        return MPK_OK;
    g->d->cuMemUnmap(s->at, s->n_bytes);
    return cuda_driver_fail(cx, g->d, code, "cuMemSetAccess",
                            "let GPU %d reach %llu bytes of a GPU's memory", g->device,
                            U64(s->n_bytes));
}

/* Addresses for memory of n_bytes, and the memory there; it keeps its handle, which the caller lets
 * go. */
static mpk_status map(mpk_context *cx, cuda_gpu *g, unsigned long long memory, uint64_t n_bytes,
                      cuda_shared *out)
{
    cuda_shared s = {.n_bytes = n_bytes};
    CALL(cx, g->d, cuMemAddressReserve, (&s.at, n_bytes, 0, 0, 0),
         "find addresses for %llu bytes of a GPU's memory", U64(n_bytes));
    mpk_status status = map_at(cx, g, memory, &s);
    if (status == MPK_OK)
        *out = s;
    else
        g->d->cuMemAddressFree(s.at, n_bytes);
    return status;
}

/* ---- made here ---- */

static memory_form form_of(const cuda_gpu *g)
{
    return (memory_form){.type = MEMORY_PINNED,
                         .handle_types = MEMORY_BY_DESCRIPTOR,
                         .location = MEMORY_OF_DEVICE,
                         .device = g->device};
}

/* From the memory's handle to the mapping and the descriptor. */
static mpk_status make_of(mpk_context *cx, cuda_gpu *g, unsigned long long memory, uint64_t n_bytes,
                          cuda_shared *out, int *descriptor)
{
    int made = -1;
    TRY(map(cx, g, memory, n_bytes, out));
    int code = g->d->cuMemExportToShareableHandle(&made, memory, MEMORY_BY_DESCRIPTOR, 0);
    if (code != CUDA_SUCCESS) {
        cuda_shared_release(g, out);
        return cuda_driver_fail(cx, g->d, code, "cuMemExportToShareableHandle",
                                "hand on %llu bytes of the GPU's memory", U64(n_bytes));
    }
    *descriptor = made;
    return MPK_OK;
}

mpk_status cuda_shared_make(mpk_context *cx, cuda_gpu *g, const char *what, uint64_t n,
                            cuda_shared *out, int *descriptor)
{
    const memory_form form = form_of(g);
    unsigned long long memory = 0;
    size_t page = 0;
    CALL(cx, g->d, cuMemGetAllocationGranularity, (&page, &form, MEMORY_RECOMMENDED),
         "ask for the pages of the GPU's memory");
    const uint64_t n_bytes = (n + page - 1) / page * page;
    CALL(cx, g->d, cuMemCreate, (&memory, n_bytes, &form, 0), "get %.3f GiB of %s's memory for %s",
         (double)n_bytes / (1 << 30), g->facts.name, what);
    mpk_status status = make_of(cx, g, memory, n_bytes, out, descriptor);
    g->d->cuMemRelease(memory);
    return status;
}

/* ---- made by another process ---- */

mpk_status cuda_shared_open(mpk_context *cx, cuda_gpu *g, int descriptor, uint64_t n,
                            cuda_shared *out)
{
    unsigned long long memory = 0;
    /* a descriptor is given in the place of a pointer */
    CALL(cx, g->d, cuMemImportFromShareableHandle,
         (&memory, (void *)(intptr_t)descriptor, MEMORY_BY_DESCRIPTOR),
         "open %llu bytes of another process's GPU", U64(n));
    mpk_status status = map(cx, g, memory, n, out);
    g->d->cuMemRelease(memory);
    return status;
}

void cuda_shared_release(cuda_gpu *g, cuda_shared *s)
{
    if (s->at) {
        g->d->cuMemUnmap(s->at, s->n_bytes);
        g->d->cuMemAddressFree(s->at, s->n_bytes);
    }
    *s = (cuda_shared){0};
}
