/* cuda_ranks_test.c - a process for each GPU (src/cuda/cuda_ranks.c), against the stand-in for the
 * driver, whose memory processes share as they would a GPU's (fake_cuda_shared.c).
 *
 * A test starts this program again for each rank, with what it is to do in the environment, and
 * reads what each has left in a file.  The kernel of a rank is a thread that does what its tables
 * say: the tasks of its GPU's workers by the operators' reference code, and on rank 0 the step
 * task.  Unlike emulated_gpus.h it delays nothing: here it is the protocol of the processes that is
 * tried.
 *
 *   answers     of two and three processes are those of one CPU, also after the kernels have rested
 *   ends        a killed, stopped, failing process, a lost kernel: all others end, with its words
 *   refusals    other programs, other GPUs
 */
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "check.h"
#include "peers_bed.h"

/* What rank 0 does, and how a rank's kernel behaves. */
enum { ASK = 1, RUN, WAIT, HOLD, LOSE, REST };
/* Tokens of the larger graph: in one kernel with the other, or in one for prompts. */
enum { FEW = 8, MANY = 512 };
enum { IDLE_NS = 20000000, STALL_NS = 1500000000, END_NS = 10000000 };
static const uint64_t LONG_NS = 60000000000u; /* for processes that do not get a processor */

/* What a process leaves in its file. */
typedef struct report {
    uint32_t has_ended, status, launches;
    char text[ERROR_TEXT_BYTES], leaks[256];
    answers first, again;
} report;

/* ---- the kernel of a rank ---- */

typedef struct rank_worker {
    rt_u64 step;
    rt_u32 next, last;
} rank_worker;

typedef struct rank_gpu {
    gpus all; /* what step task and courier need: kernels[0] */
    rt_kernel *k;
    rank_worker at[MAX_LISTS];
    uint32_t launches;
    bool dies; /* without a word, at its second launch */
    bool has_thread, running;
    pthread_t thread;
} rank_gpu;

/* Bind the operator to the addresses of the entry, which this GPU must be able to reach. */
static void bind(const rank_gpu *r, const rt_entry *e, const ir_graph *ir, const ir_op *op,
                 const rt_u32 *live, op_call *call)
{
    void **data = calloc(ir->tensors.n, sizeof *data);
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        const bool is_in = i < op->n_in;
        const ir_tensor_id id = is_in ? op->in[i] : op->out[i - op->n_in];
        if (id == IR_NONE)
            continue;
        const rt_u64 at =
            e->at[is_in ? gen_operand_of_input(op, i) : gen_operand_of_output(op, i - op->n_in)];
        assert_true(r->all.fake->may_touch((int)r->k->peer, at, 1));
        data[id] = (void *)(uintptr_t)at;
    }
    op_bind(ir, op, data, live, call);
    free(data);
}

static void compute(const rank_gpu *r, rt_u64 step, const rt_entry *e)
{
    const rt_u32 graph = rt_word_graph(step),
                 live[] = {UINT32_MAX, rt_word_tokens(step), rt_word_rows(step)};
    const ir_graph *ir = r->all.image->ir[graph];
    const rt_graph *rows = image_table(r->all.image->block, RT_GRAPHS);
    const ir_op *op = &ir->ops.at[e->op - rows[graph].first_op];
    ir_box box = {0};
    op_call call;
    for (uint32_t i = 0; i < e->rank; i++) {
        box.lo[i] = e->lo[i];
        box.hi[i] = i == 0 && e->hi[0] > live[e->live] ? live[e->live] : e->hi[i];
    }
    if (e->rank && box.lo[0] >= box.hi[0])
        return;
    bind(r, e, ir, op, live, &call);
    const size_t n = op->def->scratch_bytes ? op->def->scratch_bytes(ir, op, &box) : 0;
    void *scratch = aligned_alloc(64, (n + 64) / 64 * 64);
    op->def->ref(&call, &box, scratch);
    free(scratch);
}

static void count(const rt_kernel *k, const rt_entry *e)
{
    if (e->trigger_kind == RT_TRIGGER_COUNT)
        rt_add_acq_rel_device(&k->machine.counters[e->triggers], 1);
    for (uint32_t p = 0; e->trigger_kind != RT_TRIGGER_COUNT && p < k->n_peers; p++)
        rt_peers_count(k, p, e->triggers, e->trigger_kind);
}

