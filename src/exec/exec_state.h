/* Inside the executor: what it holds. exec.c opens and closes it, exec_run.c runs sections, exec_data.c moves data between
 * them and the host. Local. */
#ifndef SH_EXEC_EXEC_STATE_H
#define SH_EXEC_EXEC_STATE_H

#include "src/exec/counts.h"
#include "src/exec/exec.h"
#include "src/exec/exec_watch.h"
#include "src/exec/host_moves.h"
#include "src/exec/moves.h"

struct sh_exec {
    const struct sh_program *p;
    const struct sh_device *device;
    struct sh_comm *comm;
    struct sh_bases at;         /* the tiers */
    struct sh_moves *moves;     /* of the file tier; NULL: there is none */
    struct sh_host_moves *host; /* of the host tier; NULL: the program moves nothing there */
    char *extra;                /* pinned memory that sh_exec_host() lends */
    int64_t extra_bytes;
    void *queue, *copies;          /* queues of the operations, and of copies alongside them */
    void *before_copies, *copied;  /* events */
    struct sh_op_call *calls;      /* [ops] */
    struct sh_coll_parts *parts;   /* [ops] of exchanges of counted rows, or by cuts */
    struct sh_counts *counts;      /* of those rows, as the host knows them; NULL: it reads the tensors */
    int64_t *tickets;              /* [ops] of collectives and moves under way or done; 0: had nothing to do */
    char (*labels)[SH_EXEC_LABEL]; /* [ops] "backward layers.3 linear_bwd_x" */
    struct sh_op_scalars scalars;
    struct sh_op_scalars update_scalars; /* of updates, which may come a step later */
    bool pending;                        /* an update was put off */
    int64_t step;
    struct sh_exec_watch *watch;
    bool sync; /* wait after each operation */
    struct {
        void (*look)(void *arg, int op, bool done); /* NULL: nobody looks */
        void *arg;
    } looks[SH_EXEC_LOOKS];
};

#endif
