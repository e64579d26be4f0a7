#include <wherry/tensor.h>

#include <string.h>

static const wherry_dtype_info table[] = {
#define WHERRY_X(name, value, text, bits, class_) [value] = {text, bits, (bits) / 8, WHERRY_CLASS_##class_},
    WHERRY_DTYPE_LIST(WHERRY_X)
#undef WHERRY_X
};

enum { DTYPES = sizeof(table) / sizeof(*table) };

const wherry_dtype_info *wherry_dtype_describe(wherry_dtype dtype) {
    return (unsigned)dtype < DTYPES ? table + dtype : NULL;
}

int wherry_dtype_find(const char *name) {
    if (!name) {
        return -1;
    }
    if (strncmp(name, "torch.", 6) == 0) {
        name += 6;
    }
    for (int i = 0; i < DTYPES; i++) {
        if (strcmp(table[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}
