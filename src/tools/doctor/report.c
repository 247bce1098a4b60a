/* A report that can be posted: everything a helper wants to know about the system, minus private data. Two rules:
 *
 *     text        /home/ada/lib/libmpi.so.40 on gpu07  ->  (path)/libmpi.so.40 on node0
 *     variables   shown if short, of plain characters, and without the name of a host or of the user */
#include "src/tools/doctor/report.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <ctype.h>
#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { VALUE_BYTES = 64 };

/* Variables of the software that a job depends on. */
static const char *const prefixes[] = {
    "CUDA_",  "DNNL_", "FI_",   "GOMP_",  "HDF5_",  "HWLOC_", "I_MPI_", "KMP_",       "MALLOC_",
    "MPICH_", "MPIR_", "MV2_",  "NCCL_",  "OMPI_",  "OMP_",   "ONEDNN", "OPENBLAS_",  "PMIX_",
    "PMI_",   "PSM2_", "PSM3_", "ROMIO_", "SHERD_", "SLURM_", "UCX_",   "LD_PRELOAD", "LD_LIBRARY_PATH",
};

/* ---- private parts ---- */

/* Only whole words are compared: a name of three letters could be part of any word. */
static bool is_word_character(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-';
}

/* Whether `name` is at `at` as a whole word. */
static bool stands_at(const char *text, const char *at, const char *name)
{
    size_t length = strlen(name);

    return length && !strncmp(at, name, length) && !is_word_character(at[length]) &&
           (at == text || !is_word_character(at[-1]));
}

/* Length of the host or user name that starts at `at`, 0 for none; writes its replacement. */
static size_t find_name(int n, const char *const *hosts, const char *user, const char *text, const char *at, FILE *out)
{
    for (int i = 0; i < n; i++)
        if (stands_at(text, at, hosts[i])) {
            fprintf(out, "node%d", i);
            return strlen(hosts[i]);
        }
    if (stands_at(text, at, user)) {
        fputs("USER", out);
        return strlen(user);
    }
    return 0;
}

/* "GB/s" is not a path. */
static bool is_rate(const char *word, size_t length)
{
    return length > 2 && word[0] != '/' && word[0] != '.' && !strncmp(word + length - 2, "/s", 2);
}

/* Length of the path that starts at `at`, 0 for none. Writes its last part, to identify the library or file. */
static size_t find_path(int n, const char *const *hosts, const char *user, const char *text, const char *at, FILE *out)
{
    size_t length = strcspn(at, " \t\n\"'(),;:=");
    const char *slash = memrchr(at, '/', length);
    char *last, *safe;

    if (!slash || (at > text && !strchr(" \t\n\"'(),;:=", at[-1])) || is_rate(at, length))
        return 0;
    last = strndup(slash + 1, length - (size_t)(slash + 1 - at));
    safe = last ? sh_doctor_redact(n, hosts, user, last) : NULL;
    fprintf(out, "(path)/%s", safe ? safe : "");
    free(last);
    free(safe);
    return length;
}

/* Looks for paths first, since they may contain names. */
char *sh_doctor_redact(int n, const char *const *hosts, const char *user, const char *text)
{
    char *out = NULL;
    size_t bytes, skip;
    FILE *stream = open_memstream(&out, &bytes);

    for (const char *at = text; stream && *at; at += skip) {
        skip = find_path(n, hosts, user, text, at, stream);
        skip = skip ? skip : find_name(n, hosts, user, text, at, stream);
        if (!skip) {
            fputc(*at, stream);
            skip = 1;
        }
    }
    if (stream)
        fclose(stream);
    return out ? out : sh_strdup("");
}

/* Stricter than for text: a value is shown whole or not at all, since the contents of a variable are unknown. */
bool sh_doctor_shown(int n, const char *const *hosts, const char *user, const char *value)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789,+-_";

    if (strlen(value) > VALUE_BYTES || value[strspn(value, plain)])
        return false;
    for (const char *at = value; *at; at++) {
        for (int i = 0; i < n; i++)
            if (hosts[i][0] && !strncmp(at, hosts[i], strlen(hosts[i])))
                return false;
        if (user[0] && !strncmp(at, user, strlen(user)))
            return false;
    }
    return true;
}

/* ---- the file ---- */

/* Names that must not be in the file: the hosts of all nodes, and the user. */
struct names {
    int n;
    const char **hosts;
    const char *user;
};

/* Lent from d and the environment. Freed with free(hosts). */
static struct names names_of(const struct sh_doctor *d)
{
    const struct passwd *user = getpwuid(getuid());
    struct names names = {.n = d->mesh->n_nodes, .user = user ? user->pw_name : ""};

    names.hosts = sh_calloc((size_t)names.n, sizeof *names.hosts);
    for (int node = 0; node < names.n; node++)
        names.hosts[node] = sh_doctor_host(d, node);
    return names;
}

/* All output of the program about itself, its configuration and its checks goes through here: it may name files and
 * hosts. */
static void put(const struct names *names, FILE *out, const char *text)
{
    char *safe = sh_doctor_redact(names->n, names->hosts, names->user, text);

    fputs(safe, out);
    free(safe);
}

