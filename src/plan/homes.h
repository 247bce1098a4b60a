/* What a budget may move to a lower tier: rows, each divided into parts that can move. Local, pure. */
#ifndef SH_PLAN_HOMES_H
#define SH_PLAN_HOMES_H

#include "src/pass/build.h"
#include "src/plan/topology.h"

/* Units of the parts. OPTIMIZER: sixteenths of the states; GRADIENTS, PARAMETERS: 1 is all; ACTIVATIONS: blocks, from
 * the first on. */
enum sh_home { SH_HOME_OPTIMIZER, SH_HOME_GRADIENTS, SH_HOME_PARAMETERS, SH_HOME_ACTIVATIONS, SH_HOMES };

struct sh_homes {
    int part[SH_HOMES]; /* the part that is moved away */
};

/* The largest part of a row that can leave the device of this build: to the host of a GPU, else to a file. 0: none. */
int sh_homes_most(const struct sh_build *b, enum sh_home row);

/* The parts of a row that a search tries before it looks between them: n + 1 parts, from 0 to the whole row. Returns
 * n. */
int sh_homes_tries(const struct sh_build *b, enum sh_home row);
int sh_homes_tried(const struct sh_build *b, enum sh_home row, int i);

/* Set these homes in the build, and the options that go with them. */
void sh_homes_put(const struct sh_config *cfg, const struct sh_homes *homes, struct sh_build *b);

#endif
