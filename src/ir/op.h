/* op.h - the operator's record: everything that the rest of mpk knows about an operator.
 *
 * Each operator is one file, src/op/NAME.c, which defines `const op_def op_NAME`; CMake lists
 * src/op to generate the table of all records.  No other code switches on an operator.  A task
 * computes a box of output 0 and the corresponding boxes of the other outputs; the record
 * derives the boxes of all other operands from that box.
 *
 *   linear, y [T, N] = x [T, K] w [N, K]: the task of box y[0:4, 64:128]
 *     reads x[0:4, 0:K] and w[64:128, 0:K]; axes: y may be cut along both axes
 *
 * Contract between the fields, tested for every operator over its cases (op_test.c):
 *   - disjoint boxes of output 0 give disjoint boxes of every other output, unless the record
 *     promises that tasks write disjoint entries although their boxes overlap (OP_WRITES_APART);
 *   - ref, given a box, reads nothing outside `reads` and writes exactly the box and `writes`;
 *   - every split that `axes` allows gives the same bits as the whole.
 *
 * Who uses what: the builder `infer`, `view`; decompose `axes`, `effort`, `reads`; dependency
 * analysis and verification `reads`, `writes`; shard `split`; the interpreter, the CPU target
 * and tests `ref`.
 */
#ifndef OP_H
#define OP_H

#include "ir/ir.h"

/* An operand as a body sees it: the whole tensor; a box selects the part. */
typedef struct op_view {
    void *data; /* the first element; NULL: an absent optional input */
    ir_dtype dtype;
    ir_live live;
    uint32_t rank;
    int64_t dims[IR_MAX_RANK];
    /* in elements; of a block dtype: rows are dense, strides multiples of the block */
    int64_t stride[IR_MAX_RANK];
} op_view;

/* An operator bound to memory.  All its tasks and threads share it; it is read-only while they
 * run. */
typedef struct op_call {
    const ir_op *op;
    const ir_attribute *attributes;
    uint32_t n_in, n_out;
    op_view in[IR_MAX_INPUTS], out[IR_MAX_OUTPUTS];
    /* [IR_LIVES] entries alive in this step; the caller has clipped the box of output 0 */
    const uint32_t *live;
} op_call;

/* Compute the box of output 0.  scratch: op_def.scratch_bytes(…) bytes, 64-byte aligned, contents
 * undefined; private to the call. */
typedef void op_body(const op_call *call, const ir_box *box, void *scratch);

/* A named operand of a record, in the order in which operators list their inputs or outputs. */
typedef struct op_operand {
    const char *name;
    /* variadic: the last one, 1 or more */
    enum { OP_REQUIRED = 0, OP_OPTIONAL = 1, OP_VARIADIC = 2 } presence;
} op_operand;

/* A named attribute of a record; ir_op.attributes has its value at the same index. */
typedef struct op_attribute {
    const char *name;
    ir_attribute_type type;
    ir_attribute otherwise; /* the value if none is given */
    bool required;
} op_attribute;

/* How an axis of output 0 may be cut into tasks. */
typedef struct op_axis {
    int64_t grain;   /* cuts at multiples of this; 0: the axis may not be cut */
    int64_t fastest; /* a multiple of grain at which bodies are fastest; 0: any */
    /* a multiple of grain: the unit of matrix hardware, see pass_options.whole_tiles; 0: none */
    int64_t tile;
    /* where tiles are whole: entries up to which a task reads shared operands once; 0: a tile */
    int64_t together;
    bool even; /* tasks with equal parts of the axis may share work, see pass_options.even_over */
    /* where tiles are whole: each part takes longer than those before it, rising about evenly,
     * so that a worker with an early and a late one has as much to do as any other */
    bool rises;
    bool context; /* entries hold parts of contexts: a short context leaves most of them empty */
} op_axis;