/* Writes the first line of a file that starts with `begin`. Files of /proc have no size, so they are read line by line.
 * */
static void put_line(FILE *out, const char *path, const char *begin)
{
    FILE *in = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;

    while (in && getline(&line, &room, in) > 0)
        if (!strncmp(line, begin, strlen(begin))) {
            fputs(line, out);
            break;
        }
    free(line);
    if (in)
        fclose(in);
}

/* Describes the node of rank 0. The kernel's name of the machine is left out. */
static void put_system(FILE *out)
{
    struct utsname system;

    fputs("\n== system of the first node\n", out);
    if (uname(&system) == 0)
        fprintf(out, "%s %s %s\n", system.sysname, system.release, system.machine);
    put_line(out, "/etc/os-release", "PRETTY_NAME");
    put_line(out, "/proc/cpuinfo", "model name");
    put_line(out, "/proc/cpuinfo", "flags");
    put_line(out, "/proc/meminfo", "MemTotal");
    put_line(out, "/proc/self/status", "Cpus_allowed_list");
    fprintf(out, "page size %ld, cores online %ld\n", sysconf(_SC_PAGESIZE), sysconf(_SC_NPROCESSORS_ONLN));
}

/* Writes the names of the files that are mapped for execution, once each, on one line: there are hundreds. */
static void put_libraries(FILE *out)
{
    char line[4096], before[4096] = "";
    FILE *maps = fopen("/proc/self/maps", "r");

    fputs("\n== libraries\n", out);
    while (maps && fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/'), *name = path ? strrchr(line, '/') + 1 : NULL;

        if (!path || !strstr(line, "r-xp") || !strcmp(name, before))
            continue;
        fprintf(out, "%s%.*s", *before ? " " : "", (int)strcspn(name, "\n"), name);
        snprintf(before, sizeof before, "%s", name);
    }
    fputc('\n', out);
    if (maps)
        fclose(maps);
}

static bool has_prefix(const char *variable)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (!strncmp(variable, prefixes[i], strlen(prefixes[i])))
            return true;
    return false;
}

/* Variables are listed even if their values are not shown, since it helps to know that they are set. */
static void put_environment(const struct names *names, FILE *out)
{
    fputs("\n== environment\n", out);
    for (char **variable = environ; *variable; variable++) {
        const char *value = strchr(*variable, '=');

        if (value && has_prefix(*variable))
            fprintf(out, "%.*s=%s\n", (int)(value - *variable), *variable,
                    sh_doctor_shown(names->n, names->hosts, names->user, value + 1) ? value + 1 : "(not shown)");
    }
}

/* The description is hidden, since it is free text. */
static sh_rc put_configuration(const struct names *names, const struct sh_config *cfg, FILE *out)
{
    struct sh_config shown = *cfg;
    char *text;

    if (shown.job.description[0])
        snprintf(shown.job.description, sizeof shown.job.description, "(not shown)");
    SH_TRY(sh_config_print(&shown, &text));
    fputs("\n== configuration\n", out);
    put(names, out, text);
    free(text);
    return SH_OK;
}

/* Nothing is left behind if not even the beginning could be written. */
static void drop(const char *path, FILE **out)
{
    struct stat st;

    fclose(*out);
    *out = NULL;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0)
        unlink(path);
}

/* Flushed before the checks, one of which may hang: the file then shows which was the last. */
sh_rc sh_doctor_report_begin(const struct sh_doctor *d, const char *path, void (*about)(FILE *out), FILE **out)
{
    struct names names = names_of(d);
    char *text = NULL, ranks[SH_STR_SHORT], nodes[SH_STR_SHORT];
    size_t bytes;
    FILE *program = open_memstream(&text, &bytes);
    sh_rc rc = sh_open_output(path, "w", out);

    if (program) {
        about(program);
        fclose(program);
    }
    if (rc == SH_OK) {
        fputs("== program\n", *out);
        put(&names, *out, text ? text : "");
        put_system(*out);
        put_libraries(*out);
        put_environment(&names, *out);
        fprintf(*out, "\n== job\n%s on %s\n", sh_str_plural(sh_mesh_ranks(&d->mesh->shape), "rank", ranks),
                sh_str_plural(d->mesh->n_nodes, "node", nodes));
        if (d->device)
            fprintf(*out, "GPU of rank 0: %s\n", d->gpu.info.name);
        rc = put_configuration(&names, d->cfg, *out);
        fputs("\n== checks\n", *out);
        if (rc == SH_OK && fflush(*out) != 0)
            rc = sh_fail(SH_E_DATA, "write %s: %s", path, strerror(errno));
        if (rc != SH_OK)
            drop(path, out);
    }
    free(text);
    free(names.hosts);
    return rc;
}

/* Looks the names up again for each row: checks may take minutes, and nothing is kept between them. */
void sh_doctor_report_row(const struct sh_doctor *d, FILE *out, const char *name, const char *state, const char *text)
{
    struct names names = names_of(d);

    fprintf(out, "%-12s %-5s ", name, state);
    put(&names, out, text);
    fputc('\n', out);
    fflush(out);
    free(names.hosts);
}
