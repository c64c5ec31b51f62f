/* thread.cuh - what every file of device/ begins with: the word for its functions, and a body's
 * own thread and barrier.
 *
 * Generic bodies use no other PTX than this.  On the host (MPK_EMULATED) the tests define these
 * functions, so that generic bodies run there.  MPK_THREADS, the threads that call a body (256
 * on a GPU), comes from the generated source.
 */
#ifndef PTX_THREAD_CUH
#define PTX_THREAD_CUH

#include "rt/rt_port.h"

/* Inlined always: operands, shapes and dtypes are constants of the caller, and only inlined code
 * gets rid of the branches on them. */
#define MPK_FN static __device__ __forceinline__
#define MPK_WARPS (MPK_THREADS / 32)
/* The same for a lambda that is called from several places: what it captures would lie in
 * memory. */
#define MPK_INLINED __attribute__((always_inline))

/* An address of global memory, as the compiler may assume from here on: its loads and stores are
 * those of global memory alone. */
template <typename type> MPK_FN type *mpk_global(type *p)
{
#ifndef MPK_EMULATED
    __builtin_assume(__isGlobal(p));
#endif
    return p;
}
/* The same, of which the compiler does not know how it came about: what is added to it is not taken
 * apart and added to what it came from. */
template <typename type> MPK_FN type *mpk_global_kept(type *p)
{
#ifndef MPK_EMULATED
    asm("" : "+l"(p));
#endif
    return mpk_global(p);
}

#ifndef MPK_EMULATED
/* threadIdx.x, read again each time (volatile).  Otherwise the compiler would compute what
 * follows from it (lanes, rows, addresses) for all bodies ahead of the loop over tasks.  There
 * are no registers to hold that: it would go to memory and come back in every task. */
MPK_FN int mpk_thread(void)
{
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    /* so that x / 32 and x % 32 are a shift and a mask */
    __builtin_assume(x >= 0);
    return x;
}
/* The same for a body that is a function of its own and calls it in loops: what follows from it may
 * be kept, and is computed in front of the loop. */
MPK_FN int mpk_kept_thread(void)
{
    int x;
    asm("mov.u32 %0, %%tid.x;" : "=r"(x));
    __builtin_assume(x >= 0);
    return x;
}
/* 16 bytes of global memory for a thread that reads them once: L1, which has no use for them, does
 * not keep them.  And the counterpart, one store whatever the compiler knows of p. */
MPK_FN void ptx_load_once(const void *p, rt_u32 (&v)[4])
{
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
}
MPK_FN void ptx_store_quad(void *p, const rt_u32 (&v)[4])
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}
/* 2^x within 2 ulp; subnormal results are 0. exp2(-inf) is 0, which softmax relies on. */
MPK_FN float ptx_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* 1 / x within 1 ulp; 0 where that would be subnormal. */
MPK_FN float ptx_rcp(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* All MPK_THREADS threads of the body meet; each then sees what the others wrote to shared and
 * global memory before.  Barrier 1: the loader, the clerk and the other roles do not come here. */
MPK_FN void mpk_sync(void)
{
    asm volatile("bar.sync 1, %0;" ::"n"(MPK_THREADS) : "memory");
}

/* 16 bytes, or a word, of global memory are in flight to shared memory, which this thread alone
 * reads: after it has closed the group of fetches and waited for it.  Words come through L1, as
 * loads do. */
MPK_FN void mpk_fetch(void *s_to, const void *g_from)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((rt_u32)__cvta_generic_to_shared(s_to)),
        "l"(g_from)
        : "memory");
}
MPK_FN void mpk_fetch_word(rt_u32 *s_to, const rt_u32 *g_from)
{
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((rt_u32)__cvta_generic_to_shared(s_to)),
        "l"(g_from)
        : "memory");
}
MPK_FN void mpk_fetch_close(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until all but the N groups closed last have ended. */
template <int N> MPK_FN void mpk_fetch_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif

#endif
