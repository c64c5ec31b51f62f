/* pinned.c - logits and masks of requests: host memory that is pinned, by which kernel and host
 * give them to each other while the kernel runs.
 *
 * Logits go to the host: a request lends a piece, the kernel writes there, the host copies them.
 * Masks come from the host: a copy engine takes them from a row of pinned memory into the step
 * area.  Where each GPU has a process of its own both are rank 0's.
 *
 * Locks: the books' lock guards all of it; m->lock is taken by put_mask, never the other way round.
 * Called by cuda.c, and through machine_def. */
#include <stdlib.h>

#include "cuda/cuda_machine.h"
#include "op/rules.h"

enum { LENT_AT_START = 16 }; /* pieces of pinned memory for logits */

/* ---- logits that the machine delivers: pinned memory, kept for the next request ---- */

/* One more piece of pinned memory, free; it stays until the machine stops, since pinning is slow
 * and may wait for the GPU.  The list may move: no pointer into it lasts over this call. */
static mpk_status add_logits(mpk_context *cx, cuda_machine *m, uint64_t n_bytes)
{
    if (m->n_logits == m->logits_capacity) {
        size_t capacity = m->logits_capacity ? 2 * m->logits_capacity : LENT_AT_START;
        cuda_logits *at = realloc(m->logits, capacity * sizeof *at);
        CHECK(cx, at, MPK_ENOMEM, "out of memory for a list of logits");
        m->logits = at;
        m->logits_capacity = capacity;
    }
    cuda_logits l = {.n_bytes = n_bytes};
    TRY(cuda_gpu_use(cx, m->gpu));
    TRY(cuda_host_alloc(cx, m->gpu, n_bytes, &l.host, &l.device));
    m->logits[m->n_logits++] = l;
    return MPK_OK;
}

/* machine_def's lend_logits, under the books' lock.  The smallest free piece that is large enough,
 * or a new one; *at is its address for the kernel. */
mpk_status cuda_lend_logits(mpk_context *cx, machine *base, float *to, uint64_t n, rt_u64 *at)
{
    cuda_machine *m = cuda_of(base);
    cuda_logits *best = NULL;
    uint64_t n_bytes = n * sizeof *to;
    for (cuda_logits *l = m->logits; l < m->logits + m->n_logits; l++)
        if (!l->lent && l->n_bytes >= n_bytes && (!best || l->n_bytes < best->n_bytes))
            best = l;
    if (!best) {
        TRY(add_logits(cx, m, n_bytes));
        best = &m->logits[m->n_logits - 1];
    }
    best->lent = true;
    *at = best->device;
    return MPK_OK;
}

/* machine_def's return_logits, under the books' lock, when the request is over: the kernel writes
 * there no more.  The piece at `at` is free again; unless `to` is NULL its numbers are copied there
 * first. */
void cuda_return_logits(machine *base, rt_u64 at, float *to, uint64_t n)
{
    cuda_machine *m = cuda_of(base);
    for (cuda_logits *l = m->logits; l < m->logits + m->n_logits; l++)
        if (l->lent && l->device == at) {
            if (to)
                memcpy(to, l->host, n * sizeof *to);
            l->lent = false;
        }
}

/* Some of the numbers while the piece stays lent: those of tokens that have come. */
void cuda_peek_logits(machine *base, rt_u64 at, float *to, uint64_t first, uint64_t n)
{
    cuda_machine *m = cuda_of(base);
    for (cuda_logits *l = m->logits; l < m->logits + m->n_logits; l++)
        if (l->lent && l->device == at)
            memcpy(to + first, (const float *)l->host + first, n * sizeof *to);
}

/* A piece for each slot, up to LENT_AT_START, before the kernel runs: an allocation later may have
 * to wait for it. */
mpk_status cuda_prepare_logits(mpk_context *cx, cuda_machine *m)
{
    if (m->is_elsewhere || !m->serving.ready || m->serving.logits == RT_NOWHERE)
        return MPK_OK;
    for (uint32_t i = 0; i < m->serving.n_slots && i < LENT_AT_START; i++)
        TRY(add_logits(cx, m, (uint64_t)m->serving.n_vocab * sizeof(float)));
    return MPK_OK;
}

