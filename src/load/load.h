/* load.h - files on disk become named tensors, hyper-parameters and a vocabulary.
 *
 * Files are mapped, not read: a tensor's bytes are an address inside the mapping.  Everything that a file says of
 * itself (offsets, sizes, counts, names) is checked before it is used.
 */
#ifndef LOAD_H
#define LOAD_H

#include "base/file.h"
#include "ir/ir.h"
#include "load/tokenizer.h"
#include "model/model.h"

typedef struct load_tensor {
    str name; /* the Hugging Face spelling, whatever the file */
    ir_dtype dtype;
    uint32_t rank;
    int64_t dims[IR_MAX_RANK]; /* outermost first */
    const void *data;          /* inside the mapping; not aligned to more than 1 byte */
    uint64_t n_bytes;
} load_tensor;

/* A model as loaded.  The mappings stay until load_close; everything else is in the arena. */
typedef struct load_model {
    arena arena;
    str path; /* as the user gave it */
    model_config config;
    VEC(load_tensor) tensors;
    map names; /* tensor name -> index */
    VEC(file_map) files;
    tokenizer *tokenizer; /* NULL if the model brings none */
    bool has_config;      /* false: a vocabulary alone */
    str chat_template;    /* empty if none */
    struct {              /* generation_config.json: what the model's makers suggest; negative or 0: not said */
        float temperature, top_p, min_p;
        int32_t top_k;
    } suggested;
} load_model;

/* Open a Hugging Face folder (config.json, weights and tokenizer optional) or a GGUF file. */
mpk_status load_open(mpk_context *cx, const char *path, load_model *out);
void load_close(load_model *m);
const load_tensor *load_find(const load_model *m, const char *name);

/* One format each; they fill what their file has. */
mpk_status load_safetensors(mpk_context *cx, const char *path, load_model *m);
mpk_status load_safetensors_bytes(mpk_context *cx, const unsigned char *bytes, size_t n, load_model *m);
mpk_status load_gguf(mpk_context *cx, const char *path, load_model *m);
mpk_status load_gguf_bytes(mpk_context *cx, const unsigned char *bytes, size_t n, load_model *m);
mpk_status load_hf_config(mpk_context *cx, arena *a, str json, model_config *out);
/* Fill suggested, and add the end-of-text tokens that config.json does not name. */
mpk_status load_hf_generation_config(mpk_context *cx, str json, load_model *m);
/* Add a token that ends a text, once.  MPK_ELIMIT. */
mpk_status load_add_eos(mpk_context *cx, model_config *c, int32_t id);

#endif
