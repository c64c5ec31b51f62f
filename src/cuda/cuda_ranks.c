/* cuda_ranks.c - one process for each GPU of a program (docs/gpus.md, "One process for each peer").
 *
 * Input: processes that have met (host/ranks.h), each with the same image, and in each the machines
 * of all GPUs, planned alike.  One of these is the process's own: it has a GPU, memory, a kernel.
 * The others are records: their plan, and the addresses at which this process has mapped what GPUs
 * touch of each other.  Output: these addresses, so that tables.c, peers.c and launch.c need not
 * know whose process drives a GPU.
 *
 *   block of each GPU   step area, temporaries, what is carried, tables (counters, control block,
 *                       stop word): one piece, made by its process and mapped by all
 *                       (driver_shared.c)
 *   memory of the host  mapped by all and pinned by each: the mailbox of every GPU, and the words
 *                       below
 *   each one's own      weights, KV cache, sums of tiles; of rank 0 rings, logits, masks, books
 *
 * Since all mailboxes are there, each process sees by itself how every kernel is, whose fault ended
 * it, and tells all kernels to stop: that needs no process but the one that does it.  What a
 * process has to do for its GPU is to launch.
 *
 * A launch, for which rank 0 has work; L: its number.
 *
 *   1. rank 0    finds that all kernels have said their end, takes back the stop words of its GPU,
 *                and stores wanted = L
 *   2. others    take back the words of theirs, wait for that, say RT_RUNNING in the mailbox, and
 *                store prepared = L
 *   3. rank 0    has read L in all of these, and stores go = L
 *   4. all       launch
 *
 * No kernel of L runs before every stop word is taken back (2, 3), so none is lost.  What a kernel
 * stores to the memory of one that has not begun is found there when it begins, as between regimes
 * (device/role/regime.cuh).  A GPU counts as running from (2) on, so rank 0 asks for L + 1 only
 * when every kernel of L has begun and ended, and no stop word of L is under way.  A number is
 * never used twice.
 *
 * Ends.  The first loss that a process sees it writes into its note, once: words, then `told`, with
 * release.  Then it tells all kernels to stop and rings the bells, and each process that reads the
 * note fails with the same error.  A process that was killed writes none: the sockets that the
 * others have to it end (ranks_watch).
 *
 * Locks: m->lock is held by callers of cuda_ranks_launch and cuda_ranks_look.  The watch's thread
 * takes none, since a launch that waits for the process which has ended holds it.
 *
 * Called by cuda.c and launch.c. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/map.h"
#include "base/thread.h"
#include "cuda/cuda_machine.h"

enum {
    BOX_BYTES = 4096,     /* of a mailbox: a page each, as it is pinned */
    SPIN_NS = 50000,      /* of a wait for another process, before it sleeps */
    SLEEP_NS = 20000,     /* then */
    REGIMES_NS = 200000,  /* between looks at a kernel which others must follow on the stream */
    RUNS_NS = 2000000,    /* between looks at one that only may fail */
    RESTS_NS = 100000000, /* while none runs; the bell is heard at once */
    WORDS_BYTES = ERROR_TEXT_BYTES,
};

/* What one process tells the others. */
typedef struct rank_note {
    rt_word prepared;   /* the launch for which its GPU's words are taken back */
    rt_word told;       /* 1: it cannot go on, and the rest says why */
    rt_word has_kernel; /* 0: none, whatever the state in the mailbox */
    rt_u32 status;
    char words[WORDS_BYTES];
    char apart[RT_LINE];
} rank_note;

typedef struct rank_words {
    rt_word wanted, go; /* rank 0's: see above */
    rt_word bell;       /* counts whatever a process may sleep for */
    char apart[RT_LINE];
    rank_note notes[IR_MAX_PEERS];
} rank_words;

