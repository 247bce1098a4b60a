/* Finds the runs below a folder and reads them. They are sorted by name, with numbers compared as numbers, so that the
 * same folder always gives the same page. */
#include "src/tools/report/parts.h"

#include "src/base/file.h"
#include "src/base/mem.h"

#include <errno.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLE_BYTES = 64 << 10 };

/* n2 comes before n10. */
static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strverscmp((*a)->fts_name, (*b)->fts_name);
}

/* Any kind of file counts; the code that opens it checks. */
static bool has(const char *folder, const char *name)
{
    char *path = sh_path_join(folder, name);
    bool found = access(path, F_OK) == 0;

    free(path);
    return found;
}

/* The last `parts` parts of a path. */
static const char *tail(const char *path, int parts)
{
    const char *at = path + strlen(path);

    for (; at > path; at--)
        if (at[-1] == '/' && --parts == 0)
            break;
    return at;
}

/* As many parts of the i-th path as no other path ends with. */
static const char *unique_tail(char **paths, int n, int i)
{
    const char *end = tail(paths[i], 1);

    for (int k = 0, parts = 1; k < n && end > paths[i]; k++)
        if (k != i && !strcmp(tail(paths[k], parts), end)) {
            end = tail(paths[i], ++parts);
            k = -1;
        }
    return end;
}

/* Names were paths until all are known. They become short, since pages are shown to others. */
static void shorten_names(struct sh_report *r)
{
    char **paths = sh_calloc((size_t)r->n_runs, sizeof *paths);

    for (int i = 0; i < r->n_runs; i++)
        paths[i] = r->runs[i].path;
    for (int i = 0; i < r->n_runs; i++) {
        free(r->runs[i].name);
        r->runs[i].name = sh_strdup(strcmp(paths[i], r->folder) ? unique_tail(paths, r->n_runs, i) : r->name);
    }
    free(paths);
}

/* The last part of the folder's path, also of "." */
static char *name_of(const char *folder)
{
    char *path = realpath(folder, NULL), *name = sh_strdup(tail(path ? path : folder, 1));

    free(path);
    return name;
}

/* Metrics make a folder a run; a configuration alone may be anything. */
static sh_rc visit(struct sh_report *r, FTS *walk, FTSENT *at)
{
    if (!has(at->fts_accpath, "metrics.jsonl"))
        return SH_OK;
    if (!has(at->fts_accpath, "config.yaml"))
        return sh_fail(SH_E_DATA, "%s: metrics.jsonl without the config.yaml that a run writes next to it",
                       at->fts_path);
    fts_set(walk, at, FTS_SKIP); /* checkpoints are not runs */
    return sh_report_add_run(r, at->fts_accpath, at->fts_path);
}

/* fts reports errors as entries; a folder that cannot be read ends the report, because a run might be in it. */
static sh_rc visit_all(struct sh_report *r, FTS *walk)
{
    FTSENT *at;

    for (errno = 0; (at = fts_read(walk)); errno = 0) {
        if (at->fts_info == FTS_D)
            SH_TRY(visit(r, walk, at));
        else if (at->fts_info == FTS_DNR || at->fts_info == FTS_ERR || at->fts_info == FTS_NS)
            return sh_fail(SH_E_DATA, "%s: %s", at->fts_path, strerror(at->fts_errno));
    }
    return errno ? sh_fail(SH_E_DATA, "%s: %s", r->folder, strerror(errno)) : SH_OK;
}

/* Only the given folder may be a link: a link to a parent folder would be walked forever. */
static sh_rc find_runs(struct sh_report *r)
{
    char *roots[] = {r->folder, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
    sh_rc rc;

    if (!walk)
        return sh_fail(SH_E_DATA, "%s: %s", r->folder, strerror(errno));
    rc = visit_all(r, walk);
    fts_close(walk);
    if (rc == SH_OK && !r->n_runs)
        return sh_fail(SH_E_DATA, "%s: no run in it or below it; a run is a folder with config.yaml and metrics.jsonl",
                       r->folder);
    return rc;
}

sh_rc sh_report_add_sample(struct sh_report *r, const char *path)
{
    return sh_read_file(path, SAMPLE_BYTES, &r->sample, NULL);
}

sh_rc sh_report_open(const char *folder, struct sh_report **out)
{
    struct sh_report *r = sh_calloc(1, sizeof *r);
    sh_rc rc;

    r->folder = sh_strdup(folder);
    /* "runs/" becomes "runs" */
    for (size_t n = strlen(folder); n > 1 && r->folder[n - 1] == '/'; n--)
        r->folder[n - 1] = '\0';
    SH_TRY_OUT(sh_report_read_study(r->folder, &r->study));
    r->name = name_of(r->folder);
    SH_TRY_OUT(find_runs(r));
    shorten_names(r);
    sh_report_find_series(r);
    *out = r;
    return SH_OK;
out:
    sh_report_close(r);
    return rc;
}

/* Accepts NULL, and a report that was read only in part. */
void sh_report_close(struct sh_report *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_runs; i++)
        sh_report_free_run(&r->runs[i]);
    for (int i = 0; i < r->n_series; i++) {
        free(r->series[i].label);
        free(r->series[i].runs);
        free(r->series[i].at);
    }
    sh_report_free_study(&r->study);
    free(r->runs);
    free(r->series);
    free(r->folder);
    free(r->name);
    free(r->sample);
    free(r);
}
