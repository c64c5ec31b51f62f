/* engine_context.c - contexts, and memory that the caller frees. */
#include <stdlib.h>

#include "engine/engine.h"

const char *mpk_version(void)
{
    return MPK_VERSION; /* of the project, from CMakeLists.txt */
}

mpk_context *mpk_context_create(void)
{
    return calloc(1, sizeof(mpk_context));
}

void mpk_context_free(mpk_context *cx)
{
    free(cx);
}

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