struct cuda_ranks {
    host_ranks *met;
    cuda_machine *m; /* the first one's, which others see */
    char *mapping;   /* the boxes, then the words; NULL: not mapped */
    size_t mapping_bytes;
    bool is_pinned;
    rank_words *words;
    cuda_shared blocks[IR_MAX_PEERS];
    int descriptor; /* of this process's block; -1: none */
    bool has_begun, attends;
    pthread_t thread;
    rt_u32 prepared, started; /* the thread's: launches */
    _Atomic bool leaves, has_told;
};

/* ---- meeting ---- */

mpk_status cuda_ranks_open(mpk_context *cx, cuda_machine *m)
{
    cuda_ranks *r;
    if (!m->options.ranks)
        return MPK_OK;
    CHECK(cx, m->n_peers == ranks_count(m->options.ranks), MPK_EARG,
          "%u ranks have met, and the program has %u peers", ranks_count(m->options.ranks),
          m->n_peers);
    NEW(cx, &m->arena, r, 1);
    r->met = m->options.ranks;
    r->m = m;
    r->descriptor = -1;
    for (uint32_t i = 0; i < m->n_peers; i++) {
        m->peers[i]->ranks = r;
        m->peers[i]->is_elsewhere = i != ranks_rank(r->met);
    }
    return MPK_OK;
}

/* What has to be the same, or fit, in all. */
typedef struct card {
    uint64_t program;     /* hash of the image */
    uint64_t block_bytes; /* as planned */
    char pci[32];         /* where its GPU is */
} card;

