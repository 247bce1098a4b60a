/* Last words about kernels that do not return: signals and a limit of processor time end the process, which then says what
 * was being tried. Not thread-safe; local. */
#ifndef SH_PLUGIN_TRYING_H
#define SH_PLUGIN_TRYING_H

#include <stdbool.h>

void sh_trying_watched(bool begin); /* signals and time, from here on, or no longer */
void sh_trying_row(const char *name);
void sh_trying_found(const char *line); /* that is wrong; it is said, too */
void sh_trying_check(const char *name); /* a text that stays; the time begins anew */
void sh_trying_call(const char *where);
void sh_trying_end(const char *why); /* ends the process, too */

#endif