/* One round of a worker; false: it waits. */
static bool round_of(rank_gpu *r, uint32_t worker)
{
    const rt_kernel *k = r->k;
    rank_worker *w = &r->at[worker];
    if (w->next == w->last) {
        const rt_u64 step = rt_load_wide_acquire_system(&k->machine.control->step);
        if (step == w->step)
            return false;
        const rt_u32 *first = k->first_entry + rt_word_graph(step) * k->machine.n_workers + worker;
        *w = (rank_worker){step, first[0], first[1]};
        return true;
    }
    const rt_entry *e = &k->entries[w->next];
    const rt_u32 wanted = e->needed * rt_word_epoch(w->step);
    if ((rt_i32)(rt_load_acquire_system(&k->machine.counters[e->depends]) - wanted) < 0)
        return false;
    if (e->body != RT_NONE)
        compute(r, w->step, e);
    count(k, e);
    w->next++;
    return true;
}

/* Rank 0: what courier and step task do. */
static bool take_step(rank_gpu *r, rt_u32 *asked)
{
    if (r->k->peer)
        return false;
    if (r->running && !gpus_has_ended(&r->all))
        return false;
    const bool had_run = r->running;
    r->running = gpus_begin(&r->all, asked);
    return r->running || had_run;
}

static bool is_told_to_stop(const rt_kernel *k)
{
    return rt_load_acquire_system(&k->stop) || rt_load_acquire_system(k->host_abort);
}

/* Until it is told to stop or, on rank 0, has nothing to do. */
static void serve(rank_gpu *r)
{
    rt_u32 asked = r->k->machine.control->once_wanted.value;
    for (uint64_t since = clock_ns(); !is_told_to_stop(r->k);) {
        bool did = take_step(r, &asked);
        for (uint32_t w = 0; w < r->k->machine.n_workers; w++)
            did |= round_of(r, w);
        if (did || r->running)
            since = clock_ns();
        if (!did)
            nanosleep(&(struct timespec){0, 20000}, NULL);
        if (!r->k->peer && !r->running && clock_ns() - since > IDLE_NS)
            return;
    }
}

static void *run_kernel(void *argument)
{
    rank_gpu *r = argument;
    rt_kernel *k = r->k;
    for (uint32_t w = 0; w < MAX_LISTS; w++)
        r->at[w] = (rank_worker){.step = k->start_step};
    r->running = false;
    if (!r->dies || r->launches < 2)
        serve(r);
    k->start_step = k->machine.control->step.value;
    if (!r->dies || r->launches < 2) {
        rt_peers_stop(k);
        rt_store_release_system(k->host_state, RT_STOPPING);
    }
    r->all.fake->hold((int)k->peer, -1);
    return NULL;
}

static void launched(void *user, const fake_launch *l)
{
    rank_gpu *r = user;
    if (strcmp(l->function, "mpk_kernel") != 0)
        return;
    if (r->has_thread)
        pthread_join(r->thread, NULL);
    r->launches++;
    r->k = r->all.kernels[0] = (rt_kernel *)(uintptr_t)l->argument;
    assert_int_equal(r->k->peer, l->device);
    r->all.fake->hold(l->device, 1);
    r->has_thread = pthread_create(&r->thread, NULL, run_kernel, r) == 0;
}

/* ---- a rank ---- */

static uint32_t number(const char *name)
{
    const char *word = getenv(name);
    return word ? (uint32_t)atoi(word) : 0;
}

static void make_bed(bed *b, uint32_t n, uint32_t tokens)
{
    const ir_dtype dtype = tokens > FEW ? IR_BF16 : IR_F32; /* products of many tokens take bf16 */
    b->random.seed = seed;
    make_model(&b->cx, &b->arena, (serve_model){dtype, tokens, n, false, 0}, &b->program,
               &b->image);
    make_weights(b);
}

static const char *path_of(const char *folder, const char *name, uint32_t rank)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s%u", folder, name, rank);
    return path;
}

