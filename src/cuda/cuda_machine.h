/* cuda_machine.h - what the files of the machine on a GPU share.
 *
 *   cuda.c         start, run, stop
 *   current.c      the same for threads that use GPUs on their own
 *   kernel_code.c  the source of the kernels, their machine code, loaded
 *   memory.c       what all of it takes
 *   weights.c      which copies of a weight are needed
 *   upload.c       host memory -> GPU, packed on the way
 *   carriers.c     results that tell by themselves when they are there
 *   sent.c         results that are stored into the memory of all GPUs that read them
 *   boxes.c        tensor maps for bodies that copy boxes
 *   maps.c         which operators have these, and of what
 *   parts.c        products whose tiles several tasks sum together
 *   squares.c      norms of products whose squares are summed where x is made
 *   tables.c       the runtime's tables and entries in device memory
 *   pinned.c       logits and masks of requests
 *   launch.c       kernels: started, watched, ended
 *   tensors.c      tensors read and written by the host, KV pages in the bodies' order
 *   cuda_ranks.c   a process for each of them
 *   peers.c        several GPUs that share a program: links, each one's memory, whose counters a
 *                  task adds to
 *   baseline.c     the same bodies as a CUDA graph
 *   profile.c      when tasks ran
 *   calls.c        one launch for each run, in the caller's memory
 *
 * Memory of one GPU, each block one allocation of the driver:
 *
 *   weight_block    packed copies, then plain ones                       weights.c
 *   areas[]         KV cache and other state; step inputs and outputs; temporaries
 *   carried_block   results that are sent, carried tensors of all graphs, then what quiet tasks
 *                   write besides
 *   parts_block     sums of products that tasks share, of all workers; then squares of rows
 *   table_block     everything that cuda_layout has an offset for        tables.c
 *   mailbox, ring_block, logits, masks                                   pinned, on the host
 *
 * Nothing is allocated or freed while a kernel runs but pinned memory for logits: a release waits
 * for all kernels of the GPU, and a persistent kernel does not end for that. */
#ifndef CUDA_MACHINE_H
#define CUDA_MACHINE_H

#include <pthread.h>

#include "cuda/cuda.h"
#include "cuda/driver.h"
#include "gen/image_of.h"
#include "gen/source.h"
#include "rt/rt_blocks.h"
#include "rt/rt_pack.h"

enum {
    CUDA_ALIGN = 1024,      /* of whatever bulk copies read */
    CUDA_ELEMENT_BYTES = 8, /* of the largest dtype */
    CUDA_CARRY_ALIGN = 256, /* of a carried tensor */
    /* threads that bring weights, at most: a core copies a tenth of what the bus takes */
    CUDA_LANES = 12,
    /* of weights at a time; each lane has two on the host and two on the GPU */
    CUDA_PIECE_BYTES = 8 << 20,
};
/* In cuda_flow.at: the tensor lies in the area that the compiler's plan gave it. */
#define CUDA_IN_AREA UINT64_MAX

/* ---- weights ---- */

/* Rows of one weight of the image that a packed weight is made of. */
typedef struct cuda_part {
    uint32_t weight;
    uint64_t first_row, n_rows, base_row; /* in the weight; base_row: rows of the parts before */
} cuda_part;

/* One packed copy, shared by all operators that want the same. */
typedef struct cuda_packed {
    uint32_t n_parts;
    cuda_part parts[3];
    uint32_t scale, shift; /* weights, IR_NONE: none */
    gen_order order;
    uint32_t form; /* RT_BLOCKS_*; not RT_BLOCKS_NONE: as the files have them, and no scale */
    ir_dtype dtype;
    uint64_t columns, padded_columns, n_bytes, offset; /* offset in the weights' block */
    uint64_t
        added; /* of rows that are centred: where in the copy their floats begin; 0: none are */
} cuda_packed;

/* A weight of the image as a matrix: rows are all axes but the last.  A weight may be plain and a
 * part of packed copies at the same time (embeddings that are the vocabulary product's weights
 * too). */
