/* `sherd plan`: builds the program that a rank of such a job would run, and prints what is in it. It needs no MPI and
 * no launcher: one process makes a plan of 512 ranks. Every figure is read from the program, so it cannot differ from
 * the run. */
#include "src/tools/predict/command.h"

#include "src/cost/rates.h"
#include "src/plan/pinned.h"
#include "src/run/feed.h"
#include "src/run/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Chosen like sh_run_open() does, with this machine in place of the node; threads determine the scratch memory. */
static int threads_of_rank(const struct sh_predict *l)
{
    int node = l->at.ranks_per_node ? l->at.ranks_per_node : l->at.world;

    return l->cfg.training.threads ? l->cfg.training.threads : sh_device_threads(node);
}

/* The two sizes of the mesh together give the number of ranks. */
static int64_t ranks_of(const struct sh_config *cfg)
{
    if (cfg->mesh.ranks)
        return cfg->mesh.ranks;
    return cfg->mesh.shard > 0 && cfg->mesh.replicate > 0 ? (int64_t)cfg->mesh.shard * cfg->mesh.replicate : 1;
}

/* One size alone does not give the number of ranks. It is refused: nobody asked for a job of one rank. */
static sh_rc check_ranks_said(const struct sh_config *cfg, bool searched)
{
    bool shard = cfg->mesh.shard > 1, replicate = cfg->mesh.replicate > 1;

    if (cfg->mesh.ranks || searched || (shard ? cfg->mesh.replicate > 0 : !replicate || cfg->mesh.shard > 0))
        return SH_OK;
    return sh_fail(
        SH_E_USAGE, "mesh.%s=%d alone does not say how many ranks there are; give --ranks N or mesh.%s as well",
        shard ? "shard" : "replicate", shard ? cfg->mesh.shard : cfg->mesh.replicate, shard ? "replicate" : "shard");
}

/* The machine decides the device, if the configuration leaves it open, and the ranks per node. */
static sh_rc take_machine(const char *name, struct sh_predict *l)
{
    struct sh_config *cfg = &l->cfg;

    SH_TRY(sh_machine_load_for(name, ranks_of(cfg), &l->machine));
    l->priced = true;
    sh_cost_take_rates(cfg, &l->machine);
    if (cfg->training.device == SH_DEVICE_AUTO)
        cfg->training.device = sh_machine_is_gpu(&l->machine) ? SH_DEVICE_CUDA : SH_DEVICE_CPU;
    if ((cfg->training.device == SH_DEVICE_CUDA) != sh_machine_is_gpu(&l->machine))
        return sh_fail(SH_E_USAGE, "training.device=%s, but %s is a machine of %s; leave training.device at auto",
                       cfg->training.device == SH_DEVICE_CUDA ? "cuda" : "cpu", l->machine.name,
                       sh_machine_is_gpu(&l->machine) ? "GPUs" : "CPUs");
    /* A search for a number of nodes has no number of ranks yet. */
    if (!cfg->mesh.ranks_per_node && ranks_of(cfg) > 1)
        cfg->mesh.ranks_per_node = (int)fmin(l->machine.node.devices, (double)ranks_of(cfg));
    return SH_OK;
}

/* A run on GPUs keeps what its communicators take, which may be more than the machine's figure. */
static void take_memory(struct sh_predict *l)
{
    if (l->at.gpu)
        l->machine.device.reserved_bytes = fmax(l->machine.device.reserved_bytes, (double)sh_predict_kept(l));
}

static bool is_search(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    return sh_cmd_option(cmd, args, "--search") || sh_cmd_option(cmd, args, "--within");
}

/* Check the pinned memory of the ranks of a node, if the machine gives the host memory. */
static sh_rc check_pinned(const struct sh_predict *l)
{
    char whose[SH_MACHINE_NAME + 32];

    if (!l->priced)
        return SH_OK;
    snprintf(whose, sizeof whose, "a node of %s has", l->machine.name);
    return sh_pinned_check(l->p, l->at.ranks_per_node, (int64_t)l->machine.host.memory_bytes, whose);
}

sh_rc sh_predict_settle(struct sh_predict *l)
{
    SH_TRY(sh_request_mesh(&l->cfg, &l->at, &l->mesh));
    if (l->priced)
        take_memory(l);
    l->ask = (struct sh_plan_request){.cfg = &l->cfg,
                                      .at = &l->at,
                                      .mesh = &l->mesh,
                                      .purpose = SH_TO_TRAIN,
                                      .threads = threads_of_rank(l),
                                      .limit_bytes = l->cfg.memory.limit_bytes,
                                      .node_bytes = l->priced ? (int64_t)l->machine.host.memory_bytes : 0,
                                      .node_ranks = l->at.ranks_per_node};
    return SH_OK;
}