/* ---- masks: a copy engine writes them into the step area while the kernel runs ---- */

/* Rows of masks have pinned copies of their own, [n_masks][rule_words], since the host may not wait
 * for a copy in every step; a copy from other memory would be one that waits. */
mpk_status cuda_prepare_masks(mpk_context *cx, cuda_machine *m)
{
    const rt_serving *s = &m->serving;
    uint64_t n_bytes = (uint64_t)s->n_masks * (1 + s->n_guesses) * s->rule_words * sizeof(rt_u32);
    cuda_address device;
    void *host;
    if (m->is_elsewhere || !s->ready || s->asks == RT_NOWHERE || !n_bytes)
        return MPK_OK;
    TRY(cuda_host_alloc(cx, m->gpu, n_bytes, &host, &device));
    m->masks = host;
    return MPK_OK;
}

/* Put the copies of a row on the stream: the bits first, then the number that says for which draw
 * they are.  One stream runs them in this order, so the kernel that sees the number has the bits.
 * Rows of masks follow the n_slots rows of rules in the same tensor. */
static mpk_status copy_mask(mpk_context *cx, cuda_machine *m, uint32_t row, uint32_t n_words)
{
    const rt_serving *s = &m->serving;
    const rt_u32 *from = m->masks + (uint64_t)row * s->rule_words;
    cuda_address to = m->areas[RT_STEP] + s->rules +
                      ((uint64_t)s->n_slots + row) * s->rule_words * sizeof(rt_u32);
    if (n_words)
        TRY(cuda_upload_on(cx, m->gpu, m->copies, to + MASK_BITS * sizeof(rt_u32), from + MASK_BITS,
                           n_words * sizeof(rt_u32)));
    return cuda_upload_on(cx, m->gpu, m->copies, to + MASK_NUMBER * sizeof(rt_u32),
                          from + MASK_NUMBER, sizeof(rt_u32));
}

/* The copies of a row are in order on one stream, bits before number, so a kernel that sees the
 * number (acquire; op/rules.h, rt_slots_find_masks) sees the bits.  A number above 1 follows a draw
 * with the number before it, so the row's last copies have ended and its pinned memory is free.
 * The first number of a request may follow copies of the row's last owner: wait for those, and then
 * for its own, since the request is sent next and must not find the last owner's number.  Where
 * drafts have masks several draws may follow each other at once, so there the row's last copies are
 * always waited for. */
static mpk_status write_mask(mpk_context *cx, cuda_machine *m, uint32_t row, const uint32_t *bits,
                             uint32_t n_words, uint32_t number)
{
    rt_u32 *at = m->masks + (uint64_t)row * m->serving.rule_words;
    TRY(cuda_gpu_use(cx, m->gpu));
    if (number <= 1 || m->serving.n_guesses)
        TRY(cuda_stream_wait(cx, m->gpu, m->copies));
    at[MASK_NUMBER] = number;
    if (bits)
        memcpy(at + MASK_BITS, bits, n_words * sizeof *bits);
    TRY(copy_mask(cx, m, row, bits ? n_words : 0));
    return number <= 1 ? cuda_stream_wait(cx, m->gpu, m->copies) : MPK_OK;
}

/* No caller takes an error here: the machine is lost, as with any failure of the driver. */
void cuda_put_mask(machine *base, uint32_t row, const uint32_t *bits, uint32_t n_words,
                   uint32_t number)
{
    cuda_machine *m = cuda_of(base);
    mpk_context cx = {0};
    mpk_status status = write_mask(&cx, m, row, bits, n_words, number);
    if (status == MPK_OK)
        return;
    pthread_mutex_lock(&m->lock);
    cuda_note_lost(m, m, status, cx.text);
    pthread_mutex_unlock(&m->lock);
}
