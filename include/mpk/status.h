/* status.h - what every fallible call of mpk returns.
 *
 * A call returns MPK_OK or the reason why it did nothing.  The words for people (what, where, while
 * doing what) are kept by the context; see mpk_error_message() in mpk.h.
 */
#ifndef MPK_STATUS_H
#define MPK_STATUS_H

#define MPK_STATUS_MAP(X)                                \
    X(OK, "no error")                                    \
    X(EARG, "an argument is wrong")                      \
    X(ENOMEM, "out of memory")                           \
    X(EIO, "a file could not be read or written")        \
    X(EFORMAT, "a file is damaged or not of its format") \
    X(EUNSUPPORTED, "valid, but not supported")          \
    X(ESHAPE, "shapes or dtypes do not fit together")    \
    X(ELIMIT, "a limit is exceeded")                     \
    X(EVERIFY, "a compiler invariant does not hold")     \
    X(EDEVICE, "the device failed")                      \
    X(ESTALLED, "the runtime made no progress")          \
    X(ECANCELLED, "cancelled")

typedef enum mpk_status {
#define MPK_STATUS_ENUM(name, sentence) MPK_##name,
    MPK_STATUS_MAP(MPK_STATUS_ENUM)
#undef MPK_STATUS_ENUM
} mpk_status;

#endif
