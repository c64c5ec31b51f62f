/* nvrtc.c - find NVRTC, compile one source, say what was wrong with it.
 *
 * NVRTC loads a second library, its built-in functions, by bare name: found only where the loader
 * looks.  So the one that lies beside it is opened first, by path; the loader then takes it for the
 * name.  Where it is looked for, the first that can be opened:
 *
 *   MPK_NVRTC                        alone, if it is set
 *   the loader's own folders         also what the process has loaded, as PyTorch does
 *   /usr/local/cuda, cuda-*          the toolkit
 *   packages of python3              nvidia-cuda-nvrtc
 *
 * Relies on nothing but libdl: every entry is looked up by name, from NVRTC 12 or 13.  Called by
 * tools.c, which compiles units with it, by gpu_report.c and, to see whether there is one, by
 * cuda_target.c. */
#include "cuda/nvrtc.h"

#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"

typedef struct program_handle *program;

enum {
    NVRTC_SUCCESS = 0,
    NVRTC_OUT_OF_MEMORY = 1,
    NVRTC_COMPILATION = 6,
    NVRTC_BUILTINS = 7,
    PATH_BYTES = 4096,
    FILE_BYTES = PATH_BYTES + 64
};

/* name, parameters.  A value of nvrtcResult is an int here. */
#define ENTRIES(X)                                                                            \
    X(nvrtcVersion, (int *, int *))                                                           \
    X(nvrtcGetNumSupportedArchs, (int *))                                                     \
    X(nvrtcGetSupportedArchs, (int *))                                                        \
    X(nvrtcCreateProgram,                                                                     \
      (program *, const char *, const char *, int, const char *const *, const char *const *)) \
    X(nvrtcDestroyProgram, (program *))                                                       \
    X(nvrtcCompileProgram, (program, int, const char *const *))                               \
    X(nvrtcGetProgramLogSize, (program, size_t *))                                            \
    X(nvrtcGetProgramLog, (program, char *))                                                  \
    X(nvrtcGetCUBINSize, (program, size_t *))                                                 \
    X(nvrtcGetCUBIN, (program, char *))                                                       \
    X(nvrtcGetPTXSize, (program, size_t *))                                                   \
    X(nvrtcGetPTX, (program, char *))

/* One opened library.  Several may be open at a time, also of the same file; compilations of one
 * may run in several threads, each with a program handle of its own. */
struct cuda_nvrtc {
    void *library, *builtins; /* builtins: NULL where the loader finds them itself */
    char path[FILE_BYTES];
    uint32_t version;
    const char *(*nvrtcGetErrorString)(int);
#define ENTRY_MEMBER(name, parameters) int(*name) parameters;
    ENTRIES(ENTRY_MEMBER)
#undef ENTRY_MEMBER
};

/* The libraries stay loaded when they are closed: unloading them would leak what they allocate when
 * they start. */
#define OPEN_FLAGS (RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)

/* The newest first; a name has the major version, which is the interface's. */
static const char *const file_names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
enum { N_FILE_NAMES = 2 };

/* ---- find it ---- */

/* Where the library lies.  A name without a folder is resolved: the process may have loaded the
 * file before, as PyTorch does, and nvJitLink is looked for beside it. */
static void keep_path(cuda_nvrtc *n, const char *path)
{
    struct link_map *map;
    bool resolved = !strchr(path, '/') && dlinfo(n->library, RTLD_DI_LINKMAP, &map) == 0 &&
                    strchr(map->l_name, '/');
    snprintf(n->path, sizeof n->path, "%s", resolved ? map->l_name : path);
}

/* Open the library at path, and the built-in functions beside it.  False: it cannot be opened
 * (dlerror says why). */
static bool open_file(cuda_nvrtc *n, const char *path)
{
    const char *slash = strrchr(path, '/');
    char pattern[FILE_BYTES];
    glob_t found = {0};
    /* by pattern: the name of the built-in functions has the minor version, too, such as 12.8 */
    if (slash) {
        snprintf(pattern, sizeof pattern, "%.*s/libnvrtc-builtins.so.[0-9]*", (int)(slash - path),
                 path);
        if (glob(pattern, 0, NULL, &found) == 0)
            n->builtins = dlopen(found.gl_pathv[0], OPEN_FLAGS);
        globfree(&found);
    }
    n->library = dlopen(path, OPEN_FLAGS);
    if (n->library) {
        keep_path(n, path);
        return true;
    }
    if (n->builtins)
        dlclose(n->builtins);
    n->builtins = NULL;
    return false;
}

