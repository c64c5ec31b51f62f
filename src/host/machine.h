/* machine.h - a machine: a program in memory and the runtime that executes it (src/rt, paper §5).
 *
 * What implements it, threads of this processor (src/cpu) or one kernel on a GPU (src/cuda), is
 * its definition's matter.  A target starts it and hands it out; from then on everything happens
 * inside.  The host submits requests and drains tokens, or, while no request is about, writes
 * inputs, runs one graph and reads outputs.  An idle machine costs nothing.
 *
 *   machine.c    calls through the definition
 *   books.c      requests and rings, the same for every target
 *   serving.c    what a program offers
 *   slots.c      tensors in the caller's memory
 *   shares.c     the part of a weight that a peer holds
 *   host_port.c  the operating system under src/rt
 *
 * Threads: submit, append, cancel, drain and nudge may be called by any thread at any time; the
 * rest by one at a time.
 */
#ifndef HOST_MACHINE_H
#define HOST_MACHINE_H

#include "base/file.h"
#include "host/books.h"
#include "ir/op.h"
#include "super/super.h"

typedef struct machine machine;

typedef struct machine_facts {
    const char *device; /* "2 threads", "NVIDIA H100 80GB HBM3": belongs to the machine */
    /* max_context 0: the program takes no requests */
    uint32_t n_workers, n_slots, max_context, max_tokens, n_vocab;
    /* of the KV cache, when last looked at */
    uint32_t n_pages, free_pages;
    uint32_t put_back; /* how often a request was put back, or paused, for want of pages */
    uint64_t n_steps;  /* since the start */
    /* tokens of prompts that might have been in the cache, and that were, since the start */
    uint64_t asked, found;
    /* drafts that were tried, and that were drawn, since the start */
    uint64_t drafted, accepted;
    uint64_t ahead_drafted, ahead_accepted, ahead_steps; /* of the draft model: drafts, its steps */
    uint64_t area_bytes, state_bytes, scratch_bytes;     /* allocated */
    /* What starting took on a target that has a device and code of its own: opening it; making that
     * code, of which code_wait_ns while nothing else went on. */
    uint64_t device_ns, code_ns, code_wait_ns;
    bool code_cached; /* that code had been compiled before */
} machine_facts;

/* One weight of an image as the host has it; of a part (ir_share) the whole weight. */
typedef struct machine_weight {
    /* dense rows, no alignment promised.  NULL: make it up, unless it is in parts.  In programs of
     * MPK_MODE_CALLS: an address of the device's, used where it is */
    const void *at;
    /* of these bytes.  May differ from the program's, which is then bf16: convert (ir/blocks.h) */
    ir_dtype dtype;
    /* [dims[0]]: where the entries of axis 0 lie, if `at` is NULL and they are not neighbours; NULL
     * otherwise */
    const void *const *parts;
} machine_weight;

/* ---- shares.c: of a weight of the image, of which `from` says where the whole one lies ---- */

/* Which elements of the whole weight a part has: runs of n neighbours, of which run i begins with
 * element first + i * step.  A weight that is not a part is one run. */
typedef struct host_share {
    str whole;              /* the name of the whole weight */
    int64_t first, step, n; /* n > 0; step 0: there is one run */
    int64_t entries, entry; /* of axis 0 of the whole weight; elements of each */
} host_share;

/* Elements that are neighbours in the part, in the whole weight, and where that lies. */
typedef struct host_run {
    int64_t first, n; /* of the whole weight */
    const void *at;   /* NULL: nowhere, they are made up */
} host_run;

host_share host_read_share(const tg_weight *w);
/* Those from element `at` of the part on, `most` at most.  In a block format `at` and `most` are
 * multiples of a block. */
host_run host_find_run(const host_share *s, const machine_weight *from, int64_t at, int64_t most);
uint64_t host_weight_bytes(const tg_weight *w);
/* Where its bytes lie one after the other; NULL: in pieces, or nowhere. */
const void *host_weight_in_place(const tg_weight *w, const machine_weight *from);
/* Copy them; what was read of parts is given back. */
void host_copy_weight(const tg_weight *w, const machine_weight *from, char *to);
/* Make them up: the numbers that the whole weight would have there. */
void host_make_up_weight(const tg_weight *w, uint64_t seed, char *to);

/* The weights that a machine is started with. */
typedef struct machine_weights {
    const machine_weight *at; /* [image->n_weights] */
    uint64_t seed;            /* of those that are made up: the values of load_random_fill */
    /* [n_files] what `at` points into, if it does not change while the machine runs: it may be
     * copied to better memory.  NULL: the caller's memory, read where it is */
    const file_map *files;
    size_t n_files;
} machine_weights;

