/* serving.c - find a program's step tensors in its image, by their names in model.h, and derive its
 * serving limits.
 *
 * Input: an image.  Output: sizes and places for the step task, and the sizes of the rings.  A
 * program that lacks one of the tensors takes no requests; the host can only run its graphs one by
 * one.
 */
#include <stdio.h>

#include "host/books.h"
#include "ir/op.h"
#include "model/model.h"
#include "rt/rt_kv.h"

/* Look up a tensor by name and check its shape; a dim of -1 matches any size.  RT_NOWHERE if it is
 * absent or differs. */
static rt_u64 find_step(const program_image *image, uint32_t graph, const char *name,
                        ir_dtype dtype, uint32_t rank, int64_t d0, int64_t d1)
{
    const ir_graph *g = image->ir[graph];
    ir_tensor_id id = ir_find(g, name);
    if (id == IR_NONE)
        return RT_NOWHERE;
    const ir_tensor *t = &g->tensors.at[id];
    bool fits = t->dtype == dtype && t->rank == rank && (d0 < 0 || t->dims[0] == d0) &&
                (rank < 2 || d1 < 0 || t->dims[1] == d1);
    return fits && image->places[graph][id].area == TG_STEP ? image->places[graph][id].offset
                                                            : RT_NOWHERE;
}

/* 0 if the program has no such tensor, or fewer axes: it then serves nothing that needs it. */
static int64_t dim_of(const ir_graph *g, const char *name, uint32_t axis)
{
    ir_tensor_id id = ir_find(g, name);
    return id == IR_NONE || g->tensors.at[id].rank <= axis ? 0 : g->tensors.at[id].dims[axis];
}

/* A dimension of the KV cache of the first layer that has one; `prefix`: of a draft model. */
static int64_t cache_dim(const ir_graph *g, const char *prefix, uint32_t axis)
{
    int64_t n = 0;
    for (uint32_t layer = 0; n == 0 && layer < MODEL_MAX_LAYERS; layer++) {
        char name[64];
        snprintf(name, sizeof name, "%sk_cache.%u", prefix, layer);
        n = dim_of(g, name, axis);
    }
    return n;
}

/* Do tokens of the graph leave state for those after them? */
static bool carries(const ir_graph *g)
{
    bool any = false;
    for (size_t i = 0; i < g->ops.n; i++)
        any |= (g->ops.at[i].def->flags & OP_CARRIES) != 0;
    return any;
}

/* The step tensors of one graph, as model.h names them. */
static void find_tensors(const program_image *image, uint32_t graph, rt_serving *s)
{
    const rt_graph *g = (const rt_graph *)image_table(image->block, RT_GRAPHS) + graph;
    int64_t T = g->n_tokens, R = g->n_rows;
    s->tokens = find_step(image, graph, "tokens", IR_I32, 1, T, 0);
    s->positions = find_step(image, graph, "positions", IR_I32, 1, T, 0);
    s->slots = find_step(image, graph, "slots", IR_I32, 1, T, 0);
    s->pages = find_step(image, graph, "pages", IR_I32, 2, -1, -1);
    s->rows = find_step(image, graph, "rows", IR_I32, 1, R, 0);
    s->sampling = find_step(image, graph, "sampling", IR_F32, 2, R, 4);
    s->seeds = find_step(image, graph, "seeds", IR_I64, 1, R, 0);
    s->draws = find_step(image, graph, "draws", IR_I32, 1, R, 0);
    s->logits = find_step(image, graph, "logits", IR_F32, 2, R, -1);
    s->next = find_step(image, graph, "next", IR_I32, 1, R, 0);
    s->asks = find_step(image, graph, "asks", IR_I32, 2, R, RT_ASKS);
    s->rules = find_step(image, graph, "rules", IR_I32, 2, -1, -1);
    s->history = find_step(image, graph, "history", IR_I32, 1, -1, 0);
    s->shares = find_step(image, graph, "logprobs", IR_F32, 3, R, RT_LOGPROBS);
    if (s->rules == RT_NOWHERE || s->history == RT_NOWHERE || s->shares == RT_NOWHERE)
        s->asks = RT_NOWHERE;
}

/* All graphs of a program share the step's tensors; the step task fills one set of them. */
static bool same_places(const rt_serving *a, const rt_serving *b)
{
    return a->tokens == b->tokens && a->positions == b->positions && a->slots == b->slots &&
           a->pages == b->pages && a->rows == b->rows && a->sampling == b->sampling &&
           a->seeds == b->seeds && a->draws == b->draws && a->logits == b->logits &&
           a->next == b->next && a->asks == b->asks && a->rules == b->rules &&
           a->history == b->history && a->shares == b->shares;
}

/* Graphs of the model; those of a draft model come after them. */
static uint32_t count_graphs(const program_image *image)
{
    const rt_graph *graphs = image_table(image->block, RT_GRAPHS);
    uint32_t n = 0;
    while (n < image->n_graphs && !graphs[n].drafts)
        n++;
    return n;
}

