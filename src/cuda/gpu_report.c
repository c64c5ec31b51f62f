/* gpu_report.c - driver, GPUs, NVRTC and the kernel cache as JSON.
 *
 *   "gpus": {"driver": "12.8",
 *            "list": [{"name": "...", "pci": "...", "capability": "9.0", "sms": 132,
 *                      "memory_bytes": ..., "target": "sm_90a", "as_ptx": false}],
 *            "links": [{"from": 0, "to": 1, "reaches": true, "atomics": true, "rank": 0}, ...]},
 *   "nvrtc": {"path": "...", "version": "12.8"}, "nvjitlink": {...},
 *   "kernel_cache": {"folder": "...", "kernels": 4, "programs": 2, "bytes": ..., ...}
 *
 * What could not be found out has a "problem" in the place of the rest: one line, for a user.
 * Relies on driver.h, nvrtc.h, linker.h and cache.h, each of which says in one line what is
 * missing.  Called through target_cuda.report by the engine (mpk_machine), for `mpk doctor`.
 * Nothing here starts a kernel or takes memory of a GPU. */
#include "cuda/gpu_report.h"

#include "base/json.h"
#include "cuda/cache.h"
#include "cuda/cuda.h"

/* The last member of an object, instead of what could not be found out: "problem": "no NVIDIA
 * driver: ...". */
static void add_problem(text *t, const mpk_context *cx)
{
    text_print(t, "\"problem\": ");
    json_write_str(t, str_from(cx->text));
}

/* 1000 * major + 10 * minor as "13.0". */
static void add_version(text *t, uint32_t version)
{
    text_print(t, "\"%u.%u\"", version / 1000, version % 1000 / 10);
}

/* Nothing has been printed when it fails, so that the list stays valid JSON. */
static mpk_status add_gpu(mpk_context *cx, text *t, const cuda_driver *d, uint32_t index)
{
    cuda_facts f;
    bool as_ptx = false;
    TRY(cuda_driver_describe(cx, d, index, &f));
    mpk_context unsaid = {0};
    gen_arch arch;
    const bool has_code = cuda_choose_arch(&unsaid, &f, &arch, &as_ptx) == MPK_OK;
    text_print(t, "%s{\"name\": ", index ? ", " : "");
    json_write_str(t, str_from(f.name));
    text_print(t, ", \"pci\": ");
    json_write_str(t, str_from(f.pci));
    text_print(t, ", \"capability\": \"%u.%u\", \"sms\": %u, \"memory_bytes\": %llu, \"target\": ",
               f.major, f.minor, f.n_sms, (unsigned long long)f.memory_bytes);
    if (has_code)
        text_print(t, "\"%s\", \"as_ptx\": %s}", arch.name, as_ptx ? "true" : "false");
    else
        text_print(t, "null, \"as_ptx\": false}");
    return MPK_OK;
}

/* Whether programs may be shared: from each GPU to each other. */
static mpk_status add_links(mpk_context *cx, text *t, const cuda_driver *d)
{
    const uint32_t n = cuda_driver_gpus(d);
    text_print(t, ", \"links\": [");
    for (uint32_t i = 0; i < n * n; i++) {
        cuda_link link;
        if (i / n == i % n)
            continue;
        TRY(cuda_driver_link(cx, d, i / n, i % n, &link));
        text_print(t,
                   "%s{\"from\": %u, \"to\": %u, \"reaches\": %s, \"atomics\": %s, \"rank\": %u}",
                   i > 1 ? ", " : "", i / n, i % n, str_bool(link.reaches), str_bool(link.atomics),
                   link.rank);
    }
    return MPK_OK;
}

/* A list as long as it could be made, and what ended it too early. */
static void add_driver(mpk_context *cx, text *t, const cuda_driver *d)
{
    mpk_status status = MPK_OK;
    text_print(t, "\"driver\": ");
    add_version(t, cuda_driver_version(d));
    text_print(t, ", \"list\": [");
    for (uint32_t i = 0; i < cuda_driver_gpus(d) && status == MPK_OK; i++)
        status = add_gpu(cx, t, d, i);
    text_print(t, "]");
    if (status == MPK_OK) {
        status = add_links(cx, t, d);
        text_print(t, "]");
    }
    if (status != MPK_OK) {
        text_print(t, ", \"driver_file\": true, ");
        add_problem(t, cx);
    }
}

/* A part that fails becomes a "problem" in the report: the others are still told. */
static void add_gpus(text *t)
{
    mpk_context cx = {0};
    cuda_driver *d;
    text_print(t, "\"gpus\": {");
    if (cuda_driver_open(&cx, &d) == MPK_OK) {
        add_driver(&cx, t, d);
        cuda_driver_close(d);
    } else {
        text_print(t, "\"driver_file\": %s, ", cuda_driver_is_there() ? "true" : "false");
        add_problem(t, &cx);
    }
    text_print(t, "}");
}

/* "path": "/usr/lib/libnvrtc.so.13", "version": "13.0" */
static void add_library(text *t, const char *path, uint32_t version)
{
    text_print(t, "\"path\": ");
    json_write_str(t, str_from(path));
    text_print(t, ", \"version\": ");
    add_version(t, version);
}

/* Without NVRTC it is not looked for, and the report has no "nvjitlink". */
static void add_linker(text *t, const cuda_nvrtc *n)
{
    mpk_context cx = {0};
    cuda_linker *l;
    text_print(t, ", \"nvjitlink\": {");
    if (cuda_linker_open(&cx, n, &l) == MPK_OK) {
        add_library(t, cuda_linker_path(l), cuda_linker_version(l));
        cuda_linker_close(l);
    } else
        add_problem(t, &cx);
    text_print(t, "}");
}

/* The linker is looked for where NVRTC is. */
static void add_compiler(text *t)
{
    mpk_context cx = {0};
    cuda_nvrtc *n = NULL;
    text_print(t, ", \"nvrtc\": {");
    if (cuda_nvrtc_open(&cx, &n) == MPK_OK)
        add_library(t, cuda_nvrtc_path(n), cuda_nvrtc_version(n));
    else
        add_problem(t, &cx);
    text_print(t, "}");
    if (n)
        add_linker(t, n);
    cuda_nvrtc_close(n);
}

/* A folder that cannot be read is a problem; one that is not there yet is an empty cache. */
static void add_cache(text *t)
{
    mpk_context cx = {0};
    arena a = {0};
    cuda_cache_facts f = {0};
    text_print(t, ", \"kernel_cache\": {");
    if (cuda_cache_describe(&cx, &a, &f) != MPK_OK)
        add_problem(t, &cx);
    else {
        text_print(t, "\"folder\": ");
        if (f.folder)
            json_write_str(t, str_from(f.folder));
        else
            text_print(t, "null");
        text_print(
            t, ", \"kernels\": %llu, \"programs\": %llu, \"bytes\": %llu, \"limit_bytes\": %llu",
            (unsigned long long)f.n_kernels, (unsigned long long)f.n_programs,
            (unsigned long long)f.n_bytes, (unsigned long long)f.limit_bytes);
    }
    text_print(t, "}");
    arena_free(&a);
}

void cuda_report_add(text *t)
{
    add_gpus(t);
    add_compiler(t);
    add_cache(t);
}
