/* net_tagged.h - calls of tools whose arguments stand in tags of their own, as Qwen3-Coder and
 * Seed-OSS write them:
 *
 *   <function=add>
 *   <parameter=a>
 *   1
 *   </parameter>
 *   </function>
 *
 * A value is the text between the tags, without the line breaks beside them: a string as it
 * stands, anything else as JSON.  Which of the two, the tool's schema says.
 */
#ifndef NET_TAGGED_H
#define NET_TAGGED_H

#include "base/json.h"

/* Is the text, apart from white space, the beginning of such a call? */
bool net_tagged_begins(str block);

/* Take one call from *block.  *name is a slice of it; the arguments are added to *arguments as a
 * JSON object.  tools: the request's, for the types of arguments.  *found false: there is no
 * further call.  Values are parsed in the arena.  MPK_ENOMEM. */
mpk_status net_tagged_read(mpk_context *cx, arena *a, const json_value *tools, str *block,
                           str *name, text *arguments, bool *found);

/* Does the schema of the parameters say no more than which there are, and what each of them may
 * be, of no more than a form can hold?  NULL: it says nothing. */
bool net_tagged_can_hold(const json_value *parameters);
/* The format of a structural tag for all arguments of a call, from such a schema.  lines: a value
 * stands on lines of its own.  What is longer than a form may be ends somewhere after that. */
void net_tagged_write(const json_value *parameters, bool lines, text *to);

#endif
