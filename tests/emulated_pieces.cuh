/* emulated_pieces.cuh - copies of the loader's lanes, for GPUs without bulk copies: 16 bytes each,
 * and arrivals at barriers that wait for a lane's own copies so far.
 *
 * A copy arrives some time later, in any order; emulated_arrive lets some of them arrive.  A part
 * of emulated_warps.cuh, which includes it after its barriers. */
#ifndef EMULATED_PIECES_CUH
#define EMULATED_PIECES_CUH

enum {
    EMULATED_PIECES = 4096, /* under way */
    EMULATED_AWAITS = 1024, /* arrivals to come */
};

/* A lane's copy, and an arrival that comes when `left` copies that the lane has asked for before
 * have ended; `number` counts both. */
struct emulated_piece {
    void *to;
    const void *from;
    int thread;
    rt_u64 number;
};
struct emulated_await {
    rt_u64 *barrier;
    int thread;
    rt_u64 number;
    rt_u32 left;
};

static emulated_piece emulated_pieces[EMULATED_PIECES];
static emulated_await emulated_awaits[EMULATED_AWAITS];
static rt_u32 emulated_n_pieces, emulated_n_awaits;
static rt_u64 emulated_asked; /* pieces and arrivals so far */

/* The arrivals of a lane that waited for a piece more. */
static inline void emulated_end_piece(const emulated_piece &p)
{
    emulated_threads[p.thread].n_pieces--;
    for (rt_u32 i = emulated_n_awaits; i-- > 0;) {
        emulated_await *a = &emulated_awaits[i];
        if (a->thread != p.thread || a->number < p.number || --a->left)
            continue;
        emulated_count(a->barrier, 1, 0);
        *a = emulated_awaits[--emulated_n_awaits];
    }
}
/* Some of the lanes' copies that are under way arrive, in any order. */
static inline void emulated_arrive_pieces(void)
{
    for (rt_u32 n = emulated_random(64); n && emulated_n_pieces; n--) {
        const rt_u32 i = emulated_random(emulated_n_pieces);
        const emulated_piece p = emulated_pieces[i];
        emulated_pieces[i] = emulated_pieces[--emulated_n_pieces];
        memcpy(p.to, p.from, 16);
        emulated_end_piece(p);
        emulated_idle = 0;
    }
}
static inline void ptx_copy_piece(rt_u32 to, const void *from)
{
    while (emulated_n_pieces == EMULATED_PIECES)
        emulated_arrive_pieces();
    emulated_pieces[emulated_n_pieces++] = {(void *)emulated_aligned<16>(mpk_s + to),
                                            emulated_aligned<16>(from), emulated_now->number,
                                            emulated_asked++};
    emulated_now->n_pieces++;
}
static inline void ptx_copy_piece_once(rt_u32 to, const void *from, rt_u64)
{
    ptx_copy_piece(to, from);
}
static inline void ptx_barrier_await_copies(rt_u64 *b)
{
    if (!emulated_now->n_pieces)
        return;
    while (emulated_n_awaits == EMULATED_AWAITS)
        emulated_arrive_pieces();
    if (!emulated_now->n_pieces) /* they have just ended */
        return;
    emulated_mbarrier m;
    memcpy(&m, b, sizeof m);
    m.pending++;
    memcpy(b, &m, sizeof m);
    emulated_awaits[emulated_n_awaits++] = {b, emulated_now->number, emulated_asked++,
                                            emulated_now->n_pieces};
}

#endif
