/* check_cuda.c - the GPU target on a GPU: every operator, small models, the same bits again and
 * again.
 *
 * For each operator all its cases become one program, which the GPU runs with fresh random data,
 * all entries alive and only some; every result is compared with the operator's reference code.
 * Small models run a prompt and single tokens, are compared with the interpreter, serve requests,
 * and repeat; one of them also as CUDA graphs, and with tasks that are launched just in time.
 * Models whose name ends in "invariant" are compiled and served so that company changes no bit:
 * requests alone and together, logits and tokens.  Models whose name ends in "peers2" are shared by
 * two GPUs, or by two halves of the only one; likewise "peers3" and "peers4"; with "own" each has
 * some experts whole.  Those with "prompts" have a graph for 512 tokens, which runs on the kernel
 * for prompts; in those with "streams" the tasks of steps of 128 and 256 tokens share tiles, and
 * where matrices are wide those of 64 tokens.  Those with "drafts" give requests the same tokens
 * with speculation as without, those with "ahead" with themselves as draft model, and "invariant"
 * ones the same bits.  The one with "small" is as small as one can be that runs all kinds of warps
 * and bodies, on few workers, for the sanitizers (tools/sanitize_cuda.py).
 *
 * The work is done by child processes, one after the other: one that loses its GPU, or hangs, is
 * replaced, and the next item goes on.  Before, all programs are compiled by as many processes as
 * there are processors, into a cache that the others read.  One line for each item, a summary, exit
 * code 1 if anything failed; without a GPU it says so and exits with 0.
 *
 *   check_cuda [NAME ...]    items of these names; MPK_SEED=N repeats a run, MPK_KEEP=FOLDER keeps
 *                            the kernels' source, MPK_PATIENCE=N is for runs under a sanitizer: all
 *                            time limits are N times as long, and the kernel is compiled for that
 *                            (cuda_options.checked); MPK_ARCH=sm_80 or sm_86 runs what an older
 *                            GPU runs
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check_cuda.h"

#include "base/thread.h"
#include "cuda/cache.h"

enum {
    ITEM_SECONDS = 120,
    PEERS_SECONDS = 30,
    SMALL_WORKERS = 4,
    PAGE_BYTES = 16384,
    PAGES_PER_WORKER = 1 << 16
};

board *checks;

/* ---- programs ---- */

bool check_is_on_one_gpu(const item *it)
{
    return it->n_peers > checks->n_gpus;
}

uint32_t check_workers_of(const item *it)
{
    if (it->small)
        return SMALL_WORKERS;
    if (check_is_on_one_gpu(it))
        return checks->arch.n_sms / it->n_peers * it->n_peers;
    return checks->arch.n_sms * (it->n_peers ? it->n_peers : 1);
}

mpk_status check_compile_unit(mpk_context *cx, const item *it, unit *u, pass_options o)
{
    o.n_workers = check_workers_of(it);
    o.page_bytes = PAGE_BYTES;
    o.pages_per_worker = PAGES_PER_WORKER;
    o.verify = true;
    TRY(pass_compile(cx, &u->arena, &o, u->n_graphs, u->graphs, u->n_tokens, &u->program));
    return image_make(cx, &u->arena, &u->program, &u->image);
}

cuda_options check_options(void)
{
    return (cuda_options){.keep = getenv("MPK_KEEP"),
                          .stall_ns = 5000000000u * checks->patience,
                          .checked = checks->patience > 1};
}

/* ---- items ---- */

static mpk_status make_unit(mpk_context *cx, const item *it, unit *u)
{
    return it->def ? check_make_operator(cx, it, u) : check_make_model(cx, it, u);
}

static void free_unit(unit *u)
{
    text_free(&u->bodies);
    arena_free(&u->arena);
}

static bool run_item(item *it)
{
    mpk_context cx = {0};
    unit u = {0};
    char words[WORDS] = "";
    uint64_t start = clock_ns();
    mpk_status status = make_unit(&cx, it, &u);
    if (status == MPK_OK && !u.image.block)
        snprintf(words, sizeof words, "%u views, which are no work", u.n_views);
    else if (status == MPK_OK)
        status =
            it->def ? check_run_operator(&cx, it, &u, words) : check_run_model(&cx, it, &u, words);
    snprintf(it->words, WORDS, "%.*s", WORDS - 1, status == MPK_OK ? words : cx.text);
    it->seconds = (double)(clock_ns() - start) * 1e-9;
    it->outcome = status == MPK_OK ? PASSED : FAILED;
    free_unit(&u);
    return status != MPK_EDEVICE && status != MPK_ESTALLED;
}

static bool is_wanted(const char *name, int n, char **names)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return n == 0;
}

static item *add_item(const char *name, int n, char **names)
{
    if (!is_wanted(name, n, names) || checks->n == MOST_ITEMS)
        return NULL;
    item *it = &checks->items[checks->n++];
    snprintf(it->name, sizeof it->name, "%s", name);
    return it;
}

static void add_op(const op_def *def, int n, char **names)
{
    item *it = def->flags & OP_PROCESSES ? NULL : add_item(def->name, n, names);
    if (!it)
        return;
    it->def = def;
    it->dtype = IR_F32;
    it->fast = true;
}