typedef struct cuda_resident {
    bool plain;      /* some operator reads it as it is */
    bool scales;     /* it scales or shifts the columns of others: it must be there first */
    uint64_t offset; /* of the plain copy */
    uint64_t n_rows, columns;
} cuda_resident;

/* Which copies lie in the weights' block, and where.  Packed copies come first; every copy begins
 * at a multiple of CUDA_ALIGN, and what lies between is zero, as padded columns must be. */
typedef struct cuda_weight_plan {
    cuda_resident *weights; /* [image.n_weights] */
    VEC(cuda_packed) packed;
    uint32_t **packed_of; /* [n_graphs][ops]: index of its packed copy, RT_NONE: it has none */
    uint64_t n_bytes;     /* of all copies */
    uint64_t largest_row; /* bytes, of any weight on the GPU or on the way to it */
} cuda_weight_plan;

/* ---- carriers ---- */

/* How results reach their readers in one graph. */
typedef struct cuda_flow {
    /* [tensors] of a root: place in the block of what is carried, CUDA_IN_AREA: in its area */
    uint64_t *at;
    /* [tensors]; what has a place in the block, is not carried and not sent is written by quiet
     * tasks */
    bool *is_carried;
    /* [tensors] bit p: its writer stores it into the memory of peer p, at the same place of its
     * block.  What is carried is polled there, by its own peer too if it does; what is not is read
     * by other peers than its own (sent.c).  0: it stays where it is made */
    uint32_t *sends;
    uint32_t
        *readers; /* [tensors] of a root, bit p: an operator of peer p reads it, by views too */
    /* operators of this peer between these poll what they read; RT_NONE: none does */
    ir_op_id gate, end;
    uint32_t event; /* what they read besides is there before this event of the graph */
} cuda_flow;

typedef struct cuda_carriers {
    cuda_flow *flows;     /* [n_graphs] */
    VEC(rt_clear) clears; /* `at`: in the block */
    rt_u32 *first_clear;  /* [n_graphs * n_workers + 1] */
    /* of the block, which all graphs share: n_sent, the same on all peers, n_carried, n_rest */
    uint64_t n_bytes;
    uint64_t n_sent, n_carried, n_rest;
} cuda_carriers;

/* ---- tiles that tasks share ---- */

/* Of one operator. */
typedef struct cuda_parts {
    uint32_t n;              /* tasks of a tile; 0, 1: a task has its tile alone */
    uint32_t n_across;       /* tasks with the same tokens */
    uint32_t n_columns;      /* of a task; where each is alone, of the largest */
    uint32_t first, n_tasks; /* in the graph; they follow each other */
    uint32_t first_meeting;  /* of its tiles */
    /* sums of squares that a task leaves of each row, 0: none; they begin at this offset of those
     * of its graph */
    uint32_t sums;
    uint64_t sums_at;
    /* 1 + the number of the operator that sums the squares of its x; 0: it does so itself */
    uint32_t summed_by;
} cuda_parts;

/* ---- pinned memory that host and kernel share ---- */

/* What host and kernel say to each other besides the rings.  Each word has one writer; words that
 * one side writes and the other polls lie RT_LINE apart, so that no line goes back and forth over
 * the bus for two reasons.  The kernel sees all of it at mailbox_at. */
typedef struct cuda_mailbox {
    rt_ring request_ring, command_ring, token_ring;
    rt_word abort; /* host */
    char apart0[RT_LINE - sizeof(rt_word)];
    rt_word state; /* kernel: RT_RUNNING, RT_STOPPING, RT_FAULTED */
    char apart1[RT_LINE - sizeof(rt_word)];
    rt_word once_wanted; /* host */
    rt_u32 once[3];
    char apart2[RT_LINE - 4 * sizeof(rt_word)];
    rt_word once_done; /* kernel */
    char apart3[RT_LINE - sizeof(rt_word)];
    rt_word bell; /* host threads among themselves */
    char apart4[RT_LINE - sizeof(rt_word)];
    rt_word regime; /* kernel: whose kernel goes on */
    /* kernel: how many have handed over since the host started them; set to 0 while none runs */
    rt_word left;
    char apart5[RT_LINE - 2 * sizeof(rt_word)];
    rt_fault fault;
} cuda_mailbox;

