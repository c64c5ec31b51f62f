/* emulated_groups.cuh - products of warpgroups on the host, as ptx/matrix.cuh says under MPK_WGMMA.
 *
 * A product is made when all 128 threads of the warpgroup have asked for it, so waiting for it and
 * fences are nothing here.  Matrices are read as their descriptors say, swizzle included.
 * Relies on emulated_warps.cuh, which ends with it.
 */
#ifndef EMULATED_GROUPS_CUH
#define EMULATED_GROUPS_CUH

/* A warpgroup's product. */
struct emulated_group {
    emulated_meeting meeting;
    float *sums[128];
    const rt_u32 *own[128]; /* a in registers; NULL: in shared memory */
    rt_u64 a, b;
    bool is_bf16;       /* else f16 */
    bool is_transposed; /* rows of b are entries of the sum */
};
static emulated_group emulated_groups[EMULATED_BODIES / 128];

static inline rt_u64 ptx_matrix(const void *first, rt_u32 group_bytes)
{
    if (ptx_shared(first) % 32)
        abort();
    return (rt_u64)(ptx_shared(first) >> 4) | (rt_u64)(group_bytes >> 4) << 32;
}
static inline rt_u64 ptx_matrix_of_rows(const void *first)
{
    if (ptx_shared(first) % 1024)
        abort();
    return (rt_u64)(ptx_shared(first) >> 4) | (rt_u64)(1024 >> 4) << 32 | (rt_u64)1 << 62;
}
static inline rt_u64 ptx_matrix_of_values(const void *first)
{
    if (ptx_shared(first) % 256)
        abort();
    return (rt_u64)(ptx_shared(first) >> 4) | (rt_u64)(256 >> 4) << 32 | (rt_u64)2 << 62;
}
static inline void ptx_group_begin(void) {}
static inline void ptx_group_commit(void) {}
template <int N> static inline void ptx_group_wait(void) {}
static inline rt_u64 ptx_words(rt_u32 low, rt_u32 high)
{
    return (rt_u64)high << 32 | low;
}
static inline void ptx_hold(float &x)
{
    (void)x;
}

/* The first n elements of a row of a matrix in the 64-byte swizzle, or of one in rows of 128 or of
 * 32 bytes, to places so far apart. */
