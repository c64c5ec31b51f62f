/* emulated_warps.cuh - what stands before all generated bodies when the host's C++ compiler
 * compiles them: warps that run in turns, and every function of device/ptx in plain C.  For
 * src/gen/body_warps_test.c and src/gen/body_parts_test.c.
 *
 * A thread of the worker is a stack of its own.  One runs at a time, until it waits: for its warp,
 * for a barrier, for a copy.  Which warp goes on is chosen at random, and a copy arrives at once or
 * some time later, so that a body which forgets to wait meets what was there before.  What cannot
 * be seen here: the order of memory between threads that run at the same time, and the proxies of
 * asynchronous copies.
 *
 * Products are done by the last lane that comes, for all.
 */
#ifndef EMULATED_WARPS_CUH
#define EMULATED_WARPS_CUH

#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define MPK_EMULATED 1
#define __device__
#define __constant__
#define __shared__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))

#include "tile/task.cuh"

/* The files that these functions stand for. */
#define PTX_PTX_CUH
#define PTX_MATRIX_CUH

/* ---- threads ---- */

enum {
    EMULATED_BODIES = 256,                 /* threads that call bodies */
    EMULATED_CLERK = EMULATED_BODIES + 32, /* after the loader's warp */
    EMULATED_THREADS = EMULATED_CLERK + 1,
    EMULATED_WARPS = EMULATED_THREADS / 32 + 1,
    EMULATED_STACK = 160 << 10,
    EMULATED_APART = 7 * 64, /* bytes between the first frames of neighbours */
    EMULATED_COPIES = 256,   /* of a thread, or bulk copies, under way */
    EMULATED_PATIENCE = 1 << 16,
    EMULATED_NAPS = 1 << 24,
};

/* What stands in an rt_map here: rows of width_bytes, stride_bytes apart; boxes of element_bytes
 * wide elements.  Of images, whose channels are rows' columns: places of a line and lines, images
 * (0: a matrix), at which of the places windows begin, and the steps between them. */
struct emulated_map {
    const char *at;
    rt_u64 width_bytes, n_rows, stride_bytes, element_bytes, box_bytes, box_rows, swizzled;
    rt_u64 inside; /* 1: no box may have rows that are not there */
    int in[2], n, first[2], end[2], step[2];
};

struct emulated_copy {
    void *to;
    const void *from; /* NULL: zeros */
    rt_u32 n_bytes, group;
    rt_u64 *barrier;
    const emulated_map *map; /* NULL, or `from` is not used: the box at (row, column) */
    int column, row;
    int begin[2], image, within[2]; /* of images: the first window, and which entry of windows */
};

typedef void *emulated_place[5]; /* as __builtin_setjmp wants it */

struct emulated_thread {
    ucontext_t start;
    emulated_place at;
    void *stack;
    int number, begun, done;
    const rt_u32 *waits; /* NULL, or it waits for *waits to change from `round` */
    rt_u32 round;
    emulated_copy copies[EMULATED_COPIES];
    rt_u32 n_copies, group;
    rt_u32 n_pieces; /* of its own under way */
    rt_u64 forms;    /* of the code for many tokens, what its task may run */
};

/* Threads that meet: `round` changes when the last has come. */
struct emulated_meeting {
    rt_u32 n, round;
};

struct emulated_warp {
    emulated_meeting meeting;
    rt_u64 value[2][32]; /* what the lanes show each other, of odd and of even meetings */
    float *sums[32];
    rt_u32 words[32][6];
};

static emulated_thread emulated_threads[EMULATED_THREADS], *emulated_now;
static emulated_place emulated_turns;
static emulated_warp emulated_warps[EMULATED_WARPS];
static emulated_meeting emulated_barriers[16]; /* bar.sync */
/* In place of constants of the source: what the task's own record says. */
static rt_u32 emulated_one_wide, emulated_centred;
#define MPK_FORMS (emulated_now->forms)
/* As in a kernel of calls, or in one that serves (linear_box.cuh). */
#define BOX_HALVES MPK_HALVES_F16
#define MPK_ONE_WIDE emulated_one_wide
#define MPK_CENTRED emulated_centred
#define MPK_TERMS 1
static emulated_copy emulated_bulk[EMULATED_COPIES];
static rt_u32 emulated_n_bulk, emulated_idle; /* turns since anything happened */
static rt_u64 emulated_state;