/* Flags of a record: what other rooms must know of an operator beyond its boxes. */
enum {
    OP_VIEW = 1,           /* no work: output 0 is input 0 with other strides; see `view` */
    OP_DATA_DEPENDENT = 2, /* the time of a task depends on data (paper §5.2) */
    /* an element of the output depends on that element of the inputs (after broadcasting) */
    OP_ELEMENTWISE = 4,
    /* of state that it writes in place it also reads entries that no task of this step writes;
     * `reads` does not name them, since no task has to wait for them */
    OP_READS_EARLIER = 8,
    /* boxes of state beyond output 0 may overlap: which entries of it a task writes follows from
     * data, and no two tasks write the same one */
    OP_WRITES_APART = 16,
    /* with OP_DATA_DEPENDENT: a task's time depends on data, but the work is cut at run time so
     * that all tasks of the operator take about as long */
    OP_EVEN = 32,
    OP_TRANSFERS = 64, /* the result lies in the memory of the peer that attribute 0 names */
    OP_GATHERS = 128,  /* inputs may lie in the memory of other peers: it reads them there */
    /* of output 0, a target's tasks may write anywhere in the rows of their boxes, no two tasks
     * the same entry: the last axis is cut only to share the work.  A task that reads a row must
     * wait for all tasks whose boxes have that row */
    OP_SHARES = 256,
    /* one of the operators by which processes exchange tensors (op/posted.h): for targets of which
     * several processes can map the memory.  GPUs have no code for it */
    OP_PROCESSES = 512,
    /* ids say which entries of an input a task reads: `reads` names all that they may choose, and
     * the task reads at most as many as its box has */
    OP_LOOKS_UP = 1024,
    /* each token finds what the one before it in its text left in state (op/recurrent.h): tokens
     * cannot be taken back, and no text can begin in the middle of another's */
    OP_CARRIES = 2048,
};

/* In place of an axis in op_split. */
enum {
    OP_WHOLE = -1, /* every peer gets all of it */
    OP_FIRST = -2, /* an optional input: peer 0 gets all of it, the others do without */
    /* a result: those of all peers add up to it; an input: each peer takes its own term as it is */
    OP_SUM = -3,
    /* an input of integers that number the entries of the axis that is cut: every peer gets them
     * all, counted from the first entry of its part, so that those of other parts name none */
    OP_IDS = -4,
};

/* One way to split an operator among peers: each runs it on a part of the operands.  All axes
 * that are named are cut at the same fractions, except those of the inputs in `covers`: these
 * are cut into `groups` equal groups, and a peer gets the groups that its part of the others
 * touches; its part holds whole groups, or lies within one.
 *
 *   linear y = x w, w [N, K]:  by rows      in = {OP_WHOLE, 0}, out = {1}: y is cut along axis 1
 *                              by columns   in = {1, 1}, out = {OP_SUM}: terms that add up to y
 *   expert_linear by experts: in = {OP_WHOLE, OP_IDS, 0}, out = {OP_SUM} */
typedef struct op_split {
    int in[IR_MAX_INPUTS];   /* the axis that is cut, or OP_* */
    int out[IR_MAX_OUTPUTS]; /* the axis that is cut, OP_WHOLE or OP_SUM */
    int64_t groups;          /* 0: nothing is covered */
    uint32_t covers;         /* a bit for each input */
    /* the attribute that lists the dimensions of result 0 and follows the cut; -1: none */
    int sized;
} op_split;

/* A shape to test: the text form of a graph with this one operator.  Its inputs get random data,
 * see `fill`. */
typedef struct op_case {
    const char *graph; /* text form */
} op_case;

