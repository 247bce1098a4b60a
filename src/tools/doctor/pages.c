/* Reports the pages of a node's memory, and memory that belongs to no processor of it. AArch64 has kernels with pages of 4
 * and of 64 KiB. On hosts with a coherent link to their GPUs (NVIDIA's Grace) the memory of a GPU is a node of the host's
 * memory: the kernel may place what the host allocates there, and counts it as free. */
#include "src/tools/doctor/doctor.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NODES = 256, LINE = 256, HUGE = 64 };

/* The first line of a file that begins with `begin`, without its end; "" if there is none. */
static const char *line_of(const char *root, const char *path, const char *begin, char line[LINE])
{
    char *name = sh_strfmt("%s%s", root, path);
    FILE *in = fopen(name, "r");
    bool found = false;

    while (in && !found && fgets(line, LINE, in))
        found = strncmp(line, begin, strlen(begin)) == 0;
    line[found ? strcspn(line, "\n") : 0] = '\0';
    if (in)
        fclose(in);
    free(name);
    return line;
}

/* Whether the driver of a GPU says that its memory is this node. */
static bool is_of_gpu(const char *root, int node)
{
    char *pattern = sh_strfmt("%s/proc/driver/nvidia/gpus/*/numa_status", root), line[LINE];
    bool found = false;
    glob_t files;

    if (glob(pattern, 0, NULL, &files) == 0) {
        for (size_t i = 0; i < files.gl_pathc; i++) {
            const char *text = line_of("", files.gl_pathv[i], "Node:", line);

            found |= text[0] && atoi(text + strlen("Node:")) == node;
        }
        globfree(&files);
    }
    free(pattern);
    return found;
}

/* KiB of memory of a node that has no processors. */
static long long far_kib(const char *root, int node)
{
    char *list = sh_strfmt("/sys/devices/system/node/node%d/cpulist", node);
    char *info = sh_strfmt("/sys/devices/system/node/node%d/meminfo", node);
    char line[LINE];
    long long kib = 0;

    if (sscanf(line_of(root, info, "Node", line), "Node %*d MemTotal: %lld", &kib) != 1 ||
        line_of(root, list, "", line)[0])
        kib = 0;
    free(list);
    free(info);
    return kib;
}

/* "huge pages of 2.0 MiB: madvise" */
static void say_huge(const char *root, char text[HUGE])
{
    char size[LINE], enabled[LINE], bytes[SH_STR_SHORT], *word;

    line_of(root, "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "", size);
    line_of(root, "/sys/kernel/mm/transparent_hugepage/enabled", "", enabled);
    word = strchr(enabled, '[');
    if (word)
        word[strcspn(word, "]")] = '\0';
    text[0] = '\0';
    if (size[0])
        snprintf(text, HUGE, "; huge pages of %s: %.16s", sh_str_bytes(atoll(size), bytes),
                 word ? word + 1 : "unknown");
}

bool sh_doctor_say_pages(const char *root, long page_bytes, char text[SH_DOCTOR_PAGES])
{
    char line[LINE], bytes[SH_STR_SHORT], huge[HUGE];
    bool moves = atoi(line_of(root, "/proc/sys/kernel/numa_balancing", "", line)) > 0, small = page_bytes < 65536;
    long long kib = 0;
    int gpus = 0, nodes = 0;
    size_t n;

    for (int node = 0; node < NODES; node++) {
        long long here = far_kib(root, node);

        kib += here;
        nodes += here > 0;
        gpus += here > 0 && is_of_gpu(root, node);
    }
    say_huge(root, huge);
    snprintf(text, SH_DOCTOR_PAGES, "%ld KiB pages%s", page_bytes / 1024, huge);
    n = strlen(text);
    if (nodes)
        snprintf(text + n, SH_DOCTOR_PAGES - n,
                 "; %s of the host's memory, which the row memory counts, have no processors: %s%s%s",
                 sh_str_bytes(kib * 1024, bytes),
                 gpus == nodes ? "they are GPUs', over a coherent link" : "GPUs' over a coherent link, or CXL",
                 gpus && moves ? "; kernel.numa_balancing=1 moves pages there and back: set it to 0" : "",
                 gpus && small ? "; NVIDIA advises a kernel with 64 KiB pages" : "");
    return gpus && (moves || small);
}

sh_rc sh_doctor_pages(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    char text[SH_DOCTOR_PAGES];
    bool noteworthy = sh_doctor_say_pages("", sysconf(_SC_PAGESIZE), text);

    return sh_doctor_words(d, "pages", text, noteworthy, row);
}
