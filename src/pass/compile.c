/* compile.c - the pipeline (paper §4): tensor programs in, linear tGraphs and the places of
 * tensors out.
 *
 * Input: one tensor program for each number of tokens in a step, and pass_options.  Output: a
 * tg_program, which image/image.c lays out for the runtime.
 *
 * This file is the page of calls: it decides the order of the passes and nothing else.  If the
 * options ask for it, each pass that changes the level of a graph is followed by a proof of its
 * result.  Graphs are compiled in parallel, each in scratch memory of its own, which every pass
 * on the tGraph uses anew; the program keeps only the linear graphs.  Memory is planned after all
 * graphs are compiled, because weights, state and step tensors are shared by name across graphs.
 *
 *   simplify roll shard recognise fuse_ops fuse_map            the tensor program
 *   flatten unpack_weights narrow
 *   decompose depend drop_implied fuse_events                  tasks and events
 *   postpone merge_forks (coarsen_events)
 *   label_launch normalize linearize assign                    one linear graph
 *   plan_memory plan_pages                                     all graphs of the program
 *
 * Called by the engine for every model and every graph of torch.compile.
 */
#include "base/thread.h"
#include "pass/pass.h"

/* Prove what the passes on the tensor program left: above all that no operator reads storage
 * after another has written it again, which is what a rule that moves a read can get wrong.  The
 * time is added to *verify_ns. */
static mpk_status verify_program(pass_state *s, const ir_graph *ir, uint64_t *verify_ns)
{
    if (!s->options->verify)
        return MPK_OK;
    uint64_t start = clock_ns();
    NOTE(s->cx, ir_verify(s->cx, ir), "verifying the tensor program after its passes");
    *verify_ns += clock_ns() - start;
    return MPK_OK;
}

/* Prove what the graph's level promises.  The time is added to *verify_ns, apart from that of
 * the passes, because compile speed is reported and tested without it. */
static mpk_status verify(pass_state *s, const tg_graph *g, uint64_t *verify_ns)
{
    if (!s->options->verify)
        return MPK_OK;
    uint64_t start = clock_ns();
    NOTE(s->cx, tg_verify(s->cx, s->scratch, g), "verifying the %s task graph",
         tg_level_names[g->level]);
    *verify_ns += clock_ns() - start;
    return MPK_OK;
}

/* Run one pass or proof.  Its scratch memory is given up, so that the next one works in the same
 * pages; what belongs to the graph lies in the graph's own arena. */
#define PASS(call)                                \
    do {                                          \
        TRY(call);                                \
        arena_reset(s->scratch, (arena_mark){0}); \
    } while (0)

/* From a graph of tasks to a linear, assigned one.  s->scratch is empty between passes. */
static mpk_status connect(pass_state *s, tg_compiled *c, tg_graph *g, uint64_t *verify_ns)
{
    PASS(pass_depend(s, g, &c->stats.pairs));
    PASS(verify(s, g, verify_ns));
    PASS(pass_drop_implied(s, g));
    PASS(pass_fuse_events(s, g));
    /* Not with coarse events: a task moved after others is ordered after parts of an operator,
     * and events between whole operators would then order the two both ways. */
    if (!s->options->coarse_events)
        PASS(pass_postpone(s, g));
    PASS(pass_merge_forks(s, g));
    if (s->options->coarse_events)
        PASS(pass_coarsen_events(s, g));
    PASS(verify(s, g, verify_ns));
    PASS(pass_label_launch(s, g));
    PASS(pass_normalize(s, g));
    PASS(verify(s, g, verify_ns));
    PASS(pass_linearize(s, g));
    PASS(pass_assign(s, g));
    PASS(verify(s, g, verify_ns));
    return MPK_OK;
}

/* From a rewritten tensor program (c->ir) to a linear, assigned graph (c->tg, in the result
 * arena) and its statistics.  Until it is linear the graph lies in s->scratch. */
static mpk_status compile_graph(pass_state *s, tg_compiled *c, uint64_t *verify_ns)
{
    tg_graph *g;
    TRY(pass_decompose(s, c->ir, &g));
    const uint32_t tasks = g->n_tasks;
    arena scratch = {0};
    pass_state passes = {s->cx, s->result, &scratch, s->options};
    mpk_status status = connect(&passes, c, g, verify_ns);
    arena_free(&scratch);
    TRY(status);
    NEW(s->cx, s->result, c->tg, 1);
    *c->tg = *g;
    tg_fill_stats(g, &c->stats);
    /* no pass but normalize adds tasks */
    c->stats.normalize_tasks = g->n_tasks - tasks;
    return MPK_OK;
}