static inline rt_u32 emulated_random(rt_u32 limit)
{
    emulated_state ^= emulated_state << 13;
    emulated_state ^= emulated_state >> 7;
    emulated_state ^= emulated_state << 17;
    return (rt_u32)(emulated_state >> 33) % limit;
}

/* What others have done meanwhile is read again: the compiler sees no call of anything here. */
static inline void emulated_forget(void)
{
    __asm__ volatile("" ::: "memory");
}

/* The compiler's own jumps: libc's _longjmp mangles pointers, takes a change of stacks for an error
 * under _FORTIFY_SOURCE, and makes a system call at each jump under the address sanitizer.  A
 * function that has a place to come back to must not jump itself. */
static __noinline__ void emulated_leave(void)
{
    __builtin_longjmp(emulated_turns, 1);
}

static __noinline__ void emulated_yield(void)
{
    emulated_forget();
    if (!__builtin_setjmp(emulated_now->at))
        emulated_leave();
    emulated_forget();
}

static __noinline__ void emulated_go_on(emulated_thread *t)
{
    if (t->begun)
        __builtin_longjmp(t->at, 1);
    t->begun = 1;
    setcontext(&t->start);
}

static __noinline__ void emulated_resume(emulated_thread *t)
{
    emulated_now = t;
    emulated_forget();
    if (!__builtin_setjmp(emulated_turns))
        emulated_go_on(t);
    emulated_forget();
}

/* The last of n threads does `work` for all. */
static void emulated_meet(emulated_meeting *m, rt_u32 n, void (*work)(void))
{
    const rt_u32 round = m->round;
    if (++m->n == n) {
        if (work)
            work();
        m->n = 0;
        m->round++;
        emulated_idle = 0;
        return;
    }
    emulated_now->waits = &m->round;
    emulated_now->round = round;
    emulated_yield();
    emulated_now->waits = 0;
}

struct emulated_index {
    rt_u32 x;
};
#define threadIdx (emulated_index{(rt_u32)emulated_now->number})

static inline int mpk_thread(void)
{
    return emulated_now->number;
}
static inline int mpk_kept_thread(void)
{
    return mpk_thread();
}
static inline void mpk_sync(void)
{
    emulated_meet(&emulated_barriers[1], EMULATED_BODIES, 0);
}

/* ---- lanes of a warp ---- */

static inline emulated_warp *emulated_own_warp(void)
{
    return &emulated_warps[emulated_now->number / 32];
}
static inline int emulated_lane(void)
{
    return emulated_now->number % 32;
}
static inline void __syncwarp(void)
{
    if (emulated_now->number < EMULATED_CLERK)
        emulated_meet(&emulated_own_warp()->meeting, 32, 0);
}