/* Pinned memory that is lent for logits, to one request at a time.  `device` is its address for the
 * kernel, and by it the books name it (host_entry.lent). */
typedef struct cuda_logits {
    void *host;
    cuda_address device;
    uint64_t n_bytes;
    bool lent;
} cuda_logits;

/* Where the runtime's tables lie in their block, in bytes from its beginning; each begins on a
 * cache line of its own.  A table without entries has an offset all the same: nothing reads
 * there. */
typedef struct cuda_layout {
    uint64_t kernel, graphs, tasks, events, ops, ranges, lists;
    uint64_t control, counters, epochs, workers, schedulers, jit, jit_slots, event, event_slots;
    uint64_t serving, slots, running, free_pages, kv_pages, buckets, chains, drafters, grams;
    uint64_t request_ring, command_ring, token_ring, requests, commands, tokens;
    uint64_t entries, first_entry, jit_entry, clears, first_clear, pushes, first_push, regimes;
    uint64_t maps;                             /* rt_map[n_ops][RT_MAPS] */
    uint64_t meetings, rooms;                  /* of tiles that tasks share; of workers */
    uint64_t op_kernels, op_entries, op_first; /* of the baseline; empty without */
    uint64_t times, delays, steps;             /* of a profile; empty without */
    uint64_t n_bytes;
    uint64_t n_tasks, n_ops;
    uint32_t jit_capacity, event_capacity;
} cuda_layout;

/* The kernel of a regime (gen/source.h). */
typedef struct cuda_kernel {
    cuda_module module;
    cuda_function function;
    cuda_function_facts facts;
    uint32_t shared_bytes; /* dynamic, of a block */
} cuda_kernel;

/* The bytes of an area that a GPU holds: [first, first + n_bytes).  Of a program for one GPU that
 * is the whole area, and of temporaries what has to follow them (cuda_bytes_after_temps); addresses
 * are counted from the window's beginning. */
typedef struct cuda_window {
    uint64_t first, n_bytes;
} cuda_window;

/* One GPU's part.  Of a program of several peers there is one for each, and everything but books,
 * rings and whatever else talks to the outside is each one's own; peers[0] is the machine that
 * others see.  Members are filled in the order in which they stand: what is decided (plan), what is
 * compiled, what is allocated.  stop takes a machine that got only part of the way, so every member
 * is zero until it is valid. */
