/* A stand-in for a watch: whoever calls is let in and hung up on, so that any number of nodes may call at once. */
#include "src/near/pulse.h"

#include "src/base/mem.h"
#include "src/base/thread.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOOK_MS = 50, FIELD = 256 };

struct sh_pulse_answer {
    int socket;
    atomic_bool ends;
    pthread_t thread;
};

/* Whatever accept() says: calls that are waiting must not fill the queue of the kernel, which then drops others. */
static void *answer(void *arg)
{
    struct sh_pulse_answer *a = arg;

    while (!a->ends) {
        struct pollfd p = {.fd = a->socket, .events = POLLIN};
        int fd = poll(&p, 1, LOOK_MS) > 0 ? accept4(a->socket, NULL, NULL, SOCK_CLOEXEC) : -1;

        if (fd >= 0)
            close(fd);
    }
    return NULL;
}

/* At any free port; -1: it cannot. */
static int listen_here(char *address, size_t size)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_ANY)}};
    socklen_t length = sizeof at;
    char host[FIELD] = "";
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &length) != 0 || gethostname(host, sizeof host - 1) != 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    snprintf(address, size, "%s:%d:0", host, ntohs(at.sin_port));
    return fd;
}

sh_rc sh_pulse_answer_begin(char *address, size_t size, struct sh_pulse_answer **out)
{
    struct sh_pulse_answer *a = sh_calloc(1, sizeof *a);
    sh_rc rc;

    a->socket = listen_here(address, size);
    rc = a->socket < 0 ? sh_fail(SH_E_COMM, "a watch cannot listen here")
                       : sh_thread_start(&a->thread, "answer as a watch does", answer, a, 0);
    if (rc != SH_OK && a->socket >= 0)
        close(a->socket);
    if (rc != SH_OK) {
        free(a);
        a = NULL;
    }
    *out = a;
    return rc;
}

void sh_pulse_answer_end(struct sh_pulse_answer *a)
{
    if (!a)
        return;
    a->ends = true;
    pthread_join(a->thread, NULL);
    close(a->socket);
    free(a);
}
