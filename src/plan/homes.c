#include "src/plan/homes.h"

#include "src/plan/request.h"

/* With a GPU, the snapshot for saves is on the host only if the optimizer states are not. */
static void put_optimizer(const struct sh_config *cfg, int part, struct sh_build *b)
{
    b->offload.optimizer_16 = part;
    sh_request_carry(b);
    b->options.snapshot = sh_request_snapshot(cfg, b->snapshot_on_host, part > 0);
}

static void put_gradients(const struct sh_config *cfg, int part, struct sh_build *b)
{
    (void)cfg;
    b->offload.gradients = part > 0;
}

static void put_parameters(const struct sh_config *cfg, int part, struct sh_build *b)
{
    (void)cfg;
    b->offload.parameters = b->options.fetched = part > 0;
}

static void put_activations(const struct sh_config *cfg, int part, struct sh_build *b)
{
    (void)cfg;
    b->offload.act_blocks = part;
}

static int all_sixteenths(const struct sh_build *b)
{
    (void)b;
    return 16;
}

/* Gradients that live elsewhere are squared in the one last micro-step (src/pass/host.c). */
static int where_steps_are_alike(const struct sh_build *b)
{
    return b->options.n_fewer == 0;
}

/* Parameters cannot live in a file, and a rank that holds all of them does not gather. */
static int where_gathered(const struct sh_build *b)
{
    return b->snapshot_on_host && !b->options.strategy.params_resident;
}

/* Activations of the last two blocks would be needed again before they were gone (src/pass/spill.c). */
static int early_blocks(const struct sh_build *b)
{
    return b->model.n_layers <= 2 ? 0 : b->model.n_layers - 2;
}

/* tries: in how many parts a search tries a row. Choices between two of them differ by few bytes of the arena. */
static const struct row {
    void (*put)(const struct sh_config *cfg, int part, struct sh_build *b);
    int (*most)(const struct sh_build *b);
    int tries;
} rows[SH_HOMES] = {
    [SH_HOME_OPTIMIZER] = {put_optimizer, all_sixteenths, 4},
    [SH_HOME_GRADIENTS] = {put_gradients, where_steps_are_alike, 1},
    [SH_HOME_PARAMETERS] = {put_parameters, where_gathered, 1},
    [SH_HOME_ACTIVATIONS] = {put_activations, early_blocks, 2},
};

int sh_homes_most(const struct sh_build *b, enum sh_home row)
{
    return rows[row].most(b);
}

int sh_homes_tries(const struct sh_build *b, enum sh_home row)
{
    int most = rows[row].most(b);

    return most < rows[row].tries ? most : rows[row].tries;
}

/* The part of try i, rounded up. */
int sh_homes_tried(const struct sh_build *b, enum sh_home row, int i)
{
    int n = sh_homes_tries(b, row);

    return n ? (rows[row].most(b) * i + n - 1) / n : 0;
}

void sh_homes_put(const struct sh_config *cfg, const struct sh_homes *homes, struct sh_build *b)
{
    for (int i = 0; i < SH_HOMES; i++)
        rows[i].put(cfg, homes->part[i], b);
}
