/* cpu_machine.h - what the files of the CPU target share: the machine's memory and the host's books. */
#ifndef CPU_MACHINE_H
#define CPU_MACHINE_H

#include "base/thread.h"
#include "cpu/body.h"
#include "cpu/cpu.h"

/* An operator bound to memory and to the code that runs it. */
typedef struct cpu_call {
    op_call call;
    op_body *run;
    const cpu_body *body; /* NULL: the reference code */
} cpu_call;

/* The first bytes of a weight that a task reads; what comes after them its body asks for itself. */
typedef struct cpu_constant {
    const char *at; /* NULL: the task reads no weight */
    uint32_t n_bytes;
} cpu_constant;

/* A piece of the token arena. */
typedef struct cpu_region {
    uint64_t at, n;
} cpu_region;

/* A request that has been submitted and whose end has not been drained. */
typedef struct cpu_entry {
    uint64_t id;
    int32_t *tokens; /* on the heap; NULL once they are in the arena */
    cpu_region region;
    bool sent;      /* in the machine's ring, or past it */
    bool cancelled; /* cpu_cancel was called */
    bool ready;     /* host_samples: its logits were drained, it may be continued */
    rt_request request;
} cpu_entry;

struct cpu_machine {
    rt_machine rt;
    gen_image image;
    arena arena;
    rt_control control;
    rt_serving serving;
    rt_ring request_ring, command_ring, token_ring;
    rt_op *ops;
    cpu_call *calls;                          /* one for each rt_op */
    cpu_constant *constants;                  /* one for each rt_task */
    void ***data;                             /* [n_graphs][tensors]: first elements */
    void *blocks[RT_AREAS], *areas[RT_AREAS]; /* allocated; their 64-byte aligned first bytes */
    void *scratch_block;
    char *scratch; /* [n_workers][scratch_bytes] */
    uint64_t scratch_bytes;
    uint32_t page_bytes;
    pthread_t *threads;
    uint32_t n_threads; /* started */

    /* The host's side, under the lock. */
    pthread_mutex_t lock;
    uint64_t next_id;
    VEC(cpu_entry *) entries; /* in order of submission; on the heap */
    size_t entries_unsent;    /* index of the first entry that is not in the ring */
    rt_token *early;          /* ends of requests that never reached the machine */
    size_t n_early, early_capacity;
    rt_i32 *token_arena;
    bool nudged; /* a cpu_drain that finds nothing returns once */
};

/* Ring the machine: there is something new. */
void cpu_ring(cpu_machine *m);
/* The rings and books of the host, sized for the program; MPK_ENOMEM. */
mpk_status cpu_host_prepare(mpk_context *cx, cpu_machine *m, const cpu_options *o);
/* Free what the host has on the heap. */
void cpu_host_free(cpu_machine *m);
/* Are requests under way? */
bool cpu_host_is_busy(cpu_machine *m);

#endif