typedef struct cuda_machine {
    machine machine; /* first */
    arena arena;
    uint32_t peer, n_peers;
    cuda_context before; /* current on the thread that starts the machine, until it is started */
    struct cuda_machine *peers[IR_MAX_PEERS]; /* [n_peers], the same in all */
    /* this one has asked for access to peer i and must end it */
    bool reaches[IR_MAX_PEERS];
    /* the processes that drive the GPUs; NULL: this one drives all */
    struct cuda_ranks *ranks;
    /* Another process drives it: of this one are its plan and the addresses of its memory, and gpu
     * and copies are those of this process's own, by which it is reached. */
    bool is_elsewhere;
    cuda_window windows[RT_AREAS];
    char name[160]; /* of the device, for people */
    cuda_options options;
    cuda_driver *driver;
    cuda_gpu *gpu;
    gen_arch arch;
    gen_source source;
    bool as_ptx;              /* the driver translates */
    uint64_t device_ns;       /* what opening the GPU took */
    uint64_t code_ns;         /* writing the kernel, compiling and loading it */
    uint64_t code_wait_ns;    /* of that, while nothing else went on */
    bool code_cached;         /* it came from the cache, or with the image */
    _Atomic bool has_no_code; /* it does not compile: weights need not be brought any more */

    cuda_kernel kernels[GEN_REGIMES]; /* source.n_regimes of them */
    cuda_module loader;
    cuda_function pack, fill;
    cuda_stream work, copies; /* the kernels'; everything else's */

    cuda_weight_plan weights;
    cuda_carriers carriers;
    cuda_parts *parts; /* [operators of the image] */
    uint32_t n_meetings;
    uint64_t squares_bytes; /* of the graph with the most sums of squares */
    /* areas: of their windows */
    cuda_address weight_block, areas[RT_AREAS], carried_block, parts_block, table_block;
    cuda_layout layout;
    cuda_memory memory;
    rt_serving serving; /* as at the start */
    rt_ahead ahead;     /* the same, if has_draft_model */
    bool has_draft_model;
    host_rings rings;
    uint64_t context;
    cuda_mailbox *mailbox;
    void *ring_block; /* pinned: requests, commands, tokens, arena */
    cuda_address mailbox_at, ring_block_at, requests_at, commands_at, tokens_at, arena_at;

    pthread_mutex_t lock; /* guards launching and what follows */
    bool has_lock, has_books;
    bool launched; /* at least once */
    uint64_t n_launches;
    /* of the kernels on the stream since the machine last came to rest: regimes take turns, the
     * first one's number and how many there are */
    uint32_t first_regime, queued;
    /* the kernel ended in a way that it could not tell; the words are in lost_words */
    _Atomic bool lost;
    mpk_status lost_status;
    char lost_words[ERROR_TEXT_BYTES];
    bool knows_hung;
    uint32_t hung;       /* bit p: after a stall a task on peer p did not end */
    uint64_t looked_ns;  /* when the stream was last looked at */
    cuda_logits *logits; /* heap; guarded by the books' lock */
    size_t n_logits, logits_capacity;
    /* pinned, [serving.n_masks][rule_words]: what is copied to those rows of `rules`; the books'
     * lock */
    rt_u32 *masks;

    struct cuda_baseline *baseline; /* NULL: none */
    struct cuda_calls *calls;       /* NULL: not CUDA_CALLS */
} cuda_machine;

static inline cuda_machine *cuda_of(machine *m)
{
    return (cuda_machine *)m;
}

/* The first one that this process drives; where it drives all, the first. */
static inline cuda_machine *cuda_own(const cuda_machine *m)
{
    uint32_t i = 0;
    while (i + 1 < m->n_peers && m->peers[i] && m->peers[i]->is_elsewhere)
        i++;
    return m->peers[i] ? m->peers[i] : m->peers[0];
}

/* Workers of this GPU. */
static inline uint32_t cuda_workers(const cuda_machine *m)
{
    return m->machine.image.block->n_workers / m->machine.image.block->n_peers;
}

/* The ranges of this GPU's workers in a graph. */
static inline const rt_range *cuda_ranges(const cuda_machine *m, const rt_graph *g)
{
    return (const rt_range *)image_table(m->machine.image.block, RT_RANGES) + g->first_range +
           (uint64_t)m->peer * cuda_workers(m);
}

/* ---- launch.c; the lock is held but for cuda_state and cuda_say_fault ---- */

/* How all kernels are: faulted if one is, and running until the last one has said that it ends. */
rt_u32 cuda_state(const cuda_machine *m);
/* Has a kernel died without a word?  Looked at now and then, or now. */
void cuda_look(cuda_machine *m, bool now);
/* Something of GPU `which` (NULL: of none) is lost, and with it the machine: all kernels leave. */
void cuda_note_lost(cuda_machine *m, const cuda_machine *which, mpk_status status,
                    const char *words);
/* The host's word to all kernels, from any thread and without the lock: 1 asks them to stop. */
void cuda_tell_kernels(cuda_machine *m, rt_u32 stop);
/* A launch of the GPUs that this process drives: take back what told their kernels to stop, and
 * wait for that; launch; keep kernels of all regimes on the streams of those that run. */
mpk_status cuda_prepare_kernels(mpk_context *cx, cuda_machine *m);
mpk_status cuda_start_kernels(mpk_context *cx, cuda_machine *m);
mpk_status cuda_refill_kernels(mpk_context *cx, cuda_machine *m);
/* There is work: start the kernels, or start them again if they have gone to rest. */
void cuda_keep_running(cuda_machine *m);
/* Tell the kernels to end and wait for them.  False: one does not end.  for_good: none is started
 * again. */
