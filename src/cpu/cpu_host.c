/* cpu_host.c - the host's side of the rings: requests and commands in, tokens out.
 *
 * The host keeps a book of every request from submission until its end is drained.  What does not fit into the request
 * ring or the token arena waits in the book, in order, and moves up whenever someone drains.  A request that never
 * reached the machine ends in the book.  Nothing is lost, nothing is reordered.
 *
 * Commands cannot overflow their ring: a request has at most one cancel and one append under way, and the ring is
 * longer than twice the requests that the machine can know of.
 */
#include <stdlib.h>

#include "cpu/cpu_machine.h"
#include "rt/rt_step.h"

/* ---- what the program offers ---- */

/* Look up a tensor by name and check its shape: dims of -1 match anything.  RT_NOWHERE if it is not there or not so. */
static rt_u64 find_step(const cpu_machine *m, uint32_t graph, const char *name, ir_dtype dtype, uint32_t rank,
                        int64_t d0, int64_t d1)
{
    const ir_graph *g = m->image.ir[graph];
    ir_tensor_id id = ir_find(g, name);
    if (id == IR_NONE)
        return RT_NOWHERE;
    const ir_tensor *t = &g->tensors.at[id];
    bool fits = t->dtype == dtype && t->rank == rank && (d0 < 0 || t->dims[0] == d0) &&
                (rank < 2 || d1 < 0 || t->dims[1] == d1);
    return fits && m->image.places[graph][id].area == TG_STEP ? m->image.places[graph][id].offset : RT_NOWHERE;
}

static int64_t dim_of(const ir_graph *g, const char *name, uint32_t axis)
{
    ir_tensor_id id = ir_find(g, name);
    return id == IR_NONE || g->tensors.at[id].rank <= axis ? 0 : g->tensors.at[id].dims[axis];
}

/* The step tensors of one graph, as model.h names them. */
static void find_tensors(const cpu_machine *m, uint32_t graph, rt_serving *s)
{
    const rt_graph *g = &m->rt.graphs[graph];
    int64_t T = g->n_tokens, R = g->n_rows;
    s->tokens = find_step(m, graph, "tokens", IR_I32, 1, T, 0);
    s->positions = find_step(m, graph, "positions", IR_I32, 1, T, 0);
    s->slots = find_step(m, graph, "slots", IR_I32, 1, T, 0);
    s->pages = find_step(m, graph, "pages", IR_I32, 2, -1, -1);
    s->rows = find_step(m, graph, "rows", IR_I32, 1, R, 0);
    s->sampling = find_step(m, graph, "sampling", IR_F32, 2, R, 4);
    s->seeds = find_step(m, graph, "seeds", IR_I64, 1, R, 0);
    s->draws = find_step(m, graph, "draws", IR_I32, 1, R, 0);
    s->logits = find_step(m, graph, "logits", IR_F32, 2, R, -1);
    s->next = find_step(m, graph, "next", IR_I32, 1, R, 0);
}

static bool same_places(const rt_serving *a, const rt_serving *b)
{
    return a->tokens == b->tokens && a->positions == b->positions && a->slots == b->slots && a->pages == b->pages &&
           a->rows == b->rows && a->sampling == b->sampling && a->seeds == b->seeds && a->draws == b->draws &&
           a->logits == b->logits && a->next == b->next;
}

