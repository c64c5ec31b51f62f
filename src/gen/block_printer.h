/* block_printer.h - what the files that print block programs share: where printing is, and the
 * parts that print loads (block_print_loads.c) and products (block_print_products.c).  Called by
 * block_print.c. */
#ifndef GEN_BLOCK_PRINTER_H
#define GEN_BLOCK_PRINTER_H

#include "gen/body_print.h"
#include "super/super.h"

enum { BLOCK_STEP = 4 };

/* Where printing is: the program, the text, the depth of blocks. */
typedef struct block_printer {
    mpk_context *cx;
    const block_program *p;
    text *out;
    int indent;
    const block_step *ahead; /* the loop at hand, if its loads run ahead by iterations; else NULL */
    bool has_early;          /* it has early steps: iterations before 0 stand in front of it */
    bool grown;              /* the steps at hand stand after `grown` */
    bool ends_by_rows;
    block_end end; /* then */
    /* tensor cores, and no fragment is a factor: a loop's reads of shared memory are planned */
    bool plans_reads;
} block_printer;

#define LINE(w, ...)                                  \
    do {                                              \
        text_print((w)->out, "%*s", (w)->indent, ""); \
        text_print((w)->out, __VA_ARGS__);            \
    } while (0)

/* The axis' name is the stem of its variables. */
static inline const char *block_axis_of(const block_printer *w, int8_t axis)
{
    return w->p->axes[axis].name;
}

/* Loads of fragments are entries of a loop instead (is_of_entries of block_print.c). */
bool block_is_shared_load(const block_printer *w, const block_step *s);
/* In front of a loop: what the copies of its tiles have in common in all iterations. */
void block_print_found(const block_printer *w, const block_step *loop);
/* The loads from step i on that stand together, as one group; returns the last. */
uint32_t block_print_loads(block_printer *w, uint32_t i);
/* A product, whose sums are added to a fragment. */
void block_print_multiply(const block_printer *w, const block_step *s);

#endif
