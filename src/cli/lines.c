/* lines.c - lines of a descriptor, without waiting where that is not wanted (lines.h).
 *
 * The buffer, of which `taken` and `seen` move to the right as lines are given out and looked
 * through:
 *
 *   at          taken            seen        n              capacity
 *   | given out |  no line end here |  unseen  |   room       |
 *
 * make_room moves what is left to the beginning, so a line may lie anywhere but is never cut.
 * Called by mpk batch and mpk chat, for which stdio will not do: it waits for a full buffer. */
#include "cli/lines.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 64 << 10, MAX_LINE_BYTES = 64 << 20 };

/* The next complete line, or at the end of the file what is left. */
static bool take_line(cli_lines *l, const char **line, size_t *n_bytes)
{
    const char *end = l->seen < l->n ? memchr(l->at + l->seen, '\n', l->n - l->seen) : NULL;
    l->seen = l->n;
    if (!end && !(l->ended && l->taken < l->n))
        return false;
    size_t stop = end ? (size_t)(end - l->at) : l->n;
    *line = l->at + l->taken;
    *n_bytes = stop - l->taken;
    l->taken = l->seen = end ? stop + 1 : stop;
    return true;
}

/* Make room for another read after the buffered bytes; bytes given out earlier are dropped. errno
 * says what failed: EFBIG, a line of more than MAX_LINE_BYTES. */
static bool make_room(cli_lines *l)
{
    if (l->taken) {
        memmove(l->at, l->at + l->taken, l->n - l->taken);
        l->n -= l->taken;
        l->seen -= l->taken;
        l->taken = 0;
    }
    if (l->n >= MAX_LINE_BYTES) {
        errno = EFBIG;
        return false;
    }
    if (l->capacity - l->n >= PIECE_BYTES)
        return true;
    size_t capacity = 2 * l->capacity + PIECE_BYTES;
    char *at = realloc(l->at, capacity);
    if (!at)
        return false;
    l->at = at;
    l->capacity = capacity;
    return true;
}

/* *line points into the buffer and is valid until the next call. wait false: CLI_LINE_NONE if no
 * whole line is there yet. A last line without a newline counts. */
cli_line cli_lines_next(cli_lines *l, bool wait, const char **line, size_t *n_bytes)
{
    while (!take_line(l, line, n_bytes)) {
        if (l->ended)
            return CLI_LINE_END;
        struct pollfd ready = {.fd = l->fd, .events = POLLIN};
        int found = poll(&ready, 1, wait ? -1 : 0);
        if (found == 0)
            return CLI_LINE_NONE;
        if (found < 0 || !make_room(l))
            return CLI_LINE_ERROR;
        ssize_t got = read(l->fd, l->at + l->n, l->capacity - l->n);
        if (got < 0)
            return CLI_LINE_ERROR;
        l->n += (size_t)got;
        l->ended = got == 0;
    }
    return CLI_LINE;
}

void cli_lines_free(cli_lines *l)
{
    free(l->at);
    *l = (cli_lines){.fd = l->fd};
}
