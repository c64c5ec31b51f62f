/* load.h - files on disk become named tensors, hyper-parameters and a vocabulary.
 *
 * Files are mapped, not read: a tensor's data is an address in the mapping.  All offsets, sizes,
 * counts and names of a file are checked before they are used.
 *
 *   load.c            opens a folder or a file, checks that the model is complete
 *   safetensors.c     .safetensors files and their index
 *   gguf*.c           GGUF files (gguf.h)
 *   hf_config.c       config.json, generation_config.json
 *   hf_experts.c      what a config.json says of experts (hf_config.h)
 *   hf_scheme.c       how a folder's weights were quantised
 *   quantised.c       the parts of a matrix that was quantised (quantised.h)
 *   dequantize.c      those matrices as programs read them
 *   hf_weights.c      names and values of weights that only folders have
 *   hf_chat.c         chat templates and special tokens
 *   experts.c         the weights of experts under one name
 *   interleaved.c     those that folders hold by columns, by rows
 *   latent.c          those that make keys and values of latents, each head's apart
 *   delta.c           those of linear attention, taken apart
 *   joined.c          weights that files hold as one tensor, taken apart
 *   heads.c           rows of q, k and v in the order of programs
 *   random.c          random weights
 *   quantize*.c       a model written as a GGUF file (quantize.h)
 *   adapter*.c        adapters, merged into weights (adapter.h)
 *   tokenizer*.c      text to token ids and back (tokenizer.h)
 */
#ifndef LOAD_H
#define LOAD_H

#include "base/file.h"
#include "ir/ir.h"
#include "load/tokenizer.h"
#include "model/model.h"

/* A tensor of a model; its bytes belong to a mapping, or to the model's arena. */
typedef struct load_tensor {
    str name; /* in Hugging Face's spelling for every kind of file */
    ir_dtype dtype;
    bool is_f8; /* the bytes (IR_U8) are numbers of E4M3; until dequantize.c has read them */
    uint32_t rank;
    int64_t dims[IR_MAX_RANK]; /* outermost first */
    /* aligned to 1 byte only; NULL: in parts */
    const void *data;
    /* [dims[0]]: the address of each entry of axis 0, if they are not contiguous; else NULL */
    const void **parts;
    uint64_t n_bytes; /* of the whole tensor */
} load_tensor;

/* A special token's name in chat templates, and its text. */
typedef struct load_special {
    const char *name; /* "bos_token"; static */
    str token;
} load_special;

/* How the weights of a folder were quantised, as its config.json says. */
typedef enum load_method {
    LOAD_PLAIN, /* they were not */
    LOAD_FP8,   /* or FP4, as modelopt writes it */
    LOAD_COMPRESSED,
    LOAD_GPTQ,
    LOAD_AWQ,
    LOAD_BITS_AND_BYTES,
    LOAD_MXFP4
} load_method;
typedef struct load_scheme {
    load_method method;
    uint32_t bits;    /* of GPTQ and AWQ: of a number */
    int zero_more;    /* of GPTQ: what is added to a stored zero point, 0 or 1 */
    int64_t block[2]; /* rows and columns that share a scale, where scales lie in two axes */
    int64_t group;    /* columns that share a scale elsewhere; 0: the file does not say */
} load_scheme;

/* A model as loaded.  Mappings and arena live until load_close. */
typedef struct load_model {
    arena arena;
    str path; /* as the user gave it */
    model_config config;
    VEC(load_tensor) tensors;
    map names; /* tensor name -> index */
    VEC(file_map) files;
    VEC(const char *) members; /* files of a folder that were read and are not mapped */
    tokenizer *tokenizer;      /* NULL: the model has none */
    bool has_config;           /* false: a vocabulary only */
    load_scheme scheme;
    str chat_template; /* at NULL: none */
    str tool_template; /* used instead for chats with tools; at NULL: none */
    load_special specials[8];
    size_t n_specials;
    bool lists_added_tokens; /* of a folder: then special_tokens_map.json is not read */
    uint64_t adapters_hash;  /* of what adapters changed in it; 0: nothing */
    struct {                 /* of generation_config.json; negative or 0: absent */
        float temperature, top_p, min_p, typical_p, repetition_penalty;
        int32_t top_k;
    } suggested;
} load_model;

/* Open a Hugging Face folder (config.json, weights and tokenizer are optional) or a GGUF file.
 * A model with weights has every weight that its configuration needs, in the right shape.
 * MPK_EIO, MPK_EFORMAT, MPK_EUNSUPPORTED, MPK_ESHAPE, MPK_ELIMIT, MPK_ENOMEM. */