bool cuda_end_kernels(cuda_machine *m, bool for_good);
/* The status of the fault, with its words; takes the lock. */
mpk_status cuda_say_fault(mpk_context *cx, cuda_machine *m);

/* Let the kernel end, if it runs; nothing is under way.  It starts again with the next work. */
mpk_status cuda_pause(mpk_context *cx, cuda_machine *m);

/* ---- kernel_code.c ---- */

/* Stands at the beginning of what cuda_compile gives; the code of the loader (device/pack.cuh) and
 * those of the regimes' kernels follow. */
typedef struct cuda_code_head {
    char magic[8];
    uint64_t source_hash; /* of the kernels' source */
    uint64_t loader_bytes;
    uint64_t kernel_bytes[GEN_REGIMES]; /* 0: there is no such kernel */
} cuda_code_head;
cuda_code_head cuda_head_of(str source);

/* The code of a machine that starts, zeroed before. */
typedef struct cuda_code_job {
    cuda_machine *m;
    str given_loader, given_kernels[GEN_REGIMES]; /* of options.code; otherwise empty */
    text loader, kernels[GEN_REGIMES];            /* made here */
    mpk_context cx;                               /* of the thread */
    mpk_status status;
    pthread_t thread;
    bool has_thread;
} cuda_code_job;

/* Begin to compile the kernel in a thread and compile the loader, unless both are given.
 * MPK_EUNSUPPORTED: what is given is not of this program. */
mpk_status cuda_begin_code(mpk_context *cx, cuda_machine *m, cuda_code_job *j);
/* Wait for the thread, whatever else has happened.  status: how starting went so far, which is
 * returned unless it was MPK_OK and the kernel does not compile. */
mpk_status cuda_end_code(mpk_context *cx, cuda_code_job *j, mpk_status status);
/* Hand what was compiled to cuda_options.made. */
mpk_status cuda_offer_code(mpk_context *cx, const cuda_machine *m, const cuda_code_job *j);
mpk_status cuda_load_loader(mpk_context *cx, cuda_machine *m, const cuda_code_job *j);
/* Load the kernels and check that they can be launched.  MPK_ELIMIT: one does not fit on an SM. */
mpk_status cuda_load_kernels(mpk_context *cx, cuda_machine *m, const cuda_code_job *j);

/* Put one launch of a regime's kernel on a stream. */
mpk_status cuda_launch_main(mpk_context *cx, cuda_machine *m, uint32_t regime, cuda_stream s);

/* The source of all kernels.  MPK_ELIMIT: a task needs more shared memory than there is. */
mpk_status cuda_make_source(mpk_context *cx, arena *a, const program_image *image,
                            const gen_arch *arch, gen_whole whole, gen_source *source);

/* ---- peers.c ---- */

/* Which bytes of each area this GPU holds. */
void cuda_plan_windows(cuda_machine *m);
/* Whose memory a tensor lies in; what lies everywhere: this GPU's. */
const cuda_machine *cuda_owner(const cuda_machine *m, uint32_t graph, ir_tensor_id tensor);
/* kinds[event]: what triggering it takes (rt_entry.trigger_kind). */
mpk_status cuda_find_triggers(mpk_context *cx, arena *scratch, const cuda_machine *m,
                              uint32_t graph, rt_u32 *kinds);
/* Inputs of a step that GPUs other than the first read: count them, or (to) fill them in; first:
 * [n_graphs + 1]. */
uint32_t cuda_list_pushes(const cuda_machine *m, rt_push *to, rt_u32 *first);
/* The GPUs are there, alike, and linked; then every one of them reaches all others.
 * MPK_EUNSUPPORTED, in one line. */
mpk_status cuda_link_peers(mpk_context *cx, cuda_machine *m);
/* Ends what cuda_link_peers began. */
void cuda_unlink_peers(cuda_machine *m);
/* MPK_EUNSUPPORTED: the tensor lies in memory that another process keeps for itself. */
mpk_status cuda_check_reach(mpk_context *cx, const cuda_machine *m, uint32_t graph,
                            ir_tensor_id tensor);
