/* memory.c - what a program takes of a GPU's memory: counted before anything is allocated, and
 * without a GPU.
 *
 * Everything that decides a size comes first here: the source of the kernel (which bodies there
 * are), the copies of the weights, what is carried, the runtime's tables.  Because starting a
 * machine and asking for its memory go through the same plan, the numbers of `mpk inspect --target`
 * are those that cuda_start compares with the GPU's.  Called by cuda.c (one GPU) and cuda_target.c
 * (all). */
#include <stdlib.h>

#include "base/thread.h"
#include "cuda/cuda_machine.h"

/* The sum of what will be allocated on this peer's GPU; pinned memory of the host does not count.
 * Staging is an upper bound, of all lanes at once, and is gone when the machine runs; buffers of a
 * model smaller than that are smaller, too. */
static void count_memory(cuda_machine *m)
{
    const cuda_window *area = m->windows;
    const uint64_t staging = (uint64_t)CUDA_LANES * 2 * CUDA_PIECE_BYTES;
    cuda_memory *n = &m->memory;
    *n = (cuda_memory){.weights_bytes = m->weights.n_bytes,
                       .temps_bytes = area[RT_TEMPS].n_bytes,
                       .carried_bytes = m->carriers.n_bytes,
                       .tables_bytes = m->layout.n_bytes + cuda_parts_bytes(m)};
    /* of calls, inputs, states, outputs and most weights are the caller's */
    if (m->options.mode != CUDA_CALLS) {
        n->state_bytes = area[RT_STATE].n_bytes;
        n->step_bytes = area[RT_STEP].n_bytes;
        n->staging_bytes = m->weights.n_bytes < staging ? m->weights.n_bytes : staging;
    }
    n->total_bytes = n->weights_bytes + n->state_bytes + n->step_bytes + n->temps_bytes +
                     n->carried_bytes + n->tables_bytes + n->staging_bytes;
}

/* Plan one peer's part: fills in source, weights, carriers, parts, serving, rings, layout and
 * memory of m, in m's arena.  m->arch, options and image are given; no GPU is looked at.  The order
 * is that of dependence: weights and carriers ask which body an operator has, the tables hold an
 * entry for each task and each clear.  After a failure the arena is the caller's to free, as
 * ever. */
mpk_status cuda_plan_program(mpk_context *cx, cuda_machine *m)
{
    uint64_t begin = clock_ns();
    cuda_plan_windows(m);
    gen_whole whole = m->options.mode == CUDA_CALLS ? GEN_CALL : GEN_KERNEL;
    NOTE(cx, cuda_make_source(cx, &m->arena, &m->machine.image, &m->arch, whole, &m->source),
         "writing the kernel");
    /* the pages of the ring, by which loads in flight are tuned */
    m->arch.n_pages = m->source.rooms[GEN_STREAMS].n_pages;
    m->code_ns = m->code_wait_ns = clock_ns() - begin;
    TRY(cuda_plan_weights(cx, m));
    m->windows[RT_TEMPS].n_bytes += cuda_bytes_after_temps(m);
    if (m->options.mode == CUDA_CALLS)
        CHECK(cx, m->machine.image.n_graphs == 1, MPK_EUNSUPPORTED,
              "calls are of programs with one graph");
    else
        host_find_serving(&m->machine.image, &m->serving);
    TRY(host_fill_apart(cx, &m->machine.image, m->options.few_tokens, &m->serving));
    host_plan_pages(&m->serving, false, !m->options.no_shared_pages);
    /* a token among those of a prompt would make its state leave the registers, and come back */
    m->serving.deals = !m->serving.few_tokens && !m->serving.carries;
    host_plan_drafts(&m->serving, m->options.draft_tokens, m->options.gram_tokens,
                     m->options.drafts_freely);
    m->has_draft_model = host_find_draft_model(&m->machine.image, &m->serving, &m->ahead);
    m->ahead.apart = m->options.drafts_apart;
    if (m->serving.ready)
        host_size_rings(&m->serving, m->options.waiting_requests, m->options.token_entries,
                        &m->rings);
    TRY(cuda_plan_carriers(cx, m));
    if (m->carriers.n_bytes)
        m->carriers.n_bytes += cuda_bytes_after_temps(m);
    TRY(cuda_plan_parts(cx, m));
    TRY(cuda_plan_tables(cx, m));
    count_memory(m);
    return MPK_OK;
}

/* MPK_ELIMIT, with numbers, if the plan does not fit what is free now; m's GPU is current.  Another
 * process may take it between this and the allocation, which then fails with the driver's words. */
mpk_status cuda_check_memory(mpk_context *cx, const cuda_machine *m)
{
    const cuda_memory *n = &m->memory;
    const double gib = 1 << 30;
    uint64_t free_bytes, total;
    TRY(cuda_memory_available(cx, m->gpu, &free_bytes, &total));
    CHECK(cx, n->total_bytes <= free_bytes, MPK_ELIMIT,
          "this takes %.2f GiB of the GPU's memory (weights %.2f, KV cache %.2f, the rest %.2f), "
          "but only %.2f of %.2f "
          "are free: lower the context or the batch, or use another GPU",
          (double)n->total_bytes / gib, (double)n->weights_bytes / gib,
          (double)n->state_bytes / gib,
          (double)(n->total_bytes - n->weights_bytes - n->state_bytes) / gib,
          (double)free_bytes / gib, (double)total / gib);
    return MPK_OK;
}

static void add_memory(cuda_memory *to, const cuda_memory *n)
{
    to->weights_bytes += n->weights_bytes;
    to->state_bytes += n->state_bytes;
    to->step_bytes += n->step_bytes;
    to->temps_bytes += n->temps_bytes;
    to->carried_bytes += n->carried_bytes;
    to->tables_bytes += n->tables_bytes;
    to->staging_bytes += n->staging_bytes;
    to->total_bytes += n->total_bytes;
}

/* What cuda_start would take, of all GPUs together: for `mpk inspect --target`.  One plan for each
 * peer, since each holds its own part; the image is the same.  The plans are thrown away.  *out is
 * written on success alone. */
mpk_status cuda_plan_memory(mpk_context *cx, const program_image *image, const gen_arch *arch,
                            const cuda_options *options, cuda_memory *out)
{
    cuda_machine *m = calloc(1, sizeof *m);
    cuda_memory all = {0};
    mpk_status status = MPK_OK;
    CHECK(cx, m, MPK_ENOMEM, "out of memory for a plan of memory");
    for (uint32_t i = 0; i < image->block->n_peers && status == MPK_OK; i++) {
        *m = (cuda_machine){.machine.image = *image,
                            .options = *options,
                            .arch = *arch,
                            .peer = i,
                            .n_peers = image->block->n_peers};
        status = cuda_plan_program(cx, m);
        add_memory(&all, &m->memory);
        arena_free(&m->arena);
    }
    if (status == MPK_OK)
        *out = all;
    free(m);
    return status;
}
