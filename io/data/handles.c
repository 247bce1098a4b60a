#include "io/data/handles.h"

#include "io/file/file.h"
#include "src/base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* `device` and `inode` are those of the first open. */
struct handle {
    char *path;
    int fd;        /* -1: closed */
    int readers;   /* threads that are using fd now */
    uint64_t used; /* when it was last read, counted in reads */
    dev_t device;
    ino_t inode;
};

struct sh_handles {
    pthread_mutex_t lock; /* for everything except the paths */
    struct handle *handle;
    int n, room;
    int *open; /* [most]: the files that have a descriptor */
    int n_open, most;
    uint64_t reads;
};

/* How many descriptors a set may use. The rest is for MPI's connections, libraries, checkpoints and a second set.
 * RLIM_INFINITY is a large number, so it needs no special case. */
static int share_of_descriptors(int sets)
{
    enum { LEAST = 4, MOST = 1024 };
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / 4 / (rlim_t)sets < LEAST)
        return LEAST;
    return limit.rlim_cur / 4 / (rlim_t)sets > MOST ? MOST : (int)(limit.rlim_cur / 4 / (rlim_t)sets);
}

/* No file is open at first. */
struct sh_handles *sh_handles_create(int sets)
{
    struct sh_handles *h = sh_calloc(1, sizeof *h);

    pthread_mutex_init(&h->lock, NULL);
    h->most = share_of_descriptors(sets);
    h->open = sh_calloc((size_t)h->most, sizeof *h->open);
    return h;
}

/* No read may be in progress. */
void sh_handles_destroy(struct sh_handles *h)
{
    if (!h)
        return;
    for (int i = 0; i < h->n_open; i++)
        close(h->handle[h->open[i]].fd);
    for (int i = 0; i < h->n; i++)
        free(h->handle[i].path);
    free(h->handle);
    free(h->open);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* Lent; valid as long as `h`. */
const char *sh_handles_path(const struct sh_handles *h, int file)
{
    return h->handle[file].path;
}

/* Close the least recently read file. There always is one that is not being read: `most` is more than the number of
 * reading threads. */
static void close_one(struct sh_handles *h)
{
    int oldest = -1;

    for (int i = 0; i < h->n_open; i++) {
        const struct handle *f = &h->handle[h->open[i]];
        if (!f->readers && (oldest < 0 || f->used < h->handle[h->open[oldest]].used))
            oldest = i;
    }
    if (oldest < 0)
        return;
    struct handle *f = &h->handle[h->open[oldest]];
    close(f->fd);
    f->fd = -1;
    h->open[oldest] = h->open[--h->n_open];
}

/* The first open records which file it is; later ones compare. A data set replaced in the middle of a run would change
 * the samples unnoticed. */
static sh_rc look_at(struct handle *f, int fd, bool again)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return sh_fail(SH_E_DATA, "stat %s: %s", f->path, strerror(errno));
    if (again && (st.st_dev != f->device || st.st_ino != f->inode))
        return sh_fail(SH_E_DATA, "%s is not the file that the run began with; start again to use the new one",
                       f->path);
    f->device = st.st_dev;
    f->inode = st.st_ino;
    return SH_OK;
}

/* Call with the lock held. */
static sh_rc open_file(struct sh_handles *h, int file, bool again, int64_t *bytes)
{
    struct handle *f = &h->handle[file];
    int fd;
    sh_rc rc;

    if (h->n_open == h->most)
        close_one(h);
    SH_REQUIRE(h->n_open < h->most);
    SH_TRY(sh_file_open(f->path, &fd, bytes));
    rc = look_at(f, fd, again);
    if (rc != SH_OK) {
        close(fd);
        return rc;
    }
    f->fd = fd;
    h->open[h->n_open++] = file;
    return SH_OK;
}

sh_rc sh_handles_add(struct sh_handles *h, const char *path, int *file, int64_t *bytes)
{
    /* This may move the array, so it must not run while other threads read. */
    if (h->n == h->room) {
        h->room = h->room ? 2 * h->room : 16;
        h->handle = sh_realloc(h->handle, (size_t)h->room, sizeof *h->handle);
    }
    h->handle[h->n] = (struct handle){.path = sh_strdup(path), .fd = -1};
    *file = h->n++;
    return open_file(h, *file, false, bytes);
}

/* Mark the file as being read, so close_one() leaves it open until the read is done. */
static sh_rc take(struct sh_handles *h, int file, int *fd)
{
    struct handle *f = &h->handle[file];
    int64_t bytes;
    sh_rc rc = SH_OK;

    pthread_mutex_lock(&h->lock);
    if (f->fd < 0)
        rc = open_file(h, file, true, &bytes);
    if (rc == SH_OK) {
        f->readers++;
        f->used = ++h->reads;
        *fd = f->fd;
    }
    pthread_mutex_unlock(&h->lock);
    return rc;
}

/* The read itself is outside the lock: several threads may read at the same time. */
sh_rc sh_handles_read(struct sh_handles *h, int file, void *data, int64_t bytes, int64_t offset)
{
    sh_rc rc;
    int fd;

    SH_TRY(take(h, file, &fd));
    rc = sh_file_read(fd, h->handle[file].path, data, bytes, offset);
    pthread_mutex_lock(&h->lock);
    h->handle[file].readers--;
    pthread_mutex_unlock(&h->lock);
    return rc;
}
