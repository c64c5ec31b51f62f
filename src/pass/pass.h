/* pass.h - the compiler (paper §4): options, the state of a compile, one prototype for each
 * pass.
 *
 * compile.c is the page of calls.  A pass is one file named for its verb; `mpk opt --pass=NAME`
 * runs one on the text form.  The engine calls pass_compile; tools and tests call pass_run_text;
 * passes call each other only where a pass restores a promise that another one makes
 * (fuse_events after merge_forks, simplify after roll).
 *
 * A pass returns a status and, on failure, leaves its subject in no defined state: the caller
 * drops the arenas.  No pass keeps anything between two calls, so graphs are compiled in
 * parallel.
 */
#ifndef PASS_H
#define PASS_H

#include "tgraph/program.h"

/* Which operators the tensor program is made of (paper §6.6); docs/compiler.md compares the
 * levels. */
typedef enum pass_fusion {
    /* the fewest that our bodies support: norm and residual inside linear, q/k/v and gate/up as
     * one, rope with the KV write */
    PASS_FUSE_FULL,
    PASS_FUSE_PAPER, /* the paper's own: 8 a layer + 5 */
    PASS_FUSE_NONE,  /* the operators of the model's forward pass, unfused */
} pass_fusion;

/* How tasks reach workers (paper §5.2). */
typedef enum pass_launch {
    /* like PAPER, but AOT where there is nothing to balance; see label_launch.c */
    PASS_LAUNCH_AUTO,
    /* JIT from each operator whose time depends on data up to the next global barrier */
    PASS_LAUNCH_PAPER,
    PASS_LAUNCH_AOT,
    PASS_LAUNCH_JIT,
} pass_launch;

/* The user's own degree of parallelism: cut axis `axis` of output 0 of every operator that matches
 * into `degree` parts.  It is never rounded: a degree that an operator does not allow is an error,
 * and so is one that matches no operator. */
typedef struct pass_degree {
    str match; /* name of an operator kind ("linear") or of one operator */
    uint32_t axis, degree;
} pass_degree;

/* What the user and the target choose for a compile.  The engine fills it: the first part from
 * the user's options and the device, the fields from `splits` to `logits` from what the target's
 * bodies are good at (target_def). */
typedef struct pass_options {
    /* of all peers together, 1 to 65535 */
    uint32_t n_workers;
    /* that share the program, and the workers evenly; 0, 1: one.  Tasks are then launched ahead of
     * time, each on a worker of its peer */
    uint32_t n_peers;
    /* a weight of at least so many bytes is cut even if the parts of the result have to be
     * gathered */
    uint64_t gather_bytes;
    /* a peer has some experts whole, wherever there are as many as peers; else a share of every
     * expert, and whole ones only where these cannot be cut */
    bool own_experts;
    /* the scratch of a worker: pages of a multiple of 64 bytes; a task that needs more is
     * refused */
    uint32_t page_bytes, pages_per_worker;
    pass_fusion fusion;
    pass_launch launch;
    /* one event between operators instead of tiles (ablation, paper Fig. 1c) */
    bool coarse_events;
    /* prove every level and the plan of memory; always on in tests.  It adds about a third to the
     * time of the passes */
    bool verify;
    /* upper bound of tasks of an operator, in multiples of workers; 0: chosen */
    uint32_t tasks_per_worker;
    const pass_degree *degrees; /* the user's cuts, n_degrees of them; borrowed */
    uint32_t n_degrees;
    /* Set by the target for its bodies.  All zero: fused programs give the bits of unfused ones. */
    /* parts that the context of a step is cut into (attention_split), at most 65,536; 0: attention
     * is whole */
    uint32_t splits;
    uint32_t split_tokens; /* in graphs of at most this many tokens */
    /* 0: cut the contexts of a step together; n: cut each token's context alone, in parts of n
     * units if `splits` suffices, so that its bits do not depend on the other tokens */
    uint32_t own_units;
    /* attention with fewer tasks than this for each worker, one for each token and KV head, is cut
     * over contexts too (attention_parts), which changes no bit; 0: never */
    uint32_t context_tasks;
    /* every task that reads a norm of at most this many elements computes it itself; 0: 16384 */
    uint32_t norm_elements;
    /* in graphs of more tokens bodies share the work of OP_SHARES at run time: cuts may be of any
     * size, and sums over experts are operators of their own; 0: nowhere */
    uint32_t share_tokens;
    /* in graphs of more than even_over and at most even_up_to tokens, axes that say so
     * (op_axis.even) are cut into equal parts where that leaves few workers idle; both 0:
     * nowhere */
    uint32_t even_over, even_up_to;
    /* rules may skip the rounding of bf16 and f16 results between what they fuse */
    bool relaxed;
    /* products of few tokens add the terms of x that several peers have made themselves; else they
     * read the sum that add_parts has made */
    bool sum_terms;
    /* cut operators between whole tiles (op_axis.tile), into one task per worker */
    bool whole_tiles;
    /* weights in block formats are multiplied by activations in 8-bit blocks */
    bool narrow;
    /* fuse rows, norm, vocabulary product and the search for the largest logit */
    bool logits;
    /* convolutions of images that stay at their address are products of rows (conv_flat) */
    bool flatten;
    /* in graphs of at least so many tokens weights in block formats are unpacked apart from their
     * products (unpack_weights); 0: nowhere */
    uint32_t unpack_tokens;
    /* this many graphs at the end are a draft model's: they share step inputs and outputs with the
     * others, by name, and have weights and state of their own */
    uint32_t n_draft_graphs;
} pass_options;