/* Ranks and nodes come from the command line instead of MPI. */
static sh_rc make(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_predict *l)
{
    const char *machine = sh_cmd_option(cmd, args, "--machine");
    int64_t ranks, rank;
    char why[256];

    SH_TRY(sh_cmd_config(args, NULL, &l->cfg));
    SH_TRY(sh_feed_settle(&l->cfg, l->cfg.training.dataset_path));
    if (sh_cmd_option(cmd, args, "--ranks") && !l->cfg.mesh.ranks)
        return sh_fail(SH_E_USAGE, "sherd plan: --ranks 0: a job has at least one rank");
    SH_TRY(check_ranks_said(&l->cfg, is_search(cmd, args)));
    ranks = ranks_of(&l->cfg);
    if (machine)
        SH_TRY(take_machine(machine, l));
    if (machine)
        SH_TRY(sh_cmd_number(cmd, args, "--price", 0, 1e6, l->machine.node.price_per_device_hour,
                             &l->machine.node.price_per_device_hour));
    if (ranks == 1 && sh_cmd_option(cmd, args, "--rank") && strcmp(sh_cmd_option(cmd, args, "--rank"), "0") != 0)
        return sh_fail(SH_E_USAGE, "sherd plan: --rank R chooses a rank of a job of several; give --ranks N");
    SH_TRY(sh_cmd_whole(cmd, args, "--rank", 0, ranks - 1, 0, &rank));
    l->at = (struct sh_topology){.rank = (int)rank,
                                 .world = (int)ranks,
                                 .ranks_per_node = l->cfg.mesh.ranks_per_node ? l->cfg.mesh.ranks_per_node : ranks == 1,
                                 .in_blocks = true,
                                 .on_paper = machine};
    SH_TRY(sh_request_gpu(&l->cfg, true, &l->at.gpu, why));
    if (is_search(cmd, args) || sh_cmd_option(cmd, args, "--longest"))
        return SH_OK;
    SH_TRY(sh_predict_settle(l));
    SH_TRY(sh_plan_make(&l->ask, &l->build, &l->p));
    SH_TRY(sh_predict_make_stages(l, false));
    return check_pinned(l);
}

/* Look at the data if they are on this machine; a plan does not need them. Not called for a plan that was refused, so
 * the reason of the refusal stays. */
static void look_at_data(const struct sh_predict *l)
{
    const char *path = l->cfg.training.dataset_path;
    struct sh_data_options opt;
    struct sh_data *d;

    if (!path[0] && !l->cfg.data.mix[0])
        return;
    if (sh_feed_options(&l->cfg, path, false, &opt) != SH_OK || sh_data_open(&opt, &d) != SH_OK) {
        sh_error_clear();
        return;
    }
    sh_feed_note_bytes(d, path[0] ? path : l->cfg.data.mix, l->cfg.model.vocab_size);
    sh_data_close(d);
}

static void print(const struct sh_predict *l, bool show)
{
    sh_predict_say_request(l);
    sh_predict_say_units(l);
    sh_predict_say_memory(l);
    sh_predict_file(l);
    sh_predict_say_traffic(l);
    if (show) {
        putchar('\n');
        sh_program_print(l->after ? l->after : l->p, stdout);
    }
}

static void free_plan(struct sh_predict *l)
{
    sh_program_destroy(l->after);
    sh_program_destroy(l->p);
    sh_pipe_stages_free(&l->stages);
    free(l->each);
    sh_machine_close(&l->machine);
}

/* --longest takes few of the others, and needs no machine if the configuration has a limit. */
static sh_rc check_longest(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    static const char *const others[] = {"--trace", "--what-if", "--check", "--show",   "--after", "--rank",
                                         "--allow", "--tokens",  "--price", "--within", "--fit"};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (sh_cmd_option(cmd, args, others[i]))
            return sh_fail(SH_E_USAGE, "%s has no use with --longest; leave one of them out", others[i]);
    if (sh_cmd_option(cmd, args, "--write") && !sh_cmd_option(cmd, args, "--search"))
        return sh_fail(SH_E_USAGE, "--write writes the configuration that --search finds; add --search");
    return SH_OK;
}

