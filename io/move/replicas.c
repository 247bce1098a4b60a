#include "io/move/replicas.h"

#include "src/mesh/mesh.h"

struct sh_move_replicas sh_move_replicas_alone(void)
{
    return (struct sh_move_replicas){.comm = MPI_COMM_NULL, .size = 1};
}

/* A colour has 31 bits: two colours tell requests apart except for one chance in 2^62. */
static sh_rc split(uint64_t wanted, MPI_Comm *comm)
{
    MPI_Comm half;
    SH_MPI(MPI_Comm_split(MPI_COMM_WORLD, (int)(wanted & INT32_MAX), 0, &half));
    int mpi_rc = MPI_Comm_split(half, (int)(wanted >> 31 & INT32_MAX), 0, comm);
    MPI_Comm_free(&half);
    SH_MPI(mpi_rc);
    return SH_OK;
}

/* Collective over all ranks. Replicas are found by what they read, not by the mesh, so this works for any layout. Free
 * with sh_move_replicas_free(). */
sh_rc sh_move_replicas_find(uint64_t wanted, struct sh_move_replicas *out)
{
    struct sh_move_replicas r;
    sh_mesh_own_mpi();
    SH_TRY(split(wanted, &r.comm));
    SH_MPI(MPI_Comm_rank(r.comm, &r.rank));
    SH_MPI(MPI_Comm_size(r.comm, &r.size));
    *out = r;
    return SH_OK;
}

/* Also works for a single rank. */
void sh_move_replicas_free(struct sh_move_replicas *r)
{
    if (r->comm != MPI_COMM_NULL)
        MPI_Comm_free(&r->comm);
    *r = sh_move_replicas_alone();
}

/* Collective in the group: from `root` to the others, split masters as two messages. At most 2^31 bytes; a chunk is far
 * smaller. */
sh_rc sh_move_replicas_broadcast(const struct sh_move_replicas *r, int root, struct sh_floats data, int64_t elems)
{
    int bytes = (int)sh_floats_bytes(data, elems);
    for (int i = 0; i < SH_FLOATS_ARRAYS && sh_floats_array(data, i); i++)
        SH_MPI(MPI_Bcast(sh_floats_array(data, i), bytes, MPI_BYTE, root, r->comm));
    return SH_OK;
}

/* With 8 replicas each reads an eighth of the bytes, and the file system is read once. */
sh_rc sh_move_replicas_read(const struct sh_move_replicas *r, int n, int turn,
                            sh_rc (*read)(void *arg, int first, int n), sh_rc (*hand)(void *arg, int i, int root),
                            void *arg)
{
    sh_rc own = SH_OK;
    for (int round = 0; round < n; round += r->size * turn) {
        int begin = round + r->rank * turn, left = n - begin;
        if (left > 0 && own == SH_OK)
            own = read(arg, begin, left < turn ? left : turn);
        for (int i = round; i < round + r->size * turn && i < n; i++)
            SH_TRY(hand(arg, i, (i - round) / turn));
    }
    return own;
}

/* Collective in the group. */
sh_rc sh_move_replicas_any(const struct sh_move_replicas *r, int failed, int *any)
{
    *any = failed;
    if (r->size > 1)
        SH_MPI(MPI_Allreduce(MPI_IN_PLACE, any, 1, MPI_INT, MPI_MAX, r->comm));
    return SH_OK;
}
