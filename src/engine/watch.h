/* watch.h - are the tensors of another library as they were?  For the PyTorch backend
 * (python/mpk/statics.py), which calls it by ctypes before each launch: it holds hundreds of
 * tensors, and most of them never move.
 *
 * Not a public header: the records that it looks into are another library's.  The function is
 * exported all the same, as Python finds it by name; python/mpk/_library.py declares the struct
 * again.
 *
 * A tensor is known by two pointers: its item in a list of the caller's, and the object that the
 * library's functions take.  An object is a pointer to the library's record of the tensor, in which
 * at two offsets there may be pointers to more that its functions read.  These, and the bytes of
 * the record that are read, are prefetched: wrong offsets cost time only.
 */
#ifndef ENGINE_WATCH_H
#define ENGINE_WATCH_H

#include "mpk/graph.h"

/* item: item i of a list.  where: the address of an object's bytes; not 0: it has none.  version: a
 * number that grows when an object's bytes are changed in place. */
typedef void *mpk_item_of(void *list, ptrdiff_t i);
typedef int32_t mpk_address_of(const void *object, void **address);
typedef int64_t mpk_version_of(const void *object);

/* The tensors as they were; everything is the caller's. */
typedef struct mpk_watch {
    uint32_t n, n_counted;   /* versions are looked at for the first n_counted of them only */
    const ptrdiff_t *place;  /* [n] in the list */
    void *const *items;      /* [n] */
    void *const *records;    /* [n] what objects point to: &records[i] is object i */
    void *const *addresses;  /* [n] */
    const int64_t *versions; /* [n_counted] */
    mpk_item_of *item;
    mpk_address_of *where;
    mpk_version_of *version;
    /* bytes into the record, multiples of 8: of a pointer for `where`, for `version` */
    uint32_t follow[2];
    uint32_t read[4]; /* bytes into the record: one in each line of a cache that is read */
} mpk_watch;

/* The number of the first that is not as it was, or n: another item is at its place in the list, or
 * its object lies elsewhere or nowhere, or was changed.  The functions are called on the calling
 * thread and must return; those of an object only if its item is the same. */
MPK_API uint32_t mpk_first_other(const mpk_watch *w, void *list);

#endif
