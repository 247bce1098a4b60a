#include "src/base/library.h"

#include "sherd_config.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Search the folders that configure found: CUDA's libraries are often outside the loader's path. The caller owns the
 * handle. */
static void *open_in_folders(const char *file)
{
    char *folders = sh_strdup(SHERD_CUDA_LIBDIRS), *rest = folders, *folder;
    void *library = NULL;

    while (!library && (folder = strsep(&rest, ":")) != NULL) {
        char *path = sh_strfmt("%s/%s", folder, file);

        if (folder[0])
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        free(path);
    }
    free(folders);
    return library;
}

/* Open the first name that loads, newest version first; `why` keeps the loader's last message. */
static void *open_first(const char *const *files, char why[256])
{
    void *library = NULL;

    for (int i = 0; !library && files[i]; i++) {
        library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
        if (!library)
            snprintf(why, 256, "%s", dlerror());
        if (!library)
            library = open_in_folders(files[i]);
    }
    return library;
}

/* All symbols are looked up before the first is stored, so a failure leaves the caller's pointers unchanged. Once the
 * symbols are stored, the library is never unloaded: its threads and handlers may still run. */
sh_rc sh_library_load(const char *const *files, const struct sh_library_symbol *symbols)
{
    char why[256] = "";
    void *library = open_first(files, why);

    if (!library)
        return sh_fail(SH_E_USAGE, "cannot load %s; is LD_LIBRARY_PATH set (module load)?", why);
    for (int i = 0; symbols[i].name; i++)
        if (!dlsym(library, symbols[i].name)) {
            dlclose(library);
            return sh_fail(SH_E_USAGE, "%s lacks %s; a newer version is needed", files[0], symbols[i].name);
        }
    for (int i = 0; symbols[i].name; i++) {
        void *function = dlsym(library, symbols[i].name);

        memcpy(symbols[i].address, &function, sizeof function); /* ISO C has no cast from data to function */
    }
    return SH_OK;
}

/* These belong to libstdc++; a C program has no header for them. */
static void *(*exception_type)(void);
static const void *bad_alloc;

/* Without this handler, a C++ exception thrown through C would end in abort() and a core file, and peers would wait. */
static _Noreturn void uncaught(void)
{
    if (exception_type && bad_alloc && exception_type() == bad_alloc)
        sh_stop(sh_fail(SH_E_MEMORY, "out of memory: no room for the needs of a C++ library"));
    sh_stop(sh_fail(SH_E_BUG, "a C++ library threw an exception that nothing catches"));
}

/* Mangled names, because the functions are in whichever libstdc++ is loaded; if they are absent they are NULL, and
 * nothing is set. */
void sh_library_catch_exceptions(void)
{
    void *(*set)(void (*)(void)) = NULL, *function = dlsym(RTLD_DEFAULT, "_ZSt13set_terminatePFvvE");

    memcpy(&set, &function, sizeof set);
    function = dlsym(RTLD_DEFAULT, "__cxa_current_exception_type");
    memcpy(&exception_type, &function, sizeof exception_type);
    bad_alloc = dlsym(RTLD_DEFAULT, "_ZTISt9bad_alloc");
    if (set)
        set(uncaught);
}
