/* source.h - the CUDA source of a program: one readable, self-contained text with the bodies that
 * its tasks use.
 *
 * Input: tensor programs and a row of the table of architectures.  Output: text that NVRTC and nvcc
 * compile without any other file, and for each operator of each graph the number of its code in
 * that text.
 *
 * Order of the text: what it is; the constants (#define MPK_...); the headers of src/rt and
 * device/, each once, and of device/task only what is used; the instances; the tables that the
 * worker switches on; device/kernel.cuh and the roles.  With MPK_REGIME defined it is the kernel of
 * that regime, with MPK_UNIT defined as a gen_unit that unit of it (device/units.cuh).
 * Equal instances are printed once.  The same programs and architecture give the same bytes, so the
 * text can be a cache's key; programs that differ only in the sizes of their KV caches do so too
 * (gen_cache).
 */
#ifndef GEN_SOURCE_H
#define GEN_SOURCE_H

#include "gen/arch.h"
#include "gen/choices.h"
#include "gen/device_body.h"
#include "image/image.h"

/* A text that the library carries with it: a header of src/rt or a file of device/, under the name
 * by which #include asks for it ("rt/rt.h", "tile/task.cuh", "task/silu.cuh", "kernel.cuh").  Ends
 * with name == NULL (generated). */
typedef struct gen_text {
    const char *name, *text;
    size_t n; /* bytes, without the NUL */
} gen_text;
extern const gen_text gen_text_table[];

/* A program's graphs are of two regimes, each with a kernel of its own: machine code, registers,
 * ring and scratch.  One kernel runs at a time, and hands over to the other when the next step's
 * graph is not its own (device/role/regime.cuh). Instances are numbered through all regimes, so
 * that entries and weights do not depend on them. */
typedef enum gen_regime {
    GEN_STREAMS, /* all others */
    GEN_PROMPTS, /* gen_is_for_prompts: bodies for many tokens, which copy boxes */
    GEN_REGIMES
} gen_regime;

/* Shared memory of a regime's kernel, besides RT_OWN_BYTES. */
typedef struct gen_room {
    uint32_t n_pages; /* MPK_PAGES */
    /* MPK_SCRATCH_BYTES: the most that an instance needs, a multiple of 1024 */
    uint32_t scratch_bytes;
} gen_room;

/* The code of one operator of one graph. */
typedef struct gen_use {
    uint32_t instance;    /* RT_NONE: the operator has no tasks (a view in place) */
    const gen_body *body; /* NULL with RT_NONE */
    gen_pack pack;        /* n_weights 0: nothing is packed */
    bool wide;            /* gen_is_wide */
} gen_use;

/* One function body_N of the source; N is its index. */
typedef struct gen_instance {
    const gen_body *body;
    const gen_routine *routine; /* NULL: a function of its own */
    uint32_t scratch_bytes;
    uint32_t uses;      /* operators of all graphs that share it */
    uint32_t regimes;   /* bit r: some of them are in a graph of regime r */
    uint32_t graph, op; /* the first of them */
    uint32_t before;    /* an instance of another body or routine that prints alike; RT_NONE */
    gen_programs programs;
    str text; /* as it stands in the source */
} gen_instance;

typedef struct gen_source {
    str text; /* NUL-terminated */
    uint32_t n_instances;
    const gen_instance *instances;
    const gen_use *const *uses; /* [n_graphs][ir->ops.n] */
    /* of __constant__ mpk_cache mpk_caches[]; 0: there is no such variable */
    uint32_t n_caches;
    /* what a kernel has to be told before it runs; the text of bodies alone has it */
    const gen_cache *caches;
    uint32_t n_regimes;        /* 1: one kernel runs all graphs */
    const uint32_t *regime_of; /* [n_graphs] gen_regime; 0 where there is one kernel */
    gen_room rooms[GEN_REGIMES];
    /* bit u: gen_unit u has code; the units to compile and link instead of the whole */
    uint32_t units[GEN_REGIMES];
    /* bodies copy boxes by tensor maps, which the host makes: of x and of weights; of x at least */
    bool maps[GEN_REGIMES], x_maps[GEN_REGIMES];
    bool joint[GEN_REGIMES]; /* products of at most 64 tokens may come by boxes, too */
    bool centred;            /* sums of a row's squares have sums of its entries beside them */
} gen_source;

