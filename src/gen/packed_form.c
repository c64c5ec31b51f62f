/* packed_form.c - see packed_form.h. */
#include "gen/packed_form.h"

/* Formats of one product: with scales of 32 columns; with those, and scales of 256; MXFP4. */
enum { KIND_BLOCKS = 1, KIND_K, KIND_MXFP4 };

uint32_t gen_packed_format(ir_dtype dtype)
{
    static const uint32_t formats[IR_DTYPES] = {
        [IR_Q4_0] = 1 + RT_FORMAT_Q4_0,  [IR_Q4_1] = 1 + RT_FORMAT_Q4_1,
        [IR_Q5_0] = 1 + RT_FORMAT_Q5_0,  [IR_Q5_1] = 1 + RT_FORMAT_Q5_1,
        [IR_Q8_0] = 1 + RT_FORMAT_Q8_0,  [IR_Q4_K] = 1 + RT_FORMAT_Q4_K,
        [IR_Q5_K] = 1 + RT_FORMAT_Q5_K,  [IR_Q6_K] = 1 + RT_FORMAT_Q6_K,
        [IR_MXFP4] = 1 + RT_FORMAT_MXFP4};
    return formats[dtype] ? formats[dtype] - 1 : (uint32_t)RT_FORMATS;
}

uint32_t gen_packed_kind(ir_dtype dtype)
{
    const uint32_t format = gen_packed_format(dtype);
    if (format == RT_FORMATS)
        return 0;
    if (format == RT_FORMAT_MXFP4)
        return KIND_MXFP4;
    return rt_format_is_k(format) ? KIND_K : KIND_BLOCKS;
}

uint32_t gen_packed_kind_of(ir_dtype dtype, bool of_experts)
{
    const uint32_t kind = gen_packed_kind(dtype);
    return kind == KIND_MXFP4 && !of_experts ? 0 : kind;
}

/* Integers of at most 4 bits that are taken off the same number stay nibbles; all others become
 * bytes, which hold every format of the kind. */
uint32_t gen_packed_form(const ir_dtype *dtypes, uint32_t n, int *zero)
{
    const uint32_t kind = gen_packed_kind(dtypes[0]);
    bool nibbles = true;
    *zero = 0;
    if (!kind)
        return RT_BLOCKS_NONE;
    *zero = rt_format_zero(gen_packed_format(dtypes[0]));
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t format = gen_packed_format(dtypes[i]);
        if (gen_packed_kind(dtypes[i]) != kind)
            return RT_BLOCKS_NONE;
        nibbles =
            nibbles && rt_format_zero(format) == *zero &&
            (format == RT_FORMAT_Q4_0 || format == RT_FORMAT_Q4_1 || format == RT_FORMAT_Q4_K);
    }
    if (kind == KIND_MXFP4)
        return RT_BLOCKS_MX4;
    if (nibbles)
        return kind == KIND_K ? RT_BLOCKS_4K : RT_BLOCKS_4;
    const uint32_t form = kind == KIND_K ? RT_BLOCKS_8K : RT_BLOCKS_8;
    *zero = RT_BYTES_ZERO(form);
    return form;
}