/* The newest in this folder; "": wherever the loader looks. */
static bool open_in_folder(cuda_nvrtc *n, const char *folder)
{
    char path[FILE_BYTES];
    for (int i = 0; i < N_FILE_NAMES; i++) {
        snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", file_names[i]);
        if ((!*folder || file_exists(path)) && open_file(n, path))
            return true;
    }
    return false;
}

/* The folder that the toolkit's own link names, then the others from the last name on, which is the
 * newest. */
static bool open_in_toolkit(cuda_nvrtc *n)
{
    glob_t found = {0};
    bool opened = open_in_folder(n, "/usr/local/cuda/lib64");
    if (!opened && glob("/usr/local/cuda-*/lib64", 0, NULL, &found) == 0) {
        for (size_t i = found.gl_pathc; i-- > 0 && !opened;)
            opened = open_in_folder(n, found.gl_pathv[i]);
        globfree(&found);
    }
    return opened;
}

/* Python is asked and not guessed: a virtual environment, a version manager and a distribution each
 * put packages somewhere else.  The current folder is not looked at, as any other user may have put
 * a folder `nvidia` there. */
static bool open_in_python(cuda_nvrtc *n)
{
    static const char command[] = "python3 -c 'import sys\n"
                                  "sys.path = [p for p in sys.path if p]\n"
                                  "import nvidia\n"
                                  "print(*nvidia.__path__, sep=chr(10))' 2>/dev/null </dev/null";
    /* where the packages for CUDA 13 and for CUDA 12 put it below `nvidia` */
    static const char *const places[] = {"cu13/lib", "cuda_nvrtc/lib"};
    char line[PATH_BYTES / 2], folder[PATH_BYTES];
    bool opened = false;
    /* "e": a child that another thread starts meanwhile does not inherit the pipe */
    FILE *python = popen(command, "re");
    while (python && fgets(line, sizeof line, python))
        for (size_t i = 0; i < 2 && !opened; i++) {
            snprintf(folder, sizeof folder, "%.*s/%s", (int)strcspn(line, "\n"), line, places[i]);
            opened = open_in_folder(n, folder);
        }
    if (python)
        pclose(python);
    return opened;
}

/* The order of the places is nvrtc.h's.  MPK_NVRTC counts alone: a user who names a compiler wants
 * no other one silently. */
static mpk_status find_library(mpk_context *cx, cuda_nvrtc *n)
{
    const char *named = getenv("MPK_NVRTC");
    if (named && *named) {
        const bool is_folder = file_is_folder(named);
        const bool opened = is_folder ? open_in_folder(n, named) : open_file(n, named);
        const char *why = "no libnvrtc.so.13 or .12 in it that can be opened";
        if (!opened && !is_folder)
            why = dlerror();
        CHECK(cx, opened, MPK_EUNSUPPORTED,
              "MPK_NVRTC=%s: %s; it must name libnvrtc.so.13 or .12, or its folder", named,
              why ? why : "it cannot be opened");
        return MPK_OK;
    }
    CHECK(cx, open_in_folder(n, "") || open_in_toolkit(n) || open_in_python(n), MPK_EUNSUPPORTED,
          "no NVRTC, NVIDIA's compiler for kernels: pip install nvidia-cuda-nvrtc, or let "
          "MPK_NVRTC name libnvrtc.so.13 "
          "(looked in the loader's path, /usr/local/cuda*, and the packages of python3)");
    return MPK_OK;
}

