/* Internal to the nccl backend: what its communicators will be asked to do. */
#ifndef SH_COMM_NCCL_USES_H
#define SH_COMM_NCCL_USES_H

#include "src/comm/comm.h"

/* The collectives of a program that differ in stream, group, kind, type or size, each once and without operands, in the
 * program's order, which all ranks share; of an all_to_all one element for each rank, of a message one.
 * Local; returns their number, *uses
 * is for free(). NULL: no program, 0. */
int sh_nccl_uses(const struct sh_program *p, const struct sh_mesh_shape *mesh, struct sh_coll **uses);

#endif
