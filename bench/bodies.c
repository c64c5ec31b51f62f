/* bodies.c - how fast the fast bodies are beside what the machine allows.
 *
 *     bodies [dtype] [tokens] [threads] [f32|i8] [hidden heads_columns feed layers vocabulary]
 *
 * Runs the linear operators of one step of a model (SmolLM2-135M unless said otherwise), layer by
 * layer with a barrier after each operator, every thread its share of the columns, weights of every
 * layer in memory of their own; prints the time of a step beside two bounds measured in the same
 * run: reading the same weights once, and multiplying registers as fp32.  MPK_ISA limits the code.
 */
#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/thread.h"
#include "cpu/body.h"
#include "cpu/cpu.h"
#include "ir/blocks.h"

enum { MAX_OPS = 1024, MAX_THREADS = 64 };

static op_call calls[MAX_OPS];
static const cpu_body *bodies[MAX_OPS];
static op_def linear_def = {.name = "linear"};
static ir_op linear_op = {.def = &linear_def};
static int n_ops, n_threads = 2;
static int64_t tokens = 1, weight_bytes;
static double multiply_adds;
static ir_attribute attributes[2][3]; /* epsilon, glu, activations */
static _Atomic unsigned arrived;
static _Atomic int round_number;
static enum { RUN, READ, FMA, STOP } mode;
static volatile float sink;

static void *memory(size_t bytes)
{
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p)
        exit(1);
    memset(p, 0, bytes);
    return p;
}

static op_view view(void *data, ir_dtype dtype, int64_t rows, int64_t columns)
{
    return (op_view){
        .data = data, .dtype = dtype, .rank = 2, .dims = {rows, columns}, .stride = {columns, 1}};
}

static op_view random_view(ir_dtype dtype, int64_t rows, int64_t columns, uint64_t seed)
{
    size_t bytes = (size_t)(rows * columns / ir_dtype_table[dtype].block_elements *
                            ir_dtype_table[dtype].block_bytes);
    op_view v = view(memory(bytes), dtype, rows, columns);
    bool blocks = blocks_fill_random(dtype, rows * columns, seed, v.data);
    for (int64_t i = 0; !blocks && i < rows * columns; i++) {
        if (dtype == IR_F32)
            ((float *)v.data)[i] = rng_normal(seed, (uint64_t)i);
        else
            ((uint16_t *)v.data)[i] =
                (uint16_t)((dtype == IR_BF16 ? 0x3f80 : 0x3c00) ^ (i * 37 & 0x807f));
    }
    return v;
}

/* y = linear(x, weights ...): one operator of the step. */
static op_view add_linear(op_view x, ir_dtype dtype, int64_t columns, bool glu, const op_view *norm,
                          const op_view *residual)
{
    op_call *c = &calls[n_ops];
    c->op = &linear_op;
    c->attributes = attributes[glu];
    c->n_in = 9;
    c->n_out = 1;
    c->in[0] = x;
    for (int i = 0; i < (glu ? 2 : 1); i++)
        c->in[1 + i] = random_view(dtype, columns, x.dims[1], (uint64_t)n_ops);
    if (norm)
        c->in[7] = *norm;
    if (residual)
        c->in[8] = *residual;
    c->out[0] = view(memory((size_t)(x.dims[0] * columns) * 4), IR_F32, x.dims[0], columns);
    double weights = (double)(columns * x.dims[1] * (glu ? 2 : 1));
    weight_bytes += (int64_t)(weights / ir_dtype_table[dtype].block_elements *
                              ir_dtype_table[dtype].block_bytes);
    multiply_adds += weights * (double)x.dims[0];
    bodies[n_ops] = cpu_body_choose(c, cpu_features());
    if (!bodies[n_ops]) {
        fprintf(stderr, "no fast body for %s\n", ir_dtype_table[dtype].name);
        exit(1);
    }
    n_ops++;
    return c->out[0];
}

static void barrier(unsigned *local)
{
    *local += (unsigned)n_threads;
    atomic_fetch_add(&arrived, 1);
    while ((int)(atomic_load(&arrived) - *local) < 0)
        _mm_pause();
}

static void run_op(int i, int me, void *scratch)
{
    int64_t f = calls[i].out[0].dims[1], t = calls[i].out[0].dims[0];
    int64_t lo = (f * me / n_threads + 7) / 8 * 8, hi = (f * (me + 1) / n_threads + 7) / 8 * 8;
    ir_box box = {.lo = {0, lo}, .hi = {t, hi < f ? hi : f}};
    bodies[i]->run(&calls[i], &box, scratch);
}

__attribute__((target("avx2"))) static void read_op(int i, int me)
{
    __m256i sum = _mm256_setzero_si256();
    for (int w = 1; w <= 2; w++) {
        const op_view *v = &calls[i].in[w];
        if (!v->data)
            continue;
        const ir_dtype_info *info = &ir_dtype_table[v->dtype];
        int64_t bytes = v->dims[0] * v->dims[1] / info->block_elements * info->block_bytes;
        const char *p = (const char *)v->data + bytes * me / n_threads,
                   *end = (const char *)v->data + bytes * (me + 1) / n_threads;
        for (; p + 128 <= end; p += 128)
            for (int l = 0; l < 4; l++)
                sum = _mm256_xor_si256(
                    sum, _mm256_loadu_si256((const __m256i *)(const void *)(p + 32 * l)));
    }
    sink += (float)_mm256_extract_epi32(sum, 0);
}

