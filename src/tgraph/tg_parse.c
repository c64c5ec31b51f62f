/* tg_parse.c - read the text form of a task graph (see tg_print.c and docs/text-form.md).
 *
 * Input: any bytes.  Output: a graph whose numbers are within their ranges, or MPK_EFORMAT with
 * line and column; whether the graph keeps the promises of its level is tg_verify's business.
 * Called by `mpk opt` and by tests.  Recursive descent with one cursor and no look-ahead beyond
 * a word.  Cost: linear in the text and in the lists that its ranges expand to.
 */
#include "tgraph/tgraph.h"

/* The most entries that all lists may expand to: a range such as "0-9999" is far longer than its
 * text. */
enum { MOST_LISTED = 1 << 26 };

/* The cursor and what has been read.  The lists of all events grow in two common vectors, so that
 * the event under construction is always their end. */
typedef struct parser {
    mpk_context *cx;
    arena *a;
    /* the text; not terminated.  start is that of the whole text, the tensor program included */
    const char *start, *at, *end;
    tg_graph *g;
    VEC(tg_task) tasks;
    VEC(tg_event) events;
    /* entries up to the event under construction; at TG_LINEAR out_tasks is dropped in the end */
    VEC(tg_task_id) in_tasks, out_tasks;
} parser;

/* Lines and columns are counted only when something is wrong, from the start of the text: both
 * parsers of a file then agree about places. */
static mpk_status fail_here(const parser *p, const char *what)
{
    unsigned line = 1, column = 1;
    for (const char *c = p->start; c < p->at; c++) {
        column = *c == '\n' ? 1 : column + 1;
        line += *c == '\n';
    }
    FAIL(p->cx, MPK_EFORMAT, "line %u, column %u: %s", line, column, what);
}

/* ---- words ---- */

/* A carriage return counts as blank, so text with Windows line ends is read too. */
static void skip_blanks(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\r'))
        p->at++;
}

/* Skip blank lines and comments. */
static void skip_lines(parser *p)
{
    for (;;) {
        skip_blanks(p);
        if (p->at < p->end && *p->at == '#')
            while (p->at < p->end && *p->at != '\n')
                p->at++;
        if (p->at == p->end || *p->at != '\n')
            return;
        p->at++;
    }
}

/* Skip blanks; then consume `word` if it follows.  A word is not bounded on its right: "jit5" is
 * read as jit and then fails at 5, where end_line looks. */
static bool take(parser *p, const char *word)
{
    size_t n = strlen(word);
    skip_blanks(p);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
        return false;
    p->at += n;
    return true;
}

/* Consume `word`, or fail with the message `what`. */
static mpk_status expect(parser *p, const char *word, const char *what)
{
    return take(p, word) ? MPK_OK : fail_here(p, what);
}

static bool at_digit(const parser *p)
{
    return p->at < p->end && *p->at >= '0' && *p->at <= '9';
}

/* A number from 0 to below - 1.  The bound is tested after each digit, so no text is long enough to
 * overflow. */
static mpk_status parse_number(parser *p, int64_t below, int64_t *out)
{
    int64_t value = 0;
    skip_blanks(p);
    if (!at_digit(p))
        return fail_here(p, "expected a number");
    for (; at_digit(p); p->at++) {
        value = value * 10 + (*p->at - '0');
        if (value >= below)
            return fail_here(p, "the number is too large");
    }
    *out = value;
    return MPK_OK;
}

static mpk_status end_line(parser *p)
{
    skip_blanks(p);
    if (p->at < p->end && *p->at != '\n' && *p->at != '#')
        return fail_here(p, "expected the end of the line");
    return MPK_OK;
}

/* ---- lines ---- */

/* tgraph LEVEL workers=N */
static mpk_status parse_heading(parser *p)
{
    int64_t workers;
    uint32_t level = 0;
    TRY(expect(p, "tgraph ", "expected a line that begins with tgraph"));
    while (level < TG_LEVELS && !take(p, tg_level_names[level]))
        level++;
    if (level == TG_LEVELS)
        return fail_here(p, "expected tasks, raw, fused, normal or linear");
    TRY(expect(p, "workers=", "expected workers="));
    TRY(parse_number(p, 65536, &workers));
    if (!workers)
        return fail_here(p, "workers= must be at least 1");
    p->g->level = (tg_level)level;
    p->g->n_workers = (uint32_t)workers;
    return end_line(p);
}

