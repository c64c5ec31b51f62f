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
    bool has_late;           /* it has late steps: iterations before 0 stand in front of it */
    bool counts_copies;      /* it counts the copies of its tiles: turn_N, the iteration modulo N */
    bool grown;              /* the steps at hand stand after `grown` */
    bool told_growth;        /* the constant `grown` tells whether these ran in this iteration */
    bool ends_by_rows;
    block_end end; /* then */
    /* tensor cores, and no fragment is a factor: a loop's reads of shared memory are planned */
    bool plans_reads;
    /* warpgroups: sums whose products are in flight, in the order in which these were issued */
    int8_t flying[BLOCK_MOST_TILES];
    uint32_t n_flying;
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

/* In front of a loop: what the copies of its tiles have in common in all iterations. */
void block_print_found(const block_printer *w, const block_step *loop);
/* "const rt_i64 k_next = ...": where the tiles begin that are loaded in this iteration. */
void block_print_next(const block_printer *w, const block_step *loop);
/* The loads from step i on that stand together, as one group; returns the last. */
uint32_t block_print_loads(block_printer *w, uint32_t i);
/* A product, whose sums are added to a fragment. */
void block_print_multiply(block_printer *w, const block_step *s);
/* Waits for products of warpgroups whose sums step i, or what follows it if it is `grown`, reads or
 * writes: all warps of a warpgroup wait, so none may do it in a branch of its own. */
void block_print_arrivals(block_printer *w, uint32_t i);
/* The same for all products that are in flight. */
void block_print_all_arrivals(block_printer *w);
/* In front of a loop, at the end of its iterations, after it: what its late products keep of an
 * iteration for the next; the products of the last iteration. */
void block_print_kept(const block_printer *w, const block_step *loop);
/* The number of the copy of a tile that is used `after` iterations from this one, in a loop that
 * loads ahead. */
void block_print_copy_of(const block_printer *w, const block_tile *t, uint32_t after);
void block_print_keep(const block_printer *w, const block_step *loop);
void block_print_last(block_printer *w, const block_step *loop);

#endif