/* Does the program take requests, and of what size?  Every graph must keep the step tensors at the same places. */
static void fill_serving(cpu_machine *m)
{
    rt_serving *s = &m->serving, other = {0};
    const rt_graph *last = &m->rt.graphs[m->rt.n_graphs - 1];
    const ir_graph *ir = m->image.ir[m->rt.n_graphs - 1];
    find_tensors(m, m->rt.n_graphs - 1, s);
    s->max_tokens = last->n_tokens;
    s->max_rows = last->n_rows;
    s->n_vocab = s->logits == RT_NOWHERE ? 0 : (rt_u32)dim_of(ir, "logits", 1);
    s->n_slots = s->pages == RT_NOWHERE ? last->n_rows : (rt_u32)dim_of(ir, "pages", 0);
    if (s->pages != RT_NOWHERE) {
        s->pages_per_slot = (rt_u32)dim_of(ir, "pages", 1);
        s->n_pages = (rt_u32)dim_of(ir, "k_cache.0", 0);
        s->page_tokens = (rt_u32)dim_of(ir, "k_cache.0", 2);
    }
    s->ready = s->tokens != RT_NOWHERE && s->rows != RT_NOWHERE && (s->next != RT_NOWHERE || s->logits != RT_NOWHERE) &&
               s->n_slots && s->max_rows && (s->pages == RT_NOWHERE || (s->n_pages && s->page_tokens));
    for (uint32_t i = 0; i + 1 < m->rt.n_graphs; i++) {
        const rt_graph *g = &m->rt.graphs[i];
        find_tensors(m, i, &other);
        if (!same_places(s, &other) || g->n_tokens > s->max_tokens || g->n_rows > s->max_rows)
            s->ready = 0;
    }
}

/* ---- start and end ---- */