/* Somebody who looks at operators while a machine of the host's processors runs. */
typedef struct machine_watcher {
    /* When the machine starts: what `see` gets for an operator; NULL: not observed. */
    void *(*find)(void *user, const ir_graph *g, const ir_op *op);
    /* By a worker, before the code of each task of the operator: its inputs are there.  Workers
     * call it at the same time. */
    void (*see)(void *subject, const op_call *call, const ir_box *box);
    void *user;
} machine_watcher;

/* Where the time of an operator's tasks went in the last step of a graph that the machine ran:
 * cycles, means over its tasks. */
typedef struct machine_times {
    uint32_t n_tasks; /* that have run; 0: none */
    double wait;      /* from the worker's coming to the task until its event was activated */
    double body;      /* until its results were written */
    double trigger;   /* until its event was counted: scheduling */
    double longest;   /* body of the slowest task */
} machine_times;

/* The code of an operator: its body, and the block programs that the search chose for it
 * (docs/superoptimizer.md).  All is the machine's. */
typedef struct machine_code {
    const char *body;
    uint32_t n_programs; /* 0: the body was written by hand */
    const super_choice *const *programs;
} machine_code;

/* How long tokens took to the host and the news of it back, nanoseconds; of the last bursts. */
typedef struct machine_delays {
    uint32_t n; /* bursts that this is of; 0: none, and the others are 0 */
    uint32_t median_ns, p99_ns, most_ns;
} machine_delays;

/* How long the last steps of a graph took, as the GPU's step task noted them; medians, in
 * nanoseconds.  A CPU notes none. */
typedef struct machine_steps {
    uint32_t n;          /* steps that this is of; 0: none, and the others are 0 */
    uint32_t ns;         /* from its publication to its end */
    uint32_t between_ns; /* from the end of the step before to its publication */
} machine_steps;

typedef struct machine_profile {
    machine_times *times; /* [operators of the graph], of the caller */
    machine_delays to_host;
    uint32_t clock_khz; /* of the cycles: measured over `steps`, or if there are none the highest */
    machine_steps steps;
    double between; /* cycles from a task's results to the worker's next task, of all workers */
} machine_profile;

/* A target's functions.  Each gets the machine that the target made, whose first member is
 * `machine`. */
typedef struct machine_def {
    const char *name; /* "cpu", "cuda" */
    /* Stop at the next task, wait for the end, free everything, the machine itself too; it calls
     * machine_end. */
    void (*stop)(machine *m);
    /* MPK_OK, or MPK_ESTALLED, MPK_EDEVICE with who waited for what if the machine has given up.
     * Any thread. */
    mpk_status (*check)(mpk_context *cx, machine *m);
    /* The dense bytes of an input or state tensor, of an input, state or output; `tensor` of read
     * may be a view. */
    mpk_status (*write_tensor)(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                               const void *from);
    mpk_status (*read_tensor)(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                              void *to);
    /* One run of a graph, waited for; nothing else is about. */
    mpk_status (*run_graph)(mpk_context *cx, machine *m, uint32_t graph, uint32_t n_tokens,
                            uint32_t n_rows);
    mpk_status (*clear_state)(mpk_context *cx, machine *m);
    /* There is something new in the rings: wake the machine, start it if it has gone to rest.  Any
     * thread, with the books' lock held: it must not call back. */
    void (*ring)(machine *m);
    /* Sleep until rings.bell is not `seen` any more, an entry of the token ring is unread, the
     * machine has failed, or timeout_ns are over (UINT64_MAX: no limit); may return early.  Any
     * thread, without the lock. */
    void (*wait)(machine *m, rt_u32 seen, uint64_t timeout_ns);
    /* n_steps, free_pages and the other counts, bytes, device; the rest is filled in already. */
    void (*describe)(machine *m, machine_facts *out);
    machine_code (*code_of)(const machine *m, uint32_t graph, ir_op_id op);
    /* A place for n logits or log probabilities that the machine can write to, of which `to` gets a
     * copy with return_logits.  Called with the lock held.  Both NULL: the machine writes to `to`
     * itself. */
    mpk_status (*lend_logits)(mpk_context *cx, machine *m, float *to, uint64_t n, rt_u64 *at);
    void (*return_logits)(machine *m, rt_u64 at, float *to, uint64_t n);
    /* Copy numbers first .. first + n - 1 of a place that is lent to the same numbers of `to`.
     * NULL as the two above.
     */
    void (*peek_logits)(machine *m, rt_u64 at, float *to, uint64_t first, uint64_t n);
    /* Write a row of masks: its bits (NULL: those that are there stay), then its number, as
     * op/rules.h has it.  No task reads the bits meanwhile.  Called with the lock held.  NULL:
     * requests have no masks. */
    void (*put_mask)(machine *m, uint32_t row, const uint32_t *bits, uint32_t n_words,
                     uint32_t number);
    /* Slots without copies (see machine_make_slots); *out in the arena.  NULL: tensors are written
     * and read.  A target that has them moves them before run_graph, or launches (the last four;
     * see machine_launch_slots). */
    mpk_status (*make_slots)(mpk_context *cx, machine *m, arena *a, uint32_t graph, uint32_t n,
                             const ir_tensor_id *roots, void **out);
    void (*move_slots)(machine *m, void *slots, void *const *data);
    mpk_status (*launch_slots)(mpk_context *cx, machine *m, machine *after, void *slots,
                               void *stream, void *const *data);
    mpk_status (*wait_launch)(mpk_context *cx, machine *m);
    void (*touch_slot)(machine *m, void *slots, uint32_t slot);
    bool (*keeps_copy)(const machine *m, uint32_t weight);
    /* Fill *out for a graph.  NULL: the target takes no profiles.  MPK_EARG: the machine was
     * started without one. */
    mpk_status (*read_profile)(mpk_context *cx, machine *m, uint32_t graph, machine_profile *out);
} machine_def;