mpk_status load_open(mpk_context *cx, const char *path, load_model *out);
/* An adapter: a folder of PEFT or a GGUF file, and what its update is multiplied by besides its own
 * factor: 1: as it was trained; 0: it changes nothing. */
typedef struct load_adapter {
    const char *path;
    float scale; /* finite */
} load_adapter;
/* The same with n adapters merged into its weights (adapter.h).  MPK_EFORMAT, MPK_EUNSUPPORTED,
 * MPK_ESHAPE also: an adapter is damaged, holds what cannot be merged, or is of another model;
 * MPK_ELIMIT: a merged weight is beyond its dtype. */
mpk_status load_open_adapted(mpk_context *cx, const char *path, const load_adapter *adapters,
                             uint32_t n, load_model *out);
void load_close(load_model *m);
/* Is path one of the files that the model was read from, under any name? */
bool load_reads(const load_model *m, const char *path);
const load_tensor *load_find(const load_model *m, const char *name);
/* The weights' dtypes for model_build, which also checks their shapes; config.weight_dtype for
 * all of them if m has no weights. */
model_weights load_weights(const load_model *m);

/* ---- random.c ---- */

/* The distribution of the random weight `name`, unless its dtype has blocks. */
typedef struct load_law {
    uint64_t stream; /* element i is mean + deviation * rng_normal(stream, i), rounded */
    float mean, deviation;
} load_law;
load_law load_random_law(uint64_t seed, str name);

/* Elements first .. first + n - 1 of the random weight `name`, distributed so that a model of
 * random weights has finite and varied logits.  An element depends only on the seed, the name
 * and its index.  For a block dtype, first and n are multiples of the block. */
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
/* Fill `suggested`, and add end-of-text tokens that config.json does not name. */
mpk_status load_hf_generation_config(mpk_context *cx, str json, load_model *m);
/* The chat templates (unless one was found before) and special tokens of a
 * tokenizer_config.json. */
mpk_status load_hf_chat_template(mpk_context *cx, str json, load_model *m);
/* The special tokens of a special_tokens_map.json, which replace earlier ones. */
mpk_status load_hf_special_tokens(mpk_context *cx, str json, load_model *m);
/* Set a special token: name is static, the text is copied. */
mpk_status load_set_special(mpk_context *cx, load_model *m, const char *name, str token);

/* ---- experts.c ---- */

/* For a model with experts: gather the weights of each layer's experts under one name
 * (experts.c). */
mpk_status load_stack_experts(mpk_context *cx, load_model *m);
/* Give a weight of a layer's experts or router the name that it has in most files, in arena a;
 * *name stays if it is no such weight, or of all experts together. */
mpk_status load_rename_expert(mpk_context *cx, arena *a, str *name);
/* The stack of which the weight `name` of one expert (so renamed) is an entry, in arena a; *expert
 * is -1 and *stack stays if it is none. */
mpk_status load_find_stack(mpk_context *cx, arena *a, str name, str *stack, int64_t *expert);

/* ---- hf_scheme.c, dequantize.c ---- */

/* Read "quantization_config" of a config.json, or "quantization" of a hf_quant_config.json;
 * LOAD_PLAIN if there is none.  MPK_EFORMAT, MPK_EUNSUPPORTED: a scheme that is not known, by name.
 */
mpk_status load_hf_scheme(mpk_context *cx, str json, load_scheme *out);
/* Put matrices that m->scheme describes in the place of their numbers and scales: in blocks of GGUF
 * where these say the same, else in config.weight_dtype, copied into the model's arena.
 * MPK_EFORMAT, MPK_ESHAPE, MPK_EUNSUPPORTED, MPK_ENOMEM. */
mpk_status load_dequantize(mpk_context *cx, load_model *m);

/* ---- hf_weights.c ---- */

/* After a folder's weights are listed: give them the names and values that programs want. */
mpk_status load_hf_weights(mpk_context *cx, load_model *m);
/* Give a weight of a model that is held by one that also reads images the name that it has in a
 * model of text alone, in arena a. */
mpk_status load_rename_held(mpk_context *cx, arena *a, str *name);

/* ---- adapter.c ---- */

/* Merge adapters into the weights of m, whose names and layout are those of its file: of a GGUF
 * file with the rows of q and k in order (gguf_rope.c), of a folder (from_folder) as
 * load_dequantize left them. */
mpk_status load_merge_adapters(mpk_context *cx, const load_adapter *adapters, uint32_t n,
                               bool from_folder, load_model *m);

/* ---- interleaved.c ---- */

