/* The executor: runs the sections of a program, in the order in which their operations stand.
 *
 * Operations of the compute stream run one after the other in the calling thread (and its OpenMP team). A collective is
 * started where it stands, after everything before it; its result is there after its wait. */
#ifndef SH_RUN_EXEC_H
#define SH_RUN_EXEC_H

#include "src/comm/comm.h"
#include "src/device/device.h"
#include "src/program/program.h"
#include "src/watch/watch.h"

struct sh_exec;

struct sh_exec_time {
    double compute, exposed_comm; /* seconds since sh_exec_reset_time */
};

/* The program, device and channels are lent until sh_exec_destroy. Allocates the arena, and touches nothing of it.
 *   segment_fd  the file of the program's segment, for the time of the call; -1 when it has none */
sh_rc sh_exec_create(const struct sh_program *p, const struct sh_device *device, struct sh_comm *comm, int segment_fd,
                     struct sh_exec **out);
void sh_exec_destroy(struct sh_exec *e);

/* Run one section of the program, or the first of a kind. Collective over the mesh; a failure inside stops the
 * job. */
void sh_exec_run_section(struct sh_exec *e, const struct sh_section *s);
void sh_exec_run(struct sh_exec *e, enum sh_section_kind kind);

struct sh_op_scalars *sh_exec_scalars(struct sh_exec *e);
void *sh_exec_data(struct sh_exec *e, int tensor);                 /* device address */
void sh_exec_put(struct sh_exec *e, int tensor, const void *host); /* the whole tensor */
void sh_exec_get(struct sh_exec *e, int tensor, void *host);

void sh_exec_set_step(struct sh_exec *e, int64_t step);        /* for reports of a stall */
void sh_exec_set_trace(struct sh_exec *e, struct sh_trace *t); /* NULL: none; rows are the streams */
struct sh_exec_time sh_exec_take_time(struct sh_exec *e);      /* and start again from zero */

#endif
