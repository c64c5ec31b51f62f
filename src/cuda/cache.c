/* cache.c - a folder of compiled kernels, and of programs for GPUs.
 *
 * An entry is a file HASH.kernel: the head below, the compiler's log, the code; or HASH.program:
 * the head, no log, the bytes that its owner gave.  A hit sets the file's time to now, so that the
 * order of times is the order of last use; after an entry was added, the folder is looked through
 * and the oldest ones go until the rest is within the limit.  Two processes that compile the same
 * source at the same time write the same entry twice, each under a name of its own until it is
 * whole: the last rename stays, and both entries are the same.
 *
 *   8f3c...(32 hex digits).kernel               entry_head | log | code
 *   8f3c...(32 hex digits).kernel.4711.part     one that thread 4711 is writing
 *
 * Relies on base/file.h for writing whole files, on tools.h for compiling.  Called by kernel_code.c
 * (cuda_cache_compile), by cuda_target.c (programs) and gpu_report.c. */
#include "cuda/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/map.h"

static const uint64_t limit_bytes = UINT64_C(1) << 30;
enum { ABANDONED_S = 3600 }; /* a file not finished in this time: its writer has died */

/* Two hashes with different seeds, 128 bits: the name of the file. */
typedef struct entry_key {
    uint64_t hash[2];
} entry_key;

/* The head of an entry, in the byte order of this machine (another order makes it a damaged
 * one). */
typedef struct entry_head {
    char magic[8];
    entry_key key;
    /* bytes; of the source, or of a program's key, for one more comparison */
    uint64_t n_log, n_code, n_source;
    uint64_t check; /* of log and code */
} entry_head;

static const char entry_magic[8] = "mpkkern";
static const char kernel_ending[] = ".kernel", program_ending[] = ".program";

/* ---- where ---- */

/* The folder of the cache, with a slash at its end; *out == NULL: there is no cache.  It need not
 * exist.  MPK_CACHE= (empty) switches the cache off. */
static mpk_status find_folder(mpk_context *cx, arena *a, const char **out)
{
    const char *named = getenv("MPK_CACHE"), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    *out = NULL;
    if (named && !*named)
        return MPK_OK;
    if (named)
        return file_join(cx, a, named, "", out);
    if (xdg && *xdg == '/') /* the specification says to ignore a relative one */
        return file_join(cx, a, xdg, "mpk/kernels/", out);
    return home && *home ? file_join(cx, a, home, ".cache/mpk/kernels/", out) : MPK_OK;
}

/* Make the folder and those above it: the path is cut at each slash in turn.  Another process may
 * make the same ones at the same time. */
static mpk_status make_folder(mpk_context *cx, arena *a, const char *folder)
{
    char *path = arena_copy(a, folder, strlen(folder));
    CHECK(cx, path, MPK_ENOMEM, "out of memory for the kernel cache");
    for (char *at = path + 1; *at; at++)
        if (*at == '/') {
            *at = 0;
            CHECK(cx, mkdir(path, 0777) == 0 || errno == EEXIST, MPK_EIO,
                  "cannot make the folder %s: %s", path, strerror(errno));
            *at = '/';
        }
    return MPK_OK;
}

/* The key of two texts, so that neither needs to be copied beside the other: the hash of the second
 * is the seed for the first. */
static entry_key hash_key(str what, str more)
{
    entry_key key;
    for (uint64_t i = 0; i < 2; i++)
        key.hash[i] = hash_bytes(what.at, what.n, hash_bytes(more.at, more.n, i));
    return key;
}

/* FOLDER/KEY.ending, in the arena. */
static mpk_status find_path(mpk_context *cx, arena *a, const char *folder, entry_key key,
                            const char *ending, const char **out)
{
    char name[64];
    snprintf(name, sizeof name, "%016" PRIx64 "%016" PRIx64 "%s", key.hash[0], key.hash[1], ending);
    return file_join(cx, a, folder, name, out);
}

/* ---- one entry ---- */

static uint64_t check_of(const char *bytes, size_t n)
{
    return hash_bytes(bytes, n, 0x6d706b);
}

/* True if the bytes are a whole entry of this key; then *head is its head.  The sizes are checked
 * before they are added, and the checksum before anything is used. */
