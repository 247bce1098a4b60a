/* `sherd keep CONFIG`: hold the near checkpoints of a node, or say what the keeper there holds. No MPI. */
#include "src/cmd/cmd.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/device/device.h"
#include "src/near/keep.h"
#include "src/near/pulse.h"
#include "src/near/slot.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

/* What the parts of one start on this node have, in both slots. */
struct held {
    uint64_t layout;
    int rank, world;
    int64_t step[SH_NEAR_SLOTS]; /* -1: nothing that is DONE */
};

/* Look into a part and forget it. */
static int64_t step_in(const struct sh_keep_part *part)
{
    struct sh_near_slot slot;
    void *memory = mmap(NULL, (size_t)part->bytes, PROT_READ, MAP_SHARED, part->fd, 0);
    int64_t step = -1;

    close(part->fd);
    if (memory == MAP_FAILED)
        return -1;
    if (sh_near_view(memory, part->bytes, &slot) && sh_near_state(&slot) == SH_NEAR_DONE)
        step = slot.head->mark.step;
    munmap(memory, (size_t)part->bytes);
    return step;
}

static bool is_same(const struct held *a, const struct sh_keep_part *b)
{
    return a->layout == b->layout && a->rank == b->rank && a->world == b->world;
}

static void add(struct held *all, int *n, const struct sh_keep_part *part)
{
    int i = 0;

    if (part->slot < 0 || part->slot >= SH_NEAR_SLOTS)
        return;
    while (i < *n && !is_same(&all[i], part))
        i++;
    if (i == *n)
        all[(*n)++] = (struct held){part->layout, part->rank, part->world, {-1, -1}};
    all[i].step[part->slot] = step_in(part);
}

/* Whether all ranks of the start that `of` belongs to have the step. */
static bool all_have(const struct held *all, int n, const struct held *of, int64_t step)
{
    for (int i = 0; i < n; i++)
        if (all[i].layout == of->layout && all[i].world == of->world && all[i].step[0] != step &&
            all[i].step[1] != step)
            return false;
    return true;
}

static int64_t newest(const struct held *all, int n)
{
    int64_t most = -1;

    for (int i = 0; i < n; i++)
        for (int s = 0; s < SH_NEAR_SLOTS; s++)
            if (all[i].step[s] > most && all_have(all, n, &all[i], all[i].step[s]))
                most = all[i].step[s];
    return most;
}

/* Print the newest step that all ranks of this node have, or -1: scripts tell by it whether a start was of use. */
static sh_rc print_step(const char *folder)
{
    struct held *all = NULL;
    struct sh_keep_part part;
    bool more = true;
    int fd, n = 0;
    sh_rc rc = SH_OK;

    SH_TRY(sh_keep_connect(folder, 0, &fd));
    for (int i = 0; more && rc == SH_OK; i++) {
        rc = sh_keep_list(fd, i, &part, &more);
        all = sh_realloc(all, (size_t)i + 1, sizeof *all);
        if (rc == SH_OK && more)
            add(all, &n, &part);
    }
    if (rc == SH_OK)
        printf("%lld\n", (long long)newest(all, n));
    free(all);
    close(fd);
    return rc;
}

/* The address holds a token, so it is no argument, which all users of the node could read. */
static sh_rc follow(const char *folder)
{
    const char *address = getenv(SH_PULSE_VARIABLE);
    int fd;
    sh_rc rc;

    SH_TRY(sh_pulse_check(address ? address : ""));
    SH_TRY(sh_keep_connect(folder, 0, &fd));
    rc = sh_keep_follow(fd, address);
    close(fd);
    return rc;
}

/* A script that is killed takes its keeper along, or the memory would stay until the node is started again. If `parent`
 * has ended before this was asked for, no signal will come. */
static void end_with(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        raise(SIGTERM);
}

static sh_rc serve(const struct sh_config *cfg)
{
    int64_t limit = cfg->checkpoint.near_limit_bytes ? cfg->checkpoint.near_limit_bytes : sh_device_node_free() / 2;
    const char *watch = getenv(SH_PULSE_VARIABLE);
    char text[SH_STR_SHORT];

    if (!cfg->checkpoint.near_interval)
        return sh_fail(SH_E_USAGE, "checkpoint.near_interval is 0: this run makes no near checkpoints to keep");
    signal(SIGUSR1, SIG_IGN); /* what tells ranks of the time limit reaches all steps of a job */
    signal(SIGUSR2, SIG_IGN);
    if (watch)
        SH_TRY(sh_pulse_start(watch));
    sh_log_info("keeping near checkpoints of %s, at most %s", cfg->job.dump_folder, sh_str_bytes(limit, text));
    return sh_keep_serve(cfg->job.dump_folder, limit, SH_KEEP_LEFT_SECONDS);
}

sh_rc sh_cmd_keep(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    pid_t parent = getppid();
    struct sh_config cfg;

    SH_TRY(sh_cmd_config(args, NULL, &cfg));
    if (sh_cmd_option(cmd, args, "--step"))
        return print_step(cfg.job.dump_folder);
    if (sh_cmd_option(cmd, args, "--follow"))
        return follow(cfg.job.dump_folder);
    end_with(parent);
    return sh_cmd_option(cmd, args, "--watch") ? sh_pulse_watch(cfg.checkpoint.near_silence_seconds) : serve(&cfg);
}
