/* linker.c - find nvJitLink, link units of machine code (see linker.h).
 *
 * A kernel that is compiled in units takes as many threads of NVRTC and is linked here.
 * nvJitLink is opened at run time like NVRTC (nvrtc.c), beside which it is installed; without it
 * kernels are compiled as a whole, which takes longer.  Called by tools.c. */
#include "cuda/linker.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

typedef struct link_handle *link_handle;

enum { LINK_SUCCESS = 0, LINK_CUBIN = 1, PATH_BYTES = 4096 + 128 };

/* name, parameters.  A value of the library's enum nvJitLinkResult is an int here, 0: success. */
#define ENTRIES(X)                                                              \
    X(nvJitLinkVersion, (unsigned *, unsigned *))                               \
    X(nvJitLinkCreate, (link_handle *, uint32_t, const char **))                \
    X(nvJitLinkDestroy, (link_handle *))                                        \
    X(nvJitLinkAddData, (link_handle, int, const void *, size_t, const char *)) \
    X(nvJitLinkComplete, (link_handle))                                         \
    X(nvJitLinkGetErrorLogSize, (link_handle, size_t *))                        \
    X(nvJitLinkGetErrorLog, (link_handle, char *))                              \
    X(nvJitLinkGetLinkedCubinSize, (link_handle, size_t *))                     \
    X(nvJitLinkGetLinkedCubin, (link_handle, void *))

/* One opened library; `path` is the file, also of one that could not be opened, for messages.
 * Nothing in it changes once it is open, so threads may link with it at the same time, each with a
 * handle of its own. */
struct cuda_linker {
    void *library;
    char path[PATH_BYTES];
    uint32_t version;
#define ENTRY_MEMBER(name, parameters) int(*name) parameters;
    ENTRIES(ENTRY_MEMBER)
#undef ENTRY_MEMBER
};

/* The library stays loaded when it is closed, as NVRTC does. */
#define OPEN_FLAGS (RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)

/* ---- find it ---- */

/* The library of this major version in folder + place; an empty folder leaves the search to the
 * loader. */
static bool open_file(cuda_linker *l, const char *folder, const char *place, uint32_t major)
{
    int n = snprintf(l->path, sizeof l->path, "%s%slibnvJitLink.so.%u", folder, place, major);
    if (n < 0 || (size_t)n >= sizeof l->path || (*folder && !file_exists(l->path)))
        return false;
    l->library = dlopen(l->path, OPEN_FLAGS);
    return l->library != NULL;
}

/* Beside the file of NVRTC; a name without a folder is one that the loader finds.  The two layouts,
 * of CUDA 13's packages and toolkits, and of CUDA 12's:
 *
 *   nvidia/cu13/lib/libnvrtc.so.13        nvidia/cu13/lib/libnvJitLink.so.13
 *   nvidia/cuda_nvrtc/lib/libnvrtc.so.12  nvidia/nvjitlink/lib/libnvJitLink.so.12 */
static bool open_beside(cuda_linker *l, const cuda_nvrtc *n)
{
    const char *path = cuda_nvrtc_path(n), *slash = strrchr(path, '/');
    const uint32_t major = cuda_nvrtc_version(n) / 1000;
    char folder[PATH_BYTES];
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 0, path);
    return open_file(l, folder, "", major) ||
           (slash && open_file(l, folder, "../../nvjitlink/lib/", major));
}

