/* image.h - a program as one relocatable block of the runtime's structs (rt.h), and the tensor
 * programs beside it.
 *
 * The block holds no address: the same bytes are what `mpk compile` writes to a file and what a
 * target runs.  Of the compiler nothing else is needed: the tensor programs travel in it as text.
 */
#ifndef IMAGE_IMAGE_H
#define IMAGE_IMAGE_H

#include "rt/rt.h"
#include "tgraph/program.h"

typedef struct program_image {
    const rt_header *block; /* block->n_bytes bytes, 64-byte aligned */
    uint32_t n_graphs;
    const ir_graph **ir;     /* [n_graphs] */
    const tg_place **places; /* [n_graphs][ir->tensors.n] */
    uint32_t n_weights;
    const tg_weight *weights;
} program_image;

/* A token's context that lies in the step itself is read anew for each token by attention_split,
 * which shares out cached contexts alone: so steps with more tokens without a row than this, pieces
 * of prompts, go to a graph without it (rt_graph.most_fresh). */
enum { IMAGE_MOST_FRESH = 48 };

/* Lay out a compiled program.  The block is allocated from a; tensor programs and weights are
 * borrowed from p.  MPK_ELIMIT: more tasks, events or elements along an axis than the descriptors
 * can number. */
mpk_status image_make(mpk_context *cx, arena *a, const tg_program *p, program_image *out);

/* Take the bytes of an image from a file.  Nothing in them is believed: sizes, ranges and the
 * checksum are checked, the tensor programs are parsed and verified, and the task graphs are proved
 * as after compilation, so that whatever passes runs without touching memory that is not its own,
 * without a race and without a deadlock.  The bytes are copied.  MPK_EFORMAT, MPK_EVERIFY, with
 * what is wrong. */
mpk_status image_open(mpk_context *cx, arena *a, const void *bytes, size_t n, program_image *out);
/* The same of bytes that image_open has taken before and that have not changed since: the tables of
 * tasks and events are not looked at again, and nothing is proved. */
mpk_status image_open_proved(mpk_context *cx, arena *a, const void *bytes, size_t n,
                             program_image *out);

/* The first entry of a section, and how many it has. */
static inline const void *image_table(const rt_header *h, unsigned section)
{
    return (const char *)h + h->sections[section].offset;
}
static inline uint64_t image_count(const rt_header *h, unsigned section)
{
    return h->sections[section].count;
}

#endif
