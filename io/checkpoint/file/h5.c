#include "io/checkpoint/file/h5.h"

#include "src/mesh/mesh.h"

#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { CACHE_BYTES = 16 << 20, HEADROOM_BYTES = 4 << 20 };

/* Whether memory is available: HDF5 (1.10.8) crashes or ends the process if it has too little to start with, and if
 * memory runs out while it reads a file, it reports that the file cannot be read. */
static bool has_room(void)
{
    void *volatile p = malloc(HEADROOM_BYTES);

    free(p);
    return p != NULL;
}

/* Called before MPI starts, so that HDF5 registers nothing that runs at the end of the program or of MPI. There HDF5
 * would close again a file whose close has failed, and crash (1.10.8). Every file is closed where it was opened. */
static sh_rc open_library(void)
{
    /* The flag is atomic because the writing thread may come here while the main thread reads a checkpoint. */
    static atomic_bool open;

    if (!open && !has_room())
        return sh_fail(SH_E_MEMORY, "out of memory: no room for the HDF5 library");
    if (!open)
        (void)H5dont_atexit();
    open = H5open() >= 0;
    return open ? SH_OK : sh_fail(SH_E_MEMORY, "the HDF5 library does not start; it may be out of memory");
}

__attribute__((constructor)) static void before_mpi(void)
{
    sh_mesh_before_start(open_library);
}

/* Called before each use by a thread. Error printing is switched off, since errors are returned; so are plugins, since
 * a file must not choose code to run. */
sh_rc sh_ckpt_h5_start(void)
{
    SH_TRY(open_library());
    /* If HDF5 is built for threads, each thread has its own setting for printing errors. */
    if (H5Eset_auto2(H5E_DEFAULT, NULL, NULL) < 0 || H5PLset_loading_state(0) < 0)
        return sh_fail(SH_E_BUG, "the HDF5 library does not start");
    return SH_OK;
}

/* By descriptor: the file may have no name (memory), and its name may belong to another file by now. */
const char *sh_ckpt_h5_name(int fd, char name[SH_CKPT_FD_NAME_BYTES])
{
    snprintf(name, SH_CKPT_FD_NAME_BYTES, "/proc/self/fd/%d", fd);
    return name;
}

/* Walks upwards from the place of the error: the first entry is the reason, the rest is the chain of callers. */
static herr_t take_first(unsigned n, const H5E_error2_t *error, void *text)
{
    if (n == 0)
        *(const char **)text = error->desc;
    return 0;
}

/* Returns the first reason of HDF5's stack, as one line. Running out of memory is distinguished, since an earlier
 * checkpoint would not help then. */
sh_rc sh_ckpt_h5_fail(const char *path, const char *words)
{
    const char *reason = NULL;
    char line[1024];
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &reason);
    snprintf(line, sizeof line, "%s", reason ? reason : "no reason given");
    for (char *c = line; *c; c++) /* MPICH's reasons have several lines */
        if (iscntrl((unsigned char)*c))
            *c = ' ';
    return sh_fail(has_room() ? SH_E_DATA : SH_E_MEMORY, "%s%s: %s: %s", has_room() ? "" : "out of memory: ", path,
                   words, line);
}

/* Closing clears HDF5's error stack. The stack is restored, so that sh_ckpt_h5_fail() can still name the reason. */
void sh_ckpt_h5_close(herr_t (*close)(hid_t), hid_t id)
{
    hid_t errors = H5Eget_current_stack();
    close(id);
    if (errors >= 0)
        H5Eset_current_stack(errors);
}

/* Provides room for the structures of the largest models from the start, 3 KiB per tensor: a full cache would write
 * them out and read them back one by one. */
static herr_t set_cache(hid_t fapl)
{
    H5AC_cache_config_t c = {.version = H5AC__CURR_CACHE_CONFIG_VERSION};
    if (H5Pget_mdc_config(fapl, &c) < 0)
        return -1;
    c.set_initial_size = 1;
    c.initial_size = c.min_size = CACHE_BYTES;
    c.max_size = 2 * CACHE_BYTES;
    c.incr_mode = H5C_incr__off;
    c.flash_incr_mode = H5C_flash_incr__off;
    c.decr_mode = H5C_decr__off;
    return H5Pset_mdc_config(fapl, &c);
}

/* Shared by both kinds of access. The caller closes it; H5I_INVALID_HID on failure. */
static hid_t common_access(void)
{
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    if (fapl < 0)
        return fapl;
    /* The format of 1.10 has checksums over its metadata. Locks are not used because many parallel file systems have
     * none, and because a file that is being written has a name that nobody else knows. */
    if (H5Pset_libver_bounds(fapl, H5F_LIBVER_V110, H5F_LIBVER_V110) < 0 || set_cache(fapl) < 0 ||
        H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG) < 0 || H5Pset_file_locking(fapl, 0, 1) < 0) {
        H5Pclose(fapl);
        return H5I_INVALID_HID;
    }
    return fapl;
}

/* Uses the C library's files: HDF5's usual driver needs a path that realpath() knows, and a file in memory has none. */
hid_t sh_ckpt_h5_serial_access(void)
{
    hid_t fapl = common_access();
    if (fapl >= 0 && H5Pset_fapl_stdio(fapl) < 0) {
        H5Pclose(fapl);
        return H5I_INVALID_HID;
    }
    return fapl;
}

/* MPI_COMM_SELF: each rank opens the file for itself, so that a rank that fails does not hang the others in a
 * collective open. */
hid_t sh_ckpt_h5_mpiio_access(MPI_Info hints)
{
    hid_t fapl = common_access();
    if (fapl >= 0 && H5Pset_fapl_mpio(fapl, MPI_COMM_SELF, hints) < 0) {
        H5Pclose(fapl);
        return H5I_INVALID_HID;
    }
    return fapl;
}