/* MPK_EUNSUPPORTED, by name: a library that is too old, or another one. */
static mpk_status find_entries(mpk_context *cx, cuda_linker *l)
{
    unsigned major = 0, minor = 0;
    /* a pointer to data becomes a pointer to a function through memory: C has no cast for it */
#define ENTRY_FIND(name, parameters)                                                             \
    {                                                                                            \
        void *at = dlsym(l->library, #name);                                                     \
        CHECK(cx, at, MPK_EUNSUPPORTED,                                                          \
              "%s has no " #name ": pip install nvidia-nvjitlink brings one that has", l->path); \
        memcpy(&l->name, &at, sizeof at);                                                        \
    }
    ENTRIES(ENTRY_FIND)
#undef ENTRY_FIND
    CHECK(cx, l->nvJitLinkVersion(&major, &minor) == LINK_SUCCESS, MPK_EUNSUPPORTED,
          "%s does not tell its version", l->path);
    l->version = 1000 * major + 10 * minor;
    return MPK_OK;
}

/* It must be at least as new as NVRTC, whose code it reads. */
static mpk_status find_library(mpk_context *cx, cuda_linker *l, const cuda_nvrtc *n)
{
    const uint32_t wanted = cuda_nvrtc_version(n);
    CHECK(cx, open_beside(l, n), MPK_EUNSUPPORTED,
          "no libnvJitLink.so.%u beside %s: pip install nvidia-nvjitlink", wanted / 1000,
          cuda_nvrtc_path(n));
    TRY(find_entries(cx, l));
    CHECK(cx, l->version >= wanted, MPK_EUNSUPPORTED,
          "%s is of CUDA %u.%u and %s of %u.%u: pip install nvidia-nvjitlink brings one that is "
          "new enough",
          l->path, l->version / 1000, l->version % 1000 / 10, cuda_nvrtc_path(n), wanted / 1000,
          wanted % 1000 / 10);
    return MPK_OK;
}

/* n is only looked at; it may be closed before the linker. */
mpk_status cuda_linker_open(mpk_context *cx, const cuda_nvrtc *n, cuda_linker **out)
{
    cuda_linker *l = calloc(1, sizeof *l);
    CHECK(cx, l, MPK_ENOMEM, "out of memory for nvJitLink");
    mpk_status status = find_library(cx, l, n);
    if (status != MPK_OK) {
        cuda_linker_close(l);
        return status;
    }
    *out = l;
    return MPK_OK;
}

void cuda_linker_close(cuda_linker *l)
{
    if (l && l->library)
        dlclose(l->library);
    free(l);
}

const char *cuda_linker_path(const cuda_linker *l)
{
    return l->path;
}

uint32_t cuda_linker_version(const cuda_linker *l)
{
    return l->version;
}

/* ---- link ---- */

/* The status of a failed call, with what the linker has logged; h may be NULL. */
static mpk_status fail(mpk_context *cx, const cuda_linker *l, link_handle h, const char *what,
                       int code)
{
    size_t n = 0;
    char *log = NULL;
    if (h && l->nvJitLinkGetErrorLogSize(h, &n) == LINK_SUCCESS && n)
        log = calloc(1, n + 1);
    if (log && l->nvJitLinkGetErrorLog(h, log) != LINK_SUCCESS)
        *log = 0;
    status_fail(cx, MPK_EDEVICE, "linking the kernel failed: %s returned %d: %.400s", what, code,
                log && *log ? log : "it gives no reason");
    free(log);
    return MPK_EDEVICE;
}

/* The steps between making the handle and destroying it: all units are added, completed, and the
 * cubin is copied out.  The names that they are added by appear in the linker's messages. *code is
 * the caller's to free in any case. */
static mpk_status link_all(mpk_context *cx, const cuda_linker *l, link_handle h, uint32_t n,
                           const text *units, text *code)
{
    size_t n_bytes = 0;
    char name[16];
    int result = LINK_SUCCESS;
    for (uint32_t i = 0; i < n && result == LINK_SUCCESS; i++) {
        snprintf(name, sizeof name, "unit %u", i + 1);
        result = l->nvJitLinkAddData(h, LINK_CUBIN, units[i].at, units[i].n, name);
    }
    if (result != LINK_SUCCESS)
        return fail(cx, l, h, "nvJitLinkAddData", result);
    result = l->nvJitLinkComplete(h);
    if (result != LINK_SUCCESS)
        return fail(cx, l, h, "nvJitLinkComplete", result);
    result = l->nvJitLinkGetLinkedCubinSize(h, &n_bytes);
    if (result != LINK_SUCCESS)
        return fail(cx, l, h, "nvJitLinkGetLinkedCubinSize", result);
    char *at = text_room(code, n_bytes);
    CHECK(cx, at, MPK_ENOMEM, "out of memory for %zu bytes of code", n_bytes);
    result = l->nvJitLinkGetLinkedCubin(h, at);
    return result == LINK_SUCCESS ? MPK_OK : fail(cx, l, h, "nvJitLinkGetLinkedCubin", result);
}

/* Options and the handle are of this one link.  The units must stay until it has ended; *code is
 * written on success alone. */
mpk_status cuda_linker_link(mpk_context *cx, const cuda_linker *l, const gen_arch *arch, uint32_t n,
                            const text *units, text *code)
{
    char architecture[64];
    const char *options[] = {architecture};
    link_handle h = NULL;
    text made = {0};
    snprintf(architecture, sizeof architecture, "-arch=%s", arch->code_name);
    int result = l->nvJitLinkCreate(&h, 1, options);
    if (result != LINK_SUCCESS)
        return fail(cx, l, NULL, "nvJitLinkCreate", result);
    mpk_status status = link_all(cx, l, h, n, units, &made);
    l->nvJitLinkDestroy(&h);
    if (status != MPK_OK) {
        text_free(&made);
        return status;
    }
    *code = made;
    return MPK_OK;
}
