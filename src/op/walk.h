/* walk.h - how reference code goes over a box: an odometer over all axes but the last, and runs
 * along the last axis of operands with any strides; loads and stores of any dtype.
 *
 * The pattern of a reference, with rows of n entries:
 *
 *   memcpy(at, box->lo, sizeof at);
 *   do
 *       work on the row at walk_offset(x, at), walk_offset(y, at);
 *   while (walk_next(box, rank - 1, at));
 *
 * Offsets and strides are in elements, not bytes.  Used by nearly every reference and by many
 * bodies of the CPU.
 */
#ifndef OP_WALK_H
#define OP_WALK_H

#include "base/num.h"
#include "ir/op.h"

/* Advance `at` over the first `axes` axes of the box, the last of them fastest.  Start at
 * box->lo; false after the end, when `at` is box->lo again. */
static inline bool walk_next(const ir_box *box, uint32_t axes, int64_t *at)
{
    for (uint32_t i = axes; i-- > 0;) {
        if (++at[i] < box->hi[i])
            return true;
        at[i] = box->lo[i];
    }
    return false;
}

/* The offset of the entry `at` of a tensor. */
static inline int64_t walk_offset(const op_view *v, const int64_t *at)
{
    int64_t offset = 0;
    for (uint32_t i = 0; i < v->rank; i++)
        offset += at[i] * v->stride[i];
    return offset;
}

/* The stride along an axis of a result of rank `rank` that v is broadcast to: 0 where v repeats. */
static inline int64_t walk_stride(const op_view *v, uint32_t rank, uint32_t axis)
{
    uint32_t skipped = rank - v->rank;
    return axis < skipped || v->dims[axis - skipped] == 1 ? 0 : v->stride[axis - skipped];
}

/* The offset of what entry `at` of a result of rank `rank` takes from v, which is broadcast to
 * it. */
static inline int64_t walk_broadcast(const op_view *v, uint32_t rank, const int64_t *at)
{
    int64_t offset = 0;
    for (uint32_t i = 0; i < rank; i++)
        offset += at[i] * walk_stride(v, rank, i);
    return offset;
}

