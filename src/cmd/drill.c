/* `sherd drill CONFIG --lose rank|node`: lose a rank or the whole of this node on purpose, and see whether the run goes on.
 * The keeper does it, since it knows the ranks. No MPI. */
#include "src/cmd/cmd.h"

#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/near/keep.h"
#include "src/near/wire.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TAIL = 1 << 16, STEPS_SECONDS = 600 };

/* The end of a file behind its first `from` bytes; *begin is where it begins. The caller frees it. */
static char *read_tail(const char *path, long from, long *begin)
{
    char *text = sh_calloc(TAIL + 1, 1);
    FILE *f = fopen(path, "r");

    *begin = from;
    if (f && fseek(f, 0, SEEK_END) == 0) {
        long end = ftell(f);

        *begin = end - TAIL > from ? end - TAIL : from;
        if (*begin < end && fseek(f, *begin, SEEK_SET) == 0)
            text[fread(text, 1, TAIL, f)] = '\0';
    }
    if (f)
        fclose(f);
    return text;
}

/* The step of the newest line of a training step behind the first `from` bytes; -1: there is none. */
static int64_t newest_step(const char *path, long from)
{
    char *text = read_tail(path, from, &from);
    int64_t step = -1;

    for (const char *at = strstr(text, "{\"step\":"); at; at = strstr(at + 1, "{\"step\":")) {
        char *end;
        long long found = strtoll(at + strlen("{\"step\":"), &end, 10);

        if (strncmp(end, ",\"loss\":", strlen(",\"loss\":")) == 0)
            step = found;
    }
    free(text);
    return step;
}

static long size_of(const char *path)
{
    FILE *f = fopen(path, "r");
    long size = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : 0;

    if (f)
        fclose(f);
    return size;
}

/* Where the line of the first start begins behind the first `from` bytes; -1: there is none. */
static long next_start(const char *path, long from)
{
    char *text = read_tail(path, from, &from);
    const char *at = strstr(text, "{\"event\":\"start\"");
    long found = at ? from + (at - text) : -1;

    free(text);
    return found;
}

/* Steps that were under way are still written for a moment, so only those of another start count. */
static sh_rc wait_for_steps(const char *path, long from, int64_t begin)
{
    long start = -1;
    int64_t now = -1;

    while (now < 0 && sh_seconds_since(begin) < STEPS_SECONDS) {
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        start = start < 0 ? next_start(path, from) : start;
        now = start < 0 ? -1 : newest_step(path, start);
    }
    if (now < 0)
        return sh_fail(SH_E_COMM, "no %s has followed within %d s", start < 0 ? "restart" : "step", STEPS_SECONDS);
    printf("drill: step %lld followed after %.1f s\n", (long long)now, sh_seconds_since(begin));
    return SH_OK;
}

static sh_rc lose(const char *folder, const char *path, bool node)
{
    int64_t begin = sh_now_ns();
    long from = size_of(path);
    int fd, rank;
    sh_rc rc;

    SH_TRY(sh_keep_connect(folder, 0, &fd));
    rc = sh_keep_lose(fd, node, &rank);
    close(fd);
    SH_TRY(rc);
    if (node)
        printf("drill: %s says nothing any more; the log has step %lld\n", sh_wire_node(),
               (long long)newest_step(path, 0));
    else
        printf("drill: rank %d on %s was killed; the log has step %lld\n", rank, sh_wire_node(),
               (long long)newest_step(path, 0));
    fflush(stdout);
    return wait_for_steps(path, from, begin);
}

sh_rc sh_cmd_drill(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const char *what = sh_cmd_option(cmd, args, "--lose");
    struct sh_config cfg;
    char *path;
    sh_rc rc;

    SH_TRY(sh_cmd_config(args, NULL, &cfg));
    if (!what || (strcmp(what, "rank") != 0 && strcmp(what, "node") != 0))
        return sh_fail(SH_E_USAGE, "sherd drill: give --lose rank or --lose node");
    path = sh_path_join(cfg.job.dump_folder, "metrics.jsonl");
    rc = lose(cfg.job.dump_folder, path, strcmp(what, "node") == 0);
    free(path);
    return rc;
}