/* One graph through the pipeline.  The order matters: loops are rolled first, since that leaves
 * few operators of many; a program is sharded before anything is
 * fused, so that rules see the pieces that a peer has; recognise comes before fuse_ops, whose
 * patterns are made of the operators that it finds; fuse_map comes after both and takes the
 * element-wise operators that are left; flatten reads what it has put behind convolutions;
 * unpack_weights takes products that fuse_ops has made whole; narrow comes last, so that no rule
 * has to tell linears with 8-bit activations from others. */
static mpk_status compile_program(pass_state *s, ir_graph *ir, tg_compiled *c)
{
    uint64_t start = clock_ns(), verify_ns = 0;
    TRY(pass_simplify(s, &ir));
    TRY(pass_roll(s, &ir));
    TRY(pass_shard(s, &ir));
    TRY(pass_recognise(s, &ir));
    TRY(pass_fuse_ops(s, &ir));
    TRY(pass_fuse_map(s, &ir));
    if (s->options->flatten)
        TRY(pass_flatten(s, &ir));
    if (s->options->unpack_tokens)
        TRY(pass_unpack_weights(s, &ir));
    if (s->options->narrow)
        TRY(pass_narrow(s, &ir));
    TRY(verify_program(s, ir, &verify_ns));
    c->ir = ir;
    TRY(compile_graph(s, c, &verify_ns));
    c->stats.compile_ms = (double)(clock_ns() - start - verify_ns) * 1e-6;
    c->stats.verify_ms = (double)verify_ns * 1e-6;
    return MPK_OK;
}

/* May graph i follow graph i - 1?  Numbers of tokens rise; one number may stand twice in a row
 * (the second graph is for prompts), but not three times.  With 2 draft graphs 1 2 4 4 | 1 2 is
 * allowed, the draft model's graphs begin anew. */
static bool may_follow(const pass_options *o, uint32_t n_graphs, const uint32_t *n_tokens,
                       uint32_t i)
{
    /* n[0]: tokens of this graph, n[-1]: of the one before */
    const uint32_t begin = n_graphs - o->n_draft_graphs, *n = &n_tokens[i];
    if (i == begin || n[-1] < n[0])
        return true;
    return n[-1] == n[0] && (i == 1 || i == begin + 1 || n[-2] < n[0]);
}

/* Check everything that a later pass relies on and the user can set.  The numbers of tokens must
 * rise because the step task takes the first graph that is large enough for the tokens it has.
 * MPK_EARG names the option and its range. */
static mpk_status check_options(mpk_context *cx, const pass_options *o, uint32_t n_graphs,
                                const uint32_t *n_tokens)
{
    CHECK(cx, o->n_workers >= 1 && o->n_workers <= 65535, MPK_EARG,
          "%u workers: 1 to 65535 are possible", o->n_workers);
    CHECK(cx, o->n_peers <= IR_MAX_PEERS, MPK_EARG, "%u peers: at most %d are possible", o->n_peers,
          IR_MAX_PEERS);
    CHECK(cx, o->n_peers <= 1 || o->n_workers % o->n_peers == 0, MPK_EARG,
          "%u peers cannot share %u workers evenly", o->n_peers, o->n_workers);
    CHECK(cx, o->n_peers <= 1 || o->launch == PASS_LAUNCH_AOT, MPK_EARG,
          "the tasks of several peers are launched ahead of time");
    CHECK(cx, o->tasks_per_worker <= 64, MPK_EARG,
          "%u tasks of an operator for each worker: at most 64 are possible", o->tasks_per_worker);
    CHECK(cx, o->splits <= 1 << 16, MPK_EARG, "%u parts of a context: at most 65536 are possible",
          o->splits);
    CHECK(cx, o->own_units <= 1 << 12, MPK_EARG, "%u units of a part: at most 4096 are possible",
          o->own_units);
    CHECK(cx, o->page_bytes >= 64 && o->page_bytes % 64 == 0, MPK_EARG,
          "pages of %u bytes: a multiple of 64 is needed", o->page_bytes);
    CHECK(cx, n_graphs > o->n_draft_graphs, MPK_EARG, "there is nothing to compile");
    for (uint32_t i = 1; i < n_graphs; i++)
        CHECK(cx, may_follow(o, n_graphs, n_tokens, i), MPK_EARG,
              "graphs must stand by rising numbers of tokens, %u follows %u", n_tokens[i],
              n_tokens[i - 1]);
    return MPK_OK;
}

