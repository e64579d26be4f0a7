/** @file doctor.h  What `wherry doctor` finds out about a machine, a finding after another. */
#ifndef WH_CLI_DOCTOR_H
#define WH_CLI_DOCTOR_H

#include <stddef.h>

enum { WH_FINDINGS_MAX = 128, WH_FINDING_TEXT_MAX = 256, WH_ADVICE_MAX = 640 };

/** How good a finding is. */
typedef enum wh_finding_level {
    WH_FINDING_FACT, /**< Neither good nor bad. */
    WH_FINDING_GOOD,
    WH_FINDING_BAD, /**< Something is slower than it need be, or does not work; the advice says what to do. */
} wh_finding_level;

typedef struct wh_finding {
    const char *area; /**< "permissions" */
    char name[64];
    char value[WH_FINDING_TEXT_MAX];
    char advice[WH_ADVICE_MAX]; /**< "" where there is nothing to do. */
    wh_finding_level level;
} wh_finding;

typedef struct wh_findings {
    size_t count;
    wh_finding items[WH_FINDINGS_MAX];
} wh_findings;

/** Adds one; the texts are copied. @param advice  NULL for none. */
void wh_finding_add(wh_findings *findings, const char *area, const char *name, wh_finding_level level,
                    const char *advice, const char *format, ...) __attribute__((format(printf, 6, 7)));

/** What lets one process read another's memory, or forbids it. */
void wh_doctor_permissions(wh_findings *findings);

/** Huge pages, shared memory, how much memory may be pinned. */
void wh_doctor_memory(wh_findings *findings);

/** Interfaces and sockets. */
void wh_doctor_network(wh_findings *findings);

/** UCX, CUDA, NCCL: which versions are found. */
void wh_doctor_libraries(wh_findings *findings);

/** Variables of the environment that Wherry heeds. Secrets are not shown. */
void wh_doctor_settings(wh_findings *findings);

#endif
