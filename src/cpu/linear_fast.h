/* linear_fast.h - the fast linear operator: the interface between its loops (linear_fast.c) and
 * the code of an instruction set (linear_kernels.h).
 *
 * The arithmetic is the same in every kernel, for every number of tokens and, but for one case, on
 * every instruction set:
 *
 *   - a weight is its fp32 value: widened, or unpacked as blocks.h defines it (then exact up to one
 *     rounding);
 *   - K is taken in chunks of LINEAR_CHUNK; in a chunk lane k mod 16 adds w x by FMA in rising k;
 *     the lanes are added as v_sum does; the sums of the chunks are added in rising order;
 *   - but a weight in a block format, if the operator says activations = i8, is multiplied as
 *     int8_fast.h says;
 *   - and where the processor multiplies tiles of bf16 (AMX), a BF16 weight whose K is a multiple
 *     of 32 is multiplied as tile_fast.h says, which gives other bits;
 *   - then the bias, the activation, the product of gate and up, the residual, each rounded to
 *     fp32.
 *
 * Layers: linear_fast.c and expert_fast.c have the loops over tokens, weights and columns, once
 * for all processors; a linear_kernels record has the inner loops for one instruction set;
 * linear_kernels.h writes them once over the vectors of vec_*.h, and isa_*.c compile that for
 * each set.
 */
#ifndef CPU_LINEAR_FAST_H
#define CPU_LINEAR_FAST_H

#include "cpu/body.h"
#include "cpu/int8_fast.h"
#include "cpu/tile_fast.h"

enum {
    /* elements of K; a multiple of every block; a panel's rows of it stay in the first cache */
    LINEAR_CHUNK = 768,
    /* columns whose sums are kept before they are finished; a multiple of every V_*_ROWS */
    LINEAR_COLUMNS = TILE_COLUMNS,
    /* most tokens of a kernel of linear_direct, which unpacks weights in registers */
    LINEAR_DIRECT_TOKENS = 4,
    /* up to this many tokens, weights that are floats go through these kernels again for every
     * four tokens: widening a weight in registers costs less than the way through scratch */
    LINEAR_FEW_TOKENS = 32
};

/* The function of the gate, glu; LINEAR_PLAIN: there is no gate. */
typedef enum linear_activation {
    LINEAR_PLAIN,
    LINEAR_SILU,
    LINEAR_GELU,
    LINEAR_GELU_TANH,
    LINEAR_SWIGLU_OAI /* with a limit (op/activate.h) */
} linear_activation;

/* n rows of f32: the rows 0 .. n - 1, or those that an index names, `stride` floats apart.  With
 * an index a row may appear several times, as where two experts take one token. */
typedef struct linear_rows {
    const float *at;
    int64_t stride, n;
    const int32_t *index; /* [n] or NULL */
} linear_rows;

/* Row i; its length is known to the caller. */
static inline const float *linear_row(const linear_rows *x, int64_t i)
{
    return x->at + (x->index ? x->index[i] : i) * x->stride;
}

/* All that one row of n finished columns is made of.  b: the sums of the second weight, or NULL;
 * biases and residual may be NULL. */
typedef struct linear_finish {
    linear_activation activation;
    const float *a, *b;
    const void *bias_a, *bias_b, *residual;
    ir_dtype bias_a_dtype, bias_b_dtype, residual_dtype, out_dtype;
    void *out;
    int64_t n;
    float limit; /* of LINEAR_SWIGLU_OAI */
} linear_finish;

/* sums[t * ld + r] = (add ? itself : 0) + w_r . x_t over elements [k0, k1) of K, multiples of
 * 32, for x.n <= LINEAR_DIRECT_TOKENS tokens and n rows of packed weights, row_bytes apart. */
typedef void linear_direct(linear_rows x, const void *w, int64_t row_bytes, int64_t n, int64_t k0,
                           int64_t k1, bool add, float *sums, int64_t ld);

/* The code of an instruction set for linear.  All are pure functions over the memory that they
 * are given. */
