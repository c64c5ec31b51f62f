/* rt_lane.h - the wire format between the host and the GPU's workers: a task with everything its
 * code needs, resolved.
 *
 * A CPU worker looks up task, operator, operands and event in the image's tables.  A GPU worker
 * streams its AOT list as an array of entries instead (paper §5.3, descriptor prefetch), by bulk
 * copies of a few entries each, ahead of use: one entry holds everything that the worker needs, so
 * that no load depends on another.  The host builds the entries once, when the machine starts, from
 * the image (rt.h) and the addresses of tensors (src/cuda).
 *
 *   graph g, worker w, in the order of its list:
 *       entries[first_entry[g * n_workers + w]] ... entries[first_entry[g * n_workers + w + 1] - 1]
 *   JIT task t of a graph:
 *       entries[jit_entry[graph.first_task + t]]
 */
#ifndef RT_LANE_H
#define RT_LANE_H

#include "rt/rt.h"

/* Operands of an entry.  Operand RT_PACKED is the operator's packed weights (gen/device_body.h), so
 * an operator with a GPU body has at most RT_PACKED inputs and outputs.  Passes that join operators
 * respect this limit. */
enum { RT_OPERANDS = 16, RT_PACKED = 15 };

/* Of products of many tokens alone, which have few operands (device/task/row_squares.cuh).  Sums
 * of squares, or pairs of these and sums of entries, lie in rows of RT_SQUARES_ROW bytes, a token
 * each: where those of x's rows begin, how many floats each has, a multiple of 4, and where this
 * task's first float of y's first row lies.  0: there are none. */
enum {
    RT_SQUARES_OF_X = 12,
    RT_SQUARES_N = 13,
    RT_SQUARES_OF_Y = 14,
    RT_MOST_SQUARES = 160, /* floats of a row */
    RT_SQUARES_ROW = RT_MOST_SQUARES * 4,
};

/* Bytes of a block's shared memory that the host leaves for the worker's own state
 * (device/tile/worker.cuh); pages and scratch of bodies share the rest. */
enum { RT_OWN_BYTES = 8192 };

/* What triggering the entry's event involves. */
enum {
    RT_TRIGGER_COUNT = 0, /* an add: those who wait poll the counter */
    /* the worker that completes the event also hands its JIT tasks to a scheduler */
    RT_TRIGGER_LAUNCH = 1,
    /* tasks of other peers trigger it, or wait for it: an add at system scope to its counter on
     * each peer p whose bit RT_TRIGGER_PEER << p is set, where some task waits for it */
    RT_TRIGGER_PEERS = 2,
    RT_TRIGGER_PEER = 256,
};

/* One task, resolved.  256 bytes: two cache lines. */
typedef struct rt_entry {
    rt_u32 body;            /* number of its code in the kernel; RT_NONE: an empty task */
    rt_u32 depends, needed; /* index into counters, and that event's `needed` */
    rt_u32 triggers;        /* index into counters */
    rt_u32 trigger_kind;    /* RT_TRIGGER_* */
    rt_u32 task;            /* number in its graph, for faults */
    rt_u32 op;              /* index into rt_machine.ops */
    rt_u32 live;            /* RT_ALL ...: what axis 0 of the box counts */
    rt_u32 lo[RT_MAX_RANK], hi[RT_MAX_RANK];
    rt_u32 rank;
    /* 1: it triggers when all is done: the last entry of its list, or before one that clears; JIT:
     * 1 */
    rt_u32 is_last;
    /* bit i: input i carries its own readiness: a word of it is RT_EMPTY until it is written */
    rt_u32 carried;
    /* 1: it does not wait for `depends`: all that it reads is carried, or was there before */
    rt_u32 quiet;
    /* 1: when its event is there, the carried words that this worker has written become RT_EMPTY */
    rt_u32 clears;
    /* tasks that sum the columns of its tile together, and which of them this is (rt_meeting): a
     * power of two; 0: it sums alone */
    rt_u32 parts;
    rt_u64 meeting; /* device address of the tile's rt_meeting */
    rt_u32 part;
    /* bit p: the result is stored into the memory of peer p too (rt_peer.away).  A carried one goes
     * to the peers that poll it, this one among them if it does; any other stays here and goes to
     * the other peers that read it.  0: it is stored here alone */
    rt_u32 sends;
    /* device address of the operator's tensor maps, rt_map[RT_MAPS]: of its first input, of its
     * packed weights, and of these in boxes of half as many rows, for a body that copies boxes of
     * them (gen_body.maps); 0: there are none */
    rt_u64 maps;
    /* device addresses of first elements: inputs in the record's order (absent: 0), then from index
     * n_in of the record on the outputs; RT_PACKED as above */
    rt_u64 at[RT_OPERANDS];
} rt_entry;

/* How the copy engine finds boxes of a matrix in memory: the driver's CUtensorMap, at a multiple of
 * 64 bytes. */
typedef struct rt_map {
    rt_u64 words[16];
} rt_map;

enum { RT_MAPS = 3 };

