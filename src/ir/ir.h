/* ir.h - the tensor program: what mpk compiles (paper §2, the input of §4).
 *
 * A graph is two arrays, tensors and operators; the operators are listed in an order in which
 * they may run.  At most one operator writes a tensor.  The meaning of an operator is in its
 * record (op.h); nothing here knows any by name.
 *
 *   input %x : bf16[4, 64] live=tokens
 *   const %w : bf16[128, 64]
 *   %y = linear(%x, %w) : bf16[4, 128] live=tokens
 *   output %y
 *
 * Shapes are constants: a model is built once for each number of tokens that a step may hold.
 * If axis 0 of a tensor counts the tokens (or the rows of logits) of a step, only a prefix of it
 * may be alive at run time: see ir_live.
 *
 *   build.c      add tensors and operators; shapes are inferred by the operator's record
 *   ir_print.c   write the text form (docs/text-form.md)
 *   ir_parse.c   read it
 *   ir_verify.c  check every rule stated here
 *   ir_eval.c    run the program with the operators' reference code: the reference for all other
 *                implementations
 *   share.c      names of parts of weights
 *   blocks.c     block formats of weights (blocks.h), with codebooks.c, blocks_pack.c, blocks_fit.c
 *
 * Dimension letters in every comment: B requests, T tokens in this step, R rows of logits, S KV
 * length, D hidden, H query heads, G KV heads, K head size, F feed-forward size, V vocabulary, L
 * layers, E experts, P tokens per KV page.
 */
#ifndef IR_H
#define IR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/map.h"
#include "base/str.h"

/* Limits of a program.  Arrays of these sizes stand in structs, so that operators need no
 * allocation of their own. */
enum {
    IR_MAX_RANK = 6,
    IR_MAX_INPUTS = 20,
    IR_MAX_OUTPUTS = 4,
    IR_MAX_ATTRIBUTES = 24,
    IR_MAX_PEERS = 16
};

/* Numbers of tensors and operators: indices into the arrays of an ir_graph, valid in that graph
 * alone. */
typedef uint32_t ir_tensor_id;
typedef uint32_t ir_op_id;
#define IR_NONE UINT32_MAX       /* no such tensor or operator; an optional input that is absent */
#define IR_EVERYWHERE UINT32_MAX /* in place of a peer: each has it */

/*    name   elements in a block   bytes of a block   text   */
#define IR_DTYPE_MAP(X)            \
    X(F32, 1, 4, "f32")            \
    X(F16, 1, 2, "f16")            \
    X(BF16, 1, 2, "bf16")          \
    X(F64, 1, 8, "f64")            \
    X(I32, 1, 4, "i32")            \
    X(I64, 1, 8, "i64")            \
    X(BOOL, 1, 1, "bool")          \
    X(Q4_0, 32, 18, "q4_0")        \
    X(Q4_1, 32, 20, "q4_1")        \
    X(Q5_0, 32, 22, "q5_0")        \
    X(Q5_1, 32, 24, "q5_1")        \
    X(Q8_0, 32, 34, "q8_0")        \
    X(Q2_K, 256, 84, "q2_k")       \
    X(Q3_K, 256, 110, "q3_k")      \
    X(Q4_K, 256, 144, "q4_k")      \
    X(Q5_K, 256, 176, "q5_k")      \
    X(Q6_K, 256, 210, "q6_k")      \
    X(U8, 1, 1, "u8")              \
    X(I8, 1, 1, "i8")              \
    X(I16, 1, 2, "i16")            \
    X(IQ4_NL, 32, 18, "iq4_nl")    \
    X(MXFP4, 32, 17, "mxfp4")      \
    X(IQ1_S, 256, 50, "iq1_s")     \
    X(IQ1_M, 256, 56, "iq1_m")     \
    X(IQ2_XXS, 256, 66, "iq2_xxs") \
    X(IQ2_XS, 256, 74, "iq2_xs")   \
    X(IQ2_S, 256, 82, "iq2_s")     \
    X(IQ3_XXS, 256, 98, "iq3_xxs") \
    X(IQ3_S, 256, 110, "iq3_s")    \
    X(IQ4_XS, 256, 136, "iq4_xs")  \
    X(TQ1_0, 256, 54, "tq1_0")     \
    X(TQ2_0, 256, 66, "tq2_0")

