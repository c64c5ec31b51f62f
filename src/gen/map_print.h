/* map_print.h - expressions of the operator map as C: for instances of map, and for what follows a
 * product. */
#ifndef GEN_MAP_PRINT_H
#define GEN_MAP_PRINT_H

#include "base/str.h"
#include "op/map_program.h"

/* A program and how its steps are written: step i is a constant PREFIXi, and print_input writes the
 * value of an input, a step of kind MAP_INPUT, of whatever `of` is. */
typedef struct gen_map {
    const map_program *program;
    const char *prefix;
    int indent; /* columns */
    const void *of;
    void (*print_input)(const void *of, const map_step *s, text *out);
    /* exponentials are of distances to a largest score, and their values weights that are rounded
     * to 16 bits: the one instruction for them is near enough */
    bool are_weights;
} gen_map;

/* A line for each step; the program's result is PREFIXresult.  The text needs task/map.cuh. */
void gen_print_map(const gen_map *m, text *out);
/* "block_power...(...)", where step `distance` is what an exponential is taken of: the power of 2
 * that this is.  The steps are printed. */
void gen_print_power(const gen_map *m, uint32_t distance, text *out);

#endif