/* What every lane shows, until the lane's next call but one: nobody can be further ahead. */
static inline const rt_u64 *emulated_show(rt_u64 v)
{
    emulated_warp *w = emulated_own_warp();
    rt_u64 *shown = w->value[w->meeting.round % 2];
    shown[emulated_lane()] = v;
    emulated_meet(&w->meeting, 32, 0);
    return shown;
}
template <typename type> static inline type emulated_take(type v, int lane)
{
    rt_u64 bits = 0;
    memcpy(&bits, &v, sizeof v);
    const rt_u64 *shown = emulated_show(bits);
    if (lane >= 0 && lane < 32)
        memcpy(&v, &shown[lane], sizeof v);
    return v;
}
template <typename type> static inline type __shfl_sync(rt_u32, type v, int lane)
{
    return emulated_take(v, lane & 31);
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
template <typename type> static inline type __shfl_xor_sync(rt_u32, type v, int mask)
{
    return emulated_take(v, emulated_lane() ^ mask);
}
template <typename type> static inline type __shfl_up_sync(rt_u32, type v, int n)
{
    return emulated_take(v, emulated_lane() - n);
}
template <typename type> static inline type __shfl_down_sync(rt_u32, type v, int n)
{
    return emulated_take(v, emulated_lane() + n);
}
static inline rt_u32 __ballot_sync(rt_u32, bool says)
{
    const rt_u64 *shown = emulated_show(says);
    rt_u32 set = 0;
    for (int i = 0; i < 32; i++)
        set |= (rt_u32)shown[i] << i;
    return set;
}
static inline int __any_sync(rt_u32 lanes, bool says)
{
    return __ballot_sync(lanes, says) != 0;
}
static inline int __all_sync(rt_u32 lanes, bool says)
{
    return __ballot_sync(lanes, says) == 0xffffffffu;
}
static inline rt_u32 __reduce_max_sync(rt_u32, rt_u32 v)
{
    const rt_u64 *shown = emulated_show(v);
    for (int i = 0; i < 32; i++)
        v = (rt_u32)shown[i] > v ? (rt_u32)shown[i] : v;
    return v;
}
static inline rt_u32 __reduce_min_sync(rt_u32 lanes, rt_u32 v)
{
    return ~__reduce_max_sync(lanes, ~v);
}

static inline rt_u32 __match_any_sync(rt_u32, rt_u32 v)
{
    const rt_u64 *shown = emulated_show(v);
    rt_u32 set = 0;
    for (int i = 0; i < 32; i++)
        set |= (rt_u32)(shown[i] == v) << i;
    return set;
}

#include "tests/emulated_words.cuh"

/* ---- memory ---- */

extern __align__(1024) char mpk_s[];

struct __align__(16) mpk_words
{
    rt_u32 x, y, z, w;
};

static inline void ptx_keep_eight(float *v)
{
    (void)v;
}
static inline rt_u32 ptx_keep(rt_u32 v)
{
    return v;
}
/* The GPU faults on an address that is not a multiple of the size; so does this. */
template <int BYTES> static inline const void *emulated_aligned(const void *p)
{
    if ((uintptr_t)p % BYTES)
        abort();
    return p;
}
static inline rt_u32 ptx_shared(const void *p)
{
    return (rt_u32)((const char *)p - mpk_s);
}
static inline mpk_words ptx_load_words(const void *p)
{
    return *(const mpk_words *)emulated_aligned<16>(p);
}
static inline uint2 ptx_load_two_words(const void *p)
{
    return *(const uint2 *)p;
}
static inline void ptx_load_words_if(const void *p, bool wanted, mpk_words *v)
{
    if (wanted)
        *v = ptx_load_words(p);
}
static inline void ptx_store_shared_pair(float *to, float a, float b)
{
    emulated_aligned<8>(to);
    to[0] = a;
    to[1] = b;
}
static inline mpk_words ptx_load_shared_words(const void *p)
{
    return *(const mpk_words *)emulated_aligned<16>(p);
}
static inline rt_u32 ptx_load_word(const void *p)
{
    return *(const rt_u32 *)emulated_aligned<4>(p);
}
static inline mpk_words ptx_load_words_system(const void *p)
{
    return ptx_load_words(p);
}
static inline void ptx_store_word(void *p, rt_u32 v)
{
    *(rt_u32 *)emulated_aligned<4>(p) = v;
}
static inline void ptx_store_word_system(void *p, rt_u32 v)
{
    ptx_store_word(p, v);
}
static inline void ptx_store_two_words(void *p, rt_u32 a, rt_u32 b)
{
    *(uint2 *)emulated_aligned<8>(p) = {a, b};
}
static inline void ptx_store_sums(void *p, float a, float b)
{
    float *to = (float *)emulated_aligned<8>(p);
    to[0] = a;
    to[1] = b;
}
static inline void ptx_load_sums_if(const void *p, bool wanted, mpk_words *v)
{
    ptx_load_words_if(p, wanted, v);
}
static inline void ptx_store_words(void *p, const mpk_words &v)
{
    *(mpk_words *)emulated_aligned<16>(p) = v;
}
static inline rt_u32 ptx_again(rt_u32 v)
{
    return v;
}
static inline rt_u32 ptx_own(rt_u32 v)
{
    return v;
}
static inline rt_u32 ptx_load_flag(const rt_u32 *p)
{
    emulated_yield(); /* whoever looks at a flag again and again lets others go on */
    return *p;
}
/* Whoever sleeps may wait for another worker, which is another thread of the host: that takes
 * longer than turns here do, but not for ever. */
static rt_u32 emulated_naps;
static rt_u32 *emulated_gives_up; /* the flag that is set instead: the machine has failed */
static inline void __nanosleep(rt_u32)
{
    if (emulated_gives_up) { /* there is nothing to wait for */
        *emulated_gives_up = 1;
        emulated_yield();
        return;
    }
    if (emulated_naps++ < EMULATED_NAPS)
        emulated_idle = 0;
    sched_yield();
}
static inline rt_u32 ptx_acquire_flag(const rt_u32 *p)
{
    return *p;
}
static inline void ptx_store_flag(rt_u32 *p, rt_u32 v)
{
    *p = v;
    emulated_idle = 0;
}
static inline void ptx_add_release(rt_word *w, rt_u32 v)
{
    __atomic_fetch_add(&w->value, v, __ATOMIC_RELEASE); /* workers are threads of the host */
}
static inline void ptx_meet(int id, int n)
{
    emulated_meet(&emulated_barriers[id], (rt_u32)n, 0);
}
static inline void ptx_arrive(int id, int n)
{
    emulated_meeting *m = &emulated_barriers[id];
    if (++m->n < (rt_u32)n)
        return;
    m->n = 0;
    m->round++;
    emulated_idle = 0;
}
static inline void ptx_fence_shared(void) {}
static inline void ptx_fence_bulk(void) {}
static inline void ptx_grid_wait(void) {} /* no kernel runs before */
static inline rt_u64 ptx_policy_once(void)
{
    return 0;
}
static inline rt_u32 ptx_cycles(void)
{
    return 0;
}

/* ---- barriers in shared memory ---- */

struct emulated_mbarrier {
    rt_u32 phase : 1, expected : 15, pending : 16;
    int bytes;
};

static inline void emulated_count(rt_u64 *b, rt_u32 arrivals, int n_bytes)
{
    emulated_mbarrier m;
    memcpy(&m, b, sizeof m);
    m.pending -= arrivals;
    m.bytes += n_bytes;
    if (!m.pending && !m.bytes) {
        m.phase ^= 1;
        m.pending = m.expected;
        emulated_idle = 0;
    }
    memcpy(b, &m, sizeof m);
}
static inline void ptx_barrier_init(rt_u64 *b, rt_u32 arrivals)
{
    emulated_mbarrier m = {0, arrivals, arrivals, 0};
    memcpy(b, &m, sizeof m);
}
static inline void ptx_barrier_arrive(rt_u64 *b)
{
    emulated_count(b, 1, 0);
}
static inline void ptx_barrier_expect(rt_u64 *b, rt_u32 n_bytes)
{
    emulated_count(b, 1, (int)n_bytes);
}
static inline rt_u32 ptx_barrier_try(rt_u64 *b, rt_u32 parity)
{
    emulated_mbarrier m;
    memcpy(&m, b, sizeof m);
    if (m.phase != parity)
        return 1;
    emulated_yield();
    return 0;
}
static inline rt_u32 ptx_barrier_look(rt_u64 *b, rt_u32 parity)
{
    emulated_mbarrier m;
    memcpy(&m, b, sizeof m);
    return m.phase != parity;
}

/* ---- copies ---- */

static inline void emulated_do_box(const emulated_copy *c); /* emulated_boxes.cuh */
static inline void emulated_do(const emulated_copy *c)
{
    if (c->map)
        emulated_do_box(c);
    else if (c->from)
        memcpy(c->to, c->from, c->n_bytes);
    else
        memset(c->to, 0, c->n_bytes);
    if (c->barrier)
        emulated_count(c->barrier, 0, -(int)c->n_bytes);
    emulated_idle = 0;
}
static inline void emulated_copy_later(emulated_copy c)
{
    emulated_thread *t = emulated_now;
    c.group = t->group;
    if (t->n_copies == EMULATED_COPIES)
        abort();
    if (emulated_random(2))
        emulated_do(&c);
    else
        t->copies[t->n_copies++] = c;
}
static inline void ptx_copy_async(void *to, const void *from, bool there)
{
    emulated_copy_later(
        {(void *)emulated_aligned<16>(to), there ? emulated_aligned<16>(from) : 0, 16, 0, 0});
}
static inline void ptx_copy_async_part(void *to, const void *from, int n_bytes)
{
    char *end = (char *)emulated_aligned<16>(to) + n_bytes;
    if (n_bytes)
        emulated_copy_later({to, emulated_aligned<16>(from), (rt_u32)n_bytes, 0, 0});
    if (n_bytes < 16)
        emulated_copy_later({end, 0, 16 - (rt_u32)n_bytes, 0, 0});
}
static inline void ptx_copy_async_at(rt_u32 to, const void *from, bool there)
{
    ptx_copy_async(mpk_s + to, from, there);
}
static inline void ptx_copy_async_commit(void)
{
    emulated_now->group++;
}
template <int N> static inline void ptx_copy_async_wait(void)
{
    emulated_thread *t = emulated_now;
    rt_u32 left = 0;
    for (rt_u32 i = 0; i < t->n_copies; i++) {
        if (t->copies[i].group + N < t->group)
            emulated_do(&t->copies[i]);
        else
            t->copies[left++] = t->copies[i];
    }
    t->n_copies = left;
}
/* A thread's fetches are copies of its own. */
static inline void mpk_fetch(void *to, const void *from)
{
    ptx_copy_async(to, from, true);
}
static inline void mpk_fetch_word(rt_u32 *to, const rt_u32 *from)
{
    emulated_copy_later({to, (const void *)from, sizeof *to, 0, 0});
}
static inline void mpk_fetch_close(void)
{
    ptx_copy_async_commit();
}
template <int N> static inline void mpk_fetch_wait(void)
{
    ptx_copy_async_wait<N>();
}
static inline void ptx_copy_bulk(void *to, const void *from, rt_u32 n_bytes, rt_u64 *b)
{
    emulated_copy c = {(void *)emulated_aligned<16>(to), emulated_aligned<16>(from), n_bytes, 0, b};
    if (n_bytes % 16)
        abort();
    if (emulated_n_bulk == EMULATED_COPIES || emulated_random(2))
        emulated_do(&c);
    else
        emulated_bulk[emulated_n_bulk++] = c;
}
/* Reads what is fetched: it must be there. */
static inline void ptx_fetch_bulk(const void *from, rt_u32 n_bytes)
{
    const volatile char *at = (const volatile char *)emulated_aligned<16>(from);
    if (n_bytes % 16)
        abort();
    for (rt_u32 i = 0; i < n_bytes; i += 16)
        (void)at[i];
}
#include "tests/emulated_boxes.cuh"
static inline void ptx_copy_bulk_once(rt_u32 to, const void *from, rt_u32 n_bytes, rt_u64 *b,
                                      rt_u64)
{
    ptx_copy_bulk(mpk_s + to, from, n_bytes, b);
}
static inline bool ptx_elect(void)
{
    __syncwarp();
    return emulated_lane() == 0;
}
#include "tests/emulated_pieces.cuh"

/* One of the bulk copies that are under way arrives, or some of the lanes'. */
static inline void emulated_arrive(void)
{
    emulated_arrive_pieces();
    if (!emulated_n_bulk)
        return;
    rt_u32 i = emulated_random(emulated_n_bulk);
    emulated_copy c = emulated_bulk[i];
    emulated_bulk[i] = emulated_bulk[--emulated_n_bulk];
    emulated_do(&c);
}

/* ---- arithmetic ---- */

static inline float ptx_log2(float x)
{
    return log2f(x);
}
static inline float ptx_low_bf16(rt_u32 v)
{
    return __uint_as_float(v << 16);
}
static inline float ptx_high_bf16(rt_u32 v)
{
    return __uint_as_float(v & 0xffff0000u);
}
static inline rt_u32 emulated_bf16(float x)
{
    rt_u32 u = __float_as_uint(x);
    return (u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
static inline rt_u32 ptx_pack_bf16(float low, float high)
{
    return emulated_bf16(low) | emulated_bf16(high) << 16;
}
static inline rt_u32 ptx_choose(rt_u32 a, rt_u32 mask, rt_u32 more)
{
    return (a & mask) | more;
}
static inline rt_u32 ptx_fma_bf16(rt_u32 a, rt_u32 b, rt_u32 c)
{
    return ptx_pack_bf16(fmaf(ptx_low_bf16(a), ptx_low_bf16(b), ptx_low_bf16(c)),
                         fmaf(ptx_high_bf16(a), ptx_high_bf16(b), ptx_high_bf16(c)));
}
static inline rt_u32 ptx_smaller_bf16(rt_u32 a, rt_u32 b)
{
    return ptx_pack_bf16(fminf(ptx_low_bf16(a), ptx_low_bf16(b)),
                         fminf(ptx_high_bf16(a), ptx_high_bf16(b)));
}

/* ---- products ---- */

/* Of functions that take much of a test's time: optimised more than the rest, which would cost the
 * compiler more time than the test has to gain. */
#ifdef __clang__
#define EMULATED_HOT
#else
#define EMULATED_HOT __attribute__((optimize("O3")))
#endif

/* Four floats that the host multiplies at once. */
typedef float emulated_four __attribute__((vector_size(16)));

/* c[m x n] += a[m x 16] b[16 x n]; each element adds its products in the order of k. */
template <int N>
EMULATED_HOT static void emulated_product(const float (*a)[16], const emulated_four (*b)[N / 4],
                                          int rows, emulated_four (*c)[N / 4])
{
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < N / 4; n++) {
            emulated_four sum = c[m][n];
            for (int k = 0; k < 16; k++)
                sum += a[m][k] * b[k][n];
            c[m][n] = sum;
        }
}

static inline float emulated_f16(rt_u32 bits)
{
    const float size = (bits & 0x7c00) == 0x7c00
                           ? (bits & 0x3ff ? NAN : INFINITY)
                           : __uint_as_float((bits & 0x7fff) << 13) * 0x1p112f;
    return bits & 0x8000 ? -size : size;
}
static inline rt_u32 emulated_to_f16(float x)
{
    const rt_u32 u = __float_as_uint(x), sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
    if (rest >= 0x477ff000)
        return sign | (rest > 0x7f800000 ? 0x7e00 : 0x7c00);
    if (rest < 0x38800000)
        return sign | (rt_u32)lrintf(ldexpf(__uint_as_float(rest), 24));
    return sign | (rest + 0xfff + (rest >> 13 & 1) - (112u << 23)) >> 13;
}
static inline rt_u32 ptx_pack_f16(float low, float high)
{
    return emulated_to_f16(low) | emulated_to_f16(high) << 16;
}
static inline float ptx_low_f16(rt_u32 v)
{
    return emulated_f16(v & 0xffff);
}
static inline float ptx_high_f16(rt_u32 v)
{
    return emulated_f16(v >> 16);
}
static inline float emulated_half(bool is_bf16, rt_u32 bits)
{
    return is_bf16 ? ptx_low_bf16(bits) : emulated_f16(bits & 0xffff);
}

/* Both halves of a word, to places so far apart. */
template <bool BF16> static inline void emulated_spread(rt_u32 word, float *to, int apart)
{
    to[0] = emulated_half(BF16, word);
    to[apart] = emulated_half(BF16, word >> 16);
}
template <bool BF16> EMULATED_HOT static void emulated_multiply(void)
{
    const emulated_warp *w = emulated_own_warp();
    float a[16][16];
    emulated_four b[16][2], sum[16][2];
    float *of_b = (float *)b, *of_sum = (float *)sum; /* rows of 8 */
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, k = lane % 4 * 2;
        for (int i = 0; i < 4; i++)
            emulated_spread<BF16>(w->words[lane][i], &a[g + i % 2 * 8][k + i / 2 * 8], 1);
        emulated_spread<BF16>(w->words[lane][4], of_b + k * 8 + g, 8);
        emulated_spread<BF16>(w->words[lane][5], of_b + (k + 8) * 8 + g, 8);
        memcpy(of_sum + g * 8 + k, w->sums[lane], 8);
        memcpy(of_sum + (g + 8) * 8 + k, w->sums[lane] + 2, 8);
    }
    emulated_product<8>(a, b, 16, sum);
    for (int lane = 0; lane < 32; lane++) {
        memcpy(w->sums[lane], of_sum + lane / 4 * 8 + lane % 4 * 2, 8);
        memcpy(w->sums[lane] + 2, of_sum + (lane / 4 + 8) * 8 + lane % 4 * 2, 8);
    }
}
template <bool BF16>
static inline void emulated_product_of_warp(float *c, rt_u32 a0, rt_u32 a1, rt_u32 a2, rt_u32 a3,
                                            rt_u32 b0, rt_u32 b1)
{
    emulated_warp *w = emulated_own_warp();
    const rt_u32 words[6] = {a0, a1, a2, a3, b0, b1};
    w->sums[emulated_lane()] = c;
    memcpy(w->words[emulated_lane()], words, sizeof words);
    emulated_meet(&w->meeting, 32, emulated_multiply<BF16>);
}
static inline void ptx_multiply_bf16(float *c, rt_u32 a0, rt_u32 a1, rt_u32 a2, rt_u32 a3,
                                     rt_u32 b0, rt_u32 b1)
{
    emulated_product_of_warp<true>(c, a0, a1, a2, a3, b0, b1);
}
static inline void ptx_multiply_f16(float *c, rt_u32 a0, rt_u32 a1, rt_u32 a2, rt_u32 a3, rt_u32 b0,
                                    rt_u32 b1)
{
    emulated_product_of_warp<false>(c, a0, a1, a2, a3, b0, b1);
}
static inline void ptx_load_matrices(rt_u32 *r, const void *row)
{
    const rt_u64 *rows = emulated_show((rt_u64)(uintptr_t)emulated_aligned<16>(row));
    for (int m = 0; m < 4; m++)
        memcpy(&r[m],
               (const char *)(uintptr_t)rows[m * 8 + emulated_lane() / 4] + emulated_lane() % 4 * 4,
               4);
}
static inline void ptx_load_matrices_transposed(rt_u32 *r, const void *row)
{
    const rt_u64 *rows = emulated_show((rt_u64)(uintptr_t)emulated_aligned<16>(row));
    for (int m = 0; m < 4; m++)
        for (int i = 0; i < 2; i++)
            memcpy((char *)&r[m] + 2 * i,
                   (const char *)(uintptr_t)rows[m * 8 + emulated_lane() % 4 * 2 + i] +
                       emulated_lane() / 4 * 2,
                   2);
}
static inline void ptx_store_matrices(void *row, const rt_u32 *r)
{
    const rt_u64 *rows = emulated_show((rt_u64)(uintptr_t)emulated_aligned<16>(row));
    for (int m = 0; m < 4; m++)
        memcpy((char *)(uintptr_t)rows[m * 8 + emulated_lane() / 4] + emulated_lane() % 4 * 4,
               &r[m], 4);
}

static inline void ptx_load_matrices_at(rt_u32 *r, rt_u32 row)
{
    ptx_load_matrices(r, mpk_s + row);
}
static inline void ptx_load_matrices_transposed_at(rt_u32 *r, rt_u32 row)
{
    ptx_load_matrices_transposed(r, mpk_s + row);
}

#include "tests/emulated_groups.cuh"

#endif
