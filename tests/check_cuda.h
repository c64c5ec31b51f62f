/* check_cuda.h - what the parts of check_cuda share: its items, the board, the program of an item.
 *
 * check_cuda.c lists the items and runs them in child processes; check_cuda_operators.c and
 * check_cuda_models.c each make the program of an item, run it and compare.  The board lies in
 * memory that all processes share.
 */
#ifndef TESTS_CHECK_CUDA_H
#define TESTS_CHECK_CUDA_H

#include "cuda/cuda.h"
#include "gen/source.h"
#include "ir/op.h"
#include "pass/pass.h"

/* UNIT_GRAPHS: four of a model, and two of its draft model. */
enum { UNIT_GRAPHS = 6 };
enum { MOST_ITEMS = 256, WORDS = 1600, COMPANY_ROUNDS = 4 };

typedef enum outcome { WAITING, PASSED, FAILED, DIED } outcome;

typedef struct item {
    char name[48];
    const op_def *def;  /* NULL: a model */
    ir_dtype dtype;     /* of a model's weights, KV cache and activations */
    char family[16];    /* of a model */
    bool fast;          /* compiled as for a GPU */
    bool invariant;     /* of a model: so that company changes no bit */
    bool small;         /* of a model: one layer, few workers, few steps */
    bool prompts;       /* of a model: its largest step runs on the kernel for prompts */
    bool drafts;        /* of a model: requests also try drafts */
    bool ahead;         /* of a model: of itself as its draft model */
    bool streams;       /* of a model: steps of 128 and 256 tokens, whose tasks share tiles */
    bool wide;          /* of such a model: with 64 in place of 256, and matrices as of 8B */
    bool blocks;        /* of a model: its matrices stay in blocks of a GGUF file */
    bool own_experts;   /* of a model that is shared: each peer has some experts whole */
    uint32_t n_peers;   /* of a model: GPUs that share it, or parts of the one that is there */
    cuda_mode mode;     /* of a model */
    pass_launch launch; /* of a model */
    outcome outcome;
    double seconds;
    char words[WORDS];
} item;

typedef struct board {
    uint64_t seed;
    uint64_t patience; /* time limits are so many times as long; 1: usual */
    bool has_gpu;
    char no_gpu[ERROR_TEXT_BYTES];
    uint32_t n_gpus;
    gen_arch arch; /* as the GPU that is there wants it */
    char gpu[128];
    volatile uint32_t current; /* item under way */
    volatile uint64_t began_ns;
    uint32_t n;
    item items[MOST_ITEMS];
} board;

extern board *checks;

/* One program and what it needs. */
typedef struct unit {
    arena arena;
    uint32_t n_graphs;
    ir_graph *graphs[UNIT_GRAPHS];
    uint32_t n_tokens[UNIT_GRAPHS];
    tg_program program;
    program_image image;
    uint32_t n_cases, n_without_code, n_views;
    text bodies;
} unit;

/* Do its peers share one GPU?  Otherwise each has a GPU; one peer has all of it. */
bool check_is_on_one_gpu(const item *it);
/* Workers, which are SMs, that the item's program is cut for. */
uint32_t check_workers_of(const item *it);
/* Compile the unit's graphs, with proofs, and lay the program out. */
mpk_status check_compile_unit(mpk_context *cx, const item *it, unit *u, pass_options o);
/* How machines of this run are started: what MPK_KEEP and MPK_PATIENCE ask for. */
cuda_options check_options(void);

/* Make: fill *u; run: on the GPU.  words[WORDS]: what was found, for the item's line.  An error
 * names what differs, MPK_EVERIFY; MPK_EDEVICE and MPK_ESTALLED lose the GPU to this process. */
mpk_status check_make_operator(mpk_context *cx, const item *it, unit *u);
mpk_status check_run_operator(mpk_context *cx, const item *it, unit *u, char *words);
mpk_status check_make_model(mpk_context *cx, const item *it, unit *u);
mpk_status check_run_model(mpk_context *cx, const item *it, unit *u, char *words);

#endif
