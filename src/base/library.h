/* Libraries that are loaded at run time, so that the program starts on hosts that lack them. Local.
 *
 * A user of a library keeps the addresses of its functions in a struct and lists them:
 *   static const struct sh_library_symbol symbols[] = {{"ncclSend", &nccl.send}, ..., {NULL, NULL}};
 *   SH_TRY(sh_library_load((const char *const[]){"libnccl.so.2", NULL}, symbols)); */
#ifndef SH_BASE_LIBRARY_H
#define SH_BASE_LIBRARY_H

#include "src/base/err.h"

struct sh_library_symbol {
    const char *name;
    void *address; /* address of the function pointer to set */
};

/* Load the first of `files` that is found, by the loader (which uses LD_LIBRARY_PATH) or in the folders in which
 * configure found CUDA's libraries, and set all of `symbols` (ends with a NULL name). The library stays loaded. Errors:
 * SH_E_USAGE with the loader's message if none is found or a function is missing; nothing is set then. */
sh_rc sh_library_load(const char *const *files, const struct sh_library_symbol *symbols);

/* From this call on, an uncaught C++ exception, such as oneDNN's when memory runs out, ends the job with one line, by
 * sh_stop(): class SH_E_MEMORY for std::bad_alloc, else SH_E_BUG. No effect if no C++ library is loaded. */
void sh_library_catch_exceptions(void);

#endif
