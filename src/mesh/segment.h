/* Memory shared by neighbouring ranks of one node. */
#ifndef SH_MESH_SEGMENT_H
#define SH_MESH_SEGMENT_H

#include "src/mesh/mesh.h"

#include <stdint.h>

/* What ranks write apart must lie apart by: the longest line that caches have (A64FX has 256 bytes). */
#ifdef __aarch64__
#define SH_CACHE_LINE 256
#else
#define SH_CACHE_LINE 64
#endif

/* Create an in-memory file of `bytes` zeroed bytes for every `ranks` neighbours of the job, which are on one node; the
 * caller maps and closes it. Pages are allocated when first touched. Collective over the job, agreed.
 * Errors: SH_E_COMM: ranks that are on one node do not see each other's files (each in its own container). */
sh_rc sh_segment_create(const struct sh_mesh *mesh, int ranks, int64_t bytes, int *fd);

/* Create such a file for the ranks of `node`, a communicator of ranks on one node; its first 8 bytes hold a mark, the
 * others are zero. Collective over node; not agreed: it may fail on some of them. *fd -1 with SH_OK: the first rank
 * failed, and says why. Errors: as above. */
sh_rc sh_segment_share(MPI_Comm node, int64_t bytes, int *fd);

#endif
