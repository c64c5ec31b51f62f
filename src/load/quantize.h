/* quantize.h - a loaded model becomes a GGUF file whose weights have other types.
 *
 *   quantize_plan.c   which type each tensor takes
 *   quantize.c        unpack, pack, write
 *   gguf_describe.c   the values that describe the model
 *
 * Used by the engine (mpk_quantize).
 */
#ifndef LOAD_QUANTIZE_H
#define LOAD_QUANTIZE_H

#include "load/gguf.h"

/* A type of file: most matrices have `dtype`, some others by the rules of the mix. */
typedef struct quantize_mix {
    const char *name; /* "q4_k_m" */
    ir_dtype dtype;
    uint32_t file_type; /* general.file_type */
} quantize_mix;         /* value of general.file_type */

/* The mix with this name, in upper or lower case.  MPK_EARG, with a list of all. */
mpk_status quantize_find_mix(mpk_context *cx, str name, const quantize_mix **out);

/* What the choice of types depends on. */
typedef struct quantize_facts {
    const quantize_mix *mix;
    const model_config *config;
    bool tied;           /* the embedding is also the head */
    bool has_importance; /* importances of columns are known */
} quantize_facts;

/* The number in blk.LAYER.PART.weight; -1: the tensor belongs to no layer. */
int quantize_layer(str name);

/* The type of a tensor with this GGUF name, as llama.cpp chooses it. */
ir_dtype quantize_choose(const quantize_facts *f, str name, uint32_t rank, const int64_t *dims);

/* How much each column of a matrix counts, for tensors whose inputs were observed; see
 * blocks_pack_row. */
typedef struct quantize_importance {
    map names;            /* Hugging Face name of the weight -> index of values */
    const float **values; /* [columns]; for a stack of experts [experts, columns] */
} quantize_importance;

typedef struct quantize_options {
    const quantize_mix *mix;
    const quantize_importance *importance; /* NULL: none */
    /* called by the caller's thread; false gives up.  NULL: none */
    bool (*progress)(void *user, const char *stage, double done);
    void *progress_user;
} quantize_options;

/* What was written, for the report. */
typedef struct quantize_result {
    uint64_t n_bytes, n_elements; /* bytes of the file; elements of all tensors */
    uint32_t n_tensors[IR_DTYPES];
} quantize_result;

/* Write the model, which must have weights, to path; the file appears complete or not at all.
 * MPK_EARG: path is one of the model's own files; MPK_EIO: it cannot be written; MPK_EFORMAT: a
 * weight is not finite; MPK_ELIMIT: a weight is too large for f16; MPK_EUNSUPPORTED: a tensor
 * cannot be packed, or GGUF cannot describe the model; MPK_ECANCELLED. */
mpk_status quantize_model(mpk_context *cx, const load_model *m, const char *path,
                          const quantize_options *options, quantize_result *out);

#endif
