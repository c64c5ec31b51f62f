/* model_parts.h - what the files of model_decoder.h share: tensors and operators by name.  The
 * first failure is kept in the decoder, and after it nothing is added.
 */
#ifndef MODEL_PARTS_H
#define MODEL_PARTS_H

#include "model/model_decoder.h"

enum { DECODER_NAME_BYTES = 128 };

/* The name of a tensor that a layer computes, such as "layers.3.q_proj"; returns `name`. */
const char *decoder_name(const decoder *d, char name[DECODER_NAME_BYTES], const char *what);
/* The last part of a weight's name, after which its product is named. */
const char *decoder_result_name(const char *what);
/* Add an operator; returns its first output. */
ir_tensor_id decoder_op(decoder *d, const char *op, const char *name, uint32_t n_in,
                        const ir_tensor_id *in, const ir_set *attributes);
/* Add an input, a constant or state under its full name; a draft model's weights and state get
 * its prefix. */
ir_tensor_id decoder_tensor(decoder *d, ir_kind kind, ir_live live, const char *name,
                            ir_dtype dtype, uint32_t rank, const int64_t *dims);
/* Add a weight of any rank; its dtype is that of the file. */
ir_tensor_id decoder_shaped_weight(decoder *d, const char *name, uint32_t rank,
                                   const int64_t *dims);
/* Add a weight of the whole model: [rows, columns], or with rank 1 [rows]. */
ir_tensor_id decoder_weight(decoder *d, const char *name, uint32_t rank, int64_t rows,
                            int64_t columns);
/* Add a weight of the current layer: model.layers.LAYER.what.part. */
ir_tensor_id decoder_layer_weight(decoder *d, const char *what, const char *part, uint32_t rank,
                                  int64_t rows, int64_t columns);
/* Add a norm of rows of n entries, whose weights' names begin with `of`. */
ir_tensor_id decoder_add_norm(decoder *d, ir_tensor_id x, const char *of, const char *name,
                              int64_t n);
/* The expression `before` and a number after it, over n_in tensors. */
ir_tensor_id decoder_map(decoder *d, const char *name, uint32_t n_in, const ir_tensor_id *in,
                         const char *before, double number);
/* The layer's cache of this name as state. */
ir_tensor_id decoder_cache(decoder *d, const char *which);

#endif