static uint32_t power_of_two(uint64_t n)
{
    uint32_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

/* Positions that one request may take. */
static uint64_t context_of(const rt_serving *s)
{
    uint64_t pages = s->n_pages < s->pages_per_slot ? s->n_pages : s->pages_per_slot;
    return s->n_pages ? pages * s->page_tokens : 1u << 16;
}

mpk_status cpu_host_prepare(mpk_context *cx, cpu_machine *m, const cpu_options *o)
{
    rt_machine *rt = &m->rt;
    fill_serving(m);
    if (!m->serving.ready)
        return MPK_OK;
    uint32_t slots = m->serving.n_slots, waiting = power_of_two(o->waiting_requests ? o->waiting_requests : 256);
    uint64_t tokens = o->token_entries ? o->token_entries : 1024;
    rt->request_mask = waiting - 1;
    rt->token_mask = power_of_two(tokens < 2 * (uint64_t)slots ? 2 * (uint64_t)slots : tokens) - 1;
    rt->command_mask = power_of_two(2 * ((uint64_t)waiting + slots + rt->token_mask + 1)) - 1;
    rt->n_arena = (uint64_t)(slots + 4) * context_of(&m->serving);
    rt->request_ring = &m->request_ring;
    rt->command_ring = &m->command_ring;
    rt->token_ring = &m->token_ring;
    NEW(cx, &m->arena, rt->requests, waiting);
    NEW(cx, &m->arena, rt->commands, rt->command_mask + 1);
    NEW(cx, &m->arena, rt->tokens, rt->token_mask + 1);
    NEW(cx, &m->arena, rt->slots, slots);
    NEW(cx, &m->arena, rt->free_pages, m->serving.n_pages);
    m->token_arena = calloc(rt->n_arena, sizeof *m->token_arena);
    CHECK(cx, m->token_arena, MPK_ENOMEM, "out of memory for %llu tokens of prompts", (unsigned long long)rt->n_arena);
    rt->token_arena = m->token_arena;
    while (m->serving.n_free < m->serving.n_pages) {
        rt->free_pages[m->serving.n_free] = m->serving.n_pages - 1 - m->serving.n_free;
        m->serving.n_free++;
    }
    rt_store_relaxed_device(&m->control.free_pages, m->serving.n_free);
    return MPK_OK;
}

static void entry_free(cpu_entry *e)
{
    free(e->tokens);
    free(e);
}

void cpu_host_free(cpu_machine *m)
{
    for (size_t i = 0; i < m->entries.n; i++)
        entry_free(m->entries.at[i]);
    free(m->entries.at);
    free(m->early);
    free(m->token_arena);
}

bool cpu_host_is_busy(cpu_machine *m)
{
    pthread_mutex_lock(&m->lock);
    bool busy = m->entries.n || m->n_early;
    pthread_mutex_unlock(&m->lock);
    return busy;
}

/* ---- the token arena: first fit among the regions of the requests that were sent ---- */

/* Does [at, at + n) overlap a region in use?  *end is then the first place behind it. */
static bool taken(const cpu_machine *m, uint64_t at, uint64_t n, uint64_t *end)
{
    for (size_t i = 0; i < m->entries.n; i++) {
        const cpu_region *r = &m->entries.at[i]->region;
        if (r->n && at < r->at + r->n && r->at < at + n) {
            *end = r->at + r->n;
            return true;
        }
    }
    return false;
}

static bool take_region(const cpu_machine *m, uint64_t n, cpu_region *out)
{
    uint64_t at = 0;
    while (at + n <= m->rt.n_arena)
        if (!taken(m, at, n, &at)) {
            *out = (cpu_region){at, n};
            return true;
        }
    return false;
}

/* ---- the book ---- */

static cpu_entry *find_entry(cpu_machine *m, uint64_t id, size_t *index)
{
    for (size_t i = 0; i < m->entries.n; i++)
        if (m->entries.at[i]->id == id) {
            *index = i;
            return m->entries.at[i];
        }
    return NULL;
}

static void remove_entry(cpu_machine *m, size_t index)
{
    entry_free(m->entries.at[index]);
    memmove(&m->entries.at[index], &m->entries.at[index + 1], (m->entries.n - index - 1) * sizeof *m->entries.at);
    m->entries.n--;
    m->entries_unsent -= index < m->entries_unsent;
}

static mpk_status add_entry(mpk_context *cx, cpu_machine *m, cpu_entry *e)
{
    if (m->entries.n == m->entries.capacity) {
        size_t capacity = m->entries.capacity ? 2 * m->entries.capacity : 64;
        cpu_entry **at = realloc(m->entries.at, capacity * sizeof *at);
        CHECK(cx, at, MPK_ENOMEM, "out of memory for %zu requests", capacity);
        m->entries.at = at;
        m->entries.capacity = capacity;
    }
    m->entries.at[m->entries.n++] = e;
    return MPK_OK;
}

static void send_command(cpu_machine *m, rt_command c)
{
    rt_machine *rt = &m->rt;
    rt->commands[rt_load_relaxed_device(&rt->command_ring->written) & rt->command_mask] = c;
    rt_ring_wrote(rt->command_ring, 1); /* partner: rt_step_commands */
    cpu_ring(m);
}

/* Move what waits into the machine's ring, as far as ring and arena allow. */
static void send_waiting(cpu_machine *m)
{
    rt_machine *rt = &m->rt;
    bool sent = false;
    while (m->entries_unsent < m->entries.n && rt_ring_space(rt->request_ring, rt->request_mask + 1)) {
        cpu_entry *e = m->entries.at[m->entries_unsent];
        if (!take_region(m, e->request.n_prompt, &e->region))
            break;
        memcpy(m->token_arena + e->region.at, e->tokens, e->region.n * sizeof *e->tokens);
        free(e->tokens);
        e->tokens = NULL;
        e->request.prompt = e->region.at;
        rt->requests[rt_load_relaxed_device(&rt->request_ring->written) & rt->request_mask] = e->request;
        rt_ring_wrote(rt->request_ring, 1); /* partner: rt_step_admit */
        e->sent = sent = true;
        if (e->cancelled)
            send_command(m, (rt_command){.kind = RT_CANCEL, .id = e->id});
        m->entries_unsent++;
    }
    if (sent)
        cpu_ring(m);
}

/* ---- requests ---- */

/* Why a request cannot be taken, before it enters any queue. */
static mpk_status check_request(mpk_context *cx, const cpu_machine *m, const cpu_request *r, const rt_request *to)
{
    const rt_serving *s = &m->serving;
    unsigned long long context = context_of(s);
    CHECK(cx, s->ready, MPK_EUNSUPPORTED,
          "this program takes no requests: it lacks the step inputs of a language model");
    CHECK(cx, r->n_tokens, MPK_EARG, "the prompt has no token");
    CHECK(cx, r->n_eos <= RT_MAX_EOS, MPK_ELIMIT, "%u tokens end the request, at most %d can", r->n_eos, RT_MAX_EOS);
    CHECK(cx, !r->host_samples || (r->logits && s->logits != RT_NOWHERE), MPK_EARG,
          "the program gives no logits, or there is no room for them");
    CHECK(cx, r->n_tokens <= context, MPK_ELIMIT, "the prompt has %u tokens, the context holds %llu", r->n_tokens,
          context);
    CHECK(cx, rt_request_limit(s, to), MPK_ELIMIT,
          "%u tokens of prompt and %u of answer do not fit into a context of %llu: ask for at most %llu", r->n_tokens,
          r->max_tokens, context, context - r->n_tokens);
    return MPK_OK;
}

static void fill_request(rt_request *to, const cpu_request *r)
{
    *to = (rt_request){.logits = (rt_u64)(uintptr_t)r->logits,
                       .seed = r->seed,
                       .n_prompt = r->n_tokens,
                       .max_tokens = r->max_tokens,
                       .flags = (r->host_samples ? RT_HOST_SAMPLES : 0) |
                                (r->host_samples && r->all_logits ? RT_ALL_LOGITS : 0),
                       .n_eos = r->n_eos,
                       .temperature = r->temperature,
                       .top_k = r->top_k,
                       .top_p = r->top_p,
                       .min_p = r->min_p};
    for (uint32_t i = 0; i < r->n_eos && i < RT_MAX_EOS; i++)
        to->eos[i] = r->eos[i];
}

mpk_status cpu_submit(mpk_context *cx, cpu_machine *m, const cpu_request *r, uint64_t *id)
{
    rt_request request;
    fill_request(&request, r);
    TRY(check_request(cx, m, r, &request));
    TRY(cpu_check(cx, m));
    cpu_entry *e = calloc(1, sizeof *e);
    int32_t *tokens = malloc(r->n_tokens * sizeof *tokens);
    if (!e || !tokens) {
        free(e);
        free(tokens);
        FAIL(cx, MPK_ENOMEM, "out of memory for a request of %u tokens", r->n_tokens);
    }
    memcpy(tokens, r->tokens, r->n_tokens * sizeof *tokens);
    e->tokens = tokens;
    e->request = request;
    pthread_mutex_lock(&m->lock);
    e->id = e->request.id = ++m->next_id;
    *id = e->id;
    mpk_status status = add_entry(cx, m, e);
    if (status == MPK_OK)
        send_waiting(m);
    else
        entry_free(e);
    pthread_mutex_unlock(&m->lock);
    return status;
}

static mpk_status append_locked(mpk_context *cx, cpu_machine *m, uint64_t id, const int32_t *tokens, uint32_t n,
                                float *logits)
{
    size_t index;
    cpu_entry *e = find_entry(m, id, &index);
    CHECK(cx, e && e->ready, MPK_EARG, "request %llu does not wait for tokens", (unsigned long long)id);
    CHECK(cx, n && logits, MPK_EARG, "no tokens to append, or no room for their logits");
    cpu_region old = e->region;
    e->region.n = 0; /* they have been fed */
    if (!take_region(m, n, &e->region)) {
        e->region = old;
        FAIL(cx, MPK_ELIMIT, "no room for %u more tokens among the waiting prompts", n);
    }
    memcpy(m->token_arena + e->region.at, tokens, n * sizeof *tokens);
    e->ready = false;
    send_command(
        m,
        (rt_command){.kind = RT_APPEND, .n = n, .id = id, .tokens = e->region.at, .logits = (rt_u64)(uintptr_t)logits});
    return MPK_OK;
}

mpk_status cpu_append(mpk_context *cx, cpu_machine *m, uint64_t id, const int32_t *tokens, uint32_t n, float *logits)
{
    TRY(cpu_check(cx, m));
    pthread_mutex_lock(&m->lock);
    mpk_status status = append_locked(cx, m, id, tokens, n, logits);
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* A request that the machine has not seen ends here. */
static void end_early(cpu_machine *m, size_t index)
{
    if (m->n_early == m->early_capacity) {
        size_t capacity = m->early_capacity ? 2 * m->early_capacity : 16;
        rt_token *at = realloc(m->early, capacity * sizeof *at);
        if (!at) {
            m->entries.at[index]->cancelled = true; /* it stays in the book, and is cancelled once it has been sent */
            return;
        }
        m->early = at;
        m->early_capacity = capacity;
    }
    m->early[m->n_early++] = (rt_token){.id = m->entries.at[index]->id, .token = -1, .reason = RT_CANCELLED};
    remove_entry(m, index);
    rt_ring_host(&m->rt);
}

void cpu_cancel(cpu_machine *m, uint64_t id)
{
    size_t index;
    pthread_mutex_lock(&m->lock);
    cpu_entry *e = find_entry(m, id, &index);
    if (e && !e->sent) {
        end_early(m, index);
    } else if (e && !e->cancelled) {
        e->cancelled = true;
        send_command(m, (rt_command){.kind = RT_CANCEL, .id = id});
    }
    pthread_mutex_unlock(&m->lock);
}

/* ---- draining ---- */

/* One entry of the token ring has been read: keep the book. */
static void note_token(cpu_machine *m, const rt_token *t)
{
    size_t index;
    cpu_entry *e = find_entry(m, t->id, &index);
    if (e && t->reason != RT_GOING)
        remove_entry(m, index);
    else if (e && t->token < 0)
        e->ready = true;
}

/* Take what is there, without waiting. */
static uint32_t drain_locked(cpu_machine *m, rt_token *out, uint32_t most)
{
    rt_machine *rt = &m->rt;
    uint32_t n = 0, from_ring = 0, there = rt_ring_ready(rt->token_ring),
             first = rt_load_relaxed_device(&rt->token_ring->read);
    for (; n < most && m->n_early; n++) {
        out[n] = m->early[0];
        memmove(m->early, m->early + 1, --m->n_early * sizeof *m->early);
    }
    for (; n < most && from_ring < there; n++, from_ring++) {
        out[n] = rt->tokens[(first + from_ring) & rt->token_mask];
        note_token(m, &out[n]);
    }
    if (from_ring) {
        rt_ring_took(rt->token_ring, from_ring); /* partner: rt_ring_space in the step task */
        send_waiting(m);
        cpu_ring(m); /* it may have waited for room */
    }
    return n;
}

mpk_status cpu_drain(mpk_context *cx, cpu_machine *m, rt_token *out, uint32_t most, uint64_t timeout_ns, uint32_t *n)
{
    uint64_t end = timeout_ns == UINT64_MAX ? UINT64_MAX : clock_ns() + timeout_ns;
    CHECK(cx, m->serving.ready, MPK_EUNSUPPORTED, "this program takes no requests");
    for (;;) {
        rt_u32 bell = rt_load_acquire_system(&m->control.host_bell); /* before looking */
        pthread_mutex_lock(&m->lock);
        *n = drain_locked(m, out, most);
        bool nudged = *n == 0 && m->nudged;
        m->nudged = m->nudged && !nudged;
        pthread_mutex_unlock(&m->lock);
        if (*n)
            return MPK_OK;
        TRY(cpu_check(cx, m));
        uint64_t now = clock_ns();
        if (nudged || now >= end)
            return MPK_OK;
        rt_sleep(&m->control.host_bell, bell, end == UINT64_MAX ? RT_FOREVER : end - now);
    }
}

void cpu_nudge(cpu_machine *m)
{
    pthread_mutex_lock(&m->lock);
    m->nudged = true;
    pthread_mutex_unlock(&m->lock);
    rt_ring_host(&m->rt);
}
