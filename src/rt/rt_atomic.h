/* rt_atomic.h - atomic operations on a CPU: order and scope are in each name.
 *
 * Scope `device`: between workers and schedulers of one device.  Scope `system`: between them and
 * the host, and between the GPUs of one machine.  On a CPU both are the same; rt_atomic_cuda.h
 * tells them apart, and tests/rt_atomic_model.h passes each one to the model checker.
 *
 * There are no fences.  Each argument in docs/runtime.md relies on acquire and release of one
 * location, which is easier to check than a fence, and ThreadSanitizer does not model fences.
 */
#ifndef RT_ATOMIC_H
#define RT_ATOMIC_H

RT_FN rt_u32 rt_load_relaxed_device(const rt_word *w)
{
    return __atomic_load_n(&w->value, __ATOMIC_RELAXED);
}
RT_FN rt_u32 rt_load_relaxed_system(const rt_word *w)
{
    return __atomic_load_n(&w->value, __ATOMIC_RELAXED);
}
RT_FN rt_u32 rt_load_acquire_device(const rt_word *w)
{
    return __atomic_load_n(&w->value, __ATOMIC_ACQUIRE);
}
RT_FN rt_u32 rt_load_acquire_system(const rt_word *w)
{
    return __atomic_load_n(&w->value, __ATOMIC_ACQUIRE);
}
RT_FN rt_u64 rt_load_wide_acquire_device(const rt_wide *w)
{
    return __atomic_load_n(&w->value, __ATOMIC_ACQUIRE);
}
RT_FN rt_u64 rt_load_wide_acquire_system(const rt_wide *w)
{
    return __atomic_load_n(&w->value, __ATOMIC_ACQUIRE);
}

RT_FN void rt_store_relaxed_device(rt_word *w, rt_u32 v)
{
    __atomic_store_n(&w->value, v, __ATOMIC_RELAXED);
}
RT_FN void rt_store_release_device(rt_word *w, rt_u32 v)
{
    __atomic_store_n(&w->value, v, __ATOMIC_RELEASE);
}
RT_FN void rt_store_release_system(rt_word *w, rt_u32 v)
{
    __atomic_store_n(&w->value, v, __ATOMIC_RELEASE);
}
RT_FN void rt_store_wide_relaxed_device(rt_wide *w, rt_u64 v)
{
    __atomic_store_n(&w->value, v, __ATOMIC_RELAXED);
}
RT_FN void rt_store_wide_release_device(rt_wide *w, rt_u64 v)
{
    __atomic_store_n(&w->value, v, __ATOMIC_RELEASE);
}
RT_FN void rt_store_wide_release_system(rt_wide *w, rt_u64 v)
{
    __atomic_store_n(&w->value, v, __ATOMIC_RELEASE);
}
RT_FN void rt_count_release_system(rt_word *w, rt_u32 n)
{
    __atomic_fetch_add(&w->value, n, __ATOMIC_RELEASE);
}

/* Each returns the old value. */
RT_FN rt_u32 rt_add_acq_rel_device(rt_word *w, rt_u32 n)
{
    return __atomic_fetch_add(&w->value, n, __ATOMIC_ACQ_REL);
}
RT_FN rt_u32 rt_add_acq_rel_system(rt_word *w, rt_u32 n)
{
    return __atomic_fetch_add(&w->value, n, __ATOMIC_ACQ_REL);
}
RT_FN rt_u32 rt_exchange_acq_rel_device(rt_word *w, rt_u32 v)
{
    return __atomic_exchange_n(&w->value, v, __ATOMIC_ACQ_REL);
}
/* Store `to` if the value is `from`; true if it was. */
RT_FN int rt_replace_acq_rel_device(rt_word *w, rt_u32 from, rt_u32 to)
{
    return __atomic_compare_exchange_n(&w->value, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
RT_FN int rt_replace_wide_acq_rel_device(rt_wide *w, rt_u64 from, rt_u64 to)
{
    return __atomic_compare_exchange_n(&w->value, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

#endif