static bool read_head(const file_map *m, entry_key key, size_t n_source, entry_head *head)
{
    if (m->n_bytes < sizeof *head)
        return false;
    memcpy(head, m->bytes, sizeof *head);
    size_t rest = m->n_bytes - sizeof *head;
    return memcmp(head->magic, entry_magic, sizeof entry_magic) == 0 &&
           memcmp(&head->key, &key, sizeof key) == 0 && head->n_source == n_source &&
           head->n_log <= rest && head->n_code == rest - head->n_log && head->n_code &&
           head->check == check_of((const char *)m->bytes + sizeof *head, rest);
}

static void note_use(const char *path)
{
    /* used now; a folder that cannot be written keeps its order */
    utimensat(AT_FDCWD, path, NULL, 0);
}

/* True if the entry was there and whole: *code is the caller's to free, and the log that the
 * compiler wrote then is added to `log` (may be NULL).  Whatever is wrong with it means that there
 * is none: it is compiled again, and the new entry replaces it. */
static bool load_entry(const char *path, entry_key key, const cuda_source *s, text *code, text *log)
{
    mpk_context unheard = {0};
    file_map m;
    entry_head head;
    text found = {0};
    if (file_map_open(&unheard, path, &m) != MPK_OK)
        return false;
    bool whole = read_head(&m, key, s->code.n, &head);
    if (whole) {
        const char *at = (const char *)m.bytes + sizeof head;
        text_add(&found, at + head.n_log, head.n_code);
        if (log && !found.failed && head.n_log)
            text_add(log, at, head.n_log);
        note_use(path);
    }
    file_map_close(&m);
    if (!whole || found.failed) {
        text_free(&found);
        return false;
    }
    *code = found;
    return true;
}

/* Write an entry under its name, whole or not at all (file_write writes beside it and renames). The
 * head goes first with a check of 0, which is filled in when the bytes after it are there.  The
 * check covers all after the head, so a file that was cut off is not a hit. */
static mpk_status write_entry(mpk_context *cx, const char *path, entry_key key, size_t n_source,
                              str code, str log)
{
    text t = {0};
    entry_head head = {.key = key, .n_log = log.n, .n_code = code.n, .n_source = n_source};
    memcpy(head.magic, entry_magic, sizeof entry_magic);
    text_add(&t, (const char *)&head, sizeof head);
    if (log.n)
        text_add(&t, log.at, log.n);
    text_add(&t, code.at, code.n);
    if (!t.failed) {
        head.check = check_of(t.at + sizeof head, t.n - sizeof head);
        memcpy(t.at, &head, sizeof head);
    }
    mpk_status status = t.failed ? status_fail(cx, MPK_ENOMEM, "out of memory for %s", path)
                                 : file_write(cx, path, t.at, t.n);
    text_free(&t);
    return status;
}

/* ---- the folder ---- */

/* A file of the folder that is ours; `path` is in the arena. */
typedef struct entry {
    const char *path;
    uint64_t n_bytes;
    struct timespec used;
    bool is_part, is_program; /* is_part: not finished */
} entry;
typedef VEC(entry) entries;

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static bool begins_with(const char *s, const char *start)
{
    return strncmp(s, start, strlen(start)) == 0;
}

/* Add a file of the folder to *out if it is an entry or an unfinished one.  Ours have 32 hex
 * digits, an ending, and perhaps a part's: anything else in the folder belongs to others and is
 * never removed. */
static mpk_status add_entry(mpk_context *cx, arena *a, const char *folder, const char *name,
                            entries *out)
{
    entry e = {0};
    struct stat s;
    size_t n = strspn(name, "0123456789abcdef");
    bool is_kernel = begins_with(name + n, kernel_ending),
         is_program = begins_with(name + n, program_ending);
    const char *rest = name + n + (is_kernel ? sizeof kernel_ending : sizeof program_ending) - 1;
    if (n != 32 || !(is_kernel || is_program) ||
        (*rest && !(*rest == '.' && ends_with(rest, ".part"))))
        return MPK_OK;
    TRY(file_join(cx, a, folder, name, &e.path));
    if (lstat(e.path, &s) != 0 || !S_ISREG(s.st_mode))
        return MPK_OK; /* removed meanwhile */
    e.n_bytes = (uint64_t)s.st_size;
    e.used = s.st_mtim;
    e.is_part = *rest != 0;
    e.is_program = is_program;
    PUSH(cx, a, out, e);
    return MPK_OK;
}

