/* Data that each rank sends to one rank and receives from one. */
#include "src/mesh/mesh.h"

enum { PIECE = 1 << 24, TAG = 78 };

static int piece(int64_t bytes, int64_t at)
{
    return (int)(bytes - at < PIECE ? bytes - at : PIECE);
}

/* Both are piece by piece, since a count of MPI is an int. */
sh_rc sh_mesh_shift(const void *out, int64_t out_bytes, int to, void *in, int64_t in_bytes, int from)
{
    sh_mesh_own_mpi();
    for (int64_t at = 0; at < out_bytes || at < in_bytes; at += PIECE) {
        MPI_Request received = MPI_REQUEST_NULL, sent = MPI_REQUEST_NULL;

        if (at < in_bytes)
            SH_MPI(MPI_Irecv((char *)in + at, piece(in_bytes, at), MPI_BYTE, from, TAG, MPI_COMM_WORLD, &received));
        if (at < out_bytes)
            SH_MPI(MPI_Isend((const char *)out + at, piece(out_bytes, at), MPI_BYTE, to, TAG, MPI_COMM_WORLD, &sent));
        SH_TRY(sh_mesh_wait_for(from, &received));
        SH_TRY(sh_mesh_wait_for(to, &sent));
    }
    return SH_OK;
}
