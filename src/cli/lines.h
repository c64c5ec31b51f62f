/* lines.h - lines of a file, a pipe or a terminal, for a caller that has other work while no
 * line arrives. */
#ifndef CLI_LINES_H
#define CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cli_lines {
    int fd;
    /* Heap: the bytes read so far; [taken, n) has not been given out. */
    char *at;
    size_t n, capacity, taken, seen; /* seen: no line ends before it */
    bool ended;
} cli_lines;

typedef enum cli_line {
    CLI_LINE,      /* A line; the last one of a file may lack its line end. */
    CLI_LINE_NONE, /* no whole line has come yet */
    CLI_LINE_END,  /* of the file */
    /* errno says which; EFBIG: a line of more than 64 MiB; EINTR: a signal came while it waited */
    CLI_LINE_ERROR,
} cli_line;

/* The next line without its line end, valid until the next call.  wait: block until there is
 * one; otherwise return CLI_LINE_NONE if none is complete.  Reads the descriptor directly, not
 * through stdio.  {.fd = fd} initialises the reader. */
cli_line cli_lines_next(cli_lines *lines, bool wait, const char **line, size_t *n_bytes);
void cli_lines_free(cli_lines *lines);

#endif