/* MPK_EUNSUPPORTED, by name: another library, or one that is too old. */
static mpk_status find_entries(mpk_context *cx, cuda_nvrtc *n)
{
    int major = 0, minor = 0;
    /* a pointer to data becomes a pointer to a function through memory: C has no cast for it */
#define ENTRY_FIND(name, parameters)                                                              \
    {                                                                                             \
        void *at = dlsym(n->library, #name);                                                      \
        CHECK(cx, at, MPK_EUNSUPPORTED,                                                           \
              "%s has no " #name ": pip install nvidia-cuda-nvrtc brings one that has", n->path); \
        memcpy(&n->name, &at, sizeof at);                                                         \
    }
    ENTRIES(ENTRY_FIND)
    ENTRY_FIND(nvrtcGetErrorString, )
#undef ENTRY_FIND
    CHECK(cx, n->nvrtcVersion(&major, &minor) == NVRTC_SUCCESS, MPK_EDEVICE,
          "%s does not tell its version", n->path);
    n->version = (uint32_t)(1000 * major + 10 * minor);
    return MPK_OK;
}

/* Opened once for a start; *out may be used by several threads. */
mpk_status cuda_nvrtc_open(mpk_context *cx, cuda_nvrtc **out)
{
    cuda_nvrtc *n = calloc(1, sizeof *n);
    CHECK(cx, n, MPK_ENOMEM, "out of memory for NVRTC");
    mpk_status status = find_library(cx, n);
    if (status == MPK_OK)
        status = find_entries(cx, n);
    if (status != MPK_OK) {
        cuda_nvrtc_close(n);
        return status;
    }
    *out = n;
    return MPK_OK;
}

/* No compilation of it may be under way. */
void cuda_nvrtc_close(cuda_nvrtc *n)
{
    if (!n)
        return;
    if (n->library)
        dlclose(n->library);
    if (n->builtins)
        dlclose(n->builtins);
    free(n);
}

const char *cuda_nvrtc_path(const cuda_nvrtc *n)
{
    return n->path;
}

uint32_t cuda_nvrtc_version(const cuda_nvrtc *n)
{
    return n->version;
}

/* ---- compile ---- */

/* MAX_OPTIONS: four always, two if checked, two of a regime, four of a unit.  REGISTERS: of an SM,
 * which all GPUs of the table of architectures have.
 */
enum { MAX_OPTIONS = 12, REGISTERS = 65536 };
/* Options of one compilation; at[] points into the members before it. */
typedef struct options {
    char architecture[64], regime[32], unit[32], registers[32];
    const char *at[MAX_OPTIONS];
    int n;
} options;

/* What is left out: optimisation, which is NVRTC's own default; the include path, since a source
 * includes nothing. */
static void choose_options(const cuda_source *s, options *o)
{
    o->n = 0;
    snprintf(o->architecture, sizeof o->architecture, "--gpu-architecture=%s",
             s->as_ptx ? s->arch->ptx_name : s->arch->code_name);
    o->at[o->n++] = o->architecture;
    o->at[o->n++] = "--std=c++17";
    /* functions without __device__, as headers have that the host shares, are for the GPU too */
    o->at[o->n++] = "--device-as-default-execution-space";
    o->at[o->n++] = "--ptxas-options=-v"; /* registers and spills of each kernel, in the log */
    if (s->checked) {
        o->at[o->n++] = "--generate-line-info";
        o->at[o->n++] = "--define-macro=MPK_CHECKED";
    }
    if (s->regime) {
        snprintf(o->regime, sizeof o->regime, "-DMPK_REGIME=%u", s->regime);
        o->at[o->n++] = o->regime;
        o->at[o->n++] = "--diag-suppress=177"; /* what only another regime uses */
    }
    if (!s->unit)
        return;
    snprintf(o->unit, sizeof o->unit, "-DMPK_UNIT=%u", s->unit);
    /* as many as a thread of the kernel has: a unit that is called does not know its launch
     * bounds */
    snprintf(o->registers, sizeof o->registers, "--maxrregcount=%u",
             REGISTERS / s->arch->worker_threads / 8 * 8);
    o->at[o->n++] = o->unit;
    o->at[o->n++] = o->registers;
    o->at[o->n++] = "--relocatable-device-code=true";
    o->at[o->n++] = "--diag-suppress=177"; /* what only another unit uses */
}

/* For example:
 *
 *   --gpu-architecture=sm_90a
 *   --std=c++17
 *   --device-as-default-execution-space
 *   --ptxas-options=-v */
mpk_status cuda_source_options(mpk_context *cx, arena *a, const cuda_source *s, str *out)
{
    options o;
    char lines[512];
    size_t n = 0;
    choose_options(s, &o);
    for (int i = 0; i < o.n; i++)
        n += (size_t)snprintf(lines + n, sizeof lines - n, "%s\n", o.at[i]);
    char *copy = arena_copy(a, lines, n);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory for the compiler's options");
    *out = (str){copy, n};
    return MPK_OK;
}

/* One compilation: `cx` and what it points to are the caller's; p, log and code are released by
 * cuda_nvrtc_compile whatever happens, but for code that succeeds. */
typedef struct compilation {
    mpk_context *cx;
    const cuda_nvrtc *n;
    const cuda_source *s;
    program p;
    text log, code;
} compilation;

/* Return the status unless the entry succeeds.  What the source itself is wrong with is not a
 * failure of an entry but of nvrtcCompileProgram alone, which explain() puts into words. */
#define CALL(c, entry, arguments)                                      \
    do {                                                               \
        int code_ = (c)->n->entry arguments;                           \
        CHECK((c)->cx, code_ == NVRTC_SUCCESS,                         \
              code_ == NVRTC_OUT_OF_MEMORY ? MPK_ENOMEM : MPK_EDEVICE, \
              "NVRTC failed on %s: %s (" #entry ")", (c)->s->name,     \
              (c)->n->nvrtcGetErrorString(code_));                     \
    } while (0)

/* Asked before compiling, since NVRTC's own message for a name it does not know says little. */
static mpk_status check_architecture(compilation *c)
{
    const gen_arch *arch = c->s->arch;
    int n = 0, known[64] = {0};
    CALL(c, nvrtcGetNumSupportedArchs, (&n));
    if (n > 64)
        return MPK_OK; /* a later NVRTC: it says itself what it does not know */
    CALL(c, nvrtcGetSupportedArchs, (known));
    for (int i = 0; i < n; i++)
        if ((uint32_t)known[i] == arch->major * 10 + arch->minor)
            return MPK_OK;
    FAIL(c->cx, MPK_EUNSUPPORTED,
         "%s (version %u.%u) does not know %s: pip install nvidia-cuda-nvrtc brings one that does",
         c->n->path, c->n->version / 1000, c->n->version % 1000 / 10, arch->name);
}

/* NVRTC gives it with a NUL, which the text does not count. */
static mpk_status read_log(compilation *c)
{
    size_t n = 0;
    CALL(c, nvrtcGetProgramLogSize, (c->p, &n));
    if (n <= 1)
        return MPK_OK;
    char *at = text_room(&c->log, n);
    CHECK(c->cx, at, MPK_ENOMEM, "out of memory for the compiler's log");
    CALL(c, nvrtcGetProgramLog, (c->p, at));
    c->log.n = strlen(at);
    return MPK_OK;
}

/* The bytes of PTX end in a NUL that is counted: the driver needs it (cuda_module_load). */
static mpk_status read_code(compilation *c)
{
    size_t n = 0;
    bool ptx = c->s->as_ptx;
    if (ptx)
        CALL(c, nvrtcGetPTXSize, (c->p, &n));
    else
        CALL(c, nvrtcGetCUBINSize, (c->p, &n));
    char *at = text_room(&c->code, n);
    CHECK(c->cx, at, MPK_ENOMEM, "out of memory for %zu bytes of code", n);
    if (ptx)
        CALL(c, nvrtcGetPTX, (c->p, at));
    else
        CALL(c, nvrtcGetCUBIN, (c->p, at));
    return MPK_OK;
}

/* The log from its first error on, at most four lines of it: the error, the line of the source,
 * what points at it. */
static str first_error(const text *log)
{
    const str all = text_str(log);
    const char *at = strstr(all.at, "error"), *end;
    if (!at)
        return (str){all.at, all.n < 400 ? all.n : 400};
    while (at > log->at && at[-1] != '\n')
        at--;
    end = at;
    for (int i = 0; i < 4 && *end; i++) {
        end += strcspn(end, "\n");
        end += *end == '\n';
    }
    while (end > at && (end[-1] == '\n' || end[-1] == ' '))
        end--;
    return (str){at, (size_t)(end - at) < 800 ? (size_t)(end - at) : 800};
}

/* The folder must be there (keep_source); a file of an earlier run is replaced. */
mpk_status cuda_source_keep(mpk_context *cx, const cuda_source *s, const char *ending, str bytes)
{
    arena a = {0};
    const char *path;
    char name[512];
    if (!s->keep_folder)
        return MPK_OK;
    snprintf(name, sizeof name, "%s%s", s->name, ending);
    mpk_status status = file_join(cx, &a, s->keep_folder, name, &path);
    if (status == MPK_OK)
        status = file_write(cx, path, bytes.at ? bytes.at : "", bytes.n);
    arena_free(&a);
    return status;
}

/* What comes of a unit carries its number. */
static mpk_status keep_file(compilation *c, const char *ending, const text *bytes)
{
    char name[32];
    if (c->s->unit)
        snprintf(name, sizeof name, ".%u%s", c->s->unit, ending);
    else
        snprintf(name, sizeof name, "%s", ending);
    return cuda_source_keep(c->cx, c->s, name, (str){bytes->at, bytes->n});
}

/* Units run side by side: the folder may appear in between, which is no error. */
static mpk_status keep_source(compilation *c)
{
    const char *folder = c->s->keep_folder;
    CHECK(c->cx, !folder || mkdir(folder, 0777) == 0 || errno == EEXIST, MPK_EIO,
          "cannot make the folder %s: %s", folder, strerror(errno));
    /* units share one source, which the last, begun first, writes */
    return c->s->unit && c->s->units >> c->s->unit > 1
               ? MPK_OK
               : cuda_source_keep(c->cx, c->s, "", c->s->code);
}

/* The status of a compilation that ended with `code`, in words for a user who has not written the
 * source.  MPK_EFORMAT if the source is at fault, which for generated code is a fault of mpk. */
static mpk_status explain(compilation *c, int code)
{
    const cuda_source *s = c->s;
    str error = first_error(&c->log);
    CHECK(c->cx, code != NVRTC_BUILTINS, MPK_EUNSUPPORTED,
          "%s does not find libnvrtc-builtins, which belongs beside it: pip install "
          "nvidia-cuda-nvrtc brings both",
          c->n->path);
    CHECK(c->cx, code == NVRTC_COMPILATION, code == NVRTC_OUT_OF_MEMORY ? MPK_ENOMEM : MPK_EDEVICE,
          "NVRTC failed on %s: %s: %.*s", s->name, c->n->nvrtcGetErrorString(code), STR_ARG(error));
    status_fail(c->cx, MPK_EFORMAT, "%s does not compile for %s:\n%.*s", s->name, s->arch->name,
                STR_ARG(error));
    char unit[16] = "";
    if (s->unit)
        snprintf(unit, sizeof unit, ".%u", s->unit);
    if (s->keep_folder)
        status_note(c->cx, MPK_EFORMAT, "compiling %s/%s (all messages: %s%s.log beside it)",
                    s->keep_folder, s->name, s->name, unit);
    else
        status_note(c->cx, MPK_EFORMAT,
                    "compiling generated code; --keep=FOLDER keeps it, with all messages");
    return MPK_EFORMAT;
}

/* source: with its NUL.  The log is read, and kept, also of a compilation that failed, since it
 * says why. */
static mpk_status compile(compilation *c, const char *source)
{
    options o;
    /* no headers: the source is whole (src/gen/source.c), and its name appears in messages alone */
    CALL(c, nvrtcCreateProgram, (&c->p, source, c->s->name, 0, NULL, NULL));
    choose_options(c->s, &o);
    int code = c->n->nvrtcCompileProgram(c->p, o.n, o.at);
    /* before explain, which quotes it */
    TRY(read_log(c));
    TRY(keep_file(c, ".log", &c->log));
    if (code != NVRTC_SUCCESS)
        return explain(c, code);
    TRY(read_code(c));
    return keep_file(c, c->s->as_ptx ? ".ptx" : ".cubin", &c->code);
}

/* Check what can be wrong with the request, keep the source, and compile a copy of it: NVRTC wants
 * the source to end in NUL. */
static mpk_status compile_copy(compilation *c)
{
    arena a = {0};
    CHECK(c->cx, !strchr(c->s->name, '/'), MPK_EARG, "%s: the name of a source has no folder",
          c->s->name);
    CHECK(c->cx, !c->s->code.n || !memchr(c->s->code.at, 0, c->s->code.n), MPK_EARG,
          "%s holds a NUL", c->s->name);
    TRY(check_architecture(c));
    TRY(keep_source(c));
    const char *source = arena_copy(&a, c->s->code.n ? c->s->code.at : "", c->s->code.n);
    mpk_status status =
        source ? compile(c, source)
               : status_fail(c->cx, MPK_ENOMEM, "out of memory for the source %s", c->s->name);
    arena_free(&a);
    return status;
}

/* Any thread; needs no GPU.  *code is written on success alone.  To compile a kernel takes seconds
 * to a minute, and nothing can end it early. */
mpk_status cuda_nvrtc_compile(mpk_context *cx, const cuda_nvrtc *n, const cuda_source *s,
                              text *code, text *log)
{
    compilation c = {.cx = cx, .n = n, .s = s};
    mpk_status status = compile_copy(&c);
    if (c.p)
        n->nvrtcDestroyProgram(&c.p);
    if (log && c.log.n)
        text_add(log, c.log.at, c.log.n);
    text_free(&c.log);
    if (status != MPK_OK) {
        text_free(&c.code);
        return status;
    }
    *code = c.code;
    return MPK_OK;
}
