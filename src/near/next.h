/* The watch to which a keeper is to turn, from the thread that is told of it to the one that beats. Local, any thread. */
#ifndef SH_NEAR_NEXT_H
#define SH_NEAR_NEXT_H

#include "src/base/err.h"

enum { SH_NEXT_TEXT = 256 };

/* Somebody takes addresses from here on. */
void sh_next_begin(void);

/* Errors: SH_E_COMM: nobody takes it. */
sh_rc sh_next_tell(const char *address);

/* Whether there is one that nobody has taken. */
bool sh_next_take(char address[SH_NEXT_TEXT]);

#endif
