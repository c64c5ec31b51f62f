/* packed_form.h - which weights in GGUF block formats streamed products read as they are, and in
 * which form (rt/rt_blocks.h).
 *
 * Asked by the records of products and, before a graph is built, by the target about the weights of
 * a file (host/target.h); by the loader for the format of a packed weight. */
#ifndef GEN_PACKED_FORM_H
#define GEN_PACKED_FORM_H

#include "ir/ir.h"
#include "rt/rt_blocks.h"

/* RT_FORMAT_* of a dtype; RT_FORMATS: it has no packed form. */
uint32_t gen_packed_format(ir_dtype dtype);

/* 0: no packed form; else weights of equal kinds may be one product's. */
uint32_t gen_packed_kind(ir_dtype dtype);

/* The same of what bodies for experts take, or of what those for matrices do: not MXFP4. */
uint32_t gen_packed_kind_of(ir_dtype dtype, bool of_experts);

/* The form in which one product holds weights of these dtypes, and what is taken off its integers;
 * RT_BLOCKS_NONE: some has no packed form, or two are not of one kind. */
uint32_t gen_packed_form(const ir_dtype *dtypes, uint32_t n, int *zero);

#endif
