/* Shared by the files of src/tools/report: reading, and the sections of the page. Inside src/tools/report; local. */
#ifndef SH_REPORT_PARTS_H
#define SH_REPORT_PARTS_H

#include "src/tools/report/report.h"

#include <stdio.h>

/* Add the run in `folder` to *r, under the path by which it was found. Errors as for sh_report_open(). */
sh_rc sh_report_add_run(struct sh_report *r, const char *folder, const char *path);
void sh_report_free_run(struct sh_report_run *run);

/* Read metrics.jsonl into the steps of *run, and compute its figures; the first `warm_up` steps of a start are not
 * measured. Errors: SH_E_DATA, "path:line: ...". */
sh_rc sh_report_read_metrics(const char *path, int64_t warm_up, struct sh_report_run *run);

/* Read study.yaml of the folder, if it exists. Errors: SH_E_DATA. */
sh_rc sh_report_read_study(const char *folder, struct sh_report_study *s);
void sh_report_free_study(struct sh_report_study *s);

/* Read predicted.json of the run in `folder`, if it exists. Errors: SH_E_DATA: the file is not a prediction. */
sh_rc sh_report_read_prediction(const char *folder, struct sh_report_prediction *p);
void sh_report_free_prediction(struct sh_report_prediction *p);

/* Read progress.json of the run in `folder`, if it exists, and why the run ended: according to the run itself or, before
 * its first step, its job script (FOLDER/chain) or its log next to it (FOLDER.out). */
void sh_report_read_end(const char *folder, struct sh_report_run *run);
/* What FOLDER/chain, the file of the job scripts, says: why the script no longer starts the run, "" while it may; NULL:
 * no script. */
char *sh_report_said_by_script(const char *folder);
/* over.c: why a run with steps left will do none of them; NULL: it continues, waits to be started, or nobody can tell.
 * It is over if its job script says that it has given up; or, without a script, if progress.json has an exit status, or
 * names a process of this host that is gone; or if none of its files has changed for 15 minutes (a day if a script may
 * start it again) and for ten times its longest step. Freed with free(). */
char *sh_report_why_over(const char *folder, const struct sh_report_run *run);

/* Find the series of runs that scale. */
void sh_report_find_series(struct sh_report *r);

/* Whether two runs, of one report or of two, do the same work on equal ranks. */
bool sh_report_same_point(const struct sh_report_run *a, const struct sh_report_run *b);

/* Whether two runs differ in how they are sharded, and in nothing else that changes the work of a step. */
bool sh_report_same_but_sharding(const struct sh_report_run *a, const struct sh_report_run *b);

/* Whether a run of the report waited for moves between memory and a file. */
bool sh_report_offloads(const struct sh_report *r);

/* The validation with the lowest loss, the first of equal ones; NULL if none is finite. */
const struct sh_report_point *sh_report_best(const struct sh_report_run *run);

/* What a curve shows of a step; NAN: nothing. */
typedef double sh_report_value_fn(const struct sh_report_step *s);

/* overlap.c: a sentence about each group of runs whose curves are nowhere further apart than `eye`; and the number of
 * later curves that lie on that of each run, freed with free(). */
void sh_report_say_overlaps(FILE *out, const struct sh_report *r, sh_report_value_fn *value, double eye);
int *sh_report_count_above(const struct sh_report *r, sh_report_value_fn *value, double eye);

/* page.c: what `write` writes, to memory and then to the file in one step, so that a reader never sees half of it.
 * Errors: SH_E_DATA, SH_E_MEMORY. */
sh_rc sh_report_save(const struct sh_report *r, void write(FILE *out, const struct sh_report *r), const char *path);

/* The speeds of the measured steps since the number of ranks last changed, ascending; freed with free(). */
double *sh_report_speeds(const struct sh_report_run *run, int *n);

/* 0 means "not known" in a report, and NAN in tables and charts. */
double sh_report_known(double v);

/* Writes in words how far the run is, and why it does not go on. */
void sh_report_state(FILE *out, const struct sh_report_run *run);

/* The sections, in the order of the page. Each writes nothing if it has nothing to show. */
void sh_report_figures(FILE *out, const struct sh_report *r);
void sh_report_identities(FILE *out, const struct sh_report *r);
void sh_report_curves(FILE *out, const struct sh_report *r);
void sh_report_scaling(FILE *out, const struct sh_report *r);
void sh_report_flags(FILE *out, const struct sh_report *r);
void sh_report_equals(FILE *out, const struct sh_report *r);
void sh_report_predictions(FILE *out, const struct sh_report *r);
void sh_report_reach(FILE *out, const struct sh_report *r);
void sh_report_time(FILE *out, const struct sh_report *r);
void sh_report_memory(FILE *out, const struct sh_report *r);
void sh_report_results(FILE *out, const struct sh_report *r);
void sh_report_configs(FILE *out, const struct sh_report *r);

#endif
