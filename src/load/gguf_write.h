/* gguf_write.h - the head of a GGUF file that is written: values, then tensors, then where their
 * data goes.
 *
 * Used by quantize.c and gguf_describe.c.  Values and tensors are put in the order that the file
 * shall have; the caller then writes gguf_writer_head and the data of each tensor, padded, in
 * the same order.
 */
#ifndef LOAD_GGUF_WRITE_H
#define LOAD_GGUF_WRITE_H

#include "load/gguf.h"

/* Alignment of the data section and of each tensor, the format's default. */
enum { GGUF_ALIGNMENT = 32 };

/* A head under construction.  Zero-initialise; free with gguf_writer_free.  Running out of
 * memory is reported by gguf_writer_head. */
typedef struct gguf_writer {
    text values, tensors;
    uint64_t n_values, n_tensors;
    uint64_t data_bytes; /* of all tensors so far, with padding */
} gguf_writer;

void gguf_put_u32(gguf_writer *w, const char *key, uint32_t value);
void gguf_put_f32(gguf_writer *w, const char *key, float value);
void gguf_put_bool(gguf_writer *w, const char *key, bool value);
void gguf_put_str(gguf_writer *w, const char *key, str value);
void gguf_put_strings(gguf_writer *w, const char *key, const str *items, size_t n);
void gguf_put_floats(gguf_writer *w, const char *key, const float *items, size_t n);
void gguf_put_ints(gguf_writer *w, const char *key, const int32_t *items, size_t n);
/* Copy a value of another file. */
void gguf_put_value(gguf_writer *w, const gguf_value *v);
/* Describe a tensor; dims outermost first, as in load_tensor.  Its dtype must have a
 * gguf_type_number. */
void gguf_put_tensor(gguf_writer *w, str name, ir_dtype dtype, uint32_t rank, const int64_t *dims,
                     uint64_t n_bytes);

/* How many zeros follow n_bytes of a tensor's data. */
static inline size_t gguf_padding(uint64_t n_bytes)
{
    return (size_t)(-n_bytes % GGUF_ALIGNMENT);
}

/* All bytes before the data, padded; *out is the caller's, who frees it.  MPK_ENOMEM. */
mpk_status gguf_writer_head(mpk_context *cx, const gguf_writer *w, text *out);
void gguf_writer_free(gguf_writer *w);

/* ---- gguf_describe.c ---- */

/* Write the values that describe m: hyper-parameters, tokenizer, chat template.  For a GGUF file
 * those that it has, for a Hugging Face folder those that llama.cpp's readers expect.
 * MPK_EUNSUPPORTED: GGUF cannot express a property of m. */
mpk_status gguf_describe(mpk_context *cx, arena *a, const load_model *m, gguf_writer *w);
/* The record of the architecture that the file will name. */
mpk_status gguf_find_written(mpk_context *cx, const load_model *m, const model_def **out);

#endif
