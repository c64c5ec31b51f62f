/* emulated_behind.cuh - what stands behind generated bodies on the host: the entries by which a
 * test runs a task and asks how a KV page lies. */
#ifndef EMULATED_BEHIND_CUH
#define EMULATED_BEHIND_CUH

#include "tile/kv.cuh"

struct emulated_call {
    unsigned body;
    int thread;
    mpk_task task;
};

static void *emulated_run_thread(void *p)
{
    emulated_call *c = (emulated_call *)p;
    emulated_thread = c->thread;
    mpk_dispatch_body(c->body, c->task);
    return 0;
}

/* One task on n threads, 16 at most. */
extern "C" void emulated_run(unsigned body, const rt_entry *e, unsigned hi0, const unsigned *live,
                             char *scratch, int n)
{
    emulated_call calls[16] = {};
    pthread_t threads[16];
    emulated_threads = n;
    pthread_barrier_init(&emulated_barrier, 0, (unsigned)n);
    for (int i = n - 1; i >= 0; i--) {
        calls[i].body = body;
        calls[i].thread = i;
        calls[i].task.e = e;
        calls[i].task.hi0 = hi0;
        calls[i].task.live = live;
        calls[i].task.s_scratch = scratch;
        if (i)
            pthread_create(&threads[i], 0, emulated_run_thread, &calls[i]);
        else
            emulated_run_thread(&calls[0]);
    }
    for (int i = 1; i < n; i++)
        pthread_join(threads[i], 0);
    pthread_barrier_destroy(&emulated_barrier);
}

extern "C" int emulated_kv_at(int values, int token, int dim, int page_tokens, int size, int bytes)
{
    return values ? kv_value_at(token, dim, page_tokens, size, bytes)
                  : kv_key_at(token, dim, page_tokens, size, bytes);
}

#endif
