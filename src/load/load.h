/* load.h - files on disk become named tensors, hyper-parameters and a vocabulary.
 *
 * Files are mapped, not read: a tensor's data is an address inside the mapping.  All offsets,
 * sizes, counts and names of a file are checked before they are used.
 *
 *   load.c            opens a folder or a file, checks that the model is whole
 *   safetensors.c     .safetensors files and their index
 *   gguf*.c           GGUF files (gguf.h)
 *   hf_config.c       config.json, generation_config.json
 *   hf_chat.c         chat templates and special tokens
 *   experts.c         the weights of experts under one name
 *   random.c          weights that are made up
 *   quantize*.c       a model written as a GGUF file (quantize.h)
 *   tokenizer*.c      text to token ids and back (tokenizer.h) */
#ifndef LOAD_H
#define LOAD_H

#include "base/file.h"
#include "ir/ir.h"
#include "load/tokenizer.h"
#include "model/model.h"

typedef struct load_tensor {
    str name; /* in Hugging Face's spelling for every kind of file */
    ir_dtype dtype;
    uint32_t rank;
    int64_t dims[IR_MAX_RANK]; /* outermost first */
    /* inside the mapping; not aligned to more than 1 byte.  NULL: in parts */
    const void *data;
    /* [dims[0]]: the address of each entry of axis 0 if not contiguous; else NULL */
    const void **parts;
    uint64_t n_bytes; /* of all */
} load_tensor;

/* The text of a special token and its name in chat templates. */
typedef struct load_special {
    const char *name; /* "bos_token"; static */
    str token;
} load_special;

/* A model as loaded.  The mappings stay until load_close; everything else is in the arena. */
typedef struct load_model {
    arena arena;
    str path; /* as the user gave it */
    model_config config;
    VEC(load_tensor) tensors;
    map names; /* tensor name -> index */
    VEC(file_map) files;
    VEC(const char *) members; /* of a folder: its files that were read and are not mapped */
    tokenizer *tokenizer;      /* NULL if the model brings none */
    bool has_config;           /* false: a vocabulary alone */
    str chat_template;         /* its `at` is NULL if there is none */
    str tool_template; /* used instead where there are tools; `at` is NULL if there is none */
    load_special specials[8];
    size_t n_specials;
    bool lists_added_tokens; /* of a folder: special_tokens_map.json adds nothing */
    struct {                 /* suggestions of generation_config.json; negative or 0: absent */
        float temperature, top_p, min_p, typical_p, repetition_penalty;
        int32_t top_k;
    } suggested;
} load_model;

/* Open a Hugging Face folder (config.json, weights and tokenizer are optional) or a GGUF file.  If
 * the model has weights, it has every weight that its configuration needs, in the right shapes.
 * MPK_EIO, MPK_EFORMAT, MPK_EUNSUPPORTED, MPK_ESHAPE, MPK_ELIMIT, MPK_ENOMEM. */
mpk_status load_open(mpk_context *cx, const char *path, load_model *out);
void load_close(load_model *m);
/* Is path one of the files that the model was read from, by whatever name? */
bool load_reads(const load_model *m, const char *path);
const load_tensor *load_find(const load_model *m, const char *name);
/* The weights' dtypes for model_build, which also checks their shapes; config.weight_dtype for all
 * if m has no weights. */
model_weights load_weights(const load_model *m);

/* ---- random.c ---- */

/* The distribution of the random weight `name`, unless its dtype has blocks. */
typedef struct load_law {
    uint64_t stream; /* element i is mean + deviation * rng_normal(stream, i), rounded */
    float mean, deviation;
} load_law;
load_law load_random_law(uint64_t seed, str name);

/* Elements first ... first + n - 1 of the random weight `name`, chosen such that a model of random
 * weights has finite and varied logits.  Each element depends only on the seed, the name and its
 * index.  For a block dtype, first and n are multiples of the block. */
void load_random_fill(uint64_t seed, str name, ir_dtype dtype, int64_t first, int64_t n, void *to);

/* ---- one file format each: they add the contents of a file to a zeroed or partly filled model
 * ---- */

mpk_status load_safetensors(mpk_context *cx, const char *path, load_model *m);
/* The bytes are borrowed until load_close. */
mpk_status load_safetensors_bytes(mpk_context *cx, const unsigned char *bytes, size_t n,
                                  load_model *m);
/* The shards that an index (model.safetensors.index.json) in the folder names. */
mpk_status load_safetensors_index(mpk_context *cx, const char *folder, str json, load_model *m);
mpk_status load_gguf(mpk_context *cx, const char *path, load_model *m);
mpk_status load_gguf_bytes(mpk_context *cx, const unsigned char *bytes, size_t n, load_model *m);
mpk_status load_hf_config(mpk_context *cx, arena *a, str json, model_config *out);
/* Fill suggested, and add the end-of-text tokens that config.json does not name. */
mpk_status load_hf_generation_config(mpk_context *cx, str json, load_model *m);
/* The chat templates (unless there is one already) and special tokens of a
 * tokenizer_config.json. */
mpk_status load_hf_chat_template(mpk_context *cx, str json, load_model *m);
/* The special tokens of a special_tokens_map.json; they replace earlier ones. */
mpk_status load_hf_special_tokens(mpk_context *cx, str json, load_model *m);
/* Name (static) and text (copied) of a special token. */
mpk_status load_set_special(mpk_context *cx, load_model *m, const char *name, str token);

/* ---- experts.c ---- */

/* For a model with experts: gather the weights of each layer's experts under one name (see
 * experts.c). */
mpk_status load_stack_experts(mpk_context *cx, load_model *m);

/* ---- load.c: what the formats share ---- */

/* Add a token that ends a text, once.  MPK_ELIMIT. */
mpk_status load_add_eos(mpk_context *cx, model_config *c, int32_t id);
/* Bytes of a tensor; MPK_EFORMAT: no elements, too many, or the last dimension is no multiple of
 * the dtype's block. */
mpk_status load_tensor_bytes(mpk_context *cx, const load_tensor *t, uint64_t *n_bytes);
/* Append a tensor under a name of its own (borrowed). */
mpk_status load_add_tensor(mpk_context *cx, load_model *m, const load_tensor *t);
/* MPK_EFORMAT if the bytes of two of the tensors from `first` on overlap. */
mpk_status load_check_overlap(mpk_context *cx, load_model *m, size_t first);
/* Map a file for as long as the model lives. */
mpk_status load_map(mpk_context *cx, const char *path, load_model *m, file_map *out);
/* A borrowed name for a message, cut if it is long. */
#define LOAD_NAME(s) STR_SHOWN(s, 96)

#endif
