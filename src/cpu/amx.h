/* amx.h - the tiles of AMX, as tile_kernels.h and int8_tiles.h name them.  Included between the
 * pragmas of isa_amx.c and isa_int8amx.c.
 */
#ifndef CPU_AMX_H
#define CPU_AMX_H

/* The empty statement makes the compiler end all stores first: intrinsics that load name less
 * memory than they read, or none. */
#define TILE_SHAPE(shapes)                               \
    do {                                                 \
        __asm__ volatile("" : : "r"(shapes) : "memory"); \
        _tile_loadconfig(shapes);                        \
    } while (0)
#define TILE_ZERO(i) _tile_zero(i)
#define TILE_LOAD(i, at, stride) _tile_loadd(i, at, stride)
#define TILE_STORE(i, at, stride) _tile_stored(i, at, stride)
#define TILE_END() _tile_release()

#endif
