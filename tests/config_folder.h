/* config_folder.h - a folder with one config.json, for tests of engines of made-up weights: the
 * group's set-up and tear-down.
 *
 * Also the context of the group, `cx`. */
#ifndef CONFIG_FOLDER_H
#define CONFIG_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "mpk/mpk.h"

static char folder[256];
static mpk_context *cx;

static inline void config_path(char *path, size_t n)
{
    snprintf(path, n, "%s/config.json", folder);
}

/* Make the folder, whose name begins with `name`, and the context.  0, or 1 for cmocka if that
 * fails. */
static inline int config_folder_make(const char *name, const char *config)
{
    char path[300];
    const char *place = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/%s.XXXXXX", place ? place : "/tmp", name);
    if (!mkdtemp(folder))
        return 1;
    config_path(path, sizeof path);
    FILE *f = fopen(path, "w");
    if (!f || fputs(config, f) == EOF || fclose(f) != 0)
        return 1;
    cx = mpk_context_create();
    return cx == NULL;
}

/* cmocka's tear-down of the group. */
static inline int config_folder_remove(void **state)
{
    (void)state;
    char path[300];
    config_path(path, sizeof path);
    unlink(path);
    mpk_context_free(cx);
    return rmdir(folder);
}

#endif
