/* file.h - files: map to read, write whole or not at all. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/* A file mapped read-only; bytes are valid until file_unmap. */
typedef struct file_map {
    const unsigned char *bytes; /* NULL if n_bytes is 0 */
    size_t n_bytes;
    uint64_t device, inode; /* which file it is */
} file_map;

bool file_exists(const char *path);
bool file_is_folder(const char *path);
/* folder/name into the arena. */
mpk_status file_join(mpk_context *cx, arena *a, const char *folder, const char *name,
                     const char **path);
/* Map a regular file.  MPK_EIO with the system's reason. */
mpk_status file_map_open(mpk_context *cx, const char *path, file_map *out);
void file_map_close(file_map *m);
/* Give back the memory that holds what was read so far; the bytes stay valid and come from the file
 * again.  The same of n bytes of a mapping from `at` on, where they fill whole pages. */
void file_map_release(const file_map *m);
void file_map_release_part(const void *at, size_t n);
/* The whole file into the arena, NUL-terminated, at most limit bytes (MPK_ELIMIT).  path "-" is
 * standard input. */
mpk_status file_read(mpk_context *cx, arena *a, const char *path, size_t limit, str *out);
/* Write beside the target, sync, rename: the file is whole or untouched.  Devices and pipes are
 * written directly. */
mpk_status file_write(mpk_context *cx, const char *path, const void *bytes, size_t n);

/* The same piece by piece.  Invariant: until file_sink_commit succeeds, the target is as it was
 * before. */
typedef struct file_sink {
    const char *path; /* borrowed */
    char *name;       /* what is written: beside path, or path itself; NULL: closed */
    int fd;
    bool direct; /* a device or a pipe */
} file_sink;

/* n_bytes: how many will be written; a disk that has no room for them is told at once.  MPK_EIO
 * with the system's reason, MPK_ENOMEM.  On success the caller ends with file_sink_abandon,
 * whatever happens in between. */
mpk_status file_sink_open(mpk_context *cx, const char *path, uint64_t n_bytes, file_sink *out);
mpk_status file_sink_write(mpk_context *cx, file_sink *s, const void *bytes, size_t n);
/* Sync, and give the file its name. */
mpk_status file_sink_commit(mpk_context *cx, file_sink *s);
/* Close, and remove what was written unless it was committed. */
void file_sink_abandon(file_sink *s);

/* Do both paths name one regular file, by whatever names?  Links are followed. */
bool file_is_same(const char *path, const char *other);
/* Are these bytes mapped from the file that path names now? */
bool file_map_is(const file_map *m, const char *path);

#endif
