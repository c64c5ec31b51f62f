/* cpu.h - the CPU target: the in-kernel runtime (src/rt, paper §5) on threads, one for each
 * worker.
 *
 *   cpu.c            areas, bodies, threads, host-driven steps
 *   cpu_target.c     the target's record, through which src/engine calls
 *   cpu_slots.c      tensors in the caller's memory
 *   cpu_weights.c    an address for each weight
 *   cpu_ranks.c      one process for each peer
 *   cpu_profile.c    where the time of tasks goes
 *   cpu_features.c   instruction sets
 *   body.c, isa_*.c  fast code for operators
 *
 * The fast code is written once, in *_kernels.h, in terms of vectors of sixteen lanes:
 * vec_avx512.h, vec_avx2.h and, with the latter's names, vec_neon.h with avx2_neon.h.  Each
 * isa_*.c includes one of these and the kernels, and is compiled for its instruction set.
 */
#ifndef CPU_H
#define CPU_H

#include "host/machine.h"
#include "host/ranks.h"

/* The instruction sets of this processor, CPU_*, limited by the environment variable MPK_ISA:
 * none; on x86-64 avx2, avxvnni, avx512 (without VNNI), avx512vnni, amx; on arm64 neon, dotprod,
 * i8mm.  No set if MPK_ISA is another word. */
uint32_t cpu_features(void);
/* MPK_EARG if MPK_ISA is a word that this architecture does not have. */
mpk_status cpu_check_isa(mpk_context *cx);
/* The word of MPK_ISA that stands for the instruction sets in use; a static string. */
const char *cpu_isa(void);

/* How a machine is started; zero means the default. */
typedef struct cpu_options {
    /* entries of the request ring; further requests wait on the host.  0: 256 */
    uint32_t waiting_requests;
    uint64_t stall_ns;      /* after how long without progress a wait is a fault.  0: 10 s */
    uint64_t body_ns;       /* the same while some task's code runs.  0: 10 minutes */
    uint64_t delay_seed;    /* for tests: delays at random places of the protocol; 0: none */
    uint32_t token_entries; /* entries of the token ring, for tests.  0: 1024 */
    /* as in cuda_options, for programs that are cut as for a GPU; 0: steps are filled in order
     * of arrival */
    uint32_t few_tokens;
    /* entries of the workers' queues, for tests that need them too short.  0: as long as proved */
    uint32_t queue_entries;
    bool no_fast_bodies; /* reference code only */
    bool no_preload;     /* no prefetch of weights while a worker waits (ablation) */
    bool profile;        /* note where the time of tasks goes (machine_read_profile) */
    /* requests lend pages that they do not use, as a GPU's do, instead of growing */
    bool lend_pages;
    bool no_shared_pages;  /* requests with equal beginnings compute them each for itself */
    uint32_t draft_tokens; /* most tokens of a step with drafts; 0: no drafts */
    /* with draft_tokens: length of the n-grams by which a draft is found in the text; 0: drafts
     * come from the draft model alone */
    uint32_t gram_tokens;
    bool drafts_apart;  /* rt_ahead.apart */
    bool drafts_freely; /* draft as if drafts cost nothing (tests of what a GPU does) */
    /* sees each task before it runs; borrowed until machine_stop; NULL: none */
    const machine_watcher *watcher;
    /* the other processes, each of which runs one peer; borrowed until machine_stop; NULL: this one
     * runs all */
    host_ranks *ranks;
} cpu_options;

/* Start a machine, with one thread for each worker of the image.  weights[i]: the first byte of
 * image->weights[i]; borrowed, like the image, until machine_stop.  MPK_ENOMEM, MPK_ELIMIT
 * (threads); on failure nothing is left. */
mpk_status cpu_start(mpk_context *cx, const program_image *image, void *const *weights,
                     const cpu_options *options, machine **out);

/* The first byte of a tensor (for a view: of its first element) of graph `graph`, to read or
 * write between host-driven steps without a copy. */
void *cpu_tensor(machine *m, uint32_t graph, ir_tensor_id tensor);

#endif
