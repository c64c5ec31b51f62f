/* rt_kv.h - pages of the KV cache: taken, shared by name, kept when no slot holds them, evicted
 * (docs/runtime.md).
 *
 * Names.  The keys and values of a page depend on the page's tokens and on all tokens before them,
 * so the page is named after all of them: the text t_1 ... t_n has the name (((k + t_1 + 1) k + t_2
 * + 1) k ...) modulo 2^61 - 1, for two secret keys k.  Two different texts of at most n tokens have
 * the same name with a probability below (n / 2^61)^2, whatever the texts are, as long as their
 * author does not know the keys.
 *
 * Invariants.
 *   - Nothing is read before it is written: a name enters the table when the step is built that
 *     writes the page's last token, and only later steps may read the page (rt_kv_page.built).
 *   - What is found is a whole prefix: pages are let go from the last to the first and evicted in
 *     the same order, so a page outlives all pages after it in its text.
 *   - A page is free, kept, or held (rt_kv_page), and n_free + n_kept + held pages = n_pages.
 *
 * The step task alone calls this (rt_admit.h, rt_step.h); everything is plain memory.
 */
#ifndef RT_KV_H
#define RT_KV_H

#include "rt/rt_draft.h"

/* ---- names ---- */

/* a * b modulo 2^61 - 1; both are below that. */
RT_FN rt_u64 rt_name_product(rt_u64 a, rt_u64 b)
{
    const rt_u64 p = ((rt_u64)1 << 61) - 1;
    rt_u64 low = a * b, high = rt_mul_high(a, b), sum = (low & p) + (low >> 61 | high << 3);
    return sum >= p ? sum - p : sum;
}

/* Continue a name by one coefficient, which is below 2^60. */
RT_FN void rt_name_add(const rt_serving *s, rt_name *name, rt_u64 coefficient)
{
    const rt_u64 p = ((rt_u64)1 << 61) - 1;
    for (int i = 0; i < 2; i++) {
        rt_u64 sum = rt_name_product(name->at[i], s->keys[i]) + coefficient;
        name->at[i] = sum >= p ? sum - p : sum;
    }
}

/* Continue a name by n tokens.  Tokens count from 1, so that no text is a prefix of zeros. */
RT_FN void rt_name_tokens(const rt_serving *s, rt_name *name, const rt_i32 *tokens, rt_u32 n)
{
    RT_UNROLL_4
    for (rt_u32 i = 0; i < n; i++)
        rt_name_add(s, name, (rt_u64)(rt_u32)tokens[i] + 1);
}

/* The name of the empty text under a salt: texts with different salts share no page. */
RT_FN rt_name rt_name_begin(const rt_serving *s, const char *salt, rt_u64 n_salt)
{
    rt_name name = {{1, 1}};
    for (rt_u64 i = 0; i < n_salt; i++)
        rt_name_add(s, &name,
                    ((rt_u64)1 << 40) + (unsigned char)salt[i]); /* larger than any token */
    return name;
}

/* Words of the token arena that a name takes. */
enum { RT_NAME_WORDS = sizeof(rt_name) / sizeof(rt_i32) };

/* The name of the first n pages of a request's prompt, n < n_names. */
RT_FN rt_name rt_name_given(const rt_machine *m, const rt_request *r, rt_u32 n)
{
    const rt_i32 *at =
        m->token_arena + r->prompt + r->n_prompt + r->n_rules + (rt_u64)n * RT_NAME_WORDS;
    rt_name name;
    for (int i = 0; i < 2; i++)
        name.at[i] = (rt_u64)(rt_u32)at[2 * i] | (rt_u64)(rt_u32)at[2 * i + 1] << 32;
    return name;
}

/* ---- the table of names ---- */

RT_FN rt_u32 *rt_bucket_of(const rt_machine *m, const rt_name *name)
{
    return &m->buckets[(name->at[0] ^ name->at[1]) & m->serving->bucket_mask];
}

/* The page of that name, RT_NONE if there is none. */
RT_FN rt_u32 rt_page_find(const rt_machine *m, const rt_name *name)
{
    rt_u32 page = *rt_bucket_of(m, name);
    while (page != RT_NONE && (m->kv_pages[page].name.at[0] != name->at[0] ||
                               m->kv_pages[page].name.at[1] != name->at[1]))
        page = m->kv_pages[page].next;
    return page;
}

/* May a page have this name?  Not if it has one, or another page has this one. */
RT_FN int rt_page_may_have(const rt_machine *m, rt_u32 page, const rt_name *name)
{
    return !(m->kv_pages[page].state & RT_PAGE_NAMED) && rt_page_find(m, name) == RT_NONE;
}

/* built, next: as in rt_kv_page. */
RT_FN void rt_page_set(rt_kv_page *p, const rt_name *name, rt_u32 built, rt_u32 next)
{
    p->name = *name;
    p->state |= RT_PAGE_NAMED;
    p->built = built;
    p->next = next;
}

/* One lane: name a page that a slot holds, unless another page has the name already.  built: as in
 * rt_kv_page. */
RT_LARGE_FN void rt_page_name(rt_machine *m, rt_u32 page, const rt_name *name, rt_u32 built)
{
    rt_u32 *bucket = rt_bucket_of(m, name);
    if (!rt_page_may_have(m, page, name))
        return;
    rt_page_set(&m->kv_pages[page], name, built, *bucket);
    *bucket = page;
}

