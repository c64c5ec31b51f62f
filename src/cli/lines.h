/* lines.h - lines of a file, a pipe or a terminal, by one who has other things to do while none
 * comes. */
#ifndef CLI_LINES_H
#define CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cli_lines {
    int fd;
    /* heap: what has been read; [taken, n) has not been asked for */
    char *at;
    size_t n, capacity, taken, seen; /* seen: no line ends before it */
    bool ended;
} cli_lines;

typedef enum cli_line {
    CLI_LINE,      /* a line; of the last one the end may be missing */
    CLI_LINE_NONE, /* no whole line has come yet */
    CLI_LINE_END,  /* of the file */
    /* errno says which; EFBIG: a line of more than 64 MiB; EINTR: a signal came while it waited */
    CLI_LINE_ERROR,
} cli_line;

/* The next line, without its end, valid until the next call.  wait: until there is one; else
 * CLI_LINE_NONE.  Reads from the descriptor itself, past stdio.  {.fd} is a beginning. */
cli_line cli_lines_next(cli_lines *lines, bool wait, const char **line, size_t *n_bytes);
void cli_lines_free(cli_lines *lines);

#endif
