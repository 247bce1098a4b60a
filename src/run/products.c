#include "src/run/products.h"

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/mesh/mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNS = 4, MOST_BYTES = 1 << 20, SUM_BYTES = 21 /* "sum ", 16 digits, newline */ };

/* The file: two lines that say what it is for, a line for each call with its answer and the times of the first and the
 * chosen kernel in us, and a checksum of all that. */
struct text {
    char *data;
    size_t n;
};

/* Append a line; the text stays NUL-terminated. */
static void add(struct text *t, const char *line)
{
    size_t n = strlen(line);

    t->data = sh_realloc(t->data, t->n + n + 1, 1);
    memcpy(t->data + t->n, line, n + 1);
    t->n += n;
}

/* The first two lines name version, GPU and library: an answer is valid only for these. */
static void add_header(struct text *t, const struct sh_choices *of, const char *gpu)
{
    char line[256];

    snprintf(line, sizeof line, "sherd products 1\n%s, %s\n", gpu, of->library());
    add(t, line);
}

/* The last line. It detects a file that was cut or edited. */
static void sum_line(const char *data, size_t bytes, char line[SUM_BYTES + 1])
{
    snprintf(line, SUM_BYTES + 1, "sum %016llx\n", (unsigned long long)sh_hash64(data, bytes));
}

/* The answer for call i; -1: the text has none that the library offers. */
static int answer_in(const char *text, const struct sh_choices *of, int i)
{
    char name[SH_CHOICE_TEXT], line[SH_CHOICE_TEXT + 64];

    of->name(i, name);
    for (int which = 0; which < of->answers(i); which++) {
        snprintf(line, sizeof line, "\n%d %s us ", which, name);
        if (strstr(text, line))
            return which;
    }
    return -1;
}

/* Why the text cannot be used for this run; NULL: it can. */
static const char *why_not(const struct text *t, const struct sh_choices *of, const char *gpu)
{
    struct text header = {0};
    char sum[SUM_BYTES + 1];
    bool same;

    if (t->n < SUM_BYTES || strlen(t->data) != t->n)
        return "it is damaged";
    sum_line(t->data, t->n - SUM_BYTES, sum);
    if (strcmp(t->data + t->n - SUM_BYTES, sum) != 0)
        return "it is damaged";
    add_header(&header, of, gpu);
    same = strncmp(t->data, header.data, header.n) == 0;
    free(header.data);
    if (!same)
        return "it is for another GPU or another library";
    for (int i = 0; i < of->count(); i++)
        if (answer_in(t->data, of, i) < 0)
            return "it lacks a product of this run";
    return NULL;
}

/* The shortest time of several runs, in ns, after one that does not count; -1: the library cannot run it after all. */
static int64_t time_answer(const struct sh_device *device, int i, int which, void *queue, void *const event[2])
{
    int64_t least = INT64_MAX;

    for (int run = 0; run <= RUNS; run++) {
        int64_t ns;

        device->event_mark(event[0], queue);
        if (device->kernels->choices->attempt(i, which, queue) != SH_OK) {
            sh_error_clear();
            return -1;
        }
        device->event_mark(event[1], queue);
        device->event_wait(event[1]);
        ns = device->event_span_ns(event[0], event[1]);
        if (run > 0 && ns < least)
            least = ns;
    }
    return least;
}

struct best {
    int which;
    int64_t first_ns, ns;
};

static struct best fastest(const struct sh_device *device, int i, void *queue, void *const event[2])
{
    struct best best = {0};

    best.ns = best.first_ns = time_answer(device, i, 0, queue, event);
    for (int which = 1; which < device->kernels->choices->answers(i); which++) {
        int64_t ns = time_answer(device, i, which, queue, event);

        if (ns >= 0 && (ns < best.ns || best.ns < 0))
            best = (struct best){which, best.first_ns, ns};
    }
    return best;
}

/* Measure every product once, on a separate queue. Ranks other than 0 wait at the broadcast. */
static void measure(const struct sh_device *device, const char *gpu, struct text *t)
{
    const struct sh_choices *of = device->kernels->choices;
    void *queue = device->queue_create(false), *event[2] = {device->event_create(true), device->event_create(true)};
    char name[SH_CHOICE_TEXT], line[SH_CHOICE_TEXT + 64];
    int64_t began = sh_now_ns();
    int others = 0;

    add_header(t, of, gpu);
    for (int i = 0; i < of->count(); i++) {
        struct best best = fastest(device, i, queue, event);

        of->name(i, name);
        snprintf(line, sizeof line, "%d %s us %.1f %.1f\n", best.which, name, (double)best.first_ns / 1e3,
                 (double)best.ns / 1e3);
        add(t, line);
        others += best.which > 0;
    }
    sum_line(t->data, t->n, line);
    add(t, line);
    device->event_destroy(event[0]);
    device->event_destroy(event[1]);
    device->queue_destroy(queue);
    sh_log_info(
        "products of %d shapes measured in %.1f s: a kernel other than the first answer of %s is faster for %d of them",
        of->count(), sh_seconds_since(began), of->library(), others);
}

/* Read the file if it can be used; otherwise the text stays empty. */
static void read_text(const char *path, const struct sh_choices *of, const char *gpu, struct text *t)
{
    const char *why;

    if (access(path, F_OK) != 0)
        return;
    if (sh_read_file(path, MOST_BYTES, &t->data, &t->n) != SH_OK) {
        sh_log_warn("%s: measured again", sh_error_text());
        sh_error_clear();
        *t = (struct text){0};
        return;
    }
    why = why_not(t, of, gpu);
    if (!why)
        return;
    sh_log_warn("%s is measured again: %s", path, why);
    free(t->data);
    *t = (struct text){0};
}

/* Rank 0 only: ranks that chose different kernels would round differently, and replicas would drift apart. */
static sh_rc read_or_measure(const struct sh_device *device, const char *gpu, const char *folder, struct text *t)
{
    char *path = sh_path_join(folder, "products.txt");
    sh_rc rc = SH_OK;

    read_text(path, device->kernels->choices, gpu, t);
    if (!t->data) {
        measure(device, gpu, t);
        rc = sh_write_file_atomic(path, t->data, t->n);
    }
    free(path);
    return rc;
}

/* Collective. Rank 0 reads or measures, all others take its text. A call without an answer takes the library's first
 * choice. */
sh_rc sh_products_choose(const struct sh_device *device, const char *gpu, const char *folder, int rank)
{
    const struct sh_choices *of = device->kernels->choices;
    struct text t = {0};
    sh_rc rc;

    SH_REQUIRE(of);
    SH_TRY(sh_agree(rank == 0 ? read_or_measure(device, gpu, folder, &t) : SH_OK));
    SH_TRY(sh_mesh_bcast(&t.n, sizeof t.n, 0));
    if (rank != 0)
        t.data = sh_calloc(t.n + 1, 1);
    rc = sh_mesh_bcast(t.data, (long)t.n, 0);
    for (int i = 0; i < of->count() && rc == SH_OK; i++) {
        int which = answer_in(t.data, of, i);

        of->choose(i, which < 0 ? 0 : which);
    }
    free(t.data);
    return rc;
}
