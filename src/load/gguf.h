/* gguf.h - the key-value pairs of a GGUF file, checked and indexed; shared by gguf*.c.
 *
 *   gguf.c           the file: pairs, tensors, names
 *   gguf_config.c    what the pairs mean for a model and its tokenizer
 *   gguf_rope.c      the order of the rows of q and k
 *   gguf_describe.c  the pairs of a file that is written
 *   gguf_write.c     bytes of pairs and tensors
 *
 * Texts and items are borrowed from the mapping: valid until load_close.
 */
#ifndef LOAD_GGUF_H
#define LOAD_GGUF_H

#include "load/load.h"

/* The types of values, with their bytes (0: variable). */
#define GGUF_TYPE_MAP(X) \
    X(U8, 1)             \
    X(I8, 1)             \
    X(U16, 2)            \
    X(I16, 2)            \
    X(U32, 4)            \
    X(I32, 4)            \
    X(F32, 4)            \
    X(BOOL, 1)           \
    X(STRING, 0)         \
    X(ARRAY, 0)          \
    X(U64, 8)            \
    X(I64, 8)            \
    X(F64, 8)

typedef enum gguf_type {
#define GGUF_TYPE_ENUM(name, bytes) GGUF_##name,
    GGUF_TYPE_MAP(GGUF_TYPE_ENUM)
#undef GGUF_TYPE_ENUM
        GGUF_TYPES
} gguf_type;

/* A value in the mapping, checked to lie within the file. */
typedef struct gguf_value {
    str key;
    gguf_type type; /* of the value, or of the items of an array */
    bool is_array;  /* arrays of arrays are refused */
    uint64_t n;     /* number of items; 1 if it is not an array */
    /* the first item, unaligned; a string is its u64 length, then its bytes */
    const unsigned char *at;
} gguf_value;

/* The pairs of a file; memory is of the arena that the reader was given. */
typedef struct gguf {
    VEC(gguf_value) values;
    map keys; /* key -> index of values */
} gguf;

/* The value of a key; NULL: the file does not have it. */
const gguf_value *gguf_find(const gguf *f, const char *key);

/* Read a value into *out, or leave *out as it is if there is none.  MPK_EFORMAT: another type,
 * an array, out of range. */
mpk_status gguf_get_u32(mpk_context *cx, const gguf *f, const char *key, uint32_t *out);
mpk_status gguf_get_double(mpk_context *cx, const gguf *f, const char *key, double *out);
mpk_status gguf_get_bool(mpk_context *cx, const gguf *f, const char *key, bool *out);
/* The text is borrowed from the mapping. */
mpk_status gguf_get_str(mpk_context *cx, const gguf *f, const char *key, str *out);

/* Item i of a number type as an integer (a u64 beyond int64 is clamped; not for floats) or as a
 * double. */
int64_t gguf_item_int(const gguf_value *v, uint64_t i);
double gguf_item_double(const gguf_value *v, uint64_t i);
bool gguf_type_is_int(gguf_type type);
/* The items of an array of strings, borrowed from the mapping; *out is n items in arena a. */
mpk_status gguf_list_strings(mpk_context *cx, arena *a, const gguf_value *v, const str **out);

/* Bytes of a value in the file, without its key, type and count. */
uint64_t gguf_value_bytes(const gguf_value *v);

/* Index the values of a file in arena a; the tensors are skipped. */
mpk_status gguf_read_values(mpk_context *cx, arena *a, const unsigned char *bytes, size_t n,
                            gguf *out);
/* The values and tensors of a file, whatever it is of: tensors are added to m, their names in
 * Hugging Face's spelling where that is known, their bytes borrowed. */
mpk_status gguf_read_file(mpk_context *cx, const unsigned char *bytes, size_t n, load_model *m,
                          gguf *out);
/* The number that files give a dtype, UINT32_MAX if they have none; every dtype that gguf.c
 * reads has one. */
uint32_t gguf_type_number(ir_dtype dtype);
/* The name that GGUF files have for a tensor of a Hugging Face checkpoint, in arena a.  A name
 * without another spelling stays as it is, and *known is false.  own: the family's own names
 * (model_def.gguf_names). */
mpk_status gguf_name_tensor(mpk_context *cx, arena *a, const char *const (*own)[2], str name,
                            str *out, bool *known);
/* The reverse. */
mpk_status gguf_rename_tensor(mpk_context *cx, arena *a, const char *const (*own)[2], str *name,
                              bool *known);

/* ---- gguf_config.c ---- */

/* Fill config from <architecture>.* and from which tensors exist; put the rows of q and k in
 * order (gguf_rope.c). */
mpk_status gguf_fill_config(mpk_context *cx, const gguf *f, load_model *m);
/* Make the tokenizer from tokenizer.ggml.*, if there is one; also end-of-text tokens and chat
 * templates. */
mpk_status gguf_fill_vocab(mpk_context *cx, const gguf *f, load_model *m);

/* The key of the norms' epsilon, below the architecture's name. */
const char *gguf_eps_key(const model_def *def);
/* The factor of attention scores of a file that does not say it, for a family with a
 * query_scalar. */
double gguf_default_scale(const model_def *def, const model_config *c);
/* The divisor of rope frequency i by Llama 3's scaling, as rope_freqs.weight stores it. */
double gguf_llama3_divisor(const model_config *c, uint32_t i);

/* ---- gguf_rope.c ---- */

/* For a file of the Llama architecture, after its configuration is filled: put the rows of q and
 * k in the order of Hugging Face checkpoints.  MPK_EUNSUPPORTED: a bias that is stored in
 * blocks. */
mpk_status gguf_order_rope_rows(mpk_context *cx, load_model *m);
/* The same of one tensor, whose new addresses or numbers are in arena a. */
mpk_status gguf_order_rope_tensor(mpk_context *cx, arena *a, const model_config *c, load_tensor *t);

/* How files of the Llama architecture order the rows of a tensor. */
typedef struct gguf_rows {
    /* rows of a head, and how many of them are rotated, after the first `plain`; head 0: in the
     * order of checkpoints */
    int64_t head, rotated, plain;
} gguf_rows;
/* The order for a tensor that is in the order of checkpoints. */
gguf_rows gguf_find_rows(const model_config *c, const load_tensor *t);
/* The row of the checkpoint that becomes row `row` of the file. */
int64_t gguf_row_from(const gguf_rows *rows, int64_t row);

#endif
