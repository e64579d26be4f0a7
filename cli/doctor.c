/* `wherry doctor`: what this machine has, which lane would be used, and why not a better one. */
#include "doctor.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <wherry/base.h>

#include "command.h"
#include "interrupt.h"
#include "json_out.h"
#include "show.h"
#include "trial.h"

enum { TRIAL_BYTES = 16 << 20 };

typedef struct doctor_options {
    wh_common common;
    const char *group;
} doctor_options;

static const wh_option options_taken[] = {
    {"group", 'g', WH_OPTION_TEXT, offsetof(doctor_options, group), "ADDRESS",
     "try the lanes between ranks 0 and 1 of this group, such as env://, in which every rank runs this command; rank 0 "
     "tells "
     "(default: two processes here)",
     0, 0, NULL},
    {.name = NULL},
};

static int run(int argc, char **argv);

const wh_command wh_command_doctor = {
    .name = "doctor",
    .summary = "tell what this machine has, which lane would be used, and why not a better one",
    .operands = "",
    .text =
        "Looks at what decides how fast checkpoints move: permissions to read another process's memory, huge pages, "
        "interfaces, and the versions of UCX, CUDA and NCCL that are found. Then two processes try each lane for real. "
        "Lines that begin with ! are worth mending, and say how.\n\n"
        "Nothing is changed. `wherry bench` also measures.",
    .options = options_taken,
    .json = true,
    .examples = "wherry doctor\n"
                "wherry doctor --json | jq .lane\n"
                "# between two hosts, on each of them:\n"
                "torchrun --nnodes 2 --nproc-per-node 1 --no-python wherry doctor --group env://\n",
    .run = run,
};

/* ---- the lanes ---- */

static const wh_trial_lane *chosen(const wh_trial *trial) {
    return trial->lanes[0].status == WHERRY_OK ? trial->lanes : NULL;
}

static void add_lanes(wh_findings *findings, const wh_trial *trial) {
    const wh_trial_lane *taken = chosen(trial);
    for (size_t i = 1; i < trial->count; i++) {
        const wh_trial_lane *lane = trial->lanes + i;
        if (lane->status == WHERRY_OK) {
            bool used = taken && strcmp(taken->taken, lane->name) == 0;
            wh_finding_add(findings, "lanes", lane->name, WH_FINDING_GOOD, NULL, "works%s",
                           used ? "; would be used" : "");
        } else {
            wh_finding_add(findings, "lanes", lane->name, lane->refused ? WH_FINDING_BAD : WH_FINDING_FACT,
                           lane->reason, "does not work%s", lane->refused ? "" : " here");
        }
    }
    if (!taken) {
        wh_finding_add(findings, "lanes", "all", WH_FINDING_BAD, trial->lanes[0].reason, "none works");
    }
}

/* ---- telling ---- */

static void print_text(const wh_findings *findings, const wh_trial *trial, bool quiet) {
    const char *area = "";
    size_t bad = 0;
    for (size_t i = 0; i < findings->count; i++) {
        const wh_finding *one = findings->items + i;
        bad += one->level == WH_FINDING_BAD;
        if (quiet && one->level != WH_FINDING_BAD) {
            continue;
        }
        if (strcmp(area, one->area) != 0) {
            printf("%s%s\n", *area ? "\n" : "", one->area);
            area = one->area;
        }
        printf("  %s %-18s  %s\n", one->level == WH_FINDING_BAD ? "!" : " ", one->name, one->value);
        if (*one->advice) {
            printf("%24s", "");
            wh_print_wrapped(stdout, one->advice, 24, 110);
        }
    }
    const wh_trial_lane *taken = chosen(trial);
    printf("%s%s%s%s", quiet && !*area ? "" : "\n", taken ? "a checkpoint would go over the lane " : "no lane works",
           taken ? taken->taken : "", taken ? "" : "");
    printf(bad ? "; %zu thing%s to mend\n" : "\n", bad, bad == 1 ? "" : "s");
}

static void print_json(const wh_findings *findings, const wh_trial *trial) {
    static const char *const levels[] = {"fact", "good", "bad"};
    wh_json json = {.out = stdout};
    const wh_trial_lane *taken = chosen(trial);
    wh_json_open(&json, NULL, '{');
    wh_json_text(&json, "version", wherry_version());
    wh_json_open(&json, "findings", '[');
    for (size_t i = 0; i < findings->count; i++) {
        const wh_finding *one = findings->items + i;
        wh_json_open(&json, NULL, '{');
        wh_json_text(&json, "area", one->area);
        wh_json_text(&json, "name", one->name);
        wh_json_text(&json, "level", levels[one->level]);
        wh_json_text(&json, "value", one->value);
        wh_json_text(&json, "advice", one->advice);
        wh_json_close(&json, '}');
    }
    wh_json_close(&json, ']');
    if (taken) {
        wh_json_text(&json, "lane", taken->taken);
    } else {
        wh_json_null(&json, "lane");
    }
    wh_json_close(&json, '}');
}

static void add_machine(wh_findings *findings) {
    struct utsname names;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    char size[WH_SIZE_TEXT_MAX];
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (uname(&names) == 0) {
        wh_finding_add(findings, "machine", "kernel", WH_FINDING_FACT, NULL, "%s %s, %s", names.sysname, names.release,
                       names.machine);
    }
    wh_finding_add(findings, "machine", "processors", WH_FINDING_FACT, NULL, "%ld", processors);
    wh_finding_add(findings, "machine", "memory", WH_FINDING_FACT, NULL, "%s", wh_size_text(memory, size));
    wh_finding_add(findings, "machine", "wherry", WH_FINDING_FACT, NULL, "%s", wherry_version());
}

static int run(int argc, char **argv) {
    static wh_findings findings;
    static wh_trial trial;
    doctor_options options = {.group = NULL};
    wherry_error error;
    int code;
    if (!wh_options_parse(&wh_command_doctor, argc, argv, &options, NULL, &code)) {
        return code;
    }
    wh_interrupt_catch();
    wherry_log_set_level(options.common.verbose ? WHERRY_LOG_INFO : WHERRY_LOG_OFF);
    add_machine(&findings);
    wh_doctor_permissions(&findings);
    wh_doctor_memory(&findings);
    wh_doctor_network(&findings);
    wh_doctor_libraries(&findings);
    wh_doctor_settings(&findings);
    trial.group = options.group;
    trial.bytes = TRIAL_BYTES;
    wherry_status status = wh_trial_run(&trial, &error);
    if (wh_interrupt_code()) {
        return wh_interrupt_code();
    }
    if (status != WHERRY_OK) {
        return wh_fail_status(&wh_command_doctor, "the lanes could not be tried", &error);
    }
    if (trial.rank != 0) {
        return WH_EXIT_OK;
    }
    add_lanes(&findings, &trial);
    if (options.common.json) {
        print_json(&findings, &trial);
    } else {
        print_text(&findings, &trial, options.common.quiet);
    }
    for (size_t i = 0; i < findings.count; i++) {
        if (findings.items[i].level == WH_FINDING_BAD) {
            return WH_EXIT_FAILED;
        }
    }
    return WH_EXIT_OK;
}