/* Tasks of a product that share a tile (device/task/linear_parts.cuh).  Task `part` of the `parts`
 * sums a part of the columns for all rows of the tile, leaves these sums in its worker's room, and
 * makes y of its own box from the sums of all.  They run on different workers and in one step, so
 * each may wait for the others. */
enum {
    RT_MOST_PARTS = 16,
    RT_PART_ROWS = 256, /* of w, of a tile, at most; and tokens */
    RT_PART_TOKENS = 128,
    RT_SHORT_TOKENS = 64, /* of a task whose warpgroups have the same tokens */
    /* sums, then a sum of squares of each token, then one of its entries */
    RT_PART_SUMS = RT_PART_ROWS * RT_PART_TOKENS * 4,
    RT_PART_BYTES = RT_PART_SUMS + 2 * RT_PART_TOKENS * 4,
    RT_PART_WARPS = RT_PART_TOKENS / 16, /* of a task; each has 16 tokens and meets by itself */
};
typedef struct rt_meeting {
    /* tasks whose sums of a warp's tokens are there, over all steps, modulo 2^32 */
    rt_word arrived[RT_PART_WARPS];
    rt_u32 workers[RT_MOST_PARTS]; /* of this GPU: indices into rt_kernel.rooms */
    rt_u32 reserved[8];
} rt_meeting;

/* The header of a worker's room for sums of shared tiles; RT_PART_BYTES of sums go with it.  The
 * worker may overwrite its sums once read == owed: then every partner of its tasks so far has read
 * them.  Both words count since the start, modulo 2^32. */
typedef struct rt_room {
    rt_word read; /* warps that have read their tokens' sums; counted by tasks of other workers */
    rt_u32 owed; /* those to come of all of the worker's tasks so far; only its worker touches it */
    rt_u32 reserved[30];
} rt_room;

/* The word that stands for "not written yet" in carried tensors (docs/gpu.md, "Carriers").  No
 * result has these bits: as an f32 or as two bf16 it is a NaN that no product, sum or conversion
 * produces.  As an i32 it is -1, which bodies that write carried integers never store. */
#define RT_EMPTY 0xffffffffu

/* The words of a carried tensor that one worker writes in a step, which the same worker sets back
 * to RT_EMPTY before the next: n_rows rows from first_row on, of n_units units each.  `live` says
 * what the rows count; rows that are not alive are not written, and so are not cleared. */
typedef struct rt_clear {
    rt_u64 at; /* of the first row's first unit */
    rt_u32 first_row, n_rows, n_units, stride_bytes;
    rt_u32 unit_bytes; /* 16, or 4 */
    rt_u32 live;       /* RT_TOKENS, RT_ALL */
} rt_clear;

/* How the kernel was started. */
enum {
    RT_SERVE = 0, /* persistent: until control.abort */
    /* one operator of one graph, as a kernel of its own: the CUDA-graph baseline; no events */
    RT_ONE_OP = 1,
    RT_ONE_STEP = 2, /* the step task once, by one thread: beside RT_ONE_OP */
};

/* Tuning parameters.  None changes a result. */
typedef struct rt_tuning {
    rt_u32 in_flight; /* pages that a worker's loader asks for at a time */
    /* 0: a task's loads begin when the worker has come to it, not before (ablation) */
    rt_u32 preload;
    rt_u32 descriptor_ahead; /* entries fetched ahead; 1: none (ablation) */
} rt_tuning;

/* When a worker ran a task, in cycles of its SM (modulo 2^32): it came to the task, found the
 * event activated, had written the results, had triggered. */
typedef struct rt_times {
    rt_u32 begin, ready, done, end;
} rt_times;

/* How long tokens take to reach the host, measured on the GPU: from the moment the step task sees
 * the end of the step that sampled them until the courier sees that the host has taken them.  That
 * is longer than the way there by one way back over the bus.  Nanoseconds of the last RT_DELAYS
 * bursts; burst i is at i % RT_DELAYS. */
enum { RT_DELAYS = 4096 };
typedef struct rt_delays {
    rt_u32 n; /* bursts since the start */
    rt_u32 ns[RT_DELAYS];
} rt_delays;

/* Steps as the step task sees them.  Step i is at i % RT_STEP_NOTES. */
enum { RT_STEP_NOTES = 1024 };
typedef struct rt_step_note {
    rt_u32 graph;
    rt_u32 ns, cycles; /* from its publication until its end was seen; cycles of worker 0's SM */
    rt_u32 between_ns; /* from the end of the step before it to its publication */
} rt_step_note;
typedef struct rt_step_notes {
    rt_u32 n; /* steps since the start */
    rt_step_note of[RT_STEP_NOTES];
} rt_step_notes;

/* An address in an entry that the caller of a call supplies: 64-bit word number `word` of the array
 * of entries becomes addresses[1 + slot] + offset.  With RT_USE_MAP in `slot` the entry's map of x
 * (rt_entry.maps) has that address too: the host has made it anew. */
typedef struct rt_use {
    rt_u32 word, slot;
    rt_u64 offset; /* bytes */
} rt_use;
#define RT_USE_MAP (1u << 31)

