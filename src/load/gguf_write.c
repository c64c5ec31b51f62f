/* gguf_write.c - values and tensors as bytes of GGUF version 3, little-endian (see gguf.c for
 * the layout).
 *
 * Nothing is checked here: keys are ours, or those of a file that was read.  Cost: one pass, all
 * in memory; the largest part is a vocabulary.
 */
#include "load/gguf_write.h"

#include "base/num.h"

/* Append the n_bytes low bytes of a value, little-endian on any machine.  Running out of memory
 * is recorded in the text, and reported by gguf_writer_head: the functions here have no status. */
static void put(text *t, uint64_t value, unsigned n_bytes)
{
    char bytes[8];
    for (unsigned i = 0; i < n_bytes; i++)
        bytes[i] = (char)(value >> (8 * i));
    text_add(t, bytes, n_bytes);
}

/* A string of the format: its length, its bytes. */
static void put_text(text *t, str s)
{
    put(t, s.n, 8);
    text_add(t, s.at, s.n);
}

/* Begin a pair; its value must follow. */
static void put_key(gguf_writer *w, str key, gguf_type type)
{
    put_text(&w->values, key);
    put(&w->values, type, 4);
    w->n_values++;
}

/* Begin a pair whose value is an array; n items must follow. */
static void put_list(gguf_writer *w, str key, gguf_type type, uint64_t n)
{
    put_key(w, key, GGUF_ARRAY);
    put(&w->values, type, 4);
    put(&w->values, n, 8);
}

/* Each of the following writes one pair.  A key must be written once only: readers differ about
 * which of two counts. */
void gguf_put_u32(gguf_writer *w, const char *key, uint32_t value)
{
    put_key(w, str_from(key), GGUF_U32);
    put(&w->values, value, 4);
}

void gguf_put_f32(gguf_writer *w, const char *key, float value)
{
    put_key(w, str_from(key), GGUF_F32);
    put(&w->values, num_bits(value), 4);
}

void gguf_put_bool(gguf_writer *w, const char *key, bool value)
{
    put_key(w, str_from(key), GGUF_BOOL);
    put(&w->values, value, 1);
}

void gguf_put_str(gguf_writer *w, const char *key, str value)
{
    put_key(w, str_from(key), GGUF_STRING);
    put_text(&w->values, value);
}

void gguf_put_strings(gguf_writer *w, const char *key, const str *items, size_t n)
{
    put_list(w, str_from(key), GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_text(&w->values, items[i]);
}

void gguf_put_floats(gguf_writer *w, const char *key, const float *items, size_t n)
{
    put_list(w, str_from(key), GGUF_F32, n);
    for (size_t i = 0; i < n; i++)
        put(&w->values, num_bits(items[i]), 4);
}

void gguf_put_ints(gguf_writer *w, const char *key, const int32_t *items, size_t n)
{
    put_list(w, str_from(key), GGUF_I32, n);
    for (size_t i = 0; i < n; i++)
        put(&w->values, (uint32_t)items[i], 4);
}

/* Copy a value of another file byte by byte: its items are little-endian already. */
void gguf_put_value(gguf_writer *w, const gguf_value *v)
{
    if (v->is_array)
        put_list(w, v->key, v->type, v->n);
    else
        put_key(w, v->key, v->type);
    text_add(&w->values, (const char *)v->at, (size_t)gguf_value_bytes(v));
}

/* Describe a tensor.  Dimensions are innermost first in the file.  The offset counts from the
 * start of the data, padded after every tensor; the data must be written in the same order. */
void gguf_put_tensor(gguf_writer *w, str name, ir_dtype dtype, uint32_t rank, const int64_t *dims,
                     uint64_t n_bytes)
{
    put_text(&w->tensors, name);
    put(&w->tensors, rank, 4);
    for (uint32_t i = rank; i-- > 0;)
        put(&w->tensors, (uint64_t)dims[i], 8);
    put(&w->tensors, gguf_type_number(dtype), 4);
    put(&w->tensors, w->data_bytes, 8);
    w->data_bytes += n_bytes + gguf_padding(n_bytes);
    w->n_tensors++;
}

/* All bytes before the data, padded so that the data begins at a multiple of the alignment. */
mpk_status gguf_writer_head(mpk_context *cx, const gguf_writer *w, text *out)
{
    text t = {0};
    text_add(&t, "GGUF", 4);
    put(&t, 3, 4);
    put(&t, w->n_tensors, 8);
    put(&t, w->n_values, 8);
    text_add(&t, w->values.at, w->values.n);
    text_add(&t, w->tensors.at, w->tensors.n);
    text_add(&t, (const char[GGUF_ALIGNMENT]){0}, gguf_padding(t.n));
    if (t.failed || w->values.failed || w->tensors.failed) {
        text_free(&t);
        FAIL(cx, MPK_ENOMEM, "out of memory for the head of a GGUF file");
    }
    *out = t;
    return MPK_OK;
}

void gguf_writer_free(gguf_writer *w)
{
    text_free(&w->values);
    text_free(&w->tensors);
}