/* A folder that is not there has no entries. */
static mpk_status list_entries(mpk_context *cx, arena *a, const char *folder, entries *out)
{
    DIR *d = opendir(folder);
    mpk_status status = MPK_OK;
    if (!d && errno == ENOENT)
        return MPK_OK;
    CHECK(cx, d, MPK_EIO, "cannot look into the kernel cache %s: %s", folder, strerror(errno));
    for (struct dirent *item = readdir(d); item && status == MPK_OK; item = readdir(d))
        status = add_entry(cx, a, folder, item->d_name, out);
    closedir(d);
    return status;
}

/* For qsort: what was used longest ago first. */
static int compare_used(const void *left, const void *right)
{
    const entry *a = left, *b = right;
    if (a->used.tv_sec != b->used.tv_sec)
        return a->used.tv_sec < b->used.tv_sec ? -1 : 1;
    return a->used.tv_nsec < b->used.tv_nsec ? -1 : a->used.tv_nsec > b->used.tv_nsec;
}

/* Remove what was used longest ago until the rest is within the limit, and what dead writers left.
 * Parts of writers that live count for nothing here.  A file that cannot be removed, or was by
 * another process, keeps its bytes in the sum. */
static mpk_status shrink(mpk_context *cx, arena *a, const char *folder)
{
    entries all = {0};
    uint64_t n_bytes = 0;
    time_t now = time(NULL);
    TRY(list_entries(cx, a, folder, &all));
    for (size_t i = 0; i < all.n; i++)
        n_bytes += all.at[i].is_part ? 0 : all.at[i].n_bytes;
    if (all.n)
        qsort(all.at, all.n, sizeof *all.at, compare_used);
    for (size_t i = 0; i < all.n; i++) {
        const entry *e = &all.at[i];
        bool goes = e->is_part ? now - e->used.tv_sec > ABANDONED_S : n_bytes > limit_bytes;
        if (goes && unlink(e->path) == 0 && !e->is_part)
            n_bytes -= e->n_bytes;
    }
    return MPK_OK;
}

/* Put an entry into the folder, which is made if need be.  The entry is written before the folder
 * is looked through, so the limit holds with it. */
static mpk_status store(mpk_context *cx, arena *a, const char *folder, const char *path,
                        entry_key key, size_t n_source, str code, str log)
{
    TRY(make_folder(cx, a, folder));
    TRY(write_entry(cx, path, key, n_source, code, log));
    return shrink(cx, a, folder);
}

/* ---- the face ---- */

/* Compile, and keep the code if there is a folder.  path and key are of no use without one.  A
 * cache that cannot be written is a line in the log: the kernel is there all the same.  The log is
 * kept with the code, so that a hit tells the same registers and spills. */
static mpk_status compile_and_store(mpk_context *cx, arena *a, const cuda_tools *t,
                                    const cuda_source *s, const char *folder, const char *path,
                                    entry_key key, text *code, text *log)
{
    text words = {0};
    mpk_context unheard = {0};
    mpk_status status = cuda_tools_compile(cx, t, s, code, &words);
    if (log && words.n)
        text_add(log, words.at, words.n);
    if (status == MPK_OK && folder &&
        store(&unheard, a, folder, path, key, s->code.n, (str){code->at, code->n},
              (str){words.at, words.n}) != MPK_OK)
        log_line(cx, LOG_WARN, "the kernel is not kept in the cache: %s", unheard.text);
    text_free(&words);
    return status;
}

/* The key is made of the source and of what the compiler is, so another version of NVRTC compiles
 * again. */
static mpk_status compile(mpk_context *cx, arena *a, const cuda_tools *t, const cuda_source *s,
                          text *code, text *log, bool *from_cache)
{
    const char *folder, *path = NULL;
    str tools;
    entry_key key = {{0}};
    TRY(find_folder(cx, a, &folder));
    if (folder) {
        TRY(cuda_tools_describe(cx, a, t, s, &tools));
        key = hash_key(s->code, tools);
        TRY(find_path(cx, a, folder, key, kernel_ending, &path));
    }
    /* what is to be kept is compiled, so that source, log and code lie there whatever the cache
     * has */
    bool found = folder && !s->keep_folder && load_entry(path, key, s, code, log);
    if (!found)
        TRY(compile_and_store(cx, a, t, s, folder, path, key, code, log));
    if (from_cache)
        *from_cache = found;
    return MPK_OK;
}

