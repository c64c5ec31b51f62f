/* source_files.h - the files of device/ and src/rt, which travel in the library (gen_text_table),
 * as they stand in a CUDA source: each once, in place of the #include that names it first.
 *
 * Called by source.c.  Cost: one pass over each file. */
#ifndef GEN_SOURCE_FILES_H
#define GEN_SOURCE_FILES_H

#include "gen/source.h"

/* NULL: the library carries no such file. */
const gen_text *gen_files_find(str name);

/* Print a file and, in place of its #includes, the files that it names, unless they are in
 * `printed`, where it notes them; the notes lie in the arena.  MPK_EVERIFY: there is no such
 * file. */
mpk_status gen_files_add(mpk_context *cx, arena *a, map *printed, text *out, str name);

/* What was printed, in the arena; `from` itself is freed in any case.  Returns `status`, or what
 * went wrong here. */
mpk_status gen_files_finish(mpk_context *cx, arena *a, mpk_status status, text *from, str *out);

#endif