/* In the order of the table above; codebook_has relies on IQ1_S ... TQ2_0 being neighbours. */
typedef enum ir_dtype {
#define IR_DTYPE_ENUM(name, elements, bytes, text) IR_##name,
    IR_DTYPE_MAP(IR_DTYPE_ENUM)
#undef IR_DTYPE_ENUM
        IR_DTYPES
} ir_dtype;

/* What must be known of a dtype to compute sizes. */
typedef struct ir_dtype_info {
    const char *name;
    uint32_t block_elements; /* 1, or the elements along the last axis that share a block */
    uint32_t block_bytes;
} ir_dtype_info;

/* By dtype.  Names and block sizes are those of safetensors and GGUF; the numbers of the enum are
 * written nowhere but in memory. */
extern const ir_dtype_info ir_dtype_table[IR_DTYPES];

/* The origin of a tensor's bytes. */
typedef enum ir_kind {
    IR_INPUT, /* written before each step: by the caller, or by the step task from the requests */
    IR_CONST, /* a weight; bound by name, never written */
    IR_STATE, /* lives across steps and is written in place: the KV cache */
    IR_TEMP,  /* the result of an operator */
    IR_KINDS
} ir_kind;

/* What axis 0 counts, if only a prefix of it may be alive in a step.  Entries beyond the prefix
 * are undefined, and nothing may depend on them. */
typedef enum ir_live {
    IR_ALL,    /* every entry, always */
    IR_TOKENS, /* the tokens of this step */
    IR_ROWS,   /* the rows of logits wanted from this step */
    IR_LIVES
} ir_live;

/* A tensor is row-major and dense, with two exceptions: the result of a view operator shares the
 * storage of the operator's first input, with strides from the record; a tensor written in place
 * has the storage of `shares`. */
typedef struct ir_tensor {
    /* unique in the graph, without the % of the text form: any bytes but 0, copied into the
     * arena */
    str name;
    ir_dtype dtype;
    ir_kind kind;
    ir_live live;
    /* the peer in whose memory it lies, see ir_graph; IR_EVERYWHERE: inputs and weights that all
     * peers have */
    uint32_t peer;
    uint32_t rank;
    /* at least 1 each; rank 0 is a scalar of one element.  Their product is below 2^55 */
    int64_t dims[IR_MAX_RANK];
    ir_op_id producer; /* IR_NONE unless IR_TEMP */
    /* the tensor whose storage it shares (a view, or in place); IR_NONE: its own */
    ir_tensor_id shares;
    int64_t stride[IR_MAX_RANK]; /* in elements, see ir_strides; filled by the builder */
    /* in elements, of the first element from the start of the root's storage */
    int64_t offset;
} ir_tensor;

/* A half-open range of elements along each axis of a tensor: lo <= i < hi.  Empty if any lo >=
 * hi. */
typedef struct ir_box {
    int64_t lo[IR_MAX_RANK], hi[IR_MAX_RANK];
} ir_box;

/* Which field of an ir_attribute holds the value. */
typedef enum ir_attribute_type {
    IR_ATTRIBUTE_INT,
    IR_ATTRIBUTE_FLOAT,
    IR_ATTRIBUTE_STR,
    IR_ATTRIBUTE_INTS
} ir_attribute_type;

/* The value of one attribute; its name and type are in the operator's record, at the same index.
 * Only the field of that type counts; the arena of the graph owns what s and ints point to. */
typedef struct ir_attribute {
    int64_t i;
    double f;
    str s;
    struct {
        const int64_t *at;
        uint32_t n;
    } ints;
} ir_attribute;

struct op_def; /* the operator's record, op.h */

/* One operator of a program: which record, which operands, which attribute values. */
typedef struct ir_op {
    const struct op_def *def;
    str name;      /* unique in the graph; by default that of the first output */
    uint32_t peer; /* that runs it */
    /* n_in: at least as many as the record names; more only if the last one is variadic */
    uint32_t n_in, n_out;
    ir_tensor_id in[IR_MAX_INPUTS];             /* [n_in] IR_NONE: absent */
    ir_tensor_id out[IR_MAX_OUTPUTS];           /* [n_out] */
    ir_attribute attributes[IR_MAX_ATTRIBUTES]; /* [def->n_attributes] */
} ir_op;

