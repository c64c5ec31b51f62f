/* rt_atomic_cuda.h - the operations of rt_atomic.h on an NVIDIA GPU, as PTX of the memory model
 * (sm_70 and later). */
#ifndef RT_ATOMIC_CUDA_H
#define RT_ATOMIC_CUDA_H

/* One function of each kind: RT_LOAD(name, "ld.acquire.gpu.u32", type, register letter). */
#define RT_LOAD(name, ptx, word, type, letter)                                      \
    RT_FN type name(const word *w)                                                  \
    {                                                                               \
        type v;                                                                     \
        asm volatile(ptx " %0, [%1];" : "=" letter(v) : "l"(&w->value) : "memory"); \
        return v;                                                                   \
    }
#define RT_STORE(name, ptx, word, type, letter)                                \
    RT_FN void name(word *w, type v)                                           \
    {                                                                          \
        asm volatile(ptx " [%0], %1;" ::"l"(&w->value), letter(v) : "memory"); \
    }
#define RT_CHANGE(name, ptx)                                                                \
    RT_FN rt_u32 name(rt_word *w, rt_u32 v)                                                 \
    {                                                                                       \
        rt_u32 old;                                                                         \
        asm volatile(ptx " %0, [%1], %2;" : "=r"(old) : "l"(&w->value), "r"(v) : "memory"); \
        return old;                                                                         \
    }

RT_LOAD(rt_load_relaxed_device, "ld.relaxed.gpu.u32", rt_word, rt_u32, "r")
RT_LOAD(rt_load_relaxed_system, "ld.relaxed.sys.u32", rt_word, rt_u32, "r")
RT_LOAD(rt_load_acquire_device, "ld.acquire.gpu.u32", rt_word, rt_u32, "r")
RT_LOAD(rt_load_acquire_system, "ld.acquire.sys.u32", rt_word, rt_u32, "r")
RT_LOAD(rt_load_wide_acquire_device, "ld.acquire.gpu.u64", rt_wide, rt_u64, "l")
RT_LOAD(rt_load_wide_acquire_system, "ld.acquire.sys.u64", rt_wide, rt_u64, "l")
RT_STORE(rt_store_relaxed_device, "st.relaxed.gpu.u32", rt_word, rt_u32, "r")
RT_STORE(rt_store_release_device, "st.release.gpu.u32", rt_word, rt_u32, "r")
RT_STORE(rt_store_release_system, "st.release.sys.u32", rt_word, rt_u32, "r")
RT_STORE(rt_store_wide_relaxed_device, "st.relaxed.gpu.u64", rt_wide, rt_u64, "l")
RT_STORE(rt_store_wide_release_device, "st.release.gpu.u64", rt_wide, rt_u64, "l")
RT_STORE(rt_store_wide_release_system, "st.release.sys.u64", rt_wide, rt_u64, "l")
RT_CHANGE(rt_add_acq_rel_device, "atom.add.acq_rel.gpu.u32")
RT_CHANGE(rt_add_acq_rel_system, "atom.add.acq_rel.sys.u32")
RT_CHANGE(rt_exchange_acq_rel_device, "atom.exch.acq_rel.gpu.b32")

/* 1: the word was `from`, and is `to` now. */
RT_FN int rt_replace_acq_rel_device(rt_word *w, rt_u32 from, rt_u32 to)
{
    rt_u32 old;
    asm volatile("atom.cas.acq_rel.gpu.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "l"(&w->value), "r"(from), "r"(to)
                 : "memory");
    return old == from;
}

/* Without the old value. */
RT_FN void rt_count_release_system(rt_word *w, rt_u32 n)
{
    asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(&w->value), "r"(n) : "memory");
}

RT_FN int rt_replace_wide_acq_rel_device(rt_wide *w, rt_u64 from, rt_u64 to)
{
    rt_u64 old;
    asm volatile("atom.cas.acq_rel.gpu.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(&w->value), "l"(from), "l"(to)
                 : "memory");
    return old == from;
}

#endif