/* A stall that names no task: the first task, in topological order, whose event is not
 * activated. */
void cuda_find_waiting(const cuda_machine *m, rt_fault *f);

/* ---- cuda_ranks.c; m: the first one's machine but where it says otherwise.  Without ranks nothing
 * happens. ---- */

typedef struct cuda_ranks cuda_ranks;

/* Which machine is this process's own (is_elsewhere of the others). */
mpk_status cuda_ranks_open(mpk_context *cx, cuda_machine *m);
/* All have planned the same, each for a GPU of its own; then the mailboxes are there. */
mpk_status cuda_ranks_agree(mpk_context *cx, cuda_machine *m);
/* m: this process's own.  The memory of its GPU that others reach. */
mpk_status cuda_ranks_allocate(mpk_context *cx, cuda_machine *m);
/* The same of the other GPUs, by addresses of this process. */
mpk_status cuda_ranks_share(mpk_context *cx, cuda_machine *m);
/* The last of starting: all are ready, and each looks after its GPU from now on. */
mpk_status cuda_ranks_begin(mpk_context *cx, cuda_machine *m);
/* Of stopping the first, before kernels end; the second, after; the last, when the memory of this
 * process's GPU is released. */
void cuda_ranks_leave(cuda_machine *m);
void cuda_ranks_close(cuda_machine *m);
void cuda_ranks_release(cuda_machine *m);
/* This process cannot go on: all others learn why, and all kernels stop.  Any thread. */
void cuda_ranks_tell(cuda_machine *m, mpk_status status, const char *words);
/* Has any of them told so?  The lock is held. */
void cuda_ranks_look(cuda_machine *m);
/* m: of this process.  It has a kernel, or has none any more, whatever that has said. */
void cuda_ranks_note_kernel(const cuda_machine *m, bool is_there);
/* m: of another process.  Has its kernel ended, or that process? */
bool cuda_ranks_has_ended(const cuda_machine *m);
/* Rank 0, with the lock: have the others prepare their kernels and start them. */
mpk_status cuda_ranks_launch(mpk_context *cx, cuda_machine *m);

/* ---- memory.c ---- */

/* Fill in what follows from image, options and arch: source, weights, serving, rings, carriers,
 * layout, memory. */
mpk_status cuda_plan_program(mpk_context *cx, cuda_machine *m);
/* MPK_ELIMIT with the numbers: the GPU has too little memory free. */
mpk_status cuda_check_memory(mpk_context *cx, const cuda_machine *m);

/* ---- weights.c ---- */

/* Decide what lies on the GPU.  source and image are filled in. */
mpk_status cuda_plan_weights(mpk_context *cx, cuda_machine *m);
/* Pages that a worker's loader should have in flight (rt_tuning.in_flight): as many as keep its
 * share of the memory's bandwidth busy for the time that a load takes, at least two, so that one is
 * asked for while the other lands, and at most the ring.  Tasks whose weights fill the ring are
 * bound by bytes and take one page more; shorter ones are bound by the way of their inputs through
 * L2, which requests for weights make longer.  The largest packed weight is not counted: that is
 * the LM head, one task of a step. */
uint32_t cuda_weights_in_flight(const cuda_weight_plan *plan, uint32_t n_workers,
                                uint64_t memory_bytes_s, const gen_arch *arch);

/* ---- carriers.c ---- */

/* Decide what is carried.  source and image are filled in. */
mpk_status cuda_plan_carriers(mpk_context *cx, cuda_machine *m);
/* Do the tasks of this peer's operator poll what they read, and wait for no event?  But for the
 * first of each list, which waits for the gate's. */
bool cuda_is_quiet(const cuda_machine *m, uint32_t graph, uint32_t op);
/* What the tasks of an operator have in common: carried, quiet, clears. */
void cuda_carry_pattern(const cuda_machine *m, uint32_t graph, uint32_t op, rt_entry *e);
/* A worker's list, whose entries are filled: its gate, and the one entry that clears. */
void cuda_carry_list(const cuda_machine *m, uint32_t graph, rt_entry *entries, uint32_t n);

