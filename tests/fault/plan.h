/* Which faults a test injects: every kind of fault at every storage call of every rank, or as many of them, evenly
 * spread, as there is time for. */
#ifndef TESTS_FAULT_PLAN_H
#define TESTS_FAULT_PLAN_H

#include "tests/fault/shim.h"

enum { FAULT_TEXT_BYTES = 160 };

/* A call that was interrupted, was late or moved only a part has not failed. Sherd's own calls, and those of HDF5
 * alone, get over it; MPI-IO may give up, and that must then be refused like any failure. What may be lost with a call
 * that has failed, a later success does not bring back: an fsync that is tried again says nothing of the first one's
 * data. MPI-IO's own such calls are followed by Sherd's, which must hold then. */
enum fault_end { OWN_MUST_FAIL, MAY_FAIL, OWN_MUST_PASS, MUST_PASS };

struct fault {
    int rank;
    struct shim_plan plan;
    enum fault_end end;
    char text[FAULT_TEXT_BYTES];
};

/* All faults for the calls that the ranks made in a clean run.
 *   count  in  [ranks][SHIM_CALLS]
 * Returns their number; *out is freed with free(). Local. */
int fault_list(const long (*count)[SHIM_CALLS], int ranks, struct fault **out);

#endif
