#include "src/tools/doctor/doctor.h"
#include "src/tools/doctor/report.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/device/nvml.h"
#include "src/plan/request.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Longer than any check takes on a healthy machine. */
enum { CHECK_SECONDS = 60 };

/* A check comes after those that it depends on: ranks that do not all see one folder cannot measure it together. */
/* clang-format off */
static const struct {
    const char *name;
    sh_doctor_check *run;
} checks[] = {
    {"ranks", sh_doctor_ranks},     {"program", sh_doctor_program}, {"instructions", sh_doctor_instructions},
    {"pages", sh_doctor_pages},
    {"cores", sh_doctor_cores},     {"load", sh_doctor_load},       {"clocks", sh_doctor_clocks},
    {"data", sh_doctor_data},       {"folder", sh_doctor_folder},   {"space", sh_doctor_space},
    {"writing", sh_doctor_writing}, {"memory", sh_doctor_memory},   {"scratch", sh_doctor_scratch},
    {"keepers", sh_doctor_keepers}, {"links", sh_doctor_links},     {"collectives", sh_doctor_collectives},
};
/* clang-format on */
enum { CHECKS = sizeof checks / sizeof checks[0] };

/* A check that waits for a lost node would wait forever. The ranks are then in different checks: the rank that the
 * others wait for is in the earliest. */
static char hung[256];

/* A signal handler: only write() and _exit(). The text was prepared by watch(). */
static void say_hung(int signal)
{
    (void)signal;
    if (write(STDERR_FILENO, hung, strlen(hung)) < 0)
        _exit(SH_E_COMM);
    _exit(SH_E_COMM);
}

/* Sets a new text and a new alarm for each check. The alarm before is switched off first, since its handler reads the
 * text. */
static void watch(const struct sh_doctor *d, const char *check)
{
    alarm(0);
    snprintf(hung, sizeof hung, "sherd: error: doctor: rank %d on %s has waited %d s in the check \"%s\"\n",
             d->mesh->rank, d->mesh->host, CHECK_SECONDS, check);
    signal(SIGALRM, say_hung);
    alarm(CHECK_SECONDS);
}

/* Collective. How this rank's GPU reaches those of its node; what its driver does not tell stays unknown. */
static sh_rc find_ways(struct sh_doctor *d)
{
    int rank = d->mesh->rank;

    if (!d->device)
        return SH_OK;
    if (sh_nvml_open(d->gpu.info.bus) != SH_OK)
        sh_error_clear();
    for (int i = 0; i < sh_mesh_ranks(&d->mesh->shape); i++)
        if (i != rank && d->place[i].node == d->mesh->node && d->place[i].node_rank < SH_DOCTOR_GPUS)
            d->place[rank].way[d->place[i].node_rank] = (unsigned char)sh_nvml_way_to(d->place[i].bus);
    sh_nvml_close();
    SH_MPI(MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, d->place, sizeof *d->place, MPI_BYTE, MPI_COMM_WORLD));
    return SH_OK;
}

/* Collective. place [world], leader [nodes]: the first rank of each node. */
static sh_rc find_places(struct sh_doctor *d)
{
    struct sh_doctor_place mine = {.node = d->mesh->node, .node_rank = d->mesh->node_rank};

    snprintf(mine.host, sizeof mine.host, "%s", d->mesh->host);
    snprintf(mine.bus, sizeof mine.bus, "%s", d->gpu.info.bus);
    d->place = sh_calloc((size_t)sh_mesh_ranks(&d->mesh->shape), sizeof *d->place);
    d->leader = sh_calloc((size_t)d->mesh->n_nodes, sizeof *d->leader);
    /* Sent as bytes: all ranks run the same program, which an early check confirms. */
    SH_MPI(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, d->place, sizeof mine, MPI_BYTE, MPI_COMM_WORLD));
    for (int rank = 0; rank < sh_mesh_ranks(&d->mesh->shape); rank++)
        if (d->place[rank].node_rank == 0)
            d->leader[d->place[rank].node] = rank;
    return find_ways(d);
}