/* One graph for gen_source_make. */
typedef struct gen_graph {
    const ir_graph *ir;
    uint32_t n_tokens;   /* T it was built for */
    const bool *jit;     /* [ops] its tasks are launched just in time; NULL: none is */
    const ir_box *boxes; /* [ops] the largest of its tasks; NULL: not known */
    uint32_t n_tasks;
    const rt_task *tasks; /* [n_tasks]; NULL: not known */
    bool drafts;          /* of a draft model */
} gen_graph;

/* What the source holds. */
typedef enum gen_whole {
    GEN_KERNEL, /* everything */
    GEN_CALL,   /* everything for launches that are one step each: nothing that serves requests */
    /* everything but device/kernel.cuh and what it alone needs: to be tested on the host */
    GEN_BODIES,
    GEN_GENERIC, /* only bodies of rank 0, without pages and loaders: the same */
} gen_whole;

/* Write the source for these graphs on n_workers workers of each peer.  Everything is allocated
 * from a; the tensor programs are borrowed.  MPK_EUNSUPPORTED: no body of this architecture accepts
 * an operator; its name and operands are named. */
mpk_status gen_source_make(mpk_context *cx, arena *a, uint32_t n_graphs, const gen_graph *graphs,
                           uint32_t n_workers, const gen_arch *arch, gen_whole whole,
                           gen_source *out);
/* The kernel for an image: GEN_KERNEL or GEN_CALL. */
mpk_status gen_source_of_image(mpk_context *cx, arena *a, const program_image *image,
                               const gen_arch *arch, gen_whole whole, gen_source *out);

/* What a task has of its operator's first output, of this rank. */
ir_box gen_box_of_task(const rt_task *t, uint32_t rank);

/* The text of this name with every #include "x" replaced by the text x, each once: a source of its
 * own.  MPK_EVERIFY: there is no such text. */
mpk_status gen_source_expand(mpk_context *cx, arena *a, const char *name, str *out);

/* What streamed products of one kernel for these graphs multiply: f16 where they have tensors of it
 * and none of bf16, else bf16.  Bodies know one kind of halves or this one, so a kernel never mixes
 * them up. */
ir_dtype gen_find_halves(uint32_t n_graphs, const gen_graph *graphs);
/* The most peers that any of the graphs keeps busy; at least 1. */
uint32_t gen_find_peers(uint32_t n_graphs, const gen_graph *graphs);
/* Has any graph JIT tasks? */
bool gen_has_jit(uint32_t n_graphs, const gen_graph *graphs);
/* Does the graph belong to the kernel for prompts, if the program has two?  uses: of its
 * operators. */
bool gen_is_for_prompts(const gen_graph *g, const gen_use *uses);
/* Has it a body that reads its operands by tensor maps alone (gen_body.by_maps)? */
bool gen_needs_maps(const gen_graph *g, const gen_use *uses);
/* The unit in which a body stands (device/units.cuh). */
gen_unit gen_unit_of(const gen_body *b);
/* The most pages of a ring that a body of an operator of these graphs may take before it lets one
 * go, on this architecture: a ring with fewer would wait for ever. */
uint32_t gen_find_pages(uint32_t n_graphs, const gen_graph *graphs, const gen_arch *arch);

/* The body that a call gets: of those that accept, whose needs are met and whose rank is at most
 * `highest`, the one of the highest rank; NULL: none. */
const gen_body *gen_body_choose(const gen_call *c, uint32_t highest);
/* MPK_EUNSUPPORTED, for an architecture of this name.  The message says which operands no body
 * takes, or how much room the body that takes them lacks; jit: there is a ring for JIT tasks. */
mpk_status gen_fail_no_body(mpk_context *cx, const gen_call *c, uint32_t highest, const char *arch,
                            bool jit);

/* Where the address of an operand stands in rt_entry.at: inputs first, then outputs. */
static inline uint32_t gen_operand_of_input(const ir_op *op, uint32_t i)
{
    (void)op;
    return i;
}
static inline uint32_t gen_operand_of_output(const ir_op *op, uint32_t i)
{
    /* at least as many as the record names, more if the last one is variadic */
    return op->n_in + i;
}

#endif