__attribute__((target("avx512f"))) static void multiply_registers(void)
{
    __m512 a[12], x = _mm512_set1_ps(1.0f), y = _mm512_set1_ps(1e-9f);
    for (int i = 0; i < 12; i++)
        a[i] = _mm512_setzero_ps();
    for (int n = 0; n < 1000000; n++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            a[i] = _mm512_fmadd_ps(x, y, a[i]);
    for (int i = 1; i < 12; i++)
        a[0] = _mm512_add_ps(a[0], a[i]);
    sink += _mm512_reduce_add_ps(a[0]);
}

/* This thread's share of a round. */
static void run_round(int me, void *scratch, unsigned *local)
{
    if (mode == FMA)
        multiply_registers();
    for (int i = 0; (mode == RUN || mode == READ) && i < n_ops; i++) {
        if (mode == READ) {
            read_op(i, me);
            continue;
        }
        run_op(i, me, scratch);
        barrier(local);
    }
    barrier(local);
}

static void *work(void *argument)
{
    int me = (int)(intptr_t)argument;
    unsigned local = 0;
    void *scratch = memory(8 << 20);
    for (int seen = 0;; seen++) {
        while (atomic_load(&round_number) == seen)
            _mm_pause();
        if (mode == STOP)
            return 0;
        run_round(me, scratch, &local);
    }
}

/* The best of some rounds, seconds; the caller is worker 0. */
static double best(int rounds)
{
    static unsigned local;
    static void *scratch;
    double least = 1e9;
    if (!scratch)
        scratch = memory(8 << 20);
    for (int i = 0; i < rounds; i++) {
        uint64_t start = clock_ns();
        atomic_fetch_add(&round_number, 1);
        run_round(0, scratch, &local);
        double s = (double)(clock_ns() - start) * 1e-9;
        least = s < least ? s : least;
    }
    return least;
}

static int64_t argument(int n, char **v, int i, int64_t otherwise)
{
    return i < n ? atoll(v[i]) : otherwise;
}

int main(int n, char **v)
{
    ir_dtype dtype = IR_Q4_1;
    if (n > 1 && !ir_dtype_from_name(str_from(v[1]), &dtype))
        return 2;
    tokens = argument(n, v, 2, 1);
    n_threads = (int)argument(n, v, 3, 2);
    int64_t hidden = argument(n, v, 5, 576), qkv = argument(n, v, 6, 960),
            feed = argument(n, v, 7, 1536);
    int64_t layers = argument(n, v, 8, 30), vocabulary = argument(n, v, 9, 49152);
    attributes[0][0].f = attributes[1][0].f = 1e-5;
    attributes[0][1].s = STR("");
    attributes[1][1].s = STR("silu");
    attributes[0][2].s = attributes[1][2].s = str_from(n > 4 ? v[4] : "f32");
    op_view x = random_view(IR_F32, tokens, hidden, 1),
            norm = view(random_view(IR_F32, 1, hidden, 2).data, IR_F32, 1, hidden);
    norm.rank = 1, norm.dims[0] = hidden, norm.stride[0] = 1;
    op_view start = x;
    for (int64_t l = 0; l < layers && n_ops + 5 < MAX_OPS; l++) {
        op_view q = add_linear(x, dtype, qkv, false, &norm, 0);
        q.dims[1] = hidden;
        x = add_linear(q, dtype, hidden, false, 0, &start);
        op_view g = add_linear(x, dtype, feed, true, &norm, 0);
        x = add_linear(g, dtype, hidden, false, 0, &start);
    }
    if (tokens < 64)
        add_linear(x, dtype == IR_Q4_1 ? IR_Q8_0 : dtype, vocabulary, false, &norm, 0);

    pthread_t thread[MAX_THREADS];
    for (int i = 1; i < n_threads; i++)
        pthread_create(&thread[i], 0, work, (void *)(intptr_t)i);
    mode = FMA;
    best(1);
    double fma = 12e6 * 16 * n_threads / best(5);
    mode = READ;
    double read = best(10);
    mode = RUN;
    best(2);
    double run = best(tokens > 16 ? 8 : layers < 4 ? 1000 : 150);
    mode = STOP;
    atomic_fetch_add(&round_number, 1);
    for (int i = 1; i < n_threads; i++)
        pthread_join(thread[i], 0);
    double bound = multiply_adds / fma > read ? multiply_adds / fma : read;
    printf("\n%s, %lld tokens, %d threads: %.3f ms a step (%.0f tokens/s); read %.3f ms (%.1f "
           "GB/s), multiply %.3f ms "
           "(%.0f GFLOP/s): %.0f %% of the bound\n",
           ir_dtype_table[dtype].name, (long long)tokens, n_threads, run * 1e3,
           (double)tokens / run, read * 1e3, (double)weight_bytes / read * 1e-9,
           multiply_adds / fma * 1e3, 2e-9 * fma, 100 * bound / run);
    return 0;
}
