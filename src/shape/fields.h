/* fields.h - how a list of fields becomes a struct.
 *
 * What host and device must agree on about a body stands in one header of this room, which gcc,
 * clang and NVRTC all read: a list of the fields of its shape, the layout of its scratch, its
 * limits.  Device code gets the struct from the list; so does the host, which prints the values of
 * an instance from the same list (gen/body_print.c).  So neither a field nor its place is written
 * twice.  The room sees nothing, not even libc.
 *
 * Every field has four bytes, so a struct has no padding, and its size fixes all offsets: each
 * header asserts it.
 */
#ifndef SHAPE_FIELDS_H
#define SHAPE_FIELDS_H

#define FIELD_INT(name) int name;
#define FIELD_UNSIGNED(name) unsigned name;
#define FIELD_FLOAT(name) float name;
#define FIELD_INTS(name, n) int name[n];

/* A declaration that does not compile unless the condition holds: C and C++ spell static_assert
 * differently. */
#define SHAPE_ASSERT(name, condition) typedef char name[(condition) ? 1 : -1]

#endif
