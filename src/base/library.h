/* Libraries that are loaded while the program runs, so that it starts on hosts that lack them. Local.
 *
 * A user of one keeps the addresses of its functions in a struct and lists them:
 *   static const struct sh_library_symbol symbols[] = {{"ncclSend", &nccl.send}, ..., {NULL, NULL}};
 *   SH_TRY(sh_library_load((const char *const[]){"libnccl.so.2", NULL}, symbols)); */
#ifndef SH_BASE_LIBRARY_H
#define SH_BASE_LIBRARY_H

#include "src/base/err.h"

struct sh_library_symbol {
    const char *name;
    void *address; /* of the pointer to the function, which is set */
};

/* Load the first of `files` that is found, by the loader (LD_LIBRARY_PATH counts) or in the folders that configure
 * found CUDA's libraries in, and set all of `symbols` (ends with a NULL name). It stays loaded. Errors: SH_E_USAGE with
 * the loader's words when there is none, or it lacks a function; nothing is set then. */
sh_rc sh_library_load(const char *const *files, const struct sh_library_symbol *symbols);

/* From here on a C++ exception that nobody catches, as oneDNN's when memory is out, ends the job with one line, by
 * sh_stop(): class SH_E_MEMORY for std::bad_alloc, else SH_E_BUG. Without effect where no C++ library is loaded. */
void sh_library_catch_exceptions(void);

#endif
