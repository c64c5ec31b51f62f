/* cpu.h - the CPU target: the in-kernel runtime (src/rt, paper §5) on threads, one for each worker.
 *
 * cpu_start binds an image to memory and starts the threads; from then on everything happens inside.  The host submits
 * requests and drains tokens (cpu_submit ... cpu_drain), or, while no request is about, writes inputs into the tensors
 * and runs one graph (cpu_run_graph).  An idle machine sleeps.
 *
 *   cpu.c        areas, bodies, threads, host-driven steps, faults
 *   cpu_host.c   the host's side of the rings
 *   cpu_slots.c  tensors in the caller's memory
 *   cpu_port.c   what rt_port.h asks for           cpu_features.c  instruction sets
 *
 * Threads: submit, append, cancel and drain may be called by any thread at any time; the machine keeps its own lock.
 */
#ifndef CPU_H
#define CPU_H

#include "gen/image.h"

typedef struct cpu_machine cpu_machine;

/* Instruction sets of this processor, CPU_* of body.h, lowered by MPK_CPU_FEATURES (none, avx2, avx512, avx512bf16). */
uint32_t cpu_features(void);

/* Zero means the default. */
typedef struct cpu_options {
    uint32_t waiting_requests; /* entries of the request ring; what is more waits on the host.  0: 256 */
    uint64_t stall_ns;         /* how long nothing may happen before it is a fault.  0: 10 s */
    uint64_t body_ns;          /* the same while some task runs.  0: 10 minutes */
    uint64_t delay_seed;       /* for tests: lose time at random inside the protocol */
    uint32_t token_entries;    /* of the token ring, for tests.  0: 1024 */
    uint32_t queue_entries;    /* of the workers' queues, for tests: shorter than they must be.  0: as long as proved */
    bool no_fast_bodies;       /* reference code only */
    bool no_preload;           /* do not look ahead while waiting (ablation) */
} cpu_options;

/* Start the machine.  weights[i]: the first byte of image->weights[i]; borrowed, and so is the image, until cpu_stop.
 * MPK_ENOMEM, MPK_ELIMIT (threads). */
mpk_status cpu_start(mpk_context *cx, const gen_image *image, void *const *weights, const cpu_options *options,
                     cpu_machine **out);
/* Stop the threads at their next task, wait for them, free everything.  NULL is allowed. */
void cpu_stop(cpu_machine *m);

/* MPK_OK, or MPK_ESTALLED / MPK_EDEVICE with who waited for what if the machine has given up. */
mpk_status cpu_check(mpk_context *cx, cpu_machine *m);

/* The first byte of a tensor (a view: its first element) of graph `graph`, to write inputs and read outputs between
 * steps that the host drives. */
void *cpu_tensor(cpu_machine *m, uint32_t graph, ir_tensor_id tensor);
/* Run one graph once with so many live tokens and rows (UINT32_MAX: all) and wait for the end.  MPK_EARG: a request is
 * about, or no such graph. */
mpk_status cpu_run_graph(mpk_context *cx, cpu_machine *m, uint32_t graph, uint32_t n_tokens, uint32_t n_rows);
/* Tensors of a graph that may lie in the caller's memory, from slot to slot: roots[n], each with storage of its own
 * (IR_NONE: a slot that nothing uses).  Allocated from a.  Only between host-driven steps.  MPK_EARG: one is given
 * twice. */
typedef struct cpu_slots cpu_slots;
mpk_status cpu_make_slots(mpk_context *cx, cpu_machine *m, arena *a, uint32_t graph, uint32_t n,
                          const ir_tensor_id *roots, cpu_slots **out);
/* Let slot i lie at data[i] from the next step on, aligned to its elements; borrowed until moved again. */
void cpu_move_slots(cpu_slots *s, void *const *data);
/* Zero the state tensors; only between host-driven steps. */
void cpu_clear_state(cpu_machine *m);

typedef struct cpu_request {
    const int32_t *tokens; /* copied */
    uint32_t n_tokens;
    uint32_t max_tokens; /* to generate; 0: until the context is full */
    float temperature, top_k, top_p, min_p;
    uint64_t seed;
    const int32_t *eos; /* copied; n_eos 0: none ends it */
    uint32_t n_eos;
    bool host_samples; /* logits are delivered after each feed, and cpu_append continues */
    bool all_logits;   /* with host_samples: of every token fed */
    float *logits;     /* with host_samples: f32[1 or n_tokens, V]; borrowed until its rt_token is drained */
} cpu_request;

/* Put a request in the queue; *id names it in what cpu_drain gives.  MPK_ELIMIT: it can never run here, with the
 * numbers; MPK_EARG; MPK_EUNSUPPORTED: the program takes no requests. */
mpk_status cpu_submit(mpk_context *cx, cpu_machine *m, const cpu_request *r, uint64_t *id);
/* The next tokens of a host_samples request whose logits have been drained. */
mpk_status cpu_append(mpk_context *cx, cpu_machine *m, uint64_t id, const int32_t *tokens, uint32_t n, float *logits);
/* Ask a request to end; it will, with RT_CANCELLED unless it was faster.  No such request: nothing. */
void cpu_cancel(cpu_machine *m, uint64_t id);
/* Take up to `most` entries; wait at most timeout_ns for the first (UINT64_MAX: for ever, which ends when the machine
 * fails).  *n = 0 after a timeout, or after cpu_nudge. */
mpk_status cpu_drain(mpk_context *cx, cpu_machine *m, rt_token *out, uint32_t most, uint64_t timeout_ns, uint32_t *n);
/* Make one cpu_drain that finds nothing return, the one that waits or the next. */
void cpu_nudge(cpu_machine *m);

typedef struct cpu_facts {
    uint32_t n_workers, n_slots, max_context, max_tokens, n_vocab; /* max_context 0: the program takes no requests */
    uint32_t n_pages, free_pages;                                  /* of the KV cache, when last looked at */
    uint64_t n_steps;
    uint64_t area_bytes, state_bytes, scratch_bytes; /* allocated */
} cpu_facts;
void cpu_describe(cpu_machine *m, cpu_facts *out);
/* Name of the code that runs operator `op` of a graph: a fast body's, or "ref". */
const char *cpu_body_of(const cpu_machine *m, uint32_t graph, ir_op_id op);

#endif