/* State shared by all passes of a compile.  Both arenas belong to the caller; a pass puts into
 * `result` only what outlives the compile.  A pass on the tensor program may leave in `scratch`
 * what it likes; one on a tGraph puts what becomes part of the graph into the graph's arena, and
 * its scratch is gone when it has ended.  One pass_state serves one thread. */
typedef struct pass_state {
    mpk_context *cx; /* receives the message of a failure */
    arena *result;   /* kept with the program */
    arena *scratch;  /* freed when the graph is compiled, or after the pass */
    const pass_options *options;
} pass_state;

/* ---- compile.c ---- */

/* Compile one tensor program for each number of tokens (rising; those of a draft model begin anew),
 * all built for the same weights and state.  A number may stand there twice: the second graph is
 * for prompts, its context whole.  Everything in *out lives in `result`.  n_workers 1 to 65535.
 * MPK_EARG: wrong options; MPK_ELIMIT: an operator needs more scratch than a worker has;
 * MPK_EVERIFY: a defect of mpk. */
mpk_status pass_compile(mpk_context *cx, arena *result, const pass_options *options,
                        uint32_t n_graphs, ir_graph *const *graphs, const uint32_t *n_tokens,
                        tg_program *out);

/* ---- the passes ----
 *
 * One row for each: its name and what it does, in the order of compile.c.  A row declares pass_NAME
 * and lists the pass for `mpk opt`, whose goldens test it. */

/* On the tensor program: *g is replaced by a rewritten copy in the result arena. */
#define PASS_ON_PROGRAM(X)                                                                     \
    X(simplify, "drop operators that nothing needs, merge equal ones (tensor program)")        \
    X(roll, "unrolled loops become one recur (tensor program)")                                \
    X(shard, "one program for several peers (tensor program); "                                \
             ":peers=N:gather_bytes=B:own_experts=1")                                          \
    X(recognise, "small operators that together are one that mpk does whole (tensor program)") \
    X(fuse_ops,                                                                                \
      "rewrite to fewer, larger operators (tensor program); for a GPU with the settings "      \
      ":splits=S:split_tokens=T:own_units=U:norm_elements=N:share_tokens=T:"                   \
      "relaxed=1:logits=1:sum_terms=1, for a CPU :context_tasks=N")                            \
    X(fuse_map, "chains of element-wise operators become one map (tensor program)")            \
    X(flatten, "convolutions of images become products of rows (tensor program)")              \
    X(unpack_weights,                                                                          \
      "weights in block formats are unpacked apart from products (tensor program); "           \
      ":unpack_tokens=T")                                                                      \
    X(narrow, "8-bit activations for weights in block formats (tensor program)")