/* The program.  It may be that of several peers, GPUs or groups of threads, numbered from 0:
 * each operator is run by one peer and reads what lies in the memory of that peer.  Only
 * operators with OP_GATHERS read what lies in another's, and only the result of one with
 * OP_TRANSFERS lies there.  So all that crosses between peers is an operator, and its order is
 * proven like that of any other. */
typedef struct ir_graph {
    arena *arena; /* owns everything below; borrowed */
    str name;
    VEC(ir_tensor) tensors;
    VEC(ir_op) ops;
    VEC(ir_tensor_id) outputs; /* what the caller reads after a step */
    map names;                 /* tensor name -> ir_tensor_id */
    uint32_t peer;             /* the peer of what is added next; of tensors also IR_EVERYWHERE */
} ir_graph;

/* ---- ir.c: dtypes, boxes, tensors ---- */

/* How many peers run operators of the program: one more than the largest number; at least 1. */
uint32_t ir_count_peers(const ir_graph *g);

/* The dtype of this name, or false. */
bool ir_dtype_from_name(str name, ir_dtype *dtype);
/* The number of elements of a tensor; its bytes if dense; the bytes of n elements of a dtype (n a
 * multiple of its block), which is also the byte offset of element n.  None of these overflows in a
 * verified graph. */
int64_t ir_elements(const ir_tensor *t);
int64_t ir_bytes(const ir_tensor *t);
int64_t ir_row_bytes(ir_dtype dtype, int64_t elements);
/* The alignment in bytes that loads of a dtype need: 2 for block dtypes, which begin with 16
 * bits and whose vectors are loaded unaligned; else the size of an element. */
uint32_t ir_dtype_align(ir_dtype dtype);

/* Half-open boxes over the first `rank` axes; an empty box overlaps nothing and is contained in
 * every box. */
ir_box ir_box_whole(const ir_tensor *t);
bool ir_box_is_empty(const ir_box *b, uint32_t rank);
bool ir_box_overlaps(const ir_box *a, const ir_box *b, uint32_t rank);
bool ir_box_contains(const ir_box *outer, const ir_box *inner, uint32_t rank);
int64_t ir_box_elements(const ir_box *b, uint32_t rank);
/* The smallest box that contains both. */
ir_box ir_box_around(const ir_box *a, const ir_box *b, uint32_t rank);

/* Follow views and in-place results to the tensor that owns the storage, and map the box to a box
 * of that tensor which contains every element touched.  Two accesses conflict only if their roots
 * are equal and their boxes overlap. */
void ir_root(const ir_graph *g, ir_tensor_id tensor, const ir_box *box, ir_tensor_id *root,
             ir_box *root_box);

/* The strides of a tensor in elements, and the offset of its first element from the start of the
 * root's storage: row-major for a root, from the view operators for a view. */
void ir_strides(const ir_graph *g, ir_tensor_id tensor, int64_t stride[IR_MAX_RANK],
                int64_t *offset);

/* Row-major strides of a shape. */
void ir_dense_strides(uint32_t rank, const int64_t *dims, int64_t *stride);

/* Place output 0 of op, or an output in place: fill stride, offset, and for a view that strides
 * cannot express shares = IR_NONE; the other fields are set by the caller.  MPK_EUNSUPPORTED: a
 * view that would split blocks of a block dtype. */
mpk_status ir_place_output(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out);

/* Check name, shape and size of a tensor: MPK_EARG, MPK_ESHAPE. */
mpk_status ir_check_tensor(mpk_context *cx, const ir_tensor *t);

/* ---- build.c ---- */

/* Make an empty graph, owned by the caller's arena `a`, from which everything in it is
 * allocated. */
mpk_status ir_create(mpk_context *cx, arena *a, const char *name, ir_graph **out);
/* Add a tensor of kind IR_INPUT, IR_CONST or IR_STATE.  MPK_EARG: the name is taken; MPK_ESHAPE: a
 * dimension is not positive, the last is not a multiple of the dtype's block, or the size
 * overflows. */
