/* jit.cuh - what body warps do in a step with JIT tasks: choose between the two queues (paper
 * §5.2).
 *
 * In such a step the clerk leaves events alone: thread 0 of the bodies polls, and all threads run
 * what it has chosen.  bodies.cuh calls this.
 *
 *   - JIT tasks come first, so an AOT task that waits for a JIT task of the same worker cannot keep
 *     it from running.
 *   - The step is over for this worker when its list is done and the step word has changed: the
 *     step task publishes the next step only after the end event, so no JIT task of the old step
 *     can arrive later.
 *     scheduler -> queue of this worker -> choose (thread 0) -> agree -> take_jit -> jit_mail
 *     -> clerk_load: pages -> the body -> mpk_trigger -> end_jit: wait until jit_mail is 0
 *
 *   - One JIT task is in flight at a time: end_jit waits until its loader (clerk_load) has let go
 *     of the entry.
 */
#ifndef ROLE_JIT_CUH
#define ROLE_JIT_CUH

#include "role/list.cuh"

enum { CHOICE_AOT, CHOICE_JIT, CHOICE_END };

/* Thread 0: poll until something can run, and say what (CHOICE_*): JIT tasks first, then the
 * next AOT task if its event is activated (paper §5.2).  slot: that task's entry, RT_NONE if the
 * list is done.  step: the word of the step that runs.  CHOICE_JIT leaves the task's number in
 * mpk_w.taken.  The acquire of the counter or of the queue's cell covers what the task reads; a
 * barrier hands it to the other threads (agree). */
static __device__ __noinline__ rt_u32 choose(rt_u64 step, rt_u32 slot)
{
    rt_machine *m = (rt_machine *)&mpk_w.k->machine;
    rt_u32 me = mpk_w.index, n = 0; /* n: rounds of the poll */
    for (;;) {
        if (rt_queue_pop(&m->jit[me], m->jit_slots + (rt_u64)me * (m->jit_mask + 1), m->jit_mask,
                         &mpk_w.taken))
            return CHOICE_JIT;
        if (slot != RT_NONE) {
            const rt_entry *e = &mpk_w.entries[slot];
            if ((rt_i32)(rt_load_acquire_device(mpk_w.counters + e->depends) -
                         e->needed * mpk_w.epoch) >= 0)
                return CHOICE_AOT;
        } else if (rt_load_wide_acquire_device(&mpk_w.control->step) != step) {
            return CHOICE_END;
        }
        if (++n % 64 == 0 && ptx_load_flag(&mpk_w.abort))
            return CHOICE_END;
    }
}

/* All body threads: what runs next.  more: the list is not done, and its next entry is in slot
 * s->slot.  The second barrier closes the hazard that thread 0 writes the next choice while a
 * slower warp still reads this one. */
MPK_FN rt_u32 agree(const mpk_side *s, bool more)
{
    if (mpk_thread() == 0)
        mpk_w.choice = choose(mpk_w.step, more ? s->slot : RT_NONE);
    mpk_sync();
    rt_u32 choice = mpk_w.choice;
    mpk_sync();
    return choice;
}

/* All body threads: fetch the entry of the JIT task that was taken into the JIT entry, and mail
 * it to its loader if its body loads.  Returns the entry's index.  No other role reads the
 * JIT entry now: end_jit of the task before has waited for its loader. */
MPK_FN rt_u32 take_jit(void)
{
    const rt_kernel *k = mpk_w.k;
    rt_u32 at = k->jit_entry[k->machine.graphs[mpk_w.graph].first_task + mpk_w.taken];
    const rt_u32 *from = (const rt_u32 *)(k->entries + at);
    for (int i = mpk_thread(); i < (int)(sizeof(rt_entry) / 4); i += MPK_THREADS)
        ((rt_u32 *)&mpk_w.entries[MPK_JIT_ENTRY])[i] = from[i];
    mpk_sync();
#if MPK_JIT_PAGES
    rt_u32 body = mpk_w.entries[MPK_JIT_ENTRY].body;
    if (body != RT_NONE && mpk_body_loads(body) && mpk_thread() == 0)
        ptx_store_flag(&mpk_w.jit_mail, 1);
#endif
    return at;
}

/* All body threads, after the task: wait until the loader no longer reads the JIT entry. */
MPK_FN void end_jit(void)
{
#if MPK_JIT_PAGES
    if (mpk_thread() == 0)
        while (ptx_load_flag(&mpk_w.jit_mail) && !ptx_load_flag(&mpk_w.abort))
            ;
#endif
    mpk_sync();
}

#endif
