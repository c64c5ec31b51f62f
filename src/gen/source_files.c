/* source_files.c - the files of device/ and src/rt in a CUDA source (see source_files.h and, of
 * gen_source_expand, source.h).
 *
 * Input: the table of texts that the build makes of these folders (cmake/texts.cmake).  A line that
 * includes a file of the table is replaced by that file, the first time; later ones vanish:
 *
 *   #include "tile/task.cuh"      ->  the text of task.cuh, in it those that it includes
 *   #include "tile/task.cuh"      ->  (nothing)
 *
 * Only lines that begin with #include " are looked at.  Called by source.c and kernel_code.c. */
#include "gen/source_files.h"

/* The table is short and asked only while a source is made, so it is searched from its
 * beginning. */
const gen_text *gen_files_find(str name)
{
    for (const gen_text *t = gen_text_table; t->name; t++)
        if (str_is(name, t->name))
            return t;
    return NULL;
}

/* The name in a line that begins with #include "; false: no such line.  *name points into it. */
static bool read_include(str line, str *name)
{
    static const char word[] = "#include \"";
    size_t n = sizeof word - 1;
    if (line.n <= n || memcmp(line.at, word, n) != 0)
        return false;
    const char *end = memchr(line.at + n, '"', line.n - n);
    *name = (str){line.at + n, end ? (size_t)(end - line.at) - n : 0};
    return end != NULL;
}

/* Add a file unless it is printed already, with others in the place of the lines that include them.
 * It counts as printed before its lines are read, so a file that includes itself ends there;
 * `depth` bounds the recursion all the same.  MPK_EVERIFY: a file includes one that the table has
 * not got. */
static mpk_status add_file(mpk_context *cx, arena *a, map *printed, text *out, str name,
                           uint32_t depth)
{
    const gen_text *file = gen_files_find(name);
    CHECK(cx, file && depth < 64, MPK_EVERIFY,
          "device source \"%.*s\" is not there, or includes itself", STR_ARG(name));
    if (map_get(printed, name, NULL))
        return MPK_OK;
    TRY(map_put(cx, a, printed, str_from(file->name), 1));
    const char *at = file->text, *end = file->text + file->n;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        str line = {at, newline ? (size_t)(newline - at) : (size_t)(end - at)}, included;
        if (read_include(line, &included))
            TRY(add_file(cx, a, printed, out, included, depth + 1));
        else
            text_print(out, "%.*s\n", STR_ARG(line));
        at += line.n + 1;
    }
    return MPK_OK;
}

mpk_status gen_files_add(mpk_context *cx, arena *a, map *printed, text *out, str name)
{
    return add_file(cx, a, printed, out, name, 0);
}

/* Move a text that was made with this status into the arena, where it ends with a NUL; `from` is
 * freed in any case. */
mpk_status gen_files_finish(mpk_context *cx, arena *a, mpk_status status, text *from, str *out)
{
    out->at = status == MPK_OK ? text_copy(from, a) : NULL;
    out->n = from->n;
    text_free(from);
    if (status == MPK_OK)
        CHECK(cx, out->at, MPK_ENOMEM, "out of memory for the CUDA source");
    return status;
}

/* A text by itself, as the loader's: nothing has been printed before. */
mpk_status gen_source_expand(mpk_context *cx, arena *a, const char *name, str *out)
{
    map printed = {0};
    text made = {0};
    const mpk_status status = gen_files_add(cx, a, &printed, &made, str_from(name));
    return gen_files_finish(cx, a, status, &made, out);
}
