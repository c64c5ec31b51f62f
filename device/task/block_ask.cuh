/* block_ask.cuh - an operand's entries for a fragment of a block program, requested before they are
 * needed: the mask of attention.
 *
 * A trip to L2 takes some 700 cycles.  Entries that are asked for in the iteration before are under
 * way while its tiles are, and stay the bits that memory has until block_asked makes them numbers.
 * All of a lane's entries of a row are constants away from its first.
 *
 * block.cuh includes this file; src/gen/block_print_loads.c prints the call.
 */
#ifndef TASK_BLOCK_ASK_CUH
#define TASK_BLOCK_ASK_CUH

/* How much of a tile's extent is left. */
MPK_FN int block_left(rt_i64 left, int extent)
{
    return left < extent ? (int)left : extent;
}
/* An entry as memory has it, of a dtype of at most four bytes. */
MPK_FN rt_u32 block_bits_at(int dtype, const char *g)
{
    const int bytes = mpk_dtype_bytes(dtype);
    if (bytes == 4)
        return *(const rt_u32 *)g;
    return bytes == 2 ? *(const rt_u16 *)g : *(const unsigned char *)g;
}
/* The number that block_ask has brought the bits of. */
MPK_FN float block_asked(int dtype, rt_u32 bits)
{
    switch (dtype) {
    case MPK_F16:
        return mpk_from_f16((rt_u16)bits);
    case MPK_BF16:
        return mpk_from_bf16((rt_u16)bits);
    case MPK_BOOL:
        return bits ? 1.0f : 0.0f;
    default:
        return __uint_as_float(bits);
    }
}

/* g: the tile's first entry; down, along: from a row and a column to the next; *_left: of the box,
 * from there on.  Columns beyond the box are 0; rows beyond it are its last, whose results no one
 * stores: a comparison less for each entry. */
template <int A, int B>
MPK_FN void block_ask(rt_u32 (&r)[A][B][4], const block_warps &w, bool shared_out, int rows,
                      int columns, int dtype, const char *g, rt_i64 down, rt_i64 along,
                      rt_i64 rows_left, rt_i64 columns_left)
{
    const int bytes = mpk_dtype_bytes(dtype);
    const int column = shared_out ? block_own_column(w, 0, 0) : block_column(w, columns, 0, 0);
    const int right = block_left(columns_left, columns) - column;
    const int last = block_left(rows_left, rows) - 1;
    const int apart = shared_out ? w.along[2] * 16 : 16; /* from two fields to the next two */
    g += column * along * bytes;
#pragma unroll
    for (int i = 0; i < A * 2; i++) {
        const int row = block_row(w, rows, i / 2, i % 2 * 2);
        const char *g_row = mpk_global_kept(g + (row < last ? row : last) * down * bytes);
#pragma unroll
        for (int j = 0; j < B * 2; j++) {
            rt_u32 &to = r[i / 2][j / 2][i % 2 * 2 + j % 2];
            if (i && !down) { /* one row for all */
                to = r[0][j / 2][j % 2];
                continue;
            }
            const int n = j / 4 * apart + j / 2 % 2 * BLOCK_MMA_COLUMNS + j % 2;
            to = n < right ? block_bits_at(dtype, g_row + n * along * bytes) : 0;
        }
    }
}

#endif
