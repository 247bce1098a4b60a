#include "src/near/wire.h"

#include "src/base/file.h"
#include "src/base/hash.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *sh_wire_node(void)
{
    static char name[256];
    const char *slurm = getenv("SLURMD_NODENAME");

    if (slurm || gethostname(name, sizeof name - 1) != 0)
        return slurm ? slurm : "this node";
    return name;
}

/* Nodes that share a network have keepers of their own. */
static uint64_t hash_place(const char *path)
{
    const char *node = getenv("SLURMD_NODENAME");

    return sh_hash64(path, strlen(path)) ^ (node ? sh_mix64(sh_hash64(node, strlen(node))) : 0);
}

/* The folder is made here, since the keeper starts before the run does: only what exists has a path without links. */
sh_rc sh_wire_name(const char *folder, struct sockaddr_un *name, socklen_t *length)
{
    const char *job = getenv("SLURM_JOB_ID");
    char *path;
    int n;

    SH_TRY(sh_mkdir_p(folder));
    path = realpath(folder, NULL);
    if (!path)
        return sh_fail(SH_E_DATA, "%s: %s", folder, strerror(errno));
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    n = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "sherd-keep.%lld.%.40s.%016llx", (long long)getuid(),
                 job ? job : "", (unsigned long long)hash_place(path));
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    free(path);
    return SH_OK;
}

/* The room of a message that carries one descriptor. Padding makes it large enough for a second one. */
union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

bool sh_wire_send(int socket, const struct sh_wire *m, int fd)
{
    struct sh_wire copy = *m;
    struct iovec data = {.iov_base = &copy, .iov_len = sizeof copy};
    struct msghdr h = {.msg_iov = &data, .msg_iovlen = 1};
    union control room = {0};
    ssize_t n;

    if (fd >= 0) {
        struct cmsghdr *c;

        h.msg_control = room.bytes;
        h.msg_controllen = sizeof room.bytes;
        c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    while ((n = sendmsg(socket, &h, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        ;
    return n == (ssize_t)sizeof copy;
}

/* The first descriptor of a message, or -1. All others are closed: whoever sends more must not use up this process's. */
static int take_one(struct msghdr *h)
{
    int first = -1;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        for (size_t i = 0; c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (first < 0)
                first = fd;
            else
                close(fd);
        }
    }
    return first;
}

bool sh_wire_receive(int socket, struct sh_wire *m, int *fd)
{
    struct iovec data = {.iov_base = m, .iov_len = sizeof *m};
    union control room = {0};
    struct msghdr h = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes};
    int got;
    ssize_t n;

    while ((n = recvmsg(socket, &h, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    got = n > 0 ? take_one(&h) : -1;
    if (fd)
        *fd = got;
    else if (got >= 0)
        close(got);
    return n == (ssize_t)sizeof *m;
}
