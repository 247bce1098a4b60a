/* Sets of code points as sorted ranges, for the classes of regular expressions. Local. */
#ifndef IO_TOKEN_RANGES_H
#define IO_TOKEN_RANGES_H

#include "src/text/base/unicode.h"

#include <stdbool.h>
#include <stddef.h>

struct sh_ranges {
    struct sh_range *at; /* sorted and disjoint after sh_ranges_settle() */
    int n, room;
};

void sh_ranges_free(struct sh_ranges *r);
void sh_ranges_add(struct sh_ranges *r, uint32_t first, uint32_t last);
void sh_ranges_settle(struct sh_ranges *r);
void sh_ranges_invert(struct sh_ranges *r); /* also settles */

/* Add the code points of a name in \p{...}: a general category ("Lu", "L"), or a script that has a table here ("Han").
 * Returns false if the name is unknown. */
bool sh_ranges_add_property(struct sh_ranges *r, const char *name, size_t bytes);

/* Add the code points with the property White_Space, which is what \s means. */
void sh_ranges_add_space(struct sh_ranges *r);

bool sh_range_has(const struct sh_range *sorted, int n, uint32_t code);
bool sh_char_is_space(uint32_t code);
bool sh_char_is_stripped(uint32_t code); /* by Python's strip(): White_Space and four separators of ASCII */

#endif
