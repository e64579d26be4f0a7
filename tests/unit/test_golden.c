/*
 * Golden manifests. Good ones are decoded and encoded to the same bytes. Bad ones give the listed
 * status.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>
#include <cmocka.h>

typedef struct file {
    char *bytes;
    size_t size;
} file;

static file read_file(const char *folder, const char *name, const char *ending) {
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s/%s%s", getenv("WHERRY_GOLDEN"), folder, name, ending);
    FILE *in = fopen(path, "rb");
    if (!in) {
        fail_msg("cannot open %s", path);
    }
    file content = {NULL, 0};
    size_t got;
    do {
        content.bytes = realloc(content.bytes, content.size + 65536);
        got = fread(content.bytes + content.size, 1, 65536, in);
        content.size += got;
    } while (got > 0);
    fclose(in);
    return content;
}

/** Decodes a copy of exactly this size, so that a sanitizer detects a read past the end. */
static wherry_status decode(const void *bytes, size_t size, wherry_prepared **prepared_p, wherry_error *error) {
    char *exact = malloc(size ? size : 1);
    memcpy(exact, bytes, size);
    wherry_status status = wherry_manifest_decode(exact, size, NULL, prepared_p, error);
    free(exact);
    return status;
}

static int is_manifest(const struct dirent *entry) {
    size_t length = strlen(entry->d_name);
    return length > 4 && strcmp(entry->d_name + length - 4, ".bin") == 0;
}

static void check_good(const char *name, const file *golden) {
    wherry_prepared *prepared;
    wherry_error error;
    if (decode(golden->bytes, golden->size, &prepared, &error) != WHERRY_OK) {
        fail_msg("%s: %s", name, error.message);
    }
    void *bytes;
    size_t size;
    assert_int_equal(wherry_manifest_encode(prepared, &bytes, &size, NULL), WHERRY_OK);
    if (size != golden->size || memcmp(bytes, golden->bytes, size) != 0) {
        fail_msg("%s: encoding the decoded state gives other bytes", name);
    }
    wherry_free(bytes);
    wherry_prepared_destroy(prepared);
}

static void check_cut(const char *name, const file *golden) {
    for (size_t size = 0; size < golden->size; size += 1 + golden->size / 400) {
        wherry_prepared *prepared;
        wherry_error error;
        wherry_status status = decode(golden->bytes, size, &prepared, &error);
        if (status != WHERRY_TRUNCATED) {
            fail_msg("%s truncated to %zu bytes: %s", name, size, wherry_status_name(status));
        }
    }
}

static void test_good_manifests_keep_their_bytes(void **state) {
    (void)state;
    char path[1024];
    snprintf(path, sizeof(path), "%s/good", getenv("WHERRY_GOLDEN"));
    struct dirent **entries;
    int count = scandir(path, &entries, is_manifest, alphasort);
    assert_true(count >= 25);
    for (int i = 0; i < count; i++) {
        file golden = read_file("good", entries[i]->d_name, "");
        check_good(entries[i]->d_name, &golden);
        check_cut(entries[i]->d_name, &golden);
        free(golden.bytes);
        free(entries[i]);
    }
    free(entries);
}

static void test_bad_manifests_give_their_status(void **state) {
    (void)state;
    file list = read_file("bad", "expected", ".tsv");
    list.bytes[list.size] = '\0';
    int count = 0;
    int wrong = 0;
    for (char *line = strtok(list.bytes, "\n"); line; line = strtok(NULL, "\n")) {
        char *expected = strchr(line, '\t');
        if (*line == '#' || !expected) {
            continue;
        }
        *expected++ = '\0';
        file golden = read_file("bad", line, ".bin");
        wherry_prepared *prepared = NULL;
        wherry_error error;
        wherry_status status = decode(golden.bytes, golden.size, &prepared, &error);
        if (strcmp(wherry_status_name(status), expected) != 0) {
            print_error("%s: %s instead of %s (%s)\n", line, wherry_status_name(status), expected,
                        status ? error.message : "");
            wrong++;
        } else {
            assert_true(error.status == status && error.message[0]);
        }
        wherry_prepared_destroy(prepared);
        free(golden.bytes);
        count++;
    }
    free(list.bytes);
    assert_true(count >= 40);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_manifests_keep_their_bytes),
        cmocka_unit_test(test_bad_manifests_give_their_status),
    };
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
