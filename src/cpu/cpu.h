/* cpu.h - the CPU target: the in-kernel runtime (src/rt, paper §5) on threads, one a worker.
 *
 *   cpu.c            areas, bodies, threads, host-driven steps
 *   cpu_target.c     the target's record, through which src/engine calls
 *   cpu_slots.c      tensors in the caller's memory
 *   cpu_weights.c    an address for each weight
 *   cpu_profile.c    where the time of tasks goes
 *   cpu_features.c   instruction sets
 *   body.c, isa_*.c  fast code for operators
 *
 * The fast code is written once, in *_kernels.h, over a vocabulary of vectors of sixteen lanes:
 * vec_avx512.h, vec_avx2.h and, over the latter's names, vec_neon.h with avx2_neon.h.  Each
 * isa_*.c includes one vocabulary and the kernels, and is compiled for its instruction set. */
#ifndef CPU_H
#define CPU_H

#include "host/machine.h"

/* Instruction sets of this processor, CPU_*, limited by the environment's MPK_ISA: none; on x86-64
 * avx2, avxvnni, avx512 (without VNNI), avx512vnni; on arm64 neon, dotprod, i8mm.  None if MPK_ISA
 * is another word. */
uint32_t cpu_features(void);
/* MPK_EARG if MPK_ISA is another word. */
mpk_status cpu_check_isa(mpk_context *cx);
/* The word of MPK_ISA for what runs. */
const char *cpu_isa(void);

/* Zero means the default. */
typedef struct cpu_options {
    /* entries of the request ring; what is more waits on the host.  0: 256 */
    uint32_t waiting_requests;
    uint64_t stall_ns;      /* how long nothing may happen before it is a fault.  0: 10 s */
    uint64_t body_ns;       /* the same while some task runs.  0: 10 minutes */
    uint64_t delay_seed;    /* for tests: lose time at random inside the protocol */
    uint32_t token_entries; /* of the token ring, for tests.  0: 1024 */
    /* as in cuda_options, for programs that are cut as for a GPU; 0: steps are filled as they
     * come */
    uint32_t few_tokens;
    /* of the workers' queues, for tests: shorter than they must be.  0: as long as proved */
    uint32_t queue_entries;
    bool no_fast_bodies; /* reference code only */
    bool no_preload;     /* do not look ahead while waiting (ablation) */
    bool profile;        /* note where the time of tasks goes (machine_read_profile) */
    /* requests lend pages that they do not use, as a GPU's do, instead of growing */
    bool lend_pages;
    bool no_shared_pages;  /* equal beginnings of texts are computed by every request */
    uint32_t draft_tokens; /* of a step with drafts at most; 0: nobody drafts */
    /* with draft_tokens: by which a draft is found in its text; 0: by the draft model alone */
    uint32_t gram_tokens;
    bool drafts_freely;             /* as if drafts cost nothing (for tests of what a GPU does) */
    const machine_watcher *watcher; /* borrowed until machine_stop; NULL: nobody looks */
} cpu_options;

/* Start the machine.  weights[i]: the first byte of image->weights[i]; borrowed, and so is the
 * image, until machine_stop. MPK_ENOMEM, MPK_ELIMIT (threads). */
mpk_status cpu_start(mpk_context *cx, const program_image *image, void *const *weights,
                     const cpu_options *options, machine **out);

/* The first byte of a tensor (a view: its first element) of graph `graph` of a machine of this
 * target, to look at between steps that the host drives, without a copy. */
void *cpu_tensor(machine *m, uint32_t graph, ir_tensor_id tensor);

#endif
