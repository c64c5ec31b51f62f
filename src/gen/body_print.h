/* body_print.h - what the records of generic bodies share: the text of an instance, and what they
 * accept.
 *
 * An instance is one function: its operands as constants named in_NAME and out_NAME after the
 * record's operands, then one call or a few of functions in device/task.
 */
#ifndef GEN_BODY_PRINT_H
#define GEN_BODY_PRINT_H

#include "gen/source.h"
#include "op/map_program.h"
#include "shape/linear_stream_shape.h"

/* Scratch that the reductions of device/tile/view.cuh use; what a body needs itself comes after
 * it. */
enum { GEN_REDUCE_BYTES = 2048, GEN_BODY_THREADS = 256, GEN_MOST_SCRATCH_BYTES = 24 << 10 };

/* `accepts` of bodies that take any plain dtype and any strides. */
bool gen_accepts_plain(const gen_call *c);
/* The same for operators on the paged cache, whose n inputs from `first` on are the caches, if they
 * are there: pages must be dense. */
bool gen_accepts_caches(const gen_call *c, uint32_t first, uint32_t n);

/* `scratch_bytes` of bodies that only reduce. */
uint32_t gen_scratch_reduce(const gen_call *c);

/* The head of body_n, with a constant for each operand. */
void gen_print_head(const gen_call *c, uint32_t n, text *out);
/* The same for a body that learns from its box alone which rows there are: graphs of different T
 * share it. */
void gen_print_head_of_waiting(const gen_call *c, uint32_t n, text *out);
/* The same for bodies with products of warpgroups: inlined. */
void gen_print_head_of_groups(const gen_call *c, uint32_t n, text *out);
void gen_print_head_of_rows(const gen_call *c, uint32_t n, text *out);
/* The same for a body that computes each element on its own: graphs of different T share it where
 * all operands that have rows of tokens have those of the result. */
void gen_print_head_of_elements(const gen_call *c, uint32_t n, text *out);
/* The same where that holds of all operands: programs for any number of requests share it. */
void gen_print_head_of_slots(const gen_call *c, uint32_t n, text *out);
/* "    function(t, in_x, in_weight, out_y": what follows is the record's. */
void gen_print_call(const gen_call *c, const char *function, text *out);
/* The whole instance: head, one call with attributes of the operator after the operands, end.
 * what: two letters for each attribute, "i" an int, "b" a truth or "d" a double, and its number:
 * "i0d1". */
void gen_print_simple(const gen_call *c, uint32_t n, const char *function, const char *what,
                      text *out);
/* print_NAME, the `print` of a body that is such a call. */
#define GEN_PRINTER(name, function, what)                                                     \
    static mpk_status print_##name(mpk_context *cx, const gen_call *c, uint32_t n, text *out) \
    {                                                                                         \
        (void)cx;                                                                             \
        gen_print_simple(c, n, function, what, out);                                          \
        return MPK_OK;                                                                        \
    }
/* A generic body for all plain operands; scratch: its `scratch_bytes`, or NULL. */
#define GEN_BODY(operator, file, printer, scratch)                                    \
    {                                                                                 \
        .op = operator, .name = file, .accepts = gen_accepts_plain, .print = printer, \
        .scratch_bytes = scratch                                                      \
    }

/* A loop over the box of the result: p's steps, whose operands are read by the names of their
 * constants; `out_y` may be one of them. */
void gen_print_map_loop(const gen_call *c, const map_program *p, const char *const *names,
                        text *out);

/* A number as a literal of C: a double, or with an f after it a float; infinities and NaN too. */
void gen_print_double(double x, text *out);
void gen_print_float(float x, text *out);

/* Number of a paged cache in mpk_caches, by the inputs that are its pages [slots, slot_pages] and
 * its keys [n_pages, ...]; it goes into the instance's text.  MPK_ENOMEM. */
mpk_status gen_number_cache(mpk_context *cx, const gen_call *c, uint32_t pages, uint32_t keys,
                            uint32_t *out);

/* "MPK_F32" of a plain dtype; of a block dtype NULL. */
const char *gen_dtype_name(ir_dtype dtype);
/* Absent, or of this dtype with rows one after the other, from a multiple of 16 bytes on: bodies
 * copy such tensors by 16 bytes. */
bool gen_is_dense(const ir_tensor *t, ir_dtype dtype);
/* Is it of a dtype that fp32 holds without losing bits: f32, f16, bf16? */
bool gen_is_short_float(const ir_tensor *t);
/* A task's box of a result becomes the box of the words that count as its own.  Where tasks share
 * the work of rows of pairs (gen_body.shares), boxes may begin and end within a word, but bodies
 * store whole words: each counts as the task's whose box has its second half.  body may be NULL. */
void gen_own_words(const gen_body *body, const ir_tensor *t, ir_box *box);
/* Absent, or neighbours of these halves or f32: a bias, the weight of a norm. */
bool gen_is_vector(const ir_tensor *t, ir_dtype halves);
/* Absent, or a weight that can be packed into a stream (gen_pack): a constant of these halves, rows
 * one after the other. */
bool gen_is_streamed(const ir_tensor *t, ir_dtype halves);
/* Is the body that makes the call's first input one for many tokens (gen_body.many)?  The call's
 * own body is then compiled in a unit for many tokens, too (device/units.cuh). */
bool gen_follows_many(const gen_call *c);
/* "SILU" ... "NONE" of an attribute `glu` or `act`: what follows the prefix of a shape's
 * enumeration. */
const char *gen_glu_name(str glu);
/* The form of weights that stay in blocks, of up to `most` inputs from `first` on, and what is
 * taken off their integers (gen_packed_form). */
uint32_t gen_form_of_weights(const gen_call *c, uint32_t first, uint32_t most, int *zero);
/* What follows from rows and columns: both padded, rows to multiples of `row_unit`, columns of
 * `column_unit` (with a form a multiple of RT_PIECE_COLUMNS), and the bytes. */
void gen_pad_pack(gen_pack *p, int64_t row_unit, int64_t column_unit);
/* columns, columns_inverse, pages and last of the shape that reads it, `sides` groups side by
 * side. */
void gen_shape_columns(const gen_pack *p, stream_shape *out, int sides);
/* GLU_* of an attribute `glu`. */
int gen_shape_glu(str glu);
/* A field of a shape as part of an initializer, with its name: ints, or a float. */
void gen_print_field(const char *name, const int *values, uint32_t n, text *out);
void gen_print_float_field(const char *name, float value, text *out);
/* The whole initializer of a stream_shape. */
void gen_print_stream_shape(const stream_shape *s, text *out);
/* "1, 2" of an attribute that is a list of `n` numbers, or of `otherwise` where the list is too
 * short. */
void gen_print_list(const gen_call *c, uint32_t attribute, uint32_t n, int64_t otherwise,
                    text *out);
/* Rows that a generic product keeps in registers at once: the power of two from n on, 1 to 8. */
int gen_rows_at_once(int64_t n);
/* The tensor of an input, or NULL if it is absent; of an output. */
const ir_tensor *gen_input(const gen_call *c, uint32_t i);
const ir_tensor *gen_output(const gen_call *c, uint32_t i);

/* The bit of MPK_FORMS of the activation of this name (shape/linear_tile_shape.h); 0: none. */
uint64_t gen_form_of_activation(str name);

#endif