/* On the tGraph, after decompose and depend; arrays are in the scratch arena up to linearize, in
 * the result arena after it.  fuse_events, normalize and linearize raise its level to TG_FUSED,
 * TG_NORMAL and TG_LINEAR. */
#define PASS_ON_GRAPH(X)                                                                   \
    X(drop_implied, "drop pairs that others imply")                                        \
    X(fuse_events, "successor-set and predecessor-set fusion (4.1)")                       \
    X(postpone, "what nothing waits for comes last, where others would fork for its sake") \
    X(merge_forks, "one event for several that share in-tasks, where that is cheaper")     \
    X(coarsen_events, "events between whole operators (ablation)")                         \
    X(label_launch, "JIT or AOT for each operator (5.2)")                                  \
    X(normalize, "one dependent and one triggering event a task (4.1)")                    \
    X(linearize, "an event's tasks become one range (4.1, Algorithm 1)")                   \
    X(assign, "AOT tasks to workers (5.2)")

#define PASS_DECLARE(name, summary) mpk_status pass_##name(pass_state *s, ir_graph **g);
PASS_ON_PROGRAM(PASS_DECLARE)
#undef PASS_DECLARE
#define PASS_DECLARE(name, summary) mpk_status pass_##name(pass_state *s, tg_graph *g);
PASS_ON_GRAPH(PASS_DECLARE)
#undef PASS_DECLARE

/* From the program to the tGraph (§4.1): decompose makes *out at TG_TASKS, in the scratch arena;
 * depend raises it to TG_RAW, and sets *pairs to the number of producer-consumer pairs. */
mpk_status pass_decompose(pass_state *s, const ir_graph *ir, tg_graph **out);
/* Is the operator cut in up to two tiles a worker, an early and a late one, because later tiles
 * take longer (op_axis.rises, with whole_tiles)?  decompose, label_launch and assign must agree
 * on it. */
bool pass_tiles_rise(const pass_options *o, const ir_graph *g, const ir_op *op);
mpk_status pass_depend(pass_state *s, tg_graph *g, uint64_t *pairs);

/* ---- on the program, whose graphs are assigned ---- */

/* Fill places of every graph, weights and area_bytes.  MPK_EARG, MPK_ESHAPE: a name means
 * different things in two graphs. */
mpk_status pass_plan_memory(pass_state *s, tg_program *p);
/* Fill pages of a compiled graph.  MPK_ELIMIT: a task needs more scratch than a worker has. */
mpk_status pass_plan_pages(pass_state *s, const tg_program *p, tg_compiled *c);

/* ---- opt.c: passes on text, for goldens and `mpk opt` ---- */

/* A row of the table of passes. */
typedef struct pass_entry {
    const char *name;
    const char *summary; /* what it does, for --help */
    /* The pass itself, on a program or on a graph.  Both NULL: opt.c handles it. */
    mpk_status (*on_program)(pass_state *s, ir_graph **g);
    mpk_status (*on_graph)(pass_state *s, tg_graph *g);
} pass_entry;

/* The passes by name, in the order of the pipeline; name NULL ends the list. */
extern const pass_entry pass_table[];

/* Run passes ("fuse_ops" or "decompose,depend,fuse_events") on text: a tensor program for the
 * passes of PASS_ON_PROGRAM and decompose, a tGraph for the others.  "verify" proves a graph.  The
 * result is text in the same form (places for plan_memory, numbers of pages for plan_pages).
 * MPK_EARG: no such pass; MPK_EFORMAT from the parser. */
mpk_status pass_run_text(mpk_context *cx, const pass_options *options, str passes, str source,
                         text *out);

#endif
