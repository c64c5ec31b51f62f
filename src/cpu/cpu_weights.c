/* cpu_weights.c - an address for each weight of a program on the CPU.
 *
 * Input: where each weight lies on the host: in the mapping of a file, in parts, in the caller's
 * memory, or nowhere (random numbers are made).  Output: an address whose bytes the bodies read.
 * Called by cpu_target.c before the machine starts.
 *
 * Weights of files that are small beside the free memory are copied into large pages.  Others
 * stay in the mapping, and only those that are in pieces (experts, a peer's columns), not
 * aligned there, or made up get memory of their own.  Memory that is allocated here is spread over
 * all nodes of the machine; what stays in a mapping lies where the system's page cache put it.
 */
#include <sys/mman.h>

#include <stdlib.h>

#include "base/free_memory.h"
#include "base/large_pages.h"
#include "base/nodes.h"
#include "cpu/cpu_machine.h"
#include "load/load.h"

/* Alignment of each weight in the gathered block, a cache line. */
enum { WEIGHT_ALIGN = 64 };
/* Programs with more bytes of weights are not copied. */
static const uint64_t MOST_GATHERED_BYTES = (uint64_t)2 << 30;

/* Bytes of a weight in the gathered block, with its alignment. */
static size_t gathered_bytes(const tg_weight *w)
{
    return (size_t)((host_weight_bytes(w) + WEIGHT_ALIGN - 1) / WEIGHT_ALIGN * WEIGHT_ALIGN);
}

/* Map one block for all weights in large pages, if they are small beside the free memory.  A
 * file's mapping needs a translation for every 4 KiB; with large pages weights are read 10 to 15
 * % faster.  Without room weights stay in the file: no error. */
static void find_room(const program_image *image, cpu_weights *w)
{
    uint64_t n = LARGE_PAGE;
    for (uint32_t i = 0; i < image->n_weights; i++)
        n += gathered_bytes(&image->weights[i]);
    if (n > MOST_GATHERED_BYTES || n > memory_free_bytes(NULL) / 4)
        return;
    void *p = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return;
    pages_make_large(p, (size_t)n);
    nodes_spread(p, (size_t)n);
    w->gathered = p;
    w->gathered_bytes = (size_t)n;
    w->gathered_used = (size_t)(-(uintptr_t)p & (LARGE_PAGE - 1));
}

/* Give weight i uninitialised memory of its own: in the gathered block if there is one. */
static mpk_status own_bytes(mpk_context *cx, const tg_weight *weight, uint32_t i, cpu_weights *w)
{
    uint64_t n = host_weight_bytes(weight);
    if (w->gathered) {
        w->at[i] = w->gathered + w->gathered_used;
        w->gathered_used += gathered_bytes(weight);
        return MPK_OK;
    }
    void *p = NULL;
    bool large = n >= LARGE_PAGE;
    CHECK(cx,
          n <= SIZE_MAX - LARGE_PAGE &&
              posix_memalign(&p, large ? LARGE_PAGE : WEIGHT_ALIGN, n ? n : 1) == 0,
          MPK_ENOMEM, "out of memory for the %llu bytes of weight %.*s", (unsigned long long)n,
          LOAD_NAME(weight->name));
    if (large) {
        pages_make_large(p, n);
        nodes_spread(p, n);
    }
    w->at[i] = w->own[i] = p;
    return MPK_OK;
}

/* Set the address of weight i: in place if it is usable there, else copied, or made of random
 * numbers of the seed (benchmarks without a file). */
static mpk_status bind(mpk_context *cx, const tg_weight *weight, const machine_weights *from,
                       uint32_t i, cpu_weights *w)
{
    const machine_weight *source = &from->at[i];
    const void *there = host_weight_in_place(weight, source);
    if (there && !w->gathered && (uintptr_t)there % ir_dtype_align(weight->dtype) == 0) {
        w->at[i] = (void *)(uintptr_t)there; /* only read */
        return MPK_OK;
    }
    TRY(own_bytes(cx, weight, i, w));
    if (source->parts || source->at)
        host_copy_weight(weight, source, w->at[i]);
    else
        host_make_up_weight(weight, from->seed, w->at[i]);
    return MPK_OK;
}

/* All weights that this process's peers read, with progress; others have no address.  A file whose
 * weights were all copied is released: its pages would only fill the cache a second time. */
mpk_status cpu_bind_weights(mpk_context *cx, const program_image *image, const target_start *s,
                            cpu_weights *w)
{
    const machine_weights *from = &s->weights;
    uint32_t n = image->n_weights;
    w->n = n;
    w->at = calloc((size_t)n + 1, sizeof *w->at);
    w->own = calloc((size_t)n + 1, sizeof *w->own);
    CHECK(cx, w->at && w->own, MPK_ENOMEM, "out of memory for %u weights", n);
    if (from->files)
        find_room(image, w);
    for (uint32_t i = 0; i < n; i++) {
        if (!cpu_ranks_has(s->ranks, ir_read_share(image->weights[i].name).peer))
            continue;
        bool made_up = !from->at[i].at && !from->at[i].parts;
        TRY(s->progress(cx, s->progress_user, made_up ? "making up weights" : "finding weights",
                        (double)i / n));
        TRY(bind(cx, &image->weights[i], from, i, w));
    }
    for (size_t i = 0; w->gathered && i < from->n_files; i++)
        file_map_release(&from->files[i]);
    return MPK_OK;
}

void cpu_free_weights(cpu_weights *w)
{
    for (uint32_t i = 0; w->own && i < w->n; i++)
        free(w->own[i]);
    free(w->own);
    free(w->at);
    if (w->gathered)
        munmap(w->gathered, w->gathered_bytes);
    *w = (cpu_weights){0};
}
