/* What a budget may move below the device: rows, each with parts that may go. Local, pure. */
#ifndef SH_COST_HOMES_H
#define SH_COST_HOMES_H

#include "src/pass/build.h"
#include "src/plan/topology.h"

/* OPTIMIZER: sixteenths of the states; GRADIENTS, PARAMETERS: 1 is all; ACTIVATIONS: blocks, from the first on. */
enum sh_home { SH_HOME_OPTIMIZER, SH_HOME_GRADIENTS, SH_HOME_PARAMETERS, SH_HOME_ACTIVATIONS, SH_HOMES };

struct sh_homes {
    int part[SH_HOMES]; /* that is away */
};

/* The most of a row that may go from the device of this build: to the host beside a GPU, else to a file. 0: none. */
int sh_homes_most(const struct sh_build *b, enum sh_home row);

/* The parts of a row that a search tries before it looks between them: n + 1, from 0 to all of it. Returns n. */
int sh_homes_tries(const struct sh_build *b, enum sh_home row);
int sh_homes_tried(const struct sh_build *b, enum sh_home row, int i);

/* Ask the build for these homes, and for what goes with them. */
void sh_homes_put(const struct sh_config *cfg, const struct sh_homes *homes, struct sh_build *b);

#endif