/* Collective. Opens what a run opens, but without a plan and its memory. */
static sh_rc open_doctor(const struct sh_config *cfg, struct sh_doctor *d)
{
    struct sh_mesh_request req;
    struct sh_mesh_shape shape;
    char why[256];
    bool gpu;

    if (sh_request_gpu(cfg, false, &gpu, why) != SH_OK)
        sh_error_clear(); /* left to the memory check to report */
    SH_TRY(sh_topology_find(cfg, gpu, &d->at));
    /* Opened as in training, so that an unusable GPU is noticed here. */
    if (d->at.gpu) {
        const struct sh_device *device = sh_request_device(cfg, true);

        SH_TRY(sh_topology_open_gpu(cfg, device, &d->at, &d->gpu));
        d->device = device;
    }
    SH_TRY(sh_agree(sh_request_mesh(cfg, &d->at, &shape)));
    req = sh_request_axes(cfg, &d->at);
    SH_TRY(sh_mesh_create(&req, &d->mesh));
    d->folder = sh_path_join(cfg->job.dump_folder, cfg->checkpoint.folder);
    return find_places(d);
}

/* The alarm is switched off after the last check. Also for a doctor that was only partly opened. */
static void close_doctor(struct sh_doctor *d)
{
    alarm(0);
    free(d->place);
    free(d->leader);
    free(d->folder);
    if (d->device)
        d->device->close();
    sh_mesh_destroy(d->mesh);
}

/* Rank 0 prints at once, so that findings before a hang are on the screen. */
static void print(const struct sh_doctor *d, const char *name, const struct sh_doctor_row *row)
{
    static const char *const state[] = {[SH_DOCTOR_GOOD] = "ok", [SH_DOCTOR_NOTE] = "note", [SH_DOCTOR_BAD] = "BAD"};

    if (d->mesh->rank != 0)
        return;
    printf("%-12s %-5s %s\n", name, state[row->state], row->text);
    fflush(stdout); /* the next check may be the one that hangs */
    if (d->report)
        sh_doctor_report_row(d, d->report, name, state[row->state], row->text);
}

/* All checks run even after a bad one; the first bad one becomes the exit status. */
static sh_rc examine(const struct sh_doctor *d)
{
    struct sh_doctor_row first = {0};
    const char *name = NULL;

    for (int i = 0; i < CHECKS; i++) {
        struct sh_doctor_row row = {0};

        watch(d, checks[i].name);
        SH_TRY(checks[i].run(d, &row));
        print(d, checks[i].name, &row);
        if (row.state == SH_DOCTOR_BAD && !name) {
            name = checks[i].name;
            first = row;
        }
    }
    return name ? sh_fail(first.rc, "doctor: %s: %s", name, first.text) : SH_OK;
}

/* Rank 0 writes; all ranks learn whether it could. */
static sh_rc open_report(struct sh_doctor *d, const struct sh_doctor_report_request *report)
{
    if (!report->path)
        return SH_OK;
    return sh_agree(d->mesh->rank == 0 ? sh_doctor_report_begin(d, report->path, report->about, &d->report) : SH_OK);
}

/* A full disk is noticed here. */
static sh_rc close_report(struct sh_doctor *d, const char *path)
{
    bool failed = d->report && ferror(d->report);

    if (d->report && fclose(d->report) != 0)
        failed = true;
    return failed ? sh_fail(SH_E_DATA, "write %s: %s", path, strerror(errno)) : SH_OK;
}

/* Collective. Prints a line for each check and returns the first failure. */
sh_rc sh_doctor_run(const struct sh_config *cfg, const struct sh_doctor_report_request *report)
{
    struct sh_doctor d = {.cfg = cfg};
    sh_rc rc = open_doctor(cfg, &d);

    if (rc == SH_OK)
        rc = open_report(&d, report);
    if (rc == SH_OK) {
        sh_rc written, examined = examine(&d);

        written = close_report(&d, report->path);
        rc = sh_agree(examined != SH_OK ? examined : written);
    }
    close_doctor(&d);
    return rc;
}
