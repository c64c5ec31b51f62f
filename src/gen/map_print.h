/* map_print.h - expressions of the operator map as C: for instances of map, and for what follows a
 * product. */
#ifndef GEN_MAP_PRINT_H
#define GEN_MAP_PRINT_H

#include "base/str.h"
#include "gen/device_body.h"
#include "op/map_program.h"

/* What becomes of a program's result.  Of one that is rounded to 16 bits, and of steps before a
 * rounding to them, the hardware's exponential and reciprocal are near enough. */
typedef enum gen_map_result {
    GEN_MAP_EXACT,
    /* exponentials are of distances to a largest score, and their values weights that are rounded
     * to 16 bits */
    GEN_MAP_WEIGHTS,
    GEN_MAP_SHORT, /* it is rounded to 16 bits */
} gen_map_result;

/* A program and how its steps are written: step i is a constant PREFIXi, and print_input writes the
 * value of an input, a step of kind MAP_INPUT, of whatever `of` is. */
typedef struct gen_map {
    const map_program *program;
    const char *prefix;
    int indent; /* columns */
    const void *of;
    void (*print_input)(const void *of, const map_step *s, text *out);
    gen_map_result result;
} gen_map;

/* A line for each step; the program's result is PREFIXresult.  The text needs task/map.cuh. */
void gen_print_map(const gen_map *m, text *out);
/* How the names of mpk_get* and mpk_put* end for a value of this type. */
const char *gen_access_suffix(map_type type);

/* ---- by eights (device/task/eights.cuh) ---- */

/* EIGHT of the device; steps that a loop by eights may have eight times. */
enum { GEN_EIGHT = 8, GEN_STEPS_OF_EIGHT = 24 };

/* Operands that are read by eights along an axis of `last` entries, the last of `rank`: the first
 * n_inputs of a call, in_x0 and up. */
typedef struct gen_eights {
    const gen_call *c;
    int64_t last;
    uint32_t n_inputs, rank;
    bool in_slots; /* eight_each: loads go to slot0[r] ..., of place.at; else to of0 ..., of at */
} gen_eights;

/* Do the rows of t consist of eights along an axis of `last` entries? */
bool gen_is_whole_of_eights(const ir_tensor *t, int64_t last);
/* The same, or is t broadcast along it?  Along other axes it may be, too. */
bool gen_has_eights(const ir_tensor *t, int64_t last);
/* The steps that a loop by eights has eight times: those of broadcast operands alone are computed
 * once for all eight. */
uint32_t gen_steps_of_eight(const gen_eights *e, const map_program *p);
/* "const eight of0 = ...;" or "slot0[r] = ...;" of each operand; a float of one that is
 * broadcast. */
void gen_print_eights(const gen_eights *e, int indent, text *out);
/* Operand i as floats, x0 ...: `value` is an eight (whole), or a float that is broadcast. */
void gen_print_floats_of_eight(uint32_t i, bool whole, int indent, const char *value, text *out);
/* What comes before the steps of an entry: "float x0[EIGHT]; ..." of each operand as floats. */
void gen_print_floats_of_eights(const gen_eights *e, int indent, text *out);
/* print_input of a map whose operands these are (`of`: gen_eights), at entry k. */
void gen_print_entry_of_eight(const void *of, const map_step *s, text *out);

#endif