/* The part of a target's machine that all share. */
struct machine {
    const machine_def *def;
    program_image image; /* its tables are borrowed until machine_stop */
    host_books books;
};

/* ---- for targets ---- */

/* Begin and end the shared part.  rings as in host_books_open. */
mpk_status machine_begin(mpk_context *cx, machine *m, const machine_def *def,
                         const program_image *image, const rt_serving *s, const host_rings *rings);
void machine_end(machine *m);
/* Make something new for the host known: machine_drain looks. */
void machine_ring_host(machine *m);
/* Copy a tensor that may be a view from its first element at `first`, in the strides of its root,
 * to dense bytes. */
void machine_gather(const ir_graph *g, ir_tensor_id tensor, const void *first, void *to);
/* Write a stall, an overflow or bad input into the context: MPK_ESTALLED or MPK_EDEVICE. */
mpk_status machine_say_fault(mpk_context *cx, const machine *m, const rt_fault *f);

/* ---- the calls ---- */

/* NULL is allowed. */
void machine_stop(machine *m);
mpk_status machine_check(mpk_context *cx, machine *m);

/* Between steps that the host drives.  MPK_EARG: no such graph. */
mpk_status machine_write_tensor(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                                const void *from);
mpk_status machine_read_tensor(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                               void *to);
/* Run one graph once with this many live tokens and rows (UINT32_MAX: all) and wait for the end.
 * MPK_EARG: a request is about, or no such graph. */
mpk_status machine_run_graph(mpk_context *cx, machine *m, uint32_t graph, uint32_t n_tokens,
                             uint32_t n_rows);
/* Zero the state tensors; only between host-driven steps. */
mpk_status machine_clear_state(mpk_context *cx, machine *m);

/* Tensors of a graph that lie in the caller's memory, from slot to slot: roots[n], each with
 * storage of its own (IR_NONE: a slot that nothing uses).  Allocated from a.  MPK_EARG: one is
 * given twice. */
typedef struct machine_slots machine_slots;
mpk_status machine_make_slots(mpk_context *cx, machine *m, arena *a, uint32_t graph, uint32_t n,
                              const ir_tensor_id *roots, machine_slots **out);
/* Run the graph once with slot i at data[i], aligned to its elements; borrowed until the next call.
 * On the CPU nothing is copied; elsewhere inputs and states are written before and states and
 * outputs read after, and a constant is written when its address has changed. */
mpk_status machine_run_slots(mpk_context *cx, machine *m, machine_slots *s, void *const *data);

/* Where the caller's memory is a GPU's: put one run on the caller's stream (the driver's handle)
 * and return.  data: addresses of the GPU's, used until the run has ended.  It begins after the
 * last launch of `after` (NULL: of this machine alone). MPK_EUNSUPPORTED: the machine is of another
 * kind, or the stream is captured; a run that failed before is told here. */
mpk_status machine_launch_slots(mpk_context *cx, machine *m, machine *after, machine_slots *s,
                                void *stream, void *const *data);
