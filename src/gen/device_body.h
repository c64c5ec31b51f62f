/* device_body.h - device code for operators: which there is, what it accepts, and how one use of it
 * is written down.
 *
 * A record here is to the GPU what a cpu_body is to the CPU: it names code in device/task/NAME.cuh
 * and says when that code may run an operator.  gen_source asks every record, takes the accepting
 * one of the highest rank whose needs the architecture meets, and prints one *instance* for each
 * distinct use: two operators that differ in addresses alone share an instance.  A record is found
 * by listing: any file src/gen/body_*.c may define `const gen_body gen_body_NAME`.
 *
 * Device side.  Instance N is a function, called by all MPK_THREADS threads of the worker with the
 * task in shared memory:
 *
 *     __device__ void body_N(const mpk_task &t);      compute the task's box
 *     __device__ void load_N(mpk_load &l);            optional: the pre-load phase, the loader's
 *                                                     warp
 *
 * `t` gives lo[], hi[] (hi[0] clipped to the live entries: the box is not empty, except that a body
 * which loads or waits is called even then, must release its pages and trigger), at[]
 * (rt_entry.at), live[].  A body whose record says `waits` is called before its event is activated
 * and calls mpk_wait(t) itself, after what it can do ahead, and mpk_trigger(t) as soon as its
 * results are written; hi[0] is not clipped for it: it asks mpk_end(t).  Any other is called when
 * everything it reads is there, and the worker triggers the event when the body returns.
 */
#ifndef GEN_DEVICE_BODY_H
#define GEN_DEVICE_BODY_H

#include "ir/op.h"

/* What an architecture offers. */
enum {
    GEN_BULK = 1,  /* sm_90: bulk copies to shared memory, mbarrier transactions */
    GEN_WGMMA = 2, /* sm_90a: warpgroup products */
    /* sm_80: barriers in shared memory at which copies arrive, and so the page ring, its loader and
     * its clerk */
    GEN_RING = 4,
    /* more than 99 KB of shared memory: scratch of 64 KB leaves the ring its pages */
    GEN_ROOM = 8,
};

/* How large a paged KV cache is: pages[slots][slot_pages] names pages of a cache of n_pages.  These
 * follow from how many requests a program serves and how long they may be, and change no code:
 * bodies read them at run time, as mpk_caches[number] (source.h), so that one kernel serves any of
 * them. */
typedef struct gen_cache {
    int32_t slots, slot_pages, n_pages;
} gen_cache;
typedef VEC(gen_cache) gen_caches;

/* Block programs that were chosen (choices.h). */
typedef struct gen_choices gen_choices;

/* One operator of one graph, as a record sees it. */
typedef struct gen_call {
    const ir_graph *ir;
    const ir_op *op;
    uint32_t n_tokens; /* T of the graph */
    uint32_t n_workers;
    uint32_t needs; /* what the architecture offers: GEN_* */
    bool is_call;   /* of a kernel whose launches are calls */
    /* of shared memory, the most that leaves the ring the pages that bodies take at once; 0: any */
    uint32_t scratch_most;
    ir_dtype halves; /* IR_BF16 or IR_F16: what streamed products of the kernel multiply */
    /* for what is printed: caches and choices grow in it; all NULL where it is only asked who
     * accepts */
    arena *arena;
    gen_caches *caches;
    const ir_box *box; /* the largest of the operator's tasks; NULL: its whole output */
    gen_choices *choices;
    bool maps; /* the host can make tensor maps */
    /* a call: it makes those of all operators that want some (gen_wants_maps), also of tensors that
     * its caller moves */
    bool all_maps;
} gen_call;

/* Weights that a body reads as one stream: the rows of up to three matrices [rows_i, columns],
 * padded to blocks.
 *
 * Layout (device/task/linear_stream.cuh): groups of 8 rows; a group is padded_columns / 32
 * consecutive blocks of 512 bytes; a block is 8 rows x 32 columns x 16 bits.  Element (r, c) of a
 * block lies at byte
 *     r * 64 + ((c / 8) ^ (r / 2 % 4)) * 16 + (c % 8) * 2
 * which is free of bank conflicts for a warp that reads 16 bytes a lane, and is the 64-byte swizzle
 * that wgmma reads.  Padding rows and columns are zeros.
 *
 *   order GEN_ROWS    the rows of w[0], then of w[1], then of w[2]
 *         GEN_PAIRED  group 2i holds rows 8i .. 8i+3 of w[0] and w[1] in turn (w0[8i], w1[8i],
 *                     w0[8i+1] ...), group 2i+1 rows 8i+4 .. 8i+7: a lane gets gate and up of the
 *                     same column
 *   scale             not IR_NONE: each column is multiplied by its entry of this vector [columns]
 *                     before rounding (the weight of a norm)
 *   centred           rows are centred and so rounded that their sums stay nearly 0
 *                     (rt/rt_centre.h), for a layer_norm; after all groups follow padded_rows
 *                     floats, what the product of a row as it was and of `shift` [columns], the
 *                     bias of the norm, adds to every token
 *   form              RT_BLOCKS_* (rt/rt_blocks.h): the weights stay in the blocks of their files,
 *                     in the layout described there; dtype and scale mean nothing */
