/* file.c - POSIX files: mapped for reading, read whole, and written so that no half file is ever
 * seen.
 *
 * Mapped files are the weights: pages are read when they are touched and may be released again at
 * any time.  Errors carry the path and the system's words.  Called by loaders, caches and writers.
 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Also true of folders and devices; false of what cannot be looked at. */
bool file_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0;
}

bool file_is_folder(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

/* The pages are clean copies of the file, so the system may drop them at once; the mapping stays,
 * and a later read brings them back. */
void file_map_release(const file_map *m)
{
    if (m->bytes)
        madvise((void *)(uintptr_t)m->bytes, m->n_bytes, MADV_DONTNEED);
}

/* Only whole pages inside the range: its neighbours on the pages at both ends may still be read.
 * The pages come back from the file if they are read again. */
void file_map_release_part(const void *at, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE),
              first = ((uintptr_t)at + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)at + n) / page * page;
    if (first < end)
        madvise((void *)first, end - first, MADV_DONTNEED);
}

mpk_status file_join(mpk_context *cx, arena *a, const char *folder, const char *name,
                     const char **path)
{
    size_t n = strlen(folder), bytes = n + strlen(name) + 2;
    char *p;
    NEW(cx, a, p, bytes);
    snprintf(p, bytes, "%s%s%s", folder, n && folder[n - 1] != '/' ? "/" : "", name);
    *path = p;
    return MPK_OK;
}

/* Private and read-only: pages are shared with other processes that map the file.  An empty file
 * has no mapping.  Device and inode tell two names of one file apart from two files.  A pipe that
 * has no writer is refused like any other one, not waited for. */
mpk_status file_map_open(mpk_context *cx, const char *path, file_map *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    CHECK(cx, fd >= 0, MPK_EIO, "cannot open %s: %s", path, strerror(errno));
    struct stat s;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        close(fd);
        FAIL(cx, MPK_EIO, "cannot map %s: not a regular file", path);
    }
    file_map m = {NULL, (size_t)s.st_size, (uint64_t)s.st_dev, (uint64_t)s.st_ino};
    if (m.n_bytes) {
        void *p = mmap(NULL, m.n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            int error = errno;
            close(fd);
            FAIL(cx, error == ENOMEM ? MPK_ENOMEM : MPK_EIO, "cannot map %s: %s", path,
                 strerror(error));
        }
        m.bytes = p;
    }
    close(fd);
    *out = m;
    return MPK_OK;
}

/* A zeroed map is closed by doing nothing. */
void file_map_close(file_map *m)
{
    if (m->bytes)
        munmap((void *)m->bytes, m->n_bytes);
    *m = (file_map){0};
}

/* The size is not asked for beforehand: a pipe has none, and a file may grow. */
static mpk_status read_all(mpk_context *cx, int fd, const char *path, size_t limit, text *t)
{
    char buffer[65536];
    for (;;) {
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR)
            continue;
        CHECK(cx, n >= 0, MPK_EIO, "cannot read %s: %s", path, strerror(errno));
        if (n == 0)
            return MPK_OK;
        CHECK(cx, (size_t)n <= limit - t->n, MPK_ELIMIT, "%s has more than %zu bytes", path, limit);
        text_add(t, buffer, (size_t)n);
        CHECK(cx, !t->failed, MPK_ENOMEM, "out of memory reading %s", path);
    }
}

/* "-" is standard input.  The size is not asked for first, since pipes have none. */
mpk_status file_read(mpk_context *cx, arena *a, const char *path, size_t limit, str *out)
{
    bool standard_input = strcmp(path, "-") == 0;
    int fd = standard_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    CHECK(cx, fd >= 0, MPK_EIO, "cannot open %s: %s", path, strerror(errno));
    text t = {0};
    mpk_status status = read_all(cx, fd, path, limit, &t);
    if (!standard_input)
        close(fd);
    const char *bytes = t.at ? t.at : "";
    char *copy = status == MPK_OK ? arena_copy(a, bytes, t.n) : NULL;
    size_t n = t.n;
    text_free(&t);
    TRY(status);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory reading %s", path);
    *out = (str){copy, n};
    return MPK_OK;
}

/* 0, or the system's error number. */
static int write_all(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t written = write(fd, bytes, n);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return errno ? errno : EIO;
        bytes += written;
        n -= (size_t)written;
    }
    return 0;
}

/* Open a new file beside path for the bytes until they are all there; its name goes to s->name.
 * The number is the thread's, but threads of other machines or containers that write to the same
 * folder may have it too, and a stranger may have put a link there: so a file that is there is
 * never opened. */
