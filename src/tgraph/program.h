/* program.h - what the compiler hands to a target: one linear tGraph for each number of tokens, and where tensors lie.
 *
 * All graphs of a program share four areas of memory.  A tensor that has the same name in several graphs (a weight, a
 * step input, the KV cache, an output) has the same place in each of them; temporaries share one area per graph.
 */
#ifndef TG_PROGRAM_H
#define TG_PROGRAM_H

#include "tgraph/tgraph.h"

typedef enum tg_area {
    TG_WEIGHTS, /* offset is an index into tg_program.weights; each is bound to an address of its own */
    TG_STATE,   /* lives across steps, zeroed once */
    TG_STEP,    /* IR_INPUT tensors and graph outputs: written and read between steps */
    TG_TEMPS,   /* temporaries; reused inside a graph and between graphs */
    TG_AREAS
} tg_area;

typedef struct tg_place {
    tg_area area;
    uint64_t offset; /* bytes from the area's start, a multiple of 64; an index for TG_WEIGHTS */
} tg_place;

typedef struct tg_weight {
    str name;
    ir_dtype dtype;
    uint32_t rank;
    int64_t dims[IR_MAX_RANK];
} tg_weight;

typedef struct tg_compiled {
    uint32_t n_tokens; /* the T it was built for */
    const ir_graph *ir;
    tg_graph *tg;            /* TG_LINEAR, assigned */
    const tg_place *places;  /* [ir->tensors.n]; of a view or in-place result: that of its root */
    uint32_t *pages;         /* [ir->ops.n] scratch pages that a task of this operator needs */
} tg_compiled;

typedef struct tg_program {
    uint32_t n_workers, page_bytes, pages_per_worker;
    uint32_t n_graphs;
    tg_compiled *graphs; /* by rising n_tokens */
    uint32_t n_weights;
    tg_weight *weights;
    uint64_t area_bytes[TG_AREAS]; /* of TG_WEIGHTS: the sum of the weights' bytes */
} tg_program;

#endif
