/* Memory shared by the ranks of a node: a file without a name, made by the first of them and opened by the others
 * through /proc. Nothing of it outlives the processes, however they end, and no limit of /dev/shm applies. */
#include "src/mesh/segment.h"

#include "src/base/number/rng.h"
#include "src/base/time.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What the first rank sends to the others. The mark distinguishes its file from that of another process with the same
 * number, in another container of the node. */
struct ticket {
    int64_t pid, fd;
    uint64_t mark;
};

static sh_rc refuse(const char *what)
{
    char host[HOST_NAME_MAX + 1] = "this";
    int why = errno;

    gethostname(host, sizeof host - 1);
    return sh_fail(SH_E_COMM, "memory cannot be shared between the ranks of node %s: %s: %s", host, what,
                   strerror(why));
}

/* Called only by the first rank of the node. Its descriptor stays open until the others have opened the file, which
 * keeps the file alive. */
static sh_rc make(int64_t bytes, struct ticket *t)
{
    int fd = memfd_create("sherd", MFD_CLOEXEC);

    if (fd < 0)
        return refuse("memfd_create");
    t->pid = getpid();
    t->fd = fd;
    t->mark = sh_rng_key((uint64_t)sh_now_ns() ^ (uint64_t)t->pid, "segment");
    if (ftruncate(fd, bytes) == 0 && pwrite(fd, &t->mark, sizeof t->mark, 0) == (ssize_t)sizeof t->mark)
        return SH_OK;
    sh_rc rc = refuse("a file in memory");
    close(fd);
    return rc;
}

/* The mark decides whether the file is the right one: in containers with their own process numbers, the same path may
 * name somebody else's file. */
static sh_rc attach(const struct ticket *t, int *fd)
{
    char path[64];
    uint64_t mark;

    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)t->pid, (long long)t->fd);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0)
        return refuse(path);
    if (pread(*fd, &mark, sizeof mark, 0) == (ssize_t)sizeof mark && mark == t->mark)
        return SH_OK;
    close(*fd);
    *fd = -1;
    errno = ESRCH;
    return refuse("the processes do not see each other");
}

/* Collective over `node`. A failure of the first rank is broadcast before the others try, so that all of them reach the
 * barrier; the caller agrees on the result. */
sh_rc sh_segment_share(MPI_Comm node, int64_t bytes, int *fd)
{
    struct ticket t = {0};
    int rank, failed;
    sh_rc rc = SH_OK;

    *fd = -1;
    SH_MPI(MPI_Comm_rank(node, &rank));
    if (rank == 0)
        rc = make(bytes, &t);
    failed = rc != SH_OK;
    SH_MPI(MPI_Bcast(&t, (int)sizeof t, MPI_BYTE, 0, node));
    SH_MPI(MPI_Bcast(&failed, 1, MPI_INT, 0, node));
    if (rank == 0 && !failed)
        *fd = (int)t.fd;
    else if (!failed)
        rc = attach(&t, fd);
    SH_MPI(MPI_Barrier(node)); /* until all have opened it */
    return rc;
}

/* Pages are zero except for the mark. */
static sh_rc erase_mark(MPI_Comm node, int fd)
{
    uint64_t zero = 0;

    SH_MPI(MPI_Barrier(node));
    return pwrite(fd, &zero, sizeof zero, 0) == (ssize_t)sizeof zero ? SH_OK : refuse("pwrite");
}

/* Collective over the job. Blocks of `ranks` neighbouring ranks share a segment; the caller has made sure that each
 * block is on one node. */
sh_rc sh_segment_create(const struct sh_mesh *mesh, int ranks, int64_t bytes, int *fd)
{
    MPI_Comm node = MPI_COMM_NULL;
    int mine = -1;
    sh_rc rc;

    sh_mesh_own_mpi();
    SH_MPI(MPI_Comm_split(MPI_COMM_WORLD, mesh->rank / ranks, mesh->rank, &node));
    rc = sh_segment_share(node, bytes, &mine);
    if (rc != SH_OK)
        rc = sh_fail_prefix(rc, "comm.shared_memory=off trains without this: ");
    SH_TRY_OUT(sh_agree(rc));
    SH_TRY_OUT(sh_agree(erase_mark(node, mine)));
    *fd = mine;
    mine = -1;
    rc = SH_OK;
out:
    if (mine >= 0)
        close(mine);
    MPI_Comm_free(&node);
    return rc;
}