/* All lanes: rt_page_name for the page of each lane, RT_NONE: it has none.  No two have the same
 * page or name.  Pages of one bucket are linked as if the lanes had come one after the other: a
 * page's next is that of the nearest lane before with the same bucket, and the last lane's page
 * becomes the first of the bucket. */
RT_LARGE_FN void rt_pages_name(rt_machine *m, rt_u32 page, const rt_name *name, rt_u32 built)
{
    const rt_u32 lane = rt_lane();
    rt_u32 *bucket = rt_bucket_of(m, name);
    const int names = page != RT_NONE && rt_page_may_have(m, page, name);
    const rt_u32 head = names ? *bucket : RT_NONE;
    int last;
    /* a lane that names nothing has a number of its own, beyond those of buckets */
    const rt_u32 twin = rt_twin(names ? (rt_u32)(bucket - m->buckets) : RT_NONE - lane, &last),
                 before = rt_of(page, twin);
    rt_meet(); /* all have searched the table */
    if (names)
        rt_page_set(&m->kv_pages[page], name, built, twin == lane ? head : before);
    if (names && last)
        *bucket = page;
    rt_meet();
}

/* Take a page out of the table of names. */
RT_FN void rt_page_unname(rt_machine *m, rt_u32 page)
{
    rt_kv_page *p = &m->kv_pages[page];
    rt_u32 *link = rt_bucket_of(m, &p->name);
    while (*link != page)
        link = &m->kv_pages[*link].next;
    *link = p->next;
    p->state &= ~(rt_u32)RT_PAGE_NAMED;
}

/* ---- kept pages: a doubly linked list in the order in which they were let go ---- */

/* Append a named page that no slot holds any more. */
RT_FN void rt_page_keep(rt_machine *m, rt_u32 page)
{
    rt_serving *s = m->serving;
    rt_kv_page *p = &m->kv_pages[page];
    p->state |= RT_PAGE_KEPT;
    p->older = s->n_kept ? s->newest : RT_NONE;
    p->newer = RT_NONE;
    if (s->n_kept)
        m->kv_pages[s->newest].newer = page;
    else
        s->oldest = page;
    s->newest = page;
    s->n_kept++;
}

/* Take a page out of the list: it is held again, or evicted. */
RT_FN void rt_page_unkeep(rt_machine *m, rt_u32 page)
{
    rt_serving *s = m->serving;
    rt_kv_page *p = &m->kv_pages[page];
    p->state &= ~(rt_u32)RT_PAGE_KEPT;
    if (p->older == RT_NONE)
        s->oldest = p->newer;
    else
        m->kv_pages[p->older].newer = p->newer;
    if (p->newer == RT_NONE)
        s->newest = p->older;
    else
        m->kv_pages[p->newer].older = p->older;
    s->n_kept--;
}

/* A page that is free holds nothing that the draft model knows. */
RT_FN void rt_page_unmark(rt_machine *m, rt_u32 page)
{
    if (rt_has_draft_model(m))
        rt_ahead_pages(m)[page] = 0;
}

/* Evict the page that was let go first, if any: it loses its name and is free. */
RT_LARGE_FN void rt_page_evict(rt_machine *m)
{
    rt_serving *s = m->serving;
    rt_u32 page = s->oldest;
    if (!s->n_kept)
        return;
    rt_page_unkeep(m, page);
    rt_page_unname(m, page);
    rt_page_unmark(m, page);
    m->free_pages[s->n_free++] = page;
}

/* ---- taking and letting go ---- */

/* Pages that no slot holds. */
RT_FN rt_u32 rt_pages_there(const rt_serving *s)
{
    return s->n_free + s->n_kept;
}

/* Pages that no slot holds and none was promised. */
RT_FN rt_u32 rt_pages_left(const rt_serving *s)
{
    return rt_pages_there(s) - s->n_promised;
}

/* Publish the number of available pages, for statistics. */
RT_FN void rt_pages_say(const rt_machine *m)
{
    rt_store_relaxed_device(&m->control->stats.free_pages, rt_pages_there(m->serving));
}

/* A free page to write to.  The caller was promised one, so there is one; kept pages are evicted if
 * need be. */
RT_FN rt_u32 rt_page_take(rt_machine *m)
{
    if (!m->serving->n_free)
        rt_page_evict(m);
    return m->free_pages[--m->serving->n_free];
}

/* A slot holds a page that has a name, besides the slots that hold it already, if any. */
RT_FN void rt_page_share(rt_machine *m, rt_u32 page)
{
    if (m->kv_pages[page].state & RT_PAGE_KEPT)
        rt_page_unkeep(m, page);
    else
        m->kv_pages[page].sharers++;
}

/* A slot lets go of a page.  The last holder's page is kept if it has a name, else it is free. */
RT_FN void rt_page_let_go(rt_machine *m, rt_u32 page)
{
    rt_kv_page *p = &m->kv_pages[page];
    if (p->sharers) {
        p->sharers--;
    } else if (p->state & RT_PAGE_NAMED) {
        rt_page_keep(m, page);
    } else {
        rt_page_unmark(m, page);
        m->free_pages[m->serving->n_free++] = page;
    }
}

/* The host is about to write to the state tensors itself, so the contents of kept pages are no
 * longer known. */
RT_FN void rt_pages_forget(rt_machine *m)
{
    while (m->serving->n_kept)
        rt_page_evict(m);
}

#endif