/* Load n entries along the last axis, from `first` on, as f32.  offset: of entry 0 of the row. */
static inline void walk_load_row(const op_view *v, int64_t offset, int64_t first, int64_t n,
                                 float *to)
{
    int64_t stride = v->rank ? v->stride[v->rank - 1] : 1;
    if (stride == 1) {
        op_load_row(v, offset, first, n, to);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        to[i] = op_load(v, offset + (first + i) * stride);
}

/* The inverse of walk_load_row; each element is rounded once, to nearest even. */
static inline void walk_store_row(const op_view *v, int64_t offset, int64_t first, int64_t n,
                                  const float *from)
{
    int64_t stride = v->rank ? v->stride[v->rank - 1] : 1;
    if (stride == 1 && v->dtype == IR_F32) {
        memcpy((float *)v->data + offset + first, from, (size_t)n * sizeof *from);
        return;
    }
    if (stride == 1 && v->dtype == IR_BF16) {
        for (int64_t i = 0; i < n; i++)
            ((bf16 *)v->data)[offset + first + i] = num_to_bf16(from[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        op_store(v, offset + (first + i) * stride, from[i]);
}

/* Copy n entries of the same dtype bit for bit; rows of blocks have stride 1 and whole blocks.
 * Strides may be negative or 0 in `from`. */
static inline void walk_copy(const op_view *to, int64_t to_offset, int64_t to_stride,
                             const op_view *from, int64_t from_offset, int64_t from_stride,
                             int64_t n)
{
    size_t size = ir_dtype_table[to->dtype].block_bytes;
    bool blocks = ir_dtype_table[to->dtype].block_elements > 1;
    char *d = (char *)to->data + ir_row_bytes(to->dtype, to_offset);
    const char *s = (const char *)from->data + ir_row_bytes(to->dtype, from_offset);
    if (blocks || (to_stride == 1 && from_stride == 1)) {
        memcpy(d, s, (size_t)ir_row_bytes(to->dtype, n));
        return;
    }
    if (size == 4)
        for (int64_t i = 0; i < n; i++)
            ((uint32_t *)d)[i * to_stride] = ((const uint32_t *)s)[i * from_stride];
    else if (size == 2)
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)d)[i * to_stride] = ((const uint16_t *)s)[i * from_stride];
    else if (size == 8)
        for (int64_t i = 0; i < n; i++)
            ((uint64_t *)d)[i * to_stride] = ((const uint64_t *)s)[i * from_stride];
    else
        for (int64_t i = 0; i < n; i++)
            d[i * to_stride] = s[i * from_stride];
}

/* An entry of a tensor of integers or bool; a bool is 0 or 1. */
static inline int64_t walk_load_int(const op_view *v, int64_t offset)
{
    switch (v->dtype) {
    case IR_I32:
        return ((const int32_t *)v->data)[offset];
    case IR_I64:
        return ((const int64_t *)v->data)[offset];
    case IR_I16:
        return ((const int16_t *)v->data)[offset];
    case IR_I8:
        return ((const int8_t *)v->data)[offset];
    case IR_U8:
        return ((const uint8_t *)v->data)[offset];
    default:
        return ((const uint8_t *)v->data)[offset] != 0;
    }
}

/* Dtypes whose values are whole numbers, on which arithmetic is exact modulo their width. */
static inline bool walk_is_exact(ir_dtype dtype)
{
    return dtype == IR_BOOL || dtype == IR_I64 || dtype == IR_I32 || dtype == IR_I16 ||
           dtype == IR_I8 || dtype == IR_U8;
}

/* An entry of any plain dtype as double; exact, except for integers beyond 2^53. */
static inline double walk_load_double(const op_view *v, int64_t offset)
{
    if (v->dtype == IR_F64)
        return ((const double *)v->data)[offset];
    return walk_is_exact(v->dtype) ? (double)walk_load_int(v, offset) : (double)op_load(v, offset);
}

/* Store an integer as any plain dtype: integers take its low bits, bool "not zero", floats round
 * it. */
static inline void walk_store_int(const op_view *v, int64_t offset, int64_t value)
{
    switch (v->dtype) {
    case IR_I32:
        ((uint32_t *)v->data)[offset] = (uint32_t)(uint64_t)value;
        break;
    case IR_I64:
        ((int64_t *)v->data)[offset] = value;
        break;
    case IR_I16:
        ((uint16_t *)v->data)[offset] = (uint16_t)(uint64_t)value;
        break;
    case IR_I8:
    case IR_U8:
        ((uint8_t *)v->data)[offset] = (uint8_t)(uint64_t)value;
        break;
    case IR_BOOL:
        ((uint8_t *)v->data)[offset] = value != 0;
        break;
    case IR_F64:
        ((double *)v->data)[offset] = (double)value;
        break;
    default:
        op_store(v, offset, (float)value);
    }
}

/* Entries of the last axis of a box of this rank; 1 for a scalar. */
static inline int64_t walk_run(const ir_box *box, uint32_t rank)
{
    return rank ? box->hi[rank - 1] - box->lo[rank - 1] : 1;
}

/* The stride of the last axis of a view; 1 for a scalar, so that callers need no special case. */
static inline int64_t walk_step(const op_view *v)
{
    return v->rank ? v->stride[v->rank - 1] : 1;
}

/* The whole part of x, limited to 64 bits; NaN is 0.  The plain conversion would be undefined
 * there. */
static inline int64_t walk_truncate(double x)
{
    if (!(x == x))
        return 0;
    if (x >= 0x1p63)
        return INT64_MAX;
    return x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

/* Store a double as any plain dtype: floats round it, integers take its whole part, limited to
 * their range. */
static inline void walk_store_double(const op_view *v, int64_t offset, double value)
{
    static const int64_t least[IR_DTYPES] = {
        [IR_I32] = INT32_MIN, [IR_I16] = INT16_MIN, [IR_I8] = INT8_MIN};
    static const int64_t most[IR_DTYPES] = {
        [IR_I32] = INT32_MAX, [IR_I16] = INT16_MAX, [IR_I8] = INT8_MAX, [IR_U8] = UINT8_MAX};
    if (v->dtype == IR_F64) {
        ((double *)v->data)[offset] = value;
    } else if (v->dtype == IR_I64) {
        ((int64_t *)v->data)[offset] = walk_truncate(value);
    } else if (v->dtype == IR_BOOL) {
        ((uint8_t *)v->data)[offset] = value != 0;
    } else if (walk_is_exact(v->dtype)) {
        walk_store_int(v, offset, op_clamp(walk_truncate(value), least[v->dtype], most[v->dtype]));
    } else {
        op_store(v, offset, (float)value);
    }
}

/* x after a round trip through a tensor of this dtype. */
static inline float walk_round(ir_dtype dtype, float x)
{
    float kept[1];
    op_view v = {.data = kept, .dtype = dtype};
    op_store(&v, 0, x);
    return op_load(&v, 0);
}

/* Load n entries of any plain dtype, `stride` apart, as double. */
static inline void walk_load_doubles(const op_view *v, int64_t offset, int64_t stride, int64_t n,
                                     double *to)
{
    if (v->dtype == IR_F32)
        for (int64_t i = 0; i < n; i++)
            to[i] = (double)((const float *)v->data)[offset + i * stride];
    else if (v->dtype == IR_BF16)
        for (int64_t i = 0; i < n; i++)
            to[i] = (double)num_from_bf16(((const bf16 *)v->data)[offset + i * stride]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = walk_load_double(v, offset + i * stride);
}

/* Load n entries of integers or bool, `stride` apart. */
static inline void walk_load_ints(const op_view *v, int64_t offset, int64_t stride, int64_t n,
                                  int64_t *to)
{
    if (v->dtype == IR_I64)
        for (int64_t i = 0; i < n; i++)
            to[i] = ((const int64_t *)v->data)[offset + i * stride];
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = walk_load_int(v, offset + i * stride);
}

#endif
