/* The faults that a test injects: every kind of fault at every storage call of every rank, or as many of them, evenly
 * spread, as there is time for. */
#ifndef TESTS_FAULT_PLAN_H
#define TESTS_FAULT_PLAN_H

#include "tests/fault/shim.h"

enum { FAULT_TEXT_BYTES = 160 };

/* A call that was interrupted, was late or moved only a part has not failed. Sherd's own calls, and those of HDF5
 * alone, recover from it; MPI-IO may give up, and that must then be refused like any failure. A later success does not
 * bring back data that may have been lost with a failed call: an fsync that is retried says nothing about the data of
 * the first one. MPI-IO's own calls of this kind are followed by Sherd's, on which correctness then depends. */
enum fault_end { OWN_MUST_FAIL, MAY_FAIL, OWN_MUST_PASS, MUST_PASS };

struct fault {
    int rank;
    struct shim_plan plan;
    enum fault_end end;
    char text[FAULT_TEXT_BYTES];
};

/* List all faults for the calls that the ranks made in a clean run.
 *   count  in  [ranks][SHIM_CALLS]
 * Returns their number; *out is freed with free(). Local. */
int fault_list(const long (*count)[SHIM_CALLS], int ranks, struct fault **out);

#endif