typedef enum gen_order { GEN_ROWS, GEN_PAIRED } gen_order;
typedef struct gen_pack {
    uint32_t n_weights;              /* 0: nothing is packed */
    ir_dtype dtype;                  /* IR_BF16 or IR_F16 */
    ir_tensor_id w[3], scale, shift; /* scale, shift: IR_NONE: absent */
    gen_order order;
    bool centred;
    uint32_t form;
    int64_t rows, columns; /* of the result, before padding */
    /* multiples of 8 (paired: 16) and of 256 (experts_sides 2: of 128; with a form: of
     * RT_SLAB_COLUMNS, of experts RT_PIECE_COLUMNS) */
    int64_t padded_rows, padded_columns;
    uint64_t n_bytes; /* without a form padded_rows * padded_columns * 2, and what follows */
} gen_pack;

/* Code that all its uses share: device functions BODY(t, shape) and LOAD(l, shape), and the struct
 * that says in what the uses differ.  There is one call of each in the kernel, however many uses
 * there are. */
typedef struct gen_routine {
    const char *shape, *body, *load;
} gen_routine;

/* A matrix in memory and the boxes that are copied of it (driver.h makes the map). */
typedef struct gen_boxes {
    uint64_t rows, columns, stride_bytes; /* columns: elements of element_bytes */
    uint32_t element_bytes;               /* 2: bf16 or f16; 8: words of any kind */
    uint32_t box_rows, box_columns;
    /* rows of a box, 128 bytes each, are swizzled; else they lie one after the other */
    bool swizzled;
} gen_boxes;
/* Of x, 16 bits, dense, its last axis the columns.  further: with rows of what follows x in memory,
 * so many that all boxes of a task are inside: zeros, which the copy engine fills in outside, take
 * longer to come than rows.  What those rows hold is multiplied, and not stored. */
gen_boxes gen_boxes_of_x(const ir_tensor *x, bool further);
/* Is the operator of a program that serves no requests? */
bool gen_is_of_call(const ir_graph *g, ir_op_id op);

/* Are all tasks of a product for many tokens wide (linear_tile.cuh), in a call?  They are if the
 * largest is: a last task of at most 64 tokens then runs the loop by boxes of the other tasks, in
 * which its second warpgroup has no tokens.  The loop for such tasks alone took twice as long. */
bool gen_is_wide(const gen_call *c);
/* Of linear: has x a norm, and is it a layer_norm (false of other operators)?  Is x the sum of
 * terms, that is, is it sum_linear?  Do long tasks of
 * whole groups come by boxes, where there are tensor maps? Does each of tasks with this many of
 * y's columns, or fewer at their end, store them as they are summed, by whole groups of 8? */
bool gen_has_norm(const ir_graph *g, ir_op_id op);
bool gen_is_centred(const ir_graph *g, ir_op_id op);
bool gen_is_of_terms(const ir_graph *g, ir_op_id op);
bool gen_comes_by_boxes(const ir_graph *g, ir_op_id op);
bool gen_stores_whole_groups(const ir_graph *g, ir_op_id op, uint32_t n_columns);
/* Of an operator of linear_tile in a call, whose tensors are aligned (target_def.call_align): must
 * it have maps in a call?  Then it has no other code there for what may come by boxes. */
bool gen_wants_maps(const ir_graph *g, ir_op_id op);

/* Units that a kernel is compiled in side by side (device/units.cuh): the values of MPK_UNIT.  What
 * takes the compiler longest has the highest numbers: they are begun first. */
typedef enum gen_unit {
    GEN_UNIT_KERNEL = 1, /* with the bodies that wait, but for those for some or many tokens */
    GEN_UNIT_ROLES,      /* the warps that run no bodies, but for one */
    GEN_UNIT_STEP,       /* the step task */
    GEN_UNIT_PLAIN,      /* bodies that are called when what they read is there */
    GEN_UNIT_SOME,
    GEN_UNIT_EXPERTS, /* and the next: bodies for many tokens */
    GEN_UNIT_HEADS,
    GEN_UNIT_ROWS,
    GEN_UNIT_PRODUCTS,
    GEN_UNIT_PARTS, /* tasks of bodies of PRODUCTS that share a tile (gen_body.parts) */
    GEN_UNIT_SHORT, /* those of at most 64 tokens, if some of them come by boxes */
    GEN_UNITS
} gen_unit;

