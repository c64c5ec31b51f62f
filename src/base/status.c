/* status.c - keep the first message and the notes added on the way up; pass log lines on. */
#include "base/status.h"

#include <stdio.h>
#include <string.h>

static const char note_lead[] = "\n  while ";

/* Append to the message as far as there is room: a message is cut, never lost. */
static void append(mpk_context *cx, const char *format, va_list args)
{
    size_t room = ERROR_TEXT_BYTES - cx->text_bytes;
    int n = vsnprintf(cx->text + cx->text_bytes, room, format, args);
    size_t written = n > 0 ? (size_t)n : 0;
    size_t end = cx->text_bytes + (written < room ? written : room - 1);
    for (; cx->text_bytes < end; cx->text_bytes++) {
        /* names out of files must not break the line or steer a terminal; a whole message may be
         * quoted with its notes
         */
        char *c = &cx->text[cx->text_bytes];
        if ((unsigned char)*c < ' ' && strncmp(c, note_lead, sizeof note_lead - 1) != 0)
            *c = '?';
    }
}

/* The first message: it replaces what an earlier failure left.  cx may be NULL where no caller
 * wants the words. */
mpk_status status_fail(mpk_context *cx, mpk_status code, const char *format, ...)
{
    if (!cx)
        return code;
    va_list args;
    cx->status = code;
    cx->text_bytes = 0;
    va_start(args, format);
    append(cx, format, args);
    va_end(args);
    return code;
}

/* Notes stand below the message, one a line, the innermost first: what was being done when it
 * failed. */
mpk_status status_note(mpk_context *cx, mpk_status code, const char *format, ...)
{
    if (!cx)
        return code;
    va_list args;
    for (size_t i = 0; note_lead[i] && cx->text_bytes + 1 < ERROR_TEXT_BYTES; i++)
        cx->text[cx->text_bytes++] = note_lead[i];
    cx->text[cx->text_bytes] = 0;
    va_start(args, format);
    append(cx, format, args);
    va_end(args);
    return code;
}

void status_clear(mpk_context *cx)
{
    cx->status = MPK_OK;
    cx->text_bytes = 0;
    cx->text[0] = 0;
}

/* No default case, so that the compiler names a status without a sentence. */
const char *status_sentence(mpk_status code)
{
    switch (code) {
#define CASE(name, sentence) \
    case MPK_##name:         \
        return sentence;
        MPK_STATUS_MAP(CASE)
#undef CASE
    }
    return "unknown status";
}

void log_line(mpk_context *cx, int level, const char *format, ...)
{
    if (!cx || !cx->log)
        return;
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    cx->log(cx->log_user, level, line);
}
