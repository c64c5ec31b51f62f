/* graph.h - build any tensor program by hand, compile it, run it.
 *
 *     mpk_graph_create(cx, "two_layers", &g);
 *     mpk_graph_tensor(cx, g, MPK_TENSOR_INPUT, "x", MPK_F32, 2, (int64_t[]){4, 64}, &x);
 *     mpk_graph_tensor(cx, g, MPK_TENSOR_CONSTANT, "w", MPK_F32, 2, (int64_t[]){32, 64}, &w);
 *     mpk_graph_operator(cx, g, "linear", "y", 2, (mpk_tensor[]){x, w}, 0, NULL, &y);
 *     mpk_graph_output(cx, g, y);
 *     mpk_program_compile(cx, g, 1, &(mpk_binding){"w", weights, sizeof weights}, NULL, &program);
 *     mpk_binding bound[] = {{"x", in, sizeof in}, {"y", result, sizeof result}};
 *     mpk_program_run(cx, program, 2, bound);
 *
 * The whole program is examples/graph.c; `mpk opt --operators` lists what operators there are.
 * Rules as in mpk.h.  A graph is used by one thread at a time, and so is a program.
 */
#ifndef MPK_GRAPH_H
#define MPK_GRAPH_H

#include "mpk/mpk.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MPK_MAX_RANK = 6 };

typedef struct mpk_graph mpk_graph;
typedef struct mpk_program mpk_program;
/* A tensor of one graph. */
typedef struct mpk_tensor {
    uint32_t id;
} mpk_tensor;
#define MPK_ABSENT ((mpk_tensor){UINT32_MAX}) /* an optional operand that is not given */

typedef enum mpk_tensor_kind {
    MPK_TENSOR_INPUT,    /* may differ in each run */
    MPK_TENSOR_CONSTANT, /* a weight: bound once, when the program is compiled */
    MPK_TENSOR_STATE,    /* kept from run to run, zero at first; operators write it in place */
} mpk_tensor_kind;

/* A named attribute of an operator; see mpk_int and the others. */
typedef struct mpk_attribute {
    const char *name;
    int64_t i;
    double f;
    const char *s;
    const int64_t *ints;
    uint32_t n_ints;
} mpk_attribute;

static inline mpk_attribute mpk_int(const char *name, int64_t value)
{
    mpk_attribute a = {name, value, (double)value, 0, 0, 0};
    return a;
}
static inline mpk_attribute mpk_float(const char *name, double value)
{
    mpk_attribute a = {name, 0, value, 0, 0, 0};
    return a;
}
static inline mpk_attribute mpk_string(const char *name, const char *value)
{
    mpk_attribute a = {name, 0, 0, value, 0, 0};
    return a;
}
static inline mpk_attribute mpk_ints(const char *name, const int64_t *values, uint32_t n)
{
    mpk_attribute a = {name, 0, 0, 0, values, n};
    return a;
}

MPK_API mpk_status mpk_graph_create(mpk_context *cx, const char *name, mpk_graph **out);
/* NULL is allowed.  Programs made from it live on. */
MPK_API void mpk_graph_free(mpk_graph *g);

/* Add an input, a constant or a state.  MPK_EARG: the name is taken; MPK_ESHAPE: a dimension is not
 * positive, the last is no multiple of the dtype's block, or the size overflows. */
MPK_API mpk_status mpk_graph_tensor(mpk_context *cx, mpk_graph *g, mpk_tensor_kind kind,
                                    const char *name, mpk_dtype dtype, uint32_t rank,
                                    const int64_t *dims, mpk_tensor *out);
/* Add an operator by name: operands in the order of its record, attributes by name.  out[] gets as
 * many tensors as the operator has outputs; they are called `name`, `name.1` ... (NULL: made up).
 * Shapes and dtypes are inferred.  MPK_EARG: no such operator or attribute; MPK_ESHAPE,
 * MPK_EUNSUPPORTED: the operands do not fit it. */
MPK_API mpk_status mpk_graph_operator(mpk_context *cx, mpk_graph *g, const char *op,
                                      const char *name, uint32_t n_in, const mpk_tensor *in,
                                      uint32_t n_attributes, const mpk_attribute *attributes,
                                      mpk_tensor *out);
/* The tensor can be read after a run. */
MPK_API mpk_status mpk_graph_output(mpk_context *cx, mpk_graph *g, mpk_tensor tensor);
/* What was inferred.  dims[MPK_MAX_RANK].  MPK_EARG: not a tensor of this graph. */
MPK_API mpk_status mpk_graph_describe(mpk_context *cx, const mpk_graph *g, mpk_tensor tensor,
                                      mpk_dtype *dtype, uint32_t *rank, int64_t *dims);
/* The text form, yours (mpk_free), and back. */
MPK_API mpk_status mpk_graph_print(mpk_context *cx, const mpk_graph *g, char **source);
MPK_API mpk_status mpk_graph_parse(mpk_context *cx, const char *source, size_t n, mpk_graph **out);
/* Names, operands and attributes of all operators, one a line; yours (mpk_free). */
MPK_API mpk_status mpk_operators(mpk_context *cx, char **lines);