/* Rows after those of the slots: masks, and as many for drafts after each of them. */
static void find_masks(rt_serving *s, rt_u32 rows)
{
    const rt_u32 masks = MODEL_MASKS * s->n_slots;
    s->n_guesses = rows > masks && rows % masks == 0 ? rows / masks - 1 : 0;
    s->n_masks = s->n_guesses ? masks : rows;
}

/* Sizes come from the largest graph, which is the model's last. */
static void find_sizes(const program_image *image, rt_serving *s)
{
    uint32_t n = count_graphs(image) - 1;
    const rt_graph *last = (const rt_graph *)image_table(image->block, RT_GRAPHS) + n;
    const ir_graph *ir = image->ir[n];
    s->max_tokens = last->n_tokens;
    s->max_rows = last->n_rows;
    s->n_vocab = s->logits == RT_NOWHERE ? 0 : (rt_u32)dim_of(ir, "logits", 1);
    s->n_slots = s->pages == RT_NOWHERE ? last->n_rows : (rt_u32)dim_of(ir, "pages", 0);
    if (s->pages != RT_NOWHERE) {
        s->pages_per_slot = (rt_u32)dim_of(ir, "pages", 1);
        s->n_pages = (rt_u32)cache_dim(ir, "", 0);
        s->page_tokens = (rt_u32)cache_dim(ir, "", 2);
    }
    s->n_free = s->n_pages;
    if (s->n_slots) /* a graph of another kind may use the name */
        s->history_tokens = (rt_u32)(dim_of(ir, "history", 0) / s->n_slots);
    if (s->asks != RT_NOWHERE) {
        s->rule_words = (rt_u32)dim_of(ir, "rules", 1);
        s->n_choices = (rt_u32)dim_of(ir, "choice", 0);
        int64_t rows = dim_of(ir, "rules", 0),
                fits = dim_of(ir, "rules", 1) * 32 >= 32 + (int64_t)s->n_vocab;
        if (rows < s->n_slots)
            s->asks = RT_NOWHERE;
        else if (fits)
            find_masks(s, (rt_u32)(rows - s->n_slots));
    }
}

/* Every graph must keep the step tensors at the same places. */
void host_find_serving(const program_image *image, rt_serving *out)
{
    const rt_graph *graphs = image_table(image->block, RT_GRAPHS);
    rt_serving s = {0}, found, other = {0};
    find_tensors(image, count_graphs(image) - 1, &s);
    found = s; /* find_sizes takes `asks` back where rows of rules are missing */
    find_sizes(image, &s);
    s.ready = s.tokens != RT_NOWHERE && s.rows != RT_NOWHERE &&
              (s.next != RT_NOWHERE || s.logits != RT_NOWHERE) && s.n_slots && s.max_rows &&
              (s.pages == RT_NOWHERE || (s.n_pages && s.page_tokens));
    for (uint32_t i = 0; i < image->n_graphs; i++) {
        find_tensors(image, i, &other);
        s.carries |= carries(image->ir[i]);
        if (!same_places(&found, &other) || graphs[i].n_tokens > s.max_tokens ||
            graphs[i].n_rows > s.max_rows)
            s.ready = 0;
    }
    *out = s;
}

/* few_tokens becomes what the largest graph up to it was built for: steps of up to this many tokens
 * run on graphs that sum in the same order. */
mpk_status host_fill_apart(mpk_context *cx, const program_image *image, uint32_t few_tokens,
                           rt_serving *s)
{
    const rt_graph *graphs = image_table(image->block, RT_GRAPHS);
    for (uint32_t i = 0; few_tokens && i < image->n_graphs && graphs[i].n_tokens <= few_tokens;
         i++) {
        s->few_tokens = graphs[i].n_tokens;
        s->few_rows = graphs[i].n_rows;
    }
    CHECK(cx, !few_tokens || s->few_tokens, MPK_EARG,
          "the program has no graph of at most %u tokens", few_tokens);
    return MPK_OK;
}