/* The name says all: family, dtype, and what is peculiar. */
static void add_model(const char *name, int n, char **names)
{
    item *it = add_item(name, n, names);
    if (!it)
        return;
    snprintf(it->family, sizeof it->family, "%.*s", (int)strcspn(name, "-"), name);
    it->dtype = strstr(name, "-f32") ? IR_F32 : IR_BF16;
    it->fast = !strstr(name, "-plain");
    it->invariant = strstr(name, "-invariant") != NULL;
    it->small = strstr(name, "-small") != NULL;
    it->prompts = strstr(name, "-prompts") != NULL;
    it->ahead = strstr(name, "-ahead") != NULL;
    it->drafts = it->ahead || strstr(name, "-drafts");
    it->streams = strstr(name, "-streams") != NULL;
    it->wide = strstr(name, "-wide") != NULL;
    it->blocks = strstr(name, "-blocks") != NULL;
    it->own_experts = strstr(name, "-own") != NULL;
    const char *peers = strstr(name, "-peers");
    it->n_peers = peers ? (uint32_t)strtoul(peers + strlen("-peers"), NULL, 10) : 0;
    it->mode = strstr(name, "-pdl")     ? CUDA_GRAPH_PDL
               : strstr(name, "-graph") ? CUDA_GRAPH
                                        : CUDA_PERSISTENT;
    it->launch = strstr(name, "-jit")     ? PASS_LAUNCH_JIT
                 : strstr(name, "-paper") ? PASS_LAUNCH_PAPER
                                          : PASS_LAUNCH_AUTO;
}

static void list_items(int n, char **names)
{
    static const char *const models[] = {
        "llama-f32-plain",
        "llama-bf16-plain",
        "llama-f32",
        "llama-bf16",
        "qwen3-f32",
        "qwen3-bf16",
        "qwen2-bf16",
        "llama-bf16-invariant",
        "qwen3-bf16-invariant",
        "llama-bf16-invariant-drafts",
        "qwen3-bf16-invariant-ahead",
        "llama-f32-invariant-drafts",
        "qwen3-bf16-jit",
        "qwen3-bf16-paper",
        "qwen3-bf16-graph",
        "qwen3-bf16-small",
        "qwen3_moe-f32",
        "mixtral-bf16",
        "qwen3-f32-drafts",
        "llama-bf16-drafts",
        "llama-f32-ahead",
        "qwen3-bf16-ahead",
        "qwen3-bf16-prompts-ahead",
        "llama-bf16-prompts",
        "qwen3-bf16-prompts",
        "mixtral-bf16-prompts",
        "qwen3-bf16-streams",
        "qwen3-bf16-wide-streams",
        "qwen3-bf16-blocks-prompts",
        "qwen3_moe-bf16-blocks-prompts",
        "gpt_oss-bf16-blocks-streams",
        "gpt_oss-bf16-blocks-prompts",
        "gemma2-bf16-prompts",
        "phi3-bf16-prompts",
        "gpt_oss-bf16-prompts",
        "deepseek_v2-bf16-prompts",
        "qwen3_5_text-f32",
        "qwen3_5_text-bf16",
        "qwen3_5_text-bf16-prompts",
        "llama-f32-peers2",
        "qwen3-bf16-peers2",
        "qwen2-bf16-peers2",
        "qwen3_5_text-bf16-peers2",
        "qwen3_moe-f32-peers2",
        "mixtral-bf16-peers2",
        "qwen3_moe-f32-own-peers2",
        "mixtral-bf16-own-peers2",
        "qwen3-bf16-wide-streams-peers2",
        "llama-f32-peers3",
        "qwen3-bf16-peers4",
    };
    for (const op_def *const *d = op_table; *d; d++)
        add_op(*d, n, names);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        add_model(models[i], n, names);
    if (checks->arch.features & GEN_BULK)
        add_model("qwen3-bf16-graph-pdl", n, names);
}

/* ---- children ---- */

static void find_gpu(void)
{
    mpk_context cx = {0};
    cuda_device_facts f;
    mpk_status status = cuda_probe(&cx, 0, &f);
    checks->has_gpu =
        status == MPK_OK && gen_arch_fit(&f.arch, f.gpu.n_sms, f.gpu.shared_bytes, &checks->arch);
    snprintf(checks->no_gpu, sizeof checks->no_gpu, "%s",
             status == MPK_OK ? "its shared memory is too small" : cx.text);
    snprintf(checks->gpu, sizeof checks->gpu, "%s", f.gpu.name);
    checks->n_gpus = status == MPK_OK ? f.n_devices : 0;
}

/* Programs into the cache; what does not compile is reported when its turn comes. */
static void compile_share(uint32_t first, uint32_t stride)
{
    for (uint32_t i = first; i < checks->n; i += stride) {
        mpk_context cx = {0};
        unit u = {0};
        text code = {0};
        if (make_unit(&cx, &checks->items[i], &u) == MPK_OK && u.image.block)
            cuda_compile(&cx, &u.image, &checks->arch, NULL, &code);
        text_free(&code);
        free_unit(&u);
    }
}