/* Plan the memory and the scratch pages of the whole program, and prove the memory plan: no two
 * tensors that share bytes are ever alive together. */
static mpk_status plan(pass_state *s, tg_program *p)
{
    uint64_t start = clock_ns();
    TRY(pass_plan_memory(s, p));
    for (uint32_t i = 0; i < p->n_graphs; i++)
        TRY(pass_plan_pages(s, p, &p->graphs[i]));
    /* planning concerns all graphs at once; its time is booked on the first */
    p->graphs[0].stats.compile_ms += (double)(clock_ns() - start) * 1e-6;
    start = clock_ns();
    for (uint32_t i = 0; i < p->n_graphs && s->options->verify; i++)
        NOTE(s->cx, tg_verify_memory(s->cx, s->scratch, &p->graphs[i], p->area_bytes),
             "verifying the memory plan for %u tokens", p->graphs[i].n_tokens);
    if (s->options->verify)
        p->graphs[0].stats.verify_ms += (double)(clock_ns() - start) * 1e-6;
    return MPK_OK;
}

/* What the threads of compile_all share.  Each writes only the graph and the arena of its own
 * index, so nothing is locked. */
typedef struct compiling {
    const pass_options *options;
    ir_graph *const *graphs;
    tg_program *program;
    /* [n_graphs] one arena for each result */
    arena *results;
} compiling;

/* Compile graph i on whichever thread took it (the callback of thread_each).  Everything that a
 * thread writes belongs to index i: the graph, its arena, its scratch, its copy of the options.
 * Errors name the graph, since several may be compiled at the same time. */
static mpk_status compile_one(mpk_context *cx, void *user, uint32_t i)
{
    const compiling *c = user;
    tg_compiled *to = &c->program->graphs[i];
    arena scratch = {0};
    pass_options options = *c->options;
    pass_state s = {.cx = cx, .result = &c->results[i], .scratch = &scratch, .options = &options};
    if (i && i != c->program->n_graphs - options.n_draft_graphs && to[-1].n_tokens == to->n_tokens)
        /* the second graph of a number of tokens is for prompts: their contexts are not cut */
        options.split_tokens = 0;
    mpk_status status = compile_program(&s, c->graphs[i], to);
    arena_free(&scratch);
    NOTE(cx, status, "compiling for %u tokens", to->n_tokens);
    return MPK_OK;
}

/* Compile all graphs and plan the memory of the program.  The results' arenas are adopted even
 * after a failure, so that they are freed together with the program's. */
static mpk_status compile_all(pass_state *s, ir_graph *const *graphs, const uint32_t *n_tokens,
                              tg_program *p)
{
    compiling c = {.options = s->options, .graphs = graphs, .program = p};
    NEW(s->cx, s->result, p->graphs, p->n_graphs);
    NEW(s->cx, s->result, c.results, p->n_graphs);
    for (uint32_t i = 0; i < p->n_graphs; i++) {
        p->graphs[i].n_tokens = n_tokens[i];
        p->graphs[i].drafts = i >= p->n_graphs - s->options->n_draft_graphs;
    }
    mpk_status status = thread_each(s->cx, p->n_graphs, compile_one, &c);
    for (uint32_t i = 0; i < p->n_graphs; i++)
        arena_adopt(s->result, &c.results[i]);
    TRY(status);
    return plan(s, p);
}

/* The entry of the room; pass.h states what it returns.  The graphs given are not changed; what
 * *out refers to lies in `result`, or is borrowed from the graphs, so both must outlive it.
 * *out is written on success only. */
mpk_status pass_compile(mpk_context *cx, arena *result, const pass_options *options,
                        uint32_t n_graphs, ir_graph *const *graphs, const uint32_t *n_tokens,
                        tg_program *out)
{
    arena scratch = {0};
    pass_state s = {.cx = cx, .result = result, .scratch = &scratch, .options = options};
    tg_program p = {.n_workers = options->n_workers,
                    .page_bytes = options->page_bytes,
                    .pages_per_worker = options->pages_per_worker,
                    .n_peers = options->n_peers,
                    .n_graphs = n_graphs};
    TRY(check_options(cx, options, n_graphs, n_tokens));
    mpk_status status = compile_all(&s, graphs, n_tokens, &p);
    arena_free(&scratch);
    if (status == MPK_OK)
        *out = p;
    return status;
}
