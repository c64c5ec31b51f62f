/* status.h - the error state of a context and the four macros that fill it.
 *
 * A function that can fail takes the context first and returns mpk_status.  The place that finds
 * the fault says FAIL or CHECK; every caller says TRY; a caller that knows what the user was doing
 * says
 * NOTE before it returns.  The first message wins, notes are added below it:
 *
 *     weight model.norm.weight has shape [575], expected [576]
 *       while loading model.safetensors
 */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <stdarg.h>
#include <stddef.h>

#include "mpk/status.h"

enum { ERROR_TEXT_BYTES = 2048 };

/* One per thread of use: not thread-safe.  Only the status room writes the fields. */
typedef struct mpk_context {
    mpk_status status; /* of the last failure, MPK_OK if none */
    size_t text_bytes; /* used of text, the final NUL not counted */
    char text[ERROR_TEXT_BYTES];
    void (*log)(void *log_user, int level, const char *line); /* NULL: silent */
    void *log_user;
} mpk_context;

#define TRY(expression)                        \
    do {                                       \
        mpk_status try_status_ = (expression); \
        if (try_status_ != MPK_OK)             \
            return try_status_;                \
    } while (0)

/* FAIL(cx, MPK_EARG, "format", ...): set the message and return the status. */
#define FAIL(cx, code, ...) return status_fail((cx), (code), __VA_ARGS__)

/* CHECK(cx, condition, MPK_EARG, "format", ...): FAIL unless the condition holds. */
#define CHECK(cx, condition, code, ...)                    \
    do {                                                   \
        if (!(condition))                                  \
            return status_fail((cx), (code), __VA_ARGS__); \
    } while (0)

/* NOTE(cx, expression, "format", ...): TRY, adding a line "  while ..." to the message on
 * failure. */
#define NOTE(cx, expression, ...)                                \
    do {                                                         \
        mpk_status note_status_ = (expression);                  \
        if (note_status_ != MPK_OK)                              \
            return status_note((cx), note_status_, __VA_ARGS__); \
    } while (0)

#ifdef __GNUC__
#define BASE_PRINTF(at, first) __attribute__((format(printf, at, first)))
#else
#define BASE_PRINTF(at, first)
#endif

/* Replace the message of cx (NULL: only return) and return code. */
mpk_status status_fail(mpk_context *cx, mpk_status code, const char *format, ...) BASE_PRINTF(3, 4);
/* Add a line below the message of cx and return code unchanged. */
mpk_status status_note(mpk_context *cx, mpk_status code, const char *format, ...) BASE_PRINTF(3, 4);
/* Forget the last failure. */
void status_clear(mpk_context *cx);
/* The sentence of MPK_STATUS_MAP; never NULL. */
const char *status_sentence(mpk_status code);

enum { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
/* One line, no newline, to the sink of cx; nothing if it has none. */
void log_line(mpk_context *cx, int level, const char *format, ...) BASE_PRINTF(3, 4);

#endif