/* Options that have an effect only with another option. */
static sh_rc check_options(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    static const char *const planned[] = {"--json", "--trace", "--what-if", "--check", "--show", "--rank"};
    static const char *const priced[] = {"--json",   "--trace",  "--what-if", "--search",
                                         "--tokens", "--within", "--price",   "--fit"};

    if (sh_cmd_option(cmd, args, "--after") && !sh_cmd_option(cmd, args, "--show"))
        return sh_fail(SH_E_USAGE, "--after chooses the pass after which --show prints the program; add --show");
    if (sh_cmd_option(cmd, args, "--write") && !sh_cmd_option(cmd, args, "--search"))
        return sh_fail(SH_E_USAGE, "--write writes the configuration that --search finds; add --search");
    if (sh_cmd_option(cmd, args, "--allow") && !sh_cmd_option(cmd, args, "--search"))
        return sh_fail(SH_E_USAGE, "--allow says which results --search may change; add --search");
    for (size_t i = 0; is_search(cmd, args) && i < sizeof planned / sizeof *planned; i++)
        if (sh_cmd_option(cmd, args, planned[i]))
            return sh_fail(SH_E_USAGE, "%s is for one configuration, but a search is over many; leave one of them out",
                           planned[i]);
    for (size_t i = 0; i < sizeof priced / sizeof *priced; i++)
        if (sh_cmd_option(cmd, args, priced[i]) && !sh_cmd_option(cmd, args, "--machine"))
            return sh_fail(SH_E_USAGE, "%s needs a prediction on a machine; add --machine", priced[i]);
    return SH_OK;
}

/* --fit takes no configuration: each run has its own. */
static sh_rc fit(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    for (const struct sh_cmd_option *o = cmd->options; o->name; o++)
        if (strcmp(o->name, "--fit") && strcmp(o->name, "--machine") && sh_cmd_option(cmd, args, o->name))
            return sh_fail(SH_E_USAGE, "sherd plan --fit: takes --machine FILE and nothing else; leave out %s",
                           o->name);
    if (args->n_positional || args->n_overrides)
        return sh_fail(SH_E_USAGE,
                       "sherd plan --fit: takes no configuration, because each run below the folder has its own");
    return sh_predict_fit_study(sh_cmd_option(cmd, args, "--fit"), sh_cmd_option(cmd, args, "--machine"));
}

static sh_rc print_config(const struct sh_cmd_args *args)
{
    struct sh_config cfg;
    char *text;

    SH_TRY(sh_cmd_config(args, NULL, &cfg));
    SH_TRY(sh_config_print(&cfg, &text));
    fputs(text, stdout);
    free(text);
    return SH_OK;
}

/* One process. --print-config needs no plan, and prints even a configuration that cannot be planned. */
sh_rc sh_cmd_plan(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const char *after = sh_cmd_option(cmd, args, "--after");
    bool longest = sh_cmd_option(cmd, args, "--longest");
    struct sh_predict l = {0};
    sh_rc rc, priced = SH_OK;

    SH_TRY((longest ? check_longest : check_options)(cmd, args));
    if (sh_cmd_option(cmd, args, "--fit"))
        return fit(cmd, args);
    if (sh_cmd_option(cmd, args, "--print-config"))
        return print_config(args);
    /* A plan that was built is printed even if it is refused: one that does not fit shows what takes the memory. */
    rc = make(cmd, args, &l);
    if (rc == SH_OK && (longest || is_search(cmd, args))) {
        rc = (longest ? sh_predict_longest : sh_predict_search)(cmd, args, &l);
        free_plan(&l);
        return rc;
    }
    if (rc == SH_OK && after)
        rc = sh_pass_build_until(&l.build, after, &l.after);
    if (rc == SH_OK && l.priced)
        rc = sh_predict_words(cmd, args, &l);
    if (rc == SH_OK && l.priced)
        priced = sh_predict_answer(cmd, args, &l);
    if (l.p && rc != SH_E_USAGE)
        print(&l, sh_cmd_option(cmd, args, "--show") != NULL);
    fflush(stdout); /* so that an error comes after its plan, wherever the two go */
    rc = rc == SH_OK ? priced : rc;
    if (rc == SH_OK)
        sh_predict_say_stages(&l);
    if (rc == SH_OK)
        look_at_data(&l);
    if (rc == SH_OK && sh_cmd_option(cmd, args, "--check"))
        rc = sh_predict_check(&l);
    if (rc == SH_OK && l.priced)
        rc = sh_predict_cost(cmd, args, &l);
    free_plan(&l);
    return rc;
}