/* ---- sent.c ---- */

/* Decide which results that are not carried are sent to other peers: `sends` and `at` of all
 * flows, whose readers are there, and n_sent. */
mpk_status cuda_plan_sent(mpk_context *cx, cuda_machine *m);

/* ---- upload.c ---- */

/* Fill the weights' block: read, copy, pack.  only: one weight alone; IR_NONE: all.  No kernel
 * runs. */
mpk_status cuda_upload_weights(mpk_context *cx, cuda_machine *m, const machine_weights *from,
                               uint32_t only);

/* Say in a job of mpk_pack that the copy stays in blocks, if it does; how many items its threads
 * share out. */
uint64_t cuda_pack_blocks(const cuda_packed *packed, ir_dtype dtype, rt_pack *job);

/* ---- tables.c ---- */

/* Is each operator a kernel of its own: CUDA_GRAPH, CUDA_GRAPH_PDL? */
bool cuda_has_op_kernels(const cuda_machine *m);
/* Sizes, before anything is allocated. */
mpk_status cuda_plan_tables(mpk_context *cx, cuda_machine *m);
/* Fill a host copy of the block (layout.n_bytes, zeroed) with the addresses that the machine
 * has. */
mpk_status cuda_fill_tables(mpk_context *cx, const cuda_machine *m, char *block);
/* Address of a tensor's first element on the GPU; 0: only packed copies of it exist. */
cuda_address cuda_tensor_address(const cuda_machine *m, uint32_t graph, ir_tensor_id tensor);

/* ---- maps.c ---- */

/* Does an operator take tensor maps of its x and packed weights (rt_entry.maps)?  Not of images. */
bool cuda_takes_maps(const cuda_machine *m, uint32_t graph, uint32_t op);
/* The maps of operator `at` of a graph, to the host's copy of the block of tables, and where they
 * will be to its entry; ops: entries of the graph's operators, those before it filled. */
mpk_status cuda_fill_maps(mpk_context *cx, const cuda_machine *m, uint32_t graph, uint32_t at,
                          char *block, rt_entry *ops);
/* What has to follow all temporaries, also those that lie among carried words: rows that maps of
 * them have and they have not. */
uint64_t cuda_bytes_after_temps(const cuda_machine *m);
/* Make an operator's map of x, which lies at this address.  false: as cuda_map_boxes. */
bool cuda_map_x(const cuda_machine *m, uint32_t graph, uint32_t op, cuda_address x, rt_map *out);
/* Where the maps of an operator, by its number in the program, lie on the GPU. */
static inline cuda_address cuda_maps_at(const cuda_machine *m, uint32_t op)
{
    return m->table_block + m->layout.maps + (uint64_t)op * RT_MAPS * sizeof(rt_map);
}

/* ---- boxes.c ---- */

/* The tensor map of a matrix at `at`, by which kernels copy boxes of it; out: 128 bytes.  false:
 * this driver makes none (older than CUDA 12.0), or none of such a matrix: its address and rows are
 * not multiples of 16 bytes. */
bool cuda_map_boxes(const cuda_gpu *g, const gen_boxes *m, cuda_address at, void *out);
/* The same of windows of images, whose first byte is at `at`. */
bool cuda_map_images(const cuda_gpu *g, const gen_image *m, cuda_address at, void *out);

/* ---- parts.c ---- */

/* Decide which operators' tiles several tasks share.  source and image are filled in. */
mpk_status cuda_plan_parts(mpk_context *cx, cuda_machine *m);
/* The entry of a task, whose maps are filled in; block: of the tables. */
void cuda_fill_parts(const cuda_machine *m, const rt_task *t, char *block, rt_entry *e);
/* Bytes of all workers' sums, and of squares. */
static inline uint64_t cuda_parts_bytes(const cuda_machine *m)
{
    const bool any = m->n_meetings || m->squares_bytes;
    return any ? (uint64_t)cuda_workers(m) * RT_PART_BYTES + m->squares_bytes : 0;
}