static inline void emulated_row(bool is_bf16, rt_u64 matrix, int row, int n, float *to, int apart)
{
    static const rt_u32 row_bytes[3] = {64, 128, 32};
    /* The rings of tests may be larger than what 14 bits, in units of 16 bytes, can name. */
    const rt_u32 width = row_bytes[matrix >> 62],
                 first = (rt_u32)matrix * 16 + row / 8 * ((rt_u32)(matrix >> 32 & 0x3fff) * 16) +
                         row % 8 * width;
    for (int k = 0; k < n; k++) {
        const rt_u32 at = first + k * 2;
        rt_u16 bits;
        memcpy(&bits, mpk_s + (at ^ (at >> 7 & (width / 16 - 1)) << 4), 2);
        to[k * apart] = emulated_half(is_bf16, bits);
    }
}
static inline float emulated_own_element(const emulated_group *g, int row, int k)
{
    const rt_u32 word = g->own[row / 16 * 32 + row % 8 * 4 + k % 8 / 2][row % 16 / 8 + k / 8 * 2];
    return emulated_half(g->is_bf16, (rt_u16)(k % 2 ? word >> 16 : word));
}
template <int N> EMULATED_HOT static void emulated_group_multiply(void)
{
    const emulated_group *g = &emulated_groups[emulated_now->number / 128];
    float a[64][16];
    emulated_four b[16][N / 4], sum[64][N / 4];
    for (int m = 0; m < 64; m++)
        if (!g->own[0])
            emulated_row(g->is_bf16, g->a, m, 16, a[m], 1);
        else
            for (int k = 0; k < 16; k++)
                a[m][k] = emulated_own_element(g, m, k);
    for (int n = 0; n < N && !g->is_transposed; n++)
        emulated_row(g->is_bf16, g->b, n, 16, (float *)b + n, N);
    for (int k = 0; k < 16 && g->is_transposed; k++)
        emulated_row(g->is_bf16, g->b, k, N, (float *)b + k * N, 1);
    memset(sum, 0, sizeof sum);
    emulated_product<N>(a, b, 64, sum);
    for (int i = 0; i < 128; i++)
        for (int e = 0; e < N / 2; e++) {
            const int row = i / 32 * 16 + i % 32 / 4 + e % 4 / 2 * 8;
            g->sums[i][e] += ((const float *)sum[row])[e / 4 * 8 + i % 4 * 2 + e % 2];
        }
}
template <int N>
static inline void emulated_group_product(bool is_bf16, float *c, rt_u64 a, rt_u64 b)
{
    emulated_group *g = &emulated_groups[emulated_now->number / 128];
    g->sums[emulated_now->number % 128] = c;
    g->own[emulated_now->number % 128] = 0;
    g->is_bf16 = is_bf16;
    g->is_transposed = false;
    g->a = a;
    g->b = b;
    emulated_meet(&g->meeting, 128, emulated_group_multiply<N>);
}
template <int N>
static inline void emulated_group_own_product(bool is_bf16, bool is_transposed, float *c,
                                              const rt_u32 *a, rt_u64 b)
{
    emulated_group *g = &emulated_groups[emulated_now->number / 128];
    g->sums[emulated_now->number % 128] = c;
    g->own[emulated_now->number % 128] = a;
    g->is_bf16 = is_bf16;
    g->is_transposed = is_transposed;
    g->b = b;
    emulated_meet(&g->meeting, 128, emulated_group_multiply<N>);
}
static inline void ptx_group_multiply_own_64(float *c, const rt_u32 *a, rt_u64 b)
{
    emulated_group_own_product<64>(true, false, c, a, b);
}
static inline void ptx_group_multiply_own_128(float *c, const rt_u32 *a, rt_u64 b)
{
    emulated_group_own_product<128>(true, false, c, a, b);
}
#define EMULATED_KEPT(columns)                                                                     \
    static inline void ptx_group_multiply_kept_bf16_##columns(float *c, const rt_u32 *a, rt_u64 b, \
                                                              bool more)                           \
    {                                                                                              \
        for (int i = 0; i < columns / 2 && !more; i++)                                             \
            c[i] = 0;                                                                              \
        emulated_group_own_product<columns>(true, true, c, a, b);                                  \
    }                                                                                              \
    static inline void ptx_group_multiply_kept_f16_##columns(float *c, const rt_u32 *a, rt_u64 b,  \
                                                             bool more)                            \
    {                                                                                              \
        for (int i = 0; i < columns / 2 && !more; i++)                                             \
            c[i] = 0;                                                                              \
        emulated_group_own_product<columns>(false, true, c, a, b);                                 \
    }
EMULATED_KEPT(32)
EMULATED_KEPT(40)
EMULATED_KEPT(48)
EMULATED_KEPT(56)
EMULATED_KEPT(64)
static inline void ptx_group_multiply_bf16_64(float *c, rt_u64 a, rt_u64 b)
{
    emulated_group_product<64>(true, c, a, b);
}
static inline void ptx_group_multiply_f16_64(float *c, rt_u64 a, rt_u64 b)
{
    emulated_group_product<64>(false, c, a, b);
}
static inline void ptx_group_multiply_bf16_96(float *c, rt_u64 a, rt_u64 b)
{
    emulated_group_product<96>(true, c, a, b);
}
static inline void ptx_group_multiply_f16_96(float *c, rt_u64 a, rt_u64 b)
{
    emulated_group_product<96>(false, c, a, b);
}
static inline void ptx_group_multiply_bf16_128(float *c, rt_u64 a, rt_u64 b)
{
    emulated_group_product<128>(true, c, a, b);
}
static inline void ptx_group_multiply_f16_128(float *c, rt_u64 a, rt_u64 b)
{
    emulated_group_product<128>(false, c, a, b);
}
static inline void ptx_group_multiply_bf16_192(float *c, rt_u64 a, rt_u64 b)
{
    emulated_group_product<192>(true, c, a, b);
}
static inline void ptx_group_multiply_f16_192(float *c, rt_u64 a, rt_u64 b)
{
    emulated_group_product<192>(false, c, a, b);
}
static inline void ptx_group_multiply_bf16_256(float *c, rt_u64 a, rt_u64 b)
{
    emulated_group_product<256>(true, c, a, b);
}
static inline void ptx_group_multiply_f16_256(float *c, rt_u64 a, rt_u64 b)
{
    emulated_group_product<256>(false, c, a, b);
}

#endif