/* The record itself.  All of it is constant and shared by all graphs and threads. */
typedef struct op_def {
    const char *name;
    const char *summary; /* one line, for docs and --help */
    const op_operand *in, *out;
    uint32_t n_in, n_out;
    const op_attribute *attributes;
    uint32_t n_attributes;
    uint32_t flags;

    /* Check the inputs and fill dtype, live, rank and dims of out[n_out]; for a result in place
     * also `shares` (the input's id). MPK_ESHAPE, MPK_EUNSUPPORTED, with what was found and what is
     * expected. */
    mpk_status (*infer)(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out);
    /* How each axis of output 0 may be cut: axes[rank], zeroed by the caller. NULL: the operator is
     * one task. */
    void (*axes)(const ir_graph *g, const ir_op *op, op_axis *axes);
    /* Where tiles are whole: the time that `box` of output 0 takes besides reading, in bytes that
     * could be read in that time; less than 0 where `reads` names more than is read.  NULL:
     * none. */
    int64_t (*effort)(const ir_graph *g, const ir_op *op, const ir_box *box);
    /* The box of input `input` that computing `box` of output 0 reads (may be more, never less); an
     * empty box if none.  For a result in place the old value counts as read only if it is.  Never
     * called for absent inputs. */
    void (*reads)(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read);
    /* The box of output `output` >= 1 that belongs to `box` of output 0.  NULL: the same box. */
    void (*writes)(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written);
    /* For OP_VIEW: strides and offset of the result from those of input 0; false if strides cannot
     * say it (then the operator is run as a copy by ref, into storage of its own). */
    bool (*view)(const ir_graph *g, const ir_op *op, const int64_t *in_stride, int64_t *stride,
                 int64_t *offset);
    /* Fill way number `way` of splitting the operator among peers into *out, whose operands are
     * whole; false: there is none.  The ways of an operator are tried in their order.  NULL: every
     * peer runs all of it. */
    bool (*split)(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out);
    /* Scratch that ref needs for a box; never more for fewer entries of axis 0.  NULL: none. */
    size_t (*scratch_bytes)(const ir_graph *g, const ir_op *op, const ir_box *box);
    /* Other processes write some of the inputs: are those of computing `box` there?  A target asks
     * again until they are, then runs the task; ref takes what it finds.  NULL: none do. */
    bool (*arrived)(const op_call *call, const ir_box *box);
    /* The meaning, in plain C with fp32 (integers: exact) accumulation.  NULL: a view that strides
     * can always say; a view is work only if its result has storage of its own (ir_tensor.shares is
     * IR_NONE). */
    op_body *ref;

    const op_case *cases; /* at least one */
    uint32_t n_cases;
    /* How a test fills input `input` with random data; NULL: floats normal, integers 0, bool
     * either. */
    void (*fill)(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data);
} op_def;

/* For members of a record: an array and its length. */
#define OP_COUNT(array) (sizeof(array) / sizeof *(array))
#define OP_INPUTS(array) .in = (array), .n_in = OP_COUNT(array)
#define OP_OUTPUTS(array) .out = (array), .n_out = OP_COUNT(array)
#define OP_ATTRIBUTES(array) .attributes = (array), .n_attributes = OP_COUNT(array)
#define OP_CASES(array) .cases = (array), .n_cases = OP_COUNT(array)

/* Every record, sorted by file name, NULL at the end (generated). */
extern const op_def *const op_table[];

/* ---- op.c (beside this file) ---- */

/* The operand that input `input` of an operator is; further tensors of a variadic one are the last.
 * An operator may have more inputs than its record has operands. */
static inline const op_operand *op_operand_of(const op_def *def, uint32_t input)
{
    return &def->in[input < def->n_in ? input : def->n_in - 1];
}
/* The peer in whose memory the results of an operator lie. */
static inline uint32_t op_result_peer(const ir_op *op)
{
    return op->def->flags & OP_TRANSFERS ? (uint32_t)op->attributes[0].i : op->peer;
}
/* The record's way number `way` of splitting an operator among peers; false: there is none. */
bool op_find_split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out);
/* The record of this name, or NULL. */
const op_def *op_find(str name);
/* Bind an operator's operands to memory: data[t] is the address of the first element of tensor
 * t.  `call` borrows op, and live (see op_call) for as long as it is used. */
void op_bind(const ir_graph *g, const ir_op *op, void *const *data, const uint32_t *live,
             op_call *call);
/* Entries of axis 0 of an operand that are alive. */
int64_t op_live_entries(const op_call *call, const op_view *v);
/* The bytes read to compute a box: the cost that decompose minimises (paper §4.1).  Of an operator
 * that looks entries up (OP_LOOKS_UP) an input counts no more entries than the box has. */
int64_t op_bytes_read(const ir_graph *g, const ir_op *op, const ir_box *box);
/* Fill the dense storage of input `input` with random data for tests: the record's `fill`, or its
 * default; blocks of a block dtype get random bits and moderate scales. */
void op_fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data);
/* Read and write one element as float, any plain dtype, at an offset in elements. */
float op_load(const op_view *v, int64_t offset);
void op_store(const op_view *v, int64_t offset, float value);

/* i, or the nearer end if it lies outside lo .. hi. */
static inline int64_t op_clamp(int64_t i, int64_t lo, int64_t hi)
{
    if (i < lo)
        return lo;
    return i > hi ? hi : i;
}
/* Load n elements of a row, from element `first` on, as f32: any dtype; of block formats `first`
 * and n are multiples of the block.  offset: of the row's first element, in elements; the row's
 * elements have stride 1. */
void op_load_row(const op_view *v, int64_t offset, int64_t first, int64_t n, float *to);

#endif