/* The tools are opened even for a hit: their versions are part of the key. */
mpk_status cuda_cache_compile(mpk_context *cx, const cuda_source *s, text *code, text *log,
                              bool *from_cache)
{
    arena a = {0};
    cuda_tools t;
    TRY(cuda_tools_open(cx, s, &t));
    mpk_status status = compile(cx, &a, &t, s, code, log, from_cache);
    cuda_tools_close(&t);
    arena_free(&a);
    return status;
}

/* ---- programs ---- */

/* Where the program of a key lies: *path, in the arena; NULL: there is no cache.  "program" in the
 * hash keeps it from ever having the name of a kernel. */
static mpk_status find_program(mpk_context *cx, arena *a, str key, const char **folder,
                               entry_key *hash, const char **path)
{
    *path = NULL;
    *hash = hash_key(key, STR("program"));
    TRY(find_folder(cx, a, folder));
    return *folder ? find_path(cx, a, *folder, *hash, program_ending, path) : MPK_OK;
}

/* Whatever goes wrong is a miss, without words.  On a hit *file stays mapped until the caller
 * closes it, and *bytes points into it; another process may remove the file meanwhile without
 * harm. */
bool cuda_cache_open_program(str key, file_map *file, str *bytes)
{
    mpk_context unheard = {0};
    arena a = {0};
    entry_key hash;
    entry_head head;
    const char *folder, *path;
    bool found = find_program(&unheard, &a, key, &folder, &hash, &path) == MPK_OK && path &&
                 file_map_open(&unheard, path, file) == MPK_OK;
    if (found && !read_head(file, hash, key.n, &head)) {
        file_map_close(file);
        found = false;
    }
    if (found) {
        *bytes = (str){(const char *)file->bytes + sizeof head + head.n_log, head.n_code};
        note_use(path);
    }
    arena_free(&a);
    return found;
}

/* Called when a program has just been compiled, so a failure costs only that the next start
 * compiles it again. */
void cuda_cache_store_program(mpk_context *cx, str key, str bytes)
{
    mpk_context unheard = {0};
    arena a = {0};
    entry_key hash;
    const char *folder, *path;
    mpk_status status = find_program(&unheard, &a, key, &folder, &hash, &path);
    if (status == MPK_OK && path)
        status = store(&unheard, &a, folder, path, hash, key.n, bytes, (str){0});
    if (status != MPK_OK)
        log_line(cx, LOG_WARN, "the program is not kept in the cache: %s", unheard.text);
    arena_free(&a);
}

/* ---- looking at it ---- */

/* Parts are what other processes are writing, or left when they died: they count in bytes alone. */
mpk_status cuda_cache_describe(mpk_context *cx, arena *a, cuda_cache_facts *out)
{
    cuda_cache_facts f = {.limit_bytes = limit_bytes};
    entries all = {0};
    TRY(find_folder(cx, a, &f.folder));
    if (f.folder)
        TRY(list_entries(cx, a, f.folder, &all));
    for (size_t i = 0; i < all.n; i++) {
        f.n_kernels += !all.at[i].is_part && !all.at[i].is_program;
        f.n_programs += !all.at[i].is_part && all.at[i].is_program;
        f.n_bytes += all.at[i].n_bytes;
    }
    *out = f;
    return MPK_OK;
}

/* All entries, parts of writers that live among them: their rename fails then, which is a line in
 * their log.  Another process may remove the same entries at the same time. */
static mpk_status clear(mpk_context *cx, arena *a)
{
    const char *folder;
    entries all = {0};
    TRY(find_folder(cx, a, &folder));
    if (folder)
        TRY(list_entries(cx, a, folder, &all));
    for (size_t i = 0; i < all.n; i++)
        CHECK(cx, unlink(all.at[i].path) == 0 || errno == ENOENT, MPK_EIO, "cannot remove %s: %s",
              all.at[i].path, strerror(errno));
    return MPK_OK;
}

mpk_status cuda_cache_clear(mpk_context *cx)
{
    arena a = {0};
    mpk_status status = clear(cx, &a);
    arena_free(&a);
    return status;
}
