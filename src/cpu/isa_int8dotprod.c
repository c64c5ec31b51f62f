/* isa_int8dotprod.c - products with 8-bit activations, compiled for arm64: NEON with dot
 * products of bytes.  CMakeLists.txt sets the compiler's options for this file. */
#include <string.h>

#include "cpu/int8_fast.h"
#include "cpu/vec_neon.h"

#define INT8_SIGNED
#define INT8_DOT(sum, w, x) neon_dot(sum, w, x)
/* tokens that are multiplied together, so that all sums stay in registers */
enum { INT8_TILE = 4 };
#include "cpu/int8_kernels.h"

const int8_kernels int8_dotprod = INT8_SET(INT8_PANEL_BYTES);
