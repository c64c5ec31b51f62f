/* tg_reach.c - which tasks must end before a task may begin: exact reachability through events.
 *
 * Input: a graph at any level.  Output: a set of tasks for each task.
 *
 * Idea: number the tasks topologically; the set of a task is the union of its producers and of
 * their sets.  A deep graph has many barriers, so nearly all of a set is a prefix of the
 * numbering; only the remainder is stored, as a window of bits.  Tasks with equal producers
 * share one set.
 *
 *   position   0 1 2 3 4 5 6 7 8      tasks 0-3 before a barrier, 4-6 after it, 8 waits for 4 and 6
 *   before[4]  prefix 4               {0 1 2 3}
 *   before[8]  prefix 5, bit 6        {0 1 2 3 4 6}
 *
 * Every proof about order uses it: verification of pairs, reuse of memory, implied pairs,
 * barriers for JIT.  Cost: linear in the edges for deep graphs; one bit for each pair of tasks
 * in the worst case.
 */
#include "tgraph/tgraph.h"

/* The construction under way: the order, and one set at a time. */
typedef struct builder {
    mpk_context *cx;
    arena *a;
    const tg_graph *g;
    const tg_links *links;
    tg_task_id *order;  /* tasks by position */
    uint64_t *work;     /* the set being made, as bits; zero between sets */
    const tg_set *last; /* the set merged last: neighbours mostly share one */
    /* of the set being made: all below prefix; words low <= w < high are in use */
    uint32_t prefix, low, high;
    tg_task_id *producers; /* of the task at hand, and of the one before it */
    tg_task_id *earlier;
    uint32_t n_producers, n_earlier;
} builder;

/* ---- a topological order ---- */

/* Do the numbers of tasks rise along every event?  Lists are sorted, so the last in-task and the
 * first out-task tell.  If they do, the numbering is a topological order already and nothing is
 * sorted. */
static bool is_numbered(const tg_graph *g)
{
    for (uint32_t e = 0; e < g->n_events; e++) {
        const tg_event *event = &g->events[e];
        if (event->n_in && event->n_out &&
            g->in_tasks[event->first_in + event->n_in - 1] >= tg_out_task(g, event, 0))
            return false;
    }
    return true;
}

/* Report a cycle.  waits[t] is not zero for exactly the tasks that the sort did not reach, of which
 * there is one at least: those on a cycle, and those after one. */
static mpk_status fail_cycle(const builder *b, const uint32_t *waits)
{
    const tg_graph *g = b->g;
    tg_task_id t = 0;
    while (!waits[t])
        t++;
    /* Walk from a waiting task to one it waits for, n_tasks times: the walk has then entered a
     * cycle, and t lies on it. */
    tg_event_id on = TG_START;
    for (uint32_t step = 0; step <= g->n_tasks; step++) {
        tg_task_id from = TG_NONE;
        for (uint32_t i = b->links->first_depends[t];
             i < b->links->first_depends[t + 1] && from == TG_NONE; i++) {
            const tg_event *event = &g->events[b->links->depends[i]];
            for (uint32_t k = 0; k < event->n_in && from == TG_NONE; k++)
                if (waits[g->in_tasks[event->first_in + k]]) {
                    from = g->in_tasks[event->first_in + k];
                    on = b->links->depends[i];
                }
        }
        if (from == TG_NONE)
            break;
        t = from;
    }
    char name[TG_NAME_BYTES];
    FAIL(b->cx, MPK_EVERIFY, "task %s is on a cycle through event %u: it waits for itself",
         tg_name_task(g, t, name), on);
}

/* Fill b->order breadth first, as linearize does.  waits[t]: events that task t still waits for;
 * missing[e]: in-tasks of event e that are not placed yet.  An event with no in-tasks, such as
 * the start, is activated at once. */
