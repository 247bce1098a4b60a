/* What keeper and ranks say to each other: packets of one kind, some with a descriptor. Local. */
#ifndef SH_NEAR_WIRE_H
#define SH_NEAR_WIRE_H

#include "src/base/err.h"

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

enum sh_wire_kind {
    SH_WIRE_HELLO,
    SH_WIRE_BYE,
    SH_WIRE_LIST, /* part number `slot` */
    SH_WIRE_TAKE,
    SH_WIRE_DROP, /* all that `start` has not taken */
    SH_WIRE_FORGET,
    SH_WIRE_LOSE,   /* slot 0: the lowest rank; 1: the node */
    SH_WIRE_ACCUSE, /* bytes: the step up to which checkpoints are right */
    SH_WIRE_FOLLOW, /* the watch whose address is in text */
    SH_WIRE_ANSWER,
    SH_WIRE_END, /* of the list */
    SH_WIRE_DEATH
};

enum { SH_WIRE_TEXT = 256 };

struct sh_wire {
    uint32_t kind;
    int32_t rank, world, slot; /* slot of a hello: the number of its start in the job, 0: none */
    uint64_t start, layout;
    int64_t bytes;
    int32_t rc; /* of an answer */
    char text
        [SH_WIRE_TEXT]; /* an error, or the watch: of a hello, that of the script which started the rank; "": none */
};

/* What this node is called: by Slurm, or by itself. */
const char *sh_wire_node(void);

/* The abstract name of the keeper's socket. Errors: SH_E_DATA: the folder cannot be found. */
sh_rc sh_wire_name(const char *folder, struct sockaddr_un *name, socklen_t *length);

/* fd -1: none. false: the other side is gone, or has sent something else; received descriptors are the caller's. */
bool sh_wire_send(int socket, const struct sh_wire *m, int fd);
bool sh_wire_receive(int socket, struct sh_wire *m, int *fd);

#endif