/* For a family whose folders hold the weights of experts by columns (model_def.expert_layout): give
 * each part its own name and order, in the model's arena. */
mpk_status load_part_interleaved(mpk_context *cx, load_model *m);
/* Give another weight of such a folder the name that it has in other families, in arena a. */
mpk_status load_rename_plain(mpk_context *cx, arena *a, str *name);

/* ---- latent.c ---- */

/* For a family with latent attention: give each head's weights for keys and for values a tensor. */
mpk_status load_split_latent(mpk_context *cx, load_model *m);

/* ---- delta.c ---- */

/* For a family with linear attention: give the parts of what its files join names of their own. */
mpk_status load_split_delta(mpk_context *cx, load_model *m);

/* ---- joined.c ---- */

/* For a family whose files join weights (model_def.joints): give each part its own name. */
mpk_status load_split_joined(mpk_context *cx, load_model *m);
/* Of a folder's joined q, k and v, which lie head by head: all of q, then k, then v. */
mpk_status load_order_joined(mpk_context *cx, load_model *m);
/* Put the parts of such a family together again, as its files hold them, in arena a: if t is the
 * first part of a joined tensor, *out is that tensor under its joined name; if t is another part,
 * *out is NULL; otherwise *out is t. */
mpk_status load_join_parts(mpk_context *cx, arena *a, const load_model *m, const load_tensor *t,
                           const load_tensor **out);

/* ---- heads.c ---- */

/* An order of rows: `find` tells which of the old ones becomes row `row`. */
typedef struct load_order {
    int64_t (*find)(const void *of, int64_t row);
    const void *of;
} load_order;
/* Put the rows of a matrix, or the entries of a vector, in another order; `rows` of them then.
 * Of a matrix nothing is copied, a vector is copied to the arena.  MPK_EUNSUPPORTED: a vector that
 * is stored in blocks. */
mpk_status load_order_rows(mpk_context *cx, arena *a, load_order o, int64_t rows, load_tensor *t);
/* For a program that is to be built from a model (model_build): set config.kv_times, and put the
 * rows of q, k and v in the order that the program expects.  Where only a part of each head is
 * rotated, the rows of q and k move; where more than most_group query heads (0: any number) share a
 * KV head, the rows of k and v are repeated, if a number of times does.  Call it once.
 * MPK_EUNSUPPORTED: a bias or a norm that would have to move is stored in blocks. */
mpk_status load_order_heads(mpk_context *cx, load_model *m, uint32_t most_group);

/* ---- load.c: what the formats share ---- */

/* Element i of an F32, F16 or BF16 tensor, whose data may be unaligned. */
float load_number(const load_tensor *t, int64_t i);
/* The address of a row of t, which has so many; of a vector `rows` is 1. */
const void *load_row_at(const load_tensor *t, int64_t rows, int64_t row);
/* n elements from a row's beginning on, as f32: exact.  False: the dtype is none of numbers or of
 * blocks that can be unpacked. */
bool load_unpack(ir_dtype dtype, const void *from, int64_t n, float *to);

/* Add a token that ends a text, once.  MPK_ELIMIT. */
mpk_status load_add_eos(mpk_context *cx, model_config *c, int32_t id);
/* Bytes of a tensor; MPK_EFORMAT: no elements, too many, or the last dimension is not a multiple
 * of the dtype's block. */
mpk_status load_tensor_bytes(mpk_context *cx, const load_tensor *t, uint64_t *n_bytes);
/* stem and end as one name, in arena a; MPK_EFORMAT: it is longer than 191 bytes. */
mpk_status load_make_name(mpk_context *cx, arena *a, str stem, const char *end, str *out);
/* Empty the list of tensors, which is to be made anew; what it held stays in the arena. */
void load_empty_list(load_model *m);
/* Add a tensor; MPK_EFORMAT if its name (borrowed) is there already. */
mpk_status load_add_tensor(mpk_context *cx, load_model *m, const load_tensor *t);
/* MPK_EFORMAT if two of the tensors from `first` on overlap in memory. */
mpk_status load_check_overlap(mpk_context *cx, load_model *m, size_t first);
/* Read the file `name` of the folder into the model's arena, and note that it was read; *out is
 * empty if it does not exist. */
mpk_status load_read_member(mpk_context *cx, load_model *m, const char *folder, const char *name,
                            str *out);
/* Map a file for as long as the model lives. */
mpk_status load_map(mpk_context *cx, const char *path, load_model *m, file_map *out);
/* A borrowed name for a message; cut if it is long. */
#define LOAD_NAME(s) STR_SHOWN(s, 96)

#endif
