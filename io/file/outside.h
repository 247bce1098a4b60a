/* What other programs leave on disks and a user may name where Sherd reads models or checkpoints: recognised by the
 * names of files, or the first bytes of one, and refused with the commands that bring it in. Pickles are never read: they
 * are code. Local. */
#ifndef IO_FILE_OUTSIDE_H
#define IO_FILE_OUTSIDE_H

#include "src/base/err.h"

/* For a folder whose weights can be read: SH_E_DATA if it also has states of an optimizer in files that are not read
 * here, with the cure. */
sh_rc sh_outside_states(const char *path);

/* For a path that cannot be used: SH_E_DATA if it is known what it is, with the cure; SH_OK if not, and then the caller
 * says what is missing. */
sh_rc sh_outside_refuse(const char *path);

#endif