/* Does a draft model's graph see the model's slots, pages and rules? */
static bool fits_draft_model(const ir_graph *g, const rt_serving *s)
{
    return dim_of(g, "pages", 0) == s->n_slots && dim_of(g, "pages", 1) == s->pages_per_slot &&
           cache_dim(g, MODEL_DRAFT, 0) == s->n_pages &&
           cache_dim(g, MODEL_DRAFT, 2) == s->page_tokens &&
           (s->asks == RT_NOWHERE || dim_of(g, "rules", 1) == s->rule_words);
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The last graph holds every draft step: a row of each slot, and tokens of at most RT_MIXED_TOKENS
 * (rt_ahead_step). */
bool host_find_draft_model(const program_image *image, const rt_serving *s, rt_ahead *out)
{
    uint32_t first = count_graphs(image), n = image->n_graphs;
    const rt_graph *last = (const rt_graph *)image_table(image->block, RT_GRAPHS) + n - 1;
    bool fits = s->ready && first < n && last->n_tokens >= least(s->max_tokens, RT_MIXED_TOKENS) &&
                last->n_rows >= least(s->max_rows, s->n_slots);
    for (uint32_t i = first; fits && i < n; i++)
        fits = fits_draft_model(image->ir[i], s);
    *out = (rt_ahead){.first_graph = first,
                      .n_vocab = fits ? (rt_u32)dim_of(image->ir[n - 1], "logits", 1) : 0};
    return out->n_vocab != 0;
}

/* The next one from n on, 2^31 at most: a table of more would be refused for its size. */
static uint32_t power_of_two(uint64_t n)
{
    uint32_t p = 1;
    while (p < n && p <= UINT32_MAX / 2)
        p *= 2;
    return p;
}

/* Where steps are filled apart a prompt is cut every max_tokens: whole pieces that are whole
 * pages. */
static uint32_t sharing_unit(const rt_serving *s)
{
    if (!s->few_tokens || s->page_tokens % s->max_tokens == 0)
        return s->page_tokens;
    return s->max_tokens % s->page_tokens == 0 ? s->max_tokens : 0;
}

/* Putting requests back and sharing both need the text of every slot.  Where steps are filled
 * apart, requests cannot grow: feeding a text again would cut it elsewhere.  The keys of names are
 * random, so that no client can make two texts collide. */
void host_plan_pages(rt_serving *s, bool grows, bool shared)
{
    bool has_text = s->ready && s->n_pages && s->history != RT_NOWHERE &&
                    s->history_tokens >= (uint64_t)s->pages_per_slot * s->page_tokens;
    s->grows = has_text && grows && !s->few_tokens;
    s->unit = has_text && shared && !s->carries ? sharing_unit(s) : 0;
    s->keeps_text = s->grows || (s->unit && !s->few_tokens);
    s->bucket_mask = power_of_two(2 * (uint64_t)s->n_pages) - 1;
    for (int i = 0; i < 2; i++)
        s->keys[i] = 2 + host_random() % (((uint64_t)1 << 61) - 4);
}

/* Buckets for each position of a context: about one token before each bucket's end.  Where steps
 * are filled apart, drafts are tried in steps of few tokens, whose bits do not depend on them. */
void host_plan_drafts(rt_serving *s, uint32_t step_tokens, uint32_t gram_tokens, bool freely)
{
    bool has_text = s->ready && s->n_pages && s->history != RT_NOWHERE && s->next != RT_NOWHERE &&
                    s->history_tokens >= (uint64_t)s->pages_per_slot * s->page_tokens;
    if (!has_text || !step_tokens || s->carries)
        return;
    uint32_t most =
        s->few_tokens ? least(s->few_tokens, s->few_rows) : least(s->max_tokens, s->max_rows);
    s->draft_tokens = least(step_tokens, most);
    s->drafts_freely = freely;
    s->gram_tokens = gram_tokens;
    s->gram_mask = gram_tokens ? power_of_two(s->history_tokens) - 1 : 0;
    s->keeps_text = 1;
}

/* As they are before the first request: all pages free, no page has a name.  The list is taken
 * from at its end, so page 0 goes first.
 */
void host_lay_pages(const rt_serving *s, rt_u32 *free_pages, rt_u32 *buckets)
{
    for (uint32_t i = 0; i < s->n_pages; i++)
        free_pages[i] = s->n_pages - 1 - i;
    for (uint64_t i = 0; i <= s->bucket_mask; i++)
        buckets[i] = RT_NONE;
}

uint32_t host_names(const rt_serving *s, uint64_t n_tokens)
{
    return s->unit ? (uint32_t)(n_tokens / s->page_tokens) + 1 : 0;
}

/* Positions that one request may fill: what its page table lists, or fewer if the cache has
 * fewer pages. */
uint64_t host_context(const rt_serving *s)
{
    uint64_t pages = s->n_pages < s->pages_per_slot ? s->n_pages : s->pages_per_slot;
    return s->n_pages ? pages * s->page_tokens : 1u << 16;
}

/* Commands cannot overflow their ring: a request has at most one cancel and one append under way,
 * and the ring is longer than twice the requests that the machine can know of.  Those lie in the
 * request ring, in slots, or their end in the token ring, after a courier (rt_courier.h) in either
 * of two token rings. */
void host_size_rings(const rt_serving *s, uint32_t waiting, uint32_t tokens, host_rings *rings)
{
    uint64_t slots = s->n_slots, most = tokens ? tokens : 1024;
    uint64_t requests = power_of_two(waiting ? waiting : 256);
    uint64_t told = slots + 2 * s->draft_tokens; /* by one step (rt_told_most) */
    rings->request_mask = (uint32_t)requests - 1;
    rings->token_mask = power_of_two(most < 2 * told ? 2 * told : most) - 1;
    rings->command_mask =
        power_of_two(2 * (requests + slots + 2 * ((uint64_t)rings->token_mask + 1))) - 1;
    rings->n_arena = (slots + 4) * (host_context(s) + (s->asks == RT_NOWHERE ? 0 : s->rule_words) +
                                    (uint64_t)RT_NAME_WORDS * host_names(s, host_context(s)));
}