static int open_beside(const char *path, file_sink *s)
{
    enum { MOST_TRIES = 1000 };
    size_t bytes = strlen(path) + 48;
    s->name = malloc(bytes);
    if (!s->name)
        return ENOMEM;
    for (unsigned i = 0; i < MOST_TRIES; i++) {
        int n = snprintf(s->name, bytes, "%s.%ld", path, (long)gettid());
        snprintf(s->name + n, bytes - (size_t)n, i ? "-%u.part" : ".part", i);
        s->fd = open(s->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (s->fd >= 0)
            return 0;
        if (errno != EEXIST)
            break;
    }
    const int error = errno;
    free(s->name); /* it is not ours to remove */
    s->name = NULL;
    return error;
}

/* What is no regular file is opened under its own name. */
static int open_direct(const char *path, file_sink *s)
{
    s->name = strdup(path);
    if (!s->name)
        return ENOMEM;
    s->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    return s->fd < 0 ? errno : 0;
}

/* Ask the file system for room now.  One that cannot say is not asked again. */
static int reserve(int fd, uint64_t n_bytes)
{
    if (n_bytes > INT64_MAX)
        return EFBIG;
    if (!n_bytes || fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)n_bytes) == 0)
        return 0;
    return errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? errno : 0;
}

static mpk_status refuse_sink(mpk_context *cx, file_sink *s, int error)
{
    file_sink_abandon(s);
    FAIL(cx, error == ENOMEM ? MPK_ENOMEM : MPK_EIO, "cannot write %s: %s", s->path,
         strerror(error));
}

/* A regular file is written under another name beside it and renamed at the end, so no reader ever
 * sees half of it; what is not a regular file (a pipe, /dev/null) is written to directly.  The room
 * is reserved at once: a full disk fails here, not after an hour. */
mpk_status file_sink_open(mpk_context *cx, const char *path, uint64_t n_bytes, file_sink *out)
{
    struct stat st;
    file_sink s = {.path = path, .fd = -1, .direct = stat(path, &st) == 0 && !S_ISREG(st.st_mode)};
    int error = s.direct ? open_direct(path, &s) : open_beside(path, &s);
    if (!error && !s.direct)
        error = reserve(s.fd, n_bytes);
    if (error)
        return refuse_sink(cx, &s, error);
    *out = s;
    return MPK_OK;
}

mpk_status file_sink_write(mpk_context *cx, file_sink *s, const void *bytes, size_t n)
{
    int error = write_all(s->fd, bytes, n);
    CHECK(cx, !error, MPK_EIO, "cannot write %s: %s", s->path, strerror(error));
    return MPK_OK;
}

/* fsync before rename: after a crash the name stands for the old bytes or for all of the new
 * ones. */
mpk_status file_sink_commit(mpk_context *cx, file_sink *s)
{
    int error = !s->direct && fsync(s->fd) != 0 ? errno : 0;
    if (close(s->fd) != 0 && !error)
        error = errno;
    s->fd = -1;
    if (!error && !s->direct && rename(s->name, s->path) != 0)
        error = errno;
    if (error)
        return refuse_sink(cx, s, error);
    free(s->name);
    s->name = NULL;
    return MPK_OK;
}

/* After a commit `name` is NULL, and this does nothing. */
void file_sink_abandon(file_sink *s)
{
    if (!s->name)
        return;
    if (s->fd >= 0)
        close(s->fd);
    if (!s->direct)
        unlink(s->name);
    free(s->name);
    s->name = NULL;
}

/* The sink is abandoned on any failure, so `path` keeps its old bytes. */
mpk_status file_write(mpk_context *cx, const char *path, const void *bytes, size_t n)
{
    file_sink s;
    TRY(file_sink_open(cx, path, 0, &s));
    mpk_status status = file_sink_write(cx, &s, bytes, n);
    if (status == MPK_OK)
        status = file_sink_commit(cx, &s);
    file_sink_abandon(&s);
    return status;
}

/* By device and inode.  A device or a pipe may be shared: two names of one are not a fault. */
bool file_is_same(const char *path, const char *other)
{
    struct stat a, b;
    return stat(path, &a) == 0 && stat(other, &b) == 0 && S_ISREG(a.st_mode) &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Is this the mapped file?  By device and inode, since one file may have several names. */
bool file_map_is(const file_map *m, const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && (uint64_t)s.st_dev == m->device && (uint64_t)s.st_ino == m->inode;
}