/* A tensor and its bytes: row-major, dense. */
typedef struct mpk_binding {
    const char *name;
    void *data; /* inputs and constants are only read; an output is written */
    size_t n_bytes;
} mpk_binding;

/* Compile for options->threads workers and start them.  constants: the bytes of every constant,
 * borrowed until the program is closed.  Of the options, what concerns models has no meaning here.
 * MPK_EARG: a constant is missing, unknown or of another size.
 *
 * With options->mode MPK_MODE_CALLS, for a GPU, nothing is copied to it: the addresses of
 * constants, and those that mpk_program_launch gets, are of its memory (the primary context's, as
 * PyTorch's are), aligned to 16 bytes.  Constants that task code reads in an order of its own get a
 * copy in that order; all others are used where they are. */
MPK_API mpk_status mpk_program_compile(mpk_context *cx, const mpk_graph *g, uint32_t n_constants,
                                       const mpk_binding *constants,
                                       const mpk_engine_options *options, mpk_program **out);
/* Copy the inputs in, run once, copy the outputs out.  Inputs that are not named keep their bytes
 * (zero at first); outputs that are not named are not copied; a state may be bound to be read after
 * the run.  MPK_EARG: an unknown name or a wrong size, and nothing was run; MPK_ESTALLED,
 * MPK_EDEVICE: the runtime failed. */
MPK_API mpk_status mpk_program_run(mpk_context *cx, mpk_program *p, uint32_t n_bindings,
                                   const mpk_binding *bindings);
/* For callers whose tensors have memory of their own and who call often: name the tensors once,
 * inputs, constants, states and outputs in any order, then give their addresses in that order with
 * each call.  Nothing is copied.  The names replace those of an earlier call.  MPK_EARG: an unknown
 * name, a name twice, or an output that is a view of another tensor or an input itself (put `copy`
 * after it). */
MPK_API mpk_status mpk_program_name_slots(mpk_context *cx, mpk_program *p, uint32_t n,
                                          const char *const *names);
/* Run once.  data[n]: the bytes of each slot, row-major, dense, as many as its tensor has, and
 * aligned to its elements; used until the next call.  A slot that is written (an output, a state)
 * overlaps no other, but for what `post` writes and `collect` reads.  MPK_EARG: n is not what was
 * named, or an address is NULL or not aligned, and nothing was run; else as mpk_program_run. */
MPK_API mpk_status mpk_program_call(mpk_context *cx, mpk_program *p, uint32_t n, void *const *data);
/* Of MPK_MODE_CALLS: put one run on a stream (the driver's CUstream; NULL: the default one) and
 * return.  It is one launch of one kernel, after a small copy if an address has changed since the
 * last, and nothing waits on the host.  Every input, constant, state and output of the program has
 * a slot (mpk_program_name_slots); data[n]: their addresses on the GPU, used until the run has
 * ended on the stream.  Runs of one program follow each other, whatever their streams, and this one
 * also follows the last run of `after` (NULL: of none): kernels of two programs want all of the GPU
 * each, so put them one after the other.  A constant whose address has changed is read anew.
 * MPK_EARG: as mpk_program_call, or `after` runs on another GPU; MPK_EUNSUPPORTED: a program of
 * another mode, or the stream is being captured; MPK_ESTALLED, MPK_EDEVICE: an earlier run failed,
 * or the GPU did. */
MPK_API mpk_status mpk_program_launch(mpk_context *cx, mpk_program *p, mpk_program *after,
                                      void *stream, uint32_t n, void *const *data);
/* Wait until the last launch has ended.  MPK_ESTALLED, MPK_EDEVICE: it failed. */
MPK_API mpk_status mpk_program_wait(mpk_context *cx, mpk_program *p);
/* The constant in this slot has got new values where it is: the next launch uses them.  (Those that
 * are used where they are need it not.)  MPK_EARG: no such slot. */
MPK_API mpk_status mpk_program_touch(mpk_context *cx, mpk_program *p, uint32_t slot);
/* What it was compiled to, as JSON, yours (mpk_free): {"operators": 12, "tasks": 40, ..., "kinds":
 * {"linear": 3}, "code": [...], "copied": ["w"], "device": "NVIDIA H100 80GB HBM3", "workers": 132,
 * "kernel_ms": 5210.2, "kernel_cached": false}.  code: what runs the operators, by kind: the fields
 * `kind` to `programs` of mpk_engine_profile (mpk.h).  copied: constants of which a program of
 * MPK_MODE_CALLS keeps a copy in an order of its own. */
MPK_API mpk_status mpk_program_describe(mpk_context *cx, const mpk_program *p, char **json);
/* Where the time of the last launch went, by kind of operator: waits for it, and gives what
 * mpk_engine_profile does (mpk.h).  MPK_EARG: the program was compiled without options->profile. */
MPK_API mpk_status mpk_program_profile(mpk_context *cx, mpk_program *p, char **json);
MPK_API void mpk_program_close(mpk_program *p);

#ifdef __cplusplus
}
#endif

#endif