/* ---- squares.c ---- */

/* Decide whose squares are summed where x is made, for a graph whose parts are planned. */
void cuda_plan_squares(cuda_machine *m, uint32_t graph);
/* The entry of a task; patterns: of all operators of its graph, maps included. */
void cuda_fill_squares(const cuda_machine *m, uint32_t graph, const rt_task *t,
                       const rt_entry *patterns, rt_entry *e);

/* ---- tensors.c ---- */

mpk_status cuda_write_tensor(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                             const void *from);
mpk_status cuda_read_tensor(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                            void *to);
mpk_status cuda_clear_state(mpk_context *cx, machine *m);

/* ---- pinned.c: machine_def's functions, and what they need before the kernel runs ---- */

mpk_status cuda_lend_logits(mpk_context *cx, machine *m, float *to, uint64_t n, rt_u64 *at);
void cuda_return_logits(machine *m, rt_u64 at, float *to, uint64_t n);
void cuda_peek_logits(machine *m, rt_u64 at, float *to, uint64_t first, uint64_t n);
void cuda_put_mask(machine *m, uint32_t row, const uint32_t *bits, uint32_t n_words,
                   uint32_t number);
mpk_status cuda_prepare_logits(mpk_context *cx, cuda_machine *m);
mpk_status cuda_prepare_masks(mpk_context *cx, cuda_machine *m);

/* ---- baseline.c ---- */

/* Record a graph of launches for each graph of the image; starts the thread that serves
 * requests. */
mpk_status cuda_baseline_start(mpk_context *cx, cuda_machine *m);
void cuda_baseline_end(cuda_machine *m);
void cuda_baseline_release(cuda_machine *m);
mpk_status cuda_baseline_run(mpk_context *cx, cuda_machine *m, uint32_t graph, uint32_t n_tokens,
                             uint32_t n_rows);

/* ---- calls.c ---- */

/* Before the tables are made. */
mpk_status cuda_calls_start(mpk_context *cx, cuda_machine *m, const machine_weights *weights);
/* Record a run.  Code and tables are there. */
mpk_status cuda_calls_record(mpk_context *cx, cuda_machine *m);
/* Waits for the last run. */
void cuda_calls_stop(cuda_machine *m);
/* Where the caller keeps a weight of the image. */
cuda_address cuda_call_weight(const cuda_machine *m, uint32_t weight);

/* Functions of machine_def. */
mpk_status cuda_call_check(mpk_context *cx, machine *m);
mpk_status cuda_call_make_slots(mpk_context *cx, machine *m, arena *a, uint32_t graph, uint32_t n,
                                const ir_tensor_id *roots, void **out);
mpk_status cuda_call_launch(mpk_context *cx, machine *m, machine *after, void *slots, void *stream,
                            void *const *data);
mpk_status cuda_call_wait(mpk_context *cx, machine *m);
void cuda_call_touch(machine *m, void *slots, uint32_t slot);
bool cuda_call_keeps_copy(const machine *m, uint32_t weight);
/* What such a machine does not do.  MPK_EUNSUPPORTED. */
mpk_status cuda_call_refuse_write(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                                  const void *from);
mpk_status cuda_call_refuse_read(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                                 void *to);
mpk_status cuda_call_refuse_run(mpk_context *cx, machine *m, uint32_t graph, uint32_t n_tokens,
                                uint32_t n_rows);
mpk_status cuda_call_refuse_clear(mpk_context *cx, machine *m);

/* ---- current.c: for threads that use GPUs on their own, too ---- */

/* The machine's functions, which make its GPUs current on the calling thread; and the same with
 * what was current before current again, which callers outside use. */
extern const machine_def cuda_inner_def, cuda_outer_def;

/* ---- profile.c: machine_def's read_profile ---- */

/* The kernel comes to rest first; of CUDA_CALLS the last run is waited for. */
mpk_status cuda_read_profile(mpk_context *cx, machine *m, uint32_t graph, machine_profile *out);

#endif
