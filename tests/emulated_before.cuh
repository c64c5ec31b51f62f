/* emulated_before.cuh - what stands before generated bodies when the host's C++ compiler compiles
 * them: CUDA's words, and threads that meet at a barrier.  For src/gen/body_emulated_test.c. */
#ifndef EMULATED_BEFORE_CUH
#define EMULATED_BEFORE_CUH

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emulated_quads.cuh"

#define MPK_EMULATED 1
#define __device__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __expf expf
static inline float __fdividef(float x, float y)
{
    return x / y;
}

/* Bodies work for any number of threads, so here it is a variable. */
static int emulated_threads;
static thread_local int emulated_thread;
static pthread_barrier_t emulated_barrier;
#define MPK_THREADS emulated_threads

static inline int mpk_thread(void)
{
    return emulated_thread;
}
static inline int mpk_kept_thread(void)
{
    return mpk_thread();
}
static inline void mpk_sync(void)
{
    if (emulated_threads > 1)
        pthread_barrier_wait(&emulated_barrier);
}
/* A thread's fetches, in order; one arrives when it is waited for and no earlier. */
struct emulated_fetch {
    void *to;
    const void *from;
    unsigned n_bytes, group;
};
static thread_local emulated_fetch emulated_fetches[64];
static thread_local unsigned emulated_n_fetches, emulated_group;
static inline void emulated_fetch_later(void *to, const void *from, unsigned n_bytes)
{
    if (emulated_n_fetches == 64)
        abort();
    emulated_fetches[emulated_n_fetches++] = {to, from, n_bytes, emulated_group};
}
static inline void mpk_fetch(void *to, const void *from)
{
    emulated_fetch_later(to, from, 16);
}
static inline void mpk_fetch_word(unsigned *to, const unsigned *from)
{
    emulated_fetch_later(to, from, sizeof *to);
}
static inline void mpk_fetch_close(void)
{
    emulated_group++;
}
template <int N> static inline void mpk_fetch_wait(void)
{
    unsigned left = 0;
    for (unsigned i = 0; i < emulated_n_fetches; i++) {
        const emulated_fetch f = emulated_fetches[i];
        if (f.group + N < emulated_group)
            memcpy(f.to, f.from, f.n_bytes);
        else
            emulated_fetches[left++] = f;
    }
    emulated_n_fetches = left;
}
static inline unsigned atomicAdd(unsigned *p, unsigned v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
static inline float atomicAdd(float *p, float v)
{
    unsigned *bits = (unsigned *)(void *)p, seen = __atomic_load_n(bits, __ATOMIC_SEQ_CST), sum;
    do
        sum = __float_as_uint(__uint_as_float(seen) + v);
    while (!__atomic_compare_exchange_n(bits, &seen, sum, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return __uint_as_float(seen);
}
static inline unsigned atomicOr(unsigned *p, unsigned v)
{
    return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);
}

#endif