static uint64_t place(uint64_t *n, uint64_t bytes)
{
    const uint64_t at = *n;
    *n += (bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
    return at;
}

/* The addresses of a GPU's block, which begins at `at`.  Returns its bytes. */
static uint64_t lay_out(cuda_machine *p, cuda_address at)
{
    uint64_t n = 0;
    p->areas[RT_STEP] = at + place(&n, p->windows[RT_STEP].n_bytes);
    p->areas[RT_TEMPS] = at + place(&n, p->windows[RT_TEMPS].n_bytes);
    p->carried_block = at + place(&n, p->carriers.n_bytes);
    p->table_block = at + place(&n, p->layout.n_bytes);
    return n;
}

static void forget(cuda_machine *p)
{
    p->areas[RT_STEP] = p->areas[RT_TEMPS] = p->carried_block = p->table_block = 0;
}

static uint64_t block_bytes(cuda_machine *p)
{
    const uint64_t n = lay_out(p, 0);
    forget(p);
    return n;
}

/* Each process counts its GPUs as the others do: so no two have the same one, and the links that
 * were looked at are those that are used. */
static mpk_status check_card(mpk_context *cx, const cuda_ranks *r, const card *of, uint32_t rank)
{
    cuda_machine *p = r->m->peers[rank];
    cuda_facts f;
    CHECK(cx, of->block_bytes == block_bytes(p), MPK_EARG,
          "rank %u has other tables than this process expects: start all ranks with the same "
          "options",
          rank);
    TRY(cuda_driver_describe(cx, p->driver, p->options.device, &f));
    CHECK(cx, strncmp(of->pci, f.pci, sizeof f.pci) == 0, MPK_EARG,
          "rank %u computes on the GPU at %.31s, and GPU %u of another rank is at %s: give all "
          "ranks the same GPUs in the same order (CUDA_VISIBLE_DEVICES)",
          rank, of->pci, p->options.device, f.pci);
    return MPK_OK;
}

/* The boxes and the words, and the boxes as this process's GPU sees them. */
static mpk_status map_host_memory(mpk_context *cx, cuda_ranks *r)
{
    const cuda_machine *own = cuda_own(r->m);
    cuda_address there = 0;
    void *at;
    _Static_assert(sizeof(cuda_mailbox) <= BOX_BYTES, "a mailbox has a page");
    r->mapping_bytes = (size_t)r->m->n_peers * BOX_BYTES + sizeof(rank_words);
    TRY(ranks_map(cx, r->met, r->mapping_bytes, &at));
    r->mapping = at;
    r->words = (rank_words *)(void *)(r->mapping + (size_t)r->m->n_peers * BOX_BYTES);
    TRY(cuda_host_map(cx, own->gpu, r->mapping, r->mapping_bytes, &there));
    r->is_pinned = true;
    for (uint32_t i = 0; i < r->m->n_peers; i++) {
        r->m->peers[i]->mailbox = (cuda_mailbox *)(void *)(r->mapping + (size_t)i * BOX_BYTES);
        r->m->peers[i]->mailbox_at = there + (uint64_t)i * BOX_BYTES;
    }
    return MPK_OK;
}

mpk_status cuda_ranks_agree(mpk_context *cx, cuda_machine *m)
{
    cuda_ranks *r = m->ranks;
    card all[IR_MAX_PEERS];
    const rt_header *h = m->machine.image.block;
    if (!r)
        return MPK_OK;
    card mine = {.program = hash_bytes(h, (size_t)h->n_bytes, 0),
                 .block_bytes = block_bytes(cuda_own(m))};
    snprintf(mine.pci, sizeof mine.pci, "%s", cuda_gpu_facts(m->gpu)->pci);
    TRY(ranks_exchange(cx, r->met, &mine, sizeof mine, all));
    for (uint32_t i = 1; i < m->n_peers; i++)
        CHECK(cx, all[i].program == all[0].program, MPK_EARG,
              "rank %u has compiled another program than rank 0", i);
    for (uint32_t i = 0; i < m->n_peers; i++)
        TRY(check_card(cx, r, &all[i], i));
    return map_host_memory(cx, r);
}

/* ---- memory ---- */

mpk_status cuda_ranks_allocate(mpk_context *cx, cuda_machine *m)
{
    cuda_shared *block = m->ranks ? &m->ranks->blocks[m->peer] : NULL;
    if (!block)
        return MPK_OK;
    TRY(cuda_shared_make(cx, m->gpu, "what other GPUs reach", block_bytes(m), block,
                         &m->ranks->descriptor));
    lay_out(m, block->at);
    return MPK_OK;
}

/* Blocks of the others; their descriptors are closed by the caller. */
static mpk_status open_blocks(mpk_context *cx, cuda_ranks *r, const int *descriptors,
                              const uint64_t *n_bytes)
{
    cuda_machine *own = cuda_own(r->m);
    TRY(cuda_gpu_use(cx, own->gpu));
    for (uint32_t i = 0; i < r->m->n_peers; i++) {
        if (!r->m->peers[i]->is_elsewhere)
            continue;
        NOTE(cx, cuda_shared_open(cx, own->gpu, descriptors[i], n_bytes[i], &r->blocks[i]),
             "reaching the GPU of rank %u", i);
        lay_out(r->m->peers[i], r->blocks[i].at);
    }
    return MPK_OK;
}

mpk_status cuda_ranks_share(mpk_context *cx, cuda_machine *m)
{
    cuda_ranks *r = m->ranks;
    uint64_t n_bytes[IR_MAX_PEERS];
    int descriptors[IR_MAX_PEERS];
    if (!r)
        return MPK_OK;
    TRY(ranks_exchange(cx, r->met, &r->blocks[ranks_rank(r->met)].n_bytes, sizeof *n_bytes,
                       n_bytes));
    TRY(ranks_pass(cx, r->met, r->descriptor, descriptors));
    mpk_status status = open_blocks(cx, r, descriptors, n_bytes);
    for (uint32_t i = 0; i < m->n_peers; i++)
        if (descriptors[i] >= 0)
            close(descriptors[i]);
    return status;
}

void cuda_ranks_release(cuda_machine *m)
{
    cuda_ranks *r = m->ranks;
    const cuda_machine *own = cuda_own(m);
    if (!r)
        return;
    for (uint32_t i = 0; i < m->n_peers; i++) {
        cuda_shared_release(own->gpu, &r->blocks[i]);
        forget(m->peers[i]);
        m->peers[i]->mailbox = NULL;
    }
    if (r->descriptor >= 0)
        close(r->descriptor);
    if (r->is_pinned)
        cuda_host_unregister(own->gpu, r->mapping);
    if (r->mapping)
        munmap(r->mapping, r->mapping_bytes);
    r->mapping = NULL;
}

/* ---- losses ---- */

/* A process may sleep in its thread, or, in rank 0, for news. */
static void ring(cuda_ranks *r)
{
    rt_word *bells[] = {&r->words->bell, &r->m->peers[0]->mailbox->bell};
    for (int i = 0; i < 2; i++) {
        rt_add_acq_rel_system(bells[i], 1);
        rt_wake(bells[i]);
    }
}

void cuda_ranks_tell(cuda_machine *m, mpk_status status, const char *words)
{
    cuda_ranks *r = m->ranks;
    if (!r || atomic_exchange(&r->has_told, true))
        return;
    rank_note *n = &r->words->notes[ranks_rank(r->met)];
    n->status = (rt_u32)status;
    snprintf(n->words, sizeof n->words, "%s", words);
    rt_store_release_system(&n->told, 1); /* partner: cuda_ranks_look */
    cuda_tell_kernels(m, 1);
    ring(r);
}

static void tell_end(cuda_ranks *r, uint32_t rank)
{
    char words[96];
    snprintf(words, sizeof words, "the process of rank %u has ended: its own message says why",
             rank);
    cuda_ranks_tell(r->m, MPK_EDEVICE, words);
}

/* The watch's thread.  What the process has told before it ended says more. */
static void ended(void *user, uint32_t rank)
{
    cuda_ranks *r = user;
    rank_note *n = &r->words->notes[rank];
    rt_store_release_system(&n->has_kernel, 0);
    if (rt_load_acquire_system(&n->told))
        cuda_ranks_tell(r->m, (mpk_status)n->status, n->words);
    else
        tell_end(r, rank);
}

void cuda_ranks_look(cuda_machine *m)
{
    for (uint32_t i = 0; m->ranks && i < m->n_peers; i++) {
        const rank_note *n = &m->ranks->words->notes[i];
        if (rt_load_acquire_system(&n->told))
            cuda_note_lost(m, NULL, (mpk_status)n->status, n->words);
    }
}

void cuda_ranks_note_kernel(const cuda_machine *m, bool is_there)
{
    if (m->ranks)
        rt_store_release_system(&m->ranks->words->notes[m->peer].has_kernel, is_there);
}

bool cuda_ranks_has_ended(const cuda_machine *m)
{
    return rt_load_acquire_system(&m->mailbox->state) != RT_RUNNING ||
           !rt_load_acquire_system(&m->ranks->words->notes[m->peer].has_kernel);
}

/* ---- launches ---- */

/* Rank 0, with the lock: until the process of a rank has taken back its words, or cannot. */
static mpk_status await_prepared(mpk_context *cx, cuda_ranks *r, uint32_t rank, rt_u32 number,
                                 uint64_t end)
{
    const uint64_t begin = clock_ns();
    char words[96];
    while (rt_load_acquire_system(&r->words->notes[rank].prepared) != number) {
        cuda_ranks_look(r->m);
        if (r->m->lost)
            FAIL(cx, r->m->lost_status, "%s", r->m->lost_words);
        if (clock_ns() > end) {
            snprintf(words, sizeof words, "the process of rank %u does not start its kernel", rank);
            cuda_note_lost(r->m, NULL, MPK_ESTALLED, words);
        }
        if (clock_ns() - begin > SPIN_NS)
            nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
        else
            rt_pause();
    }
    return MPK_OK;
}

mpk_status cuda_ranks_launch(mpk_context *cx, cuda_machine *m)
{
    cuda_ranks *r = m->ranks;
    if (!r)
        return MPK_OK;
    const uint64_t end = clock_ns() + m->options.stall_ns;
    const rt_u32 number = rt_load_acquire_system(&r->words->wanted) + 1;
    rt_store_release_system(&r->words->wanted, number); /* partner: follow */
    ring(r);
    for (uint32_t i = 1; i < m->n_peers; i++)
        TRY(await_prepared(cx, r, i, number, end));
    rt_store_release_system(&r->words->go, number); /* partner: follow */
    ring(r);
    return MPK_OK;
}

/* Other ranks, with the lock: do what rank 0 has asked for. */
static mpk_status follow(mpk_context *cx, cuda_ranks *r)
{
    const rt_u32 wanted = rt_load_acquire_system(&r->words->wanted),
                 go = rt_load_acquire_system(&r->words->go);
    if (wanted != r->prepared) {
        TRY(cuda_prepare_kernels(cx, r->m));
        r->prepared = wanted;
        rt_store_release_system(&r->words->notes[ranks_rank(r->met)].prepared, wanted);
    }
    if (!go || go != r->prepared) /* 0: none was asked for, so there is nothing to refill */
        return MPK_OK;
    if (r->started == go)
        return cuda_refill_kernels(cx, r->m);
    r->started = go;
    return cuda_start_kernels(cx, r->m);
}

/* How long the thread may sleep. */
static uint64_t pause_ns(const cuda_ranks *r)
{
    if (rt_load_acquire_system(&cuda_own(r->m)->mailbox->state) != RT_RUNNING)
        return RESTS_NS;
    return r->m->source.n_regimes > 1 ? REGIMES_NS : RUNS_NS;
}

static void *attend(void *argument)
{
    cuda_ranks *r = argument;
    while (!r->leaves) {
        mpk_context cx = {0};
        const rt_u32 seen = rt_load_acquire_system(&r->words->bell);
        pthread_mutex_lock(&r->m->lock);
        cuda_look(r->m, false);
        mpk_status status = r->m->lost ? MPK_OK : follow(&cx, r);
        if (status != MPK_OK)
            cuda_note_lost(r->m, cuda_own(r->m), status, cx.text);
        const uint64_t pause = pause_ns(r);
        pthread_mutex_unlock(&r->m->lock);
        rt_sleep(&r->words->bell, seen, pause);
    }
    return NULL;
}

/* ---- begin and end ---- */

/* The exchange is the moment from which on all have their tables and know all addresses. */
mpk_status cuda_ranks_begin(mpk_context *cx, cuda_machine *m)
{
    cuda_ranks *r = m->ranks;
    uint32_t all[RANKS_MOST];
    if (!r)
        return MPK_OK;
    const uint32_t rank = ranks_rank(r->met);
    TRY(ranks_exchange(cx, r->met, &rank, sizeof rank, all));
    TRY(ranks_watch(cx, r->met, (ranks_watcher){.ended = ended, .user = r}));
    r->has_begun = true;
    if (!rank)
        return MPK_OK;
    TRY(thread_start(cx, &r->thread, attend, r));
    r->attends = true;
    return MPK_OK;
}

/* Rank 0 stops the machine for all.  Another rank that stops before leaves all others without a
 * part. */
void cuda_ranks_leave(cuda_machine *m)
{
    cuda_ranks *r = m->ranks;
    if (!r || !r->has_begun)
        return;
    if (r->attends) {
        r->leaves = true;
        ring(r);
        pthread_join(r->thread, NULL);
        r->attends = false;
    }
    if (ranks_rank(r->met) && !ranks_closed(r->met))
        tell_end(r, ranks_rank(r->met));
}

void cuda_ranks_close(cuda_machine *m)
{
    if (m->ranks)
        ranks_unwatch(m->ranks->met);
}
