/* rt_atomic_model.h - the third implementation of the runtime's atomics: every operation is a point
 * at which the model checker (model_check_test.c) may let another thread go on.  One thread runs at
 * a time, so the operations are plain.  Sleeping has no timeout here: a wake that gets lost becomes
 * a deadlock, which the checker sees.
 */
#ifndef RT_ATOMIC_MODEL_H
#define RT_ATOMIC_MODEL_H

/* Another thread may run now. */
void model_point(void);
/* Block until model_wake(word), unless the word has changed already. */
void model_sleep(const rt_word *word, rt_u32 value);
void model_wake(const rt_word *word);

#define MODEL_LOAD(name, word, type) \
    RT_FN type name(const word *w)   \
    {                                \
        model_point();               \
        return w->value;             \
    }
#define MODEL_STORE(name, word, type) \
    RT_FN void name(word *w, type v)  \
    {                                 \
        model_point();                \
        w->value = v;                 \
    }
#define MODEL_CHANGE(name, result)          \
    RT_FN rt_u32 name(rt_word *w, rt_u32 v) \
    {                                       \
        model_point();                      \
        rt_u32 old = w->value;              \
        w->value = result;                  \
        return old;                         \
    }
#define MODEL_REPLACE(name, word, type)         \
    RT_FN int name(word *w, type from, type to) \
    {                                           \
        model_point();                          \
        if (w->value != from)                   \
            return 0;                           \
        w->value = to;                          \
        return 1;                               \
    }

MODEL_LOAD(rt_load_relaxed_device, rt_word, rt_u32)
MODEL_LOAD(rt_load_relaxed_system, rt_word, rt_u32)
MODEL_LOAD(rt_load_acquire_device, rt_word, rt_u32)
MODEL_LOAD(rt_load_acquire_system, rt_word, rt_u32)
MODEL_LOAD(rt_load_wide_acquire_device, rt_wide, rt_u64)
MODEL_STORE(rt_store_relaxed_device, rt_word, rt_u32)
MODEL_STORE(rt_store_release_device, rt_word, rt_u32)
MODEL_STORE(rt_store_release_system, rt_word, rt_u32)
MODEL_STORE(rt_store_wide_relaxed_device, rt_wide, rt_u64)
MODEL_STORE(rt_store_wide_release_device, rt_wide, rt_u64)
MODEL_CHANGE(rt_add_acq_rel_device, old + v)
MODEL_CHANGE(rt_add_acq_rel_system, old + v)
MODEL_CHANGE(rt_exchange_acq_rel_device, v)
MODEL_REPLACE(rt_replace_acq_rel_device, rt_word, rt_u32)
MODEL_REPLACE(rt_replace_wide_acq_rel_device, rt_wide, rt_u64)

RT_FN rt_u64 rt_clock_ns(void)
{
    return 1;
}
RT_FN void rt_pause(void)
{
    model_point();
}
RT_FN void rt_yield(void)
{
    model_point();
}
RT_FN void rt_delay(rt_u64 seed, rt_u32 who)
{
    (void)seed;
    (void)who;
}
RT_FN void rt_sleep(rt_word *word, rt_u32 value, rt_u64 timeout_ns)
{
    (void)timeout_ns;
    model_sleep(word, value);
}
RT_FN void rt_wake(rt_word *word)
{
    model_wake(word);
}

#endif
