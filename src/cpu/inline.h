/* inline.h - V_INLINE, the mark of every function of vectors and kernels (vec_*.h, *_kernels.h,
 * int8_*.h).  Included by the headers that define vectors.
 *
 * A kernel is one function for a dtype and a shape: all that it calls is inlined into it, so that
 * dtypes are constants and vectors stay in registers.  A sanitizer checks each access of each
 * copy: the 450 KB of code of isa_int8avx2.c become 5.7 MB, which take the compiler two minutes.
 * Builds with sanitizers (MPK_SANITIZED) therefore have one function each, whose dtype is an
 * argument: the same lines are checked, and the tests take the same time.
 */
#ifndef CPU_INLINE_H
#define CPU_INLINE_H

#ifdef MPK_SANITIZED
#define V_INLINE static inline
#else
#define V_INLINE static inline __attribute__((always_inline))
#endif

#endif