/* Wait for the last launch; what it failed with. */
mpk_status machine_wait_launch(mpk_context *cx, machine *m);
/* The constant in slot i has changed where it is: the next launch reads it again. */
mpk_status machine_touch_slot(mpk_context *cx, machine *m, machine_slots *s, uint32_t i);
/* Does a machine that is launched keep a copy of this weight of its image, in an order of its
 * own? */
bool machine_keeps_copy(const machine *m, uint32_t weight);

typedef struct machine_request {
    const int32_t *tokens; /* copied */
    uint32_t n_tokens;
    uint32_t max_tokens; /* to generate; 0: until the context is full */
    float temperature, top_k, top_p, min_p;
    uint64_t seed;
    const int32_t *eos; /* copied; n_eos 0: none ends it */
    uint32_t n_eos;
    int32_t priority;  /* the least comes first, as rt_request says */
    bool host_samples; /* logits are delivered after each feed, and machine_append continues */
    bool all_logits;   /* with host_samples: of every token fed */
    /* with host_samples: f32[1 or n_tokens, V]; borrowed until its rt_token is drained */
    float *logits;
    const int32_t *rules; /* copied: a record as op/rules.h has it; NULL: none */
    uint32_t n_rules;
    /* entries for each token: its own, then the most probable ones; 0: none */
    uint32_t n_logprobs;
    bool all_logprobs; /* also for the tokens of the prompt, from the second on */
    bool is_masked;    /* each token waits for machine_put_mask; with rules */
    /* f32[(n_tokens if all_logprobs) + max_tokens, n_logprobs, 2]: id and logarithm of the share;
     * those of a token are there once its rt_token is drained.  The book holds it too */
    host_shares *logprobs;
    /* copied: only requests with the same bytes share pages; n_salt 0: none */
    const char *salt;
    size_t n_salt;
    /* to try in a step at most, if the machine drafts; those with host_samples never do, and with
     * masks they are told (RT_GUESSED) */
    uint32_t drafts;
    /* it neither takes pages of others nor leaves any; so do those with all_logits or
     * all_logprobs */
    bool alone;
} machine_request;

/* Put a request in the queue; *id names it in what machine_drain gives.  MPK_ELIMIT: it can never
 * run here, with the numbers; MPK_EARG; MPK_EUNSUPPORTED: the program takes no requests. */
mpk_status machine_submit(mpk_context *cx, machine *m, const machine_request *r, uint64_t *id);
/* The next tokens of a host_samples request whose logits have been drained. */
mpk_status machine_append(mpk_context *cx, machine *m, uint64_t id, const int32_t *tokens,
                          uint32_t n, float *logits);
/* Ask a request to end; it will, with RT_CANCELLED unless it was faster.  No such request:
 * nothing. */
void machine_cancel(machine *m, uint64_t id);
/* Which tokens may come as number `index` of a masked request's answer, from 0 on: a bit for each
 * of the vocabulary; NULL: the same as for the token before, of which only the number is written
 * then.  To be given once for each token, in order: the first at any time after
 * submission, another after the token before it has been drained.  No such request: nothing. */
void machine_put_mask(machine *m, uint64_t id, uint32_t index, const uint32_t *bits);
/* The mask of the token after draft number `draft` of a step, as an entry RT_GUESSED has asked for
 * it.  It may come late: then the drafts from there on do not stand.  No such request: nothing. */
void machine_put_guess(machine *m, uint64_t id, uint32_t draft, uint32_t index,
                       const uint32_t *bits);
/* May requests be masked? */
bool machine_takes_masks(const machine *m);
/* Take up to `most` entries; wait at most timeout_ns for the first (UINT64_MAX: for ever, which
 * ends when the machine fails).  *n = 0 after a timeout, or after machine_nudge. */
mpk_status machine_drain(mpk_context *cx, machine *m, rt_token *out, uint32_t most,
                         uint64_t timeout_ns, uint32_t *n);
/* Make one machine_drain that finds nothing return, the one that waits or the next. */
void machine_nudge(machine *m);

void machine_describe(machine *m, machine_facts *out);

/* Put the step task's statistics into *out, word by word, without a lock and while the machine
 * runs: they need not be of the same moment. */
void machine_take_stats(machine_facts *out, const rt_stats *from);
/* Of operator `op` of a graph; its body is "ref" where the operator's own record runs. */
machine_code machine_code_of(const machine *m, uint32_t graph, ir_op_id op);
/* Where the time of the last step of a graph went, and how long tokens took; out->times is given.
 * The machine comes to rest for it.  MPK_EARG: it was not started with a profile. */
mpk_status machine_read_profile(mpk_context *cx, machine *m, uint32_t graph, machine_profile *out);

#endif
