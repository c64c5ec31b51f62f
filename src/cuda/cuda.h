/* cuda.h - the GPU target: the in-kernel runtime (src/rt, paper §5) as one kernel that generates
 * every token.
 *
 * cuda_start prints and compiles the kernel (or takes it from the cache), packs the weights on the
 * GPU, allocates everything else and starts the kernel; the machine is then used through
 * host/machine.h like any other.  Called by cuda_target.c, the target's record, which is all that
 * other rooms see, and by tests.
 */
#ifndef CUDA_H
#define CUDA_H

#include "cuda/driver.h"
#include "gen/arch.h"
#include "host/machine.h"
#include "host/ranks.h"
#include "rt/rt_lane.h"

/* ---- devices ---- */

typedef struct cuda_device_facts {
    cuda_facts gpu;
    gen_arch arch; /* what code for it is made with (cuda_choose_arch) */
    bool as_ptx;   /* the driver translates it */
    uint32_t index, n_devices;
    uint32_t driver_version;
    uint64_t free_bytes; /* of its memory, now */
} cuda_device_facts;

/* Look at GPU `index`.  MPK_EUNSUPPORTED, in one line that says what is missing and what to do: no
 * driver, no such GPU, or one that mpk has no code for. */
mpk_status cuda_probe(mpk_context *cx, uint32_t index, cuda_device_facts *out);

/* May GPUs first .. first + n - 1 share a program: are they of one kind, and does each reach the
 * memory of all others by a link with atomic operations?  MPK_EUNSUPPORTED, in one line that names
 * two of them.  All of them must be there. */
mpk_status cuda_check_peers(mpk_context *cx, const cuda_driver *d, uint32_t first, uint32_t n);
/* The same before a machine is made; the driver is opened and closed. */
mpk_status cuda_probe_peers(mpk_context *cx, uint32_t first, uint32_t n);

/* The row of the table of architectures by which code for a GPU is made: its own, or the older one
 * that MPK_ARCH names.  MPK_EUNSUPPORTED: mpk has no code for it; MPK_EARG: it cannot run what
 * MPK_ARCH names. */
mpk_status cuda_choose_arch(mpk_context *cx, const cuda_facts *f, gen_arch *out, bool *as_ptx);

/* Keep a GPU open from looking at it until a machine runs on it: opening one again takes a tenth of
 * a second or more. */
typedef struct cuda_held cuda_held;
mpk_status cuda_hold(mpk_context *cx, uint32_t index, cuda_held **out);
/* NULL is allowed.  Machines that run on it go on. */
void cuda_let_go(cuda_held *h);

/* ---- starting ---- */

/* How operators reach the GPU. */
typedef enum cuda_mode {
    CUDA_PERSISTENT, /* one kernel until the machine stops */
    /* the same bodies, one kernel for each operator in a CUDA graph: the baseline */
    CUDA_GRAPH,
    CUDA_GRAPH_PDL, /* the same with programmatic dependent launch */
    /* one kernel for each run, in the caller's memory, on the caller's stream
     * (machine_launch_slots) */
    CUDA_CALLS,
} cuda_mode;

/* of addresses that a caller gives: bodies load this many bytes at a time */
enum { CUDA_OPERAND_ALIGN = 16 };