/* %name of an operator's first output, or @number. */
static mpk_status parse_op(parser *p, ir_op_id *out)
{
    const ir_graph *ir = p->g->ir;
    int64_t number;
    uint64_t tensor;
    if (take(p, "@")) {
        TRY(parse_number(p, (int64_t)ir->ops.n, &number));
        *out = (ir_op_id)number;
        return MPK_OK;
    }
    TRY(expect(p, "%", "expected %name, @number or empty"));
    const char *from = p->at;
    while (p->at < p->end && !memchr(" \t\r\n[", *p->at, 5))
        p->at++;
    if (!map_get(&ir->names, (str){from, (size_t)(p->at - from)}, &tensor) ||
        ir->tensors.at[tensor].producer == IR_NONE)
        return fail_here(p, "the tensor program has no such operator");
    *out = ir->tensors.at[tensor].producer;
    return MPK_OK;
}

/* One range for each axis, inside the tensor and not empty.  A scalar has `[]`. */
static mpk_status parse_box(parser *p, const ir_tensor *tensor, ir_box *box)
{
    TRY(expect(p, "[", "expected ["));
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (i)
            TRY(expect(p, ",", "expected , and another axis"));
        TRY(parse_number(p, tensor->dims[i], &box->lo[i]));
        TRY(expect(p, ":", "expected :"));
        TRY(parse_number(p, tensor->dims[i] + 1, &box->hi[i]));
        if (box->hi[i] <= box->lo[i])
            return fail_here(p, "the box is empty");
    }
    return expect(p, "]", "expected ]");
}

/* task NUMBER = %op [box] aot|jit, perhaps worker=N; or `empty` in place of operator and box */
static mpk_status parse_task(parser *p)
{
    tg_task task = {.op = IR_NONE, .worker = TG_NONE, .depends = TG_NONE, .triggers = TG_NONE};
    int64_t number;
    TRY(parse_number(p, UINT32_MAX, &number));
    if ((uint64_t)number != p->tasks.n || p->events.n)
        return fail_here(p, "tasks are numbered 0, 1, 2 ... and stand before the events");
    TRY(expect(p, "=", "expected ="));
    if (!take(p, "empty")) {
        TRY(parse_op(p, &task.op));
        TRY(parse_box(p, &p->g->ir->tensors.at[p->g->ir->ops.at[task.op].out[0]], &task.box));
    }
    if (take(p, "jit"))
        task.launch = TG_JIT;
    else
        TRY(expect(p, "aot", "expected aot or jit"));
    if (take(p, "worker=")) {
        TRY(parse_number(p, p->g->n_workers, &number));
        task.worker = (uint32_t)number;
    }
    PUSH(p->cx, p->a, &p->tasks, task);
    return end_line(p);
}

/* A list of rising task numbers and ranges; it ends at the first other token. */
static mpk_status parse_list(parser *p, bool in)
{
    int64_t next = 0, first, last;
    for (skip_blanks(p); at_digit(p); skip_blanks(p)) {
        TRY(parse_number(p, (int64_t)p->tasks.n, &first));
        last = first;
        if (p->at < p->end && *p->at == '-') {
            p->at++;
            TRY(parse_number(p, (int64_t)p->tasks.n, &last));
        }
        if (first < next || last < first)
            return fail_here(p, "task numbers of a list must rise");
        if (p->in_tasks.n + p->out_tasks.n + (size_t)(last - first) > MOST_LISTED)
            return fail_here(p, "the lists of the events name too many tasks together");
        for (next = first; next <= last; next++) {
            if (in)
                PUSH(p->cx, p->a, &p->in_tasks, (tg_task_id)next);
            else
                PUSH(p->cx, p->a, &p->out_tasks, (tg_task_id)next);
        }
    }
    return MPK_OK;
}