/* A call: one step in memory of the host's caller (torch.compile), whose addresses may differ from
 * call to call.  Each worker patches its own entries before the step when the number of the set of
 * addresses has changed. */
typedef struct rt_call {
    rt_word arrived; /* workers that have read what the call before has left, since the start */
    /* number of this set of addresses, then one for each slot; the host uploads it */
    const rt_u64 *addresses;
    const rt_use *uses;
    /* [n_workers + 2] uses[first_use[w]] ... of worker w's list; then those of JIT tasks */
    const rt_u32 *first_use;
    rt_u64 *held; /* [n_workers] number of the set that the worker's entries hold */
} rt_call;

/* A program of several peers runs as a kernel on the GPU of each, with that GPU's own tasks, lists
 * and counters; GPU 0 has the step task.  What a kernel knows of the GPU of a peer are addresses in
 * its memory (rt_peers.h). */
enum { RT_MAX_PEERS = 16 };
typedef struct rt_peer {
    rt_word *counters;
    rt_control *control;
    char *step_area;
    rt_word *stop; /* rt_kernel.stop */
    /* from a carried word here to the same word in its memory, in bytes, modulo 2^64 */
    rt_u64 away;
} rt_peer;

/* An input of a step that other peers read, too: rows of it that `live` counts, one after the
 * other. */
typedef struct rt_push {
    rt_u64 offset; /* in the step area of every peer; a multiple of 8 */
    rt_u32 n_rows, row_bytes;
    rt_u32 live, reserved; /* RT_ALL, RT_TOKENS, RT_ROWS */
} rt_push;

/* The kernel's only argument; lies in device memory. */
typedef struct rt_kernel {
    rt_machine machine; /* all addresses are the device's; its rings are device memory */
    const rt_entry *entries;
    const rt_u32 *first_entry; /* [n_graphs * n_workers + 1] */
    const rt_u32 *jit_entry;   /* one for each task of the image */
    const rt_clear *clears;    /* what each worker clears, by graph and worker */
    const rt_u32 *first_clear; /* [n_graphs * n_workers + 1] */
    rt_tuning tuning;
    rt_u32 mode, graph;  /* graph: of RT_ONE_OP */
    const rt_range *one; /* [n_workers] RT_ONE_OP: entries of that operator */
    /* control.step when the kernel begins: that step is over; RT_NO_STEP at first.  A kernel that
     * ends by itself leaves it right for the next */
    rt_u64 start_step;
    /* the machine has had nothing to do for so long: the kernel ends (control.abort becomes
     * RT_STOPPING); the host starts it again when there is work.  0: never */
    rt_u32 idle_ns;

    rt_times *times;      /* one for each entry: of the last step that ran it; NULL: not recorded */
    rt_delays *delays;    /* NULL: not recorded */
    rt_step_notes *steps; /* NULL: not recorded */
    rt_call call;

    /* A program with several kernels (gen_regime): one runs, and others wait after it on the
     * stream in turn, so that the next one begins when this one ends.  That kernel whose regime is
     * the step word's graph's goes on. */
    const rt_u32 *regimes; /* [n_graphs] whose kernel runs the graph */

    /* of each worker RT_PART_BYTES; NULL: no tile is shared */
    char *parts;
    rt_room *rooms; /* [n_workers] */

    /* The host's ends of the rings, in pinned host memory.  The courier, a warp of its own, moves
     * entries between these and the machine's rings, so that the step task never waits for the
     * bus. */
    rt_ring *host_request_ring, *host_command_ring, *host_token_ring;
    const rt_request *host_requests; /* [request_mask + 1] */
    const rt_command *host_commands; /* [command_mask + 1] */
    rt_token *host_tokens;           /* [token_mask + 1] */
    const rt_word *host_abort;       /* host: 1 asks the machine to stop */
    rt_fault *host_fault;            /* written before host_state becomes RT_FAULTED */
    /* RT_RUNNING, RT_STOPPING: the kernel has ended or is ending, RT_FAULTED */
    rt_word *host_state;
    /* host-driven steps: rt_control.once_* are written by the courier from these */
    const rt_word *host_once_wanted;
    const rt_u32 *host_once; /* [3]: graph, tokens, rows */
    rt_word *host_once_done;
    /* whose kernel goes on: written before host_state, and before host_left counts */
    rt_word *host_regime;
    /* kernels that have handed over to the next on the stream, since the host started them */
    rt_word *host_left;

    /* Where several peers share the program. */
    rt_u32 peer, n_peers;
    rt_word stop; /* another GPU: 1 asks this one's kernel to stop */
    rt_peer peers[RT_MAX_PEERS];
    const rt_push *pushes;
    const rt_u32 *first_push; /* [n_graphs + 1] */
} rt_kernel;

typedef char rt_size_of_entry[sizeof(rt_entry) == 256 ? 1 : -1];
typedef char rt_size_of_meeting[sizeof(rt_meeting) == 128 ? 1 : -1];
typedef char rt_size_of_clear[sizeof(rt_clear) == 32 ? 1 : -1];
typedef char rt_size_of_use[sizeof(rt_use) == 16 ? 1 : -1];

#endif
