/* Linked into sherd_rows, which is `sherd` with a model whose activations make round trips between ranks
 * (tests/unit/exchange.h). From the environment: ROWS=MASK,RANKS is the group, a bit for each axis of src/mesh/shape.h,
 * and its number of ranks. */
#include "tests/unit/exchange.h"

#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void read_group(void)
{
    const char *text = getenv("ROWS");

    if (text && sscanf(text, "%u,%d", &exchanged.group, &exchanged.ranks) != 2)
        abort();
}