typedef struct linear_kernels {
    int64_t panel_rows;               /* rows of a panel */
    linear_direct *direct[IR_DTYPES]; /* NULL: this dtype is always unpacked first */
    /* Unpack n elements of a row of weights to f32; false if there is no kernel for the dtype. */
    bool (*unpack)(ir_dtype dtype, const void *from, int64_t n, float *to);
    /* The same sums as linear_direct, for any number of tokens and panel_rows rows of n f32
     * elements, a multiple of 16. */
    void (*panel)(linear_rows x, const float *const *w, int64_t n, bool add, float *sums,
                  int64_t ld);
    /* rms_norm of a row of n elements to f32; weight NULL: none. */
    void (*norm)(const void *x, ir_dtype dtype, int64_t n, const void *weight,
                 ir_dtype weight_dtype, float eps, float *to);
    /* Convert a row of n elements to f32. */
    void (*widen)(const void *x, ir_dtype dtype, int64_t n, float *to);
    /* Bias, activation, residual, rounding of one row. */
    void (*finish)(const linear_finish *f);
    const int8_kernels *int8;
    const tile_kernels *tiles; /* NULL: there are no instructions for tiles */
} linear_kernels;

/* The forms of x that the weights of an operator need: as f32, as 8-bit blocks of 32 and of 256,
 * and as bf16 parts for tiles, so many of an element (0: it is not needed). */
typedef struct linear_forms {
    bool plain, narrow[2];
    int parts;
} linear_forms;

/* Rows of x that are multiplied with rows of weights, and how. */
typedef struct linear_product {
    const linear_kernels *kernels;
    int64_t k, padded; /* K, and rounded up to 16: the length of a row in scratch */
    bool direct;       /* few tokens, and no weight must be unpacked first */
    linear_forms forms;
    /* `padded` floats long, or in place if K = padded; for weights that need f32 */
    linear_rows x;
    /* the same rows in blocks of 32 and of 256, if some weight needs them */
    int8_rows narrowed[2];
    /* the same rows as bf16 parts, if some weight needs them */
    tile_x split;
    float *panel; /* scratch of linear_panel_bytes */
} linear_product;

/* sums[t * LINEAR_COLUMNS + r] = w[row + r] . x_t for n <= LINEAR_COLUMNS rows of a weight [F,
 * K], all tokens of p->x. */
void linear_sum(const linear_product *p, const op_view *w, int64_t row, int64_t n, float *sums);
/* The forms of x that the weights among inputs `first` to `last` need; parts: bf16 parts that hold
 * an element of x; activations: the operator's attribute. */
linear_forms linear_forms_of(const linear_kernels *k, const op_call *call, uint32_t first,
                             uint32_t last, int parts, str activations);
/* The most tokens that can be multiplied by a weight of this dtype and this many columns without a
 * panel of floats; 0: a panel is always needed. */
int64_t linear_direct_tokens(const linear_kernels *k, ir_dtype dtype, int64_t columns);
/* Bytes of the panel for blocks of n rows: 0 if every product is direct, never less for more
 * rows. */
size_t linear_panel_bytes(const linear_product *p, int64_t n);
/* Of n rows of x of this many bytes, how many form a block, which stays in the second cache. */
int64_t linear_block_tokens(const linear_product *p, int64_t bytes, int64_t n);
/* Bytes of n rows of x in all forms for 8-bit blocks and tiles that are needed; 0: none is. */
int64_t linear_form_bytes(const linear_product *p, int64_t n);
/* Place these forms of n rows from `scratch` on, in linear_form_bytes. */
void linear_place_forms(linear_product *p, int64_t n, void *scratch);
/* Fill these forms of row t from x, a row of f32. */
void linear_fill_forms(linear_product *p, const float *x, int64_t t);
/* The attribute glu as an activation; LINEAR_PLAIN if it names none. */
linear_activation linear_activation_of(str glu);

/* An input, or NULL if it is absent. */
static inline const op_view *linear_present(const op_call *call, uint32_t input)
{
    return input < call->n_in && call->in[input].data ? &call->in[input] : 0;
}
/* The bf16 parts that hold an element of input x after the norm, if there is one: its result is
 * f32. */
static inline int linear_x_parts(const op_call *call, uint32_t x, uint32_t norm)
{
    return tile_parts(linear_present(call, norm) ? IR_F32 : call->in[x].dtype);
}
/* n >= 0 rounded up to a multiple of `to`. */
static inline int64_t linear_round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* The fields of a cpu_body with the kernels as a parameter; LINEAR_SET makes bodies of them. */
bool linear_accepts(const op_call *call);
size_t linear_scratch_bytes(const op_call *call, const ir_box *box, const linear_kernels *k);
void linear_run(const op_call *call, const ir_box *box, void *scratch, const linear_kernels *k);

#endif