static void run_items(void)
{
    for (uint32_t i = checks->current; i < checks->n; i++) {
        checks->current = i;
        checks->began_ns = clock_ns();
        if (!run_item(&checks->items[i]))
            _exit(1); /* the GPU may be lost to this process */
    }
    checks->current = checks->n;
    _exit(0);
}

static void say(const item *it)
{
    static const char *const marks[] = {"?", "ok", "FAILED", "DIED"};
    printf("%-24s %-7s %6.2f s  %s\n", it->name, marks[it->outcome], it->seconds, it->words);
    fflush(stdout);
}

/* How long an item may take: kernels that wait for each other, and one does not start, would take
 * for ever. */
static uint64_t most_seconds(uint32_t i)
{
    return (i < checks->n && checks->items[i].n_peers ? PEERS_SECONDS : ITEM_SECONDS) *
           checks->patience;
}

/* Wait for a child that runs items; kill it if one takes too long. */
static void watch(pid_t child, uint32_t *said)
{
    int how;
    for (;;) {
        pid_t ended = waitpid(child, &how, WNOHANG);
        while (*said < checks->n && checks->items[*said].outcome != WAITING)
            say(&checks->items[(*said)++]);
        if (ended == child)
            break;
        const uint64_t most = most_seconds(checks->current);
        if (clock_ns() - checks->began_ns > most * 1000000000u) {
            kill(child, SIGKILL);
            waitpid(child, &how, 0);
            snprintf(checks->items[*said].words, WORDS, "killed after %llu s",
                     (unsigned long long)most);
            break;
        }
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
    bool died = !WIFEXITED(how) || WEXITSTATUS(how) > 1;
    if (died && *said < checks->n) {
        item *it = &checks->items[*said];
        it->outcome = DIED;
        it->seconds = (double)(clock_ns() - checks->began_ns) * 1e-9;
        if (!it->words[0])
            snprintf(it->words, WORDS, "%s %d",
                     WIFSIGNALED(how) ? "killed by signal" : "ended with",
                     WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    }
}

static pid_t child_of(void)
{
    fflush(NULL);
    return fork();
}

static void compile_all(void)
{
    uint32_t n = thread_processors();
    pid_t children[64];
    n = n < 64 ? n : 64;
    for (uint32_t i = 0; i < n; i++) {
        children[i] = child_of();
        if (children[i] == 0) {
            compile_share(i, n);
            _exit(0);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        if (children[i] > 0)
            waitpid(children[i], NULL, 0);
}

/* Run everything, with a new child after each one that was lost. */
static void run_all(void)
{
    uint32_t said = 0;
    while (said < checks->n) {
        checks->current = said;
        checks->began_ns = clock_ns();
        pid_t child = child_of();
        if (child == 0)
            run_items();
        watch(child, &said);
        if (said < checks->n && checks->items[said].outcome == DIED)
            say(&checks->items[said++]);
    }
}

static int summarise(double seconds)
{
    uint32_t passed = 0;
    for (uint32_t i = 0; i < checks->n; i++)
        passed += checks->items[i].outcome == PASSED;
    printf("%u of %u passed on %s in %.1f s (MPK_SEED=%llu)\n", passed, checks->n, checks->gpu,
           seconds, (unsigned long long)checks->seed);
    return passed == checks->n && checks->n ? 0 : 1;
}

int main(int argc, char **argv)
{
    char cache[] = "/tmp/mpk-check-cuda.XXXXXX";
    const char *seed = getenv("MPK_SEED"), *patience = getenv("MPK_PATIENCE");
    uint64_t start = clock_ns();
    checks = mmap(NULL, sizeof *checks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (checks == MAP_FAILED)
        return 1;
    checks->seed = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    checks->patience = patience ? strtoull(patience, NULL, 10) : 1;
    if (!checks->patience || checks->patience > 1000) {
        fprintf(stderr, "check_cuda: MPK_PATIENCE=%s is no number from 1 to 1000\n", patience);
        return 2;
    }
    bool own_cache = !getenv("MPK_CACHE") && mkdtemp(cache) && setenv("MPK_CACHE", cache, 1) == 0;
    pid_t child = child_of();
    if (child == 0) {
        find_gpu();
        _exit(0);
    }
    waitpid(child, NULL, 0);
    if (!checks->has_gpu) {
        printf("skipped: there is no GPU to check: %s\n", checks->no_gpu);
        rmdir(cache);
        return 0;
    }
    list_items(argc - 1, argv + 1);
    if (checks->patience == 1) /* other code is compiled by the items themselves */
        compile_all();
    printf("%s, %s, %u SMs; %u programs compiled in %.1f s\n", checks->gpu, checks->arch.name,
           checks->arch.n_sms, checks->n, (double)(clock_ns() - start) * 1e-9);
    run_all();
    if (own_cache) {
        cuda_cache_clear(&(mpk_context){0});
        rmdir(cache);
    }
    return summarise((double)(clock_ns() - start) * 1e-9);
}