static void leave(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_true(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

/* Steps without end, of which the first is told. */
static mpk_status run_on(bed *b, const char *folder)
{
    TRY(machine_run_graph(&b->cx, b->m, 0, 1, 1));
    leave(path_of(folder, "runs", 0), "1", 1);
    for (;;)
        TRY(machine_run_graph(&b->cx, b->m, 0, 1, 1));
}

/* Until the kernels go to rest. */
static void await_rest(const bed *b)
{
    while (cuda_state(cuda_of(b->m)) == RT_RUNNING)
        nanosleep(&(struct timespec){0, IDLE_NS}, NULL);
}

/* When they have: news that do not come; and a step when the test says so. */
static mpk_status wait_on(bed *b, const char *folder, bool forever)
{
    rt_token token;
    uint32_t n = 0;
    TRY(machine_run_graph(&b->cx, b->m, 0, 1, 1));
    await_rest(b);
    leave(path_of(folder, "runs", 0), "1", 1);
    while (access(path_of(folder, "go", 0), F_OK))
        TRY(machine_drain(&b->cx, b->m, &token, 1, forever ? UINT64_MAX : END_NS, &n));
    return machine_run_graph(&b->cx, b->m, 0, 1, 1);
}

static mpk_status do_part(bed *b, report *to, const char *folder, const host_ranks *met)
{
    if (number("RANK")) {
        while (!ranks_closed(met)) {
            TRY(machine_check(&b->cx, b->m));
            nanosleep(&(struct timespec){0, 2000000}, NULL);
        }
        return machine_check(&b->cx, b->m);
    }
    if (number("PART") == RUN)
        return run_on(b, folder);
    if (number("PART") == REST) { /* long enough for all to look around, a kernel for each regime */
        assert_int_equal(cuda_of(b->m)->source.n_regimes, 2);
        nanosleep(&(struct timespec){0, 5 * IDLE_NS}, NULL);
        return MPK_OK;
    }
    if (number("PART") != ASK)
        return wait_on(b, folder, number("PART") == WAIT);
    ask(&b->cx, b->m, &to->first);
    await_rest(b);
    ask(&b->cx, b->m, &to->again);
    return MPK_OK;
}

/* As a process whose engine is opened, used and closed. */
static mpk_status take_part(bed *b, rank_gpu *r, report *to, const char *folder, host_ranks **met)
{
    char at[512];
    const uint32_t n = number("RANKS");
    uint64_t told = 0;
    snprintf(at, sizeof at, "%s/meet", folder);
    const ranks_place place = {at, number("RANK"), n, 20000000000u};
    TRY(ranks_meet(&b->cx, &place, STR("the same\n"), &told, met));
    const cuda_options o = {.code = b->code.at,
                            .code_bytes = b->code.n,
                            .stall_ns = number("PART") == HOLD ? STALL_NS : LONG_NS,
                            .ranks = *met};
    const machine_weights w = {.at = b->weights, .seed = seed};
    r->all.fake->kernel(launched, r);
    TRY(cuda_start(&b->cx, &b->image, &w, &o, &b->m));
    return do_part(b, to, folder, *met);
}

static int be_rank(const char *folder)
{
    static report mine;
    static rank_gpu r;
    bed b = {0};
    host_ranks *met = NULL;
    char *words = strdup(getenv("MPK_FAKE_CUDA"));
    make_bed(&b, number("RANKS"), number("TOKENS"));
    r.all = (gpus){.image = &b.image, .fake = fake_cuda_start(words)};
    r.dies = number("DIES");
    b.code = fake_code(&b.cx, &b.arena, &b.image, GEN_KERNEL);
    mine.status = (uint32_t)take_part(&b, &r, &mine, folder, &met);
    snprintf(mine.text, sizeof mine.text, "%s", mine.status ? b.cx.text : "");
    machine_stop(b.m);
    ranks_free(met);
    if (r.has_thread)
        pthread_join(r.thread, NULL);
    r.all.fake->leaks(mine.leaks, sizeof mine.leaks);
    mine.launches = r.launches;
    mine.has_ended = 1;
    leave(path_of(folder, "report", number("RANK")), &mine, sizeof mine);
    arena_free(&b.arena);
    free(words);
    return 0;
}

/* ---- processes ---- */

typedef struct company {
    char folder[64];
    uint32_t n;
    pid_t process[MAX_GPUS];
} company;

static void set(const char *name, uint32_t value)
{
    char word[16];
    snprintf(word, sizeof word, "%u", value);
    setenv(name, word, 1);
}

/* words: for the stand-in, beside the GPUs; tokens: of the larger graph; dies: its kernel does. */
static void start_rank(company *c, uint32_t rank, uint32_t part, const char *words, uint32_t tokens,
                       bool dies)
{
    set("RANKS", c->n);
    set("RANK", rank);
    set("PART", part);
    set("TOKENS", tokens);
    set("DIES", dies);
    set_words(c->n, words);
    c->process[rank] = fork();
    assert_true(c->process[rank] >= 0);
    if (c->process[rank])
        return;
    execl("/proc/self/exe", "cuda_ranks_test", c->folder, (char *)NULL);
    _exit(127);
}

static void begin(company *c, uint32_t n)
{
    *c = (company){.n = n};
    strcpy(c->folder, "/tmp/mpk-ranks-XXXXXX");
    assert_non_null(mkdtemp(c->folder));
}

static void start_all(company *c, uint32_t n, uint32_t part)
{
    begin(c, n);
    for (uint32_t i = 0; i < n; i++)
        start_rank(c, i, part, "", part == REST ? MANY : FEW, false);
}

/* Until a process has left a file. */
static void await_file(const company *c, const char *name)
{
    const uint64_t end = clock_ns() + 60000000000u;
    while (access(path_of(c->folder, name, 0), F_OK)) {
        assert_true(clock_ns() < end);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}

/* The process ends by itself and in time; what it has left. */
static void finish(company *c, uint32_t rank, report *r)
{
    const uint64_t end = clock_ns() + 60000000000u;
    int status = 0;
    while (waitpid(c->process[rank], &status, WNOHANG) == 0) {
        if (clock_ns() > end)
            fail_msg("rank %u does not end", rank);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    assert_int_equal(status, 0);
    FILE *f = fopen(path_of(c->folder, "report", rank), "rb");
    assert_true(f && fread(r, 1, sizeof *r, f) == sizeof *r && r->has_ended);
    fclose(f);
    assert_string_equal(r->leaks, "");
}

static void end(company *c)
{
    static const char *const names[] = {"report", "runs", "go"};
    char at[512];
    for (uint32_t i = 0; i < c->n; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            unlink(path_of(c->folder, names[k], i));
    snprintf(at, sizeof at, "%s/meet", c->folder);
    assert_true(access(at, F_OK) != 0);
    assert_int_equal(rmdir(c->folder), 0);
}

/* All end with an error that has these words; of those in `but` nothing is expected. */
static void all_fail(company *c, uint32_t but, mpk_status status, const char *words)
{
    static report r;
    for (uint32_t i = 0; i < c->n; i++) {
        if (but >> i & 1)
            continue;
        finish(c, i, &r);
        if (r.status != (uint32_t)status || !strstr(r.text, words))
            fail_msg("rank %u: %s: %s, expected %s", i, status_sentence((mpk_status)r.status),
                     r.text, words);
    }
}

/* ---- tests ---- */

/* Kernels of several regimes are kept ahead on the stream, but none before rank 0 has asked for
 * one: it would wait for a step, and what the first launch puts on the stream for it. */
static void test_none_unasked(void **state)
{
    (void)state;
    static report r;
    company c;
    start_all(&c, 2, REST);
    for (uint32_t i = 0; i < 2; i++) {
        finish(&c, i, &r);
        assert_int_equal(r.status, MPK_OK);
        assert_int_equal(r.launches, 0);
    }
    end(&c);
}

static void test_answers(void **state)
{
    (void)state;
    static answers alone;
    static report r;
    for (uint32_t n = 2; n <= 3; n++) {
        bed b = {0};
        company c;
        machine *cpu;
        start_all(&c, n, ASK);
        make_bed(&b, n, FEW);
        check_ok(&b.cx,
                 cpu_start(&b.cx, &b.image, b.plain, &(cpu_options){.no_fast_bodies = true}, &cpu));
        ask(&b.cx, cpu, &alone);
        machine_stop(cpu);
        for (uint32_t i = 0; i < n; i++) {
            finish(&c, i, &r);
            assert_string_equal(r.text, "");
            assert_true(r.launches >= 2); /* they rested in between */
            assert_true(i || memcmp(&r.first, &alone, sizeof alone) == 0);
            assert_true(i || memcmp(&r.again, &alone, sizeof alone) == 0);
        }
        end(&c);
        arena_free(&b.arena);
    }
}

/* While steps run, and while the kernels rest and rank 0 waits for news. */
static void test_killed(void **state)
{
    (void)state;
    for (uint32_t who = 0; who < 3; who++)
        for (uint32_t part = RUN; part <= WAIT; part++) {
            company c;
            char words[64];
            start_all(&c, 3, part);
            await_file(&c, "runs");
            nanosleep(&(struct timespec){0, (long)(rng_u64(seed, 10 * part + who) % 100000000)},
                      NULL);
            kill(c.process[who], SIGKILL);
            const uint64_t begun = clock_ns();
            waitpid(c.process[who], NULL, 0);
            snprintf(words, sizeof words, "the process of rank %u has ended", who);
            all_fail(&c, 1u << who, MPK_EDEVICE, words);
            assert_true(clock_ns() - begun < 10000000000u);
            end(&c);
        }
}

/* Two of three at the same time: the third names one of them and does not wait for the others'
 * kernels. */
static void test_two_killed(void **state)
{
    (void)state;
    company c;
    const uint32_t stays = (uint32_t)(seed % 3);
    start_all(&c, 3, RUN);
    await_file(&c, "runs");
    for (uint32_t i = 0; i < 3; i++)
        if (i != stays)
            kill(c.process[i], SIGKILL);
    const uint64_t begun = clock_ns();
    for (uint32_t i = 0; i < 3; i++)
        if (i != stays)
            waitpid(c.process[i], NULL, 0);
    all_fail(&c, 7u & ~(1u << stays), MPK_EDEVICE, "has ended: its own message says why");
    assert_true(clock_ns() - begun < 10000000000u);
    end(&c);
}

/* When kill returns, the signal is only sent: a thread that has a processor goes on until another
 * one of its process, which may wait long for a processor, has taken it.  Here all have stopped. */
static void stop_process(pid_t process)
{
    int status = 0;
    assert_int_equal(kill(process, SIGSTOP), 0);
    assert_int_equal(waitpid(process, &status, WUNTRACED), process);
    assert_true(WIFSTOPPED(status));
}

/* A process that does not run keeps its GPU from being started again. */
static void test_stopped(void **state)
{
    (void)state;
    company c;
    start_all(&c, 2, HOLD);
    await_file(&c, "runs");
    stop_process(c.process[1]);
    leave(path_of(c.folder, "go", 0), "1", 1);
    all_fail(&c, 2, MPK_ESTALLED, "the process of rank 1 does not start its kernel");
    kill(c.process[1], SIGCONT);
    all_fail(&c, 1, MPK_ESTALLED, "the process of rank 1 does not start its kernel");
    end(&c);
}

/* The kernel of some rank, when it is started for the second time. */
static void test_lost_kernel(void **state)
{
    (void)state;
    for (uint32_t who = 0; who < 2; who++) {
        company c;
        char words[64];
        begin(&c, 2);
        for (uint32_t i = 0; i < 2; i++)
            start_rank(&c, i, LOSE, "", FEW, i == who);
        await_file(&c, "runs");
        leave(path_of(c.folder, "go", 0), "1", 1);
        snprintf(words, sizeof words, "GPU %u: the kernel ended without saying why", who);
        all_fail(&c, 0, MPK_EDEVICE, words);
        end(&c);
    }
}

static void test_differences(void **state)
{
    (void)state;
    static const struct {
        const char *words, *needle;
        uint32_t tokens;
    } cases[] = {
        {"", "rank 1 has compiled another program than rank 0", 4},
        {"bus:8", "give all ranks the same GPUs", 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        company c;
        begin(&c, 2);
        start_rank(&c, 0, ASK, "", FEW, false);
        start_rank(&c, 1, ASK, cases[i].words, cases[i].tokens, false);
        all_fail(&c, 0, MPK_EARG, cases[i].needle);
        end(&c);
    }
}

/* Some call of the driver fails in one process: both end, and nothing stays. */
static void test_failures(void **state)
{
    (void)state;
    static const char *const entries[] = {"cuMemCreate",
                                          "cuMemAddressReserve",
                                          "cuMemAddressReserve:2",
                                          "cuMemMap",
                                          "cuMemMap:2",
                                          "cuMemSetAccess",
                                          "cuMemSetAccess:2",
                                          "cuMemExportToShareableHandle",
                                          "cuMemImportFromShareableHandle",
                                          "cuMemHostRegister",
                                          "cuMemHostGetDevicePointer",
                                          "cuLaunchKernelEx"};
    const uint32_t n = sizeof entries / sizeof *entries;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t who = rng_u64(seed, 100 + i) % 2;
        const bool has_number = strchr(entries[i], ':');
        static report r;
        company c;
        char words[96], name[64];
        if (!check_takes(seed, 200 + i, 2))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(entries[i], ":"), entries[i]);
        snprintf(words, sizeof words, "fail:%s%s", entries[i], has_number ? "" : ":1");
        begin(&c, 2);
        for (uint32_t k = 0; k < 2; k++)
            start_rank(&c, k, RUN, k == who ? words : "", FEW, false);
        finish(&c, who, &r);
        if (!r.status || !strstr(r.text, name))
            fail_msg("rank %u with %s: %s", who, words, r.text);
        finish(&c, !who, &r);
        assert_true(r.status);
        snprintf(words, sizeof words, "rank %u has ended", who);
        if (!strstr(r.text, words) && !strstr(r.text, name))
            fail_msg("rank %u, when %s fails in the other: %s", !who, name, r.text);
        end(&c);
    }
}

/* What waiting does not mend is told at once: a place in what is no folder, and terms too long. For
 * one that may come yet a rank waits its time. */
static void test_no_place_to_meet(void **state)
{
    (void)state;
    company c;
    mpk_context cx = {0};
    host_ranks *met = NULL;
    uint64_t told = 0;
    char file[512], at[sizeof file + 8];
    begin(&c, 2);
    strcpy(file, path_of(c.folder, "go", 0));
    FILE *f = fopen(file, "w");
    assert_true(f && fclose(f) == 0);
    snprintf(at, sizeof at, "%s/meet", file);
    const ranks_place wrong = {at, 1, 2, 50000000u};
    check_fails(&cx, MPK_EIO, "cannot meet rank 0 at",
                ranks_meet(&cx, &wrong, STR("x"), &told, &met));
    snprintf(file, sizeof file, "%s/meet", c.folder);
    const ranks_place later = {file, 1, 2, 50000000u};
    check_fails(&cx, MPK_EDEVICE, "rank 0 did not come",
                ranks_meet(&cx, &later, STR("x"), &told, &met));
    static const char terms[RANKS_TERMS_BYTES + 1] = {0};
    check_fails(&cx, MPK_EDEVICE, "rank 0 did not come",
                ranks_meet(&cx, &later, (str){terms, RANKS_TERMS_BYTES}, &told, &met));
    check_fails(&cx, MPK_ELIMIT, "bytes of terms, at most",
                ranks_meet(&cx, &later, (str){terms, RANKS_TERMS_BYTES + 1}, &told, &met));
    assert_null(met);
    end(&c);
}

int main(int n_arguments, char **arguments)
{
    seed = check_seed();
    if (n_arguments > 1)
        return be_rank(arguments[1]);
    char word[32];
    snprintf(word, sizeof word, "%llu", (unsigned long long)seed);
    setenv("MPK_SEED", word, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_none_unasked),     cmocka_unit_test(test_answers),
        cmocka_unit_test(test_killed),           cmocka_unit_test(test_two_killed),
        cmocka_unit_test(test_stopped),          cmocka_unit_test(test_lost_kernel),
        cmocka_unit_test(test_differences),      cmocka_unit_test(test_failures),
        cmocka_unit_test(test_no_place_to_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