static mpk_status sort_tasks(builder *b)
{
    const tg_graph *g = b->g;
    uint32_t *waits, *missing, n = 0;
    NEW(b->cx, b->a, waits, g->n_tasks);
    NEW(b->cx, b->a, missing, g->n_events);
    for (uint32_t t = 0; t < g->n_tasks; t++)
        waits[t] = b->links->first_depends[t + 1] - b->links->first_depends[t];
    for (uint32_t t = 0; t < g->n_tasks; t++)
        if (!waits[t])
            b->order[n++] = t;
    for (uint32_t e = 0; e < g->n_events; e++)
        missing[e] = g->events[e].n_in;
    for (uint32_t e = 0; e < g->n_events; e++)
        for (uint32_t i = 0; !missing[e] && i < g->events[e].n_out; i++)
            if (--waits[tg_out_task(g, &g->events[e], i)] == 0)
                b->order[n++] = tg_out_task(g, &g->events[e], i);
    for (uint32_t at = 0; at < n; at++) {
        tg_task_id t = b->order[at];
        for (uint32_t i = b->links->first_triggers[t]; i < b->links->first_triggers[t + 1]; i++) {
            const tg_event *event = &g->events[b->links->triggers[i]];
            if (--missing[b->links->triggers[i]])
                continue;
            for (uint32_t k = 0; k < event->n_out; k++)
                if (--waits[tg_out_task(g, event, k)] == 0)
                    b->order[n++] = tg_out_task(g, event, k);
        }
    }
    return n == g->n_tasks ? MPK_OK : fail_cycle(b, waits);
}

/* ---- sets ---- */

/* Widen the window of words that the set under construction has touched, so that only these are
 * copied and cleared. */
static void use_words(builder *b, uint32_t low, uint32_t high)
{
    b->low = low < b->low ? low : b->low;
    b->high = high > b->high ? high : b->high;
}

/* Put one task, by its position, into the set under construction. */
static void add_position(builder *b, uint32_t position)
{
    b->work[position / 64] |= UINT64_C(1) << position % 64;
    use_words(b, position / 64, position / 64 + 1);
}

/* Unite with a finished set.  Its prefix is not written as bits: the larger of the two prefixes
 * covers both. */
static void add_set(builder *b, const tg_set *s)
{
    if (s == b->last)
        return;
    b->last = s;
    b->prefix = s->prefix > b->prefix ? s->prefix : b->prefix;
    for (uint32_t i = 0; i < s->n_words; i++)
        b->work[s->first_word + i] |= s->bits[i];
    if (s->n_words)
        use_words(b, s->first_word, s->first_word + s->n_words);
}

/* `work` is zero here: end_set and tg_keep_last clear what they used. */
static void begin_set(builder *b)
{
    b->prefix = 0;
    b->low = UINT32_MAX;
    b->high = 0;
    b->last = NULL;
}

/* Store the set under construction with the longest possible prefix. */
static mpk_status end_set(builder *b, const tg_set **out)
{
    while (b->prefix / 64 < b->high) {
        uint64_t rest = ~b->work[b->prefix / 64] >> b->prefix % 64;
        if (rest) {
            b->prefix += (uint32_t)__builtin_ctzll(rest);
            break;
        }
        b->prefix = (b->prefix / 64 + 1) * 64;
    }
    tg_set *s;
    uint64_t *bits;
    uint32_t first = b->prefix / 64 > b->low ? b->prefix / 64 : b->low;
    uint32_t n = b->high > first ? b->high - first : 0;
    NEW(b->cx, b->a, s, 1);
    NEW(b->cx, b->a, bits, n);
    if (n)
        memcpy(bits, b->work + first, n * sizeof *bits);
    *s = (tg_set){.prefix = b->prefix, .first_word = first, .n_words = n, .bits = bits};
    if (b->high > b->low)
        memset(b->work + b->low, 0, (b->high - b->low) * sizeof *b->work);
    *out = s;
    return MPK_OK;
}

/* List all in-tasks of the events that a task depends on.  Most tasks depend on one event, whose
 * own list is returned; otherwise the lists are joined in b->producers, with repetitions. */
static const tg_task_id *list_producers(builder *b, tg_task_id t, uint32_t *n)
{
    const tg_graph *g = b->g;
    uint32_t first = b->links->first_depends[t], end = b->links->first_depends[t + 1];
    *n = 0;
    for (uint32_t i = first; i < end; i++) {
        const tg_event *event = &g->events[b->links->depends[i]];
        if (i + 1 == end && *n == 0) {
            *n = event->n_in;
            return g->in_tasks + event->first_in;
        }
        for (uint32_t k = 0; k < event->n_in; k++)
            b->producers[(*n)++] = g->in_tasks[event->first_in + k];
    }
    return b->producers;
}