/* Zero means the default. */
typedef struct cuda_options {
    uint32_t device; /* index as the driver counts */
    cuda_mode mode;
    uint32_t waiting_requests; /* entries of the request ring.  0: 256 */
    uint32_t token_entries;    /* of the token ring.  0: 1024 */
    /* steps are filled so that company changes no bit of a request, for a program whose graphs of
     * at most this many tokens have bodies for few tokens (host_fill_apart).  0: as requests
     * come */
    uint32_t few_tokens;
    uint32_t draft_tokens; /* of a step with drafts at most (rt_draft.h).  0: no drafts */
    /* with draft_tokens: by which a draft is found in the text; 0: drafts come from the draft model
     * alone */
    uint32_t gram_tokens;
    bool drafts_freely; /* a step costs nearly the same with drafts as without */
    bool drafts_apart;  /* rt_ahead.apart */
    /* how long a step may take before it is a fault.  0: 10 s; of several GPUs 8, of calls 60 */
    uint64_t stall_ns;
    /* how long a kernel that was told to stop may take, if not as long as a step.  0: 10 s */
    uint64_t stop_ns;
    /* without work for so long the kernel ends, and starts again with work.  0: 200 ms */
    uint64_t idle_ns;
    uint32_t in_flight;   /* rt_tuning; 0: chosen for the program */
    bool no_shared_pages; /* equal beginnings of texts are computed by every request */
    /* a task's loads begin when the worker has come to it, not before (ablation) */
    bool no_preload;
    bool no_descriptor_prefetch; /* one task's description at a time (ablation) */
    bool no_carriers;            /* every task waits for its event's counter (ablation) */
    bool reference_bodies;       /* generic code only */
    /* all peers of a program on `device`, side by side on its SMs: what several GPUs run can be
     * checked where there is one */
    bool on_one_gpu;
    /* One process for each peer, this one for the GPU of its rank; borrowed until machine_stop.
     * NULL: this process drives all GPUs */
    host_ranks *ranks;
    bool profile; /* note when each task runs, for machine_read_profile */
    /* a folder: leave the kernel's source and code there.  NULL: do not */
    const char *keep;
    /* the kernel is compiled for sanitizers: it says which line of its source code comes from, and
     * warps meet between tasks (MPK_CHECKED).  Code that is given stays */
    bool checked;
    /* the image's kernel, compiled before for this architecture; borrowed until cuda_start returns.
     * NULL: from the cache, or compiled now */
    const void *code;
    size_t code_bytes;
    bool code_may_differ; /* code that is not of this program is no error: it is compiled now */
    /* The kernel has been compiled: the bytes that `code` takes, borrowed until it returns.  NULL:
     * none is wanted */
    void (*made)(mpk_context *cx, void *user, str code);
    void *made_user;
    /* Called while a machine starts, by the thread that starts it, with how far the stage is (0 to
     * 1). Any status but MPK_OK ends the start with that status.  NULL: not called. */
    mpk_status (*progress)(mpk_context *cx, void *user, const char *stage, double done);
    void *progress_user;
} cuda_options;

/* Start the machine.  The image is borrowed until machine_stop; its n_workers is the number of SMs
 * that it was compiled for, at most the device's.  MPK_EUNSUPPORTED: as cuda_probe, or no compiler
 * and nothing in the cache; MPK_ELIMIT: the memory of the GPU is too small, with the numbers;
 * MPK_EDEVICE: the driver's words; MPK_ENOMEM. */
mpk_status cuda_start(mpk_context *cx, const program_image *image, const machine_weights *weights,
                      const cuda_options *options, machine **out);

/* What cuda_start allocates on the GPU; of several GPUs that share a program on all of them. */
typedef struct cuda_memory {
    uint64_t weights_bytes; /* all copies, as bodies read them */
    uint64_t state_bytes;   /* the KV cache */
    uint64_t step_bytes;    /* inputs and outputs of a step */
    uint64_t temps_bytes;
    /* results that tell by themselves when they are there (docs/gpu.md, "Carriers") */
    uint64_t carried_bytes;
    uint64_t tables_bytes;  /* of the runtime */
    uint64_t staging_bytes; /* only while weights are brought */
    uint64_t total_bytes;
} cuda_memory;
/* The same numbers for a GPU that need not be here.  options: those of cuda_start, of which the
 * mode, `profile` and drafts count.  MPK_EUNSUPPORTED, MPK_ELIMIT: cuda_start would refuse this
 * program on any GPU of this kind. */
mpk_status cuda_plan_memory(mpk_context *cx, const program_image *image, const gen_arch *arch,
                            const cuda_options *options, cuda_memory *out);

/* Compile the kernel of an image for a row of the table of architectures; no GPU is needed.  keep:
 * as in cuda_options.  *code is what cuda_options.code takes; the caller frees it with text_free.
 * MPK_EUNSUPPORTED: no compiler. */
mpk_status cuda_compile(mpk_context *cx, const program_image *image, const gen_arch *arch,
                        const char *keep, text *code);

#endif