/* Whether the host makes tensor maps of an operator's x and packed weights: never; where addresses
 * stay as they are, so that code without them must be there; or always. */
typedef enum gen_maps { GEN_MAPS_NONE, GEN_MAPS_SOME, GEN_MAPS_ALL } gen_maps;

/* The unit of a body for many tokens. */
typedef enum gen_many {
    GEN_MANY_NO = 0,
    GEN_MANY_EXPERTS = GEN_UNIT_EXPERTS,
    GEN_MANY_HEADS = GEN_UNIT_HEADS, /* rotation, attention split and folded, sums of parts */
    GEN_MANY_ROWS = GEN_UNIT_ROWS,   /* attention that is whole */
    GEN_MANY_PRODUCTS = GEN_UNIT_PRODUCTS
} gen_many;

typedef struct gen_body {
    const char *op;   /* name of the operator */
    const char *name; /* device/task/NAME.cuh; for messages and `mpk inspect` */
    uint32_t needs;
    /* the highest that accepts wins; the reference body of an operator has rank 0 and accepts
     * all */
    uint32_t rank;
    bool loads, waits;
    /* not 0: for many tokens, in machine code of its own (device/units.cuh): it calls no
     * function */
    gen_many many;
    bool some; /* for some tokens, 17 to 64, in machine code of its own too; it waits */
    /* copies boxes of its first input and of its packed weights by tensor maps (rt_entry.maps),
     * which the host makes where it knows the addresses: gen_boxes_of_x, gen_boxes_of_w */
    bool maps;
    bool by_maps; /* it has no other way to read them */
    bool images;  /* its first input is images, of which it copies windows by such a map */
    /* those of weights: half the groups, twice the columns; of weights in blocks more columns */
    bool long_boxes;
    uint32_t pages; /* that it takes of a ring before it lets one go, if more than 2 */
    bool pairs;     /* it takes pages in pairs, which begin at even places */
    /* its tasks may share a tile, a part of the columns each (rt_meeting) */
    bool parts;
    /* Without `parts`: the input with the weight of x's norm, if the body takes the sums of squares
     * of x's rows from the product that makes them (device/task/row_squares.cuh); 0: it does not */
    uint32_t norm;
    /* its second input is no packed weight but a matrix of rows that the step makes, and its tasks
     * must begin and end where tiles do (op_axis.tile) */
    bool of_rows;
    /* a task's box is its share of the operator's work: where it writes follows from data
     * (OP_SHARES) */
    bool shares;
    /* bit i: input i may be carried (rt_lane.h): the body polls its words.  Not 0: its results may
     * be carried too: what it makes anew are dense rows of f32, i32 or halves, which it stores by
     * whole words with ptx_store_word(s), none of them RT_EMPTY: no integer -1 */
    uint32_t carries;
    /* its carried result, the only one, may be stored into the memory of other peers: it goes
     * through mpk_put_word */
    bool sends;
    bool (*accepts)(const gen_call *c);
    /* Print the definition of instance `n`: function body_N, and load_N if it loads.  Equal text
     * but for the number means the same instance. */
    mpk_status (*print)(mpk_context *cx, const gen_call *c, uint32_t n, text *out);
    /* NULL, or the routine that runs this use: then `print` prints an initializer of its shape, and
     * no function. */
    const gen_routine *(*routine)(const gen_call *c);
    /* What of its weights is packed.  NULL: operands are read as they are. */
    void (*pack)(const gen_call *c, gen_pack *out);
    /* of shared memory, besides the rings.  NULL: none */
    uint32_t (*scratch_bytes)(const gen_call *c);
    /* What of the code for many tokens a task of this box needs, as bits of MPK_FORMS
     * (shape/linear_tile_shape.h): what no task of a kernel needs is not compiled.  NULL: nothing
     * that is optional. */
    uint64_t (*forms)(const gen_call *c, const ir_box *box, gen_maps maps);
} gen_body;

extern const gen_body *const gen_body_table[];

/* Does a task of this box come by tensor maps of x and of packed weights, where the host makes
 * them?  b: the body of the call. */
bool gen_wants_boxes(const gen_call *c, const gen_body *b, const ir_box *box);

/* Is there a task among those that need `forms` (bits of MPK_FORMS) of which x alone comes by
 * boxes, where the host makes tensor maps?  features: of the architecture. */
bool gen_wants_boxes_of_x(uint32_t features, uint64_t forms);

/* Of the weights of a body that takes boxes, packed, or if none are the matrix that its second
 * operand is; few: the half box, of its groups. */
gen_boxes gen_boxes_of_w(const gen_body *b, const gen_pack *p, bool few);
/* The operand that has them (rt_entry.at). */
uint32_t gen_operand_of_w(const gen_pack *p);

#endif
