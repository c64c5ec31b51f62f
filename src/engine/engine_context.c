/* engine_context.c - contexts, error messages, and memory that the caller frees: the part of mpk.h
 * that needs no model.
 *
 * A context carries the message of the last failure (base/status.h) and a sink for log lines.  It
 * has no lock: a thread that calls mpk uses its own.  A program that embeds mpk through another
 * language may have another allocator, so what mpk gives away comes back through mpk_free.
 */
#include <stdlib.h>

#include "engine/engine.h"

const char *mpk_version(void)
{
    return MPK_VERSION; /* of the project, from CMakeLists.txt */
}

/* Zeros are a valid context: no failure yet, and no sink for log lines.  NULL if there is no
 * memory: there is no context yet to hold a message. */
mpk_context *mpk_context_create(void)
{
    return calloc(1, sizeof(mpk_context));
}

void mpk_context_free(mpk_context *cx)
{
    free(cx);
}

/* Borrowed from the context, and overwritten by the next failure. */
const char *mpk_error_message(const mpk_context *cx)
{
    return cx->text_bytes ? cx->text : "";
}

const char *mpk_status_sentence(mpk_status status)
{
    return status_sentence(status);
}

void mpk_free(void *p)
{
    free(p);
}
