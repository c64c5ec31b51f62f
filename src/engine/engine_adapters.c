/* engine_adapters.c - the adapters of an engine: options, and what an image holds of them.
 *
 * Merging is done where the model's files are read (load/adapter.h).  An image holds no weights, so
 * it names its adapters as it names its model, and they are merged again when it is opened:
 *
 *   for each adapter: its scale, f32, then its path and a NUL
 *
 * Called by engine_options.c, engine_compile.c, engine_image.c and engine_quantize.c.
 */
#include <math.h>
#include <stdlib.h>

#include "engine/engine.h"

mpk_status engine_read_adapters(mpk_context *cx, arena *a, const mpk_adapter **adapters, uint32_t n)
{
    const mpk_adapter *from = *adapters;
    mpk_adapter *to;
    CHECK(cx, n <= ENGINE_MAX_ADAPTERS, MPK_EARG, "n_adapters is %u, expected up to %d", n,
          ENGINE_MAX_ADAPTERS);
    CHECK(cx, from || !n, MPK_EARG, "adapters should have %u items, but is NULL", n);
    NEW(cx, a, to, n);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(cx, from[i].path && *from[i].path, MPK_EARG, "adapter %u has no path", i + 1);
        CHECK(cx, isfinite(from[i].scale), MPK_EARG, "the scale of the adapter %s is %g",
              from[i].path, from[i].scale);
        to[i] = (mpk_adapter){arena_copy(a, from[i].path, strlen(from[i].path)), from[i].scale};
        CHECK(cx, to[i].path, MPK_ENOMEM, "out of memory for the options");
    }
    *adapters = to;
    return MPK_OK;
}

mpk_status engine_load_model(mpk_context *cx, const char *path, const mpk_adapter *adapters,
                             uint32_t n, load_model *out)
{
    load_adapter wanted[ENGINE_MAX_ADAPTERS];
    for (uint32_t i = 0; i < n; i++)
        wanted[i] = (load_adapter){adapters[i].path, adapters[i].scale};
    return load_open_adapted(cx, path, wanted, n, out);
}

mpk_status engine_print_adapters(mpk_context *cx, const mpk_adapter *adapters, uint32_t n, text *t)
{
    for (uint32_t i = 0; i < n; i++) {
        char *path = realpath(adapters[i].path, NULL);
        CHECK(cx, path, MPK_EIO, "cannot find the full path of %s", adapters[i].path);
        text_add(t, (const char *)&adapters[i].scale, sizeof adapters[i].scale);
        text_add(t, path, strlen(path) + 1);
        free(path);
    }
    CHECK(cx, !t->failed, MPK_ENOMEM, "out of memory for the paths of adapters");
    return MPK_OK;
}

mpk_status engine_parse_adapters(mpk_context *cx, arena *a, str bytes, const mpk_adapter **out,
                                 uint32_t *n)
{
    mpk_adapter *list;
    uint32_t found = 0;
    NEW(cx, a, list, ENGINE_MAX_ADAPTERS);
    for (size_t at = 0; at < bytes.n; found++) {
        const size_t path = at + sizeof list->scale;
        const char *end = path < bytes.n ? memchr(bytes.at + path, 0, bytes.n - path) : NULL;
        CHECK(cx, end && found < ENGINE_MAX_ADAPTERS, MPK_EFORMAT,
              "the image's list of adapters is damaged: compile the model again");
        memcpy(&list[found].scale, bytes.at + at, sizeof list->scale);
        list[found].path = arena_copy(a, bytes.at + path, (size_t)(end - bytes.at) - path);
        CHECK(cx, list[found].path, MPK_ENOMEM, "out of memory for the path of an adapter");
        at = (size_t)(end - bytes.at) + 1;
    }
    *out = list;
    *n = found;
    return MPK_OK;
}