/* event NUMBER <- in-tasks -> out-tasks.  From TG_NORMAL on, a task has one event on each side, so
 * the lists say which: `depends` and `triggers` are set from them, and tg_verify finds a task that
 * is in two lists or in none.  At TG_LINEAR the out-tasks become a range. */
static mpk_status parse_event(parser *p)
{
    tg_event e = {.first_in = (uint32_t)p->in_tasks.n, .first_out = (uint32_t)p->out_tasks.n};
    int64_t number;
    TRY(parse_number(p, UINT32_MAX, &number));
    if ((uint64_t)number != p->events.n)
        return fail_here(p, "events are numbered 0, 1, 2 ...");
    if (take(p, "<-"))
        TRY(parse_list(p, true));
    if (take(p, "->"))
        TRY(parse_list(p, false));
    e.n_in = (uint32_t)p->in_tasks.n - e.first_in;
    e.n_out = (uint32_t)p->out_tasks.n - e.first_out;
    for (uint32_t i = 0; p->g->level >= TG_NORMAL && i < e.n_in; i++)
        p->tasks.at[p->in_tasks.at[e.first_in + i]].triggers = (tg_event_id)number;
    for (uint32_t i = 0; p->g->level >= TG_NORMAL && i < e.n_out; i++)
        p->tasks.at[p->out_tasks.at[e.first_out + i]].depends = (tg_event_id)number;
    if (p->g->level == TG_LINEAR && e.n_out) {
        e.first_out = p->out_tasks.at[e.first_out];
        if (p->out_tasks.at[p->out_tasks.n - 1] != e.first_out + e.n_out - 1)
            return fail_here(p, "the out-tasks of a linear task graph are one range");
    }
    PUSH(p->cx, p->a, &p->events, e);
    return end_line(p);
}

/* The `tgraph` line, then tasks, then events, with blank lines and comments between them. */
static mpk_status parse_lines(parser *p)
{
    TRY(parse_heading(p));
    for (skip_lines(p); p->at < p->end; skip_lines(p)) {
        if (take(p, "task "))
            TRY(parse_task(p));
        else if (take(p, "event "))
            TRY(parse_event(p));
        else
            return fail_here(p, "expected task or event");
    }
    if (p->events.n < 2)
        return fail_here(p, "event 0, the start, or event 1, the end, is missing");
    return MPK_OK;
}

/* The offset of the `tgraph` line; the length of the text if there is none. */
static size_t find_heading(str source)
{
    static const char word[] = "tgraph ";
    for (size_t i = 0; i + sizeof word - 1 <= source.n; i++)
        if ((i == 0 || source.at[i - 1] == '\n') &&
            memcmp(source.at + i, word, sizeof word - 1) == 0)
            return i;
    return source.n;
}

/* Before it is linear a graph needs arrays even where they are empty, hence those that tg_create
 * made stay in place of a vector that never grew. */
mpk_status tg_parse(mpk_context *cx, arena *a, str source, tg_graph **out)
{
    size_t heading = find_heading(source);
    parser p = {.cx = cx,
                .a = a,
                .start = source.at,
                .at = source.at + heading,
                .end = source.at + source.n};
    ir_graph *ir;
    if (heading == source.n)
        return fail_here(&p, "expected a line that begins with tgraph, after the tensor program");
    TRY(ir_parse(cx, a, (str){source.at, heading}, &ir));
    TRY(tg_create(cx, a, ir, 1, &p.g));
    TRY(parse_lines(&p));
    p.g->tasks = p.tasks.at ? p.tasks.at : p.g->tasks;
    p.g->events = p.events.at;
    p.g->in_tasks = p.in_tasks.at ? p.in_tasks.at : p.g->in_tasks;
    p.g->out_tasks = p.out_tasks.at ? p.out_tasks.at : p.g->out_tasks;
    p.g->n_tasks = (uint32_t)p.tasks.n;
    p.g->n_events = (uint32_t)p.events.n;
    p.g->n_in_tasks = (uint32_t)p.in_tasks.n;
    p.g->n_out_tasks = (uint32_t)p.out_tasks.n;
    if (p.g->level == TG_LINEAR) {
        p.g->out_tasks = NULL;
        p.g->n_out_tasks = 0;
    }
    *out = p.g;
    return MPK_OK;
}
