/* emulated_warps_behind.cuh - what stands behind all generated bodies on the host: a worker with
 * its loader and clerk, which runs a list of tasks as device/role does, and the entry by which a
 * test asks how a KV page lies. */
#ifndef EMULATED_WARPS_BEHIND_CUH
#define EMULATED_WARPS_BEHIND_CUH

#include "tile/kv.cuh"

__align__(1024) char mpk_s[MPK_PAGES * MPK_PAGE_BYTES + MPK_SCRATCH_BYTES + 1024];

/* What the runtime's headers ask of a host; bodies call none of it. */
rt_u64 rt_clock_ns(void)
{
    return 0;
}
void rt_yield(void) {}
void rt_sleep(rt_word *, rt_u32, rt_u64) {}
void rt_wake(rt_word *) {}
void rt_delay(rt_u64, rt_u32) {}

enum { EMULATED_OK, EMULATED_STUCK, EMULATED_RINGS_DIFFER, EMULATED_SCRATCH, EMULATED_RELEASES };

enum { EMULATED_LATE = 4, EMULATED_SLICES = 16 };

/* What operators before have to write: all ones, that is NaN and RT_EMPTY, until it is there. */
struct emulated_late {
    void *at;
    size_t n_bytes;
};

struct emulated_list {
    const rt_entry *entries;
    const rt_u64 *forms; /* of each */
    rt_u32 n;
    const emulated_late *late;
    void *kept[EMULATED_LATE]; /* what they become */
    rt_u32 n_late;
    /* of the ring: all, or half of them as for JIT tasks */
    rt_u32 pages, in_flight;
    rt_u32 first;                            /* pages that are gone before the first task */
    mpk_ring loaded, taken[EMULATED_BODIES]; /* where the ring stood at the end, for each side */
};
static emulated_list emulated_tasks;
static rt_word emulated_event; /* on which all tasks depend */
/* what it shares with other workers */
static rt_u32 emulated_index;
static rt_kernel emulated_kernel;

/* The loader's warp: all tasks, as far ahead as there are pages. */
static void emulated_load(void)
{
    mpk_load l;
    load_begin(&l, 0, emulated_tasks.pages);
    l.in_flight = emulated_tasks.in_flight;
    l.aot = 1;
    for (rt_u32 i = 0; i < emulated_tasks.first; i++)
        load_open(&l, 0);
    for (rt_u32 i = 0; i < emulated_tasks.n; i++) {
        l.e = &emulated_tasks.entries[i];
        emulated_now->forms = emulated_tasks.forms[i];
        if (mpk_body_loads(l.e->body))
            mpk_dispatch_load(l.e->body, l);
    }
    emulated_tasks.loaded = l.ring;
}

/* What others have to write, piece by piece in any order. */
static void emulated_reveal(void)
{
    rt_u32 order[EMULATED_LATE * EMULATED_SLICES], n = emulated_tasks.n_late * EMULATED_SLICES;
    for (rt_u32 i = 0; i < n; i++) {
        const rt_u32 k = emulated_random(i + 1);
        order[i] = order[k];
        order[k] = i;
    }
    for (rt_u32 i = 0; i < n; i++) {
        const rt_u32 which = order[i] / EMULATED_SLICES, slice = order[i] % EMULATED_SLICES;
        const emulated_late *late = &emulated_tasks.late[which];
        const size_t words = late->n_bytes / 4, first = words * slice / EMULATED_SLICES * 4;
        const size_t end = slice + 1 == EMULATED_SLICES ? late->n_bytes
                                                        : words * (slice + 1) / EMULATED_SLICES * 4;
        memcpy((char *)late->at + first, (const char *)emulated_tasks.kept[which] + first,
               end - first);
        emulated_idle = 0;
        if (emulated_tasks.entries[0].quiet)
            emulated_yield();
    }
}

/* The clerk: task after task is ready, the first after a while, and done when all warps say so. */
static void emulated_clerk(void)
{
    for (rt_u32 i = emulated_random(64); i; i--)
        emulated_yield();
    emulated_reveal();
    emulated_event.value = 1;
    for (rt_u32 i = 0; i < emulated_tasks.n; i++) {
        ptx_store_flag(&mpk_w.ready, i + 1);
        mpk_await_written(i);
    }
}