mpk_status ir_add_tensor(mpk_context *cx, ir_graph *g, ir_kind kind, ir_live live, const char *name,
                         ir_dtype dtype, uint32_t rank, const int64_t *dims, ir_tensor_id *out);

/* One named attribute for ir_add_op; those not named take the record's default. */
typedef struct ir_set {
    const char *name; /* NULL ends the list */
    int64_t i;
    double f;
    const char *s;
    const int64_t *ints;
    uint32_t n_ints;
} ir_set;

/* Add an operator by name: inputs in the record's order (IR_NONE: absent), outputs get inferred
 * shapes and the names `name`, `name.1`, `name.2` ... (NULL: made from the operator's name and a
 * number).  out[n] ids as many as the record has outputs. MPK_EARG: no such operator or attribute;
 * MPK_ESHAPE, MPK_EUNSUPPORTED from the record. */
mpk_status ir_add_op(mpk_context *cx, ir_graph *g, const char *op, const char *name, uint32_t n_in,
                     const ir_tensor_id *in, const ir_set *attributes, ir_tensor_id *out);
/* As ir_add_op, with a name for each output and a value for every attribute of the record (both
 * copied).  The operator is named after its first output.  For ir_add_op and the parser. */
mpk_status ir_add_op_as(mpk_context *cx, ir_graph *g, const struct op_def *def, const str *names,
                        uint32_t n_in, const ir_tensor_id *in, const ir_attribute *attributes,
                        ir_tensor_id *out);
/* Append a tensor to the outputs: the caller may read it after a step.  MPK_EARG: there is no
 * such tensor. */
mpk_status ir_add_output(mpk_context *cx, ir_graph *g, ir_tensor_id tensor);
/* Give each of two tensors the other's name; operators are named after their first result. */
mpk_status ir_swap_names(mpk_context *cx, ir_graph *g, ir_tensor_id a, ir_tensor_id b);
/* The tensor of this name, or IR_NONE. */
ir_tensor_id ir_find(const ir_graph *g, const char *name);

/* ---- ir_print.c, ir_parse.c: the text form; printing what was parsed gives the same bytes ---- */

void ir_print(const ir_graph *g, text *out);
/* The result is verified.  MPK_EFORMAT with line and column; refusals of the builder and the
 * verifier keep their own status. */
mpk_status ir_parse(mpk_context *cx, arena *a, str source, ir_graph **out);

/* ---- ir_verify.c ---- */

/* Check every rule stated above and those of the records.  MPK_EVERIFY names the operator and the
 * tensor. */
mpk_status ir_verify(mpk_context *cx, const ir_graph *g);

/* ---- ir_eval.c: the reference interpreter ---- */

/* Storage for every root tensor.  The caller may point data[t] at its own bytes (weights) before
 * ir_eval_allocate, which gives zeroed memory from `a` to the roots that have none, and sets the
 * addresses of views. */
typedef struct ir_values {
    void **data;             /* [tensors]; for a view: the address of its first element */
    uint32_t live[IR_LIVES]; /* live entries of axis 0; UINT32_MAX: all */
} ir_values;

mpk_status ir_eval_allocate(mpk_context *cx, arena *a, const ir_graph *g, ir_values *values);
/* Run every operator once, whole, in order.  MPK_ENOMEM is the only failure: a verified program
 * has no other. */
mpk_status ir_eval(mpk_context *cx, arena *scratch, const ir_graph *g, ir_values *values);

/* ---- share.c ---- */

/* Which part of the weight in the file a constant is: the entries lo <= i < hi of an axis of
 * `size`, or all of it. */
typedef struct ir_share {
    str whole;     /* the weight's name */
    uint32_t axis; /* IR_NONE: all of it */
    int64_t lo, hi, size;
    uint32_t peer; /* whose it is; all of it: IR_EVERYWHERE */
} ir_share;

/* The name of a peer's share, in the arena: "lm_head.weight[512:1024/2048]@1", of axis 1
 * "[:,512:1024/2048]". */
mpk_status ir_name_share(mpk_context *cx, arena *a, const ir_share *share, uint32_t peer,
                         str *name);
/* Read a name back.  One of another form is that of a whole weight (axis IR_NONE).  The result
 * borrows from the name. */
ir_share ir_read_share(str name);

#endif
