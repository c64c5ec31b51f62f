/* cpu_machine.h - what the files of the CPU target share: the machine's memory.
 *
 * A machine is one allocation (cpu_start); `base` is what the host sees of it, `rt` what the
 * worker loops see.  Private to src/cpu.
 */
#ifndef CPU_MACHINE_H
#define CPU_MACHINE_H

#include "cpu/body.h"
#include "cpu/cpu.h"
#include "host/ranks.h"
#include "host/target.h"

/* An operator bound to memory and to the code that runs it; one for each rt_op, filled at start. */
typedef struct cpu_call {
    op_call call;
    op_body *run;         /* the body's run, or the record's ref */
    const cpu_body *body; /* NULL: the reference code */
    void *subject;        /* the watcher's handle of this operator; NULL: it does not watch it */
} cpu_call;

/* The first bytes of a weight that a task reads; its body prefetches what comes after them. */
typedef struct cpu_constant {
    const char *at; /* NULL: the task reads no weight */
    uint32_t n_bytes;
} cpu_constant;

/* Where the weights of a program lie, and which of these bytes are freed with the machine. */
typedef struct cpu_weights {
    uint32_t n;
    void **at;      /* [n] first bytes */
    void **own;     /* [n] allocated for one weight; NULL: its bytes lie elsewhere */
    char *gathered; /* one mapping with all weights, in large pages; NULL: not used */
    size_t gathered_bytes, gathered_used;
} cpu_weights;

/* Times of a task in the last step that ran it; see cpu_profile.c. */
typedef struct cpu_time {
    uint64_t wait_ns, body_ns;
    uint32_t epoch; /* of that step; 0: the task never ran */
} cpu_time;

/* When a worker's last task ended; padded to a cache line, as each worker writes its own. */
typedef struct cpu_end {
    uint64_t ns;
    char apart[RT_LINE - sizeof(uint64_t)];
} cpu_end;

/* Counted up by a process while it runs (cpu_ranks.c). */
typedef struct cpu_pulse {
    rt_word beats;
    char apart[RT_LINE - sizeof(rt_word)];
} cpu_pulse;

/* After the start only the runtime's words change, and their types say which thread may write
 * them (rt_word.h); everything else is read-only until `stop`, except what a profile notes. */
typedef struct cpu_machine {
    machine base; /* first, so that a machine * is a cpu_machine * */
    rt_machine rt;
    arena arena;         /* owns all that is not freed by name */
    rt_control alone;    /* words between host and workers */
    rt_control *control; /* `alone`, or those that all ranks share */
    host_ranks *ranks;   /* NULL: one process runs all peers */
    char *shared;        /* mapped by all ranks; NULL with one process */
    size_t shared_bytes, shared_used;
    cpu_pulse *pulses; /* shared: of each rank */
    /* the watch's thread: of each rank, the last pulse seen and for how many ticks it has stood */
    rt_u32 pulse_seen[RANKS_MOST];
    rt_word pulse_still[RANKS_MOST];
    rt_serving serving; /* offsets and sizes of slots, pages and step inputs */
    rt_ring request_ring, command_ring, token_ring;
    rt_op *ops;              /* copy of the image's records, with this target's scratch pages */
    cpu_call *calls;         /* one for each rt_op */
    cpu_constant *constants; /* one for each rt_task */
    void ***data;            /* [n_graphs][tensors]: first elements */
    void *blocks[RT_AREAS], *areas[RT_AREAS]; /* allocated; their 64-byte aligned first bytes */
    void *scratch_block;                      /* to be freed */
    char *scratch;                            /* [n_workers][scratch_bytes] */
    uint64_t scratch_bytes;                   /* of one worker */
    uint32_t page_bytes;                      /* of one page of scratch */
    pthread_t *threads;
    uint32_t n_threads; /* started */
    /* worker 0 has no thread of its own: who calls run_graph is worker 0 meanwhile */
    bool caller_works;
    rt_i32 *token_arena;            /* prompts, between host and machine */
    cpu_weights weights;            /* empty: the weights are the caller's */
    const machine_watcher *watcher; /* NULL: none */
    cpu_time *times;                /* one for each rt_task; NULL: no profile */
    cpu_end *ended;                 /* [n_workers] with times */
    char device[48];                /* the name of the device, for machine_facts */
} cpu_machine;

static inline cpu_machine *cpu_of(machine *m)
{
    return (cpu_machine *)m; /* its first member */
}

/* ---- cpu_weights.c ---- */

/* Find or make the bytes of each weight of an image.  *w must be zeroed; cpu_free_weights frees
 * it, whatever the status. */
mpk_status cpu_bind_weights(mpk_context *cx, const program_image *image, const target_start *s,
                            cpu_weights *w);
void cpu_free_weights(cpu_weights *w);

/* ---- cpu_ranks.c: one process for each peer ---- */

/* With ranks: map what all of them share, and take words and workers from there.  Before anything
 * else is made. */
mpk_status cpu_ranks_map(mpk_context *cx, cpu_machine *m);
/* n zeroed bytes at a multiple of 64 that all ranks share; all take the same in the same order. */
void *cpu_ranks_take(cpu_machine *m, uint64_t n);
/* Does this process run the worker?  With one process: always. */
bool cpu_ranks_runs(const cpu_machine *m, uint32_t worker);
/* Does this process run a peer's operators?  IR_EVERYWHERE: of none in particular. */
bool cpu_ranks_has(const host_ranks *r, uint32_t peer);
/* All ranks have come so far, with the same program: from now on their ends are noticed. */
mpk_status cpu_ranks_begin(mpk_context *cx, cpu_machine *m);
/* Note on a stall which other processes do not run: they are its cause.  Returns `status`. */
mpk_status cpu_ranks_note(mpk_context *cx, const cpu_machine *m, mpk_status status);
/* The machine stops: says that this rank leaves.  Threads are joined afterwards. */
void cpu_ranks_leave(cpu_machine *m);
/* After that: unmap what was shared. */
void cpu_ranks_unmap(cpu_machine *m);

/* ---- cpu_profile.c ---- */

/* Allocate the notes of a profile; the functions below do nothing without it. */
mpk_status cpu_profile_make(mpk_context *cx, cpu_machine *m);
/* Called around the code of a task, by the worker that runs it; begin_ns: the value that
 * cpu_profile_begin has returned. */
uint64_t cpu_profile_begin(const cpu_machine *m);
void cpu_profile_end(cpu_machine *m, const rt_worker *w, const rt_task *task, uint64_t begin_ns);
/* machine_def's read_profile. */
mpk_status cpu_read_profile(mpk_context *cx, machine *base, uint32_t graph, machine_profile *out);

/* ---- cpu_slots.c: machine_def's make_slots and move_slots ---- */

mpk_status cpu_make_slots(mpk_context *cx, machine *m, arena *a, uint32_t graph, uint32_t n,
                          const ir_tensor_id *roots, void **out);
void cpu_move_slots(machine *m, void *slots, void *const *data);

#endif