/* A thread that runs bodies. */
static void emulated_bodies(void)
{
    mpk_ring ring = {0, emulated_tasks.pages, 0, 0};
    for (rt_u32 i = 0, page; i < emulated_tasks.first; i++) {
        ring_take(&ring, &page);
        ring_release(page);
    }
    for (rt_u32 i = 0; i < emulated_tasks.n; i++) {
        const rt_entry *e = &emulated_tasks.entries[i];
        const rt_u32 live = mpk_w.live[e->live];
        emulated_now->forms = emulated_tasks.forms[i];
        mpk_task t = {e, e->hi[0] > live ? live : e->hi[0], mpk_w.live,
                      mpk_s + MPK_PAGES * MPK_PAGE_BYTES, &ring};
        __syncwarp();
        mpk_w.sides[mpk_thread() / 32].ordinal = i;
        __syncwarp();
        if (mpk_body_waits(e->body) || mpk_body_some(e->body)) {
            if (mpk_body_some(e->body))
                mpk_dispatch_some(e->body, t);
            else
                mpk_dispatch_waiting(e->body, t);
            continue;
        }
        if (t.hi0 < e->lo[0])
            t.hi0 = e->lo[0];
        const bool by_itself = mpk_body_many_waits(e->body);
        if (!by_itself)
            mpk_wait(t);
        if (by_itself || e->lo[0] < t.hi0 || mpk_body_loads(e->body))
            mpk_dispatch_body(e->body, t);
        if (!by_itself)
            mpk_trigger(t);
    }
    emulated_tasks.taken[emulated_now->number] = ring;
}

static void emulated_begin(void)
{
    const int i = emulated_now->number;
    i < EMULATED_BODIES  ? emulated_bodies()
    : i < EMULATED_CLERK ? emulated_load()
                         : emulated_clerk();
    emulated_now->done = 1;
    emulated_idle = 0;
    emulated_yield();
}

static void emulated_prepare(const rt_u32 *live, rt_u64 seed)
{
    emulated_state = seed * 2 + 1;
    emulated_n_bulk = emulated_n_pieces = emulated_n_awaits = emulated_idle = emulated_naps = 0;
    emulated_tasks.pages = emulated_random(2) ? MPK_PAGES : MPK_PAGES / 2;
    emulated_tasks.in_flight = emulated_random(2)
                                   ? emulated_tasks.pages
                                   : 1 + emulated_random(mpk_smaller(3, emulated_tasks.pages));
    emulated_tasks.first = emulated_random(emulated_tasks.pages);
    memset(&mpk_w, 0, sizeof mpk_w);
    memset(emulated_warps, 0, sizeof emulated_warps);
    memset(emulated_barriers, 0, sizeof emulated_barriers);
    memset(emulated_groups, 0, sizeof emulated_groups);
    memset(mpk_s, 0xff, sizeof mpk_s);
    memcpy(mpk_w.live, live, sizeof mpk_w.live);
    mpk_w.mode = RT_SERVE;
    mpk_w.begun = mpk_w.epoch = 1;
    mpk_w.counters = &emulated_event;
    mpk_w.index = emulated_index;
    mpk_w.k = &emulated_kernel;
    emulated_kernel.machine.n_workers = 1 + emulated_random(9);
    emulated_event.value = 0;
    for (int i = 0; i < MPK_PAGES; i++) {
        ptx_barrier_init(&mpk_w.full[i], 1);
        ptx_barrier_init(&mpk_w.empty[i], EMULATED_BODIES / 32);
    }
    for (int i = 0; i < 2 * MPK_BOXES; i++)
        ptx_barrier_init(&mpk_w.box_full[i / MPK_BOXES][i % MPK_BOXES], 1);
    for (int i = 0; i < MPK_ENTRIES; i++)
        ptx_barrier_init(&mpk_w.written[i], EMULATED_BODIES / 32);
    for (int i = 0; i < EMULATED_THREADS; i++) {
        emulated_thread *t = &emulated_threads[i];
        if (!t->stack && !(t->stack = malloc(EMULATED_STACK)))
            abort();
        getcontext(&t->start);
        t->start.uc_stack.ss_sp = t->stack;
        /* stacks that began at the same place of a page would share a few lines of the caches */
        t->start.uc_stack.ss_size = EMULATED_STACK - i % 64 * EMULATED_APART;
        t->start.uc_link = 0;
        makecontext(&t->start, emulated_begin, 0);
        t->number = i;
        t->begun = t->done = 0;
        t->waits = 0;
        t->n_copies = t->group = t->n_pieces = 0;
    }
}

/* Give one warp a turn; false: its threads are done. */
static bool emulated_turn(int warp)
{
    bool more = false;
    for (int i = warp * 32; i < warp * 32 + 32 && i < EMULATED_THREADS; i++) {
        emulated_thread *t = &emulated_threads[i];
        if (!t->done && (!t->waits || *t->waits != t->round))
            emulated_resume(t);
        more = more || !t->done;
    }
    return more;
}

/* Has each warp released a page as often as the ring has gone past it, and no other page? */
static bool emulated_released(void)
{
    const mpk_ring *ring = &emulated_tasks.loaded;
    for (rt_u32 i = 0; i < MPK_PAGES; i++) {
        emulated_mbarrier m;
        memcpy(&m, &mpk_w.empty[i], sizeof m);
        /* pages before ring->at have one round more */
        const rt_u32 odd = i < emulated_tasks.pages ? ring->parity ^ (i < ring->at) : 0;
        if (m.pending != m.expected || m.phase != odd)
            return false;
    }
    return true;
}