/* Make the set of a task with these producers: the producers and everything before them. */
static mpk_status make_set(builder *b, tg_reach *reach, const tg_task_id *producers, uint32_t n,
                           const tg_set **out)
{
    begin_set(b);
    for (uint32_t i = 0; i < n; i++) {
        add_position(b, reach->position[producers[i]]);
        add_set(b, reach->before[producers[i]]);
    }
    return end_set(b, out);
}

/* Build the sets in topological order, so that those of all producers are there.  Tasks that
 * depend on one event alone share the set of that event; a task with the same producers as the
 * task before it shares that task's set. */
static mpk_status fill_sets(builder *b, tg_reach *reach)
{
    const tg_set **of_event, *latest = NULL;
    NEW(b->cx, b->a, of_event, b->g->n_events);
    for (uint32_t at = 0; at < b->g->n_tasks; at++) {
        tg_task_id t = b->order[at];
        uint32_t first = b->links->first_depends[t], n;
        bool alone = b->links->first_depends[t + 1] - first == 1;
        if (alone && of_event[b->links->depends[first]]) {
            reach->before[t] = of_event[b->links->depends[first]];
            continue;
        }
        /* `earlier` compares the lists themselves: two events can have equal in-tasks before
         * fusion. */
        const tg_task_id *producers = list_producers(b, t, &n);
        if (!latest || n != b->n_earlier ||
            memcmp(producers, b->earlier, n * sizeof *producers) != 0) {
            TRY(make_set(b, reach, producers, n, &latest));
            memcpy(b->earlier, producers, n * sizeof *producers);
            b->n_earlier = n;
        }
        reach->before[t] = latest;
        if (alone)
            of_event[b->links->depends[first]] = latest;
    }
    return MPK_OK;
}

/* The most in-tasks, counted with repetition, that one task waits for: the size of the lists
 * above. */
static size_t most_producers(const tg_graph *g, const tg_links *links)
{
    size_t most = 1;
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        size_t n = 0;
        for (uint32_t i = links->first_depends[t]; i < links->first_depends[t + 1]; i++)
            n += g->events[links->depends[i]].n_in;
        most = n > most ? n : most;
    }
    return most;
}

/* The arrays of *out lie in `a`; see tgraph.h. */
mpk_status tg_fill_reach(mpk_context *cx, arena *a, const tg_graph *g, const tg_links *links,
                         tg_reach *out)
{
    builder b = {.cx = cx, .a = a, .g = g, .links = links};
    size_t most = most_producers(g, links);
    NEW(cx, a, b.order, g->n_tasks);
    NEW(cx, a, b.work, (size_t)g->n_tasks / 64 + 1);
    NEW(cx, a, b.producers, most);
    NEW(cx, a, b.earlier, most);
    NEW(cx, a, out->position, g->n_tasks);
    NEW(cx, a, out->before, g->n_tasks);
    for (uint32_t t = 0; t < g->n_tasks; t++)
        b.order[t] = t;
    if (!is_numbered(g))
        TRY(sort_tasks(&b));
    for (uint32_t at = 0; at < g->n_tasks; at++)
        out->position[b.order[at]] = at;
    out->work = b.work;
    return fill_sets(&b, out);
}

/* Keep the tasks of the list that come before no other of it: a task is dropped if it lies in
 * the set of any.  No task lies in its own set, so each can be judged against the union of all. */
uint32_t tg_keep_last(const tg_reach *r, tg_task_id *tasks, uint32_t n)
{
    builder b = {.work = r->work};
    begin_set(&b);
    for (uint32_t i = 0; i < n; i++)
        add_set(&b, r->before[tasks[i]]);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = r->position[tasks[i]];
        if (p >= b.prefix && !(b.work[p / 64] >> p % 64 & 1))
            tasks[kept++] = tasks[i];
    }
    if (b.high > b.low)
        memset(b.work + b.low, 0, (b.high - b.low) * sizeof *b.work);
    return kept;
}
