/* rt_port.h - what the in-kernel runtime needs from a target; the only #ifdefs of src/rt.
 *
 * src/rt is written in the common subset of C17 and CUDA C: no libc, no C11 keywords that C++
 * lacks, no C++.  gcc, clang and NVRTC compile the same bytes, so one protocol runs on a CPU, on a
 * GPU, under the thread sanitizer and in the model checker of tests/.  src/rt includes nothing but
 * itself, as both sides compile it; so the PTX here and in rt_atomic_cuda.h is the only inline
 * assembly of GPU code outside device/ptx.
 *
 * A target supplies, besides the atomics:
 *
 *     rt_clock_ns   monotonic time
 *     rt_pause      a hint inside a spin loop, tens of ns
 *     rt_yield      give up the core to another thread
 *     rt_sleep      sleep while *word == value, at most timeout_ns (RT_FOREVER: no limit); may
 *                   return early
 *     rt_wake       wake the threads that sleep on word
 *     rt_delay      wait for a random time, for tests
 *     rt_run_body   the code of one task: see rt_worker.h
 *     rt_mul_high   the upper 64 bits of a product
 *
 * The step task and a scheduler are run by RT_LANES lanes in step: one thread of a CPU, a warp of a
 * GPU.
 *
 *     rt_lane       the number of this lane
 *     rt_meet       a barrier of all lanes; each then sees what the others wrote before it
 *     rt_every      a vote: does the condition hold in all lanes?  The same answer in each
 *     rt_before     how many lanes before this one say yes; *all: how many lanes in all
 *     rt_first      broadcast of the first lane's value; orders no memory
 *     rt_of         the value of another lane; orders no memory
 *     rt_twin       the nearest lane before this one that has the same value, this one if there is
 *                   none; *last: no lane after it has the value; orders no memory
 *
 * and two constants:
 *
 *     RT_STEP_MOVES   1: the step task runs wherever the last step ended, so that once a step is
 *                     published another thread may run the task already; 0: it has a warp of its
 *                     own
 *     RT_DRAFT_MODEL  1: a program may have graphs of a draft model (rt_ahead.h); 0: it has none,
 *                     and the code for it is omitted.  A GPU's source says which (MPK_DRAFT_MODEL)
 */
#ifndef RT_PORT_H
#define RT_PORT_H

typedef unsigned int rt_u32;
typedef unsigned long long rt_u64;
typedef int rt_i32;
typedef long long rt_i64;
typedef unsigned short rt_u16;

#define RT_FOREVER (~(rt_u64)0)

/* A word that several threads touch: only through rt_atomic functions. */
typedef struct rt_word {
    rt_u32 value;
} rt_word;

typedef struct rt_wide {
    rt_u64 value;
} rt_wide;

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)

#define RT_FN static __device__ __forceinline__
#define RT_LARGE_FN static __device__ __noinline__
#define RT_UNROLL_4 _Pragma("unroll 4")
#define RT_UNROLL _Pragma("unroll")
enum { RT_SLEEPS = 0 }; /* a warp cannot sleep on a word: it polls */
#ifndef MPK_DRAFT_MODEL
#define MPK_DRAFT_MODEL 0
#endif
enum { RT_DRAFT_MODEL = MPK_DRAFT_MODEL };
enum { RT_LANES = 32, RT_STEP_MOVES = 0 };
#include "rt/rt_atomic_cuda.h"

RT_FN rt_u32 rt_lane(void)
{
    return threadIdx.x % 32;
}
RT_FN void rt_meet(void)
{
    __syncwarp();
}
RT_FN int rt_every(int condition)
{
    return __all_sync(0xffffffffu, condition);
}
RT_FN rt_u32 rt_before(int says, rt_u32 *all)
{
    rt_u32 set = __ballot_sync(0xffffffffu, says);
    *all = (rt_u32)__popc(set);
    return (rt_u32)__popc(set & ((1u << threadIdx.x % 32) - 1));
}
RT_FN rt_u32 rt_first(rt_u32 value)
{
    return __shfl_sync(0xffffffffu, value, 0);
}
RT_FN rt_u32 rt_of(rt_u32 value, rt_u32 lane)
{
    return __shfl_sync(0xffffffffu, value, (int)lane);
}
RT_FN rt_u32 rt_twin(rt_u32 value, int *last)
{
    const rt_u32 lane = threadIdx.x % 32, set = __match_any_sync(0xffffffffu, value),
                 before = set & ((1u << lane) - 1);
    *last = set >> lane == 1;
    return before ? 31 - (rt_u32)__clz((int)before) : lane;
}

RT_FN rt_u64 rt_mul_high(rt_u64 a, rt_u64 b)
{
    return __umul64hi(a, b);
}
RT_FN rt_u64 rt_clock_ns(void)
{
    rt_u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
RT_FN void rt_pause(void)
{
    __nanosleep(20);
}
RT_FN void rt_yield(void)
{
    __nanosleep(200);
}
RT_FN void rt_sleep(rt_word *word, rt_u32 value, rt_u64 timeout_ns)
{
    (void)word;
    (void)value;
    (void)timeout_ns;
    __nanosleep(1000);
}
RT_FN void rt_wake(rt_word *word)
{
    (void)word;
}
RT_FN void rt_delay(rt_u64 seed, rt_u32 who)
{
    (void)seed;
    (void)who;
}

#elif defined(RT_ATOMIC_HEADER)

/* The model checker: atomics, clock and sleeping are the explorer's. */
#define RT_FN static inline
#define RT_LARGE_FN static inline
#define RT_UNROLL_4
#define RT_UNROLL
enum { RT_SLEEPS = 1, RT_DRAFT_MODEL = 1 };
#include RT_ATOMIC_HEADER

#else

#define RT_FN static inline
#define RT_LARGE_FN static inline
#define RT_UNROLL_4
#define RT_UNROLL
enum { RT_SLEEPS = 1, RT_DRAFT_MODEL = 1 };
#include "rt/rt_atomic.h"

/* Supplied by src/host/host_port.c. */
rt_u64 rt_clock_ns(void);
void rt_yield(void);
void rt_sleep(rt_word *word, rt_u32 value, rt_u64 timeout_ns);
void rt_wake(rt_word *word);
void rt_delay(rt_u64 seed, rt_u32 who);
RT_FN void rt_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif

#if !defined(__CUDACC_RTC__) && !defined(__CUDACC__)
__extension__ typedef unsigned __int128 rt_u128;
RT_FN rt_u64 rt_mul_high(rt_u64 a, rt_u64 b)
{
    return (rt_u64)((rt_u128)a * b >> 64);
}
#endif

#if defined(RT_LANES_HEADER) /* a test's own lanes */
#include RT_LANES_HEADER
#elif !defined(__CUDACC_RTC__) && !defined(__CUDACC__)
enum { RT_LANES = 1, RT_STEP_MOVES = 1 };
RT_FN rt_u32 rt_lane(void)
{
    return 0;
}
RT_FN void rt_meet(void) {}
RT_FN int rt_every(int condition)
{
    return condition;
}
RT_FN rt_u32 rt_before(int says, rt_u32 *all)
{
    *all = says != 0;
    return 0;
}
RT_FN rt_u32 rt_first(rt_u32 value)
{
    return value;
}
RT_FN rt_u32 rt_of(rt_u32 value, rt_u32 lane)
{
    (void)lane;
    return value;
}
RT_FN rt_u32 rt_twin(rt_u32 value, int *last)
{
    (void)value;
    *last = 1;
    return 0;
}
#endif

#endif