static int emulated_run_all(void)
{
    bool more[EMULATED_WARPS];
    int left = EMULATED_WARPS;
    /* a warp that gets no turn, and for how long: others may come far ahead of it */
    rt_u32 held = 0, hold = 0;
    memset(more, 1, sizeof more);
    while (left) {
        const rt_u32 warp = emulated_random(EMULATED_WARPS);
        if (!hold--) {
            held = emulated_random(2 * EMULATED_WARPS);
            hold = emulated_random(512);
        }
        if (warp != held && more[warp] && !(more[warp] = emulated_turn((int)warp)))
            left--;
        if (!emulated_random(8))
            emulated_arrive();
        if (++emulated_idle > EMULATED_PATIENCE)
            return EMULATED_STUCK;
    }
    for (int i = 0; i < EMULATED_BODIES; i++)
        if (memcmp(&emulated_tasks.taken[i], &emulated_tasks.loaded, sizeof(mpk_ring)) != 0)
            return EMULATED_RINGS_DIFFER;
    return emulated_released() ? EMULATED_OK : EMULATED_RELEASES;
}

/* These tasks, one after the other, on one worker; scratch_bytes: what their body has asked for;
 * late: what is not there before the first task's event or, if the tasks are quiet, becomes there
 * while they run. */
extern "C" int emulated_run(const rt_entry *entries, unsigned n, const unsigned *live,
                            unsigned scratch_bytes, const emulated_late *late, unsigned n_late,
                            unsigned long long seed)
{
    emulated_tasks.entries = entries;
    emulated_tasks.n = n;
    emulated_tasks.late = late;
    emulated_tasks.n_late = n_late;
    for (unsigned i = 0; i < n_late; i++) {
        if (!(emulated_tasks.kept[i] = malloc(late[i].n_bytes)))
            abort();
        memcpy(emulated_tasks.kept[i], late[i].at, late[i].n_bytes);
        memset(late[i].at, 0xff, late[i].n_bytes);
    }
    emulated_prepare(live, seed);
    int result = emulated_run_all();
    for (unsigned i = 0; i < n_late; i++)
        free(emulated_tasks.kept[i]);
    for (unsigned i = scratch_bytes; i < MPK_SCRATCH_BYTES + 1024; i++)
        if (mpk_s[MPK_PAGES * MPK_PAGE_BYTES + i] != (char)0xff)
            return EMULATED_SCRATCH;
    return result;
}

/* What the tasks to be run may run of the code for many tokens, each only what its record says
 * (gen_body.forms), and whether one loop does for wide tasks without boxes: a kernel whose tasks
 * they are has no more.  centred: the kernel has a layer_norm in some product. */
extern "C" void emulated_allow(const rt_u64 *forms, int one_wide, int centred)
{
    emulated_tasks.forms = forms;
    emulated_one_wide = one_wide;
    emulated_centred = centred;
}

/* Set (fails) or clear the abort flag that emulated threads see when they wait. */
extern "C" void emulated_fail(int fails)
{
    emulated_gives_up = fails ? &mpk_w.abort : 0;
}

/* ---- a loader ahead of its step ---- */

static rt_u32 emulated_aot;

static void emulated_run_ahead(void)
{
    mpk_load l;
    load_begin(&l, 0, MPK_PAGES);
    l.aot = emulated_aot;
    load_needs_step(&l);
    emulated_now->done = 1;
    emulated_yield();
}

/* The step that a loader's task belongs to has not begun.  Does it wait for that?  aot: it loads
 * AOT tasks.  asked: the bodies have requested a resync. */
extern "C" int emulated_waits(int aot, int asked)
{
    enum { LOADER = EMULATED_BODIES / 32, TURNS = 1000 };
    const rt_u32 live[sizeof mpk_w.live / sizeof *mpk_w.live] = {0};
    emulated_prepare(live, 1);
    mpk_w.begun = 0;
    mpk_w.resync = asked ? RESYNC_ASKED : RESYNC_NONE;
    emulated_aot = (rt_u32)aot;
    for (int i = LOADER * 32; i < LOADER * 32 + 32; i++)
        makecontext(&emulated_threads[i].start, emulated_run_ahead, 0);
    bool more = true;
    for (int i = 0; i < TURNS && more; i++)
        more = emulated_turn(LOADER);
    return more;
}

/* This is worker `index` of those that share rooms. */
extern "C" void emulated_join(unsigned index, char *parts, rt_room *rooms)
{
    emulated_index = index;
    emulated_kernel.parts = parts;
    emulated_kernel.rooms = rooms;
}

extern "C" int emulated_kv_at(int values, int token, int dim, int page_tokens, int size, int bytes)
{
    return values ? kv_value_at(token, dim, page_tokens, size, bytes)
                  : kv_key_at(token, dim, page_tokens, size, bytes);
}

#endif
