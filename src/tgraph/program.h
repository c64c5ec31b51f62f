/* program.h - the compiler's result for a target: one linear tGraph for each number of tokens,
 * and the places of tensors.
 *
 * All graphs of a program share four areas of memory.  A tensor that has the same name in
 * several graphs (a weight, a step input, the KV cache, an output) has the same place in each of
 * them; temporaries share one area per graph.
 *
 * Made by pass_compile, read by image/image.c, which lays it out as one relocatable block;
 * nothing after that sees it.
 *
 *   tg_places.c   find a tensor's place, bind tensors to the areas
 *   tg_memory.c   prove that tensors that share bytes are ordered by events
 *   tg_stats.c    the paper's compiler-stage table
 */
#ifndef TG_PROGRAM_H
#define TG_PROGRAM_H

#include "tgraph/tgraph.h"

/* Where a tensor's bytes are: what decides how long they live, and who provides the memory. */
typedef enum tg_area {
    /* offset is an index into tg_program.weights; each is bound to an address of its own */
    TG_WEIGHTS,
    TG_STATE, /* lives across steps, zeroed once */
    TG_STEP,  /* IR_INPUT tensors and graph outputs: written and read between steps */
    TG_TEMPS, /* temporaries; reused inside a graph and between graphs */
    TG_AREAS
} tg_area;

/* The place of a tensor: the same in every graph that has a tensor of this name. */
typedef struct tg_place {
    tg_area area;
    uint64_t offset; /* bytes from the area's start, a multiple of 64; an index for TG_WEIGHTS */
} tg_place;

/* A constant that the host must supply.  The index in tg_program.weights is its identity for all
 * graphs; dims beyond `rank` are zero. */
typedef struct tg_weight {
    str name;
    ir_dtype dtype;
    uint32_t rank;
    int64_t dims[IR_MAX_RANK];
} tg_weight;

/* The compiler-stage table of the paper (§6.6) for one graph. */
typedef struct tg_stats {
    uint32_t operators;       /* that have tasks */
    uint32_t tasks;           /* without empty ones */
    uint32_t events;          /* of the final graph, start and end included */
    uint64_t pairs;           /* producer-consumer pairs that the events encode */
    uint32_t normalize_tasks; /* empty tasks that normalize added */
    uint32_t jit_tasks;       /* tasks that a scheduler launches */
    /* how much the events' successors take: as lists of tasks, as ranges */
    uint64_t successor_bytes_list, successor_bytes_range;
    /* wall clock, of this graph alone */
    double compile_ms, verify_ms;
} tg_stats;

/* One graph of the program.  All pointers lie in the result arena of pass_compile. */
typedef struct tg_compiled {
    uint32_t n_tokens; /* the T it was built for */
    bool drafts;       /* it is of the draft model */
    const ir_graph *ir;
    tg_graph *tg;           /* TG_LINEAR, assigned */
    const tg_place *places; /* [ir->tensors.n]; of a view or in-place result: that of its root */
    uint32_t *pages;        /* [ir->ops.n] scratch pages that a task of this operator needs */
    tg_stats stats;
} tg_compiled;

/* The whole program.  A step of n tokens runs the first graph whose n_tokens is at least n. */
typedef struct tg_program {
    /* page_bytes: of a scratch page; pages_per_worker: of its scratch */
    uint32_t n_workers, page_bytes, pages_per_worker;
    uint32_t n_peers; /* that share the workers evenly, in order; 0: one */
    uint32_t n_graphs;
    /* by rising n_tokens, of two of as many the first is for streams; then those of a draft model,
     * likewise */
    tg_compiled *graphs;
    uint32_t n_weights;
    tg_weight *weights;
    uint64_t area_bytes[TG_AREAS]; /* of TG_WEIGHTS: the sum of the weights' bytes */
} tg_program;

/* Point data[t] of every tensor t of a compiled graph into the areas: area[TG_STATE],
 * area[TG_STEP], area[TG_TEMPS] are the addresses of their first bytes, weights[i] that of
 * weight i (NULL: data[t] is NULL too).  For a view: its first element.  data[ir->tensors.n] is
 * the caller's. */
void tg_bind(const tg_compiled *c, void *const area[TG_AREAS], void *const *weights, void **data);

/* Which operators and tasks touch each root: for planning memory and for proving the plan. */
typedef struct tg_alive {
    const ir_graph *ir;
    tg_op_tasks by_op;
    tg_reach reach;
    uint32_t *above; /* [ops] all positions of the operator's tasks are below */
    /* [tensors] operators that touch a root: users[first_user] ... */
    uint32_t *first_user, *n_users;
    ir_op_id *users;
} tg_alive;
/* Fill *out from a linear graph; everything lies in `a`. */
mpk_status tg_fill_alive(mpk_context *cx, arena *a, const tg_graph *g, tg_alive *out);
/* Do events order every task that touches this root before every task of the operator?  If so, the
 * operator's result may take the root's bytes. */
bool tg_may_overwrite(const tg_alive *alive, ir_op_id op, ir_tensor_id root);

/* Prove that places are inside their areas and that tensors that share bytes of TG_TEMPS are never
 * alive together: all accesses of the earlier one end before any writer of the later one begins.
 * MPK_EVERIFY naming both tensors, a task and its event. */
mpk_status tg_verify_memory(mpk_context *cx, arena *scratch, const tg_compiled *c,
                            const uint64_t *area_bytes);

/* Fill all that follows from a linear graph; the compiler fills `pairs` and the times. */
void tg_fill_stats(const tg_graph *g, tg_stats *out);
/* The members of a JSON object, without braces: "operators": 229, ... */
void tg_print_stats(const tg_stats *s, text *out);

#endif
