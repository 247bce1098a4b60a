/* Memory that neighbouring ranks of one node see together. */
#ifndef SH_MESH_SEGMENT_H
#define SH_MESH_SEGMENT_H

#include "src/mesh/mesh.h"

#include <stdint.h>

/* A file in memory of `bytes` zeroed bytes for each `ranks` neighbours of the job, who are on one node; to be mapped
 * and closed by the caller. Pages are there when they are first touched. Collective over the job, agreed. Errors:
 * SH_E_COMM: ranks that are on one node do not see each other's files (containers of their own). */
sh_rc sh_segment_create(const struct sh_mesh *mesh, int ranks, int64_t bytes, int *fd);

/* One for the ranks of `node`, a communicator of ranks that are on one node; its first 8 bytes hold a mark, the others
 * are zero. Collective over node; not agreed: it may fail on some of them. *fd -1 with SH_OK: the first rank failed,
 * and says why. Errors: as above. */
sh_rc sh_segment_share(MPI_Comm node, int64_t bytes, int *fd);

#endif
