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
} file_map;

bool file_exists(const char *path);
bool file_is_folder(const char *path);
/* folder/name into the arena. */
mpk_status file_join(mpk_context *cx, arena *a, const char *folder, const char *name, const char **path);
/* Map a regular file.  MPK_EIO with the system's reason. */
mpk_status file_map_open(mpk_context *cx, const char *path, file_map *out);
void file_map_close(file_map *m);
/* Give back the memory that holds what was read so far; the bytes stay valid and come from the file again.  The same of
 * n bytes of a mapping from `at` on, where they fill whole pages. */
void file_map_release(const file_map *m);
void file_map_release_part(const void *at, size_t n);
/* The whole file into the arena, NUL-terminated, at most limit bytes (MPK_ELIMIT).  path "-" is standard input. */
mpk_status file_read(mpk_context *cx, arena *a, const char *path, size_t limit, str *out);
/* Write beside the target, sync, rename: the file is whole or untouched.  Devices and pipes are written directly. */
mpk_status file_write(mpk_context *cx, const char *path, const void *bytes, size_t n);

#endif
